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
            swap("(5, 12 * 16, 40)", "(5, 193, 40)", says="look at n"),
            swap("(5, 12 * 16, 40)", "(5, 40, 192)", says="right sizes in another order"),
            swap("(5, 12 * 16, 40)", "(5, 12, 16, 40)", says="needs 3 axes"),
            swap("(5, 8, 7, 192)", "(5, 8, 192, 7)", says="right sizes in another order"),
            swap("(5, 8, 7, 192)", "(5, 8, 7, 7)", says="look at n"),
            swap("(3, 5, 7, 12)", "(3, 5, 7, 11)", says="look at k+1"),
            swap("(3, 5, 7, 12)", "(5, 7, 12)", says="needs 4 axes"),
            swap("(7, 4)", "(4, 7)", says="right sizes in another order"),
            swap("3 + 7 + 5", "35 - 22", says="a query answers for its own picture"),
            swap("3 + 7 + 5", "3 * 15", says="that is all 3 blocks"),
            swap("3 + 7 + 5", "22", says="number of objects"),
            swap("3 + 7 + 5", "5 * 7", says="that is all queries"),
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
            swap(SHARED, "(end - start).prod(dim=-1)", says="share nothing"),
            swap(SHARED, "(end - start).prod(dim=-1).clamp(min=0)", says="each side must be"),
            swap(COVERED, "(area_a + area_b)", says="counts twice"),
            swap(f"shared / {COVERED}", "shared", says="it returns the shared area"),
            swap(COVERED, "torch.minimum(area_a, area_b)", says="the smaller of the two"),
            swap("first[:, None], second[None]", "second[:, None], first[None]", says="shape"),
            code(
                """
                def overlaps(first, second):
                    return box_iou(first[:, None], second)
                """,
                says="not middle and size",
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
                says="smaller and larger are exchanged",
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
                says="it adds 1 to the sides",
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
                says="loop",
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
                says="each object takes the query that is cheapest for it",
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
                says="one after the other",
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
                says="the cheapest pair is taken first",
            ),
            code(
                """
                def cheapest(costs):
                    i, t = costs.shape
                    return torch.tensor(
                        max(permutations(range(i), t), key=lambda o: costs[list(o), range(t)].sum())
                    )
                """,
                says="it finds the largest sum",
            ),
            swap("permutations(range(i), t)", "permutations(range(t), t)", says="only the first t"),
            swap("return torch.tensor(best)", "return torch.tensor(sorted(best))", says="sorted"),
            swap(
                "return torch.tensor(best)",
                "return costs[list(best), range(t)].sum()",
                says="sum of the costs",
            ),
            swap("return torch.tensor(best)", "return best", says="tensor"),
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
            swap(WANTED, "wanted[queries] = labels", says="in their own order"),
            swap(WANTED, "wanted[: len(queries)] = labels[objects]", says="values are not"),
            swap("weights[queries] = 1.0", "weights[:] = 1.0", says="it counts nothing"),
            swap("nothing, dtype", "0.0, dtype", says="do not count at all"),
            swap("(i,), classes - 1", "(i,), 0", says="class 0 stands for nothing"),
            swap(MEAN, "(weights * surprise).mean()", says="the number of queries"),
            swap(MEAN, "(weights * surprise).sum() / len(queries)", says="matched queries"),
            swap(MEAN, "(weights * surprise).sum()", says="it is the sum"),
            swap(LOG, "scores", says="the scores themselves"),
            swap(LOG, "scores.log_softmax(dim=0)", says="runs over the queries"),
            swap(LOG, "scores.softmax(dim=-1)", says="their logarithms"),
            swap(LOG, "scores.softmax(dim=-1).log_softmax(dim=-1)", says="applied twice"),
            swap("surprise = -scores", "surprise = scores", says="the sign is missing"),
            swap(
                "weights[queries] = 1.0",
                "weights[:] = 1.0\n    weights[queries] = nothing",
                says="the weights are exchanged",
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
                says="taken already still makes a box right",
            ),
            swap("free[:, place] = -1", "free[n, place] = -1", says="taken already"),
            swap(
                "for n in range(len(boxes)):",
                "for n in reversed(range(len(boxes))):",
                says="from the last to the first",
            ),
            swap(
                "free[n].argmax()", "(free[n] >= threshold).int().argmax()", says="the first object"
            ),
            swap(">= threshold", ">= 0.5", says="0.5, whatever was given"),
            swap("return right", "return right[right]", says="shape"),
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
                says="may still take another one",
            ),
            swap(
                "return right",
                "return right & (right.cumsum(0) <= 1)",
                says="only one box is right",
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
                says="thrown away throws others out",
            ),
            swap("in kept)", "in kept[-1:])", says="kept last"),
            swap("descending=True", "descending=False", says="least sure box"),
            swap(
                "sure.argsort(descending=True).tolist()",
                "range(len(boxes))",
                says="in which they come",
            ),
            swap("<= threshold", "> threshold", says="throws out the others"),
            swap("<= threshold", "<= 0.5", says="0.5, whatever was given"),
            swap("torch.tensor(kept)", "torch.tensor(sorted(kept))", says="sorted by number"),
            swap("torch.tensor(kept)", "boxes[kept]", says="their numbers are asked for"),
            swap(
                "torch.tensor(kept)",
                "torch.isin(torch.arange(len(boxes)), torch.tensor(kept))",
                says="truth values",
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
