"""A feed-forward by its numbers alone: what lies between the activations is linear, or is not.

However its layers are written (parameters, einsum, functions of its own): what an activation gets
must be a linear map of what came before, for more tokens than such a map has numbers.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.modes import Mode
from attention_clinic.engine.wiring import BENDS
from attention_clinic.examine.part_kinds import Kind

MOST = 2048  # numbers of a hidden token
MORE = 2  # times as many tokens as a map has numbers for each of its results
SMALL = 1e-8


class Bends(Mode):
    """Hear what every activation gets and gives: `heard`."""

    listens = True

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, Tensor, Tensor]] = []

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "").rstrip("_")
        given = args[0].detach().clone() if args and isinstance(args[0], Tensor) else None
        result = func(*args, **kwargs)
        if name in BENDS and given is not None and given.ndim == 3:
            self.heard.append((name, given, result.detach().clone()))
        return result


def fitted(part: nn.Module, x: Tensor) -> Kind | None:
    """Return what a feed-forward is, None when it is no row of linear maps and activations.

    Args:
        part: as a module.
        x: tokens that it takes, (b, n, e).
    """
    with Bends() as bends:
        part(x.clone())
    widths = [given.shape[-1] for _, given, _ in bends.heard]
    if x.dtype != torch.float64 or not widths or max(widths) > MOST:
        return None
    samples = -(-MORE * (max(*widths, x.shape[2]) + 1) // x.shape[1])
    generator = torch.Generator().manual_seed(41)
    more = torch.randn(samples, *x.shape[1:], generator=generator, dtype=x.dtype)
    with Bends() as bends:
        y = part(more.clone())
    now, names, last, twice = more, [], False, False
    for name, given, result in bends.heard:
        if not _is_linear(now, given):
            return None
        twice |= bool(names) and torch.equal(given, now)
        now, names = result, [*names, name]
        last = result.shape == y.shape and torch.equal(result, y)
    if not last and not _is_linear(now, y):
        return None
    if _is_linear(more, bends.heard[0][1]) and torch.equal(more, bends.heard[0][1]):
        return None  # it bends what it reads
    ids = ("activation-last",) * last
    ids += ("activation-missing",) * (last and len(names) == 1)
    ids += ("activation-twice",) * twice
    words = f"{len(names) + (not last) - twice} layers, {' and '.join(dict.fromkeys(names))}"
    return Kind(ids, "it stands behind both layers" * (len(ids) > 1), words=words)


def _is_linear(first: Tensor, second: Tensor) -> bool:
    """Say whether a map of each token, linear but for a constant, makes one of the other."""
    if first.shape[:2] != second.shape[:2]:
        return False
    rows = first.flatten(0, 1)
    columns = torch.cat([rows, torch.ones_like(rows[:, :1])], dim=1)
    wanted = second.flatten(0, 1)
    made = columns @ torch.linalg.lstsq(columns, wanted, driver="gelsd").solution
    return bool((made - wanted).abs().max() <= SMALL * (1 + wanted.abs().max()))
