"""Read the arguments of commands, and say what was wrong in a call.

Only the standard library is imported, so `python3 -m tools grade --help` answers before anything
is installed. A tool reads its arguments with `parse_arguments` and raises a `Refusal` for a wrong
call. Messages are written with make's variables, such as LATE; without make, `--late-percent` is
shown.
"""

from __future__ import annotations

import argparse
import ast
import os
import re
import shlex
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from tools.arguments import Argument, Command
from tools.command_list import COMMANDS
from tools.environment import ROOT

CALL = "py -m tools" if os.name == "nt" else "python3 -m tools"
WRONG_CALL = 2


class Refusal(Exception):
    """Why a command ends early: "X must be Y, got Z. Do W.", printed after the command's name.

    Args:
        text: the reason.
        status: the exit status: 2 for a wrong call, 1 for anything else.
    """

    def __init__(self, text: str, status: int = WRONG_CALL) -> None:
        super().__init__(text)
        self.status = status


def commands() -> dict[str, Command]:
    """Return the commands by name, without those whose files are missing in a student's copy."""
    return {c.name: c for c in COMMANDS if c.file is None or c.file.exists()}


def typed(argument: Argument) -> str:
    """Return the name of an argument in messages, as typed."""
    return argument.make if argument.make and "MAKELEVEL" in os.environ else argument.shown


def in_words_typed(text: str, command: Command) -> str:
    """Replace make's variables in a message by the names of the arguments, as typed."""
    for one in command.arguments:
        if one.make:
            text = re.sub(rf"(?<!\S){one.make}(?=[ ,:=])", typed(one), text)
    return text


def as_typed(line: str) -> str:
    """Return a call such as "refresh 03 --jobs 2" as it is typed, with or without make."""
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
    words = (f'{key}="{value}"' if " " in value else f"{key}={value}" for key, value in pairs)
    return " ".join(["make", name, *words])


class Parser(argparse.ArgumentParser):
    """Parse the arguments of one command; a wrong call raises a `Refusal`."""

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
    """Return the first text of --help: the docstring of the command's file."""
    if command.file is None or not command.file.is_file() or ":" in command.target:
        return command.help[0].upper() + command.help[1:] + "."
    return ast.get_docstring(ast.parse(command.file.read_text(encoding="utf-8"))) or command.help


def parse_arguments(name: str, arguments: Sequence[str] = ()) -> argparse.Namespace:
    """Read the arguments of a command; those to pass on are in `others`.

    Raises:
        Refusal: for a wrong call.
    """
    command = next(one for one in COMMANDS if one.name == name)
    parser = Parser(command)
    found, others = parser.parse_known_args(list(arguments))
    if others and not command.passes_on:
        parser.error(f"unrecognized arguments: {' '.join(others)}")
    found.others = others
    return found


def version() -> str:
    """Return the version in pyproject.toml."""
    text = Path(ROOT, "pyproject.toml").read_text(encoding="utf-8")
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
    lines.append(f"Arguments of a command: {CALL} update --help")
    return "\n".join(lines)
