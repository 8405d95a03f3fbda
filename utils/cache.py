"""Keep keys and values of earlier tokens, so that only new tokens are computed (chapter 12)."""

import torch
from torch import Tensor, nn

from utils.validation import check_ids, check_number, check_shape


class KeyValueCache:
    """Keep the keys and values of all tokens so far, so that only new tokens are computed.

    Each layer keeps its own pair. Pass the same cache to every call of a model:

    >>> cache = KeyValueCache()
    >>> for new in ids[:, :5], ids[:, 5:6]:  # the second time one token is computed, not six
    ...     logits = model(new, cache=cache)
    >>> cache.length
    6

    Args:
        rolling: keep only the last `layer.window` tokens of a layer that has a window. Each update
            still returns all that the new tokens may attend to.

    Shape:
        length  the number c of tokens so far, also those that a rolling cache dropped
        update  k, v (b, h, n, d) of the new tokens -> (b, h, c + n, d) of all, earlier ones first;
                in a rolling cache c is at most the window

    Raises: ValueError for keys unlike those that it holds, or layers of another model.
    Source: chapter 12, where any class with these two can take its place; the rest chapter 16,
        rolling chapter 19.
    """

    def __init__(self, rolling: bool = False) -> None:
        self.rolling = rolling
        self._held: dict[nn.Module, tuple[Tensor, Tensor]] = {}
        self._counts: dict[nn.Module, int] = {}  # tokens so far, also those that were dropped

    def __copy__(self) -> "KeyValueCache":
        """Return an independent cache for the same layers; its tensors are never written to."""
        copied = KeyValueCache(self.rolling)
        copied._held, copied._counts = dict(self._held), dict(self._counts)
        return copied

    def __deepcopy__(self, memo: dict) -> "KeyValueCache":
        return self.__copy__()

    @property
    def length(self) -> int:
        """How many tokens the layers have given so far; during a pass, those that have run."""
        return max(self._counts.values(), default=0)

    @property
    def nbytes(self) -> int:
        """How many bytes the keys and values of all layers take."""
        return sum(part.nbytes for pair in self._held.values() for part in pair)

    def update(self, layer: nn.Module, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append the new keys and values to those of this layer, and return all of them."""
        earlier = self._held.get(layer, (k[:, :, :0], v[:, :, :0]))
        kinds = [(*part.shape[:2], part.shape[3], part.dtype) for part in (k, earlier[0])]
        if kinds[0] != kinds[1] or k.shape[:3] != v.shape[:3]:
            raise ValueError(
                "KeyValueCache: new keys must have one value each, and the batch, heads, width and "
                f"type of the earlier ones, got keys (b, h, d, type)={kinds[0]} after {kinds[1]}, "
                f"and v.shape={tuple(v.shape)}. Begin every batch with a new KeyValueCache()."
            )
        if layer not in self._held and self._held and k.shape[2] != self.length:
            raise ValueError(
                "KeyValueCache: a cache must serve the layers of one model, got a new layer with "
                f"{k.shape[2]} tokens after {self.length}. Begin with a new KeyValueCache()."
            )
        self._counts[layer] = self._counts.get(layer, 0) + k.shape[2]
        k, v = (torch.cat(pair, dim=2) for pair in zip(earlier, (k, v), strict=True))
        window = getattr(layer, "window", None) if self.rolling else None
        if window is None or k.shape[2] <= window:
            self._held[layer] = k, v
        else:  # cut what is kept, not what is returned: the first new token looks back further
            self._held[layer] = k[:, :, -window:].clone(), v[:, :, -window:].clone()
        return k, v

    def reorder(self, rows: Tensor) -> None:
        """Keep these rows (w,) of the batch, in this order: beams take their keys along.

        Raises: ValueError for rows that are not integers, or outside the batch.
        """
        check_shape("KeyValueCache", "rows", rows, "w", "Give one number for each row.")
        b = next((len(k) for k, _ in self._held.values()), 0)
        fix = "Give for each new row the row of the batch that it continues."
        check_ids("KeyValueCache", "rows", rows, b, fix)
        self._held = {layer: (k[rows], v[rows]) for layer, (k, v) in self._held.items()}

    def crop(self, length: int) -> None:
        """Keep the first `length` tokens and forget the others.

        Raises: ValueError for a length below 0, or of more tokens than it holds, or if a rolling
            cache has dropped tokens that would be needed again.
        """
        fix = "Tokens that were never read cannot be kept."
        check_number("KeyValueCache", "length", length, 0, self.length, fix)
        if length in (0, self.length):
            if not length:  # an empty cache takes any batch
                self._held, self._counts = {}, {}
            return
        if any(k.shape[2] < self._counts[layer] for layer, (k, _) in self._held.items()):
            raise ValueError(
                "KeyValueCache: length must be 0 or that of now once a rolling cache has dropped "
                f"tokens, got length={length} of {self.length}. Use KeyValueCache() to go back."
            )
        self._held = {
            layer: (k[:, :, :length].clone(), v[:, :, :length].clone())
            for layer, (k, v) in self._held.items()
        }
        self._counts = {layer: k.shape[2] for layer, (k, _) in self._held.items()}
