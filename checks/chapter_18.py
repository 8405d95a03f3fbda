"""Checks of the exercises of chapter 18: pictures from words."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from checks.engine.answer import written
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.message import Message, message
from checks.engine.patches import patches
from checks.engine.verdict import exercise, open_exercise


@exercise("18.1", "Which shape, and how many predictions?")
def which_shape(ids_shape, logits_shape, pixel_logits_shape, predictions) -> Message:
    written(ids_shape, logits_shape, pixel_logits_shape, predictions)
    b, w, pixels, v = 5, 4, 7 * 9, 12 + (2 + 10 + 3 + 4) + 1
    same_shape(ids_shape, (b, w + pixels), "b n")
    same_shape(logits_shape, (b, w + pixels - 1, v), "b n-1 v")
    same_shape(pixel_logits_shape, (b, pixels, v), "b HW v")
    same_number(
        predictions,
        b * pixels,
        0.5,
        "number-of-predictions",
        known={
            b * (pixels - 1): "first-pixel-is-predicted-too",
            b * (w + pixels - 1): "words-are-not-predicted",
            b * (w + pixels): "words-are-not-predicted",
            b * (pixels - w): "words-come-on-top",
            pixels: "one-picture-of-five",
            b: "one-for-each-pixel",
            b * pixels * v: "logits-are-not-predictions",
        },
    )
    return message("caption-shapes-right")


# ------------------------------------------------------------------------------------- the picture


def lean(images: Tensor, shifts: Tensor) -> Tensor:
    width = images.shape[-1]
    columns = torch.arange(width) - shifts[:, :, None]
    inside = (columns >= 0) & (columns < width)
    moved = images.gather(-1, columns.clamp(0, width - 1)[:, None])
    return moved * inside[:, None]


SHIFTS, RESULT = "shifts[:, :, None]", "moved * inside[:, None]"
LEFT, RIGHT, CLAMPED = "(columns >= 0)", "(columns < width)", "columns.clamp(0, width - 1)"
AROUND = (CLAMPED, "(columns % width)")
LEAN_MISTAKES = patches(
    lean,
    {
        "rows-wrap-around": (*AROUND, RESULT, "moved"),
        "border-is-repeated": (RESULT, "moved"),
        "moves-the-other-way": (f"- {SHIFTS}", f"+ {SHIFTS}"),
        "old-row-stays": (RESULT, "torch.where(inside[:, None], moved, images)"),
        "old-row-is-added": (RESULT, "images + moved * inside[:, None]"),
        "wraps-on-one-side": [
            (*AROUND, f"{LEFT} & {RIGHT}", LEFT),
            (*AROUND, f"{LEFT} & {RIGHT}", RIGHT),
        ],
        "border-pixel-is-lost": [
            (LEFT, "(columns > 0)"),
            (RIGHT, "(columns < width - 1)"),
            (LEFT, "(columns > 0)", RIGHT, "(columns < width - 1)"),
        ],
        "shifts-of-first-picture": (SHIFTS, "shifts[:1].expand_as(shifts)[:, :, None]"),
        "shift-of-first-row": (SHIFTS, "shifts[:, :1].expand_as(shifts)[:, :, None]"),
        "rows-from-the-bottom": (SHIFTS, "shifts.flip(1)[:, :, None]"),
        "only-one-direction": [
            (SHIFTS, f"shifts.clamp({m}=0)[:, :, None]") for m in ("min", "max")
        ],
        "sign-is-dropped": (SHIFTS, "shifts.abs()[:, :, None]"),
        "moves-one-too-far": [(SHIFTS, f"({SHIFTS} {sign} 1)") for sign in "+-"],
        "rows-are-mirrored": (RESULT, f"({RESULT}).flip(-1)"),
        "fills-with-ones": (RESULT, "torch.where(inside[:, None], moved, 1.0)"),
    },
)


@exercise("18.2", "Lean a picture")
def lean_a_picture(lean_answer) -> Message:
    def inputs(case: Case) -> tuple:
        width = case["W"]
        return case.randn("b 1 H W"), case.integers("b H", 1 - width, width)

    options = {"mistakes": LEAN_MISTAKES, "gradients": False, "trials": Trials(6)}
    return same_function(lean_answer, lean, inputs, **options)


# ---------------------------------------------------------------------------------------- the bits


def pixel_bits(logits: Tensor, ids: Tensor, w: int) -> Tensor:
    logs = logits[:, w - 1 : -1].log_softmax(dim=-1)
    taken = logs.gather(-1, ids[:, w:, None])[..., 0]
    return -taken.mean(dim=1) / math.log(2)


ROWS, TARGETS, BITS = "w - 1 : -1]", "ids[:, w:, None]", "-taken.mean(dim=1) / math.log(2)"
LOGS = ".log_softmax(dim=-1)"
OVER_ALL = [
    f"-taken.sum(dim=1) / math.log(2) / {n}" for n in ("ids.shape[1]", "(ids.shape[1] - 1)")
]
BITS_MISTAKES = patches(
    pixel_bits,
    {
        "words-are-paid": (ROWS, ":-1]", TARGETS, "ids[:, 1:, None]"),
        "divided-by-words-too": [(BITS, line) for line in OVER_ALL],
        "last-word-is-paid": (ROWS, "w - 2 : -1]", TARGETS, "ids[:, w - 1 :, None]"),
        "first-pixel-is-free": (ROWS, "w:-1]", TARGETS, "ids[:, w + 1 :, None]"),
        "last-pixel-is-free": (ROWS, "w - 1 : -2]", TARGETS, "ids[:, w:-1, None]"),
        "pixel-asked-at-its-own-place": [
            (ROWS, "w:]"),
            (ROWS, "w:-1]", TARGETS, "ids[:, w:-1, None]"),
            (ROWS, "1:]", TARGETS, "ids[:, 1:, None]"),
            (ROWS, ":]", TARGETS, "ids[:, :, None]"),
        ],
        "target-two-ahead": (ROWS, "w - 2 : -2]"),
        "given-in-nats": (" / math.log(2)", ""),
        "multiplied-by-log-2": ("/ math.log(2)", "* math.log(2)"),
        "bits-of-all-pixels": ("taken.mean", "taken.sum"),
        "nats-of-all-pixels": (BITS, "-taken.sum(dim=1)"),
        "log-probability-has-a-sign": ("-taken", "taken"),
        "softmax-over-places": [
            (LOGS, ".log_softmax(dim=1)"),
            (f"logits[:, {ROWS}{LOGS}", f"logits.log_softmax(dim=1)[:, {ROWS}"),
        ],
        "scores-not-normalised": (LOGS, ""),
        "blanks-softmax-twice": (LOGS, f".softmax(dim=-1){LOGS}"),
        "mean-before-the-logarithm": (BITS, "-taken.exp().mean(dim=1).log2()"),
        "perplexity-of-pixels": (BITS, "(-taken.mean(dim=1)).exp()"),
        "entropy-of-pixels": (BITS, "-(logs.exp() * logs).sum(dim=-1).mean(dim=1) / math.log(2)"),
        "mean-of-all-drawings": (BITS, f"({BITS}).mean().expand(len(ids))"),
    },
)


@exercise("18.3", "Bits per pixel")
def bits_per_pixel(pixel_bits_answer) -> Message:
    def inputs(case: Case) -> tuple:
        logits = torch.cat([case.randn("b w v"), case.randn("b p v")], dim=1)
        ids = torch.cat([case.integers(axes, 0, case["v"]) for axes in ("b w", "b p")], dim=1)
        return 2 * logits, ids, case["w"]

    options = {"mistakes": BITS_MISTAKES, "gradients": False, "trials": Trials(6)}
    return same_function(pixel_bits_answer, pixel_bits, inputs, **options)


# ------------------------------------------------------------------------------------ the guidance


def guided(conditional: Tensor, unconditional: Tensor, scale: float, allowed: Tensor) -> Tensor:
    logits = unconditional + scale * (conditional - unconditional)
    return logits.masked_fill(~allowed, -torch.inf).softmax(dim=-1)


FORMULA = "unconditional + scale * (conditional - unconditional)"
MASKED = "logits.masked_fill(~allowed, -torch.inf)"
PROBABLE = "conditional.softmax(-1), unconditional.softmax(-1)"
OF_BOTH = f"conditional, unconditional = {PROBABLE}\n    logits = {FORMULA}"
CUT = "logits = logits.masked_fill(~allowed, 0)"
ALL_SUM = "logits / logits.sum(dim=-1, keepdim=True)"
BOTH_MASKED = "(x.masked_fill(~allowed, -torch.inf) for x in (conditional, unconditional))"
LAST = f"return {MASKED}.softmax(dim=-1)"
GUIDANCE_MISTAKES = patches(
    guided,
    {
        "scale-counts-from-0": (FORMULA, "conditional + scale * (conditional - unconditional)"),
        "guides-away-from-the-caption": (
            FORMULA,
            "conditional + scale * (unconditional - conditional)",
        ),
        "probabilities-are-guided": [
            (f"logits = {FORMULA}", OF_BOTH, LAST, f"{CUT}\n    return {ALL_SUM}"),
            (f"logits = {FORMULA}", OF_BOTH, LAST, f"{CUT}.clamp(min=0)\n    return {ALL_SUM}"),
            (f"logits = {FORMULA}", OF_BOTH, LAST, CUT.replace("logits =", "return")),
            (f"logits = {FORMULA}", OF_BOTH),
        ],
        "masked-before-the-guidance": (
            *("    logits =", f"    conditional, unconditional = {BOTH_MASKED}\n    logits ="),
            *(MASKED, "logits"),
        ),
        "allowed-is-inverted": ("~allowed", "allowed"),
        "allowed-is-not-used": (MASKED, "logits"),
        "forbidden-logits-are-zero": ("-torch.inf", "0.0"),
        "rest-is-not-rescaled": (LAST, "return logits.softmax(dim=-1) * allowed"),
        "softmax-over-the-drawings": ("softmax(dim=-1)", "softmax(dim=0)"),
        "logits-for-probabilities": [(".softmax(dim=-1)", ""), (LAST, "return logits")],
        "log-probabilities-returned": (".softmax", ".log_softmax"),
        "guidance-is-missing": (FORMULA, "conditional"),
        "only-without-caption": (FORMULA, "unconditional"),
        "scale-is-a-temperature": (FORMULA, "scale * conditional"),
        "difference-alone": (FORMULA, "scale * (conditional - unconditional)"),
        "too-much-is-subtracted": (FORMULA, "conditional - scale * unconditional"),
        "scaled-difference-is-missing": (FORMULA, "2 * conditional - unconditional"),
    },
)


@exercise("18.4", "Classifier-free guidance")
def classifier_free_guidance(guided_answer) -> Message:
    def inputs(case: Case) -> tuple:
        allowed = case.bools("v")
        order = torch.randperm(len(allowed), generator=case.generator)
        allowed[order[0]], allowed[order[1]] = True, False
        scale = case.random.choice([0.5, 1.5, 2.5, 4.0])
        return case.randn("b v"), case.randn("b v"), scale, allowed

    options = {"mistakes": GUIDANCE_MISTAKES, "gradients": False, "trials": Trials(6)}
    return same_function(guided_answer, guided, inputs, **options)


# --------------------------------------------------------------------------------------- the batch


def training_batch(
    ids: Tensor, w: int, any_word: int, chance: Tensor, rate: float
) -> tuple[Tensor, Tensor]:
    dropped = (chance < rate)[:, None]
    words = torch.where(dropped, any_word, ids[:, :w])
    inputs = torch.cat([words, ids[:, w:-1]], dim=1)
    targets = ids[:, 1:].clone()
    targets[:, : w - 1] = -100
    return inputs, targets


WORDS, SILENT = "torch.where(dropped, any_word, ids[:, :w])", "targets[:, : w - 1] = -100"
DROP_MISTAKES = patches(
    training_batch,
    {
        "rest-is-dropped": ("chance < rate", "chance >= rate"),
        "every-caption-is-dropped": (WORDS, "torch.full_like(ids[:, :w], any_word)"),
        "no-caption-is-dropped": (WORDS, "ids[:, :w]"),
        "first-row-decides": ("(chance < rate)", "(chance < rate)[:1]"),
        "one-word-is-dropped": [
            (WORDS, "torch.cat([torch.where(dropped, any_word, ids[:, :1]), ids[:, 1:w]], 1)"),
            (WORDS, f"torch.cat([ids[:, : w - 1], {WORDS}[:, -1:]], 1)"),
        ],
        "a-pixel-is-dropped-too": (
            *(WORDS, "torch.where(dropped, any_word, ids[:, : w + 1])"),
            *("ids[:, w:-1]", "ids[:, w + 1 : -1]"),
        ),
        "whole-row-is-dropped": ("ids[:, w:-1]", "torch.where(dropped, any_word, ids[:, w:-1])"),
        "words-are-targets-too": (SILENT, ""),
        "dropped-words-are-targets": (
            *("ids[:, 1:].clone()", "torch.cat([words, ids[:, w:]], 1)[:, 1:]", SILENT, ""),
        ),
        "first-pixel-is-no-target": (": w - 1]", ":w]"),
        "last-word-is-a-target": (": w - 1]", ": w - 2]"),
        "ignored-id-is-any-word": ("= -100", "= any_word"),
        "ignored-id-is-zero": ("= -100", "= 0"),
        "ignored-id-is-minus-one": ("= -100", "= -1"),
        "dropped-rows-are-no-targets": (SILENT, f"{SILENT}\n    targets[dropped[:, 0]] = -100"),
        "only-dropped-rows-ignore-words": (SILENT, "targets[dropped[:, 0], : w - 1] = -100"),
        "targets-are-not-shifted": ("ids[:, 1:].clone()", "ids[:, :-1].clone()", ": w - 1]", ":w]"),
        "inputs-and-targets-swapped": ("return inputs, targets", "return targets, inputs"),
    },
)


@exercise("18.5", "Drop captions for training")
def drop_captions(training_batch_answer) -> Message:
    def inputs(case: Case) -> tuple:
        levels, words, w = 5, 8, case["w"]
        said = case.integers("b w", levels, levels + words)
        ids = torch.cat([said, case.integers("b p", 0, levels)], dim=1)
        rate = case.random.choice([0.25, 0.5, 0.75])
        chance = torch.rand(len(ids), generator=case.generator, dtype=case.dtype)
        order = torch.randperm(len(ids), generator=case.generator)
        chance[order[0]], chance[order[1]] = rate / 2, (1 + rate) / 2  # one row of either kind
        return ids, w, levels + words, chance, rate

    options = {"mistakes": DROP_MISTAKES, "trials": Trials(6)}
    return same_function(training_batch_answer, training_batch, inputs, **options)


# -------------------------------------------------------------------------------------- the sampler


def next_logits(
    model: Callable, captions: Tensor, pixels: Tensor, any_word: int, scale: float
) -> Tensor:
    silent = torch.full_like(captions, any_word)
    prompts = torch.cat([captions, silent])
    logits = model(torch.cat([prompts, pixels.repeat(2, 1)], dim=1))[:, -1]
    conditional, unconditional = logits.chunk(2)
    return unconditional + scale * (conditional - unconditional)


TWICE, ALTERNATE = "pixels.repeat(2, 1)", "pixels.repeat_interleave(2, dim=0)"
PROMPTS = "torch.cat([captions, silent])"
PAIRS = "torch.stack([captions, silent], dim=1).flatten(0, 1)"
HALVES, SECOND = "logits.chunk(2)", "(logits[::2], logits[1::2])"
NEXT = "conditional, unconditional ="
SAMPLER_MISTAKES = patches(
    next_logits,
    {
        "pixels-still-alternate": (TWICE, ALTERNATE),
        "every-second-row-is-read": [(HALVES, SECOND), (TWICE, ALTERNATE, HALVES, SECOND)],
        "captions-alternate": [(PROMPTS, PAIRS), (PROMPTS, PAIRS, HALVES, SECOND)],
        "rows-alternate-halves-are-read": (PROMPTS, PAIRS, TWICE, ALTERNATE),
        "halves-are-swapped": (NEXT, "unconditional, conditional ="),
        "first-picture-for-all-rows": (TWICE, "pixels[:1].expand(2 * len(pixels), -1)"),
        "first-caption-for-all-rows": ("cat([captions,", "cat([captions[:1].expand_as(captions),"),
        "pixels-in-reverse-rows": (TWICE, "torch.cat([pixels, pixels.flip(0)])"),
        "without-caption-without-pixels": (
            HALVES,
            "model(torch.cat([captions, pixels], dim=1))[:, -1], model(silent)[:, -1]",
        ),
        "both-have-the-caption": (PROMPTS, "torch.cat([captions, captions])"),
        "scale-counts-from-0": ("return unconditional +", "return conditional +"),
        "guidance-is-missing": (FORMULA, "conditional"),
        "probabilities-are-guided": (HALVES, "logits.softmax(dim=-1).chunk(2)"),
        "probabilities-for-logits": (f"return {FORMULA}", f"return ({FORMULA}).softmax(dim=-1)"),
        "first-logits-are-read": ("[:, -1]", "[:, 0]"),
    },
)


@exercise("18.6", "Find the bug")
def find_the_bug(next_logits_answer) -> Message:
    def inputs(case: Case) -> tuple:
        levels, words = 6, 9
        ids = levels + words + 1
        table, head = case.randn(f"{ids} e"), case.randn(f"e {ids}")

        def model(read: Tensor) -> Tensor:  # causal, as a GPT is
            return torch.tanh(table[read].cumsum(dim=1)) @ head

        captions = case.integers("b w", levels, levels + words)
        pixels = case.integers("b p", 0, levels)
        return model, captions, pixels, levels + words, case.random.choice([0.5, 1.5, 2.5])

    options = {"mistakes": SAMPLER_MISTAKES, "gradients": False, "trials": Trials(6)}
    return same_function(next_logits_answer, next_logits, inputs, **options)


open_exercise("18.7", "Guide away from a word")
