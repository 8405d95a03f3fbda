"""`diagnose_positions`: tables of sines and cosines, and modules that add positions to tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import inf, isclose
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.behaviour.gradients import learned
from attention_clinic.capture.calling import Way, says_time_first
from attention_clinic.capture.module import (
    CallFailed,
    Patient,
    attempted,
    first_line,
    place,
    same,
    undisturbed,
    unwrapped,
)
from attention_clinic.catalogue import BUGS, VARIANTS
from attention_clinic.catalogue.embedding import POSITIONS
from attention_clinic.catalogue.forms import Found, State, replay, simplest, with_more
from attention_clinic.report import Report, explain

WHERE = "diagnose_positions"
FEW = 64  # positions of the search; what explains them must hold for all
Ways = dict[tuple[str, ...], Found]


def diagnose_positions(
    positions: Tensor | Callable[..., Any], embed_dim: int = 16, *, base: float = 10_000.0
) -> Report:
    """Compare a table of sines and cosines with that of the original Transformer.

    Args:
        positions: the table; a function of (number of tokens, embed_dim) that makes it; or a
            module that adds it to tokens.
        embed_dim: the even width with which a function is called; a module's own is found.
        base: the number whose powers are the lengths of the waves.

    Shape:
        positions  (n, e) or (1, n, e); a module takes and returns (b, n, e)

    Raises:
        ValueError: a table of a different rank, a base of 1 or less, or a module that does not run.
    """
    if isinstance(base, bool) or not isinstance(base, int | float) or not base > 1:
        raise ValueError(f"{WHERE}: base must be above 1, got {base=}. The paper takes 10000.")
    if isinstance(positions, Tensor):
        return _judged("positions", _rows_of(positions), base)
    given = unwrapped(WHERE, positions)
    with undisturbed():
        if not isinstance(given, nn.Module):
            return _of_function(given, embed_dim, base)
        patient = Patient(WHERE, given, own_weights=True)
        if says_time_first(given):
            patient.way = Way(time_first=True)
        own = _added(patient, embed_dim)
        x = patient.tokens(3, *own.shape[1:], seed=1)
        try:
            report = _of_module(patient, own, x, base)
            report = with_more(report, [("dropout-eval", "")] * patient.resting)
            return learned(report, patient, lambda: patient.run(x), [x])
        except CallFailed as failed:
            raise patient.refusal(failed.error, tuple(x.shape)) from failed.error


def _rows_of(made: object) -> Tensor:
    """Return a table as (n, e), in double precision; raise a ValueError for something else."""
    table = made.detach().cpu().double().squeeze(0) if isinstance(made, Tensor) else None
    if table is None or table.ndim != 2 or min(table.shape) < 2:
        got = tuple(made.shape) if isinstance(made, Tensor) else type(made).__name__
        raise ValueError(
            f"{WHERE}: the table must have shape (n, e) or (1, n, e), got {got}. "
            "Pass the table itself, or a function of n and embed_dim."
        )
    return table


def _of_function(function: Callable[..., Any], embed_dim: int, base: float) -> Report:
    """Return the report on the table that a function makes, and on an odd width."""
    name = getattr(function, "__name__", type(function).__name__)
    attempt, odd = torch.no_grad()(attempted), []
    try:
        table = _rows_of(attempt(function, 11, embed_dim))
    except CallFailed as failed:
        raise ValueError(
            f"{WHERE}: {name} must make a table from n and embed_dim, got "
            f"{type(failed.error).__name__}: {first_line(failed.error)}{place(failed.error)}. "
            "Pass the table itself."
        ) from failed.error
    try:
        attempt(function, 11, embed_dim + 1)
    except CallFailed as failed:  # an assert or a raise of the function's own is fine
        line = place(failed.error).partition(": ")[2]
        own = line.startswith(("assert", "raise")) or isinstance(failed.error, AssertionError)
        odd = [] if own else [("sincos-odd", "")]
    report = _judged(name, table, base)
    return with_more(replace(report, checked=(*report.checked, "an odd width")), odd)


def _judged(name: str, table: Tensor, base: float) -> Report:
    """Return the report on a table of sines and cosines (n, e)."""
    finite = bool(table.isfinite().all())
    found, variants = _explained(table, base) if finite else ({}, ())
    failing = () if finite else ("the table holds numbers: it has NaN or infinity",)
    checked = (f"sines and cosines, by {'row' if 'sincos-2d' in variants else 'position'}",)
    named = tuple(VARIANTS[id] for id in variants)
    bugs = ((way, [BUGS[id] for id in ids]) for ids, way in found.items() if ids)
    said = tuple(explain(b, way.difference, way.path.detail, what="table") for way, b in bugs)
    tolerance = _limit(table)
    return Report(name, () in found, said, failing, checked, variants=named, tolerance=tolerance)


def _explained(table: Tensor, base: float) -> tuple[Ways, tuple[str, ...]]:
    """Return what gives a table (n, e), of a sequence or an image, and its variants."""
    found = _searched(table, base)
    for rows, columns in () if found else _sides(table):
        other = _searched(columns, base)
        if both := {ids: way for ids, way in _searched(rows, base).items() if ids in other}:
            return both, (*next(iter(both.values())).path.variants, "sincos-2d")
    return found, next(iter(found.values())).path.variants if found else ()


def _limit(table: Tensor) -> float:
    """Return the largest difference that counts as equal: in single precision, angles are off."""
    return 1e-6 * max(10, len(table))


def _searched(table: Tensor, base: float) -> Ways:
    """Return the forms with the fewest mistakes that give a table (n, e)."""
    limit = _limit(table)

    def begin(rows: Tensor) -> State:
        positions = torch.arange(len(rows), dtype=torch.float64)
        return {"given": rows, "positions": positions, "base": base}

    def difference(state: State | None) -> float | None:
        gap = inf if state is None else float((state["made"] - state["given"]).abs().max())
        return gap if gap <= limit else None

    ways = simplest(POSITIONS, begin(table[:FEW]), difference, 3)
    if len(table) <= FEW:
        return ways
    whole = {ids: replay(POSITIONS, way.path.forms, begin(table)) for ids, way in ways.items()}
    return {ids: ways[ids] for ids, state in whole.items() if difference(state) is not None}


def _sides(table: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield tables of rows and of columns of an image; a class token may be before them."""
    for codes in (table, table[1:]) if table.shape[1] % 4 == 0 else ():
        for height in (h for h in range(3, len(codes) // 3 + 1) if len(codes) % h == 0):
            halves = codes.unflatten(0, (height, -1)).chunk(2, dim=2)
            for rows, columns in (halves, halves[::-1]):
                apart = (rows - rows[:, :1]).abs().max(), (columns - columns[:1]).abs().max()
                if max(apart) <= _limit(table):
                    yield rows[:, 0], columns[0]


def _added(patient: Patient, embed_dim: int) -> Tensor:
    """Return what a module adds to tokens of zeros (1 or 3, n, e), with a width that it takes."""
    values = list(vars(patient.module).values())
    held = [*patient.module.buffers(), *patient.module.parameters(), *values]
    held = [t for t in held if getattr(t, "ndim", 0) > 1]  # arrays of numpy, too
    stated = [n for n in values if type(n) is int and 1 < n <= 4096]
    widths = dict.fromkeys((*(t.shape[-1] for t in held), *stated, embed_dim))
    lengths = dict.fromkeys((11, *(t.shape[-2] for t in held)))  # some take one length only
    error: BaseException = ValueError("an output of a different shape")
    for n, width in product(lengths, widths):
        x = patient.tokens(3, n, width)
        try:
            patient.rest(x)
            y = _on_zeros(patient, x)
        except CallFailed as failed:
            error = failed.error
            continue
        if y.ndim == 3 and y.shape[0] in (1, 3) and y.shape[1:] == (n, width):
            return y
    raise patient.refusal(error, (3, 11, embed_dim)) from error


def _on_zeros(patient: Patient, x: Tensor) -> Tensor:
    """Return what a module makes of tokens of zeros, (1 or b, n, e)."""
    y = patient.run(torch.zeros_like(x))
    return y[None] if y.ndim == 2 else y


def _of_module(patient: Patient, own: Tensor, x: Tensor, base: float) -> Report:
    """Return the report on what a module adds to tokens x (3, n, e); own weights add `own`."""
    random = Patient(WHERE, patient.original)
    random.way, random.resting = patient.way, patient.resting
    rows = _on_zeros(random, x)
    alike = same(rows, rows[:, :1].expand_as(rows))
    change = patient.run(x) - _on_zeros(patient, x)
    factor = float((change * x).sum() / x.square().sum())  # 0 where rows alone are returned
    exact = (change - factor * x).abs().max() <= 1e-5 * (1 + change.abs().max())
    usual = any(isclose(factor, one, rel_tol=1e-4) for one in (0.0, 1.0, x.shape[2] ** 0.5))
    report = Report(patient.name, True, checked=("learned positions: what each position adds",))
    if alike and exact and rows.any():
        apart = len(rows) > 1 and not same(rows[0], rows[1])
        return with_more(report, [("pos-batch-axis" if apart else "pos-one-row", "")])
    table = report if alike else _judged(patient.name, _rows_of(own[0]), base)
    if table.healthy or table.ids or same(rows, own):
        report = table
    problems = {
        "positions are added to tokens: nothing is": not rows.any(),
        "positions are added to tokens: what a token changes is not a multiple of it": not exact,
        "each position has its own row: two have the same": torch.pdist(rows[0]).min() < 1e-9,
        "tokens stay as long, or grow by sqrt(embed_dim): they are multiplied by "
        f"{factor:.4g}": not usual,
    }
    failing = tuple(words for words, wrong in problems.items() if wrong and report.healthy)
    return replace(report, healthy=False, failing=failing[:1], variants=()) if failing else report
