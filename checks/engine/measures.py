"""Compare an experiment: it must measure what theory, or our own experiment, predicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import isclose
from statistics import fmean, stdev
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from checks.engine.answer import Wrong, noticed, written
from checks.engine.call_tracer import CallTracer
from checks.engine.calls import Crashed, attempt, name_of, names_of, naming, run
from checks.engine.compare import kind, number
from checks.engine.explain import Mistakes, first_cause, versions
from checks.engine.guesses import too_far
from checks.engine.message import Message, as_message, message

RUNS = 8  # repetitions that show how far one run is off by chance
RANDOM = ("randn", "rand", "normal", "normal_", "randn_like", "rand_like", "randint", "uniform_")


@naming
def same_measure(
    answer: Callable,
    want: Callable[..., float],
    cases: Sequence[tuple[Any, ...]],
    *,
    what: Message | str,
    within: float = 0.1,
    mistakes: Mistakes | None = None,
    draws: bool = True,
) -> Message:
    """Compare an experiment with what theory, or our own experiment, predicts.

    Args:
        answer: the student's function; returns one number.
        want: takes the same arguments, returns the right number.
        cases: the arguments of each call.
        what: what is measured, such as "the variance of such scores".
        within: largest relative error that counts as right.
        mistakes: tempting wrong experiments by their cause, with their numbers; one is named only
            when it gives the numbers of the answer in every case.
        draws: whether the answer must draw random numbers itself: a formula is not an experiment.

    Raises:
        NotYet: the stub.
        Wrong: not a number, a number outside the margin, or one without a measurement.
    """
    written(answer)
    what = as_message(what)
    mistakes = versions(mistakes)
    names = names_of(answer, want)
    for args in cases:
        with CallTracer() as tracer:
            raw = run(answer, args, names)
        called = f"{name_of(answer)}({', '.join(map(repr, args))})"
        if number(raw) is None:
            raise Wrong(message("measure-is-no-number", call=called, got=kind(raw)))
        got, right = number(raw), want(*args)

        def why(got=got, right=right) -> Message:
            for cause, mistake in mistakes:
                if all(_gives(answer, mistake, case, within) for case in cases):
                    return cause
            tried = (answer, want, cases, within)
            finders = (partial(find, *tried) for find in (_uniform, _scattered, _constant))
            return first_cause(*finders) or too_far(got, right)

        if not abs(got - right) <= within * abs(right):
            said = {"got": float(got), "want": float(right), "within": within}
            raise Wrong(message("measure-differs", call=called, name=what, **said), why)
        drawn = any(tracer.called[name] for name in RANDOM)
        formula = isclose(got, right, rel_tol=1e-12)  # chance never hits it
        if draws and formula:
            raise Wrong(message("nothing-measured", call=called))
        if draws and not drawn and number(run(answer, args, names)) == got:
            noticed(Wrong(message("nothing-measured", call=called)))
    return message("measures-agree", name=what, within=within, cases=len(cases))


def _gives(answer: Callable, mistake: Callable[..., float], args: tuple, within: float) -> bool:
    """Say whether an experiment gives what a mistake gives: a single case may be chance."""
    wrong = mistake(*args)
    try:
        return bool(abs(attempt(answer, *args) - wrong) <= within * abs(wrong))
    except Crashed:
        return False


class Drawing(TorchFunctionMode):
    """Change how an answer draws: normal numbers for uniform ones, different ones each time.

    Args:
        normal: whether torch.rand draws what torch.randn would.
    """

    def __init__(self, normal: bool = False):
        super().__init__()
        self.normal = normal

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in RANDOM and not self.normal:
            kwargs = {**kwargs, "generator": None}  # its seed would give the same again
        if self.normal and func in (torch.rand, torch.rand_like):
            func = {torch.rand: torch.randn, torch.rand_like: torch.randn_like}[func]
        return func(*args, **kwargs)


def _uniform(answer: Callable, want: Callable, cases: Sequence, within: float) -> Message | None:
    """Say that torch.randn instead of torch.rand makes the experiment right."""
    for args in cases:
        with Drawing(normal=True):
            got = number(attempt(answer, *args))
        if not abs(got - want(*args)) <= within * abs(want(*args)):
            return None
    return message("uniform-for-normal")


def _constant(answer: Callable, want: Callable, cases: Sequence, _within: float) -> Message | None:
    """Say that the answer does not depend on its arguments."""
    found = {number(attempt(answer, *args)) for args in cases}
    if len(found) > 1 or len(cases) == 1:
        return None
    return message("same-for-all-sizes", side=too_far(found.pop(), want(*cases[0])))


def _scattered(answer: Callable, want: Callable, cases: Sequence, within: float) -> Message | None:
    """Say that an experiment is right on average, but that one run is not enough."""
    first = []
    for args in cases:
        with Drawing():
            runs = [float(number(attempt(answer, *args))) for _ in range(RUNS)]
        first = first or runs[:3]
        right, spread = want(*args), stdev(runs)
        off = abs(fmean(runs) - right)
        if off > 3 * spread / RUNS**0.5 or spread < within * abs(right) / 4:
            return None
    return message("too-few-samples", runs=first)
