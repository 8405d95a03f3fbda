"""The form of commands and of their arguments, and how a typed value is read."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tools.environment import ROOT


def _wrong(rule: str, got: str, example: str) -> argparse.ArgumentTypeError:
    return argparse.ArgumentTypeError(f"must be {rule}, got {got!r}. Write {example}.")


def integer(least: int) -> Callable[[str], int]:
    """Return a reader of integers from `least` on."""

    def read(text: str) -> int:
        if not re.fullmatch(r"\d+", text) or int(text) < least:
            raise _wrong(f"an integer of at least {least}", text, str(max(least, 2)))
        return int(text)

    return read


def number(least: float, most: float, example: str) -> Callable[[str], float]:
    """Return a reader of numbers within bounds, both included."""

    def read(text: str) -> float:
        try:
            found = float(text)
        except ValueError:
            found = least - 1
        if not least <= found <= most:
            raise _wrong(f"a number from {least:g} to {most:g}", text, example)
        return found

    return read


def memory(text: str) -> int:
    """Read an amount of memory such as 3GB."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([KMG]?B?)", text.strip().upper())
    if not found:
        raise _wrong("a number with a unit", text, "3GB")
    return int(float(found[1]) * {"K": 10**3, "M": 10**6, "G": 10**9}.get(found[2][:1], 1))


def one_of(*names: str) -> Callable[[str], str]:
    """Return a reader that accepts only these names."""

    def read(text: str) -> str:
        if text not in names:
            raise _wrong(f"one of {', '.join(names)}", text, names[0])
        return text

    return read


@dataclass(frozen=True)
class Argument:
    """One argument of a command.

    Args:
        name: "--out", or "names" for a positional argument.
        help: one line.
        make: make's variable for it, if it has one.
        options: further arguments of argparse's `add_argument`.
    """

    name: str
    help: str
    make: str = ""
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def shown(self) -> str:
        """Its name in messages without make."""
        return self.name if self.name.startswith("-") else self.name.upper()


def arg(name: str, help: str, make: str = "", **options: Any) -> Argument:
    return Argument(name, help, make, options)


@dataclass(frozen=True)
class Command:
    """One command.

    Args:
        name: as typed.
        help: one line for the list of commands.
        level: what must be installed, a key of `command_list.LEVELS`; "" for nothing.
        target: the module whose `main` it calls, or "module:function".
        calls: instead of a target, arguments of Python for each process that it starts.
        arguments: the ones it takes.
        examples: calls without `python3 -m tools`.
        passes_on: the program that gets all other options; "" if there must be none.
        settings: environment variables for its run.
        paths: further folders of the course to import from.
        instructors: whether it is for instructors.
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
        """The file of its code, if it is a single one."""
        if self.target:
            return Path(ROOT, f"{self.target.partition(':')[0].replace('.', '/')}.py")
        paths = [word for call in self.calls for word in call if "/" in word]
        return Path(ROOT, paths[0]) if paths else None
