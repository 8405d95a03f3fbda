"""What the parts of a block are multiplied by before they join the stream."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, variant

variant(
    "layer-scale",
    "multiplies what a part returns by a factor that it learns, for each number of a token or one "
    "for all",
    "CaiT, DINOv2, ReZero",
    "06",
)
variant(
    "tanh-gate",
    "multiplies what a part returns by the tanh of a number that begins at 0",
    "Flamingo",
    "06",
)


# ------------- scales: one factor for each part, in their order, () where there are none


def _scales(state: State) -> Iterator[Form]:
    """Find the factors that the block holds, one for each of its parts."""
    held: list[Tensor] = state["parts"].scales
    parts = len(state.get("right_kinds", ("attention", "feed")))
    if len(held) != parts:
        return
    yield Form(tuple(held), variants=("layer-scale",))
    if all(factor.numel() == 1 for factor in held):
        yield Form(tuple(factor.tanh() for factor in held), variants=("tanh-gate",))


SCALES = Stage("scales", lambda form, state: {"scales": form.run}, _scales, [Form(())])


def scaled(out: Tensor, part: int, state: State) -> Tensor:
    """Multiply what a part returned by its factor, if it has one.

    Args:
        out: what it returned.
        part: its number.
        state: what was chosen.
    """
    return out * state["scales"][part] if state["scales"] else out
