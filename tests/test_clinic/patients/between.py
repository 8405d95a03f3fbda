"""What stands between the parts of a block, or beside them: activations, gates, convolutions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from patients.arranged import arranged
from patients.attention import Loops, LoopsScaledByEmbed, Views, ViewsScaledByEmbed
from patients.blocks import PostNorm, PreNorm, block
from patients.wirings import ONE, TWO

# ------------------------------------------------------------------------- the stream is bent


@block("stream-bent", sizes=TWO)
class BendsTheSum(PreNorm):
    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return F.relu(x + self.ffn(self.ln_2(x)))


@block("stream-bent", sizes=TWO)
class BendsBehindNorms(nn.Module):
    """Torch's attention; a module bends what each norm returns."""

    def __init__(self, e, h):
        super().__init__()
        self.mha, self.bend = nn.MultiheadAttention(e, h, batch_first=True), nn.GELU()
        self.first, self.second = nn.LayerNorm(e), nn.LayerNorm(e)
        self.up, self.down = nn.Linear(e, 3 * e), nn.Linear(3 * e, e)

    def forward(self, x):
        x = self.bend(self.first(x + self.mha(x, x, x)[0]))
        return self.bend(self.second(x + self.down(F.silu(self.up(x)))))


@block("norm-shared", "stream-bent", sizes=ONE)
class BendsTheSumOfOneNorm(PreNorm):
    def forward(self, x):
        x = F.gelu(x + self.attention(self.ln_1(x)))
        return x + self.ffn(self.ln_1(x))


@block("out-bent", sizes=ONE)
class BendsByTanh(PostNorm):
    """An activation that few use, behind the attention."""

    def forward(self, x):
        x = self.norms[0](x + self.self_attn(x).tanh())
        return self.norms[1](x + self.feed(x))


@block("out-bent", "activation-last", sizes=ONE)
class BendsNormedParts(PreNorm):
    def forward(self, x):
        x = x + F.relu(self.ln_1(self.attention(x)))
        return x + F.relu(self.ln_2(self.ffn(x)))


@block("activation-last", sizes=ONE)
class BendsLastByHand(PreNorm):
    """Swish, which is no gate: what opens it is what goes through."""

    class Feed(nn.Module):
        def __init__(self, e):
            super().__init__()
            self.up, self.down = nn.Linear(e, 2 * e), nn.Linear(2 * e, e)

        def forward(self, x):
            made = self.down(self.up(x).relu())
            return made * torch.sigmoid(made)

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = self.Feed(e)


# ------------------------------------------------------- an activation where a part belongs


@block("scale-embed", sizes=ONE)
class BendsForItsFeed(PreNorm):
    """The layers of its feed-forward are left out: the stream itself is not bent."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention, self.ffn = ViewsScaledByEmbed(e, h), nn.Sequential(nn.ReLU())


@block("scale-embed", sizes=ONE)
class BendsWithoutNorm(nn.Module):
    def __init__(self, e, h):
        super().__init__()
        self.attn, self.mlp = LoopsScaledByEmbed(e, h), nn.Sequential(nn.GELU(), nn.Dropout(0.1))
        self.first, self.second = nn.LayerNorm(e), nn.LayerNorm(e)

    def forward(self, x):
        x = self.first(x + self.attn(x))
        return self.second(x + self.mlp(x))


# ------------------------------------------------------------------------------ bends in a row


@block("activation-twice", sizes=TWO)
class BendsTwice(PreNorm):
    def bend(self):
        return nn.Sequential(nn.ReLU(), nn.GELU())


@block("activation-twice", sizes=TWO)
class BendsTwiceInside(PreNorm):
    """The layers are parameters, so that their products are all that is seen."""

    class Feed(nn.Module):
        def __init__(self, e):
            super().__init__()
            self.up = nn.Parameter(torch.randn(e, 2 * e + 1) * e**-0.5)
            self.down = nn.Parameter(torch.randn(2 * e + 1, e) * e**-0.5)

        def forward(self, x):
            return torch.einsum("bnf,fe->bne", F.gelu(F.relu(x @ self.up)), self.down)

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = self.Feed(e)


# ---------------------------------------------------------------------- feed-forwards around


class Sides(PreNorm):
    """Macaron Net: half a feed-forward on each side."""

    first, second = 0.5, 0.5

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ln_0 = self.norm(e)
        self.before = nn.Sequential(nn.Linear(e, 2 * e), nn.ReLU(), nn.Linear(2 * e, e))

    def forward(self, x):
        x = x + self.first * self.before(self.ln_0(x))
        x = x + self.attention(self.ln_1(x))
        return x + self.second * self.ffn(self.ln_2(x))


arranged("macaron")(Sides)


@arranged("macaron", ids=("half-step",))
class HalfBefore(Sides):
    second = 1.0


@arranged("macaron", ids=("half-step",))
class HalfBehind(nn.Module):
    """Written out, with a whole step in front."""

    def __init__(self, e, h):
        super().__init__()
        self.attn = Loops(e, h)
        self.norms = nn.ModuleList(nn.LayerNorm(e) for _ in range(3))
        self.up = nn.ModuleList(nn.Linear(e, 3 * e) for _ in range(2))
        self.down = nn.ModuleList(nn.Linear(3 * e, e) for _ in range(2))

    def feed(self, place, x):
        return self.down[place](F.silu(self.up[place](x)))

    def forward(self, x):
        x = x + self.feed(0, self.norms[0](x))
        x = x + self.attn(self.norms[1](x))
        return torch.add(x, self.feed(1, self.norms[2](x)), alpha=0.5)


@arranged("macaron", ids=("norm-shared",))
class SidesOfOneNorm(Sides):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ln_2 = self.ln_0


@arranged("macaron", ids=("part-shared",))
class OneSide(Sides):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = self.before


class Looks(nn.Module):
    """The convolution of Conformer, with its norm."""

    def __init__(self, e):
        super().__init__()
        self.norm, self.wide = nn.LayerNorm(e), nn.Conv1d(e, 2 * e, 1)
        self.deep, self.still = nn.Conv1d(e, e, 3, padding=1, groups=e), nn.BatchNorm1d(e)
        self.narrow, self.drop = nn.Conv1d(e, e, 1), nn.Dropout(0.1)

    def forward(self, x):
        x = F.glu(self.wide(self.norm(x).mT), dim=1)
        return self.drop(self.narrow(F.silu(self.still(self.deep(x))))).mT


@arranged("macaron", "conv-part")
class Conformer(Sides):
    """A norm stands behind all."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.look, self.last = Looks(e), nn.LayerNorm(e)

    def forward(self, x):
        x = x + 0.5 * self.before(self.ln_0(x))
        x = x + self.attention(self.ln_1(x))
        x = self.looked(x)
        return self.last(x + self.second * self.ffn(self.ln_2(x)))

    def looked(self, x):
        return x + self.look(x)


@arranged("macaron", "conv-part", ids=("half-step", "residual-missing"), sizes=ONE)
class LosesBeforeLooking(Conformer):
    second = 1.0

    def looked(self, x):
        return self.look(x)


@arranged("conv-part")
class CodedByConvolution(PreNorm):
    """CPVT: a convolution over neighbours is the code of places, and has no norm."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.places = nn.Conv1d(e, e, 3, padding=1, groups=e)

    def forward(self, x):
        return super().forward(x + self.places(x.mT).mT)


@arranged("conv-part", ids=("residual-from-norm",), sizes=ONE)
class CodedFromNorm(CodedByConvolution):
    def forward(self, x):
        x = self.ln_1(x + self.places(x.mT).mT)
        x = x + self.attention(x)
        return x + self.ffn(self.ln_2(x))


class Apart(nn.Module):
    """QANet's convolution: of each channel alone, of each token alone, and bent behind both."""

    def __init__(self, e):
        super().__init__()
        self.deep = nn.Conv1d(e, e, 5, padding=2, groups=e, bias=False)
        self.point = nn.Conv1d(e, e, 1)

    def forward(self, x):
        return F.relu(self.point(self.deep(x.mT))).mT


@arranged("conv-part")
class LooksTwice(PreNorm):
    """QANet: convolutions of one layer each, which end with an activation."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.looks = nn.ModuleList([Apart(e), Apart(e)])
        self.norms = nn.ModuleList([nn.LayerNorm(e), nn.LayerNorm(e)])

    def forward(self, x):
        for norm, look in zip(self.norms, self.looks, strict=True):
            x = x + look(norm(x))
        return super().forward(x)


@arranged("conv-part", ids=("norm-shared",), sizes=ONE)
class BendsOneConvolution(CodedByConvolution):
    """One layer, and the block bends what it returns."""

    def forward(self, x):
        x = x + F.gelu(self.places(self.ln_1(x).mT).mT)
        return PreNorm.forward(self, x)


@arranged("conv-part", "batch-norm", sizes=ONE)
class LooksAndNorms(CodedByConvolution):
    """As convolutions of images are written: layer, norm, activation."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.places = nn.Sequential(nn.Conv1d(e, e, 3, padding=1, groups=e), nn.Conv1d(e, e, 1))
        self.still = nn.BatchNorm1d(e)

    def forward(self, x):
        return PreNorm.forward(self, x + F.relu(self.still(self.places(x.mT)).mT))


# ------------------------------------------------------------------- in the place of a residual


class Gate(nn.Module):
    """The gate of GTrXL."""

    def __init__(self, e):
        super().__init__()
        self.of_part, self.of_stream = nn.Linear(e, 2 * e), nn.Linear(e, 2 * e, bias=False)
        self.new, self.old = nn.Linear(e, e), nn.Linear(e, e, bias=False)

    def forward(self, x, part):
        reset, keep = (self.of_part(part) + self.of_stream(x)).sigmoid().chunk(2, dim=-1)
        return keep * x + (1 - keep) * torch.tanh(self.new(part) + self.old(reset * x))


@arranged("gated-residual", sizes=ONE)
class Gated(PreNorm):
    """What a part returned is bent before its gate, as there."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.gates = nn.ModuleList([self.gate(e), self.gate(e)])

    def gate(self, e):
        return Gate(e)

    def forward(self, x):
        x = self.gates[0](x, F.relu(self.attention(self.ln_1(x))))
        return self.gates[1](x, F.relu(self.ffn(self.ln_2(x))))


@arranged("gated-residual", ids=("norm-shared",), sizes=ONE)
class GatedByCells(Gated):
    def gate(self, e):
        return nn.GRUCell(e, e)

    def forward(self, x):
        shape = x.shape
        x = self.gates[0](self.attention(self.ln_1(x)).flatten(0, 1), x.flatten(0, 1)).view(shape)
        return self.gates[1](self.ffn(self.ln_1(x)).flatten(0, 1), x.flatten(0, 1)).view(shape)


@arranged("gated-residual", ids=("part-shared",), sizes=ONE)
class OneGate(Gated):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.gates[1] = self.gates[0]


@arranged("scaled-residual")
class DeeperNorm(PostNorm):
    """DeepNet multiplies the stream before each sum."""

    def forward(self, x):
        x = self.norms[0](2.5 * x + self.self_attn(x))
        return self.norms[1](2.5 * x + self.feed(x))


@arranged("scaled-residual", ids=("residual-from-input",))
class DeeperFromInput(DeeperNorm):
    def forward(self, x):
        y = self.norms[0](2.5 * x + self.self_attn(x))
        return self.norms[1](2.5 * x + self.feed(y))


@arranged("scaled-residual", ids=("norm-shared",))
class SmallSteps(PreNorm):
    """MiniCPM multiplies what each part returned."""

    def forward(self, x):
        x = x + 0.3 * self.attention(self.ln_1(x))
        return x + 0.3 * self.ffn(self.ln_1(x))


@arranged()
class LastNorm(PreNorm):
    """A norm stands behind all."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ln_3 = nn.LayerNorm(e)

    def forward(self, x):
        return self.ln_3(super().forward(x))


@arranged(ids=("residual-from-norm",))
class LastNormFromNorm(LastNorm):
    def forward(self, x):
        x = self.ln_2(x + self.attention(self.ln_1(x)))
        return self.ln_3(x + self.ffn(x))


# ------------------------------------------------------------------------------------- experts


class Mixture(nn.Module):
    """Mixtral: each token goes to two of several experts."""

    def __init__(self, e, count=4, chosen=2):
        super().__init__()
        self.router, self.chosen = nn.Linear(e, count, bias=False), chosen
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(e, e + 5), self.bend(), nn.Linear(e + 5, e))
            for _ in range(count)
        )

    def bend(self):
        return nn.SiLU()

    def forward(self, x):
        rows = x.flatten(0, 1)
        weights, places = self.router(rows).softmax(-1).topk(self.chosen, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        made = torch.zeros_like(rows)
        for number, expert in enumerate(self.experts):
            which, rank = torch.where(places == number)
            made[which] += weights[which, rank, None] * expert(rows[which])
        return made.view_as(x)


@arranged("experts")
class ManyExperts(PreNorm):
    """Some of them get no token."""

    count, chosen = 9, 1

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ffn = self.mixture(e)

    def mixture(self, e):
        return Mixture(e, self.count, self.chosen)


@arranged("experts", ids=("residual-from-norm",))
class ExpertsFromNorm(ManyExperts):
    count, chosen = 4, 2

    def forward(self, x):
        x = self.ln_1(x)
        x = x + self.attention(x)
        return x + self.ffn(self.ln_2(x))


class AllExperts(Mixture):
    """All of them see each token, and the router weighs what they return."""

    def forward(self, x):
        made = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (made * self.router(x).softmax(dim=-1)[:, :, None]).sum(-1)


@arranged("experts", ids=("norm-shared", "scale-embed"), sizes=ONE)
class AllExpertsOfOneNorm(ManyExperts):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention, self.ln_2 = ViewsScaledByEmbed(e, h), self.ln_1

    def mixture(self, e):
        return AllExperts(e)


class Straight(AllExperts):
    def bend(self):
        return nn.Identity()


@arranged("experts", ids=("activation-missing",), sizes=ONE)
class StraightExperts(ManyExperts):
    def mixture(self, e):
        return Straight(e)


class Balanced(Mixture):
    """DeepSeek-V3: numbers beside the router's choose, and do not weigh; one expert gets all."""

    def __init__(self, e, count=4, chosen=2):
        super().__init__(e, count, chosen)
        self.register_buffer("bias", torch.tensor([0.4, -0.4, 0.2, -0.1]))
        self.shared = nn.Sequential(nn.Linear(e, e + 3), self.bend(), nn.Linear(e + 3, e))

    def weighed(self, x):
        scores = self.router(x).sigmoid()
        places = (scores + self.bias).topk(self.chosen, dim=-1).indices
        kept = torch.zeros_like(scores).scatter(-1, places, scores.gather(-1, places))
        return kept, 2.5 * kept / kept.sum(-1, keepdim=True)

    def routed(self, x, weights):
        made = torch.stack([expert(x) for expert in self.experts], dim=-1)
        return (made * weights[..., None, :]).sum(-1)

    def forward(self, x):
        return self.routed(x, self.weighed(x)[1]) + self.shared(x)


@arranged("experts", sizes=ONE)
class BalancedExperts(ManyExperts):
    def mixture(self, e):
        return Balanced(e)


class Numbered(nn.Module):
    """A gated feed-forward whose three layers have names that say nothing but their number."""

    def __init__(self, e):
        super().__init__()
        self.linear1, self.linear2 = nn.Linear(e, e + 7), nn.Linear(e, e + 7)
        self.linear3 = nn.Linear(e + 7, e)

    def forward(self, x):
        return self.linear3(F.silu(self.linear1(x)) * self.linear2(x))


class OfNumbered(Mixture):
    def __init__(self, e, count=4, chosen=2):
        super().__init__(e, count, chosen)
        self.experts = nn.ModuleList(Numbered(e) for _ in range(count))


@arranged("experts", "gated", sizes=ONE)
class NumberedExperts(ManyExperts):
    count, chosen = 4, 2

    def mixture(self, e):
        return OfNumbered(e, self.count, self.chosen)


class Sharing(Balanced):
    """The expert of all tokens has a fixed share of what is divided by the sum."""

    def forward(self, x):
        kept, _ = self.weighed(x)
        whole = 0.5 + kept.sum(-1, keepdim=True)
        return (0.5 * self.shared(x) + self.routed(x, kept)) / whole


@arranged("experts", ids=("scale-embed",), sizes=ONE)
class SharingExperts(ManyExperts):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = ViewsScaledByEmbed(e, h)

    def mixture(self, e):
        return Sharing(e)


class Gated(AllExperts):
    """Qwen2-MoE: the expert of all tokens has a gate of its own."""

    def __init__(self, e):
        super().__init__(e)
        self.shared = nn.Sequential(nn.Linear(e, e + 3), self.bend(), nn.Linear(e + 3, e))
        self.gate = nn.Linear(e, 1, bias=False)

    def forward(self, x):
        return super().forward(x) + self.gate(x).sigmoid() * self.shared(x)


@arranged("experts", sizes=ONE)
class GatedExperts(ManyExperts):
    def mixture(self, e):
        return Gated(e)


class Backwards(Balanced):
    """The lowest scores choose: unexplained."""

    def weighed(self, x):
        scores = self.router(x).sigmoid()
        kept = scores * (scores <= scores.kthvalue(self.chosen, dim=-1, keepdim=True).values)
        return kept, kept / kept.sum(-1, keepdim=True)


class BackwardsExperts(ManyExperts):
    def mixture(self, e):
        return Backwards(e)


# ------------------------------------------------------------------------------------ adapters


class Adapter(nn.Module):
    def __init__(self, e):
        super().__init__()
        self.down, self.up = nn.Linear(e, 3), nn.Linear(3, e)

    def forward(self, x):
        return x + self.up(F.gelu(self.down(x)))


@arranged("adapter")
class Adapted(PreNorm):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.after = nn.ModuleList([Adapter(e), Adapter(e)])

    def forward(self, x):
        x = x + self.after[0](self.attention(self.ln_1(x)))
        return x + self.after[1](self.ffn(self.ln_2(x)))


@arranged("adapter", ids=("norm-shared",))
class AdaptedOfOneNorm(Adapted):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention, self.ln_2 = Views(e, h), self.ln_1


# -------------------------------------------------------------------------- found by a red team


@block("residual-again", sizes=ONE)
class AddsInAndAround(PostNorm):
    """Two sums, and no factor of 2, which DeepNorm may mean."""

    def forward(self, x):
        x = self.norms[0](x + (x + self.self_attn(x)))
        return self.norms[1](x + self.feed(x))


@block("part-unused", sizes=ONE)
class RestsBetweenNorms(PreNorm):
    """Its attention, whose dropout rests with it, stood between two norms."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ln_3, self.ln_4 = self.norm(e), self.norm(e)
        self.attention.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = x + self.ln_3(self.ln_1(x))
        return x + self.ln_4(self.ffn(self.ln_2(x)))


@arranged(sizes=ONE)
class Asks(PostNorm):
    """DETR: a code of places is added to queries and keys, and not to values."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.code = nn.Parameter(torch.randn(e))
        self.self_attn = nn.MultiheadAttention(e, h, batch_first=True)

    def forward(self, x):
        asked = x + self.code
        x = self.norms[0](x + self.self_attn(asked, asked, x)[0])
        return self.norms[1](x + self.feed(x))


@block("residual-from-norm", causal=True, sizes=ONE)
class TokensFirstInside(nn.Module):
    """SASRec: the first norm and the attention get (n, b, e)."""

    def __init__(self, e, h):
        super().__init__()
        self.before, self.mha = nn.LayerNorm(e), nn.MultiheadAttention(e, h)
        self.norm, self.feed = nn.LayerNorm(e), nn.Sequential(
            nn.Linear(e, e), nn.ReLU(), nn.Linear(e, e)
        )  # fmt: skip

    def forward(self, x):
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        asked = self.before(x.transpose(0, 1))
        made = asked + self.mha(asked, asked, asked, attn_mask=mask)[0]
        x = made.transpose(0, 1)
        return x + self.feed(self.norm(x))
