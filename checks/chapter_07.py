"""Checks of the exercises of chapter 07: encoder, Vision Transformer, what it looks at."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import permutations
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic import Report, diagnose_block
from checks.engine.answer import Wrong, noticed, written
from checks.engine.calls import Crashed, attempt, naming, run
from checks.engine.cases import Case
from checks.engine.compare import difference
from checks.engine.explain import by_clinic
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.modules import same_module
from checks.engine.results import Results
from checks.engine.verdict import exercise, open_exercise
from utils import training
from utils.attention import record_attention
from utils.data import load_digits, load_shipped
from utils.embedding import PatchEmbedding
from utils.encoder import Encoder, EncoderBlock, FeedForward
from utils.vision_transformer import VisionTransformer


@exercise("07.1", "From picture to answer")
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


# --------------------------------------------------------------------------------- the parameters


def count(num_layers: int, embed_dim: int, num_heads: int, mlp_dim: int) -> int:
    encoder = Encoder(num_layers, embed_dim, num_heads, mlp_dim)
    return sum(parameter.numel() for parameter in encoder.parameters())


def counted(
    projections: int = 4,
    projection_biases: int = 4,
    feed: Callable[[int, int], int] = lambda e, m: 2 * e * m + m + e,
    norms: int = 2,
    norm_biases: bool = True,
    last: int = 1,
    all_layers: bool = True,
    norms_once: bool = False,
) -> Callable[[int, int, int, int], int]:
    """Count with something forgotten."""

    def number(num_layers: int, e: int, num_heads: int, m: int) -> int:
        norm = (1 + norm_biases) * e
        attention = projections * e * e + projection_biases * e
        blocks = num_layers if all_layers else 1
        inside = (1 if norms_once else blocks) * norms * norm
        return blocks * (attention + feed(e, m)) + inside + last * norm

    return number


def and_heads(more: Callable[[int, int], int]) -> Callable[[int, int, int, int], int]:
    """Count wrongly by a number that depends on width and heads, in every block."""
    return lambda num_layers, e, h, m: counted()(num_layers, e, h, m) + num_layers * more(e, h)


COUNT_MISTAKES = {
    "linear-biases-missing": counted(projection_biases=0, feed=lambda e, m: 2 * e * m),
    "all-biases-missing": counted(
        projection_biases=0, feed=lambda e, m: 2 * e * m, norm_biases=False
    ),
    "norm-bias-missing": counted(norm_biases=False),
    "last-norm-missing": counted(last=0),
    "last-norm-twice": counted(last=2),
    "one-norm-a-block": counted(norms=1),
    "four-widths-missing": counted(norms=0),
    "block-norms-once": counted(norms_once=True),
    "feed-biases-missing": counted(feed=lambda e, m: 2 * e * m),
    "fc1-bias-missing": counted(feed=lambda e, m: 2 * e * m + e),
    "fc2-bias-missing": counted(feed=lambda e, m: 2 * e * m + m),
    "fc2-bias-is-m": counted(feed=lambda e, m: 2 * e * m + 2 * m),
    "fc1-bias-is-e": counted(feed=lambda e, m: 2 * e * m + 2 * e),
    "fc2-missing": counted(feed=lambda e, m: e * m + m),
    "feed-is-square": counted(feed=lambda e, m: e * m + m + e * e + e),
    "all-norms-missing": counted(norms=0, last=0),
    "three-projections": counted(projections=3, projection_biases=3),
    "one-bias-for-the-attention": counted(projection_biases=1),
    "three-biases-for-the-attention": counted(projection_biases=3),
    "one-block": counted(all_layers=False),
    "number-of-the-chapter": lambda *_: 85_056_000,
    "last-norm-in-each-block": counted(norms=3, last=0),
    "linears-for-each-head": and_heads(lambda e, h: 4 * (h - 1) * (e * e + e)),
    "three-linears-for-each-head": and_heads(lambda e, h: 3 * (h - 1) * (e * e + e)),
    "biases-for-each-head": and_heads(lambda e, h: 4 * (h - 1) * e),
    "projections-to-one-head": and_heads(lambda e, h: 4 * (e // h - e) * (e + 1)),
    "three-projections-to-one-head": and_heads(lambda e, h: 3 * (e // h - e) * (e + 1)),
}


@exercise("07.2", "How many numbers does it learn?")
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


# -------------------------------------------------------------------------------------- the block


def block_with(forward: Callable[..., Tensor]) -> Callable[..., nn.Module]:
    """A block with the right parts and another forward."""
    return type("Block", (RightBlock,), {"forward": forward})


def orders(**forwards: Callable[..., Tensor]) -> Callable[..., nn.Module]:
    """A block with a forward for each order."""
    return block_with(lambda self, *given: forwards[self.order](self, *given))


class RightBlock(EncoderBlock):
    """The right block, in all three orders."""

    def __init__(self, embed_dim: int, num_heads: int, mlp_dim: int, order: str):
        super().__init__(embed_dim, num_heads, mlp_dim)
        self.order = order

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        return ORDERS[self.order](self, x, attn_mask)


def pre(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + self.attn(self.norm1(x), attn_mask=mask)
    return x + self.mlp(self.norm2(x))


def post(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = self.norm1(x + self.attn(x, attn_mask=mask))
    return self.norm2(x + self.mlp(x))


def out(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + self.norm1(self.attn(x, attn_mask=mask))
    return x + self.norm2(self.mlp(x))


def side(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return x + self.attn(self.norm1(x), attn_mask=mask) + self.mlp(self.norm2(x))


def out_beside(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return x + self.norm1(self.attn(x, attn_mask=mask)) + self.norm2(self.mlp(x))


def side_unnormed(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return x + self.attn(x, attn_mask=mask) + self.mlp(x)


def side_of_sums(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return (x + self.attn(self.norm1(x), attn_mask=mask)) + (x + self.mlp(self.norm2(x)))


def side_not_added(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return side(self, x, mask) - x


def one_inside_the_other(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return x + self.mlp(self.norm2(self.attn(self.norm1(x), attn_mask=mask)))


def pre_from_norm(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = self.norm1(x)
    x = self.norm2(x + self.attn(x, attn_mask=mask))
    return x + self.mlp(x)


def pre_first_from_norm(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = self.norm1(x)
    x = x + self.attn(x, attn_mask=mask)
    return x + self.mlp(self.norm2(x))


def out_of_pre(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + self.norm1(self.attn(self.norm1(x), attn_mask=mask))
    return x + self.norm2(self.mlp(self.norm2(x)))


def out_of_second(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + self.norm1(self.attn(x, attn_mask=mask))
    return x + self.norm2(self.mlp(self.norm2(x)))


def out_not_added(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = self.norm1(self.attn(x, attn_mask=mask))
    return self.norm2(self.mlp(x))


def pre_not_added(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = self.attn(self.norm1(x), attn_mask=mask)
    return self.mlp(self.norm2(x))


def no_norms(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + self.attn(x, attn_mask=mask)
    return x + self.mlp(x)


ORDERS = {"pre": pre, "out": out, "side": side}


def turned(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same steps with the parts in the other order: first the feed-forward."""

    def run_turned(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        def feed(x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
            return self.mlp(x)

        def attend(x: Tensor) -> Tensor:
            return self.attn(x, attn_mask=mask)

        parts = SimpleNamespace(norm1=self.norm2, attn=feed, norm2=self.norm1, mlp=attend)
        return forward(parts, x, mask)

    return run_turned


def exchanged(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same steps with the norms in each other's place."""

    def run_exchanged(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        parts = SimpleNamespace(norm1=self.norm2, attn=self.attn, norm2=self.norm1, mlp=self.mlp)
        return forward(parts, x, mask)

    return run_exchanged


def first_norm_twice(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The same steps with norm1 in both places."""

    def run_twice(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
        parts = SimpleNamespace(norm1=self.norm1, attn=self.attn, norm2=self.norm1, mlp=self.mlp)
        return forward(parts, x, mask)

    return run_twice


def masked_by(change: Callable[[Tensor], Tensor | None]) -> Callable[..., nn.Module]:
    """A block that makes another mask of its mask."""
    return block_with(
        lambda self, x, mask=None: RightBlock.forward(
            self, x, None if mask is None else change(mask)
        )
    )


def activated_by(name: str) -> Callable[..., nn.Module]:
    """A block whose feed-forward bends otherwise."""

    def build(**sizes: Any) -> nn.Module:
        block = RightBlock(**sizes)
        block.mlp = FeedForward(sizes["embed_dim"], sizes["mlp_dim"], activation=name)
        return block

    return build


def with_eps(eps: float) -> Callable[..., nn.Module]:
    """A block whose norms add another eps."""

    def build(**sizes: Any) -> nn.Module:
        block = RightBlock(**sizes)
        block.norm1.eps = block.norm2.eps = eps
        return block

    return build


def everywhere(change: Callable[[Callable], Callable]) -> Callable[..., nn.Module]:
    """A block with the same mistake in every order."""
    return orders(**{name: change(forward) for name, forward in ORDERS.items()})


BLOCK_MISTAKES = {
    "mask-not-handed-on": masked_by(lambda mask: None),
    "mask-is-inverted": masked_by(lambda mask: ~mask),
    "feed-forward-first": everywhere(turned),
    "norms-changed-places": everywhere(exchanged),
    "norm1-in-both-halves": everywhere(first_norm_twice),
    **{
        message("order-instead", right=right, wrong=wrong): everywhere(
            lambda _, wrong=wrong: ORDERS[wrong]
        )
        for right, wrong in permutations(ORDERS, 2)
    },
    "post-norm-instead": everywhere(lambda _: post),
    "no-norm-before-the-parts": everywhere(lambda _: side_unnormed),
    "out-beside": orders(pre=pre, out=out_beside, side=side),
    "norm-before-and-behind-second": orders(pre=out_of_second, out=out_of_second, side=side),
    "stream-added-twice": orders(pre=pre, out=out, side=side_of_sums),
    "stream-not-added": orders(pre=pre_not_added, out=out_not_added, side=side_not_added),
    "one-part-inside-the-other": everywhere(lambda _: one_inside_the_other),
    "sums-from-norm": orders(pre=pre_from_norm, out=out, side=side),
    "first-sum-from-norm": orders(pre=pre_first_from_norm, out=out, side=side),
    "norm-before-and-behind": everywhere(lambda _: out_of_pre),
    "no-norm-at-all": everywhere(lambda _: no_norms),
    message("bends-with", name="ReLU"): activated_by("relu"),
    **{message("norms-add-eps", eps=eps): with_eps(eps) for eps in (1e-3, 1e-6, 1e-12, 0.0)},
}
BLOCK = dict.fromkeys(
    ("EncoderBlock.forward", "Encoder.forward", "TransformerEncoderLayer.forward"),
    "write-block-lines",
)


def stream_and_mask(case: Case) -> tuple[Tensor, Tensor]:
    """A stream, and a mask in which each token may attend at least to itself."""
    x = case.randn("b n (h d)")
    mask = case.bools("b 1 n n") | torch.eye(case["n"], dtype=torch.bool)
    return x, mask


def mistakes_in(order: str) -> dict[Message | str, Callable[..., nn.Module]]:
    """The mistakes that can be made in an order: another order's name belongs to one alone."""
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


def stack_with(forward: Callable[..., Tensor]) -> Callable[..., nn.Module]:
    """A stack with the right parts and another forward."""
    return type("Stack", (Encoder,), {"forward": forward})


def not_normed(self: Any, x: Tensor) -> Tensor:
    for layer in self.layers:
        x = layer(x)
    return x


def normed_each_time(self: Any, x: Tensor) -> Tensor:
    for layer in self.layers:
        x = self.norm(layer(x))
    return x


def normed_twice(self: Any, x: Tensor) -> Tensor:
    return self.norm(normed_each_time(self, x))


def first_alone(self: Any, x: Tensor) -> Tensor:
    return self.norm(self.layers[0](x))


def normed_first(self: Any, x: Tensor) -> Tensor:
    return not_normed(self, self.norm(x))


def added_again(self: Any, x: Tensor) -> Tensor:
    for layer in self.layers:
        x = x + layer(x)
    return self.norm(x)


def added_and_normed(self: Any, x: Tensor) -> Tensor:
    for layer in self.layers:
        x = self.norm(x + layer(x))
    return self.norm(x)


def added_to_normed(self: Any, x: Tensor) -> Tensor:
    x = not_normed(self, x)
    return self.norm(x) + x


def backwards(self: Any, x: Tensor) -> Tensor:
    for layer in reversed(self.layers):
        x = layer(x)
    return self.norm(x)


def last_alone(self: Any, x: Tensor) -> Tensor:
    return self.norm(self.layers[-1](x))


def post_normed(**sizes: int) -> nn.Module:
    """A stack of post-norm blocks, with a norm behind them."""
    encoder = Encoder(**sizes)
    for layer in encoder.layers:
        layer.norm_first = False
    return encoder


STACK_MISTAKES = {
    "stack-norm-missing": stack_with(not_normed),
    "stack-norm-after-every-block": stack_with(normed_each_time),
    "stack-norm-after-every-block-too": stack_with(normed_twice),
    "first-block-alone": stack_with(first_alone),
    "every-block-reads-x": stack_with(last_alone),
    "stack-norm-first": stack_with(normed_first),
    "block-added-again": stack_with(added_again),
    "block-added-and-normed": stack_with(added_and_normed),
    "stream-added-to-normed": stack_with(added_to_normed),
    "blocks-backwards": stack_with(backwards),
    "blocks-are-post-norm": post_normed,
}


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


class Reader(nn.Module):
    """A Vision Transformer whose head reads what the function `read` makes of the tokens."""

    def __init__(
        self,
        image_size: tuple[int, int],
        patch_size: tuple[int, int],
        in_channels: int,
        num_classes: int,
        embed_dim: int,
        num_heads: int,
        mlp_dim: int,
        num_layers: int,
        pool: str,
    ):
        super().__init__()
        self.pool = pool
        self.embedding = PatchEmbedding(image_size, patch_size, in_channels, embed_dim)
        self.encoder = Encoder(num_layers, embed_dim, num_heads, mlp_dim)
        self.head = nn.Linear(embed_dim, num_classes)

    def read(self, tokens: Tensor) -> Tensor:
        return tokens[:, 0] if self.pool == "class" else tokens[:, 1:].mean(dim=1)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.read(self.encoder(self.embedding(images))))


class NotEncoded(Reader):
    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.read(self.embedding(images)))


class EncodedTwice(Reader):
    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.read(self.encoder(self.encoder(self.embedding(images)))))


class WithoutClassToken(Reader):
    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.read(self.encoder(self.embedding(images)[:, 1:])))


class Softmaxed(Reader):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).softmax(dim=-1)


class ScoresOf(Reader):
    """It gives scores to every token, and reads these."""

    def forward(self, images: Tensor) -> Tensor:
        return self.read(self.head(self.encoder(self.embedding(images))))


def scores_read(read: Callable[[Tensor], Tensor]) -> Callable[..., nn.Module]:
    """A model that reads something of the scores of all tokens."""
    return type("Reading", (ScoresOf,), {"read": lambda _self, tokens: read(tokens)})


def reading(read: Callable[[Tensor], Tensor]) -> Callable[..., nn.Module]:
    """A model whose head reads something else."""
    return type("Reading", (Reader,), {"read": lambda _self, tokens: read(tokens)})


IN_BOTH = {
    "reads-before-encoder": NotEncoded,
    "encoded-twice": EncodedTwice,
    "class-token-cut-off": WithoutClassToken,
    "softmax-too-many": Softmaxed,
}
READINGS = {
    "class": {
        "reads-last-token": reading(lambda t: t[:, -1]),
        "reads-first-patch": reading(lambda t: t[:, 1]),
        "reads-mean-of-patches": reading(lambda t: t[:, 1:].mean(dim=1)),
        "reads-mean-of-all": reading(lambda t: t.mean(dim=1)),
        "reads-sum-of-all": reading(lambda t: t.sum(dim=1)),
        **IN_BOTH,
    },
    "mean": {
        "class-token-in-mean": reading(lambda t: t.mean(dim=1)),
        "reads-class-token": reading(lambda t: t[:, 0]),
        "last-patch-missing": reading(lambda t: t[:, :-1].mean(dim=1)),
        "first-patch-missing": reading(lambda t: t[:, 2:].mean(dim=1)),
        "reads-sum-of-patches": reading(lambda t: t[:, 1:].sum(dim=1)),
        "divided-by-all-tokens": reading(lambda t: t[:, 1:].sum(dim=1) / t.shape[1]),
        "largest-not-mean": reading(lambda t: t[:, 1:].amax(dim=1)),
        "median-not-mean": reading(lambda t: t[:, 1:].median(dim=1).values),
        "largest-score-of-patches": scores_read(lambda t: t[:, 1:].amax(dim=1)),
        **IN_BOTH,
    },
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

Table = Callable[[Tensor, float], Tensor]


def carried(
    one: Table,
    backwards: bool = True,
    column: bool = False,
    some: Callable[[list], list] = lambda maps: maps,
) -> Callable[[list[Tensor], float, int], Tensor]:
    """A row carried through the tables of some layers, right unless it is told otherwise."""

    def sources(maps: list[Tensor], own: float, token: int, start: Tensor | None = None) -> Tensor:
        row = eye(maps[0])[token].expand(len(maps[0]), -1) if start is None else start
        row = row[:, None]
        chosen = some(maps)
        for weights in reversed(chosen) if backwards else chosen:
            table = one(weights, own)
            row = row @ (table.mT if column else table)
        return row[:, 0]

    return sources


def eye(weights: Tensor) -> Tensor:
    return torch.eye(weights.shape[-1], dtype=weights.dtype)


def table(weights: Tensor, own: float) -> Tensor:
    return own * eye(weights) + (1 - own) * weights.mean(dim=1)


def maps_share_and_token(case: Case) -> tuple[list[Tensor], float, int]:
    count = case.random.choice((2, 3, 4))
    maps = [case.randn("b h n n").softmax(dim=-1) for _ in range(count)]
    own = case.random.choice((0.2, 0.3, 0.7, 0.9))
    return maps, own, case.random.randrange(1, case["n"])


def gathering(gather: Callable[[Tensor], Tensor]) -> Table:
    """A table with another idea of what the heads gather."""
    return lambda w, own: own * eye(w) + (1 - own) * gather(w)


def added(maps: list[Tensor], own: float, token: int) -> Tensor:
    return sum(table(weights, own)[:, token] for weights in maps)


def row_of_sample(maps: list[Tensor], own: float, token: int) -> Tensor:
    start = torch.zeros(maps[0].shape[0], maps[0].shape[-1], dtype=maps[0].dtype)
    start[token] = 1
    return carried(table)(maps, own, token, start)


def own_of_start(maps: list[Tensor], own: float, token: int) -> Tensor:
    row = start = eye(maps[0])[token].expand(len(maps[0]), -1)
    for weights in reversed(maps):
        row = own * start + (1 - own) * (row[:, None] @ weights.mean(dim=1))[:, 0]
    return row


def row_each_time(maps: list[Tensor], own: float, token: int) -> Tensor:
    row = eye(maps[0])[token].expand(len(maps[0]), -1)
    for weights in reversed(maps):
        row = own * row + (1 - own) * weights.mean(dim=1)[:, token]
    return row


def own_everywhere(maps: list[Tensor], own: float, token: int) -> Tensor:
    row = eye(maps[0])[token].expand(len(maps[0]), -1)
    for weights in reversed(maps):
        row = own + (1 - own) * (row[:, None] @ weights.mean(dim=1))[:, 0]
    return row


SOURCE_MISTAKES = {
    "layers-from-the-first": carried(table, backwards=False),
    "column-instead-of-row": carried(table, column=True),
    "column-from-the-first": carried(table, backwards=False, column=True),
    "own-and-rest-exchanged": carried(lambda w, own: table(w, 1 - own)),
    "own-not-used": carried(lambda w, own: table(w, 0.5)),
    "own-part-missing": carried(lambda w, own: (1 - own) * w.mean(dim=1)),
    "gathered-alone": carried(lambda w, own: w.mean(dim=1)),
    "rest-not-multiplied": carried(lambda w, own: own * eye(w) + w.mean(dim=1)),
    "own-not-multiplied": carried(lambda w, own: eye(w) + (1 - own) * w.mean(dim=1)),
    "both-not-multiplied": carried(lambda w, own: eye(w) + w.mean(dim=1)),
    "heads-summed": carried(gathering(lambda w: w.sum(dim=1))),
    "largest-of-heads": carried(gathering(lambda w: w.amax(dim=1))),
    "first-head-alone": carried(gathering(lambda w: w[:, 0])),
    "last-layer-alone": carried(table, some=lambda maps: maps[-1:]),
    "first-layer-alone": carried(table, some=lambda maps: maps[:1]),
    "last-layer-missing": carried(table, some=lambda maps: maps[:-1]),
    "first-layer-missing": carried(table, some=lambda maps: maps[1:]),
    "layers-added": added,
    "layers-averaged": lambda maps, own, token: added(maps, own, token) / len(maps),
    "always-class-token": lambda maps, own, token: carried(table)(maps, own, 0),
    "whole-table-returned": lambda maps, own, token: torch.stack(
        [carried(table)(maps, own, one) for one in range(maps[0].shape[-1])], dim=1
    ),
    "own-share-of-all": own_everywhere,
    "sample-instead-of-token": row_of_sample,
    "own-missing-in-last-layer": lambda maps, own, token: carried(table)(
        maps[:-1], own, token, maps[-1].mean(dim=1)[:, token]
    ),
    "own-share-of-the-start": own_of_start,
    "row-of-token-each-time": row_each_time,
}
MATRIX_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "mm", "einsum")
MATRIX_PRODUCTS += ("tensordot", "matrix_power", "chain_matmul", "linalg_multi_dot", "multi_dot")


@exercise("07.6", "From where one token has its numbers")
def where_numbers_come_from(sources) -> Message:
    compared = same_function(
        sources,
        carried(table),
        maps_share_and_token,
        mistakes=SOURCE_MISTAKES,
        gradients=False,
    )
    one = [Case(9).randn("b h n n").softmax(dim=-1)]
    got = run(sources, (one, 0.3, 0), ["maps", "own", "token"])
    if difference(got, carried(table)(one, 0.3, 0)):
        raise Wrong("one-layer-differs")
    maps, own, token = maps_share_and_token(Case(0))
    with Results() as results:
        sources(maps, own, token)
    whole = (maps[0].shape[-1],) * 2
    if any(name in MATRIX_PRODUCTS and shape[-2:] == whole for name, shape in results.made):
        noticed(Wrong("whole-tables-multiplied"))
    return compared


# ------------------------------------------------------------------------------------- the shift


def moved(images: Tensor, columns: int, axis: int = -1) -> Tensor:
    """Shift along an axis; 0 comes in."""
    size = images.shape[axis]
    places = torch.arange(size) - columns
    inside = (places >= 0) & (places < size)
    result = images.index_select(axis, places.clamp(0, size - 1))
    shape = [1] * images.ndim
    shape[axis] = size
    return result * inside.reshape(shape)


def right_alone(images: Tensor, columns: int) -> Tensor:
    result = images.roll(columns, -1)
    result[..., :columns] = 0
    return result


def repeated_edge(images: Tensor, columns: int) -> Tensor:
    size = images.shape[-1]
    return images.index_select(-1, (torch.arange(size) - columns).clamp(0, size - 1))


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
    """A model, images, and labels of which it finds some."""
    images = case.randn("32 c H W")  # 32: every share is exact in single precision, too
    model = Trained(images[0].numel(), case["k"] + 2, case)
    with torch.no_grad():
        labels = model.head(images.flatten(1)).argmax(dim=-1)
    found = int(case.integers("", 6, 26))
    labels[found:] = (labels[found:] + 1) % (case["k"] + 2)
    return model, images, labels


def share(hit: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., float]:
    """An accuracy with another idea of what is right."""

    def measure(model: nn.Module, images: Tensor, labels: Tensor) -> float:
        model.eval()
        with torch.no_grad():
            return hit(model(images), labels).double().mean().item()

    return measure


@cache
def digits_moved(columns: int, axis: int = -1) -> float:
    """The accuracy of the digits model on moved test digits."""
    images, labels = load_digits()[1]
    model = load_shipped("digits").double()
    return training.accuracy(model, (moved(images.double(), columns, axis), labels))


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
            digits_moved(columns, -2): "moved-down",
            digits_moved(3 - columns): message("moved-by", columns=3 - columns),
        },
    )


def always_right(images: Tensor, columns: int) -> Tensor:
    return moved(images, abs(columns))


def left_over(images: Tensor, columns: int) -> Tensor:
    """What a move within a clone leaves where paper should come in."""
    places = torch.arange(images.shape[-1]) - columns
    inside = (places >= 0) & (places < images.shape[-1])
    return torch.where(inside, moved(images, columns), images)


def one_column_more(images: Tensor, columns: int) -> Tensor:
    return moved(images, columns + 1 if columns > 0 else columns)


SHIFT_MISTAKES = {
    "comes-back-at-other-side": lambda images, columns: images.roll(columns, -1),
    "rolls-all-numbers": lambda images, columns: images.roll(columns),
    "rolls-rows": lambda images, columns: images.roll(columns, -2),
    "moves-to-the-left": lambda images, columns: moved(images, -columns),
    "negative-moves-right-too": always_right,
    "negative-needs-paper": right_alone,
    "moves-down": lambda images, columns: moved(images, columns, -2),
    "moves-channels": lambda images, columns: moved(images, columns, 1),
    "edge-is-repeated": repeated_edge,
    "old-columns-stay": left_over,
    "one-column-more": one_column_more,
    "paper-is-zero": lambda images, columns: (
        moved(images, columns) + 1 - moved(torch.ones_like(images), columns)
    ),
}


def hits(scores: Tensor, labels: Tensor) -> Tensor:
    return scores.argmax(dim=-1) == labels


ACCURACY_MISTAKES = {
    "share-read-wrongly": share(lambda scores, labels: ~hits(scores, labels)),
    "smallest-score": share(lambda scores, labels: scores.argmin(dim=-1) == labels),
    "number-not-share": lambda *given: len(given[2]) * share(hits)(*given),
    "percentage-not-share": lambda *given: 100 * share(hits)(*given),
    "chance-not-hit": share(
        lambda scores, labels: scores.softmax(dim=-1).gather(1, labels[:, None])
    ),
    "mean-score-not-hit": share(lambda scores, labels: scores.gather(1, labels[:, None])),
    "rounded": lambda *given: round(share(hits)(*given), 2),
}


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
        share(hits),
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
