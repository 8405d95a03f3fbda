"""What a configuration sets, what norms of queries and keys do without weights, and soft caps."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from patients.attention import Loops, Views, ViewsScaledByEmbed, ViewsSoftmaxQuery
from patients.bank import attention
from patients.masks import padding
from patients.modern import Llama, Meta, MetaSoftmaxQuery
from patients.unknown import unknown
from patients.variants import variant

GROUPED = ("rotary-halves", "grouped-queries")
TWO = ((24, 4), (36, 6))


class Scored(Llama):
    """A Llama whose scores are written out: (b, h, n, d) in, weights out."""

    def factor(self) -> float:
        return self.d**-0.5

    def bent(self, scores: Tensor) -> Tensor:
        return scores

    def hidden(self, scores: Tensor) -> Tensor:
        return scores

    def weigh(self, q: Tensor, k: Tensor) -> Tensor:
        return self.hidden(self.bent(q @ k.mT * self.factor())).softmax(-1)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, -1, self.d).transpose(1, 2) for t in self.project(x))
        q, k, v = self.prepared(q, k, v)
        mixed = self.weigh(q, self.repeated(k)) @ self.repeated(v)
        return self.o_proj(mixed.transpose(1, 2).reshape(b, n, -1))


def past(scores: Tensor) -> Tensor:
    n = scores.shape[-1]
    return scores.masked_fill(~torch.ones(n, n, dtype=torch.bool).tril(), -math.inf)


# ------------------------------------------------------- a factor that the configuration sets


@variant(*GROUPED, "scale-set", sizes=TWO)
class Multiplied(Scored):
    """Granite: attention_multiplier is 1.0 where nobody sets it."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.config = SimpleNamespace(attention_multiplier=1.0)
        self.scaling = self.config.attention_multiplier

    def factor(self):
        return self.scaling


@variant("scale-set", sizes=TWO)
class ByAnotherWidth(Views):
    """Gemma 2: the width is that of an earlier model; the configuration is a dictionary."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.cfg = {"query_pre_attn_scalar": 144}

    def factor(self, e):
        return self.cfg["query_pre_attn_scalar"] ** -0.5


@variant("scale-set", ids=("softmax-query",), sizes=TWO)
class ByAnotherWidthSoftmaxQuery(ByAnotherWidth, ViewsSoftmaxQuery):
    pass


class Numbers:
    """Of a whole project, in one place outside of all modules."""

    heat_temperature = 0.7


numbers = Numbers()


@variant(*GROUPED, "scale-set", sizes=TWO)
class HeatedByTheProject(Scored):
    """A temperature beside the root, read in each call."""

    def factor(self):
        return super().factor() / numbers.heat_temperature


NUMBERS = {"heat": {"softmax_temp": 0.5}}


@variant("scale-set", sizes=TWO)
class HeatedByADictionary(Views):
    def factor(self, e):
        return super().factor(e) / NUMBERS["heat"]["softmax_temp"]


@variant("scale-set", sizes=TWO)
class HeatedByItself(Views):
    def __init__(self, e, h, tau=1.7):
        super().__init__(e, h)
        self.tau = tau

    def factor(self, e):
        return super().factor(e) * self.tau


@attention("scale-other", sizes=TWO)
class HeatedByTheWidth(HeatedByItself):
    """What is called a temperature is another root: the scores are divided twice."""

    def __init__(self, e, h):
        super().__init__(e, h, e**-0.5)


@attention("scale-other", sizes=TWO)
class SetAndNotUsed(Views):
    """The configuration says one number, the code takes another."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.config = SimpleNamespace(attention_multiplier=0.5)

    def factor(self, e):
        return 0.3


@attention("scale-embed", sizes=TWO)
class SetByItself(ViewsScaledByEmbed):
    """A number of the module itself excuses nothing: it is computed, not set."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.softmax_scale = self.attention_multiplier = e**-0.5


def _granite(e, h):
    from transformers import GraniteConfig
    from transformers.models.granite.modeling_granite import GraniteAttention

    config = GraniteConfig(
        hidden_size=e,
        num_attention_heads=h,
        num_key_value_heads=h // 2,
        attn_implementation="eager",
    )
    return GraniteAttention(config, 0)


def _gemma2(e, h):
    from transformers import Gemma2Config
    from transformers.models.gemma2.modeling_gemma2 import Gemma2Attention

    config = Gemma2Config(
        hidden_size=e,
        num_attention_heads=h,
        num_key_value_heads=h // 2,
        head_dim=e // h,
        attn_implementation="eager",
    )
    return Gemma2Attention(config, 0)


def _t5_without_table(e, h):
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5Attention

    return T5Attention(T5Config(d_model=e, num_heads=h, d_kv=e // h))


def _stablelm(e, h):
    from transformers import StableLmConfig
    from transformers.models.stablelm.modeling_stablelm import StableLmAttention

    config = StableLmConfig(
        hidden_size=e,
        num_attention_heads=h,
        num_key_value_heads=h // 2,
        partial_rotary_factor=0.5,
        qk_layernorm=True,
        attn_implementation="eager",
    )
    return StableLmAttention(config, 0)


variant(*GROUPED, "scale-set", sizes=TWO)(_granite)
variant(*GROUPED, "scale-set", "soft-cap", sizes=TWO)(_gemma2)
variant("scale-in-weights")(_t5_without_table)


@variant("scale-in-weights", sizes=((24, 4), (64, 8)))
class SmallQueries(Loops):
    """Nothing says T5 but the weights that the queries start with."""

    def __init__(self, e, h):
        super().__init__(e, h)
        nn.init.normal_(self.tokeys.weight, 0, e**-0.5)
        nn.init.normal_(self.toqueries.weight, 0, (e * e // h) ** -0.5)

    def score(self, q, k):
        return q @ k.mT


@attention("scale-missing", sizes=((24, 4), (64, 8)))
class LargeQueries(SmallQueries):
    def __init__(self, e, h):
        super().__init__(e, h)
        nn.init.normal_(self.toqueries.weight, 0, e**-0.5)


variant(
    *("qk-norm", "qk-norm-layer", "rotary-halves", "rotary-partial", "grouped-queries"),
    sizes=((32, 4),),
)(_stablelm)

# ---------------------------------------------------------------------------------- soft caps


@variant(*GROUPED, "soft-cap", sizes=TWO)
class Bent(Scored):
    """No name says so: the scores never exceed 1."""

    def bent(self, scores):
        return torch.tanh(scores)


@variant("soft-cap", sizes=TWO)
class BentViews(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.softcap = 5.0

    def weigh(self, scores, mask):
        bent = self.softcap * torch.tanh(scores / self.softcap)
        return super().weigh(bent, mask)


variant("soft-cap", mask=padding(0), sizes=TWO)(type("BentViewsPadded", (BentViews,), {}))


@variant("soft-cap", ids=("scale-embed",), sizes=TWO[:1])
class BentScaledByEmbed(BentViews, ViewsScaledByEmbed):
    pass


@attention("cap-missing", sizes=TWO[:1])
class ForgotToBend(Scored):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.config = SimpleNamespace(attn_logit_softcapping=50.0)


@attention("cap-missing", sizes=TWO)
class FusedWithoutCap(Views):
    """The fused kernel takes no cap."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.cfg = {"attention_logit_cap": 20.0, "final_logit_softcapping": 30.0}

    def forward(self, x):
        return self.proj(self.join(F.scaled_dot_product_attention(*self.heads(x))))


@attention(sizes=TWO)
class CapOfTheHead(FusedWithoutCap):
    """A cap of the scores over the vocabulary is none of the attention's."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.cfg = {"final_logit_softcapping": 30.0}


@attention("cap-after-mask", sizes=TWO[:1])
class BentAfterThePast(Bent):
    def weigh(self, q, k):
        return self.bent(past(q @ k.mT * self.factor())).softmax(-1)


@attention("cap-after-mask", sizes=TWO)
class BentFarAfterThePast(Views):
    """With a cap of 50 nothing shows until the scores reach it."""

    cap = 50.0

    def forward(self, x):
        q, k, v = self.heads(x)
        scores = past(q @ k.mT * self.factor(x.shape[-1]))
        weights = (self.cap * torch.tanh(scores / self.cap)).softmax(-1)
        return self.proj(self.join(weights @ v))


@variant("soft-cap", sizes=TWO)
class BentFarBeforeThePast(BentFarAfterThePast):
    def forward(self, x):
        q, k, v = self.heads(x)
        scores = self.cap * torch.tanh(q @ k.mT * self.factor(x.shape[-1]) / self.cap)
        return self.proj(self.join(past(scores).softmax(-1) @ v))


@attention("cap-after-mask", mask=padding, sizes=TWO)
class BentAfterPadding(Loops):
    """-1e9 becomes -3."""

    def block(self, scores, allow, head):
        scores = scores if allow is None else super().block(scores, allow, head)
        return 3.0 * torch.tanh(scores / 3.0)


# ------------------------------------------------------- norms of queries and keys without weights


@variant("qk-norm", *GROUPED, sizes=TWO)
class NormedByFunction(Llama):
    """modded-nanogpt, nanochat."""

    def normalised(self, q, k, v):
        return F.rms_norm(q, (q.shape[-1],)), F.rms_norm(k, (k.shape[-1],)), v


@variant("qk-norm", "rotary-pairs", "grouped-queries", sizes=TWO)
class NormedByHand(Meta):
    def prepared(self, xq, xk, xv, turns):
        xq, xk = (t * torch.rsqrt(t.square().mean(-1, keepdim=True) + 1e-6) for t in (xq, xk))
        return super().prepared(xq, xk, xv, turns)


@variant("qk-norm", "rotary-pairs", "grouped-queries", ids=("softmax-query",), sizes=TWO[:1])
class NormedByHandSoftmaxQuery(NormedByHand, MetaSoftmaxQuery):
    pass


class Bare(nn.Module):
    """A norm that has nothing to learn."""

    def forward(self, t: Tensor) -> Tensor:
        return F.layer_norm(t, t.shape[-1:])


@variant("qk-norm", "qk-norm-layer", sizes=TWO)
class NormedByModule(Views):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.q_norm, self.k_norm = Bare(), Bare()

    def heads(self, x):
        q, k, v = super().heads(x)
        return self.q_norm(q), self.k_norm(k), v


@attention(sizes=TWO)
class NormedBefore(Views):
    """A norm of the tokens is none of queries and keys, and one without weights has no name."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.first = nn.LayerNorm(e, elementwise_affine=False)

    def forward(self, x, mask=None):
        return super().forward(self.first(x), mask)


@variant("cosine", sizes=TWO)
class Cosine(Views):
    """Swin V2: a temperature for each head, its logarithm learned."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.logit_scale = nn.Parameter(torch.log(10 * torch.ones(h, 1, 1)))

    def heads(self, x):
        q, k, v = super().heads(x)
        return F.normalize(q, dim=-1), F.normalize(k, dim=-1), v

    def factor(self, e):
        return self.logit_scale.clamp(max=math.log(100)).exp()


@variant("cosine", *GROUPED, sizes=TWO)
class CosineByHand(Scored):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.scale = 8

    def prepared(self, q, k, v):
        q, k, v = self.rotated(q, k, v)
        return q / q.norm(dim=-1, keepdim=True), k / k.norm(dim=-1, keepdim=True), v

    def factor(self):
        return self.scale


@variant("cosine", ids=("softmax-query",), sizes=TWO[:1])
class CosineSoftmaxQuery(Cosine, ViewsSoftmaxQuery):
    pass


# ----------------------------------------------------------- a window beside rotary positions


@variant(*GROUPED, "window", sizes=TWO)
class WindowOfTurned(Scored):
    def hidden(self, scores):
        n = scores.shape[-1]
        back = torch.arange(n)[:, None] - torch.arange(n)
        return scores.masked_fill((back < 0) | (back > 2), -math.inf)


@variant("grouped-queries", "window", ids=("rotary-values",), sizes=TWO[:1])
class WindowOfTurnedValues(WindowOfTurned):
    def rotated(self, q, k, v):
        q, k, v = super().rotated(q, k, v)
        return q, k, self.turn(v, self.angles(v, v.shape[2]))


# ----------------------------------------------------------------------- and what is none of them


@unknown
class BentOtherwise(Bent):
    """Not a tanh."""

    def bent(self, scores):
        return torch.atan(scores)


@unknown
class BentTwice(Bent):
    def bent(self, scores):
        return torch.tanh(torch.tanh(scores))


@unknown
class HalfNormed(NormedByFunction):
    """Keys only."""

    def normalised(self, q, k, v):
        return q, F.rms_norm(k, (k.shape[-1],)), v


@unknown
class WindowOfHoles(WindowOfTurned):
    """A token does not see the one before it."""

    def hidden(self, scores):
        n = scores.shape[-1]
        back = torch.arange(n)[:, None] - torch.arange(n)
        return super().hidden(scores).masked_fill(back == 1, -math.inf)


@variant(*GROUPED, ids=("scale-other",), sizes=TWO[:1])
class TurnedAndScaledByANumber(Scored):
    """An arbitrary factor beside rotary positions."""

    def factor(self):
        return 0.2718


@variant(*GROUPED, sizes=TWO)
class TurnedFromZero(Scored):
    """The largest score of each row is taken away first, as a stable softmax does."""

    def hidden(self, scores):
        scores = past(scores)
        return scores - scores.amax(dim=-1, keepdim=True).detach()


@variant(*GROUPED, ids=("norm-missing",), sizes=TWO[:1])
class TurnedFromZeroWithoutNorm(TurnedFromZero):
    """PaLM-pytorch: the norm is called behind the projections, and nothing uses it."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.before = nn.LayerNorm(e)

    def forward(self, x, mask=None):
        y = super().forward(x)
        x = self.before(x)
        return y
