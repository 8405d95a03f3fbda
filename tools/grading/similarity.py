"""Similar answers, as pairs of students: for the instructor to look at, not as an accusation.

Two answers are the same if they are equal without comments, layout and chosen names. The released
stub is removed first, and so are answers of many students: a short answer often has one form only.
"""

from __future__ import annotations

import ast
import hashlib
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from tools.course.templates import rendered
from tools.grading.student_report import Result, write_table

COLUMNS = ("first", "second", "same", "letter_by_letter", "exercises")
MIN_NODES = 14  # of code: shorter code is often equal by chance
MIN_WORDS = 12  # of prose
# An answer counts if at most RARE students have it, or this fraction of those who answered.
RARE, RARE_FRACTION = 2, 0.1
MAX_PAIRS = 40
# Lines that only Jupyter understands.
MAGIC = re.compile(r"^[ \t]*[%!?].*$|^.*\?[ \t]*$", re.MULTILINE)
COMMENT = re.compile(r"#[^\n]*")


@dataclass(frozen=True)
class SharedAnswer:
    """An answer of two students."""

    exercise: str
    title: str
    state: str
    source: str
    is_exact: bool


@dataclass(frozen=True)
class Pair:
    """Two students with all their equal answers."""

    first: Result
    second: Result
    same: list[SharedAnswer]


class _Rename(ast.NodeTransformer):
    """Replace chosen names by numbers, in the order in which they appear."""

    def __init__(self, chosen: set[str]):
        self.numbers: dict[str, str] = {}
        self.chosen = chosen

    def _number(self, name: str) -> str:
        if name not in self.chosen:
            return name
        return self.numbers.setdefault(name, f"_{len(self.numbers)}")

    def visit_Name(self, node: ast.Name) -> ast.Name:
        return ast.Name(self._number(node.id), ast.Load())

    def visit_arg(self, node: ast.arg) -> ast.arg:
        return ast.arg(self._number(node.arg))

    def _function(self, node: Any) -> Any:
        node.name, node.returns = self._number(node.name), None
        node.body = _without_strings(node.body)
        return self.generic_visit(node)

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        node.name, node.body = self._number(node.name), _without_strings(node.body)
        return self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is None:
            return self.generic_visit(node)
        return self.visit(ast.Assign([node.target], node.value))


def _without_strings(body: list[ast.stmt]) -> list[ast.stmt]:
    """Remove strings that are statements: docstrings, and comments in this form."""
    kept = [
        node
        for node in body
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))
    ]
    return kept or [ast.Pass()]


def _tree(source: str) -> ast.Module | None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(MAGIC.sub("", source))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _chosen(tree: ast.Module) -> set[str]:
    """Return the names that are bound in some code."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
    return found


def _nodes(node: ast.AST) -> int:
    return sum(1 for _ in ast.walk(node) if not isinstance(_, ast.expr_context))


def _statements(tree: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements; those inside of a function or a class instead of it."""
    for node in _without_strings(tree.body):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _statements(ast.Module(node.body, []))
        elif not isinstance(node, ast.Import | ast.ImportFrom | ast.Pass):
            yield node


def normal_form(source: str, stubs: Iterable[str] = ()) -> str | None:
    """Return a hash, the same for equal code; None for code that is too short.

    Args:
        source: of an answer.
        stubs: the released cells.
    """
    tree = _tree(source)
    if tree is None:
        return _normal_words(source)
    given = set()
    for stub in stubs:
        if (handed := _tree(stub)) is not None:
            given |= {ast.dump(node) for node in _statements(handed)}
    left = [node for node in _statements(tree) if ast.dump(node) not in given]
    if sum(map(_nodes, left)) < MIN_NODES:
        return None
    renamed = _Rename(_chosen(tree))
    dumped = ast.dump(renamed.visit(ast.Module(left, [])))
    return hashlib.sha256(dumped.encode()).hexdigest()


def _normal_words(text: str, given: Iterable[str] = ()) -> str | None:
    words = re.findall(r"\w+", text.casefold())
    for stub in given:
        known = re.findall(r"\w+", stub.casefold())
        if words[: len(known)] == known:
            words = words[len(known) :]
    if len(words) < MIN_WORDS:
        return None
    return hashlib.sha256(" ".join(words).encode()).hexdigest()


def _answers(
    result: Result, stubs: dict[str, list[str]]
) -> Iterator[tuple[str, str, SharedAnswer]]:
    """Yield the hashes of a student's answers, by exercise."""
    for grade in (e for m in result.grades for e in m.exercises if e.written):
        for cell in grade.cells:
            text, given = cell["source"], stubs.get(grade.id, [])
            if text.strip() in (stub.strip() for stub in given):
                continue
            if cell["kind"] == "code":  # the code, and its comments
                comments = "\n".join(
                    line for line in COMMENT.findall(text) if line not in str(given)
                )
                hashes = {normal_form(text, given), _normal_words(comments)}
            else:
                hashes = {_normal_words(text, given)}
            for digest in filter(None, hashes):
                yield (
                    grade.id,
                    digest,
                    SharedAnswer(grade.id, grade.title, grade.result.state, text.strip(), True),
                )


def pairs_of(results: list[Result], stubs: dict[str, list[str]]) -> list[Pair]:
    """Return the pairs with shared answers, those with most of them first.

    Args:
        results: of each student.
        stubs: the released sources of answer cells, by exercise.
    """
    found: dict[tuple[str, str], dict[int, SharedAnswer]] = {}
    answered: dict[str, set[int]] = {}
    for place, result in enumerate(results):
        for exercise, digest, same in _answers(result, stubs):
            found.setdefault((exercise, digest), {}).setdefault(place, same)
            answered.setdefault(exercise, set()).add(place)
    common: dict[tuple[int, int], list[SharedAnswer]] = {}
    for (exercise, _), writers in found.items():
        if len(writers) > max(RARE, RARE_FRACTION * len(answered[exercise])):
            continue
        for one, two in combinations(sorted(writers), 2):
            first, second = writers[one], writers[two]
            is_exact = first.source == second.source
            state = first.state if first.state == second.state else "with different verdicts"
            same = SharedAnswer(exercise, first.title, state, first.source, is_exact)
            shared = common.setdefault((one, two), [])
            if not any((s.exercise, s.source) == (exercise, first.source) for s in shared):
                shared.append(same)
    pairs = [
        Pair(results[one], results[two], sorted(same, key=lambda s: s.exercise))
        for (one, two), same in common.items()
    ]
    return sorted(pairs, key=lambda p: (-len(p.same), -sum(s.is_exact for s in p.same)))


def write(folder: Path, results: list[Result], stubs: dict[str, list[str]]) -> None:
    """Write same.html and same.csv.

    Args:
        folder: a new folder; its `feedback/` holds the pages of the students.
        results: of each student.
        stubs: see `pairs_of`.
    """
    pairs = pairs_of(results, stubs)
    lines = [
        [
            pair.first.student.name,
            pair.second.student.name,
            len(pair.same),
            sum(same.is_exact for same in pair.same),
            "; ".join(dict.fromkeys(same.exercise for same in pair.same)),
        ]
        for pair in pairs
    ]
    write_table(folder / "same.csv", COLUMNS, lines)
    usual = max(RARE, int(RARE_FRACTION * len(results))) + 1
    page = rendered("grading/templates/same.html", pairs=pairs, most=MAX_PAIRS, usual=usual)
    (folder / "same.html").write_text(page, encoding="utf-8", errors="replace")
