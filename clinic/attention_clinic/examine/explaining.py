"""Search the forms of attention that explain a module, with as few mistakes as possible."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace

import torch
from torch import nn

from attention_clinic.bugs.scores import SCALE, all_scales
from attention_clinic.engine.budget import Spent, reserved
from attention_clinic.engine.grouped import grouped_readers, wide_value_readers
from attention_clinic.engine.pieces import Reading
from attention_clinic.engine.readings import Reader
from attention_clinic.engine.weighing import Weighed
from attention_clinic.engine.weights import apart_from_gates, joined_heads, sources_of
from attention_clinic.examine.ended import OUT_BENT
from attention_clinic.examine.matching import Match, Probe, Search
from attention_clinic.examine.observing import observed
from attention_clinic.examine.placed_inside import Inside, PlacesInside
from attention_clinic.examine.reducing import reducer_of
from attention_clinic.examine.several import Readers, Unexplained, three_at_once
from attention_clinic.examine.shells import Shell, bent_behind, heard_shells, shells_of
from attention_clinic.examine.stepwise import step_by_step
from attention_clinic.examine.subject import Subject, Unreadable

LIKELY = 6  # readings that follow the names best
SINGLES_TRIED = 144  # readings that are tried with one mistake
PAIRS_TRIED = 24  # readings that are tried with two mistakes
TURNED = 0.2  # of the steps that are left, for what is right in a way that nothing says
RARE = 0.5  # of the steps that are left, for single mistakes in readings that hardly follow names
WINDOWS = 3  # that are looked at, of those that a module cuts its tokens into


class Explaining:
    """The search for what explains a module without a mask.

    Args:
        subject: the module.
        before_pairs: what is asked once no single mistake explains it; it may raise.
    """

    def __init__(self, subject: Subject, before_pairs: Callable[[], object] = lambda: None) -> None:
        self.subject, self.options, self.before_pairs = subject, subject.options, before_pairs
        self.must_be_causal = self.options.causal is True and self.options.mask is None

    def readers(self, out_dim: int) -> Readers:
        """Return readers with their readings, one for each possible h * d."""
        if out_dim not in self.subject.readers:
            found = self.read(out_dim)
            if self.subject.own_weights:
                found = [(reader, self.telling(reader, readings)) for reader, readings in found]
            self.subject.readers[out_dim] = found
        return self.subject.readers[out_dim]

    def read(self, out_dim: int) -> Readers:
        """Read the weights in every way; see `readers`."""
        e, c, h, made = self.subject.e, self.subject.c, self.subject.h, self.subject.made
        sources = sources_of(self.subject.weights or self.subject.patient.module)
        if made is not None:
            sources, e, c = made.sources(self.subject.patient.module), made.width, 2 * made.width
        dtype = self.subject.patient.dtype  # tensors that are no parameters kept their own
        sources = [
            replace(s, weight=s.weight.to(dtype), bias=None if s.bias is None else s.bias.to(dtype))
            for s in sources
        ]
        sources = joined_heads(sources, h, e)
        sources += apart_from_gates(sources, h)[0]
        sizes = {size // parts for s in sources for size in s.weight.shape for parts in (1, 2, 3)}
        widths = [e, *sorted(sizes)]
        found: Readers = []
        shared, needs_out = self.options.num_kv_heads, self.options.out_proj is True
        for inner in dict.fromkeys(width for width in widths if width):
            if shared not in (None, h):
                break
            # heads as modules of their own have the width e / h too: that is not h * d
            if inner % h or (inner == e // h and inner not in (e, out_dim)):
                continue
            reader = Reader(sources, e, h, inner, out_dim, needs_out, c)
            readings = reader.readings()
            if readings:
                found.append((reader, readings))
        plain = _is_plain(found)  # grouped ones may be as large as wider values
        if shared != h and not plain and c == e:  # they read tokens of one width
            grouped = grouped_readers(sources, e, h, shared, out_dim, needs_out)
            read = [(reader, readings) for reader in grouped if (readings := reader.readings())]
            named = [(reader, rs) for reader, rs in read if any(r.rank == 0 for r in rs)]
            found += named or read
        if not plain or self.subject.known.get("subtracted"):  # two queries may be packed in one
            wide = wide_value_readers(sources, e, h, out_dim, needs_out, c)
            found += [(reader, readings) for reader in wide if (readings := reader.readings())]
        return found

    def explained(self, most: int = 2, least: int = 0) -> list[tuple[Reader, Match]]:
        """Return what explains the module without a mask, with as few mistakes as possible.

        Args:
            most: how many are looked for.
            least: with how many the search begins; with fewer, nothing was found before.
        """
        probe = few(self.subject.probe(0)) if self.subject.windows else self.subject.probe(0)
        unsure = self.unsure(probe)
        if not unsure:
            return self.explaining(probe, most, least)
        plain = replace(probe, known={**probe.known, **dict.fromkeys(unsure)})
        found: list[tuple[Reader, Match]] = []
        if not least:  # right in either way comes before any mistake
            found = self.explaining(plain, 0)
        if not least and not found:
            with suppress(Spent), reserved(2 * TURNED if self.subject.biased else TURNED):
                for one in sorted(unsure) if len(unsure) > 1 else ():  # one of them is soon tried
                    alone = replace(plain, known={**plain.known, one: probe.known[one]})
                    found = found or self.explaining(alone, 0)
                found = found or self.explaining(probe, 0)
        if found or not most:
            return found
        found = self.explaining(plain, min(most, 1), 1)
        if not found and most > 1:
            self.before_pairs()
            readers = self.readers(probe.y.shape[-1])
            around = self.shells(plain)[0]
            found = step_by_step(Unexplained(self.subject, self.holds, readers, plain, around))
        return found or self.explaining(probe, most, 1)

    def unsure(self, probe: Probe) -> set[str]:
        """Return what is known of the module, and need not be so.

        Only the order of the tokens says that it turns, and tokens that are mixed say the same;
        norms without weights may be those of something else.
        """
        turning, norms = probe.known["turning"], probe.known["query_norms"]
        unsure = {"turning"} if turning is not None and not turning.declared else set()
        return unsure | ({"query_norms"} if norms is not None and not norms.sure else set())

    def explaining(self, probe: Probe, most: int, least: int = 0) -> list[tuple[Reader, Match]]:
        """Return what explains one call; see `explained`."""
        readers = self.readers(probe.y.shape[-1])
        if not readers:
            raise Unreadable
        shells, sure = self.shells(probe)
        causal = self.options.causal
        bases = [False, True] if causal is None or self.options.mask is not None else [causal]
        bases = [False] if self.subject.crossed else bases
        if causal is None and self.subject.is_causal:
            bases = [True]
        likely = slice(LIKELY)
        steps = (  # mistakes in all, readings tried, with other things around, with a fitted scale
            (0, slice(None), True, False),
            (1, likely, True, False),
            (1, likely, False, True),
            (1, slice(LIKELY, SINGLES_TRIED), False, False),
            (2, likely, False, False),
            (2, slice(LIKELY, PAIRS_TRIED), False, False),
        )
        for total, chosen, around, fit in steps:
            if total < least:
                continue
            if total > most:
                break
            if total == 2 and chosen == likely:
                self.before_pairs()
                found = step_by_step(Unexplained(self.subject, self.holds, readers, probe, shells))
                if found:
                    return found
                if observed(self.subject, whole=True):
                    return []
            tried = shells if around or sure else shells[:1]
            rare = total == 1 and bool(chosen.start)
            with reserved(RARE) if rare else nullcontext():
                try:
                    found = self.around(readers, probe, tried, bases, (total, chosen, fit))
                except Spent as spent:
                    if not rare:
                        raise
                    vars(self.subject)["cut"], found = spent.steps, []
            if found:
                return found
        alone = not self.subject.crossed and self.subject.windows is None
        if most > 1 and alone and probe.mask is None and not observed(self.subject):
            around = shells if sure else shells[:1]
            return three_at_once(Unexplained(self.subject, self.holds, readers, probe, around))
        return []

    def around(
        self,
        readers: Readers,
        probe: Probe,
        shells: list[Shell],
        bases: list[bool],
        step: tuple[int, slice, bool],
    ) -> list[tuple[Reader, Match]]:
        """Return what explains one call with some of these around it.

        Args:
            readers: of the weights, with their readings.
            probe: the call.
            shells: what may stand around the attention.
            bases: whether it may be causal.
            step: mistakes in all, readings tried, whether the scale is fitted.
        """
        total, chosen, fit = step
        for shell in sorted(shells, key=lambda shell: OUT_BENT not in shell.ids):  # soon tried
            for base in bases:
                if len(shell.ids) > total:
                    continue
                free = base and self.options.causal is None
                if total == 2 and free and self.subject.sees_future:
                    continue
                case = replace(probe, causal=base)
                found = self.matching(readers, case, shell, total, chosen, fit)
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
                    found = self.matching(same, case, shell, total, slice(None), fit)
                return found
        return []

    def is_right(self) -> bool:
        """Say whether the module is explained without a mistake."""
        return bool(self.explained(most=0))

    def shells(self, probe: Probe) -> tuple[list[Shell], bool]:
        """Return what may stand around the attention, and whether its behaviour says so."""
        subject = self.subject
        wide = subject.c if subject.crossed else None
        shells = shells_of(subject.patient.module, subject.e, wide)
        if probe.y.shape != probe.x.shape:
            shells = [shell for shell in shells if not shell.residual and shell.after is None]
            return (shells if subject.crossed else shells[:1]), False
        if not isinstance(subject.patient.module, nn.Module) or subject.own_weights:
            return shells, False
        bent = [bent_behind(name) for name in subject.known["bent_behind"]]
        run = subject.inside
        heard = heard_shells(shells, subject.patient.module, run, subject.first.x)
        shells, sure = (heard, True) if heard else (shells, False)
        if subject.made is not None:
            return subject.made.shells(shells), sure
        reduced = []
        for shell in shells if wide is None else ():
            reducer = reducer_of(subject.patient.module, run, probe.x, shell.enter)
            if reducer is not None:
                name = f"{shell.name}; keys and values of fewer tokens".removeprefix("; ")
                named = (*shell.variants, "spatial-reduction")
                reduced.append(replace(shell, name=name, context=reducer, variants=named))
        return [*(reduced or self.placed(shells)), *bent], sure

    def placed(self, shells: list[Shell]) -> list[Shell]:
        """Return what stands around, with the codes of places that the module adds inside."""
        subject, found = self.subject, []
        known = subject.known
        alone = not (subject.crossed or known["bare"]) and subject.windows is None
        alone = alone and known["turning"]
        kept = vars(subject.patient)  # another copy is heard anew
        heard = kept.setdefault("inside", Inside(subject.inside, subject.first.x))
        for shell in shells if alone else ():
            inside = PlacesInside(heard, shell.enter)
            if inside.table(subject.first.x.shape[1]) is not None:
                name = f"{shell.name}; codes of places are added inside".removeprefix("; ")
                named = (*shell.variants, "places-inside")
                found.append(replace(shell, name=name, before=inside, variants=named))
        vars(subject)["placed"] = bool(found)
        return found or shells

    def telling(self, reader: Reader, readings: list[Reading]) -> list[Reading]:
        """Return the readings with which a mistake would show: no projection of it is zero."""
        open_probe = replace(self.subject.first, causal=False)
        search = Search(reader, readings, open_probe, Shell(""), self.subject.patient.tolerance)
        could = search.could_differ()
        return [reading for reading, shows in zip(readings, could, strict=True) if shows]

    def shows(self, reader: Reader, match: Match) -> bool:
        """Say whether queries, keys and values of each head reach what was compared."""
        search = Search(
            reader,
            [match.reading],
            replace(self.subject.first, causal=match.causal),
            match.shell,
            self.subject.patient.tolerance,
            forms=match.forms(),
        )
        return search.could_differ()[0]

    def matching(
        self, readers: Readers, probe: Probe, shell: Shell, total: int, chosen: slice, fit: bool
    ) -> list[tuple[Reader, Match]]:
        """Return what matches this probe and holds for others too."""
        found = []
        for reader, readings in readers:
            found += self.at_level(reader, readings, probe, shell, total, chosen, fit)
        return [(reader, match) for reader, match in found if self.holds(reader, match)]

    def at_level(
        self,
        reader: Reader,
        readings: list[Reading],
        probe: Probe,
        shell: Shell,
        total: int,
        chosen: slice,
        fit: bool,
    ) -> list[tuple[Reader, Match]]:
        """Return the matches with so many mistakes, those of the reading included."""
        found: list[tuple[Reader, Match]] = []
        total -= len(shell.ids)
        for mistakes in range(total + 1):
            tried = [r for r in readings if len(r.ids) == total - mistakes][chosen]
            if not tried or (fit and mistakes != 1):
                continue
            search = Search(
                reader,
                tried,
                probe,
                shell,
                self.subject.patient.tolerance,
                must_be_causal=self.must_be_causal,
            )
            if fit:
                for forms in search.fitted():
                    search.forms = forms
                    found += [(reader, match) for match in search.matches(mistakes)]
                continue
            many = probe.known["distances"] or probe.known["turning"] is not None
            if mistakes > 1 or chosen.start or many:
                search.weighed = self.weighed()
            if mistakes:
                search.forms = {SCALE.name: all_scales(search.state(), mistakes == 1)}
            found += [(reader, match) for match in search.matches(mistakes)]
        return found

    def weighed(self) -> Weighed | None:
        """Return the scores that the module weighs in the first call, None if it is called twice.

        What a search makes is followed no further where they differ.
        """
        subject = self.subject
        if self.options.cache is not None:
            return None
        first, x = subject.first, subject.patient.tokens(subject.b, subject.n, subject.e)
        asked = first.x if first.context is None else first.context
        sizes, close = (first.y.shape[1], asked.shape[1]), max(1e-8, subject.patient.tolerance)
        if sizes not in subject.weighed:
            subject.weighed[sizes] = Weighed(lambda: subject.open_run(x), sizes, close)
        return subject.weighed[sizes]

    def holds(self, reader: Reader, match: Match) -> bool:
        """Say whether a match gives every number of another call too."""
        for probe in (self.subject.first, self.subject.second):
            search = Search(
                reader,
                [match.reading],
                replace(probe, causal=match.causal),
                match.shell,
                self.subject.patient.tolerance,
                looks=None,
                forms=match.forms(),
                must_be_causal=self.must_be_causal,
            )
            if not any(True for _ in search.matches(len(match.path.ids))):
                return False
        return True


def few(probe: Probe) -> Probe:
    """Return some of the windows of a probe; what explains them must hold for all."""
    some = torch.linspace(0, len(probe.x) - 1, WINDOWS).long()
    bias = None if probe.bias is None else probe.bias[some]
    return replace(probe, x=probe.x[some], y=probe.y[some], bias=bias)


def _is_plain(found: Readers) -> bool:
    """Say whether the weights can be read by all names and orders, and without a mistake."""
    return any(r.rank == 0 and not r.ids for _, readings in found for r in readings)
