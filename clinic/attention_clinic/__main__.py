"""Examine an attention, or whole files, from the command line.

    python -m attention_clinic path/to/file.py:Class --num-heads 8
    python -m attention_clinic package.module:Class --args 512 8 --causal
    python -m attention_clinic check path/to/model.py "path/to/other.py:Net(64, 8)" --github

The first two build one class with its arguments and examine it as `diagnose` does; it may be a
function that builds the module, or a module that is built already. `check` examines every model of
the places as `diagnose_model` does, and imports nothing else; of a folder, every file that derives
a class. The exit status is 0 for a healthy module, 1 for a sick or an unexplained one, 2 for a call
that does not work, or names what could not be examined.
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

from attention_clinic.checking import (
    BAD_CALL,
    HEALTHY,
    SICK,
    as_annotations,
    as_json,
    as_text,
    check,
    status,
)
from attention_clinic.engine.operands import asks_for_operands
from attention_clinic.examine.attention import diagnose
from attention_clinic.importing import imported, named


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        arguments: what stands behind the command; None takes the process's own.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        return checked(given[1:]) if given[:1] == ["check"] else examined(given)
    except ValueError as error:
        print(error, file=sys.stderr)
        return BAD_CALL


def examined(arguments: Sequence[str]) -> int:
    """Examine one attention and print its report.

    Args:
        arguments: PLACE:NAME and options.
    """
    parser = argparse.ArgumentParser(
        prog="python -m attention_clinic",
        description="Name the bug of an attention module that passes every shape check. "
        "`check PLACE ...` examines whole files.",
        epilog="exit status: 0 healthy, 1 sick or unexplained, 2 a call that does not work",
    )
    parser.add_argument(
        "target", metavar="PLACE:NAME", help="path/to/file.py:Class, or module:Class"
    )
    parser.add_argument("--num-heads", type=int, metavar="H", help="found if left out")
    parser.add_argument(
        "--args",
        nargs="*",
        default=[],
        metavar="VALUE",
        help="for the constructor: 512 dropout=0.1",
    )
    parser.add_argument("--causal", action="store_true", help="token i must see tokens 0 to i only")
    parser.add_argument(
        "--embed-dim", type=int, metavar="E", help="width of a token; found if left out"
    )
    parser.add_argument(
        "--size", type=int, nargs=2, metavar=("B", "N"), help="samples and tokens to try"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    with redirect_stdout(sys.stderr):  # what the user's own code prints is no part of a report
        module = built(loaded(given.target), given.args, given.target)
        report = diagnose(
            module,
            given.num_heads,
            causal=True if given.causal else None,
            embed_dim=given.embed_dim,
            size=tuple(given.size) if given.size else None,
        )
    print(json.dumps({"target": given.target, **report.data()}, indent=2) if given.json else report)
    return HEALTHY if report.healthy else SICK


def checked(arguments: Sequence[str]) -> int:
    """Examine every model of some places and print what was found.

    Args:
        arguments: the places, and options.
    """
    parser = argparse.ArgumentParser(
        prog="python -m attention_clinic check",
        description="Examine every model of the places, and import nothing else. A class that "
        'needs arguments is named with them: "model.py:Net(64, 8)".',
        epilog="exit status: 0 healthy, 1 sick or unexplained, 2 a call that does not work",
    )
    parser.add_argument("places", nargs="+", metavar="PLACE", help="file.py, file.py:Name, module")
    parser.add_argument("--num-heads", type=int, metavar="H", help="found if left out")
    parser.add_argument("--causal", action="store_true", help="token i must see tokens 0 to i only")
    parser.add_argument(
        "--only-named", action="store_true", help="unexplained modules do not fail the check"
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON list")
    form.add_argument("--github", action="store_true", help="print annotations for GitHub Actions")
    given = parser.parse_args(arguments)
    with redirect_stdout(sys.stderr):
        found = check(given.places, given.num_heads, True if given.causal else None)
    write = as_json if given.json else as_annotations if given.github else as_text
    print(write(found))
    return status(found, given.only_named)


def loaded(target: str) -> Any:
    """Return what PLACE:NAME names.

    Args:
        target: a file, or a module that Python finds, and behind the colon a name in it.

    Raises:
        ValueError: no such place or name, or a file that does not run.
    """
    place, colon, name = target.rpartition(":")
    if not colon or not place or not name:
        raise ValueError(
            f"attention_clinic: the target must be PLACE:NAME, got {target}. "
            "Write path/to/file.py:Class."
        )
    return named(place, imported(place), name)


def built(found: Any, values: Sequence[str], target: str) -> Any:
    """Return the module: built from a class or a function, or found as it is.

    A function of queries, keys and values is what is examined itself.

    Args:
        found: a class, a function that builds a module, or a module.
        values: for the constructor, as Python literals or words, with or without a name.
        target: what an error calls it.

    Raises:
        ValueError: arguments that do not fit, or something else than a module.
    """
    ready = isinstance(found, nn.Module)
    if ready or (not values and not isinstance(found, type) and asks_for_operands(found)):
        return found
    positional = [_value(value) for value in values if not _name(value)]
    by_name = {_name(value): _value(value.partition("=")[2]) for value in values if _name(value)}
    try:
        module = found(*positional, **by_name)
    except Exception as error:
        try:
            wanted = f"{target.rpartition(':')[2]}{inspect.signature(found)}"
        except (TypeError, ValueError):
            wanted = "something that builds a module"
        raise ValueError(
            f"attention_clinic: {target} must be built by its arguments, got "
            f"{type(error).__name__}: {error}. Give them as --args for {wanted}."
        ) from error
    if not isinstance(module, nn.Module):
        raise ValueError(
            f"attention_clinic: {target} must build an nn.Module, got {type(module).__name__}. "
            "Name the class of the attention itself."
        )
    return module


def _name(value: str) -> str:
    """Return the name in name=value, "" when there is none."""
    name, equals, _ = value.partition("=")
    return name if equals and name.isidentifier() else ""


def _value(text: str) -> Any:
    """Return a Python literal, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


if __name__ == "__main__":
    sys.exit(main())
