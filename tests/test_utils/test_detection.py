"""The detector: PyTorch's encoder and decoder inside, matching and loss as HuggingFace's DETR."""

import json
from itertools import permutations

import pytest
import torch
import torch.nn.functional as F
from einops import rearrange
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.loss.loss_for_object_detection import HungarianMatcher, ImageLoss

from helpers import CLOSE, error_of, random, randomize, torch_decoder, torch_encoder
from utils.attention import record_attention
from utils.boxes import Targets, average_precision, generalized_box_iou
from utils.data import draw_scenes, load_digits, load_shipped, resource
from utils.detection import (
    NO_OBJECT_WEIGHT,
    WEIGHTS,
    DetectionTransformer,
    detection_loss,
    detections,
    grid_positions,
    hungarian_match,
    match_costs,
    set_loss,
)
from utils.positions import sinusoidal_positions

B, I, K = 3, 5, 4  # noqa: E741 - the letters of the course
SIZES = {
    "image_size": (12, 20),
    "in_channels": 2,
    "num_classes": K,
    "num_queries": I,
    "embed_dim": 12,
    "num_heads": 3,
    "mlp_dim": 20,
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
}
EMPTY = Targets(torch.zeros(0, dtype=torch.int64), torch.zeros(0, 4))


def small(**changes):
    return randomize(DetectionTransformer(**{**SIZES, **changes})).eval()


def some_boxes(*shape, seed=0):
    return torch.rand(*shape, 4, generator=torch.Generator().manual_seed(seed)) * 0.5 + 0.2


def some_targets(*counts, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        Targets(torch.randint(K, (t,), generator=generator), some_boxes(t, seed=seed + 10 + n))
        for n, t in enumerate(counts)
    ]


def said(b=B, i=I, seed=0):
    """Scores and boxes of some queries."""
    return 2 * random(b, i, K + 1, seed=seed), some_boxes(b, i, seed=seed + 1)


# --- the model


def test_equals_pytorch_around_the_same_stem_and_heads():
    model, images = small(), random(B, 2, 12, 20)
    scores, boxes = model(images)
    assert scores.shape == (3, B, I, K + 1) and boxes.shape == (3, B, I, 4)
    tokens = model.stem(images).flatten(2).mT + model.positions
    memory = torch_encoder(model.encoder)(tokens)
    torch.testing.assert_close(model.encode(images), memory, **CLOSE)
    decoder = torch_decoder(model.decoder)
    last = decoder(model.queries.expand(B, -1, -1), memory)
    torch.testing.assert_close(scores[-1], model.class_head(last), rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(boxes[-1], model.box_head(last).sigmoid(), rtol=1e-4, atol=1e-4)
    x = model.queries.expand(B, -1, -1)
    for layer, own in zip(decoder.layers, scores, strict=True):
        x = layer(x, memory)
        torch.testing.assert_close(own, model.class_head(decoder.norm(x)), rtol=1e-4, atol=1e-4)


def test_every_parameter_learns_and_every_picture_is_on_its_own():
    model, images = small(), random(B, 2, 12, 20)
    scores, boxes = model(images)
    (scores.square().sum() + boxes.square().sum()).backward()
    assert all(p.grad is not None and p.grad.any() for p in model.parameters())
    alone = model(images[1:2])
    torch.testing.assert_close(alone[0], scores[:, 1:2], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(alone[1], boxes[:, 1:2], rtol=1e-4, atol=1e-4)


@settings(max_examples=10, deadline=None)
@given(st.permutations(range(I)))
def test_exchanged_queries_exchange_the_answers(order):
    model, images = small(), random(1, 2, 12, 20)
    before = model(images)
    model.queries.data = model.queries.data[order]
    for old, new in zip(before, model(images), strict=True):
        torch.testing.assert_close(new, old[:, :, order], rtol=1e-4, atol=1e-4)


def test_attention_across_has_a_row_for_each_query():
    model = small()
    with record_attention(model) as maps:
        model(random(B, 2, 12, 20))
    shapes = [tuple(one.shape[2:]) for one in maps]
    assert shapes == [(15, 15)] * 2 + [(I, I), (I, 15)] * 3


def test_positions_say_row_and_column():
    codes = rearrange(grid_positions(3, 5, 8), "(gh gw) e -> gh gw e", gh=3)
    rows, columns = sinusoidal_positions(3, 4, 100.0), sinusoidal_positions(5, 4, 100.0)
    for r in range(3):
        for c in range(5):
            torch.testing.assert_close(codes[r, c], torch.cat([rows[r], columns[c]]))
    flat = grid_positions(8, 8, 64)
    assert torch.cdist(flat, flat).fill_diagonal_(9).min() > 0.5, "no two places share a code"
    assert "positions" not in small().state_dict()


# --- the matching


def of_huggingface(scores, boxes, targets, no_object_weight=NO_OBJECT_WEIGHT):
    """What HuggingFace's DETR matches, and its loss."""
    matcher = HungarianMatcher(*(WEIGHTS[name] for name in ("class", "distance", "giou")))
    outputs = {"logits": scores, "pred_boxes": boxes}
    theirs = [{"class_labels": t.labels, "boxes": t.boxes} for t in targets]
    losses = ImageLoss(matcher, K, no_object_weight, ["labels", "boxes"])(outputs, theirs)
    total = 2 * losses["loss_ce"] + 5 * losses["loss_bbox"] + 2 * losses["loss_giou"]
    return matcher(outputs, theirs), total


@pytest.mark.parametrize(
    "seed, counts", list(enumerate([(2, 3, 1), (5, 1, 4), (1, 0, 3), (7, 2, 9)]))
)
def test_matching_and_loss_are_those_of_huggingface(counts, seed):
    scores, boxes = (part.requires_grad_() for part in said(seed=seed))
    targets = some_targets(*counts, seed=seed)
    theirs, loss = of_huggingface(scores, boxes, targets)
    for pair, their_pair in zip(hungarian_match(scores, boxes, targets), theirs, strict=True):
        assert all(torch.equal(*both) for both in zip(pair, their_pair, strict=True))
    ours = set_loss(scores, boxes, targets)
    torch.testing.assert_close(ours, loss, **CLOSE)
    grads = torch.autograd.grad(ours, [scores, boxes])
    for grad, wanted in zip(grads, torch.autograd.grad(loss, [scores, boxes]), strict=True):
        torch.testing.assert_close(grad, wanted, rtol=1e-4, atol=1e-5)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 4))
def test_no_other_matching_costs_less(seed, t):
    scores, boxes = said(1, 4, seed=seed)
    (target,) = some_targets(t, seed=seed)
    costs = match_costs(scores[0], boxes[0], target)
    ((queries, objects),) = hungarian_match(scores, boxes, [target])
    assert sorted(objects.tolist()) == list(range(t)) and len(set(queries.tolist())) == t
    best = min(costs[list(order), range(t)].sum() for order in permutations(range(4), t))
    torch.testing.assert_close(costs[queries, objects].sum(), best, **CLOSE)


def test_costs_by_hand():
    scores, boxes = said(1, 2)
    (target,) = some_targets(3)
    costs = match_costs(scores[0], boxes[0], target, {"class": 3, "distance": 7, "giou": 11})
    assert costs.shape == (2, 3)
    for i in range(2):
        for t in range(3):
            right = scores[0, i].softmax(0)[target.labels[t]]
            distance = (boxes[0, i] - target.boxes[t]).abs().sum()
            shared = generalized_box_iou(boxes[0, i], target.boxes[t])
            wanted = 7 * distance - 3 * right - 11 * shared
            torch.testing.assert_close(costs[i, t], wanted, **CLOSE)


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(4)), st.permutations(range(I)), st.integers(0, 100))
def test_the_order_of_a_set_does_not_matter(objects, queries, seed):
    scores, boxes = said(1, seed=seed)
    (target,) = some_targets(4, seed=seed)
    other = Targets(target.labels[objects], target.boxes[objects])
    torch.testing.assert_close(
        set_loss(scores[:, queries], boxes[:, queries], [other]),
        set_loss(scores, boxes, [target]),
        **CLOSE,
    )


# --- the loss


def test_right_answers_cost_nothing_and_twice_is_punished():
    (target,) = some_targets(2)
    target = Targets(torch.tensor([1, 3]), target.boxes)
    wanted = torch.tensor([1, 3, K, K])
    scores = 20.0 * F.one_hot(wanted, K + 1)[None]
    boxes = torch.cat([target.boxes, some_boxes(2, seed=5)])[None]
    assert set_loss(scores, boxes, [target]) < 1e-4
    twice = scores.clone()
    twice[0, 2] = scores[0, 0]
    boxes[0, 2] = boxes[0, 0]
    assert set_loss(twice, boxes, [target]) > 0.5, "a second answer for one object"


def test_nothing_to_find():
    scores, boxes = (part.requires_grad_() for part in said(2))
    loss = set_loss(scores, boxes, [EMPTY, EMPTY])
    expected = 2 * F.cross_entropy(scores.flatten(0, 1), torch.full((2 * I,), K))
    torch.testing.assert_close(loss, expected, **CLOSE)
    loss.backward()
    assert scores.grad.any() and not boxes.grad.any()
    assert [len(i) for i, _ in hungarian_match(scores, boxes, [EMPTY, EMPTY])] == [0, 0]


def test_nothing_counts_less():
    """Who raises the weight of "nothing" gives the queries without an object a larger say."""
    scores, boxes = said(1)
    (target,) = some_targets(1)
    shares = []
    for no_object_weight in (0.1, 1.0):
        scores = scores.detach().requires_grad_()
        set_loss(scores, boxes, [target], no_object_weight=no_object_weight).backward()
        ((query, _),) = hungarian_match(scores, boxes, [target])
        others = torch.ones(I, dtype=torch.bool)
        others[query] = False
        shares.append((scores.grad[0, others].norm() / scores.grad[0, query].norm()).item())
    assert shares[1] > 5 * shares[0]


def test_all_blocks_add_up_each_with_its_own_matching():
    (one, boxes), (two, others) = said(), said(seed=4)
    targets = some_targets(3, 2, 4)
    both = detection_loss(torch.stack([one, two]), torch.stack([boxes, others]), targets)
    expected = set_loss(one, boxes, targets) + set_loss(two, others, targets)
    torch.testing.assert_close(both, expected, **CLOSE)
    differ = zip(
        hungarian_match(one, boxes, targets), hungarian_match(two, others, targets), strict=True
    )
    assert any(not torch.equal(a[0], b[0]) for a, b in differ)


def test_detections_leave_nothing_aside():
    scores, boxes = said(2)
    scores[0, 0, K] = 50.0  # surely nothing
    for n, found in enumerate(detections(scores, boxes)):
        shares = scores[n].softmax(dim=-1)
        assert found.labels.max() < K and torch.equal(found.boxes, boxes[n])
        torch.testing.assert_close(found.score, shares[torch.arange(I), found.labels])
        torch.testing.assert_close(found.score, shares[:, :K].amax(dim=-1))
    assert detections(scores, boxes)[0].score[0] < 1e-6


# --- bad input

SCORES, BOXES = said()
TARGETS = some_targets(2, 3, 1)


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: small(image_size=30), "must be a multiple of 4"),
        (lambda: small(num_queries=0), "DetectionTransformer: num_queries must be"),
        (lambda: small(num_classes=0), "num_classes must be"),
        (lambda: small(num_heads=5), "Pick num_heads from"),
        (lambda: small()(torch.zeros(B, 1, 12, 20)), "images must have shape (b, c=2, H=12, W=20)"),
        (lambda: small()(torch.zeros(2, 12, 20)), "images[None]"),
        (lambda: grid_positions(3, 5, 7), "embed_dim must be even"),
        (lambda: grid_positions(0, 5, 8), "gh must be"),
        (
            lambda: hungarian_match(SCORES, BOXES[:2], TARGETS),
            "boxes must have shape (b=3, i=5, four=4)",
        ),
        (lambda: hungarian_match(SCORES[0], BOXES[0], TARGETS), "logits must have shape (b, i, k)"),
        (lambda: hungarian_match(SCORES, BOXES, TARGETS[:2]), "got 2 targets and 3 pictures"),
        (lambda: hungarian_match(SCORES[:0], BOXES[:0], []), "got 0 targets and 0 pictures"),
        (lambda: small()(torch.zeros(B, 2, 12, 20).byte()), "images / 255"),
        (
            lambda: hungarian_match(SCORES * torch.nan, BOXES, TARGETS),
            "match: all costs must be finite",
        ),
        (lambda: set_loss(SCORES, BOXES, [TARGETS[0], TARGETS[1], (TARGETS[2])] * 2), "6 targets"),
        (
            lambda: hungarian_match(
                SCORES, BOXES, [TARGETS[0], TARGETS[1], Targets(torch.tensor([K]), BOXES[0, :1])]
            ),
            "labels must lie between 0 and 3, got 4",
        ),
        (
            lambda: hungarian_match(
                SCORES, BOXES, [TARGETS[0], TARGETS[1], Targets(torch.tensor([1]), BOXES[0])]
            ),
            "boxes.shape=(5, 4)",
        ),
        (lambda: detection_loss(SCORES, BOXES, TARGETS), "logits must have shape (l, b, i, k)"),
        (lambda: detections(SCORES[None], BOXES[None]), "logits[-1]"),
    ],
)
def test_bad_input(call, said):
    assert said in error_of(call)


# --- the model that ships


def test_the_model_that_ships_finds_digits():
    """On scenes of test digits, by COCO's measure; and less well what stands elsewhere."""
    model, (_, digits) = load_shipped("detection"), load_digits()
    assert not model.training
    assert resource("detection_model.safetensors").stat().st_size < 2_000_000
    images, targets = draw_scenes(digits, [1, 2, 3] * 20, torch.Generator().manual_seed(5))
    with torch.no_grad():
        found = detections(*(part[-1] for part in model(images)))
    assert average_precision(found, targets) > 0.9
    assert average_precision(found, targets[3:] + targets[:3]) < 0.3, "answers of other scenes"


def test_what_the_script_measured():
    said = json.loads(resource("detection_model.json").read_text())
    final = [curve[-1]["AP50"] for curve in said["seeds"]]
    assert len(final) == 3 and sum(final) / 3 >= 0.85
    assert {len(curve) for curve in said["seeds"]} == {len(said["steps"])}
