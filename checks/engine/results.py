"""Note the tensors that an answer makes on its way: how large they get, what is multiplied."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from torch import Tensor
from torch.overrides import TorchFunctionMode

from checks.engine.call_tracer import DispatchMode
from checks.engine.compare import tensors


class Results(TorchFunctionMode):
    """Note what functions of torch return inside it, by name and shape.

    >>> with Results(model.parameters()) as results:
    ...     model(x)
    >>> results.largest, results.made

    Args:
        but: tensors whose views are not noted, such as the parameters of a model.
    """

    def __init__(self, but: Iterable[Tensor] = ()):
        super().__init__()
        self.made: list[tuple[str, tuple[int, ...]]] = []
        self._known = {t.untyped_storage().data_ptr() for t in but}

    @property
    def largest(self) -> int:
        """How many numbers the largest of them holds."""
        return max((prod(shape) for _, shape in self.made), default=0)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tensors((result,)):
            if tensor.untyped_storage().data_ptr() not in self._known:
                self.made.append((getattr(func, "__name__", ""), tuple(tensor.shape)))
        return result


class Tables(DispatchMode):
    """Note the largest table of scores or masks that is made inside.

    Args:
        size: a table with more rows or columns is noted.
        narrow: only a wider tensor counts as a table.
    """

    def __init__(self, size: int, narrow: int):
        super().__init__()
        self.size, self.narrow = size, narrow
        self.found: tuple[int, int] | None = None

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for made in tensors(result):
            last = tuple(made.shape[-2:])
            if len(last) == 2 and min(last) > self.narrow and max(last) > self.size:
                self.found = last
        return result
