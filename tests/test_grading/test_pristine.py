"""What counts as replaced: the student's own in the place of the library's, not a fresh copy."""

from __future__ import annotations

import importlib.util
import types
from pathlib import Path
from typing import Any

import pytest

from grading.pristine import alike

TEXT = """
import re
from dataclasses import dataclass
from functools import cache, partial
TABLE = {"a": 1, "b": (2, [3.0, None])}
PATTERN = re.compile("x")
ROUNDED = {"to 2": partial(round, ndigits=2)}

def plain(x, y=2, *, z="z"):
    return x + y

class Base:
    def __init__(self):
        super().__init__()

    @property
    def one(self):
        return 1

    @staticmethod
    def two():
        return 2

@dataclass(frozen=True)
class Record:
    name: str
    size: int = 3

@cache
def kept():
    return 1
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory) -> Path:
    made = tmp_path_factory.mktemp("alike") / "some.py"
    made.write_text(TEXT)
    return made


def loaded(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location("some", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_is_loaded_anew_is_alike(path):
    module = loaded(path)
    before = dict(vars(module))
    module.__spec__.loader.exec_module(module)
    for name in ("TABLE", "PATTERN", "ROUNDED", "plain", "Base", "Record", "kept"):
        assert getattr(module, name) is not before[name] or name == "PATTERN"
        assert alike(before[name], getattr(module, name)), name
    assert alike(loaded(path), loaded(path))


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("plain", "def plain(x, y=2, *, z='z'):\n    return True"),
        ("plain", "def plain(x, y=3, *, z='z'):\n    return x + y"),
        ("plain", "class plain: pass"),
        ("TABLE", "TABLE = {'a': 1, 'b': (2, [3.5, None])}"),
        ("TABLE", "TABLE = {'a': 1}"),
        ("TABLE", "TABLE = {'a': 1, 'b': (2, [print, None])}"),
        ("ROUNDED", "ROUNDED = {'to 2': partial(round, ndigits=3)}"),
        ("ROUNDED", "ROUNDED = {'to 2': partial(max, ndigits=2)}"),
        ("ROUNDED", "ROUNDED = {'to 2': round}"),
        ("Base", "class Base:\n    one = two = 1\n    def __init__(self): pass"),
        ("Base", "Base = type('Base', (), dict(vars(Base), two=staticmethod(lambda: 3)))"),
    ],
)
def test_another_thing_is_not(name, other, path):
    module = loaded(path)
    old = getattr(module, name)
    exec(other, vars(module))
    assert not alike(old, getattr(module, name))


def test_a_module_without_a_file_is_another(path):
    assert not alike(loaded(path), types.ModuleType("some"))


def test_the_same_code_with_other_globals_is_another(path):
    module = loaded(path)
    assert not alike(module.plain, types.FunctionType(module.plain.__code__, {}))
