"""Checks of the exercises of chapter 12: scores of texts, a way to choose, a cache, a drawer."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
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
from checks.engine.modules import randomise
from checks.engine.verdict import exercise, open_exercise
from utils.cache import KeyValueCache
from utils.data import ANY_DIGIT, INK_LEVELS
from utils.generation import generate
from utils.language_model import LanguageModel
from utils.masking import causal_mask
from utils.text import PADDING


@exercise("12.1", "Scores, keys, texts")
def scores_keys_texts(scores_shape, keys_shape, text_shape) -> Message:
    written(scores_shape, keys_shape, text_shape)
    model = LanguageModel(
        vocab_size=50, embed_dim=24, num_heads=4, mlp_dim=30, num_layers=3, max_length=20
    ).eval()
    ids, cache = torch.zeros(5, 7, dtype=torch.long), KeyValueCache()
    with torch.no_grad():
        scores = model(ids, cache=cache)
        model(ids[:, :2], cache=cache)
        layer = model.encoder.layers[0].attn
        keys, _ = cache.update(layer, *2 * [torch.zeros(5, 4, 0, 6)])
    text = generate(model, ids, 8, seed=0)
    same_shape(scores_shape, scores.shape, "b n v")
    same_shape(keys_shape, keys.shape, "b h j d")
    same_shape(text_shape, text.shape, "b n")
    return message("gives-all-three-shapes")


# ------------------------------------------------------------------------------------- the blanks


def blank_loss(scores: Tensor, ids: Tensor, hidden: Tensor) -> Tensor:
    return F.cross_entropy(scores[hidden], ids[hidden])


def some_blanks(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, ids and blanks; each text has another number of them, and at least one."""
    scores, (b, n) = case.randn("b n v"), case.shape("b n")
    ids = case.integers("b n", 0, case["v"])
    # as many blanks in text t as t + 1, up to n: means of means differ from the mean
    order = torch.rand(b, n, generator=case.generator).argsort(dim=1)
    hidden = order < (1 + torch.arange(b) % n)[:, None]
    return scores * 2, ids, hidden


def everywhere(scores: Tensor, ids: Tensor, hidden: Tensor) -> Tensor:
    """The surprise at every place."""
    return F.cross_entropy(scores.mT, ids, reduction="none")


BLANK_MISTAKES: dict[str, Callable] = {
    "all-places-counted": lambda s, i, h: everywhere(s, i, h).mean(),
    "blanks-divided-by-all-places": lambda s, i, h: (everywhere(s, i, h) * h).mean(),
    "visible-places-counted": lambda s, i, h: everywhere(s, i, h)[~h].mean(),
    "blanks-shifted": lambda s, i, h: everywhere(s[:, :-1], i[:, 1:], h)[h[:, 1:]].mean(),
    "blanks-shifted-back": lambda s, i, h: everywhere(s[:, :-1], i[:, 1:], h)[h[:, :-1]].mean(),
    "mean-of-text-means": lambda s, i, h: (
        (everywhere(s, i, h) * h).sum(dim=1) / h.sum(dim=1)
    ).mean(),
    "blanks-summed": lambda s, i, h: everywhere(s, i, h)[h].sum(),
    "divided-by-texts": lambda s, i, h: everywhere(s, i, h)[h].sum() / len(s),
    "loss-in-bits": lambda s, i, h: blank_loss(s, i, h) / math.log(2),
    "blanks-softmax-twice": lambda s, i, h: blank_loss(s.softmax(dim=-1), i, h),
    "sign-missing": lambda s, i, h: -blank_loss(s, i, h),
    "scores-not-normalised": lambda s, i, h: F.nll_loss(s[h], i[h]),
    "softmax-over-places": lambda s, i, h: F.nll_loss(s.log_softmax(dim=1)[h], i[h]),
    "masked-scores-as-zero": lambda s, i, h: F.cross_entropy(
        (s * h[..., None]).mT, i, reduction="mean"
    ),
}


@exercise("12.2", "Several blanks")
def several_blanks(answer) -> Message:
    return same_function(answer, blank_loss, some_blanks, mistakes=BLANK_MISTAKES)


# ------------------------------------------------------------------------------ the price of a text


def surprises(scores: Tensor, ids: Tensor, first: int = 1) -> Tensor:
    """What each token after the first costs, in bits: (b, n - 1)."""
    loss = F.cross_entropy(scores[:, :-1].mT, ids[:, 1:], reduction="none")
    return loss / math.log(2)


def text_bits(scores: Tensor, ids: Tensor) -> Tensor:
    return (surprises(scores, ids) * (ids[:, 1:] != PADDING)).sum(dim=1)


def some_texts(case: Case) -> tuple[Tensor, Tensor]:
    """Scores and ids of texts of several lengths, padding behind them."""
    scores = case.randn("b n v") * 2
    b, n = case.shape("b n")
    ids = case.integers("b n", 1, case["v"])
    lengths = 2 + torch.arange(b) % (n - 1)
    return scores, ids.masked_fill(torch.arange(n) >= lengths[:, None], PADDING)


def same_place(scores: Tensor, ids: Tensor) -> Tensor:
    loss = F.cross_entropy(scores.mT, ids, reduction="none")
    return (loss * (ids != PADDING)).sum(dim=1) / math.log(2)


def padding_of_inputs(scores: Tensor, ids: Tensor) -> Tensor:
    return (surprises(scores, ids) * (ids[:, :-1] != PADDING)).sum(dim=1)


def by_entropy(scores: Tensor, ids: Tensor) -> Tensor:
    log = scores.log_softmax(dim=-1)
    each = -(log.exp() * log).sum(dim=-1)[:, :-1] / math.log(2)
    return (each * (ids[:, 1:] != PADDING)).sum(dim=1)


def twice_shifted(scores: Tensor, ids: Tensor) -> Tensor:
    if ids.shape[1] < 3:
        return text_bits(scores, ids)
    loss = F.cross_entropy(scores[:, :-2].mT, ids[:, 2:], reduction="none") / math.log(2)
    return (loss * (ids[:, 2:] != PADDING)).sum(dim=1)


TEXT_MISTAKES: dict[str, Callable] = {
    "given-in-nats": lambda s, i: text_bits(s, i) * math.log(2),
    "padding-is-paid": lambda s, i: surprises(s, i).sum(dim=1),
    "padding-after-the-end-is-paid": padding_of_inputs,
    "target-at-same-place": same_place,
    "target-two-ahead": twice_shifted,
    "mean-instead-of-sum": lambda s, i: text_bits(s, i) / (i[:, 1:] != PADDING).sum(dim=1),
    "mean-over-all-places": lambda s, i: text_bits(s, i) / (i.shape[1] - 1),
    "log-probability-has-a-sign": lambda s, i: -text_bits(s, i),
    "all-texts-together": lambda s, i: text_bits(s, i).sum(),
    "mean-of-the-texts": lambda s, i: text_bits(s, i).mean(),
    "entropy-instead": by_entropy,
    "sum-over-texts": lambda s, i: (surprises(s, i) * (i[:, 1:] != PADDING)).sum(dim=0),
    "scores-summed": lambda s, i: (
        (-s[:, :-1].gather(2, i[:, 1:, None])[..., 0] * (i[:, 1:] != PADDING)).sum(dim=1)
        / math.log(2)
    ),
    "one-token-short": lambda s, i: (surprises(s, i) * (i[:, 1:] != PADDING))[:, 1:].sum(dim=1),
}


@exercise("12.3", "What a text costs")
def what_a_text_costs(answer) -> Message:
    return same_function(answer, text_bits, some_texts, mistakes=TEXT_MISTAKES)


# ------------------------------------------------------------------------------------------ min-p


def min_p(scores: Tensor, share: float) -> Tensor:
    # Written in logarithms: the checks are handed out, the solution is not.
    least = scores.amax(dim=-1, keepdim=True) + math.log(share)
    return scores.masked_fill(scores < least, -torch.inf).softmax(dim=-1)


def some_scores(case: Case) -> tuple[Tensor, float]:
    """Scores, and a share; at 1, the most probable token alone is left."""
    scores = case.randn("b n v") * 1.5
    return scores, 1.0 if case.random.random() < 0.3 else 0.15 + 0.25 * case.random.random()


def cut(probabilities: Tensor, keep: Tensor) -> Tensor:
    kept = probabilities.masked_fill(~keep, 0.0)
    return kept / kept.sum(dim=-1, keepdim=True)


def nucleus(scores: Tensor, share: float) -> Tensor:
    ranked, order = scores.softmax(dim=-1).sort(dim=-1, descending=True)
    kept = cut(ranked, ranked.cumsum(dim=-1) - ranked < share)
    return torch.zeros_like(scores).scatter(-1, order, kept)


def absolute(scores: Tensor, share: float) -> Tensor:
    probabilities = scores.softmax(dim=-1)
    return cut(probabilities, probabilities >= share)


def cut_scores(scores: Tensor, share: float) -> Tensor:
    return cut(scores.softmax(dim=-1), scores >= share * scores.amax(dim=-1, keepdim=True))


def largest(*axes: int) -> Callable:
    def version(scores: Tensor, share: float) -> Tensor:
        probabilities = scores.softmax(dim=-1)
        return cut(probabilities, probabilities >= share * probabilities.amax(axes, keepdim=True))

    return version


def others(scores: Tensor, share: float) -> Tensor:
    probabilities = scores.softmax(dim=-1)
    return cut(probabilities, probabilities < share * probabilities.amax(dim=-1, keepdim=True))


def not_normed(scores: Tensor, share: float) -> Tensor:
    probabilities = scores.softmax(dim=-1)
    enough = share * probabilities.amax(dim=-1, keepdim=True)
    return probabilities.masked_fill(probabilities < enough, 0.0)


def softmax_again(scores: Tensor, share: float) -> Tensor:
    return not_normed(scores, share).softmax(dim=-1)


def open_zeros(scores: Tensor, share: float) -> Tensor:
    probabilities = scores.softmax(dim=-1)
    enough = share * probabilities.amax(dim=-1, keepdim=True)
    return scores.masked_fill(probabilities < enough, 0.0).softmax(dim=-1)


MIN_P_MISTAKES: dict[str, Callable] = {
    "not-divided-by-what-is-left": not_normed,
    "share-is-of-the-largest": absolute,
    "this-is-top-p": nucleus,
    "scores-are-compared": cut_scores,
    "gpt-largest-of-all-rows": largest(0, 1, 2),
    "largest-over-the-texts": largest(0),
    "largest-over-the-places": largest(1),
    "keeps-the-unlikely": others,
    "softmax-of-probabilities": softmax_again,
    "cut-scores-set-to-zero": open_zeros,
    "nothing-cut": lambda scores, share: scores.softmax(dim=-1),
    "divided-by-the-largest": lambda scores, share: (
        not_normed(scores, share) / scores.softmax(dim=-1).amax(dim=-1, keepdim=True)
    ),
    "divided-over-everything": lambda scores, share: (
        not_normed(scores, share) / not_normed(scores, share).sum()
    ),
    "log-probabilities-returned": lambda scores, share: min_p(scores, share).log(),
    "probabilities-with-one-minus": lambda scores, share: min_p(scores, 1 - share),
}


@exercise("12.4", "A fourth way to choose")
def a_fourth_way_to_choose(answer) -> Message:
    return same_function(
        answer, min_p, some_scores, mistakes=MIN_P_MISTAKES, trials=Trials(number=5)
    )


# --------------------------------------------------------------------------------------- the cache


def small_model(case: Case, **sizes: Any) -> LanguageModel:
    """A model with random weights, in the precision of the case."""
    built = {
        "vocab_size": case["v"] + 3,
        "embed_dim": case["h"] * case["d"],
        "num_heads": case["h"],
        "mlp_dim": 12,
        "num_layers": 3,
        "max_length": 24,
    }
    model = randomise(LanguageModel(**built | sizes), seed=case["v"])
    return model.to(case.dtype).eval()


def some_parts(case: Case) -> tuple[LanguageModel, tuple[Tensor, ...]]:
    """A model, and texts in parts: some tokens, then one, then two, then one."""
    ids = torch.randint(case["v"] + 3, (case["b"], case["n"] + 4), generator=case.generator)
    return small_model(case), ids.split([case["n"], 1, 2, 1], dim=1)


def in_parts(step: Callable) -> Callable:
    """Let a step compute the parts of a text one after another, with one cache."""

    def run_parts(model: LanguageModel, parts: tuple[Tensor, ...]) -> Tensor:
        cache = KeyValueCache()
        scores = []
        with torch.no_grad():
            for part in parts:
                scores.append(step(model, part, cache))
        if not all(isinstance(one, Tensor) and one.ndim == 3 for one in scores):
            return scores[0]
        return torch.cat(scores, dim=1)

    return run_parts


def right_step(
    model: LanguageModel,
    ids: Tensor,
    cache: KeyValueCache,
    start: Callable[[int, int], int] = lambda c, n: c,
    mask: Callable[[int, int], Tensor | None] = lambda c, n: causal_mask(c + n)[c:],
    used: bool = True,
) -> Tensor:
    c, n = cache.length, ids.shape[1]
    tokens = model.embedding(ids, start(c, n))
    kept = cache if used else None
    return model.head(model.encoder(tokens, mask(c, n) if used else causal_mask(n), kept))


def no_head(model: LanguageModel, ids: Tensor, cache: KeyValueCache) -> Tensor:
    c, n = cache.length, ids.shape[1]
    return model.encoder(model.embedding(ids, c), causal_mask(c + n)[c:], cache)


def read_late(model: LanguageModel, ids: Tensor, cache: KeyValueCache) -> Tensor:
    """The length is read again behind every block: it has grown by then."""
    n = ids.shape[1]
    x, c = model.embedding(ids, cache.length), cache.length
    for layer in model.encoder.layers:
        x = layer(x, causal_mask(c + n)[c:], cache)
    return model.head(model.encoder.norm(x))


def no_norm(model: LanguageModel, ids: Tensor, cache: KeyValueCache) -> Tensor:
    n, c = ids.shape[1], cache.length
    x = model.embedding(ids, c)
    for layer in model.encoder.layers:
        x = layer(x, causal_mask(c + n)[c:], cache)
    return model.head(x)


CACHE_MISTAKES: dict[str, Callable] = {
    cause: in_parts(step)
    for cause, step in {
        "positions-start-again": partial(right_step, start=lambda c, n: 0),
        "positions-one-too-far": partial(right_step, start=lambda c, n: c + (c > 0)),
        "positions-one-too-near": partial(right_step, start=lambda c, n: max(c - 1, 0)),
        "positions-after-the-part": partial(right_step, start=lambda c, n: c + n if c else 0),
        "new-tokens-see-all": partial(right_step, mask=lambda c, n: None),
        "first-part-sees-all": partial(
            right_step, mask=lambda c, n: causal_mask(c + n)[c:] if c else None
        ),
        "cache-is-not-used": partial(right_step, used=False),
        "earlier-tokens-hidden": partial(
            right_step,
            mask=lambda c, n: torch.cat(
                [torch.zeros(n, c, dtype=torch.bool), causal_mask(n)], dim=1
            ),
        ),
        "first-rows-of-the-mask": partial(right_step, mask=lambda c, n: causal_mask(c + n)[:n]),
        "new-tokens-see-no-new-ones": partial(
            right_step,
            mask=lambda c, n: torch.cat(
                [torch.ones(n, c, dtype=torch.bool), torch.eye(n, dtype=torch.bool)], dim=1
            ),
        ),
        "mask-and-positions": partial(right_step, start=lambda c, n: 0, mask=lambda c, n: None),
        "scores-are-asked": no_head,
        "last-norm-forgotten": no_norm,
    }.items()
}


def read_in_parts(model: nn.Module, parts: tuple[Tensor, ...]) -> Tensor:
    """What the model itself gives for the whole text."""
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
    return torch.stack([bits_after(INK_LEVELS + d, model, pixels) for d in range(10)], dim=1)


def bits_after(
    word: int,
    model: Callable[[Tensor], Tensor],
    pixels: Tensor,
    price: Callable[[Tensor, Tensor], Tensor] = lambda scores, pixels: F.cross_entropy(
        scores.mT, pixels, reduction="none"
    ).sum(dim=1),
    but: int = 1,
) -> Tensor:
    """What drawings (b, n) cost behind a word, in bits: (b,)."""
    words = torch.full((len(pixels), 1), word)
    ids = torch.cat([words, pixels], dim=1)
    with torch.no_grad():
        scores = model(ids[:, :-but] if but else ids)
    return price(scores, pixels) / math.log(2)


def some_drawings(case: Case) -> tuple[LanguageModel, Tensor]:
    model = small_model(case, vocab_size=28, max_length=12, num_layers=1)
    pixels = torch.randint(INK_LEVELS, case.shape("b n"), generator=case.generator)
    return model, pixels


def every_word(version: Callable[..., Tensor], axis: int = 1) -> Callable:
    return lambda model, pixels: torch.stack(
        [version(digit, model, pixels) for digit in range(10)], dim=axis
    )


def mean_price(scores: Tensor, pixels: Tensor) -> Tensor:
    return F.cross_entropy(scores.mT, pixels, reduction="none").mean(dim=1)


def first_pixel_free(scores: Tensor, pixels: Tensor) -> Tensor:
    price = F.cross_entropy(scores[:, 1:].mT, pixels[:, 1:], reduction="none")
    return price.sum(dim=1)


def own_place(scores: Tensor, pixels: Tensor) -> Tensor:
    """Scores of the places of the pixels themselves, not of those before them."""
    return F.cross_entropy(scores[:, 1:].mT, pixels, reduction="none").sum(dim=1)


DIGIT_MISTAKES: dict[str, Callable] = {
    "words-begin-at-17": every_word(lambda d, m, p: bits_after(d, m, p)),
    "words-one-further": every_word(lambda d, m, p: bits_after(INK_LEVELS + 1 + d, m, p)),
    "words-one-short": every_word(lambda d, m, p: bits_after(INK_LEVELS - 1 + d, m, p)),
    "one-word-for-all": every_word(lambda d, m, p: bits_after(ANY_DIGIT, m, p)),
    "given-in-nats": lambda m, p: digit_bits(m, p) * math.log(2),
    "bits-a-pixel": every_word(lambda d, m, p: bits_after(INK_LEVELS + d, m, p, mean_price)),
    "first-pixel-free": every_word(
        lambda d, m, p: bits_after(INK_LEVELS + d, m, p, first_pixel_free)
    ),
    "pixel-asked-at-its-own-place": every_word(
        lambda d, m, p: bits_after(INK_LEVELS + d, m, p, own_place, but=0)
    ),
    "log-probability-has-a-sign": lambda m, p: -digit_bits(m, p),
    "digits-are-rows": lambda m, p: digit_bits(m, p).mT,
    "argmin-returned": lambda m, p: digit_bits(m, p).argmin(dim=1),
    "argmax-returned": lambda m, p: digit_bits(m, p).argmax(dim=1),
    "softmax-returned": lambda m, p: (-digit_bits(m, p) * math.log(2)).softmax(dim=1),
    "drawings-added-up": lambda m, p: digit_bits(m, p).sum(dim=0),
    "digits-backwards": lambda m, p: digit_bits(m, p).flip(1),
}


@exercise("12.6", "Who draws can read")
def who_draws_can_read(answer) -> Message:
    return same_function(
        answer, digit_bits, some_drawings, mistakes=DIGIT_MISTAKES, gradients=False
    )


open_exercise("12.7", "A language of your own")
