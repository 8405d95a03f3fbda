"""Tables of places in an embedding that nothing learns: judged as any sines and cosines."""

from __future__ import annotations

from torch import Tensor, nn

from attention_clinic.bugs import BUGS
from attention_clinic.engine.report import Explanation, explain
from attention_clinic.examine.positions import both_explained, explained, sides_of

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


def fixed_tensors(module: object) -> dict[str, Tensor]:
    """Return the tensors of a module that no gradient is wanted for, by their names."""
    if not isinstance(module, nn.Module):
        return {}
    found = {name: p for name, p in module.named_parameters() if not p.requires_grad}
    for prefix, part in module.named_modules():
        kept = {**vars(part), **dict(part.named_buffers(recurse=False))}
        for name, value in kept.items():
            if isinstance(value, Tensor) and value.is_floating_point() and not value.requires_grad:
                found[f"{prefix}.{name}".lstrip(".")] = value
    return found
