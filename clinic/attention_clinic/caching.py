"""`diagnose_cache`: bugs of a decoder that keeps the keys and values of earlier tokens."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from attention_clinic.capture import calling as known
from attention_clinic.capture.calling import MOST, positional
from attention_clinic.capture.module import (
    CallFailed,
    Patient,
    Precision,
    attempted,
    check_positive,
    first_line,
    held_tensors,
    place,
    undisturbed,
)
from attention_clinic.capture.trial import stated_integers, vocabulary
from attention_clinic.catalogue.forms import BUGS, State, simplest
from attention_clinic.catalogue.inference import CACHE, Emulation, Plan, plan_of
from attention_clinic.loading import Refused
from attention_clinic.report import Explanation, Report, explain

MORE, USUAL = 3, 7  # tokens after the first call, and of the shortest sequence
WINDOWS = {"window", "window_size", "sliding_window", "attention_window", "local_window"}
MAXIMA = {
    "block_size", "max_len", "max_length", "max_seq_len", "max_seq_length", "n_ctx", "seq_len",
    "context_length", "context_size", "n_positions", "max_position_embeddings",
}  # fmt: skip
HELD = known.CACHES | {"past_kv", "past_kvs", "kv_caches", "caches", "kvs", "presents"}
COUNTS = known.STARTS | known.POSITIONS
UserFunction = Callable[..., Any] | None


def diagnose_cache(
    model: nn.Module,
    *,
    cache: UserFunction = None,
    call: UserFunction = None,
    reorder: UserFunction = None,
    vocab_size: int | None = None,
) -> Report:
    """Compare decoding with a cache to the whole sequence at once, and name the bugs in it.

    A copy of the model gets random weights. A bug is named only if it gives what your cache gives
    when it is put into the model's own run on the whole sequence. Sequences of up to 256 tokens are
    tried: longer than each window that the model states, and as long as each maximum allows.

    >>> print(diagnose_cache(model, cache=KeyValueCache))

    Args:
        model: a causal model of ids (b, n); stays as it is.
        cache: makes an empty cache, or, given the model, empties the one that it keeps; None if
            the first call returns a cache.
        call: call(model, ids, cache) or call(model, ids, cache, start), after start tokens; `cache`
            is None for a whole sequence. It returns logits, or logits and the next cache.
        reorder: reorder(cache, order) or reorder(model, cache, order) returns the cache of beams in
            a new order, or changes it; None takes its `reorder_cache`.
        vocab_size: ids are below it; None finds it.

    Shape:
        result  (b, n, vocabulary), or that of the last token only

    Raises:
        ValueError: not a module, no way to pass a cache, or an error inside the model.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"diagnose_cache: model must be an nn.Module, got {type(model).__name__}. "
            "Build it first and pass the object."
        )
    for name, given in {"cache": cache, "call": call, "reorder": reorder}.items():
        if not (given is None or callable(given)):
            raise ValueError(f"diagnose_cache: {name} must be a function, got {given!r}. Pass one.")
    check_positive("diagnose_cache", vocab_size=1 if vocab_size is None else vocab_size)
    with undisturbed():
        decoder = Decoder(Patient("diagnose_cache", model), call, cache, vocab_size)
        if not (decoder.restarts or "use_cache" in decoder.parameters):
            raise ValueError(
                f"diagnose_cache: {decoder.patient.name} must take a cache, got forward"
                f"{signature(model.forward)}. Say how to call it: "
                "call=lambda model, ids, cache, start: model(ids, ...)."
            )
        return Examination(decoder, reorder).report()


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
        """Return the logits of a whole sequence (b, n), without a cache."""
        held = self.fresh() if self.name is None else (self.module, None)  # it may keep something
        return self.step(*held, ids, 0, False)[0]

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
    return torch.cat([made[mode.place(call)] for call in plan], dim=1)


def relative(made: Tensor, wanted: Tensor) -> float:
    """Return the largest difference relative to what is wanted; NaN equals only NaN."""
    if made.shape != wanted.shape or not torch.equal(made.isnan(), wanted.isnan()):
        return math.inf
    made, wanted = made.nan_to_num(0.0), wanted.nan_to_num(0.0)
    return float((made - wanted).abs().max() / (1 + wanted.abs().max()))


@dataclass(frozen=True, eq=False)
class Schedule:
    """A sequence, its logits at once (b, last tokens, vocabulary), and those of several calls."""

    ids: Tensor
    whole: Tensor
    why: str  # it has so many tokens
    words: str
    plan: Plan  # of a correct cache
    observed: list[Tensor]

    def gap(self, rows: Tensor) -> float:
        """Return how far logits (b, last tokens, vocabulary) are from those of the calls."""
        gaps = []
        for call, observed in zip(self.plan, self.observed, strict=True):
            stop = rows.shape[1] - self.plan[-1].end + call.end
            gaps.append(relative(rows[:, max(0, stop - observed.shape[1]) : stop], observed))
        return max(gaps)


class Examination:
    """The examination of one model."""

    def __init__(self, decoder: Decoder, reorder: UserFunction) -> None:
        self.decoder, self.reorder = decoder, reorder
        with Precision() as precision:
            decoder.whole(decoder.ids(2, 3))
        self.limit = 1e-5 if decoder.patient.rough or precision.single else 1e-9
        self.checked: list[str] = []
        self.untried: list[str] = []
        self.failing: list[str] = []

    def report(self) -> Report:
        """Examine, and report what was found."""
        stated = stated_integers(self.decoder.module, MAXIMA).items()
        maxima = {n: name for n, name in stated if n > MORE}  # fewer: of a table without a use
        lengths = {n: f"as long as {name}={n} allows" for n, name in maxima.items()}
        for n, name in stated_integers(self.decoder.module, WINDOWS).items():
            lengths[min(n + MORE + 2, *maxima, MOST + 1)] = f"longer than {name}={n}"
        usual = min((USUAL, *maxima))
        schedules = self._schedules(usual)
        for n, why in sorted(lengths.items()):
            if n > MOST:
                self.untried.append(f"a sequence {why}: at most {MOST} tokens are tried")
            elif n > USUAL and schedules:
                schedules += self._schedules(n, why)
        wrong = [s for s in schedules if s.gap(s.whole) > self.limit]
        found: list[Explanation] = []
        if not self.failing and wrong:
            found = self._explained(schedules, wrong)
        elif not self.failing:
            self._beams(usual)
        self.failing += (f"{s.words}, the logits are those of the whole sequence" for s in wrong)
        longest = max((s.plan[-1].end for s in schedules), default=usual)
        self.untried.append(f"sequences of more than {longest} tokens, padding, training")
        notes = () if found else tuple(self.failing), tuple(self.checked), tuple(self.untried)
        name, healthy = self.decoder.patient.name, not found and not self.failing
        return Report(name, healthy, tuple(found), *notes, tolerance=self.limit)

    def _truth(self, ids: Tensor) -> Tensor:
        """Return the logits of the last tokens of a sequence, (b, up to n, vocabulary)."""
        made, n = self.decoder.whole(ids), ids.shape[1]
        if made.ndim == 3 and made.shape[1] == n:
            return made
        rows = [self.decoder.whole(ids[:, : t + 1]) for t in range(max(0, n - MORE - 1), n)]
        return torch.stack([row[:, -1] if row.ndim == 3 else row for row in rows], dim=1)

    def _schedules(self, n: int, why: str = "") -> list[Schedule]:
        """Return what the model gives for n tokens with a cache; note what fails without one."""
        ids, c, made = self.decoder.ids(2, n), n - MORE, []
        what = f"a sequence {why}" if why else f"{n} tokens"
        try:
            whole, shorter = self._truth(ids), self._truth(ids[:, :-1])[:, -MORE:]
        except Refused:
            if not why:
                raise
            self.untried.append(f"{what}: the model refuses it")
            return []
        fails = {
            "the logits are numbers, not NaN or infinity": not whole.isfinite().all(),
            "two calls in eval mode agree": relative(self._truth(ids), whole) > self.limit,
            "no token depends on later ones": relative(shorter, whole[:, -MORE - 1 : -1])
            > self.limit,
        }
        if any(fails.values()):
            words = next(words for words, fail in fails.items() if fail)
            self.failing.append(f"{words}, without a cache, in {what}")
            return []
        model, cache = self.decoder.fresh()
        second = f"{MORE} at once{' in a second sequence' * self.decoder.restarts}"
        for ends, how in ((range(c, n + 1), "one at a time"), ((c, n), second)):
            words, plan = f"with a cache, {c} tokens and then {how}", plan_of(ends)
            try:
                observed = self._decoded(ids, plan, model, cache)
                made.append(Schedule(ids, whole, why, words, plan, observed))
            except Refused:
                if not (why or made):
                    raise
                self.untried.append(f"{words}, in {what}: the model refuses them")
            # the second sequence on the same model must be free of the first
            model, cache = self.decoder.fresh(model if self.decoder.restarts else None)
        said = f"{n} tokens{why and ', '}{why}, against the whole sequence at once"
        self.checked.append("; ".join((said, *(schedule.words for schedule in made))))
        return made

    def _decoded(self, ids: Tensor, plan: Plan, model: Any, cache: Any) -> list[Tensor]:
        """Return the logits of each call with a cache, (b, rows, vocabulary)."""
        made = []
        for call in plan:
            new = ids[:, call.start : call.end]
            logits, cache = self.decoder.step(model, cache, new, call.start)
            made.append(logits if logits.ndim == 3 else logits[:, None])
        return made

    def _explained(self, schedules: list[Schedule], wrong: list[Schedule]) -> list[Explanation]:
        """Return the bugs that give what the model gives in all schedules."""
        ordered = (*wrong, *(s for s in schedules if s not in wrong))
        lengths = {s: length for s in ordered if (length := self._length(s))}
        if not any(s in lengths for s in wrong):
            self.untried.append("names of bugs: its attention is not found from outside")
            return []

        def difference(state: State) -> float | None:
            worst = 0.0
            for (s, length), plan in zip(lengths.items(), state["plans"], strict=True):
                rows = emulated(self.decoder, s.ids, plan, length)
                worst = math.inf if rows is None else max(worst, s.gap(rows))
                if worst > self.limit:
                    return None
            return worst

        found = simplest(CACHE, {"plans": tuple(s.plan for s in lengths)}, difference)
        return [
            explain([BUGS[id] for id in ids], way.difference, way.path.detail)
            for ids, way in found.items()
        ]

    def _length(self, s: Schedule) -> int:
        """Return to which length a sequence is filled up, 0 if a correct plan fails there."""
        n = s.plan[-1].end
        sizes = {size for p in self.decoder.module.parameters() for size in p.shape}
        sizes |= {size // 2 for size in sizes}
        free = [size for size in range(n, n + 60) if size not in sizes]
        longer = [size for size in free if size > n + 2][:4]
        for length in (*longer, *(size for size in free[::-1] if size <= n + 2)):
            rows = emulated(self.decoder, s.ids, plan_of((n - 2, n)), length)
            if rows is not None and relative(rows[:, -s.whole.shape[1] :], s.whole) <= self.limit:
                return length
        return 0

    def _beams(self, n: int) -> None:
        """Note whether beams that change their order keep their own past."""
        order, c = torch.tensor([1, 2, 0]), n - MORE
        ids = self.decoder.ids(len(order), c + 1, seed=3)
        model, cache = self.decoder.fresh()
        cache = self.decoder.step(model, cache, ids[:, :c], 0)[1]
        cache = self.decoder.reordered(model, cache, order, self.reorder)
        if cache is NotImplemented:
            how = "reorder=lambda cache, order: ... tries them"
            self.untried.append(f"beams that change their order: {how}")
            return
        logits = self.decoder.step(model, cache, ids[order, c:], c)[0]
        wanted = self._truth(ids[order])[:, -1]
        right = relative(logits.reshape(wanted.shape), wanted) <= self.limit
        said = "beams that change their order keep their own past"
        (self.checked if right else self.failing).append(said)
