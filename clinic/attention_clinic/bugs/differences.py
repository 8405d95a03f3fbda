"""Differential attention: two softmaxes, of which the second is taken from the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

from torch import Tensor, nn

from attention_clinic.engine.forms import Form, Stage, State, variant

variant(
    "differential-attention",
    "takes a second softmax, of queries and keys of its own, from the first, times a number that "
    "it learns",
    "Differential Transformer",
    "16",
)

# ----------------------- halves: q, k (r, b, h, n, d) -> (r, b, 2 h, n, d / 2), two for each head


def _of_each(t: Tensor) -> Tensor:
    return t.unflatten(-1, (2, -1)).movedim(-2, 3).flatten(2, 3)


def _of_all(t: Tensor) -> Tensor:
    """Cut all heads together: the first half of a token has the first queries of each head."""
    whole = t.transpose(2, 3).flatten(3).unflatten(3, (2, t.shape[2], -1))
    return whole.permute(0, 1, 4, 3, 2, 5).flatten(2, 3)


def halved(state: State) -> Iterator[Form]:
    """Find the products of halves, where a module was heard to subtract weights."""
    for cut in (_of_each, _of_all) if state.get("subtracted") else ():
        if state["q"].shape[-1] % 2 == 0:

            def run(q: Tensor, k: Tensor, cut: Callable = cut) -> Tensor:
                return cut(q) @ cut(k).mT

            yield Form(run, variants=("differential-attention",))


# --------------------------------------------- weights (r, b, 2 h, i, j) -> (r, b, h, i, j)


def _twice(state: State) -> bool:
    return state["weights"].shape[2] == 2 * state["v"].shape[2]


def _less(form: Form, state: State) -> State:
    return {} if form.run is None else {"weights": form.run(state["weights"])}


def _subtracted(state: State) -> Iterator[Form]:
    heads = state["v"].shape[2]
    for times in state.get("subtracted", ()) if _twice(state) else ():
        if isinstance(times, Tensor) and times.numel() not in (1, heads):
            continue

        def run(weights: Tensor, times: float | Tensor = times) -> Tensor:
            first, second = weights.unflatten(2, (-1, 2)).unbind(3)
            return first - times * second

        yield Form(run)


DIFFERENCE = Stage(
    "difference", _less, _subtracted, [Form(None, applies=lambda state: not _twice(state))]
)

# ------------------------------------------ a norm of what each head mixed, (r, b, h, n, d)


def _normed(form: Form, state: State) -> State:
    return {} if form.run is None else {"mixed": form.run(state["mixed"])}


def _norms(state: State) -> Iterator[Form]:
    if state["scores"].shape[2] != 2 * state["v"].shape[2]:
        return
    for norm, times in product(
        state.get("norms_of_mixed", ()), (1.0, *state.get("afterwards", ()))
    ):
        if next(norm.parameters()).numel() != state["mixed"].shape[-1]:
            continue

        def run(mixed: Tensor, norm: nn.Module = norm, times: float | Tensor = times) -> Tensor:
            return norm(mixed) * times

        yield Form(run, variants=("sub-norm",))


NORMED = Stage("norm of what is mixed", _normed, _norms, [Form(None)])
