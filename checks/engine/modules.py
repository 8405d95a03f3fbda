"""Compare a class: the same parameters, the same weights in, the same numbers out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic import Report
from checks.engine import explain
from checks.engine.answer import Wrong, noticed, written
from checks.engine.call_tracer import CallTracer
from checks.engine.calls import Crashed, attempt, naming, parameters_of, run
from checks.engine.cases import Case
from checks.engine.compare import aloud, copied, difference, kind
from checks.engine.explain import learned
from checks.engine.functions import changes
from checks.engine.gradients import same_gradients
from checks.engine.message import Message, message
from checks.engine.shortcuts import Inputs, Shortcuts, allowed


def randomize(module: nn.Module, seed: int = 0) -> nn.Module:
    """Give every parameter random numbers: no bias stays 0, no LayerNorm weight stays 1.

    The clinic has a similar function, because it uses no code of the course.

    Args:
        module: changed in place; keeps its dtype.
        seed: decides the numbers.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
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
    mistakes: explain.Mistakes | None = None,
    clinic: Callable[[nn.Module, dict[str, Any]], Report] | None = None,
    forbidden: Shortcuts | None = None,
    trials: int = 3,
) -> Message:
    """Compare a class with the right one: same parameters, same weights in, same numbers out.

    Args:
        answer: the student's class.
        reference: the right class, with the same names of parameters.
        arguments: makes the arguments of the constructor, by name, from a `Case`.
        inputs: makes the arguments of `forward` from the same `Case`.
        mistakes: wrong classes by their cause, with the parameters of the right one.
        clinic: takes the module with random weights and the constructor's arguments; examines a
            wrong answer with one of the tools of `attention_clinic`.
        forbidden: names of functions that the answer may not call, and what to do instead.
        trials: number of sizes.

    Returns:
        What was compared, for the verdict.

    Raises:
        NotYet: the stub.
        Wrong: anything but the right class.
    """
    written(answer)
    if not (isinstance(answer, type) and issubclass(answer, nn.Module)):
        raise Wrong(message("class-is-asked", got=kind(answer)))
    forbidden = forbidden or {}
    for trial in range(trials):
        case = Case(trial)
        built = arguments(case)
        right = randomize(reference(**built).double().eval(), seed=trial)
        with CallTracer(deep=False) as building:
            module = _built(answer, built)
        _same_parameters(module, right)
        args = inputs(case)
        names = parameters_of(right)[: len(args)]
        causes = partial(_causes, explain.versions(mistakes), clinic, built, right, args)
        tracer = CallTracer(deep=bool(forbidden))
        _same_results(module, right, args, causes, tracer)
        allowed(tracer, forbidden, answer.forward, getattr(reference, "forward", None))
        allowed(building, {n: w for n, w in forbidden.items() if "__init__" in n})
        _same_learning(module, right, args, names)
    return message("modules-agree", trials=trials)


def _same_results(
    module: nn.Module,
    right: nn.Module,
    args: tuple,
    causes: Callable,
    tracer: CallTracer,
) -> None:
    """Compare the results with the same weights; the module is traced."""
    names = parameters_of(right)[: len(args)]
    module.load_state_dict(right.state_dict(), strict=False)  # its own buffers may stay
    given = copied(args)
    with tracer:
        got = run(module, given, names)
    want = copied(right(*copied(args)))
    if wrong := difference(got, want):
        why = partial(causes, module, got)
        raise Wrong(wrong, why, aloud(names, args), explain.nearly(got, want))
    for change in changes(args, given, names):
        noticed(Wrong(change))


def _causes(
    mistakes: explain.Versions,
    clinic: Callable[[nn.Module, dict[str, Any]], Report] | None,
    built: dict[str, Any],
    right: nn.Module,
    args: tuple,
    module: nn.Module,
    got: Any,
) -> Message | None:
    """Say why a module gives a different result."""
    return explain.first_cause(
        partial(explain.by_sharing, module, learned(right)),
        partial(explain.by_wrong_module, mistakes, built, right, args, got),
        partial(explain.by_clinic, clinic and partial(_second, clinic, built), module),
        partial(explain.by_weights, module, right, args),
    )


def _same_learning(module: nn.Module, right: nn.Module, args: tuple, names: Sequence[str]) -> None:
    """Check that each parameter is separate, and learns what the right one learns."""
    own, rights = learned(module), learned(right)
    if shared := explain.by_sharing(module, rights):
        raise Wrong(message("right-but", what=shared))
    if frozen := [name for name in rights if not own[name].requires_grad]:
        raise Wrong(message("parameter-frozen", name=frozen[0]))
    pairs = {name: (own[name], rights[name]) for name in rights}
    same_gradients(module, right, args, names, pairs)


def _second(clinic: Callable, built: dict[str, Any], module: nn.Module) -> Report:
    return clinic(module, built)


def _built(answer: type[nn.Module], arguments: dict[str, Any]) -> nn.Module:
    try:
        return attempt(answer, **arguments).double().eval()
    except Crashed as crash:
        said = aloud(list(arguments), list(arguments.values()))
        raise Wrong(
            message("building-raises", name=answer.__name__, arguments=said, what=crash.said)
        ) from None


def _same_parameters(module: nn.Module, right: nn.Module) -> None:
    own, wanted = module.state_dict(), right.state_dict()
    rights, owned = learned(right), learned(module)
    kind = type(module).__name__
    for name, tensor in wanted.items():
        here = name in own or isinstance(getattr(module, name, None), Tensor)
        if here and name in rights and name not in owned:
            raise Wrong(message("no-parameter", name=name))
        if name not in own:
            raise Wrong(_missing(module, name, sorted(own)))
        if own[name].shape != tensor.shape:
            got, want = tuple(own[name].shape), tuple(tensor.shape)
            raise Wrong(message("shape-differs", name=name, got=got, want=want))
    known = {id(owned[name]) for name in rights}  # a part may have a second name
    if extra := sorted(name for name in owned if id(owned[name]) not in known):
        raise Wrong(message("parameter-too-many", kind=kind, name=extra[0]))


def _missing(module: nn.Module, name: str, own: list[str]) -> Message:
    """Say why a parameter is not there.

    It may be in a Python list, in a layer without bias, in a stack that is too short, in a
    variable of __init__ instead of the module, or have a different name.
    """
    said = {"kind": type(module).__name__, "name": name}
    (first, *_), (part, _, last) = name.split("."), name.rpartition(".")
    here = getattr(module, first, None)
    if isinstance(here, list | tuple | dict):
        return message("parameter-in-list", **said, part=first, got=type(here).__name__)
    if last == "bias" and f"{part}.weight" in own:
        return message("bias-missing", **said, part=part)
    stack = isinstance(here, nn.ModuleList | nn.Sequential)
    if stack and not name.startswith(tuple(f"{first}.{n}." for n, _ in here.named_children())):
        return message("too-few-layers", **said, part=first, got=len(here))
    if here is None and first in _variables(type(module).__init__):
        return message("parameter-without-self", **said, part=first)
    has = own[:6] + ["..."] * (len(own) > 6)
    if not has:
        return message("has-no-parameters", **said)
    if isinstance(here, nn.Module):
        return message("part-differs", **said, part=first, has=has)
    return message("parameter-missing", **said, has=has)


def _variables(function: Callable) -> tuple[str, ...]:
    """The names of a function's local variables; none if it was written in C."""
    code = getattr(function, "__code__", None)
    return code.co_varnames if code else ()
