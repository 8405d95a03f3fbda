"""`diagnose_loading`: weights that fit by shape and give another result than their own model."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.capture.calling import first_tensor
from attention_clinic.capture.module import (
    CallFailed,
    Precision,
    attempted,
    copied,
    first_line,
    place,
    randomise,
    undisturbed,
)
from attention_clinic.capture.trial import HEAD_NAMES, stated_integers
from attention_clinic.catalogue.forms import BUGS, State, simplest
from attention_clinic.catalogue.inference import LOADING, Values, by_kind, kind
from attention_clinic.models.find import tensors_for
from attention_clinic.report import Explanation, Report, explain

Call = Callable[[Any, Any], Any]


def diagnose_loading(
    mine: nn.Module | Callable[[nn.Module], nn.Module],
    theirs: nn.Module | Callable[..., Any] | Tensor,
    inputs: Any = None,
    *,
    call: Call | None = None,
    their_call: Call | None = None,
) -> Report:
    """Compare a model that holds loaded weights with their own, and name what went wrong.

    Each known bug of loading is undone in a copy of mine, alone and with another; it is named only
    if the result is then that of theirs.

    >>> print(diagnose_loading(mine, theirs))
    >>> print(diagnose_loading(lambda theirs: load(theirs.state_dict()), theirs))

    Args:
        mine: the model that holds the weights; stays as it is. Or a function that makes it from
            theirs: then all weights of theirs are made random first, so that no bug hides.
        theirs: the model that they come from, a function of the inputs, or its result on `inputs`.
        inputs: what both take; None tries ids, then images, then tokens.
        call: call(mine, inputs) -> result, any shape; None is mine(inputs).
        their_call: call(theirs, inputs) -> result; None is theirs(inputs).

    Raises:
        ValueError: not a module, inputs that do not run, or results of different shapes.
    """
    makes, kind_of = not isinstance(mine, nn.Module), type(theirs).__name__
    is_result = isinstance(theirs, Tensor)
    for wrong, words in (
        (
            isinstance(mine, type) or not callable(mine),
            "mine must be an nn.Module, or a function that makes it from theirs, got "
            f"{mine!r}. Build it first and pass the object.",
        ),
        (
            isinstance(theirs, type) or not (callable(theirs) or is_result),
            f"theirs must be a model or its result, got {kind_of}. "
            "A state dict alone does not define a result: load it into its own model.",
        ),
        (
            is_result and inputs is None,
            "a result must come with its inputs, got inputs=None. Pass what theirs was given.",
        ),
        (
            makes and not isinstance(theirs, nn.Module),
            f"theirs must be an nn.Module if mine is made from it, got {kind_of}. "
            "Pass the model itself.",
        ),
    ):
        if wrong:
            raise ValueError(f"diagnose_loading: {words}")
    with undisturbed():
        theirs, mine = _made(mine, theirs) if makes else (theirs, mine)
        return Comparison(mine, theirs, inputs, call, their_call).report(makes)


class Refused(ValueError):
    """A model that does not run on its inputs; its message is for the user."""


def _made(make: Callable[[nn.Module], nn.Module], theirs: Any) -> tuple[nn.Module, nn.Module]:
    """Return theirs with random weights, and mine that was made from it."""
    theirs = copied("diagnose_loading", theirs).float()
    randomise(theirs)
    try:
        mine = attempted(make, theirs)
        got = type(mine).__name__
    except CallFailed as failed:
        error, mine = failed.error, None
        got = f"{type(error).__name__}: {first_line(error)}{place(error)}"
    if not isinstance(mine, nn.Module):
        raise ValueError(
            f"diagnose_loading: mine must be made from theirs, as an nn.Module, got {got}. "
            "Fix that line, and return the model with the weights in it."
        )
    return theirs, mine


def _doubled(given: Any) -> Any:
    """Return inputs, or a copy of a model, with all real numbers in double precision."""
    if isinstance(given, nn.Module):
        return copied("diagnose_loading", given).double()
    if isinstance(given, dict):
        return {name: _doubled(value) for name, value in given.items()}
    real = isinstance(given, Tensor) and given.is_floating_point()
    return given.double() if real else given


class Comparison:
    """A comparison of two models in double precision."""

    def __init__(
        self, mine: nn.Module, theirs: Any, inputs: Any, call: Call | None, their_call: Call | None
    ) -> None:
        self.call, self.mine, self.theirs = call, _doubled(mine), _doubled(theirs)
        first: Refused | None = None
        for given in [inputs] if inputs is not None else tensors_for(self.mine):
            self.inputs = _doubled(given)
            try:
                with Precision() as precision:
                    self.result = self._result("mine", self.mine, call)
                    self.wanted = self._result("theirs", self.theirs, their_call)
                break
            except Refused as refused:
                first = first or refused
        else:
            raise first or Refused(
                "diagnose_loading: inputs must be given, got None, and nothing says what "
                "the models take. Pass inputs=ids, tokens or images."
            )
        if self.result.shape != self.wanted.shape:
            raise ValueError(
                "diagnose_loading: mine and theirs must give results of one shape, got "
                f"{tuple(self.result.shape)} and {tuple(self.wanted.shape)}. Say what to compare: "
                "their_call=lambda theirs, x: theirs(x).last_hidden_state."
            )
        self.values = {name: p.data for name, p in self.mine.named_parameters()}
        self.limit = 3e-6 if precision.single else 1e-9

    def _result(self, name: str, model: Any, call: Call | None) -> Tensor:
        """Return the first tensor of what a model gives, in double precision."""
        if isinstance(model, Tensor):  # the result itself
            return model.detach().double()
        x = copy.deepcopy(self.inputs)
        plain = lambda model, x: model(**x) if isinstance(x, dict) else model(x)  # noqa: E731
        try:
            with torch.no_grad():
                made = attempted(call or plain, model, x)
                return attempted(first_tensor, made).cpu().double()
        except CallFailed as failed:
            error = failed.error
            shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise Refused(
                f"diagnose_loading: {name} must run on inputs {shape}, got "
                f"{type(error).__name__}: {first_line(error)}{place(error)}. Pass inputs= that "
                f"both take, or {'' if name == 'mine' else 'their_'}call=lambda model, x: ..."
            ) from error

    def _gap(self, made: Tensor) -> float | None:
        """Return how far a result is from theirs, None if too far."""
        if made.shape != self.wanted.shape or not made.isfinite().all():
            return None
        gap = float((made - self.wanted).abs().max() / (1 + self.wanted.abs().max()))
        return gap if gap <= self.limit else None

    def report(self, made_random: bool) -> Report:
        """Compare, and report what was found; `made_random` are all weights of theirs."""
        shape = tuple(self.inputs.shape) if isinstance(self.inputs, Tensor) else "as given"
        checked = [f"the results of both, inputs {shape}"]
        checked += ["all weights of theirs made random before they were loaded"] * made_random
        untried = ["other inputs, rows of tables that these do not use, training"]
        flat = [n for n, value in self.values.items() if one_number(value) and not made_random]
        if flat:
            said = "hold one number, so a bug does not show; mine=lambda theirs: ... makes it show"
            untried.append(f"{len(flat)} tensors of mine ({flat[0]}, ...) {said}")
        failing, found = [], ()
        numbers = self.result.isfinite().all() and self.wanted.isfinite().all()
        if not numbers or one_number(self.wanted):
            failing.append("both give numbers, and not the same one everywhere")
        elif self._gap(self.result) is None:
            found = tuple(self._explained())
            failing += ["mine gives what theirs gives"] * (not found)
        name, notes = type(self.mine).__name__, (tuple(failing), tuple(checked), tuple(untried))
        return Report(name, not found and not failing, found, *notes, tolerance=self.limit)

    def _explained(self) -> Iterator[Explanation]:
        """Yield the bugs that, undone, give what theirs gives."""
        values, held = self.values, isinstance(self.theirs, nn.Module)
        theirs = {n: p.data for n, p in self.theirs.named_parameters()} if held else {}
        heads = stated_integers(self.mine, HEAD_NAMES) | stated_integers(self.theirs, HEAD_NAMES)
        state: State = {"values": values, "missing": [*_missing(values, theirs)], "heads": [*heads]}

        def difference(state: State) -> float | None:
            named = self.mine.named_parameters()
            memo = {id(p): nn.Parameter(state["values"][name], False) for name, p in named}
            try:
                return self._gap(self._result("mine", copy.deepcopy(self.mine, memo), self.call))
            except Refused:
                return None  # values that do not fit together

        few = sum(value.numel() for value in values.values()) < 5_000_000
        ways = simplest(LOADING, state, difference, most=1 + few)
        # what theirs holds in a place explains anything else that went wrong there, too
        named = {ids: way for ids, way in ways.items() if "loading-missing" not in ids}
        for ids, way in (named or ways).items():
            found = explain([BUGS[id] for id in ids], way.difference, way.path.detail)
            yield replace(found, evidence="undone, yours gives exactly what theirs gives")


def one_number(value: Tensor) -> bool:
    """Return whether all numbers of a tensor are the same."""
    return value.numel() > 1 and bool((value == value.flatten()[0]).all())


def _layouts(values: Values) -> dict[str, Tensor]:
    """Return the tensors, the thirds of those that may be packed, and all of them transposed."""
    found = dict(values)
    for name, t in values.items():
        for axis in range(t.ndim if t.ndim < 3 else 0):
            if t.shape[axis] == 3 * t.shape[1 - axis] if t.ndim == 2 else len(t) % 3 == 0:
                found |= {f"{name}[{i}]": third for i, third in enumerate(t.chunk(3, dim=axis))}
    return found | {f"{name}.T": t.T for name, t in found.items() if t.ndim == 2}


def _rearranged(value: Tensor, other: Tensor) -> bool:
    """Return whether a tensor was made from another: reordered, shifted, scaled or rounded."""
    if value.numel() != other.numel() or value.numel() < 3 or one_number(value):
        return False
    one, two = ((t - t.mean()) / (t.std() + 1e-30) for t in (value.flatten(), other.flatten()))
    return torch.allclose(one.sort().values, two.sort().values, atol=1e-2)


def _missing(mine: Values, theirs: Values) -> Iterator[tuple[dict[str, Tensor], str]]:
    """Yield tensors of theirs for those of mine that hold none, or one that others hold, too."""
    held = _layouts(theirs)
    owned = {
        name: [n for n, t in held.items() if t.shape == value.shape and torch.allclose(t, value)]
        for name, value in mine.items()
    }
    claims = Counter(n for name, own in owned.items() if not one_number(mine[name]) for n in own)
    for names in by_kind(mine):
        strangers = [mine[name] for name in names if not owned[name]]
        if all(owned[name] and claims[owned[name][0]] < 2 for name in names) or any(
            _rearranged(*pair) for pair in product(strangers, held.values())
        ):
            continue  # they were loaded, and may be in a different order
        for others in sorted(by_kind(held), key=lambda others: claims[others[0]]):
            if [mine[name].shape for name in names] == [held[n].shape for n in others]:
                made = {name: held[n] for name, n in zip(names, others, strict=True)}
                yield made, f"{kind(names[0])}; theirs is {kind(others[0])}"
