"""Projections, and their split into heads. Which weight is which is read in engine/weights.py."""

from __future__ import annotations

from dataclasses import dataclass, replace

from einops import rearrange
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug

bug(
    "value-from-key",
    "projects the values with the key layer",
    "project the values with a layer of their own.",
    "02",
    "yflyzhang/AnnotatedTransformer#1",
)
bug(
    "projection-shared",
    "projects queries with the layer of the keys or the values",
    "project queries, keys and values with a layer of their own each.",
    "02",
    "stevezheng23/sequence_labeling_tf#81",
    "stevezheng23/reading_comprehension_tf#284",
)
bug(
    "head-shared-projection",
    "splits first, then projects all heads with one (head_dim, head_dim) layer",
    "project with a (embed_dim, embed_dim) layer first, then split into heads.",
    "02",
    "aladdinpersson/Machine-Learning-Collection#3",
    "MarcoMeter/episodic-transformer-memory-ppo#22",
)
bug(
    "out-missing",
    "has no output projection",
    "pass the joined heads through one more nn.Linear(embed_dim, embed_dim).",
    "04",
    "Kyubyong/transformer#17",
    "stevezheng23/sequence_labeling_tf#83",
    "dome272/VQGAN-pytorch#23",
    "ethen8181/machine-learning#13",
)

# --------------------------------------------------------------- tokens: (r, b, n, f), f free


def _laid_out(form: Form, state: State) -> State:
    return {name: form.run(state[name]) for name in "qkv"} | {"back": form.run}


TOKENS = Stage("tokens", _laid_out)


@TOKENS.right
def tokens(t: Tensor) -> Tensor:
    return t


bug(
    "batch-first",
    "reads (b, n, e) as (n, b, e): each token attends to the same place of the other samples",
    "build the attention with batch_first=True, or attend over axis 1.",
    "04",
    "om-ai-lab/OmDet#19",
    "IBM/TabFormer#14",
)


def _as_many(state: State) -> bool:
    return state["q"].shape[2] == state["k"].shape[2]  # the samples are to fit each other


@TOKENS.wrong(
    "batch-first",
    "if it is meant to take (n, b, e), call it so: "
    "call=lambda m, x: m(x.transpose(0, 1)).transpose(0, 1)",
    _as_many,
)
def tokens_batch_first(t: Tensor) -> Tensor:
    return t.transpose(1, 2)


# --------------------------------------------- split: (r, b, n, h * d) -> (r, b, h, n, d)


@dataclass(frozen=True)
class Setting:
    """What a form may know beside its tensors.

    Args:
        num_heads: h.
        embed_dim: e, the width of a token.
        head_dim: d, the width of one head.
        num_kv_heads: g, the heads of keys and values; None where they are as many.
    """

    num_heads: int
    embed_dim: int
    head_dim: int
    num_kv_heads: int | None = None

    def of(self, name: str) -> Setting:
        """Return the setting of queries, keys or values."""
        if name == "q" or self.num_kv_heads is None:
            return self
        return replace(self, num_heads=self.num_kv_heads)


def _split(form: Form, state: State) -> State:
    return {name: form.run(state[name], state["setting"].of(name)) for name in "qkv"}


SPLIT = Stage("split", _split)


@SPLIT.right
def split(t: Tensor, s: Setting) -> Tensor:
    return rearrange(t, "r b n (h d) -> r b h n d", h=s.num_heads)


bug(
    "split-no-transpose",
    "views (b, n, e) straight as (b, h, n, d), so that a head holds pieces of several tokens",
    'split the last axis first: rearrange(t, "b n (h d) -> b h n d", h=num_heads).',
    "02",
    "reczoo/FuxiCTR#30",
    "hyunwoongko/transformer#15",
    "zhouhaoyi/Informer2020#59",
    "649453932/Chinese-Text-Classification-Pytorch#53",
)


@SPLIT.wrong("split-no-transpose")
def split_no_transpose(t: Tensor, s: Setting) -> Tensor:
    r, b, n, width = t.shape
    return t.reshape(r, b, s.num_heads, n, width // s.num_heads)
