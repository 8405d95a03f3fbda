"""A mask that forward takes and that changes nothing, whatever it is filled with."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf

import torch
from torch import Tensor, nn

from attention_clinic.engine.calls import mask_argument
from attention_clinic.engine.modes import NoDropout
from attention_clinic.engine.openings import SHAPES
from attention_clinic.engine.patient import same
from attention_clinic.engine.readings import Reader
from attention_clinic.examine.bare import WithLayers
from attention_clinic.examine.matching import Match
from attention_clinic.examine.subject import Subject

KINDS = 2  # of values that a module must have taken before its mask is called idle
SWITCHES = 12  # flags that are turned over


def masks(b: int, i: int, j: int, dtype: torch.dtype) -> Iterator[tuple[str, Tensor]]:
    """Yield masks of every shape and kind, each with its kind, that block every other token.

    Args:
        b: samples.
        i: tokens that ask.
        j: tokens that are asked.
        dtype: of those that are to be added.
    """
    sizes = {"b": b, "i": i, "j": j, "1": 1}
    for shape in ("b 1 1 j", "i j", *(s for s in SHAPES if s not in ("b 1 1 j", "i j"))):
        open_ = (torch.arange(j) % 2 == 0).expand([sizes[letter] for letter in shape.split()])
        yield "bool", open_.clone()
        yield "added", torch.zeros(open_.shape, dtype=dtype).masked_fill(~open_, -inf)
        yield "ones", open_.to(dtype)
        yield "whole", open_.long()


def is_plain(subject: Subject, matches: Sequence[tuple[Reader, Match]]) -> bool:
    """Say whether an attention is right, and like any other: it hides nothing by itself."""
    if isinstance(subject.original, WithLayers):  # it does nothing beside
        return bool(matches) and not any(m.causal for _, m in matches)
    own = any(m.ids or m.variants or m.causal for _, m in matches)
    return bool(matches) and not own and not subject.extra and not subject.biased


def idle_mask(subject: Subject) -> str:
    """Say which mask reaches nothing, "" where each does, or nobody knows.

    A mask that a flag, training or an attribute turns on is none of these.
    """
    name = tried_by_itself(subject)
    if name is None:
        return ""
    given = set(subject.patient.given)
    try:
        found = _tried(subject, name)
        vars(subject)["idle"] = bool(found)
        return found
    finally:
        subject.patient.given = given  # what these calls tried is no examination of a mask


def tried_by_itself(subject: Subject) -> str | None:
    """Return the argument that masks may be handed to though nobody gave one, None for none."""
    name = mask_argument(subject.patient.module) if subject.patient.is_module else None
    free = subject.mask is None and subject.call is None and subject.options.cache is None
    alone = subject.mode is None or isinstance(subject.original, WithLayers)
    plain = subject.patient.layout is None and alone
    foreign = type(subject.original).__module__.startswith("torch.")
    return name if free and plain and not foreign else None


def _tried(subject: Subject, name: str) -> str:
    """Call a module with masks of every shape and kind; see `idle_mask`."""
    x = subject.patient.tokens(subject.b, subject.n, subject.e)
    keys = subject.j if subject.crossed else subject.n

    def run(mask: Tensor | None) -> Tensor:
        return subject.open_run(x) if mask is None else subject.run(x, mask)

    if subject.n < 2:
        return ""
    return idle(subject.patient.module, name, run, masks(subject.b, subject.n, keys, x.dtype))


def idle(
    module: nn.Module,
    name: str,
    run: Callable[[Tensor | None], Tensor],
    candidates: Iterable[tuple[str, Tensor]],
) -> str:
    """Say that masks of several kinds change nothing, "" where one does, or nobody knows.

    Args:
        module: the copy.
        name: of the mask.
        run: calls the copy with a mask, or with None.
        candidates: masks, each with its kind.
    """
    y = run(None)
    taken: list[tuple[str, Tensor]] = []
    for kind, mask in candidates:
        try:
            if not same(y, run(mask)):
                return ""
        except Exception:
            continue
        taken.append((kind, mask))
    if len(dict(taken)) < KINDS:
        return ""
    for turned in switches(module):
        with turned(), NoDropout():
            if _changes(run, taken):
                return ""
    return f"{name} changes nothing: {len(taken)} masks of several shapes and kinds"


def _changes(run: Callable[[Tensor | None], Tensor], taken: list[tuple[str, Tensor]]) -> bool:
    """Say whether a mask of one of the kinds changes the output, or cannot be taken any more."""
    y = _made(run, None)
    if y is None:  # what needs a mask now uses it
        return any(_made(run, mask) is not None for _, mask in taken)
    outputs = (_made(run, mask) for mask in dict(taken).values())
    return any(made is None or not same(y, made) for made in outputs)


def _made(run: Callable[[Tensor | None], Tensor], mask: Tensor | None) -> Tensor | None:
    """Return what a run gives, None where it raises."""
    try:
        return run(mask)
    except Exception:
        return None


def switches(module: nn.Module) -> Iterator[Callable]:
    """Yield what turns over one thing for a while: training, a flag of forward, an attribute."""
    yield partial(_training, module)
    names = inspect.signature(module.forward).parameters.items()
    flags = [(name, not p.default) for name, p in names if isinstance(p.default, bool)]
    for name, value in flags[:SWITCHES]:
        yield partial(_flag, module, name, value)
    held = [
        (part, name)
        for part in module.modules()
        for name, value in vars(part).items()
        if isinstance(value, bool) and name != "training" and not name.startswith("_")
    ]
    for part, name in held[:SWITCHES]:
        yield partial(_attribute, part, name)


@contextmanager
def _training(module: nn.Module) -> Iterator[None]:
    module.train()
    try:
        yield
    finally:
        module.eval()


@contextmanager
def _flag(module: nn.Module, name: str, value: bool) -> Iterator[None]:
    vars(module)["forward"] = partial(module.forward, **{name: value})
    try:
        yield
    finally:
        del vars(module)["forward"]


@contextmanager
def _attribute(part: nn.Module, name: str) -> Iterator[None]:
    before = vars(part)[name]
    vars(part)[name] = not before
    try:
        yield
    finally:
        vars(part)[name] = before
