"""Norms of queries and keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from einops import rearrange
from torch import Tensor

from attention_clinic.bugs.models import Model
from attention_clinic.bugs.norms import RMS_EPS, RMS_FORMS, centred, rms_norm
from attention_clinic.engine.forms import Form, Stage, State, bug, variant

Run = Callable[[Tensor, Tensor, "Tensor | None", float], Tensor]


@dataclass(frozen=True)
class Scale:
    """The parameters of one norm.

    Args:
        weight: None when it has none.
        bias: or None.
    """

    weight: Tensor | None
    bias: Tensor | None


@dataclass(frozen=True)
class QueryNorms:
    """The norms of queries and keys that a module has.

    Args:
        q, k: their parameters.
        kind: "rms" or "layer" when their class says so, else "".
        eps: what they add, () when they do not say.
        heard: for norms without weights, their kinds ("rms", "layer" or "length") and eps.
        sure: whether the module says that there are norms.
    """

    q: Scale
    k: Scale
    kind: str
    eps: tuple[float, ...]
    heard: tuple[tuple[str, float], ...] = ()
    sure: bool = True


variant(
    "qk-norm",
    "normalises queries and keys, each head by itself",
    "Qwen3, Gemma 3, ViT-22B",
    "13",
)
variant(
    "qk-norm-flat",
    "normalises queries and keys over all heads at once",
    "OLMo 2, Lumina",
    "13",
)
variant(
    "qk-norm-after",
    "normalises queries and keys after they are turned",
    "Hunyuan",
    "13",
)
variant(
    "qk-norm-layer",
    "subtracts the mean of queries and keys, too: their norm is LayerNorm",
    "ViT-22B, StableLM, Phi",
    "13",
)

variant(
    "cosine",
    "compares by the angle alone: queries and keys are divided by their length",
    "Swin V2, ViT-22B's relatives",
    "13",
)

bug(
    "qk-norm-missing",
    "has norms of queries and keys and does not use them, or uses only one",
    "write q = self.q_norm(q) and k = self.k_norm(k) after the split into heads.",
    "13",
    "vllm-project/vllm-metal#659",
)
bug(
    "qk-norm-exchanged",
    "normalises the keys with the norm of the queries, or the reverse",
    "write q = self.q_norm(q) and k = self.k_norm(k): each has weights of its own.",
    "13",
    "huggingface/diffusers#13533",
)
bug(
    "qk-norm-values",
    "normalises the values in the place of the queries or keys",
    "normalise queries and keys; values stay as they are.",
    "13",
    "kyegomez/MegaVIT#17",
)
bug(
    "qk-norm-axis",
    "normalises queries and keys over another axis than the numbers of one head",
    "split into heads first, and take the mean over the last axis, dim=-1.",
    "13",
    "vllm-project/vllm#16311",
    "EleutherAI/gpt-neox#1367",
    "Alpha-VLLM/Lumina-T2X#112",
)
bug(
    "qk-norm-order",
    "normalises queries and keys after they are turned, where it was meant before, or the reverse",
    "write q = rotate(self.q_norm(q)): where the norm has a weight, the order matters.",
    "13",
    "meta-pytorch/torchtune#2809",
)

# -------- norms: q (r, b, h, n, d) and k (r, b, g, n, d), before or after they are turned

Plan = Callable[[State], State]  # what changes q, k and v


def _normed(form: Form, state: State) -> State:
    if form.run is None:
        return {"after": None}
    run, when = form.run
    if when == "after":
        return {"after": run}
    return {**run(state), "after": None}


QUERY_NORM = Stage(
    "query norm",
    _normed,
    found=lambda state: _plans(state) if state.get("query_norms") else (),
    forms=[Form(None, applies=lambda state: not _has_norms(state))],
)


def _has_norms(state: State) -> bool:
    norms: QueryNorms | None = state.get("query_norms")
    return norms is not None and norms.sure


def over_heads(run: Run) -> Run:
    """Make a norm of one head one of all heads at once."""

    def flat(t: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        wide = run(rearrange(t, "r b h n d -> r b n (h d)"), weight, bias, eps)
        return rearrange(wide, "r b n (h d) -> r b h n d", h=t.shape[2])

    return flat


def _weights(scale: Scale, t: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return weight and bias so that they fit (r, b, h, n, d); none is a weight of 1."""
    if scale.weight is None:
        return t.new_ones(()), None
    made = [p if p is None or p.ndim == 1 else p[:, None] for p in (scale.weight, scale.bias)]
    return made[0], made[1]


def _apply(norms: QueryNorms, run: Run, eps: float, which: str = "qk") -> Plan:
    def plan(state: State) -> State:
        made = {}
        for name, scale in (("q", norms.q), ("k", norms.k)):
            if name in which:
                made[name] = run(state[name], *_weights(scale, state[name]), eps)
        return made

    return plan


def _plans(state: State) -> Iterator[Form]:
    """Find how the module may normalise: right, in several ways, and wrong."""
    norms: QueryNorms = state.get("query_norms")
    if norms.heard:
        yield from _plain(norms, state)
        return
    model, d, h = state.get("model"), state["q"].shape[-1], state["q"].shape[2]
    told = norms.q.weight if norms.q.weight is not None else norms.k.weight
    flat = told is not None and told.ndim == 1 and told.numel() != d
    for name, scale in (("q", norms.q), ("k", norms.k)):
        heads = state[name].shape[2]
        sizes = (heads * d,) if flat else (d,) if told is not None and told.ndim == 1 else ()
        if scale.weight is not None and scale.weight.numel() not in (sizes or (heads * d,)):
            return  # the weights are read in a way that these norms do not fit
    known = {**state, "norm_kind": norms.kind}
    whens = ("before", "after") if state.get("turning") is not None else ("before",)
    layer = Form(centred, variants=("qk-norm-layer",))
    kinds = [f for f in RMS_FORMS if f.applies(known)] + [layer] * (norms.kind != "rms")
    name = "qk-norm-flat" if flat else "qk-norm"
    if state.get("total", 0):  # beside another mistake, only the norm that its name says
        right = [layer] if norms.kind == "layer" else [f for f in kinds if not f.mistakes(known)]
        wrong = [f for f in kinds if f.mistakes(known)] if state.get("total", 0) == 1 else []
        kinds = [*right[: 2 if state.get("total", 0) == 1 else 1], *wrong]
        whens = whens if state.get("total", 0) == 1 else whens[:1]
    for eps in norms.eps or RMS_EPS:
        for when in whens:
            for form in kinds:
                ids = form.mistakes(known)
                if ids and when == "after":
                    continue
                order = _misplaced(model, flat, when)
                run = over_heads(form.run) if flat else form.run
                variants = tuple(v for v in form.variants if v != "rms-norm")
                variants = (name, *variants, *(("qk-norm-after",) if when == "after" else ()))
                plan = (_apply(norms, run, eps), when)
                yield Form(plan, (*ids, *order), form.detail if ids else "", variants=variants)
        if state.get("total", 0) > 1:
            return
        if state.get("total", 0):
            yield from _wrong(norms, eps, flat, h)


def _by_length(t: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
    return t / t.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def _plain(norms: QueryNorms, state: State) -> Iterator[Form]:
    """Find norms that have no weight: but for a mean that is taken away, a turn changes nothing."""
    runs = {"rms": rms_norm, "layer": centred, "length": _by_length}
    names = {
        "rms": ("qk-norm",),
        "layer": ("qk-norm", "qk-norm-layer"),
        "length": ("cosine",),
    }
    for kind, eps in norms.heard[: None if state.get("total", 0) < 2 else 1]:
        plan = _apply(norms, runs[kind], eps)

        def run(state: State, plan: Plan = plan, cosine: bool = kind == "length") -> State:
            return {**plan(state), "cosine": cosine}

        whens = ("before", "after") if kind == "layer" and state.get("turning") else ("before",)
        for when in whens:
            after = ("qk-norm-after",) * (when == "after")
            yield Form((run, when), variants=(*names[kind], *after))


def _misplaced(model: Model | None, flat: bool, when: str) -> tuple[str, ...]:
    """Return the bug of a norm that stands elsewhere than in the model it is meant to be."""
    if model is None or not model.qk_norm:
        return ()
    if flat is not (model.qk_norm == "flat"):
        return ("qk-norm-axis",)
    meant = "after" if model.qk_norm == "after" else "before"
    return () if when == meant else ("qk-norm-order",)


def _wrong(norms: QueryNorms, eps: float, flat: bool, heads: int) -> Iterator[Form]:
    plain: Run = centred if norms.kind == "layer" else rms_norm
    run = over_heads(plain) if flat else plain
    if norms.q.weight is not None and norms.k.weight is not None:
        for q, k, said in (
            (norms.q, norms.q, "both with that of the queries"),
            (norms.k, norms.k, "both with that of the keys"),
            (norms.k, norms.q, "each with that of the other"),
        ):
            if norms.q.weight.shape == norms.k.weight.shape:
                plan = _apply(replace(norms, q=q, k=k), run, eps)
                yield Form((plan, "before"), ("qk-norm-exchanged",), said)
    yield Form((lambda state: {}, "before"), ("qk-norm-missing",))
    for which, other in (("q", "keys"), ("k", "queries")):
        said = f"the {other} are not normalised"
        yield Form((_apply(norms, run, eps, which), "before"), ("qk-norm-missing",), said)

        def values(state: State, which: str = which) -> State:
            scale = norms.k if which == "q" else norms.q
            width = state["v"].shape[2] * state["v"].shape[4] if flat else state["v"].shape[4]
            if scale.weight is not None and scale.weight.shape != (width,):
                return {}
            v = run(state["v"], *_weights(scale, state["v"]), eps)
            return {**_apply(norms, run, eps, which)(state), "v": v}

        yield Form((values, "before"), ("qk-norm-values",), f"in the place of the {other}")
    if flat or plain is centred:
        return
    for dim, said in ((2, "over the heads"), (3, "over the tokens"), ((2, 4), "over all heads")):
        if heads == 1 and dim != 3:
            continue

        def across(t: Tensor, w: Tensor, b: Tensor | None, eps: float, dim: Any = dim) -> Tensor:
            return rms_norm(t, w, b, eps, dim=dim)

        yield Form((_apply(norms, across, eps), "before"), ("qk-norm-axis",), said)
