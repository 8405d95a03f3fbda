"""`diagnose`: the bank of patients, mutants, broken rules, what it refuses and leaves alone."""

from __future__ import annotations

import copy
import random as python_random
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from patients import CASES, UNKNOWN, Entry
from patients.attention import ViewsMerge, ViewsUnscaled
from patients.crossing import Packed
from patients.healthy import Loops, Views
from patients.mutants import HOSTS, mutants, outcome
from torch import Tensor, nn

from attention_clinic import BUGS, VARIANTS, diagnose
from attention_clinic.attention.rules import OPTIONAL, ROWS
from attention_clinic.catalogue import joining, masks, projections, rotary, scores
from attention_clinic.catalogue.forms import Step, bug, variant
from helpers import error_of
from utils.masking import causal_mask

pytestmark = pytest.mark.usefixtures("one_thread")
PARTS = (projections, scores, masks, joining, rotary)
STEPS = [one for part in PARTS for one in vars(part).values() if isinstance(one, Step)]
RULES = dict.fromkeys((s, id) for s in STEPS for f in s.forms for id in f.ids if id not in ROWS)
TOOLS = ("patients.positions", "patients.embedding", "patients.losses")  # with tests of their own
OWN = [case for case in CASES if case.examine.__module__ not in TOOLS]
FIRST = {case.ids: case for case in reversed(OWN)}
ELSEWHERE = {"rotary-convention"}  # another tool reports it: two models of different conventions


# ------------------------------------------------------------------------------------- the bank


@pytest.mark.parametrize("case", OWN, ids=lambda c: f"{'+'.join(c.ids) or 'healthy'}-{c.name}")
def test_patient(case: Entry, request: pytest.FixtureRequest) -> None:
    """Sizes and seeds take turns; the first patient of a bug has two numbers of tokens."""
    if case.ids and case is not FIRST[case.ids]:
        request.getfixturevalue("one_size")
    place = CASES.index(case)
    number = place % len(case.sizes)
    seed, (e, h) = (place + number) % 2, case.sizes[number]
    assert case.judge(case.examine(seed, e, h), h) is None, f"seed {seed}, e={e}, h={h}"


@pytest.mark.parametrize("make", UNKNOWN, ids=lambda make: make.__name__)
def test_what_the_catalogue_does_not_know_gets_no_name(make: type) -> None:
    torch.manual_seed(3)
    report = diagnose(make(24, 4), 4)
    assert not report.healthy and not report.explanations
    assert "unexplained" in str(report)


def entered(known: dict) -> set[str]:
    """Return the ids of bugs or variants that the files on attention enter."""
    text = "\n".join(Path(part.__file__).read_text(encoding="utf-8") for part in PARTS)
    return {id for id in known if re.search(rf"^{id}, chapter", text, re.MULTILINE)} - ELSEWHERE


def test_every_bug_has_two_patients_and_every_variant_one() -> None:
    written = Counter(ids for ids, _ in {(case.ids, case.name) for case in CASES})
    assert [id for id in entered(BUGS) if written[(id,)] < 2] == []
    assert entered(VARIANTS) - {id for case in CASES for id in case.variants or ()} == set()
    assert written[()] >= 12 and len(UNKNOWN) >= 8


@pytest.mark.usefixtures("one_size")
def test_planted_mistakes_are_named_or_unexplained() -> None:
    found = [(outcome(host, *one), one[0]) for host in HOSTS for one in mutants(host, most=10)]
    assert [one for one in found if one[0] not in ("named", "unexplained", "refused")] == []
    assert Counter(words for words, _ in found)["named"] >= 42


@pytest.mark.usefixtures("one_size")
@pytest.mark.parametrize(("step", "id"), RULES, ids=lambda one: getattr(one, "name", one))
def test_a_broken_rule_shows(step: Step, id: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its rule, a bug is not reported, and its patients are not healthy.

    A field that may hold anything is the exception, such as the output layer.
    """
    broken = [replace(f, applies=lambda p: False) if id in f.ids else f for f in step.forms]
    monkeypatch.setattr(step, "forms", broken)
    case = next(case for case in CASES if case.ids == (id,) and not case.remark)
    report = case.examine(0, *case.sizes[0])
    assert not report.healthy or step.name in OPTIONAL
    assert all(id not in explanation.ids for explanation in report.explanations)


# -------------------------------------------------------------------------------- the catalogue


def test_every_entry_is_well_formed() -> None:
    for entry in BUGS.values():
        assert entry.words[0].islower() and not entry.words.endswith("."), entry.id
        assert entry.fix.endswith(".") and all(entry.threads), entry.id
    for one in (*BUGS.values(), *VARIANTS.values()):
        assert one.chapter.isdigit() and len(one.chapter) == 2, one.id
    for step in STEPS:
        assert step.reference.ids == () and step.reference.variants == ()
        assert all(id in BUGS for form in step.forms for id in form.ids)


def test_an_id_is_entered_once() -> None:
    with pytest.raises(ValueError, match="a second time"):
        bug("scale-embed, chapter 03\nwords\nFix: fix.\nSeen: somebody/something#1")
    with pytest.raises(ValueError, match="a second time"):
        variant("window, chapter 05\nwords\nIn: models")
    for enter in (scores.SCALE.wrong, scores.SCALE.variant):
        with pytest.raises(ValueError, match="Add it first"):
            enter("scale-cubed")


# ----------------------------------------------------------------------------- what is promised


def test_the_module_stays_as_it_was() -> None:
    module, log = Views(24, 4).train(), []
    module.proj.eval()
    module.register_buffer("calls", torch.zeros(()))
    module.register_forward_hook(lambda module, given, made: log.append(module.calls.add_(1)))
    module(torch.randn(2, 3, 24)).sum().backward()
    before = copy.deepcopy(module.state_dict())
    gradients = {name: p.grad.clone() for name, p in module.named_parameters()}
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), python_random.getstate()
    assert diagnose(module, 4).healthy
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(torch.equal(p.grad, gradients[name]) for name, p in module.named_parameters())
    assert all(p.requires_grad and p.dtype == torch.float32 for p in module.parameters())
    assert module.training and not module.proj.training and len(log) == 1
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert python_random.getstate() == states[2]


def test_the_report_does_not_depend_on_weights_or_earlier_calls() -> None:
    report = diagnose(ViewsMerge(24, 4), 4)
    assert report.ids == ("merge-no-transpose",)
    for change in (nn.init.zeros_, nn.init.ones_):
        module = ViewsMerge(24, 4)
        for parameter in module.parameters():
            change(parameter)
        assert diagnose(module, 4) == report


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    assert diagnose(ViewsUnscaled(24, 4).to(dtype), 4).ids == ("scale-missing",)
    assert diagnose(Views(24, 4).to(dtype), 4).healthy


def test_call_says_how_a_module_is_called() -> None:
    module, mask = nn.MultiheadAttention(24, 4, batch_first=True), causal_mask(6)
    given = {"call": lambda m, x, mask=None: m(x, x, x, attn_mask=mask)[0]}
    assert diagnose(module, 4, mask=torch.zeros(6, 6).masked_fill(~mask, -torch.inf), **given)
    assert diagnose(module, 4, mask=mask, **given).ids == ("mask-inverted",)


def test_a_function_is_examined_with_its_weights() -> None:
    w = {name: torch.randn(24, 24).double() / 24**0.5 for name in ("q", "k", "v", "out")}

    def attend(x: Tensor, power: float = -0.5) -> Tensor:
        q, k, v = ((x @ w[n]).unflatten(2, (4, -1)).transpose(1, 2) for n in "qkv")
        mixed = (q @ k.mT * 6**power).softmax(-1) @ v
        return mixed.transpose(1, 2).flatten(2) @ w["out"]

    assert diagnose(attend, 4, weights=w).healthy
    assert diagnose(lambda x: attend(x, 0.0), 4, weights=w).ids == ("scale-missing",)


# ------------------------------------------------------------------------------ what is refused


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.out = nn.Linear(24, 24), nn.Linear(20, 24)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.q(x))


def test_an_error_inside_forward_names_its_line() -> None:
    text = error_of(lambda: diagnose(Broken(), 4))
    assert text.startswith("diagnose: Broken must run on x of shape") and "RuntimeError" in text
    assert "in forward, line" in text and "return self.out(self.q(x))" in text


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: diagnose(Views, 4), "Build it first"),
        (lambda: diagnose("attention", 4), "module must be an nn.Module"),
        (lambda: diagnose(Views(24, 4), 0), "num_heads must be an integer of at least 1"),
        (lambda: diagnose(Loops(24, 4), 7), "num_heads must divide"),
        (lambda: diagnose(nn.Linear(24, 24)), "num_heads must be given"),
        (lambda: diagnose(lambda x: x, 4), "a function must come with its weights"),
        (lambda: diagnose(Views(24, 4), 4, causal=causal_mask(3)), "causal must be True, False"),
        (lambda: diagnose(Views(24, 4), 4, mask=torch.ones(1, 2, 3, 4, 5)), "mask must have shape"),
        (lambda: diagnose(Views(24, 4), 4, context=-1), "context must be a tensor (b, j, width)"),
        (lambda: diagnose(Packed(24, 4), 4, context=True, causal=True), "causal must be None"),
        (lambda: diagnose(torch.jit.script(nn.Linear(24, 24)), 4), "torch.jit"),
    ],
)
def test_bad_input_is_refused(call, words: str) -> None:
    assert words in error_of(call)
