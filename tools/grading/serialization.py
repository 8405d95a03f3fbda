"""Serialization of values as JSON and bytes; reading executes nothing.

Numbers, strings, containers and tensors (as safetensors) are written in full. So are objects of the
course's `utils` and layers of torch, as the name of their class and their attributes. All other
objects (a student's function or class, a check's own layer) are lent: the other side gets a proxy
that forwards calls; see remote_objects.py.
"""

from __future__ import annotations

import importlib
import math
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load, save
from torch import Tensor, nn

# Modules whose classes both sides have: their objects are written with their attributes.
SHARED = re.compile(r"utils(\.\w+)+|torch\.nn\.modules\.\w+")
# Functions that both sides have.
KNOWN = {
    **{f"F.{name}": getattr(F, name) for name in ("gelu", "silu", "relu", "leaky_relu", "elu")},
    **{f"torch.{n}": getattr(torch, n) for n in ("relu", "sigmoid", "tanh", "exp", "sin", "cos")},
    **{f"F.{name}": getattr(F, name) for name in ("tanh", "sigmoid", "softmax", "softplus")},
}
CONTAINERS = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset, "size": torch.Size}
MAPPINGS = {"dict": dict, "odict": OrderedDict}
DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
DTYPES_OF_NUMPY = {"bool", "int8", "int16", "int32", "int64", "uint8"}
DTYPES_OF_NUMPY |= {"float16", "float32", "float64"}
MAX_NUMBERS = 50_000_000  # of one tensor
MAX_DEPTH = 60

# Copied before students' code may replace them.
_contiguous, _detach, _nested = Tensor.contiguous, Tensor.detach, Tensor.is_nested.__get__


class ProtocolError(Exception):
    """The other side sent something that is not a value."""


class Unserializable:
    """A result that cannot be written: a subclass of Tensor, a generator, a file."""


def shared_class(name: str) -> type:
    """Return a class that both sides have.

    Args:
        name: such as "utils.attention:MultiHeadAttention".

    Raises:
        ProtocolError: it is not a shared class.
    """
    module, _, inner = str(name).partition(":")
    if not SHARED.fullmatch(module) or not inner.isidentifier():
        raise ProtocolError(f"the class {name}")
    try:
        found = getattr(importlib.import_module(module), inner)
    except (ImportError, AttributeError):
        raise ProtocolError(f"the class {name}") from None
    if not isinstance(found, type) or found.__module__ != module:
        raise ProtocolError(f"the class {name}")
    return found


def name_of_shared(kind: type) -> str | None:
    """Return the name of a class that both sides have; None for any other."""
    module, name = kind.__module__, kind.__qualname__
    if not isinstance(module, str) or not SHARED.fullmatch(module) or not name.isidentifier():
        return None
    home = importlib.import_module(module) if module in importlib.sys.modules else None
    return f"{module}:{name}" if getattr(home, name, None) is kind else None


class Writer:
    """Serialize the values of one message.

    Args:
        lend: serializes what is not a value.
        later: whether `fill` writes the numbers of tensors.
    """

    def __init__(self, lend: Callable[[Any, Writer], Any], *, later: bool = False):
        self.lend, self._later = lend, later
        self._written_tensors: list[dict[str, Any]] = []
        self.tensors: list[Tensor] = []  # in the order of writing
        self._places: dict[int, int] = {}

    def write(self, value: Any, depth: int = 0) -> Any:
        """Return a value as JSON."""
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return value if math.isfinite(value) else {"k": "float", "v": repr(value)}
        if depth > MAX_DEPTH:
            return {"k": "opaque", "name": kind.__name__}
        if isinstance(value, Tensor):
            return self._tensor(value)
        for name, container in CONTAINERS.items():
            if kind is container:
                return {"k": name, "v": [self.write(part, depth + 1) for part in value]}
        for name, mapping in MAPPINGS.items():
            if kind is mapping:
                pairs = [[self.write(part, depth + 1) for part in pair] for pair in value.items()]
                return {"k": name, "v": pairs}
        return self._rest(value, kind, depth)

    def _rest(self, value: Any, kind: type, depth: int) -> Any:
        if kind.__module__ == "numpy" and isinstance(value, np.ndarray | np.generic):
            array = np.asarray(value)
            if str(array.dtype) not in DTYPES_OF_NUMPY:
                return {"k": "opaque", "name": kind.__name__}
            inner = self.tensor_to_bytes(torch.from_numpy(np.array(array, order="C")))
            one = kind is not np.ndarray
            return {"k": "array", "v": inner, "shape": list(array.shape), "one": one}
        if kind is bytes:
            return {"k": "bytes", "v": value}
        if kind is complex:
            return {"k": "complex", "v": [repr(value.real), repr(value.imag)]}
        if kind is range:
            return {"k": "range", "v": [value.start, value.stop, value.step]}
        if kind is torch.dtype:
            return {"k": "dtype", "v": str(value)}
        if kind is torch.device:
            return {"k": "device", "v": str(value)}
        if value is ...:
            return {"k": "ellipsis"}
        for name, function in KNOWN.items():
            if value is function:
                return {"k": "known", "v": name}
        return self.lend(value, self)

    def _tensor(self, value: Tensor) -> Any:
        plain = type(value) in (Tensor, nn.Parameter) and not _nested(value)
        if not plain or value.layout != torch.strided or value.is_quantized:
            return {"k": "opaque", "name": type(value).__name__}
        if id(value) in self._places:
            return {"k": "again", "v": self._places[id(value)]}
        self._places[id(value)] = len(self.tensors)
        self.tensors.append(value)
        data = {
            "k": "tensor",
            "v": b"" if self._later else self.tensor_to_bytes(value),
            "grad": value.requires_grad,
            "parameter": type(value) is nn.Parameter,
        }
        self._written_tensors.append(data)
        return data

    def fill(self, tensors: list[Tensor]) -> None:
        """Write the numbers of the tensors.

        Args:
            tensors: one for each that was written, in order.
        """
        for data, tensor in zip(self._written_tensors, tensors, strict=True):
            data["v"] = self.tensor_to_bytes(tensor)

    @staticmethod
    def tensor_to_bytes(value: Tensor) -> bytes:
        whole = _contiguous(_detach(value).cpu())
        if whole.is_conj() or whole.is_neg():
            whole = whole.resolve_conj().resolve_neg()
        return save({"t": whole.clone()})


class Reader:
    """Read the values of one message.

    Args:
        borrow: returns the object for what the other side lends.
    """

    def __init__(self, borrow: Callable[[dict[str, Any], Reader], Any]):
        self.borrow = borrow
        self.tensors: list[Tensor] = []

    def read(self, data: Any, depth: int = 0) -> Any:
        """Return the value of some JSON.

        Raises:
            ProtocolError: it is not a value.
        """
        if data is None or isinstance(data, bool | int | float | str):
            return data
        if not isinstance(data, dict) or depth > MAX_DEPTH + 10:
            raise ProtocolError("not a value")
        try:
            return self._read(data, data.get("k"), depth + 1)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, RuntimeError) as error:
            raise ProtocolError(f"{data.get('k')}: {error}"[:200]) from None

    def _read(self, data: dict[str, Any], kind: str, depth: int) -> Any:
        if kind in CONTAINERS:
            return CONTAINERS[kind]([self.read(part, depth) for part in data["v"]])
        if kind in MAPPINGS:
            pairs = ([self.read(part, depth) for part in pair] for pair in data["v"])
            return MAPPINGS[kind]((key, value) for key, value in pairs)
        if kind == "tensor":
            return self._tensor(data)
        if kind == "again":
            return self.tensors[data["v"]]
        if kind == "array":
            array = (
                self.tensor_from_bytes(data["v"]).numpy().reshape(tuple(map(int, data["shape"])))
            )
            return array[()] if data["one"] else array
        simple = {
            "float": lambda v: float({"inf": "inf", "-inf": "-inf"}.get(v, "nan")),
            "bytes": lambda v: memoryview(v).tobytes(),
            "complex": lambda v: complex(*map(float, v)),
            "range": lambda v: range(*v),
            "dtype": lambda v: DTYPES[v],
            "device": lambda v: torch.device("cpu"),
            "known": lambda v: KNOWN[v],
        }
        if kind in simple:
            return simple[kind](data["v"])
        if kind == "ellipsis":
            return ...
        if kind == "opaque":
            name = re.sub(r"\W", "_", str(data["name"]))[:60] or "Unserializable"
            return type(name, (Unserializable,), {})()
        return self.borrow(data, self)

    def _tensor(self, data: dict[str, Any]) -> Tensor:
        value = self.tensor_from_bytes(data["v"])
        wanted = bool(data["grad"]) and (value.is_floating_point() or value.is_complex())
        if data["parameter"]:
            value = nn.Parameter(value, requires_grad=wanted)
        elif wanted:
            value.requires_grad_(True)
        self.tensors.append(value)
        return value

    @staticmethod
    def tensor_from_bytes(data: bytes) -> Tensor:
        try:
            found = load(data)["t"]
        except Exception as error:  # safetensors has its own errors
            raise ProtocolError(f"a tensor: {error}"[:200]) from None
        if found.numel() > MAX_NUMBERS:
            raise ProtocolError(f"a tensor of {found.numel()} numbers")
        return found
