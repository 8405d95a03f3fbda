"""What fresh shares gave, one row each: written when a share is run before anything is mended."""

from __future__ import annotations

import csv
import datetime
import io
import re
from collections.abc import Sequence
from pathlib import Path

from wild.scoring import BROKEN, FALSE, REFUSED, RIGHT, WRONG, Result, quantile, rows

STORED = Path(__file__).parents[1] / "record.csv"
SHOWN = Path(__file__).parents[2] / "README.md"
PLACE = re.compile(r"(?<=<!-- The record: --record writes it. -->\n).*?(?=<!-- Its end. -->)", re.S)
KINDS = ("healthy", "bug", "variant")
COLUMNS = (
    *("day", "areas", "modules", "repositories"),
    *(f"{kind}_{what}" for kind in KINDS for what in ("right", "of")),
    *("wrong_names", "false_healthy", "refused", "helped", "median_seconds", "longest_seconds"),
)

Row = dict[str, str]


def row(results: Sequence[Result], day: datetime.date, areas: str) -> Row:
    """Return what a share gave.

    Args:
        results: of all its cases, at least one of which was answered.
        day: when it was run.
        areas: where its modules were looked for, which decides how hard they are.

    Raises:
        ValueError: a share of which nothing could be built, or without areas.
    """
    built = [r for r in results if r.outcome != BROKEN]
    seconds = [r.verdict.seconds for r in built if r.verdict.state == "answered"]
    if not seconds:
        raise ValueError(
            "record: a share must have modules that run, got none. Fetch its repositories first: "
            "leave out --offline."
        )
    if not areas.strip():
        raise ValueError(
            "record: areas must say where was looked, got ''. Name them: --record 'ViT'."
        )
    kinds = {one.kind: (one.counts[RIGHT], one.cases) for one in rows(results)}
    values: list[object] = [day, areas, len(built), len({r.case.repository for r in built})]
    values += [number for kind in KINDS for number in kinds[kind]]
    values += [sum(r.outcome == one for r in built) for one in (WRONG, FALSE, REFUSED)]
    values.append(sum(r.verdict.helped for r in built))
    values += [f"{quantile(seconds, part):.2f}" for part in (0.5, 1.0)]
    return dict(zip(COLUMNS, map(str, values), strict=True))


def read(path: Path = STORED) -> list[Row]:
    """Return the rows of all shares, oldest first.

    Args:
        path: the table of comma-separated values; nothing where it is not there yet.
    """
    if not path.exists():
        return []
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))))


def write(found: Sequence[Row], path: Path = STORED, page: Path = SHOWN) -> None:
    """Write the rows, and their table into the page that shows it.

    Args:
        found: of all shares, oldest first.
        path: the table of comma-separated values.
        page: a text in Markdown that says where the table stands.

    Raises:
        ValueError: a page that does not say where.
    """
    text = page.read_text(encoding="utf-8")
    if not PLACE.search(text):
        raise ValueError(
            f"record: {page.name} must say where the table stands, got no such lines. Put back "
            "'<!-- The record: --record writes it. -->' and '<!-- Its end. -->'."
        )
    made = io.StringIO()
    writer = csv.DictWriter(made, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(found)
    path.write_text(made.getvalue(), encoding="utf-8")
    page.write_text(PLACE.sub(lambda _: table(found), text), encoding="utf-8")


def table(found: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown.

    Args:
        found: of all shares, oldest first.
    """
    lines = [
        "| | where | modules, repositories | healthy ones | bugs named | variants named "
        "| wrong names | false healthy | refused | CPU time: median, longest |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for one in found:
        right = [_share(one[f"{kind}_right"], one[f"{kind}_of"]) for kind in KINDS]
        cells = [one["day"], one["areas"], f"{one['modules']}, {one['repositories']}", *right]
        cells += [one[name] for name in ("wrong_names", "false_healthy", "refused")]
        cells.append(f"{one['median_seconds']} s, {one['longest_seconds']} s")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _share(right: str, of: str) -> str:
    """Write a share as a fraction, and in per cent."""
    return f"{right} of {of} ({100 * int(right) / int(of):.0f} %)" if int(of) else "-"
