"""A plugin of pytest: how many seconds each chapter, its tests and the rest of the tests took.

    make test ARGS="--times resources/times.json"

writes them down when everything passed; `make readme` makes docs/timings.md of them. Do it on
a machine that has nothing else to do.

Processes that share the tests begin with the file that took longest then, so that none of them
idles while the last one still has a long file to do.
"""

from __future__ import annotations

import json
import re
import time
from collections import defaultdict
from collections.abc import Iterable
from math import inf
from pathlib import Path
from typing import Any

import pytest

BEGAN = pytest.StashKey[float]()
CHAPTER = re.compile(r"notebooks/(?P<master>solutions/)?(?P<number>\d\d)_")
# A test with a chapter's number in front of its parameters: [07.6-...], [07_encoder-...], no date.
OF_CHAPTER = re.compile(r"\[(?P<number>\d\d)[._](?!\d\d\.)")

# Written into the course's folder, and read there.
STORED = Path("resources") / "times.json"

Times = dict[str, Any]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--times", type=Path, metavar="FILE", help="write what took how long to FILE")


def pytest_sessionstart(session: pytest.Session) -> None:
    session.config.stash[BEGAN] = time.perf_counter()


def collected(spans: Iterable[tuple[str, float]]) -> Times:
    """Add up seconds: of each chapter its notebook, its exercises and its tests, of the rest all.

    And once more of each file.

    Args:
        spans: (id of a test or of a cell, seconds).
    """
    chapters: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    files: dict[str, float] = defaultdict(float)
    rest = 0.0
    for name, seconds in spans:
        files[file_of(name)] += seconds
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
    each = {name: round(seconds, 1) for name, seconds in sorted(files.items())}
    return {"chapters": rounded, "files": each, "rest": round(rest, 1)}


def file_of(name: str) -> str:
    return name.partition("::")[0]


def longest_first(names: Iterable[str], seconds: dict[str, float]) -> list[int]:
    """Return the order in which several processes end soonest: the longest file first.

    Args:
        names: ids of tests and of cells; those of one file stay together and in their order.
        seconds: that each file took; a new file has none and goes first.

    Returns:
        The places of the names, in the new order.
    """
    known = [seconds.get(file_of(name), inf) for name in names]
    return sorted(range(len(known)), key=lambda place: -known[place])


def pytest_configure(config: pytest.Config) -> None:
    # pytest-xdist counts a file's tests; one that takes minutes may have five.
    if stored(config.rootpath) and hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if hasattr(config, "workerinput") and (seconds := stored(config.rootpath)):
        items[:] = [items[place] for place in longest_first([i.nodeid for i in items], seconds)]


def stored(root: Path) -> dict[str, float]:
    """Read how long each file took in the last measured run; empty without one."""
    path = root / STORED
    return json.loads(path.read_text(encoding="utf-8")).get("files", {}) if path.exists() else {}


def pytest_terminal_summary(terminalreporter: Any, exitstatus: int, config: pytest.Config) -> None:
    target = config.getoption("--times")
    if target is None or hasattr(config, "workerinput"):  # it has a share only
        return
    if exitstatus:
        terminalreporter.write_line(f"{target} stays as it is: not everything passed")
        return
    reports = [report for found in terminalreporter.stats.values() for report in found]
    spans = [(r.nodeid, r.duration) for r in reports if hasattr(r, "duration")]
    whole = {"elapsed": round(time.perf_counter() - config.stash[BEGAN], 1)}
    times = {**collected(spans), **whole}
    target.write_text(json.dumps(times, indent=1, sort_keys=True) + "\n", encoding="utf-8")
