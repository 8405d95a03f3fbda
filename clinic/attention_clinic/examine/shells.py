"""What stands around the attention in the same module: norms, a residual, a factor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import product

import torch
from torch import Tensor, nn

from attention_clinic.bugs.feeds import ACTIVATIONS
from attention_clinic.engine.weights import Silent
from attention_clinic.examine.held import FACTORS
from attention_clinic.examine.norm_kinds import Norm, OverChannels, norms_of


@dataclass(frozen=True)
class Shell:
    """What stands around the attention in the same module.

    Args:
        name: in words.
        before: a norm of the input, or None.
        residual: what is added to the result: "" nothing, "x" the input, "normed" what the norm
            made of it, "query" the projected queries.
        after: a norm of the result, or what bends it, or None.
        context: what makes the context of what the module is given, or None.
        inside: whether `after` reads the result by itself, before anything is added.
        factor: what the result of the attention is multiplied by, (e,) or (1,), or None.
        ids: the mistakes that it is.
        variants: the names that it has.
    """

    name: str
    before: Callable[[Tensor], Tensor] | None = None
    residual: str = ""
    after: Callable[[Tensor], Tensor] | None = None
    inside: bool = False
    context: Callable[[Tensor], Tensor] | None = None
    factor: Tensor | None = None
    ids: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()

    def enter(self, x: Tensor) -> Tensor:
        """What the attention reads."""
        return x if self.before is None else self.before(x)

    def asked(self, context: Tensor) -> Tensor:
        """What keys and values are made of."""
        return context if self.context is None else self.context(context)

    def kept(self, x: Tensor) -> Tensor | float:
        """What is added to the result; the projected queries are for the search to add."""
        return {"x": lambda: x, "normed": lambda: self.enter(x)}.get(self.residual, lambda: 0.0)()

    def leave(self, made: Tensor, x: Tensor) -> Tensor:
        """What is returned, of the result of the attention and what came in."""
        after = self.after or (lambda t: t)
        return after(made) + self.kept(x) if self.inside else after(made + self.kept(x))


def shells_of(
    module: nn.Module | Callable, embed_dim: int, context_dim: int | None = None
) -> list[Shell]:
    """Return what may stand around the attention: norms of its own, a residual, a factor.

    Args:
        module: the attention with all around it.
        embed_dim: e.
        context_dim: the width of the context's tokens, None when there is no context.
    """
    shells = [Shell("")]
    if not isinstance(module, nn.Module):
        return shells
    norms = norms_of(module, embed_dim)
    for norm in norms[:2]:
        run, kind = norm.run, norm.kind
        around = f"a residual and {kind} around"
        shells.append(Shell(f"after {kind} of its own", before=run, ids=norm.ids))
        shells.append(Shell(around, before=run, residual="x", ids=norm.ids))
        shells.append(Shell(around, residual="x", after=run, ids=norm.ids))
        shells.append(Shell(f"{kind} of its own after it", after=run, ids=norm.ids))
    shells.append(Shell("a residual around", residual="x"))
    if context_dim is not None:
        others = norms_of(module, context_dim)[:2]
        for norm, other in product(norms[:2], others):
            name, ids = "after norms of its own of both sides", norm.ids or other.ids
            shells.append(Shell(name, before=norm.run, context=other.run, ids=ids))
        for other in others:
            name = f"after {other.kind} of its own of the context"
            shells.append(Shell(name, context=other.run, ids=other.ids))
    return [*shells, *_scaled(shells, module, embed_dim), *_mistaken(norms)]


def doubled_shells(module: nn.Module, embed_dim: int) -> Iterator[Shell]:
    """Yield what rarely stands around: norms on both sides, or one of the result by itself.

    Args:
        module: the attention with all around it.
        embed_dim: e.
    """
    norms = norms_of(module, embed_dim)[:2]
    for first, last in product((None, *norms), norms):
        if first is last:
            continue
        begins = f"after {first.kind} of its own, " if first is not None else ""
        name = f"{begins}{last.kind} behind the output layer"
        run = None if first is None else first.run
        ids = (*(() if first is None else first.ids), *last.ids)
        both = Shell(name, before=run, after=last.run, ids=ids)
        around = replace(both, name=f"{name}, a residual around", residual="x")
        yield replace(around, inside=True)
        if first is not None:
            yield from (both, around)


def bent_behind(name: str) -> Shell:
    """Return the shell of an activation function behind the output layer."""
    words = f"{name} behind the output layer"
    return Shell(words, after=ACTIVATIONS[name], ids=("out-bent",))


def _scaled(shells: list[Shell], module: nn.Module, embed_dim: int) -> Iterator[Shell]:
    """Yield the shells with a factor that the module learns."""
    held = [
        p
        for name, p in module.named_parameters()
        if FACTORS.search(name.lower()) and p.numel() in (1, embed_dim) and p.ndim < 4
    ]
    for factor, shell in product(held[:2], shells):
        name = f"{shell.name}, with a factor of its own".removeprefix(", ")
        flat = factor.flatten()
        scaled = replace(shell, name=name, factor=flat, variants=("layer-scale",))
        yield scaled
        if factor.numel() == 1:
            yield replace(scaled, factor=flat.tanh(), variants=("tanh-gate",))


def _mistaken(norms: list[Norm]) -> Iterator[Shell]:
    """Yield the shells that are mistakes."""
    names = {norm: f"a residual and {norm.kind} around" for norm in norms[:2]}
    for norm, name in names.items():
        ids = (*norm.ids, "residual-from-norm")
        yield Shell(name, before=norm.run, residual="normed", ids=ids)
    query = Shell("a residual around", residual="query", ids=("residual-from-query",))
    yield query
    for norm, name in names.items():
        ids = (*norm.ids, *query.ids)
        yield replace(query, name=name, before=norm.run, ids=ids)
        yield replace(query, name=name, after=norm.run, ids=ids)


@torch.no_grad()
def heard_shells(
    shells: list[Shell], module: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor
) -> list[Shell]:
    """Return the shells that the module has by what it does, [] when that says nothing.

    With all its projections 0, an attention returns 0: what is left is the residual, and the norm
    behind it. Which norm stands before it says what the norms are called on.

    Args:
        shells: those that may be.
        module: the copy.
        run: calls it.
        x: tokens.
    """
    found = [norm for s in shells for norm in (s.before, s.after) if isinstance(norm, nn.Module)]
    norms = list(dict.fromkeys(map(_heard, found)))
    limit = 1e-5 if x.dtype == torch.float32 else 1e-9
    read: list[nn.Module] = []
    sizes = x.flatten().sort().values  # in whatever order the module lays them out

    def listen(part: nn.Module, given: tuple) -> None:
        if given and isinstance(given[0], Tensor) and given[0].numel() == x.numel():
            read.extend([part] * torch.equal(given[0].flatten().sort().values, sizes))

    handles = [norm.register_forward_pre_hook(listen) for norm in norms]
    kept = {id(p) for norm in norms for p in norm.parameters()}
    try:
        with Silent([p for p in module.parameters() if id(p) not in kept]):
            silent = run(x)
    except Exception:
        return []
    finally:
        for handle in handles:
            handle.remove()
    if silent.shape != x.shape or not silent.isfinite().all():
        return []
    fitting = []
    for shell in shells:
        begins = not isinstance(shell.before, nn.Module) or _heard(shell.before) in read
        try:
            left = torch.zeros_like(x) + shell.kept(x)
            left = left if shell.after is None else shell.after(left)
        except Exception:  # a norm of images takes no rows of tokens
            continue
        if begins and torch.allclose(left, silent, rtol=limit, atol=limit):
            fitting.append(shell)
    return fitting


def _heard(norm: nn.Module) -> nn.Module:
    """Return the part of the module that is called where this norm is."""
    return norm.norm if isinstance(norm, OverChannels) else norm
