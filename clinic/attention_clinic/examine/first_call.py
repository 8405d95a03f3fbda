"""The first call of a module that nobody has explained: heads, layouts and sizes are found."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.arguments import head_widths, needed, tables_for
from attention_clinic.engine.budget import is_spent
from attention_clinic.engine.crossing import sides_of
from attention_clinic.engine.heads import said_heads
from attention_clinic.engine.heard import Heard
from attention_clinic.engine.layouts import Layout, layouts, needed_names, token_counts
from attention_clinic.engine.modes import is_of_types, of_shapes
from attention_clinic.engine.openings import openings, unlike_openings
from attention_clinic.engine.patient import Patient, possible_widths, same
from attention_clinic.engine.report import Report
from attention_clinic.examine.resting import SELDOM
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.windows import is_in_quarters

WIDTHS = 4  # widths of a token that are tried with each layout
SAMPLES = 3
LONGER = (10, 20, 40, 70)  # tokens, for modules that need some, and take any number above

Way = tuple[Layout | None, tuple[int, int] | None, int]  # layout, size, width


def heads_of(
    where: str, module: nn.Module | Callable[..., Any], call: Callable[..., Any] | None = None
) -> int:
    """Return how many heads a module has: as it says, or as its softmax is heard to have.

    Args:
        where: the public name that an error begins with.
        module: as in `diagnose`.
        call: as there.

    Raises:
        ValueError: nothing says it.
    """
    said = said_heads(module)
    said = _heard_heads(where, module, call) if said is None else said
    if said is None:
        name = type(module).__name__ if isinstance(module, nn.Module) else "a function"
        raise ValueError(
            f"{where}: num_heads must be given where the module does not say it, got {name}. "
            f"Write {where}(module, num_heads=8), with its own number."
        )
    return said


def _heard_heads(
    where: str, module: nn.Module | Callable[..., Any], call: Callable[..., Any] | None
) -> int | None:
    """Return the second axis of the scores, (b, h, i, j), None where none are heard."""
    if not isinstance(module, nn.Module):
        return None
    patient = Patient(where, module, call)
    for x in _rows(patient):
        try:
            with Heard() as heard:
                patient.run(x)
        except Exception:
            continue
        for shape in heard.weighed:
            if len(shape) == 4 and shape[0] == x.shape[0] and shape[2] == x.shape[1]:
                return shape[1]
        if any(len(shape) == 3 and shape[0] == x.shape[0] for shape in heard.weighed):
            return 1
    return None


def _rows(patient: Patient) -> Iterator[Tensor]:
    widths = possible_widths(patient.module, dict(patient.module.named_parameters()))
    for width in widths[:WIDTHS]:
        yield patient.tokens(SAMPLES, 5, width)


def ways_of(module: nn.Module, embed_dim: int | None) -> Iterator[Way]:
    """Yield layouts, sizes and widths with which a module runs and returns as many tokens.

    Args:
        module: the module; it does not run on tokens alone.
        embed_dim: as in `diagnose`.
    """
    patient = Patient("diagnose", module)
    named = dict(patient.module.named_parameters())
    found = [embed_dim] if embed_dim else possible_widths(patient.module, named)[:WIDTHS]
    for n in token_counts(patient.module):
        b = SAMPLES if n != SAMPLES else SAMPLES + 1
        for width in found:
            if _runs(patient, (b, n, width)):
                more = _in_windows(patient, (b, 4 * n, width))
                yield None, (b, 4 * n if more else n), width
                break
    for n in LONGER if len(needed_names(module)) == 1 and not _reads_images(module) else ():
        b = SAMPLES
        for width in found:
            if all(_runs(patient, (b, n + more, width)) for more in (0, 1, 3)):
                yield None, (b, n), width
                break
    free = next(openings()) if any("mask" in name for name in needed_names(module)) else None
    for opening, layout in product(dict.fromkeys((None, free)), layouts(patient.module)):
        patient.opening, patient.layout = opening, layout
        rows, columns = layout.grids[0] if layout.grids else (1, 5)
        for width in found:
            if _runs(patient, (SAMPLES, rows * columns, width)):
                wider = replace(layout, grids=((2 * rows, 2 * columns),) * 2)
                patient.layout = wider if layout.grids else None
                more = layout.grids and _in_windows(patient, (SAMPLES, 4 * rows * columns, width))
                yield wider if more else layout, None, width
                break


def _reads_images(module: nn.Module) -> bool:
    return any(isinstance(part, nn.Conv2d) for part in module.modules())


def _runs(patient: Patient, shape: tuple[int, int, int]) -> bool:
    """Say whether a copy takes tokens of a shape, and returns as many."""
    try:
        y = patient.run(patient.tokens(*shape))
    except Exception as error:
        if patient.wide or not is_of_types(error):
            return False
        patient.wide = True  # it casts to single precision
        return _runs(patient, shape)
    return y.ndim == 3 and tuple(y.shape[:2]) == shape[:2]


def _in_windows(patient: Patient, shape: tuple[int, int, int]) -> bool:
    """Say whether a copy takes tokens of a shape, and weighs them in four windows."""
    return is_in_quarters(lambda: _runs(patient, shape), shape[1])


def differs(subject: Subject, x: Tensor, y: Tensor) -> bool:
    """Say whether another call gives another result: the second, or one of many where it draws.

    Args:
        subject: the module.
        x: tokens.
        y: what the first call gave.
    """
    drawn = torch.get_rng_state()
    if not same(y, subject.open_run(x)):
        return True
    draws = not torch.equal(drawn, torch.get_rng_state())
    return draws and any(not same(y, subject.open_run(x)) for _ in range(SELDOM))


def found_out(
    module: nn.Module | Callable[..., Any],
    embed_dim: int | None,
    examined: Callable[[Way], Report],
) -> Report | None:
    """Return what is found once a way to call a module is; None where no way is found.

    Args:
        module: the module, which does not run on rows of tokens.
        embed_dim: as in `diagnose`.
        examined: examines it in one way.
    """
    if not isinstance(module, nn.Module):
        return None
    best: Report | None = None
    for way in ways_of(module, embed_dim):
        try:
            report = examined(way)
        except ValueError:
            continue
        report = _told(report, module, way[0])
        if report.healthy or report.explanations or is_spent():
            return report
        best = report if best is None else best
    return best


def wants_context(module: nn.Module | Callable[..., Any], error: ValueError) -> bool:
    """Say whether a module was refused because it got no context: the line that fails says so.

    Args:
        module: the module, which was called on tokens alone.
        error: what came of it.
    """
    cause = error.__cause__
    sides = sides_of(module) if "NoneType" in str(cause) else None
    if sides is None or sides.guessed:
        return False
    line = traceback.extract_tb(cause.__traceback__)[-1].line or ""
    return any(re.search(rf"\b{name}\b", line) for name in sides.asked)


def _told(report: Report, module: nn.Module, layout: Layout | None) -> Report:
    """Return a report that says how the module was called."""
    if layout is None:
        return report
    checked = report.checked
    if layout.words:
        checked = (*checked, layout.words)
    untried = report.untried
    if layout.beside != "tokens":
        others = ", ".join(needed_names(module)[1:])
        untried = (*untried, f"what {others} do: call=... gives them their values")
    return replace(report, checked=checked, untried=untried)


def tryable(subject: Subject, embed_dim: int | None, name: str, given: Iterable[Any]) -> list[Any]:
    """Return what may be handed over: the first alone where unlike ones fail in the same way.

    Args:
        subject: a module that does not run without.
        embed_dim: as in `diagnose`.
        name: of the option, "tables" or "opening".
        given: what may be handed over.
    """
    module, options, given = subject.original, subject.options, list(given)
    further: list[Any] = [options.tables]  # with a mask it may need tables, too
    names = needed(module) if name == "opening" else {}
    if any(names.values()):
        further = _unlike(list(tables_for(names, head_widths(module, subject.h))))
    said: set[str] = set()
    few = unlike_openings() if name == "opening" else _unlike(given)
    for one, tables in product(few, further):
        tried = replace(options, **{"tables": tables, name: one})
        try:
            Subject(module, tried).find_width(embed_dim, lambda *_: False)
        except ValueError as error:
            said.add(str(error))
            if len(said) > 1 or of_shapes(error.__cause__):
                return given
        else:
            return given
    return given[:1]


def _unlike(given: list[Any]) -> list[Any]:
    """Return some that are as unlike as can be."""
    places = {0, 1, len(given) // 3, 2 * len(given) // 3, len(given) - 1}
    return [given[place] for place in sorted(places) if place < len(given)]


def check_heads(subject: Subject, y: Tensor) -> None:
    """Raise when no width that the module has is a multiple of the heads."""
    e, h = subject.e, subject.h
    named = subject.weights or dict(subject.patient.module.named_parameters())
    sizes = {size for weight in named.values() for size in weight.shape}
    if any(size % h == 0 for size in (e, y.shape[-1], *sizes)):
        return
    fitting = [n for n in range(1, e + 1) if e % n == 0]
    said = said_heads(subject.original) or _heard_heads("diagnose", subject.original, subject.call)
    pick = f"The module has {said}: say num_heads={said}." if said in fitting else ""
    raise ValueError(
        f"diagnose: num_heads must divide the width of a token, got num_heads={h} and "
        f"embed_dim={e}. {pick or f'Pick num_heads from {fitting}.'}"
    )


def forget(subject: Subject) -> None:
    """Forget what the first calls have shown, which were not alike: they are made anew."""
    for name in ("known", "sees_order", "first", "second"):
        vars(subject).pop(name, None)
