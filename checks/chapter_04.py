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
from checks.engine.modules import randomise, same_module
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
    same_shape(joined_shape, join(mixed).shape, "b i e")
    return message("gives-all-three-shapes")


# ------------------------------------------------------------------------------- several heads


def split(t: Tensor, num_heads: int) -> Tensor:
    return rearrange(t, "b n (h d) -> b h n d", h=num_heads)


def join(mixed: Tensor) -> Tensor:
    return rearrange(mixed, "b h i d -> b i (h d)")


def weigh(q: Tensor, k: Tensor, width: float | None = None, axis: int = -1) -> Tensor:
    """Return weights; the scores are divided by the square root of the width."""
    return (q @ k.mT / (width or q.shape[-1]) ** 0.5).softmax(dim=axis)


def heads(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return join(weigh(q, k) @ v)


def unmoved(mixed: Tensor) -> Tensor:
    b, h, i, d = mixed.shape
    return mixed.reshape(b, i, h * d)


def heads_first(mixed: Tensor) -> Tensor:
    b, h, i, d = mixed.shape
    return rearrange(mixed, "b h i d -> h b i d").reshape(b, i, h * d)


def interleaved(mixed: Tensor) -> Tensor:
    return rearrange(mixed, "b h i d -> b i (d h)")


def of_samples(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """What a loop over the samples puts side by side."""
    return torch.cat([weigh(*one) @ v for *one, v in zip(q, k, v, strict=True)], dim=-1)


HEAD_MISTAKES = {
    "joined-as-in-memory": lambda q, k, v: unmoved(weigh(q, k) @ v),
    "samples-swap-heads": lambda q, k, v: heads_first(weigh(q, k) @ v),
    "joined-interleaved": lambda q, k, v: interleaved(weigh(q, k) @ v),
    "heads-not-joined": lambda q, k, v: weigh(q, k) @ v,
    "joined-heads-reversed": lambda q, k, v: join((weigh(q, k) @ v).flip(1)),
    "always-head-zero": lambda q, k, v: join((weigh(q, k) @ v)[:, :1].expand_as(q)),
    "weights-of-head-zero": lambda q, k, v: join(weigh(q, k)[:, :1] @ v),
    "values-of-head-zero": lambda q, k, v: join(weigh(q, k) @ v[:, :1]),
    "mean-of-weights": lambda q, k, v: join(weigh(q, k).mean(dim=1, keepdim=True) @ v),
    "one-table-for-all-heads": lambda q, k, v: join(
        ((q @ k.mT).sum(dim=1, keepdim=True) / q.shape[-1] ** 0.5).softmax(dim=-1) @ v
    ),
    "joined-before-attending": lambda q, k, v: weigh(join(q), join(k)) @ join(v),
    "loops-over-samples": of_samples,
    "scores-not-divided": lambda q, k, v: join(weigh(q, k, width=1) @ v),
    "scaled-by-token-width": lambda q, k, v: join(weigh(q, k, q.shape[1] * q.shape[3]) @ v),
    "softmax-over-queries": lambda q, k, v: join(weigh(q, k, axis=-2) @ v),
    "softmax-over-heads": lambda q, k, v: join(weigh(q, k, axis=1) @ v),
    "keys-are-mixed": lambda q, k, v: heads(q, k, k),
    "values-are-asked": lambda q, k, v: heads(q, v, v),
    "keys-and-values-exchanged": lambda q, k, v: heads(q, v, k),
}


@exercise("04.2", "Head by head, then all at once")
def head_by_head_and_at_once(head_by_head, at_once) -> Message:
    written(head_by_head, at_once)

    def inputs(case: Case) -> tuple[Tensor, ...]:
        return case.randn("b h i d"), case.randn("b h j d"), case.randn("b h j d")

    same_function(head_by_head, heads, inputs, mistakes=HEAD_MISTAKES, loops="asked")
    return same_function(at_once, heads, inputs, mistakes=HEAD_MISTAKES, loops="forbidden")


# ----------------------------------------------------------------------------------- the class

ROLES = ("q_proj", "k_proj", "v_proj")


def layer_with(
    queries: str = "x",
    keys: str = "context",
    values: str = "context",
    attend: Callable = heads,
    cut: Callable = split,
    layers: tuple[str, str, str] = ROLES,
) -> type[nn.Module]:
    """Return a layer whose queries, keys and values come from somewhere, and attend somehow."""

    class Layer(finished.MultiHeadAttention):
        def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
            given = {"x": x, "context": x if context is None else context}
            q, k, v = (
                cut(getattr(self, name)(given[source]) if name else given[source], self.num_heads)
                for name, source in zip(layers, (queries, keys, values), strict=True)
            )
            return self.out_proj(attend(q, k, v))

    return Layer


def every_hth(t: Tensor, num_heads: int) -> Tensor:
    return rearrange(t, "b n (d h) -> b h n d", h=num_heads)


def heads_inside_tokens(t: Tensor, num_heads: int) -> Tensor:
    return rearrange(t, "b n (h d) -> b n h d", h=num_heads)


def into(count: int) -> Callable:
    """Return a split into a fixed number of heads."""
    return lambda t, num_heads: split(t, count)


class AddsX(finished.MultiHeadAttention):
    """The layer with the residual path that is the block's."""

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return super().forward(x, context) + x


CLASS_MISTAKES = {
    "every-hth-number": layer_with(
        cut=every_hth, attend=lambda q, k, v: interleaved(weigh(q, k) @ v)
    ),
    "split-interleaved-join-not": layer_with(cut=every_hth),
    "joined-interleaved": layer_with(attend=lambda q, k, v: interleaved(weigh(q, k) @ v)),
    "heads-attend-inside-tokens": layer_with(
        cut=heads_inside_tokens, attend=lambda q, k, v: (weigh(q, k) @ v).flatten(2)
    ),
    "heads-split-behind-tokens": layer_with(cut=heads_inside_tokens),
    "join-reads-heads-as-tokens": layer_with(attend=lambda q, k, v: (weigh(q, k) @ v).flatten(2)),
    "adds-x": AddsX,
    "num-heads-taken-for-d": layer_with(
        cut=lambda t, num_heads: rearrange(t, "b n (h d) -> b h n d", d=num_heads)
    ),
    "keys-and-values-exchanged": layer_with(attend=lambda q, k, v: heads(q, v, k)),
    "queries-and-keys-exchanged": layer_with(attend=lambda q, k, v: heads(k, q, v)),
    "queries-and-values-exchanged": layer_with(attend=lambda q, k, v: heads(v, k, q)),
    "roles-in-a-circle": layer_with(attend=lambda q, k, v: heads(k, v, q)),
    "roles-in-the-other-circle": layer_with(attend=lambda q, k, v: heads(v, q, k)),
    "scaled-twice": layer_with(
        attend=lambda q, k, v: join(weigh(q, k, q.shape[1] * q.shape[3] ** 2) @ v)
    ),
    **{
        message("made-by-wrong-layer", made=made, by=by, right=right): layer_with(
            layers=tuple(by if own == right else own for own in ROLES)
        )
        for made, right in zip(("queries", "keys", "values"), ROLES, strict=True)
        for by in ROLES
        if by != right
    },
    **{
        message("not-projected", made=made, right=right): layer_with(
            layers=tuple("" if own == right else own for own in ROLES)
        )
        for made, right in zip(("queries", "keys", "values"), ROLES, strict=True)
    },
    **{
        message("always-so-many-heads", count=count): layer_with(cut=into(count))
        for count in (1, 2, 3, 4)
    },
}
CROSS_MISTAKES = {
    "context-not-used": layer_with(keys="x", values="x"),
    "queries-from-context": layer_with(queries="context"),
    "x-and-context-exchanged": layer_with(queries="context", keys="x", values="x"),
    "keys-from-x": layer_with(keys="x"),
    "values-from-x": layer_with(values="x"),
}
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
    for other in ("b i (h d)", "b j (h d)"):  # as long as x: then every mistake can be named
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


# ------------------------------------------------------------------------------------- the bug


def healthy_heads(q: Tensor, k: Tensor, v: Tensor, num_heads: int) -> Tensor:
    return heads(*(split(t, num_heads) for t in (q, k, v)))


def wide(attend: Callable, cut: Callable = split) -> Callable:
    """Return a function of wide queries, keys and values that cuts them and attends."""
    return lambda q, k, v, num_heads: attend(*(cut(t, num_heads) for t in (q, k, v)))


def scaled_by(width: Callable[[Tensor], float]) -> Callable:
    return wide(lambda q, k, v: join(weigh(q, k, width(q)) @ v))


def scaled_after(width: Callable[[Tensor], float]) -> Callable:
    return wide(lambda q, k, v: join(weigh(q, k, 1) / width(q) ** 0.5 @ v))


BUG_MISTAKES = {
    "still-scaled-by-token-width": scaled_by(lambda q: q.shape[1] * q.shape[3]),
    "not-scaled": scaled_by(lambda q: 1),
    "scaled-by-number-of-heads": scaled_by(lambda q: q.shape[1]),
    "scaled-by-number-of-tokens": scaled_by(lambda q: q.shape[2]),
    "scaled-without-root": scaled_by(lambda q: q.shape[3] ** 2),
    "token-width-without-root": scaled_by(lambda q: (q.shape[1] * q.shape[3]) ** 2),
    "scaled-by-root-over-heads": scaled_by(lambda q: q.shape[3] / q.shape[1]),
    "scores-multiplied": scaled_by(lambda q: 1 / q.shape[3]),
    "weights-are-scaled": scaled_after(lambda q: q.shape[3]),
    "weights-are-scaled-by-token-width": scaled_after(lambda q: q.shape[1] * q.shape[3]),
    "softmax-is-missing": wide(lambda q, k, v: join(q @ k.mT / q.shape[3] ** 0.5 @ v)),
    "only-one-head": lambda q, k, v, num_heads: weigh(q, k) @ v,
    "joined-as-in-memory": wide(lambda q, k, v: unmoved(weigh(q, k) @ v)),
    "joined-interleaved": wide(lambda q, k, v: interleaved(weigh(q, k) @ v)),
    "every-hth-number": wide(lambda q, k, v: interleaved(weigh(q, k) @ v), every_hth),
    "split-interleaved-join-not": wide(heads, every_hth),
    "softmax-over-queries": wide(lambda q, k, v: join(weigh(q, k, axis=-2) @ v)),
    "softmax-over-heads": wide(lambda q, k, v: join(weigh(q, k, axis=1) @ v)),
}


class Wide(nn.Module):
    """A layer around a function of wide queries, keys and values, for the clinic."""

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
        lambda case: (
            case.randn("b i (h d)"),
            case.randn("b j (h d)"),
            case.randn("b j (h d)"),
            case["h"],
        ),
        mistakes=BUG_MISTAKES,
        forbidden=FORBIDDEN,
        clinic=lambda answer: diagnose(Wide(answer), num_heads=2),
    )


# --------------------------------------------------------------------------- the order of heads


def random_layer(embed_dim: int, num_heads: int) -> finished.MultiHeadAttention:
    module = finished.MultiHeadAttention(embed_dim, num_heads)
    return randomise(module.double().eval(), seed=num_heads)


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


def moved(
    order: Callable = list,
    back: Callable = list,
    parts: tuple[str, ...] = ROLES,
    biases: bool = True,
    rows: bool = True,
    columns: str = "columns",
    cut: str = "(h d) -> h d",
    out_bias: bool = False,
) -> Callable:
    """Return a way to put heads into another order, right unless it is told otherwise.

    What happens to out_proj.weight is said by `columns`: its "columns" move, its "rows", or "both".
    """

    def reorder(layer: finished.MultiHeadAttention, wanted: list[int]) -> nn.Module:
        new = deepcopy(layer)
        numbers = rearrange(torch.arange(layer.embed_dim), cut, h=layer.num_heads)
        to, of = (numbers[way(wanted)].flatten() for way in (order, back))
        with torch.no_grad():
            for name in parts:
                part = getattr(new, name)
                part.weight.copy_(part.weight[to] if rows else part.weight[:, to])
                if biases:
                    part.bias.copy_(part.bias[to])
            if columns != "columns":
                new.out_proj.weight.copy_(new.out_proj.weight[of])
            if columns != "rows":
                new.out_proj.weight.copy_(new.out_proj.weight[:, of])
            if out_bias:
                new.out_proj.bias.copy_(new.out_proj.bias[of])
        return new

    return reorder


def inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


def one_row_each(layer: finished.MultiHeadAttention, order: list[int]) -> nn.Module:
    """Move row `head` of each projection instead of d rows."""
    new, to = deepcopy(layer), torch.arange(len(order))
    with torch.no_grad():
        for name in ROLES:
            getattr(new, name).weight[to] = getattr(layer, name).weight[order]
            getattr(new, name).bias[to] = getattr(layer, name).bias[order]
        new.out_proj.weight[:, to] = layer.out_proj.weight[:, order]
    return new


def overwritten(layer: finished.MultiHeadAttention, order: list[int]) -> nn.Module:
    """Read heads from the new layer, where some are overwritten already."""
    new, d = deepcopy(layer), layer.embed_dim // layer.num_heads
    with torch.no_grad():
        for here, old in enumerate(order):
            to, of = slice(here * d, here * d + d), slice(old * d, old * d + d)
            for name in ROLES:
                getattr(new, name).weight[to] = getattr(new, name).weight[of].clone()
                getattr(new, name).bias[to] = getattr(new, name).bias[of].clone()
            new.out_proj.weight[:, to] = new.out_proj.weight[:, of].clone()
    return new


RESULT_MISTAKES = {
    "old-columns-of-out": moved(back=sorted),
    "only-out-has-moved": moved(order=sorted),
    "rows-of-out-moved": moved(columns="rows"),
    "rows-of-out-moved-too": moved(columns="both"),
    "bias-of-out-moved": moved(out_bias=True),
    "rows-and-bias-of-out-moved": moved(columns="rows", out_bias=True),
    "rows-and-bias-of-out-moved-too": moved(columns="both", out_bias=True),
    "biases-stand-still": moved(biases=False),
    **{
        message(id, names=[name for name in ROLES if name not in parts]): moved(
            parts=parts, back=back
        )
        for id, back in (("parts-stand-still", list), ("parts-and-out-stand-still", sorted))
        for count in (1, 2)
        for parts in combinations(ROLES, count)
    },
    "columns-of-projections-moved": moved(rows=False),
    "rows-are-every-hth": moved(cut="(d h) -> h d"),
    "columns-move-opposite": moved(back=inverse),
    "one-row-for-a-head": one_row_each,
    "heads-overwritten": overwritten,
}
ORDER_MISTAKES = {
    "no-head-moved": moved(order=sorted, back=sorted),
    "order-the-other-way": moved(order=inverse, back=inverse),
}


def heads_and_order(case: Case) -> tuple[int, list[int], Tensor]:
    h = max(case["h"], 3)  # another order than its own inverse needs three heads
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

    mistakes = {cause: tried(way) for cause, way in RESULT_MISTAKES.items()}
    same_function(tried(reorder), same, heads_and_order, mistakes=mistakes, gradients=False)
    for seed in range(3):
        case = heads_and_order(Case(seed))
        got, want = (run(tried(way, part=1), case) for way in (reorder, moved()))
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


# ------------------------------------------------------------------------------- silent heads


def fill(name: str, axis: int) -> Callable[[nn.Module, Tensor], None]:
    """Return a way to write 0 into the chosen rows (axis 0) or columns (1) of a projection."""
    return lambda layer, chosen: getattr(layer, name).weight.index_fill_(axis, chosen, 0)


def fill_all(*names: str, biases: bool = True) -> Callable[[nn.Module, Tensor], None]:
    """Return a way to write 0 into the chosen rows of projections, and into their biases."""

    def write(layer: nn.Module, chosen: Tensor) -> None:
        for name in names:
            fill(name, 0)(layer, chosen)
            if biases:
                getattr(layer, name).bias.index_fill_(0, chosen, 0)

    return write


silent_columns = fill("out_proj", 1)


def columns_and_bias(layer: nn.Module, chosen: Tensor) -> None:
    silent_columns(layer, chosen)
    layer.out_proj.bias.zero_()


def quieted(
    silent: Callable[[list[int], int], list[int]] = lambda heads, h: heads,
    zero: Callable[[nn.Module, Tensor], None] = silent_columns,
    cut: str = "(h d) -> h d",
) -> Callable:
    """Return a way to silence heads, right unless it is told otherwise."""

    def silence(layer: finished.MultiHeadAttention, heads: list[int]) -> nn.Module:
        new = deepcopy(layer)
        numbers = rearrange(torch.arange(layer.embed_dim), cut, h=layer.num_heads)
        with torch.no_grad():
            zero(new, numbers[silent(heads, layer.num_heads)].flatten())
        return new

    return silence


def quiet_columns(columns: Callable[[int, int, int], range]) -> Callable:
    """Return a way to write 0 into other columns of out_proj: of (head, d, number of heads)."""

    def silence(layer: finished.MultiHeadAttention, heads: list[int]) -> nn.Module:
        new, d = deepcopy(layer), layer.embed_dim // layer.num_heads
        for head in heads:
            for column in columns(head, d, layer.num_heads):
                new.out_proj.weight.data[:, column : column + 1] = 0
        return new

    return silence


SILENCINGS = {
    "nobody-is-silent": quieted(lambda heads, h: []),
    "others-are-silent": quieted(lambda heads, h: [head for head in range(h) if head not in heads]),
    "first-of-list-is-silent": quieted(lambda heads, h: heads[:1]),
    "last-of-list-is-silent": quieted(lambda heads, h: heads[-1:]),
    "all-between-are-silent": quieted(lambda heads, h: list(range(min(heads), max(heads) + 1))),
    "rows-of-out-silenced": quieted(zero=fill("out_proj", 0)),
    "rows-and-bias-of-out-silenced": quieted(zero=fill_all("out_proj")),
    "columns-are-neighbours": quieted(cut="(d h) -> h d"),
    "bias-of-out-must-stay": quieted(zero=columns_and_bias),
    "values-keep-their-bias": quieted(zero=fill("v_proj", 0)),
    "all-keep-their-bias": quieted(zero=fill_all(*ROLES, biases=False)),
    "columns-of-values-silenced": quieted(zero=fill("v_proj", 1)),
    "one-column-for-a-head": quiet_columns(lambda head, d, h: range(head, head + 1)),
    "columns-begin-at-head": quiet_columns(lambda head, d, h: range(head, head + d)),
    "d-is-not-num-heads": quiet_columns(lambda head, d, h: range(head * h, head * h + h)),
    "silenced-where-it-looks": quieted(zero=fill_all("q_proj")),
    "silenced-weight-of-queries": quieted(zero=fill("q_proj", 0)),
}


@cache
def digits() -> tuple[VisionTransformer, Tensor, Tensor]:
    """Return the trained model and the digits that it was not trained on."""
    _, (images, labels) = load_digits()
    return load_shipped("digits"), images, labels


def counted(layer: int, heads: list[int], images: Tensor, labels: Tensor) -> int:
    """Return how many digits the trained model reads when heads of one layer are silent."""
    model = digits()[0]
    quiet = quieted()(model.encoder.layers[layer].attn, heads).out_proj.weight
    with torch.no_grad():
        # other weights for one call, without writing into the model
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
    """Compare the results of layers some of whose heads are silent."""

    def inputs(case: Case) -> tuple[int, list[int], Tensor]:
        h = case["h"] + 3
        first = case.random.randrange(h)
        silent = [first, (first + 2) % h]  # no neighbours: what lies between must go on speaking
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
        tried(quieted()),
        inputs,
        mistakes={cause: tried(way) for cause, way in SILENCINGS.items()},
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
    """Compare the numbers of digits lost, one more or less."""
    alone, together = losses(0)
    if isinstance(lost_alone, Tensor):
        lost_alone = lost_alone.tolist()
    numbers = list(lost_alone) if isinstance(lost_alone, list | tuple) else []
    numbers = [n.item() if isinstance(n, Tensor) and n.numel() == 1 else n for n in numbers]
    if len(numbers) != 4 or any(type(n) not in (int, float) for n in numbers):
        raise Wrong(message("four-numbers-are-asked", got=shown(lost_alone)))

    def far(wanted: list[int]) -> list[int]:
        """The heads whose number is another one."""
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
