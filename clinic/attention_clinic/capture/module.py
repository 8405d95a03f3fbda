"""A copy of the module under examination: random weights, double precision, calls of it."""

from __future__ import annotations

import copy
import inspect
import random
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attention_clinic.capture import calling
from attention_clinic.capture.calling import Way, is_mask, parameters_of

PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)
ONES = ("weight", "gamma", "a_2", "scale", "g", "alpha")  # vectors that start at 1
HERE = str(Path(__file__).parents[1])
NO_SOURCE = ("site-packages", "dist-packages", "/torch/", HERE, "importlib", "<frozen")


class CallFailed(Exception):
    """A call of the module raised an error, which is the cause of this one."""

    @property
    def error(self) -> BaseException:
        """The error of the module."""
        return self.__cause__ or self


def attempted(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the result of a user's function; an error inside it becomes `CallFailed`."""
    try:
        return function(*args, **kwargs)
    except Exception as error:  # of a user's code: its callers decide what it means
        raise CallFailed from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error message, without its period."""
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else "no message"


def place(error: BaseException) -> str:
    """Return " in forward, line 12 of file.py: code" for the last line of the user's code."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not any(part in f.filename for part in NO_SOURCE)]
    if not own:
        return ""
    frame, code = own[-1], (own[-1].line or "").strip()
    file = "" if "ipykernel" in frame.filename else f" of {Path(frame.filename).name}"
    return f" in {frame.name}, line {frame.lineno}{file}: {code}".rstrip(": ").rstrip(".")


class Mode(TorchFunctionMode):
    """A mode for every call of a function of torch; a subclass overrides `called`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return self.called(func, args, dict(kwargs or {}))

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the result of a call of `func`."""
        return func(*args, **kwargs)


class NoDropout(Mode):
    """Turn every dropout off; count the `calls` that drop, and keep the `largest` probability."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.largest = 0, 0.0

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if func is F.scaled_dot_product_attention:
            self._count(float(kwargs.pop("dropout_p", None) or (args[4] if len(args) > 4 else 0)))
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
        elif "dropout" in name:
            self._count(float(kwargs.get("p", args[1] if len(args) > 1 else 0.5)))
            return args[0] if args else kwargs["input"]
        elif name == "multi_head_attention_forward":  # a mode does not see what it calls
            if kwargs.get("training", True):
                self._count(float(kwargs.get("dropout_p", args[10] if len(args) > 10 else 0.0)))
            kwargs["training"] = False
        return func(*args, **kwargs)

    def _count(self, probability: float) -> None:
        self.calls += probability > 0
        self.largest = max(self.largest, probability)


class Precision(Mode):
    """Notice numbers in `single` precision inside a module in double precision."""

    def __init__(self) -> None:
        super().__init__()
        self.single = False

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        tensors = [t for t in (*args, result) if isinstance(t, Tensor)]
        self.single |= any(t.dtype in (torch.float32, torch.complex64) for t in tensors)
        return result


@contextmanager
def in_training(module: nn.Module, training: bool = True) -> Iterator[None]:
    """Set a copy to training mode for a while; restore what it keeps for itself afterwards."""
    stores = [store for part in module.modules() for store in (part._buffers, vars(part))]
    kept = [(store, dict(store)) for store in stores]
    clones = {t: t.detach().clone() for s in stores for t in s.values() if isinstance(t, Tensor)}
    module.train(training)
    try:
        yield
    finally:
        for store, before in kept:
            store.clear()
            store.update({k: clones[t] if isinstance(t, Tensor) else t for k, t in before.items()})
        module.eval()


@contextmanager
def undisturbed() -> Iterator[None]:
    """Restore the random states of Python and torch at the end."""
    ours = random.getstate()
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(ours)


def unwrapped(where: str, module: Any) -> Any:
    """Return the plain module or function inside torch.compile and data-parallel wrappers.

    What cannot be examined is a `ValueError` that begins with `where`.
    """
    inner = module.module if isinstance(module, PARALLEL) else getattr(module, "_orig_mod", None)
    if inner is not None:
        return unwrapped(where, inner)
    try:
        parameters_of(module)
        known = not isinstance(module, type | torch.jit.ScriptModule | torch.jit.ScriptFunction)
    except (TypeError, ValueError):  # of a built-in function
        known = False
    if not known:
        raise ValueError(
            f"{where}: module must be an nn.Module or a Python function, got {module!r:.80}. "
            "Build it first and pass the object, from before torch.jit."
        )
    return module


def held_tensors(value: object, depth: int = 4, kind: Any = Tensor) -> Iterator[Any]:
    """Yield the tensors, or what is of a kind, in lists, dictionaries and plain objects."""
    if isinstance(value, kind):
        yield value
    elif depth and not isinstance(value, nn.Module | type):
        plain = isinstance(value, list | tuple | set)
        held = value if isinstance(value, dict) else getattr(value, "__dict__", {})
        for one in value if plain else held.values():
            yield from held_tensors(one, depth - 1, kind)


def copied(where: str, module: nn.Module) -> nn.Module:
    """Return a copy on the CPU, in eval mode, without hooks of the user, or raise `ValueError`."""
    held = [t for part in module.modules() for t in held_tensors(vars(part))]
    # deepcopy refuses tensors with a history
    memo = {id(t): t.detach().clone() for t in held if not t.is_leaf}
    try:
        made = attempted(copy.deepcopy, module, memo)
    except CallFailed as failed:
        raise ValueError(
            f"{where}: the module must work with copy.deepcopy, got "
            f"{type(failed.error).__name__}: {first_line(failed.error)}. "
            "Keep open files, locks and tensors of other computations out of it."
        ) from failed.error
    for part in made.modules():
        part._forward_hooks.clear()
        for key, hook in list(part._forward_pre_hooks.items()):
            if not type(hook).__module__.startswith("torch.nn.utils"):  # as weight_norm's
                del part._forward_pre_hooks[key]
    made.cpu().eval()
    return made.requires_grad_(False)


def register_plain(module: nn.Module) -> tuple[str, ...]:
    """Register the layers that a copy keeps in plain lists; return the names of the attributes."""
    known, found, own = {*module.modules()}, [], vars(nn.Module())
    for path, part in list(module.named_modules()):
        for name, value in [pair for pair in vars(part).items() if pair[0] not in own]:
            layers = [one for one in held_tensors(value, 3, nn.Module) if one not in known]
            layers = [one for one in layers if any(True for _ in one.parameters())]
            if len(layers) > name.startswith("_"):  # one may be hidden: it is another module's
                part.add_module(f"{name}_listed", nn.ModuleList(layers).cpu().requires_grad_(False))
                found.append(f"{path}.{name}".lstrip("."))
    return tuple(found)


def is_factor(parameter: Tensor) -> bool:
    """Return whether a parameter is one number other than 0, mostly the factor of the scores."""
    return parameter.numel() == 1 and bool((parameter != 0).all())


def randomize(module: nn.Module, seed: int = 0) -> None:
    """Give parameters random values, so that no zero, one or equal start hides a mistake.

    One number other than 0 stays, mostly the factor of the scores, and so does a mask with -inf.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, p in module.named_parameters():
        if not p.is_floating_point() or is_factor(p) or bool(p.isneginf().any()):
            continue
        noise = torch.randn(p.shape, generator=generator, dtype=torch.float32)
        if p.ndim > 1:
            noise *= max(1, *p.shape[-2:]) ** -0.5
        else:
            noise = noise * 0.3 + (name.rsplit(".", 1)[-1] in ONES)
        p.data.copy_(noise)


def _is_single(t: Tensor) -> bool:
    """Return whether a tensor was computed in single precision, as cosines are; masks are not."""
    if t.dtype != torch.float32:
        return t.dtype == torch.complex64
    some = 1024 * t.detach().flatten()[:4096]
    return not torch.equal(some.nan_to_num(0, 0, 0), some.nan_to_num(0, 0, 0).round())


class Patient:
    """A copy of a module, or a function, that can be called on tokens.

    An error message begins with `where`. The weights are random unless `own_weights` keeps them.
    """

    def __init__(
        self, where: str, module: Any, call: Callable[..., Any] | None = None, own_weights=False
    ) -> None:
        self.where, self.original, self.call, self.own_weights = where, module, call, own_weights
        self.name = getattr(module, "__name__", type(module).__name__)
        self.is_module = isinstance(module, nn.Module)
        self.way = Way()
        self.dtype = torch.float64
        self.rough = False  # rough: whether a constant has single precision
        self.resting = False  # whether dropout is turned off
        self.given: set[str] = set()  # arguments of forward that got a value
        self.listed: tuple[str, ...] = ()  # attributes that hold layers in plain lists
        self.module: Any = module
        if not self.is_module:
            return
        self.module = copied(where, module)
        self.listed = register_plain(self.module)
        self.module.register_forward_pre_hook(self._note, with_kwargs=True)
        fixed = [t for part in self.module.modules() for t in held_tensors(vars(part))]
        parameters = {id(p) for p in self.module.parameters() if not is_factor(p)}
        self.rough = any(_is_single(t) for t in fixed if id(t) not in parameters)
        if not own_weights:
            randomize(self.module)
        self.module.double().eval()

    def in_single(self, single: bool = True) -> None:
        """Use single precision, for a module with constants that refuse double; or double."""
        self.dtype = torch.float32 if single else torch.float64
        if self.is_module:
            self.module.float() if single else self.module.double()

    @property
    def tolerance(self) -> float:
        """The largest difference, relative to the output, that counts as equal."""
        return 1e-5 if self.dtype == torch.float32 else 3e-6 if self.rough else 1e-9

    def tokens(self, *shape: int, seed: int = 0) -> Tensor:
        """Return random tokens of this shape."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(self.dtype)

    @torch.no_grad()
    def run(self, x: Tensor, mask: Any = None, context: Any = None, cache: Any = None) -> Tensor:
        """Call the copy on a clone of x and return its tokens; `CallFailed` if it raises."""
        x, context = x.clone(), None if context is None else context.to(x.dtype, copy=True)
        if mask is not None:
            mask = mask.to(x.dtype if mask.is_floating_point() else mask.dtype, copy=True)
        with NoDropout() if self.resting else nullcontext(), Precision() as watch:
            result = attempted(self._called, x, mask, context, cache)
        y = calling.swapped(attempted(calling.first_tensor, result), self.way.time_first).detach()
        self.rough |= watch.single
        return y.cpu().to(x.dtype)

    def _called(self, x: Tensor, mask: Any, context: Any, cache: Any) -> object:
        if self.call is None:
            return calling.call(self.module, self.way, x, mask, context, cache)
        given = [x] if context is None else [x, context]
        if cache is not None or mask is not None or calling.positional(self.call) > 1 + len(given):
            given.append(mask if cache is None else cache[0])
        return self.call(self.module, *given)

    def _note(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Remember which arguments of forward got a value."""
        given = dict(zip(inspect.signature(module.forward).parameters, args, strict=False)) | kwargs
        self.given |= {name for name, value in given.items() if value is not None}

    def rest(self, x: Tensor) -> bool:
        """Turn dropout off if two calls differ; return whether that was needed."""
        if not same(self.run(x), self.run(x)):
            self.resting = True
            self.resting = same(self.run(x), self.run(x))
        return self.resting

    def untried(self) -> tuple[str, ...]:
        """Return notes on the arguments of forward that never got a value."""
        defaults = {name: p.default for name, p in parameters_of(self.module).items()}
        names = [n for n, value in defaults.items() if value is None and n not in self.given]
        how = ": mask=... tries one"
        return tuple(f"the argument {name}{how * is_mask(name)}" for name in names)

    def refusal(self, error: BaseException, shape: tuple[int, ...]) -> ValueError:
        """Return the error for a module that does not run, with the line of its own code."""
        how = "say how to call it: call=lambda module, x: module(x, ...)"
        return ValueError(
            f"{self.where}: {self.name} must run on x of shape {tuple(shape)}, got "
            f"{type(error).__name__}: {first_line(error)}{place(error)}. "
            f"Fix that line, or {'the call' if self.call else how}."
        )


def same(first: Tensor, second: Tensor) -> bool:
    """Return whether two outputs are equal up to rounding, NaN included."""
    digits = 1e-5 if first.dtype == torch.float32 else 1e-11
    alike = first.shape == second.shape
    return alike and torch.allclose(first, second, rtol=digits, atol=digits, equal_nan=True)


def check_positive(where: str, **sizes: int) -> None:
    """Raise a `ValueError` unless every size is an integer of at least 1."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"{where}: {name} must be an integer of at least 1, got {name}={value!r}. "
                f"Pass an integer such as {name}=4."
            )
