"""A plugin of pytest: how many seconds each chapter, its tests and the rest of the tests took.

    make test ARGS="--times resources/times.json"

writes them down when everything passed; `make readme` makes the table of README.md of them. Do it
on a machine that has nothing else to do.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

BEGAN = pytest.StashKey[float]()
CHAPTER = re.compile(r"notebooks/(?P<master>solutions/)?(?P<number>\d\d)_")
# A test with a chapter's number in front of its parameters: [07.6-...], [07_encoder-...], no date.
OF_CHAPTER = re.compile(r"\[(?P<number>\d\d)[._](?!\d\d\.)")

Times = dict[str, Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=Path, metavar="FILE", help="write what took how long to FILE")


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[BEGAN] = time.perf_counter()


def collected(spans: Iterable[tuple[str, float]]) -> Times:
    """Adds up seconds: of each chapter its notebook, its exercises and its tests, of the rest all.

    Args:
        spans: (id of a test or of a cell, seconds).
    """
    chapters: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    rest = 0.0
    for name, seconds in spans:
        if found := CHAPTER.match(name):
            kind = "exercises" if found["master"] else "chapter"
            chapters[found["number"]][kind] += seconds
        elif found := OF_CHAPTER.search(name):
            chapters[found["number"]]["tests"] += seconds
        else:
            rest += seconds
    rounded = {
        number: {kind: round(seconds, 1) for kind, seconds in sorted(kinds.items())}
        for number, kinds in sorted(chapters.items())
    }
    return {"chapters": rounded, "rest": round(rest, 1)}


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    target = config.getoption("--times")
    if target is None:
        return
    if exitstatus:
        terminalreporter.write_line(f"{target} stays as it is: not everything passed")
        return
    reports = [report for found in terminalreporter.stats.values() for report in found]
    spans = [(r.nodeid, r.duration) for r in reports if hasattr(r, "duration")]
    whole = {"elapsed": round(time.perf_counter() - config.stash[BEGAN], 1)}
    times = {**collected(spans), **whole}
    target.write_text(json.dumps(times, indent=1, sort_keys=True) + "\n", encoding="utf-8")
