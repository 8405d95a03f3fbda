"""Inputs for a whole model: tokens, images or vectors, as its first layers take them."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from attention_clinic.engine.arguments import CACHES
from attention_clinic.engine.openings import Opening, openings

IDS = re.compile(
    r"(^|_)(ids?|idx|tokens?|src|tgt|source|target|text|input|inputs|x|y|trg|seq)($|_)"
)
IMAGES = re.compile(r"pixel|imag|img|^x$|^inputs?$")
BESIDE = re.compile(r"mask|label|past|cache|pos|type|head|output|return|use_|loss|weights")
NUMBERS = re.compile(
    r"(^|_)(start|cur|current|input|offset|step)_?(pos|position)?$|^pos$|^layer_id"
)
FLAGS = re.compile(r"return|^use_|^is_")
TARGETS = re.compile(r"tgt|trg|dec|target|output|label")
SIDES = ("image_size", "img_size", "input_size", "resolution", "img_dim", "img_resolution")
CHANNELS = ("in_channels", "in_chans", "num_channels", "channels")
SAMPLES, LENGTH, OTHER_LENGTH = 2, 7, 6  # all sizes different from each other
LONGEST, PLACES = 512, 4  # of what else may be as long as a text; how many are tried
USUAL_SIDES = (64, 224, 32, 28, 96, 8)  # small first: tokens of pyramids are many
VOCABULARIES = ("vocab_size", "num_embeddings", "n_vocab", "vocabulary_size", "src_vocab_size")


def inputs_of(model: nn.Module) -> Iterator[dict[str, Any]]:
    """Yield what the model may be called with, by the names of its arguments, the likeliest first.

    Args:
        model: the copy.
    """
    try:
        parameters = inspect.signature(model.forward).parameters
    except (TypeError, ValueError):
        return
    quiet = {"use_cache": False} if "use_cache" in parameters else {}
    main = getattr(model, "main_input_name", None)
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = [name for name, parameter in parameters.items() if parameter.kind not in kinds]
    needed = [name for name in named if parameters[name].default is inspect.Parameter.empty]
    first = main if main in named else (needed or named or [""])[0]
    beside = {name for name in needed if BESIDE.search(name) or _plain(name, parameters[name])}
    wanted = [first, *(name for name in needed if name != first and name not in beside)]
    if "decoder_input_ids" in named:
        wanted.append("decoder_input_ids")
    open_masks = [name for name in needed if "mask" in name and name not in wanted]
    usual = [(made, OTHER_LENGTH) for made in _made(model, first)]
    alike = _further_ids(model) if any(_are_ids(made) for made, _ in usual) else ()
    for made, length in (*usual, *((made, None) for made in alike)):
        given = dict.fromkeys(wanted, made)
        if "decoder_input_ids" in given and not _are_ids(made):
            given["decoder_input_ids"] = _ids(model)
        elif len(wanted) > 1 and _are_tokens(made):
            # a target of another length than the source, where the model takes it
            given |= dict.fromkeys(wanted[1:], made[:, :length])
        left = {name: parameters[name] for name in needed if name not in (*wanted, *open_masks)}
        given |= _filled(left, made) | quiet
        for opening in (None, *(openings() if open_masks and _are_tokens(made) else ())):
            yield given | {name: _mask(name, opening, given, made) for name in open_masks}
        also = [n for n in named if parameters[n].default is None and IDS.search(n)]
        also = [n for n in also if not BESIDE.search(n) and n not in given]
        if also and _are_tokens(made):
            others = dict.fromkeys(also, made[:, :length])
            yield given | dict.fromkeys(open_masks) | others
    for ids in [made[0] for made, _ in usual if _are_ids(made)][:1]:  # of one text alone
        left = {name: parameters[name] for name in needed if name in beside - {*open_masks}}
        yield (
            dict.fromkeys((*wanted, *open_masks))
            | dict.fromkeys(wanted, ids)
            | (_filled(left, ids[None]) | quiet)
        )


def _filled(left: Mapping[str, inspect.Parameter], made: Tensor) -> dict[str, Any]:
    """Return values for arguments that have no default and take no tokens of the source."""
    values: dict[str, Any] = {}
    for name, parameter in left.items():
        if _plain(name, parameter):
            values[name] = 0  # or False
        elif name in CACHES:
            values[name] = None
        elif TARGETS.search(name) and _are_tokens(made):
            values[name] = made[:, :OTHER_LENGTH]
    return values


def _plain(name: str, parameter: inspect.Parameter) -> bool:
    """Say whether an argument takes a number or a yes or no, and no tensor."""
    if parameter.annotation is not inspect.Parameter.empty:
        return parameter.annotation in (bool, int, "bool", "int")
    return bool(FLAGS.search(name) or NUMBERS.search(name))


def _mask(
    name: str, opening: Opening | None, given: Mapping[str, Any], made: Tensor
) -> Tensor | None:
    """Return a mask that may block nothing, of the source or of the target as its name says."""
    if opening is None:
        return None
    lengths = {v.shape[1] for n, v in given.items() if TARGETS.search(n) and isinstance(v, Tensor)}
    length = min(lengths, default=LENGTH) if TARGETS.search(name) else made.shape[1]
    return opening.made(name, torch.ones(SAMPLES, length, 1))


def _are_tokens(t: Tensor) -> bool:
    return _are_ids(t) or t.ndim == 3


def _are_ids(t: Tensor) -> bool:
    return not t.is_floating_point()


def _further_ids(model: nn.Module) -> Iterator[Tensor]:
    """Yield ids that are alike for all arguments: few words, and as many as there are places."""
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    places = [t for t in _sized(model) if t.ndim == 3 and t.shape[0] == 1]
    places += [t for t in model.buffers() if t.is_floating_point() and t.ndim in (2, 3)]
    lengths = [t.shape[-2] for t in (*tables[1:], *places)]
    fewest = min((len(t) for t in tables), default=LENGTH)
    for length in (LENGTH, *[n for n in dict.fromkeys(lengths) if 1 < n <= LONGEST][:PLACES]):
        ids = _ids(model, length)
        yield from (ids, ids.clamp(max=fewest - 1))


def _ids(model: nn.Module, length: int = LENGTH) -> Tensor:
    """Return ids that every table of words of the model has."""
    said = [getattr(getattr(model, "config", None), name, None) for name in VOCABULARIES]
    tables = [m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding)]
    sizes = [size for size in said if isinstance(size, int)] or tables[:1] or [1000]
    most = max(2, min(sizes))
    generator = torch.Generator().manual_seed(0)
    padding = {
        value
        for part in model.modules()
        for name, value in vars(part).items()
        if "pad" in name and isinstance(value, int) and value < most - 1
    }
    # below stand the ids of padding and of ends, mostly
    least = min(max({2, *padding}) + 1, most - 1)
    return torch.randint(least, most, (SAMPLES, length), generator=generator)


def _made(model: nn.Module, name: str) -> Iterator[Tensor]:
    """Yield tensors for the first argument."""
    generator = torch.Generator().manual_seed(0)

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    kinds = (nn.Embedding, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.LayerNorm)
    parts = [part for part in model.modules() if isinstance(part, kinds)]
    tables = [part for part in parts if isinstance(part, nn.Embedding)]
    cuts = [part for part in parts if isinstance(part, nn.Conv2d)]
    pictures = bool(cuts) and (isinstance(parts[0], nn.Conv2d) or "pixel" in name)
    if tables and not pictures and "input_features" not in name and "values" not in name:
        yield _ids(model)
    for side in _sides(model):
        for part in cuts[:1]:
            yield noise(SAMPLES, part.in_channels * part.groups // part.groups, side, side)
        if not cuts and IMAGES.search(name):
            yield from (noise(SAMPLES, c, side, side) for c in _channels(model))
    if "features" in name:  # a spectrogram
        config = getattr(model, "config", None)
        bins = getattr(config, "num_mel_bins", 80)
        yield noise(SAMPLES, bins, 2 * getattr(config, "max_source_positions", 1500))
    if "values" in name:  # a sound
        yield noise(SAMPLES, 4000)
    widths = [part.in_features for part in parts if isinstance(part, nn.Linear)]
    widths += [part.normalized_shape[-1] for part in parts if isinstance(part, nn.LayerNorm)]
    widths += [m.embed_dim for m in model.modules() if isinstance(m, nn.MultiheadAttention)]
    for width in dict.fromkeys([width for width in widths if width][:3]):
        yield noise(SAMPLES, LENGTH, width)
    if tables and (pictures or "features" in name or "values" in name):
        yield _ids(model)


def _sized(model: nn.Module) -> list[Tensor]:
    """Return the parameters of a model that have sizes."""
    return [p for p in model.parameters() if not is_lazy(p)]


def _channels(model: nn.Module) -> Iterator[int]:
    """Yield how many channels images may have, said ones first."""
    said = [
        getattr(holder, name, None)
        for holder in (getattr(model, "config", None), *model.modules())
        for name in CHANNELS
    ]
    yield from dict.fromkeys([c for c in said if isinstance(c, int) and 0 < c < 16] + [3, 1])


def _sides(model: nn.Module) -> Iterator[int]:
    """Yield the sides that images may have, said ones first."""
    said: list[int] = []
    for holder in (model, getattr(model, "config", None), *model.modules()):
        for name in SIDES:
            value = getattr(holder, name, None)
            value = value[-1] if isinstance(value, tuple | list) and value else value
            if isinstance(value, int) and 4 <= value <= 1024:
                said.append(value)
    yield from dict.fromkeys((*said, *_sides_of_places(model), *USUAL_SIDES))


def _sides_of_places(model: nn.Module) -> Iterator[int]:
    """Yield the sides of square images whose patches are as many as learned places, (1, n, e)."""
    cuts = [m for m in model.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == m.stride]
    places = [p for p in _sized(model) if p.ndim == 3 and p.shape[0] == 1]
    for cut, table, classes in product(cuts[:1], places, (0, 1, 2)):
        root = math.isqrt(max(0, table.shape[1] - classes))
        if root > 1 and root**2 == table.shape[1] - classes:
            yield root * cut.stride[0]
