"""Tables of sines and cosines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug, variant

# ---------------------------------- start: the number of the first place, 0 in the paper

START = Stage("start", lambda form, state: {"start": form.run})
START.right(0)

variant("sincos-start", "counts the places from 1 or 2, not from 0", "Fairseq, BART", "09")
for _first in (1, 2):
    START.variant("sincos-start")(_first)

# ------------------------------------------------- base: that of the paper is 10000


def _other_base(state: State) -> Iterator[Form]:
    """Find the base that the second place's second angle was made with, if it was."""
    given, e = state["given"], state["given"].shape[1]
    yield Form(state["base"])
    if e < 4:
        return
    # a power of the right base is a wrong exponent, which has forms of its own
    known = [state["base"] ** power for power in (1.0, 2.0, 0.5, 0.0)]
    for column in (1, 2):  # where the sine of pair 1 stands, in halves and interleaved
        angle = given[1, column].clamp(-1, 1).asin().item()
        if not 0 < angle < 1:
            continue
        base = angle ** (-e / 2)
        rounded = float(f"{base:.3g}")
        base = rounded if math.isclose(base, rounded, rel_tol=1e-4) else base
        if not any(math.isclose(base, other, rel_tol=1e-4) for other in known):
            known.append(base)
            yield Form(base, ("sincos-base",), f"its base is {base:.6g}")


BASE = Stage("base", lambda form, state: {"used": form.run}, found=_other_base)

bug(
    "sincos-base",
    "takes another base than 10000 for the lengths of the waves",
    "angle = place / 10000 ** (2 i / embed_dim), or say base=... if it is meant.",
    "09",
    "zju3dv/LoFTR#41",
    "maxjcohen/transformer#62",
    "GrumpyZhou/image-matching-toolbox#36",
)

# ------------- angles: exponents of the base for the sines (e + 1) // 2 and the cosines e // 2


def _turned(form: Form, state: State) -> State:
    n, e = state["given"].shape
    places = torch.arange(n, dtype=torch.float64)[:, None] + state["start"]
    sines, cosines = form.run(torch.arange((e + 1) // 2, dtype=torch.float64), e)
    second = places / state["used"] ** cosines
    return {
        "sines": (places / state["used"] ** sines).sin(),
        "cosines": second.cos()[:, : e // 2],
        "sines_again": second.sin()[:, : e // 2],
    }


ANGLES = Stage("angles", _turned)


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


@ANGLES.wrong("sincos-pairs", "the exponent is 2 c / embed_dim in column c")
def exponents_by_column(pairs: Tensor, e: int) -> tuple[Tensor, Tensor]:
    return 4 * pairs / e, (4 * pairs + 2) / e


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


# ---------------------------------------- table: sines and cosines -> (n, e)


def _made(form: Form, state: State) -> State:
    return {"made": form.run(state["sines"], state["cosines"], state)}


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


@TABLE.variant("sincos-halves", applies=_even)
def cosines_first(sines: Tensor, cosines: Tensor, state: State) -> Tensor:
    return torch.cat([cosines, sines], dim=1)


variant(
    "sincos-exchanged",
    "puts the cosine of a pair before its sine: harmless until weights are exchanged",
    "some time embeddings",
    "09",
)


@TABLE.variant("sincos-exchanged", applies=_even)
def exchanged(sines: Tensor, cosines: Tensor, state: State) -> Tensor:
    return interleaved(cosines, sines, state)


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
    "sincos-same",
    "gives every place the same code",
    "let the angle grow with the place: place / 10000 ** (2 i / embed_dim).",
    "09",
    "BrianPulfer/PapersReimplementations#9",
)


def _plain(state: State) -> bool:
    return not state["start"]


@TABLE.wrong("sincos-same", applies=_plain)
def same_row(sines: Tensor, cosines: Tensor, state: State) -> Tensor:
    return state["given"][:1].expand_as(state["given"])


POSITIONS = (START, BASE, ANGLES, TABLE)

# ------------------------------------------- found by calling the function with an odd width

bug(
    "sincos-odd",
    "breaks on an odd embed_dim",
    "there is one cosine less than sines: table[:, 1::2] = cos[:, : embed_dim // 2].",
    "09",
    "gc-os-ai/pyaptamer#607",
    seen="fails with an odd embed_dim",
)
