"""A module that takes queries, keys and values and has no weights: layers for them are made."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.calls import NOTHING, mask_argument
from attention_clinic.engine.heads import said_heads
from attention_clinic.engine.layouts import needed_names
from attention_clinic.engine.patient import possible_widths
from attention_clinic.engine.weights import role, sources_of
from attention_clinic.examine.declared import prepared

USUAL = 16  # the width of a head, where nothing says it
WORDS = "with layers for queries, keys and values, which it gets ready made"


class WithLayers(nn.Module):
    """What makes queries, keys and values of tokens, and a kernel that weighs them.

    Args:
        kernel: the module, which has no weights.
        num_heads: h.
        width: of a head, d.
        heads: where they lie, "b h n d", "b n d" for one head, or "(b h) n d".

    Shape:
        x       (b, n, h * d)
        result  (b, n, h * d)
    """

    def __init__(self, kernel: nn.Module, num_heads: int, width: int, heads: str) -> None:
        super().__init__()
        self.kernel, self.num_heads, self.lies = kernel, num_heads, heads
        inner = num_heads * width
        self.q, self.k, self.v = (nn.Linear(inner, inner) for _ in range(3))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Weigh; what the kernel returns first is what it mixed."""
        b, n, _ = x.shape
        parts = [
            layer(x).view(b, n, self.num_heads, -1).transpose(1, 2)
            for layer in (self.q, self.k, self.v)
        ]
        if self.lies != "b h n d":
            parts = [t.flatten(0, 1) for t in parts]
        named: dict[str, Any] = {}
        where = mask_argument(self.kernel)
        for name in needed_names(self.kernel)[3:]:
            named[name] = None
        if where is not None and mask is not None:
            named[where] = mask
        made = self.kernel(*parts, **named)
        mixed = made if isinstance(made, Tensor) else made[0]
        return mixed.view(b, self.num_heads, n, -1).transpose(1, 2).flatten(2)


def with_layers(module: Any, num_heads: int | None) -> Any:
    """Return a kernel with layers of its own; what is no kernel, or does not run so, as it is.

    Args:
        module: what the caller gave.
        num_heads: h, None when nobody says it.
    """
    if not isinstance(module, nn.Module) or sources_of(module):
        return module
    if next(module.parameters(), None) is not None:
        return module
    needed = needed_names(module)
    said = [role(name.lower()) for name in needed[:3]]
    if said != ["q", "k", "v"] or any(not NOTHING.search(n.lower()) for n in needed[3:]):
        return module
    h = num_heads or said_heads(module) or 1
    kind = type(type(module).__name__, (WithLayers,), {})
    for lies in ("b n d", "b h n d") if h == 1 else ("b h n d", "(b h) n d"):
        for width in dict.fromkeys(_widths(module)):
            made = kind(module, h, width, lies)
            x = torch.randn(2, 5, h * width, generator=torch.Generator().manual_seed(0))
            try:
                with torch.no_grad():
                    y = made(x)
            except Exception:
                continue
            if y.shape == x.shape:
                return made
    return module


def _widths(module: nn.Module) -> Iterator[int]:
    """Yield how wide a head may be: what the module's own numbers say comes first."""
    for _, number in prepared(module):
        for width in (number**2, number**-2) if number > 0 else ():
            if 1 < round(width) <= 1024 and abs(width - round(width)) < 1e-6 * width:
                yield round(width)
    yield from possible_widths(module, {})
    yield USUAL
