"""Wrong versions of references: each patch changes the result, and no two give the same."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Iterable, Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import torch
from exercise_bank import MASTERS, tasks

from checks.engine.calls import Crashed, name_of
from checks.engine.cases import Case
from checks.engine.compare import difference
from checks.engine.explain import result, versions
from checks.engine.patches import Patched, patches
from helpers import error_of
from tools.course.cards import sections
from tools.course.notebook import source

CASES = 12


def scaled(x: torch.Tensor) -> torch.Tensor:
    half = x / 2
    return half + 1


def test_a_patch_is_another_source() -> None:
    (one,), (two,) = patches(
        scaled, {"a": ("/ 2", "/ 4"), "b": [("/ 2", "", "+ 1", "- 1")]}
    ).values()
    assert (one(8), two(8), scaled(8)) == (3, 7, 5)
    assert one.__name__ == "scaled" and "/ 4" in one.source


@pytest.mark.parametrize("patch", [("/ 3", "/ 4"), ("/ 2", "/ 2")])
def test_a_patch_that_changes_nothing_is_refused(patch: tuple[str, str]) -> None:
    assert "must be in the source of scaled" in error_of(lambda: patches(scaled, {"a": patch}))


def compared(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, dict[str, Any]]]:
    """Give how each exercise of a chapter compares functions: reference, inputs and options."""
    chapter = importlib.import_module(f"checks.chapter_{path.name[:2]}")
    if not hasattr(chapter, "same_function"):
        return
    seen: list[dict[str, Any]] = []

    def spy(answer: Any, reference: Any, inputs: Any, **options: Any) -> None:
        seen.append({"reference": reference, "inputs": inputs, **options})

    monkeypatch.setattr(chapter, "same_function", spy)
    for id, task in tasks(path).items():
        seen.clear()
        task.judge(task.solution)
        yield from ((id, one) for one in seen)


@pytest.mark.parametrize("path", MASTERS, ids=lambda path: path.stem)
def test_a_card_says_whether_loops_are_allowed(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cards = {
        f"{path.name[:2]}.{part.number}": "\n".join(map(source, part.cells))
        for part in sections(json.loads(path.read_text(encoding="utf-8")))
    }
    ruled = {id for id, one in compared(path, monkeypatch) if one.get("loops", "free") != "free"}
    assert [id for id in sorted(ruled) if not re.search(r"\bloops?\b", cards[id])] == []


def outcome(function: Any, args: tuple) -> Any:
    try:
        return result(function, args)
    except Crashed as crashed:
        return str(crashed.said)


def differ(pairs: Iterable[tuple[Any, Any]]) -> bool:
    return any(difference(one, other) is not None for one, other in pairs)


@pytest.mark.parametrize("path", MASTERS, ids=lambda path: path.stem)
def test_patches_differ_from_the_reference_and_from_each_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[tuple[str, str, int], list[Any]] = {}  # results by exercise, cause and version
    for exercise, one in compared(path, monkeypatch):
        if not one.get("mistakes"):
            continue
        reference, inputs, mistakes = one["reference"], one["inputs"], one["mistakes"]
        id = f"{exercise} {name_of(reference)}"
        cases = [inputs(Case(seed)) for seed in range(CASES)]
        right = [outcome(reference, args) for args in cases]
        for number, (cause, version) in enumerate(versions(mistakes)):
            if isinstance(version, Patched):
                got = [outcome(version, args) for args in cases]
                found.setdefault((id, cause.id, number), []).extend(zip(got, right, strict=True))
    got = {key: [pair[0] for pair in pairs] for key, pairs in found.items()}
    same = [
        f"{id} {cause} is right" for (id, cause, n), pairs in found.items() if not differ(pairs)
    ]
    same += [
        f"{one[0]} {one[1]} and {other[1]} are one"
        for one, other in combinations(got, 2)
        if one[0] == other[0]
        and one[1] != other[1]
        and len(got[one]) == len(got[other])
        and not differ(zip(got[one], got[other], strict=True))
    ]
    assert not same, "\n".join(dict.fromkeys(same))
