"""Patch embeddings, class tokens, and positions: learned ones, and tables of sines and cosines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import torch
from einops import rearrange
from torch import Tensor

from attention_clinic.catalogue.forms import Form, State, Step, bug, variant

variant("""
sincos-start, chapter 09
counts positions from 1 or 2, not from 0
In: Fairseq, BART, DETR

sincos-spaced, chapter 09
spaces the waves so that the last one is as long as the base allows
In: Tensor2Tensor, DDPM

sincos-halves, chapter 09
puts all sines before all cosines, where the paper alternates: harmless until weights are exchanged
In: Tensor2Tensor, Fairseq, DDPM

sincos-exchanged, chapter 09
puts the cosine of a pair before its sine: harmless until weights are exchanged
In: some time embeddings

sincos-padding, chapter 09
keeps a row of zeros for padding
In: Fairseq

sincos-2d, chapter 09
has positions of an image: half of the numbers is that of the row, half that of the column
In: MAE, SimpleViT, DiT
""")
bug("""
patch-view, chapter 01
views the image as (b, n, -1): strips of the image, not patches
Fix: cut it: rearrange(x, "b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)", ph=p, pw=p).
Seen: duoan/TorchCode#21

patch-channel-mix, chapter 01
cuts an image without moving the channels: a token mixes numbers of different positions
Fix: bring the axes into the order b, n, c, ph, pw before you flatten.
Seen: gupta-abhay/pytorch-vit#7

pos-before-cls, chapter 01
adds the positions before the class token is prepended, so that it gets none
Fix: prepend the class token first, then add n + 1 positions.
Seen: labmlai/annotated_deep_learning_paper_implementations#221; NVIDIA/Megatron-LM#6260

pos-batch-axis, chapter 01
indexes the position table by sample instead of by token
Fix: the table has the shape (1, n, e): its rows run along the tokens, axis 1.
Seen: cmu-l3/anlp-fall2025-code#1; KasperGroesLudvigsen/influenza_transformer#9

pos-one-row, chapter 01
adds the same row of the position table to every token
Fix: add row t to token t: tokens + positions[:, : tokens.shape[1]].
Seen: labmlai/annotated_deep_learning_paper_implementations#133

sincos-base, chapter 09
takes a base other than 10000 for the lengths of the waves
Fix: angle = position / 10000 ** (2 i / embed_dim), or pass base=... if the base is intended.
Seen: zju3dv/LoFTR#41; maxjcohen/transformer#62; GrumpyZhou/image-matching-toolbox#36

sincos-pairs, chapter 09
gives the cosine of a pair a different wave than its sine: a shift is not a rotation any more
Fix: both columns of pair i have the angle position / 10000 ** (2 i / embed_dim).
Seen: SamLynnEvans/Transformer#25; jadore801120/attention-is-all-you-need-pytorch#32;
Kyubyong/transformer#38; shenweichen/DeepCTR#379; maxjcohen/transformer#62;
luhengshiwo/LLMForEverybody#106

sincos-exponent, chapter 09
raises the base to a wrong power: the waves grow too fast, too slowly, or not at all
Fix: pair i has the angle position / 10000 ** (2 i / embed_dim); range(0, embed_dim, 2) is 2 i.
Seen: YutaroOgawa/pytorch_advanced#79; Kyubyong/transformer#81

sincos-cosine, chapter 09
has no cosines: positions on both sides of the top of a wave look alike
Fix: table[:, 0::2] = sin(angle), table[:, 1::2] = cos(angle).
Seen: luopeixiang/im2latex#10

sincos-odd, chapter 09
breaks on an odd embed_dim
Fix: there is one cosine less than sines: table[:, 1::2] = cos[:, : embed_dim // 2].
Seen: gc-os-ai/pyaptamer#607
Evidence: fails with an odd embed_dim
""")

COUNT = Step("count", lambda form, state: {"counted": form.run(state["positions"])})


def _starts_later(state: State) -> bool:
    """Return whether the first row holds other numbers than sines and cosines of 0."""
    first = state["given"][0]
    return bool(((first * (1 - first)).abs() > 1e-3).any())


COUNT.correct(lambda p: p)
COUNT.variant("sincos-start", _starts_later)(lambda p: p + 1)
COUNT.variant("sincos-start", _starts_later)(lambda p: p + 2)
COUNT.variant("sincos-start", _starts_later)(  # once around for an image, as DETR does
    lambda p: 2 * math.pi * (p + 1) / (len(p) + 1e-6)
)


def _bases(state: State) -> Iterator[Form]:
    """Yield the base of the call, then those that the second wave may have been made with."""
    given, e, right = state["given"], state["given"].shape[1], state["base"]
    yield Form(right)
    known = [right**power for power in (1.0, 2.0, 0.5, e / (e - 1))]  # of wrong exponents
    for first, second in ((0, 2), (0, 1), (1, 3), (e // 2, e // 2 + 1)) if e > 3 else ():
        row = int((given[:3, first].abs() > 1e-6).int().argmax())
        angles = given[row, [first, second]].clamp(-1, 1).asin()
        base = float((angles[1] / angles[0]) ** (-e / 2))
        for one in (float(f"{base:.3g}"), base) if 1.5 < base < 1e100 else ():
            if not any(math.isclose(one, other, rel_tol=0.02) for other in known):
                yield Form(one, ("sincos-base",), f"its base is {one:.6g}")


BASE = Step("base", lambda form, state: {"used": form.run}, found=_bases)


def _angles(form: Form, state: State) -> State:
    """Return angles, by the exponents of pairs i (e / 2,), for the sines and for the cosines."""
    e = state["given"].shape[1]
    powers = form.run(torch.arange((e + 1) // 2, dtype=torch.float64), e)
    sines, cosines = (state["counted"][:, None] / state["used"] ** power for power in powers)
    return {"angles": (sines, cosines[:, : e // 2])}


def _rule(step: float, sine: float, cosine: float) -> Form:
    """Return the form whose exponents are 2 (step i + sine) / e and 2 (step i + cosine) / e."""
    right = step == 1 and 0 in (sine, cosine)
    ids = ("sincos-exponent",) * (not right) + ("sincos-pairs",) * (sine != cosine)
    detail = f"the exponent is ({2 * step:g} i {2 * sine:+g}) / embed_dim"
    detail += f", for cosines ({2 * step:g} i {2 * cosine:+g}) / embed_dim" * (sine != cosine)
    detail += ", twice too large" * (step == 2 and sine == cosine == 0)
    return Form(lambda i, e: (2 * (step * i + sine) / e, 2 * (step * i + cosine) / e), ids, detail)


EXPONENT = Step("exponent", _angles)
EXPONENT.correct(_rule(1, 0, 0).run)
EXPONENT.variant("sincos-spaced")(lambda i, e: (i / (e // 2 - 1),) * 2)
EXPONENT.wrong("sincos-exponent", detail="the exponent is 2 i / (embed_dim - 1)")(
    lambda i, e: (2 * i / (e - 1),) * 2
)
EXPONENT.forms += [_rule(*at) for at in (
    *((1, 0, 0.5), (2, 0, 0), (2, 0, 1), (1, 0, 1), (1, 0, -0.5), (1, 1, 0), (1, 0.5, 0.5)),
    *((1, 1, 1), (2, 0, 0.5), (2, 1, 1), (0.5, 0, 0), (0, 0, 0), (0, 1, 1)),
    *((step, 0, cosine) for step in (-1, -2) for cosine in (0, -0.5, -1)),
)]  # fmt: skip


def in_turn(pair: Sequence[Tensor]) -> Tensor:
    """Return the columns of two tables in turn."""
    table = torch.cat(list(pair), dim=1)
    table[:, 0::2], table[:, 1::2] = pair
    return table


TABLE = Step("table", lambda form, state: {"made": form.run(*state["angles"])})
for _put, _named in ((in_turn, ()), (partial(torch.cat, dim=1), ("sincos-halves",))):
    TABLE.forms += [
        Form(lambda a, b, put=_put: put((a.sin(), b.cos())), variants=_named),
        Form(
            lambda a, b, put=_put: put((b.cos(), a.sin())),
            applies=lambda state: state["given"].shape[1] % 2 == 0,
            variants=(*_named, "sincos-exchanged"),
        ),
        Form(lambda a, b, put=_put: put((a.sin(), b.sin())), ("sincos-cosine",)),
        Form(lambda a, b, put=_put: put((a.sin(), 0 * b)), ("sincos-cosine",)),
    ]

PADDING = Step("padding", lambda form, state: {"made": form.run(state["made"])})
PADDING.correct(lambda table: table)
for _part in (slice(1, None), slice(-1)):
    PADDING.variant("sincos-padding")(lambda t, part=_part: torch.cat([0 * t[:1], t[part]]))
POSITIONS = (COUNT, BASE, EXPONENT, TABLE, PADDING)

CUT = Step("cut", lambda form, state: {"tokens": form.run(state["images"], *state["sizes"])})


def _pattern(pattern: str) -> Callable[..., Tensor]:
    whole = f"b c (gh ph) (gw pw) -> b {pattern}"
    return lambda images, n, ph, pw: rearrange(images, whole, ph=ph, pw=pw)


CUT.correct(_pattern("(gh gw) (c ph pw)"))
CUT.wrong("patch-channel-mix", detail="patches are viewed as (b, c * p * p, n)")(
    lambda x, n, ph, pw: CUT.reference.run(x, n, ph, pw).reshape(len(x), -1, n).mT
)
for _order in (
    *("(gh gw) (ph pw c)", "(gh gw) (c pw ph)", "(gh gw) (pw ph c)", "(gh gw) (ph c pw)"),
    *("(gw gh) (c ph pw)", "(gw gh) (ph pw c)", "(gw gh) (c pw ph)"),
):  # a layer learns with any of these orders
    CUT.forms.append(Form(_pattern(_order), applies=lambda state: state["learns"]))
CUT.wrong("patch-view")(lambda x, n, ph, pw: x.reshape(len(x), n, -1))
CUT.wrong("patch-view")(lambda x, n, ph, pw: x.movedim(1, 3).reshape(len(x), n, -1))
CUT.wrong("patch-view")(lambda x, n, ph, pw: x.reshape(len(x), -1, n).mT)
CUT.wrong("patch-channel-mix")(
    lambda x, n, ph, pw: x.unfold(2, ph, ph).unfold(3, pw, pw).reshape(len(x), n, -1)
)


def _on_tokens(form: Form, state: State) -> State:
    """Return tokens (b, n, e) of patches (b, n, p), or of tokens."""
    return {"tokens": form.run(state["tokens"])}


PROJECT = Step("project", _on_tokens, found=lambda state: state["projections"])
LAY = Step("lay", _on_tokens)
LAY.correct(lambda tokens: tokens)
LAY.wrong("patch-channel-mix", detail="the map (b, e, gh, gw) is viewed as (b, n, e)")(
    lambda tokens: tokens.mT.reshape(tokens.shape)
)
NORM = Step("norm", _on_tokens, found=lambda state: state["norms"])

HEAD = Step("head", lambda form, state: {"join": form.run}, found=lambda state: state["heads"])
ROWS = Step("rows", lambda form, state: {"table": form.run}, found=lambda state: state["tables"])


def _placed(form: Form, state: State) -> State:
    return {"tokens": form.run(state["tokens"], state["join"], state["table"])}


def _one_row(state: State) -> Iterator[Form]:
    for row in range(state["table"].shape[1]):
        run = partial(lambda at, x, join, table: join(x) + table[:, at : at + 1], row)
        yield Form(run, ("pos-one-row",), f"row {row}")


def added(tokens: Tensor, table: Tensor) -> Tensor:
    """Return tokens plus the first rows of a table of positions (1, rows, e)."""
    return tokens + table[:, : tokens.shape[1]]


PLACE = Step("place", _placed, found=_one_row)
PLACE.correct(lambda x, join, table: added(join(x), table))
for _skipped in (0, 1):
    PLACE.wrong("pos-before-cls", lambda state: state["class_token"])(
        lambda x, join, table, skipped=_skipped: join(added(x, table[:, skipped:]))
    )
PLACE.wrong("pos-batch-axis")(lambda x, join, table: join(x) + table[0, : len(x), None])
LAST = Step("last", _on_tokens, found=lambda state: state["norms"])
EMBEDDING = (CUT, PROJECT, LAY, NORM, HEAD, ROWS, PLACE, LAST)
