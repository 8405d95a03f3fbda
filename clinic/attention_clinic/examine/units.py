"""The parts of a block as its run shows them: norms, attentions, feed-forwards."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from attention_clinic.engine.parcels import Order, parcels_of
from attention_clinic.engine.wiring import Step
from attention_clinic.examine.convolving import convolution
from attention_clinic.examine.fused import in_turn
from attention_clinic.examine.gated import gate_of, with_gates
from attention_clinic.examine.headed import heads_of
from attention_clinic.examine.laid_norms import Imaged, InOneRow, InOrder
from attention_clinic.examine.leaves import (
    Unclear,
    bends,
    equal_tensors,
    factors_of,
    held,
    is_norm,
    is_one,
    leaves,
    matrices,
    reads_of,
    tokens_of,
    with_between,
)
from attention_clinic.examine.unit import Entries, Unit


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
    sums = [one for step in root.all() for one in step.sums]
    added = [t for one in sums for t in one[:2]]
    calls = with_gates(in_turn(leaves(root, x)), sums)
    return _Grouping(x, context, block).units(calls, added)


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

    def units(self, leaves: list[Step], added: list[Tensor]) -> list[Unit]:
        """Return the parts, which know what was added to other tokens."""
        found: list[Unit] = []
        beyond = 0  # calls that belong to a convolution
        group: list[Step] = []
        since: list[Step] = []  # all calls behind the last part
        for place, step in enumerate(leaves):
            row = None if group else convolution(leaves[place:], self.shape, added)
            if row is not None and place >= beyond:
                found.append(row)
                self.known.append(row.out)
                beyond = place + len(row.steps)
            if place < beyond:
                continue
            unit = self._single(step, not group)
            if unit is not None and self._goes_on(unit, group, since):
                found, group, since = [*found, self._of_one(group[0], since)], [], []
            since.append(step)
            changes = list(self._changes(step))
            if unit is not None and unit.kind == "norm" and self._inside(unit, step, group):
                group.append(step)
                continue
            if unit is not None:
                unit.steps = [*group, step]
                if group and unit.kind != "norm":
                    self._take_in(unit, step, group)
                    group = []
                since = since * bool(group)
                found += [unit, *changes]
                self.known += [one.out for one in (unit, *changes)]
                continue
            if found and not group and self._bends(step, found[-1]):
                continue
            heads = None
            if found and not group:
                heads = self._leads_out(step, found[-1], leaves[place + 1 :])
            if heads is not None:
                found.insert(-1, heads)
                continue
            changes = changes or list(self._bent(step, group))
            found += changes
            self.known += [one.out for one in changes]
            if not step.weighs and not step.mixes and not matrices([step]):
                continue  # an activation, a dropout, positions
            if not step.mixes and (step.result is None or not self._reads_tokens(step)):
                continue  # a condition, which factors are made of
            if not step.mixes and step.result.ndim != 3 and not step.given:
                continue
            group.append(step)
            unit = self._ended(group, since)
            unit = self._headed(group, leaves[place + 1 :], added) if unit is None else unit
            if unit is not None:
                unit.steps, since = since, []
                found.append(unit)
                self.known.append(unit.out)
                group = []
        if group:
            if not is_one(group, self.shape):
                raise Unclear
            found.append(self._of_one(group[0], since))
        return found

    def _headed(self, group: list[Step], later: list[Step], added: list[Tensor]) -> Unit | None:
        """Return the attention whose heads the block calls itself, None for another."""
        found = heads_of(group, self.known)
        if found is None or found[2].shape != self.shape:
            return None
        heads, read, made = found
        reads = [t for step in later for t in step.given.values()]
        cut = any(head.start for head in heads)  # else layers of its own find it
        if not any(equal_tensors(made, t) for t in (*added, *(reads if cut else ()))):
            return None
        last = group[-1]
        paths = list(dict.fromkeys(head.path for head in heads))
        entries: Entries = {step.place: {next(iter(step.given)): False} for step in group}
        given = read, made, None, paths, entries, last.place
        return Unit("mix", last.path, *given, heads=heads)

    def _of_one(self, layer: Step, since: list[Step]) -> Unit:
        """Return the feed-forward that is one layer, and what bends that."""
        made = Unit("feed", layer.path, tokens_of(layer), layer.result, paths=[layer.path])
        made.entries, made.end = {layer.place: {next(iter(layer.given)): False}}, layer.place
        made.steps = [layer]
        for step in since:
            self._bends(step, made)
        self.known.append(made.out)
        return made

    def _goes_on(self, unit: Unit, group: list[Step], since: list[Step]) -> bool:
        """Say whether a part reads the sum of the stream and of what one layer returned."""
        if not is_one(group, self.shape) or unit.read.shape != self.shape:
            return False
        known, made = list(self.known), self._of_one(group[0], since).out
        self.known = known
        factors = factors_of(unit.read, [made, *known])
        return factors is not None and bool(factors[0] > 1e-3 and factors[1:].max() > 1e-3)

    def _inside(self, norm: Unit, step: Step, group: list[Step]) -> bool:
        """Say whether a norm is part of a part: of queries or keys, or of what heads mixed."""
        if not group or any(reads_of(step, one) for one in group):
            return bool(group)
        made = [*self.known, *(one.result for one in group if one.result is not None)]
        wide = any(one.mixes for one in group) and norm.read.shape == self.shape
        return wide and factors_of(norm.read, made) is None

    def _take_in(self, unit: Unit, step: Step, group: list[Step]) -> None:
        """Add layers before an attention to it, which make all that it gets of the same tokens."""
        given = [t for t in step.given.values() if t.ndim == 3]
        reads = [one for one in group if one.module is not None and one.given]
        first = tokens_of(reads[0]) if reads else None
        whole = len(reads) == len(group) and unit.kind == "mix" and not unit.adds
        made = all(any(equal_tensors(t, one.result) for one in reads) for t in given)
        alike = all(equal_tensors(tokens_of(one), first) for one in reads)
        if not whole or not made or not alike or not self._is_known(first):
            raise Unclear
        unit.read, unit.asked, unit.beside = first, None, False
        unit.paths = [*dict.fromkeys(one.path for one in group), *unit.paths]
        unit.entries = {one.place: {next(iter(one.given)): False} for one in reads}

    def _changes(self, step: Step) -> Iterator[Unit]:
        """Yield what a call changed in its place, of the tensors that others may read."""
        for slot, after in step.changed.items():
            if self._is_known(step.given[slot]):
                yield Unit("change", step.path, step.given[slot], after)

    def _bent(self, step: Step, group: list[Step]) -> Iterator[Unit]:
        """Yield an activation that stands between the parts."""
        given, made = next(iter(step.given.values()), None), step.result
        if given is None or made is None or not given.shape == made.shape == self.shape or group:
            return
        if not equal_tensors(given, made) and bends(step):
            yield Unit("bend", step.path, given, made, steps=[step])

    def _reads_tokens(self, step: Step) -> bool:
        """Say whether a call gets as many tokens as the block, or its context."""
        sizes = [{*t.shape[:2]} for t in self.known[:2]]
        given = [{*t.shape} for t in step.given.values() if t.ndim > 2]
        return not step.given or any(size <= one for size in sizes for one in given)

    def _bends(self, step: Step, last: Unit) -> bool:
        """Say whether a call bends what a part returned, and add it to that."""
        given = next(iter(step.given.values()), None)
        run, made = step.again or step.module, step.result
        if last.kind not in ("feed", "mix") or last.after is not None or given is None:
            return False
        if made is None or made.shape != given.shape or not bends(step):
            return False
        if step.order is not None and run is not None:
            run = InOrder(run, step.order)
        if not equal_tensors(given, last.out) or equal_tensors(made, given):
            return False
        last.after, last.out = run, made
        last.steps = [*last.steps, step]
        self.known.append(made)
        return True

    def _leads_out(self, step: Step, last: Unit, later: list[Step]) -> Unit | None:
        """Add the output layer of an attention to it and return its heads, None for another."""
        given = next(iter(step.given.values()), None)
        if last.kind != "mix" or not isinstance(step.module, nn.Linear) or given is None:
            return None
        if (
            step.result is None
            or step.result.shape != self.shape
            or not equal_tensors(given, last.out)
        ):
            return None
        reads = (next(iter(one.given.values()), None) for one in later
                 if not isinstance(one.module, nn.Dropout | nn.Identity))  # fmt: skip
        read = any(t is not None and equal_tensors(t, step.result) for t in reads)
        own = len(matrices(last.steps)) > 3 and not last.heads
        if last.adds or (own and read):
            return None  # it has one of its own
        heads = Unit("inner", last.name, last.read, last.out)
        last.out, last.end, last.name, last.after = step.result, step.place, step.path, None
        last.paths.append(step.path)
        self.known.append(step.result)
        return heads

    def _is_known(self, t: Tensor) -> bool:
        return any(t.shape == one.shape and torch.equal(t, one) for one in self.known)

    def _single(self, step: Step, alone: bool) -> Unit | None:
        """Return the part that one call is, None when it is none, or only a layer of one.

        Args:
            step: the call.
            alone: whether no layer was called before it that belongs to no part yet.
        """
        if step.weighs or step.result is None or step.result.ndim != 3:
            return None
        beside = is_norm(step) and self._is_context(step.result)
        if step.result.shape[-1] != self.e and not beside:
            return None
        given = [t for t in step.given.values() if t.ndim == 3]
        if not given:
            return None
        if is_norm(step):
            return self._norm(step, given[0])
        gate = gate_of(step, self.shape)
        if gate is not None:
            stream, other = (step.given[slot] for slot in gate)
            return Unit("gate", step.path, stream, step.result, other, [step.path])
        if step.result.shape != self.shape:
            if not step.mixes or not alone:
                return None
            return self._in_parcels(step, given[0])
        count = len(matrices([step]))
        whole = isinstance(step.module, nn.MultiheadAttention) or count > 1 or held(step) > 2
        whole |= alone
        if step.mixes and whole:
            return self._whole(step, "mix")
        return self._whole(step, "feed") if count > 1 else None

    def _is_context(self, t: Tensor) -> bool:
        return t.ndim == 3 and len(self.known) > 1 and t.shape == self.known[1].shape

    def _norm(self, step: Step, given: Tensor) -> Unit | None:
        if step.result is None or given.shape != step.result.shape:
            return None
        again = step.again or step.module
        if step.image is not None and given.shape == self.shape and again is not None:
            run = Imaged(again, step.image)
            return Unit("norm", step.path, given, step.result, run=run)
        if step.flat and again is not None:
            return Unit("norm", step.path, given, step.result, run=InOneRow(again))
        if step.order is not None and again is not None:
            again = InOrder(again, step.order)
        if given.shape != self.shape and not self._is_context(given):
            return None
        return Unit("norm", step.path, given, step.result, run=again)

    def _in_parcels(self, step: Step, given: Tensor) -> Unit | None:
        """Return the attention that gets known tokens in parcels; where they go the sums show."""
        same = {other: False for other, t in step.given.items() if equal_tensors(t, given)}
        if step.result is None or step.result.shape != given.shape:
            return None
        for read in reversed(self.known):
            parcels = parcels_of(given, read)
            if parcels is not None:
                path, out = step.path, parcels.joined(step.result)
                given = path, read, out, None, [path], {step.place: same}, step.place
                return Unit("mix", *given, parcels=parcels)
        return None

    def _whole(self, step: Step, kind: str) -> Unit:
        """Return the part that a module is."""
        tokens = {slot: t for slot, t in step.given.items() if t.ndim == 3}
        asks = next((s for s in tokens if s in ("query", "q", "x", "hidden_states")), None)
        read = tokens[next(iter(tokens)) if asks is None else asks]
        others = [t for t in tokens.values() if t.shape != read.shape or not torch.equal(t, read)]
        unknown = [t for t in others if t.shape[-1] == self.e and not self._is_known(t)]
        others = [t for t in others if self._is_known(t)]
        if any(t.shape != others[0].shape or not torch.equal(t, others[0]) for t in others):
            raise Unclear
        asked = others[0] if others else None
        unknown = [t for t in unknown if not _is_coded(t, asked)]
        slots = {}
        for slot, t in tokens.items():
            if t.shape == read.shape and torch.equal(t, read):
                slots[slot] = False
            elif asked is not None and (equal_tensors(t, asked) or _is_coded(t, asked)):
                slots[slot] = True
        entries: Entries = {step.place: slots}
        assert step.result is not None
        out, adds = step.result, False
        for first, second, whole in (one for inner in step.all() for one in inner.sums):
            if equal_tensors(whole, step.result):
                rest = second if equal_tensors(first, read) else first
                adds = equal_tensors(first, read) or equal_tensors(second, read)
                out = rest if adds else out
        place = step.place
        said = {"adds": adds, "beside": bool(unknown), "parcels": order_of([step], step)}
        return Unit(kind, step.path, read, out, asked, [step.path], entries, place, **said)

    def _ended(self, group: list[Step], since: list[Step]) -> Unit | None:
        """Return the part that the layers make, None as long as more of them belong to it."""
        last = group[-1]
        layered = [step for step in group if not step.weighs]
        layers = [step for step in layered if step.given]  # a table of places gets no tokens
        if last.weighs or not layers or last.result is None:
            return None
        first, entering = tokens_of(layers[0]), [s for s in layers if self._is_known(tokens_of(s))]
        if layers[0] not in entering and len(layers) == 1:
            entering = [layers[0]]  # it reads a sum: the first one of a part
        same = [s for s in layers if equal_tensors(tokens_of(s), first)]
        entering += [s for s in same if all(s is not one for one in entering)]
        if any(last is step for step in entering) or last.result.shape != self.shape:
            return None
        weighed = any(step.mixes for step in group)
        kind = "mix" if weighed else "feed"
        asked: Tensor | None = None
        read = first
        entries: Entries = {}
        for step in entering:
            slot, t = next(iter(step.given)), tokens_of(step)
            if equal_tensors(t, read):
                entries[step.place] = {slot: False}
            elif asked is None or equal_tensors(t, asked):
                asked = t
                entries[step.place] = {slot: True}
            else:
                raise Unclear
        paths = list(dict.fromkeys(step.path for step in with_between(layered, since)))
        order = order_of(entering, last)
        given = read, last.result, asked, paths, entries, last.place
        return Unit(kind, last.path, *given, parcels=order)


def _is_coded(t: Tensor, asked: Tensor | None) -> bool:
    """Say whether codes of places, alike in all samples, were added to what an attention asks."""
    if asked is None or t.shape != asked.shape or len(t) < 2:
        return False
    added = t - asked
    return bool((added - added[:1]).abs().max() <= 1e-9 * (1 + added.abs().max()))


def order_of(entering: list[Step], last: Step) -> Order | None:
    """Return the order in which all layers of a part get their tokens, and return them."""
    orders = [*(step.order for step in entering), last.gives]
    if any(order != orders[0] for order in orders):
        raise Unclear
    return orders[0]
