"""Import a file or a module that the command line names, and nothing that is not asked for."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

INSTALLED = ("site-packages", "dist-packages")


def is_kind_of_module(value: Any) -> bool:
    """Say whether a value is a class of modules."""
    return inspect.isclass(value) and issubclass(value, nn.Module)


def is_own(file: str) -> bool:
    """Say whether a file is the user's, not one of Python or of a package that is installed."""
    path = Path(file).resolve()
    base = Path(inspect.getsourcefile(ast) or "").parent.resolve()
    return not path.is_relative_to(base) and not set(INSTALLED) & set(path.parts)


@contextmanager
def apart() -> Iterator[None]:
    """Keep what a place imports to itself: the next may have other files of the same names."""
    paths, before = list(sys.path), dict(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = paths
        for name, module in list(sys.modules.items()):
            if before.get(name) is not module and _is_theirs(module):
                del sys.modules[name]
                if name in before:
                    sys.modules[name] = before[name]
        importlib.invalidate_caches()


def _is_theirs(module: Any) -> bool:
    held = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
    return isinstance(held, str) and is_own(held)


def files_of(folder: Path) -> list[Path]:
    """Return the files of a folder that may define a model: those that derive a class.

    Args:
        folder: walked with its folders, but hidden ones, caches and environments.
    """
    found = []
    for file in sorted(folder.rglob("*.py")):
        inner = file.relative_to(folder).parts[:-1]
        above = [folder.joinpath(*inner[: n + 1]) for n in range(len(inner))]
        hidden = any(part.startswith((".", "__pycache__")) for part in inner)
        if hidden or any((one / "pyvenv.cfg").exists() for one in above):
            continue
        tree = _parsed(file)
        if tree is None or any(isinstance(one, ast.ClassDef) and one.bases for one in tree.body):
            found.append(file)
    return found


def _parsed(file: Path) -> ast.Module | None:
    """Return the code of a file, None where it is none: importing it says why."""
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def imported(place: str) -> Any:
    """Import a file as a module of its own, or a module by its name.

    A file that imports its neighbours relatively is imported as a part of its package.

    Args:
        place: path/to/file.py, path/to/package, or package.module.

    Raises:
        ValueError: no such place, or a file that does not run.
    """
    file = Path(place)
    if file.is_dir() and (file / "__init__.py").is_file():
        file = file / "__init__.py"
    by_path = file.suffix == ".py"
    folder = file.resolve().parent
    top = folder
    while (top / "__init__.py").is_file() and top != top.parent:
        top = top.parent
    sys.path[:0] = dict.fromkeys((str(folder), str(top))) if by_path else (str(Path.cwd()),)
    try:
        if not by_path:
            return importlib.import_module(place)
        if not file.is_file():
            raise FileNotFoundError(f"there is no file {file}")
        if top != folder and (file.stem == "__init__" or _is_relative(file)):
            sys.path.remove(str(folder))  # neighbours are found through the package
            return _of_package(file.resolve(), top)
        return _loaded(_free_name(file.stem), file)
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"attention_clinic: {place} must be a Python file or module that can be imported, got "
            f"{type(error).__name__}: {error}. Import it by itself first."
        ) from error


def _is_relative(file: Path) -> bool:
    tree = _parsed(file)
    return tree is not None and any(
        isinstance(one, ast.ImportFrom) and one.level > 0 for one in ast.walk(tree)
    )


def _of_package(file: Path, top: Path) -> Any:
    """Import a file as a part of the outermost package that it lies in.

    Args:
        file: the file.
        top: the folder that holds that package.
    """
    first, *others = file.relative_to(top).with_suffix("").parts
    loaded = sys.modules.get(first)
    if str(top / first) not in [str(Path(p).resolve()) for p in getattr(loaded, "__path__", ())]:
        first_file, first = top / first / "__init__.py", _free_name(first)
        _loaded(first, first_file)
    return importlib.import_module(".".join((first, *[one for one in others if one != "__init__"])))


def _free_name(name: str) -> str:
    """Return a name that hides no module that others import: random.py is not Python's own."""
    taken = name in sys.stdlib_module_names or name in sys.modules
    return f"_{name}_of_a_place" if taken else name


def _loaded(name: str, file: Path) -> ModuleType:
    """Import a file under a name."""
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None, "a .py file has a loader"
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # pickle and dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def named(place: str, module: Any, name: str) -> Any:
    """Return what a name in a module means.

    Args:
        place: what an error calls the module.
        module: the module.
        name: `Name` or `Name.inner`.

    Raises:
        ValueError: no such name.
    """
    for part in name.split("."):
        if not hasattr(module, part):
            classes = [n for n, v in vars(module).items() if is_kind_of_module(v)]
            raise ValueError(
                f"attention_clinic: {place} must hold {name}, got no such name. "
                f"Its modules are {', '.join(classes) or 'none'}."
            )
        module = getattr(module, part)
    return module
