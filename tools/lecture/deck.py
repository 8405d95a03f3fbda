"""The slides of a chapter: their order, content and steps.

Text makes slides of kind "why"; its last line before a code cell leads into that cell. A code cell
shows its code and, in the next step, its output, so that the class predicts first. A guess shows
its question, then the answer in a step. Code that only draws is hidden. Cells that fit together
share a slide. Imports are left out.
"""

from __future__ import annotations

import ast
import json
import re

from tools.course.cells import ASKING, Kind, asks, called, is_literal, kind, only_draws, parsed
from tools.course.notebook import Cell, source
from tools.course.registry import Chapter
from tools.lecture import drawings, prose
from tools.lecture.slide import FULL, ROOM, Deck, Element, Slide
from tools.lecture.slide_outputs import Output, outputs
from tools.lecture.speaker_notes import write_notes
from tools.lecture.wrong_answers import exercises

CODE_LINE, CODE_FRAME = 27, 44  # height of a line of code, and of the box around it
LONG_CODE = 19  # lines that fit
LEAD = 150  # maximal height of a text above the code that it leads into


def deck(chapter: Chapter) -> Deck:
    """Return the slides of a chapter from its notebook."""
    cells = json.loads(chapter.notebook.read_text(encoding="utf-8"))["cells"]
    maker = _Maker(chapter.title)
    for index, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            maker.code(index, cell)
        else:
            maker.text(index, source(cell), leads=_is_code(cells[index + 1 : index + 2]))
    made = Deck(chapter, maker.sections)
    write_notes(made, cells, exercises(chapter))
    return made


def _is_code(cells: list[Cell]) -> bool:
    return any(c["cell_type"] == "code" and kind(c) is not Kind.SETUP for c in cells)


class _Maker:
    """Go through the cells and place them on slides."""

    def __init__(self, title: str):
        self.heading = title
        self.sections: list[list[Slide]] = []
        # Index, text before the next code, its full text.
        self.lead: list[tuple[int, Element, str]] = []
        self.last = -2  # index of the last cell of code

    def slide(self, kind: str) -> Slide:
        """Begin a slide in the current section."""
        made = Slide(kind, self.heading)
        self.sections[-1].append(made)
        return made

    @property
    def now(self) -> Slide | None:
        return self.sections[-1][-1] if self.sections and self.sections[-1] else None

    def room(self, kind: str, *parts: Element) -> Slide:
        """Return the current slide if it has this kind, this heading and space; else a new one."""
        now = self.now
        if now and now.kind == kind and now.heading == self.heading and now.fits(*parts):
            return now
        return self.slide(kind)

    def last_code(self, index: int, part: Element) -> Slide | None:
        """Return the slide of the code just before a text that explains its output.

        The text becomes its last step. Return None without space, or if a new heading begins.
        """
        now = self.now
        if not now or self.last != index - 1 or now.heading != self.heading or not now.fits(part):
            return None
        if now.kind in (Kind.WHY, Kind.EXPLORER):
            return None
        part.step = True
        return now

    # ---------------------------------------------------------------------------------- text

    def text(self, index: int, text: str, leads: bool) -> None:
        found = prose.blocks(text)
        kind = Kind.TITLE if not self.sections else Kind.WHY
        for number, block in enumerate(found):
            if block.kind == "heading":
                self.open(block)
                kind = Kind.TITLE if block.level == 1 else Kind.WHY
                continue
            if kind is Kind.TITLE and number == 3:
                self.slide(kind)  # the goals are the only text below the title
            if leads and block is found[-1] and block.kind == "paragraph":
                part = _element(block)
                if part.height <= LEAD:
                    self.lead = [(index, part, block.text)]
                    continue
            self.put(kind, index, block)

    def open(self, block: prose.Block) -> None:
        self.flush()
        first = block.level <= 2
        # A subsection at the start of a section gets the name of the section as a prefix.
        whole = first or self.sections[-1]
        self.heading = block.text if whole else f"{self.heading}: {block.text}"
        if first:
            self.sections.append([])

    def put(self, kind: str, index: int, block: prose.Block) -> None:
        """Place a block on the current slide, or on a new one if it does not fit."""
        if block.kind == "folded":
            self.fold(kind, index, block)
            return
        if block.kind == "picture":
            for half in drawings.halves(prose.PICTURE.fullmatch(block.text)):
                self.slide(Kind.PICTURE).add(index, Element("drawing", half, ROOM))
            return
        for piece in _split(block):
            part = _element(piece)
            slide = self.last_code(index, part) or self.room(kind, part)
            slide.add(index, part)
            if part.content != piece.text:
                slide.notes.append(piece.text)

    def fold(self, kind: str, index: int, block: prose.Block) -> None:
        """Place folded text as a step after its title."""
        title = Element("paragraph", f"**{block.title}**", 54)
        inner = [_element(b, step=True) for b in prose.blocks(block.text)]
        slide = self.room(kind, title, inner[0])
        slide.add(index, title)
        slide.notes.append(block.text)
        for part in inner:
            slide = slide if slide.fits(part) else self.slide(kind)
            slide.add(index, part)

    def flush(self) -> None:
        """Place the lines that would have led into code on a separate slide."""
        for index, part, whole in self.lead:
            slide = self.room(Kind.WHY, part)
            slide.add(index, part)
            if part.content != whole:
                slide.notes.append(whole)
        self.lead = []

    # ---------------------------------------------------------------------------------- code

    def code(self, index: int, cell: Cell) -> None:
        what = kind(cell)
        if what is Kind.SETUP:
            self.flush()
            return
        shown = outputs(cell)
        first = self._code_parts(what, cell)
        rest = [part for output in shown for part in _parts(output)]
        if what is Kind.PREDICT:
            first += _questions(cell)
        lead = [part for _, part, _ in self.lead]
        whole = [*lead, *first, *rest]
        joins = self._joins(index, what, whole)
        if joins:
            slide = self.now
            slide.kind = what if slide.kind in (Kind.WHY, Kind.CODE) else slide.kind
            self._put_lead(slide)
        else:
            if lead and _height([*lead, *first[:1]]) > ROOM:
                self.flush()
            slide = self.slide(what)
            self._put_lead(slide)
        room = FULL if first and rest and slide.fits(*first, *rest, room=FULL) else ROOM
        for part in first:
            if slide.parts and not slide.fits(part, room=room):
                slide = self.slide(what)
            slide.add(index, part)
        for part in rest:
            alone = part.kind == "explorer" or slide.kind == Kind.EXPLORER
            if slide.parts and (alone or not slide.fits(part, room=room)):
                slide = self.slide(what)
            part.step = bool(slide.parts) and part.kind != "explorer"
            slide.add(index, part)
        if not (first or rest):
            self.sections[-1].remove(slide)
        if only_draws(cell) and not first:
            slide.notes.append("The code only draws computed values; it is not on the slide.")
        self.last = index

    def _put_lead(self, slide: Slide) -> None:
        for index, part, whole in self.lead:
            slide.add(index, part)
            if part.content != whole:
                slide.notes.append(whole)
        self.lead = []

    def _joins(self, index: int, what: Kind, parts: list[Element]) -> bool:
        """Return whether code continues the current slide after text or other code."""
        now = self.now
        if not now or now.heading != self.heading or not now.fits(*parts):
            return False
        if now.kind == Kind.WHY:
            return not any(part.step for part in now.parts)
        follows = self.last == index - 1 and not self.lead
        if follows and now.kind == Kind.PREDICT:
            return all(part.kind == "answer" for part in parts)
        drawn = any(part.kind == "drawing" for part in now.parts)
        alone = (Kind.PREDICT, Kind.EXPLORER, Kind.TITLE)
        return follows and not drawn and now.kind not in alone and what not in alone[:2]

    def _code_parts(self, what: Kind, cell: Cell) -> list[Element]:
        if what in (Kind.PICTURE, Kind.EXPLORER) and only_draws(cell):
            return []
        lines = _to_show(cell).split("\n")
        return [Element("code", text, _box(text)) for text in _cut(lines) if text.strip()]


def _element(block: prose.Block, step: bool = False) -> Element:
    """Return the element of a block; a long paragraph is shortened."""
    content = prose.shortened(block.text) if block.kind == "paragraph" else block.text
    height = prose.height(prose.Block(block.kind, content))
    return Element(block.kind, content, height, step)


def _height(parts: list[Element]) -> int:
    return sum(part.height for part in parts)


def _parts(output: Output) -> list[Element]:
    """Return an output in elements that fit; what is not text is scaled down if necessary."""
    if output.kind not in ("text", "answer") or "\n" not in output.content:
        high = output.height or CODE_LINE + CODE_FRAME
        kind = "output" if output.kind == "text" else output.kind
        return [Element(kind, output.content, min(high, ROOM))]
    kind = "output" if output.kind == "text" else "answer"
    return [Element(kind, text, _box(text)) for text in _cut(output.content.split("\n"))]


def _box(text: str) -> int:
    return CODE_LINE * (text.count("\n") + 1) + CODE_FRAME


def _split(block: prose.Block) -> list[prose.Block]:
    """Split a list or a table that is too high into blocks that fit."""
    if block.kind not in ("list", "table") or prose.height(block) <= ROOM:
        return [block]
    if block.kind == "table":
        head, lines = block.text.split("\n")[:2], block.text.split("\n")[2:]
    else:
        head, lines = [], [i for i in re.split(rf"(?m)^(?={prose.ITEM.pattern})", block.text) if i]
    found: list[list[str]] = [[]]
    for line in lines:
        longer = prose.Block(block.kind, "\n".join([*head, *found[-1], line.rstrip()]))
        if found[-1] and prose.height(longer) > ROOM:
            found.append([])
        found[-1].append(line.rstrip())
    return [prose.Block(block.kind, "\n".join([*head, *lines])) for lines in found]


def _to_show(cell: Cell) -> str:
    """Return the code of a cell without the guess and without a literal answer."""
    lines = source(cell).split("\n")
    hidden: set[int] = set()
    statements = parsed(cell)
    calls = (statement.value for statement in statements if _only_compares(statement))
    compared = {a.id for call in calls for a in call.args if isinstance(a, ast.Name)}
    for statement in statements:
        answers = is_literal(statement) and ast.unparse(statement.targets[0]) in compared
        if asks(statement) or _only_compares(statement) or answers:
            hidden.update(range(statement.lineno - 1, statement.end_lineno))
    return "\n".join(line for n, line in enumerate(lines) if n not in hidden).strip("\n")


def _only_compares(statement: ast.stmt) -> bool:
    """Return whether a statement compares a guess with a value from above."""
    call = statement.value if isinstance(statement, ast.Expr) else None
    return called(statement) in ASKING and all(
        isinstance(argument, ast.Name | ast.Attribute) for argument in call.args
    )


def _questions(cell: Cell) -> list[Element]:
    """Return the questions of guesses: the comments after the dots."""
    found = []
    for statement in parsed(cell):
        line = source(cell).split("\n")[statement.end_lineno - 1]
        if asks(statement) and "#" in line:
            text = line.partition("#")[2].strip()
            found.append(Element("question", text, 38 * prose.rows(text, 76) + 46))
    return found


def _cut(lines: list[str]) -> list[str]:
    """Split long code at empty lines or statements, into parts of nearly equal length."""
    if len(lines) <= LONG_CODE:
        return ["\n".join(lines)]
    count = -(-len(lines) // LONG_CODE)
    goal = len(lines) / count

    def cost(n: int) -> float:
        indent = len(lines[n]) - len(lines[n].lstrip())
        before = "\n".join(lines[:n])
        inside = sum(map(before.count, "([{")) > sum(map(before.count, ")]}"))
        return abs(n - goal) + indent - 6 * (not lines[n - 1].strip()) + 50 * inside

    low = max(2, len(lines) - LONG_CODE * (count - 1))
    index = min(range(low, LONG_CODE + 1), key=cost)
    rest = lines[index:] if lines[index].strip() else lines[index + 1 :]
    return ["\n".join(lines[:index]).rstrip(), *_cut(rest)]
