"""By what scores are multiplied: the products of queries and keys, and those with codes of places.

Both are scores and need a scale. Codes that are parameters learn their size; those that a layer
makes of sines start as long as keys.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_clinic.examine.score_law import ALIKE, CLOSE, Law
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.traced import Lost, Run, Side

SAID = "products with codes of places are multiplied by {:.4g}, those of queries and keys by {:.4g}"


def norms_of(asked: Side, answered: Side) -> set[str]:
    """Return the norms of queries and keys, which must be the same."""
    both = [{o.norm for row in side.origins for o in row} for side in (asked, answered)]
    if "length" in both[0] | both[1] <= {"length", "rms"}:
        return {"length"}  # without an eps they are one, with weights
    if both[0] != both[1] or len(both[0]) > 1:
        raise Lost
    return both[0] - {""}


def scaled(
    subject: Subject, run: Run, law: Law, asked: Side, answered: Side
) -> tuple[tuple[str, ...], str]:
    """Return the mistake of the factor of the scores, () where it is right.

    Args:
        subject: the module.
        run: of it.
        law: of the scores.
        asked, answered: queries and keys.
    """
    scale = law.scale * asked.factor * answered.factor
    norms = norms_of(asked, answered)
    d = asked.heads.shape[-1]
    if norms == {"length"}:  # a temperature, which is free; a cosine does not grow with its width
        if bool((scale - d**-0.5).abs().max() < 1e-6):
            raise Lost
        return (), ""
    first = float(scale[0])
    if bool((scale - first).abs().max() > 1e-6 * abs(first)):
        raise Lost
    met = sum(t is not None for t in (law.asked, law.answered)) * (asked.offset is None)
    if any(math.isclose(first, (d * n) ** -0.5, rel_tol=1e-5) for n in (1, 1 + met)):  # DeBERTa
        return _of_codes(run, law, asked, answered)
    right = (*subject.known["factors"], *(1.0,) * subject.known["unscaled"])
    if any(math.isclose(first, factor, rel_tol=1e-5) for factor in right):
        raise Lost
    for id, factor in (("scale-missing", 1.0), ("scale-embed", subject.e**-0.5)):
        if math.isclose(first, factor, rel_tol=1e-5):
            return (id,), ""
    return ("scale-other",), f"it multiplies by {first:.4g}"


def each_by_its_width(
    scores: Tensor,
    products: list[Tensor],
    sides: tuple[Side, Side],
    widths: list[int],
    seen: Tensor,
) -> Law | None:
    """Return the law of scores that add several products, each multiplied as its width asks.

    Args:
        scores: (b, h, i, j).
        products: of queries and keys, (b, h, i, j) each.
        sides: queries and keys of all products, beside each other.
        widths: of the products.
        seen: which scores count, (h, i, j).
    """
    if len(products) < 2:
        return None
    wanted = scores.double()[:, seen].flatten()
    given = torch.stack([t.double()[:, seen].flatten() for t in products], dim=1)
    found = torch.linalg.lstsq(given, wanted[:, None]).solution[:, 0]
    own = sides[0].factor * sides[1].factor
    right = zip((found * own).tolist(), widths, strict=True)
    if not all(math.isclose(by, width**-0.5, rel_tol=1e-5) for by, width in right):
        return None
    if bool((given @ found - wanted).abs().max() > CLOSE * (1 + wanted.abs().max())):
        return None
    return Law(torch.full((scores.shape[1],), sum(widths) ** -0.5 / own, dtype=torch.float64))


def grown(subject: Subject, values: Side) -> tuple[str, str]:
    """Return the mistake of values that are multiplied as scores are: so are the weights then."""
    d, e = values.heads.shape[-1], subject.e
    if any(math.isclose(values.factor, size**-0.5, rel_tol=1e-5) for size in (d, e)):
        return "scale-after-softmax", f"values are multiplied by {values.factor:.4g}"
    raise Lost


def _of_codes(run: Run, law: Law, asked: Side, answered: Side) -> tuple[tuple[str, ...], str]:
    """Return the mistake of the factor of the products with codes, () where it is that of keys.

    Args:
        run: of the module.
        law: of the scores.
        asked, answered: queries and keys.
    """
    usual = float(law.scale[0]) * asked.factor * answered.factor
    for table, side in ((law.asked, asked), (law.answered, answered)):
        found = None if table is None else _factor(run, table)
        factor = usual if found is None else found * side.factor
        if not math.isclose(factor, usual, rel_tol=ALIKE):
            id = "scale-missing" if math.isclose(factor, 1, rel_tol=ALIKE) else "scale-other"
            return (id,), SAID.format(factor, usual)
    return (), ""


def _factor(run: Run, table: Tensor) -> float | None:
    """Return by what the codes that a layer made are multiplied; None where none made them.

    Args:
        run: of the module.
        table: what queries or keys are multiplied with, (h, i, j, d).
    """
    wanted = table.flatten(0, 2)
    wanted = wanted[wanted.norm(dim=1) > ALIKE * table.abs().max()]
    for event in run.events if len(wanted) else ():
        if event.kind != "layer" or event.made.shape[-1] % table.shape[-1]:
            continue
        rows = event.made.double().reshape(-1, table.shape[-1]).unique(dim=0)
        near, which = torch.cdist(*(F.normalize(t, dim=1) for t in (wanted, rows))).min(dim=1)
        factors = wanted.norm(dim=1) / rows[which].norm(dim=1)
        same = (factors - factors[0]).abs().max() <= ALIKE * factors[0]
        if bool(near.max() <= ALIKE) and bool(same):
            return float(factors[0])
    return None
