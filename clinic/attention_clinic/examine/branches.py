"""Which of the two branches of a block, attention and feed-forward, drop anything."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic.engine import fused
from attention_clinic.engine.modes import InOrder, Mode, keeping_history, wanting_gradients
from attention_clinic.engine.tape import tensors_in
from attention_clinic.engine.weights import sources_of
from attention_clinic.examine.held import feed_of

FEED = re.compile(r"ffn|(^|_)ff\d?(_|$)|mlp|feed")
ATTENTION = re.compile("att|mha")


class Dropped(Mode):
    """Keep what is dropped from, where it is more than nothing.

    Attributes:
        read: what dropouts got.
        kernel: whether the fused kernel drops weights.
    """

    def __init__(self) -> None:
        super().__init__()
        self.read: list[Tensor] = []
        self.kernel = False

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is F.scaled_dot_product_attention:
            self.kernel |= bool(fused.given(args, kwargs).get("dropout_p"))
        elif "dropout" in getattr(func, "__name__", ""):
            self.read += [t for t in tensors_in([*args, *kwargs.values()]) if t.requires_grad]
        return func(*args, **kwargs)


def branch_named(name: str) -> str:
    """Return which branch the name of a dropout speaks of, "" for none, or for both."""
    said = [FEED.search(name.lower()), ATTENTION.search(name.lower())]
    return ("feed" if said[0] else "attention") if sum(map(bool, said)) == 1 else ""


def dropping_branches(module: nn.Module, run: Callable[[], Any]) -> set[str] | None:
    """Return which branches of a block drop something while training, None where it is no block.

    What depends on the first layer of the feed-forward belongs to that, what depends on other
    layers alone to the attention.

    Args:
        module: the copy.
        run: calls it.
    """
    width = next(tensors_in(run())).shape[-1]
    sources = sources_of(module)
    fed = feed_of(sources, width)
    held = [p for p in module.parameters() if p.is_floating_point()]
    own = [] if fed is None else [p for p in held if p.data_ptr() == fed.up.weight.data_ptr()]
    other = [p for p in held if p.ndim > 1 and all(p is not one for one in own)]
    if len(own) != 1 or not other:
        return None
    handle = keeping_history(module)
    before = module.training
    module.train()
    found = set()
    try:
        with wanting_gradients(held), InOrder(), Dropped() as heard:
            run()
            for t in heard.read:
                grads = torch.autograd.grad(
                    t.sum(), [*own, *other], allow_unused=True, retain_graph=True
                )
                if grads[0] is not None:
                    found.add("feed")
                elif any(grad is not None for grad in grads):
                    found.add("attention")
    except Exception:  # what cannot be differentiated says nothing
        return None
    finally:
        handle.remove()
        module.train(before)
    return found | ({"attention"} if heard.kernel else set())
