"""The parts of a block as its run shows them: norms, attentions, feed-forwards."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from attention_clinic.engine.weights import Silent
from attention_clinic.engine.wiring import Place, Slot, Step, Whole
from attention_clinic.examine.cuts import Cut, CutAcross

NORM = re.compile(r"norm|rms|(^|[ ._])ln(\d|_|$)")
KINDS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.InstanceNorm1d)


@dataclass
class Unit:
    """One part of a block.

    Args:
        kind: "norm", "mix" for what weighs tokens by tokens, "feed", "change" for what a call
            changed in its place, or "inner" for the heads of an attention whose output layer
            stands outside of it.
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
    """

    kind: str
    name: str
    read: Tensor
    out: Tensor
    asked: Tensor | None = None
    paths: list[str] = field(default_factory=list)
    entries: dict[Place, dict[Slot, bool]] = field(default_factory=dict)
    end: Place = ("", 0)
    run: Callable[[Tensor], Tensor] | None = None
    after: Callable[[Tensor], Tensor] | None = None
    steps: list[Step] = field(default_factory=list)
    adds: bool = False

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

    def cut(self, whole: Whole) -> Cut:
        """Return it as a module of its own."""
        kind = Cut if self.asked is None else CutAcross
        return kind(whole, self.paths, self.entries, self.end)


class Unclear(Exception):
    """What ran is not understood."""


def units_of(root: Step, block: nn.Module, x: Tensor, context: Tensor | None) -> list[Unit]:
    """Return the parts of a block, in the order in which they end.

    Args:
        root: its call.
        block: the copy.
        x: the tokens that it got.
        context: the context, or None.

    Raises:
        Unclear: some call fits nowhere.
    """
    return _Grouping(x, context, block).units(_leaves(root, x))


def _leaves(step: Step, x: Tensor) -> list[Step]:
    """Return the calls that are parts, or layers of parts that nobody wrote as a module."""
    found: list[Step] = []
    for inner in step.inner:
        if inner.module is None or is_norm(inner) or not inner.inner or not _opened(inner, x):
            found.append(inner)
        else:
            found += _leaves(inner, x)
    return found


def is_norm(step: Step) -> bool:
    """Say whether a call is that of a norm."""
    if step.module is None:
        return step.again is not None and "norm" in step.path.rpartition(" ")[2]
    if isinstance(step.module, KINDS):
        return True
    words = f"{type(step.module).__name__.lower()} {step.path.rpartition('.')[2].lower()}"
    if not NORM.search(words) and not NORM.search(step.path.lower().rpartition(".")[0]):
        return False
    holds = any(p.ndim > 1 for p in step.module.parameters())
    inner = any(True for _ in step.module.children())
    alone = len(step.given) == 1 and not step.mixes and not inner and not holds
    own = NORM.search(words) or any(True for _ in step.module.parameters())
    return alone and bool(own) and "act" not in words and not _same_as_given(step)


def looks_like_a_norm(path: str, part: nn.Module) -> bool:
    """Say whether a module is a norm, by its class and its name."""
    words = f"{type(part).__name__.lower()} {path.rpartition('.')[2].lower()}"
    own = [p for p in part.parameters() if p.ndim == 1]
    return isinstance(part, KINDS) or bool(NORM.search(words) and own and not any(part.children()))


def _same_as_given(step: Step) -> bool:
    return step.result is not None and any(
        given.shape == step.result.shape and torch.equal(given, step.result)
        for given in step.given.values()
    )


def _matrices(steps: list[Step]) -> set[int]:
    """Return the matrices of the layers that are called in calls."""
    return {
        id(p)
        for step in steps
        for one in step.all()
        if one.module is not None
        for p in one.module.parameters(recurse=False)
        if p.ndim > 1
    }


def _opened(step: Step, x: Tensor) -> bool:
    """Say whether a call is to be looked into: it is more, or less, than one part."""
    e = x.shape[-1]
    if step.result is None or step.result.ndim != 3 or step.result.shape[-1] != e:
        return False
    below = [one for inner in step.inner for one in inner.all()]
    normed = [one for one in below if is_norm(one) and _width(one) in (e, None)]
    if normed or _adds_what_it_gets(step):
        return True
    whole = [one for one in below if one.module is not None and one.mixes and _maps(one, e)]
    if step.mixes and whole:
        held = _matrices([step])
        return len(held - _matrices(whole)) != 1
    return not step.mixes and not _matrices([step]) and any(_matrices([i]) for i in step.inner)


def _width(step: Step) -> int | None:
    return next((given.shape[-1] for given in step.given.values()), None)


def _maps(step: Step, e: int) -> bool:
    made = step.result
    return made is not None and made.ndim == 3 and made.shape[-1] == e and bool(step.given)


@torch.no_grad()
def _adds_what_it_gets(step: Step) -> bool:
    """Say whether a part adds what it gets to what it makes of it."""
    module, given = step.module, list(step.given.values())
    if module is None or len(given) != 1 or step.result is None or step.mixes:
        return False
    if step.result.shape != given[0].shape or not any(True for _ in module.parameters()):
        return False
    with Silent(list(module.parameters())):
        try:
            return torch.equal(module(given[0].clone()), given[0])
        except Exception:
            return False


class _Turned(nn.Module):
    """A norm that gets its tokens turned over, (b, e, n)."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x.mT).mT


class _Grouping:
    """Puts calls together that are one part.

    Args:
        x: the tokens that the block got.
        context: the context, or None.
        block: the copy.
    """

    def __init__(self, x: Tensor, context: Tensor | None, block: nn.Module) -> None:
        self.known = [x] if context is None else [x, context]
        self.block, self.e = block, x.shape[-1]
        self.shape = x.shape

    def units(self, leaves: list[Step]) -> list[Unit]:
        """Return the parts."""
        found: list[Unit] = []
        group: list[Step] = []
        since: list[Step] = []  # all calls behind the last part
        for step in leaves:
            unit = self._single(step)
            since.append(step)
            changes = list(self._changes(step))
            if unit is not None:
                if group and unit.kind != "norm":
                    raise Unclear
                unit.steps = [step]
                since = since * bool(group)
                found += [unit, *changes]
                self.known += [one.out for one in (unit, *changes)]
                continue
            if found and not group and self._bends(step, found[-1]):
                continue
            heads = self._leads_out(step, found[-1]) if found and not group else None
            if heads is not None:
                found.insert(-1, heads)
                continue
            found += changes
            self.known += [one.out for one in changes]
            if not step.weighs and not step.mixes and not _matrices([step]):
                continue  # an activation, a dropout, positions
            if not step.mixes and (step.result is None or step.result.ndim != 3):
                continue
            if not step.mixes and not self._reads_tokens(step):
                continue  # a condition, which factors are made of
            group.append(step)
            unit = self._ended(group)
            if unit is not None:
                unit.steps, since = since, []
                found.append(unit)
                self.known.append(unit.out)
                group = []
        if group:
            raise Unclear
        return found

    def _changes(self, step: Step) -> Iterator[Unit]:
        """Yield what a call changed in its place, of the tensors that others may read."""
        for slot, after in step.changed.items():
            if self._is_known(step.given[slot]):
                yield Unit("change", step.path, step.given[slot], after)

    def _reads_tokens(self, step: Step) -> bool:
        """Say whether a call gets as many tokens as the block, or its context."""
        sizes = [{*t.shape[:2]} for t in self.known[:2]]
        given = [{*t.shape} for t in step.given.values() if t.ndim == 3]
        return not step.given or any(size <= one for size in sizes for one in given)

    def _bends(self, step: Step, last: Unit) -> bool:
        """Say whether a call bends what a feed-forward returned, and add it to that."""
        given = next(iter(step.given.values()), None)
        if last.kind != "feed" or given is None or step.result is None or _matrices([step]):
            return False
        if not _equal(given, last.out) or _equal(step.result, last.out):
            return False
        last.after = step.again or step.module
        last.out = step.result
        self.known.append(step.result)
        return True

    def _leads_out(self, step: Step, last: Unit) -> Unit | None:
        """Add the output layer of an attention to it and return its heads, None for another."""
        given = next(iter(step.given.values()), None)
        if last.kind != "mix" or not isinstance(step.module, nn.Linear) or given is None:
            return None
        if step.result is None or step.result.shape != self.shape or not _equal(given, last.out):
            return None
        if len(_matrices(last.steps)) > 3 or last.adds:
            return None  # it has one of its own
        heads = Unit("inner", last.name, last.read, last.out)
        last.out, last.end, last.name = step.result, step.place, step.path
        last.paths.append(step.path)
        self.known.append(step.result)
        return heads

    def _is_known(self, t: Tensor) -> bool:
        return any(t.shape == one.shape and torch.equal(t, one) for one in self.known)

    def _single(self, step: Step) -> Unit | None:
        """Return the part that one call is, None when it is none, or only a layer of one."""
        if step.weighs or step.result is None or step.result.ndim != 3:
            return None
        beside = is_norm(step) and self._is_context(step.result)
        turned = is_norm(step) and step.result.mT.shape == self.shape
        if step.result.shape[-1] != self.e and not beside and not turned:
            return None
        given = [t for t in step.given.values() if t.ndim == 3]
        if not given:
            return None
        if is_norm(step):
            return self._norm(step, given[0])
        if step.result.shape != self.shape:
            return None
        count = len(_matrices([step]))
        whole = isinstance(step.module, nn.MultiheadAttention) or count > 1 or _held(step) > 2
        if step.mixes and whole:
            return self._whole(step, "mix")
        return self._whole(step, "feed") if count > 1 else None

    def _is_context(self, t: Tensor) -> bool:
        return t.ndim == 3 and len(self.known) > 1 and t.shape == self.known[1].shape

    def _norm(self, step: Step, given: Tensor) -> Unit | None:
        if step.result is None or given.shape != step.result.shape:
            return None
        again = step.again or step.module
        if given.shape != self.shape and given.mT.shape == self.shape and again is not None:
            run = _Turned(again)  # it gets (b, e, n)
            return Unit("norm", step.path, given.mT, step.result.mT, run=run)
        if given.shape != self.shape and not self._is_context(given):
            return None
        return Unit("norm", step.path, given, step.result, run=again)

    def _whole(self, step: Step, kind: str) -> Unit:
        """Return the part that a module is."""
        tokens = {slot: t for slot, t in step.given.items() if t.ndim == 3}
        asks = next((s for s in tokens if s in ("query", "q", "x", "hidden_states")), None)
        read = tokens[next(iter(tokens)) if asks is None else asks]
        others = [t for t in tokens.values() if t.shape != read.shape or not torch.equal(t, read)]
        others = [t for t in others if self._is_known(t)]
        if any(t.shape != others[0].shape or not torch.equal(t, others[0]) for t in others):
            raise Unclear
        asked = others[0] if others else None
        slots = {}
        for slot, t in tokens.items():
            if t.shape == read.shape and torch.equal(t, read):
                slots[slot] = False
            elif asked is not None and t.shape == asked.shape and torch.equal(t, asked):
                slots[slot] = True
        entries: dict[Place, dict[Slot, bool]] = {step.place: slots}
        assert step.result is not None
        out, adds = step.result, False
        for first, second, whole in (one for inner in step.all() for one in inner.sums):
            if kind == "mix" and _equal(whole, step.result):
                rest = second if _equal(first, read) else first
                adds = _equal(first, read) or _equal(second, read)
                out = rest if adds else out
        place = step.place
        return Unit(kind, step.path, read, out, asked, [step.path], entries, place, adds=adds)

    def _ended(self, group: list[Step]) -> Unit | None:
        """Return the part that the layers make, None as long as more of them belong to it."""
        last = group[-1]
        held = [step for step in group if not step.weighs]
        layers = [step for step in held if step.given]  # a table of places gets no tokens
        if last.weighs or not layers or last.result is None:
            return None
        first = next(iter(layers[0].given.values()))
        entering = [s for s in layers if self._is_known(next(iter(s.given.values())))]
        if layers[0] not in entering and len(layers) == 1:
            entering = [layers[0]]  # it reads a sum: the first one of a part
        same = [s for s in layers if _equal(next(iter(s.given.values())), first)]
        entering += [s for s in same if all(s is not one for one in entering)]
        if any(last is step for step in entering) or last.result.shape != self.shape:
            return None
        weighed = any(step.mixes for step in group[:-1])
        kind = "mix" if weighed else "feed"
        asked: Tensor | None = None
        read = first
        entries: dict[Place, dict[Slot, bool]] = {}
        for step in entering:
            slot, t = next(iter(step.given.items()))
            if _equal(t, read):
                entries[step.place] = {slot: False}
            elif asked is None or _equal(t, asked):
                asked = t
                entries[step.place] = {slot: True}
            else:
                raise Unclear
        paths = list(dict.fromkeys(step.path for step in held))
        return Unit(kind, last.path, read, last.result, asked, paths, entries, last.place)


def _held(step: Step) -> int:
    return 0 if step.module is None else sum(p.ndim > 1 for p in step.module.parameters())


def _equal(first: Tensor, second: Tensor) -> bool:
    return first.shape == second.shape and torch.equal(first, second)
