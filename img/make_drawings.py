"""Draw every picture of the course as SVG, beside this file, and the table of them in README.md.

    python img/make_drawings.py

Plain Python, no packages, no randomness: the same script writes the same bytes. The sizes of the
running examples come from docs/ledger.md; `drawings()` returns what is drawn, so that a test can
compare it with the files. Axis letters are the course's: b batch, c channels,
gh gw grid, ph pw inside a patch, n tokens, e token width, h heads, d width of one head, i query,
j key, m inner width, k classes, v pieces of the vocabulary; between two texts i counts the tokens
of the target, which ask, and j those of the source.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import NamedTuple

# --- the running examples ------------------------------------------------------------------------


class Step(NamedTuple):
    """One step of docs/ledger.md."""

    shapes: list[tuple[int, ...]]
    parameters: str

    @property
    def counts(self) -> list[str]:
        return re.findall(r"\d[\d,]*", self.parameters)


def read_ledger() -> dict[str, Step]:
    """Return the steps of docs/ledger.md, which `make readme` writes."""
    page = Path(__file__).resolve().parent.parent / "docs" / "ledger.md"
    row = re.compile(r"^\| (.+?) \| (\(.+?) \| ?(.*?) ?\|$", re.MULTILINE)
    return {
        step: Step([ast.literal_eval(s) for s in re.findall(r"\(.*?\)", shapes)], parameters)
        for step, shapes, parameters in row.findall(page.read_text(encoding="utf-8"))
    }


LEDGER = read_ledger()
BATCH, IN_CHANNELS, IMAGE_SIZE, _ = LEDGER["photographs, channels first"].shapes[0]
_, PATCHES, PATCH_DIM = LEDGER["patches of 16 x 16"].shapes[0]  # gh * gw, c * ph * pw
_, NUM_HEADS, TOKENS, HEAD_DIM = LEDGER["queries, keys, values, 8 heads"].shapes[0]
EMBED_DIM = NUM_HEADS * HEAD_DIM  # e; equal to PATCH_DIM here by coincidence
GRID = math.isqrt(PATCHES)  # gh = gw
PATCH_SIZE = IMAGE_SIZE // GRID
NUM_LAYERS = 12
(BLOCK_PARAMS,) = LEDGER["encoder block"].counts
_, ATTENTION_PARAMS = LEDGER["heads joined, projected"].counts

# The base model of the original Transformer; the longest sentence of each language.
PAIRS, SOURCE_TOKENS = LEDGER["sources, as ids"].shapes[0]  # b and j
_, TARGET_TOKENS, TEXT_DIM = LEDGER["decoder block"].shapes[0]  # i and e
TEXT_LAYERS = 6  # on each side
(DECODER_BLOCK_PARAMS,) = LEDGER["decoder block"].counts
_, TEXT_ATTENTION_PARAMS = LEDGER["joined, projected"].counts

# --- the look: lightness and hatching carry the meaning, hue only repeats it ---------------------

WIDTH = 960
MIN_SIZE = 16  # 13 px where a notebook shows the drawing 800 px wide
SANS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"

CARD, EDGE = "#fbf9f4", "#b9b2a3"
INK, MUTED, WHITE = "#1b232e", "#475261", "#ffffff"
LIGHT, MID, DARK = "#e4eef7", "#9dc0e0", "#2a5784"  # tensors; white text on DARK
LEARNED, LEARNED_HATCH = "#fbe3b4", "#8a5c10"
PANEL = "#f0ece2"
ALLOWED, BLOCKED = "#ffedb0", "#2b3442"

Point = tuple[float, float]


def number(value: float) -> str:
    """Write a coordinate with at most two decimals."""
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def text_width(text: str, size: float, mono: bool = False, bold: bool = False) -> float:
    """Estimate a width from above: the widest common fonts are those of DejaVu and Verdana."""
    return len(text) * size * (0.61 if mono else 0.66 if bold else 0.6)


class Drawing:
    """Collect SVG elements on a light card that stays readable on any page colour."""

    def __init__(self, name: str, height: float, title: str, alt: str) -> None:
        self.name = name
        self.height = height
        self.title = title
        self.alt = alt
        self.parts: list[str] = []

    def add(self, tag: str, body: str | None = None, **attributes: str | float) -> None:
        """Append one element; `stroke_width=2` becomes stroke-width="2"."""
        pairs = (
            f'{key.rstrip("_").replace("_", "-")}="'
            f'{escape(value) if isinstance(value, str) else number(value)}"'
            for key, value in attributes.items()
        )
        head = " ".join([tag, *pairs])
        self.parts.append(f"<{head}/>" if body is None else f"<{head}>{body}</{tag}>")

    def rect(
        self, x: float, y: float, w: float, h: float, fill: str = "none", line: str = INK,
        stroke: float = 1.5, round_: float = 0, dash: str = "", hatch: str = "",
    ) -> None:  # fmt: skip
        """Draw a rectangle, hatched in the colour `hatch` when that is given."""
        extra: dict[str, str | float] = {"stroke_dasharray": dash} if dash else {}
        self.add(
            "rect", x=x, y=y, width=w, height=h, rx=round_, fill=fill,
            stroke=line if stroke else "none", stroke_width=stroke, **extra,
        )  # fmt: skip
        if hatch:
            self.hatch(x, y, w, h, hatch)

    def hatch(self, x: float, y: float, w: float, h: float, color: str, step: float = 6) -> None:
        """Draw rising diagonals inside a rectangle, as plain lines (no ids that could collide)."""
        path = []
        offset = step
        while offset < w + h:
            start = (x + max(0, offset - h), y + min(h, offset))
            end = (x + min(w, offset), y + max(0, offset - w))
            path.append(f"M{number(start[0])} {number(start[1])}L{number(end[0])} {number(end[1])}")
            offset += step
        self.add("path", d="".join(path), stroke=color, stroke_width=1.3, fill="none")

    def text(
        self, x: float, y: float, text: str, size: float = MIN_SIZE, anchor: str = "start",
        fill: str = INK, mono: bool = False, bold: bool = False, halo: str = "", room: float = 0,
    ) -> None:  # fmt: skip
        """Write one line whose baseline is y; `room` is the width it must not leave."""
        if size < MIN_SIZE:
            raise ValueError(
                f"text: size must be at least {MIN_SIZE}, got size={size}. Enlarge it."
            )
        left = x - {"start": 0.0, "middle": 0.5, "end": 1.0}[anchor] * text_width(
            text, size, mono, bold
        )
        right = left + text_width(text, size, mono, bold)
        if left < 12 or right > WIDTH - 12 or (room and right - left > room):
            raise ValueError(
                f"text: must fit with slack, got text={text!r} from {left:.0f} to {right:.0f} "
                f"with room={room:.0f}. Shorten it."
            )
        extra: dict[str, str | float] = {"font_weight": "bold"} if bold else {}
        if halo:
            extra |= {"stroke": halo, "stroke_width": 4, "paint_order": "stroke"}
            extra |= {"stroke_linejoin": "round"}
        self.add(
            "text", escape(text, quote=False), x=x, y=y, font_family=MONO if mono else SANS,
            font_size=size, text_anchor=anchor, fill=fill, **extra,
        )  # fmt: skip

    def line(
        self, points: Sequence[Point], stroke: float = 2, color: str = INK, dash: str = ""
    ) -> None:
        """Draw an open line through the points."""
        extra: dict[str, str | float] = {"stroke_dasharray": dash} if dash else {}
        joined = " ".join(f"{number(x)},{number(y)}" for x, y in points)
        self.add(
            "polyline", points=joined, fill="none", stroke=color, stroke_width=stroke,
            stroke_linejoin="round", **extra,
        )  # fmt: skip

    def arrow(
        self, points: Sequence[Point], stroke: float = 2, color: str = INK, dash: str = ""
    ) -> None:
        """Draw a line through the points whose head ends exactly at the last one."""
        (x0, y0), (x1, y1) = points[-2], points[-1]
        length = math.hypot(x1 - x0, y1 - y0)
        ux, uy = (x1 - x0) / length, (y1 - y0) / length
        size = 7 + 1.6 * stroke
        back = (x1 - ux * size, y1 - uy * size)
        half = size * 0.5
        head = [(x1, y1), (back[0] - uy * half, back[1] + ux * half)]
        head.append((back[0] + uy * half, back[1] - ux * half))
        self.line([*points[:-1], (x1 - ux * size * 0.8, y1 - uy * size * 0.8)], stroke, color, dash)
        joined = " ".join(f"{number(x)},{number(y)}" for x, y in head)
        self.add("polygon", points=joined, fill=color)

    def box(
        self, x: float, y: float, w: float, h: float, lines: Sequence[str], learned: bool = False,
        dash: str = "",
    ) -> None:  # fmt: skip
        """Draw an operation: rounded, white; with learned numbers, tinted and hatched at the left.

        The first line is bold, the others are in the monospace of shapes and patterns.
        """
        self.rect(x, y, w, h, LEARNED if learned else WHITE, stroke=2, round_=8, dash=dash)
        strip = 14 if learned else 0
        if learned:
            self.hatch(x + 4, y + 5, strip - 4, h - 10, LEARNED_HATCH, step=5)
        middle, room = x + strip + (w - strip) / 2, w - strip - 8
        top = y + h / 2 - 11 * (len(lines) - 1) + 6
        for index, line in enumerate(lines):
            self.text(
                middle, top + 22 * index, line, anchor="middle", room=room,
                bold=index == 0, mono=index > 0,
            )  # fmt: skip

    def plus(self, x: float, y: float, radius: float = 14) -> None:
        """Draw the addition of the residual stream."""
        self.add("circle", cx=x, cy=y, r=radius, fill=WHITE, stroke=INK, stroke_width=2.5)
        arm = radius * 0.55
        self.line([(x - arm, y), (x + arm, y)], 2.5)
        self.line([(x, y - arm), (x, y + arm)], 2.5)

    def slab(
        self, x: float, y: float, w: float, h: float, rows: int, fill: str = LIGHT, bands: int = 1,
        stack: int = 1, first: str = "", mark: int = -1,
    ) -> None:  # fmt: skip
        """Draw a tensor as a stack of tables: rows down, bands across, maybe a dark first row."""
        for depth in reversed(range(1, stack)):
            self.rect(x + 4 * depth, y - 4 * depth, w, h, fill, stroke=1)
        self.rect(x, y, w, h, fill, stroke=1.5)
        step = h / rows
        if first:
            self.rect(x, y, w, step, first, stroke=1)
        if mark >= 0:
            self.rect(x, y + mark * step, w, step, DARK, stroke=1)
        path = "".join(
            f"M{number(x)} {number(y + step * row)}h{number(w)}" for row in range(1, rows)
        )
        self.add("path", d=path, stroke=MUTED, stroke_width=0.7, fill="none")
        for band in range(1, bands):
            self.line([(x + w * band / bands, y), (x + w * band / bands, y + h)], 1.5)

    def pixels(self, x: float, y: float, rows: Iterable[Sequence[str]], w: float, h: float) -> None:
        """Draw rows of colours as pixels of w x h, equal neighbours merged into one run."""
        runs: dict[str, list[str]] = {}
        for row_index, row in enumerate(rows):
            start = 0
            for stop in range(1, len(row) + 1):
                if stop == len(row) or row[stop] != row[start]:
                    left, top = number(x + start * w), number(y + row_index * h)
                    width = number((stop - start) * w)
                    run = f"M{left} {top}h{width}v{number(h)}h-{width}z"
                    runs.setdefault(row[start], []).append(run)
                    start = stop
        for color, paths in runs.items():
            self.add("path", d="".join(paths), fill=color, shape_rendering="crispEdges")

    def heading(self, text: str, under: str = "", under_mono: bool = False) -> None:
        """Write the line at the top of the card, and one below it."""
        self.text(32, 44, text, size=22, bold=True)
        if under:
            self.text(32, 74, under, size=17, fill=MUTED, mono=under_mono)

    def svg(self) -> str:
        """Return the finished file."""
        size = f'width="{WIDTH}" height="{number(self.height)}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} '
                f'{number(self.height)}" {size} role="img" '
                f'aria-labelledby="{self.name}-title {self.name}-desc">',
                f'<title id="{self.name}-title">{escape(self.title, quote=False)}</title>',
                f'<desc id="{self.name}-desc">{escape(self.alt, quote=False)}</desc>',
                f'<rect x="1" y="1" width="{WIDTH - 2}" height="{number(self.height - 2)}" '
                f'rx="18" fill="{CARD}" stroke="{EDGE}" stroke-width="2"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


# --- the house -----------------------------------------------------------------------------------

ROOT = Path(__file__).resolve().parent.parent
# The rooms, from left to right; clinic stands apart. Each: its folder, what is drawn in it.
BUILDINGS = {
    "utils": {
        "utils": "teaching files",
        "utils/data": "data",
        "utils/hub": "checkpoints",
        "utils/draw": "pictures",
    },
    "clinic": {"clinic": "names the bug"},
    "checks": {
        "checks": "of exercises",
        "checks/engine": "comparing",
    },
    "tools": {
        "tools": "commands",
        "tools/course": "of the course",
        "tools/grading": "grading",
        "tools/lecture": "slides",
        "tools/web": "website, book",
    },
    "tests": {
        "tests/test_utils": "of utils",
        "tests/test_clinic": "of the clinic",
        "tests/test_checks": "of the checks",
        "tests/test_course": "of the course",
        "tests/test_grading": "of grading",
        "tests/browser": "in a browser",
    },
}
ROOMS = [room for rooms in BUILDINGS.values() for room in rooms]
# Where Python looks for what a file imports.
STARTS = (
    "",
    "clinic",
    "clinic/bench",
    "tests",
    *(room for room in ROOMS if room.startswith("tests/")),
)


def python_files() -> list[Path]:
    """Return the Python files of the rooms."""
    found = (path for building in BUILDINGS for path in (ROOT / building).rglob("*.py"))
    return sorted(path for path in found if "__pycache__" not in path.parts)


def room_of(path: Path) -> str:
    """Return the innermost room in which a file lies; "tests" for what all tests share."""
    name = path.relative_to(ROOT).as_posix()
    inside = [room for room in ROOMS if name.startswith(f"{room}/")]
    return max(inside, key=len, default=name.partition("/")[0])


def lines_of_rooms() -> dict[str, int]:
    """Return how many lines of Python each room holds."""
    lines = dict.fromkeys(ROOMS, 0)
    for path in python_files():
        room = room_of(path)
        lines[room] = lines.get(room, 0) + len(path.read_text(encoding="utf-8").splitlines())
    return lines


@cache
def imports() -> dict[Path, set[Path]]:
    """Return which files of the rooms each file imports."""
    modules: dict[str, Path] = {}
    for path in python_files():
        for start in STARTS:
            if path.is_relative_to(ROOT / start):
                parts = path.relative_to(ROOT / start).with_suffix("").parts
                modules.setdefault(".".join(parts).removesuffix(".__init__"), path)
    found: dict[Path, set[Path]] = {}
    for path in python_files():
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                # what is no file of its own comes from the file that is named first
                names |= {n if n in modules else node.module for n in inner}
        found[path] = {modules[name] for name in names if name in modules} - {path}
    return found


def arrows() -> set[tuple[str, str]]:
    """Return which building imports from which other one."""
    buildings = {
        (path.relative_to(ROOT).parts[0], other.relative_to(ROOT).parts[0])
        for path, others in imports().items()
        for other in others
    }
    return {(here, there) for here, there in buildings if here != there}


class Box(NamedTuple):
    """A rectangle by its upper left corner."""

    x: float
    y: float
    w: float
    h: float


def draw_house() -> Drawing:
    """Draw the rooms of the project, their sizes and who imports whom."""
    lines, drawn = lines_of_rooms(), sorted(arrows())
    rooms = "; ".join(f"{name} with {', '.join(inner)}" for name, inner in BUILDINGS.items())
    alt = (
        f"The rooms of the project from left to right: {rooms}. "
        "Each says how many lines of Python it holds. Imports go to the left only: "
        + ", ".join(f"{here} from {there}" for here, there in drawn)
        + "."
    )
    d = Drawing("house", 630, "The house: who imports whom", alt)
    d.heading(
        "The house: who imports whom", "lines of Python, rounded; an arrow means: imports from"
    )
    top, width, step = 160, 180, 66
    places = {"utils": (32, top), "checks": (272, top), "tools": (512, top), "tests": (752, top)}
    places["clinic"] = (32, 480)  # below the arrows that lead to it from under the tools
    boxes: dict[str, Box] = {}
    for name, rooms in BUILDINGS.items():
        x, y = places[name]
        boxes[name] = Box(x, y, width, 44 + step * len(rooms))
        d.rect(*boxes[name], PANEL, round_=10)
        d.text(x + 12, y + 29, name, size=18, bold=True)
        for index, (room, words) in enumerate(rooms.items()):
            here = y + 40 + step * index
            d.rect(x + 8, here, width - 16, step - 8, WHITE, round_=6)
            d.text(x + 16, here + 23, words, room=width - 28)
            d.text(x + 16, here + 46, f"{_rough(lines[room]):,}", fill=MUTED, mono=True)
    for pair in drawn:
        d.arrow(_way(boxes, *pair))
    return d


def _way(boxes: dict[str, Box], here: str, there: str) -> list[Point]:
    """Return the points of an arrow: across the gap, over the roofs, or under the floors."""
    order = ["utils", "checks", "tools", "tests"]
    one, other = boxes[here], boxes[there]
    if there == "clinic":
        level = other.y + 26 + 22 * order.index(here)
        if here == "tests":
            return [(one.x, level), (other.x + other.w, level)]
        middle = one.x + one.w / 2
        return [(middle, one.y + one.h), (middle, level), (other.x + other.w, level)]
    if order.index(here) - order.index(there) == 1:
        return [(one.x, one.y + 80), (other.x + other.w, other.y + 80)]
    distance = order.index(here) - order.index(there)
    level = one.y - (18 if here == "tests" and distance == 2 else 36 if here == "tools" else 54)
    start, end = one.x + one.w / 2, other.x + other.w / 2
    start, end = start - 24 * (distance == 2), end + 24 * (here == "tests")
    return [(start, one.y), (start, level), (end, level), (end, other.y)]


def _rough(count: int) -> int:
    """Round so that a number stays true while files change a little."""
    return max(round(count, -2), 100)


# --- a photograph, schematically -----------------------------------------------------------------


def photo_pixel(row: int, column: int) -> tuple[int, int, int]:
    """Return red, green and blue of one pixel: sun, sky, two mountains, a lake with a boat."""
    if (column - 45) ** 2 + (row - 27) ** 2 < 12**2:
        return 250, 186, 64
    near, far = 42 + abs(column - 24), 34 + abs(column - 70)
    if near <= row < 78:
        return (238, 240, 244) if row < 50 else (74, 98, 92)
    if far <= row < 78:
        return (224, 228, 234) if row < 44 else (112, 134, 150)
    if row >= 78:
        if 84 <= row < 88 and 56 + (row - 84) <= column < 78 - (row - 84):
            return 122, 58, 34
        return (58, 112, 158) if (row // 3) % 2 else (72, 130, 176)
    return (150, 196, 232) if row < 20 else (178, 212, 236) if row < 38 else (206, 226, 238)


def rgb(color: tuple[int, int, int]) -> str:
    """Write a colour as #rrggbb."""
    return "#{:02x}{:02x}{:02x}".format(*color)


def grey(value: int) -> str:
    """Write one channel's value as a grey."""
    return rgb((value, value, value))


PHOTO = [[photo_pixel(row, column) for column in range(IMAGE_SIZE)] for row in range(IMAGE_SIZE)]


def photo(drawing: Drawing, x: float, y: float, side: float, stack: int = 1) -> None:
    """Draw the photograph, in front of the rest of its batch."""
    for depth in reversed(range(1, stack)):
        drawing.rect(x + 4 * depth, y - 4 * depth, side, side, LIGHT, stroke=1)
    scale = side / IMAGE_SIZE
    drawing.pixels(x, y, [[rgb(color) for color in row] for row in PHOTO], scale, scale)
    drawing.rect(x, y, side, side, stroke=1.5)


def flat_patch(index: int) -> list[int]:
    """Return one patch in the order (c ph pw)."""
    top, left = index // GRID * PATCH_SIZE, index % GRID * PATCH_SIZE
    return [
        PHOTO[top + row][left + column][channel]
        for channel in range(IN_CHANNELS)
        for row in range(PATCH_SIZE)
        for column in range(PATCH_SIZE)
    ]


# --- ledger --------------------------------------------------------------------------------------


class LedgerRow(NamedTuple):
    """How a drawing shows a step of the ledger, or one of its shapes."""

    chapter: str
    name: str
    note: str
    letters: str
    step: str
    at: int = 0
    is_counted: bool = True

    @property
    def shape(self) -> tuple[int, ...]:
        return LEDGER[self.step].shapes[self.at]

    @property
    def parameters(self) -> str:
        shapes, parameters = LEDGER[self.step]
        own = parameters.split(" (")[0].removeprefix(f"{len(shapes)} x ")
        return own if self.is_counted else ""


LEDGER_ROWS = [
    LedgerRow("00", "photographs", "channels first", "b c (gh ph) (gw pw)",
              "photographs, channels first"),
    LedgerRow("01", "patches", f"of {PATCH_SIZE} x {PATCH_SIZE} pixels", "b (gh gw) (c ph pw)",
              "patches of 16 x 16"),
    LedgerRow("01", "projected", "one Linear for every patch", "b (gh gw) e", "projected"),
    LedgerRow("01", "class token first,", "positions added", "b n e",
              "class token first, positions added"),
    LedgerRow("02", "queries, keys, values", f"three, each in {NUM_HEADS} heads", "b h n d",
              "queries, keys, values, 8 heads"),
    LedgerRow("03", "scores, weights", "each query with each key", "b h i j", "scores, weights"),
    LedgerRow("03", "attention output", "weighted sums over j", "b h i d", "attention output"),
    LedgerRow("04", "heads joined, projected", f"whole layer: {ATTENTION_PARAMS}", "b n e",
              "heads joined, projected"),
    LedgerRow("06", "feed-forward, wide", "Linear, GELU", "b n m",
              "feed-forward, mlp_dim 3072", is_counted=False),
    LedgerRow("06", "feed-forward, back", "Linear; count of both", "b n e",
              "feed-forward, mlp_dim 3072", at=1),
    LedgerRow("07", f"encoder of {NUM_LAYERS} blocks", "and one last LayerNorm", "b n e",
              f"encoder of {NUM_LAYERS} blocks"),
]  # fmt: skip


def ledger_icon(d: Drawing, index: int, x: float, y: float) -> None:
    """Draw the tensor of one ledger row with its middle at (x, y)."""
    stack = 3
    if index == 0:
        photo(d, x - 27, y - 22, 48, stack=stack)
    elif index in (1, 2):
        d.slab(x - 32, y - 18, 56, 40, 6, LIGHT if index == 1 else MID, stack=stack)
    elif index == 4:
        for copy in range(3):
            d.slab(x - 64 + 44 * copy, y - 18, 32, 40, 7, MID, bands=4, first=DARK)
    elif index == 5:
        d.slab(x - 24, y - 18, 40, 40, 7, LIGHT, bands=7, stack=stack)
    elif index == 6:
        d.slab(x - 32, y - 18, 56, 40, 7, MID, bands=4, first=DARK, stack=stack)
    elif index == 8:
        d.slab(x - 64, y - 18, 120, 40, 7, LIGHT, first=DARK, stack=stack)
    else:
        d.slab(x - 32, y - 18, 56, 40, 7, MID, first=DARK, stack=stack)


def ledger_table(
    d: Drawing, rows: Sequence[LedgerRow], top: float, step: float, block: tuple[int, int],
    draw_icon: Callable[[Drawing, int, float, float], None], starts: Sequence[int] = (0,),
    single: Sequence[int] = (),
) -> None:  # fmt: skip
    """Draw the rows of a ledger, with the block's first and last row on a panel.

    An arrow leads from each row to the next, except to the rows in `starts`; those in `single` are
    drawn without a stack behind them.
    """
    icon, name, letters, shape, params = 138, 214, 476, 672, 932
    first, last = block
    d.rect(20, top + step * first - 1, WIDTH - 40, step * (last - first + 1), PANEL, EDGE, 1.5, 12)
    for x, word, anchor in [
        (30, "ch.", "start"), (name, "step", "start"), (letters, "axes", "start"),
        (shape, "sizes", "start"), (params, "parameters", "end"),
    ]:  # fmt: skip
        d.text(x, 118, word, anchor=anchor, fill=MUTED)
    d.line([(30, 130), (params, 130)], 1.2, EDGE)
    for index, row in enumerate(rows):
        y = top + step * index + step / 2
        if index not in starts:
            d.arrow(
                [(icon - 4, y - step + 25), (icon - 4, y - (21 if index in single else 33))],
                2,
                MUTED,
            )
        draw_icon(d, index, icon, y)
        d.text(34, y + 6, row.chapter, mono=True, fill=MUTED)
        d.text(name, y - 4, row.name, size=17, bold=True, room=letters - name)
        d.text(name, y + 19, row.note, fill=MUTED, room=letters - name)
        d.text(letters, y + 6, row.letters, mono=True, room=shape - letters)
        d.text(shape, y + 6, str(row.shape), mono=True, bold=True, room=150)
        lines = row.parameters.replace(" and ", " and|").split("|") if row.parameters else []
        for position, line in enumerate(lines):
            offset = 6 if len(lines) == 1 else -4 + 23 * position
            d.text(params, y + offset, line, mono=True, anchor="end", room=160)


def draw_ledger() -> Drawing:
    rows = LEDGER_ROWS
    class_token, positions = LEDGER[rows[3].step].counts
    step, top = 78, 142
    height = top + step * len(rows) + 62
    alt = (
        f"A pipeline from top to bottom with the shape after every step: {BATCH} photographs "
        f"{rows[0].shape}, patches {rows[1].shape}, projected {rows[2].shape}, class token and "
        f"positions {rows[3].shape}; then a block that is repeated {NUM_LAYERS} times: queries, "
        f"keys and values {rows[4].shape} each, scores and weights {rows[5].shape}, output "
        f"{rows[6].shape}, heads joined {rows[7].shape}, feed-forward {rows[8].shape} and back to "
        f"{rows[9].shape}; the encoder returns {rows[10].shape}. Learned numbers: patch projection "
        f"{rows[2].parameters}, class token {class_token}, positions {positions}, attention "
        f"{ATTENTION_PARAMS} and feed-forward {rows[9].parameters} in each block, encoder "
        f"{rows[10].parameters}."
    )
    d = Drawing("ledger", height, "The ledger: from six photographs to an encoder", alt)
    d.heading(
        "The ledger: from six photographs to an encoder",
        "Every step, its shape in letters and in numbers, and what it has learned.",
    )
    ledger_table(d, rows, top, step, (4, 9), ledger_icon, single=(4,))
    y = height - 42
    d.text(32, y, f"Shaded: one block. The encoder repeats it {NUM_LAYERS} times; "
           "each half adds its result to what came in.", fill=MUTED)  # fmt: skip
    d.text(32, y + 24, f"One block: {BLOCK_PARAMS} = attention + feed-forward + two norms "
           f"of {2 * EMBED_DIM:,}.", fill=MUTED)  # fmt: skip
    return d


# --- ledger of text ------------------------------------------------------------------------------


TEXT_LEDGER_ROWS = [
    LedgerRow("09", "sources, as ids", f"{PAIRS} sentences, padded", "b j", "sources, as ids"),
    LedgerRow("09", "embedded", "positions added", "b j e", "embedded, positions added"),
    LedgerRow("07", f"encoder of {TEXT_LAYERS} blocks", "no causal mask", "b j e",
              f"encoder of {TEXT_LAYERS} blocks"),
    LedgerRow("09", "targets, as ids", "BEGIN in front", "b i", "targets, as ids"),
    LedgerRow("09", "embedded", "positions added", "b i e", "embedded, positions added", at=1),
    LedgerRow("05", "scores among targets", f"causal; layer: {TEXT_ATTENTION_PARAMS}", "b h i i",
              "scores among targets, causal"),
    LedgerRow("10", "queries", "of the targets", "b h i d", "queries of the targets, 8 heads"),
    LedgerRow("10", "keys, values", "of the encoder's result", "b h j d",
              "keys, values of the sources, 8 heads"),
    LedgerRow("10", "scores across, weights", "target with source", "b h i j",
              "scores across, weights"),
    LedgerRow("10", "output across", "weighted sums over j", "b h i d", "output across"),
    LedgerRow("10", "joined, projected", f"whole layer: {TEXT_ATTENTION_PARAMS}", "b i e",
              "joined, projected"),
    LedgerRow("10", "decoder block", "after its feed-forward", "b i e", "decoder block"),
    LedgerRow("10", f"decoder of {TEXT_LAYERS} blocks", "the source at hand in each", "b i e",
              f"decoder of {TEXT_LAYERS} blocks"),
    LedgerRow("10", "logits", "over the vocabulary", "b i v", "logits over the vocabulary"),
]  # fmt: skip


def text_ledger_icon(d: Drawing, index: int, x: float, y: float) -> None:
    """Draw the tensor of one row of the second ledger with its middle at (x, y).

    What belongs to the source is light, what belongs to the target darker.
    """
    stack = PAIRS
    if index in (0, 3):
        tokens, fill = (SOURCE_TOKENS, LIGHT) if index == 0 else (TARGET_TOKENS, MID)
        d.slab(x - 14, y - 18, 16, 40, tokens, fill, stack=stack)
    elif index in (1, 2):
        d.slab(x - 32, y - 18, 56, 40, SOURCE_TOKENS, LIGHT, stack=stack)
    elif index == 5:
        d.slab(x - 24, y - 18, 40, 40, TARGET_TOKENS, MID, bands=TARGET_TOKENS, stack=stack)
    elif index == 7:
        for copy in range(2):
            d.slab(x - 44 + 44 * copy, y - 18, 32, 40, SOURCE_TOKENS, LIGHT, bands=4)
    elif index == 8:
        d.slab(x - 32, y - 18, 56, 40, TARGET_TOKENS, MID, bands=SOURCE_TOKENS, stack=stack)
    elif index in (6, 9):
        d.slab(x - 32, y - 18, 56, 40, TARGET_TOKENS, MID, bands=4, stack=stack)
    elif index == 13:
        d.slab(x - 64, y - 18, 120, 40, TARGET_TOKENS, MID, stack=stack)
    else:
        d.slab(x - 32, y - 18, 56, 40, TARGET_TOKENS, MID, stack=stack)


def draw_text_ledger() -> Drawing:
    rows = TEXT_LEDGER_ROWS
    step, top = 74, 142
    height = top + step * len(rows) + 62
    alt = (
        f"A pipeline from top to bottom with the shape after every step. The source: ids "
        f"{rows[0].shape}, embedded {rows[1].shape}, encoded {rows[2].shape}. The target: ids "
        f"{rows[3].shape}, embedded {rows[4].shape}; then a decoder block that is repeated "
        f"{TEXT_LAYERS} times: causal scores among the targets {rows[5].shape}, queries of the "
        f"targets {rows[6].shape}, keys and values of the sources {rows[7].shape} each, scores and "
        f"weights across {rows[8].shape}, output {rows[9].shape}, joined {rows[10].shape}, "
        f"and after the feed-forward {rows[11].shape}. The decoder returns {rows[12].shape}, one "
        f"last Linear gives logits over the vocabulary {rows[13].shape}. Learned numbers: each "
        f"table of embeddings {rows[1].parameters}, encoder {rows[2].parameters}, attention "
        f"{TEXT_ATTENTION_PARAMS} twice in each decoder block of {DECODER_BLOCK_PARAMS}, "
        f"decoder {rows[12].parameters}, last Linear {rows[13].parameters}."
    )
    title = "The second ledger: from one text to another"
    d = Drawing("ledger_text", height, title, alt)
    d.heading(title, "The original base model. Light: source, j tokens. Darker: target, i tokens.")
    ledger_table(d, rows, top, step, (5, 11), text_ledger_icon, starts=(0, 3, 7), single=(7,))
    y = height - 42
    d.text(32, y, f"Shaded: one decoder block, repeated {TEXT_LAYERS} times; each of its "
           "three parts adds to what came in.", fill=MUTED)  # fmt: skip
    d.text(32, y + 24, f"One decoder block: {DECODER_BLOCK_PARAMS} = two attentions + "
           f"feed-forward + three norms of {2 * TEXT_DIM:,}.", fill=MUTED)  # fmt: skip
    return d


# --- patchify ------------------------------------------------------------------------------------


def draw_patchify() -> Drawing:
    chosen = GRID + 2  # the patch with the sun
    row, column = divmod(chosen, GRID)
    plane_size = PATCH_SIZE * PATCH_SIZE
    alt = (
        f"A photograph of {IMAGE_SIZE} x {IMAGE_SIZE} pixels is cut into {GRID} x {GRID} patches "
        f"of {PATCH_SIZE} x {PATCH_SIZE}, numbered 0 to {PATCHES - 1} row by row from the top "
        f"left, so the patch in row gh = {row}, column gw = {column} has number {row} · {GRID} + "
        f"{column} = {chosen}. Its {IN_CHANNELS} channels are laid one after the other, each read "
        f"row by row, into one line of {IN_CHANNELS} · {PATCH_SIZE} · {PATCH_SIZE} = {PATCH_DIM} "
        f"numbers, and that line is row {chosen} of a table of {PATCHES} rows and {PATCH_DIM} "
        f"columns."
    )
    d = Drawing("patchify", 800, "From a photograph to a table of patches", alt)
    d.heading("From a photograph to a table of patches")
    pattern = "b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)"
    sizes = (
        f"({BATCH}, {IN_CHANNELS}, {IMAGE_SIZE}, {IMAGE_SIZE}) -> ({BATCH}, {PATCHES}, {PATCH_DIM})"
    )
    d.text(32, 76, pattern, size=17, mono=True, bold=True)
    d.text(930, 76, sizes, size=17, mono=True, anchor="end")

    x0, y0, side = 84, 132, 300
    cell = side / GRID
    photo(d, x0, y0, side)
    for cut in range(1, GRID):
        for points in (
            [(x0 + cut * cell, y0), (x0 + cut * cell, y0 + side)],
            [(x0, y0 + cut * cell), (x0 + side, y0 + cut * cell)],
        ):
            d.line(points, 3, CARD)
    for index in range(PATCHES):
        x, y = x0 + index % GRID * cell + cell / 2, y0 + index // GRID * cell + cell / 2 + 6
        d.text(x, y, str(index), anchor="middle", bold=True, halo=CARD)
    for index in range(GRID):
        d.text(x0 + (index + 0.5) * cell, y0 - 8, str(index), anchor="middle", mono=True)
        d.text(x0 - 10, y0 + (index + 0.5) * cell + 6, str(index), anchor="end", mono=True)
    d.text(x0 - 12, y0 - 8, "gw", anchor="end", mono=True, bold=True)
    d.text(x0 - 34, y0 + 31, "gh", anchor="end", mono=True, bold=True)
    px, py = x0 + column * cell, y0 + row * cell
    d.rect(px, py, cell, cell, stroke=4)
    d.text(x0 + side / 2, y0 + side + 26, f"{GRID} x {GRID} patches, row by row", anchor="middle")
    d.text(
        x0 + side / 2, y0 + side + 50, f"patch {chosen} = gh · {GRID} + gw = {row} · {GRID} + "
        f"{column}", anchor="middle", fill=MUTED,
    )  # fmt: skip

    values = flat_patch(chosen)
    scale, gap, plane_x, plane_y = 8.5, 26, 466, 176
    plane = PATCH_SIZE * scale
    d.line([(px + cell, py), (plane_x, plane_y)], 1.2, MUTED, "5 4")
    d.line([(px + cell, py + cell), (plane_x, plane_y + plane)], 1.2, MUTED, "5 4")
    for channel, color in enumerate(("red", "green", "blue")):
        x = plane_x + channel * (plane + gap)
        start = channel * plane_size
        rows = [
            [grey(v) for v in values[start + r * PATCH_SIZE : start + (r + 1) * PATCH_SIZE]]
            for r in range(PATCH_SIZE)
        ]
        d.pixels(x, plane_y, rows, scale, scale)
        for cut in range(1, PATCH_SIZE):
            d.line([(x, plane_y + cut * scale), (x + plane, plane_y + cut * scale)], 0.5, MUTED)
            d.line([(x + cut * scale, plane_y), (x + cut * scale, plane_y + plane)], 0.5, MUTED)
        d.rect(x, plane_y, plane, plane, stroke=2)
        d.text(x + plane / 2, plane_y - 12, f"c = {channel}, {color}", anchor="middle")
        d.arrow([(x, plane_y + plane + 14), (x + plane, plane_y + plane + 14)], 2, MUTED)
        d.text(x + plane / 2, plane_y + plane + 36, f"pw {PATCH_SIZE}", anchor="middle", mono=True)
    d.arrow([(plane_x - 12, plane_y), (plane_x - 12, plane_y + plane)], 2, MUTED)
    d.text(plane_x - 22, plane_y + plane / 2 - 6, "ph", anchor="end", mono=True)
    d.text(plane_x - 22, plane_y + plane / 2 + 16, str(PATCH_SIZE), anchor="end", mono=True)
    d.text(plane_x, plane_y - 44, f"patch {chosen}: its {IN_CHANNELS} channels, one by one",
           bold=True)  # fmt: skip
    note = plane_y + plane + 76
    d.text(plane_x, note, "Read each channel row by row,")
    d.text(plane_x, note + 24, "then the next channel:")
    d.text(plane_x, note + 52, f"(c ph pw) = {IN_CHANNELS} · {PATCH_SIZE} · {PATCH_SIZE} = "
           f"{PATCH_DIM}", mono=True, bold=True)  # fmt: skip

    strip_x, strip_y, strip_h = 96, 534, 30  # one unit of width for each of the 768 numbers
    d.pixels(strip_x, strip_y, [[grey(v) for v in values]], 1, strip_h)
    for cut in range(PATCH_SIZE, PATCH_DIM, PATCH_SIZE):
        tall = 10 if cut % plane_size == 0 else 0
        d.line(
            [(strip_x + cut, strip_y - tall), (strip_x + cut, strip_y + strip_h)],
            2.5 if tall else 0.6, INK if tall else MUTED,
        )  # fmt: skip
    d.rect(strip_x, strip_y, PATCH_DIM, strip_h, stroke=2)
    for channel in range(IN_CHANNELS):
        d.text(strip_x + (channel + 0.5) * plane_size, strip_y - 10,
               f"c = {channel}: {plane_size} numbers", anchor="middle")  # fmt: skip
    d.text(strip_x - 12, strip_y + 21, str(chosen), anchor="end", mono=True, bold=True)

    table_y, row_h = 612, 3.6
    table = [[grey(v // 24 * 24) for v in flat_patch(index)] for index in range(PATCHES)]
    d.pixels(strip_x, table_y, table, 1, row_h)
    d.rect(strip_x, table_y, PATCH_DIM, PATCHES * row_h, stroke=1.5)
    marked = table_y + chosen * row_h
    d.rect(strip_x - 3, marked - 1.5, PATCH_DIM + 6, row_h + 3, stroke=2.5)
    d.line([(strip_x, strip_y + strip_h), (strip_x - 3, marked)], 1.2, MUTED, "5 4")
    right = strip_x + PATCH_DIM
    d.line([(right, strip_y + strip_h), (right + 3, marked)], 1.2, MUTED, "5 4")
    d.text(strip_x - 12, table_y + 13, "0", anchor="end", mono=True)
    d.text(strip_x - 12, marked + 12, str(chosen), anchor="end", mono=True, bold=True)
    d.text(strip_x - 12, table_y + PATCHES * row_h, str(PATCHES - 1), anchor="end", mono=True)
    d.text(strip_x, table_y + PATCHES * row_h + 28,
           f"the table of one photograph: (gh gw) = {PATCHES} rows, (c ph pw) = {PATCH_DIM} "
           f"columns; b = {BATCH} of them")  # fmt: skip
    return d


# --- heads ---------------------------------------------------------------------------------------

SMALL_TOKENS, SMALL_HEADS, SMALL_HEAD_DIM = 3, 2, 4  # n, h, d of the hand-sized tensor
SMALL_EMBED_DIM = SMALL_HEADS * SMALL_HEAD_DIM  # e


def draw_heads() -> Drawing:
    n, h, width = SMALL_TOKENS, SMALL_HEADS, SMALL_HEAD_DIM
    e, count = SMALL_EMBED_DIM, SMALL_TOKENS * SMALL_EMBED_DIM
    right_first = [t * e + k for t in range(n) for k in range(width)]
    wrong_first = list(range(n * width))
    alt = (
        f"A table of n = {n} tokens and e = {e} numbers each, 0 to {count - 1}, becomes h = {h} "
        f"tables of n = {n} rows and d = {width} columns: head 0 takes the first {width} columns "
        f"of every token ({listing(right_first, width)}), head 1 the last {width}. Cutting the "
        f"{count} numbers in memory order instead, as view(h, n, d) alone would, gives head 0 the "
        f"rows {listing(wrong_first, width)}: both halves of token 0 and half of token 1."
    )
    d = Drawing("heads", 700, "Splitting and joining heads", alt)
    d.heading("Splitting and joining heads")
    d.text(32, 78, f"Drawn for one sequence of the batch: n = {n}, e = {e} = h · d, h = {h}, "
           f"d = {width}.", size=17, fill=MUTED)  # fmt: skip
    cell = 40
    tints = ((LIGHT, INK), (MID, INK), (DARK, WHITE))

    def value(x: float, y: float, index: int) -> None:
        token, head = index // e, index % e // width
        fill, ink = tints[token]
        d.rect(x, y, cell, cell, fill, stroke=1.2)
        if head:
            d.hatch(x, y, cell, cell, WHITE if token == 2 else MUTED, step=8)
        d.text(x + cell / 2, y + 26, str(index), anchor="middle", mono=True, bold=True,
               fill=ink, halo=fill)  # fmt: skip

    def table(x: float, y: float, rows: list[list[int]], names: list[str]) -> None:
        for r, row in enumerate(rows):
            for c, index in enumerate(row):
                value(x + c * cell, y + r * cell, index)
            if names:
                d.text(x - 10, y + r * cell + 26, names[r], anchor="end")
        d.rect(x, y, len(rows[0]) * cell, len(rows) * cell, stroke=3)

    whole = [[t * e + k for k in range(e)] for t in range(n)]
    split = [[[t * e + a * width + k for k in range(width)] for t in range(n)] for a in range(h)]
    tokens = [f"token {t}" for t in range(n)]
    x0, y0 = 106, 176
    table(x0, y0, whole, tokens)
    d.line([(x0 + width * cell, y0 - 8), (x0 + width * cell, y0 + n * cell + 8)], 4)
    for a in range(h):
        d.text(x0 + (a + 0.5) * width * cell, y0 - 14, f"head {a}", anchor="middle", bold=True)
    d.text(x0 + e * cell / 2, y0 + n * cell + 30, "(b, n, h d)", anchor="middle", mono=True,
           bold=True)  # fmt: skip
    gap = 26
    xs = [600 + a * (width * cell + gap) - 14 for a in range(h)]
    for a in range(h):
        table(xs[a], y0, split[a], [])
        d.text(xs[a] + width * cell / 2, y0 - 14, f"head {a}", anchor="middle", bold=True)
    d.text((xs[0] + xs[-1] + width * cell) / 2, y0 + n * cell + 30, "(b, h, n, d)",
           anchor="middle", mono=True, bold=True)  # fmt: skip
    left, right = x0 + e * cell + 14, xs[0] - 14
    d.arrow([(left, y0 + 38), (right, y0 + 38)], 3)
    d.text((left + right) / 2, y0 + 26, "split", anchor="middle", bold=True)
    d.arrow([(right, y0 + 86), (left, y0 + 86)], 3)
    d.text((left + right) / 2, y0 + 110, "join", anchor="middle", bold=True)
    d.text(32, 130, "b n (h d) -> b h n d", mono=True, bold=True)
    d.text(928, 130, "b h n d -> b n (h d)", mono=True, bold=True, anchor="end")

    memory_y = 406
    d.text(32, memory_y - 24, f"In memory the {count} numbers lie in one line, token after token:")
    unit, memory_x = 37, 36
    scale = unit / cell
    for index in range(count):
        token, head = index // e, index % e // width
        fill, ink = tints[token]
        x = memory_x + index * unit
        d.rect(x, memory_y, unit, unit, fill, stroke=1.2)
        if head:
            d.hatch(x, memory_y, unit, unit, WHITE if token == 2 else MUTED, step=8 * scale)
        d.text(x + unit / 2, memory_y + 24, str(index), anchor="middle", mono=True, bold=True,
               fill=ink, halo=fill)  # fmt: skip
    d.rect(memory_x, memory_y, count * unit, unit, stroke=3)
    half = memory_x + n * width * unit
    d.line([(half, memory_y - 10), (half, memory_y + unit + 10)], 4)

    wrong = [[[a * n * width + r * width + k for k in range(width)] for r in range(n)]
             for a in range(h)]  # fmt: skip
    wy = 514
    for a in range(h):
        table(xs[a], wy, wrong[a], [])
        d.text(xs[a] + width * cell / 2, wy - 14, f"not head {a}", anchor="middle", bold=True)
    d.text((xs[0] + xs[-1] + width * cell) / 2, wy + n * cell + 32, "view(b, h, n, d) alone",
           anchor="middle", mono=True, bold=True)  # fmt: skip
    lines = [
        ("Why a transpose is needed", True),
        ("view keeps the numbers in memory order: it cuts", False),
        ("the line above in two, so its first table holds", False),
        ("token 0 twice and half of token 1.", False),
        ("Right: view(b, n, h, d), then transpose(1, 2).", True),
    ]
    for index, (line, bold) in enumerate(lines):
        d.text(32, wy - 2 + 28 * index, line, bold=bold, room=520)
    ky = wy + 28 * len(lines) + 4
    x = 32.0
    for t, (fill, _) in enumerate(tints):
        d.rect(x, ky, 24, 24, fill)
        d.text(x + 32, ky + 18, f"token {t}")
        x += 116
    d.rect(x, ky, 24, 24, WHITE, hatch=MUTED)
    d.text(x + 32, ky + 18, "hatched: head 1")
    return d


def listing(indices: Sequence[int], width: int) -> str:
    """Write indices in groups of one row: 0 1 2 3, 8 9 10 11."""
    rows = [indices[start : start + width] for start in range(0, len(indices), width)]
    return ", ".join(" ".join(map(str, row)) for row in rows)


# --- one attention head --------------------------------------------------------------------------

HAND_TOKENS, HAND_HEAD_DIM = 5, 3  # n and d of the drawn head
HAND_Q = ((2, 0, 1), (0, 2, 1), (1, 1, 0), (0, 1, 2), (2, 1, 1))
HAND_K = ((1, 0, 2), (0, 2, 0), (2, 1, 0), (1, 2, 2), (0, 0, 1))
HAND_V = ((3, 0, 1), (0, 3, 1), (1, 1, 3), (2, 0, 0), (0, 2, 2))


def draw_attention_head() -> Drawing:
    n, width = HAND_TOKENS, HAND_HEAD_DIM
    scores = [[sum(a * b for a, b in zip(q, k, strict=True)) for k in HAND_K] for q in HAND_Q]
    weights = []
    for row in scores:
        powers = [math.exp(score / math.sqrt(width)) for score in row]
        weights.append([power / sum(powers) for power in powers])
    mixed = [
        [sum(weights[i][j] * HAND_V[j][a] for j in range(n)) for a in range(width)]
        for i in range(n)
    ]
    alt = (
        "One attention head from left to right: row i of q (n, d) meets row j of k (n, d) in cell "
        "(i, j) of the scores (n, n); the scores are divided by the square root of d, an optional "
        "mask sets blocked cells to minus infinity, and softmax over the keys j makes every row of "
        "the weights (n, n) sum to 1. Weights times v (n, d) gives the attention output (n, d): "
        f"row i is the sum of the rows of v, each times its weight. In the running example "
        f"n = {TOKENS} and d = {HEAD_DIM}."
    )
    d = Drawing("attention_head", 682, "One attention head", alt)
    d.heading("One attention head")
    d.text(32, 76, f"Drawn with n = {n} tokens and d = {width}; in the running example n = {TOKENS}"
           f" and d = {HEAD_DIM}.", size=17, fill=MUTED)  # fmt: skip
    cell, chosen, key = 30, 1, 3

    def shade(value: float, top: float) -> str:
        level = round(8 * value / top)  # 0 white ... 8 dark
        white, dark = (255, 255, 255), (42, 87, 132)
        return rgb(tuple(round(w + (k - w) * level / 8) for w, k in zip(white, dark, strict=True)))

    def grid(x: float, y: float, values: Sequence[Sequence[float]]) -> None:
        top = max(max(row) for row in values)
        for r, row in enumerate(values):
            for c, number_ in enumerate(row):
                d.rect(x + c * cell, y + r * cell, cell, cell, shade(number_, top), stroke=1)
        d.rect(x, y, len(values[0]) * cell, len(values) * cell, stroke=2.5)

    def outline(x: float, y: float, w: float, h: float) -> None:
        d.rect(x, y, w, h, line=WHITE, stroke=8)
        d.rect(x, y, w, h, line=INK, stroke=4)

    def caption(x: float, y: float, name: str, letters: str, sizes: str) -> None:
        d.text(x, y, name, size=18, anchor="middle", bold=True)
        d.text(x, y + 24, letters, anchor="middle", mono=True)
        d.text(x, y + 48, sizes, anchor="middle", mono=True, fill=MUTED)

    y0 = 380
    q_x, s_x, o_x, w_x, m_x = 56, 196, 402, 636, 836
    side, narrow = n * cell, width * cell
    row_y = y0 + chosen * cell
    nd, nn = f"({TOKENS}, {HEAD_DIM})", f"({TOKENS}, {TOKENS})"

    grid(q_x, y0, HAND_Q)
    outline(q_x, row_y, narrow, cell)
    d.text(q_x - 10, row_y + 21, "i", anchor="end", mono=True, bold=True, size=18)
    caption(q_x + narrow / 2, y0 + side + 32, "q", "(n, d)", nd)

    k_y = y0 - narrow - 44
    grid(s_x, k_y, list(zip(*HAND_K, strict=True)))
    outline(s_x + key * cell, k_y, cell, narrow)
    d.text(s_x + (key + 0.5) * cell, k_y - 10, "j", anchor="middle", mono=True, bold=True, size=18)
    d.text(s_x + side / 2, k_y - 62, "k", size=18, anchor="middle", bold=True)
    d.text(s_x + side / 2, k_y - 38, f"(n, d)  {nd}", anchor="middle", mono=True)
    d.text(s_x - 14, k_y + 42, "k lies on", anchor="end", fill=MUTED)
    d.text(s_x - 14, k_y + 64, "its side", anchor="end", fill=MUTED)

    grid(s_x, y0, scores)
    outline(s_x + key * cell, row_y, cell, cell)
    d.arrow([(q_x + narrow + 6, row_y + cell / 2), (s_x - 4, row_y + cell / 2)], 2.5)
    column = s_x + (key + 0.5) * cell
    d.arrow([(column, k_y + narrow + 6), (column, y0 - 4)], 2.5)
    caption(s_x + side / 2, y0 + side + 32, "scores", "(n, n)", nn)

    box_w, box_h, gap = 192, 58, 24
    tops = [y0 - 52 + index * (box_h + gap) for index in range(3)]
    d.box(o_x, tops[0], box_w, box_h, ("divide by √d", f"√{HEAD_DIM} ≈ {math.sqrt(HEAD_DIM):.1f}"))
    d.box(o_x, tops[1], box_w, box_h, ("mask (optional)", "False -> -inf"), dash="7 5")
    d.box(o_x, tops[2], box_w, box_h, ("softmax over j", "row sum = 1"))
    middle = o_x + box_w / 2
    for top in tops[:2]:
        d.arrow([(middle, top + box_h), (middle, top + box_h + gap)], 2.5)
    bend = (s_x + side + o_x) / 2 - 2
    y_in, y_out = tops[0] + box_h / 2, tops[2] + box_h / 2
    d.arrow([(s_x + side + 4, y0 + 75), (bend, y0 + 75), (bend, y_in), (o_x, y_in)], 2.5)
    d.arrow([(o_x + box_w, y_out), (w_x - 4, y_out)], 2.5)

    grid(w_x, y0, weights)
    outline(w_x, row_y, side, cell)
    caption(w_x + side / 2, y0 + side + 32, "weights", "(n, n)", nn)
    d.text(w_x + side / 2, y0 - 34, "row i: how much", anchor="middle", fill=MUTED)
    d.text(w_x + side / 2, y0 - 12, "of each j", anchor="middle", fill=MUTED)

    v_y = y0 - side - 44
    grid(m_x, v_y, HAND_V)
    d.text(m_x + narrow / 2, v_y - 62, "v", size=18, anchor="middle", bold=True)
    d.text(m_x + narrow / 2, v_y - 38, "(n, d)", anchor="middle", mono=True)
    d.text(m_x + narrow / 2, v_y - 14, nd, anchor="middle", mono=True, fill=MUTED)
    d.text(m_x - 12, v_y + (key + 0.5) * cell + 6, "j", anchor="end", mono=True, bold=True, size=18)
    d.arrow([(m_x + narrow / 2, v_y + side + 6), (m_x + narrow / 2, y0 - 4)], 2.5)
    grid(m_x, y0, mixed)
    outline(m_x, row_y, narrow, cell)
    d.arrow([(w_x + side + 6, row_y + cell / 2), (m_x - 4, row_y + cell / 2)], 2.5)
    caption(m_x + narrow / 2, y0 + side + 32, "output", "(n, d)", nd)

    d.text(32, 658, "b h i d, b h j d -> b h i j", mono=True)
    d.text(928, 658, "b h i j, b h j d -> b h i d", mono=True, anchor="end")
    d.text(480, 658, "darker = larger", anchor="middle", fill=MUTED)
    return d


# --- masks ---------------------------------------------------------------------------------------

MASK_TOKENS, MASK_LENGTH = 6, 4  # n, and how many of them are not padding


def draw_masks() -> Drawing:
    n, length = MASK_TOKENS, MASK_LENGTH
    rules: list[tuple[str, str, str, Callable[[int, int], bool]]] = [
        ("none", "attn_mask=None", "-", lambda i, j: True),
        ("padding", "padding_mask", "(b, 1, 1, n)", lambda i, j: j < length),
        ("causal", "causal_mask", "(n, n)", lambda i, j: j <= i),
        ("both", "padding & causal", "(b, 1, n, n)", lambda i, j: j < length and j <= i),
    ]
    counts = [sum(rule(i, j) for i in range(n) for j in range(n)) for *_, rule in rules]
    alt = (
        f"Four masks as grids of {n} queries i down and {n} keys j across, bright where the query "
        f"may attend (True), dark where it is blocked (False). None: all {counts[0]} cells bright. "
        f"Padding, {length} real tokens of {n}: the last {n - length} columns dark. Causal: bright "
        f"on and below the diagonal, j ≤ i. Both: bright only where the two are, {counts[3]} cells."
    )
    d = Drawing("masks", 500, "The four masks", alt)
    d.heading("The four masks", "Who may look at whom: True = may attend, False = blocked.")
    cell, gap, x0, y0 = 30, 49, 56, 174
    side = cell * n
    for index, ((name, call, shape, rule), count) in enumerate(zip(rules, counts, strict=True)):
        x = x0 + index * (side + gap)
        middle = x + side / 2
        d.text(middle, y0 - 54, name, size=19, anchor="middle", bold=True)
        for step in range(n):
            inside = step < length or name in ("none", "causal")
            ink = INK if inside else MUTED
            label = str(step)
            d.text(x + (step + 0.5) * cell, y0 - 9, label, anchor="middle", mono=True, fill=ink)
            d.text(x - 7, y0 + (step + 0.5) * cell + 6, label, anchor="end", mono=True)
        d.text(x + 4, y0 - 30, "j", mono=True, bold=True, size=18)
        d.arrow([(x + 22, y0 - 35), (x + 66, y0 - 35)], 2)
        d.text(x - 30, y0 + 21, "i", mono=True, bold=True, size=18, anchor="middle")
        d.arrow([(x - 30, y0 + 30), (x - 30, y0 + 74)], 2)
        for i in range(n):
            for j in range(n):
                allowed = rule(i, j)
                d.rect(x + j * cell, y0 + i * cell, cell, cell, ALLOWED if allowed else BLOCKED,
                       line=INK if allowed else "#8b94a1", stroke=1)  # fmt: skip
        d.rect(x, y0, side, side, stroke=2.5)
        d.text(middle, y0 + side + 28, call, anchor="middle", mono=True)
        d.text(middle, y0 + side + 52, shape if shape != "-" else "no tensor", anchor="middle",
               mono=shape != "-", fill=MUTED)  # fmt: skip
        d.text(middle, y0 + side + 78, f"{count} of {n * n} True", anchor="middle", fill=MUTED)
    ky = 474
    x = 32.0
    d.rect(x, ky - 17, 24, 22, ALLOWED)
    d.text(x + 34, ky, "True: may attend")
    d.rect(x + 196, ky - 17, 24, 22, BLOCKED)
    d.text(x + 230, ky, "False: blocked")
    d.text(928, ky, f"queries i down, keys j across; padding: {length} real tokens of {n}",
           anchor="end", fill=MUTED)  # fmt: skip
    return d


# --- blocks: one drawing routine for norm_order and encoder --------------------------------------


BOX_H = 44  # of one part on a branch


def draw_branch(
    d: Drawing, x: float, top: float, names: Sequence[str], box_w: float = 238
) -> tuple[float, list[float]]:
    """Draw a branch that leaves the stream at (x, top); return the y of plus and boxes."""
    box_x = x + 64
    tops = [top + 18 + index * (BOX_H + 20) for index in range(len(names))]
    if len(names) == 1:
        tops = [top + 30]
    middle = box_x + box_w / 2
    d.arrow([(x, top), (middle, top), (middle, tops[0])], 2.5)
    for index, name in enumerate(names):
        d.box(box_x, tops[index], box_w, BOX_H, (name,), learned=True)
        if index:
            d.arrow([(middle, tops[index - 1] + BOX_H), (middle, tops[index])], 2.5)
    end = tops[-1] + BOX_H + 22
    d.arrow([(middle, tops[-1] + BOX_H), (middle, end), (x + 15, end)], 2.5)
    d.plus(x, end)
    return end, tops


def draw_block(d: Drawing, x: float, y: float, norm_first: bool) -> float:
    """Draw one encoder block, top down, with its stream at x; return the y where it ends.

    The residual stream is the straight thick line; what is computed leaves it to the right.
    """
    attention, feed_forward = "attention (attn)", "feed-forward (mlp)"
    bottom = y + 410
    d.arrow([(x, y), (x, bottom)], 7, DARK)
    if norm_first:
        end, _ = draw_branch(d, x, y + 26, ["norm1", attention])
        draw_branch(d, x, end + 40, ["norm2", feed_forward])
    else:
        end, _ = draw_branch(d, x, y + 26, [attention])
        d.box(x - 62, end + 30, 124, BOX_H - 4, ("norm1",), learned=True)
        end, _ = draw_branch(d, x, end + 92, [feed_forward])
        d.box(x - 62, end + 30, 124, BOX_H - 4, ("norm2",), learned=True)
    return bottom


def draw_norm_order() -> Drawing:
    alt = (
        "Two encoder blocks side by side, the residual stream x as a straight thick line from top "
        "to bottom. Pre-norm: norm1 and attention, then norm2 and feed-forward are on side "
        "branches whose results are added to the stream, which itself is never normalized inside "
        "the block; one more norm follows after the last block. Post-norm: attention and "
        "feed-forward are on side branches, and norm1 and norm2 are on the stream itself, "
        "after each addition."
    )
    d = Drawing("norm_order", 702, "Pre-norm and post-norm", alt)
    d.heading("Pre-norm and post-norm", "The thick line is the residual stream x, (b, n, e).")
    sides = [
        (32, True, "pre-norm", "norm_first=True",
         ("x = x + attn(norm1(x))", "x = x + mlp(norm2(x))"),
         ("From end to end only additions;", "one last norm after the last block.")),
        (494, False, "post-norm (2017)", "norm_first=False",
         ("x = norm1(x + attn(x))", "x = norm2(x + mlp(x))"),
         ("Every addition is followed by a norm", "that the whole stream goes through.")),
    ]  # fmt: skip
    for x, norm_first, name, argument, code, notes in sides:
        d.rect(x, 94, 434, 584, WHITE, EDGE, 1.5, 12)
        d.text(x + 20, 124, name, size=18, bold=True)
        d.text(x + 414, 124, argument, mono=True, anchor="end", fill=MUTED, room=170)
        stream = x + 92
        draw_block(d, stream, 144, norm_first)
        d.text(stream - 14, 160, "x", mono=True, bold=True, size=18, anchor="end")
        for index, line in enumerate(code):
            d.text(x + 20, 582 + 22 * index, line, mono=True, room=400)
        for index, line in enumerate(notes):
            d.text(x + 20, 638 + 22 * index, line, fill=MUTED, room=400)
    return d


# --- encoder -------------------------------------------------------------------------------------


def draw_encoder() -> Drawing:
    alt = (
        f"The Vision Transformer from top to bottom: {BATCH} photographs are cut into {PATCHES} "
        f"patches, one Linear makes each a token of width {EMBED_DIM}, a class token is "
        f"prepended and positions are added, giving {(BATCH, TOKENS, EMBED_DIM)}. {NUM_LAYERS} "
        f"equal blocks keep that shape; then a norm, and a Linear head reads the class token and "
        f"gives k logits for each photograph. Next to it, one block enlarged: norm, attention, add "
        f"to the stream; norm, feed-forward, add to the stream."
    )
    d = Drawing("encoder", 862, "The encoder at a glance", alt)
    d.heading(
        "The encoder at a glance", "A Vision Transformer: photographs in, k numbers each out."
    )
    x, box_w = 32, 236
    middle = x + box_w / 2
    note_x = x + box_w + 22

    def shape(y: float, letters: str, sizes: tuple[int | str, ...]) -> None:
        d.text(note_x, y - 5, letters, mono=True, bold=True)
        d.text(note_x, y + 17, "(" + ", ".join(map(str, sizes)) + ")", mono=True, fill=MUTED)

    photo(d, middle - 44, 112, 84, stack=3)
    for cut in range(1, GRID):
        at = 84 * cut / GRID
        d.line([(middle - 44 + at, 112), (middle - 44 + at, 196)], 1.5, CARD)
        d.line([(middle - 44, 112 + at), (middle + 40, 112 + at)], 1.5, CARD)
    shape(154, "b c (gh ph) (gw pw)", (BATCH, IN_CHANNELS, IMAGE_SIZE, IMAGE_SIZE))
    d.arrow([(middle, 198), (middle, 222)], 2.5)
    d.box(x, 222, box_w, 44, ("patches, then Linear",), learned=True)
    shape(244, "b (gh gw) e", (BATCH, PATCHES, EMBED_DIM))
    d.arrow([(middle, 266), (middle, 290)], 2.5)
    d.box(x, 290, box_w, 44, ("class token first",), learned=True)
    d.arrow([(middle, 334), (middle, 358)], 2.5)
    d.box(x, 358, box_w, 44, ("+ positions",), learned=True)
    shape(380, "b n e", (BATCH, TOKENS, EMBED_DIM))

    d.arrow([(middle, 402), (middle, 430)], 2.5)
    tokens = 13  # drawn for TOKENS
    unit = box_w / tokens
    for index in range(tokens):
        d.rect(x + index * unit, 430, unit, 34, DARK if index == 0 else MID, stroke=1.2)
    d.text(note_x, 442, "one dark token:", fill=MUTED)
    d.text(note_x, 464, "the class token", fill=MUTED)

    stack_y, block_h, block_gap = 492, 36, 18
    names = ["block 1", "block 2", "...", f"block {NUM_LAYERS}"]
    d.arrow([(middle, 464), (middle, stack_y)], 2.5)
    for index, name in enumerate(names):
        y = stack_y + index * (block_h + block_gap)
        if name == "...":
            d.text(middle, y + 22, "· · ·", size=20, anchor="middle", bold=True)
        else:
            d.box(x, y, box_w, block_h, (name,), learned=True)
        if index:
            d.arrow([(middle, y - block_gap), (middle, y)], 2.5)
    last = stack_y + 3 * (block_h + block_gap)
    shape(last + block_h / 2, "b n e", (BATCH, TOKENS, EMBED_DIM))
    d.arrow([(middle, last + block_h), (middle, last + block_h + 20)], 2.5)
    norm_y = last + block_h + 20
    d.box(x, norm_y, box_w, block_h, ("norm",), learned=True)
    head_y = norm_y + block_h + 20
    d.arrow([(middle, norm_y + block_h), (middle, head_y)], 2.5)
    d.box(x, head_y, box_w, 58, ("head", "class token -> k"), learned=True)
    shape(head_y + 29, "b k", (BATCH, "k"))

    panel_x, panel_y, panel_w, panel_h = 508, 112, 420, 590
    block2 = stack_y + block_h + block_gap
    d.arrow([(x + box_w, block2 + block_h / 2), (panel_x, block2 + block_h / 2)], 2, MUTED, "6 5")
    d.text(note_x, block2 + 10, "each block:", fill=MUTED)
    d.rect(panel_x, panel_y, panel_w, panel_h, WHITE, EDGE, 2, 12)
    d.text(panel_x + 20, panel_y + 34, "one block, enlarged", size=18, bold=True)
    d.text(panel_x + 20, panel_y + 58, f"{NUM_LAYERS} of them, {BLOCK_PARAMS} parameters each",
           fill=MUTED, room=390)  # fmt: skip
    stream = panel_x + 76
    draw_block(d, stream, panel_y + 84, True)
    d.text(stream - 14, panel_y + 102, "x", mono=True, bold=True, size=18, anchor="end")
    d.text(panel_x + 20, panel_y + 530, "The thick line keeps its shape:", fill=MUTED)
    d.text(panel_x + 20, panel_y + 556, f"b n e = ({BATCH}, {TOKENS}, {EMBED_DIM})", mono=True)

    key_y = 744
    d.rect(panel_x, key_y - 18, 30, 24, LEARNED, round_=5)
    d.hatch(panel_x + 3, key_y - 15, 10, 18, LEARNED_HATCH, step=5)
    d.text(panel_x + 42, key_y, "hatched edge: has learned numbers")
    d.plus(panel_x + 15, key_y + 30, 12)
    d.text(panel_x + 42, key_y + 36, "the result is added to the stream")
    d.line([(panel_x, key_y + 66), (panel_x + 30, key_y + 66)], 7, DARK)
    d.text(panel_x + 42, key_y + 72, "the residual stream x")
    return d


# --- the Transformer of two sequences ------------------------------------------------------------


def draw_transformer() -> Drawing:
    alt = (
        f"The Transformer in its pre-norm form. Left, from top to bottom, the encoder: source ids "
        f"(b, j) are embedded with their positions, {TEXT_LAYERS} encoder blocks and a final norm "
        f"follow, the result is the memory (b, j, e). Middle, the decoder: target ids (b, i) are "
        f"embedded, {TEXT_LAYERS} decoder blocks and a final norm follow, and a Linear gives "
        f"logits (b, i, v). An arrow goes from the memory into every decoder block. Right, one "
        f"decoder block enlarged: three side branches, each added to the residual stream: norm1 "
        f"and causal self-attention; norm2 and cross-attention, into which the memory comes from "
        f"the side as keys and values; norm3 and feed-forward."
    )
    d = Drawing("transformer", 826, "The Transformer: encoder, decoder, and what joins them", alt)
    d.heading(
        "The Transformer: encoder, decoder, and what joins them",
        "Source tokens j attend to all; target tokens i only to themselves and earlier ones.",
    )
    box_w, left, right, top, gap = 192, 28, 272, 128, 26
    enc, dec = left + box_w / 2, right + box_w / 2

    def column(x: float, ids: str, shape: str, block: str) -> list[float]:
        """Draw one stack from its ids to its final norm; return the tops of all boxes."""
        middle = x + box_w / 2
        d.text(middle, top, ids, anchor="middle", bold=True)
        tops = [top + 40, *(top + 40 + 58 + gap + index * (BOX_H + gap) for index in range(4))]
        d.arrow([(middle, top + 10), (middle, tops[0])], 2.5)
        d.box(x, tops[0], box_w, 58, ("TokenEmbedding", shape), learned=True)
        d.arrow([(middle, tops[0] + 58), (middle, tops[1])], 2.5)
        for index, name in enumerate([f"{block} 1", f"{block} 2", "", f"{block} {TEXT_LAYERS}"]):
            y = tops[1 + index]
            if name:
                d.box(x, y, box_w, BOX_H, (name,), learned=True)
            else:
                d.text(middle, y + 27, "· · ·", size=20, anchor="middle", bold=True)
            if index:
                d.arrow([(middle, y - gap), (middle, y)], 2.5)
        tops.append(tops[-1] + BOX_H + gap)
        d.arrow([(middle, tops[-1] - gap), (middle, tops[-1])], 2.5)
        d.box(x, tops[-1], box_w, BOX_H, ("norm",), learned=True)
        return tops

    column(left, "source ids (b, j)", "(b, j, e)", "encoder block")
    tops = column(right, "target ids (b, i)", "(b, i, e)", "decoder block")
    last = tops[-1] + BOX_H
    d.arrow([(enc, last), (enc, last + 30)], 2.5)
    d.slab(enc - 60, last + 30, 120, 42, 7, LIGHT)
    d.text(enc, last + 98, "memory (b, j, e)", anchor="middle", bold=True)
    lane = (left + box_w + right) / 2
    d.line([(enc + 60, last + 51), (lane, last + 51), (lane, tops[1] + BOX_H / 2)], 3, DARK)
    for y in (tops[1], tops[2], tops[4]):
        d.arrow([(lane - 1, y + BOX_H / 2), (right, y + BOX_H / 2)], 3, DARK)
    d.arrow([(dec, last), (dec, last + 30)], 2.5)
    d.box(right, last + 30, box_w, 58, ("head: Linear", "e -> v"), learned=True)
    d.arrow([(dec, last + 88), (dec, last + 116)], 2.5)
    d.text(dec, last + 136, "logits (b, i, v)", anchor="middle", bold=True)

    panel_x, panel_y, panel_w, panel_h = 508, 104, 424, 694
    d.arrow([(right + box_w, tops[1] + BOX_H / 2), (panel_x, tops[1] + BOX_H / 2)], 2, MUTED, "6 5")
    d.rect(panel_x, panel_y, panel_w, panel_h, WHITE, EDGE, 2, 12)
    d.text(panel_x + 20, panel_y + 32, "one decoder block, enlarged", size=18, bold=True)
    stream = panel_x + 46
    d.text(stream - 12, panel_y + 70, "x", mono=True, bold=True, size=18, anchor="end")
    d.arrow([(stream, panel_y + 52), (stream, panel_y + panel_h - 52)], 7, DARK)
    end, boxes = draw_branch(d, stream, panel_y + 72, ["norm1", "self-attn, causal"], 230)
    end, boxes = draw_branch(d, stream, end + 34, ["norm2", "cross-attention"], 230)
    inner = stream + 64 + 230
    d.arrow([(panel_x + panel_w - 6, boxes[1] + BOX_H / 2), (inner, boxes[1] + BOX_H / 2)], 3, DARK)
    d.text(inner + 6, boxes[1] + 46, "memory", fill=MUTED)
    d.text(inner + 6, boxes[1] + 66, "k, v", mono=True, fill=MUTED)
    draw_branch(d, stream, end + 34, ["norm3", "feed-forward (mlp)"], 230)
    d.text(panel_x + 20, panel_y + panel_h - 18, "(b, i, e) from end to end", mono=True)
    key_y = 790
    d.rect(left, key_y - 18, 30, 24, LEARNED, round_=5)
    d.hatch(left + 3, key_y - 15, 10, 18, LEARNED_HATCH, step=5)
    d.text(left + 40, key_y, "hatched: learned numbers")
    d.line([(left + 276, key_y - 6), (left + 306, key_y - 6)], 7, DARK)
    d.text(left + 314, key_y, "residual stream x")
    return d


# --- the modern decoder --------------------------------------------------------------------------


class Side(NamedTuple):
    """One of the two decoders that are compared."""

    x: float
    name: str
    chapter: str
    start: str
    parts: tuple[str, str, str, str]
    key_heads: int
    end: tuple[str, str]
    notes: tuple[str, ...]


def draw_modern_decoder() -> Drawing:
    alt = (
        "Two blocks side by side. In each, the residual stream x is a straight thick line from "
        "top to bottom; its branches show what is computed and added. GPT-2, chapter 12: "
        "positions are added to the tokens; LayerNorm and attention, in which each of 6 heads "
        "of queries has its own head of keys; LayerNorm and feed-forward; at the end a "
        "LayerNorm, and one matrix for embedding and logits. Llama and Qwen: nothing is added "
        "to the tokens; RMSNorm and attention, in which queries and keys are rotated by their "
        "positions and 6 heads of queries share 2 heads of keys; RMSNorm and a gated feed- "
        "forward; at the end an RMSNorm, and a separate matrix for the logits."
    )
    d = Drawing("modern_decoder", 806, "From GPT-2 to Llama and Qwen", alt)
    d.heading(
        "From GPT-2 to Llama and Qwen", "The residual stream x stays; the parts are replaced."
    )
    sides = [
        Side(32, "GPT-2", "chapter 12", "tokens + positions",
             ("LayerNorm", "attention", "LayerNorm", "feed-forward"), 6,
             ("LayerNorm", "logits: tied"),
             ("each head of queries has its own keys", "biases everywhere")),
        Side(494, "Llama, Qwen", "chapter 13", "tokens",
             ("RMSNorm", "rotary attention", "RMSNorm", "gated feed-forward"), 2,
             ("RMSNorm", "logits: untied"),
             ("heads of queries share heads of keys", "almost no biases")),
    ]  # fmt: skip
    for side in sides:
        x, stream = side.x, side.x + 92
        d.rect(x, 94, 434, 688, WHITE, EDGE, 1.5, 12)
        d.text(x + 20, 124, side.name, size=18, bold=True)
        d.text(x + 414, 124, side.chapter, anchor="end", fill=MUTED, room=170)
        d.box(x + 20, 142, 226, 38, (side.start,), learned=True)
        d.arrow([(stream, 180), (stream, 604)], 7, DARK)
        d.text(stream - 14, 204, "x", mono=True, bold=True, size=18, anchor="end")
        end, _ = draw_branch(d, stream, 204, side.parts[:2])
        draw_branch(d, stream, end + 40, side.parts[2:])
        d.box(x + 20, 604, 144, 38, (side.end[0],), learned=True)
        d.arrow([(x + 164, 623), (x + 190, 623)], 2.5)
        d.box(x + 190, 604, 218, 38, (side.end[1],), learned=True)
        # heads of queries above heads of keys, beside the attention
        draw_shared_heads(d, x + 20, 668, side.key_heads)
        for index, line in enumerate(side.notes):
            d.text(x + 20, 746 + 24 * index, line, fill=MUTED, room=400)
    return d


def draw_shared_heads(d: Drawing, x: float, y: float, key_heads: int, heads: int = 6) -> None:
    """Draw 6 heads of queries, and below them the heads of keys that they read."""
    step, side = 30, 18
    d.text(x + heads * step + 12, y + 14, "heads of queries", fill=MUTED)
    d.text(x + heads * step + 12, y + 44, "heads of keys", fill=MUTED)
    each = heads // key_heads
    for head in range(heads):
        middle = x + head * step + side / 2
        d.rect(x + head * step, y, side, side, LIGHT)
        group = head // each
        to = x + (group * each + (each - 1) / 2) * step + side / 2
        d.line([(middle, y + side), (to, y + 30)], 1.5)
    for group in range(key_heads):
        d.rect(x + (group * each + (each - 1) / 2) * step, y + 30, side, side, DARK)


# --- everything ----------------------------------------------------------------------------------

USED_IN = {
    "ledger": "README, docs/ledger, 00 shapes_and_einops",
    "encoder": "07 encoder",
    "patchify": "01 patch_embedding",
    "heads": "02 qkv_projection, 04 multi_head_attention",
    "attention_head": "03 scaled_dot_product_attention, 04 multi_head_attention",
    "masks": "05 masking",
    "norm_order": "06 feed_forward_and_residual",
    "transformer": "10 decoder",
    "modern_decoder": "13 modern_decoder",
    "ledger_text": "docs/ledger, 10 decoder",
    "house": "CONTRIBUTING",
}


def drawings() -> list[Drawing]:
    """Return all drawings in the order of the table."""
    return [
        draw_ledger(), draw_encoder(), draw_patchify(), draw_heads(), draw_attention_head(),
        draw_masks(), draw_norm_order(), draw_transformer(), draw_modern_decoder(),
        draw_text_ledger(), draw_house(),
    ]  # fmt: skip


def readme(pictures: Sequence[Drawing]) -> str:
    """Return README.md: which drawing is used where, with which alt text."""
    rows = "\n".join(
        f"| [{picture.name}.svg]({picture.name}.svg) | {USED_IN[picture.name]} | {picture.alt} |"
        for picture in pictures
    )
    return f"""# Drawings

`python img/make_drawings.py` draws all of them, and writes this page; it needs Python and no
package, and writes the same bytes each time. To change a drawing, change the script. The sizes of
the running examples come from docs/ledger.md. Tensors are tables with square corners, operations
are rounded, and a hatched edge means learned numbers. Each drawing brings its own light card, so it
reads on a dark page, and uses lightness and hatching, so it reads in grey.

The alt text is also the description inside the file. A chapter links to `../img/NAME.svg`.

| file | where used | alt text |
|---|---|---|
{rows}
"""


def main() -> None:
    """Write every drawing and the table beside this file."""
    folder = Path(__file__).resolve().parent
    pictures = drawings()
    files = {f"{picture.name}.svg": picture.svg() for picture in pictures}
    for name, content in {**files, "README.md": readme(pictures)}.items():
        (folder / name).write_bytes(content.encode("utf-8"))


if __name__ == "__main__":
    main()
