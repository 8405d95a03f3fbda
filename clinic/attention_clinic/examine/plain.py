"""What a module reads and no optimizer sees: layers in plain lists, numbers that should learn."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from torch import Tensor, nn

from attention_clinic.engine.modes import NoDropout
from attention_clinic.engine.patient import Patient, same
from attention_clinic.engine.weights import kept_matrices

LEAST = 32  # numbers that may be called random
CHANCE = 4.0  # deviations that neighbours of random numbers stay within
DISTINCT = 0.9


def plain_tensors(patient: Patient, run: Callable[[], Tensor]) -> str:
    """Say what forward reads that should be a parameter: a list of layers, numbers that learn.

    Args:
        patient: a copy.
        run: calls it.
    """
    if not patient.is_module:
        return ""
    if patient.listed:
        names = ", ".join(f"self.{name}" for name in patient.listed)
        return f"{names} holds layers in a plain list: nn.ModuleList shows them to PyTorch"
    for name in patient.plain:
        held = _named(patient.module, name)
        if any(_is_read(run, one) for one in held):
            return f"self.{name} asks for gradients, and is no nn.Parameter"
    for name, original, copy in _held(patient.original, patient.module):
        if (original.requires_grad or looks_random(original)) and _is_read(run, copy):
            kind = "asks for gradients" if original.requires_grad else "holds random numbers"
            return f"self.{name} {kind}, and is no nn.Parameter"
    return ""


def out_of_reach(patient: Patient, run: Callable[[], Tensor]) -> str:
    """Say which layers of plain lists go on to drop: eval() does not reach them.

    Args:
        patient: a copy.
        run: calls it.
    """
    if not patient.listed:
        return ""
    parts = [patient.module.get_submodule(f"{name}_registered") for name in patient.listed]
    try:
        for part in parts:
            part.train()
        with NoDropout() as quiet:
            run()
        if not quiet.calls or same(run(), run()):
            return ""
    finally:
        patient.module.eval()
    return f"eval() does not reach {', '.join(f'self.{name}' for name in patient.listed)}"


def _named(module: nn.Module, name: str) -> list[Tensor]:
    """Return the tensor of this name, or those of a list or a dictionary."""
    path, _, key = name.rpartition(".")
    value = getattr(module.get_submodule(path), key)
    value = value.values() if isinstance(value, dict) else value
    return [value] if isinstance(value, Tensor) else list(value)


def _held(original: nn.Module, copy: nn.Module) -> Iterable[tuple[str, Tensor, Tensor]]:
    """Yield the plain tensors of a module, each with that of its copy."""
    own = {id(p) for p in original.parameters()} | {id(b) for b in original.buffers()}
    parts = dict(copy.named_modules())
    for path, part in original.named_modules():
        twin = parts.get(path)
        others = {} if twin is None else {**vars(twin), **dict(kept_matrices(twin))}
        for name, value in (*vars(part).items(), *kept_matrices(part)):
            other = others.get(name)
            if not isinstance(value, Tensor) or not isinstance(other, Tensor):
                continue
            if value.is_floating_point() and value.numel() > 1 and id(value) not in own:
                yield f"{path}.{name}".lstrip("."), value, other


def _is_read(run: Callable[[], Tensor], held: Tensor) -> bool:
    """Say whether other numbers in a tensor give another output."""
    before, y = held.detach().clone(), run()
    try:
        held.data.mul_(1.5).add_(0.25)
        return not same(y, run())
    except Exception:
        return False
    finally:
        held.data.copy_(before)


def looks_random(t: Tensor) -> bool:
    """Say whether numbers follow no rule: distinct, and neighbours know nothing of each other."""
    t = t.detach().double().squeeze()
    if t.numel() < LEAST or not bool(t.isfinite().all()):
        return False
    if t.unique().numel() < DISTINCT * t.numel():
        return False
    t = (t - t.mean()) / t.std()
    for axis, size in enumerate(t.shape):
        near = t.narrow(axis, 1, size - 1) * t.narrow(axis, 0, size - 1)
        if float(near.mean().abs()) > CHANCE * near.numel() ** -0.5:
            return False
    return True
