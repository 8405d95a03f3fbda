"""Checks of the exercises of chapter 08: the clinic."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic import diagnose_block, diagnose_loss
from checks.engine.answer import Wrong, written
from checks.engine.calls import run
from checks.engine.functions import same_function
from checks.engine.guesses import same_shape, too_far
from checks.engine.modules import same_module
from checks.engine.verdict import exercise, open_exercise
from utils.attention import MultiHeadAttention, scaled_dot_product_attention
from utils.encoder import EncoderBlock


@exercise("08.1", "The shape that gives it away")
def weights_of_torch(with_batch_first, without_batch_first) -> str:
    written(with_batch_first, without_batch_first)
    tokens = torch.zeros(3, 7, 24)
    for guess, batch_first in ((with_batch_first, True), (without_batch_first, False)):
        layer = nn.MultiheadAttention(24, 4, batch_first=batch_first)
        _, weights = layer(tokens, tokens, tokens)
        same_shape(guess, weights.shape, "b i j")
    return "PyTorch's layer gives both shapes"


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


def whispers(sample: int) -> Callable[[Tensor], Tensor]:
    """Only one sample sees the future, and only a little."""

    def layer(x: Tensor) -> Tensor:
        chosen = (torch.arange(len(x)) == sample % len(x)).to(x.dtype)[:, None, None]
        return attend(x, before(x.shape[1])) + 1e-3 * chosen * x.mean(dim=1, keepdim=True)

    return layer


def centred(x: Tensor) -> Tensor:
    """Tokens whose numbers sum to 0, as after a norm."""
    return x - x.mean(dim=-1, keepdim=True)


def in_the_last_number(x: Tensor) -> Tensor:
    """Only the last number of each result sees the future."""
    causal, open_to_all = attend(x, before(x.shape[1])), attend(x, before(x.shape[1], x.shape[1]))
    return torch.cat([causal[..., :-1], open_to_all[..., -1:]], dim=-1)


BLIND = {
    "a causal attention": lambda x: attend(x, before(x.shape[1])),
    "a causal window of three tokens": window,
    "a layer that works on each token alone": torch.tanh,
    "a layer that adds up the past": lambda x: x.cumsum(dim=1),
    "a layer that gives the same for every input": lambda x: x * 0,
    "an attention that is causal and mixes the samples of the batch": lambda x: attend(
        x + x.mean(dim=0), before(x.shape[1])
    ),
}
SEES = {
    "an attention without a mask": lambda x: attend(x, before(x.shape[1], x.shape[1])),
    "a mask that lets one later token through": lambda x: attend(x, before(x.shape[1], 1)),
    "a mask that is upside down": backwards,
    "a layer whose last token alone leaks, into the first": leak(0, -1),
    "a layer whose last token alone leaks, into the one before": leak(-2, -1),
    "a layer whose token 1 alone leaks, into token 0": leak(0, 1),
    "a layer whose token 2 alone leaks, into token 1": leak(1, 2),
    "a layer in which only the first sample sees the future, and only a little": whispers(0),
    "a layer in which only the last sample sees the future, and only a little": whispers(-1),
    "a layer in which only the last number of each result sees the future": in_the_last_number,
    "a layer without a mask that takes the mean out of its tokens, as a norm does, so that a token "
    "plus 1 is the same token and the results have mean 0": lambda x: attend(
        centred(x), before(x.shape[1], x.shape[1])
    ),
    "a layer that turns the tokens round": lambda x: x.flip(1),
}


@exercise("08.2", "A test for the future")
def future_test(past_is_blind) -> str:
    written(past_is_blind)
    verdicts = [(words, layer, True) for words, layer in BLIND.items()]
    verdicts += [(words, layer, False) for words, layer in SEES.items()]
    generator = torch.Generator().manual_seed(0)
    for sizes in ((2, 5, 3), (4, 9, 2), (3, 4, 6)):
        tokens = torch.randn(sizes, generator=generator, dtype=torch.float64)
        for words, layer, right in verdicts:
            given = tokens.clone()
            said = run(past_is_blind, (layer, given), ["run", "tokens"])
            if isinstance(said, Tensor) and said.dtype == torch.bool and said.numel() == 1:
                said = said.item()
            if not isinstance(said, bool):
                raise Wrong(f"past_is_blind returns {said!r:.60}, True or False is asked for")
            if not torch.equal(given, tokens):
                raise Wrong("tokens was changed in place: work on tokens.clone()")
            if said != right:
                why = "no earlier result changes there" if right else "an earlier one changes"
                raise Wrong(f"it says {said} for {words}: {why}", inputs=f"tokens {sizes}")
    return f"it tells {len(BLIND)} layers that are blind from {len(SEES)} that see the future"


# ------------------------------------------------------------------------------- block and loss


def variant(forward: Callable) -> type[nn.Module]:
    """A block with the parts of the right one and another forward."""
    return type("Variant", (EncoderBlock,), {"forward": forward})


BLOCK_MISTAKES = {
    "it adds norm(x) to the results instead of x, in both halves": variant(
        lambda self, x: (
            (y := (z := self.norm1(x)) + self.attn(z), w := self.norm2(y))[1] + self.mlp(w)
        )
    ),
    "both halves use norm1": variant(
        lambda self, x: (y := x + self.attn(self.norm1(x))) + self.mlp(self.norm1(y))
    ),
    "the feed-forward reads the stream without a norm": variant(
        lambda self, x: (y := x + self.attn(self.norm1(x))) + self.mlp(y)
    ),
    "it stops after the attention: the feed-forward is missing": variant(
        lambda self, x: x + self.attn(self.norm1(x))
    ),
    "the feed-forward runs before the attention": variant(
        lambda self, x: (y := x + self.mlp(self.norm2(x))) + self.attn(self.norm1(y))
    ),
    "norm1 and norm2 have changed places": variant(
        lambda self, x: (y := x + self.attn(self.norm2(x))) + self.mlp(self.norm1(y))
    ),
    "there is no norm at all": variant(lambda self, x: (y := x + self.attn(x)) + self.mlp(y)),
    "it returns x as it came": variant(lambda self, x: x),
    "the feed-forward reads what came into the block, not what the attention left": variant(
        lambda self, x: x + self.attn(self.norm1(x)) + self.mlp(self.norm2(x))
    ),
}


@exercise("08.3", "Find the bug: a block")
def healthy_block(healthy) -> str:
    return same_module(
        healthy,
        EncoderBlock,
        lambda case: {
            "embed_dim": case["h"] * case["d"],
            "num_heads": case["h"],
            "mlp_dim": case["m"],
        },
        lambda case: (case.randn("b n (h d)"),),
        mistakes=BLOCK_MISTAKES,
        forbidden={"EncoderBlock.forward": "write the two lines yourself"},
        clinic=lambda block, built: diagnose_block(block, built["num_heads"], norm_first=True),
    )


def next_words(scores: Tensor, words: Tensor) -> Tensor:
    return F.cross_entropy(scores[:, :-1].flatten(0, 1), words[:, 1:].flatten())


def entropy(scores: Tensor, words: Tensor, reduction: str = "mean") -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), words.flatten(), reduction=reduction)


@exercise("08.4", "Find the bug: a loss")
def healthy_loss(next_word_loss) -> str:
    return same_function(
        next_word_loss,
        next_words,
        lambda case: (case.randn("b n k"), case.integers("b n", 0, case["k"])),
        mistakes={
            "each word is judged by the scores that were made after reading it": entropy,
            "the scores are those of place i + 1: it pays for the word before": lambda s, w: (
                entropy(s[:, 1:], w[:, :-1])
            ),
            "the last word is left out on both sides, but nothing is shifted": lambda s, w: entropy(
                s[:, :-1], w[:, :-1]
            ),
            "the first word is left out on both sides, but nothing is shifted": lambda s, w: (
                entropy(s[:, 1:], w[:, 1:])
            ),
            "the last scores are judged by the first word: roll goes round": lambda s, w: entropy(
                s, w.roll(-1, dims=1)
            ),
            "the sentences were put in one row before the shift: the last place of one is judged "
            "by the first word of the next": lambda s, w: F.cross_entropy(
                s.flatten(0, 1)[:-1], w.flatten()[1:]
            ),
            "the scores at place i are judged by the word at place i + 2": lambda s, w: entropy(
                s[:, :-2], w[:, 2:]
            ),
            "the sum is divided by all places, also by those without a next word": lambda s, w: (
                entropy(s[:, :-1], w[:, 1:], reduction="sum") / w.numel()
            ),
            "it is the sum over all places, the mean is asked for": lambda s, w: entropy(
                s[:, :-1], w[:, 1:], reduction="sum"
            ),
            "cross_entropy applies the softmax itself, and gets probabilities": lambda s, w: (
                next_words(s.softmax(dim=-1), w)
            ),
        },
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


@exercise("08.5", "By what does it divide?")
def measured_divisor(divisor) -> str:
    written(divisor)
    for embed_dim, num_heads, by in (
        (24, 4, 6**0.5),
        (24, 4, 24**0.5),
        (24, 4, 1.0),
        (30, 5, 6.0),
        (9, 1, 3.0),
        (14, 7, 2**0.5),
        (24, 2, 7.3),
    ):
        layer = divided(embed_dim, num_heads, by)
        before = copy.deepcopy(layer.state_dict())
        got = run(divisor, (layer,), ["layer"])
        got = got.item() if isinstance(got, Tensor) and got.numel() == 1 else got
        if isinstance(got, bool) or not isinstance(got, int | float):
            raise Wrong(f"divisor returns {got!r:.60}, a number is asked for")
        if any(not torch.equal(before[name], now) for name, now in layer.state_dict().items()):
            raise Wrong("divisor wrote into the layer itself: work on copy.deepcopy(layer)")
        if not layer.training:
            raise Wrong("divisor put the layer itself into eval mode: do so with the copy")
        if not abs(got - by) <= 0.01 * by:
            head_dim = embed_dim // num_heads

            def why(got=got, by=by, head_dim=head_dim, embed_dim=embed_dim, layer=layer) -> str:
                try:
                    without_dropout = divisor(layer.eval())
                    if abs(without_dropout - by) <= 0.01 * by:
                        return "the layer drops weights at random: call eval() on your copy first"
                except (Exception, SystemExit):
                    pass
                known = {
                    "that is the factor; the divisor is 1 over it": 1 / by,
                    "that is what the layer should divide by: measure what it does": head_dim**0.5,
                    "that is the square root of the width of a token": embed_dim**0.5,
                    "a factor of d is left over: a head adds up d products": by * head_dim,
                    "a factor of d is missing: a head adds up d products": by / head_dim,
                }
                near = [words for words, n in known.items() if abs(got - n) <= 0.01 * n]
                return near[0] if near else too_far(got, by)

            raise Wrong(
                f"divisor says {got:.4g} for a layer of width {embed_dim} with {num_heads} heads "
                f"that divides by {by:.4g}",
                why,
            )
    return "it finds all seven divisors within 1%, and leaves the layers as they were"


open_exercise("08.6", "Patient 13")
