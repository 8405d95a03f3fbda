"""`diagnose_positions`: tables of sines and cosines."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from math import isclose, isqrt
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS, POSITIONS, VARIANTS
from attention_clinic.bugs.positions import LONE_COSINES
from attention_clinic.engine.doors import answered
from attention_clinic.engine.forms import Found, State, replay, simplest
from attention_clinic.engine.patient import Patient, same, undisturbed
from attention_clinic.engine.report import Report, explain
from attention_clinic.examine.learned_places import learned_places
from attention_clinic.examine.learning import learned
from attention_clinic.examine.rows_held import fixed_tensors
from attention_clinic.examine.unlearned import and_more

PLACES = 64  # that are looked at; what explains them must hold for all
MISTAKES = 4  # of a table, at most
SAME = ("sincos-same",)
WIDEST = 4096  # a larger number of its own is no width
SURE = 0.01  # of a table: columns whose angles are known better are evidence
# Bases for images, which need no long waves: DINOv3's, and DETR's with anchors.
SHORT_WAVES = (100.0, 20.0)


def diagnose_positions(
    positions: Tensor | Callable[..., Any], embed_dim: int = 16, *, base: float = 10_000.0
) -> Report:
    """Compare a table of sines and cosines with the one of the 2017 paper.

    Args:
        positions: the table; a function of (number of tokens, embed_dim) that makes it; or a
            module that adds it to tokens.
        embed_dim: the even width with which a function is called; a module's own is found.
        base: the number whose powers are the lengths of the waves.

    Shape:
        positions  (n, e) or (1, n, e); a module takes and returns (b, n, e)

    Returns:
        A `Report`: print it, or ask for `healthy` and `explanations`.

    Raises:
        ValueError: a table of another rank, a base below 1, or a module that does not run.
    """
    if isinstance(base, bool) or not isinstance(base, int | float) or not base > 1:
        raise ValueError(
            f"diagnose_positions: base must be above 1, got base={base!r}. The paper takes 10000."
        )
    if not isinstance(positions, nn.Module):
        return _diagnosed(positions, None, embed_dim, float(base))
    with answered("diagnose_positions", positions):
        patient = Patient("diagnose_positions", positions, own_weights=True)
        report = _diagnosed(positions, patient, embed_dim, float(base))
    return and_more(report, [("dropout-eval", "two calls differ")] * patient.rests)


def _diagnosed(
    positions: Tensor | Callable[..., Any], patient: Patient | None, embed_dim: int, base: float
) -> Report:
    """Return the report on a table, on what makes it, or on the copy of a module that adds it."""
    name = "positions"
    ids: list[str] = []
    table: Any = positions
    with undisturbed(), torch.no_grad(), answered("diagnose_positions", positions):
        if patient is not None:
            name = patient.name
            table = added(patient, embed_dim)
            if table is None:
                found = explain([BUGS["pos-batch-axis"]], what="table")
                return Report(name, False, (found,), checked=("what it adds to two samples",))
        elif not isinstance(positions, Tensor):
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
    checked = ["sines and cosines, place by place"]
    checked += ["an odd width"] * (callable(positions) and not isinstance(positions, nn.Module))
    whole = bool(table.isfinite().all())
    coarse = coarse_type(table) if whole and table.frac().any() else None
    checked[0] += f", as {str(coarse).removeprefix('torch.')} holds them" * (coarse is not None)
    full, table = table, table[: len(table) - unfilled(table)] if whole else table
    found = explained(table, base) if whole else {}
    lone = whole and not found and lacks_columns(table)
    found = explained(table, base, lone=True) if lone else found
    named = next(iter(found.values())).path.variants if found else ()
    if whole and patient is not None and set(found) <= {SAME}:
        other = Patient("diagnose_positions", positions)
        other.rests = patient.rests
        with undisturbed(), torch.no_grad():
            report = learned_places(other, table)
        if report is not None:
            with undisturbed():
                return _learned(report, patient, table)
    held = fixed_tables(patient, table) if patient is not None and SAME in found else {}
    if held and not table.any():
        failing = (f"what it holds of positions is added: nothing adds {', '.join(held)}",)
        return Report(name, False, failing=failing, checked=("what it adds to tokens",))
    if held:
        found = {("pos-one-row",): found[SAME]}
    sides = sides_of(table) if whole and not found else None
    if sides is not None:
        tried = [both_explained(*sides, wave) for wave in (base, *SHORT_WAVES)]
        found, named = next((one for one in tried if () in one[0]), tried[0])
        named = (*named, *("sincos-2d",) * bool(found))
        checked[0] = "sines and cosines, by row and by column of the image"
    explanations = []
    for more, way in found.items() or {(): None}.items():
        bugs = [BUGS[id] for id in (*more, *ids)]
        if bugs:
            gap = way.difference if way else 0.0
            what = "table, but for what is 0," if lone or len(table) < len(full) else "table"
            explanations.append(explain(bugs, gap, way.path.detail if way else "", what=what))
    failing = [] if whole else ["the table holds numbers: it has NaN or infinity"]
    short = len(table) < len(full)
    failing += [f"each place has a code: from row {len(table)} on, all is 0"] * short
    failing += [
        "each pair has a sine: cosines stand in the columns of the sines, and theirs are 0"
    ] * (lone and bool(found))
    report = Report(
        name,
        () in found and not ids and not failing,
        tuple(explanations),
        tuple(failing),
        tuple(checked),
        variants=tuple(VARIANTS[id] for id in named),
        tolerance=limit_of(table),
    )
    if patient is not None:
        with undisturbed():
            return _learned(report, patient, full)
    return report


def fixed_tables(patient: Patient, table: Tensor) -> dict[str, Tensor]:
    """Return what a module holds that has other rows, of the width of what it adds, by its names.

    Args:
        patient: a module that adds the same to every token.
        table: of that.
    """
    held = fixed_tensors(patient.original)
    rows = {
        name: t.detach().cpu().double().flatten(0, -2) for name, t in held.items() if t.ndim > 1
    }
    return {
        name: t
        for name, t in rows.items()
        if t.shape[1] == table.shape[1] and len(t) > 1 and not same(t, t[:1].expand_as(t))
    }


def unfilled(table: Tensor) -> int:
    """Return how many rows at the end of a table are 0: a few, behind more that are not."""
    filled = int(table.any(dim=1).nonzero().max()) + 1 if table.any() else len(table)
    return len(table) - filled if 2 * filled > len(table) and filled > 3 else 0


def lacks_columns(table: Tensor) -> bool:
    """Say whether one column of each pair is 0, and that of place 0 is no sine."""
    e = table.shape[1]
    if e % 2 or e < 8:
        return False
    lying = (table[:, 0::2], table[:, 1::2]), table.chunk(2, dim=1)
    return any(bool((first[0] == 1).all()) and not second.any() for first, second in lying)


def _learned(report: Report, patient: Patient, table: Tensor) -> Report:
    """Say whether tokens that get their places stay what they are, and still learn."""
    x = patient.tokens(3, *table.shape, seed=1)
    with torch.no_grad():
        factor = factor_of(patient, x)
    right = (1.0, table.shape[1] ** 0.5)
    if (
        report.healthy
        and factor is not None
        and not any(isclose(factor, one, rel_tol=1e-4) for one in right)
    ):
        said = (
            f"tokens stay as long, or grow by sqrt(embed_dim): they are multiplied by {factor:.4g}"
        )
        return replace(report, healthy=False, failing=(said,), variants=())
    return learned(report, patient, lambda: patient.run(x), [x], parameters=False)


def factor_of(patient: Patient, x: Tensor) -> float | None:
    """Return the number that tokens are multiplied by before they get their places, None for none.

    Args:
        patient: a module that adds them.
        x: tokens that it takes, (b, n, e).
    """
    empty, made = patient.run(torch.zeros_like(x)), patient.run(x)
    change = made - empty
    if change.shape != x.shape:
        return None
    factor = (change * x).sum() / x.square().sum()
    limit = 1e-5 * (1 + change.abs().max())
    return float(factor) if bool((change - factor * x).abs().max() <= limit) else None


Ways = dict[tuple[str, ...], Found]


def limit_of(table: Tensor) -> float:
    """Return the largest difference that counts as equal.

    Tables are mostly made in single precision, where an angle of n is off by n * 6e-8.
    """
    return 1e-6 * max(10, len(table))


def coarse_type(table: Tensor) -> torch.dtype | None:
    """Return the half precision in which a table was kept, None where it was in none."""
    for kind in (torch.bfloat16, torch.float16):
        if torch.equal(table.to(kind).double(), table):
            return kind
    return None


def spacing(numbers: Tensor, kind: torch.dtype) -> Tensor:
    """Return how far apart the numbers of a precision lie, next to each of these."""
    step = torch.full_like(numbers, torch.finfo(kind).eps)
    return torch.ldexp(step, numbers.frexp().exponent - 1)


def explained(table: Tensor, base: float, image: bool = False, lone: bool = False) -> Ways:
    """Return what gives a table, with as few mistakes as possible.

    Args:
        table: of sines and cosines.
        base: the number whose powers are the lengths of the waves.
        image: whether it is that of the rows, or of the columns, of an image.
        lone: whether its cosines stand where sines belong, and nothing where they belong.
    """
    limit, begin = limit_of(table), {"base": base, "image": image, "lone": lone}
    stages, coarse = LONE_COSINES if lone else POSITIONS, coarse_type(table)

    def difference(state: State) -> float | None:
        both = state["made"].isnan() & state["given"].isnan()
        gap = (state["made"] - state["given"]).masked_fill(both, 0.0).abs()
        if coarse is not None:  # what lies nearer to this number than to its neighbours
            gap = (gap - 0.5 * spacing(state["given"], coarse)).clamp(min=0.0)
        gap = gap.amax(dim=0)
        unsure = state.get("unsure")
        if unsure is not None and unsure.max() > limit and float(gap.max()) > limit:
            # angles so large that single precision rounds them: the others must be enough
            slack = unsure.amax(dim=0).clamp(min=limit)
            sure = int((slack < SURE).sum())
            enough = sure > 3 and 4 * sure >= len(gap)
            return SURE if enough and bool((gap <= slack).all()) else None
        return float(gap.max()) if float(gap.max()) <= limit else None

    def whole(way: Found) -> bool:
        made = replay(stages, way.path.forms, {"given": table, **begin})
        return made is not None and difference(made) is not None

    ways = simplest(stages, {"given": table[:PLACES], **begin}, difference, MISTAKES)
    return {ids: way for ids, way in ways.items() if len(table) <= PLACES or whole(way)}


def sides_of(table: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the tables of rows and of columns where the places are those of an image.

    One half of the numbers is that of the row then, the other that of the column; a class token
    may have a row of zeros before them.
    """
    n, e = table.shape
    for blank in (0, 1) if e % 4 == 0 else ():
        if blank and table[0].any():
            continue
        highs = [high for high in range(3, (n - blank) // 3 + 1) if (n - blank) % high == 0]
        for high in sorted(highs, key=lambda high: abs(high - isqrt(n - blank))):
            for halves in _halves(table[blank:].unflatten(0, (high, -1))):
                for rows, columns in (halves, halves[::-1]):
                    apart = (rows - rows[:, :1]).abs().max(), (columns - columns[:1]).abs().max()
                    if max(apart) <= limit_of(table):
                        return rows[:, 0], columns[0]
    return None


def _halves(codes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield what may be the numbers of one axis, and those of the other: halves, or in turn."""
    yield codes.chunk(2, dim=2)
    for sizes in ((-1, 2, 2), (2, 2, -1)):  # pairs in turn; sines of both before their cosines
        first, second = codes.unflatten(2, sizes).unbind(3)
        yield first.flatten(2), second.flatten(2)


def both_explained(rows: Tensor, columns: Tensor, base: float) -> tuple[Ways, tuple[str, ...]]:
    """Return what gives the tables of rows and of columns alike, and the names of the variants."""
    first, second = (explained(side, base, image=True) for side in (rows, columns))
    found = {ids: way for ids, way in first.items() if ids in second}
    for ids, way in found.items():
        if way.path.variants != second[ids].path.variants:
            return {}, ()
    return found, next(iter(found.values())).path.variants if found else ()


def added(patient: Patient, embed_dim: int) -> Tensor | None:
    """Return what a module adds to tokens of zeros, (n, e); None when it counts samples instead.

    Args:
        patient: maps tokens to tokens; dropouts that drop while evaluating are put to rest.
        embed_dim: the width to try when the module does not say its own.

    Raises:
        ValueError: a module that runs with no width.
    """
    held = [*patient.module.buffers(), *patient.module.parameters(), *vars(patient.module).values()]
    held = [t for t in held if getattr(t, "ndim", 0) > 1]  # arrays of numpy, too
    widths = [t.shape[-1] for t in held]
    widths += [n for n in vars(patient.module).values() if type(n) is int and 1 < n <= WIDEST]
    lengths = dict.fromkeys((11, *(t.shape[-2] for t in held), *grids(held)))  # some take one only
    first: tuple[Exception, tuple] | None = None
    for n, width in product(lengths, dict.fromkeys((*widths, embed_dim))):
        x = patient.tokens(3, n, width) * 0.0
        try:
            patient.put_to_rest(patient.tokens(3, n, width))
            y = patient.run(x)
        except Exception as error:
            first = first or (error, tuple(x.shape))
            continue
        y = y[None] if y.ndim == 2 else y
        if y.ndim == 3 and y.shape[0] in (1, 3) and y.shape[1:] == (n, width):
            by_sample = len(y) == 3 and torch.equal(y, y[:, :1].expand_as(y))
            return None if by_sample and not torch.equal(y[0], y[1]) else y[0]
    if first is None:
        raise ValueError(
            f"diagnose_positions: {patient.name} must map (b, n, e) to (b, n, e), got no width "
            "with which it does. Pass the table itself."
        )
    raise patient.complain(*first) from first[0]


def grids(held: list[Any]) -> Iterator[int]:
    """Yield how many places there are where a table for rows and one for columns are summed."""
    laid = [t.shape[:-1] for t in held if t.ndim == 3]
    for first, second in product(laid, laid):
        if first[0] > second[0] == 1 == first[1] < second[1]:
            yield first[0] * second[1]


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
