"""Checks of the exercises of chapter 10: cross-attention, decoder, Transformer, its loss."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from types import SimpleNamespace
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


# -------------------------------------------------------------------------- attention of two widths


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
    """Tokens of two widths, a table of real ones with at least one in each row, three weights."""
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
    # Where both texts have one length the bug and its likes run; then where they have not.
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


def shifted(
    read: Callable[[list[int]], list[int]] = lambda ids: [BEGIN, *ids],
    said: Callable[[list[int]], list[int]] = lambda ids: [*ids, END],
    filled: Callable[[Ids], Tensor] = pad,
) -> Callable[[Ids], tuple[Tensor, Tensor]]:
    """What is read and what must be said, made otherwise."""
    return lambda targets: (
        filled([read(ids) for ids in targets]),
        filled([said(ids) for ids in targets]),
    )


def whole(ids: list[int]) -> list[int]:
    return [BEGIN, *ids, END]


def cut(targets: Ids) -> tuple[Tensor, Tensor]:
    """The chapter's way: pad first, then leave out the last and the first column."""
    rows = pad([whole(ids) for ids in targets])
    return rows[:, :-1], rows[:, 1:]


def in_front(rows: Ids) -> Tensor:
    return pad([row[::-1] for row in rows]).flip(1)


def read_without_last(targets: Ids) -> tuple[Tensor, Tensor]:
    rows = pad([whole(ids) for ids in targets])
    return rows[:, :-1], rows[:, :-1]


SHIFT_MISTAKES = {
    "end-is-read": cut,
    "said-not-shifted": [
        shifted(said=lambda ids: [BEGIN, *ids]),
        read_without_last,
        shifted(read=whole, said=whole),
        shifted(read=lambda ids: ids, said=lambda ids: ids),
        shifted(read=lambda ids: [*ids, END]),
        lambda targets: (shifted()(targets)[0], cut(targets)[0]),
    ],
    "said-shifted-twice": [
        shifted(said=lambda ids: [*ids[1:], END]),
        shifted(said=lambda ids: [*ids[1:], END, PADDING]),
    ],
    "begin-is-missing": shifted(read=lambda ids: ids, said=lambda ids: [*ids[1:], END]),
    "end-is-missing": [
        shifted(said=lambda ids: ids),
        shifted(read=lambda ids: [BEGIN, *ids[:-1]], said=lambda ids: ids),
    ],
    "read-and-said-exchanged": lambda targets: shifted()(targets)[::-1],
    "one-place-too-many": [
        shifted(read=whole, said=lambda ids: [*ids, END, PADDING]),
        shifted(read=lambda ids: [BEGIN, *ids, PADDING], said=lambda ids: [*ids, END, PADDING]),
    ],
    "padding-in-front": shifted(filled=in_front),
    "rows-filled-with-end": shifted(filled=lambda rows: pad(rows, padding_id=END)),
    "said-filled-with-minus-100": lambda targets: (
        shifted()(targets)[0],
        pad([[*ids, END] for ids in targets], padding_id=-100),
    ),
    "targets-are-sorted": [
        lambda targets: shifted()(sorted(targets, key=len)),
        lambda targets: shifted()(sorted(targets, key=len, reverse=True)),
    ],
    "last-id-is-missing": [
        shifted(said=lambda ids: [*ids[:-1], END]),
        shifted(said=lambda ids: [*ids[:-1], END, PADDING]),
    ],
    "end-at-the-last-place": lambda targets: (
        shifted()(targets)[0],
        F.pad(pad(targets), (0, 1), value=END),
    ),
    "begin-and-end-exchanged": [
        shifted(read=lambda ids: [END, *ids]),
        shifted(read=lambda ids: [END, *ids], said=lambda ids: [*ids, BEGIN]),
        shifted(said=lambda ids: [*ids, BEGIN]),
    ],
    "said-is-turned": shifted(said=lambda ids: [*ids[::-1], END]),
}


def targets_of(case: Case) -> tuple[Ids]:
    """Lists of ids, of different lengths."""
    lengths = case.random.sample(range(2, 9), 4)
    return ([[case.random.randrange(4, 60) for _ in range(length)] for length in lengths],)


@exercise("10.4", "What is read, what must be said")
def what_is_read(read_and_said) -> Message:
    compared = same_function(
        read_and_said, shifted(), targets_of, mistakes=SHIFT_MISTAKES, gradients=False
    )
    one = [[7, 5, 9]]
    got = run(read_and_said, ([*one],), ["targets"])
    if any(not torch.equal(a, b) for a, b in zip(got, shifted()(one), strict=True)):
        raise Wrong("one-target-differs")
    return compared


# ------------------------------------------------------------------------------------- two sources


class RightBlock(nn.Module):
    """The right block: four parts, each with a norm of its own."""

    def __init__(self, embed_dim: int, num_heads: int, mlp_dim: int):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(embed_dim), MultiHeadAttention(embed_dim, num_heads)
        self.norm2, self.text_attn = (
            nn.LayerNorm(embed_dim),
            MultiHeadAttention(embed_dim, num_heads),
        )
        self.norm3, self.image_attn = (
            nn.LayerNorm(embed_dim),
            MultiHeadAttention(embed_dim, num_heads),
        )
        self.norm4, self.mlp = nn.LayerNorm(embed_dim), FeedForward(embed_dim, mlp_dim)

    def forward(
        self,
        x: Tensor,
        text: Tensor,
        image: Tensor,
        attn_mask: Tensor | None = None,
        text_mask: Tensor | None = None,
    ) -> Tensor:
        return in_a_row(self, x, text, image, attn_mask, text_mask)


def in_a_row(part: Any, x: Tensor, text: Tensor, image: Tensor, own: Any, across: Any) -> Tensor:
    x = x + part.attn(part.norm1(x), attn_mask=own)
    x = x + part.text_attn(part.norm2(x), text, across)
    x = x + part.image_attn(part.norm3(x), image)
    return x + part.mlp(part.norm4(x))


def image_first(p: Any, x: Tensor, text: Tensor, image: Tensor, own: Any, across: Any) -> Tensor:
    x = x + p.attn(p.norm1(x), attn_mask=own)
    x = x + p.image_attn(p.norm3(x), image)
    x = x + p.text_attn(p.norm2(x), text, across)
    return x + p.mlp(p.norm4(x))


def beside(p: Any, x: Tensor, text: Tensor, image: Tensor, own: Any, across: Any) -> Tensor:
    x = x + p.attn(p.norm1(x), attn_mask=own)
    x = x + p.text_attn(p.norm2(x), text, across) + p.image_attn(p.norm3(x), image)
    return x + p.mlp(p.norm4(x))


def post_norm(p: Any, x: Tensor, text: Tensor, image: Tensor, own: Any, across: Any) -> Tensor:
    x = p.norm1(x + p.attn(x, attn_mask=own))
    x = p.norm2(x + p.text_attn(x, text, across))
    x = p.norm3(x + p.image_attn(x, image))
    return p.norm4(x + p.mlp(x))


def from_norms(p: Any, x: Tensor, text: Tensor, image: Tensor, own: Any, across: Any) -> Tensor:
    x = p.norm1(x)
    x = p.norm2(x + p.attn(x, attn_mask=own))
    x = p.norm3(x + p.text_attn(x, text, across))
    x = p.norm4(x + p.image_attn(x, image))
    return x + p.mlp(x)


def without_feed(p: Any, x: Tensor, text: Tensor, image: Tensor, own: Any, across: Any) -> Tensor:
    x = x + p.attn(p.norm1(x), attn_mask=own)
    x = x + p.text_attn(p.norm2(x), text, across)
    return x + p.image_attn(p.norm3(x), image)


def block_with(forward: Callable[..., Tensor]) -> Callable[..., nn.Module]:
    """A block with the right parts and another forward."""

    def run_forward(self, x, text, image, attn_mask=None, text_mask=None) -> Tensor:
        return forward(self, x, text, image, attn_mask, text_mask)

    return type("Block", (RightBlock,), {"forward": run_forward})


def renamed(**names: str) -> Callable[..., nn.Module]:
    """A block in which a part is taken for another one."""

    def forward(self, *given: Any) -> Tensor:
        parts = {name: part for name, part in self.named_children()}
        parts |= {name: getattr(self, taken) for name, taken in names.items()}
        return in_a_row(SimpleNamespace(**parts), *given)

    return block_with(forward)


def other_inputs(change: Callable[..., tuple]) -> Callable[..., nn.Module]:
    """A block whose parts are given something else."""
    return block_with(lambda self, *given: in_a_row(self, *change(*given)))


def normed(of_text: bool, of_image: bool) -> Callable[..., nn.Module]:
    """A block that normalises sources, too."""

    def forward(p: Any, x: Tensor, text: Tensor, image: Tensor, own: Any, across: Any) -> Tensor:
        text = p.norm2(text) if of_text else text
        image = p.norm3(image) if of_image else image
        return in_a_row(p, x, text, image, own, across)

    return block_with(forward)


def added(*parts: bool) -> Callable[..., nn.Module]:
    """A block in which only some of the four parts are added to the stream."""

    def forward(p: Any, x: Tensor, text: Tensor, image: Tensor, own: Any, across: Any) -> Tensor:
        steps = (
            lambda x: p.attn(p.norm1(x), attn_mask=own),
            lambda x: p.text_attn(p.norm2(x), text, across),
            lambda x: p.image_attn(p.norm3(x), image),
            lambda x: p.mlp(p.norm4(x)),
        )
        for step, add in zip(steps, parts, strict=True):
            x = x + step(x) if add else step(x)
        return x

    return block_with(forward)


BLOCK_MISTAKES = {
    "sources-are-exchanged": other_inputs(
        lambda x, text, image, own, across: (x, image, text, own, None)
    ),
    "text-asked-twice": other_inputs(
        lambda x, text, image, own, across: (x, text, text, own, across)
    ),
    "image-asked-twice": other_inputs(
        lambda x, text, image, own, across: (x, image, image, own, None)
    ),
    "sources-never-asked": [
        other_inputs(lambda x, text, image, own, across: (x, None, None, own, None)),
        other_inputs(lambda x, text, image, own, across: (x, None, image, own, None)),
        other_inputs(lambda x, text, image, own, across: (x, text, None, own, across)),
    ],
    "own-mask-not-used": other_inputs(
        lambda x, text, image, own, across: (x, text, image, None, across)
    ),
    "text-mask-not-used": other_inputs(
        lambda x, text, image, own, across: (x, text, image, own, None)
    ),
    "always-causal": other_inputs(
        lambda x, text, image, own, across: (x, text, image, causal_mask(x.shape[1]), across)
    ),
    "norm-at-the-end": block_with(lambda p, *given: p.norm4(in_a_row(p, *given))),
    "image-before-text": block_with(image_first),
    "sources-side-by-side": block_with(beside),
    "post-norm-instead": block_with(post_norm),
    "stream-not-added": [
        added(*kept) for kept in product((True, False), repeat=4) if not all(kept)
    ],
    "sums-from-norm": block_with(from_norms),
    "sources-are-normed": [normed(True, True), normed(True, False), normed(False, True)],
    "feed-forward-is-missing": block_with(without_feed),
    "one-norm-for-all": renamed(norm2="norm1", norm3="norm1", norm4="norm1"),
    "source-layers-exchanged": [
        renamed(text_attn="image_attn", image_attn="text_attn"),
        renamed(text_attn="image_attn", image_attn="text_attn", norm2="norm3", norm3="norm2"),
    ],
    "one-layer-for-both-sources": [
        renamed(image_attn="text_attn"),
        renamed(text_attn="image_attn"),
    ],
}


def stream_and_sources(masks: bool) -> Callable[[Case], tuple[Any, ...]]:
    """A stream and two sources, with both masks or with none."""

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


def smoothed(
    mix: Callable[[Tensor, Tensor, float], Tensor] = lambda right, logs, s: (
        (1 - s) * right + s * -logs.mean(dim=-1)
    ),
    logs_of: Callable[[Tensor], Tensor] = lambda scores: scores.log_softmax(dim=-1),
    average: Callable[[Tensor, Tensor], Tensor] = lambda losses, counts: (
        (losses * counts).sum() / counts.sum()
    ),
    counts: Callable[[Tensor], Tensor] = lambda said: said != PADDING,
) -> Callable[[Tensor, Tensor, float], Tensor]:
    """The loss with one step done in another way."""

    def smoothed_loss(scores: Tensor, said: Tensor, smoothing: float) -> Tensor:
        logs = logs_of(scores)
        right = -logs.gather(-1, said[..., None])[..., 0]
        return average(mix(right, logs, smoothing), counts(said).to(scores.dtype))

    return smoothed_loss


def others_only(right: Tensor, logs: Tensor, s: float) -> Tensor:
    v = logs.shape[-1]
    return (1 - s) * right + s / (v - 1) * (-logs.sum(dim=-1) - right)


def uniform_everywhere(scores: Tensor, said: Tensor, smoothing: float) -> Tensor:
    logs, counts = scores.log_softmax(dim=-1), said != PADDING
    right = -logs.gather(-1, said[..., None])[..., 0][counts].mean()
    return (1 - smoothing) * right - smoothing * logs.mean()


LOSS_MISTAKES = {
    "no-smoothing": smoothed(mix=lambda right, logs, s: right),
    "padding-is-counted": smoothed(average=lambda losses, counts: losses.mean()),
    "divided-by-padding-too": smoothed(average=lambda losses, counts: (losses * counts).mean()),
    "losses-are-summed": smoothed(average=lambda losses, counts: (losses * counts).sum()),
    "mean-by-sentence": smoothed(
        average=lambda losses, counts: ((losses * counts).sum(dim=1) / counts.sum(dim=1)).mean()
    ),
    "only-padding-counted": smoothed(
        average=lambda losses, counts: (losses * (1 - counts)).sum() / (1 - counts).sum()
    ),
    "shares-exchanged": smoothed(
        mix=lambda right, logs, s: s * right + (1 - s) * -logs.mean(dim=-1)
    ),
    "both-shares-are-smoothing": smoothed(
        mix=lambda right, logs, s: s * right - s * logs.mean(dim=-1)
    ),
    "spread-over-the-others": smoothed(mix=others_only),
    "smoothing-not-divided": smoothed(
        mix=lambda right, logs, s: (1 - s) * right - s * logs.sum(-1)
    ),
    "spread-is-added": smoothed(mix=lambda right, logs, s: right - s * logs.mean(dim=-1)),
    "spread-is-missing": smoothed(mix=lambda right, logs, s: (1 - s) * right),
    "right-id-counted-twice": smoothed(
        mix=lambda right, logs, s: (1 - s + s / logs.shape[-1]) * right - s * logs.mean(dim=-1)
    ),
    "loss-by-number-of-pairs": smoothed(
        average=lambda losses, counts: (losses * counts).sum() / len(counts)
    ),
    "spread-without-padding-id": [
        smoothed(mix=lambda right, logs, s: (1 - s) * right - s * logs[..., 1:].mean(dim=-1)),
        smoothed(
            mix=lambda right, logs, s: (
                (1 - s) * right - s / logs.shape[-1] * logs[..., 1:].sum(dim=-1)
            )
        ),
    ],
    "special-ids-not-counted": smoothed(counts=lambda said: said > UNKNOWN),
    "end-not-counted": smoothed(counts=lambda said: (said != PADDING) & (said != END)),
    "smoothing-is-fixed": smoothed(
        mix=lambda right, logs, s: 0.9 * right - 0.1 * logs.mean(dim=-1)
    ),
    "spread-has-wrong-sign": smoothed(
        mix=lambda right, logs, s: (1 - s) * right + s * logs.mean(dim=-1)
    ),
    "spread-over-padding-places": uniform_everywhere,
    "minus-is-missing": smoothed(
        average=lambda losses, counts: -(losses * counts).sum() / counts.sum()
    ),
    "no-logarithm": smoothed(logs_of=lambda scores: scores.softmax(dim=-1)),
    "scores-as-logarithms": smoothed(logs_of=lambda scores: scores),
    "loss-softmax-over-places": smoothed(logs_of=lambda scores: scores.log_softmax(dim=1)),
    "smoothed-softmax-twice": smoothed(
        logs_of=lambda scores: scores.softmax(dim=-1).log_softmax(dim=-1)
    ),
    "logarithm-of-base-2": smoothed(
        logs_of=lambda scores: scores.log_softmax(dim=-1) / torch.tensor(2.0).log().item()
    ),
    "logarithm-of-base-10": smoothed(
        logs_of=lambda scores: scores.log_softmax(dim=-1) / torch.tensor(10.0).log().item()
    ),
}


def scores_and_said(case: Case) -> tuple[Tensor, Tensor, float]:
    """Scores, what must be said (with padding behind), and a share for smoothing."""
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
        smoothed(),
        scores_and_said,
        mistakes=LOSS_MISTAKES,
        forbidden=dict.fromkeys(
            ("cross_entropy", "nll_loss", "cross_entropy_loss", "nll_loss_nd", "kl_div"),
            "write-the-loss-steps",
        ),
    )


# ------------------------------------------------------------------------------ the next token


class Watched(Transformer):
    """A Transformer that notes how many texts it encodes."""

    said = "small-transformer"

    def __init__(self, **sizes: Any):
        super().__init__(**sizes)
        self.encoded: list[int] = []

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        self.encoded.append(len(source))
        return super().encode(source, source_mask)


def next_log_probabilities(model: Transformer, source: Tensor, beginnings: Tensor) -> Tensor:
    memory = model.encode(source[None])
    return scores_of(model, memory, beginnings)[:, -1].log_softmax(dim=-1)


def scores_of(model: Transformer, memory: Tensor, beginnings: Tensor) -> Tensor:
    return model.decode(beginnings, memory.expand(len(beginnings), -1, -1))


def saying(
    read: Callable[[Tensor], Tensor], place: int = -1
) -> Callable[[Transformer, Tensor, Tensor], Tensor]:
    """What is made of the scores otherwise."""

    def next_ones(model: Transformer, source: Tensor, beginnings: Tensor) -> Tensor:
        return read(scores_of(model, model.encode(source[None]), beginnings)[:, place])

    return next_ones


def of_other_beginnings(change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda model, source, beginnings: next_log_probabilities(
        model, source, change(beginnings)
    )


def with_the_beginning(logs: Tensor, beginnings: Tensor) -> Tensor:
    """The logarithms of the last place, with those of the beginning's own tokens added."""
    own = logs[:, :-1].gather(-1, beginnings[:, 1:, None])[..., 0]
    return logs[:, -1] + own.sum(dim=1, keepdim=True)


NEXT_MISTAKES = {
    "scores-not-logarithms": saying(lambda scores: scores),
    "probabilities-not-logarithms": saying(lambda scores: scores.softmax(dim=-1)),
    "log-of-bare-scores": saying(lambda scores: scores.log()),
    "softmax-over-beginnings": saying(lambda scores: scores.log_softmax(dim=0)),
    "normed-over-everything": saying(
        lambda scores: scores.flatten().log_softmax(0).view_as(scores)
    ),
    "place-is-first": saying(lambda scores: scores.log_softmax(dim=-1), place=0),
    "place-before-last": of_other_beginnings(lambda ids: ids[:, :-1]),
    "only-last-token-read": of_other_beginnings(lambda ids: ids[:, -1:]),
    "begin-put-in-front": of_other_beginnings(lambda ids: F.pad(ids, (1, 0), value=BEGIN)),
    "source-is-turned": lambda model, source, beginnings: next_log_probabilities(
        model, source.flip(0), beginnings
    ),
    "begin-is-cut-off": of_other_beginnings(lambda ids: ids[:, 1:]),
    "whole-beginning-scored": lambda model, source, beginnings: with_the_beginning(
        scores_of(model, model.encode(source[None]), beginnings).log_softmax(dim=-1), beginnings
    ),
    "softmax-over-the-places": lambda model, source, beginnings: scores_of(
        model, model.encode(source[None]), beginnings
    ).log_softmax(dim=1)[:, -1],
    "padding-forbidden": saying(
        lambda scores: scores.index_fill(-1, torch.tensor([PADDING]), -torch.inf).log_softmax(
            dim=-1
        )
    ),
    "mean-over-places": lambda model, source, beginnings: (
        scores_of(model, model.encode(source[None]), beginnings).mean(dim=1).log_softmax(dim=-1)
    ),
}


def model_and_beginnings(case: Case) -> tuple[Transformer, Tensor, Tensor]:
    """A Transformer, the ids of one source, and several beginnings of its target."""
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
