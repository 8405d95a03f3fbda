"""Examine an attention from the command line.

    python -m attention_clinic path/to/file.py:Class --num-heads 8
    python -m attention_clinic package.module:Class --num-heads 8 --args 512 8 --causal

The class is built with its arguments and examined as `diagnose` does; or it is a function that
builds the module, or a module that is built already. The exit status is 0 for a healthy module, 1
for a sick or an unexplained one, 2 for a call that does not work.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import nn

from attention_clinic.examine.attention import diagnose

HEALTHY, SICK, BAD_CALL = 0, 1, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status.

    Args:
        arguments: what stands behind the command; None takes the process's own.
    """
    parser = argparse.ArgumentParser(
        prog="python -m attention_clinic",
        description="Name the bug of an attention module that passes every shape check.",
        epilog="exit status: 0 healthy, 1 sick or unexplained, 2 a call that does not work",
    )
    parser.add_argument(
        "target", metavar="PLACE:NAME", help="path/to/file.py:Class, or module:Class"
    )
    parser.add_argument("--num-heads", type=int, required=True, metavar="H")
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
    given = parser.parse_args(arguments)
    try:
        module = built(loaded(given.target), given.args, given.target)
        report = diagnose(
            module,
            given.num_heads,
            causal=True if given.causal else None,
            embed_dim=given.embed_dim,
            size=tuple(given.size) if given.size else None,
        )
    except ValueError as error:
        print(error, file=sys.stderr)
        return BAD_CALL
    print(report)
    return HEALTHY if report.healthy else SICK


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
    sys.path.insert(0, str(Path(place).resolve().parent if place.endswith(".py") else Path.cwd()))
    try:
        found = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"attention_clinic: {place} must be a Python file or module that can be imported, got "
            f"{type(error).__name__}: {error}. Import it by itself first."
        ) from error
    for part in name.split("."):
        if not hasattr(found, part):
            classes = [
                n for n, v in vars(found).items() if inspect.isclass(v) and issubclass(v, nn.Module)
            ]
            raise ValueError(
                f"attention_clinic: {place} must hold {name}, got no such name. "
                f"Its modules are {', '.join(classes) or 'none'}."
            )
        found = getattr(found, part)
    return found


def _from_file(path: Path) -> Any:
    """Run a file as a module of its own."""
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # pickle and dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def built(found: Any, values: Sequence[str], target: str) -> nn.Module:
    """Return the module: built from a class or a function, or found as it is.

    Args:
        found: a class, a function that builds a module, or a module.
        values: for the constructor, as Python literals or words, with or without a name.
        target: what an error calls it.

    Raises:
        ValueError: arguments that do not fit, or something else than a module.
    """
    if isinstance(found, nn.Module):
        return found
    positional = [_value(value) for value in values if not _name(value)]
    named = {_name(value): _value(value.partition("=")[2]) for value in values if _name(value)}
    try:
        module = found(*positional, **named)
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
