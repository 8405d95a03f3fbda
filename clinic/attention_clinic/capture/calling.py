"""Call a module on tokens: one `Way` says which argument of forward gets what.

An argument is recognized by its name, as a person reads a signature. Arguments that a name does
not settle are tried in turn.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.capture.tape import tensors_in

QUERIES = {"q", "query", "queries", "x", "x1", "xq", "x_q", "tokens", "stream", "latents"}
KEYS = {"k", "v", "kv", "ctx", "mem", "cond", "x_kv", "xkv", "x_k", "x_v", "xk", "xv", "xa"}
QUERY_STARTS = ("input", "hidden_state", "tgt", "trg", "target", "dec", "que")
KEY_STARTS = ("key", "val", "context", "memory", "enc", "src", "source", "cross_", "e_out")
ADDED = {"pos_emb", "position_embedding", "position_embeddings", "query_pos", "pos", "query_embed"}
POSITIONS = {"position_ids", "positions", "pos", "pos_ids", "input_pos", "cache_position"}
STARTS = {"start_pos", "start", "offset", "past_length"}
COSINES = {"cos", "freqs_cos", "cos_cached", "rope_cos"}
SINES = {"sin", "freqs_sin", "sin_cached", "rope_sin"}
BOTH = {"position_embeddings", "cos_sin", "rope", "rotary", "rope_cache", "rotary_emb", "pos_emb"}
COMPLEX = {"freqs_cis", "freqs_complex", "pos_cis"}
TABLES = COSINES | SINES | BOTH | COMPLEX
CACHES = {"cache", "past_key_values", "past_key_value", "kv_cache", "layer_past", "past"}
MASKS = {"msk", "allow", "allowed", "visible", "valid", "pad", "padding", "attn_bias", "keep"}
KNOWN = POSITIONS | STARTS | TABLES | CACHES | MASKS | ADDED
OTHERS = ("mask", "cache", "bias", "rope", "freq", "cos", "sin", "rot", "head", "len", "layer")
CONTEXT_WORDS = ("context", "mem", "enc", "src", "source", "cross")
COUNTS = {"num_patches", "seq_len", "max_len", "block_size", "context_length", "window_size"}
TORCH_STACKS = (
    *(nn.TransformerEncoderLayer, nn.TransformerEncoder),
    *(nn.TransformerDecoderLayer, nn.TransformerDecoder),
)
MOST = 256  # tokens that are tried
Signature = dict[str, inspect.Parameter]
Examined = nn.Module | Callable[..., Any]


def parameters_of(module: Examined) -> Signature:
    """Return the parameters of forward, or of a function, without *args and **kwargs."""
    function = module.forward if isinstance(module, nn.Module) else module
    every = inspect.signature(function).parameters
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return {name: p for name, p in every.items() if p.kind not in variable}


def is_needed(parameter: inspect.Parameter) -> bool:
    """Return whether an argument has no default."""
    return parameter.default is inspect.Parameter.empty


def is_mask(name: str) -> bool:
    """Return whether an argument takes a mask, by its name."""
    return "mask" in name.lower() or name.lower() in MASKS


def side(name: str) -> str:
    """Return "tokens", "context", "other", or "" for a name that settles nothing."""
    low = name.lower().strip("_")
    if low in KNOWN or low.endswith(("_pos", "_pos_embed")) or any(word in low for word in OTHERS):
        return "other"
    if low in KEYS or low.startswith(KEY_STARTS):
        return "context"
    return "tokens" if low in QUERIES or low.startswith(QUERY_STARTS) else ""


@dataclass(frozen=True)
class Sides:
    """The arguments of forward that take tokens, and those that take a context."""

    tokens: tuple[str, ...]
    context: tuple[str, ...]


def sides_of(module: Examined) -> Sides | None:
    """Return which arguments take tokens and which a context; None if none takes a context."""
    found: dict[str, list[str]] = {"tokens": [], "context": [], "other": [], "": []}
    for name, parameter in parameters_of(module).items():
        kind = side(name)
        optional = kind == "context" and parameter.default is None
        if is_needed(parameter) or optional or (kind == "tokens" and not found[kind]):
            found[kind].append(name)
    tokens, context = found["tokens"], found["context"]
    for name in found[""]:
        (context if tokens else tokens).append(name)
    if not context:
        tokens, context = tokens[:1], tokens[1:]
    return Sides(tuple(tokens), tuple(context)) if tokens and context else None


def rotary_table(name: str, width: int, start: int, x: Tensor) -> Any:
    """Return cosines and sines (1, n, width) for tokens x, or complex numbers (n, width / 2)."""
    steps = torch.arange(0, width, 2, dtype=torch.float64) / width
    places = torch.arange(start, start + x.shape[1], dtype=torch.float64)
    angles = places[:, None] * 10_000.0**-steps
    if name in COMPLEX:
        return torch.polar(torch.ones_like(angles), angles)
    angles = torch.cat([angles, angles], dim=1)[None]
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    return cos if name in COSINES else sin if name in SINES else (cos, sin)


def positions(name: str, start: int, n: int) -> Tensor:
    """Return the positions of n tokens: (1, n) under the names of transformers, else (n,)."""
    places = torch.arange(start, start + n)
    return places[None] if name in ("position_ids", "pos_ids") else places


@dataclass(frozen=True)
class Blank:
    """A mask of one value that blocks nothing; its shape in letters b, i (queries), j and 1."""

    shape: str
    value: bool | float

    def made(self, x: Tensor, keys: int | None = None) -> Tensor:
        """Return the mask for tokens x (b, n, e), and a context of so many keys."""
        sizes = {"b": len(x), "i": x.shape[1], "j": keys or x.shape[1], "1": 1}
        dtype = torch.bool if isinstance(self.value, bool) else x.dtype
        return torch.full([sizes[s] for s in self.shape.split()], self.value, dtype=dtype)


SHAPES = ("b 1 1 j", "b 1 j", "b i j", "i j", "b 1 i j", "b j")
BLANKS = [Blank(shape, value) for value in (False, True, 1.0, 0.0) for shape in SHAPES]


def swapped(t: Tensor, time_first: bool) -> Tensor:
    """Return tokens (b, n, e) as (n, b, e), and vice versa, where time comes first."""
    return t.transpose(0, 1) if time_first and t.ndim == 3 else t


def token_counts(module: Examined) -> list[int]:
    """Return numbers of tokens that a module may insist on, from its attributes and tables."""
    found: list[int] = []
    for part in module.modules() if isinstance(module, nn.Module) else ():
        for value in (value for name, value in vars(part).items() if name in COUNTS):
            found += [value * value, value] if isinstance(value, int) else []
        tables = [p for p in part.parameters(recurse=False) if p.ndim > 2]
        for table in (*tables, *(t for t in part.buffers(recurse=False) if t.ndim > 1)):
            found += [table.shape[-1]] * (table.shape[-1] == table.shape[-2])
            found += [table.shape[1]] * (table.ndim == 3 and len(table) == 1)
    return [n for n in dict.fromkeys(found) if 1 < n <= MOST]


@dataclass(frozen=True)
class Way:
    """One way to call a module: which argument gets what."""

    time_first: bool = False  # whether forward takes (n, b, e)
    sides: Sides | None = None
    rotary: int = 0  # how many numbers of a head a table of cosines and sines rotates
    blank: Blank | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """What is unusual about it, for a report."""
        if self.blank is None:
            return ()
        return (f"with a mask ({', '.join(self.blank.shape.split())}) of {self.blank.value}",)


def ways(module: Examined, head_dims: list[int], crossed: bool) -> Iterator[Way]:
    """Yield ways to call a module, with a context or without one, the likeliest first."""
    plain = Way(is_time_first(module), sides_of(module) if crossed else None)
    yield plain
    if not TABLES.isdisjoint(parameters_of(module)):
        yield from (replace(plain, rotary=width) for width in head_dims if width % 2 == 0)
    if any(map(is_mask, parameters_of(module))):
        yield from (replace(plain, blank=blank) for blank in BLANKS)


def mask_argument(module: Examined, context: bool = False) -> str | None:
    """Return the argument that takes a mask, or the mask of a context; None if none does."""
    names = [name for name in parameters_of(module) if "mask" in name.lower()]
    names = names or [name for name in parameters_of(module) if is_mask(name)]
    speaking = [n for n in names if any(word in n.lower() for word in CONTEXT_WORDS)]
    usual = [name for name in ("attn_mask", "mask", "attention_mask") if name in names]
    return next(iter((*(speaking if context else ()), *usual, *names)), None)


def positional(function: Callable[..., Any]) -> int:
    """Return how many positional arguments a function takes."""
    kinds = [p.kind for p in inspect.signature(function).parameters.values()]
    return sum(kind <= inspect.Parameter.POSITIONAL_OR_KEYWORD for kind in kinds)


def is_time_first(module: Examined) -> bool:
    """Return whether a module of torch takes (n, b, e)."""
    inner = module.modules() if isinstance(module, (nn.MultiheadAttention, *TORCH_STACKS)) else ()
    return any(isinstance(p, nn.MultiheadAttention) and not p.batch_first for p in inner)


def says_time_first(module: Examined) -> bool:
    """Return whether the documentation of a module announces (n, b, e)."""
    function = module.forward if isinstance(module, nn.Module) else module
    documented = f"{inspect.getdoc(type(module)) or ''} {inspect.getdoc(function) or ''}".lower()
    words = documented.translate(dict.fromkeys(map(ord, "([,x"), " ")).split()
    firsts, seconds = {"time", "t", "seq", "seq_len", "l", "s"}, {"b", "batch", "bsz", "batch_size"}
    return any(one in firsts and two in seconds for one, two in pairwise(words))


def call(
    module: Examined, way: Way, x: Tensor, mask: Any = None, context: Any = None, cache: Any = None
) -> object:
    """Call a module on tokens (b, n, e) and return its result as it is.

    The mask is that of the context (b, j, c) where there is one; a cache comes with its length.
    """
    if isinstance(module, nn.MultiheadAttention) and mask is not None:
        mask = _for_torch(module, mask, x, x if context is None else context)
    sides = way.sides if context is not None else None
    where = mask_argument(module, context is not None)
    lost = {"mask": mask is not None and not where, "context": context is not None and not sides}
    for name in (name for name, missing in lost.items() if missing):
        raise TypeError(f"forward has no argument for a {name}")
    tokens = swapped(x, way.time_first)
    known: dict[str | None, Any] = {} if mask is None else {where: mask}
    if sides is not None:
        known |= dict.fromkeys(sides.tokens, tokens)
        known |= dict.fromkeys(sides.context, swapped(context, way.time_first))
    kwargs: dict[str, Any] = {}
    for name, parameter in parameters_of(module).items():
        value = known.get(name, NotImplemented)
        if name not in known and (is_needed(parameter) or parameter.default is None):
            value = _value(name, is_needed(parameter), way, (x, tokens, context), cache)
        if value is not NotImplemented:
            kwargs[name] = value
    first = () if any(value is tokens for value in kwargs.values()) else (tokens,)
    return module(*first, **kwargs)


def _value(name: str, needed: bool, way: Way, given: tuple, cache: Any) -> Any:
    """Return the value of an argument that takes no tokens; NotImplemented leaves it out."""
    (x, tokens, context), start = given, 0 if cache is None else cache[1]
    n, low, absent = x.shape[1], name.lower(), None if needed else NotImplemented
    if is_mask(name):
        keys = n if context is None else context.shape[1]
        return absent if way.blank is None else way.blank.made(x, keys)
    if cache is not None and name in CACHES:
        return cache[0]
    if way.rotary and name in TABLES:
        return rotary_table(name, way.rotary, start, x)
    if not needed or name in CACHES or "bias" in low:
        return absent
    if name in POSITIONS:
        return positions(name, start, n)
    if low in ADDED or low.endswith(("_pos", "_pos_embed")):
        return torch.zeros_like(tokens)
    return start if low in STARTS else None if context is not None else tokens


def _for_torch(module: nn.MultiheadAttention, mask: Tensor, x: Tensor, context: Tensor) -> Tensor:
    """Return a mask as PyTorch's own attention takes it: True blocks, one for each head."""
    sizes = (len(x), module.num_heads, x.shape[1], context.shape[1])
    mask = mask if mask.is_floating_point() else ~mask
    return mask.expand(sizes).flatten(0, 1)


def first_tensor(result: object) -> Tensor:
    """Return the first tensor of a result; a result without one is a `TypeError`."""
    for t in tensors_in(result):
        return t
    raise TypeError(f"it returned {type(result).__name__}, not a tensor")
