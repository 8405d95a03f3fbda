"""Masks: True = may attend; what they hold, how they combine, what is refused."""

import numpy as np
import pytest
import torch
from torch import nn

from helpers import error_of, random, randomize
from utils.attention import MultiHeadAttention, scaled_dot_product_attention
from utils.masking import causal_mask, padding_mask
from utils.validation import check_mask


def test_causal_mask_reads_row_query_column_key():
    assert causal_mask(3).tolist() == [
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]
    assert causal_mask(1).tolist() == [[True]]
    assert causal_mask(4).dtype == torch.bool
    assert causal_mask(4, device="meta").device.type == "meta"
    for start in range(5):
        assert torch.equal(causal_mask(4, start=start), causal_mask(4)[start:])
    for start in (-1, 5, 1.0, True):
        assert "start must be" in error_of(lambda start=start: causal_mask(4, start=start))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_padding_mask(dtype):
    mask = padding_mask(torch.tensor([0, 2, 4], dtype=dtype), 4)
    assert mask.shape == (3, 1, 1, 4) and mask.dtype == torch.bool
    assert mask[:, 0, 0].int().tolist() == [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 1, 1]]


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8])
def test_padding_mask_longer_than_its_type_can_count(dtype):
    assert padding_mask(torch.tensor([3, 100], dtype=dtype), 300).sum() == 103


def test_padding_mask_is_made_where_the_lengths_are():
    class Elsewhere(torch.Tensor):
        """Lengths on a device without numbers, which still tells them, as a GPU does."""

        def tolist(self):
            return [2, 4]

    lengths = torch.empty(2, dtype=torch.long, device="meta").as_subclass(Elsewhere)
    mask = padding_mask(lengths, 4)
    assert mask.device.type == "meta" and mask.shape == (2, 1, 1, 4)


def test_padding_mask_of_no_sequences():
    assert padding_mask(torch.zeros(0, dtype=torch.long), 5).shape == (0, 1, 1, 5)


def test_masks_combine_with_and():
    both = causal_mask(4) & padding_mask(torch.tensor([2, 4]), 4)
    assert both.shape == (2, 1, 4, 4)
    assert both[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0]]
    assert torch.equal(both[1, 0], causal_mask(4))


@pytest.mark.parametrize("n", [0, -1, 2.0, "3", None])
def test_a_mask_needs_a_positive_number_of_tokens(n):
    assert error_of(lambda: causal_mask(n)).startswith("causal_mask: n must be")
    assert error_of(lambda: padding_mask(torch.tensor([1]), n)).startswith("padding_mask: n must")


def test_lengths_out_of_range_get_a_fix_that_works():
    lengths = torch.tensor([2, 6])
    text = error_of(lambda: padding_mask(lengths, 4))
    assert "lengths must lie between 0 and n, got lengths=[2, 6] and n=4" in text
    assert "lengths.clamp(0, 4)" in text and "n=6" in text
    assert padding_mask(lengths.clamp(0, 4), 4).shape == (2, 1, 1, 4)
    assert padding_mask(lengths, n=6).shape == (2, 1, 1, 6)


def test_negative_lengths_get_a_fix_that_works():
    lengths = torch.tensor([-1, 3])
    text = error_of(lambda: padding_mask(lengths, 4))
    assert "lengths.clamp(0, 4)" in text and "pass n=" not in text
    assert padding_mask(lengths.clamp(0, 4), 4).sum() == 3


def test_lengths_of_another_type_get_a_fix_that_works():
    text = error_of(lambda: padding_mask([4, 6], 6))
    assert "got list" in text and "torch.tensor([4, 6])" in text
    assert padding_mask(torch.tensor([4, 6]), 6).sum() == 10

    lengths = torch.tensor([4.0, 6.0])
    text = error_of(lambda: padding_mask(lengths, 6))
    assert "got torch.float32" in text and "lengths.long()" in text
    assert padding_mask(lengths.long(), 6).sum() == 10

    mask = torch.tensor([[True, True, False], [True, False, False]])
    text = error_of(lambda: padding_mask(mask, 3))
    assert "got torch.bool" in text and "mask.sum(dim=1)" in text
    assert torch.equal(padding_mask(mask.sum(dim=1), 3)[:, 0, 0], mask)

    text = error_of(lambda: padding_mask(torch.tensor([[4, 6]]), 6))
    assert "lengths.shape=(1, 2)" in text


# every door that a mask may come through, each for scores of shape (2, 3, 4, 5)
def through_attention(mask):
    layer = randomize(MultiHeadAttention(6, 3))
    return layer(random(2, 4, 6), context=random(2, 5, 6, seed=1), attn_mask=mask)


def through_open_form(mask):
    q, k = random(2, 3, 4, 2), random(2, 3, 5, 2, seed=1)
    return scaled_dot_product_attention(q, k, k, mask)[0]


doors = pytest.mark.parametrize("door", [through_attention, through_open_form])


@doors
@pytest.mark.parametrize(
    "shape",
    [(4, 5), (1, 5), (4, 1), (1, 1), (3, 4, 5), (2, 1, 1, 5), (2, 3, 4, 5), (1, 3, 1, 5)],
)
def test_a_mask_that_broadcasts_is_taken(door, shape):
    check_mask("here", torch.ones(shape, dtype=torch.bool), (2, 3, 4, 5))
    torch.testing.assert_close(door(torch.ones(shape, dtype=torch.bool)), door(None))


@doors
@pytest.mark.parametrize(
    "shape, mend, said",
    [
        ((5,), lambda attn_mask: attn_mask[None], "attn_mask[None]"),
        ((2, 5), lambda attn_mask: attn_mask[:, None, None, :], "attn_mask[:, None, None, :]"),
        ((2, 4, 5), lambda attn_mask: attn_mask[:, None], "attn_mask[:, None]"),
        ((), None, "queries i and keys j"),
        ((5, 4), None, "queries i and keys j"),
        ((4, 6), None, "queries i and keys j"),
        ((2, 2, 4, 5), None, "queries i and keys j"),
        ((1, 2, 3, 4, 5), None, "queries i and keys j"),
    ],
)
def test_a_mask_of_another_shape_gets_a_fix_that_works(door, shape, mend, said):
    mask = torch.ones(shape, dtype=torch.bool)
    text = error_of(lambda: door(mask))
    assert f"must broadcast to the scores (2, 3, 4, 5), got attn_mask.shape={shape}" in text
    assert said in text
    if mend:
        door(mend(mask))


@doors
@pytest.mark.parametrize(
    "make, said, mend",
    [
        (lambda m: m.int(), "got torch.int32", lambda attn_mask: attn_mask.bool()),
        (lambda m: m.to(torch.uint8), "got torch.uint8", lambda attn_mask: attn_mask.bool()),
        (lambda m: m.float(), "attn_mask.bool()", lambda attn_mask: attn_mask.bool()),
        (
            lambda m: torch.zeros(m.shape).masked_fill(~m, -torch.inf),
            "attn_mask == 0",
            lambda attn_mask: attn_mask == 0,
        ),
        (
            lambda m: m.tolist(),
            "torch.tensor(attn_mask).bool()",
            lambda attn_mask: torch.tensor(attn_mask).bool(),
        ),
        (
            lambda m: m.numpy().astype(np.int64),
            "torch.tensor(attn_mask).bool()",
            lambda attn_mask: torch.tensor(attn_mask).bool(),
        ),
    ],
)
def test_a_mask_of_another_type_gets_a_fix_that_works(door, make, said, mend):
    right = torch.ones(4, 5, dtype=torch.bool).tril()
    wrong = make(right)
    text = error_of(lambda: door(wrong))
    assert "attn_mask must be a boolean tensor, True = may attend, got " in text and said in text
    assert torch.equal(mend(wrong), right)
    door(mend(wrong))


# --- what the docstrings say of PyTorch


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("gradients", [True, False])
def test_is_causal_replaces_the_mask_of_pytorchs_layer(training, gradients):
    layer, x = nn.MultiheadAttention(8, 2, batch_first=True).train(training), random(1, 4, 8)
    hidden = ~(causal_mask(4) & padding_mask(torch.tensor([2]), 4)[0, 0])
    with torch.set_grad_enabled(gradients):
        alone, hinted = (
            layer(x, x, x, attn_mask=hidden, need_weights=False, is_causal=is_causal)[0]
            for is_causal in (False, True)
        )
        plain = layer(x, x, x, attn_mask=~causal_mask(4), need_weights=False)[0]
    replaced = training or gradients
    torch.testing.assert_close(hinted, plain if replaced else alone)
    assert not torch.allclose(alone, plain)


def test_the_least_number_opens_a_fully_masked_row_and_infinity_does_not():
    q, v, mask = random(2, 4), random(2, 4, seed=1), torch.tensor([[True, True], [False, False]])
    scores = (q @ q.T / 2).masked_fill(~mask, torch.finfo(torch.float32).min)
    torch.testing.assert_close((scores.softmax(dim=-1) @ v)[1], v.mean(dim=0))
    output, weights = scaled_dot_product_attention(q, q, v, mask)
    assert (output[1] == 0).all() and (weights[1] == 0).all()
