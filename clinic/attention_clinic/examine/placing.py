"""In which of several parts of a block, or of layers in a row, a mistake lies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile

from attention_clinic.bugs.decoder import located
from attention_clinic.examine.between import PARTS
from attention_clinic.examine.part_kinds import Kind
from attention_clinic.examine.streams import Half
from attention_clinic.examine.unit import Unit


def placed(kinds: tuple[Kind, ...], halves: Sequence[Half], total: int) -> tuple[Kind, ...]:
    """Say of each part in which of several its mistakes lie.

    Args:
        kinds: what each of them is.
        halves: the parts.
        total: how many mistakes lie between the parts.
    """
    across = [half.unit.asked is not None for half in halves if half.unit.kind == "mix"]
    total += sum(len(kind.ids) for kind in kinds)
    told = []
    for kind, half in zip(kinds, halves, strict=True):
        words, mixes = kind.detail, half.unit.kind == "mix"
        if sorted(across) == [False, True]:
            part = "self-attention" if half.unit.asked is None else "cross-attention"
            words = located(kind.ids, words, part, total) if mixes and kind.ids else words
        else:
            alike = [k.ids for k, other in zip(kinds, halves, strict=True)
                     if other.unit.kind == half.unit.kind]  # fmt: skip
            if any(ids != kind.ids for ids in alike):
                part = "attention" if mixes else "feed-forward"
                words = located(kind.ids, words, f"{part} {place_of(half.unit)}", total)
        told.append(replace(kind, detail=words))
    return tuple(told)


def parts_in_words(way: Sequence[Half], kinds: Sequence[str]) -> list[str]:
    """Return the parts of a block in words, with their places where several of a kind differ."""
    said = []
    for half, kind in zip(way, kinds, strict=True):
        kin = [other for other, its in zip(way, kinds, strict=True) if its == kind]
        differ = len({(one.join, bool(one.source), bool(one.later)) for one in kin}) > 1
        said.append(f"{PARTS[kind]} {place_of(half.unit)}" if differ else PARTS[kind])
    return said


def place_of(unit: Unit) -> str:
    """Return the path of the smallest part that holds all layers of a unit."""
    paths = [path.split(".") for path in unit.paths] or [unit.name.split(".")]
    shared = takewhile(lambda names: len(set(names)) == 1, zip(*paths, strict=False))
    return ".".join(names[0] for names in shared) or unit.name
