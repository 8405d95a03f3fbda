"""What differs a little from machine to machine: shown, kept in the notebook, comparable."""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from utils.draw.style import MEASURED, measured_here_only

BLOCKS = 30  # characters of the longest bar


def show_measured(
    numbers: Mapping[str, float],
    what: str,
    *,
    margin: float,
    form: str = "{:.1%}",
    full: float | None = None,
) -> None:
    """Show measured numbers as bars, in an output that stays in the saved notebook.

    Beside the table that a reader sees, the output holds the numbers and the margin as JSON. `make
    test` compares those: the same names, every number within the margin.

    >>> show_measured({"patch 4": 0.93, "patch 2": 0.61}, "accuracy on 360 digits", margin=0.05)

    Args:
        numbers: name -> number.
        what: what the numbers are, with the unit.
        margin: how far a number may lie from the stored one on another machine.
        form: how a number is written.
        full: the number that gets the longest bar; by default the largest.

    Raises:
        ValueError: no numbers, one that is not finite or is negative, or a margin below 0.
    """
    if not numbers or any(not 0 <= number < math.inf for number in numbers.values()):
        raise ValueError(
            "show_measured: numbers must be one or more finite numbers of at least 0, "
            f"got numbers={dict(numbers)}. Leave out what was not measured."
        )
    if not 0 <= margin < math.inf:
        raise ValueError(
            f"show_measured: margin must be at least 0, got margin={margin}. "
            "Try other seeds to see how far the numbers move."
        )
    full = full or max(numbers.values()) or 1.0
    written = {name: form.format(number) for name, number in numbers.items()}
    bars = {name: "█" * round(BLOCKS * min(1.0, n / full)) for name, n in numbers.items()}
    points = f"{100 * margin:.3g} percentage points" if "%" in form else form.format(margin)
    note = f"Measured where this cell last ran; elsewhere about {points} more or less."
    lines = "\n".join(
        f'<tr><th scope="row" style="text-align: left">{html.escape(name)}</th>'
        f'<td style="text-align: right">{html.escape(text)}</td>'
        f'<td aria-hidden="true" style="text-align: left">{bars[name]}</td></tr>'
        for name, text in written.items()
    )
    wide, high = max(map(len, written)), max(map(len, written.values()))
    plain = [f"{name:{wide}}  {text:>{high}}  {bars[name]}" for name, text in written.items()]
    from IPython.display import display

    display(
        {
            "text/html": f"<table>\n<caption>{html.escape(what)}</caption>\n<tbody>\n{lines}\n"
            f"</tbody></table>\n<p><small>{html.escape(note)}</small></p>",
            "text/plain": "\n".join([what, *plain, note]),
            MEASURED: {
                "version": 1,
                "margin": margin,
                "numbers": {name: round(float(number), 6) for name, number in numbers.items()},
            },
        },
        raw=True,
    )


def show_texts(texts: Sequence[str], what: str) -> None:
    """Show texts that a trained model wrote, in an output that stays in the saved notebook.

    On another machine the training ends a little otherwise, and its model writes other texts: `make
    test` compares only how many there are.

    >>> show_texts(["the cat sees the dog", "the small bird eats"], "written by GPT")

    Args:
        texts: one line each.
        what: who wrote them.

    Raises:
        ValueError: no texts, or a single text where a list is expected.
    """
    if isinstance(texts, str) or not texts:
        raise ValueError(
            f"show_texts: texts must be a list of at least one text, got texts={texts!r}. "
            "One text alone is [text]."
        )
    note = "Written where this cell last ran; elsewhere other texts."
    rows = "\n".join(f"<li>{html.escape(text)}</li>" for text in texts)
    from IPython.display import display

    display(
        {
            "text/html": f"<p>{html.escape(what)}</p>\n<ul>\n{rows}\n</ul>\n"
            f"<p><small>{html.escape(note)}</small></p>",
            "text/plain": "\n".join([what, *(f"  {text}" for text in texts), note]),
            MEASURED: {"version": 1, "margin": 0.0, "numbers": {"texts": len(texts)}},
        },
        raw=True,
    )


@contextmanager
def measured_here() -> Iterator[None]:
    """Mark the pictures that are shown inside as measured: another machine draws others.

    `make test` then compares only that there is a picture, not what it shows.
    """
    token = measured_here_only.set(True)
    try:
        yield
    finally:
        measured_here_only.reset(token)
