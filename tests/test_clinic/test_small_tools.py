"""`diagnose_positions`, `diagnose_loss`, `diagnose_embedding`: their patients and their limits."""

from __future__ import annotations

from collections import Counter
from functools import cache
from importlib import import_module

import patients.embedding as images
import patients.losses  # noqa: F401, it adds patients
import patients.positions as tables
import pytest
import torch
import torch.nn.functional as F
from patients.bank import CASES, Entry
from torch import nn

from attention_clinic import Report, diagnose_embedding, diagnose_loss, diagnose_positions
from attention_clinic.catalogue.forms import Form, Step, nothing, simplest
from helpers import error_of

pytestmark = pytest.mark.usefixtures("one_thread")
FILES = "positions", "losses", "embedding"
TOOLS = {f"patients.{name}": import_module(f"attention_clinic.{name}") for name in FILES}
OWN = [case for case in CASES if case.examine.__module__ in TOOLS]
POSITIONS, LOSS, EMBEDDING = TOOLS.values()
ALL = (*POSITIONS.POSITIONS, *LOSS.LOSS, *EMBEDDING.EMBEDDING)
NAMED = {step.name: step for step in reversed(ALL)}
FOUND = {"base": "sincos-base", "place": "pos-one-row"}
WRONG = [(step, form) for step in ALL for form in step.forms if form.ids]
WRONG += [(NAMED[name], Form(nothing, (id,))) for name, id in FOUND.items()]
SEEN = {"sincos-odd"}  # not by the numbers of a form


def examine(case: Entry) -> Report:
    """Return the report on a patient; sizes and seeds alternate."""
    number = CASES.index(case)
    return case.examine(number % 3, *case.sizes[number % len(case.sizes)])


@cache
def examined(case: Entry) -> tuple[Report, set[tuple[Step, tuple | Form]]]:
    """Return the report on a patient, and the forms of its tool that explain it, or their ids."""
    used: set[tuple[Step, tuple | Form]] = set()

    def watched(steps, *others, **options):
        found = simplest(steps, *others, **options)
        for way in found.values():
            pairs = zip(steps, way.path.forms, strict=True)
            used.update((step, form if form in step.forms else form.ids) for step, form in pairs)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TOOLS[case.examine.__module__], "simplest", watched)
        return examine(case), used


@pytest.mark.parametrize("case", OWN, ids=lambda c: f"{'+'.join(c.ids) or 'healthy'}-{c.name}")
def test_patient(case: Entry) -> None:
    assert case.judge(examined(case)[0], 1) is None


def test_every_bug_has_two_patients_and_every_variant_one() -> None:
    written = Counter(case.ids for case in OWN)
    ids = SEEN.union(*(form.ids for _, form in WRONG))
    assert not [id for id in ids if written[(id,)] < 2]
    variants = {id for step in ALL for form in step.forms for id in form.variants}
    shown = {variant.id for case in OWN for variant in examined(case)[0].variants}
    assert shown == variants | {"sincos-2d"}


@pytest.mark.parametrize(("step", "form"), WRONG, ids=lambda one: getattr(one, "name", None))
def test_without_its_form_a_patient_has_no_name_and_is_not_healthy(
    step: Step, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = form.ids if form.run is nothing else form
    its = [c for c in OWN if {*form.ids} <= {*c.ids} and (step, key) in examined(c)[1]]
    assert its, "no patient shows that this form is needed"
    monkeypatch.setattr(step, "forms", [one for one in step.forms if one is not form])
    if form.run is nothing:
        monkeypatch.setattr(step, "found", nothing)
    case = min(its, key=lambda case: len(case.ids))
    report = examine(case)
    assert not report.healthy and not {*form.ids} <= {*report.ids}, case.name


def waves(speeds: torch.Tensor) -> torch.Tensor:
    return tables.paired(torch.arange(40)[:, None] * speeds, 16)


SINES, PAIRS = tables.interleaved(40, 16), torch.arange(8.0)
TABLES = {
    "zeros at the end": F.pad(SINES, (0, 0, 0, 2)),
    "speeds by equal steps": waves(torch.linspace(1, 0.1, 8)),
    "speeds times the pair": waves(2 * PAIRS / 10000 ** (2 / 16)),
    "exponents of whole numbers": waves(1e4 ** -(4 * PAIRS // 16)),
    "cosines alone": SINES * (torch.arange(16) % 2),
    "divided by the root of their sum": SINES / SINES.sum(dim=1, keepdim=True).sqrt(),
    "noise": torch.randn(40, 16, generator=torch.Generator().manual_seed(0)),
    "NaN": SINES / 0,
}
EMBEDDINGS = {
    "one number for each token": lambda m, x: x + torch.arange(x.shape[1])[:, None],
    "tokens are mixed": lambda m, x: x + x.mean(dim=1, keepdim=True),
    "positions multiply": lambda m, x: x * m.position.weight[: x.shape[1]],
    "images are ignored": lambda m, x: 0 * x + m.position.weight[: x.shape[1]],
    "activation": lambda m, x: (x + m.position.weight[: x.shape[1]]).relu(),
}
LOSSES = {
    "half": lambda x, y: F.cross_entropy(x, y) / 2,
    "temperature": lambda x, y: F.cross_entropy(x / 2, y),
    "smoothing that is not meant": lambda x, y: F.cross_entropy(x, y, label_smoothing=0.1),
    "sigmoids": lambda x, y: F.binary_cross_entropy_with_logits(x, F.one_hot(y, 7).double()),
    "NaN": lambda x, y: x.sum() / 0 * 0,
}


def embedded(place) -> Report:
    make = tables.made(images.ByLinear, place=place)
    return diagnose_embedding(make(20), images.IMAGE, images.PATCH)


GROUPS = (diagnose_positions, TABLES), (embedded, EMBEDDINGS), (diagnose_loss, LOSSES)
UNEXPLAINED = [(tool, *named) for tool, group in GROUPS for named in group.items()]


@pytest.mark.parametrize(("tool", "name", "one"), UNEXPLAINED)
def test_what_no_form_gives_has_no_name(tool, name: str, one) -> None:
    report = tool(one)
    assert report.kind == "unexplained" and "unexplained" in str(report)


@pytest.mark.parametrize(
    ("forward", "words"),
    [
        (lambda m, x: x, "nothing is"),
        (lambda m, x: 2 * x + m.pe[:, : x.shape[1]], "they are multiplied by 2"),
        (lambda m, x: (x + m.pe[:, :1]).relu(), "not a multiple of it"),
    ],
)
def test_a_module_that_adds_no_positions_is_unexplained(forward, words: str) -> None:
    report = diagnose_positions(tables.made(tables.Adds, forward=forward)(16))
    assert report.kind == "unexplained" and words in report.failing[0]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: diagnose_positions(torch.zeros(3)), "must have shape (n, e) or (1, n, e)"),
        (lambda: diagnose_positions(SINES, base=1), "base must be above 1, got base=1. The paper"),
        (lambda: diagnose_positions(tables.Adds), "got"),
        (lambda: diagnose_positions(lambda n, e: n), "got int. Pass the table itself"),
        (lambda: diagnose_positions(lambda n, e: n / 0), "got ZeroDivisionError"),
        (lambda: diagnose_positions(nn.Conv2d(3, 3, 3)), "diagnose_positions: Conv2d must"),
        (lambda: diagnose_loss(3), "loss must be a function, got 3. Pass the function"),
        (lambda: diagnose_loss(F.cross_entropy, padding_id=9), "padding_id must be below"),
        (lambda: diagnose_loss(lambda x, y: x[9]), "must take logits (5, 7) and classes (5,)"),
        (lambda: diagnose_embedding(nn.Linear(4, 4), 8, 3), "got patch_size=(3, 3) for an"),
        (lambda: diagnose_embedding(nn.Linear(4, 4), 8, 0), "patch_size must be an integer of at"),
        (lambda: diagnose_embedding(nn.Linear(4, 4), 8, 2), "Linear must run on x of shape"),
        (lambda: diagnose_embedding(nn.Conv2d(3, 8, 2, 2), 8, 2), "must return (b, n, e), got"),
    ],
)
def test_what_is_refused(call, words: str) -> None:
    assert words in error_of(call)


def test_details_state_the_form_and_the_global_random_numbers_stay() -> None:
    assert "its base is 1000" in str(diagnose_positions(tables.base_of_a_thousand))
    module = images.LinearOneRow(20)
    held, state = {k: v.clone() for k, v in module.state_dict().items()}, torch.get_rng_state()
    report = diagnose_embedding(module, images.IMAGE, images.PATCH)
    assert "row 8" in str(report) and torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(value, held[key]) for key, value in module.state_dict().items())
