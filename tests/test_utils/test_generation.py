"""Beam search: equal to trying every sequence, to greedy at width 1, and to a hand-made example."""

import math
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import error_of
from utils.generation import beam_search

tried = settings(max_examples=40, deadline=None, derandomize=True, database=None)
START, END = 0, 1


def random_model(vocabulary, seed, sharp=2.0):
    """Return next_scores whose log-probabilities depend on every token so far."""

    def next_scores(ids):
        rows = []
        for row in ids.tolist():
            mixed = hash((seed, *row)) % 2**31
            generator = torch.Generator().manual_seed(mixed)
            rows.append((sharp * torch.randn(vocabulary, generator=generator)).log_softmax(dim=-1))
        return torch.stack(rows)

    return next_scores


def log_probability(next_scores, ids):
    return sum(next_scores(torch.tensor([ids[:t]]))[0, ids[t]].item() for t in range(1, len(ids)))


def every_sentence(next_scores, vocabulary, max_length, length_penalty):
    """Return every sequence that ends within max_length with its score, best first."""
    found = []
    inner = [token for token in range(vocabulary) if token != END]
    for length in range(1, max_length + 1):
        for middle in product(inner, repeat=length - 1):
            ids = [START, *middle, END]
            found.append((ids, log_probability(next_scores, ids) / length**length_penalty))
    return sorted(found, key=lambda pair: -pair[1])


def assert_same(ours, theirs):
    assert [ids for ids, _ in ours] == [ids for ids, _ in theirs]
    assert [score for _, score in ours] == pytest.approx([s for _, s in theirs], abs=1e-4)


@tried
@given(st.integers(2, 4), st.integers(1, 4), st.integers(0, 999), st.sampled_from([0, 0.6, 1, 2]))
def test_a_wide_beam_is_exhaustive_search(vocabulary, max_length, seed, length_penalty):
    model = random_model(vocabulary, seed)
    wide = vocabulary**max_length
    found = beam_search(model, START, END, wide, max_length, length_penalty)
    assert_same(found, every_sentence(model, vocabulary, max_length, length_penalty))


@tried
@given(st.integers(2, 7), st.integers(1, 9), st.integers(0, 999), st.sampled_from([0, 1]))
def test_width_one_is_greedy(vocabulary, max_length, seed, length_penalty):
    model = random_model(vocabulary, seed)
    ids = [START]
    while len(ids) <= max_length and ids[-1] != END:
        ids.append(model(torch.tensor([ids]))[0].argmax().item())
    expected = log_probability(model, ids) / (len(ids) - 1) ** length_penalty
    assert_same(beam_search(model, START, END, 1, max_length, length_penalty), [(ids, expected)])


def to_the_end(next_scores, vocabulary, width, max_length, length_penalty):
    """Search with a beam of tuples that never stops early."""
    beam, ended = [((START,), 0.0)], []
    for length in range(1, max_length + 1):
        longer = []
        for ids, score in beam:
            step = next_scores(torch.tensor([ids]))[0].tolist()
            longer += [((*ids, token), score + step[token]) for token in range(vocabulary)]
        best = sorted(longer, key=lambda pair: -pair[1])[:width]
        ended += [(list(i), s / length**length_penalty) for i, s in best if i[-1] == END]
        beam = [pair for pair in best if pair[0][-1] != END]
    return sorted(ended, key=lambda pair: -pair[1])[:width]


@tried
@given(st.integers(1, 3), st.integers(2, 8), st.integers(0, 999), st.sampled_from([0, 1, 3]))
def test_stopping_early_loses_nothing(width, longest, seed, penalty):
    model = random_model(4, seed)
    found = beam_search(model, START, END, width, longest, penalty)
    everything = to_the_end(model, 4, width, longest, penalty)
    assert_same(found if found[0][0][-1] == END else [], everything)


@tried
@given(st.integers(2, 5), st.integers(1, 6), st.integers(0, 999), st.sampled_from([0, 0.5, 2]))
def test_what_it_returns_is_in_order_different_and_rightly_scored(width, longest, seed, penalty):
    model = random_model(5, seed)
    found = beam_search(model, START, END, width, longest, penalty)
    scores = [score for _, score in found]
    assert 1 <= len(found) <= width and scores == sorted(scores, reverse=True)
    assert len({tuple(ids) for ids, _ in found}) == len(found)
    ended = {ids[-1] == END for ids, _ in found}
    assert len(ended) == 1, "cut-off sequences only if none ended"
    for ids, score in found:
        assert ids[0] == START and END not in ids[:-1] and len(ids) <= longest + 1
        assert ended == {True} or len(ids) == longest + 1
        assert score == pytest.approx(
            log_probability(model, ids) / (len(ids) - 1) ** penalty, abs=1e-4
        )


def table_model(table, vocabulary):
    """Return next_scores of a grammar: beginning -> probability of each next token."""

    def next_scores(ids):
        rows = torch.full((len(ids), vocabulary), -torch.inf)
        for row, beginning in zip(rows, ids.tolist(), strict=True):
            for token, probability in table[tuple(beginning[1:])].items():
                row[token] = math.log(probability)
        return rows

    return next_scores


# Greedy begins with 2 (0.6), but every way on from there is unlikely; 3 leads to the best one.
GARDEN_PATH = {
    (): {2: 0.6, 3: 0.4},
    (2,): {2: 0.4, 3: 0.3, 4: 0.3},
    (3,): {4: 0.9, 2: 0.1},
    **{(2, token): {END: 1.0} for token in (2, 3, 4)},
    **{(3, token): {END: 1.0} for token in (2, 4)},
}


def test_a_second_beam_finds_what_greedy_misses():
    model = table_model(GARDEN_PATH, 5)
    assert_same(beam_search(model, START, END, 1, 5), [([0, 2, 2, 1], math.log(0.24))])
    best, second = beam_search(model, START, END, 2, 5)
    assert_same([best, second], [([0, 3, 4, 1], math.log(0.36)), ([0, 2, 2, 1], math.log(0.24))])


def test_a_sequence_that_ended_is_kept_though_others_were_ahead():
    """Stopping at once (0.3) is third best in step 1, and best of all in the end."""
    table = {
        (): {2: 0.36, 3: 0.34, END: 0.3},
        **{(first,): {token: 0.25 for token in (2, 3, 4, 5)} for first in (2, 3)},
        **{(first, token): {END: 1.0} for first in (2, 3) for token in (2, 3, 4, 5)},
    }
    found = beam_search(table_model(table, 6), START, END, 3, 4)
    assert found[0][0] == [START, END] and found[0][1] == pytest.approx(math.log(0.3), abs=1e-5)
    assert len(found) == 3, "the search went on for the other places"


def test_the_length_penalty_prefers_longer_sequences():
    table = {
        (): {END: 0.5, 2: 0.5},
        (2,): {2: 0.8, END: 0.2},
        (2, 2): {END: 1.0},
    }
    model = table_model(table, 3)

    def best(**options):
        return beam_search(model, START, END, 3, 4, **options)[0]

    assert_same([best()], [([0, 1], math.log(0.5))])
    assert_same([best(length_penalty=1.0)], [([0, 2, 2, 1], math.log(0.4) / 3)])


def test_all_beginnings_are_one_batch():
    shapes = []
    model = random_model(6, seed=1)

    def watched(ids):
        shapes.append(tuple(ids.shape))
        return model(ids)

    beam_search(watched, START, END, 4, 5)
    assert [length for _, length in shapes] == list(range(1, len(shapes) + 1))
    assert shapes[0] == (1, 1) and max(rows for rows, _ in shapes) == 4


def test_it_stops_when_no_beginning_can_still_win():
    calls = []

    def next_scores(ids):
        calls.append(len(ids))
        return torch.tensor([[0.001, 0.999]]).log().expand(len(ids), 2)

    assert beam_search(next_scores, START, END, 1, 50)[0][0] == [START, END]
    assert len(calls) == 1
    beam_search(next_scores, START, END, 2, 50)
    assert len(calls) == 3, "two steps more"


def test_without_an_end_the_beginnings_are_cut_off():
    inner = {2: 0.7, 3: 0.3}
    table = {(): inner, (2,): inner, (3,): {2: 0.9, 3: 0.1}}
    found = beam_search(table_model(table, 4), START, END, 2, 2)
    assert_same(found, [([0, 2, 2], math.log(0.49)), ([0, 3, 2], math.log(0.27))])


def test_no_gradient_is_kept():
    weight = torch.zeros(3, requires_grad=True)
    seen = []

    def next_scores(ids):
        scores = weight.log_softmax(dim=-1).expand(len(ids), 3)
        seen.append(scores.requires_grad)
        return scores

    beam_search(next_scores, START, END, 2, 3)
    assert not any(seen)


@pytest.mark.parametrize(
    "options, said",
    [
        ({"width": 0}, "width must be an integer of at least 1, got width=0"),
        ({"max_length": 0}, "max_length must be an integer of at least 1, got max_length=0"),
        ({"length_penalty": -1.0}, "got length_penalty=-1.0"),
        ({"length_penalty": math.nan}, "got length_penalty=nan"),
        ({"start_id": 4}, "start_id must be from 0 to 3, got start_id=4"),
        ({"end_id": -1}, "end_id must be from 0 to 3, got end_id=-1"),
        ({"next_scores": lambda ids: torch.zeros(len(ids), 2, 4)}, "Take the last position"),
        ({"next_scores": lambda ids: torch.zeros(9, 4)}, "got (9, 4) for ids (1, 1)"),
        ({"next_scores": lambda ids: torch.ones(len(ids), 4)}, "Apply log_softmax(dim=-1)"),
        ({"next_scores": lambda ids: torch.full((len(ids), 4), math.nan)}, "got nan"),
    ],
)
def test_bad_input_gets_an_answer(options, said):
    good = {
        "next_scores": random_model(4, 0),
        "start_id": START,
        "end_id": END,
        "width": 2,
        "max_length": 3,
    }
    text = error_of(lambda: beam_search(**(good | options)))
    assert text.startswith("beam_search: ") and said in text
