"""Blocks whose parts stand otherwise: side by side, between two norms each; norms by hand."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

from attention_clinic import Report, diagnose_block
from patients.attention import Loops, LoopsScaledByEmbed, Views, ViewsScaledByEmbed
from patients.bank import CASES, Entry
from patients.blocks import PostNorm, PreNorm

SIZES = ((24, 4), (15, 3))


def arranged(*names: str, ids: tuple[str, ...] = (), sizes: tuple = SIZES, **options) -> Callable:
    """Enter a block whose report must name these variants."""

    def enter(make: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            torch.manual_seed(seed)
            report = diagnose_block(make(e, h), h, **options)
            assert tuple(v.id for v in report.variants) == names or report.ids != ids, report
            return report

        CASES.append(Entry(make.__name__, ids, examine, sizes=sizes))
        return make

    return enter


# --------------------------------------------------------------------------------- side by side


@arranged("parallel")
class BesideOneNorm(PreNorm):
    """GPT-J, Falcon, Phi: one norm for both."""

    attention_class: type = Views

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = self.attention_class(e, h)
        del self.ln_2

    def forward(self, x):
        read = self.ln_1(x)
        return x + self.attention(read) + self.ffn(read)


@arranged("parallel")
class BesideTwoNorms(nn.Module):
    """GPT-NeoX: each part has a norm of its own."""

    attention_class: type = Loops

    def __init__(self, e, h):
        super().__init__()
        self.input_norm, self.other_norm = nn.LayerNorm(e), nn.LayerNorm(e)
        self.attn = self.attention_class(e, h)
        self.up, self.down = nn.Linear(e, 3 * e + 1), nn.Linear(3 * e + 1, e)

    def forward(self, x):
        fed = self.down(F.gelu(self.up(self.other_norm(x)), approximate="tanh"))
        return self.attn(self.input_norm(x)) + fed + x


@arranged("parallel", ids=("scale-embed",), sizes=SIZES[:1])
class BesideOneNormScaledByEmbed(BesideOneNorm):
    attention_class = ViewsScaledByEmbed


@arranged("parallel", ids=("scale-embed",), sizes=SIZES[:1])
class BesideTwoNormsScaledByEmbed(BesideTwoNorms):
    attention_class = LoopsScaledByEmbed


@arranged(ids=("norm-shared",))
class OneNormInARow(BesideOneNorm):
    """The same parts one behind the other: there the norm is shared."""

    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_1(x))


# ------------------------------------------------------------------------ between two norms each


@arranged("sandwich-norm")
class Sandwich(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ln_3, self.ln_4 = nn.LayerNorm(e, eps=1e-6), nn.LayerNorm(e, eps=1e-6)

    def forward(self, x):
        x = x + self.ln_2(self.attention(self.ln_1(x)))
        return x + self.ln_4(self.ffn(self.ln_3(x)))


@arranged("sandwich-norm", "rms-norm", sizes=SIZES[:1])
class SandwichByRoot(PostNorm):
    """Gemma: norms without a mean."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.norms = nn.ModuleList(nn.RMSNorm(e, eps=1e-6) for _ in range(4))

    def forward(self, x):
        before, after, before_feed, after_feed = self.norms
        x = x + after(self.self_attn(before(x)))
        return x + after_feed(self.feed(before_feed(x)))


@arranged("sandwich-norm", ids=("residual-from-norm",), sizes=SIZES[:1])
class SandwichFromNorm(Sandwich):
    def forward(self, x):
        x = self.ln_1(x)
        x = x + self.ln_2(self.attention(x))
        return x + self.ln_4(self.ffn(self.ln_3(x)))


# ---------------------------------------------------------------------------------- activations


class QuickGelu(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(1.702 * x)


@arranged("quick-gelu")
class QuickBlock(PreNorm):
    def bend(self):
        return QuickGelu()


@arranged("quick-gelu")
class QuickPostNorm(PostNorm):
    def feed(self, x):
        made = self.w_1(x)
        return self.w_2(made / (1 + torch.exp(-1.702 * made)))


arranged(ids=("activation-other",), activation="gelu", sizes=SIZES[:1])(QuickBlock)


# ---------------------------------------------------------------------------------- norms by hand


class ByHand(nn.Module):
    """The bias first, the weight second; n - 1 numbers."""

    def __init__(self, e):
        super().__init__()
        self.mean_scale, self.std_scale = nn.Parameter(torch.zeros(e)), nn.Parameter(torch.ones(e))

    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.std_scale * ((x - mean) / (std + 1e-9)) + self.mean_scale


class OneNumber(nn.Module):
    """One weight and one bias for all numbers of a token."""

    eps = 1e-6

    def __init__(self):
        super().__init__()
        self.alpha, self.bias = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))

    def forward(self, x):
        mean, std = x.mean(-1, keepdim=True), x.std(-1, keepdim=True)
        return self.alpha * (x - mean) / (std + self.eps) + self.bias


@arranged(ids=("norm-bessel",))
class BiasFirst(PreNorm):
    def norm(self, e):
        return ByHand(e)


@arranged(ids=("norm-bessel",))
class OneNumberEach(PostNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.norms = nn.ModuleList([OneNumber(), OneNumber()])


@arranged(ids=("norm-bessel", "scale-embed"), sizes=SIZES[:1])
class BiasFirstScaledByEmbed(BiasFirst):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = ViewsScaledByEmbed(e, h)


# ----------------------------------------------------------------- norms that count the samples


@arranged("batch-norm")
class BatchNormed(PostNorm):
    """PatchTST: the tokens of all samples stand in one row before BatchNorm."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.norms = nn.ModuleList(nn.BatchNorm1d(e) for _ in range(2))

    def normed(self, number, x):
        return self.norms[number](x.reshape(-1, x.shape[-1])).reshape(x.shape)

    def forward(self, x):
        x = self.normed(0, x + self.self_attn(x))
        return self.normed(1, x + self.feed(x))


class Exchanged(nn.Module):
    def forward(self, x):
        return x.transpose(1, 2)


@arranged("batch-norm", ids=("residual-missing",), sizes=SIZES[:1])
class BatchNormedAlone(PostNorm):
    """tsai: BatchNorm between two transposes; nothing is added to the feed-forward."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.norms = nn.ModuleList(
            nn.Sequential(Exchanged(), nn.BatchNorm1d(e), Exchanged()) for _ in range(2)
        )

    def forward(self, x):
        x = self.norms[0](x + self.self_attn(x))
        return self.norms[1](self.feed(x))
