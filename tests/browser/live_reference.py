"""The models of the live page in PyTorch, correct and with wrong forms of the clinic's catalogue.

Every step has the name that website/live/vision_transformer.js gives it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_clinic.catalogue.blocks import RESIDUAL
from attention_clinic.catalogue.forms import Step
from attention_clinic.catalogue.joining import MERGE, OUTPUT
from attention_clinic.catalogue.norms import NORM
from attention_clinic.catalogue.projections import SOURCES, SPLIT
from attention_clinic.catalogue.scores import MIX, SCALE, SOFTMAX
from utils.embedding import patchify
from utils.vision_transformer import VisionTransformer


def form(step: Step, bug: str) -> Callable[..., Tensor]:
    """Return the wrong form of a step that a bug makes, the correct one if it makes none."""
    return next((form.run for form in step.forms if bug in form.ids), step.reference.run)


def dropped(weights: Tensor, state: int) -> Tensor:
    """Set about one weight in ten to 0, by the sequence of bugs.js, and scale the others."""
    kept = []
    for _ in range(weights.numel()):
        state = state * 16807 % 2147483647
        kept.append(state >= 214748364)
    return weights * torch.tensor(kept).view(weights.shape) / 0.9


def normed(x: Tensor, norm: torch.nn.LayerNorm, bug: str) -> Tensor:
    """Apply a LayerNorm over the axis that a bug says."""
    plain = NORM.reference.run
    if bug == "norm-axis":  # of the forms of this bug: over the tokens, with the root of n values
        plain = next(f.run for f in NORM.forms if bug in f.ids and f.detail == "over the tokens")
    return plain(x, norm.eps) * norm.weight + norm.bias


@torch.no_grad()
def trace(model: VisionTransformer, images: Tensor, bug: str = "") -> dict[str, Tensor]:
    """Return every step of a run on images (b, 1, 8, 8), in running order; a bug breaks all blocks.

    Args:
        model: in double precision.
        images: of 8 x 8 pixels.
        bug: an id of the catalogue, or "".
    """
    t: dict[str, Tensor] = {"image": images[:, 0]}
    # the view of a whole image, in strips of four pixels
    t["patches"] = images.reshape(-1, 16, 4) if bug == "patch-view" else patchify(images, 2)
    embedding = model.embedding
    t["projected"] = embedding.proj(t["patches"])
    table = embedding.positions  # (1, n, e)
    first = embedding.class_token.expand(len(images), -1, -1)
    t["with_class_token"] = torch.cat([first, t["projected"]], dim=1)
    if bug == "pos-before-cls":
        t["tokens"] = torch.cat([first, t["projected"] + table[:, :-1]], dim=1)
    elif bug == "pos-batch-axis":  # every picture is alone in its batch
        t["tokens"] = t["with_class_token"] + table[:, :1]
    else:
        t["tokens"] = t["with_class_token"] + table
    x = t["tokens"]
    for number, layer in enumerate(model.encoder.layers):
        made = block(layer, x, bug, number)
        t |= {f"{number}.{name}": value for name, value in made.items()}
        x = made["residual2"]
    t["norm"] = model.encoder.norm(x)
    t["class_token"] = t["norm"][:, :1]
    t["logits"] = model.head(t["class_token"])
    t["probabilities"] = t["logits"].softmax(dim=-1)
    return t


def block(layer: torch.nn.Module, x: Tensor, bug: str, number: int) -> dict[str, Tensor]:
    """Return every step of an encoder block."""
    attn, p = layer.attn, SimpleNamespace(h=layer.attn.num_heads, e=x.shape[2], factor=1.0)
    p.own_dim = p.e // p.h
    t = {"norm1": normed(x, layer.norm1, bug)}
    # the forms know no biases: one more input, always 1, carries them
    ones = F.pad(t["norm1"], (0, 1), value=1.0)
    layers = (attn.q_proj, attn.k_proj, attn.v_proj)
    weights = [torch.cat([one.weight, one.bias[:, None]], dim=1) for one in layers]
    made = form(SOURCES, bug)(ones, *weights)
    for name, side in zip("qkv", made, strict=True):
        t[f"{name}_all"] = side
    split = form(SPLIT, bug)
    t |= {name: split(t[f"{name}_all"], p) for name in "qkv"}
    t["scores"] = form(SCALE, bug)(t["q"] @ t["k"].mT, p)
    if bug == "mask-inverted":  # nothing may be attended to
        t["weights"] = torch.zeros_like(t["scores"])
    else:
        t["weights"] = form(SOFTMAX, bug)(t["scores"])
    if bug == "dropout-eval":
        t["weights"] = torch.stack([dropped(one, 1 + number) for one in t["weights"]])
    t["weighted_sum"] = form(MIX, bug)(t["weights"], t["v"])
    t["joined"] = form(MERGE, bug)(t["weighted_sum"])
    out = form(OUTPUT, bug)(t["joined"], attn.out_proj.weight)
    t["attention_output"] = out if bug == "out-missing" else out + attn.out_proj.bias
    # RESIDUAL's forms take the stream, a norm and a part: here both are known already
    add = form(RESIDUAL, bug)
    first = add if bug == "residual-from-norm" else RESIDUAL.reference.run
    t["residual1"] = first(x, lambda _: t["norm1"], lambda _: t["attention_output"])
    middle = t["residual1"]
    if bug == "norm-missing":
        t["norm2"] = middle
    else:
        t["norm2"] = (layer.norm1 if bug == "norm-shared" else layer.norm2)(middle)
    t["hidden"] = layer.mlp.fc1(t["norm2"])
    t["activated"] = t["hidden"] if bug == "activation-missing" else layer.mlp.act(t["hidden"])
    t["mlp_output"] = layer.mlp.fc2(t["activated"])
    if bug == "activation-last":
        t["mlp_output"] = layer.mlp.act(t["mlp_output"])
    if bug == "residual-from-input":
        t["residual2"] = add(middle, lambda _: t["norm2"], lambda _: t["mlp_output"], start=x)
    else:
        second = add if bug == "residual-missing" else RESIDUAL.reference.run
        t["residual2"] = second(middle, lambda _: t["norm2"], lambda _: t["mlp_output"])
    return t
