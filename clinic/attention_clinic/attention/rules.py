"""Judge a program by the rules of the catalogue, and prove the verdict by running it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from torch import Tensor

from attention_clinic.attention.heads import regrouped
from attention_clinic.attention.positions import bias_variant
from attention_clinic.attention.program import Lost, Program
from attention_clinic.capture.run import Run
from attention_clinic.catalogue.forms import Form, Step
from attention_clinic.catalogue.joining import CONTEXT, MERGE, OUTPUT
from attention_clinic.catalogue.masks import FAR, FILL, RULE
from attention_clinic.catalogue.projections import ACTIVATION, GROUPS, HEADS, SOURCES, SPLIT
from attention_clinic.catalogue.rotary import TURN
from attention_clinic.catalogue.scores import CAP, MIX, ROUND, SCALE, SOFTMAX, close


@dataclass
class Judgement:
    """The verdict on a program."""

    ids: tuple[str, ...]  # the bugs, in the order of the steps
    details: tuple[str, ...]  # facts beyond the words of the bugs
    variants: tuple[str, ...]  # correct differences from the original attention
    forms: dict[str, Form]  # the form of each step, by its name
    remarks: tuple[tuple[str, str], ...] = ()  # bugs that may be meant, with what is said of them
    difference: float = 0.0  # the largest one of the program's numbers from the module's


def _projected(p: Program) -> bool:
    shared = any(p.shares(*pair) for pair in ("qk", "qv", "kv"))
    return not p.asked.get("matrices", True) if p.bare else not shared


def _cosine(p: Program) -> bool:
    return all(p.sides[name].norm.startswith("length") for name in "qk")


def _scaled(p: Program) -> bool:
    return close(p.after, 1) and (close(p.factor, p.own_dim**-0.5) or (_cosine(p) and p.factor > 0))


FIELDS: tuple[tuple[Step, Callable[[Program], bool]], ...] = (
    (CONTEXT, lambda p: p.made_from in ("", "xxx" if not p.asked.get("crossed") else "xcc")),
    (SOURCES, _projected),
    (ACTIVATION, lambda p: not any(side.activation for side in p.sides.values())),
    (HEADS, lambda p: not p.layers),
    (SPLIT, lambda p: not p.split),
    (GROUPS, lambda p: not p.groups),
    (TURN, lambda p: p.turn is None and not p.declares_rotation),
    (SCALE, _scaled),
    (ROUND, lambda p: not p.rounded),
    (CAP, lambda p: p.cap is None),
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
    ids: list[str] = []
    details: list[str] = []
    variants: list[str] = []
    forms: dict[str, Form] = {}
    remarks: list[tuple[str, str]] = []
    for step, right in FIELDS:
        forms[step.name] = step.reference
        if right(p):
            continue
        fitting = [form for form in step.forms[1:] if form.applies(p)]
        bugs = [form for form in fitting if form.ids]
        turn, odd = p.turn, False
        if step is TURN and turn is not None:
            odd = turn.mixed or turn.flat or turn.values or turn.offset != 0 or bool(p.misspaced)
        odd |= step is OUTPUT and bool(p.out_activation)
        if (odd and not bugs) or (not fitting and step.name not in OPTIONAL):
            raise Lost(f"{step.name} is not understood")
        if step is SCALE and _deliberate(p):
            remarks.append((bugs[0].ids[0], "right where it is set on purpose"))
            forms[step.name] = bugs[0]
            continue
        if fitting:
            forms[step.name] = (bugs or fitting)[0]
        for form in bugs if step.name in SEVERAL else bugs[:1]:
            if form.ids[0] not in ids:
                ids += form.ids
                details += [form.detail] if form.detail else []
        variants += [] if bugs else [name for form in fitting for name in form.variants]
    variants += _more_variants(p)
    return Judgement(tuple(ids), tuple(details), tuple(variants), forms, tuple(remarks))


def _deliberate(p: Program) -> bool:
    """Return whether the correct factor is multiplied by one more number, or a bias replaces it."""
    if not close(p.after, 1):
        return False
    if close(p.factor, 1):
        return p.bias_learned and p.bias is not None
    return any(close(one, p.own_dim**-0.5) for one in p.factors) and not close(p.factor, p.e**-0.5)


def _more_variants(p: Program) -> list[str]:
    """Return the variants that no form stands for: norms of queries and keys, biases."""
    found = ["class-attention"] * (p.sizes[2] == 1 < p.sizes[3] and not p.asked.get("crossed"))
    turn = p.turn
    if turn is not None and not turn.still:
        found += ["rotary-partial"] * (turn.width < turn.head_dim)
        found += ["rotary-backwards"] * (turn.sign < 0)
    norms = {(p.sides[name].norm.rstrip("+"), p.sides[name].over) for name in "qk"}
    if len(norms) > 1 or p.sides["v"].norm:
        raise Lost("norms of queries and keys differ")
    norm, over = norms.pop()
    if over == "other":
        raise Lost("norms of queries and keys run over an unknown axis")
    if norm == "length":
        found.append("cosine")
    elif norm:
        found.append("qk-norm" if over == "head" else "qk-norm-flat")
        found += ["qk-norm-layer"] * (norm == "layer")
        found += ["qk-norm-after"] * (turn is not None and not p.sides["q"].norm_first)
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
    raw = q @ k.mT / inner
    scores = raw * p.factor if _cosine(p) else form["scale"].run(raw, p)
    scores = form["rounding"].run(scores)
    scores = scores if p.capped_late else form["cap"].run(scores, p)
    scores = scores if p.bias is None else scores + p.bias
    weights = _weights(p, form, p.fills, scores) * (p.after / p.after_sum)
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
        seen &= p.allow.any(-1).all(1)[..., None]  # a fully masked row has a rule of its own
    scale = float(theirs[seen].abs().max()) if bool(seen.any()) else 1.0
    difference = float((mine - theirs)[seen].abs().max()) if bool(seen.any()) else 0.0
    if difference > tolerance * max(1.0, scale):
        raise Lost("the program gives other numbers")
    return difference


def _weights(p: Program, form: dict[str, Form], fills: list, scores: Tensor) -> Tensor:
    """Return the weights of scores, by the forms for masked scores and for the softmax."""
    if not fills or p.allow is None:
        return form["softmax"].run(form["cap"].run(scores, p) if p.capped_late else scores)
    one = replace(p, fills=fills[:1])
    fill = next((f for f in FILL.forms[1:] if f.ids != ROWS and f.applies(one)), FILL.reference)
    return fill.run(scores, p.allow, partial(_weights, p, form, fills[1:]), fills[0][0])
