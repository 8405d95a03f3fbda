"""Call a model with a cache, and compute in one run what a cache, correct or not, would give.

A bug is put into the model's own run on the whole sequence: wherever scores are made or values are
summed, the rows of new tokens are replaced by what a plan says. One more sequence for each call has
its tokens at other positions; both copies of a token get the same result from every attention.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention_clinic.capture import calling as known
from attention_clinic.capture.calling import positional
from attention_clinic.capture.module import (
    CallFailed,
    Patient,
    attempted,
    first_line,
    held_tensors,
    place,
)
from attention_clinic.capture.tape import TorchDispatchMode
from attention_clinic.capture.trial import vocabulary

HELD = known.CACHES | {
    "past_kv", "past_kvs", "kv_caches", "caches", "kv", "kvs", "presents", "present", "state",
}  # fmt: skip
COUNTS = known.STARTS | known.POSITIONS
MASKED = -1e6  # scores below are those of masked keys
ATEN = torch.ops.aten
UserFunction = Callable[..., Any] | None


class Refused(ValueError):
    """A call that raised an error inside the model; its message is for the user."""


class Decoder:
    """A copy of a model that can be called on whole sequences and with a cache."""

    def __init__(
        self, patient: Patient, call: UserFunction, cache: UserFunction, vocab_size: int | None
    ) -> None:
        self.patient, self.call, self.make = patient, call, cache
        self.module: nn.Module = patient.module
        for t in (t for part in self.module.modules() for t in held_tensors(vars(part))):
            if t.dtype == torch.float32:  # such as the slots of a cache
                t.data = t.data.to(patient.dtype)
        self.vocab = min(vocab_size or vocabulary(self.module), 24)  # so many are enough
        self.parameters = known.parameters_of(self.module)
        self.name = next((n for n in self.parameters if n in HELD), None)
        # whether a second sequence may follow on the same model
        self.restarts = bool(call or self.name or cache or COUNTS & self.parameters.keys())
        self.takes_cache = self.restarts or "use_cache" in self.parameters
        # whether it does not run without one
        self.needs_cache = bool(cache and self.name) and known.is_needed(self.parameters[self.name])

    def ids(self, *shape: int, seed: int = 0) -> Tensor:
        return torch.randint(self.vocab, shape, generator=torch.Generator().manual_seed(seed))

    def fresh(self, model: nn.Module | None = None) -> tuple[nn.Module, Any]:
        """Return a model and an empty cache; None is a copy on which nothing has ever run."""
        model = model or copy.deepcopy(self.module, {id(p): p for p in self.module.parameters()})
        if self.make is None or self.make in (dict, list):
            return model, self.make and self.make()
        needs_model = any(map(known.is_needed, known.parameters_of(self.make).values()))
        return model, self.make(model) if needs_model else self.make()

    def whole(self, ids: Tensor) -> Tensor:
        """Return the logits of a whole sequence (b, n), without a cache if possible."""
        keeps = self.needs_cache or self.name is None  # then it may write into itself
        held = self.fresh() if keeps else (self.module, None)
        return self.step(*held, ids, 0, self.needs_cache)[0]

    @torch.no_grad()
    def step(
        self, model: nn.Module, cache: Any, ids: Tensor, start: int, cached: bool = True
    ) -> tuple[Tensor, Any]:
        """Return the logits of some tokens after `start` others, and the cache for the next."""
        try:
            if self.call is not None:
                more = (start,) if positional(self.call) > 3 else ()
                made = attempted(self.call, model, ids, cache if cached else None, *more)
            else:
                made = attempted(model, ids, **self._named(ids.shape[1], cache, start, cached))
            logits, after = attempted(_split, made)
        except CallFailed as failed:
            error, n = failed.error, ids.shape[1]
            what = f"{n} token{'s' * (n > 1)} with a cache of {start}" if cached else "a sequence"
            raise Refused(
                f"diagnose_cache: {self.patient.name} must run on {what}, ids of shape "
                f"{tuple(ids.shape)}, got {type(error).__name__}: {first_line(error)}"
                f"{place(error)}. Fix that line, or say how to call it: "
                "call=lambda model, ids, cache, start: model(ids, cache)."
            ) from error
        return logits.cpu(), cache if after is None else after

    def _named(self, n: int, cache: Any, start: int, cached: bool) -> dict[str, Any]:
        """Return the arguments besides the ids that forward takes in such a call."""
        named: dict[str, Any] = {}
        values = {"use_cache": cached, self.name: cache, **dict.fromkeys(known.STARTS, start)}
        for name, parameter in list(self.parameters.items())[1:]:
            by_position = name in known.POSITIONS
            given = known.positions(name, start, n) if by_position else values.get(name)
            wanted = cached and given is not None and not (by_position and self.name)
            if name == "use_cache" or known.is_needed(parameter) or wanted:
                named[name] = given
        return named

    def reordered(self, model: nn.Module, cache: Any, order: Tensor, reorder: UserFunction) -> Any:
        """Return the cache after the beams took a new order (b,), NotImplemented without a way."""
        if reorder is not None:
            made = reorder(*((model, cache) if positional(reorder) > 2 else (cache,)), order)
        elif hasattr(model, "_reorder_cache"):
            made = model._reorder_cache(cache, order)
        else:
            made = getattr(cache, "reorder_cache", lambda order: NotImplemented)(order)
        return cache if made is None else made


def _split(made: Any) -> tuple[Tensor, Any]:
    """Return the logits of a result, and the cache in it, None if there is none."""
    made = (made,) if isinstance(made, Tensor) else made
    named = dict(enumerate(made) if isinstance(made, tuple | list) else made.items())
    logits = next((v for v in named.values() if isinstance(v, Tensor) and v.ndim > 1), None)
    if logits is None:
        raise TypeError(f"it returned {type(made).__name__}, without logits (b, n, vocabulary)")
    others = [v for k, v in named.items() if v is not logits and (k in HELD or isinstance(k, int))]
    caches = [v for v in others if v is not None and not (isinstance(v, Tensor) and v.ndim < 4)]
    return logits, caches[-1] if caches else None


@dataclass(frozen=True)
class Call:
    """What the attention of one call with a cache computes."""

    start: int  # number of tokens before it
    end: int  # number of tokens after it
    shift: int = 0  # how far its tokens are from their own positions
    shifted: str = "qk"  # what is shifted: "q" for their queries, "k" for their keys
    mask: str = ""  # "corner" hides the keys after i from its token i, "open" masks no key before
    cut: int | None = None  # as many keys are left as the window of a layer has, and `cut` more


Plan = tuple[Call, ...]


def plan_of(ends: Iterable[int]) -> Plan:
    """Return what a correct cache does in calls that end after so many tokens."""
    ends = tuple(ends)
    return tuple(Call(start, end) for start, end in zip((0, *ends), ends, strict=False))


class Emulation(TorchDispatchMode):
    """Carry out a plan, for b samples of n tokens, in every attention; n is no size of a weight."""

    def __init__(self, plan: Plan, b: int, n: int) -> None:
        super().__init__()
        self.plan, self.b, self.n, self.batch = plan, b, n, b * (1 + len(plan))
        self.raw: Tensor | None = None  # scores before the mask, and a copy of them
        self.open: Tensor | None = None

    _should_skip_dynamo = classmethod(lambda cls: False)  # else its compiler is imported: seconds

    def place(self, call: Call, which: str = "") -> tuple[slice, slice]:
        """Return the samples and positions of a call's tokens: shifted if `which` are."""
        if which not in call.shifted:
            return slice(self.b), slice(call.start, call.end)
        first = self.b * (1 + self.plan.index(call))
        return slice(first, first + self.b), slice(call.start + call.shift, call.end + call.shift)

    def _front(self, t: Tensor, axis: int = 1) -> Tensor:
        """Return a view (batch, length, heads, ...) of a tensor (batch * heads, ..., ...)."""
        return t.unflatten(0, (self.batch, -1)).movedim(axis + 1, 1)

    def _read(self, t: Tensor, axis: int, which: str, calls: Sequence[Call]) -> Tensor:
        """Return queries, keys or values of calls as rows of the sequence, 0 elsewhere."""
        made = torch.zeros_like(t)
        for call in calls:
            rows = self._front(t, axis)[self.place(call, which)]
            self._front(made, axis)[: self.b, call.start : call.end] = rows
        return made

    def _product(self, func: Callable, t: Tensor, other: Tensor, scores: bool) -> Tensor:
        """Return scores of queries and keys, or sums of values, as the calls compute them."""
        made = func(t, other)
        for number, call in enumerate(self.plan, 1):
            if scores:
                keys = self._read(other, 2, "k", self.plan[:number])
                new = func(self._read(t, 1, "q", [call]), keys)
            else:  # a value comes from where the query of its token is; one cut off may be NaN
                new = func(t, self._read(other, 1, "q", self.plan[:number]).nan_to_num())
            rows = self._front(new)[: self.b, call.start : call.end]
            self._front(made)[: self.b, call.start : call.end] = rows
            if not scores:
                self._front(made)[self.place(call)] = rows
        return made

    def _masked(self, s: Tensor) -> Tensor:
        """Return masked scores (batch * heads, i, j) under the masks of the plan."""
        made, last = s.clone(), self.plan[-1].end
        window = int((self._front(s)[0, last - 1] > MASKED).any(0)[:last].sum())
        for call in self.plan:
            index = (slice(self.b), slice(call.start, call.end), ..., slice(call.end))
            part = self._front(made)[index]  # a view (b, i, heads, j)
            square = torch.ones(call.end - call.start, call.end).bool()
            if call.mask == "open" and self.open is not None:
                shown = square.tril(call.start)[:, None] & (part <= MASKED)
                part.copy_(torch.where(shown, self._front(self.open.view(s.shape))[index], part))
            elif call.mask == "corner":
                part.masked_fill_(square.triu(1)[:, None], -torch.inf)
            if call.cut is not None and window < last:
                part[..., : max(0, call.end - window - call.cut)] = -torch.inf
        return made

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        t, n, packet = next(iter(args), None), self.n, func.overloadpacket
        if packet is ATEN.bmm and t.shape[1] == n in (t.shape[2], args[1].shape[2]):
            made = self._product(func, *args, scores=t.shape[2] != n)
            if t.shape[2] != n:
                self.raw, self.open = made, made.clone()
            return made
        if packet in (ATEN._softmax, ATEN._safe_softmax) and t.shape[-2:] == (n, n):
            return func(self._masked(t.flatten(0, -3)).view(t.shape), *args[1:], **kwargs or {})
        if isinstance(t, Tensor) and t.ndim == 3 and t.shape[:2] == (self.batch, n):
            # only the last token of each sequence goes on, to save work: all are wanted here
            last = packet in (ATEN.select, ATEN.slice) and tuple(args[1:3]) == (1, -1)
            if packet is ATEN.index and len(args[1]) == 2 and args[1][0] is None:
                last = args[1][1].tolist() == [-1]
            if last:
                return t.clone()
        made = func(*args, **kwargs or {})
        used = self.raw is not None and any(a is self.raw for a in args)
        if used and made.numel() == self.raw.numel() and not (made <= MASKED).any():
            self.raw, self.open = made, made.clone()
        return made


def emulated(decoder: Decoder, ids: Tensor, plan: Plan, length: int) -> Tensor | None:
    """Return the logits (b, n, vocabulary) of ids filled up to a length, None if it refuses."""
    if any(not 0 <= call.start + call.shift <= length - call.end + call.start for call in plan):
        return None
    mode = Emulation(plan, len(ids), length)
    tokens = decoder.ids(mode.batch, length, seed=11)
    tokens[: len(ids), : ids.shape[1]] = ids
    for call in plan:
        tokens[mode.place(call)] = ids[:, call.start : call.end]
    try:
        with mode, sdpa_kernel(SDPBackend.MATH):
            made = decoder.whole(tokens)
    except Refused:  # a position beyond the model's own
        return None
    if made.ndim != 3 or made.shape[:2] != tokens.shape or mode.raw is None:
        return None
    return torch.cat([made[mode.place(call, "q")] for call in plan], dim=1)


def relative(made: Tensor, wanted: Tensor) -> float:
    """Return the largest difference relative to what is wanted; NaN equals only NaN."""
    if made.shape != wanted.shape or not torch.equal(made.isnan(), wanted.isnan()):
        return math.inf
    made, wanted = made.nan_to_num(0.0), wanted.nan_to_num(0.0)
    return float((made - wanted).abs().max() / (1 + wanted.abs().max()))
