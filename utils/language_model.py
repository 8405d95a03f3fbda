"""One stack of blocks, two language models: causal GPT, bidirectional BERT (chapter 12)."""

import torch
from torch import Tensor, nn

from utils.cache import KeyValueCache
from utils.embedding import TokenEmbedding
from utils.encoder import Encoder
from utils.masking import Mask, causal_mask
from utils.validation import check_cache, check_ids, check_mask, check_positive, check_shape


class LanguageModel(nn.Module):
    """Predict tokens: at every position of a sequence, logits over the vocabulary.

    Args:
        vocab_size: number of ids.
        embed_dim, num_heads, mlp_dim, dropout, activation, norm_eps: see `EncoderBlock`.
        num_layers: number of blocks.
        max_length: longest sequence, in tokens.
        causal: True lets every token attend to itself and to earlier ones, as GPT does: logits are
            for the token after a position. False lets it attend to all, as BERT does: logits are
            for the token at the position itself.
        tie_weights: use the embedding matrix as the weight of the last layer, too.

    Shape:
        ids        (b, n), integers
        attn_mask  bool, True = may attend, broadcastable to (b, h, n, n); causal comes on top
        cache      None, or a `KeyValueCache` with the c tokens before these: keys are c + n then
        positions  (n,) or (b, n), of each token in its sequence; None: from c on. A sequence that
                   is padded on the left needs them: its first real token is at 0
        result     (b, n, vocab_size)

    Raises: as `TokenEmbedding` and `Encoder`, or a cache for a bidirectional model.
    Source: Radford et al. 2018 (GPT), Devlin et al. 2019 (BERT), Press and Wolf 2017; chapter 12.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        embed_dim: int,
        num_heads: int,
        mlp_dim: int,
        num_layers: int,
        max_length: int,
        causal: bool = True,
        dropout: float = 0.0,
        tie_weights: bool = True,
        activation: str = "gelu",
        norm_eps: float = 1e-5,
    ):
        super().__init__()
        check_positive("LanguageModel", vocab_size=vocab_size, max_length=max_length)
        self.num_heads, self.max_length, self.causal = num_heads, max_length, causal
        # not scaled: so the embeddings start with a std of 1 / sqrt(e), and the logits with 1
        self.embedding = TokenEmbedding(vocab_size, embed_dim, max_length, scale=False)
        sizes = (num_layers, embed_dim, num_heads, mlp_dim, dropout)
        self.encoder = Encoder(*sizes, activation=activation, norm_eps=norm_eps)
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
        start = 0 if cache is None else cache.length  # how many tokens came before these
        tokens = self.embedding(ids, start, positions)  # (b, n, e)
        end = start + ids.shape[1]
        check_mask("LanguageModel", attn_mask, (ids.shape[0], self.num_heads, ids.shape[1], end))
        if self.causal:
            if ids.shape[1] > 1:  # one new token alone may see all that came before it
                causal = causal_mask(end, ids.device, start)  # (n, end): the rows of these tokens
                attn_mask = causal if attn_mask is None else attn_mask & causal
        elif cache is not None:
            raise ValueError(
                "LanguageModel: a cache needs causal=True, got causal=False. "
                "Where tokens see what comes after them, earlier keys change with every new token."
            )
        hidden = self.encoder(tokens, attn_mask, cache)
        check_cache("LanguageModel", cache, end)
        return self.head(hidden)


class TextEncoder(nn.Module):
    """Encode a sequence bidirectionally into one hidden state for each token, as BERT does.

    Embeddings of token, position and type are added and normalized; the blocks are post-norm.

    Args:
        vocab_size: number of ids.
        embed_dim, num_heads, mlp_dim, dropout, activation, norm_eps: see `EncoderBlock`.
        num_layers: number of blocks.
        max_length: longest sequence, in tokens.
        num_types: number of segment types, such as question and answer.

    Shape:
        ids        (b, n), integers
        attn_mask  bool, True = may attend, broadcastable to (b, h, n, n)
        types      (b, n), integers below num_types; None: all 0
        result     (b, n, e)

    Raises: as `TokenEmbedding` and `Encoder`, or types of another shape or size.
    Source: Devlin et al. 2019, section 3; chapter 15.
    """

    def __init__(
        self,
        *,
        vocab_size: int,
        embed_dim: int,
        num_heads: int,
        mlp_dim: int,
        num_layers: int,
        max_length: int,
        num_types: int = 2,
        dropout: float = 0.0,
        activation: str = "gelu",
        norm_eps: float = 1e-12,
    ):
        super().__init__()
        check_positive("TextEncoder", num_types=num_types)
        self.num_types = num_types
        self.embedding = TokenEmbedding(vocab_size, embed_dim, max_length, scale=False)
        self.types = nn.Embedding(num_types, embed_dim)
        nn.init.normal_(self.types.weight, std=embed_dim**-0.5)  # as large as the tokens
        self.norm = nn.LayerNorm(embed_dim, eps=norm_eps)
        sizes = (num_layers, embed_dim, num_heads, mlp_dim, dropout)
        self.encoder = Encoder(*sizes, norm_first=False, activation=activation, norm_eps=norm_eps)

    def forward(self, ids: Tensor, attn_mask: Mask = None, types: Tensor | None = None) -> Tensor:
        tokens = self.embedding(ids)  # (b, n, e)
        types = torch.zeros_like(ids) if types is None else types
        b, n = ids.shape
        check_shape("TextEncoder", "types", types, "b n", "Give one type for each id.", b=b, n=n)
        check_ids("TextEncoder", "types", types, self.num_types, "Without types all are 0.")
        return self.encoder(self.norm(tokens + self.types(types)), attn_mask)
