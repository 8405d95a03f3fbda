"""Compare a function: shape, dtype, values, gradients, shortcuts and loops, on random sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any

import torch

from attention_clinic import Report
from checks.engine import explain
from checks.engine.answer import Wrong, noticed, written
from checks.engine.call_tracer import CallTracer
from checks.engine.calls import names_of, naming, run
from checks.engine.cases import Case
from checks.engine.compare import aloud, copied, difference, kind, same_plain, tensors
from checks.engine.gradients import same_gradients
from checks.engine.message import Message, message
from checks.engine.shortcuts import Inputs, Loops, Shortcuts, allowed, check_loops


@dataclass(frozen=True)
class Trials:
    """The inputs with which a function is tried.

    Args:
        number: of sizes; the last one runs in single precision.
        ones: whether to try axes of size 1 as well.
        counted: different inputs for finding loops, where the usual ones would not fit into
            memory: each letter is 21 or more there.
    """

    number: int = 4
    ones: bool = False
    counted: Inputs | None = None


@naming
def same_function(
    answer: Callable,
    reference: Callable,
    inputs: Inputs,
    *,
    mistakes: explain.Mistakes | None = None,
    clinic: Callable[[Callable], Report] | None = None,
    forbidden: Shortcuts | None = None,
    loops: Loops = "free",
    gradients: bool = True,
    trials: Trials = Trials(),
) -> Message:
    """Compare a function with the right one on random sizes: shape, dtype, values, gradients.

    Args:
        answer: the student's function.
        reference: the right one.
        inputs: makes the arguments of one call from a `Case`.
        mistakes: tempting wrong versions by their cause. The one with the result of the answer is
            named.
        clinic: examines a wrong answer with one of the tools of `attention_clinic`.
        forbidden: names of functions that the answer may not call, and what to do instead.
        loops: "asked" when the exercise requires the loop, "forbidden" when the answer
            may not loop over an axis, "free" when both are right.
        gradients: whether to also compare the gradients of all inputs.
        trials: how many sizes, and which.

    Returns:
        What was compared, for the verdict.

    Raises:
        NotYet: the stub.
        Wrong: anything but the right function.
    """
    written(answer)
    if not callable(answer):
        raise Wrong(message("function-is-asked", got=kind(answer)))
    names = names_of(answer, reference)
    causes = partial(_causes, answer, reference, inputs, explain.versions(mistakes), clinic)
    floats = False
    for trial in range(trials.number):
        args = inputs(Case(trial, torch.float32 if trial == trials.number - 1 else torch.float64))
        here = names[: len(args)]
        tracer = CallTracer(deep=bool(forbidden))
        want = _same_results(answer, reference, args, here, causes, tracer)
        allowed(tracer, forbidden or {}, answer, reference)
        floats = floats or any(t.is_floating_point() for t in tensors((want,)))
        if trial == 0 and gradients and floats:
            same_gradients(answer, reference, args, here)
    if trials.ones:
        _at_size_one(answer, reference, inputs, names)
    check_loops(answer, trials.counted or inputs, loops)
    if not any(True for _ in tensors((want,))):
        return message("results-agree", trials=trials.number)
    compared = "values-and-gradients-agree" if gradients and floats else "values-agree"
    return message(compared, trials=trials.number)


def _same_results(
    answer: Callable,
    reference: Callable,
    args: tuple,
    names: Sequence[str],
    causes: Callable,
    tracer: CallTracer,
) -> Any:
    """Compare the results of one call, in which the answer is traced; return the right one."""
    given = copied(args)
    with tracer:
        got = run(answer, given, names)
    want = reference(*copied(args))
    if wrong := difference(got, want):
        why = partial(causes, args, given)
        raise Wrong(wrong, why, aloud(names, args), explain.nearly(got, want))
    for change in changes(args, given, names):
        noticed(Wrong(change))
    return want


def _causes(
    answer: Callable,
    reference: Callable,
    inputs: Inputs,
    mistakes: explain.Versions,
    clinic: Callable[[Callable], Report] | None,
    failed: tuple,
    after: tuple,
) -> Message | None:
    """Say why an answer gives a different result for the arguments `failed`."""
    failure = explain.Failure(answer, reference, inputs, failed)
    return explain.first_cause(
        partial(explain.by_mistake, failure, mistakes),
        partial(explain.by_return, failure),
        partial(_by_change, failed, after, names_of(answer, reference)),
        partial(explain.by_influence, failure),
        partial(explain.by_rounding, failure),
        partial(explain.by_clinic, clinic, answer),
    )


def _by_change(before: tuple, after: tuple, names: Sequence[str]) -> Message | None:
    """Name an input that an answer changed."""
    change = next(changes(before, after, names[: len(before)]), None)
    return message("changes-its-input", name=change.params["name"]) if change else None


def changes(before: Any, after: Any, names: Sequence[str]) -> Iterator[Message]:
    """Say which inputs an answer changed.

    Args:
        before: the arguments, copied before the call.
        after: the arguments of the call.
        names: what they are called.
    """
    for name, old, new in zip(names, before, after, strict=True):
        pairs = list(zip_longest(tensors(old), tensors(new)))
        if any(one is None or other is None for one, other in pairs) or not same_plain(old, new):
            yield message("list-was-changed", name=name)
        elif any(other._version or not torch.equal(one, other) for one, other in pairs):
            yield message("changed-in-place", name=name)


def _at_size_one(
    answer: Callable, reference: Callable, inputs: Inputs, names: Sequence[str]
) -> None:
    args = inputs(Case(0, ones=True))
    names = names[: len(args)]
    if wrong := difference(run(answer, copied(args), names), reference(*copied(args))):
        raise Wrong(message("not-at-size-one", found=wrong), inputs=aloud(names, args))
