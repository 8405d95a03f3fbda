"""What a module does with what its heads mixed, step by step: the output layer, what is added."""

from __future__ import annotations

from contextlib import suppress
from itertools import product

import torch.nn.functional as F
from torch import Tensor

from attention_clinic.bugs.wirings import NORM_FORMS
from attention_clinic.engine.origins import Origin, Pool, features
from attention_clinic.engine.products import Event
from attention_clinic.examine.part_kinds import EPS, norm_weight
from attention_clinic.examine.score_law import kind_of_places, mixed_law
from attention_clinic.examine.shells import doubled_shells, shells_of
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.traced import Lost, Run, Side, by_head

OUT_BENT = "out-bent"
ALONE = "no output projection"
BENDS = {"gelu": F.gelu, "hardswish": F.hardswish, "relu": F.relu, "silu": F.silu}


def ended(
    subject: Subject, run: Run, mixed: Tensor, values: Side, weights: Tensor
) -> tuple[list[str], tuple[str, ...]]:
    """Return the names of what is done with what heads mixed, and of what stands around."""
    b, h, n, d = mixed.shape
    pool, e = Pool(run.pool.close), run.x.shape[2]
    pool.add(mixed.transpose(1, 2).flatten(2), [Origin(0, column) for column in range(h * d)])
    pool.add(run.x, [Origin(-1, column) for column in range(e)])
    for event in reversed(run.events):
        if event.kind not in ("layer", "product"):
            continue
        given = event.given[0]
        made = event.made
        if event.said[:1] == ("einsum",):
            if event.said[1]:
                continue
            made = event.said[2]
        read, out = features(given, b, n), features(made, b, n)
        if read is None or out is None or read.shape[2] < h * d:
            continue
        names, origins = _joined(pool, read, mixed, weights)
        bent = ""
        if origins is None and any(other.kind == "fixed" for other in run.events):
            bent, origins = _bent(mixed, pool, read)
        if origins is None and _normed(mixed, read, run.pool.close):
            names, origins = ["sub-norm"], pool.origins[: h * d]
        if origins is None:
            continue
        columns = [o.column for o in origins if o.layer == 0]
        beside = [o.column for o in origins if o.layer < 0]
        if sorted(columns) != list(range(h * d)) or (beside and sorted(beside) != list(range(e))):
            continue
        names += ["query-beside"] * bool(beside)
        out = _fixed(run, out)
        try:
            return names, (_around(subject, run, out), bent)
        except Lost:
            for name, bend in BENDS.items():
                with suppress(Lost):
                    words = f"{_around(subject, run, bend(out))}; {name} behind the output layer"
                    return [*names, OUT_BENT], (words, bent)
            own = values.heads.transpose(1, 2).flatten(2)
            if values.kept or own.shape != out.shape:
                raise
            return [*names, "values-added"], (_around(subject, run, out + own),)
    if h > 1 and subject.options.out_proj is True:
        raise Lost
    words = "no output projection, as one head needs none" if h == 1 else ALONE
    return [], (_around(subject, run, pool.whole[0]), words)


def _joined(
    pool: Pool, read: Tensor, mixed: Tensor, weights: Tensor
) -> tuple[list[str], list[Origin] | None]:
    """Return where each number comes from that the output layer reads, None where it is lost."""
    hits = pool.find(read)
    if hits.all():
        return [], [o for o in hits.origins if o is not None]
    h, d = mixed.shape[1], mixed.shape[3]
    if read.shape[2] != h * d or any(hits.origins):
        return [], None
    rest = read.unflatten(2, (h, d)).transpose(1, 2) - mixed
    table = mixed_law(rest, weights)
    if table is None:
        return [], None
    seen = (weights > 0).all(dim=0)
    kind = kind_of_places(table, seen, None)
    if kind is None:
        return [], None
    return ["relative-values"], [Origin(0, column) for column in range(h * d)]


def _bent(mixed: Tensor, pool: Pool, read: Tensor) -> tuple[str, list[Origin] | None]:
    """Return which activation stands before the output layer, as in LeViT, and what it bends."""
    heads = mixed.transpose(1, 2).flatten(2)
    for name, bend in BENDS.items():
        bent = Pool(pool.close)
        bent.add(bend(heads), pool.origins[: heads.shape[2]])
        hits = bent.find(read)
        if hits.all():
            return f"{name} before the output layer", [o for o in hits.origins if o is not None]
    return "", None


def _normed(mixed: Tensor, read: Tensor, limit: float) -> bool:
    """Say whether the output layer reads a norm of what heads mixed, of each or of all at once."""
    if read.shape[2] != mixed.shape[1] * mixed.shape[3]:
        return False
    for heads in (mixed.transpose(1, 2).flatten(2), mixed.transpose(1, 2)):
        for form, eps in product((one for one in NORM_FORMS if not one.ids), EPS):
            made = form.run(heads, eps).reshape(read.shape)
            if norm_weight(made, read, limit, form.free) is not None:
                return True
    return False


def _fixed(run: Run, out: Tensor) -> Tensor:
    """Return what a batch norm makes of a layer's result, (b, n, e), or that result."""
    for event in run.events:
        if event.kind == "fixed":
            read, made = (features(t, run.b, run.n) for t in (event.given[0], event.made))
            if read is not None and made is not None and read.equal(out):
                return made
    return out


def _around(subject: Subject, run: Run, out: Tensor) -> str:
    """Return what stands around, in words; lose where the output is another."""
    limit = max(1e-8, subject.patient.tolerance) * (1 + run.y.abs().max())
    module, e = subject.patient.module, run.x.shape[2]
    for shell in (*shells_of(module, e), *doubled_shells(module, e)):
        if shell.ids or shell.residual == "query" or shell.before is not None:
            continue
        made = out if shell.factor is None else out * shell.factor
        if shell.residual and made.shape[2] != e:
            continue
        made = shell.leave(made, run.x)
        if made.shape[2] != run.y.shape[2]:
            continue
        gap = made - run.y
        constant = gap[:1, :1]  # a bias that is added by itself
        if bool((gap - constant).abs().max() <= limit) and (
            shell.after is None or bool(gap.abs().max() <= limit)
        ):
            return shell.name
    raise Lost


def unsunk(run: Run, weigh: Event, keys: int) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return what a softmax gets and gives without a sink, and the sinks of all heads, (h,).

    Args:
        run: the call.
        weigh: the softmax.
        keys: how many keys there are; a sink is one more, that no token made.
    """
    given, made = weigh.given[0], weigh.made
    if given.shape[-1] != keys + 1:
        return given, made, None
    for place, rest in ((-1, slice(None, -1)), (0, slice(1, None))):
        columns = next(by_head(given[..., place, None], given.shape[:-2], run.b, run.h))
        if bool((columns == columns[:1, :, :1]).all()):
            sink = columns[0, :, 0, 0].double()
            return given[..., rest], made[..., rest], sink
    raise Lost
