"""The one list of commands: what each does and takes, and how its arguments are read.

It needs the standard library alone, so that `python3 -m tools grade --help` answers before anything
is installed. A tool reads its arguments with `parse_arguments`, and ends with a `Refusal` when it
cannot do what was typed. A message names make's variable, such as LATE; who sees it without make,
sees `--late-percent`.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from tools import environment

ROOT = Path(environment.ROOT)
# What is installed: for learning, and for everything else. The second includes the first.
LEVELS = {"course": "requirements.txt", "dev": "requirements-dev.txt"}
CALL = "py -m tools" if os.name == "nt" else "python3 -m tools"
WRONG_CALL = 2

# With more threads, processes get in each other's way and take far longer.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
OFFLINE = {"HF_HUB_OFFLINE": "1"}
BY_FILE = ("--dist", "loadfile")


class Refusal(Exception):
    """Why a command ends early: "X must be Y, got Z. Do W.", printed after the command's name.

    Args:
        text: the reason.
        status: the exit status; 2 means that the call was wrong, 1 that something else was.
    """

    def __init__(self, text: str, status: int = WRONG_CALL) -> None:
        super().__init__(text)
        self.status = status


# ----------------------------------------------------------------------------------------- values


def _value(rule: str, got: str, example: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"must be {rule}, got {got!r}. Write {example}.")


def whole(least: int) -> Callable[[str], int]:
    """Return what reads an integer that is at least so large."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            raise _value(f"an integer of at least {least}", text, str(max(least, 2)))
        return int(text)

    return read


def number(least: float, most: float, example: str) -> Callable[[str], float]:
    """Return what reads a number within bounds, both included."""

    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = least - 1
        if not least <= found <= most:
            raise _value(f"a number from {least:g} to {most:g}", text, example)
        return found

    return read


def memory(text: str) -> int:
    """Read an amount of memory such as 3GB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?B?)", text.strip().upper())
    if not found:
        raise _value("a number with a unit", text, "3GB")
    return int(float(found[1]) * {"K": 10**3, "M": 10**6, "G": 10**9}.get(found[2][:1], 1))


def one_of(*names: str) -> Callable[[str], str]:
    """Return what reads one of these names."""

    def read(text: str) -> str:
        if text not in names:
            raise _value(f"one of {', '.join(names)}", text, names[0])
        return text

    return read


# --------------------------------------------------------------------------------------- the list


@dataclass(frozen=True)
class Argument:
    """One argument of a command.

    Args:
        name: "--out", or "names" for a positional argument.
        help: one line.
        make: make's variable for it, if it has one.
        options: what argparse is told beside that.
    """

    name: str
    help: str
    make: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """How a message calls it when make was not used."""
        return self.name if self.name.startswith("-") else self.name.upper()


def arg(name: str, help: str, make: str = "", **options: Any) -> Argument:
    return Argument(name, help, make, options)


@dataclass(frozen=True)
class Command:
    """One command.

    Args:
        name: as it is typed.
        help: one line for the list of commands.
        level: what must be installed, a key of `LEVELS`; "" for nothing.
        target: the module whose `main` it calls, or "module:function".
        calls: instead of a target, arguments of Python for each process that it starts.
        arguments: what it takes.
        examples: what may be typed, without `python3 -m tools`.
        passes_on: whose other options it takes, too; "" for nobody's.
        settings: variables of the environment in which it runs.
        paths: folders of the course from which it imports modules.
        instructors: whether only an instructor's copy of the course has it.
    """

    name: str
    help: str
    level: str = "course"
    target: str = ""
    calls: tuple[tuple[str, ...], ...] = ()
    arguments: tuple[Argument, ...] = ()
    examples: tuple[str, ...] = ()
    passes_on: str = ""
    settings: dict[str, str] = field(default_factory=dict)
    paths: tuple[str, ...] = ()
    instructors: bool = False

    @property
    def file(self) -> Path | None:
        """The file that does it, if one file does."""
        if self.target:
            return ROOT / f"{self.target.partition(':')[0].replace('.', '/')}.py"
        paths = [word for call in self.calls for word in call if "/" in word]
        return ROOT / paths[0] if paths else None


NAMES = "beginnings of file names (default: all)"
CHAPTERS = arg("names", NAMES, "NB", nargs="*")

_LIST = (
    Command(
        "lab",
        "open the course in JupyterLab",
        target="tools.course.lab",
        passes_on="jupyter lab",
        examples=("lab", "lab --no-browser --port 8899"),
    ),
    Command(
        "test",
        "run every notebook, compare every output, run the tests",
        level="dev",
        # Two cores want three processes: some tests wait for what they have started.
        calls=(("-m", "pytest", "--nbval", "notebooks", "tests", "-n", "3", *BY_FILE),),
        passes_on="pytest",
        settings=ONE_THREAD | OFFLINE,
        examples=("test", "test --times resources/times.json"),
    ),
    Command(
        "progress",
        "show which exercises are done",
        target="tools.course.progress",
        examples=("progress",),
    ),
    Command(
        "update",
        "bring a newer course here, keep what you changed",
        target="tools.course.update",
        arguments=(arg("source", "a released zip, or its unpacked folder", "FROM", nargs="?"),),
        examples=("update", "update attention-shape-by-shape-1.1.0.zip"),
    ),
    Command(
        "refresh",
        "run notebooks and store what they show",
        target="tools.course.refresh",
        settings=ONE_THREAD | OFFLINE,
        arguments=(
            arg("names", "paths, or " + NAMES, "NB", nargs="*"),
            arg(
                "--timeout",
                "seconds for one cell (600)",
                type=number(1, 86_400, "600"),
                default=600.0,
            ),
            arg("--jobs", "notebooks at once (2)", type=whole(1), default=2),
            arg("--check", "write nothing, only compare", action="store_true"),
        ),
        examples=("refresh", "refresh 03", "refresh 03 04 --check"),
    ),
    Command(
        "readme",
        "write the tables of README.md and docs again",
        target="tools.course.tables",
        arguments=(arg("--check", "write nothing, only compare", action="store_true"),),
        examples=("readme", "readme --check"),
    ),
    Command(
        "lint",
        "check the style of the code, notebooks too",
        level="dev",
        calls=(("-m", "ruff", "check", "."), ("-m", "ruff", "format", "--check", ".")),
        examples=("lint",),
    ),
    Command(
        "bench",
        "compare the speed with PyTorch and HuggingFace",
        level="dev",
        target="tools.course.bench",
        settings=OFFLINE,
        arguments=(
            arg(
                "--table",
                "models, memory, generation or loading; repeatable (default: all)",
                type=one_of("models", "memory", "generation", "loading"),
                action="append",
            ),
            arg(
                "--size",
                "digits or ViT-B/16, of the models; repeatable (default: both)",
                type=one_of("digits", "ViT-B/16"),
                action="append",
            ),
            arg("--rounds", "rounds of each row", type=whole(1)),
        ),
        examples=("bench", "bench --table models --size digits"),
    ),
    Command(
        "clinic",
        "try diagnose on all correct and buggy modules",
        level="dev",
        calls=(("tests/test_clinic/examine_bank.py",),),
        passes_on="tests/test_clinic/examine_bank.py",
        settings=ONE_THREAD | OFFLINE,
        examples=("clinic", "clinic --seeds 3"),
    ),
    Command(
        "wild",
        "try diagnose on strangers' code, fetched now",
        calls=(("clinic/bench/make_wild.py",),),
        passes_on="clinic/bench/make_wild.py",
        settings=ONE_THREAD,
        examples=("wild", "wild --share last"),
    ),
    Command(
        "browser",
        "try all that moves in a real browser",
        level="dev",
        calls=(("-m", "pytest", "tests/browser", "-n", "2", *BY_FILE, "-rs"),),
        passes_on="pytest",
        settings=ONE_THREAD | OFFLINE,
        examples=("browser", "browser -k lab"),
    ),
    Command(
        "slides",
        "make slides of the chapters, and PDFs of them",
        level="dev",
        target="tools.lecture.make_slides",
        arguments=(
            CHAPTERS,
            arg("--no-pdf", "only the pages", action="store_true"),
            arg("--out", "folder (build/slides)", type=Path, default=ROOT / "build" / "slides"),
        ),
        examples=("slides", "slides 03 04", "slides 03 --no-pdf"),
    ),
    Command(
        "colab",
        "make copies of the notebooks for Google Colab",
        target="tools.course.colab",
        arguments=(
            arg("address", "of a public git repository with the course", "FROM", nargs="?"),
        ),
        examples=("colab https://github.com/you/attention", "colab"),
    ),
    Command(
        "weights",
        "train the models in resources/ again",
        calls=tuple(
            (f"resources/make_{name}.py",)
            for name in ("digits_model", "drawing_model", "detection_model", "small_models")
        ),
        settings=ONE_THREAD,
        examples=("weights",),
    ),
    Command(
        "study",
        "train every bug of chapter 08 again",
        calls=(("resources/make_clinic_study.py",),),
        settings=ONE_THREAD,
        examples=("study",),
    ),
    Command(
        "parts",
        "train the parts of chapter 13 again",
        calls=(("resources/make_modern_study.py",),),
        arguments=(
            arg(
                "names",
                "grammar, pixels or longer (default: all)",
                nargs="*",
                type=one_of("grammar", "pixels", "longer"),
            ),
        ),
        settings=ONE_THREAD,
        examples=("parts", "parts longer"),
    ),
    Command(
        "photos",
        "make resources/test_images.npy again",
        level="dev",
        calls=(("resources/make_test_images.py",),),
        examples=("photos",),
    ),
    Command(
        "drawings",
        "draw the pictures in img/ again",
        calls=(("img/make_drawings.py",),),
        examples=("drawings",),
    ),
    Command(
        "install",
        "install what learning needs, or everything",
        level="",
        target="tools.install:main",
        arguments=(
            arg(
                "level",
                "course: what learning needs; dev: everything (course)",
                nargs="?",
                type=one_of(*LEVELS),
                default="course",
            ),
        ),
        examples=("install", "install dev"),
    ),
    Command(
        "here",
        "install into the environment of the Python that runs this",
        level="",
        target="tools.install:here",
        examples=("here",),
    ),
    Command(
        "clean",
        "remove .venv and caches; notebooks and data stay",
        level="",
        target="tools.install:clean",
        examples=("clean",),
    ),
    Command(
        "release",
        "make the zip to hand out, in build/",
        level="dev",
        target="tools.course.release",
        arguments=(arg("--with-site", "put the website into it", action="store_true"),),
        examples=("release", "release --with-site"),
        instructors=True,
    ),
    Command(
        "grade",
        "grade submitted notebooks",
        level="dev",
        target="tools.grading.grade",
        settings=ONE_THREAD,
        arguments=(
            arg(
                "submissions",
                "folder of submitted notebooks (default: none, only tables and pages are written)",
                "SUBMISSIONS",
                nargs="?",
                default="",
            ),
            arg("--out", "folder for the grades (default: SUBMISSIONS-grades)", "OUT"),
            arg("--chapter", "grade this one (repeatable)", action="append", default=[]),
            arg("--roster", "csv file with a line for each student", "ROSTER"),
            arg("--due", "2026-11-20, with an hour if you like", "DUE"),
            arg("--week", "name of the week (default: that of the folder)", "WEEK"),
            arg(
                "--late-percent",
                "of the points for each late day (0)",
                "LATE",
                type=number(0, 100, "10"),
                default=0.0,
            ),
            # A student's judge and sandbox wait for each other, for about a quarter of the time.
            arg(
                "--jobs",
                "students at once (one more than there are cores)",
                type=whole(1),
                default=(os.cpu_count() or 1) + 1,
            ),
            arg(
                "--cell-seconds",
                "limit of a cell (30)",
                type=number(0.01, 86_400, "30"),
                default=30.0,
            ),
            arg(
                "--notebook-seconds",
                "limit of a notebook (180)",
                type=number(0.01, 86_400, "180"),
                default=180.0,
            ),
            arg("--memory", "limit of a notebook (3GB)", type=memory, default="3GB"),
            arg(
                "--isolation",
                "podman, bubblewrap or plain (default: the first of them that works here)",
                type=one_of("podman", "bubblewrap", "plain"),
            ),
        ),
        examples=(
            "grade week1",
            "grade week1 --out results",
            "grade week2 --out term --roster class.csv --due '2026-11-20 18:00' --late-percent 10",
            "grade --out term",
            "grade week1 --chapter 03 --jobs 4",
        ),
        instructors=True,
    ),
    Command(
        "class",
        "rehearse grading with made-up students",
        level="dev",
        target="tools.grading.made_up_class",
        arguments=(
            arg("--chapter", "only this one (repeatable)", action="append", default=[]),
            arg("--keep", "a folder for what is made", type=Path),
        ),
        passes_on="grade",
        settings=ONE_THREAD,
        examples=("class", "class --chapter 03", "class --keep folder"),
        instructors=True,
    ),
    Command(
        "exercises",
        "make the exercises from the source notebooks",
        level="dev",
        target="tools.course.exercises",
        arguments=(
            CHAPTERS,
            arg("--check", "write nothing, only say what does not fit", action="store_true"),
        ),
        examples=("exercises", "exercises 03", "exercises --check"),
        instructors=True,
    ),
    Command(
        "new-chapter",
        "make the files of a new chapter, with TODO where something is missing",
        level="dev",
        target="tools.course.new_chapter",
        arguments=(
            arg("name", "of the files, in small letters with _", "NAME"),
            arg("--title", "of the chapter (default: made from the name)"),
        ),
        examples=("new-chapter state_space_models",),
        instructors=True,
    ),
    Command(
        "new-exercise",
        "add an exercise to a chapter, with TODO where something is missing",
        level="dev",
        target="tools.course.new_chapter:new_exercise",
        arguments=(arg("chapter", "two digits", "NB"),),
        examples=("new-exercise 03",),
        instructors=True,
    ),
    Command(
        "site",
        "make the website, in build/site",
        level="dev",
        target="tools.web.make_site",
        arguments=(
            arg("--out", "folder (build/site)", type=Path, default=ROOT / "build" / "site"),
        ),
        examples=("site", "site --out folder"),
        instructors=True,
    ),
    Command(
        "book",
        "make one PDF of the whole course, in build/",
        level="dev",
        target="tools.web.make_book",
        arguments=(
            arg(
                "--out",
                "file (build/attention-shape-by-shape.pdf)",
                type=Path,
                default=ROOT / "build" / "attention-shape-by-shape.pdf",
            ),
            arg("--as-stored", "run nothing: figures in pixels", action="store_true"),
        ),
        examples=("book", "book --as-stored"),
        instructors=True,
    ),
    Command(
        "mutants",
        "change solutions in one place: does the check see it?",
        level="dev",
        calls=(("tests/test_checks/mutants.py",),),
        arguments=(arg("chapters", "two digits each (default: all)", "NB", nargs="*"),),
        settings=ONE_THREAD,
        examples=("mutants 03",),
        instructors=True,
    ),
    Command(
        "honest",
        "grade all right answers that the tests know",
        level="dev",
        calls=(("tests/test_grading/honest_bank.py",),),
        arguments=(arg("chapters", "two digits each (default: all)", "NB", nargs="*"),),
        passes_on="grade",
        settings=ONE_THREAD,
        paths=("tests/test_checks",),
        examples=("honest", "honest 03 04"),
        instructors=True,
    ),
)


def commands() -> dict[str, Command]:
    """Return the commands by name; a copy that was handed out lacks the files of some."""
    return {c.name: c for c in _LIST if c.file is None or c.file.exists()}


# ---------------------------------------------------------------------------------------- reading


def typed(argument: Argument) -> str:
    """Return what a message calls an argument: what was typed."""
    return argument.make if argument.make and "MAKELEVEL" in os.environ else argument.shown


def in_words_typed(text: str, command: Command) -> str:
    """Return a message, written with make's variables, with what was typed in their place."""
    for one in command.arguments:
        if one.make:
            text = re.sub(rf"(?<!\S){one.make}(?=[ ,:=])", typed(one), text)
    return text


def as_typed(line: str) -> str:
    """Return a call such as "refresh 03 --jobs 2" as it is typed: with make, or without."""
    if "MAKELEVEL" not in os.environ:
        return f"{CALL} {line}"
    name, *words = shlex.split(line)
    command = commands()[name]
    variables = {one.name: one.make for one in command.arguments if one.make}
    positional = next((make for one, make in variables.items() if one[0] != "-"), "")
    given: dict[str, list[str]] = {}
    while words:
        word = words.pop(0)
        if word in variables:
            given.setdefault(variables[word], []).append(words.pop(0))
        elif word[0] == "-" or "ARGS" in given or not positional:
            given.setdefault("ARGS", []).append(word)
        else:
            given.setdefault(positional, []).append(word)
    pairs = ((key, " ".join(values)) for key, values in given.items())
    told = (f'{key}="{value}"' if " " in value else f"{key}={value}" for key, value in pairs)
    return " ".join(["make", name, *told])


class Parser(argparse.ArgumentParser):
    """The parser of one command; a wrong call is a `Refusal`."""

    def __init__(self, command: Command) -> None:
        self.command = command
        examples = "\n".join(f"  {as_typed(line)}" for line in command.examples)
        more = f"other options: those of {command.passes_on}\n\n" if command.passes_on else ""
        super().__init__(
            prog=f"{CALL} {command.name}",
            description=_description(command),
            epilog=f"{more}examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        for one in command.arguments:
            options = dict(one.options)
            if not one.name.startswith("-"):
                options["metavar"] = one.shown
            elif options.get("action") != "store_true":
                options["metavar"] = one.name.rpartition("-")[2].upper()
            self.add_argument(one.name, help=one.help, **options)

    def error(self, message: str) -> NoReturn:
        for one in self.command.arguments:
            message = message.replace(f"argument {one.shown}: ", f"{typed(one)} ")
        for pattern, words in (
            (r"(\S+) expected (?:one|at least one) argument", r"\1 must have a value, got none."),
            (r"unrecognized arguments: (.*)", r"options must be those of --help, got \1."),
            (r"the following arguments are required: (.*)", r"\1 must be given, got none."),
        ):
            message = re.sub(pattern, words, message)
        if not re.search(r"\. \w", message):
            message = f"{message.rstrip('.')}. Type: {self.prog} --help"
        raise Refusal(message)


def _description(command: Command) -> str:
    """Return what --help says first: what stands at the top of the file that does it."""
    if command.file is None or not command.file.is_file() or ":" in command.target:
        return command.help[0].upper() + command.help[1:] + "."
    return ast.get_docstring(ast.parse(command.file.read_text(encoding="utf-8"))) or command.help


def parse_arguments(name: str, arguments: Sequence[str] = ()) -> argparse.Namespace:
    """Read the arguments of a command; what it passes on is in `others`.

    Raises:
        Refusal: the call is wrong.
    """
    command = next(one for one in _LIST if one.name == name)
    parser = Parser(command)
    found, others = parser.parse_known_args(list(arguments))
    if others and not command.passes_on:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    found.others = others
    return found


def version() -> str:
    """Return the version that pyproject.toml names."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)["project"]["version"]


def overview() -> str:
    """Return the list of the commands, as `make` and `python3 -m tools` print it."""
    call = "make" if "MAKELEVEL" in os.environ else CALL
    lines = []
    for title, for_whom in (("", False), ("\nFor instructors:", True)):
        found = [one for one in commands().values() if one.instructors is for_whom]
        lines += [title] if title and found else []
        lines += [f"{call} {one.name:12} {one.help}" for one in found]
    lines.append("\nThe first call installs about 1.5 GB into .venv (more with CUDA).")
    lines.append(f"What a command takes: {CALL} update --help")
    return "\n".join(lines)
