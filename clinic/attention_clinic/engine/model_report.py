"""What `diagnose_model` says: one row for each kind of part, alike parts in one row."""

from __future__ import annotations

import re
from dataclasses import dataclass
from html import escape
from typing import Any

from attention_clinic.engine.report import ASKED, PAGE, STYLE, Report, notes_of, wrapped

SHOWN = 46  # columns of the places


@dataclass(frozen=True)
class Row:
    """One part of a model, or several that do the same.

    Args:
        kind: what it is: "block", "attention", "patches", ...
        places: where it stands: paths, the alike ones in order.
        report: what was found in the first of them; the others give the same numbers.
    """

    kind: str
    places: tuple[str, ...]
    report: Report

    @property
    def where(self) -> str:
        """The places in a few words, `encoder.layers.0-11`."""
        return joined(self.places)

    @property
    def verdict(self) -> str:
        """What was found, in a few words."""
        found = self.report
        if found.healthy:
            named = ", ".join(variant.id for variant in found.variants)
            causal = any(re.search(r"\bcausal\b", words) for words in found.checked)
            said = f"variant: {named}" if named else "healthy"
            return f"{said}; causal" if causal else said
        if found.explanations:
            return "sick: " + "; or ".join(" + ".join(e.ids) for e in found.explanations)
        return "unexplained"


@dataclass(frozen=True, repr=False)
class ModelReport:
    """What `diagnose_model` found; true in a test when all that was examined is healthy.

    Args:
        name: of the model.
        rows: what was examined.
        failing: properties of the whole model that do not hold.
        checked: what was compared beside the rows.
        untried: what was not examined.
    """

    name: str
    rows: tuple[Row, ...]
    failing: tuple[str, ...] = ()
    checked: tuple[str, ...] = ()
    untried: tuple[str, ...] = ()

    @property
    def healthy(self) -> bool:
        """Whether something was examined, and all of it is right."""
        return bool(self.rows) and not self.failing and all(r.report.healthy for r in self.rows)

    @property
    def sick(self) -> tuple[Row, ...]:
        """The rows that are not healthy."""
        return tuple(row for row in self.rows if not row.report.healthy)

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of all mistakes that were named."""
        return tuple(dict.fromkeys(id for row in self.rows for id in row.report.ids))

    @property
    def verdict(self) -> str:
        """The first line."""
        parts = sum(len(row.places) for row in self.rows)
        if not self.rows:
            return f"{self.name}: nothing was found that could be examined"
        many = f"{parts} part{'s' * (parts > 1)}"
        if self.healthy:
            return f"{self.name}: healthy, {many} examined"
        named = sum(len(row.places) for row in self.sick if row.report.explanations)
        open_ = sum(len(row.places) for row in self.sick) - named
        said = [f"{named} sick"] * bool(named) + [f"{open_} unexplained"] * bool(open_)
        said += ["the whole is not right"] * (not said)
        return f"{self.name}: {' and '.join(said)} of {many} examined"

    def data(self) -> dict[str, Any]:
        """Return the report as plain dictionaries, lists and strings, for `json.dumps`."""
        rows = [
            {"part": r.kind, "where": r.where, "places": list(r.places), **r.report.data()}
            for r in self.rows
        ]
        return {
            "name": self.name,
            "healthy": self.healthy,
            "rows": rows,
            "failing": list(self.failing),
            "checked": list(self.checked),
            "untried": list(self.untried),
        }

    def __bool__(self) -> bool:
        if not self.healthy:
            ASKED.append(self)
        return self.healthy

    def __repr__(self) -> str:
        return str(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def __str__(self) -> str:
        lines = [self.verdict]
        kinds = max((len(row.kind) for row in self.rows), default=0)
        places = min(SHOWN, max((len(row.where) for row in self.rows), default=0))
        for row in self.rows:
            line = f"  {row.kind:{kinds}}  {row.where:{places}}  {row.verdict}"
            if len(line) <= PAGE and len(row.where) <= SHOWN:
                lines.append(line)
            else:
                lines += wrapped(f"  {row.kind:{kinds}}  {row.where}")
                lines += wrapped(f"  {'':{kinds}}  {row.verdict}")
        for note in notes_of(self):
            lines += wrapped(f"  {note}")
        for row in self.sick:
            lines += ["", f"{row.where}", str(row.report)]
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{escape(row.kind)}</td><td>{escape(row.where)}</td>"
            f"<td>{escape(row.verdict)}</td></tr>"
            for row in self.rows
        )
        head = "<tr><th>part</th><th>where</th><th>what was found</th></tr>"
        listed = "".join(f"<li>{escape(note)}</li>" for note in notes_of(self))
        sick = "".join(f"<p>{escape(r.where)}</p>{r.report._repr_html_()}" for r in self.sick)
        return (
            f"{STYLE}<div class='attention-clinic'><b>{escape(self.verdict)}</b>"
            f"{f'<table>{head}{rows}</table>' if rows else ''}"
            f"{f'<ul>{listed}</ul>' if listed else ''}</div>{sick}"
        )


def joined(places: tuple[str, ...]) -> str:
    """Return paths as one: layers.0.attn, layers.1.attn -> layers.0-1.attn."""
    if len(places) == 1:
        return places[0] or "(the model itself)"
    split = [place.split(".") for place in places]
    if len({len(parts) for parts in split}) == 1:
        differing = [n for n, parts in enumerate(zip(*split, strict=True)) if len(set(parts)) > 1]
        numbers = [parts[differing[0]] for parts in split]
        if len(differing) == 1 and all(number.isdigit() for number in numbers):
            first = list(split[0])
            first[differing[0]] = _ranges([int(number) for number in numbers])
            return ".".join(first)
    return ", ".join(places)


def _ranges(numbers: list[int]) -> str:
    """Return 0, 1, 2, 5 as "0-2,5"."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in found)
