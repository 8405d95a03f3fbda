"""From images (chapter 01) and ids (chapter 09) to tokens."""

from typing import Literal

import torch
from einops import rearrange
from torch import Tensor, nn

from utils.positions import sinusoidal_positions
from utils.validation import (
    Size,
    as_pair,
    check_ids,
    check_images,
    check_number,
    check_positions,
    check_positive,
    check_shape,
    patch_grid,
)


def patchify(images: Tensor, patch_size: Size) -> Tensor:
    """Cut images into patches, row by row, and flatten each patch to one vector.

    >>> patchify(torch.zeros(6, 3, 96, 96), 16).shape
    torch.Size([6, 36, 768])

    The order inside a patch (channel, row, column) is that of a strided `nn.Conv2d`'s weight.

    Args:
        patch_size: side of a patch in pixels, or (height, width).

    Shape:
        images  (b, c, gh * ph, gw * pw)
        result  (b, gh * gw, c * ph * pw)

    Raises: ValueError for wrong rank, or patches that do not tile the image.
    Source: Dosovitskiy et al. 2021, section 3.1; chapter 01.
    """
    check_shape("patchify", "images", images, "b c H W", "One image alone is images[None].")
    ph, pw = as_pair("patchify", "patch_size", patch_size)
    gh, gw = patch_grid("patchify", tuple(images.shape[2:]), (ph, pw))
    return rearrange(
        images, "b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)", gh=gh, gw=gw, ph=ph, pw=pw
    )


def unpatchify(patches: Tensor, patch_size: Size, image_size: Size) -> Tensor:
    """Put patches back together: the inverse of `patchify`.

    Args:
        patches: what `patchify` returned.
        patch_size, image_size: side in pixels, or (height, width).

    Shape:
        patches  (b, gh * gw, c * ph * pw)
        result   (b, c, gh * ph, gw * pw)

    Raises: ValueError for wrong rank, or patches that do not fit the image.
    """
    ph, pw = as_pair("unpatchify", "patch_size", patch_size)
    gh, gw = patch_grid("unpatchify", as_pair("unpatchify", "image_size", image_size), (ph, pw))
    grid = f"An image of {gh * ph} x {gw * pw} pixels has {gh} x {gw} patches"
    fix = f"{grid}: pass all of them, without the class token."
    check_shape("unpatchify", "patches", patches, "b n p", fix, n=gh * gw)
    if patches.shape[2] % (ph * pw):
        raise ValueError(
            f"unpatchify: a patch must hold c * {ph} * {pw} numbers, "
            f"got patches.shape={tuple(patches.shape)}. Pass the patch_size of patchify."
        )
    return rearrange(
        patches, "b (gh gw) (c ph pw) -> b c (gh ph) (gw pw)", gh=gh, gw=gw, ph=ph, pw=pw
    )


class PatchEmbedding(nn.Module):
    """Project each patch, put the class token first, add positions.

    Args:
        image_size, patch_size: side in pixels, or (height, width).
        in_channels: channels of the images, c.
        embed_dim: width of a token, e.

    Shape:
        images       (b, c, H, W)
        result       (b, n + 1, e)    n = (H / ph) * (W / pw); token 0 is the class token
        class_token  (1, 1, e)
        positions    (1, n + 1, e)

    Raises: ValueError for patches that do not tile the image, or images that do not fit.
    Source: Dosovitskiy et al. 2021, section 3.1; chapter 01.
    """

    def __init__(self, image_size: Size, patch_size: Size, in_channels: int, embed_dim: int):
        super().__init__()
        check_positive("PatchEmbedding", in_channels=in_channels, embed_dim=embed_dim)
        self.image_size = as_pair("PatchEmbedding", "image_size", image_size)
        self.patch_size = as_pair("PatchEmbedding", "patch_size", patch_size)
        self.in_channels = in_channels
        gh, gw = patch_grid("PatchEmbedding", self.image_size, self.patch_size)
        ph, pw = self.patch_size
        self.proj = nn.Linear(in_channels * ph * pw, embed_dim)
        # 0.02 is the standard deviation that ViT and BERT start with
        self.class_token = nn.Parameter(torch.randn(1, 1, embed_dim) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, gh * gw + 1, embed_dim) * 0.02)

    def forward(self, images: Tensor) -> Tensor:
        fix = "Resize or crop the images, or build the module for this size."
        check_images("PatchEmbedding", images, self.in_channels, self.image_size, fix)
        patches = self.proj(patchify(images, self.patch_size))  # (b, n, e)
        class_token = self.class_token.expand(patches.shape[0], -1, -1)  # (b, 1, e): a view
        return torch.cat([class_token, patches], dim=1) + self.positions


class TokenEmbedding(nn.Module):
    """Look up the vector of each id, scale it, and add the code of its position.

    >>> TokenEmbedding(vocab_size=100, embed_dim=8, max_length=16)(torch.tensor([[5, 7, 5]])).shape
    torch.Size([1, 3, 8])

    Args:
        vocab_size: number of ids.
        embed_dim: width of a token, e.
        max_length: longest sequence, in tokens; without positions nothing is limited.
        positions: "learned" (a table of parameters), "sinusoidal" (fixed), or None.
        padding_id: the id whose vector is 0 and stays so; None if there is no padding.
        scale: multiply the vectors by √e. They start with a standard deviation of 1/√e, so that
            logits of a last layer with tied weights start with 1; as tokens they need √e to be as
            large as positions are.

    Shape:
        ids             (b, n), integers
        positions       (n,) or (b, n), integers; None: from `start` on
        result          (b, n, e)
        tokens.weight   (vocab_size, e)
        self.positions  (max_length, e), or None

    Raises: ValueError for bad sizes, bad ids, or a sequence longer than the positions.
    Source: Vaswani et al. 2017, sections 3.4 and 3.5; chapter 09.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        max_length: int,
        positions: Literal["learned", "sinusoidal"] | None = "learned",
        padding_id: int | None = None,
        scale: bool = True,
    ):
        super().__init__()
        check_positive(
            "TokenEmbedding", vocab_size=vocab_size, embed_dim=embed_dim, max_length=max_length
        )
        if positions not in ("learned", "sinusoidal", None):
            raise ValueError(
                'TokenEmbedding: positions must be "learned", "sinusoidal" or None, '
                f"got positions={positions!r}. Pick one of the three."
            )
        if padding_id is not None:
            fix = "Pass an id of the vocabulary, or None."
            check_number("TokenEmbedding", "padding_id", padding_id, 0, vocab_size - 1, fix)
        self.vocab_size, self.max_length = vocab_size, max_length
        self.factor = embed_dim**0.5 if scale else 1.0
        self.tokens = nn.Embedding(vocab_size, embed_dim, padding_idx=padding_id)
        nn.init.normal_(self.tokens.weight, std=embed_dim**-0.5)
        if padding_id is not None:
            self.tokens.weight.data[padding_id] = 0
        if positions == "learned":
            # as large as the vectors that they are added to
            std = self.factor * embed_dim**-0.5
            self.positions = nn.Parameter(torch.randn(max_length, embed_dim) * std)
        else:
            fixed = sinusoidal_positions(max_length, embed_dim) if positions else None
            self.register_buffer("positions", fixed, persistent=False)

    def forward(self, ids: Tensor, start: int = 0, positions: Tensor | None = None) -> Tensor:
        check_shape("TokenEmbedding", "ids", ids, "b n", "One sequence alone is ids[None].")
        fix = "Encode with the vocabulary of this model, or build it with vocab_size={needed}."
        check_ids("TokenEmbedding", "ids", ids, self.vocab_size, fix)
        check_positive("TokenEmbedding", least=0, start=start)
        tokens = self.tokens(ids) * self.factor  # (b, n, e)
        if self.positions is None:
            return tokens
        if positions is None:
            end = start + ids.shape[1]
            if end > self.max_length:
                raise ValueError(
                    f"TokenEmbedding: there are positions for {self.max_length} tokens, "
                    f"got {end}. Cut the sequence, or build it with max_length={end}."
                )
            return tokens + self.positions[start:end]
        check_positions("TokenEmbedding", positions, *ids.shape)
        fix = "Cut the sequence, or build it with max_length={needed}."
        check_ids("TokenEmbedding", "positions", positions, self.max_length, fix)
        return tokens + self.positions[positions]
