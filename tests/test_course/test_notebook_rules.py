"""The rules for notebooks can say no: each fails on what it is there to catch."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import notebook_rules as rules
import pytest
from made_up import check, code, notebook, prose
from notebook_rules import Chapter
from test_refresh import run

from checks.engine.verdict import VERDICT_MIME
from tools.course.notebook import WIDGET_VIEW, Cell
from tools.course.registry import ROOT

GOOD_TOP = (
    "# 03 Title\n\nAbout 30 minutes.\n\n| step | shape | parameters |\n|---|---|---|\n"
    "| scores, weights | (6, 8, 37, 37) | |\n"
)
TEXT_ROW = """| step | shape | parameters |
|---|---|---|
| **decoder block** (chapter 10) | (3, 11, 512) | 4,204,032 |
"""
GOOD = [
    prose(GOOD_TOP),
    code("import torch\nfrom utils.shapes import describe"),
    prose("## Steps\nThe shape is (2, 3). It costs $a_{1}$, [see](#Next). `$(9, 9` is code."),
    code("guess = ..."),
    code("describe(torch.zeros(2, 3), 'i j')"),
    code("torch.zeros(2, 3).shape[5]", "raises-exception"),
    code("def double(x):\n    def inner():\n        return x\n    return inner() + inner()"),
    prose("## What `utils` holds now"),
    code("from utils.embedding import patchify\nprint(patchify(torch.zeros(1, 1, 4, 4), 2).shape)"),
    prose("## Exercises\n[Exercises 03](exercises/03_exercises.ipynb)"),
    prose("## Next"),
]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Chapter:
    folder = tmp_path_factory.mktemp("good")
    (folder / "exercises").mkdir()
    (folder / "exercises" / "03_exercises.ipynb").write_text("{}")
    return Chapter.read(run(folder, *GOOD, name="03_good.ipynb"))


@pytest.mark.parametrize("rule", rules.RULES, ids=lambda rule: rule.__name__)
def test_a_good_chapter_keeps_every_rule(good: Chapter, rule: Callable) -> None:
    assert rule(good) == []


def stdout(text: str) -> dict[str, Any]:
    return {"name": "stdout", "output_type": "stream", "text": [text]}


def html(text: str) -> dict[str, Any]:
    return {"data": {"text/html": [text]}, "metadata": {}, "output_type": "display_data"}


def shows(output: dict[str, Any]) -> Callable[[list[Cell]], None]:
    return lambda cells: cells[4]["outputs"].append(output)


def with_words(words: str) -> dict[str, Any]:
    data = {
        **PICTURE["data"],
        "text/html": [f'<img alt="{words}" src="data:image/png;base64,AAAA">'],
    }
    return {**PICTURE, "data": data}


def says(text: str) -> Callable[[list[Cell]], None]:
    return lambda cells: cells[2].update(source=text)


def runs(text: str) -> Callable[[list[Cell]], None]:
    return lambda cells: cells[6].update(source=text)


def setting(number: int, **fields: Any) -> Callable[[list[Cell]], None]:
    return lambda cells: cells[number].update(fields)


VIEW = {
    "data": {WIDGET_VIEW: {"model_id": "1", "version_major": 2, "version_minor": 0}},
    "metadata": {},
    "output_type": "display_data",
}
PICTURE = {"data": {"image/png": "AAAA"}, "metadata": {}, "output_type": "display_data"}
ERROR = {"ename": "E", "evalue": "e", "output_type": "error", "traceback": ["E: e"]}

# Rule, what it must catch, and the change to the cells of the good chapter that brings it about.
BROKEN: list[tuple[Callable, str, Callable[[list[Cell]], None]]] = [
    (rules.clean_run, "count of a later run", setting(3, execution_count=7)),
    (rules.clean_run, "never run", setting(3, execution_count=None)),
    (rules.clean_run, "empty cell", setting(3, source="")),
    (rules.errors, "error without its tag", shows(ERROR)),
    (rules.errors, "promised error missing", setting(5, outputs=[])),
    (rules.quiet, "stderr", shows({"name": "stderr", "output_type": "stream", "text": ["x"]})),
    (rules.quiet, "warning", shows(stdout("UserWarning: old"))),
    (rules.structure, "id twice", lambda cells: cells[3].update(id=cells[2]["id"])),
    (rules.structure, "no id", lambda cells: cells[3].pop("id")),
    (rules.structure, "id with a space", setting(3, id="a b")),
    (rules.structure, "cell without metadata", lambda cells: cells[3].pop("metadata")),
    (rules.structure, "unknown cell", setting(2, cell_type="prose")),
    (rules.structure, "unknown output", shows({"output_type": "sound"})),
    (rules.form, "metadata of a run", setting(3, metadata={"trusted": True})),
    (rules.form, "long traceback", lambda c: c[5]["outputs"][0].update(traceback=["File /a"])),
    (rules.no_traces, "absolute path", shows(stdout("File /home/me/utils/attention.py"))),
    (rules.no_traces, "path in html", shows(html("<i>/tmp/x</i>"))),
    (rules.no_traces, "address", shows(stdout("<function f at 0x7f3c2b1a>"))),
    (rules.no_traces, "version", shows(stdout("torch 2.13.0"))),
    (rules.no_traces, "version with build", shows(stdout("2.13.0+cpu"))),
    (rules.no_traces, "date", shows(stdout("2026-11-20"))),
    (rules.no_traces, "clock", shows(stdout("took 00:14"))),
    (rules.no_traces, "timing", shows(stdout("9.3 ms"))),
    (rules.no_traces, "seconds", shows(stdout("trained in 12.4 s"))),
    (rules.no_traces, "device", shows(stdout("tensor([1], device='cuda:0')"))),
    (rules.compared, "nbval comment", runs("# NBVAL_IGNORE_OUTPUT\n1")),
    (rules.compared, "nbval tag", setting(4, metadata={"tags": ["nbval-skip"]})),
    (rules.widgets, "widget", shows(VIEW)),
    (rules.pictures, "picture without words", shows(PICTURE)),
    (rules.pictures, "picture with empty words", shows(with_words(" "))),
    (rules.explorers, "two of one name", shows(html('<div id="explorer-a"></div>' * 2))),
    (rules.narrow, "wide code", runs("total = " + " + ".join(["1"] * 30))),
    (rules.narrow, "a wide printed line", shows(stdout("a" * 85))),
    (rules.shows_something, "silent cells", setting(4, outputs=[])),
    (rules.lengths, "long cell", runs("a = 1\n" * 26)),
    (rules.lengths, "long median", lambda cells: [c.update(source="a = 1\n" * 6) for c in cells]),
    (rules.plain_python, "magic", runs("%matplotlib inline")),
    (rules.plain_python, "sys.path", runs("import sys\nsys.path.append('..')")),
    (rules.no_globals, "function", runs("size = 3\ndef f(x):\n    return x * size")),
    (rules.no_globals, "method", runs("n = 3\nclass A:\n    def f(self):\n        return n")),
    (rules.no_globals, "default", runs("n = 3\nclass A:\n    width = n")),
    (
        rules.no_globals,
        "inner",
        runs("n = 3\ndef f():\n    def g():\n        return n\n    return g"),
    ),
    (rules.no_globals, "declared", runs("n = 3\ndef f():\n    global n\n    n = n + 1")),
    (rules.earlier_only, "later chapter", runs("from utils.attention import MultiHeadAttention")),
    (rules.earlier_only, "later module", runs("from utils import encoder\nencoder.Encoder")),
    (rules.earlier_only, "later import", runs("import utils.masking\nutils.masking.causal_mask")),
    (
        rules.earlier_only,
        "own, not built",
        runs("from utils import attention as a\na.scaled_dot_product_attention"),
    ),
    (rules.earlier_only, "unknown file", runs("from utils.magic import trick")),
    (rules.links, "missing file", says("[x](04_nowhere.ipynb)")),
    (rules.links, "missing picture", says("![a long text](../img/nothing.svg)")),
    (rules.links, "no alt text", says("![](https://a.b/c.svg)")),
    (rules.links, "no alt text in html", says('<img src="03_good.ipynb">')),
    (rules.links, "missing html picture", says('<img src="no.svg" alt="a long text">')),
    (rules.links, "picture from a network", says("![a long text](https://a.b/c.png)")),
    (rules.links, "missing heading", says("[x](#Nowhere)")),
    (rules.links, "heading elsewhere", says("[x](03_good.ipynb#Nowhere)")),
    (rules.links, "absolute", says("[x](/etc/hosts)")),
    (rules.links, "linked picture", says("[![a long text](no.svg)](03_good.ipynb)")),
    (rules.links, "reference", says("[x][there]\n\n[there]: 04_nowhere.ipynb")),
    (rules.links, "in a block of html", says("<details>\n[x](04_nowhere.ipynb)\n</details>")),
    (rules.links, "attachment", says("![a long text](attachment:no.png)")),
    (rules.math, "dollar left over", says("It is $a + b.")),
    (rules.math, "display left over", says("$$a + b\n\nThen")),
    (rules.math, "dollar left over in html", says("<details>\nIt is $a.\n</details>")),
    (rules.math, "brace", says(r"$\frac{a}{b$")),
    (rules.math, "left without right", says(r"$\left( a$")),
    (rules.math, "begin without end", says(r"$$\begin{aligned} a$$")),
    (rules.tables, "no ruler", says("| a | b |\n| 1 | 2 |")),
    (rules.tables, "short row", says("| a | b |\n|---|---|\n| 1 |")),
    (rules.tables, "long row", says("| a | b |\n|---|---|\n| 1 | 2 | 3 |")),
    (rules.tables, "bar in code", says("| `a | b` | c |\n|---|---|\n| 1 | 2 |")),
    (rules.tables, "in a quote", says("> | a | b |\n> |---|---|\n> | 1 |")),
    (rules.tables, "in a list", says("- x\n\n  | a | b |\n  |---|---|\n  | 1 |")),
    (rules.tables, "in a block of html", says("<details>\n| a |\n|---|\n| 1 |\n</details>")),
    (rules.stated_shapes, "shape not shown", says("The shape is (3, 2).")),
    (rules.stated_shapes, "in code", says("The shape is `(2, 3, 1)`.")),
    (rules.stated_shapes, "named sizes", says("The shape is (b=2, n=4).")),
    (rules.ledger_agrees, "wrong shape", setting(0, source=GOOD_TOP.replace("37,", "36,"))),
    (rules.ledger_agrees, "wrong count", setting(0, source=GOOD_TOP.replace("| |", "| 7 |"))),
    (rules.ledger_agrees, "wrong step", setting(0, source=GOOD_TOP.replace("scores", "goals"))),
    (rules.ledger_agrees, "wrong shape of text", says(TEXT_ROW.replace("(3, 11,", "(3, 7,"))),
    (rules.ledger_agrees, "wrong count of text", says(TEXT_ROW.replace("4,204", "4,205"))),
    (rules.frame, "wrong number", setting(0, source=GOOD_TOP.replace("03", "04"))),
    (rules.frame, "no minutes", setting(0, source=GOOD_TOP.replace("30 minutes", "long"))),
    (rules.frame, "too many minutes", setting(0, source=GOOD_TOP.replace("30", "70"))),
    (rules.frame, "no ledger", setting(0, source="# 03 Title\n\nAbout 30 minutes.")),
    (rules.frame, "no section", setting(10, source="## Then")),
    (rules.frame, "no exercises", setting(9, source="## Exercises")),
    (rules.frame, "imports later", runs("import math")),
    (rules.frame, "no import cell", setting(1, source="1 + 1")),
]


@pytest.mark.parametrize(
    ("rule", "what", "change"), BROKEN, ids=[f"{r.__name__}-{w}" for r, w, _ in BROKEN]
)
def test_a_broken_chapter_is_caught(
    good: Chapter, rule: Callable, what: str, change: Callable[[list[Cell]], None]
) -> None:
    broken = copy.deepcopy(good.json)
    change(broken["cells"])
    text = json.dumps(broken, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    assert rule(Chapter(good.path, text)), f"{rule.__name__} does not see: {what}"


def test_every_rule_is_proved_to_fail() -> None:
    assert {rule for rule, _, _ in BROKEN} == set(rules.RULES)


MASTER_TOP = "# 03 Solutions: Title\n\nOf [chapter 03](../03_good.ipynb). About 30 minutes."
MASTER = [
    prose(MASTER_TOP),
    code("import torch"),
    prose("## 1. One\n\nDifficulty 2 of 5 · about 12 minutes"),
    prose("## 2. Two"),
    prose("**Why:** so.\n\nDifficulty 2 of 5 · about 18 minutes"),
    code('progress("03")'),
    prose("## Next"),
]
MASTERS_FAULTS = {
    "title": setting(0, source=MASTER_TOP.replace("03 Solutions", "04 Solutions")),
    "link": setting(0, source=MASTER_TOP.replace("../", "")),
    "no minutes": setting(0, source=MASTER_TOP.replace("30 minutes", "long")),
    "wrong sum": setting(0, source=MASTER_TOP.replace("30", "40")),
    "too little": lambda cells: [
        c.update(source=c["source"].replace("18", "8").replace("30", "20")) for c in cells
    ],
    "no imports": setting(1, source="1 + 1"),
    "no progress": setting(5, source='progress("04")'),
    "no end": setting(6, source="## Last"),
}


@pytest.mark.parametrize("fault", ["", *MASTERS_FAULTS])
def test_the_frame_of_a_source_notebook(fault: str) -> None:
    cells = copy.deepcopy(MASTER)
    if fault:
        MASTERS_FAULTS[fault](cells)
    path = ROOT / "notebooks" / "solutions" / "03_solutions.ipynb"
    found = rules.exercise_frame(Chapter(path, json.dumps(notebook(*cells))))
    assert bool(found) == bool(fault), found


def verdict(cell: Cell, state: str) -> None:
    said = {"exercise": "03.1", "state": state, "text": "so."}
    data = {VERDICT_MIME: said, "text/plain": f"03.1  {state}: so."}
    cell["outputs"] = [{"data": data, "metadata": {}, "output_type": "display_data"}]


@pytest.mark.parametrize("state", ["right", "not right", "not yet", ""])
def test_a_source_notebook_is_right(state: str) -> None:
    cell = check(1, 2, 'check("03.1", a)')
    if state:
        verdict(cell, state)
    path = ROOT / "notebooks" / "solutions" / "03_solutions.ipynb"
    found = rules.answered_right(Chapter(path, json.dumps(notebook(prose("# 03"), cell))))
    assert bool(found) == (state != "right"), found


ALLOWED: list[tuple[Callable, Callable[[list[Cell]], None]]] = [
    (rules.narrow, shows(html("<p>" + "a" * 200 + "</p>"))),
    (rules.stated_shapes, says("At (9, 9). <!-- shape: example -->")),
    (rules.stated_shapes, says("The vector (0, 1, 0) and 590,592 and (1,000).")),
    (rules.no_traces, shows(stdout("  0%|   | 0/7 [00:00<?, ?epoch/s]"))),
    (rules.no_traces, shows(stdout("accuracy 0.99 with 3 seeds, 7 x 2.5 = 17.5"))),
    (rules.math, says(r"`$` and \$3 and $a_{i}$ and $$\left\{ b \right\}$$")),
    (rules.tables, says("| `a \\| b` | c |\n|---|:-:|\n| 1 | 2 |")),
    (rules.tables, says("> | a | b |\n> |---|---|\n> | 1 | 2 |")),
    (rules.tables, says("- x\n\n  | a | b |\n  |---|---|\n  | 1 | 2 |")),
    (rules.tables, says("```text\n| a | b |\n```")),
    (rules.math, says("<!-- It is $a\n\nand [x](no) -->\n\nThen $b$.")),
    (rules.links, says("<!-- It is $a\n\nand [x](no) -->\n\nThen $b$.")),
    (rules.links, says("```\n[x](no)\n```\n\n<!-- [x](no) -->")),
    (rules.links, says("[x](03_good.ipynb#Exercises) [y](#What-utils-holds-now) `[z](no)`")),
    (rules.no_globals, runs("w = 1\ndef show(change):\n    w.value = 2\nw.observe(show, 'value')")),
    (rules.earlier_only, runs("def scaled_dot_product_attention(): ...")),
]


@pytest.mark.parametrize(("rule", "change"), ALLOWED)
def test_what_is_allowed_is_not_caught(
    good: Chapter, rule: Callable, change: Callable[[list[Cell]], None]
) -> None:
    fine = copy.deepcopy(good.json)
    change(fine["cells"])
    assert rule(Chapter(good.path, json.dumps(fine))) == []
