"""What a slide is, and how much stands on it."""

from __future__ import annotations

from dataclasses import dataclass, field

from tools.course.registry import Chapter

ROOM = 557  # the height of a slide below its heading, in points of a screen of 1280 x 720
LARGER, WIDEST = 1.18, 76  # where all fits so, letters are larger: how much; columns of code
FULL = 620  # what fits in letters smaller by a tenth, where code and its output stay together so


@dataclass
class Part:
    """What stands on a slide, from top to bottom.

    Args:
        kind: of `prose.Block`, or "code", "question", "answer", "output", "picture", "explorer".
        content: markdown, code, text or HTML.
        height: in points of the screen, generously.
        step: it is seen after the next key only.
    """

    kind: str
    content: str
    height: int
    step: bool = False


@dataclass
class Slide:
    """One slide.

    Args:
        kind: what it is for, as `course.cells` calls it.
        heading: of its section, or of a part of it.
        parts: from top to bottom.
        cells: the places in the notebook of what it shows.
        notes: what the instructor reads, as markdown.
    """

    kind: str
    heading: str
    parts: list[Part] = field(default_factory=list)
    cells: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def height(self) -> int:
        return sum(part.height for part in self.parts)

    @property
    def size(self) -> str:
        """How large its letters are: "roomy", "tight" or "" for the usual ones."""
        if self.height > ROOM:
            return "tight"
        return "roomy" if self._roomy else ""

    @property
    def _roomy(self) -> bool:
        lines = [
            n for p in self.parts if p.kind in ("code", "output") for n in p.content.split("\n")
        ]
        return self.height * LARGER <= ROOM and max(map(len, lines), default=0) <= WIDEST

    def fits(self, *parts: Part, room: int = ROOM) -> bool:
        return self.height + sum(part.height for part in parts) <= room

    def add(self, place: int, *parts: Part) -> None:
        """Place parts of a cell below; behind a step, everything is a step."""
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
