"""Scaled dot-product attention and its several heads (chapters 02 to 05)."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from utils.cache import KeyValueCache
from utils.masking import Mask
from utils.validation import check_mask, check_multiple, check_positive, check_real, check_shape


def scaled_dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, attn_mask: Mask = None
) -> tuple[Tensor, Tensor]:
    """Return for each query the weighted sum of the values, and the attention weights.

    Every step is visible; `F.scaled_dot_product_attention` gives the same values without keeping
    the weights. A fully masked row gives 0.

    >>> q, k, v = torch.zeros(1, 4), torch.ones(2, 4), torch.tensor([[1.0], [3.0]])
    >>> scaled_dot_product_attention(q, k, v)
    (tensor([[2.]]), tensor([[0.5000, 0.5000]]))

    Args:
        q, k, v: queries, keys, and one value for each key.
        attn_mask: boolean, True = may attend, or None.

    Shape:
        q          (..., i, d)
        k          (..., j, d)
        v          (..., j, dv)     dv is d unless you choose another width
        attn_mask  broadcastable to (..., i, j)
        output     (..., i, dv)
        weights    (..., i, j)      each row sums to 1, or is 0 where nothing may be attended to

    Raises: ValueError for widths or numbers of tokens that do not fit, or a bad mask.
    Source: Vaswani et al. 2017, section 3.2.1; chapter 03, masks chapter 05.
    """
    if q.ndim < 2 or k.ndim < 2 or q.shape[-1] != k.shape[-1]:
        raise ValueError(
            "scaled_dot_product_attention: queries and keys must be (..., i, d) and (..., j, d) "
            f"with the same width d, got q.shape={tuple(q.shape)} and k.shape={tuple(k.shape)}. "
            "Project both to one head_dim."
        )
    if v.shape[:-1] != k.shape[:-1] or q.shape[:-2] != k.shape[:-2]:
        raise ValueError(
            "scaled_dot_product_attention: each key needs one value, and q, k, v the same leading "
            f"axes, got q.shape={tuple(q.shape)}, k.shape={tuple(k.shape)} and "
            f"v.shape={tuple(v.shape)}. Project keys and values from the same tokens."
        )
    # dividing the queries instead of the scores gives the same values and spares half precision
    # the large products
    scores = einsum(q / q.shape[-1] ** 0.5, k, "... i d, ... j d -> ... i j")
    if attn_mask is None:
        weights = scores.softmax(dim=-1)
    else:
        check_mask("scaled_dot_product_attention", attn_mask, tuple(scores.shape))
        # softmax of a fully masked row is NaN: it stays unmasked and is set to 0 afterwards. With
        # torch.finfo.min for -inf, as is often read, such a row would attend to all hidden keys
        masked = ~attn_mask.any(dim=-1, keepdim=True)
        weights = scores.masked_fill(~(attn_mask | masked), -torch.inf).softmax(dim=-1)
        weights = weights.masked_fill(masked, 0.0)
    return einsum(weights, v, "... i j, ... j dv -> ... i dv"), weights


class MultiHeadAttention(nn.Module):
    """Let every token attend to all tokens, in several heads with weights of their own.

    It runs PyTorch's fused kernel, which never holds the (i, j) weights, and on the CPU has no
    second derivative. Inside `record_attention` it runs `scaled_dot_product_attention`, which has
    one, and keeps the weights.

    >>> MultiHeadAttention(embed_dim=8, num_heads=2)(torch.zeros(1, 5, 8)).shape
    torch.Size([1, 5, 8])

    Args:
        embed_dim: width of a token, e.
        num_heads: number of heads, h; each is embed_dim / num_heads wide.
        dropout: fraction of the weights that training sets to 0.

    Shape:
        x          (b, i, e)
        context    (b, j, e)        keys and values come from it; x itself when it is None
        attn_mask  bool, True = may attend, broadcastable to (b, h, i, j)
        cache      None, or a `KeyValueCache`: its tokens come first, so j is longer
        result     (b, i, e)

    Raises: ValueError for bad sizes, or inputs and masks that do not fit them.
    Source: Vaswani et al. 2017, section 3.2.2; chapter 04, masks chapter 05, cache chapter 12.
    """

    def __init__(self, embed_dim: int, num_heads: int, dropout: float = 0.0):
        super().__init__()
        check_positive("MultiHeadAttention", embed_dim=embed_dim, num_heads=num_heads)
        check_multiple("MultiHeadAttention", embed_dim=embed_dim, num_heads=num_heads)
        check_real("MultiHeadAttention", "[0, 1)", "Pass for example dropout=0.1.", dropout=dropout)
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.dropout = dropout
        self.q_proj = nn.Linear(embed_dim, embed_dim)
        self.k_proj = nn.Linear(embed_dim, embed_dim)
        self.v_proj = nn.Linear(embed_dim, embed_dim)
        self.out_proj = nn.Linear(embed_dim, embed_dim)
        self.recorded: AttentionMaps | None = None  # set by record_attention

    def forward(
        self,
        x: Tensor,
        context: Tensor | None = None,
        attn_mask: Mask = None,
        cache: KeyValueCache | None = None,
    ) -> Tensor:
        context, e = x if context is None else context, self.embed_dim
        fix = f"Tokens have shape (b, n, {e}); one sequence alone is tokens[None]."
        check_shape("MultiHeadAttention", "x", x, "b i e", fix, e=e)
        check_shape("MultiHeadAttention", "context", context, "b j e", fix, b=x.shape[0], e=e)
        q = rearrange(self.q_proj(x), "b i (h d) -> b h i d", h=self.num_heads)
        k = rearrange(self.k_proj(context), "b j (h d) -> b h j d", h=self.num_heads)
        v = rearrange(self.v_proj(context), "b j (h d) -> b h j d", h=self.num_heads)
        if cache is not None:
            k, v = cache.update(self, k, v)
        check_mask("MultiHeadAttention", attn_mask, (*q.shape[:3], k.shape[2]))
        if self.recorded is None:
            dropout = self.dropout if self.training else 0.0
            output = F.scaled_dot_product_attention(q, k, v, attn_mask, dropout_p=dropout)
        else:
            output, weights = scaled_dot_product_attention(q, k, v, attn_mask)
            self.recorded.add(q, k, weights)
            if self.training and self.dropout:
                output = F.dropout(weights, self.dropout) @ v
        return self.out_proj(rearrange(output, "b h i d -> b i (h d)"))


class AttentionMaps(list[Tensor]):
    """List attention weights, with the queries and keys that they come from.

    Args:
        gradients: keep the tensors in the graph, for `torch.autograd.grad`.

    Shape:
        maps[l]          (b, h, i, j)
        maps.queries[l]  (b, h, i, d)
        maps.keys[l]     (b, h, j, d)

    Source: chapter 14.
    """

    def __init__(self, gradients: bool = False):
        super().__init__()
        self.gradients = gradients
        self.queries: list[Tensor] = []
        self.keys: list[Tensor] = []

    def add(self, q: Tensor, k: Tensor, weights: Tensor) -> None:
        """Append what one call of an attention layer computed."""
        for where, tensor in ((self.queries, q), (self.keys, k), (self, weights)):
            where.append(tensor if self.gradients else tensor.detach())


@contextmanager
def record_attention(model: nn.Module, gradients: bool = False) -> Iterator[AttentionMaps]:
    """Collect the attention weights of every attention layer in `model`, in running order.

    >>> model, x = MultiHeadAttention(8, 2), torch.zeros(1, 5, 8)
    >>> with record_attention(model) as maps:
    ...     output = model(x)
    >>> maps[0].shape, maps.queries[0].shape  # of the first attention layer
    (torch.Size([1, 2, 5, 5]), torch.Size([1, 2, 5, 4]))

    The weights are taken before dropout; queries and keys after rotary positions, if there are
    any, and before the division by the root of d.

    Args:
        model: any module that holds `MultiHeadAttention` or `GroupedQueryAttention` layers.
        gradients: False detaches all of it; True keeps the graph, for `torch.autograd.grad`.

    Shape:
        maps  one (b, h, i, j) for each call of an attention layer

    Raises: ValueError for no such layer in the model.
    Source: chapter 04; queries, keys and gradients chapter 14.
    """
    layers = [module for module in model.modules() if hasattr(module, "recorded")]
    if not layers:
        raise ValueError(
            "record_attention: the model must hold a MultiHeadAttention of utils.attention or a "
            f"GroupedQueryAttention, got model={type(model).__name__} without one. "
            "nn.MultiheadAttention returns its weights itself: need_weights=True."
        )
    before = [layer.recorded for layer in layers]
    maps = AttentionMaps(gradients)
    try:
        for layer in layers:
            layer.recorded = maps
        yield maps
    finally:
        for layer, recorded in zip(layers, before, strict=True):
            layer.recorded = recorded
