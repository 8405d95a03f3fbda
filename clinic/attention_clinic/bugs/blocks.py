"""Blocks: order of the norms, norms, residuals, activation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_clinic.bugs.feeds import Feed, feed, feeds
from attention_clinic.bugs.models import Model
from attention_clinic.bugs.norms import RMS_FORMS, ROOTS, rms_norm
from attention_clinic.bugs.norms import scaled as affine
from attention_clinic.bugs.scaled import SCALES, scaled
from attention_clinic.bugs.scores import SCALE, all_scales
from attention_clinic.engine.forms import Form, Stage, State, bug, replay, walk
from attention_clinic.engine.pieces import Reading
from attention_clinic.engine.readings import Reader

EPS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-3)
READINGS_WHEN_RIGHT = 24
READINGS_WHEN_WRONG = 8
RANKS_WHEN_WRONG = 2  # other orders of the same layer, such as (h d k) for (k h d)


@dataclass(frozen=True)
class Meant:
    """What a block is meant to be; None accepts all.

    Args:
        norm_first: pre-norm or post-norm.
        activation: by name.
        norm_eps: of its norms.
        model: whose weights it is meant to hold.
        num_kv_heads: of its attentions.
    """

    norm_first: bool | None = None
    activation: str | None = None
    norm_eps: float | None = None
    model: Model | None = None
    num_kv_heads: int | None = None


@dataclass(frozen=True)
class Parts:
    """What a block consists of.

    Args:
        norms: of both, in the order of their calls: weight, bias or None, eps if it says it.
        reader: of the attention's weights.
        readings: of them, the likeliest first.
        fed: the feed-forward.
        heard: the activations that were called.
        norm_kind: "rms" or "layer" when the class of the norms says so, else "".
        known: what the stages of attention may know beside.
        scales: the factors of its parts, in their order.
    """

    norms: list[tuple[Tensor, Tensor | None, float | None]]
    reader: Reader
    readings: list[Reading]
    fed: Feed
    heard: list[str]
    norm_kind: str
    known: State
    scales: list[Tensor]


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


def kinds(state: State) -> State:
    """Return the state with what the class of the norms says."""
    return {**state, "norm_kind": state["parts"].norm_kind, "model": state["meant"].model}


def _not_called_rms(state: State) -> bool:
    return state["parts"].norm_kind != "rms"


def _has_bias(state: State) -> bool:
    return any(bias is not None for _, bias, _ in state["parts"].norms)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


NORM.forms.append(Form(layer_norm, applies=_not_called_rms))

bug(
    "norm-bessel",
    "divides by another root than sqrt(var + eps): that of n - 1 values, or with eps outside of it",
    "use nn.LayerNorm, or x.var(unbiased=False) and (var + eps).sqrt().",
    "06",
    "harvardnlp/annotated-transformer#122",
)


def _by_hand(unbiased: bool, outside: bool) -> Callable:
    def norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, unbiased=unbiased)
        root = variance.sqrt() + eps if outside else (variance + eps).sqrt()
        return affine(centred / root, weight, bias)

    return norm


for (_unbiased, _outside), _words in ROOTS.items():
    NORM.wrong("norm-bessel", _words, _not_called_rms)(_by_hand(_unbiased, _outside))

bug(
    "norm-axis",
    "normalises over other axes than the numbers of each token",
    "take the mean over the last axis alone: dim=-1, keepdim=True.",
    "13",
    "bkitano/llama-from-scratch#4",
    "kyegomez/zeta#180",
)


def _no_bias(state: State) -> bool:
    return not _has_bias(state)


for _form in RMS_FORMS:
    NORM.forms.append(
        replace(
            _form,
            applies=lambda state, form=_form: _no_bias(state) and form.applies(kinds(state)),
            counts=lambda state, form=_form: form.counts(kinds(state)),
        )
    )
for _dim, _words in ((-2, "over the tokens"), ((-2, -1), "over the tokens and their numbers")):
    NORM.wrong("norm-axis", _words, _no_bias)(partial(rms_norm, dim=_dim))

# ----------------------------------------------------------------------------- eps of the norms


def normed(t: Tensor, number: int, state: State) -> Tensor:
    """Normalise as the first or the second norm does, with what was chosen for both."""
    weight, bias, _ = state["parts"].norms[number]
    return state["norm"](t, weight, bias, state["eps"])


def _begun(form: Form, state: State) -> State | None:
    state = {**state, "eps": form.run}
    read = normed(state["x"], 0, state) if state["first"] else state["x"]
    made = {"eps": form.run, "read": read}
    return made if _could_be({**state, **made}) else None


def _could_be(state: State) -> bool:
    """Say whether the module without its attention is what was chosen, with some residual."""
    if state["deaf"] is None:
        return True
    silent = {**state, "attended": torch.zeros_like(state["read"]), "unfed": None}
    return any(
        state["near"](made["made"], state["deaf"])
        for mistakes in range(state["total"] + 1)
        for _, made in walk((RESIDUAL, ACTIVATION), silent, mistakes)
    )


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
    for reading in likeliest(state["parts"].readings, state["total"]):
        yield Form(reading, reading.ids)


def likeliest(readings: list[Reading], mistakes: int) -> Iterator[Reading]:
    """Yield the readings to try: right ones, and the likeliest with each mistake.

    Args:
        readings: the likeliest first.
        mistakes: how many are looked for.
    """
    sound = [reading for reading in readings if not reading.ids]
    count = READINGS_WHEN_WRONG if mistakes else READINGS_WHEN_RIGHT
    for reading in sound[:count]:
        if not mistakes or reading.rank <= sound[0].rank + RANKS_WHEN_WRONG:
            yield reading
    first: dict[tuple[str, ...], Reading] = {}
    for reading in readings:
        first.setdefault(reading.ids, reading)
    yield from (reading for ids, reading in first.items() if ids)


READING = Stage("reading", _projected, found=_readings)


def _attended(form: Form, state: State) -> State | None:
    reader = state["parts"].reader
    made = replay(state["stages"], form.run, {**state, "mask": None, "inside": state["read"]})
    if made is None or made["joined"].shape[2] != state["read"].shape[1]:
        return None
    matrix, bias = reader.out(state["reading"].out, None)
    return {"attended": scaled(made["joined"][0] @ matrix + bias, 0, state)}


def _attentions(state: State) -> Iterator[Form]:
    """Find the right attention, with all its variants, and the mistakes of it that are left."""
    begin, chosen = {**state, "mask": None, "inside": state["read"]}, {}
    likeliest = state["reading"] is state["parts"].readings[0]
    most = state["left"] if likeliest or state["total"] == 1 else 0
    if most:
        chosen[SCALE.name] = all_scales(state)
    for mistakes in range(most + 1):
        for path, _ in walk(state["stages"], begin, mistakes, chosen):
            yield Form(path.forms, path.ids, path.detail, variants=path.variants)


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


def _fed(form: Form, state: State) -> State:
    out = scaled(feed(state["read2"], state["parts"].fed, form.run), 1, state)
    return {"activation": form.run, "made": ended(state["join"], out, state)}


ACTIVATION = Stage("activation", _fed, found=feeds)

BLOCK = (SCALES, ORDER, NORM, EPSILON, READING, ATTEND, RESIDUAL, ACTIVATION)
