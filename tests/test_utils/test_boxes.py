"""Boxes: areas by counting pixels, and AP equal to COCO's own code."""

import io
from contextlib import redirect_stdout

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from helpers import error_of
from utils.boxes import (
    Found,
    Targets,
    average_precision,
    box_cxcywh_to_xyxy,
    box_iou,
    generalized_box_iou,
)

sides = st.integers(1, 9)
whole_boxes = st.tuples(st.integers(0, 9), st.integers(0, 9), sides, sides)


def as_box(left, top, width, height):
    return torch.tensor([left + width / 2, top + height / 2, width, height]) / 20


def as_pixels(left, top, width, height):
    pixels = torch.zeros(20, 20, dtype=torch.bool)
    pixels[top : top + height, left : left + width] = True
    return pixels


def frame(*pixels):
    """The smallest box of pixels around some others."""
    rows, columns = torch.stack(pixels).any(dim=0).nonzero().unbind(1)
    high, wide = rows.max() - rows.min() + 1, columns.max() - columns.min() + 1
    return (high * wide).item()


def test_corners_and_back():
    boxes = torch.tensor([[0.5, 0.25, 0.2, 0.1], [0.1, 0.9, 0.2, 0.2]])
    edges = box_cxcywh_to_xyxy(boxes)
    torch.testing.assert_close(edges[0], torch.tensor([0.4, 0.2, 0.6, 0.3]))
    back = torch.cat([(edges[:, :2] + edges[:, 2:]) / 2, edges[:, 2:] - edges[:, :2]], dim=1)
    torch.testing.assert_close(back, boxes)


@settings(max_examples=50, deadline=None)
@given(whole_boxes, whole_boxes)
def test_overlap_counts_pixels(first, second):
    a, b = as_pixels(*first), as_pixels(*second)
    shared, covered, around = (a & b).sum().item(), (a | b).sum().item(), frame(a, b)
    boxes = as_box(*first), as_box(*second)
    assert box_iou(*boxes).item() == pytest.approx(shared / covered, abs=1e-5)
    wanted = shared / covered - (around - covered) / around
    assert generalized_box_iou(*boxes).item() == pytest.approx(wanted, abs=1e-5)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 1000))
def test_what_must_hold_for_all_boxes(seed):
    generator = torch.Generator().manual_seed(seed)
    a, b = torch.rand(2, 5, 4, generator=generator)
    for measure in (box_iou, generalized_box_iou):
        value = measure(a[:, None], b)
        assert value.shape == (5, 5) and value.max() <= 1 + 1e-6 and value.min() >= -1
        torch.testing.assert_close(value, measure(b[:, None], a).T)
        torch.testing.assert_close(measure(a, a), torch.ones(5))
        away = torch.tensor([0.3, -0.2, 0, 0])
        torch.testing.assert_close(measure(a + away, b + away), measure(a, b), rtol=0, atol=1e-5)
        torch.testing.assert_close(measure(7 * a, 7 * b), measure(a, b), rtol=0, atol=1e-5)
    assert (generalized_box_iou(a, b) <= box_iou(a, b) + 1e-6).all()


def test_apart_only_the_generalized_overlap_has_a_gradient():
    b = torch.tensor([0.8, 0.8, 0.1, 0.1])
    for measure, moved in ((box_iou, False), (generalized_box_iou, True)):
        a = torch.tensor([0.2, 0.2, 0.1, 0.1], requires_grad=True)
        measure(a, b).backward()
        assert a.grad.isfinite().all() and a.grad.any().item() is moved
    nearer = generalized_box_iou(torch.tensor([0.6, 0.6, 0.1, 0.1]), b)
    assert nearer > generalized_box_iou(a, b)


def test_boxes_without_area():
    point = torch.tensor([0.5, 0.5, 0.0, 0.0], requires_grad=True)
    for measure in (box_iou, generalized_box_iou):
        value = measure(point, point)
        value.backward()
        assert value.item() == 0 and point.grad.isfinite().all()


# --- AP


def of_coco(found, targets, threshold=0.5):
    """AP by COCO's own code, on a picture of 1000 x 1000 pixels."""

    def entry(n, label, box):
        left, top, right, bottom = (1000 * box_cxcywh_to_xyxy(box.double())).tolist()
        rectangle = [left, top, right - left, bottom - top]
        return {"image_id": n, "category_id": int(label), "bbox": rectangle, "iscrowd": 0}

    truth = [
        {**entry(n, k, box), "area": 1e4}
        for n, target in enumerate(targets)
        for k, box in zip(target.labels, target.boxes, strict=True)
    ]
    said = [
        {**entry(n, k, box), "score": float(sure)}
        for n, one in enumerate(found)
        for k, box, sure in zip(*one, strict=True)
    ]
    kinds = {int(k) for target in targets for k in target.labels}
    coco = COCO()
    coco.dataset = {
        "images": [{"id": n} for n in range(len(targets))],
        "annotations": [{**one, "id": n} for n, one in enumerate(truth, start=1)],
        "categories": [{"id": k} for k in kinds],
    }
    with redirect_stdout(io.StringIO()):
        coco.createIndex()
        judge = COCOeval(coco, coco.loadRes([s for s in said if s["category_id"] in kinds]), "bbox")
        judge.params.iouThrs = [threshold]
        judge.evaluate()
        judge.accumulate()
    return judge.eval["precision"][0, :, :, 0, 2].mean()


def some_answers(seed, pictures=12, answers=7, classes=4):
    """Answers that are partly right, partly twice, partly nonsense, with sureness of two digits."""
    generator = torch.Generator().manual_seed(seed)

    def rand(*shape):
        return torch.rand(*shape, generator=generator)

    found, targets = [], []
    for n in range(pictures):
        count = 1 + n % 4 if n != 3 else 0
        boxes = 0.15 + 0.5 * rand(count, 4)
        labels = torch.randint(classes, (count,), generator=generator)
        which = torch.randint(max(1, count), (answers,), generator=generator)
        near = boxes[which] if count else rand(answers, 4)
        wrong = rand(answers) < 0.3
        kinds = labels[which] if count else torch.zeros(answers, dtype=torch.int64)
        kinds = torch.where(
            wrong, torch.randint(classes + 1, (answers,), generator=generator), kinds
        )
        moved = near + 0.12 * (rand(answers, 4) - 0.5)
        found.append(Found(kinds, moved, (100 * rand(answers)).round() / 100))
        targets.append(Targets(labels, boxes))
    return found, targets


def test_of_many_answers_the_best_hundred_of_each_class_count():
    found, targets = some_answers(0, pictures=4, answers=400, classes=2)
    ours = average_precision(found, targets)
    assert ours == pytest.approx(of_coco(found, targets), abs=1e-9)
    assert max((one.labels == k).sum() for one in found for k in (0, 1)) > 150
    plain = [tuple(one) for one in found], [tuple(one) for one in targets]
    assert average_precision(*plain) == ours, "tuples without names will do"


@pytest.mark.parametrize("seed, threshold", [(0, 0.5), (1, 0.75), (2, 0.5), (3, 0.75)])
def test_average_precision_is_that_of_coco(seed, threshold):
    found, targets = some_answers(seed)
    ours = average_precision(found, targets, threshold)
    assert 0.01 < ours < 0.95, "neither all right nor all wrong"
    assert ours == pytest.approx(of_coco(found, targets, threshold), abs=1e-9)


def one(label, box, sure=0.9):
    return Found(torch.tensor([label]), torch.tensor([box]), torch.tensor([sure]))


BOX, NEAR, FAR = [0.5, 0.5, 0.2, 0.2], [0.51, 0.5, 0.2, 0.2], [0.1, 0.1, 0.1, 0.1]
TRUE = Targets(torch.tensor([2]), torch.tensor([BOX]))
EMPTY = Targets(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4))


def joined(*answers):
    return Found(*(torch.cat(parts) for parts in zip(*answers, strict=True)))


@pytest.mark.parametrize(
    "answers, expected",
    [
        ([one(2, BOX)], 1.0),
        ([one(1, BOX)], 0.0),
        ([one(2, FAR)], 0.0),
        ([one(2, BOX, 0.9), one(2, NEAR, 0.8)], 1.0),  # wrong, but less sure than the right one
        ([one(2, FAR, 0.95), one(2, BOX, 0.9)], 0.5),
        ([one(2, FAR, 0.1), one(2, BOX, 0.9)], 1.0),
        ([one(1, FAR, 0.99), one(2, BOX, 0.9)], 1.0),  # no object of class 1: it has no AP
    ],
)
def test_average_precision_by_hand(answers, expected):
    assert average_precision([joined(*answers)], [TRUE]) == pytest.approx(expected)


def test_a_second_box_on_one_object_is_wrong():
    twice = joined(one(2, BOX, 0.9), one(2, NEAR, 0.8))
    later = one(2, BOX, 0.7)
    # right, wrong, right: the precision at full recall is 2/3
    value = average_precision([twice, later], [TRUE, TRUE])
    assert value == pytest.approx((51 + 50 * 2 / 3) / 101)


@pytest.mark.parametrize("misses, expected", [(99, 0.01), (100, 0.0)])
def test_a_box_after_the_hundredth_of_its_class_does_not_count(misses, expected):
    found = [joined(*[one(2, FAR, 0.9)] * misses, one(2, BOX, 0.1))]
    value = average_precision(found, [TRUE])
    assert value == pytest.approx(expected)
    assert value == pytest.approx(of_coco(found, [TRUE]), abs=1e-9)


def test_an_answer_where_nothing_stands_is_wrong():
    answers = [one(2, BOX, 0.5), one(2, BOX, 0.8)]
    assert average_precision(answers, [TRUE, EMPTY]) == pytest.approx(0.5)


@pytest.mark.parametrize(
    "call, said",
    [
        (
            lambda: box_cxcywh_to_xyxy(torch.zeros(3)),
            "box_cxcywh_to_xyxy: boxes must have 4 numbers",
        ),
        (lambda: box_iou(torch.zeros(4), torch.zeros(2, 5)), "box_iou: second must have 4"),
        (lambda: generalized_box_iou(torch.zeros(2), torch.zeros(4)), "first must have 4"),
        (lambda: average_precision([], []), "0 objects"),
        (lambda: average_precision([one(2, BOX)], [TRUE, TRUE]), "got 1 found, 2 targets"),
        (lambda: average_precision([one(2, BOX)], [EMPTY]), "0 objects"),
        (lambda: average_precision([one(2, BOX)], [TRUE], 0.0), "threshold=0.0"),
        (lambda: average_precision([one(2, BOX, torch.nan)], [TRUE]), "none NaN"),
        (
            lambda: average_precision([one(2, BOX)._replace(score=torch.ones(2))], [TRUE]),
            "got (1, 1, 2) of them in picture 0",
        ),
        (lambda: box_iou(torch.ones(4).int(), torch.zeros(4)), "first must hold floating point"),
        (lambda: average_precision([one(2, BOX)], [TRUE], 1.5), "threshold=1.5"),
    ],
)
def test_bad_input(call, said):
    assert said in error_of(call)
