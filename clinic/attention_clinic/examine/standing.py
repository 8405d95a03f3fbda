"""Turns that do not count the places: the order of the tokens changes nothing."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import takewhile

import torch
from torch import Tensor

from attention_clinic.bugs import ATTENTION, TURN
from attention_clinic.bugs.models import HALVES, PAIRS
from attention_clinic.bugs.turns import CLOSE, as_pairs, laid_by_head
from attention_clinic.engine.constants import codes_in, functions_of
from attention_clinic.engine.forms import replay
from attention_clinic.engine.readings import Reader
from attention_clinic.engine.steps import Steps
from attention_clinic.examine.matching import Match, Search
from attention_clinic.examine.subject import Subject

TURNS = re.compile(r"(?<![a-z])rope(?![a-z])|rotary|rotat|freqs|cis(_|$)", re.IGNORECASE)
BEFORE = tuple(takewhile(lambda stage: stage is not TURN, ATTENTION))
SAID = "a head, or a sample, is turned as a whole, whatever the places of its tokens"


def turned_alike(subject: Subject, matches: Sequence[tuple[Reader, Match]]) -> list[str]:
    """Add that what a module turns does not count the places, and return what is to be said.

    It says that it turns, or its code does and a run shows it.

    Args:
        subject: the module.
        matches: what explains it.
    """
    turning = subject.known["turning"]
    if turning is not None and turning.declared:
        subject.extra += ["rotary-no-effect"] * (not turning.sees)
        return []
    if turning is not None or subject.crossed or not subject.patient.is_module or subject.windows:
        return []
    if not _speaks(subject) or not any(_stands(subject, *pair) for pair in matches[:1]):
        return []
    subject.extra.append("rotary-no-effect")
    return [SAID]


def _speaks(subject: Subject) -> bool:
    """Say whether the code of a module speaks of turns."""
    for function in functions_of(subject.patient.module):
        names = [name for code in codes_in(function.__code__) for name in code.co_names]
        if any(TURNS.search(name) for name in (function.__qualname__, *names)):
            return True
    return False


@torch.no_grad()
def _stands(subject: Subject, reader: Reader, match: Match) -> bool:
    """Say whether a run turns queries, all tokens of a head alike."""
    probe, limit = subject.first, subject.patient.tolerance
    search = Search(reader, [match.reading], probe, match.shell, limit)
    state = replay(BEFORE, match.path.forms[: len(BEFORE)], search.state())
    if state is None or state["q"].shape[-1] % 2 or state["q"].shape[-2] < 3:
        return False
    with Steps() as steps:
        subject.open_run(probe.x)
    q = state["q"][0]
    return any(
        _is_turned(q, way.to(q), layout)
        for made in steps.made.get(q.numel(), ())
        for way in laid_by_head(made, q.shape)
        for layout in (HALVES, PAIRS)
    )


def _is_turned(q: Tensor, t: Tensor, layout: str) -> bool:
    """Say whether each head is turned by angles of its own, and not by quarters alone."""
    before, made = as_pairs(q, layout), as_pairs(t, layout)
    turn = (made / before)[:, :, :1]
    if bool((turn * before - made).abs().max() > CLOSE * before.abs().max()):
        return False
    whole = not bool((turn.abs() - 1).abs().max() > CLOSE)
    return whole and bool((turn.pow(4) - 1).abs().max() > CLOSE)
