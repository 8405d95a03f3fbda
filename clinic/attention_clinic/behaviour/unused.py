"""What no result depends on, what no optimizer gets, and what forward creates or reads outside."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from attention_clinic.capture.module import (
    CallFailed,
    Mode,
    NoDropout,
    Patient,
    held_tensors,
    moved,
    same,
    wanting_gradients,
)

OWN = frozenset(vars(nn.Module()))  # what every module keeps for itself
BUILDS = ("__init__", "init", "_init", "reset", "_reset")  # code that only makes parameters
BRANCHES = (  # functions by whose results code decides what to do next
    "__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy", "equal", "allclose",
    "__gt__", "__lt__", "__ge__", "__le__", "gt", "lt", "ge", "le", "argmax", "argmin", "argsort",
    "sort", "topk", "multinomial", "nonzero", "masked_select", "unique", "bincount",
)  # fmt: skip
FLIP = (-1.5, 0.1)  # moves numbers, and what only their signs decide
PLAIN = "param-plain-tensor"
SHOWN = 3  # names that a report lists


class Trace(Mode):
    """One run, on `enter(t)` for each tensor t, with gradients of the named parameters."""

    def __init__(
        self, module: nn.Module, names: Collection[str], enter: Callable[[Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.module, self.enter, self.training = module, enter, module.training
        self.held = {n: p for n, p in module.named_parameters() if n in names}
        self.results: list[Any] = []  # what the module returned
        self.grads: dict[str, Tensor] = {}  # of all that it returned or keeps
        self.read: set[int] = set()  # ids of the parameters that a function got
        self.branches: list[Tensor] = []  # numbers that learn by which code decided
        self.asked = self.inside = False  # whether code decided by any numbers; ran in forward
        self.cuts = False  # whether numbers that learn went on without their history
        self.overwritten = False  # whether backward needed numbers that were changed in place

    def made(self, run: Callable[[], Tensor]) -> Self:
        """Run the module and return this trace; `CallFailed` for an error or no call of it."""
        handles = [
            self.module.register_forward_pre_hook(self._begin, with_kwargs=True),
            self.module.register_forward_hook(self._end),
        ]
        saved = torch.autograd.graph.saved_tensors_hooks(lambda t: (t, t._version), self._unpacked)
        try:
            with torch.random.fork_rng(devices=[]), wanting_gradients(list(self.held.values())):
                torch.manual_seed(0)
                with NoDropout(), self, saved:
                    run()
        finally:
            for handle in handles:
                handle.remove()
        if not self.results:
            raise CallFailed
        held = held_tensors([self.results, [vars(part) for part in self.module.modules()]])
        self.grads = self.reached([t for t in held if t.grad_fn])
        return self

    def _begin(self, part: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        torch.set_grad_enabled(True)
        given = [self.enter(v) if isinstance(v, Tensor) else v for v in (*args, *kwargs.values())]
        self.inside = True
        return tuple(given[: len(args)]), dict(zip(kwargs, given[len(args) :], strict=True))

    def _end(self, part: nn.Module, args: Any, result: Any) -> None:
        self.inside = False
        self.results.append(result)

    def _unpacked(self, packed: tuple[Tensor, int]) -> Tensor:
        self.overwritten |= packed[0]._version != packed[1]
        return packed[0]

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if name == "group_norm":  # its backward may end the process where channels come last
            args = tuple(t.contiguous() if isinstance(t, Tensor) else t for t in args)
        if not self.inside:
            return func(*args, **kwargs)
        given = list(held_tensors([args, kwargs]))
        learns = [t for t in given if t.requires_grad]
        result = func(*args, **kwargs)
        if name != "__get__":
            self.read |= {id(t) for t in given if isinstance(t, nn.Parameter)}
        if name in BRANCHES or (name == "where" and len(args) == 1):
            self.asked = True
            self.branches += learns
        if learns and "_like" not in name and not name.startswith("new_"):
            out = given[0] if name == "__setitem__" else result
            bare = isinstance(out, Tensor) and out.is_floating_point() and not out.requires_grad
            self.cuts |= bare or name in ("item", "tolist", "numpy")
        return result

    @property
    def output(self) -> Tensor:
        """The first tensor of each result, flat."""
        firsts = [next(held_tensors(result)) for result in self.results]
        return torch.cat([t.flatten() for t in firsts if t.is_floating_point()])

    def reached(
        self, ends: Sequence[Tensor], starts: dict[str, Tensor] | None = None
    ) -> dict[str, Tensor]:
        """Return the gradients of a sum of sizes by the starts, or parameters, that it needs."""
        total = sum((t.abs().sum() for t in ends if t.requires_grad), torch.zeros(()))
        starts = starts or self.held
        if not total.requires_grad or not starts:
            return {}
        try:
            with wanting_gradients(list(self.held.values())):
                given = list(starts.values())
                found = torch.autograd.grad(total, given, retain_graph=True, allow_unused=True)
        except RuntimeError as error:  # a function without derivatives, or a stranger's own
            raise CallFailed from error
        return {n: grad for n, grad in zip(starts, found, strict=True) if grad is not None}


def listed(words: Sequence[str], between: str = ", ") -> str:
    """Return the first words and how many more there are."""
    more = f" and {len(words) - SHOWN} more" if len(words) > SHOWN else ""
    return between.join(words[:SHOWN]) + more


def moves(run: Callable[[], Tensor], held: Sequence[Tensor]) -> bool:
    """Return whether the output of a run changes with some tensors."""
    with NoDropout(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        y = run()
        with moved([t for t in held if t.is_floating_point()], *FLIP):
            torch.manual_seed(0)
            try:
                return not same(y, run())
            except CallFailed:  # code that refuses some numbers reads them
                return True


def unused_parts(
    module: nn.Module, traces: Sequence[Trace], unused: Collection[str], cut: bool
) -> Iterator[tuple[str, str]]:
    """Yield the bugs of unused parameters; what was read may come before a cut gradient."""
    highest: dict[str, list[str]] = {}  # the highest parts none of whose parameters is used
    for name in sorted(unused):
        parts = name.split(".")
        for path in (".".join(parts[:depth]) for depth in range(1, len(parts) + 1)):
            if all(n in unused for n in traces[0].held if f"{n}.".startswith(f"{path}.")):
                highest.setdefault(path, []).append(name)
                break
    asked = any(trace.asked for trace in traces)
    for path, inside in highest.items():
        where, _, name = path.rpartition(".")
        part = getattr(module.get_submodule(where), name)
        layer = not isinstance(part, Tensor | nn.ParameterList | nn.ParameterDict)
        bug = "part-unused" if layer else "parameter-unused"
        ids = {id(module.get_parameter(n)) for n in inside}
        if any(ids & trace.read for trace in traces):
            decides = any(trace.reached(trace.branches).keys() & {*inside} for trace in traces)
            if not (cut or decides):
                yield bug, f"nothing uses what {path} returns" if layer else f"nothing uses {path}"
        elif not ((name.isdigit() and asked) or is_mentioned(module, path)):
            yield bug, f"{path} is never {'called' if layer else 'read'}"


def is_mentioned(module: nn.Module, path: str) -> bool:
    """Return whether code, besides the code that builds a module, reads what a path names."""
    where, _, name = path.rpartition(".")
    if name.isdigit():  # of a list: code that reads the list may mean the others
        return False
    kind = type(module.get_submodule(where))
    files = {one.__module__ for part in module.modules() for one in type(part).__mro__}
    files = {file for file in files if file.split(".")[0] not in ("torch", "builtins")}
    known = [v for file in files for v in list(vars(sys.modules.get(file, sys)).values())]
    known = [*kind.__mro__, *(value for value in known if isinstance(value, type))]
    for value in [one for one in known if one.__module__ in files]:
        own = issubclass(value, kind) or issubclass(kind, value)
        for key, one in vars(value).items():
            one = inspect.unwrap(one.fget if isinstance(one, property) else one)
            runs = isinstance(one, FunctionType) and not key.startswith(BUILDS)
            if runs and _reads(one.__code__, name, own, one.__globals__):
                return True
    return False


def _reads(code: CodeType, name: str, own: bool, space: dict[str, Any]) -> bool:
    """Return whether code reads an attribute, not of a library; `own`: `self` may have it."""
    before: Any = None
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD") and one.argval == name:
            last = before.argval[-1:] if isinstance(before.argval, tuple) else (before.argval,)
            library = before.opname == "LOAD_GLOBAL" and isinstance(space.get(*last), ModuleType)
            if (own or last != ("self",)) and not library:
                return True
        if own and one.opname.startswith("LOAD_") and one.argval == "getattr":
            return True
        before = one
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return any(_reads(one, name, own, space) for one in inner)


def created_in_forward(patient: Patient, run: Callable[[], Tensor]) -> list[str]:
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


def reads_globals(module: nn.Module | Callable[..., Any]) -> list[str]:
    """Return the names of the tensors outside the module that `forward` reads."""
    function = inspect.unwrap(type(module).forward if isinstance(module, nn.Module) else module)
    names = function.__code__.co_names if isinstance(function, FunctionType) else ()
    return [name for name in names if isinstance(function.__globals__.get(name), Tensor)]


def plain_findings(patient: Patient, run: Callable[[], Tensor]) -> list[tuple[str, str]]:
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
                if plain and (one.requires_grad or _looks_random(one)) and moves(run, [copy]):
                    kind = "requires gradients" if one.requires_grad else "holds random numbers"
                    place = f"{path}.{name}".lstrip(".")
                    return [(PLAIN, f"self.{place} {kind}: use nn.Parameter")]
    return []


def _looks_random(t: Tensor) -> bool:
    """Return whether numbers are distinct and neighbours are uncorrelated."""
    t = t.detach().double().squeeze()
    if t.numel() < 32 or t.unique().numel() < 0.9 * t.numel() or not t.isfinite().all():
        return False
    t = (t - t.mean()) / t.std()
    near = [t.narrow(i, 1, n - 1) * t.narrow(i, 0, n - 1) for i, n in enumerate(t.shape)]
    return all(float(one.mean().abs()) <= 4 * one.numel() ** -0.5 for one in near)
