"""Where the norms of a block stand, and what its parts read."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from attention_clinic.bugs.blocks import ORDER
from attention_clinic.engine.forms import Form, Stage, State, bug, variant

WORDS = {"self": "self-attention", "cross": "cross-attention", "feed": "feed-forward"}

# --------------------- order: pre-norm (True), post-norm (False), or one of those with a name
INSIDE, SIDE_BY_SIDE, AROUND = "inside", "side by side", "around"

variant(
    "norm-of-part",
    "normalises what a part returned before it is added: x + norm(part(x))",
    "Swin V2, OLMo 2",
    "06",
)
variant(
    "parallel",
    "runs attention and feed-forward side by side: both read the stream as it entered",
    "GPT-J, GPT-NeoX, Falcon, Phi, PaLM, ViT-22B",
    "13",
)
variant(
    "sandwich-norm",
    "normalises what a part reads and what it returns: x + norm(part(norm(x)))",
    "Gemma 2 and 3, CogView",
    "13",
)
variant(
    "batch-norm",
    "normalises by BatchNorm: each number over all tokens of all samples while it trains, by fixed "
    "factors and offsets afterwards",
    "PatchTST, TST",
    "06",
)
variant(
    "macaron",
    "has a feed-forward on each side of its attention, mostly with half of each added",
    "Macaron Net, Conformer",
    "06",
)
variant(
    "conv-part",
    "has a convolution as a part of its own, beside attention and feed-forward",
    "Conformer, CPVT, LocalViT",
    "06",
)
variant(
    "scaled-residual",
    "multiplies the stream, or what its parts return, by a fixed number before they are added",
    "DeepNet, MiniCPM, Granite",
    "06",
)
variant(
    "gated-residual",
    "weighs the stream and what a part returned by a gate, where others add them",
    "GTrXL",
    "06",
)
variant(
    "adapter",
    "sends what a part returned through a small feed-forward with a residual of its own",
    "adapters of Houlsby and others",
    "06",
)


def _post_was_meant(state: State) -> bool:
    return state["meant"].norm_first is False


def _two_parts(state: State) -> bool:
    return len(state["right_kinds"]) == 2


ORDERS = Stage("order of all parts", ORDER.apply, forms=list(ORDER.forms))
ORDERS.forms += [
    Form(
        INSIDE,
        ("norm-order",),
        counts=lambda state: state["meant"].norm_first is not None,
        variants=("norm-of-part",),
    ),
    Form(
        SIDE_BY_SIDE,
        ("norm-order",),
        applies=_two_parts,
        counts=_post_was_meant,
        variants=("parallel",),
    ),
    Form(AROUND, ("norm-order",), counts=_post_was_meant, variants=("sandwich-norm",)),
]

# --------------------------- norms: the number of the norm at each place, None where there is none

NORMS = Stage("norms", lambda form, state: {"placed": form.run})

bug(
    "norm-missing",
    "leaves out a norm: a part reads, or the stream gets, what nobody normalised",
    "each part has a norm of its own: x + part(norm(x)), or norm(x + part(x)).",
    "06",
    "OpenNMT/OpenNMT-py#1689",
    "agentdr1/LA_MIL#3",
)
bug(
    "norm-shared",
    "uses one norm in several places, where each place needs weights of its own",
    "build one norm for each part.",
    "06",
    "bentrevett/pytorch-seq2seq#100",
    "allenai/OLMo#222",
    "ml-explore/mlx#1636",
)


def _placed(state: State) -> Iterator[Form]:
    """Find which of the norms that are called may stand at which place."""
    places, count = len(state["right_kinds"]), len(state["parts"].norms)
    if state["first"] == AROUND:
        if count == 2 * places:
            yield Form(tuple((2 * place, 2 * place + 1) for place in range(places)))
        return
    if count == places:
        yield Form(tuple(range(places)))
    if state["first"] == SIDE_BY_SIDE:
        if count == 1:  # one norm is enough where all parts read the same
            yield Form((0,) * places)
        if count == 2:  # what runs first is free, too
            yield Form((1, 0))
        return
    if count == places - 1:
        for gap in range(places):
            rest = iter(range(count))
            chosen = tuple(None if place == gap else next(rest) for place in range(places))
            words = "before" if state["first"] is True else "after"
            words += f" the {WORDS[state['right_kinds'][gap]]}"
            yield Form(chosen, ("norm-missing",), words)
    if count == 0:
        yield Form((None,) * places, ("norm-missing",), "there is none at all")
    if 0 < count < places:
        for number in range(1, 2**places - 1):  # every way to fill the places in order
            later = [int(number >> place & 1) for place in range(1, places)]
            chosen = tuple(sum(later[:place]) for place in range(places))
            if chosen[-1] == count - 1:
                yield Form(chosen, ("norm-shared",))


NORMS.found = _placed


def _normed(t: Tensor, number: int | None, state: State) -> Tensor:
    """Normalise as the norm with a number does, if there is one."""
    if number is None:
        return t
    weight, bias, _ = state["parts"].norms[number]
    return state["norm"](t, weight, bias, state["eps"])


def read(place: int, state: State) -> Tensor:
    """Return what the part at a place reads."""
    first, number = state["first"], state["placed"][place]
    stream = state["x"] if first == SIDE_BY_SIDE else state["stream"]
    if first == AROUND:
        return _normed(stream, number[0], state)
    return _normed(stream, number, state) if first in (True, SIDE_BY_SIDE) else stream


def joined(place: int, out: Tensor, state: State) -> Tensor:
    """Return the stream behind a place whose part returned `out`."""
    first, number = state["first"], state["placed"][place]
    if first == INSIDE:
        out = _normed(out, number, state)
    if first == AROUND:
        out = _normed(out, number[1], state)
    stream = state["joins"][place](state["stream"], read(place, state), out, state["x"])
    return stream if first else _normed(stream, number, state)
