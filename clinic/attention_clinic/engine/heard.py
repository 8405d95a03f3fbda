"""What a module is heard to do while it runs: norms without weights, and how far scores go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic.engine.modes import Mode, Scores

EPS = (1e-6, 1e-5, 1e-8, 0.0)
MANY = 256  # heads
FAR, FURTHER = 1e6, 1e7  # tokens so long that a cap is reached


class Heard(Mode):
    """Write down norms without a weight, what is bent, and what a softmax is taken of."""

    listens = True

    def __init__(self) -> None:
        super().__init__()
        self.norms: list[tuple[str, float]] = []
        self.bends = False
        self.weighed: list[torch.Size] = []  # what a softmax gets
        self.opens: set[str] = set()  # what may bend a gate
        self.bent: set[str] = set()  # activation functions before the first softmax
        self.later: set[str] = set()  # those behind it
        self.tops: dict[tuple[int, int], None] = {}  # how many numbers topk keeps, and of how many
        self.positive: set[str] = set()  # what else makes anything positive
        self.compared: set[tuple[int, int]] = set()  # the sides of products that tokens made
        self.multiplied: set[str] = set()  # what is positive before the last of these
        self.behind: set[str] = set()  # activation functions behind it
        self.pointed: set[tuple[str, tuple[int, int]]] = set()  # what bends numbers, and how many
        self.squares: list[Tensor] = []  # of numbers
        self.lengths: set[int] = set()  # how many sums of squares there are
        self.roots: set[int] = set()  # of how many numbers roots are taken, as norms do
        self.distances = False
        self.weights: list[tuple[Any, ...]] = []  # shapes of two that are subtracted
        self.afterwards: list[float | Tensor] = []  # by what weights are multiplied
        self.averages = False  # whether a mean over the heads of weights is taken
        self.read: Tensor | None = None  # by the first layer
        self.strict: bool | None = None  # whether earlier tokens alone mix, and none for the first

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("rms_norm", "layer_norm"):
            given = dict(zip(("input", "shape", "weight"), args, strict=False)) | kwargs
            last = args[-1] if args and isinstance(args[-1], float) else None
            eps = kwargs.get("eps", last)
            eps = eps if isinstance(eps, float) else 0.0 if name == "rms_norm" else 1e-5
            if given.get("weight") is None:
                self.norms.append(("rms" if name == "rms_norm" else "layer", eps))
        elif name in ("normalize", "norm", "vector_norm", "linalg_vector_norm"):
            self.norms.append(("length", 0.0))
        elif name in ("rsqrt", "rsqrt_"):
            self.norms += [("rms", eps) for eps in EPS]
        self.bends |= name in ("tanh", "tanh_")
        self.positive |= {name.rstrip("_")} & {"elu", "relu", "softplus"}
        self.opens |= {name.rstrip("_")} & {"sigmoid", "silu"}
        if name.rstrip("_") in ("sigmoid", "relu") and args and args[0].ndim > 2:
            self.pointed.add((name.rstrip("_"), tuple(args[0].shape[-2:])))
        bent = {name.rstrip("_")} & {"gelu", "relu"}
        self.behind |= bent
        self.bent |= bent if not self.weighed else set()
        self.later |= bent if self.weighed else set()
        if name == "topk":
            kept = args[1] if len(args) > 1 else kwargs.get("k")
            self.tops |= {(int(kept), args[0].shape[-1]): None} if args and kept else {}
        if func is F.scaled_dot_product_attention:
            q, k = args[:2] if len(args) > 1 else (kwargs["query"], kwargs["key"])
            self.weighed.append(torch.Size((*q.shape[:-1], k.shape[-2])))
        elif name == "softmax" and args:
            self.weighed.append(args[0].shape)
        elif name == "linear" and args and self.read is None:
            self.read = args[0]
        result = func(*args, **kwargs)
        self._square(name, args, result)
        if name == "mean" and self.weighed and args:
            self.averages |= args[0].ndim == 4 and args[0].shape == self.weighed[-1]
        if self.weighed and len(args) > 1:
            self._after(name.strip("_"), args)
        product = name.endswith(("matmul", "bmm", "einsum")) and isinstance(result, Tensor)
        if product and self.weighed and self.strict is not False:
            given = args[1:] if name == "einsum" else args
            for t in given:
                if isinstance(t, Tensor) and _is_square(t) and self.strict is not False:
                    self.strict = _of_earlier(t)
        if product and result.ndim > 2 and not any(isinstance(t, nn.Parameter) for t in args):
            self.compared.add(tuple(result.shape[-2:]))
            self.multiplied |= self.positive
            self.behind = set()
        return result

    def _square(self, name: str, args: tuple[Any, ...], result: Any) -> None:
        """Notice squares, whether they are summed, and roots of the sums."""
        twice = len(args) > 1 and args[-1] is args[-2]
        self.distances |= name == "cdist"
        if name in ("pow", "square", "__pow__") or (twice and name in ("mul", "__mul__")):
            self.squares.append(result)
        elif (name == "sum" and any(args[0] is t for t in self.squares)) or (
            twice and name == "einsum"
        ):
            self.lengths.add(result.numel())
        if name in ("sqrt", "rsqrt") and args:
            self.roots.add(args[0].numel())

    @property
    def apart(self) -> bool:
        """Whether lengths are taken, or distances, and not for a norm."""
        return self.distances or bool(self.lengths - self.roots)

    def _after(self, name: str, args: tuple[Any, ...]) -> None:
        """Notice what is done to weights: by what they are multiplied, and differences of them."""
        shapes = [getattr(t, "shape", None) for t in args[:2]]
        if name == "sub" and None not in shapes and len(shapes[0]) > 2:
            self.weights.append(tuple(shapes[0][-2:]))
        for few, many in (args[:2], args[1::-1]) if name in ("mul", "rmul") else ():
            held = isinstance(few, float) or (isinstance(few, Tensor) and few.ndim < 5)
            if held and isinstance(many, Tensor) and many.ndim > 2:
                one = few.detach() if isinstance(few, Tensor) else few
                self.afterwards += [one] * (isinstance(one, float) or one.numel() < MANY)


def heard(run: Callable[[Tensor], Tensor], x: Tensor) -> Heard:
    """Call a module once and return what was heard.

    Args:
        run: calls the module on tokens.
        x: tokens.
    """
    with Heard() as found:
        run(x)
    return found


def _is_square(t: Tensor) -> bool:
    """Say whether a tensor may be weights of tokens by tokens."""
    return t.ndim > 2 and t.shape[-1] == t.shape[-2] > 2


def _of_earlier(weights: Tensor) -> bool:
    """Say whether each token has weights for all before it, and for no other."""
    if weights[..., 0, :].any():
        return False  # the first one has some
    n = weights.shape[-1]
    earlier = torch.ones(n, n, dtype=torch.bool).tril(-1)
    return bool(((weights > 0) == earlier).all() and (weights[..., ~earlier] == 0).all())


def reached(run: Callable[[Tensor], Tensor], x: Tensor) -> float | None:
    """Return the score that none exceeds, however long the tokens are; None when there is none."""
    tops = []
    for far in (FAR, FURTHER):
        with Scores() as scores:
            run(far * x)
        tops.append([float(t.max()) for t in scores.heard if bool(t.isfinite().any())])
    if not tops[0] or len(tops[0]) != len(tops[1]):
        return None
    first, second = tops[0][0], tops[1][0]
    near = abs(first - second) <= 1e-6 * abs(first)
    return first if near and 0 < first < FAR else None
