"""What stands between the parts of a block, and parts that stand beside the usual ones."""

from __future__ import annotations

from attention_clinic.bugs.decoder import WORDS
from attention_clinic.examine.joins import words
from attention_clinic.examine.leaves import called_as, looks_around
from attention_clinic.examine.streams import Half, Stream
from attention_clinic.examine.unit import Unit

PARTS = {**WORDS, "conv": "convolution"}
Found = list[tuple[str, str]]


def kinds_of_parts(way: tuple[Half, ...]) -> list[str]:
    """Return what the parts are; a convolution stands beside a feed-forward, or is one."""
    kinds = [_kind(half.unit) for half in way]
    around = [kind == "feed" and looks_around(half.unit.steps)
              for kind, half in zip(kinds, way, strict=True)]  # fmt: skip
    if sum(around) == kinds.count("feed"):
        return kinds
    return ["conv" if one else kind for kind, one in zip(kinds, around, strict=True)]


def _kind(unit: Unit) -> str:
    if unit.kind == "feed":
        return "feed"
    return "self" if unit.asked is None else "cross"


def bends_between(stream: Stream, convolutions: list[Unit]) -> tuple[Found, list[str]]:
    """Return the names of activations between the parts, and what is said of those without one.

    Args:
        stream: of the block.
        convolutions: the parts that end with an activation as a rule.
    """
    found, parts = [], dict(stream.parts)
    odd = [f"{called_as(unit.steps[0])} bends {words(bent)} and is added as a part is, without a "
           "layer" for unit, bent in stream.layerless]  # fmt: skip
    for unit, bent, goes_on in stream.bent:
        name = called_as(unit.steps[0])
        only = next(iter(bent))
        inner = next(iter(stream.reads[only])) if only in stream.norms else only
        part = parts.get(inner)
        alone = len(bent) == 1 and (inner == only or len(stream.reads[only]) == 1)
        if not goes_on:
            odd.append(f"{name} bends {words(bent)} before a part reads it")
        elif alone and any(part is one for one in convolutions):
            continue
        elif part is not None and alone:
            id = "out-bent" if part.kind == "mix" else "activation-last"
            found.append((id, f"{name} bends {words(bent)}"))
        else:
            found.append(("stream-bent", f"{name} bends {words(bent)}"))
    return found, odd


def gates_between(stream: Stream) -> Found:
    """Return the gates that stand in several places."""
    paths = [unit.name for unit in stream.gates]
    twice = [path for path in dict.fromkeys(paths) if paths.count(path) > 1]
    return [("part-shared", f"{path} is the gate of {paths.count(path)} parts") for path in twice]


def half_steps(stream: Stream, way: tuple[Half, ...]) -> Found:
    """Compare the steps of the two feed-forwards around an attention, and take these factors out.

    Args:
        stream: of the block.
        way: how its parts follow each other, the first and the last of them feed-forwards.
    """
    names = {id(unit): name for name, unit in stream.parts}
    both = [names[id(half.unit)] for half in (way[0], way[-1])]
    steps = [stream.factors.get(name) for name in both]
    if any(step is not None and step.numel() > 1 for step in steps):
        return []
    first, last = (1.0 if step is None else float(step) for step in steps)
    halves = [abs(step - 0.5) < 1e-4 for step in (first, last)]
    if all(halves) or (first, last) == (1.0, 1.0):
        for name in both:
            stream.factors.pop(name, None)
        return []
    if any(halves) and 1.0 in (first, last):
        stream.factors.pop(both[halves.index(True)])
        whole = way[-1 if halves[0] else 0].unit.name
        return [("half-step", f"what {whole} returns is added whole")]
    return []
