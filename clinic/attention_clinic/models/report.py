"""The report of `diagnose_model`: one row for each distinct part."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from attention_clinic.report import ASKED, PAGE, Report, notes_of, wrapped

SHOWN = 46  # columns of the paths


@dataclass(frozen=True)
class Row:
    """Parts at some places (paths, in order) that compute the same, and the report of the first."""

    kind: str
    places: tuple[str, ...]
    report: Report
    is_causal: bool = False

    @property
    def where(self) -> str:
        """The paths in short: layers.0.attn, layers.1.attn are layers.0-1.attn."""
        split = [place.split(".") for place in self.places]
        columns = [set(column) for column in zip(*split, strict=False)]
        apart = [n for n, column in enumerate(columns) if len(column) > 1]
        odd = len(apart) != 1 or len({*map(len, split)}) > 1
        if odd or not all(name.isdigit() for name in columns[apart[0]]):
            return ", ".join(self.places) or "(the model itself)"
        found = sorted(int(name) for name in columns[apart[0]])
        gaps = [(a, b) for a, b in pairwise(found) if b != a + 1]
        starts, ends = [found[0], *(b for _, b in gaps)], [*(a for a, _ in gaps), found[-1]]
        ranges = [str(a) if a == b else f"{a}-{b}" for a, b in zip(starts, ends, strict=True)]
        return ".".join([*split[0][: apart[0]], ",".join(ranges), *split[0][apart[0] + 1 :]])

    @property
    def verdict(self) -> str:
        """What was found, in a few words."""
        named = ", ".join(variant.id for variant in self.report.variants)
        if self.report.healthy:
            said = f"variant: {named}" if named else "healthy"
            return f"{said}; causal" if self.is_causal else said
        if self.report.explanations:
            return "buggy: " + "; or ".join(" + ".join(e.ids) for e in self.report.explanations)
        return "unexplained"


@dataclass(frozen=True, repr=False)
class ModelReport:
    """What `diagnose_model` found; true in a condition when everything examined is healthy.

    Args:
        name: of the model.
        rows: the parts that were examined.
        failing, checked, untried: of the whole model, apart from the rows.
    """

    name: str
    rows: tuple[Row, ...]
    failing: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether something was examined, and all of it is healthy."""
        return bool(self.rows) and not self.failing and not self.unhealthy

    @property
    def unhealthy(self) -> tuple[Row, ...]:
        """The rows that are not healthy."""
        return tuple(row for row in self.rows if not row.report.healthy)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all bugs that were found."""
        return tuple(dict.fromkeys(id for row in self.rows for id in row.report.ids))

    @property
    def verdict(self) -> str:
        """The first line of the report."""
        kinds = [row.report.kind for row in self.rows for _ in row.places]
        if not kinds:
            return f"{self.name}: nothing was found that could be examined"
        count = f"{len(kinds)} part{'s' * (len(kinds) > 1)} examined"
        said = [f"{kinds.count(k)} {k}" for k in ("buggy", "unexplained") if k in kinds]
        if said:
            return f"{self.name}: {' and '.join(said)} of {count}"
        return f"{self.name}: {'healthy' if self.healthy else 'not healthy as a whole'}, {count}"

    def data(self) -> dict[str, Any]:
        """Return the report as plain dictionaries, lists and strings, for `json.dumps`."""
        rows = [
            {"part": r.kind, "where": r.where, "places": list(r.places), **r.report.data()}
            for r in self.rows
        ]
        notes = {name: list(getattr(self, name)) for name in ("failing", "checked", "untried")}
        return {"name": self.name, "healthy": self.healthy, "rows": rows, **notes}

    def __bool__(self) -> bool:
        if not self.healthy:
            ASKED.append(self)
        return self.healthy

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        kinds = max((len(row.kind) for row in self.rows), default=0)
        places = min(SHOWN, max((len(row.where) for row in self.rows), default=0))
        lines = [self.verdict]
        for row in self.rows:
            line = f"  {row.kind:{kinds}}  {row.where:{places}}  {row.verdict}"
            if len(line) > PAGE or len(row.where) > SHOWN:
                lines += wrapped(f"  {row.kind:{kinds}}  {row.where}")
                line = f"  {'':{kinds}}  {row.verdict}"
            lines += wrapped(line) if len(line) > PAGE else [line]
        lines += [line for note in notes_of(self) for line in wrapped(f"  {note}")]
        lines += [line for r in self.unhealthy for line in ("", r.where, str(r.report))]
        return "\n".join(lines)
