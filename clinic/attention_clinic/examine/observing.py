"""Explain an attention by an account of its own steps, where no form of the catalogue is equal."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from attention_clinic.bugs import BUGS
from attention_clinic.engine.report import Explanation, explain
from attention_clinic.engine.weights import role
from attention_clinic.examine.account import account_of
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.told import Said, told
from attention_clinic.examine.written import Run, runs

EVIDENCE = "seen in a run that was written down number by number"


def observed(subject: Subject, whole: bool = False) -> Explanation | None:
    """Return what an account of the steps says is wrong; None where it says nothing, or not all.

    Args:
        subject: the module.
        whole: whether there must be nothing else in the module that could be wrong.
    """
    if "observed" not in vars(subject):
        vars(subject)["observed"] = _observed(subject)
    found = vars(subject)["observed"]
    return None if found is None or (whole and not found[1]) else found[0]


def _observed(subject: Subject) -> tuple[Explanation, bool] | None:
    """Return what `observed` does, and whether there is nothing else."""
    plain = subject.mode is None and subject.options.cache is None and subject.mask is None
    if not plain or subject.crossed or not subject.patient.is_module:
        return None
    try:
        calls = [(subject.b, subject.n), *[subject.sizes(1)] * (not subject.limited)]
        both = [_said(subject, b, n) for b, n in calls]
    except Exception:  # what cannot be written down stays unexplained
        return None
    if any(one is None or not one[0] or _ids(one[0]) != _ids(both[0][0]) for one in both):
        return None
    first, whole = both[0]
    other = {detail for _, detail in both[-1][0]}  # what depends on the sizes is said otherwise
    details = "; ".join(dict.fromkeys(d for _, d in first if d and d in other))
    explanation = explain([BUGS[id] for id in _ids(first)], detail=details)
    return replace(explanation, evidence=EVIDENCE), whole


def _ids(said: Said) -> list[str]:
    """Return the ids in the order of the catalogue."""
    order = list(BUGS)
    return sorted({id for id, _ in said}, key=order.index)


def _said(subject: Subject, b: int, n: int) -> tuple[Said, bool] | None:
    """Return what is wrong in a call with so many samples and tokens, and whether that is all."""
    run = runs(subject, b, n)
    if run is None or run.y.shape[:2] != (b, n) or run.y.ndim != 3:
        return None
    if _for_nothing(run):
        return [("attention-unused", "")], True
    account = account_of(run, subject.h)
    if account is None:
        return None
    known = {**subject.known, "embed_dim": subject.e}
    found = told(account, subject.options.causal, known)
    if found is None:
        return None
    said, steps = found
    options = subject.options
    if "projection-unused" in dict(said) and not run.idle:
        return None
    if not account.ended and options.out_proj is not False and subject.h > 1:
        left = output_left(run, account.joined.shape[-1])
        said += [("out-unused" if left else "out-missing", "")] * bool(left or options.out_proj)
    return said, steps.plain and account.alone


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
