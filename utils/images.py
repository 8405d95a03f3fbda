"""The data of the course: six photographs and 1,797 handwritten digits (chapters 00 and 07)."""

from pathlib import Path

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

RESOURCES = Path(__file__).resolve().parent.parent / "resources"
PHOTO_NAMES = ("cat", "coffee", "astronaut", "rocket", "temple", "flower")


def resource(name: str) -> Path:
    """Return the path of a file in `resources/`.

    Args:
        name: the file's name.

    Raises:
        ValueError: there is no such file, for instance because `utils` was copied without it.

    Source: chapter 00.
    """
    path = RESOURCES / name
    if not path.is_file():
        raise ValueError(
            f"resource: the file must lie in the course's folder resources/, got name={name!r}, "
            f"which is not there. Get the whole course and install it with: pip install -e ."
        )
    return path


def load_photos() -> Tensor:
    """Load the six photographs, in the order of `PHOTO_NAMES`.

    Shape: (6, 3, 96, 96), float32 in [0, 1], channels first.

    Raises:
        ValueError: the file is missing.

    Source: chapter 00; resources/README.md lists the photographers and licences.
    """
    pixels = np.load(resource("test_images.npy"), allow_pickle=False)  # (6, 96, 96, 3) uint8
    return rearrange(torch.from_numpy(pixels), "b H W c -> b c H W").contiguous() / 255


def load_digits() -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Load the handwritten digits of scikit-learn, four fifths to train on and one to test on.

    The split is fixed and stratified: every digit has the same share in both parts.

    Shape: ((x, y) train, (x, y) test) with x (b, 1, 8, 8) float32 in [0, 1] and y (b,) int64;
        b is 1,437 and 360.

    Source: chapter 07; Alpaydin and Kaynak, Optical Recognition of Handwritten Digits, 1998.
    """
    # Here, because scikit-learn takes as long to import as torch, and most models need no digits.
    from sklearn import datasets
    from sklearn.model_selection import train_test_split

    digits = datasets.load_digits()
    pixels = digits.images.astype(np.float32)[:, None] / 16  # ink is counted from 0 to 16
    train_x, test_x, train_y, test_y = map(
        torch.from_numpy,
        train_test_split(
            pixels, digits.target, test_size=0.2, stratify=digits.target, random_state=0
        ),
    )
    return (train_x, train_y.long()), (test_x, test_y.long())
