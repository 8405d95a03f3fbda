"""The calls of a block that are its parts, or layers of parts that nobody wrote as a module."""

from __future__ import annotations

import re

import torch
from torch import Tensor, nn

from attention_clinic.engine.weights import Silent
from attention_clinic.engine.wiring import Step

NORM = re.compile(r"norm|rms|(^|[ ._])ln(\d|[ ._]|$)")
RMS = re.compile(r"(?<!no)rms")  # and no end of "norms"
KINDS = (nn.LayerNorm, nn.RMSNorm, nn.GroupNorm, nn.InstanceNorm1d)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Unclear(Exception):
    """What ran is not understood."""


def leaves(step: Step, x: Tensor) -> list[Step]:
    """Return the calls that are parts, or layers of parts that nobody wrote as a module."""
    found: list[Step] = []
    for inner in step.inner:
        if inner.module is None or is_norm(inner) or not inner.inner or not _opened(inner, x):
            found.append(inner)
        else:
            found += leaves(inner, x)
    return found


def is_matrix(p: Tensor) -> bool:
    """Say whether a parameter is more than a row of numbers, however many axes it has."""
    return p.ndim > 1 and p.numel() > max(p.shape)


def is_norm(step: Step) -> bool:
    """Say whether a call is that of a norm."""
    if step.module is None:
        return step.again is not None and "norm" in step.path.rpartition(" ")[2]
    if isinstance(step.module, KINDS):
        return True
    words = f"{type(step.module).__name__.lower()} {step.path.rpartition('.')[2].lower()}"
    if not NORM.search(words) and not NORM.search(step.path.lower().rpartition(".")[0]):
        return False
    holds = any(is_matrix(p) and not _of_places(p, step, words) for p in step.module.parameters())
    inner = has_parts(step.module)
    alone = len(step.given) == 1 and not step.mixes and not inner and not holds
    own = NORM.search(words) or any(True for _ in step.module.parameters())
    return alone and bool(own) and "act" not in words and not _same_as_given(step)


def has_parts(part: nn.Module) -> bool:
    """Say whether a module holds others, but for a dropout."""
    return any(not isinstance(one, nn.Dropout) for one in part.children())


def _of_places(p: Tensor, step: Step, words: str) -> bool:
    """Say whether a parameter of what is called a norm is a weight for each place of a text."""
    given = next(iter(step.given.values()), None)
    if given is None or given.ndim < 3 or not re.search(r"norm|rms", words.partition(" ")[0]):
        return False
    return p.ndim == 2 and p.shape[1] == given.shape[-1] and given.shape[-2] <= p.shape[0] < 1e4


def looks_like_a_norm(path: str, part: nn.Module) -> bool:
    """Say whether a module is a norm, by its class and its name."""
    words = f"{type(part).__name__.lower()} {path.rpartition('.')[2].lower()}"
    own = [p for p in part.parameters() if not is_matrix(p)]
    if isinstance(part, (*KINDS, nn.BatchNorm1d, nn.BatchNorm2d)):  # timm's hold an activation
        return True
    return bool(NORM.search(words) and own and not has_parts(part))


def is_no_norm(path: str, part: nn.Module) -> bool:
    """Say whether a module stands where a norm would, and its builder chose to have none."""
    return isinstance(part, nn.Identity) and bool(NORM.search(path.rpartition(".")[2].lower()))


def has_convolution(steps: list[Step]) -> bool:
    """Say whether a convolution is called in calls."""
    return any(isinstance(one.module, CONVOLUTIONS) for step in steps for one in step.all())


def looks_around(steps: list[Step]) -> bool:
    """Say whether a convolution over neighbours is called in calls."""
    called = (one.module for step in steps for one in step.all())
    return any(isinstance(one, CONVOLUTIONS) and max(one.kernel_size) > 1 for one in called)


def _same_as_given(step: Step) -> bool:
    return step.result is not None and any(
        given.shape == step.result.shape and torch.equal(given, step.result)
        for given in step.given.values()
    )


def matrices(steps: list[Step]) -> set[int]:
    """Return the matrices of the layers that are called in calls."""
    return {
        id(p)
        for step in steps
        for one in step.all()
        if one.module is not None
        for p in one.module.parameters(recurse=False)
        if is_matrix(p)
    }


def _opened(step: Step, x: Tensor) -> bool:
    """Say whether a call is to be looked into: it is more, or less, than one part."""
    e = x.shape[-1]
    if step.result is None or step.result.ndim != 3 or step.result.shape[-1] != e:
        return False
    below = [one for inner in step.inner for one in inner.all()]
    normed = [one for one in below if is_norm(one) and _width(one) in (e, None)]
    if not matrices([step]):  # between two transposes, of a Sequential
        normed += [one for one in below if isinstance(one.module, nn.BatchNorm1d)]
    if any(not _stays_inside(norm, step, below) for norm in normed):
        return True
    if _adds_what_it_gets(step) and not any(isinstance(o.module, CONVOLUTIONS) for o in below):
        return True
    whole = [
        one
        for one in below
        if one.module is not None and one.mixes and maps(one, e) and matrices([one])
    ]
    if step.mixes and whole:
        rest = matrices([step]) - matrices(whole)
        first = below.index(whole[0])
        before = matrices([one for one in below[:first] if not one.inner])
        if len(rest) == 3 and rest <= before:
            return False  # queries, keys and values go through layers, and then into another
        return len(rest) != 1
    return not step.mixes and not matrices([step]) and any(matrices([i]) for i in step.inner)


def _stays_inside(norm: Step, step: Step, below: list[Step]) -> bool:
    """Say whether a norm is of queries or keys, or of the tokens of which keys are made.

    It reads what a layer made, or what is not as long as the tokens, and leaves nothing.
    """
    ends = [step.result, *(term for one in (step, *below) for sum_ in one.sums for term in sum_)]
    if norm.result is None or any(t is not None and equal_tensors(norm.result, t) for t in ends):
        return False
    return step.mixes and (_of_fewer(norm, step) or any(reads_of(norm, one) for one in below))


def _of_fewer(norm: Step, step: Step) -> bool:
    """Say whether a norm gets another number of tokens than a call, and not from outside."""
    t = next(iter(norm.given.values()), None)
    if t is None or t.ndim != 3 or step.result is None or t.shape[1] == step.result.shape[1]:
        return False
    return not any(equal_tensors(t, given) for given in step.given.values())


def reads_of(step: Step, layer: Step) -> bool:
    """Say whether a call reads what a layer made, or some of its columns."""
    given, made = next(iter(step.given.values()), None), layer.result
    if given is None or made is None or layer.module is None or not matrices([layer]):
        return False
    width = given.shape[-1]
    if made.shape[:-1] != given.shape[:-1] or made.shape[-1] % width:
        return False
    return any(torch.equal(given, piece) for piece in made.split(width, dim=-1))


def with_between(layers: list[Step], since: list[Step]) -> list[Step]:
    """Return the layers of a part, and all that reads what these made, in the order of the calls.

    Args:
        layers: of the part.
        since: all calls behind the last part.
    """
    found = list(layers)
    for step in since:
        given = next(iter(step.given.values()), None)
        if step.module is None or given is None or any(step is one for one in found):
            continue
        made = (one.result for one in found if one.result is not None)
        rows = (t.flatten(2).mT if t.ndim == 4 else t for t in made)
        found += [step] * any(equal_tensors(given, t) for t in rows)
    return [step for step in since if any(step is one for one in found)]


def _width(step: Step) -> int | None:
    return next((given.shape[-1] for given in step.given.values()), None)


def maps(step: Step, e: int) -> bool:
    made = step.result
    return made is not None and made.ndim == 3 and made.shape[-1] == e and bool(step.given)


@torch.no_grad()
def _adds_what_it_gets(step: Step) -> bool:
    """Say whether a part adds what it gets to what it makes of it."""
    module, given = step.module, list(step.given.values())
    if module is None or len(given) != 1 or step.result is None or step.mixes:
        return False
    if step.result.shape != given[0].shape or not any(True for _ in module.parameters()):
        return False
    with Silent(list(module.parameters())):
        try:
            return torch.equal(module(given[0].clone()), given[0])
        except Exception:
            return False


@torch.no_grad()
def bends(step: Step) -> bool:
    """Say whether a call bends every number by itself, as no factor and no resting dropout does.

    What holds single numbers, such as the slope of a learned Swish, may bend, too.
    """
    run, given = step.again or step.module, next(iter(step.given.values()), None)
    if isinstance(step.module, nn.PReLU):
        return True
    holds = step.module is not None and any(p.numel() > 1 for p in step.module.parameters())
    if run is None or given is None or len(step.given) > 1 or step.mixes or holds:
        return False
    line = torch.linspace(-3, 3, given.numel()).to(given)
    order = torch.randperm(len(line), generator=torch.Generator().manual_seed(47))
    try:
        made = run(line.view(given.shape).clone()).flatten()
        other = run(line[order].view(given.shape)).flatten()
    except Exception:  # whatever a stranger's code raises
        return False
    if made.shape != line.shape or not torch.allclose(made[order], other, rtol=1e-9, atol=1e-9):
        return False
    return not torch.allclose(made * line[-1], made[-1] * line, rtol=1e-6, atol=1e-6)


def called_as(step: Step) -> str:
    """Return the name of an activation."""
    named = type(step.module).__name__ if step.module is not None else step.path.split(" ")[-1]
    return named.lower().rstrip("_")


def held(step: Step) -> int:
    """Return how many matrices a module holds, called or not."""
    return 0 if step.module is None else sum(is_matrix(p) for p in step.module.parameters())


def some_part_rests(block: nn.Module, root: Step) -> bool:
    """Say whether a part of several layers stands beside those that were called, and never was."""
    ran = {step.path for step in root.all() if step.path}

    def called(path: str) -> bool:
        return any(f"{one}.".startswith(f"{path}.") or path.startswith(f"{one}.") for one in ran)

    idle = (part for path, part in block.named_modules() if path and not called(path))
    return len({id(p) for part in idle for p in part.parameters() if p.ndim > 1}) > 1


def equal_tensors(first: Tensor, second: Tensor) -> bool:
    """Say whether two tensors are the same, shape and numbers."""
    return first.shape == second.shape and torch.equal(first, second)


def factors_of(sum_: Tensor, terms: list[Tensor]) -> Tensor | None:
    """Return how much of each term is in a sum, without signs; None where it is no sum of them."""
    held = [t.flatten() for t in terms if t.shape == sum_.shape]
    columns, wanted = torch.stack(held, dim=1), sum_.flatten()[:, None]
    factors = torch.linalg.lstsq(columns, wanted).solution
    apart = (columns @ factors - wanted).abs().max()
    return None if apart > 1e-6 * (1 + wanted.abs().max()) else factors[:, 0].abs()


def is_one(group: list[Step], shape: torch.Size) -> bool:
    """Say whether a group is one linear layer that gives as many numbers as a token has."""
    layer = group[0] if len(group) == 1 else None
    given = layer is not None and isinstance(layer.module, nn.Linear) and bool(layer.given)
    return given and layer.result is not None and layer.result.shape == shape


def tokens_of(step: Step) -> Tensor:
    """Return what a layer reads first, (b, n, e), where its heads are split before it, too."""
    t = next(iter(step.given.values()))
    return t.flatten(2) if t.ndim > 3 else t


def hold_in_common(module: nn.Module, holders: list[set[str]]) -> bool:
    """Say whether several parts of a module, each some paths in it, hold one and the same weight.

    Args:
        module: the whole.
        holders: the paths of each part.
    """
    inner = dict(module.named_modules())
    held = [
        {id(p) for path in paths if path in inner for p in inner[path].parameters()}
        for paths in holders
    ]
    return bool(set.intersection(*held))


def idle_parts(module: nn.Module, called: set[str]) -> list[str]:
    """Return the parts of several layers that hold nothing of what was called.

    Args:
        module: the whole.
        called: the paths of all that was.
    """
    held = {id(p) for path in called for p in module.get_submodule(path).parameters()}
    found: list[str] = []
    layers: list[str] = []
    for path, part in module.named_modules():
        own = [p for p in part.parameters() if p.ndim > 1]
        inside = any(path.startswith(f"{other}.") for other in found)
        if not path or not own or inside or any(id(p) in held for p in own):
            continue
        (found if len(own) > 1 else layers).append(path)
    return [*found, " and ".join(layers)] if len(layers) > 1 else found
