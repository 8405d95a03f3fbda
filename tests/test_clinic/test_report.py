"""What a report says: of what was tried and what was not, in a test that fails, on a page."""

from __future__ import annotations

import math
import re
from copy import deepcopy

import pytest
import torch
from patients.attention import (
    Loops,
    Views,
    ViewsMerge,
    ViewsNoOut,
    ViewsScaledByEmbed,
    ViewsScaledTwice,
)
from patients.blocks import BesselInside, BesselOutside, EpsOnly, PreNorm
from patients.followed import Disentangled
from patients.masks import Causal
from patients.modern_blocks import LlamaSwapped
from patients.strangers import (
    FilledByNumber,
    FrozenTemperature,
    LearnedBesideOne,
    LearnedSoftplus,
    LearnedTemperature,
    Padded,
    TemperatureOfEachHead,
    TimeFirst,
)
from torch import nn

from attention_clinic import (
    BUGS,
    VARIANTS,
    Report,
    diagnose,
    diagnose_block,
    diagnose_embedding,
    diagnose_loss,
    diagnose_model,
    diagnose_positions,
)
from attention_clinic.bugs.softmax import SOFTMAX
from attention_clinic.engine.forms import variant
from attention_clinic.engine.report import explain
from utils.attention import MultiHeadAttention
from utils.encoder import EncoderBlock
from utils.masking import causal_mask, padding_mask

PAGE = 84


class TakesMask(Views):
    """Has an argument for a mask."""

    def forward(self, x, attn_mask=None):
        return super().forward(x, attn_mask)


class Plain(Views):
    """Has none."""

    def forward(self, x):
        return super().forward(x)


def test_a_report_is_true_when_it_is_healthy() -> None:
    assert diagnose(Views(24, 4), 4)
    report = diagnose(ViewsMerge(24, 4), 4)
    assert not report
    with pytest.raises(AssertionError) as caught:
        assert report
    said = str(caught.value)
    assert "merge-no-transpose" in said and "Fix: move the heads beside d first" in said
    assert "\n" not in repr(report) and BUGS["merge-no-transpose"].fix in repr(report)


def test_every_line_fits_and_nothing_is_broken_inside() -> None:
    first = BUGS["head-shared-projection"]
    for bug in BUGS.values():
        lines = str(Report("Module", False, (explain([first, bug]),))).splitlines()
        assert max(map(len, lines)) <= PAGE, bug.id
        text = "\n".join(lines)
        assert f"{first.id} + {bug.id}   " in text
        for code in re.findall(r"rearrange\((?:[^()]|\([^()]*\))*\)|mask\[[^]]*\]", bug.fix):
            assert code in text, "code is not broken"


def test_no_id_of_a_page_is_broken_and_its_names_are_its_own() -> None:
    page = diagnose(ViewsScaledByEmbed(24, 4), 4)._repr_html_()
    assert ".attention-clinic td b {white-space: nowrap}" in page
    assert set(re.findall(r"class='([^']*)'", page)) == {"attention-clinic"}
    assert "Remark: <b>out-missing</b>" in diagnose(ViewsNoOut(24, 4), 4)._repr_html_()


def test_a_mask_that_was_not_tried_is_said_to_be_untried() -> None:
    report = diagnose(TakesMask(24, 4), 4)
    assert report.healthy
    assert report.untried == ("a mask (the argument attn_mask): mask=... tries one",)
    assert "without a mask" in str(report) and "every token sees all tokens" not in str(report)
    assert "  Not tried: a mask (the argument attn_mask)" in str(report)
    tried = diagnose(TakesMask(24, 4), 4, mask=padding_mask(torch.tensor([2, 5]), 5))
    assert tried.untried == ()
    assert "with the mask, which blocks 3 of 10 places, in which True" in str(tried.checked)
    assert any("every token sees all tokens" in line for line in diagnose(Plain(24, 4), 4).checked)
    class_of_its_own = diagnose(MultiHeadAttention(24, 4), 4)
    assert class_of_its_own.untried == (
        "a mask (the argument attn_mask): mask=... tries one",
        "a cache (the argument cache): cache=... tries one",
        "the argument context",
    )
    assert diagnose_block(EncoderBlock(24, 4, 48), 4).untried == (
        "a cache (the argument cache): diagnose_cache tries that of a whole model",
        "the argument attn_mask",
    )


def test_no_window_is_said_to_show_all_tokens() -> None:
    class Near(Views):
        def forward(self, x):
            return super().forward(x)

        def weigh(self, scores, mask):
            place = torch.arange(scores.shape[-1])
            far = (place[:, None] - place).abs() > 1
            return torch.where(far, -torch.inf, scores).softmax(dim=-1)

    class Others(Views):
        def forward(self, x):
            return super().forward(x)

        def weigh(self, scores, mask):
            itself = torch.eye(scores.shape[-1], dtype=torch.bool)
            return torch.where(itself, -torch.inf, scores).softmax(dim=-1)

    for make, said in (
        (Near, "every token sees its window"),
        (Others, "every token sees all others"),
    ):
        report = diagnose(make(24, 4), 4)
        assert report.healthy and report.variants and said in report.checked[0]
        assert "every token sees all tokens" not in str(report)


def test_what_call_gives_is_tried() -> None:
    module = MultiHeadAttention(24, 4)
    assert diagnose(module, 4, call=lambda m, x: m(x, x)).untried == (
        "a mask (the argument attn_mask): mask=... tries one",
        "a cache (the argument cache): cache=... tries one",
    )


class Drops(Views):
    """Has all that may stay untried."""

    def __init__(self, e: int, h: int, p: float = 0.1) -> None:
        super().__init__(e, h)
        self.drop, self.attention_dropout = nn.Dropout(p), p

    def forward(self, x, attn_mask=None, layer_past=None, use_cache=False, cache_position=None):
        return self.drop(super().forward(x, attn_mask))


def test_a_factor_that_learned_codes_may_swallow_is_said_to_be_untried() -> None:
    report = diagnose(Disentangled(24, 4), 4)
    assert report.healthy
    assert any("the codes may learn that" in said for said in report.untried)


def test_a_cache_and_dropout_that_were_not_tried_are_said_once() -> None:
    dropout = "dropout (p = 0.1), which rests in eval mode"
    assert diagnose(Drops(24, 4), 4).untried == (
        "a mask (the argument attn_mask): mask=... tries one",
        "a cache (the arguments layer_past and use_cache): cache=... tries one",
        "the argument cache_position",
        dropout,
    )
    assert dropout not in diagnose(Drops(24, 4, 0.0), 4).untried
    assert dropout in diagnose(nn.MultiheadAttention(24, 4, 0.1, batch_first=True), 4).untried
    called = diagnose(Drops(24, 4), 4, call=lambda m, x: m(x, None, "a cache")).untried
    assert not any("cache (" in words for words in called)


def test_a_mask_that_blocks_nothing_was_not_tried() -> None:
    report = diagnose(Views(24, 4), 4, mask=torch.ones(2, 1, 1, 5, dtype=torch.bool))
    assert report.healthy and not any("with the mask" in line for line in report.checked)
    assert any("blocks something" in line for line in report.untried)
    given = {"mask": causal_mask(6)[None, None], "causal": True}
    assert any("blocks something" in line for line in diagnose(Causal(24, 4), 4, **given).untried)


def test_a_module_of_one_length_was_tried_with_one() -> None:
    class Fixed(Views):
        def forward(self, x):
            return super().forward(x + torch.zeros(5, 1).to(x))

    assert "another number of tokens, which it does not take" in diagnose(Fixed(24, 4), 4).untried


def test_nan_is_called_nan() -> None:
    class Overflows(Views):
        def weigh(self, scores, mask):
            return (scores * math.nan).softmax(-1)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(24), nn.LayerNorm(24)
            self.attn, self.fc1, self.fc2 = Overflows(24, 4), nn.Linear(24, 9), nn.Linear(9, 24)

        def forward(self, x):
            x = x + self.attn(self.norm1(x))
            return x + self.fc2(self.fc1(self.norm2(x)).relu())

    cut = nn.Conv2d(3, 20, 4, stride=4)
    reports = [
        diagnose(Overflows(24, 4), 4),
        diagnose_block(Block(), 4),
        diagnose_embedding(cut, 8, 4, call=lambda m, x: m(x).flatten(2).mT * math.nan),
        diagnose_positions(torch.full((5, 8), math.nan)),
        diagnose_loss(lambda scores, classes: scores.sum() * math.nan),
    ]
    for report in reports:
        assert not report.healthy and not report.explanations
        assert any("NaN" in line for line in report.failing), report
        assert not any("two calls" in line for line in report.failing)


def test_a_random_start_of_a_factor_is_never_quoted() -> None:
    for seed in range(3):
        torch.manual_seed(seed)
        (explanation,) = diagnose(FrozenTemperature(24, 4), 4).explanations
        assert explanation.detail == "it multiplies by 0.3"
        (remark,) = diagnose(LearnedTemperature(24, 4), 4).remarks
        assert remark.detail.startswith("it multiplies by 0.3; temperature: right at any value")
    assert "temperature as it is" in str(diagnose(LearnedTemperature(24, 4), 4))
    (remark,) = diagnose(LearnedSoftplus(24, 4), 4).remarks
    assert remark.detail.startswith("it multiplies by 0.6931; raw: right at any value")
    assert "tau as it is" in str(diagnose(TemperatureOfEachHead(24, 4), 4))


def test_weights_that_are_scaled_beside_the_scores_are_told_so() -> None:
    (explanation,) = diagnose(ViewsScaledTwice(24, 4), 4).explanations
    assert explanation.detail == "it multiplies the weights by 0.5, though the scores are scaled"
    assert "scale the scores alone, inside" in explanation.fix


@pytest.mark.parametrize("make", [LearnedBesideOne, LearnedSoftplus, TemperatureOfEachHead])
def test_a_learned_temperature_is_right_inside_a_block_and_a_model(make) -> None:
    stack = []
    for _ in range(2):
        block = PreNorm(24, 4)
        block.attention = make(24, 4)
        stack.append(block)
    assert diagnose_block(stack[0], 4).healthy
    assert diagnose_model(nn.Sequential(nn.Embedding(9, 24), *stack)).healthy


def test_which_root_a_norm_divides_by_is_said() -> None:
    said = {make: diagnose_block(make(24, 4), 4) for make in (BesselOutside, BesselInside, EpsOnly)}
    assert [one.ids for one in said.values()] == [("norm-bessel",)] * 3
    details = [one.explanations[0].detail for one in said.values()]
    assert [detail.rpartition(", and eps ")[2] for detail in details[::2]] == ["stands outside"] * 2
    assert ["n - 1" in detail for detail in details] == [True, True, False]


def test_a_gate_that_another_name_stands_at_is_a_remark() -> None:
    report = diagnose_block(LlamaSwapped(24, 4), 4)
    assert report.healthy and [remark.ids for remark in report.remarks] == [("gate-swapped",)]
    assert "gate-second" in [variant.id for variant in report.variants]


def test_remarks_are_told_and_leave_a_module_healthy() -> None:
    report = diagnose(FilledByNumber(24, 4), 4, mask=padding_mask(torch.tensor([2, 5]), 5))
    assert report.healthy and [remark.ids for remark in report.remarks] == [("mask-fp16",)]
    assert "  Remark: mask-fp16   fills masked scores" in str(report)
    report = diagnose(ViewsNoOut(24, 4), 4)
    assert report.healthy and "out_proj=True" in str(report)


def test_conventions_are_said() -> None:
    blocked = torch.arange(6) >= torch.tensor([[4], [6]])
    report = diagnose(Padded(24, 4), 4, mask=blocked)
    assert any("in which True means blocked" in line for line in report.checked)
    assert any("tokens first" in line for line in diagnose(TimeFirst(24, 4), 4).checked)
    text = str(diagnose(Loops(24, 4), 4, call=lambda m, x: m(x.mT.contiguous().mT)))
    assert "tokens first" not in text


def test_a_variant_is_called_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry, and a healthy module says that it is built so."""

    class Sharp(Loops):
        def normalise(self, all_scores, allow):
            return [s.mul(2).softmax(dim=2) for s in all_scores]

    class SharpAndMerged(ViewsMerge):
        def weigh(self, scores, mask):
            return scores.mul(2).softmax(dim=-1)

    assert diagnose(Sharp(24, 4), 4).ids == ("scale-other",)
    monkeypatch.setattr(SOFTMAX, "forms", list(SOFTMAX.forms))
    before = dict(VARIANTS)
    try:
        added = variant("softmax-sharp", "doubles the scores first", "made up", "03")
        SOFTMAX.variant(added)(lambda scores: scores.mul(2).softmax(dim=-1))
        report = diagnose(Sharp(24, 4), 4)
        assert report.healthy and [v.id for v in report.variants] == [added]
        assert "  Variant: softmax-sharp   doubles the scores first (made up)" in str(report)
        assert "Variant: softmax-sharp, doubles" in report._repr_html_()
        sick = diagnose(SharpAndMerged(24, 4), 4)
        assert sick.ids == ("merge-no-transpose",) and sick.variants == report.variants
        assert diagnose(Loops(24, 4), 4).variants == ()
        with pytest.raises(ValueError, match="a second time"):
            variant(added, "", "", "")
    finally:
        VARIANTS.clear()
        VARIANTS.update(before)
    with pytest.raises(ValueError, match="Enter it first"):
        SOFTMAX.variant("softmax-dull")


def test_it_says_which_layer_makes_keys_and_values() -> None:
    class One(nn.Module):
        """Keys and values come from one layer, by its number."""

        def __init__(self, e, h, both):
            super().__init__()
            self.h, self.both = h, both
            self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(e, e) for _ in range(4))

        def forward(self, x):
            made = self.both(self)(x)
            q, k = (t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in (self.to_q(x), made))
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, k)
            return self.to_out(mixed.transpose(1, 2).flatten(2))

    for name in "kv":
        report = diagnose(One(24, 4, lambda module, name=name: getattr(module, f"to_{name}")), 4)
        assert report.ids == ("value-from-key",), str(report)
        told = "the keys get the layer of the values" in report.explanations[0].detail
        assert told == (name == "v")


def test_layers_that_nothing_registers_are_said() -> None:
    class Borrows(nn.Module):
        """Another module's layer makes queries, keys and values."""

        def __init__(self, e, h, pack):
            super().__init__()
            self.h, self.pack, self.last = h, pack, nn.Linear(e, e)

        def forward(self, x):
            q, k, v = (
                t.unflatten(-1, (self.h, -1)).transpose(1, 2) for t in self.pack(x).chunk(3, -1)
            )
            mixed = torch.nn.functional.scaled_dot_product_attention(q, k, v)
            return self.last(mixed.transpose(1, 2).flatten(2))

    class Bound(Borrows):
        """Holds its layer, and calls it by a function that knows the first module only."""

        def __init__(self, e, h):
            super().__init__(e, h, lambda x: self.packing(x))
            self.packing = nn.Linear(e, 3 * e)

    words = "it holds the layers that it calls: not Linear 24 x 72"
    other = nn.Linear(24, 72)
    assert words in diagnose(Borrows(24, 4, lambda x: other(x)), 4).failing
    assert diagnose(Bound(24, 4), 4).healthy
    report = diagnose(deepcopy(Bound(24, 4)), 4)
    assert not report.healthy
    assert any(said.startswith(words) and "original" in said for said in report.failing)


def test_the_convention_of_a_mask_is_said() -> None:
    later = torch.ones(5, 5).triu(1)
    past = 1 - later

    def last(module, mask, **more):
        return diagnose(module, 4, mask=mask, **more).checked[-1]

    assert last(TakesMask(24, 4), past.bool()).endswith("in which True means may attend")
    added = torch.zeros(5, 5).masked_fill(later.bool(), -torch.inf)

    class Adds(Views):
        def weigh(self, scores, mask):
            return (scores if mask is None else scores + mask).softmax(dim=-1)

    assert last(Adds(24, 4), added).endswith("in which 0 means may attend: it is added")
    torchs = nn.MultiheadAttention(24, 4, batch_first=True)
    assert "means may attend; handed on as ~mask" in last(torchs, past.bool())
    report = diagnose(torchs, 4, mask=later.bool(), true_means="block")
    assert report.healthy and "blocks 10 of 25 places, in which True means blocked" in str(report)


def test_a_fix_speaks_of_true_as_its_caller_does() -> None:
    later = torch.ones(5, 5).triu(1).bool()
    (found,) = diagnose(TakesMask(24, 4), 4, mask=later, true_means="block").explanations
    assert found.ids == ("mask-inverted",) and "may attend" not in found.fix
    assert 'here True = blocked, as true_means="block" says, so mask where it is True' in found.fix
