"""The class report: class.html and class.csv show what the class has understood.

For each exercise: how many students solved it, how many tried, and what the checks report. Reports
are counted by the id of the verdict, never by its words. See `checks.engine.verdict`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools.grading.grades import NOT_RIGHT, RIGHT, ExerciseGrade
from tools.grading.html_page import rendered
from tools.grading.lecture_summary import sentences
from tools.grading.student_report import Result, points, write_table

COLUMNS = ("exercise", "title", "students", "tried", "solved", "cause", "had_it", "words")
MAX_REPEATED = 12  # causes at the top of the page
TRIED = (RIGHT, NOT_RIGHT)

PAGE = """{% extends "frame" %}
{% macro share(count, of) -%}
<span class="bar" aria-hidden="true"><span style="width: {{ (100 * count / of)|round|int }}%">
</span></span>
{%- endmacro -%}
{% macro names(results) -%}
<details><summary>{{ results|length }} {{ "student" if results|length == 1 else "students" }}
</summary><ul>
{% for result in results -%}
<li><a href="feedback/{{ result.page|urlencode }}.html">{{ result.student.name }}</a></li>
{% endfor -%}
</ul></details>
{%- endmacro -%}
{% block title %}Class report{% endblock %}
{% block width %}62rem{% endblock %}
{% block style %}
  table { border-collapse: collapse; width: 100%; table-layout: fixed; }
  th:nth-child(1), td:nth-child(1) { width: 15rem; }
  th:nth-child(2) { width: 11.5rem; }
  th:nth-child(3) { width: 6.5rem; }
  .repeat th:nth-child(1), .repeat td:nth-child(1) { width: 11.5rem; }
  .repeat th:nth-child(2) { width: auto; }
  .repeat th:nth-child(3) { width: 10rem; }
  caption { text-align: left; padding-bottom: .5rem; }
  th, td { text-align: left; padding: .35rem 1rem .35rem 0; border-bottom: 1px solid #999;
           vertical-align: top; font-weight: normal; overflow-wrap: anywhere; }
  thead th { font-weight: bold; border-bottom: 2px solid #333; }
  .number { white-space: nowrap; overflow-wrap: normal; }
  .exercise { font-weight: bold; }
  .causes { margin: 0; padding: 0; list-style: none; }
  .causes li { margin-bottom: .3rem; }
  .bar { display: inline-block; width: 6rem; height: .8rem; border: 1px solid #333; }
  .bar span { display: block; height: 100%; background: #555; print-color-adjust: exact; }
  details ul { margin: .2rem 0 .5rem; padding-left: 1.2rem; columns: 14rem; }
  summary { cursor: pointer; }
  a:focus-visible, summary:focus-visible { outline: 3px solid #333; outline-offset: 2px; }
  .muted { color: #444; }
  @media (max-width: 45rem) {
    table, caption, thead, tbody, tr, td, th { display: block; width: auto !important; }
    thead { display: none; }
    tr { border-bottom: 1px solid #999; padding: .3rem 0; }
    tbody td, tbody th { border: 0; padding: .1rem 0; }
    details ul { columns: auto; }
    .solved::before { content: "solved by "; }
    .tried::before { content: "tried by "; }
    .waits:not(:empty)::before { content: "open answers to read: "; }
  }
  @media print {
    body { max-width: none; font-size: 11pt; }
    tr, li { break-inside: avoid; }
    thead { display: table-header-group; }
    details::details-content { content-visibility: visible; display: block; }
  }
{% endblock %}
{% block body %}
<h1>Class report</h1>
<p>{{ students }} {{ "student" if students == 1 else "students" }},
{{ chapters|length }} {{ "chapter" if chapters|length == 1 else "chapters" }}.
{% if to_read %}{{ to_read }} open {{ "answer is" if to_read == 1 else "answers are" }}
not read yet.{% endif %}</p>
{% if week %}<p>{{ week }}</p>{% endif %}
<h2 id="next">To start the next lecture</h2>
<ol>
{% for sentence in sentences -%}
<li>{{ sentence }}</li>
{% endfor -%}
</ol>
<h2 id="repeat">What to repeat</h2>
{% if repeat -%}
<table class="repeat">
<caption>The most frequent mistakes in all exercises</caption>
<thead><tr><th scope="col">Students</th><th scope="col">Mistake</th>
<th scope="col">Exercises</th></tr></thead>
<tbody>
{% for cause, where in repeat -%}
<tr><td class="number">{{ share(cause.results|length, students) }}
{{ cause.results|length }} of {{ students }}</td>
<th scope="row">{{ cause.words }}{{ names(cause.results) }}</th>
<td>{% for id in where %}<a href="#e{{ id }}">{{ id }}</a> {% endfor %}</td></tr>
{% endfor -%}
</tbody></table>
{% else -%}
<p>No check named a mistake.</p>
{% endif -%}
{% for chapter, exercises in chapters -%}
<h2 id="c{{ chapter }}">Chapter {{ chapter }}</h2>
<table>
<caption>{{ submitted[chapter] }} of {{ students }} submitted</caption>
<thead><tr><th scope="col">Exercise</th><th scope="col">Solved</th><th scope="col">Tried</th>
<th scope="col">Results of the check</th></tr></thead>
<tbody>
{% for exercise in exercises -%}
<tr id="e{{ exercise.id }}"><th scope="row"><span class="exercise">{{ exercise.id }}</span>
{{ exercise.title }}</th>
{% if exercise.is_open -%}
<td class="muted" colspan="3">open: {{ exercise.tried|length }} of {{ students }} answered
{%- if exercise.tried %}{{ names(exercise.tried) }}{% endif %}</td>
{% else -%}
<td class="number solved">{{ share(exercise.solved|length, students) }}
{{ exercise.solved|length }} of {{ students }}</td>
<td class="number tried">{{ exercise.tried|length }} of {{ students }}</td>
<td>{% if exercise.causes %}<ul class="causes">
{% for cause in exercise.causes -%}
<li>{{ cause.results|length }} of {{ students }}: {{ cause.words }}{{ names(cause.results) }}</li>
{% endfor -%}
</ul>{% endif %}</td>
{% endif -%}
</tr>
{% endfor -%}
</tbody></table>
{% endfor -%}
<h2 id="students">Students</h2>
<table>
<caption>Pages of feedback</caption>
<thead><tr><th scope="col">Student</th><th scope="col">Points</th>
<th scope="col">Open answers to read</th></tr></thead>
<tbody>
{% for result in results -%}
<tr><th scope="row"><a href="feedback/{{ result.page|urlencode }}.html">
{{- result.student.name }}</a></th>
<td class="number">{{ points(result.points) }} of {{ points(result.possible) }}</td>
<td class="waits">{{ result.to_read or "" }}</td></tr>
{% endfor -%}
</tbody></table>
{% endblock %}
"""


@dataclass
class Cause:
    """A result of checks that some students share.

    Args:
        topic: its id.
        words: a sentence.
        named: whether the words name a mistake.
        results: the students.
    """

    topic: str
    words: str
    named: bool
    results: list[Result] = field(default_factory=list)


@dataclass
class ExerciseSummary:
    """One exercise of the whole class.

    Args:
        id, title: of the exercise.
        is_open: whether it has no check.
        tried, solved: the students.
        causes: the most frequent first.
    """

    id: str
    title: str
    is_open: bool
    tried: list[Result] = field(default_factory=list)
    solved: list[Result] = field(default_factory=list)
    causes: list[Cause] = field(default_factory=list)

    def add(self, result: Result, grade: ExerciseGrade) -> None:
        """Count the grade of one student."""
        check = grade.result
        if grade.written or (check.state in TRIED and not self.is_open):
            self.tried.append(result)
        if check.state == RIGHT:
            self.solved.append(result)
        if check.topic:
            same = next((c for c in self.causes if c.topic == check.topic), None)
            if same is None:
                self.causes.append(same := Cause(check.topic, check.words, check.named))
            same.results.append(result)


def exercises_of(results: list[Result]) -> list[ExerciseSummary]:
    """Count the grades of all students, in the order of the exercises.

    Args:
        results: of each student, all with grades of the same chapters.
    """
    found: dict[str, ExerciseSummary] = {}
    for result in results:
        for grade in (e for chapter in result.grades for e in chapter.exercises):
            made = ExerciseSummary(grade.id, grade.title, grade.is_open)
            found.setdefault(grade.id, made).add(result, grade)
    for exercise in found.values():
        exercise.causes.sort(key=lambda cause: (-len(cause.results), not cause.named, cause.topic))
    return list(found.values())


def to_repeat(exercises: list[ExerciseSummary]) -> list[tuple[Cause, list[str]]]:
    """Combine the named mistakes of all exercises, the most frequent first.

    Returns:
        Each mistake with all its students, and the ids of the exercises.
    """
    found: dict[str, tuple[Cause, list[str]]] = {}
    for exercise in exercises:
        for cause in (cause for cause in exercise.causes if cause.named):
            new = Cause(cause.topic, cause.words, True), []
            whole, where = found.setdefault(cause.topic, new)
            where.append(exercise.id)
            whole.results += [r for r in cause.results if r not in whole.results]
    return sorted(found.values(), key=lambda pair: -len(pair[0].results))


def _lines(exercises: list[ExerciseSummary], students: int) -> Iterator[list[object]]:
    for exercise in exercises:
        counts = [students, len(exercise.tried)]
        counts += ["" if exercise.is_open else len(exercise.solved)]
        for cause in exercise.causes or [Cause("", "", False)]:
            yield [
                *(exercise.id, exercise.title, *counts),
                *(cause.topic, len(cause.results), cause.words),
            ]


def write(folder: Path, results: list[Result], week: str = "") -> None:
    """Write class.csv and class.html.

    Args:
        folder: a new folder; its `feedback/` holds the pages of the students.
        results: of each student.
        week: the name of the week, "" if there is only one.
    """
    exercises = exercises_of(results)
    write_table(folder / "class.csv", COLUMNS, _lines(exercises, len(results)))
    (folder / "class.html").write_text(
        page(results, exercises, week), encoding="utf-8", errors="replace"
    )


def page(results: list[Result], exercises: list[ExerciseSummary], week: str = "") -> str:
    """Return class.html: it loads nothing and runs nothing."""
    chapters = list(dict.fromkeys(exercise.id[:2] for exercise in exercises))
    submitted = {c: sum(c in result.student.chapters for result in results) for c in chapters}
    return rendered(
        PAGE,
        results=results,
        students=len(results),
        to_read=sum(result.to_read for result in results),
        sentences=sentences(exercises, to_repeat(exercises), submitted),
        week=week,
        repeat=to_repeat(exercises)[:MAX_REPEATED],
        chapters=[(c, [e for e in exercises if e.id[:2] == c]) for c in chapters],
        submitted=submitted,
        points=points,
    )
