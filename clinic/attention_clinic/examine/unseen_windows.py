"""Windows that are wider than the texts of an examination: no token sees where one ends."""

from __future__ import annotations

from attention_clinic.engine.calls import said_windows
from attention_clinic.engine.modes import Scores
from attention_clinic.engine.unheard import calls_pad
from attention_clinic.examine.subject import Subject


def unseen_windows(subject: Subject) -> list[str]:
    """Say which windows of a module held all its tokens.

    Args:
        subject: the module.
    """
    free = (subject.size, subject.mask, subject.call, subject.options.layout) == (None,) * 4
    if not free or subject.crossed or not subject.patient.is_module or subject.windows is not None:
        return []
    n = subject.n
    wide = {name: m for name, m in said_windows(subject.patient.module).items() if m >= n}
    words = "the end of a window ({}): all {} tokens fit into it, and size=(2, {}) tries more"
    if wide:
        name, m = max(wide.items(), key=lambda pair: pair[1])
        return [words.format(f"{name} = {m}", n, 2 * m)]
    filled = _filled_up(subject) if calls_pad(subject.patient.module) else 0
    return [words.format(f"of {filled}, as many as it fills up to", n, 2 * filled)] * bool(filled)


def _filled_up(subject: Subject) -> int:
    """Return how many tokens a module weighs, where that is the same for a longer text; else 0."""
    counts = []
    for number in (0, 1):
        b, n = (subject.b, subject.n) if number == 0 else subject.sizes(number)
        try:
            with Scores() as scores:
                subject.open_run(subject.patient.tokens(b, n, subject.e), number)
        except Exception:  # it takes so many tokens only
            return 0
        sizes = {t.shape[-1] for t in scores.heard if t.ndim > 2 and t.shape[-1] == t.shape[-2]}
        counts.append({m for m in sizes if m > n})
    return max(counts[0] & counts[1], default=0)
