"""A norm of the tokens that reaches some of queries, keys and values, and the others not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.crossing import role
from attention_clinic.engine.layouts import needed_names
from attention_clinic.examine.account import Account
from attention_clinic.examine.behind import NORMS
from attention_clinic.examine.judging import Said
from attention_clinic.examine.traced import Run as Call
from attention_clinic.examine.traced import Side
from attention_clinic.examine.written import PRODUCTS, linked


def needs_context(module: nn.Module | Callable[..., Any]) -> bool:
    """Say whether forward cannot do without a context, which may come as its owner left it."""
    return [role(name) for name in needed_names(module)[1:]].count("asked") == 1


def unnormed(account: Account, made: list[Tensor]) -> Said:
    """Say that some of queries, keys and values are made of normed tokens, others of bare ones.

    Args:
        account: of the steps.
        made: ids of what layers made.
    """
    run, kinds = account.run, {}
    given = [name for name, _, _ in run.tape.given]
    for name, t in zip(("queries", "keys", "values"), made, strict=True):
        found: set[str] = set()
        inner = list(linked(run, t))
        while inner and {event.name for event in inner} <= NORMS:  # of queries, of keys
            inner = list(linked(run, torch.cat([event.args[0].flatten() for event in inner])))
        for event in inner:
            place = PRODUCTS.get(event.name)
            read = [] if place is None else [a for a in event.args[place:] if run.depends(a)]
            if len(read) != 1:
                return []
            norms = list(linked(run, read[0]))
            own = torch.cat([norm.args[0].flatten() for norm in norms]) if norms else read[0]
            tokens = bool((run.given[own.flatten()] == given.index("x")).all())
            normed = norms and {norm.name for norm in norms} <= NORMS
            found.add(("norm" if normed else "x" if not norms else "") if tokens else "")
        kinds.setdefault(tuple(sorted(found)), []).append(name)
    if set(kinds) != {("norm",), ("x",)} or run.asked is not None:
        return []
    return [("norm-missing", f"{' and '.join(kinds[('x',)])} are made of tokens as they came")]


def bare_sides(run: Call, asked: Side, answered: Side, values: Side) -> str:
    """Say which of queries, keys and values are made of bare tokens where others are of normed.

    Args:
        run: the call.
        asked, answered, values: queries, keys and values.
    """
    kinds: dict[bool, list[str]] = {}
    for name, side in (("queries", asked), ("keys", answered), ("values", values)):
        read = [o for row in side.origins for mine in row for o in run.reads.get(mine.layer, ())]
        if run.asked is not run.pool or any(o.layer >= 0 for o in read):
            return ""
        for normed in {bool(o.norm) for o in read}:
            kinds.setdefault(normed, []).append(name)
    return f"{' and '.join(kinds[False])} are made of tokens as they came" if len(kinds) > 1 else ""
