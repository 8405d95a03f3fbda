"""`python -m attention_clinic check PLACE ...`: every model of some files, for CI."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from attention_clinic.engine.heads import NAMES as HEADS
from attention_clinic.engine.model_report import ModelReport, Row
from attention_clinic.engine.refusal import wants_inputs
from attention_clinic.examine.model import diagnose_model
from attention_clinic.importing import (
    apart,
    files_of,
    imported,
    is_kind_of_module,
    is_own,
    named,
)

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
class Site:
    """Where the class of a part stands.

    Args:
        name: of the class.
        file: relative to the folder that the command runs in where it lies there.
        line: where the class begins.
    """

    name: str
    file: str
    line: int


@dataclass(frozen=True)
class Checked:
    """One model of a place.

    Args:
        target: PLACE:NAME, as one would write it.
        site: of its class.
        report: what was found; None where it could not be examined.
        skipped: why it could not be.
        sites: of the classes of the report's rows.
        bad: whether it must not pass although nothing in it was examined: it was named, or is no
            file that can be imported.
    """

    target: str
    site: Site
    report: ModelReport | None
    skipped: str = ""
    sites: tuple[Site, ...] = ()
    bad: bool = False


def check(
    places: list[str], num_heads: int | None = None, causal: bool | None = None
) -> list[Checked]:
    """Examine what the places name: a whole file, a name in it, or a call such as `Net(64, 8)`.

    Args:
        places: path/to/file.py, path/to/file.py:Name, path/to/file.py:Name(64, 8), or the same
            with a module that Python finds; a folder stands for its files that derive classes.
            Only these are imported, each apart from the others.
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
        if name or not Path(where).is_dir():
            found += _checked(where, name, num_heads, causal)
            continue
        for file in files_of(Path(where)):
            try:
                found += _checked(str(file), "", num_heads, causal)
            except ValueError as error:  # one of many: the others are examined
                site = Site(file.stem, _from_here(file), 1)
                found.append(Checked(str(file), site, None, str(error), bad=True))
    return found


def _checked(where: str, name: str, num_heads: int | None, causal: bool | None) -> list[Checked]:
    """Examine the models of one file or module, or the one with a name."""
    found = []
    with apart():
        for target, built, skipped in _models(where, imported(where), name):
            site = _site(type(built) if isinstance(built, nn.Module) else built)
            if skipped:
                found.append(Checked(target, site, None, skipped, bad=bool(name)))
                continue
            torch.manual_seed(0)
            model = built if isinstance(built, nn.Module) else _made(built)
            try:
                report = diagnose_model(model, num_heads=num_heads, causal=causal)
            except ValueError as error:  # one of several: the others are examined
                if not wants_inputs(error):
                    raise
                found.append(Checked(target, site, None, str(error), bad=bool(name)))
                continue
            if report.rows or name:
                sites = tuple(_site_of(row, model, site) for row in report.rows)
                found.append(Checked(target, site, report, "", sites, bad=not report.rows))
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
            or (is_kind_of_module(value) and getattr(value, "__module__", "") == own)
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


def _site(value: Any) -> Site:
    """Return where a class stands, or the one that it only inherits from."""
    kinds = [one for one in getattr(value, "__mro__", ()) if one.__module__ != "builtins"]
    own = (one for one in kinds if {"forward", "__init__"} & set(vars(one)))
    kind = next(own, value)
    kind = kind if kind is value or is_own(inspect.getsourcefile(kind) or "") else value
    name = getattr(kind, "__name__", type(kind).__name__)
    try:
        file, line = inspect.getsourcefile(kind) or "", inspect.getsourcelines(kind)[1]
    except (OSError, TypeError):
        return Site(name, "", 1)
    return Site(name, _from_here(Path(file)), line)


def _from_here(file: Path) -> str:
    """Return a file relative to the folder that the command runs in, where it lies there."""
    file, here = file.resolve(), Path.cwd().resolve()
    return (file.relative_to(here) if file.is_relative_to(here) else file).as_posix()


def _site_of(row: Row, model: nn.Module, outer: Site) -> Site:
    """Return where the class of a row stands: of what is installed, the user's class around it.

    Args:
        row: of the model's report.
        model: the model.
        outer: where the model's own class stands.
    """
    parts = dict(model.named_modules(remove_duplicate=False))
    path = row.places[0]
    part = _inmost(parts[path], row.report.ids) if path in parts else None
    if part is not None and part is not model:
        site = _site(type(part))
        if site.file and is_own(site.file):
            return site
    while path := path.rpartition(".")[0]:
        site = _site(type(parts[path])) if path in parts else Site("", "", 1)
        if site.file and is_own(site.file):
            return site
    return outer


def _inmost(part: nn.Module, ids: tuple[str, ...]) -> nn.Module:
    """Return the inmost of a user's modules that has these mistakes by itself."""
    for child in part.children() if ids else ():
        own = is_own(inspect.getsourcefile(type(child)) or "") and any(child.children())
        with suppress(ValueError):
            if own and diagnose_model(child).ids == ids:
                return _inmost(child, ids)
    return part


def status(checked: list[Checked], only_named: bool = False) -> int:
    """Return the exit status: 1 when something is sick, or unexplained and that counts.

    It is 2 when something that was named, or a file of a folder, could not be examined.

    Args:
        checked: what was examined.
        only_named: leave out what is unexplained.
    """
    reports = [one.report for one in checked if one.report is not None]  # a sick one is false
    rows = [row for report in reports for row in report.sick]
    failing = any(report.failing for report in reports)
    counted = [row for row in rows if row.report.explanations or not only_named]
    if counted or (failing and not only_named):
        return SICK
    return BAD_CALL if any(one.bad for one in checked) else HEALTHY


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
        for row, site in zip(found.get("rows", ()), one.sites, strict=True):
            row |= {"class": site.name, "file": site.file, "line": site.line}
        at = {"file": one.site.file, "line": one.site.line}
        data.append({"target": one.target, **at, **found})
    return json.dumps(data, indent=2)


def as_annotations(checked: list[Checked]) -> str:
    """Return GitHub's workflow commands: an error for each mistake, at the class that has it."""
    lines: list[str] = []
    for one in checked:
        kind = "error" if one.bad else "notice"
        if one.report is None:
            lines.append(_command(kind, one.site, f"{one.site.name}: skipped", one.skipped))
            continue
        if not one.report.rows:
            title = f"{one.site.name}: not examined"
            lines.append(_command(kind, one.site, title, one.report.verdict))
        for row, site in zip(one.report.rows, one.sites, strict=True):
            if not row.report.healthy:
                lines.append(_row_command(one, row, site))
        lines += [
            _command("warning", one.site, one.report.name, f"fails: {words}")
            for words in one.report.failing
        ]
    return "\n".join(dict.fromkeys(lines))  # a model of the file may hold another one of it


def _row_command(one: Checked, row: Row, site: Site) -> str:
    report = row.report
    name = site.name if site != one.site or row.places[0] == "" else f"{site.name}, {row.where}"
    if not report.explanations:
        fails = "; ".join(report.failing) or "no known mistake gives its output"
        return _command("warning", site, f"{name}: unexplained", fails)
    told = "; or ".join(f"{e.words}. Fix: {e.fix}" for e in report.explanations)
    return _command("error", site, f"{name}: {' + '.join(report.ids)}", told)


def _command(kind: str, site: Site, title: str, words: str) -> str:
    """Return one workflow command, with what GitHub wants escaped."""

    def plain(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    named_ = plain(title).replace(":", "%3A").replace(",", "%2C")
    place = plain(site.file).replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} file={place},line={site.line},title={named_}::{plain(words)}"
