"""Import what the command line names, and nothing else; build its models and examine them."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from attention_clinic.capture.calling import is_needed, parameters_of
from attention_clinic.capture.module import CallFailed, attempted, check_positive, first_line
from attention_clinic.models.find import above
from attention_clinic.models.tool import ModelReport, Row, diagnose_model

INSTALLED = ("site-packages", "dist-packages")
PYTHON = Path(inspect.getsourcefile(ast) or "").parent.resolve()  # its own files
# values for the arguments of a constructor, by their names
SIZES: tuple[tuple[Any, str], ...] = (
    (32, "embed_dim dim d_model model_dim n_embd hidden_size hidden_dim emb_size emb_dim d e width "
     "embed_size embedding_dim d_in in_dim in_features input_dim d_out out_dim channels"),
    (8, "head_dim dim_head head_size d_k d_v"),
    (4, "num_heads n_heads n_head nhead heads h num_attention_heads patch_size"),
    (2, "num_kv_heads n_kv_heads n_kv_head num_layers n_layers n_layer depth num_blocks"),
    (48, "mlp_dim ff_dim dim_feedforward d_ff intermediate_size hidden vocab_size max_len img_size "
     "max_length max_seq_len block_size context_length seq_len image_size src_vocab_size"),
    (3, "in_channels in_chans num_channels num_classes"),
    (0.0, "dropout drop p dropout_rate drop_prob attn_drop bias qkv_bias causal"),
)  # fmt: skip
KNOWN = {name: size for size, names in SIZES for name in names.split()}


class Source(NamedTuple):
    """A class, its file (relative if inside the working folder) and its first line."""

    name: str
    file: str
    line: int


@dataclass(frozen=True)
class Checked:
    """One model of a place, PLACE:NAME, and the source of its class.

    Args:
        report, skipped: what was found; None, and why it could not be examined.
        sources: of the classes of the report's rows.
        bad: whether it must not pass: it was named, or its file cannot be imported.
    """

    target: str
    source: Source
    report: ModelReport | None = None
    skipped: str = ""
    sources: tuple[Source, ...] = ()
    bad: bool = False


def check(
    places: list[str], num_heads: int | None = None, causal: bool | None = None
) -> list[Checked]:
    """Examine the models of places, in order; those without attention are left out.

    Args:
        places: file.py, file.py:Name, file.py:Name(64, 8), the same with a module that Python
            finds, or a folder: its files that derive classes. Each is imported by itself.
        num_heads, causal: as in `diagnose_model`.
    """
    if num_heads is not None:
        check_positive("attention_clinic", num_heads=num_heads)
    found: list[Checked] = []
    for place in places:
        whole = ":" not in place or Path(place).exists()  # C:\\model.py
        where, name = (place, "") if whole else place.rsplit(":", 1)
        if name or not Path(where).is_dir():
            found += _checked(where, name.strip(), num_heads, causal)
            continue
        for file in _files_of(Path(where)):
            try:
                found += _checked(str(file), "", num_heads, causal)
            except ValueError as error:  # one of many: the others are examined
                source = Source(file.stem, _relative(file), 1)
                found.append(Checked(str(file), source, None, str(error), bad=True))
    return found


def _checked(where: str, name: str, num_heads: int | None, causal: bool | None) -> list[Checked]:
    """Examine the models of one file or module, or the one with a name."""
    found = []
    with _isolated():
        for target, value in _values(where, imported(where), name):
            source = _source(type(value) if isinstance(value, nn.Module) else value)
            try:
                model = value if isinstance(value, nn.Module) else _sized(value, target)
                report = diagnose_model(model, num_heads=num_heads, causal=causal)
            except ValueError as error:  # one of several: the others are examined
                found.append(Checked(target, source, None, str(error), bad=bool(name)))
                continue
            if report.rows or name:
                sources = tuple(_source_of(row, model, source) for row in report.rows)
                found.append(Checked(target, source, report, "", sources, bad=not report.rows))
    return found


def _values(where: str, module: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yield targets with a model, or a class or function that builds one."""
    if "(" in name:  # the user's own words, in the user's own file
        advice = "Write it as in that file."
        yield f"{where}:{name}", built(f"{where}:{name}", advice, eval, name, vars(module))
    elif name:
        yield f"{where}:{name}", named(where, module, name)
    else:
        for key, value in list(vars(module).items()):
            own = getattr(value, "__module__", "") == module.__name__ and _is_class(value)
            if own or isinstance(value, nn.Module):
                yield f"{where}:{key}", value


def _sized(value: Any, target: str) -> nn.Module:
    """Build a class, or call a function, with sizes by the names of what it needs."""
    advice = f"To give its arguments, name it as {target}(...)."
    needed = [n for n, p in parameters_of(value).items() if is_needed(p)] if callable(value) else []
    if unknown := ", ".join(name for name in needed if name.lower() not in KNOWN):
        raise ValueError(f"nothing settles its {unknown}. {advice}")
    torch.manual_seed(0)
    return built(target, advice, value, **{name: KNOWN[name.lower()] for name in needed})


def built(
    target: str, advice: str, function: Callable[..., Any], *args: Any, **kwargs: Any
) -> nn.Module:
    """Return the module that a user's class or function builds; a `ValueError` if it does not."""
    try:
        found = attempted(function, *args, **kwargs)
        got = type(found).__name__
    except CallFailed as failed:
        found, got = None, f"{type(failed.error).__name__}: {first_line(failed.error)}"
    if not isinstance(found, nn.Module):
        raise ValueError(f"attention_clinic: {target} must build an nn.Module, got {got}. {advice}")
    return found


def _source(value: Any) -> Source:
    """Return where a class is defined, or the one of the user that it only inherits from."""
    kinds = [k for k in getattr(value, "__mro__", ()) if {"forward", "__init__"} & set(vars(k))]
    found = [Source(getattr(value, "__name__", type(value).__name__), "", 1)]
    for kind in (value, *kinds[:1]):
        try:
            file, line = inspect.getsourcefile(kind) or "", inspect.getsourcelines(kind)[1]
        except (OSError, TypeError):
            continue
        if _is_own(file) or len(found) == 1:
            found.append(Source(kind.__name__, _relative(Path(file)), line))
    return found[-1]


def _source_of(row: Row, model: nn.Module, outer: Source) -> Source:
    """Return the source of a row's class; of an installed one, that of the user's around it."""
    parts = dict(model.named_modules(remove_duplicate=False))
    paths = (row.places[0], *above(row.places[0])[:-1])
    sources = (_source(type(parts[path])) for path in paths if path in parts)
    return next((source for source in sources if _is_own(source.file)), outer)


def _relative(file: Path) -> str:
    near = file.resolve().is_relative_to(Path.cwd())
    return (file.resolve().relative_to(Path.cwd()) if near else file.resolve()).as_posix()


def _is_class(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, nn.Module)


def _is_own(file: str) -> bool:
    """Return whether a file is the user's, not one of Python or of an installed package."""
    path = Path(file).resolve()
    return bool(file) and not path.is_relative_to(PYTHON) and not {*INSTALLED} & {*path.parts}


@contextmanager
def _isolated() -> Iterator[None]:
    """Forget what a place imports: the next one may have other files of the same names."""
    paths, before = list(sys.path), dict(sys.modules)
    try:
        yield
    finally:
        sys.path[:] = paths
        for name, module in list(sys.modules.items()):
            held = getattr(module, "__file__", None) or [*getattr(module, "__path__", ()), None][0]
            if before.get(name) is not module and isinstance(held, str) and _is_own(held):
                del sys.modules[name]
                sys.modules |= {name: before[name]} if name in before else {}
        importlib.invalidate_caches()


def _files_of(folder: Path) -> list[Path]:
    """Return the files of a folder that derive a class, or cannot be read."""
    found = []
    for file in sorted(folder.rglob("*.py")):
        inner = file.relative_to(folder).parts
        if not any(n.startswith((".", "__pycache__")) or n in INSTALLED for n in inner):
            body = [None] if (tree := _parsed(file)) is None else tree.body
            derives = (n is None or (isinstance(n, ast.ClassDef) and n.bases) for n in body)
            found += [file] * any(derives)
    return found


def _parsed(file: Path) -> ast.Module | None:
    """Return the code of a file, None where it has an error: the import gives the reason."""
    try:
        return ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None


def imported(place: str) -> Any:
    """Import path/to/file.py, path/to/package or package.module; a `ValueError` if it does not run.

    A file that imports its neighbours relatively is imported as a part of its package.
    """
    file = Path(place)
    file = file / "__init__.py" if (file / "__init__.py").is_file() else file
    top = folder = file.resolve().parent
    while (top / "__init__.py").is_file() and top != top.parent:
        top = top.parent
    try:
        if file.suffix != ".py":
            sys.path.insert(0, str(Path.cwd()))
            return importlib.import_module(place)
        if not file.is_file():
            raise FileNotFoundError(f"there is no file {file}")
        code = ast.walk(_parsed(file) or ast.Module([], []))
        relative = any(isinstance(one, ast.ImportFrom) and one.level > 0 for one in code)
        if top != folder and (file.stem == "__init__" or relative):
            sys.path.insert(0, str(top))
            parts = file.resolve().relative_to(top).with_suffix("").parts
            return importlib.import_module(".".join(p for p in parts if p != "__init__"))
        sys.path[:0] = dict.fromkeys((str(folder), str(top)))
        taken = file.stem in sys.stdlib_module_names or file.stem in sys.modules
        name = f"_{file.stem}_of_a_place" if taken else file.stem  # which hides no other module
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None, "a .py file has a loader"
        module = sys.modules[name] = importlib.util.module_from_spec(spec)  # pickle looks there
        spec.loader.exec_module(module)
        return module
    except (Exception, SystemExit) as error:  # of a stranger's file: it is refused
        raise ValueError(
            f"attention_clinic: {place} must be a file or module that can be imported, got "
            f"{type(error).__name__}: {error}. Import it by itself first."
        ) from error


def named(place: str, module: Any, name: str) -> Any:
    """Return what `Name` or `Name.inner` in a module refers to; a `ValueError` if nothing does."""
    for part in name.split("."):
        if not hasattr(module, part):
            classes = ", ".join(n for n, v in vars(module).items() if _is_class(v)) or "none"
            words = f"attention_clinic: {place} must hold {name}, got no such name. "
            raise ValueError(f"{words}Its modules are {classes}.")
        module = getattr(module, part)
    return module
