"""Tables of sines and cosines."""

from __future__ import annotations

import torch
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug

# ----------------------------------------------------------- table: (n, e) from n and e


def _made(form: Form, state: State) -> State:
    n, e = state["given"].shape
    places = torch.arange(n, dtype=torch.float64)[:, None]
    angles = places / 10000 ** (torch.arange(0, e, 2, dtype=torch.float64) / e)
    return {"made": form.run(angles, state["given"])}


TABLE = Stage("table", _made)


@TABLE.right
def interleaved(angles: Tensor, given: Tensor) -> Tensor:
    table = torch.zeros_like(given)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles.cos()[:, : given.shape[1] // 2]
    return table


bug(
    "sincos-halves",
    "puts all sines before all cosines, where the paper alternates: harmless until weights are "
    "exchanged",
    "table[:, 0::2] = sin, table[:, 1::2] = cos.",
    "01",
    "tensorflow/text#1122",
    "tatp22/multidim-positional-encoding#20",
)


def _even(state: State) -> bool:
    return state["given"].shape[1] % 2 == 0


@TABLE.wrong("sincos-halves", applies=_even)
def sines_first(angles: Tensor, given: Tensor) -> Tensor:
    return torch.cat([angles.sin(), angles.cos()], dim=1)


@TABLE.wrong("sincos-halves", applies=_even)
def cosines_first(angles: Tensor, given: Tensor) -> Tensor:
    return torch.cat([angles.cos(), angles.sin()], dim=1)


@TABLE.wrong("sincos-halves", applies=lambda state: _even(state) and state["given"].shape[1] > 2)
def spaced_to_the_end(angles: Tensor, given: Tensor) -> Tensor:
    """The spacing of the first reference implementation."""
    n, e = given.shape
    steps = torch.arange(e // 2, dtype=torch.float64) / (e // 2 - 1)
    spaced = torch.arange(n, dtype=torch.float64)[:, None] / 10000**steps
    return torch.cat([spaced.sin(), spaced.cos()], dim=1)


bug(
    "sincos-same",
    "gives every place the same code",
    "let the angle grow with the place: place / 10000 ** (2 i / embed_dim).",
    "01",
    "BrianPulfer/PapersReimplementations#9",
)


@TABLE.wrong("sincos-same")
def same_row(angles: Tensor, given: Tensor) -> Tensor:
    return given[:1].expand_as(given)


POSITIONS = (TABLE,)

# ------------------------------------------- found by calling the function with an odd width

bug(
    "sincos-odd",
    "breaks on an odd embed_dim",
    "there is one cosine less than sines: table[:, 1::2] = cos[:, : embed_dim // 2].",
    "01",
    "gc-os-ai/pyaptamer#607",
    seen="fails with an odd embed_dim",
)
