"""Changes a solution in one place at a time: a check that still says "right" has a hole.

Every operator, comparison, constant, axis letter, call, keyword and index of a solution is changed
once. A mutant that the check accepts must stand in the bank as equivalent, with the reason.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from exercise_bank import MASTERS, Bank, OverBudget, Task, bank, tasks

from tools.commands import parse_arguments
from tools.course.source_notebooks import BEGIN, END

OPERATORS = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "*",
    ast.Mod: "//",
    ast.Pow: "*",
    ast.BitAnd: "|",
    ast.BitOr: "&",
    ast.BitXor: "&",
}
COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
}
WORDS = {"sum": "mean", "mean": "sum", "max": "min", "min": "max", "any": "all", "all": "any"}
CALLS = {"tril": "triu", "triu": "tril", "any": "all", "all": "any", "amax": "amin"}
CALLS |= {"amin": "amax", "argmax": "argmin", "argmin": "argmax", "sum": "mean", "mean": "sum"}
CALLS |= {"var": "std", "std": "var", "relu": "gelu", "ones": "zeros", "zeros": "ones"}


@dataclass(frozen=True)
class Mutant:
    """One change of a solution.

    Args:
        name: the changed line before and after, which is how the bank lists it.
        text: the whole solution with the change.
    """

    name: str
    text: str


def mutants(solution: str) -> Iterator[Mutant]:
    """Give every mutant of the parts of a solution that stand between its marks."""
    lines = solution.splitlines(keepends=True)
    starts = [0]
    for line in lines:
        starts.append(starts[-1] + len(line.encode()))
    inside = set()
    within = False
    for number, line in enumerate(lines, start=1):
        within = (within or BEGIN in line) and END not in line
        if within and BEGIN not in line:
            inside.add(number)
    raw = solution.encode()
    seen = {solution}

    def place(line: int, column: int) -> int:
        return starts[line - 1] + column

    for node in ast.walk(ast.parse(solution)):
        if getattr(node, "lineno", 0) not in inside:
            continue
        for first, last, new in changes(node, place):
            text = (raw[:first] + new.encode() + raw[last:]).decode()
            if text in seen:
                continue
            seen.add(text)
            try:
                compile(text, "mutant", "exec")
            except SyntaxError:
                continue
            yield Mutant(_name(solution, text), text)


def _name(old: str, new: str) -> str:
    """The lines that differ, before and after."""
    one, other = old.splitlines(), new.splitlines()
    while one and other and one[0] == other[0]:
        one, other = one[1:], other[1:]
    while one and other and one[-1] == other[-1]:
        one, other = one[:-1], other[:-1]
    before, after = (" ".join(line.strip() for line in lines) for lines in (one, other))
    return f"{before} => {after}"


def changes(node: ast.AST, place) -> Iterator[tuple[int, int, str]]:
    """Give (first byte, last byte, new text) for each change of one node."""

    def span(part: ast.AST) -> tuple[int, int]:
        return (
            place(part.lineno, part.col_offset),
            place(part.end_lineno, part.end_col_offset),
        )

    def text(part: ast.AST) -> str:
        return f"({ast.unparse(part)})"

    if isinstance(node, ast.BinOp):
        left, right = text(node.left), text(node.right)
        if isinstance(node.op, ast.MatMult):
            yield *span(node), f"{right} @ {left}"
        elif type(node.op) in OPERATORS:
            yield *span(node), f"{left} {OPERATORS[type(node.op)]} {right}"
        yield *span(node), left
        yield *span(node), right
    elif isinstance(node, ast.AugAssign) and type(node.op) in OPERATORS:
        target, value = ast.unparse(node.target), ast.unparse(node.value)
        yield *span(node), f"{target} {OPERATORS[type(node.op)]}= {value}"
        yield *span(node), f"{target} = {value}"
    elif isinstance(node, ast.BoolOp):
        word = " or " if isinstance(node.op, ast.And) else " and "
        yield *span(node), word.join(text(value) for value in node.values)
    elif isinstance(node, ast.UnaryOp):
        if isinstance(node.op, ast.USub) and isinstance(node.operand, ast.Constant):
            yield *span(node), f"-{node.operand.value + 1}"
        yield *span(node), text(node.operand)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        if type(node.ops[0]) in COMPARISONS:
            word = COMPARISONS[type(node.ops[0])]
            yield *span(node), f"{text(node.left)} {word} {text(node.comparators[0])}"
    elif isinstance(node, ast.IfExp):
        yield *span(node), text(node.body)
        yield *span(node), text(node.orelse)
    elif isinstance(node, ast.Constant):
        for new in constants(node.value):
            yield *span(node), new
    elif isinstance(node, ast.Subscript) or getattr(node, "attr", "") in ("T", "mT"):
        yield *span(node), text(node.value)
    elif isinstance(node, ast.Call):
        yield from calls(node, span, text)


def constants(value: object) -> Iterator[str]:
    """Give the changes of one constant."""
    if isinstance(value, bool):
        yield str(not value)
    elif isinstance(value, int):
        yield str(value + 1)
        yield str(value - 1)
    elif isinstance(value, float):
        yield repr(value * 2 if value else 1.0)
        yield repr(value + 1)
    elif isinstance(value, str):
        if value in WORDS:
            yield repr(WORDS[value])
        elif "->" in value or re.fullmatch(r"\w( \w)+", value):
            yield from map(repr, patterns(value))


def patterns(pattern: str) -> Iterator[str]:
    """Give a pattern with two letters of its result exchanged, or one of an input renamed."""
    left, arrow, right = pattern.rpartition("->")
    letters = list(dict.fromkeys(re.findall(r"[A-Za-z]\w*", right)))
    for one, other in pairwise(letters):
        swapped = {one: other, other: one}
        yield left + arrow + re.sub(r"[A-Za-z]\w*", lambda m, s=swapped: s.get(m[0], m[0]), right)
    if "," in left:
        first, *others = left.split(",")
        inner = [x for x in dict.fromkeys(re.findall(r"[A-Za-z]\w*", first))]
        for one, other in pairwise(inner):
            swapped = {one: other, other: one}
            changed = re.sub(r"[A-Za-z]\w*", lambda m, s=swapped: s.get(m[0], m[0]), first)
            yield ",".join([changed, *others]) + arrow + right


def calls(node: ast.Call, span, text) -> Iterator[tuple[int, int, str]]:
    """Give the changes of one call: left out, renamed, arguments exchanged, a keyword dropped."""
    function = node.func
    if isinstance(function, ast.Attribute):
        yield *span(node), text(function.value)
    if node.args and not isinstance(node.args[0], ast.Starred | ast.GeneratorExp):
        yield *span(node), text(node.args[0])
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    if name in CALLS:
        first, last = span(function)
        yield last - len(name), last, CALLS[name]
    plain = [a for a in node.args if not isinstance(a, ast.Starred)]
    for one, other in pairwise(plain):
        (first, _), (_, last) = span(one), span(other)
        yield first, last, f"{ast.unparse(other)}, {ast.unparse(one)}"
    for keyword in node.keywords:
        if keyword.arg:
            less = [k for k in node.keywords if k is not keyword]
            call = ast.Call(func=function, args=node.args, keywords=less)
            yield *span(node), ast.unparse(call)


@dataclass
class Outcome:
    """What became of the mutants of one exercise.

    Args:
        made: all of them.
        accepted: names of those that the check calls right, or that do not end, and the bank does
            not list.
        equivalent: names of those that the check calls right, and the bank lists.
        idle: names in the bank that no mutant has, or that the check refuses.
    """

    made: int
    accepted: list[str]
    equivalent: list[str]
    idle: list[str]


def outcome(task: Task, answers: Bank) -> Outcome:
    """Judges every mutant of one exercise."""
    made, right = 0, []
    for mutant in mutants(task.solution):
        if any(part not in mutant.text for part in answers.kept):
            continue
        made += 1
        try:
            state = task.judge(mutant.text, explain=False).state
        except (Exception, SystemExit):
            continue  # it does not even run: the student sees that without a check
        except OverBudget:
            state = "right"  # nobody knows: what does not end is not refused
        if state == "right":
            right.append(mutant.name)
    same = [name for name in right if any(covers(line, name) for line in answers.equivalent)]
    return Outcome(
        made,
        [name for name in right if name not in same],
        same,
        [line for line in answers.equivalent if not any(covers(line, name) for name in same)],
    )


def covers(listed: str, name: str) -> bool:
    """Say whether an entry of the bank means a mutant: "line => ..." means all of that line."""
    return name.startswith(listed[:-3]) if listed.endswith("=> ...") else name == listed


def main() -> None:
    chosen = parse_arguments("mutants", sys.argv[1:]).chapters
    rows, bad = [], 0
    for path in MASTERS:
        chapter = path.name[:2]
        if chosen and chapter not in chosen:
            continue
        answers = bank(chapter)
        for id, task in tasks(path).items():
            found = outcome(task, answers[id])
            rows.append((id, len(answers[id].wrong), found))
            print(
                f"{id}  wrong answers {len(answers[id].wrong):3}   mutants {found.made:4}   "
                f"equivalent {len(found.equivalent):2}   accepted {len(found.accepted)}",
                flush=True,
            )
            for name in found.accepted:
                print(f"      accepted: {name}")
            for name in found.idle:
                print(f"      listed as equivalent, but refused or not made: {name}")
            bad += len(found.accepted) + len(found.idle)
    made = sum(found.made for *_, found in rows)
    same = sum(len(found.equivalent) for *_, found in rows)
    passed = sum(len(found.accepted) for *_, found in rows)
    if made > same:
        print(
            f"{len(rows)} exercises, {sum(n for _, n, _ in rows)} wrong answers, {made} mutants, "
            f"{same} of them equivalent; of the others {(made - same - passed) / (made - same):.1%}"
            " caught"
        )
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
