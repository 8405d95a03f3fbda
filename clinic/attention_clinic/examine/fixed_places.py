"""Tables of places in an embedding that nothing learns: judged as any sines and cosines."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS
from attention_clinic.engine.report import Explanation, explain
from attention_clinic.examine.positions import both_explained, explained, sides_of
from attention_clinic.examine.rows_held import fixed_tensors

BASE = 10_000.0


def fixed_wrongly(module: object, n: int, e: int) -> list[Explanation]:
    """Return what is wrong with tables that nothing learns, where they are sines and cosines.

    Another base may be meant.

    Args:
        module: an embedding that is right but for them.
        n: the number of its patches.
        e: the width of a token.
    """
    for name, value in fixed_tensors(module).items():
        table = value.detach().cpu().double().squeeze()
        if table.ndim != 2 or table.shape[1] != e or table.shape[0] - n not in (0, 1):
            continue
        sides = sides_of(table)
        places = explained if sides is None else lambda t, b, s=sides: both_explained(*s, b)[0]
        ways = places(table, BASE)
        ids = next(iter(ways), ())
        if ids and ids != ("sincos-base",):
            way = ways[ids]
            detail = "; ".join(filter(None, (f"the fixed table {name}", way.path.detail)))
            return [explain([BUGS[id] for id in ids], way.difference, detail, what="table")]
    return []


def never_learned(module: object, tables: list[Tensor | None]) -> list[Explanation]:
    """Return the mistake of a plain tensor of random places: it is not registered, nothing learns.

    Args:
        module: an embedding that is right but for that.
        tables: what it adds, (1 or b, rows, e) each.
    """
    parts = module.modules() if isinstance(module, nn.Module) else ()
    held = [(name, v) for part in parts for name, v in vars(part).items() if isinstance(v, Tensor)]
    for name, value in held:
        given = value.detach().cpu().double().squeeze()
        added = any(t is not None and _begins(given, t[0].cpu().double()) for t in tables)
        if added and not value.requires_grad and not explained(given, BASE):
            detail = f"{name}, which is no table of sines and cosines"
            return [explain([BUGS["param-plain-tensor"]], detail=detail)]
    return []


def _begins(whole: Tensor, rows: Tensor) -> bool:
    """Say whether a table holds these rows, from its first one on."""
    same = whole.ndim == 2 and whole.shape[1:] == rows.shape[1:] and len(whole) >= len(rows)
    return same and torch.allclose(whole[: len(rows)], rows, atol=1e-6)
