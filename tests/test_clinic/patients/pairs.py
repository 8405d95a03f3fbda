"""Two mistakes at once, and a batch of one."""

from __future__ import annotations

from collections.abc import Callable

import torch

from patients.attention import (
    Loops,
    LoopsMerge,
    LoopsScaledByEmbed,
    LoopsSoftmaxQuery,
    LoopsSplit,
    LoopsUnscaled,
    LoopsValueFromKey,
    SharedLoops,
    TwoLayers,
    Views,
    ViewsDropoutEval,
    ViewsMerge,
    ViewsMergeBatch,
    ViewsNoOut,
    ViewsScaledByEmbed,
    ViewsSoftmaxBatch,
    ViewsSoftmaxHeads,
    ViewsSoftmaxQuery,
    ViewsSplit,
    ViewsUnscaled,
)
from patients.bank import SIZES, attention
from patients.healthy import EinsumParameters, ModulesByHead
from patients.masks import LoopsMaskInverted, ViewsMaskMultiply, padding

# ----------------------------------------------------------------------------------------- pairs


def pair(*ids: str, sizes: tuple = SIZES[:4], **options) -> Callable:
    return attention(*ids, sizes=sizes, **options)


@pair("scale-embed", "merge-no-transpose")
class Pair1(ViewsScaledByEmbed, ViewsMerge):
    pass


@pair("scale-missing", "merge-no-transpose")
class Pair2(LoopsUnscaled, LoopsMerge):
    pass


@pair("scale-missing", "softmax-query")
class Pair3(ViewsUnscaled, ViewsSoftmaxQuery):
    pass


@pair("scale-embed", "softmax-query")
class Pair4(LoopsScaledByEmbed, LoopsSoftmaxQuery):
    pass


@pair("split-no-transpose", "merge-no-transpose")
class Pair5(ViewsSplit, ViewsMerge):
    pass


@pair("split-no-transpose", "scale-missing")
class Pair6(LoopsSplit, LoopsUnscaled):
    pass


@pair("out-missing", "scale-embed", out_proj=True)
class Pair7(ViewsNoOut, ViewsScaledByEmbed):
    pass


@pair("value-from-key", "scale-missing")
class Pair8(LoopsValueFromKey, LoopsUnscaled):
    pass


@pair("scale-embed", "dropout-eval")
class DropsKeysByDraws(ViewsScaledByEmbed):
    def weigh(self, scores, mask):
        drawn = torch.bernoulli(torch.full_like(scores, 0.2))
        return super().weigh(scores + drawn * -1e12, mask)


@pair("scale-embed", "dropout-eval")
class Pair9(ViewsScaledByEmbed, ViewsDropoutEval):
    pass


@pair("softmax-heads", "merge-batch-head")
class Pair10(ViewsSoftmaxHeads, ViewsMergeBatch):
    pass


@pair("scale-embed", "mask-multiply", mask=padding, also=(("scale-embed", "mask-tiny"),))
class Pair11(ViewsScaledByEmbed, ViewsMaskMultiply):
    pass


@pair("merge-no-transpose", "mask-inverted", mask=padding)
class Pair12(LoopsMerge, LoopsMaskInverted):
    pass


@pair("head-shared-projection", "scale-missing")
class Pair13(LoopsUnscaled, SharedLoops):
    pass


# ----------------------------------------------------------------------------- three at once


@pair("scale-embed", "softmax-query", "merge-no-transpose", sizes=SIZES[:2])
class ThreeMistakes(ViewsScaledByEmbed, ViewsSoftmaxQuery, ViewsMerge):
    pass


@pair("split-no-transpose", "scale-missing", "merge-no-transpose", sizes=SIZES[:1])
class ThreeInLoops(LoopsSplit, LoopsUnscaled, LoopsMerge):
    pass


# ------------------------------------------------------------------------------- a batch of one

for _make in (Views, Loops, EinsumParameters, ModulesByHead, ViewsMergeBatch):
    attention(size=(1, 6))(type(f"{_make.__name__}_alone", (_make,), {}))
for _make, _id, _also in (
    (ViewsScaledByEmbed, "scale-embed", ()),
    (LoopsMerge, "merge-no-transpose", (("merge-batch-head",),)),
    (ViewsSplit, "split-no-transpose", ()),
    (LoopsSoftmaxQuery, "softmax-query", ()),
    (TwoLayers, "value-from-key", ()),
):
    attention(_id, size=(1, 6), sizes=SIZES[:4], also=_also)(
        type(f"{_make.__name__}_alone", (_make,), {})
    )
attention("softmax-batch", size=(1, 6), sizes=SIZES[:4], also=(("batch-first",),))(
    type("ViewsSoftmaxBatch_alone", (ViewsSoftmaxBatch,), {})
)
