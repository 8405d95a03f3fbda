"""Call a model with a cache, whatever its cache looks like."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.arguments import CACHES, PLACES, STARTS, place_value
from attention_clinic.engine.calls import takes
from attention_clinic.engine.patient import Patient, place, possible_widths

HELD = CACHES | {
    "past_kv", "past_kvs", "kv_caches", "caches", "past_keys_values", "past_states", "kvs", "kv",
    "presents", "present", "layer_pasts", "cache_params", "state",
}  # fmt: skip
IDS = 24  # so many different ones are enough


class Decoder:
    """A copy of a model that can be called on whole texts and with a cache.

    Args:
        patient: the copy.
        call: call(model, ids, cache) or call(model, ids, cache, start) -> scores, or scores and
            the cache for the next call; None reads the signature of `forward`.
        cache: makes an empty cache, or empties that of the model when it takes one argument.
        vocab_size: ids are below it; None finds it.
        single: whether it computes in single precision.
    """

    def __init__(
        self,
        patient: Patient,
        call: Callable[..., Any] | None,
        cache: Callable[..., Any] | None,
        vocab_size: int | None,
        single: bool = False,
    ) -> None:
        self.patient, self.call, self.make = patient, call, cache
        self.module = patient.module
        for part in () if single else self.module.modules():
            for name, value in vars(part).items():
                if isinstance(value, Tensor) and value.dtype == torch.float32:
                    vars(part)[name] = value.double()
                elif isinstance(value, list | tuple) and value and _floats(value):
                    vars(part)[name] = type(value)(t.double() for t in value)
        self.vocab = vocab_size or vocabulary(self.module)
        self.table: Tensor | None = None  # for modules that take tokens, not ids
        self.parameters = inspect.signature(self.module.forward).parameters
        self.name = next((n for n in self.parameters if n in HELD), None)
        self.counts = [n for n in self.parameters if n in STARTS | PLACES]
        self.needs_cache = False  # whether it does not run without

    def takes_ids(self) -> None:
        """Find out whether the model takes ids or tokens.

        Raises:
            ValueError: neither runs.
        """
        ids = torch.zeros(2, 3, dtype=torch.long)
        first: Exception | None = None
        for width in (None, *possible_widths(self.module, dict(self.module.named_parameters()))):
            if width is not None:
                table = self.patient.tokens(IDS, width, seed=3)
                self.table, self.vocab = table, IDS
            for needs in (False, True):
                self.needs_cache = needs
                try:
                    self.whole(ids)
                    return
                except Exception as error:
                    first = first or error
        self.table = None
        raise self.complain(first, tuple(ids.shape), "a whole text")

    def complain(self, error: Exception, shape: tuple[int, ...], what: str) -> ValueError:
        """Turn an exception inside the model into one line that names the model's own line."""
        text = str(error).strip().splitlines() or ["no message"]
        return ValueError(
            f"diagnose_cache: {self.patient.name} must run on {what}, ids of shape {shape}, got "
            f"{type(error).__name__}: {text[0].rstrip('.')}{place(error)}. Repair that line, or "
            "say how to call it: call=lambda model, ids, cache, start: model(ids, cache)."
        )

    def ids(self, *shape: int, seed: int = 0) -> Tensor:
        """Return random ids of this shape."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(min(self.vocab, IDS), shape, generator=generator)

    @property
    def callable(self) -> bool:
        """Whether something says how the model takes a cache."""
        return bool(self.call or self.name or self.counts or "use_cache" in self.parameters)

    @property
    def keeps_its_own(self) -> bool:
        """Whether the cache lies in the model, not in an argument."""
        return self.call is None and self.name is None

    def fresh(self) -> tuple[nn.Module, Any]:
        """Return the model and an empty cache, as nothing has ever run on them."""
        memo: dict[int, Any] = {id(p): p for p in self.module.parameters()}
        model = copy.deepcopy(self.module, memo)
        return model, self.empty(model)

    def empty(self, model: nn.Module) -> Any:
        """Return an empty cache, or empty that of the model."""
        if self.make is None:
            return None
        try:
            inspect.signature(self.make).bind()
        except TypeError:
            return self.make(model)
        except ValueError:
            pass
        return self.make()

    @torch.no_grad()
    def whole(self, ids: Tensor) -> Tensor:
        """Return the scores of a text (b, n) that is given at once, without a cache if possible."""
        keeps = self.needs_cache or self.name is None  # then it may write into itself
        model, cache = self.fresh() if keeps else (self.module, None)
        return self._run(model, ids, cache, 0, self.needs_cache)[0]

    @torch.no_grad()
    def step(self, model: nn.Module, ids: Tensor, cache: Any, start: int) -> tuple[Tensor, Any]:
        """Return the scores of some tokens more, and the cache for the next call."""
        return self._run(model, ids, cache, start, True)

    def _run(
        self, model: nn.Module, ids: Tensor, cache: Any, start: int, cached: bool
    ) -> tuple[Tensor, Any]:
        given = ids if self.table is None else self.table[ids]
        if self.call is not None:
            more = (start,) if takes(self.call) > 3 else ()
            made = self.call(model, given, cache if cached else None, *more)
        else:
            made = model(given, **self._named(given, cache, start, cached))
        scores, after = split(made, ids.shape)
        return scores.detach().cpu(), cache if after is None else after

    def _named(self, x: Tensor, cache: Any, start: int, cached: bool) -> dict[str, Any]:
        """Return the arguments beside the ids that forward takes in such a call."""
        named: dict[str, Any] = {}
        for number, (name, parameter) in enumerate(self.parameters.items()):
            needed = parameter.default is inspect.Parameter.empty
            if number == 0 or parameter.kind in (
                parameter.VAR_KEYWORD,
                parameter.VAR_POSITIONAL,
            ):
                continue
            if name == self.name:
                if needed or (cached and cache is not None):
                    named[name] = cache if cached else None
            elif name == "use_cache":
                named[name] = cached
            elif name in ("return_dict", "return_intermediates"):
                continue
            elif name in STARTS | PLACES and (
                needed or (cached and (self.keeps_its_own or name in STARTS))
            ):
                named[name] = place_value(name, x, start)
            elif needed:
                named[name] = None
        return named


def split(made: Any, shape: Iterable[int]) -> tuple[Tensor, Any]:
    """Return the scores of a result, and the cache in it, None when there is none.

    Args:
        made: what the model returned.
        shape: of the ids, (b, n).
    """
    if isinstance(made, Tensor):
        return made, None
    if hasattr(made, "keys"):
        named = dict(made.items())
    elif hasattr(made, "_fields"):
        named = made._asdict()
    elif hasattr(made, "__dict__") and not isinstance(made, tuple | list):
        named = vars(made)
    else:
        named = dict(enumerate(made))
    scores = next((v for v in named.values() if isinstance(v, Tensor) and v.ndim > 1), None)
    if scores is None:
        raise TypeError(f"it returned {type(made).__name__}, without scores (b, n, vocabulary)")
    after = next((v for k, v in named.items() if k in HELD and v is not None), None)
    if after is None and all(isinstance(key, int) for key in named):
        others = [v for v in named.values() if v is not scores and v is not None]
        others = [v for v in others if not (isinstance(v, Tensor) and v.ndim < 4)]
        after = others[-1] if others else None
    return scores, after


def _floats(values: Iterable[Any]) -> bool:
    return all(isinstance(v, Tensor) and v.dtype == torch.float32 for v in values)


def vocabulary(module: nn.Module) -> int:
    """Return a number below which every id is known."""
    for part in (module, *(getattr(module, n, None) for n in ("config", "cfg", "args", "params"))):
        value = getattr(part, "vocab_size", None)
        if isinstance(value, int) and value > 0:
            return value
    sizes = [
        part.num_embeddings
        for name, part in module.named_modules()
        if isinstance(part, nn.Embedding) and "pos" not in name.lower()
    ]
    return min(sizes) if sizes else 8


def lengths_of(cache: Any, module: nn.Module, most: int) -> list[int]:
    """Return how many slots a cache may have: sizes of its tensors above `most`."""
    found: dict[int, None] = {}
    for thing in (cache, *(vars(part) for part in module.modules())):
        held = (
            {k: v for k, v in thing.items() if k != "_parameters"}
            if (isinstance(thing, dict))
            else thing
        )
        for tensor in _within(held, 3):
            if tensor.ndim > 2 and tensor.is_floating_point():
                found.update((size, None) for size in tensor.shape if size > most)
    return list(found)[:6]


def _within(thing: Any, depth: int) -> Iterator[Tensor]:
    """Yield the tensors inside lists, tuples, dicts and objects."""
    if isinstance(thing, Tensor):
        yield thing
    elif depth and thing is not None and not isinstance(thing, str | bytes | int | float | type):
        if isinstance(thing, dict):
            values: Iterable[Any] = thing.values()
        elif isinstance(thing, list | tuple | set):
            values = thing
        else:
            is_model = isinstance(thing, nn.Module) or not hasattr(thing, "__dict__")
            values = () if is_model else vars(thing).values()
        for value in list(values):
            yield from _within(value, depth - 1)
