"""Decoding with a cache of keys and values: what the second call does otherwise than the whole.

A form changes the plan of the calls; `engine.kernels` carries it out inside the model's own run on
the whole text, which is the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug
from attention_clinic.engine.kernels import Call, Plan


def _planned(form: Form, state: State) -> State | None:
    """Change the plan of every schedule; None where nothing is changed."""
    if form.run is None:
        return {}
    made = tuple(tuple(form.run(plan)) for plan in state["plans"])
    if all(
        all(new is old for new, old in zip(*pair, strict=True))
        for pair in zip(made, state["plans"], strict=True)
    ):
        return None
    return {"plans": made}


def later_calls(change: Callable[[Call], Call]) -> Callable[[Plan], Iterator[Call]]:
    """Make a change of one call to one of all calls but the first."""

    def run(plan: Plan) -> Iterator[Call]:
        return (change(call) if call.start else call for call in plan)

    return run


def added(call: Call, more: Tensor) -> Call:
    """Return a call with more added to its scores."""
    return replace(call, added=more if call.added is None else call.added + more)


# --------------------------------------------- places: where queries ask and keys were made

PLACES = Stage("places", _planned, forms=[Form(None)])


def moved(
    place: Callable[[int, Call, Plan], int], which: str = "qk", later: bool = False
) -> Callable[[Plan], Iterator[Call]]:
    """Let new tokens stand at other places.

    Args:
        place: of a token, its call and the plan.
        which: whether queries, keys or both count so.
        later: whether only the layers after the first do.
    """

    def run(plan: Plan) -> Iterator[Call]:
        made = {t: place(t, call, plan) for call in plan for t in range(call.start, call.end)}
        for call in plan:
            new = range(call.start, call.end)
            queries = tuple(made[t] for t in new) if "q" in which else call.queries
            keys = tuple(made[t] for t in range(call.end)) if "k" in which else call.keys
            same = queries == call.queries and keys == call.keys
            yield call if same else replace(call, queries=queries, keys=keys, later=later)

    return run


def _counted(place: Callable[[int, Call, Plan], int]) -> Callable[[int, Call, Plan], int]:
    """Leave the first call as it is."""
    return lambda t, call, plan: place(t, call, plan) if call.start else t


LESS = "they count one less than they should"
FULL = "they count from the length that the cache has when they are in it"
ANEW = {
    "": _counted(lambda t, call, plan: t - call.start),
    "every new token stands at place 0": _counted(lambda t, call, plan: 0),
}
ELSEWHERE = {
    LESS: _counted(lambda t, call, plan: t - 1),
    FULL: _counted(lambda t, call, plan: t + call.end - call.start),
    "they stay where the second call stood": _counted(
        lambda t, call, plan: plan[0].end + t - call.start
    ),
}

bug(
    "cache-offset",
    "counts the places of new tokens from another number than the cache holds",
    "begin to count where the cache ends, before the new tokens go in, and alike in every layer.",
    "16",
    "ml-explore/mlx-lm#1702",
    "lucidrains/rotary-embedding-torch#11",
    "rajveer43/VeloxQuant-MLX#138",
)
for _words, _place in ANEW.items():
    PLACES.wrong("cache-position", _words)(moved(_place))
for _words, _place in ELSEWHERE.items():
    PLACES.wrong("cache-offset", _words)(moved(_place))
for _which, _words in (
    ("q", "those of the queries, or those of all keys from where the queries start"),
    ("k", "those of the keys"),
):
    PLACES.wrong("cache-position", _words)(moved(ANEW[""], _which))
    for _way in (LESS, FULL):
        _said = f"{'queries' if _which == 'q' else 'keys'} only: {_way}"
        PLACES.wrong("cache-offset", _said)(moved(ELSEWHERE[_way], _which))
PLACES.wrong(
    "cache-offset",
    "in all layers but the first, since the first one has filled the cache already",
)(moved(ELSEWHERE[FULL], later=True))


# ---------------------------------------------------- turns: keys that lie in the cache already

TURNS = Stage("turns", _planned, forms=[Form(None)])

bug(
    "cache-rotary-twice",
    "turns keys of the cache by their place again, though they were turned before they went in",
    "turn the new keys only and keep them turned, or keep them as they are and turn all.",
    "16",
    "NeuraLegion/shainet#110",
)


@TURNS.wrong("cache-rotary-twice")
@later_calls
def turned_again(call: Call) -> Call:
    old = tuple(2 * place for place in call.keys[: call.start])
    return replace(call, keys=old + call.keys[call.start :])


@TURNS.wrong("cache-rotary-twice", "and keeps them so: a key turns on with every call")
def turned_every_time(plan: Plan) -> Iterator[Call]:
    for number, call in enumerate(plan):
        calls = [sum(other.end > t for other in plan[: number + 1]) for t in range(call.end)]
        keys = tuple(k * times for k, times in zip(call.keys, calls, strict=True))
        yield replace(call, keys=keys) if call.start else call


# ------------------------------------------------------------- order: what lies in which slot

ORDER = Stage("order", _planned, forms=[Form(None)])

bug(
    "cache-order",
    "puts what is new before what the cache holds",
    "concatenate the cache first: torch.cat([held, new], dim=-2), keys and values alike.",
    "16",
    "S-VATS31/vats-world-model",
)


def _in_front(plan: Plan, keys: bool, values: bool, kept: bool) -> Iterator[Call]:
    slots: list[int] = []
    for call in plan:
        new = list(range(call.start, call.end))
        slots = new + (slots if kept else list(range(call.start)))
        told = tuple(slots)
        changed = replace(
            call,
            key_slots=told if keys else call.key_slots,
            value_slots=told if values else call.value_slots,
        )
        yield changed if call.start else call


for _words, _keys, _values in (
    ("", True, True),
    ("keys only", True, False),
    ("values only", False, True),
):
    for _kept in (True, False):
        ORDER.wrong("cache-order", _words)(
            lambda plan, k=_keys, v=_values, kept=_kept: _in_front(plan, k, v, kept)
        )


# ------------------------------------------------------------------ kept: which keys are there

KEPT = Stage("kept", _planned, forms=[Form(None)])

bug(
    "cache-not-read",
    "does not read what it keeps: new tokens see none of those before them",
    "attend to torch.cat([held, new], dim=-2), and hand the cache on from call to call.",
    "16",
    "alex-hh/profam#168",
)
bug(
    "cache-own-left-out",
    "hides new tokens from themselves: only the old keys and values are read",
    "put the new keys and values into the cache first, then read all of it.",
    "16",
    "harvard-edge/cs249r_book#1953",
)
bug(
    "cache-new-twice",
    "counts the keys and values of new tokens twice",
    "read the cache before the new ones go in, or do not concatenate them again after it.",
    "16",
    "S-VATS31/vats-world-model",
)


def _on_slots(call: Call, chosen: Callable[[int], bool], value: float) -> Call:
    columns = torch.tensor([value if chosen(token) else 0.0 for token in call.key_slots])
    return added(call, columns.expand(call.end - call.start, -1))


@KEPT.wrong("cache-not-read")
@later_calls
def nothing_read(call: Call) -> Call:
    return _on_slots(call, lambda token: token < call.start, -math.inf)


@KEPT.wrong("cache-not-read", "of the earlier calls it keeps the last one only")
def last_call_read(plan: Plan) -> Iterator[Call]:
    before = 0
    for call in plan:
        first = before
        yield (
            _on_slots(call, lambda token, first=first: token < first, -math.inf)
            if (first)
            else call
        )
        before = call.start


@KEPT.wrong("cache-own-left-out")
@later_calls
def own_hidden(call: Call) -> Call:
    return _on_slots(call, lambda token: token >= call.start, -math.inf)


@KEPT.wrong("cache-new-twice")
@later_calls
def own_twice(call: Call) -> Call:
    return _on_slots(call, lambda token: token >= call.start, math.log(2))


# --------------------------------------------------------------------------- seen: the mask

SEEN = Stage("seen", _planned, found=lambda state: _empties(state), forms=[Form(None)])

bug(
    "cache-mask-corner",
    "lets new token i see keys 0 to i, as if no token came before: the causal mask has not grown",
    "the rows of new tokens begin at their place: causal_mask(start + n)[start:]; is_causal=True "
    "is right for as many queries as keys only.",
    "16",
    "hyprstream/hyprstream#1521",
    "pytorch/executorch#21749",
    "pytorch/executorch#22443",
    "gittensor-ai-lab/sparkinfer#3",
    "wenyuchen96/transformer",
)
bug(
    "cache-mask-open",
    "lets tokens that come in one call with a cache see each other, the later ones too",
    "leave the mask out for one new token only; for several it is causal_mask(start + n)[start:].",
    "16",
    "Mikyx-1/TinyLLM#17",
    "mlx-node/mlx-node#24",
)
bug(
    "cache-empty-slots",
    "lets new tokens see the slots of the cache that are still empty: zeros take their share",
    "cut the cache at its length, held[:, :, : start + n], or hide the rest with the mask.",
    "16",
    "huggingface/transformers#45940",
)


@SEEN.wrong("cache-mask-corner")
@later_calls
def from_the_corner(call: Call) -> Call:
    hidden = torch.ones(call.end - call.start, call.end).bool().triu(1)
    return added(call, torch.zeros(hidden.shape).masked_fill(hidden, -math.inf))


@SEEN.wrong("cache-mask-open")
@later_calls
def open_later(call: Call) -> Call:
    return replace(call, open=True) if call.end - call.start > 1 else call


@SEEN.wrong("cache-mask-open", "those of the first call")
def open_at_first(plan: Plan) -> Iterator[Call]:
    yield replace(plan[0], open=True)
    yield from plan[1:]


@SEEN.wrong("cache-mask-open", "those of the first call as well")
def open_always(plan: Plan) -> Iterator[Call]:
    return (replace(call, open=True) if call.end - call.start > 1 else call for call in plan)


def _empties(state: State) -> Iterator[Form]:
    """Find caches that are longer than what they hold."""
    for length in state["lengths"]:

        def run(plan: Plan, length: int = length) -> Iterator[Call]:
            return (replace(call, empty=length - call.end) for call in plan)

        def later(plan: Plan, run: Callable = run) -> Iterator[Call]:
            return (new if new.start else old for new, old in zip(run(plan), plan, strict=True))

        said = f"the cache has {length}"
        yield Form(later, ("cache-empty-slots",), said)
        yield Form(run, ("cache-empty-slots",), said)


CACHE = (PLACES, TURNS, ORDER, KEPT, SEEN)

# ------------------------------------------------------------- found by another text, not a plan

bug(
    "cache-stale-beams",
    "goes on with the keys and values of other beams after the beams changed their places",
    "reorder every layer's keys and values along the batch as the beams: held[order].",
    "16",
    "huggingface/transformers#46612",
    "allenai/OLMo#526",
    "bigscience-workshop/petals#571",
)
bug(
    "cache-not-emptied",
    "begins a new text with the keys and values of the last one",
    "make a new cache for every text, or empty it in every layer.",
    "16",
    "time-series-foundation-models/lag-llama#84",
    "Lightning-AI/litgpt#1647",
)

BEAMS, EMPTIED = "cache-stale-beams", "cache-not-emptied"
