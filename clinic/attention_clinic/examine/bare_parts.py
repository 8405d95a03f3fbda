"""An attention of a block that holds no weight at all: its queries, keys and values are tokens."""

from __future__ import annotations

from dataclasses import replace

from attention_clinic.engine.arguments import tensors
from attention_clinic.examine.cuts import Cut
from attention_clinic.examine.part_kinds import Kind

LENT = ("projection-shared", "value-from-key")  # what matrices that are alike are called


def lent_projections(part: Cut, width: int) -> bool:
    """Lend a part projections that change nothing, where it holds none, and say whether so.

    Args:
        part: an attention.
        width: of a token.
    """
    held = any(True for _ in part.parameters()) or any(True for _ in tensors(part))
    if not held:
        part.project_by_ones(width)
    return not held


def without_lent(kind: Kind, name: str) -> Kind:
    """Return what such a part is, without what the lent projections are called.

    Args:
        kind: what it is with them.
        name: of the part.
    """
    ids = dict.fromkeys([*(id for id in kind.ids if id not in LENT), "out-missing"])
    said = f"{name} holds no layer at all: queries, keys and values are the tokens"
    told = [kind.detail] * (len(ids) > 1 and bool(kind.detail))
    return replace(kind, ids=tuple(ids), detail="; ".join([said, *told]))
