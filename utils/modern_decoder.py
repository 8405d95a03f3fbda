"""The decoder of today's language models: RMSNorm, SwiGLU, rotary, grouped queries (chapter 13)."""

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from utils.attention import AttentionMaps, scaled_dot_product_attention
from utils.cache import KeyValueCache
from utils.embedding import TokenEmbedding
from utils.masking import Mask, causal_mask
from utils.rotary import RopeScaling as RopeScaling
from utils.rotary import apply_rotary as apply_rotary
from utils.validation import (
    check_cache,
    check_ids,
    check_mask,
    check_multiple,
    check_positive,
    check_real,
    check_rotary,
    check_shape,
    known_positions,
)


class RMSNorm(nn.Module):
    """Divide every token by its root mean square, and weight the result number by number.

    >>> RMSNorm(2)(torch.tensor([3.0, 4.0]))  # the root mean square is 3.5355
    tensor([0.8485, 1.1314], grad_fn=<MulBackward0>)

    LayerNorm without its two shifts: no mean is subtracted, no bias is added.

    Args:
        width: numbers in the last axis, e or d.
        eps: what keeps the root from being 0.

    Shape:
        x       (..., width)
        result  (..., width)

    Raises: ValueError for a width below 1, or an input of another width.
    Source: Zhang and Sennrich 2019, section 3; chapter 13.
    """

    def __init__(self, width: int, eps: float = 1e-6):
        super().__init__()
        check_positive("RMSNorm", width=width)
        check_real("RMSNorm", "[0, inf)", "Llama's is eps=1e-6.", eps=eps)
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[-1:] != self.weight.shape or not x.is_floating_point():
            raise ValueError(
                f"RMSNorm: x must have shape (..., {len(self.weight)}) and hold no integers, got "
                f"x.shape={tuple(x.shape)} of {x.dtype}. Build RMSNorm with the last axis' width."
            )
        # the squares of half precision overflow above 255
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.square().mean(dim=-1, keepdim=True) + self.eps)
        return self.weight * normed.to(x.dtype)


class GatedFeedForward(nn.Module):
    """Position-wise feed-forward in which one projection gates another (SwiGLU).

    Args:
        embed_dim, mlp_dim: see `FeedForward`.

    Shape: as `FeedForward`.
    Raises: as `FeedForward`.
    Source: Shazeer 2020, equation 6; chapter 13.
    """

    def __init__(self, embed_dim: int, mlp_dim: int):
        super().__init__()
        check_positive("GatedFeedForward", embed_dim=embed_dim, mlp_dim=mlp_dim)
        self.embed_dim = embed_dim
        self.gate_proj = nn.Linear(embed_dim, mlp_dim, bias=False)
        self.act = nn.SiLU()
        self.up_proj = nn.Linear(embed_dim, mlp_dim, bias=False)
        self.down_proj = nn.Linear(mlp_dim, embed_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        fix = f"Tokens have shape (b, n, {self.embed_dim})."
        check_shape("GatedFeedForward", "x", x, "b n e", fix, e=self.embed_dim)
        return self.down_proj(self.act(self.gate_proj(x)) * self.up_proj(x))


class GroupedQueryAttention(nn.Module):
    """Multi-head attention in which several heads of queries share a head of keys and values.

    Queries and keys are rotated by their positions, so the layer knows the order. As many
    heads of keys as of queries is multi-head attention, one is multi-query attention.

    Args:
        embed_dim: width of a token, e.
        num_heads: heads of queries, h.
        num_kv_heads: heads of keys and values, g; each serves h / g heads of queries.
        head_dim: width of one head, d, even; None: embed_dim / num_heads.
        rope_theta: see `apply_rotary`.
        bias: add one to queries, keys and values, as Qwen2 does.
        qk_norm: normalize each query and key over its d numbers before the rotation, as Qwen3 does.
        norm_eps: see `RMSNorm`; of these norms.
        rope_scaling: see `RopeScaling`.
        window: how many tokens each one may attend to, itself included; None: all earlier ones.
        sinks: give each head a learned logit that takes part in the softmax and has no value, as
            gpt-oss does: the weights of a row sum to less than 1.

    Shape:
        x          (b, i, e)
        attn_mask  bool, True = may attend, broadcastable to (b, h, i, j)
        positions  (i,) or (b, i); None, without a cache: from 0 on
        cache      None, or a `KeyValueCache`: its tokens come first, so j is longer
        result     (b, i, e)

    Raises: ValueError for bad sizes, or inputs and masks that do not fit them.
    Source: Ainslie et al. 2023, section 2.2; Shazeer 2019 (multi-query); chapter 13. Windows:
        Beltagy et al. 2020 (Longformer); sinks: Xiao et al. 2023, OpenAI 2025; chapter 19.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int | None = None,
        rope_theta: float = 10_000.0,
        bias: bool = False,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        rope_scaling: RopeScaling | None = None,
        window: int | None = None,
        sinks: bool = False,
    ):
        super().__init__()
        sizes = {"embed_dim": embed_dim, "num_heads": num_heads, "num_kv_heads": num_kv_heads}
        check_positive("GroupedQueryAttention", **sizes)
        check_multiple("GroupedQueryAttention", num_heads=num_heads, num_kv_heads=num_kv_heads)
        if head_dim is None:
            check_multiple("GroupedQueryAttention", embed_dim=embed_dim, num_heads=num_heads)
            head_dim = embed_dim // num_heads
        check_positive("GroupedQueryAttention", head_dim=head_dim)
        check_rotary("GroupedQueryAttention", "head_dim", head_dim, rope_theta)
        if window is not None:
            check_positive("GroupedQueryAttention", window=window)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.window = window
        self.rope_theta, self.rope_scaling = rope_theta, rope_scaling
        self.q_proj = nn.Linear(embed_dim, num_heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(embed_dim, num_kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(embed_dim, num_kv_heads * head_dim, bias=bias)
        self.q_norm = RMSNorm(head_dim, norm_eps) if qk_norm else nn.Identity()
        self.k_norm = RMSNorm(head_dim, norm_eps) if qk_norm else nn.Identity()
        # 0 is the score of a key that no query points to
        self.sinks = nn.Parameter(torch.zeros(num_heads)) if sinks else None
        self.out_proj = nn.Linear(num_heads * head_dim, embed_dim, bias=False)
        self.recorded: AttentionMaps | None = None  # set by record_attention

    def forward(
        self,
        x: Tensor,
        attn_mask: Mask = None,
        positions: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        fix = f"Tokens have shape (b, n, {self.embed_dim}); one sequence alone is tokens[None]."
        check_shape("GroupedQueryAttention", "x", x, "b i e", fix, e=self.embed_dim)
        positions = known_positions("GroupedQueryAttention", positions, x, cache)
        q = rearrange(self.q_proj(x), "b i (h d) -> b h i d", h=self.num_heads)
        k = rearrange(self.k_proj(x), "b j (g d) -> b g j d", g=self.num_kv_heads)
        v = rearrange(self.v_proj(x), "b j (g d) -> b g j d", g=self.num_kv_heads)
        both = torch.cat([self.q_norm(q), self.k_norm(k)], dim=1)  # the same angles for all heads
        both = apply_rotary(both, positions, self.rope_theta, self.rope_scaling)
        q, k = both.split([self.num_heads, self.num_kv_heads], dim=1)
        if cache is not None:
            k, v = cache.update(self, k, v)  # earlier keys come first, rotated already
            if attn_mask is not None and cache.length > k.shape[2]:
                attn_mask = attn_mask[..., -k.shape[2] :]  # a rolling cache dropped the first keys
        i, j = x.shape[1], k.shape[2]
        check_mask("GroupedQueryAttention", attn_mask, (x.shape[0], self.num_heads, i, j))
        if self.window is not None:  # keys fewer than `window` positions back: query 0 is key j - i
            near = torch.ones(i, j, dtype=torch.bool, device=x.device).triu(j - i + 1 - self.window)
            attn_mask = near if attn_mask is None else attn_mask & near
        # query head number a meets key head number a // (h / g)
        if self.recorded is None and self.sinks is None:
            output = F.scaled_dot_product_attention(q, k, v, attn_mask, enable_gqa=True)
        else:
            k, v = (x.repeat_interleave(self.num_heads // self.num_kv_heads, dim=1) for x in (k, v))
            output, weights = self._weigh(q, k, v, attn_mask)
            if self.recorded is not None:
                self.recorded.add(q, k, weights)
        return self.out_proj(rearrange(output, "b h i d -> b i (h d)"))

    def _weigh(self, q: Tensor, k: Tensor, v: Tensor, attn_mask: Mask) -> tuple[Tensor, Tensor]:
        """Return the attention output and the weights, without those of the sinks."""
        if self.sinks is None:
            return scaled_dot_product_attention(q, k, v, attn_mask)
        scores = einsum(q / q.shape[-1] ** 0.5, k, "b h i d, b h j d -> b h i j")
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        sinks = self.sinks[:, None, None].expand(*scores.shape[:3], 1)
        weights = torch.cat([scores, sinks], dim=-1).softmax(dim=-1)[..., :-1]
        return einsum(weights, v, "b h i j, b h j d -> b h i d"), weights


class ModernBlock(nn.Module):
    """Grouped-query attention, then a gated feed-forward, both pre-norm with a residual connection.

    Args:
        embed_dim, num_heads, num_kv_heads, head_dim: see `GroupedQueryAttention`.
        mlp_dim: inner width of the feed-forward, m.
        rope_theta, bias, qk_norm, rope_scaling, window: see `GroupedQueryAttention`.
        norm_eps: see `RMSNorm`; of all norms.

    Shape: as `GroupedQueryAttention`.
    Raises: as `GroupedQueryAttention` and `GatedFeedForward`.
    Source: Touvron et al. 2023 (Llama), section 2.2; chapter 13.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int,
        mlp_dim: int,
        head_dim: int | None = None,
        rope_theta: float = 10_000.0,
        bias: bool = False,
        qk_norm: bool = False,
        norm_eps: float = 1e-6,
        rope_scaling: RopeScaling | None = None,
        window: int | None = None,
    ):
        super().__init__()
        check_positive("ModernBlock", embed_dim=embed_dim)
        self.norm1 = RMSNorm(embed_dim, norm_eps)
        options = (head_dim, rope_theta, bias, qk_norm, norm_eps, rope_scaling, window)
        self.attn = GroupedQueryAttention(embed_dim, num_heads, num_kv_heads, *options)
        self.norm2 = RMSNorm(embed_dim, norm_eps)
        self.mlp = GatedFeedForward(embed_dim, mlp_dim)

    def forward(
        self,
        x: Tensor,
        attn_mask: Mask = None,
        positions: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        x = x + self.attn(self.norm1(x), attn_mask, positions, cache)
        return x + self.mlp(self.norm2(x))


class ModernDecoder(nn.Module):
    """Predict the next token at every position, with the parts of Llama, Qwen2 and Qwen3.

    It is causal by itself and has no maximum length, since rotary needs no table. Llama is the
    default, Qwen2 has `bias=True`, Qwen3 `qk_norm=True`, Llama 3.1 `rope_scaling`.

    Args:
        vocab_size: number of different tokens.
        num_layers: number of blocks.
        embed_dim, num_heads, num_kv_heads, head_dim, mlp_dim: see `ModernBlock`.
        rope_theta, bias, qk_norm, rope_scaling: see `GroupedQueryAttention`.
        tie_weights: use the embedding matrix as the weight of the last layer, too.
        norm_eps: see `RMSNorm`; of all norms.
        window: how many tokens each one may attend to, itself included, as in the first Mistral;
            None: all earlier ones. A `KeyValueCache(rolling=True)` keeps no others.

    Shape:
        ids        (b, n), integers
        attn_mask  bool, True = may attend, broadcastable to (b, h, n, j), such as padding; causal
                   comes on top
        cache      None, or a `KeyValueCache` with earlier tokens: then j is longer than n
        positions  (n,) or (b, n), of each token in its sequence; None: from the end of the cache on
        result     (b, n, vocab_size)

    Raises: as `GroupedQueryAttention` and `TokenEmbedding`, no layers, or no tokens.
    Source: Touvron et al. 2023 (Llama), Yang et al. 2024 and 2025 (Qwen2, Qwen3); chapter 13.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        embed_dim: int,
        num_heads: int,
        num_kv_heads: int,
        mlp_dim: int,
        num_layers: int,
        head_dim: int | None = None,
        rope_theta: float = 10_000.0,
        bias: bool = False,
        qk_norm: bool = False,
        tie_weights: bool = False,
        norm_eps: float = 1e-6,
        window: int | None = None,
        rope_scaling: RopeScaling | None = None,
    ):
        super().__init__()
        check_positive(
            "ModernDecoder", vocab_size=vocab_size, embed_dim=embed_dim, num_layers=num_layers
        )
        if window is not None:
            check_positive("ModernDecoder", window=window)
        self.window = window
        self.embedding = TokenEmbedding(vocab_size, embed_dim, 1, positions=None, scale=False)
        sizes = (embed_dim, num_heads, num_kv_heads, mlp_dim)
        options = (head_dim, rope_theta, bias, qk_norm, norm_eps, rope_scaling, window)
        self.layers = nn.ModuleList(ModernBlock(*sizes, *options) for _ in range(num_layers))
        self.norm = RMSNorm(embed_dim, norm_eps)
        self.head = nn.Linear(embed_dim, vocab_size, bias=False)
        if tie_weights:
            self.head.weight = self.embedding.tokens.weight

    def forward(
        self,
        ids: Tensor,
        attn_mask: Mask = None,
        cache: KeyValueCache | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        x = self.embedding(ids)  # (b, n, e)
        if not ids.shape[1]:
            raise ValueError(
                "ModernDecoder: there must be at least one token, "
                f"got ids.shape={tuple(ids.shape)}. Begin an empty text with a token for begin."
            )
        start = 0 if cache is None else cache.length
        end = start + ids.shape[1]
        mask = None  # one new token may attend to all earlier ones
        if ids.shape[1] > 1:
            mask = causal_mask(end, ids.device, start)  # (n, j): row i is the token at start + i
        if attn_mask is not None:
            shape = (ids.shape[0], self.layers[0].attn.num_heads, ids.shape[1], end)
            check_mask("ModernDecoder", attn_mask, shape)
            mask = attn_mask if mask is None else mask & attn_mask
        if positions is None:
            positions = torch.arange(start, end, device=ids.device)
        else:  # from 2^24 on, float32 gives two positions one angle
            check_ids("ModernDecoder", "positions", positions, 2**24, "The first token is at 0.")
        for layer in self.layers:
            x = layer(x, mask, positions, cache)
        check_cache("ModernDecoder", cache, end)
        return self.head(self.norm(x))
