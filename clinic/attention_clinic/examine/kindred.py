"""Attention whose products stand in another order: its run is read, and called what it is."""

from __future__ import annotations

from attention_clinic.examine.dense import dense_seen
from attention_clinic.examine.ended import ALONE
from attention_clinic.examine.linear import linear_seen
from attention_clinic.examine.narrowed import narrowed_seen
from attention_clinic.examine.observing import output_left
from attention_clinic.examine.scoring import Unknown
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.traced import Seen
from attention_clinic.examine.walks import Told
from attention_clinic.examine.written import Run, runs

MOST = 200_000_000  # numbers of all calls, in each of which another token is changed
READERS = (linear_seen, narrowed_seen, dense_seen)


def kindred(subject: Subject) -> Seen | None:
    """Return what a module does whose products stand in another order, None for any other.

    Args:
        subject: the module, which nothing explains as it is.
    """
    plain = subject.mode is None and subject.options.cache is None
    if not plain or subject.crossed or not subject.patient.is_module or subject.windows is not None:
        return None
    if subject.n**2 * subject.b * subject.e > MOST:
        return None
    calls = [(subject.b, subject.n), *[subject.sizes(1)] * (not subject.limited)]
    seen = [_one(subject, b, n) for b, n in calls]
    return seen[0] if seen[0] is not None and all(one == seen[0] for one in seen) else None


def _one(subject: Subject, b: int, n: int) -> Seen | None:
    """Return what one call shows."""
    run = runs(subject, b, n, n)
    if run is None or run.y.ndim != 3:
        return None
    x = subject.patient.tokens(b, n, subject.e, seed=51)
    for reader in READERS:
        try:
            found = reader(subject, run, x)
        except (Unknown, RuntimeError, ValueError, IndexError):  # shapes that do not fit
            continue
        if found is not None:
            return _of(subject, run, found)
    return None


def _of(subject: Subject, run: Run, told: Told) -> Seen | None:
    """Return what was told as it was seen, None where that does not fit what was asked."""
    if subject.options.causal is False and told.causal:
        return None
    said = [*told.said]
    if not told.layer and subject.options.out_proj is not False and subject.h > 1:
        left = output_left(run, run.y.shape[-1])
        wanted = left or subject.options.out_proj is True
        said += [("out-unused" if left else "out-missing", "")] * wanted
    said += [("mask-not-causal", "")] * (subject.options.causal is True and not told.causal)
    ids = tuple(dict.fromkeys(id for id, _ in said))
    detail = "; ".join(dict.fromkeys(d for _, d in said if d))
    words = (told.words,) if told.layer else (told.words, ALONE)
    return Seen(told.names, ids, detail, told.causal, words, not told.layer, True)
