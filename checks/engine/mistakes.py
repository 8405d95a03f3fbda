"""The mistakes that the check of an exercise can name, found in the check itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from inspect import unwrap
from types import CodeType, FunctionType
from typing import Any

from checks.engine.languages import ENGLISH, language
from checks.engine.message import Message
from checks.engine.verdict import Check

COMMON = "Causes in any chapter"  # the section of their sentences


@dataclass(frozen=True)
class Mistake:
    """One mistake that a check can name.

    Args:
        cause: the id of its message.
        sentence: in English; a parameter is in braces.
        source: the function or table in the chapter's file that names it.
    """

    cause: str
    sentence: str
    source: str


def mistakes(check: Check) -> list[Mistake]:
    """Return the mistakes that a check can name, each once; an open exercise has none.

    Args:
        check: of one exercise.
    """
    english, sources = language(ENGLISH), {}
    sections = (english.sections.get(name, ()) for name in (COMMON, f"Chapter {check.id[:2]}"))
    causes = {id for section in sections for id in section}
    for text, source in _texts(check.function) if check.function else ():
        if text in causes:
            sources.setdefault(text, source)
    return [Mistake(id, english.sentences[id], source) for id, source in sources.items()]


def _texts(function: Callable) -> Iterator[tuple[str, str]]:
    """Yield each text in a check, and in what it uses of its file, with the name of its source."""
    names = unwrap(function).__globals__
    seen: dict[int, Any] = {}
    waiting: list[tuple[Any, str]] = [(function, function.__name__)]
    while waiting:
        thing, source = waiting.pop(0)
        thing = unwrap(thing)
        if isinstance(thing, str):
            yield thing, source
        elif isinstance(thing, FunctionType | type) and thing.__module__ != function.__module__:
            continue
        elif id(thing) not in seen:
            seen[id(thing)] = thing  # kept: a new object could get the same id
            waiting += [(part, source) for part in _parts(thing)]
            used = thing.co_names if isinstance(thing, CodeType) else ()
            waiting += [(names[name], name) for name in used if name in names]


def _parts(thing: Any) -> Iterator[Any]:
    """Yield what a function, a class, a container or a message holds."""
    match thing:
        case FunctionType():
            yield thing.__code__
        case CodeType():
            yield from thing.co_consts
        case type():
            yield from vars(thing).values()
        case Mapping():
            yield from (part for pair in thing.items() for part in pair)
        case list() | tuple() | frozenset():
            yield from thing
        case Message():
            yield from (thing.id, *thing.params.values())
