"""Models that hold the weights of another one: two pairs of hosts, loaded correctly and not."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

Weights = dict[str, Tensor]
CASES: list[tuple[tuple[str, ...], Callable, Callable, Callable]] = []


def patient(*ids: str, theirs: Callable, mine: Callable) -> Callable:
    """Add a function that makes the weights of mine from those of theirs, given (e, h)."""
    return lambda convert: CASES.append((ids, theirs, mine, convert)) or convert


def loaded(mine: nn.Module, weights: Weights) -> nn.Module:
    """Return a model with copies of these weights."""
    mine.load_state_dict({n: t.clone() for n, t in weights.items()})
    return mine


# ------------------- as GPT-2: packed and transposed there, three layers and an own head here


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)


def their_gpt(e: int, h: int) -> nn.Module:
    sizes = {"vocab_size": 33, "n_positions": 20, "n_embd": e, "n_layer": 3, "n_head": h}
    return GPT2LMHeadModel(GPT2Config(**sizes)).eval()


class MyGpt(nn.Module):
    def __init__(self, e: int, h: int) -> None:
        super().__init__()
        self.num_heads = h
        self.tokens, self.positions = nn.Embedding(33, e), nn.Embedding(20, e)
        self.layers = nn.ModuleList(nn.Module() for _ in range(3))
        for layer in self.layers:
            layer.norm1, layer.norm2 = nn.LayerNorm(e), nn.LayerNorm(e)
            for name in ("q_proj", "k_proj", "v_proj", "out_proj"):
                setattr(layer, name, nn.Linear(e, e))
            layer.fc1, layer.fc2 = nn.Linear(e, 4 * e), nn.Linear(4 * e, e)
        self.norm, self.head = nn.LayerNorm(e), nn.Linear(e, 33, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        for layer in self.layers:
            y = layer.norm1(x)
            three = (layer.q_proj(y), layer.k_proj(y), layer.v_proj(y))
            q, k, v = (t.unflatten(2, (self.num_heads, -1)).transpose(1, 2) for t in three)
            x = x + layer.out_proj(attend(q, k, v))
            x = x + layer.fc2(F.gelu(layer.fc1(layer.norm2(x)), approximate="tanh"))
        return self.head(self.norm(x))


def gpt(theirs: Weights, e: int = 0, h: int = 0) -> Weights:
    """Load as it must be."""
    names = {"ln_1": "norm1", "ln_2": "norm2", "attn.c_proj": "out_proj", "mlp.c_fc": "fc1"}
    names |= {"mlp.c_proj": "fc2", "transformer.h": "layers", "transformer.ln_f": "norm"}
    names |= {"transformer.wte": "tokens", "transformer.wpe": "positions", "lm_head": "head"}
    mine = {}
    for name, t in theirs.items():
        for old, new in names.items():
            name = name.replace(old, new)
        t = t.T if "layers" in name and t.ndim == 2 else t
        packed = "attn.c_attn" in name
        for part, letter in zip(t.chunk(3) if packed else (t,), "qkv", strict=False):
            mine[name.replace("attn.c_attn", f"{letter}_proj")] = part
    return mine


GPT = {"theirs": their_gpt, "mine": MyGpt}
patient(**GPT)(gpt)


@patient("loading-transposed", **GPT)
def all_squares(theirs, e, h):
    return {n: t.T if t.shape == (e, e) else t for n, t in gpt(theirs).items()}


# ---------------- as Llama: neighbours and one packed layer by head there, halves and three here


def rotated(t: Tensor, halves: bool) -> Tensor:
    """Rotate queries or keys (b, h, n, d) by their positions."""
    d = t.shape[-1]
    angles = torch.arange(t.shape[2])[:, None] * 100.0 ** (-torch.arange(0, d, 2) / d)
    cos, sin = angles.cos().to(t), angles.sin().to(t)
    one, two = t.chunk(2, dim=-1) if halves else (t[..., 0::2], t[..., 1::2])
    made = one * cos - two * sin, one * sin + two * cos
    return torch.cat(made, dim=-1) if halves else torch.stack(made, dim=-1).flatten(-2)


class Llama(nn.Module):
    """Both sides: which numbers rotate together, how queries, keys and values are packed."""

    def __init__(self, e: int, h: int, halves: bool = True, pack: str = "") -> None:
        super().__init__()
        self.heads, self.halves, self.pack = h, halves, pack
        self.embed, self.head = nn.Embedding(29, e), nn.Linear(e, 29, bias=False)
        self.blocks = nn.ModuleList(nn.Module() for _ in range(2))
        for block in self.blocks:
            block.attention_norm, block.ffn_norm = nn.RMSNorm(e, 1e-6), nn.RMSNorm(e, 1e-6)
            for name in ("qkv",) if pack else ("wq", "wk", "wv"):
                setattr(block, name, nn.Linear(e, 3 * e if pack else e, bias=False))
            block.wo = nn.Linear(e, e, bias=False)
            block.gate, block.up = (nn.Linear(e, 3 * e, bias=False) for _ in range(2))
            block.down = nn.Linear(3 * e, e, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        for block in self.blocks:
            y, h = block.attention_norm(x), self.heads
            if self.pack:  # "h k": the queries, keys and values of each head together
                sizes = (h, 3, -1) if self.pack == "h k" else (3, h, -1)
                cut = block.qkv(y).unflatten(-1, sizes).unbind(3 if self.pack == "h k" else 2)
            else:
                cut = [w(y).unflatten(-1, (h, -1)) for w in (block.wq, block.wk, block.wv)]
            q, k, v = (t.transpose(1, 2) for t in cut)
            x = x + block.wo(attend(rotated(q, self.halves), rotated(k, self.halves), v))
            y = block.ffn_norm(x)
            x = x + block.down(F.silu(block.gate(y)) * block.up(y))
        return self.head(x)


def llama(theirs: Weights, e: int, h: int, by_head: bool = True, turn: bool = True) -> Weights:
    """Cut the packed layer, and lay neighbours out as halves."""
    mine = {name: t for name, t in theirs.items() if ".qkv." not in name}
    for name in theirs.keys() - mine.keys():
        cut = theirs[name].view((h, 3, -1, e) if by_head else (3, h, -1, e))
        for part, letter in zip(cut.unbind(1 if by_head else 0), "qkv", strict=True):
            if turn and letter != "v":
                part = part.unflatten(1, (-1, 2)).transpose(1, 2)
            mine[name.replace("qkv", f"w{letter}")] = part.reshape(e, e)
    return mine


def same(theirs: Weights, e: int, h: int) -> Weights:
    return theirs


BY_HEAD, PAIRS = partial(Llama, halves=False, pack="h k"), partial(Llama, halves=False)
patient(theirs=BY_HEAD, mine=Llama)(llama)
patient("rotary-convention", theirs=BY_HEAD, mine=Llama)(partial(llama, turn=False))
patient("rotary-convention", theirs=Llama, mine=PAIRS)(same)
patient("loading-packed", theirs=BY_HEAD, mine=PAIRS)(partial(llama, by_head=False, turn=False))
patient("loading-packed", theirs=BY_HEAD, mine=partial(Llama, halves=False, pack="k h"))(same)
