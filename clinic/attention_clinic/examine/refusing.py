"""What is said where nobody knows how an attention without layers takes its operands."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from attention_clinic.engine.layouts import needed_names
from attention_clinic.engine.operands import role_of
from attention_clinic.engine.patient import first_line, place


def name_of(module: Any) -> str:
    """Return what a report calls a kernel."""
    if isinstance(module, nn.Module):
        return type(module).__name__
    return getattr(module, "__name__", type(module).__name__)


def line_for(module: Any) -> str:
    """Return what to paste where nobody knows how a kernel takes its operands."""
    given = ", ".join("x" if role_of(n) else f"{n}=..." for n in needed_names(module))
    return f"Hand it tokens x (b, n, e): call=lambda attention, x: attention({given})."


def question(module: Any) -> str:
    """Return the line that asks how a kernel takes its operands."""
    called = module.forward if isinstance(module, nn.Module) else module
    name = name_of(module)
    return (
        f"diagnose: how {name} takes queries, keys and values must be said, got "
        f"{name}{inspect.signature(called)}. {line_for(module)}"
    )


def refused(module: Any, error: Exception) -> str:
    """Return the line that says why a kernel does not run.

    Args:
        module: the kernel.
        error: what came of handing operands over.
    """
    return (
        f"diagnose: {name_of(module)} must run on queries, keys and values, got "
        f"{type(error).__name__}: {first_line(error)}{place(error)}. "
        f"Repair that line, or the call. {line_for(module)}"
    )
