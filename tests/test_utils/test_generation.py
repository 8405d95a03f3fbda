"""Writing on: beam search, equal to trying every sequence; drawing, cut as the library cuts, the
same with and without a cache, with padding, with guidance, and with a small model that drafts."""

import copy
import math
from itertools import product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import nn

from helpers import CLOSE, error_of, random, randomize
from utils.cache import KeyValueCache
from utils.generation import (
    beam_search,
    generate,
    guided_logits,
    next_probabilities,
    speculative_generate,
)
from utils.language_model import LanguageModel
from utils.modern_decoder import ModernDecoder
from utils.text import pad

V = 13
SIZES = {"vocab_size": V, "embed_dim": 8, "num_heads": 2, "mlp_dim": 20, "num_layers": 2}


def small(**changes):
    return randomize(LanguageModel(**{**SIZES, "max_length": 12, **changes}))


def some_ids(b=3, n=4):
    return torch.randint(V, (b, n), generator=torch.Generator().manual_seed(0))


class Table(nn.Module):
    """A model whose scores depend on the last token alone: a table of (V, V)."""

    def __init__(self, scores):
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, ids, cache=None):
        if cache is not None:  # one key and one value for each token, as a layer would give
            cache.update(self, *2 * [torch.zeros(len(ids), 1, ids.shape[1], 1)])
        return self.scores[ids]


# --- generate


@pytest.mark.parametrize(("cache", "read"), [(True, [4, 1, 1]), (False, [4, 5, 6])])
def test_with_a_cache_only_new_tokens_are_read(cache, read):
    model, lengths = small(), []
    model.register_forward_pre_hook(lambda _, args: lengths.append(args[0].shape[1]))
    generate(model, some_ids(), 3, seed=0, cache=cache)
    assert lengths == read


@pytest.mark.parametrize("choice", [{}, {"temperature": 0}, {"top_k": 3}, {"top_p": 0.7}], ids=str)
def test_a_cache_changes_no_token(choice):
    model, ids = small(), some_ids()
    kept = ids.clone()
    with_cache = generate(model, ids, 9, seed=1, **choice)
    without = generate(model, ids, 9, seed=1, cache=False, **choice)
    assert torch.equal(with_cache, without)
    assert with_cache.shape == (3, 13) and with_cache.dtype == torch.int64
    assert torch.equal(with_cache[:, :4], kept) and torch.equal(ids, kept)


def test_a_seed_is_reproducible_and_another_is_another():
    model, ids = small(), some_ids(8)
    first = generate(model, ids, 8, seed=4)
    torch.manual_seed(99)
    assert torch.equal(first, generate(model, ids, 8, seed=4))
    assert not torch.equal(first, generate(model, ids, 8, seed=5))
    torch.manual_seed(4)
    without_seed = generate(model, ids, 8)
    torch.manual_seed(4)
    assert torch.equal(without_seed, generate(model, ids, 8)), "PyTorch's own generator"


def test_greedy_takes_the_best_token_each_time():
    model, ids = small().eval(), some_ids()
    written = generate(model, ids, 6, temperature=0)
    for place in range(4, 10):
        best = model(written[:, :place])[:, -1].argmax(dim=-1)
        assert torch.equal(written[:, place], best)
    for limit in ({"top_k": 1}, {"top_p": 1e-6}):
        assert torch.equal(generate(model, ids, 6, **limit), written)


def test_drawn_as_often_as_the_model_says():
    table = Table(random(V, V))
    ids = torch.full((20_000, 1), 2)
    drawn = generate(table, ids, 1, seed=0, temperature=0.7)[:, 1]
    expected = (table.scores[2] / 0.7).softmax(dim=-1)
    shares = torch.bincount(drawn, minlength=V) / len(drawn)
    torch.testing.assert_close(shares, expected.detach(), rtol=0, atol=0.012)


@pytest.mark.parametrize("cache", [True, False])
def test_after_the_end_a_row_is_filled_with_it(cache):
    scores = torch.full((V, V), -30.0)
    for now, then in {3: 4, 4: 5, 5: 3, 6: 5}.items():
        scores[now, then] = 30.0
    written = generate(
        Table(scores), torch.tensor([[3], [6]]), 5, temperature=0, end_id=5, cache=cache
    )
    assert written.tolist() == [[3, 4, 5, 5, 5, 5], [6, 5, 5, 5, 5, 5]]


def test_an_end_within_the_beginning_ends_nothing():
    scores = torch.full((V, V), -30.0)
    scores[5, 3] = scores[3, 4] = scores[4, 4] = 30.0
    written = generate(Table(scores), torch.tensor([[5]]), 3, temperature=0, end_id=5)
    assert written.tolist() == [[5, 3, 4, 4]]


def test_eval_while_writing_and_the_mode_is_put_back():
    model, ids = small(dropout=0.5).train(), some_ids()
    model.encoder.layers[0].eval()
    modes = [module.training for module in model.modules()]
    first = generate(model, ids, 6, temperature=0)
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(first, generate(model, ids, 6, temperature=0)), "no dropout"
    assert not first.requires_grad


def test_as_long_as_the_positions_reach():
    """The last token is written and never read, so a text may be one token longer."""
    model = small()
    assert generate(model, some_ids(2, 12), 1, seed=0).shape == (2, 13)
    assert generate(model, some_ids(2, 1), 12, seed=0).shape == (2, 13)
    for cache in (True, False):
        text = error_of(lambda cache=cache: generate(model, some_ids(2, 4), 10, cache=cache))
        assert "positions for 12 tokens" in text and "generate 9 steps" in text
    assert "positions for 12" in error_of(lambda: generate(model, some_ids(2, 14), 1))


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: generate(small(), some_ids(), 0), "generate: steps must be"),
        (lambda: generate(small(), some_ids()[0], 2), "generate: ids must have shape (b, n)"),
        (lambda: generate(small(), some_ids()[:, :0], 2), "there must be a prompt"),
        (lambda: generate(small(causal=False), some_ids(), 2), "fills blanks"),
        (lambda: generate(small(), some_ids(), 2, temperature=-1), "temperature must be"),
        (lambda: generate(small(), some_ids(), 2, temperature=float("nan")), "temperature must be"),
        (lambda: generate(small(), some_ids(), 2, top_k=0), "top_k must be"),
        (lambda: generate(small(), some_ids(), 2, top_p=0.0), "top_p must be"),
        (lambda: generate(small(), some_ids(), 2, top_p=90), "top_p must be"),
        (lambda: next_probabilities(random(V), top_p=2), "next_probabilities: top_p"),
        (lambda: next_probabilities(torch.arange(V), temperature=0), "of torch.int64"),
        (lambda: next_probabilities(random(V) * torch.nan, temperature=0), "got nan"),
        (lambda: next_probabilities(torch.full((V,), -torch.inf)), "got -inf"),
        (lambda: generate(small(), some_ids(), 2, end_id=V), "end_id must be an integer from 0"),
    ],
)
def test_bad_input(call, said):
    assert said in error_of(call)


# --- next_probabilities


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 3), st.integers(1, V + 2), st.floats(0.05, 1), st.integers(0, 1000))
def test_cuts_as_the_library_does(temperature, top_k, top_p, seed):
    from transformers.generation.logits_process import (
        TemperatureLogitsWarper,
        TopKLogitsWarper,
        TopPLogitsWarper,
    )

    scores = random(4, V, seed=seed) * 3
    expected = scores
    for warp in (
        TemperatureLogitsWarper(temperature),
        TopKLogitsWarper(min(top_k, V)),
        TopPLogitsWarper(top_p),
    ):
        expected = warp(None, expected)
    result = next_probabilities(scores, temperature, top_k, top_p)
    torch.testing.assert_close(result, expected.softmax(dim=-1), **CLOSE)
    torch.testing.assert_close(result.sum(dim=-1), torch.ones(4), **CLOSE)


def test_nothing_cut_is_a_softmax():
    rare = torch.tensor([0.0, -20.0, -21.0, -30.0])
    assert torch.equal(next_probabilities(rare, top_p=1.0), next_probabilities(rare))
    scores = random(2, 3, V)
    torch.testing.assert_close(next_probabilities(scores), scores.softmax(dim=-1), **CLOSE)
    hot = next_probabilities(scores, temperature=0)
    assert torch.equal(hot.argmax(dim=-1), scores.argmax(dim=-1)) and (hot.sum(dim=-1) == 1).all()


def test_equal_scores_are_cut_to_exactly_k():
    scores = torch.zeros(V)
    assert (next_probabilities(scores, top_k=4) > 0).sum() == 4
    assert (next_probabilities(scores, top_p=4.5 / V) > 0).sum() == 5


def test_top_p_keeps_no_more_than_reach_it():
    # four times 1/4, exactly: the first two reach one half, and a third is one too many
    assert (next_probabilities(torch.zeros(4), top_p=0.5) > 0).sum() == 2
    assert next_probabilities(torch.tensor([0.0, 0.0, -1.0]), temperature=0).tolist() == [1, 0, 0]


# --- KeyValueCache


def test_a_cache_joins_in_order_and_keeps_layers_apart():
    cache = KeyValueCache()
    assert cache.length == 0
    first, second = nn.Identity(), nn.Identity()
    k, v = random(2, 3, 4, 5), random(2, 3, 4, 5, seed=1)
    assert cache.update(first, k[:, :, :3], v[:, :, :3])[0].shape == (2, 3, 3, 5)
    all_k, all_v = cache.update(first, k[:, :, 3:], v[:, :, 3:])
    assert torch.equal(all_k, k) and torch.equal(all_v, v) and cache.length == 4
    assert cache.update(second, k, v)[0].shape == k.shape


def test_a_cache_of_another_batch_is_refused():
    cache, layer = KeyValueCache(), nn.Identity()
    cache.update(layer, *2 * [torch.zeros(2, 3, 4, 5)])
    text = error_of(lambda: cache.update(layer, *2 * [torch.zeros(1, 3, 1, 5)]))
    assert "(1, 3, 5, torch.float32) after (2, 3, 5, torch.float32)" in text
    text = error_of(lambda: cache.update(layer, *2 * [torch.zeros(2, 3, 1, 5).half()]))
    assert "torch.float16) after (2, 3, 5, torch.float32)" in text
    two, one = torch.zeros(2, 3, 2, 5), torch.zeros(2, 3, 1, 5)
    assert "must have one value each" in error_of(lambda: cache.update(layer, two, one))
    assert "layers of one model" in error_of(lambda: cache.update(nn.Identity(), one, one))
    assert cache.length == 4


# --- padding on the left


def modern(**changes):
    return randomize(ModernDecoder(**{**SIZES, "num_kv_heads": 1, **changes}))


MODELS = pytest.mark.parametrize("make", [small, modern], ids=["table", "rotary"])
TEXTS = [[3, 1, 4, 1, 5], [9, 2], [6, 5, 0, 3]]  # id 0 is padding only in front of a text


@MODELS
@pytest.mark.parametrize("cache", [True, False])
def test_a_padded_text_is_written_on_as_if_alone(make, cache):
    model = make()
    ids = pad(TEXTS, 0, left=True)
    written = generate(model, ids, 6, temperature=0, padding_id=0, cache=cache)
    assert torch.equal(written[:, :5], ids)
    for text, row in zip(TEXTS, written, strict=True):
        alone = generate(model, torch.tensor([text]), 6, temperature=0)
        assert torch.equal(row[-6 - len(text) :], alone[0])


def test_padding_that_all_rows_have_takes_no_positions():
    """Five tokens and seven more fit into 12 positions, however much padding comes first."""
    model, ids = small(), pad(TEXTS, 0, left=True, length=30)
    written = generate(model, ids, 8, temperature=0, padding_id=0)
    alone = generate(model, pad(TEXTS, 0, left=True), 8, temperature=0, padding_id=0)
    assert torch.equal(written[:, 25:], alone)
    text = error_of(lambda: generate(model, ids, 9, padding_id=0))
    assert "a prompt of 5 and steps=9" in text and "generate 8 steps" in text


@MODELS
def test_scores_of_a_padded_text_are_those_of_the_text_alone(make):
    model = make().eval()
    ids = pad(TEXTS, 0, left=True)
    real = (ids != 0).cumsum(dim=1) > 0
    places = (real.cumsum(dim=1) - 1).clamp(min=0)
    for cuts in ([5], [3, 2], [1, 1, 1, 1, 1]):
        cache, parts, start = KeyValueCache(), [], 0
        for n in cuts:
            end = start + n
            mask = real[:, None, None, :end]
            parts.append(model(ids[:, start:end], mask, cache, places[:, start:end]))
            start = end
        scores = torch.cat(parts, dim=1)
        assert scores.isfinite().all(), "padding looks at nothing and stays finite"
        for text, row in zip(TEXTS, scores, strict=True):
            alone = model(torch.tensor([text]))[0]
            torch.testing.assert_close(row[-len(text) :], alone, **CLOSE)


@MODELS
def test_without_padding_the_id_of_padding_changes_nothing(make):
    model, ids = make(), some_ids() % 5 + 1
    expected = generate(model, ids, 5, seed=3)
    assert torch.equal(generate(model, ids, 5, seed=3, padding_id=0), expected)


def test_padding_that_is_no_padding_on_the_left_is_refused():
    text = error_of(lambda: generate(small(), pad(TEXTS, 0), 3, padding_id=0))
    assert "got row 1 that ends with padding_id=0" in text and "left=True" in text
    generate(small(), pad(TEXTS, 0, left=True), 3, padding_id=0)  # as it says


# --- guidance


def strong(make, **changes):
    """Return a model whose weights are so large that a caption changes many tokens."""
    model = make(**changes)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4)
    return model


def two_prompts(b=3):
    ids = some_ids(b, 5)
    null = ids.clone()
    null[:, :2] = 0  # a caption of two words, left out
    return ids, null


@MODELS
def test_guidance_1_is_plain_and_0_ignores_the_caption(make):
    model, (ids, null) = strong(make), two_prompts()
    plain = generate(model, ids, 7, seed=2)
    assert torch.equal(generate(model, ids, 7, seed=2, guidance=1, null_ids=null), plain)
    ignored = generate(model, ids, 7, seed=2, guidance=0, null_ids=null)
    assert torch.equal(ignored[:, 5:], generate(model, null, 7, seed=2)[:, 5:])
    assert torch.equal(ignored[:, :5], ids), "the prompt keeps its caption"
    assert not torch.equal(ignored[:, 5:], plain[:, 5:]), "the caption changes something"


def test_guidance_is_the_same_with_and_without_a_cache():
    model, (ids, null) = strong(small), two_prompts()
    options = {"seed": 2, "guidance": 2.5, "null_ids": null}
    cached = generate(model, ids, 7, **options)
    assert torch.equal(cached, generate(model, ids, 7, cache=False, **options))
    assert cached.shape == (3, 12)


def test_guided_tokens_are_the_best_of_the_guided_logits():
    model, (ids, null) = strong(small), two_prompts()
    written = generate(model, ids, 6, temperature=0, guidance=3, null_ids=null)
    for n in range(5, 11):
        after_null = torch.cat([null, written[:, 5:n]], dim=1)
        with torch.no_grad():
            ours, theirs = model(written[:, :n])[:, -1], model(after_null)[:, -1]
        assert torch.equal((theirs + 3 * (ours - theirs)).argmax(dim=-1), written[:, n])


def test_guidance_with_padding_and_an_end():
    model = strong(small, max_length=20)
    ids, null = pad(TEXTS, 0, left=True), pad([text[-1:] for text in TEXTS], 0, left=True)
    null = torch.cat([ids.new_zeros(len(ids), ids.shape[1] - 1), null], dim=1)
    options = {"temperature": 0, "guidance": 2, "padding_id": 0}
    written = generate(model, ids, 6, null_ids=null, **options)
    for text, row in zip(TEXTS, written, strict=True):
        alone = torch.tensor([text])
        without = alone.clone()
        without[:, :-1] = 0
        expected = generate(model, alone, 6, null_ids=without, **options)
        assert torch.equal(row[ids.shape[1] :], expected[0, len(text) :])
    end = written[0, ids.shape[1] + 1].item()
    ended = generate(model, ids, 6, null_ids=null, end_id=end, **options)[0, ids.shape[1] :]
    assert (ended[ended.tolist().index(end) :] == end).all()


def test_guided_logits_are_those_of_the_library():
    from transformers import ClassifierFreeGuidanceLogitsProcessor

    both = random(6, V)
    theirs = ClassifierFreeGuidanceLogitsProcessor(guidance_scale=2.5)(some_ids(3), both)
    assert torch.allclose(guided_logits(both[:3], both[3:], 2.5), theirs, **CLOSE)


def test_guidance_that_makes_no_sense_is_refused():
    model, (ids, null) = strong(small), two_prompts()
    for call, said in [
        (lambda: generate(model, ids, 2, guidance=2), "null_ids must be the prompts without"),
        (lambda: generate(model, ids, 2, guidance=2, null_ids=null[:, 1:]), "generate: null_ids"),
        (lambda: generate(model, ids, 2, guidance=-1, null_ids=null), "guidance must be a number"),
        (lambda: guided_logits(random(2, V), random(3, V), 2), "guided_logits: null_logits"),
    ]:
        assert said in error_of(call)


# --- drafts


def watched(model):
    """Return a list that grows by the number of tokens with each call of the model."""
    read = []
    model.register_forward_pre_hook(lambda _, args: read.append(args[0].shape[1]))
    return read


@pytest.mark.parametrize("ahead", [1, 3, 20])
@MODELS
def test_greedy_drafts_give_the_greedy_text(make, ahead):
    model, draft, ids = make(), randomize(make(num_layers=1), seed=5), some_ids()
    expected = generate(model, ids, 8, temperature=0)
    assert torch.equal(
        speculative_generate(model, draft, ids, 8, ahead=ahead, temperature=0), expected
    )


@pytest.mark.parametrize("temperature", [0, 0.8])
@MODELS
def test_a_model_may_draft_for_itself(make, temperature):
    model, ids = make(), some_ids()
    read = watched(model)
    drafted = speculative_generate(model, model, ids, 8, ahead=3, temperature=temperature, seed=0)
    assert len(read) == 8, "six drafts, all taken, and two checks"
    if temperature == 0:
        assert torch.equal(drafted, generate(model, ids, 8, temperature=0))
    # and a copy of it drafts the same
    twin = speculative_generate(
        model, copy.deepcopy(model), ids, 8, ahead=3, temperature=temperature, seed=0
    )
    assert torch.equal(drafted, twin)


def exact(model, ids, steps):
    """Return the probability of every text of `steps` tokens, by asking for each of them."""
    vocabulary = model(ids).shape[-1]
    texts = torch.cartesian_prod(*steps * [torch.arange(vocabulary)]).reshape(-1, steps)
    whole = torch.cat([ids.expand(len(texts), -1), texts], dim=1)
    with torch.no_grad():
        logs = model(whole[:, :-1])[:, -steps:].log_softmax(dim=-1)
    return logs.gather(-1, texts[..., None]).sum(dim=(1, 2)).exp()


@pytest.mark.parametrize("ahead", [1, 2, 5])
def test_drafted_texts_are_as_probable_as_the_model_says(ahead):
    """1,600 texts of three tokens, counted, against the probability of each of the 27."""
    model, draft = Table(random(3, 3)), Table(random(3, 3, seed=5))
    start = torch.tensor([[2, 1]])
    expected = exact(model, start, 3)
    assert (expected - exact(draft, start, 3)).abs().sum() > 0.3, "the draft alone is far off"
    drawn = [
        speculative_generate(model, draft, start.expand(8, 2), 3, ahead=ahead, seed=seed)[:, 2:]
        for seed in range(200)
    ]
    numbers = torch.cat(drawn) @ torch.tensor([9, 3, 1])
    shares = torch.bincount(numbers, minlength=27) / len(numbers)
    far = (shares - expected).abs().sum()
    assert far < 0.1, "1,600 draws from the truth are 0.08 away, on average"


def test_a_draft_that_agrees_saves_calls_and_one_that_does_not_costs_none():
    model = small()
    same, other = small(), randomize(small(), seed=9)
    ids, calls = some_ids(1), watched(model)
    speculative_generate(model, same, ids, 8, ahead=3, seed=0)
    assert calls == [4 + 3, 4], "4 tokens a call, and only what was not read yet"
    calls.clear()
    speculative_generate(model, other, ids, 8, ahead=3, seed=0)
    assert 2 < len(calls) <= 8


def test_a_draft_is_cut_as_generate_cuts():
    model, draft, ids = small(), randomize(small(), seed=5), some_ids(200, 2)
    drawn = speculative_generate(model, draft, ids, 1, seed=0, top_k=1)
    assert torch.equal(drawn, generate(model, ids, 1, temperature=0))
    first = speculative_generate(model, draft, ids, 6, seed=4, temperature=0.7, top_p=0.8)
    torch.manual_seed(1)
    assert torch.equal(
        first, speculative_generate(model, draft, ids, 6, seed=4, temperature=0.7, top_p=0.8)
    )
    assert first.shape == (200, 8) and torch.equal(first[:, :2], ids)


def test_modes_of_both_models_are_put_back():
    model, draft = small(dropout=0.5).train(), small(dropout=0.5).eval()
    speculative_generate(model, draft, some_ids(), 3, seed=0)
    assert model.training and not draft.training


@pytest.mark.parametrize(
    "call, said",
    [
        (
            lambda: speculative_generate(small(), small(), some_ids(), 0),
            "speculative_generate: steps must be",
        ),
        (
            lambda: speculative_generate(small(), small(), some_ids(), 2, ahead=0),
            "speculative_generate: ahead must be",
        ),
        (
            lambda: speculative_generate(small(), small(), some_ids(), 20),
            "speculative_generate: the model has positions",
        ),
        (
            lambda: speculative_generate(small(), small(max_length=8), some_ids(), 9),
            "positions for 8 tokens",
        ),
        (lambda: speculative_generate(small(), small(causal=False), some_ids(), 2), "fills blanks"),
        (
            lambda: speculative_generate(small(), small(), some_ids(), 2, top_p=0.0),
            "speculative_generate: top_p",
        ),
        (
            lambda: speculative_generate(small(), small(vocab_size=20), some_ids(), 2),
            "one vocabulary",
        ),
    ],
)
def test_bad_drafts(call, said):
    assert said in error_of(call)


# --- what a cache keeps and forgets


@MODELS
def test_what_was_cut_was_never_read(make):
    model, ids = make().eval(), some_ids(2, 8)
    cache = KeyValueCache()
    model(ids[:, :6], cache=cache)
    cache.crop(3)
    assert cache.length == 3
    late = model(ids[:, 3:], cache=cache)
    torch.testing.assert_close(late, model(ids)[:, 3:], **CLOSE)
    cache.crop(0)
    torch.testing.assert_close(model(ids, cache=cache), model(ids), **CLOSE)


@MODELS
def test_what_was_cropped_leaves_the_memory_and_the_batch_free(make):
    model, cache = make(), KeyValueCache()
    model(some_ids(), cache=cache)
    cache.crop(1)
    assert all(k.untyped_storage().nbytes() == k.nbytes for k, _ in cache._held.values())
    cache.crop(0)
    assert model(some_ids(2), cache=cache).shape == (2, 4, V)


@MODELS
@torch.no_grad()
def test_rows_take_their_keys_along(make):
    model, ids, rows = make().eval(), some_ids(3, 6), torch.tensor([2, 0, 0, 1])
    cache = KeyValueCache()
    model(ids[:, :4], cache=cache)
    cache.reorder(rows)
    late = model(ids[rows][:, 4:], cache=cache)
    torch.testing.assert_close(late, model(ids[rows])[:, 4:], **CLOSE)


def test_bytes_are_those_of_keys_and_values():
    """8 wide in 2 heads, 2 layers, 3 texts of 4 tokens; grouped queries keep half of it."""
    for model, heads in ((small(), 2), (modern(), 1)):
        for dtype, size in ((torch.float32, 4), (torch.bfloat16, 2)):
            cache = KeyValueCache()
            assert cache.nbytes == 0
            model.to(dtype)(some_ids(), cache=cache)
            assert cache.nbytes == 2 * 2 * 3 * 4 * heads * 4 * size


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda cache: cache.crop(5), "from 0 to 4, got length=5"),
        (lambda cache: cache.crop(-1), "from 0 to 4, got length=-1"),
        (lambda cache: cache.crop(2.0), "got length=2.0"),
        (lambda cache: cache.reorder(torch.tensor([3])), "between 0 and 2, got 3"),
        (lambda cache: cache.reorder(torch.tensor([-1])), "between 0 and 2, got -1"),
        (lambda cache: cache.reorder(torch.tensor([True, False, True])), "got torch.bool"),
        (lambda cache: cache.reorder(torch.tensor(1)), "rows must have shape (w)"),
    ],
)
def test_what_a_cache_refuses(call, said):
    cache = KeyValueCache()
    small()(some_ids(), cache=cache)
    assert said in error_of(lambda: call(cache))
    assert cache.length == 4


# --- beam search

tried = settings(max_examples=25, deadline=None, derandomize=True, database=None)
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


def to_the_end(next_scores, vocabulary, width, max_length, length_penalty):
    """Search with a beam of tuples that never stops early; without an end return what was cut."""
    beam, ended = [((START,), 0.0)], []
    for length in range(1, max_length + 1):
        longer = []
        for ids, score in beam:
            step = next_scores(torch.tensor([ids]))[0].tolist()
            longer += [((*ids, token), score + step[token]) for token in range(vocabulary)]
        best = sorted(longer, key=lambda pair: -pair[1])[:width]
        ended += [(list(i), s / length**length_penalty) for i, s in best if i[-1] == END]
        beam = [pair for pair in best if pair[0][-1] != END]
    cut_off = [(list(ids), score / max_length**length_penalty) for ids, score in beam]
    return sorted(ended, key=lambda pair: -pair[1])[:width] or cut_off


@tried
@given(st.integers(1, 3), st.integers(1, 7), st.integers(0, 999), st.sampled_from([0, 1, 3]))
@example(3, 6, 11, 1)  # a beginning that is behind wins by its length
def test_stopping_early_loses_nothing(width, longest, seed, penalty):
    model = random_model(4, seed)
    found = beam_search(model, START, END, width, longest, penalty)
    assert_same(found, to_the_end(model, 4, width, longest, penalty))


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
    assert len(beam_search(model, START, END, 9, 5)) == 5, "no sentence that cannot be"


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
        ({"length_penalty": 400}, "a number in [0, 10], got length_penalty=400"),
        ({"length_penalty": math.nan}, "got length_penalty=nan"),
        ({"start_id": 4}, "start_id must be an integer from 0 to 3, got start_id=4"),
        ({"end_id": -1}, "end_id must be an integer of at least 0, got end_id=-1"),
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
