"""Shapes: said aloud, compared with a guess, checked at the door."""

import re

import numpy as np
import pytest
import torch

from helpers import error_of
from utils.shapes import Folded, check_guess, compare_guess, describe, reveal
from utils.validation import check_positive, check_shape

QUERIES = torch.zeros(6, 8, 37, 96)


def test_describe_prints_every_axis(capsys):
    describe(QUERIES, "b h n d", "queries")
    describe(torch.zeros(2, 3), "rows columns")
    describe(torch.tensor(1.0), "", "loss")
    describe(torch.zeros(3, 3), "n n", "mask")
    assert capsys.readouterr().out.splitlines() == [
        "queries (b=6, h=8, n=37, d=96)",
        "tensor (rows=2, columns=3)",
        "loss ()",
        "mask (n=3, n=3)",
    ]


def test_describe_refuses_wrong_names():
    text = error_of(lambda: describe(QUERIES, "b h n"))
    assert text == (
        "describe: axes must name every axis once, got axes='b h n' for shape (6, 8, 37, 96). "
        "Write 4 names, not 3."
    )
    text = error_of(lambda: describe(torch.zeros(2, 3), "n n"))
    assert "got n=2 and n=3 in axes='n n'" in text


@pytest.mark.parametrize(
    "guess, said",
    [
        (..., "no guess yet: write yours in place of ... and run again"),
        ((2, 3), "right: (2, 3)"),
        ([2, 3], "right: (2, 3)"),
        (torch.Size([2, 3]), "right: (2, 3)"),
        ((np.int64(2), 3), "right: (2, 3)"),
        ((2,), "not (2,): the shape is (2, 3), 2 axes and not 1"),
        ((), "not (): the shape is (2, 3), 2 axes and not 0"),
        ((3, 2), "not (3, 2): the shape is (2, 3), the same sizes in a different order"),
        ((6, 1), "not (6, 1): the shape is (2, 3), as many numbers, laid out differently"),
        ((2, 4), "not (2, 4): the shape is (2, 3), look at axis 1"),
        ((4, 4), "not (4, 4): the shape is (2, 3), look at axis 0, 1"),
        (5, "a guess is a tuple of integers such as (2, 3), got 5"),
        ("23", "a guess is a tuple of integers such as (2, 3), got '23'"),
        ((2.7, 3), "a guess is a tuple of integers such as (2, 3), got (2.7, 3)"),
    ],
)
def test_guess(guess, said, capsys):
    check_guess(guess, torch.zeros(2, 3))
    check_guess(guess, (2, 3))
    assert capsys.readouterr().out.splitlines() == [said, said]


@pytest.mark.parametrize(
    "guess", [None, (2, None), (2, ...), (float("inf"), 3), (float("nan"),), {}, ((2, 3),), print]
)
def test_a_strange_guess_never_stops_run_all(guess, capsys):
    check_guess(guess, torch.zeros(2, 3))
    assert "(2, 3)" in capsys.readouterr().out


@pytest.fixture
def shown(monkeypatch) -> list[dict[str, str]]:
    """What a notebook would show, by MIME type."""
    outputs: list[dict[str, str]] = []

    def display(thing: object) -> None:
        outputs.append({"text/plain": repr(thing), "text/html": thing._repr_html_()})

    monkeypatch.setattr("IPython.display.display", display)
    return outputs


@pytest.mark.parametrize("guess", [..., 5, "<b>", (2.5,)], ids=repr)
def test_without_a_guess_the_answer_is_folded(guess, shown, capsys):
    check_guess(guess, torch.zeros(41, 43))
    (output,) = shown
    assert "41" not in output["text/plain"] + capsys.readouterr().out
    html = output["text/html"]
    line, answer = re.fullmatch(r"<details><summary>(.*)</summary>(.*)</details>", html).groups()
    assert "41" not in line
    assert answer == "shape (41, 43)"
    # GitHub and an untrusted JupyterLab drop styles, scripts and what they do not know
    assert set(re.findall(r"<\W?(\w+)", html)) == {"details", "summary"}


def test_an_answer_of_several_lines_keeps_its_breaks():
    folded = Folded("no answer yet", "a < b\n  c & d")
    assert repr(folded) == "no answer yet"
    assert folded._repr_html_() == (
        "<details><summary>no answer yet, or click for the answer</summary>"
        "<pre>a &lt; b\n  c &amp; d</pre></details>"
    )


def test_a_report_is_folded_until_there_is_an_answer(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[Folded] = []
    monkeypatch.setattr("IPython.display.display", shown.append)
    reveal(..., "the\nreport")
    (folded,) = shown
    assert repr(folded).startswith("no answer yet") and "report" not in repr(folded)
    assert "<pre>the\nreport</pre>" in folded._repr_html_()
    assert capsys.readouterr().out == ""
    reveal("it is late", "the\nreport")
    assert shown == [folded]
    assert capsys.readouterr().out == "You say:\nit is late\n\nthe\nreport\n"


def test_with_a_guess_nothing_is_folded(shown, capsys):
    check_guess((41, 43), torch.zeros(41, 43))
    check_guess((1, 43), torch.zeros(41, 43))
    assert shown == []
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    "guess, kind",
    [
        ((2, 3), "right"),
        (torch.Size([2, 3]), "right"),
        ((3, 2), "order"),
        ((6, 1), "layout"),
        ((2, 4), "sizes"),
        ((2,), "rank"),
        (..., "no shape"),
        (2, "no shape"),
    ],
)
def test_compare_guess(guess, kind):
    assert compare_guess(guess, (2, 3)) == kind


def test_check_shape_lets_right_shapes_pass():
    check_shape("here", "x", torch.zeros(2, 3), "b e", "Fix.", e=3)
    check_shape("here", "x", torch.zeros(0, 3), "b e", "Fix.", e=3)
    check_shape("here", "x", torch.zeros(2, 3), "b e", "Fix.", b=None, e=None)


@pytest.mark.parametrize("shape", [(3,), (2, 4), (1, 2, 3), ()])
def test_check_shape_names_pattern_and_shape(shape):
    x = torch.zeros(shape)
    text = error_of(lambda: check_shape("here", "x", x, "b e", "Do this.", e=3))
    assert text == f"here: x must have shape (b, e=3), got x.shape={shape}. Do this."


@pytest.mark.parametrize("value", [0, -1, 2.0, "2", None, True])
def test_check_positive(value):
    check_positive("here", good=1, better=2)
    text = error_of(lambda: check_positive("here", good=1, width=value))
    assert text == (
        f"here: width must be an integer of at least 1, got width={value!r}. "
        "Pass a whole number such as width=4."
    )
