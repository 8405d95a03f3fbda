"""The norms inside an attention, each called by itself, as those of a block are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attention_clinic.examine.laid_norms import OfSum
from attention_clinic.examine.leaves import has_parts
from attention_clinic.examine.norm_kinds import FORMULAS
from attention_clinic.examine.part_kinds import Kind, norm_kind


@dataclass(frozen=True)
class Wrong:
    """A norm that follows another formula.

    Args:
        path: of the norm.
        part: the norm.
        width: of what it got.
        terms: how many tensors it adds up.
        kind: what it is.
    """

    path: str
    part: nn.Module
    width: int
    terms: int
    kind: Kind


@torch.no_grad()
def inner_norms(
    module: nn.Module, run: Callable[[], object], limit: float
) -> tuple[tuple[str, ...], str]:
    """Return the mistakes of the norms that a run calls, and what is to be said of them.

    Args:
        module: the copy.
        run: calls it.
        limit: the largest difference that counts as equal.
    """
    found = wrong_norms(module, run, limit)
    ids = dict.fromkeys(id for one in found for id in one.kind.ids)
    return tuple(ids), said_of(found)


def said_of(found: list[Wrong]) -> str:
    """Return what is to be said of norms that are wrong."""
    said = [f"{one.path}{f': {one.kind.detail}' if one.kind.detail else ''}" for one in found]
    return f"in {', '.join(said)}" if said else ""


@torch.no_grad()
def wrong_norms(module: nn.Module, run: Callable[[], object], limit: float) -> list[Wrong]:
    """Return the norms that a run calls and that follow another formula, as `inner_norms`."""
    heard: dict[nn.Module, tuple[int, int]] = {}  # the width, and how many tensors it adds up

    def listen(part: nn.Module, given: tuple, result: object) -> None:
        terms = [t for t in given if isinstance(t, Tensor)]
        if not isinstance(result, Tensor) or result.ndim < 2:
            return
        if terms and all(t.shape == result.shape for t in terms):
            heard[part] = result.shape[-1], len(terms)

    named = {part: name for name, part in module.named_modules() if _own_norm(part)}
    if not named:
        return []
    handles = [part.register_forward_hook(listen) for part in named]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    found = []
    for part, (width, terms) in heard.items():
        weight = next(part.parameters())
        x = torch.randn(5, 7, width, generator=torch.Generator().manual_seed(width)).to(weight)
        try:
            kind = norm_kind(part if terms == 1 else OfSum(part, terms), x, limit)
        except (RuntimeError, ValueError, IndexError, TypeError):  # it takes another layout
            continue
        if kind is not None and kind.ids and set(kind.ids) <= FORMULAS:
            found.append(Wrong(named[part], part, width, terms, kind))
    return found


def _own_norm(part: nn.Module) -> bool:
    """Say whether a part is a norm that its own code computes."""
    held = list(part.parameters())
    written = not type(part).__module__.startswith("torch.nn")
    called = "norm" in type(part).__name__.lower()
    return called and written and 0 < len(held) < 3 and not has_parts(part)
