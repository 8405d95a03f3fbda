"""`python -m attention_clinic check PLACE ...`: every model of some files, for CI."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attention_clinic.engine.heads import NAMES as HEADS
from attention_clinic.engine.model_report import ModelReport, Row
from attention_clinic.examine.model import diagnose_model

HEALTHY, SICK, BAD_CALL = 0, 1, 2
# what a constructor gets that must be told its sizes, by the names of its arguments
SIZES: tuple[tuple[str, Any], ...] = (
    (r"embed_dim|dim|d_?model|n_embd|hidden_(size|dim)|emb_?(size|dim)|embed_size|model_dim"
     r"|d|e|(d_)?in(_dim|_features)?|input_dim|d_out|out_(dim|features)|embedding_dim|channels"
     r"|width", 32),
    (r"head_dim|dim_head|head_size|d_[kv]|[kv]_dim", 8),
    (r"num_kv_heads|n_kv_heads?|num_key_value_heads", 2),
    (r"mlp_dim|ffn?_dim|dim_feedforward|d_ff|intermediate_size|hidden|d_inner|mlp_hidden_dim", 48),
    (r"num_layers|n_layers?|depth|num_blocks|layers|n_blocks", 2),
    (r"(\w+_)?vocab(_size|ulary_size)?|num_embeddings|n_vocab|ntoken", 50),
    (r"max_(len|length|seq_len|position_embeddings)|block_size|context_length|seq_len|n_ctx", 16),
    (r"image_size|img_size", 16),
    (r"patch_size", 4),
    (r"in_(channels|chans)|num_channels", 3),
    (r"num_classes|n_classes|k|num_labels", 10),
    (r"(\w*_)?(drop|dropout|p)(_rate|_prob|_p)?", 0.0),
    (r"(\w+_)?bias|causal", False),
)  # fmt: skip


@dataclass(frozen=True)
class Checked:
    """One model of a place.

    Args:
        target: PLACE:NAME, as one would write it.
        file: of its class, relative to the folder that the command runs in where it lies there.
        line: where its class begins.
        report: what was found; None where it could not be built.
        skipped: why it could not be built.
    """

    target: str
    file: str
    line: int
    report: ModelReport | None
    skipped: str = ""


def check(
    places: list[str], num_heads: int | None = None, causal: bool | None = None
) -> list[Checked]:
    """Examine what the places name: a whole file, a name in it, or a call such as `Net(64, 8)`.

    Args:
        places: path/to/file.py, path/to/file.py:Name, path/to/file.py:Name(64, 8), or the same
            with a module that Python finds. Only these are imported.
        num_heads: as in `diagnose_model`.
        causal: as there.

    Returns:
        One entry for each model, in the order of the files. Classes without attention are none.

    Raises:
        ValueError: a place that cannot be imported, or a name that is not there.
    """
    found: list[Checked] = []
    for place in places:
        where, _, name = _parted(place)
        module = imported(where)
        for target, built, skipped in _models(where, module, name):
            file, line = _source(built if not isinstance(built, nn.Module) else type(built))
            if skipped:
                found.append(Checked(target, file, line, None, skipped))
                continue
            torch.manual_seed(0)
            model = built if isinstance(built, nn.Module) else _made(built)
            report = diagnose_model(model, num_heads=num_heads, causal=causal)
            if report.rows or name:
                found.append(Checked(target, file, line, report))
    return found


def _parted(place: str) -> tuple[str, str, str]:
    """Return where to look, a colon, and the name or call behind it."""
    matched = re.match(r"(?P<where>(?:[A-Za-z]:)?[^:]+)(?P<colon>:?)(?P<name>.*)", place, re.DOTALL)
    if matched is None:
        raise ValueError(
            f"attention_clinic: a place must be a file or a module, got {place!r}. "
            "Write path/to/file.py or path/to/file.py:Class."
        )
    return matched["where"], matched["colon"], matched["name"].strip()


def imported(place: str) -> Any:
    """Import a file as a module of its own, or a module by its name.

    Args:
        place: path/to/file.py, or package.module.

    Raises:
        ValueError: no such place, or a file that does not run.
    """
    file = Path(place)
    by_path = place.endswith(".py")
    sys.path.insert(0, str(file.resolve().parent if by_path else Path.cwd()))
    try:
        if not by_path:
            return importlib.import_module(place)
        if not file.is_file():
            raise FileNotFoundError(f"there is no file {file}")
        spec = importlib.util.spec_from_file_location(file.stem, file)
        assert spec is not None and spec.loader is not None, "a .py file has a loader"
        module = importlib.util.module_from_spec(spec)
        sys.modules[file.stem] = module  # pickle and dataclasses look for it there
        spec.loader.exec_module(module)
        return module
    except (Exception, SystemExit) as error:
        raise ValueError(
            f"attention_clinic: {place} must be a Python file or module that can be imported, got "
            f"{type(error).__name__}: {error}. Import it by itself first."
        ) from error


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
            classes = [n for n, v in vars(module).items() if _is_class(v)]
            raise ValueError(
                f"attention_clinic: {place} must hold {name}, got no such name. "
                f"Its modules are {', '.join(classes) or 'none'}."
            )
        module = getattr(module, part)
    return module


def _is_class(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, nn.Module)


def _models(where: str, module: Any, name: str) -> Iterator[tuple[str, Any, str]]:
    """Yield targets with a model, or a class that can be built, and why one cannot."""
    if "(" in name:
        try:
            built = eval(name, vars(module))  # the caller's own words, in the caller's own file
        except Exception as error:
            raise ValueError(
                f"attention_clinic: {where}:{name} must build a model, got "
                f"{type(error).__name__}: {error}. Write it as in that file."
            ) from error
        if not isinstance(built, nn.Module):
            raise ValueError(
                f"attention_clinic: {where}:{name} must build an nn.Module, got "
                f"{type(built).__name__}. Name the class of the model itself."
            )
        yield f"{where}:{name}", built, ""
        return
    if name:
        found = {name: named(where, module, name)}
    else:
        own = module.__name__
        found = {
            n: value
            for n, value in vars(module).items()
            if isinstance(value, nn.Module)
            or (_is_class(value) and getattr(value, "__module__", "") == own)
        }
    for n, value in found.items():
        skipped = "" if isinstance(value, nn.Module) else _not_built(where, n, value)
        yield f"{where}:{n}", value, skipped


def _not_built(where: str, name: str, value: Any) -> str:
    """Say why a class cannot be built with sizes of our own, "" where it can."""
    if not callable(value):
        return f"{name} is no class, and builds nothing"
    try:
        torch.manual_seed(0)
        built = _made(value)
    except Exception as error:
        said = str(error).strip().splitlines()
        why = f"{type(error).__name__}: {said[0] if said else ''}"
        return f"it must be built by its arguments ({why}): name it as {where}:{name}(...)"
    return "" if isinstance(built, nn.Module) else f"{name} builds no nn.Module"


def _made(value: Any) -> Any:
    """Build a class, or call a function, with sizes by the names of what it needs."""
    given = {}
    for name, parameter in inspect.signature(value).parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if parameter.default is inspect.Parameter.empty:
            sizes = [size for words, size in SIZES if re.fullmatch(words, name.lower())]
            if name in HEADS:
                sizes = [4]
            if not sizes:
                raise TypeError(f"nobody says its {name}")
            given[name] = sizes[0]
    return value(**given)


def _source(value: Any) -> tuple[str, int]:
    """Return file and line of a class, relative to here where it lies here."""
    try:
        file = Path(inspect.getsourcefile(value) or "").resolve()
        line = inspect.getsourcelines(value)[1]
    except (OSError, TypeError):
        return "", 1
    here = Path.cwd().resolve()
    return (file.relative_to(here) if file.is_relative_to(here) else file).as_posix(), line


def status(checked: list[Checked], only_named: bool = False) -> int:
    """Return the exit status: 1 when something is sick, or unexplained and that counts.

    Args:
        checked: what was examined.
        only_named: leave out what is unexplained.
    """
    reports = [one.report for one in checked if one.report is not None]  # a sick one is false
    rows = [row for report in reports for row in report.sick]
    failing = any(report.failing for report in reports)
    counted = [row for row in rows if row.report.explanations or not only_named]
    return SICK if counted or (failing and not only_named) else HEALTHY


def as_text(checked: list[Checked]) -> str:
    """Return what people read: each report, and what was skipped."""
    lines = []
    for one in checked:
        lines.append(f"{one.target}: skipped, {one.skipped}" if one.report is None else
                     f"{one.target}\n{one.report}")  # fmt: skip
    return "\n\n".join(lines) or "nothing with attention was found"


def as_json(checked: list[Checked]) -> str:
    """Return what programs read: a list with one object for each model."""
    data = []
    for one in checked:
        found = {"skipped": one.skipped} if one.report is None else one.report.data()
        data.append({"target": one.target, "file": one.file, "line": one.line, **found})
    return json.dumps(data, indent=2)


def as_annotations(checked: list[Checked]) -> str:
    """Return GitHub's workflow commands: an error for each mistake, at the class that has it."""
    lines = []
    for one in checked:
        if one.report is None:
            lines.append(_command("notice", one.file, one.line, "skipped", one.skipped))
            continue
        lines += [_row_command(one, row) for row in one.report.sick]
        lines += [
            _command("warning", one.file, one.line, one.report.name, f"fails: {words}")
            for words in one.report.failing
        ]
    return "\n".join(lines)


def _row_command(one: Checked, row: Row) -> str:
    report = row.report
    if not report.explanations:
        fails = "; ".join(report.failing) or "no known mistake gives its output"
        return _command("warning", one.file, one.line, f"{row.where}: unexplained", fails)
    told = "; or ".join(f"{e.words}. Fix: {e.fix}" for e in report.explanations)
    title = f"{row.where}: {' + '.join(report.ids)}"
    return _command("error", one.file, one.line, title, told)


def _command(kind: str, file: str, line: int, title: str, words: str) -> str:
    """Return one workflow command, with what GitHub wants escaped."""

    def plain(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    named_ = plain(title).replace(":", "%3A").replace(",", "%2C")
    place = plain(file).replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} file={place},line={line},title={named_}::{plain(words)}"
