"""Attention: equal to PyTorch's in values and gradients, on both of its paths."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from helpers import (
    CLOSE,
    attention_grads,
    child_names,
    error_of,
    random,
    randomize,
    torch_attention,
)
from utils.attention import (
    AttentionMaps,
    MultiHeadAttention,
    record_attention,
    scaled_dot_product_attention,
)
from utils.encoder import Encoder
from utils.masking import causal_mask, padding_mask
from utils.validation import check_real

# sizes of b, h, i, j and d, all different, so that a mixed-up axis cannot hide
B, H, NI, NJ, D = 2, 3, 5, 7, 4


def mask_named(name, b=B, h=H, i=NI, j=NJ):
    """Build a mask that may be laid over scores (b, h, i, j)."""
    rows = torch.arange(i)[:, None]
    lengths = torch.tensor([j - 2, *[j] * (b - 1)])
    noise = random(b, h, i, j, seed=9) > 0
    return {
        "none": None,
        "all": torch.ones(1, 1, dtype=torch.bool),
        "causal": torch.arange(j) <= rows,
        "padding": padding_mask(lengths, j),
        "both": (torch.arange(j) <= rows) & padding_mask(lengths, j),
        "per head": noise[:1] | torch.eye(i, j, dtype=torch.bool),
        "random": noise | torch.eye(i, j, dtype=torch.bool),
        "queries only": (rows != 1).expand(i, 1),  # query 1 may attend to nothing
        "empty rows": noise & (rows != 2) & padding_mask(torch.tensor([0, *[j] * (b - 1)]), j),
        "nothing": torch.zeros(i, j, dtype=torch.bool),
    }[name]


MASKS = [
    "none",
    "all",
    "causal",
    "padding",
    "both",
    "per head",
    "random",
    "queries only",
    "empty rows",
    "nothing",
]

# The two implementations round at different places: ours keeps scores and weights in the type of
# the input, the fused kernel adds up in float32. So they may differ by some units in the last place
# of a number of size 1 (eps is 2e-16, 1e-7, 8e-3 and 1e-3), times the numbers that are added.
TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 5e-6,
    torch.bfloat16: 6e-2,
    torch.float16: 8e-3,
}


def values_and_gradients(function, q, k, v):
    """Return the result of a function, and the gradients of q, k and v under random weights."""
    inputs = [tensor.clone().requires_grad_() for tensor in (q, k, v)]
    result = function(*inputs)
    weights = random(*result.shape, seed=8, dtype=result.dtype)
    return result.detach(), *torch.autograd.grad((result * weights).sum(), inputs)


@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize("name", MASKS)
def test_open_form_equals_pytorch_in_values_and_gradients(name, dtype):
    q, k, v = (random(B, H, n, D, seed=seed, dtype=dtype) for seed, n in enumerate((NI, NJ, NJ)))
    mask = mask_named(name)
    ours = values_and_gradients(
        lambda q, k, v: scaled_dot_product_attention(q, k, v, mask)[0], q, k, v
    )
    theirs = values_and_gradients(
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask), q, k, v
    )
    for our, their in zip(ours, theirs, strict=True):
        assert our.dtype == dtype
        tolerance = TOLERANCE[dtype]
        torch.testing.assert_close(our, their, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["none", "causal", "empty rows"])
def test_half_precision_is_as_near_the_truth_as_its_own_rounding(name, dtype):
    q, k, v = (random(B, H, n, D, seed=seed, dtype=dtype) for seed, n in enumerate((NI, NJ, NJ)))
    ours, _ = scaled_dot_product_attention(q, k, v, mask_named(name))
    truth, _ = scaled_dot_product_attention(q.double(), k.double(), v.double(), mask_named(name))
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(ours.double(), truth, rtol=4 * eps, atol=4 * eps)


@pytest.mark.parametrize("leading", [(), (4,), (2, 3), (2, 1, 3, 2)])
def test_any_leading_axes_and_another_width_of_values(leading):
    q, k, v = (random(*leading, n, w, seed=n) for n, w in ((5, 4), (7, 4), (7, 6)))
    mixed, weights = scaled_dot_product_attention(q, k, v)
    assert mixed.shape == (*leading, 5, 6) and weights.shape == (*leading, 5, 7)
    torch.testing.assert_close(mixed, weights @ v)
    torch.testing.assert_close(mixed, F.scaled_dot_product_attention(q, k, v), **CLOSE)


def test_open_form_equals_the_loop():
    q, k, v = random(3, 4), random(5, 4, seed=1), random(5, 2, seed=2)
    mixed, weights = scaled_dot_product_attention(q, k, v)
    for i in range(3):
        scores = torch.stack([(q[i] * k[j]).sum() / 2 for j in range(5)])  # 2 = sqrt(4)
        torch.testing.assert_close(weights[i], scores.exp() / scores.exp().sum())
        torch.testing.assert_close(mixed[i], sum(weights[i, j] * v[j] for j in range(5)))


@pytest.mark.parametrize("name", ["queries only", "empty rows", "nothing"])
def test_a_row_with_nothing_to_attend_to_gives_0_and_no_nan_anywhere(name):
    mask = mask_named(name)
    empty = ~mask.expand(B, H, NI, NJ).any(dim=-1)
    assert empty.any()
    q, k, v = (random(B, H, n, D, seed=n).requires_grad_() for n in (NI, NJ, NJ))
    with torch.autograd.set_detect_anomaly(True):  # raises at the first NaN on the way back
        mixed, weights = scaled_dot_product_attention(q, k, v, mask)
        mixed.sum().backward()
    assert (mixed[empty] == 0).all() and (weights[empty] == 0).all()
    torch.testing.assert_close(weights.sum(-1), (~empty).float())
    assert all(x.grad.isfinite().all() for x in (q, k, v))
    assert (q.grad[empty] == 0).all()


@pytest.mark.parametrize("scale", [1, 1e5])
def test_what_a_mask_forbids_has_weight_exactly_0(scale):
    """Also where the scores that count are far below any number that might stand for -inf."""
    q, k, v = (random(B, H, n, D, seed=n) for n in (NI, NJ, NJ))
    mask = mask_named("random")
    _, weights = scaled_dot_product_attention(q * scale, k, v, mask)
    assert (weights[~mask] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, NI))
    only = torch.eye(NI, NJ, dtype=torch.bool)  # whatever its score, the one key gets it all
    _, weights = scaled_dot_product_attention(q * scale, k, v, only)
    torch.testing.assert_close(weights, only.float().expand_as(weights), rtol=0, atol=0)


def test_half_precision_survives_products_that_it_cannot_hold():
    q = torch.full((1, 1, 2, 64), 60.0, dtype=torch.float16)  # 64 * 60 * 60 is over 65,504
    k, v = q.clone(), random(1, 1, 2, 64, dtype=torch.float16)
    k[..., 1, :] = 59.0
    mixed, weights = scaled_dot_product_attention(q, k, v)
    assert not (q @ k.mT).isfinite().all()
    assert mixed.isfinite().all() and weights.isfinite().all()
    torch.testing.assert_close(mixed, F.scaled_dot_product_attention(q, k, v))


@pytest.mark.parametrize(
    "shapes",
    [
        ((5, 4), (7, 3), (7, 4)),  # other width of keys
        ((5, 4), (7, 4), (6, 4)),  # fewer values than keys
        ((2, 5, 4), (3, 7, 4), (3, 7, 4)),  # other batch
        ((2, 5, 4), (7, 4), (7, 4)),  # other rank
        ((2, 5, 4), (2, 7, 4), (7, 4)),
        ((4,), (4,), (4,)),
        ((), (4,), (4,)),
    ],
)
def test_open_form_refuses_what_does_not_fit(shapes):
    q, k, v = (torch.zeros(shape) for shape in shapes)
    text = error_of(lambda: scaled_dot_product_attention(q, k, v))
    assert text.startswith("scaled_dot_product_attention: ")
    assert f"got q.shape={shapes[0]}" in text and f"k.shape={shapes[1]}" in text


# --- MultiHeadAttention against nn.MultiheadAttention


def layer_and_inputs(cross=False, e=12, h=3, dropout=0.0):
    layer = randomize(MultiHeadAttention(e, h, dropout))
    return layer, random(B, NI, e, seed=1), random(B, NJ, e, seed=2) if cross else None


@pytest.mark.parametrize("cross, training", [(False, True), (True, False)])
@pytest.mark.parametrize("name", ["none", "causal", "padding", "both", "random"])
@pytest.mark.parametrize("recording", [False, True], ids=["fused", "open"])
def test_layer_equals_pytorch_in_values_and_gradients(recording, name, cross, training):
    layer, x, context = layer_and_inputs(cross)
    layer.train(training)
    theirs = torch_attention(layer)
    j = NJ if cross else NI
    mask = mask_named(name, j=j)

    # PyTorch wants the opposite: True = may not; padding in an argument of its own
    options = {}
    if name in ("causal", "both"):
        options["attn_mask"] = ~mask_named("causal", j=j)
    if name in ("padding", "both"):
        options["key_padding_mask"] = ~mask_named("padding", j=j)[:, 0, 0]
    if name == "random":
        options["attn_mask"] = ~mask.flatten(0, 1)  # (b * h, i, j)

    results = []
    for module in (layer, theirs):
        inputs = [t.clone().requires_grad_() for t in (x, context) if t is not None]
        keys = inputs[-1]
        if module is theirs:
            result, their_weights = theirs(
                inputs[0], keys, keys, average_attn_weights=False, **options
            )
        elif recording:
            with record_attention(layer) as maps:
                result = layer(inputs[0], context=keys if cross else None, attn_mask=mask)
        else:
            result = layer(inputs[0], context=keys if cross else None, attn_mask=mask)
        (result * random(*result.shape, seed=3)).sum().backward()
        results.append((result, [t.grad for t in inputs]))

    (ours, our_grads), (expected, their_grads) = results
    assert ours.shape == (B, NI, 12)
    torch.testing.assert_close(ours, expected, **CLOSE)
    torch.testing.assert_close(our_grads, their_grads, **CLOSE)
    theirs_by_name = {key: p.grad for key, p in theirs.named_parameters()}
    torch.testing.assert_close(attention_grads(layer), theirs_by_name, rtol=1e-5, atol=5e-5)
    if recording:
        torch.testing.assert_close(maps[0], their_weights, **CLOSE)
        _, averaged = theirs(x, *2 * [x if context is None else context], **options)
        torch.testing.assert_close(maps[0].mean(dim=1), averaged, **CLOSE)


def test_the_running_example():
    layer = randomize(MultiHeadAttention(768, 8)).eval()
    assert sum(p.numel() for p in layer.parameters()) == 2_362_368
    x = random(6, 37, 768)
    with torch.no_grad(), record_attention(layer) as maps:
        torch.testing.assert_close(layer(x), torch_attention(layer)(x, x, x)[0], **CLOSE)
    assert maps[0].shape == (6, 8, 37, 37)


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("cross", [False, True], ids=["self", "cross"])
def test_both_paths_agree_in_values_and_gradients(cross, name):
    layer, x, context = layer_and_inputs(cross)
    mask = mask_named(name, j=NJ if cross else NI)
    results = []
    for recording in (False, True):
        layer.zero_grad()
        inputs = [t.clone().requires_grad_() for t in (x, context) if t is not None]
        layer.recorded = AttentionMaps() if recording else None
        result = layer(inputs[0], inputs[1] if cross else None, mask)
        (result * random(*result.shape, seed=3)).sum().backward()
        grads = {key: p.grad.clone() for key, p in layer.named_parameters()}
        results.append((result, [t.grad for t in inputs], grads))
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=2e-5)


# --- which path runs


@pytest.fixture
def kernel_calls(monkeypatch):
    """Count the calls of PyTorch's fused kernel, by their dropout_p."""
    calls = []
    kernel = F.scaled_dot_product_attention

    def spy(*args, **options):
        calls.append(options.get("dropout_p", 0.0))
        return kernel(*args, **options)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    return calls


@pytest.mark.parametrize("name", ["none", "causal", "padding", "random"])
def test_the_fused_kernel_runs_unless_weights_are_recorded(name, kernel_calls):
    layer, x, _ = layer_and_inputs()
    mask = mask_named(name, j=NI)
    layer(x, attn_mask=mask)
    assert kernel_calls == [0.0]
    with record_attention(layer):
        layer(x, attn_mask=mask)
    assert kernel_calls == [0.0]
    layer(x, attn_mask=mask)
    assert kernel_calls == [0.0, 0.0]


def test_the_fused_path_never_holds_the_weights():
    layer = MultiHeadAttention(8, 2).eval()
    x, shapes = random(1, 257, 8), []

    class Shapes(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            tensors = result if isinstance(result, tuple) else (result,)
            shapes.extend(tuple(t.shape) for t in tensors if isinstance(t, torch.Tensor))
            return result

    with torch.no_grad(), Shapes():
        layer(x)
    assert shapes and not any(shape[-2:] == (257, 257) for shape in shapes)
    with torch.no_grad(), Shapes(), record_attention(layer):
        layer(x)
    assert any(shape[-2:] == (257, 257) for shape in shapes)


# --- dropout


def test_dropout_reaches_the_fused_kernel_in_training_only(kernel_calls):
    layer, x, _ = layer_and_inputs(dropout=0.3)
    layer.train()(x)
    layer.eval()(x)
    assert kernel_calls == [0.3, 0.0]


@pytest.mark.parametrize("recording", [False, True], ids=["fused", "open"])
def test_dropout_is_off_in_eval(recording):
    layer, x, _ = layer_and_inputs(dropout=0.5)
    plain = MultiHeadAttention(12, 3)
    plain.load_state_dict(layer.state_dict())
    layer.eval()
    layer.recorded = AttentionMaps() if recording else None
    torch.testing.assert_close(layer(x), plain(x), **CLOSE)
    torch.testing.assert_close(layer(x), layer(x), rtol=0, atol=0)


@pytest.mark.parametrize("recording", [False, True], ids=["fused", "open"])
def test_dropout_in_training_drops_the_stated_share_and_keeps_the_mean(recording):
    """With values and outputs that pass through, each head's output is a sum of kept weights."""
    share, b, n, e = 0.25, 40, 50, 8
    layer = MultiHeadAttention(e, e, dropout=share).train()
    for part in (layer.q_proj, layer.k_proj):
        nn.init.zeros_(part.weight), nn.init.zeros_(part.bias)  # all weights are 1 / n
    nn.init.zeros_(layer.v_proj.weight), nn.init.ones_(layer.v_proj.bias)
    nn.init.eye_(layer.out_proj.weight), nn.init.zeros_(layer.out_proj.bias)
    layer.recorded = AttentionMaps() if recording else None
    torch.manual_seed(0)
    sums = layer(torch.zeros(b, n, e)).detach()  # each is (number kept) / n / (1 - share)
    kept = sums * n * (1 - share)
    torch.testing.assert_close(kept, kept.round(), rtol=0, atol=1e-3)
    # 800,000 weights: the mean lies within 0.0006 of its expectation, the spread within 1 %
    assert sums.mean().item() == pytest.approx(1, abs=0.004)
    assert kept.var().item() == pytest.approx(n * share * (1 - share), rel=0.1)
    if recording:
        torch.testing.assert_close(layer.recorded[0], torch.full((b, e, n, n), 1 / n))


def test_dropout_0_uses_no_random_numbers():
    layer, x, _ = layer_and_inputs()
    state = torch.get_rng_state()
    layer.train()(x)
    with record_attention(layer):
        layer(x)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("dropout", [-0.1, 1, 1.5, float("nan")])
def test_dropout_is_a_fraction(dropout):
    text = error_of(lambda: MultiHeadAttention(8, 2, dropout))
    assert f"got dropout={dropout}" in text and "dropout=0.1" in text
    MultiHeadAttention(8, 2, dropout=0.1)


@pytest.mark.parametrize(
    ("interval", "inside", "outside"),
    [
        ("[0, 1)", (0, 0.0, 0.5), (1, -0.1, 2)),
        ("(0, 1]", (1, 0.5), (0, 0.0, 1.1)),
        ("(0, inf)", (1e-9, 1e300, 5), (0, -1, float("inf"))),
    ],
)
def test_numbers_in_an_interval(interval, inside, outside):
    for value in inside:
        check_real("here", interval, "Do this.", rate=value)
    for value in (*outside, float("nan"), True, None, "0.5", torch.tensor(0.5)):
        text = error_of(lambda value=value: check_real("here", interval, "Do this.", rate=value))
        assert text == (f"here: rate must be a number in {interval}, got rate={value!r}. Do this.")


# --- recording


def test_recording_collects_every_layer_in_running_order():
    encoder = randomize(Encoder(3, 12, 3, 20)).eval()
    x = random(B, NI, 12)
    with record_attention(encoder) as maps:
        assert maps == []
        recorded = encoder(x)
    assert [tuple(m.shape) for m in maps] == 3 * [(B, 3, NI, NI)]
    torch.testing.assert_close(recorded, encoder(x), **CLOSE)
    assert len(maps) == 3, "nothing more once the block is left"
    for layer, weights in zip(encoder.layers, maps, strict=True):
        with record_attention(layer) as one:
            x = layer(x)
        torch.testing.assert_close(one[0], weights, **CLOSE)
        assert not weights.requires_grad
        torch.testing.assert_close(weights.sum(-1), torch.ones(B, 3, NI))


def test_recording_collects_several_calls_and_lengths():
    layer, x, context = layer_and_inputs(cross=True)
    with record_attention(layer) as maps:
        layer(x)
        layer(x, context)
        layer(x[:1, :2])
    assert [m.shape for m in maps] == [(B, 3, NI, NI), (B, 3, NI, NJ), (1, 3, 2, 2)]


def test_recording_nests_and_puts_everything_back():
    encoder = Encoder(2, 8, 2, 8)
    x = random(1, 3, 8)
    with record_attention(encoder) as outer:
        encoder(x)
        with record_attention(encoder.layers[0]) as inner:
            encoder(x)
        encoder(x)
    assert (len(outer), len(inner)) == (5, 1)
    assert all(layer.attn.recorded is None for layer in encoder.layers)


def test_recording_ends_after_an_exception():
    layer, x, _ = layer_and_inputs()
    with pytest.raises(RuntimeError, match="stop"), record_attention(layer) as maps:
        layer(x)
        raise RuntimeError("stop")
    assert layer.recorded is None and len(maps) == 1
    with pytest.raises(ValueError), record_attention(layer):
        layer(x[0])
    assert layer.recorded is None


def test_recording_needs_an_attention_layer():
    for model, name in [(nn.Linear(2, 2), "Linear"), (nn.MultiheadAttention(4, 2), "Multihead")]:
        text = error_of(lambda model=model: record_attention(model).__enter__())
        assert f"got model={name}" in text and "need_weights=True" in text


def test_recording_leaves_weights_mode_and_gradients_alone():
    layer, x, _ = layer_and_inputs()
    before = {key: value.clone() for key, value in layer.state_dict().items()}
    with record_attention(layer):
        layer(x).sum().backward()
        assert list(layer.state_dict()) == list(before)
    assert layer.training and layer.q_proj.weight.grad is not None
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())


def test_a_recorded_map_is_not_changed_by_what_follows():
    layer, x, _ = layer_and_inputs(dropout=0.5)
    with record_attention(layer.train()) as maps:
        layer(x)
        first = maps[0].clone()
        layer(x)
    assert torch.equal(maps[0], first) and torch.equal(maps[1], first), "taken before dropout"


# --- sizes, layouts, types


@pytest.mark.parametrize("recording", [False, True], ids=["fused", "open"])
@pytest.mark.parametrize(
    "b, i, j, e, h", [(1, 1, 1, 1, 1), (0, 3, 3, 4, 2), (2, 1, 6, 6, 1), (3, 5, 1, 6, 6)]
)
def test_odd_sizes(b, i, j, e, h, recording):
    layer = randomize(MultiHeadAttention(e, h))
    x, context = random(b, i, e), random(b, j, e, seed=1)
    layer.recorded = AttentionMaps() if recording else None
    result = layer(x, context)
    assert result.shape == (b, i, e)
    result.sum().backward()
    expected, _ = torch_attention(layer)(x, context, context) if b else (x, None)
    torch.testing.assert_close(result, expected, **CLOSE)
    if recording:
        assert layer.recorded[0].shape == (b, h, i, j)


@pytest.mark.parametrize("recording", [False, True], ids=["fused", "open"])
def test_any_memory_layout_and_nothing_in_place(recording):
    layer, x, context = layer_and_inputs(cross=True)
    layer.recorded = AttentionMaps() if recording else None
    strided = x.transpose(0, 1).contiguous().transpose(0, 1)
    mask = mask_named("causal").T.contiguous().T
    assert not strided.is_contiguous() and not mask.is_contiguous()
    kept = strided.clone(), context.clone(), mask.clone()
    torch.testing.assert_close(
        layer(strided, context, mask), layer(x, context, mask_named("causal")), **CLOSE
    )
    for now, before in zip((strided, context, mask), kept, strict=True):
        assert torch.equal(now, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16], ids=str)
def test_other_types(dtype):
    layer, x, _ = layer_and_inputs()
    expected = layer(x, attn_mask=causal_mask(NI))
    layer.to(dtype)
    for recorded in (None, AttentionMaps()):
        layer.recorded = recorded
        result = layer(x.to(dtype), attn_mask=causal_mask(NI))
        assert result.dtype == dtype
        torch.testing.assert_close(result.float(), expected, rtol=0.1, atol=0.1)


def test_autocast_runs_both_paths():
    layer, x, _ = layer_and_inputs()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        fused = layer(x)
        with record_attention(layer):
            opened = layer(x)
    assert fused.dtype == opened.dtype == torch.bfloat16
    torch.testing.assert_close(fused, opened, rtol=0.1, atol=0.1)


def test_submodules_are_registered_in_the_order_they_run():
    assert child_names(MultiHeadAttention(4, 2)) == ["q_proj", "k_proj", "v_proj", "out_proj"]


def test_deepcopy_shares_nothing():
    layer, x, _ = layer_and_inputs()
    twin = copy.deepcopy(layer)
    torch.testing.assert_close(twin(x), layer(x))
    with record_attention(twin) as maps:
        layer(x)
    assert maps == [] and layer.recorded is None


# --- errors


def test_heads_that_do_not_divide_get_those_that_do():
    text = error_of(lambda: MultiHeadAttention(30, 4))
    assert text == (
        "MultiHeadAttention: embed_dim must be a multiple of num_heads, got embed_dim=30 and "
        "num_heads=4. Pick num_heads from [1, 2, 3, 5, 6, 10, 15, 30], or change embed_dim."
    )
    for num_heads in [1, 2, 3, 5, 6, 10, 15, 30]:
        assert MultiHeadAttention(30, num_heads)(random(1, 2, 30)).shape == (1, 2, 30)


@pytest.mark.parametrize("arguments", [(0, 1), (8, 0), (-8, 2), (8.0, 2), (8, "2"), (8, True)])
def test_sizes_are_checked_when_building(arguments):
    text = error_of(lambda: MultiHeadAttention(*arguments))
    assert "must be an integer of at least 1" in text


@pytest.mark.parametrize("shape", [(NI, 12), (B, NI, 11), (1, B, NI, 12), (12,)])
def test_tokens_of_another_shape_are_refused(shape):
    layer, x, _ = layer_and_inputs()
    text = error_of(lambda: layer(torch.zeros(shape)))
    assert f"x must have shape (b, i, e=12), got x.shape={shape}" in text
    text = error_of(lambda: layer(x, torch.zeros(shape)))
    assert f"context must have shape (b=2, j, e=12), got context.shape={shape}" in text
    error_of(lambda: layer(x, torch.zeros(B + 1, NJ, 12)))


def test_one_sequence_gets_its_fix():
    layer, x, _ = layer_and_inputs()
    tokens = x[0]
    assert "tokens[None]" in error_of(lambda: layer(tokens))
    torch.testing.assert_close(layer(tokens[None]), layer(x)[:1], **CLOSE)


def test_the_second_derivative_is_in_the_recorded_run():
    layer, x, _ = layer_and_inputs()
    x = x.requires_grad_()

    def curved():
        (slope,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), x)[0]

    with pytest.raises(RuntimeError, match="derivative"):
        curved()
    with record_attention(layer, gradients=True):
        assert curved().isfinite().all() and curved().abs().max() > 0
