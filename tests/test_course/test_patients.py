"""No bug twice: the patients of the chapters and of their exercises are different ones.

Chapter 08 is left out: there, patients that a reader has met may come again in another dress.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from made_up import code, prose
from notebook_rules import ROOT, Chapter, output_texts, source

from tools.course.registry import course

SICK = re.compile(r"Clinic|.*Find the bug")
THREAD = re.compile(r"github\.com/([\w.-]+/[\w.-]+/(?:issues|pull)/\d+)")
# The line of a report that names a bug: "  softmax-query   takes the softmax ...".
NAMED = re.compile(r"^  ((?:[a-z0-9]+-)+[a-z0-9]+(?: \+ [a-z0-9-]+)*)   \S", re.MULTILINE)


def patients(chapter: Chapter) -> set[str]:
    """The threads that its sections about a bug cite, and the bugs that reports there name."""
    found: set[str] = set()
    heading = ""
    for cell in chapter.cells:
        if cell["cell_type"] == "markdown":
            for part in re.split(r"^(?=## )", source(cell), flags=re.MULTILINE):
                title = re.match(r"## (?:\d+\. )?(.*)", part)
                heading = title[1] if title else heading
                if SICK.match(heading):
                    found |= set(THREAD.findall(part))
        elif SICK.match(heading):
            for output in cell["outputs"]:
                for text in output_texts(output):
                    for names in NAMED.findall(text):
                        found |= set(names.split(" + "))
    return found


def shared(chapters: Iterable[Chapter]) -> list[str]:
    """Complain about each thread or bug of two notebooks."""
    seen: dict[str, list[str]] = defaultdict(list)
    for chapter in chapters:
        for patient in sorted(patients(chapter)):
            seen[patient].append(str(chapter.path.relative_to(ROOT)))
    return [f"{patient}: {', '.join(where)}" for patient, where in seen.items() if len(where) > 1]


def of_the_course() -> list[Chapter]:
    """All chapters but 08, whose subject is all of them, and existing source notebooks."""
    listed = [chapter for chapter in course().chapters if chapter.number != "08"]
    paths = [path for chapter in listed for path in (chapter.notebook, chapter.source_notebook)]
    return [Chapter.read(path) for path in paths if path.is_file()]


def test_no_patient_comes_twice() -> None:
    chapters = of_the_course()
    found = sum(bool(patients(chapter)) for chapter in chapters)
    assert found >= 0.9 * len(chapters) > 10, (
        "the sections are found, with source notebooks or without"
    )
    assert shared(chapters) == []


def test_a_patient_that_comes_twice_is_seen() -> None:
    thread = "see [a/b#1](https://github.com/a/b/issues/1)"
    report = {"output_type": "stream", "text": ["M: not equal\n  mask-x + out-y   takes it\n"]}
    first = Chapter.of(prose(f"## Clinic\n\n{thread}\n\n## Next\n\nno"), name="00_a.ipynb")
    again = Chapter.of(prose(f"text\n\n## 4. Find the bug\n\n{thread}"), name="01_b.ipynb")
    named = Chapter.of(prose("## Clinic"), {**code(""), "outputs": [report]})
    elsewhere = Chapter.of(prose(f"## Clinic\n\nhealthy\n\n## Next\n\n{thread}"))
    assert patients(named) == {"mask-x", "out-y"}
    assert shared([first, again]) == ["a/b/issues/1: notebooks/00_a.ipynb, notebooks/01_b.ipynb"]
    assert len(shared([named, named])) == 2
    assert shared([first, elsewhere]) == []
