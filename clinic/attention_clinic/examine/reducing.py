"""Spatial reduction: keys and values are made of fewer tokens, those of a smaller image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod

import torch
from torch import Tensor, nn

from attention_clinic.engine.patient import same

IMAGES = (nn.Conv2d, nn.AvgPool2d, nn.MaxPool2d, nn.AdaptiveAvgPool2d, nn.BatchNorm2d)
IMAGES += (nn.InstanceNorm2d, nn.GroupNorm)
IMAGES += (nn.Conv3d, nn.AvgPool3d, nn.MaxPool3d, nn.AdaptiveAvgPool3d, nn.BatchNorm3d)
BETWEEN = (nn.LayerNorm, nn.GELU, nn.ReLU, nn.SiLU)
READS = (nn.Linear, nn.MultiheadAttention)


@dataclass(frozen=True)
class Reducer:
    """Make fewer tokens of those of an image, with the module's own layers.

    Args:
        steps: the layers, in the order of their calls, and whether each gets an image.
        grids: the sides of the image, or of the volume, by the number of its tokens.
    """

    steps: tuple[tuple[nn.Module, bool], ...]
    grids: dict[int, tuple[int, ...]] = field(default_factory=dict)

    @torch.no_grad()
    def __call__(self, tokens: Tensor) -> Tensor:
        """Return the tokens that keys and values are made of, (b, j, e) of (b, n, e)."""
        made = tokens
        for step, of_images in self.steps:
            if of_images and made.ndim == 3:
                made = made.transpose(1, 2).unflatten(2, self.grids[made.shape[1]])
            elif not of_images and made.ndim > 3:
                made = made.flatten(2).transpose(1, 2)
            made = step(made)
        return made.flatten(2).transpose(1, 2) if made.ndim > 3 else made


def reducer_of(
    module: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor, read: Callable[[Tensor], Tensor]
) -> Reducer | None:
    """Return how a module makes fewer tokens for its keys and values, None when it does not.

    Args:
        module: the copy.
        run: calls it.
        x: tokens of an image, (b, n, e).
        read: what the attention reads of them, such as a norm.
    """
    if not any(isinstance(part, IMAGES) for part in module.modules()):
        return None
    steps: list[tuple[nn.Module, bool]] = []
    fewer: list[tuple[int, Tensor]] = []
    # calls that were made once are not made again: their grids are kept with the copy
    grids: dict[int, tuple[int, ...]] = vars(module).setdefault("grids_of_the_clinic", {})

    def listen(part: nn.Module, given: tuple, named: dict[str, object]) -> None:
        keys = (*given[1:2], *(named[name] for name in ("key",) if name in named))
        given = keys if isinstance(part, nn.MultiheadAttention) else given
        t = given[0] if given and isinstance(given[0], Tensor) else None
        if isinstance(part, IMAGES) and t is not None and t.ndim > 3:
            grids[prod(t.shape[2:])] = tuple(t.shape[2:])
        if isinstance(part, READS):
            if t is not None and t.ndim == 3 and len(t) == len(x) and t.shape[1] < x.shape[1]:
                fewer.append((len(steps), t.clone()))
        else:
            steps.append((part, _gets_image(part, t)))

    kinds = (*IMAGES, *BETWEEN, *READS)
    for part in module.modules():
        if isinstance(part, kinds):  # for good: other calls have other grids
            part.register_forward_pre_hook(listen, with_kwargs=True)
    try:
        run(x)
    except Exception:
        return None
    inside = read(x)
    for count, tokens in fewer[:2]:
        for start in range(count):
            reducer = Reducer(tuple(steps[start:count]), grids)
            try:
                if same(reducer(inside), tokens):
                    return reducer
            except Exception:
                continue
    return None


def _gets_image(part: nn.Module, t: Tensor | None) -> bool:
    """Say whether a layer gets an image, channels first; a norm of tokens may turn it itself."""
    if t is None or t.ndim < 4 or not isinstance(part, nn.LayerNorm):
        return isinstance(part, IMAGES) or (t is not None and t.ndim > 3)
    e = part.normalized_shape[-1]
    return t.shape[1] == e != t.shape[-1]
