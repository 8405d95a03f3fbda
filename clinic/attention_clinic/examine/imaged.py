"""How to call a block that takes images, or the sizes of a grid beside its tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice

from torch import Tensor, nn

from attention_clinic.engine.calls import first_tensor, standard_call
from attention_clinic.engine.layouts import Layout, layouts
from attention_clinic.engine.patient import Patient, possible_widths

MOST, WIDTHS = 24, 3  # layouts that are tried, and widths of a token
SAMPLES = 2


def call_of_images(
    block: nn.Module,
) -> tuple[Callable[[nn.Module, Tensor], Tensor], tuple[int, int], str] | None:
    """Return a call on tokens (b, n, e), samples and tokens, and words; None where nothing runs.

    Args:
        block: does not run on tokens in rows.
    """
    patient = Patient("diagnose_block", block)
    named = dict(patient.module.named_parameters())
    widths = possible_widths(patient.module, named)[:WIDTHS]
    for layout in islice(layouts(block), MOST):
        if layout.form == "n e":
            continue
        rows, columns = layout.grids[0] if layout.grids else (1, 5)
        n = rows * columns
        call = partial(_called, layout)
        for width in widths:
            x = patient.tokens(SAMPLES, n, width)
            try:
                if call(patient.module, x).shape == x.shape:
                    return call, (SAMPLES, n), layout.words
            except Exception:  # a block that does not take this layout raises anything
                continue
    return None


def _called(layout: Layout, module: nn.Module, x: Tensor) -> Tensor:
    """Call a block on tokens (b, n, e) as a layout says."""
    given = (layout.laid(x), None, None, None, None, (layout, x))
    return layout.tokens(first_tensor(standard_call(module, *given)))
