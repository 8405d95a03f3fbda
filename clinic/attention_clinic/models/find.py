"""Find the attentions and blocks of a model by one run, and call them again with other tokens."""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic.capture import calling
from attention_clinic.capture.calling import CACHES, STARTS, is_mask, is_needed, side, swapped
from attention_clinic.capture.module import CallFailed, Mode, attempted, first_line, place
from attention_clinic.capture.tape import tensors_in
from attention_clinic.capture.trial import attributes, possible_widths, stated_integers, vocabulary

PRODUCTS = {"matmul", "__matmul__", "__rmatmul__", "bmm", "baddbmm", "einsum"}
NORMALIZED = {"softmax", "_softmax", "exp", "sigmoid"}  # scores become weights
SAMPLES, LENGTH, OTHER_LENGTH = 2, 7, 6  # different, so that no axis is mistaken for another
SIDES = ("image_size", "img_size", "input_size", "resolution")
CHANNELS = ("in_channels", "in_chans", "num_channels")
USUAL_SIDES = (64, 224, 32, 28, 96, 8)
Inputs = Tensor | Sequence[Any] | Mapping[str, Any] | None


@dataclass
class Call:
    """The first call of a part."""

    given: dict[str, Any]  # by the names of forward's arguments; further ones are *1, *2, ...
    order: tuple[str, ...] = ()  # the names that were given by position
    output: Tensor | None = None  # the first tensor of the result

    @property
    def streams(self) -> dict[str, Tensor]:
        """The arguments that may hold tokens: floats (b, n, e), or images."""
        tensors = {name: t for name, t in self.given.items() if isinstance(t, Tensor)}
        return {n: t for n, t in tensors.items() if t.is_floating_point() and t.ndim in (3, 4)}


class Weighing(NamedTuple):
    """Scores (..., i, j) that became weights of tokens, and the innermost part that ran."""

    path: str
    shape: tuple[int, ...]


class Recording(Mode):
    """Watch a model while it runs in this context."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.parts = dict(model.named_modules())  # by path
        self.calls: dict[str, Call] = {}  # the first of each part, by path, in their order
        self.weighings: list[Weighing] = []  # a softmax between two products, or a fused kernel
        self._running: list[str] = []
        self._handles: list[Any] = []
        # a tensor, and "parameter", "scores", or the weighing that it belongs to
        self._kinds: dict[int, tuple[Tensor, str | Weighing]] = {}

    def __enter__(self) -> Self:
        for path, part in self.parts.items():
            arrives, leaves = partial(self._arrives, path), partial(self._leaves, path)
            self._handles.append(part.register_forward_pre_hook(arrives, with_kwargs=True))
            self._handles.append(part.register_forward_hook(leaves))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()
        self._kinds.clear()

    def _arrives(self, path: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        self._running.append(path)
        if path not in self.calls:
            parameters = inspect.signature(part.forward).parameters.values()
            names = [p.name for p in parameters if p.kind <= p.POSITIONAL_OR_KEYWORD]
            names += [f"*{n}" for n in range(1, len(args) - len(names) + 1)]
            order = tuple(names[: len(args)])
            self.calls[path] = Call(dict(zip(order, args, strict=True)) | kwargs, order)

    def _leaves(self, path: str, part: nn.Module, args: Any, result: Any) -> None:
        self._running.pop()
        if self.calls[path].output is None:
            self.calls[path].output = next(tensors_in(result), None)

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        given = list(tensors_in((args, kwargs)))
        if not self._running or not given:
            return result
        path = self._running[-1]
        if func is F.scaled_dot_product_attention:
            self.weighings.append(Weighing(path, (*given[0].shape[:-1], given[1].shape[-2])))
        elif func is F.multi_head_attention_forward:  # of (i, b, e) and (j, b, e)
            heads = args[4] if len(args) > 4 else kwargs["num_heads"]
            (i, b), j = given[0].shape[:2], len(given[1])
            self.weighings.append(Weighing(path, (b, heads, i, j)))
        elif isinstance(result, Tensor):
            known = [self._kinds.get(id(t), (t, ""))[1] for t in given]
            parameters = [isinstance(t, nn.Parameter) for t in given]
            kinds = ["parameter" if p else k for p, k in zip(parameters, known, strict=True)]
            if made := self._made(getattr(func, "__name__", ""), path, kinds, result):
                self._kinds[id(result)] = (result, made)  # which keeps it, and its id
        return result

    def _made(
        self, name: str, path: str, kinds: list[str | Weighing], result: Tensor
    ) -> str | Weighing:
        """Return what a result is, from what its operands are."""
        if name in PRODUCTS:
            self.weighings += [kind for kind in kinds if isinstance(kind, Weighing)][:1]
            return "" if "parameter" in kinds or len(kinds) < 2 else "scores"
        if name in NORMALIZED and "scores" in kinds and result.ndim > 2:
            return Weighing(path, tuple(result.shape))
        if set(kinds) == {"parameter"}:
            return "parameter"
        activations = [kind for kind in kinds if kind not in ("", "parameter")]
        return "" if name == "linear" or not activations else activations[0]


class Site(NamedTuple):
    """One attention: parts that may be all of it, the innermost first; its block; (..., i, j)."""

    levels: tuple[str, ...]
    block: str | None
    scores: tuple[int, ...]


def sites_of(recording: Recording) -> list[Site]:
    """Return every attention that ran, in the order of the model's parts."""
    found: dict[str, tuple[int, ...]] = {}
    for path, shape in recording.weighings:
        found.setdefault(_holder(path, recording.parts), shape)
    for path, shape in list(found.items()):  # heads that are modules of one list are joined
        folder = path.rpartition(".")[0]
        heads = [p for p in found if p and p.rpartition(".")[0] == folder]
        firsts = {id(t) for p in heads for t in [*recording.calls[p].streams.values()][:1]}
        if len(heads) > 1 == len(firsts) and isinstance(recording.parts[folder], nn.ModuleList):
            found[folder.rpartition(".")[0]] = (shape[0], len(heads), *shape[-2:])
            for head in heads:
                del found[head]
    order = [path for path in recording.parts if path in found]
    return [_site(path, order, found[path], recording) for path in order]


def above(path: str) -> list[str]:
    """Return the paths around a part, the nearest first, the model's "" last."""
    names = path.split(".") if path else []
    return [".".join(names[:n]) for n in range(len(names) - 1, -1, -1)]


def is_inside(path: str, place: str) -> bool:
    """Return whether a path is another one, or inside it."""
    return not place or path == place or path.startswith(f"{place}.")


def _matrices(part: nn.Module) -> int:
    """Return how many matrices a part has, without tables of ids and positions."""
    tables = {id(m.weight) for m in part.modules() if isinstance(m, nn.Embedding)}
    found = (p for p in part.parameters() if id(p) not in tables)
    return sum(sum(s > 1 for s in p.shape) > 1 and (p.ndim < 3 or p.shape[0] > 1) for p in found)


def _holder(path: str, parts: dict[str, nn.Module]) -> str:
    """Return the innermost part around a softmax with two matrices, or a packed one."""
    for outer in (path, *above(path)):
        if isinstance(parts[outer], nn.ModuleList | nn.ModuleDict | nn.Sequential):
            continue
        weights = [p for p in parts[outer].parameters() if p.ndim > 1]
        packed = any(max(p.shape) == 3 * min(p.shape[:2]) for p in weights)
        if packed or _matrices(parts[outer]) > 1:
            return outer
    return ""


def _site(path: str, order: list[str], scores: tuple[int, ...], recording: Recording) -> Site:
    """Return one attention with the parts around it."""
    levels, block, parts = [path], None, recording.parts
    for outer in above(path):
        if isinstance(parts[outer], nn.ModuleList | nn.ModuleDict):
            continue
        inside = [p for p in order if is_inside(p, outer)]
        more = _matrices(parts[outer]) - sum(_matrices(parts[p]) for p in inside)
        fits = _keeps(recording.calls.get(outer), recording.calls.get(path))
        if more >= 2:  # a feed-forward
            block = outer if fits else None
            break
        if fits and len(inside) == 1:
            levels.append(outer)
    return Site(tuple(levels), block, scores)


def _keeps(outer: Call | None, inner: Call | None) -> bool:
    """Return whether a part returns tokens of the shape that it gets, as wide as a part inside."""
    if outer is None or inner is None or outer.output is None:
        return False
    shape, widths = outer.output.shape, {t.shape[-1] for t in inner.streams.values()}
    return shape[-1] in widths and any(t.shape == shape for t in outer.streams.values())


@dataclass(frozen=True)
class Replay:
    """A call with other tokens: `replay(module, x)`, or `replay(module, x, context)`."""

    call: Call
    tokens: tuple[str, ...]  # the arguments that take them
    context: tuple[str, ...] = ()
    zeroed: tuple[str, ...] = ()  # arguments that get 0, such as positions that are added inside
    time_first: bool = False

    def sizes(self, name: str) -> tuple[int, int, int]:
        """Return the sizes (b, n, e) of an argument in the model's own call."""
        b, n, e = swapped(self.call.given[name], self.time_first).shape
        return b, n, e

    def __call__(self, module: nn.Module, x: Tensor, *context: Tensor) -> Tensor:
        """Return the tokens that a module makes of tokens x (b, n, e), and a context (b, j, c)."""
        given: dict[str, Any] = {}
        for name, value in self.call.given.items():
            if name in self.tokens:
                given[name] = swapped(x, self.time_first)
            elif name in self.context and context:
                given[name] = swapped(context[0], self.time_first)
            elif name in CACHES:
                given[name] = None
            else:
                value = _cast(value, x.dtype)
                given[name] = torch.zeros_like(value) if name in self.zeroed else value
        args = [given.pop(name) for name in self.call.order]
        return swapped(calling.first_tensor(module(*args, **given)), self.time_first)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Return a value with its floats in a precision."""
    if type(value) in (tuple, list):
        return type(value)(_cast(one, dtype) for one in value)
    is_float = isinstance(value, Tensor) and value.is_floating_point()
    return value.to(dtype) if is_float else value


def replay_of(recording: Recording, path: str, sites: Sequence[Site]) -> Replay | None:
    """Return how to call a part with some attentions again, None where nothing holds tokens."""
    call = recording.calls.get(path)
    streams = {} if call is None else {n: t for n, t in call.streams.items() if not is_mask(n)}
    if call is None or call.output is None or not streams:
        return None
    x = streams[next((name for name in streams if side(name) == "tokens"), next(iter(streams)))]
    if not x.ndim == call.output.ndim == 3 or x.shape[0] != call.output.shape[0]:
        return None
    axis = 0 if x.shape[0] == sites[0].scores[-2] != x.shape[1] else 1  # of the tokens
    tokens = tuple(name for name, t in streams.items() if t is x)
    keyed = any(side(name) == "context" for name in tokens)  # it attends to its own tokens
    n, keys = x.shape[axis], {site.scores[-1] for site in sites}
    context, zeroed = [], []
    for name, t in streams.items():
        if name in tokens or t.ndim != 3:
            continue
        crosses = not keyed and (t.shape[axis] != n or side(name) == "context")
        if crosses and t.shape[1 - axis] == x.shape[1 - axis] and t.shape[axis] in keys:
            context.append(name)
        elif t.shape[axis] in (1, n):
            zeroed.append(name)
    return Replay(call, tokens, tuple(context), tuple(zeroed), time_first=axis == 0)


def inputs_of(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield inputs to try, by the names of forward's arguments, the likeliest first."""
    parameters = calling.parameters_of(model)
    needed = [name for name, p in parameters.items() if is_needed(p)]
    main = getattr(model, "main_input_name", None)
    first = main if main in parameters else next(iter(needed or parameters), None)
    if first is None:
        return
    fixed: dict[str, Any] = {name: 0 for name in needed if name in STARTS}
    fixed |= {name: None for name in needed if name != first and (is_mask(name) or name in CACHES)}
    others = [name for name in needed if name not in (first, *fixed)]
    others += ["decoder_input_ids"] * ("decoder_input_ids" in parameters)
    for made in tensors_for(model):
        shorter = [made[:, :OTHER_LENGTH]] if others and made.ndim < 4 else []
        for rest in (*shorter, made):
            yield {first: made} | dict.fromkeys(others, rest) | fixed


def tensors_for(model: nn.Module) -> Iterator[Tensor]:
    """Yield ids, images and vectors for the first argument of a model."""
    torch.manual_seed(0)  # its state is restored at the end
    parts, lengths = list(model.modules()), (LENGTH, *calling.token_counts(model)[:2])
    tables = [part.num_embeddings for part in parts if isinstance(part, nn.Embedding)]
    for length, most in product(lengths, (vocabulary(model), min(tables)) if tables else ()):
        least = most // 2  # the lowest ids, and the highest one, are mostly those of padding
        yield torch.randint(least, max(least + 1, most - 1), (SAMPLES, length))
    cuts = [part for part in parts if isinstance(part, nn.Conv2d)]
    held = [said for _, said in attributes(model, SIDES)]
    sides = [tuple(said) if isinstance(said, tuple | list) else (said, said) for said in held]
    if cuts:
        patches = [n - classes for n in calling.token_counts(model) for classes in (0, 1, 2)]
        roots = [math.isqrt(n) for n in patches if n > 1 and math.isqrt(n) ** 2 == n]
        edges = [*(root * cuts[0].stride[0] for root in roots), *USUAL_SIDES]
        sides += [(edge, edge) for edge in edges]
    channels = [cuts[0].in_channels] if cuts else [*stated_integers(model, CHANNELS), 3, 1]
    for size, c in product(dict.fromkeys(sides), channels):
        yield torch.randn(SAMPLES, c, *size)
    firsts = [part.in_features for part in parts if isinstance(part, nn.Linear)][:1]
    widths = dict.fromkeys((*firsts, *possible_widths(model)[:3]))
    for length, width in product(lengths, widths):
        yield torch.randn(SAMPLES, length, width)


def recorded(model: nn.Module, inputs: Inputs) -> Recording:
    """Return a run of a model on inputs that it takes."""
    names = calling.parameters_of(model)
    values = inputs if isinstance(inputs, tuple | list) else (inputs,)
    named = inputs if isinstance(inputs, Mapping) else dict(zip(names, values, strict=False))
    why = ""
    for given in inputs_of(model) if inputs is None else [dict(named)]:
        try:
            recording = Recording(model)
            with recording, torch.no_grad(), warnings.catch_warnings(action="ignore"):
                attempted(model, **given)
            return recording
        except CallFailed as failed:
            error = failed.error
            why = why or f"{type(error).__name__}: {first_line(error)}{place(error)}"
    raise ValueError(
        f"diagnose_model: {type(model).__name__} must run on its inputs, got {why or 'none'}. Pass "
        f"what you call it with: diagnose_model(model, inputs=({', '.join(names)},))."
    )


def cutting(part: nn.Module, call: Call) -> Iterator[tuple[nn.Module, str, int, int]]:
    """Yield layers that may cut an image into patches: layer, argument, side of a patch, c."""
    images = [name for name, t in call.streams.items() if t.ndim == 4]
    if len(images) != 1 or call.output is None or call.output.ndim != 3:
        return
    c, *size = call.given[images[0]].shape[1:]
    for layer in part.modules():
        side = math.isqrt(layer.in_features // c) if isinstance(layer, nn.Linear) else 0
        if isinstance(layer, nn.Conv2d) and layer.kernel_size == layer.stride:
            side = layer.stride[0]
        n = math.prod(length // side for length in size) if side > 1 else 0
        if n and call.output.shape[1] in (n, n + 1):
            yield layer, images[0], side, c


def tables_of(model: nn.Module, widths: set[int]) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors (n, e) that may be tables of sines and cosines, by name."""
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        table = value.detach().squeeze()
        if table.ndim != 2 or table.shape[1] not in widths or table.unique().numel() < 5:
            continue
        at_zero = (table[0].abs() < 1e-6) | ((table[0] - 1).abs() < 1e-6)
        if bool(at_zero.all()) and float(table.abs().max()) < 1 + 1e-6:
            yield name, table
