"""Joining the heads."""

from __future__ import annotations

from collections.abc import Callable
from itertools import permutations

from einops import rearrange
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug, observed

# ------------------------------------------- merge: (r, b, h, n, d) -> (r, b, n, h * d)


def _merged(form: Form, state: State) -> State | None:
    mixed, undo = state["mixed"], state.get("undo")
    mixed = mixed if undo is None else undo(mixed)
    if mixed is None:
        return None
    return {"joined": state["back"](form.run(mixed))}


MERGE = Stage("merge", _merged)


@MERGE.right
def merge(mixed: Tensor) -> Tensor:
    return mixed.transpose(2, 3).flatten(3)


bug(
    "merge-no-transpose",
    "reshapes (b, h, n, d) to (b, n, e) without moving h: tokens are mixed",
    'move the heads beside d first: rearrange(t, "b h n d -> b n (h d)").',
    "04",
    "jsbaan/transformer-from-scratch#6",
    "ajhalthor/Transformer-Neural-Network#4",
    "ajhalthor/Transformer-Neural-Network#8",
)


@MERGE.wrong("merge-no-transpose")
def merge_no_transpose(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return mixed.reshape(r, b, n, h * d)


@MERGE.wrong("merge-no-transpose", "it reads the axes in the order h, d, n")
def merge_transposed_tail(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return mixed.mT.reshape(r, b, n, h * d)


@MERGE.wrong("merge-no-transpose", "it reads the axes in the order d, h, n")
def merge_d_first(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return rearrange(mixed, "r b h n d -> r b d h n").reshape(r, b, n, h * d)


@MERGE.wrong("merge-no-transpose", "it reads the axes in the order d, n, h")
def merge_reversed(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return rearrange(mixed, "r b h n d -> r b d n h").reshape(r, b, n, h * d)


bug(
    "merge-batch-head",
    "swaps heads and batch on the way back: samples get each other's heads",
    "undo the split in the order in which it was done: b before h, then h beside d.",
    "04",
    "gazelle93/Transformer-Various-Positional-Encoding#1",
)


@MERGE.wrong("merge-batch-head", "rows of h * b are read as b * h")
def merge_heads_first(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return merge(rearrange(mixed, "r b h n d -> r h b n d").reshape(r, b, h, n, d))


@MERGE.wrong("merge-batch-head", "rows of b * h are read as h * b")
def merge_batch_second(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return rearrange(mixed.reshape(r, h, b, n, d), "r h b n d -> r b n (h d)")


@MERGE.wrong("merge-batch-head", "the axes h, b, n, d are read as b, n, e")
def merge_heads_then_flat(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return rearrange(mixed, "r b h n d -> r h b n d").reshape(r, b, n, h * d)


@MERGE.wrong("merge-batch-head", "the axes n, b, h, d are read as b, n, e")
def merge_tokens_first(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return rearrange(mixed, "r b h n d -> r n b h d").reshape(r, b, n, h * d)


bug(
    "out-bent",
    "bends what the output layer returns with an activation function: nothing below zero, or "
    "little, joins the stream",
    "project linearly: return self.proj(joined), without nn.ReLU or nn.GELU behind it.",
    "04",
    "rrrsj/Transformer-decoder",
    seen="what the output layer made was bent before it was returned",
)
bug(
    "merge-axes",
    "reads what was mixed in another order of axes than it lies in: numbers of other tokens, or of "
    "other samples, come together",
    'move the axes before they are joined: rearrange(t, "b h n d -> b n (h d)"); a reshape moves '
    "no number.",
    "04",
    "UdbhavPrasad072300/Transformer-Implementations, transformer_package/models/transformer.py",
)


def _reshaped(axes: str, time_first: bool) -> Callable[[Tensor], Tensor]:
    def run(mixed: Tensor) -> Tensor:
        r, b, h, n, d = mixed.shape
        lies = rearrange(mixed, f"r b h n d -> r {axes}")
        if time_first:
            return lies.reshape(r, n, b, h * d).transpose(1, 2)
        return lies.reshape(r, b, n, h * d)

    return run


NAMED = ("b n h d", "b n d h", "b h n d", "b h d n", "b d h n", "b d n h", "h b n d", "n b h d")
for _order in permutations("bhnd"):
    _axes = " ".join(_order)
    _said = f"(b, n, e) by a reshape of ({', '.join(_order)})"
    if _axes not in NAMED:
        MERGE.wrong("merge-axes", _said, observed)(_reshaped(_axes, False))
    if _axes not in ("n b h d", "n b d h", "n h b d"):  # right, or merge-batch-head
        _said = f"(n, b, e) by a reshape of ({', '.join(_order)})"
        MERGE.wrong("merge-axes", _said, observed)(_reshaped(_axes, True))

# ------------------------------------------------ found by the way the module behaves

bug(
    "heads-not-joined",
    "hands (b, h, n, d) or (b, n, h, d) to a layer that expects (b, n, h * d)",
    'join the heads before the output projection: rearrange(t, "b h n d -> b n (h d)").',
    "04",
    "found in a published notes notebook",
    once="the heads are joined",
)

# ----------------------------------------- what is added to the result: see examine/shells.py

bug(
    "residual-from-query",
    "adds the projected queries to the result, where the residual is the input of the layer",
    "keep the input under a name, residual = x, before it is projected, and add that.",
    "06",
    "juho-lee/set_transformer#8",
)
