"""Examine an attention, or whole files, from the command line.

    python -m attention_clinic path/to/file.py:Class --num-heads 8
    python -m attention_clinic package.module:Class --args 512 8 --causal
    python -m attention_clinic check path/to/model.py "path/to/other.py:Net(64, 8)" --github

The first two build one class with its arguments and examine it as `diagnose` does. `check` examines
every model of the given files as `diagnose_model` does, and imports nothing else; of a folder,
every file that derives a class. The exit status is 0 for healthy, 1 for buggy or unexplained, 2
for a call that does not work, or that names what could not be examined.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from attention_clinic.attention.tool import diagnose
from attention_clinic.capture.calling import is_needed, parameters_of
from attention_clinic.capture.module import CallFailed, attempted, check_positive, first_line
from attention_clinic.models.tool import ModelReport, diagnose_model

HEALTHY, BUGGY, BAD_CALL = 0, 1, 2
INSTALLED = {"site-packages", "dist-packages"}
DERIVES = re.compile(r"^class \w+\(", re.MULTILINE)
RELATIVE = re.compile(r"^\s*from \.", re.MULTILINE)
# values for the arguments of a constructor, by their names
SIZES: tuple[tuple[Any, str], ...] = (
    (32, "embed_dim dim d_model model_dim n_embd hidden_size hidden_dim emb_size emb_dim width "
     "embed_size embedding_dim d_in in_features input_dim d_out"),
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
    """One model of a place, PLACE:NAME, and its report, or why it was skipped."""

    target: str
    source: Source
    report: ModelReport | None = None
    skipped: str = ""
    bad: bool = False  # whether it must not pass


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
    given = parser.parse_args(arguments)
    with redirect_stdout(sys.stderr):  # output of the user's code is not part of a report
        module = loaded(given.target, given.args)
        report = diagnose(module, given.num_heads, causal=given.causal)
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
    if given.num_heads is not None:
        check_positive("attention_clinic", num_heads=given.num_heads)
    with redirect_stdout(sys.stderr):
        options = {"num_heads": given.num_heads, "causal": given.causal}
        found = [one for place in given.places for one in check(place, options)]
    write = as_json if given.json else as_annotations if given.github else as_text
    print(write(found))
    reports = [one.report for one in found if one.report is not None]
    rows = [row for report in reports for row in report.unhealthy]
    if any(row.report.explanations or not given.only_named for row in rows):
        return BUGGY
    return BAD_CALL if any(one.bad for one in found) else HEALTHY


def loaded(target: str, values: Sequence[str]) -> nn.Module:
    """Return the module that PLACE:NAME refers to, built with values in Python if need be."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        words = f"attention_clinic: the target must be PLACE:NAME, got {target}."
        raise ValueError(f"{words} Write path/to/file.py:Class.")
    module = imported(place)
    found = named(place, module, name)
    if isinstance(found, nn.Module):
        return found
    signature = inspect.signature(found) if callable(found) else "(...)"
    advice = f"Give them as --args for {name}{signature}."
    return built(target, advice, eval, f"{name}({', '.join(values)})", vars(module))


def imported(place: str) -> Any:
    """Import path/to/file.py or package.module; a `ValueError` if it does not run.

    A file that imports its neighbours relatively is imported as a part of its package.
    """
    file = Path(place)
    top = folder = file.resolve().parent
    while (top / "__init__.py").is_file() and top != top.parent:
        top = top.parent
    try:
        if file.suffix != ".py":
            sys.path.insert(0, str(Path.cwd()))
            return importlib.import_module(place)
        if not file.is_file():
            raise FileNotFoundError(f"there is no file {file}")
        if top != folder and RELATIVE.search(file.read_text("utf-8", "replace")):
            sys.path.insert(0, str(top))
            parts = file.resolve().relative_to(top).with_suffix("").parts
            return importlib.import_module(".".join(parts))
        sys.path[:0] = dict.fromkeys((str(folder), str(top)))
        taken = file.stem in sys.stdlib_module_names or file.stem in sys.modules
        name = f"_{file.stem}_of_a_place" if taken else file.stem  # which hides no other module
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None, "a .py file has a loader"
        module = sys.modules[name] = importlib.util.module_from_spec(spec)  # pickle looks there
        spec.loader.exec_module(module)
        return module
    except (Exception, SystemExit) as error:  # of the user's file: it is refused
        raise ValueError(
            f"attention_clinic: {place} must be a file or module that can be imported, got "
            f"{type(error).__name__}: {error}. Import it by itself first."
        ) from error


def named(place: str, module: Any, name: str) -> Any:
    """Return what `Name` in a module refers to; a `ValueError` if nothing does."""
    if not hasattr(module, name):
        classes = ", ".join(n for n, v in vars(module).items() if _is_class(v)) or "none"
        words = f"attention_clinic: {place} must hold {name}, got no such name. "
        raise ValueError(f"{words}Its modules are {classes}.")
    return getattr(module, name)


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


def _is_class(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, nn.Module)


def check(place: str, options: dict[str, Any]) -> list[Checked]:
    """Examine the models of a file, module or folder, in order, with options of `diagnose_model`.

    Models without attention are left out, and so are files of a folder that derive no class.
    """
    whole = ":" not in place or Path(place).exists()  # C:\\model.py
    where, name = (place, "") if whole else place.rsplit(":", 1)
    if name or not Path(where).is_dir():
        return _checked(where, name.strip(), options)
    found: list[Checked] = []
    for file in sorted(Path(where).rglob("*.py")):
        parts = file.relative_to(where).parts
        hidden = any(n.startswith((".", "__pycache__")) or n in INSTALLED for n in parts)
        if not hidden and DERIVES.search(file.read_text("utf-8", "replace")):
            found += _checked(str(file), "", options)
    return found


def _checked(where: str, name: str, options: dict[str, Any]) -> list[Checked]:
    """Examine the models of one file or module, or the one with a name."""
    found = []
    with _isolated():
        try:
            values = list(_values(where, imported(where), name))
        except ValueError as error:  # one of many: the others are examined
            source = Source(name or Path(where).stem, _relative(Path(where)), 1)
            return [Checked(where, source, None, str(error), bad=True)]
        for target, value in values:
            source = _source(type(value) if isinstance(value, nn.Module) else value)
            try:
                model = value if isinstance(value, nn.Module) else _sized(value, target)
                report = diagnose_model(model, **options)
            except ValueError as error:  # one of several: the others are examined
                found.append(Checked(target, source, None, str(error), bad=bool(name)))
                continue
            if report.rows or name:
                found.append(Checked(target, source, report, bad=not report.rows))
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


def _source(value: Any) -> Source:
    """Return where a class or function is defined, as far as that is known."""
    name = getattr(value, "__name__", type(value).__name__)
    try:
        file, line = inspect.getsourcefile(value) or "", inspect.getsourcelines(value)[1]
    except (OSError, TypeError):
        return Source(name, "", 1)
    return Source(name, _relative(Path(file)), line)


def _relative(file: Path) -> str:
    near = file.resolve().is_relative_to(Path.cwd())
    return (file.resolve().relative_to(Path.cwd()) if near else file.resolve()).as_posix()


@contextmanager
def _isolated() -> Iterator[None]:
    """Forget what a place imports: the next may have different files of the same names."""
    paths, before = list(sys.path), {*sys.modules}
    try:
        yield
    finally:
        sys.path[:] = paths
        for name in {*sys.modules} - before:
            file = getattr(sys.modules[name], "__file__", None)
            python = name.partition(".")[0] in sys.stdlib_module_names
            if file and not python and not INSTALLED & {*Path(file).parts}:
                del sys.modules[name]
        importlib.invalidate_caches()


def as_text(found: list[Checked]) -> str:
    """Return what people read: each report, and what was skipped."""
    texts = []
    for one in found:
        said = f": skipped, {one.skipped}" if one.report is None else f"\n{one.report}"
        texts.append(f"{one.target}{said}")
    return "\n\n".join(texts) or "nothing with attention was found"


def as_json(found: list[Checked]) -> str:
    """Return what programs read: a list with one object for each model."""
    data = []
    for one in found:
        said = {"skipped": one.skipped} if one.report is None else one.report.data()
        place = {"target": one.target, "file": one.source.file, "line": one.source.line}
        data.append({**place, **said})
    return json.dumps(data, indent=2)


def as_annotations(found: list[Checked]) -> str:
    """Return GitHub's workflow commands: an error for each bug, at the class of the model."""
    lines: list[str] = []
    for one in found:
        source, report = one.source, one.report
        if report is None or not report.rows:
            words = report.verdict if report else one.skipped
            title = f"{source.name}: not examined"
            lines.append(_command("error" if one.bad else "notice", source, title, words))
            continue
        for row in report.unhealthy:
            place = f", {row.where}" * (row.places[0] != "")
            title = f"{source.name}{place}: {' + '.join(row.report.ids) or 'unexplained'}"
            kind, said = "error", [f"{e.words}. Fix: {e.fix}" for e in row.report.explanations]
            if not said:
                kind, said = "warning", row.report.failing or ["no known mistake gives its output"]
            lines.append(_command(kind, source, title, "; or ".join(said)))
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
