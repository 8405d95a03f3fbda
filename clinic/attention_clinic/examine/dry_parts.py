"""Parts that take the share of a dropout, and in which nothing drops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.nn.functional as F
from torch import nn

from attention_clinic.bugs import dropout_kept, dropout_taken
from attention_clinic.engine import fused
from attention_clinic.engine.mentions import is_mentioned
from attention_clinic.engine.modes import Visits, dropped_share

DRAWS = {"rand", "rand_like", "bernoulli", "bernoulli_"}  # what drops without a dropout


class Drops(Visits):
    """Hear in which parts something drops.

    Args:
        module: the copy that will run in this context.

    Attributes:
        met: the parts that were called.
        dropped: those in which something dropped.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.running: list[nn.Module] = []
        self.met: set[nn.Module] = set()
        self.dropped: set[nn.Module] = set()

    def arrives(self, path: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        self.running.append(part)
        self.met.add(part)

    def leaves(self, path: str, part: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        self.running.pop()

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name, share = getattr(func, "__name__", ""), 0.0
        if func is F.scaled_dot_product_attention:
            share = fused.given(args, kwargs).get("dropout_p")
        elif "dropout" in name:
            share = dropped_share(args, kwargs)
        if share or name in DRAWS:
            self.dropped.update(self.running)
        return func(*args, **kwargs)


def dry_parts(module: nn.Module, run: Callable[[], Any]) -> dict[str, str]:
    """Return the parts that take a dropout which nothing reads, and drop nothing, with its name.

    Args:
        module: the copy.
        run: calls it.
    """
    declared: dict[str, str] = {}
    for path, part in module.named_modules():
        kept, taken = dropout_kept(part), dropout_taken(part)
        if not path or type(part).__module__.startswith("torch."):
            continue
        if taken is not None:
            declared[path] = taken
        elif kept is not None and not is_mentioned(f"{path}.{kept}", module):
            declared[path] = kept
    if not declared:
        return {}
    before = module.training
    module.train()
    try:
        with Drops(module) as heard:
            run()
    except Exception:  # what does not run while training says nothing
        return {}
    finally:
        module.train(before)
    parts = {path: module.get_submodule(path) for path in declared}
    dry = {path for path, part in parts.items() if part in heard.met - heard.dropped}
    return {path: name for path, name in declared.items() if path in dry}
