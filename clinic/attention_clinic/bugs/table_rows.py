"""What is done to the rows of a table of sines and cosines."""

from __future__ import annotations

import torch
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug, variant

# -------------------------------------------- rows: what is done to the rows of the table, (n, e)


def _through(form: Form, state: State) -> State:
    return {} if form.run is None else {"made": form.run(state["made"], state)}


PADDING = Stage("padding", _through, forms=[Form(None)])
LENGTHS = Stage("lengths", _through, forms=[Form(None)])

variant(
    "sincos-padding",
    "keeps a row of zeros for padding",
    "Fairseq, early copies of the paper's",
    "09",
)


def _blank(state: State) -> bool:
    return not state["given"][0].any()


@PADDING.variant("sincos-padding", applies=_blank)
def blank_row(made: Tensor, state: State) -> Tensor:
    return torch.cat([torch.zeros_like(made[:1]), made[1:]])


@PADDING.variant("sincos-padding", applies=_blank)
def blank_row_before_all(made: Tensor, state: State) -> Tensor:
    return torch.cat([torch.zeros_like(made[:1]), made[:-1]])


variant(
    "sincos-2d",
    "has places of an image: one half of its numbers is that of the row, the other of the column",
    "MAE, SimpleViT, DiT",
    "09",
)
variant(
    "sincos-unit",
    "divides each row by its length",
    "some copies of the paper's",
    "09",
)


@LENGTHS.variant("sincos-unit", applies=lambda state: bool(state["given"].abs().max() < 1))
def unit_rows(made: Tensor, state: State) -> Tensor:
    return made / (made.norm(dim=1, keepdim=True) + 1e-8)


bug(
    "sincos-normed",
    "divides each row by a root of its sum, which may be negative, where its length was meant",
    "leave the rows: with a sine and a cosine for each wave all are equally long.",
    "09",
    "windshadow233/HandWritten-Transformer-NMT",
)


def _divided(state: State) -> bool:
    """Say whether the rows may be divided by something: the largest number is no cosine of 0."""
    given = state["given"]
    return bool(given.isnan().any() or abs(float(given.abs().max()) - 1) > 1e-3)


@LENGTHS.wrong("sincos-normed", applies=_divided)
def rooted_rows(made: Tensor, state: State) -> Tensor:
    return made / (made.sum(dim=1, keepdim=True) + 1e-5).sqrt()


@LENGTHS.wrong("sincos-normed", applies=_divided)
def rooted_rows_bare(made: Tensor, state: State) -> Tensor:
    return made / made.sum(dim=1, keepdim=True).sqrt()
