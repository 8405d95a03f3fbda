"""The language model: equal to PyTorch's encoder with a causal mask; it sees what it may."""

import copy

import pytest
import torch
import torch.nn.functional as F

from helpers import CLOSE, child_names, error_of, random, randomize, torch_encoder
from utils.attention import record_attention
from utils.cache import KeyValueCache
from utils.data import (
    ANY_DIGIT,
    INK_LEVELS,
    SHIPPED,
    drawing_ids,
    load_digits,
    load_shipped,
    resource,
)
from utils.language_model import LanguageModel
from utils.masking import causal_mask, padding_mask

B, N, V = 3, 6, 11
SIZES = {"vocab_size": V, "embed_dim": 8, "num_heads": 2, "mlp_dim": 20, "num_layers": 3}

directions = pytest.mark.parametrize("causal", [True, False], ids=["gpt", "bert"])


def small(**changes):
    return randomize(LanguageModel(**{**SIZES, "max_length": 9, **changes})).eval()


def some_ids(b=B, n=N, seed=0):
    return torch.randint(V, (b, n), generator=torch.Generator().manual_seed(seed))


def scores_of_pytorch(model, encoder, ids, real):
    """Run PyTorch's encoder between our two tables."""
    n = ids.shape[1]
    tokens = model.embedding.tokens(ids) + model.embedding.positions[:n]
    options = {"mask": ~causal_mask(n)} if model.causal else {}
    if real is not None:
        options["src_key_padding_mask"] = ~real
    return encoder(tokens, **options) @ model.head.weight.T


@directions
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("padded", [True, False])
def test_equals_pytorch(causal, tied, padded):
    model = small(causal=causal, tie_weights=tied).train()
    theirs = copy.deepcopy(model)
    encoder = torch_encoder(theirs.encoder)
    ids, lengths = some_ids(), torch.tensor([4, N, 2])
    real = torch.arange(N) < lengths[:, None] if padded else None
    counted = torch.ones(B, N, dtype=torch.bool) if real is None else real
    weight = random(B, N, V, seed=3) * counted[..., None]
    scores = model(ids, padding_mask(lengths, N) if padded else None)
    expected = scores_of_pytorch(theirs, encoder, ids, real)
    torch.testing.assert_close(scores[counted], expected[counted], rtol=1e-5, atol=5e-5)
    (scores * weight).sum().backward()
    (expected * weight).sum().backward()
    for name in ["tokens.weight", "positions"]:
        torch.testing.assert_close(
            model.embedding.get_parameter(name).grad,
            theirs.embedding.get_parameter(name).grad,
            rtol=1e-4,
            atol=2e-4,
        )
    ours = model.encoder.layers[0].attn.out_proj.weight.grad
    torch.testing.assert_close(
        ours, encoder.layers[0].self_attn.out_proj.weight.grad, rtol=1e-4, atol=2e-4
    )


@directions
def test_who_sees_whom_by_gradient(causal):
    """The gradient of the scores at a place for the tokens: 0 exactly where nothing may flow."""
    model = small(causal=causal)
    seen = torch.zeros(N, N, dtype=torch.bool)
    tokens = model.embedding(some_ids(1)).detach().requires_grad_()
    mask = causal_mask(N) if causal else None
    scores = model.head(model.encoder(tokens, mask))
    torch.testing.assert_close(scores, model(some_ids(1)), **CLOSE)
    for place in range(N):
        grad = torch.autograd.grad(scores[0, place].square().sum(), tokens, retain_graph=True)[0]
        seen[place] = grad[0].abs().sum(dim=-1) > 0
    assert torch.equal(seen, causal_mask(N) if causal else torch.ones(N, N, dtype=torch.bool))


def test_the_mask_comes_on_top_of_causal():
    model, ids = small(), some_ids()
    mask = torch.eye(N, dtype=torch.bool)
    with record_attention(model) as maps:
        model(ids, mask)
        model(ids, torch.ones(N, N, dtype=torch.bool))
    alone, causal = maps[0], maps[3]
    torch.testing.assert_close(alone, torch.eye(N).expand_as(alone), **CLOSE)
    assert (causal.triu(1) == 0).all() and (causal[..., -1, :] > 0).all()


@pytest.mark.parametrize("parts", [[6], [1, 1, 1, 1, 1, 1], [2, 3, 1], [1, 5]])
def test_a_cache_changes_nothing(parts):
    model, ids = small(), some_ids()
    cache = KeyValueCache()
    scores = []
    for part in ids.split(parts, dim=1):
        scores.append(model(part, cache=cache))
    assert cache.length == N
    torch.testing.assert_close(torch.cat(scores, dim=1), model(ids), **CLOSE)


def test_a_cache_with_a_mask():
    model, ids = small(), some_ids()
    mask = torch.rand(B, 1, N, N, generator=torch.Generator().manual_seed(1)) < 0.7
    mask = mask | torch.eye(N, dtype=torch.bool)
    cache = KeyValueCache()
    first = model(ids[:, :4], mask[:, :, :4, :4], cache=cache)
    second = model(ids[:, 4:], mask[:, :, 4:], cache=cache)
    torch.testing.assert_close(torch.cat([first, second], dim=1), model(ids, mask), **CLOSE)


def test_tied_is_one_table_with_the_gradient_of_both_ends():
    tied, untied = small(), small(tie_weights=False)
    assert tied.head.weight is tied.embedding.tokens.weight
    untied.load_state_dict(tied.state_dict())
    ids = some_ids()
    torch.testing.assert_close(tied(ids), untied(ids), **CLOSE)
    for model in (tied, untied):
        model(ids).square().sum().backward()
    both = untied.head.weight.grad + untied.embedding.tokens.weight.grad
    torch.testing.assert_close(tied.head.weight.grad, both, rtol=1e-4, atol=1e-3)
    count = {m: sum(p.numel() for p in m.parameters()) for m in (tied, untied)}
    assert count[untied] - count[tied] == V * SIZES["embed_dim"]


@pytest.mark.parametrize("tied, own", [(True, 2.3), (False, 0.0)])
def test_scores_at_the_start(tied, own):
    """The spread is near 1; with one table, the token that was read already stands out."""
    torch.manual_seed(0)
    model = LanguageModel(**{**SIZES, "embed_dim": 64}, max_length=9, tie_weights=tied)
    ids = some_ids(16, 9)
    is_own = F.one_hot(ids, V).bool()
    scores = model(ids).detach()
    assert 0.4 < scores[~is_own].std().item() < 1.3
    assert scores[is_own].mean().item() == pytest.approx(own, abs=1)


def test_parts_in_running_order_and_dropout_reaches_the_blocks():
    model = LanguageModel(**SIZES, max_length=9, dropout=0.3)
    assert child_names(model) == ["embedding", "encoder", "head"]
    assert {block.dropout.p for block in model.encoder.layers} == {0.3}
    assert model.head.bias is None and model.causal and model.max_length == 9


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: small(vocab_size=0), "LanguageModel: vocab_size must be"),
        (lambda: small(max_length=0), "LanguageModel: max_length must be"),
        (lambda: small(num_heads=3), "Pick num_heads from [1, 2, 4, 8]"),
        (lambda: small()(some_ids(2, 10)), "10"),
        (lambda: small()(some_ids() + V), "ids must lie between 0 and 10"),
        (lambda: small()(some_ids()[0]), "ids[None]"),
        (lambda: small()(some_ids(), torch.ones(N, N)), "LanguageModel: attn_mask must be a bool"),
        (
            lambda: small()(some_ids(), padding_mask(torch.tensor([2]), 5)),
            "LanguageModel: attn_mask",
        ),
        (lambda: small(causal=False)(some_ids(), cache=KeyValueCache()), "needs causal=True"),
    ],
)
def test_bad_input(call, said):
    assert said in error_of(call)


def test_a_cache_that_is_full_is_refused():
    model, cache = small(), KeyValueCache()
    model(some_ids(B, 8), cache=cache)
    assert "9 tokens, got 10" in error_of(lambda: model(some_ids(B, 2), cache=cache))


# --- the model that draws


def test_drawings_as_ids():
    _, (images, labels) = load_digits()
    ids = drawing_ids(images, labels)
    assert ids.shape == (360, 65) and ids.dtype == torch.int64
    assert torch.equal(ids[:, 0] - INK_LEVELS, labels)
    assert torch.equal(ids[:, 1:].reshape(-1, 1, 8, 8) / 16, images)
    assert (drawing_ids(images)[:, 0] == ANY_DIGIT).all()
    assert torch.equal(drawing_ids(images)[:, 1:], ids[:, 1:])


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: drawing_ids(torch.zeros(2, 8, 8)), "drawing_ids: images must have shape"),
        (lambda: drawing_ids(torch.zeros(2, 1, 8, 8), torch.zeros(3)), "One for each image"),
    ],
)
def test_what_is_no_drawing(call, said):
    assert said in error_of(call)


def test_the_drawing_model_knows_digits():
    """Below the bits of a logistic regression, which the chapter compares it with."""
    model, (_, (images, labels)) = load_shipped("drawing"), load_digits()
    assert not model.training and resource("drawing_model.safetensors").stat().st_size < 2_000_000
    assert model.head.weight is model.embedding.tokens.weight
    ids = drawing_ids(images, labels)[::3]
    with torch.no_grad():
        loss = F.cross_entropy(model(ids[:, :-1]).mT, ids[:, 1:]).item()
    assert loss / 0.6931 < 1.8
    assert SHIPPED["drawing"]["max_length"] == 64, "the word and all pixels but the last are read"
