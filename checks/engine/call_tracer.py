"""Trace what an answer calls while it runs: forbidden shortcuts, and loops."""

from __future__ import annotations

import sys
from collections import Counter
from contextlib import nullcontext
from types import CodeType, FrameType
from typing import Any

from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

LIBRARIES = ("torch", "utils", "einops")


class DispatchMode(TorchDispatchMode):
    """See every operation that runs."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # Otherwise torch imports its compiler at the first operation, which takes two seconds.
        return False


class Beneath(DispatchMode):
    """Count what runs in the end, for answers that bypass torch's interception.

    Examples are torch.ops.aten, a traced function, and a call that does a softmax internally.
    """

    def __init__(self, called: Counter[str]):
        super().__init__()
        self.called = called

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.called[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


class TooLong(BaseException):
    """Too many operations to count; no `except Exception` may stop it."""


class CallTracer(TorchFunctionMode):
    """Count by name the functions of torch, einops and utils that run inside it.

    Methods of tensors and compiled functions are seen by torch's own interception, whatever name
    the answer gave them; functions written in Python by the interpreter's profiler, which also
    notes their code: `ran`.

    >>> with CallTracer() as tracer:
    ...     answer(x)
    >>> tracer.called["softmax"], tracer.operations

    Args:
        most: raises `TooLong` at more operations than this.
        deep: also count by name what runs beneath these functions, which takes twice as long.
    """

    def __init__(self, most: float = float("inf"), deep: bool = True):
        super().__init__()
        self.most, self.deep = most, deep
        self.called: Counter[str] = Counter()
        self.ran: set[CodeType] = set()
        self.operations = 0  # on tensors; grows with the sizes when the answer loops

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
        self._beneath = Beneath(self.called) if self.deep else nullcontext()
        self._beneath.__enter__()
        super().__enter__()
        self._before = sys.getprofile()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exception):
        sys.setprofile(self._before)
        super().__exit__(*exception)
        self._beneath.__exit__(*exception)
