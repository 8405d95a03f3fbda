"""`diagnose_embedding`: patches, their projection, class token and learned positions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from math import nan
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic.behaviour.gradients import learned
from attention_clinic.capture.module import (
    CallFailed,
    Patient,
    check_positive,
    undisturbed,
    unwrapped,
)
from attention_clinic.catalogue import BUGS
from attention_clinic.catalogue.embedding import EMBEDDING
from attention_clinic.catalogue.forms import Form, Found, State, simplest, with_more
from attention_clinic.positions import diagnose_positions
from attention_clinic.report import Report, explain

WHERE = "diagnose_embedding"
Size = int | tuple[int, int]
Join = Callable[[Tensor], Tensor]


def diagnose_embedding(
    module: nn.Module | Callable[..., Any],
    image_size: Size,
    patch_size: Size,
    in_channels: int = 3,
    *,
    call: Callable[..., Any] | None = None,
) -> Report:
    """Compare a patch embedding, or a function that cuts patches, with the course's own.

    Args:
        module: maps images to tokens, with or without class token and positions, or to patches.
        image_size: side of the images in pixels, or (height, width).
        patch_size: side of a patch in pixels, or (height, width).
        in_channels: channels of the images, c.
        call: how to call the module: call(module, images).

    Shape:
        images  (b, c, H, W)
        result  (b, n, e), (b, n + 1, e), or patches (b, n, c * ph * pw)

    Raises:
        ValueError: patches that do not tile the image, or an error inside the module.
    """
    image, patch = _pair("image_size", image_size), _pair("patch_size", patch_size)
    if image[0] % patch[0] or image[1] % patch[1]:
        height, width = ([n for n in range(1, side + 1) if side % n == 0] for side in image)
        raise ValueError(
            f"{WHERE}: patches must tile the image, got patch_size={patch} for an image "
            f"of {image[0]} x {image[1]} pixels. "
            f"Pick the patch height from {height} and the width from {width}, or crop the image."
        )
    given = unwrapped(WHERE, module)
    with undisturbed():
        patient = Patient(WHERE, given, call or (lambda m, images: m(images)))
        try:
            n = image[0] // patch[0] * (image[1] // patch[1])
            images, y = _started(patient, (in_channels, *image))
            report = _report(patient, images, y, (n, *patch))
            report = with_more(report, [("dropout-eval", "")] * patient.resting)
            return learned(report, patient, lambda: patient.run(images), [images])
        except CallFailed as failed:
            raise patient.refusal(failed.error, (3, in_channels, *image)) from failed.error


def _pair(name: str, size: Size) -> tuple[int, int]:
    """Return a size as (height, width)."""
    height, width = size if isinstance(size, tuple | list) and len(size) == 2 else (size, size)
    check_positive(WHERE, **{name: height})
    check_positive(WHERE, **{name: width})
    return height, width


def _held(module: object) -> dict[str, Tensor]:
    """Return the tensors of a module, registered or not, by their paths."""
    found: dict[str, Tensor] = {}
    for path, part in module.named_modules() if isinstance(module, nn.Module) else ():
        held = part.named_parameters(recurse=False), part.named_buffers(recurse=False)
        own = [*vars(part).items(), *chain(*held)]
        found |= {f"{path}.{n}".lstrip("."): t for n, t in own if isinstance(t, Tensor)}
    return {name: t for name, t in found.items() if t.is_floating_point()}


def _started(patient: Patient, image: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return images (b, c, H, W) and the tokens that a module makes of them, (b, n, e)."""
    images = patient.tokens(3, *image)
    patient.rest(images)
    y = patient.run(images)
    if y.ndim != 3 or len(y) != len(images):
        raise ValueError(
            f"{WHERE}: {patient.name} must return (b, n, e), got a result of shape "
            f"{tuple(y.shape)}. Say how to call it: call=lambda module, images: ..."
        )
    return images, y


def _report(patient: Patient, images: Tensor, y: Tensor, sizes: tuple[int, int, int]) -> Report:
    """Return the report on tokens y (b, n or n + 1, e); sizes are n and those of a patch."""
    n, e = sizes[0], y.shape[2]
    found = searched(patient, images, y, sizes)
    explanations = [
        explain([BUGS[id] for id in ids], way.difference, way.path.detail)
        for ids, way in found.items()
        if ids
    ]
    used = any(bool(way.state["table"].any()) for way in found.values())
    for name, held in _held(patient.original).items() if () in found and used else ():
        table = held.detach().cpu().double().squeeze()
        if not held.requires_grad and table.shape in ((n, e), (n + 1, e)):
            for one in diagnose_positions(table).explanations[:1]:
                if one.ids != ("sincos-base",):  # another base may be intended
                    detail = "; ".join(filter(None, (f"the fixed table {name}", one.detail)))
                    explanations.append(replace(one, detail=detail))
    checked = ["cutting", "order inside a patch"] + ["class token"] * (y.shape[1] > n)
    return Report(
        patient.name,
        () in found and not explanations,
        tuple(explanations),
        () if found else tuple(_failing(patient, images, y, sizes)),
        (", ".join(checked + ["positions"] * used),),
    )


def searched(
    patient: Patient, images: Tensor, y: Tensor, sizes: tuple[int, int, int]
) -> dict[tuple[str, ...], Found]:
    """Return the forms with the fewest mistakes that give tokens y; see `_report`."""
    (b, rows, e), (n, ph, pw) = y.shape, sizes
    if rows not in (n, n + 1):
        return {}
    held, p = list(_held(patient.module).values()), images.shape[1] * ph * pw
    limit = patient.tolerance * (1 + y.abs().max())

    def difference(state: State) -> float | None:
        made = state["tokens"]
        gap = float((made - y).abs().max()) if made.shape == y.shape else torch.inf
        return gap if gap <= limit else None

    none = torch.zeros(1, n + 1 + b, e, dtype=y.dtype)  # the others end in rows without numbers
    tables = [F.pad(table, (0, 0, 0, 1 + b), value=nan) for table in _tables(held, n, e)]
    state = {
        "images": images,
        "sizes": sizes,
        "learns": patient.is_module,
        "class_token": rows > n,
        "projections": [
            Form(lambda x, w=weight, bias=bias, norm=norm: F.linear(norm(x), w, bias))
            for weight, bias in _projections(patient, p, e)
            for norm in _norms(patient, p)
        ],
        "norms": [Form(norm) for norm in _norms(patient, e)],
        "heads": [Form(join) for join in (_joins(held, e) if rows > n else [nn.Identity()])],
        "tables": [Form(table) for table in (none, *tables)],
    }
    return simplest(EMBEDDING, state, difference)


def _norms(patient: Patient, width: int) -> list[nn.Module]:
    """Return no norm, and the norms of this width inside a module."""
    parts = patient.module.modules() if patient.is_module else ()
    kinds = (part for part in parts if isinstance(part, nn.LayerNorm))
    return [nn.Identity(), *(part for part in kinds if part.normalized_shape == (width,))]


def _projections(patient: Patient, p: int, e: int) -> list[tuple[Tensor, Tensor | None]]:
    """Return what may project patches: weights (e, p) with their bias, or the identity."""
    found = [(torch.eye(p, dtype=patient.dtype), None)] if e == p else []
    for part in patient.module.modules() if patient.is_module else ():
        own = [*part.parameters(recurse=False)]
        biases = [t for t in own if t.shape == (e,)] or [None]
        flat = [t.flatten(1) for t in own if t.ndim > 1]
        flat = [t for t in (*flat, *(t.mT for t in flat)) if t.shape == (e, p)]
        found += [(t, bias) for t in flat for bias in biases]
    return found


def _joins(held: list[Tensor], e: int) -> Iterator[Join]:
    """Yield what may put a class token before the patches, or after them."""
    for t in held:
        if t.shape[-1:] == (e,) and t.numel() == e:
            token = t.reshape(1, 1, e)
            yield lambda x, token=token: torch.cat([token.expand(len(x), -1, -1), x], dim=1)
            yield lambda x, token=token: torch.cat([x, token.expand(len(x), -1, -1)], dim=1)


def _tables(held: list[Tensor], n: int, e: int) -> Iterator[Tensor]:
    """Yield what may be a table of positions, as (1, rows, e)."""
    for t in held:
        rows = t[None] if t.ndim == 2 else t
        rows = rows.transpose(0, 1) if rows.ndim == 3 and rows.shape[1] == 1 else rows
        if rows.ndim == 3 and rows.shape[0] == 1 and rows.shape[2] == e and rows.shape[1] >= n:
            yield rows


def _failing(
    patient: Patient, images: Tensor, y: Tensor, sizes: tuple[int, int, int]
) -> Iterator[str]:
    """Yield the properties that do not hold; see `_report`."""
    one = images.clone()
    one[:, :, : sizes[1], : sizes[2]] += 1.0
    if not y.isfinite().all():
        yield "the output holds numbers: it has NaN or infinity"
    elif torch.equal(y, patient.run(patient.tokens(*images.shape, seed=3))):
        yield "the output depends on the images"
    elif int(((patient.run(one) - y).abs().amax(dim=(0, 2)) > 1e-9).sum()) != 1:
        yield "one patch makes one token: changing a patch changes other tokens"
