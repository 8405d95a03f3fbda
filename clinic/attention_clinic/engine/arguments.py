"""Values for the arguments that an attention needs beside its tokens: places and their angles."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

PLACES = {
    "position_ids", "positions", "position", "pos", "pos_ids", "input_pos", "token_positions",
    "cache_position",
}  # fmt: skip
ADDED = re.compile(  # to tokens: places, and the learned queries of DETR
    r"(^|_)pos(ition)?s?(_|$)|pos_?emb|position_?(al_?)?emb|quer(y|ies)_?emb"
)
STARTS = {"start_pos", "start", "offset", "past_length"}
COSINES = {"cos", "freqs_cos", "cos_cached", "rope_cos"}
SINES = {"sin", "freqs_sin", "sin_cached", "rope_sin"}
BOTH = {
    "position_embeddings", "cos_sin", "rope", "rotary", "pos_cis", "rope_cache", "rotary_emb",
    "freqs_cos_sin", "position_embedding", "pos_emb",
}  # fmt: skip
TURNS = {"freqs_cis", "freqs_complex", "pos_cis", "freqs_cos_sin"}
ANGLES = {"freqs", "rotary_pos_emb", "angles"}
CACHES = {
    "cache", "past_key_values", "past_key_value", "kv_cache", "layer_past", "past",
}  # fmt: skip
TABLES = COSINES | SINES | BOTH | TURNS | ANGLES
BASE = 10_000.0
# what holds rotary positions, or their angles
ROTARY = re.compile(
    r"rope|rotary|inv_freq|freqs|embed_positions|cos_?(cached|table)?$|sin_?(cached|table)?$"
)


@dataclass(frozen=True)
class Tables:
    """One way to hand over the cosines and sines of rotary positions.

    Args:
        width: how many numbers of a head they turn.
        layout: "halves" and "pairs" repeat each angle, "" does not.
        lead: how many axes stand before (n, w).
        late: whether one more axis, for the heads, stands behind n.
        real: whether turns are pairs of real numbers, not complex.
    """

    width: int
    layout: str
    lead: int = 0
    late: bool = False
    real: bool = False

    def value(self, name: str, n: int, dtype: torch.dtype, start: int = 0) -> Any:
        """Return what an argument of this name gets for n tokens, None when it is another."""
        if name in PLACES:
            return _places(name, start, n)
        places = torch.arange(start, start + n, dtype=torch.float64)[:, None]
        steps = torch.arange(0, self.width, 2, dtype=torch.float64)
        angles = places * BASE ** (-steps / self.width)
        if name in TURNS and not self.layout:
            turns = torch.polar(torch.ones_like(angles), angles)
            made = torch.view_as_real(turns).to(dtype) if self.real else turns
            return made
        if self.layout == "halves":
            angles = torch.cat([angles, angles], dim=-1)
        elif self.layout == "pairs":
            angles = angles.repeat_interleave(2, dim=-1)
        angles = self._shaped(angles)
        cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
        if name in COSINES:
            return cos
        if name in SINES:
            return sin
        if name in BOTH:
            return cos, sin
        return angles.to(dtype) if name in ANGLES else None

    def _shaped(self, angles: Tensor) -> Tensor:
        angles = angles[:, None] if self.late else angles
        return angles[(None,) * self.lead]


def needed(module: nn.Module | Callable[..., Any]) -> dict[str, bool]:
    """Return the arguments that take tables or places, and whether they must be given."""
    function = module.forward if isinstance(module, nn.Module) else module
    return {
        name: parameter.default is inspect.Parameter.empty
        for name, parameter in inspect.signature(function).parameters.items()
        if name in TABLES | PLACES and parameter.default in (inspect.Parameter.empty, None)
    }


def tables_for(names: dict[str, bool], widths: list[int]) -> Iterator[Tables]:
    """Yield the ways to hand over tables, the usual ones first.

    Args:
        names: of the arguments that take them.
        widths: that a head may have.
    """
    if all(name in PLACES for name in names):
        yield Tables(0, "")
        return
    for width in widths:
        if width % 2:
            continue
        if any(name in TURNS for name in names):
            yield Tables(width, "")
            yield Tables(width, "", real=True)
        if all(name in TURNS | PLACES for name in names):
            continue
        for layout in ("halves", "pairs", ""):
            for lead, late in ((1, False), (0, False), (2, False), (1, True), (0, True)):
                yield Tables(width, layout, lead, late)


def tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield what a module holds beside its parameters."""
    for part in module.modules():
        yield from part.named_buffers(recurse=False)
        yield from ((k, v) for k, v in vars(part).items() if isinstance(v, Tensor))


def head_widths(module: nn.Module | Callable[..., Any], num_heads: int) -> list[int]:
    """Return what the width of a head may be, the likeliest first.

    Args:
        module: the module.
        num_heads: h.
    """
    said = [getattr(module, name, None) for name in ("head_dim", "head_size", "dim_head", "d_k")]
    parts = list(module.modules()) if isinstance(module, nn.Module) else []
    said += [getattr(part, "head_dim", None) for part in parts]
    sizes: dict[int, int] = {}
    for part in parts:
        for name, parameter in part.named_parameters(recurse=False):
            if parameter.ndim == 2 and name == "weight":
                for size in parameter.shape:
                    sizes[size] = sizes.get(size, 0) + 1
    common = sorted(sizes, key=lambda size: -sizes[size])
    whole = [size // num_heads for size in common if size % num_heads == 0]
    # some turn only the first numbers of a head
    partial = [
        getattr(part, name, None) for part in parts for name in ("rotary_ndims", "rotary_dim")
    ]
    said = [*partial, *said]
    return list(dict.fromkeys([*(d for d in said if isinstance(d, int)), *whole]))[:4]


def cut_of(n: int) -> int:
    """Return how many of n tokens the first of two calls with a cache gets."""
    return (n + 1) // 2


def place_value(name: str, x: Tensor, start: int = 0) -> Any:
    """Return the places of tokens (b, n, e) for an argument of this name, None for another."""
    if name in STARTS:
        return start
    return _places(name, start, x.shape[1]) if name in PLACES else None


def _places(name: str, start: int, n: int) -> Tensor:
    """Return the places of n tokens, (n,), or (1, n) where transformers has that name."""
    places = torch.arange(start, start + n)
    return places[None] if name in ("position_ids", "pos_ids") else places
