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


def without_inputs(what: str) -> ValueError:
    """Return the error of a model that took none of the inputs that were made for it.

    Args:
        what: what is said.
    """
    error = ValueError(what)
    vars(error)["inputs"] = True
    return error


def wants_inputs(error: ValueError) -> bool:
    """Say whether a model was refused because it took none of the inputs made for it."""
    return vars(error).get("inputs", False)


def open_part(error: ValueError) -> str | None:
    """Return the first sentence of a refusal whose advice may be replaced, None for others."""
    return vars(error).get("what")
