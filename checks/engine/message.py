"""What a check says, as data: an id and parameters. A language turns them into a sentence."""

from __future__ import annotations

import json
import math
import os
import re
import string
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from checks.engine.languages import ENGLISH, Forms, language, parameters

ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
CATALOGUE = "checks/locale/en/LC_MESSAGES/checks.po"
VARIABLE = "COURSE_LANGUAGE"  # of the environment: the language in which checks speak


@dataclass(frozen=True)
class Message:
    """One thing to say, in no language.

    Args:
        id: short words with hyphens, such as "softmax-over-queries"; never changed, because
            notebooks store it.
        params: what the sentence needs: JSON values, lists, and messages inside this one. Tuples
            become lists; floats keep six digits, so that the same is stored on every machine.
    """

    id: str
    params: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not ID.fullmatch(self.id):
            raise ValueError(
                f"Message: an id is made of small letters, numbers and hyphens, got {self.id!r}. "
                'Write for example "softmax-over-queries".'
            )
        object.__setattr__(self, "params", {k: _plain(v) for k, v in self.params.items()})

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True))

    def __str__(self) -> str:
        return say(self)

    @property
    def core(self) -> Message:
        """The message inside, for one that only says where: "with two heads, ..."."""
        inner = self.params.get("what")
        return inner.core if isinstance(inner, Message) else self

    def to_json(self) -> dict[str, Any]:
        """Return the message as JSON values."""
        return {"id": self.id, "params": {k: _to_json(v) for k, v in self.params.items()}}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Message:
        """Return the message that `to_json` wrote.

        Args:
            data: a dict with id and params.

        Raises:
            KeyError, TypeError, ValueError: it is something else.
        """
        return cls(data["id"], {k: _from_json(v) for k, v in data["params"].items()})


def message(id: str, /, **params: Any) -> Message:
    """Return a message whose sentence exists and uses these parameters.

    Args:
        id: of the sentence.
        params: by name, as the sentence calls them.

    Raises:
        ValueError: no English sentence has this id, or it takes different parameters.
    """
    sentences = language(ENGLISH).sentences
    if id not in sentences:
        raise ValueError(
            f"message: the id must have a sentence, got {id!r}. Write one in {CATALOGUE}."
        )
    if (wanted := parameters(sentences[id])) != set(params):
        raise ValueError(
            f"message: {id} takes the parameters {sorted(wanted)}, got {sorted(params)}. "
            f"Change the call, or the sentence in {CATALOGUE}."
        )
    return Message(id, params)


def as_message(said: Message | str) -> Message:
    """Return a message unchanged, or the message of an id that takes no parameters.

    Args:
        said: a message or an id.

    Raises:
        ValueError: no English sentence has this id, or it takes parameters.
    """
    if isinstance(said, Message):
        return said
    return message(said)


# -------------------------------------------------------------------------------------- languages


def say(said: Message, name: str | None = None) -> str:
    """Return the sentence of a message, without a full stop.

    Args:
        said: the message.
        name: of the language, such as "en"; default is the variable COURSE_LANGUAGE of the
            environment, and without it English.

    Raises:
        ValueError: no such language, no sentence, or a parameter is missing.
    """
    name = name or os.environ.get(VARIABLE) or ENGLISH
    own = language(name)
    chosen = own if said.id in own.sentences else language(ENGLISH)
    try:
        return _Sentence(name, chosen.forms).vformat(chosen.sentences[said.id], (), said.params)
    except KeyError as error:
        raise ValueError(
            f"say: a message needs a sentence and all its parameters, got {said.id} without "
            f"{error}. Write it in {CATALOGUE}."
        ) from None


class _Sentence(string.Formatter):
    """Fills a sentence: inner messages are said in the same language, forms are applied."""

    def __init__(self, language: str, forms: Forms):
        self.language, self.forms = language, forms

    def said(self, value: Any) -> Any:
        if isinstance(value, Message):
            return say(value, self.language)
        return [self.said(part) for part in value] if isinstance(value, list) else value

    def format_field(self, value: Any, form: str) -> str:
        value = self.said(value)
        if form in self.forms:
            return self.forms[form](value)
        if "|" in form:  # {count:axis|axes}
            one, more = form.split("|")
            return f"{value} {one if value == 1 else more}"
        if isinstance(value, str):  # not a number, though the sentence expects one
            return value
        return format(value, form)


# ------------------------------------------------------------------------------------- parameters


def _plain(value: Any) -> Any:
    if isinstance(value, tuple | list):
        return [_plain(part) for part in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else str(value)
    if value is None or isinstance(value, bool | int | str | Message):
        return value
    raise ValueError(
        f"Message: a parameter is text, a number, a list or a message, got {type(value).__name__}. "
        "Turn it into one of those."
    )


def _to_json(value: Any) -> Any:
    if isinstance(value, Message):
        return value.to_json()
    return [_to_json(part) for part in value] if isinstance(value, list) else value


def _from_json(value: Any) -> Any:
    if isinstance(value, dict):
        return Message.from_json(value)
    return [_from_json(part) for part in value] if isinstance(value, list) else value
