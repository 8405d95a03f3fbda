"""Attention anywhere inside a model: who asks whom is told anew while the model runs.

A model that keeps keys and values does in several calls what it does in one on the whole text. So
the model itself, run on the whole text, is the reference, and a mistake of its cache is put into
it here: wherever scores are made of queries and keys, or values are mixed, `Kernels` exchanges
what the rows of the new tokens get, as a `Plan` says.

A token may be needed as if it stood at another place than its own (a key that was turned twice
stands at twice its place). The model is therefore given several texts at once: in each of them
some tokens stand at other places. All copies of a token get the same result of every attention.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_clinic.engine import fused
from attention_clinic.engine.modes import Mode

Place = tuple[int, int]  # of a copy: number of the text, place in it


class Unfit(Exception):
    """A plan that cannot be carried out in this model."""


@dataclass(frozen=True)
class Call:
    """What the attention of one call with a cache does.

    Slots are what keys and values lie in, one behind the other.

    Args:
        start: number of tokens that came before.
        end: number of tokens after it.
        queries: the place at which each new token asks.
        keys: the place at which the key of each token was made.
        key_slots: the token whose key lies in each slot.
        value_slots: the token whose value lies in each slot.
        added: what is added to the scores, (end - start, end): -inf hides, log 2 counts twice.
        open: whether each new token also sees the new ones after it.
        empty: how many slots there are that hold zeros and are seen.
        later: whether only the layers after the first do all this.
        key_rows: the samples whose old keys each sample reads, () for its own.
        value_rows: those whose old values it reads.
    """

    start: int
    end: int
    queries: tuple[int, ...]
    keys: tuple[int, ...]
    key_slots: tuple[int, ...]
    value_slots: tuple[int, ...]
    added: Tensor | None = None
    open: bool = False
    empty: int = 0
    later: bool = False
    key_rows: tuple[int, ...] = ()
    value_rows: tuple[int, ...] = ()


def right_call(start: int, end: int) -> Call:
    """Return what a right cache does."""
    tokens = tuple(range(end))
    return Call(start, end, tokens[start:], tokens, tokens, tokens)


Plan = tuple[Call, ...]


@dataclass
class Texts:
    """Where the copies of the tokens stand, one dict from place to token for each text.

    The first text is the text itself.
    """

    length: int
    held: list[dict[int, int]] = field(default_factory=list)

    def place(self, token: int, place: int, apart: bool = False) -> Place:
        """Return where a copy of a token stands at a place; put one there if there is none.

        Args:
            token: its number.
            place: where it must stand.
            apart: True wants a copy beside the text itself.
        """
        if place >= self.length:
            raise Unfit(f"place {place} of {self.length}")
        for number, text in enumerate(self.held):
            if text.get(place) == token and not (apart and number == 0):
                return number, place
        for number, text in enumerate(self.held):
            if place not in text and number:
                text[place] = token
                return number, place
        self.held.append({place: token})
        return len(self.held) - 1, place


class Kernels(Mode):
    """Carry out a plan in every attention of a model that runs on several texts.

    Args:
        plan: of the calls.
        samples: how many samples a text has, b.
        length: how many tokens each text has; no other size of the model may be the same.
        apart: whether the new tokens ask from a copy of their own even at their own places.
    """

    def __init__(self, plan: Plan, samples: int, length: int, apart: bool = False) -> None:
        super().__init__()
        self.plan, self.b, self.n = plan, samples, length
        self.texts = Texts(length, [{t: t for t in range(plan[-1].end)}])
        place = self.texts.place
        asked = apart and [call.start > 0 for call in plan]
        self.queries = [
            [
                place(t, p, bool(asked) and call.start > 0)
                for t, p in zip(range(call.start, call.end), call.queries, strict=True)
            ]
            for call in plan
        ]
        self.keys = [
            [place(t, p, bool(asked) and t >= plan[0].end) for t, p in enumerate(call.keys)]
            for call in plan
        ]
        # a value comes from where its token asks: only keys are turned by their places
        home = {
            t: at
            for call, row in zip(plan, self.queries, strict=True)
            for t, at in zip(range(call.start, call.end), row, strict=True)
        }
        self.home = [home[t] for t in range(plan[-1].end)]
        self.batch = len(self.texts.held) * samples
        self.layer = 0
        self.raw: Tensor | None = None
        self.uses = [0, 0, 0]

    def ids(self, tokens: Tensor, filler: Tensor) -> Tensor:
        """Return all texts, (batch, length).

        Args:
            tokens: the text itself, (b, n).
            filler: what stands where no token must, (batch, length).
        """
        made = filler[: self.batch].clone()
        for number, text in enumerate(self.texts.held):
            for place, token in text.items():
                made[number * self.b : (number + 1) * self.b, place] = tokens[:, token]
        return made

    def rows(self, y: Tensor) -> Tensor:
        """Return what the model says of each token, (b, n, ...), of its result for all texts."""
        return torch.stack(
            [y[text * self.b : (text + 1) * self.b, place] for text, place in self.home], dim=1
        )

    # ------------------------------------------------------------------------ axes

    def _seen(self, t: Tensor, axis: int) -> Tensor:
        """Return a view (batch, length, ...) of a tensor; `axis` is that of the tokens."""
        axis %= t.ndim
        for number, size in enumerate(t.shape):
            if number != axis and size == self.batch:
                return t.movedim((number, axis), (0, 1))
        if axis != 0 and t.shape[0] % self.batch == 0:
            return t.unflatten(0, (self.batch, -1)).movedim(axis + 1, 1)
        raise Unfit("no axis of the samples")

    def _back(self, seen: Tensor, like: Tensor, axis: int) -> Tensor:
        axis %= like.ndim
        for number, size in enumerate(like.shape):
            if number != axis and size == self.batch:
                return seen.movedim((0, 1), (number, axis))
        return seen.movedim(1, axis + 1).flatten(0, 1)

    def _moved(
        self,
        t: Tensor,
        axis: int,
        slots: Sequence[int],
        at: Sequence[Place],
        rows_of_old: tuple[Sequence[int], int] = ((), 0),
    ) -> Tensor:
        """Return t with what lies at the places `at` put into the slots of the text itself.

        The first slots may come from other samples: `rows_of_old` holds these and how many.
        """
        seen = self._seen(t, axis)
        own, (others, count) = torch.arange(self.b), rows_of_old
        old = torch.tensor(others) if others else own
        text = torch.tensor([number for number, _ in at])
        place = torch.tensor([place for _, place in at])
        rows = torch.stack([old if i < count else own for i in range(len(at))], dim=1)
        made = seen.clone()
        made[own[:, None], torch.tensor(slots)] = seen[text * self.b + rows, place]
        return self._back(made, t, axis)

    def _given(self, into: Tensor, new: Tensor, call: Call, axis: int) -> Tensor:
        """Return `into` with the rows of the call taken from `new`."""
        made, seen = self._seen(into, axis).clone(), self._seen(new, axis)
        made[: self.b, call.start : call.end] = seen[: self.b, call.start : call.end]
        return self._back(made, into, axis)

    def _active(self, call: Call) -> bool:
        return not (call.later and self.layer == 0)

    # ------------------------------------------------------------------------ the three steps

    def scores(self, func: Callable, q: Tensor, k: Tensor, axes: tuple[int, int, int]) -> Tensor:
        """Return the scores; `axes` are those of the tokens in q, in k and of the rows."""
        self.uses[0] += 1
        made = func(q, k)
        for call, queries, keys in zip(self.plan, self.queries, self.keys, strict=True):
            if not self._active(call):
                right = right_call(call.start, call.end)
                queries = [(0, p) for p in right.queries]
                keys, slots = [(0, p) for p in right.keys], right.key_slots
            else:
                slots = call.key_slots
            asked = self._moved(q, axes[0], range(call.start, call.end), queries)
            old = (call.key_rows, call.start)
            held = self._moved(k, axes[1], range(len(slots)), [keys[t] for t in slots], old)
            made = self._given(made, func(asked, held), call, axes[2])
        self.raw = made
        return made

    def weights(self, softmax: Callable, s: Tensor) -> Tensor:
        """Return the weights of scores (..., i, j)."""
        self.uses[1] += 1
        seen = self._seen(s, -2).clone()
        if any(call.open and self._active(call) for call in self.plan):
            factor = self._factor(s)
            raw = self._seen(self.raw, -2) * factor
        empties = []
        for call in self.plan:
            if not self._active(call):
                continue
            rows = slice(call.start, call.end)
            if call.open:
                for row in range(call.start, call.end):
                    seen[: self.b, row, ..., row + 1 : call.end] = raw[
                        : self.b, row, ..., row + 1 : call.end
                    ]
            if call.added is not None:
                added = call.added.to(s)
                wide = (len(added), *(1,) * (seen.ndim - 3), added.shape[-1])
                part = seen[: self.b, rows, ..., : call.end]
                seen[: self.b, rows, ..., : call.end] = part + added.view(wide)
            if call.empty:
                empties.append((rows, call.empty))
        made = softmax(self._back(seen, s, -2))
        if empties:
            shares = self._seen(made, -2).clone()
            for rows, empty in empties:
                total = seen[: self.b, rows].logsumexp(-1, keepdim=True)
                shares[: self.b, rows] = (
                    shares[: self.b, rows]
                    * (total - torch.logaddexp(total, torch.tensor(float(empty)).to(s).log())).exp()
                )
            made = self._back(shares, s, -2)
        return made

    def _factor(self, s: Tensor) -> float:
        """Return the number that the scores were multiplied by on their way to the softmax."""
        if self.raw is None or self.raw.shape != s.shape:
            raise Unfit("the scores are not found")
        shown = s.isfinite() & (s > -1e6) & (self.raw.abs() > 1e-3)
        ratio = s[shown] / self.raw[shown]
        if not len(ratio) or (ratio - ratio[0]).abs().max() > 1e-4 * ratio[0].abs():
            raise Unfit("the scores are changed on their way")
        return float(ratio.median())

    def mixed(self, func: Callable, w: Tensor, v: Tensor, axes: tuple[int, int]) -> Tensor:
        """Return the values mixed by weights; `axes` are those of the tokens in v, of the rows."""
        self.uses[2] += 1
        made = func(w, v)
        for call in self.plan:
            slots = call.value_slots if self._active(call) else range(call.end)
            old = (call.value_rows, call.start)
            held = self._moved(v, axes[0], range(len(slots)), [self.home[t] for t in slots], old)
            made = self._given(made, func(w, held), call, axes[1])
        seen = self._seen(made, axes[1]).clone()
        for number, text in enumerate(self.texts.held):
            for place, token in text.items():
                seen[number * self.b : (number + 1) * self.b, place] = seen[: self.b, token]
        self.layer += 1
        return self._back(seen, made, axes[1])

    def fused(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """Do what the fused kernel does, in the three steps."""
        given = fused.given(args, kwargs)
        (k, v), factor = fused.shared(given), fused.scale(given)
        s = self.scores(lambda q, k: q @ k.mT * factor, given["query"], k, (-2, -2, -2))
        s = fused.masked(s, given)
        w = self.weights(lambda s: s.softmax(-1), s)
        return self.mixed(torch.matmul, w, v, (-2, -2))

    # ------------------------------------------------------------------------ what is called

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is F.scaled_dot_product_attention:
            q, k = (args[i] if len(args) > i else kwargs[n] for i, n in ((0, "query"), (1, "key")))
            if q.shape[-2] == k.shape[-2] == self.n:
                return self.fused(args, kwargs)
            return func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name in ("matmul", "__matmul__", "bmm", "__rmatmul__") and len(args) == 2:
            return self._product(func, *args)
        if name == "baddbmm" and len(args) == 3:
            return self._product(lambda a, b: func(args[0], a, b, **kwargs), *args[1:])
        if name == "einsum" and isinstance(args[0], str):
            operands = args[1] if isinstance(args[1], list | tuple) else args[1:]
            if len(operands) == 2:
                return self._einsum(func, args[0], *operands)
        if name in ("softmax", "_softmax") and args and self._square(args[0]):
            return self.weights(lambda s: func(s, *args[1:], **kwargs), args[0])
        if name == "__getitem__" and isinstance(args[0], Tensor) and self._last(*args):
            return args[0]
        return func(*args, **kwargs)

    def _square(self, t: Tensor) -> bool:
        return t.ndim > 2 and t.shape[-2:] == (self.n, self.n)

    def _product(self, func: Callable, a: Tensor, b: Tensor) -> Tensor:
        if a.ndim > 2 and b.ndim > 2:
            if a.shape[-2] == self.n == b.shape[-1] and self.n not in (a.shape[-1], b.shape[-2]):
                return self.scores(func, a, b, (-2, -1, -2))
            if self._square(a) and b.shape[-2] == self.n:
                return self.mixed(func, a, b, (-2, -2))
        return func(a, b)

    def _einsum(self, func: Callable, equation: str, a: Tensor, b: Tensor) -> Tensor:
        sides, _, made = equation.replace(" ", "").partition("->")
        first, _, second = sides.partition(",")

        def long(letters: str, t: Tensor) -> str:
            if "." in letters or len(letters) != t.ndim:
                return ""
            return "".join(c for c, s in zip(letters, t.shape, strict=True) if s == self.n)

        ours, theirs = long(first, a), long(second, b)

        def run(a: Tensor, b: Tensor) -> Tensor:
            return func(equation, a, b)

        if len(ours) == len(theirs) == 1 and ours in made and theirs in made and ours != theirs:
            if made.index(ours) < made.index(theirs):
                axes = (first.index(ours), second.index(theirs), made.index(ours))
                return self.scores(run, a, b, axes)
            axes = (second.index(theirs), first.index(ours), made.index(theirs))
            return self.scores(lambda q, k: run(k, q), b, a, axes)
        if len(ours) == 2 and len(theirs) == 1 and theirs in ours:
            row = ours.replace(theirs, "")
            if row in made and theirs not in made:
                return self.mixed(run, a, b, (second.index(theirs), made.index(row)))
        return run(a, b)

    def _last(self, t: Tensor, index: Any) -> bool:
        """Say whether only the last token of each text is taken, to save work."""
        if t.ndim != 3 or t.shape[:2] != (self.batch, self.n) or not isinstance(index, tuple):
            return False
        if len(index) < 2 or index[0] not in (slice(None),):
            return False
        at = index[1]
        return (
            (isinstance(at, int) and at == -1)
            or (isinstance(at, list) and at == [-1])
            or (isinstance(at, slice) and at == slice(-1, None))
        )
