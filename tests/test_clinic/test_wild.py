"""The bench: its cases, its loader, its process, its scores and its tables, without a network."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

import attention_clinic
import make_wild as command
from attention_clinic import BUGS, VARIANTS
from wild.cases import NONE, Case, chosen, read_cases
from wild.loading import load
from wild.scoring import (
    BROKEN,
    FALSE,
    OPEN,
    PART,
    REFUSED,
    RIGHT,
    WRONG,
    Result,
    interval,
    outcome,
    quantile,
    rows,
)
from wild.sources import Sources
from wild.study import STORED, counts, table
from wild.table import report
from wild.trial import Verdict, examined

BENCH = Path(attention_clinic.__file__).parents[1] / "bench"
MODULE = """
import absent_package
from absent_package.layers import DropPath, register
from layers import Head
import torch.nn.functional as F

try:
    import another_absent as a
except ImportError:
    a = None

WIDTH = 16
open("trained", "w").write("a script that must not run")
for step in range(10):
    raise SystemExit(step)


@register()
class Registered(Head):
    pass


class Attention(Head):
    pass


class Slow(Head):
    def forward(self, x):
        while True:
            x = x + 1


if __name__ == "__main__":
    open("trained", "w").write("a script that must not run")
"""
LAYERS = """
from torch import nn
from .wrong import nothing


class Head(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x):
        b, n, e = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / e**0.5).softmax(-1)
        return self.proj((weights @ v).transpose(1, 2).reshape(b, n, e))
"""


def git(folder: Path, *arguments: str) -> str:
    """Run git with an author of its own."""
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "init.defaultBranch=main")
    done = subprocess.run(["git", "-C", folder, *who, *arguments], capture_output=True, check=True)
    return done.stdout.decode().strip()


@pytest.fixture(scope="module")
def origin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A stranger's repository with two commits; the attention is sick in the first."""
    folder = tmp_path_factory.mktemp("origin") / "owner" / "name"
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "attention.py").write_text(MODULE)
    (folder / "model" / "layers.py").write_text(LAYERS)
    (folder / "weights.bin").write_bytes(bytes(1000))
    (folder / "linked.py").symlink_to(folder / "weights.bin")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "sick")
    (folder / "model" / "layers.py").write_text(LAYERS.replace("e**0.5", "q.shape[-1] ** 0.5"))
    git(folder, "commit", "--quiet", "-am", "healthy")
    return folder


@pytest.fixture(scope="module")
def sick(origin: Path) -> Case:
    return Case(
        id="owner-name",
        repository=str(origin),
        commit=git(origin, "rev-parse", "HEAD^"),
        file="model/attention.py",
        build="Attention(WIDTH, 2)",
        asked="num_heads=2",
        truth="bug",
        ids=("scale-embed",),
        says="layers.py: / e**0.5",
    )


@pytest.fixture(scope="module")
def tree(origin: Path, sick: Case, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The files of the sick commit."""
    folder = tmp_path_factory.mktemp("tree")
    Sources(tmp_path_factory.mktemp("clones")).unpack(sick, folder)
    return folder


def test_the_cases_keep_the_rules() -> None:
    cases = read_cases()
    retired = tomllib.loads((BENCH / "taxonomy.toml").read_text())["retired"]["ids"]
    assert not set(retired) & {*BUGS, *VARIANTS}
    known = {*BUGS, *VARIANTS, NONE, *retired}
    for case in cases:
        named = {*case.ids, *case.variants, *(one for ids in case.also for one in ids)}
        assert named <= known, f"{case.id}: {sorted(named - known)} are not in the catalogue"
        assert "\n" not in case.says, f"{case.id}: quote one line at most"
    cited = {thread.partition("#")[0].lower() for bug in BUGS.values() for thread in bug.threads}
    own = [case for case in cases if case.repository.lower() not in cited]
    assert len(own) >= 60, "cases of repositories that the catalogue does not cite"
    assert len(chosen(cases, "last")) >= 150, "a share that nobody tunes to"


@pytest.mark.parametrize(
    ("change", "rule"),
    [
        ({"truth": "sick"}, "truth must be one of"),
        ({"commit": "main"}, "commit must be 40 hexadecimal digits"),
        ({"ids": []}, "ids must be named unless it is healthy"),
        ({"id": "A case"}, "id must be small letters"),
        ({"file": "model.cpp"}, "file must be a .py"),
        ({"colour": "red"}, "got colour"),
        ({"says": ""}, "says must be who says so"),
    ],
)
def test_a_case_that_breaks_a_rule_is_refused(tmp_path: Path, change: dict, rule: str) -> None:
    values = {
        **{"id": "a", "repository": "o/n", "commit": "0" * 40, "file": "a.py", "build": "A()"},
        **{"asked": "num_heads=2", "truth": "bug", "ids": ["scale-embed"], "says": "line 3: e"},
        **change,
    }
    lines = "\n".join(f"{key} = {value!r}" for key, value in values.items())
    (tmp_path / "cases.toml").write_text(f"[[case]]\n{lines}\n")
    with pytest.raises(ValueError, match=rule):
        read_cases(tmp_path)


def test_cases_are_unlike_and_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must hold cases, got none"):
        read_cases(tmp_path)
    (tmp_path / "broken.toml").write_text("[[case]\n")
    with pytest.raises(ValueError, match=r"broken.toml must be TOML"):
        read_cases(tmp_path)


def test_sources_come_at_their_commit(origin: Path, sick: Case, tree: Path, tmp_path: Path) -> None:
    assert (tree / "model" / "layers.py").read_text() == LAYERS
    assert not (tree / "weights.bin").exists(), "nothing but Python is fetched"
    assert not (tree / "linked.py").is_symlink(), "no link leads out of the folder"
    assert sick.url == str(origin)
    assert replace(sick, repository="o/n").url == "https://github.com/o/n"
    there = Sources(origin.parent.parent, offline=True)  # OWNER/NAME, not bare
    there.unpack(sick, tmp_path)
    assert (tmp_path / "model" / "attention.py").is_file()
    with pytest.raises(ValueError, match=r"must hold model/other\.py"):
        there.unpack(replace(sick, file="model/other.py"), tmp_path)
    with pytest.raises(ValueError, match="Leave out --offline"):
        Sources(tmp_path, offline=True).unpack(sick, tmp_path)
    with pytest.raises(ValueError, match="must give 0000000000"):
        Sources(tmp_path).unpack(replace(sick, commit="0" * 40), tmp_path)


def test_only_definitions_run(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tree)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    space, missing = load(tree, "model/attention.py")
    assert space["WIDTH"] == 16 and space["Attention"].__name__ == "Attention"
    assert not (tree / "trained").exists(), "no script runs"
    assert "Registered" not in space, "what raises is left out"
    assert "absent_package" not in sys.modules, "others look there for what is installed"
    assert any("absent_package" in line and "not installed" in line for line in missing)
    with pytest.raises(ImportError, match=r"absent_package.layers.DropPath is not installed"):
        space["DropPath"](0.1)


def test_a_file_may_begin_with_a_mark_of_its_byte_order(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("five = 5\n", encoding="utf-8-sig")
    assert load(tmp_path, "a.py")[0]["five"] == 5


def test_a_notebook_is_read_without_its_shell(tmp_path: Path) -> None:
    cells = ["!pip install x\nwidth = 8\n", "%%time\nprint(", "def twice(x):\n    return 2 * x\n"]
    entries = [{"cell_type": "code", "source": cell.splitlines(True)} for cell in cells]
    (tmp_path / "a.ipynb").write_text(json.dumps({"cells": entries}))
    space, _ = load(tmp_path, "a.ipynb")
    assert space["twice"](space["width"]) == 16
    sys.meta_path.pop(0)


@pytest.mark.parametrize(
    ("change", "state", "words"),
    [
        ({}, "answered", "scale-embed"),
        ({"asked": "num_heads=0"}, "refused", "num_heads"),
        ({"asked": "num_heads=0", "help": "num_heads=2"}, "answered", "scale-embed"),
        ({"build": "Nobody()"}, "broken", "NameError"),
        ({"build": "Slow(WIDTH, 2)"}, "late", "no answer in"),
        ({"build": "__import__('os')._exit(3)"}, "broken", "ended with 3"),
    ],
)
def test_a_case_in_its_own_process(
    sick: Case, tree: Path, change: dict, state: str, words: str
) -> None:
    verdict = examined(replace(sick, **change), tree, 0.1 if state == "late" else 100.0)
    assert verdict.state == state and words in verdict.words
    assert verdict.helped == ("help" in change)
    if state == "answered":
        assert verdict.ids == (("scale-embed",),) and not verdict.healthy


BUG = {"truth": "bug", "ids": ("scale-embed", "softmax-query"), "also": (("mask-added",),)}
ROTARY = {"truth": "variant", "ids": ("rotary-pairs",)}
ALIBI_TOO = {**ROTARY, "also": (("rotary-pairs", "alibi"),)}


@pytest.mark.parametrize(
    ("truth", "said", "worth"),
    [
        ({"truth": "healthy"}, {"healthy": True}, RIGHT),
        ({"truth": "healthy"}, {"healthy": True, "variants": ("rotary-pairs",)}, WRONG),
        ({"truth": "healthy"}, {"ids": (("scale-embed",),)}, WRONG),
        ({"truth": "healthy"}, {}, OPEN),
        (BUG, {"ids": (("softmax-query", "scale-embed"),)}, RIGHT),
        (BUG, {"ids": (("scale-embed",),)}, PART),
        (BUG, {"ids": (("mask-added",),)}, RIGHT),
        (BUG, {"ids": (("scale-embed", "mask-tiny"),)}, WRONG),
        (BUG, {"ids": (("mask-tiny",), ("scale-embed", "softmax-query"))}, RIGHT),
        (BUG, {"healthy": True}, FALSE),
        (BUG, {"healthy": True, "remarks": ("softmax-query",)}, PART),
        (BUG, {}, OPEN),
        ({"truth": "bug", "ids": (NONE,)}, {}, OPEN),
        ({"truth": "bug", "ids": (NONE,)}, {"ids": (("scale-embed",),)}, WRONG),
        ({**BUG, "variants": ("rotary-pairs",)}, {**BUG, "variants": ("alibi",)}, WRONG),
        (ROTARY, {"healthy": True, "variants": ("rotary-pairs",)}, RIGHT),
        (ROTARY, {"healthy": True}, FALSE),
        (ROTARY, {}, OPEN),
        (ROTARY, {"ids": (("scale-embed",),)}, WRONG),
        ({**ROTARY, "ids": ("rotary-pairs", "alibi")}, {"healthy": True, **ROTARY}, PART),
        (ALIBI_TOO, {"healthy": True, "variants": ("rotary-pairs", "alibi")}, RIGHT),
        (ALIBI_TOO, {"healthy": True, "variants": ("alibi",)}, WRONG),
        (ROTARY, {"state": "refused"}, REFUSED),
        (ROTARY, {"state": "late"}, REFUSED),
        (ROTARY, {"state": "broken"}, BROKEN),
    ],
)
def test_what_a_verdict_is_worth(sick: Case, truth: dict, said: dict, worth: str) -> None:
    case = replace(sick, **{"ids": (), "also": (), "variants": (), **truth})
    if "ids" in said and isinstance(said["ids"][0], str):
        said = {**said, "ids": (said["ids"],) if said.get("truth") != "variant" else ()}
        said["variants"] = said.get("variants", truth["ids"][:1])
    said = {key: value for key, value in said.items() if key not in ("truth", "also")}
    assert outcome(case, Verdict(**{"state": "answered", **said})) == worth


def test_the_report_counts(sick: Case) -> None:
    healthy = replace(sick, id="b", truth="healthy", ids=())
    results = [
        Result(sick, Verdict("answered", ids=(("scale-embed",),), seconds=1.0), RIGHT),
        Result(healthy, Verdict("answered", healthy=True, seconds=2.0), RIGHT),
        Result(healthy, Verdict("answered", ids=(("scale-embed",),), seconds=3.0), WRONG),
        Result(sick, Verdict("refused", words="ValueError: size"), REFUSED),
        Result(sick, Verdict("broken"), BROKEN),
    ]
    table_rows = {row.kind: row for row in rows(results)}
    assert (table_rows["bug"].claims, table_rows["bug"].true_claims) == (2, 1)
    assert (table_rows["healthy"].cases, table_rows["bug"].cases) == (2, 2)
    words = report(results, "five cases")
    for part in ("1 of 2 (9-91 %)", "wrong name    b: is healthy, said scale-embed"):
        assert part in words
    assert (
        "1 could not be built here" in words and "More than the question was needed by 1" in words
    )
    assert "1 of 4 verdicts were a wrong name" in words


def test_intervals_and_quantiles() -> None:
    assert interval(0, 0) == (0.0, 1.0)
    low, high = interval(0, 100)
    assert low == 0 and high == pytest.approx(0.037, abs=0.001)
    assert interval(50, 100) == pytest.approx((0.404, 0.596), abs=0.001)
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0 and quantile([1.0, 2.0], 1.0) == 2.0


def test_the_command(
    sick: Case, origin: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "read_cases", lambda: (sick,))
    assert command.main(["--sources", str(origin.parent.parent), "--offline"]) == 0
    assert "1 of 1 (21-100 %)" in capsys.readouterr().out
    healthy = replace(sick, truth="healthy", ids=())
    monkeypatch.setattr(command, "read_cases", lambda: (healthy,))
    assert command.main(["--sources", str(origin.parent.parent), "--offline"]) == 1
    assert "wrong name" in capsys.readouterr().out
    assert command.main(["--only", "nothing"]) == 2
    assert "no case fits" in capsys.readouterr().err


def test_the_study_is_counted_from_the_cases() -> None:
    cases = read_cases()
    assert STORED.read_text() == table(cases), "count anew: make wild ARGS=--study"
    met = {one.id: one for one in counts(cases)}
    bugs = [case for case in cases if case.truth == "bug" and "scale-embed" in case.ids]
    assert met["scale-embed"].sample + met["scale-embed"].hunted == len(bugs)


def test_every_bug_has_a_place_in_the_published_taxonomy() -> None:
    known = tomllib.loads((BENCH / "taxonomy.toml").read_text())
    labels = {f"{part}/{cause}" for part, causes in known["labels"].items() for cause in causes}
    assert len(labels) == 45 and len(known["labels"]) == 12
    assert set(known["bugs"]) == set(BUGS), "every bug is mapped, or said to have no counterpart"
    used = {entry["label"] for entry in known["bugs"].values() if "label" in entry}
    for name, entry in known["bugs"].items():
        assert ("label" in entry) != ("none" in entry), name
        assert entry.get("fit") in (("same", "label") if "label" in entry else (None,)), name
        assert (entry.get("fit") == "same") == ("operator" in entry), name
    assert used | set(known["theirs"]) == labels and not used & set(known["theirs"])
