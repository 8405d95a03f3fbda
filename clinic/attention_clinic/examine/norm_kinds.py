"""The norms that a module holds, by the numbers that they give."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic.engine.modes import Widened
from attention_clinic.examine.leaves import has_parts
from attention_clinic.examine.part_kinds import ROUGH, eps_held, norm_kind

FORMULAS = {"rms-eps", "norm-bessel", "rms-mean", "rms-inverted", "norm-formula"}  # of a norm
EXACT = 1e-9  # the largest difference that counts as equal, in double precision
EPS = (1e-5, 1e-6, 1e-8, 1e-12, 1e-3)  # the last where tokens are not single precision


class OverChannels(nn.Module):
    """A norm that takes channels first, of tokens (b, n, e).

    Args:
        norm: a GroupNorm, whose groups are of the numbers of all tokens; or one of one's own.
        image: whether it takes images, (b, c, h, w).
    """

    def __init__(self, norm: nn.Module, image: bool = False) -> None:
        super().__init__()
        self.norm, self.image = norm, image

    def forward(self, tokens: Tensor) -> Tensor:
        flat = tokens.flatten(0, -3).mT  # of several readings at once, perhaps
        # guided diffusion's casts to single precision, whatever its weights are
        with Widened() if tokens.dtype == torch.float64 else nullcontext():
            made = self.norm(flat[..., None])[..., 0] if self.image else self.norm(flat)
        return made.mT.view(tokens.shape)


@dataclass(frozen=True)
class Norm:
    """One norm of a module.

    Args:
        run: takes tokens (b, n, e).
        called: the module's own, which a hook hears.
        kind: in words.
        ids: the mistakes that it is.
    """

    run: nn.Module
    called: nn.Module
    kind: str
    ids: tuple[str, ...] = ()


def norms_of(module: nn.Module, width: int) -> list[Norm]:
    """Return the norms of tokens that a module holds.

    Args:
        module: the copy.
        width: of the tokens that they take.
    """
    found = []
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):  # with weights or without
            fits = part.normalized_shape == (width,)
            found += [Norm(part, part, "a LayerNorm")] * fits
            continue
        if isinstance(part, nn.GroupNorm):
            fits = part.num_channels == width
            found += [Norm(OverChannels(part), part, "a GroupNorm")] * fits
            continue
        own = list(part.parameters())
        if 0 < len(own) < 3 and len({p.shape for p in own}) == 1 and not has_parts(part):
            flat, shape = [p.flatten() for p in own], tuple(own[0].shape)
            images = shape in ((1, width, 1, 1), (width, 1, 1))
            if not images and shape not in ((width,), (1,)):
                continue
            over = [OverChannels(part, image) for image in (True, False)]  # it may view its weight
            for run in over[:1] if images else (part, *over):
                kind, ids = _kind(run, flat, width, part)
                if not kind and run is part and "norm" in type(part).__name__.lower():
                    kind, ids = _wrong(part, flat[0], width)
                if kind:
                    found.append(Norm(run, part, kind, ids))
                    break
    return found


def weight_first(part: nn.Module, own: list[Tensor], width: int) -> list[Tensor]:
    """Return the parameters of a norm, its weight before its bias, however they are called.

    Of tokens that are 0, a norm leaves the bias.

    Args:
        part: the norm.
        own: its parameters.
        width: of the tokens that it takes.
    """
    if len(own) != 2:
        return own
    zeros = torch.zeros(1, 2, width, dtype=own[0].dtype)
    try:
        left = part(zeros)
    except Exception:
        return own
    if not isinstance(left, Tensor) or left.shape != zeros.shape:
        return own
    first, second = (torch.allclose(left, p.expand_as(left).to(left)) for p in own)
    return own[::-1] if first and not second else own


def _kind(
    part: nn.Module, own: list[Tensor], width: int, said: nn.Module
) -> tuple[str, tuple[str, ...]]:
    """Return the norm that a module is, and its mistakes; "" when it is none.

    Args:
        part: takes tokens.
        own: its parameters, (e,) each.
        width: of the tokens, e.
        said: the module, whose numbers may be an epsilon.
    """
    weight, *rest = weight_first(part, own, width)
    bias = rest[0] if rest else None
    x = torch.randn(2, 3, width, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    x = x.to(weight.dtype)
    try:
        y = part(x)
    except Exception:
        return "", ()
    if not isinstance(y, Tensor) or y.shape != x.shape:
        return "", ()
    centred = x - x.mean(dim=-1, keepdim=True)
    for eps in dict.fromkeys((*eps_held(said), *EPS)):
        made = F.layer_norm(x, (width,), None, None, eps) * weight
        if _equal(made if bias is None else made + bias, y):
            return "a LayerNorm", ()
        if bias is None:
            if any(_equal(F.rms_norm(x, (width,), None, eps) * w, y) for w in (weight, 1 + weight)):
                return "an RMSNorm", ()
            continue
        for unbiased in (True, False) if width > 1 else ():
            variance = x.var(dim=-1, keepdim=True, unbiased=unbiased)
            for root in (variance.sqrt() + eps, (variance + eps).sqrt()):
                if _equal(centred / root * weight + bias, y):
                    return "a LayerNorm", ("norm-bessel",)
    return "", ()


def _wrong(part: nn.Module, like: Tensor, width: int) -> tuple[str, tuple[str, ...]]:
    """Return what is called a norm and follows a formula that is mistaken for one, as `_kind`."""
    x = torch.randn(5, 7, width, generator=torch.Generator().manual_seed(5)).to(like)
    try:
        kind = norm_kind(part, x, ROUGH if like.dtype == torch.float32 else EXACT)
    except Exception:
        return "", ()
    named = kind is not None and bool(kind.ids) and set(kind.ids) <= FORMULAS
    return ("a norm", kind.ids) if kind is not None and named else ("", ())


def _equal(first: Tensor, second: Tensor) -> bool:
    return torch.allclose(first, second, rtol=1e-6, atol=1e-8)
