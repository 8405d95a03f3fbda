"""Mutants: correct modules in six styles, with mistakes planted in their source text."""

from __future__ import annotations

import inspect
import math
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from attention_clinic import BUGS, diagnose
from patients.bank import attention
from patients.healthy import Loops, Views
from patients.masks import padding
from patients.modern import Llama
from wild.planting import Planted, mistakes


class NanoGpt(nn.Module):
    """Packed projections and a causal mask in a buffer."""

    def __init__(self, n_embd, n_head):
        super().__init__()
        self.n_head = n_head
        self.c_attn, self.c_proj = nn.Linear(n_embd, 3 * n_embd), nn.Linear(n_embd, n_embd)
        self.register_buffer("bias", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(C, dim=2)
        k = k.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        q = q.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        v = v.view(B, T, self.n_head, C // self.n_head).transpose(1, 2)
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        att = F.softmax(att, dim=-1)
        y = (att @ v).transpose(1, 2).contiguous().view(B, T, C)
        return self.c_proj(y)


class Lucid(nn.Module):
    """einops, to_q and to_kv, as lucidrains writes it."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.scale = heads, (dim // heads) ** -0.5
        self.to_q, self.to_kv = nn.Linear(dim, dim, bias=False), nn.Linear(dim, 2 * dim, bias=False)
        self.to_out = nn.Linear(dim, dim)

    def forward(self, x):
        q, (k, v) = self.to_q(x), self.to_kv(x).chunk(2, dim=-1)
        q = rearrange(q, "b n (h d) -> b h n d", h=self.heads)
        k = rearrange(k, "b n (h d) -> b h n d", h=self.heads)
        v = rearrange(v, "b n (h d) -> b h n d", h=self.heads)
        dots = torch.matmul(q, k.transpose(-1, -2)) * self.scale
        out = torch.matmul(dots.softmax(dim=-1), v)
        return self.to_out(rearrange(out, "b h n d -> b n (h d)"))


class Lecture(nn.Module):
    """Layers for each head, as in lectures."""

    def __init__(self, n_embd, num_heads):
        super().__init__()
        self.head_dim = n_embd // num_heads
        self.key, self.query, self.value = (
            nn.ModuleList(nn.Linear(n_embd, self.head_dim) for _ in range(num_heads)) for _ in "kqv"
        )
        self.proj = nn.Linear(n_embd, n_embd)

    def head(self, k, q, v):
        wei = q @ k.transpose(-2, -1) * self.head_dim**-0.5
        wei = wei.masked_fill(torch.ones_like(wei).tril() == 0, float("-inf"))
        return F.softmax(wei, dim=-1) @ v

    def forward(self, x):
        layers = zip(self.key, self.query, self.value, strict=True)
        return self.proj(torch.cat([self.head(k(x), q(x), v(x)) for k, q, v in layers], dim=-1))


HOSTS: dict[type, dict[str, Any]] = {
    Views: {"mask": padding},
    Loops: {"mask": padding},
    Llama: {},
    NanoGpt: {"causal": True},
    Lucid: {},
    Lecture: {"causal": True},
}
for _host in (NanoGpt, Lucid, Lecture):
    attention(sizes=((24, 4),), **HOSTS[_host])(_host)
MEANT = ("another base",)  # a different base of rotary positions may be meant
MORE = {  # what else is true of some kinds
    "scores divided by //": ("rotary-frequencies",),
    "part left out": ("scale-other", "mask-dropped"),
}
FAILS = (RuntimeError, IndexError, TypeError, ValueError, AttributeError)  # of a mutant


def outcome(host: type, planted: Planted, module: nn.Module) -> str:
    """Return "named", "unexplained", "refused", or what is wrong with the verdict on a mutant."""
    mask, causal = (HOSTS[host].get(name) for name in ("mask", "causal"))
    try:
        report = diagnose(module, 4, mask=mask and mask(0), causal=causal)
    except ValueError:
        return "refused"
    allowed = {*planted.ids, *MORE.get(planted.kind, ())}
    found = report.remarks if report.healthy else report.explanations
    if any(set(one.ids) <= allowed for one in found):
        return "named"
    return "healthy" if report.healthy else str(report.ids) if report.ids else "unexplained"


def mutants(host: type, most: int) -> Iterator[tuple[Planted, nn.Module]]:
    """Yield mistakes that change the numbers of a host, with the module; two of a kind at most.

    Args:
        host: one of `HOSTS`.
        most: how many.
    """
    text = inspect.getsource(host)
    text = text[text.index("class ") :]  # without decorators
    right = _numbers(host, host)
    found = list(mistakes(text, f"{host.__name__}(24, 4)"))
    random.Random(0).shuffle(found)
    seen: Counter[str] = Counter()
    for planted in found:
        seen[planted.kind] += 1
        if seen[planted.kind] > 2 or planted.kind in MEANT or not {*planted.ids} & {*BUGS}:
            continue
        space = {**vars(inspect.getmodule(host))}
        try:
            exec(compile(planted.text, "<mutant>", "exec"), space)
            made = _numbers(host, space[host.__name__])
        except FAILS:
            continue
        if most > 0 and not _same(made, right):
            most -= 1
            torch.manual_seed(0)
            yield planted, space[host.__name__](24, 4)


def _numbers(host: type, made: type) -> list[Tensor]:
    """Return the results of a module on fixed tokens, and its gradients."""
    torch.manual_seed(0)
    module, x = made(24, 4), torch.randn(2, 6, 24)
    results = [module(x), *([module(x, padding(0))] if "mask" in HOSTS[host] else [])]
    loss = results[0].square().sum()
    gradients = torch.autograd.grad(loss, list(module.parameters()), allow_unused=True)
    return [*results, *(torch.zeros(()) if g is None else g for g in gradients)]


def _same(some: list[Tensor], others: list[Tensor]) -> bool:
    pairs = zip(some, others, strict=False)
    alike = (one.shape == two.shape and torch.allclose(one, two, atol=1e-6) for one, two in pairs)
    return len(some) == len(others) and all(alike)
