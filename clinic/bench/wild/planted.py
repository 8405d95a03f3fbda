"""Examine modules with planted mistakes: which are named, which pass for healthy.

A right module is called as the tool calls it, and its numbers are kept: what it returns, and its
gradients, while it evaluates and while it trains. A planted mistake counts only if it changes one
of them. All happens in processes of their own, as with any case, see `trial.py`.
"""

from __future__ import annotations

import copy
import functools
import importlib
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from wild.cases import Case
from wild.planting import Planted, mistakes
from wild.trial import CLINIC, Verdict, examined

KEPT = "planted.pt"  # beside the stranger's files, for the time of one case
CALLS = 4
SAME, FAILS = "the numbers are the same", "it does not run any more"
NAMED, REMARK, OPEN, OTHER = "named", "remark", "unexplained", "refused"
WRONG, FALSE = "wrong name", "false healthy"
OUTCOMES = (NAMED, REMARK, OPEN, OTHER, WRONG, FALSE)


@dataclass(frozen=True)
class Tried:
    """A planted mistake, and what was said of the module with it."""

    case: Case
    planted: Planted
    verdict: Verdict
    outcome: str


def outcome(planted: Planted, before: Verdict, verdict: Verdict) -> str:
    """Return what a verdict on a planted mistake is worth.

    Args:
        planted: the mistake.
        before: what was said of the module without it.
        verdict: what is said now.
    """
    ids = set(planted.ids)
    more = set(verdict.variants) - set(before.variants)
    if verdict.state != "answered":
        return OTHER
    if verdict.ids:
        return NAMED if any(set(one) <= ids for one in verdict.ids) and more <= ids else WRONG
    if not verdict.healthy:
        return OPEN
    if more:
        return NAMED if more <= ids else WRONG
    return REMARK if set(verdict.remarks) & ids else FALSE


def tried(
    case: Case, root: Path, most: int, pairs: bool = False, seconds: float = 120.0
) -> Iterator[Tried]:
    """Yield the verdicts on a case with mistakes, always the same ones.

    Args:
        case: a right module.
        root: the folder that holds its repository; its file is changed meanwhile.
        most: how many mistakes are tried, each alone.
        pairs: whether each has a second one beside it.
        seconds: of processor time for each.
    """
    file = root / case.file
    before = examined(case, root, seconds, f"{__name__}:keep")
    text = file.read_text(encoding="utf-8", errors="replace")
    if file.suffix != ".py" or not before.healthy or not (root / KEPT).exists():
        return
    chance = random.Random(case.id)
    found, left = list(mistakes(text, case.build)), most
    chance.shuffle(found)
    kinds: Counter[str] = Counter()
    while found and left:
        found.sort(key=lambda one: -kinds[one.kind])  # another kind each time, as far as they go
        planted = found.pop()
        kinds[planted.kind] += 1
        planted = second(planted, case.build, chance) if pairs else planted
        file.write_text(planted.text, encoding="utf-8")
        verdict = examined(case, root, seconds, f"{__name__}:compare")
        if verdict.words not in (SAME, FAILS) and verdict.state != "broken":
            left -= 1
            yield Tried(case, planted, verdict, outcome(planted, before, verdict))
    file.write_text(text, encoding="utf-8")


def second(planted: Planted, build: str, chance: random.Random) -> Planted:
    """Return a mistake with another one beside it, of another kind."""
    others = [one for one in mistakes(planted.text, build) if one.kind != planted.kind]
    if not others:
        return planted
    more = chance.choice(others)
    kind, ids = f"{planted.kind} + {more.kind}", (*planted.ids, *more.ids)
    before, after = (f"{a} ... {b}" for a, b in zip(*map(_change, (planted, more)), strict=True))
    return replace(more, kind=kind, ids=ids, line=planted.line, before=before, after=after)


def _change(planted: Planted) -> tuple[str, str]:
    return planted.before, planted.after


# ---------------------------------------------------------------- in the process of the stranger


def keep(module: nn.Module, tool: str, given: dict[str, Any]) -> dict[str, Any]:
    """Examine a right module, and keep how it was called and the numbers that it gave."""
    calls: list[dict[str, Any]] = []
    forward = type(module).forward

    @functools.wraps(forward)
    def listening(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if self.training or len(calls) == CALLS or "mask" in " ".join(kwargs):
            return forward(self, *args, **kwargs)
        state = {name: t.detach().clone() for name, t in self.state_dict().items()}
        call = _copied({"args": list(args), "kwargs": kwargs, "state": state})
        made = forward(self, *args, **kwargs)  # a call that fails is none
        if all(bool(t.isfinite().all()) for t in tensors_of(made)) and not _held(call, calls):
            calls.append(call)
        return made

    type(module).forward = listening
    try:
        said = _examine(module, tool, given)
    finally:
        type(module).forward = forward
    torch.save({"calls": calls, "numbers": numbers(module, calls)}, KEPT)
    return said


def _held(call: dict[str, Any], calls: Sequence[dict[str, Any]]) -> bool:
    """Say whether a call of the same shapes is among others."""
    shapes = [[t.shape for t in tensors_of([o["args"], o["kwargs"]])] for o in (call, *calls)]
    return shapes[0] in shapes[1:]


def compare(module: nn.Module, tool: str, given: dict[str, Any]) -> dict[str, Any]:
    """Examine a module with a mistake.

    Raises:
        ValueError: it does not run any more, returns tensors of other shapes, which no model takes,
            or gives the same numbers as without it.
    """
    kept = torch.load(KEPT, weights_only=True)
    mine = numbers(module, kept["calls"])
    firsts = (*mine[:1], *kept["numbers"][:1])
    shapes = [one.shape for one in firsts if isinstance(one, Tensor)]
    if not any(isinstance(one, Tensor) for one in mine) or len(set(shapes)) > 1:
        raise ValueError(FAILS)
    if len(mine) == len(kept["numbers"]) and all(map(_same, mine, kept["numbers"])):
        raise ValueError(SAME)
    return _examine(module, tool, given)


def _examine(module: nn.Module, tool: str, given: dict[str, Any]) -> dict[str, Any]:
    place, _, function = CLINIC.partition(":")
    return getattr(importlib.import_module(place), function)(module, tool, given)


def numbers(module: nn.Module, calls: Sequence[dict[str, Any]]) -> list[Tensor | str]:
    """Return what calls of a module give, and the gradients of all that they read."""
    found: list[Tensor | str] = []
    module = copy.deepcopy(module)  # who is examined has neither run nor been cast
    for call in calls:
        given = _copied(call)
        inputs = [t for t in tensors_of([given["args"], given["kwargs"]]) if t.is_floating_point()]
        module.to(inputs[0].dtype if inputs else torch.float64)
        own = module.state_dict()
        with torch.no_grad():
            for name, t in own.items():
                if name in given["state"] and given["state"][name].shape == t.shape:
                    t.copy_(given["state"][name])
        for training in (False, True):
            torch.manual_seed(1)
            try:
                module.train(training)
                found += _once(module, given, inputs)
            except Exception as error:  # whatever a stranger's code raises
                found.append(type(error).__name__)
    return found


def _once(module: nn.Module, given: dict[str, Any], inputs: list[Tensor]) -> list[Tensor]:
    read = [*(t.requires_grad_() for t in inputs), *module.parameters()]
    made = [t for t in tensors_of(module(*given["args"], **given["kwargs"])) if not t.is_complex()]
    random_ = torch.Generator().manual_seed(3)
    total = sum(
        (t.double() * torch.randn(t.shape, generator=random_, dtype=torch.float64)).sum()
        for t in made
        if t.requires_grad
    )
    found = [t.detach().double() for t in made]
    if isinstance(total, Tensor):
        grads = torch.autograd.grad(total, read, allow_unused=True)
        found += [torch.zeros(1) if grad is None else grad.double() for grad in grads]
    return found


def tensors_of(value: Any) -> list[Tensor]:
    """Return the tensors in tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return [value]
    values = value.values() if isinstance(value, dict) else value
    if isinstance(value, dict | list | tuple):
        return [t for one in values for t in tensors_of(one)]
    return []


def _copied(value: Any) -> Any:
    """Return tensors, plain values, and what holds them, anew; None for anything else."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if isinstance(value, dict):
        return {key: _copied(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_copied(one) for one in value) if type(value) in (list, tuple) else None
    return value if isinstance(value, int | float | str | bool) else None


def _same(first: Tensor | str, second: Tensor | str) -> bool:
    if isinstance(first, str) or isinstance(second, str):
        return first is second or (isinstance(first, str) and first == second)
    close = functools.partial(torch.allclose, rtol=1e-6, atol=1e-8, equal_nan=True)
    return first.shape == second.shape and close(first, second)


# --------------------------------------------------------------------------------------- the table


def table(found: Sequence[Tried]) -> str:
    """Return how mistakes of each kind fared, and what was said wrongly, one by one."""
    counts = {one.planted.kind: Counter[str]() for one in found}
    for one in found:
        counts[one.planted.kind][one.outcome] += 1
    wide = max([len("planted"), *map(len, counts)]) + 2
    lines = [f"{'planted':{wide}}" + "".join(f"{name:>14}" for name in OUTCOMES)]
    total = sum(counts.values(), Counter[str]())
    for kind, row in [*sorted(counts.items()), ("all", total)]:
        lines.append(f"{kind:{wide}}" + "".join(f"{row[name]:14}" for name in OUTCOMES))
    for one in found:
        if one.outcome in (WRONG, FALSE, REMARK):
            said = " or ".join(" + ".join(ids) for ids in one.verdict.ids) or "healthy"
            lines += ["", f"{one.outcome}: {one.case.id}, line {one.planted.line}: {said}"]
            lines += [f"  {_short(one.planted.before)}", f"  -> {_short(one.planted.after)}"]
    return "\n".join(lines)


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) < 100 else f"{text[:97]}..."
