"""How wide the tokens of a module are: by its weights, and by what it makes of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor

from attention_clinic.engine.patient import Patient, possible_widths
from attention_clinic.engine.weights import sources_of
from attention_clinic.examine.built_anew import widths_built


def widths_of(patient: Patient, weights: Mapping[str, Tensor] | None, num_heads: int) -> list[int]:
    """Return the widths to try, the likeliest first.

    Args:
        patient: the copy.
        weights: those that were handed over, if any.
        num_heads: h.
    """
    named = weights or dict(patient.module.named_parameters())
    if not named and patient.is_module:
        named = {s.name: s.weight for s in sources_of(patient.module)}
    return possible_widths(patient.module, named) or widths_built(patient, num_heads)


def as_wide_as(
    made: Tensor, shape: tuple[int, int, int], run: Callable[[tuple[int, int, int]], Tensor]
) -> int:
    """Return the width of a result where tokens may be as wide, else that of the tokens.

    A product takes one number in the place of many, too: axes of 1 are broadcast.

    Args:
        made: what a module returns of tokens.
        shape: of the tokens.
        run: calls it with tokens of a shape.
    """
    samples, count, width = shape
    wide = made.shape[-1] if made.ndim == 3 else width
    try:
        return wide if wide == width or run((samples, count, wide)).shape[-1] == wide else width
    except Exception:
        return width
