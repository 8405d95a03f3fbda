"""A plain attention in the place of one that is examined by itself: what is left is the block."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.patient import Patient, same
from attention_clinic.engine.recording import call_of
from attention_clinic.engine.replay import Replay, cast


class StandIn(nn.Module):
    """Attend to all tokens, as the course's attention does; return what the other one returns.

    Args:
        part: the attention that it stands for.
        replay: how that one is called.
        num_heads: h.
        out: whether it has an output layer of its own.
    """

    def __init__(self, part: nn.Module, replay: Replay, num_heads: int, out: bool) -> None:
        super().__init__()
        e = replay.shape[2]
        c = e if replay.context is None else replay.context[1]
        self.num_heads = num_heads
        self.query, self.key, self.value = nn.Linear(e, e), nn.Linear(c, e), nn.Linear(c, e)
        self.out = nn.Linear(e, e) if out else nn.Identity()
        self.replay = replay
        self._kept = [part]  # in a list, and private: its parameters are none of this module

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = call_of(self._kept[0], args, kwargs).given
        if any(given.get(name) is not given[self.replay.asks[0]] for name in self.replay.asks):
            raise ValueError("its queries, keys and values are made of different tokens")
        x = self.replay.tokens(given[self.replay.asks[0]])
        context = self.replay.tokens(given[self.replay.asked[0]]) if self.replay.asked else x

        def split(t: Tensor) -> Tensor:
            return t.unflatten(2, (self.num_heads, -1)).transpose(1, 2)

        q, k, v = split(self.query(x)), split(self.key(context)), split(self.value(context))
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-1)
        y = self.out((weights @ v).transpose(1, 2).flatten(2))
        y = self.replay.laid(y, self.replay.asks[0])
        for name in self.replay.added:
            y = y + given[name]
        result = self.replay.call.result
        if isinstance(result, Tensor):
            return y.unflatten(1, result.shape[1:3]) if y.ndim < result.ndim else y
        if isinstance(result, dict):
            first = next(name for name, value in result.items() if isinstance(value, Tensor))
            return {**result, first: y}
        place = next(n for n, value in enumerate(result) if isinstance(value, Tensor))
        rest = cast(tuple(result), y.dtype)
        return type(result)((*rest[:place], y, *rest[place + 1 :]))


def may_be_left_out(part: nn.Module, replay: Replay, block: Replay) -> bool:
    """Say whether a plain attention does all that a block needs of its own.

    What a block hands to its windows, such as a mask, must fit how it cuts them; a residual that
    the attention is handed must be added.

    Args:
        part: the attention.
        replay: how it is called.
        block: how the block is called.
    """
    if replay.tied and replay.shape[1] != block.shape[1]:
        return False
    if not replay.added:
        return True
    patient = Patient("diagnose_model", part, replay)
    x = patient.tokens(*replay.shape)
    streams = {name: patient.tokens(*replay.shape, seed=3) for name in replay.added}
    without = patient.run(x)
    given = replay.call.given | {n: replay.laid(r, n) for n, r in streams.items()}
    patient.call = replace(replay, call=replace(replay.call, given=given), still=())
    return same(patient.run(x), without + sum(streams.values()))


def with_stand_ins(
    block: nn.Module, attentions: dict[str, Replay], num_heads: int, out: bool
) -> nn.Module:
    """Return a copy of a block with plain attentions in the places of its own.

    Args:
        block: of the copy.
        attentions: how each of them is called, by its path in the block.
        num_heads: h, where it divides their width.
        out: whether they have an output layer of their own.
    """
    changed = copy.deepcopy(block)
    held = list(changed.named_modules(remove_duplicate=False))
    for path, replay in attentions.items():
        heads = num_heads if replay.shape[2] % num_heads == 0 else 1
        with torch.random.fork_rng(devices=[]):
            own = changed.get_submodule(path)
            plain = StandIn(own, replay, heads, out)
        for place in (place for place, part in held if part is own):
            changed.set_submodule(place, plain)
    return changed
