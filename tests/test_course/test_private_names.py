"""Private names of torch are used in few files: a new torch may lack one."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools.course.registry import ROOT

FILES = [
    path
    for folder in ("utils", "checks", "tools", "clinic", "img", "resources")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
# Torch documents no other way to see every operation, and to the modes that are active. The clinic
# is a separate package.
HOMES = [ROOT / "checks/engine/call_tracer.py", ROOT / "tools/grading/remote_modes.py"]
HOMES += [ROOT / "clinic/attention_clinic/capture" / f"{name}.py" for name in ("module", "tape")]
# What torch.nn.Module keeps for itself.
OF_MODULES = {"_buffers", "_parameters", "_modules", "_forward_hooks", "_forward_pre_hooks"}
# Documented by Python.
PUBLIC = {"os._exit", "sys._getframe"}


def private_names(text: str) -> Iterator[str]:
    """Give the private names of torch, and of all that it imports, which a file uses."""
    nodes = list(ast.walk(ast.parse(text)))
    aliases = [a for n in nodes if isinstance(n, ast.Import | ast.ImportFrom) for a in n.names]
    imported = {(alias.asname or alias.name).partition(".")[0] for alias in aliases}
    for node in nodes:
        names = []
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [ast.unparse(node)]
            if node.attr in OF_MODULES:
                yield f"line {node.lineno}: {node.attr}"
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        for name in names:
            parts = str(name).split(".")
            if not {parts[0], parts[-1]} & {"torch", *imported} or name in PUBLIC:
                continue
            if any(p[0] == "_" and p[:2] != "__" for p in parts if p):
                yield f"line {node.lineno}: {name}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_private_names_are_used_in_their_files_only(path: Path) -> None:
    found = list(private_names(path.read_text(encoding="utf-8")))
    assert bool(found) == (path in HOMES), found


@pytest.mark.parametrize(
    "text",
    [
        "from torch.utils._device import DeviceContext",
        "import torch._dynamo",
        "torch._C._pop()",
        "module._buffers",
        "importlib.import_module('torch._dynamo')",
        "from utils.draw import style; style._png",
        "from utils.draw.style import _png",
    ],
)
def test_a_private_name_is_seen(text: str) -> None:
    assert list(private_names(text))
    assert not list(
        private_names("torch.__version__; torch.nn.Linear; self._own; import os; os._exit(0)")
    )
