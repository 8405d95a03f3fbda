"""Which numbers of an image reach which token: seen by changing each, however the image was cut."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

MOST = 4096  # numbers of an image that are changed one by one
AT_ONCE = 512  # images of one call


def reached(run: Callable[[Tensor], Tensor], image: Tensor, n: int) -> Tensor | None:
    """Return the token that each number of an image reaches, None where one reaches several.

    Args:
        run: makes tokens of images; a class token may stand in front.
        image: to begin with.
        n: the number of tokens.

    Shape:
        image   (1, c, H, W)
        result  (c, H, W)
    """
    before = run(image)
    if image.numel() > MOST or before.ndim != 3 or before.shape[1] - n not in (0, 1):
        return None
    owners = []
    for numbers in torch.arange(image.numel()).split(AT_ONCE):
        changed = image.repeat(len(numbers), 1, 1, 1)
        changed.flatten(1)[torch.arange(len(numbers)), numbers] += 1.0
        moved = ((run(changed) - before).abs().amax(dim=2) > 1e-9)[:, -n:]
        if bool((moved.sum(dim=1) != 1).any()):
            return None
        owners.append(moved.int().argmax(dim=1))
    return torch.cat(owners).view(image.shape[1:])


def mistaken(owner: Tensor, n: int) -> tuple[str, str] | None:
    """Return the bug of a cut and what it says, None where tokens hold rectangles of the image.

    Args:
        owner: the token that each number reaches.
        n: the number of tokens.

    Shape:
        owner  (c, H, W)
    """
    c = owner.shape[0]
    if len(owner.unique()) != n or len(owner.flatten().bincount().unique()) > 1:
        return None
    spans, channels = [], set()
    for token in range(n):
        own = owner == token
        rows, columns = own.any(dim=(0, 2)).nonzero(), own.any(dim=(0, 1)).nonzero()
        sides = [int(t.max() - t.min()) + 1 for t in (rows, columns)]
        spans.append(sides[0] * sides[1] * c == int(own.sum()))
        channels.add(int(own.any(dim=(1, 2)).sum()))
    if all(spans):
        return None
    for laid in (owner.flatten(), owner.permute(1, 2, 0).flatten()):
        if int((laid.diff() != 0).sum()) == n - 1:
            return "patch-view", ""
    few = min(channels)
    said = f"a token holds numbers of {few} of {c} channels" if few < c else ""
    return "patch-channel-mix", said or "a token holds numbers from all over the image"
