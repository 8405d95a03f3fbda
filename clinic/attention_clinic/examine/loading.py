"""`diagnose_loading`: weights that fit by shape and give another result than their own model."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS, LOADING
from attention_clinic.engine.copies import in_type, randomise
from attention_clinic.engine.decoding import vocabulary
from attention_clinic.engine.forms import State, simplest
from attention_clinic.engine.loaded import (
    EPS,
    HEADS,
    Loaded,
    fitted,
    kind,
    numbers,
    one_number,
    owners,
    pieces,
    ran,
)
from attention_clinic.engine.modes import Precision
from attention_clinic.engine.patient import copied, place, possible_widths, undisturbed
from attention_clinic.engine.report import Report, explain

SIDES = re.compile(r"(image|img|input)_size")
CHANNELS = re.compile(r"(num|in)_(channels|chans)")
USUAL_EPS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-3)
LARGE = 5_000_000  # parameters from which on mistakes are tried alone only


def diagnose_loading(
    mine: nn.Module | Callable[[nn.Module], nn.Module],
    theirs: nn.Module | Callable[..., Any] | Tensor,
    inputs: Any = None,
    *,
    call: Callable[[Any, Any], Any] | None = None,
    their_call: Callable[[Any, Any], Any] | None = None,
) -> Report:
    """Compare a model that holds loaded weights with their own, and name what went wrong.

    Both get the same inputs. Where the results differ, each known mistake of loading is undone in
    a copy of mine, alone and with another; it is named only if the result is then theirs.

    >>> print(diagnose_loading(mine, theirs))
    >>> print(diagnose_loading(lambda theirs: load(theirs.state_dict()), theirs))

    Args:
        mine: the model that holds the weights; stays as it is. Or a function that makes it from
            theirs: then all weights of theirs are made random first, so that no mistake hides
            behind zeros and ones.
        theirs: the model that they come from; or a function of the inputs; or the result that it
            gave, with `inputs`.
        inputs: what both take; None tries ids, then tokens, then pictures.
        call: call(mine, inputs) -> result; None is mine(inputs).
        their_call: call(theirs, inputs) -> result; None is theirs(inputs).

    Shape:
        result  any, the same of both; of several tensors the first

    Returns:
        A `Report`: print it, or ask for `healthy` and `explanations`.

    Raises:
        ValueError: not a module, inputs that do not run, or results of different shapes.
    """
    if isinstance(mine, type) or not callable(mine):
        raise ValueError(
            "diagnose_loading: mine must be an nn.Module, or a function that makes it from "
            f"theirs, got {mine!r}. Build it first and pass the object."
        )
    if isinstance(theirs, type) or not (callable(theirs) or isinstance(theirs, Tensor)):
        raise ValueError(
            f"diagnose_loading: theirs must be a model or its result, got {type(theirs).__name__}. "
            "Of a state dict nobody can say what it should give: load it into its own model."
        )
    if isinstance(theirs, Tensor) and inputs is None:
        raise ValueError(
            "diagnose_loading: a result must come with its inputs, got inputs=None. "
            "Pass what theirs was given."
        )
    with undisturbed():
        made_random = not isinstance(mine, nn.Module)
        if made_random:
            theirs, mine = _made(mine, theirs)
        given = (mine, theirs, inputs, call, their_call, made_random)
        try:
            return Comparison(*given).report()
        except Refused as error:  # some compute in single precision only
            try:
                return Comparison(*given, torch.float32).report()
            except Refused:
                raise ValueError(str(error)) from error


class Refused(ValueError):
    """A model that does not run on what it is given."""


def _made(make: Callable, theirs: Any) -> tuple[nn.Module, nn.Module]:
    """Return theirs with random weights, and mine that was made from it."""
    if not isinstance(theirs, nn.Module):
        raise ValueError(
            "diagnose_loading: theirs must be an nn.Module when mine is made from it, got "
            f"{type(theirs).__name__}. Pass the model itself."
        )
    theirs = copied("diagnose_loading", theirs).float()
    randomise(theirs)
    try:
        mine = make(theirs)
    except Exception as error:
        raise ValueError(
            "diagnose_loading: mine must be made from theirs, got "
            f"{type(error).__name__}: {_line(error)}{place(error)}. Repair that line."
        ) from error
    if not isinstance(mine, nn.Module):
        raise ValueError(
            f"diagnose_loading: mine must be made as an nn.Module, got {type(mine).__name__}. "
            "Return the model with the weights in it."
        )
    return theirs, mine


def _sides(model: nn.Module) -> Iterator[tuple[int, int]]:
    """Yield the height and width of the pictures that a model takes."""
    for size in numbers(model, SIDES):
        sides = (size, size) if isinstance(size, int) else tuple(size)
        if len(sides) == 2 and all(isinstance(side, int) for side in sides):
            yield sides


def _line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return text[0].rstrip(".") if text else "no message"


def _plain(model: Any, inputs: Any) -> Any:
    return model(**inputs) if isinstance(inputs, dict) else model(inputs)


class Comparison:
    """One model beside the other.

    Args:
        mine, theirs, inputs, call, their_call: as in `diagnose_loading`.
        made_random: whether all weights are random.
        dtype: in which both compute.
    """

    def __init__(
        self,
        mine: nn.Module,
        theirs: Any,
        inputs: Any,
        call: Callable | None,
        their_call: Callable | None,
        made_random: bool,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        self.name, self.made_random = type(mine).__name__, made_random
        self.dtype = dtype
        self.mine = in_type(copied("diagnose_loading", mine), dtype)
        self.theirs = theirs
        if isinstance(theirs, nn.Module):
            self.theirs = in_type(copied("diagnose_loading", theirs), dtype)
        self.call, self.their_call = call or _plain, their_call or _plain
        tried = [inputs] if inputs is not None else list(self._inputs())
        first: tuple[str, Exception, Any] | None = None
        for given in tried:
            with Precision() as precision:
                result = self._tried("mine", self.call, self.mine, _as(given, dtype))
                wanted = (
                    self.theirs.double()
                    if isinstance(self.theirs, Tensor)
                    else self._tried("theirs", self.their_call, self.theirs, _as(given, dtype))
                )
            failed = [one for one in (result, wanted) if isinstance(one, tuple)]
            if not failed:
                break
            first = first or failed[0]
        else:
            raise self._refused(first)
        if result.shape != wanted.shape:
            raise ValueError(
                "diagnose_loading: mine and theirs must give results of one shape, got "
                f"{tuple(result.shape)} and {tuple(wanted.shape)}. Say what to compare: "
                "their_call=lambda theirs, x: theirs(x).last_hidden_state."
            )
        self.loaded = Loaded(self.mine, self.call, _as(given, dtype))
        self.given, self.result, self.wanted = given, result, wanted.detach()
        self.limit = 2e-5 if dtype == torch.float32 else 3e-6 if precision.single else 1e-9

    def _tried(self, whose: str, call: Callable, model: Any, inputs: Any) -> Any:
        try:
            return ran(call, model, inputs)
        except Exception as error:
            return whose, error, inputs

    def _refused(self, failed: tuple[str, Exception, Any] | None) -> Refused:
        if failed is None:
            return Refused(
                "diagnose_loading: inputs must be given, got None, and nothing says what "
                "the models take. Pass inputs=ids, tokens or pictures."
            )
        whose, error, inputs = failed
        shape = tuple(inputs.shape) if isinstance(inputs, Tensor) else type(inputs).__name__
        name = "call" if whose == "mine" else "their_call"
        return Refused(
            f"diagnose_loading: {whose} must run on inputs {shape}, got {type(error).__name__}: "
            f"{_line(error)}{place(error)}. Pass inputs= that both take, or {name}=lambda model, "
            "x: ..."
        )

    def _inputs(self) -> Iterator[Tensor]:
        """Yield what both models may take."""
        generator = torch.Generator().manual_seed(0)
        models = [m for m in (self.mine, self.theirs) if isinstance(m, nn.Module)]
        if any(isinstance(part, nn.Embedding) for m in models for part in m.modules()):
            most = min(vocabulary(m) for m in models)
            for n in (9, 4):
                yield torch.randint(most, (2, n), generator=generator)
        for height, width in dict.fromkeys(s for m in models for s in _sides(m)):
            for channels in dict.fromkeys((*(c for m in models for c in numbers(m, CHANNELS)), 3)):
                yield torch.randn(2, channels, height, width, generator=generator)
        for width in possible_widths(self.mine, dict(self.mine.named_parameters())):
            yield torch.randn(2, 7, width, generator=generator)

    def _gap(self, made: Tensor) -> float | None:
        """Return how far a result is from theirs, None if too far."""
        if made.shape != self.wanted.shape or not made.isfinite().all():
            return None
        gap = float((made - self.wanted).abs().max() / (1 + self.wanted.abs().max()))
        return gap if gap <= self.limit else None

    def report(self) -> Report:
        """Compare, and say what was found."""
        shape = tuple(self.given.shape) if isinstance(self.given, Tensor) else "as given"
        checked = [f"the results of both, inputs {shape}"]
        checked += ["all weights of theirs made random before they were loaded"] * self.made_random
        untried = ["other inputs, rows of tables that these do not use, training"]
        if self.limit > 1e-9:
            untried.append(f"what changes the result by less than {self.limit:.0e}, as an eps may")
        values = self.loaded.values
        flat = [name for name, value in values.items() if one_number(value)]
        if flat and not self.made_random:
            untried.append(
                f"{len(flat)} tensors of mine that hold one number only ({flat[0]}, ...): a "
                "mistake among them does not show; mine=lambda theirs: ... makes it show"
            )
        failing = []
        if not (self.result.isfinite().all() and self.wanted.isfinite().all()):
            failing.append("both give numbers: there is NaN or infinity")
        elif self.wanted.numel() > 1 and bool((self.wanted == self.wanted.flatten()[0]).all()):
            failing.append("theirs gives more than one number")
        explanations = ()
        if not failing and self._gap(self.result) is None:
            explanations = tuple(self._explained(values))
            if not explanations:
                failing += self._foreign(values)
        return Report(
            self.name,
            not explanations and not failing,
            explanations,
            tuple(failing),
            tuple(checked),
            tuple(untried),
            tolerance=self.limit,
        )

    def _foreign(self, values: dict[str, Tensor]) -> Iterator[str]:
        """Say what differs, where no known mistake explains it."""
        yield "mine gives what theirs gives"
        if isinstance(self.theirs, nn.Module):
            theirs = {name: p.data for name, p in self.theirs.named_parameters()}
            alone = [kind(name) for name, own in owners(values, theirs).items() if not own]
            alone = list(dict.fromkeys(alone))
            if alone:
                more = f" and {len(alone) - 4} more" if len(alone) > 4 else ""
                names = ", ".join(alone[:4]) + more
                yield f"every tensor of mine holds numbers of theirs as they lie: not {names}"
            if alone and self._rounded(values, theirs):
                yield "both hold their weights in one precision: those of mine are rounded"

    def _rounded(self, values: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
        """Say whether every tensor of mine is one of theirs but for its last digits."""
        held = list(pieces(theirs).values())
        return all(
            one_number(value)
            or any(
                torch.allclose(value, way, 1e-2, 1e-2 * float(value.abs().mean()))
                for other in held
                if other.numel() == value.numel()
                for way in fitted(other, value)
            )
            for value in values.values()
        )

    def _explained(self, values: dict[str, Tensor]) -> Iterator[Any]:
        """Yield the mistakes that, undone, give what theirs gives."""
        held = isinstance(self.theirs, nn.Module)
        theirs = {n: p.data for n, p in self.theirs.named_parameters()} if held else {}
        heads = [*numbers(self.mine, HEADS), *numbers(self.theirs, HEADS)]
        eps = [*numbers(self.theirs, EPS), *USUAL_EPS]
        state: State = {
            "values": values,
            "first": values,
            "memory": {},
            "theirs": theirs,
            "owners": owners(values, theirs),
            "heads": list(dict.fromkeys(heads)),
            "eps": list(dict.fromkeys(eps)),
        }

        def difference(state: State) -> float | None:
            changed = {
                name: value for name, value in state["values"].items() if value is not values[name]
            }
            try:
                return self._gap(self.loaded.run(changed, state.get("new_eps"), state.get("bend")))
            except Exception:
                return None  # values that do not fit together

        most = 2 if sum(value.numel() for value in values.values()) < LARGE else 1
        ways = simplest(LOADING, state, difference, most)
        # what theirs holds in a place explains whatever else went wrong there, too
        named = {ids: way for ids, way in ways.items() if "loading-missing" not in ids}
        for ids, way in (named or ways).items():
            found = explain([BUGS[id] for id in ids], way.difference, way.path.detail)
            yield replace(found, evidence="undone, yours gives exactly what theirs gives")


def _as(inputs: Any, dtype: torch.dtype) -> Any:
    """Return inputs with all real numbers in one precision."""
    if isinstance(inputs, Tensor):
        return inputs.to(dtype) if inputs.is_floating_point() else inputs
    if isinstance(inputs, dict):
        return {name: _as(value, dtype) for name, value in inputs.items()}
    return inputs
