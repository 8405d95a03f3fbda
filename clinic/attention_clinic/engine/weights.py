"""Read the projections of an attention from its parameters, whatever they are called."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

# Words that say nothing about what a layer is for.
NOISE = re.compile(r"weights?|bias|projections?|proj|linears?|layers?|lin|matrix|net|to|[wb_\d#]")
ROLES = {
    "q": {"q", "query", "queries", "qs", "que", "qry", "fcq"},
    "k": {"k", "key", "keys", "ks", "fck"},
    "v": {"v", "value", "values", "vs", "val", "fcv"},
    "o": {
        "o",
        "out",
        "output",
        "unifyheads",
        "unify",
        "dense",
        "fc",
        "fcout",
        "final",
        "c",
        "mix",
        "concat",
    },
    "kv": {"kv"},
    "qk": {"qk"},
    "qkv": {"qkv", "in", "cattn", "querykeyvalue"},
    "kqv": {"kqv"},
}
# words that may stand beside one that says it: q_for_heads, key_transform, attn_value
BESIDE = re.compile(
    r"(for|of|all|self|multi|mha?|heads?|att|attn|attention|transform(ation)?|map(ping|per)?|gen"
    r"|generator|inputs?)$"
)
SAYING = {w: r for r in ("q", "k", "v", "kv", "qkv") for w in ROLES[r] - {"in"}}
SAYING |= dict.fromkeys(("out", "output"), "o")
FAINT, MOST_GROWN = 0.3, 100.0  # gains below which tokens are made larger, and how much at most


@dataclass(frozen=True)
class Source:
    """One weight with its bias, as it lies in the module.

    Args:
        name: of the weight.
        weight: two axes or more.
        bias: or None.
        forms: the orientations it may have: "oi" (output, input) as nn.Linear, or "io".
        role: what its name says: q, k, v, o, kv, qkv, "q?" for a guess, or "" for nothing.
    """

    name: str
    weight: Tensor
    bias: Tensor | None
    forms: tuple[str, ...]
    role: str


def role(name: str) -> str:
    """Return what the name of a weight says about its purpose, "" when it says nothing."""
    parts = [part for part in name.lower().split(".") if part not in ("weight", "bias")]
    for part in reversed(parts):
        if part.isdigit():
            continue
        if "c_attn" in part or "in_proj" in part:
            return "qkv"
        word = NOISE.sub("", part)
        for found, words in ROLES.items():
            if word in words:
                return found
        if word == "" and part:
            return "o" if re.search(r"proj|linear|layer|lin\b|wo?$", part) else ""
        words = [w for w in re.split(r"[_\d]+", part) if NOISE.sub("", w) and not BESIDE.match(w)]
        return SAYING.get(NOISE.sub("", words[0]), "") if len(words) == 1 else ""
    return ""


def gain_of(weight: Tensor) -> float:
    """Return about how large a matrix makes numbers around 1."""
    return float(weight.double().square().mean().sqrt()) * min(weight.shape[-2:]) ** 0.5


def growth_for(weights: Mapping[str, object] | None) -> float:
    """Return what tokens must be multiplied by so that small weights make no tiny numbers.

    Args:
        weights: handed over with a function; None for a module, which gets random ones.
    """
    matrices = [w for w in (weights or {}).values() if isinstance(w, Tensor) and w.ndim > 1]
    gains = sorted(gain_of(w) for w in matrices)
    middle = gains[len(gains) // 2] if gains else 1.0
    return min(1 / middle, MOST_GROWN) if 0 < middle < FAINT else 1.0


def sources_of(module: nn.Module | dict[str, Tensor]) -> list[Source]:
    """Return the weights of a module, or of a dictionary, that have two axes or more."""
    if isinstance(module, dict):
        return _raw(dict(module))
    found: list[Source] = []
    kinds = {p.dtype for p in module.parameters()}
    for prefix, part in module.named_modules():
        dot = f"{prefix}." if prefix else ""
        own = dict(part.named_parameters(recurse=False))
        kind = type(part).__name__
        weight, bias = own.get("weight"), own.get("bias")
        if isinstance(part, nn.Linear) or (kind == "Linear" and weight is not None):
            # who writes a Linear of their own may hold it as (in, out)
            forms = ("oi",) if isinstance(part, nn.Linear) or weight.ndim != 2 else ("oi", "io")
            found.append(Source(f"{dot}weight", part.weight, bias, forms, role(f"{dot}weight")))
        elif kind == "Conv1D" and weight is not None:  # GPT-2's
            found.append(Source(f"{dot}weight", weight, bias, ("io",), role(f"{dot}weight")))
        elif weight is not None and _of_one_pixel(part, weight):
            flat = weight.flatten(1)
            found.append(Source(f"{dot}weight", flat, bias, ("oi",), role(f"{dot}weight")))
        elif isinstance(part, nn.MultiheadAttention):
            named = {k: v for k, v in own.items() if v is not None}
            joint = named.get("in_proj_bias")
            if (
                "q_proj_weight" in named and joint is not None
            ):  # kdim or vdim: three layers, one bias
                parts = joint.chunk(3)
                named |= {f"{n}_proj_bias": bias for n, bias in zip("qkv", parts, strict=True)}
            found += [
                Source(s.name, s.weight, s.bias, ("oi",), s.role) for s in _raw(named, prefix=dot)
            ]
        else:
            plain = {
                name: value
                for name, value in vars(part).items()
                if isinstance(value, Tensor) and value.is_floating_point() and value.ndim > 0
            }
            plain |= dict(kept_matrices(part))
            plain |= {
                name: value
                for name, value in part.named_buffers(recurse=False)
                if value.is_floating_point()
                and value.ndim == 2
                and not _hides_the_future(value)
                and (not kinds or value.dtype in kinds)  # else it was made while it ran
            }
            found += _raw(own | plain, prefix=dot)
    found = [s for s in found if s.weight.numel()]  # a layer of no numbers makes nothing
    return _with_biases_beside(found, module)


def kept_matrices(part: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield the matrices that a part keeps in a dictionary, under names that say what they are for.

    Args:
        part: of a module; nothing there registers them.
    """
    for name, held in vars(part).items():
        if name.startswith("_") or not isinstance(held, dict):
            continue
        for key, value in held.items():
            matrix = isinstance(value, Tensor) and not isinstance(value, nn.Parameter)
            matrix = matrix and value.is_floating_point() and value.ndim == 2
            if matrix and role(f"{name}.{key}"):
                yield f"{name}.{key}", value


def _of_one_pixel(part: nn.Module, weight: Tensor) -> bool:
    """Say whether a layer is a convolution of one pixel, PyTorch's or one of somebody's own."""
    conv = isinstance(part, nn.Conv1d | nn.Conv2d) or "conv" in type(part).__name__.lower()
    one = weight.ndim in (3, 4) and set(weight.shape[2:]) == {1}
    return conv and one and getattr(part, "groups", 1) == 1


def _hides_the_future(t: Tensor) -> bool:
    """Say whether a table is a mask, which may be as wide as a head: a triangle, or -inf."""
    triangle = t.shape[0] == t.shape[1] and any(
        torch.equal(one, torch.ones_like(t).tril()) for one in (t, 1 - t.mT, t.mT, 1 - t)
    )
    return triangle or bool((t <= -1e4).any())


def _with_biases_beside(found: list[Source], module: nn.Module) -> list[Source]:
    """Give layers the biases that stand beside them: BEiT's queries and values have some."""
    made = list(found)
    for prefix, part in module.named_modules():
        own = {
            **dict(part.named_parameters(recurse=False)),
            **dict(part.named_buffers(recurse=False)),
        }
        made = _with_own_biases(made, prefix, own)
        q, k, v = (own.get(f"{name}_bias") for name in "qkv")
        if not isinstance(q, Tensor) or not isinstance(v, Tensor):
            continue
        joint = torch.cat([q, torch.zeros_like(q) if k is None else k, v])
        for number, source in enumerate(made):
            beside = source.name == f"{prefix}.qkv.weight".lstrip(".")
            if beside and source.bias is None and source.weight.shape[0] == joint.numel():
                made[number] = replace(source, bias=joint)
    return made


def _with_own_biases(found: list[Source], prefix: str, own: dict[str, Tensor]) -> list[Source]:
    """Give layers of queries, keys and values the biases of their holder, (f) or (h, d).

    Args:
        found: the sources of a module.
        prefix: the path of a part that holds layers.
        own: the tensors that it holds beside them.
    """
    beside = {role(name): name for name, t in own.items() if t.ndim <= 2 and _says_bias(name)}
    dot, made, taken = f"{prefix}." if prefix else "", list(found), set[str]()
    for number, source in enumerate(found):
        layer = source.name.removesuffix(".weight")
        name = beside.get(source.role)
        alone = source.bias is None and source.forms == ("oi",) and source.role in ("q", "k", "v")
        if name is None or not alone or layer.rpartition(".")[0] != prefix or layer == source.name:
            continue
        if own[name].numel() == source.weight.shape[0]:
            made[number] = replace(source, bias=own[name].flatten())
            taken.add(dot + name)
    if "q" not in beside or dot + beside["q"] not in taken:  # fairseq's are one more key and value
        return found
    return [source for source in made if source.name not in taken]


def _says_bias(name: str) -> bool:
    """Say whether a name is that of a bias: bQ, b_q, q_b, q_bias."""
    return bool(re.search(r"bias|(?<![a-z])b(?=_?[a-z\d]|$)", name.lower()))


def _raw(tensors: dict[str, Tensor], prefix: str = "") -> list[Source]:
    """Return sources of bare tensors; a bias belongs to the weight whose name fits."""
    biases = {name: t for name, t in tensors.items() if t.ndim == 1 or "bias" in name.lower()}
    weights = {_bare(name) for name, t in tensors.items() if t.ndim > 2}
    for name, t in tensors.items():  # b_Q (h, d) beside W_Q (h, e, d)
        if t.ndim == 2 and _says_bias(name) and _bare(name) in weights:
            biases[name] = t
    found = []
    for name, weight in tensors.items():
        if weight.ndim < 2 or name in biases or not weight.is_floating_point():
            continue
        if weight.ndim == 3 and weight.shape[0] == 1:
            weight = weight[0]
        if weight.ndim == 4 and 1 in weight.shape[:2]:  # (1, h, e, d), or (h, 1, e, d)
            weight = weight.squeeze(weight.shape.index(1))
        key, bias = _bare(name), None
        for other, value in biases.items():
            fits = value.numel() in weight.shape or value.ndim > 1
            if _bare(other) == key and fits:
                bias = value
        forms = ("oi", "io") if weight.ndim == 2 else ("",)
        found.append(Source(prefix + name, weight, bias, forms, role(prefix + name)))
    return found


def _bare(name: str) -> str:
    """Return a name without what tells a weight from its bias."""
    return re.sub(r"weights?|bias|kernel|(?<![a-z])[wb](?=_?[a-z\d]|$)|_", "", name.lower())


def joined_heads(sources: list[Source], num_heads: int, width: int) -> list[Source]:
    """Stack the weights of heads that are modules of their own: heads.0.key, heads.1.key, ...

    Args:
        sources: the weights of a module.
        num_heads: h.
        width: of a token, e; a head that reads its own slice has a square layer of e / h.
    """
    groups: dict[str, list[Source]] = {}
    for source in sources:
        groups.setdefault(re.sub(r"\d+", "#", source.name), []).append(source)
    lists = [group for group in groups.values() if len(group) == num_heads]
    result = []
    for pattern, group in groups.items():
        first = group[0]
        same = all(s.weight.shape == first.weight.shape and s.forms == first.forms for s in group)
        apart = len(group) == num_heads > 1 and same and "#" in pattern
        shape = first.weight.shape
        # a list of square ones may be q, k, v and out: another list beside it says that it is not
        several = sum(other[0].weight.shape == shape for other in lists) > 1
        # and so does one of other sizes in the same modules: values may be as wide as the token
        several |= any(_beside(pattern, shape, *other) for other in groups.items())
        fits = shape[0] != shape[-1] or shape[0] * num_heads == width or several
        if apart and len(shape) == 2 and fits:
            result.append(_stacked(pattern, group, first.role))
            continue
        if len(group) == 3 * num_heads > 3 and same and "#" in pattern and shape[0] != shape[-1]:
            for start, named in enumerate("qkv"):  # head by head, or one after another
                apart_, row = group[start::3], group[start * num_heads :][:num_heads]
                result.append(_stacked(f"{pattern} ({start}, 3 on)", apart_, f"{named}?"))
                result.append(_stacked(f"{pattern} (third {start})", row, ""))
            continue
        roles = {3: "qkv", 4: "qkvo"}.get(len(group), "")
        for number, source in enumerate(group):
            # self.linears = nn.ModuleList of four: the order is the only name, a guess ("q?")
            guess = "#" in pattern and roles and same and source.role in ("", "o")
            named = f"{roles[number]}?" if guess else source.role
            result.append(Source(source.name, source.weight, source.bias, source.forms, named))
    return result


def _stacked(name: str, group: list[Source], named: str) -> Source:
    """Return the layers of heads as one."""
    weight = torch.stack([s.weight for s in group])
    bias = (
        None
        if group[0].bias is None
        else torch.stack([s.bias for s in group if s.bias is not None])
    )
    return Source(name, weight, bias, group[0].forms, named)


def _beside(pattern: str, shape: torch.Size, other: str, group: list[Source]) -> bool:
    """Say whether a list of layers is that of keys beside values as wide as a token."""
    whole = group[0].weight.shape
    return (
        other.partition("#")[0] == pattern.partition("#")[0]
        and other != pattern
        and whole[-1] == shape[-1]
        and len(whole) == 2
        and 1 < whole[0] < shape[0]
        and role(pattern) == "v"
    )


def apart_from_gates(sources: list[Source], num_heads: int) -> tuple[list[Source], list[Source]]:
    """Cut layers of queries that are twice as wide as what the output layer takes.

    Args:
        sources: the weights of a module.
        num_heads: h.

    Returns:
        What may be queries alone, and what may be their gates: halves, or halves of each head.
    """
    inner = {size for s in sources if s.role == "o" for size in s.weight.shape[-1:]}
    queries, gates = [], []
    for source in sources:
        wide = source.weight.shape[0] // 2
        if source.role != "q" or "oi" not in source.forms or wide not in inner:
            continue
        rows = torch.arange(2 * wide)
        ways = [rows.view(2, wide)]
        if wide % num_heads == 0:
            ways.append(rows.view(num_heads, 2, -1).transpose(0, 1).flatten(1))
        for first, second in ways:
            for said, picked, kind in (("queries", first, queries), ("gate", second, gates)):
                bias = None if source.bias is None else source.bias[picked]
                name = f"{source.name} ({said})"
                role = "q" if said == "queries" else "gate"
                kind.append(Source(name, source.weight[picked], bias, ("oi",), role))
    return queries, gates


class Silent:
    """Numbers of a module that are 0 for a while.

    Args:
        values: weights and biases.
    """

    def __init__(self, values: list[Tensor]) -> None:
        self.values = values

    @classmethod
    def of(cls, sources: list[Source]) -> Silent:
        """Return what silences sources, biases and all."""
        return cls([s.weight for s in sources] + [s.bias for s in sources if s.bias is not None])

    def __enter__(self) -> None:
        self.before = [value.clone() for value in self.values]
        for value in self.values:
            value.zero_()

    def __exit__(self, *_: object) -> None:
        for value, before in zip(self.values, self.before, strict=True):
            value.copy_(before)
