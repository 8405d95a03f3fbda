"""From the tensors of a checkpoint to those of our classes, by a table of names (chapter 15)."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from utils.hub.checkpoints import list_some, read_tensors

Model = TypeVar("Model", bound=nn.Module)
NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class Changed:
    """Say which of our tensors one of theirs becomes, and how.

    Args:
        names: ours, in the order in which `change` returns them.
        change: what is done to their tensor on the way.

    Shape:
        change  theirs (...) -> one tensor (...) for each name

    Source: chapter 15.
    """

    names: tuple[str, ...]
    change: Callable[[Tensor], Sequence[Tensor]]


def transposed(name: str) -> Changed:
    """Turn a weight over, as the files of GPT-2 need it; a bias stays.

    Args:
        name: ours.

    Shape:
        weight  (in, out) -> (out, in)
        bias    (out,) -> (out,)

    Source: chapter 15.
    """
    return Changed((name,), lambda tensor: [tensor.t()])


def unpacked(*names: str) -> Changed:
    """Turn a weight over, and cut its rows into one part for each name: queries, keys, values.

    Args:
        names: ours, in the order of the rows.

    Shape:
        weight  (in, 3 * out) -> three of (out, in)
        bias    (3 * out,) -> three of (out,)

    Source: chapter 15.
    """
    # transposed as a whole first: PyTorch does that fast, and parts slowly
    return Changed(names, lambda tensor: tensor.t().contiguous().chunk(len(names)))


def flattened(name: str) -> Changed:
    """Lay the weight of a convolution out as that of a Linear, in the order of `patchify`.

    Args:
        name: ours.

    Shape:
        weight  (e, c, ph, pw) -> (e, c * ph * pw)

    Source: chapters 01 and 15.
    """
    return Changed((name,), lambda tensor: [tensor.flatten(1)])


# Theirs -> ours: what happens to a tensor on the way, or only a name. A star is a number. Without
# .weight or .bias a row means both. None: it is in the files, and no part of our model.
Table = Mapping[str, str | Changed | None]


def fill(
    where: str,
    folder: Path,
    build: Callable[[], Model],
    table: Table,
    prefix: str,
    dtype: torch.dtype,
) -> Model:
    """Build a model and give it the tensors of a checkpoint: all of them, or raise.

    Args:
        where: the public name that an error begins with.
        folder: of the checkpoint.
        build: makes the model; what numbers it has at first does not matter.
        table: their names -> ours.
        prefix: what their names begin with if the checkpoint has a head, too.
        dtype: what the weights become.

    Raises: ValueError for tensors that are missing, extra, misshapen or quantized.
    """
    with torch.device("meta"):  # shapes without numbers: nothing is drawn to be thrown away
        model = build()
    parts = dict(model.named_parameters(remove_duplicate=False))
    tied = "head.weight" in parts and parts["head.weight"] is parts.get("embedding.tokens.weight")
    wanted = {name: value.shape for name, value in model.state_dict().items()}
    ours = _translate(where, read_tensors(where, folder), wanted, table, prefix)
    if tied:
        _check_tied(where, ours)
    if missing := sorted(wanted.keys() - ours.keys() - ({"head.weight"} if tied else set())):
        theirs = _their_names(table, missing)
        raise ValueError(
            f"{where}: the checkpoint must hold every tensor of the model, "
            f"got none for {list_some(theirs)}. The file is of another model, or was saved in part."
        )
    state = {name: _copy(value, dtype) for name, value in ours.items()}
    if tied:  # the state dict has the one table under both names
        state["head.weight"] = state["embedding.tokens.weight"]
    model.load_state_dict(state, assign=True)
    if tied:
        model.head.weight = model.embedding.tokens.weight
    return model.eval()


def _translate(
    where: str,
    theirs: dict[str, Tensor],
    wanted: dict[str, torch.Size],
    table: Table,
    prefix: str,
) -> dict[str, Tensor]:
    """Return their tensors under our names, after checking the shape of each."""
    ours: dict[str, Tensor] = {}
    extra = []
    for name, tensor in theirs.items():
        row = find_row(table, name.removeprefix(prefix))
        if row is None:
            continue
        if not row.names or not wanted.keys() >= set(row.names):
            extra.append(name)
            continue
        if twice := ours.keys() & set(row.names):
            raise ValueError(
                f"{where}: every tensor must come once, got {name} for {list_some(sorted(twice))}, "
                "which has one. The file holds two models."
            )
        ours |= _change(where, name, tensor, row, wanted)
    if extra:
        raise ValueError(
            f"{where}: the model must have a place for every tensor, "
            f"got {list_some(sorted(extra))}, for which it has none. "
            "The file is of another model, or its config.json is."
        )
    return ours


def find_row(table: Table, name: str) -> Changed | None:
    """Return where one of their tensors goes.

    Args:
        table: their names -> ours, such as `GPT2`.
        name: of their tensor, without the prefix of the model.

    Returns:
        A `Changed` with our names; without names if the table does not know theirs; None if it
        says that the tensor is no part of the model.

    Source: chapter 15.
    """
    numbers = NUMBER.findall(name)
    stem, _, kind = (starred := NUMBER.sub("*", name)).rpartition(".")
    # the first BERT called a norm's weight gamma and its bias beta
    ending = {"gamma": "weight", "beta": "bias"}.get(kind, kind)
    for key, suffix in ((starred, ""), (stem, f".{ending}")):
        if key not in table or (suffix and ending not in ("weight", "bias")):
            continue
        row = table[key]
        if row is None:
            return None
        if isinstance(row, str):
            row = Changed((row,), lambda tensor: [tensor])
        names = tuple(_numbered(ours, numbers) + suffix for ours in row.names)
        return Changed(names, row.change)
    return Changed((), lambda tensor: [])


def _numbered(name: str, numbers: list[str]) -> str:
    """Put numbers in the place of the stars of a name."""
    for number in numbers:
        name = name.replace("*", number, 1)
    return name


def _change(
    where: str, name: str, tensor: Tensor, row: Changed, wanted: dict[str, torch.Size]
) -> dict[str, Tensor]:
    """Return the tensors that one of theirs becomes."""
    if not tensor.is_floating_point() or tensor.itemsize == 1:  # float8 needs its scales
        raise ValueError(
            f"{where}: weights must be floating point numbers of 16 bits or more, got {name} of "
            f"{tensor.dtype}. The checkpoint is quantized: take the one that it was made from."
        )
    try:
        parts = dict(zip(row.names, row.change(tensor), strict=True))
    except (RuntimeError, IndexError, ValueError):  # too many or few axes, or it cannot be cut
        parts = {}
    if not parts or any(part.shape != wanted[ours] for ours, part in parts.items()):
        shapes = list_some([f"{ours} {tuple(wanted[ours])}" for ours in row.names])
        raise ValueError(
            f"{where}: {name} must fit into {shapes}, got {name}.shape={tuple(tensor.shape)}. "
            "The file and its config.json do not belong together."
        )
    return parts


def _copy(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Copy a tensor out of its file, so that the model outlives what becomes of the file."""
    if value.dtype == dtype:
        return value.clone(memory_format=torch.contiguous_format)
    return value.to(dtype, memory_format=torch.contiguous_format)


def _check_tied(where: str, ours: dict[str, Tensor]) -> None:
    """Take a second table for the head out, where one serves both ends; refuse another one."""
    head = ours.pop("head.weight", None)
    table = ours.get("embedding.tokens.weight", head)
    if head is not None and not torch.equal(table, head):
        raise ValueError(
            f"{where}: with tie_word_embeddings=true one table must serve both ends, "
            "got two different ones. Set tie_word_embeddings to false in config.json if the "
            "model was trained with two."
        )


def _their_names(table: Table, missing: list[str]) -> list[str]:
    """Return under which names the tensors that are missing would be in the file."""
    names: dict[str, str] = {}
    for theirs, row in table.items():
        targets = (row,) if isinstance(row, str) else row.names if row else ()
        names |= dict.fromkeys(targets, theirs)
    found = set()
    for name in missing:
        numbers = NUMBER.findall(name)
        for count in (len(numbers), 1):  # a row for each expert says its number
            starred = NUMBER.sub("*", name, count=count)
            stem, _, ending = starred.rpartition(".")
            if starred in names or stem in names:
                theirs = names.get(starred) or f"{names[stem]}.{ending}"
                found.add(_numbered(theirs, numbers))
                break
    return sorted(found)
