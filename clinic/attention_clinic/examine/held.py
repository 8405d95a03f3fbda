"""What a block holds, by the shapes and names of its weights: feed-forward, factors."""

from __future__ import annotations

import re

from torch import Tensor, nn

from attention_clinic.bugs.feeds import Feed, Gate
from attention_clinic.engine.weights import Source

FACTORS = re.compile(
    r"gamma|layer_?scale|(^|[._])ls\d?|lambda|alpha|gate|re_?zero|res_?(weight|scale)"
)


def feed_of(sources: list[Source], e: int) -> Feed | None:
    """Find the feed-forward: two layers, or three where one of them is a gate.

    Args:
        sources: the weights of a block.
        e: width of a token.
    """
    ups, downs = [], []
    for source in sources:
        for form in source.forms:
            if source.weight.ndim != 2 or form not in ("oi", "io"):
                continue
            o, i = source.weight.shape if form == "oi" else source.weight.shape[::-1]
            if i == e:
                ups.append((source, form, o))
            if o == e:
                downs.append((source, form, i))
    found = []
    for up, form, m in ups:
        for down, other, inner in downs:
            if up is down or inner not in (m, m / 2) or form != other:
                continue
            by_name = _feeds(up) and _feeds(down)
            if (m != e and inner == m) or by_name:
                beside = _beside(up, down, sources)
                found.append(((not by_name, beside), up, down, form, inner < m))
    if not found:
        return None
    _, up, down, form, packed = min(found, key=lambda one: one[0])
    if packed:
        sure = bool(re.search(r"gate_?up", up.name.lower()))
        return Feed(up, down, form, Gate(None, sure))
    return gated(up, down, form, sources)


def gated(up: Source, down: Source, form: str, sources: list[Source]) -> Feed:
    """Return the feed-forward of two layers, with its gate if a third one stands beside them."""
    where = up.name.rpartition(".")[0].rpartition(".")[0]
    beside = [
        source
        for source in sources
        if source is not up
        and source is not down
        and source.weight.shape == up.weight.shape
        and form in source.forms
        and (
            source.role.rstrip("?") not in ("q", "k", "v", "o", "kv", "qkv", "kqv")
            or source.role == up.role  # linear1, linear2: such names say the same of all
        )
        and source.name.rpartition(".")[0].rpartition(".")[0] == where
    ]
    if len(beside) != 1:
        return Feed(up, down, form)
    pair = [up, *beside]
    named = [bool(re.search(r"gate|(^|[._])wg\b", source.name.lower())) for source in pair]
    if named[0] is not named[1]:
        gate, value = pair if named[0] else pair[::-1]
        return Feed(value, down, form, Gate(gate, True))
    gate, value = sorted(pair, key=lambda source: [s is source for s in sources].index(True))
    return Feed(value, down, form, Gate(gate, False))


def _beside(up: Source, down: Source, sources: list[Source]) -> int:
    """Return how many more matrices stand where the first one does: an attention has some."""
    where = up.name.rpartition(".")[0].rpartition(".")[0]
    return sum(
        source.name.rpartition(".")[0].rpartition(".")[0] == where
        for source in sources
        if source is not up and source is not down
    )


def _feeds(source: Source) -> bool:
    """Say whether a name speaks of a feed-forward."""
    name = source.name.lower()
    words = ("mlp", "ff", "feed", "fc1", "fc2", "linear1", "linear2", "pw", "intermediate")
    words += ("gate_proj", "up_proj", "down_proj", "gate_up")
    return (
        bool(re.search(r"w_?([123]|12)\b", name))
        or any(word in name for word in words)
        or (name.endswith("output.dense.weight") and "attention" not in name)
    )


def scales_of(module: nn.Module, e: int) -> list[Tensor]:
    """Return the factors that a block holds for what its parts return, in their order.

    Args:
        module: the block.
        e: width of a token.
    """
    found = []
    for path, part in module.named_modules():
        own = dict(part.named_parameters(recurse=False))
        alone = len(own) == 1 and not re.search(
            r"norm|rms|ln", f"{type(part).__name__} {path}".lower()
        )
        if not alone and not any(part.children()):
            continue  # a norm with gamma and beta
        for name, parameter in own.items():
            named = FACTORS.search(f"{path}.{name}".lower())
            if named and parameter.numel() in (1, e):
                found.append(parameter.flatten())
    return found
