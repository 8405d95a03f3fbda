"""A copy of the module under examination: run it, change it, leave the module as it was."""

from __future__ import annotations

import copy
import inspect
import linecache
import random
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.arguments import ROTARY, Tables, tensors
from attention_clinic.engine.calls import (
    first_tensor,
    mask_argument,
    says_time_first,
    standard_call,
    takes,
    tensor_for,
    unknown_names,
)
from attention_clinic.engine.copies import held_in, is_factor, randomise, rebind, remember
from attention_clinic.engine.crossing import Sides, crossed_call, sides_of
from attention_clinic.engine.devices import at_home
from attention_clinic.engine.layouts import Layout
from attention_clinic.engine.listed import register_listed, register_plain
from attention_clinic.engine.modes import NoDropout, Precision, Widened
from attention_clinic.engine.openings import Opening
from attention_clinic.engine.refusal import refused
from attention_clinic.engine.untried import WHOLE_CACHE, empty, note, odd_weights, untried_of
from attention_clinic.engine.unwrapping import eager, evaluated

HERE = str(Path(__file__).parents[1])
WIDTHS = "embed_dim hidden_size d_model n_embd dim embed_size emb_size emb_dim model_dim width"
NO_SOURCE = ("site-packages", "dist-packages", "/torch/", HERE, "importlib", "<frozen")


@contextmanager
def undisturbed(module: Any = None) -> Iterator[None]:
    """Put every global random state back afterwards, and run what is compiled as plain Python.

    Args:
        module: what runs meanwhile, on the CPU, whatever device it names; None for what does not.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    numpy = sys.modules.get("numpy")  # who has not imported it has no state of it to keep
    ours, numpys = random.getstate(), numpy and numpy.random.get_state()
    with torch.random.fork_rng(devices=devices), eager(), at_home(module):
        try:
            yield
        finally:
            random.setstate(ours)
            if numpy is not None:
                numpy.random.set_state(numpys)


def copied(where: str, module: nn.Module) -> nn.Module:
    """Return a copy on the CPU, in eval mode, without the hooks of its user.

    Args:
        where: the public name that an error begins with.
        module: the module, which stays as it is.

    Raises:
        ValueError: a module that cannot be copied.
    """
    # deepcopy refuses tensors with a history: hand it detached copies of them
    held = [t for part in module.modules() for t in held_in(list(vars(part).values()))]
    memo: dict[int, object] = {id(t): t.detach().clone() for t in held if not t.is_leaf}
    try:
        patient = copy.deepcopy(module, memo)
        remember(module, memo)
        patient.cpu().eval()
    except Exception as error:
        raise ValueError(
            f"{where}: the module must be one that copy.deepcopy can copy, got "
            f"{type(error).__name__}: {first_line(error)}. "
            "Keep open files, locks and tensors of another computation out of it."
        ) from error
    for part in patient.modules():
        rebind(part, memo)
        for kind in ("_forward_hooks", "_backward_hooks", "_backward_pre_hooks"):
            getattr(part, kind).clear()
        for key, hook in list(part._forward_pre_hooks.items()):
            # torch's own weight_norm and spectral_norm compute the weight in such a hook
            if not type(hook).__module__.startswith("torch.nn.utils"):
                del part._forward_pre_hooks[key]
    return patient.requires_grad_(False)


def _is_rounded(t: Tensor) -> bool:
    """Say whether a tensor was computed in single precision, as cosines are, and masks are not."""
    if t.dtype not in (torch.float32, torch.float64) or t.numel() < 2:
        return False
    if t.dtype == torch.float64 and not torch.equal(t, t.float().double()):
        return False
    some = 1024 * t.flatten()[:4096]
    return bool((some[some.isfinite()] != some[some.isfinite()].round()).any())


class Patient:
    """A copy of a module, or a function, that can be called on tokens.

    Args:
        where: the public name that an error begins with.
        module: an `nn.Module`, or a function whose weights are handed over separately.
        call: how to call it; None finds out from the signature of `forward`.
        own_weights: True keeps the weights, False gives the copy random ones.
    """

    def __init__(
        self,
        where: str,
        module: nn.Module | Callable,
        call: Callable | None = None,
        own_weights: bool = False,
    ):
        if isinstance(module, type) or not callable(module):
            got = f"the class {module.__name__}" if isinstance(module, type) else repr(module)
            raise ValueError(
                f"{where}: module must be an nn.Module or a function, got {got}. "
                "Build it first and pass the object."
            )
        self.where = where
        self.name = type(module).__name__
        self.is_module = isinstance(module, nn.Module)
        self.original = module
        self.call = call
        self.tables: Tables | None = None  # for arguments that take cosines and sines
        self.opening: Opening | None = None  # for masks that are needed
        self.layout: Layout | None = None  # for tokens that do not lie in rows
        self.beside: tuple[Any, int] | None = None  # a cache, and how many tokens it holds
        self.dtype, self.wide = torch.float32, False  # wide: without casts to less than double
        self.rough: bool | None = None  # whether it computes something in single precision
        self.grown = 1.0  # what random tokens are multiplied by
        self.in_order = False  # whether what forward gets is laid out in memory as its axes are
        self.given: set[str] = set()  # the arguments of forward that got a value
        self.flags: tuple[str, ...] = ()  # the arguments of forward that get True
        self.zeros: set[str] = set()  # those that got zeros
        self.masks: dict[str, bool] = {}  # the masks that call gives: whether all is alike
        self.factors: tuple[str, ...] = ()  # the parameters that keep their one number
        self.rests = False  # whether its dropouts are kept from dropping
        self.around: Callable[[Any], AbstractContextManager[Any]] = nullcontext  # of the copy
        self.time_first = call is None and says_time_first(module)
        self.was_time_first = self.time_first
        self.sides: Sides | None = sides_of(module)
        self.listed: tuple[str, ...] = ()  # attributes that hold layers in a plain list
        self.plain: tuple[str, ...] = ()  # those that learn, and are no parameters
        self.odd: tuple[str, ...] = ()  # what is said of weights that random ones replaced
        if self.is_module:
            self.module = copied(where, module)
            self.listed = register_listed(self.module)
            self.plain = register_plain(self.module)
            self.module.requires_grad_(False)
            self.module.register_forward_pre_hook(self._note, with_kwargs=True)
            named = list(self.module.named_parameters())
            self.factors = tuple(name for name, p in named if is_factor(p))
            kept = [p for _, p in named if is_factor(p)] + [
                b for b in self.module.buffers() if b.is_floating_point() and b.numel() == 1
            ]
            # and tables of angles
            kept += [t for name, t in tensors(self.module) if ROTARY.search(name) or _is_rounded(t)]
            if any(v.dtype in (torch.float32, torch.complex64) or _is_rounded(v) for v in kept):
                self.rough = True  # doubling a single number does not make it exact
            if not own_weights:
                self.odd = tuple(odd_weights(self.module))
                randomise(self.module)
            self.dtype = torch.float64
            self.module.double()
            evaluated(self.module)
        else:
            self.name = getattr(module, "__name__", self.name)
            self.module = module

    def anew(self, own_weights: bool = False) -> Patient:
        """Return another copy of the module, which is called in the same way."""
        made = Patient(self.where, self.original, self.call, own_weights)
        kept = (
            "tables",
            "opening",
            "layout",
            "sides",
            "time_first",
            "wide",
            "rough",
            "in_order",
            "flags",
            "around",
        )
        vars(made).update({name: getattr(self, name) for name in kept})
        if self.dtype == torch.float32:
            made.single()
        return made

    def single(self) -> None:
        """Go back to single precision: some constant of the module is not double."""
        self.dtype = torch.float32
        if self.is_module:
            self.module.float()

    @property
    def tolerance(self) -> float:
        """The largest difference, relative to the output, that counts as equal."""
        if self.dtype == torch.float64:
            return 3e-6 if self.rough else 1e-9
        return 1e-5

    def tokens(self, *shape: int, seed: int = 0) -> Tensor:
        """Return random tokens of this shape."""
        generator = torch.Generator().manual_seed(seed)
        numbers = torch.randn(*shape, generator=generator, dtype=torch.float64)
        return (numbers * self.grown).to(self.dtype)

    @torch.no_grad()
    def run(self, x: Tensor, mask: Tensor | None = None, context: Tensor | None = None) -> Tensor:
        """Call the copy on a clone of x and return its first tensor; errors come as they are."""
        x, context = x.clone(), None if context is None else context.to(x.dtype, copy=True)
        if mask is not None:
            mask = mask.to(x.dtype if mask.is_floating_point() else mask.dtype, copy=True)
        if self.wide:
            with Widened():
                result = self._called(x, mask, context)
            self.rough = True
        elif self.rough is None and x.dtype == torch.float64:
            with Precision() as precision:
                result = self._called(x, mask, context)
            self.rough = precision.single
        else:
            result = self._called(x, mask, context)
        return tensor_for(result, x).cpu().to(x.dtype)

    def _note(self, module: nn.Module, args: tuple, kwargs: dict) -> tuple | None:
        """Write down which arguments of forward get a value, and lay them in order if need be."""
        names = inspect.signature(module.forward).parameters
        given = dict(zip(names, args, strict=False)) | kwargs
        told = {name: True for name in self.flags if name not in given}
        given, kwargs = given | told, kwargs | told
        self.given |= {name for name, value in given.items() if value is not None}
        note(self.zeros, self.masks if self.call is not None else {}, given)
        if not self.in_order:
            return (args, kwargs) if told else None
        return tuple(map(_laid, args)), {name: _laid(value) for name, value in kwargs.items()}

    @property
    def takes_mask(self) -> bool:
        """Whether forward has an argument for a mask."""
        return mask_argument(self.module) is not None

    def untried(self, mask: bool, cache: str = WHOLE_CACHE) -> tuple[str, ...]:
        """Say what was never tried, as `untried_of` does."""
        said = [*untried_of(self.module, self.given, mask, cache), *self.odd]
        said += empty(self.zeros, self.masks)
        return tuple(said)

    def put_to_rest(self, x: Tensor) -> bool:
        """Keep dropouts from dropping that do so while evaluating; say whether there are such."""
        if not same(self.run(x), self.run(x)):
            self.rests = True
            self.rests = same(self.run(x), self.run(x))
        return self.rests

    def _called(self, x: Tensor, mask: Tensor | None, context: Tensor | None) -> object:
        with NoDropout() if self.rests else nullcontext(), self.around(self.module):
            return self._laid_in_order(x, mask, context)

    def _laid_in_order(self, x: Tensor, mask: Tensor | None, context: Tensor | None) -> object:
        try:
            return self._call(x, mask, context)
        except RuntimeError as error:  # a view of what its caller turned over
            if self.flags:  # it takes none beside what it gets
                self.flags = ()
            elif self.in_order or "view size is not compatible" not in str(error):
                raise
            else:
                self.in_order = True
        return self._call(x, mask, context)

    def _call(self, x: Tensor, mask: Tensor | None, context: Tensor | None) -> object:
        if context is not None:
            return self._crossed(x, mask, context)
        if self.time_first:
            turned = x.transpose(0, 1)
            result = first_tensor(standard_call(self.module, turned, mask, opening=self.opening))
            return result.transpose(0, 1)
        if self.call is None and self.layout is not None:
            return self._laid(x, mask, self.layout)
        if self.call is None:
            return standard_call(
                self.module, x, mask, self.tables, self.beside, opening=self.opening
            )
        if self.beside is not None:
            return self.call(self.module, x, self.beside[0])
        if mask is None and takes(self.call) == 2:
            return self.call(self.module, x)
        return self.call(self.module, x, mask)

    def _laid(self, x: Tensor, mask: Tensor | None, layout: Layout) -> Tensor:
        def called(x: Tensor) -> Tensor:
            given = (layout.laid(x), mask, self.tables, None, self.opening, (layout, x))
            return first_tensor(standard_call(self.module, *given))

        if layout.form != "n e":
            return layout.tokens(called(x))
        return torch.stack([called(one) for one in x])

    def _crossed(self, x: Tensor, mask: Tensor | None, context: Tensor) -> object:
        if self.call is not None:
            given = (x, context) if mask is None and takes(self.call) == 3 else (x, context, mask)
            return self.call(self.module, *given)
        if self.time_first:
            turned = x.transpose(0, 1), context.transpose(0, 1)
            result = crossed_call(self.module, *turned, mask, self.sides, self.opening)
            result = first_tensor(result)
            return result.transpose(0, 1)
        return crossed_call(self.module, x, context, mask, self.sides, self.opening)

    def complain(self, error: Exception, shape: tuple[int, ...]) -> ValueError:
        """Turn an exception inside the module into one line that names the module's own line."""
        what = (
            f"{self.where}: {self.name} must run on x of shape {tuple(shape)}, got "
            f"{type(error).__name__}: {first_line(error)}{place(error)}."
        )
        if self.call:
            return refused(what, "Repair that line, or the call.", final=True)
        unknown = unknown_names(self.module if self.is_module else self.original)
        if unknown:
            values = ", ".join(f"{name}=..." for name in unknown)
            said = f"Give what else it needs: call=lambda module, x: module(x, {values})."
            return refused(what, said)
        said = "call=lambda module, x: module(x), size=(samples, tokens)"
        return refused(what, f"Repair that line, or say how to call it: {said}.")


def _laid(value: Any) -> Any:
    return value.contiguous() if isinstance(value, Tensor) else value


def first_line(error: Exception) -> str:
    """Return the first line of an error, without a full stop."""
    text = str(error).strip()
    return text.splitlines()[0].rstrip(".") if text else "no message"


def place(error: Exception) -> str:
    """Return ", in forward, line 12 (file.py): code" for the last line that is the user's own."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not any(part in f.filename for part in NO_SOURCE)]
    if not own:
        return ""
    frame = own[-1]
    code = (frame.line or linecache.getline(frame.filename, frame.lineno or 0)).strip()
    file = "" if "ipykernel" in frame.filename else f" of {Path(frame.filename).name}"
    return f" in {frame.name}, line {frame.lineno}{file}: {code}".rstrip(": ").rstrip(".")


def same(first: Tensor, second: Tensor) -> bool:
    """Say whether two outputs are equal but for rounding, NaN included.

    Two calls of one module may differ in the last digit: it depends on where in memory a tensor
    lies.
    """
    digits = 1e-5 if first.dtype == torch.float32 else 1e-11
    return first.shape == second.shape and torch.allclose(
        first, second, rtol=digits, atol=digits, equal_nan=True
    )


def check_positive(where: str, **sizes: int) -> None:
    """Raise a `ValueError` unless every size is an integer of at least 1."""
    for name, value in sizes.items():
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(
                f"{where}: {name} must be an integer of at least 1, got {name}={value!r}. "
                f"Pass a whole number such as {name}=4."
            )


def possible_widths(module: nn.Module | Callable, weights: dict[str, Tensor]) -> list[int]:
    """Return what embed_dim may be, the likeliest first."""
    found = []
    for part in [module, getattr(module, "config", None)]:
        for name in WIDTHS.split():
            value = getattr(part, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                found.append(value)
    sizes = [size for weight in weights.values() if weight.ndim > 1 for size in weight.shape]
    found += sorted(dict.fromkeys(sizes), key=lambda size: -sizes.count(size))
    found += [weight.shape[0] for weight in weights.values() if weight.ndim == 1]  # of norms
    # those of (1, c, 1, 1) take tokens of one number, and make them wider
    return [width for width in dict.fromkeys(found) if width > 1 or set(found) == {1}]
