"""What a module declares or holds and its output does not depend on, dropout included."""

from __future__ import annotations

import dis
import inspect
from collections.abc import Callable, Iterator, Sequence
from types import CodeType, FunctionType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook as after_each
from torch.nn.modules.module import register_module_forward_pre_hook as before_each
from torch.nn.modules.module import register_module_parameter_registration_hook

from attention_clinic.capture.module import (
    CallFailed,
    NoDropout,
    Patient,
    held_tensors,
    in_training,
    same,
)

OWN = frozenset(vars(nn.Module()))  # what every module keeps for itself
BUILDS = ("__init__", "init", "_init", "reset", "_reset")  # code that only makes parameters
PLAIN = "param-plain-tensor"
SHOWN = 3  # names that a report lists
DROPOUTS = (
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)
LEAST = 0.05  # a probability whose effect shows in two runs on a few hundred numbers
# what such an argument drops is not single numbers
OTHER = ("last", "path", "first", "layer", "token", "patch", "head", "cls", "mask", "col", "row")
Call = Callable[[], Tensor]


def listed(words: Sequence[str], between: str = ", ") -> str:
    """Return the first words and how many more there are."""
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return between.join(words[:SHOWN]) + more


def moves(run: Call, held: Sequence[Tensor]) -> bool:
    """Return whether the output of a run changes with some tensors."""
    with NoDropout(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        y = run()
        kept = [(t, t.detach().clone()) for t in held if t.is_floating_point()]
        try:
            for t, _ in kept:
                t.data.mul_(-1.5).add_(0.1)  # moves numbers, and what only their signs decide
            torch.manual_seed(0)
            return not same(y, run())
        except CallFailed:  # code that refuses some numbers reads them
            return True
        finally:
            for t, before in kept:
                t.data.copy_(before)


def is_mentioned(module: nn.Module, path: str) -> bool:
    """Return whether code of a class, besides the code that builds, reads what a path names."""
    where, _, name = path.rpartition(".")
    if name.isdigit():  # of a list: code that reads the list may mean the others
        return False
    for kind in type(module.get_submodule(where)).__mro__:
        for key, one in vars(kind).items() if not kind.__module__.startswith("torch") else ():
            one = inspect.unwrap(one.fget if isinstance(one, property) else one)
            runs = isinstance(one, FunctionType) and not key.startswith(BUILDS)
            if runs and {name, "getattr"} & _names(one.__code__):
                return True
    return False


def _names(code: CodeType) -> set[str]:
    """Return the names of attributes and of globals that code reads."""
    inner = [one for one in code.co_consts if isinstance(one, CodeType)]
    return {*code.co_names}.union(*map(_names, inner))


def created_in_forward(run: Call) -> list[str]:
    """Return the classes of the layers with weights that a second call creates, [] for none."""
    kinds: dict[str, bool] = {}

    def note(part: nn.Module, name: str, parameter: object) -> None:
        if isinstance(parameter, Tensor) and parameter.requires_grad:
            kinds[type(part).__name__] = True

    handle = register_module_parameter_registration_hook(note)
    try:
        run()
    finally:
        handle.remove()
    return list(kinds)


def plain_findings(patient: Patient, run: Call) -> list[tuple[str, str]]:
    """Return the bug of what a run reads and no optimizer gets, with a detail; [] for none."""
    for name in patient.listed:
        if moves(run, [*patient.module.get_submodule(f"{name}_listed").parameters()]):
            return [(PLAIN, f"self.{name} holds layers in a plain list: use nn.ModuleList")]
    known, parts = {*patient.original.parameters()}, dict(patient.module.named_modules())
    for path, part in patient.original.named_modules():
        own = vars(parts[path]) if path in parts else {}
        for name in [name for name in own if name not in OWN and name in vars(part)]:
            twins = held_tensors(own[name])
            for one, copy in zip(held_tensors(vars(part)[name]), twins, strict=False):
                plain = one not in known and one.is_floating_point() and one.numel() > 1
                if plain and one.requires_grad and moves(run, [copy]):
                    place = f"{path}.{name}".lstrip(".")
                    return [(PLAIN, f"self.{place} requires gradients: use nn.Parameter")]
    return []


class Running(NoDropout):
    """Follow which parts run and which of them drop; let dropout act `inside` one part only."""

    def __init__(self, inside: nn.Module | None = None) -> None:
        super().__init__()
        self.inside = inside
        self.met: set[nn.Module] = set()  # parts that were called
        self.dropping: set[nn.Module] = set()  # inside them something drops
        self.calling: set[nn.Module] = set()  # they drop something themselves
        self.stack: list[nn.Module] = []

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

    def _end(self, *given: Any) -> None:
        self.stack.pop()

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if any(part is self.inside for part in self.stack):
            return func(*args, **kwargs)
        return super().called(func, args, kwargs)

    def _count(self, probability: float) -> None:
        super()._count(probability)
        if probability > 0:
            self.dropping.update(self.stack)
            self.calling.update(self.stack[-1:])


def dropout_findings(patient: Patient, run: Call) -> list[tuple[str, str]]:
    """Return the bug of a dropout that drops nothing in training mode, with a detail; or []."""
    resting, patient.resting = patient.resting, False
    try:
        words = _undropped(patient, run)
    except CallFailed:  # what does not run says nothing
        return []
    finally:
        patient.resting = resting
    return [("dropout-unused", listed(words, "; "))] * bool(words)


def _undropped(patient: Patient, run: Call) -> list[str]:
    """Return where a dropout is built, kept or taken that drops nothing in training mode."""
    module, words = patient.module, []
    with in_training(module):
        before = torch.get_rng_state()
        with Running() as seen:
            y = run()
        if not (y.isfinite().any() and torch.equal(before, torch.get_rng_state())):
            return []  # it may drop numbers in a way of its own
        for path, part in [*module.named_modules()]:
            strange = part is module or not type(part).__module__.startswith("torch.")
            if part not in seen.met or not (strange or isinstance(part, DROPOUTS)):
                continue
            found: list[str] = []
            if part not in seen.calling:
                found = list(_declared(module, path, part, seen))
            elif seen.largest > LEAST and not patient.own_weights:  # a zero at the start hides it
                name = path if isinstance(part, DROPOUTS) else "F.dropout"
                with Running(part):
                    if same(y, run()) and same(y, run()):
                        found = [f"nothing uses what {name} returns"]
            while found and path and not [*module.get_submodule(path).parameters()]:
                path = path.rpartition(".")[0]  # its result is used if theirs is
            if found and (not path or moves(run, [*module.get_submodule(path).parameters()])):
                words += found
    return list(dict.fromkeys(words))


def _declared(module: nn.Module, path: str, part: nn.Module, seen: Running) -> Iterator[str]:
    """Yield how a part that drops nothing itself declares a dropout."""
    place, drops = f" of {path}" if path else "", part in seen.dropping
    layers = list(_dropouts(part))
    beside = any(child in seen.met for _, child in layers)  # a layer of the same part drops
    for name, child in layers:
        where = f"{path}.{name}".removeprefix(".")
        idle = child.p > 0 and child not in seen.met
        if idle and (not drops or (beside and not is_mentioned(module, where))):
            yield f"{where} is never called"
    for name, value in vars(part).items() if not drops else ():
        kept = _is_probability(name) and isinstance(value, float) and 0 < value < 1
        if kept and (part is module or not is_mentioned(module, f"{path}.{name}")):
            yield f"self.{name}{place} is {value:g}, and nothing drops"
    for name in _never_read(type(part)) if part is module and not drops else ():
        yield f"__init__{place} never reads {name}"


def _dropouts(part: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the dropout layers that a part holds itself or in a list."""
    for name, child in part.named_children():
        if isinstance(child, DROPOUTS):
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
    loads = [one for one in dis.get_instructions(code) if one.opname.startswith("LOAD_")]
    several = (one.argval if isinstance(one.argval, tuple) else (one.argval,) for one in loads)
    read = {name for names in several for name in names}
    for name, one in inspect.signature(kind.__init__, follow_wrapped=False).parameters.items():
        option = isinstance(one.default, bool | None)  # not a probability
        many = one.kind in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        if name not in read and _is_probability(name) and not (option or many):
            yield name
