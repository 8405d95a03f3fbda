"""Checks of the exercises of chapter 07: encoder, Vision Transformer, what it looks at."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic import Report, diagnose_block
from checks.engine.answer import Wrong, written
from checks.engine.calls import naming, run
from checks.engine.cases import Case
from checks.engine.explain import by_clinic
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import message
from checks.engine.modules import same_module
from checks.engine.verdict import exercise, open_exercise
from utils import training
from utils.attention import record_attention
from utils.embedding import PatchEmbedding
from utils.encoder import Encoder, EncoderBlock
from utils.images import load_digits
from utils.vision_transformer import VisionTransformer, load_digits_model


@exercise("07.1", "From picture to answer")
def from_picture_to_answer(encoded_shape, weights_shape, answer_shape) -> str:
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
    return "the code gives all three shapes"


# --------------------------------------------------------------------------------- the parameters


def count(num_layers: int, embed_dim: int, num_heads: int, mlp_dim: int) -> int:
    encoder = Encoder(num_layers, embed_dim, num_heads, mlp_dim)
    return sum(parameter.numel() for parameter in encoder.parameters())


def counted(
    projections: int = 4,
    biases: bool = True,
    feed_biases: bool = True,
    matrices: int = 2,
    norms: int = 2,
    norm_biases: bool = True,
    last: int = 1,
    all_layers: bool = True,
) -> Callable[[int, int, int, int], int]:
    """Count with something forgotten."""

    def number(num_layers: int, e: int, num_heads: int, m: int) -> int:
        norm = (1 + norm_biases) * e
        attention = projections * (e * e + biases * e)
        feed = matrices * e * m + biases * feed_biases * (m + (matrices > 1) * e)
        blocks = num_layers if all_layers else 1
        return blocks * (attention + feed + norms * norm) + last * norm

    return number


@exercise("07.2", "How many numbers does it learn?")
def how_many_numbers(parameters) -> str:
    instead = "build nothing, and count by arithmetic"
    return same_function(
        parameters,
        count,
        lambda case: (case["l"], case["h"] * case["d"], case["h"], case["m"]),
        forbidden={
            name: instead
            for name in (
                "Encoder.__init__",
                "EncoderBlock.__init__",
                "MultiHeadAttention.__init__",
                "FeedForward.__init__",
                "Module.__init__",
            )
        },
        mistakes={
            "the biases of the Linears are missing": counted(biases=False),
            "the biases of the Linears and of the norms are missing": counted(
                biases=False, norm_biases=False
            ),
            "a norm has a bias as well as a weight": counted(norm_biases=False),
            "the norm after the last block is missing": counted(last=0),
            "a block has two norms, not one": counted(norms=1),
            "each block lacks 4 times embed_dim: the biases of its attention, or its two norms": (
                counted(norms=0)
            ),
            "the biases of the feed-forward are missing": counted(feed_biases=False),
            "the two norms of each block and the last one are missing": counted(norms=0, last=0),
            "the attention has four Linears: query, key, value, output": counted(projections=3),
            "the feed-forward has two Linears, one widens and one narrows": counted(matrices=1),
            "it counts one block, not all of them": counted(all_layers=False),
            "it is the number of the chapter's encoder, whatever the sizes": lambda *_: 85_056_000,
            "the last norm stands once after all blocks, not in each of them": (
                counted(norms=3, last=0)
            ),
            "the heads have no Linears of their own: they share those of width e": (
                lambda num_layers, e, h, m: (
                    counted()(num_layers, e, h, m) + num_layers * 4 * (h - 1) * (e * e + e)
                )
            ),
            "the heads have no Linears of their own: the query, key and value Linear of all "
            "heads together is e x e": lambda num_layers, e, h, m: (
                counted()(num_layers, e, h, m) + num_layers * 3 * (h - 1) * (e * e + e)
            ),
        },
    )


# -------------------------------------------------------------------------------------- the block


def block_with(forward: Callable[..., Tensor]) -> Callable[..., nn.Module]:
    """A block with the right parts and another forward."""
    return type("Block", (EncoderBlock,), {"forward": forward})


def either(pre: Callable[..., Tensor], post: Callable[..., Tensor]) -> Callable[..., nn.Module]:
    """A block with one wrong forward for each order of the norms."""
    return block_with(lambda self, *given: (pre if self.norm_first else post)(self, *given))


def pre_norm(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + self.attn(self.norm1(x), attn_mask=mask)
    return x + self.mlp(self.norm2(x))


def post_norm(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = self.norm1(x + self.attn(x, attn_mask=mask))
    return self.norm2(x + self.mlp(x))


def pre_norm_beside(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return x + self.attn(self.norm1(x), attn_mask=mask) + self.mlp(self.norm2(x))


def post_norm_beside(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return self.norm2(x + self.norm1(x + self.attn(x, attn_mask=mask)) + self.mlp(x))


def feed_first(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    if self.norm_first:
        x = x + self.mlp(self.norm2(x))
        return x + self.attn(self.norm1(x), attn_mask=mask)
    x = self.norm2(x + self.mlp(x))
    return self.norm1(x + self.attn(x, attn_mask=mask))


def without_mask(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return EncoderBlock.forward(self, x)


def inverted_mask(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    return EncoderBlock.forward(self, x, None if mask is None else ~mask)


def norm_of_part(self: Any, x: Tensor, mask: Tensor | None = None) -> Tensor:
    x = x + self.norm1(self.attn(x, attn_mask=mask))
    return x + self.norm2(self.mlp(x))


BLOCK_MISTAKES = {
    "the mask is not handed on to the attention": block_with(without_mask),
    "the mask is inverted: True means may attend, in the attention too": block_with(inverted_mask),
    "the feed-forward runs first, and the attention should": block_with(feed_first),
    "the feed-forward reads what the block was given, not what the attention added to it": either(
        pre_norm_beside, post_norm_beside
    ),
    "what a part returns is normed before it is added": block_with(norm_of_part),
}
BLOCK = {
    name: "write its lines yourself, with norm1, attn, norm2 and mlp"
    for name in ("EncoderBlock.forward", "Encoder.forward", "TransformerEncoderLayer.forward")
}


def other_order(norm_first: bool) -> dict[str, Callable[..., nn.Module]]:
    if norm_first:
        return {
            "this is post-norm, norm(x + part(x)); pre-norm is x + part(norm(x))": (
                block_with(post_norm)
            )
        }
    return {
        "this is pre-norm, x + part(norm(x)); post-norm is norm(x + part(x))": block_with(pre_norm)
    }


def stream_and_mask(case: Case) -> tuple[Tensor, Tensor]:
    """A stream, and a mask in which each token may attend at least to itself."""
    x = case.randn("b n (h d)")
    mask = case.bools("b 1 n n") | torch.eye(case["n"], dtype=torch.bool)
    return x, mask


@exercise("07.3", "A block in both orders")
def block_in_both_orders(Block) -> str:
    for norm_first in (True, False):

        def arguments(case: Case, norm_first: bool = norm_first) -> dict[str, Any]:
            return {
                "embed_dim": case["h"] * case["d"],
                "num_heads": case["h"],
                "mlp_dim": case["m"] + 10,
                "norm_first": norm_first,
            }

        def clinic(block: nn.Module, built: dict[str, Any]) -> Report:
            return diagnose_block(
                block,
                built["num_heads"],
                norm_first=built["norm_first"],
                activation="gelu",
                norm_eps=1e-5,
            )

        for inputs in (lambda case: (case.randn("b n (h d)"),), stream_and_mask):
            try:
                same_module(
                    Block,
                    EncoderBlock,
                    arguments,
                    inputs,
                    mistakes={**other_order(norm_first), **BLOCK_MISTAKES},
                    forbidden=BLOCK,
                    clinic=clinic,
                    trials=2,
                )
            except Wrong as wrong:
                what = f"with norm_first={norm_first}, {wrong.what}"
                raise Wrong(what, wrong.why, wrong.inputs) from None
    return "values and gradients agree in both orders, with and without a mask"


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


def backwards(self: Any, x: Tensor) -> Tensor:
    for layer in reversed(self.layers):
        x = layer(x)
    return self.norm(x)


def shared_feed(*given: int, **named: int) -> nn.Module:
    encoder = Encoder(*given, **named)
    for layer in encoder.layers:
        layer.mlp = encoder.layers[0].mlp
    return encoder


@exercise("07.4", "Find the bug")
def find_the_bug(Healthy) -> str:
    def clinic(stack: nn.Module, built: dict[str, Any]) -> Report:
        return diagnose_block(stack, built["num_heads"], norm_first=True)

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
        mistakes={
            "the last norm is missing": stack_with(not_normed),
            "the last norm runs after every block; it belongs behind the loop": stack_with(
                normed_each_time
            ),
            "the last norm runs after every block, too; it belongs behind the loop alone": (
                stack_with(normed_twice)
            ),
            "only the first block runs": stack_with(first_alone),
            "the last norm runs before the blocks; it belongs behind the loop": stack_with(
                normed_first
            ),
            "a block adds to the stream itself: x = layer(x) is enough": stack_with(added_again),
            "the blocks run in the wrong order, the last one first": stack_with(backwards),
            "the blocks share one feed-forward: build each block anew, with parts of its own": (
                shared_feed
            ),
        },
        forbidden={
            name: "write the list of blocks and the loop over them"
            for name in ("Encoder.__init__", "Encoder.forward", "TransformerEncoder.forward")
        },
        clinic=clinic,
        trials=2,
    )
    fresh = Healthy(num_layers=3, embed_dim=12, num_heads=3, mlp_dim=20)
    if found := by_clinic(lambda stack: clinic(stack, {"num_heads": 3}), fresh):
        raise Wrong(message("right-but", what=found))
    return "each layer has weights of its own; values and gradients agree for 2 random sizes"


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


class Softmaxed(Reader):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).softmax(dim=-1)


def reading(read: Callable[[Tensor], Tensor]) -> Callable[..., nn.Module]:
    """A model whose head reads something else."""
    return type("Reading", (Reader,), {"read": lambda _self, tokens: read(tokens)})


READINGS = {
    "class": {
        "it reads the last token; the class token is the first": reading(lambda t: t[:, -1]),
        "it reads token 1, the first patch; the class token is token 0": reading(lambda t: t[:, 1]),
        "it reads the mean of the patches, which is pool='mean'": reading(
            lambda t: t[:, 1:].mean(dim=1)
        ),
        "it reads the mean of all tokens": reading(lambda t: t.mean(dim=1)),
        "it reads the tokens before the encoder": NotEncoded,
        "there is a softmax too many, the scores themselves are asked for": Softmaxed,
    },
    "mean": {
        "the class token is in the mean: the patches begin at token 1": reading(
            lambda t: t.mean(dim=1)
        ),
        "it reads the class token, which is pool='class'": reading(lambda t: t[:, 0]),
        "the last patch is missing from the mean, and the class token is in it": reading(
            lambda t: t[:, :-1].mean(dim=1)
        ),
        "the first patch is missing from the mean: the patches begin at token 1": reading(
            lambda t: t[:, 2:].mean(dim=1)
        ),
        "it reads the sum, not the mean": reading(lambda t: t[:, 1:].sum(dim=1)),
        "it reads the largest numbers, not the mean": reading(lambda t: t[:, 1:].amax(dim=1)),
        "it reads the tokens before the encoder": NotEncoded,
        "there is a softmax too many, the scores themselves are asked for": Softmaxed,
    },
}


@exercise("07.5", "What the head reads")
def what_the_head_reads(Classifier) -> str:
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
                forbidden={"VisionTransformer.forward": "write its three steps yourself"},
                trials=2,
            )
        except Wrong as wrong:
            raise Wrong(f"with pool={pool!r}, {wrong.what}", wrong.why, wrong.inputs) from None
    return "values and gradients agree for both ways to read, on pictures that are not square"


# ------------------------------------------------------------------------------------ the rollout


def following(
    one: Callable[[Tensor, float], Tensor],
    later_left: bool = True,
) -> Callable[[list[Tensor], float], Tensor]:
    """A rollout with the given table of one layer."""

    def path(maps: list[Tensor], own: float) -> Tensor:
        tables = [one(weights, own) for weights in maps]
        result = tables[0]
        for table in tables[1:]:
            result = table @ result if later_left else result @ table
        return result

    return path


def table(weights: Tensor, own: float) -> Tensor:
    itself = torch.eye(weights.shape[-1], dtype=weights.dtype)
    return own * itself + (1 - own) * weights.mean(dim=1)


def maps_and_share(case: Case) -> tuple[list[Tensor], float]:
    count = case.random.choice((2, 3, 4))
    maps = [case.randn("b h n n").softmax(dim=-1) for _ in range(count)]
    return maps, case.random.choice((0.2, 0.3, 0.7, 0.9))


def eye(weights: Tensor) -> Tensor:
    return torch.eye(weights.shape[-1], dtype=weights.dtype)


@exercise("07.6", "Rollout with another share")
def rollout_with_another_share(rollout) -> str:
    compared = same_function(
        rollout,
        following(table),
        maps_and_share,
        mistakes={
            "the layers are multiplied in the wrong order: the later one stands on the left": (
                following(table, later_left=False)
            ),
            "own and 1 - own are exchanged": following(lambda w, own: table(w, 1 - own)),
            "own is not used: it is a half for every share": following(
                lambda w, own: table(w, 0.5)
            ),
            "what the token holds itself is missing: add own times torch.eye": following(
                lambda w, own: (1 - own) * w.mean(dim=1)
            ),
            "only the weights are multiplied, without the token's own share": following(
                lambda w, own: w.mean(dim=1)
            ),
            "the weights are not multiplied by 1 - own, so rows do not sum to 1": following(
                lambda w, own: own * eye(w) + w.mean(dim=1)
            ),
            "torch.eye is not multiplied by own, so rows do not sum to 1": following(
                lambda w, own: eye(w) + (1 - own) * w.mean(dim=1)
            ),
            "the heads are summed, not averaged": following(
                lambda w, own: own * eye(w) + (1 - own) * w.sum(dim=1)
            ),
            "the largest weight of the heads is taken, not their mean": following(
                lambda w, own: own * eye(w) + (1 - own) * w.amax(dim=1)
            ),
            "it looks at the first head alone": following(
                lambda w, own: own * eye(w) + (1 - own) * w[:, 0]
            ),
            "it is the last layer alone, the earlier ones are lost": lambda maps, own: table(
                maps[-1], own
            ),
            "it is the first layer alone": lambda maps, own: table(maps[0], own),
            "the last layer is missing": lambda maps, own: following(table)(maps[:-1], own),
            "the first layer is missing": lambda maps, own: following(table)(maps[1:], own),
            "the layers are added, not multiplied": lambda maps, own: sum(
                table(w, own) for w in maps
            ),
            "the tables are multiplied number by number: @ is the product of matrices, * is not": (
                lambda maps, own: prod(table(w, own) for w in maps)
            ),
            "own is added everywhere, not only on the diagonal": following(
                lambda w, own: own + (1 - own) * w.mean(dim=1)
            ),
            "the layers are averaged, not multiplied": lambda maps, own: (
                sum(table(w, own) for w in maps) / len(maps)
            ),
        },
    )
    one = [Case(9).randn("b h n n").softmax(dim=-1)]
    got = run(rollout, (one, 0.3), ["maps", "own"])
    if not (isinstance(got, Tensor) and torch.allclose(got, table(one[0], 0.3))):
        raise Wrong("right for several layers, but a list of one layer gives something else")
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
    model = load_digits_model().double()
    return training.accuracy(model, (moved(images.double(), columns, axis), labels))


def measured(value: Any, columns: int, what: str) -> None:
    same_number(
        value,
        digits_moved(columns),
        0.01,
        f"the accuracy on digits moved to the right by {what}",
        known={
            digits_moved(0): "this is the accuracy of digits that nobody moved",
            100 * digits_moved(columns): "an accuracy is a share from 0 to 1, not a percentage",
            1 - digits_moved(columns): "this is the share that is read wrongly",
            digits_moved(0) - digits_moved(columns): "this is what it loses, not what is left",
            digits_moved(-columns): "the digits were moved to the left",
            digits_moved(columns, -2): "the digits were moved down",
            digits_moved(3 - columns): f"they were moved by {3 - columns}",
        },
    )


@exercise("07.7", "One pixel to the right")
def one_pixel_to_the_right(shifted, accuracy_of, one_pixel, two_pixels) -> str:
    written(shifted, accuracy_of, one_pixel, two_pixels)
    same_function(
        shifted,
        moved,
        lambda case: (case.randn("b c H (2 W)"), case.random.choice((-3, -2, -1, 1, 2, 3))),
        mistakes={
            "what leaves at one side comes back at the other; paper, 0, should come in": (
                lambda images, columns: images.roll(columns, -1)
            ),
            "it moves to the left, and a negative number to the right": (
                lambda images, columns: moved(images, -columns)
            ),
            "a negative number should move to the left, and 0 come in at the right": right_alone,
            "it moves down, along H": lambda images, columns: moved(images, columns, -2),
            "it moves the channels": lambda images, columns: moved(images, columns, 1),
            "the edge is repeated; paper, 0, should come in": repeated_edge,
            "what comes in is 1, and paper is 0": lambda images, columns: (
                moved(images, columns) + 1 - moved(torch.ones_like(images), columns)
            ),
        },
        gradients=False,
        trials=Trials(6),
    )
    images = Case(7).randn("b c H W")
    for columns in (0, images.shape[-1] - 1, 1 - images.shape[-1]):
        got = naming(run)(shifted, (images.clone(), columns), ["images", "columns"])
        if not torch.equal(got, moved(images, columns)):
            raise Wrong(f"right for most shifts, but columns={columns} gives something else")

    model, images, labels = model_and_examples(Case(0))
    naming(run)(accuracy_of, (model, images, labels), ["model", "images", "labels"])
    if any(training_mode for training_mode, _ in model.seen):
        raise Wrong(
            "accuracy_of runs the model in training mode, where dropout makes every answer a game "
            "of chance: call model.eval() first"
        )
    same_function(
        accuracy_of,
        share(lambda scores, labels: scores.argmax(dim=-1) == labels),
        model_and_examples,
        mistakes={
            "it is the share that is read wrongly": share(
                lambda scores, labels: scores.argmax(dim=-1) != labels
            ),
            "it takes the class with the smallest score": share(
                lambda scores, labels: scores.argmin(dim=-1) == labels
            ),
            "it is the number of right answers, not their share": lambda *given: (
                len(given[2]) * share(lambda s, labels: s.argmax(dim=-1) == labels)(*given)
            ),
            "it is a percentage, not a share from 0 to 1": lambda *given: (
                100 * share(lambda s, labels: s.argmax(dim=-1) == labels)(*given)
            ),
        },
        forbidden={
            name: "write it with eval, no_grad and argmax" for name in ("accuracy", "predict")
        },
    )
    if any(gradients for _, gradients in model.seen):
        raise Wrong(
            "accuracy_of is right, but it records gradients, which costs memory for nothing: "
            "call the model inside `with torch.no_grad():`"
        )
    measured(one_pixel, 1, "one pixel")
    measured(two_pixels, 2, "two pixels")
    return (
        "one pixel costs a quarter of the digits. Two cost far more, though every patch stays "
        "whole: it then stands at its neighbour's place, and the learned positions say so"
    )


open_exercise("07.8", "Is it a difference?")
