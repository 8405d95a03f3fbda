"""What holds for every size: hypothesis tries to find one for which it does not."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import random, randomize
from utils.attention import (
    MultiHeadAttention,
    record_attention,
    scaled_dot_product_attention,
)
from utils.embedding import PatchEmbedding, patchify, unpatchify
from utils.encoder import Encoder
from utils.masking import causal_mask, padding_mask
from utils.vision_transformer import VisionTransformer

# derandomize: each run of CI tries the same examples; no deadline: machines may be busy
tried = settings(max_examples=40, deadline=None, derandomize=True, database=None)
SAME = {"rtol": 1e-4, "atol": 1e-4}

small = st.integers(1, 4)
tokens = st.integers(1, 7)
seeds = st.integers(0, 1000)
norm_orders = st.booleans()


@st.composite
def images_and_patches(draw):
    """Draw images (b, c, gh * ph, gw * pw) and (ph, pw)."""
    b, c, gh, gw, ph, pw = draw(st.tuples(st.integers(0, 3), *5 * [small]))
    return random(b, c, gh * ph, gw * pw, seed=draw(seeds)), (ph, pw)


@st.composite
def lengths_and_n(draw):
    n = draw(tokens)
    lengths = draw(st.lists(st.integers(0, n), min_size=0, max_size=4))
    return torch.tensor(lengths, dtype=torch.long), n


@st.composite
def queries_keys_values(draw):
    """Draw q (b, h, i, d), k and v (b, h, j, ...), and None or a random mask."""
    b, h, i, j, d, dv = draw(st.tuples(small, small, tokens, tokens, small, small))
    seed = draw(seeds)
    scale = draw(st.sampled_from([0.1, 1.0, 10.0]))
    q = random(b, h, i, d, seed=seed) * scale
    k, v = random(b, h, j, d, seed=seed + 1), random(b, h, j, dv, seed=seed + 2)
    kind = draw(st.sampled_from(["none", "rows", "heads", "all"]))
    shape = {"none": None, "rows": (i, j), "heads": (1, h, i, j), "all": (b, h, i, j)}[kind]
    mask = None if shape is None else random(*shape, seed=seed + 3) > draw(st.floats(-2, 2))
    return q, k, v, mask


@st.composite
def encoders(draw):
    """Draw an encoder and tokens for it."""
    h, d, layers = draw(st.tuples(small, small, st.integers(1, 2)))
    seed = draw(seeds)
    encoder = Encoder(layers, h * d, h, draw(st.integers(1, 9)), norm_first=draw(norm_orders))
    x = random(draw(small), draw(tokens), h * d, seed=seed)
    return randomize(encoder, seed).eval(), x


# --- patches


@tried
@given(images_and_patches())
def test_unpatchify_undoes_patchify(drawn):
    images, size = drawn
    patches = patchify(images, size)
    assert torch.equal(unpatchify(patches, size, tuple(images.shape[2:])), images)
    assert torch.equal(patchify(unpatchify(patches, size, tuple(images.shape[2:])), size), patches)


@tried
@given(images_and_patches())
def test_patchify_has_the_order_of_unfold(drawn):
    images, (ph, pw) = drawn
    if len(images):  # F.unfold takes no empty batch
        unfolded = F.unfold(images, (ph, pw), stride=(ph, pw)).transpose(1, 2)
        assert torch.equal(patchify(images, (ph, pw)), unfolded)


@tried
@given(images_and_patches(), st.data())
def test_each_patch_is_a_crop(drawn, data):
    images, (ph, pw) = drawn
    across = images.shape[3] // pw
    patches = patchify(images, (ph, pw))
    n = data.draw(st.integers(0, patches.shape[1] - 1))
    top, left = n // across * ph, n % across * pw
    crop = images[:, :, top : top + ph, left : left + pw]
    assert torch.equal(patches[:, n], crop.flatten(1))


@tried
@given(images_and_patches(), st.integers(1, 5))
def test_embedding_puts_the_class_token_first_and_projects_each_patch(drawn, e):
    images, size = drawn
    embedding = randomize(PatchEmbedding(tuple(images.shape[2:]), size, images.shape[1], e))
    bare = embedding(images) - embedding.positions
    torch.testing.assert_close(bare[:, :1], embedding.class_token.expand(len(images), 1, e))
    torch.testing.assert_close(bare[:, 1:], embedding.proj(patchify(images, size)), **SAME)


# --- masks


@tried
@given(tokens)
def test_causal_mask_lets_row_i_see_i_plus_1_keys(n):
    mask = causal_mask(n)
    assert mask.sum(dim=1).tolist() == list(range(1, n + 1))
    assert all(mask[i, j] == (j <= i) for i in range(n) for j in range(n))


@tried
@given(lengths_and_n())
def test_padding_mask_lets_every_row_see_the_first_keys(drawn):
    lengths, n = drawn
    mask = padding_mask(lengths, n)
    assert mask.shape == (len(lengths), 1, 1, n)
    assert torch.equal(mask.sum(dim=-1)[:, 0, 0], lengths)
    assert not (mask[..., 1:] & ~mask[..., :-1]).any(), "no hole"


@tried
@given(lengths_and_n())
def test_both_masks_together_let_row_i_see_the_smaller_number(drawn):
    lengths, n = drawn
    both = causal_mask(n) & padding_mask(lengths, n)
    rows = torch.arange(1, n + 1)
    assert torch.equal(both[:, 0].sum(dim=-1), torch.minimum(rows[None], lengths[:, None]))


# --- attention


@tried
@given(queries_keys_values())
def test_rows_of_weights_sum_to_1_or_are_0(drawn):
    q, k, v, mask = drawn
    mixed, weights = scaled_dot_product_attention(q, k, v, mask)
    some = torch.ones_like(weights) if mask is None else mask.expand_as(weights).float()
    torch.testing.assert_close(weights.sum(dim=-1), some.amax(dim=-1))
    assert (weights >= 0).all() and (weights[some == 0] == 0).all()
    assert mixed.isfinite().all()


@tried
@given(queries_keys_values())
def test_equals_the_fused_kernel(drawn):
    q, k, v, mask = drawn
    mixed, _ = scaled_dot_product_attention(q, k, v, mask)
    torch.testing.assert_close(mixed, F.scaled_dot_product_attention(q, k, v, mask), **SAME)


@tried
@given(queries_keys_values())
def test_what_is_mixed_lies_between_the_values(drawn):
    q, k, v, _ = drawn
    mixed, _ = scaled_dot_product_attention(q, k, v)
    low, high = v.amin(dim=-2, keepdim=True), v.amax(dim=-2, keepdim=True)
    assert (mixed >= low - 1e-5).all() and (mixed <= high + 1e-5).all()


@tried
@given(queries_keys_values(), seeds)
def test_the_order_of_the_keys_does_not_matter(drawn, seed):
    q, k, v, mask = drawn
    order = torch.randperm(k.shape[-2], generator=torch.Generator().manual_seed(seed))
    mixed, weights = scaled_dot_product_attention(q, k, v, mask)
    moved = None if mask is None else mask[..., order]
    again, moved_weights = scaled_dot_product_attention(
        q, k[..., order, :], v[..., order, :], moved
    )
    torch.testing.assert_close(again, mixed, **SAME)
    torch.testing.assert_close(moved_weights, weights[..., order], **SAME)


@tried
@given(queries_keys_values(), st.floats(-3, 3))
def test_adding_one_vector_to_all_keys_changes_nothing(drawn, amount):
    q, k, v, mask = drawn
    mixed, _ = scaled_dot_product_attention(q, k, v, mask)
    again, _ = scaled_dot_product_attention(q, k + amount, v, mask)
    torch.testing.assert_close(again, mixed, rtol=1e-3, atol=1e-3)


@tried
@given(small, small, tokens, tokens, seeds, st.booleans())
def test_both_paths_of_the_layer_agree(h, d, i, j, seed, masked):
    layer = randomize(MultiHeadAttention(h * d, h), seed)
    x, context = random(2, i, h * d, seed=seed), random(2, j, h * d, seed=seed + 1)
    mask = random(2, h, i, j, seed=seed + 2) > 0 if masked else None
    with record_attention(layer) as maps:
        opened = layer(x, context, mask)
    torch.testing.assert_close(opened, layer(x, context, mask), **SAME)
    assert maps[0].shape == (2, h, i, j)


# --- the encoder


@tried
@given(encoders(), seeds)
def test_permuting_tokens_permutes_outputs(drawn, seed):
    encoder, x = drawn
    order = torch.randperm(x.shape[1], generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(encoder(x[:, order]), encoder(x)[:, order], **SAME)


@tried
@given(encoders(), st.data())
def test_the_future_does_not_leak(drawn, data):
    encoder, x = drawn
    n = x.shape[1]
    now = data.draw(st.integers(0, n - 1))
    changed = x.clone()
    changed[:, now + 1 :] = 100 * random(*changed[:, now + 1 :].shape, seed=data.draw(seeds))
    before, after = encoder(x, causal_mask(n)), encoder(changed, causal_mask(n))
    torch.testing.assert_close(after[:, : now + 1], before[:, : now + 1], **SAME)


@tried
@given(encoders(), st.data())
def test_the_past_does_matter(drawn, data):
    encoder, x = drawn
    _, n, e = x.shape
    if n < 2 or e < 2:  # a post-norm of one number is a constant
        return
    leading = x[:, -1:].clone().requires_grad_()
    past = x[:, :-1].clone().requires_grad_()
    out = encoder(torch.cat([past, leading], dim=1), causal_mask(n))
    (out * random(*out.shape)).sum().backward()
    assert past.grad.isfinite().all() and past.grad.abs().sum() > 0
    grad = torch.autograd.grad(
        encoder(torch.cat([past, leading], dim=1), causal_mask(n))[:, :-1].sum(), leading
    )
    assert (grad[0] == 0).all(), "exactly nothing flows back from the future"


@tried
@given(encoders(), st.data())
def test_the_content_of_the_padding_does_not_matter(drawn, data):
    encoder, x = drawn
    b, n, _ = x.shape
    lengths = torch.tensor(data.draw(st.lists(st.integers(0, n), min_size=b, max_size=b)))
    mask = padding_mask(lengths, n)
    padded = x.clone()
    for row, length in enumerate(lengths):
        padded[row, length:] = 100 * random(*padded[row, length:].shape, seed=row)
    before, after = encoder(x, mask), encoder(padded, mask)
    for row, length in enumerate(lengths):
        torch.testing.assert_close(after[row, :length], before[row, :length], **SAME)
        if length:  # and it equals the sequence without its padding
            alone = encoder(x[row : row + 1, :length])
            torch.testing.assert_close(before[row : row + 1, :length], alone, **SAME)


@tried
@given(encoders(), st.data())
def test_sequences_of_a_batch_do_not_mix(drawn, data):
    encoder, x = drawn
    row = data.draw(st.integers(0, len(x) - 1))
    changed = x.clone()
    others = torch.arange(len(x)) != row
    changed[others] = 100 * random(*changed[others].shape, seed=data.draw(seeds))
    torch.testing.assert_close(encoder(changed)[row], encoder(x)[row], **SAME)
    torch.testing.assert_close(encoder(x[row : row + 1])[0], encoder(x)[row], **SAME)


@tried
@given(images_and_patches(), small, st.integers(1, 4))
def test_chunks_of_a_batch_equal_the_batch(drawn, h, part):
    images, size = drawn
    _, c, height, width = images.shape
    model = randomize(
        VisionTransformer(
            image_size=(height, width),
            patch_size=size,
            in_channels=c,
            num_classes=3,
            embed_dim=2 * h,
            num_heads=h,
            mlp_dim=5,
            num_layers=1,
        )
    ).eval()
    scores = model(images)
    assert scores.shape == (len(images), 3)
    chunks = torch.cat([model(chunk) for chunk in images.split(part)])
    torch.testing.assert_close(chunks, scores, **SAME)
