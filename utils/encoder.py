"""Feed-forward, block and stack: what makes an encoder of attention (chapters 06 and 07)."""

from functools import partial

from torch import Tensor, nn

from utils.attention import MultiHeadAttention
from utils.cache import KeyValueCache
from utils.masking import Mask
from utils.validation import check_positive, check_real, check_shape

# GPT-2 has the approximate form of GELU; the two differ by less than 0.0005 (chapter 15)
ACTIVATIONS = {"gelu": nn.GELU, "gelu_tanh": partial(nn.GELU, "tanh"), "relu": nn.ReLU}


class FeedForward(nn.Module):
    """Position-wise feed-forward: expand, activate, project back.

    >>> FeedForward(8, 32)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])

    Args:
        embed_dim: width of a token, e.
        mlp_dim: inner width, m.
        dropout: fraction of the inner values that training sets to 0.
        activation: "gelu", "gelu_tanh" (its approximation, as in GPT-2) or "relu".

    Shape:
        x       (b, n, e)
        inside  (b, n, m)
        result  (b, n, e)

    Raises: ValueError for bad sizes, an unknown activation, or an input of another width.
    Source: Vaswani et al. 2017, section 3.3; chapter 06.
    """

    def __init__(
        self, embed_dim: int, mlp_dim: int, dropout: float = 0.0, activation: str = "gelu"
    ):
        super().__init__()
        check_positive("FeedForward", embed_dim=embed_dim, mlp_dim=mlp_dim)
        check_real("FeedForward", "[0, 1)", "Pass for example dropout=0.1.", dropout=dropout)
        if activation not in ACTIVATIONS:
            raise ValueError(
                f"FeedForward: activation must be one of {sorted(ACTIVATIONS)}, "
                f"got activation={activation!r}. Pass activation='gelu'."
            )
        self.embed_dim = embed_dim
        self.fc1 = nn.Linear(embed_dim, mlp_dim)
        self.act = ACTIVATIONS[activation]()
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(mlp_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        fix = f"Tokens have shape (b, n, {self.embed_dim})."
        check_shape("FeedForward", "x", x, "b n e", fix, e=self.embed_dim)
        return self.fc2(self.dropout(self.act(self.fc1(x))))


class EncoderBlock(nn.Module):
    """Attention, then feed-forward, each added to the residual stream that it read.

    >>> EncoderBlock(8, 2, 32)(torch.zeros(2, 5, 8)).shape
    torch.Size([2, 5, 8])

    Args:
        embed_dim: width of a token, e.
        num_heads: number of heads, h.
        mlp_dim: inner width of the feed-forward, m.
        dropout: fraction of values that training sets to 0: of the attention weights, inside the
            feed-forward, and of what each of the two adds.
        norm_first: True normalizes the input of each part (pre-norm); False normalizes the sum
            (post-norm, as in the original Transformer).
        activation: see `FeedForward`.
        norm_eps: the eps of LayerNorm.

    Shape:
        x          (b, n, e)
        attn_mask  bool, True = may attend, broadcastable to (b, h, n, n)
        cache      None, or a `KeyValueCache` with earlier tokens (chapter 12)
        result     (b, n, e)

    Raises: as `MultiHeadAttention` and `FeedForward`.
    Source: Vaswani et al. 2017, section 3.1; Xiong et al. 2020 for pre-norm; chapter 07.
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
        check_positive("EncoderBlock", embed_dim=embed_dim)
        check_real("EncoderBlock", "[0, inf)", "LayerNorm's is norm_eps=1e-5.", norm_eps=norm_eps)
        self.norm_first = norm_first
        self.norm1 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.attn = MultiHeadAttention(embed_dim, num_heads, dropout)
        self.norm2 = nn.LayerNorm(embed_dim, eps=norm_eps)
        self.mlp = FeedForward(embed_dim, mlp_dim, dropout, activation)
        self.dropout = nn.Dropout(dropout)

    def forward(
        self, x: Tensor, attn_mask: Mask = None, cache: KeyValueCache | None = None
    ) -> Tensor:
        # An attention that you put in its place need not know what a cache is.
        earlier = {} if cache is None else {"cache": cache}
        if self.norm_first:
            x = x + self.dropout(self.attn(self.norm1(x), attn_mask=attn_mask, **earlier))
            return x + self.dropout(self.mlp(self.norm2(x)))
        x = self.norm1(x + self.dropout(self.attn(x, attn_mask=attn_mask, **earlier)))
        return self.norm2(x + self.dropout(self.mlp(x)))


class Encoder(nn.Module):
    """Run blocks one after another and, with pre-norm, normalize the result.

    Args:
        num_layers: number of blocks.
        embed_dim, num_heads, mlp_dim, dropout, activation, norm_eps: see `EncoderBlock`.
        norm_first: see `EncoderBlock`; True adds one final LayerNorm.

    Shape: as `EncoderBlock`; all blocks get the same mask and the same cache.
    Raises: as `EncoderBlock`.
    Source: Vaswani et al. 2017, section 3.1; chapter 07.
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
        check_positive("Encoder", num_layers=num_layers)
        self.layers = nn.ModuleList(
            EncoderBlock(embed_dim, num_heads, mlp_dim, dropout, norm_first, activation, norm_eps)
            for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(embed_dim, eps=norm_eps) if norm_first else nn.Identity()

    def forward(
        self, x: Tensor, attn_mask: Mask = None, cache: KeyValueCache | None = None
    ) -> Tensor:
        earlier = () if cache is None else (cache,)
        for layer in self.layers:
            x = layer(x, attn_mask, *earlier)
        return self.norm(x)
