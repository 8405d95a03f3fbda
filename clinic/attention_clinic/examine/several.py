"""Three mistakes at once: what a softmax is given cuts the search in two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import NamedTuple

import torch
from torch import Tensor

from attention_clinic.bugs import ATTENTION
from attention_clinic.bugs.masks import RULE
from attention_clinic.bugs.scores import SCALE, all_scales
from attention_clinic.engine.forms import Form, walk
from attention_clinic.engine.modes import Scores
from attention_clinic.engine.pieces import Reading
from attention_clinic.engine.readings import Reader
from attention_clinic.examine.matching import Match, Probe, Search
from attention_clinic.examine.shells import Shell
from attention_clinic.examine.subject import Subject

Readers = list[tuple[Reader, list[Reading]]]
READINGS = 4  # that are tried, those that follow the names best
FIRST = tuple(takewhile(lambda stage: stage is not RULE, ATTENTION))  # they make the scores


class Unexplained(NamedTuple):
    """A call that nothing explains so far.

    Args:
        subject: the module.
        holds: says whether a match gives every number of another call too.
        readers: of the weights, with their readings.
        probe: one call of the module.
        shells: what may stand around the attention.
    """

    subject: Subject
    holds: Callable[[Reader, Match], bool]
    readers: Readers
    probe: Probe
    shells: Sequence[Shell]


def three_at_once(call: Unexplained) -> list[tuple[Reader, Match]]:
    """Return what explains a call with three mistakes; two of them before, or behind, the scores.

    Args:
        call: which nothing explains with two.
    """
    subject, holds, readers, probe, shells = call
    if not subject.patient.is_module or subject.mode is not None or probe.x.shape != probe.y.shape:
        return []
    with Scores() as given:
        subject.open_run(probe.x)
    heard = list(_by_head(given.heard, *probe.x.shape[:2], subject.h))
    if not heard:
        return []
    causal = subject.options.causal
    for shell in (shell for shell in shells if not shell.ids):
        for reader, readings in ((r, found) for r, found in readers if found):
            for base in (False, True) if causal is None else (causal,):
                case = replace(probe, causal=base)
                for mistakes in range(3):
                    found = []
                    for number, forms in _before(reader, readings, case, shell, mistakes, heard):
                        reading = readings[number]
                        rest = 3 - mistakes - len(reading.ids)
                        if rest < 0:
                            continue
                        limit = subject.patient.tolerance
                        search = Search(reader, [reading], case, shell, limit, forms=forms)
                        found += [(reader, match) for match in search.matches(mistakes + rest)]
                    found = [pair for pair in found if holds(*pair)]
                    if found:
                        return found
    return []


def _by_head(heard: list[Tensor], b: int, n: int, h: int) -> Iterator[Tensor]:
    """Yield what a softmax was given, (b, h, n, n), laid out in every way that fits."""
    fitting = [t for t in heard if t.shape[-2:] == (n, n)]
    if len(fitting) == h > 1 and all(t.numel() == b * n * n for t in fitting):
        yield torch.stack([t.reshape(b, n, n) for t in fitting], dim=1)
    for t in fitting[:1]:
        if t.numel() == b * h * n * n:
            yield t.reshape(b, h, n, n)
            if t.ndim == 3 and h > 1:
                yield t.reshape(h, b, n, n).transpose(0, 1)


def _before(
    reader: Reader,
    readings: list[Reading],
    probe: Probe,
    shell: Shell,
    mistakes: int,
    heard: list[Tensor],
) -> Iterator[tuple[int, dict[str, list[Form]]]]:
    """Yield the readings, and the forms before the softmax, that give the scores it was given."""
    search = Search(reader, readings[:READINGS], probe, shell, 1e-9)
    begin = {**search.state(), "total": max(mistakes, 1)}
    chosen = {SCALE.name: all_scales(begin, True)}
    for path, made in walk(FIRST, begin, mistakes, chosen):
        scores = made["scores"]
        for given in heard:
            if scores.shape[1:] != given.shape:
                continue
            shown = given > -1e4  # what a mask hid says nothing
            if not shown.any():
                continue
            gap = (scores - given).masked_fill(~shown, 0.0).abs().flatten(1).amax(dim=1)
            limit = 1e-6 * (1 + given[shown].abs().max())
            for number in torch.nonzero(gap <= limit)[:, 0].tolist():
                pairs = zip(FIRST, path.forms, strict=True)
                yield number, {stage.name: [form] for stage, form in pairs}
