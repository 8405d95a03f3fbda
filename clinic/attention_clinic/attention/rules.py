"""Complete a program, judge it by the rules of the catalogue, and prove it by running it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from attention_clinic.attention.heads import regrouped
from attention_clinic.attention.positions import bias_variant
from attention_clinic.attention.program import Lost, Program
from attention_clinic.capture.calling import POSITIONS, TABLES, parameters_of
from attention_clinic.capture.run import Run
from attention_clinic.capture.trial import Trial
from attention_clinic.catalogue.forms import Form, Step
from attention_clinic.catalogue.joining import CONTEXT, MERGE, OUTPUT
from attention_clinic.catalogue.masks import FAR, FILL, RULE
from attention_clinic.catalogue.projections import ACTIVATION, GROUPS, HEADS, SOURCES, SPLIT
from attention_clinic.catalogue.rotary import TURN, misspaced
from attention_clinic.catalogue.scores import MIX, SCALE, SOFTMAX, close

ROTARY_WORDS = ("rotary", "rope", "inv_freq", "freqs_c")
SCALE_WORDS = ("scal", "sqrt", "temper", "norm_fact")
KV_NAMES = ("num_kv_heads", "n_kv_heads", "n_kv_head", "num_key_value_heads", "kv_heads")
Finding = tuple[str, str]  # a bug, and a fact beyond its words


@dataclass
class Judgement:
    """The verdict on a module: bugs and remarks each have a detail, "" for none."""

    program: Program | None = None  # of an attention
    found: list[Finding] = field(default_factory=list)  # in the order of the steps
    variants: list[str] = field(default_factory=list)  # correct differences from the original
    remarks: list[Finding] = field(default_factory=list)  # bugs that may be intended
    forms: dict[str, Form] = field(default_factory=dict)  # of each step of an attention
    words: tuple[str, ...] = ()  # what was checked of a block
    difference: float = 0.0  # the largest one of the program's numbers from the module's

    @property
    def ids(self) -> list[str]:
        """The bugs, once each."""
        return list(dict.fromkeys(id for id, _ in self.found))


def complete(trial: Trial, run: Run, p: Program, whole: Run) -> None:
    """Fill in what the module itself says."""
    idle = bool(idle_weights(trial, whole))
    if p.sizes[1] > 1 and all(bool((t == t[:, :1]).all()) for t in p.numbers.values()):
        p.layers, p.groups = "heads-same", ""
    p.bare = any(name.split(":")[0] in ("x", "context") for s in p.sources.values() for name in s)
    p.idle_layers, p.idle_output = idle, p.out == "none" and idle and not p.bare
    p.holds_scale = _holds_scale(trial, p)
    if run.context is not None:
        sides = (int(run.token[p.sides[s].ids[0, 0, 0]]) >= run.context[0] for s in "qkv")
        p.made_from = "".join("c" if one else "x" for one in sides)
    if p.turn is not None and not p.turn.still:
        spaced = misspaced(p.turn, p.e, frozenset(_numbers(trial)))
        if spaced is None:
            raise Lost("unknown rotary frequencies")
        p.misspaced = spaced
    p.declares_rotation = p.turn is None and _declares_rotation(trial)
    values = (getattr(trial.patient.original, name, None) for name in KV_NAMES)
    stated = trial.options.more.get("num_kv_heads")
    stated = stated or next((v for v in values if type(v) is int), None)
    wrong = p.groups == "groups-order" or p.layers or p.split
    if stated and not wrong and p.kv_heads != stated:
        raise Lost(f"{p.kv_heads} heads of keys, where {stated} are stated")
    p.empty_rows_differ = _empty_rows_differ(run, p)


def read_weights(run: Run, used: bool = False) -> set[str]:
    """Return the parameters that an operation reads, or one that the result is made from."""
    read = torch.zeros(run.tape.count, dtype=torch.bool)
    for number, event in enumerate(run.events):
        for t in event.read() if run.used[number] or not used else ():
            read[t.flatten()] = True
    return {name for name, start, end in run.tape.given if bool(read[start:end].any())}


def idle_weights(trial: Trial, run: Run) -> list[str]:
    """Return the matrices of the module that no result is made from."""
    used = read_weights(run, used=True)
    own = trial.patient.module.named_parameters() if trial.patient.is_module else ()
    return [name for name, p in own if p.ndim == 2 and name not in used]


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
    if patient.way.rotary:
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
    """Yield the numbers that the module holds and its code names; one may be a base."""
    for part in trial.patient.module.modules() if trial.patient.is_module else ():
        held = [vars(part), *(vars(c) for c in vars(part).values() if hasattr(c, "__dict__"))]
        numbers = [v for values in held for v in values.values()]
        for function in (f for kind in type(part).__mro__ for f in vars(kind).values()):
            numbers += getattr(getattr(function, "__code__", None), "co_consts", ())
            numbers += getattr(function, "__defaults__", None) or ()
        yield from (float(v) for v in numbers if type(v) in (int, float) and v == v)


def _projected(p: Program) -> bool:
    shared = any(p.shares(*pair) for pair in ("qk", "qv", "kv"))
    return not p.asked.get("matrices", True) if p.bare else not shared


def _scaled(p: Program) -> bool:
    return close(p.after, 1) and close(p.factor, p.own_dim**-0.5)


FIELDS: tuple[tuple[Step, Callable[[Program], bool]], ...] = (
    (CONTEXT, lambda p: p.made_from in ("", "xxx" if not p.asked.get("crossed") else "xcc")),
    (SOURCES, _projected),
    (ACTIVATION, lambda p: not any(side.activation for side in p.sides.values())),
    (HEADS, lambda p: not p.layers),
    (SPLIT, lambda p: not p.split),
    (GROUPS, lambda p: not p.groups),
    (TURN, lambda p: p.turn is None and not p.declares_rotation),
    (SCALE, _scaled),
    (RULE, lambda p: any(p.allows(rule) for rule in p.rules)),
    (FILL, lambda p: all(how in ("fill", "add") and value <= FAR for value, how in p.fills)),
    (SOFTMAX, lambda p: p.axes == (3,) or (p.axes == () and p.sizes[3] == 1)),
    (MIX, lambda p: not p.transposed),
    (MERGE, lambda p: not p.joined),
    (OUTPUT, lambda p: not p.out_activation and p.out == "layer"),
)
ROWS = ("mask-row-empty",)
SEVERAL = ("projections", "rotation", "masked scores")  # fields that may have several bugs
OPTIONAL = ("output layer", "rotation")  # fields whose forms need not name what is not correct


def judge(p: Program) -> Judgement:
    """Return the bugs of a program: each field is correct, or a rule explains it."""
    judged = Judgement(p)
    for step, right in FIELDS:
        judged.forms[step.name] = step.reference
        if right(p):
            continue
        fitting = [form for form in step.forms[1:] if form.applies(p)]
        bugs = [form for form in fitting if form.ids]
        turn, odd = p.turn, False
        if step is TURN and turn is not None:
            odd = turn.mixed or turn.flat or turn.values or p.misspaced
        odd |= step is OUTPUT and bool(p.out_activation)
        if (odd and not bugs) or (not fitting and step.name not in OPTIONAL):
            raise Lost(f"{step.name} is not understood")
        if fitting:
            judged.forms[step.name] = (bugs or fitting)[0]
        if step is SCALE and _deliberate(p):
            judged.remarks.append((bugs[0].ids[0], "right where it is set on purpose"))
            continue
        for form in bugs if step.name in SEVERAL else bugs[:1]:
            judged.found += [(id, form.detail) for id in form.ids if id not in judged.ids]
        judged.variants += [name for form in fitting for name in form.variants if not bugs]
    judged.variants += _more_variants(p)
    return judged


def _deliberate(p: Program) -> bool:
    """Return whether the correct factor is multiplied by one more number, or a bias replaces it."""
    if not close(p.after, 1):
        return False
    if close(p.factor, 1):
        return p.bias_learned and p.bias is not None
    return any(close(one, p.own_dim**-0.5) for one in p.factors) and not close(p.factor, p.e**-0.5)


def _more_variants(p: Program) -> list[str]:
    """Return the variants without a form: norms of queries and keys, biases."""
    found = ["class-attention"] * (p.sizes[2] == 1 < p.sizes[3] and not p.asked.get("crossed"))
    turn = p.turn
    if turn is not None and not turn.still:
        found += ["rotary-partial"] * (turn.width < turn.head_dim)
        found += ["rotary-backwards"] * (turn.sign < 0)
    norm = p.sides["q"].norm
    if p.sides["k"].norm != norm or p.sides["v"].norm:
        raise Lost("norms of queries and keys differ")
    found += ["qk-norm"] * bool(norm)
    found += ["qk-norm-layer"] * (norm == "layer")
    return [*found, *filter(None, [bias_variant(p)]), *_latent(p)]


def _latent(p: Program) -> list[str]:
    """Return the variants of queries, keys and values that are made from a narrow vector."""
    q, k, v = (p.inner[name] for name in "qkv")
    if not (q or k or v):
        return []
    if k != v or max(len(q), len(k)) > 1 or q == k:
        raise Lost("two layers in a row before the scores")
    return ["latent-attention"] * bool(k) + ["latent-queries"] * bool(q)


def prove(run: Run, p: Program, judged: Judgement, tolerance: float) -> float:
    """Return the largest difference of the program's numbers from the module's."""
    form = judged.forms
    q, k, v = (p.numbers[name] for name in "qkv")
    inner = p.sides["q"].factor * p.sides["k"].factor
    scores = form["scale"].run(q @ k.mT / inner, p)
    scores = scores if p.bias is None else scores + p.bias
    weights = _weights(p, form, p.fills, scores) * p.after
    mixed = regrouped(p, form["weighted sum"].run(weights, v))
    joined = run.values[p.joined_ids]
    if p.sums is not None:
        joined = joined / p.sums[p.joined_ids]
    if p.joined == "merge-axes":
        mine, theirs = mixed.flatten().sort().values, joined.flatten().sort().values
    else:
        mine, theirs = (p.merge or form["merge"]).run(mixed), joined
        if not p.joined:  # features in the order in which the output layer reads them
            mine, theirs = mine.sort(-1).values, theirs.sort(-1).values
    seen = theirs.isfinite() & mine.isfinite()
    if p.allow is not None and seen.ndim == 3 and seen.shape[:2] == p.allow.shape[::2]:
        seen &= p.allow.any(-1).all(1)[..., None]  # a fully masked row has its own rule
    scale = float(theirs[seen].abs().max()) if bool(seen.any()) else 1.0
    difference = float((mine - theirs)[seen].abs().max()) if bool(seen.any()) else 0.0
    if difference > tolerance * max(1.0, scale):
        raise Lost("the program gives other numbers")
    return difference


def _weights(p: Program, form: dict[str, Form], fills: list, scores: Tensor) -> Tensor:
    """Return the weights of scores, by the forms for masked scores and for the softmax."""
    if not fills or p.allow is None:
        return form["softmax"].run(scores)
    one = replace(p, fills=fills[:1])
    fill = next((f for f in FILL.forms[1:] if f.ids != ROWS and f.applies(one)), FILL.reference)
    return fill.run(scores, p.allow, partial(_weights, p, form, fills[1:]), fills[0][0])
