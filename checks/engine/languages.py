"""The sentences of the checks by language, read from gettext catalogues.

A language is a file, locale/<name>/LC_MESSAGES/checks.po: its message ids are ours, and
messages that it lacks are in English. A form changes how a parameter is written: `{shape:shape}`
is (2, 3), `{names:and}` joins a list, `{count:axis|axes}` counts.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from babel.messages.pofile import read_po

LOCALE = Path(__file__).resolve().parents[1] / "locale"
ENGLISH = "en"
Forms = Mapping[str, Callable[[Any], str]]


@dataclass(frozen=True)
class Language:
    """How to say messages.

    Args:
        sentences: by id; a parameter is in braces, `{name}`, or in a form, `{name:form}`.
        forms: what a form makes of a parameter, such as "and", which joins a list.
        sections: the ids of each section of the catalogue, such as "Chapter 03".
    """

    sentences: dict[str, str]
    forms: Forms
    sections: Mapping[str, tuple[str, ...]]


def _and(parts: list[Any]) -> str:
    said = [str(part) for part in parts]
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


# By language; what a language lacks it takes from English.
FORMS: dict[str, Forms] = {
    ENGLISH: {
        "shape": lambda sizes: str(tuple(sizes)),
        "shapes": lambda shapes: f"[{', '.join(str(tuple(shape)) for shape in shapes)}]",
        "and": _and,
        "numbers": lambda numbers: _and([f"{number:.3g}" for number in numbers]),
        "list": lambda parts: ", ".join(map(str, parts)),
        "plus": " + ".join,
        "quoted": lambda parts: ", ".join(map(repr, parts)),
        "repr": repr,
        "an": lambda name: f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}",
    }
}
LANGUAGES: dict[str, Language] = {}  # those that were read


def language(name: str) -> Language:
    """Return a language, read on first use.

    Args:
        name: such as "en".

    Raises:
        ValueError: there is no such catalogue.
    """
    if name not in LANGUAGES:
        path = LOCALE / name / "LC_MESSAGES" / "checks.po"
        if not path.is_file():
            known = sorted({ENGLISH, *LANGUAGES, *(p.name for p in LOCALE.iterdir() if p.is_dir())})
            raise ValueError(
                f"say: the language must be one of {known}, got {name!r}. "
                f"Set COURSE_LANGUAGE to one of them, or add {path.relative_to(LOCALE.parent)}."
            )
        LANGUAGES[name] = _read(name, path)
    return LANGUAGES[name]


def _read(name: str, path: Path) -> Language:
    sentences, sections, section = {}, {}, ""
    with path.open("rb") as file:
        for entry in read_po(file):
            if entry.id and entry.string:
                section = entry.auto_comments[0] if entry.auto_comments else section
                sentences[entry.id] = entry.string
                sections.setdefault(section, []).append(entry.id)
    parts = {title: tuple(ids) for title, ids in sections.items()}
    return Language(sentences, {**FORMS[ENGLISH], **FORMS.get(name, {})}, parts)


def parameters(sentence: str) -> set[str]:
    """Return the names of the parameters that a sentence uses.

    Args:
        sentence: with its braces.
    """
    return {name for _, name, _, _ in string.Formatter().parse(sentence) if name}
