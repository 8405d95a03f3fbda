"""Run a stranger's file without running their program.

Only imports, classes, functions and assignments run, in the file and in those of its repository
that it imports: no training starts, no data are read. What raises is left out and remembered. A
package that is not installed becomes a placeholder, which fails when it is used.
"""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

KEPT = (
    *(ast.Import, ast.ImportFrom, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef),
    *(ast.Assign, ast.AnnAssign),
)
GIVEN = {"torch": torch, "nn": nn, "F": F, "math": math, "SimpleNamespace": SimpleNamespace}


def definitions(path: Path) -> list[ast.stmt]:
    """Return the statements of a file that only define something.

    Args:
        path: a .py, or an .ipynb, whose lines for the shell are left out.

    Raises:
        ValueError: a file that is not Python.
    """
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    parts = [text]
    if path.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        parts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    found: list[ast.stmt] = []
    for part in parts:
        lines = [line for line in part.splitlines() if not line.lstrip().startswith(("!", "%"))]
        try:
            found += ast.parse("\n".join(lines if path.suffix == ".ipynb" else [part])).body
        except SyntaxError as error:
            if path.suffix != ".ipynb":
                raise ValueError(f"loading: {path.name} must be Python 3, got {error}.") from error
    return [kept for one in found for kept in _kept(one)]


def _kept(one: ast.stmt) -> Iterator[ast.stmt]:
    """Yield what a statement defines: what stands in `try` and in an `if` of imports, too."""
    if isinstance(one, KEPT):
        yield one
    elif isinstance(one, ast.Try):
        yield ast.Try([k for b in one.body for k in _kept(b)] or [ast.Pass()], one.handlers, [], [])
    elif isinstance(one, ast.If) and "__main__" not in ast.unparse(one.test):
        yield one


def run(path: Path, space: dict[str, Any], missing: list[str]) -> None:
    """Run the definitions of a file in a namespace.

    Args:
        path: the file.
        space: the namespace.
        missing: gets a line for everything that raised.
    """
    for one in definitions(path):
        module = ast.fix_missing_locations(ast.Module([one], []))
        try:
            exec(compile(module, str(path), "exec"), space)
        except (Exception, SystemExit) as error:
            missing.append(f"{path.name}, line {getattr(one, 'lineno', 0)}: {error!r}"[:160])


class Absent(type):
    """What stands for a name of a package that is not installed: it can be named, not used."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{cls.__name__}.{name}")

    def __call__(cls, *given: Any, **named: Any) -> Any:
        raise ImportError(f"{cls.__name__} is not installed here")


def absent(name: str) -> Any:
    """Return a placeholder."""
    return Absent(name, (), {})


class _Hollow(ModuleType):
    """A package that is not installed."""

    __path__: list[str] = []  # noqa: RUF012, what the import system asks for

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return absent(f"{self.__name__}.{name}")


class Repository(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Find what a file imports: in its repository first, then installed, else a placeholder.

    Args:
        root: the folder of the repository.
        file: the file that is loaded.
    """

    def __init__(self, root: Path, file: Path) -> None:
        inside = [folder for folder in reversed(file.parents) if root in folder.parents]
        self.root, self.roots = root, list(dict.fromkeys((root, root / "src", *inside)))
        self.missing: list[str] = []
        self.asked = False

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find a module of the repository, or stand in for one that is nowhere."""
        if self.asked or name.split(".")[0] in sys.stdlib_module_names or name.startswith("torch"):
            return None
        for root in self.roots:
            place = root.joinpath(*name.split("."))
            for file in (place / "__init__.py", place.with_name(place.name + ".py")):
                if file.is_file():
                    return self._spec(name, file, file.name == "__init__.py")
            if place.is_dir() and any(place.rglob("*.py")):
                return self._spec(name, None, True, place)
        if not self._asks_here():
            return None
        self.asked = True
        try:
            there = importlib.util.find_spec(name)
        except (ImportError, ValueError, AttributeError):
            there = None
        finally:
            self.asked = False
        return None if there else importlib.machinery.ModuleSpec(name, self, is_package=True)

    def _asks_here(self) -> bool:
        """Whether a file of the repository imports, not one of an installed package."""
        frame = sys._getframe(2)
        while frame and ("importlib" in frame.f_code.co_filename):
            frame = frame.f_back
        return frame is not None and frame.f_code.co_filename.startswith(str(self.root))

    def _spec(
        self, name: str, file: Path | None, package: bool, folder: Path | None = None
    ) -> importlib.machinery.ModuleSpec:
        """Say how a module of the repository is loaded."""
        spec = importlib.machinery.ModuleSpec(
            name, self, origin=str(file or folder), is_package=package
        )
        spec.loader_state = file or folder
        if package:
            spec.submodule_search_locations = [str(file.parent if file else folder)]
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Make the module; a placeholder when there is nothing to load."""
        return None if spec.loader_state else _Hollow(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Run its definitions."""
        place = module.__spec__.loader_state if module.__spec__ else None
        if place and place.is_file():
            module.__file__ = str(place)
            run(place, module.__dict__, self.missing)


def load(root: Path, file: str) -> tuple[dict[str, Any], list[str]]:
    """Return the namespace of a file of a repository, and what could not run.

    Args:
        root: the folder of the repository.
        file: the place of the file in it.

    Raises:
        ValueError: a file that is not Python.
    """
    path = root / file
    finder = Repository(root, path)
    sys.meta_path.insert(0, finder)
    package = ".".join(Path(file).parent.parts)
    module = ModuleType(f"{package}.{path.stem}" if package else path.stem)
    module.__dict__.update(GIVEN, __file__=str(path), __package__=package)
    sys.modules[module.__name__] = module
    run(path, module.__dict__, finder.missing)
    for name in [name for name, found in sys.modules.items() if isinstance(found, _Hollow)]:
        del sys.modules[name]  # others look there whether a package is installed, as einops does
    return module.__dict__, finder.missing
