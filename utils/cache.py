"""Keep keys and values of earlier tokens, so that only new tokens are computed (chapter 12)."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from utils.validation import check_number, check_shape


class Cache(ABC):
    """Keep the keys and values of earlier tokens for each layer, as `KeyValueCache` does.

    Shape:
        length  the number c of tokens that it holds
        update  k, v (b, h, n, d) of new tokens -> (b, h, c + n, d) of all, the earlier ones first

    Source: chapter 12; a model takes any class that has these two.
    """

    length: int

    @abstractmethod
    def update(self, layer: nn.Module, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens to those of this layer; return all of them."""


class KeyValueCache(Cache):
    """Keep the keys and values of all tokens so far, so that only new tokens are computed.

    Each layer keeps its own pair. Pass the same cache to every call of a model:

    >>> cache = KeyValueCache()
    >>> for new in ids[:, :5], ids[:, 5:6]:  # the second time one token is computed, not six
    ...     logits = model(new, cache=cache)
    >>> cache.length
    6

    Shape:
        length  the number c of tokens that it holds
        update  k, v (b, h, n, d) of the new tokens -> (b, h, c + n, d) of all

    Raises: ValueError for keys of another batch, number of heads or width than those it holds.
    Source: chapter 12; `nbytes`, `reorder` and `crop` chapter 16.
    """

    def __init__(self) -> None:
        self._held: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    @property
    def length(self) -> int:
        """How many tokens the first layer has given so far."""
        return next((k.shape[2] for k, _ in self._held.values()), 0)

    @property
    def nbytes(self) -> int:
        """How many bytes the keys and values of all layers take."""
        return sum(
            part.numel() * part.element_size() for pair in self._held.values() for part in pair
        )

    def update(self, layer: nn.Module, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new keys and values to those of this layer, and return all of them."""
        if layer in self._held:
            earlier = self._held[layer]
            sizes = [(*held.shape[:2], held.shape[3]) for held in (earlier[0], k)]
            if sizes[0] != sizes[1]:
                raise ValueError(
                    "KeyValueCache: new keys must have the batch, heads and width of the earlier "
                    f"ones, got (b, h, d)={sizes[1]} after {sizes[0]}. "
                    "Begin every batch with a new KeyValueCache()."
                )
            k, v = (torch.cat(pair, dim=2) for pair in zip(earlier, (k, v), strict=True))
        self._held[layer] = k, v
        return k, v

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows (w,) of the batch, in this order: beams take their keys along.

        Raises: ValueError for rows that are not int64, or outside the batch.
        """
        check_shape("KeyValueCache", "rows", rows, "w", "Give one number for each row.")
        b = next((len(k) for k, _ in self._held.values()), 0)
        if rows.dtype != torch.int64 or not all(0 <= row < b for row in rows.tolist()):
            raise ValueError(
                f"KeyValueCache: rows must be int64 from 0 to {b - 1}, got {rows.tolist()} of "
                f"{rows.dtype}. They say which row of the batch each new row goes on from."
            )
        self._held = {layer: (k[rows], v[rows]) for layer, (k, v) in self._held.items()}

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens and forget the others.

        Raises: ValueError for a length below 0, or of more tokens than it holds.
        """
        fix = "What was never read cannot be kept."
        check_number("KeyValueCache", "length", length, 0, self.length, fix)
        held = self._held.items()
        self._held = {layer: (k[:, :, :length], v[:, :, :length]) for layer, (k, v) in held}
