"""`diagnose_cache`: bugs of a decoder that keeps the keys and values of earlier tokens."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.caching import decoding
from attention_clinic.caching.decoding import Decoder, Refused, UserFunction, emulated, relative
from attention_clinic.capture.calling import MOST
from attention_clinic.capture.module import Patient, Precision, check_positive, undisturbed
from attention_clinic.capture.trial import stated_integers
from attention_clinic.catalogue.forms import BUGS, State, simplest
from attention_clinic.catalogue.inference import BEAMS, CACHE
from attention_clinic.report import Explanation, Report, explain

MORE, USUAL = 3, 7  # tokens after the first call, and of the shortest sequence
WINDOWS = {
    "window", "window_size", "window_len", "window_length", "sliding_window", "sliding_window_size",
    "attention_window", "attn_window", "local_window", "local_window_size",
}  # fmt: skip
MAXIMA = {
    "block_size", "max_len", "max_length", "maxlen", "max_seq_len", "max_seq_length", "n_ctx",
    "max_sequence_length", "seq_len", "seq_length", "sequence_length", "ctx_len", "context_length",
    "context_size", "context_len", "max_positions", "n_positions", "max_position_embeddings",
}  # fmt: skip


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
            a new order, or changes it; None takes `reorder_cache` or `_reorder_cache`.
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
    first: Refused | None = None
    with undisturbed():
        for single in (False, True):  # some models compute in single precision only
            patient = Patient("diagnose_cache", model)
            patient.in_single(single)
            decoder = Decoder(patient, call, cache, vocab_size)
            if not decoder.takes_cache:
                raise ValueError(
                    f"diagnose_cache: {patient.name} must take a cache, got forward"
                    f"{signature(model.forward)}. Say how to call it: "
                    "call=lambda model, ids, cache, start: model(ids, ...)."
                )
            try:
                return Examination(decoder, reorder).report()
            except Refused as refused:
                first = first or refused
        raise first or Refused


@dataclass(frozen=True, eq=False)
class Schedule:
    """A sequence, its logits at once (b, last tokens, vocabulary), and those of several calls."""

    ids: Tensor
    whole: Tensor
    why: str  # it has so many tokens
    words: str
    plan: decoding.Plan  # of a correct cache
    observed: list[Tensor]

    def gap(self, rows: Tensor) -> float:
        """Return how far logits (b, last tokens, vocabulary) are from those of the calls."""
        gap = 0.0
        for call, observed in zip(self.plan, self.observed, strict=True):
            stop = rows.shape[1] - self.plan[-1].end + call.end
            gap = max(gap, relative(rows[:, max(0, stop - observed.shape[1]) : stop], observed))
        return gap


class Examination:
    """The examination of one model."""

    def __init__(self, decoder: Decoder, reorder: UserFunction) -> None:
        self.decoder, self.reorder = decoder, reorder
        with Precision() as precision:
            decoder.whole(decoder.ids(2, 3))
        rough = decoder.patient.rough or precision.single
        double = decoder.patient.dtype == torch.float64
        self.limit = (1e-5 if rough else 1e-9) if double else 1e-4
        self.checked = [] if double else ["in single precision"]
        self.untried: list[str] = []
        self.failing: list[str] = []

    def report(self) -> Report:
        """Examine, and report what was found."""
        windows = stated_integers(self.decoder.module, WINDOWS)
        maxima = stated_integers(self.decoder.module, MAXIMA)
        most = max(maxima, default=MOST + 1)
        lengths = {n: f"as long as {name}={n} allows" for n, name in maxima.items()}
        for n, name in windows.items():
            lengths[min(n + MORE + 2, most)] = f"longer than {name}={n}"
        usual = min((USUAL, *(n for n in maxima if n > MORE)))
        schedules = self._schedules(usual)
        for n, why in sorted(lengths.items()):
            if n > MOST:
                self.untried.append(f"a sequence {why}: at most {MOST} tokens are tried")
            elif n > USUAL and schedules:
                schedules += self._schedules(n, why)
        wrong = [s for s in schedules if s.gap(s.whole) > self.limit]
        found: list[Explanation] = []
        if not self.failing:
            found = self._explained(schedules, wrong) if wrong else self._beams(usual)
        self.failing += (f"{s.words}, the logits are those of the whole sequence" for s in wrong)
        most = max((s.plan[-1].end for s in schedules), default=usual)
        return Report(
            self.decoder.patient.name,
            not found and not self.failing,
            tuple(found),
            () if found else tuple(self.failing),
            tuple(self.checked),
            (*self.untried, f"sequences of more than {most} tokens, padding, training"),
            tolerance=self.limit,
        )

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
        fails = [] if whole.isfinite().all() else ["the logits are numbers, not NaN or infinity"]
        if relative(self._truth(ids), whole) > self.limit:
            fails.append("two calls in eval mode agree")
        if relative(shorter, whole[:, -MORE - 1 : -1]) > self.limit:
            fails.append("no token depends on later ones")
        self.failing += (f"{words}, without a cache, in {what}" for words in fails[:1])
        if fails:
            return []
        model, cache = self.decoder.fresh()
        second = f"{MORE} at once{' in a second sequence' * self.decoder.restarts}"
        for ends, how in ((range(c, n + 1), "one at a time"), ((c, n), second)):
            words = f"with a cache, {c} tokens and then {how}"
            try:
                observed = self._decoded(ids, ends, model, cache)
                made.append(Schedule(ids, whole, why, words, decoding.plan_of(ends), observed))
            except Refused:
                if not (why or made):
                    raise
                self.untried.append(f"{words}, in {what}: the model refuses them")
            # the second sequence on the same model must be free of the first
            model, cache = self.decoder.fresh(model if self.decoder.restarts else None)
        said = f"{n} tokens{why and ', '}{why}, against the whole sequence at once"
        self.checked.append("; ".join((said, *(schedule.words for schedule in made))))
        return made

    def _decoded(self, ids: Tensor, ends: Iterable[int], model: Any, cache: Any) -> list[Tensor]:
        """Return the logits of each call with a cache, (b, rows, vocabulary)."""
        made, start = [], 0
        for end in ends:
            logits, cache = self.decoder.step(model, cache, ids[:, start:end], start)
            made.append(logits if logits.ndim == 3 else logits[:, None])
            start = end
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

        why = [f"only in a sequence {wrong[0].why}"] * all(s.why for s in wrong)
        state = {"plans": tuple(s.plan for s in lengths)}
        made = []
        for ids, way in simplest(CACHE, state, difference).items():
            said = "; ".join(filter(None, (way.path.detail, *why)))
            made.append(explain([BUGS[id] for id in ids], way.difference, said))
        return made

    def _length(self, s: Schedule) -> int:
        """Return to which length a sequence is filled up, 0 if a correct plan fails there."""
        weights, n = list(self.decoder.module.parameters()), s.plan[-1].end
        sizes = {size // by for p in weights for size in p.shape for by in (1, 2)}
        longer = [size for size in range(n + 3, n + 60) if size not in sizes][:4]
        for length in (*longer, *(size for size in (n + 2, n + 1, n) if size not in sizes)):
            rows = emulated(self.decoder, s.ids, decoding.plan_of((n - 2, n)), length)
            if rows is not None and relative(rows[:, -s.whole.shape[1] :], s.whole) <= self.limit:
                return length
        return 0

    def _beams(self, n: int) -> list[Explanation]:
        """Return what is wrong after beams changed their order."""
        order, c = torch.tensor([1, 2, 0]), n - MORE
        ids = self.decoder.ids(len(order), c + 1, seed=3)
        model, cache = self.decoder.fresh()
        cache = self.decoder.step(model, cache, ids[:, :c], 0)[1]
        cache = self.decoder.reordered(model, cache, order, self.reorder)
        if cache is NotImplemented:
            how = "reorder=lambda cache, order: ... tries them"
            self.untried.append(f"beams that change their order: {how}")
            return []
        logits = self.decoder.step(model, cache, ids[order, c:], c)[0]
        gaps = []
        for past in (order, torch.arange(3), order.argsort()):  # correct, stale, backwards
            wanted = self._truth(torch.cat([ids[past, :c], ids[order, c:]], dim=1))[:, -1]
            gaps.append(relative(logits.reshape(wanted.shape), wanted))
        said = "beams that change their order keep their own past"
        (self.checked if gaps[0] <= self.limit else self.failing).append(said)
        stale = min(gaps[1:])
        return [explain([BUGS[BEAMS]], stale)] if self.failing and stale <= self.limit else []
