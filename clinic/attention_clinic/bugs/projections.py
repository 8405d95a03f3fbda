"""Projections, and their split into heads. Which weight is which is read in engine/weights.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from einops import rearrange
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug, observed

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
    "head-own-slice",
    "cuts each token into one slice for every head first: a head projects its own slice only, and "
    "never hears the rest of the token",
    "project the whole token with a (embed_dim, embed_dim) layer first, then split into heads.",
    "02",
    "pbloem/former#13",
    "BrianPulfer/PapersReimplementations, the ViT of 2022",
)
bug(
    "heads-same",
    "uses one head several times: all heads have the same weights, and give the same",
    "build each head anew: nn.ModuleList(Head() for _ in range(num_heads)), not [Head()] * "
    "num_heads.",
    "04",
    "linkedin/Liger-Kernel#269",
    "zalandoresearch/pytorch-vq-vae#2",
    "acids-ircam/ddsp_pytorch#37",
)
bug(
    "out-unused",
    "has an output projection and never calls it",
    "return self.out_proj(joined): what is built in __init__ must be called in forward.",
    "04",
    "sooftware/attentions#1",
    "dome272/VQGAN-pytorch#13",
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


@dataclass(frozen=True)
class Together:
    """A way to split that needs queries, keys and values at once, or that must be undone.

    Args:
        run: makes them, each (r, b, h, n, d) or what it takes for that, of (r, b, n, h * d).
        undo: lays what was mixed out again as (r, b, h, n, d), or returns None where it cannot;
            None where that is how it lies.
        alone: whether it makes one head, which is as wide as all together.
    """

    run: Callable[[Tensor, Tensor, Tensor, Setting], tuple[Tensor, Tensor, Tensor]]
    undo: Callable[[Tensor, Setting], Tensor | None] | None = None
    alone: bool = False


def _split(form: Form, state: State) -> State:
    setting, undo = state["setting"], None
    if isinstance(form.run, Together):
        q, k, v = form.run.run(state["q"], state["k"], state["v"], setting)
        if form.run.undo is not None:
            undo = partial(form.run.undo, s=setting)
        if form.run.alone:
            width = setting.num_heads * setting.head_dim
            setting = replace(setting, num_heads=1, head_dim=width)
            return {"q": q, "k": k, "v": v, "undo": undo, "setting": setting}
        return {"q": q, "k": k, "v": v, "undo": undo}
    made = {name: form.run(state[name], setting.of(name)) for name in "qkv"}
    return {**made, "undo": undo}


SPLIT = Stage("split", _split)


@SPLIT.right
def split(t: Tensor, s: Setting) -> Tensor:
    return t.unflatten(3, (s.num_heads, -1)).transpose(2, 3)


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


def _some(which: str) -> Together:
    def run(q: Tensor, k: Tensor, v: Tensor, s: Setting) -> tuple[Tensor, Tensor, Tensor]:
        parts = {"q": q, "k": k, "v": v}
        return tuple(
            (split_no_transpose if name in which else split)(t, s.of(name))
            for name, t in parts.items()
        )

    return Together(run)


for _which, _words in (
    *(("q", "the queries alone"), ("k", "the keys alone"), ("v", "the values alone")),
    *(("qk", "queries and keys"), ("kv", "keys and values"), ("qv", "queries and values")),
):
    SPLIT.wrong("split-no-transpose", _words, observed)(_some(_which))


def _several(state: State) -> bool:
    """Say whether there are as many heads of each kind, and more than one."""
    setting = state["setting"]
    widths = {state[name].shape[-1] for name in "qkv"}
    return setting.num_heads > 1 and setting.num_kv_heads is None and len(widths) == 1


OF_HEADS = ("temperatures", "mixers", "sinks", "query_norms")


def _one_length(state: State) -> bool:
    """Say whether nothing is known that belongs to heads which would not be heads any more."""
    if state.get("bias") is not None or any(state.get(name) for name in OF_HEADS):
        return False
    return _several(state) and state["q"].shape[2] == state["k"].shape[2]


bug(
    "packed-no-transpose",
    "views packed queries, keys and values (b, n, 3 e) straight with the 3 in front: pieces of "
    "several tokens, and of all three, come together",
    "split the last axis where it stands, then move the axes: "
    'rearrange(t, "b n (k h d) -> k b h n d", k=3, h=num_heads).',
    "02",
    "PKU-YuanGroup/Open-Sora-Plan#171",
    "PKU-YuanGroup/Open-Sora-Plan#257",
    "leaderj1001/Attention-Augmented-Conv2d#25",
)

# the axes of the packed tensor as they are believed to lie, and the detail that says so
BELIEVED = {
    "b k h n d": "(b, n, 3 e) is viewed as (b, 3, h, n, d)",
    "k b h n d": "(b, n, 3 e) is viewed as (3, b, h, n, d)",
    "k b n h d": "(b, n, 3 e) is viewed as (3, b, n, h, d)",
    "b k n h d": "(b, n, 3 e) is viewed as (b, 3, n, h, d)",
    "b h n k d": "(b, n, 3 e) is viewed as (b, h, n, 3 d)",
    "b h k n d": "(b, n, 3 e) is viewed as (b, h, 3, n, d)",
}


def _viewed(axes: str, per_head: bool) -> Together:
    def run(q: Tensor, k: Tensor, v: Tensor, s: Setting) -> tuple[Tensor, Tensor, Tensor]:
        r, b, n, width = q.shape
        sizes = {"b": b, "n": n, "k": 3, "h": s.num_heads, "d": width // s.num_heads}
        lies = "r b n (h k d)" if per_head else "r b n (k h d)"
        packed = torch.stack([q, k, v], dim=3)  # (r, b, n, k, h * d)
        packed = rearrange(packed, f"r b n k (h d) -> {lies}", h=s.num_heads)
        viewed = packed.reshape(r, *(sizes[letter] for letter in axes.split()))
        return tuple(rearrange(viewed, f"r {axes} -> k r b h n d"))

    return Together(run)


for _axes, _words in BELIEVED.items():
    SPLIT.wrong("packed-no-transpose", _words, _one_length)(_viewed(_axes, False))

bug(
    "heads-as-tokens",
    "lets the heads of one token attend to each other: tokens never meet",
    "move the heads before the tokens, (b, n, h, d) -> (b, h, n, d): the last two axes are what is "
    "compared.",
    "04",
    "HabanaAI/vllm-fork#1218",
)


def _by_token(q: Tensor, k: Tensor, v: Tensor, s: Setting) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(rearrange(t, "r b n (h d) -> r b n h d", h=s.num_heads) for t in (q, k, v))


SPLIT.wrong("heads-as-tokens", applies=_one_length)(
    Together(_by_token, lambda mixed, s: rearrange(mixed, "r b n h d -> r b h n d"))
)

bug(
    "heads-not-split",
    "never splits into heads: there is one, as wide as all together",
    "split the last axis after projecting, and let each head compare by itself.",
    "04",
    "LEEYOONHYUNG/transformer-pytorch, repaired by its commit 61d9d3c",
)


def _alone(state: State) -> bool:
    """Say whether one mistake is looked for: with another scale it is a right head, of one."""
    return _one_length(state) and (state.get("total", 0) <= 1 or observed(state))


def _unsplit(q: Tensor, k: Tensor, v: Tensor, s: Setting) -> tuple[Tensor, Tensor, Tensor]:
    return q[:, :, None], k[:, :, None], v[:, :, None]


def _still_one(mixed: Tensor, s: Setting) -> Tensor | None:
    if mixed.shape[2] != 1:  # a bias or a mask of each head made several
        return None
    return rearrange(mixed, "r b 1 n (h d) -> r b h n d", h=s.num_heads)


SPLIT.wrong("heads-not-split", applies=_alone)(Together(_unsplit, _still_one))
SPLIT.wrong(
    "heads-not-split",
    "its one head is scaled for its own width",
    lambda state: observed(state) and _one_length(state),
)(Together(_unsplit, _still_one, alone=True))

bug(
    "split-tokens",
    "cuts the tokens into heads, not their numbers: each head has some of the tokens, and sees no "
    "other",
    "split the last axis: x.chunk(num_heads, dim=-1), not dim=1.",
    "02",
    "found in a published copy of a cascaded attention",
)


def _divides(state: State) -> bool:
    heads = state["setting"].num_heads
    return _one_length(state) and state["q"].shape[2] % heads == 0


def _cut_tokens(q: Tensor, k: Tensor, v: Tensor, s: Setting) -> tuple[Tensor, Tensor, Tensor]:
    return tuple(rearrange(t, "r b (h n) e -> r b h n e", h=s.num_heads) for t in (q, k, v))


def _put_together(mixed: Tensor, s: Setting) -> Tensor:
    tokens = rearrange(mixed, "r b h n e -> r b (h n) e")
    return rearrange(tokens, "r b n (h d) -> r b h n d", h=s.num_heads)


SPLIT.wrong("split-tokens", applies=_divides)(Together(_cut_tokens, _put_together))
