"""One stack of blocks, two language models: GPT looks back, BERT looks both ways (chapter 12)."""

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from utils.attention import Cache
from utils.encoder import Encoder
from utils.images import resource
from utils.masking import causal_mask, check_mask
from utils.positions import TokenEmbedding
from utils.shapes import check_positive, check_shape

INK_LEVELS = 17  # ids 0 to 16 are levels of ink; 17 to 26 are the words for the digits 0 to 9
ANY_DIGIT = 27  # a word that does not say which

# what load_drawing_model() and resources/make_drawing_model.py build
DRAWING_MODEL = {
    "vocab_size": 28,
    "embed_dim": 64,
    "num_heads": 4,
    "mlp_dim": 256,
    "num_layers": 4,
    "max_length": 64,
}


class LanguageModel(nn.Module):
    """Give, at every place of a text, a score to every token of the vocabulary.

    Args:
        vocab_size: number of ids.
        embed_dim: width of a token, e.
        num_heads: number of heads, h.
        mlp_dim: inner width of the feed-forward, m.
        num_layers: number of blocks.
        max_length: longest text, in tokens.
        causal: True lets every token see itself and what stands before it, as GPT does: the scores
            at a place are for the token after it. False lets it see both sides, as BERT does: the
            scores at a place are for the token that belongs there.
        dropout: see `EncoderBlock`.
        tied: True uses one table for both ends: the vectors that ids become are the vectors that
            the scores compare with.
        activation: see `FeedForward`.
        norm_eps: the number that keeps LayerNorm from dividing by 0.

    Shape:
        ids        (b, n), integers
        attn_mask  bool, True = may attend, broadcastable to (b, h, n, n); causal comes on top
        cache      None, or a `KeyValueCache` with the c tokens before these: keys are c + n then
        positions  (n,) or (b, n), the place of each token in its text; None: from c on. A text
                   that is padded on the left needs them: its first real token stands at 0
        result     (b, n, vocab_size)

    Raises:
        ValueError: as `TokenEmbedding` and `Encoder`, a mask that does not fit, or a cache for a
            model that looks both ways.

    Source: Radford et al. 2018 (GPT), Devlin et al. 2019 (BERT), Press and Wolf 2017 (one table);
        chapter 12.
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
        tied: bool = True,
        activation: str = "gelu",
        norm_eps: float = 1e-5,
    ):
        super().__init__()
        check_positive("LanguageModel", vocab_size=vocab_size, max_length=max_length)
        self.num_heads, self.max_length, self.causal = num_heads, max_length, causal
        # not scaled: so both tables begin with the spread 1 / sqrt(e), and the head's scores with 1
        self.embedding = TokenEmbedding(vocab_size, embed_dim, max_length, scale=False)
        self.encoder = Encoder(
            num_layers,
            embed_dim,
            num_heads,
            mlp_dim,
            dropout,
            activation=activation,
            norm_eps=norm_eps,
        )
        self.head = nn.Linear(embed_dim, vocab_size, bias=False)
        if tied:
            self.head.weight = self.embedding.tokens.weight

    def forward(
        self,
        ids: Tensor,
        attn_mask: Tensor | None = None,
        cache: Cache | None = None,
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
        return self.head(self.encoder(tokens, attn_mask, cache))


class TextEncoder(nn.Module):
    """Read a text from both sides and return what became of each token, as BERT does.

    Token, position and kind of text are added and normalised; the blocks are those of the paper
    of 2017, which normalise the sum (post-norm).

    Args:
        vocab_size: number of ids.
        embed_dim: width of a token, e.
        num_heads: number of heads, h.
        mlp_dim: inner width of the feed-forward, m.
        num_layers: number of blocks.
        max_length: longest text, in tokens.
        num_types: how many kinds of text are told apart, such as question and answer.
        dropout: see `EncoderBlock`.
        activation: see `FeedForward`.
        norm_eps: the number that keeps LayerNorm from dividing by 0.

    Shape:
        ids        (b, n), integers
        attn_mask  bool, True = may attend, broadcastable to (b, h, n, n)
        types      (b, n), integers below num_types; None: all 0
        result     (b, n, e)

    Raises:
        ValueError: as `TokenEmbedding` and `Encoder`, or types of another shape or size.

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
        self.encoder = Encoder(
            num_layers,
            embed_dim,
            num_heads,
            mlp_dim,
            dropout,
            norm_first=False,
            activation=activation,
            norm_eps=norm_eps,
        )

    def forward(
        self, ids: Tensor, attn_mask: Tensor | None = None, types: Tensor | None = None
    ) -> Tensor:
        tokens = self.embedding(ids)  # (b, n, e)
        types = torch.zeros_like(ids) if types is None else types
        if types.shape != ids.shape or set(types.unique().tolist()) - set(range(self.num_types)):
            raise ValueError(
                f"TextEncoder: types must be one number from 0 to {self.num_types - 1} for each "
                f"id, got types.shape={tuple(types.shape)} for ids.shape={tuple(ids.shape)}, and "
                f"the numbers {types.unique().tolist()}. Without them all are 0."
            )
        return self.encoder(self.norm(tokens + self.types(types)), attn_mask)


def drawing_ids(images: Tensor, labels: Tensor | None = None) -> Tensor:
    """Write digits as texts: a word for the digit, then its 64 pixels row by row.

    Args:
        images: digits of 8 x 8 pixels, as `load_digits` gives them.
        labels: which digit each one is; None calls all of them "any digit".

    Shape:
        images  (b, 1, 8, 8), from 0 to 1
        labels  (b,), integers
        result  (b, 65), int64: `INK_LEVELS` + label or `ANY_DIGIT`, then levels of ink from 0 to 16

    Raises:
        ValueError: images of another shape, or not one label for each.

    Source: chapter 12.
    """
    check_shape(
        "drawing_ids", "images", images, "b c H W", "Take those of load_digits.", c=1, H=8, W=8
    )
    if labels is None:
        words = torch.full((len(images),), ANY_DIGIT)
    else:
        check_shape("drawing_ids", "labels", labels, "b", "One for each image.", b=len(images))
        words = INK_LEVELS + labels
    ink = (images * (INK_LEVELS - 1)).round().long().flatten(1)  # (b, 64)
    return torch.cat([words[:, None], ink], dim=1)


def load_drawing_model() -> LanguageModel:
    """Load the GPT that draws digits and ships with the course, in eval mode.

    It was trained on `drawing_ids` of the training digits; one in five was called "any digit".

    Shape:
        ids     (b, n), n up to 64
        result  (b, n, 28)

    Raises:
        ValueError: the file of weights is missing.

    Source: resources/make_drawing_model.py; chapter 12.
    """
    return load_shipped_model(DRAWING_MODEL, "drawing_model")


def load_shipped_model(sizes: dict[str, int], name: str) -> LanguageModel:
    """Load a language model with one table for both ends, which its file holds once, in eval mode.

    Args:
        sizes: what `LanguageModel` is built with.
        name: of the file in resources/, without its ending.

    Raises:
        ValueError: the file of weights is missing.

    Source: chapters 12 and 14.
    """
    model = LanguageModel(**sizes)
    weights = load_file(resource(f"{name}.safetensors"))
    model.load_state_dict({**weights, "head.weight": weights["embedding.tokens.weight"]})
    return model.eval()
