"""Call a part of a model as the model itself called it, with other tokens."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.arguments import CACHES
from attention_clinic.engine.calls import first_tensor
from attention_clinic.engine.crossing import role
from attention_clinic.engine.recording import BEYOND, Call

FEW = 3  # samples
BLOCKED = -1e4  # what is added to a score that is masked lies below
TOKENS = ("hidden_states", "x", "query", "tgt", "src", "input", "inputs", "tokens")


def _streams(call: Call) -> dict[str, Tensor]:
    """Return the arguments that may hold tokens: floats with three axes, or four as of images."""
    return {
        name: value
        for name, value in call.given.items()
        if isinstance(value, Tensor)
        and value.is_floating_point()
        and value.ndim in (3, 4)
        and "mask" not in name
        and "bias" not in name
    }


@dataclass(frozen=True)
class Replay:
    """A call with other tokens: `replay(module, x)`, or `replay(module, x, context)`.

    Args:
        call: what the model gave.
        asks: the arguments that take the tokens.
        asked: the arguments that take a context.
        form: how the tokens lie: "b n e", "n b e", "b c h w" or "b h w c".
        still: arguments that are 0 meanwhile, such as positions or biases that are added inside;
            what blocks stays.
    """

    call: Call
    asks: tuple[str, ...]
    asked: tuple[str, ...] = ()
    form: str = "b n e"
    still: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, int, int]:
        """The tokens (b, n, e) of the model's own call."""
        return tuple(self.tokens(self.call.given[self.asks[0]]).shape)

    @property
    def added(self) -> tuple[str, ...]:
        """The arguments that are the stream itself, for a part that adds its result to it."""
        return tuple(name for name in self.still if "resid" in name)

    @property
    def context(self) -> tuple[int, int] | None:
        """Length and width of the context, None where there is none."""
        if not self.asked:
            return None
        return tuple(self.tokens(self.call.given[self.asked[0]]).shape[1:])

    @property
    def tied(self) -> bool:
        """Whether it gets something beside its tokens that may say how many there are."""
        beside = [v for name, v in self.call.given.items() if name not in self.asks]
        return any(isinstance(v, Tensor | tuple | list) for v in beside)

    @property
    def sizes(self) -> tuple[tuple[int, int] | None, ...]:
        """Numbers of samples and tokens to call it with: small ones, where nothing beside the
        tokens says how many there are; None lets the tool choose."""
        b, n, _ = self.shape
        if self.tied or self.form not in ("b n e", "n b e"):
            return ((b, n),)
        return (None, (FEW if n != FEW else FEW + 1, n))

    def tokens(self, t: Tensor) -> Tensor:
        """Return tokens (b, n, e) of what lies in another form."""
        if self.form == "n b e":
            return t.transpose(0, 1)
        if self.form == "b c h w":
            return t.flatten(2).mT
        return t.flatten(1, 2) if self.form == "b h w c" else t

    def laid(self, x: Tensor, name: str) -> Tensor:
        """Return tokens (b, n, e) in the form that the module takes."""
        if self.form == "n b e":
            return x.transpose(0, 1)
        if self.form == "b c h w":
            return x.mT.unflatten(2, self.call.given[name].shape[2:])
        if self.form == "b h w c":
            return x.unflatten(1, self.call.given[name].shape[1:3])
        return x

    def __call__(self, module: nn.Module, x: Tensor, *beside: Any) -> Tensor:
        """Call a module on tokens (b, n, e) and return its tokens.

        Args:
            module: the part, or a copy.
            x: tokens.
            beside: the context, where there is one.
        """
        given: dict[str, Any] = {}
        for name, value in self.call.given.items():
            if name in self.asks:
                given[name] = self.laid(x, name)
            elif name in self.asked and beside:
                given[name] = self.laid(beside[0], name)
            elif name in CACHES or name == "use_cache":
                given[name] = None if name in CACHES else False
            elif name in self.still:
                given[name] = torch.where(value < BLOCKED, value, 0.0).to(x.dtype)
            else:
                given[name] = cast(value, x.dtype)
        placed = [given.pop(name) for name in self.call.order]
        result = first_tensor(module(*placed, **given))
        if self.form == "b n e" and result.ndim == 4 and result.shape[1:3].numel() == x.shape[1]:
            return result.flatten(1, 2)
        return self.tokens(result) if result.ndim in (3, 4) else result


def cast(value: Any, dtype: torch.dtype) -> Any:
    """Return floats in the precision of the copy, everything else as it is."""
    if isinstance(value, Tensor):
        return value.detach().to(dtype) if value.is_floating_point() else value
    if type(value) in (tuple, list):
        return type(value)(cast(one, dtype) for one in value)
    return value


def keys_of(calls: Iterable[Call | None]) -> Iterator[Tensor]:
    """Yield what attentions were handed to ask: keys and values, whatever their names."""
    for given in [call.given for call in calls if call is not None]:
        for name, value in given.items():
            twice = sum(value is other for other in given.values()) == 2
            if isinstance(value, Tensor) and (twice or role(name) == "asked"):
                yield value


def replay_of(
    part: nn.Module, call: Call, scores: tuple[int, ...] | None, keys: Iterable[Tensor] = ()
) -> Replay | None:
    """Return how to call a part again, None where no argument holds tokens.

    Args:
        part: what was called.
        call: the model's own.
        scores: the shape of what its softmax got, None where nothing was heard.
        keys: what the attentions inside it were handed to ask.
    """
    streams = _streams(call)
    if not streams:
        return None
    first = next((name for name in TOKENS if name in streams), next(iter(streams)))
    x = streams[first]
    form = _form(part, x, call.result, scores)
    if form is None:
        return None
    same = tuple(name for name, value in streams.items() if value is x)
    own = any(role(name) == "asked" for name in same)  # the keys are made of the queries' tokens
    if own:  # and the values, too, where a code of places is added to queries and keys alone
        same += tuple(n for n, v in streams.items() if n not in same and _is_value(n, v, x))
    others = {name: value for name, value in streams.items() if name not in same}
    i, j = scores[-2:] if scores is not None else (None, None)
    asked: tuple[str, ...] = ()
    if form in ("b n e", "n b e"):
        places = 1 if form == "b n e" else 0
        asked = tuple(
            name
            for name, value in others.items()
            if value.ndim == 3
            and (role(name) == "asked" or name.startswith(BEYOND))
            and (j is None or value.shape[places] == j or i == j)
        )
        asked = () if own else asked  # what else there is stands beside
        longer = [
            n for n, v in others.items() if v.ndim == 3 and v.shape[places] != x.shape[places]
        ]
        if scores is None and not asked and len(longer) == 1:
            asked = (longer[0],)  # a block with two attentions, or more
        if not asked:
            keys = list(keys)
            handed = [n for n, v in others.items() if v.ndim == 3 and any(v is k for k in keys)]
            asked = tuple(handed[:1])  # of one length with the tokens
    still = [name for name, value in others.items() if name not in asked and value.shape == x.shape]
    still += [
        name
        for name, value in call.given.items()
        if isinstance(value, Tensor)
        and value.is_floating_point()
        and value.ndim > 2
        and scores is not None
        and value.shape[-2:] == scores[-2:]
        and re.search(r"bias|rel|pos", name)
    ]
    return Replay(call, same, asked, form, tuple(dict.fromkeys(still)))


def _is_value(name: str, value: Tensor, x: Tensor) -> bool:
    """Say whether an argument takes what values are made of, of tokens like the queries'."""
    return role(name) == "asked" and value.shape == x.shape


def _form(part: nn.Module, x: Tensor, result: Any, scores: tuple[int, ...] | None) -> str | None:
    """Say how tokens lie in what a part gets, None where nothing fits."""
    try:
        y = first_tensor(result)
    except TypeError:
        return None
    if x.ndim == 4:
        if y.ndim != 4 or x.shape[0] != y.shape[0]:
            return None
        widths = {p.shape[1] for p in part.parameters() if p.ndim > 1}
        last = x.shape[-1] in widths and (x.shape[1] not in widths or x.shape[1] == x.shape[2])
        return "b h w c" if last else "b c h w"
    if scores is not None and len(scores) > 2 and x.shape[0] == scores[-2] != x.shape[1]:
        return "n b e"
    return "b n e"
