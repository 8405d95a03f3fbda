"""What a bias of the scores is, by its form, and which numbers of a module hold it.

A bias is held by the parameters without which there is none: each is set to 0 for a moment. What
depends on the offset of two places alone, in a row or in an image, is a relative bias, however the
module looks it up: a table, two tables, a small network.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from math import isqrt

import torch
from torch import Tensor, nn

ALIKE = 1e-5
HOLDERS = 24  # parameters that are set to 0, one after the other


def kind_of(
    observe: Callable[[], Tensor | None],
    module: nn.Module,
    added: Tensor,
    grid: tuple[int, int] | None,
) -> str | None:
    """Return the kind of a bias that parameters of a module hold, None when it has no name.

    Args:
        observe: makes the bias anew, (h, n, n), 0 for the first pair of places.
        module: the copy.
        added: the bias.
        grid: rows and columns of the places, None where nothing says them.
    """
    added = anchored(added)
    held, left = holders(observe, module, added)
    if left is None:
        return None
    n, nothing = added.shape[-1], bool(left.abs().max() <= ALIKE)
    told = nothing or _falls(added)  # of a softplus, or exp, the sign is not learned
    for places in layouts(n, grid) if told else ():
        if by_offset(added, places) and (nothing or by_offset(left, places)):
            return "relative-bias"
    tables = len((added / ALIKE).round().unique(dim=0))  # one for all heads, or one for each
    if sum(p.numel() for p in held) < tables * n * n:
        return None
    if not nothing or not all(_square(p, n) for p in held):
        return None
    doubled = _with(held, lambda: _anchored(observe()), 2.0)
    linear = doubled is not None and bool((doubled - 2 * added).abs().max() <= ALIKE)
    return "position-bias" if linear else None


def _falls(added: Tensor) -> bool:
    """Say whether a bias (h, n, n) is less for tokens that are far, in each head."""
    far, near = torch.tril_indices(added.shape[-1], added.shape[-1], -1)
    away, numbers = (far - near).to(added), added[:, far, near]
    return bool(((numbers - numbers.mean(1, keepdim=True)) * away).sum(1).max() <= 0)


def _square(parameter: Tensor, n: int) -> bool:
    """Say whether a parameter has a number for each pair of n places."""
    return parameter.ndim > 1 and min(parameter.shape[-2:]) >= n


def _anchored(added: Tensor | None) -> Tensor | None:
    return None if added is None else anchored(added)


def anchored(added: Tensor) -> Tensor:
    """Return a bias that is 0 for the first pair of places, where a softmax sees no more of it.

    What is hidden, -inf, is 0, too.
    """
    return (added - added[..., :1, :1]).masked_fill(added.isinf(), 0.0)


def holders(
    observe: Callable[[], Tensor | None], module: nn.Module, added: Tensor
) -> tuple[list[Tensor], Tensor | None]:
    """Return the parameters without which the bias is another, and what it is without all of them.

    Args:
        observe: makes the bias anew.
        module: the copy.
        added: the bias.
    """
    parameters = [p for p in module.parameters() if p.is_floating_point() and p.numel() > 2]
    found = []
    for parameter in parameters[:HOLDERS]:
        left = _with([parameter], observe, 0.0)
        if left is None:
            continue
        if bool((anchored(left) - added).abs().max() > ALIKE):
            found.append(parameter)
    return found, _anchored(_with(found, observe, 0.0)) if found else None


def _with(
    parameters: list[Tensor], observe: Callable[[], Tensor | None], factor: float
) -> Tensor | None:
    """Return what is observed while parameters are multiplied by a factor."""
    kept = [p.clone() for p in parameters]
    try:
        for parameter in parameters:
            parameter.mul_(factor)
        return observe()
    finally:
        for parameter, before in zip(parameters, kept, strict=True):
            parameter.copy_(before)


def layouts(n: int, grid: tuple[int, int] | None) -> Iterator[Tensor]:
    """Yield how n places may lie: (n, 2) rows and columns, NaN for a class token that comes first.

    Args:
        n: how many there are.
        grid: rows and columns, None where nothing says them.
    """
    yield torch.stack([torch.zeros(n), torch.arange(n)], dim=1)
    for first, count in ((False, n), (True, n - 1)):
        side = isqrt(count)
        square = (side, side) if side > 1 and side * side == count else None
        said = grid if grid is not None and grid[0] * grid[1] == count else None
        for rows, columns in dict.fromkeys(g for g in (said, square) if g is not None):
            if min(rows, columns) == 1:
                continue
            places = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).float()
            nowhere = torch.full((1, 2), torch.nan)
            yield torch.cat([nowhere, places]) if first else places


def by_offset(added: Tensor, places: Tensor) -> bool:
    """Say whether a bias depends on the offset of two places alone, and tells all offsets apart.

    Offsets of an image that are not told apart were mixed up, unless they are opposite ones, or
    equal in size: (1, 0) and (0, 1) share nothing.

    Args:
        added: (h, n, n).
        places: (n, 2), NaN for a class token, which may have numbers of its own.
    """
    away = (places[None] - places[:, None]).flatten(0, 1)
    shown = away.isfinite().all(dim=1)
    away, numbers = away[shown], added.flatten(1)[:, shown]
    found = _by_class(numbers, away)
    if found is None:
        return False
    # of a row, far offsets share numbers
    return not bool(places.nan_to_num(0.0).amin(dim=1).any()) or _apart(*found)


def relative_kind(added: Tensor, seen: Tensor, room: int, fixed: Callable[[], bool]) -> str | None:
    """Return what a bias is whose numbers stand in a table of some numbers for each head.

    Args:
        added: (h, n, n).
        seen: (h, n, n), whether a token may look.
        room: how many numbers the table has for each head.
        fixed: says whether the module takes no other number of places.

    Returns:
        relative-bias where it depends on the offset of two places, as they may lie; relative-index
        where it depends on their sum, or does not tell offsets apart though the table could;
        position-bias where each pair has its own; None where it follows no such law.
    """
    n = added.shape[-1]
    shown = seen.all(0).flatten()
    numbers = added.flatten(1)[:, shown]
    mistaken = shared = few = False
    for places in (*layouts(n, None), *boxes(n)):
        ways = product((-1.0, 1.0), repeat=places.shape[1])
        for signs in ways:
            met = (places[None] + torch.tensor(signs) * places[:, None]).flatten(0, 1)[shown]
            inner = met.isfinite().all(dim=1)
            found = _by_class(numbers[:, inner], met[inner])
            if found is None:
                continue
            offsets, mean = found
            if max(signs) > 0:
                mistaken |= bool(offsets.any())
            elif places.shape[1] < 2 or not bool(places.nan_to_num(0.0).amin(dim=1).any()):
                squared = n > 4 and isqrt(n) ** 2 == n and room == (2 * isqrt(n) - 1) ** 2
                # a row: far offsets share numbers; a table for a square has one for each of its
                return "relative-index" if squared and fixed() else "relative-bias"
            elif _apart(offsets, mean):
                return "relative-bias"
            else:
                mistaken, few = True, few or room < len(offsets)
                shared |= room == len(offsets)
    if mistaken:
        return "relative-bias" if few and not shared else "relative-index"
    each = all(len(row.unique()) == len(row) for row in numbers)
    return "position-bias" if each and room >= n * n else None


def one_sided(added: Tensor) -> bool:
    """Say whether one side of a row shares the number of the token itself, and the other does not.

    So T5 counts in its decoder, which never reads the tokens behind.

    Args:
        added: (h, n, n).
    """
    alike = (added - added.diagonal(dim1=1, dim2=2)[..., None]).abs().amax(dim=0) <= ALIKE
    before, behind = (torch.ones_like(alike).tril(-1), torch.ones_like(alike).triu(1))
    return len(alike) > 3 and any(
        bool(alike[shared].all()) and not bool(alike[other].any())
        for shared, other in ((before, behind), (behind, before))
    )


def boxes(n: int) -> Iterator[Tensor]:
    """Yield how n places may lie in an image whose sides differ, or in a film: rows first."""
    sides = [a for a in range(2, n) if n % a == 0]
    for a in sides:
        if a * a != n:
            yield torch.cartesian_prod(torch.arange(a), torch.arange(n // a)).float()
        for b in sides:
            if n % (a * b) == 0 and a * b < n:
                axes = (torch.arange(size) for size in (a, b, n // (a * b)))
                yield torch.cartesian_prod(*axes).float()


def _by_class(numbers: Tensor, classes: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return the classes and their numbers, None where a class has several or each has one.

    Args:
        numbers: (h, p).
        classes: (p, k).
    """
    kinds, which = classes.unique(dim=0, return_inverse=True)
    if len(kinds) == len(which):
        return None
    mean = torch.zeros(len(numbers), len(kinds), dtype=numbers.dtype)
    mean = mean.index_add(1, which, numbers) / torch.bincount(which)
    alike = bool((mean[:, which] - numbers).abs().max() <= ALIKE)
    return (kinds, mean) if alike else None


def _apart(offsets: Tensor, mean: Tensor) -> bool:
    """Say whether offsets have numbers of their own, but for opposite ones and those as far."""
    gaps = (mean[:, :, None] - mean[:, None]).abs().amax(dim=0)
    alike = (gaps <= ALIKE).triu(1).nonzero()
    return all(torch.equal(offsets[a].abs(), offsets[b].abs()) for a, b in alike.tolist())


def slopes_of(added: Tensor, grid: tuple[int, int] | None) -> Tensor | None:
    """Return the slopes of a bias that falls with the distance in an image, None for another.

    Args:
        added: (h, n, n), 0 on its diagonal.
        grid: rows and columns of the places.
    """
    for places in layouts(added.shape[-1], grid):
        apart = (places[None] - places[:, None]).abs()
        for distance in (apart.square().sum(-1).sqrt(), apart.sum(-1), apart.amax(-1)):
            away = distance.nan_to_num(0.0).to(added)
            slopes = -(added * away).sum((1, 2)) / away.square().sum()
            if bool((added + slopes[:, None, None] * away).abs().max() <= ALIKE):
                return slopes if bool((slopes > 0).all()) else None
    return None
