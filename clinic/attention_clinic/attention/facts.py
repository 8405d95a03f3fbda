"""What a module says beyond its program, and properties of every attention."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from attention_clinic.attention.program import Lost, Program
from attention_clinic.attention.reading import weighted_products
from attention_clinic.capture.calling import POSITIONS, TABLES, parameters_of
from attention_clinic.capture.module import CallFailed
from attention_clinic.capture.run import Run
from attention_clinic.capture.trial import Trial, allowed
from attention_clinic.catalogue.rotary import misspaced

ROTARY_WORDS = ("rotary", "rope", "inv_freq", "freqs_c")
SCALE_WORDS = ("scal", "sqrt", "temper", "norm_fact")
KV_NAMES = ("num_kv_heads", "n_kv_heads", "n_kv_head", "num_key_value_heads", "kv_heads")


def complete(trial: Trial, run: Run, p: Program, whole: Run | None = None) -> None:
    """Fill in what the module itself says."""
    idle = bool(idle_weights(trial, whole or run))
    if p.sizes[1] > 1 and all(bool((t == t[:, :1]).all()) for t in p.numbers.values()):
        p.layers, p.groups = "heads-same", ""
    p.bare = any(name.split(":")[0] in ("x", "context") for s in p.sources.values() for name in s)
    p.idle_layers, p.idle_output = idle, p.out == "none" and idle and not p.bare
    p.holds_scale = _holds_scale(trial, p)
    if run.context is not None:
        sides = (int(run.token[p.sides[s].ids[0, 0, 0]]) >= run.context[0] for s in "qkv")
        p.made_from = "".join("c" if one else "x" for one in sides)
    if p.turn is not None and not p.turn.still:
        p.misspaced = misspaced(p.turn, p.e, frozenset(_numbers(trial)))
        if p.misspaced is None:
            raise Lost("unknown rotary frequencies")
    p.declares_rotation = p.turn is None and _declares_rotation(trial)
    values = (getattr(trial.patient.original, name, None) for name in KV_NAMES)
    stated = trial.options.more.get("num_kv_heads")
    stated = stated or next((v for v in values if type(v) is int), None)
    wrong = p.groups == "groups-order" or p.layers or p.split
    if stated and not wrong and p.kv_heads != stated:
        raise Lost(f"{p.kv_heads} heads of keys, where {stated} are stated")
    p.empty_rows_differ = _empty_rows_differ(run, p)


def idle_weights(trial: Trial, run: Run) -> list[str]:
    """Return the matrices of the module that no result is made from."""
    if not trial.patient.is_module:
        return []
    used = torch.zeros(run.tape.count, dtype=torch.bool)
    for event in (event for number, event in enumerate(run.events) if run.used[number]):
        for t in event.read():
            used[t.flatten()] = True
    matrices = {name for name, p in trial.patient.module.named_parameters() if p.ndim == 2}
    given = run.tape.given
    return [name for name, a, b in given if name in matrices and not bool(used[a:b].any())]


def _empty_rows_differ(run: Run, p: Program) -> bool:
    """Return whether a fully masked row gives something other than 0."""
    if p.allow is None or p.joined or p.split or p.axes != (3,):
        return False
    asked = any(p.allows(rule) for rule in p.rules if rule.shape[-2] == 1)
    if p.meant and not asked and not any(p.allows(mask) for mask in p.meant):
        return False  # rows that the module itself hides, such as those of padding
    rows = (~p.allow.any(-1)).all(1)
    return bool(rows.any()) and not bool((run.values[p.joined_ids][rows] == 0).all())


def _declares_rotation(trial: Trial) -> bool:
    """Return whether a module holds, or was given, tables of rotary positions."""
    patient, module = trial.patient, trial.patient.module
    if patient.way.tables is not None and patient.way.tables.width:
        return True
    free = set(parameters_of(module)) - patient.given  # it may rotate only when it gets positions
    if not patient.is_module or free & (POSITIONS | TABLES):
        return False
    names = [name for name, _ in (*module.named_modules(), *module.named_buffers())]
    names += [type(part).__name__ for part in module.modules()]
    return any(word in name.lower() for name in names for word in ROTARY_WORDS)


def _holds_scale(trial: Trial, p: Program) -> bool:
    """Return whether an attribute holds the root of a width, or its inverse."""
    roots = [w**power for w in {p.d, p.e, p.own_dim} - {1} for power in (-0.5, 0.5)]
    parts = trial.patient.module.modules() if trial.patient.is_module else ()
    for name, value in (pair for part in parts for pair in vars(part).items()):
        single = isinstance(value, int | float | Tensor) and torch.as_tensor(value).numel() == 1
        named = single and any(word in name.lower() for word in SCALE_WORDS)
        if named and any(abs(float(value) - root) < 1e-6 for root in roots):
            return True
    return False


def _numbers(trial: Trial) -> Iterator[float]:
    """Yield the numbers that the module holds and its code names, of which one may be a base."""
    for part in trial.patient.module.modules() if trial.patient.is_module else ():
        held = [vars(part), *(vars(c) for c in vars(part).values() if hasattr(c, "__dict__"))]
        numbers = [v for values in held for v in values.values()]
        for function in (f for kind in type(part).__mro__ for f in vars(kind).values()):
            numbers += getattr(getattr(function, "__code__", None), "co_consts", ())
            numbers += getattr(function, "__defaults__", None) or ()
        yield from (float(v) for v in numbers if type(v) in (int, float) and v == v)


def failing(trial: Trial, run: Run | None) -> Iterator[str]:
    """Yield the properties that do not hold, in words."""
    x, context = trial.tokens(seed=7), trial.context()
    y = trial.run(x, context)
    if not y.isfinite().all():
        many = "nothing but" if not y.isfinite().any() else "some"
        yield f"the output holds numbers: it has {many} {'NaN' if y.isnan().any() else 'infinity'}"
        return
    if not torch.allclose(trial.run(x, context), y, rtol=1e-6, atol=1e-9):
        yield "two calls in eval mode give the same output"
        return
    limit = 1e3 * trial.patient.tolerance * (1 + y.abs().max().item())

    def moves(other: Tensor, around: Tensor | None = context) -> Tensor:
        made = trial.run(other, around)
        return (made - y).abs() if made.shape == y.shape else torch.full_like(y, torch.inf)

    changed = x.clone()
    changed[0] = trial.tokens(seed=21)[0]
    if len(x) > 1 and moves(changed)[1:].max() > limit:
        yield "samples stay apart: changing one changes another"
    later = x.clone()
    later[:, -1] = trial.tokens(seed=22)[:, -1]
    future = y.shape[1] > 1 and bool(moves(later)[:, :-1].max() > limit)
    if context is not None:
        yield from _crossed(x, y, context, future, moves, limit)
    elif future and trial.options.causal:
        yield "the past does not see the future: changing the last token changes earlier ones"
    elif future and trial.mask is None:
        order = torch.arange(x.shape[1]).roll(2)
        if (trial.run(x[:, order]) - y[:, order]).abs().max() > limit:
            yield "order does not matter: permuted tokens do not give permuted outputs"
    if trial.mask is not None and context is None:
        yield from _padding(trial, x, limit)
    if run is not None and _rows_sum_to_one(run) is False:
        yield "rows sum to 1: tokens with equal values do not give equal outputs"


def _crossed(x: Tensor, y: Tensor, context: Tensor, future: bool, moves, limit) -> Iterator[str]:
    """Yield the properties of a cross-attention that do not hold."""
    if y.shape[1] != x.shape[1]:
        yield "there is one result for each query: there is one for each token of the context"
        return
    if future:
        yield "queries stay apart: changing one changes the result of another"
    if moves(x, context.flip(1)).max() > limit:
        yield "the order of the context does not matter: permuted, it gives another output"
    if moves(x, context.flip(2)).max() <= limit:
        yield "the result depends on the context: another one gives the same output"


def _padding(trial: Trial, x: Tensor, limit: float) -> Iterator[str]:
    """Yield whether keys that no query may attend to change the output."""
    assert trial.mask is not None
    try:
        y = trial.run(x, masked=True)
        rule = allowed(trial.mask, trial.b, trial.n, trial.options.true_means == "block")
    except CallFailed:
        return
    hidden = ~rule.expand(trial.b, -1, trial.n, trial.n).any(dim=(1, 2))
    padded = torch.where(hidden[..., None], trial.tokens(seed=23), x)
    moved = (trial.run(padded, masked=True) - y)[~hidden].abs()
    if bool(hidden.any()) and bool((moved > limit).any()):
        yield "padding does not leak: changing blocked tokens changes others"


def _rows_sum_to_one(run: Run) -> bool | None:
    """Return whether equal values give equal sums, None where no weighted sum is found."""
    try:
        _, v, mixed = weighted_products(run)
    except Lost:
        return None
    flat = torch.arange(1.0, v.shape[-1] + 1, dtype=torch.float64)
    made = run.again([(v, flat.expand(v.shape))], mixed)
    return torch.allclose(made, flat.expand(made.shape), rtol=1e-6, atol=1e-9)
