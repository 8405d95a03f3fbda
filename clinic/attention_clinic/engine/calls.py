"""How to call a module: what its signature and its own words say."""

from __future__ import annotations

import dis
import inspect
import re
from collections.abc import Callable, Collection, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.arguments import ADDED, CACHES, PLACES, TABLES, Tables, place_value
from attention_clinic.engine.crossing import role
from attention_clinic.engine.heads import said_heads
from attention_clinic.engine.layouts import Layout, needed_names
from attention_clinic.engine.openings import NO_MASK, Opening, mask_names, mask_takers

NOTHING = re.compile(r"mask|alibi|(^|_)bias$|past|cache")  # needed, and may be None
REACHES = re.compile(
    r"_?((sliding|local|attention|attn)_)?(window|radius|band)(_?size|_?width|_?len(gth)?)?|look_?back"
)
WIDEST = 24  # of a window that is worth the longer tokens
MOST_SIDES = 32  # rows or columns of a grid that the user's call may name
LAYERS = (
    nn.TransformerEncoderLayer,
    nn.TransformerEncoder,
    nn.TransformerDecoderLayer,
    nn.TransformerDecoder,
)


def takes(function: Callable) -> int:
    """Return how many positional arguments a function takes."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 2
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(parameter.kind in kinds for parameter in parameters)


def in_order(
    name: str, call: Callable[..., Any] | None, names: tuple[str, ...], given: Collection[str]
) -> Callable[..., Any] | None:
    """Return a user's call that takes what stands beside the tokens in the usual order.

    Args:
        name: of the tool.
        call: of a user: call(module, x, ...); its own names may say another order.
        names: of what it may be handed, in order.
        given: which of them are there.

    Raises:
        ValueError: it takes another number of arguments than it will get.
    """
    if call is None or not given:
        return call
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        return call
    asked = [parameter.name for parameter in parameters[2:]]
    if any(p.kind != kind for p in parameters) or asked == list(names):
        return call
    if set(given) <= set(asked) <= set(names):
        places = [names.index(one) for one in asked]

        def run(module: Any, x: Tensor, *beside: Any) -> Any:
            filled = (*beside, *[None] * len(names))
            return call(module, x, *(filled[place] for place in places))

        order = [inspect.Parameter(one, kind) for one in ("module", "x", *names)]
        run.__signature__ = inspect.Signature(order)  # type: ignore[attr-defined]
        return run
    needed = sum(parameter.default is parameter.empty for parameter in parameters[2:])
    if not needed <= len(names) <= len(asked):
        got, usual = ", ".join(p.name for p in parameters), ", ".join(("module", "x", *names))
        raise ValueError(
            f"{name}: call must take ({usual}) where {' and '.join(given)} is given, got ({got}). "
            f"Write call=lambda {usual}: ..., whatever it uses of that."
        )
    return call


def said_windows(module: nn.Module | Callable[..., Any]) -> dict[str, int]:
    """Return the sides of windows that a module sets, by the names of its attributes."""
    parts = module.modules() if isinstance(module, nn.Module) else ()
    held = [pair for part in parts for pair in vars(part).items()]
    said = [(name, m) for name, m in held if type(m) is int and REACHES.fullmatch(name)]
    return dict(sorted(said, key=lambda pair: pair[1]))  # of several, the widest


def out_of_sight(module: nn.Module | Callable[..., Any]) -> int:
    """Return how many more tokens than usual it takes to see the window that a module sets."""
    sides = said_windows(module).values()
    return max((side - 2 for side in sides if 3 < side <= WIDEST), default=0)


def further_calls(
    call: Callable[..., Any] | None, widths: list[int], num_heads: int, sizes: tuple[int, int]
) -> Iterator[tuple[int, int, int]]:
    """Yield samples, tokens and their width for modules that take no usual call.

    Args:
        call: of the user, whose own numbers may be the sides of a grid: m(x, 4, 2).
        widths: that the weights have; a layer of a head may read its own slice of a token.
        num_heads: h.
        sizes: samples and tokens that were tried.
    """
    numbers = getattr(getattr(call, "__code__", None), "co_consts", ())
    sides = [n for n in numbers if type(n) is int and 1 < n <= MOST_SIDES]
    counts = [a * b for a, b in pairwise(sides)] + [a * a for a in sides] + sides
    for n in dict.fromkeys(counts):
        yield from ((sizes[0], n, width) for width in widths[:2])
    for width in widths[:2]:
        if width * num_heads not in widths:
            yield *sizes, width * num_heads


def unknown_names(module: nn.Module | Callable) -> list[str]:
    """Return the needed arguments that are neither tokens by their name nor filled by themselves.

    The first one holds the tokens, whatever it is called.
    """
    return [
        name
        for name in needed_names(module)[1:]
        if role(name) not in ("asks", "asked") and not NOTHING.search(name.lower())
    ]


def mask_argument(module: nn.Module | Callable, handed: bool = False) -> str | None:
    """Return the name of the argument that takes a mask, None when there is none.

    Args:
        module: whose forward it is.
        handed: whether there is a mask to be handed over: then it may have another name, too.
    """
    function = module.forward if isinstance(module, nn.Module) else module
    names = inspect.signature(function).parameters
    preferred = ("attn_mask", "mask", "attention_mask")
    masks = mask_takers(names) if handed else [name for name in names if "mask" in name.lower()]
    return next((name for name in preferred if name in masks), masks[0] if masks else None)


def says_time_first(module: nn.Module | Callable) -> bool:
    """Say whether the code itself announces (tokens, batch, width).

    Its documentation does, or forward takes the sizes of its input apart under such names:
    `tgt_len, bsz, embed_dim = query.size()`. `nn.MultiheadAttention` says it by an attribute.
    """
    if type(module).__module__.startswith("torch."):
        return isinstance(module, LAYERS) and not all(
            part.batch_first for part in module.modules() if isinstance(part, nn.MultiheadAttention)
        )
    function = type(module).forward if isinstance(module, nn.Module) else module
    function = inspect.unwrap(function)
    documented = " ".join(filter(None, (inspect.getdoc(type(module)), inspect.getdoc(function))))
    if re.search(r"(?i)\b(time|seq\w*|[tsl])[ ,x×*]+(batch\w*|bsz|b)[ ,x×*]+\w+", documented):
        return True
    return any(
        re.fullmatch(
            r"(?i)([tsl]|time|seq|seq_?len|tgt_len|src_len|q_len) (b|bs|bsz|batch|batch_size)", pair
        )
        for pair in _first_sizes(function)
    )


def _first_sizes(function: Callable) -> Iterator[str]:
    """Yield the first two names of every `a, b, c = ...` in a function, as "a b"."""
    code = getattr(function, "__code__", None)
    instructions = list(dis.get_instructions(code)) if code else []
    for number, instruction in enumerate(instructions):
        if instruction.opname == "UNPACK_SEQUENCE" and instruction.arg == 3:
            names: list[str] = []
            for stored in instructions[number + 1 : number + 4]:
                value = stored.argval
                names += value if isinstance(value, tuple) else [str(value)]
            yield " ".join(names[:2])


def standard_call(
    module: nn.Module | Callable,
    x: Tensor,
    mask: Tensor | None,
    tables: Tables | None = None,
    beside: tuple[Any, int] | None = None,
    opening: Opening | None = None,
    layout: tuple[Layout, Tensor] | None = None,
) -> object:
    """Call a module on tokens as its signature suggests: x for all of query, key and value."""
    if isinstance(module, nn.MultiheadAttention):
        if mask is not None:  # True means blocked there, and there is one mask for each head
            b, n = x.shape[:2]
            mask = ~mask if mask.dtype == torch.bool else mask
            mask = mask.expand(b, module.num_heads, n, n).reshape(-1, n, n)
        if not module.batch_first:
            x = x.transpose(0, 1)
        result = module(x, x, x, attn_mask=mask, need_weights=False)[0]
        return result if module.batch_first else result.transpose(0, 1)
    function = module.forward if isinstance(module, nn.Module) else module
    arguments, named = [], {}
    where_mask = mask_argument(module, handed=mask is not None)
    if mask is not None and where_mask is None:
        raise TypeError(NO_MASK)
    cache, start = beside or (None, 0)
    opened = [] if opening is None or mask is not None else mask_names(module)
    handed = set() if tables is None else TABLES if tables.width else PLACES
    for name, parameter in inspect.signature(function).parameters.items():
        needed = parameter.default is inspect.Parameter.empty
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name in opened:
            named[name] = opening.made(name, x)
        elif name == where_mask and (mask is not None or needed):
            named[name] = mask
        elif cache is not None and name in CACHES:
            named[name] = cache
        elif name in handed and (needed or parameter.default is None):
            named[name] = tables.value(name, x.shape[1], x.dtype, start)
        elif needed:
            empty = NOTHING.search(name.lower())
            value = None if empty else place_value(name, x, start)
            value = x if value is None and not empty else value
            if value is x and (arguments or named) and ADDED.search(name.lower()):
                value = torch.zeros_like(x)  # what is added to tokens; `Patient.untried` says so
            if value is x and layout is not None and (arguments or named):
                made = layout[0].value(name, layout[1])
                value = x if made is NotImplemented else made
            if layout is not None and "alibi" in name.lower():
                value = x.new_zeros(len(x) * (said_heads(module) or 1), 1, x.shape[1])
            if parameter.kind == parameter.KEYWORD_ONLY or named or value is not x:
                named[name] = value
            else:
                arguments.append(value)
    if not arguments and not any(value is x for value in named.values()):
        arguments = [x]  # def forward(self, *inputs), or x with a default
    return module(*arguments, **named)


def first_tensor(result: object) -> Tensor:
    """Return the first tensor of what a call returned."""
    if isinstance(result, Tensor):
        return result.detach()
    values = result.values() if isinstance(result, dict) else result
    if isinstance(values, tuple | list) or isinstance(result, dict):
        for value in values:
            if isinstance(value, Tensor):
                return value.detach()
    raise TypeError(f"it returned {type(result).__name__}, not a tensor")


def tensor_for(result: object, x: Tensor) -> Tensor:
    """Return the tensor of what a call returned that holds its tokens: mostly the first.

    Another one is it where the first is no row of tokens, such as weights or a number, and just
    one other has the shape of the tokens that came in.

    Args:
        result: what the call returned.
        x: tokens (b, n, e) that it got.
    """
    first = first_tensor(result)
    if isinstance(result, Tensor) or (first.ndim == 3 and first.shape[1:] != (x.shape[1],) * 2):
        return first
    values = result.values() if isinstance(result, dict) else result
    rows = [value for value in values if isinstance(value, Tensor) and value.shape == x.shape]
    return rows[0].detach() if len(rows) == 1 else first
