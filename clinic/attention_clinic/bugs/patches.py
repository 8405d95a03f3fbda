"""Patches, class token and learned positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from attention_clinic.engine.forms import Form, Stage, State, bug

# ------------------- cut: images (b, c, H, W) -> patches (b, n, p), with patches of (ph, pw)

CUT = Stage("cut", lambda form, state: {"t": form.run(state["images"], *state["patch"])})


@CUT.right
def cut(images: Tensor, ph: int, pw: int) -> Tensor:
    return rearrange(images, "b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)", ph=ph, pw=pw)


bug(
    "patch-order",
    "lays a patch out in another order than (c, ph, pw) of nn.Conv2d: harmless alone, but "
    "pretrained weights do not fit",
    'lay patches out as "b (gh gw) (c ph pw)".',
    "01",
    "lucidrains/vit-pytorch#352",
    "google-research/vision_transformer#93",
)


def _patterned(pattern: str) -> Callable:
    def run(images: Tensor, ph: int, pw: int) -> Tensor:
        return rearrange(images, f"b c (gh ph) (gw pw) -> b {pattern}", ph=ph, pw=pw)

    return run


for _pattern in (
    "(gh gw) (ph pw c)", "(gh gw) (c pw ph)", "(gh gw) (pw ph c)", "(gh gw) (ph c pw)",
    "(gw gh) (c ph pw)", "(gw gh) (ph pw c)", "(gw gh) (c pw ph)",
):  # fmt: skip
    CUT.wrong("patch-order", f"it is laid out as {_pattern}")(_patterned(_pattern))


bug(
    "patch-view",
    "views the image as (b, n, -1): strips of the image, not patches",
    'cut it: rearrange(x, "b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)", ph=p, pw=p).',
    "01",
    "duoan/TorchCode#21",
)


@CUT.wrong("patch-view")
def cut_view(images: Tensor, ph: int, pw: int) -> Tensor:
    b, c, _, _ = images.shape
    return images.reshape(b, -1, c * ph * pw)


@CUT.wrong("patch-view", "here as (b, c * p * p, n): a token gets every n-th number")
def cut_view_spread(images: Tensor, ph: int, pw: int) -> Tensor:
    b, c, _, _ = images.shape
    return images.reshape(b, c * ph * pw, -1).mT


@CUT.wrong("patch-view", "with the channels last")
def cut_view_channels_last(images: Tensor, ph: int, pw: int) -> Tensor:
    b, c, _, _ = images.shape
    return rearrange(images, "b c H W -> b (H W c)").reshape(b, -1, c * ph * pw)


bug(
    "patch-channel-mix",
    "cuts an image without moving the channels: a token mixes numbers of different places",
    "bring the axes into the order b, n, c, ph, pw before you flatten.",
    "01",
    "gupta-abhay/pytorch-vit#7",
)


@CUT.wrong("patch-channel-mix")
def cut_unfold_flat(images: Tensor, ph: int, pw: int) -> Tensor:
    b, c, _, _ = images.shape
    unfolded = images.unfold(2, ph, ph).unfold(3, pw, pw)  # (b, c, gh, gw, ph, pw)
    return unfolded.reshape(b, -1, c * ph * pw)


@CUT.wrong("patch-channel-mix", "F.unfold returns (b, p, n): it needs a transpose, not a view")
def cut_unfold_untransposed(images: Tensor, ph: int, pw: int) -> Tensor:
    unfolded = F.unfold(images, (ph, pw), stride=(ph, pw))  # (b, p, n)
    return unfolded.reshape(images.shape[0], unfolded.shape[2], unfolded.shape[1])


# ----------------------------- project: patches (b, n, p) -> tokens (b, n, e), norms around


def _on_tokens(form: Form, state: State) -> State:
    return {"t": form.run(state["t"])}


PROJECT = Stage("project", _on_tokens, found=lambda state: state["projections"])
LAY = Stage("lay", _on_tokens)


@LAY.right
def lay(tokens: Tensor) -> Tensor:
    return tokens


@LAY.wrong("patch-channel-mix", "the map (b, e, gh, gw) is viewed as (b, n, e)")
def lay_viewed(tokens: Tensor) -> Tensor:
    return tokens.mT.reshape(tokens.shape)


NORM = Stage("norm", _on_tokens, found=lambda state: state["norms"])

# ---------------- place: class token in front, or behind all; rows of the table of positions

HEAD = Stage("head", lambda form, state: {"head": form.run}, found=lambda state: state["heads"])
SIDE = Stage("side", lambda form, state: {"behind": form.run})
SIDE.forms += [Form(False), Form(True, applies=lambda state: state["head"] is not None)]
TABLE = Stage("table", lambda form, state: {"table": form.run}, found=lambda state: state["tables"])


def _in_order(form: Form, state: State) -> State:
    return {"head_first": form.run()}


ORDER = Stage("order", _in_order)


@ORDER.right
def head_first() -> bool:
    return True


bug(
    "pos-before-cls",
    "adds the positions before the class token is put in front, so that it gets none",
    "put the class token in front first, then add n + 1 positions.",
    "01",
    "labmlai/annotated_deep_learning_paper_implementations#221",
    "NVIDIA/Megatron-LM#6260",
)


def _has_one_class_token(state: State) -> bool:
    return state["head"] is not None and state["head"].shape[1] == 1  # registers need no places


@ORDER.wrong(
    "pos-before-cls",
    applies=lambda state: state["table"] is not None and _has_one_class_token(state),
)
def positions_first() -> bool:
    return False


def _placed(form: Form, state: State) -> State | None:
    tokens, head, table = state["t"], state["head"], state["table"]

    def joined(patches: Tensor) -> Tensor:
        both = [patches, head] if state["behind"] else [head, patches]
        return patches if head is None else torch.cat(both, dim=1)

    whole = joined(tokens)
    if table is None:
        return {"made": whole}
    target = whole if state["head_first"] else tokens
    added = form.run(table, *target.shape[:2])
    if added is None:
        return None
    placed = target + added
    if not state["head_first"]:
        placed = joined(placed)
    return {"made": placed}


def _other_rows(state: State) -> Iterator[Form]:
    """Find the second row as a start, for patches that leave the class token's row free."""
    if state["table"] is None:
        return
    if not state["head_first"]:
        yield Form(lambda table, b, n: table[:, 1 : n + 1] if table.shape[1] > n else None)
    for row in range(state["table"].shape[1]):
        yield Form(_one_row(row), ("pos-one-row",), f"row {row}")


def _one_row(row: int) -> Callable[[Tensor, int, int], Tensor]:
    return lambda table, b, n: table[:, row : row + 1]


ROWS = Stage("rows", _placed, found=_other_rows)


@ROWS.right
def rows(table: Tensor, b: int, n: int) -> Tensor | None:
    return table[:, :n] if table.shape[1] >= n else None


bug(
    "pos-one-row",
    "adds the same row of the position table to every token",
    "add row t to token t: tokens + positions[:, : tokens.shape[1]].",
    "01",
    "labmlai/annotated_deep_learning_paper_implementations#133",
)

bug(
    "pos-batch-axis",
    "indexes the position table by sample instead of by token",
    "the table has the shape (1, n, e): its rows run along the tokens, axis 1.",
    "01",
    "cmu-l3/anlp-fall2025-code#1",
    "KasperGroesLudvigsen/influenza_transformer#9",
)


@ROWS.wrong("pos-batch-axis", applies=lambda state: state["table"] is not None)
def rows_by_sample(table: Tensor, b: int, n: int) -> Tensor | None:
    fits = table.shape[0] == 1 and table.shape[1] >= b
    return table[0, :b, None] if fits else None


LAST = Stage(
    "last",
    lambda form, state: {"made": form.run(state["made"])},
    found=lambda state: state["norms"],
)

EMBEDDING = (CUT, PROJECT, LAY, NORM, HEAD, SIDE, TABLE, ORDER, ROWS, LAST)

# ------------------------------------------------- found by the way the module behaves

bug(
    "unpatch-order",
    "does not undo the cutting: unpatchify(patchify(x)) is not x",
    "write the inverse with the same pattern, its two sides swapped.",
    "01",
    "cloneofsimo/minRF#6",
    "Vchitect/Latte#132",
    seen="unpatchify(patchify(x)) is not x",
)
bug(
    "param-batch-size",
    "holds one class token or position table per sample: another batch size breaks it",
    "create it with (1, 1, e) or (1, n, e) and expand it in forward.",
    "01",
    "pytorch/examples#1178",
    "ahmadchalhoub/research_implementations#2",
    seen="runs with one batch size only",
)
bug(
    "param-plain-tensor",
    "keeps a learned tensor that is not a parameter: no optimizer will see it",
    "write self.x = nn.Parameter(values); change values first, never the nn.Parameter.",
    "01",
    "pytorch/examples#1178",
    seen="found among the attributes",
)
