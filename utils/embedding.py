"""From images to tokens: patches, their projection, class token and positions (chapter 01)."""

import torch
from einops import rearrange
from torch import Tensor, nn

from utils.shapes import check_positive, check_shape

Size = int | tuple[int, int]


def as_pair(where: str, name: str, size: Size) -> tuple[int, int]:
    """Return a size as (height, width).

    Args:
        where: the public name that an error begins with.
        name: the name of the argument.
        size: one number for both, or (height, width).

    Raises:
        ValueError: a number that is not an integer of at least 1.

    Source: chapter 01.
    """
    height, width = size if isinstance(size, tuple | list) and len(size) == 2 else (size, size)
    check_positive(where, **{name: height})
    check_positive(where, **{name: width})
    return height, width


def patch_grid(
    where: str, image_size: tuple[int, int], patch_size: tuple[int, int]
) -> tuple[int, int]:
    """Return the number of patches down and across.

    Args:
        where: the public name that an error begins with.
        image_size: (height, width) of an image in pixels.
        patch_size: (height, width) of a patch in pixels.

    Raises:
        ValueError: patches that do not tile the image.

    Source: chapter 01.
    """
    if image_size[0] % patch_size[0] or image_size[1] % patch_size[1]:
        height, width = (
            [size for size in range(1, side + 1) if side % size == 0] for side in image_size
        )
        raise ValueError(
            f"{where}: patches must tile the image, got patch_size={patch_size} for an image of "
            f"{image_size[0]} x {image_size[1]} pixels. "
            f"Pick the patch height from {height} and the width from {width}, or crop the image."
        )
    return image_size[0] // patch_size[0], image_size[1] // patch_size[1]


def patchify(images: Tensor, patch_size: Size) -> Tensor:
    """Cut images into patches, row by row, and lay each patch out as one vector.

    The order inside a patch (channel, row, column) is that of a strided `nn.Conv2d`'s weight.

    Args:
        images: the images.
        patch_size: side of a patch in pixels, or (height, width).

    Shape:
        images  (b, c, gh * ph, gw * pw)
        result  (b, gh * gw, c * ph * pw)

    Raises:
        ValueError: wrong rank, or patches that do not tile the image.

    Source: Dosovitskiy et al. 2021, section 3.1; chapter 01.
    """
    check_shape(
        "patchify",
        "images",
        images,
        "b c H W",
        "One image alone is images[None].",
    )
    ph, pw = as_pair("patchify", "patch_size", patch_size)
    gh, gw = patch_grid("patchify", tuple(images.shape[2:]), (ph, pw))
    return rearrange(
        images, "b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)", gh=gh, gw=gw, ph=ph, pw=pw
    )


def unpatchify(patches: Tensor, patch_size: Size, image_size: Size) -> Tensor:
    """Put patches back together: the inverse of `patchify`.

    Args:
        patches: what `patchify` returned.
        patch_size: side of a patch in pixels, or (height, width).
        image_size: side of the image in pixels, or (height, width).

    Shape:
        patches  (b, gh * gw, c * ph * pw)
        result   (b, c, gh * ph, gw * pw)

    Raises:
        ValueError: wrong rank, patches that do not tile the image, or numbers that do not fit.

    Source: chapter 01.
    """
    ph, pw = as_pair("unpatchify", "patch_size", patch_size)
    gh, gw = patch_grid("unpatchify", as_pair("unpatchify", "image_size", image_size), (ph, pw))
    check_shape(
        "unpatchify",
        "patches",
        patches,
        "b n p",
        f"An image of {gh * ph} x {gw * pw} pixels has {gh} x {gw} patches: "
        "pass all of them, without the class token.",
        n=gh * gw,
    )
    if patches.shape[2] % (ph * pw):
        raise ValueError(
            f"unpatchify: a patch must hold c * {ph} * {pw} numbers, "
            f"got patches.shape={tuple(patches.shape)}. Pass the patch_size of patchify."
        )
    return rearrange(
        patches, "b (gh gw) (c ph pw) -> b c (gh ph) (gw pw)", gh=gh, gw=gw, ph=ph, pw=pw
    )


class PatchEmbedding(nn.Module):
    """Turn images into tokens: project each patch, put the class token in front, add positions.

    Args:
        image_size: side of the images in pixels, or (height, width).
        patch_size: side of a patch in pixels, or (height, width).
        in_channels: channels of the images, c.
        embed_dim: width of a token, e.

    Shape:
        images       (b, c, H, W)
        result       (b, n + 1, e)    n = (H / ph) * (W / pw); token 0 is the class token
        class_token  (1, 1, e)
        positions    (1, n + 1, e)

    Raises:
        ValueError: patches that do not tile the image, or images of another size, of other
            channels or of whole numbers.

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
        # 0.02 is the spread that ViT and BERT start with
        self.class_token = nn.Parameter(torch.randn(1, 1, embed_dim) * 0.02)
        self.positions = nn.Parameter(torch.randn(1, gh * gw + 1, embed_dim) * 0.02)

    def forward(self, images: Tensor) -> Tensor:
        check_shape(
            "PatchEmbedding",
            "images",
            images,
            "b c H W",
            "Resize or crop the images, or build the module for this size.",
            c=self.in_channels,
            H=self.image_size[0],
            W=self.image_size[1],
        )
        if not images.is_floating_point():
            raise ValueError(
                "PatchEmbedding: images must hold floating point numbers, "
                f"got images.dtype={images.dtype}. Bytes from 0 to 255 become numbers from 0 to 1 "
                "with images / 255."
            )
        patches = self.proj(patchify(images, self.patch_size))  # (b, n, e)
        class_token = self.class_token.expand(patches.shape[0], -1, -1)  # (b, 1, e)
        return torch.cat([class_token, patches], dim=1) + self.positions
