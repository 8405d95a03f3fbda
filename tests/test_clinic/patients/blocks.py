"""Patients of `diagnose_block`: blocks and stacks, each written in two ways, with their bugs.

A kit holds the parts of a block: `Own` is written by hand, `Torch` is made from PyTorch's layers. A
wiring is a function of a kit and its tokens; a patient is a wiring with the parts of a kit.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

E, H, B, N, J = 24, 4, 2, 5, 7


@dataclass(frozen=True)
class Patient:
    """One block or stack.

    Args:
        name: of the patient.
        make: builds it.
        ids: its bugs, () for a healthy one.
        variants: of a healthy one.
        given: options of `diagnose_block`.
    """

    name: str
    make: Callable[[], nn.Module]
    ids: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()
    given: dict[str, Any] = field(default_factory=dict)


PATIENTS: list[Patient] = []


# ------------------------------------------------------------------------------------ parts


class Attention(nn.Module):
    """Attention by hand, to its own tokens or to a context."""

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(E, E) for _ in range(4))
        self.scale = (E // H) ** -0.5 if scale is None else scale

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None):
        context = x if context is None else context
        given = ((self.q, x), (self.k, context), (self.v, context))
        q, k, v = (f(t).unflatten(2, (H, -1)).transpose(1, 2) for f, t in given)
        scores = q @ k.mT * self.scale
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        return self.out((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))


class TorchAttention(nn.MultiheadAttention):
    """PyTorch's own attention, called like the other one."""

    def __init__(self) -> None:
        super().__init__(E, H, batch_first=True)

    def forward(self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None):
        context = x if context is None else context
        hidden = None
        if mask is not None:
            sizes = (len(x), H, x.shape[1], context.shape[1])
            hidden = ~mask.expand(sizes).reshape(-1, *sizes[2:])
        return super().forward(x, context, context, attn_mask=hidden, need_weights=False)[0]


class Formula(nn.Module):
    """A norm by hand, with a weight and a bias."""

    def __init__(self, run: Callable[[Tensor], Tensor], bias: bool = True) -> None:
        super().__init__()
        self.run, self.gain = run, nn.Parameter(torch.ones(E))
        self.shift = nn.Parameter(torch.zeros(E)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.gain * self.run(x)
        return y if self.shift is None else y + self.shift


class RMSByHand(Formula):
    """A norm that is called RMSNorm."""

    def __init__(self, run: Callable[[Tensor], Tensor]) -> None:
        super().__init__(run, bias=False)


class Own(nn.Module):
    """Parts by hand, and the wiring that is given."""

    def __init__(
        self,
        wiring: Callable[..., Tensor],
        norm: Callable[[], nn.Module] | None = None,
        act: Callable[[Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.wiring = wiring
        self.attn, self.cross = self.attention(), self.attention()
        self.n1, self.n2, self.n3 = ((norm or self.norm)() for _ in range(3))
        self.up, self.down = nn.Linear(E, 2 * E), nn.Linear(2 * E, E)
        self.act = act or F.relu
        used = wiring.__code__.co_names
        for name in ("cross", "n1", "n2", "n3", "attn"):
            if name not in used:
                delattr(self, name)
        if "up" not in used and "feed" not in used:
            del self.up, self.down

    def attention(self) -> nn.Module:
        return Attention()

    def norm(self) -> nn.Module:
        return Formula(
            lambda x: (
                (x - x.mean(-1, keepdim=True)) / (x.var(-1, False, keepdim=True) + 1e-6).sqrt()
            )
        )

    def feed(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))

    def forward(self, x: Tensor) -> Tensor:
        return self.wiring(self, x)


class Torch(Own):
    """Parts of PyTorch."""

    def attention(self) -> nn.Module:
        return TorchAttention()

    def norm(self) -> nn.Module:
        return nn.LayerNorm(E)


class Crossed(Own):
    """A decoder block by hand."""

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.wiring(self, x, context)


class TorchCrossed(Torch):
    """A decoder block of PyTorch's parts."""

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return self.wiring(self, x, context)


class Masked(Own):
    """A decoder block that takes masks."""

    def forward(self, x: Tensor, context: Tensor, mask=None, context_mask=None) -> Tensor:
        return self.wiring(self, x, context, mask, context_mask)


class TorchMasked(Torch):
    """A decoder block of PyTorch's parts that takes masks."""

    def forward(self, x: Tensor, context: Tensor, mask=None, context_mask=None) -> Tensor:
        return self.wiring(self, x, context, mask, context_mask)


def wired(*ids: str, variants: tuple[str, ...] = (), kits: tuple = (Own, Torch), **given: Any):
    """Enter a wiring, with each of some kits."""

    def enter(wiring: Callable[..., Tensor]) -> Callable[..., Tensor]:
        for kit in kits:
            name = f"{wiring.__name__} {kit.__name__}"
            PATIENTS.append(Patient(name, lambda k=kit: k(wiring), ids, variants, given))
        return wiring

    return enter


def enter(name: str, make: Callable[[], nn.Module], *ids: str, variants=(), **given: Any) -> None:
    """Enter one patient."""
    PATIENTS.append(Patient(name, make, ids, tuple(variants), given))


# -------------------------------------------------------------------------- wirings of blocks


@wired()
def pre(m, x):
    x = x + m.attn(m.n1(x))
    return x + m.feed(m.n2(x))


@wired()
def post(m, x):
    x = m.n1(x + m.attn(x))
    return m.n2(x + m.feed(x))


@wired("norm-order", norm_first=False)
def announced_post(m, x):
    x = m.attn(m.n1(x)) + x
    return m.feed(m.n2(x)) + x


@wired("norm-order", norm_first=True)
def announced_pre(m, x):
    x = m.n1(m.attn(x) + x)
    return m.n2(m.feed(x) + x)


@wired("residual-from-norm")
def from_norm(m, x):
    x = m.n1(x)
    x = m.n2(x + m.attn(x))
    return x + m.feed(x)


@wired("residual-from-norm")
def feed_from_norm(m, x):
    x = x + m.attn(m.n1(x))
    normed = m.n2(x)
    return m.feed(normed) + normed


@wired("residual-missing")
def no_residual(m, x):
    x = m.attn(m.n1(x))
    return x + m.feed(m.n2(x))


@wired("residual-missing")
def no_residual_post(m, x):
    x = m.n1(x + m.attn(x))
    return m.n2(m.feed(x))


@wired("residual-from-input")
def from_input(m, x):
    y = x + m.attn(m.n1(x))
    return x + m.feed(m.n2(y))


@wired("residual-from-input")
def from_input_post(m, x):
    y = m.n1(x + m.attn(x))
    return m.n2(x + m.feed(y))


@wired("residual-again")
def twice_added(m, x):
    x = x + m.attn(m.n1(x))
    return x + (x + m.feed(m.n2(x)))


@wired("residual-again")
def twice_added_post(m, x):
    x = m.n1(x + (x + m.attn(x)))
    return m.n2(x + m.feed(x))


@wired("norm-missing")
def one_norm_less(m, x):
    x = x + m.attn(x)
    return x + m.feed(m.n2(x))


@wired("norm-missing")
def one_norm_less_post(m, x):
    x = m.n1(x + m.attn(x))
    return x + m.feed(x)


@wired("norm-shared")
def one_norm(m, x):
    x = x + m.attn(m.n1(x))
    return x + m.feed(m.n1(x))


@wired("norm-shared")
def one_norm_post(m, x):
    for part in (m.attn, m.feed):
        x = m.n1(x + part(x))
    return x


@wired("norm-doubled")
def two_norms_in_a_row(m, x):
    x = x + m.attn(m.n1(x))
    return x + m.feed(m.n3(m.n2(x)))


@wired("norm-doubled")
def two_norms_in_a_row_post(m, x):
    x = m.n3(m.n1(x + m.attn(x)))
    return m.n2(x + m.feed(x))


@wired("norm-mixed")
def pre_then_post(m, x):
    x = x + m.attn(m.n1(x))
    return m.n2(x + m.feed(x))


@wired("norm-mixed")
def post_then_pre(m, x):
    x = m.n1(x + m.attn(x))
    return x + m.feed(m.n2(x))


@wired("activation-missing")
def straight(m, x):
    x = x + m.attn(m.n1(x))
    return x + m.down(m.up(m.n2(x)))


@wired("activation-last")
def activated(m, x):
    x = x + m.attn(m.n1(x))
    return x + F.relu(m.feed(m.n2(x)))


@wired(variants=("norm-of-part",))
def norm_of_part(m, x):
    x = x + m.n1(m.attn(x))
    return x + m.n2(m.feed(x))


@wired(variants=("parallel",))
def parallel(m, x):
    y = m.n1(x)
    return x + m.attn(y) + m.feed(y)


@wired("part-unused")
def never_feeds(m, x):
    return x + m.attn(m.n1(x)) if m.up else x


# ----------------------------------------------------------------------------- decoder blocks


DECODERS = (Crossed, TorchCrossed)


@wired(kits=DECODERS, context=True)
def decoder(m, x, c):
    x = x + m.attn(m.n1(x))
    x = x + m.cross(m.n2(x), c)
    return x + m.feed(m.n3(x))


@wired(kits=DECODERS, context=True)
def decoder_post(m, x, c):
    x = m.n1(x + m.attn(x))
    x = m.n2(x + m.cross(x, c))
    return m.n3(x + m.feed(x))


@wired(kits=DECODERS, context=True)
def cross_alone(m, x, c):
    x = m.n1(x + m.cross(x, c))
    return m.n2(x + m.feed(x))


@wired("cross-ignored", kits=DECODERS, context=True)
def ignores_context(m, x, c):
    x = x + m.attn(m.n1(x))
    x = x + m.cross(m.n2(x))
    return x + m.feed(m.n3(x))


@wired("part-shared", kits=DECODERS, context=True)
def one_attention(m, x, c):
    x = x + m.attn(m.n1(x))
    x = x + m.attn(m.n2(x), c)
    return x + m.feed(m.n3(x))


@wired("part-shared", kits=DECODERS, context=True)
def one_attention_post(m, x, c):
    x = m.n1(x + m.attn(x))
    x = m.n2(x + m.attn(x, c))
    return m.n3(x + m.feed(x))


PADDED = torch.ones(B, 1, 1, J, dtype=torch.bool)
PADDED[0, ..., -2:] = False
MASKS = {
    "context": True,
    "mask": torch.ones(1, 1, N, N, dtype=torch.bool).tril(),
    "context_mask": PADDED,
}
MASKED = (Masked, TorchMasked)


@wired(kits=MASKED, **MASKS)
def masked(m, x, c, mask, context_mask):
    x = x + m.attn(m.n1(x), None, mask)
    x = x + m.cross(m.n2(x), c, context_mask)
    return x + m.feed(m.n3(x))


@wired("mask-dropped", kits=MASKED, **MASKS)
def drops_mask(m, x, c, mask, context_mask):
    x = x + m.attn(m.n1(x))
    x = x + m.cross(m.n2(x), c, context_mask)
    return x + m.feed(m.n3(x))


@wired("context-mask-dropped", kits=MASKED, **MASKS)
def drops_context_mask(m, x, c, mask, context_mask):
    x = x + m.attn(m.n1(x), None, mask)
    x = x + m.cross(m.n2(x), c)
    return x + m.feed(m.n3(x))


# -------------------------------------------------------------------------------------- norms


def mean(x: Tensor, dim: Any = -1) -> Tensor:
    return x.mean(dim, keepdim=True)


def std(x: Tensor, unbiased: bool = True) -> Tensor:
    return x.std(-1, unbiased, keepdim=True)


def normed(id: str, *runs: Callable[[Tensor], Tensor], kind: type[Formula] = Formula) -> None:
    """Enter pre-norm and post-norm blocks with norms of a formula."""
    for number, run in enumerate(runs):
        for wiring in (pre, post):
            name = f"{id} {number} {wiring.__name__}"
            enter(name, lambda w=wiring, r=run: Own(w, lambda: kind(r)), id)


normed(
    "norm-bessel",
    lambda x: (x - mean(x)) / (std(x) + 1e-6),
    lambda x: (x - mean(x)) * torch.rsqrt(x.var(-1, keepdim=True) + 1e-6),
    lambda x: (x - mean(x)) / (std(x, False) + 1e-3),
)
normed(
    "norm-axis",
    lambda x: (x - mean(x, 1)) / (x.var(1, False, keepdim=True) + 1e-6).sqrt(),
    lambda x: (x - mean(x, (1, 2))) / (x.var((1, 2), False, keepdim=True) + 1e-6).sqrt(),
)
normed(
    "norm-formula",
    lambda x: (x - mean(x)) / (x.var(-1, False, keepdim=True) + 1e-3),
    lambda x: x / (x.var(-1, False, keepdim=True) + 1e-6).sqrt(),
)
normed(
    "rms-eps",
    lambda x: x / (mean(x.square()).sqrt() + 1e-3),
    lambda x: x / (x.pow(2).mean(-1, True) ** 0.5 + 1e-2),
    kind=RMSByHand,
)
enter(
    "norm-axis LayerNorm",
    lambda: Torch(pre, lambda: nn.LayerNorm((N, E))),
    "norm-axis",
    size=(B, N),
)
enter("norm-eps announced", lambda: Torch(pre), "norm-eps", norm_eps=1e-6)
enter("norm-eps as dropout", lambda: Torch(post, lambda: nn.LayerNorm(E, 0.1)), "norm-eps")
for _norm in (
    lambda: nn.RMSNorm(E),
    lambda: RMSByHand(lambda x: x * torch.rsqrt(mean(x.pow(2)) + 1e-6)),
):
    enter("rms-norm", lambda n=_norm: Own(pre, n), variants=("rms-norm",))


class PlusOne(RMSByHand):
    """Gemma's norm."""

    def forward(self, x: Tensor) -> Tensor:
        return self.run(x) * (1 + self.gain)


enter(
    "rms-norm plus one",
    lambda: Own(pre, lambda: PlusOne(lambda x: x * torch.rsqrt(mean(x.pow(2)) + 1e-6))),
    variants=("rms-norm",),
)


# -------------------------------------------------------------------------------- activations

for _name, _act in (
    ("gelu", F.gelu),
    ("silu", F.silu),
    ("by hand", lambda t: 0.5 * t * (1 + torch.erf(t / 2**0.5))),
):
    enter(f"activation {_name}", lambda a=_act: Own(pre, act=a))
enter(
    "quick-gelu",
    lambda: Own(pre, act=lambda t: t * (1.702 * t).sigmoid()),
    variants=("quick-gelu",),
)
for _kit in (Own, Torch):
    enter(f"relu {_kit.__name__}", lambda k=_kit: k(pre), "activation-other", activation="gelu")


class Gated(Own):
    """A gated feed-forward."""

    def __init__(self, wiring, form: str) -> None:
        super().__init__(wiring)
        self.form, self.gate = form, nn.Linear(E, 2 * E)
        if form == "packed":
            self.gate = nn.Linear(E, 4 * E)
            del self.up

    def feed(self, x: Tensor) -> Tensor:
        if self.form == "packed":
            value, gate = self.gate(x).chunk(2, -1)
            return self.down(value * F.gelu(gate))
        return self.down(F.silu(self.gate(x)) * self.up(x))


enter("gated", lambda: Gated(pre, ""), variants=("gated",))
enter("gate-second", lambda: Gated(post, "packed"), variants=("gated", "gate-second"))


# ------------------------------------------------------------------------------ other variants


class Sandwich(Torch):
    def __init__(self) -> None:
        super().__init__(post)
        self.a1, self.a2 = nn.LayerNorm(E), nn.LayerNorm(E)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.a1(self.attn(self.n1(x)))
        return x + self.a2(self.feed(self.n2(x)))


enter("sandwich-norm", Sandwich, variants=("sandwich-norm",))
enter("torch encoder", lambda: nn.TransformerEncoderLayer(E, H, 2 * E))
enter(
    "torch decoder", lambda: nn.TransformerDecoderLayer(E, H, 2 * E, batch_first=True), context=True
)
enter("causal", lambda: Causal(pre), causal=True)


class Causal(Own):
    def __init__(self, wiring) -> None:
        super().__init__(lambda m, x: x)
        self.attn, self.n1, self.n2 = Attention(), nn.LayerNorm(E), nn.LayerNorm(E)
        self.up, self.down = nn.Linear(E, 2 * E), nn.Linear(2 * E, E)

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        x = x + self.attn(self.n1(x), None, mask)
        return x + self.feed(self.n2(x))


class ScaledByEmbed(Own):
    """A bug of the attention inside the second half of the bank."""

    def attention(self) -> nn.Module:
        return Attention(E**-0.5)


enter("not causal", lambda: Own(pre), "mask-not-causal", causal=True)
enter("scale-embed pre", lambda: ScaledByEmbed(pre), "scale-embed")
enter(
    "scale-embed and from norm",
    lambda: ScaledByEmbed(from_norm),
    "scale-embed",
    "residual-from-norm",
)


# ------------------------------------------------------------------------------------- stacks


class Stack(nn.Module):
    """Layers in a row, and perhaps a norm."""

    def __init__(self, layers: list[nn.Module], norm: bool, last: bool = False) -> None:
        super().__init__()
        self.layers, self.last = nn.ModuleList(layers), last
        self.norm = nn.LayerNorm(E) if norm else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self.layers:
            y = layer(x if self.last else y)
        return self.norm(y)


def copies(make: Callable[[], nn.Module]) -> list[nn.Module]:
    """Return a layer and its copies."""
    layer = make()
    return [layer, copy.deepcopy(layer), copy.deepcopy(layer)]


for _w, _final in ((pre, True), (post, False)):
    _kit = Own if _w is pre else Torch
    _make = lambda k=_kit, w=_w: k(w)  # noqa: E731
    _name = _w.__name__
    enter(f"stack {_name}", lambda m=_make, f=_final: Stack([m() for _ in range(3)], f))
    enter(f"shared {_name}", lambda m=_make, f=_final: Stack([m()] * 3, f), "layers-shared")
    enter(f"copies {_name}", lambda m=_make, f=_final: Stack(copies(m), f), "layers-same-init")
    enter(
        f"last {_name}",
        lambda m=_make, f=_final: Stack([m() for _ in range(3)], f, True),
        "stack-last-only",
    )
enter("stack of one norm", lambda: Stack([Torch(one_norm), Torch(one_norm)], True), "norm-shared")
