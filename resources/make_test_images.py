"""Make `test_images.npy`, six photographs (6, 96, 96, 3), and `digits.npy` (1797, 65), both uint8.

Run it with `make photos`. It needs scikit-image and scikit-learn, which carry the photographs and
the digits inside their packages, and no network. Sources and licences: `README.md` beside this
file.

Each photograph is cropped to a square whose side is a multiple of 96 and averaged over blocks
of pixels in integers, so the file is the same, bit for bit, on every machine. A row of digits is
64 pixels, from 0 to 16, and the label; the first 1,437 rows are for training.
"""

from pathlib import Path

import numpy as np
from skimage import data
from sklearn.datasets import load_digits, load_sample_image
from sklearn.model_selection import train_test_split

SIZE = 96
HERE = Path(__file__).parent

# name, how to load it, (top, left) of the crop, blocks of k x k pixels (the crop is 96 * k wide)
PHOTOS = [
    ("cat", data.chelsea, (6, 88), 3),
    ("coffee", data.coffee, (8, 120), 4),
    ("astronaut", data.astronaut, (0, 16), 4),
    ("rocket", data.rocket, (43, 142), 4),
    ("temple", lambda: load_sample_image("china.jpg"), (4, 20), 4),
    ("flower", lambda: load_sample_image("flower.jpg"), (20, 112), 4),
]


def shrink(photo: np.ndarray, corner: tuple[int, int], block: int) -> np.ndarray:
    """Crop a square of `96 * block` pixels at `corner` and average its blocks.

    Shape: photo (H, W, 3) uint8 -> (96, 96, 3) uint8.
    """
    top, left = corner
    side = SIZE * block
    crop = photo[top : top + side, left : left + side, :3].astype(np.uint32)
    if crop.shape != (side, side, 3):
        raise ValueError(
            f"shrink: the crop must lie inside the photograph, got photo.shape={photo.shape}, "
            f"corner={corner} and side={side}. Move the corner or take a smaller block."
        )
    total = crop.reshape(SIZE, block, SIZE, block, 3).sum(axis=(1, 3))
    return ((total + block**2 // 2) // block**2).astype(np.uint8)


def build() -> np.ndarray:
    """Return the six photographs, (6, 96, 96, 3) uint8, in the order of `PHOTOS`."""
    return np.stack([shrink(load(), corner, block) for _, load, corner, block in PHOTOS])


def split_digits() -> np.ndarray:
    """Return the digits and their labels, (1797, 65) uint8: four fifths to train on, then the rest.

    The split is stratified: every digit has the same share in both parts.
    """
    found = load_digits()
    rows = np.column_stack([found.data, found.target]).astype(np.uint8)
    parts = train_test_split(rows, test_size=0.2, stratify=found.target, random_state=0)
    return np.concatenate(parts)


if __name__ == "__main__":
    np.save(HERE / "test_images.npy", build(), allow_pickle=False)
    np.save(HERE / "digits.npy", split_digits(), allow_pickle=False)
