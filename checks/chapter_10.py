"""Checks of the exercises of chapter 10: cross-attention, decoder, Transformer, its loss."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import combinations
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from checks.engine.answer import Wrong, written
from checks.engine.calls import run
from checks.engine.cases import Case
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_shape
from checks.engine.message import Message, message
from checks.engine.modules import randomise, same_module
from checks.engine.patches import patches
from checks.engine.shortcuts import ATTENTION
from checks.engine.verdict import exercise, open_exercise
from utils.attention import MultiHeadAttention, record_attention
from utils.decoder import Decoder, Transformer
from utils.encoder import FeedForward
from utils.masking import causal_mask
from utils.text import BEGIN, END, PADDING, UNKNOWN, pad


@exercise("10.1", "Which shape?")
def which_shape(keys_shape, weights_shape, scores_shape, losses_shape) -> Message:
    written(keys_shape, weights_shape, scores_shape, losses_shape)
    model = Transformer(
        source_size=70,
        target_size=50,
        embed_dim=24,
        num_heads=4,
        mlp_dim=30,
        num_encoder_layers=1,
        num_decoder_layers=1,
        max_length=9,
    )
    source, whole = torch.zeros(3, 8, dtype=torch.long), torch.zeros(3, 6, dtype=torch.long)
    keys: list[Tensor] = []
    cross = model.decoder.layers[0].cross_attn
    cross.k_proj.register_forward_hook(lambda *call: keys.append(call[-1]))
    with torch.no_grad(), record_attention(model) as maps:
        scores = model(source, whole[:, :-1])
    losses = F.cross_entropy(scores.mT, whole[:, 1:], reduction="none")
    (made,) = keys
    same_shape(keys_shape, rearrange(made, "b j (h d) -> b h j d", h=4).shape, "b h j d")
    same_shape(weights_shape, maps[-1].shape, "b h i j")
    same_shape(scores_shape, scores.shape, "b i v")
    same_shape(losses_shape, losses.shape, "b i")
    return message("four-shapes-right")


# ---------------------------------------------------------------------- attention of two dimensions


def attention_of_two_widths(x, context, real, w_q, w_k, w_v, num_heads) -> Tensor:
    h = num_heads
    q = rearrange(x @ w_q, "b n (h d) -> b h n d", h=h)
    k = rearrange(context @ w_k, "b n (h d) -> b h n d", h=h)
    v = rearrange(context @ w_v, "b n (h d) -> b h n d", h=h)
    scores = q @ k.mT / q.shape[-1] ** 0.5
    hidden = ~real[:, None, None, :]
    weights = scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)
    return rearrange(weights @ v, "b h n d -> b n (h d)")


def two_widths(case: Case) -> tuple[Tensor, ...]:
    """Tokens of two dimensions, a table with a real one in each row, three weights."""
    x, context = case.randn("b i e"), case.randn("b j f")
    real = case.bools("b j", share=0.6)
    real[:, case.random.randrange(case["j"])] = True
    weights = [case.randn(f"{width} (h d)") for width in "eff"]
    return x, context, real, *weights, case["h"]


ROOT, INTERLEAVED = "/ q.shape[-1] ** 0.5", ("n (h d) ->", "n (d h) ->")
WEIGHTS = "scores.masked_fill(hidden, -torch.inf).softmax(dim=-1)"
CROSS_MISTAKES = patches(
    attention_of_two_widths,
    {
        "scores-not-divided": (ROOT, ""),
        "scaled-by-token-width": (ROOT, "/ (h * q.shape[-1]) ** 0.5"),
        "scaled-without-root": (ROOT, "/ q.shape[-1]"),
        "scaled-by-number-of-heads": (ROOT, "/ h**0.5"),
        "scores-multiplied": (ROOT, "* q.shape[-1] ** 0.5"),
        "only-one-head": [
            ("h = num_heads", "h = 1", "q.shape[-1]", f"({part})")
            for part in ("q.shape[-1] / 1", "q.shape[-1] / num_heads")
        ],
        "queries-split-otherwise": ('w_q, "b n (h d)', 'w_q, "b n (d h)'),
        "every-hth-number": (*INTERLEAVED, '-> b n (h d)"', '-> b n (d h)"'),
        "split-interleaved-join-not": INTERLEAVED,
        "joined-interleaved": ('-> b n (h d)"', '-> b n (d h)"'),
        "heads-cut-from-memory": (
            "\n    scores",
            "\n    q, k, v = (rearrange(t, 'b h n d -> b n (h d)') for t in (q, k, v))"
            "\n    q, k, v = (t.reshape(len(t), h, t.shape[1], -1) for t in (q, k, v))\n    scores",
        ),
        "softmax-over-queries": [
            ("dim=-1)", "dim=-2).nan_to_num()"),
            ("dim=-1)", "dim=-2)"),
        ],
        "softmax-is-missing": (WEIGHTS, "scores.masked_fill(hidden, 0.0)"),
        "source-not-masked": (".masked_fill(hidden, -torch.inf)", ""),
        "masked-score-is-zero": ("-torch.inf", "0.0"),
        "masked-score-is-only-low": [
            ("-torch.inf", low) for low in ("-1.0", "-5.0", "-10.0", "-20.0")
        ],
        "sigmoid-not-softmax": [
            ("softmax(dim=-1)", "sigmoid()"),
            (WEIGHTS, "scores.sigmoid()"),
        ],
        "masked-after-softmax": (WEIGHTS, "scores.softmax(dim=-1) * ~hidden"),
        "mask-upside-down": ("~real", "real"),
        "keys-from-w-v": ("@ w_k", "@ w_x", "@ w_v", "@ w_k", "@ w_x", "@ w_v"),
    },
)


@exercise("10.2", "Two texts of two widths")
def two_texts_of_two_widths(cross_attention) -> Message:
    return same_function(
        cross_attention,
        attention_of_two_widths,
        two_widths,
        mistakes=CROSS_MISTAKES,
        forbidden=ATTENTION,
    )


# ----------------------------------------------------------------------------------- find the bug


def masked_decoder(
    decoder: Decoder, x: Tensor, memory: Tensor, real_target: Tensor, real_source: Tensor
) -> Tensor:
    past = causal_mask(x.shape[1])
    target, source = real_target[:, None, None, :], real_source[:, None, None, :]
    own, across = past & target, source
    return decoder(x, memory, own, across)


ACROSS = ", source\n"
DECODING_MISTAKES = patches(
    masked_decoder,
    {
        "source-masked-by-target": (ACROSS, ", target\n"),
        "source-masked-by-both": (ACROSS, ", source & target\n"),
        "source-padding-open": (ACROSS, ", None\n"),
        "source-over-queries": (ACROSS, ", source.mT\n"),
        "source-upside-down": (ACROSS, ", ~source\n"),
        "source-also-causal": (ACROSS, ", source & past\n"),
        "source-masked-as-target": (ACROSS, ", target & past\n"),
        "queries-of-padding-blocked": (ACROSS, ", source & target.mT\n"),
        "both-tables-exchanged": ("past & target, source", "past & source, target"),
        "both-masks-exchanged": ("past & target, source", "source, past & target"),
        "target-padding-open": ("past & target", "past"),
        "future-is-open": ("past & target", "target"),
        "target-mask-is-missing": ("past & target", "None"),
        "past-or-real": ("past & target", "past | target"),
        "own-place-blocked": ("past & target", "past.tril(-1) & target"),
        "only-future-is-open": ("past & target", "past.mT & target"),
        "own-mask-over-queries": ("past & target", "past & target.mT"),
        "mask-of-first-pair": (ACROSS, ", source[:1]\n"),
        "padding-made-zero": [
            ("own, across)", "own, across) * real_target[..., None]"),
            ("memory, own, across)", "memory * real_source[..., None], own)"),
        ],
        "target-masked-by-source-too": ("past & target", "past & target & source"),
    },
)


def decoder_and_texts(target_axis: str, source_axis: str) -> Callable[[Case], tuple[Any, ...]]:
    """A decoder, both texts, and tables of their real tokens; the first of each is real."""

    def inputs(case: Case) -> tuple[Any, ...]:
        x, memory = case.randn(f"b {target_axis} (h d)"), case.randn(f"b {source_axis} (h d)")
        decoder = randomise(Decoder(2, x.shape[2], case["h"], case["m"])).to(case.dtype).eval()
        tables = [case.bools(f"b {axis}", share=0.6) for axis in (target_axis, source_axis)]
        for table in tables:
            table[:, 0] = True
        return decoder, x, memory, *tables

    return inputs


@exercise("10.3", "Find the bug")
def find_the_bug(healthy) -> Message:
    # First texts of one length, where the bug and its variants run; then of different lengths.
    for axes in (("n", "n"), ("i", "j")):
        compared = same_function(
            healthy,
            masked_decoder,
            decoder_and_texts(*axes),
            mistakes=DECODING_MISTAKES,
            trials=Trials(3),
        )
    return compared


# ---------------------------------------------------------------------------------- read and said

Ids = list[list[int]]


def shifted(targets: Ids) -> tuple[Tensor, Tensor]:
    read = [[BEGIN, *ids] for ids in targets]
    said = [[*ids, END] for ids in targets]
    return pad(read), pad(said)


READ, SAID, WHOLE = "[BEGIN, *ids]", "[*ids, END]", "[BEGIN, *ids, END]"
BOTH = "pad(read), pad(said)"
SHIFT_MISTAKES = patches(
    shifted,
    {
        "end-is-read": (READ, WHOLE, "pad(read)", "pad(read)[:, :-1]"),
        "said-not-shifted": [
            (SAID, READ),
            (READ, WHOLE, SAID, WHOLE, BOTH, "pad(read)[:, :-1], pad(said)[:, :-1]"),
            (READ, WHOLE, SAID, WHOLE),
            (READ, "ids", SAID, "ids"),
            (READ, SAID),
            (SAID, WHOLE, "pad(said)", "pad(said)[:, :-1]"),
        ],
        "said-shifted-twice": [(SAID, "[*ids[1:], END]"), (SAID, "[*ids[1:], END, PADDING]")],
        "begin-is-missing": (READ, "ids", SAID, "[*ids[1:], END]"),
        "end-is-missing": [(SAID, "ids"), (READ, "[BEGIN, *ids[:-1]]", SAID, "ids")],
        "read-and-said-exchanged": (BOTH, "pad(said), pad(read)"),
        "one-place-too-many": [
            (READ, WHOLE, SAID, "[*ids, END, PADDING]"),
            (READ, "[BEGIN, *ids, PADDING]", SAID, "[*ids, END, PADDING]"),
        ],
        "padding-in-front": (BOTH, "pad(read, left=True), pad(said, left=True)"),
        "rows-filled-with-end": (BOTH, "pad(read, END), pad(said, END)"),
        "said-filled-with-minus-100": ("pad(said)", "pad(said, -100)"),
        "targets-are-sorted": [
            ("in targets", "in sorted(targets, key=len)"),
            ("in targets", "in sorted(targets, key=len, reverse=True)"),
        ],
        "last-id-is-missing": [(SAID, "[*ids[:-1], END]"), (SAID, "[*ids[:-1], END, PADDING]")],
        "end-at-the-last-place": ("pad(said)", "F.pad(pad(targets), (0, 1), value=END)"),
        "begin-and-end-exchanged": [
            (READ, "[END, *ids]"),
            (READ, "[END, *ids]", SAID, "[*ids, BEGIN]"),
            (SAID, "[*ids, BEGIN]"),
        ],
        "said-is-turned": (SAID, "[*ids[::-1], END]"),
    },
)


def targets_of(case: Case) -> tuple[Ids]:
    """Lists of ids, of different lengths."""
    lengths = case.random.sample(range(2, 9), 4)
    return ([[case.random.randrange(4, 60) for _ in range(length)] for length in lengths],)


@exercise("10.4", "What is read, what must be said")
def what_is_read(read_and_said) -> Message:
    compared = same_function(
        read_and_said, shifted, targets_of, mistakes=SHIFT_MISTAKES, gradients=False
    )
    one = [[7, 5, 9]]
    got = run(read_and_said, ([*one],), ["targets"])
    if any(not torch.equal(a, b) for a, b in zip(got, shifted(one), strict=True)):
        raise Wrong("one-target-differs")
    return compared


# ------------------------------------------------------------------------------------- two sources


class RightBlock(nn.Module):
    """The right block: four parts, each with its own norm."""

    def __init__(self, embed_dim: int, num_heads: int, mlp_dim: int):
        super().__init__()
        self.attn = MultiHeadAttention(embed_dim, num_heads)
        self.norm1 = nn.LayerNorm(embed_dim)
        self.norm2 = nn.LayerNorm(embed_dim)
        self.text_attn = MultiHeadAttention(embed_dim, num_heads)
        self.norm3 = nn.LayerNorm(embed_dim)
        self.image_attn = MultiHeadAttention(embed_dim, num_heads)
        self.norm4 = nn.LayerNorm(embed_dim)
        self.mlp = FeedForward(embed_dim, mlp_dim)

    def forward(
        self,
        x: Tensor,
        text: Tensor,
        image: Tensor,
        attn_mask: Tensor | None = None,
        text_mask: Tensor | None = None,
    ) -> Tensor:
        read = self.norm1(x)
        x = x + self.attn(read, attn_mask=attn_mask)
        read = self.norm2(x)
        x = x + self.text_attn(read, text, text_mask)
        read = self.norm3(x)
        x = x + self.image_attn(read, image)
        read = self.norm4(x)
        return x + self.mlp(read)


TEXT, IMAGE, END_STEP = "(read, text, text_mask)", "(read, image)", "x + self.mlp(read)"
TEXT_STEP = f"self.norm2(x)\n        x = x + self.text_attn{TEXT}"
IMAGE_STEP = f"self.norm3(x)\n        x = x + self.image_attn{IMAGE}"
EXCHANGED = ("text_attn(", "other(", "image_attn(", "text_attn(", "other(", "image_attn(")
PARTS = ("attn", "text_attn", "image_attn", "mlp")
POST_NORM = """
        x = self.norm1(x + self.attn(x, attn_mask=attn_mask))
        x = self.norm2(x + self.text_attn(x, text, text_mask))
        x = self.norm3(x + self.image_attn(x, image))
        return self.norm4(x + self.mlp(x))
"""
BLOCK_MISTAKES = patches(
    RightBlock,
    {
        "sources-are-exchanged": (TEXT, "(read, image, None)", IMAGE, "(read, text)"),
        "text-asked-twice": (IMAGE, "(read, text)"),
        "image-asked-twice": (TEXT, IMAGE),
        "sources-never-asked": [
            (TEXT, "(read)", IMAGE, "(read)"),
            (TEXT, "(read)"),
            (IMAGE, "(read)"),
        ],
        "own-mask-not-used": (", attn_mask=attn_mask", ""),
        "text-mask-not-used": (TEXT, "(read, text)"),
        "always-causal": ("=attn_mask", "=causal_mask(x.shape[1])"),
        "norm-at-the-end": (END_STEP, f"self.norm4({END_STEP})"),
        "image-before-text": (TEXT_STEP, "first", IMAGE_STEP, TEXT_STEP, "first", IMAGE_STEP),
        "sources-side-by-side": (
            TEXT,
            f"{TEXT} + self.image_attn(self.norm3(x), image)",
            IMAGE_STEP,
            "None",
        ),
        "post-norm-instead": ("        read = self.norm1(x)\n", POST_NORM),
        "stream-not-added": [
            tuple(text for part in lost for text in (f"x + self.{part}(", f"self.{part}("))
            for number in range(len(PARTS))
            for lost in combinations(PARTS, number + 1)
        ],
        "sums-from-norm": ("x + ", "read + "),
        "sources-are-normed": [
            (TEXT, "(read, self.norm2(text), text_mask)", IMAGE, "(read, self.norm3(image))"),
            (TEXT, "(read, self.norm2(text), text_mask)"),
            (IMAGE, "(read, self.norm3(image))"),
        ],
        "feed-forward-is-missing": (END_STEP, "x"),
        "one-norm-for-all": ("norm2(", "norm1(", "norm3(", "norm1(", "norm4(", "norm1("),
        "source-layers-exchanged": [
            EXCHANGED,
            (*EXCHANGED, "norm2(", "norm(", "norm3(", "norm2(", "norm(", "norm3("),
        ],
        "one-layer-for-both-sources": [
            ("image_attn(", "text_attn("),
            ("text_attn(", "image_attn("),
        ],
    },
)


def stream_and_sources(masks: bool) -> Callable[[Case], tuple[Any, ...]]:
    """Tokens and two sources, with both masks or with none."""

    def inputs(case: Case) -> tuple[Any, ...]:
        x, text, image = (case.randn(f"b {axis} (h d)") for axis in ("i", "j", "p"))
        if not masks:
            return x, text, image
        real = case.bools("b 1 1 j", share=0.6)
        real[..., 0] = True
        return x, text, image, causal_mask(case["i"]), real

    return inputs


@exercise("10.5", "A block with two sources")
def block_with_two_sources(TwoSources) -> Message:
    for masks in (False, True):
        compared = same_module(
            TwoSources,
            RightBlock,
            lambda case: {
                "embed_dim": case["h"] * case["d"],
                "num_heads": case["h"],
                "mlp_dim": case["m"] + 10,
            },
            stream_and_sources(masks),
            mistakes=BLOCK_MISTAKES,
            forbidden=dict.fromkeys(("DecoderBlock.forward", "EncoderBlock.forward"), "four-lines"),
            trials=2,
        )
    return compared


# ---------------------------------------------------------------------------------------- the loss


def smoothed(scores: Tensor, said: Tensor, smoothing: float) -> Tensor:
    logs = scores.log_softmax(dim=-1)
    right = -logs.gather(-1, said[..., None])[..., 0]
    spread = -logs.mean(dim=-1)
    losses = (1 - smoothing) * right + smoothing * spread
    counts = (said != PADDING).to(scores.dtype)
    return (losses * counts).sum() / counts.sum()


MIX, AVERAGE = (
    "(1 - smoothing) * right + smoothing * spread",
    "(losses * counts).sum() / counts.sum()",
)
LOGS, SPREAD = "log_softmax(dim=-1)", "-logs.mean(dim=-1)"
LOSS_MISTAKES = patches(
    smoothed,
    {
        "no-smoothing": (MIX, "right"),
        "padding-is-counted": (AVERAGE, "losses.mean()"),
        "divided-by-padding-too": (AVERAGE, "(losses * counts).mean()"),
        "losses-are-summed": (" / counts.sum()", ""),
        "mean-by-sentence": (AVERAGE, "((losses * counts).sum(dim=1) / counts.sum(dim=1)).mean()"),
        "only-padding-counted": ("!= PADDING", "== PADDING"),
        "shares-exchanged": (MIX, "smoothing * right + (1 - smoothing) * spread"),
        "both-shares-are-smoothing": ("(1 - smoothing)", "smoothing"),
        "spread-over-the-others": (SPREAD, "(-logs.sum(dim=-1) - right) / (logs.shape[-1] - 1)"),
        "smoothing-not-divided": (SPREAD, "-logs.sum(dim=-1)"),
        "spread-is-added": ("(1 - smoothing) * ", ""),
        "spread-is-missing": (" + smoothing * spread", ""),
        "right-id-counted-twice": (
            "(1 - smoothing)",
            "(1 - smoothing + smoothing / logs.shape[-1])",
        ),
        "loss-by-number-of-pairs": ("/ counts.sum()", "/ len(counts)"),
        "spread-without-padding-id": [
            (SPREAD, "-logs[..., 1:].mean(dim=-1)"),
            (SPREAD, "-logs[..., 1:].sum(dim=-1) / logs.shape[-1]"),
        ],
        "special-ids-not-counted": ("said != PADDING", f"said > {UNKNOWN}"),
        "end-not-counted": ("said != PADDING", "(said != PADDING) & (said != END)"),
        "smoothing-is-fixed": (MIX, "0.9 * right + 0.1 * spread"),
        "spread-has-wrong-sign": (SPREAD, "logs.mean(dim=-1)"),
        "spread-over-padding-places": (SPREAD, "-logs.mean()"),
        "minus-is-missing": ("return ", "return -"),
        "no-logarithm": (LOGS, "softmax(dim=-1)"),
        "scores-as-logarithms": (f".{LOGS}", ""),
        "loss-softmax-over-places": (LOGS, "log_softmax(dim=1)"),
        "smoothed-softmax-twice": (LOGS, f"softmax(dim=-1).{LOGS}"),
        "logarithm-of-base-2": (LOGS, f"{LOGS} / {math.log(2)}"),
        "logarithm-of-base-10": (LOGS, f"{LOGS} / {math.log(10)}"),
    },
)


def scores_and_said(case: Case) -> tuple[Tensor, Tensor, float]:
    """Logits, expected ids (with padding at the end), and the fraction for smoothing."""
    scores = case.randn("b (i) (2 v)") * 2
    said = case.integers("b i", 1, scores.shape[-1])
    lengths = case.integers("b", 1, case["i"] + 1)
    lengths[0], lengths[1] = 1, case["i"]
    places = torch.arange(case["i"])
    return (
        scores,
        said.masked_fill(places >= lengths[:, None], PADDING),
        case.random.uniform(0.1, 0.4),
    )


@exercise("10.6", "The loss of the paper")
def loss_of_the_paper(smoothed_loss) -> Message:
    return same_function(
        smoothed_loss,
        smoothed,
        scores_and_said,
        mistakes=LOSS_MISTAKES,
        forbidden=dict.fromkeys(
            ("cross_entropy", "nll_loss", "cross_entropy_loss", "nll_loss_nd", "kl_div"),
            "write-the-loss-steps",
        ),
    )


# ------------------------------------------------------------------------------ the next token


class Watched(Transformer):
    """A Transformer that counts the texts that it encodes."""

    said = "small-transformer"

    def __init__(self, **sizes: Any):
        super().__init__(**sizes)
        self.encoded: list[int] = []

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        self.encoded.append(len(source))
        return super().encode(source, source_mask)


def next_log_probabilities(model: Transformer, source: Tensor, beginnings: Tensor) -> Tensor:
    memory = model.encode(source[None]).expand(len(beginnings), -1, -1)
    scores = model.decode(beginnings, memory)
    logs = scores.log_softmax(dim=-1)
    return logs[:, -1]


DECODE, LAST = "decode(beginnings", "logs[:, -1]"
NEXT_MISTAKES = patches(
    next_log_probabilities,
    {
        "scores-not-logarithms": (f".{LOGS}", ""),
        "probabilities-not-logarithms": (LOGS, "softmax(dim=-1)"),
        "log-of-bare-scores": (LOGS, "log()"),
        "softmax-over-beginnings": (LOGS, "log_softmax(dim=0)"),
        "normed-over-everything": (
            LAST,
            "scores[:, -1].flatten().log_softmax(dim=0).view(len(scores), -1)",
        ),
        "place-is-first": (LAST, "logs[:, 0]"),
        "place-before-last": (DECODE, "decode(beginnings[:, :-1]"),
        "only-last-token-read": (DECODE, "decode(beginnings[:, -1:]"),
        "begin-put-in-front": (DECODE, "decode(F.pad(beginnings, (1, 0), value=BEGIN)"),
        "source-is-turned": ("source[None]", "source.flip(0)[None]"),
        "begin-is-cut-off": (DECODE, "decode(beginnings[:, 1:]"),
        "whole-beginning-scored": (
            LAST,
            f"{LAST} + logs[:, :-1].gather(-1, beginnings[:, 1:, None]).sum(dim=1)",
        ),
        "softmax-over-the-places": (LOGS, "log_softmax(dim=1)"),
        "padding-forbidden": (LOGS, f"index_fill(-1, torch.tensor([PADDING]), -torch.inf).{LOGS}"),
        "mean-over-places": (LAST, "scores.mean(dim=1).log_softmax(dim=-1)"),
    },
)


def model_and_beginnings(case: Case) -> tuple[Transformer, Tensor, Tensor]:
    """A Transformer, the ids of one source, and several prefixes of its target."""
    model = Watched(
        source_size=30,
        target_size=21,
        embed_dim=2 * case["h"],
        num_heads=case["h"],
        mlp_dim=12,
        num_encoder_layers=1,
        num_decoder_layers=1,
        max_length=16,
    )
    beginnings = case.integers("w t", 4, 21)
    beginnings[:, 0] = BEGIN
    return randomise(model).to(case.dtype).eval(), case.integers("j", 4, 30), beginnings


@exercise("10.7", "What comes next?")
def what_comes_next(log_probabilities) -> Message:
    compared = same_function(
        log_probabilities,
        next_log_probabilities,
        model_and_beginnings,
        mistakes=NEXT_MISTAKES,
        gradients=False,
    )
    model, source, beginnings = model_and_beginnings(Case(0))
    run(log_probabilities, (model, source, beginnings), ["model", "source", "beginnings"])
    if model.encoded != [1]:
        raise Wrong(message("source-encoded-again", count=sum(model.encoded)))
    return compared


open_exercise("10.8", "A mask left out")
