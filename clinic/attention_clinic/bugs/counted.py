"""The places of a table of sines and cosines: what turns is the number of the place."""

from __future__ import annotations

import torch
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug, variant

# ---------------------------------- start: the number of the first place, 0 in the paper


def _counted(form: Form, state: State) -> State:
    first, law = form.run if isinstance(form.run, tuple) else (form.run, (as_it_is, as_it_is))
    return {"start": first, "law": law}


def as_it_is(places: Tensor) -> Tensor:
    return places


START = Stage("start", _counted)
START.right(0)

variant("sincos-start", "counts the places from 1 or 2, not from 0", "Fairseq, BART", "09")
for _first in (1, 2):
    START.variant("sincos-start")(_first)


def of_their_number(places: Tensor) -> Tensor:
    """Divide the places by the last one: they go round once, however large the image is."""
    return places / (places.flatten()[-1] + 1e-6) * 2 * torch.pi


def of_their_middles(places: Tensor) -> Tensor:
    return (places - 0.5) / (places.flatten()[-1] + 1e-6) * 2 * torch.pi


def _of_image(state: State) -> bool:
    """Say whether the table is that of the rows, or of the columns, of an image."""
    return bool(state.get("image"))


# as DETR normalises them, and others
START.variant("sincos-start", applies=_of_image)((1, (of_their_number,) * 2))
START.forms += [
    Form((start, (law,) * 2), applies=_of_image)
    for start, law in ((0, of_their_number), (1, of_their_middles))
]

bug(
    "sincos-place",
    "turns by something else than the number of the place: no step has the same effect anywhere",
    "angle = place / 10000 ** (2 i / embed_dim), the place once, and the same in both columns of a "
    "pair.",
    "09",
    "tolulopeelijah/transformer_implementation",
    "ET22/paper_implementations",
)


def _bends(state: State) -> bool:
    """Say whether an angle grows with the square of the place, at the first places."""
    given = state["given"]
    if len(given) < 4 or given.shape[1] < 4:
        return False
    slow = (given[1].abs() > 1e-4) & (given[1:4].abs().amax(dim=0) < 0.3)
    rows = given[1:4, slow] / given[1, slow]
    squares = torch.tensor([[1.0], [4.0], [9.0]], dtype=given.dtype)
    return bool(slow.any() and ((rows - squares).abs() < 0.05 * squares).all(dim=0).any())


def _apart(state: State) -> bool:
    """Say whether the first place has sines of 0 and cosines that are not 1."""
    first = state["given"][0].abs()
    return bool((first < 1e-7).sum() * 2 == len(first) and (first > 0.5).any() and first.min() < 1)


START.wrong("sincos-place", "the square of the place", applies=_bends)((0, (torch.square,) * 2))
for _more in (1, -1):
    START.wrong("sincos-place", f"cosines are those of place n {_more:+d}", applies=_apart)(
        (0, (as_it_is, lambda places, more=_more: places + more))
    )


def growing(step: int, more: float) -> Form:
    """Return the form whose exponents have the other sign: the waves grow shorter.

    Args:
        step: by what they are multiplied beside.
        more: by how much that of the cosine is further.
    """

    def run(pairs: Tensor, e: int) -> tuple[Tensor, Tensor]:
        return -2 * step * pairs / e, -2 * (step * pairs + more) / e

    said = f"{2 * step} i / embed_dim" + f", for cosines (2 i + {2 * more:g}) / embed_dim" * (
        more > 0
    )
    ids = ("sincos-exponent", *("sincos-pairs",) * (more > 0))
    return Form(run, ids, f"the waves grow shorter: the exponent is -({said})")
