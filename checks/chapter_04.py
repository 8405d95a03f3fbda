"""Checks of the exercises of chapter 04: multi-head attention."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from functools import cache
from typing import Any

import torch
from einops import rearrange
from torch import Tensor, nn

from attention_clinic import Report, diagnose
from checks.engine.answer import Wrong, written
from checks.engine.calls import run
from checks.engine.cases import Case
from checks.engine.compare import difference, kind
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.modules import randomise, same_module
from checks.engine.shortcuts import ATTENTION
from checks.engine.verdict import exercise, open_exercise
from utils import attention as finished
from utils.images import load_digits
from utils.vision_transformer import VisionTransformer, load_digits_model


@exercise("04.1", "Which shape?")
def which_shape(keys_shape, weights_shape, joined_shape) -> str:
    written(keys_shape, weights_shape, joined_shape)
    x, context = torch.zeros(2, 5, 24), torch.zeros(2, 7, 24)
    q, k = (rearrange(t, "b n (h d) -> b h n d", h=4) for t in (x, context))
    mixed, weights = finished.scaled_dot_product_attention(q, k, k)
    same_shape(keys_shape, k.shape, "b h j d")
    same_shape(weights_shape, weights.shape, "b h i j")
    same_shape(joined_shape, join(mixed).shape, "b i e")
    return "the code gives all three shapes"


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


UNMOVED = (
    "the heads were joined as they lie in memory, so that tokens are mixed: bring the heads beside "
    "d before you join them"
)
INTERLEAVED = (
    "the numbers of the heads are shuffled into each other, (d h): first all of head 0, then all "
    "of head 1, is (h d)"
)
TOGETHER = (
    "there is one table of weights for all heads, because the sum runs over h, too: one head over "
    "the whole width. Each head needs scores of its own"
)

HEAD_MISTAKES = {
    UNMOVED: lambda q, k, v: unmoved(weigh(q, k) @ v),
    "samples get each other's heads: b must come first when the heads are joined": lambda q, k, v: (
        heads_first(weigh(q, k) @ v)
    ),
    INTERLEAVED: lambda q, k, v: rearrange(weigh(q, k) @ v, "b h i d -> b i (d h)"),
    "the heads stand in the opposite order": lambda q, k, v: join((weigh(q, k) @ v).flip(1)),
    "every head uses the weights of head 0": lambda q, k, v: join(weigh(q, k)[:, :1] @ v),
    "every head mixes the values of head 0": lambda q, k, v: join(weigh(q, k) @ v[:, :1]),
    "all heads use the mean of the heads' weights": lambda q, k, v: join(
        weigh(q, k).mean(dim=1, keepdim=True) @ v
    ),
    TOGETHER: lambda q, k, v: join(
        ((q @ k.mT).sum(dim=1, keepdim=True) / q.shape[-1] ** 0.5).softmax(dim=-1) @ v
    ),
    "the scores are not divided by the square root of d": lambda q, k, v: join(
        weigh(q, k, width=1) @ v
    ),
    "softmax runs over the queries (columns sum to 1)": lambda q, k, v: join(
        weigh(q, k, axis=-2) @ v
    ),
    "softmax runs over the heads": lambda q, k, v: join(weigh(q, k, axis=1) @ v),
}


@exercise("04.2", "Head by head, then all at once")
def head_by_head_and_at_once(head_by_head, at_once) -> str:
    written(head_by_head, at_once)

    def inputs(case: Case) -> tuple[Tensor, ...]:
        return case.randn("b h i d"), case.randn("b h j d"), case.randn("b h j d")

    same_function(head_by_head, heads, inputs, mistakes=HEAD_MISTAKES, loops="asked")
    return same_function(at_once, heads, inputs, mistakes=HEAD_MISTAKES, loops="forbidden")


# ----------------------------------------------------------------------------------- the class


def layer_with(
    queries: str = "x",
    keys: str = "context",
    values: str = "context",
    attend: Callable = heads,
    cut: Callable = split,
) -> type[nn.Module]:
    """Return a layer whose queries, keys and values come from somewhere, and attend somehow."""

    class Layer(finished.MultiHeadAttention):
        def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
            given = {"x": x, "context": x if context is None else context}
            q = cut(self.q_proj(given[queries]), self.num_heads)
            k = cut(self.k_proj(given[keys]), self.num_heads)
            v = cut(self.v_proj(given[values]), self.num_heads)
            return self.out_proj(attend(q, k, v))

    return Layer


def every_hth(t: Tensor, num_heads: int) -> Tensor:
    return rearrange(t, "b n (d h) -> b h n d", h=num_heads)


def back_from_every_hth(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return rearrange(weigh(q, k) @ v, "b h i d -> b i (d h)")


EVERY_HTH = (
    "a head takes every h-th number of a token, as (d h) does; it must take neighbours, (h d), "
    "or weights that come from elsewhere do not fit"
)


def into(count: int) -> Callable:
    """Return a split into a fixed number of heads."""
    return lambda t, num_heads: split(t, count)


class AddsX(finished.MultiHeadAttention):
    """The layer with the residual path that is the block's."""

    def forward(self, x: Tensor, context: Tensor | None = None) -> Tensor:
        return super().forward(x, context) + x


CLASS_MISTAKES = {
    EVERY_HTH: layer_with(cut=every_hth, attend=back_from_every_hth),
    "the split takes every h-th number, (d h), and the join puts neighbours together, (h d)": (
        layer_with(cut=every_hth)
    ),
    INTERLEAVED: layer_with(attend=back_from_every_hth),
    "x is added to the result, and the layer returns only what attention says": AddsX,
    "num_heads is taken for d, the width of a head": layer_with(
        cut=lambda t, num_heads: rearrange(t, "b n (h d) -> b h n d", d=num_heads)
    ),
    **{
        f"it always has {count} head{'s' * (count > 1)}, whatever num_heads says": layer_with(
            cut=into(count)
        )
        for count in (1, 2, 3, 4)
    },
}
SELF = "right without context; with it,"
CROSS_MISTAKES = {
    f"{SELF} context is not used: keys and values come from context": (
        layer_with(keys="x", values="x")
    ),
    f"{SELF} the queries come from context, too: x asks": layer_with(queries="context"),
    f"{SELF} x and context are exchanged: x asks, context answers": (
        layer_with(queries="context", keys="x", values="x")
    ),
    f"{SELF} the keys still come from x": layer_with(keys="x"),
    f"{SELF} the values still come from x": layer_with(values="x"),
}
FORBIDDEN = {
    name: "write its steps yourself: project, split, attend, join, project"
    for name in ATTENTION
    if name != "scaled_dot_product_attention"
}


@exercise("04.3", "The layer")
def the_layer(MultiHeadAttention) -> str:
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


BUG_MISTAKES = {
    "the scores are divided by the square root of e, the width of a whole token: the products run "
    "over one head": scaled_by(lambda q: q.shape[1] * q.shape[3]),
    "the scores are not divided by anything": scaled_by(lambda q: 1),
    "the scores are divided by the square root of the number of heads": scaled_by(
        lambda q: q.shape[1]
    ),
    "the scores are divided by the square root of a number of tokens": scaled_by(
        lambda q: q.shape[2]
    ),
    "the scores are divided by a width without its square root": scaled_by(
        lambda q: q.shape[3] ** 2
    ),
    "the scores are multiplied by the square root of d": scaled_by(lambda q: 1 / q.shape[3]),
    "there is only one head: split before the scores": lambda q, k, v, num_heads: weigh(q, k) @ v,
    UNMOVED: wide(lambda q, k, v: unmoved(weigh(q, k) @ v)),
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
def find_the_bug(healthy) -> str:
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
        got = type(layer).__name__
        raise Wrong(f"{who} gives {got} back, the new MultiHeadAttention is asked for")
    return layer


def results(layer: finished.MultiHeadAttention, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return what a layer gives, and the weights of its heads."""
    with torch.no_grad(), finished.record_attention(layer) as maps:
        y = layer(x)
    return y, maps[0]


def moved(
    order: Callable = list,
    back: Callable = list,
    parts: str = "q_proj k_proj v_proj",
    biases: bool = True,
    columns: bool = True,
    cut: str = "(h d) -> h d",
) -> Callable:
    """Return a way to put heads into another order, right unless it is told otherwise."""

    def reorder(layer: finished.MultiHeadAttention, wanted: list[int]) -> nn.Module:
        new = deepcopy(layer)
        numbers = rearrange(torch.arange(layer.embed_dim), cut, h=layer.num_heads)
        rows, others = (numbers[way(wanted)].flatten() for way in (order, back))
        with torch.no_grad():
            for name in parts.split():
                part = getattr(new, name)
                part.weight.copy_(part.weight[rows])
                if biases:
                    part.bias.copy_(part.bias[rows])
            weight = new.out_proj.weight
            weight.copy_(weight[:, others] if columns else weight[others])
        return new

    return reorder


def inverse(order: list[int]) -> list[int]:
    return sorted(range(len(order)), key=order.__getitem__)


RESULT_MISTAKES = {
    "out_proj still reads the heads in their old order: its columns must move with them": moved(
        back=sorted
    ),
    "only the columns of out_proj have moved, the heads that write have not": moved(order=sorted),
    "out_proj reads the heads with its columns, not with its rows": moved(columns=False),
    "the biases of q_proj, k_proj and v_proj belong to the heads and must move with them": moved(
        biases=False
    ),
    "v_proj stands still: values belong to the heads as well as queries and keys": moved(
        parts="q_proj k_proj"
    ),
    "q_proj and k_proj stand still: the weights would be those of other heads": moved(
        parts="v_proj"
    ),
    "a head has neighbouring rows, (h d), not every h-th one": moved(cut="(d h) -> h d"),
    "the columns of out_proj move the opposite way": moved(back=inverse),
}
ORDER_MISTAKES = {
    "no head has moved": moved(order=sorted, back=sorted),
    "head order[h] of the new layer is head h of the old one, and it is to be the other way "
    "round": moved(order=inverse, back=inverse),
}


def heads_and_order(case: Case) -> tuple[int, list[int], Tensor]:
    h = max(case["h"], 3)  # another order than its own inverse needs three heads
    order = list(range(h))
    while order in (sorted(order), inverse(order)):
        case.random.shuffle(order)
    return h, order, torch.randn(2, 5, h * case["d"], generator=case.generator).double()


@exercise("04.5", "The order of the heads")
def order_of_heads(reorder) -> str:
    written(reorder)
    if not callable(reorder):
        raise Wrong(f"reorder is {kind(reorder)}, a function is asked for")

    def tried(way: Callable, part: int = 0) -> Callable:
        def reorder(num_heads: int, order: list[int], x: Tensor) -> Tensor:
            layer = random_layer(x.shape[-1], num_heads)
            new = run(way, (layer, list(order)), ["layer", "order"])
            return results(a_layer(new, "reorder"), x)[part]

        return reorder

    def same(num_heads: int, order: list[int], x: Tensor) -> Tensor:
        return results(random_layer(x.shape[-1], num_heads), x)[0]

    mistakes = {words: tried(way) for words, way in RESULT_MISTAKES.items()}
    same_function(tried(reorder), same, heads_and_order, mistakes=mistakes, gradients=False)
    for seed in range(3):
        case = heads_and_order(Case(seed))
        got, want = (run(tried(way, part=1), case) for way in (reorder, moved()))
        if difference(got, want):
            ways = {words: tried(way, part=1)(*case) for words, way in ORDER_MISTAKES.items()}
            why = [words for words, weights in ways.items() if not difference(got, weights)]
            raise Wrong(
                "the result is the same, but the heads do not stand in the order asked for",
                lambda why=why: why[0] if why else None,
                f"order={case[1]}",
            )
    _kept("reorder", random_layer(24, 4), lambda layer: reorder(layer, [2, 3, 1, 0]))
    return "the result is the same for random layers and orders, and every head stands elsewhere"


def _kept(who: str, module: nn.Module, use: Callable[[nn.Module], Any]) -> None:
    """Raise `Wrong` when an answer changes the module that it was given."""
    before = deepcopy(module.state_dict())
    returned = run(use, (module,), ["layer"])
    same = all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())
    if returned is module or not same:
        raise Wrong(
            f"the values are right, but {who} changed the one that it was given: change a copy, "
            "deepcopy(...)"
        )


# ------------------------------------------------------------------------------- silent heads


def fill(name: str, axis: int) -> Callable[[nn.Module, Tensor], None]:
    """Return a way to write 0 into the chosen rows (axis 0) or columns (1) of a projection."""
    return lambda layer, chosen: getattr(layer, name).weight.index_fill_(axis, chosen, 0)


def fill_all(*names: str) -> Callable[[nn.Module, Tensor], None]:
    """Return a way to write 0 into the chosen rows of projections, and into their biases."""

    def write(layer: nn.Module, chosen: Tensor) -> None:
        for name in names:
            fill(name, 0)(layer, chosen)
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


def one_column(layer: finished.MultiHeadAttention, heads: list[int]) -> nn.Module:
    new = deepcopy(layer)
    new.out_proj.weight.data[:, heads] = 0
    return new


LOUD = "do not silence a head: it looks elsewhere and goes on mixing values"
SILENCINGS = {
    "nobody is silent": quieted(lambda heads, h: []),
    "these heads speak, and all others are silent": quieted(
        lambda heads, h: [head for head in range(h) if head not in heads]
    ),
    "only the first head of the list is silent": quieted(lambda heads, h: heads[:1]),
    "only the last head of the list is silent": quieted(lambda heads, h: heads[-1:]),
    "the rows of out_proj are what it writes; what it reads from a head are columns": quieted(
        zero=fill("out_proj", 0)
    ),
    "a head has neighbouring columns of out_proj, not every h-th one": quieted(cut="(d h) -> h d"),
    "the bias of out_proj belongs to no head and must stay": quieted(zero=columns_and_bias),
    "the values still have their bias: a silent head has only 0 to mix": quieted(
        zero=fill("v_proj", 0)
    ),
    "a head has d columns of out_proj, not one": one_column,
    f"zeros in q_proj or k_proj {LOUD}": quieted(zero=fill_all("q_proj", "k_proj")),
    f"zeros in the weight of q_proj {LOUD}": quieted(zero=fill("q_proj", 0)),
}


@cache
def digits() -> tuple[VisionTransformer, Tensor, Tensor]:
    """Return the trained model and the digits that it was not trained on."""
    _, (images, labels) = load_digits()
    return load_digits_model(), images, labels


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
    "it counts what is read wrongly": lambda n, heads, x, y: len(y) - counted(n, heads, x, y),
    "nobody is silent": lambda n, heads, x, y: counted(n, [], x, y),
    "the heads of the other layer are silent": lambda n, heads, x, y: counted(1 - n, heads, x, y),
    "the heads of layer 0 are silent, whatever layer is asked for": lambda n, heads, x, y: counted(
        0, heads, x, y
    ),
    "the heads of layer 1 are silent, whatever layer is asked for": lambda n, heads, x, y: counted(
        1, heads, x, y
    ),
    "these heads speak, and all others are silent": lambda n, heads, x, y: counted(
        n, [head for head in range(4) if head not in heads], x, y
    ),
    "it is a share of the digits, and their number is asked for": lambda n, heads, x, y: (
        counted(n, heads, x, y) / len(y)
    ),
}


def same_silence(silence: Callable) -> None:
    """Compare the results of layers some of whose heads are silent."""

    def inputs(case: Case) -> tuple[int, list[int], Tensor]:
        h = case["h"] + 3
        silent = case.random.sample(range(h), 2)
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
        mistakes={words: tried(way) for words, way in SILENCINGS.items()},
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
        raise Wrong(
            "still_read: heads that were silent in one call are silent in the next one, too: load "
            "the model anew in every call, load_digits_model()"
        )
    same_function(
        tried(still_read),
        tried(counted),
        inputs,
        mistakes={words: tried(way) for words, way in READINGS.items()},
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


def same_losses(lost_alone: Any, lost_together: Any) -> str:
    """Compare the numbers of digits lost, one more or less."""
    alone, together = losses(0)
    if isinstance(lost_alone, Tensor):
        lost_alone = lost_alone.tolist()
    numbers = list(lost_alone) if isinstance(lost_alone, list | tuple) else []
    numbers = [n.item() if isinstance(n, Tensor) and n.numel() == 1 else n for n in numbers]
    if len(numbers) != 4 or any(type(n) not in (int, float) for n in numbers):
        raise Wrong(f"lost_alone is a list of four numbers, one for each head, got {lost_alone!r}")

    def close(wanted: list[int]) -> bool:
        return all(abs(n - w) <= 1 for n, w in zip(numbers, wanted, strict=True))

    def why() -> str | None:
        if close([356 - n for n in alone]):
            return "so many are still read, and the lost ones are asked for"
        if close([n + 4 for n in alone]):
            return "the model reads 356 of 360 before, and only what it read can be lost"
        if close([-n for n in alone]):
            return "lost is before minus after, not after minus before"
        if close(losses(1)[0]):
            return "these are the heads of layer 1"
        if any(n != int(n) for n in numbers):
            return "they are shares, and the numbers of digits are asked for"
        if max(numbers) <= 1:
            return "nothing is lost, as if no head were silent"
        return None

    if not close(alone):
        raise Wrong(f"{numbers} are not the digits lost without each head of layer 0", why)
    same_number(
        lost_together,
        together,
        1,
        "the number of digits lost without all four heads",
        known={
            sum(alone): "this is the sum of the four; silence them all at once",
            356 - together: "so many are still read, and the lost ones are asked for",
            together + 4: "the model reads 356 of 360 before, and only what it read can be lost",
            losses(1)[1]: "these are the heads of layer 1",
        },
    )
    return (
        f"the four heads lose {sum(alone)} digits when each is silent alone, and {together} "
        "together: while one is silent, the others do part of its work"
    )


@exercise("04.6", "Silent heads, measured")
def silent_heads(silence, still_read, lost_alone, lost_together) -> str:
    written(silence, still_read, lost_alone, lost_together)
    for answer, name in ((silence, "silence"), (still_read, "still_read")):
        if not callable(answer):
            raise Wrong(f"{name} is {kind(answer)}, a function is asked for")
    same_silence(silence)
    same_reading(still_read)
    return same_losses(lost_alone, lost_together)


open_exercise("04.7", "A digit that it misreads")
