"""The residual stream of a block as a tree, read off one recorded run.

A node is a tensor of tokens, (b, n, e): the tokens themselves, a sum, a norm, a scaled tensor, or
what a part returned. Nodes are found by the ids of their numbers, whatever reshapes they went
through, from the result back to the tokens.
"""

from __future__ import annotations

import copy
import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from attention_clinic.attention.operands import arguments
from attention_clinic.attention.program import Lost
from attention_clinic.blocks.formulas import Norm, by_event, by_hand
from attention_clinic.capture.run import LAYERS, NONE, SEVERAL, Run, canonical
from attention_clinic.capture.tape import Event, Tape

PASSES = {"alias", "native_dropout", "nan_to_num", "detach"}


@dataclass(eq=False)
class Node:
    """A tensor of the residual stream."""

    kind: str  # "x", "context", "sum", "norm", "scale", "shift" or "part"
    ids: Tensor  # of its numbers, (b, n, e)
    reads: list[Node] = field(default_factory=list)  # of a part the stream, then a context
    norm: Norm | None = None
    events: list[int] = field(default_factory=list)  # the operations inside a part, in order

    @property
    def source(self) -> Node:
        """The first node that it is made from."""
        return self.reads[0]


class Whole(Run):
    """A recorded call in which numbers depend on several tokens or on none.

    An operation that is done twice on the same numbers counts once: `same` is for each number the
    first one that is made in the same way, and `repeats` says which operations are repeated.
    """

    def __init__(self, tape: Tape, y: Tensor) -> None:
        self.same = torch.arange(tape.count)
        self.found = torch.full((tape.count,), NONE)
        for name, start, end in tape.given:
            if name in ("x", "context"):
                self.found[start:end] = SEVERAL
        made = copy.copy(tape)
        made.events = self._distinct(tape)
        super().__init__(made, self.same[y], self.found, self.found.clone())
        canonical(self)

    def _distinct(self, tape: Tape) -> list[Event]:
        """Return the operations that make new numbers; fill in which numbers are the same."""
        kept: list[Event] = []
        known: dict[tuple, list[Event]] = {}
        for event in tape.events:
            args = tuple(_mapped(value, self.same) for value in event.args)
            event = replace(event, args=args)
            tensors = event.read()
            own = [t for t in tensors if bool((self.found[t] != NONE).any())]
            if own:
                self.found[event.out] = SEVERAL
            first = _unchanged(event, own, tape.values)
            rest = str([a for a in args if not isinstance(a, Tensor | list)])
            key = (event.name, event.out.shape, rest, *((t.shape, int(t.sum())) for t in tensors))
            if first is None:
                first = next((e.out for e in known.get(key, ()) if _equal(e.args, args)), None)
            if first is None:
                known.setdefault(key, []).append(event)
                kept.append(event)
            else:
                self.same[event.out] = first
        repeated = torch.zeros(tape.count, dtype=torch.bool)
        repeated[self.same[self.same != torch.arange(tape.count)]] = True
        self.repeats = [bool(repeated[event.out].any()) for event in kept]
        return kept


def _unchanged(event: Event, own: list[Tensor], values: Tensor) -> Tensor | None:
    """Return the numbers that adding 0, or multiplying by 1, leaves as they are."""
    other = [t for t in event.read() if all(t is not one for one in own)]
    plain = all(isinstance(a, Tensor) or a == 1 for a in event.args)
    if len(own) != 1 or len(other) != 1 or not plain or own[0].shape != event.out.shape:
        return None
    neutral = {"add": 0, "mul": 1}.get(event.name, torch.nan)
    return own[0] if bool((values[other[0]] == neutral).all()) else None


def _mapped(value: Any, same: Tensor) -> Any:
    if isinstance(value, list):
        return [_mapped(one, same) for one in value]
    if not isinstance(value, Tensor):
        return value
    return same[value] if value.numel() else None


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, Tensor):
        return isinstance(other, Tensor) and torch.equal(one, other)
    return one is other or one == other


class Stream:
    """Read the tree off a run.

    Args:
        run: of the block.
        sizes: b, n, e, and j, c of the context.
        tolerance: the largest difference that counts as equal.
    """

    def __init__(self, run: Whole, sizes: tuple[int, ...], tolerance: float) -> None:
        b, n, e, j, c = sizes
        self.run, self.shape, self.tolerance = run, (b, n, e), tolerance
        self.memo: dict[tuple[int, int], tuple[Tensor, Node]] = {}
        bounds = {name: pair for name, *pair in run.tape.given if name in ("x", "context")}
        self.context_shape = (b, j, c)
        self.x = self._root("x", torch.arange(*bounds["x"]).view(b, n, e))
        self.context: Node | None = None
        if "context" in bounds:
            self.context = self._root("context", torch.arange(*bounds["context"]).view(b, j, c))
        self.own = run.descendants(self.x.ids)

    def _root(self, kind: str, ids: Tensor) -> Node:
        made = Node(kind, ids)
        self.memo[self._key(ids)] = ids, made
        return made

    @staticmethod
    def _key(ids: Tensor) -> tuple[int, int]:
        return int(ids[0, 0, 0]), int(ids[-1, -1, -1])

    def laid(self, t: Tensor) -> Tensor | None:
        """Return all ids (b, n, e) of the tokens that an operation read; None for others."""
        for root in (self.x, self.context):
            if root is not None and int(t.flatten()[0]) in range(
                int(root.ids[0, 0, 0]), int(root.ids[-1, -1, -1]) + 1
            ):
                return root.ids
        makers = self.run.makers(t)
        if len(makers) != 1 or makers[0] < 0:
            return None
        out = self.run.events[makers[0]].out
        found = arranged(out, self.shape)
        return arranged(out, self.context_shape) if found is None and self.context else found

    def node(self, ids: Tensor) -> Node:
        """Return the node of some numbers, (b, n, e)."""
        found = self.plain(ids)
        if found is None:
            found = self._part(ids)
            self.memo[self._key(ids)] = ids, found
        return found

    def plain(self, ids: Tensor) -> Node | None:
        """Return the node of tokens, a sum, a norm or a scaled tensor; None for other numbers."""
        key = self._key(ids)
        if key not in self.memo:
            found = self._plain(ids)
            if found is None:
                return None
            self.memo[key] = ids, found
        known, found = self.memo[key]
        if not torch.equal(known, ids):
            raise Lost("tokens in an unknown order")
        return found

    def _plain(self, ids: Tensor) -> Node | None:
        makers = self.run.makers(ids)
        names = {self.run.events[m].name for m in makers if m >= 0}
        if -1 in makers or len(names) != 1 or names & {*LAYERS}:
            return None
        name = names.pop()
        if name == "native_layer_norm":
            normed = by_event(self.run, ids, makers)
            return None if normed is None else Node("norm", ids, [self.node(normed[0])], normed[1])
        args = arguments(self.run, ids, makers)
        held = [a for a in args if isinstance(a, Tensor) and self.run.depends(a)]
        if name in PASSES and len(held) == 1:
            return self.node(held[0])
        if name == "add" and len(held) == 2 and all(len(t.unique()) == t.numel() for t in held):
            plain = all(isinstance(a, Tensor) or a == 1 for a in args)
            return Node("sum", ids, [self.node(a) for a in held]) if plain else None
        if name not in ("add", "mul", "div", "sub"):
            return None
        others = [a for a in args if not held or a is not held[0]]
        tensors = [a for a in others if isinstance(a, Tensor)]
        if name == "add" and len(held) == len(tensors) == 1:
            found = self.plain(held[0])
            if found is not None and self.begins(found):  # positions, for example
                return Node("shift", ids, [found])
        hand = by_hand(self.run, ids, self.tolerance)
        if hand is not None:
            return Node("norm", ids, [self.node(hand[0])], hand[1])
        divided = name == "div" and held and args[0] is held[0]
        if not (name == "mul" or divided) or len(held) != 1 or len(others) != 1:
            return None
        return Node("scale", ids, [self.node(held[0])])

    def begins(self, node: Node) -> bool:
        """Return whether a node is the tokens themselves, scaled or with positions added."""
        if node.kind in ("shift", "scale"):
            return self.begins(node.source)
        return node is self.x

    def _part(self, ids: Tensor) -> Node:
        """Return a part: go back from its result to the one tensor of the stream that it reads."""
        inside: set[int] = set()
        reads: list[Node] = []
        self._gather(self.run.makers(ids), inside, reads)
        own = [r for r in reads if self.is_own(r)]
        others = [r for r in reads if not self.is_own(r)]
        if len(own) > 1 or len(others) > 1 or not reads:
            raise Lost("a part reads several tensors of the stream")
        if not any(self.run.events[m].name in LAYERS for m in inside):
            raise Lost("numbers of the stream are changed without a layer")
        return Node("part", ids, [*own, *others], events=sorted(inside))

    def is_own(self, node: Node) -> bool:
        """Return whether a node depends on the tokens, not only on the context."""
        return bool(self.own[node.ids[0, 0, 0]])

    def _gather(self, todo: list[int], inside: set[int], reads: list[Node]) -> None:
        """Collect operations, back to the nodes of the stream that they read."""
        seen: set[int] = set()
        while todo:
            number = todo.pop()
            if number in inside or number < 0:
                continue
            inside.add(number)
            for t in self.run.events[number].read():
                if not self.run.depends(t) or int(t.flatten()[0]) in seen:
                    continue
                known = self._known(t)
                if known is None:
                    makers = self.run.makers(t[self.run.token[t] != NONE])
                    if -1 in makers:
                        raise Lost("a part reads some of the tokens")
                    todo += makers
                elif all(known is not one for one in reads):
                    reads.append(known)

    def _known(self, t: Tensor) -> Node | None:
        """Return the node of the stream that a tensor is; None inside a part."""
        laid = self.laid(t)
        found = None if laid is None else self.plain(laid)
        inside = found is None or found.kind == "part"
        return None if inside or (found.kind == "scale" and not self.begins(found)) else found


def arranged(out: Tensor, shape: tuple[int, int, int]) -> Tensor | None:
    """Return numbers as (b, n, e), from the same axes in another order or split; None if not."""
    b, n, e = shape
    if out.numel() != b * n * e or bool((out < 0).any()):
        return None
    if out.ndim == 2 and out.shape[1] == e:
        return out.view(shape)
    if out.ndim == 3:
        ways = (out.permute(order) for order in itertools.permutations(range(3)))
        return next((made for made in ways if made.shape == shape), None)
    if out.ndim != 4 or out.shape[0] != b or e not in (out.shape[1], out.shape[3]):
        return None
    return out.flatten(1, 2) if out.shape[3] == e else out.flatten(2).mT
