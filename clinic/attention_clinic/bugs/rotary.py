"""Rotary positions: queries and keys turned by the place of their token."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor

from attention_clinic.bugs.models import HALVES, PAIRS, Model
from attention_clinic.bugs.turned import ACROSS, mixed_words, places, turned
from attention_clinic.bugs.turns import frequencies, measured, spread_wrongly, wrong_angles
from attention_clinic.engine.arguments import cut_of
from attention_clinic.engine.forms import Form, Stage, State, bug, variant


@dataclass(frozen=True)
class Turning:
    """What is known of the rotary positions of a module, before any form is tried.

    Args:
        bases: what the base may be, the likeliest first.
        widths: how many numbers of a head may be turned, the likeliest first; () for all.
        table: the layout of the tables that were handed over, "" when it makes its own.
        sees: whether the order of the tokens matters to the module.
        declared: whether the module says that it turns.
        cut: whether it is called twice, with a cache.
        told: the numbers that the module and its code say, of which the base may be one.
    """

    bases: tuple[float, ...]
    widths: tuple[int, ...] = ()
    table: str = ""
    sees: bool = True
    declared: bool = False
    cut: bool = False
    told: frozenset[float] = frozenset()


def _possible(state: State) -> bool:
    """Say whether the module turns something, and has not done so already."""
    turning = state.get("turning")
    return turning is not None and turning.sees and not state.get("early", False)


# ------------------- early: q, k (r, b, n, h * d), before they are split into heads

EARLY = Stage(
    "early",
    lambda form, state: {**form.run(state), "early": bool(form.ids)} if form.run else {},
    found=lambda state: _early(state) if _possible(state) else (),
    forms=[Form(None)],
)

bug(
    "rotary-before-split",
    "turns queries and keys before they are split into heads: one head gets the fast angles, "
    "another the slow ones",
    "split into heads first, then turn each head by itself.",
    "13",
    "Lightricks/LTX-Video#224",
)


def _early(state: State) -> Iterator[Form]:
    turning, most = state["turning"], min(state[name].shape[-1] for name in "qk")
    base = turning.bases[0]
    if state["setting"].num_heads < 2 or any(state[name].shape[-1] % 2 for name in "qk"):
        return
    some = [width for width in turning.widths if width < most and width % 2 == 0]
    options = ((None, *some), (HALVES, PAIRS), (1, -1))
    for part, layout, sign in product(*options):

        def usual(width: int, part: int | None = part, sign: int = sign) -> Tensor:
            return sign * frequencies(part or width, base)

        said = f"{part} numbers of all heads together are turned" if part is not None else ""
        form = _turned_early(layout, layout, usual, (), said)
        yield from (form, with_values(EARLY, form))
        if part is None and sign == 1 and state.get("left", 0) > 1:
            other = PAIRS if layout == HALVES else HALVES
            yield _turned_early(layout, other, usual, ("rotary-mixed",), mixed_words(layout))
            for number, (said, _) in enumerate(spread_wrongly(most, base, most)):

                def spread(width: int, number: int = number) -> Tensor:
                    return list(spread_wrongly(width, base, width))[number][1]

                yield _turned_early(layout, layout, spread, ("rotary-frequencies",), said)


def _turned_early(
    layout: str, table: str, angles: Callable[[int], Tensor], ids: tuple[str, ...], said: str
) -> Form:
    """Return the form that turns all heads together, by these angles for so many numbers."""

    def run(state: State) -> State:
        return {
            name: turned(t, places(t) * angles(t.shape[-1]), layout, table)
            for name, t in (("q", state["q"]), ("k", state["k"]))
        }

    return Form(run, ("rotary-before-split", *ids), said)


def with_values(stage: Stage, form: Form) -> Form:
    """Return a form that turns the values, too, as it turns the keys.

    Args:
        stage: `EARLY` or `TURN`.
        form: of it, which turns.
    """

    def run(state: State, *place: Tensor) -> Any:
        made, other = form.run(state, *place), form.run({**state, "k": state["v"]}, *place)
        return {**made, "v": other["k"]} if stage is EARLY else (*made[:2], other[1])

    def applies(state: State) -> bool:
        return state["v"].shape[-1] == state["k"].shape[-1] and form.applies(state)

    return Form(run, (*form.ids, "rotary-values"), form.detail, applies)


# ------------------------------------ turn: q (r, b, h, n, d), k and v (r, b, g, n, d)

variant(
    "rotary-halves",
    "turns queries and keys by their place, number p together with p + d/2",
    "Llama, Qwen, Mistral, GPT-NeoX",
    "13",
)
variant(
    "rotary-pairs",
    "turns queries and keys by their place, neighbours together",
    "the paper of 2021, GPT-J, Meta's own Llama",
    "13",
)
variant(
    "rotary-partial",
    "turns the first numbers of each head only",
    "GPT-J, GPT-NeoX, Phi",
    "13",
)

variant(
    "rotary-backwards",
    "turns backwards: the sine has the other sign",
    "nanochat",
    "13",
)

bug(
    "rotary-no-effect",
    "should turn queries and keys by their place, and the order of the tokens changes nothing",
    "turn along the axis of the tokens, not along the heads, and use what the turn returns.",
    "13",
    "facebookresearch/xformers#841",
    "mlfoundations/open_lm#4",
    "vukrosic/leo-optimizer#2",
    seen="permuted tokens give permuted outputs",
)
bug(
    "rotary-convention",
    "turns in another way than its weights were made for (neighbours, halves, backwards)",
    "turn as the model did that the weights come from, or permute the rows of its query and key "
    "weights.",
    "13",
    "EleutherAI/gpt-neox#834",
    "Dao-AILab/flash-attention#288",
    "karpathy/llama2.c#286",
    "jzhang38/TinyLlama#24",
    "ggml-org/llama.cpp#2376",
)
bug(
    "rotary-mixed",
    "lays out the angles for neighbours and turns halves, or the reverse: the two numbers of a "
    "pair turn by different angles",
    "repeat the angles as the pairs lie: torch.cat([angles, angles], dim=-1) for halves, "
    "angles.repeat_interleave(2, dim=-1) for neighbours.",
    "13",
    "raiyanyahya/how-to-train-your-gpt#6",
    "facebookresearch/vjepa2#15",
    "Tongjilibo/bert4torch#1",
    "Dao-AILab/flash-attention#45",
)
bug(
    "rotary-across",
    "puts another number in the place of the other one of a pair: that is no turn",
    "the other number, with a minus in the first place: torch.cat([-second, first], dim=-1) for "
    "halves.",
    "13",
    "rutpatel4003/paligemma-from-scratch",
)
bug(
    "rotary-frequencies",
    "turns pair p by another angle than place * base ** (-2 p / head_dim)",
    "write base ** (-torch.arange(0, head_dim, 2) / head_dim) for the pairs.",
    "13",
    "bkitano/llama-from-scratch#8",
    "stanford-cs336/assignment1-basics#22",
    "lucidrains/RETRO-pytorch#12",
)
bug(
    "rotary-values",
    "turns the values, too",
    "turn queries and keys only: what a token hands over must not depend on its place.",
    "13",
    "JunnYu/RoFormer_pytorch#34",
)
bug(
    "rotary-offset",
    "counts the places of queries and keys from different numbers",
    "give a query and a key of the same token the same place.",
    "13",
    "lucidrains/rotary-embedding-torch#2",
)


bug(
    "cache-position",
    "counts the places of new tokens from 0 again, though a cache holds those before them",
    "begin to count where the cache ends: torch.arange(start, start + n).",
    "13",
    "ml-explore/mlx-lm#93",
    "skyzh/tiny-llm#46",
    "lucidrains/x-transformers#219",
    "RobertCsordas/moeut#6",
)


def _turn(form: Form, state: State) -> State:
    made = {}
    if form.run is not None:
        made = dict(zip("qkv", form.run(state, places(state["q"])), strict=True))
    return made if state.get("after") is None else {**made, **state["after"]({**state, **made})}


def _turns(state: State) -> Iterator[Form]:
    """Find the ways to turn that the module may have."""
    turning: Turning | None = state.get("turning")
    d = state["q"].shape[-1]
    if turning is not None and turning.declared and not turning.sees and d % 2 == 0:
        yield from _by_head(state)
    if turning is None or not _possible(state) or state["q"].shape[-2] != state["k"].shape[-2]:
        return  # a context is another text, whose places say nothing about those of who asks
    widths = [w for w in (*turning.widths, d) if w <= d and w % 2 == 0]
    bases = turning.bases[: None if state.get("total", 0) == 0 else 1]
    layouts = (HALVES, PAIRS)
    ways = [(lay, w, base) for w in dict.fromkeys(widths) for base in bases for lay in layouts]
    for sign in (1, -1) if state.get("total", 0) == 0 or state.get("model") is not None else (1,):
        for layout, width, base in ways:
            yield _right(state.get("model"), layout, width, base, d, sign)
    if not state.get("total", 0):
        return
    for layout, width, base in ways[: 2 * len(layouts)]:
        yield from _wrong(turning, layout, width, base, state)
    for layout, table, angles in measured(state):
        yield _measured(state, layout, table, angles, turning)


def _measured(state: State, layout: str, table: str, angles: Tensor, turning: Turning) -> Form:
    """Return the form that turns by these angles, which the module's own numbers say."""
    sign, d = -1 if bool(angles.median() < 0) else 1, state["q"].shape[-1]
    mixed = mixed_words(layout) if table != layout else ""
    ids, said, base = wrong_angles(angles, mixed, turning.told, turning.bases)
    if base is not None and not mixed:
        return _right(state.get("model"), layout, d, base, d, sign)

    def run(state: State, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k = (turned(state[name], place * angles, layout, table) for name in "qk")
        return q, k, state["v"]

    names = (f"rotary-{layout}", *("rotary-backwards",) * (sign < 0))
    names += ("rotary-scaled",) * (base is None and "rotary-frequencies" not in ids)
    return Form(run, ids, said, variants=names)


def _right(model: Model | None, layout: str, width: int, base: float, d: int, sign: int) -> Form:
    def run(state: State, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        angles = sign * place * frequencies(width, base)
        q, k = (turned(state[name], angles, layout) for name in "qk")
        return q, k, state["v"]

    other = model is not None and (model.rotary != layout or sign < 0)
    names = [f"rotary-{layout}"]
    names += ["rotary-partial"] * (width < d) + ["rotary-backwards"] * (sign < 0)
    detail = f"it turns {'neighbours' if layout == PAIRS else 'halves'}"
    detail += " backwards" * (sign < 0)
    ids = ("rotary-convention",) if other else ()
    return Form(run, ids, detail if other else "", variants=tuple(names))


def _wrong(turning: Turning, layout: str, width: int, base: float, state: State) -> Iterator[Form]:
    right = frequencies(width, base)

    def made(id: str, detail: str, change: Callable[..., tuple]) -> Form:
        def run(state: State, place: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            return change(state["q"], state["k"], state["v"], place)

        return Form(run, (id,), detail)

    def turn(t: Tensor, angles: Tensor, **options: Any) -> Tensor:
        return turned(t, angles, layout, **options)

    def both(id: str, detail: str, spread: Tensor, **options: Any) -> Form:
        def change(q: Tensor, k: Tensor, v: Tensor, place: Tensor) -> tuple:
            return turn(q, place * spread, **options), turn(k, place * spread, **options), v

        return made(id, detail, change)

    if not turning.table:
        other = PAIRS if layout == HALVES else HALVES
        yield both("rotary-mixed", mixed_words(layout), right, table=other)
        for detail, spread in spread_wrongly(width, base, state["setting"].embed_dim):
            if not torch.allclose(spread, right):
                yield both("rotary-frequencies", detail, spread)
    for said, rows in ACROSS.items():
        yield both("rotary-across", said, right, rows=rows)

    def by_samples(q: Tensor, k: Tensor, v: Tensor, place: Tensor) -> tuple:
        angles = place * right * q.shape[1]
        return turn(q, angles), turn(k, angles), v

    if state["q"].shape[1] > 1:
        said = "the angles are multiplied by the number of samples"
        yield made("rotary-frequencies", said, by_samples)

    def all_three(q: Tensor, k: Tensor, v: Tensor, place: Tensor) -> tuple:
        return tuple(turn(t, place * right) for t in (q, k, v))

    if state["v"].shape[-1] >= width:
        yield made("rotary-values", "", all_three)
    for which in ("qk", "q") if turning.cut else ():

        def again(q: Tensor, k: Tensor, v: Tensor, place: Tensor, which: str = which) -> tuple:
            cut = cut_of(len(place))
            anew = torch.cat([place[:cut], place[: len(place) - cut]])
            return turn(q, anew * right), turn(k, (anew if "k" in which else place) * right), v

        yield made("cache-position", "those of the queries" if which == "q" else "", again)
    for step, said in ((1, "more"), (-1, "less")):

        def apart(q: Tensor, k: Tensor, v: Tensor, place: Tensor, step: int = step) -> tuple:
            return turn(q, (place + step) * right), turn(k, place * right), v

        yield made("rotary-offset", f"a query counts one {said} than a key of its token", apart)


def _by_head(state: State) -> Iterator[Form]:
    """Find the turn along the heads: what a silent module may do where keys are shared."""
    turning, d = state.get("turning"), state["q"].shape[-1]
    layouts = (HALVES, PAIRS)
    for layout in layouts:

        def run(state: State, place: Tensor, layout: str = layout) -> tuple:
            made = []
            for name in "qk":
                heads = torch.arange(state[name].shape[-3], dtype=torch.float64)[:, None, None]
                angles = heads * frequencies(d, turning.bases[0])
                made.append(turned(state[name], angles, layout))
            return *made, state["v"]

        yield Form(run)


TURN = Stage("turn", _turn, found=_turns, forms=[Form(None)])
