"""Ids become tokens that know where they stand (chapter 09)."""

from typing import Literal

import torch
from torch import Tensor, nn

from utils.shapes import check_positive, check_shape

ID_TYPES = (torch.int64, torch.int32)


def sinusoidal_positions(n: int, embed_dim: int, base: float = 10_000.0) -> Tensor:
    """Return a code for each position: sines and cosines of ever longer waves.

    Number 2k of row p is sin(p / base^(2k / e)), number 2k + 1 is the cosine of the same angle.
    An odd width ends in a sine without its cosine.

    Args:
        n: number of positions.
        embed_dim: width of a token, e.
        base: the longest wave is nearly 2π times as long.

    Shape:
        result  (n, e)

    Raises:
        ValueError: sizes that are no integers of at least 1, or a base that is not positive.

    Source: Vaswani et al. 2017, section 3.5; chapter 09.
    """
    check_positive("sinusoidal_positions", n=n, embed_dim=embed_dim)
    if not base > 0:
        raise ValueError(
            f"sinusoidal_positions: base must be positive, got base={base!r}. "
            "The paper takes base=10000."
        )
    # In double precision: at position 10,000 single precision is off in the fourth decimal.
    even = torch.arange(0, embed_dim, 2, dtype=torch.float64)  # 2k
    angles = torch.arange(n, dtype=torch.float64)[:, None] / base ** (even / embed_dim)
    both = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # (n, e or e + 1)
    return both[:, :embed_dim].to(torch.get_default_dtype())


class TokenEmbedding(nn.Module):
    """Turn ids into tokens: look up the vector of each id, scale it, add the code of its position.

    Args:
        vocab_size: number of ids.
        embed_dim: width of a token, e.
        max_length: longest sequence, in tokens; without positions nothing is limited.
        positions: "learned" (a table of parameters), "sinusoidal" (fixed), or None.
        padding_id: the id whose vector is 0 and stays so; None if there is no padding.
        scale: multiply the vectors by √e. They start with a spread (standard deviation) of 1/√e, so
            that scores against them, when the last layer shares the table, start with a spread of
            1; as tokens they need √e to be as large as positions are.

    Shape:
        ids            (b, n), integers
        places         (n,) or (b, n), integers; None: from `start` on
        result         (b, n, e)
        tokens.weight  (vocab_size, e)
        positions      (max_length, e), or None

    Raises:
        ValueError: sizes below 1, other positions, ids that are no integers or outside the
            vocabulary, or a sequence longer than the positions.

    Source: Vaswani et al. 2017, sections 3.4 and 3.5; chapter 09.
    """

    def __init__(
        self,
        vocab_size: int,
        embed_dim: int,
        max_length: int,
        positions: Literal["learned", "sinusoidal"] | None = "learned",
        padding_id: int | None = None,
        scale: bool = True,
    ):
        super().__init__()
        check_positive(
            "TokenEmbedding", vocab_size=vocab_size, embed_dim=embed_dim, max_length=max_length
        )
        if positions not in ("learned", "sinusoidal", None):
            raise ValueError(
                'TokenEmbedding: positions must be "learned", "sinusoidal" or None, '
                f"got positions={positions!r}. Pick one of the three."
            )
        if padding_id is not None and not 0 <= padding_id < vocab_size:
            raise ValueError(
                f"TokenEmbedding: padding_id must be one of the {vocab_size} ids, "
                f"got padding_id={padding_id}. Pass 0 to {vocab_size - 1}, or None."
            )
        self.vocab_size, self.max_length = vocab_size, max_length
        self.factor = embed_dim**0.5 if scale else 1.0
        self.tokens = nn.Embedding(vocab_size, embed_dim, padding_idx=padding_id)
        nn.init.normal_(self.tokens.weight, std=embed_dim**-0.5)
        if padding_id is not None:
            self.tokens.weight.data[padding_id] = 0
        if positions == "learned":
            # as large as the vectors that they are added to
            spread = self.factor * embed_dim**-0.5
            self.positions = nn.Parameter(torch.randn(max_length, embed_dim) * spread)
        else:
            fixed = sinusoidal_positions(max_length, embed_dim) if positions else None
            self.register_buffer("positions", fixed, persistent=False)

    def forward(self, ids: Tensor, start: int = 0, places: Tensor | None = None) -> Tensor:
        self._check(ids, start)
        tokens = self.tokens(ids) * self.factor  # (b, n, e)
        if self.positions is None:
            return tokens
        if places is None:
            return tokens + self._rows(start, ids.shape[1])
        self._check_places(places, ids)
        return tokens + self.positions[places]

    def _rows(self, start: int, n: int) -> Tensor:
        """Return the codes of n positions from start on; refuse those that the table lacks."""
        if start + n > self.max_length:
            raise ValueError(
                f"TokenEmbedding: there are positions for {self.max_length} tokens, "
                f"got {start + n}. Cut the sequence, or build it with max_length={start + n}."
            )
        return self.positions[start : start + n]

    def _check_places(self, places: Tensor, ids: Tensor) -> None:
        """Refuse places that are none, or that the table does not have."""
        b, n = ids.shape
        if tuple(places.shape) not in [(n,), (b, n)] or places.dtype not in ID_TYPES:
            raise ValueError(
                f"TokenEmbedding: places must be integers of shape ({n},) or ({b}, {n}), "
                f"got places.shape={tuple(places.shape)} of {places.dtype}. Of tokens from the "
                f"beginning they are torch.arange({n})."
            )
        if places.numel() and not torch.compiler.is_compiling():
            low, high = places.min().item(), places.max().item()
            if low < 0 or high >= self.max_length:
                raise ValueError(
                    f"TokenEmbedding: places must lie between 0 and {self.max_length - 1}, "
                    f"got {low if low < 0 else high}. Cut the sequence, or build it with "
                    f"max_length={max(high + 1, self.max_length)}."
                )

    def _check(self, ids: Tensor, start: int) -> None:
        """Refuse ids that are no ids, and positions that the table does not have."""
        check_shape("TokenEmbedding", "ids", ids, "b n", "One sequence alone is ids[None].")
        if ids.dtype not in ID_TYPES:
            raise ValueError(
                f"TokenEmbedding: ids must be int64 or int32, got ids.dtype={ids.dtype}. "
                "Whole numbers of another type become ids with ids.long()."
            )
        # A compiled model cannot look at values.
        if ids.numel() and not torch.compiler.is_compiling():
            low, high = ids.min().item(), ids.max().item()
            if low < 0 or high >= self.vocab_size:
                raise ValueError(
                    f"TokenEmbedding: ids must lie between 0 and {self.vocab_size - 1}, "
                    f"got {low if low < 0 else high}. Encode with the vocabulary of this model, "
                    f"or build it with vocab_size={max(high + 1, self.vocab_size)}."
                )
        if isinstance(start, bool) or not isinstance(start, int) or start < 0:
            raise ValueError(
                "TokenEmbedding: start must be an integer of at least 0, "
                f"got start={start!r}. It is the position of the first id."
            )
