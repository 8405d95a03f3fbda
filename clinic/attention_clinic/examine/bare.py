"""An attention that projects nothing: layers for queries, keys and values are put in front."""

from __future__ import annotations

import inspect
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.heads import said_heads
from attention_clinic.engine.modes import Mode
from attention_clinic.engine.openings import Opening, openings
from attention_clinic.engine.operands import (
    AXES,
    FORMS,
    Operands,
    asks_for_operands,
    operands_of,
    said_forms,
)
from attention_clinic.engine.patient import copied
from attention_clinic.engine.tape import tensors_in
from attention_clinic.engine.weights import sources_of
from attention_clinic.examine.kernel_widths import widths_of
from attention_clinic.examine.refusing import name_of, question, refused

HEADS = 4  # where nothing says them, and a head has an axis of its own
HANDED = re.compile(r"scal|temp")
FEW = 2  # matrices of who projects nothing: an output layer, a table
PROJECTING = {
    *("linear", "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "einsum", "tensordot"),
    *("conv1d", "conv2d", "multi_head_attention_forward", "addmm", "baddbmm"),
}


class WithLayers(nn.Module):
    """What makes queries, keys and values of tokens, and a kernel that weighs them.

    Args:
        kernel: a module, or a function, that projects nothing.
        operands: how it takes them.
        context: whether keys and values are made of other tokens.
        ends: whether it has its own output layer.

    Shape:
        x        (b, n, h * d)
        context  (b, j, h * d)
        result   (b, n, h * d)
    """

    kernel: Any

    def __init__(
        self, kernel: Any, operands: Operands, context: bool = False, ends: bool = False
    ) -> None:
        super().__init__()
        self.kernel, self.operands, self.crossed = kernel, operands, context
        self.num_heads = operands.heads
        inner = operands.heads * operands.width
        self.queries, self.keys, self.values = (nn.Linear(inner, inner) for _ in range(3))
        self.out = nn.Identity() if ends else nn.Linear(inner, inner)

    @property
    def examined(self) -> str:
        """What of an attention is the kernel's, for a report."""
        own = AXES[self.operands.form] < 4 and self.operands.form.endswith("e")
        joins = "" if isinstance(self.out, nn.Linear) else ", output layer"
        return f"{'split, ' * (own and self.num_heads > 1)}scale, softmax, mixing{joins}"

    @property
    def handed(self) -> tuple[float, ...]:
        """The factors of scores that a kernel takes where nobody says another: of no width."""
        if not isinstance(self.kernel, nn.Module):
            return ()
        taken = inspect.signature(type(self.kernel).__init__).parameters
        said = {name: v for name, v in vars(self.kernel).items() if name in taken}
        usual = {name: v for name, v in said.items() if taken[name].default == v}
        return tuple(
            float(v)
            for name, v in usual.items()
            if HANDED.search(name) and isinstance(v, int | float) and not isinstance(v, bool) and v
        )

    @property
    def words(self) -> str:
        """What is not the kernel's, for a report."""
        return self.operands.words

    def called(self, x: Tensor, *further: Any, **named: Any) -> Tensor:
        """Weigh what the layers make of tokens; the kernel's own arguments follow them."""
        names = list(inspect.signature(self.forward).parameters)[1:]
        named = dict(zip(names, further, strict=False)) | named
        asked = named.pop("context", x) if self.crossed else x
        named = {said_masks(self.operands).get(name, name): held for name, held in named.items()}
        return self.out(self.mixed(self.queries(x), self.keys(asked), self.values(asked), named))

    def mixed(self, q: Tensor, k: Tensor, v: Tensor, named: dict[str, Any]) -> Tensor:
        """Call the kernel on projected tokens, (b, n, e) each, and return (b, n, e)."""
        way, b, n = self.operands, *q.shape[:2]
        h = way.heads
        q, k, v = (FORMS[way.form](t, h) for t in (q, k, v))
        k = k.transpose(-1, -2) if way.turned else k
        fixed = {name: way.value(kind, b, n) for name, kind in way.given}
        if way.form == "n e":
            return self.by_text(q, k, v, named, fixed)
        failed: Exception | None = None
        for given in self.masked(named, b, h):
            try:
                made = self.kernel(**dict(zip(way.names, (q, k, v), strict=True)), **given, **fixed)
                return joined(made, q.shape, way.form, b, h)
            except Exception as error:
                failed = failed or error
        assert failed is not None, "as it was given is one way"
        raise failed

    def masked(self, named: dict[str, Any], b: int, h: int) -> Iterator[dict[str, Any]]:
        """Yield the further arguments, with masks as given, and as many as there are operands."""
        yield named
        masks = {n: m for n, m in named.items() if n in self.operands.masks}
        masks = {n: m for n, m in masks.items() if isinstance(m, Tensor) and m.ndim > 1}
        if self.operands.axes != 3 or not masks:
            return
        times = b * h if self.operands.form == "(b h) n d" else b
        folded = {}
        for name, mask in masks.items():
            wide = mask if mask.ndim == 4 else mask[:, None] if mask.ndim == 3 else mask[None, None]
            wide = wide.expand(b, h if times > b else 1, *wide.shape[2:])
            folded[name] = wide.flatten(0, 1)
        yield {**named, **folded}

    def by_text(
        self, q: Tensor, k: Tensor, v: Tensor, named: dict[str, Any], fixed: dict[str, Any]
    ) -> Tensor:
        """Call a kernel that knows no batch on each text, and each head of it."""
        way, texts = self.operands, []
        for number, text in enumerate(zip(q, k, v, strict=True)):
            given = {
                name: m[number] if isinstance(m, Tensor) and m.ndim > 2 and len(m) > 1 else m
                for name, m in named.items()
            }
            given = {
                n: m[0] if isinstance(m, Tensor) and m.ndim > 2 else m for n, m in given.items()
            }
            one, *_ = text
            made = self.kernel(**dict(zip(way.names, text, strict=True)), **given, **fixed)
            texts.append(joined(made, one.shape, way.form, 1, 1))
        return torch.stack(texts)


def joined(made: Any, shape: torch.Size, form: str, b: int, h: int) -> Tensor:
    """Return what a kernel mixed as tokens.

    Args:
        made: what it returned: a tensor, or several.
        shape: of the queries that it got.
        form: how they lay.
        b: samples.
        h: heads.

    Shape:
        result  (b, n, h * d), for one text (n, d)

    Raises:
        ValueError: nothing that it returned can be what it mixed.
    """
    found = list(tensors_in(made))
    for t in found:
        if t.shape == shape:
            return apart(t, form, b, h)
    n = shape[2] if form == "b h n d" else shape[1] if form == "b n h d" else 0
    for t in found if n else ():
        if t.shape == (b, n, h * shape[3]):
            return t
        if t.shape == (b, n, h, shape[3]):
            return t.flatten(2)
        if t.shape == (b, h, n, shape[3]):
            return t.transpose(1, 2).flatten(2)
    got = ", ".join(str(tuple(t.shape)) for t in found) or type(made).__name__
    raise ValueError(f"it returned {got} for queries {tuple(shape)}")


def apart(t: Tensor, form: str, b: int, h: int) -> Tensor:
    """Return tokens (b, n, h * d) of what lies as operands do."""
    if form == "(b h) n d":
        t, form = t.unflatten(0, (b, h)), "b h n d"
    if form == "b h n d":
        return t.transpose(1, 2).flatten(2)
    if form == "h b n d":
        return t.permute(1, 2, 0, 3).flatten(2)
    if form == "b n h d":
        return t.flatten(2)
    return t.transpose(0, 1) if form == "n b e" else t


class Projecting(Mode):
    """Notice a kernel that multiplies what it was handed by weights of its own.

    Args:
        module: the kernel.
        handed: the operands.
    """

    def __init__(self, module: Any) -> None:
        super().__init__()
        held = weights_in(module) if isinstance(module, nn.Module) else ()
        self.own = {p.untyped_storage().data_ptr() for p in held}
        self.handed: list[Tensor] = []
        self.found = False

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if getattr(func, "__name__", "") in PROJECTING:
            given = list(tensors_in([args, kwargs]))
            learns = [
                t for t in given
                if isinstance(t, nn.Parameter) or t.untyped_storage().data_ptr() in self.own
            ]  # fmt: skip
            others = [t for t in given if all(t is not one for one in learns)]
            self.found |= bool(learns) and any(self.is_handed(t) for t in others)
        return func(*args, **kwargs)

    def is_handed(self, t: Tensor) -> bool:
        """Say whether a tensor holds numbers of the operands."""
        return any(bool(torch.isin(t.detach(), one).all()) for one in self.handed)


class Tried(WithLayers):
    """The same for a first run, in which is noticed whether the kernel projects."""

    def once(self, x: Tensor, opening: Opening | None, names: tuple[str, ...]) -> Projecting:
        """Run it once, with masks that block nothing."""
        context = x[:, :-1].flip(0) if self.crossed else x
        parts = [self.queries(x), self.keys(context), self.values(context)]
        noticed = Projecting(self.kernel)
        noticed.handed = parts
        named = dict.fromkeys(names)
        if opening is not None:
            named = {name: opening.made(name, x, context.shape[1]) for name in names}
        with torch.no_grad(), warnings.catch_warnings(), noticed:
            warnings.simplefilter("ignore")  # what x.T says of three axes
            self.mixed(*parts, named)
        return noticed


def kernels(
    module: Any, num_heads: int | None, context: bool, causal: bool, embed_dim: int | None = None
) -> list[WithLayers]:
    """Return the ways in which a module or function runs on operands that layers make; () for none.

    The likeliest stand first. Who projects anything itself is no kernel.

    Args:
        module: what the caller gave.
        num_heads: h, None when nobody says it.
        context: whether keys and values come from other tokens.
        causal: whether it must be causal.
        embed_dim: width of a token, None when nobody says it.
    """
    strange = isinstance(module, type | WithLayers) or not callable(module)
    base = None if strange else operands_of(module)
    if base is None:
        if not strange and not isinstance(module, nn.Module) and asks_for_operands(module):
            raise ValueError(question(module))
        return []
    if says_projections(module):
        return []
    ends = isinstance(module, nn.Module) and bool(sources_of(module))
    made: list[WithLayers] = []
    failed: list[Exception] = []
    for form, h, width in ways(module, num_heads, embed_dim):
        for several in base.calls():
            for call in several:
                way = replace(call, form=form, heads=h, width=width)
                found, projects = tried(module, way, context, causal, ends, failed)
                if projects:
                    return []
                if found is not None:
                    made.append(found)
                    break
    alone = not isinstance(module, nn.Module) or next(weights_in(module), None) is None
    if not made and alone and failed:
        raise ValueError(refused(module, failed[0]))
    return made


def weights_in(module: nn.Module) -> Iterator[Tensor]:
    """Yield the parameters of a module, and what it holds as plain tensors or in plain lists."""
    yield from module.parameters()
    for part in module.modules():
        for value in vars(part).values():
            several = value if isinstance(value, list | tuple) else [value]
            for one in several:
                if isinstance(one, nn.Module):
                    yield from one.parameters()
                elif isinstance(one, Tensor) and one.ndim > 1:
                    yield one


def says_projections(module: Any) -> bool:
    """Say whether the names of a module's weights say that it projects by itself."""
    sources = sources_of(module) if isinstance(module, nn.Module) else []
    said = any(source.role in (*"qkv", "kv", "qk", "qkv", "kqv") for source in sources)
    return said or len(sources) > FEW


def ways(
    module: Any, num_heads: int | None, embed_dim: int | None
) -> Iterator[tuple[str, int, int]]:
    """Yield forms of operands, each with numbers of heads and their width, the likeliest first."""
    said = list(dict.fromkeys(said_forms(module)))
    known = said_heads(module)
    forms: list[tuple[str, int]] = []
    own = num_heads or known or HEADS
    split = [(form, own) for form in ("b h n d", "b n h d", "h b n d")]
    if num_heads == 1:
        forms = [("b n e", 1), ("b h n d", 1), ("n e", 1), ("n b e", 1)]
    elif num_heads or known:
        whole = [("b n e", own)]
        forms = [*whole * bool(known), *split, ("(b h) n d", own), *whole, ("n e", own)]
    else:
        forms = [*split, ("b n e", 1), ("n e", 1)]
    first = next((one for one in said if one[1:] != "?"), "")
    axes = AXES[first] if first else int(said[0][0]) if said else 0
    if axes:
        fit = [one for one in forms if AXES[one[0]] == axes]
        fit.sort(key=lambda one: one[0] != first)
        forms = [*fit, *(one for one in forms if AXES[one[0]] != axes)]
    for form, h in dict.fromkeys(forms):
        yield from ((form, h, width) for width in widths_of(module, h, embed_dim))


def tried(
    module: Any,
    way: Operands,
    context: bool,
    causal: bool,
    ends: bool,
    failed: list[Exception],
) -> tuple[WithLayers | None, bool]:
    """Return a kernel with layers, None where it does not run so, and whether it projects."""
    shut = {name for name, kind in way.given if kind == "false" and "causal" in name}
    if causal and shut:
        way = replace(way, given=tuple((n, "true" if n in shut else k) for n, k in way.given))
    b, n = next((b, n) for b, n in ((2, 5), (3, 7), (2, 11)) if way.heads not in (b, n))
    x = torch.randn(b, n, way.heads * way.width, generator=torch.Generator().manual_seed(0))
    needed = tuple(name for name in way.masks if name not in way.further)
    for turned in (way.turned, not way.turned):
        one = replace(way, turned=turned)
        copy = copied("diagnose", Tried(module, one, context, ends))
        for opening in (None, *(openings() if needed else ())):
            try:
                noticed = copy.once(x, opening, needed)
            except Exception as error:
                failed.append(error)
                continue
            if noticed.found:
                return None, True
            return made_of(module, one, context, ends), False
    return None, False


def made_of(module: Any, way: Operands, context: bool, ends: bool) -> WithLayers:
    """Return a kernel with layers whose forward has the kernel's own further arguments."""
    called = module.forward if isinstance(module, nn.Module) else module
    fixed = {*way.names, *(name for name, _ in way.given)}
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    other = {own: said for said, own in said_masks(way).items()}
    own = [
        p.replace(kind=p.KEYWORD_ONLY, name=other.get(name, name))
        for name, p in inspect.signature(called).parameters.items()
        if name not in fixed and p.kind not in kinds
    ]
    place = inspect.Parameter.POSITIONAL_OR_KEYWORD
    tokens = [inspect.Parameter(n, place) for n in ("self", "x", *["context"] * context)]

    def forward(self: WithLayers, x: Tensor, *further: Any, **named: Any) -> Tensor:
        return self.called(x, *further, **named)

    forward.__signature__ = inspect.Signature([*tokens, *own])  # type: ignore[attr-defined]
    return type(name_of(module), (WithLayers,), {"forward": forward})(module, way, context, ends)


def said_masks(way: Operands) -> dict[str, str]:
    """Return a name that says what it takes for a mask that has none, such as m."""
    if not way.masks or any("mask" in name.lower() for name in way.masks):
        return {}
    return {"mask": way.masks[0]}
