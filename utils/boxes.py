"""Boxes: how far two agree, and how good a set of answers is, as COCO counts it (chapter 17).

A box is four numbers from 0 to 1, shares of the picture's width and height: x and y of its middle,
its width, its height.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from utils.scenes import Targets


class Found(NamedTuple):
    """What a detector says of one picture, in any order.

    Args:
        labels: the class of each answer.
        boxes: middle and size.
        sure: the probability of that class.

    Shape:
        labels  (i,), integers
        boxes   (i, 4)
        sure    (i,)

    Source: chapter 17.
    """

    labels: Tensor
    boxes: Tensor
    sure: Tensor


def corners(boxes: Tensor) -> Tensor:
    """Turn boxes from middle and size into left, top, right and bottom.

    Shape:
        boxes   (..., 4)    x and y of the middle, width, height
        result  (..., 4)    left, top, right, bottom

    Raises:
        ValueError: a last axis that is not 4.

    Source: chapter 17.
    """
    _check_boxes("corners", "boxes", boxes)
    middle, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([middle - size / 2, middle + size / 2], dim=-1)


def overlap(first: Tensor, second: Tensor) -> Tensor:
    """Return the area that two boxes share, as a share of the area that they cover: their IoU.

    Shape:
        first   (..., 4)    middle and size
        second  (..., 4)    broadcastable to the first
        result  (...)       from 0 to 1; 0 for two boxes without area

    Raises:
        ValueError: a last axis that is not 4.

    Source: Jaccard 1912; chapter 17.
    """
    shared, covered, _ = _areas("overlap", first, second)
    return shared / covered.clamp(min=torch.finfo(covered.dtype).tiny)


def generalized_overlap(first: Tensor, second: Tensor) -> Tensor:
    """Return the overlap minus the share of the smallest frame around both that is empty.

    Apart from each other, all boxes have the overlap 0; this one still says how far.

    Shape:
        first   (..., 4)    middle and size
        second  (..., 4)    broadcastable to the first
        result  (...)       from -1 to 1

    Raises:
        ValueError: a last axis that is not 4.

    Source: Rezatofighi et al. 2019 (generalized IoU); chapter 17.
    """
    shared, covered, frame = _areas("generalized_overlap", first, second)
    tiny = torch.finfo(covered.dtype).tiny
    return shared / covered.clamp(min=tiny) - (frame - covered) / frame.clamp(min=tiny)


def _areas(where: str, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the area that two boxes share, that they cover, and that a frame around them has."""
    _check_boxes(where, "first", first)
    _check_boxes(where, "second", second)
    a, b = corners(first), corners(second)
    inner = torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    outer = torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])
    shared = inner.clamp(min=0).prod(dim=-1)
    # from the corners, as what is shared: a box then covers itself to the last bit
    area, other = ((box[..., 2:] - box[..., :2]).prod(dim=-1) for box in (a, b))
    covered = area + other - shared
    return shared, covered, outer.prod(dim=-1)


@torch.no_grad()
def average_precision(
    found: Sequence[Found], targets: Sequence[Targets], threshold: float = 0.5
) -> float:
    """Return AP as COCO computes it: the mean, over classes, of the precision over the recall.

    The answers of a class are sorted, the surest first. Each is right if it overlaps an object of
    its class that no surer answer has taken. With threshold 0.5 this is called AP50.

    Args:
        found: what was said of each picture; up to 100 answers, as in COCO.
        targets: what stands there.
        threshold: the overlap from which on a box is right.

    Raises:
        ValueError: another number of pictures, no object at all, or a threshold outside 0 to 1.

    Source: Lin et al. 2014 (COCO) and its evaluation code; chapter 17.
    """
    if len(found) != len(targets) or not sum(len(target.labels) for target in targets):
        raise ValueError(
            "average_precision: there must be a Found for each picture, and at least one object, "
            f"got {len(found)} found, {len(targets)} targets and "
            f"{sum(len(target.labels) for target in targets)} objects. Call detections on them all."
        )
    if not 0 < threshold <= 1:
        raise ValueError(
            "average_precision: threshold must be an overlap above 0 and at most 1, "
            f"got threshold={threshold}. Pass 0.5 for AP50."
        )
    classes = torch.cat([target.labels for target in targets]).unique().tolist()
    return sum(_precision(found, targets, k, threshold) for k in classes) / len(classes)


def _precision(
    found: Sequence[Found], targets: Sequence[Targets], label: int, threshold: float
) -> float:
    """Return the mean precision of one class at the recalls 0, 0.01, ..., 1."""
    right, sure, objects = [], [], 0
    for said, true in zip(found, targets, strict=True):
        own, places = said.labels == label, true.boxes[true.labels == label]
        order = said.sure[own].argsort(descending=True, stable=True)
        right.append(_hits(said.boxes[own][order], places, threshold))
        sure.append(said.sure[own][order])
        objects += len(places)
    right = torch.cat(right)[torch.cat(sure).argsort(descending=True, stable=True).cpu()]
    hits = right.cumsum(dim=0, dtype=torch.float64)
    precision = hits / torch.arange(1, len(right) + 1)
    # at a recall counts the best precision at this recall or a higher one; never reached is 0
    best = precision.flip(0).cummax(dim=0).values.flip(0) if len(right) else precision
    recalls = torch.from_numpy(np.linspace(0, 1, 101))  # to the last bit those of COCO
    reached = torch.searchsorted(hits / objects, recalls)
    return F.pad(best, (0, 1))[reached].mean().item()


def _hits(boxes: Tensor, places: Tensor, threshold: float) -> Tensor:
    """Say of boxes, the surest first, whether each has an object that no box before it took."""
    free = overlap(boxes[:, None].double(), places.double()).cpu()  # (boxes, places)
    right = torch.zeros(len(boxes), dtype=torch.bool)
    for n in range(len(boxes) if len(places) else 0):
        best = free[n].argmax()
        if free[n, best] >= threshold:
            right[n] = True
            free[:, best] = -1
    return right


def _check_boxes(where: str, name: str, boxes: Tensor) -> None:
    if boxes.ndim == 0 or boxes.shape[-1] != 4:
        raise ValueError(
            f"{where}: {name} must have 4 numbers in the last axis, x and y of the middle, width "
            f"and height, got {name}.shape={tuple(boxes.shape)}. Stack them along the last axis."
        )
