"""Dropout that is active in eval mode, and dropout that nothing uses in training mode."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator
from types import CodeType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook as after_each
from torch.nn.modules.module import register_module_forward_pre_hook as before_each

from attention_clinic.behaviour.unused import is_mentioned, listed, moves
from attention_clinic.capture.module import CallFailed, NoDropout, Patient, in_training, same

LAYERS = (
    nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout,
)  # fmt: skip
LEAST = 0.05  # a probability whose effect shows in two runs on a few hundred numbers
# what such an argument drops is not single numbers
OTHER = ("last", "path", "first", "layer", "token", "patch", "head", "cls", "mask", "col", "row")


class Running(NoDropout):
    """Follow which parts run and which of them drop; let dropout act `inside` one part only."""

    def __init__(self, inside: nn.Module | None = None) -> None:
        super().__init__()
        self.inside = inside
        self.met: set[nn.Module] = set()  # parts that were called
        self.dropping: set[nn.Module] = set()  # inside them something drops
        self.calling: set[nn.Module] = set()  # they drop something themselves
        self.trying: set[nn.Module] = set()  # they or their layers may drop, whatever p is
        self.drawing: set[nn.Module] = set()  # they draw random numbers in another way
        self.stack: list[nn.Module] = []
        self.states: list[Tensor] = []  # of the random numbers when each of them began

    def __enter__(self) -> Self:
        self.handles = (before_each(self._begin), after_each(self._end, always_call=True))
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for handle in self.handles:
            handle.remove()

    def _begin(self, part: nn.Module, args: Any) -> None:
        self.met.add(part)
        self.stack.append(part)
        self.states.append(torch.get_rng_state())

    def _end(self, part: nn.Module, args: Any, result: Any) -> None:
        self.stack.pop()
        if not torch.equal(self.states.pop(), torch.get_rng_state()):
            self.drawing.add(part)

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(part is self.inside for part in self.stack):
            return func(*args, **kwargs)
        return super().called(func, args, kwargs)

    def _count(self, probability: float) -> None:
        super()._count(probability)
        self.trying.update(self.stack[-2:])
        if probability > 0:
            self.dropping.update(self.stack)
            self.calling.update(self.stack[-1:])


def dropout_findings(patient: Patient, run: Callable[[], Tensor]) -> tuple[list[str], str]:
    """Return which bugs of dropout a module has, and what shows them ("" for nothing more)."""
    resting, patient.resting = patient.resting, False
    try:
        for name in patient.listed:  # eval() does not reach them in the user's module
            patient.module.get_submodule(f"{name}_listed").train()
        evaluates = not same(run(), run())
        if evaluates:
            with NoDropout():
                evaluates = same(run(), run())
        words = _unused(patient, run) if patient.is_module else []
    except CallFailed:  # what does not run says nothing
        return [], ""
    finally:
        patient.resting = resting
        if patient.is_module:
            patient.module.eval()
    return ["dropout-eval"] * evaluates + ["dropout-unused"] * bool(words), listed(words, "; ")


def _unused(patient: Patient, run: Callable[[], Tensor]) -> list[str]:
    """Return where a dropout is built, kept or taken that drops nothing in training mode."""
    module, words = patient.module, []
    with in_training(module):
        with Running() as seen:
            y = run()
        for path, part in [*module.named_modules()] if y.isfinite().any() else ():
            strange = part is module or not type(part).__module__.startswith("torch.")
            if part in seen.met - seen.drawing and (strange or isinstance(part, LAYERS)):
                found = list(_declared(module, path, part, seen))
                if found and part in seen.dropping:
                    # own weights: a layer that starts at zero hides it
                    drops = seen.largest < LEAST or patient.own_weights
                    with Running(part):
                        if drops or not (same(y, run()) and same(y, run())):
                            continue
                while found and path and not [*module.get_submodule(path).parameters()]:
                    path = path.rpartition(".")[0]  # its result is used if theirs is
                if found and (not path or moves(run, [*module.get_submodule(path).parameters()])):
                    words += found
    return list(dict.fromkeys(words))


def _declared(module: nn.Module, path: str, part: nn.Module, seen: Running) -> Iterator[str]:
    """Yield how a part declares a dropout with a probability above 0."""
    place = f" of {path}" if path else ""
    if part in seen.calling:
        layer = isinstance(part, LAYERS)
        yield f"nothing uses what {path if layer else f'F.dropout{place}'} returns"
        return
    for name, child in _dropouts(part):
        where = f"{path}.{name}".removeprefix(".")
        spare = part not in seen.trying and not is_mentioned(module, where)
        if child not in seen.met and (child.p > 0 or spare):
            yield f"{where} is never called"
    for name, value in vars(part).items():
        kept = _is_probability(name) and isinstance(value, float) and 0 < value < 1
        if kept and (part is module or not is_mentioned(module, f"{path}.{name}")):
            yield f"self.{name}{place} is {value:g}, and nothing drops"
    for name in _never_read(type(part)) if part is module or module not in seen.dropping else ():
        yield f"__init__{place} never reads {name}"


def _dropouts(part: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the dropout layers that a part holds itself or in a list."""
    for name, child in part.named_children():
        if isinstance(child, LAYERS):
            yield name, child
        elif isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield from ((f"{name}.{key}", inner) for key, inner in _dropouts(child))


def _is_probability(name: str) -> bool:
    """Return whether a name is that of a dropout of single numbers."""
    return "drop" in name.lower() and not any(word in name.lower() for word in OTHER)


def _never_read(kind: type) -> Iterator[str]:
    """Yield the dropout arguments that the constructor of a class never reads."""
    code = getattr(kind.__init__, "__code__", None)
    if not isinstance(code, CodeType) or kind.__module__.startswith("torch."):
        return
    read: set[str] = set()
    for one in dis.get_instructions(code):
        if one.opname.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")):
            read.update(one.argval if isinstance(one.argval, tuple) else (one.argval,))
    for name, one in inspect.signature(kind.__init__, follow_wrapped=False).parameters.items():
        option = isinstance(one.default, bool | None)  # not a probability
        many = one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        if name not in read and _is_probability(name) and not (option or many):
            yield name
