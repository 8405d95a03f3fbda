"""The clinic as a distribution of its own: beside any project, in a test, as a command, typed."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path

import pytest
from patients.attention import Views, ViewsScaledByEmbed

import attention_clinic
from attention_clinic import assert_healthy
from attention_clinic.__main__ import main

CLINIC = Path(attention_clinic.__file__).parents[1]
PLUGIN = "attention_clinic.pytest_plugin"
SICK = """
from torch import nn


class Sick(nn.Module):
    def __init__(self, width=24, heads=4, root=0.5):
        super().__init__()
        self.heads, self.root = heads, root
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** self.root
        return self.proj((scores.softmax(-2) @ v).transpose(1, 2).reshape(b, n, e))


class Healthy(Sick):
    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** self.root
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, e))


def make(width):
    return Healthy(width)


ready = Sick()
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A stranger's project with a `utils` of its own, in every form."""
    (tmp_path / "utils").mkdir()
    (tmp_path / "utils" / "__init__.py").write_text("OWN = True\n")
    (tmp_path / "utils" / "masking.py").write_text("raise ImportError('of the project')\n")
    (tmp_path / "utils" / "shapes.py").write_text("def check(x): return x\n")
    (tmp_path / "model.py").write_text(f"import utils\nassert utils.OWN\n{SICK}")
    return tmp_path


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a folder that finds nothing of the course but the clinic."""
    environment = {**os.environ, "PYTHONPATH": str(CLINIC), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_it_needs_torch_and_einops_only() -> None:
    metadata = tomllib.loads((CLINIC / "pyproject.toml").read_text(encoding="utf-8"))
    needed = {re.match(r"\w+", line)[0] for line in metadata["project"]["dependencies"]}
    assert needed == {"torch", "einops"}
    for path in (CLINIC / "attention_clinic").rglob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 400, path
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{path}: absolute imports"
                names = [node.module or ""]
            for name in names:
                top = name.split(".")[0]
                own = top in {*needed, "attention_clinic", "__future__"}
                own = own or (top == "pytest" and path.name == "pytest_plugin.py")  # it loads it
                assert own or top in sys.stdlib_module_names, f"{path} imports {name}"


def test_its_imports_run_one_way() -> None:
    """Forward `engine`, `bugs`, `examine`, and inside a folder without a circle."""
    order = ("engine", "bugs", "examine")
    known: dict[str, set[str]] = {}
    for path in (CLINIC / "attention_clinic").rglob("*.py"):
        name = ".".join(path.relative_to(CLINIC).with_suffix("").parts)
        lines = path.read_text(encoding="utf-8").splitlines()
        imported = {line.split()[1] for line in lines if line.lstrip().startswith("from attention")}
        known[name.removesuffix(".__init__")] = imported
        folder = path.parent.name
        for other in imported:
            place = other.split(".")[1]
            if folder in order and place in order:
                assert order.index(place) <= order.index(folder), f"{name} imports {other}"
    while known:
        free = [name for name, imported in known.items() if not imported & known.keys()]
        assert free, f"a circle among {sorted(known)}"
        for name in free:
            del known[name]


def test_it_stands_beside_a_utils_of_the_project(project: Path) -> None:
    code = (
        "import model, utils; from attention_clinic import diagnose; "
        "print(diagnose(model.Sick(), 4).ids, utils.OWN)"
    )
    done = run(project, "-c", code)
    assert done.stdout == "('softmax-query',) True\n", done.stderr
    for path in (project / "utils").iterdir():
        path.unlink()
    (project / "utils").rmdir()
    (project / "utils.py").write_text("OWN = True\n")
    assert run(project, "-c", code).stdout == "('softmax-query',) True\n"
    done = run(project, "-m", "attention_clinic", "model.py:Sick", "--num-heads", "4")
    assert done.returncode == 1 and "softmax-query" in done.stdout


def test_a_failing_assertion_prints_the_fix(project: Path) -> None:
    (project / "test_model.py").write_text(
        "import model\nfrom attention_clinic import assert_healthy, diagnose\n"
        "def test_healthy(): assert_healthy(model.Healthy(), num_heads=4)\n"
        "def test_sick(): assert_healthy(model.Sick(), num_heads=4)\n"
        "def test_by_hand(): assert diagnose(model.Sick(), 4)\n"
        "def test_attribute(): assert diagnose(model.Sick(), 4).healthy\n"
    )
    # an installed distribution brings it, and then it must not be named a second time
    brought = any(e.value == PLUGIN for e in entry_points(group="pytest11"))
    plugin = () if brought else ("-p", PLUGIN)
    # -rN: the summary of the failures says each once more, whole where CI is set
    done = run(project, "-m", "pytest", "-qrN", "-p", "no:cacheprovider", "--rootdir", ".", *plugin)
    assert "3 failed, 1 passed" in done.stdout, done.stdout
    assert done.stdout.count("take the softmax over the keys, dim=-1.") >= 3
    assert done.stdout.count("  Checked: projections, split") == 2, "the whole report, once"
    with pytest.raises(AssertionError) as caught:
        assert_healthy(ViewsScaledByEmbed(24, 4), num_heads=4)
    assert "Fix: divide by head_dim ** 0.5" in str(caught.value)
    assert_healthy(Views(24, 4), num_heads=4)
    with pytest.raises(AssertionError, match="mask-not-causal"):
        assert_healthy(Views(24, 4), num_heads=4, causal=True)


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ("model.py:Healthy --num-heads 4", 0, "Healthy: healthy"),
        ("model.py:Sick --num-heads 4", 1, "softmax-query"),
        ("model.py:ready --num-heads 4", 1, "softmax-query"),
        ("model.py:make --num-heads 4 --args 32", 0, "4 heads of 32 wide"),
        ("model.py:Healthy --num-heads 4 --args 24 root=0.25", 1, "scale-other"),
        ("model.py:Healthy --num-heads 4 --causal", 1, "mask-not-causal"),
        ("model.py:Healthy --num-heads 4 --size 1 7 --embed-dim 24", 0, "healthy"),
        ("torch.nn:MultiheadAttention --num-heads 4 --args 24 4", 0, "healthy"),
        ("model.py:Healthy --num-heads 5", 2, "num_heads must divide"),
        ("model.py:Nobody --num-heads 4", 2, "Its modules are Sick, Healthy."),
        ("model.py --num-heads 4", 2, "PLACE:NAME"),
        ("missing.py:Sick --num-heads 4", 2, "there is no file missing.py"),
        ("model.py:Sick --num-heads 4 --args 1 2 3 4", 2, "Give them as --args for Sick(width=24"),
        ("model.py:make --num-heads 4", 2, "Give them as --args for make(width)"),
        ("model.py:nn --num-heads 4", 2, "must be built by its arguments"),
        ("no.such.package:Sick --num-heads 4", 2, "No module named 'no'"),
    ],
)
def test_the_command(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: str,
    status: int,
    words: str,
) -> None:
    (project / "model.py").write_text(SICK)
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    assert main(arguments.split()) == status
    said = capsys.readouterr()
    assert words in (said.err if status == 2 else said.out)
    assert not (said.out if status == 2 else said.err)


def test_heads_are_read_off_the_module_or_asked_for(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "model.py").write_text(SICK.replace("self.heads", "self.parts"))
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    assert main(["model.py:Healthy"]) == 0, "the softmax says it"
    assert "4 heads of 24 wide" in capsys.readouterr().out
    assert main(["torch.nn:Linear", "--args", "24", "24"]) == 2
    assert "num_heads must be given" in capsys.readouterr().err


def test_check_examines_whole_files(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Every model of a file, none of what it imports; JSON and annotations for programs."""
    (project / "model.py").write_text(SICK.replace("root=0.5", "root=0.5, odd=0"))
    (project / "needs.py").write_text(
        "from model import Healthy, nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self, wording, num_heads):\n        super().__init__()\n"
        "        self.attend = Healthy(wording, num_heads)\n"
        "    def forward(self, x): return self.attend(x)\n"
    )
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("model", "needs"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def said(*arguments: str) -> tuple[int, str]:
        return main(["check", *arguments]), capsys.readouterr().out

    status, text = said("model.py", "--json")
    found = {one["target"]: one for one in json.loads(text)}
    assert status == 1 and list(found) == ["model.py:Sick", "model.py:Healthy", "model.py:ready"]
    assert [one["healthy"] for one in found.values()] == [False, True, False]
    assert found["model.py:Sick"]["rows"][0]["explanations"][0]["ids"] == ["softmax-query"]
    assert found["model.py:Sick"]["file"] == "model.py" and found["model.py:Sick"]["line"] == 5
    status, text = said("model.py:Sick", "--github")
    assert status == 1 and text.startswith("::error file=model.py,line=5,title=")
    assert "softmax-query::takes the softmax over the queries" in text and text.count("\n") == 1
    status, text = said("needs.py", "model.py:Healthy")
    assert status == 0 and "name it as needs.py:Net(...)" in text and "Healthy: healthy" in text
    status, text = said("needs.py:Net(24, 4)", "--github")
    assert (status, text) == (0, "\n")
    assert main(["check", "gone.py"]) == 2 and "there is no file gone.py" in capsys.readouterr().err
    assert main(["check", "needs.py:Net(1)"]) == 2


def test_check_says_which_model_needs_inputs_and_examines_the_others(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "model.py").write_text(
        SICK + "\n\nclass Odd(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.layers = nn.ModuleList([nn.Linear(24, 24)])\n"
        "    def forward(self, words, kind): raise RuntimeError('no such kind')\n"
    )
    monkeypatch.chdir(project)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "model", raising=False)
    assert main(["check", "model.py"]) == 1
    text = capsys.readouterr().out
    assert "model.py:Odd: skipped, diagnose_model: Odd must run on inputs" in text
    assert "inputs=(words, kind,)" in text and "Healthy: healthy" in text
    assert main(["check", "model.py:Odd"]) == 2


ATTEND = """
from torch import nn


class Attend(nn.Module):
    def __init__(self, width=24):
        super().__init__()
        self.heads = 4
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, 4, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** 0.5
        return self.proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, e))
"""
AROUND = """
from torch import nn

from parts import Attend

print("loading", __name__)


class Feed(nn.Module):
    def __init__(self, width, wording):
        super().__init__()
        self.line = nn.Linear(width, width)

    def forward(self, x):
        return self.line(x)


class Whole(nn.Module):
    def __init__(self):
        super().__init__()
        self.attend = Attend()

    def forward(self, x):
        return self.attend(x)
"""


@pytest.fixture
def said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """What `check` says in a folder of two projects, each with other files of the same names."""
    for folder, softmax in (("one", "softmax(-1)"), ("two", "softmax(-2)")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "parts.py").write_text(ATTEND.replace("softmax(-1)", softmax))
        (tmp_path / folder / "whole.py").write_text(AROUND)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def said(*arguments: str) -> tuple[int, str, str]:
        status = main(["check", *arguments])
        return status, *capsys.readouterr()

    return said


Said = Callable[..., tuple[int, str, str]]


def test_files_of_one_name_do_not_meet(said: Said) -> None:
    """Each file gets its own neighbours; what it prints stands in no report."""
    before = set(sys.modules)
    status, out, err = said("one/whole.py", "two/whole.py", "--json")
    first, second = (one for one in json.loads(out) if "skipped" not in one)
    assert (status, first["healthy"], second["healthy"]) == (1, True, False)
    assert "loading whole" in err and second["rows"][0]["explanations"]
    assert not {"whole", "parts"} & (set(sys.modules) - before)
    assert said("two/whole.py", "one/whole.py")[0] == 1
    assert said("one/whole.py", "one/parts.py")[0] == 0


def test_an_annotation_stands_at_the_class_that_is_wrong(said: Said) -> None:
    """Not at what holds it, and once for all who hold it."""
    status, out, _ = said("two/whole.py", "two/parts.py", "--github")
    notice, *errors = out.splitlines()
    assert status == 1 and len(errors) == 1 and notice.startswith("::notice file=two/whole.py")
    assert errors[0].startswith("::error file=two/parts.py,line=5,title=Attend%3A softmax-query::")


def test_what_is_named_and_not_examined_does_not_pass(said: Said) -> None:
    for place, words in (
        ("one/whole.py:Feed", "name it as one/whole.py:Feed(...)"),
        ("one/whole.py:Feed(24, 1)", "nothing was found that could be examined"),
    ):
        status, out, _ = said(place)
        assert status == 2 and words in out
        status, out, _ = said(place, "--github")
        assert status == 2 and out.startswith("::error file=one/whole.py,line=9,title=Feed%3A ")
    assert said("one/whole.py")[0] == 0, "in a file it is one of many"


def test_folders_and_packages(said: Said, tmp_path: Path) -> None:
    """A folder is walked, a file of a package belongs to it, and hides no module of Python's."""
    kit = tmp_path / "kit" / "inner"
    (kit / ".hidden").mkdir(parents=True)
    for folder in (kit, kit.parent):
        (folder / "__init__.py").write_text("")
    (kit / "parts.py").write_text(ATTEND.replace("softmax(-1)", "softmax(-2)"))
    (kit / "random.py").write_text("from .parts import Attend\n\n\nclass Mine(Attend):\n    ...\n")
    (kit / "train.py").write_text("raise RuntimeError('it trains')\n")
    (kit / ".hidden" / "parts.py").write_text("class Broken(int):\n    raise ValueError\n")
    status, out, _ = said("kit", "--github")
    assert status == 1 and "file=kit/inner/parts.py,line=5,title=Attend%3A softmax-query" in out
    status, out, _ = said("kit/inner/random.py")
    assert status == 1 and "kit/inner/random.py:Mine\n" in out
    assert said("kit.inner.random:Mine")[0] == 1
    random = sys.modules["random"]
    (kit / "parts.py").rename(kit.parent / "random.py")
    assert said("kit/random.py")[0] == 1 and sys.modules["random"] is random
    (kit / "lost.py").write_text("import nothing_of_this_name\nclass Lost(int): ...\n")
    status, out, _ = said("kit/inner")
    assert status == 2 and "No module named 'nothing_of_this_name'" in out


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
    diagnose(module, 4, num_kv_heads=4, like="llama"),
    diagnose_block(nn.TransformerEncoderLayer(24, 4), 4, norm_first=False, like=None),
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
    (tmp_path / "mypy_path").mkdir()
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
