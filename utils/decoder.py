"""Decoder block, decoder and Transformer: from one sequence to another (chapter 10)."""

from torch import Tensor, nn

from utils.attention import MultiHeadAttention
from utils.embedding import TokenEmbedding
from utils.encoder import Encoder, FeedForward
from utils.masking import Mask, causal_mask
from utils.validation import check_mask, check_positive, check_real


class DecoderBlock(nn.Module):
    """Self-attention, cross-attention and feed-forward, each added to the residual stream.

    The causal mask is the caller's: `attn_mask=causal_mask(i)`.

    Args:
        embed_dim, num_heads, mlp_dim, dropout, activation, norm_eps: see `EncoderBlock`.
        norm_first: True normalizes the input of each part (pre-norm), but never the context; False
            normalizes the sum (post-norm, as in the original Transformer).

    Shape:
        x             (b, i, e)    the residual stream: gives the queries
        context       (b, j, e)    the output of the encoder: gives keys and values
        attn_mask     bool, True = may attend, broadcastable to (b, h, i, i)
        context_mask  bool, True = may attend, broadcastable to (b, h, i, j)
        result        (b, i, e)

    Raises: as `MultiHeadAttention` and `FeedForward`.
    Source: Vaswani et al. 2017, sections 3.1 and 3.2.3; chapter 10.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        mlp_dim: int,
        dropout: float = 0.0,
        norm_first: bool = True,
        activation: str = "gelu",
        norm_eps: float = 1e-5,
    ):
        super().__init__()
        check_positive("DecoderBlock", embed_dim=embed_dim)
        check_real("DecoderBlock", "[0, inf)", "LayerNorm's is norm_eps=1e-5.", norm_eps=norm_eps)
        self.norm_first = norm_first
        self.norm1 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.attn = MultiHeadAttention(embed_dim, num_heads, dropout)
        self.norm2 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.cross_attn = MultiHeadAttention(embed_dim, num_heads, dropout)
        self.norm3 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.mlp = FeedForward(embed_dim, mlp_dim, dropout, activation)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, context: Tensor, attn_mask: Mask = None, context_mask: Mask = None
    ) -> Tensor:
        if context is None:  # the attention would take x instead
            raise ValueError(
                "DecoderBlock: context must be a tensor (b, j, e), got context=None. "
                "Pass what the encoder returned; a block without context is an EncoderBlock."
            )
        if self.norm_first:
            x = x + self.dropout(self.attn(self.norm1(x), attn_mask=attn_mask))
            x = x + self.dropout(self.cross_attn(self.norm2(x), context, context_mask))
            return x + self.dropout(self.mlp(self.norm3(x)))
        x = self.norm1(x + self.dropout(self.attn(x, attn_mask=attn_mask)))
        x = self.norm2(x + self.dropout(self.cross_attn(x, context, context_mask)))
        return self.norm3(x + self.dropout(self.mlp(x)))


class Decoder(nn.Module):
    """Run decoder blocks one after another, all with the same context, and norm as `Encoder` does.

    >>> Decoder(2, 8, 2, 32)(torch.zeros(3, 5, 8), torch.zeros(3, 7, 8)).shape
    torch.Size([3, 5, 8])

    Args:
        num_layers: number of blocks.
        embed_dim, num_heads, mlp_dim, dropout, activation, norm_eps: see `EncoderBlock`.
        norm_first: see `DecoderBlock`; True adds one final LayerNorm.

    Shape: as `DecoderBlock`; all blocks get the same context and the same masks.
    Raises: as `DecoderBlock`.
    Source: Vaswani et al. 2017, section 3.1; chapter 10.
    """

    def __init__(
        self,
        num_layers: int,
        embed_dim: int,
        num_heads: int,
        mlp_dim: int,
        dropout: float = 0.0,
        norm_first: bool = True,
        activation: str = "gelu",
        norm_eps: float = 1e-5,
    ):
        super().__init__()
        check_positive("Decoder", num_layers=num_layers)
        self.layers = nn.ModuleList(
            DecoderBlock(embed_dim, num_heads, mlp_dim, dropout, norm_first, activation, norm_eps)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(embed_dim, eps=norm_eps) if norm_first else nn.Identity()

    def forward(
        self, x: Tensor, context: Tensor, attn_mask: Mask = None, context_mask: Mask = None
    ) -> Tensor:
        for layer in self.layers:
            x = layer(x, context, attn_mask, context_mask)
        return self.norm(x)


class Transformer(nn.Module):
    """Encode a source sequence, and predict each next token of a target sequence from both.

    It is causal by itself; a mask of the target comes on top.

    Args:
        source_size, target_size: number of different tokens; v is that of the target.
        embed_dim, num_heads, mlp_dim, norm_first, activation: see `DecoderBlock`.
        num_encoder_layers, num_decoder_layers: number of blocks.
        max_length: largest number of tokens in a source or in a target.
        dropout: see `DecoderBlock`; also the fraction of the embeddings that training sets to 0.
        positions, scale: see `TokenEmbedding`.

    Shape:
        source       (b, j)        ids
        target       (b, i)        ids
        source_mask  bool, True = may be attended to, broadcastable to (b, h, 1, j)
        target_mask  bool, True = may be attended to, broadcastable to (b, h, i, i)
        memory       (b, j, e)     what `encode` returns
        result       (b, i, v)     logits; row t is for token t + 1

    Raises: as `TokenEmbedding` and `Decoder`; a source mask that differs between queries.
    Source: Vaswani et al. 2017; chapter 10.
    """

    def __init__(
        self,
        *,
        source_size: int,
        target_size: int,
        embed_dim: int,
        num_heads: int,
        mlp_dim: int,
        num_encoder_layers: int,
        num_decoder_layers: int,
        max_length: int,
        dropout: float = 0.0,
        norm_first: bool = True,
        activation: str = "gelu",
        positions: str | None = "sinusoidal",
        scale: bool = True,
    ):
        super().__init__()
        check_positive("Transformer", source_size=source_size, target_size=target_size)
        self.num_heads = num_heads
        options = (dropout, norm_first, activation)
        where = {"positions": positions, "scale": scale}
        self.source_embedding = TokenEmbedding(source_size, embed_dim, max_length, **where)
        self.encoder = Encoder(num_encoder_layers, embed_dim, num_heads, mlp_dim, *options)
        self.target_embedding = TokenEmbedding(target_size, embed_dim, max_length, **where)
        self.decoder = Decoder(num_decoder_layers, embed_dim, num_heads, mlp_dim, *options)
        self.head = nn.Linear(embed_dim, target_size)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, source: Tensor, target: Tensor, source_mask: Mask = None, target_mask: Mask = None
    ) -> Tensor:
        return self.decode(target, self.encode(source, source_mask), source_mask, target_mask)

    def encode(self, source: Tensor, source_mask: Mask = None) -> Tensor:
        x = self.dropout(self.source_embedding(source))  # (b, j, e)
        self._check_source_mask(source_mask, x)
        return self.encoder(x, source_mask)

    def decode(
        self, target: Tensor, memory: Tensor, source_mask: Mask = None, target_mask: Mask = None
    ) -> Tensor:
        x = self.dropout(self.target_embedding(target))  # (b, i, e)
        self._check_source_mask(source_mask, memory)
        b, i, _ = x.shape
        mask = causal_mask(i, target.device)
        if target_mask is not None:
            check_mask("Transformer", target_mask, (b, self.num_heads, i, i), "target_mask")
            mask = mask & target_mask
        return self.head(self.decoder(x, memory, mask, source_mask))

    def _check_source_mask(self, source_mask: Mask, memory: Tensor) -> None:
        # Two attentions with different queries use it, so it may only depend on keys.
        b, j, _ = memory.shape
        check_mask("Transformer", source_mask, (b, self.num_heads, 1, j), "source_mask")
