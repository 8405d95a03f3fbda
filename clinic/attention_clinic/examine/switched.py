"""Masks that who builds a module turned off by an option of its own."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace

from torch import nn

from attention_clinic.bugs import BUGS
from attention_clinic.engine.report import Report, explain
from attention_clinic.examine.unlearned import without

DROPPED = "mask-dropped"
OPTIONS = re.compile(r"mask|causal|decoder|autoregress|look_?ahead")  # names of what turns one on
OFF = "{}=False turns it off: right where that is meant"


def unless_switched_off(
    report: Report, module: object, again: Callable[[nn.Module], Report]
) -> Report:
    """Return a report in which no mask is dropped that an option turns off: it is a remark.

    Args:
        report: on the module.
        module: what was examined.
        again: examines another module in the same way.
    """
    if not any(DROPPED in one.ids for one in report.explanations):
        return report
    for name, other in _turned_on(module) if isinstance(module, nn.Module) else ():
        if any(DROPPED in one.ids for one in again(other).explanations):
            continue
        found = without(report.explanations, {DROPPED})
        remark = explain([BUGS[DROPPED]], detail=OFF.format(name))
        remarks = (*(one for one in report.remarks if one.ids != (DROPPED,)), remark)
        return replace(report, healthy=not found, explanations=found, remarks=remarks)
    return report


def _turned_on(module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the options of a module about masks that are off, and a copy where each is on."""
    for path, part in module.named_modules():
        for option in inspect.signature(type(part).__init__).parameters:
            for name in _held(part, option) if OPTIONS.search(option.lower()) else ():
                other = deepcopy(module)
                setattr(other.get_submodule(path), name, True)
                yield option, other


def _held(part: nn.Module, option: str) -> list[str]:
    """Return the attributes that are off and hold an option of the constructor."""
    try:
        source = inspect.getsource(type(part).__init__)
    except (OSError, TypeError):
        source = ""
    named = [option, *re.findall(rf"\.(\w+) *= *(?:bool\()?{option}\b", source)]
    return [name for name in dict.fromkeys(named) if vars(part).get(name) is False]
