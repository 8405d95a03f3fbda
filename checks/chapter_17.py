"""Checks of the exercises of chapter 17: detection."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations, product

import torch
import torch.nn.functional as F
from torch import Tensor

from checks.engine.answer import written
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.verdict import exercise, open_exercise
from utils.boxes import box_iou


@exercise("17.1", "Which shapes, and how much of nothing?")
def which_shapes(memory_shape, across_shape, scores_shape, costs_shape, say_nothing) -> Message:
    written(memory_shape, across_shape, scores_shape, costs_shape, say_nothing)
    same_shape(memory_shape, (5, 192, 40), "b n e")
    same_shape(across_shape, (5, 8, 7, 192), "b h i n")
    same_shape(scores_shape, (3, 5, 7, 12), "l b i k+1")
    same_shape(costs_shape, (7, 4), "i t")
    same_number(
        say_nothing,
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


def overlaps(first: Tensor, second: Tensor) -> Tensor:
    inner, _, areas = _areas(first, second)
    shared = inner.clamp(min=0).prod(dim=-1)
    return shared / (areas - shared)


def _areas(first: Tensor, second: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the sides that two boxes share, those of a frame around both, and both areas added."""
    a, b = first[:, None], second[None]
    inner = torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])
    outer = torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])
    areas = sum((box[..., 2:] - box[..., :2]).prod(dim=-1) for box in (a, b))
    return inner, outer, areas


def from_areas(combine: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Overlaps that make something else of shared sides, sides of a frame, and areas."""
    return lambda first, second: combine(*_areas(first, second))


def one_pixel_more(first: Tensor, second: Tensor) -> Tensor:
    """As the edges of old data sets are meant: the last pixel belongs to the box."""
    more = torch.tensor([0, 0, 1, 1]).to(first)
    return overlaps(first + more, second + more)


def as_sizes(first: Tensor, second: Tensor) -> Tensor:
    """As if the last two numbers were a width and a height."""
    both = [torch.cat([x[:, :2], x[:, :2] + x[:, 2:]], dim=1) for x in (first, second)]
    return overlaps(*both)


def as_middles(first: Tensor, second: Tensor) -> Tensor:
    """As if the numbers were a middle and a size."""
    return box_iou(first[:, None], second)


def smaller_area(first: Tensor, second: Tensor) -> Tensor:
    shared = _areas(first, second)[0].clamp(min=0).prod(dim=-1)
    own = [(x[:, 2:] - x[:, :2]).prod(dim=-1) for x in (first, second)]
    return shared / torch.minimum(own[0][:, None], own[1])


OVERLAP_MISTAKES = {
    "apart-is-not-cut-off": from_areas(lambda s, f, a: s.prod(-1) / (a - s.prod(-1))),
    "area-is-cut-off-late": from_areas(
        lambda s, f, a: s.prod(-1).clamp(min=0) / (a - s.prod(-1).clamp(min=0))
    ),
    "shared-counted-twice": from_areas(lambda s, f, a: s.clamp(min=0).prod(-1) / a),
    "shared-alone": from_areas(lambda s, f, a: s.clamp(min=0).prod(-1)),
    "divided-by-frame": from_areas(lambda s, f, a: s.clamp(min=0).prod(-1) / f.prod(-1)),
    "divided-by-smaller": smaller_area,
    "frame-for-shared": from_areas(lambda s, f, a: f.prod(-1) / (a - f.prod(-1))),
    "edges-read-as-sizes": as_sizes,
    "edges-read-as-middles": as_middles,
    "one-pixel-more": one_pixel_more,
    "second-against-first": lambda first, second: overlaps(second, first),
}


def some_edges(case: Case, axes: str) -> Tensor:
    """Boxes by their edges; some apart in one direction, some in both, some on each other."""
    start = 3 * torch.rand(case.shape(f"{axes} 2"), generator=case.generator, dtype=case.dtype)
    sides = torch.rand(case.shape(f"{axes} 2"), generator=case.generator, dtype=case.dtype)
    return torch.cat([start, start + 0.3 + 2 * sides], dim=-1)


@exercise("17.2", "Boxes by their edges")
def boxes_by_their_edges(overlaps_answer) -> Message:
    return same_function(
        overlaps_answer,
        overlaps,
        lambda case: (some_edges(case, "i"), some_edges(case, "t")),
        mistakes=OVERLAP_MISTAKES,
        loops="forbidden",
        trials=Trials(6),
    )


# ---------------------------------------------------------------------------------- all orders


def cheapest(costs: Tensor) -> Tensor:
    return best_of(costs, permutations(range(len(costs)), costs.shape[1]), min)


def best_of(costs: Tensor, orders: object, choose: Callable) -> Tensor:
    """Return the order of queries whose sum is chosen."""
    columns = range(costs.shape[1])
    return torch.tensor(choose(orders, key=lambda order: costs[list(order), columns].sum().item()))


def one_by_one(costs: Tensor) -> Tensor:
    """Give each object, in their order, the cheapest query that is left."""
    left = costs.clone()
    chosen = []
    for t in range(costs.shape[1]):
        chosen.append(left[:, t].argmin().item())
        left[chosen[-1]] = torch.inf
    return torch.tensor(chosen)


def smallest_first(costs: Tensor) -> Tensor:
    """Take the cheapest pair that is left, again and again."""
    left, chosen = costs.clone(), [0] * costs.shape[1]
    for _ in chosen:
        i, t = divmod(left.argmin().item(), costs.shape[1])
        left[i, :] = left[:, t] = torch.inf
        chosen[t] = i
    return torch.tensor(chosen)


def queries_of_objects(costs: Tensor) -> Tensor:
    """Return for each query its object, -1 for none."""
    found = torch.full((len(costs),), -1)
    found[cheapest(costs)] = torch.arange(costs.shape[1])
    return found


ORDER_MISTAKES = {
    "each-for-itself": lambda costs: costs.argmin(dim=0),
    "objects-one-by-one": one_by_one,
    "cheapest-pair-first": smallest_first,
    "dearest": lambda costs: best_of(costs, permutations(range(len(costs)), costs.shape[1]), max),
    "first-queries-only": lambda costs: best_of(costs, permutations(range(costs.shape[1])), min),
    "a-query-used-twice": lambda costs: best_of(
        costs, product(range(len(costs)), repeat=costs.shape[1]), min
    ),
    "objects-of-queries": queries_of_objects,
    "queries-are-sorted": lambda costs: cheapest(costs).sort().values,
    "returns-the-sum": lambda costs: costs[cheapest(costs), range(costs.shape[1])].sum(),
}


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
    scores: Tensor, labels: Tensor, queries: Tensor, objects: Tensor, nothing: float
) -> Tensor:
    return weighed(scores, labels, queries, objects, nothing)


def weighed(
    scores: Tensor,
    labels: Tensor,
    queries: Tensor,
    objects: Tensor,
    nothing: float,
    *,
    last: int = -1,
    mean: str = "weights",
    log: Callable = lambda scores: scores.log_softmax(dim=-1),
    matched: float = 1.0,
) -> Tensor:
    """The class loss, with pieces that can be made wrong."""
    empty = last % scores.shape[1]
    wanted = torch.full((len(scores),), empty)
    wanted[queries] = labels[objects]
    weights = torch.full((len(scores),), nothing, dtype=scores.dtype)
    weights[queries] = matched
    said = -log(scores)[torch.arange(len(scores)), wanted]
    total = (weights * said).sum()
    return {
        "weights": total / weights.sum(),
        "queries": total / len(scores),
        "objects": total / len(queries),
        "sum": total,
    }[mean]


def changed(**options: object) -> Callable[..., Tensor]:
    return lambda *args: weighed(*args, **options)


def no_others(scores, labels, queries, objects, nothing) -> Tensor:
    """Only the matched queries count."""
    return F.cross_entropy(scores[queries], labels[objects])


CLASS_MISTAKES = {
    "labels-in-their-own-order": lambda s, k, i, t, w: weighed(s, k, i, torch.arange(len(i)), w),
    "queries-in-their-own-order": lambda s, k, i, t, w: weighed(s, k, torch.arange(len(i)), t, w),
    "nothing-counts-fully": lambda s, k, i, t, w: weighed(s, k, i, t, 1.0),
    "nothing-does-not-count": no_others,
    "nothing-is-class-0": changed(last=0),
    "mean-over-queries": changed(mean="queries"),
    "mean-over-objects": changed(mean="objects"),
    "sum-not-mean-of-answers": changed(mean="sum"),
    "weights-exchanged": lambda s, k, i, t, w: weighed(s, k, i, t, 1.0, matched=w),
    "scores-are-not-probabilities": changed(log=lambda scores: scores),
    "softmax-over-queries-of-scores": changed(log=lambda scores: scores.log_softmax(dim=0)),
    "logarithm-is-missing": changed(log=lambda scores: scores.softmax(dim=-1)),
    "softmax-twice-of-answers": changed(
        log=lambda scores: scores.softmax(dim=-1).log_softmax(dim=-1)
    ),
    "sign-of-the-loss": lambda *args: -weighed(*args),
}


@exercise("17.4", "What each query should have said")
def what_each_should_have_said(class_loss_answer) -> Message:
    def inputs(case: Case) -> tuple:
        i, k = 5 + case.random.randrange(3), 3 + case.random.randrange(4)
        t = 2 + case.random.randrange(2)
        scores = torch.randn(i, k + 1, generator=case.generator, dtype=case.dtype)
        labels = torch.randperm(k, generator=case.generator)[:t]
        queries = torch.randperm(i, generator=case.generator)[:t].sort().values
        objects = torch.arange(t).roll(1)
        return 2 * scores, labels, queries, objects, case.random.choice([0.1, 0.2, 0.4])

    return same_function(
        class_loss_answer, class_loss, inputs, mistakes=CLASS_MISTAKES, trials=Trials(6)
    )


# ---------------------------------------------------------------------------------- hits, removal


def some_boxes(case: Case, number: int) -> Tensor:
    """Boxes (number, 4), middle and size, that crowd around a few places."""
    around = torch.rand(2, 2, generator=case.generator, dtype=case.dtype)
    which = torch.randint(2, (number,), generator=case.generator)
    middle = around[which] + 0.08 * torch.randn(
        number, 2, generator=case.generator, dtype=case.dtype
    )
    side = 0.3 + 0.1 * torch.rand(number, 2, generator=case.generator, dtype=case.dtype)
    return torch.cat([middle, side], dim=1)


def hits(boxes: Tensor, places: Tensor, threshold: float) -> Tensor:
    return taking(boxes, places, threshold)


def taking(
    boxes: Tensor,
    places: Tensor,
    threshold: float,
    *,
    taken: str = "from all",
    least: Callable = lambda value, threshold: value >= threshold,
    choose: Callable = torch.argmax,
) -> Tensor:
    """Say which boxes find a place of their own, with pieces that can be made wrong."""
    free = box_iou(boxes[:, None], places)
    right = torch.zeros(len(boxes), dtype=torch.bool)
    used: set[int] = set()
    for n, row in enumerate(free):
        place = choose(row).item()
        if least(row[place], threshold) and place not in used:
            right[n] = True
            if taken == "from all":
                free[:, place] = -1
            elif taken == "once":
                used.add(place)
    return right


def last_is_right(boxes: Tensor, places: Tensor, threshold: float) -> Tensor:
    return taking(boxes.flip(0), places, threshold).flip(0)


HIT_MISTAKES = {
    "twice-is-still-right": lambda b, p, s: taking(b, p, s, taken="never"),
    "taken-place-not-left-aside": lambda b, p, s: taking(b, p, s, taken="once"),
    "least-sure-takes-first": last_is_right,
    "first-place-that-fits": lambda b, p, s: taking(
        b, p, s, choose=lambda row: (row >= s).double().argmax()
    ),
    "twice-is-left-out": lambda b, p, s: taking(b, p, s)[
        taking(b, p, s) == taking(b, p, s, taken="never")
    ],
    "all-after-one-are-wrong": lambda b, p, s: taking(b, p, s) & (taking(b, p, s).cumsum(0) <= 1),
    "threshold-turned-around": lambda b, p, s: taking(
        b, p, s, least=lambda value, threshold: 0 <= value < threshold
    ),
    "threshold-is-half": lambda b, p, s: taking(b, p, 0.5),
}


@exercise("17.5", "Find the bug")
def find_the_bug(hits_answer) -> Message:
    def inputs(case: Case) -> tuple:
        boxes = some_boxes(case, 7 + case.random.randrange(3))
        places = torch.cat([0.3 * some_boxes(case, 3) + 0.7 * boxes[:3], boxes[-1:]])
        # the last place overlaps the last box by exactly 1
        return boxes, places, case.random.choice([0.3, 0.4, 0.6, 1.0])

    return same_function(
        hits_answer, hits, inputs, mistakes=HIT_MISTAKES, gradients=False, trials=Trials(12)
    )


def suppress(boxes: Tensor, sure: Tensor, threshold: float) -> Tensor:
    return keeping(boxes, sure, threshold)


def keeping(
    boxes: Tensor,
    sure: Tensor,
    threshold: float,
    *,
    against: str = "kept",
    descending: bool = True,
    turned: bool = False,
) -> Tensor:
    """Return the boxes that are kept, with pieces that can be made wrong."""
    kept: list[int] = []
    order = sure.argsort(descending=descending).tolist()
    for n, i in enumerate(order):
        others = {
            "kept": kept,
            "all": order[:n],
            "last": kept[-1:],
            "before": order[max(0, n - 1) : n],
        }
        shared = [box_iou(boxes[i], boxes[j]).item() for j in others[against]]
        if all((value <= threshold) != turned for value in shared):
            kept.append(i)
    return torch.tensor(kept)


def in_given_order(boxes: Tensor, sure: Tensor, threshold: float) -> Tensor:
    return keeping(boxes, -torch.arange(len(boxes)).to(boxes), threshold)


def as_truths(boxes: Tensor, sure: Tensor, threshold: float) -> Tensor:
    return torch.isin(torch.arange(len(boxes)), keeping(boxes, sure, threshold))


SUPPRESS_MISTAKES = {
    "suppressed-ones-suppress": lambda b, s, x: keeping(b, s, x, against="all"),
    "only-last-kept-suppresses": lambda b, s, x: keeping(b, s, x, against="last"),
    "only-one-before-suppresses": lambda b, s, x: keeping(b, s, x, against="before"),
    "least-sure-first": lambda b, s, x: keeping(b, s, x, descending=False),
    "not-sorted-by-sureness": in_given_order,
    "suppress-turned-around": lambda b, s, x: keeping(b, s, x, turned=True),
    "threshold-is-half": lambda b, s, x: keeping(b, s, 0.5),
    "kept-are-sorted": lambda b, s, x: keeping(b, s, x).sort().values,
    "truths-for-numbers": as_truths,
    "boxes-for-numbers": lambda b, s, x: b[keeping(b, s, x)],
}


@exercise("17.6", "What other detectors need")
def what_others_need(suppress_answer) -> Message:
    def inputs(case: Case) -> tuple:
        number = 8 + case.random.randrange(4)
        boxes = some_boxes(case, number)
        boxes[0] = boxes[-1]  # overlaps it by exactly 1
        sure = torch.rand(number, generator=case.generator, dtype=case.dtype)
        return boxes, sure, case.random.choice([0.35, 0.6, 1.0])

    return same_function(
        suppress_answer,
        suppress,
        inputs,
        mistakes=SUPPRESS_MISTAKES,
        gradients=False,
        trials=Trials(8),
    )


open_exercise("17.7", "A question of your own")
