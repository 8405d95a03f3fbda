"""What a module says of its scores by its numbers: factors, caps, temperatures."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BENDS, Caps, Mixer, Opener, Places, QueryNorms, Scale
from attention_clinic.engine.constants import is_number, read_outside
from attention_clinic.engine.copies import origin_of
from attention_clinic.engine.heard import Heard, heard, reached
from attention_clinic.engine.weights import apart_from_gates, role, sources_of
from attention_clinic.examine.leaves import equal_tensors, looks_like_a_norm
from attention_clinic.examine.modern import configs, holders, named, query_norms

FACTORS = ("attention_multiplier", "softmax_scale")
CAP_NAMES = re.compile(r"(attn|attention)_?(logits?_?)?(soft_?)?cap(ping)?(_value)?")
OWN_CAP_NAMES = re.compile(r"(logits?_?)?soft_?cap(ping)?|logit_?cap")
TEMPERATURES = re.compile(r"scale|temperature|tau|gain")
TEMPERED = re.compile(r"temperature|(^|_)(tau|temp)$")  # numbers, not learned
SCALES = re.compile(r"scal|sqrt|norm_fact|temperature|temper$|divisor|inv_norm")
GATES = re.compile(r"gate|gating|(^|[._])(w_?|linear_?|to_?)?g(_proj|ate)?[._]")
UNSCALED = ("relative_attention_num_buckets",)  # T5 and its relatives
UNSCALED_MODELS = {"gpt_neo"}
DISTANCES = re.compile(r"rel|dist|pos|emb|^e$|^e_?r$")  # names of vectors for distances
SHIFTS = re.compile(r"bias|shift|offset|^b$")  # names of what is added to all scores
CHANNELS = re.compile(r"channel|covariance|transposed|xca|mdta", re.IGNORECASE)  # who means them
FEW = 4  # layers over places
LEAST = 4  # width of a head whose root is told from the chance of the first weights
NEAR = 0.3  # by which the mean squares of first weights may differ
HOTTEST = math.log(100.0)


def factors(module: nn.Module, e: int, num_heads: int) -> tuple[float, ...]:
    """Return the factors of the scores that the configuration of a module sets.

    Args:
        module: the copy.
        e: width of the tokens.
        num_heads: h.
    """
    found = [*_tempered(module, e, num_heads)]
    for holder in configs(module):
        held = named(holder)
        found += [float(held[name]) for name in FACTORS if is_number(held.get(name))]
        width = held.get("query_pre_attn_scalar")
        found += [float(width) ** -0.5] if is_number(width) and width > 0 else []
    for value in getattr(module, "handed", ()):  # a kernel that the clinic gave its layers
        found += [value, 1 / value]
    return tuple(dict.fromkeys(found))


def _tempered(module: nn.Module, e: int, h: int) -> Iterator[float]:
    """Yield the usual factor with a temperature beside it: a number that is no power of a size."""
    held = [pair for holder in holders(module) for pair in named(holder).items()]
    told = {float(v) for name, v in held if TEMPERED.search(name) and is_number(v)}
    told |= {value for name, value in read_outside(module) if TEMPERED.search(name.lower())}
    sizes = [size**power for size in (1, e, e / h) for power in (-1, -0.5, 0.5, 1)]
    for number in sorted(told):
        if number > 0 and not any(math.isclose(number, size, rel_tol=1e-3) for size in sizes):
            yield from ((h / e) ** 0.5 * by for by in (1 / number, number))


def caps(module: nn.Module) -> Caps | None:
    """Return the soft caps that a module and its configuration hold."""
    said = [
        float(value)
        for holder in configs(module)
        for name, value in named(holder).items()
        if CAP_NAMES.fullmatch(name) and is_number(value) and value > 0
    ]
    own = [
        float(value)
        for part in module.modules()
        for name, value in vars(part).items()
        if (CAP_NAMES.fullmatch(name) or OWN_CAP_NAMES.fullmatch(name))
        and is_number(value)
        and value > 0
    ]
    found = tuple(dict.fromkeys([*said, *own]))
    return Caps(found, bool(said)) if found else None


def temperatures(module: nn.Module, num_heads: int) -> Iterator[float | Tensor]:
    """Yield what cosines may be multiplied by: the module's own numbers, one or one for each head.

    Args:
        module: the copy.
        num_heads: h.
    """
    yield 1.0
    for holder in holders(module):
        for name, value in named(holder).items():
            if TEMPERATURES.search(name) and is_number(value) and value > 0:
                yield float(value)
    for part in module.modules():
        held = [*part.named_parameters(recurse=False), *part.named_buffers(recurse=False)]
        for name, value in held:
            if not TEMPERATURES.search(name) or value.numel() not in (1, num_heads):
                continue
            by_head = value.reshape(-1, 1, 1)
            yield by_head
            yield by_head.exp()
            yield by_head.clamp(max=HOTTEST).exp()
            yield 1 / by_head


def is_unscaled(module: nn.Module, num_heads: int) -> bool:
    """Say whether a module is of a kind whose queries start smaller, and are not scaled.

    Its name says so, or the weights that it begins with: those of the keys divided by the root of
    the width of one head.

    Args:
        module: the copy.
        num_heads: h.
    """
    held = [named(holder) for holder in holders(module)]
    if any(
        one.get("model_type") in UNSCALED_MODELS or any(name in one for name in UNSCALED)
        for one in held
    ):
        return True
    starts = {
        role(name): origin_of(p).detach()
        for name, p in module.named_parameters()
        if p.ndim == 2 and p.is_floating_point()
    }
    if "q" not in starts or "k" not in starts or starts["q"].shape[0] % num_heads:
        return False
    d = starts["q"].shape[0] // num_heads
    queries, keys = (float(starts[name].double().square().mean()) for name in ("q", "k"))
    return d >= LEAST and math.isclose(queries * d, keys, rel_tol=NEAR)


def prepared(module: nn.Module) -> tuple[tuple[str, float], ...]:
    """Return the numbers of a module that are called a scale, with their names."""
    found = []
    for part in module.modules():
        held = [*vars(part).items(), *part.named_buffers(recurse=False)]
        for name, value in held:
            single = isinstance(value, Tensor) and value.numel() == 1
            if SCALES.search(name.lower()) and (is_number(value) or single):
                found.append((name, float(value)))
    return tuple(found)


def mixers(module: nn.Module, num_heads: int) -> Iterator[Mixer]:
    """Yield the layers of a module that may mix its heads, in both directions."""
    norms: list[nn.Module | None] = [
        part
        for part in module.modules()
        if (isinstance(part, nn.LayerNorm) and part.normalized_shape == (num_heads,))
        or (isinstance(part, nn.BatchNorm2d) and part.num_features == num_heads)
    ]
    for part in module.modules():
        bias = getattr(part, "bias", None)
        bias = bias if isinstance(bias, Tensor) and bias.shape == (num_heads,) else None
        for _, weight in part.named_parameters(recurse=False):
            flat = weight.squeeze()
            if num_heads > 1 and flat.shape == (num_heads, num_heads):
                for norm in norms[:2] or [None]:
                    yield Mixer(flat, bias, norm)
                    yield Mixer(flat.T, bias, norm)


def openers(module: nn.Module, num_heads: int, bends: set[str]) -> Iterator[Opener]:
    """Yield the layers of a module that may make a gate of its heads.

    Args:
        module: the copy.
        num_heads: h.
        bends: the names of what may bend them, as heard.
    """
    if not bends:
        return
    sources = sources_of(module)
    held = [s for s in sources if s.weight.ndim == 2 and GATES.search(s.name.lower())]
    for source in (*held, *apart_from_gates(sources, num_heads)[1]):
        for bend in BENDS:
            if bend in bends:
                yield Opener(source, bend)


def distances(module: nn.Module) -> Iterator[Tensor]:
    """Yield the tables of vectors of a module that may stand for distances: no layer's weights."""
    for part in module.modules():
        if isinstance(part, nn.Embedding) or not type(part).__module__.startswith("torch.nn"):
            for name, held in part.named_parameters(recurse=False):
                said = isinstance(part, nn.Embedding) or DISTANCES.search(name.lower())
                if said and held.ndim in (2, 3) and held.shape[-2] > 1:
                    yield held.detach()


def sinks(module: nn.Module, num_heads: int) -> Iterator[Tensor]:
    """Yield the numbers, one for each head, that may be sinks."""
    for name, parameter in module.named_parameters():
        if "sink" in name.lower() and parameter.numel() == num_heads:
            yield parameter.flatten()


def shifts(module: nn.Module, num_heads: int) -> Iterator[float | Tensor]:
    """Yield the numbers of a module, one or one for each head, that may be added to all scores."""
    for part in module.modules():
        own = *part.named_parameters(recurse=False), *part.named_buffers(recurse=False)
        for name, held in (*named(part).items(), *own):
            if not SHIFTS.search(name.lower()):
                continue
            if is_number(held):
                yield float(held)
            elif isinstance(held, Tensor) and held.numel() in (1, num_heads):
                yield held.detach().reshape(-1, 1, 1)


def places(
    module: nn.Module, n: int, weighed: list[Any], rows: int, keys: int | None
) -> Iterator[Places]:
    """Yield the layers of a module that may make other places of those of n tokens.

    Args:
        module: the copy.
        n: number of tokens.
        weighed: the shapes of what its softmax got.
        rows: how many matrices of scores there are, those of all heads and samples.
        keys: number of tokens of a context, or None.
    """
    whole = [s for s in weighed if len(s) > 2 and s[-2] == n and math.prod(s[:-2]) == rows]
    apart = [s for s in weighed if len(s) == 3 and s[1] == n and s[0] * len(weighed) == rows]
    counts = {s[-1] for s in (*whole, *apart) if s[-1] not in (n, keys)}
    if apart and counts:  # heads that are modules of their own have matrices of their own
        named: dict[str, list[Tensor]] = {}
        for name, weight in module.named_parameters():
            if weight.ndim == 2:
                named.setdefault(re.sub(r"\d+", "#", name), []).append(weight)
        for held in named.values():
            if len(held) == len(weighed) and len({t.shape for t in held}) == 1:
                stacked = torch.stack([t.detach() for t in held])
                for t in (stacked, stacked.mT):
                    if t.shape[-1] in counts and t.shape[-2] >= n:
                        yield Places(t, None)
    for part in module.modules() if counts else ():
        own = dict(part.named_parameters(recurse=False))
        for name, weight in own.items():
            flat = weight.flatten(1).squeeze() if weight.ndim > 1 else weight
            bias = own.get("bias") if name == "weight" else None
            for t in (flat, flat.mT) if flat.ndim == 2 else ():
                fits = bias is None or bias.numel() == t.shape[1]
                if t.shape[1] in counts and len(t) >= n and fits:
                    yield Places(t, bias)


def known_of(
    module: nn.Module,
    run: Callable[[Tensor], Tensor],
    x: Tensor,
    num_heads: int,
    keys: int | None = None,
) -> dict[str, Any]:
    """Return what is known of norms, factors and caps before any form is tried.

    Args:
        module: the copy.
        run: calls it on tokens.
        x: tokens that it takes.
        num_heads: h.
        keys: number of tokens of a context, or None.
    """
    norms, capped = query_norms(module), caps(module)
    whole = x
    sounds, x = _heard_apart(run, whole, num_heads)
    weighed = sounds.weighed if x is whole else heard(run, whole).weighed
    without, n = tuple(dict.fromkeys(sounds.norms)), x.shape[1]
    alike = n * num_heads == x.shape[2]  # a matrix of tokens is as large as one of channels
    pairs = {(n, n), (n, keys)}
    paired = any(shape[-2:] in pairs for shape in sounds.weighed if len(shape) > 1)
    paired = paired and not (alike and len(sounds.weighed) == 2)  # of queries and keys, perhaps
    if norms is None and without:
        nothing = Scale(None, None)
        norms = QueryNorms(nothing, nothing, "", (), heard=without, sure=False)
    elif norms is not None and norms.q.weight is norms.k.weight is None and without:
        norms = replace(norms, heard=without)
    if sounds.bends:
        top = reached(run, x)
        more = (*(capped.values if capped else ()), *(() if top is None else (top,)))
        capped = Caps(tuple(dict.fromkeys(more)), capped is not None and capped.said)
    return {
        "query_norms": norms,
        "factors": factors(module, whole.shape[2], num_heads),
        "caps": capped,
        "unscaled": is_unscaled(module, num_heads),
        "prepared": prepared(module),
        "mixers": (
            *mixers(module, num_heads),
            *(Mixer(x.new_full((num_heads,) * 2, 1 / num_heads), None),) * sounds.averages,
        ),
        "distances": tuple(distances(module))[:FEW],
        "sinks": tuple(sinks(module, num_heads)),
        "openers": tuple(openers(module, num_heads, sounds.opens)),
        "places": tuple(places(module, whole.shape[1], weighed, len(whole) * num_heads, keys))[
            :FEW
        ],
        "tops": tuple(sounds.tops),
        "apart": sounds.apart,
        **_of_differences(module, sounds, pairs, num_heads, whole.shape[2] // num_heads),
        "pointwise": ()
        if sounds.weighed
        else tuple(sorted({name for name, sides in sounds.pointed if sides in pairs})),
        "shifts": tuple(shifts(module, num_heads))[:FEW],
        "by_channels": keys is None
        and any(s[-1] == s[-2] and (alike or s[-1] != n) for s in sounds.weighed if len(s) > 2),
        "means_channels": any(CHANNELS.search(type(part).__name__) for part in module.modules()),
        "strict": sounds.strict,
        "bare": sounds.read is not None and equal_tensors(sounds.read, x),
        "bent": tuple(sorted(sounds.bent)),
        "bent_behind": tuple(sorted(sounds.later if sounds.weighed else sounds.behind)),
        "is_linear": ()
        if paired
        else (*["softmax"] * bool(sounds.weighed), *sorted(sounds.positive)),
        "bare_scores": not (sounds.weighed or sounds.multiplied)
        and bool({*pairs, (1, n)} & sounds.compared),  # one token alone may ask
        "temperatures": tuple(temperatures(module, num_heads)) if norms is not None else (),
    }


def _of_differences(
    module: nn.Module, sounds: Heard, pairs: set[tuple[int, int | None]], h: int, d: int
) -> dict[str, Any]:
    """Return what is known of weights that are subtracted: times what, and what norms come then.

    Args:
        module: the copy.
        sounds: what it was heard to do.
        pairs: numbers of those who ask, and of those who are asked.
        h, d: heads, and the width of one.
    """
    if not pairs & {*sounds.weights}:
        return {}
    numbers = [
        t if isinstance(t, float) else t.reshape(-1, 1, 1)
        for t in sounds.afterwards
        if isinstance(t, float) or t.numel() in (1, h)
    ]
    norms = (
        part
        for path, part in module.named_modules()
        if looks_like_a_norm(path, part) and {p.numel() for p in part.parameters()} <= {d}
    )
    return {
        "subtracted": tuple(numbers),
        "afterwards": tuple(numbers),
        "norms_of_mixed": tuple(norms)[:FEW],
    }


def _heard_apart(
    run: Callable[[Tensor], Tensor], x: Tensor, num_heads: int
) -> tuple[Heard, Tensor]:
    """Listen to a module with tokens that are not as many as a head is wide, if it takes others.

    Else the shape of what a softmax gets would not tell pairs of tokens from tokens.
    """
    if x.shape[1] * num_heads == x.shape[2]:
        try:
            return heard(run, x[:, 1:]), x[:, 1:]
        except Exception:
            pass
    return heard(run, x), x
