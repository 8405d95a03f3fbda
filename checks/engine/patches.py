"""Wrong versions of a reference, each written as a change of its source."""

from __future__ import annotations

import inspect
import linecache
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, update_wrapper
from itertools import count
from textwrap import dedent
from typing import Any

from checks.engine.message import Message

# What is replaced and by what, once or several times: ("old", "new") or ("a", "b", "c", "d").
Patch = tuple[str, ...]
_number = count()


class Patched:
    """A reference with a changed source; compiled when it is first called.

    Args:
        reference: the right function or class, defined at the top of a file.
        patch: replaces every occurrence of a text.

    Raises:
        ValueError: a text is not in the source, or is replaced by itself.
    """

    def __init__(self, reference: Callable, patch: Patch):
        self._globals, self._name = _globals_of(reference), reference.__name__
        self.source = dedent(inspect.getsource(reference))
        for old, new in zip(patch[::2], patch[1::2], strict=True):
            if old not in self.source or old == new:
                raise ValueError(
                    f"patches: what is replaced must be in the source of {self._name} and differ, "
                    f"got {old!r}. Copy it from there."
                )
            self.source = self.source.replace(old, new)
        update_wrapper(self, reference, updated=())

    @cached_property
    def made(self) -> Callable:
        """The function or class that the source defines."""
        file = f"<patch {next(_number)} of {self._name}>"
        linecache.cache[file] = (len(self.source), None, self.source.splitlines(True), file)
        names = dict(self._globals)
        exec(compile(self.source, file, "exec"), names)
        return names[self._name]

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self.made(*args, **options)


def patches(
    reference: Callable, wrong: Mapping[Message | str, Patch | Sequence[Patch]]
) -> dict[Message | str, list[Patched]]:
    """Return the wrong versions of a reference by the id of their cause.

    >>> patches(softmax, {"softmax-over-queries": ("dim=-1", "dim=-2")})

    Args:
        reference: the right function or class.
        wrong: one patch for each cause, or a list of them.

    Raises:
        ValueError: a patch does not fit the source.
    """
    return {
        cause: [Patched(reference, one) for one in ([given] if isinstance(given, tuple) else given)]
        for cause, given in wrong.items()
    }


def _globals_of(reference: Callable) -> dict[str, Any]:
    if inspect.isclass(reference):
        return vars(inspect.getmodule(reference))
    return reference.__globals__
