"""One part of a block: what it read, what it returned, and how it is cut out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from torch import Tensor, nn

from attention_clinic.engine.parcels import Order
from attention_clinic.engine.wiring import Place, Slot, Step, Whole
from attention_clinic.examine.cuts import KINDS
from attention_clinic.examine.headed import Head, Heads
from attention_clinic.examine.leaves import Unclear

Entries = dict[Place, dict[Slot, bool]]


@dataclass
class Unit:
    """One part of a block.

    Args:
        kind: "norm", "mix" for what weighs tokens by tokens, "feed", "change" for what a call
            changed in its place, "bend" for an activation of no part, "gate" for what weighs the
            stream and what a part returned, or "inner" for the heads of an attention whose output
            layer stands outside of it.
        name: its path, or that of its last layer.
        read: what it got.
        out: what it returned.
        asked: the other tokens that it got, None where there are none.
        paths: the modules that belong to it.
        entries: the arguments that take tokens, True for those of the other ones.
        end: the call whose result is its own.
        run: calls a norm again.
        after: what bends its result, or None.
        steps: the calls that make it, of a feed-forward.
        adds: whether its module adds what it reads to that, too.
        beside: whether it gets other tokens that no part returned, such as a sum of two.
        parcels: the order in which its module gets the tokens, such as windows, or None.
        experts: of a feed-forward, whose weighed sum it returns.
        heads: of an attention, where the block calls each of them.
    """

    kind: str
    name: str
    read: Tensor
    out: Tensor
    asked: Tensor | None = None
    paths: list[str] = field(default_factory=list)
    entries: Entries = field(default_factory=dict)
    end: Place = ("", 0)
    run: Callable[[Tensor], Tensor] | None = None
    after: Callable[[Tensor], Tensor] | None = None
    steps: list[Step] = field(default_factory=list)
    adds: bool = False
    beside: bool = False
    parcels: Order | None = None
    experts: list[nn.Module] = field(default_factory=list)
    heads: list[Head] = field(default_factory=list)

    def turn(self) -> None:
        """Take what is asked for what asks, where the context was handed over as that."""
        assert self.asked is not None
        self.read, self.asked = self.asked, self.read
        self.entries = {
            place: {slot: not crossed for slot, crossed in slots.items()}
            for place, slots in self.entries.items()
        }

    def alone(self) -> None:
        """Let it ask its own tokens only, when it is examined by itself."""
        self.asked = None
        self.entries = {place: dict.fromkeys(slots, False) for place, slots in self.entries.items()}

    def cut(self, whole: Whole, entries: Entries | None = None, masked: bool = False) -> nn.Module:
        """Return it as a module of its own, which may take other sides, or a mask."""
        if self.heads:
            if masked or self.after is not None or whole.turned:
                raise Unclear
            behind = self.end[0] != self.heads[-1].path
            return Heads(whole.block, self.heads, self.end[0] if behind else "")
        kind = KINDS[self.asked is not None, masked]
        given = whole, self.paths, entries or self.entries, self.end, self.parcels
        made = kind(*given, self.after)
        made.cut_grid = next((step.grid for step in self.steps if step.place in self.entries), None)
        return made
