"""One run of a block, written down: every call inside it, with what it got and returned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic.engine.calls import first_tensor, tensor_for
from attention_clinic.engine.copies import in_type
from attention_clinic.engine.modes import Aside, Called, Visits
from attention_clinic.engine.parcels import ChannelsFirst, Order, TokensFirst
from attention_clinic.engine.recording import SOFTMAXES

NORMS = (F.layer_norm, F.rms_norm, F.group_norm)
CALLS = (*NORMS, F.glu)
BENDS = (
    *("relu", "gelu", "silu", "tanh", "sigmoid", "elu", "leaky_relu", "selu", "mish", "relu6"),
    *("hardswish", "hardtanh", "softplus", "celu", "threshold"),
)
TIMES = ("mul", "mul_", "__mul__", "__imul__", "__rmul__")
ADDS = ("add", "add_", "__add__", "__iadd__", "__radd__")
WEIGHS = (F.scaled_dot_product_attention, F.multi_head_attention_forward)
Place = tuple[str, int]  # the path of a module, and which of its calls
Slot = int | str  # the number, or the name, of an argument


def is_image_of_rows(t: Tensor, n: int, e: int) -> bool:
    """Say whether a tensor is an image (b, rows, columns, e) of n tokens."""
    return t.ndim == 4 and t.shape[3] == e and t.shape[1] * t.shape[2] == n


def laid(part: nn.Module, tokens: Tensor, before: Tensor) -> Tensor:
    """Return tokens (b, n, e) as they lay in what a call got.

    Args:
        part: what is called.
        tokens: what it is to get.
        before: what it got.
    """
    if isinstance(part, nn.Conv1d):
        return tokens.mT
    if before.ndim == 2 and len(before) == tokens[..., 0].numel():
        return tokens.flatten(0, 1)
    channels_last = is_image_of_rows(before, *tokens.shape[1:])
    if channels_last and not isinstance(part, nn.Conv2d):
        return tokens.unflatten(1, before.shape[1:3])
    if before.ndim == 4 and before[0, 0].numel() == tokens.shape[1]:
        return tokens.mT.unflatten(2, before.shape[2:])
    # heads are split before they are projected
    return tokens.unflatten(2, before.shape[2:]) if before.ndim > 3 else tokens


@dataclass
class Step:
    """One call.

    Args:
        place: which one.
        module: what was called, None for a function.
        given: the tensors that it got, as they were.
        result: what it returned, as it was; None when that begins with no tensor.
        inner: the calls inside it, in their order.
        weighs: whether it takes a softmax of scores itself.
        again: a function that does the same to another tensor, where no module does.
        changed: what it got and changed in its place, as that was afterwards.
        sums: what it adds itself: both terms, and the result.
        image: rows and columns, where tokens lie as an image in what it got.
        grid: the same, where the numbers of a token come last.
        flat: whether it gets the tokens of all samples in one row, (b n, e).
        order: the order in which it gets them, None for (b, n, e); `given` is laid so already.
        gives: the order in which it returns them.
    """

    place: Place
    module: nn.Module | None
    given: dict[Slot, Tensor]
    result: Tensor | None = None
    inner: list[Step] = field(default_factory=list)
    weighs: bool = False
    again: Callable[[Tensor], Tensor] | None = None
    changed: dict[Slot, Tensor] = field(default_factory=dict)
    sums: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)
    image: tuple[int, int] | None = None
    grid: tuple[int, int] | None = None
    flat: bool = False
    order: Order | None = None
    gives: Order | None = None

    @property
    def path(self) -> str:
        """The path of what was called."""
        return self.place[0]

    def all(self) -> Iterator[Step]:
        """Yield this call and all inside it."""
        yield self
        for step in self.inner:
            yield from step.all()

    @property
    def mixes(self) -> bool:
        """Whether tokens are weighed by tokens somewhere in it."""
        return any(step.weighs for step in self.all())


class Wires(Visits):
    """Listens to a block while it runs in this context.

    Args:
        block: the copy that will run.
        x: tokens that it gets, in rows or as an image.
        context: those of the context, or None.
    """

    def __init__(self, block: nn.Module, x: Tensor, context: Tensor | None = None) -> None:
        super().__init__(block)
        self.b, self.n, self.e = x.shape
        self.x, self.context = x, context
        self.turned = False  # whether the block itself gets (n, b, e)
        self.all = Step(("", 0), block, {0: x.clone()})  # all that is called
        self.running = [self.all]
        self.counts: Counter[str] = Counter()

    def rows(self, part: nn.Module | None, t: Tensor) -> Tensor:
        """Return tokens (b, n, e) of what lies channels first, of convolutions, and of images."""
        if isinstance(part, nn.Conv1d) and t.ndim == 3:
            return t.mT
        if self._is_flat(t):
            return t.unflatten(0, (self.b, self.n))
        if is_image_of_rows(t, self.n, self.e) and not self._is_image(part, t):
            return t.flatten(1, 2)
        return t.flatten(2).mT if self._is_image(part, t) else self.ordered(t)

    def order(self, part: nn.Module | None, t: Any) -> Order | None:
        """Return the order in which tokens lie, None for (b, n, e), or (n, b, e) of all of them."""
        if not isinstance(t, Tensor) or t.ndim != 3 or isinstance(part, nn.Conv1d):
            return None
        lengths = {one.shape[1] for one in (self.x, self.context) if one is not None}
        b, n = t.shape[:2] if self.turned else (t.shape[1], t.shape[0])
        if b == self.b and n in lengths - {b}:
            return TokensFirst()
        if t.shape[:2] == (self.b, self.e) and t.shape[2] in lengths - {self.e}:
            return ChannelsFirst()
        return None

    def ordered(self, t: Tensor) -> Tensor:
        """Return tokens as the block has them, (b, n, e), whatever order they lie in."""
        order = self.order(None, t)
        return t if order is None else order.joined(t)

    def _is_flat(self, t: Tensor) -> bool:
        """Say whether the tokens of all samples lie in one row."""
        return t.ndim == 2 and len(t) == self.b * self.n

    def unrolled(self, t: Tensor) -> Tensor:
        """Return a copy, (b, n, f) where tokens lay in one row, or in another order."""
        t = t.unflatten(0, (self.b, self.n)) if self._is_flat(t) else self.ordered(t)
        return t.clone()

    def copied(self, t: Tensor) -> Tensor:
        """Return a copy, as the block has its tokens."""
        return self.ordered(t).clone()

    def _is_image(self, part: nn.Module | None, t: Tensor) -> bool:
        if t.ndim != 4 or t[0, 0].numel() != self.n:
            return False
        return isinstance(part, nn.Conv2d) or t.shape[1] == self.e

    def arrives(self, path: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        """Begin a step below the one that runs."""
        slots = {**dict(enumerate(args)), **kwargs}
        if path == "" and len(self.running) == 1:
            turned = self.x.transpose(0, 1)
            self.turned = any(isinstance(t, Tensor) and t.shape == turned.shape != self.x.shape
                              and torch.equal(t, turned) for t in slots.values())  # fmt: skip
        given = {
            slot: self.rows(part, value.detach()).clone()
            for slot, value in slots.items()
            if isinstance(value, Tensor) and value.is_floating_point()
        }
        step = Step((path, self.counts[path]), part, given)
        images = (v for v in slots.values() if isinstance(v, Tensor) and self._is_image(part, v))
        rows = (v for v in slots.values() if isinstance(v, Tensor) and v.ndim == 4)
        grids = (v.shape[1:3] for v in rows if is_image_of_rows(v, self.n, self.e))
        step.grid = next(map(tuple, grids), None)
        step.flat = any(self._is_flat(v) for v in slots.values() if isinstance(v, Tensor))
        step.image = next((tuple(v.shape[2:]) for v in images), None)
        orders = [self.order(part, v) for slot, v in slots.items() if slot in given and v.ndim == 3]
        step.order = orders[0] if orders and orders.count(orders[0]) == len(orders) else None
        self.counts[path] += 1
        self.running[-1].inner.append(step)
        self.running.append(step)

    def root(self, result: Any) -> Step:
        """Return the call of the block, or of its layers where nobody calls the block itself."""
        called = [step for step in self.all.inner if step.module is not None]
        whole = bool(called) and all(step.path == "" for step in called)
        root = called[-1] if whole else self.all
        made = self.rows(root.module, tensor_for(result, self.x)).clone()
        if not whole or made.ndim == 3:
            root.result = made  # of several, the one that counts
        return root

    def leaves(self, path: str, part: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        """Write down what the step that runs has made."""
        step = self.running.pop()
        slots = {**dict(enumerate(args)), **kwargs}
        step.changed = {
            slot: self.rows(part, slots[slot].detach()).clone()
            for slot, before in step.given.items()
            if not torch.equal(self.rows(part, slots[slot]), before)
        }
        try:
            step.result = self.rows(part, first_tensor(result)).clone()
            step.gives = self.order(part, first_tensor(result))
        except TypeError:
            step.result = None

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        step = self.running[-1]
        name = getattr(func, "__name__", "")
        if (func in CALLS or name.rstrip("_") in BENDS) and args:
            rest = args[1:]
            path = f"{step.path} {name}".strip()
            rows = self.unrolled if func is not F.group_norm else self.copied
            order = self.order(None, args[0])
            heard = Step((path, self.counts[path]), None, {0: rows(args[0].detach())}, order=order)
            heard.again = lambda t: func(t.clone(), *rest, **kwargs)
            self.counts[path] += 1
            step.inner.append(heard)
            result = func(*args, **kwargs)
            heard.result = rows(result.detach())
            if not torch.equal(rows(args[0].detach()), heard.given[0]):
                heard.changed = {0: rows(args[0].detach())}
            return result
        if name in ADDS and len(args) == 2 and all(isinstance(t, Tensor) for t in args):
            return self._added(step, func, args, kwargs)
        if name in TIMES and len(args) == 2 and all(isinstance(t, Tensor) for t in args):
            return self._multiplied(step, func, args, kwargs)
        own = name in ("exp", "exp_") and bool(args) and self._are_scores(args[0])
        if func in WEIGHS or name in SOFTMAXES or own:  # a softmax that somebody wrote
            scores = args[0] if args else kwargs.get("input", kwargs.get("query"))
            if isinstance(scores, Tensor) and (scores.ndim > 2 or self._is_square(scores)):
                weighing = Step((f"{step.path} {name}", 0), None, {}, weighs=True)
                step.inner.append(weighing)
        return func(*args, **kwargs)

    def _are_scores(self, t: Tensor) -> bool:
        """Say whether a tensor holds a number for each two tokens."""
        return t.ndim > 2 and t.shape[-2:] == (self.n, self.n)

    def _is_square(self, scores: Tensor) -> bool:
        """Say whether scores are those of one head of one text."""
        return scores.shape == (self.n, self.n)

    def _multiplied(
        self, step: Step, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Write a product of two tensors of one shape down, which may be a gate."""
        given = dict(enumerate(self.unrolled(t.detach()) for t in args))
        result = func(*args, **kwargs)
        made = self.unrolled(result.detach())
        if given[0].shape == given[1].shape == made.shape and made.ndim > 2:
            path = f"{step.path} times".strip()
            made = Step((path, self.counts[path]), None, given, made)
            self.counts[path] += 1
            step.inner.append(made)
        return result

    def _added(self, step: Step, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        first, second = (t.detach().clone() for t in args)
        result = func(*args, **kwargs)
        first, second, whole = (self.rows(None, t) for t in (first, second, result.detach()))
        if first.shape == second.shape == whole.shape and whole.ndim == 3 and not kwargs:
            step.sums.append((first, second, whole.clone()))
        return result


class Reached(Exception):
    """The call whose result is wanted has returned.

    Args:
        result: what it returned.
    """

    def __init__(self, result: Tensor) -> None:
        super().__init__("reached")
        self.result = result


@dataclass
class Whole:
    """A block that is run to look at a part of it.

    Args:
        block: the copy.
        run: calls it on tokens and on a context, or None.
        context: what it is called with where nobody says another one, or None.
        turned: whether its parts get (n, b, e) where it is called with (b, n, e).
        straight: whether it calls parts by their forward.
    """

    block: nn.Module
    run: Callable[[nn.Module, Tensor, Tensor | None], object]
    context: Tensor | None = None
    turned: bool = False
    straight: bool = False

    def between(
        self,
        x: Tensor,
        context: Tensor | None,
        entries: dict[Place, dict[Slot, bool]],
        end: Place,
        parcels: Order | None = None,
    ) -> Tensor:
        """Return what a call inside returns when others get these tokens.

        Args:
            x: tokens.
            context: those of the context, or None.
            entries: the arguments that are exchanged: True for the context, False for x.
            end: the call whose result is returned.
            parcels: the order in which these calls get the tokens, and return them, or None.
        """
        counts: Counter[str] = Counter()
        ended: Counter[str] = Counter()
        before_it = Aside()

        def enter(path: str) -> Callable[..., Any]:
            def exchange(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
                slots = entries.get((path, counts[path]), {})
                counts[path] += 1
                values, named = list(args), dict(kwargs)
                if slots:
                    before_it.end()
                for slot, crossed in slots.items():
                    taken = context if crossed and context is not None else x
                    taken = taken if parcels is None else parcels.cut(taken)
                    taken = taken.transpose(0, 1) if self.turned else taken
                    before = values[slot] if isinstance(slot, int) else named[slot]
                    taken = laid(part, taken, before)
                    if isinstance(slot, int):
                        values[slot] = taken
                    else:
                        named[slot] = taken
                return tuple(values), named

            return exchange

        def leave(part: nn.Module, args: Any, result: Any) -> None:
            ended[end[0]] += 1
            if ended[end[0]] == end[1] + 1:
                raise Reached(first_tensor(result))

        if context is None and self.context is not None:
            context = self.context[:1].expand(len(x), -1, -1).to(x.dtype)
        handed = context
        if self.context is not None and context.shape[2] != self.context.shape[2]:
            # what the call asks was made of a context of another width
            handed = self.context[:1, :1].expand(*context.shape[:2], -1).to(x.dtype)
        in_type(self.block, x.dtype)
        handles = [
            self.block.get_submodule(path).register_forward_pre_hook(enter(path), with_kwargs=True)
            for path in {path for path, _ in entries}
        ]
        handles.append(self.block.get_submodule(end[0]).register_forward_hook(leave))
        try:
            before_it.begin()
            with Called(self.block) if self.straight else nullcontext():
                self.run(self.block, x, handed)
        except Reached as reached:
            made = reached.result
            if isinstance(self.block.get_submodule(end[0]), nn.Conv1d):
                made = made.mT
            if is_image_of_rows(made, *x.shape[1:]):
                made = made.flatten(1, 2)
            made = made.flatten(2).mT if made.ndim == 4 else made
            made = made.unflatten(0, x.shape[:2]) if made.ndim == 2 else made
            made = made if parcels is None else parcels.joined(made)
            return made.transpose(0, 1) if self.turned else made
        finally:
            before_it.end()
            for handle in handles:
                handle.remove()
        raise ValueError("the part was not reached")
