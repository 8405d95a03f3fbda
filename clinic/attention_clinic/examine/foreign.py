"""Layers that a module calls and does not hold: others', or those that it was copied from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from attention_clinic.engine.report import Report
from attention_clinic.examine.cuts import Cut
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.unlearned import listed

BUILT = "layers-in-forward"  # nobody holds these
IDLE = {"part-unused", "parameter-unused"}  # what another's layer may stand for


def with_foreign(report: Report, subject: Subject) -> Report:
    """Return a report that says which layers a module calls that nothing registers in it.

    Args:
        report: on the module.
        subject: the module.
    """
    idle = any(IDLE & set(one.ids) for one in (*report.explanations, *report.remarks))
    if BUILT in report.ids or (not idle and (report.healthy or report.explanations)):
        return report
    called = foreign(subject)
    if not called:
        return report
    words = f"it holds the layers that it calls: not {listed(called)}"
    words += ", as a function that a copy keeps calls those of the original" if idle else ""
    return replace(report, healthy=False, failing=(*report.failing, words))


def foreign(subject: Subject) -> list[str]:
    """Return the layers that a module calls and does not hold; a part of a block may call any."""
    if not subject.patient.is_module or isinstance(subject.original, Cut):
        return []
    x = subject.patient.tokens(subject.b, subject.n, subject.e)
    return _called(subject.patient.module, lambda: subject.open_run(x))


def _called(module: nn.Module, run: Callable[[], object]) -> list[str]:
    """Return the layers with weights that are called in a run and that a module does not hold."""
    held, found = set(module.modules()), dict[nn.Module, str]()
    inside: list[nn.Module] = []  # what a caller does around it is not its own

    def note(part: nn.Module, given: tuple[Any, ...]) -> None:
        own = [p for p in part.parameters(recurse=False) if p.ndim > 1]
        if part is module:
            inside.append(part)
        if part not in held and own and inside:
            sizes = " x ".join(map(str, own[0].shape[::-1]))
            found[part] = f"{type(part).__name__} {sizes}"

    handles = [
        register_module_forward_pre_hook(note),
        module.register_forward_hook(lambda *_: inside.clear()),
    ]
    try:
        run()
    except Exception:  # what does not run in this way says nothing
        return []
    finally:
        for handle in handles:
            handle.remove()
    return list(found.values())
