"""Blocks that lay their tokens as an image, and cut it into windows before they attend."""

from __future__ import annotations

import torch
from einops import rearrange
from torch import Tensor, nn

from attention_clinic import Report, diagnose_block
from patients.bank import CASES, Entry
from patients.blocks import PreNorm
from patients.variants import Biased
from patients.windowed import offsets

HIGH, WIDE, SIDE = 4, 6, 2
IMAGE = (2, HIGH * WIDE)


def windowed_block(*ids: str, beside=(), sizes=((24, 4), (30, 3))):
    """Enter a block whose report must name windows and their biases."""

    def enter(make):
        def examine(seed: int, e: int, h: int) -> Report:
            torch.manual_seed(seed)
            report = diagnose_block(make(e, h), h, size=IMAGE)
            assert {v.id for v in report.variants} == {"window", "relative-bias", *beside}, report
            return report

        CASES.append(Entry(make.__name__, ids, examine, sizes=sizes))
        return make

    return enter


class OfOneWindow(Biased):
    """Sees tokens of windows as samples: (b * w, m, e)."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.table = nn.Parameter(torch.randn((2 * SIDE - 1) ** 2, h))
        at = offsets(SIDE)
        self.register_buffer("at", at[..., 0] * (2 * SIDE - 1) + at[..., 1])

    def bias(self, n):
        return self.table[self.at].permute(2, 0, 1)

    def weigh(self, scores, mask):
        if mask is not None:
            scores = scores.unflatten(0, (-1, len(mask))) + mask[:, None]
            scores = scores.flatten(0, 1)
        return super().weigh(scores, None)


@windowed_block()
class CutIntoWindows(PreNorm):
    """Swin: the image is cut behind the norm, and put together before the sum."""

    step = 0

    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = OfOneWindow(e, h)
        part = torch.zeros(HIGH, WIDE)
        part[HIGH - self.step :] += 1
        part[:, WIDE - self.step :] += 2
        part = rearrange(part, "(y p) (x q) -> (y x) (p q)", p=SIDE, q=SIDE)
        self.register_buffer("apart", (part[:, :, None] != part[:, None]) * -100.0)

    def attend(self, x: Tensor) -> Tensor:
        image = x.unflatten(1, (HIGH, WIDE)).roll((-self.step, -self.step), (1, 2))
        windows = rearrange(image, "b (y p) (x q) e -> (b y x) (p q) e", p=SIDE, q=SIDE)
        return (
            self.together(self.masked(windows)).roll((self.step, self.step), (1, 2)).flatten(1, 2)
        )

    def masked(self, windows: Tensor) -> Tensor:
        return self.attention(windows, self.apart if self.step else None)

    def together(self, made: Tensor) -> Tensor:
        sizes = {"y": HIGH // SIDE, "x": WIDE // SIDE, "p": SIDE}
        return rearrange(made, "(b y x) (p q) e -> b (y p) (x q) e", **sizes)

    def forward(self, x):
        x = x + self.attend(self.ln_1(x))
        return x + self.ffn(self.ln_2(x))


@windowed_block()
class CutIntoShiftedWindows(CutIntoWindows):
    """What the roll brings together, and is apart in the image, gets -100."""

    step = 1


@windowed_block(beside=("norm-of-part",))
class CutIntoWindowsPostNorm(CutIntoShiftedWindows):
    """Swin V2: the norm of what a part returns."""

    def forward(self, x):
        x = x + self.ln_1(self.attend(x))
        return x + self.ln_2(self.ffn(x))


@windowed_block("residual-missing")
class CutIntoWindowsAlone(CutIntoShiftedWindows):
    def forward(self, x):
        x = self.attend(self.ln_1(x))
        return x + self.ffn(self.ln_2(x))


@windowed_block()
class CutIntoGrids(CutIntoWindows):
    """MaxViT: the tokens of a window are spread over the image."""

    def attend(self, x):
        image = x.unflatten(1, (HIGH, WIDE))
        spread = rearrange(image, "b (p y) (q x) e -> (b y x) (p q) e", p=SIDE, q=SIDE)
        sizes = {"y": HIGH // SIDE, "x": WIDE // SIDE, "p": SIDE}
        return rearrange(self.attention(spread), "(b y x) (p q) e -> b (p y q x) e", **sizes)


class NotPutBack(CutIntoWindows):
    """The windows are joined as if they followed each other in columns: unexplained."""

    def together(self, made):
        sizes = {"y": HIGH // SIDE, "x": WIDE // SIDE, "p": SIDE}
        return rearrange(made, "(b x y) (p q) e -> b (y p) (x q) e", **sizes)


class NotRolledBack(CutIntoShiftedWindows):
    """What was rolled stays so: unexplained."""

    def attend(self, x):
        return super().attend(x).unflatten(1, (HIGH, WIDE)).roll((-1, -1), (1, 2)).flatten(1, 2)
