"""What a module does with a mask, once it is explained without one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attention_clinic.bugs.caps import CAP
from attention_clinic.bugs.hiding import USE
from attention_clinic.bugs.masks import RULE, same_rule
from attention_clinic.engine.patient import same
from attention_clinic.engine.readings import Reader
from attention_clinic.examine.mask_argument import adds, names_what_it_blocks
from attention_clinic.examine.matching import Match, Probe, Search
from attention_clinic.examine.observing import observed
from attention_clinic.examine.subject import Subject


@dataclass
class Masked:
    """What was found with the mask.

    Args:
        matches: what explains the module with and without the mask.
        checked: what to say of it.
        blocks_nothing: True when the mask leaves everything as it is, so that nothing was tried.
    """

    matches: list[tuple[Reader, Match]]
    checked: tuple[str, ...] = ()
    blocks_nothing: bool = False


def with_mask(subject: Subject, matches: list[tuple[Reader, Match]]) -> Masked:
    """Keep what explains the module with the mask too, adding mistakes of the mask.

    Args:
        subject: the module.
        matches: what explains it without the mask.
    """
    assert subject.mask is not None
    if not subject.probe(0, mask=True, blocks=subject.true_means == "block").y.isfinite().any():
        return Masked([])  # NaN everywhere is what several mistakes give, and many that are unknown
    said = subject.true_means
    found = masked(subject, matches, blocks=said == "block")
    named = said is None and names_what_it_blocks(subject.patient.module)
    if named and subject.mask.dtype == torch.bool:
        other = masked(subject, matches, blocks=True)
        if other.matches and (
            not found.matches or len(other.matches[0][1].ids) < len(found.matches[0][1].ids)
        ):
            found = other
    return told_apart(subject, matches, found)


def meaning(subject: Subject, blocks: bool) -> str:
    """Say what the numbers of a mask are taken to mean, and how it is handed on.

    Args:
        subject: the module.
        blocks: whether True means blocked.
    """
    mask = subject.mask
    assert mask is not None
    if adds(mask):
        return "in which 0 means may attend: it is added"
    one = "True" if mask.dtype == torch.bool else "1"
    words = f"in which {one} means {'blocked' if blocks else 'may attend'}"
    turned = subject.turned and not blocks
    return words + "; handed on as ~mask, since True blocks in nn.MultiheadAttention" * turned


def told_apart(subject: Subject, open: list[tuple[Reader, Match]], found: Masked) -> Masked:
    """Keep, of several explanations, those whose mask is what a run with it shows.

    Args:
        subject: the module.
        open: what explains it without the mask.
        found: what explains it with the mask, too.
    """
    if len({frozenset(match.ids) for _, match in found.matches}) < 2:
        return found
    seen = observed(subject)
    shown = set() if seen is None else {*seen.ids} - {*subject.extra}
    kept = [pair for pair in found.matches if _of_mask(pair[1].ids) == _of_mask(shown)]
    whole = any({*match.ids} <= shown for _, match in open)
    return found if seen is None or not (kept or whole) else replace(found, matches=kept)


def _of_mask(ids: Iterable[str]) -> set[str]:
    """Return those of some ids that are about masks."""
    return {id for id in ids if id.startswith("mask-")}


def masked(subject: Subject, matches: list[tuple[Reader, Match]], blocks: bool) -> Masked:
    """Do what `with_mask` does, for one meaning of True.

    Args:
        subject: the module.
        matches: what explains it without the mask.
        blocks: whether True means blocked.
    """
    probes = [_of_kept(subject, number, blocks) for number in (0, 1)]
    cases = [replace(p, causal=c) for p in probes for c in {m.causal for _, m in matches}]
    if all(same_rule(RULE.reference.run(c.mask, c.causal_rule()), c.causal_rule()) for c in cases):
        return Masked(matches, blocks_nothing=True)
    found = _with_both(subject, matches, probes)
    if not found and all(probe.kept is None for probe in probes):
        probes = [_of_kept(subject, number, blocks, forgotten=True) for number in (0, 1)]
        kept = all(probe.kept is not None for probe in probes)
        found = _with_both(subject, matches, probes) if kept else []
    if not found:
        return Masked([])
    places = probes[0].mask
    words = f"with the mask, which blocks {int((~places).sum())} of {places.numel()} places"
    words += f", {meaning(subject, blocks)}"
    words += "; the results of blocked tokens are left out" * (probes[0].kept is not None)
    return Masked(found, (words,))


def _with_both(
    subject: Subject, matches: list[tuple[Reader, Match]], probes: list[Probe]
) -> list[tuple[Reader, Match]]:
    """Return what explains two calls with the mask, by as few mistakes of the mask as possible."""
    for total in range(3):
        found = []
        for reader, match in matches:
            sets = []
            for probe in probes:
                search = Search(
                    reader,
                    [match.reading],
                    replace(probe, causal=match.causal),
                    match.shell,
                    subject.patient.tolerance,
                    looks=None,
                    forms=match.forms(CAP, RULE, USE),
                    must_be_causal=match.causal and subject.options.causal is True,
                )
                ways = search.matches(len(match.path.ids) + total)
                sets.append({way.ids: way for way in ways})
            found += [(reader, way) for ids, way in sets[0].items() if ids in sets[1]]
        if found:
            return found
    return []


def _of_kept(subject: Subject, number: int, blocks: bool, forgotten: bool = False) -> Probe:
    """Return a probe without the tokens that its mask blocks, where the module leaves them out.

    Args:
        subject: the module.
        number: of the probe.
        blocks: whether True means blocked.
        forgotten: whether it is enough that the module forgets what these tokens were.
    """
    probe, crossed = subject.probe(number, mask=True, blocks=blocks), subject.crossed
    mask, y = probe.mask, probe.y
    if crossed or mask is None or mask.shape[1] > 1 or mask.shape[2] > 1 or len(mask) < len(y):
        return probe
    kept = mask[:, 0, 0]
    left = y[~kept]
    alike = y.shape == probe.x.shape and bool((left == probe.x[~kept]).all())
    out = not bool(left.any()) or alike
    out = out or (forgotten and _forgets(subject, probe, number, kept))
    return replace(probe, kept=kept) if out and bool(kept.any()) and len(left) else probe


def _forgets(subject: Subject, probe: Probe, number: int, kept: Tensor) -> bool:
    """Say whether a module forgets at once what it was given in blocked places.

    Args:
        subject: the module.
        probe: with the mask.
        number: of the probe.
        kept: the places that the mask leaves.

    Shape:
        kept  (b, n)
    """
    if probe.y.shape[:2] != probe.x.shape[:2] or not bool(probe.y.isfinite().all()):
        return False
    other = torch.where(kept[..., None], probe.x, -2.0 * probe.x)
    return same(probe.y, subject.run(other, subject.mask, number))
