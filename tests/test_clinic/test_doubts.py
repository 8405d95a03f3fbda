"""What a part that nothing explains may do itself is not said to be missing around it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from patients.attention import Views
from patients.bent_beside import AllBentBesideANorm
from torch import Tensor, nn

from attention_clinic import diagnose_block

E, H = 24, 4
How = Callable[["Part", Tensor], Tensor]


def centred(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + 1e-6)


def of_length_one(x: Tensor) -> Tensor:
    return x / x.norm(dim=-1, keepdim=True)


class Sines(Views):
    """An attention that nothing explains."""

    def weigh(self, scores, mask):
        return scores.sin()


class Waves(nn.Module):
    """A feed-forward that nothing explains."""

    def __init__(self, e):
        super().__init__()
        self.up, self.down = nn.Linear(e, 2 * e), nn.Linear(2 * e, e)

    def forward(self, x):
        return self.down(self.up(x).sin() + (3 * self.up(x)).cos())


class Part(nn.Module):
    """An attention or a feed-forward, with something around it."""

    def __init__(self, core: nn.Module, how: How) -> None:
        super().__init__()
        self.core, self.how = core, how
        if how in (summed, squashed):
            self.weight = nn.Parameter(torch.rand(E))
        if how in (mixed, by_a_layer):
            self.skip = nn.Linear(E, E)

    def forward(self, x):
        return self.how(self, x)


class Block(nn.Module):
    """Two parts, and a norm for each that may be used."""

    def __init__(self, attention: How, feed: How, join: Callable) -> None:
        super().__init__()
        self.attention, self.feed = Part(Sines(E, H), attention), Part(Waves(E), feed)
        self.norm_1, self.norm_2 = nn.LayerNorm(E), nn.LayerNorm(E)
        self.join = join

    def forward(self, x):
        return self.join(self.attention, self.feed, self.norm_1, self.norm_2, x)


def alone(part: Part, x: Tensor) -> Tensor:
    return part.core(x)


def summed(part: Part, x: Tensor) -> Tensor:
    return centred(x + part.core(x)) * part.weight


def stacked(part: Part, x: Tensor) -> Tensor:
    return centred(torch.stack([x, part.core(x)]).sum(0))


def mixed(part: Part, x: Tensor) -> Tensor:
    share = part.skip(x).sigmoid()
    return share * x + (1 - share) * part.core(x)


def by_a_layer(part: Part, x: Tensor) -> Tensor:
    return part.skip(x) + part.core(x)


def squashed(part: Part, x: Tensor) -> Tensor:
    return part.core(torch.tanh(x * part.weight))


def normed(part: Part, x: Tensor) -> Tensor:
    return part.core(of_length_one(x))


def ended(part: Part, x: Tensor) -> Tensor:
    return centred(part.core(x))


def rows(a, f, m, n, x):
    return f(a(x))


def added(a, f, m, n, x):
    x = x + a(x)
    return x + f(x)


def inside_and_before(a, f, m, n, x):
    x = x + m(a(x))
    return x + f(n(x))


def first_behind(a, f, m, n, x):
    return f(m(x + a(x)))


def first_bare(a, f, m, n, x):
    x = x + a(x)
    return x + f(n(x))


def first_lost(a, f, m, n, x):
    x = a(m(x))
    return x + f(n(x))


HIDDEN = {
    "sum and norm": (summed, summed, rows),
    "sum by a stack": (alone, stacked, first_behind),
    "sum by a gate": (mixed, mixed, rows),
    "sum with a layer": (alone, by_a_layer, first_behind),
    "a tanh for a norm": (squashed, squashed, added),
    "norms around, one of each hidden": (normed, ended, inside_and_before),
    "a length of one for a norm": (normed, alone, first_bare),
    "a share of what is read": (lambda p, x: torch.lerp(x, p.core(x), 0.5), alone, first_lost),
}


@pytest.mark.parametrize("said", HIDDEN)
def test_what_an_unexplained_part_may_hold_is_not_called_missing(said: str) -> None:
    torch.manual_seed(3)
    report = diagnose_block(Block(*HIDDEN[said]), H, effort=0.25)
    assert not report.healthy and not report.explanations
    assert not any("no norms" in one for one in report.checked)


def test_a_sum_that_no_part_can_hold_is_called_missing() -> None:
    torch.manual_seed(3)
    report = diagnose_block(Block(alone, alone, first_lost), H, effort=0.25)
    assert report.ids == ("residual-missing",)
    assert "around the self-attention" in report.explanations[0].detail


def test_a_norm_that_no_part_can_hold_is_called_missing() -> None:
    torch.manual_seed(3)
    block = Block(alone, alone, first_bare)
    block.feed = nn.Sequential(nn.Linear(E, 2 * E), nn.ReLU(), nn.Linear(2 * E, E))
    block.attention.core = Shifted(E, H)
    report = diagnose_block(block, H)
    assert report.ids == ("norm-missing",)


class Shifted(Views):
    """An attention that nothing explains, of operations that norm nothing."""

    def weigh(self, scores, mask):
        return scores.relu() - 0.3 * scores.sigmoid()


class AddsBesideItsNorm(nn.Module):
    """Its attention adds what it reads, and what stands behind that is not judged."""

    def __init__(self):
        super().__init__()
        self.attn = AllBentBesideANorm(E, H)
        self.up, self.down = nn.Linear(E, 2 * E), nn.Linear(2 * E, E)

    def forward(self, x):
        x = self.attn(x)
        return x + self.down(self.up(x).relu())


def test_a_residual_in_a_part_that_is_not_judged_whole_is_not_called_missing() -> None:
    torch.manual_seed(0)
    report = diagnose_block(AddsBesideItsNorm(), H)
    assert "residual-missing" not in report.ids
    assert {"projection-bent", "scale-embed", "out-bent"} <= set(report.ids)
