"""Blocks of several parts: attention to itself, to a context, feed-forward, in their places."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attention_clinic.bugs.blocks import (
    NORM,
    Parts,
    doubled,
    eps_values,
    from_input,
    from_norm,
    keep,
    likeliest,
    missing,
)
from attention_clinic.bugs.feeds import feed, feeds
from attention_clinic.bugs.orders import AROUND, NORMS, ORDERS, SIDE_BY_SIDE, WORDS, joined
from attention_clinic.bugs.orders import read as read_at
from attention_clinic.bugs.projections import Setting
from attention_clinic.bugs.scaled import SCALES, scaled
from attention_clinic.bugs.scores import SCALE, all_scales
from attention_clinic.engine.forms import Form, Stage, State, bug, walk
from attention_clinic.engine.pieces import Reading
from attention_clinic.engine.readings import Reader

RIGHT = {2: ("self", "feed"), 3: ("self", "cross", "feed")}


@dataclass(frozen=True)
class Attending:
    """The weights of one attention of a block.

    Args:
        reader: of them.
        readings: of them, the likeliest first.
    """

    reader: Reader
    readings: list[Reading]


# ------------------------------------------------------ eps: what the norms say, or the usual ones

EPSILON = Stage("eps of all norms", lambda form, state: {"eps": form.run}, found=eps_values)

# ------------------------------------------ residuals: how each part joins the stream, by place


def _residuals(state: State) -> Iterator[Form]:
    kinds = state["right_kinds"]
    right = [keep] * len(kinds)
    yield Form(tuple(right))
    if not state["left"] or state["first"] == SIDE_BY_SIDE:
        return
    for place, kind in enumerate(kinds):
        for join, id, words in (
            (missing, "residual-missing", f"around the {WORDS[kind]}"),
            (doubled, "residual-missing", f"the {WORDS[kind]} is added to itself"),
            (from_norm, "residual-from-norm", f"around the {WORDS[kind]}"),
            (from_input, "residual-from-input", f"after the {WORDS[kind]}"),
        ):
            if (join is from_norm and state["first"] not in (True, AROUND)) or (
                join is from_input and not place
            ):
                continue  # there the stream is what the norm returned, or the input itself
            yield Form((*right[:place], join, *right[place + 1 :]), (id,), words)
    yield Form((missing,) * len(kinds), ("residual-missing",), "around all parts")
    if state["first"] in (True, AROUND):
        yield Form((from_norm,) * len(kinds), ("residual-from-norm",), "around all parts")


RESIDUALS = Stage("residuals", lambda form, state: {"joins": form.run}, found=_residuals)

# ------------------------------------------------------------------------- order of the parts


def _ordered(form: Form, state: State) -> State | None:
    made = {"kinds": form.run}
    if state["silenced"] is not None:  # with all parts silent, the module must agree already
        silent = {**state, **made}
        for place in range(len(form.run)):
            silent["stream"] = joined(place, torch.zeros_like(state["x"]), silent)
        if not state["near"](silent["stream"], state["silenced"](frozenset(form.run))):
            return None
    return made


SEQUENCE = Stage("sequence", _ordered)

bug(
    "parts-order",
    "runs its parts in another order",
    "self-attention first, then cross-attention, the feed-forward last.",
    "10",
    "allenai/allennlp#3334",
    "er-muyue/BeMapNet#13",
)


def _sequences(state: State) -> Iterator[Form]:
    right = state["right_kinds"]
    yield Form(right)
    if state["first"] == SIDE_BY_SIDE:
        return
    orders = {
        3: (("cross", "self", "feed"), ("self", "feed", "cross"), ("feed", "self", "cross")),
        2: (("feed", "self"),),
    }
    for kinds in orders[len(right)]:
        yield Form(kinds, ("parts-order",), f"it runs {', '.join(WORDS[kind] for kind in kinds)}")


SEQUENCE.found = _sequences

# --------------------------- places: what a part reads, what it makes of it, how the stream goes on


def _inside(kind: str, reading: Reading, read: Tensor, state: State) -> State:
    """Return what the stages of attention begin with."""
    reader = state["attending"][kind].reader
    asked = state["context"] if kind == "cross" else read
    caches: tuple[dict, dict] = ({}, {})

    def flat(part: str, tokens: Tensor) -> Tensor:
        piece = reader.pieces[getattr(reading, part)]
        return reader.flat(piece, tokens, caches[tokens is asked])[None]

    elsewhere = None
    if kind == "cross" and reader.c == reader.e:
        elsewhere = {"q": flat("q", asked), "k": flat("k", read), "v": flat("v", read)}
    rule = state["rules"][kind]
    return {
        **state["parts"].known,
        **{"q": flat("q", read), "k": flat("k", asked), "v": flat("v", asked)},
        **{"inside": read, "elsewhere": elsewhere, "total": state["left"], **rule},
        "setting": Setting(reader.h, reader.e, reader.d, getattr(reader, "g", None)),
        "must_be_causal": kind == "self" and state["must_be_causal"],
    }


def _ways(place: int, state: State) -> Iterator[Form]:
    """Find what the part at a place may be: the reading of its weights, and its mistakes."""
    kinds = state["kinds"]
    if place >= len(kinds):
        yield Form(None)
        return
    kind, read = kinds[place], read_at(place, state)
    if kind == "feed":
        known = state["fixed"].get(kind)
        for form in feeds(state):
            if known in (None, form.run):
                out = feed(read, state["parts"].fed, form.run)
                out = scaled(out, _number(kind, state), state)
                yield Form((out, None, form.run), form.ids, variants=form.variants)
        return
    fixed = state["fixed"].get(kind)
    if fixed is not None:  # with masks: all but what is done with them is known
        reading, chosen = fixed
        yield from _attended(kind, reading, read, state, chosen)
        return
    readings = state["attending"][kind].readings
    for reading in likeliest(readings, state["total"]):
        left = state["left"] - len(reading.ids)
        if left >= 0:
            alone = reading is not readings[0] and state["total"] > 1
            alone = {**state, "left": 0 if alone else left}
            yield from _attended(kind, reading, read, alone, None)


def _attended(
    kind: str, reading: Reading, read: Tensor, state: State, chosen: dict[str, Any] | None
) -> Iterator[Form]:
    """Yield what an attention returns, right or with mistakes as long as any are left."""
    begins = _inside(kind, reading, read, state)
    if chosen is None:
        chosen = {SCALE.name: all_scales(begins)} if state["left"] else {}
        most = state["left"]
    else:
        most = state["left"]
    matrix, bias = state["attending"][kind].reader.out(reading.out, None)
    for mistakes in range(most + 1):
        for path, made in walk(state["stages"], begins, mistakes, chosen):
            if made["joined"].shape[2] == read.shape[1]:
                out = made["joined"][0] @ matrix + bias
                out = scaled(out, _number(kind, state), state)
                ids = (*reading.ids, *_of_the_context(kind, path.ids))
                two = "cross" in state["right_kinds"]
                said = located(ids, path.detail, WORDS[kind], state["total"]) if two else ""
                run = (out, (reading, path.forms), None)
                yield Form(run, ids, said or path.detail, variants=path.variants)


def located(ids: Sequence[str], detail: str, part: str, total: int) -> str:
    """Return what is said of an attention in a block that has two, with its place.

    Args:
        ids: its mistakes.
        detail: what is said of them beyond their words.
        part: which of the two it is.
        total: how many mistakes the block has.
    """
    if not set(ids) - {"context-mask-dropped"}:
        return detail
    where = f"{' + '.join(ids)} in the {part}" if total > len(ids) else f"in the {part}"
    return f"{where}: {detail}" if detail else where


def _number(kind: str, state: State) -> int:
    """Return which part a kind is, in the order in which a right block holds them."""
    return state["right_kinds"].index(kind)


def _of_the_context(kind: str, ids: tuple[str, ...]) -> tuple[str, ...]:
    """Call what is done to the context's mask by a name of its own."""
    return tuple("context-mask-dropped" if (kind, id) == DROPPED else id for id in ids)


DROPPED = ("cross", "mask-dropped")

bug(
    "context-mask-dropped",
    "lets the cross-attention see the whole context: its mask is not used",
    "pass the context's mask to the cross-attention, and the causal one to the self-attention.",
    "10",
    "huggingface/transformers#47946",
    "speechbrain/speechbrain#1107",
    "keras-team/keras-io#1046",
)


def _placed_part(place: int, form: Form, state: State) -> State | None:
    if form.run is None:
        return {}
    out, attention, activation = form.run
    made: State = {"stream": joined(place, out, state)}
    if attention is not None:
        made["attentions"] = {**state["attentions"], state["kinds"][place]: attention}
    if activation is not None:
        made["activation"] = activation
    later = state["kinds"][place + 1 :]
    if state["silenced"] is not None and later:
        # with the parts behind it silent, the module must agree already
        behind = {**state, **made}
        for other in range(place + 1, len(state["kinds"])):
            behind["stream"] = joined(other, torch.zeros_like(out), behind)
        if not state["near"](behind["stream"], state["silenced"](frozenset(later))):
            return None
    return made


def _place(number: int) -> Stage:
    return Stage(
        f"place {number + 1}",
        lambda form, state: _placed_part(number, form, state),
        found=lambda state: _ways(number, state),
    )


PLACES = tuple(_place(number) for number in range(3))
LAYER = (SCALES, ORDERS, NORM, EPSILON, NORMS, RESIDUALS, SEQUENCE, *PLACES)

__all__ = ["LAYER", "PLACES", "RIGHT", "WORDS", "Attending", "Parts"]
