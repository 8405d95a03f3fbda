"""Tables of sines and cosines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from attention_clinic.bugs.counted import START, as_it_is, growing
from attention_clinic.bugs.table_bases import BASE
from attention_clinic.bugs.table_rows import LENGTHS, PADDING
from attention_clinic.engine.forms import Form, Stage, State, bug, variant
from attention_clinic.engine.waves import PAIRS_READ, exponents_of, rule_of, speeds

# ------------- angles: exponents of the base for the sines (e + 1) // 2 and the cosines e // 2


def _turned(form: Form, state: State) -> State:
    n, e = state["given"].shape
    places, law = torch.arange(n, dtype=torch.float64)[:, None] + state["start"], state["law"]
    sines, cosines = form.run(torch.arange((e + 1) // 2, dtype=torch.float64), e)
    first, second = (
        law[0](places) / state["used"] ** sines,
        (law[1](places) / state["used"] ** cosines)[:, : e // 2],
    )
    slack = 0.0 if form.ids == () else SINGLE
    return {
        "slack": (slack * first.abs(), slack * second.abs()),
        "sines": first.sin(),
        "cosines": second.cos(),
        "sines_again": second.sin(),
        "cosines_again": first.cos(),
    }


SINGLE = 1e-6  # of an angle, made in single precision: a power of e is off by more

# the rules of the forms below: the exponent is 2 (s p + o) / e in pair p, of sines and of cosines
KNOWN = (
    *((1, 0, 1, 0), (2, 0, 2, 1), (1, 0, 1, 0.5), (1, 0, 1, 1)),
    *((2, 0, 2, 0), (0.5, 0, 0.5, 0), (0, 0, 0, 0)),
)
WIDEST = 128  # of a table all of whose waves are read


def _measured(state: State) -> Iterator[Form]:
    """Find the rule of the exponents in the waves of the columns themselves."""
    given, base = state["given"], state["used"]
    n, e = given.shape
    if not state.get("left", 0) or e < 4 or state["law"][1] is not as_it_is:
        return
    places = torch.arange(n, dtype=torch.float64) + state["start"]
    sound = given.isfinite().all(dim=1) & given.any(dim=1)
    if sound.sum() < 3:
        return
    half, twice = (e + 1) // 2, 2 * PAIRS_READ
    even, odd = range(0, e, 2)[:PAIRS_READ], range(1, e, 2)[:PAIRS_READ]
    front, back = range(half)[:PAIRS_READ], range(half, e)[:PAIRS_READ]
    columns = sorted({*range(min(e, twice)), *back})
    waves = [
        dict(zip(columns, speeds(given[sound][:, columns], places[sound], bend), strict=True))
        for bend in (torch.sin, torch.cos)
    ]
    spaced = (e // 2) / (e // 2 - 1)
    said = [*KNOWN, (spaced, 0, spaced, 0)]
    for lying in ((even, odd), (odd, even), (front, back), (back, front)):
        first, second = (
            rule_of([wave[column] for column in where], base, e)
            for wave, where in zip(waves, lying, strict=True)
        )
        first = second if state.get("lone") else first
        if first is None:
            continue
        rule = (*first, *(second or first))
        if any(math.dist(rule, other) < 1e-6 for other in said):
            continue
        said.append(rule)
        yield _by_rule(rule, (1, 0) if first != (spaced, 0) else first)
    if len(said) == len(KNOWN) + 1 and e <= WIDEST:
        for read in exponents_of(given[sound], places[sound], base):
            said_of = "the waves of the pairs are no powers of one number"
            yield Form(lambda pairs, e, by=read: (by, by), ("sincos-exponent",), said_of)


def _by_rule(rule: tuple[float, ...], right: tuple[float, float]) -> Form:
    """Return the form whose exponents are 2 (s p + o) / e, for sines and for cosines."""
    first, second = rule[:2], rule[2:]

    def run(pairs: Tensor, e: int) -> tuple[Tensor, Tensor]:
        sines, cosines = (2 * (step * pairs + start) / e for step, start in (first, second))
        return sines, cosines

    def words(step: float, start: float) -> str:
        if not step:
            return f"that of pair {start:.4g} in every column"
        if not start:
            return f"{2 * step:.4g} i / embed_dim"
        return f"({2 * step:.4g} i {'-' if start < 0 else '+'} {abs(2 * start):g}) / embed_dim"

    ids = ("sincos-exponent",) * (first != right) + ("sincos-pairs",) * (first != second)
    detail = f"the exponent is {words(*first)}"
    return Form(run, ids, detail + f" for sines, {words(*second)} for cosines" * (first != second))


ANGLES = Stage("angles", _turned, found=_measured)


@ANGLES.right
def exponents(pairs: Tensor, e: int) -> tuple[Tensor, Tensor]:
    return 2 * pairs / e, 2 * pairs / e


variant(
    "sincos-spaced",
    "spaces the waves so that the last one is as long as the base allows",
    "Tensor2Tensor, DDPM",
    "09",
)


@ANGLES.variant("sincos-spaced", applies=lambda state: state["given"].shape[1] > 3)
def exponents_to_the_end(pairs: Tensor, e: int) -> tuple[Tensor, Tensor]:
    return pairs / (e // 2 - 1), pairs / (e // 2 - 1)


bug(
    "sincos-pairs",
    "gives the cosine of a pair another wave than its sine: a shift is no rotation any more",
    "both columns of a pair have the angle place / 10000 ** (2 i / embed_dim), 2 i from "
    "range(0, embed_dim, 2).",
    "09",
    "SamLynnEvans/Transformer#25",
    "jadore801120/attention-is-all-you-need-pytorch#32",
    "Kyubyong/transformer#38",
    "shenweichen/DeepCTR#379",
    "maxjcohen/transformer#62",
    "luhengshiwo/LLMForEverybody#106",
)


@ANGLES.wrong("sincos-pairs", "the exponent is c / embed_dim in column c")
def exponents_apart(pairs: Tensor, e: int) -> tuple[Tensor, Tensor]:
    return 2 * pairs / e, (2 * pairs + 1) / e


@ANGLES.wrong("sincos-pairs", "the cosine has the wave of the next pair")
def exponents_next(pairs: Tensor, e: int) -> tuple[Tensor, Tensor]:
    return 2 * pairs / e, (2 * pairs + 2) / e


bug(
    "sincos-exponent",
    "raises the base to a wrong power: the waves grow too fast, too slowly, or not at all",
    "pair i has the angle place / 10000 ** (2 i / embed_dim); an i of range(0, embed_dim, 2) is "
    "2 i already.",
    "09",
    "YutaroOgawa/pytorch_advanced#79",
    "Kyubyong/transformer#81",
)


@ANGLES.wrong("sincos-exponent", "the exponent is 4 i / embed_dim, twice too large")
def exponents_doubled(pairs: Tensor, e: int) -> tuple[Tensor, Tensor]:
    return 4 * pairs / e, 4 * pairs / e


@ANGLES.wrong("sincos-exponent", "the exponent is i / embed_dim, half of what it should be")
def exponents_halved(pairs: Tensor, e: int) -> tuple[Tensor, Tensor]:
    return pairs / e, pairs / e


@ANGLES.wrong("sincos-exponent", "the exponent is 0 in every column, as a division of integers")
def exponents_none(pairs: Tensor, e: int) -> tuple[Tensor, Tensor]:
    return 0 * pairs, 0 * pairs


@ANGLES.wrong("sincos-exponent", "the exponent is 4 i // embed_dim, a division of integers")
def exponents_whole(pairs: Tensor, e: int) -> tuple[Tensor, Tensor]:
    return (4 * pairs / e).floor(), (4 * pairs / e).floor()


def exponents_by_column(pairs: Tensor, e: int) -> tuple[Tensor, Tensor]:
    """Take the number of the column for i, and double it."""
    return 4 * pairs / e, (4 * pairs + 2) / e


ANGLES.forms.append(
    Form(
        exponents_by_column,
        ("sincos-exponent", "sincos-pairs"),
        "the exponent is 2 c / embed_dim in column c",
    )
)


ANGLES.forms += [growing(1, 0.0), growing(1, 0.5), growing(1, 1.0), growing(2, 0.0)]


# ---------------------------------------- table: sines and cosines -> (n, e)


def _made(form: Form, state: State) -> State:
    moved = form.ids == ()  # else the sines and cosines are not only moved
    return {
        "made": form.run(state["sines"], state["cosines"], state),
        "unsure": form.run(*state["slack"], state) if moved else None,
    }


TABLE = Stage("table", _made)


@TABLE.right
def interleaved(even: Tensor, odd: Tensor, state: State) -> Tensor:
    table = torch.zeros_like(state["given"])
    table[:, 0::2], table[:, 1::2] = even, odd
    return table


def _even(state: State) -> bool:
    return state["given"].shape[1] % 2 == 0


variant(
    "sincos-halves",
    "puts all sines before all cosines, where the paper alternates: harmless until weights are "
    "exchanged",
    "Tensor2Tensor, Fairseq, DDPM",
    "09",
)


@TABLE.variant("sincos-halves", applies=_even)
def sines_first(sines: Tensor, cosines: Tensor, state: State) -> Tensor:
    return torch.cat([sines, cosines], dim=1)


variant(
    "sincos-exchanged",
    "puts the cosine of a pair before its sine: harmless until weights are exchanged",
    "some time embeddings",
    "09",
)


@TABLE.variant("sincos-exchanged", applies=_even)
def exchanged(sines: Tensor, cosines: Tensor, state: State) -> Tensor:
    return interleaved(cosines, sines, state)


def cosines_first(sines: Tensor, cosines: Tensor, state: State) -> Tensor:
    """Put all cosines before all sines."""
    return torch.cat([cosines, sines], dim=1)


TABLE.forms.append(
    Form(cosines_first, applies=_even, variants=("sincos-halves", "sincos-exchanged"))
)


bug(
    "sincos-cosine",
    "has no cosines: places that mirror each other around the top of a wave look alike",
    "table[:, 0::2] = sin(angle), table[:, 1::2] = cos(angle).",
    "09",
    "luopeixiang/im2latex#10",
)


def _without(cosines: Callable[[State], Tensor], halves: bool) -> Callable[..., Tensor]:
    def table(sines: Tensor, _: Tensor, state: State) -> Tensor:
        second = cosines(state)
        if halves:
            return torch.cat([sines, second], dim=1)
        return interleaved(sines, second, state)

    return table


for _cosines, _detail in (
    (lambda state: state["sines_again"], "the sine stands in their columns too"),
    (lambda state: torch.zeros_like(state["cosines"]), "their columns are 0"),
):
    TABLE.wrong("sincos-cosine", _detail)(_without(_cosines, False))
    TABLE.wrong("sincos-cosine", _detail, applies=_even)(_without(_cosines, True))

bug(
    "sincos-overwritten",
    "takes the cosine of the sine: its angles were overwritten by then",
    "keep the angles apart from the table: table[:, 0::2] = angle.sin(), table[:, 1::2] = "
    "angle.cos().",
    "09",
    "TianruiDai/Transformer-Original-Attention-is-all-you-need-",
)


@TABLE.wrong("sincos-overwritten")
def cosine_of_sine(sines: Tensor, cosines: Tensor, state: State) -> Tensor:
    return interleaved(sines, sines[:, : cosines.shape[1]].cos(), state)


@TABLE.wrong("sincos-overwritten", applies=_even)
def cosine_of_sine_behind(sines: Tensor, cosines: Tensor, state: State) -> Tensor:
    return torch.cat([sines, sines.cos()], dim=1)


bug(
    "sincos-rows",
    "takes sines for even places and cosines for odd ones: rows, where columns belong",
    "cut the columns: table[:, 0::2] = sin(angle), table[:, 1::2] = cos(angle).",
    "09",
    "minhrongcon2000/attention-is-all-you-need-demo",
)


@TABLE.wrong("sincos-rows")
def by_rows(sines: Tensor, cosines: Tensor, state: State) -> Tensor:
    table = interleaved(sines, state["sines_again"], state)
    table[1::2] = interleaved(state["cosines_again"], cosines, state)[1::2]
    return table


bug(
    "sincos-same",
    "gives every place the same code",
    "let the angle grow with the place: place / 10000 ** (2 i / embed_dim).",
    "09",
    "BrianPulfer/PapersReimplementations#9",
)


def _plain(state: State) -> bool:
    return not state["start"] and bool(state["given"].isfinite().all())


@TABLE.wrong("sincos-same", applies=_plain)
def same_row(sines: Tensor, cosines: Tensor, state: State) -> Tensor:
    return state["given"][:1].expand_as(state["given"])


POSITIONS = (START, BASE, ANGLES, TABLE, PADDING, LENGTHS)

# ------------------------- what is left of a table whose cosines stand in the places of its sines

LONE = Stage("table", _made)


@LONE.right
def cosines_alone(sines: Tensor, cosines: Tensor, state: State) -> Tensor:
    return interleaved(state["cosines_again"], torch.zeros_like(cosines), state)


@LONE.variant("sincos-halves", applies=_even)
def cosines_alone_first(sines: Tensor, cosines: Tensor, state: State) -> Tensor:
    return torch.cat([state["cosines_again"], torch.zeros_like(cosines)], dim=1)


LONE_COSINES = (START, BASE, ANGLES, LONE)

# ------------------------------------------- found by calling the function with an odd width

bug(
    "sincos-odd",
    "breaks on an odd embed_dim",
    "there is one cosine less than sines: table[:, 1::2] = cos[:, : embed_dim // 2].",
    "09",
    "gc-os-ai/pyaptamer#607",
    seen="fails with an odd embed_dim",
)
