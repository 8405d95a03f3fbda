"""Attention: projections of queries, keys and values, and the split into heads.

A rule (`applies`) is a condition on fields of the program that was read off a run. A form whose
rule holds is proposed; it is reported only if the program with it gives the module's own numbers.
"""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor

from attention_clinic.catalogue.forms import Step, bug, variant

bug("""
projection-unused, chapter 02
projects queries, keys or values and continues with the input: nothing uses the result of the
layers
Fix: split the result of the layers: q = self.split(self.w_q(x)), not q = self.split(x).
Seen: roytravel/paper-implementation, transformer/transformer.py;
VrajPatel105/Transformer-Implementation-from-scratch-with-custom-dataset, model.py
Evidence: the numbers that are compared are those of the tokens

projection-shared, chapter 02
projects queries with the layer of the keys or the values
Fix: project queries, keys and values with a layer of their own each.
Seen: stevezheng23/sequence_labeling_tf#81; stevezheng23/reading_comprehension_tf#284

value-from-key, chapter 02
projects the values with the key layer
Fix: project the values with a layer of their own.
Seen: yflyzhang/AnnotatedTransformer#1

projection-bent, chapter 02
applies an activation function to queries, keys and values: none of their numbers is negative
Fix: project linearly: nn.Linear alone, without nn.ReLU after it.
Seen: hanxiao/tf-nlp-blocks#1; Kyubyong/transformer#4; Kyubyong/transformer#49;
CyberZHG/keras-multi-head#8
""")
SOURCES = Step("projections")


@SOURCES.correct
def project(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return x @ wq.mT, x @ wk.mT, x @ wv.mT


@SOURCES.wrong("projection-unused", lambda p: p.bare and p.idle_layers)
def project_nothing(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor) -> tuple[Tensor, ...]:
    return x, x, x


@SOURCES.wrong("projection-shared", lambda p: p.shares("q", "k") or p.shares("q", "v"))
def project_queries_as_keys(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor) -> tuple[Tensor, ...]:
    return x @ wk.mT, x @ wk.mT, x @ wv.mT


@SOURCES.wrong("value-from-key", lambda p: p.shares("k", "v") and not p.shares("q", "k"))
def project_values_as_keys(x: Tensor, wq: Tensor, wk: Tensor, wv: Tensor) -> tuple[Tensor, ...]:
    return x @ wq.mT, x @ wk.mT, x @ wk.mT


ACTIVATION = Step("activation")


@ACTIVATION.correct
def linear(t: Tensor) -> Tensor:
    return t


@ACTIVATION.wrong("projection-bent", lambda p: any(s.activation for s in p.sides.values()))
def activated(t: Tensor) -> Tensor:
    return t.relu()


bug("""
head-shared-projection, chapter 02
splits first, then projects all heads with one (head_dim, head_dim) layer
Fix: project with an (embed_dim, embed_dim) layer first, then split into heads.
Seen: aladdinpersson/Machine-Learning-Collection#3; MarcoMeter/episodic-transformer-memory-ppo#22

head-own-slice, chapter 02
cuts each token into one slice for every head first: a head projects its own slice only, and does
not depend on the rest of the token
Fix: project the whole token with an (embed_dim, embed_dim) layer first, then split into heads.
Seen: pbloem/former#13; BrianPulfer/PapersReimplementations, the ViT of 2022

heads-same, chapter 04
uses one head several times: all heads have the same weights and give the same result
Fix: build each head separately: nn.ModuleList(Head() for _ in range(num_heads)), not [Head()] *
num_heads.
Seen: linkedin/Liger-Kernel#269; zalandoresearch/pytorch-vq-vae#2; acids-ircam/ddsp_pytorch#37

groups-order, chapter 13
gives neighbouring heads of queries different heads of keys: 0, 1, 0, 1 instead of 0, 0, 1, 1
Fix: repeat each head of keys and values in its place: k.repeat_interleave(times, dim=1), not
k.repeat(1, times, 1, 1).
Seen: onnx/onnx#7274; ekzhang/jax-js#180; apple/axlearn#842
""")
variant("""
grouped-queries, chapter 13
lets neighbouring heads of queries share one head of keys and values
In: Llama, Qwen, Mistral

multi-query, chapter 13
lets all heads of queries share one head of keys and values
In: PaLM, Falcon

class-attention, chapter 07
lets one token attend, and returns that token alone: the class token, mostly
In: CaiT, VOLO, CrossViT
""")
HEADS = Step("heads")


@HEADS.correct
def project_then_split(x: Tensor, w: Tensor, h: int) -> Tensor:
    return rearrange(x @ w.mT, "b n (h d) -> b h n d", h=h)


@HEADS.wrong("head-shared-projection", lambda p: p.layers == "head-shared-projection")
def split_then_project(x: Tensor, w: Tensor, h: int) -> Tensor:
    return rearrange(x, "b n (h d) -> b h n d", h=h) @ w.mT


@HEADS.wrong("head-own-slice", lambda p: p.layers == "head-own-slice")
def project_slices(x: Tensor, w: Tensor, h: int) -> Tensor:
    return torch.stack([t @ one.mT for t, one in zip(x.chunk(h, -1), w, strict=True)], 1)


@HEADS.wrong("heads-same", lambda p: p.layers == "heads-same")
def one_head_again(x: Tensor, w: Tensor, h: int) -> Tensor:
    return torch.stack([x @ w.mT] * h, dim=1)


GROUPS = Step("groups")


@GROUPS.correct
def own_keys(k: Tensor, times: int) -> Tensor:
    return k


@GROUPS.variant("grouped-queries", lambda p: p.groups == "grouped" and p.kv_heads > 1)
def neighbours_share(k: Tensor, times: int) -> Tensor:
    return k.repeat_interleave(times, dim=1)


@GROUPS.variant("multi-query", lambda p: p.groups == "grouped" and p.kv_heads == 1)
def all_share(k: Tensor, times: int) -> Tensor:
    return k.expand(-1, times, -1, -1)


@GROUPS.wrong("groups-order", lambda p: p.groups == "groups-order")
def strangers_share(k: Tensor, times: int) -> Tensor:
    return k.repeat(1, times, 1, 1)


bug("""
split-no-transpose, chapter 02
views (b, n, e) directly as (b, h, n, d), so that a head holds numbers of several tokens
Fix: split the last axis first: rearrange(t, "b n (h d) -> b h n d", h=num_heads).
Seen: reczoo/FuxiCTR#30; hyunwoongko/transformer#15; zhouhaoyi/Informer2020#59;
649453932/Chinese-Text-Classification-Pytorch#53

heads-as-tokens, chapter 04
lets the heads of one token attend to each other: tokens never meet
Fix: move the heads before the tokens, (b, n, h, d) -> (b, h, n, d): the product compares the last
two axes.
Seen: HabanaAI/vllm-fork#1218

heads-not-split, chapter 04
never splits into heads: there is one, as wide as all together
Fix: split the last axis after the projection, so that each head compares separately.
Seen: LEEYOONHYUNG/transformer-pytorch, fixed by its commit 61d9d3c

batch-first, chapter 04
reads (b, n, e) as (n, b, e): each token attends to the same position of the other samples
Fix: build the attention with batch_first=True, or attend over axis 1.
Seen: om-ai-lab/OmDet#19; IBM/TabFormer#14
""")
SPLIT = Step("split")


@SPLIT.correct
def split(t: Tensor, p) -> Tensor:
    return rearrange(t, "b n (h d) -> b h n d", h=p.h)


@SPLIT.wrong("split-no-transpose", lambda p: p.split == "split-no-transpose")
def split_by_view(t: Tensor, p) -> Tensor:
    return t.reshape(t.shape[0], p.h, t.shape[1], t.shape[2] // p.h)


@SPLIT.wrong("heads-as-tokens", lambda p: p.split == "heads-as-tokens")
def split_without_moving(t: Tensor, p) -> Tensor:
    return rearrange(t, "b n (h d) -> b n h d", h=p.h)


@SPLIT.wrong("heads-not-split", lambda p: p.split == "heads-not-split")
def one_wide_head(t: Tensor, p) -> Tensor:
    return t[:, None]


@SPLIT.wrong("batch-first", lambda p: p.split == "batch-first")
def split_over_samples(t: Tensor, p) -> Tensor:
    return rearrange(t, "b n (h d) -> n h b d", h=p.h)
