"""Attention through a whole model: rollout, relevance, ablation (chapters 07 and 14)."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from utils.validation import check_shape


def attention_rollout(maps: Sequence[Tensor]) -> Tensor:
    """Follow attention through all layers: row i holds what token i has from each token.

    It counts half of what a token holds as its own (the residual) and half as gathered, with the
    mean of the heads.

    Args:
        maps: the weights of each layer, in running order, as `record_attention` collects them.

    Shape:
        maps    each (b, h, n, n)
        result  (b, n, n), rows sum to 1 where the rows of the maps do

    Raises: ValueError for no maps, or maps that are not square and all alike.
    Source: Abnar and Zuidema 2020; chapters 07 and 14.
    """
    itself = _identity("attention_rollout", maps)
    path = itself
    for weights in maps:
        path = (weights.mean(dim=1) + itself) / 2 @ path
    return path


def relevance(maps: Sequence[Tensor], gradients: Sequence[Tensor]) -> Tensor:
    """Follow, through all layers, only the attention that increases one score.

    Each weight is multiplied by its gradient: about what the score would lose without it. Negative
    products count as 0, heads are averaged, and a token keeps what it holds.

    Args:
        maps: the weights of each layer, in running order.
        gradients: of one score for each sequence or picture, with respect to each of the maps.

    Shape:
        maps, gradients  each (b, h, n, n)
        result           (b, n, n)

    Raises: ValueError for no maps, or maps and gradients that do not fit together.
    Source: Chefer et al. 2021, section 3.1; chapter 14.
    """
    path = _identity("relevance", maps)
    if [weights.shape for weights in maps] != [gradient.shape for gradient in gradients]:
        raise ValueError(
            "relevance: gradients must have the shapes of the maps, got "
            f"{[tuple(g.shape) for g in gradients]} for {[tuple(w.shape) for w in maps]}. "
            "Take torch.autograd.grad(score, list(maps)), recorded with gradients=True."
        )
    for weights, gradient in zip(maps, gradients, strict=True):
        path = path + (weights * gradient).clamp(min=0).mean(dim=1) @ path
    return path


def class_token_attention(paths: Tensor) -> Tensor:
    """Return what the class token has from each patch, as fractions of what it has from all.

    Args:
        paths: as `attention_rollout` and `relevance` return them; the class token comes first.

    Shape:
        paths   (b, n, n)
        result  (b, n - 1), rows sum to 1, or are 0 where it has nothing from any patch

    Raises: ValueError for paths of another shape.
    """
    fix = "Average or choose heads first: weights.mean(dim=1)."
    check_shape("class_token_attention", "paths", paths, "b i j", fix)
    patches = paths[:, 0, 1:]
    total = patches.sum(dim=-1, keepdim=True)
    return patches / total.masked_fill(total == 0, 1.0)


@contextmanager
def ablate_heads(model: nn.Module, heads: Collection[tuple[int, int]]) -> Iterator[None]:
    """Replace the output of heads by 0 while the `with` runs.

    >>> with ablate_heads(model, [(0, 2), (1, 3)]):  # layer 0, head 2 and layer 1, head 3
    ...     logits = model(x)

    Args:
        model: any module with attention layers that `record_attention` reads.
        heads: pairs of layer and head, counted from 0, layers in the order of `model.modules()`.

    Raises: ValueError for a layer or a head that the model does not have.
    Source: Michel et al. 2019, section 2.3; chapter 14.
    """
    layers = [module for module in model.modules() if hasattr(module, "recorded")]
    known = [(n, head) for n, a in enumerate(layers) for head in range(a.num_heads)]
    if unknown := [pair for pair in heads if tuple(pair) not in known]:
        raise ValueError(
            f"ablate_heads: heads must be pairs of layer and head that the model has, got "
            f"{unknown[0]} of {len(layers)} layers. Count both from 0."
        )
    with ExitStack() as stack:
        for n, layer in enumerate(layers):
            gone = [head for at, head in heads if at == n]
            if gone:
                handle = layer.out_proj.register_forward_pre_hook(_silence(gone, layer.num_heads))
                stack.callback(handle.remove)
        yield


def _silence(gone: Sequence[int], num_heads: int):
    """Return a hook that sets to 0 what these heads hand to the output projection."""

    def hook(_layer: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
        (joined,) = inputs  # (b, n, h * d): heads side by side
        parts = joined.unflatten(-1, (num_heads, -1)).clone()
        parts[..., list(gone), :] = 0
        return (parts.flatten(-2),)

    return hook


def _identity(where: str, maps: Sequence[Tensor]) -> Tensor:
    """Return the matrix that leaves a token as it is, after checking the maps."""
    shapes = [tuple(weights.shape) for weights in maps]
    if not shapes or len(set(shapes)) > 1 or len(shapes[0]) != 4 or shapes[0][2] != shapes[0][3]:
        raise ValueError(
            f"{where}: maps must be one (b, h, n, n) for each layer, all alike, got {shapes}. Take "
            "those of self-attention; a Transformer with two sides has three kinds of them."
        )
    return torch.eye(shapes[0][-1], dtype=maps[0].dtype, device=maps[0].device)
