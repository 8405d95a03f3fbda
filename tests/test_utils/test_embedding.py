"""Patches: cut like a loop and like a strided convolution; then tokens."""

import pytest
import torch
from torch import nn

from helpers import CLOSE, error_of, random, randomize
from utils.embedding import PatchEmbedding, patchify, unpatchify

SIZES = [  # image (c, H, W), patch_size
    ((1, 8, 8), 2),
    ((3, 96, 96), 16),
    ((3, 4, 6), (2, 3)),
    ((2, 6, 4), (3, 1)),
    ((5, 3, 7), (3, 7)),  # one patch
    ((1, 1, 1), 1),
    ((2, 5, 3), 1),
]


def crops(images, ph, pw):
    """Cut patches with a loop: the specification."""
    _, _, height, width = images.shape
    patches = [
        images[:, :, row : row + ph, column : column + pw].flatten(1)
        for row in range(0, height, ph)
        for column in range(0, width, pw)
    ]
    return torch.stack(patches, dim=1)


@pytest.mark.parametrize("image, size", SIZES)
@pytest.mark.parametrize("b", [0, 1, 4])
def test_patchify_equals_the_loop_and_unpatchify_undoes_it(image, size, b):
    images = random(b, *image)
    ph, pw = size if isinstance(size, tuple) else (size, size)
    patches = patchify(images, size)
    c, height, width = image
    assert patches.shape == (b, height // ph * (width // pw), c * ph * pw)
    assert torch.equal(patches, crops(images, ph, pw))
    assert torch.equal(unpatchify(patches, size, (height, width)), images)


def test_sizes_may_be_an_int_a_tuple_or_a_list():
    images = random(2, 3, 8, 8)
    for size in [(4, 4), [4, 4], images.new_zeros(4, 4).shape]:
        assert torch.equal(patchify(images, size), patchify(images, 4))
    patches = patchify(images, 4)
    assert torch.equal(unpatchify(patches, [4, 4], 8), unpatchify(patches, 4, (8, 8)))


def test_patchify_of_any_memory_layout_and_type():
    images = random(2, 8, 6, 3)
    channels_last = images.permute(0, 3, 1, 2)
    assert not channels_last.is_contiguous()
    expected = patchify(channels_last.contiguous(), 2)
    assert torch.equal(patchify(channels_last, 2), expected)
    assert torch.equal(patchify(channels_last.double(), 2), expected.double())
    bytes_ = (images * 50).to(torch.uint8).permute(0, 3, 1, 2)
    assert patchify(bytes_, 2).dtype == torch.uint8
    flipped = patchify(channels_last, 2).flip(1)
    torch.testing.assert_close(unpatchify(flipped, 2, (8, 6)).shape, channels_last.shape)


def test_a_patch_that_does_not_tile_gets_the_sizes_that_do():
    text = error_of(lambda: patchify(random(1, 3, 12, 10), (5, 4)))
    assert text == (
        "patchify: patches must tile the image, got patch_size=(5, 4) for an image of 12 x 10 "
        "pixels. Pick the patch height from [1, 2, 3, 4, 6, 12] and the width from "
        "[1, 2, 5, 10], or crop the image."
    )
    for height in [1, 2, 3, 4, 6, 12]:
        for width in [1, 2, 5, 10]:
            patchify(random(1, 3, 12, 10), (height, width))


def test_one_image_gets_its_fix():
    image = random(3, 8, 8)
    text = error_of(lambda: patchify(image, 2))
    assert "images must have shape (b, c, H, W), got images.shape=(3, 8, 8)" in text
    assert "images[None]" in text
    assert patchify(image[None], 2).shape == (1, 16, 12)


@pytest.mark.parametrize("size", [0, -2, 2.0, "2", None, True, (2, 0), (2, 2, 2), (2,), (2.0, 2)])
def test_a_patch_size_is_a_positive_integer_or_a_pair(size):
    text = error_of(lambda: patchify(random(1, 1, 8, 8), size))
    assert "patch_size must be an integer of at least 1, got patch_size=" in text


def test_unpatchify_errors():
    patches = patchify(random(2, 3, 4, 6), 2)  # (2, 6, 12)
    text = error_of(lambda: unpatchify(patches[:, 1:], 2, (4, 6)))
    assert "patches must have shape (b, n=6, p), got patches.shape=(2, 5, 12)" in text
    assert "2 x 3 patches" in text
    text = error_of(lambda: unpatchify(patches[..., 1:], 2, (4, 6)))
    assert "a patch must hold c * 2 * 2 numbers, got patches.shape=(2, 6, 11)" in text
    error_of(lambda: unpatchify(patches[0], 2, (4, 6)))
    error_of(lambda: unpatchify(patches, 4, (4, 6)))
    error_of(lambda: unpatchify(patches, 2, (4, 0)))


@pytest.mark.parametrize("image, size", SIZES)
def test_patch_embedding_equals_a_strided_convolution(image, size):
    (c, height, width), e = image, 10
    ours = randomize(PatchEmbedding((height, width), size, c, e))
    conv = nn.Conv2d(c, e, kernel_size=ours.patch_size, stride=ours.patch_size)
    conv.weight.data = ours.proj.weight.data.reshape(conv.weight.shape)
    conv.bias.data = ours.proj.bias.data
    images = random(3, *image)
    tokens = ours(images)
    patches = conv(images).flatten(2).transpose(1, 2)
    assert tokens.shape == (3, patches.shape[1] + 1, e)
    torch.testing.assert_close(tokens[:, 1:], patches + ours.positions[:, 1:], **CLOSE)
    first = (ours.class_token + ours.positions[:, :1]).expand(3, 1, e)
    torch.testing.assert_close(tokens[:, :1], first, rtol=0, atol=0)

    weights = random(*tokens.shape, seed=1)
    (tokens * weights).sum().backward()
    (patches * weights[:, 1:]).sum().backward()
    torch.testing.assert_close(ours.proj.weight.grad, conv.weight.grad.flatten(1), **CLOSE)
    torch.testing.assert_close(ours.proj.bias.grad, conv.bias.grad, **CLOSE)
    torch.testing.assert_close(ours.positions.grad[0], weights.sum(0), **CLOSE)
    torch.testing.assert_close(ours.class_token.grad[0, 0], weights[:, 0].sum(0), **CLOSE)


def test_the_running_example_has_the_stated_parameters():
    embedding = PatchEmbedding(96, 16, 3, 768)
    counts = {name: p.numel() for name, p in embedding.named_parameters()}
    assert counts == {
        "class_token": 768,
        "positions": 28_416,
        "proj.weight": 589_824,
        "proj.bias": 768,
    }
    assert embedding(torch.zeros(6, 3, 96, 96)).shape == (6, 37, 768)


def test_class_token_and_positions_start_small_and_random():
    torch.manual_seed(0)
    embedding = PatchEmbedding(32, 2, 1, 64)
    for start in (embedding.class_token, embedding.positions):
        assert isinstance(start, nn.Parameter) and start.requires_grad
        assert 0.015 < start.std() < 0.025 and start.mean().abs() < 0.01
    assert embedding.class_token.shape == (1, 1, 64)
    assert embedding.positions.shape == (1, 257, 64)


def test_positions_tell_shuffled_patches_apart():
    embedding = randomize(PatchEmbedding(4, 2, 1, 6))
    images = random(1, 1, 4, 4)
    shuffled = unpatchify(patchify(images, 2)[:, [2, 0, 3, 1]], 2, 4)
    order = [0, 3, 1, 4, 2]
    assert (embedding(shuffled) - embedding(images)[:, order]).abs().max() > 0.1
    embedding.positions.data.zero_()
    torch.testing.assert_close(embedding(shuffled), embedding(images)[:, order], **CLOSE)


def test_forward_changes_nothing_in_place():
    embedding = PatchEmbedding((4, 6), 2, 3, 8)
    images = random(2, 3, 4, 6)
    kept, before = images.clone(), {k: v.clone() for k, v in embedding.state_dict().items()}
    with torch.no_grad():
        embedding(images).zero_()  # the result shares no memory with what went in
    assert torch.equal(images, kept)
    assert all(torch.equal(before[k], v) for k, v in embedding.state_dict().items())


@pytest.mark.parametrize(
    "shape", [(3, 4, 6), (2, 1, 4, 6), (2, 3, 6, 4), (2, 3, 4, 8), (2, 4, 6, 3), (2, 3, 24)]
)
def test_images_of_another_shape_are_refused(shape):
    embedding = PatchEmbedding((4, 6), 2, 3, 8)
    text = error_of(lambda: embedding(torch.zeros(shape)))
    assert f"images must have shape (b, c=3, H=4, W=6), got images.shape={shape}" in text


@pytest.mark.parametrize(
    "arguments", [(8, 3, 1, 4), (8, 2, 0, 4), (8, 2, 1, 0), (0, 2, 1, 4), (8, 2, 1, 4.0)]
)
def test_bad_sizes_are_refused_when_building(arguments):
    assert error_of(lambda: PatchEmbedding(*arguments)).startswith("PatchEmbedding: ")


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64, torch.bool])
def test_pixels_in_whole_numbers_are_refused_with_what_to_do(dtype):
    embed = PatchEmbedding(image_size=8, patch_size=4, in_channels=3, embed_dim=5)
    text = error_of(lambda: embed(torch.ones(2, 3, 8, 8, dtype=dtype)))
    assert f"got images.dtype={dtype}" in text
    assert "images / 255" in text
