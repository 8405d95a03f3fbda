"""The module under examination: its copy, sizes that it takes, calls of it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attention_clinic.engine.patient import Patient, check_positive, possible_widths
from attention_clinic.engine.weights import sources_of
from attention_clinic.examine.mask_argument import adds, allowed
from attention_clinic.examine.matching import Probe


@dataclass(frozen=True)
class Options:
    """What the caller of `diagnose` said; see there."""

    num_heads: int
    mask: Tensor | None = None
    causal: bool | None = None
    call: Callable[..., Any] | None = None
    weights: dict[str, Tensor] | None = None
    size: tuple[int, int] | None = None
    out_proj: bool | None = None
    true_means: Literal["attend", "block"] | None = None


class Subject:
    """One module under examination.

    Args:
        module: as in `diagnose`.
        options: what its caller said.
    """

    b: int
    n: int
    e: int

    def __init__(self, module: nn.Module | Callable[..., Any], options: Options) -> None:
        self.original, self.options = module, options
        self.h, self.mask = options.num_heads, options.mask
        self.call, self.weights, self.size = options.call, options.weights, options.size
        self.true_means = options.true_means
        self.mode: Callable[[], AbstractContextManager[Any]] | None = None  # a repair to run it in
        self.extra: list[str] = []  # ids found by the way the module behaves
        self.start(own_weights=options.weights is not None)
        self.b, self.n = self.sizes(0)

    def start(self, own_weights: bool) -> None:
        """Copy the module anew."""
        for name in ("first", "second", "sees_future", "limited"):
            self.__dict__.pop(name, None)
        self.own_weights = own_weights
        self.patient = Patient("diagnose", self.original, self.call, own_weights)
        if not self.patient.is_module and self.weights is None:
            raise ValueError(
                "diagnose: a function must come with its weights, got weights=None. "
                'Pass weights={"q": wq, "k": wk, "v": wv, "out": wo}.'
            )
        for name, weight in (self.weights or {}).items():
            if not isinstance(weight, Tensor):
                raise ValueError(
                    f"diagnose: weights must be tensors by name, got {name}={weight!r}. "
                    "Leave out what is missing."
                )
        if self.weights is not None:
            self.weights = {name: w.detach().cpu() for name, w in self.weights.items()}
            if any(weight.dtype == torch.float64 for weight in self.weights.values()):
                self.patient.dtype = torch.float64

    def sizes(self, number: int) -> tuple[int, int]:
        """Return how many samples and tokens to try: all sizes different, where possible."""
        if self.size is not None:
            return self.size
        if self.mask is not None and self.mask.ndim >= 2:
            n = self.mask.shape[-1]
            batch = self.mask.shape[0] if self.mask.ndim > 2 or self.mask.shape[0] != n else 1
            if batch > 1:
                return batch, n
            return (2 if n != 2 else 3) + number, n
        tokens = [n for n in (5, 7, 9, 11, 13) if n != self.h]
        samples = [b for b in (3, 2, 4) if b != self.h]
        return samples[number], tokens[number]

    def run(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """Call the copy, with the repair that it needs."""
        if self.mode is None:
            return self.patient.run(x, mask)
        with self.mode():
            return self.patient.run(x, mask)

    def find_width(
        self, given: int | None, join_heads: Callable[[Subject, tuple[int, int, int]], bool]
    ) -> None:
        """Find e, the width that the module accepts, perhaps once its heads are joined for it."""
        if given is not None:
            check_positive("diagnose", embed_dim=given)
        named = self.weights or dict(self.patient.module.named_parameters())
        if not named and self.patient.is_module:
            named = {s.name: s.weight for s in sources_of(self.patient.module)}
        widths = [given] if given else possible_widths(self.patient.module, named)
        if not widths:
            raise ValueError(
                f"diagnose: the weights must be found in the module, got {self.patient.name} "
                "without parameters. Hand them over: weights={...}."
            )
        first: tuple[Exception, tuple] | None = None
        for width in widths[:6]:
            for b, n in self.calls_to_try():
                for single in (False, True):
                    if single:
                        self.patient.single()
                    shape = (b, n, width)
                    try:
                        self.blank(shape)
                    except Exception as error:
                        first = first or (error, shape)
                        if join_heads(self, shape):
                            self.b, self.n, self.e = shape
                            return
                    else:
                        self.b, self.n, self.e = shape
                        return
                if self.patient.is_module:
                    self.patient.module.double()
                    self.patient.dtype = torch.float64
        raise self.patient.complain(*first) from first[0]

    def calls_to_try(self) -> list[tuple[int, int]]:
        """Return numbers of samples and tokens; the later ones are for modules with limits."""
        if self.size is not None or self.mask is not None:
            return [(self.b, self.n)]
        return [(self.b, self.n), (self.b, 4), (1, self.n)]

    def open_run(self, x: Tensor) -> Tensor:
        """Call the module without a mask or, where it needs one, with one that blocks nothing."""
        if self.mask is None:
            return self.run(x)
        try:
            return self.run(x)
        except Exception:
            if adds(self.mask):
                return self.run(x, torch.zeros_like(self.mask))
            if self.true_means == "block":
                return self.run(x, torch.zeros_like(self.mask))
            y = self.run(x, torch.ones_like(self.mask))
            # nothing but NaN: this module takes masks upside down
            return self.run(x, torch.zeros_like(self.mask)) if y.isnan().all() else y

    def blank(self, shape: tuple[int, int, int]) -> Tensor:
        """Call the module on tokens of a shape, without a mask."""
        return self.open_run(self.patient.tokens(*shape))

    def probe(self, number: int, mask: bool = False, blocks: bool = False) -> Probe:
        """Call the module on random tokens of the sizes with this number."""
        b, n = (self.b, self.n) if number == 0 else self.sizes(number)
        if mask:
            x = self.patient.tokens(b, n, self.e, seed=number)
            allow = allowed(self.mask, b, n, blocks)
            return Probe(x, self.run(x, self.mask), mask=allow)
        if number and self.limited:
            b, n = self.b, self.n
        x = self.patient.tokens(b, n, self.e, seed=number)
        return Probe(x, self.open_run(x))

    @cached_property
    def first(self) -> Probe:
        """The call that every form is compared with."""
        return self.probe(0)

    @cached_property
    def second(self) -> Probe:
        """A call of other sizes, that a match must give too."""
        return self.probe(1)

    @cached_property
    def sees_future(self) -> bool:
        """Whether the last token reaches earlier ones."""
        x = self.first.x.clone()
        x[:, -1] += 1.0
        change = (self.run(x) if self.mask is None else self.first.y) - self.first.y
        return bool(change[:, :-1].abs().max() > 1e-4)

    @cached_property
    def limited(self) -> bool:
        """Whether the module takes only the sizes that were tried first."""
        b, n = self.sizes(1)
        try:
            return self.run(self.patient.tokens(b, n, self.e)).shape[:2] != (b, n)
        except Exception:
            return True


class Unreadable(Exception):
    """No way to read the weights as projections."""
