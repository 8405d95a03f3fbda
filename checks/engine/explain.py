"""Find the cause of a wrong answer: each function looks for one kind of cause."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic import Report
from checks.engine.calls import Crashed, attempt, names_of
from checks.engine.cases import Case
from checks.engine.compare import copied, difference, number, tensors
from checks.engine.message import Message, as_message, message

# A cause, and the wrong version that it leads to, or several.
Mistakes = Mapping[Message | str, Callable | Sequence[Callable]]
Versions = Sequence[tuple[Message, Callable]]
DISCRETE_CASES = 9  # further inputs for results that agree by chance: integers, booleans, strings


@dataclass(frozen=True)
class Failure:
    """A wrong function, and where it failed.

    Args:
        answer: the student's function.
        reference: the right one.
        inputs: makes the arguments of one call from a `Case`.
        failed: the arguments with which the answer is wrong.
    """

    answer: Callable
    reference: Callable
    inputs: Callable[[Case], tuple[Any, ...]]
    failed: tuple[Any, ...]

    @cached_property
    def discrete(self) -> bool:
        """Whether the right result holds no fraction, so that two results often agree by chance."""
        want = result(self.reference, self.failed)
        return not isinstance(want, float) and not any(
            t.is_floating_point() for t in tensors((want,))
        )

    @cached_property
    def cases(self) -> list[tuple[Any, ...]]:
        """Where it failed, and other cases: what agrees once may be chance."""
        more = DISCRETE_CASES if self.discrete else 2
        return [self.failed, *(self.inputs(Case(seed)) for seed in range(more))]

    @cached_property
    def results(self) -> list[Any]:
        """What the answer gives in these cases."""
        return [result(self.answer, args) for args in self.cases]

    def gives(self, other: Callable) -> bool:
        """Say whether another function gives in every case what the answer gives."""
        pairs = zip(self.cases, self.results, strict=True)
        return all(_same(got, other, args) for args, got in pairs)


def result(function: Callable, args: tuple[Any, ...]) -> Any:
    """Return what a function gives for a copy of the arguments.

    Args:
        function: the student's, or one that is to be compared with it.
        args: stay as they are.

    Raises:
        Crashed: it raised something.
    """
    return attempt(function, *copied(args))


def _same(got: Any, other: Callable, args: tuple[Any, ...]) -> bool:
    try:
        return difference(got, result(other, args)) is None
    except Crashed:  # a mistake may need sizes that this case lacks
        return False


def first_cause(*finders: Callable[[], Message | None]) -> Message | None:
    """Return the first cause that one of the finders knows.

    Args:
        finders: each returns a message or None, and may crash with the answer.
    """
    for find in finders:
        try:
            if cause := attempt(find):  # results of any kind may raise here
                return cause
        except Crashed:
            continue
    return None


def by_mistake(failure: Failure, mistakes: Versions) -> Message | None:
    """Identify the mistake that gives the result of the answer in every case."""
    return next((cause for cause, wrong in mistakes if failure.gives(wrong)), None)


def versions(mistakes: Mistakes | None) -> list[tuple[Message, Callable]]:
    """Return each cause with each of its wrong versions.

    Args:
        mistakes: as a check lists them.

    Raises:
        ValueError: a cause has no sentence.
    """
    return [
        (as_message(cause), version)
        for cause, wrong in (mistakes or {}).items()
        for version in (wrong if isinstance(wrong, Sequence) else [wrong])
    ]


def by_return(failure: Failure) -> Message | None:
    """Name the argument that is returned unchanged."""
    for place, name in enumerate(names_of(failure.answer, failure.reference)):
        if place < len(failure.failed) and failure.gives(lambda *args, p=place: args[p]):
            return message("returns-argument", name=name)
    return None


def by_influence(failure: Failure) -> Message | None:
    """Name an argument whose values do not affect the result, but should."""
    number = DISCRETE_CASES if failure.discrete else 1
    inputs = cache(lambda n: failure.inputs(Case(0, values=100 + n)))
    one = inputs(0)
    if any(t.isnan().any() for t in tensors((result(failure.answer, one),))):
        return None

    def changes(function: Callable, *places: int) -> Iterator[bool]:
        """Yield for each other input whether only these arguments of it change the result."""
        first = result(function, one)
        for n in range(1, DISCRETE_CASES + 1):
            args = tuple((inputs(n) if p in places else one)[p] for p in range(len(one)))
            yield difference(first, result(function, args)) is not None

    def ignores(*places: int) -> bool:
        # The answer may return few values, such as an argmax: it gets all inputs.
        wanted = sum(islice(changes(failure.reference, *places), number))
        return 3 * wanted >= number and not any(changes(failure.answer, *places))

    every = range(len(one))
    if ignores(*every):
        return message("same-for-every-input")
    names = zip(every, names_of(failure.answer, failure.reference), strict=False)
    return next((message("changes-nothing", name=n) for place, n in names if ignores(place)), None)


def by_rounding(failure: Failure) -> Message | None:
    """Say that the numbers agree to only about six digits."""
    right = result(failure.reference, failure.failed)
    return message("six-digits-only") if nearly(failure.results[0], right) else None


def by_clinic(clinic: Callable[[Any], Report] | None, answer: Any) -> Message | None:
    """Say what a tool of `attention_clinic` finds; None when it finds no cause.

    Args:
        clinic: takes the answer, returns a `Report`.
        answer: the wrong answer.
    """
    if clinic is None:
        return None
    try:
        report = clinic(answer)
    except ValueError:
        return None
    if not report.explanations:
        return None
    found = report.explanations[0]
    fix = found.fix[0].upper() + found.fix[1:].rstrip(".")
    return message("clinic-found", words=found.words, ids=list(found.ids), fix=fix)


def nearly(got: Any, want: Any) -> bool:
    """Say whether results of the right shapes and dtypes differ by rounding only.

    Args:
        got: the result of an answer.
        want: the right one.
    """
    if isinstance(want, float) and number(got) is not None:
        return abs(number(got) - want) <= 1e-6 * max(1.0, abs(want))
    if isinstance(want, tuple | list) and isinstance(got, tuple | list):
        return 0 < len(got) == len(want) and all(map(nearly, got, want))
    return isinstance(want, Tensor) and _nearly(got, want)


def _nearly(one: Any, other: Tensor) -> bool:
    return (
        type(one) in (Tensor, nn.Parameter)
        and not one.is_nested
        and (one.layout, one.device, one.shape) == (other.layout, other.device, other.shape)
        and one.dtype == other.dtype == torch.float64
        and torch.allclose(one, other, rtol=1e-6, atol=1e-6)
    )


# ---------------------------------------------------------------------------------------- modules


def learned(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a module by name; one with two names is there twice.

    Args:
        module: a student's, or the right one.
    """
    return dict(module.named_parameters(remove_duplicate=False))


def by_wrong_module(
    mistakes: Versions, built: dict[str, Any], right: nn.Module, args: tuple, got: Any
) -> Message | None:
    """Identify the wrong class that gives, with the same weights, the result of the answer."""
    for cause, mistake in mistakes:

        def other(*inputs: Any, mistake: Callable = mistake) -> Any:
            module = mistake(**built).double().eval()
            module.load_state_dict(right.state_dict())
            return module(*inputs)

        if _same(got, other, args):
            return cause
    return None


def by_sharing(module: nn.Module, names: Iterable[str]) -> Message | None:
    """Say which two of the parameters that a module needs are the same one."""
    own, first = learned(module), {}
    for name in names:
        other = first.setdefault(id(own[name]), name)
        if other != name:
            return message("parameters-are-one", one=other, other=name)
    return None


def by_weights(module: nn.Module, right: nn.Module, args: tuple) -> Message | None:
    """Name a parameter that does not affect the result of a module, but should."""
    for name in learned(right):
        if not _matters(module, name, args) and _matters(right, name, args):
            return message("changes-nothing", name=name)
    return None


def _matters(module: nn.Module, name: str, args: tuple) -> bool:
    before, parameter = result(module, args), learned(module)[name]
    kept = parameter.detach().clone()
    with torch.no_grad():
        parameter.mul_(2).add_(1)
        try:
            after = result(module, args)
        finally:
            parameter.copy_(kept)
    return difference(after, before) is not None
