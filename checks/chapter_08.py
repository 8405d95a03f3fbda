"""Checks of the exercises of chapter 08: the clinic."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Iterator
from functools import cache, partial
from math import exp, log, nan
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic import diagnose_block, diagnose_loss
from checks.engine.answer import Wrong, noticed, written
from checks.engine.calls import Crashed, attempt, run
from checks.engine.compare import aloud, bare, number, shown
from checks.engine.functions import same_function
from checks.engine.guesses import same_shape, too_far
from checks.engine.message import Message, message
from checks.engine.modules import same_module
from checks.engine.verdict import exercise, open_exercise
from utils.attention import MultiHeadAttention, scaled_dot_product_attention
from utils.encoder import EncoderBlock
from utils.shapes import compare_guess


@exercise("08.1", "The shape that gives it away")
def weights_of_torch(with_batch_first, without_batch_first) -> Message:
    written(with_batch_first, without_batch_first)
    tokens = torch.zeros(3, 7, 24)
    shapes = []
    for batch_first in (True, False):
        layer = nn.MultiheadAttention(24, 4, batch_first=batch_first)
        _, weights = layer(tokens, tokens, tokens)
        shapes.append(tuple(weights.shape))
    for guess, shape in zip((with_batch_first, without_batch_first), shapes, strict=True):
        try:
            same_shape(guess, shape, "b i j")
        except Wrong as wrong:
            if compare_guess(guess, shapes[0]) == "right":
                wrong.why = lambda: "that-is-with-batch-first"
            if compare_guess(guess, shapes[1]) == "right":
                wrong.why = lambda: "that-is-without-batch-first"
            raise
    return message("both-shapes-right")


# ---------------------------------------------------------------------------- a test for the future


def attend(x: Tensor, allowed: Tensor) -> Tensor:
    """Attention of tokens to themselves, without projections."""
    return scaled_dot_product_attention(x, x, x, allowed)[0]


def before(n: int, diagonal: int = 0) -> Tensor:
    """Who may attend to whom: keys up to the query, and `diagonal` more."""
    return torch.ones(n, n, dtype=torch.bool).tril(diagonal)


def window(x: Tensor) -> Tensor:
    n = x.shape[1]
    return attend(x, before(n) & ~before(n, -3))


def backwards(x: Tensor) -> Tensor:
    return attend(x, before(x.shape[1]).T)


def leak(query: int, key: int) -> Callable[[Tensor], Tensor]:
    """A causal attention in which one query sees one later key."""

    def layer(x: Tensor) -> Tensor:
        allowed = before(x.shape[1])
        allowed[query, key] = True
        return attend(x, allowed)

    return layer


def whispers(sample: int, of: int | None = None) -> Callable[[Tensor], Tensor]:
    """Only one sample sees the future, its own or that of another one, and only a little."""

    def layer(x: Tensor) -> Tensor:
        chosen = (torch.arange(len(x)) == sample % len(x)).to(x.dtype)[:, None, None]
        heard = x if of is None else x[of]
        return attend(x, before(x.shape[1])) + 1e-3 * chosen * heard.mean(dim=-2, keepdim=True)

    return layer


def centred(x: Tensor) -> Tensor:
    """Tokens whose numbers sum to 0, as after a norm."""
    return x - x.mean(dim=-1, keepdim=True)


def normalised(x: Tensor) -> Tensor:
    """Tokens of mean 0 and length 1: a token that is doubled is the same token."""
    return centred(x) / centred(x).norm(dim=-1, keepdim=True).clamp_min(1e-12)


def everywhere(x: Tensor) -> Tensor:
    """Attention without a mask."""
    return attend(x, before(x.shape[1], x.shape[1]))


def but(*numbers: int) -> Callable[[Tensor], Tensor]:
    """An attention without a mask that does not read some numbers of its tokens."""

    def layer(x: Tensor) -> Tensor:
        read = x.clone()
        read[..., list(numbers)] = 0
        return everywhere(read)

    return layer


def in_the_last_number(x: Tensor) -> Tensor:
    """Only the last number of each result sees the future."""
    causal = attend(x, before(x.shape[1]))
    return torch.cat([causal[..., :-1], everywhere(x)[..., -1:]], dim=-1)


BLIND = {
    "layer-causal": lambda x: attend(x, before(x.shape[1])),
    "layer-window": window,
    "layer-token-alone": torch.tanh,
    "layer-adds-past": lambda x: x.cumsum(dim=1),
    "layer-before-alone": lambda x: F.pad(x.cumsum(dim=1)[:, :-1], (0, 0, 1, 0)),
    "layer-constant": lambda x: x * 0,
    "layer-mixes-samples": lambda x: attend(x + x.mean(dim=0), before(x.shape[1])),
}
SEES = {
    "layer-no-mask": everywhere,
    "layer-one-later": lambda x: attend(x, before(x.shape[1], 1)),
    "layer-upside-down": backwards,
    "layer-last-into-first": leak(0, -1),
    "layer-last-into-one-before": leak(-2, -1),
    "layer-one-into-zero": leak(0, 1),
    "layer-two-into-one": leak(1, 2),
    "layer-first-sample-whispers": whispers(0),
    "layer-last-sample-whispers": whispers(-1),
    "layer-first-sample-hears-last": whispers(0, of=-1),
    "layer-last-number-leaks": in_the_last_number,
    "layer-takes-mean-out": lambda x: everywhere(centred(x)),
    "layer-results-sum-to-0": lambda x: centred(everywhere(x)),
    "layer-normalises-size": lambda x: everywhere(normalised(x)),
    "layer-ignores-first-number": but(0),
    "layer-ignores-last-number": but(-1),
    "layer-turns-round": lambda x: x.flip(1),
}


def trial(sizes: tuple[int, int, int]) -> Tensor:
    """Tokens to try a test with."""
    generator = torch.Generator().manual_seed(sum(sizes))
    return torch.randn(sizes, generator=generator, dtype=torch.float64)


TRIALS = ((2, 5, 3), (4, 9, 5), (3, 4, 6))
Change = Callable[[Tensor, int], Tensor]  # of tokens and a place: other tokens


def renewed(part: Tensor) -> Tensor:
    """Other numbers, the same every time."""
    return torch.randn(part.shape, generator=torch.Generator().manual_seed(1), dtype=part.dtype)


def from_place(new: Callable[[Tensor], Tensor]) -> Change:
    """Change the tokens from a place to the end."""
    return lambda tokens, place: torch.cat([tokens[:, :place], new(tokens[:, place:])], dim=1)


def at_place(tokens: Tensor, place: int) -> Tensor:
    other = tokens.clone()
    other[:, place] = renewed(tokens[:, place])
    return other


def number_changed(number: int) -> Change:
    """Change one number of the later tokens."""

    def change(tokens: Tensor, place: int) -> Tensor:
        other = tokens.clone()
        other[:, place:, number] += 1
        return other

    return change


def samples_changed(chosen: slice) -> Change:
    """Change the later tokens of some samples."""

    def change(tokens: Tensor, place: int) -> Tensor:
        other = tokens.clone()
        other[chosen, place:] = renewed(other[chosen, place:])
        return other

    return change


def later_samples(tokens: Tensor, place: int) -> Tensor:
    return torch.cat([tokens[:place], renewed(tokens[place:])])


OTHER_TOKENS = from_place(renewed)


def future_test(
    change: Change = OTHER_TOKENS,
    places: Callable[[int], Iterable[int]] = lambda n: range(1, n),
    kept: Callable[[Tensor, int], Tensor] = lambda results, place: results[:, :place],
    same: Callable[[Tensor, Tensor], bool] = lambda a, b: torch.allclose(a, b, atol=1e-6),
    verdict: Callable[[Iterator[bool]], bool] = all,
) -> Callable[[Callable, Tensor], bool]:
    """A test for the future, right unless it is told otherwise."""

    def past_is_blind(run: Callable[[Tensor], Tensor], tokens: Tensor) -> bool:
        seen = run(tokens)
        return bool(
            verdict(
                bool(same(kept(run(change(tokens, place)), place), kept(seen, place)))
                for place in places(tokens.shape[1])
            )
        )

    return past_is_blind


TEST_MISTAKES = {
    "test-always-true": lambda run, tokens: True,
    "test-always-false": lambda run, tokens: False,
    "test-last-place-alone": future_test(places=lambda n: [n - 1]),
    "test-first-place-alone": future_test(places=lambda n: [1]),
    "test-place-two-alone": future_test(places=lambda n: [2]),
    "test-begins-at-two": future_test(places=lambda n: range(2, n)),
    "test-last-place-missing": future_test(places=lambda n: range(1, n - 1)),
    "test-one-token-one-before": future_test(
        at_place, kept=lambda results, place: results[:, place - 1]
    ),
    "test-one-before": future_test(kept=lambda results, place: results[:, place - 1]),
    "test-first-result-alone": future_test(kept=lambda results, place: results[:, :1]),
    "test-only-scales": future_test(from_place(lambda later: later * 2)),
    "test-adds-same-number": future_test(from_place(lambda later: later + 1)),
    "test-first-number-of-token": future_test(number_changed(0)),
    "test-last-number-of-token": future_test(number_changed(-1)),
    "test-reorders": future_test(from_place(lambda later: later.flip(1))),
    "test-changes-first-sample": future_test(samples_changed(slice(1))),
    "test-changes-other-samples": future_test(samples_changed(slice(1, None))),
    "test-changes-samples": future_test(later_samples, kept=lambda results, place: results[:place]),
    "test-changes-samples-not-tokens": future_test(later_samples),
    "test-first-sample-alone": future_test(kept=lambda results, place: results[0, :place]),
    "test-last-sample-alone": future_test(kept=lambda results, place: results[-1, :place]),
    "test-first-number-of-result": future_test(kept=lambda results, place: results[:, :place, 0]),
    "test-last-number-of-result": future_test(kept=lambda results, place: results[:, :place, -1]),
    "test-sums-numbers": future_test(kept=lambda results, place: results[:, :place].sum(dim=-1)),
    "test-sums-everything": future_test(kept=lambda results, place: results[:, :place].sum()),
    "test-includes-changed": future_test(kept=lambda results, place: results[:, : place + 1]),
    "test-compares-later": future_test(kept=lambda results, place: results[:, place:]),
    "test-all-must-move": future_test(same=lambda a, b: not (a != b).all()),
    "test-turned-round": future_test(same=lambda a, b: not torch.allclose(a, b, atol=1e-6)),
    "test-one-place-is-enough": future_test(verdict=any),
}


def verdicts(past_is_blind: Callable, louder: float = 1.0) -> list[Any]:
    """What a test says of all layers, with all sizes; how it fails where it fails."""
    found = []
    for sizes in TRIALS:
        for layer in (*BLIND.values(), *SEES.values()):
            torch.manual_seed(0)
            loud = partial(_louder, layer, louder)
            try:
                found.append(bool(attempt(past_is_blind, loud, trial(sizes))))
            except Crashed as crash:
                found.append(str(crash.said))
    return found


def _louder(layer: Callable[[Tensor], Tensor], factor: float, x: Tensor) -> Tensor:
    return factor * layer(x)


@cache
def verdicts_of_mistake(cause: str) -> list[Any]:
    """What a known wrong test says of all layers: the same for every answer."""
    return verdicts(TEST_MISTAKES[cause])


def wrong_test(past_is_blind: Callable) -> str | None:
    """Name the wrong test that says the same of every layer."""
    said = verdicts(past_is_blind)
    for cause in TEST_MISTAKES:
        if verdicts_of_mistake(cause) == said:
            return cause
    right = ([True] * len(BLIND) + [False] * len(SEES)) * len(TRIALS)
    return "test-too-tolerant" if verdicts(past_is_blind, louder=1e6) == right else None


@exercise("08.2", "A test for the future")
def test_for_the_future(past_is_blind) -> Message:
    written(past_is_blind)
    layers = [(name, layer, True) for name, layer in BLIND.items()]
    layers += [(name, layer, False) for name, layer in SEES.items()]
    for sizes in TRIALS:
        tokens = trial(sizes)
        for name, layer, right in layers:
            given = tokens.clone()
            said = bare(run(past_is_blind, (layer, given), ["run", "tokens"]))
            if not isinstance(said, bool):
                raise Wrong(message("true-or-false-is-asked", got=shown(said)))
            if not torch.equal(given, tokens):
                noticed(Wrong("tokens-changed"))
            if said != right:
                id = "calls-blind-layer-seeing" if right else "calls-seeing-layer-blind"
                wrong = message(id, said=str(said), layer=message(name))
                raise Wrong(wrong, partial(wrong_test, past_is_blind), aloud(["tokens"], [tokens]))
    return message("tells-layers-apart", blind=len(BLIND), sees=len(SEES))


# ------------------------------------------------------------------------------- block and loss


def variant(forward: Callable) -> type[nn.Module]:
    """A block with the parts of the right one and another forward."""
    return type("Variant", (EncoderBlock,), {"forward": forward})


def halves(first: Callable[..., Tensor], second: Callable[..., Tensor]) -> type[nn.Module]:
    """A block of two halves: (x, part, norm) gives y, and (y, part, norm, x) the result."""

    def forward(self: EncoderBlock, x: Tensor) -> Tensor:
        return second(first(x, self.attn, self.norm1), self.mlp, self.norm2, x)

    return variant(forward)


def post_first(x: Tensor, part: nn.Module, norm: nn.Module) -> Tensor:
    return norm(x + part(x))


def post_second(y: Tensor, part: nn.Module, norm: nn.Module, x: Tensor) -> Tensor:
    return norm(y + part(y))


BLOCK_MISTAKES = {
    "healthy-is-sick": halves(lambda x, p, n: x + p(n(x)), lambda y, p, n, x: y + p(n(y))),
    "norm-of-part-is-added": halves(lambda x, p, n: x + n(p(x)), lambda y, p, n, x: y + n(p(y))),
    "norm-of-first-part-is-added": halves(lambda x, p, n: x + n(p(x)), post_second),
    "norm-of-second-part-is-added": halves(post_first, lambda y, p, n, x: y + n(p(y))),
    "first-norm-twice": halves(lambda x, p, n: n(x + p(n(x))), post_second),
    "second-norm-twice": halves(post_first, lambda y, p, n, x: n(y + p(n(y)))),
    "feeds-on-attention-alone": variant(
        lambda self, x: self.norm2(self.norm1(x + (y := self.attn(x))) + self.mlp(y))
    ),
    "both-norms-at-the-end": variant(
        lambda self, x: self.norm2(self.norm1((y := x + self.attn(x)) + self.mlp(y)))
    ),
    "one-sum-of-both-parts": variant(
        lambda self, x: self.norm2(self.norm1(x + self.attn(x) + self.mlp(x)))
    ),
    "first-half-pre-norm": halves(lambda x, p, n: x + p(n(x)), post_second),
    "second-half-pre-norm": halves(post_first, lambda y, p, n, x: y + p(n(y))),
    "pre-norm-and-post-norm": halves(
        lambda x, p, n: n(x + p(n(x))), lambda y, p, n, x: n(y + p(n(y)))
    ),
    "pre-norm-normed-at-the-end": halves(
        lambda x, p, n: x + p(n(x)), lambda y, p, n, x: n(y + p(n(y)))
    ),
    "adds-the-normed-stream": halves(
        lambda x, p, n: n(x) + p(n(x)), lambda y, p, n, x: n(y) + p(n(y))
    ),
    "second-sum-not-normed": halves(post_first, lambda y, p, n, x: y + p(y)),
    "first-sum-not-normed": halves(lambda x, p, n: x + p(x), post_second),
    "half-missing": halves(post_first, lambda y, p, n, x: y),
    "no-norm-at-all": halves(lambda x, p, n: x + p(x), lambda y, p, n, x: y + p(y)),
    "stream-not-added": halves(lambda x, p, n: n(p(x)), lambda y, p, n, x: n(p(y))),
    "first-stream-not-added": halves(lambda x, p, n: n(p(x)), post_second),
    "second-stream-not-added": halves(post_first, lambda y, p, n, x: n(p(y))),
    "second-adds-the-start": halves(post_first, lambda y, p, n, x: n(x + p(y))),
    "feeds-on-the-start": halves(post_first, lambda y, p, n, x: n(y + p(x))),
    "norm1-in-both-halves": variant(
        lambda self, x: self.norm1((y := self.norm1(x + self.attn(x))) + self.mlp(y))
    ),
    "norms-changed-places": variant(
        lambda self, x: self.norm1((y := self.norm2(x + self.attn(x))) + self.mlp(y))
    ),
    "feed-forward-first": variant(
        lambda self, x: self.norm1((y := self.norm2(x + self.mlp(x))) + self.attn(y))
    ),
    "returns-x-as-it-came": variant(lambda self, x: x),
}


PostNorm = halves(post_first, post_second)


@exercise("08.3", "Find the bug: a block")
def healthy_block(healthy) -> Message:
    return same_module(
        healthy,
        PostNorm,
        lambda case: {
            "embed_dim": case["h"] * case["d"],
            "num_heads": case["h"],
            "mlp_dim": case["m"],
        },
        lambda case: (2 * case.randn("b n (h d)") + 1,),
        mistakes=BLOCK_MISTAKES,
        forbidden={"EncoderBlock.forward": "write-two-lines"},
        clinic=lambda block, built: diagnose_block(block, built["num_heads"], norm_first=False),
    )


def next_words(scores: Tensor, words: Tensor) -> Tensor:
    return F.cross_entropy(scores[:, :-1].flatten(0, 1), words[:, 1:].flatten())


def entropy(scores: Tensor, words: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), words.flatten(), reduction=reduction)


def picked(scores: Tensor, words: Tensor) -> Tensor:
    """What stands at the place of the next word, (b, n - 1)."""
    return scores[:, :-1].gather(2, words[:, 1:, None])[..., 0]


LOSS_MISTAKES = {
    "judged-after-reading": entropy,
    "pays-for-word-before": lambda s, w: entropy(s[:, 1:], w[:, :-1]),
    "last-word-left-out": lambda s, w: entropy(s[:, :-1], w[:, :-1]),
    "first-word-left-out": lambda s, w: entropy(s[:, 1:], w[:, 1:]),
    "roll-goes-round": lambda s, w: entropy(s, w.roll(-1, dims=1)),
    "roll-of-all-goes-round": lambda s, w: entropy(s, w.roll(-1)),
    "shift-in-one-row": lambda s, w: F.cross_entropy(s.flatten(0, 1)[:-1], w.flatten()[1:]),
    "shift-along-batch": lambda s, w: entropy(s[:-1], w[1:]),
    "last-sentence-left-out": lambda s, w: entropy(s[:-1], w[:-1]),
    "two-places-on": lambda s, w: entropy(s[:, :-2], w[:, 2:]),
    "divided-by-all-places": lambda s, w: entropy(s[:, :-1], w[:, 1:], reduction="sum") / w.numel(),
    "divided-by-sentences": lambda s, w: entropy(s[:, :-1], w[:, 1:], reduction="sum") / len(w),
    "loss-is-sum": lambda s, w: entropy(s[:, :-1], w[:, 1:], reduction="sum"),
    "loss-is-not-averaged": lambda s, w: entropy(s[:, :-1], w[:, 1:], reduction="none"),
    "loss-is-not-averaged-by-sentence": lambda s, w: entropy(
        s[:, :-1], w[:, 1:], reduction="none"
    ).view(len(w), -1),
    "softmax-twice": lambda s, w: next_words(s.softmax(dim=-1), w),
    "scores-for-log-chances": lambda s, w: -picked(s, w).mean(),
    "chances-for-log-chances": lambda s, w: -picked(s.softmax(dim=-1), w).mean(),
    "logarithm-of-scores": lambda s, w: next_words(s.log(), w),
    "loss-has-other-sign": lambda s, w: -next_words(s, w),
    "places-and-sentences-exchanged": lambda s, w: F.cross_entropy(
        s[:, :-1].transpose(0, 1).flatten(0, 1), w[:, 1:].flatten()
    ),
    "word-zero-ignored": lambda s, w: F.cross_entropy(
        s[:, :-1].flatten(0, 1), w[:, 1:].flatten(), ignore_index=0
    ),
}


@exercise("08.4", "Find the bug: a loss")
def healthy_loss(next_word_loss) -> Message:
    return same_function(
        next_word_loss,
        next_words,
        lambda case: (case.randn("b n k"), case.integers("b n", 0, case["k"])),
        mistakes=LOSS_MISTAKES,
        clinic=lambda loss: diagnose_loss(loss, next_token=True),
    )


# -------------------------------------------------------------------------------- the experiment


def divided(embed_dim: int, num_heads: int, by: float) -> MultiHeadAttention:
    """The right layer, except that its scores are divided by a number of our choice.

    Handed out in training mode: who does not call eval measures its dropout. The number is no
    attribute of the layer: it can only be measured.
    """

    class Divided(MultiHeadAttention):
        def forward(self, x: Tensor) -> Tensor:
            q, k, v = (
                project(x).unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
                for project in (self.q_proj, self.k_proj, self.v_proj)
            )
            weights = (q @ k.mT / by).softmax(dim=-1)
            mixed = F.dropout(weights, self.dropout, self.training) @ v
            return self.out_proj(mixed.transpose(1, 2).flatten(2))

    return Divided(embed_dim, num_heads, dropout=0.5)


DIVISORS = (
    (24, 4, 6**0.5),
    (24, 4, 24**0.5),
    (24, 4, 1.0),
    (30, 5, 6.0),
    (9, 1, 3.0),
    (14, 7, 2**0.5),
    (24, 2, 7.3),
)

# What a wrong test says of a layer of e numbers with h heads that divides by c.
DIVISOR_MISTAKES: dict[str, Callable[[int, int, float], float]] = {
    "factor-not-divisor": lambda e, h, c: 1 / c,
    "divisor-squared": lambda e, h, c: c**2,
    "divisor-rooted": lambda e, h, c: c**0.5,
    "what-it-should-divide-by": lambda e, h, c: (e // h) ** 0.5,
    "root-of-token-width": lambda e, h, c: e**0.5,
    "queries-read-tokens": lambda e, h, c: c / (1 + h / e),
    "width-of-head": lambda e, h, c: e // h,
    "d-left-over": lambda e, h, c: c * (e // h),
    "d-missing": lambda e, h, c: c / (e // h),
    "h-left-over": lambda e, h, c: c * h,
    "e-left-over": lambda e, h, c: c * e,
    "tokens-of-ones": lambda e, h, c: 1 / logit(expit(e // h / c) * (e // h)),
    "tokens-of-one-over-e": lambda e, h, c: 1 / logit(expit(1 / (h * c)) / h),
    "weight-not-times-d": lambda e, h, c: 1 / logit(expit(1 / c) / (e // h)),
    "weight-times-e": lambda e, h, c: 1 / logit(expit(1 / c) * h),
    "log-for-logit": lambda e, h, c: 1 / log(expit(1 / c)),
    "weight-not-undone": lambda e, h, c: 1 / expit(1 / c),
    "weight-as-it-is": lambda e, h, c: expit(1 / c),
}


def expit(score: float) -> float:
    """The weight of the first of two keys whose scores are `score` and 0."""
    return 1 / (1 + exp(-score))


def logit(weight: float) -> float:
    """What expit was made of; no number for what is no weight."""
    return log(weight / (1 - weight)) if 0 < weight < 1 else nan


def near(got: Any, wanted: float) -> bool:
    return number(got) is not None and abs(number(got) - wanted) <= 0.01 * abs(wanted)


def divisor_mistake(divisor: Callable) -> str | None:
    """Name the mistake that says of all layers what the answer says."""
    found, quiet = [], []
    for embed_dim, num_heads, by in DIVISORS:
        for results, mode in ((found, True), (quiet, False)):
            layer = divided(embed_dim, num_heads, by).train(mode)
            results.append(attempt(divisor, layer))
    if all(near(got, by) for got, (*_, by) in zip(quiet, DIVISORS, strict=True)):
        return "dropout-still-on"
    for results in (found, quiet):
        for cause, wrong in DIVISOR_MISTAKES.items():
            pairs = zip(results, DIVISORS, strict=True)
            if all(_says(got, partial(wrong, *given)) for got, given in pairs):
                return cause
    return None


def _says(got: Any, wanted: Callable[[], float]) -> bool:
    try:
        right = wanted()
    except ZeroDivisionError:
        return False
    return near(got, right) or (number(got) != number(got) and right != right)


@exercise("08.5", "By what does it divide?")
def measured_divisor(divisor) -> Message:
    written(divisor)
    for embed_dim, num_heads, by in DIVISORS:
        layer = divided(embed_dim, num_heads, by)
        before = copy.deepcopy(layer.state_dict())
        got = run(divisor, (layer,), ["layer"])
        if number(got) is None:
            raise Wrong(message("divisor-is-no-number", got=shown(got)))
        if any(not torch.equal(before[name], now) for name, now in layer.state_dict().items()):
            noticed(Wrong("divisor-wrote-into-layer"))
        if not layer.training:
            noticed(Wrong("divisor-changed-mode"))
        if not near(got, by):
            far = partial(too_far, number(got), by)
            raise Wrong(
                message(
                    "divisor-differs", got=float(number(got)), e=embed_dim, h=num_heads, want=by
                ),
                lambda far=far: divisor_mistake(divisor) or far(),
            )
    return message("all-divisors-found", count=len(DIVISORS))


open_exercise("08.6", "Patient 13")
