"""The base of a table of sines and cosines: its powers are the lengths of the waves."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from attention_clinic.bugs.counted import as_it_is
from attention_clinic.engine.forms import Form, Stage, State, bug
from attention_clinic.engine.waves import PAIRS_READ, bases_of, speeds

# ------------------------------------------------- base: that of the paper is 10000


def _other_base(state: State) -> Iterator[Form]:
    """Find the base that the second place's second angle was made with, if it was."""
    given, e = state["given"], state["given"].shape[1]
    yield Form(state["base"])
    if e < 4:
        return
    # a power of the right base is a wrong exponent, which has forms of its own
    known = [state["base"] ** power for power in (1.0, 2.0, 0.5, 0.0, e / (e - 1))]
    row = int(not state["start"])
    places = torch.arange(len(given), dtype=torch.float64) + state["start"]
    place = state["law"][0](places)[row].item()
    # where the sine of pair 1 stands: in halves and interleaved, the cosines behind or before
    for column in dict.fromkeys((1, 2, 3, min(e // 2 + 1, e - 1))):
        angle = given[row, column].clamp(-1, 1).asin().item() / place
        if not 0 < angle < 1:
            continue
        base = angle ** (-e / 2)
        if any(math.isclose(base, other, rel_tol=1e-4) for other in known):
            continue
        known.append(base)
        for used in dict.fromkeys((float(f"{base:.3g}"), base)):
            if math.isclose(base, used, rel_tol=1e-4):
                yield Form(used, ("sincos-base",), f"its base is {used:.6g}")
    lone = bool(state.get("lone"))
    if (
        state.get("left", 0) < 2 - lone
        or e < 8
        or len(given) < 4
        or state["law"][1] is not as_it_is
    ):
        return
    bend = torch.cos if lone else torch.sin
    columns = given[:, 0::2] if bool(given[:, 0::2].any(dim=0).all()) else given[:, : e // 2]
    for used in bases_of(speeds(columns[:, :PAIRS_READ], places, bend), e):
        if not any(math.isclose(used, other, rel_tol=1e-4) for other in known):
            yield Form(used, ("sincos-base",), f"its base is {used:.6g}")


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
