"""The catalogue of the clinic as pages: one for each bug, one for the variants, one list."""

from __future__ import annotations

import ast
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import attention_clinic.catalogue
from attention_clinic import BUGS, VARIANTS, Bug, Report
from attention_clinic.catalogue.forms import Form, Step
from attention_clinic.report import explain

# A line of a test, by the prefix of a bug's id; the first is for attention.
BLOCK = "assert diagnose_block(MyBlock(64), num_heads=8)"
EMBEDDING = "assert diagnose_embedding(MyEmbedding(), image_size=96, patch_size=16)"
TESTS = {
    "": "assert_healthy(MyAttention(64), num_heads=8)",
    **dict.fromkeys(("activation-", "context-mask", "gate-", "gelu-", "norm-", "rms-"), BLOCK),
    **dict.fromkeys(("part-", "parts-", "residual-", "layers-s", "stack-"), BLOCK),
    **dict.fromkeys(("patch-", "pos-", "param-batch", "unpatch-"), EMBEDDING),
    **dict.fromkeys(("double-", "padding-", "target-"), "assert diagnose_loss(my_loss)"),
    "cache-": "assert diagnose_cache(my_model, cache=KeyValueCache)",
    "loading-": "assert diagnose_loading(mine, theirs)",
    "sincos-": "assert diagnose_positions(my_table)",
}
ENTERED = re.compile(r'^(?:(?:\w+ = )?bug\("""|)([a-z0-9-]+), chapter \d\d$', re.MULTILINE)
SIGNS = re.compile(r"[\\`*_{}\[\]<>$|]")
THREAD = re.compile(r"([\w.-]+/[\w.-]+)#(\d+)")
LONGEST = 40  # lines of an example


@dataclass(frozen=True)
class CatalogueFile:
    """One file of the catalogue.

    Args:
        name: of the file.
        title: its first line.
        ids: of its bugs, in order.
    """

    name: str
    title: str
    ids: tuple[str, ...]


def test_of(id: str) -> str:
    """Return the line of a test that finds a bug."""
    return TESTS[max((start for start in TESTS if id.startswith(start)), key=len)]


def catalogue_files() -> list[CatalogueFile]:
    """Return the files of the catalogue with bugs, in the order of the steps."""
    place = {id: number for number, id in enumerate(BUGS)}
    found = []
    for path in Path(attention_clinic.catalogue.__file__).parent.glob("*.py"):
        text = path.read_text("utf-8")
        ids = tuple(id for id in ENTERED.findall(text) if id in BUGS)
        if ids:
            title = (ast.get_docstring(ast.parse(text)) or path.stem).split("\n")[0].split(". ")[0]
            found.append(CatalogueFile(path.stem, title.rstrip("."), ids))
    return sorted(found, key=lambda part: min(place[id] for id in part.ids))


def all_steps() -> Iterator[Step]:
    """Yield every step of the catalogue."""
    seen: set[int] = set()
    for name, module in sorted(sys.modules.items()):
        if not name.startswith("attention_clinic.catalogue"):
            continue
        for value in vars(module).values():
            if isinstance(value, Step) and id(value) not in seen:
                seen.add(id(value))
                yield value


def _code(form: Form) -> str | None:
    """Return the code of a form, without its decorator; None for a generated function."""
    if not inspect.isfunction(form.run) or form.run.__closure__ or form.run.__defaults__:
        return None
    source = textwrap.dedent(inspect.getsource(form.run))
    if form.run.__name__ == "<lambda>":
        written = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Lambda)]
        names = inspect.getfullargspec(form.run).args
        same = [node for node in written if [own.arg for own in node.args.args] == names]
        return ast.unparse(same[-1]) if len(same) == 1 else None
    lines = source.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("def "))
    return "\n".join(lines[first:])


def steps() -> dict[str, tuple[str, str]]:
    """Return the correct and the buggy code of the step, by the bug's id."""
    found: dict[str, tuple[str, str]] = {}
    for step in all_steps():
        right = _code(step.reference) if step.forms else None
        for form in step.forms:
            wrong = _code(form)
            if wrong and len(form.ids) == 1 and right != wrong:
                found.setdefault(form.ids[0], (right or "", wrong))
    return found


def examples(root: Path) -> dict[str, tuple[str, str]]:
    """Return the shortest module with each bug, and its file, from the clinic's tests.

    Args:
        root: the folder of the course.
    """
    found: dict[str, tuple[str, str]] = {}
    for path in sorted((root / "tests" / "test_clinic" / "patients").glob("*.py")):
        text = path.read_text("utf-8")
        lines = text.splitlines()
        for node in ast.parse(text).body:
            if not isinstance(node, ast.ClassDef | ast.FunctionDef):
                continue
            code = "\n".join(lines[node.lineno - 1 : node.end_lineno])
            for call in node.decorator_list:
                if not isinstance(call, ast.Call) or len(call.args) != 1:
                    continue
                id = call.args[0].value if isinstance(call.args[0], ast.Constant) else None
                shown = found.get(id, ("\n" * LONGEST, ""))[0].count("\n")
                if id in BUGS and code.count("\n") < shown:
                    found[id] = (code, path.name)
    return found


def plain(words: str) -> str:
    """Return text with markdown's special characters escaped."""
    return SIGNS.sub(r"\\\g<0>", words)


def sentence(words: str) -> str:
    """Return text with a capital first letter, unless it begins with code: nn.GELU, down(x)."""
    return words if re.match(r"\w+[.(_=]", words) else words[0].upper() + words[1:]


def thread(place: str) -> str:
    """Return owner/repository#number as a link, and any other text unchanged."""
    found = THREAD.fullmatch(place)
    if not found:
        return plain(place)
    return f"[{plain(place)}](https://github.com/{found[1]}/issues/{found[2]})"


def report(bug: Bug) -> str:
    """Return the report of `diagnose` about a module with only this bug."""
    made = Report("YourModule", healthy=False, explanations=(explain([bug]),))
    return str(made)


def _trained(id: str, root: Path) -> str:
    """Return the measured effect from the study of chapter 08, "" if it does not cover this bug."""
    study = json.loads((root / "resources" / "clinic_study.json").read_text("utf-8"))["accuracy"]
    if id not in study:
        return ""
    buggy, correct = (
        ", ".join(f"{100 * value:.1f}" for value in study[name]) for name in (id, "right")
    )
    return (
        f"The model of chapter 07, trained three times on handwritten digits with this bug, reads "
        f"{buggy} % of unseen digits correctly; without it {correct} %.\n"
    )


def bug_page(bug: Bug, part: CatalogueFile, chapter: str, root: Path, shown: Shown) -> str:
    """Return the page of a bug, as markdown.

    Args:
        bug: of the catalogue.
        part: its file.
        chapter: a link to the chapter that explains it.
        root: the folder of the course.
        shown: the code for the pages.
    """
    words = plain(sentence(bug.words))
    lines = [f"(bug-{bug.id})=", f"# {bug.id}", "", f"**{words}.**", ""]
    lines += [f"Part: {part.title}. Explained in chapter {chapter}.", "", "## Symptoms", ""]
    if bug.seen:
        lines.append(f"`diagnose` finds it not by the output, but by this: {plain(bug.seen)}.")
    else:
        once = f", once {plain(bug.once)}" if bug.once else ""
        lines.append(
            "A module with this bug runs, and its output is wrong. `diagnose` puts the bug into a "
            f"correct module and gets the output of yours{once}."
        )
    lines += ["", _trained(bug.id, root), "The report says:", "", fenced(report(bug), "text")]
    lines += ["## The code", ""]
    if bug.id in shown.steps:
        right, wrong = shown.steps[bug.id]
        if right:
            lines += ["The correct step, in the clinic's names:", "", fenced(right), ""]
        lines += ["The step with the bug:", "", fenced(wrong), ""]
    if bug.id in shown.examples:
        code, file = shown.examples[bug.id]
        said = f"A module with the bug, from the clinic's tests (`{file}`)"
        if bases := re.match(r"class \w+\((?!nn\.Module)(\w+)\):", code):
            said += f"; `{bases[1]}` there is correct in everything else"
        lines += [f"{said}:", "", fenced(code), ""]
    if bug.id not in shown.steps and bug.id not in shown.examples:
        lines += [f"The code is in the clinic's catalogue: `catalogue/{part.name}.py`.", ""]
    names = re.findall(r"\b(?:assert_healthy|diagnose\w*)\b", test_of(bug.id))
    test = f"from attention_clinic import {names[0]}\n\n\ndef test_mine():\n    {test_of(bug.id)}"
    lines += ["## The test", "", "It fails for a module with this bug:", ""]
    lines += [fenced(test), "", "## The fix", ""]
    lines += [plain(sentence(bug.fix)), ""]
    lines += ["## Where it happened", "", *(f"- {thread(place)}" for place in bug.threads), ""]
    return "\n".join(lines)


@dataclass(frozen=True)
class Shown:
    """The code on the pages.

    Args:
        steps: the correct and the buggy step, by id.
        examples: a module and its file of tests, by id.
    """

    steps: dict[str, tuple[str, str]]
    examples: dict[str, tuple[str, str]]

    @classmethod
    def of(cls, root: Path) -> Shown:
        return cls(steps(), examples(root))


def fenced(code: str, language: str = "python") -> str:
    return f"```{language}\n{code}\n```\n"


def variants_page(chapters: dict[str, str]) -> str:
    """Return the page of the variants, as markdown; chapters are links by number."""
    lines = ["# Variants: different, and correct", ""]
    lines += [
        "A deliberate variant is not a mistake. A healthy report names it if the module's "
        "parameters or its behaviour prove it.",
        "",
    ]
    for one in VARIANTS.values():
        lines += [f"(variant-{one.id})=", f"## {one.id}", ""]
        lines += [plain(f"{sentence(one.words)}. Built so in {one.models}."), ""]
        lines += [f"Explained in chapter {chapters.get(one.chapter, one.chapter)}.", ""]
    return "\n".join(lines)


def catalogue_page(chapters: dict[str, str]) -> str:
    """Return the list of all bugs, as markdown; chapters are links by number."""
    lines = [
        "# The catalogue of bugs",
        "",
        f"{len(BUGS)} mistakes in Transformers that run, in the order of the parts. Search for the "
        "id that `diagnose` printed, or look below. A deliberate difference is a "
        "[variant](variants.md).",
        "",
    ]
    for part in catalogue_files():
        lines += [f"## {part.title}", "", "| id | what the code does | chapter |", "|---|---|---|"]
        for id in part.ids:
            bug = BUGS[id]
            lines.append(f"| [{id}]({id}.md) | {plain(bug.words)} | {chapters[bug.chapter]} |")
        lines.append("")
    names = "\n".join(["variants", *(id for part in catalogue_files() for id in part.ids)])
    lines += ["```{toctree}", ":hidden:", "", names, "```", ""]
    return "\n".join(lines)
