"""Decoders that keep the keys and values of earlier tokens: three hosts, healthy and buggy."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM
from transformers.cache_utils import Cache, DynamicCache, DynamicSlidingWindowLayer

CASES: list[tuple[type[nn.Module], tuple[str, ...], dict[str, Any]]] = []


def patient(*ids: str, **options: Any) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Add a decoder, built with (e, h): ids must be found; options are of `diagnose_cache`."""
    return lambda make: CASES.append((make, ids, options)) or make


def allowed(rows: Tensor, columns: Tensor, window: int | None) -> Tensor:
    """Return the mask, True = may attend, for queries and keys at these positions."""
    distance = rows[:, None] - columns
    return (distance >= 0) & (distance < (window or 1000))


# ------------- learned positions, scores by hand, a list of pairs that each call returns


class Words(nn.Module):
    """Two layers as in GPT-2."""

    sliding_window: int | None = None

    def __init__(self, e: int, h: int) -> None:
        super().__init__()
        self.h = h
        self.wte, self.wpe = nn.Embedding(21, e), nn.Embedding(40, e)
        self.layers = nn.ModuleList(nn.Module() for _ in range(2))
        for layer in self.layers:
            layer.norm, layer.qkv = nn.LayerNorm(e), nn.Linear(e, 3 * e)
            layer.proj = nn.Linear(e, e)
            layer.mlp = nn.Sequential(nn.LayerNorm(e), nn.Linear(e, 9), nn.GELU(), nn.Linear(9, e))
        self.head = nn.Linear(e, 21, bias=False)

    def positions(self, start: int, n: int) -> Tensor:
        return torch.arange(start, start + n)

    def mask(self, rows: Tensor, columns: Tensor) -> Tensor:
        return allowed(rows, columns, self.sliding_window)

    def read(self, k: Tensor, v: Tensor, n: int) -> tuple[Tensor, Tensor]:
        return k, v

    def kept(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        return k, v

    def weights(self, scores: Tensor) -> Tensor:
        return scores.softmax(-1)

    def forward(self, ids: Tensor, past: tuple | None = None, use_cache: bool = False) -> tuple:
        n, (pairs, start), present = ids.shape[1], past or ([None, None], 0), []
        x = self.wte(ids) + self.wpe(self.positions(start, n))
        for layer, held in zip(self.layers, pairs, strict=True):
            thirds = layer.qkv(layer.norm(x)).chunk(3, dim=2)
            q, k, v = (t.unflatten(2, (self.h, -1)).transpose(1, 2) for t in thirds)
            if held is not None:
                k, v = torch.cat([held[0], k], dim=2), torch.cat([held[1], v], dim=2)
            present.append(self.kept(k, v))
            k, v = self.read(k, v, n) if use_cache else (k, v)
            rows, j = torch.arange(start, start + n), k.shape[2]
            mask = self.mask(rows, torch.arange(start + n - j, start + n))
            scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf)
            y = torch.einsum("bhij,bhjd->bihd", self.weights(scores), v)
            x = x + layer.proj(y.flatten(2))
            x = x + layer.mlp(x)
        return self.head(x), (present, start + n)


def by_row(past: tuple, order: Tensor) -> tuple:
    return [(k[order], v[order]) for k, v in past[0]], past[1]


patient(reorder=by_row)(Words)


@patient()
class WordsLastOnly(Words):
    """The head runs on the last token only, to save work."""

    def forward(self, ids, past=None, use_cache=False):
        logits, past = super().forward(ids, past, use_cache)
        return logits[:, [-1], :], past


@patient()
class WordsWindow(Words):
    """Each token attends to 9, and the cache is cut to the window after it was read."""

    sliding_window = 9

    def kept(self, k, v):
        return k[:, :, -self.sliding_window :], v[:, :, -self.sliding_window :]


@patient("cache-window-cut")
class WordsCut(WordsWindow):
    """The first queries of a call find their keys already cut off: rows without numbers."""

    def read(self, k, v, n):
        return self.kept(k, v)


@patient("cache-window-cut")
class WordsCutFirst(WordsWindow):
    """The prompt is cut before its queries have read it, later calls are not."""

    def read(self, k, v, n):
        return self.kept(k, v) if k.shape[2] == n else (k, v)


@patient("cache-window-cut")
class WordsFewer(WordsWindow):
    """Each call reads one key fewer than the window holds."""

    def read(self, k, v, n):
        return k[:, :, 1 - self.sliding_window :], v[:, :, 1 - self.sliding_window :]


@patient("cache-window-cut")
class WordsSeven(WordsFewer):
    """The shortest sequence is as long as the window."""

    sliding_window = 7


@patient("cache-window-cut")
class WordsFewerLater(WordsFewer):
    """The prompt is read whole."""

    def read(self, k, v, n):
        return super().read(k, v, n) if k.shape[2] > n else (k, v)


@patient("cache-window-cut")
class WordsFewerKept(WordsWindow):
    """With the keys that are kept, a new token has one fewer than the window."""

    def kept(self, k, v):
        return k[:, :, 2 - self.sliding_window :], v[:, :, 2 - self.sliding_window :]


class Sink(Words):
    """One more score of 0, whose weight no value gets, as in gpt-oss."""

    def weights(self, scores):
        return torch.cat([scores, torch.zeros_like(scores[..., :1])], dim=-1).softmax(-1)[..., :-1]


@patient()
class SinkWindow(Sink, WordsWindow):
    """A window with a sink."""


@patient("cache-window-cut")
class SinkCut(Sink, WordsCut):
    """A row without keys has its sink."""


@patient("cache-window-forgotten")
class WordsForgotten(Words):
    """A single new token gets no mask."""

    sliding_window = 9

    def mask(self, rows, columns):
        return allowed(rows, columns, None if len(rows) == 1 else self.sliding_window)


@patient("cache-window-forgotten")
class SinkForgotten(Sink, WordsForgotten):
    """The same with a sink."""


@patient("cache-position")
class WordsRestarted(Words):
    def positions(self, start, n):
        return torch.arange(n)


@patient("cache-mask-corner")
class WordsCorner(Words):
    def mask(self, rows, columns):
        return torch.ones(len(rows), len(columns)).bool().tril()


@patient("cache-position", "cache-mask-corner")
class WordsTwo(WordsCorner, WordsRestarted):
    """Both at once."""


class Store:
    """A cache that is filled in place."""

    past: tuple | None = None

    def reorder_cache(self, order: Tensor) -> None:
        self.past = by_row(self.past, order)


@patient(cache=Store)
class WordsStore(Words):
    def forward(self, ids, *, kv_cache=None):
        logits, past = super().forward(ids, kv_cache and kv_cache.past, kv_cache is not None)
        if kv_cache is not None:
            kv_cache.past = past
        return logits


class WordsStored(WordsStore):
    """The cache is made once, with the model, and never emptied: it has no name."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.store = Store()


# ------------------------------- rotary, groups and the fused kernel of transformers


class Rotated(nn.Module):
    """Llama, with its cache."""

    kinds: tuple[Any, Any] = LlamaConfig, LlamaForCausalLM
    window: int | None = None

    def __init__(self, e: int, h: int) -> None:
        super().__init__()
        sizes = {"hidden_size": e, "intermediate_size": 2 * e, "num_attention_heads": h}
        sizes |= {"num_key_value_heads": max(1, h // 2), "num_hidden_layers": 2}
        config = self.kinds[0](vocab_size=50, **sizes, sliding_window=self.window)
        self.model = self.kinds[1](config)

    def positions(self, start: int, n: int) -> Tensor | None:
        return None

    def forward(self, ids: Tensor, past: Any = None) -> Any:
        start = past.get_seq_length() if past is not None else 0
        places = self.positions(start, ids.shape[1])
        return self.model(ids, past_key_values=past, position_ids=places)


patient()(Rotated)


@patient("cache-position")
class RotatedRestarted(Rotated):
    def positions(self, start, n):
        return torch.arange(n)[None]


# ------------------------------------------ a window of 9 in Mistral of transformers


class Sliding(Rotated):
    """Mistral, whose own cache keeps the 8 keys that the next token may attend to."""

    kinds = MistralConfig, MistralForCausalLM
    window = 9


patient()(Sliding)


class CutLayer(DynamicSlidingWindowLayer):
    """Returns the last 9 keys, however many tokens are new, unless all are."""

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        end = self.cumulative_length + query_length
        kept = min(end, max(9, query_length))
        return kept, end - kept

    def update(self, k: Tensor, v: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        kept = self.get_mask_sizes(k.shape[2])[0]
        return tuple(t[:, :, -kept:] for t in super().update(k, v, *args, **kwargs))


@patient("cache-window-cut", cache=lambda: Cache(layers=[CutLayer(9), CutLayer(9)]))
class SlidingCut(Sliding):
    """The cache cuts to the window before several new tokens have read it."""


@patient("cache-window-forgotten", cache=DynamicCache)
class SlidingForgotten(Sliding):
    """New tokens get a causal mask without the window."""

    prompt = False

    def forward(self, ids, past=None):
        start, n = past.get_seq_length() if past is not None else 0, ids.shape[1]
        mask = torch.ones(len(ids), 1, n, start + n).bool().tril(start)
        forgets = past is not None and (start > 0 or self.prompt)
        return self.model(ids, past_key_values=past, attention_mask=mask if forgets else None)


@patient("cache-window-forgotten", cache=DynamicCache)
class SlidingUncut(SlidingForgotten):
    """So do those of the prompt, if there is a cache."""

    prompt = True
