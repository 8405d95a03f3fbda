"""What holds for every size: hypothesis tries to find one for which it does not."""

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers import random, randomize
from utils.attention import scaled_dot_product_attention
from utils.encoder import Encoder
from utils.masking import causal_mask, padding_mask
from utils.vision_transformer import VisionTransformer

# derandomize: each run of CI tries the same examples; no deadline: machines may be busy
tried = settings(max_examples=40, deadline=None, derandomize=True, database=None)
SAME = {"rtol": 1e-4, "atol": 1e-4}

small = st.integers(1, 4)
tokens = st.integers(1, 7)
seeds = st.integers(0, 1000)


@st.composite
def images_and_patches(draw):
    """Draw images (b, c, gh * ph, gw * pw) and (ph, pw)."""
    b, c, gh, gw, ph, pw = draw(st.tuples(st.integers(0, 3), *5 * [small]))
    return random(b, c, gh * ph, gw * pw, seed=draw(seeds)), (ph, pw)


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
    encoder = Encoder(layers, h * d, h, draw(st.integers(1, 9)), norm_first=draw(st.booleans()))
    x = random(draw(small), draw(tokens), h * d, seed=seed)
    return randomize(encoder, seed).eval(), x


@tried
@given(queries_keys_values())
def test_equals_the_fused_kernel(drawn):
    q, k, v, mask = drawn
    mixed, _ = scaled_dot_product_attention(q, k, v, mask)
    torch.testing.assert_close(mixed, F.scaled_dot_product_attention(q, k, v, mask), **SAME)


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
