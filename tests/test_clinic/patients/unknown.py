"""What no entry of the catalogue explains, and no name may be given to."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from patients.attention import Loops, Views
from patients.modern import Llama

# ------------------------------------------------- no known mistake, and must not be called one


def unknown(make: Callable) -> Callable:
    """Enter an attention that no entry of the catalogue explains."""
    UNKNOWN.append(make)
    return make


UNKNOWN: list[Callable] = []


@unknown
class Sines(Views):
    def weigh(self, scores, mask):
        return scores.sin()


@unknown
class Linearised(Loops):
    def normalise(self, all_scores, allow):
        return [s / s.shape[2] for s in all_scores]


@unknown
class BareFeatures(Views):
    """Linear attention by its order, divided by sums that may be 0."""

    def forward(self, x):
        q, k, v = self.heads(x)
        return self.proj(self.join(q @ (k.mT @ v) / (q @ k.sum(dim=2, keepdim=True).mT)))


@unknown
class Clingy(Views):
    """The further, the more it counts: a softplus lets it learn nothing else."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.gamma = torch.nn.Parameter(torch.full((h,), 0.1))

    def weigh(self, scores, mask):
        place = torch.arange(scores.shape[-1])
        away = (place[:, None] - place).abs().to(scores)
        return (scores + F.softplus(self.gamma)[:, None, None] * away.log1p()).softmax(dim=-1)


@unknown
class NormedQueries(Views):
    def heads(self, x):
        q, k, v = super().heads(x)
        return F.normalize(q, dim=-1), F.normalize(k, dim=-1), v


@unknown
class Rotary(Views):
    def heads(self, x):
        q, k, v = super().heads(x)
        angle = torch.arange(x.shape[1])[:, None].to(x)
        return (
            q * angle.cos() + q.flip(-1) * angle.sin(),
            k * angle.cos() + k.flip(-1) * angle.sin(),
            v,
        )


@unknown
class Noisy(Loops):
    def score(self, q, k):
        return super().score(q, k) + 0.01 * torch.randn(q.shape[1], k.shape[1]).to(q)


@unknown
class NearlyRight(Views):
    def weigh(self, scores, mask):
        return (scores + 1e-4 * scores**2).softmax(dim=-1)


@unknown
class SharpRotary(Llama):
    """No rotation: both halves get the same sign."""

    def rotate_half(self, t):
        return super().rotate_half(t).abs()
