"""Notices what a student's code replaced in the libraries with which its answers are judged.

Works in the process of the student's code. Everything that judging calls is noted before that code
begins; before and after every check it is compared and put back. Code that is out to deceive can
get around anything in its own process: `suspicion` looks for that in its text.
"""

from __future__ import annotations

import builtins
import importlib
import pkgutil
import re
import sys
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

# The packages of the course itself.
COURSE = ("utils", "checks", "attention_clinic")
# What judging calls, and no more: libraries change far corners of themselves when they are used.
LIBRARIES = re.compile(
    r"(einops|utils|checks|attention_clinic)(\..+)?|numpy(\.random)?|torch(\.(functional|_tensor|overrides|autograd|linalg"
    r"|random|nn|nn\.(functional|parameter|init|modules(\..+)?)))?"
)
# Standard modules that judging uses; sys has hooks that IPython changes, so only these of it.
STANDARD = (
    "contextlib copy dataclasses functools importlib inspect itertools linecache math operator"
)
STANDARD += " random re textwrap types warnings"
OF_SYS = ("setprofile", "getprofile", "settrace", "_getframe")
# Jupyter gives these of builtins other meanings.
JUPYTERS = {"input", "exit", "quit", "help", "copyright", "credits", "license", "open", "display"}
# What the course itself changes while it runs.
CHANGES = {"_SEEN"}
# torch calls what stands in these for every module that it runs.
HOOKS = (
    "_global_forward_hooks",
    "_global_forward_pre_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
    "_global_buffer_registration_hooks",
)
# What is replaced by those who mean no harm; it is put back and not told.
INNOCENT = {
    "torch.Storage",  # torch.set_default_dtype does it
    "warnings.showwarning",  # Python's own documentation says: replace it
    "warnings.formatwarning",
}
COMPILER = "/torch/_dynamo/"  # torch.compile wraps parts of nn.Module when it is first used
# Parts of a class that decide nothing, or follow from the others.
UNSEEN = ("__dict__", "__weakref__", "__doc__", "__dataclass_fields__", "__dataclass_params__")
PLAIN = (int, float, complex, str, bytes, type(None), re.Pattern, Path)
PARTS = ("__code__", "__defaults__", "__kwdefaults__", "__closure__")
MISSING = object()


def load_course() -> None:
    """Imports all that checks use, so that nothing of it is new to a student's code."""
    from checks.engine import private

    private.find("dynamo")  # loaded at the first check, wraps torch.manual_seed
    for name in COURSE:
        package = importlib.import_module(name)
        for found in pkgutil.walk_packages(package.__path__, f"{name}."):
            importlib.import_module(found.name)


def alike(old: Any, new: Any) -> bool:
    """Says whether something is only a fresh copy of what stood there, as reloading makes one.

    Whatever is found is put back: this decides alone whether a student is blamed for it.
    """
    if old is new:
        return True
    if type(old) is not type(new):
        return False
    if isinstance(old, ModuleType):
        places = [getattr(module, "__file__", None) for module in (old, new)]
        return places[0] is not None and places[0] == places[1]
    if isinstance(old, FunctionType):
        return _alike_functions(old, new)
    if isinstance(old, type):
        names = [key for key in vars(old) if key not in UNSEEN]
        return vars(old).keys() == vars(new).keys() and all(
            alike(vars(old)[key], vars(new)[key]) for key in names
        )
    if isinstance(old, property):
        return all(alike(getattr(old, k), getattr(new, k)) for k in ("fget", "fset", "fdel"))
    if isinstance(old, staticmethod | classmethod):
        return alike(old.__func__, new.__func__)
    if isinstance(old, dict):
        return old.keys() == new.keys() and all(alike(old[key], new[key]) for key in old)
    if isinstance(old, list | tuple):
        return len(old) == len(new) and all(map(alike, old, new))
    if isinstance(old, set | frozenset):
        return old == new and all(isinstance(each, PLAIN) for each in old)
    if isinstance(old, partial):
        parts = ((each.func, each.args, each.keywords) for each in (old, new))
        return alike(*parts)
    if hasattr(old, "__wrapped__"):  # functools.cache
        return alike(old.__wrapped__, getattr(new, "__wrapped__", None))
    return isinstance(old, PLAIN) and old == new


def _alike_functions(old: FunctionType, new: FunctionType) -> bool:
    if COMPILER in new.__code__.co_filename.replace("\\", "/"):
        return True
    if new.__code__ != old.__code__:
        return False
    if new.__code__.co_filename == "<string>":  # written by dataclasses
        return True
    if new.__globals__ is not old.__globals__:
        return False
    parts = [(old.__defaults__, new.__defaults__), (old.__kwdefaults__, new.__kwdefaults__)]
    for name, *cells in zip(
        old.__code__.co_freevars, old.__closure__ or (), new.__closure__ or (), strict=True
    ):
        if name != "__class__":  # the class of super(), which is compared already
            parts.append(tuple(cell.cell_contents for cell in cells))
    return all(alike(*pair) for pair in parts)


class Pristine:
    """What the libraries were before a student's code ran."""

    def __init__(self) -> None:
        self.modules = {
            name: module
            for name, module in sys.modules.items()
            if LIBRARIES.fullmatch(name) or name in ("builtins", "sys", *STANDARD.split())
        }
        # Each entry: what to call it, the namespace, the name in it, what stood there.
        self.entries: list[tuple[str, Any, str, Any]] = []
        self.functions: dict[FunctionType, tuple[Any, ...]] = {}
        self.names: list[tuple[str, Any, frozenset[str]]] = []
        seen: set[int] = set()
        for name, module in self.modules.items():
            for key, value in list(vars(module).items()):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # to look at old names makes torch warn
                    if not self._counts(name, key, value):
                        continue
                self.entries.append((f"{name}.{key}", vars(module), key, value))
                self._look_into(f"{name}.{key}", value, seen)
            if name.split(".")[0] in COURSE:
                self.names.append((name, vars(module), frozenset(vars(module))))
        hooks = vars(sys.modules["torch.nn.modules.module"])
        self.hooks = {name: hooks[name] for name in HOOKS if name in hooks}

    @staticmethod
    def _counts(module: str, key: str, value: Any) -> bool:
        if module == "builtins":
            return key not in JUPYTERS and callable(value)
        if module == "sys":
            return key in OF_SYS
        if module.split(".")[0] in COURSE:
            return not key.startswith("__") and key not in CHANGES
        return callable(value) or isinstance(value, ModuleType)

    def _look_into(self, label: str, value: Any, seen: set[int]) -> None:
        """Notes what can be changed inside a function, a class or a table."""
        if id(value) in seen:
            return
        seen.add(id(value))
        home = str(getattr(value, "__module__", "")).split(".")
        ours = home[0] in (*COURSE, "einops")
        if isinstance(value, FunctionType):
            self.functions[value] = tuple(getattr(value, part) for part in PARTS)
        elif isinstance(value, type) and (
            ours
            or home[:2] == ["torch", "nn"]
            or home[:2] in (["torch", "_tensor"], ["torch", "overrides"])
        ):
            self.names.append((label, value, frozenset(vars(value))))
            for key, inner in list(vars(value).items()):
                if callable(inner) or isinstance(inner, property | staticmethod | classmethod):
                    self.entries.append((f"{label}.{key}", value, key, inner))
                    self._look_into(f"{label}.{key}", inner, seen)
        elif isinstance(value, dict) and label.split(".")[0] in COURSE:
            for key, inner in value.items():
                self.entries.append((f"{label}[{key!r}]", value, key, inner))
                self._look_into(f"{label}[{key!r}]", inner, seen)
        elif ours and hasattr(value, "__dict__") and not isinstance(value, ModuleType):
            for key, inner in vars(value).items():
                self.entries.append((f"{label}.{key}", vars(value), key, inner))
                self._look_into(f"{label}.{key}", inner, seen)

    def put_back(self) -> list[str]:
        """Puts everything back to what it was; returns the names of what was replaced."""
        sys.settrace(None)
        return list(dict.fromkeys(self._put_back()))

    def _put_back(self) -> Iterator[str]:
        for name, module in self.modules.items():
            found = sys.modules.get(name)
            if found is not module:
                sys.modules[name] = module
                # Whoever deletes a module wants to load it anew.
                if found is not None and not alike(module, found):
                    yield f"sys.modules[{name!r}]"
        for label, space, key, value in self.entries:
            table = space if isinstance(space, dict) else vars(space)
            found = table.get(key, MISSING)
            if found is not value:
                if isinstance(space, dict):
                    space[key] = value
                else:
                    setattr(space, key, value)
                # torch.manual_seed = 0 is a slip of who meant to call it, and deceives nobody.
                slip = not callable(found) and found is not MISSING
                if slip and label.split(".")[0] not in COURSE:
                    continue
                if label not in INNOCENT and not alike(value, found):
                    yield label
        for function, parts in self.functions.items():
            for part, value in zip(PARTS, parts, strict=True):
                if getattr(function, part) is not value:
                    if part != "__closure__":  # it cannot be changed, so it was not
                        setattr(function, part, value)
                    yield f"{function.__module__}.{function.__qualname__}.{part}"
        for label, space, names in self.names:
            table = space if isinstance(space, dict) else vars(space)
            for key in [k for k in table if k not in names]:
                if self._shadows(space, key):
                    if isinstance(space, dict):
                        del space[key]
                    else:
                        delattr(space, key)
                    yield f"{label}.{key}"
        for name, table in self.hooks.items():
            if table:
                table.clear()
                yield f"torch.nn.modules.module.{name}"
        yield from self._modes()

    @staticmethod
    def _shadows(space: Any, key: str) -> bool:
        """Says whether a new name hides one that judging would have found behind it."""
        if isinstance(space, dict):
            return hasattr(builtins, key)
        return any(key in vars(base) for base in space.__mro__[1:])

    @staticmethod
    def _modes() -> Iterator[str]:
        from checks.engine import private

        left = private.find("function_modes")()
        default = private.find("DeviceContext")
        if any(not isinstance(mode, default) for mode in left):
            for mode in left:
                private.find("pop_torch_function_stack")()
                if not isinstance(mode, default):
                    yield f"the functions of torch, by {type(mode).__name__}"
