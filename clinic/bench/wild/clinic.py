"""The clinic as a tool of the bench. Another tool is another function of this form."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import attention_clinic


def examine(module: nn.Module, tool: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return what the clinic says of a module.

    Args:
        module: what to examine.
        tool: the name of the clinic's function.
        given: its keyword arguments.

    Raises:
        ValueError: the tool asks for more.
    """
    torch.set_num_threads(1)
    torch.manual_seed(0)
    report = getattr(attention_clinic, tool)(module, **given)
    return {
        "healthy": bool(report.healthy),
        "ids": [list(one.ids) for one in report.explanations],
        "variants": [one.id for one in report.variants],
        "remarks": [bug for one in report.remarks for bug in one.ids],
        "words": str(report),
    }
