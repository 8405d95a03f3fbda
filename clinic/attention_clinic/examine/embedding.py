"""`diagnose_embedding`: patches, their projection, class token and learned positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS, EMBEDDING
from attention_clinic.engine.calls import first_tensor
from attention_clinic.engine.doors import answered
from attention_clinic.engine.forms import Form, Found, State, simplest
from attention_clinic.engine.modes import moved
from attention_clinic.engine.patient import Patient, check_positive, same, undisturbed
from attention_clinic.engine.report import Explanation, Report, explain
from attention_clinic.engine.weights import Source, sources_of
from attention_clinic.examine.fixed_places import fixed_wrongly, never_learned
from attention_clinic.examine.learning import learned
from attention_clinic.examine.patch_cut import mistaken, reached
from attention_clinic.examine.plain import plain_tensors
from attention_clinic.examine.rows_held import (
    CLASSES,
    class_tokens,
    fixed_tensors,
    held_by,
    tables,
)
from attention_clinic.examine.unlearned import without

Size = int | tuple[int, int]
EVIDENCE = "seen in what each number of an image reaches"
ORDER = ("patch-order",)  # a layer that learns with it knows no other
MOST = 256  # images that a module may ask for


def diagnose_embedding(
    module: nn.Module | Callable[..., Any],
    image_size: Size,
    patch_size: Size,
    in_channels: int = 3,
    *,
    inverse: Callable[..., Any] | None = None,
    call: Callable[..., Any] | None = None,
) -> Report:
    """Compare a patch embedding, or a function that cuts patches, with the course's own.

    Args:
        module: maps images to tokens, with or without class token and positions, or to patches.
        image_size: side of the images in pixels, or (height, width).
        patch_size: side of a patch in pixels, or (height, width).
        in_channels: channels of the images, c.
        inverse: a function that should put the patches together again.
        call: how to call the module: call(module, images).

    Shape:
        images  (b, c, H, W)
        result  (b, n, e), (b, n + 1, e), or patches (b, n, c * ph * pw)

    Returns:
        A `Report`: print it, or ask for `healthy` and `explanations`.

    Raises:
        ValueError: patches that do not tile the image, or an exception inside the module.
    """
    sizes, (ph, pw) = _pair("image_size", image_size), _pair("patch_size", patch_size)
    gh, gw = _grid(sizes, (ph, pw))
    with undisturbed(module), answered("diagnose_embedding", module):
        return _Embedding(module, sizes, (ph, pw), gh * gw, in_channels, inverse, call).report()


def _pair(name: str, size: Size) -> tuple[int, int]:
    """Return a size as (height, width)."""
    height, width = size if isinstance(size, tuple | list) and len(size) == 2 else (size, size)
    check_positive("diagnose_embedding", **{name: height})
    check_positive("diagnose_embedding", **{name: width})
    return height, width


def _grid(image: tuple[int, int], patch: tuple[int, int]) -> tuple[int, int]:
    """Return the number of patches down and across."""
    if image[0] % patch[0] or image[1] % patch[1]:
        height, width = ([n for n in range(1, side + 1) if side % n == 0] for side in image)
        raise ValueError(
            f"diagnose_embedding: patches must tile the image, got patch_size={patch} for an image "
            f"of {image[0]} x {image[1]} pixels. "
            f"Pick the patch height from {height} and the width from {width}, or crop the image."
        )
    return image[0] // patch[0], image[1] // patch[1]


class _Embedding:
    """One examination."""

    def __init__(
        self,
        module: nn.Module | Callable[..., Any],
        sizes: tuple[int, int],
        patch: tuple[int, int],
        n: int,
        channels: int,
        inverse: Callable[..., Any] | None,
        call: Callable[..., Any] | None,
    ) -> None:
        self.original, self.sizes, self.patch, self.n = module, sizes, patch, n
        self.channels, self.inverse, self.call = channels, inverse, call
        self.patient = Patient("diagnose_embedding", module, call or (lambda m, x: m(x)))
        if not self.patient.is_module:
            self.patient.dtype = torch.float64
        self.held = held_by(self.patient)

    def images(self, b: int, seed: int = 0) -> Tensor:
        return self.patient.tokens(b, self.channels, *self.sizes, seed=seed)

    def start(self) -> tuple[Tensor, Tensor, list[str]]:
        """Return images, the output and what the parameters show; find the batch that runs."""
        ids, tensors = [], {}
        if self.patient.is_module:
            tensors = dict(self.original.named_parameters())
            for name, part in self.original.named_modules():
                for key, value in vars(part).items():
                    # a buffer or a parameter would lie in a dictionary of its own
                    if isinstance(value, Tensor) and value.requires_grad:
                        ids.append("param-plain-tensor")
                        tensors[f"{name}.{key}"] = value
        batches = [
            t.shape[0]
            for t in tensors.values()
            if t.ndim == 3 and t.shape[0] > 1 and t.shape[1] in (1, self.n, self.n + 1)
        ]
        if self.patient.is_module:  # a class token may be repeated for a number said beforehand
            held = [pair for part in self.original.modules() for pair in vars(part).items()]
            said = [n for name, n in held if "batch" in name and type(n) is int]
            batches += [n for n in dict.fromkeys(said) if 1 < n <= MOST]
        b = next(size for size in (3, 4, 5, 6, 7) if size not in batches)
        first = None
        for size in (b, *batches, 1):
            try:
                images = self.images(size)
                y = self.patient.run(images)
            except Exception as error:
                first = first or error
                continue
            if first is not None:  # size 1: what is held once is not repeated
                ids.append("param-batch-size")
            if self.patient.is_module and self.patient.put_to_rest(images):
                ids.append("dropout-eval")
                y = self.patient.run(images)
            return images, y, list(dict.fromkeys(ids))
        raise self.patient.complain(first, (b, self.channels, *self.sizes)) from first

    def report(self) -> Report:
        images, y, ids = self.start()
        plain = plain_tensors(self.patient, lambda: self.patient.run(images))
        ids += ["param-plain-tensor"] * (bool(plain) and "param-plain-tensor" not in ids)
        name = self.patient.name
        checked = ["cutting", "order inside a patch"]
        if y.ndim == 4 or y.ndim != 3 or y.shape[0] != images.shape[0]:
            raise ValueError(
                f"diagnose_embedding: {name} must return (b, n, e), got a result of shape "
                f"{tuple(y.shape)}. Say how to call it: call=lambda module, images: ..."
            )
        if self.inverse is not None:
            checked.append("the way back")
            ids += self.way_back(images, y)
        found = self.search(images, y)
        heads, ways = y.shape[1] - self.n, found.values()
        tables = any(True for _ in self.tables(y.shape[-1]))
        last = bool(found) and all(way.state["behind"] for way in ways)
        used = [way.state["table"] is not None for way in ways]
        checked += ["class token" + "s" * (heads > 1) + ", behind all" * last] * (heads > 0)
        checked += ["positions"] * (any(used) or (tables and not found))
        untried = ("a table of positions, which nothing adds",) if tables and not any(used) else ()
        untried = untried if found else ()
        said = (", ".join(checked),)
        explanations = [
            explain([BUGS[id] for id in (*ids, *more)], way.difference, way.path.detail)
            for more, way in found.items()
            if (*ids, *more)
        ]
        if any(used) and not ids and () in found:
            explanations += fixed_wrongly(self.original, self.n, y.shape[-1])
            explanations += never_learned(self.original, [way.state["table"] for way in ways])
        idle = [name for name, t in fixed_tensors(self.original).items() if self.is_table(t, y)]
        if found and not explanations and not any(used) and idle:
            failing = (f"what it holds of positions is added: nothing adds {', '.join(idle)}",)
            return Report(name, False, failing=failing, checked=said)
        harmless = not ids and self.patient.is_module and ORDER in found
        if (() in found and not explanations) or harmless:
            remarks = tuple(explanations) * harmless
            report = Report(name, True, checked=said, untried=untried, remarks=remarks)
            run = lambda: self.patient.run(images)  # noqa: E731
            return learned(report, self.patient, run, [images])
        failing: tuple[str, ...] = ()
        remarks: tuple[Explanation, ...] = ()
        if self.patient.is_module and any(len(one.ids) > 1 for one in explanations):
            left = without(explanations, ORDER)
            order = [way for more, way in found.items() if set(ORDER) & set(more)]
            if order and left:  # as harmless as alone, beside what is no harmless thing
                explanations, said_of = list(left), order[0].path.detail
                remarks = (explain([BUGS[id] for id in ORDER], detail=said_of),)
        if not found:
            explanations = [explain([BUGS[id]]) for id in ids] + self.cut_wrongly(images)
            failing = tuple(self.failing(images, y)) if not explanations else ()
        return Report(name, False, tuple(explanations), failing, said, untried, remarks)

    def search(self, images: Tensor, y: Tensor) -> dict[tuple[str, ...], Found]:
        """Return the ways with the fewest mistakes that give the output."""
        e, extra = y.shape[-1], y.shape[1] - self.n
        if not 0 <= extra <= CLASSES:
            return {}
        b = len(images)

        def difference(state: State) -> float | None:
            if state["made"].shape != y.shape:
                return None
            gap = float((state["made"] - y).abs().max())
            return gap if gap <= self.patient.tolerance * (1 + y.abs().max().item()) else None

        heads = list(class_tokens(self.held, e, extra, b)) if extra else [None]
        p = self.channels * self.patch[0] * self.patch[1]
        state = {
            "images": images,
            "patch": self.patch,
            "projections": [
                Form(_projection(weight, bias, norm))
                for weight, bias in self.projections(e)
                for norm in self.norms(p)
            ],
            "norms": [Form(norm or _as_it_is) for norm in self.norms(e)],
            "heads": [Form(head) for head in heads],
            "tables": [
                Form(None),
                *(Form(table) for table in self.tables(e) if len(table) in (1, b)),
            ],
        }
        found = simplest(EMBEDDING, state, difference)
        if found:
            return found
        if extra > 1:
            return {}
        if extra:
            return self.beside_class_token(images, e, state, difference)
        state["tables"] = [Form(table) for table in self.computed(images, e)]
        found = simplest(EMBEDDING, state, difference) if state["tables"] else {}
        return {(*_one_for_all(way.state["table"]), *ids): way for ids, way in found.items()}

    def beside_class_token(
        self,
        images: Tensor,
        e: int,
        state: State,
        difference: Callable[[State], float | None],
    ) -> dict[tuple[str, ...], Found]:
        """Return the ways where places are made of several tables, or computed.

        What the class token gets is one of them; where they are learned, it must get one.
        """
        empty = self.patient.run(torch.zeros_like(images))[:1]
        learns = any(map(self.moves_places, self.patient.module.parameters()))
        for head, places in product(state["heads"], list(self.computed(images, e))):
            own = empty[:, :1] - head.run[:1]
            table = torch.cat([own, places[:, 1:]], dim=1)
            state = {**state, "heads": [head], "tables": [Form(table)]}
            found = simplest(EMBEDDING, state, difference, most=1)
            none = ("pos-before-cls",) * (learns and float(own.abs().max()) < 1e-9)
            if found:
                every = (*none, *_one_for_all(places[:, 1:]))
                return {tuple(dict.fromkeys((*every, *ids))): way for ids, way in found.items()}
        return {}

    def moves_places(self, p: Tensor) -> bool:
        """Say whether a parameter changes how the tokens of an empty image differ."""

        def apart() -> Tensor:
            tokens = self.patient.run(torch.zeros(1, self.channels, *self.sizes).to(p))[:, 1:]
            return tokens - tokens[:, :1]

        before = apart()
        with moved([p]):
            return not same(before, apart())

    def cut_wrongly(self, images: Tensor) -> list[Explanation]:
        """Return what the numbers of the image that reach each token say is wrong."""
        try:
            owner = reached(self.patient.run, images[:1], self.n)
        except RuntimeError:  # what takes other numbers of images shows nothing
            return []
        said = mistaken(owner, self.n) if owner is not None else None
        if said is None:
            return []
        return [replace(explain([BUGS[said[0]]], detail=said[1]), evidence=EVIDENCE)]

    def way_back(self, images: Tensor, patches: Tensor) -> list[str]:
        """Return unpatch-order when the inverse does not give the images."""
        try:
            back = first_tensor(self.inverse(patches.clone()))
        except Exception as error:
            raise self.patient.complain(error, tuple(patches.shape)) from error
        same = back.shape == images.shape and torch.allclose(back, images, atol=1e-9)
        return [] if same else ["unpatch-order"]

    # ------------------------------------------------------------------------- the parts

    def sources(self) -> list[Source]:
        return sources_of(self.patient.module) if self.patient.is_module else []

    def projections(self, e: int) -> Iterator[tuple[Tensor, Tensor | None]]:
        """Yield weight (e, p) and bias; first none at all, for a function that only cuts."""
        p = self.channels * self.patch[0] * self.patch[1]
        if self.patient.is_module:
            for part in self.patient.module.modules():
                if isinstance(part, nn.Conv2d) and tuple(part.kernel_size) == self.patch:
                    yield part.weight.flatten(1), part.bias
        for source in self.sources():
            for form in source.forms:
                weight = source.weight if form == "oi" else source.weight.mT
                if tuple(weight.shape) == (e, p):
                    yield weight, source.bias
        if e == p:
            yield torch.eye(p, dtype=self.patient.dtype), None

    def tables(self, e: int) -> Iterator[Tensor]:
        """Yield tables of positions as (1 or b, rows, e)."""
        return tables(self.held, (weight for weight, _ in self.projections(e)), self.n, e)

    def is_table(self, t: Tensor, y: Tensor) -> bool:
        """Say whether a tensor has a row for each token of what is returned, (b, n, e)."""
        return t.squeeze().shape in (y.shape[1:], (self.n, y.shape[2]))

    def computed(self, images: Tensor, e: int) -> Iterator[Tensor]:
        """Yield what is added to empty images beside a bias, as (1, n, e): computed positions."""
        empty = self.patient.run(torch.zeros_like(images))
        for bias in [None, *(bias for _, bias in self.projections(e) if bias is not None)]:
            table = empty[:1] if bias is None else empty[:1] - bias
            rows = table[:, 1:]  # the first may be a class token's
            alike = table.shape[2] > 1 and same(rows, rows[..., :1].expand_as(rows))
            if table.abs().max() > self.patient.tolerance and not alike:  # one number a token
                yield table

    def norms(self, width: int) -> list[nn.Module | None]:
        """Return nothing and the norms of this width that stand inside the module."""
        if not self.patient.is_module:
            return [None]
        return [None] + [
            part
            for part in self.patient.module.modules()
            if isinstance(part, nn.LayerNorm) and part.normalized_shape == (width,)
        ]

    def failing(self, images: Tensor, y: Tensor) -> Iterator[str]:
        """Yield the properties that do not hold."""
        if not y.isfinite().all():
            yield "the output holds numbers: it has NaN or infinity"
            return
        if torch.equal(y, self.patient.run(self.images(len(images), seed=3))):
            yield "the output depends on the images"
            return
        ph, pw = self.patch
        one = images.clone()
        one[:, :, :ph, :pw] += 1.0
        moved = (self.patient.run(one) - y).abs().amax(dim=(0, 2)) > 1e-9
        if moved.sum() != 1:
            yield "one patch makes one token: changing a patch changes other tokens"


def _one_for_all(table: Tensor | None) -> tuple[str, ...]:
    """Return pos-one-row when every token gets the same code."""
    alike = table is not None and table.shape[1] > 1 and same(table, table[:, :1].expand_as(table))
    return ("pos-one-row",) if alike else ()


def _projection(weight: Tensor, bias: Tensor | None, norm: nn.Module | None) -> Callable[..., Any]:
    """Return the code of a projection, perhaps with a norm before it."""

    def project(patches: Tensor) -> Tensor:
        inside = patches if norm is None else norm(patches)
        made = inside @ weight.T
        return made if bias is None else made + bias

    return project


def _as_it_is(tokens: Tensor) -> Tensor:
    return tokens
