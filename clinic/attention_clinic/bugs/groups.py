"""Grouped queries: several heads of queries share one head of keys and values."""

from __future__ import annotations

import torch
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug, variant

variant(
    "grouped-queries",
    "lets heads of queries that lie beside each other share one head of keys and values",
    "Llama, Qwen, Mistral",
    "13",
)
variant(
    "multi-query",
    "lets all heads of queries share one head of keys and values",
    "PaLM, Falcon",
    "13",
)

bug(
    "groups-order",
    "gives neighbouring heads of queries different heads of keys: 0, 1, 0, 1 where 0, 0, 1, 1 "
    "was meant",
    "repeat each head of keys and values where it stands: k.repeat_interleave(times, dim=1), not "
    "k.repeat(1, times, 1, 1).",
    "13",
    "onnx/onnx#7274",
    "ekzhang/jax-js#180",
    "apple/axlearn#842",
)
bug(
    "groups-first",
    "lets all heads of queries use too few of the heads of keys and values",
    "query head a belongs to key head a // (num_heads // num_kv_heads).",
    "13",
    "PSAL-POSTECH/ONNXim#34",
)

# ------------------ share: k and v (r, b, g, n, d) -> (r, b, h, n, d), q (r, b, h, n, d)


def _shared(form: Form, state: State) -> State:
    times = state["q"].shape[2] // state["k"].shape[2]
    if form.run is None:
        return {}
    k, v = form.run(state["k"], state["v"], times)
    return {"k": k, "v": v}


def beside(t: Tensor, times: int) -> Tensor:
    """Heads 0, 0, 1, 1, ...: query head a meets key head a // times."""
    return t.repeat_interleave(times, dim=2)


def tiled(t: Tensor, times: int) -> Tensor:
    """Heads 0, 1, 0, 1, ...: query head a meets key head a % g."""
    return t.repeat(1, 1, times, 1, 1)


SHARE = Stage("share", _shared)
SHARE.forms.append(Form(None, applies=lambda state: state["k"].shape[2] == state["q"].shape[2]))


def _several(state: State) -> bool:
    """Say whether the order can matter: more than one head of keys, each shared."""
    return 1 < state["k"].shape[2] < state["q"].shape[2]


@SHARE.variant("grouped-queries", lambda state: _several(state))
def share(k: Tensor, v: Tensor, times: int) -> tuple[Tensor, Tensor]:
    return beside(k, times), beside(v, times)


@SHARE.variant("multi-query", lambda state: state["k"].shape[2] == 1 < state["q"].shape[2])
def share_one(k: Tensor, v: Tensor, times: int) -> tuple[Tensor, Tensor]:
    return beside(k, times), beside(v, times)


@SHARE.wrong("groups-order", applies=_several)
def share_tiled(k: Tensor, v: Tensor, times: int) -> tuple[Tensor, Tensor]:
    return tiled(k, times), tiled(v, times)


@SHARE.wrong("groups-order", applies=_several)
def share_tiled_keys(k: Tensor, v: Tensor, times: int) -> tuple[Tensor, Tensor]:
    return tiled(k, times), beside(v, times)


@SHARE.wrong("groups-order", applies=_several)
def share_tiled_values(k: Tensor, v: Tensor, times: int) -> tuple[Tensor, Tensor]:
    return beside(k, times), tiled(v, times)


def _too_few(state: State) -> bool:
    heads, shared = state["q"].shape[2], state["k"].shape[2]
    return _several(state) and heads < shared**2


@SHARE.wrong("groups-first", applies=_too_few)
def share_the_first(k: Tensor, v: Tensor, times: int) -> tuple[Tensor, Tensor]:
    shared = k.shape[2]
    heads = torch.arange(shared * times) // shared
    return k[:, :, heads], v[:, :, heads]
