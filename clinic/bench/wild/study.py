"""Which bugs the wild holds, and how often: counted from the cases and from the catalogue."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from attention_clinic import BUGS
from wild.cases import NONE, Case

STORED = Path(__file__).parents[1] / "study.csv"
COLUMNS = ("id", "sample", "hunted", "threads", "repositories")


@dataclass(frozen=True)
class Count:
    """How often one bug was met.

    Args:
        id: of the bug.
        sample: modules that were read because their repository came up, and have it.
        hunted: modules that were looked for because of it.
        threads: threads and places that the catalogue cites for it.
        repositories: where the modules are.
    """

    id: str
    sample: int
    hunted: int
    threads: int
    repositories: tuple[str, ...]


def counts(cases: Sequence[Case]) -> tuple[Count, ...]:
    """Return the count of every bug that a case or the catalogue has met, most met first.

    Args:
        cases: of both shares.
    """
    made = []
    named = [id for case in cases if case.truth == "bug" for id in case.ids]
    for bug in dict.fromkeys((*BUGS, *named, NONE)):
        mine = [c for c in cases if c.truth == "bug" and bug in c.ids]
        sample = sum(c.found == "sample" for c in mine)
        threads = len(BUGS[bug].threads) if bug in BUGS else 0
        places = tuple(sorted({c.repository for c in mine}))
        made.append(Count(bug, sample, len(mine) - sample, threads, places))
    met = [one for one in made if one.sample or one.hunted or one.threads]
    return tuple(sorted(met, key=lambda c: (-c.sample, -c.hunted, -c.threads, c.id)))


def sampled(cases: Sequence[Case]) -> dict[str, int]:
    """Return how many modules of the sample are healthy, sick or a variant.

    Args:
        cases: of both shares.
    """
    mine = [case.truth for case in cases if case.found == "sample"]
    return {truth: mine.count(truth) for truth in ("healthy", "bug", "variant")}


def table(cases: Sequence[Case]) -> str:
    """Return the counts as a table of comma-separated values, as `study.csv` holds them.

    Args:
        cases: of both shares.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for one in counts(cases):
        writer.writerow((one.id, one.sample, one.hunted, one.threads, " ".join(one.repositories)))
    return text.getvalue()


def study(cases: Sequence[Case]) -> str:
    """Return what the study says, for people.

    Args:
        cases: of both shares.
    """
    sample = sampled(cases)
    modules = sum(sample.values())
    lines = [
        f"{modules} modules were read because their repository came up: {sample['healthy']} are "
        f"healthy,",
        f"{sample['variant']} another thing on purpose, {sample['bug']} have a bug. "
        f"{len(cases) - modules} more were hunted.",
        "",
        f"{'bug':28}{'sample':>8}{'hunted':>8}{'threads':>9}",
    ]
    for one in counts(cases):
        lines.append(f"{one.id:28}{one.sample:8}{one.hunted:8}{one.threads:9}")
    return "\n".join(lines)
