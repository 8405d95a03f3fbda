"""`diagnose_block` on its patients, and on calls that it refuses."""

from __future__ import annotations

import pytest
import torch
from patients.blocks import PATIENTS, E, H, Own, Torch, pre
from torch import nn

from attention_clinic import diagnose_block

FIRST = {patient.ids: patient for patient in reversed(PATIENTS)}
KEPT = {
    *("residual-from-norm", "residual-missing", "residual-from-input", "residual-again"),
    *("norm-order", "norm-missing", "norm-shared", "norm-doubled"),
    *("norm-mixed", "part-shared", "context-mask-dropped", "activation-missing"),
    *("activation-last", "activation-other", "layers-shared"),
    *("layers-same-init", "stack-last-only", "norm-bessel", "norm-axis", "norm-formula"),
    *("norm-eps", "rms-eps"),
}


@pytest.mark.parametrize("patient", PATIENTS, ids=lambda patient: patient.name)
def test_patient(patient, request):
    """The first patient of a bug has two numbers of tokens."""
    if patient.ids and patient is not FIRST[patient.ids]:
        request.getfixturevalue("one_size")
    torch.manual_seed(0)
    report = diagnose_block(patient.make(), H, **patient.given)
    if patient.ids:
        assert sorted(report.ids) == sorted(patient.ids), report
    else:
        assert report.healthy, report
        assert sorted(v.id for v in report.variants) == sorted(patient.variants), report


def test_every_bug_has_two_patients():
    for id in KEPT:
        assert sum(id in patient.ids for patient in PATIENTS) >= 2, id


def test_block_that_is_not_understood_gets_no_name():
    class Strange(Torch):
        def forward(self, x):
            x = x + 3 * self.attn(self.n1(x))
            return x + self.feed(self.n2(x)).sort(-1).values

    report = diagnose_block(Strange(pre), H)
    assert not report.healthy
    assert not report.explanations
    assert any("understood up to here" in words for words in report.failing)


def test_words_of_a_healthy_block():
    report = diagnose_block(Torch(pre), H)
    assert report.checked == ("residuals; pre-norm; eps 1e-05; relu; attention with 4 heads",)


def test_module_stays_as_it_is():
    block = Own(pre)
    before = {name: p.clone() for name, p in block.named_parameters()}
    diagnose_block(block, H)
    assert all(torch.equal(p, before[name]) for name, p in block.named_parameters())


def test_dropout_that_is_active_in_eval_mode():
    class Drops(Torch):
        def forward(self, x):
            return super().forward(torch.nn.functional.dropout(x, 0.1))

    assert "dropout-eval" in diagnose_block(Drops(pre), H).ids


def test_part_without_gradients():
    class Cuts(Torch):
        def feed(self, x):
            return super().feed(x.detach())

    assert diagnose_block(Cuts(pre), H).ids == ("graph-cut",)


@pytest.mark.parametrize(
    ("block", "given", "words"),
    [
        (Torch(pre), {"activation": "bend"}, "activation must be one of"),
        (Torch(pre), {"mask": torch.ones(5, 5).bool()}, "must have an argument for mask"),
        (lambda x: x, {}, "must be an nn.Module"),
        (nn.Linear(E, 2 * E), {}, "must return tokens"),
    ],
)
def test_refusals(block, given, words):
    with pytest.raises(ValueError, match=words):
        diagnose_block(block, H, **given)
