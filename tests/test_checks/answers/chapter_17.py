"""Answers to the exercises of chapter 17, right and wrong."""

from exercise_bank import Bank, code, swap

INTERSECTION = "(end - start).clamp(min=0).prod(dim=-1)"
UNION = "(area_a + area_b - intersection)"
WANTED = "wanted[queries] = labels[objects]"
MEAN = "(weights * losses).sum() / weights.sum()"
LOG = "logits.log_softmax(dim=-1)"
KEPT = "all(iou[n, other] <= threshold for other in kept)"

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
                memory_shape, cross_shape = (5, 192, 40), (5, 8, 7, 192)
                logits_shape, costs_shape = [3, 5, 7, 12], (7, 4)
                no_object_count = sum(max(0, 7 - t) for t in (4, 0, 9, 2, 7))
                """
            ),
        ],
    ),
    "17.2": Bank(
        wrong=[
            swap(INTERSECTION, "(end - start).prod(dim=-1)", cause="apart-is-not-cut-off"),
            swap(
                INTERSECTION,
                "(end - start).prod(dim=-1).clamp(min=0)",
                cause="area-is-cut-off-late",
            ),
            swap(UNION, "(area_a + area_b)", cause="shared-counted-twice"),
            swap(f"intersection / {UNION}", "intersection", cause="shared-alone"),
            swap(UNION, "torch.minimum(area_a, area_b)", cause="divided-by-one-box"),
            swap(UNION, "torch.maximum(area_a, area_b)", cause="divided-by-one-box"),
            swap(
                "first[:, None], second[None]",
                "second[:, None], first[None]",
                cause="second-against-first",
            ),
            code(
                """
                def pairwise_iou(first, second):
                    return box_iou(first[:, None], second)
                """,
                cause="edges-read-as-middles",
            ),
            code(
                """
                def pairwise_iou(first, second):
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
                def pairwise_iou(first, second):
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
                def pairwise_iou(first, second):
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
                def pairwise_iou(first, second):
                    def middle(x):
                        return torch.cat([(x[:, :2] + x[:, 2:]) / 2, x[:, 2:] - x[:, :2]], dim=1)

                    return box_iou(middle(first)[:, None], middle(second))
                """
            ),
            code(
                """
                def pairwise_iou(first, second):
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
            code(
                """
                def cheapest(costs):
                    from itertools import combinations

                    i, t = costs.shape
                    return torch.tensor(
                        min(combinations(range(i), t), key=lambda o: costs[list(o), range(t)].sum())
                    )
                """,
                cause="combinations-not-orders",
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
            swap("no_object_weight, dtype", "0.0, dtype", cause="nothing-does-not-count"),
            swap("(i,), classes - 1", "(i,), 0", cause="nothing-is-class-0"),
            swap(MEAN, "(weights * losses).mean()", cause="mean-over-queries"),
            swap(MEAN, "(weights * losses).sum() / len(queries)", cause="mean-over-objects"),
            swap(MEAN, "(weights * losses).sum()", cause="sum-not-mean-of-answers"),
            swap(LOG, "logits", cause="scores-are-not-probabilities"),
            swap(LOG, "logits.log_softmax(dim=0)", cause="softmax-over-queries-of-scores"),
            swap(LOG, "logits.softmax(dim=-1)", cause="logarithm-is-missing"),
            swap(
                LOG, "logits.softmax(dim=-1).log_softmax(dim=-1)", cause="softmax-twice-of-answers"
            ),
            swap("losses = -logits", "losses = logits", cause="sign-of-the-loss"),
            swap(
                "weights[queries] = 1.0",
                "weights[:] = 1.0\n    weights[queries] = no_object_weight",
                cause="weights-exchanged",
            ),
            code(
                """
                def class_loss(logits, labels, queries, objects, weight):
                    weights = torch.ones(logits.shape[1], dtype=logits.dtype)
                    weights[-1] = weight
                    wanted = torch.full((len(logits),), logits.shape[1] - 1)
                    wanted[queries] = labels[objects]
                    return torch.nn.functional.cross_entropy(logits, wanted, weights)
                """,
                cause="calls-shortcut",
            ),
            code(
                """
                def class_loss(logits, labels, queries, objects, weight):
                    weights = torch.ones(logits.shape[1], dtype=logits.dtype)
                    weights[-1] = weight
                    wanted = torch.full((len(logits),), logits.shape[1] - 1)
                    wanted[queries] = labels[objects]
                    return torch.nn.NLLLoss(weights)(logits.log_softmax(dim=-1), wanted)
                """,
                cause="calls-shortcut",
            ),
        ],
        right=[
            code(
                """
                def class_loss(logits, labels, queries, objects, weight):
                    wanted = torch.full((len(logits),), logits.shape[1] - 1)
                    wanted[queries] = labels[objects]
                    weights = torch.ones(logits.shape[1], dtype=logits.dtype)
                    weights[:-1] = 1 / weight
                    logs = logits - logits.logsumexp(dim=-1, keepdim=True)
                    own = torch.stack([row[k] for row, k in zip(logs, wanted)])
                    return -(own * weights[wanted]).sum() / weights[wanted].sum()
                """
            ),
            code(
                """
                def class_loss(logits, labels, queries, objects, weight):
                    logs = logits.log_softmax(dim=1)
                    free = [n for n in range(len(logits)) if n not in queries.tolist()]
                    total = -logs[queries, labels[objects]].sum() - weight * logs[free, -1].sum()
                    return total / (len(queries) + weight * len(free))
                """
            ),
        ],
        equivalent={
            "weights = torch.full((i,), no_object_weight, dtype=logits.dtype) => "
            "weights = torch.full((i,), no_object_weight)": "rounded, but no more",
            "losses = -logits.log_softmax(dim=-1)[torch.arange(i), wanted] => "
            "losses = -logits.log_softmax(dim=(1))[torch.arange(i), wanted]": "the last axis",
        },
    ),
    "17.5": Bank(
        wrong=[
            code(
                """
                def hits(boxes, truth, threshold):
                    return (box_iou(boxes[:, None], truth) >= threshold).any(dim=-1)
                """,
                cause="twice-is-still-right",
            ),
            swap("free[:, best] = -1", "free[n, best] = -1", cause="twice-is-still-right"),
            swap(
                "in range(len(boxes) if len(truth) else 0)",
                "in reversed(range(len(boxes) if len(truth) else 0))",
                cause="least-sure-takes-first",
            ),
            swap(
                "free[n].argmax()",
                "(free[n] >= threshold).int().argmax()",
                cause="not-the-best-that-fits",
            ),
            swap(
                "free[n].argmax()",
                "((free[n] >= threshold) * torch.arange(len(truth))).argmax()",
                cause="not-the-best-that-fits",
            ),
            swap(
                "free[n].argmax()",
                "torch.where(free[n] >= threshold, free[n], 2).argmin()",
                cause="not-the-best-that-fits",
            ),
            swap(
                "free[:, best] = -1",
                "free[:, free[n] >= threshold] = -1",
                cause="takes-all-that-fit",
            ),
            swap(">= threshold", "> threshold", cause="threshold-is-left-out"),
            swap(" if len(truth) else 0", "", cause="raises"),
            swap(">= threshold", ">= 0.5", cause="threshold-is-half"),
            swap("return correct", "return correct[correct]", cause="shape-differs"),
            code(
                """
                def hits(boxes, truth, threshold):
                    shared = box_iou(boxes[:, None], truth)
                    taken, right = set(), []
                    for row in shared if len(truth) else []:
                        place = row.argmax().item()
                        right.append(row[place].item() >= threshold and place not in taken)
                        if right[-1]:
                            taken.add(place)
                    return torch.tensor(right or [False] * len(boxes))
                """,
                cause="taken-place-not-left-aside",
            ),
            swap(
                "return correct",
                "return correct & (correct.cumsum(0) <= 1)",
                cause="all-after-one-are-wrong",
            ),
        ],
        right=[
            code(
                """
                def hits(boxes, truth, threshold):
                    shared = box_iou(boxes[:, None], truth).tolist()
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
                def hits(boxes, truth, threshold):
                    left = list(range(len(truth)))
                    right = torch.zeros(len(boxes), dtype=torch.bool)
                    for n, box in enumerate(boxes):
                        if left:
                            value, which = box_iou(box, truth[left]).max(dim=0)
                            if value >= threshold:
                                right[n] = True
                                del left[which.item()]
                    return right
                """
            ),
        ],
        equivalent={
            "free = box_iou(boxes[:, None], truth)  # (i, t) => "
            "free = box_iou(truth, boxes[:, None])  # (i, t)": "symmetric",
            "for n in range(len(boxes) if len(truth) else 0): => "
            "for n in range(len(boxes) if len(truth) else -1):": "no step either",
            "free[:, best] = -1  # taken => "
            "free[:, best] = -2  # taken": "both are below every threshold",
            "free[:, best] = -1  # taken => free[:, best] = -0  # taken": "thresholds are above 0",
        },
    ),
    "17.6": Bank(
        wrong=[
            code(
                """
                def suppress(boxes, confidence, threshold):
                    order = confidence.argsort(descending=True)
                    shared = box_iou(boxes[order][:, None], boxes[order]).tril(-1)
                    return order[(shared <= threshold).all(dim=-1)]
                """,
                cause="suppressed-ones-suppress",
            ),
            swap("in kept)", "in kept[-1:])", cause="only-last-kept-suppresses"),
            swap("descending=True", "descending=False", cause="least-sure-first"),
            swap(
                "confidence.argsort(descending=True).tolist()",
                "range(len(boxes))",
                cause="not-sorted-by-sureness",
            ),
            swap("<= threshold", "> threshold", cause="suppress-turned-around"),
            swap("<= threshold", "<= 0.5", cause="threshold-is-half"),
            swap("<= threshold", "< threshold", cause="same-as-threshold-goes"),
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
                def suppress(boxes, confidence, threshold):
                    order = confidence.argsort(descending=True)
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
                def suppress(boxes, confidence, threshold):
                    order = confidence.argsort(descending=True)
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
            "iou = box_iou(boxes[:, None], boxes)  # (i, i) => "
            "iou = box_iou(boxes, boxes[:, None])  # (i, i)": "symmetric",
            "for n in confidence.argsort(descending=True).tolist(): => "
            "for n in (confidence.argsort(descending=True)):": "they index as well",
        },
    ),
}
