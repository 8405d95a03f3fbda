"""Writes what comes out: grades.csv, totals.csv, and one page for each student."""

from __future__ import annotations

import csv
import unicodedata
from pathlib import Path
from typing import Any

from grading.marks import Mark

FORMULA = ("=", "+", "-", "@")  # what begins with these, a spreadsheet computes
COLUMNS = (
    "student",
    "chapter",
    "file",
    "points",
    "possible",
    "share",
    "exercises",
    "to_read",
    "reason",
)
TOTALS = ("student", "points", "possible", "share", "handed_in", "to_read", "reason", "page")
REASON = 1000

PAGE = """<!DOCTYPE html>
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
<tr><td>{{ mark.chapter }}</td><td>{{ mark.file or "not handed in" }}</td>
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
<span class="points">{{ points(0 if mark.deceit else exercise.points) }} of
{{ points(exercise.possible) }}</span>{% endif %}</h3>
{% if exercise.state == "open" -%}
<p class="verdict"><strong>{{ "to be read by the instructor" if exercise.written
else "nothing written" }}</strong></p>
{% else -%}
<p class="verdict"><strong>{{ exercise.state }}</strong>{% if exercise.reason %}:
{{ exercise.reason }}{% endif %}</p>
{% endif -%}
{% for cell in exercise.cells -%}
{% if cell.number %}<p class="small">cell {{ cell.number }}</p>{% endif %}
<pre>{{ cell.source }}</pre>
{% if cell.text.strip() %}<pre class="shown">{{ cell.text }}</pre>{% endif %}
{% for picture in cell.pictures -%}
<p><img alt="a picture that this cell draws" src="data:image/png;base64,{{ picture }}"></p>
{% endfor -%}
{% else -%}
{% if mark.exercises and exercise.state != "not checked" %}<p>No cell with an answer.</p>{% endif %}
{% endfor -%}
{% endfor -%}
{% endfor -%}
</body>
</html>
"""


def points(number: float) -> str:
    return f"{number:g}"


def safe(text: Any) -> str:
    """Makes one line that a spreadsheet shows and does not compute."""
    line = "".join(" " if unicodedata.category(c) in ("Cc", "Zl", "Zp") else c for c in str(text))
    line = " ".join(line.split())
    return f"'{line}" if line.startswith(FORMULA) else line


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


def to_read(marks: list[Mark]) -> int:
    return sum(e.state == "open" and e.written for mark in marks for e in mark.exercises)


def row(name: str, mark: Mark) -> list[str]:
    exercises = "; ".join(
        f"{e.id} {points(0 if mark.deceit else e.points)}/{points(e.possible)}"
        for e in mark.exercises
        if e.possible
    )
    share = f"{mark.points / mark.possible:.3f}" if mark.possible else "0.000"
    reason = mark.reason if len(mark.reason) <= REASON else mark.reason[:REASON] + " ..."
    values = [name, mark.chapter, mark.file, points(mark.points), points(mark.possible), share]
    return [safe(v) for v in [*values, exercises, to_read([mark]), reason]]


def write(out: Path, results: list[tuple[str, str, list[Mark], list[str]]]) -> None:
    """Writes the tables and the pages of all students.

    Args:
        out: a new folder.
        results: of each student the name, the name of the page without ending, the marks of all
            chapters, and the remarks on other files.
    """
    # With the mark at its beginning, a spreadsheet reads the file as UTF-8.
    with (out / "grades.csv").open("w", encoding="utf-8-sig", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(COLUMNS)
        for name, _, marks, _ in results:
            table.writerows(row(name, mark) for mark in marks)
    with (out / "totals.csv").open("w", encoding="utf-8-sig", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(TOTALS)
        for name, page, marks, remarks in results:
            got, possible = sum(m.points for m in marks), sum(m.possible for m in marks)
            handed_in = sum(bool(m.file) for m in marks)
            share = f"{got / possible:.3f}" if possible else "0.000"
            values = [name, points(got), points(possible), share, handed_in, to_read(marks)]
            values += ["; ".join(remarks)[:REASON], f"feedback/{page}.html"]
            table.writerow([safe(value) for value in values])
    (out / "feedback").mkdir()
    for name, page, marks, remarks in results:
        text = feedback(name, marks, remarks)
        (out / "feedback" / f"{page}.html").write_text(text, encoding="utf-8", errors="replace")


def feedback(name: str, marks: list[Mark], remarks: list[str]) -> str:
    """Returns the page of a student: HTML that loads nothing and runs nothing."""
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True)
    return environment.from_string(PAGE).render(
        name=name,
        marks=marks,
        remarks=remarks,
        total=sum(mark.points for mark in marks),
        possible=sum(mark.possible for mark in marks),
        to_read=to_read(marks),
        points=points,
    )
