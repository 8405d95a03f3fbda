"""Checks of the exercises of chapter 07: encoder, Vision Transformer, what it looks at."""

from __future__ import annotations

from functools import cache, partial
from itertools import permutations
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic import Report, diagnose_block
from checks.engine.answer import Wrong, noticed, written
from checks.engine.calls import Crashed, attempt, naming, run
from checks.engine.cases import Case
from checks.engine.compare import difference
from checks.engine.explain import Mistakes, by_clinic
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.modules import same_module
from checks.engine.patches import Patch, patches
from checks.engine.results import Results
from checks.engine.verdict import exercise, open_exercise
from utils import training
from utils.attention import record_attention
from utils.data import load_digits, load_shipped
from utils.encoder import Encoder, EncoderBlock
from utils.vision_transformer import VisionTransformer


@exercise("07.1", "From image to logits")
def from_picture_to_answer(encoded_shape, weights_shape, answer_shape) -> Message:
    written(encoded_shape, weights_shape, answer_shape)
    model = VisionTransformer(
        image_size=(24, 40),
        patch_size=(8, 10),
        in_channels=3,
        num_classes=7,
        embed_dim=36,
        num_heads=6,
        mlp_dim=50,
        num_layers=2,
    )
    images = torch.zeros(5, 3, 24, 40)
    with torch.no_grad(), record_attention(model) as maps:
        scores = model(images)
        encoded = model.encoder(model.embedding(images))
    same_shape(encoded_shape, encoded.shape, "b n e")
    same_shape(weights_shape, maps[0].shape, "b h i j")
    same_shape(answer_shape, scores.shape, "b k")
    return message("gives-all-three-shapes")


def count(num_layers: int, embed_dim: int, num_heads: int, mlp_dim: int) -> int:
    e, m = embed_dim, mlp_dim
    attention = 4 * e * e + 4 * e
    feed = e * m + m + m * e + e
    norm = 2 * e
    return num_layers * (attention + feed + 2 * norm) + norm


COUNT_MISTAKES = patches(
    count,
    {
        "linear-biases-missing": ("+ 4 * e", "", "+ m + m * e + e", "+ m * e"),
        "all-biases-missing": ("+ 4 * e", "", "+ m + m * e + e", "+ m * e", "= 2 * e", "= e"),
        "norm-bias-missing": ("= 2 * e", "= e"),
        "last-norm-missing": (") + norm", ")"),
        "last-norm-twice": (") + norm", ") + 2 * norm"),
        "one-norm-a-block": ("2 * norm", "norm"),
        "four-widths-missing": ("+ 2 * norm", ""),
        "block-norms-once": ("+ 2 * norm) + norm", ") + 3 * norm"),
        "feed-biases-missing": ("+ m + m * e + e", "+ m * e"),
        "fc1-bias-missing": ("+ m + m * e", "+ m * e"),
        "fc2-bias-missing": ("m * e + e", "m * e"),
        "fc2-bias-is-m": ("m * e + e", "m * e + m"),
        "fc1-bias-is-e": ("e * m + m", "e * m + e"),
        "fc2-missing": ("+ m * e + e", ""),
        "feed-is-square": ("m * e + e", "e * e + e"),
        "all-norms-missing": ("= 2 * e", "= 0"),
        "three-projections": ("4", "3"),
        "one-bias-for-the-attention": ("+ 4 * e", "+ e"),
        "one-block": ("num_layers * ", ""),
        "number-of-the-chapter": ("return", "return 85_056_000 or"),
        "last-norm-in-each-block": ("2 * norm) + norm", "3 * norm)"),
        "linears-for-each-head": ("4", "4 * num_heads"),
        "three-linears-for-each-head": ("4", "(3 * num_heads + 1)"),
        "biases-for-each-head": ("+ 4 * e", "+ 4 * num_heads * e"),
        "projections-to-one-head": ("4 * e", "4 * (e // num_heads)"),
        "three-projections-to-one-head": ("4 * e", "(3 * (e // num_heads) + e)"),
    },
)


@exercise("07.2", "How many parameters does it have?")
def how_many_numbers(parameters) -> Message:
    return same_function(
        parameters,
        count,
        lambda case: (case["l"], case["h"] * case["d"], case["h"], case["m"]),
        forbidden=dict.fromkeys(
            (
                "Encoder.__init__",
                "EncoderBlock.__init__",
                "MultiHeadAttention.__init__",
                "FeedForward.__init__",
                "Module.__init__",
            ),
            "count-by-arithmetic",
        ),
        mistakes=COUNT_MISTAKES,
    )


ORDERS = ("pre", "out", "side")


class RightBlock(EncoderBlock):
    """The right block, in all three orders."""

    def __init__(self, embed_dim: int, num_heads: int, mlp_dim: int, order: str):
        super().__init__(embed_dim, num_heads, mlp_dim)
        self.order = order

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        attend = partial(self.attn, attn_mask=attn_mask)
        feed, first, second = self.mlp, self.norm1, self.norm2
        if self.order == "pre":
            half = x + attend(first(x))
            return half + feed(second(half))
        if self.order == "out":
            half = x + first(attend(x))
            return half + second(feed(half))
        return x + attend(first(x)) + feed(second(x))


def always(*steps: str) -> Patch:
    """The same steps in every order."""
    branch = 'if self.order == "pre"'
    return branch, "\n        ".join((*steps, branch))


PRE = "half = x + attend(first(x))"
BLOCK_MISTAKES = patches(
    RightBlock,
    {
        "mask-not-handed-on": (", attn_mask=attn_mask", ""),
        "mask-is-inverted": ("=attn_mask", "=None if attn_mask is None else ~attn_mask"),
        "feed-forward-first": always("attend, feed, first, second = feed, attend, second, first"),
        "norms-changed-places": ("first, second", "second, first"),
        "norm1-in-both-halves": ("self.norm2", "self.norm1"),
        **{
            message("order-instead", right=right, wrong=wrong): ("self.order ==", f"{wrong!r} ==")
            for right, wrong in permutations(ORDERS, 2)
        },
        "post-norm-instead": always("x = first(x + attend(x))", "return second(x + feed(x))"),
        "no-norm-before-the-parts": always("return x + attend(x) + feed(x)"),
        "out-beside": ("feed(half)", "feed(x)"),
        "norm-before-and-behind-second": always(
            'if self.order != "side":',
            "    half = x + first(attend(x))",
            "    return half + second(feed(second(half)))",
        ),
        "stream-added-twice": ("feed(second(x))", "x + feed(second(x))"),
        "stream-not-added": ("x + ", "", "half + ", ""),
        "one-part-inside-the-other": always("return x + feed(second(attend(first(x))))"),
        "sums-from-norm": (
            PRE,
            "half = second(first(x) + attend(first(x)))\n            return half + feed(half)",
        ),
        "first-sum-from-norm": (PRE, "half = first(x) + attend(first(x))"),
        "norm-before-and-behind": always(
            "half = x + first(attend(first(x)))", "return half + second(feed(second(half)))"
        ),
        "no-norm-at-all": always("x = x + attend(x)", "return x + feed(x)"),
        message("bends-with", name="ReLU"): ("mlp_dim)", 'mlp_dim, activation="relu")'),
        **{
            message("norms-add-eps", eps=eps): ("mlp_dim)", f"mlp_dim, norm_eps={eps})")
            for eps in (1e-3, 1e-6, 1e-12, 0.0)
        },
    },
)
BLOCK = dict.fromkeys(
    ("EncoderBlock.forward", "Encoder.forward", "TransformerEncoderLayer.forward"),
    "write-block-lines",
)


def stream_and_mask(case: Case) -> tuple[Tensor, Tensor]:
    """Tokens, and a mask in which each token may attend at least to itself."""
    x = case.randn("b n (h d)")
    mask = case.bools("b 1 n n") | torch.eye(case["n"], dtype=torch.bool)
    return x, mask


def mistakes_in(order: str) -> Mistakes:
    """The mistakes that can be made in an order; each name of another order occurs once."""
    return {
        cause: wrong
        for cause, wrong in BLOCK_MISTAKES.items()
        if isinstance(cause, str) or cause.params.get("right", order) == order
    }


@exercise("07.3", "A block in three orders")
def block_in_three_orders(Block) -> Message:
    for order in ORDERS:

        def arguments(case: Case, order: str = order) -> dict[str, Any]:
            return {
                "embed_dim": case["h"] * case["d"],
                "num_heads": case["h"],
                "mlp_dim": case["m"] + 10,
                "order": order,
            }

        def clinic(block: nn.Module, built: dict[str, Any]) -> Report:
            return diagnose_block(
                block, built["num_heads"], norm_first=True, activation="gelu", norm_eps=1e-5
            )

        for inputs in (lambda case: (case.randn("b n (h d)"),), stream_and_mask):
            try:
                same_module(
                    Block,
                    RightBlock,
                    arguments,
                    inputs,
                    mistakes=mistakes_in(order),
                    forbidden=BLOCK,
                    clinic=clinic if order == "pre" else None,
                    trials=2,
                )
            except Wrong as wrong:
                wrong.what = message("with-order", order=order, what=wrong.what)
                raise
    return message("three-orders-agree")


# -------------------------------------------------------------------------------------- the stack


class Stack(Encoder):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


STACK_MISTAKES = patches(
    Stack,
    {
        "stack-norm-missing": ("self.norm(x)", "x"),
        "stack-norm-after-every-block": ("self.norm(x)", "x", "layer(x)", "self.norm(layer(x))"),
        "stack-norm-after-every-block-too": ("layer(x)", "self.norm(layer(x))"),
        "first-block-alone": ("self.layers:", "self.layers[:1]:"),
        "every-block-reads-x": ("self.layers:", "self.layers[-1:]:"),
        "stack-norm-first": ("self.norm(x)", "x", "for ", "x = self.norm(x)\n        for "),
        "block-added-again": ("= layer(x)", "= x + layer(x)"),
        "block-added-and-normed": ("layer(x)", "self.norm(x + layer(x))"),
        "stream-added-to-normed": ("self.norm(x)", "self.norm(x) + x"),
        "blocks-backwards": ("self.layers:", "reversed(self.layers):"),
        "blocks-are-post-norm": ("x = layer", "layer.norm_first = False\n            x = layer"),
    },
)


def as_many_blocks(Healthy: type[nn.Module]) -> None:
    """Raise `Wrong` when there are more blocks or fewer than num_layers."""
    if not (isinstance(Healthy, type) and issubclass(Healthy, nn.Module)):
        return
    for num_layers in (2, 5):
        sizes = {"num_layers": num_layers, "embed_dim": 12, "num_heads": 3, "mlp_dim": 20}
        try:
            layers = getattr(attempt(Healthy, **sizes), "layers", None)
        except Crashed:
            return
        if isinstance(layers, nn.ModuleList | nn.Sequential) and len(layers) != num_layers:
            raise Wrong(message("number-of-blocks", got=len(layers), want=num_layers))


@exercise("07.4", "Find the bug")
def find_the_bug(Healthy) -> Message:
    def clinic(stack: nn.Module, built: dict[str, Any]) -> Report:
        return diagnose_block(stack, built["num_heads"], norm_first=True)

    written(Healthy)
    as_many_blocks(Healthy)
    same_module(
        Healthy,
        Encoder,
        lambda case: {
            "num_layers": case["l"],
            "embed_dim": case["h"] * case["d"],
            "num_heads": case["h"],
            "mlp_dim": case["m"] + 10,
        },
        lambda case: (case.randn("b n (h d)"),),
        mistakes=STACK_MISTAKES,
        forbidden=dict.fromkeys(
            ("Encoder.__init__", "Encoder.forward", "TransformerEncoder.forward"),
            "write-list-and-loop",
        ),
        clinic=clinic,
        trials=2,
    )
    fresh = Healthy(num_layers=3, embed_dim=12, num_heads=3, mlp_dim=20)
    if found := by_clinic(lambda stack: clinic(stack, {"num_heads": 3}), fresh):
        raise Wrong("stack-is-sick-before-training", lambda: found)
    return message("layers-have-their-own")


# ----------------------------------------------------------------------------- what the head reads


class Reader(VisionTransformer):
    def __init__(self, pool: str, **sizes: Any):
        super().__init__(**sizes)
        self.pool = pool

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.encoder(self.embedding(images))
        read = tokens[:, 0] if self.pool == "class" else tokens[:, 1:].mean(dim=1)
        return self.head(read)


TOKEN, MEAN, EMBEDDED = "tokens[:, 0]", "tokens[:, 1:].mean(dim=1)", "self.embedding(images)"
IN_BOTH = {
    "reads-before-encoder": (f"self.encoder({EMBEDDED})", EMBEDDED),
    "encoded-twice": (EMBEDDED, f"self.encoder({EMBEDDED})"),
    "class-token-cut-off": (EMBEDDED, f"{EMBEDDED}[:, 1:]"),
    "softmax-too-many": ("self.head(read)", "self.head(read).softmax(dim=-1)"),
}
READINGS = {
    "class": patches(
        Reader,
        {
            "reads-last-token": (TOKEN, "tokens[:, -1]"),
            "reads-first-patch": (TOKEN, "tokens[:, 1]"),
            "reads-mean-of-patches": (TOKEN, MEAN),
            "reads-mean-of-all": (TOKEN, "tokens.mean(dim=1)"),
            "reads-sum-of-all": (TOKEN, "tokens.sum(dim=1)"),
            **IN_BOTH,
        },
    ),
    "mean": patches(
        Reader,
        {
            "class-token-in-mean": (MEAN, "tokens.mean(dim=1)"),
            "reads-class-token": (MEAN, TOKEN),
            "last-patch-missing": (MEAN, "tokens[:, :-1].mean(dim=1)"),
            "first-patch-missing": (MEAN, "tokens[:, 2:].mean(dim=1)"),
            "reads-sum-of-patches": (MEAN, "tokens[:, 1:].sum(dim=1)"),
            "divided-by-all-tokens": (MEAN, "tokens[:, 1:].sum(dim=1) / tokens.shape[1]"),
            "largest-not-mean": (MEAN, "tokens[:, 1:].amax(dim=1)"),
            "median-not-mean": (MEAN, "tokens[:, 1:].median(dim=1).values"),
            "largest-score-of-patches": ("head(read)", "head(tokens)[:, 1:].amax(dim=1)"),
            **IN_BOTH,
        },
    ),
}


@exercise("07.5", "What the head reads")
def what_the_head_reads(Classifier) -> Message:
    for pool in ("class", "mean"):

        def arguments(case: Case, pool: str = pool) -> dict[str, Any]:
            rows, columns = case["gh"] * case["ph"], case["gw"] * case["pw"]
            return {
                "image_size": (rows, columns),
                "patch_size": (case["ph"], case["pw"]),
                "in_channels": case["c"],
                "num_classes": 11,
                "embed_dim": case["h"] * case["d"],
                "num_heads": case["h"],
                "mlp_dim": 10,
                "num_layers": 2,
                "pool": pool,
            }

        try:
            same_module(
                Classifier,
                Reader,
                arguments,
                lambda case: (case.randn("b c (gh ph) (gw pw)"),),
                mistakes=READINGS[pool],
                forbidden={"VisionTransformer.forward": "write-its-three-steps"},
                trials=2,
            )
        except Wrong as wrong:
            wrong.what = message("with-pool", pool=pool, what=wrong.what)
            raise
    return message("both-readings-agree")


# ------------------------------------------------------------------------------------ the rollout


def token_sources(maps: list[Tensor], own: float, token: int) -> Tensor:
    unit = torch.eye(maps[0].shape[-1], dtype=maps[0].dtype)
    row = unit[token].expand(len(maps[0]), 1, -1)
    for weights in reversed(maps):
        gathered = weights.mean(dim=1)
        row = row @ (own * unit + (1 - own) * gathered)
    return row[:, 0]


def maps_share_and_token(case: Case) -> tuple[list[Tensor], float, int]:
    count = case.random.choice((2, 3, 4))
    maps = [case.randn("b h n n").softmax(dim=-1) for _ in range(count)]
    own = case.random.choice((0.2, 0.3, 0.7, 0.9))
    return maps, own, case.random.randrange(1, case["n"])


START = "row = unit[token].expand(len(maps[0]), 1, -1)"
STEP = "row @ (own * unit + (1 - own) * gathered)"
ADDED = ("for", "start, row = row, 0\n    for", "row @", "row + start @")
SOURCE_MISTAKES = patches(
    token_sources,
    {
        "layers-from-the-first": ("reversed(maps)", "maps"),
        "column-instead-of-row": ("gathered)", "gathered).mT"),
        "column-from-the-first": ("reversed(maps)", "maps", "gathered)", "gathered).mT"),
        "own-and-rest-exchanged": ("own * unit + (1 - own)", "(1 - own) * unit + own"),
        "own-not-used": ("own * unit + (1 - own)", "0.5 * unit + 0.5"),
        "own-part-missing": ("own * unit + ", ""),
        "gathered-alone": ("own * unit + (1 - own) * ", ""),
        "rest-not-multiplied": ("(1 - own) * ", ""),
        "own-not-multiplied": ("own * unit", "unit"),
        "both-not-multiplied": ("own * unit + (1 - own) *", "unit +"),
        "heads-summed": ("mean(", "sum("),
        "largest-of-heads": ("mean(", "amax("),
        "first-head-alone": ("weights.mean(dim=1)", "weights[:, 0]"),
        "last-layer-alone": ("reversed(maps)", "maps[-1:]"),
        "first-layer-alone": ("reversed(maps)", "maps[:1]"),
        "last-layer-missing": ("reversed(maps)", "reversed(maps[:-1])"),
        "first-layer-missing": ("reversed(maps)", "reversed(maps[1:])"),
        "layers-added": ADDED,
        "layers-averaged": (*ADDED, "row[:, 0]", "row[:, 0] / len(maps)"),
        "always-class-token": ("unit[token]", "unit[0]"),
        "whole-table-returned": (START, "row = unit", "row[:, 0]", "row"),
        "own-share-of-all": (STEP, "own + (1 - own) * row @ gathered"),
        "sample-instead-of-token": (
            START,
            "row = unit.new_zeros(len(maps[0]), 1, len(unit))\n    row[token] = 1",
        ),
        "own-missing-in-last-layer": (
            START,
            "row = maps[-1].mean(dim=1)[:, token, None]",
            "reversed(maps)",
            "reversed(maps[:-1])",
        ),
        "own-share-of-the-start": (STEP, "own * unit[token] + (1 - own) * row @ gathered"),
        "row-of-token-each-time": (STEP, "own * row + (1 - own) * gathered[:, token, None]"),
    },
)
MATRIX_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "mm", "einsum")
MATRIX_PRODUCTS += ("tensordot", "matrix_power", "chain_matmul", "linalg_multi_dot", "multi_dot")


@exercise("07.6", "Where one token comes from")
def where_numbers_come_from(sources) -> Message:
    compared = same_function(
        sources,
        token_sources,
        maps_share_and_token,
        mistakes=SOURCE_MISTAKES,
        gradients=False,
    )
    one = [Case(9).randn("b h n n").softmax(dim=-1)]
    got = run(sources, (one, 0.3, 0), ["maps", "own", "token"])
    if difference(got, token_sources(one, 0.3, 0)):
        raise Wrong("one-layer-differs")
    maps, own, token = maps_share_and_token(Case(0))
    with Results() as results:
        sources(maps, own, token)
    whole = (maps[0].shape[-1],) * 2
    if any(name in MATRIX_PRODUCTS and shape[-2:] == whole for name, shape in results.made):
        noticed(Wrong("whole-tables-multiplied"))
    return compared


# ------------------------------------------------------------------------------------- the shift


def moved(images: Tensor, columns: int) -> Tensor:
    size = images.shape[-1]
    places = torch.arange(size) - columns
    inside = (places >= 0) & (places < size)
    return images[..., places.clamp(0, size - 1)] * inside


class Trained(nn.Module):
    """A model in training mode, with much dropout, that notes how it is run."""

    said = "model-in-training"

    def __init__(self, width: int, classes: int, case: Case):
        super().__init__()
        self.dropout, self.head = nn.Dropout(0.9), nn.Linear(width, classes)
        self.to(case.dtype)
        with torch.no_grad():
            weights = torch.randn(classes, width, generator=case.generator, dtype=case.dtype)
            self.head.weight.copy_(weights)
        self.seen: list[tuple[bool, bool]] = []

    def forward(self, images: Tensor) -> Tensor:
        self.seen.append((self.training, torch.is_grad_enabled()))
        return self.head(self.dropout(images.flatten(1)))


def model_and_examples(case: Case) -> tuple[nn.Module, Tensor, Tensor]:
    """A model, images and labels, some of which it predicts correctly."""
    images = case.randn("32 c H W")  # 32: every fraction is also exact in single precision
    model = Trained(images[0].numel(), case["k"] + 2, case)
    with torch.no_grad():
        labels = model.head(images.flatten(1)).argmax(dim=-1)
    found = int(case.integers("", 6, 26))
    labels[found:] = (labels[found:] + 1) % (case["k"] + 2)
    return model, images, labels


def share_of_hits(model: nn.Module, images: Tensor, labels: Tensor) -> float:
    model.eval()
    with torch.no_grad():
        scores = model(images)
    hits = scores.argmax(dim=-1) == labels
    return hits.double().mean().item()


@cache
def digits_moved(columns: int, down: bool = False) -> float:
    """The accuracy of the digits model on moved test digits."""
    images, labels = load_digits()[1]
    model = load_shipped("digits").double()
    images = images.double()
    images = moved(images.mT, columns).mT if down else moved(images, columns)
    return training.accuracy(model, (images, labels))


def measured(value: Any, columns: int) -> None:
    same_number(
        value,
        digits_moved(columns),
        0.01,
        message("accuracy-when-moved", columns=columns),
        known={
            digits_moved(0): "accuracy-unmoved",
            100 * digits_moved(columns): "accuracy-is-percentage",
            1 - digits_moved(columns): "accuracy-is-error",
            digits_moved(0) - digits_moved(columns): "accuracy-is-loss",
            digits_moved(-columns): "moved-to-the-left",
            digits_moved(columns, down=True): "moved-down",
            digits_moved(3 - columns): message("moved-by", columns=3 - columns),
        },
    )


SHIFTED = "images[..., places.clamp(0, size - 1)] * inside"
SHIFT_MISTAKES = patches(
    moved,
    {
        "comes-back-at-other-side": (SHIFTED, "images.roll(columns, -1)"),
        "rolls-all-numbers": (SHIFTED, "images.roll(columns)"),
        "rolls-rows": (SHIFTED, "images.roll(columns, -2)"),
        "moves-to-the-left": ("- columns", "+ columns"),
        "negative-moves-right-too": ("- columns", "- abs(columns)"),
        "negative-needs-paper": (
            SHIFTED,
            "images.roll(columns, -1) * (torch.arange(size) >= columns % size)",
        ),
        "moves-down": ("shape[-1]", "shape[-2]", "1)] * inside", "1), :] * inside[:, None]"),
        "moves-channels": (
            "shape[-1]",
            "shape[1]",
            SHIFTED,
            "images[:, places.clamp(0, size - 1)] * inside[:, None, None]",
        ),
        "edge-is-repeated": (" * inside", ""),
        "old-columns-stay": ("* inside", "* inside + images * ~inside"),
        "one-column-more": ("- columns", "- columns - int(columns > 0)"),
        "paper-is-zero": ("* inside", "* inside + ~inside"),
    },
)
HITS = "scores.argmax(dim=-1) == labels"
ACCURACY_MISTAKES = patches(
    share_of_hits,
    {
        "share-read-wrongly": ("==", "!="),
        "smallest-score": ("argmax", "argmin"),
        "number-not-share": ("mean()", "sum()"),
        "percentage-not-share": ("return", "return 100 *"),
        "chance-not-hit": (HITS, "scores.softmax(dim=-1).gather(1, labels[:, None])"),
        "mean-score-not-hit": (HITS, "scores.gather(1, labels[:, None])"),
        "rounded": ("hits.double().mean().item()", "round(hits.double().mean().item(), 2)"),
    },
)


@exercise("07.7", "One pixel to the right")
def one_pixel_to_the_right(shifted, accuracy_of, one_pixel, two_pixels) -> Message:
    written(shifted, accuracy_of, one_pixel, two_pixels)
    same_function(
        shifted,
        moved,
        lambda case: (case.randn("b c H (2 W)"), case.random.choice((-3, -2, -1, 1, 2, 3))),
        mistakes=SHIFT_MISTAKES,
        gradients=False,
        trials=Trials(6),
    )
    images = Case(7).randn("b c H W")
    for columns in (0, images.shape[-1] - 1, 1 - images.shape[-1]):
        got = naming(run)(shifted, (images.clone(), columns), ["images", "columns"])
        if not torch.equal(got, moved(images, columns)):
            raise Wrong(message("this-shift-differs", columns=columns))

    model, images, labels = model_and_examples(Case(0))
    naming(run)(accuracy_of, (model, images, labels), ["model", "images", "labels"])
    if any(training_mode for training_mode, _ in model.seen):
        raise Wrong("training-mode")
    same_function(
        accuracy_of,
        share_of_hits,
        model_and_examples,
        mistakes=ACCURACY_MISTAKES,
        forbidden=dict.fromkeys(("accuracy", "predict"), "write-accuracy-steps"),
    )
    if any(gradients for _, gradients in model.seen):
        raise Wrong("records-gradients")
    measured(one_pixel, 1)
    measured(two_pixels, 2)
    return message("pixels-cost")


open_exercise("07.8", "Is it a difference?")
