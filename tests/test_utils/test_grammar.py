"""The grammar: probabilities add up, and agree with counting sentences by hand and by sampling."""

import pytest
import torch

from helpers import error_of
from utils.data import Grammar, load_grammar
from utils.data.grammar import AT_THE_END, BEFORE_OBJECT, BEFORE_SUBJECT, OBJECTS, SUBJECTS, VERBS
from utils.generation import beam_search
from utils.text import BEGIN, END, PADDING, UNKNOWN


@pytest.fixture(scope="module")
def grammar():
    return load_grammar()


def small():
    return Grammar({"a cat sleeps": 2, "a dog sleeps": 1, "a dog barks": 1, "cat": 4})


def test_every_table_adds_up_to_100():
    for table in (BEFORE_SUBJECT, VERBS, OBJECTS, BEFORE_OBJECT, AT_THE_END):
        assert {sum(shares.values()) for shares in table.values()} == {100}
    assert sum(SUBJECTS.values()) == 100
    assert set(OBJECTS) == {(who, verb) for who in VERBS for verb in VERBS[who]}


def test_by_hand():
    grammar = small()
    assert grammar.vocabulary.symbols[4:] == ["a", "barks", "cat", "dog", "sleeps"]
    assert grammar.probabilities.tolist() == [0.25, 0.125, 0.125, 0.5]
    a, barks, cat, dog, sleeps = range(4, 9)
    ids = torch.tensor([grammar.encode("a dog barks")])
    after = grammar.after(ids)
    assert after.shape == (1, 5, 9)
    assert after[0, 0].nonzero().flatten().tolist() == [a, cat]
    assert after[0, 0, [a, cat]].tolist() == [0.5, 0.5]
    assert after[0, 1, [cat, dog]].tolist() == [0.5, 0.5]
    assert after[0, 2, [barks, sleeps]].tolist() == [0.5, 0.5]
    assert after[0, 3, END] == 1 and after[0, 4, PADDING] == 1
    between = grammar.between(ids)
    assert between[0, 0, BEGIN] == 1 and between[0, 1, a] == 1
    assert between[0, 2].tolist() == [0, 0, 0, 0, 0, 0, 0, 1, 0], "a cat never barks"
    assert between[0, 3, [barks, sleeps]].tolist() == [0.5, 0.5]
    # what stands at the place itself does not count
    blank = ids.clone()
    blank[0, 3] = UNKNOWN
    torch.testing.assert_close(grammar.between(blank)[0, 3], between[0, 3])


def test_what_no_sentence_says_is_0():
    grammar = small()
    ids = torch.tensor([grammar.encode("a cat barks")])
    assert (grammar.after(ids)[0, :3].sum(dim=-1) == 1).all()
    assert (grammar.after(ids)[0, 3:] == 0).all()
    assert grammar.between(ids)[0].sum(dim=-1).tolist() == [0, 0, 1, 1, 0]


def test_chain_rule_gives_every_sentence_its_probability(grammar):
    """The product of the conditional probabilities is the probability of the sentence."""
    rows = torch.arange(0, len(grammar.ids), 31)
    ids = grammar.ids[rows]
    steps = grammar.after(ids)[:, :-1].gather(2, ids[:, 1:, None])[..., 0]  # (b, n - 1)
    torch.testing.assert_close(steps.prod(dim=1), grammar.probabilities[rows])
    torch.testing.assert_close(grammar.after(ids).sum(dim=-1), torch.ones(ids.shape).double())
    torch.testing.assert_close(grammar.between(ids).sum(dim=-1), torch.ones(ids.shape).double())


def test_samples_come_as_often_as_they_should(grammar):
    generator = torch.Generator().manual_seed(0)
    ids = grammar.sample(20_000, generator)
    assert ids.shape == (20_000, 10)
    first = torch.bincount(ids[:, 1 + 1], minlength=27) / len(ids)
    expected = grammar.after(torch.tensor([[BEGIN, ids[0, 1]]]))[0, 1]
    torch.testing.assert_close(first.double(), expected, rtol=0, atol=0.012)
    again = grammar.sample(20_000, torch.Generator().manual_seed(0))
    assert torch.equal(ids, again)


def test_the_size_that_is_stated(grammar):
    assert grammar.ids.shape == (3255, 10) and len(grammar.vocabulary) == 27
    assert len({tuple(row) for row in grammar.ids.tolist()}) == 3255
    assert grammar.probabilities.sum().item() == pytest.approx(1)


def test_the_best_sentence_needs_a_beam_of_four(grammar):
    best = grammar.ids[grammar.probabilities.argmax()]

    def next_scores(ids):
        return grammar.after(ids)[:, -1].log()

    found = {w: beam_search(next_scores, BEGIN, END, w, 9)[0][0] for w in (1, 3, 4)}
    greedy = grammar.encode("the small mouse eats the cheese")
    assert found[1] == found[3] == greedy
    assert found[4] == grammar.encode("the cat chases the mouse") == best[best != PADDING].tolist()


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: Grammar({}), "Grammar: there must be sentences"),
        (lambda: Grammar({"a": 1, "b": 0}), "share above 0"),
        (lambda: small().after(torch.tensor([1, 2])), "ids[None]"),
        (lambda: small().between(torch.tensor([[1, 4]])), "padded to 5"),
        (lambda: small().sample(0), "count must be"),
    ],
)
def test_bad_input(call, said):
    assert said in error_of(call)
