"""Mistakes that are planted in right modules: where, which of them count, what is said of them."""

from __future__ import annotations

import ast
import subprocess
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import make_wild as command
from attention_clinic import BUGS, VARIANTS
from wild import planted
from wild.cases import Case
from wild.planted import FALSE, NAMED, OPEN, OTHER, REMARK, WRONG, outcome, second, table, tried
from wild.planting import KINDS, Planted, mistakes
from wild.trial import Verdict

SOURCE = '''
import torch
from torch import nn
from torch.nn import functional as F


class Other(nn.Module):
    def forward(self, x):
        return x.softmax(dim=-1)


class Attention(nn.Module):
    """A word such as é stands before what is changed."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.head_dim = heads, width // heads
        self.query, self.key = nn.Linear(width, width), nn.Linear(width, width)
        self.value, self.proj = nn.Linear(width, width), nn.Linear(width, width)
        self.never = lambda x: F.softmax(x, dim=-1)

    def split(self, x):
        return x.view(x.shape[0], x.shape[1], self.heads, -1).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.query(x)), self.split(self.key(x)), self.split(self.value(x))
        scores = torch.matmul(q, k.transpose(-2, -1)) / self.head_dim ** 0.5
        return self.proj((F.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2))
'''
BUILD = "Attention(24, 4)"


@pytest.fixture
def right(tmp_path: Path) -> tuple[Case, Path]:
    root = tmp_path / "owner" / "name"
    root.mkdir(parents=True)
    (root / "model.py").write_text(SOURCE, encoding="utf-8")
    place = ("owner/name", "0" * 40, "model.py")
    return Case("right", *place, BUILD, "num_heads=4", "healthy", "written for this test"), root


def test_every_kind_says_what_may_be_named() -> None:
    for name, (ids, _) in KINDS.items():
        assert ids and set(ids) <= {*BUGS, *VARIANTS}, name


def test_mistakes_stand_in_the_classes_that_are_used() -> None:
    found = list(mistakes(SOURCE, BUILD))
    first = SOURCE[: SOURCE.index("class Attention")].count("\n")
    assert found and all(one.line > first for one in found)
    assert len({one.text for one in found}) == len(found)
    for one in found:
        ast.parse(one.text)
        assert one.before in SOURCE and one.after in one.text and one.before != one.after
    kinds = {one.kind for one in found}
    assert {"softmax over another axis", "layer of another", "view for transpose"} <= kinds
    assert {"weights transposed", "another power of the width"} <= kinds
    assert any(one.after == "self.key(x)" and one.before == "self.query(x)" for one in found)


def test_a_second_mistake_stands_beside_the_first() -> None:
    first = next(mistakes(SOURCE, BUILD))
    chance = planted.random.Random(0)
    both = second(first, BUILD, chance)
    assert first.kind in both.kind and " + " in both.kind and set(first.ids) < set(both.ids)
    assert both.text not in (SOURCE, first.text) and " ... " in both.after


def test_planted_mistakes_are_named(right: tuple[Case, Path]) -> None:
    case, root = right
    found = list(tried(case, root, most=6))
    assert len(found) == 6 and {one.outcome for one in found} <= {NAMED, OPEN}
    assert sum(one.outcome == NAMED for one in found) >= 5
    assert len({one.planted.kind for one in found}) == 6
    assert (root / "model.py").read_text(encoding="utf-8") == SOURCE
    assert [one.planted for one in tried(case, root, most=1)] == [found[0].planted]


def test_what_changes_no_number_is_left_out(
    right: tuple[Case, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    case, root = right
    same = replace(next(mistakes(SOURCE, BUILD)), text=f"{SOURCE}\n# the same\n")
    broken = replace(same, text=SOURCE.replace("flatten(2)", "flatten(9)"))
    turned = "flatten(2)).transpose(0, 1)"
    other = replace(same, text=SOURCE.replace("flatten(2))", turned))  # of another shape
    monkeypatch.setattr(planted, "mistakes", lambda text, build: [same, broken, other])
    assert list(tried(case, root, most=3)) == []


def test_calls_that_fail_are_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    wide = [torch.ones(2, width) for width in range(6, 12)]
    given = [*wide, torch.ones(2, 3) / 0, torch.ones(2, 3)]

    def examine(module: nn.Module, tool: str, words: dict[str, object]) -> dict[str, object]:
        for x in given:
            with suppress(RuntimeError):
                module(x)
        return words

    monkeypatch.setattr(planted, "_examine", examine)
    planted.keep(nn.Linear(3, 3).eval(), "diagnose", {})
    calls = torch.load(planted.KEPT, weights_only=True)["calls"]
    assert len(calls) == 1 and torch.equal(calls[0]["args"][0], given[-1])


def test_columns_of_one_layer_may_stand_in_any_order() -> None:
    found = []
    for words in ("b h n d -> b n (h d)", "b h n d -> (b h) n d"):
        text = SOURCE.replace("F.softmax(x, dim=-1)", repr(words))
        kinds = (one for one in mistakes(text, BUILD) if one.kind == "einsum of other axes")
        found.append([ast.literal_eval(one.after) for one in kinds])
    assert found[0] == ["b h n d -> n b (h d)", "b h n d -> b h (n d)"]
    assert found[1][0] == "b h n d -> (h b) n d" and len(found[1]) == 3


def test_outcomes() -> None:
    one = Planted("kind", ("scale-missing", "scale-other"), 1, "a", "b", "")
    before = Verdict("answered", healthy=True, variants=("gated",))
    named = Verdict("answered", ids=(("scale-missing",),))
    assert outcome(one, before, named) == NAMED
    assert outcome(one, before, replace(named, ids=(("scale-embed",),))) == WRONG
    assert outcome(one, before, replace(named, variants=("cosine",))) == WRONG
    assert outcome(one, before, replace(named, variants=("gated",))) == NAMED
    assert outcome(one, before, Verdict("answered")) == OPEN
    assert outcome(one, before, Verdict("refused")) == OTHER
    healthy = replace(before, remarks=("out-missing",))
    assert outcome(one, before, healthy) == FALSE
    assert outcome(one, before, replace(before, remarks=("scale-other",))) == REMARK
    assert outcome(one, before, replace(before, variants=("cosine",))) == WRONG


def test_only_what_a_layer_returns_is_bent() -> None:
    text = SOURCE.replace(
        "return self.proj((F.softmax(scores, dim=-1)",
        "scores = self.dropout_of(scores + self.causal_mask(x))\n"
        "        return self.proj((F.softmax(scores, dim=-1)",
    )
    kinds = (one for one in mistakes(text, BUILD) if one.kind == "what a layer returns is bent")
    layers = {f"self.{name}" for name in ("query", "key", "value", "proj")}
    assert {one.before.split("(")[0] for one in kinds} == layers


def test_the_table_says_what_went_wrong(right: tuple[Case, Path]) -> None:
    case, _ = right
    one = Planted("some kind", ("scale-missing",), 7, "a  long\nline", "another", "")
    found = [
        planted.Tried(case, one, Verdict("answered"), OPEN),
        planted.Tried(case, one, Verdict("answered", healthy=True), FALSE),
    ]
    said = table(found)
    assert "false healthy: right, line 7: healthy" in said
    assert "  a long line\n  -> another" in said
    assert said.splitlines()[1].split() == ["some", "kind", "0", "0", "1", "0", "0", "1"]


def test_the_command_plants(
    right: tuple[Case, Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    case, root = right
    git = ["git", "-C", str(root), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True)
    there = replace(case, commit=commit.stdout.strip())
    sick = replace(there, id="sick", truth="bug", ids=("scale-embed",))
    monkeypatch.setattr(command, "read_cases", lambda: (there, sick))
    given = ["--sources", str(root.parent.parent), "--offline", "--plant", "2"]
    assert command.main(given) == 0
    said = capsys.readouterr()
    assert said.out.splitlines()[0].split()[:2] == ["planted", "named"]
    assert said.out.splitlines()[-1].split()[:2] == ["all", "2"] and "sick" not in said.err
