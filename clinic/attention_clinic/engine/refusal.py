"""Why a module was refused, apart from what to do about it."""

from __future__ import annotations


def refused(what: str, advice: str, final: bool = False) -> ValueError:
    """Return the error of a module that does not run, or returns something else.

    Args:
        what: the sentence that says so.
        advice: the sentence behind: what to do about it.
        final: True where nothing better can be found out.
    """
    error = ValueError(f"{what} {advice}")
    if not final:
        vars(error)["what"] = what
    return error


def open_part(error: ValueError) -> str | None:
    """Return the first sentence of a refusal whose advice may be replaced, None for others."""
    return vars(error).get("what")
