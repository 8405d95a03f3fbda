"""Detect objects: learned queries, a matching, and a loss on sets (chapter 17)."""

from collections.abc import Mapping, Sequence

import torch
import torch.nn.functional as F
from einops import rearrange, repeat
from scipy.optimize import linear_sum_assignment
from torch import Tensor, nn

from utils.boxes import Found, Targets, generalized_box_iou
from utils.decoder import Decoder
from utils.encoder import Encoder
from utils.positions import sinusoidal_positions
from utils.validation import Size, as_pair, check_ids, check_images, check_positive, check_shape

STRIDE = 4  # the stem turns 4 x 4 pixels into one token

# what the class, the L1 distance and the GIoU of boxes count, in matching and in loss
# (Zhu et al. 2021, Deformable DETR; the first paper has 1 for the class)
WEIGHTS = {"class": 2.0, "distance": 5.0, "giou": 2.0}
# weight of "no object" among the classes: most queries find none, and would drown the rest
NO_OBJECT_WEIGHT = 0.1


def grid_positions(gh: int, gw: int, embed_dim: int, base: float = 100.0) -> Tensor:
    """Return a code for each cell of a grid: half of it for the row, half for the column.

    Args:
        gh, gw: rows and columns of the grid.
        embed_dim: width of a token, e; even.
        base: the longest wave is nearly 2π times as long; a grid needs no long ones.

    Shape:
        result  (gh * gw, e), row by row

    Raises: ValueError for sizes below 1, or an odd width.
    Source: Carion et al. 2020, section 3.2; Parmar et al. 2018; chapter 17.
    """
    check_positive("grid_positions", gh=gh, gw=gw, embed_dim=embed_dim)
    if embed_dim % 2:
        raise ValueError(
            "grid_positions: embed_dim must be even, half for the row and half for the column, "
            f"got embed_dim={embed_dim}. Take {embed_dim + 1}."
        )
    rows = repeat(sinusoidal_positions(gh, embed_dim // 2, base), "gh e -> gh gw e", gw=gw)
    columns = repeat(sinusoidal_positions(gw, embed_dim // 2, base), "gw e -> gh gw e", gh=gh)
    return rearrange(torch.cat([rows, columns], dim=-1), "gh gw e -> (gh gw) e")


class DetectionTransformer(nn.Module):
    """Predict, for each of a few learned queries, a class (or "no object") and a box.

    Args:
        image_size: side of the images in pixels, or (height, width): multiples of 4.
        in_channels: channels of the images, c.
        num_classes: number of classes, k; the logit after the last one is for "no object".
        num_queries: number of object queries, i: no picture can have more objects found.
        embed_dim, num_heads, mlp_dim, dropout: see `DecoderBlock`.
        num_encoder_layers, num_decoder_layers: number of blocks; l is that of the decoder.

    Shape:
        images   (b, c, H, W)
        memory   (b, n, e), n = H / 4 * W / 4   what `encode` returns
        queries  (i, e)                         parameters: the decoder's input, for every picture
        logits   (l, b, i, k + 1)               after each decoder block; the last one counts
        boxes    (l, b, i, 4)                   middle and size, from 0 to 1

    Raises: as `Encoder` and `Decoder`; images that are not a multiple of 4, or do not fit.
    Source: Carion et al. 2020 (DETR), sections 3.2 and A.4; chapter 17.
    """

    def __init__(
        self,
        *,
        image_size: Size,
        in_channels: int,
        num_classes: int,
        num_queries: int,
        embed_dim: int,
        num_heads: int,
        mlp_dim: int,
        num_encoder_layers: int,
        num_decoder_layers: int,
        dropout: float = 0.0,
    ):
        super().__init__()
        check_positive("DetectionTransformer", in_channels=in_channels, num_classes=num_classes)
        check_positive("DetectionTransformer", num_queries=num_queries, embed_dim=embed_dim)
        self.image_size = as_pair("DetectionTransformer", "image_size", image_size)
        self.in_channels = in_channels
        if any(side % STRIDE for side in self.image_size):
            raise ValueError(
                "DetectionTransformer: image_size must be a multiple of 4, which is how far two "
                f"tokens stand apart, got image_size={image_size}. Pad the images."
            )
        gh, gw = (side // STRIDE for side in self.image_size)
        # small objects need more than one look: three convolutions that overlap; BatchNorm makes
        # what they see as large as the positions, and was what let the classes be learned in time
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, embed_dim // 2, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(embed_dim // 2),
            nn.ReLU(),
            nn.Conv2d(embed_dim // 2, embed_dim, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(embed_dim),
            nn.ReLU(),
            nn.Conv2d(embed_dim, embed_dim, 3, padding=1, bias=False),
            nn.BatchNorm2d(embed_dim),
        )
        self.register_buffer("positions", grid_positions(gh, gw, embed_dim), persistent=False)
        self.encoder = Encoder(num_encoder_layers, embed_dim, num_heads, mlp_dim, dropout)
        self.queries = nn.Parameter(torch.randn(num_queries, embed_dim))
        self.decoder = Decoder(num_decoder_layers, embed_dim, num_heads, mlp_dim, dropout)
        self.class_head = nn.Linear(embed_dim, num_classes + 1)
        self.box_head = nn.Sequential(
            nn.Linear(embed_dim, embed_dim), nn.GELU(), nn.Linear(embed_dim, 4)
        )

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        memory = self.encode(images)
        x = self.queries.expand(images.shape[0], -1, -1)  # (b, i, e)
        layers = []
        for layer in self.decoder.layers:
            x = layer(x, memory)
            layers.append(self.decoder.norm(x))
        x = torch.stack(layers)  # (l, b, i, e)
        return self.class_head(x), self.box_head(x).sigmoid()

    def encode(self, images: Tensor) -> Tensor:
        """Return the encoded tokens (b, n, e) of images (b, c, H, W)."""
        fix = "One image alone is images[None]."
        check_images("DetectionTransformer", images, self.in_channels, self.image_size, fix)
        tokens = rearrange(self.stem(images), "b e gh gw -> b (gh gw) e")
        return self.encoder(tokens + self.positions)


def match_costs(
    logits: Tensor, boxes: Tensor, target: Targets, weights: Mapping[str, float] = WEIGHTS
) -> Tensor:
    """Return what it costs to make each query responsible for each object.

    Args:
        logits, boxes: of the queries.
        target: the objects.
        weights: what "class", "distance" (L1) and "giou" count.

    Shape:
        logits  (i, k + 1)
        boxes   (i, 4)
        result  (i, t)

    Raises: ValueError for shapes that do not fit, or labels that are not classes.
    Source: Carion et al. 2020, section 3.1; chapter 17.
    """
    _check_said("match_costs", logits, boxes, "i")
    _check_targets("match_costs", [target], logits.shape[-1] - 1)
    right = logits.softmax(dim=-1)[:, target.labels]  # (i, t)
    shared = generalized_box_iou(boxes[:, None], target.boxes)
    distance = (boxes[:, None] - target.boxes).abs().sum(dim=-1)
    return weights["distance"] * distance - weights["class"] * right - weights["giou"] * shared


@torch.no_grad()
def hungarian_match(
    logits: Tensor,
    boxes: Tensor,
    targets: Sequence[Targets],
    weights: Mapping[str, float] = WEIGHTS,
) -> list[tuple[Tensor, Tensor]]:
    """Assign a query of its own to each object of each picture, with the least sum of costs.

    With more objects than queries, the objects that would cost most stay without one.

    Args:
        logits, boxes: of the queries.
        targets: the objects of each picture.
        weights: see `match_costs`.

    Shape:
        logits  (b, i, k + 1)
        boxes   (b, i, 4)
        result  for each picture two (min(i, t),): the matched queries, rising, and their objects

    Raises: ValueError for shapes that do not fit, labels that are not classes, or a NaN.
    Source: Carion et al. 2020, section 3.1; Kuhn 1955 (the Hungarian method); chapter 17.
    """
    _check_said("hungarian_match", logits, boxes, "b i")
    _check_targets("hungarian_match", targets, logits.shape[-1] - 1, len(logits))
    # one call for all pictures: a single one is too little work
    costs = match_costs(logits.flatten(0, 1), boxes.flatten(0, 1), _together(targets), weights)
    if not all(values.isfinite().all() for values in (logits, boxes, costs)):
        raise ValueError(
            "hungarian_match: all costs must be finite, got a NaN or an infinity in logits or "
            "boxes. Lower the learning rate, or look for a division by 0."
        )
    counts = [len(target.labels) for target in targets]
    parts = rearrange(costs, "(b i) t -> b i t", b=len(targets)).double().cpu().split(counts, dim=2)
    pairs = [linear_sum_assignment(part[n].numpy()) for n, part in enumerate(parts)]
    return [tuple(torch.as_tensor(part).to(logits.device) for part in pair) for pair in pairs]


def set_loss(
    logits: Tensor,
    boxes: Tensor,
    targets: Sequence[Targets],
    weights: Mapping[str, float] = WEIGHTS,
    no_object_weight: float = NO_OBJECT_WEIGHT,
) -> Tensor:
    """Compare a set of predictions with a set of objects: match them, then compare class and box.

    A matched query should predict its object's class and box, every other one "no object".

    Args:
        logits, boxes, targets, weights: see `hungarian_match`.
        no_object_weight: weight in the cross-entropy of a query that should predict "no object".

    Shape: as `hungarian_match`; the result is one number, ().
    Raises: as `hungarian_match`.
    Source: Carion et al. 2020, sections 3.1 and A.2; chapter 17.
    """
    pairs = hungarian_match(logits, boxes, targets, weights)
    matched = [Targets(t.labels[j], t.boxes[j]) for t, (_, j) in zip(targets, pairs, strict=True)]
    labels, true_boxes = _together(matched)
    picture = torch.cat([torch.full_like(i, n) for n, (i, _) in enumerate(pairs)])
    query = torch.cat([i for i, _ in pairs])
    last = logits.shape[-1] - 1
    wanted = torch.full(logits.shape[:2], last, device=logits.device)
    wanted[picture, query] = labels
    counted = logits.new_ones(last + 1)
    counted[last] = no_object_weight
    chosen, count = boxes[picture, query], max(1, sum(len(t.labels) for t in targets))
    return (
        weights["class"] * F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), counted)
        + weights["distance"] * (chosen - true_boxes).abs().sum() / count
        + weights["giou"] * (1 - generalized_box_iou(chosen, true_boxes)).sum() / count
    )


def detection_loss(
    logits: Tensor,
    boxes: Tensor,
    targets: Sequence[Targets],
    weights: Mapping[str, float] = WEIGHTS,
    no_object_weight: float = NO_OBJECT_WEIGHT,
) -> Tensor:
    """Add up the set loss of every decoder block, each with a matching of its own.

    Args:
        logits, boxes, targets, weights, no_object_weight: see `set_loss`.

    Shape: as `set_loss`, with the decoder blocks l as the first axis of logits and boxes.
    Raises: as `hungarian_match`.
    Source: Carion et al. 2020, section 3.2 (auxiliary decoding losses); chapter 17.
    """
    _check_said("detection_loss", logits, boxes, "l b i")
    pairs = zip(logits, boxes, strict=True)
    losses = [set_loss(*pair, targets, weights, no_object_weight) for pair in pairs]
    return torch.stack(losses).sum()


def detections(logits: Tensor, boxes: Tensor) -> list[Found]:
    """Read off what each query predicts: its most probable class but "no object", box and score.

    Args:
        logits, boxes: of the queries, after the last decoder block.

    Shape:
        logits  (b, i, k + 1)
        boxes   (b, i, 4)
        result  for each picture a `Found` with all i queries

    Raises: ValueError for shapes that do not fit.
    Source: Carion et al. 2020, section A.4; chapter 17.
    """
    _check_said("detections", logits, boxes, "b i")
    score, labels = logits.softmax(dim=-1)[..., :-1].max(dim=-1)
    return [Found(*one) for one in zip(labels, boxes, score, strict=True)]


def _together(targets: Sequence[Targets]) -> Targets:
    """Join the objects of all pictures."""
    labels, boxes = (torch.cat(parts) for parts in zip(*targets, strict=True))
    return Targets(labels.long(), boxes)


def _check_said(where: str, logits: Tensor, boxes: Tensor, axes: str) -> None:
    """Raise a `ValueError` unless logits (axes, k + 1) and boxes (axes, 4) belong together."""
    sizes = dict(zip(axes.split(), logits.shape, strict=False))
    check_shape(where, "logits", logits, f"{axes} k", "The last layer alone is logits[-1].")
    if not logits.is_floating_point():
        raise ValueError(f"{where}: logits must not be integers, got {logits.dtype}. Take floats.")
    check_shape(where, "boxes", boxes, f"{axes} four", "One box for each query.", four=4, **sizes)


def _check_targets(
    where: str, targets: Sequence[Targets], classes: int, pictures: int | None = None
) -> None:
    """Raise a `ValueError` unless targets fit the pictures and the classes."""
    if pictures is not None and (not pictures or len(targets) != pictures):
        raise ValueError(
            f"{where}: targets must hold one Targets for each picture, got {len(targets)} targets "
            f"and {pictures} pictures. For a picture without objects pass empty tensors."
        )
    for labels, boxes in targets:
        check_shape(where, "labels", labels, "t", "Pass one label for each object.")
        fix = "Pass one box for each label."
        check_shape(where, "boxes", boxes, "t four", fix, t=len(labels), four=4)
        fix = f'The number {classes} stands for "no object".'
        check_ids(where, "labels", labels, classes, fix)
