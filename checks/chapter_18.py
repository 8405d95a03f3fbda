"""Checks of the exercises of chapter 18: pictures from words."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from checks.engine.answer import written
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.patches import patches
from checks.engine.verdict import exercise, open_exercise

# Nothing here is a layer: numbers are measured, sampled from or made before the training.
PLAIN: dict[str, Any] = {"gradients": False, "trials": Trials(6)}


@exercise("18.1", "Which shape, and how many predictions?")
def which_shape(ids_shape, logits_shape, pixel_logits_shape, predictions) -> Message:
    written(ids_shape, logits_shape, pixel_logits_shape, predictions)
    b, w, pixels, levels, v = 5, 4, 7 * 9, 12, 12 + (2 + 10 + 3 + 4) + 1
    same_shape(ids_shape, (b, w + pixels), "b n")
    same_shape(logits_shape, (b, w + pixels - 1, v), "b n-1 v")
    same_shape(pixel_logits_shape, (b, pixels, v), "b HW v")
    known: dict[float, Message | str] = {
        b * (pixels - 1): "first-pixel-is-predicted-too",
        b * (w + pixels - 1): "words-are-not-predicted",
        b * (w + pixels): "words-are-not-predicted",
        b * (pixels - w): "words-come-on-top",
        **dict.fromkeys([pixels, w + pixels - 1, w + pixels], "one-picture-of-five"),
        **dict.fromkeys([b * pixels * v, b * pixels * levels], "logits-are-not-predictions"),
    }
    same_number(predictions, b * pixels, 0.5, "number-of-predictions", known=known)
    return message("caption-shapes-right")


# ------------------------------------------------------------------------------------- the picture


def lean(images: Tensor, shifts: Tensor) -> Tensor:
    width = images.shape[-1]
    columns = torch.arange(width) - shifts[:, :, None]
    inside = (columns >= 0) & (columns < width)
    moved = images.gather(-1, columns.clamp(0, width - 1)[:, None])
    return moved * inside[:, None]


SHIFTS, RESULT, NEW = "shifts[:, :, None]", "moved * inside[:, None]", "(torch.arange(width)"
LEFT, RIGHT, CLAMPED = "(columns >= 0)", "(columns < width)", "columns.clamp(0, width - 1)"
BOTH, AROUND = f"{LEFT} & {RIGHT}", (CLAMPED, "(columns % width)")
LOST = f"torch.where({SHIFTS} < 0, {NEW} >= width + {SHIFTS}), {LEFT})"
LEANING = patches(
    lean,
    {
        "rows-wrap-around": (*AROUND, RESULT, "moved"),
        "border-is-repeated": [
            *((RESULT, "moved"), (BOTH, LEFT), (BOTH, RIGHT)),
            *((LEFT, "(columns >= -1)"), (RIGHT, "(columns <= width)")),
        ],
        "moves-the-other-way": (f"- {SHIFTS}", f"+ {SHIFTS}"),
        "old-row-stays": (RESULT, "torch.where(inside[:, None], moved, images)"),
        "wraps-on-one-side": [(*AROUND, BOTH, side) for side in (LEFT, RIGHT, LOST)],
        "border-pixel-is-lost": [
            *((LEFT, "(columns > 0)"), (RIGHT, "(columns < width - 1)")),
            *((BOTH, f"{BOTH} & {NEW} > 0)"), (BOTH, f"{BOTH} & {NEW} < width - 1)")),
        ],
        "shifts-of-first-picture": (SHIFTS, "shifts[:1].expand_as(shifts)[:, :, None]"),
        "shift-of-first-row": (SHIFTS, "shifts[:, :1].expand_as(shifts)[:, :, None]"),
        "inside-is-inverted": (RESULT, "moved * ~inside[:, None]"),
        "only-one-direction": [
            *((SHIFTS, f"shifts.clamp({side}=0)[:, :, None]") for side in ("min", "max")),
            *((RESULT, f"{RESULT} * (shifts {sign} 0)[:, None, :, None]") for sign in ("<=", ">=")),
        ],
        "unmoved-rows-are-empty": (RESULT, f"{RESULT} * (shifts != 0)[:, None, :, None]"),
        "sign-is-dropped": (SHIFTS, "shifts.abs()[:, :, None]"),
        "moves-one-too-far": [(SHIFTS, f"({SHIFTS} {sign} 1)") for sign in "+-"],
    },
)


@exercise("18.2", "Lean a picture")
def lean_a_picture(lean_answer) -> Message:
    return same_function(
        lean_answer,
        lean,
        lambda case: (case.randn("b 1 H W"), case.integers("b H", 1 - case["W"], case["W"])),
        mistakes=LEANING,
        **PLAIN,
    )


# ---------------------------------------------------------------------------------------- the bits


def pixel_bits(logits: Tensor, ids: Tensor, w: int) -> Tensor:
    logs = logits[:, w - 1 : -1].log_softmax(dim=-1)
    taken = logs.gather(-1, ids[:, w:, None])[..., 0]
    return -taken.mean(dim=1) / math.log(2)


ROWS, TARGETS, BITS = "w - 1 : -1]", "ids[:, w:, None]", "-taken.mean(dim=1) / math.log(2)"
LOGS, BASE, LENGTH = ".log_softmax(dim=-1)", "math.log(2)", "ids.shape[1]"
ALL = (ROWS, ":-1]", TARGETS, "ids[:, 1:, None]")
PIXEL_BITS = patches(
    pixel_bits,
    {
        "words-are-paid": [ALL, (*ALL, "mean(dim=1)", f"sum(dim=1) / ({LENGTH} - w)")],
        "divided-by-words-too": [
            ("mean(dim=1)", f"sum(dim=1) / ({LENGTH}{s})") for s in ("", " - 1")
        ],
        "divided-by-pictures": ("mean(dim=1)", "sum(dim=1) / len(ids)"),
        "last-word-is-paid": (ROWS, "w - 2 : -1]", TARGETS, "ids[:, w - 1 :, None]"),
        "first-pixel-is-free": (ROWS, "w:-1]", TARGETS, "ids[:, w + 1 :, None]"),
        "last-pixel-is-free": (ROWS, "w - 1 : -2]", TARGETS, "ids[:, w:-1, None]"),
        "pixel-asked-at-its-own-place": [
            *((ROWS, "w:]"), (ROWS, "w:-1]", TARGETS, "ids[:, w:-1, None]")),
            *((ROWS, f"{first}:]", TARGETS, f"ids[:, {first}:, None]") for first in ("", "1")),
        ],
        "target-two-ahead": (ROWS, "w - 2 : -2]"),
        "target-before-is-read": [
            (ROWS, "w:]", TARGETS, "ids[:, w - 1 : -1, None]"),
            (ROWS, "w + 1 :]", TARGETS, "ids[:, w:-1, None]"),
        ],
        "shifted-by-all-words": (ROWS, ":-w]"),
        "given-in-nats": (f" / {BASE}", ""),
        "multiplied-by-log-2": (f"/ {BASE}", f"* {BASE}"),
        "converted-to-bits-twice": (BASE, f"{BASE} / {BASE}"),
        "base-is-not-2": [(BASE, "math.log(10)"), (BASE, "math.log(logits.shape[-1])")],
        "bits-of-all-pixels": ("taken.mean", "taken.sum"),
        "nats-of-all-pixels": (BITS, "-taken.sum(dim=1)"),
        "log-probability-has-a-sign": ("-taken", "taken"),
        "softmax-over-places": [
            (LOGS, ".log_softmax(dim=1)"),
            (f"logits[:, {ROWS}{LOGS}", f"logits.log_softmax(dim=1)[:, {ROWS}"),
        ],
        "scores-not-normalized": (LOGS, ""),
        "blanks-softmax-twice": (LOGS, f".softmax(dim=-1){LOGS}"),
        "mean-before-the-logarithm": (BITS, "-taken.exp().mean(dim=1).log2()"),
        "perplexity-of-pixels": (BITS, "(-taken.mean(dim=1)).exp()"),
    },
)


@exercise("18.3", "Bits per pixel")
def bits_per_pixel(pixel_bits_answer) -> Message:
    def inputs(case: Case) -> tuple:
        logits = torch.cat([case.randn("b w v"), case.randn("b p v")], dim=1)
        ids = torch.cat([case.integers(axes, 0, case["v"]) for axes in ("b w", "b p")], dim=1)
        return 2 * logits, ids, case["w"]

    return same_function(pixel_bits_answer, pixel_bits, inputs, mistakes=PIXEL_BITS, **PLAIN)


# ------------------------------------------------------------------------------------ the guidance


def guided(c: Tensor, u: Tensor, scale: float, allowed: Tensor) -> Tensor:
    logits = u + scale * (c - u)
    return logits.masked_fill(~allowed, -torch.inf).softmax(dim=-1)


FORMULA = "u + scale * (c - u)"
SUMS = ("u + scale * c", "c + scale * u", "scale * (c + u)", "scale * c + (1 + scale) * u")
FORMULA_MISTAKES: dict[Message | str, Any] = {
    "scale-is-off-by-one": [
        (FORMULA, f"{to} * (c - u)") for to in ("c + scale", "u + (scale - 1)")
    ],
    "guides-away-from-the-caption": (FORMULA, "c + scale * (u - c)"),
    "sign-of-the-difference": (FORMULA, "u - scale * (c - u)"),
    "guidance-is-missing": (FORMULA, "c"),
    "only-without-caption": (FORMULA, "u"),
    "scale-is-a-temperature": (FORMULA, "scale * c"),
    "difference-alone": (FORMULA, "scale * (c - u)"),
    "too-much-is-subtracted": (FORMULA, "c - scale * u"),
    "unconditional-is-added": [(FORMULA, line) for line in SUMS],
}
MASKED, START = "logits.masked_fill(~allowed, -torch.inf)", f"logits = {FORMULA}"
LAST, ZEROS = f"return {MASKED}.softmax(dim=-1)", "p = logits.softmax(dim=-1) * allowed\n    "
MASK_BOTH = "c, u = (x.masked_fill(~allowed, -torch.inf) for x in (c, u))\n    "
OF_LOGS = "c, u = c.log_softmax(-1), u.log_softmax(-1)\n    "
OF_BOTH = f"c, u = c.softmax(-1), u.softmax(-1)\n    {START}"
GUIDANCE = patches(
    guided,
    {
        **FORMULA_MISTAKES,
        "probabilities-are-guided": [
            *((START, OF_BOTH), (START, MASK_BOTH + OF_BOTH, LAST, "return logits")),
            *(
                (START, OF_BOTH, LAST, f"p = logits{cut} * allowed\n    return p{rest}")
                for cut in ("", ".clamp(min=0)", ".clamp(0, 1)")
                for rest in ("", " / p.sum(dim=-1, keepdim=True)")
            ),
        ],
        "masked-before-the-guidance": (START, MASK_BOTH + START, MASKED, "logits"),
        "allowed-is-inverted": ("~allowed", "allowed"),
        "allowed-is-not-used": (MASKED, "logits"),
        "forbidden-logits-are-zero": ("-torch.inf", "0.0"),
        "rest-is-not-rescaled": [
            (LAST, f"{ZEROS}return p"),
            (START, f"{OF_LOGS}{START}", LAST, "return logits.exp() * allowed"),
        ],
        "softmax-of-probabilities": (LAST, f"{ZEROS}return p.softmax(dim=-1)"),
        "divided-over-everything": (LAST, f"{ZEROS}return p / p.sum()"),
        "softmax-over-the-drawings": ("softmax(dim=-1)", "softmax(dim=0)"),
        "logits-for-probabilities": [(".softmax(dim=-1)", ""), (LAST, "return logits")],
        "log-probabilities-returned": (".softmax", ".log_softmax"),
    },
)


@exercise("18.4", "Classifier-free guidance")
def classifier_free_guidance(guided_answer) -> Message:
    def inputs(case: Case) -> tuple:
        allowed = case.bools("v")
        order = torch.randperm(len(allowed), generator=case.generator)
        allowed[order[0]], allowed[order[1]] = True, False
        return case.randn("b v"), case.randn("b v"), case.random.choice([0.5, 1.5, 4.0]), allowed

    return same_function(guided_answer, guided, inputs, mistakes=GUIDANCE, **PLAIN)


# --------------------------------------------------------------------------------------- the batch


def training_batch(ids: Tensor, w: int, any_word: int, chance: Tensor, rate: float) -> tuple:
    dropped = (chance < rate)[:, None]
    words = torch.where(dropped, any_word, ids[:, :w])
    inputs = torch.cat([words, ids[:, w:-1]], dim=1)
    targets = ids[:, 1:].clone()
    targets[:, : w - 1] = -100
    return inputs, targets


WORDS, PIXELS = "torch.where(dropped, any_word, ids[:, :w])", "ids[:, w:-1]"
NO_PIXELS, SHIFTED = f"torch.where(dropped, any_word, {PIXELS})", "ids[:, 1:].clone()"
SILENT, END = "targets[:, : w - 1] = -100", "return inputs, targets"
UNSHIFTED = (SHIFTED, "ids[:, :-1].clone()", ": w - 1]", ":w]")
DROP = patches(
    training_batch,
    {
        "rest-is-dropped": ("chance < rate", "chance >= rate"),
        "rate-is-kept": ("chance < rate", "chance < 1 - rate"),
        "every-caption-is-dropped": (WORDS, "torch.full_like(ids[:, :w], any_word)"),
        "no-caption-is-dropped": (WORDS, "ids[:, :w]"),
        "first-row-decides": ("(chance < rate)", "(chance < rate)[:1]"),
        "one-word-is-dropped": (WORDS, f"torch.cat([{WORDS}[:, :1], ids[:, 1:w]], 1)"),
        "last-word-stays": (WORDS, f"torch.cat([{WORDS}[:, :-1], ids[:, w - 1 : w]], 1)"),
        "a-pixel-is-dropped-too": (WORDS, WORDS.replace(":w", ": w + 1"), "w:-1", "w + 1 : -1"),
        "whole-row-is-dropped": (PIXELS, NO_PIXELS),
        "pixels-instead-of-words": (PIXELS, NO_PIXELS, WORDS, "ids[:, :w]"),
        "dropped-words-are-zero": ("dropped, any_word", "dropped, 0"),
        "dropped-words-are-ignored": ("dropped, any_word", "dropped, -100"),
        "words-are-targets-too": (SILENT, ""),
        "dropped-words-are-targets": (
            SHIFTED,
            "torch.cat([words, ids[:, w:]], 1)[:, 1:]",
            SILENT,
            "",
        ),
        "pixels-are-no-targets": (SILENT, "targets[:, w - 1 :] = -100"),
        "first-pixel-is-no-target": (": w - 1]", ":w]"),
        "last-word-is-a-target": (": w - 1]", ": w - 2]"),
        "ignored-id-is-any-word": ("= -100", "= any_word"),
        "ignored-id-is-zero": ("= -100", "= 0"),
        "ignored-id-is-another": [("= -100", "= -1"), ("= -100", "= 100")],
        "dropped-rows-are-no-targets": (SILENT, f"{SILENT}\n    targets[dropped[:, 0]] = -100"),
        "only-dropped-rows-ignore-words": (SILENT, "targets[dropped[:, 0], : w - 1] = -100"),
        "targets-are-not-shifted": UNSHIFTED,
        "inputs-miss-the-first": ("w:-1]], dim=1)", "w:]], dim=1)[:, 1:]"),
        "shift-goes-the-other-way": ("w:-1]], dim=1)", "w:]], dim=1)[:, 1:]", *UNSHIFTED),
        "inputs-and-targets-swapped": (END, "return targets, inputs"),
    },
)


@exercise("18.5", "Drop captions for training")
def drop_captions(training_batch_answer) -> Message:
    def inputs(case: Case) -> tuple:
        levels, words, w = 5, 8, case["w"]
        said = case.integers("b w", levels, levels + words)
        ids = torch.cat([said, case.integers("b p", 0, levels)], dim=1)
        rate = case.random.choice([0.25, 0.4, 0.75])
        chance = torch.rand(len(ids), generator=case.generator, dtype=case.dtype)
        order = torch.randperm(len(ids), generator=case.generator)
        chance[order[0]], chance[order[1]] = rate / 2, (1 + rate) / 2  # one row of either kind
        return ids, w, levels + words, chance, rate

    return same_function(training_batch_answer, training_batch, inputs, mistakes=DROP, **PLAIN)


# -------------------------------------------------------------------------------------- the sampler


def next_logits(model, captions: Tensor, pixels: Tensor, any_word: int, scale: float) -> Tensor:
    silent = torch.full_like(captions, any_word)
    prompts = torch.cat([captions, silent])
    logits = model(torch.cat([prompts, pixels.repeat(2, 1)], dim=1))[:, -1]
    c, u = logits.chunk(2)
    return u + scale * (c - u)


TWICE, ALTERNATE = "pixels.repeat(2, 1)", "pixels.repeat_interleave(2, dim=0)"
PROMPTS, PAIRS = "cat([captions, silent])", "stack([captions, silent], dim=1).flatten(0, 1)"
HALVES, SECOND = "logits.chunk(2)", "(logits[::2], logits[1::2])"
ALONE = "model(torch.cat([captions, pixels], dim=1))[:, -1]"
SAMPLER = patches(
    next_logits,
    {
        **FORMULA_MISTAKES,
        "pixels-still-alternate": (TWICE, ALTERNATE),
        "every-second-row-is-read": [(HALVES, SECOND), (TWICE, ALTERNATE, HALVES, SECOND)],
        "captions-alternate": [(PROMPTS, PAIRS), (PROMPTS, PAIRS, HALVES, SECOND)],
        "rows-alternate-halves-are-read": (PROMPTS, PAIRS, TWICE, ALTERNATE),
        "first-picture-for-all-rows": (TWICE, "pixels[:1].expand(2 * len(pixels), -1)"),
        "log-probabilities-are-guided": (HALVES, "logits.log_softmax(dim=-1).chunk(2)"),
        "pixels-before-the-caption": (f"[prompts, {TWICE}]", f"[{TWICE}, prompts]"),
        "without-caption-without-pixels": (HALVES, f"{ALONE}, model(silent)[:, -1]"),
        "without-words-at-all": (HALVES, f"{ALONE}, model(pixels)[:, -1]"),
        "any-word-is-zero": ("captions, any_word", "captions, 0"),
        "probabilities-are-guided": (HALVES, "logits.softmax(dim=-1).chunk(2)"),
        "probabilities-for-logits": (f"return {FORMULA}", f"return ({FORMULA}).softmax(dim=-1)"),
        "other-logits-are-read": [("[:, -1]", there) for there in ("[:, 0]", "[:, -2]")],
        "mean-over-positions": ("[:, -1]", ".mean(dim=1)"),
    },
)


@exercise("18.6", "Find the bug")
def find_the_bug(next_logits_answer) -> Message:
    def inputs(case: Case) -> tuple:
        levels, words, ids = 6, 9, 16
        table, head = case.randn(f"{ids} e"), case.randn(f"e {ids}")

        def model(read: Tensor) -> Tensor:  # causal, and the order of the ids counts
            steps = torch.arange(1, read.shape[1] + 1)[:, None]
            return torch.tanh((table[read] * steps).cumsum(dim=1) / steps) @ head

        captions = case.integers("b w", levels, levels + words)
        pixels = case.integers("b p", 0, levels)
        return model, captions, pixels, levels + words, case.random.choice([0.5, 1.5, 2.5])

    return same_function(next_logits_answer, next_logits, inputs, mistakes=SAMPLER, **PLAIN)


open_exercise("18.7", "Guide away from a word")
