"""`assert_healthy`: one line for a test, which says on failure what to write instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from attention_clinic.engine.report import Report
from attention_clinic.examine.attention import diagnose


def assert_healthy(
    module: nn.Module | Callable[..., Any], num_heads: int | None = None, **options: Any
) -> None:
    """Raise an `AssertionError` that prints the report unless `diagnose` calls a module healthy.

    >>> def test_attention():
    ...     assert_healthy(MyAttention(64), num_heads=8)

    Args:
        module: maps tokens to tokens by attention; stays as it is.
        num_heads: number of heads, h; None reads it off the module.
        options: all others of `diagnose`: mask, causal, call, size, ...

    Raises:
        AssertionError: a module that is sick or unexplained; its text is the printed report.
        ValueError: what `diagnose` refuses.
    """
    __tracebackhide__ = True  # pytest then shows the line of the test, not this one
    report: Report = diagnose(module, num_heads, **options)
    if not report.healthy:
        raise AssertionError(str(report))
