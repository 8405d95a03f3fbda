"""What every explorer must do, whatever it shows: clicks, keys, sliders, words for who cannot see.

Nothing here knows a chapter. What is expected comes from the numbers in the explorer's own HTML,
worked out again in Python; so a new explorer is tried as soon as a notebook stores it.
"""

from __future__ import annotations

import json
import math
import re
from functools import cached_property
from itertools import pairwise, product
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect

from tools.course import outputs

ROOT = Path(__file__).resolve().parent.parent.parent
LONG = 60_000  # milliseconds: no verdict depends on the speed of a machine


class Explorer(outputs.Explorer):
    """An explorer as a notebook stores it."""

    @cached_property
    def columns(self) -> int:
        return self.frame(self.start)["grid"][1]

    @property
    def start(self) -> list[int]:
        return [control["start"] for control in self.data["controls"]]

    def frame(self, chosen: list[int]) -> dict[str, Any]:
        """Return the frame of a choice of options, given by their places."""
        sizes = [range(len(control["options"])) for control in self.data["controls"]]
        return self.data["frames"][list(product(*sizes)).index(tuple(chosen))]

    def caption(self, chosen: list[int], query: int) -> str:
        """Return the sentence that belongs to a choice."""
        frame = self.frame(chosen)
        if isinstance(frame["caption"], list):
            return frame["caption"][query if self.data["select"] else 0]
        row, column = self.place(chosen, query)
        pairs = {"{row}": row, "{column}": column, "{token}": query}
        return re.sub(r"\{\w+\}", lambda found: str(pairs[found[0]]), frame["caption"])

    def place(self, chosen: list[int], query: int) -> tuple[int, int]:
        cell = query - len(self.data["buttons"])
        if self.data["select"] == "row":
            return cell, 0
        return divmod(cell, self.frame(chosen)["grid"][1])

    def heat(self, chosen: list[int], query: int) -> list[str] | None:
        """Return the texts of the cells of the map, or None where no map is shown."""
        heat = self.frame(chosen)["heat"]
        if heat is None:
            return None
        levels = heat[query if len(heat) > 1 else 0]
        small = self.data["unit"] == 1000
        return [f"{level / 10:.1f}" if small else str(level) for level in levels]


def stored(path: Path) -> list[Explorer]:
    """Return the explorers of a notebook, in order."""
    found = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            html = "".join(output.get("data", {}).get("text/html", ""))
            found += [Explorer(**vars(one)) for one in outputs.explorers(html)]
    return found


CHAPTERS = sorted((ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))
WITH_EXPLORERS = [path for path in CHAPTERS if stored(path)]


def try_all(page: Page, explorers: list[Explorer]) -> None:
    """Try every explorer of a page; the page must show exactly these."""
    shown = page.locator(".sbs-explorer")
    expect(shown).to_have_count(len(explorers), timeout=LONG)
    assert [node.get_attribute("id") for node in shown.all()] == [e.id for e in explorers]
    for explorer in explorers:
        root = page.locator(f"#{explorer.id}")
        root.scroll_into_view_if_needed(timeout=LONG)
        kinds = {"pictures": try_pictures, "product": try_product, "attention": try_attention}
        kinds[explorer.kind](root, explorer)
        assert not strange_classes(root), "class names without the prefix sbs- meet other styles"


def strange_classes(root: Locator) -> list[str]:
    return root.evaluate(
        """root => [...root.querySelectorAll("[class]")].flatMap((node) => [...node.classList])
           .filter((name) => !name.startsWith("sbs-"))"""
    )


# ------------------------------------------------------------------------------------- pictures


def try_pictures(root: Locator, explorer: Explorer) -> None:
    """Move every control through all options, click every cell and button, walk with the keys."""
    data = explorer.data
    chosen, query = explorer.start, data["query"]
    expect_shown(root, explorer, chosen, query)
    if data["select"]:
        try_cells(root, explorer)
    for place, control in enumerate(data["controls"]):
        select_query(root, explorer, query)
        try_control(root, explorer, place, control)


def expect_shown(root: Locator, explorer: Explorer, chosen: list[int], query: int) -> None:
    said = root.locator(".sbs-said")
    expect(said).to_have_text(explorer.caption(chosen, query), timeout=LONG)
    expect(said).to_have_attribute("aria-live", "polite")
    texts = explorer.heat(chosen, query)
    if texts is None:
        return
    words = root.locator("svg rect > title")
    assert [re.search(r": ([\d.]+)", text)[1] for text in words.all_text_contents()] == texts
    if explorer.data["unit"] != 1:
        peak = explorer.data["peak"]
        most = max(map(float, texts)) if peak is None else 100 * peak
        expect(root.locator(".sbs-scale b")).to_have_text(re.compile(rf"^{most:g}(\.0)? %$"))


def cells_of(explorer: Explorer) -> int:
    rows, columns = explorer.frame(explorer.start)["grid"]
    return rows if explorer.data["select"] == "row" else rows * columns


def click_cell(root: Locator, explorer: Explorer, cell: int) -> None:
    """Click into the middle of a cell of the grid that can be clicked."""
    svg = root.locator('svg[role="application"]').first
    rows, columns = explorer.frame(explorer.start)["grid"]
    row, column = (cell, 0) if explorer.data["select"] == "row" else divmod(cell, columns)
    wide, tall, margin, scale = svg.evaluate(
        """svg => [svg.wide, svg.tall, -svg.viewBox.baseVal.x,
           svg.getBoundingClientRect().width / svg.viewBox.baseVal.width]"""
    )
    spot = {
        "x": (margin + wide * (column + 0.5) / columns) * scale,
        "y": (margin + tall * (row + 0.5) / rows) * scale,
    }
    svg.click(position=spot, timeout=LONG)


def select_query(root: Locator, explorer: Explorer, query: int) -> None:
    if not explorer.data["select"]:
        return
    buttons = explorer.data["buttons"]
    if query < len(buttons):
        root.get_by_role("button", name=buttons[query], exact=True).click(timeout=LONG)
    else:
        click_cell(root, explorer, query - len(buttons))


def try_cells(root: Locator, explorer: Explorer) -> None:
    start, buttons = explorer.start, explorer.data["buttons"]
    for query in range(len(buttons) + cells_of(explorer)):
        select_query(root, explorer, query)
        expect_shown(root, explorer, start, query)
    for place, text in enumerate(buttons):
        button = root.get_by_role("button", name=text, exact=True)
        button.click(timeout=LONG)
        expect(button).to_have_attribute("aria-pressed", "true")
        expect_shown(root, explorer, start, place)
    # From the first cell: down, right where there are columns, and against the upper left corner.
    click_cell(root, explorer, 0)
    svg = root.locator('svg[role="application"]').first
    rows, columns = explorer.frame(start)["grid"]
    row, column = 0, 0
    for key, (down, right) in {
        "ArrowDown": (1, 0), "ArrowRight": (0, 1), "ArrowUp": (-1, 0), "ArrowLeft": (0, -1),
    }.items():  # fmt: skip
        svg.press(key, timeout=LONG)
        row = min(max(row + down, 0), rows - 1)
        if explorer.data["select"] == "cell":
            column = min(max(column + right, 0), columns - 1)
        cell = row if explorer.data["select"] == "row" else row * columns + column
        expect_shown(root, explorer, start, len(buttons) + cell)
    svg.press("ArrowUp", timeout=LONG)
    expect_shown(root, explorer, start, len(buttons))
    expect_focus_is_seen(svg)


def try_control(root: Locator, explorer: Explorer, place: int, control: dict[str, Any]) -> None:
    """Move one control through all its options and back to where it stood."""
    options = control["options"]
    role = "slider" if control["slider"] else "combobox"
    handle = root.get_by_role(role, name=control["label"], exact=True)
    steps = [*range(len(options)), control["start"]]
    for at in steps:
        if control["slider"]:
            move_slider(handle, at)
            expect(handle).to_have_attribute("aria-valuetext", options[at])
            expect(handle.locator("xpath=following-sibling::output")).to_have_text(options[at])
        else:
            handle.select_option(str(at), timeout=LONG)
            expect(handle).not_to_have_attribute("aria-valuetext", re.compile(""))
        chosen = [*explorer.start[:place], at, *explorer.start[place + 1 :]]
        query = shown_query(root, explorer, chosen)
        expect_shown(root, explorer, chosen, query)
    expect_focus_is_seen(handle)


def move_slider(handle: Locator, at: int) -> None:
    """Move a slider with the keyboard, one step at a time."""
    handle.focus(timeout=LONG)
    now = int(handle.input_value())
    for _ in range(abs(at - now)):
        handle.press("ArrowRight" if at > now else "ArrowLeft", timeout=LONG)
    expect(handle).to_have_value(str(at))


def shown_query(root: Locator, explorer: Explorer, chosen: list[int]) -> int:
    """Return the query that is chosen in a frame: the one that covers the same spot as before."""
    if not explorer.data["select"]:
        return 0
    buttons = explorer.data["buttons"]
    query = explorer.data["query"]
    if query < len(buttons):
        return query
    row, column = explorer.place(explorer.start, query)
    rows, columns = explorer.frame(chosen)["grid"]
    if explorer.data["select"] == "row":
        return len(buttons) + min(row, rows - 1)
    old_rows, old_columns = explorer.frame(explorer.start)["grid"]
    row = int((row + 0.5) / old_rows * rows)
    column = int((column + 0.5) / old_columns * columns)
    return len(buttons) + row * columns + column


# -------------------------------------------------------------------------------------- product


def try_product(root: Locator, explorer: Explorer) -> None:
    """Click every number of every product and reach every one by the arrow keys."""
    parts = root.locator(".sbs-part")
    for place in range(parts.count()):
        if parts.count() > 1:
            label = explorer.data["loop"]
            root.get_by_role("combobox", name=label, exact=True).select_option(str(place))
        part = parts.nth(place)
        expect(part).to_be_visible()
        assert sum(other.is_visible() for other in parts.all()) == 1
        try_part(part)


def try_part(part: Locator) -> None:
    grid = part.get_by_role("grid")
    cells = grid.get_by_role("gridcell")
    count, columns = cells.count(), len(grid.locator("thead th").all()) - 1
    for place in range(count):
        cells.nth(place).click(timeout=LONG)
        expect_taken_apart(part, cells.nth(place))
    # In a serpentine through the whole table, then once against the border.
    cells.first.click(timeout=LONG)
    path = []
    for row in range(count // columns):
        line = [(row, column) for column in range(columns)]
        path += line if row % 2 == 0 else reversed(line)
    for (row, column), (next_row, next_column) in pairwise(path):
        sideways = "ArrowRight" if next_column > column else "ArrowLeft"
        key = "ArrowDown" if next_row > row else sideways
        cells.nth(row * columns + column).press(key, timeout=LONG)
        expect_taken_apart(part, cells.nth(next_row * columns + next_column))
    last = cells.nth(path[-1][0] * columns + path[-1][1])
    last.press("ArrowDown", timeout=LONG)
    expect_taken_apart(part, last)
    expect_focus_is_seen(last)


def expect_taken_apart(part: Locator, cell: Locator) -> None:
    """The cell alone is selected; lit is what it is made of, and the sentence adds up."""
    expect(cell).to_have_attribute("aria-selected", "true", timeout=LONG)
    expect(cell).to_be_focused()
    expect(part.locator('[aria-selected="true"]')).to_have_count(1)
    expect(part.locator('.sbs-result td[tabindex="0"]')).to_have_count(1)
    tables = part.evaluate(
        """part => [...part.querySelectorAll("table")].map((table) =>
             [...table.querySelectorAll("td")].map((cell) =>
               [cell.dataset.at, cell.hasAttribute("data-lit"), Number(cell.textContent)]))"""
    )
    left, right, result = (
        [(dict(pair.split("=") for pair in at.split()), lit, number) for at, lit, number in table]
        for table in tables
    )
    ((place, _, total),) = [entry for entry in result if entry[1]]
    terms = []
    for table in (left, right):
        meant = [(at, n) for at, _, n in table if all(place.get(a, i) == i for a, i in at.items())]
        assert [(at, n) for at, lit, n in table if lit] == meant, "other numbers light up"
        (summed,) = {axis for at, _ in meant for axis in at} - set(place)
        terms.append([n for _, n in sorted(meant, key=lambda entry: int(entry[0][summed]))])
    assert len(terms[0]) == len(terms[1]) > 0
    # Every number is rounded to two digits.
    slack = 0.006 + sum(0.006 * (abs(a) + abs(b) + 0.01) for a, b in zip(*terms, strict=True))
    assert abs(sum(a * b for a, b in zip(*terms, strict=True)) - total) <= slack
    said = part.locator(".sbs-said")
    expect(said).to_have_attribute("aria-live", "polite")
    numbers = re.findall(r"\(?(-?[\d.]+)\)? × \(?(-?[\d.]+)\)?", said.inner_text())
    assert [(float(a), float(b)) for a, b in numbers] == list(zip(*terms, strict=True))
    where = ", ".join(f"{axis} = {index}" for axis, index in place.items())
    assert f"{where}, the sum over" in said.inner_text()
    assert cell.get_attribute("title") == f"{where}: {cell.inner_text()}"


def expect_focus_is_seen(node: Locator) -> None:
    """What has the focus has a frame."""
    node.focus(timeout=LONG)
    style, width = node.evaluate(
        "node => [getComputedStyle(node).outlineStyle, getComputedStyle(node).outlineWidth]"
    )
    assert style != "none", "the focus is not seen"
    assert float(width.removesuffix("px")) >= 2, "the focus is hardly seen"


# ------------------------------------------------------------------------------------- attention


def try_attention(root: Locator, explorer: Explorer) -> None:
    """Choose every text, every head, every token; the numbers must be those of the maps."""
    chosen = dict(explorer.data["start"])
    for place, look in enumerate(explorer.data["looks"]):
        if len(explorer.data["looks"]) > 1:
            label = explorer.data["label"]
            box = root.get_by_role("combobox", name=label, exact=True)
            box.select_option(str(place), timeout=LONG)
        chosen["look"] = place
        chosen["row"] = min(chosen["row"], len(look["layers"][chosen["layer"]]["rows"]) - 1)
        chosen["column"] = min(
            chosen["column"], len(look["layers"][chosen["layer"]]["columns"]) - 1
        )
        expect_attention(root, explorer, chosen)
        (try_picture_tokens if look["grid"] else try_list_tokens)(root, explorer, chosen)
        try_heads(root, explorer, chosen)
    expect_focus_is_seen(root.locator('.sbs-heads [aria-selected="true"]'))


def layer_of(explorer: Explorer, chosen: dict[str, int]) -> dict[str, Any]:
    return explorer.data["looks"][chosen["look"]]["layers"][chosen["layer"]]


def expect_attention(root: Locator, explorer: Explorer, chosen: dict[str, int]) -> None:
    """Sentence, shares, and the sum of products are those of the chosen head and tokens."""
    layer = layer_of(explorer, chosen)
    wide = len(layer["columns"])
    row = layer["heat"][chosen["head"]][chosen["row"] * wide : (chosen["row"] + 1) * wide]
    shares = ["hidden" if level < 0 else f"{level / 10:.1f} %" for level in row]
    text = explorer.data["looks"][chosen["look"]]["grid"] is None
    who, whom, favourite = (
        f"{layer[words][at]} (place {at})" if text else layer[words][at]
        for words, at in (
            ("rows", chosen["row"]), ("columns", chosen["column"]), ("columns", row.index(max(row)))
        )
    )  # fmt: skip
    said = root.locator(".sbs-said")
    beginning = f"{layer['name']}, head {chosen['head']}: {who} gives {whom} "
    expect(said).to_have_text(
        f"{beginning}{shares[chosen['column']]} of its attention; "
        f"most, {shares[row.index(max(row))]}, goes to {favourite}.",
        timeout=LONG,
    )
    expect(said).to_have_attribute("aria-live", "polite")
    expect(root.locator('.sbs-heads [aria-selected="true"]')).to_have_count(1)
    expect(root.locator('.sbs-heads [tabindex="0"]')).to_have_count(1)
    if text:
        assert root.locator(".sbs-tokens output").all_inner_texts() == shares
        assert root.locator('.sbs-tokens li[aria-selected="true"]').count() == 2
    if layer["q"]:
        expect_products(root, layer, row, chosen)


def expect_products(
    root: Locator, layer: dict[str, Any], row: list[int], chosen: dict[str, int]
) -> None:
    """Query times key is the product, they sum to the score, and scores make the shares."""
    lines = root.locator(".sbs-numbers tbody tr").evaluate_all(
        "rows => rows.map((row) => [...row.querySelectorAll('td')].map((c) => +c.textContent))"
    )
    width = layer["width"]
    for line, name, at in ((lines[0], "q", "row"), (lines[1], "k", "column")):
        start = chosen[at] * width
        numbers = layer[name][chosen["head"]][start : start + width]
        assert all(abs(a - b / 1000) < 0.0051 for a, b in zip(line, numbers, strict=True))
    for q, k, product_ in zip(*lines, strict=True):
        assert abs(q * k - product_) <= 0.006 * (1.02 + abs(q) + abs(k))
    total, score = map(
        float, re.findall(r"(?:to|score,) (-?[\d.]+\d)", root.locator(".sbs-sum").inner_text())
    )
    assert abs(sum(lines[2]) - total) <= 0.006 * (width + 1)
    assert abs(total / width**0.5 - score) <= 0.01
    scores = root.locator("details tbody td:nth-of-type(2)").evaluate_all(
        "cells => cells.map((cell) => Number(cell.textContent))"
    )
    powers = [math.exp(s) if level >= 0 else 0.0 for s, level in zip(scores, row, strict=True)]
    for power, level in zip(powers, row, strict=True):
        assert abs(power / sum(powers) - max(level, 0) / 1000) < 0.02, "not the softmax"


def try_list_tokens(root: Locator, explorer: Explorer, chosen: dict[str, int]) -> None:
    """Click every token on both sides, and walk down both lists with the keys."""
    layer = layer_of(explorer, chosen)
    for part, words, title in (
        ("row", layer["rows"], "who looks"),
        ("column", layer["columns"], "who is looked at"),
    ):
        items = root.get_by_role("listbox", name=title, exact=True).get_by_role("option")
        expect(items).to_have_count(len(words))
        for at in range(len(words)):
            items.nth(at).click(timeout=LONG)
            chosen[part] = at
            expect_attention(root, explorer, chosen)
            expect(items.nth(at)).to_be_focused()
        for key, to in (("ArrowUp", len(words) - 2), ("ArrowDown", -1), ("ArrowDown", -1)):
            items.nth(chosen[part]).press(key, timeout=LONG)
            chosen[part] = range(len(words))[to] if len(words) > 1 else 0
            expect_attention(root, explorer, chosen)
    button = root.get_by_role("button", name="all rows", exact=True)
    few = root.locator(".sbs-panels svg path").count()
    button.click(timeout=LONG)
    expect(button).to_have_attribute("aria-pressed", "true")
    assert root.locator(".sbs-panels svg path").count() >= few
    button.click(timeout=LONG)


def try_picture_tokens(root: Locator, explorer: Explorer, chosen: dict[str, int]) -> None:
    """Choose the tokens in front and some patches, by click and by key, on both sides."""
    look = explorer.data["looks"][chosen["look"]]
    (gh, gw), front = look["grid"], look["front"]
    for side, part in enumerate(("row", "column")):
        title = explorer.data["titles"][1 + side]
        svg = root.locator('svg[role="application"]').nth(side)
        for cell in {0, gw - 1, gh * gw // 2, gh * gw - 1}:
            size = svg.evaluate("svg => svg.getBoundingClientRect().width")
            scale = size / svg.evaluate("svg => svg.viewBox.baseVal.width")
            wide, tall = svg.evaluate("svg => [svg.wide, svg.tall]")
            x, y = (cell % gw + 0.5) * wide / gw + 4, (cell // gw + 0.5) * tall / gh + 4
            svg.click(position={"x": x * scale, "y": y * scale}, timeout=LONG)
            chosen[part] = front + cell
            expect_attention(root, explorer, chosen)
        for at in range(front):
            word = layer_of(explorer, chosen)["rows"][at]
            button = root.get_by_role("button", name=f"{title}: {word}", exact=True)
            button.click(timeout=LONG)
            expect(button).to_have_attribute("aria-pressed", "true")
            chosen[part] = at
            expect_attention(root, explorer, chosen)
        for key, cell in (("ArrowDown", 0), ("ArrowRight", 1), ("ArrowDown", gw + 1)):
            svg.press(key, timeout=LONG)
            chosen[part] = front + cell
            expect_attention(root, explorer, chosen)
        expect_focus_is_seen(svg)


def try_heads(root: Locator, explorer: Explorer, chosen: dict[str, int]) -> None:
    """Walk through the small maps of all heads, there by click and back with the keys."""
    look = explorer.data["looks"][chosen["look"]]
    cells = root.locator('.sbs-heads [role="gridcell"]')
    places = [(at, h) for at, one in enumerate(look["layers"]) for h in range(len(one["heat"]))]
    expect(cells).to_have_count(len(places))
    for place, (layer, head) in enumerate(places):
        cells.nth(place).click(timeout=LONG)
        expect_head(root, explorer, chosen, layer, head)
        expect(cells.nth(place)).to_be_focused()
        drawn = cells.nth(place).locator("canvas").evaluate("map => [map.height, map.width]")
        one = look["layers"][layer]
        assert drawn == (look["grid"] or [len(one["rows"]), len(one["columns"])])
    layer, head = places[-1]
    for key, (down, right) in {
        "ArrowRight": (0, 1), "ArrowUp": (-1, 0), "ArrowLeft": (0, -1), "ArrowDown": (1, 0),
    }.items():  # fmt: skip
        root.locator('.sbs-heads [tabindex="0"]').press(key, timeout=LONG)
        layer = min(max(layer + down, 0), len(look["layers"]) - 1)
        head = min(max(head + right, 0), len(look["layers"][layer]["heat"]) - 1)
        expect_head(root, explorer, chosen, layer, head)


def expect_head(
    root: Locator, explorer: Explorer, chosen: dict[str, int], layer: int, head: int
) -> None:
    """Another layer may have fewer tokens: the last ones are chosen then."""
    chosen |= {"layer": layer, "head": head}
    one = layer_of(explorer, chosen)
    chosen["row"] = min(chosen["row"], len(one["rows"]) - 1)
    chosen["column"] = min(chosen["column"], len(one["columns"]) - 1)
    expect_attention(root, explorer, chosen)
