"""A chapter states honest minutes; its sections can be skipped where it says so, and run again.

A section, or a part of one under a heading of level 3, is for another day if the cell of its
heading carries the tag "another-day". The rest of the chapter is its core path.
"""

from __future__ import annotations

import ast
import contextlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import pytest
from notebook_rules import Chapter, headings, source, tags

from tools.course.registry import ROOT, course

CHAPTERS = course().notebooks()
ANOTHER_DAY = "another-day"
LONGEST_CORE_PATH = 60
# Minutes for each word, line of code, code cell and prediction; CONTRIBUTING.md states them.
WORD, LINE, CELL, PREDICTION = 1 / 180, 1 / 20, 1 / 10, 3 / 4
TIMES = json.loads((ROOT / "resources" / "times.json").read_text(encoding="utf-8"))["chapters"]


@dataclass
class Section:
    """The cells from one heading to the next; the first section has the title."""

    title: str
    another_day: bool = False
    cells: list[dict[str, Any]] = field(default_factory=list)

    @property
    def code(self) -> list[str]:
        return [source(cell) for cell in self.cells if cell["cell_type"] == "code"]

    @property
    def minutes(self) -> float:
        """Minutes to read its text and code and to answer its predictions."""
        text = " ".join(source(cell) for cell in self.cells if cell["cell_type"] == "markdown")
        lines = [line.strip() for cell in self.code for line in cell.splitlines()]
        lines = [line for line in lines if line and not line.startswith("#")]
        predictions = sum(len(re.findall(r"^guess = ", cell, re.M)) for cell in self.code)
        code = LINE * len(lines) + CELL * len(self.code) + PREDICTION * predictions
        return WORD * len(text.split()) + code


def sections(chapter: Chapter, deepest: int = 2) -> list[Section]:
    """Cut a chapter at its headings of level 2, or also at those of level 3."""
    found = [Section("")]
    whole = False  # whether the section of level 2 is for another day
    for cell in chapter.cells:
        inner = headings(source(cell)) if cell["cell_type"] == "markdown" else []
        inner = [(level, title) for level, title in inner if 2 <= level <= deepest]
        if inner:
            level, title = inner[0]
            another_day = ANOTHER_DAY in tags(cell)
            whole = another_day if level == 2 else whole
            found.append(Section(title, another_day or whole))
        found[-1].cells.append(cell)
    return found


def rounded(minutes: float) -> int:
    return 5 * round(minutes / 5)


def minutes(chapter: Chapter) -> list[str]:
    """The top states the minutes of the core path, at most an hour, and of the rest."""
    parts = sections(chapter, deepest=3)
    core = sum(part.minutes for part in parts if not part.another_day)
    core += TIMES.get(f"{chapter.number:02}", {"chapter": 0})["chapter"] / 60
    rest = sum(part.minutes for part in parts if part.another_day)
    top = chapter.markdown[0]
    stated = re.search(r"\*\*About (\d+) minutes\.?\*\*", top)
    more = re.search(r"about (\d+) more", top)
    complaints = []
    if not stated or int(stated[1]) != rounded(core):
        complaints.append(f"the top must state **About {rounded(core)} minutes** ({core:.1f})")
    if rounded(core) > LONGEST_CORE_PATH:
        complaints.append(
            f"the core path must take at most {LONGEST_CORE_PATH} minutes, got {core:.0f}. Tag "
            f"headings of sections that can wait with {ANOTHER_DAY}."
        )
    if (int(more[1]) if more else 0) != rounded(rest):
        complaints.append(f"the top must state about {rounded(rest)} more minutes ({rest:.1f})")
    return complaints


def marked(chapter: Chapter) -> list[str]:
    """A section for another day says so, in its text and in its tag."""
    complaints = []
    for section in sections(chapter, deepest=3)[1:]:
        said = "For another day" in source(section.cells[0])
        if said != (ANOTHER_DAY in tags(section.cells[0])):
            complaints.append(
                f"{section.title!r}: its heading must have both the tag {ANOTHER_DAY} and the "
                "words *For another day*, got one of them. Add the other."
            )
    return complaints


class Names(ast.NodeVisitor):
    """The global names that a cell reads before it binds them, and those that it binds.

    Nodes are visited in the order in which Python evaluates them.
    """

    def __init__(self, cell: str):
        self.read: set[str] = set()
        self.bound: set[str] = set()
        self._local: list[set[str]] = []
        with contextlib.suppress(SyntaxError):  # a magic command
            self.visit(ast.parse(cell))

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self._bind(node.id)
        elif not any(node.id in scope for scope in (self.bound, *self._local)):
            self.read.add(node.id)

    def _bind(self, name: str) -> None:
        (self._local[-1] if self._local else self.bound).add(name)

    def _visit_all(self, *nodes: ast.AST | None) -> None:
        for node in nodes:
            if node is not None:
                self.visit(node)

    def visit_alias(self, node: ast.alias) -> None:
        self._bind((node.asname or node.name).split(".")[0])

    def visit_Assign(self, node: ast.Assign) -> None:
        self._visit_all(node.value, *node.targets)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._visit_all(ast.parse(ast.unparse(node.target)), node.value, node.target)

    def visit_For(self, node: ast.For) -> None:
        self._visit_all(node.iter, node.target, *node.body, *node.orelse)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._bind(node.name)
        self._local.append(set())
        self._visit_all(*node.bases, *node.body)
        self._local.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._bind(node.name)
        inside = [n for n in ast.walk(node) if isinstance(n, ast.Name)]
        assigned = {n.id for n in inside if isinstance(n.ctx, ast.Store)}
        self._in_scope(node.args, assigned, *node.body)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._in_scope(node.args, set(), node.body)

    def _in_scope(self, arguments: ast.arguments, assigned: set[str], *body: ast.AST) -> None:
        self._visit_all(*arguments.defaults, *arguments.kw_defaults)
        parameters = {a.arg for a in ast.walk(arguments) if isinstance(a, ast.arg)}
        self._local.append(parameters | assigned)
        self._visit_all(*body)
        self._local.pop()

    def _comprehension(self, node: Any) -> None:
        self._local.append(set())
        for part in node.generators:
            self._visit_all(part.iter, part.target, *part.ifs)
        results = [getattr(node, name, None) for name in ("key", "value", "elt")]
        self._visit_all(*results)
        self._local.pop()

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension


names = cache(Names)  # by the text of a cell


def skippable(chapter: Chapter) -> list[str]:
    """The core path reads no name that only a section for another day binds."""
    parts = sections(chapter, deepest=3)
    waiting = {
        name
        for section in parts
        if section.another_day
        for cell in section.code
        for name in names(cell).bound
    }
    complaints, there = [], set()
    for section in parts:
        if section.another_day:
            continue
        for cell in section.code:
            found = names(cell)
            if missing := sorted((found.read & waiting) - there):
                first = cell.splitlines()[0]
                complaints.append(f"{section.title!r} ({first}) reads {', '.join(missing)}")
            there |= found.bound
    return complaints


def runs_again(chapter: Chapter) -> list[str]:
    """A section that is run again after later ones finds the names that it read at first."""
    all_sections = sections(chapter)
    complaints = []
    for number, section in enumerate(all_sections):
        own: set[str] = set()
        outer: set[str] = set()
        for cell in section.code:
            found = names(cell)
            outer |= found.read - own
            own |= found.bound
        before = {n for s in all_sections[:number] for c in s.code for n in names(c).bound}
        for later in all_sections[number:]:
            rebound = {n for c in later.code for n in names(c).bound} & outer & before
            if rebound:
                complaints.append(
                    f"{section.title!r} reads {', '.join(sorted(rebound))}, which "
                    f"{later.title!r} binds again"
                )
    return complaints


RULES = [minutes, marked, skippable, runs_again]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
@pytest.mark.parametrize("path", CHAPTERS, ids=lambda path: path.stem)
def test_sections(path, rule: Callable[[Chapter], list[str]]) -> None:
    assert not rule(Chapter.read(path)), rule.__doc__


# ------------------------------------------------------------------------- each rule can fail


def text(words: str, *names: str) -> dict[str, Any]:
    return {"cell_type": "markdown", "source": [words], "metadata": {"tags": list(names)}}


def code(words: str) -> dict[str, Any]:
    return {"cell_type": "code", "source": [words], "outputs": [], "metadata": {}}


TOP = text("# 99 Made\n\n**About 5 minutes** for the core path, and about 10 more for section 2.")
FIRST = [text("## 1. First\n\n" + "word " * 800), code("x = 1")]
WAITS = [text("## 2. Later\n\n*For another day.* " + "word " * 1800, ANOTHER_DAY), code("y = 2")]


def test_a_right_chapter_passes() -> None:
    right = Chapter.of(TOP, *FIRST, *WAITS, text("## 3. Last"), code("z = x + 1"))
    assert [rule(right) for rule in RULES] == [[], [], [], []]


@pytest.mark.parametrize(
    "rule, cells",
    [
        (minutes, [TOP, *FIRST]),
        (minutes, [TOP, *FIRST, *WAITS, *FIRST]),
        (minutes, [TOP, *FIRST, WAITS[0], code("guess = ...\n" * 8)]),
        (minutes, [text("# 99 Made\n\n**About 90 minutes**"), *FIRST * 20]),
        (marked, [TOP, text("## 1. First", ANOTHER_DAY)]),
        (marked, [TOP, text("## 1. First\n\n*For another day.*")]),
        (skippable, [*WAITS, text("## 3. Last"), code("print(y)")]),
        (skippable, [*WAITS, text("### Part"), code("z = 1"), text("## 3. Last"), code("z")]),
        (skippable, [*WAITS, text("## 3. Last"), code("y = y + 1")]),
        (skippable, [*WAITS, text("## 3. Last"), code("print([y for _ in range(3)])")]),
        (runs_again, [*FIRST, text("## 2. Next"), code("x + 1"), text("## 3."), code("x = 2")]),
        (runs_again, [*FIRST, text("## 2. Next"), code("x += 1")]),
        (runs_again, [*FIRST, text("## 2. Next"), code("f(x)\nfor x in y:\n    print(x)")]),
    ],
)
def test_each_rule_can_fail(
    rule: Callable[[Chapter], list[str]], cells: list[dict[str, Any]]
) -> None:
    assert rule(Chapter.of(*cells))
