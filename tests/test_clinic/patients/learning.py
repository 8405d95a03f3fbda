"""What does not learn: numbers that are cut from the graph, parameters that reach nothing."""

from __future__ import annotations

import torch
from torch import nn

from patients.attention import Loops, Views, ViewsUnscaled
from patients.bank import attention
from patients.blocks import PreNorm, block
from patients.embedding import ByConvolution, embedding
from patients.positions import Adds, adds
from patients.unknown import NearlyRight, unknown

ONE = ((24, 4),)

# --------------------------------------------------------------------------- cut from the graph


@attention("graph-cut", sizes=ONE)
class ProjectsInVain(Views):
    """The layer of queries, keys and values never learns."""

    def heads(self, x):
        with torch.no_grad():
            return super().heads(x)


@attention("graph-cut", sizes=ONE)
class ScoresDetached(Loops):
    """Only values learn."""

    def score(self, q, k):
        return super().score(q, k).detach()


@attention("graph-cut", sizes=ONE)
class RoundsWhatItReturns(Views):
    """Four decimals: no form gives these numbers exactly."""

    def forward(self, x, mask=None):
        return torch.round(super().forward(x, mask), decimals=4)


@attention("scale-missing", "graph-cut", sizes=ONE)
class RoundsInItsPlace(ViewsUnscaled):
    def forward(self, x, mask=None):
        return (1000 * super().forward(x, mask)).round_() / 1000


@attention("graph-cut", sizes=ONE)
class CopiesOfWhatItMade(Loops):
    """The bias of its keys moves nothing, cut off or not."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.toqueries, self.tokeys, self.tovalues = (nn.Linear(e, e) for _ in range(3))

    def projected(self, x):
        return tuple(t.detach().clone() for t in super().projected(x))


@attention("mask-off-by-one", "graph-cut", sizes=ONE)
class KeysDetachedUnderNothing(Loops):
    """The first token sees nothing, and is no number."""

    def score(self, q, k):
        scores = super().score(q, k.detach())
        return scores.masked_fill(torch.ones_like(scores[0]).triu().bool(), float("-inf"))


@attention("scale-other", "graph-cut", sizes=ONE)
class MultipliedByNothingAndCut(Loops):
    """What makes queries and keys is used, and moves nothing."""

    def score(self, q, k):
        return torch.bmm(q, k.mT) * (1 // self.width**0.5)

    def forward(self, tokens, allow_mask=None):
        return super().forward(tokens, allow_mask).detach()


@block("graph-cut", sizes=ONE)
class DropsBetweenCuts(PreNorm):
    """Its dropout drops, and no gradient says so."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        x = x + self.drop(self.attention(self.ln_1(x)).detach()).detach()
        return x + self.ffn(self.ln_2(x))


@attention("graph-cut", sizes=ONE)
class PlacesOfData(NearlyRight):
    """Places that never learn, before what has no name."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.places = nn.Embedding(20, e)

    def forward(self, x):
        return super().forward(x + self.places.weight.data[: x.shape[1]])


@unknown
class AimsAside(NearlyRight):
    """What is cut is a share of numbers that learn."""

    def weigh(self, scores, mask):
        return super().weigh(scores - 0.1 * scores.detach().square(), mask)


@attention("scale-missing", "graph-cut", sizes=ONE)
class UnscaledAndDetached(ViewsUnscaled):
    def join(self, mixed):
        return super().join(mixed).detach()


@embedding("graph-cut")
class CutsWithoutGradients(ByConvolution):
    @torch.no_grad()
    def patches(self, images):
        return super().patches(images)


@block("graph-cut", sizes=ONE)
class StreamDetached(PreNorm):
    """What comes in learns by the parts alone: the stream is cut."""

    def forward(self, x):
        x = x.detach() + self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_2(x))


@block("graph-overwritten", sizes=ONE)
class AddsInItsPlace(PreNorm):
    """The norm keeps what it read for its gradient, and that is written over."""

    def forward(self, x):
        x = x.clone()
        x += self.attention(self.ln_1(x))
        x += self.ffn(self.ln_2(x))
        return x


@attention("graph-overwritten", sizes=ONE)
class DividesInItsPlace(Views):
    """The exponential keeps what it made for its gradient."""

    def weigh(self, scores, mask):
        scores = scores if mask is None else scores.masked_fill(~mask, -torch.inf)
        made = (scores - scores.amax(-1, keepdim=True)).exp_()
        made /= made.sum(-1, keepdim=True)
        return made


class AddsAndCuts(Adds):
    def forward(self, x):
        return super().forward(x).detach().requires_grad_(False)


adds("graph-cut")(AddsAndCuts)

# --------------------------------------------------------------------- parameters without a use


@attention("parameter-unused", sizes=ONE)
class PlacesUnheard(Views):
    """A bias of the places is built, and no score gets it."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.unheard_table = nn.Parameter(torch.zeros(15, h))
        nn.init.normal_(self.unheard_table)


@attention("parameter-unused", sizes=ONE)
class TokenUnheard(Loops):
    """A token is made ready, and what comes of it is thrown away."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.unheard_token = nn.Parameter(torch.zeros(1, 1, e))

    def forward(self, tokens, allow_mask=None):
        _ = self.unheard_token + tokens
        return super().forward(tokens, allow_mask)


@attention("part-unused", sizes=ONE)
class TableUnheard(Views):
    """A table of places that nothing asks for."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.unheard_places = nn.Embedding(15, h)


class Offsets(nn.Module):
    """Two numbers for each distance, which nothing trains."""

    def __init__(self):
        super().__init__()
        self.offsets = nn.Parameter(torch.randn(7, 7), requires_grad=False)

    def forward(self, scores):
        return scores + self.offsets[0, 0]


@attention("part-unused", sizes=ONE)
class FrozenTableUnheard(Views):
    """A table of distances that is not to learn, and that nothing asks for."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.unheard_offsets = Offsets()


@attention(sizes=ONE)
class FrozenTableHeard(Views):
    """It is the same for all scores, and changes no weight."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.heard_offsets = Offsets()

    def weigh(self, scores, mask):
        return super().weigh(self.heard_offsets(scores), mask)


@attention("part-unused", sizes=ONE)
class LayerInVain(Views):
    """What a layer returns is thrown away."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.vain_layer = nn.Linear(e, 2 * e)

    def forward(self, x, mask=None):
        self.vain_layer(x)
        return super().forward(x, mask)


@attention("part-unused", sizes=ONE)
class LayerTooMany(Views):
    """A layer that nothing calls: all that is needed is there without it."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.unheard_layer = nn.Linear(e, 2 * e)


# -------------------------------------------------------------------------- healthy beside them


@attention(sizes=ONE)
class Frozen(Views):
    """Its first layer is not to learn, and said so."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.qkv.requires_grad_(False)


@attention(sizes=ONE)
class LearnsInTraining(Views):
    """While it evaluates, it keeps no graph."""

    def forward(self, x, mask=None):
        with torch.set_grad_enabled(self.training):
            return super().forward(x, mask)


@attention(sizes=ONE)
class StartsAtZero(Views):
    """The factor of what it returns is zero at first."""

    def __init__(self, e, h):
        super().__init__(e, h)
        nn.init.zeros_(self.proj.weight)
        nn.init.zeros_(self.proj.bias)
        nn.init.zeros_(self.qkv.bias)


@attention(sizes=ONE)
class Steadied(Views):
    """The largest score is taken from all, outside the graph: a softmax does not see it."""

    def weigh(self, scores, mask):
        largest = scores.amax(dim=-1, keepdim=True).detach()
        raised = (scores - largest).exp()
        raised = raised if mask is None else raised * mask
        return raised / raised.sum(dim=-1, keepdim=True)
