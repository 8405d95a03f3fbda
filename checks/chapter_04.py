"""Checks of the exercises of chapter 04: multi-head attention."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from itertools import combinations
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from attention_clinic import Report, diagnose
from checks.engine.answer import Wrong, noticed, written
from checks.engine.calls import run
from checks.engine.cases import Case
from checks.engine.compare import difference, kind, shown
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.modules import randomize, same_module
from checks.engine.patches import patches
from checks.engine.shortcuts import ATTENTION
from checks.engine.verdict import exercise, open_exercise
from utils import attention as finished
from utils.data import load_digits, load_shipped
from utils.vision_transformer import VisionTransformer


@exercise("04.1", "Which shape?")
def which_shape(keys_shape, weights_shape, joined_shape) -> Message:
    written(keys_shape, weights_shape, joined_shape)
    x, context = torch.zeros(2, 5, 24), torch.zeros(2, 7, 24)
    q, k = (rearrange(t, "b n (h d) -> b h n d", h=4) for t in (x, context))
    mixed, weights = finished.scaled_dot_product_attention(q, k, k)
    same_shape(keys_shape, k.shape, "b h j d")
    same_shape(weights_shape, weights.shape, "b h i j")
    same_shape(joined_shape, rearrange(mixed, "b h i d -> b i (h d)").shape, "b i e")
    return message("gives-all-three-shapes")


def heads_of(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = scores.softmax(dim=-1)
    mixed = weights @ v
    return rearrange(mixed, "b h i d -> b i (h d)")


ROOT, TOKEN_ROOT = " / q.shape[-1] ** 0.5", " / (q.shape[1] * q.shape[-1]) ** 0.5"
ONE_TABLE = ("q @ k.mT", "(q @ k.mT).sum(dim=1, keepdim=True)")
MIXED = "weights @ v"
JOINED = 'rearrange(mixed, "b h i d -> b i (h d)")'
HEAD_MISTAKES = patches(
    heads_of,
    {
        "joined-as-in-memory": (JOINED, "mixed.reshape(len(q), q.shape[2], -1)"),
        "samples-swap-heads": (JOINED, "mixed.transpose(0, 1).reshape(len(q), q.shape[2], -1)"),
        "joined-interleaved": ("(h d)", "(d h)"),
        "heads-not-joined": (JOINED, "mixed"),
        "joined-heads-reversed": (MIXED, "weights.flip(1) @ v.flip(1)"),
        "always-head-zero": (MIXED, "(weights @ v)[:, :1].expand_as(q)"),
        "weights-of-head-zero": (MIXED, "weights[:, :1] @ v"),
        "values-of-head-zero": (MIXED, "weights @ v[:, :1]"),
        "mean-of-weights": (MIXED, "weights.mean(dim=1, keepdim=True) @ v"),
        "one-table-for-all-heads": ONE_TABLE,
        "joined-before-attending": (*ONE_TABLE, ROOT, TOKEN_ROOT),
        "loops-over-samples": (JOINED, "torch.cat(list(mixed), dim=-1)"),
        "scores-not-divided": (ROOT, ""),
        "scaled-by-token-width": (ROOT, TOKEN_ROOT),
        "softmax-over-queries": ("dim=-1", "dim=-2"),
        "softmax-over-heads": ("dim=-1", "dim=1"),
        "keys-are-mixed": (MIXED, "weights @ k"),
        "values-are-asked": ("k.mT", "v.mT"),
        "keys-and-values-exchanged": ("k.mT", "v.mT", MIXED, "weights @ k"),
    },
)


@exercise("04.2", "Head by head, then all at once")
def head_by_head_and_at_once(head_by_head, at_once) -> Message:
    written(head_by_head, at_once)

    def inputs(case: Case) -> tuple[Tensor, ...]:
        return case.randn("b h i d"), case.randn("b h j d"), case.randn("b h j d")

    same_function(head_by_head, heads_of, inputs, mistakes=HEAD_MISTAKES, loops="asked")
    return same_function(at_once, heads_of, inputs, mistakes=HEAD_MISTAKES, loops="forbidden")


ROLES = ("q_proj", "k_proj", "v_proj")


class Layer(finished.MultiHeadAttention):
    """The right layer, step by step."""

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        context = x if context is None else context
        q, k, v = self.q_proj(x), self.k_proj(context), self.v_proj(context)
        q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=self.num_heads) for t in (q, k, v))
        mixed = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1) @ v
        return self.out_proj(rearrange(mixed, "b h n d -> b n (h d)"))


CLASS_MISTAKES = patches(
    Layer,
    {
        "every-hth-number": ("(h d)", "(d h)"),
        "split-interleaved-join-not": ("(h d) ->", "(d h) ->"),
        "joined-interleaved": ("-> b n (h d)", "-> b n (d h)"),
        "heads-attend-inside-tokens": ("b h n d", "b n h d"),
        "heads-split-behind-tokens": ("-> b h n d", "-> b n h d"),
        "join-reads-heads-as-tokens": ("b h n d ->", "b n h d ->"),
        "adds-x": ("return ", "return x + "),
        "num-heads-taken-for-d": ("h=self.num_heads", "d=self.num_heads"),
        "keys-and-values-exchanged": ("q, k, v = self", "q, v, k = self"),
        "queries-and-keys-exchanged": ("q, k, v = self", "k, q, v = self"),
        "queries-and-values-exchanged": ("q, k, v = self", "v, k, q = self"),
        "roles-in-a-circle": ("q, k, v = self", "v, q, k = self"),
        "roles-in-the-other-circle": ("q, k, v = self", "k, v, q = self"),
        "scaled-twice": (ROOT, f"{ROOT} / x.shape[-1] ** 0.5"),
        **{
            message("made-by-wrong-layer", made=made, by=by, right=right): (right, by)
            for made, right in zip(("queries", "keys", "values"), ROLES, strict=True)
            for by in ROLES
            if by != right
        },
        **{
            message("not-projected", made=made, right=right): (f"self.{right}", "")
            for made, right in zip(("queries", "keys", "values"), ROLES, strict=True)
        },
        **{
            message("always-so-many-heads", count=count): ("self.num_heads", str(count))
            for count in (1, 2, 3, 4)
        },
    },
)
KEYS, VALUES = ("k_proj(context)", "k_proj(x)"), ("v_proj(context)", "v_proj(x)")
QUERIES = ("q_proj(x)", "q_proj(context)")
CROSS_MISTAKES = patches(
    Layer,
    {
        "context-not-used": (*KEYS, *VALUES),
        "queries-from-context": QUERIES,
        "x-and-context-exchanged": (*QUERIES, *KEYS, *VALUES),
        "keys-from-x": KEYS,
        "values-from-x": VALUES,
    },
)
FORBIDDEN = {
    name: "write-layer-steps" for name in ATTENTION if name != "scaled_dot_product_attention"
}


@exercise("04.3", "The layer")
def the_layer(MultiHeadAttention) -> Message:
    def arguments(case: Case) -> dict[str, int]:
        return {"embed_dim": case["h"] * case["d"], "num_heads": case["h"]}

    def examined(module: nn.Module, built: dict[str, Any]) -> Report:
        return diagnose(module, num_heads=built["num_heads"], causal=False)

    same_module(
        MultiHeadAttention,
        finished.MultiHeadAttention,
        arguments,
        lambda case: (case.randn("b i (h d)"),),
        mistakes=CLASS_MISTAKES,
        forbidden=FORBIDDEN,
        clinic=examined,
    )
    for other in ("b i (h d)", "b j (h d)"):  # as many tokens as x: then every mistake can be named
        said = same_module(
            MultiHeadAttention,
            finished.MultiHeadAttention,
            arguments,
            lambda case, other=other: (case.randn("b i (h d)"), case.randn(other)),
            mistakes=CROSS_MISTAKES,
            forbidden=FORBIDDEN,
            trials=2,
        )
    return said


def healthy_heads(q: Tensor, k: Tensor, v: Tensor, num_heads: int) -> Tensor:
    q, k, v = (rearrange(t, "b n (h d) -> b h n d", h=num_heads) for t in (q, k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = scores.softmax(dim=-1)
    mixed = weights @ v
    return rearrange(mixed, "b h i d -> b i (h d)")


BUG_MISTAKES = patches(
    healthy_heads,
    {
        "still-scaled-by-token-width": (ROOT, TOKEN_ROOT),
        "not-scaled": (ROOT, ""),
        "scaled-by-number-of-heads": (ROOT, " / num_heads**0.5"),
        "scaled-by-number-of-tokens": (ROOT, " / q.shape[2] ** 0.5"),
        "scaled-without-root": (ROOT, " / q.shape[-1]"),
        "token-width-without-root": (ROOT, " / (q.shape[1] * q.shape[-1])"),
        "scaled-by-root-over-heads": (ROOT, " / (q.shape[-1] / num_heads) ** 0.5"),
        "scores-multiplied": (ROOT, " * q.shape[-1] ** 0.5"),
        "weights-are-scaled": (ROOT, "", "weights @", f"weights{ROOT} @"),
        "weights-are-scaled-by-token-width": (ROOT, "", "weights @", f"weights{TOKEN_ROOT} @"),
        "softmax-is-missing": (".softmax(dim=-1)", ""),
        "only-one-head": ("h=num_heads", "h=1"),
        "joined-as-in-memory": (JOINED, "mixed.reshape(len(q), q.shape[2], -1)"),
        "joined-interleaved": ("-> b i (h d)", "-> b i (d h)"),
        "every-hth-number": ("(h d)", "(d h)"),
        "split-interleaved-join-not": ("(h d) ->", "(d h) ->"),
        "softmax-over-queries": ("dim=-1", "dim=-2"),
        "softmax-over-heads": ("dim=-1", "dim=1"),
    },
)


class Wide(nn.Module):
    """A layer around a function of joined queries, keys and values, for the clinic."""

    def __init__(self, attend: Callable):
        super().__init__()
        self.attend = attend
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(12, 12) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.out_proj(self.attend(self.q_proj(x), self.k_proj(x), self.v_proj(x), 2))


@exercise("04.4", "Find the bug")
def find_the_bug(healthy) -> Message:
    return same_function(
        healthy,
        healthy_heads,
        lambda case: (*(case.randn(f"b {axis} (h d)") for axis in "ijj"), case["h"]),
        mistakes=BUG_MISTAKES,
        forbidden=FORBIDDEN,
        clinic=lambda answer: diagnose(Wide(answer), num_heads=2),
    )


def random_layer(embed_dim: int, num_heads: int) -> finished.MultiHeadAttention:
    module = finished.MultiHeadAttention(embed_dim, num_heads)
    return randomize(module.double().eval(), seed=num_heads)


def a_layer(layer: Any, who: str) -> finished.MultiHeadAttention:
    """Return what an answer returned, when it is a layer."""
    if not isinstance(layer, finished.MultiHeadAttention):
        raise Wrong(message("new-layer-is-asked", name=who, got=kind(layer)))
    return layer


def results(layer: finished.MultiHeadAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a layer gives, and the weights of its heads."""
    with torch.no_grad(), finished.record_attention(layer) as maps:
        y = layer(x)
    return y, maps[0]


def reordered(layer: finished.MultiHeadAttention, order: list[int]) -> nn.Module:
    new = deepcopy(layer)
    rows = torch.arange(layer.embed_dim).view(layer.num_heads, -1)[order].flatten()
    with torch.no_grad():
        for part in (new.q_proj, new.k_proj, new.v_proj):
            part.weight.copy_(part.weight[rows])
            part.bias.copy_(part.bias[rows])
        new.out_proj.weight.copy_(new.out_proj.weight[:, rows])
    return new


def inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


# The order that results from a loop that overwrites heads before it reads them.
LATER = """    order, were = list(range(len(order))), order
    for here, old in enumerate(were):
        order[here] = order[old]
    rows ="""
COLUMNS, ONE_ROW = "[:, rows]", ".flatten()\n    rows[: len(order)] = torch.tensor(order)"
BIAS_TOO = (
    "    return new",
    "    new.out_proj.bias.data = new.out_proj.bias.data[rows]\n    return new",
)
RESULT_MISTAKES = patches(
    reordered,
    {
        "old-columns-of-out": (COLUMNS, ""),
        "only-out-has-moved": ("[rows]", ""),
        "rows-of-out-moved": (COLUMNS, "[rows]"),
        "rows-of-out-moved-too": (COLUMNS, "[:, rows][rows]"),
        "bias-of-out-moved": BIAS_TOO,
        "rows-and-bias-of-out-moved": (COLUMNS, "[rows]", *BIAS_TOO),
        "rows-and-bias-of-out-moved-too": (COLUMNS, "[:, rows][rows]", *BIAS_TOO),
        "biases-stand-still": ("part.bias[rows]", "part.bias"),
        **{
            message(id, names=[name for name in ROLES if name not in parts]): (
                "(new.q_proj, new.k_proj, new.v_proj)",
                f"[new.{', new.'.join(parts)}]",
                *out,
            )
            for id, out in (
                ("parts-stand-still", ()),
                ("parts-and-out-stand-still", (COLUMNS, "")),
            )
            for count in (1, 2)
            for parts in combinations(ROLES, count)
        },
        "columns-of-projections-moved": ("part.weight[rows]", "part.weight[:, rows]"),
        "rows-are-every-hth": ("view(layer.num_heads, -1)", "view(-1, layer.num_heads).mT"),
        "columns-move-opposite": (COLUMNS, "[:, rows.argsort()]"),
        "one-row-for-a-head": ("[order].flatten()", ONE_ROW),
        "heads-overwritten": ("    rows =", LATER),
    },
)
ORDER_MISTAKES = {
    "no-head-moved": lambda layer, order: reordered(layer, sorted(order)),
    "order-the-other-way": lambda layer, order: reordered(layer, inverse(order)),
}


def heads_and_order(case: Case) -> tuple[int, list[int], Tensor]:
    h = max(case["h"], 3)  # an order that differs from its inverse needs three heads
    order = list(range(h))
    while order in (sorted(order), inverse(order)):
        case.random.shuffle(order)
    return h, order, torch.randn(2, 5, h * case["d"], generator=case.generator).double()


@exercise("04.5", "The order of the heads")
def order_of_heads(reorder) -> Message:
    written(reorder)
    if not callable(reorder):
        raise Wrong(message("function-is-asked", got=kind(reorder)))

    def tried(way: Callable, part: int = 0) -> Callable:
        def reorder(num_heads: int, order: list[int], x: Tensor) -> Tensor:
            layer = random_layer(x.shape[-1], num_heads)
            new = run(way, (layer, list(order)), ["layer", "order"])
            return results(a_layer(new, "reorder"), x)[part]

        return reorder

    def same(num_heads: int, order: list[int], x: Tensor) -> Tensor:
        return results(random_layer(x.shape[-1], num_heads), x)[0]

    mistakes = {cause: tried(way) for cause, (way,) in RESULT_MISTAKES.items()}
    same_function(tried(reorder), same, heads_and_order, mistakes=mistakes, gradients=False)
    for seed in range(3):
        case = heads_and_order(Case(seed))
        got, want = (run(tried(way, part=1), case) for way in (reorder, reordered))
        if difference(got, want):
            ways = {cause: tried(way, part=1)(*case) for cause, way in ORDER_MISTAKES.items()}
            why = [cause for cause, weights in ways.items() if not difference(got, weights)]
            order = message("input-value", name="order", value=shown(case[1]))
            raise Wrong("heads-in-another-order", lambda why=why: why[0] if why else None, [order])
    _kept("reorder", random_layer(24, 4), lambda layer: reorder(layer, [2, 3, 1, 0]))
    return message("heads-stand-elsewhere")


def _kept(who: str, module: nn.Module, use: Callable[[nn.Module], Any]) -> None:
    """Raise `Wrong` when an answer changes the module that it was given."""
    before = deepcopy(module.state_dict())
    returned = run(use, (module,), ["layer"])
    same = all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    if returned is module or not same:
        noticed(Wrong(message("changed-the-given-layer", name=who)))


def silenced(layer: finished.MultiHeadAttention, heads: list[int]) -> nn.Module:
    new, d = deepcopy(layer), layer.embed_dim // layer.num_heads
    with torch.no_grad():
        for head in heads:
            columns = slice(head * d, head * d + d)
            new.out_proj.weight[:, columns] = 0
    return new


SLICE, SILENT = "head * d, head * d + d", "out_proj.weight[:, columns]"
SILENCINGS = patches(
    silenced,
    {
        "nobody-is-silent": ("in heads", "in []"),
        "others-are-silent": ("in heads", "in set(range(layer.num_heads)) - set(heads)"),
        "first-of-list-is-silent": ("in heads", "in heads[:1]"),
        "last-of-list-is-silent": ("in heads", "in heads[-1:]"),
        "all-between-are-silent": ("in heads", "in range(min(heads), max(heads) + 1)"),
        "rows-of-out-silenced": (SILENT, "out_proj.weight[columns]"),
        "rows-and-bias-of-out-silenced": (
            SILENT,
            "out_proj.weight[columns] = new.out_proj.bias[columns]",
        ),
        "columns-are-neighbours": (SLICE, "head, None, layer.num_heads"),
        "bias-of-out-must-stay": (SILENT, f"{SILENT} = new.out_proj.bias[:]"),
        "values-keep-their-bias": (SILENT, "v_proj.weight[columns]"),
        "all-keep-their-bias": (
            SILENT,
            "q_proj.weight[columns] = new.k_proj.weight[columns] = new.v_proj.weight[columns]",
        ),
        "columns-of-values-silenced": (SILENT, "v_proj.weight[:, columns]"),
        "one-column-for-a-head": (SLICE, "head, head + 1"),
        "columns-begin-at-head": (SLICE, "head, head + d"),
        "d-is-not-num-heads": (SLICE, "head * layer.num_heads, (head + 1) * layer.num_heads"),
        "silenced-where-it-looks": (SILENT, "q_proj.weight[columns] = new.q_proj.bias[columns]"),
        "silenced-weight-of-queries": (SILENT, "q_proj.weight[columns]"),
    },
)


@cache
def digits() -> tuple[VisionTransformer, Tensor, Tensor]:
    """Return the trained model and the digits that it was not trained on."""
    _, (images, labels) = load_digits()
    return load_shipped("digits"), images, labels


def counted(layer: int, heads: list[int], images: Tensor, labels: Tensor) -> int:
    """Return how many digits the trained model reads when heads of one layer are silent."""
    model = digits()[0]
    quiet = silenced(model.encoder.layers[layer].attn, heads).out_proj.weight
    with torch.no_grad():
        # different weights for one call, without changing the model
        name = f"encoder.layers.{layer}.attn.out_proj.weight"
        answers = torch.func.functional_call(model, {name: quiet}, (images,))
    return int((answers.argmax(dim=-1) == labels).sum())


READINGS = {
    "counts-misread": lambda n, heads, x, y: len(y) - counted(n, heads, x, y),
    "nobody-is-silent": lambda n, heads, x, y: counted(n, [], x, y),
    "other-layer-is-silent": lambda n, heads, x, y: counted(1 - n, heads, x, y),
    "always-layer-zero": lambda n, heads, x, y: counted(0, heads, x, y),
    "always-layer-one": lambda n, heads, x, y: counted(1, heads, x, y),
    "others-are-silent": lambda n, heads, x, y: counted(
        n, [head for head in range(4) if head not in heads], x, y
    ),
    "counts-lost": lambda n, heads, x, y: counted(n, [], x, y) - counted(n, heads, x, y),
    "share-instead-of-number": lambda n, heads, x, y: counted(n, heads, x, y) / len(y),
}


def same_silence(silence: Callable) -> None:
    """Compare the results of layers in which some heads are silent."""

    def inputs(case: Case) -> tuple[int, list[int], Tensor]:
        h = case["h"] + 3
        first = case.random.randrange(h)
        silent = [first, (first + 2) % h]  # no neighbours: the heads between them must stay active
        return h, silent, torch.randn(2, 5, h * case["d"], generator=case.generator).double()

    def tried(way: Callable) -> Callable:
        def silence(num_heads: int, heads: list[int], x: Tensor) -> Tensor:
            layer = random_layer(x.shape[-1], num_heads)
            quiet = a_layer(run(way, (layer, list(heads)), ["layer", "heads"]), "silence")
            with torch.no_grad():
                return quiet(x)

        return silence

    same_function(
        tried(silence),
        tried(silenced),
        inputs,
        mistakes={cause: tried(way) for cause, (way,) in SILENCINGS.items()},
        gradients=False,
    )
    _kept("silence", random_layer(24, 4), lambda layer: silence(layer, [2, 0]))


def same_reading(still_read: Callable) -> None:
    """Compare how many digits are read while some heads of one layer are silent."""
    _, images, labels = digits()

    def inputs(case: Case) -> tuple[int, list[int], Tensor, Tensor]:
        silent = case.random.sample(range(4), case.random.choice([2, 3]))
        chosen = torch.randperm(360, generator=case.generator)[:60]
        return case.random.choice([0, 0, 1]), silent, images[chosen], labels[chosen]

    def tried(way: Callable) -> Callable:
        def still_read(layer: int, heads: list[int], images: Tensor, labels: Tensor) -> Any:
            args = (layer, list(heads), images, labels)
            number = run(way, args, ["layer", "heads", "images", "labels"])
            if isinstance(number, Tensor) and number.numel() == 1:
                number = number.item()
            whole = isinstance(number, float) and number.is_integer()
            return int(number) if whole else number

        return still_read

    few = images[:40], labels[:40]
    before, _, after = (tried(still_read)(0, heads, *few) for heads in ([], [0, 1, 2, 3], []))
    if type(before) is type(after) is int and before == counted(0, [], *few) != after:
        raise Wrong("silent-in-the-next-call")
    same_function(
        tried(still_read),
        tried(counted),
        inputs,
        mistakes={cause: tried(way) for cause, way in READINGS.items()},
        gradients=False,
        trials=Trials(3),
    )


@cache
def losses(layer: int) -> tuple[list[int], int]:
    """Return how many of 360 digits are lost: without each head of a layer, and without all."""
    _, images, labels = digits()
    quiet = [[0], [1], [2], [3], [0, 1, 2, 3]]
    *alone, together = (356 - counted(layer, heads, images, labels) for heads in quiet)
    return alone, together


@cache
def losses_but_one() -> list[int]:
    """Return how many digits are lost when all heads of layer 0 but one are silent, for each."""
    _, images, labels = digits()
    others = [[head for head in range(4) if head != speaks] for speaks in range(4)]
    return [356 - counted(0, heads, images, labels) for heads in others]


def same_losses(lost_alone: Any, lost_together: Any) -> Message:
    """Compare the numbers of digits lost; a difference of one is allowed."""
    alone, together = losses(0)
    if isinstance(lost_alone, Tensor):
        lost_alone = lost_alone.tolist()
    numbers = list(lost_alone) if isinstance(lost_alone, list | tuple) else []
    numbers = [n.item() if isinstance(n, Tensor) and n.numel() == 1 else n for n in numbers]
    if len(numbers) != 4 or any(type(n) not in (int, float) for n in numbers):
        raise Wrong(message("four-numbers-are-asked", got=shown(lost_alone)))

    def far(wanted: list[int]) -> list[int]:
        """The heads whose number is different."""
        pairs = enumerate(zip(numbers, wanted, strict=True))
        return [head for head, (n, w) in pairs if abs(n - w) > 1]

    def why() -> Message | str:
        known = {
            "still-read-not-lost": [356 - n for n in alone],
            "read-before-was-less": [n + 4 for n in alone],
            "after-minus-before": [-n for n in alone],
            "heads-of-layer-one": losses(1)[0],
        }
        for cause, wanted in known.items():
            if not far(wanted):
                return cause
        if any(n != int(n) for n in numbers):
            return "shares-of-digits"
        if max(numbers) <= 1:
            return "nothing-is-lost"
        return message("look-at-heads", heads=far(alone))

    if far(alone):
        raise Wrong(message("not-the-lost-digits", got=numbers), why)
    same_number(
        lost_together,
        together,
        1,
        "lost-without-all-heads",
        known={
            sum(alone): "sum-of-the-four",
            356 - together: "still-read-not-lost",
            together + 4: "read-before-was-less",
            losses(1)[1]: "heads-of-layer-one",
            **{n: message("one-head-still-speaks", head=h) for h, n in enumerate(losses_but_one())},
        },
    )
    return message("heads-lose", alone=sum(alone), together=together)


@exercise("04.6", "Silent heads, measured")
def silent_heads(silence, still_read, lost_alone, lost_together) -> Message:
    written(silence, still_read, lost_alone, lost_together)
    for answer, name in ((silence, "silence"), (still_read, "still_read")):
        if not callable(answer):
            raise Wrong(message("named-function-is-asked", name=name, got=kind(answer)))
    same_silence(silence)
    same_reading(still_read)
    return same_losses(lost_alone, lost_together)


open_exercise("04.7", "A digit that it misreads")
