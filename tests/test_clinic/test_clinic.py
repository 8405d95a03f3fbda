"""The clinic: the bank of patients, what it promises beside, and what it refuses."""

from __future__ import annotations

import copy
import random as python_random
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from patients import CASES, SIZES, UNKNOWN, Entry
from patients.attention import (
    Loops,
    LoopsMerge,
    LoopsSoftmaxQuery,
    LoopsSplit,
    UnnamedSoftmaxQuery,
    Views,
    ViewsMerge,
    ViewsScaledByEmbed,
    ViewsSoftmaxQuery,
    ViewsUnscaled,
)
from patients.blocks import PreNorm
from patients.masks import ViewsMaskMultiply
from patients.modern import Llama
from patients.needed import BlockedAfterHeads, Needs
from patients.pairs import Pair1, Pair3
from patients.unknown import Noisy, Rotary, Sines
from torch import Tensor, nn

from attention_clinic import (
    BUGS,
    diagnose,
    diagnose_block,
    diagnose_embedding,
    diagnose_loss,
    diagnose_positions,
)
from attention_clinic.bugs import ATTENTION, BLOCK, CACHE, EMBEDDING, LOADING, LOSS, POSITIONS
from attention_clinic.bugs.softmax import SOFTMAX
from attention_clinic.engine.forms import bug
from checks.engine.private import TorchDispatchMode
from helpers import error_of
from utils.attention import MultiHeadAttention
from utils.masking import causal_mask, padding_mask

pytestmark = pytest.mark.usefixtures("one_thread")
SEEDS = (0, 1)


# ------------------------------------------------------------------------------------- the bank


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{'+'.join(c.ids) or 'healthy'}-{c.name}")
def test_patient(case: Entry) -> None:
    """Sizes and seeds take turns; `make clinic` tries every size, each with twenty seeds."""
    place = CASES.index(case)
    number = place % len(case.sizes)
    seed, (e, h) = SEEDS[(place + number) % len(SEEDS)], case.sizes[number]
    assert case.judge(case.examine(seed, e, h), h) is None, f"seed {seed}, e={e}, h={h}"


@pytest.mark.parametrize("make", UNKNOWN, ids=lambda make: make.__name__)
def test_what_the_catalogue_does_not_know_gets_no_name(make: type) -> None:
    """A quarter of the usual effort; `make clinic` takes all of it, and twenty seeds."""
    torch.manual_seed(3)
    report = diagnose(make(24, 4), 4, effort=0.25)
    assert not report.healthy and not report.explanations
    assert "unexplained" in str(report)


def test_with_one_head_both_widths_are_one() -> None:
    """Cosines divided by it are unexplained; they are not divided by the wrong width."""
    make = next(make for make in UNKNOWN if make.__name__ == "NormedQueries")
    torch.manual_seed(0)
    report = diagnose(make(7, 1), 1, effort=0.25)
    assert not report.healthy and not report.ids


def test_every_bug_has_two_patients_and_every_pair_one() -> None:
    written: dict[tuple[str, ...], set[str]] = {}
    for case in CASES:
        written.setdefault(case.ids, set()).add(case.name)
    for id in BUGS:
        assert len(written.get((id,), ())) >= 2, f"{id} needs two independent patients"
    assert len(written[()]) >= 12
    assert sum(len(ids) == 2 for ids in written) >= 12
    assert len(UNKNOWN) >= 5


def test_the_catalogue_is_complete() -> None:
    for stage in ATTENTION:
        assert stage.reference.ids == ()
    for part in (ATTENTION, BLOCK, CACHE, EMBEDDING, LOADING, LOSS, POSITIONS):
        assert len({stage.name for stage in part}) == len(part)
        assert all(id in BUGS for stage in part for form in stage.forms for id in form.ids)
    for entry in BUGS.values():
        assert entry.words[0].islower() and not entry.words.endswith(".")
        assert entry.fix.endswith(".") and entry.threads
        assert entry.chapter.isdigit() and len(entry.chapter) == 2


def test_a_bug_is_added_in_one_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """One entry, and the search names it: alone, in a block, with another, and not elsewhere."""

    class Squared(Views):
        def weigh(self, scores, mask):
            return scores.softmax(-1) ** 2

    class SquaredLoops(Loops):
        def normalise(self, all_scores, allow):
            return [s.softmax(-1).square() for s in all_scores]

    class SquaredAndMerged(Squared, ViewsMerge):
        pass

    class Block(PreNorm):
        def __init__(self):
            super().__init__(24, 4)
            self.attention = Squared(24, 4)

    assert not diagnose(Squared(24, 4), 4).explanations
    monkeypatch.setattr(SOFTMAX, "forms", list(SOFTMAX.forms))
    monkeypatch.delitem(BUGS, "softmax-squared", raising=False)
    before = dict(BUGS)
    try:
        added = bug("softmax-squared", "squares the weights", "leave them.", "03", "made up")
        SOFTMAX.wrong(added)(lambda scores: scores.softmax(dim=-1) ** 2)
        for module in (Squared(24, 4), SquaredLoops(24, 4)):
            assert diagnose(module, 4).ids == (added,)
        assert sorted(diagnose(SquaredAndMerged(24, 4), 4).ids) == ["merge-no-transpose", added]
        assert diagnose_block(Block(), 4).ids == (added,)
        assert diagnose(Views(24, 4), 4).healthy
        with pytest.raises(ValueError, match="a second time"):
            bug(added, "", "", "", "")
    finally:
        BUGS.clear()
        BUGS.update(before)
    with pytest.raises(ValueError, match="Enter it first"):
        SOFTMAX.wrong("softmax-cubed")


def test_the_patients_of_the_bank_have_the_right_shapes() -> None:
    """What makes the clinic necessary: no check of shapes finds any of them."""
    x = torch.randn(2, 5, 24)
    for make in (ViewsMerge, LoopsSplit, ViewsSoftmaxQuery):
        assert make(24, 4)(x).shape == x.shape


# ----------------------------------------------------------------------------- what is promised


class Watched(Views):
    """Counts its calls, in a buffer and in an attribute."""

    def __init__(self, e: int, h: int):
        super().__init__(e, h)
        self.register_buffer("calls", torch.zeros(()))
        self.log: list[int] = []

    def forward(self, x, mask=None):
        self.calls += 1
        self.log.append(1)
        return super().forward(x, mask)


def test_the_module_stays_as_it_was() -> None:
    module = Watched(24, 4).train()
    module.proj.eval()
    seen = []
    module.register_forward_hook(lambda *given: seen.append(given))
    module.proj.register_forward_pre_hook(lambda *given: seen.append(given))
    module(torch.randn(2, 3, 24)).sum().backward()
    seen.clear()
    before = copy.deepcopy(module.state_dict())
    gradients = {name: p.grad.clone() for name, p in module.named_parameters()}
    block = PreNorm(24, 4)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), python_random.getstate()
    assert diagnose(module, 4).healthy
    assert diagnose_block(block, 4).healthy
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert all(torch.equal(p.grad, gradients[name]) for name, p in module.named_parameters())
    assert all(p.requires_grad and p.dtype == torch.float32 for p in module.parameters())
    assert module.training and not module.proj.training and module.log == [1]
    assert len(module._forward_hooks) == len(module.proj._forward_pre_hooks) == 1 and not seen
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])
    assert python_random.getstate() == states[2]


def test_what_is_printed_is_the_same_everywhere() -> None:
    module = ViewsScaledByEmbed(24, 4)
    text = str(diagnose(module, num_heads=4))
    assert text.splitlines()[0] == "ViewsScaledByEmbed: not equal to the reference"
    assert "  scale-embed   divides by sqrt(embed_dim) instead of sqrt(head_dim)" in text
    assert "reproduces your output exactly (largest difference below 1e-09)" in text
    assert "    Fix: divide by head_dim ** 0.5, the width of one head.\n    Chapter 03." in text
    assert "karpathy/ng-video-lecture#6" in text
    assert max(map(len, text.splitlines())) <= 96
    torch.manual_seed(9)
    assert str(diagnose(ViewsScaledByEmbed(24, 4), 4)) == text


def test_programs_read_the_report() -> None:
    report = diagnose(Pair1(24, 4), 4)
    (explanation,) = report.explanations
    assert explanation.ids == report.ids == ("scale-embed", "merge-no-transpose")
    assert 0 <= explanation.difference < 1e-9
    assert (
        explanation.chapter == "03" and "jsbaan/transformer-from-scratch#6" in explanation.threads
    )
    page = report._repr_html_()
    assert "<b>scale-embed + merge-no-transpose</b>" in page
    assert "https://github.com/jsbaan/transformer-from-scratch/issues/6" in page
    healthy = diagnose(MultiHeadAttention(24, 4), 4)
    assert healthy.healthy and healthy.checked and healthy.ids == ()
    assert "<table>" not in healthy._repr_html_()


def test_alternatives_are_both_reported() -> None:
    report = diagnose(UnnamedSoftmaxQuery(24, 4), 4)
    assert {e.ids for e in report.explanations} == {("softmax-query",), ("mix-transposed",)}
    assert "or, which gives the same output" in str(report)


def test_the_run_says_which_mask_it_is() -> None:
    report = diagnose(ViewsMaskMultiply(24, 4), 4, mask=padding_mask(torch.tensor([2, 5]), 5))
    assert [e.ids for e in report.explanations] == [("mask-multiply",)]  # mask-tiny fits as well


def test_names_break_ties() -> None:
    for e, h in SIZES:
        unnamed = diagnose(UnnamedSoftmaxQuery(e, h), h)
        assert {e.ids for e in unnamed.explanations} == {("softmax-query",), ("mix-transposed",)}
    assert diagnose(LoopsSoftmaxQuery(24, 4), 4).ids == ("softmax-query",)
    assert len(diagnose(LoopsSoftmaxQuery(24, 4), 4).explanations) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Sines, "rows sum to 1"),
        (Rotary, "order does not matter"),
        (Noisy, "two calls in eval mode"),
    ],
)
def test_properties_that_fail_are_said(make: type, words: str) -> None:
    assert any(words in line for line in diagnose(make(24, 4), 4).failing)


def test_properties_about_samples_and_the_future() -> None:
    class Mixes(Sines):
        def forward(self, x, mask=None):
            return super().forward(x) + x.mean(dim=0)

    failing = diagnose(Mixes(24, 4), 4, causal=True).failing
    assert any("samples stay apart" in line for line in failing)
    assert any("the past does not see the future" in line for line in failing)
    mask = padding_mask(torch.tensor([3, 5]), 5)
    failing = diagnose(Sines(24, 4), 4, mask=mask).failing
    assert any("padding does not leak" in line for line in failing)


def test_no_attention_at_all() -> None:
    report = diagnose(nn.Linear(24, 24), 4)
    assert not report.healthy and not report.explanations
    assert "no weights that could be" in str(report)


def test_the_start_of_the_weights_hides_nothing() -> None:
    for change in (nn.init.zeros_, nn.init.ones_):
        module = LoopsMerge(24, 4)
        for parameter in module.parameters():
            change(parameter)
        assert diagnose(module, 4).ids == ("merge-no-transpose",)


def test_one_token_shows_nothing() -> None:
    """With one token every weight is 1: queries and keys do not matter, and no mistake shows."""
    for make in (Views, ViewsUnscaled, Llama):
        report = diagnose(make(24, 4), 4, size=(2, 1))
        assert not report.healthy and not report.explanations
        assert "with one token they do not" in report.failing[0]
    for block in (PreNorm(24, 4), nn.Sequential(PreNorm(24, 4), PreNorm(24, 4))):
        report = diagnose_block(block, 4, size=(2, 1))
        assert not report.healthy and not report.explanations
        assert "with one token they do not" in report.failing[0]


def test_another_call() -> None:
    class Dictionary(Loops):
        def forward(self, batch):
            return {"length": 3, "hidden": super().forward(batch["tokens"])}

    report = diagnose(Dictionary(24, 4), 4, call=lambda m, x: m({"tokens": x})["hidden"])
    assert report.healthy
    additive = torch.zeros(6, 6).masked_fill(~causal_mask(6), -torch.inf)
    module = nn.MultiheadAttention(24, 4, batch_first=True)
    given = {"mask": additive, "call": lambda m, x, mask=None: m(x, x, x, attn_mask=mask)[0]}
    assert diagnose(module, 4, **given).healthy
    upside_down = {"mask": causal_mask(6), "call": given["call"]}
    assert ("mask-inverted",) in [e.ids for e in diagnose(module, 4, **upside_down).explanations]


class Counted(TorchDispatchMode):
    """Counts the operations of torch."""

    operations = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.operations += 1
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("e", "h"), [(64, 8), (768, 12)])
@pytest.mark.parametrize(
    ("make", "most"), [(Views, 2_950), (LoopsMerge, 15_900), (Sines, 95_000), (Pair3, 60_000)]
)
def test_it_takes_few_steps(make: type, most: int, e: int, h: int) -> None:
    with Counted() as counted:
        diagnose(make(e, h), h)
    assert counted.operations < most, "counted, since seconds would depend on the machine"


# ------------------------------------------------------------------------------ what is refused


class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.out = nn.Linear(24, 24), nn.Linear(20, 24)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.q(x))


def test_an_exception_names_the_line_of_the_module() -> None:
    text = error_of(lambda: diagnose(Broken(), 4))
    assert text.startswith("diagnose: Broken must run on x of shape (3, 5, 24), got RuntimeError")
    assert "in forward, line" in text and "return self.out(self.q(x))" in text
    text = error_of(lambda: diagnose_embedding(Broken(), 8, 2))
    assert "return self.out(self.q(x))" in text
    text = error_of(lambda: diagnose_loss(lambda scores, classes: F.cross_entropy(scores)))
    assert text.startswith("diagnose_loss: <lambda> must take scores")


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: diagnose(Views, 4), "got the class Views"),
        (lambda: diagnose("attention", 4), "module must be an nn.Module"),
        (lambda: diagnose(Views(24, 4), 0), "num_heads must be an integer of at least 1"),
        (lambda: diagnose(lambda x: x, 4), "a function must come with its weights"),
        (lambda: diagnose(lambda x: x, 4, weights={"q": 3}), "weights must be tensors by name"),
        (lambda: diagnose(Views(24, 4), 4, causal=causal_mask(3)), "causal must be True, False"),
        (lambda: diagnose(Views(24, 4), 4, mask=torch.ones(2, 3, 4, 5, 5)), "mask must have shape"),
        (lambda: diagnose(Views(24, 4), 4, num_kv_heads=3), "num_heads must be a multiple of"),
        (lambda: diagnose(Views(24, 4), 4, num_kv_heads=0), "num_kv_heads must be an integer"),
        (lambda: diagnose(Views(24, 4), 4, like="lama"), "like must be one of llama, mistral"),
        (lambda: diagnose(Views(24, 4), 4, cache=3), "cache must be a function that makes"),
        (lambda: diagnose_block(PreNorm(24, 4), 4, like="lama"), "like must be one of llama"),
        (lambda: diagnose(nn.Dropout(), 4), "the weights must be found in the module"),
        (lambda: diagnose_block(3, 4), "block must be an nn.Module"),
        (lambda: diagnose_block(PreNorm(24, 4), 5), "num_heads must divide"),
        (lambda: diagnose_block(PreNorm(24, 4), 4, activation="elu"), "activation must"),
        (lambda: diagnose_embedding(nn.Linear(4, 4), 8, 3), "patches must tile the image"),
        (lambda: diagnose_positions(torch.zeros(3)), "the table must have shape"),
        (lambda: diagnose_loss(3), "loss must be a function"),
    ],
)
def test_bad_input_is_refused(call, words) -> None:
    assert words in error_of(call)


def test_heads_that_do_not_divide() -> None:
    report_or_error = None
    try:
        report_or_error = diagnose(Loops(24, 4), 7)
    except ValueError as error:
        assert "num_heads" in str(error)
    else:
        assert not report_or_error.healthy and not report_or_error.explanations


def test_a_wrong_number_of_heads_is_told_the_right_one() -> None:
    for make, h, told in ((Views, 8, 4), (Loops, 4, 2), (Llama, 4, 2)):
        report = diagnose(make(24, h), told)
        assert not report.healthy and not report.explanations
        assert report.failing[0] == f"num_heads is {told}: with num_heads={h} it is right"
    assert "num_heads" not in str(diagnose(Sines(24, 4), 4))


def test_a_sick_module_is_told_its_own_number_of_heads() -> None:
    class Kept(Loops):
        """Takes the softmax over the queries; says how many heads it has."""

        def normalise(self, all_scores, allow):
            return [scores.softmax(dim=-2) for scores in all_scores]

    class Whole(nn.Module):
        """One head, scaled for its own width, or not at all."""

        def __init__(self, factor):
            super().__init__()
            self.w_q, self.w_k, self.w_v, self.w_o = (nn.Linear(24, 24) for _ in range(4))
            self.factor = factor

        def forward(self, x):
            scores = self.factor * self.w_q(x) @ self.w_k(x).mT
            return self.w_o(scores.softmax(-1) @ self.w_v(x))

    said = diagnose(Kept(24, 4), 12)
    assert not said.healthy
    assert said.failing[0] == (
        "num_heads is 12, and it says 4 heads: with num_heads=4 it is softmax-query"
    )
    alone = diagnose(Whole(24**-0.5), 6)
    assert alone.ids == ("heads-not-split",)
    assert alone.failing == ("num_heads is 6, and it weighs by 1: with num_heads=1 it is right",)
    assert not diagnose(Kept(24, 4), 4).failing
    words = error_of(lambda: diagnose(Whole(24**-0.5), 7))
    assert words.endswith("The module has 1: say num_heads=1.")
    words = error_of(lambda: diagnose(Loops(24, 4), 7))
    assert words.endswith("The module has 4: say num_heads=4.")


def test_a_mask_that_must_be_given_is_tried_open() -> None:
    report = diagnose(BlockedAfterHeads(24, 4), 4)
    assert report.healthy and "with a mask (b, 1, j) of False" in report.checked[0]
    assert "a mask that blocks something: mask=... tries one" in report.untried
    mask = (torch.arange(5) < torch.tensor([[3], [5]]))[:, None]
    told = diagnose(BlockedAfterHeads(24, 4), 4, mask=~mask, true_means="block")
    assert told.healthy and not any("mask" in words for words in told.untried)
    assert diagnose(BlockedAfterHeads(24, 4), 4, mask=mask).ids == ("mask-inverted",)
    report = diagnose_block(Needs(24, 4), 4)
    assert report.healthy and "a mask that blocks something" in report.untried[0]
    assert "NoneType" in error_of(lambda: diagnose(BlockedAfterHeads(24, 4), 4, call=lambda m, x:
                                                   m(x, x, x, None)))  # fmt: skip


def test_a_mask_that_hides_every_token_proves_nothing() -> None:
    """With True = may attend, a mask of False leaves zeros, whatever came in."""

    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(16, 16) for _ in range(3))

        def forward(self, x, pad_mask):
            scores = self.q(x) @ self.k(x).mT * 16**-0.5
            allowed = torch.ones(scores.shape[1:]).tril().bool() & pad_mask.unsqueeze(1)
            weights = scores.masked_fill(~allowed, -torch.inf).softmax(dim=-1)
            return weights.nan_to_num() @ self.v(x)

    report = diagnose(Padded(), 1)
    assert report.healthy, report


def test_ones_may_block_as_true_does() -> None:
    class Subtracts(Views):  # as TensorFlow's guide does: 1 means blocked
        def weigh(self, scores: Tensor, mask: Tensor | None) -> Tensor:
            return (scores if mask is None else scores - 1e9 * mask).softmax(dim=-1)

    later = torch.ones(5, 5).triu(1)
    for mask in (later, later.long(), later.bool()):
        report = diagnose(Subtracts(24, 4), 4, mask=mask, true_means="block")
        assert report.healthy and "blocks 10 of 25" in report.checked[-1]
        assert diagnose(Subtracts(24, 4), 4, mask=mask).ids == ("mask-inverted",)


def test_a_linear_layer_of_ones_own_may_be_turned_over() -> None:
    class Linear(nn.Module):
        def __init__(self, c: int, e: int) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.zeros(c, e)), nn.Parameter(torch.zeros(e))

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.weight + self.bias

    module = Views(24, 4)
    module.qkv, module.proj = Linear(24, 72), Linear(24, 24)
    assert diagnose(module, 4).healthy


def test_what_is_no_number_is_said_to_begin_somewhere() -> None:
    class Root(nn.Module):
        def forward(self, t: Tensor) -> Tensor:
            return t.sqrt()

    class Rooted(Views):
        def __init__(self, e: int, h: int):
            super().__init__(e, h)
            self.root = Root()

        def weigh(self, scores, mask):
            return super().weigh(self.root(scores), mask)

    (said,) = diagnose(Rooted(24, 4), 4).failing
    begins = (
        "the output holds numbers: it has nothing but NaN, first in what sqrt returns in forward"
    )
    assert said.startswith(begins + " of root, line ") and said.endswith("return t.sqrt()")

    class Block(PreNorm):
        def __init__(self):
            super().__init__(24, 4)
            self.attention = Rooted(24, 4)

    what, where = diagnose_block(Block(), 4).failing
    assert what == "each part is right by itself: attention is what nothing explains"
    assert "NaN, first in what sqrt returns in forward of attention.root, line" in where


# --------------------------------------------------------------------------- unusual modules


class PlainTensors(nn.Module):
    """Weights that are no parameters, in single precision only."""

    def __init__(self, e: int, h: int):
        super().__init__()
        self.h = h
        self.wq, self.wk, self.wv, self.wo = (torch.randn(e, e) / e**0.5 for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        b, n, e = x.shape
        x = x.float()
        q, k, v = (
            (x @ w).view(b, n, self.h, -1).transpose(1, 2) for w in (self.wq, self.wk, self.wv)
        )
        mixed = (q @ k.mT * e**-0.5).softmax(-1) @ v
        return mixed.transpose(1, 2).reshape(b, n, e) @ self.wo


def test_weights_that_are_no_parameters() -> None:
    assert set(diagnose(PlainTensors(24, 4), 4).ids) == {"scale-embed", "param-plain-tensor"}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_precisions(dtype: torch.dtype) -> None:
    assert diagnose(ViewsUnscaled(24, 4).to(dtype), 4).ids == ("scale-missing",)
    assert diagnose(MultiHeadAttention(24, 4).to(dtype), 4).healthy


def test_parametrised_weights_and_kept_outputs() -> None:
    class Keeps(ViewsMerge):
        def forward(self, x, mask=None):
            self.last = super().forward(x)  # a tensor with a history: deepcopy refuses it
            return self.last

    module = Keeps(24, 4)
    module.qkv = nn.utils.parametrizations.weight_norm(module.qkv)
    module(torch.randn(2, 3, 24))
    assert diagnose(module, 4).ids == ("merge-no-transpose",)


def test_a_mask_that_must_be_given_may_be_upside_down() -> None:
    class Masked(MultiHeadAttention):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            b, n = mask.shape
            return super().forward(x, attn_mask=mask.view(b, 1, 1, n))

    class Sick(MultiHeadAttention):
        def forward(self, x: Tensor, mask: Tensor) -> Tensor:
            b, n, e = x.shape
            layers = self.q_proj, self.k_proj, self.v_proj
            q, k, v = (f(x).view(b, n, self.num_heads, -1).transpose(1, 2) for f in layers)
            scores = q @ k.mT / (e // self.num_heads) ** 0.5
            scores = scores.masked_fill(mask.view(b, 1, 1, n), -torch.inf)
            return self.out_proj((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, e))

    mask = torch.arange(7) < torch.tensor([[4], [5], [6]])
    assert diagnose(Masked(24, 4), 4, mask=mask).healthy
    assert diagnose(Sick(24, 4), 4, mask=mask).ids == ("mask-inverted",)


def test_readme_shows_what_diagnose_says(capsys: pytest.CaptureFixture[str]) -> None:
    text = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    code, said = re.search(r"```python\n(.*?)```\s+```\n(.*?)```", text, re.DOTALL).groups()
    exec(code, {"__name__": "readme"})
    assert capsys.readouterr().out == said
