"""Examine an attention, or whole files, from the command line.

    python -m attention_clinic path/to/file.py:Class --num-heads 8
    python -m attention_clinic package.module:Class --args 512 8 --causal
    python -m attention_clinic check path/to/model.py "path/to/other.py:Net(64, 8)" --github

The first two build one class with its arguments and examine it as `diagnose` does; it may be a
function that builds the module, or a module that exists already. `check` examines every model of
the places as `diagnose_model` does, and imports nothing else; of a folder, every file that derives
a class. The exit status is 0 for healthy, 1 for buggy or unexplained, 2 for a call that does not
work, or names what could not be examined.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import json
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import Any

from torch import nn

from attention_clinic.attention.tool import diagnose
from attention_clinic.capture.calling import sides_of
from attention_clinic.checking import Checked, Source, built, check, imported, named

HEALTHY, BUGGY, BAD_CALL = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with some arguments, or the process's own, and return its exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return checked(given[1:]) if given[:1] == ["check"] else examined(given)
    except ValueError as error:
        print(error, file=sys.stderr)
        return BAD_CALL


def _parser(command: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that both commands have."""
    parser = argparse.ArgumentParser(
        prog=f"python -m attention_clinic{command}",
        description=description,
        epilog="exit status: 0 healthy, 1 buggy or unexplained, 2 a call that does not work",
    )
    parser.add_argument("--num-heads", type=int, metavar="H", help="found if left out")
    words = "token i must attend to tokens 0 to i only"
    parser.add_argument("--causal", action="store_const", const=True, help=words)
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def examined(arguments: Sequence[str]) -> int:
    """Examine one attention, print its report and return the exit status."""
    words = "Name the bug of an attention module. `check PLACE ...` examines whole files."
    parser = _parser("", words)
    add = parser.add_argument
    add("target", metavar="PLACE:NAME", help="path/to/file.py:Class, or module:Class")
    values = {"nargs": "*", "default": [], "metavar": "VALUE"}
    add("--args", **values, help="for the constructor: 512 dropout=0.1")
    add("--embed-dim", type=int, metavar="E", help="width of a token; found if left out")
    sizes = {"nargs": 2, "metavar": ("B", "N")}
    add("--size", type=int, **sizes, help="samples and tokens to try")
    given = parser.parse_args(arguments)
    with redirect_stdout(sys.stderr):  # what the user's own code prints is not part of a report
        report = diagnose(
            loaded(given.target, given.args),
            given.num_heads,
            causal=given.causal,
            embed_dim=given.embed_dim,
            size=tuple(given.size) if given.size else None,
        )
    print(json.dumps({"target": given.target, **report.data()}, indent=2) if given.json else report)
    return HEALTHY if report.healthy else BUGGY


def checked(arguments: Sequence[str]) -> int:
    """Examine every model of some places, print what was found and return the exit status."""
    words = 'Examine every model of the places; "model.py:Net(64, 8)" names one with its arguments.'
    parser = _parser(" check", words)
    add = parser.add_argument
    add("places", nargs="+", metavar="PLACE", help="file.py, file.py:Name, module, folder")
    add("--only-named", action="store_true", help="unexplained modules do not fail the check")
    add("--github", action="store_true", help="print annotations for GitHub Actions")
    given = parser.parse_args(arguments)
    with redirect_stdout(sys.stderr):
        found = check(given.places, given.num_heads, given.causal)
    write = as_json if given.json else as_annotations if given.github else as_text
    print(write(found))
    reports = [one.report for one in found if one.report is not None]
    rows = [row for report in reports for row in report.unhealthy]
    open_ = not given.only_named and (rows or any(report.failing for report in reports))
    if open_ or any(row.report.explanations for row in rows):
        return BUGGY
    return BAD_CALL if any(one.bad for one in found) else HEALTHY


def loaded(target: str, values: Sequence[str]) -> Any:
    """Return what PLACE:NAME refers to: a module, built if need be, or a function of q, k and v.

    Args:
        target: a name in a file, or in a module that Python finds.
        values: for the constructor, as Python literals or words, with or without a name.
    """
    place, _, name = target.rpartition(":")
    if not place or not name:
        words = f"attention_clinic: the target must be PLACE:NAME, got {target}."
        raise ValueError(f"{words} Write path/to/file.py:Class.")
    found = named(place, imported(place), name)
    sides = sides_of(found) if inspect.isfunction(found) and not values else None
    if isinstance(found, nn.Module) or (sides is not None and not sides.guessed):
        return found
    pairs = [value.partition("=") for value in values]
    by_name = {key: _value(text) for key, equals, text in pairs if equals and key.isidentifier()}
    others = [key + equals + text for key, equals, text in pairs if key not in by_name]
    signature = inspect.signature(found) if callable(found) else "(...)"
    advice = f"Give them as --args for {name}{signature}."
    return built(target, advice, found, *map(_value, others), **by_name)


def _value(text: str) -> Any:
    """Return a Python literal, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def as_text(found: list[Checked]) -> str:
    """Return what people read: each report, and what was skipped."""
    said = [
        f"\n{one.report}" if one.report is not None else f": skipped, {one.skipped}"
        for one in found
    ]
    texts = [f"{one.target}{words}" for one, words in zip(found, said, strict=True)]
    return "\n\n".join(texts) or "nothing with attention was found"


def as_json(found: list[Checked]) -> str:
    """Return what programs read: a list with one object for each model."""
    data = []
    for one in found:
        said = {"skipped": one.skipped} if one.report is None else one.report.data()
        for row, source in zip(said.get("rows", ()), one.sources, strict=True):
            row |= {"class": source.name, "file": source.file, "line": source.line}
        data.append(
            {"target": one.target, "file": one.source.file, "line": one.source.line, **said}
        )
    return json.dumps(data, indent=2)


def as_annotations(found: list[Checked]) -> str:
    """Return GitHub's workflow commands: an error for each bug, at the class that has it."""
    lines: list[str] = []
    for one in found:
        source, kind, report = one.source, "error" if one.bad else "notice", one.report
        if report is None or not report.rows:
            words = one.skipped if report is None else report.verdict
            lines.append(_command(kind, source, f"{source.name}: not examined", words))
            continue
        for row, at in zip(report.rows, one.sources, strict=True):
            title = at.name + f", {row.where}" * (at == source and row.places[0] != "")
            kind, words = "error", [f"{e.words}. Fix: {e.fix}" for e in row.report.explanations]
            if not words:
                kind, words = "warning", row.report.failing or ["no known mistake gives its output"]
            if not row.report.healthy:
                title = f"{title}: {' + '.join(row.report.ids) or 'unexplained'}"
                lines.append(_command(kind, at, title, "; or ".join(words)))
        for words in report.failing:
            lines.append(_command("warning", source, report.name, f"fails: {words}"))
    return "\n".join(dict.fromkeys(lines))  # a model of the file may hold another one of it


def _command(kind: str, source: Source, title: str, words: str) -> str:
    """Return one workflow command, escaped as GitHub requires."""
    escapes = {"%": "%25", "\r": "%0D", "\n": "%0A"}
    words = words.translate(str.maketrans(escapes))
    strict = str.maketrans(escapes | {":": "%3A", ",": "%2C"})
    file, title = source.file.translate(strict), title.translate(strict)
    return f"::{kind} file={file},line={source.line},title={title}::{words}"


if __name__ == "__main__":
    sys.exit(main())
