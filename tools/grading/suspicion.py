"""Remarks about suspicious code, for the instructor.

Nothing is run, and a remark costs no points: in the sandbox students' code reaches neither the
checks nor other people. Remarks are about code that is rarely honest in an exercise: shell
commands, other processes and the network, access to the grader, the solutions or the caller, and
permanent changes of libraries.
"""

from __future__ import annotations

import ast
import builtins
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tools.course.notebook import Notebook, source

# Attributes that give code access to its caller or to foreign objects.
INNER = {"_getframe", "_current_frames", "f_back", "f_locals", "f_globals", "gi_frame", "tb_frame"}
INNER |= {"gc.get_objects", "gc.get_referrers", "inspect.stack", "inspect.currentframe"}
INNER |= {"sys.settrace", "sys.setprofile", "os.kill", "os.killpg", "os.fork", "os.system"}
MODULES = {"ctypes", "multiprocessing", "requests", "shutil", "signal", "socket", "subprocess"}
MODULES |= {"urllib"}
# Libraries whose functions all code shares; changing their settings is harmless.
LIBRARIES = {"torch", "einops", "numpy", "utils", "checks", "builtins", "sys", "math"}
SETTINGS = re.compile(r"backends|allow_tf32|rcParams|_dynamo|_inductor|\.stdout$|\.stderr$")
LOOKS_FOR = re.compile(r"NBGRADER|solutions/|/proc/|gradebook")
MAGIC = re.compile(r"^[ \t]*(%%?\w+|!.*)", re.MULTILINE)
HARMLESS_MAGICS = ("%matplotlib", "%time", "%%time", "%timeit", "%%timeit", "%config", "%precision")


@dataclass(frozen=True)
class Suspicion:
    """Suspicious code of a student.

    Args:
        what: a text that follows "cell 5 ".
        cell: number of the cell, from 1.
    """

    what: str
    cell: int

    def __str__(self) -> str:
        return f"cell {self.cell} {self.what}"


def suspicions(submitted: Notebook, given: set[str]) -> list[Suspicion]:
    """Return the suspicious code of a notebook.

    Args:
        submitted: as `tidy` returns it.
        given: the sources of released cells.
    """
    cells = [(n, c) for n, c in enumerate(submitted["cells"], 1) if c["cell_type"] == "code"]
    cells = [(n, source(c)) for n, c in cells if source(c).strip() not in given]
    trees = {number: _tree(text) for number, text in cells}
    known = _names([tree for text in given if (tree := _tree(text))], [*trees.values()])
    found: list[Suspicion] = []
    for number, text in cells:
        for magic in MAGIC.finditer(text):
            word = magic.group(1).strip()
            if not word.startswith(HARMLESS_MAGICS):
                found.append(Suspicion(f"has the magic {word[:40]!r}", number))
        if tree := trees[number]:
            found += [Suspicion(what, number) for what in _look(tree, known)]
    return list(dict.fromkeys(found))


def _tree(text: str) -> ast.Module | None:
    """Parse a cell as IPython does; return None if it is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return ast.parse(text)
            except SyntaxError:  # the cell may have magics; IPython is slow to import
                from IPython.core.inputtransformer2 import TransformerManager

                return ast.parse(TransformerManager().transform_cell(text))
    except (SyntaxError, ValueError, RuntimeError, MemoryError):  # too deep, too many magics
        return None


def _names(given: list[ast.Module], own: list[ast.Module | None]) -> dict[str, str]:
    """Return the meaning of imported names that the student never binds again."""
    own = [tree for tree in own if tree]
    known: dict[str, str] = {}
    for node in (node for tree in [*given, *own] for node in ast.walk(tree)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.split(".")[0]
                known[bound] = alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                known[alias.asname or alias.name] = f"{node.module or ''}.{alias.name}"
    for node in (node for tree in own for node in ast.walk(tree)):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            known.pop(node.id, None)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            known.pop(node.name, None)
        elif isinstance(node, ast.arg):
            known.pop(node.arg, None)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            known.pop(node.name, None)
    return known


def _path(node: ast.AST | None, known: dict[str, str]) -> str:
    """Return a dotted name in full: F.softmax is torch.nn.functional.softmax; "" if unknown."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    root = known.get(node.id, node.id if hasattr(builtins, node.id) else "")
    return ".".join([root, *reversed(parts)]) if root else ""


def _look(tree: ast.Module, known: dict[str, str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            path = _path(node, known)
            if not isinstance(node.ctx, ast.Load):
                if path.split(".")[0] in LIBRARIES and not SETTINGS.search(path):
                    yield f"replaces {path}"
            elif path in INNER or node.attr in INNER:
                yield f"uses {path if path in INNER else node.attr}"
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if _path(node.value, known) == "sys.modules":
                yield "replaces a module in sys.modules"
        elif isinstance(node, ast.Call):
            yield from _call(node, known)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imported(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from (f"contains {text!r} in a string" for text in LOOKS_FOR.findall(node.value))


def _call(node: ast.Call, known: dict[str, str]) -> Iterator[str]:
    path, first = _path(node.func, known), _path(node.args[0], known) if node.args else ""
    if path in ("setattr", "delattr") and first.split(".")[0] in LIBRARIES:
        yield f"replaces a part of {first}"


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    whole: list[Any] = [a.name for a in node.names]
    if isinstance(node, ast.ImportFrom):
        whole = [node.module or "", *(f"{node.module}.{name}" for name in whole)]
    for name in dict.fromkeys(whole):
        if name.split(".")[0] in MODULES:
            yield f"imports {name.split('.')[0]}"
        elif name in INNER:
            yield f"uses {name}"
