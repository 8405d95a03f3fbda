"""`diagnose_cache`: mistakes of a decoder that keeps the keys and values of earlier tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS
from attention_clinic.bugs.caching import BEAMS, CACHE, EMPTIED
from attention_clinic.engine.decoding import Decoder, lengths_of
from attention_clinic.engine.forms import State, simplest
from attention_clinic.engine.modes import Precision
from attention_clinic.engine.patient import Patient, check_positive, undisturbed
from attention_clinic.engine.report import Explanation, Report, explain
from attention_clinic.examine.emulator import Emulator, Schedule, plan_of

FIRST, MORE = 4, 3  # tokens of the first call, and after it
ORDER = [1, 2, 0]  # of the beams: going on from beam 1, 2 and 0


def diagnose_cache(
    model: nn.Module,
    *,
    cache: Callable[..., Any] | None = None,
    call: Callable[..., Any] | None = None,
    reorder: Callable[..., Any] | None = None,
    vocab_size: int | None = None,
) -> Report:
    """Compare decoding with a cache to the whole text at once, and name the mistakes in it.

    A copy of the model gets random weights. The scores of a text that is given in several calls
    must be those of the text given at once. Where they are not, each known mistake is put into
    the model's own run on the whole text, alone and with another; it is named only if it then
    gives what your cache gives.

    >>> print(diagnose_cache(model, cache=KeyValueCache))
    >>> print(diagnose_cache(transformers_model))

    Args:
        model: a causal model of ids (b, n), or of tokens (b, n, e); stays as it is.
        cache: makes an empty cache; with one argument it gets the model, to empty the cache that
            the model keeps itself. None where the first call returns a cache.
        call: how to call the model: call(model, ids, cache) or call(model, ids, cache, start),
            where start tokens came before; `cache` is None for a whole text without one. It
            returns scores, or scores and the cache for the next call. None reads the signature
            of `forward`.
        reorder: gives beams another order: reorder(cache, order) or reorder(model, cache, order)
            returns the cache that goes on, or changes it in place; None takes `reorder_cache` of
            the cache or `_reorder_cache` of the model.
        vocab_size: ids are below it; None finds it.

    Shape:
        ids     (b, n), integers
        result  (b, n, vocabulary), or that of the last token only

    Returns:
        A `Report`: print it, or ask for `healthy` and `explanations`.

    Raises:
        ValueError: not a module, no way to hand over a cache, or an exception inside the model.
    """
    if not isinstance(model, nn.Module):
        raise ValueError(
            f"diagnose_cache: model must be an nn.Module, got {type(model).__name__}. "
            "Build it first and pass the object."
        )
    for name, given in (("cache", cache), ("call", call), ("reorder", reorder)):
        if given is not None and not callable(given):
            raise ValueError(
                f"diagnose_cache: {name} must be a function, got {type(given).__name__}. "
                f"Pass {'the class itself: cache=KeyValueCache' if name == 'cache' else name}."
            )
    if vocab_size is not None:
        check_positive("diagnose_cache", vocab_size=vocab_size)
    with undisturbed():
        failed: Exception | None = None
        for single in (False, True):  # some compute in single precision only
            patient = Patient("diagnose_cache", model)
            if single:
                patient.single()
            decoder = Decoder(patient, call, cache, vocab_size, single)
            _can_be_called(decoder)
            try:
                return Examination(decoder, reorder).report()
            except Exception as error:
                failed = error
        assert failed is not None, "a second attempt has failed"
        raise failed


def _can_be_called(decoder: Decoder) -> None:
    """Raise when nothing says how the model takes a cache."""
    if not decoder.callable:
        raise ValueError(
            f"diagnose_cache: {decoder.patient.name} must take a cache, got forward"
            f"{signature(decoder.module.forward)}. Say how to call it: call=lambda model, ids, "
            "cache, start: model(ids, ...)."
        )


class Examination:
    """The examination of one model.

    Args:
        decoder: the model.
        reorder: as in `diagnose_cache`.
    """

    def __init__(self, decoder: Decoder, reorder: Callable[..., Any] | None) -> None:
        self.decoder, self.reorder = decoder, reorder
        with Precision() as precision:
            decoder.takes_ids()
        patient = decoder.patient
        patient.rough = bool(patient.rough or precision.single)
        self.b, self.c, self.n = 2, FIRST, FIRST + MORE
        self.ids = decoder.ids(self.b, self.n)
        self.lengths: list[int] = []
        self.untried: list[str] = []
        self.checked: list[str] = []
        self.whole = self._truth(self.ids, self.n)
        self.limit = self._limit()

    def _limit(self) -> float:
        """Return the largest difference that counts as equal."""
        patient = self.decoder.patient
        if patient.dtype == torch.float64 and not patient.rough:
            return 1e-9
        return 1e-5 if patient.dtype == torch.float64 else 1e-4

    def _truth(self, ids: Tensor, n: int) -> list[Tensor]:
        """Return what the model says of each token of a text, (b, vocabulary) each."""
        made = self.decoder.whole(ids)
        if made.ndim == 3 and made.shape[1] == n:
            return list(made.unbind(1))
        return [self._last(self.decoder.whole(ids[:, : t + 1])) for t in range(n)]

    def _last(self, scores: Tensor) -> Tensor:
        return scores[:, -1] if scores.ndim == 3 else scores

    def equal(self, made: Tensor, wanted: Tensor) -> bool:
        """Say whether two results are the same."""
        return made.shape == wanted.shape and self._gap(made, wanted) <= self.limit

    def _gap(self, made: Tensor, wanted: Tensor) -> float:
        gap = (made - wanted).abs().max() / (1 + wanted.abs().max())
        return float(gap) if gap.isfinite() else float("inf")

    # ------------------------------------------------------------------ what the model does

    def report(self) -> Report:
        """Examine, and say what was found."""
        name = self.decoder.patient.name
        failing = list(self._of_the_whole())
        if failing:
            return self._report(name, failing=failing)
        schedules = list(self._schedules())
        wrong = [schedule for schedule in schedules if not self._right(schedule)]
        explanations: list[Explanation] = []
        if wrong:
            explanations = self._explained(schedules)
            failing = [f"{s.words}, the scores are those of the whole text" for s in wrong]
        else:
            for found, said in (self._next_text(), self._beams()):
                explanations += [found] if found else []
                failing += [said] if said else []
        return self._report(name, explanations, failing if not explanations else [])

    def _report(
        self, name: str, explanations: list[Explanation] = (), failing: list[str] = ()
    ) -> Report:
        if self.decoder.patient.dtype == torch.float32:
            self.checked.append("in single precision")
        self.untried.append(f"texts of more than {self.n} tokens, padding, training")
        return Report(
            name,
            not explanations and not failing,
            tuple(explanations),
            tuple(failing),
            tuple(self.checked),
            tuple(dict.fromkeys(self.untried)),
            tolerance=self.limit,
        )

    def _of_the_whole(self) -> Iterator[str]:
        """Yield what must hold before a cache can be judged, and does not."""
        whole = torch.stack(self.whole, dim=1)
        if not whole.isfinite().all():
            yield "the scores of the whole text are numbers: they have NaN or infinity"
            return
        if not self.equal(torch.stack(self._truth(self.ids, self.n), dim=1), whole):
            yield "two calls in eval mode agree"
            return
        other = self.ids.clone()
        other[:, -1] = (other[:, -1] + 1) % self.decoder.vocab
        later = torch.stack(self._truth(other, self.n), dim=1)
        if not self.equal(later[:, :-1], whole[:, :-1]):
            yield "the past does not see the future, without a cache"
        other = self.ids.clone()
        other[:, self.c - 1] = (other[:, self.c - 1] + 1) % self.decoder.vocab
        earlier = torch.stack(self._truth(other, self.n), dim=1)
        if self._gap(earlier[:, self.c :], whole[:, self.c :]) < 100 * self.limit:
            yield "what is said of a token depends on those before it, without a cache"

    def _schedules(self) -> Iterator[Schedule]:
        """Yield what the model says with a cache."""
        singly = [self.c, *(self.c + i + 1 for i in range(MORE))]
        observed = self._decoded(self.ids, singly)
        words = f"{self.c} tokens and then one at a time"
        yield Schedule(f"with a cache, {words}", plan_of(singly), observed)
        self.checked.append(f"{words}, with a cache, against the whole text at once")
        try:
            observed = self._decoded(self.ids, [self.c, self.n])
        except Exception:
            self.untried.append("several new tokens in one call: it refuses them")
            return
        words = f"{self.c} tokens and then {MORE} at once"
        yield Schedule(f"with a cache, {words}", plan_of([self.c, self.n]), observed)
        self.checked[-1] += f"; {words}"

    def _decoded(
        self,
        ids: Tensor,
        ends: list[int],
        held: tuple[nn.Module, Any] | None = None,
        order: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Return the scores of each call with a cache, (b, rows, vocabulary)."""
        model, cache = held or self.decoder.fresh()
        made = []
        for start, end in zip([0, *ends], ends, strict=False):
            if start and order is not None:
                cache = self._reordered(model, cache, order)
                ids, order = ids[order], None
            try:
                scores, cache = self.decoder.step(model, ids[:, start:end], cache, start)
            except Exception as error:
                what = f"{end - start} tokens with a cache of {start}"
                raise self.decoder.complain(error, tuple(ids[:, start:end].shape), what) from error
            made.append(scores if scores.ndim == 3 else scores[:, None])
        if not self.lengths:
            self.lengths = lengths_of(cache, model, self.n)
        return tuple(made)

    def _right(self, schedule: Schedule) -> bool:
        return self._difference(schedule, torch.stack(self.whole, dim=1)) is not None

    def _difference(self, schedule: Schedule, rows: Tensor) -> float | None:
        """Return how far scores (b, n, vocabulary) are from those of a schedule, None if too far.

        A model may give the scores of the last token of each call only.
        """
        worst = 0.0
        for call, observed in zip(schedule.plan, schedule.observed, strict=True):
            wanted = rows[:, call.start : call.end][:, -observed.shape[1] :]
            if wanted.shape != observed.shape:
                return None
            worst = max(worst, self._gap(wanted, observed))
            if worst > self.limit:
                return None
        return worst

    # ----------------------------------------------------------------------------- names

    def _explained(self, schedules: list[Schedule]) -> list[Explanation]:
        """Return the mistakes that give what the model gives in all schedules."""
        whole = torch.stack(self.whole, dim=1)
        right = plan_of([self.c, self.n])
        emulator = Emulator(self.decoder, self.ids, right, lambda rows: self.equal(rows, whole))
        if not emulator.trusted:
            self.untried.append("names of mistakes: its attention is not found from outside")
            return []

        def difference(state: State) -> float | None:
            worst = 0.0
            for schedule, plan in zip(schedules, state["plans"], strict=True):
                rows = emulator.rows(plan)
                gap = None if rows is None else self._difference(schedule, rows)
                if gap is None:
                    return None
                worst = max(worst, gap)
            return worst

        plans = tuple(schedule.plan for schedule in schedules)
        found = simplest(CACHE, {"plans": plans, "lengths": self.lengths}, difference)
        made = []
        for ids, way in found.items():
            detail = way.path.detail
            if self._right(schedules[0]):
                detail = "; ".join(filter(None, (detail, "one token at a time it is right")))
            made.append(explain([BUGS[id] for id in ids], way.difference, detail))
        return made

    def _next_text(self) -> tuple[Explanation | None, str]:
        """Look whether a second text on the same model is free of the first."""
        if self.decoder.keeps_its_own and self.decoder.make is None and not self.decoder.counts:
            self.untried.append("a second text: cache=lambda model: ... empties its cache")
            return None, ""
        ends = [self.c, *(self.c + i + 1 for i in range(MORE))]
        ids = self.decoder.ids(self.b, self.n, seed=7)
        model, cache = self.decoder.fresh()
        self._decoded(self.ids, ends, (model, cache))
        try:
            observed = self._decoded(ids, ends, (model, self.decoder.empty(model)))
        except Exception as error:
            return None, f"a second text runs after the first: {type(error).__name__}"
        schedule = Schedule("", plan_of(ends), observed)
        if self._difference(schedule, torch.stack(self._truth(ids, self.n), dim=1)) is not None:
            self.checked.append("a second text after the first")
            return None, ""
        both = torch.cat([self.ids, ids], dim=1)
        try:
            rows = torch.stack(self._truth(both, 2 * self.n), dim=1)[:, self.n :]
        except Exception:
            rows = torch.zeros(())
        if rows.ndim == 3 and (gap := self._difference(schedule, rows)) is not None:
            return explain([BUGS[EMPTIED]], gap), ""
        return None, "a second text is free of the first, with a cache"

    def _beams(self) -> tuple[Explanation | None, str]:
        """Look whether the cache follows beams that change their places."""
        order = torch.tensor(ORDER)
        ids = self.decoder.ids(len(order), self.n, seed=3)
        ends = [self.c, self.n] if len(self.checked[0].split(";")) > 1 else [self.c, self.c + 1]
        n = ends[-1]
        ids = ids[:, :n]
        try:
            observed = self._decoded(ids, ends, order=order)
        except NoOrder:
            self.untried.append(
                "beams that change their places: reorder=lambda cache, order: ... tries them"
            )
            return None, ""
        plan = plan_of(ends)
        after = Schedule("", plan[1:], observed[1:])
        followed = ids[order]
        if self._difference(after, torch.stack(self._truth(followed, n), dim=1)) is not None:
            self.checked.append("beams that change their places")
            return None, ""
        for detail, back in (
            ("", torch.arange(len(order))),
            ("the order is taken backwards", order.argsort()),
        ):
            stale = torch.cat([ids[back, : self.c], followed[:, self.c :]], dim=1)
            gap = self._difference(after, torch.stack(self._truth(stale, n), dim=1))
            if gap is not None:
                return explain([BUGS[BEAMS]], gap, detail), ""
        found = self._half_stale(followed, order, after)
        if found is not None:
            return found, ""
        return None, "with a cache, beams that change their places keep their own past"

    def _half_stale(self, followed: Tensor, order: Tensor, after: Schedule) -> Explanation | None:
        """Look whether keys follow the beams and values do not, or the reverse."""
        n = followed.shape[1]
        whole = torch.stack(self._truth(followed, n), dim=1)
        plan = plan_of([self.c, n])
        emulator = Emulator(self.decoder, followed, plan, lambda rows: self.equal(rows, whole))
        others = tuple(order.argsort().tolist())
        for stale, words in (
            ("value", "keys follow, values do not"),
            ("key", "values follow, keys do not"),
        ):
            call = replace(plan[1], **{f"{stale}_rows": others})
            rows = emulator.rows((plan[0], call)) if emulator.trusted else None
            if rows is not None and (gap := self._difference(after, rows)) is not None:
                return explain([BUGS[BEAMS]], gap, words)
        return None

    def _reordered(self, model: nn.Module, cache: Any, order: Tensor) -> Any:
        """Return the cache after the beams changed their places."""
        if self.reorder is not None:
            given = (model, cache) if len(signature(self.reorder).parameters) > 2 else (cache,)
            made = self.reorder(*given, order)
            return cache if made is None else made
        if hasattr(model, "_reorder_cache"):
            return model._reorder_cache(cache, order)
        if hasattr(cache, "reorder_cache"):
            made = cache.reorder_cache(order)
            return cache if made is None else made
        raise NoOrder


class NoOrder(Exception):
    """Nothing says how beams change their places."""
