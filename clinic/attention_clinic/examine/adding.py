"""Look for what a module adds to its scores, and for the windows that it cuts its tokens into."""

from __future__ import annotations

from attention_clinic.examine.made import made_of
from attention_clinic.examine.shells import shells_of
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.windows import windows_of


def is_plain(subject: Subject) -> bool:
    """Say whether a module is called on tokens alone."""
    bare = subject.mode is None and subject.options.cache is None
    return bare and not subject.crossed and subject.patient.is_module


def forget(subject: Subject) -> None:
    """Forget the calls that were made: others will lie in other windows, or get other parts."""
    for name in ("first", "second"):
        subject.__dict__.pop(name, None)


def find_bias(subject: Subject) -> bool:
    """Look for something that a module adds to its scores, and keep it from now on."""
    if not is_plain(subject):
        return False
    forget(subject)
    subject.biased = True
    added = subject.bias(subject.b, subject.n)
    ahead = added is not None and bool(added.isfinite().triu(1).any())
    subject.biased = added is not None and (ahead or subject.options.causal is not False)
    return subject.biased


def find_windows(subject: Subject) -> bool:
    """Look for windows that a module cuts its tokens into, and keep them from now on."""
    if not is_plain(subject) or subject.mask is not None:
        return False
    shape, layout = (subject.b, subject.n, subject.e), subject.patient.layout
    grid = layout.grid(subject.n) if layout is not None and layout.grids else None
    said = getattr(subject.patient.module, "cut_grid", None)  # of the block that it was cut out of
    grid = said if grid is None and isinstance(said, tuple) else grid
    leave_windows(subject)
    forget(subject)
    x = subject.patient.tokens(*shape, seed=41)
    subject.windows = windows_of(subject.patient.module, subject.open_run, x, subject.h, grid)
    subject.biased = subject.windows is not None
    if not subject.biased or subject.bias(subject.b, subject.n) is None:
        leave_windows(subject)
    return subject.biased


def leave_windows(subject: Subject) -> None:
    """Examine the tokens of a sample together again."""
    if subject.windows is None:
        return
    subject.windows, subject.biased = None, False
    subject.biases.clear()
    forget(subject)


def find_made(subject: Subject) -> bool:
    """Look for parts that make queries, keys and values, and keep them from now on."""
    if not is_plain(subject) or subject.mask is not None or subject.own_weights:
        return False
    x = subject.patient.tokens(subject.b, subject.n, subject.e, seed=43)
    module = subject.patient.module
    subject.made = made_of(module, subject.open_run, x, shells_of(module, subject.e))
    if subject.made is not None:
        subject.readers.clear()
        forget(subject)
    return subject.made is not None


def leave_made(subject: Subject) -> None:
    """Read the weights of the module as they are again."""
    subject.made = None
    subject.readers.clear()
    forget(subject)
