"""Decoder block, decoder and the whole Transformer: one text in, another out (chapter 10)."""

from torch import Tensor, nn

from utils.attention import MultiHeadAttention
from utils.encoder import Encoder, FeedForward
from utils.masking import causal_mask, check_mask
from utils.positions import TokenEmbedding
from utils.shapes import check_positive


class DecoderBlock(nn.Module):
    """Attention to itself, attention to another text, feed-forward, each added to the stream.

    The causal mask is the caller's: `attn_mask=causal_mask(i)`.

    Args:
        embed_dim: width of a token, e.
        num_heads: number of heads, h.
        mlp_dim: inner width of the feed-forward, m.
        dropout: share of values that training sets to 0: in the attention weights, inside the
            feed-forward, and of what each of the three adds.
        norm_first: True normalises what each part reads (pre-norm), but never the context; False
            normalises the sum (post-norm, the order of the 2017 paper).
        activation: see `FeedForward`.
        norm_eps: the number that keeps LayerNorm from dividing by 0.

    Shape:
        x             (b, i, e)    the stream: its tokens ask
        context       (b, j, e)    what the encoder returned: its tokens are asked
        attn_mask     bool, True = may attend, broadcastable to (b, h, i, i)
        context_mask  bool, True = may attend, broadcastable to (b, h, i, j)
        result        (b, i, e)

    Raises:
        ValueError: as `MultiHeadAttention` and `FeedForward`.

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
        self.norm_first = norm_first
        self.norm1 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.attn = MultiHeadAttention(embed_dim, num_heads, dropout)
        self.norm2 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.cross_attn = MultiHeadAttention(embed_dim, num_heads, dropout)
        self.norm3 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.mlp = FeedForward(embed_dim, mlp_dim, dropout, activation)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        context: Tensor,
        attn_mask: Tensor | None = None,
        context_mask: Tensor | None = None,
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

    Args:
        num_layers: number of blocks.
        embed_dim: width of a token, e.
        num_heads: number of heads, h.
        mlp_dim: inner width of the feed-forward, m.
        dropout: see `DecoderBlock`.
        norm_first: see `DecoderBlock`; True adds one final LayerNorm.
        activation: see `FeedForward`.
        norm_eps: the number that keeps LayerNorm from dividing by 0.

    Shape:
        x             (b, i, e)
        context       (b, j, e)    the same in all blocks
        attn_mask     bool, True = may attend, broadcastable to (b, h, i, i); the same in all blocks
        context_mask  bool, True = may attend, broadcastable to (b, h, i, j); the same in all blocks
        result        (b, i, e)

    Raises:
        ValueError: as `DecoderBlock`.

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
        self,
        x: Tensor,
        context: Tensor,
        attn_mask: Tensor | None = None,
        context_mask: Tensor | None = None,
    ) -> Tensor:
        for layer in self.layers:
            x = layer(x, context, attn_mask, context_mask)
        return self.norm(x)


class Transformer(nn.Module):
    """Encode one text, then give for each token of another a score for every possible next token.

    No target token sees a later one: the causal mask is made here, a mask of the target is laid
    on top of it.

    Args:
        source_size: number of different source tokens.
        target_size: number of different target tokens, v.
        embed_dim: width of a token, e.
        num_heads: number of heads, h.
        mlp_dim: inner width of the feed-forward, m.
        num_encoder_layers: number of encoder blocks.
        num_decoder_layers: number of decoder blocks.
        max_length: largest number of tokens in a source or in a target.
        dropout: see `DecoderBlock`; also the share of the embeddings that training sets to 0.
        norm_first: see `DecoderBlock`; False is the order of the 2017 paper.
        activation: see `FeedForward`.
        positions: "sinusoidal", "learned" or None, see `TokenEmbedding`.
        scale: whether embeddings are multiplied by the square root of embed_dim.

    Shape:
        source       (b, j)        ids
        target       (b, i)        ids
        source_mask  bool, True = may be attended to, broadcastable to (b, h, 1, j)
        target_mask  bool, True = may be attended to, broadcastable to (b, h, i, i)
        memory       (b, j, e)     what `encode` returns
        result       (b, i, v)     scores; row t speaks about token t + 1

    Raises:
        ValueError: as `TokenEmbedding`, `Encoder` and `Decoder`; a source mask that differs
            between queries.

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
        self,
        source: Tensor,
        target: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        return self.decode(target, self.encode(source, source_mask), source_mask, target_mask)

    def encode(self, source: Tensor, source_mask: Tensor | None = None) -> Tensor:
        x = self.dropout(self.source_embedding(source))  # (b, j, e)
        self._check_source_mask(source_mask, x)
        return self.encoder(x, source_mask)

    def decode(
        self,
        target: Tensor,
        memory: Tensor,
        source_mask: Tensor | None = None,
        target_mask: Tensor | None = None,
    ) -> Tensor:
        x = self.dropout(self.target_embedding(target))  # (b, i, e)
        self._check_source_mask(source_mask, memory)
        b, i, _ = x.shape
        mask = causal_mask(i, target.device)
        if target_mask is not None:
            check_mask("Transformer", target_mask, (b, self.num_heads, i, i), "target_mask")
            mask = mask & target_mask
        return self.head(self.decoder(x, memory, mask, source_mask))

    def _check_source_mask(self, source_mask: Tensor | None, memory: Tensor) -> None:
        # Two attentions use it, whose queries are not the same tokens: it speaks of keys only.
        b, j, _ = memory.shape
        check_mask("Transformer", source_mask, (b, self.num_heads, 1, j), "source_mask")
