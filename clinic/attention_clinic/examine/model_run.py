"""One run of a whole model, on its user's inputs or on such that it takes, and what it shows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.calls import first_tensor
from attention_clinic.engine.inputs import inputs_of
from attention_clinic.engine.patient import place, same
from attention_clinic.engine.recording import Recording
from attention_clinic.engine.refusal import without_inputs
from attention_clinic.engine.unwrapping import eager

Inputs = Tensor | Sequence[Any] | Mapping[str, Any] | None


class Run:
    """A model that ran once.

    Args:
        model: the copy.
        inputs: as in `diagnose_model`.

    Raises:
        ValueError: inputs of the user that it does not take.
    """

    def __init__(self, model: nn.Module, inputs: Inputs) -> None:
        self.model = model
        self.recording = Recording(model)
        self.given: dict[str, Any] | None = None
        self.refused = ""
        self.start(inputs)

    def start(self, inputs: Inputs) -> None:
        """Run the copy on inputs that it takes."""
        tries = tries_of(self.model, inputs)
        first: Exception | None = None
        for given in tries:
            recording = Recording(self.model)
            try:
                with torch.no_grad(), eager(), recording:
                    result = self.model(**given)
            except Exception as error:
                first = first or error
                continue
            closed = recording.closed or not _is_finite(result)
            if self.given is None or not closed:
                self.recording, self.given = recording, given
            if inputs is not None or not closed:
                break
        if self.given is not None:
            return
        if inputs is not None and first is not None:
            raise ValueError(
                f"diagnose_model: {type(self.model).__name__} must run on inputs, got "
                f"{type(first).__name__}: {str(first).splitlines()[0] if str(first) else ''}"
                f"{place(first)}. Pass what you call the model with."
            ) from first
        words = str(first).strip().splitlines()[:1]
        self.refused = "" if first is None else f"{type(first).__name__}: {' '.join(words)}"

    def ask(self) -> None:
        """Ask for inputs where the model took none of those that were made for it.

        Raises:
            ValueError: with the line to paste.
        """
        if self.given is None and self.refused:
            kinds = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
            parameters = signature(self.model.forward).parameters.values()
            names = [p.name for p in parameters if p.default is p.empty and p.kind not in kinds]
            raise without_inputs(
                f"diagnose_model: {type(self.model).__name__} must run on inputs made for it, got "
                f"{self.refused}. Pass what you call it with: diagnose_model(model, "
                f"inputs=({', '.join(names)},))."
            )

    def again(self, given: Mapping[str, Any] | None = None) -> Tensor | None:
        """Run the copy once more, None where it cannot."""
        if self.given is None:
            return None
        try:
            with torch.no_grad(), eager():
                return first_tensor(self.model(**(self.given if given is None else given)))
        except Exception:
            return None

    @cached_property
    def mixed(self) -> str:
        """What another first sample changes of the others, "" for nothing.

        Where no sample changes what the model says, such as of a class token alone, its parts are
        asked.
        """
        y = self.again()
        if y is None or self.given is None or y.ndim < 2 or not same(y, self.again()):
            return ""
        b = y.shape[0]
        changed = {
            name: value.flip(1) if _is_samples(value, b) else value
            for name, value in self.given.items()
        }
        for name, value in changed.items():
            if _is_samples(value, b):
                changed[name] = torch.cat([value[:1], self.given[name][1:]])
        other = self.again(changed)
        if b < 2 or other is None or other.shape != y.shape:
            return ""
        if torch.equal(y, other):
            path = self._mixes_inside(changed, b)
            return path and f"what {path} makes"
        gap = (other[1:] - y[1:]).abs().max()
        return "what the model says" if gap > 1e-4 * (1 + y.abs().max()) else ""

    def _mixes_inside(self, changed: Mapping[str, Any], b: int) -> str:
        """Return the path of a part that gets another first sample, and changes others by it."""
        heard = []
        for given in (self.given, changed):
            with Recording(self.model) as recording:
                self.again(given)
            heard.append(recording.calls)
        for path, call in heard[0].items():
            twin = heard[1].get(path)
            if not path or twin is None:
                continue
            got = [_changed(t, twin.given.get(name)) for name, t in call.given.items()]
            made = _changed(call.result, twin.result)
            own = {
                rows: list(range(rows // b)) for _, rows in (*got, made) if rows and rows % b == 0
            }
            first = all(where in ([], own.get(rows)) for where, rows in got)
            if first and any(where for where, _ in got) and made[0] not in ([], own.get(made[1])):
                return path
        return ""


def tries_of(model: nn.Module, inputs: Inputs) -> Iterable[dict[str, Any]]:
    """Return what a model may be called with: what its user says, or what it may take."""
    return inputs_of(model) if inputs is None else [_named(model, inputs)]


def _is_finite(result: Any) -> bool:
    """Say whether what a model returned is no NaN; what cannot be told is taken for numbers."""
    try:
        return bool(first_tensor(result).isfinite().all())
    except TypeError:
        return True


def _changed(value: Any, other: Any) -> tuple[list[int], int]:
    """Return the rows of tokens that are others, and how many rows there are."""
    if not (isinstance(value, Tensor) and isinstance(other, Tensor) and value.ndim > 2):
        return [], 0
    if value.shape != other.shape:
        return [], 0
    apart = (value != other).flatten(1).any(1)
    return apart.nonzero().flatten().tolist(), len(apart)


def _is_samples(value: Any, b: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 1 and value.shape[0] == b


def _named(model: nn.Module, inputs: Inputs) -> dict[str, Any]:
    """Return inputs by the names of forward's arguments."""
    if isinstance(inputs, Mapping):
        return dict(inputs)
    values = inputs if isinstance(inputs, tuple | list) else (inputs,)
    return dict(zip(signature(model.forward).parameters, values, strict=False))
