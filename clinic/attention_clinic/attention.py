"""`diagnose`: name the mistake of an attention that runs and has every shape right."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from attention_clinic import patient as clinic
from attention_clinic.catalogue import BUGS, FORMS, both, reference
from attention_clinic.patient import Patient
from attention_clinic.report import Explanation, Report, explain
from attention_clinic.search import (
    LIKELY,
    PAIRS_TRIED,
    SINGLES_TRIED,
    Frame,
    Match,
    Probe,
    Search,
    _same,
    frames_of,
    only,
    other_scales,
)
from attention_clinic.weights import Reader, Reading, joined_heads, sources_of

EVERYTHING = "projections, split, scale, softmax, mixing, joining"


def diagnose(
    module: nn.Module | Callable,
    num_heads: int,
    *,
    mask: Tensor | None = None,
    causal: bool | None = None,
    call: Callable | None = None,
    weights: dict[str, Tensor] | None = None,
    embed_dim: int | None = None,
    size: tuple[int, int] | None = None,
    out_proj: bool | None = None,
    true_means: Literal["attend", "block"] | None = None,
) -> Report:
    """Compare a self-attention with a faithful one and name the mistakes that explain it.

    A copy of the module gets random weights and random tokens. Its own parameters are read as the
    projections of the reference, whatever they are called; then each known mistake is put into
    the reference, then each pair. An explanation is reported only when it gives the same output.

    >>> print(diagnose(my_attention, num_heads=8))
    >>> assert_healthy(my_attention, num_heads=8)  # in your tests

    Args:
        module: maps tokens to tokens by attention; stays as it is. A function needs `weights`.
        num_heads: number of heads, h.
        mask: a mask to call the module with, in the shape that it takes. Bool: True = may
            attend; integers, and floats that are all 0 or 1: 1 = may attend; other floats are
            added to the scores: 0 = may attend.
        causal: True when token i must see tokens 0 to i only, False when it must see all;
            None accepts both.
        call: how to call the module: call(module, x), or call(module, x, mask); None reads the
            signature of `forward`. Its result is a tensor, or begins with one.
        weights: the weights of a function, by name: {"q": ..., "k": ..., "v": ..., "out": ...}.
        embed_dim: width of a token, e; None finds it.
        size: numbers of samples and tokens to try, for modules that take no others.
        out_proj: True when it must have an output projection of its own, False when that stands
            outside; None accepts both and makes a remark.
        true_means: what True means in a boolean mask, "attend" or "block"; None is "attend",
            unless the argument is named after what it blocks, such as key_padding_mask.

    Shape:
        x       (b, n, e)
        mask    (n, n), (b, n), (b, 1, 1, n), (b, 1, n, n) or broadcastable to (b, h, n, n)
        result  (b, n, e)

    Returns:
        A `Report`: print it, or ask for `healthy` and `explanations`.

    Raises:
        ValueError: not a module or function, a number of heads that does not fit, weights that
            cannot be read, or an exception inside the module.
    """
    clinic.check_positive("diagnose", num_heads=num_heads)
    if causal is not None and not isinstance(causal, bool):
        raise ValueError(
            f"diagnose: causal must be True, False or None, got {type(causal).__name__}. "
            "Pass a mask as mask=."
        )
    if true_means not in (None, "attend", "block"):
        raise ValueError(
            f'diagnose: true_means must be "attend" or "block", got true_means={true_means!r}. '
            "It says what True means in mask."
        )
    with clinic.undisturbed():
        case = _Case(
            module, num_heads, mask, causal, call, weights, embed_dim, size, out_proj, true_means
        )
        return case.report()


class _Unreadable(Exception):
    """No way to read the weights as projections."""


class _Case:
    """One examination."""

    def __init__(
        self, module, num_heads, mask, causal, call, weights, embed_dim, size, needs_out, true_means
    ):
        self.h, self.mask, self.causal, self.call = num_heads, mask, causal, call
        self.weights, self.size, self.needs_out, self.true_means = (
            weights,
            size,
            needs_out,
            true_means,
        )
        self.original = module
        self.start(own_weights=weights is not None)
        self.extra: list[str] = []  # ids found by the way the module behaves
        self.mode: Callable | None = None  # a repair in which the module is run
        self.blocks_nothing = self.overflows = False
        self.b, self.n = self.sizes(0)
        self.e = self.find_width(embed_dim)

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

    # ----------------------------------------------------------------------- sizes and calls

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

    def find_width(self, given: int | None) -> int:
        """Return e: the width that the module accepts."""
        if given is not None:
            clinic.check_positive("diagnose", embed_dim=given)
        named = self.weights or dict(self.patient.module.named_parameters())
        if not named and self.patient.is_module:
            named = {s.name: s.weight for s in sources_of(self.patient.module)}
        widths = [given] if given else clinic.possible_widths(self.patient.module, named)
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
                        if self.join_heads(shape):
                            self.b, self.n = b, n
                            return width
                    else:
                        self.b, self.n = b, n
                        return width
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

    def join_heads(self, shape: tuple[int, int, int]) -> bool:
        """Say whether the module runs once its heads are joined for it."""
        for axis in (1, 2):
            repair = clinic._JoinHeads(self.h, axis)
            self.mode = lambda repair=repair: repair
            try:
                y = self.blank(shape)
            except Exception:
                continue
            if repair.calls and y.shape[:2] == shape[:2] and self.settle_heads(shape, axis):
                self.extra.append("heads-not-joined")
                return True
        self.mode = None
        return False

    def settle_heads(self, shape: tuple[int, int, int], axis: int) -> bool:
        """Say whether what the repair of this axis gives is explained."""
        self.b, self.n, self.e = shape
        try:
            return bool(self.explained(most=1))
        except (_Unreadable, ValueError):
            return False

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

    # --------------------------------------------------------------------------- the search

    def readers(self, out_dim: int) -> list[tuple[Reader, list[Reading]]]:
        """Return readers with their readings, one for each possible h * d."""
        sources = sources_of(self.weights or self.patient.module)
        dtype = self.patient.dtype  # tensors that are no parameters kept their own
        sources = [
            replace(s, weight=s.weight.to(dtype), bias=None if s.bias is None else s.bias.to(dtype))
            for s in sources
        ]
        sources = joined_heads(sources, self.h)
        sizes = {size // parts for s in sources for size in s.weight.shape for parts in (1, 2, 3)}
        widths = [self.e, *sorted(sizes)]
        found = []
        for inner in dict.fromkeys(width for width in widths if width):
            # heads as modules of their own have the width e / h too: that is not h * d
            if inner % self.h or (inner == self.e // self.h and inner not in (self.e, out_dim)):
                continue
            reader = Reader(sources, self.e, self.h, inner, out_dim, self.needs_out is True)
            readings = reader.readings()
            if readings:
                found.append((reader, readings))
        return found

    def explained(self, most: int = 2) -> list[tuple[Reader, Match]]:
        """Return what explains the module without a mask, with as few mistakes as possible."""
        probe = self.probe(0)
        readers = self.readers(probe.y.shape[-1])
        if not readers:
            raise _Unreadable
        if self.own_weights:
            readers = [(reader, self.telling(reader, readings)) for reader, readings in readers]
        frames = frames_of(self.patient.module, self.e)
        if probe.y.shape[-1] != self.e:
            frames = frames[:1]
        bases = [False, True] if self.causal is None or self.mask is not None else [self.causal]
        steps = (  # mistakes in all, readings tried, with other things around, with a fitted scale
            (0, None, True, False),
            (1, LIKELY, True, False),
            (1, LIKELY, False, True),
            (1, SINGLES_TRIED, False, False),
            (2, LIKELY, False, False),
            (2, PAIRS_TRIED, False, False),
        )
        for total, count, around, fit in steps:
            if total > most:
                break
            for frame in frames if around else frames[:1]:
                for base in bases:
                    if total == 2 and base and self.causal is None and self.sees_future:
                        continue
                    case = replace(probe, causal=base)
                    found = self.matching(readers, case, frame, total, count, fit)
                    if not found:
                        continue
                    if not fit and total and all(m.reading.rank for _, m in found):
                        # the names do not settle which weight is which: what is found with
                        # other orders of the same weights is an alternative
                        kinds = {reader.kind(match.reading) for reader, match in found}
                        same = [
                            (reader, [r for r in readings if reader.kind(r) in kinds])
                            for reader, readings in readers
                        ]
                        found = self.matching(same, case, frame, total, None, fit)
                    return found
        return []

    def telling(self, reader: Reader, readings: list[Reading]) -> list[Reading]:
        """Return the readings with which a mistake would show: no projection of it is zero."""
        open_probe = replace(self.first, causal=False)
        search = Search(reader, readings, open_probe, Frame(""), self.patient.tolerance)
        could = search.could_differ()
        return [reading for reading, shows in zip(readings, could, strict=True) if shows]

    def matching(
        self, readers: list, probe: Probe, frame: Frame, total: int, count: int | None, fit: bool
    ) -> list[tuple[Reader, Match]]:
        """Return what matches this probe and holds for others too."""
        found = []
        for reader, readings in readers:
            found += self.at_level(reader, readings, probe, frame, total, count, fit)
        return [(reader, match) for reader, match in found if self.holds(reader, match)]

    def at_level(
        self,
        reader: Reader,
        readings: list[Reading],
        probe: Probe,
        frame: Frame,
        total: int,
        count: int | None,
        fit: bool,
    ) -> list[tuple[Reader, Match]]:
        """Return the matches with so many mistakes, those of the reading included."""
        found = []
        for mistakes in range(total + 1):
            chosen = [r for r in readings if len(r.ids) == total - mistakes][:count]
            if not chosen or (fit and mistakes != 1):
                continue
            forms = dict(FORMS)
            search = Search(reader, chosen, probe, frame, self.patient.tolerance, forms=forms)
            if fit:
                forms.update({stage: [reference(stage)] for stage in forms})
                forms["scale"] = [reference("scale"), *search.fitted_scales()]
            elif mistakes:
                forms["scale"] = FORMS["scale"] + other_scales(search.setting, mistakes == 1)
            if self.causal is not True or self.mask is not None:
                forms["rule"] = [f for f in forms["rule"] if f.id != "mask-not-causal"]
            found += [(reader, match) for match in search.matches(mistakes)]
        return found

    def holds(self, reader: Reader, match: Match) -> bool:
        """Say whether a match gives every number of another call too."""
        for probe in (self.first, self.second):
            probe = replace(probe, causal=match.causal)
            search = Search(
                reader,
                [match.reading],
                probe,
                match.frame,
                self.patient.tolerance,
                looks=None,
                forms=only(match),
            )
            count = len(match.ids) - len(match.reading.ids)
            if not any(True for _ in search.matches(count)):
                return False
        return True

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

    # --------------------------------------------------------------------------- the report

    def report(self) -> Report:
        """Examine and say what was found."""
        name = self.patient.name
        x = self.patient.tokens(self.b, self.n, self.e)
        y = self.open_run(x)
        if not y.isfinite().any():
            return self.unexplained(random=False)
        if self.ignores(y):
            read = clinic.globals_read(self.original)
            detail = f"forward reads {' and '.join(read)} from outside the module" if read else ""
            bug = BUGS["ignores-input"]
            found = explain([bug], detail=detail, evidence="two inputs gave the same output")
            return Report(name, False, (found,), checked=("two inputs",), untried=self.untried())
        if y.ndim == 4 and y.shape[1] == 1 and y.shape[0] == self.b and self.h == 1:
            y = y[:, 0]
        if y.ndim != 3 or y.shape[:2] != (self.b, self.n):
            raise ValueError(
                f"diagnose: {name} must return (b, n, e), got x of shape {tuple(x.shape)} and a "
                f"result of shape {tuple(y.shape)}. "
                "Say how to call it: call=lambda module, x: module(x)[0]."
            )
        self.check_heads(y)
        random = False
        if not clinic.same(y, self.probe(0).y):
            quiet = clinic._NoDropout
            self.mode = quiet
            if clinic.same(self.probe(0).y, self.probe(0).y):
                self.extra.append("dropout-eval")
            else:
                self.mode, random = None, True
        try:
            matches = [] if random else self.search()
        except _Unreadable:
            said = "no weights that could be the projections of queries, keys and values"
            return Report(name, False, checked=(said,), untried=self.untried())
        if not matches:
            return self.unexplained(random)
        checked = [self.what(matches[0][1])]
        if self.mask is not None:
            matches, words = self.with_mask(matches)
            if not matches:
                return self.unexplained(random, masked=True)
            checked += words
        if self.patient.is_module and not self.extra:
            self.look_for_unused_dropout()
        explanations = self.explanations(matches)
        if self.patient.dtype == torch.float32:
            checked.append("in single precision")
        return Report(
            name,
            not explanations,
            tuple(explanations),
            checked=tuple(checked),
            untried=self.untried(),
            remarks=self.remarks(matches),
            tolerance=self.patient.tolerance,
        )

    def untried(self) -> tuple[str, ...]:
        """Say what was not tried."""
        said = list(self.patient.untried(mask=True))
        if self.blocks_nothing:
            said.append("a mask that blocks something: the one given leaves everything as it is")
        if self.size is None and self.mask is None and self.limited:
            said.append("another number of tokens, which it does not take")
        return tuple(said)

    def remarks(self, matches: list[tuple[Reader, Match]]) -> tuple[Explanation, ...]:
        """Return what is no mistake here, and one elsewhere."""
        made = []
        alone = all(m.reading.out is None and "out-missing" not in m.ids for _, m in matches)
        if self.needs_out is None and alone and self.h > 1:
            words = (
                "right where that layer stands outside this module (out_proj=False says so), "
                "wrong where there is none (out_proj=True)"
            )
            seen = "seen in the weights, and in the output without one"
            made.append(explain([BUGS["out-missing"]], detail=words, evidence=seen))
        if self.overflows and "mask-fp16" not in self.extra:
            said = "fails in half precision; here it is not used"
            made.append(explain([BUGS["mask-fp16"]], evidence=said))
        return tuple(made)

    def ignores(self, y: Tensor) -> bool:
        """Say whether other tokens give the same output."""
        if y.isnan().all():
            return False
        other = self.patient.tokens(self.b, self.n, self.e, seed=5)
        try:
            return torch.equal(y, self.run(other)) if self.mask is None else False
        except Exception:
            return False

    def check_heads(self, y: Tensor) -> None:
        """Raise when no width that the module has is a multiple of the heads."""
        if self.e % self.h == 0 or y.shape[-1] % self.h == 0:
            return
        named = self.weights or dict(self.patient.module.named_parameters())
        if any(size % self.h == 0 for w in named.values() for size in w.shape):
            return
        divisors = [h for h in range(1, self.e + 1) if self.e % h == 0]
        raise ValueError(
            f"diagnose: num_heads must divide the width of a token, got num_heads={self.h} and "
            f"embed_dim={self.e}. Pick num_heads from {divisors}."
        )

    def search(self) -> list[tuple[Reader, Match]]:
        """Search, and once more with the module's own weights if it keeps copies of them."""
        found = self.explained()
        if not found and self.patient.is_module and self.keeps_copies():
            self.start(own_weights=True)
            found = self.explained()
            if not found:
                self.start(own_weights=False)
        return found

    def keeps_copies(self) -> bool:
        """Say whether the module holds matrices that are not parameters."""
        return any(
            isinstance(value, Tensor) and value.ndim > 1 and value.is_floating_point()
            for part in self.patient.module.modules()
            for value in [*vars(part).values(), *part._buffers.values()]
        )

    def what(self, match: Match) -> str:
        """Say what was compared."""
        words = [EVERYTHING, f"{self.h} head{'s' * (self.h > 1)} of {self.e} wide tokens"]
        masks = self.patient.takes_mask
        every = "without a mask" if masks and self.mask is None else "every token sees all tokens"
        every = "without the mask" if self.mask is not None else every
        words.append("causal" if match.causal else every)
        if self.patient.time_first:
            words.append("tokens first, samples second")
        if self.patient.factors:
            words.append(f"{', '.join(self.patient.factors)} as it is")
        if match.frame.name:
            words.append(match.frame.name)
        if match.reading.out is None and not match.reading.ids:
            words.append("no output projection, as one head needs none")
        return "; ".join(words)

    def with_mask(self, matches: list) -> tuple[list, list[str]]:
        """Keep what explains the module with the mask too, adding mistakes of the mask."""
        blocks = self.true_means == "block"
        found, words = self.masked(matches, blocks)
        named = self.true_means is None and names_what_it_blocks(self.patient.module)
        if named and self.mask.dtype == torch.bool:
            other, others = self.masked(matches, True)
            if other and (not found or len(other[0][1].ids) < len(found[0][1].ids)):
                found, words, blocks = other, others, True
        if words and blocks:
            words[0] += ", in which True means blocked"
        return found, words

    def masked(self, matches: list, blocks: bool) -> tuple[list, list[str]]:
        """Return what `with_mask` does, for one meaning of True."""
        probes = [self.probe(number, mask=True, blocks=blocks) for number in (0, 1)]
        self.blocks_nothing = all(
            bool(both(p.mask, rule).all() if rule is None else _same(both(p.mask, rule), rule))
            for p in probes
            for rule in {
                m.causal: replace(p, causal=m.causal).causal_rule() for _, m in matches
            }.values()
        )
        if self.blocks_nothing:
            return matches, []
        places = probes[0].mask
        words = [f"with the mask, which blocks {(~places).sum()} of {places.numel()} places"]
        for total in range(3):
            found = []
            for reader, match in matches:
                forms = only(match, free=("rule", "use"))
                forms["rule"] = [f for f in FORMS["rule"] if f.id != "mask-not-causal"]
                base = len(match.ids) - len(match.reading.ids)
                sets = []
                for probe in probes:
                    search = Search(
                        reader,
                        [match.reading],
                        replace(probe, causal=match.causal),
                        match.frame,
                        self.patient.tolerance,
                        looks=None,
                        forms=forms,
                    )
                    sets.append({m.ids: m for m in search.matches(base + total)})
                shared = [m for ids, m in sets[0].items() if ids in sets[1]]
                found += [(reader, m) for m in shared]
            if found:
                self.try_half()
                return found, words
        return [], words

    def try_half(self) -> None:
        """Find a mask value that half precision cannot hold; in a half module it is a bug."""
        if not self.patient.is_module:
            return
        half = any(p.dtype == torch.float16 for p in self.original.parameters())
        x = self.patient.tokens(self.b, self.n, self.e)
        if self.mask.is_floating_point():
            return
        try:
            self.patient.module.half()
            try:
                self.run(x.half(), self.mask)
            except RuntimeError as error:
                if "overflow" in str(error):
                    self.overflows = True
                    self.extra += ["mask-fp16"] * half
        finally:
            self.patient.module.to(self.patient.dtype)

    def look_for_unused_dropout(self) -> None:
        """Find a dropout that is declared and never happens while training."""
        declared = clinic.unused_dropout(self.patient.module)
        if declared is None:
            return
        module = self.patient.module
        x = self.patient.tokens(self.b, self.n, self.e)
        module.train()
        try:
            with clinic._NoDropout() as quiet:
                self.patient.run(x)
            if quiet.calls == 0:
                runs = [self.patient.run(x) for _ in range(3)]
                if torch.equal(runs[0], runs[1]) and torch.equal(runs[0], runs[2]):
                    self.extra.append("dropout-unused")
                    self.declared = declared
        except Exception:
            return
        finally:
            module.eval()

    def explanations(self, matches: list[tuple[Reader, Match]]) -> list[Explanation]:
        """Return one explanation for each set of ids, the simplest first."""
        order = list(BUGS)
        best: dict[tuple[str, ...], tuple[int, Match]] = {}
        for _, match in matches:
            ids = tuple(sorted((*match.ids, *self.extra), key=order.index))
            if ids not in best or match.reading.rank < best[ids][0]:
                best[ids] = (match.reading.rank, match)
        if () in best:
            return []
        found = []
        likeliest = min(rank for rank, _ in best.values())
        for ids, (rank, match) in best.items():
            if likeliest == 0 < rank:
                continue  # names break ties, where all of them fit
            detail = match.detail
            if "dropout-unused" in ids:
                detail = "; ".join(filter(None, (detail, self.declared)))
            evidence = "reproduces your output exactly"
            if "dropout-eval" in ids:
                evidence = "reproduces your output exactly once dropout is off"
            elif "heads-not-joined" in ids:
                evidence = "reproduces your output exactly once the heads are joined"
            elif ids == ("dropout-unused",):
                evidence = "no call of dropout in train mode"
            elif ids == ("mask-fp16",):
                evidence = "fails in half precision"
            bugs = [BUGS[id] for id in ids]
            found.append((len(ids), explain(bugs, match.difference, detail, evidence)))
        return [e for _, e in sorted(found, key=lambda item: (item[0],))]

    def unexplained(self, random: bool, masked: bool = False) -> Report:
        """Report the properties that fail."""
        from attention_clinic.properties import failing

        checked = "every known mistake, alone and in pairs" + (" with the mask" if masked else "")
        return Report(
            self.patient.name,
            False,
            failing=tuple(failing(self, random)),
            checked=(checked,),
            untried=self.untried(),
        )


def adds(mask: Tensor) -> bool:
    """Say whether a mask is to be added: floats, but not a table of ones and zeros."""
    return mask.is_floating_point() and not bool(((mask == 0) | (mask == 1)).all() and mask.any())


def names_what_it_blocks(module: nn.Module | Callable) -> bool:
    """Say whether the mask's argument is named after what is blocked: key_padding_mask."""
    name = clinic.mask_argument(module) or ""
    return bool(re.search(r"pad|block|ignore|exclude|masked", name.lower()))


def allowed(mask: Tensor, b: int, n: int, blocks: bool = False) -> Tensor:
    """Return who may attend to whom, (1 or b, 1 or h, 1 or n, n), from a mask of any convention.

    Args:
        mask: bool, integers or floats of 0 and 1 (1 = may attend), other floats to be added
            (0 = may attend).
        blocks: True when True means blocked in a boolean mask.
        b: number of samples.
        n: number of tokens.

    Shape:
        mask    (n, n), (b, n), (b, n, n), or four axes
        result  (1 or b, 1 or h, 1 or n, n), bool

    Raises:
        ValueError: another shape.
    """
    allow = mask == 0 if adds(mask) else mask > 0
    if blocks and mask.dtype == torch.bool:
        allow = ~allow
    shape = tuple(allow.shape)
    if len(shape) == 2 and shape == (n, n):
        return allow[None, None]
    if len(shape) == 2 and shape == (b, n):
        return allow[:, None, None, :]
    if len(shape) == 3 and shape[0] in (1, b) and shape[1] in (1, n) and shape[2] == n:
        return allow[:, None]
    if len(shape) == 4 and shape[3] == n:
        return allow
    raise ValueError(
        f"diagnose: mask must have shape (n, n), (b, n), (b, n, n) or (b, 1, n, n), got "
        f"mask.shape={shape} for b={b} and n={n}. Make it for one call: size=(b, n) sets both."
    )
