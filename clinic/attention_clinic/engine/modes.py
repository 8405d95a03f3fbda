"""What happens to torch's functions while a module under examination runs."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial, wraps
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attention_clinic.engine import fused
from attention_clinic.engine.draws import Draws


class Aside:
    """A run of what is no part of what is examined, such as the parts of a block before a part.

    Between `begin` and `end` nobody listens; what changes calls, such as `NoDropout`, still does.
    """

    running = 0

    def __init__(self) -> None:
        self.on = False

    def begin(self) -> None:
        """Let nobody listen from now on."""
        Aside.running += not self.on
        self.on = True

    def end(self) -> None:
        """Let all listen again."""
        Aside.running -= self.on
        self.on = False


class Mode(TorchFunctionMode):
    """A look at every call of torch's functions; `called` of a subclass says what happens there.

    Attributes:
        listens: whether it changes nothing, so that it need not hear what runs aside.
    """

    listens = False

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        if self.listens and Aside.running:
            return func(*args, **(kwargs or {}))
        return self.called(func, args, dict(kwargs or {}))

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a call of `func` gives."""
        return func(*args, **kwargs)


class Called:
    """Lets self.layer.forward(x) do what self.layer(x) does, in this context: hooks hear it.

    Args:
        module: the copy that will run.

    Attributes:
        straight: whether some part was called so.
    """

    def __init__(self, module: nn.Module) -> None:
        self.module, self.straight = module, False
        self.kept: list[tuple[nn.Module, Any]] = []
        self.handles: list[Any] = []

    def __enter__(self) -> Self:
        for part in self.module.modules():
            if isinstance(part, torch.jit.ScriptModule):
                continue
            self.kept.append((part, vars(part).get("forward")))
            vars(part)["forward"] = self._around(part)
        return self

    def __exit__(self, *error: Any) -> None:
        for part, forward in self.kept:
            del vars(part)["forward"]
            vars(part).update({} if forward is None else {"forward": forward})
        for handle in self.handles:
            handle.remove()

    def _around(self, part: nn.Module) -> Any:
        forward = part.forward
        entered: list[bool] = []  # by the call of the module itself
        hook = part.register_forward_pre_hook(lambda *_: entered.append(True))

        @wraps(forward)
        def run(*args: Any, **kwargs: Any) -> Any:
            if entered:
                entered.pop()
                return forward(*args, **kwargs)
            self.straight = True
            return part(*args, **kwargs)

        self.handles.append(hook)
        return run


class Visits(Mode):
    """A look at every call of a module's parts, too: `arrives` and `leaves` of a subclass.

    Args:
        module: the copy that will run in this context.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self.handles: list[Any] = []

    def __enter__(self) -> Self:
        for path, part in self.module.named_modules():
            if isinstance(part, torch.jit.ScriptModule):
                continue
            arrives, leaves = partial(self.arrives, path), partial(self.leaves, path)
            self.handles += [
                part.register_forward_pre_hook(arrives, with_kwargs=True),
                part.register_forward_hook(leaves, with_kwargs=True, always_call=True),
            ]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self.handles:
            handle.remove()

    def arrives(self, path: str, part: nn.Module, args: Any, kwargs: Any) -> None:
        """Notice that a part is called."""

    def leaves(self, path: str, part: nn.Module, args: Any, kwargs: Any, result: Any) -> None:
        """Notice what a part returns."""


def dropped_share(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """Return the share that one of torch's functions named dropout was told to drop."""
    return kwargs.get("p", args[1] if len(args) > 1 else 0.5)


class NoDropout(Mode):
    """Turn every dropout into nothing, wherever it is called, or drawn: see `Draws`, too.

    What is rarely drawn drops, and never is; what is mostly drawn keeps, by its share, as those who
    drop so divide by that.

    Attributes:
        calls: how often one was called that drops something.
        most: the largest share that one would have dropped.
    """

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.most = 0, 0.0
        self.draws = Draws()

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        drawn = self.draws.called(func, args, kwargs)
        if drawn is not None:
            self._count(drawn[1])
            return drawn[0]
        if func is F.scaled_dot_product_attention:
            self._count(kwargs.get("dropout_p") or (args[4] if len(args) > 4 else 0.0))
            kwargs.pop("dropout_p", None)
            args = (*args[:4], 0.0, *args[5:]) if len(args) > 4 else args
        elif "dropout" in name:
            self._count(dropped_share(args, kwargs))
            return args[0] if args else kwargs["input"]
        elif name in ("bernoulli", "bernoulli_"):
            drawn = args[0] if args else kwargs["input"]
            said = kwargs.get("p", args[1] if len(args) > 1 else None)
            share = drawn.clone() if said is None else torch.zeros_like(drawn) + said
            self._count(float(torch.minimum(share, 1 - share).max()) if share.numel() else 0.0)
            kept = share.masked_fill(share <= 0.5, 0.0)
            return drawn.copy_(kept) if name == "bernoulli_" else kept
        return func(*args, **kwargs)

    def _count(self, share: float) -> None:
        if Aside.running:
            return
        self.calls += share > 0
        self.most = max(self.most, share)


@contextmanager
def wanting_gradients(parameters: Collection[nn.Parameter]) -> Iterator[None]:
    """Let parameters of a copy want gradients for a while; else they want none."""
    for p in parameters:
        p.requires_grad_(True)
    try:
        with torch.enable_grad():
            yield
    finally:
        for p in parameters:
            p.requires_grad_(False)


def keeping_history(module: nn.Module) -> Any:
    """Let a module keep the history of its numbers, though who runs it has switched that off.

    Args:
        module: does so until the handle that is returned is removed.
    """
    return module.register_forward_pre_hook(lambda *_: _listen())


def _listen() -> None:
    torch.set_grad_enabled(True)


@contextmanager
def moved(parameters: Collection[Tensor], times: float = 1.5, plus: float = 0.1) -> Iterator[None]:
    """Let parameters of a copy hold other numbers for a while."""
    kept = [p.detach().clone() for p in parameters]
    try:
        for p in parameters:
            p.data.mul_(times).add_(plus)
        yield
    finally:
        for p, before in zip(parameters, kept, strict=True):
            p.data.copy_(before)


class InOrder(Mode):
    """Give every GroupNorm numbers that lie in order.

    torch ends the whole process where the gradients of the weights of one are asked for, but not of
    what it got, and the channels of that lie last.
    """

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getattr(func, "__name__", "") == "group_norm":
            args = tuple(t.contiguous() if isinstance(t, Tensor) else t for t in args)
            if isinstance(kwargs.get("input"), Tensor):
                kwargs["input"] = kwargs["input"].contiguous()
        return func(*args, **kwargs)


class Precision(Mode):
    """Notice numbers in single precision inside a module in double precision."""

    listens = True

    def __init__(self) -> None:
        super().__init__()
        self.single = False

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        # one number is enough: the root of torch.FloatTensor([head_dim]) is off by 6e-8
        self.single |= any(_is_single(value) for value in (*args, result))
        return result


def _is_single(value: object) -> bool:
    return isinstance(value, Tensor) and value.dtype in (torch.float32, torch.complex64)


NARROW = (torch.float32, torch.float16, torch.bfloat16)


class Widened(Mode):
    """Compute in double precision, whatever a module casts its numbers to, or makes."""

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("float", "half", "bfloat16") and args:
            return args[0].double()
        args = tuple(_wider_type(value) for value in args)
        kwargs = {key: _wider_type(value) for key, value in kwargs.items()}
        try:
            return func(*args, **kwargs)
        except RuntimeError as error:
            if not is_of_types(error):
                raise
        if name.endswith("_"):  # what is changed in its place stays as wide as it is
            like = args[0]
            rest = (v.to(like.dtype) if _is_float(v) else v for v in args[1:])
            return func(like, *rest, **kwargs)
        wide = {key: _wider(value) for key, value in kwargs.items()}
        return func(*(_wider(value) for value in args), **wide)


def is_of_types(error: BaseException) -> bool:
    """Say whether an exception speaks of numbers of two widths."""
    return bool(re.search(r"dtype|scalar type|(Double|Float|Half|BFloat16)\b", str(error)))


def of_shapes(error: BaseException | None) -> bool:
    """Say whether an exception speaks of matrices that do not fit each other."""
    return isinstance(error, RuntimeError) and bool(re.search("mat1|batch2", str(error)))


def _wider_type(value: Any) -> Any:
    return torch.float64 if isinstance(value, torch.dtype) and value in NARROW else value


def _is_float(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _wider(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return type(value)(_wider(one) for one in value)
    return value.double() if _is_float(value) else value


class JoinHeads(Mode):
    """Join the heads of a four-axis tensor that a layer for (b, n, h * d) was given."""

    def __init__(self, num_heads: int, heads_axis: int) -> None:
        super().__init__()
        self.num_heads, self.heads_axis, self.calls = num_heads, heads_axis, 0

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is F.linear or getattr(func, "__name__", "") in ("matmul", "__matmul__"):
            t, weight = args[:2]
            inner = weight.shape[-1] if func is F.linear else weight.shape[0]
            if (
                t.ndim == 4
                and weight.ndim == 2
                and t.shape[self.heads_axis] == self.num_heads > 1
                and t.shape[-1] * self.num_heads == inner
            ):
                self.calls += 1
                t = (t.transpose(1, 2) if self.heads_axis == 1 else t).flatten(2)
                return func(t, *args[1:], **kwargs)
        return func(*args, **kwargs)


class Listen(Mode):
    """Write down which activations are called."""

    listens = True

    def __init__(self) -> None:
        super().__init__()
        self.heard: set[str] = set()

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        if name in ("gelu", "relu", "relu_", "silu"):
            tanh = kwargs.get("approximate") == "tanh"
            self.heard.add("gelu-tanh" if tanh else name.rstrip("_"))
        return func(*args, **kwargs)


class Scores(Mode):
    """Write down what every softmax gets; of the fused kernel, what is added to the scores."""

    listens = True

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[Tensor] = []

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is F.scaled_dot_product_attention:
            self.heard.append(self.of_kernel(fused.given(args, kwargs)))
        elif getattr(func, "__name__", "") in ("softmax", "log_softmax") and args:
            self.heard.append(args[0].detach().clone())
        return func(*args, **kwargs)

    def of_kernel(self, given: dict[str, Any]) -> Tensor:
        """Return what is written down of the fused kernel."""
        rows, keys = given["query"].shape[:-1], given["key"].shape[-2]
        return fused.masked(torch.zeros(*rows, keys, dtype=torch.float64), given)
