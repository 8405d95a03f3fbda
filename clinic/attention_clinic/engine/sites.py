"""Where in a model tokens attend to tokens, and which part around that is a block."""

from __future__ import annotations

import re
from dataclasses import dataclass

from torch import Tensor, nn

from attention_clinic.engine.calls import first_tensor
from attention_clinic.engine.heads import said_heads
from attention_clinic.engine.recording import Recording, Weighing
from attention_clinic.engine.weights import sources_of


@dataclass(frozen=True)
class Site:
    """One attention of a model.

    Args:
        levels: paths of what may be its whole attention, the innermost first: the projections
            alone, then what adds the output layer, the norm and the residual.
        block: path of the block that it stands in, None where there is none.
        num_heads: h, None where nothing says it.
        scores: shape of what its softmax got, None where none was heard.
    """

    levels: tuple[str, ...]
    block: str | None
    num_heads: int | None
    scores: tuple[int, ...] | None


def sites_of(model: nn.Module, recording: Recording) -> list[Site]:
    """Return every attention of a model, in the order of its parts.

    Args:
        model: the copy.
        recording: of its run; empty where it did not run.
    """
    parts = dict(model.named_modules())
    heard: dict[str, Weighing] = {}
    for weighing in recording.weighings:
        path = _holder(weighing, parts)
        if path is not None:
            heard.setdefault(path, weighing)
    for path in [path for path in _by_names(parts) if not _near(path, heard)]:
        heard[path] = Weighing(path, (), False)
    paths = _with_heads(heard, parts, recording)
    order = [path for path in parts if path in paths]
    matrices = {path: count(parts[path]) for path in order}
    return [_site(path, order, matrices, parts, paths[path], recording) for path in order]


def unseen(model: nn.Module, sites: list[Site]) -> list[str]:
    """Return the parts in which no attention was found, though others of their list have one.

    Args:
        model: the copy.
        sites: what was found.
    """
    found = [site.levels[0] for site in sites]
    left = []
    for path, part in model.named_modules():
        if not isinstance(part, nn.ModuleList | nn.Sequential):
            continue
        entries = [(f"{path}.{name}".lstrip("."), child) for name, child in part.named_children()]
        has = {p: any(f == p or f.startswith(f"{p}.") for f in found) for p, _ in entries}
        kin = [child for p, child in entries if has[p]]
        left += [p for p, child in entries if not has[p] and any(_akin(child, k) for k in kin)]
    return left


def _akin(part: nn.Module, other: nn.Module) -> bool:
    """Say whether two parts are of one class, and no mere shell around two others."""
    held = [[type(m) for m in child.children()] for child in (part, other)]
    is_shell = held[0] != held[1] and count(other) == max(map(count, other.children()), default=0)
    return type(part) is type(other) and not is_shell


def count(module: nn.Module) -> int:
    """Return how many different matrices a module has, tables of words and biases left out."""
    return len({s.weight.data_ptr() for s in sources_of(module)})


def above(path: str) -> list[str]:
    """Return the paths of what a part stands in, the nearest first, the model's "" last."""
    names = path.split(".") if path else []
    return [".".join(names[:n]) for n in range(len(names) - 1, -1, -1)]


def is_list(part: nn.Module) -> bool:
    """Say whether a part only holds others: a list of a class of its own may attend itself."""
    kinds = (nn.ModuleList, nn.ModuleDict, nn.Sequential)
    return any(isinstance(part, kind) and type(part).forward is kind.forward for kind in kinds)


def _projects(module: nn.Module) -> bool:
    """Say whether a module could hold the projections of an attention."""
    sources = sources_of(module)
    roles = {source.role.rstrip("?") for source in sources}
    if roles & {"qkv", "kqv"} or {"q", "k"} <= roles or {"q", "kv"} <= roles:
        return True
    packed = any(max(s.weight.shape) == 3 * min(s.weight.shape) for s in sources)
    return packed or len(sources) > 2


def _holder(weighing: Weighing, parts: dict[str, nn.Module]) -> str | None:
    """Return the innermost part around a softmax that holds projections."""
    shape = weighing.shape
    if len(shape) < 3 or (not weighing.certain and len(shape) == 3 and shape[-1] != shape[-2]):
        return None
    for path in (weighing.path, *above(weighing.path)):
        if is_list(parts[path]):
            continue
        if _projects(parts[path]):
            return path
    return None


def _by_names(parts: dict[str, nn.Module]) -> list[str]:
    """Return the innermost parts whose layers are called queries, keys and values."""
    found: list[str] = []
    for path, part in parts.items():
        if is_list(part) or isinstance(part, nn.Linear):
            continue
        direct = {
            source.role
            for source in sources_of(part)
            if source.name.count(".") <= 2 and not source.role.endswith("?")
        }
        apart = {"q", "k", "v"} <= direct or {"q", "kv"} <= direct or direct & {"qkv", "kqv"}
        named = "att" in type(part).__name__.lower() or isinstance(part, nn.MultiheadAttention)
        said = any("qkv" in s.name.lower() for s in sources_of(part)) or {"q", "k", "v"} <= direct
        if apart and (named or said):
            found.append(path)
    inner = [p for p in found if not any(o != p and o.startswith(f"{p}.") for o in found)]
    return [path for path in inner if path] or (inner if len(parts) > 1 else [])


def _near(path: str, heard: dict[str, Weighing]) -> bool:
    """Say whether something was heard in a part, or around it."""
    return any(
        path == other or path.startswith(f"{other}.") or other.startswith(f"{path}.") or not other
        for other in heard
    )


def _with_heads(
    heard: dict[str, Weighing], parts: dict[str, nn.Module], recording: Recording
) -> dict[str, Weighing]:
    """Put heads that are modules of their own together: they get the very same tokens."""
    found: dict[str, Weighing] = {}
    for path, weighing in heard.items():
        folder, _, number = path.rpartition(".")
        siblings = [p for p in heard if p.rpartition(".")[0] == folder and p != path]
        together = False
        if number.isdigit() and siblings and isinstance(parts.get(folder), nn.ModuleList):
            given = [_first(recording, p) for p in (path, *siblings)]
            together = all(t is not None and t is given[0] for t in given)
        if not together:
            found[path] = weighing
            continue
        owner = folder.rpartition(".")[0]
        shape = weighing.shape
        b, i, j = shape[0], shape[-2], shape[-1]
        found.setdefault(owner, Weighing(owner, (b, 1 + len(siblings), i, j), weighing.certain))
    return found


def _first(recording: Recording, path: str) -> Tensor | None:
    call = recording.calls.get(path)
    values = () if call is None else call.given.values()
    return next((value for value in values if isinstance(value, Tensor)), None)


def _site(
    path: str,
    order: list[str],
    matrices: dict[str, int],
    parts: dict[str, nn.Module],
    weighing: Weighing,
    recording: Recording,
) -> Site:
    """Return one site with what stands around it."""
    levels, block = [path], None
    for place in above(path):
        part = parts[place]
        if is_list(part) and not isinstance(part, nn.Sequential):
            continue
        inside = [p for p in order if p == place or p.startswith(f"{place}.") or not place]
        more = count(part) - sum(matrices[p] for p in inside)
        if more < 2 and len(inside) == 1 and keeps(recording, place):
            levels.append(place)
        elif more >= 2:
            crossed = len(inside) == 2 and len(levels) < 4
            if (len(inside) == 1 or crossed) and keeps(recording, place) and _norms(part):
                block = place
            break
        elif len(inside) > 2:
            break
    shape = weighing.shape
    heads = said_heads(parts[path])
    if len(shape) >= 4:  # (b, h, i, j), or (b, g, h / g, i, j)
        by_shape = shape[1] * shape[2] if len(shape) == 5 else shape[1]
        if len(shape) == 4 or heads is None:
            heads = by_shape if heads is None or weighing.certain else heads
    for place in above(path) if heads is None else ():
        heads = heads or said_heads(parts[place])
    return Site(tuple(levels), block, heads, shape or None)


def _norms(part: nn.Module) -> bool:
    """Say whether a part holds a norm."""
    return any(re.search(r"norm|ln", type(m).__name__.lower()) for m in part.modules()) or any(
        p.ndim == 1 for p in part.parameters()
    )


def keeps(recording: Recording, path: str) -> bool:
    """Say whether a part returns tokens of the shape that it gets; True where it never ran."""
    call = recording.calls.get(path)
    if call is None or call.result is None:
        return call is None
    try:
        y = first_tensor(call.result)
    except TypeError:
        return False
    return any(isinstance(t, Tensor) and t.shape == y.shape for t in call.given.values())
