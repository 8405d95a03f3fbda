"""What a report of `diagnose` says: as text, on a page, in a test that fails, to a program."""

from __future__ import annotations

import json
import re
from functools import cache

import pytest
import torch
from patients.attention import UNKNOWN, ViewsMerge
from patients.healthy import Views
from patients.masks import Neighbours, padding

from attention_clinic import BUGS, Report, diagnose
from attention_clinic.report import PAGE, explain

pytestmark = pytest.mark.usefixtures("one_thread")


@cache
def report_on(make: type) -> Report:
    return diagnose(make(24, 4), 4)


def test_a_report_is_true_when_it_is_healthy() -> None:
    assert report_on(Views)
    with pytest.raises(AssertionError) as caught:
        assert report_on(ViewsMerge)
    text = str(caught.value)
    assert "merge-no-transpose" in text and f"Fix: {BUGS['merge-no-transpose'].fix}" in text
    assert "\n" not in repr(report_on(ViewsMerge))


def test_verdict_and_kind() -> None:
    reports = [report_on(make) for make in (Views, Neighbours, ViewsMerge, UNKNOWN[0])]
    assert [one.kind for one in reports] == ["healthy", "variant", "buggy", "unexplained"]
    assert [one.verdict.partition(": ")[2] for one in reports] == [
        "healthy",
        "healthy, as a variant: window",
        "not equal to the reference",
        "not equal to the reference, and unexplained",
    ]
    assert "  Variant: window   lets a token attend to a window only" in str(reports[1])
    assert "No known mistake gives this output." in str(reports[3])
    assert "  Fails: rows sum to 1" in str(reports[3])


def test_programs_read_the_report() -> None:
    report = report_on(ViewsMerge)
    (explanation,) = report.explanations
    assert explanation.ids == report.ids == ("merge-no-transpose",)
    assert 0 <= explanation.difference < 1e-9 and explanation.chapter == "04"
    data = json.loads(json.dumps(report.data()))
    assert data["kind"] == "buggy" and data["healthy"] is False and data["variants"] == []
    assert data["explanations"][0]["ids"] == ["merge-no-transpose"]
    assert data["explanations"][0]["fix"] == BUGS["merge-no-transpose"].fix
    healthy = report_on(Views)
    assert healthy.ids == () and healthy.checked and healthy.data()["explanations"] == []


def test_alternatives_are_both_shown() -> None:
    found = tuple(explain([BUGS[id]]) for id in ("softmax-query", "mix-transposed"))
    assert "or, which gives the same output" in str(Report("Module", False, found))


def test_every_line_fits_and_no_code_is_broken() -> None:
    first = BUGS["head-shared-projection"]
    for bug in BUGS.values():
        lines = str(Report("Module", False, (explain([first, bug]),))).splitlines()
        assert max(map(len, lines)) <= PAGE, bug.id
        text = "\n".join(lines)
        for code in re.findall(r"rearrange\((?:[^()]|\([^()]*\))*\)|mask\[[^]]*\]", bug.fix):
            assert code in text, "code is not broken"


def test_what_was_not_tried_is_noted() -> None:
    report = report_on(Views)
    assert [line.endswith("mask=... tries one") for line in report.untried] == [True]
    assert f"  Not tried: {report.untried[0]}" in str(report)
    assert "without a mask" in report.checked[0]
    tried = diagnose(Views(24, 4), 4, mask=padding(0))
    assert tried.untried == () and "with the mask" in tried.checked[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda scores: scores + torch.randn(scores.shape[-1]), "two calls in eval mode"),
        (lambda scores: scores * torch.nan, "it has nothing but NaN"),
        (lambda scores: scores.sin() + scores.mean(dim=0), "samples stay apart"),
    ],
)
def test_properties_that_fail_are_noted(change, words: str) -> None:
    module = type("Changed", (Views,), {"weigh": lambda self, scores, mask: change(scores)})
    report = diagnose(module(24, 4), 4)
    assert not report.healthy and not report.explanations
    assert any(words in line for line in report.failing), report.failing
