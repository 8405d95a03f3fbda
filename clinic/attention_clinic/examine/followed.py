"""Attention that no search knows: its run is followed step by step, and called what it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from attention_clinic.bugs import BUGS, VARIANTS
from attention_clinic.engine.modes import NoDropout
from attention_clinic.engine.patient import same
from attention_clinic.engine.report import Report, explain
from attention_clinic.examine.foreign import foreign
from attention_clinic.examine.in_steps import seen_in_steps
from attention_clinic.examine.kindred import kindred
from attention_clinic.examine.learning import learned_with
from attention_clinic.examine.mask_argument import allowed, names_what_it_blocks
from attention_clinic.examine.mask_law import law_of_mask
from attention_clinic.examine.noticed import noticed
from attention_clinic.examine.observed import seen_in
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.traced import PRIMES, Lost, Seen, run_of
from attention_clinic.examine.unprojected import idle_outputs
from attention_clinic.examine.verdict import as_meant, untried, without_output

EVIDENCE = "each step of the run was followed, and no other differs"
WIDEST = 64  # numbers of a head
MOST = 4_000_000  # numbers of all tokens of a run: images of thousands are too many
LATER = "with the mask, later tokens are not seen"
ALLOWED = "with the mask, a token gets what the tokens that it allows give alone"
IDLE = "the mask blocks nothing that is seen without it"
# what multiplies queries, or keys, with learned codes
CODED = {"relative-keys", "relative-queries", "decomposed-positions"}
FREE = "by what the products with learned codes are multiplied: the codes may learn that"
EFFECTS = {"dropped": "the mask changes nothing", "inverted": "tokens get what it blocks, only"}


def observed(subject: Subject, whole: bool = True) -> Seen | None:
    """Return what a module does, None where a step of it is not understood.

    Args:
        subject: the module, which nothing explains as it is.
        whole: whether products in another order are read too, which takes many more steps.
    """
    plain = subject.patient.is_module and not subject.own_weights
    plain = plain and subject.mode in (None, NoDropout)
    told = subject.options.like is not None or subject.options.cache is not None
    if not plain or told:
        return None
    kept = vars(subject.patient)  # another copy is followed anew
    if "followed" not in kept:
        try:
            kept["followed"] = observe(subject)
        except (Lost, RuntimeError, ValueError, IndexError):
            kept["followed"] = None
    if kept["followed"] is None and whole and "kindred" not in kept:
        seen = kindred(subject)
        kept["kindred"] = seen and with_mask(subject, seen)
    return kept["followed"] or kept.get("kindred")


@torch.no_grad()
def observe(subject: Subject) -> Seen:
    """Return what a module does.

    Args:
        subject: the module.

    Raises:
        Lost: a step of it is not understood, or calls of two sizes differ.
    """
    width = subject.e // subject.h
    if subject.mask is not None:
        try:
            subject.run(subject.patient.tokens(subject.b, subject.n, subject.e))
        except Exception:
            raise Lost from None  # it does not run without a mask
    if subject.n < 3 or width > WIDEST or subject.windows is not None:
        raise Lost
    need = max(2 * width, subject.n, subject.j) + 12
    b = next((p for p in PRIMES if p > need), PRIMES[-1])
    if b * max(subject.n, subject.j) * subject.e > MOST:
        raise Lost
    run = run_of(subject, b, 0)
    if not subject.crossed and not same(run.y[: subject.b], subject.open_run(run.x[: subject.b])):
        raise Lost  # how many samples there are says what becomes of each
    first = seen_in(subject, run)
    law = first.law
    if law.parts() and not law.agrees(seen_in(subject, run_of(subject, b, 0, 1.3)).law):
        raise Lost
    if not subject.limited and first != seen_in(subject, run_of(subject, b, 1)):
        raise Lost
    masked = replace(first, words=(*first.words, LATER)) if _obeys(subject, b, first) else None
    masked = masked or with_mask(subject, first)
    if masked is None:
        raise Lost
    return masked


def _obeys(subject: Subject, b: int, seen: Seen) -> bool:
    """Say whether, with a mask of the past alone, a module does the same on the past alone.

    Args:
        subject: the module.
        b: number of samples.
        seen: what it does without a mask.
    """
    mask, n = subject.mask, subject.n
    if mask is None or subject.crossed or subject.options.causal is not None or seen.causal:
        return False
    if mask.shape[-2:] != (n, n) or mask.numel() != n * n:  # the same for all samples
        return False
    allow = allowed(mask, 1, n, subject.true_means == "block")
    if not torch.equal(allow[0, 0], torch.ones(n, n).tril().bool()):
        return False
    masked = seen_in(subject, run_of(subject, b, 0, mask=mask))
    return masked == replace(seen, causal=True)


def with_mask(subject: Subject, seen: Seen) -> Seen | None:
    """Return what a module does with its mask too, by its effects; None where they say nothing.

    Args:
        subject: the module.
        seen: what it does without a mask.
    """
    mask, x = subject.mask, subject.patient.tokens(subject.b, subject.n, subject.e)
    if mask is None:
        return seen
    if subject.crossed or seen.ids:
        return None
    free = torch.ones(subject.n, subject.n, dtype=torch.bool)
    free = free.tril() if seen.causal else free
    said, laws = subject.true_means, []
    named = said is None and names_what_it_blocks(subject.patient.module)
    for blocks in (False, True) if named else (said == "block",):
        allow = allowed(mask, subject.b, subject.n, blocks) & free
        if bool((allow == free).all()):  # it blocks nothing that is seen without it
            idle = same(subject.run(x), subject.run(x, mask))
            return replace(seen, words=(*seen.words, IDLE)) if idle else None
        try:
            laws.append(law_of_mask(subject.run, lambda x: subject.run(x, mask), x, allow))
        except (RuntimeError, ValueError, IndexError):
            return None
    if "right" in laws:
        return replace(seen, words=(*seen.words, ALLOWED))
    if not laws[0]:
        return None
    return replace(seen, ids=(f"mask-{laws[0]}",), detail=EFFECTS[laws[0]])


class Followed(Exception):
    """A module was followed to its end: there is nothing left to search for.

    Args:
        seen: what it does.
    """

    def __init__(self, seen: Seen) -> None:
        super().__init__("followed")
        self.seen = seen


def follow(subject: Subject, whole: bool) -> Seen | None:
    """Follow a module that nothing explains as it is, and return what it does.

    Args:
        subject: the module.
        whole: see `observed`; not before single mistakes were tried.

    Raises:
        Followed: a search would find nothing.
    """
    seen = observed(subject, whole)
    if seen is not None and seen.beyond:
        raise Followed(seen)
    return seen


def report_of(subject: Subject, seen: Seen, untried: tuple[str, ...]) -> Report:
    """Return the report on what was seen."""
    words = ["projections, scale, softmax, mixing, joining: each step as it ran"]
    words.append(f"{subject.h} heads of {subject.e} wide tokens")
    some = {"window", "mixed-attention"} & set(seen.variants)
    masked = subject.mask is not None
    words += ["causal"] * seen.causal
    words += ["every token sees all tokens"] * (not seen.causal and not some and not masked)
    words += [w for w in seen.words if w]
    found = ()
    if seen.ids:
        made = explain([BUGS[id] for id in dict.fromkeys(seen.ids)], detail=seen.detail)
        found = (replace(as_meant(subject, made), evidence=EVIDENCE),)
    return Report(
        subject.patient.name,
        not found,
        found,
        checked=("; ".join(words),),
        remarks=without_output(subject) if seen.alone else (),
        untried=(*untried, *(FREE,) * bool(CODED & {*seen.variants})),
        variants=tuple(VARIANTS[name] for name in seen.variants),
        tolerance=subject.patient.tolerance,
    )


def as_followed(subject: Subject, seen: Seen) -> Report:
    """Return the report on a module whose run was followed step by step."""
    left = idle_outputs(subject) if seen.alone else []
    if left:
        detail = "; ".join(filter(None, (seen.detail, f"{left[0]} is never called")))
        seen = replace(seen, alone=False, ids=(*seen.ids, "out-unused"), detail=detail)
    said = noticed(subject, ())
    detail = "; ".join(filter(None, (seen.detail, *said)))
    ids = (*seen.ids, *subject.extra)
    report = report_of(subject, replace(seen, ids=ids, detail=detail), untried(subject))
    return learned_with(subject, report)


def seen_in_run(subject: Subject, otherwise: Callable[[], Report]) -> Report:
    """Report what a run of a module shows, or something else where it shows nothing.

    Args:
        subject: the module, which no search explained.
        otherwise: makes the other report.
    """
    seen = observed(subject) if subject.options.most and not foreign(subject) else None
    return as_followed(subject, seen) if seen is not None else seen_in_steps(subject, otherwise)
