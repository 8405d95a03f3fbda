"""What holds for every chapter and nbval does not see: one function for each rule.

Each rule takes a `Chapter` and returns its complaints, empty when all is well; `test_notebooks.py`
applies them to the chapters, `test_notebook_rules.py` proves on doctored notebooks that each one
can fail.
"""

from __future__ import annotations

import ast
import builtins
import copy
import json
import re
import statistics
import symtable
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import nbformat
from bs4 import BeautifulSoup
from mistune.plugins.table import table_in_list, table_in_quote
from nbconvert.filters.markdown_mistune import MarkdownWithMath

from checks.engine.verdict import RIGHT, VERDICT_MIME
from tools.course.cards import grading
from tools.course.notebook import WIDGET_VIEW, canonical, source
from tools.course.registry import ROOT, course

TAGS = {"raises-exception", "another-day"}
MAX_LINES, MEDIAN_LINES = 25, 5
MAX_LINES_OF_ANSWERS = 32  # a class is written in one cell
SILENT_SHARE = 0.1
CODE_COLUMNS, PRINTED_COLUMNS = 88, 84

# A tuple of at least two whole numbers, none of them 0: what a shape looks like in prose. Behind a
# name it is a call, Linear(768, 768), and no shape.
SHAPE = re.compile(r"(?<!\w)\((?:\w+=)?\d+(?:, (?:\w+=)?\d+)+\)")
SIZE_LIST = re.compile(r"Size\(\[(\d+(?:, \d+)*)\]\)")
SHAPE_IS_EXAMPLE = "<!-- shape: example -->"

TRACES = {
    "an absolute path": r"(?<![\w.:/])/(?:home|root|tmp|usr|opt|var|mnt|etc|work|content|Users)/"
    r"|\b[A-Z]:\\|(?<!\w)~/|site-packages|dist-packages",
    "a memory address": r"\b0x[0-9a-fA-F]{6,}",
    # A number with a 0 in front begins no version: 02.01.1998 is a German date (chapter 11).
    "a version": r"(?<![\d.])(?:0|[1-9]\d*)\.\d+\.\d+(?:\+\w+)?(?![\d.])",
    "a date or a clock": r"\b20\d\d-\d\d-\d\d\b|\b\d\d?:\d\d(?::\d\d)?\b",
    "a timing": r"\b\d[\d.,]*\s?(?:ms|µs|us|ns|s|sec|secs|seconds?|minutes?|it/s|s/it)\b|Wall time",
    "a device": r"\bcuda\b|\bdevice\(|device=|\bmps\b|\bNVIDIA\b(?!/)",
}
# What tqdm shows before its first step; the same everywhere.
TQDM_START = re.compile(r"\[00:00<\?, \?\s?\w+/s\]")


@dataclass
class Chapter:
    """One notebook, as it stands in its file: nothing here mends what it reads."""

    path: Path
    text: str
    json: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.json = json.loads(self.text)

    @classmethod
    @cache
    def read(cls, path: Path) -> Chapter:
        return cls(path, path.read_bytes().decode("utf-8"))

    @classmethod
    def of(cls, *cells: dict[str, Any], name: str = "99_made.ipynb") -> Chapter:
        """A made-up chapter of these cells."""
        return cls(ROOT / "notebooks" / name, json.dumps({"cells": cells}))

    @property
    def number(self) -> int:
        return int(self.path.name[:2])

    @property
    def source_notebook(self) -> bool:
        """Whether it holds the exercises of a chapter, with their solutions."""
        return self.path.parent.name == "solutions"

    @cached_property
    def cells(self) -> list[dict[str, Any]]:
        return self.json["cells"]

    @cached_property
    def code(self) -> list[dict[str, Any]]:
        return [cell for cell in self.cells if cell["cell_type"] == "code"]

    @cached_property
    def markdown(self) -> list[str]:
        return ["".join(c["source"]) for c in self.cells if c["cell_type"] == "markdown"]

    @cached_property
    def trees(self) -> list[ast.Module]:
        """One parsed module for each code cell; an empty one where it is no plain Python."""
        trees = []
        for cell in self.code:
            try:
                trees.append(ast.parse(source(cell)))
            except SyntaxError:
                trees.append(ast.Module([], []))
        return trees


def tags(cell: dict[str, Any]) -> list[str]:
    return cell.get("metadata", {}).get("tags", [])


def numbered(chapter: Chapter) -> Iterator[tuple[str, dict[str, Any]]]:
    for number, cell in enumerate(chapter.code, start=1):
        first = source(cell).strip().splitlines()[:1] or ["(empty)"]
        yield f"code cell {number} ({first[0][:50]})", cell


def output_texts(output: dict[str, Any]) -> Iterator[str]:
    """Give every text that a reader or a comparison meets in one output."""
    if output["output_type"] == "stream":
        yield "".join(output["text"])
    elif output["output_type"] == "error":
        yield output["evalue"] + "\n" + "\n".join(output["traceback"])
    else:
        for mime, value in output["data"].items():
            if mime == WIDGET_VIEW or mime in ("image/png", "image/jpeg"):
                continue
            text = json.dumps(value) if isinstance(value, dict) else "".join(value)
            yield re.sub(r"data:[\w/+-]+;base64,[A-Za-z0-9+/=]+", "data:", text)


# -------------------------------------------------------------------------- the stored outputs


def clean_run(chapter: Chapter) -> list[str]:
    """Every code cell ran, in order, from 1 to n."""
    if all(cell["execution_count"] is None for cell in chapter.code):
        return ["was never run, or stripped of its outputs; run: make refresh"]
    complaints = []
    for number, (where, cell) in enumerate(numbered(chapter), start=1):
        if not source(cell).strip():
            complaints.append(f"{where}: is empty")
        if cell["execution_count"] != number:
            complaints.append(f"{where}: has count {cell['execution_count']}, expected {number}")
        for output in cell["outputs"]:
            if output.get("execution_count", number) != number:
                complaints.append(f"{where}: its result has count {output['execution_count']}")
    return complaints


def errors(chapter: Chapter) -> list[str]:
    """An error is stored where the tag raises-exception promises one, and nowhere else."""
    complaints = []
    for where, cell in numbered(chapter):
        raised = any(output["output_type"] == "error" for output in cell["outputs"])
        if raised and "raises-exception" not in tags(cell):
            complaints.append(f"{where}: holds an error without the tag raises-exception")
        if not raised and "raises-exception" in tags(cell):
            complaints.append(f"{where}: tagged raises-exception, but holds no error")
    return complaints


def quiet(chapter: Chapter) -> list[str]:
    """Nothing is written to stderr, and nothing warns."""
    complaints = []
    for where, cell in numbered(chapter):
        for output in cell["outputs"]:
            if output.get("name") == "stderr":
                complaints.append(f"{where}: writes to stderr: {''.join(output['text'])[:80]!r}")
            for text in output_texts(output):
                if found := re.search(r"\w*Warning\b.*", text):
                    complaints.append(f"{where}: shows a warning: {found.group()[:80]!r}")
    return complaints


def structure(chapter: Chapter) -> list[str]:
    """The file is a notebook of format 4.5, and every cell has an id of its own."""
    # nbformat mends ids and only warns of it: here a warning is an error, and a copy is mended.
    with warnings.catch_warnings(action="error"):
        try:
            nbformat.validate(copy.deepcopy(chapter.json), version=4, version_minor=5)
        except (nbformat.ValidationError, Warning) as problem:
            return [str(problem)]
    return []


def form(chapter: Chapter) -> list[str]:
    """The file is written as `make refresh` writes it."""
    wanted = canonical(chapter.json)
    if chapter.text == wanted:
        return []
    pairs = zip(chapter.text.splitlines(), wanted.splitlines(), strict=False)
    for number, (has, want) in enumerate(pairs, start=1):
        if has != want:
            return [f"line {number} is {has[:60]!r}, make refresh writes {want[:60]!r}"]
    return ["not as make refresh writes it: its end differs"]


def no_traces(chapter: Chapter) -> list[str]:
    """No output tells on which machine, with what version or when it was made."""
    complaints = []
    for where, cell in numbered(chapter):
        for output in cell["outputs"]:
            for text in output_texts(output):
                text = TQDM_START.sub("", text)
                for what, pattern in TRACES.items():
                    if found := re.search(pattern, text):
                        around = text[max(0, found.start() - 20) : found.end() + 20]
                        complaints.append(f"{where}: {what} in {around!r}")
    return complaints


def compared(chapter: Chapter) -> list[str]:
    """No cell is left out of the comparison."""
    complaints = []
    for where, cell in numbered(chapter):
        if re.search(r"#\s*(NBVAL|PYTEST_VALIDATE)_", source(cell)):
            complaints.append(f"{where}: a comment switches the comparison off")
        if set(tags(cell)) - TAGS:
            complaints.append(f"{where}: tags {tags(cell)}, allowed are {sorted(TAGS)}")
    return complaints


def widgets(chapter: Chapter) -> list[str]:
    """Nothing that is shown lives in a widget: a new kernel and a static page would not have it."""
    return [
        f"{where}: shows a widget; use show_measured for numbers, an explorer for sliders"
        for where, cell in numbered(chapter)
        if any(WIDGET_VIEW in output.get("data", {}) for output in cell["outputs"])
    ]


def pictures(chapter: Chapter) -> list[str]:
    """Every picture has words for who cannot see it, where JupyterLab and pages look for them."""
    return [
        f"{where}: a picture without words; end it with show_figure('what it shows')"
        for where, cell in numbered(chapter)
        for output in cell["outputs"]
        if "image/png" in output.get("data", {})
        and not re.match(r'<img alt="[^"]*\w', "".join(output["data"].get("text/html", "")))
    ]


def explorers(chapter: Chapter) -> list[str]:
    """Every explorer has a name of its own: two of one name would share what is clicked."""
    names = Counter(
        name
        for _, cell in numbered(chapter)
        for output in cell["outputs"]
        for name in re.findall(
            r'<div id="(explorer-[^"]+)"', "".join(output.get("data", {}).get("text/html", ""))
        )
    )
    return [f"{count} explorers are called {name!r}" for name, count in names.items() if count > 1]


def narrow(chapter: Chapter) -> list[str]:
    """Code and printed lines fit into a window of 1024 pixels."""
    complaints = []
    for where, cell in numbered(chapter):
        long = [line for line in source(cell).splitlines() if len(line) > CODE_COLUMNS]
        complaints += [f"{where}: a line of code is wide: {line[:40]!r}" for line in long]
        for output in cell["outputs"]:
            data = output.get("data", {})
            printed = output.get("text", "" if "text/html" in data else data.get("text/plain", ""))
            long = [line for line in "".join(printed).splitlines() if len(line) > PRINTED_COLUMNS]
            complaints += [f"{where}: a printed line is wide: {line[:40]!r}" for line in long]
    return complaints


# ------------------------------------------------------------------------------------- the code


def _is_setting_up(node: ast.stmt) -> bool:
    """Imports, definitions, guesses, and calls that set a seed or the style: they show nothing."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Assign):
        names = [target.id for target in node.targets if isinstance(target, ast.Name)]
        return bool(names) and all(name.startswith("guess") for name in names)
    call = node.value if isinstance(node, ast.Expr) else None
    if isinstance(call, ast.Call):
        name = ast.unparse(call.func).split(".")[-1]
        return name in ("manual_seed", "use_course_style", "set_num_threads")
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _may_be_silent(tree: ast.Module) -> bool:
    defines = any(isinstance(n, ast.FunctionDef | ast.ClassDef) for n in tree.body)
    return defines or all(map(_is_setting_up, tree.body))


def shows_something(chapter: Chapter) -> list[str]:
    """Cells that compute show what they computed; one in ten may prepare the next."""
    silent = [
        where
        for (where, cell), tree in zip(numbered(chapter), chapter.trees, strict=True)
        if not cell["outputs"] and not _may_be_silent(tree)
    ]
    allowed = int(SILENT_SHARE * len(chapter.code))
    if len(silent) <= allowed:
        return []
    return [f"{len(silent)} cells show nothing, {allowed} may: {'; '.join(silent)}"]


def lengths(chapter: Chapter) -> list[str]:
    """Cells are short: at most 25 lines (an answer 32); in a chapter, 5 in the middle of all."""
    lines = [sum(bool(line.strip()) for line in source(c).splitlines()) for c in chapter.code]
    most = MAX_LINES_OF_ANSWERS if chapter.source_notebook else MAX_LINES
    complaints = [
        f"{where}: {count} lines, at most {most}"
        for (where, _), count in zip(numbered(chapter), lines, strict=True)
        if count > most
    ]
    if lines and not chapter.source_notebook and statistics.median(lines) > MEDIAN_LINES:
        complaints.append(f"median {statistics.median(lines)} lines a cell, at most {MEDIAN_LINES}")
    return complaints


def plain_python(chapter: Chapter) -> list[str]:
    """Code is plain Python, no magics, and leaves `sys.path` alone."""
    complaints = []
    for where, cell in numbered(chapter):
        try:
            ast.parse(source(cell))
        except SyntaxError as error:
            complaints.append(f"{where}: is no plain Python: {error.msg}")
        if re.search(r"\bsys\.path\b|\bsite\.addsitedir\b|PYTHONPATH", source(cell)):
            complaints.append(f"{where}: edits sys.path")
    return complaints


def _imported(tree: ast.Module) -> set[str]:
    return {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }


def _defined(tree: ast.Module) -> set[str]:
    return {n.name for n in tree.body if isinstance(n, ast.FunctionDef | ast.ClassDef)}


def _globals_read(table: symtable.SymbolTable) -> set[str]:
    names = {
        symbol.get_name()
        for symbol in table.get_symbols()
        if symbol.is_referenced() and symbol.is_global()
    }
    return names.union(*(_globals_read(child) for child in table.get_children()))


def _listeners(tree: ast.Module) -> set[str]:
    """Functions that a cell hands to a widget: they get the event alone, and name the rest."""
    return {
        argument.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("observe", "on_click")
        for argument in node.args
        if isinstance(argument, ast.Name)
    }


def no_globals(chapter: Chapter) -> list[str]:
    """Classes and functions read arguments, imports and each other, not a notebook global."""
    known = set(dir(builtins)) | {"__name__"}
    for tree in chapter.trees:
        known |= _imported(tree) | _defined(tree)
    complaints = []
    for (where, _), tree in zip(numbered(chapter), chapter.trees, strict=True):
        for node in tree.body:
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                if node.name in _listeners(tree):
                    continue
                module = symtable.symtable(ast.unparse(node), "cell", "exec")
                read = set().union(*(_globals_read(child) for child in module.get_children()))
                if read - known:
                    names = ", ".join(sorted(read - known))
                    complaints.append(f"{where}: {node.name} reads the global {names}")
    return complaints


def utils_uses(tree: ast.Module, modules: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Give (file of utils, name) for each name that a cell takes from utils.

    Args:
        modules: names that stand for a whole file of utils; grows with the cell's own imports.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "utils":
            modules |= {alias.asname or alias.name: alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("utils."):
            for alias in node.names:
                yield node.module.removeprefix("utils."), alias.name
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("utils."):
                    whole = alias.asname or alias.name
                    modules[whole] = alias.name.removeprefix("utils.")
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in modules:
            yield modules[ast.unparse(node.value)], node.attr


def earlier_only(chapter: Chapter) -> list[str]:
    """From `utils` comes what earlier chapters built; its own result only after it is built."""
    complaints = []
    built_here: set[str] = set()
    modules: dict[str, str] = {}
    built_in, ahead = course().built_in(), course()[f"{chapter.number:02}"].ahead
    for (where, _), tree in zip(numbered(chapter), chapter.trees, strict=True):
        for file, name in utils_uses(tree, modules):
            if file not in built_in:
                complaints.append(f"{where}: imports utils.{file}, which course.toml does not know")
                continue
            if f"{file}.{name}" in ahead:
                continue
            names = built_in[file]
            built = names.get(name, names.get("*", max(filter(None, names.values()), default=None)))
            if built is None or built < chapter.number + chapter.source_notebook:
                continue
            if built > chapter.number:
                complaints.append(f"{where}: {file}.{name} is built in chapter {built:02}, later")
            elif name in names and name not in built_here:
                complaints.append(f"{where}: takes {file}.{name} before this chapter built it")
        built_here |= _defined(tree)
    return complaints


# ------------------------------------------------------------------------------------- the text


Token = dict[str, Any]
FORMULAS = ("inline_math", "block_math")
MARKDOWN = MarkdownWithMath(None)  # without a renderer it gives the tree of tokens
table_in_quote(MARKDOWN)  # JupyterLab and GitHub show tables there
table_in_list(MARKDOWN)


def _inside(tokens: list[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        # Formulas are set in a block of HTML too, and a link in it was meant to be one.
        html = token["type"] == "block_html"
        inner = MARKDOWN.inline(token["raw"], {"ref_links": {}}) if html else token.get("children")
        yield from _inside(inner or [])


def blocks(text: str) -> list[Token]:
    """The blocks of a markdown text, nested ones too; `text` is what the author wrote in each."""
    state = MARKDOWN.block.state_cls()
    state.process(text.rstrip("\n") + "\n")
    MARKDOWN.block.parse(state)
    return list(_inside(state.tokens))


@cache
def parts(text: str) -> list[Token]:
    """The blocks of a markdown text and what stands in them: links, code, formulas, tags, text."""
    return list(_inside(MARKDOWN.parse(text)[0]))


def words(token: Token) -> str:
    """What a part says, without its markup; a formula keeps its dollars."""
    raw = token.get("raw", "")
    marked = {"inline_html": "", "softbreak": " ", "linebreak": " ", "inline_math": f"${raw}$"}
    return marked.get(token["type"], raw) + "".join(map(words, token.get("children", [])))


def headings(text: str) -> list[tuple[int, str]]:
    """Give (level, words) of each heading."""
    return [(p["attrs"]["level"], words(p)) for p in parts(text) if p["type"] == "heading"]


def targets(text: str) -> Iterator[tuple[bool, str, str]]:
    """Give (is a picture, its text, its target) for each link of a markdown text."""
    for part in parts(text):
        if part["type"] in ("link", "image"):
            yield part["type"] == "image", words(part), unquote(part["attrs"]["url"])
        elif part["type"] == "inline_html":
            for tag in BeautifulSoup(part["raw"], "html.parser").find_all(["img", "a"]):
                target = tag.get("src", tag.get("href", ""))
                yield tag.name == "img", tag.get("alt", ""), unquote(target)


def anchors(path: Path) -> set[str]:
    """The anchors of the headings: in a notebook spaces become -, in a page as GitHub does."""
    if path.suffix == ".ipynb":
        texts = Chapter.read(path).markdown
        return {title.replace(" ", "-") for text in texts for _, title in headings(text)}
    titles = [title.lower() for _, title in headings(path.read_text(encoding="utf-8"))]
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles}


def broken_links(text: str, path: Path, attachments: set[str] = frozenset()) -> list[str]:
    """Complains about each link of a markdown text in the file at path that leads nowhere."""
    complaints = []
    for picture, label, target in targets(text):
        if picture and len(label.split()) < 3:
            complaints.append(f"the picture {target} needs a text that says what it shows")
        if re.match(r"https?://|mailto:", target):
            if picture:
                complaints.append(f"the picture {target} needs a network")
            continue
        if target.startswith("attachment:"):
            if target.removeprefix("attachment:") not in attachments:
                complaints.append(f"{target} is not attached")
            continue
        name, _, anchor = target.partition("#")
        if name.startswith("/"):
            complaints.append(f"the link {target} is absolute")
            continue
        file = (path.parent / name).resolve() if name else path
        if not file.exists():
            complaints.append(f"the link {target} leads to no file")
        elif not file.is_relative_to(ROOT) and path.is_relative_to(ROOT):
            complaints.append(f"the link {target} leads out of the project")
        elif anchor and file.suffix in (".ipynb", ".md") and anchor not in anchors(file):
            complaints.append(f"the link {target} names no heading of {file.name}")
    return complaints


def links(chapter: Chapter) -> list[str]:
    """Links lead somewhere, pictures exist, work without a network and say what they show."""
    complaints = []
    for cell in chapter.cells:
        if cell["cell_type"] == "markdown":
            attached = set(cell.get("attachments", {}))
            complaints += broken_links(source(cell), chapter.path, attached)
    return complaints


def math(chapter: Chapter) -> list[str]:
    """Formulas are closed: dollars, braces, \\left and \\right, \\begin and \\end."""
    complaints = []
    for text in chapter.markdown:
        # The tree does not tell an escaped dollar from one that is left over.
        for part in parts(text.replace(r"\$", "")):
            if part["type"] == "text" and "$" in part["raw"]:
                complaints.append(f"a dollar is left over in {part['raw'][:60]!r}")
            elif part["type"] in FORMULAS and not _closed(part["raw"]):
                complaints.append(f"the formula {part['raw']!r} is not closed")
    return complaints


def _closed(formula: str) -> bool:
    bare = re.sub(r"\\[{}]", "", formula)
    depths = [0, *accumulate((sign == "{") - (sign == "}") for sign in bare)]
    pairs = (r"\\left(?![a-z])", r"\\right(?![a-z])"), (r"\\begin\{", r"\\end\{")
    even = all(len(re.findall(a, bare)) == len(re.findall(b, bare)) for a, b in pairs)
    return even and min(depths) == depths[-1] == 0 and bool(formula.strip())


def rows(text: str) -> Iterator[list[list[str]]]:
    """Give the tables of a markdown text, each as its rows of cells; the ruler is left out."""
    for table in blocks(text):
        if table["type"] == "table":
            head, body = table["children"]
            yield [[cell["text"] for cell in row["children"]] for row in [head, *body["children"]]]


def tables(chapter: Chapter) -> list[str]:
    """What begins like a table is one: a ruler under the head, rows as long as the head."""
    return [
        f"no table, its ruler or the length of a row is wrong: {written[:80]!r}"
        for text in chapter.markdown
        for block in blocks(text)
        if block["type"] in ("paragraph", "block_text", "block_html")
        for written in [block.get("text", block.get("raw", ""))]
        if re.search(r"^\s*\|", written, re.MULTILINE)
    ]


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"(\d+)(?=[,)\]])", text + ")")))


def shapes_of(text: str) -> set[tuple[int, ...]]:
    found = {_sizes(match) for match in SHAPE.findall(text)}
    found |= {tuple(map(int, match.split(", "))) for match in SIZE_LIST.findall(text)}
    return {shape for shape in found if 0 not in shape}


def stated_shapes(chapter: Chapter) -> list[str]:
    """Each shape that the prose states is one that a cell of the same chapter printed.

    A tuple that is no shape of the chapter (a coordinate, a shape of another chapter) goes into a
    markdown cell with the comment `<!-- shape: example -->`; a tuple with a 0 is never a shape.
    """
    printed: set[tuple[int, ...]] = set()
    for cell in chapter.code:
        for output in cell["outputs"]:
            for text in output_texts(output):
                printed |= shapes_of(text)
    complaints = []
    for text in chapter.markdown:
        if SHAPE_IS_EXAMPLE in text:
            continue
        # Rows of the ledger are compared with docs/ledger.md, see ledger_agrees. They are
        # found by hand: mistune's tree does not give the line of a row.
        prose = "\n".join(line for line in text.splitlines() if not is_ledger_row(line))
        for shape in sorted(shapes_of(prose) - printed):
            complaints.append(f"no output shows the shape {shape} of {text[:50]!r}")
    return complaints


def ledger_rows(text: str) -> list[list[str]]:
    return [
        row
        for table in rows(text)
        if [cell.lower() for cell in table[0]] == ["step", "shape", "parameters"]
        for row in table[1:]
    ]


def step_of(cell: str) -> str:
    return re.sub(r"\s*\(chapter \d\d\)$", "", re.sub(r"[*`]", "", cell).strip())


def is_ledger_row(line: str) -> bool:
    return line.lstrip().startswith("|") and step_of(line.split("|")[1]) in ledger()


def steps(text: str) -> Iterator[tuple[str, list[str]]]:
    """Give each step of a ledger's tables with its shapes and numbers of parameters."""
    for step, shape, parameters in ledger_rows(text):
        yield step_of(step), SHAPE.findall(shape) + re.findall(r"\d[\d,]*", parameters)


@cache
def ledger() -> dict[str, list[str]]:
    """Return the steps of docs/ledger.md, which `make readme` computes."""
    return dict(steps((ROOT / "docs" / "ledger.md").read_text(encoding="utf-8")))


def ledger_agrees(chapter: Chapter) -> list[str]:
    """The rows of the ledger in this chapter are those of docs/ledger.md."""
    return [
        f"{step}: docs/ledger.md has {ledger().get(step, 'no such step')}, the chapter {numbers}"
        for text in chapter.markdown
        for step, numbers in steps(text)
        if ledger().get(step) != numbers
    ]


def minutes(text: str) -> tuple[int, ...]:
    """The minutes that a text states: (40,) or, for a range, (30, 40)."""
    found = re.search(r"\b(\d+)(?:\s*(?:–|-|to)\s*(\d+))?\s*min(?:utes)?\b", text)
    return tuple(int(n) for n in found.groups() if n) if found else ()


def frame(chapter: Chapter) -> list[str]:
    """Title with number, minutes and ledger row at the top; the sections of the frame."""
    complaints = []
    top = chapter.markdown[0] if chapter.markdown else ""
    if chapter.cells[0]["cell_type"] != "markdown" or not re.match(
        rf"# {chapter.number:02}\b", top
    ):
        complaints.append(f"the first cell must be a title that begins with # {chapter.number:02}")
    # The ledger may stand in a cell of its own below the title.
    first_code = next(i for i, cell in enumerate(chapter.cells) if cell["cell_type"] == "code")
    top = "\n\n".join(source(cell) for cell in chapter.cells[:first_code])
    stated = minutes(top)
    if not stated or not all(15 <= number <= 60 for number in stated):
        complaints.append(f"says no time from 15 to 60 minutes at the top, found {stated}")
    if not ledger_rows(top):
        complaints.append("no row of the ledger at the top: | step | shape | parameters |")
    titles = [title for t in chapter.markdown for level, title in headings(t) if level == 2]
    for section in ("What utils holds now", "Exercises", "Next"):
        if not any(title.split(": ")[0] == section for title in titles):
            complaints.append(f"the section {section!r} is missing")
    linked = {target for text in chapter.markdown for _, _, target in targets(text)}
    if f"exercises/{chapter.number:02}_exercises.ipynb" not in linked:
        complaints.append("no link to its exercises")
    first = chapter.trees[0]
    if not first.body or not isinstance(first.body[0], ast.Import | ast.ImportFrom):
        complaints.append("the first code cell must be the import cell")
    for (where, _), tree in list(zip(numbered(chapter), chapter.trees, strict=True))[1:]:
        foreign = {
            name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in [getattr(node, "module", None) or node.names[0].name]
            if name.split(".")[0] not in ("utils", "checks", "attention_clinic")
        }
        if foreign:
            complaints.append(f"{where}: imports {sorted(foreign)} outside the import cell")
    return complaints


def exercise_frame(chapter: Chapter) -> list[str]:
    """Title, a link to the chapter, minutes that the cards add up to; progress at the end."""
    complaints = []
    top = chapter.markdown[0]
    if not top.startswith(f"# {chapter.number:02} Solutions: "):
        complaints.append(f"the title must begin with # {chapter.number:02} Solutions:")
    link = rf"\.\./{chapter.number:02}_\w+\.ipynb"
    if not any(re.fullmatch(link, target) for _, _, target in targets(top)):
        complaints.append("the first cell has no link to the chapter")
    card = r"^Difficulty \d of 5 · about (\d+) minutes$"
    total = sum(int(n) for text in chapter.markdown for n in re.findall(card, text, re.M))
    stated = minutes(top)
    if not stated or abs(stated[0] - total) > 5:
        complaints.append(f"the top says {stated} minutes, the cards add up to {total}")
    if not 25 <= total <= 60:
        complaints.append(f"{total} minutes; about as much work as a chapter is asked for")
    first, last = chapter.trees[0], source(chapter.code[-1])
    if not first.body or not isinstance(first.body[0], ast.Import | ast.ImportFrom):
        complaints.append("the first code cell must be the import cell")
    if last != f'progress("{chapter.number:02}")':
        complaints.append("the last code cell must show the progress")
    if not chapter.markdown[-1].startswith("## Next"):
        complaints.append("the last cell must say what comes next")
    return complaints


def answered_right(chapter: Chapter) -> list[str]:
    """Every check of a source notebook has stored that its solution is right."""
    complaints = []
    for where, cell in numbered(chapter):
        data = [output.get("data", {}) for output in cell["outputs"]]
        said = [shown[VERDICT_MIME] for shown in data if VERDICT_MIME in shown]
        if grading(cell).get("grade") and not said:
            complaints.append(f"{where}: shows no verdict; run: make refresh")
        for verdict in said:
            if verdict["state"] != RIGHT:
                complaints.append(f"{where}: its solution is {verdict['state']}: {verdict['text']}")
    return complaints


RULES = [
    clean_run,
    errors,
    quiet,
    structure,
    form,
    no_traces,
    compared,
    widgets,
    pictures,
    explorers,
    narrow,
    shows_something,
    lengths,
    plain_python,
    no_globals,
    earlier_only,
    links,
    math,
    tables,
    stated_shapes,
    ledger_agrees,
    frame,
]
RULES_OF_MASTERS = [rule for rule in RULES if rule is not frame] + [exercise_frame, answered_right]
