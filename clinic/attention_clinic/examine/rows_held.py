"""What a module holds beside its layers: class tokens, and tables of positions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import permutations

import torch
from torch import Tensor, nn

from attention_clinic.engine.patient import Patient

CLASSES = 8  # tokens that are no patches, at most
HELD = 4  # tensors that may be some of several class tokens


def held_by(patient: Patient) -> dict[str, Tensor]:
    """Return everything that could be a class token or a table of positions."""
    if not patient.is_module:
        return {}
    found = dict(patient.module.named_parameters())
    kept = _kept(patient.module)
    return found | {name: t.detach().to(patient.dtype) for name, t in kept}


def _kept(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that the parts of a module hold beside their parameters, with a path."""
    for prefix, part in module.named_modules():
        held = {**vars(part), **dict(part.named_buffers(recurse=False))}
        for name, value in held.items():
            if isinstance(value, Tensor) and value.is_floating_point():
                yield f"{prefix}.{name}", value


def class_tokens(held: dict[str, Tensor], e: int, count: int, b: int) -> Iterator[Tensor]:
    """Yield what may be the tokens that are no patches, as (b, count, e).

    Several may be held one by one, in any order.

    Args:
        held: by a module.
        e: their width.
        count: how many there are.
        b: number of samples.
    """
    single = [t for t in _single(held, e) if t.shape[0] in (1, b)]
    if count == 1:
        yield from (t.expand(b, -1, -1) for t in single)
        return
    known = [t[None] if t.ndim == 2 else t for t in held.values() if t.shape[-1:] == (e,)]
    known = [t for t in known if t.ndim == 3 and t.shape[0] in (1, b)]
    several = [t for t in known if 1 < t.shape[1] <= count]
    rows = [t.expand(b, -1, -1) for t in (*single, *several)][:HELD]
    for many in range(1, len(rows) + 1):
        for chosen in permutations(rows, many):
            if sum(t.shape[1] for t in chosen) == count:
                yield torch.cat(chosen, dim=1)


def _single(held: dict[str, Tensor], e: int) -> Iterator[Tensor]:
    """Yield class tokens as (1 or b, 1, e)."""
    for tensor in held.values():
        if (
            tensor.shape[-1:] == (e,)
            and tensor.ndim > 1
            and all(size == 1 for size in tensor.shape[1 if tensor.ndim == 3 else 0 : -1])
        ):
            yield tensor.reshape(-1, 1, e)
    for name, tensor in held.items():
        if tensor.shape == (e,) and ("cls" in name or "class" in name):
            yield tensor.reshape(1, 1, e)


def tables(held: dict[str, Tensor], weights: Iterable[Tensor], n: int, e: int) -> Iterator[Tensor]:
    """Yield tables of positions as (1 or b, rows, e).

    Args:
        held: by a module.
        weights: that project patches.
        n: number of patches.
        e: width of a token.
    """
    known = {id(weight) for weight in weights}
    for tensor in held.values():
        if id(tensor) in known or tensor.shape[-1:] != (e,):
            continue
        if tensor.ndim == 2 and tensor.shape[0] >= n:
            yield tensor[None]
        elif tensor.ndim == 3 and tensor.shape[1] >= n:
            yield tensor
        elif tensor.ndim == 3 and tensor.shape[0] >= n and tensor.shape[1] == 1:
            yield tensor.transpose(0, 1)


def fixed_tensors(module: object) -> dict[str, Tensor]:
    """Return the tensors of a module that no gradient is wanted for, by their names."""
    if not isinstance(module, nn.Module):
        return {}
    found = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    kept = _kept(module)
    return found | {name.lstrip("."): t for name, t in kept if not t.requires_grad}
