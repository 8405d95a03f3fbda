"""Writes what comes out: grades.csv, totals.csv, and one page for each student."""

from __future__ import annotations

import csv
import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grading.handed_in import Student
from grading.marks import Mark
from grading.results import Typed

FORMULA = ("=", "+", "-", "@")  # what begins with these, a spreadsheet computes
# The same behind what another language's spreadsheet takes for the end of a cell.
CELL_AND_FORMULA = re.compile(r"(;\s*)(?=[=+@-])")
COLUMNS = (
    "student",
    "id",
    "chapter",
    "file",
    "late",
    "points",
    "possible",
    "share",
    "exercises",
    "to_read",
    "reason",
)
TOTALS = (
    "student",
    "id",
    "points",
    "possible",
    "share",
    "handed_in",
    "late",
    "to_read",
    "reason",
    "page",
)
REASON = 1000
MOST_SHOWN = 20  # files that were left alone, on a page

PAGE = """{% macro listed(cells) -%}
{% for cell in cells -%}
{% if cell.number %}<p class="small">cell {{ cell.number }}</p>{% endif %}
<pre>{{ cell.source }}</pre>
{% if cell.text.strip() %}<pre class="shown">{{ cell.text }}</pre>{% endif %}
{% for picture in cell.pictures -%}
<p><img alt="a picture that this cell draws" src="data:image/png;base64,{{ picture }}"></p>
{% endfor -%}
{% endfor -%}
{% endmacro -%}
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy"
  content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{{ name }}: feedback</title>
<style>
  body { max-width: 50rem; margin: 2rem auto; padding: 0 1rem; color: #1a1a1a; background: #fff;
         font: 16px/1.5 system-ui, sans-serif; }
  h1, h2, h3 { line-height: 1.2; overflow-wrap: anywhere; }
  h2 { margin-top: 3rem; border-bottom: 2px solid #555; padding-bottom: .3rem; }
  h3 { margin: 2rem 0 .3rem; }
  .points { float: right; font-weight: normal; white-space: nowrap; padding-left: 1rem; }
  table { border-collapse: collapse; width: 100%; }
  th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid #bbb;
           vertical-align: top; overflow-wrap: anywhere; }
  td.number, th.number { text-align: right; white-space: nowrap; }
  pre { background: #f3f3f3; border-left: 4px solid #999; padding: .7rem; overflow-x: auto;
        font: 14px/1.4 ui-monospace, monospace; white-space: pre-wrap; overflow-wrap: anywhere; }
  pre.shown { background: #fff; border-left-style: dotted; }
  .verdict { margin: .3rem 0 .6rem; }
  .remark { border: 2px solid #555; padding: .6rem .8rem; overflow-wrap: anywhere; }
  img { max-width: 100%; }
  .small { color: #444; font-size: 14px; margin: .6rem 0 -.4rem; }
  @media print { h3, .verdict { break-after: avoid; } }
</style>
</head>
<body>
<h1>{{ name }}</h1>
<p>{{ points(total) }} of {{ points(possible) }} points{% if to_read %}, and
{{ to_read }} open {{ "exercise" if to_read == 1 else "exercises" }} to be read by the
instructor{% endif %}.</p>
<table>
<tr><th>Chapter</th><th>File</th><th class="number">Points</th></tr>
{% for mark in marks -%}
<tr><td>{{ mark.chapter }}</td><td>{{ mark.file or mark.reason }}</td>
<td class="number">{{ points(mark.points) }} of {{ points(mark.possible) }}</td></tr>
{% endfor -%}
</table>
{% for remark in remarks -%}
<p class="remark">{{ remark }}</p>
{% endfor -%}
{% for mark in marks if mark.file -%}
<h2>Chapter {{ mark.chapter }} <span class="points">{{ points(mark.points) }} of
{{ points(mark.possible) }}</span></h2>
{% if mark.reason %}<p class="remark">{{ mark.reason }}</p>{% endif %}
{% for exercise in mark.exercises -%}
<h3>{{ exercise.id }} {{ exercise.title }}{% if exercise.possible %}
<span class="points">{{ points(exercise.points) }} of
{{ points(exercise.possible) }}</span>{% endif %}</h3>
{% if exercise.state == "open" -%}
<p class="verdict"><strong>{{ "to be read by the instructor" if exercise.written
else "nothing written" }}</strong></p>
{% else -%}
<p class="verdict"><strong>{{ exercise.state }}</strong>{% if exercise.reason %}:
{{ exercise.reason }}{% endif %}</p>
{% endif -%}
{{ listed(exercise.cells) }}
{%- if not exercise.cells -%}
{% if mark.exercises and exercise.state != "not checked" %}<p>No cell with an answer.</p>{% endif %}
{% endif -%}
{% endfor -%}
{% if mark.outside -%}
<h3>Outside of the exercises</h3>
{{ listed(mark.outside) }}
{%- endif -%}
{% endfor -%}
</body>
</html>
"""


@dataclass(frozen=True)
class Result:
    """All that is known of one student.

    Args:
        student: what was handed in.
        page: the name of the page of feedback, without ending.
        marks: of all chapters that count.
    """

    student: Student
    page: str
    marks: list[Mark]

    @property
    def points(self) -> float:
        return sum(mark.points for mark in self.marks)

    @property
    def possible(self) -> float:
        return sum(mark.possible for mark in self.marks)

    @property
    def to_read(self) -> int:
        return to_read(self.marks)

    def is_late(self, chapter: str) -> bool:
        sent = self.student.chapters.get(chapter)
        return sent is not None and sent.late


def to_read(marks: Iterable[Mark]) -> int:
    """Counts the open exercises in which something stands."""
    return sum(e.state == "open" and e.written for mark in marks for e in mark.exercises)


def points(number: float) -> str:
    return f"{number:g}"


def share(got: float, possible: float) -> str:
    return f"{got / possible:.3f}" if possible else "0.000"


def safe(text: Any) -> str:
    """Makes one line that a spreadsheet shows and does not compute."""
    line = "".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in str(text))
    line = " ".join(line.split())
    return f"'{line}" if line.startswith(FORMULA) else line


def cells(values: Iterable[Any]) -> list[str]:
    """Makes the cells of a line, safe whichever of , and ; the reader takes for their end.

    All are written in quotes. For who reads with ; the first cell, the name, ends with its quote;
    behind it quotes are letters, so there the text itself must be harmless.
    """
    first, *rest = (safe(value) for value in values)
    return [first, *(CELL_AND_FORMULA.sub(r"\1'", text) for text in rest)]


def page_name(name: str, taken: set[str]) -> str:
    """Makes a file name of a student's name that no other student has, on any system."""
    kept = "".join(c if c.isalnum() or c in " -_." else "_" for c in name).strip(" .") or "student"
    while len(kept.encode()) > 120:
        kept = kept[:-1]
    stem, number = kept, 1
    while unicodedata.normalize("NFKC", stem).casefold() in taken:
        number += 1
        stem = f"{kept} {number}"
    taken.add(unicodedata.normalize("NFKC", stem).casefold())
    return stem


def write_table(path: Path, columns: Iterable[str], lines: Iterable[Iterable[Any]]) -> None:
    """Writes a csv file that every spreadsheet reads as UTF-8."""
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        table = csv.writer(file, lineterminator="\n", quoting=csv.QUOTE_ALL)
        table.writerow(columns)
        table.writerows(cells(line) for line in lines)


def grades_line(result: Result, mark: Mark) -> list[Any]:
    """Returns a line of grades.csv, in the order of COLUMNS."""
    exercises = "; ".join(
        f"{e.id} {points(e.points)}/{points(e.possible)}" for e in mark.exercises if e.possible
    )
    reason = "; ".join(filter(None, [mark.reason, mark.remarks]))
    return [
        result.student.name,
        result.student.id,
        mark.chapter,
        mark.file,
        "late" if result.is_late(mark.chapter) else "",
        points(mark.points),
        points(mark.possible),
        share(mark.points, mark.possible),
        exercises,
        to_read([mark]),
        reason if len(reason) <= REASON else reason[:REASON] + " ...",
    ]


def totals_line(result: Result) -> list[Any]:
    """Returns a line of totals.csv, in the order of TOTALS."""
    return [
        result.student.name,
        result.student.id,
        points(result.points),
        points(result.possible),
        share(result.points, result.possible),
        sum(bool(mark.file) for mark in result.marks),
        sum(result.is_late(mark.chapter) for mark in result.marks),
        result.to_read,
        "; ".join(map(str, result.student.others))[:REASON],
        f"feedback/{result.page}.html",
    ]


def write(folder: Path, results: list[Result], typed: Typed) -> None:
    """Writes the tables and the pages of all students.

    Args:
        folder: a new folder.
        results: of each student.
        typed: columns that the instructor added to earlier tables.
    """
    columns = typed.columns("grades.csv")
    lines = [
        [*grades_line(r, mark), *typed.values("grades.csv", (r.student.name, mark.chapter))]
        for r in results
        for mark in r.marks
    ]
    write_table(folder / "grades.csv", [*COLUMNS, *columns], lines)
    columns = typed.columns("totals.csv")
    lines = [[*totals_line(r), *typed.values("totals.csv", (r.student.name,))] for r in results]
    write_table(folder / "totals.csv", [*TOTALS, *columns], lines)
    (folder / "feedback").mkdir()
    for result in results:
        path = folder / "feedback" / f"{result.page}.html"
        path.write_text(feedback(result), encoding="utf-8", errors="replace")


def feedback(result: Result) -> str:
    """Returns the page of a student: HTML that loads nothing and runs nothing."""
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True)
    return environment.from_string(PAGE).render(
        name=result.student.name,
        marks=result.marks,
        remarks=[str(other) for other in result.student.others if other.likely][:MOST_SHOWN],
        total=result.points,
        possible=result.possible,
        to_read=result.to_read,
        points=points,
    )
