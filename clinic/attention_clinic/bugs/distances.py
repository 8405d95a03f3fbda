"""Learned vectors for the distances of tokens, that stand beside keys and values."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug, variant

variant(
    "relative-keys",
    "multiplies its queries with a learned vector for each distance, too, and adds that to the "
    "scores",
    "Shaw et al. 2018, Music Transformer, Conformer",
    "05",
)
variant(
    "relative-values",
    "mixes a learned vector for each distance with the values",
    "Shaw et al. 2018",
    "05",
)

bug(
    "relative-unshifted",
    "multiplies its queries with a code of each key's place, where its distance was meant",
    "shift each row of the product of queries and codes, so that query i and key j meet the code "
    "of i - j: Transformer-XL's rel_shift.",
    "05",
    "Torfinhell/ASR_Conformer",
)

bug(
    "relative-shift",
    "shifts the products of queries and codes of distances so that a score gets those of another "
    "query",
    "shift row i by i places, so that query i and key j meet the code of i - j: pad a column, view "
    "(n, m + 1) as (m + 1, n), leave out the first row, view it back.",
    "05",
    "jeffasante/conformer",
    "HarunoriKawano/Conformer",
)

# the row of a table of so many rows for each distance j - i; others take the nearest
ROWS: tuple[Callable[[Tensor, int], Tensor], ...] = (
    lambda ahead, rows: ahead + (rows - 1) // 2,
    lambda ahead, rows: (rows - 1) // 2 - ahead,
    lambda ahead, rows: ahead + rows // 2,
    lambda ahead, rows: rows // 2 - ahead,
    lambda ahead, rows: ahead + rows - 1,  # the past alone, its farthest first
    lambda ahead, rows: -ahead,  # its nearest first
)


def _vectors(table: Tensor, rule: Callable[[Tensor, int], Tensor], i: int, j: int) -> Tensor:
    """Return the vector of each pair of places, (h or 1, i, j, d), of a table (h or 1, m, d)."""
    ahead = torch.arange(j)[None, :] - torch.arange(i)[:, None]
    rows = table.shape[1]
    return table[:, rule(ahead, rows).clamp(0, rows - 1)]


def _tables(state: State, h: int, d: int) -> Iterator[Tensor]:
    """Yield the module's own tables of vectors as wide as a head, (h or 1, m, d).

    None where a number for each pair of places explains what is added to the scores.
    """
    for table in state.get("distances", ()) if state.get("bias") is None else ():
        if table.ndim == 3 and table.shape[2] == d and len(table) in (1, h):
            yield table
        elif table.ndim == 3 and table.shape[2] == d and table.shape[1] == h:
            yield table.transpose(0, 1)
        elif table.ndim == 2 and table.shape[1] == d:
            yield table[None]
        elif table.ndim == 2 and table.shape[1] == h * d:
            yield table.unflatten(1, (h, d)).transpose(0, 1)


def _forms(state: State, into: str, by: str, how: str, variant: str) -> Iterator[Form]:
    """Yield forms that multiply `by` with the vectors of distances and add it to `into`."""
    h, d = state["q"].shape[-3], state["q"].shape[-1]
    for table in _tables(state, h, d):
        for rule in ROWS:

            def run(state: State, table: Tensor = table, rule: Callable = rule) -> State:
                t = state[by]
                found = _vectors(table.to(t), rule, *state["raw"].shape[-2:])
                found = found.expand(t.shape[-3], -1, -1, -1)
                return {into: state[into] + torch.einsum(how, t, found)}

            yield Form(run, variants=(variant,))


def _asked(state: State) -> Iterator[Form]:
    return _forms(state, "raw", "q", "rbhid,hijd->rbhij", "relative-keys")


def _answered(state: State) -> Iterator[Form]:
    if state.get("turned"):
        return iter(())
    return _forms(state, "mixed", "weights", "rbhij,hijd->rbhid", "relative-values")


def _through(form: Form, state: State) -> State:
    return {} if form.run is None else form.run(state)


DISTANCES = Stage("distances", _through, _asked, [Form(None)])
DISTANT_VALUES = Stage("values of distances", _through, _answered, [Form(None)])
