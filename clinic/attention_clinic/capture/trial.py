"""What a user says about a module, what it states, and sizes and a way to call it that work."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.capture.calling import Examined, Way, mask_argument, token_counts, ways
from attention_clinic.capture.module import CallFailed, Patient, check_positive
from attention_clinic.capture.run import Run, capture

CONFIGS = ("config", "cfg", "args", "params", "hparams", "conf")
HEAD_DIM_NAMES = ("rotary_ndims", "rotary_dim", "head_dim", "head_size", "dim_head", "d_k")
HEAD_NAMES = (
    "num_heads", "n_heads", "n_head", "nhead", "nheads", "num_head", "heads", "num_attention_heads",
    "n_attention_heads", "num_q_heads", "n_local_heads", "attention_heads", "head_num", "n_h",
    "num_query_heads", "head_count", "head", "h", "H",
)  # fmt: skip
WIDTHS = (
    "embed_dim", "hidden_size", "d_model", "n_embd", "dim", "embed_size", "emb_size", "emb_dim",
    "model_dim", "width",
)  # fmt: skip
PADS = ("pad", "block", "ignore", "exclude", "masked")  # names of masks whose True blocks
MOST_WIDTHS = MOST_WAYS = 6
FREE_WIDTH = 64  # of a module without parameters


@dataclass(frozen=True)
class Context:
    """Samples, tokens and width (b, j, c) of a context; None is free."""

    samples: int | None = None
    length: int | None = None
    width: int | None = None

    @staticmethod
    def of(where: str, given: Tensor | tuple[int, int] | int | bool | None) -> Context | None:
        """Return the context that a user gave: a tensor, (length, width), a width, True or None."""
        if given is None or isinstance(given, bool):
            return Context() if given else None
        sizes: Any = (given,) if isinstance(given, int) else given
        sizes = tuple(given.shape) if isinstance(given, Tensor) else sizes
        counts = (3,) if isinstance(given, Tensor) else (1, 2)
        usual = isinstance(sizes, tuple) and len(sizes) in counts
        if usual and all(map(_is_number, sizes)):
            return Context(*(None,) * (3 - len(sizes)), *sizes)
        got = sizes if isinstance(given, Tensor) else repr(given)
        raise ValueError(
            f"{where}: context must be a tensor (b, j, width), (length, width), a width or True, "
            f"got {got}. context=True tries one as wide as the tokens."
        )


@dataclass(frozen=True)
class Options:
    """What the user of a tool said, as in `diagnose`; `more` has further options of the tool."""

    where: str
    num_heads: int
    mask: Tensor | None = None
    causal: bool | None = None
    call: Callable[..., Any] | None = None
    size: tuple[int, int] | None = None
    true_means: str | None = None
    context: Context | None = None
    own_weights: bool = False
    more: dict[str, Any] = field(default_factory=dict)

    def checked(self) -> Options:
        """Return the options as they are; values that contradict each other are a `ValueError`."""
        check_positive(self.where, num_heads=self.num_heads)
        crossed = self.where == "diagnose" and self.context is not None
        for name, kept, rule in (
            ("causal", isinstance(self.causal, bool | None), "True, False or None"),
            ("true_means", self.true_means in (None, "attend", "block"), '"attend" or "block"'),
            ("causal", not (crossed and self.causal), "None with a context"),
        ):
            if not kept:
                raise ValueError(
                    f"{self.where}: {name} must be {rule}, got {name}={getattr(self, name)!r:.20}. "
                    "Pass a mask as mask=, and what True means in it as true_means=."
                )
        return self


def is_additive(mask: Tensor) -> bool:
    """Return whether a mask is added to the scores: floats that are not all 0 or 1."""
    binary = bool(((mask == 0) | (mask == 1)).all() and mask.any())
    return mask.is_floating_point() and not binary


def allowed(mask: Tensor, b: int, n: int, blocks: bool = False, keys: int | None = None) -> Tensor:
    """Return which keys each query may attend to, (1 or b, 1 or h, 1 or i, j).

    A mask of bool, integers or floats of 0 and 1 has 1 for attend, or for blocked with `blocks`;
    other floats are added. A wrong shape is a `ValueError`.
    """
    added = is_additive(mask)
    allow = (mask == 0) if added or blocks else mask > 0
    shape, j = tuple(allow.shape), n if keys is None else keys
    if shape == (n, j) and (keys is None or n != b):
        return allow[None, None]
    if shape == (b, j):
        return allow[:, None, None, :]
    if len(shape) == 3 and shape[0] in (1, b) and shape[1] in (1, n) and shape[2] == j:
        return allow[:, None]
    if len(shape) == 4 and shape[3] == j and shape[2] in (1, n):
        return allow
    raise ValueError(
        f"diagnose: mask must have shape (i, j), (b, j), (b, i, j) or (b, 1, i, j), got "
        f"mask.shape={shape} for b={b}, i={n} and j={j}. Make it for one call: size=(b, i) sets "
        f"both{'' if keys is None else '; context=(j, width) sets the last axis'}."
    )


def attributes(model: object, names: Collection[str]) -> Iterator[tuple[str, Any]]:
    """Yield attributes with these names: of the parts of a module, then of their configs."""
    parts = list(model.modules()) if isinstance(model, nn.Module) else []
    configs = [getattr(part, name, None) for part in parts for name in CONFIGS]
    for holder in (*parts, *(one for one in configs if not isinstance(one, nn.Module))):
        for name in names:
            value = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
            if value is not None:
                yield name, value


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def heads_of(where: str, module: Examined) -> int:
    """Return the number of heads that a module states; a `ValueError` if it states none."""
    for _, value in attributes(module, HEAD_NAMES):
        if _is_number(value):
            return value
    raise ValueError(
        f"{where}: num_heads must be given, got None, and {type(module).__name__} has no attribute "
        f"such as num_heads. Pass it: {where}(module, num_heads=8)."
    )


def stated_integers(model: object, names: Collection[str]) -> dict[int, str]:
    """Return the positive integers that a model states under some names, with the first name."""
    found: dict[int, str] = {}
    for name, value in attributes(model, sorted(names)):
        if _is_number(value):
            found.setdefault(value, name)
    return found


def vocabulary(model: nn.Module) -> int:
    """Return a number below which every id is known to a model."""
    sizes = stated_integers(model, ("vocab_size",))
    tables = [part for part in model.modules() if isinstance(part, nn.Embedding)]
    return next(iter((*sizes, *(table.num_embeddings for table in tables), 8)))


def possible_widths(model: Examined, weights: list[Tensor] | None = None) -> list[int]:
    """Return possible embedding dimensions, the likeliest first."""
    if weights is None:
        weights = list(model.parameters())
    often = _common([w for w in weights if w.ndim > 1])
    norms = [len(w) for w in weights if w.ndim == 1]
    named = stated_integers(model, WIDTHS)
    return [size for size in dict.fromkeys((*named, *often, *norms)) if size > 1]


def _common(weights: list[Tensor]) -> list[int]:
    """Return the sizes of all axes, the most frequent first."""
    sizes = [size for w in weights for size in w.shape]
    return sorted(dict.fromkeys(sizes), key=lambda size: -sizes.count(size))


class Trial:
    """A module, its tokens (b, n, e) and context (b, j, c), and a way to call it."""

    def __init__(self, module: Examined, options: Options) -> None:
        self.options, self.h, self.mask = options, options.num_heads, options.mask
        self.crossed = options.context is not None
        self.patient = Patient(options.where, module, options.call, options.own_weights)
        self.same_length = False  # whether a context must have as many tokens
        (self.b, self.n), self.j = self.sizes(0), self.keys(0)
        self.e = self.c = 0
        self._runs: dict[tuple, Run | None] = {}

    def sizes(self, number: int) -> tuple[int, int]:
        """Return samples and tokens of call number 0 or 1: all sizes different, if possible."""
        mask, context = self.mask, self.options.context
        if self.options.size is not None:
            return self.options.size
        b = [b for b in (3, 2, 4) if b != self.h][number]
        n = [n for n in (5, 7, 9, 11) if n != self.h][number]
        if mask is not None and mask.ndim > 1:
            rows, keys = mask.shape[-2:]
            batched = mask.ndim > 2 or context is not None or rows != keys
            b = len(mask) if batched and len(mask) > 1 else b
            n = keys if context is None else rows if mask.ndim > 2 and rows > 1 else n
        elif context is not None and self.same_length:
            n = context.length or n
        return (context and context.samples) or b, n

    def keys(self, number: int) -> int:
        """Return the tokens of the context of call number 0 or 1."""
        b, n = self.sizes(number)
        if self.options.context is None or self.same_length:
            return n
        if self.mask is not None:
            return self.mask.shape[-1]
        free = [j + number for j in (6, 8, 9, 10) if j + number not in (b, n, self.h)]
        return self.options.context.length or free[0]

    def shape(self, number: int) -> tuple[int, int, int]:
        """Return samples, tokens and keys of call number 0 or 1."""
        return (*self.sizes(1), self.keys(1)) if number else (self.b, self.n, self.j)

    def tokens(self, number: int = 0, seed: int = 0) -> Tensor:
        """Return random tokens (b, n, e)."""
        return self.patient.tokens(*self.shape(number)[:2], self.e, seed=seed)

    def context(self, number: int = 0, seed: int = 100) -> Tensor | None:
        """Return a random context (b, j, c), None without one."""
        b, _, j = self.shape(number)
        return self.patient.tokens(b, j, self.c, seed=seed) if self.crossed else None

    def run(self, x: Tensor, context: Tensor | None = None, masked: bool = False) -> Tensor:
        """Call the module, with its mask or with one that blocks nothing where it needs one."""
        maker = self.options.more.get("cache")
        if maker is not None:
            return self.patient.run(x, cache=(maker(), 0))
        if masked or self.mask is None:
            return self.patient.run(x, self.mask if masked else None, context)
        try:
            return self.patient.run(x, None, context)
        except CallFailed:
            blocks = is_additive(self.mask) or self.options.true_means == "block"
            return self.patient.run(x, torch.full_like(self.mask, not blocks), context)

    def record(self, number: int = 0, masked: bool = False) -> Run | None:
        """Return a recorded call of number 0 or 1; None if it is too long."""
        b, n, j = self.shape(number)
        key = b, n, j, masked, self.patient.resting
        if key not in self._runs:
            sizes = [(n, self.e), *[(j, self.c)] * self.crossed]
            mine, others = (
                [self.patient.tokens(b, *s, seed=seed + 100 * i) for i, s in enumerate(sizes)]
                for seed in (51, 52)
            )
            call = partial(self.run, masked=masked)
            self._runs[key] = capture(call, mine, others, self._weights().items())
        return self._runs[key]

    def takes(self, number: int) -> bool:
        """Return whether the module takes the sizes of a call."""
        try:
            y = self.run(self.tokens(number), self.context(number))
        except CallFailed:
            return False
        return y.shape[:2] == self.shape(number)[:2]

    def meanings(self) -> tuple[Tensor, ...]:
        """Return the rules that the given mask may mean, True = may attend; () without a mask."""
        name = mask_argument(self.patient.module, self.crossed) if self.mask is not None else None
        return self.meant(self.mask, name, self.j if self.crossed else None)

    def meant(self, mask: Tensor | None, name: str | None, keys: int | None) -> tuple[Tensor, ...]:
        """Return the rules that a mask of the tokens, or of so many keys, may mean; () for None."""
        if mask is None:
            return ()
        said = self.options.true_means
        pads = mask.dtype == torch.bool and any(word in (name or "").lower() for word in PADS)
        blocks = (False, True) if said is None and pads else (said == "block",)
        return tuple(allowed(mask, self.b, self.n, one, keys) for one in blocks)

    def _weights(self) -> dict[str, Tensor]:
        """Return the parameters of the module, or the weights given with a function."""
        if self.patient.is_module:
            return dict(self.patient.module.named_parameters())
        return self.options.more.get("weights") or {}

    def head_dims(self) -> list[int]:
        """Return possible head dimensions, the likeliest first."""
        held = stated_integers(self.patient.module, HEAD_DIM_NAMES)
        common = _common([*self._weights().values()])
        return [*dict.fromkeys((*held, *(s // self.h for s in common if s % self.h == 0)))][:4]

    def _shapes(self, embed_dim: int | None) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield samples, tokens, their width, and tokens and width of the context."""
        (b, n), context = self.sizes(0), self.options.context
        found = possible_widths(self.patient.module, [*self._weights().values()])
        found = list(dict.fromkeys((*found, *(size * self.h for size in found)))) or [FREE_WIDTH]
        widths = [embed_dim] if embed_dim else found[:MOST_WIDTHS]
        if context is not None:
            wide = [context.width] if context.width else widths
            pairs = sorted(product(widths, wide), key=lambda pair: pair[0] != pair[1])
            same = n if context.length is None else self.keys(0)
            free = self.mask is None and (same == n or self.options.size is None)
            for i, j in ((n, self.keys(0)), *[(same, same)] * free):
                yield from ((b, i, width, j, c) for width, c in pairs)
            return
        counts = [(b, n)]
        if self.options.size is None and self.mask is None:
            counts += [(b, 4), (1, n)]
            counts += [(b, count) for count in token_counts(self.patient.module)[:3]]
        yield from ((b, n, width, n, width) for b, n in counts for width in widths)

    def fits(self, way: Way, embed_dim: int | None) -> BaseException | None:
        """Try a way to call, with one width or several; return None if it works, or the error."""
        self.patient.way = way
        first: BaseException | None = None
        for shape in self._shapes(embed_dim):
            self.b, self.n, self.e, self.j, self.c = shape
            for single in (False, True):
                self.patient.in_single(single)
                try:
                    self.run(self.tokens(), self.context())
                except CallFailed as failed:
                    first = first or failed.error
                    continue
                self.same_length = self.crossed and self.j == self.n and self.keys(0) != self.n
                return None
        self.patient.in_single(False)
        return first or ValueError("no width")


def working(module: Examined, options: Options, embed_dim: int | None = None) -> Iterator[Trial]:
    """Yield trials of a module, one for each of the ways to call it that work, six at most.

    A module that does not run with any width, or the given one, is a `ValueError`.
    """
    check_positive(options.where, embed_dim=1 if embed_dim is None else embed_dim)
    first = Trial(module, options)
    candidates: Iterator[Way] = iter([Way()])
    if options.call is None:
        candidates = ways(first.patient.module, first.head_dims(), first.crossed)
    failed: tuple[BaseException, tuple[int, ...]] | None = None
    found = 0
    for number, way in enumerate(candidates):
        trial = first if number == 0 else Trial(module, options)
        error = trial.fits(way, embed_dim)
        if error is None:
            found += 1
            yield trial
            if found == MOST_WAYS or number == 0:
                return
        elif failed is None:
            failed = error, (trial.b, trial.n, trial.e)
    if not found and failed is not None:
        raise first.patient.refusal(*failed) from failed[0]
