"""Explain an attention by an account of its own steps, where no form of the catalogue is equal."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attention_clinic.bugs import BUGS
from attention_clinic.engine.modes import NoDropout
from attention_clinic.engine.patient import same
from attention_clinic.engine.report import Explanation, explain
from attention_clinic.engine.weights import role
from attention_clinic.examine.account import account_of
from attention_clinic.examine.judging import Said
from attention_clinic.examine.mask_argument import allowed, names_what_it_blocks
from attention_clinic.examine.partly import AXES, in_part
from attention_clinic.examine.scoring import Unknown, before
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.told import told
from attention_clinic.examine.turned_angles import wrongly_turned
from attention_clinic.examine.turned_sides import turned_sides
from attention_clinic.examine.unnormed import needs_context
from attention_clinic.examine.written import Run, runs

BY_MASK = "what the mask does, which hides no score"
TURNED = "how queries and keys are turned"
NOT_JUDGED = "not judged"  # before each step that is not understood
EVIDENCE = "seen in a run that was written down number by number"


@dataclass(frozen=True)
class Observed:
    """What an account of the steps says.

    Args:
        said: what is wrong.
        whole: whether there is nothing else in the module that could be wrong.
        gaps: the steps that are not understood, in words; () where all are.
        ended: whether there is an output layer.
    """

    said: Said
    whole: bool = False
    gaps: tuple[str, ...] = ()
    ended: bool = True

    @property
    def ids(self) -> list[str]:
        """The ids in the order of the catalogue."""
        return sorted({id for id, _ in self.said}, key=list(BUGS).index)


def observed(subject: Subject, whole: bool = False, partly: bool = False) -> Explanation | None:
    """Return what an account of the steps says is wrong; None where it says nothing, or not all.

    Args:
        subject: the module.
        whole: whether there must be nothing else in the module that could be wrong.
        partly: whether some steps may be not understood.
    """
    if "observed" not in vars(subject):
        vars(subject)["observed"] = _observed(subject)
    found = vars(subject)["observed"]
    if found is None or (whole and not found[1].whole) or (found[1].gaps and not partly):
        return None
    return found[0]


def _observed(subject: Subject) -> tuple[Explanation, Observed] | None:
    """Return what `observed` does, and all that was seen."""
    plain = subject.options.cache is None and subject.mode in (None, NoDropout)
    if not plain or not subject.patient.is_module:
        return None
    try:
        calls = [(subject.b, subject.n, subject.j)]
        calls += [(*subject.sizes(1), subject.keys(1))] * (not subject.limited)
        both = [_seen(subject, *sizes) for sizes in dict.fromkeys(calls)]
    except Exception:  # what cannot be written down stays unexplained
        return None
    if any(one is None or not one.said or one.ids != both[0].ids for one in both):
        return None
    first = both[0]
    other = {detail for _, detail in both[-1].said}  # what depends on the sizes is said otherwise
    details = list(dict.fromkeys(d for _, d in first.said if d and d in other))
    details += [f"{NOT_JUDGED}: {gap}" for gap in first.gaps]
    explanation = explain([BUGS[id] for id in first.ids], detail="; ".join(details))
    return replace(explanation, evidence=EVIDENCE), first


def _seen(subject: Subject, b: int, n: int, j: int) -> Observed | None:
    """Return what is wrong in a call with so many samples, tokens, and tokens of a context."""
    masked = subject.mask is not None
    run = runs(subject, b, n, j, masked)
    if run is None or run.y.shape[:2] != (b, n) or run.y.ndim != 3:
        return None
    if _for_nothing(run):
        return Observed([("attention-unused", "")], True)
    account = account_of(run, subject.h)
    if account is None:
        return None
    known = {**subject.known, "embed_dim": subject.e}
    known["masks"] = _meanings(subject, b, n, j) if masked else ()
    found, gaps = told(account, subject.options.causal, known), ()
    if found is None:
        part = in_part(account, subject.options.causal, known)
        (said, gaps), plain = part, False
    else:
        said, plain = found[0], found[1].plain
    said = [*said, *turned_sides(account)]
    turning = subject.known["turning"]
    try:
        said += wrongly_turned(account, turning)
    except Unknown:
        gaps = (*gaps, TURNED)
    if needs_context(subject.original):
        said = [one for one in said if one[0] != "norm-missing"]
    if masked and "mask-dropped" in dict(said) and _uses_mask(subject, b, n):
        said, gaps = [one for one in said if one[0] != "mask-dropped"], (*gaps, BY_MASK)
    kinds = {before(run, t)[1] for t in (account.q, account.k)}
    if turning is not None and turning.declared and "other" in kinds:
        gaps = (*gaps, TURNED)
    options, ends = subject.options, account.ends
    never = {role(name).rstrip("?") for name in run.unread}
    raw = dict(said).get("projection-unused", "").split(" are ")[0].split(" and ")
    if raw != [""] and not run.idle and not {who[0] for who in raw} <= never:
        # no layer is left out: it is another kind of attention, in which tokens are weighed, too
        said = [one for one in said if one[0] in AXES | {"mix-transposed"}]
        gaps = (*gaps, f"that {' and '.join(raw)} are the tokens themselves")
    if not ends.ended and options.out_proj is not False and subject.h > 1:
        left = output_left(run, ends.joined.shape[-1])
        said += [("out-unused" if left else "out-missing", "")] * bool(left or options.out_proj)
    return Observed(said, plain and ends.alone, gaps, ends.ended)


def _uses_mask(subject: Subject, b: int, n: int) -> bool:
    """Say whether a module gives another result with its mask, whatever its scores go through."""
    x = subject.patient.tokens(b, n, subject.e)
    return not same(subject.open_run(x), subject.run(x, subject.mask))


def _meanings(subject: Subject, b: int, n: int, j: int) -> list[Tensor]:
    """Return what the mask may say, which may be named after what it blocks."""
    said = subject.true_means
    named = said is None and names_what_it_blocks(subject.patient.module)
    ways = (False, True) if named and subject.mask.dtype == torch.bool else (said == "block",)
    return [allowed(subject.mask, b, n, way, j if subject.crossed else None) for way in ways]


def output_left(run: Run, width: int) -> bool:
    """Say whether a module has an output layer that nothing uses.

    Args:
        run: what was written down.
        width: of all heads together.
    """
    never = {name for name, size in run.unread.items() if size > width and size % width == 0}
    return any(role(name).rstrip("?") == "o" for name in run.idle | never)


def _for_nothing(run: Run) -> bool:
    """Say whether tokens are compared, and the result of each is made of it alone."""
    own = run.token[run.y] == _places(run)
    if not bool(own.all()):
        return False
    weighed = [e for e in run.tape.events if e.name == "_softmax" and run.depends(e.out)]
    used = {id(e) for e, used in zip(run.tape.events, run.used, strict=True) if used}
    return bool(weighed) and not any(id(event) in used for event in weighed)


def _places(run: Run) -> Tensor:
    """Return the place of each token of the result."""
    return torch.arange(run.y.shape[1])[None, :, None].expand(run.y.shape)
