"""Scenes: digits scattered over a larger picture, and where each of them stands (chapter 17)."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from utils.boxes import Targets
from utils.validation import check_positive, check_shape


def cut_out(digit: Tensor) -> Tensor:
    """Cut the blank margins off a digit.

    Args:
        digit: one digit, 0 where there is no ink.

    Shape:
        digit   (H, W)
        result  (rows, columns) with ink in the first and last of each

    Raises: ValueError for another shape, or no ink.
    Source: chapter 17.
    """
    check_shape("cut_out", "digit", digit, "H W", "One of load_digits is images[0, 0].")
    ink = (digit > 0).nonzero()  # (k, 2)
    if not len(ink):
        raise ValueError(
            "cut_out: a digit must have ink, got digit with no number above 0. "
            "Leave out empty pictures."
        )
    (top, left), (bottom, right) = ink.amin(dim=0).tolist(), ink.amax(dim=0).tolist()
    return digit[top : bottom + 1, left : right + 1]


def make_scene(
    inks: Sequence[Tensor], labels: Sequence[int], places: Sequence[tuple[int, int]], size: int = 32
) -> tuple[Tensor, Targets]:
    """Lay digits on an empty picture; where two overlap, the darker ink is seen.

    Args:
        inks: one for each digit: its ink, as large as it should be.
        labels: which digit each one is.
        places: (top, left) of each, in pixels.
        size: side of the picture.

    Shape:
        inks    (rows, columns) each
        result  the picture (1, size, size), and its `Targets` with t = the number of digits

    Raises: ValueError for another number of labels or places, or ink that leaves the picture.
    Source: chapter 17.
    """
    check_positive("make_scene", size=size)
    if not len(inks) == len(labels) == len(places):
        raise ValueError(
            "make_scene: every digit needs a label and a place, got "
            f"{len(inks)} inks, {len(labels)} labels and {len(places)} places. Add what is missing."
        )
    picture, boxes = torch.zeros(1, size, size), torch.zeros(len(inks), 4)
    for n, (ink, (top, left)) in enumerate(zip(inks, places, strict=True)):
        rows, columns = ink.shape
        part = picture[0, top : top + rows, left : left + columns]
        if top < 0 or left < 0 or part.shape != ink.shape:
            raise ValueError(
                f"make_scene: digits must lie inside {size} x {size} pixels, got one of {rows} x "
                f"{columns} at places={(top, left)}. Move it, or raise size."
            )
        part.copy_(torch.maximum(part, ink))
        boxes[n] = torch.tensor([left + columns / 2, top + rows / 2, columns, rows]) / size
    return picture, Targets(torch.tensor(labels, dtype=torch.int64), boxes)


def draw_scenes(
    digits: tuple[Tensor, Tensor],
    counts: Sequence[int],
    generator: torch.Generator,
    size: int = 32,
    zoom: tuple[float, float] = (1.0, 1.5),
    apart: bool = True,
) -> tuple[Tensor, list[Targets]]:
    """Draw scenes: digits at random places, each cut out of its margins and zoomed at random.

    A digit for which no free place is found in a hundred tries is left out: the targets say so.

    Args:
        digits: images and labels, as `load_digits` gives them.
        counts: how many digits each scene has.
        generator: a CPU generator.
        size: side of the pictures.
        zoom: smallest and largest factor.
        apart: no two boxes overlap; False puts them anywhere.

    Shape:
        digits  (n, 1, 8, 8) and (n,)
        result  the pictures (b, 1, size, size), and b `Targets`

    Raises: ValueError for digits of another shape, or too large for the picture.
    Source: chapter 17.
    """
    images, labels = digits
    check_shape("draw_scenes", "images", images, "n c H W", "Take those of load_digits.", c=1)
    largest = max(images.shape[2:]) * zoom[1]
    if not 0 < zoom[0] <= zoom[1] or largest > size:
        raise ValueError(
            f"draw_scenes: zoom must be (smallest, largest) so that digits fit into {size} pixels, "
            f"got zoom={zoom}. Take for example (1.0, 1.5)."
        )
    scenes = []
    for count in counts:
        inks, kinds, places = [], [], []
        for n in torch.randint(len(images), (count,), generator=generator).tolist():
            factor = zoom[0] + (zoom[1] - zoom[0]) * torch.rand((), generator=generator).item()
            ink = cut_out(images[n, 0])
            sides = [max(1, round(side * factor)) for side in ink.shape]
            ink = F.interpolate(ink[None, None], sides, mode="bilinear", align_corners=False)[0, 0]
            for _ in range(100):
                place = tuple(
                    torch.randint(size - side + 1, (), generator=generator).item() for side in sides
                )
                taken = zip(inks, places, strict=True)
                if not (apart and any(_touch(ink, place, *other) for other in taken)):
                    inks.append(ink)
                    kinds.append(labels[n].item())
                    places.append(place)
                    break
        scenes.append(make_scene(inks, kinds, places, size))
    return torch.stack([picture for picture, _ in scenes]), [target for _, target in scenes]


def _touch(ink: Tensor, place: tuple[int, int], other: Tensor, there: tuple[int, int]) -> bool:
    """Say whether the boxes of two inks share a pixel."""
    return all(
        start < there[axis] + other.shape[axis] and there[axis] < start + ink.shape[axis]
        for axis, start in enumerate(place)
    )
