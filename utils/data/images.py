"""Six photographs and 1,797 handwritten digits, and what is made of digits (from chapter 00 on)."""

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from utils.data.files import resource
from utils.validation import check_shape

PHOTO_NAMES = ("cat", "coffee", "astronaut", "rocket", "temple", "flower")
DIGIT = 8  # pixels of a digit's side
TRAINING_DIGITS = 1437
INK_LEVELS = 17  # ids 0 to 16 are levels of ink; 17 to 26 are the words for the digits 0 to 9
ANY_DIGIT = 27  # a word that does not say which


def load_photos() -> Tensor:
    """Load the six photographs, in the order of `PHOTO_NAMES`.

    Shape: (6, 3, 96, 96), float32 in [0, 1], channels first.

    Raises: ValueError for a missing file.
    Source: chapter 00; resources/README.md lists the photographers and licences.
    """
    pixels = np.load(resource("test_images.npy"), allow_pickle=False)  # (6, 96, 96, 3) uint8
    return rearrange(torch.from_numpy(pixels), "b H W c -> b c H W").contiguous() / 255


def load_digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Load the handwritten digits of scikit-learn, four fifths to train on and one to test on.

    The split is fixed and stratified: every digit has the same share in both parts.

    Shape: ((x, y) train, (x, y) test) with x (b, 1, 8, 8) float32 in [0, 1] and y (b,) int64;
        b is 1,437 and 360.

    Raises: ValueError for a missing file.
    Source: chapter 07; Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, 1998.
    """
    rows = torch.from_numpy(np.load(resource("digits.npy"), allow_pickle=False))  # (1797, 65) uint8
    train, test = (
        # ink is counted from 0 to 16; the last number of a row is the label
        (rearrange(part[:, :-1], "b (H W) -> b 1 H W", H=DIGIT) / 16, part[:, -1].long())
        for part in rows.split([TRAINING_DIGITS, len(rows) - TRAINING_DIGITS])
    )
    return train, test


def on_canvas(digits: Tensor, corners: Tensor, size: int = 24) -> Tensor:
    """Put each digit on a black canvas of its own.

    Args:
        digits: pictures of 8 x 8 pixels, as `load_digits` gives them.
        corners: row and column of each digit's upper left pixel.
        size: side of the canvases in pixels.

    Shape:
        digits   (b, 1, 8, 8)
        corners  (b, 2), integers from 0 to size - 8
        result   (b, 1, size, size)

    Raises: ValueError for digits or corners of another shape, or a digit that does not fit.
    Source: chapter 14.
    """
    fix = "Take those of load_digits."
    check_shape("on_canvas", "digits", digits, "b c H W", fix, c=1, H=DIGIT, W=DIGIT)
    fix = "One row and one column for each digit."
    check_shape("on_canvas", "corners", corners, "b s", fix, b=len(digits), s=2)
    if len(corners) and not 0 <= corners.min() <= corners.max() <= size - DIGIT:
        raise ValueError(
            f"on_canvas: corners must lie from 0 to {size - DIGIT} on a canvas of {size} pixels, "
            f"got {corners.min()} to {corners.max()}. Take those of random_corners."
        )
    canvases = digits.new_zeros(len(digits), 1, size, size)
    for canvas, digit, (row, column) in zip(canvases, digits, corners.tolist(), strict=True):
        canvas[:, row : row + DIGIT, column : column + DIGIT] = digit
    return canvases


def random_corners(count: int, generator: torch.Generator, size: int = 24) -> Tensor:
    """Draw a place for each of `count` digits, anywhere where a digit fits.

    Args:
        count: how many.
        generator: of torch, on the CPU.
        size: side of the canvases in pixels.

    Shape:
        result  (count, 2), integers from 0 to size - 8

    Raises: ValueError for a canvas smaller than a digit.
    Source: chapter 14.
    """
    if size < DIGIT:
        raise ValueError(
            f"random_corners: size must be at least {DIGIT}, the side of a digit, got size={size}. "
            "Use 24."
        )
    return torch.randint(size - DIGIT + 1, (count, 2), generator=generator)


def drawing_ids(images: Tensor, labels: Tensor | None = None) -> Tensor:
    """Write digits as texts: a word for the digit, then its 64 pixels row by row.

    Args:
        images: digits of 8 x 8 pixels, as `load_digits` gives them.
        labels: which digit each one is; None calls all of them "any digit".

    Shape:
        images  (b, 1, 8, 8), from 0 to 1
        labels  (b,), integers
        result  (b, 65), int64: `INK_LEVELS` + label or `ANY_DIGIT`, then levels of ink from 0 to 16

    Raises: ValueError for images of another shape, or not one label for each.
    Source: chapter 18.
    """
    check_shape(
        "drawing_ids", "images", images, "b c H W", "Take those of load_digits.", c=1, H=8, W=8
    )
    if labels is None:
        words = torch.full((len(images),), ANY_DIGIT)
    else:
        check_shape("drawing_ids", "labels", labels, "b", "One for each image.", b=len(images))
        words = INK_LEVELS + labels
    ink = (images * (INK_LEVELS - 1)).round().long().flatten(1)  # (b, 64)
    return torch.cat([words[:, None], ink], dim=1)
