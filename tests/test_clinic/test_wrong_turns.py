"""Turns that are none, or mixed, where keys are shared, normed, or heads run one by one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from attention_clinic import diagnose
from attention_clinic.examine.turning_law import Turned
from attention_clinic.examine.wrong_turns import wrong_turn

TURNS = {  # the axis of (b, n, h, d) that places are counted on
    "tokens": (1, "rotary-halves"),
    "heads": (2, "rotary-no-effect"),
    "none": (None, "rotary-no-effect"),
}


def tables(n: int, half: bool = False) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of four pairs, (n, 4) each; `half` of them are not turned."""
    speeds = 10_000 ** (-torch.arange(0, 8, 2) / 8)
    if half:
        speeds = torch.cat([10_000 ** (-torch.linspace(0, 1, 2)), torch.zeros(2)])
    angles = torch.arange(n)[:, None] * speeds
    return angles.cos(), angles.sin()


class Rotary(nn.Module):
    """Turns along some axis, or all tokens alike."""

    def __init__(self, axis: int | None) -> None:
        super().__init__()
        self.axis = axis

    def forward(self, t: Tensor) -> Tensor:
        if self.axis is None:  # the angles are those of the last place, for all tokens
            cos, sin = (table[-1:] for table in tables(4))
        else:
            shape = [1, 1, 1, 4]
            shape[self.axis] = t.shape[self.axis]
            made = tables(t.shape[self.axis], half=self.axis == 2)
            cos, sin = (table.view(shape) for table in made)
        first, second = t.chunk(2, dim=-1)
        return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1)


class Grouped(nn.Module):
    """Two heads of keys for four of queries, normed, and turned."""

    def __init__(self, axis: int | None) -> None:
        super().__init__()
        self.rotary = Rotary(axis)
        self.q_proj, self.o_proj = (nn.Linear(32, 32, bias=False) for _ in "qo")
        self.k_proj, self.v_proj = (nn.Linear(32, 16, bias=False) for _ in "kv")
        self.q_norm, self.k_norm = nn.RMSNorm(8), nn.RMSNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.rotary(self.q_norm(self.q_proj(x).view(b, n, 4, 8))).transpose(1, 2)
        k = self.rotary(self.k_norm(self.k_proj(x).view(b, n, 2, 8))).transpose(1, 2)
        v = self.v_proj(x).view(b, n, 2, 8).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o_proj(y.transpose(1, 2).reshape(b, n, -1))


@pytest.mark.parametrize("way", TURNS)
def test_a_turn_along_the_heads_is_none(way: str) -> None:
    axis, said = TURNS[way]
    report = diagnose(Grouped(axis), num_heads=4, num_kv_heads=2, causal=True)
    ids = [one.ids for one in report.explanations]
    if axis == 1:
        assert report.healthy and said in {one.id for one in report.variants}
    else:
        assert ids == [(said,)]
        assert {one.id for one in report.variants} == {"grouped-queries", "qk-norm"}
        assert axis is None or "each head is turned by its own number" in str(report)


class ScaledBefore(Grouped):
    """Its queries are scaled once they are turned: a norm's weights would hide that."""

    def forward(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q = self.rotary(self.q_norm(self.q_proj(x).view(b, n, 4, 8))).transpose(1, 2) * 8**-0.5
        k = self.rotary(self.k_norm(self.k_proj(x).view(b, n, 2, 8))).transpose(1, 2)
        v = self.v_proj(x).view(b, n, 2, 8).transpose(1, 2)
        k, v = (t.repeat_interleave(2, dim=1) for t in (k, v))
        scores = (q @ k.mT).masked_fill(torch.ones(n, n).triu(1) == 1, -torch.inf)
        return self.o_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, -1))


def test_a_factor_beside_norms_is_no_missing_scale() -> None:
    report = diagnose(ScaledBefore(2), num_heads=4, num_kv_heads=2, causal=True)
    assert [one.ids for one in report.explanations] == [("rotary-no-effect",)]


class Head(nn.Module):
    """One head, with a table for halves or for neighbours."""

    def __init__(self, halves: bool) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(32, 8, bias=False) for _ in "qkv")
        wide = [torch.cat([t, t], -1) if halves else t.repeat_interleave(2, -1) for t in tables(16)]
        self.register_buffer("cos", wide[0])
        self.register_buffer("sin", wide[1])

    def forward(self, x: Tensor) -> Tensor:
        turned = []
        for t in (self.query(x), self.key(x)):
            across = torch.stack((-t[..., 1::2], t[..., 0::2]), dim=-1).reshape(t.shape)
            turned.append(t * self.cos[: t.shape[1]] + across * self.sin[: t.shape[1]])
        scores = torch.einsum("bth,bsh->bts", *turned) / 8**0.5
        seen = torch.ones_like(scores[0]).tril() == 1
        return scores.masked_fill(~seen, -torch.inf).softmax(-1) @ self.value(x)


class Heads(nn.Module):
    """Heads one by one."""

    def __init__(self, halves: bool) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(halves) for _ in range(4))
        self.proj = nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))


@pytest.mark.parametrize("halves", [True, False])
def test_angles_for_halves_do_not_turn_neighbours(halves: bool) -> None:
    report = diagnose(Heads(halves), num_heads=4, causal=True)
    assert [one.ids for one in report.explanations] == [("rotary-mixed",)] * halves
    assert report.healthy or "angles for halves, neighbours turned" in str(report)


def test_a_second_layer_is_no_turn() -> None:
    n, width = 5, 8
    unturned = torch.ones(n, width // 2, dtype=torch.complex128)
    dense = torch.linalg.qr(torch.randn(width, width).double()).Q.expand(1, n, width, width)
    side = Turned([], unturned, "", dense)
    assert wrong_turn(side, side) is None
