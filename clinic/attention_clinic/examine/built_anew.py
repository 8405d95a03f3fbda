"""Modules that hold no parameters, as they build all their layers while they run."""

from __future__ import annotations

from torch import nn

from attention_clinic.bugs import Built
from attention_clinic.engine.modes import is_of_types
from attention_clinic.engine.patient import Patient

NARROW = 8  # of a head, where no number of the module is the width of a token


def widths_built(patient: Patient, num_heads: int) -> list[int]:
    """Return the widths of tokens for which a module builds layers as it runs, [] for none.

    Args:
        patient: its copy, in which no weight was found.
        num_heads: h.

    Raises:
        ValueError: it builds none.
    """
    module, found = patient.module, []
    held = [v for part in _parts(module) for v in vars(part).values() if type(v) is int and v > 1]
    for width in dict.fromkeys((*sorted(held, reverse=True), NARROW * num_heads)):
        with Built() as built:
            try:
                patient.run(patient.tokens(3, 5, width))
                runs = True
            except Exception as error:  # tokens of single precision are tried by who asks
                runs = is_of_types(error)
        found += [width] * (runs and bool(built.kinds))
    if found:
        return found
    raise ValueError(
        f"diagnose: the weights must be found in the module, got {patient.name} without "
        "parameters. Hand them over: weights={...}."
    )


def _parts(module: object) -> list[object]:
    return list(module.modules()) if isinstance(module, nn.Module) else []
