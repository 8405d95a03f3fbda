"""The clinic as a tool of the bench. Another tool is another function of this form."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import torch
from torch import nn

import attention_clinic
from attention_clinic import Explanation


def examine(module: nn.Module, tool: str, given: dict[str, Any]) -> dict[str, Any]:
    """Return what the clinic says of a module, or of all parts of a model together.

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
    parts = [row.report for row in report.rows] if hasattr(report, "rows") else [report]
    found = [list(part.explanations) for part in parts if part.explanations]
    remarks = [bug for part in parts for one in part.remarks for bug in one.ids]
    return {
        "healthy": bool(report.healthy),
        "ids": [_ids(each) for each in product(*found) if each],
        "variants": list(dict.fromkeys(one.id for part in parts for one in part.variants)),
        "remarks": remarks,
        "words": str(report),
    }


def _ids(found: Sequence[Explanation]) -> list[str]:
    """Return the ids of explanations, one of each part."""
    return list(dict.fromkeys(bug for one in found for bug in one.ids))
