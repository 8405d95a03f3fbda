"""`diagnose_positions`: tables of sines and cosines."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attention_clinic.bugs import BUGS, POSITIONS
from attention_clinic.engine.forms import State, simplest
from attention_clinic.engine.patient import undisturbed
from attention_clinic.engine.report import Report, explain


def diagnose_positions(positions: Tensor | Callable[..., Any], embed_dim: int = 16) -> Report:
    """Compare a table of sines and cosines with the one of the 2017 paper.

    Args:
        positions: the table, or a function of (number of tokens, embed_dim) that makes it.
        embed_dim: the even width with which a function is called.

    Shape:
        positions  (n, e) or (1, n, e)

    Returns:
        A `Report`: print it, or ask for `healthy` and `explanations`.

    Raises:
        ValueError: a table of another rank.
    """
    name = "positions"
    ids: list[str] = []
    with undisturbed(), torch.no_grad():
        table = positions
        if not isinstance(positions, Tensor):
            name = getattr(positions, "__name__", type(positions).__name__)
            table = positions(11, embed_dim)
            try:
                positions(11, embed_dim + 1)
            except Exception as error:
                if not refused(error, positions):
                    ids.append("sincos-odd")
    table = table.detach().cpu().double().squeeze(0) if isinstance(table, Tensor) else table
    if not isinstance(table, Tensor) or table.ndim != 2 or min(table.shape) < 2:
        got = tuple(table.shape) if isinstance(table, Tensor) else type(table).__name__
        raise ValueError(
            f"diagnose_positions: the table must have shape (n, e) or (1, n, e), got {got}. "
            "Pass the table itself, or a function of n and embed_dim."
        )
    # tables are mostly made in single precision, where an angle of n is off by n * 6e-8
    limit = 1e-6 * max(10, len(table))
    checked = ["sines and cosines, place by place"] + ["an odd width"] * callable(positions)

    def difference(state: State) -> float | None:
        gap = float((state["made"] - table).abs().max())
        return gap if gap <= limit else None

    found = simplest(POSITIONS, {"given": table}, difference)
    explanations = []
    for more, way in found.items() or {(): None}.items():
        bugs = [BUGS[id] for id in (*more, *ids)]
        if bugs:
            gap = way.difference if way else 0.0
            explanations.append(explain(bugs, gap, way.path.detail if way else "", what="table"))
    failing = () if table.isfinite().all() else ("the table holds numbers: it has NaN or infinity",)
    return Report(
        name, () in found and not ids, tuple(explanations), failing, tuple(checked), tolerance=limit
    )


def refused(error: Exception, function: Callable[..., Any]) -> bool:
    """Say whether a function refuses its input itself, by an assert or a raise of its own."""
    line = error.__traceback__
    while line is not None and line.tb_next is not None:
        line = line.tb_next
    if line is None:
        return False
    own = getattr(inspect.unwrap(function), "__globals__", None)
    code = linecache.getline(line.tb_frame.f_code.co_filename, line.tb_lineno).strip()
    stated = code.startswith(("assert", "raise")) or isinstance(error, AssertionError)
    return stated and line.tb_frame.f_globals is own
