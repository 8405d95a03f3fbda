"""Find what a module adds to its scores, and call it by its name if its own parameters prove it.

On tokens that are all alike, every score of a head is the same number. What the softmax gets beside
that is a bias: it depends on the places only. It counts when other tokens give the same one.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS, VARIANTS
from attention_clinic.engine.modes import Scores
from attention_clinic.engine.patient import Patient
from attention_clinic.engine.unheard import hides_if_asked
from attention_clinic.examine.offsets import kind_of, one_sided, relative_kind, slopes_of
from attention_clinic.examine.windows import Windows, stacked

BLOCKED = -1e4  # a score below this was masked
FAR = -50.0  # what a window adds to a score that belongs to another part of the image lies below
ALIKE = 1e-5


@dataclass(frozen=True)
class Bias:
    """What is added to the scores.

    Args:
        added: (h, n, n), or one for each window (b * w, h, m, m); -inf where a token may not look.
        found: the ids of the variants that it is, and of mistakes in it.
    """

    added: Tensor
    found: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The variants that it is."""
        return tuple(name for name in self.found if name in VARIANTS)

    @property
    def ids(self) -> tuple[str, ...]:
        """The mistakes in it."""
        return tuple(name for name in self.found if name in BUGS)


def bias_of(
    patient: Patient, b: int, n: int, e: int, num_heads: int, turns: bool = False
) -> Bias | None:
    """Return what a module adds to its scores, None when that is nothing or has no name.

    Args:
        patient: the copy of the module.
        b: number of samples.
        n: number of tokens.
        e: their width.
        num_heads: h.
        turns: whether queries and keys are turned by their places.
    """
    found = []
    for seed in (31, 32):
        heard = heard_on(patient, (b, n, e), seed)
        added = None if heard is None else by_head(heard, b, n, num_heads)
        if added is None:
            return None
        found.append(added)
    first, second = found
    seen = first.isfinite()
    strict = _is_past(seen, -1)  # the first token sees nothing then
    if not torch.equal(seen, second.isfinite()) or not (strict or seen.any(dim=-1).all()):
        return None
    # one number for each head may be anything: a softmax does not see it
    first, second = (t - t.masked_fill(~seen, -torch.inf).flatten(1).amax(1).view(-1, 1, 1)
                     for t in (first, second))  # fmt: skip
    alike = bool((first - second)[seen].abs().max() <= ALIKE)
    added = first.masked_fill(~seen, 0.0) if strict else first
    # from the second token on, the tokens before it are to it what all so far are to the first
    first, seen = (t[:, 1:, :-1] if strict else t for t in (first, seen))

    def fixed() -> bool:
        return _is_fixed(patient, b, n, e)

    names = names_of(first, seen, patient.module, fixed=fixed) if alike else None
    if names is None and alike:  # a small network may make the bias of the places
        tables = made_tables(patient, [(b, n, e, seed) for seed in (31, 32)], num_heads)
        names = names_of(first, seen, patient.module, tables, fixed) if tables else None
    if names is None and alike and (strict or bool(seen.all()) or _is_past(seen, 0)):
        grid = patient.layout.grid(n) if patient.layout and patient.layout.grids else None
        names = _held(patient, (b, n, e), num_heads, first, grid, strict)
    if names == ("relative-bias",) and bool(seen.all()) and not hides_if_asked(patient.module):
        names = ("relative-index",) if one_sided(first) else names
    if not names and turns and window_of(seen):
        # the scores of tokens that are turned depend on their places, too: what is left is who sees
        names, added = ("window",), torch.zeros_like(first).masked_fill(~seen, -torch.inf)
    return Bias(added.to(patient.dtype), names) if names else None


def _is_past(seen: Tensor, diagonal: int) -> bool:
    """Say whether tokens see those before them, and themselves where the diagonal is 0."""
    return bool((seen == torch.ones_like(seen[0]).tril(diagonal)).all())


def _is_fixed(patient: Patient, b: int, n: int, e: int) -> bool:
    """Say whether a module takes n tokens, and neither one more nor one less."""
    for count in (n - 1, n + 1):
        try:
            patient.run(patient.tokens(b, count, e))
        except Exception:
            continue
        return False
    return True


def _held(
    patient: Patient,
    shape: tuple[int, int, int],
    num_heads: int,
    added: Tensor,
    grid: tuple[int, int] | None,
    strict: bool,
) -> tuple[str, ...] | None:
    """Return the name of a bias by its form, and by the parameters that hold it, or None."""
    if bool(added.isfinite().all()):
        flat = added - added.diagonal(dim1=1, dim2=2)[..., None]
        slopes = slopes_of(flat, grid)
        tensors = [*patient.module.parameters(), *patient.module.buffers()]
        if slopes is not None and are_held(slopes, [t for t in tensors if t.is_floating_point()]):
            return ("alibi",)

    def observe() -> Tensor | None:
        heard = heard_on(patient, shape, 31)
        found = None if heard is None else by_head(heard, *shape[:2], num_heads)
        return found[:, 1:, :-1] if found is not None and strict else found

    kind = kind_of(observe, patient.module, added, grid)
    return (kind,) if kind else None


def heard_on(patient: Patient, shape: tuple[int, int, int], seed: int) -> list[Tensor] | None:
    """Return what each softmax gets of tokens that are all alike, None where the module fails."""
    b, n, e = shape
    with Scores() as scores:
        try:
            patient.run(patient.tokens(1, 1, e, seed=seed).expand(b, n, e))
        except Exception:
            return None
    return scores.heard


def windowed_bias(
    patient: Patient, shape: tuple[int, int, int], num_heads: int, windows: Windows
) -> Bias | None:
    """Return what a module adds to the scores of its windows, None when that has no name.

    Args:
        patient: the copy of the module.
        shape: samples, tokens and their width.
        num_heads: h.
        windows: those that it cuts its tokens into.
    """

    def observe(seed: int = 31) -> list[Tensor]:
        fitting = [
            t
            for t in heard_on(patient, shape, seed) or ()
            if t.shape[-2:] == windows.near.shape[-2:]
        ]
        return windows.by_head(fitting[0], shape[0], num_heads) if fitting else []

    near = windows.near[:, None]
    for number, (first, second) in enumerate(zip(observe(), observe(32), strict=False)):
        first, second = (t - t[..., :1, :1] for t in (first, second))
        inner = first[0]  # the first window is whole
        apart = [(first - second), first - inner]
        far = first.masked_fill(near, -torch.inf)
        if bool((far > FAR).any()) or any(
            bool(gap.masked_fill(~near, 0.0).abs().max() > ALIKE) for gap in apart
        ):
            continue
        names: tuple[str, ...] = ()
        if bool(inner.abs().max() > ALIKE):

            def whole(number: int = number) -> Tensor | None:
                seen = observe()
                return seen[number][0] if number < len(seen) else None

            shown, square = torch.ones_like(inner).bool(), len({*windows.sides}) == 1
            kind = learned(inner, shown, list(patient.module.parameters()), lambda s=square: s)
            kind = kind or kind_of(whole, patient.module, inner, windows.sides)
            if kind is None:
                continue
            names = (kind,)
        added = first.masked_fill(first < BLOCKED, -torch.inf).to(patient.dtype)
        return Bias(added.repeat(shape[0], 1, 1, 1), ("window", *names))
    return None


def by_head(heard: list[Tensor], b: int, n: int, num_heads: int) -> Tensor | None:
    """Return the scores of the first sample, (h, n, n), None when there are no such scores."""
    fitting = [t.double() for t in heard if t.ndim >= 2 and t.shape[-2:] == (n, n)]
    if len(fitting) == num_heads > 1:
        scores = torch.stack([t.reshape(-1, n, n)[0] for t in fitting])
    elif len(fitting) == 1:
        ways = stacked(fitting[0], b, 1, num_heads) or stacked(fitting[0], 1, 1, num_heads)
        ways = ways or stacked(fitting[0], 1, 1, 1)
        if not ways:
            return None
        scores = ways[0][0].expand(num_heads, n, n)
    else:
        return None
    return scores.masked_fill(scores < BLOCKED, -torch.inf)


def made_tables(
    patient: Patient, calls: list[tuple[int, int, int, int]], num_heads: int
) -> list[Tensor]:
    """Return what layers of a module make for each head whatever the tokens are, (m, h).

    Args:
        patient: the copy of the module.
        calls: samples, tokens, their width and a seed, of each call.
        num_heads: h.
    """
    found: list[list[Tensor]] = []

    def listen(part: nn.Module, given: object, result: object) -> None:
        if isinstance(result, Tensor) and result.ndim > 1 and result.shape[-1] == num_heads:
            found[-1].append(result.detach().reshape(-1, num_heads).double())

    handles = [p.register_forward_hook(listen) for p in patient.module.modules()]
    try:
        for b, n, e, seed in calls:
            found.append([])
            patient.run(patient.tokens(1, 1, e, seed=seed).expand(b, n, e))
    finally:
        for handle in handles:
            handle.remove()
    first, second = found
    same = [a for a, c in zip(first, second, strict=False) if torch.equal(a, c) and len(a) > 1]
    return [made for table in same for made in (table, 16 * torch.sigmoid(table))]


def names_of(
    added: Tensor,
    seen: Tensor,
    module: nn.Module,
    tables: list[Tensor] | None = None,
    fixed: Callable[[], bool] = lambda: False,
) -> tuple[str, ...] | None:
    """Return the names of what is added, () for nothing, None when it has none.

    Args:
        added: (h, n, n), -inf where nothing is seen.
        seen: (h, n, n), whether a token may look.
        module: whose parameters prove it.
        tables: what its layers make, which proves it instead.
        fixed: says whether it takes no other number of tokens.
    """
    apart = bool((seen == ~torch.eye(seen.shape[-1], dtype=torch.bool)).all())
    window = False if apart else window_of(seen)
    if window is None:
        return None
    names = ("no-self",) if apart else ("window",) * window
    rows = added.masked_fill(~seen, 0.0)
    flat = rows - (rows[:, :, :1] if apart else rows.diagonal(dim1=1, dim2=2)[..., None]) * seen
    if flat[seen].abs().max() <= ALIKE:
        return names
    held = [p for p in (*module.parameters(), *module.buffers()) if p.is_floating_point()]
    if is_alibi(flat, seen, held):
        return ("alibi", *names)
    tables = list(module.parameters()) if tables is None else tables
    kind = learned(added, seen, tables, fixed)
    return (kind, *names) if kind else None


def window_of(seen: Tensor) -> bool | None:
    """Say whether what is seen is a window; None when it is neither that nor all nor the past.

    A window of even width has no middle: it reaches one place further to one side. Some tokens may
    see all and be seen by all, as class tokens are; the others have windows then.
    """
    first = seen[0]
    if not bool((seen == first).all()) or not bool(first.diagonal().all()):
        return None
    found = _banded(first)
    if found is None and _in_segments(first):
        return True
    open_to_all = first.all(dim=0) & first.all(dim=1)
    if found is None and bool(open_to_all.any()) and int((~open_to_all).sum()) > 3:
        others = first[~open_to_all][:, ~open_to_all]
        return True if _banded(others) or _in_segments(others) else None
    return found


def _banded(first: Tensor) -> bool | None:
    """Say whether each token sees some places before and behind it; None for another rule.

    Args:
        first: (n, n).
    """
    n = len(first)
    ahead = torch.arange(n)[None, :] - torch.arange(n)[:, None]
    back, forth = -int(ahead[first].min()), int(ahead[first].max())
    steps = [d for d in range(1, n // 2) if max(back, forth) >= 2 * d or d == 1]
    band = (ahead >= -back) & (ahead <= forth)
    if not any(torch.equal(first, band & (ahead % d == 0)) for d in steps):
        return None
    lopsided = 0 < back < n - 1 and forth < n - 1 and abs(back - forth) == 1
    if forth not in (0, back, n - 1) and not lopsided:
        return None
    return 0 < back < n - 1 or not torch.equal(first, band)


def _in_segments(first: Tensor) -> bool:
    """Say whether tokens see those of their segment, or of those the ones before them, (n, n)."""
    causal = not bool(first.triu(1).any())
    return any(
        torch.equal(first, within.tril() if causal else within)
        for m in range(2, len(first))
        for part in (torch.arange(len(first)) // m,)
        for within in (part[:, None] == part[None],)
    )


def is_alibi(flat: Tensor, seen: Tensor, held: list[Tensor]) -> bool:
    """Say whether each head takes a slope of its own, times the distance, from the scores."""
    n = flat.shape[1]
    away = (torch.arange(n)[None, :] - torch.arange(n)[:, None]).abs().to(flat)
    slopes = -(flat * away * seen).sum((1, 2)) / (away**2 * seen).sum((1, 2))
    gap = (flat + slopes[:, None, None] * away)[seen].abs().max()
    if gap > ALIKE or bool((slopes <= 0).any()):
        return False
    return are_held(slopes, held)


def are_held(slopes: Tensor, held: list[Tensor]) -> bool:
    """Say whether slopes are the usual ones, or stand in a tensor of the module."""
    own = any(
        t.numel() >= len(slopes)
        and all(bool(((t.double() - m).abs() < ALIKE).any()) for m in slopes)
        for t in held
    )
    h = len(slopes)
    counted = torch.arange(h, dtype=torch.float64)
    plain = 2.0 ** (-8 * (counted + 1) / h)  # for any h
    ways = (usual_slopes(h), plain, 2.0 ** (-8 * counted / h))  # the last counts its heads from 0
    return own or any(torch.allclose(slopes, way.to(slopes), atol=ALIKE) for way in ways)


def usual_slopes(h: int) -> Tensor:
    """Return the slopes of the ALiBi paper for so many heads."""
    whole = 2 ** math.floor(math.log2(h))
    slopes = [2 ** (-8 * (k + 1) / whole) for k in range(whole)]
    slopes += [2 ** (-4 * (k + 1) / whole) for k in range(0, 2 * (h - whole), 2)]
    return torch.tensor(slopes, dtype=torch.float64)


def learned(
    added: Tensor, seen: Tensor, parameters: list[Tensor], fixed: Callable[[], bool]
) -> str | None:
    """Return the kind of a bias all of whose numbers stand in one parameter, or None."""
    h, n, _ = added.shape
    for parameter in parameters:
        table = parameter.double()
        if table.ndim > 2 and table.shape[-1] >= n and table.shape[-2] >= n:
            kind, tables = "position-bias", table.reshape(-1, table.shape[-2] * table.shape[-1])
        elif table.ndim == 2 and h in table.shape and h < max(table.shape):
            kind, tables = "relative-bias", table if table.shape[0] == h else table.T
        else:
            continue
        if len(tables) in (1, h) and all(
            _stands_in(added[head][seen[head]], tables[head % len(tables)]) for head in range(h)
        ):
            if kind == "relative-bias":
                kind = relative_kind(added, seen, tables.shape[1], fixed)
            return kind
    return None


def _stands_in(numbers: Tensor, row: Tensor) -> bool:
    """Say whether numbers, but for one that is added to all, stand in a row."""
    below, row_up = numbers - numbers.max(), row.sort().values
    starts = row[:512]
    starts = starts[_far_from(row_up, below.min() + starts) < ALIKE]  # the lowest stands there, too
    return any(bool(_far_from(row_up, below + start).max() < ALIKE) for start in starts)


def _far_from(row_up: Tensor, numbers: Tensor) -> Tensor:
    """Return how far each number is from the nearest of a row, which goes up."""
    after = torch.searchsorted(row_up, numbers.contiguous()).clamp(max=len(row_up) - 1)
    near = torch.stack([row_up[after], row_up[(after - 1).clamp(min=0)]])
    return (near - numbers).abs().amin(0)
