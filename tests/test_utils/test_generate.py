"""Writing on: the same with and without a cache, the same for a seed, cut as the library cuts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers import CLOSE, error_of, random, randomise
from utils.generation import KeyValueCache, generate, next_probabilities
from utils.language_model import LanguageModel

V = 13
SIZES = {"vocab_size": V, "embed_dim": 8, "num_heads": 2, "mlp_dim": 20, "num_layers": 2}


def small(**changes):
    return randomise(LanguageModel(**{**SIZES, "max_length": 12, **changes}))


def some_ids(b=3, n=4):
    return torch.randint(V, (b, n), generator=torch.Generator().manual_seed(0))


class Table(nn.Module):
    """A model whose scores depend on the last token alone: a table of (V, V)."""

    def __init__(self, scores):
        super().__init__()
        self.scores = nn.Parameter(scores)

    def forward(self, ids, cache=None):
        if cache is not None:  # one key and one value for each token, as a layer would give
            cache.extend(self, *2 * [torch.zeros(len(ids), 1, ids.shape[1], 1)])
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
        assert "positions for 12 tokens" in text and "write 9 steps" in text
    assert "positions for 12" in error_of(lambda: generate(model, some_ids(2, 14), 1))


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: generate(small(), some_ids(), 0), "generate: steps must be"),
        (lambda: generate(small(), some_ids()[0], 2), "generate: ids must have shape (b, n)"),
        (lambda: generate(small(), some_ids()[:, :0], 2), "needs a beginning"),
        (lambda: generate(small(causal=False), some_ids(), 2), "fills blanks"),
        (lambda: generate(small(), some_ids(), 2, temperature=-1), "temperature must be"),
        (lambda: generate(small(), some_ids(), 2, temperature=float("nan")), "temperature must be"),
        (lambda: generate(small(), some_ids(), 2, top_k=0), "top_k must be"),
        (lambda: generate(small(), some_ids(), 2, top_p=0.0), "top_p must be"),
        (lambda: generate(small(), some_ids(), 2, top_p=90), "top_p must be"),
        (lambda: next_probabilities(random(V), top_p=2), "next_probabilities: top_p"),
    ],
)
def test_bad_input(call, said):
    assert said in error_of(call)


# --- next_probabilities


@settings(max_examples=50, deadline=None)
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
    assert cache.extend(first, k[:, :, :3], v[:, :, :3])[0].shape == (2, 3, 3, 5)
    all_k, all_v = cache.extend(first, k[:, :, 3:], v[:, :, 3:])
    assert torch.equal(all_k, k) and torch.equal(all_v, v) and cache.length == 4
    assert cache.extend(second, k, v)[0].shape == k.shape


def test_a_cache_of_another_batch_is_refused():
    cache, layer = KeyValueCache(), nn.Identity()
    cache.extend(layer, *2 * [torch.zeros(2, 3, 4, 5)])
    text = error_of(lambda: cache.extend(layer, *2 * [torch.zeros(1, 3, 1, 5)]))
    assert "(1, 3, 5) after (2, 3, 5)" in text
    assert cache.length == 4
