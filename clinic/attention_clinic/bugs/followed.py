"""Relatives that no search knows: their run is followed step by step, see examine/observed.py."""

from __future__ import annotations

from attention_clinic.engine.forms import variant

variant(
    "latent-attention",
    "makes keys and values of one narrow vector of each token, which is all that a cache must hold",
    "DeepSeek-V2, DeepSeek-V3, MiniCPM3",
    "13",
)
variant(
    "latent-queries",
    "makes queries by way of a narrow vector of each token",
    "DeepSeek-V2",
    "13",
)
variant(
    "rotary-axes",
    "turns some numbers of queries and keys by the row of their token in an image, others by its "
    "column",
    "EVA-02, Qwen2-VL, DINOv3",
    "13",
)
variant(
    "rotary-scaled",
    "turns by smaller angles than usual, all of them or the slow ones, so that longer texts fit",
    "Llama 3.1, position interpolation, YaRN",
    "13",
)
variant(
    "decomposed-positions",
    "multiplies its queries with a learned vector for each offset of rows, and one for each offset "
    "of columns, too, and adds both to the scores",
    "MViT v2, Segment Anything",
    "05",
)
variant(
    "content-bias",
    "compares each key with a learned vector, too, whatever the query is",
    "Transformer-XL, XLNet, Conformer",
    "05",
)
variant(
    "relative-queries",
    "multiplies its keys with a learned vector for each distance, too, and adds that to the scores",
    "DeBERTa",
    "05",
)
variant(
    "query-beside",
    "hands its output layer what asked beside what was mixed, one after the other",
    "attention of Bahdanau and Luong, Transformer-TTS",
    "10",
)
variant(
    "memory-keys",
    "lets each token attend to learned keys and values, too, that no token made",
    "persistent memory, x-transformers, prefix tuning",
    "16",
)
variant(
    "slot-attention",
    "takes the softmax over those who ask, which compete for each token, and divides by the sums",
    "slot attention",
    "16",
)
variant(
    "values-added",
    "adds the values of a token to what the output layer returns: a residual, where the width "
    "changes",
    "Tokens-to-Token ViT",
    "16",
)
variant(
    "sub-norm",
    "normalises what its heads mixed, before the output layer",
    "MAGNETO, RetNet, BitNet",
    "16",
)
variant(
    "value-norm",
    "normalises the values of each head, too",
    "Gemma 3n",
    "13",
)
variant(
    "agent-attention",
    "lets a few vectors ask all keys, and the queries ask these: two softmaxes one after the other",
    "Agent Attention",
    "16",
)
variant(
    "joint-attention",
    "gives two kinds of tokens layers of their own, and lets all of them attend to each other",
    "Stable Diffusion 3, FLUX",
    "10",
)
variant(
    "mixed-attention",
    "lets some tokens, templates, see each other alone, and the others see all",
    "MixFormer",
    "10",
)
variant(
    "context-and-self",
    "makes keys and values of the context and of the tokens that ask, too, one after the other",
    "Flamingo's Perceiver resampler, IP-Adapter",
    "10",
)

FOLLOWED = frozenset(  # what no form of the search makes
    {
        *("latent-attention", "latent-queries", "rotary-axes", "decomposed-positions"),
        *("content-bias", "relative-queries", "query-beside", "memory-keys", "slot-attention"),
        *("values-added", "context-and-self", "agent-attention", "rotary-scaled"),
        *("sub-norm", "value-norm"),
    }
)
