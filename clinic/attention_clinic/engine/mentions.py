"""Whether any code of a module reads an attribute, beside the code that makes it."""

from __future__ import annotations

import dis
import inspect
import sys
from collections.abc import Iterator, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType

from torch import nn

BEGINS = ("__init__", "init", "_init", "reset", "_reset")  # code that only makes parameters


def is_mentioned(path: str, module: nn.Module) -> bool:
    """Say whether any code beside that which makes it reads what lies at a path.

    Args:
        path: of a part or a parameter.
        module: the copy.
    """
    where, _, name = path.rpartition(".")
    if name.isdigit():  # one of a list: who reads the list may mean the others
        return False
    kind = type(module.get_submodule(where))
    known = {type(part) for part in module.modules()} | {kind}
    files = {k.__module__ for k in known} - {"torch", "builtins"}
    for file in files:
        held = vars(sys.modules.get(file, sys)) if file in sys.modules else {}
        for value in list(held.values()):
            if isinstance(value, type) and value.__module__ == file:
                kin = issubclass(value, kind) or issubclass(kind, value)
                if any(_reads(code, name, kin, held) for code in codes_of(value)):
                    return True
                continue
            function = isinstance(value, FunctionType) and value.__module__ == file
            if function and _reads(value.__code__, name, True, held):
                return True
    return any(
        _reads(code, name, True, vars(sys.modules.get(one.__module__, sys)))
        for one in kind.__mro__
        for code in codes_of(one)
    )


def codes_of(kind: type) -> Iterator[CodeType]:
    """Yield the code of a class that does more than to build it."""
    if kind.__module__.startswith("torch."):
        return
    for name, value in vars(kind).items():
        function = value.fget if isinstance(value, property) else value
        function = getattr(function, "__func__", function)
        function = inspect.unwrap(function) if callable(function) else function
        if isinstance(function, FunctionType) and not name.startswith(BEGINS):
            yield function.__code__


def _reads(code: CodeType, name: str, own: bool, held: Mapping[str, object]) -> bool:
    """Say whether code reads an attribute.

    Args:
        code: of a function.
        name: of the attribute.
        own: whether `self` may be the module that has it.
        held: what the file of the code holds: `F.dropout` reads nothing of any module.
    """
    before = None
    for one in dis.get_instructions(code):
        if one.opname in ("LOAD_ATTR", "LOAD_METHOD") and one.argval == name:
            of_self = before is not None and before.argval == "self"
            of_file = before is not None and before.opname == "LOAD_GLOBAL"
            of_file = of_file and isinstance(held.get(before.argval), ModuleType)
            if (own or not of_self) and not of_file:
                return True
        before = one
    inner = (one for one in code.co_consts if isinstance(one, CodeType))
    return any(_reads(one, name, own, held) for one in inner)


def gathered(unused: Sequence[str], trained: set[str]) -> list[tuple[str, list[str]]]:
    """Return the highest parts none of whose parameters is used, or parameters that stand alone."""
    found: dict[str, list[str]] = {}
    for name in unused:
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            path = ".".join(parts[:depth])
            inside = [n for n in trained if n == path or n.startswith(f"{path}.")]
            if all(n in unused for n in inside):
                found.setdefault(path, []).append(name)
                break
    return list(found.items())


def has_options(module: nn.Module, given: set[str], beside: str = "") -> bool:
    """Say whether forward has arguments that got nothing.

    Args:
        module: the copy.
        given: the arguments that got a value.
        beside: a word in the names of arguments that do not count; "" counts all.
    """
    try:
        names = inspect.signature(module.forward).parameters
    except (TypeError, ValueError):
        return False
    return any(
        name not in given
        and not (beside and beside in name)
        and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        for name, p in names.items()
    )


def reads_in_a_branch(module: nn.Module, names: Sequence[str]) -> bool:
    """Say whether forward reads an argument behind a condition: an option may ask for it.

    Args:
        module: the copy.
        names: of arguments.
    """
    code = getattr(inspect.unwrap(type(module).forward), "__code__", None)
    branched = False
    for one in () if code is None else dis.get_instructions(code):
        branched |= "JUMP" in one.opname and "_IF_" in one.opname
        if branched and one.opname.startswith("LOAD_") and one.argval in names:
            return True
    return False
