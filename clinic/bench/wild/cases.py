"""The cases: data in TOML, nothing of the strangers' code."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "cases"
TRUTHS, SHARES, FOUND = ("healthy", "bug", "variant"), ("open", "last"), ("sample", "hunted")
NONE = "none"  # a bug or variant for which the catalogue has no id


@dataclass(frozen=True)
class Case:
    """One module of a stranger and the truth about it.

    Args:
        id: a name of its own: small letters, digits and hyphens.
        repository: owner/name on GitHub, or the URL of a git repository.
        commit: 40 hexadecimal digits.
        file: the place in the repository, .py or .ipynb.
        build: a Python expression that makes the module, in the namespace of the file.
        asked: keyword arguments that are part of the question, such as "num_heads=4, causal=True".
        truth: healthy, bug or variant.
        says: who says so: the line that was read, or a thread.
        ids: all bugs of a sick module, all variants of another.
        setup: lines that run before `build`, for a package that is not there.
        tool: the function of the clinic that examines it.
        help: further arguments, given only when the call without them is refused.
        variants: what a sick module does in another way on purpose.
        also: other sets of ids that are the same finding.
        found: sample when it was read because its repository came up, hunted when it was looked
            for because of its bug, or was kept among others because it shows something: only a
            sample says how often something happens.
        share: open, or last: nobody looks at the verdicts of the last before the work is done.
        corrected: what was misread at first, "" when nothing was.
    """

    id: str
    repository: str
    commit: str
    file: str
    build: str
    asked: str
    truth: str
    says: str
    ids: tuple[str, ...] = ()
    setup: str = ""
    tool: str = "diagnose"
    help: str = ""
    variants: tuple[str, ...] = ()
    also: tuple[tuple[str, ...], ...] = ()
    found: str = "sample"
    share: str = "open"
    corrected: str = ""

    @property
    def url(self) -> str:
        """Where git finds the repository."""
        named = re.fullmatch(r"[\w.-]+/[\w.-]+", self.repository)
        return f"https://github.com/{self.repository}" if named else self.repository


@cache  # two megabytes of TOML
def read_cases(folder: Path = FOLDER) -> tuple[Case, ...]:
    """Return all cases of a folder, file by file.

    Args:
        folder: holds files `*.toml` of tables `[[case]]`.

    Raises:
        ValueError: a file that is no TOML, or a case that breaks a rule.
    """
    found: list[Case] = []
    for path in sorted(folder.glob("*.toml")):
        try:
            entries = tomllib.loads(path.read_text(encoding="utf-8")).get("case", [])
        except tomllib.TOMLDecodeError as error:
            raise ValueError(
                f"cases: {path.name} must be TOML, got {error}. Mend that line."
            ) from error
        found += [_case(entry, path.name) for entry in entries]
    if not found:
        raise ValueError(
            f"cases: {folder} must hold cases, got none. Write them into a file of .toml there."
        )
    names = [case.id for case in found]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"cases: ids must differ, got {name} twice. Rename one.")
    return tuple(found)


def _case(entry: dict, place: str) -> Case:
    """Make one case of one table, and look whether it keeps the rules."""
    known = {field.name for field in fields(Case)}
    name = f"{place}: {entry.get('id', 'a case without an id')}"
    for key in sorted(set(entry) - known):
        raise ValueError(f"cases: {name}: keys are {sorted(known)}, got {key}. Rename or drop it.")
    values = {key: _frozen(value) for key, value in entry.items()}
    try:
        case = Case(**values)
    except TypeError as error:
        raise ValueError(f"cases: {name}: {error}. Add what is missing.") from error
    rules = (
        ("id", re.fullmatch(r"[a-z0-9][a-z0-9-]*", case.id), "small letters, digits, hyphens"),
        ("commit", re.fullmatch(r"[0-9a-f]{40}", case.commit), "40 hexadecimal digits"),
        ("file", case.file.endswith((".py", ".ipynb")), "a .py or an .ipynb"),
        ("truth", case.truth in TRUTHS, f"one of {TRUTHS}"),
        ("share", case.share in SHARES, f"one of {SHARES}"),
        ("found", case.found in FOUND, f"one of {FOUND}"),
        ("ids", bool(case.ids) == (case.truth != "healthy"), "named unless it is healthy"),
        ("says", len(case.says) > 8, "who says so, and where it stands"),
    )
    for key, kept, rule in rules:
        if not kept:
            raise ValueError(
                f"cases: {name}: {key} must be {rule}, got {getattr(case, key)!r}. Mend it."
            )
    return case


def _frozen(value: object) -> object:
    """Turn lists into tuples, inner ones too."""
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value


def chosen(cases: Sequence[Case], share: str = "", only: str = "") -> tuple[Case, ...]:
    """Return the cases of a share whose id holds a text.

    Args:
        cases: all of them.
        share: open or last; "" for both.
        only: a part of the id; "" for all.
    """
    return tuple(c for c in cases if share in ("", c.share) and only in c.id)
