"""Judge an answer: a function, a class, a shape, a number or a choice."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial, wraps
from itertools import zip_longest
from math import isclose, prod
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.report import Report
from checks.engine.answer import Wrong, raised, written
from checks.engine.cases import Case
from checks.engine.compare import (
    aloud,
    copied,
    difference,
    kind,
    number,
    same_values,
    shown,
    tensors,
)
from checks.engine.watch import TooLong, Watch

Inputs = Callable[[Case], tuple[Any, ...]]

# Shortcuts that an exercise may forbid: the name of the function, and what to do instead.
SOFTMAX = {
    name: "write the softmax with exp and sum"
    for name in (
        "softmax",
        "log_softmax",
        "softmin",
        "logsumexp",
        "scaled_dot_product_attention",
        "_softmax",
        "_safe_softmax",
        "_log_softmax",
        "_sparse_softmax",
    )
}
ATTENTION = {
    name: "write its steps yourself: scores, softmax, mix"
    for name in (
        "scaled_dot_product_attention",
        "MultiheadAttention.forward",
        "MultiHeadAttention.forward",
        "multi_head_attention_forward",
        "_native_multi_head_attention",
    )
}
EINOPS = {
    name: "write it with view and transpose"
    for name in ("rearrange", "reduce", "repeat", "Rearrange.forward", "Reduce.forward")
}
PRODUCTS = {
    name: "write the loops and the products yourself"
    for name in ("einsum", "matmul", "mm", "bmm", "mv", "tensordot", "linear", "addmm", "baddbmm")
}


# ----------------------------------------------------------------------------------- running it


def _name(answer: Any) -> str:
    return getattr(answer, "__name__", "the answer")


def run(answer: Callable, args: Sequence[Any], names: Sequence[str] | None = None) -> Any:
    """Call an answer, and say what it raised, in one line.

    Args:
        answer: the function or module.
        args: what it is called with.
        names: what the arguments are called.

    Raises:
        Wrong: it raised something, or returned None.
    """
    said = aloud(names or [f"argument {n}" for n in range(1, len(args) + 1)], args)
    try:
        result = answer(*args)
    except Wrong:
        raise  # a check around the answer found it
    except (Exception, SystemExit) as error:
        raise Wrong(f"it {raised(error)}", inputs=said) from None
    if result is None:
        raise Wrong(f"{_called(answer)} returns None: end it with return and the result")
    return result


def _called(answer: Any) -> str:
    return f"{type(answer).__name__}.forward" if isinstance(answer, nn.Module) else _name(answer)


def _unchanged(before: Any, after: Any, names: Sequence[str]) -> None:
    for name, old, new in zip(names, before, after, strict=True):
        pairs = list(zip_longest(tensors(old), tensors(new)))
        if any(one is None or other is None for one, other in pairs):
            raise Wrong(
                f"the values are right, but {name} is shorter or longer afterwards: "
                "pop, append and the like change the list of whoever calls"
            )
        if any(other._version or not torch.equal(one, other) for one, other in pairs):
            raise Wrong(
                f"the values are right, but {name} was changed in place: make a new tensor "
                f"instead of writing into {name}"
            )


def _explained(
    mistakes: Mapping[str, Callable],
    answer: Callable,
    inputs: Inputs,
    reference: Callable,
    failed: tuple,
) -> str | None:
    """Name the mistake that gives what the answer gives, where it failed and on two other cases."""
    cases = [failed, inputs(Case(0)), inputs(Case(1))]

    def gives(other: Callable, args: tuple) -> bool:
        try:
            return difference(answer(*copied(args)), other(*copied(args))) is None
        except (Exception, SystemExit):
            return False

    for words, mistake in mistakes.items():
        if all(gives(mistake, args) for args in cases):
            return words
    try:
        names = _named(answer, reference)
        for place, name in enumerate(names):
            if all(gives(lambda *args, p=place: args[p], args) for args in cases):
                return f"it returns {name} as it came"
        one, other = (inputs(Case(0, values=values)) for values in (100, 101))

        def looks(function: Callable, *places: int) -> bool:
            """Say whether other numbers in these arguments change the result."""
            mixed = [(other if p in places else one)[p] for p in range(len(one))]
            return difference(function(*copied(one)), function(*copied(mixed))) is not None

        every = range(len(one))
        if not any(t.isnan().any() for t in tensors((answer(*copied(one)),))):
            if looks(reference, *every) and not looks(answer, *every):
                return "it gives the same for every input"
            for place, name in zip(every, names, strict=False):
                if looks(reference, place) and not looks(answer, place):
                    return f"the numbers in {name} change nothing in the result"
        if _nearly(answer(*copied(failed)), reference(*copied(failed))):
            return (
                "they agree to about six digits only: some step runs in single precision "
                "(torch.float32), or a small number was added somewhere"
            )
    except (Exception, SystemExit):
        pass
    return None


def _nearly(got: Any, want: Any) -> bool:
    """Say whether results of the right shapes and dtypes differ by rounding only."""
    if isinstance(want, float) and number(got) is not None:
        return abs(number(got) - want) <= 1e-6 * max(1.0, abs(want))
    ones, others = list(tensors((got,))), list(tensors((want,)))
    pairs = list(zip(ones, others, strict=False))
    return 0 < len(ones) == len(others) and all(
        type(one) in (Tensor, nn.Parameter)
        and not one.is_nested
        and (one.layout, one.device, one.shape) == (other.layout, other.device, other.shape)
        and one.dtype == other.dtype == torch.float64
        and torch.allclose(one, other, rtol=1e-6, atol=1e-6)
        for one, other in pairs
    )


@contextmanager
def _double_constants() -> Iterator[None]:
    """Let torch.tensor(2.0) be in double precision, as 2.0 is.

    A constant such as torch.tensor(head_dim).sqrt() is right, and rounded to single precision.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _parameters(function: Callable) -> list[str]:
    if isinstance(function, nn.Module):
        function = function.forward
    return list(inspect.signature(function).parameters)


def _named(answer: Callable, reference: Callable) -> list[str]:
    """Return the names of the arguments: the answer's own, where it has as many."""
    right = _parameters(reference)
    try:
        own = _parameters(answer)
    except (TypeError, ValueError):
        return right
    return own if len(own) == len(right) else right


def _gradients(answer: Callable, args: tuple, parameters: Sequence[Tensor] = ()) -> list[Tensor]:
    """Return the gradients of a fixed mix of all results, for inputs and parameters."""
    leaves = copied(args, requires_grad=True)
    results = [t for t in tensors((answer(*leaves),)) if t.is_floating_point()]
    generator = torch.Generator().manual_seed(0)
    loss = sum(
        (r * torch.randn(r.shape, generator=generator, dtype=r.dtype)).sum() for r in results
    )
    wanted = [t for t in tensors(leaves) if t.is_floating_point()] + list(parameters)
    if not loss.requires_grad:
        return [None] * len(wanted)
    return list(torch.autograd.grad(loss, wanted, allow_unused=True))


def _same_gradients(
    answer: Callable,
    reference: Callable,
    args: tuple,
    names: Sequence[str],
    own: Mapping[str, Tensor] | None = None,
    right: Mapping[str, Tensor] | None = None,
    exact: bool = False,
) -> None:
    own, right = own or {}, right or {}
    labels = [
        n for n, a in zip(names, args, strict=True) for t in tensors(a) if t.is_floating_point()
    ]
    want = _gradients(reference, args, list(right.values()))
    try:
        got = _gradients(answer, args, [own[name] for name in right])
    except (Exception, SystemExit) as error:
        said = f"its gradient {raised(error)}"
        if "numpy" in said:
            said = "no gradient passes through numpy: stay with torch"
        raise Wrong(f"the values are right, but {said}") from None
    for name, one, other in zip([*labels, *right], got, want, strict=True):
        if other is None or (one is None and not other.any()):
            continue
        if one is None:
            raise Wrong(
                f"the values are right, but no gradient reaches {name}: detach, data, item, "
                "torch.tensor, nn.Parameter and no_grad cut the graph"
            )
        if not same_values(one, other):
            if not exact and _nearly(one, other):
                with _double_constants():
                    return _same_gradients(answer, reference, args, names, own, right, exact=True)
            raise Wrong(f"the values are right, the gradient of {name} is not")


def naming(judge: Callable[..., str]) -> Callable[..., str]:
    """Note which answer is wrong: a check may ask for several.

    Args:
        judge: takes the answer first, raises `Wrong`.
    """

    @wraps(judge)
    def named(answer: Any, *args: Any, **options: Any) -> str:
        try:
            return judge(answer, *args, **options)
        except Wrong as wrong:
            wrong.answer = _name(answer)
            raise

    return named


# ------------------------------------------------------------------------------------- functions


@naming
def same_function(
    answer: Callable,
    reference: Callable,
    inputs: Inputs,
    *,
    mistakes: Mapping[str, Callable] | None = None,
    forbidden: Mapping[str, str] | None = None,
    loops: bool = True,
    looped: bool = False,
    gradients: bool = True,
    clinic: Callable[[Callable], Report] | None = None,
    trials: int = 4,
    counted: Inputs | None = None,
    ones: bool = False,
) -> str:
    """Compare a function with the right one on random sizes: shape, dtype, values, gradients.

    Args:
        answer: the student's function.
        reference: the right one.
        inputs: makes the arguments of one call from a `Case`.
        mistakes: tempting wrong versions by what is wrong with them, words that end the sentence
            "the values are not: ...". The one that gives what the answer gives is named.
        forbidden: names of functions that the answer may not call, and what to do instead.
        loops: False when the answer may not loop over an axis.
        looped: True when it must, because the loop is what the exercise asks for.
        gradients: whether to compare the gradients of all inputs, too.
        clinic: examines a wrong answer with one of the tools of `attention_clinic`.
        trials: number of sizes; the last one runs in single precision.
        counted: other inputs with which loops are looked for, where those of `inputs` would not
            fit into memory: each letter is 21 or more there.
        ones: whether to try axes of size 1 as well.

    Returns:
        What was compared, for the verdict.

    Raises:
        NotYet: the stub.
        Wrong: anything else than the right function.
    """
    written(answer)
    if not callable(answer):
        raise Wrong(f"the answer is {kind(answer)}, a function is asked for")
    names = _named(answer, reference)

    def why(failed: tuple) -> str | None:
        words = _explained(mistakes or {}, answer, inputs, reference, failed)
        return words or (clinic_words(clinic, answer) if clinic else None)

    floats = False
    for trial in range(trials):
        single = trial == trials - 1
        case = Case(trial, torch.float32 if single else torch.float64)
        args = inputs(case)
        names_here = names[: len(args)]
        given = copied(args)
        with Watch() as watch:
            got = run(answer, given, names_here)
        want = reference(*copied(args))
        wrong = difference(got, want)
        if wrong and _nearly(got, want):
            with _double_constants():
                wrong = difference(run(answer, copied(args), names_here), want)
        if wrong:
            raise Wrong(wrong, partial(why, args), aloud(names_here, args))
        _unchanged(args, given, names_here)
        _allowed(watch, forbidden or {}, answer, reference)
        floats = floats or any(t.is_floating_point() for t in tensors((want,)))
        if trial == 0 and gradients and floats:
            _same_gradients(answer, reference, args, names_here)
    if ones:
        _at_size_one(answer, reference, inputs, names)
    if looped or not loops:
        _loops(answer, counted or inputs, looped)
    compared = "shapes, values and gradients" if gradients and floats else "shapes and values"
    if not any(True for _ in tensors((want,))):
        compared = "results"
    return f"{compared} agree on {trials} random sizes, the input stays as it was"


def _at_size_one(
    answer: Callable, reference: Callable, inputs: Inputs, names: Sequence[str]
) -> None:
    args = inputs(Case(0, ones=True))
    names = names[: len(args)]
    if wrong := difference(run(answer, copied(args), names), reference(*copied(args))):
        raise Wrong(
            f"it is right, but not where axes have size 1 ({wrong}): some step drops such axes, "
            "as squeeze does",
            inputs=aloud(names, args),
        )


def _allowed(
    watch: Watch,
    forbidden: Mapping[str, str],
    answer: Callable | None = None,
    reference: Callable | None = None,
) -> None:
    for name, instead in forbidden.items():
        if watch.called[name]:
            raise Wrong(
                f"the values are right, but it calls {name.partition('.')[0].strip('_')}, which "
                f"does the exercise for you: {instead}"
            )
    code = getattr(reference, "__code__", None)
    wrapped = answer is not reference and getattr(answer, "__code__", None) is code  # by one check
    if code in watch.ran and not wrapped:
        raise Wrong(
            "the values are right, but it calls the function that the check compares with: write "
            "the steps yourself"
        )


def _loops(answer: Callable, inputs: Inputs, wanted: bool) -> None:
    with Watch() as watch:
        run(answer, copied(inputs(Case(0))))
    small = watch.operations
    with suppress(TooLong), Watch(most=small + 1000) as watch:
        run(answer, copied(inputs(Case(0, large=True))))
    large = watch.operations
    found = large > small + 10
    if found and not wanted:
        raise Wrong(
            f"the values are right, but it loops: {small} operations on a small input, "
            f"{large}{' and more' if large > small + 1000 else ''} on a large one. Let one "
            "operation do a whole axis"
        )
    if wanted and not found:
        raise Wrong(
            "the values are right, but nothing loops: a large input takes no more steps than a "
            "small one. Here the loop is asked for, one piece after the other"
        )


def clinic_words(clinic: Callable[[Any], Report], answer: Any) -> str | None:
    """Return what a tool of `attention_clinic` says is wrong, None when it does not know.

    Args:
        clinic: takes the answer, returns a `Report`.
        answer: the wrong answer.
    """
    try:
        report = clinic(answer)
    except ValueError:
        return None
    if not report.explanations:
        return None
    found = report.explanations[0]
    fix = found.fix[0].upper() + found.fix[1:].rstrip(".")
    return f"it {found.words} ({' + '.join(found.ids)} in the clinic). {fix}"


# --------------------------------------------------------------------------------------- classes


def randomised(module: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter random numbers in double precision; return the module in eval mode.

    Args:
        module: changed in place; no bias stays 0, no LayerNorm weight stays 1.
        seed: decides the numbers.
    """
    module = module.double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if parameter.ndim > 1:
                parameter.copy_(noise * max(parameter.shape[-1], 1) ** -0.5)
            else:
                parameter.copy_(noise * 0.5 + name.endswith("weight"))
    return module


@naming
def same_module(
    answer: type[nn.Module],
    reference: Callable[..., nn.Module],
    arguments: Callable[[Case], dict[str, Any]],
    inputs: Inputs,
    *,
    mistakes: Mapping[str, Callable[..., nn.Module]] | None = None,
    forbidden: Mapping[str, str] | None = None,
    clinic: Callable[[nn.Module, dict[str, Any]], Report] | None = None,
    trials: int = 3,
) -> str:
    """Compare a class with the right one: same parameters, same weights in, same numbers out.

    Args:
        answer: the student's class.
        reference: the right class, with the same names of parameters.
        arguments: makes the arguments of the constructor, by name, from a `Case`.
        inputs: makes the arguments of `forward` from the same `Case`.
        mistakes: wrong classes by what is wrong with them, with the parameters of the right one.
        forbidden: names of functions that the answer may not call, and what to do instead.
        clinic: takes the module with random weights and the constructor's arguments; examines a
            wrong answer with one of the tools of `attention_clinic`.
        trials: number of sizes.

    Returns:
        What was compared, for the verdict.

    Raises:
        NotYet: the stub.
        Wrong: anything else than the right class.
    """
    written(answer)
    if not (isinstance(answer, type) and issubclass(answer, nn.Module)):
        raise Wrong(f"the answer is {kind(answer)}, a class that extends nn.Module is asked for")
    for trial in range(trials):
        case = Case(trial)
        built = arguments(case)
        right = randomised(reference(**built), seed=trial)
        with Watch() as building:
            module = _built(answer, built)
        _same_parameters(module, right)
        module.load_state_dict(right.state_dict(), strict=False)  # buffers of its own may stay
        args = inputs(case)
        names = _parameters(right)[: len(args)]
        given = copied(args)
        with Watch() as watch:
            got = run(module, given, names)
        want = copied(right(*copied(args)))
        wrong = difference(got, want)
        if wrong and _nearly(got, want):
            with _double_constants():
                module = _built(answer, built)
                module.load_state_dict(right.state_dict(), strict=False)
                got = run(module, copied(args), names)
                wrong = difference(got, want)

        def why(module=module, built=built, right=right, args=args, got=got) -> str | None:
            for words, mistake in (mistakes or {}).items():
                other = mistake(**built).double().eval()
                try:
                    other.load_state_dict(right.state_dict())
                    if difference(got, other(*copied(args))) is None:
                        return words
                except (Exception, SystemExit):
                    continue
            words = clinic_words(lambda m: clinic(m, built), module) if clinic else None
            return words or _shared(module, right) or _without_effect(module, right, args)

        if wrong:
            raise Wrong(wrong, why, aloud(names, args))
        _unchanged(args, given, names)
        _allowed(watch, forbidden or {}, answer.forward, getattr(reference, "forward", None))
        _allowed(building, {n: w for n, w in (forbidden or {}).items() if "__init__" in n})
        if words := _shared(module, right):
            raise Wrong(f"the values are right, but {words}")
        own, rights = _learned(module), _learned(right)
        if frozen := [name for name in rights if not own[name].requires_grad]:
            raise Wrong(
                f"the values are right, but {frozen[0]} has requires_grad=False: nothing trains it"
            )
        _same_gradients(module, right, args, names, own, rights)
    return f"parameters, shapes, values and gradients agree for {trials} random sizes"


def _learned(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters of a module by name; one that stands in two places has both names."""
    return dict(module.named_parameters(remove_duplicate=False))


def _shared(module: nn.Module, right: nn.Module) -> str | None:
    """Say which two of the parameters that a module needs are one and the same."""
    own, first = _learned(module), {}
    for name in _learned(right):
        other = first.setdefault(id(own[name]), name)
        if other != name:
            return (
                f"{other} and {name} are one and the same: the two share one weight, give each "
                "its own"
            )
    return None


def _without_effect(module: nn.Module, right: nn.Module, args: tuple) -> str | None:
    """Say which parameter changes nothing in the result of a module, and should."""

    def changes(model: nn.Module, name: str) -> bool:
        before, parameter = model(*copied(args)), _learned(model)[name]
        kept = parameter.detach().clone()
        with torch.no_grad():
            parameter.mul_(2).add_(1)
        after = model(*copied(args))
        with torch.no_grad():
            parameter.copy_(kept)
        return difference(after, before) is not None

    try:
        for name in _learned(right):
            if not changes(module, name) and changes(right, name):
                return f"the numbers in {name} change nothing in the result"
    except (Exception, SystemExit):
        pass
    return None


def _built(answer: type[nn.Module], arguments: dict[str, Any]) -> nn.Module:
    said = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
    try:
        return answer(**arguments).double().eval()
    except (Exception, SystemExit) as error:
        raise Wrong(f"{answer.__name__}({said}) {raised(error)}") from None


def _same_parameters(module: nn.Module, right: nn.Module) -> None:
    own, wanted = module.state_dict(), right.state_dict()
    learned, owned = _learned(right), _learned(module)
    for name, tensor in wanted.items():
        here = name in own or isinstance(getattr(module, name, None), Tensor)
        if here and name in learned and name not in owned:
            raise Wrong(
                f"{name} is a tensor, but not a parameter, so nothing trains it: nn.Parameter "
                "must stand around all of it, a factor included"
            )
        if name not in own:
            has = ", ".join([*sorted(own)[:6], *(["..."] if len(own) > 6 else [])])
            raise Wrong(
                f"{type(module).__name__} has no {name}: keep the names that the card gives; "
                f"it has {has or 'no parameters'}"
            )
        if own[name].shape != tensor.shape:
            raise Wrong(
                f"{name} has shape {tuple(own[name].shape)}, asked for is {tuple(tensor.shape)}"
            )
    known = {id(owned[name]) for name in learned}  # a part may have a second name
    if extra := sorted(name for name in owned if id(owned[name]) not in known):
        raise Wrong(f"{type(module).__name__} has {extra[0]}, which no step of the exercise needs")


# ------------------------------------------------------------------- shapes, numbers and choices


def same_shape(guess: Any, shape: Sequence[int], letters: str) -> str:
    """Compare a predicted shape with the true one, without giving the true one away.

    Args:
        guess: what the student wrote.
        shape: the true shape, computed.
        letters: the axes, such as "b h i j".

    Raises:
        NotYet: `...`.
        Wrong: anything else than the shape.
    """
    written(guess)
    try:
        guessed = tuple(operator.index(size) for size in guess)
    except TypeError:
        raise Wrong(
            f"a shape is a tuple of whole numbers such as (2, 3), got {shown(guess)}"
        ) from None
    shape, names = tuple(shape), letters.split()
    if guessed == shape:
        return f"{guessed} is the shape that the code gives"
    if len(guessed) != len(shape):
        axes = f"{len(shape)} ax{'i' if len(shape) == 1 else 'e'}s"
        why = f"it needs {axes}, {', '.join(names)}, and not {len(guessed)}"
    elif sorted(guessed) == sorted(shape):
        why = f"these are the right sizes in another order; the axes are {', '.join(names)}"
    elif prod(guessed) == prod(shape):
        why = "there are as many numbers, but laid out otherwise"
    else:
        wrong = [n for n, g, s in zip(names, guessed, shape, strict=True) if g != s]
        why = f"look at {', '.join(wrong)}; the axes are {', '.join(names)}"
    raise Wrong(f"{guessed} is not the shape", lambda: why)


def same_number(
    value: Any, want: float, margin: float, what: str, known: Mapping[float, str] | None = None
) -> str:
    """Compare a number with the right one, within a margin.

    Args:
        value: what the student wrote or measured: a number, or a tensor of one number.
        want: the right number.
        margin: largest difference that counts as right.
        what: what the number says, such as "the variance of the scores".
        known: tempting wrong numbers and what is wrong with them.

    Raises:
        NotYet: `...`.
        Wrong: no number, or one outside the margin.
    """
    written(value)
    given, value = value, number(value)
    if value is None:
        raise Wrong(f"{what} is a number, got {kind(given)}")
    if abs(value - want) <= margin:
        return f"{what} is within {margin:g} of {want:g}"

    def why() -> str | None:
        near = min(known or {}, key=lambda number: abs(value - number), default=None)
        if near is not None and abs(value - near) <= min(margin, abs(near) / 10):
            return known[near]
        return too_far(value, want)

    raise Wrong(f"{value:.6g} is not {what}", why)


def too_far(got: float, want: float) -> str:
    """Say on which side of the right number a wrong one lies.

    Args:
        got: the wrong number.
        want: the right one.
    """
    if got != got:
        return "it is not a number"
    return f"it is too {'large' if got > want else 'small'}"


RANDOM = ("randn", "rand", "normal", "normal_", "randn_like", "rand_like", "randint", "uniform_")


@naming
def same_measure(
    answer: Callable,
    want: Callable[..., float],
    cases: Sequence[tuple[Any, ...]],
    *,
    what: str,
    within: float = 0.1,
    mistakes: Mapping[str, Callable[..., float]] | None = None,
    draws: bool = True,
) -> str:
    """Compare an experiment with what theory, or our own experiment, says.

    Args:
        answer: the student's function; returns one number.
        want: takes the same arguments, returns the right number.
        cases: the arguments of each call.
        what: what is measured, such as "the variance of such scores".
        within: largest relative error that counts as right.
        mistakes: tempting wrong experiments by what is wrong with them, with their numbers; one is
            named only when it gives the numbers of the answer in every case.
        draws: whether the answer must draw random numbers itself: a formula is no experiment.

    Raises:
        NotYet: the stub.
        Wrong: no number, a number outside the margin, or one that nobody measured.
    """
    written(answer)
    names = _named(answer, want)
    for args in cases:
        with Watch() as watch:
            got = run(answer, args, names)
        called = f"{_name(answer)}({', '.join(map(repr, args))})"
        if number(got) is None:
            raise Wrong(f"{called} is {kind(got)}, a number is asked for")
        got, right = number(got), want(*args)

        def why(got=got, right=right) -> str:
            for words, mistake in (mistakes or {}).items():
                if all(_gives(answer, mistake, case, within) for case in cases):
                    return words
            return too_far(got, right)

        if not abs(got - right) <= within * abs(right):
            raise Wrong(f"{called} is {got:.3g}, {what} is {right:.3g} within {within:.0%}", why)
        drawn = any(watch.called[name] for name in RANDOM)
        formula = isclose(got, right, rel_tol=1e-12)  # chance never hits it
        if draws and (formula or (not drawn and number(run(answer, args, names)) == got)):
            raise Wrong(
                f"{called} is the right number, but nothing was measured with torch: draw random "
                "numbers (torch.randn) and compute it from them"
            )
    return f"{what} is within {within:.0%} of the expected in all {len(cases)} experiments"


def _gives(answer: Callable, mistake: Callable[..., float], args: tuple, within: float) -> bool:
    """Say whether an experiment gives what a mistake gives: one case alone may be chance."""
    try:
        number = mistake(*args)
        return bool(abs(answer(*args) - number) <= within * abs(number))
    except (Exception, SystemExit):
        return False


def same_choice(value: Any, right: str, wrong: Mapping[str, str], because: str) -> str:
    """Compare a choice among named answers.

    Args:
        value: what the student wrote, a text.
        right: the right one.
        wrong: the others, and why each is wrong.
        because: why the right one is right.

    Raises:
        NotYet: `...`.
        Wrong: another choice, or none that exists.
    """
    written(value)
    choices = sorted([right, *wrong])
    if not isinstance(value, str) or value.strip().lower() not in choices:
        raise Wrong(
            f"the answer must be one of {', '.join(map(repr, choices))}, got {shown(value)}"
        )
    chosen = value.strip().lower()
    if chosen != right:
        raise Wrong(f"{chosen!r} is not it: {wrong[chosen]}")
    return f"{right!r}, because {because}"
