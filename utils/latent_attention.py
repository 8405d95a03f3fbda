"""Multi-head latent attention: keys and values from one small latent per token (chapter 19)."""

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from utils.attention import AttentionMaps, scaled_dot_product_attention
from utils.cache import KeyValueCache
from utils.masking import Mask
from utils.modern_decoder import RMSNorm
from utils.rotary import RopeScaling, apply_rotary
from utils.validation import (
    check_mask,
    check_positive,
    check_rotary,
    check_shape,
    known_positions,
)


class LatentAttention(nn.Module):
    """Multi-head attention whose keys and values are projections of one latent per token.

    The cache keeps the latent, and one rotary key for all heads: a query and a key consist of
    `head_dim` numbers without and `rotary_dim` numbers with positions.

    In the absorbed form the projection to the keys is applied to the queries, and the projection
    to the values to the weighted sum: the heads attend to the latents themselves, and no key or
    value of a head is computed. The results are equal.

    >>> sizes = {"head_dim": 4, "rotary_dim": 2, "value_dim": 4, "latent_dim": 6}
    >>> LatentAttention(embed_dim=8, num_heads=2, **sizes)(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])

    Args:
        embed_dim: width of a token, e.
        num_heads: number of heads, h.
        head_dim: numbers of a query or key without positions, d.
        rotary_dim: numbers of a query or key with positions, r, even.
        value_dim: width of the values of a head, dv.
        latent_dim: width of the latent of keys and values, l.
        query_latent_dim: width of a latent that the queries come from; None: from the token.
        rope_theta, rope_scaling: see `apply_rotary`.
        norm_eps: see `RMSNorm`; of the latents.
        absorbed: use the absorbed form; also an attribute that may be set later.

    Shape:
        x          (b, i, e)
        attn_mask  bool, True = may attend, broadcastable to (b, h, i, j)
        positions  (i,) or (b, i); None, without a cache: from 0 on
        cache      None, or a `KeyValueCache`; it keeps (b, 1, j, l) and (b, 1, j, r)
        result     (b, i, e)

    Raises: ValueError for bad sizes, or inputs and masks that do not fit them.
    Source: DeepSeek-AI 2024 (DeepSeek-V2), section 2.1; chapter 19.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        head_dim: int,
        rotary_dim: int,
        value_dim: int,
        latent_dim: int,
        query_latent_dim: int | None = None,
        rope_theta: float = 10_000.0,
        norm_eps: float = 1e-6,
        rope_scaling: RopeScaling | None = None,
        absorbed: bool = False,
    ):
        super().__init__()
        where = "LatentAttention"
        check_positive(where, embed_dim=embed_dim, num_heads=num_heads, head_dim=head_dim)
        check_positive(where, rotary_dim=rotary_dim, value_dim=value_dim, latent_dim=latent_dim)
        check_rotary(where, "rotary_dim", rotary_dim, rope_theta)
        self.embed_dim, self.num_heads, self.absorbed = embed_dim, num_heads, absorbed
        self.head_dim, self.rotary_dim, self.value_dim = head_dim, rotary_dim, value_dim
        self.latent_dim = latent_dim
        self.rope_theta, self.rope_scaling = rope_theta, rope_scaling
        width = num_heads * (head_dim + rotary_dim)
        if query_latent_dim is None:
            self.q_proj = nn.Linear(embed_dim, width, bias=False)
        else:
            check_positive(where, query_latent_dim=query_latent_dim)
            self.q_proj = nn.Sequential(
                nn.Linear(embed_dim, query_latent_dim, bias=False),
                RMSNorm(query_latent_dim, norm_eps),
                nn.Linear(query_latent_dim, width, bias=False),
            )
        self.kv_down = nn.Linear(embed_dim, latent_dim + rotary_dim, bias=False)
        self.kv_norm = RMSNorm(latent_dim, norm_eps)
        self.kv_up = nn.Linear(latent_dim, num_heads * (head_dim + value_dim), bias=False)
        self.out_proj = nn.Linear(num_heads * value_dim, embed_dim, bias=False)
        self.recorded: AttentionMaps | None = None  # set by record_attention

    def forward(
        self,
        x: Tensor,
        attn_mask: Mask = None,
        positions: Tensor | None = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        fix = f"Tokens have shape (b, n, {self.embed_dim}); one sequence alone is tokens[None]."
        check_shape("LatentAttention", "x", x, "b i e", fix, e=self.embed_dim)
        positions = known_positions("LatentAttention", positions, x, cache)
        h, d, r = self.num_heads, self.head_dim, self.rotary_dim
        q, q_rotary = rearrange(self.q_proj(x), "b i (h d) -> b h i d", h=h).split([d, r], dim=-1)
        latent, k_rotary = self.kv_down(x)[:, None].split([self.latent_dim, r], dim=-1)
        latent = self.kv_norm(latent)  # (b, 1, i, l): one head for all
        rotary = torch.cat([q_rotary, k_rotary], dim=1)
        rotary = apply_rotary(rotary, positions, self.rope_theta, self.rope_scaling)
        q_rotary, k_rotary = rotary.split([h, 1], dim=1)
        if cache is not None:
            latent, k_rotary = cache.update(self, latent, k_rotary)
        check_mask("LatentAttention", attn_mask, (x.shape[0], h, x.shape[1], latent.shape[2]))
        if self.absorbed and self.recorded is None:
            up = rearrange(self.kv_up.weight, "(h d) l -> h d l", h=h)
            up_k, up_v = up.split([d, self.value_dim], dim=1)
            q = einsum(q, up_k, "b h i d, h d l -> b h i l")
            q, k = torch.cat([q, q_rotary], dim=-1), torch.cat([latent, k_rotary], dim=-1)
            same = {"scale": (d + r) ** -0.5, "enable_gqa": True}  # as if q had its own width
            output = F.scaled_dot_product_attention(q, k, latent, attn_mask, **same)
            output = einsum(output, up_v, "b h i l, h dv l -> b h i dv")
        else:
            kv = rearrange(self.kv_up(latent[:, 0]), "b j (h d) -> b h j d", h=h)
            k, v = kv.split([d, self.value_dim], dim=-1)
            q = torch.cat([q, q_rotary], dim=-1)
            k = torch.cat([k, k_rotary.expand(-1, h, -1, -1)], dim=-1)
            if self.recorded is None:
                output = F.scaled_dot_product_attention(q, k, v, attn_mask)
            else:
                output, weights = scaled_dot_product_attention(q, k, v, attn_mask)
                self.recorded.add(q, k, weights)
        return self.out_proj(rearrange(output, "b h i d -> b i (h d)"))
