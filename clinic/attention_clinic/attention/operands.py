"""Read queries, keys and values: from a factor of a product back to layers and their weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attention_clinic.attention.program import Lost, Operand, Program, Rotation
from attention_clinic.capture.run import ACTIVATIONS, FACTORS, LAYERS, SEVERAL, Run, varies
from attention_clinic.capture.tape import Event

LINEAR = {"mul", "div", "add", "sub", "rsub", "neg", "alias"}
STEPS, STEPS_BEFORE = 24, 60
# between the tokens and the projections: norms and positions
BEFORE_LAYERS = {
    *("native_layer_norm", "_fused_rms_norm", "add", "sub", "mul", "div", "mean", "var", "rsqrt"),
    *("pow", "sqrt", "std", "var_mean", "convolution", "native_group_norm", "native_batch_norm"),
    *("square", "linalg_vector_norm", "clamp_min", "alias", "_native_batch_norm_legit_no_training"),
}


def arguments(run: Run, ids: Tensor, makers: list[int]) -> list[object]:
    """Return the arguments of elementwise operations, tensors laid out like the result."""
    events = [run.events[m] for m in makers]
    made: list[object] = []
    for k, first in enumerate(events[0].args):
        if not isinstance(first, Tensor):
            if any(len(e.args) <= k or e.args[k] != first for e in events):
                raise Lost("constants differ")
            made.append(first)
            continue
        lookup = torch.full((run.tape.count,), -1)
        for event in events:
            if not isinstance(event.args[k], Tensor):
                raise Lost("arguments differ")
            try:
                lookup[event.out] = event.args[k].expand(event.out.shape)
            except RuntimeError as error:
                raise Lost("not elementwise") from error
        made.append(lookup[ids])
    return made


def read_operand(run: Run, ids: Tensor) -> Operand:
    """Return an operand (s, n, d) of a product; raise Lost at a step that is not understood."""
    trail, at = Operand(ids, run.values[ids]), ids
    for _ in range(STEPS):
        makers = run.makers(at)
        if not all(m < 0 or run.events[m].name in LAYERS for m in makers):
            at = _step(run, at, makers, trail)
            continue
        trail.ids = at
        _settle_norm(run, trail)
        if trail.weighted and not trail.norm:
            raise Lost("a learned factor without a norm")
        return trail
    raise Lost("too many steps")


def _step(run: Run, at: Tensor, makers: list[int], trail: Operand) -> Tensor:
    """Return the numbers before one step, which is added to the trail."""
    if trail.rotation is None and _mixes(run, at, makers):
        if trail.norm:
            raise Lost("a norm of rotated queries or keys")
        trail.rotation, at = _rotation(run, at)
        trail.factor *= _common_factor(trail.rotation)
        return at
    names = {run.events[m].name for m in makers if m >= 0}
    if -1 in makers or len(names) != 1:
        raise Lost("different steps for different heads")
    name = names.pop()
    if name == "native_layer_norm":
        return _layer_norm(run, at, makers, trail)
    if name not in LINEAR | ACTIVATIONS | {"nan_to_num", "clamp_min"}:
        raise Lost(f"queries, keys or values: {name}")
    args = arguments(run, at, makers)
    held = [k for k, a in enumerate(args) if isinstance(a, Tensor) and run.depends(a)]
    if len(held) == 2 and name in ("mul", "div"):
        return _normalized(run, at, name, args, trail)
    if len(held) != 1:
        raise Lost("two numbers of tokens meet")
    other = next((a for k, a in enumerate(args) if k != held[0]), None)
    value = run.number(other) if other is not None else None
    learned = isinstance(other, Tensor) and run.learned(other)
    several = learned and len(other.unique()) > 1  # type: ignore[union-attr]
    if name in ACTIVATIONS:
        trail.activation = name
    elif name in ("mul", "div") and value and not several:
        trail.factor *= value if name == "mul" else 1 / value
    elif name == "neg":
        trail.factor *= -1
    elif name in ("mul", "add") and learned:  # the weight of a norm, or a bias
        trail.weighted |= name == "mul"
    elif name not in ("alias", "nan_to_num"):
        raise Lost(f"queries, keys or values: {name}")
    return args[held[0]]  # type: ignore[return-value]


def _layer_norm(run: Run, at: Tensor, makers: list[int], trail: Operand) -> Tensor:
    """Go back through PyTorch's layer norm."""
    events = [run.events[m] for m in makers]
    if trail.norm or any(event.out.shape != event.args[0].shape for event in events):
        raise Lost("two norms, or a statistic of one")
    lookup = torch.full((run.tape.count,), -1)
    for event in events:
        lookup[event.out] = event.args[0]
        trail.weighted |= isinstance(event.args[2], Tensor)
    if math.prod(events[-1].args[1]) != at.shape[-1]:
        raise Lost("a norm over more than one head")
    trail.norm = "layer"
    return lookup[at]


def _normalized(run: Run, at: Tensor, name: str, args: list, trail: Operand) -> Tensor:
    """Go back through a division by a statistic of the numbers themselves."""
    reduced = [k for k in (0, 1) if not varies(args[k], 2)]
    if len(reduced) != 1 or (name != "mul" and reduced != [1]) or at.shape[2] == 1:
        raise Lost("two numbers of tokens meet")
    main = args[1 - reduced[0]]
    if trail.norm:
        raise Lost("two norms")
    trail.norm, trail.ratio = "rms", (run.values[main] / run.values[at]).square().mean(-1)
    return main


def _settle_norm(run: Run, trail: Operand) -> None:
    """Check a norm that is written by hand: it divides by the root mean square of a head."""
    if trail.ratio is None:
        return
    square = run.values[trail.ids].square().mean(-1)
    eps = (trail.ratio - square).mean()
    near = bool(((trail.ratio - square - eps).abs() < 1e-6 * (1 + square)).all())
    if not near or not -1e-6 <= eps < 1e-2:
        raise Lost("an unknown norm of queries or keys")


def _mixes(run: Run, at: Tensor, makers: list[int]) -> bool:
    """Return whether some of the numbers are sums of two numbers of tokens, as rotated ones are."""
    for event in (run.events[m] for m in makers if m >= 0):
        held = [t for t in event.read() if run.depends(t)]
        statistic = any(t.ndim > 0 and t.shape[-1] == 1 < at.shape[-1] for t in held)
        sums = event.name in ("add", "sub") and len(held) == 2 and not statistic
        if sums or (event.complex and event.name == "mul"):
            return True
    return False


def _parents(run: Run, ids: Tensor) -> Tensor:
    """Return the numbers of layers, norms or activations that each number is a linear mix of."""

    def stops(m: int) -> bool:
        if m < 0 or run.events[m].name in (*LAYERS, "native_layer_norm", *ACTIVATIONS):
            return True
        event = run.events[m]
        held = [t for t in event.read() if run.depends(t)]
        learns = any(run.learned(t) for t in event.read() if not run.depends(t))
        return learns or (not event.complex and event.name in ("mul", "div") and len(held) == 2)

    front = ids[:, None]
    for _ in range(STEPS):
        makers = [m for m in run.makers(front[front >= 0]) if not stops(m)]
        if not makers:
            return front
        columns = []
        parents = {m: _linear_parents(run, run.events[m]) for m in makers}
        for part in range(max(map(len, parents.values()))):
            every = torch.arange(run.tape.count)
            lookup = every if part == 0 else torch.full_like(every, -1)
            for m, parts in parents.items():
                lookup[run.events[m].out] = parts[part] if part < len(parts) else -1
            columns.append(torch.where(front >= 0, lookup[front.clamp(min=0)], -1))
        front = _distinct(torch.cat(columns, dim=1))
    raise Lost("too many steps")


def _linear_parents(run: Run, event: Event) -> list[Tensor]:
    """Return the numbers of tokens that each number of a linear operation reads."""
    if event.name not in LINEAR:
        raise Lost(f"queries or keys: {event.name}")
    found = []
    for t in event.read():
        if not run.depends(t):
            continue
        t = t.expand(event.out.shape)
        found += [t[..., :1].expand_as(t), t[..., 1:].expand_as(t)] if event.complex else [t]
    return found


def _distinct(front: Tensor) -> Tensor:
    """Remove double entries of each row and empty columns."""
    front = front.sort(dim=1, descending=True).values
    double = torch.zeros_like(front, dtype=torch.bool)
    double[:, 1:] = front[:, 1:] == front[:, :-1]
    front = front.masked_fill(double, -1).sort(dim=1, descending=True).values
    width = max(1, int((front >= 0).sum(1).max()))
    if width > 2:
        raise Lost("a number is made of more than two")
    return front[:, :width]


def _rotation(run: Run, at: Tensor) -> tuple[Rotation, Tensor]:
    """Go back through a rotation of pairs of numbers."""
    flat = at.unique()
    parents = _parents(run, flat)
    if parents.shape[1] == 1:
        raise Lost("a sum of a number with itself")
    parents = torch.where(parents < 0, parents[:, :1], parents).sort(dim=1).values
    token, sample = run.token[parents], run.sample[parents]
    if bool((token == SEVERAL).any()) or varies(token, 1) or varies(sample, 1):
        raise Lost("a rotation across tokens")
    # two numbers have the same parents: the first of them comes from the first parent
    pair = parents[:, 0] * run.tape.count + parents[:, 1]
    by = pair.argsort(stable=True)
    _, counts = pair[by].unique(return_counts=True)
    place = torch.arange(len(by)) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    size = counts.repeat_interleave(counts)
    single = parents[by, 0] == parents[by, 1]
    if bool((size != torch.where(single, 1, 2)).any()):
        raise Lost("a rotation that is not of pairs")
    own = torch.empty_like(flat)
    own[by] = parents[by].gather(1, place[:, None])[:, 0]
    other = torch.where(parents[:, 0] == own, parents[:, 1], parents[:, 0])
    matrix = _coefficients(run, flat, own, other)
    lookup = torch.full((run.tape.count,), -1)
    lookup[flat] = own
    return Rotation(own, other, matrix), lookup[at]


def _coefficients(run: Run, out: Tensor, own: Tensor, other: Tensor) -> Tensor:
    """Return the coefficients of two numbers in each result, (m, 2)."""
    before = torch.cat([own, other]).unique()
    low = torch.zeros(run.tape.count, dtype=torch.bool)
    low[torch.minimum(own, other)] = True
    generator = torch.Generator().manual_seed(1)
    probe = torch.randn(len(before), generator=generator, dtype=torch.float64)
    first, second, third = (
        run.again([(before, t)], out)
        for t in (low[before].double(), (~low[before]).double(), probe)
    )
    mine = torch.where(low[own], first, second)
    theirs = torch.where(own == other, 0.0, torch.where(low[own], second, first))
    a, b = (probe[torch.searchsorted(before, ids)] for ids in (own, other))
    if not torch.allclose(mine * a + theirs * b, third, rtol=1e-4, atol=1e-5):
        raise Lost("a rotation that is not linear")
    return torch.stack([mine, theirs], dim=-1)


def _common_factor(rotation: Rotation) -> float:
    """Return the length of the first rotation, and divide all by it."""
    lengths = rotation.matrix.square().sum(-1).sqrt()
    factor = float(lengths.median())
    if factor > 0 and bool(((lengths - factor).abs() < 1e-5 * factor).all()):
        rotation.matrix = rotation.matrix / factor
        return factor
    return 1.0


def read_sources(run: Run, p: Program) -> None:
    """Find the parameters that make queries, keys and values, and layers that heads share."""
    for name, side in p.sides.items():
        p.sources[name] = layer_names(run, side.ids)
        p.inner[name] = inner_layers(run, side.ids)
    if p.sizes[1] == 1 or p.split:
        return
    count = next(end - begin for name, begin, end in run.tape.given if name == "x")
    width = count // (run.y.shape[0] * run.y.shape[1])
    found = {_layers_of_heads(run, side, width, p.h) for side in p.sides.values()}
    p.layers = found.pop() if len(found) == 1 else ""
    if found:
        raise Lost("layers of heads differ between queries, keys and values")


def inner_layers(run: Run, ids: Tensor) -> frozenset[str]:
    """Return the weights of layers before the layer that makes these numbers; empty for tokens."""
    found: set[str] = set()
    todo, done = list(run.makers(ids)), set()
    layer = True  # the first events are the layer itself
    for _ in range(STEPS_BEFORE):
        events = [run.events[m] for m in todo if m >= 0 and m not in done]
        if not events:
            return frozenset(found)
        done |= set(todo)
        todo = []
        for event in events:
            place = FACTORS.get(event.name)
            if place is not None and not layer:
                weights = [t for t in event.read() if not run.depends(t)]
                found |= {run.name(t) for t in weights[-1:]}
                continue
            if place is None and event.name not in BEFORE_LAYERS:
                raise Lost(f"before the projections: {event.name}")
            held = [t for t in event.read() if run.depends(t)]
            todo += [m for t in held for m in run.makers(t)]
        layer = False
    raise Lost("too many steps before the projections")


def layer_names(run: Run, ids: Tensor) -> frozenset[str]:
    """Return the names of the weights that make numbers of a layer; bare tokens have their own."""
    names = set()
    for m in run.makers(ids):
        if m < 0:
            names |= {run.name(t) for t in ids.flatten()[run.producer[ids.flatten()] < 0][:1]}
            continue
        event = run.events[m]
        place = FACTORS.get(event.name, 0)
        tensors = event.args[place : place + 2]
        column = torch.full((run.tape.count,), -1)  # a packed layer makes all three
        column[event.out] = torch.arange(event.out.shape[-1]).expand(event.out.shape)
        seen = column[ids]
        for t in (t for t in tensors if isinstance(t, Tensor) and not run.depends(t)):
            part = (int(t.flatten()[0]), int(seen[seen >= 0].min()), int(seen.max()))
            names |= {f"{run.name(t)}:{one}" for one in part}
    return frozenset(names)


def _layers_of_heads(run: Run, side: Operand, width: int, h: int) -> str:
    """Return whether heads share one small layer, or project a slice of a token each."""
    weights = set()
    for m in run.makers(side.ids):
        if m < 0 or run.events[m].name not in FACTORS:
            return ""
        event = run.events[m]
        first, second = event.args[FACTORS[event.name] :][:2]
        if first.shape[-1] * h != width or run.depends(second):
            return ""
        weights |= set(second.reshape(-1, *second.shape[-2:])[:, 0, 0].tolist())
    if len(weights) == 1:
        return "head-shared-projection"
    return "head-own-slice" if len(weights) == h else ""
