"""Dropouts that nothing calls, that never drop, or that drop scores."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic.bugs import unused_dropout
from attention_clinic.engine import fused
from attention_clinic.engine.mentions import is_mentioned
from attention_clinic.engine.modes import (
    Mode,
    NoDropout,
    Visits,
    dropped_share,
    keeping_history,
    wanting_gradients,
)
from attention_clinic.engine.patient import same
from attention_clinic.engine.tape import tensors_in
from attention_clinic.engine.unheard import calls_dropout
from attention_clinic.examine.branches import branch_named, dropping_branches
from attention_clinic.examine.leaves import is_matrix
from attention_clinic.examine.thrown import thrown_dropouts

OF_WEIGHTS = re.compile("att|weight|score|prob|soft")
SELDOM = 200  # runs: two samples stay whole in all of them, with a share of 0.05, never
LEAST_SHARE = 0.05  # of a dropout whose absence shows in three runs on a few hundred numbers


def never_drops(
    module: nn.Module, run: Callable[[], Tensor], holder: nn.Module | None = None
) -> str | None:
    """Say where a dropout is declared that never happens while training, or return None.

    Args:
        module: the copy.
        run: calls it.
        holder: the part that declares it, where that is not the whole.
    """
    declared = unused_dropout(holder or module)
    if declared is None:
        return None
    module.train()
    try:
        drawn = torch.get_rng_state()
        with NoDropout() as quiet, Dropping(module) as heard:
            run()
        if quiet.calls and quiet.most < LEAST_SHARE:
            return None
        # called, perhaps, and nothing of it arrives: its result is not used; who draws numbers
        # without a dropout may leave out whole samples, and few are here
        seldom = not torch.equal(drawn, torch.get_rng_state())
        first = run()
        alike = all(same(first, run()) for _ in range(SELDOM if seldom else 2))
    except Exception:  # what does not run while training says nothing
        return None
    finally:
        module.eval()
    declared = unused_dropout(holder or module, heard.met)
    if not alike or declared is None:
        return None
    return None if drops_with_gradients(module, run, training=True) else declared


def drops_with_gradients(module: nn.Module, run: Callable[[], Any], training: bool = False) -> bool:
    """Say whether a module drops something while gradients are wanted: some ask for these alone.

    Args:
        module: the copy.
        run: calls it.
        training: whether it is told to train.
    """
    held = [p for p in module.parameters() if p.is_floating_point()]
    handle = keeping_history(module)
    module.train(training)
    try:
        with wanting_gradients(held):
            results = [next(tensors_in(run())) for _ in range(3)]
    except Exception:  # what does not run so says nothing
        return False
    finally:
        handle.remove()
        module.eval()
    return not all(same(results[0], result) for result in results)


class Dropping(Visits):
    """Hear which parts are called, and the shares that are dropped by no part made for it.

    Args:
        module: the copy that will run in this context.

    Attributes:
        met: the parts that were called.
        shares: what the fused kernel, or a function, was told to drop, and the parts it ran in.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.met: set[nn.Module] = set()
        self.shares: list[tuple[float, list[nn.Module]]] = []
        self.running: list[nn.Module] = []

    def arrives(self, path: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        self.met.add(part)
        self.running.append(part)

    def leaves(self, path: str, part: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        self.running.pop()

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is F.scaled_dot_product_attention:
            self.shares.append((fused.given(args, kwargs).get("dropout_p"), [*self.running]))
        elif func is F.dropout and not any(_drops(part) for part in self.running[-1:]):
            share = dropped_share(args, kwargs)
            self.shares.append((share, [*self.running]))
        return func(*args, **kwargs)

    def elsewhere(self, share: float, holder: nn.Module, of_weights: bool) -> bool:
        """Say whether the kernel, or a function, drops as much in the place of a dropout.

        What a whole attention inside of the holder drops, with layers of its own, are its weights.

        Args:
            share: of the dropout.
            holder: the part that has it.
            of_weights: whether it is to drop weights, by its name.
        """

        def apart(running: list[nn.Module]) -> bool:
            inner = running[running.index(holder) + 1 :] if holder in running else []
            return any(sum(is_matrix(p) for p in part.parameters()) > 1 for part in inner)

        found = [running for dropped, running in self.shares if dropped == share]
        return any(of_weights or not apart(running) for running in found)


def idle_dropouts(module: nn.Module, run: Callable[[], Any]) -> dict[str, bool]:
    """Return the paths of the dropouts that drop nothing, and that nothing replaces.

    No call reaches them and no code reads them, or nothing uses what they return; a function that
    drops stands under its part and its name. Those of a part that is never called itself are not
    its own mistake. True stands beside a path that nothing calls, where the part that holds it
    drops something all the same: it may be a dropout too many, unless its name speaks of a branch
    on which nothing drops, or some branch does not drop, and its name counts it beside one that is
    called. Where the kernel drops as much, only one that is not called after the weights is.
    """
    paths = {path: part for path, part in module.named_modules() if _drops(part)}
    if not paths and not calls_dropout(module):
        return {}
    thrown, vain = thrown_dropouts(module, run)
    wasted = {path: False for path, part in paths.items() if part in thrown}
    wasted |= {f"{path}.F.dropout".removeprefix("."): False for path in vain}
    idle = {path: part for path, part in paths.items() if not is_mentioned(path, module)}
    if not idle:
        return wasted
    before = module.training
    module.train()
    try:
        with Dropping(module) as heard:
            run()
    finally:
        module.train(before)
    holders = {path: module.get_submodule(path.rpartition(".")[0]) for path in idle}
    for path, part in idle.items():
        if part in heard.met or holders[path] not in heard.met:
            continue
        of_weights = bool(OF_WEIGHTS.search(path.rpartition(".")[2].lower()))
        replaced = heard.elsewhere(part.p, holders[path], of_weights)
        if replaced and of_weights:
            continue
        others = (one for one in holders[path].modules() if _drops(one))
        wasted[path] = replaced or any(one in heard.met for one in others)
    called = {_counted(path) for path, part in paths.items() if part in heard.met} - {""}
    branches = {path: branch_named(path.rpartition(".")[2]) for path in wasted if wasted[path]}
    counted = {path for path, branch in branches.items() if not branch and _counted(path) in called}
    if any(branches.values()) or counted:
        dropping = dropping_branches(module, run)
        dry = set() if dropping is None else {"feed", "attention"} - dropping
        wasted |= {path: False for path, branch in branches.items() if branch in dry}
        wasted |= {path: False for path in counted if dry}
    return wasted


def _counted(path: str) -> str:
    """Return what the dropouts that are counted, such as dropout1 and dropout2, have in common."""
    found = re.fullmatch(r"(.*?)_?[12]", path)
    return found[1] if found else ""


PRODUCT = re.compile("matmul|mm$|einsum")
ENDS = re.compile("linear|conv|embedding|norm|softmax|attention")  # no scores come out of these


class DroppedScores(Mode):
    """Hear whether a softmax gets scores that a dropout changed.

    Attributes:
        found: whether one did.
    """

    def __init__(self) -> None:
        super().__init__()
        self.scores: dict[int, Tensor] = {}  # made of a product of two things that tokens made
        self.dropped: dict[int, Tensor] = {}
        self.found = False

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        read = [t for t in tensors_in([*args, *kwargs.values()]) if t.is_floating_point()]
        before = [t.clone() for t in read] if "dropout" in name else []
        result = func(*args, **kwargs)
        if name in ("softmax", "log_softmax"):
            self.found |= any(id(t) in self.dropped for t in read)
        if not isinstance(result, Tensor) or ENDS.search(name):
            return result
        of_scores = any(id(t) in self.scores for t in read)
        drops = bool(before) and of_scores and not torch.equal(before[0], result)
        made = PRODUCT.search(name) and not any(isinstance(t, nn.Parameter) for t in read)
        if PRODUCT.search(name):
            self.scores |= {id(result): result} if made and len(read) > 1 else {}
        elif of_scores:
            self.scores[id(result)] = result
            if drops or any(id(t) in self.dropped for t in read):
                self.dropped[id(result)] = result
        return result


def drops_scores(module: nn.Module, run: Callable[[], Any]) -> bool:
    """Say whether a module drops scores before its softmax, where weights are to be dropped.

    Args:
        module: the copy.
        run: calls it.
    """
    before = module.training
    module.train()
    try:
        with DroppedScores() as heard:
            run()
    finally:
        module.train(before)
    return heard.found


def _drops(part: nn.Module) -> bool:
    return isinstance(part, nn.Dropout)
