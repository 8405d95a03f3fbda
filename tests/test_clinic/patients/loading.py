"""Models that hold the weights of another one, loaded right and wrong."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic import Report, diagnose_loading
from patients.bank import CASES, Entry

SIZES = ((24, 4), (16, 2))
Weights = dict[str, Tensor]


def loading(
    *ids: str,
    also: tuple[tuple[str, ...], ...] = (),
    theirs: Callable[..., nn.Module],
    mine: Callable[..., nn.Module],
    as_they_are: bool = False,
    **options: Any,
) -> Callable:
    """Enter a function that makes the weights of mine from those of theirs.

    Args:
        ids: what must be found.
        also: alternatives.
        theirs: builds their model with (e, h).
        mine: builds mine.
        as_they_are: whether both are handed over as modules.
        options: of `diagnose_loading`.
    """

    def enter(convert: Callable[[Weights, int, int], Weights]) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            torch.manual_seed(seed)
            source = theirs(e, h)

            def load(source: nn.Module) -> nn.Module:
                model = mine(e, h)
                given = convert(dict(source.state_dict()), e, h)
                strict = "loading-missing" not in ids
                model.load_state_dict(given, strict=strict)
                return model

            if as_they_are:
                for parameter in source.parameters():
                    parameter.data.normal_(0.3, 0.4)
                return diagnose_loading(load(source), source, **options)
            return diagnose_loading(load, source, **options)

        CASES.append(Entry(convert.__name__, ids, examine, also, SIZES))
        return convert

    return enter


# ---------------------------------- as GPT-2: packed and turned over there, three layers here


class Conv1D(nn.Module):
    """A Linear whose weight lies as (in, out)."""

    def __init__(self, wide: int, out: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(wide, out) * wide**-0.5)
        self.bias = nn.Parameter(torch.zeros(out))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight + self.bias


class TheirGpt(nn.Module):
    def __init__(
        self, e: int, h: int, eps: float = 1e-5, bend: str = "tanh", start: int = 0
    ) -> None:
        super().__init__()
        self.num_heads, self.bend, self.start = h, bend, start
        self.wte, self.wpe = nn.Embedding(33, e), nn.Embedding(20 + start, e)
        self.h = nn.ModuleList(nn.Module() for _ in range(3))
        for layer in self.h:
            layer.ln_1, layer.ln_2 = nn.LayerNorm(e, eps), nn.LayerNorm(e, eps)
            layer.c_attn, layer.c_proj = Conv1D(e, 3 * e), Conv1D(e, e)
            layer.c_fc, layer.c_out = Conv1D(e, 4 * e), Conv1D(4 * e, e)
        self.ln_f = nn.LayerNorm(e, eps)
        self.lm_head = nn.Linear(e, 33, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.wte(ids) + self.wpe(self.start + torch.arange(ids.shape[1]))
        for layer in self.h:
            q, k, v = (
                t.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                for t in layer.c_attn(layer.ln_1(x)).chunk(3, dim=-1)
            )
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + layer.c_proj(y.transpose(1, 2).flatten(2))
            x = x + layer.c_out(F.gelu(layer.c_fc(layer.ln_2(x)), approximate=self.bend))
        return {"logits": self.lm_head(self.ln_f(x))}


class MyGpt(nn.Module):
    def __init__(self, e: int, h: int, eps: float = 1e-5, bend: str = "tanh") -> None:
        super().__init__()
        self.num_heads, self.bend = h, bend
        self.tokens, self.positions = nn.Embedding(33, e), nn.Embedding(20, e)
        self.layers = nn.ModuleList(nn.Module() for _ in range(3))
        for layer in self.layers:
            layer.norm1, layer.norm2 = nn.LayerNorm(e, eps), nn.LayerNorm(e, eps)
            layer.q_proj, layer.k_proj = nn.Linear(e, e), nn.Linear(e, e)
            layer.v_proj, layer.out_proj = nn.Linear(e, e), nn.Linear(e, e)
            layer.fc1, layer.fc2 = nn.Linear(e, 4 * e), nn.Linear(4 * e, e)
        self.norm = nn.LayerNorm(e, eps)
        self.head = nn.Linear(e, 33, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        n = ids.shape[1]
        x = self.tokens(ids) + self.positions.weight[:n]
        seen = torch.ones(n, n).bool().tril()
        for layer in self.layers:
            y = layer.norm1(x)
            q, k, v = (
                p(y).unflatten(2, (self.num_heads, -1)).transpose(1, 2)
                for p in (layer.q_proj, layer.k_proj, layer.v_proj)
            )
            scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~seen, -math.inf)
            y = (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)
            x = x + layer.out_proj(y)
            x = x + layer.fc2(F.gelu(layer.fc1(layer.norm2(x)), approximate=self.bend))
        return self.head(self.norm(x))


def gpt(theirs: Weights, e: int, h: int, turned: bool = True, start: int = 0) -> Weights:
    """Load as it must be."""
    mine = {
        "tokens.weight": theirs["wte.weight"],
        "positions.weight": theirs["wpe.weight"][start : start + 20],
        "head.weight": theirs["wte.weight"],
        "norm.weight": theirs["ln_f.weight"],
        "norm.bias": theirs["ln_f.bias"],
    }
    for i in range(3):
        t, m = f"h.{i}.", f"layers.{i}."
        for leaf in ("weight", "bias"):
            for part, name in zip(theirs[f"{t}c_attn.{leaf}"].chunk(3, dim=-1), "qkv", strict=True):
                mine[f"{m}{name}_proj.{leaf}"] = part.T if leaf == "weight" else part
            for own, other in (("out_proj", "c_proj"), ("fc1", "c_fc"), ("fc2", "c_out")):
                value = theirs[f"{t}{other}.{leaf}"]
                square = own == "out_proj" and not turned
                mine[f"{m}{own}.{leaf}"] = value.T if value.ndim == 2 and not square else value
            mine[f"{m}norm1.{leaf}"] = theirs[f"{t}ln_1.{leaf}"]
            mine[f"{m}norm2.{leaf}"] = theirs[f"{t}ln_2.{leaf}"]
    return {name: value.contiguous() for name, value in mine.items()}


def swapped(mine: Weights, one: str, other: str) -> Weights:
    """Exchange two parts in every layer."""
    places = {one: other, other: one}
    made = {}
    for name, value in mine.items():
        part = name.split(".")[-2]
        made[name.replace(f".{part}.", f".{places.get(part, part)}.")] = value
    return made


GPT = {"theirs": TheirGpt, "mine": MyGpt}


@loading(**GPT)
def gpt_right(theirs, e, h):
    return gpt(theirs, e, h)


@loading(**GPT, as_they_are=True)
def gpt_right_as_it_is(theirs, e, h):
    return gpt(theirs, e, h)


@loading("loading-transposed", **GPT)
def gpt_square_not_turned(theirs, e, h):
    return gpt(theirs, e, h, turned=False)


@loading("loading-transposed", **GPT, as_they_are=True)
def gpt_all_squares(theirs, e, h):
    mine = gpt(theirs, e, h)
    return {
        name: value.T.contiguous() if tuple(value.shape) == (e, e) else value
        for name, value in mine.items()
    }


@loading("loading-transposed", **GPT)
def gpt_one_square(theirs, e, h):
    mine = gpt(theirs, e, h)
    name = "layers.1.k_proj.weight"
    return {**mine, name: mine[name].T.contiguous()}


@loading("loading-exchanged", **GPT)
def gpt_query_and_key(theirs, e, h):
    return swapped(gpt(theirs, e, h), "q_proj", "k_proj")


@loading("loading-exchanged", **GPT, as_they_are=True)
def gpt_norms(theirs, e, h):
    return swapped(gpt(theirs, e, h), "norm1", "norm2")


@loading("loading-exchanged", **GPT)
def gpt_packed_as_kvq(theirs, e, h):
    mine = gpt(theirs, e, h)
    turn = {"q_proj": "v_proj", "k_proj": "q_proj", "v_proj": "k_proj"}
    return {
        name: mine[".".join([*name.split(".")[:2], turn[name.split(".")[2]], name.split(".")[3]])]
        if name.count(".") == 3 and name.split(".")[2] in turn
        else value
        for name, value in mine.items()
    }


@loading("loading-missing", **GPT)
def gpt_head_not_tied(theirs, e, h):
    mine = gpt(theirs, e, h)
    del mine["head.weight"]
    return mine


@loading("loading-missing", **GPT)
def gpt_keys_of_values(theirs, e, h):
    mine = gpt(theirs, e, h)
    return {
        name: mine[name.replace("k_proj", "v_proj")] if "k_proj" in name else value
        for name, value in mine.items()
    }


@loading("loading-missing", **GPT, as_they_are=True)
def gpt_biases_left(theirs, e, h):
    mine = gpt(theirs, e, h)
    return {name: value for name, value in mine.items() if "fc1.bias" not in name}


@loading("loading-layers", **GPT)
def gpt_backwards(theirs, e, h):
    mine = gpt(theirs, e, h)
    return {
        name.replace("layers.0", "layers.x")
        .replace("layers.2", "layers.0")
        .replace("layers.x", "layers.2"): value
        for name, value in mine.items()
    }


@loading(theirs=lambda e, h: TheirGpt(e, h, start=2), mine=MyGpt)
def gpt_rows_right(theirs, e, h):
    return gpt(theirs, e, h, start=2)


@loading("loading-rows", theirs=lambda e, h: TheirGpt(e, h, start=2), mine=MyGpt)
def gpt_rows(theirs, e, h):
    return gpt(theirs, e, h, start=0)


@loading("loading-rows", theirs=lambda e, h: TheirGpt(e, h, start=1), mine=MyGpt)
def gpt_one_row(theirs, e, h):
    return gpt(theirs, e, h, start=0)


@loading("norm-eps", theirs=TheirGpt, mine=lambda e, h: MyGpt(e, h, eps=1e-6))
def gpt_eps(theirs, e, h):
    return gpt(theirs, e, h)


@loading("gelu-tanh", theirs=TheirGpt, mine=lambda e, h: MyGpt(e, h, bend="none"))
def gpt_exact(theirs, e, h):
    return gpt(theirs, e, h)


@loading(
    "loading-transposed", "gelu-tanh", theirs=TheirGpt, mine=lambda e, h: MyGpt(e, h, bend="none")
)
def gpt_turned_and_exact(theirs, e, h):
    return gpt(theirs, e, h, turned=False)


# ---------------------- as Llama: neighbours and one packed layer there, halves and three here


def turned_by(t: Tensor, halves: bool) -> Tensor:
    """Turn queries or keys (b, h, n, d) by their places."""
    d = t.shape[-1]
    angles = torch.arange(t.shape[2])[:, None] * 100.0 ** (-torch.arange(0, d, 2) / d)
    cos, sin = angles.cos().to(t), angles.sin().to(t)
    one, two = t.chunk(2, dim=-1) if halves else (t[..., 0::2], t[..., 1::2])
    made = one * cos - two * sin, one * sin + two * cos
    return torch.cat(made, dim=-1) if halves else torch.stack(made, dim=-1).flatten(-2)


class Decoder(nn.Module):
    """Both sides.

    Args:
        halves: which numbers turn together.
        packed: whether queries, keys and values are one layer, each head with its own.
        plus: what norms add to their weights.
        ten: how many layers there are.
    """

    def __init__(
        self, e: int, h: int, halves: bool, packed: bool, plus: float = 0.0, layers: int = 2
    ) -> None:
        super().__init__()
        self.heads, self.halves, self.packed, self.plus = h, halves, packed, plus
        self.embed = nn.Embedding(29, e)
        self.blocks = nn.ModuleList(nn.Module() for _ in range(layers))
        for block in self.blocks:
            for name in ("before", "after"):
                setattr(block, name, nn.Parameter(torch.ones(e)))
            block.attention_norm, block.ffn_norm = nn.RMSNorm(e), nn.RMSNorm(e)
            if packed:
                block.qkv = nn.Linear(e, 3 * e, bias=False)
            else:
                block.wq, block.wk = nn.Linear(e, e, bias=False), nn.Linear(e, e, bias=False)
                block.wv = nn.Linear(e, e, bias=False)
            block.wo = nn.Linear(e, e, bias=False)
            block.gate, block.up = (nn.Linear(e, 3 * e, bias=False) for _ in range(2))
            block.down = nn.Linear(3 * e, e, bias=False)
            del block.before, block.after
        self.final = nn.RMSNorm(e)
        self.head = nn.Linear(e, 29, bias=False)

    def norm(self, part: nn.RMSNorm, x: Tensor) -> Tensor:
        return F.rms_norm(x, x.shape[-1:], eps=1e-6) * (self.plus + part.weight)

    def projected(self, block: nn.Module, x: Tensor) -> list[Tensor]:
        if self.packed:  # (b, n, h * 3 * d)
            cut = block.qkv(x).unflatten(-1, (self.heads, 3, -1))
            return [cut[:, :, :, i].transpose(1, 2) for i in range(3)]
        return [
            w(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for w in (block.wq, block.wk, block.wv)
        ]

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            q, k, v = self.projected(block, self.norm(block.attention_norm, x))
            q, k = turned_by(q, self.halves), turned_by(k, self.halves)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + block.wo(y.transpose(1, 2).flatten(2))
            y = self.norm(block.ffn_norm, x)
            x = x + block.down(F.silu(block.gate(y)) * block.up(y))
        return self.head(self.norm(self.final, x))


def theirs_packed(e: int, h: int) -> Decoder:
    return Decoder(e, h, halves=False, packed=True)


def mine_apart(e: int, h: int) -> Decoder:
    return Decoder(e, h, halves=True, packed=False)


def llama(theirs: Weights, e: int, h: int, by_head: bool = True, turn: bool = True) -> Weights:
    """Cut the packed layer, and lay neighbours out as halves."""
    mine = {}
    for name, value in theirs.items():
        if ".qkv." not in name:
            mine[name] = value
            continue
        cut = value.view(h, 3, -1, e).transpose(0, 1) if by_head else value.view(3, h, -1, e)
        for part, role in zip(cut, "qkv", strict=True):
            if turn and role != "v":
                part = part.unflatten(1, (-1, 2)).transpose(1, 2).flatten(1, 2)
            mine[name.replace("qkv", f"w{role}")] = part.reshape(e, e).contiguous()
    return mine


LLAMA = {"theirs": theirs_packed, "mine": mine_apart}


@loading(**LLAMA)
def llama_right(theirs, e, h):
    return llama(theirs, e, h)


@loading("rotary-convention", **LLAMA)
def llama_not_turned(theirs, e, h):
    return llama(theirs, e, h, turn=False)


def only_halves(e: int, h: int) -> Decoder:
    return Decoder(e, h, halves=True, packed=False)


def only_pairs(e: int, h: int) -> Decoder:
    return Decoder(e, h, halves=False, packed=False)


@loading("rotary-convention", theirs=only_halves, mine=only_pairs, as_they_are=True)
def llama_as_it_is(theirs, e, h):
    return theirs


@loading("loading-packed", theirs=theirs_packed, mine=only_pairs)
def llama_three_blocks(theirs, e, h):
    return llama(theirs, e, h, by_head=False, turn=False)


class Thirds(Decoder):
    """One packed layer whose thirds are queries, keys and values."""

    def projected(self, block, x):
        cut = block.qkv(x).unflatten(-1, (3, self.heads, -1))
        return [cut[:, :, i].transpose(1, 2) for i in range(3)]


def mine_thirds(e: int, h: int) -> Decoder:
    return Thirds(e, h, halves=False, packed=True)


@loading("loading-packed", theirs=theirs_packed, mine=mine_thirds, as_they_are=True)
def llama_packed_as_it_is(theirs, e, h):
    return theirs


@loading("loading-exchanged", theirs=only_halves, mine=only_halves)
def llama_gate_and_up(theirs, e, h):
    return swapped(theirs, "gate", "up")


@loading(
    "norm-offset",
    theirs=lambda e, h: Decoder(e, h, halves=True, packed=False, plus=1.0),
    mine=only_halves,
)
def llama_plus_one(theirs, e, h):
    return theirs


def many(e: int, h: int) -> Decoder:
    return Decoder(e, h, halves=True, packed=False, layers=11)


@loading("loading-layers", theirs=many, mine=many)
def llama_sorted_as_text(theirs, e, h):
    order = sorted(range(11), key=str)
    made = {}
    for name, value in theirs.items():
        if name.startswith("blocks."):
            number = int(name.split(".")[1])
            name = name.replace(f"blocks.{number}.", f"blocks.{order.index(number)}.")
        made[name] = value
    return made
