"""The module under examination: its copy, sizes that it takes, calls of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from dataclasses import replace
from functools import cached_property
from itertools import chain, product
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.bugs import MODELS
from attention_clinic.engine.arguments import cut_of
from attention_clinic.engine.calls import further_calls, out_of_sight
from attention_clinic.engine.forms import State
from attention_clinic.engine.modes import is_of_types, of_shapes
from attention_clinic.engine.patient import Patient, check_positive
from attention_clinic.engine.unheard import flags_for
from attention_clinic.engine.weighing import Weighed
from attention_clinic.engine.weights import growth_for
from attention_clinic.examine.biases import Bias, bias_of, windowed_bias
from attention_clinic.examine.declared import known_of
from attention_clinic.examine.made import Made
from attention_clinic.examine.mask_argument import adds, allowed, closed, is_turned
from attention_clinic.examine.matching import UNKNOWN, Probe
from attention_clinic.examine.modern import turning
from attention_clinic.examine.options import Options
from attention_clinic.examine.widths import as_wide_as, widths_of
from attention_clinic.examine.windows import Windows

# what is found out of a copy, and anew of another one
FOUND = ("first", "second", "sees_future", "sees_past", "limited", "known", "sees_order", "runs")


class Subject:
    """One module under examination.

    Args:
        module: as in `diagnose`.
        options: what its caller said.
    """

    b: int
    n: int
    e: int
    j: int  # tokens of the context, n where there is none
    c: int  # their width

    def __init__(self, module: nn.Module | Callable[..., Any], options: Options) -> None:
        self.original, self.options = module, options
        self.h, self.mask = options.num_heads, options.mask
        self.call, self.weights, self.size = options.call, options.weights, options.size
        self.context, self.crossed = options.context, options.context is not None
        self.square = False  # True for a module that takes no context of another length
        self.turned = is_turned(module, options.call, options.mask)
        self.true_means, self.further = options.true_means, out_of_sight(module)
        self.mode: Callable[[], AbstractContextManager[Any]] | None = None  # a repair to run it in
        self.extra: list[str] = []  # ids found by the way the module behaves
        self.biased = False  # True once it adds something of its own to the scores
        self.biases: dict[tuple[int, int], Bias | None] = {}
        self.made: Made | None = None  # its parts that make queries, keys and values
        self.windows: Windows | None = None  # that it cuts its tokens into, once they are found
        self.start(own_weights=options.weights is not None)
        (self.b, self.n), self.j = self.sizes(0), self.keys(0)

    def start(self, own_weights: bool) -> None:
        """Copy the module anew."""
        for name in FOUND:
            self.__dict__.pop(name, None)
        self.own_weights, self.readers = own_weights, {}  # of the weights, by the output's width
        self.weighed: dict[tuple[int, int], Weighed] = {}  # by how many tokens ask, are asked
        before: Patient | None = self.__dict__.get("patient")
        if before is None:
            self.patient = Patient("diagnose", self.original, self.call, own_weights)
            self.patient.flags = flags_for(self.original, self.options.causal, self.mask)
        else:
            self.patient = before.anew(own_weights)  # what was found out of its call is kept
        self.patient.tables, self.patient.opening = self.options.tables, self.options.opening
        self.patient.layout, self.patient.grown = self.options.layout, growth_for(self.weights)
        if not self.patient.is_module and self.weights is None:
            raise ValueError(
                "diagnose: a function must come with its weights, or take q, k and v, got none. "
                'Pass weights={"q": wq, "k": wk, "v": wv, "out": wo}.'
            )
        if self.weights is not None:
            self.weights = {name: w.detach().cpu() for name, w in self.weights.items()}
            if any(weight.dtype == torch.float64 for weight in self.weights.values()):
                self.patient.dtype = torch.float64

    def sizes(self, number: int) -> tuple[int, int]:
        """Return how many samples and tokens to try: all sizes different, where possible."""
        if self.size is not None:
            return self.size
        if self.options.layout is not None and self.options.layout.grids:
            rows, columns = self.options.layout.grids[number]
            return 3, rows * columns
        if self.context is not None:
            return self.crossed_sizes(number)
        if self.mask is not None and self.mask.ndim >= 2:
            n = self.mask.shape[-1]
            batch = self.mask.shape[0] if self.mask.ndim > 2 or self.mask.shape[0] != n else 1
            if batch > 1:
                return batch, n
            return (2 if n != 2 else 3) + number, n
        tokens = [n for n in (self.further + i for i in (5, 7, 9, 11, 13)) if n != self.h]
        samples = [b for b in (3, 2, 4) if b != self.h]
        return samples[number], tokens[number]

    def crossed_sizes(self, number: int) -> tuple[int, int]:
        """Return how many samples and asking tokens to try beside a context."""
        assert self.context is not None
        mask = self.mask
        samples = [b for b in (3, 2, 4) if b != self.h][number]
        tokens = [n for n in (5, 7, 9, 11) if n != self.h][number]
        tokens = (self.context.length or tokens) if mask is None and self.square else tokens
        if mask is not None and mask.ndim == 2:
            samples = mask.shape[0]
        elif mask is not None and mask.ndim > 2:
            samples = mask.shape[0] if mask.shape[0] > 1 else samples
            tokens = mask.shape[-2] if mask.shape[-2] > 1 else tokens
        return self.context.samples or samples, tokens

    def keys(self, number: int) -> int:
        """Return how many tokens of the context to try, other than those that ask."""
        b, n = self.sizes(number)
        if self.context is None or self.square:
            return n
        if self.mask is not None:
            return self.mask.shape[-1]
        free = next(j for j in (k + number for k in (6, 8, 9, 10)) if j not in (b, n, self.h))
        return self.context.length or free

    def context_of(self, number: int) -> Tensor | None:
        """Return the context of the call with this number, None where there is none."""
        if not self.crossed:
            return None
        b, j = (self.b, self.j) if number == 0 else (self.sizes(number)[0], self.keys(number))
        return self.patient.tokens(b, j, self.c, seed=100 + number)

    def run(self, x: Tensor, mask: Tensor | None = None, number: int = 0) -> Tensor:
        """Call the copy, with the repair that it needs, and with the context of this number."""
        if self.options.cache is not None:
            return self.in_two_calls(x, self.options.cache())
        if mask is not None and self.turned and self.true_means == "block":
            mask = ~mask  # it is turned over once more: True blocks there
        with self.repaired():
            return self.patient.run(x, mask, self.context_of(number))

    def repaired(self) -> AbstractContextManager[Any]:
        """Return what the copy must run in."""
        return nullcontext() if self.mode is None else self.mode()

    def in_two_calls(self, x: Tensor, cache: Any) -> Tensor:
        """Call the copy on the first tokens, and on the others with a cache of those."""
        cut, made = cut_of(x.shape[1]), []
        try:
            for start, tokens in ((0, x[:, :cut]), (cut, x[:, cut:])):
                self.patient.beside = (cache, start)
                made.append(self.patient.run(tokens))
        finally:
            self.patient.beside = None
        return torch.cat(made, dim=1)

    def find_width(
        self, given: int | None, join_heads: Callable[[Subject, tuple[int, int, int]], bool]
    ) -> None:
        """Find e, the width that the module accepts, perhaps once its heads are joined for it."""
        if given is not None:
            check_positive("diagnose", embed_dim=given)
        widths = [given] if given else widths_of(self.patient, self.weights, self.h)
        first: tuple[Exception, tuple] | None = None
        failed = Exception()
        for b, n, width, j, c in self.calls_to_try(widths[:6]):
            for way in ("double", "wide", "single"):
                if way == "wide" and not is_of_types(failed):
                    continue
                self.patient.wide = way == "wide"
                if way == "single":
                    self.patient.single()
                shape = (b, n, width)
                self.b, self.n, self.e, self.j, self.c = b, n, width, j, c
                self.readers.clear()
                try:
                    made = self.blank(shape)
                except Exception as error:
                    first, failed = first or (error, shape), error
                    if not self.crossed and of_shapes(error) and join_heads(self, shape):
                        return
                else:
                    self.square = self.crossed and j == n
                    if given is None and not self.crossed:
                        self.e = self.c = as_wide_as(made, shape, self.blank)
                    return
            if self.patient.is_module:
                self.patient.module.double()
                self.patient.dtype = torch.float64
        raise self.patient.complain(*first) from first[0]

    def calls_to_try(self, widths: list[int]) -> Iterator[tuple[int, int, int, int, int]]:
        """Yield samples, tokens, their width, and the context's tokens and width.

        The later calls are for modules with limits.
        """
        b, n = self.b, self.n
        if self.context is not None:
            wide = [self.context.width] if self.context.width else widths
            same = n if self.context.length is None else self.j
            free = self.mask is None and (same == n or self.size is None)
            # a context as wide as the tokens first, and one as long as them last
            pairs = sorted(product(widths, wide), key=lambda pair: pair[0] != pair[1])
            for i, j in ((n, self.j), *[(same, same)] * free):
                for width, c in pairs:
                    yield b, i, width, j, c
            return
        grid = self.options.layout is not None and bool(self.options.layout.grids)
        fixed = self.size is not None or self.mask is not None or grid
        sizes = [(b, n)] if fixed else [(b, n), (b, 4), (1, n)]
        if self.options.opening is not None:  # with one sample a mask of another shape fits, too
            sizes = sizes[:2]
        usual = [(*pair, width) for width in widths for pair in sizes]
        more = () if fixed else further_calls(self.call, widths, self.h, (b, n))
        for samples, tokens, width in chain(usual, more):
            yield samples, tokens, width, tokens, width

    def open_run(self, x: Tensor, number: int = 0) -> Tensor:
        """Call the module without a mask or, where it needs one, with one that blocks nothing."""
        if self.mask is None:
            y = self.run(x, number=number)
            if self.options.opening is not None and closed(y):
                raise ValueError("diagnose: this mask blocks every place. Try another.")
            return y
        try:
            return self.run(x, number=number)
        except Exception:
            return self.run(x, self.free_mask, number)

    @cached_property
    def free_mask(self) -> Tensor:
        """A mask that blocks nothing, as the module takes it: perhaps upside down."""
        assert self.mask is not None
        ways = [torch.ones_like(self.mask), torch.zeros_like(self.mask)]
        if adds(self.mask) or self.true_means == "block":
            ways.reverse()
        y = self.run(self.patient.tokens(self.b, self.n, self.e), ways[0])
        return ways[not adds(self.mask) and closed(y)]

    def blank(self, shape: tuple[int, int, int]) -> Tensor:
        """Call the module on tokens of a shape, without a mask."""
        return self.open_run(self.patient.tokens(*shape))

    def probe(self, number: int, mask: bool = False, blocks: bool = False) -> Probe:
        """Call the module on random tokens of the sizes with this number."""
        b, n = (self.b, self.n) if number == 0 else self.sizes(number)
        x = self.patient.tokens(b, n, self.e, seed=number)
        if mask:
            allow = allowed(self.mask, b, n, blocks, self.mask.shape[-1] if self.crossed else None)
            try:
                y = self.run(x, self.mask, number)
            except Exception as error:
                raise self.patient.complain(error, tuple(x.shape)) from error
            given = {"context": self.context_of(number), "known": self.known}
            return Probe(x, y, mask=allow, bias=self.bias(b, n), **given)
        if number and (self.windows is not None or self.limited):
            x = self.patient.tokens(self.b, self.n, self.e, seed=number)
            y = self.open_run(x)
            b, n, number = *x.shape[:2], 0
        else:
            y = self.open_run(x, number)
        beside = {"context": self.context_of(number), "bias": self.bias(b, n), "known": self.known}
        beside |= {} if self.made is None else {"context": x}
        if self.windows is not None:
            return Probe(self.windows.cut(x), self.windows.cut(y), **beside)
        if self.options.cache is not None:  # the first call sees nothing of the second
            place = torch.arange(n)
            beside["mask"] = (place[:, None] >= cut_of(n)) | (place < cut_of(n))
            beside["mask"] = beside["mask"][None, None]
        return Probe(x, y, **beside)

    def bias(self, b: int, n: int) -> Tensor | None:
        """Return what the module adds to the scores of so many tokens, (h, n, n), or None."""
        if not self.biased:
            return None
        if (b, n) not in self.biases:
            turns = self.known["turning"] is not None
            if self.windows is None:
                patient = copy(self.patient)
                vars(patient)["run"] = self.open_run
                self.biases[b, n] = bias_of(patient, b, n, self.e, self.h, turns)
            else:
                shape = (b, n, self.e)
                self.biases[b, n] = windowed_bias(self.patient, shape, self.h, self.windows)
        found = self.biases[b, n]
        return None if found is None else found.added

    def inside(self, x: Tensor) -> Tensor:
        """Call the module on tokens that lie as those of a probe: as they are, or in windows."""
        if self.windows is None:
            return self.open_run(x)
        return self.windows.cut(self.open_run(self.windows.joined(x)))

    @property
    def bias_names(self) -> tuple[str, ...]:
        """The names of the variants that the bias is."""
        found = self.biases.get((self.b, self.n)) if self.biased else None
        return () if found is None else found.names

    @cached_property
    def known(self) -> State:
        """What the stages may know of the module beside its projections."""
        model = None if self.options.like is None else MODELS[self.options.like]
        turns = turning(
            self.patient.module, self.options.tables, self.sees_order, model is not None
        )
        if turns is not None and self.options.cache is not None:
            turns = replace(turns, cut=True)
        known: State = {"turning": turns, "model": model, "total": 0}
        if self.patient.is_module:
            x = self.patient.tokens(self.b, self.n, self.e, seed=33)
            keys = self.j if self.crossed else None
            known |= known_of(self.patient.module, self.open_run, x, self.h, keys)
            known["is_linear"] *= self.options.cache is None
        if not self.crossed and self.blank((self.b, self.n, self.e)).shape[1:2] == (1,):
            known["asks"] = (0, -1) if self.n > 1 else ()  # one token alone: the first, or the last
        return {**UNKNOWN, **known}

    @cached_property
    def sees_order(self) -> bool:
        """Whether the last token's output depends on the order of those before it, or asked."""
        x = self.patient.tokens(self.b, self.n, self.e, seed=31)
        if self.crossed and (self.mask, self.options.cache) == (None, None) and self.j > 1:
            asked = self.context_of(0)
            with self.repaired():
                y, other = (self.patient.run(x, None, t) for t in (asked, asked.roll(1, 1)))
        elif self.n < 3:  # nothing to exchange before the last token
            return True
        else:
            order = torch.arange(self.n)
            order[: self.n - 1] = order[: self.n - 1].roll(1)
            y, other = self.open_run(x), self.open_run(x[:, order])
        change = (y[:, -1] - other[:, -1]).abs().max()
        return bool(change > 1e-6 * (1 + y.abs().max()))

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
        if self.windows is not None:
            return True
        x = self.first.x.clone()
        x[:, -1] += 1.0
        change = (self.run(x) if self.mask is None else self.first.y) - self.first.y
        if change.shape[1] == 1:  # one token alone: there are none before it
            return True
        return bool(change[:, :-1].abs().max() > 1e-4)

    @property
    def is_causal(self) -> bool:
        """Whether earlier tokens reach the last one, and it none of them: by no bias of its own."""
        alone = self.mask is None and self.options.cache is None
        hides = alone and not (self.crossed or self.biased or self.n < 2 or self.sees_future)
        return hides and self.sees_past

    @cached_property
    def sees_past(self) -> bool:
        """Whether the first token reaches the last one."""
        x = self.first.x.clone()
        x[:, 0] += 1.0
        change = self.open_run(x) - self.first.y
        return bool(change[:, -1].abs().max() > 1e-4)

    @cached_property
    def limited(self) -> bool:
        """Whether the module takes only the sizes that were tried first."""
        b, n = self.sizes(1)
        try:
            y = self.run(self.patient.tokens(b, n, self.e), number=1)
            counts = (n, self.keys(1), *(1,) * bool(self.known.get("asks")))
            return y.shape[0] != b or y.shape[1] not in counts
        except Exception:
            return True


class Unreadable(Exception):
    """No way to read the weights as projections."""
