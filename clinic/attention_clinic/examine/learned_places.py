"""Positions that are learned: a row for each place, added to what stands there."""

from __future__ import annotations

import torch
from torch import Tensor

from attention_clinic.bugs import BUGS
from attention_clinic.engine.patient import Patient, same
from attention_clinic.engine.report import Report, explain

CHECKED = ("learned positions: what is added at each place",)
ADDED = "places are added to tokens: what another token changes is no multiple of it"


def learned_places(patient: Patient, own: Tensor) -> Report | None:
    """Examine what a module adds to tokens, where that is made of its parameters.

    Args:
        patient: the copy, with random weights.
        own: what the module adds with its own ones, to all samples alike.

    Shape:
        own  (n, e)

    Returns:
        A `Report`; None where no parameter changes what is added.
    """
    x = patient.tokens(3, *own.shape)
    empty, made = patient.run(torch.zeros_like(x)), patient.run(x)
    empty, made = (t[None] if t.ndim == 2 else t for t in (empty, made))
    change = made - empty
    factor = (change * x).sum() / x.square().sum()
    if not same(change, factor * x):
        return Report(patient.name, False, failing=(ADDED,), checked=CHECKED)
    if same(empty[0], own.to(empty)):
        return None
    rows = empty[0]
    if len(empty) == 3 and same(empty, empty[:, :1].expand_as(empty)):
        id = "pos-one-row" if same(empty[0], empty[1]) else "pos-batch-axis"
        return Report(patient.name, False, (explain([BUGS[id]]),), checked=CHECKED)
    apart = torch.cdist(rows, rows) + torch.eye(len(rows), dtype=rows.dtype)
    alike = not same(empty, empty[:1].expand_as(empty)) or float(apart.min()) < 1e-9
    return None if alike else Report(patient.name, True, checked=CHECKED)
