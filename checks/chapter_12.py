"""Checks of the exercises of chapter 12: losses of sequences, min-p, a cache, a reader."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from checks.engine.answer import written
from checks.engine.calls import naming
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_shape
from checks.engine.message import Message, message
from checks.engine.modules import randomize
from checks.engine.patches import patches
from checks.engine.verdict import exercise, open_exercise
from utils.cache import KeyValueCache
from utils.data import ANY_DIGIT, INK_LEVELS
from utils.generation import generate
from utils.language_model import LanguageModel
from utils.masking import causal_mask
from utils.text import PADDING


@exercise("12.1", "Logits, keys, sequences")
def logits_keys_sequences(logits_shape, keys_shape, sequence_shape) -> Message:
    written(logits_shape, keys_shape, sequence_shape)
    model = LanguageModel(
        vocab_size=50, embed_dim=24, num_heads=4, mlp_dim=30, num_layers=3, max_length=20
    ).eval()
    ids, cache = torch.zeros(5, 7, dtype=torch.long), KeyValueCache()
    with torch.no_grad():
        logits = model(ids, cache=cache)
        model(ids[:, :2], cache=cache)
        layer = model.encoder.layers[0].attn
        keys, _ = cache.update(layer, *2 * [torch.zeros(5, 4, 0, 6)])
    generated = generate(model, ids, 8, seed=0)
    same_shape(logits_shape, logits.shape, "b n v")
    same_shape(keys_shape, keys.shape, "b h j d")
    same_shape(sequence_shape, generated.shape, "b n")
    return message("gives-all-three-shapes")


# ------------------------------------------------------------------------------------- the blanks


def blank_loss(logits: Tensor, ids: Tensor, hidden: Tensor) -> Tensor:
    logs = logits.log_softmax(dim=-1)
    losses = -logs.gather(2, ids[..., None])[..., 0]
    return losses[hidden].mean()


def some_blanks(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, ids and blanks; each sequence has a different number of them, and at least one."""
    logits, (b, n) = case.randn("b n v"), case.shape("b n")
    ids = case.integers("b n", 0, case["v"])
    # as many blanks in sequence s as s + 1, up to n: means of means differ from the mean
    order = torch.rand(b, n, generator=case.generator).argsort(dim=1)
    hidden = order < (1 + torch.arange(b) % n)[:, None]
    return logits * 2, ids, hidden


SHIFTED = ("logits.log", "logits[:, :-1].log", "ids[..., None]", "ids[:, 1:, None]")
BLANK_MISTAKES = patches(
    blank_loss,
    {
        "all-places-counted": ("[hidden]", ""),
        "blanks-divided-by-all-places": ("losses[hidden]", "(losses * hidden)"),
        "visible-places-counted": ("[hidden]", "[~hidden]"),
        "blanks-shifted": (*SHIFTED, "[hidden]", "[hidden[:, 1:]]"),
        "blanks-shifted-back": (*SHIFTED, "[hidden]", "[hidden[:, :-1]]"),
        "mean-of-text-means": ("losses[hidden]", "((losses * hidden).sum(1) / hidden.sum(1))"),
        "blanks-summed": (".mean()", ".sum()"),
        "divided-by-texts": (".mean()", ".sum() / len(logits)"),
        "loss-in-bits": (".mean()", ".mean() / math.log(2)"),
        "blanks-softmax-twice": ("logits.log", "logits.softmax(dim=-1).log"),
        "sign-missing": ("-logs", "logs"),
        "scores-not-normalized": (".log_softmax(dim=-1)", ""),
        "softmax-over-places": ("dim=-1", "dim=1"),
        "masked-scores-as-zero": ("logits.log", "(logits * hidden[..., None]).log", "[hidden]", ""),
    },
)


@exercise("12.2", "Several blanks")
def several_blanks(answer) -> Message:
    return same_function(answer, blank_loss, some_blanks, mistakes=BLANK_MISTAKES)


# ------------------------------------------------------------------------- the cost of a sequence


def sequence_bits(logits: Tensor, ids: Tensor) -> Tensor:
    logs = logits[:, :-1].log_softmax(dim=-1)
    bits = -logs.gather(2, ids[:, 1:, None])[..., 0] / math.log(2)
    real = ids[:, 1:] != PADDING
    return (bits * real).sum(dim=1)


def some_sequences(case: Case) -> tuple[Tensor, Tensor]:
    """Logits and ids of sequences of several lengths, padded at the end."""
    logits = case.randn("b n v") * 2
    b, n = case.shape("b n")
    ids = case.integers("b n", 1, case["v"])
    lengths = 2 + torch.arange(b) % (n - 1)
    return logits, ids.masked_fill(torch.arange(n) >= lengths[:, None], PADDING)


BITS_MISTAKES = patches(
    sequence_bits,
    {
        "given-in-nats": (" / math.log(2)", ""),
        "multiplied-by-log-2": (" / math.log(2)", " * math.log(2)"),
        "padding-is-paid": ("bits * real", "bits"),
        "nats-and-padding-paid": (" / math.log(2)", "", "bits * real", "bits"),
        "padding-after-the-end-is-paid": ("real = ids[:, 1:]", "real = ids[:, :-1]"),
        "target-at-same-place": [
            ("[:, :-1]", "", "ids[:, 1:", "ids[:, 0:"),
            ("[:, :-1]", "[:, 1:]"),
        ],
        "target-two-ahead": ("[:, :-1]", "[:, :-2]", "ids[:, 1:", "ids[:, 2:"),
        "mean-instead-of-sum": (".sum(dim=1)", ".sum(dim=1) / real.sum(dim=1)"),
        "mean-over-all-places": (".sum(", ".mean("),
        "log-probability-has-a-sign": ("-logs", "logs"),
        "all-texts-together": (".sum(dim=1)", ".sum()"),
        "mean-of-the-texts": (".sum(dim=1)", ".sum(dim=1).mean()"),
        "entropy-instead": (
            "-logs.gather(2, ids[:, 1:, None])[..., 0]",
            "-(logs.exp() * logs).sum(dim=-1)",
        ),
        "sum-over-texts": ("dim=1", "dim=0"),
        "scores-summed": (".log_softmax(dim=-1)", ""),
        "softmax-over-places": [
            ("dim=-1", "dim=1"),
            ("[:, :-1].log_softmax(dim=-1)", ".log_softmax(dim=1)[:, :-1]"),
        ],
        "one-token-short": (".sum(", "[:, 1:].sum("),
    },
)


@exercise("12.3", "What a sequence costs")
def what_a_sequence_costs(answer) -> Message:
    return same_function(answer, sequence_bits, some_sequences, mistakes=BITS_MISTAKES)


# ------------------------------------------------------------------------------------------ min-p


def min_p(logits: Tensor, fraction: float) -> Tensor:
    chances = logits.softmax(dim=-1)
    least = fraction * chances.amax(dim=-1, keepdim=True)
    kept = chances.masked_fill(chances < least, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)


def some_logits(case: Case) -> tuple[Tensor, float]:
    """Logits, and a fraction; at 1, only the most probable token is left."""
    logits = case.randn("b n v") * 1.5
    return logits, 1.0 if case.random.random() < 0.3 else 0.15 + 0.25 * case.random.random()


LEAST = "fraction * chances.amax(dim=-1, keepdim=True)"
NORMED = "kept / kept.sum(dim=-1, keepdim=True)"
MIN_P_MISTAKES = patches(
    min_p,
    {
        "not-divided-by-what-is-left": (NORMED, "kept"),
        "share-is-of-the-largest": (LEAST, "fraction"),
        "this-is-top-p": (
            *(LEAST, "chances[..., None, :] * (chances[..., None, :] > chances[..., None])"),
            *("chances < least", "least.sum(dim=-1) >= fraction"),
        ),
        "scores-are-compared": ("fraction * chances", "fraction * logits", "chances <", "logits <"),
        "gpt-largest-of-all-rows": ("amax(dim=-1", "amax(dim=(0, 1, 2)"),
        "largest-over-the-texts": ("amax(dim=-1", "amax(dim=0"),
        "largest-over-the-places": ("amax(dim=-1", "amax(dim=1"),
        "keeps-the-unlikely": ("<", ">="),
        "threshold-left-out": ("<", "<="),
        "softmax-over-places": ("dim=-1", "dim=1"),
        "softmax-of-probabilities": (NORMED, "kept.softmax(dim=-1)"),
        "cut-scores-set-to-zero": (
            *("chances.masked_fill", "logits.masked_fill"),
            *(NORMED, "kept.softmax(dim=-1)"),
        ),
        "nothing-cut": (NORMED, "chances"),
        "divided-by-the-largest": ("kept.sum(", "kept.amax("),
        "divided-over-everything": (NORMED, "kept / kept.sum()"),
        "log-probabilities-returned": (NORMED, f"({NORMED}).log()"),
        "probabilities-with-one-minus": ("fraction *", "(1 - fraction) *"),
    },
)


@exercise("12.4", "A fourth way to sample")
def a_fourth_way_to_sample(answer) -> Message:
    return same_function(
        answer, min_p, some_logits, mistakes=MIN_P_MISTAKES, trials=Trials(number=5)
    )


# --------------------------------------------------------------------------------------- the cache


def small_model(case: Case, **sizes: Any) -> LanguageModel:
    """A model with random weights, in the precision of the case."""
    sizes = {"embed_dim": case["h"] * case["d"], "num_heads": case["h"], "mlp_dim": 12} | sizes
    sizes = {"vocab_size": case["v"] + 3, "num_layers": 3, "max_length": 24} | sizes
    model = randomize(LanguageModel(**sizes), seed=case["v"])
    return model.to(case.dtype).eval()


def some_parts(case: Case) -> tuple[LanguageModel, tuple[Tensor, ...]]:
    """A model, and sequences in parts: some tokens, then one, then two, then one."""
    ids = torch.randint(case["v"] + 3, (case["b"], case["n"] + 4), generator=case.generator)
    return small_model(case), ids.split([case["n"], 1, 2, 1], dim=1)


def in_parts(step: Callable) -> Callable:
    """Let a step compute the parts of a sequence one after another, with one cache."""

    def run_parts(model: LanguageModel, parts: tuple[Tensor, ...]) -> Tensor:
        cache = KeyValueCache()
        logits = []
        with torch.no_grad():
            for part in parts:
                logits.append(step(model, part, cache))
        if not all(isinstance(one, Tensor) and one.ndim == 3 for one in logits):
            return logits[0]
        return torch.cat(logits, dim=1)

    return run_parts


def right_step(model: LanguageModel, ids: Tensor, cache: KeyValueCache) -> Tensor:
    c, n = cache.length, ids.shape[1]
    x = model.embedding(ids, c)
    mask = causal_mask(c + n)[c:]
    x = model.encoder(x, mask, cache)
    return model.head(x)


MASK, START_AGAIN = "causal_mask(c + n)[c:]", ("ids, c)", "ids, 0)")
STEP_MISTAKES = patches(
    right_step,
    {
        "positions-start-again": START_AGAIN,
        "positions-one-too-far": [("ids, c)", "ids, c + (c > 0))"), ("ids, c)", "ids, c + 1)")],
        "positions-one-too-near": ("ids, c)", "ids, max(c - 1, 0))"),
        "positions-after-the-part": ("ids, c)", "ids, c + n if c else 0)"),
        "new-tokens-see-all": (MASK, "None"),
        "first-part-sees-all": (MASK, f"{MASK} if c else None"),
        "cache-is-not-used": (", cache)", ")", MASK, "causal_mask(n)"),
        "earlier-tokens-hidden": (MASK, "F.pad(causal_mask(n), (c, 0))"),
        "first-rows-of-the-mask": (MASK, "causal_mask(c + n)[:n]"),
        "new-tokens-see-no-new-ones": (MASK, "F.pad(torch.eye(n) > 0, (c, 0), value=True)"),
        "mask-upside-down": (MASK, f"~{MASK}"),
        "mask-and-positions": (*START_AGAIN, MASK, "None"),
        "scores-are-asked": ("model.head(x)", "x"),
        "last-norm-forgotten": (
            "x = model.encoder(x",
            "for layer in model.encoder.layers:\n        x = layer(x",
        ),
    },
)
CACHE_MISTAKES = {cause: [*map(in_parts, steps)] for cause, steps in STEP_MISTAKES.items()}


def read_in_parts(model: nn.Module, parts: tuple[Tensor, ...]) -> Tensor:
    """What the model itself gives for the whole sequence."""
    with torch.no_grad():
        return model(torch.cat(parts, dim=1))


@naming
def _same_steps(answer: Callable) -> Message:
    forbidden = dict.fromkeys(("LanguageModel.forward", "generate"), "write-the-steps-of-forward")
    return same_function(
        in_parts(answer),
        read_in_parts,
        some_parts,
        mistakes=CACHE_MISTAKES,
        forbidden=forbidden,
        gradients=False,
    )


@exercise("12.5", "Find the bug")
def find_the_bug(step) -> Message:
    written(step)
    _same_steps(step)
    return message("parts-and-whole-agree")


# -------------------------------------------------------------------------------------- the reader


def digit_bits(model: Callable[[Tensor], Tensor], pixels: Tensor) -> Tensor:
    bits = []
    for digit in range(10):
        word = torch.full((len(pixels), 1), INK_LEVELS + digit)
        ids = torch.cat([word, pixels], dim=1)
        with torch.no_grad():
            logits = model(ids[:, :-1])
        losses = F.cross_entropy(logits.mT, pixels, reduction="none")
        bits.append(losses.sum(dim=1) / math.log(2))
    return torch.stack(bits, dim=1)


def some_drawings(case: Case) -> tuple[LanguageModel, Tensor]:
    model = small_model(case, vocab_size=28, max_length=case["n"], num_layers=1)
    pixels = torch.randint(INK_LEVELS, case.shape("b n"), generator=case.generator)
    return model, pixels


WORD, BITS = "INK_LEVELS + digit", "torch.stack(bits, dim=1)"
DIGIT_MISTAKES = patches(
    digit_bits,
    {
        "words-begin-at-17": (WORD, "digit"),
        "words-one-further": (WORD, "INK_LEVELS + 1 + digit"),
        "words-one-short": (WORD, "INK_LEVELS - 1 + digit"),
        "word-is-not-fed": ("ids[:, :-1]", "pixels"),
        "one-word-for-all": (WORD, str(ANY_DIGIT)),
        "given-in-nats": (" / math.log(2)", ""),
        "bits-a-pixel": ("losses.sum(", "losses.mean("),
        "first-pixel-free": ("losses.sum(", "losses[:, 1:].sum("),
        "pixel-asked-at-its-own-place": ("logits.mT, pixels", "logits[:, 1:].mT, pixels[:, :-1]"),
        "pixels-shifted": ("logits.mT, pixels", "logits[:, :-1].mT, pixels[:, 1:]"),
        "blank-pixels-free": ("losses.sum(", "(losses * (pixels != PADDING)).sum("),
        "log-probability-has-a-sign": ("losses.sum(", "-losses.sum("),
        "digits-are-rows": (BITS, "torch.stack(bits)"),
        "argmin-returned": (BITS, f"{BITS}.argmin(dim=1)"),
        "argmax-returned": (BITS, f"{BITS}.argmax(dim=1)"),
        "softmax-returned": (BITS, f"(-{BITS} * math.log(2)).softmax(dim=1)"),
        "drawings-added-up": (BITS, f"{BITS}.sum(dim=0)"),
        "digits-backwards": (BITS, f"{BITS}.flip(1)"),
    },
)


@exercise("12.6", "A GPT that draws can read")
def a_gpt_that_draws_can_read(answer) -> Message:
    return same_function(
        answer, digit_bits, some_drawings, mistakes=DIGIT_MISTAKES, gradients=False
    )


open_exercise("12.7", "A language of your own")
