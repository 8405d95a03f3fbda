"""Answers to the exercises of chapter 17, right and wrong."""

from exercise_bank import Bank, code, swap

SHARED = "(end - start).clamp(min=0).prod(dim=-1)"
COVERED = "(area_a + area_b - shared)"
WANTED = "wanted[queries] = labels[objects]"
MEAN = "(weights * surprise).sum() / weights.sum()"
LOG = "scores.log_softmax(dim=-1)"
KEPT = "all(shared[n, other] <= threshold for other in kept)"

BANK = {
    "17.1": Bank(
        wrong=[
            swap("(5, 12 * 16, 40)", "(5, 193, 40)", cause="look-at-axes n"),
            swap("(5, 12 * 16, 40)", "(5, 40, 192)", cause="sizes-in-another-order"),
            swap("(5, 12 * 16, 40)", "(5, 12, 16, 40)", cause="number-of-axes"),
            swap("(5, 8, 7, 192)", "(5, 8, 192, 7)", cause="sizes-in-another-order"),
            swap("(5, 8, 7, 192)", "(5, 8, 7, 7)", cause="look-at-axes n"),
            swap("(3, 5, 7, 12)", "(3, 5, 7, 11)", cause="look-at-axes"),
            swap("(3, 5, 7, 12)", "(5, 7, 12)", cause="number-of-axes"),
            swap("(7, 4)", "(4, 7)", cause="sizes-in-another-order"),
            swap("3 + 7 + 5", "35 - 22", cause="nobody-lends-queries"),
            swap("3 + 7 + 5", "3 * 15", cause="counted-in-every-block"),
            swap("3 + 7 + 5", "22", cause="objects-counted"),
            swap("3 + 7 + 5", "5 * 7", cause="all-queries-counted"),
        ],
        right=[
            swap("3 + 7 + 5", "15"),
            code(
                """
                memory_shape, across_shape = (5, 192, 40), (5, 8, 7, 192)
                scores_shape, costs_shape = [3, 5, 7, 12], (7, 4)
                say_nothing = sum(max(0, 7 - t) for t in (4, 0, 9, 2, 7))
                """
            ),
        ],
    ),
    "17.2": Bank(
        wrong=[
            swap(SHARED, "(end - start).prod(dim=-1)", cause="apart-is-not-cut-off"),
            swap(SHARED, "(end - start).prod(dim=-1).clamp(min=0)", cause="area-is-cut-off-late"),
            swap(COVERED, "(area_a + area_b)", cause="shared-counted-twice"),
            swap(f"shared / {COVERED}", "shared", cause="shared-alone"),
            swap(COVERED, "torch.minimum(area_a, area_b)", cause="divided-by-smaller"),
            swap(
                "first[:, None], second[None]",
                "second[:, None], first[None]",
                cause="second-against-first",
            ),
            code(
                """
                def overlaps(first, second):
                    return box_iou(first[:, None], second)
                """,
                cause="edges-read-as-middles",
            ),
            code(
                """
                def overlaps(first, second):
                    a, b = first[:, None], second[None]
                    start = torch.minimum(a[..., :2], b[..., :2])
                    end = torch.maximum(a[..., 2:], b[..., 2:])
                    shared = (end - start).clamp(min=0).prod(dim=-1)
                    area_a = (a[..., 2:] - a[..., :2]).prod(dim=-1)
                    area_b = (b[..., 2:] - b[..., :2]).prod(dim=-1)
                    return shared / (area_a + area_b - shared)
                """,
                cause="frame-for-shared",
            ),
            code(
                """
                def overlaps(first, second):
                    a, b = first[:, None], second[None]
                    start = torch.maximum(a[..., :2], b[..., :2])
                    end = torch.minimum(a[..., 2:], b[..., 2:])
                    shared = (end - start + 1).clamp(min=0).prod(dim=-1)
                    area_a = (a[..., 2:] - a[..., :2] + 1).prod(dim=-1)
                    area_b = (b[..., 2:] - b[..., :2] + 1).prod(dim=-1)
                    return shared / (area_a + area_b - shared)
                """,
                cause="one-pixel-more",
            ),
            code(
                """
                def overlaps(first, second):
                    rows = []
                    for box in first:
                        start = torch.maximum(box[:2], second[:, :2])
                        end = torch.minimum(box[2:], second[:, 2:])
                        shared = (end - start).clamp(min=0).prod(dim=-1)
                        area = (box[2:] - box[:2]).prod()
                        areas = area + (second[:, 2:] - second[:, :2]).prod(dim=-1)
                        rows.append(shared / (areas - shared))
                    return torch.stack(rows)
                """,
                cause="loops-and-may-not",
            ),
        ],
        right=[
            code(
                """
                def overlaps(first, second):
                    def middle(x):
                        return torch.cat([(x[:, :2] + x[:, 2:]) / 2, x[:, 2:] - x[:, :2]], dim=1)

                    return box_iou(middle(first)[:, None], middle(second))
                """
            ),
            code(
                """
                def overlaps(first, second):
                    l1, t1, r1, b1 = first[:, None].unbind(-1)
                    l2, t2, r2, b2 = second.unbind(-1)
                    wide = (torch.minimum(r1, r2) - torch.maximum(l1, l2)).clamp(min=0)
                    high = (torch.minimum(b1, b2) - torch.maximum(t1, t2)).clamp(min=0)
                    both = (r1 - l1) * (b1 - t1) + (r2 - l2) * (b2 - t2)
                    return wide * high / (both - wide * high)
                """
            ),
        ],
        equivalent={
            "start = torch.maximum(a[..., :2], b[..., :2]) => "
            "start = torch.maximum(b[..., :2], a[..., :2])": "the larger of two",
            "end = torch.minimum(a[..., 2:], b[..., 2:]) => "
            "end = torch.minimum(b[..., 2:], a[..., 2:])": "the smaller of two",
            "a, b = first[:, None], second[None] => "
            "a, b = first[:, None], (second)": "broadcasting adds the axis",
        },
    ),
    "17.3": Bank(
        wrong=[
            code(
                """
                def cheapest(costs):
                    return costs.argmin(dim=0)
                """,
                cause="each-for-itself",
            ),
            code(
                """
                def cheapest(costs):
                    left, chosen = costs.clone(), []
                    for t in range(costs.shape[1]):
                        chosen.append(left[:, t].argmin().item())
                        left[chosen[-1]] = float("inf")
                    return torch.tensor(chosen)
                """,
                cause="objects-one-by-one",
            ),
            code(
                """
                def cheapest(costs):
                    left, chosen = costs.clone(), [0] * costs.shape[1]
                    for _ in chosen:
                        i, t = divmod(left.argmin().item(), costs.shape[1])
                        left[i, :] = float("inf")
                        left[:, t] = float("inf")
                        chosen[t] = i
                    return torch.tensor(chosen)
                """,
                cause="cheapest-pair-first",
            ),
            code(
                """
                def cheapest(costs):
                    i, t = costs.shape
                    return torch.tensor(
                        max(permutations(range(i), t), key=lambda o: costs[list(o), range(t)].sum())
                    )
                """,
                cause="dearest",
            ),
            swap(
                "permutations(range(i), t)", "permutations(range(t), t)", cause="first-queries-only"
            ),
            swap(
                "return torch.tensor(best)",
                "return torch.tensor(sorted(best))",
                cause="queries-are-sorted",
            ),
            swap(
                "return torch.tensor(best)",
                "return costs[list(best), range(t)].sum()",
                cause="returns-the-sum",
            ),
            swap("return torch.tensor(best)", "return best", cause="is-no-tensor"),
        ],
        right=[
            code(
                """
                def cheapest(costs):
                    from scipy.optimize import linear_sum_assignment

                    queries, objects = linear_sum_assignment(costs.T.numpy())
                    return torch.from_numpy(objects)
                """
            ),
            code(
                """
                def cheapest(costs):
                    def tried(t, used):
                        if t == costs.shape[1]:
                            return 0.0, ()
                        best = (float("inf"), ())
                        for i in range(len(costs)):
                            if i not in used:
                                rest, order = tried(t + 1, used | {i})
                                best = min(best, (costs[i, t].item() + rest, (i, *order)))
                        return best

                    return torch.tensor(tried(0, frozenset())[1])
                """
            ),
        ],
        equivalent={
            "total = costs[list(order), range(t)].sum().item() => "
            "total = (costs[list(order), range(t)].sum())": "compares as well",
            "if total < least: => "
            "if (total) <= (least):": "of two sums that are equal either is right",
            "total = costs[list(order), range(t)].sum().item() => "
            "total = costs[list(order), range(t)].mean().item()": "all ways have as many numbers",
            "total = costs[list(order), range(t)].sum().item() => "
            "total = costs[(order), range(t)].sum().item()": "an index all the same",
        },
    ),
    "17.4": Bank(
        wrong=[
            swap(WANTED, "wanted[queries] = labels", cause="labels-in-their-own-order"),
            swap(WANTED, "wanted[: len(queries)] = labels[objects]", cause="values-differ"),
            swap("weights[queries] = 1.0", "weights[:] = 1.0", cause="nothing-counts-fully"),
            swap("nothing, dtype", "0.0, dtype", cause="nothing-does-not-count"),
            swap("(i,), classes - 1", "(i,), 0", cause="nothing-is-class-0"),
            swap(MEAN, "(weights * surprise).mean()", cause="mean-over-queries"),
            swap(MEAN, "(weights * surprise).sum() / len(queries)", cause="mean-over-objects"),
            swap(MEAN, "(weights * surprise).sum()", cause="sum-not-mean-of-answers"),
            swap(LOG, "scores", cause="scores-are-not-probabilities"),
            swap(LOG, "scores.log_softmax(dim=0)", cause="softmax-over-queries-of-scores"),
            swap(LOG, "scores.softmax(dim=-1)", cause="logarithm-is-missing"),
            swap(
                LOG, "scores.softmax(dim=-1).log_softmax(dim=-1)", cause="softmax-twice-of-answers"
            ),
            swap("surprise = -scores", "surprise = scores", cause="sign-of-the-loss"),
            swap(
                "weights[queries] = 1.0",
                "weights[:] = 1.0\n    weights[queries] = nothing",
                cause="weights-exchanged",
            ),
        ],
        right=[
            code(
                """
                def class_loss(scores, labels, queries, objects, nothing):
                    weight = torch.ones(scores.shape[1], dtype=scores.dtype)
                    weight[-1] = nothing
                    wanted = torch.full((len(scores),), scores.shape[1] - 1)
                    wanted[queries] = labels[objects]
                    return torch.nn.functional.cross_entropy(scores, wanted, weight)
                """
            ),
            code(
                """
                def class_loss(scores, labels, queries, objects, nothing):
                    logs = scores.log_softmax(dim=1)
                    free = [n for n in range(len(scores)) if n not in queries.tolist()]
                    total = -logs[queries, labels[objects]].sum() - nothing * logs[free, -1].sum()
                    return total / (len(queries) + nothing * len(free))
                """
            ),
        ],
        equivalent={
            "weights = torch.full((i,), nothing, dtype=scores.dtype) => "
            "weights = torch.full((i,), nothing)": "rounded, but no more",
            "surprise = -scores.log_softmax(dim=-1)[torch.arange(i), wanted] => "
            "surprise = -scores.log_softmax(dim=(1))[torch.arange(i), wanted]": "the last axis",
        },
    ),
    "17.5": Bank(
        wrong=[
            code(
                """
                def hits(boxes, places, threshold):
                    return (box_iou(boxes[:, None], places) >= threshold).any(dim=-1)
                """,
                cause="twice-is-still-right",
            ),
            swap("free[:, place] = -1", "free[n, place] = -1", cause="twice-is-still-right"),
            swap(
                "for n in range(len(boxes)):",
                "for n in reversed(range(len(boxes))):",
                cause="least-sure-takes-first",
            ),
            swap(
                "free[n].argmax()",
                "(free[n] >= threshold).int().argmax()",
                cause="first-place-that-fits",
            ),
            swap(">= threshold", ">= 0.5", cause="threshold-is-half"),
            swap("return right", "return right[right]", cause="shape-differs"),
            code(
                """
                def hits(boxes, places, threshold):
                    shared = box_iou(boxes[:, None], places)
                    taken, right = set(), []
                    for row in shared:
                        place = row.argmax().item()
                        right.append(row[place].item() >= threshold and place not in taken)
                        if right[-1]:
                            taken.add(place)
                    return torch.tensor(right)
                """,
                cause="taken-place-not-left-aside",
            ),
            swap(
                "return right",
                "return right & (right.cumsum(0) <= 1)",
                cause="all-after-one-are-wrong",
            ),
        ],
        right=[
            code(
                """
                def hits(boxes, places, threshold):
                    shared = box_iou(boxes[:, None], places).tolist()
                    taken, right = set(), []
                    for row in shared:
                        free = [(value, t) for t, value in enumerate(row) if t not in taken]
                        value, t = max(free, default=(0, None))
                        right.append(value >= threshold)
                        if right[-1]:
                            taken.add(t)
                    return torch.tensor(right)
                """
            ),
            code(
                """
                def hits(boxes, places, threshold):
                    left = list(range(len(places)))
                    right = torch.zeros(len(boxes), dtype=torch.bool)
                    for n, box in enumerate(boxes):
                        if left:
                            value, which = box_iou(box, places[left]).max(dim=0)
                            if value >= threshold:
                                right[n] = True
                                del left[which.item()]
                    return right
                """
            ),
        ],
        equivalent={
            "free = box_iou(boxes[:, None], places)  # (i, t) => "
            "free = box_iou(places, boxes[:, None])  # (i, t)": "symmetric",
            "free[:, place] = -1  # taken => "
            "free[:, place] = -2  # taken": "both are below every threshold",
            "free[:, place] = -1  # taken => "
            "free[:, place] = -0  # taken": "thresholds are above 0",
        },
    ),
    "17.6": Bank(
        wrong=[
            code(
                """
                def suppress(boxes, sure, threshold):
                    order = sure.argsort(descending=True)
                    shared = box_iou(boxes[order][:, None], boxes[order]).tril(-1)
                    return order[(shared <= threshold).all(dim=-1)]
                """,
                cause="suppressed-ones-suppress",
            ),
            swap("in kept)", "in kept[-1:])", cause="only-last-kept-suppresses"),
            swap("descending=True", "descending=False", cause="least-sure-first"),
            swap(
                "sure.argsort(descending=True).tolist()",
                "range(len(boxes))",
                cause="not-sorted-by-sureness",
            ),
            swap("<= threshold", "> threshold", cause="suppress-turned-around"),
            swap("<= threshold", "<= 0.5", cause="threshold-is-half"),
            swap("torch.tensor(kept)", "torch.tensor(sorted(kept))", cause="kept-are-sorted"),
            swap("torch.tensor(kept)", "boxes[kept]", cause="boxes-for-numbers"),
            swap(
                "torch.tensor(kept)",
                "torch.isin(torch.arange(len(boxes)), torch.tensor(kept))",
                cause="truths-for-numbers",
            ),
        ],
        right=[
            code(
                """
                def suppress(boxes, sure, threshold):
                    order = sure.argsort(descending=True)
                    kept = []
                    while len(order):
                        first, order = order[0], order[1:]
                        kept.append(first)
                        order = order[box_iou(boxes[first], boxes[order]) <= threshold]
                    return torch.stack(kept)
                """
            ),
            code(
                """
                def suppress(boxes, sure, threshold):
                    order = sure.argsort(descending=True)
                    far = box_iou(boxes[order][:, None], boxes[order]) <= threshold
                    alive = torch.ones(len(order), dtype=torch.bool)
                    for n in range(len(order)):
                        if alive[n]:
                            alive[n + 1 :] &= far[n, n + 1 :]
                    return order[alive]
                """
            ),
        ],
        equivalent={
            "shared = box_iou(boxes[:, None], boxes)  # (i, i) => "
            "shared = box_iou(boxes, boxes[:, None])  # (i, i)": "symmetric",
            "for n in sure.argsort(descending=True).tolist(): => "
            "for n in (sure.argsort(descending=True)):": "they index as well",
        },
    ),
}
