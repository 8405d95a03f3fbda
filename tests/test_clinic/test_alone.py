"""The clinic as a separate package: what it imports, how large it is, its types, its README."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

import attention_clinic

CLINIC = Path(attention_clinic.__file__).parents[1]
FILES = sorted((CLINIC / "attention_clinic").rglob("*.py"))
ORDER = ("capture", "catalogue", "behaviour", "attention", "blocks", "loading", "caching", "models")
MOST_LINES, MOST_FILES = 10_000, 45
LONGEST = 60  # lines of a function after its docstring
DOORS = 5  # places where any exception of a stranger's code is caught


@cache
def trees() -> list[tuple[Path, ast.Module]]:
    return [(path, ast.parse(path.read_text(encoding="utf-8"))) for path in FILES]


def test_it_needs_torch_and_einops_only() -> None:
    metadata = tomllib.loads((CLINIC / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {re.match(r"\w+", line)[0] for line in metadata["project"]["dependencies"]}
    assert needed == {"torch", "einops"}
    for path, tree in trees():
        for node in ast.walk(tree):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: absolute imports"
                names = [node.module or ""]
            for name in names:
                top = name.split(".")[0]
                own = top in {*needed, "attention_clinic", "__future__"}
                own = own or (top == "pytest" and path.name == "pytest_plugin.py")
                assert own or top in sys.stdlib_module_names, f"{path} imports {name}"


def test_one_person_can_read_it() -> None:
    """Its size, the size of files and functions, and the places that catch any exception."""
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in FILES}
    assert sum(sizes.values()) <= MOST_LINES and len(FILES) <= MOST_FILES
    assert not {path.name: size for path, size in sizes.items() if size > 400}
    doors = 0
    for path, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                code = node.body[1 if ast.get_docstring(node) else 0 :] or node.body
                length = node.end_lineno - code[0].lineno + 1
                assert length <= LONGEST, f"{path.name}: {node.name} is {length} lines long"
            if isinstance(node, ast.ExceptHandler):
                name = ast.unparse(node.type) if node.type else "Exception"
                doors += name in ("Exception", "BaseException")
    assert doors <= DOORS


def test_its_imports_run_one_way() -> None:
    """Packages import in one order, and no file imports itself through others."""
    known: dict[str, set[str]] = {}
    for path, tree in trees():
        name = ".".join(path.relative_to(CLINIC).with_suffix("").parts)
        nodes = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        imported = {node.module or "" for node in nodes}
        name = name.removesuffix(".__init__")
        known[name] = {m for m in imported - {name} if m.startswith("attention_")}
        # the catalogue of caches holds plans that their emulation carries out
        folder = "caching" if path.stem == "inference" else path.parent.name
        for other in known[name]:
            place = [*other.split("."), ""][1]
            if folder in ORDER and place in ORDER:
                assert ORDER.index(place) <= ORDER.index(folder), f"{name} imports {other}"
    while known:
        free = [name for name, imported in known.items() if not imported & known.keys()]
        assert free, f"a circle among {sorted(known)}"
        for name in free:
            del known[name]


USER = """
import torch
from torch import nn

from attention_clinic import BUGS, Bug, Explanation, Report, assert_healthy, diagnose
from attention_clinic import ModelReport, diagnose_block, diagnose_cache, diagnose_embedding
from attention_clinic import diagnose_loading, diagnose_loss, diagnose_model, diagnose_positions

module = nn.MultiheadAttention(24, 4, batch_first=True)
report: Report = diagnose(module, num_heads=4, mask=torch.ones(5, 5).bool(), causal=None)
explanations: tuple[Explanation, ...] = report.explanations
ids: tuple[str, ...] = report.ids
healthy: bool = report.healthy
bug: Bug = BUGS["scale-embed"]
assert_healthy(module, 4, size=(2, 5))
whole: ModelReport = diagnose_model(module, torch.zeros(2, 5, 24), num_heads=4, causal=None)
places: tuple[str, ...] = whole.rows[0].places
others: list[Report] = [
    diagnose(module),
    diagnose(module, 4, num_kv_heads=4),
    diagnose_block(nn.TransformerEncoderLayer(24, 4), 4, norm_first=False),
    diagnose_embedding(nn.Identity(), image_size=(8, 8), patch_size=4),
    diagnose_positions(lambda n, e: torch.zeros(n, e)),
    diagnose_loss(nn.functional.cross_entropy, next_token=True),
    diagnose_cache(module, cache=dict, call=lambda model, ids, cache, start: ids),
    diagnose_loading(lambda theirs: theirs, module, torch.ones(2, 5, 24)),
]
"""


def test_a_checker_of_types_accepts_a_user(tmp_path: Path) -> None:
    assert (CLINIC / "attention_clinic" / "py.typed").exists()
    # torch's own types would take half a minute to read
    (tmp_path / "mypy.ini").write_text(
        "[mypy]\nstrict = True\nfollow_imports = silent\n"
        "[mypy-torch.*]\nfollow_imports = skip\n[mypy-einops.*]\nfollow_imports = skip\n"
    )
    (tmp_path / "user.py").write_text(USER)
    wrong = USER + "wrong: str = report.healthy\ndiagnose(module, num_heads='4')\n"
    (tmp_path / "wrong.py").write_text(wrong)
    environment = {**os.environ, "MYPYPATH": str(CLINIC)}
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "user.py", "wrong.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert len(errors) == 2 and all(line.startswith("wrong.py") for line in errors), done.stdout


def test_readme_shows_what_diagnose_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = (CLINIC / "README.md").read_text(encoding="utf-8")
    code, said = re.search(r"```python\n(.*?)```\s+```\n(.*?)```", text, re.DOTALL).groups()
    exec(code, {"__name__": "readme"})
    assert capsys.readouterr().out == said
