"""Trace what an answer calls while it runs: forbidden shortcuts, and loops."""

from __future__ import annotations

import sys
from collections import Counter
from types import CodeType, FrameType
from typing import Any

from torch import Tensor
from torch.overrides import TorchFunctionMode

from checks.engine.private import TorchDispatchMode

LIBRARIES = ("torch", "utils", "einops")


ACTIVE: list[Carried] = []  # what watches or changes answers now, the outermost first
KINDS: dict[str, type[Carried]] = {}


class Carried:
    """A mode around an answer that also applies when the answer runs in another process.

    There a mode of the same kind is entered, and this one is given what that one saw.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        KINDS[cls.__name__] = cls

    def settings(self) -> dict[str, Any]:
        """Return as JSON values what creates a mode of this kind."""
        return {}

    @classmethod
    def again(cls, settings: dict[str, Any], tensors: list[Tensor]) -> Carried:
        """Create such a mode, for a call that is given these tensors."""
        return cls(**settings)

    def note(self) -> dict[str, Any]:
        """Return as JSON values what it saw."""
        return {}

    def take(self, note: dict[str, Any]) -> None:
        """Add what a mode in another process saw."""

    def kept(self) -> Any:
        """Return what it saw so far: calls on the way to another process do not count."""

    def restore(self, kept: Any) -> None:
        """Forget what it saw since then."""

    def __enter__(self):
        ACTIVE.append(self)
        return super().__enter__()

    def __exit__(self, *exception):
        ACTIVE.remove(self)
        return super().__exit__(*exception)


class Beneath(TorchDispatchMode):
    """Count what runs in the end, for answers that bypass torch's interception.

    Examples are torch.ops.aten, a traced function, and a call that does a softmax internally.
    """

    def __init__(self, called: Counter[str]):
        super().__init__()
        self.called = called

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch loads its compiler at the first operation: two needless seconds.
        return False

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.called[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class TooLong(BaseException):
    """Too many operations to count; no `except Exception` may stop it."""


class CallTracer(Carried, TorchFunctionMode):
    """Count by name the functions of torch, einops and utils that run inside it.

    Methods of tensors and compiled functions are seen by torch's own interception, whatever name
    the answer gave them; functions written in Python by the interpreter's profiler, which also
    notes their code: `ran`.

    >>> with CallTracer() as tracer:
    ...     answer(x)
    >>> tracer.called["softmax"], tracer.operations

    Args:
        most: raises `TooLong` at more operations than this.
    """

    def __init__(self, most: float = float("inf")):
        super().__init__()
        self.most = most
        self.called: Counter[str] = Counter()
        self.ran: set[CodeType] = set()
        self.operations = 0  # on tensors; grows with the sizes when the answer loops

    def settings(self) -> dict[str, Any]:
        return {"most": self.most if self.most < float("inf") else None}

    @classmethod
    def again(cls, settings: dict[str, Any], tensors: list[Tensor]) -> CallTracer:
        return cls(settings["most"] or float("inf"))

    def note(self) -> dict[str, Any]:
        return {"called": dict(self.called), "operations": self.operations}

    def take(self, note: dict[str, Any]) -> None:
        self.called.update({str(name): int(count) for name, count in note["called"].items()})
        self.operations += int(note["operations"])

    def kept(self) -> Any:
        sys.setprofile(None)
        return dict(self.called), self.operations, set(self.ran)

    def restore(self, kept: Any) -> None:
        called, self.operations, self.ran = kept
        self.called.clear()
        self.called.update(called)
        sys.setprofile(self._profile)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "").removeprefix("special_").removeprefix("linalg_")
        self.called[name] += 1
        self.operations += name != "__get__"  # x.shape is not an operation
        if self.operations > self.most:
            raise TooLong
        return func(*args, **(kwargs or {}))

    def _profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            module = frame.f_globals.get("__name__") or ""
            if module.split(".")[0] in LIBRARIES and module != __name__:
                self.called[frame.f_code.co_qualname] += 1
                self.ran.add(frame.f_code)

    def __enter__(self):
        self._beneath = Beneath(self.called)
        self._beneath.__enter__()
        super().__enter__()
        self._before = sys.getprofile()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exception):
        sys.setprofile(self._before)
        super().__exit__(*exception)
        self._beneath.__exit__(*exception)
