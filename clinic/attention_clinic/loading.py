"""`diagnose_loading`: weights that fit by shape, but give a different result than their model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
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
    randomize,
    undisturbed,
)
from attention_clinic.capture.trial import HEAD_NAMES, stated_integers
from attention_clinic.catalogue.forms import BUGS
from attention_clinic.catalogue.inference import LOADING, Values, one_number
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

    Each known bug of loading is undone in a copy of mine; it is named only if the result is then
    that of theirs.

    >>> print(diagnose_loading(mine, theirs))
    >>> print(diagnose_loading(lambda theirs: load(theirs.state_dict()), theirs))

    Args:
        mine: the model that holds the weights; stays as it is. Or a function that makes it from
            theirs: then all of their weights are made random first, so that no bug hides.
        theirs: the model that they come from, a function of the inputs, or its result on `inputs`.
        inputs: what both take; None tries ids, then images, then tokens.
        call: call(mine, inputs) -> result, any shape; None is mine(inputs).
        their_call: call(theirs, inputs) -> result; None is theirs(inputs).

    Raises:
        ValueError: not a module, inputs that do not run, or results of different shapes.
    """
    if isinstance(mine, type) or not callable(mine):
        raise ValueError(
            "diagnose_loading: mine must be an nn.Module, or a function that makes it from "
            f"theirs, got {mine!r}. Build it first and pass the object."
        )
    makes, held = not isinstance(mine, nn.Module), isinstance(theirs, nn.Module)
    result = callable(theirs) or (isinstance(theirs, Tensor) and inputs is not None)
    if isinstance(theirs, type) or not (held or (result and not makes)):
        raise ValueError(
            "diagnose_loading: theirs must be a model, or its result with inputs= if mine is "
            f"one, too, got {type(theirs).__name__}. "
            "A state dict alone does not define a result: load it into its own model."
        )
    with undisturbed():
        theirs, mine = _made(mine, theirs) if makes else (theirs, mine)
        return Comparison(mine, theirs, inputs, call, their_call).report(makes)


class Refused(ValueError):
    """A model that does not run on its inputs; its message is for the user."""


def _made(make: Callable[[nn.Module], nn.Module], theirs: Any) -> tuple[nn.Module, nn.Module]:
    """Return theirs with random weights, and mine that was made from it."""
    theirs = copied("diagnose_loading", theirs).float()
    randomize(theirs)
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
        """Compare, and report what was found; `made_random` are all of their weights."""
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
        stated = stated_integers(self.mine, HEAD_NAMES) | stated_integers(self.theirs, HEAD_NAMES)
        evidence = "undone, yours gives exactly what theirs gives"
        for id, undo in LOADING:
            for said, changed in undo(self.values, [*stated]):
                gap = self._gap_of(self.values | changed)
                if gap is not None:
                    yield replace(explain([BUGS[id]], gap, said), evidence=evidence)
                    break

    def _gap_of(self, values: Values) -> float | None:
        """Return how far my model with other values is from theirs, None if too far."""
        named = self.mine.named_parameters()
        memo = {id(p): nn.Parameter(values[name], False) for name, p in named}
        try:
            return self._gap(self._result("mine", copy.deepcopy(self.mine, memo), self.call))
        except Refused:
            return None  # values that do not fit together
