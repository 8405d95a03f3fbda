"""Blocks: order of the norms, norms, residuals, activation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_clinic.bugs.scores import SCALE, other_scales
from attention_clinic.engine.forms import Form, Stage, State, bug, replay
from attention_clinic.engine.readings import Reader, Reading
from attention_clinic.engine.weights import Source

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": lambda t: F.gelu(t, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "quick-gelu": lambda t: t * torch.sigmoid(1.702 * t),
    "tanh": torch.tanh,
}
EPS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-3)
READINGS_WHEN_RIGHT = 24
READINGS_WHEN_WRONG = 2


@dataclass(frozen=True)
class Meant:
    """What a block is meant to be; None accepts all.

    Args:
        norm_first: pre-norm or post-norm.
        activation: by name.
        norm_eps: of its norms.
    """

    norm_first: bool | None = None
    activation: str | None = None
    norm_eps: float | None = None


@dataclass(frozen=True)
class Parts:
    """What a block consists of.

    Args:
        norms: weight, bias and eps (if it says it) of both, in the order of their calls.
        reader: of the attention's weights.
        readings: of them, the likeliest first.
        up: the first layer of the feed-forward.
        down: the second.
        form: their orientation.
        heard: the activations that were called.
    """

    norms: list[tuple[Tensor, Tensor, float | None]]
    reader: Reader
    readings: list[Reading]
    up: Source
    down: Source
    form: str
    heard: list[str]


# ------------------------------------------------------------- order: pre-norm or post-norm


ORDER = Stage("order", lambda form, state: {"first": form.run})

bug(
    "norm-order",
    "normalises in the other order than announced (pre-norm against post-norm)",
    "pre-norm is x + part(norm(x)), post-norm is norm(x + part(x)).",
    "06",
    "harvardnlp/annotated-transformer#1",
    "harvardnlp/annotated-transformer#13",
    "harvardnlp/annotated-transformer#92",
    "harvardnlp/annotated-transformer#110",
    "d2l-ai/d2l-en#803",
)

for _first in (True, False):
    ORDER.forms.append(
        Form(
            _first,
            ("norm-order",),
            counts=lambda state, first=_first: state["meant"].norm_first is (not first),
        )
    )

# ------------------------------------------------------------- norm: x (b, n, e) -> (b, n, e)

NORM = Stage("norm", lambda form, state: {"norm": form.run, "is_layer_norm": not form.ids})


@NORM.right
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


bug(
    "norm-bessel",
    "divides by the standard deviation of n - 1 values and adds eps outside the root",
    "use nn.LayerNorm, or x.var(unbiased=False) and (var + eps).sqrt().",
    "06",
    "harvardnlp/annotated-transformer#122",
)


def _by_hand(unbiased: bool, outside: bool) -> Callable:
    def norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, unbiased=unbiased)
        root = variance.sqrt() + eps if outside else (variance + eps).sqrt()
        return weight * centred / root + bias

    return norm


NORM.wrong("norm-bessel", "n - 1, and eps outside the root")(_by_hand(True, True))
NORM.wrong("norm-bessel", "n - 1")(_by_hand(True, False))
NORM.wrong("norm-bessel", "eps outside the root")(_by_hand(False, True))

# ----------------------------------------------------------------------------- eps of the norms


def normed(t: Tensor, number: int, state: State) -> Tensor:
    """Normalise as the first or the second norm does, with what was chosen for both."""
    weight, bias, _ = state["parts"].norms[number]
    return state["norm"](t, weight, bias, state["eps"])


def _begun(form: Form, state: State) -> State:
    state = {**state, "eps": form.run}
    read = normed(state["x"], 0, state) if state["first"] else state["x"]
    return {"eps": form.run, "read": read}


def eps_values(state: State) -> Iterator[Form]:
    """Find the values that the norms say, or else the usual ones."""
    said = [eps for _, _, eps in state["parts"].norms if isinstance(eps, float)]
    for value in dict.fromkeys(said or EPS):
        yield Form(
            value,
            ("norm-eps",),
            counts=lambda state, value=value: (
                state["is_layer_norm"] and state["meant"].norm_eps not in (None, value)
            ),
        )


EPSILON = Stage("eps", _begun, found=eps_values)

bug(
    "norm-eps",
    "uses another eps in LayerNorm than announced",
    "pass eps to nn.LayerNorm: 1e-5 is PyTorch's, 1e-6 ViT's, 1e-12 BERT's.",
    "06",
    "lucidrains/x-transformers#37",
    "kornia/kornia#2786",
    "keras-team/keras-hub#642",
)

# --------------------------------------------- attention: the stages of attention, one mistake


def _projected(form: Form, state: State) -> State:
    reader, reading, cache = state["parts"].reader, form.run, {}
    pieces = {name: reader.pieces[getattr(reading, name)] for name in "qkv"}
    flat = {name: reader.flat(piece, state["read"], cache)[None] for name, piece in pieces.items()}
    return {**flat, "reading": reading}


def _readings(state: State) -> Iterator[Form]:
    """Find which weights are which: the likeliest, and the likeliest with each mistake."""
    readings = state["parts"].readings
    sound = [reading for reading in readings if not reading.ids]
    count = READINGS_WHEN_WRONG if state["total"] else READINGS_WHEN_RIGHT
    first: dict[tuple[str, ...], Reading] = {}
    for reading in readings:
        first.setdefault(reading.ids, reading)
    for reading in (*sound[:count], *(r for ids, r in first.items() if ids)):
        yield Form(reading, reading.ids)


READING = Stage("reading", _projected, found=_readings)


def _attended(form: Form, state: State) -> State | None:
    reader = state["parts"].reader
    made = replay(state["stages"], form.run, {**state, "mask": None})
    if made is None:
        return None
    matrix, bias = reader.out(state["reading"].out, None)
    return {"attended": made["joined"][0] @ matrix + bias}


def _attentions(state: State) -> Iterator[Form]:
    """Find the right attention, and each mistake of it alone."""
    stages = state["stages"]
    right = [stage.reference for stage in stages]
    yield Form(right)
    if state["reading"] is not state["parts"].readings[0] or not state["total"]:
        return
    for number, stage in enumerate(stages):
        others = other_scales(state["setting"], False) if stage is SCALE else []
        for form in (*stage.forms, *others):
            if not form.ids:
                continue
            yield Form([*right[:number], form, *right[number + 1 :]], form.ids, form.detail)


ATTEND = Stage("attend", _attended, found=_attentions)

# ------------------------------- residual: how a half of the block joins the stream


# x entered the half, normed is what the norm made of
# it, out is what the part returned, start entered the block.
def keep(x: Tensor, normed: Tensor, out: Tensor, start: Tensor) -> Tensor:
    return x + out


def from_norm(x: Tensor, normed: Tensor, out: Tensor, start: Tensor) -> Tensor:
    return normed + out


def missing(x: Tensor, normed: Tensor, out: Tensor, start: Tensor) -> Tensor:
    return out


def doubled(x: Tensor, normed: Tensor, out: Tensor, start: Tensor) -> Tensor:
    return out + out


def from_input(x: Tensor, normed: Tensor, out: Tensor, start: Tensor) -> Tensor:
    return start + out


def ended(join: Callable[..., Tensor], out: Tensor, state: State) -> Tensor:
    """Return what the block returns when its feed-forward returns `out`."""
    result = join(state["middle"], state["read2"], out, state["x"])
    return result if state["first"] else normed(result, 1, state)


def _halfway(form: Form, state: State) -> State | None:
    attention_half, feed_half = form.run
    x, read = state["x"], state["read"]
    middle = attention_half(x, read, state["attended"], x)
    middle = middle if state["first"] else normed(middle, 0, state)
    read2 = normed(middle, 1, state) if state["first"] else middle
    made = {"middle": middle, "read2": read2, "join": feed_half}
    if state["unfed"] is not None:
        # the module without its feed-forward must agree already
        silent = ended(feed_half, torch.zeros_like(read2), {**state, **made})
        if not state["near"](silent, state["unfed"]):
            return None
    return made


RESIDUAL = Stage("residual", _halfway)
RESIDUAL.right((keep, keep))

bug(
    "residual-from-norm",
    "adds what the norm returned, not the stream that entered it",
    "keep the stream: x = x + attention(norm(x)).",
    "06",
    "pytorch/pytorch#61165",
    "Howuhh/faster-trajectory-transformer#3",
    "SHI-Labs/Compact-Transformers#25",
)
bug(
    "residual-missing",
    "loses the stream: what a part returns stands alone, or is added to itself",
    "keep the stream under a name and add it: x = x + part(norm(x)).",
    "06",
    "kyegomez/BitNet#32",
)
bug(
    "residual-from-input",
    "adds the input of the block after the feed-forward, not what the first half returned",
    "let the second residual start where the first half ended.",
    "06",
    "strutive07/transformer-tensorflow2.0#14",
)


def _has_a_stream(state: State) -> bool:
    return state["first"]  # in a post-norm block the stream is what the norm returned


for _detail, _halves in (
    ("in both halves", (from_norm, from_norm)),
    ("in the attention half", (from_norm, keep)),
    ("in the feed-forward half", (keep, from_norm)),
):
    RESIDUAL.wrong("residual-from-norm", _detail, _has_a_stream)(_halves)
for _detail, _halves in (
    ("around the attention", (missing, keep)),
    ("around the feed-forward", (keep, missing)),
    ("around both", (missing, missing)),
    ("the attention is added to itself", (doubled, keep)),
    ("the feed-forward is added to itself", (keep, doubled)),
):
    RESIDUAL.wrong("residual-missing", _detail)(_halves)
RESIDUAL.wrong("residual-from-input")((keep, from_input))

# --------------------------------------------------- activation, and with it the feed-forward


bug(
    "activation-other",
    "bends with another activation than announced",
    "use the activation that the weights were trained with.",
    "06",
    "PaddlePaddle/PaddleNLP#1048",
    "timeseriesAI/tsai#361",
)
bug(
    "gelu-tanh",
    "uses the tanh approximation of GELU where the exact one was announced, or the reverse",
    'nn.GELU() is exact, nn.GELU(approximate="tanh") is not.',
    "06",
    "kornia/kornia#2786",
    "keras-team/keras-hub#642",
)


def feed(t: Tensor, parts: Parts, activation: str) -> Tensor:
    """Return what the feed-forward makes of t."""
    for number, source in enumerate((parts.up, parts.down)):
        weight = source.weight.T if parts.form == "oi" else source.weight
        t = t @ weight if source.bias is None else t @ weight + source.bias
        t = t if number else ACTIVATIONS[activation](t)
    return t


def _fed(form: Form, state: State) -> State:
    out = feed(state["read2"], state["parts"], form.run)
    return {"activation": form.run, "made": ended(state["join"], out, state)}


def _activations(state: State) -> Iterator[Form]:
    """Find those that were heard, or else all."""
    wanted = state["meant"].activation
    for name in state["parts"].heard or ACTIVATIONS:
        gelus = {wanted, name} == {"gelu", "gelu-tanh"}
        other = ("gelu-tanh" if gelus else "activation-other",)
        yield Form(name, () if wanted in (None, name) else other)


ACTIVATION = Stage("activation", _fed, found=_activations)

BLOCK = (ORDER, NORM, EPSILON, READING, ATTEND, RESIDUAL, ACTIVATION)
