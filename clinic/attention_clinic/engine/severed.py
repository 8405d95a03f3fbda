"""What is cut off from its gradient while a module runs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from attention_clinic.engine.modes import Mode

LARGEST = ("amax", "max")
ASKS = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy", "is_nonzero")
ASKS += ("equal", "allclose", "__contains__")  # what makes yes, no or a number of Python of tensors
COMPARES = ("__gt__", "__lt__", "__ge__", "__le__", "gt", "lt", "ge", "le", "argmax", "argmin")
CUTS = ("detach", "detach_", "item", "numpy", "tolist")


class Severed(Mode):
    """Hear whether something that learns is cut off; `.data` that is only changed is not.

    Attributes:
        inside: whether the module runs, not who calls it.
        cuts: whether a cut was heard.
        asked: whether the code asked its data, and may go on as they say.
        answers: what was compared or asked, and learns.
        tops: whether a largest number was cut off, which is taken from others to keep them small.
    """

    def __init__(self) -> None:
        super().__init__()
        self.inside = self.cuts = self.tops = self.asked = False
        self.answers: list[Tensor] = []
        self.largest: list[Tensor] = []
        self.bare: list[Tensor] = []  # what .data gave

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        self.asked |= self.inside and name in ASKS
        if self.inside and getattr(args[0] if args else None, "requires_grad", False):
            top = any(args[0] is one for one in self.largest)
            self.tops |= name in CUTS and top
            self.cuts |= name in CUTS and not top
            self.answers += [args[0]] * (name in ASKS or name in COMPARES)
            if func == Tensor.data.__get__:
                self.bare.append(result)
        if self.inside and name in LARGEST:
            self.largest.append(result if isinstance(result, Tensor) else result[0])
        if not _is_in_place(name):
            self.cuts |= any(value is bare for value in args for bare in self.bare)
        return result


def _is_in_place(name: str) -> bool:
    changes = name.endswith("_") and not name.endswith("__")
    return changes or name.startswith(("__i", "__set"))
