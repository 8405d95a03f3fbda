"""Angles of rotary positions that are powers of no base, wherever they are kept, and right ones."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from patients.blocks import block
from patients.modern import Llama, Norm, modern


def powers(pair: Tensor, width: int, base: float = 10_000.0) -> Tensor:
    return base ** (-pair / width)


class Kept(Llama):
    """Cosines and sines are made once, and kept; nothing says of what base they are."""

    times = 1.0

    def __init__(self, e: int, h: int):
        super().__init__(e, h)
        pair = torch.arange(0, self.d, 2)
        angles = torch.outer(torch.arange(64), self.powers(self.times * pair, self.d))
        self.register_buffer("_cos", angles.cos().repeat(1, 2))
        self.register_buffer("_sin", angles.sin().repeat(1, 2))

    def powers(self, pair: Tensor, width: int) -> Tensor:
        return powers(pair, width)

    def angles(self, x: Tensor, n: int, start: int = 0) -> Tensor:
        return torch.arange(start, start + n)

    def turn(self, t: Tensor, angles: Tensor) -> Tensor:
        return t * self._cos[angles] + self.rotate_half(t) * self._sin[angles]


@modern("rotary-frequencies", sizes=((64, 4),))
class KeptTwice(Kept):
    times = 2.0


@modern("rotary-frequencies", sizes=((64, 4),))
class KeptHalf(Kept):
    times = 0.5


@modern()
class KeptOfTheImages(Kept):
    """A base that is as small as a wrong one, and that the code says."""

    def powers(self, pair: Tensor, width: int) -> Tensor:
        return powers(pair, width, base=100.0)


@modern("rotary-frequencies", sizes=((64, 4),))
class NeighboursTwice(Llama):
    """Made anew in each call; the slowest pair turns too little to be seen."""

    def frequencies(self, x: Tensor) -> Tensor:
        return powers(2 * torch.arange(0, self.d, 2), self.d)  # in single precision

    def turn(self, t: Tensor, angles: Tensor) -> Tensor:
        angles = angles.chunk(2, dim=-1)[0]
        first, second = t.unflatten(-1, (-1, 2)).unbind(-1)
        one = first * angles.cos() - second * angles.sin()
        other = first * angles.sin() + second * angles.cos()
        return torch.stack([one, other], dim=-1).flatten(-2)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x, x.new_zeros(x.shape[1], x.shape[1]))


@modern("rotary-frequencies", sizes=((64, 4),))
class LlamaOfSamples(Llama):
    """Places of all samples are multiplied by a row for each sample, and summed."""

    def rotated(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        places = torch.arange(q.shape[2]).expand(len(q), -1).to(q)
        rows = self.frequencies(q)[:, None].expand(-1, len(q))
        angles = (rows @ places).mT.repeat(1, 2)
        return self.turn(q, angles), self.turn(k, angles), v


def blocked(block: nn.Module, x: Tensor, mask: Tensor) -> Tensor:
    """Hand over what is added, of one size."""
    return block(x, torch.zeros(8, 8).masked_fill(~mask, float("-inf")))


@block("rotary-frequencies", sizes=((64, 4),), mask=torch.ones(8, 8).tril().bool(), call=blocked)
class KeptBlock(nn.Module):
    def __init__(self, e: int, h: int):
        super().__init__()
        self.turned, self.before, self.between = KeptHalf(e, h), Norm(e), Norm(e)
        self.wide, self.narrow = nn.Linear(e, 2 * e), nn.Linear(2 * e, e)

    def fed(self, x: Tensor) -> Tensor:
        return self.narrow(nn.functional.silu(self.wide(x)))

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = torch.zeros(x.shape[1], x.shape[1]) if mask is None else mask
        x = x + self.turned(self.before(x), mask.to(x))
        return x + self.fed(self.between(x))


class Complex(Llama):
    """Complex numbers that are kept; the future is hidden."""

    def __init__(self, e: int, h: int):
        super().__init__(e, h)
        angles = torch.outer(torch.arange(64), powers(torch.arange(0, self.d, 2), self.d))
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles))

    def rotated(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return *(self.around(t) for t in (q, k)), v

    def around(self, t: Tensor) -> Tensor:
        pairs = torch.view_as_complex(t.float().unflatten(-1, (-1, 2)))
        return torch.view_as_real(pairs * self.turns[: t.shape[2]]).flatten(-2).type_as(t)


@block(sizes=((64, 4),), causal=True)
class ComplexBlock(KeptBlock):
    """A feed-forward that no list knows: each part is cut out and called by itself."""

    def __init__(self, e: int, h: int):
        super().__init__(e, h)
        self.turned = Complex(e, h)

    def fed(self, x: Tensor) -> Tensor:
        return self.narrow(self.wide(x).relu().square())

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.turned(self.before(x))
        return x + self.fed(self.between(x))
