"""Blocks whose tokens lie channels first, (b, e, n), and lists of parts that another calls."""

from __future__ import annotations

import torch.nn.functional as F
from torch import nn

from patients.attention import Views, ViewsScaledByEmbed
from patients.blocks import block
from patients.wirings import ONE, TWO


def channels_first(module, x):
    return module(x.mT).mT


def through(parts, x):
    for part in parts:
        x = part(x)
    return x


class Scored(nn.Module):
    """An attention of (b, e, n) whose layers are convolutions of single places."""

    def __init__(self, e, h):
        super().__init__()
        self.h, self.d = h, e // h
        self.query, self.key, self.value, self.out = (nn.Conv1d(e, e, 1) for _ in range(4))

    def forward(self, x):
        q, k, v = (
            layer(x).unflatten(1, (self.h, self.d)).mT
            for layer in (self.query, self.key, self.value)
        )
        made = F.scaled_dot_product_attention(q, k, v)
        return self.out(made.mT.flatten(1, 2))


class Normed(nn.Module):
    """A norm of (b, e, n)."""

    def __init__(self, e):
        super().__init__()
        self.norm = nn.LayerNorm(e)

    def forward(self, x):
        return self.norm(x.mT).mT


class Fed(nn.Module):
    """A feed-forward of (b, e, n)."""

    def __init__(self, e):
        super().__init__()
        self.up, self.down = (
            nn.Sequential(nn.Conv1d(e, 2 * e, 1), nn.GELU()),
            nn.Conv1d(2 * e, e, 1),
        )

    def forward(self, x):
        return self.down(self.up(x))


@block(sizes=TWO, call=channels_first)
class InTwoLists(nn.Module):
    """choiHkk/Transformer-TTS: the attentions stand in one list, the feed-forwards in another."""

    def __init__(self, e, h):
        super().__init__()
        self.attentions = nn.ModuleList(Scored(e, h) for _ in range(2))
        self.feeds = nn.ModuleList(Fed(e) for _ in range(2))
        self.norms = nn.ModuleList(Normed(e) for _ in range(self.norms_of()))

    def norms_of(self):
        return 4

    def forward(self, x):
        for number, (attention, feed) in enumerate(zip(self.attentions, self.feeds, strict=True)):
            x = self.norm(2 * number)(x + attention(x))
            x = self.norm(2 * number + 1)(x + feed(x))
        return x

    def norm(self, number):
        return self.norms[number % len(self.norms)]


@block("norm-shared", sizes=ONE, call=channels_first)
class InTwoListsWithOneNorm(InTwoLists):
    def norms_of(self):
        return 1


@block("norm-shared", "residual-from-input", sizes=ONE, call=channels_first)
class ChannelsFirstFromInput(nn.Module):
    """Its norms are torch's own, between two turns each."""

    def __init__(self, e, h):
        super().__init__()
        self.attention, self.feed = Scored(e, h), Fed(e)
        self.norm = nn.LayerNorm(e)

    def forward(self, x):
        y = x + self.attention(self.norm(x.mT).mT)
        return x + self.feed(self.norm(y.mT).mT)


class Part(nn.Module):
    """One part, with the norm of the sum."""

    def __init__(self, e, part):
        super().__init__()
        self.part, self.norm = part, nn.LayerNorm(e)

    def forward(self, x):
        return self.norm(x + self.part(x))


def _feed(e):
    return nn.Sequential(nn.Linear(e, 2 * e), nn.ReLU(), nn.Linear(2 * e, e))


@block(sizes=TWO, call=through)
def _parts_in_turn(e, h):
    parts = (Views(e, h), _feed(e), Views(e, h), _feed(e))
    return nn.ModuleList(Part(e, part) for part in parts)


@block("norm-missing", "residual-missing", sizes=TWO, call=through)
def _bare_parts_in_turn(e, h):
    """ronak-u-agarwal/bme231-dna-transformer."""
    return nn.ModuleList([Views(e, h), _feed(e), Views(e, h), _feed(e)])


@block("norm-missing", "residual-missing", "scale-embed", sizes=ONE, call=through)
def _bare_parts_that_scale(e, h):
    return nn.ModuleList([ViewsScaledByEmbed(e, h), _feed(e)])
