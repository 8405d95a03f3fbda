"""Checks of the exercises of chapter 17: detection."""

from __future__ import annotations

from itertools import permutations

import torch
from torch import Tensor

from checks.engine.answer import written
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.patches import patches
from checks.engine.verdict import exercise, open_exercise
from utils.boxes import box_iou


@exercise("17.1", "Which shapes, and how many queries without an object?")
def which_shapes(memory_shape, cross_shape, logits_shape, costs_shape, no_object_count) -> Message:
    written(memory_shape, cross_shape, logits_shape, costs_shape, no_object_count)
    same_shape(memory_shape, (5, 192, 40), "b n e")
    same_shape(cross_shape, (5, 8, 7, 192), "b h i n")
    same_shape(logits_shape, (3, 5, 7, 12), "l b i k+1")
    same_shape(costs_shape, (7, 4), "i t")
    same_number(
        no_object_count,
        15,
        0.5,
        "queries-that-say-nothing",
        known={
            13: "nobody-lends-queries",
            45: "counted-in-every-block",
            20: "more-objects-than-queries",
            22: "objects-counted",
            35: "all-queries-counted",
        },
    )
    return message("detector-shapes-right")


# ---------------------------------------------------------------------------------- the boxes


def pairwise_iou(first: Tensor, second: Tensor) -> Tensor:
    a, b = first[:, None], second[None]
    inner = torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    shared = inner.clamp(min=0).prod(dim=-1)
    area_a = (a[..., 2:] - a[..., :2]).prod(dim=-1)
    area_b = (b[..., 2:] - b[..., :2]).prod(dim=-1)
    return shared / (area_a + area_b - shared)


INNER = "torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])"
FRAME = "torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])"
UNION = "(area_a + area_b - shared)"
PAIR, LAST_TWO = "first[:, None], second[None]", "torch.tensor([0, 0, 1, 1])"
IOU_MISTAKES = patches(
    pairwise_iou,
    {
        "apart-is-not-cut-off": (".clamp(min=0)", ""),
        "area-is-cut-off-late": (".clamp(min=0).prod(dim=-1)", ".prod(dim=-1).clamp(min=0)"),
        "shared-counted-twice": (" - shared", ""),
        "shared-alone": (f" / {UNION}", ""),
        "divided-by-frame": (UNION, f"({FRAME}).prod(dim=-1)"),
        "divided-by-one-box": [(UNION, f"torch.{m}imum(area_a, area_b)") for m in ("min", "max")],
        "frame-for-shared": (INNER, FRAME),
        "edges-read-as-sizes": (PAIR, f"(x + x.roll(2, -1) * {LAST_TWO} for x in ({PAIR}))"),
        "edges-read-as-middles": (f"shared / {UNION}", "box_iou(a, b)"),
        "one-pixel-more": (PAIR, f"(x + {LAST_TWO} for x in ({PAIR}))"),
        "second-against-first": (PAIR, "second[:, None], first[None]"),
    },
)


def some_edges(case: Case, axes: str) -> Tensor:
    """Boxes by their edges; some apart in one direction, some in both, some overlapping."""
    one, two = torch.rand((2, *case.shape(f"{axes} 2")), generator=case.generator, dtype=case.dtype)
    return torch.cat([3 * one, 3 * one + 0.3 + 2 * two], dim=-1)


@exercise("17.2", "Boxes by their edges")
def boxes_by_their_edges(iou_answer) -> Message:
    return same_function(
        iou_answer,
        pairwise_iou,
        lambda case: (some_edges(case, "i"), some_edges(case, "t")),
        mistakes=IOU_MISTAKES,
        loops="forbidden",
        trials=Trials(6),
    )


# ---------------------------------------------------------------------------------- all orders


def cheapest(costs: Tensor) -> Tensor:
    columns = range(costs.shape[1])
    orders = permutations(range(len(costs)), costs.shape[1])
    best = min(orders, key=lambda order: costs[list(order), columns].sum().item())
    return torch.tensor(best)


BEST = "torch.tensor(best)"
ORDER_MISTAKES = patches(
    cheapest,
    {
        "each-for-itself": (BEST, "costs.argmin(dim=0)"),
        "objects-one-by-one": (".sum().item()", ".tolist()"),
        "cheapest-pair-first": (".sum().item()", ".sort().values.tolist()"),
        "dearest": ("min(", "max("),
        "combinations-not-orders": ("min(orders", "min((o for o in orders if o == (*sorted(o),))"),
        "first-queries-only": ("range(len(costs)), costs.shape[1]", "columns"),
        "objects-of-queries": (
            BEST,
            "torch.tensor([best.index(i) if i in best else -1 for i in range(len(costs))])",
        ),
        "queries-are-sorted": (BEST, "torch.tensor(sorted(best))"),
        "returns-the-sum": (BEST, "costs[list(best), columns].sum()"),
    },
)


@exercise("17.3", "Try all orders")
def try_all_orders(cheapest_answer) -> Message:
    def inputs(case: Case) -> tuple:
        t = 2 + case.random.randrange(3)
        i = t + 1 + case.random.randrange(2)
        # close to one another, so that what is cheapest for one object is so for others
        return (
            torch.rand(i, t, generator=case.generator, dtype=case.dtype) + case.randn("one")[0],
        )

    return same_function(
        cheapest_answer, cheapest, inputs, mistakes=ORDER_MISTAKES, trials=Trials(8)
    )


# ---------------------------------------------------------------------------------- the class loss


def class_loss(
    logits: Tensor, labels: Tensor, queries: Tensor, objects: Tensor, no_object_weight: float
) -> Tensor:
    n = len(logits)
    wanted = torch.full((n,), logits.shape[1] - 1)
    wanted[queries] = labels[objects]
    weights = torch.full((n,), no_object_weight, dtype=logits.dtype)
    weights[queries] = 1.0
    losses = -logits.log_softmax(dim=-1)[torch.arange(n), wanted]
    return (weights * losses).sum() / weights.sum()


CROSS_ENTROPY = dict.fromkeys(["cross_entropy", "nll_loss"], "write-its-three-steps")
LOG = ".log_softmax(dim=-1)"
CLASS_MISTAKES = patches(
    class_loss,
    {
        "labels-in-their-own-order": ("labels[objects]", "labels"),
        "queries-in-their-own-order": ("[queries]", "[: len(queries)]"),
        "nothing-counts-fully": ("no_object_weight, dtype", "1.0, dtype"),
        "nothing-does-not-count": ("no_object_weight, dtype", "0.0, dtype"),
        "nothing-is-class-0": ("logits.shape[1] - 1", "0"),
        "mean-over-queries": ("weights.sum()", "n"),
        "mean-over-objects": ("weights.sum()", "len(queries)"),
        "sum-not-mean-of-answers": (" / weights.sum()", ""),
        "weights-exchanged": ("= 1.0", "= 1.0; weights = 1 + no_object_weight - weights"),
        "scores-are-not-probabilities": (LOG, ""),
        "softmax-over-queries-of-scores": (LOG, ".log_softmax(dim=0)"),
        "logarithm-is-missing": (LOG, ".softmax(dim=-1)"),
        "softmax-twice-of-answers": (LOG, f".softmax(dim=-1){LOG}"),
        "sign-of-the-loss": ("-logits", "logits"),
    },
)


@exercise("17.4", "What each query should have predicted")
def what_each_should_have_said(class_loss_answer) -> Message:
    def inputs(case: Case) -> tuple:
        i, k, t = (least + case.random.randrange(3) for least in (5, 3, 2))
        logits = torch.randn(i, k + 1, generator=case.generator, dtype=case.dtype)
        labels = torch.randperm(k, generator=case.generator)[:t]
        queries = torch.randperm(i, generator=case.generator)[:t].sort().values
        objects = torch.arange(t).roll(1)
        return 2 * logits, labels, queries, objects, case.random.choice([0.1, 0.2, 0.4])

    return same_function(
        class_loss_answer,
        class_loss,
        inputs,
        mistakes=CLASS_MISTAKES,
        forbidden=CROSS_ENTROPY,
        trials=Trials(6),
    )


# ---------------------------------------------------------------------------------- hits, removal


HALF = torch.tensor([1, 1, 1, 0.5])  # multiples of 1/64: the IoU with such a half is exactly 0.5


def some_boxes(case: Case, number: int) -> Tensor:
    """Boxes (number, 4), centre and size, clustered around two points; the last one is alone."""
    around = torch.rand(2, 2, generator=case.generator, dtype=case.dtype)
    which = torch.randint(2, (number,), generator=case.generator)
    moved, more = torch.rand(2, number, 2, generator=case.generator, dtype=case.dtype)
    boxes = torch.cat([around[which] + 0.3 * moved, 0.3 + 0.1 * more], dim=1)
    boxes[-1, 0] += 2
    return (64 * boxes).round() / 64


def hits(boxes: Tensor, truth: Tensor, threshold: float) -> Tensor:
    iou = box_iou(boxes[:, None], truth)
    correct = torch.zeros(len(boxes), dtype=torch.bool)
    for n in range(len(boxes) if len(truth) else 0):
        best = iou[n].argmax()
        if iou[n, best] >= threshold:
            correct[n] = True
            iou[:, best] = -1
    return correct


TAKEN, FITS = "iou[:, best] = -1", "(iou[n] >= threshold)"
IOU, RETURN = "box_iou(boxes[:, None], truth)", "return correct"
HIT_MISTAKES = patches(
    hits,
    {
        "twice-is-still-right": (TAKEN, "pass"),
        "takes-all-that-fit": (TAKEN, f"iou[:, {FITS}] = -1"),
        "taken-place-not-left-aside": ("iou[n].argmax", "box_iou(boxes[n], truth).argmax"),
        "least-sure-takes-first": ("in range", "in reversed(range", "else 0):", "else 0)):"),
        "not-the-best-that-fits": [
            ("iou[n].argmax()", f"{FITS}.double().argmax()"),
            ("iou[n].argmax()", f"({FITS} * torch.arange(1, len(truth) + 1)).argmax()"),
            ("iou[n].argmax()", f"(iou[n] + 9 * ~{FITS}).argmin()"),
        ],
        "twice-is-left-out": (RETURN, f"{RETURN}[correct | ({IOU} < threshold).all(dim=1)]"),
        "all-after-one-are-wrong": (RETURN, f"{RETURN} & (correct.cumsum(0) <= 1)"),
        "threshold-turned-around": ("iou[n, best] >= threshold", "0 <= iou[n, best] < threshold"),
        "threshold-is-half": (">= threshold", ">= 0.5"),
        "threshold-is-left-out": (">= threshold", "> threshold"),
    },
)


@exercise("17.5", "Find the bug")
def find_the_bug(hits_answer) -> Message:
    def inputs(case: Case) -> tuple:
        boxes = some_boxes(case, 9 + case.random.randrange(3))
        truth = torch.cat([0.2 * some_boxes(case, 5)[:4] + 0.8 * boxes[:4], boxes[-1:] * HALF])
        truth = truth[torch.randperm(5, generator=case.generator)]
        truth = truth[: case.random.choice([5, 5, 0])]  # or no object at all
        return boxes, truth, case.random.choice([0.3, 0.4, 0.5])

    return same_function(
        hits_answer, hits, inputs, mistakes=HIT_MISTAKES, gradients=False, trials=Trials(20)
    )


def suppress(boxes: Tensor, confidence: Tensor, threshold: float) -> Tensor:
    kept: list[int] = []
    order = confidence.argsort(descending=True).tolist()
    for i in order:
        if all(box_iou(boxes[i], boxes[j]) <= threshold for j in kept):
            kept.append(i)
    return torch.tensor(kept)


KEPT, ORDER = "torch.tensor(kept)", "confidence.argsort(descending=True).tolist()"
SUPPRESS_MISTAKES = patches(
    suppress,
    {
        "suppressed-ones-suppress": ("in kept", "in order[: order.index(i)]"),
        "only-last-kept-suppresses": ("in kept", "in kept[-1:]"),
        "only-one-before-suppresses": ("in kept", "in order[: order.index(i)][-1:]"),
        "least-sure-first": ("descending=True", "descending=False"),
        "not-sorted-by-sureness": (ORDER, "range(len(boxes))"),
        "suppress-turned-around": ("<=", ">"),
        "threshold-is-half": ("<= threshold", "<= 0.5"),
        "same-as-threshold-goes": ("<= threshold", "< threshold"),
        "kept-are-sorted": (KEPT, "torch.tensor(sorted(kept))"),
        "truths-for-numbers": (KEPT, f"torch.isin(torch.arange(len(boxes)), {KEPT})"),
        "boxes-for-numbers": (KEPT, "boxes[kept]"),
    },
)


@exercise("17.6", "What other detectors need")
def what_others_need(suppress_answer) -> Message:
    def inputs(case: Case) -> tuple:
        boxes = some_boxes(case, 8 + case.random.randrange(4))
        boxes[0] = boxes[-1] * HALF
        confidence = torch.rand(len(boxes), generator=case.generator, dtype=case.dtype)
        return boxes, confidence, case.random.choice([0.35, 0.5, 0.6])

    return same_function(
        suppress_answer,
        suppress,
        inputs,
        mistakes=SUPPRESS_MISTAKES,
        gradients=False,
        trials=Trials(8),
    )


open_exercise("17.7", "A question of your own")
