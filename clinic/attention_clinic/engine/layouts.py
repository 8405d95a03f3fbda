"""How tokens lie in what forward takes: in rows, as pictures, with the sizes of a grid beside."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.crossing import role

HEIGHTS = re.compile(r"h|hh|height|x_h|feat_h|grid_h|patch_h|ny|rows", re.IGNORECASE)
WIDES = re.compile(r"w|ww|width|x_w|feat_w|grid_w|patch_w|nx|cols", re.IGNORECASE)
PAIRS = re.compile(
    r"(x_|input_|feat_|patch_|token_|spatial_|grid_)?(hw|size|sizes|shape|shapes|resolution"
    r"|dimensions|dims|grid)|hw_shape"
)
GRIDS = ((2, 3), (4, 6), (8, 16))  # two sides that differ; larger ones for strides of 2, 4 and 8
SQUARES = (4, 7, 8, 14, 16)
COUNTS = re.compile(
    r"(num_|n_)?(patches|tokens|positions)|seq(uence)?_?(len|length)?|max_(len|length|seq_len)"
    r"|block_size|context_(length|size|len)|window(_size)?|n_?ctx|length|T|L|N|win_size|ws"
)
MOST = 512  # tokens that are tried


@dataclass(frozen=True)
class Layout:
    """One way to hand tokens (b, n, e) to forward.

    Args:
        form: "b n e", "b c h w" or "b h w c" as pictures, "b c n" channels first, "n e" one
            sample at a time.
        grids: rows and columns of the tokens in a first call, and in a second one.
        beside: what further arguments that nobody knows get: "tokens", "zeros" or "none".
    """

    form: str = "b n e"
    grids: tuple[tuple[int, int], ...] = ()
    beside: str = "tokens"

    def grid(self, n: int) -> tuple[int, int]:
        """Return rows and columns of n tokens."""
        for rows, columns in self.grids:
            if rows * columns == n:
                return rows, columns
        rows = next(r for r in range(math.isqrt(n), 0, -1) if n % r == 0)
        return rows, n // rows

    def laid(self, x: Tensor) -> Tensor:
        """Return tokens (b, n, e) as forward takes them."""
        if self.form == "b c h w":
            return x.mT.unflatten(2, self.grid(x.shape[1])).contiguous()
        if self.form == "b h w c":
            return x.unflatten(1, self.grid(x.shape[1]))
        return x.mT.contiguous() if self.form == "b c n" else x

    def tokens(self, y: Tensor) -> Tensor:
        """Return what forward gave as tokens (b, n, e)."""
        if self.form == "b c h w" and y.ndim == 4:
            return y.flatten(2).mT
        if self.form == "b h w c" and y.ndim == 4:
            return y.flatten(1, 2)
        return y.mT if self.form == "b c n" and y.ndim == 3 else y

    def value(self, name: str, x: Tensor) -> Any:
        """Return what a needed argument gets that is neither tokens nor known; NotImplemented
        where the layout has nothing to say.

        Args:
            name: of the argument.
            x: tokens (b, n, e).
        """
        if self.grids:
            rows, columns = self.grid(x.shape[1])
            if HEIGHTS.fullmatch(name):
                return rows
            if WIDES.fullmatch(name):
                return columns
            if PAIRS.fullmatch(name.lower()):
                return rows, columns
        if self.beside == "tokens" or role(name) in ("asks", "asked"):
            return NotImplemented
        return torch.zeros_like(x) if self.beside == "zeros" else None

    @property
    def words(self) -> str:
        """What it is, for a report; "" for rows of tokens."""
        said = {
            "b c h w": "images (b, c, h, w)",
            "b h w c": "images (b, h, w, c)",
            "b c n": "channels before tokens",
            "n e": "one sample at a time",
        }.get(self.form, "")
        grid = f"{self.grids[0][0]} x {self.grids[0][1]}" if self.grids else ""
        if grid and not said:
            said = "tokens of a grid"
        more = {"zeros": "further arguments 0", "none": "further arguments None"}.get(self.beside)
        return "; ".join(filter(None, (f"{said} {grid}".strip(), more)))


def needed_names(module: nn.Module | Callable[..., Any]) -> list[str]:
    """Return the arguments that forward cannot do without."""
    function = module.forward if isinstance(module, nn.Module) else module
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [
        name
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is inspect.Parameter.empty and parameter.kind not in kinds
    ]


def token_counts(module: nn.Module | Callable[..., Any]) -> list[int]:
    """Return how many tokens a module may insist on, by its own numbers and tables."""
    if not isinstance(module, nn.Module):
        return []
    found: list[int] = []
    for part in module.modules():
        for name, value in vars(part).items():
            if COUNTS.fullmatch(name) or COUNTS.fullmatch(name.lower()):
                found += _counted(name, value)
        tables = [p for _, p in part.named_parameters(recurse=False) if p.ndim > 2]
        tables += [t for _, t in part.named_buffers(recurse=False) if t.ndim > 1]
        for table in tables:
            if table.shape[-1] == table.shape[-2]:
                found.append(table.shape[-1])
            if table.ndim == 3 and table.shape[0] == 1:  # positions (1, n, e)
                found.append(table.shape[1])
    return [n for n in dict.fromkeys(found) if 1 < n <= MOST]


def _counted(name: str, value: Any) -> list[int]:
    """Return the numbers of tokens that an attribute may mean."""
    if isinstance(value, tuple | list) and len(value) == 2:
        return [value[0] * value[1]] * all(isinstance(side, int) for side in value)
    if isinstance(value, bool) or not isinstance(value, int):
        return []
    return [value * value, value] if "win" in name or name == "ws" else [value]


def layouts(module: nn.Module) -> Iterator[Layout]:
    """Yield the ways to hand tokens over, for a module that does not take them in rows.

    Args:
        module: the module.
    """
    names = needed_names(module)
    squares = [math.isqrt(n) for n in token_counts(module) if math.isqrt(n) ** 2 == n]
    said = [(side, side) for side in dict.fromkeys(squares)]
    grids = [*((grid, (grid[0] + 1, grid[1])) for grid in GRIDS), *((g, g) for g in said)]
    grids += [((side, side), (side, side)) for side in SQUARES if (side, side) not in said]
    strides = [max(p.stride) for p in module.modules() if isinstance(p, nn.Conv2d)]
    most = max(strides, default=1)  # a smaller image may leave one place of all
    left = [g for g in grids if (g[0][0] // most) * (g[0][1] // most) > 1]
    grids = left or grids
    sized = any(HEIGHTS.fullmatch(n) or PAIRS.fullmatch(n.lower()) for n in names[1:])
    pictures = any(isinstance(part, nn.Conv2d) for part in module.modules())
    lines = any(isinstance(part, nn.Conv1d | nn.GroupNorm) for part in module.modules())
    if any("alibi" in name.lower() for name in names):
        yield Layout()
    besides = ("tokens", "zeros", "none") if len(names) > 1 else ("tokens",)
    for beside in besides:
        if beside != "tokens":
            yield Layout(beside=beside)
        if sized:
            yield from (Layout("b n e", pair, beside) for pair in grids)
        if lines:
            yield Layout("b c n", (), beside)
        forms = ("b c h w", "b h w c") if pictures else ("b h w c", "b c h w")
        for form in forms if pictures or not sized else ():
            yield from (Layout(form, pair, beside) for pair in grids)
    yield Layout("n e")
