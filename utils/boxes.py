"""Boxes: how far two overlap, and how good a set of predictions is, as in COCO (chapter 17).

A box is (x and y of its centre, width, height), as fractions of the picture's width and height.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from utils.validation import check_floating, check_ids, check_real


class Targets(NamedTuple):
    """The objects of one picture, in any order.

    Shape:
        labels  (t,), integers: which digit each object is
        boxes   (t, 4)
    """

    labels: Tensor
    boxes: Tensor


class Found(NamedTuple):
    """The predictions of a detector for one picture, in any order.

    Shape:
        labels  (i,), integers: the predicted classes
        boxes   (i, 4)
        score   (i,), the probability of each class: the confidence
    """

    labels: Tensor
    boxes: Tensor
    score: Tensor


def box_cxcywh_to_xyxy(boxes: Tensor) -> Tensor:
    """Convert boxes from centre and size to left, top, right and bottom.

    >>> box_cxcywh_to_xyxy(torch.tensor([0.5, 0.5, 0.5, 1.0]))
    tensor([0.2500, 0.0000, 0.7500, 1.0000])

    Shape:
        boxes   (..., 4)    x and y of the centre, width, height
        result  (..., 4)    left, top, right, bottom

    Raises: ValueError for a last axis that is not 4.
    """
    _check_boxes("box_cxcywh_to_xyxy", "boxes", boxes)
    middle, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([middle - size / 2, middle + size / 2], dim=-1)


def box_iou(first: Tensor, second: Tensor) -> Tensor:
    """Return the IoU of two boxes: the area of their intersection over that of their union.

    >>> box_iou(torch.tensor([0.5, 0.5, 1.0, 1.0]), torch.tensor([0.25, 0.5, 0.5, 1.0]))
    tensor(0.5000)

    Shape:
        first   (..., 4)    centre and size
        second  (..., 4)    broadcastable to the first
        result  (...)       from 0 to 1; 0 for two boxes without area

    Raises: ValueError for a last axis that is not 4, or integers.
    Source: Jaccard 1912; chapter 17.
    """
    shared, covered, _ = _areas("box_iou", first, second)
    return shared / covered.clamp(min=torch.finfo(covered.dtype).tiny)


def generalized_box_iou(first: Tensor, second: Tensor) -> Tensor:
    """Return the GIoU: the IoU minus the empty fraction of the smallest box around both.

    Boxes that do not overlap all have the IoU 0; their GIoU still depends on the distance.

    Args:
        first, second: see `box_iou`.

    Shape: as `box_iou`; the result is from -1 to 1.
    Raises: as `box_iou`.
    Source: Rezatofighi et al. 2019 (generalized IoU); chapter 17.
    """
    shared, covered, frame = _areas("generalized_box_iou", first, second)
    tiny = torch.finfo(covered.dtype).tiny
    return shared / covered.clamp(min=tiny) - (frame - covered) / frame.clamp(min=tiny)


def _areas(where: str, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the areas of the intersection, the union, and the smallest box around both."""
    _check_boxes(where, "first", first)
    _check_boxes(where, "second", second)
    a, b = box_cxcywh_to_xyxy(first), box_cxcywh_to_xyxy(second)
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

    The predictions of a class are sorted by score. Each is correct if its IoU with an object of its
    class that no better one has taken reaches the threshold. At 0.5 this is called AP50.

    Args:
        found: the predictions for each picture; of each class the 100 with the largest score count.
        targets: the objects of each picture.
        threshold: the least IoU of a correct box.

    Raises: ValueError for no objects, or pictures, predictions or a threshold that do not fit.
    Source: Lin et al. 2014 (COCO) and its evaluation code; chapter 17.
    """
    found, targets = [Found(*one) for one in found], [Targets(*one) for one in targets]
    if len(found) != len(targets) or not sum(len(target.labels) for target in targets):
        raise ValueError(
            "average_precision: there must be a Found for each picture, and at least one object, "
            f"got {len(found)} found, {len(targets)} targets and "
            f"{sum(len(target.labels) for target in targets)} objects. Call detections on them all."
        )
    check_real("average_precision", "(0, 1]", "Pass 0.5 for AP50.", threshold=threshold)
    for n, (labels, boxes, score) in enumerate(found):
        check_ids("average_precision", "labels", labels, 2**31, "They are classes.")
        lengths = len(labels), len(boxes), len(score)
        if len(set(lengths)) > 1 or score.isnan().any() or boxes.isnan().any():
            raise ValueError(
                "average_precision: each prediction must have a label, a box and a score, none "
                f"NaN, got {lengths} of them in picture {n}. Take what detections returns."
            )
    classes = torch.cat([target.labels for target in targets]).unique().tolist()
    return sum(_precision(found, targets, k, threshold) for k in classes) / len(classes)


def _precision(
    found: Sequence[Found], targets: Sequence[Targets], label: int, threshold: float
) -> float:
    """Return the mean precision of one class at the recalls 0, 0.01, ..., 1."""
    right, scores, objects = [], [], 0
    for said, true in zip(found, targets, strict=True):
        own, boxes = said.labels == label, true.boxes[true.labels == label]
        order = said.score[own].argsort(descending=True, stable=True)[:100]  # COCO's maxDets
        right.append(_hits(said.boxes[own][order], boxes, threshold))
        scores.append(said.score[own][order])
        objects += len(boxes)
    right = torch.cat(right)[torch.cat(scores).argsort(descending=True, stable=True).cpu()]
    hits = right.cumsum(dim=0, dtype=torch.float64)
    precision = hits / torch.arange(1, len(right) + 1)
    # at a recall counts the best precision at this recall or a higher one; never reached is 0
    best = precision.flip(0).cummax(dim=0).values.flip(0) if len(right) else precision
    recalls = torch.from_numpy(np.linspace(0, 1, 101))  # to the last bit those of COCO
    reached = torch.searchsorted(hits / objects, recalls)
    return F.pad(best, (0, 1))[reached].mean().item()


def _hits(boxes: Tensor, places: Tensor, threshold: float) -> Tensor:
    """Say of boxes, the surest first, whether each has an object that no box before it took."""
    free = box_iou(boxes[:, None].double(), places.double()).cpu()  # (boxes, places)
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
            f"{where}: {name} must have 4 numbers in the last axis, x and y of the centre, width "
            f"and height, got {name}.shape={tuple(boxes.shape)}. Stack them along the last axis."
        )
    check_floating(where, name, boxes, "They are fractions of the picture.")
