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
from checks.engine.compare import difference
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_shape
from checks.engine.message import Message, message
from checks.engine.modules import randomize, same_module
from checks.engine.patches import patches
from checks.engine.shortcuts import ATTENTION
from checks.engine.verdict import exercise, open_exercise
from utils.attention import MultiHeadAttention, record_attention
from utils.decoder import Decoder, Transformer
from utils.encoder import Encoder, FeedForward
from utils.masking import causal_mask
from utils.text import BEGIN, END, PADDING, UNKNOWN, pad

# Two decoder blocks: with one, the last position would not show a missing causal mask.
SIZES = {"mlp_dim": 30, "num_encoder_layers": 1, "num_decoder_layers": 2, "max_length": 16}


@exercise("10.1", "Which shape?")
def which_shape(keys_shape, weights_shape, logits_shape, losses_shape) -> Message:
    written(keys_shape, weights_shape, logits_shape, losses_shape)
    model = Transformer(source_size=70, target_size=50, embed_dim=24, num_heads=4, **SIZES)
    source, whole = torch.zeros(3, 8, dtype=torch.long), torch.zeros(3, 6, dtype=torch.long)
    keys: list[Tensor] = []
    cross = model.decoder.layers[0].cross_attn
    cross.k_proj.register_forward_hook(lambda *call: keys.append(call[-1]))
    with torch.no_grad(), record_attention(model) as maps:
        logits = model(source, whole[:, :-1])
    losses = F.cross_entropy(logits.mT, whole[:, 1:], reduction="none")
    (made,) = keys
    same_shape(keys_shape, rearrange(made, "b j (h d) -> b h j d", h=4).shape, "b h j d")
    same_shape(weights_shape, maps[-1].shape, "b h i j")
    same_shape(logits_shape, logits.shape, "b i v")
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
    """Tokens of two dimensions, which of them are real (one in each row), three weights."""
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
        "joined-as-in-memory": (
            'rearrange(weights @ v, "b h n d -> b n (h d)")',
            "(weights @ v).reshape(*x.shape[:2], -1)",
        ),
        "joined-interleaved": ('-> b n (h d)"', '-> b n (d h)"'),
        "heads-cut-from-memory": (
            "\n    scores",
            "\n    q, k, v = (rearrange(t, 'b h n d -> b n (h d)') for t in (q, k, v))"
            "\n    q, k, v = (t.reshape(len(t), h, t.shape[1], -1) for t in (q, k, v))\n    scores",
        ),
        "softmax-over-queries": [("dim=-1)", "dim=-2).nan_to_num()"), ("dim=-1)", "dim=-2)")],
        "softmax-is-missing": (WEIGHTS, "scores.masked_fill(hidden, 0.0)"),
        "source-not-masked": (".masked_fill(hidden, -torch.inf)", ""),
        "masked-score-is-zero": ("-torch.inf", "0.0"),
        "masked-score-is-only-low": [
            ("-torch.inf", low) for low in ("-1.0", "-5.0", "-10.0", "-20.0")
        ],
        "sigmoid-not-softmax": [("softmax(dim=-1)", "sigmoid()"), (WEIGHTS, "scores.sigmoid()")],
        "masked-after-softmax": (WEIGHTS, "scores.softmax(dim=-1) * ~hidden"),
        "mask-upside-down": ("~real", "real"),
        "keys-from-w-v": ("@ w_k", "@ w_x", "@ w_v", "@ w_k", "@ w_x", "@ w_v"),
    },
)


@exercise("10.2", "Two embedding dimensions")
def two_embedding_dimensions(cross_attention) -> Message:
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
        "both-masks-inverted": ("own, across)", "~own, ~across)"),
        "source-also-causal": (ACROSS, ", source & past\n"),
        "source-masked-as-target": (ACROSS, ", target & past\n"),
        "queries-of-padding-blocked": [
            (ACROSS, f", source & {blocked}\n")
            for blocked in ("target.mT", "(past & target).any(dim=-1, keepdim=True)")
        ],
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
    """A decoder, both sequences, and which of their tokens are real; at least one of each."""

    def inputs(case: Case) -> tuple[Any, ...]:
        x, memory = case.randn(f"b {target_axis} (h d)"), case.randn(f"b {source_axis} (h d)")
        decoder = randomize(Decoder(2, x.shape[2], case["h"], case["m"])).to(case.dtype).eval()
        tables = [case.bools(f"b {axis}", share=0.6) for axis in (target_axis, source_axis)]
        for table in tables:
            table[:, case.random.randrange(table.shape[1])] = True
        return decoder, x, memory, *tables

    return inputs


@exercise("10.3", "Find the bug")
def find_the_bug(healthy) -> Message:
    # First sequences of one length, where the bug and its variants run; then of different lengths.
    for axes in (("n", "n"), ("i", "j")):
        compared = same_function(
            healthy,
            masked_decoder,
            decoder_and_texts(*axes),
            mistakes=DECODING_MISTAKES,
            trials=Trials(3),
        )
    return compared


# ---------------------------------------------------------------- decoder input, expected output

Ids = list[list[int]]


def shifted(targets: Ids) -> tuple[Tensor, Tensor]:
    given = [[BEGIN, *ids] for ids in targets]
    expected = [[*ids, END] for ids in targets]
    return pad(given), pad(expected)


GIVEN, WANTED, WHOLE = "[BEGIN, *ids]", "[*ids, END]", "[BEGIN, *ids, END]"
BOTH = "pad(given), pad(expected)"
SHIFT_MISTAKES = patches(
    shifted,
    {
        "end-in-input": (GIVEN, WHOLE, "pad(given)", "pad(given)[:, :-1]"),
        "not-shifted": [
            (WANTED, GIVEN),
            (GIVEN, WHOLE, WANTED, WHOLE, BOTH, "pad(given)[:, :-1], pad(expected)[:, :-1]"),
            (GIVEN, WHOLE, WANTED, WHOLE),
            (GIVEN, "ids", WANTED, "ids"),
            (GIVEN, WANTED),
            (WANTED, WHOLE, "pad(expected)", "pad(expected)[:, :-1]"),
        ],
        "shifted-twice": [(WANTED, "[*ids[1:], END]"), (WANTED, "[*ids[1:], END, PADDING]")],
        "begin-is-missing": (GIVEN, "ids", WANTED, "[*ids[1:], END]"),
        "end-is-missing": [
            (WANTED, "ids"),
            (GIVEN, "[BEGIN, *ids[:-1]]", WANTED, "ids"),
            ("pad(expected)", "pad(given).roll(-1, 1)"),
        ],
        "input-and-expected-swapped": (BOTH, "pad(expected), pad(given)"),
        "one-place-too-many": [
            (GIVEN, WHOLE, WANTED, "[*ids, END, PADDING]"),
            (GIVEN, "[BEGIN, *ids, PADDING]", WANTED, "[*ids, END, PADDING]"),
        ],
        "padding-in-front": (BOTH, "pad(given, left=True), pad(expected, left=True)"),
        "rows-filled-with-end": (BOTH, "pad(given, END), pad(expected, END)"),
        "filled-with-minus-100": ("pad(expected)", "pad(expected, -100)"),
        "targets-are-sorted": [
            ("in targets", "in sorted(targets, key=len)"),
            ("in targets", "in sorted(targets, key=len, reverse=True)"),
        ],
        "last-id-is-missing": [(WANTED, "[*ids[:-1], END]"), (WANTED, "[*ids[:-1], END, PADDING]")],
        "end-at-the-last-place": ("pad(expected)", "F.pad(pad(targets), (0, 1), value=END)"),
        "begin-and-end-swapped": [
            (GIVEN, "[END, *ids]"),
            (GIVEN, "[END, *ids]", WANTED, "[*ids, BEGIN]"),
            (WANTED, "[*ids, BEGIN]"),
        ],
        "expected-is-reversed": (WANTED, "[*ids[::-1], END]"),
    },
)


def targets_of(case: Case) -> tuple[Ids]:
    """Lists of ids, of different lengths."""
    lengths = case.random.sample(range(2, 9), 4)
    return ([[case.random.randrange(4, 60) for _ in range(length)] for length in lengths],)


@exercise("10.4", "Decoder input and expected output")
def decoder_input_and_expected_output(input_and_expected) -> Message:
    compared = same_function(
        input_and_expected, shifted, targets_of, mistakes=SHIFT_MISTAKES, gradients=False
    )
    if difference(run(input_and_expected, ([[7, 5, 9]],), ["targets"]), shifted([[7, 5, 9]])):
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

    def forward(self, x, text, image, attn_mask=None, text_mask=None) -> Tensor:
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
STEPS = ("attn(x, attn_mask=attn_mask)", "text_attn(x, text, text_mask)", "image_attn(x, image)")


def in_order(step: str) -> tuple[str, str]:
    """A patch that runs every part p with its norm n as the step says."""
    lines = [f"x = {step.format(n=n, p=p)}" for n, p in enumerate((*STEPS, "mlp(x)"), start=1)]
    first = "read = self.norm1(x)\n"
    return first, "\n        ".join((*lines, "return x", first))


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
        "post-norm-not-pre": in_order("self.norm{n}(x + self.{p})"),
        "norm-after-the-part": in_order("x + self.norm{n}(self.{p})"),
        "part-not-added": [
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


def smoothed(logits: Tensor, expected: Tensor, smoothing: float) -> Tensor:
    logs = logits.log_softmax(dim=-1)
    correct = -logs.gather(-1, expected[..., None])[..., 0]
    uniform = -logs.mean(dim=-1)
    losses = (1 - smoothing) * correct + smoothing * uniform
    counts = (expected != PADDING).to(logits.dtype)
    return (losses * counts).sum() / counts.sum()


WEIGHTED, AVERAGE = (
    "(1 - smoothing) * correct + smoothing * uniform",
    "(losses * counts).sum() / counts.sum()",
)
LOGS, UNIFORM = "log_softmax(dim=-1)", "-logs.mean(dim=-1)"
LOSS_MISTAKES = patches(
    smoothed,
    {
        "no-smoothing": (WEIGHTED, "correct"),
        "padding-is-counted": [
            (AVERAGE, "losses.mean()"),
            (AVERAGE, "losses.sum() / counts.sum()"),
        ],
        "divided-by-padding-too": (AVERAGE, "(losses * counts).mean()"),
        "losses-are-summed": (" / counts.sum()", ""),
        "mean-by-sentence": (AVERAGE, "((losses * counts).sum(dim=1) / counts.sum(dim=1)).mean()"),
        "only-padding-counted": ("!= PADDING", "== PADDING"),
        "probabilities-swapped": (WEIGHTED, "smoothing * correct + (1 - smoothing) * uniform"),
        "correct-id-keeps-smoothing": ("(1 - smoothing)", "smoothing"),
        "smoothing-over-the-others": [
            (UNIFORM, "(-logs.sum(dim=-1) - correct) / (logs.shape[-1] - 1)"),
            (UNIFORM, "(-logs[..., 1:].sum(dim=-1) - correct) / (logs.shape[-1] - 2)"),
        ],
        "probabilities-added-first": (
            WEIGHTED,
            "-((1 - smoothing) * (-correct).exp() + smoothing / logs.shape[-1]).log()",
        ),
        "smoothing-not-divided": (UNIFORM, "-logs.sum(dim=-1)"),
        "smoothing-is-added": ("(1 - smoothing) * ", ""),
        "smoothing-is-missing": (" + smoothing * uniform", ""),
        "correct-id-counted-twice": (
            "(1 - smoothing)",
            "(1 - smoothing + smoothing / logs.shape[-1])",
        ),
        "loss-by-number-of-pairs": ("/ counts.sum()", "/ len(counts)"),
        "smoothing-without-padding-id": [
            (UNIFORM, "-logs[..., 1:].mean(dim=-1)"),
            (UNIFORM, "-logs[..., 1:].sum(dim=-1) / logs.shape[-1]"),
        ],
        "special-ids-not-counted": ("expected != PADDING", f"expected > {UNKNOWN}"),
        "end-not-counted": ("expected != PADDING", "(expected != PADDING) & (expected != END)"),
        "smoothing-is-fixed": (WEIGHTED, "0.9 * correct + 0.1 * uniform"),
        "smoothing-has-wrong-sign": (UNIFORM, "logs.mean(dim=-1)"),
        "smoothing-over-padding": (UNIFORM, "-logs.mean()"),
        "minus-is-missing": ("return ", "return -"),
        "no-logarithm": (LOGS, "softmax(dim=-1)"),
        "logits-as-logarithms": (f".{LOGS}", ""),
        "loss-softmax-over-positions": (LOGS, "log_softmax(dim=1)"),
        "smoothed-softmax-twice": (LOGS, f"softmax(dim=-1).{LOGS}"),
        "logarithm-of-base-2": (LOGS, f"{LOGS} / {math.log(2)}"),
        "logarithm-of-base-10": (LOGS, f"{LOGS} / {math.log(10)}"),
    },
)


def logits_and_expected(case: Case) -> tuple[Tensor, Tensor, float]:
    """Logits, expected ids (with padding at the end), and the fraction for smoothing."""
    logits = case.randn("b (i) (2 v)") * 2
    expected = case.integers("b i", 1, logits.shape[-1])
    lengths = case.integers("b", 1, case["i"] + 1)
    lengths[0], lengths[1] = 1, case["i"]
    positions = torch.arange(case["i"])
    expected = expected.masked_fill(positions >= lengths[:, None], PADDING)
    return logits, expected, case.random.uniform(0.1, 0.4)


@exercise("10.6", "Label smoothing")
def label_smoothing(smoothed_loss) -> Message:
    return same_function(
        smoothed_loss,
        smoothed,
        logits_and_expected,
        mistakes=LOSS_MISTAKES,
        forbidden=dict.fromkeys(
            ("cross_entropy", "nll_loss", "cross_entropy_loss", "nll_loss_nd", "kl_div"),
            "write-the-loss-steps",
        ),
    )


# ------------------------------------------------------------------------------ the next token


class Watched(Encoder):
    """An encoder that counts the sequences that it encodes."""

    encoded = 0

    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        self.encoded += len(x)
        return super().forward(x, attn_mask)


def next_log_probabilities(model: Transformer, source: Tensor, prefixes: Tensor) -> Tensor:
    memory = model.encode(source[None]).expand(len(prefixes), -1, -1)
    logits = model.decode(prefixes, memory)
    logs = logits.log_softmax(dim=-1)
    return logs[:, -1]


DECODE, LAST = "decode(prefixes", "logs[:, -1]"
NEXT_MISTAKES = patches(
    next_log_probabilities,
    {
        "logits-not-logarithms": (f".{LOGS}", ""),
        "probabilities-not-logarithms": (LOGS, "softmax(dim=-1)"),
        "log-of-bare-logits": (LOGS, "log()"),
        "logarithm-of-base-2": (LOGS, f"{LOGS} / {math.log(2)}"),
        "log-probabilities-negative": (LAST, f"-{LAST}"),
        "prefix-not-causal": (
            "decode(prefixes, memory)",
            "head(model.decoder(model.target_embedding(prefixes), memory))",
        ),
        "source-with-begin-or-end": [
            ("source[None]", f"torch.tensor([[{begin}*source, {end}]])")
            for begin, end in (("BEGIN, ", "END"), ("", "END"), ("BEGIN, ", ""))
        ],
        "softmax-over-prefixes": (LOGS, "log_softmax(dim=0)"),
        "normed-over-everything": (
            LAST,
            "logits[:, -1].flatten().log_softmax(dim=0).view(len(logits), -1)",
        ),
        "position-is-first": (LAST, "logs[:, 0]"),
        "position-before-last": (DECODE, "decode(prefixes[:, :-1]"),
        "only-last-token-read": (DECODE, "decode(prefixes[:, -1:]"),
        "begin-added-again": (DECODE, "decode(F.pad(prefixes, (1, 0), value=BEGIN)"),
        "source-is-reversed": ("source[None]", "source.flip(0)[None]"),
        "begin-is-cut-off": (DECODE, "decode(prefixes[:, 1:]"),
        "whole-prefix-scored": (
            LAST,
            f"{LAST} + logs[:, :-1].gather(-1, prefixes[:, 1:, None]).sum(dim=1)",
        ),
        "softmax-over-positions": (LOGS, "log_softmax(dim=1)"),
        "padding-forbidden": (LOGS, f"index_fill(-1, torch.tensor([PADDING]), -torch.inf).{LOGS}"),
        "mean-over-positions": (LAST, "logits.mean(dim=1).log_softmax(dim=-1)"),
    },
)


def model_and_prefixes(case: Case) -> tuple[Transformer, Tensor, Tensor]:
    """A Transformer, the ids of one source, and several prefixes of its target."""
    sizes = {"embed_dim": 2 * case["h"], "num_heads": case["h"]}
    model = Transformer(source_size=30, target_size=21, **sizes, **SIZES)
    model.encoder = Watched(1, **sizes, mlp_dim=12)
    prefixes = case.integers("w t", 4, 21)
    prefixes[:, 0] = BEGIN
    return randomize(model).to(case.dtype).eval(), case.integers("j", 4, 30), prefixes


@exercise("10.7", "What comes next?")
def what_comes_next(log_probabilities) -> Message:
    compared = same_function(
        log_probabilities,
        next_log_probabilities,
        model_and_prefixes,
        mistakes=NEXT_MISTAKES,
        gradients=False,
    )
    model, source, prefixes = model_and_prefixes(Case(0))
    run(log_probabilities, (model, source, prefixes), ["model", "source", "prefixes"])
    if model.encoder.encoded > 1:
        raise Wrong(message("source-encoded-again", count=model.encoder.encoded))
    return compared


open_exercise("10.8", "A mask left out")
