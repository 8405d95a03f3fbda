"""Blocks with a context or with masks: two families of decoder blocks and their mistakes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attention_clinic import Report, diagnose
from patients.attention import Views
from patients.bank import CASES, SIZES, Entry
from patients.blocks import PostNorm, PreNorm, block
from patients.crossing import Apart, Packed, PackedIgnores, PackedSwapped
from patients.masks import ViewsMaskMultiply
from utils.decoder import Decoder, DecoderBlock
from utils.encoder import EncoderBlock
from utils.masking import causal_mask, padding_mask

DECODER_SIZES = ((24, 4), (15, 3), (7, 1))
CAUSAL = causal_mask(5)
PADDED = padding_mask(torch.tensor([4, 7]), 7)


def decoder(*ids: str, sizes: tuple = DECODER_SIZES, **options):
    """Enter a block that reads a context."""
    return block(*ids, sizes=sizes, **{"context": True, **options})


# ------------------------------------------------------------------- two families, both healthy


@decoder()
@decoder(mask=CAUSAL, context_mask=PADDED)
class PreDecoder(nn.Module):
    """Pre-norm, packed projections, forward(x, context, mask, context_mask)."""

    def __init__(self, e: int, h: int):
        super().__init__()
        self.ln_1, self.ln_2, self.ln_3 = (nn.LayerNorm(e) for _ in range(3))
        self.attention, self.cross = Views(e, h), Packed(e, h)
        self.ffn = nn.Sequential(nn.Linear(e, 2 * e + 1), nn.GELU(), nn.Linear(2 * e + 1, e))

    def forward(self, x, context, mask=None, context_mask=None):
        x = x + self.attention(self.ln_1(x), mask)
        x = x + self.cross(self.ln_2(x), context, context_mask)
        return x + self.ffn(self.ln_3(x))


@decoder()
@decoder(mask=CAUSAL[None, None], context_mask=PADDED)
class PostDecoder(nn.Module):
    """Post-norm, four layers an attention, forward(x, memory, src_mask, tgt_mask)."""

    def __init__(self, e: int, h: int):
        super().__init__()
        self.self_attn, self.src_attn = Apart(e, h), Apart(e, h)
        self.w_1, self.w_2 = nn.Linear(e, e + 5), nn.Linear(e + 5, e)
        self.norms = nn.ModuleList(nn.LayerNorm(e) for _ in range(3))

    def feed(self, x: Tensor) -> Tensor:
        return self.w_2(self.w_1(x).relu())

    def listen(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        return self.src_attn(x, memory, memory, mask)[0]

    def look(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.self_attn(x, x, x, mask)[0]

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.norms[0](x + self.look(x, tgt_mask))
        x = self.norms[1](x + self.listen(x, memory, src_mask))
        return self.norms[2](x + self.feed(x))


@decoder()
class AsksFirst(PreDecoder):
    """Perceiver's order: context, feed-forward, own tokens, another feed-forward."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.ln_4, self.more = nn.LayerNorm(e), PreNorm(e, h).ffn

    def forward(self, x, context):
        x = x + self.cross(self.ln_2(x), context)
        x = x + self.more(self.ln_4(x))
        x = x + self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_3(x))


@decoder("parts-order")
class FeedsFirst(PreDecoder):
    def forward(self, x, context):
        x = x + self.cross(self.ln_2(x), context)
        x = x + self.ffn(self.ln_3(x))
        return x + self.attention(self.ln_1(x))


def _decoder_course(e, h):
    return DecoderBlock(e, h, 2 * e)


def _decoder_course_post(e, h):
    return DecoderBlock(e, h, 2 * e, dropout=0.1, norm_first=False, activation="relu")


def _decoder_torch(e, h):
    return nn.TransformerDecoderLayer(e, h, e + 3, batch_first=True, norm_first=True)


def _decoder_torch_second(e, h):
    return nn.TransformerDecoderLayer(e, h, 2 * e, activation="gelu")


def _decoders_course(e, h):
    return Decoder(2, e, h, 2 * e)


def _decoders_torch(e, h):
    layer = nn.TransformerDecoderLayer(e, h, 2 * e, batch_first=True)
    stack = nn.TransformerDecoder(layer, 2)
    for parameter in stack.parameters():  # its copies start alike
        nn.init.normal_(parameter, std=0.1)
    return stack


for _make in (_decoder_course, _decoder_course_post, _decoder_torch, _decoders_course):
    decoder()(_make)
    decoder(mask=CAUSAL, context_mask=PADDED)(_make)
for _make in (_decoder_torch, _decoder_torch_second, _decoders_torch):
    block(sizes=DECODER_SIZES)(_make)  # forward needs a memory: it gets one
decoder(mask=CAUSAL, context_mask=PADDED)(_decoder_torch)
decoder(norm_first=True, activation="relu", norm_eps=1e-5)(_decoder_torch)
decoder("norm-order", norm_first=True)(_decoder_course_post)


def _bert_decoder(e, h):
    from transformers import BertConfig
    from transformers.models.bert.modeling_bert import BertLayer

    config = BertConfig(
        hidden_size=e,
        num_attention_heads=h,
        intermediate_size=2 * e,
        is_decoder=True,
        add_cross_attention=True,
    )
    config._attn_implementation = "eager"
    return BertLayer(config)


def _gpt2_decoder(e, h):
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2Block

    config = GPT2Config(n_embd=e, n_head=h, n_positions=32, add_cross_attention=True)
    config._attn_implementation = "eager"
    return GPT2Block(config, layer_idx=0)


decoder(sizes=DECODER_SIZES[:2])(_bert_decoder)
decoder(sizes=DECODER_SIZES[:2])(_gpt2_decoder)


# ------------------------------------------------------------------------------ the wrong side


@decoder("cross-ignored")
class PreDecoderIgnores(PreDecoder):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.cross = PackedIgnores(e, h)


@decoder("cross-ignored")
class CourseIgnores(DecoderBlock):
    def __init__(self, e, h):
        super().__init__(e, h, 2 * e)

    def forward(self, x, context, attn_mask=None, context_mask=None):
        x = x + self.attn(self.norm1(x), attn_mask=attn_mask)
        x = x + self.cross_attn(self.norm2(x))
        return x + self.mlp(self.norm3(x))


@decoder("cross-swapped")
class PreDecoderSwapped(PreDecoder):
    """Runs for contexts that are as long as the tokens."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.cross = PackedSwapped(e, h)


@decoder("cross-values")
class PostDecoderValues(PostDecoder):
    def listen(self, x, memory, mask):
        return self.src_attn(x, memory, x, mask)[0]


@decoder("cross-queries")
class PostDecoderQueries(PostDecoder):
    def listen(self, x, memory, mask):
        return self.src_attn(memory, memory, memory, mask)[0]


# ------------------------------------------------------------------------------------- masks


@decoder("context-mask-dropped", mask=CAUSAL, context_mask=PADDED)
class PreDecoderDropsContextMask(PreDecoder):
    def forward(self, x, context, mask=None, context_mask=None):
        return super().forward(x, context, mask)


@decoder("context-mask-dropped", mask=CAUSAL[None, None], context_mask=PADDED)
class PostDecoderDropsContextMask(PostDecoder):
    def listen(self, x, memory, mask):
        return super().listen(x, memory, None)


@decoder("mask-dropped", mask=CAUSAL, context_mask=PADDED)
class PreDecoderDropsMask(PreDecoder):
    def forward(self, x, context, mask=None, context_mask=None):
        return super().forward(x, context, None, context_mask)


@decoder("mask-dropped", mask=CAUSAL)
class CourseDropsMask(DecoderBlock):
    def __init__(self, e, h):
        super().__init__(e, h, 2 * e)

    def forward(self, x, context, attn_mask=None, context_mask=None):
        return super().forward(x, context, None, context_mask)


decoder("mask-not-causal", causal=True)(PreDecoder)
decoder("mask-not-causal", causal=True)(_decoder_torch_second)


@decoder("mask-inverted", mask=CAUSAL[None, None], context_mask=PADDED)
class PostDecoderInverts(PostDecoder):
    """The last token sees nothing: the row treats that as the fused kernel does not."""

    def look(self, x, mask):
        mask = None if mask is None else torch.ones_like(mask).tril(-1).mT | ~mask.any(-1, True)
        return super().look(x, mask)


@decoder("mask-multiply", mask=CAUSAL, also=(("mask-tiny",),))
class PreDecoderMultiplies(PreDecoder):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.attention = ViewsMaskMultiply(e, h)


# --------------------------------------------------------------------- parts, norms, residuals


@decoder("residual-from-input")
class PostDecoderAddsEarlier(PostDecoder):
    """What the first norm returned is the stream before the context, and is added behind all."""

    def forward(self, x, memory, src_mask, tgt_mask):
        first = self.norms[0](x + self.look(x, tgt_mask))
        second = self.norms[1](first + self.listen(first, memory, src_mask))
        return self.norms[2](first + self.feed(second))


@decoder("parts-order")
class CrossFirst(PreDecoder):
    def forward(self, x, context, mask=None, context_mask=None):
        x = x + self.cross(self.ln_1(x), context, context_mask)
        x = x + self.attention(self.ln_2(x), mask)
        return x + self.ffn(self.ln_3(x))


@decoder("parts-order")
class FeedBetween(PostDecoder):
    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.norms[0](x + self.look(x, tgt_mask))
        x = self.norms[1](x + self.feed(x))
        return self.norms[2](x + self.listen(x, memory, src_mask))


@decoder("norm-missing")
class CrossUnnormed(PreDecoder):
    def forward(self, x, context, mask=None, context_mask=None):
        x = x + self.attention(self.ln_1(x), mask)
        x = x + self.cross(x, context, context_mask)
        return x + self.ffn(self.ln_3(x))


@decoder("norm-missing")
class TwoNormsOnly(PostDecoder):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.norms = nn.ModuleList([nn.LayerNorm(e), nn.LayerNorm(e), nn.Identity()])


@decoder("norm-shared")
class OneNorm(PostDecoder):
    def __init__(self, e, h):
        super().__init__(e, h)
        del self.norms
        self.layer_norm = nn.LayerNorm(e)

    def forward(self, x, memory, src_mask, tgt_mask):
        x = self.layer_norm(x + self.look(x, tgt_mask))
        x = self.layer_norm(x + self.listen(x, memory, src_mask))
        return self.layer_norm(x + self.feed(x))


@decoder("norm-shared")
class FirstNormTwice(PreDecoder):
    def forward(self, x, context, mask=None, context_mask=None):
        x = x + self.attention(self.ln_1(x), mask)
        x = x + self.cross(self.ln_1(x), context, context_mask)
        return x + self.ffn(self.ln_3(x))


@decoder("residual-missing")
class CrossWithoutStream(PreDecoder):
    def forward(self, x, context, mask=None, context_mask=None):
        x = x + self.attention(self.ln_1(x), mask)
        x = self.cross(self.ln_2(x), context, context_mask)
        return x + self.ffn(self.ln_3(x))


@decoder("residual-from-norm")
class CrossAddsNorm(PreDecoder):
    def forward(self, x, context, mask=None, context_mask=None):
        x = x + self.attention(self.ln_1(x), mask)
        y = self.ln_2(x)
        x = y + self.cross(y, context, context_mask)
        return x + self.ffn(self.ln_3(x))


@decoder("residual-from-input")
class CrossAddsInput(PostDecoder):
    def forward(self, x, memory, src_mask, tgt_mask):
        y = self.norms[0](x + self.look(x, tgt_mask))
        y = self.norms[1](x + self.listen(y, memory, src_mask))
        return self.norms[2](y + self.feed(y))


@decoder("scale-embed", sizes=DECODER_SIZES[:2])
class CrossScaledByEmbed(PreDecoder):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.cross.scale = lambda e: e**-0.5


@decoder("cross-ignored", "norm-missing")
class IgnoresAndUnnormed(CrossUnnormed):
    def __init__(self, e, h):
        super().__init__(e, h)
        self.cross = PackedIgnores(e, h)


# ----------------------------------------------------------------- blocks without a context


class PreNormMasked(PreNorm):
    def forward(self, x, mask=None):
        x = x + self.attention(self.ln_1(x), mask)
        return x + self.ffn(self.ln_2(x))


class PreNormDropsMask(PreNormMasked):
    def forward(self, x, mask=None):
        return super().forward(x)


class PostNormDropsMask(PostNorm):
    def forward(self, x, attn_mask=None):
        return super().forward(x)


class OneNormTwice(PreNorm):
    def forward(self, x):
        x = x + self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_1(x))


class NormForgotten(PostNorm):
    def forward(self, x):
        x = self.norms[0](x + self.self_attn(x))
        return x + self.feed(x)


def _block_masked(e, h):
    return EncoderBlock(e, h, 2 * e)


def _block_torch_masked(e, h):
    return nn.TransformerEncoderLayer(e, h, 2 * e, batch_first=True, norm_first=True)


for _make in (PreNormMasked, _block_masked, _block_torch_masked):
    block(mask=CAUSAL, sizes=SIZES[2:])(_make)
block("mask-dropped", mask=CAUSAL, sizes=DECODER_SIZES)(PreNormDropsMask)
block("mask-dropped", mask=CAUSAL, sizes=DECODER_SIZES)(PostNormDropsMask)
block("norm-shared", sizes=DECODER_SIZES)(OneNormTwice)
block("norm-missing", sizes=DECODER_SIZES)(NormForgotten)


# ------------------------------------------------- strangers' styles, once judged wrongly


@decoder()
class SourceFirst(PostDecoder):
    """forward(x, y): x comes from the encoder, and no name says so."""

    def forward(self, x, y, self_mask=None, cross_mask=None):
        return super().forward(y, x, cross_mask, self_mask)


@decoder()
class WiderInside(PostDecoder):
    """Heads that together are wider than a token."""

    def __init__(self, e, h):
        super().__init__(e, h)
        for attention in (self.self_attn, self.src_attn):
            inner = h * (e // h + 2)
            attention.d_k = inner // h
            attention.w_q, attention.w_k, attention.w_v = (nn.Linear(e, inner) for _ in range(3))
            attention.fc = nn.Linear(inner, e)


@block(sizes=DECODER_SIZES)
class NormOfThePart(PostNorm):
    """x + norm(part(x)): a variant."""

    def forward(self, x):
        x = x + self.norms[0](self.self_attn(x))
        return x + self.norms[1](self.feed(x))


@decoder("norm-shared")
class NormOfThePartTwice(PostDecoder):
    def forward(self, x, memory, src_mask, tgt_mask):
        x = x + self.norms[0](self.look(x, tgt_mask))
        x = x + self.norms[1](self.listen(x, memory, src_mask))
        return x + self.norms[1](self.feed(x))


class TokensFirstUnsaid(nn.TransformerEncoderLayer):
    """Nothing says that it takes (tokens, samples, width)."""


block("batch-first", sizes=DECODER_SIZES)(
    type("SamplesMixed", (TokensFirstUnsaid,), {
        "__init__": lambda self, e, h: nn.TransformerEncoderLayer.__init__(self, e, h, 2 * e)})
)  # fmt: skip


def _whole(name: str, make, *ids: str, **options) -> None:
    """Enter a block or a stack that is handed to `diagnose`."""

    def examine(seed: int, e: int, h: int) -> Report:
        torch.manual_seed(seed)
        return diagnose(make(e, h), h, **options)

    CASES.append(Entry(name, ids, examine, sizes=DECODER_SIZES[:2]))


_whole("torch layer, by diagnose", _block_torch_masked)
_whole("torch decoder layer, by diagnose", _decoder_torch_second)
_whole("torch decoder, by diagnose", _decoders_torch)
_whole("HuggingFace BERT decoder layer, by diagnose", _bert_decoder, context=True)
_whole("course decoder, by diagnose", _decoder_course, context=True)
_whole("no residual, by diagnose", CrossWithoutStream, "residual-missing", context=True)


@block(sizes=DECODER_SIZES)
class OutputsOfTheEncoder(PostDecoder):
    """forward(x, e_outputs, src_mask, trg_mask), as in a well-known tutorial."""

    def forward(self, x, e_outputs, src_mask, trg_mask):
        return super().forward(x, e_outputs, src_mask, trg_mask)


# -------------------------------------------------------------- a layer that makes the context


class Scaled(Packed):
    def scale(self, e):
        return e**-0.5


class AsksWhatALayerMakes(nn.Module):
    """Its context goes through a layer first, which is none of the attention's."""

    def __init__(self, e, h, cross=Packed):
        super().__init__()
        self.adapt, self.cross = nn.Linear(e, e), cross(e, h)
        self.norm1, self.norm2 = nn.LayerNorm(e), nn.LayerNorm(e)
        self.feed = nn.Sequential(nn.Linear(e, 2 * e), nn.GELU(), nn.Linear(2 * e, e))

    def forward(self, x, context):
        x = self.norm1(x + self.cross(x, self.adapt(context)))
        return self.norm2(x + self.feed(x))


decoder()(AsksWhatALayerMakes)


@decoder("scale-embed")
def _asks_what_a_layer_makes_scaled(e, h):
    return AsksWhatALayerMakes(e, h, Scaled)


@decoder("residual-missing")
class AsksWhatLayersMakeAlone(AsksWhatALayerMakes):
    """Two layers make it, and the stream is lost."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.adapt = nn.Sequential(nn.Linear(e, 2 * e), nn.GELU(), nn.Linear(2 * e, e))

    def forward(self, x, context):
        x = x + self.cross(self.norm1(x), self.adapt(context))
        return self.feed(self.norm2(x))


@decoder(context=40, sizes=DECODER_SIZES[:2])
class AsksAnotherWidth(PreDecoder):
    """The layer makes tokens as wide as its own of wider ones; a norm stands behind it."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.adapt = nn.Sequential(nn.Linear(40, e), nn.LayerNorm(e))

    def forward(self, x, context):
        return super().forward(x, self.adapt(context))
