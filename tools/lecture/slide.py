"""A slide and its elements."""

from __future__ import annotations

from dataclasses import dataclass, field

from tools.course.registry import Chapter

ROOM = 557  # height of a slide below its heading, on a screen of 1280 x 720
LARGER, WIDEST = 1.18, 76  # larger text if everything fits: factor, and columns of code
FULL = 620  # height with text smaller by a tenth, to keep code and its output together


@dataclass
class Element:
    """One element of a slide.

    Args:
        kind: of `prose.Block`, or "code", "question", "answer", "output", "picture", "explorer".
        content: markdown, code, text or HTML.
        height: an upper estimate, in CSS pixels.
        step: whether it appears only after the next key.
    """

    kind: str
    content: str
    height: int
    step: bool = False


@dataclass
class Slide:
    """One slide.

    Args:
        kind: its purpose, see `course.cells`.
        heading: of its section, or of a part of it.
        parts: the elements from top to bottom.
        cells: indices of its cells in the notebook.
        notes: speaker notes, as markdown.
    """

    kind: str
    heading: str
    parts: list[Element] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def height(self) -> int:
        return sum(part.height for part in self.parts)

    @property
    def size(self) -> str:
        """The size of its text: "roomy", "tight" or "" for the default."""
        if self.height > ROOM:
            return "tight"
        return "roomy" if self._roomy else ""

    @property
    def _roomy(self) -> bool:
        lines = [
            n for p in self.parts if p.kind in ("code", "output") for n in p.content.split("\n")
        ]
        return self.height * LARGER <= ROOM and max(map(len, lines), default=0) <= WIDEST

    def fits(self, *parts: Element, room: int = ROOM) -> bool:
        return self.height + sum(part.height for part in parts) <= room

    def add(self, place: int, *parts: Element) -> None:
        """Add elements of a cell; after a step, every element is a step."""
        for part in parts:
            part.step = part.step or any(other.step for other in self.parts)
            self.parts.append(part)
        if place not in self.cells:
            self.cells.append(place)


@dataclass
class Deck:
    """The slides of a chapter, a list for each section."""

    chapter: Chapter
    sections: list[list[Slide]]

    @property
    def slides(self) -> list[Slide]:
        return [slide for section in self.sections for slide in section]
