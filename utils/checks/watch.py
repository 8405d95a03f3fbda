"""Watch what an answer calls while it runs: forbidden shortcuts, and loops."""

from __future__ import annotations

import sys
from collections import Counter
from types import FrameType
from typing import Any

from torch.overrides import TorchFunctionMode

LIBRARIES = ("torch", "utils", "einops")


class Watch(TorchFunctionMode):
    """Count by name the functions of torch, einops and utils that run inside it.

    Methods of tensors and compiled functions are seen by torch's own interception, whatever name
    the answer gave them; functions written in Python by the interpreter's profiler.

    >>> with Watch() as watch:
    ...     answer(x)
    >>> watch.called["softmax"], watch.operations
    """

    def __init__(self):
        super().__init__()
        self.called: Counter[str] = Counter()
        self.operations = 0  # on tensors; grows with the sizes when the answer loops

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "").removeprefix("special_")
        self.called[name] += 1
        self.operations += name != "__get__"  # x.shape is no operation
        return func(*args, **(kwargs or {}))

    def _profile(self, frame: FrameType, event: str, _argument: Any) -> None:
        if event == "call":
            module = frame.f_globals.get("__name__") or ""
            if module.split(".")[0] in LIBRARIES and module != __name__:
                self.called[frame.f_code.co_qualname] += 1

    def __enter__(self):
        super().__enter__()
        self._before = sys.getprofile()
        sys.setprofile(self._profile)
        return self

    def __exit__(self, *exception):
        sys.setprofile(self._before)
        return super().__exit__(*exception)
