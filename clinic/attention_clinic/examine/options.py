"""What the callers of the tools say: options, and the context of a cross-attention."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import Tensor

from attention_clinic.bugs import MODELS
from attention_clinic.engine.arguments import Tables
from attention_clinic.engine.calls import in_order
from attention_clinic.engine.layouts import Layout
from attention_clinic.engine.openings import Opening
from attention_clinic.engine.patient import check_positive


@dataclass(frozen=True)
class Context:
    """What was said of a context; None is free.

    Args:
        samples: b.
        length: j.
        width: of its tokens.
        said: what the caller said.
    """

    samples: int | None = None
    length: int | None = None
    width: int | None = None
    said: Tensor | tuple[int, int] | int | bool | None = True

    @staticmethod
    def of(where: str, said: Tensor | tuple[int, int] | int | bool | None) -> Context | None:
        """Read what the caller of a tool said: a tensor, (length, width), a width, True or None."""
        if said is None or said is False:
            return None
        if said is True:
            return Context()
        if isinstance(said, Tensor) and said.ndim == 3 and min(said.shape) > 0:
            return Context(*said.shape, said=said)
        if isinstance(said, int) and said > 0:
            return Context(width=said, said=said)
        if (
            isinstance(said, tuple)
            and len(said) == 2
            and all(isinstance(size, int) and size > 0 for size in said)
        ):
            return Context(length=said[0], width=said[1], said=said)
        got = tuple(said.shape) if isinstance(said, Tensor) else repr(said)
        raise ValueError(
            f"{where}: context must be a tensor (b, j, width), (length, width), a width or True, "
            f"got {got}. context=True tries one as wide as the tokens."
        )


@dataclass(frozen=True)
class Options:
    """What the caller of `diagnose` said; see there."""

    num_heads: int
    mask: Tensor | None = None
    causal: bool | None = None
    call: Callable[..., Any] | None = None
    weights: dict[str, Tensor] | None = None
    size: tuple[int, int] | None = None
    out_proj: bool | None = None
    true_means: Literal["attend", "block"] | None = None
    context: Context | None = None
    num_kv_heads: int | None = None
    like: str | None = None
    tables: Tables | None = None
    cache: Callable[[], Any] | None = None
    opening: Opening | None = None
    layout: Layout | None = None
    most: int = 2  # mistakes to look for

    def checked(self) -> Options:
        """Return the options, with a call that takes what it is handed in the usual order.

        Raises:
            ValueError: what `diagnose` cannot work with.
        """
        check_positive("diagnose", num_heads=self.num_heads)
        if self.causal is not None and not isinstance(self.causal, bool):
            raise ValueError(
                "diagnose: causal must be True, False or None, got "
                f"{type(self.causal).__name__}. Pass a mask as mask=."
            )
        for name, weight in (self.weights or {}).items():
            if not isinstance(weight, Tensor):
                raise ValueError(
                    f"diagnose: weights must be tensors by name, got {name}={weight!r}. "
                    "Leave out what is missing."
                )
        if self.true_means not in (None, "attend", "block"):
            raise ValueError(
                f'diagnose: true_means must be "attend" or "block", got '
                f"true_means={self.true_means!r}. It says what True means in mask."
            )
        if self.context is not None and self.causal:
            raise ValueError(
                "diagnose: causal must be None with a context, got causal=True. Every token may "
                "see the whole context; pass what it may not see as mask=."
            )
        alone = self.mask is None and self.context is None
        if self.cache is not None and not (callable(self.cache) and alone):
            got = (
                "a mask or a context beside it"
                if callable(self.cache)
                else type(self.cache).__name__
            )
            raise ValueError(
                f"diagnose: cache must be a function that makes an empty cache, alone, got {got}. "
                "Pass the class itself: cache=KeyValueCache."
            )
        if self.num_kv_heads is not None:
            check_shared("diagnose", self.num_heads, self.num_kv_heads)
        if self.like not in (None, *MODELS):
            raise ValueError(
                f"diagnose: like must be one of {', '.join(MODELS)}, got like={self.like!r}. "
                "Pass None to accept every variant."
            )
        if self.mask is None:
            return self
        beside = ("mask",) if self.context is None else ("context", "mask")
        return replace(self, call=in_order("diagnose", self.call, beside, ("mask",)))


def check_shared(tool: str, num_heads: int, num_kv_heads: int) -> None:
    """Refuse a number of heads of keys and values that does not divide that of all heads.

    Args:
        tool: what was called.
        num_heads: h.
        num_kv_heads: g.

    Raises:
        ValueError: it does not.
    """
    check_positive(tool, num_kv_heads=num_kv_heads)
    if num_heads % num_kv_heads:
        raise ValueError(
            f"{tool}: num_heads must be a multiple of num_kv_heads, got num_heads={num_heads} and "
            f"num_kv_heads={num_kv_heads}. Pick num_kv_heads from "
            f"{[g for g in range(1, num_heads + 1) if num_heads % g == 0]}."
        )
