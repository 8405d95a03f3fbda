"""Contexts and masks of blocks: what gets no name, what is said, and what is refused."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from patients.attention import Views
from patients.crossing import Apart, Packed
from patients.decoders import CrossUnnormed, PostDecoder, PreDecoder
from patients.modern_blocks import LlamaBlock
from patients.variants import ByDistance, WindowOfThePast, _t5
from torch import nn

from attention_clinic import diagnose, diagnose_block, diagnose_loss, diagnose_positions
from helpers import error_of
from utils.attention import MultiHeadAttention
from utils.decoder import DecoderBlock
from utils.masking import causal_mask, padding_mask


class LeftOut(PreDecoder):
    """Its context may be left out, and its name is nobody else's."""

    def forward(self, x, en_out=None):
        return super().forward(x, en_out)


def test_a_context_that_may_be_left_out_is_handed_over() -> None:
    report = diagnose_block(LeftOut(24, 4), 4, context=True)
    assert report.healthy
    assert "cross-attention" in report.checked[0]


class UnheardSegments(PostDecoder):
    """Takes segments that it does not read, and loses its stream."""

    def forward(self, x, segments, mask):
        x = self.norms[0](self.look(x, None))
        return self.norms[1](x + self.feed(x))


def test_tokens_in_the_place_of_others_are_no_input_that_is_ignored() -> None:
    assert "ignores-input" not in diagnose_block(UnheardSegments(24, 4), 4).ids


class KeepsItsTable(LlamaBlock):
    """An attribute about turns is a table, which is neither true nor false."""

    def forward(self, x):
        self.rope_cache = torch.ones(2, 2)
        return super().forward(x)


def test_a_table_of_turns_is_no_switch() -> None:
    assert diagnose_block(KeepsItsTable(24, 4), 4).healthy


class FromTheStart(PreDecoder):
    """Cross-attention asks with what entered the block."""

    def forward(self, x, context):
        start, x = x, x + self.attention(self.ln_1(x))
        x = x + self.cross(self.ln_2(start), context)
        return x + self.ffn(self.ln_3(x))


class SideBySide(PreDecoder):
    """Both attentions at once."""

    def forward(self, x, context):
        x = x + self.attention(self.ln_1(x)) + self.cross(self.ln_2(x), context)
        return x + self.ffn(self.ln_3(x))


class Together(PreDecoder):
    """Asks its own tokens and the context at once."""

    def forward(self, x, context):
        x = x + self.attention(self.ln_1(x))
        y = self.ln_2(x)
        x = x + self.cross(y, torch.cat([y, context], dim=1))
        return x + self.ffn(self.ln_3(x))


class CausalCross(PreDecoder):
    """Hides the end of the context from the first tokens."""

    def forward(self, x, context):
        x = x + self.attention(self.ln_1(x))
        hidden = torch.ones(x.shape[1], context.shape[1]).tril().bool()
        x = x + self.cross(self.ln_2(x), context, hidden)
        return x + self.ffn(self.ln_3(x))


class Deaf(PreDecoder):
    """Never calls its cross-attention."""

    def forward(self, x, context):
        x = x + self.attention(self.ln_1(x))
        return x + self.ffn(self.ln_3(x))


@pytest.mark.parametrize("make", [FromTheStart, SideBySide, Together, CausalCross])
def test_blocks_that_no_bug_explains_get_no_name(make: type) -> None:
    report = diagnose_block(make(24, 4), 4, context=True, effort=0.25)
    assert not report.healthy and not report.explanations
    assert not any("the context is heard" in said for said in report.failing)


def test_a_part_that_is_never_called_is_named() -> None:
    report = diagnose_block(Deaf(24, 4), 4, context=True)
    assert report.ids == ("part-unused",)
    assert "cross is never called" in report.explanations[0].detail


class Mixed(Packed):
    def forward(self, x, context):
        return super().forward(x, context + x.mean(dim=1, keepdim=True))


class Sines(Apart):
    def forward(self, query, key, value):
        q, k, v = self.projected(query, key, value)
        return self.fc((q @ k.mT / self.root()).sin() @ v)


@pytest.mark.parametrize("make", [Mixed, Sines])
def test_cross_attentions_that_no_bug_explains_get_no_name(make: type) -> None:
    report = diagnose(make(24, 4), 4, context=True)
    assert not report.healthy and not report.explanations
    apart = [line for line in report.failing if "tokens that ask stay apart" in line]
    assert bool(apart) == (make is Mixed)


def test_the_report_says_what_was_compared() -> None:
    text = str(diagnose(MultiHeadAttention(24, 4), 4, context=(9, 24)))
    assert "keys and values of a context (context) 24 wide" in text
    module = nn.MultiheadAttention(24, 4, kdim=10, vdim=10, batch_first=True)
    assert "keys and values of a context (key, value) 10 wide" in str(
        diagnose(module, 4, context=10)
    )
    block = DecoderBlock(24, 4, 36)
    masks = {"mask": causal_mask(5), "context_mask": padding_mask(torch.tensor([4, 7]), 7)}
    report = diagnose_block(block, 4, context=True, **masks)
    assert report.checked[-1] == (
        "with a mask that blocks 10 of 25 places and a mask of the context that blocks 3 of 14 "
        "places"
    )
    assert report.untried == ()


def test_only_the_sizes_of_a_context_matter() -> None:
    module = Packed(24, 4)
    context = torch.full((3, 6, 24), torch.nan)
    assert diagnose(module, 4, context=context).healthy
    assert diagnose_block(PreDecoder(24, 4), 4, context=context).healthy


def test_another_call_gets_the_context_and_the_masks() -> None:
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.inside, self.block = Packed(24, 4), PostDecoder(24, 4)

    module = Named()
    seen = []

    def call(m, x, context, mask=None):
        seen.append(mask)
        return m.inside(x, context, mask)

    mask = padding_mask(torch.tensor([4, 8]), 8)
    inside = Named().inside
    assert diagnose(
        inside, 4, context=True, mask=mask, call=lambda m, x, c, k=None: m(x, c, k)
    ).healthy
    report = diagnose_block(
        module.block,
        4,
        context=True,
        mask=causal_mask(5)[None, None],
        call=lambda m, x, c, k=None, ck=None: m(x, c, ck, k),
    )
    assert report.healthy and any("a mask that blocks 10" in line for line in report.checked)


def test_a_call_says_by_its_own_names_what_it_takes() -> None:
    block, mask = PreDecoder(24, 4), causal_mask(5)
    assert diagnose(Views(24, 4), 4, mask=mask, call=lambda m, x, k, of=0: m(x, k)).healthy
    report = diagnose_block(
        block, 4, context=True, mask=mask, call=lambda m, x, mask, context: m(x, context, mask)
    )
    assert report.healthy and any("a mask that blocks 10" in line for line in report.checked)
    report = diagnose_block(
        block,
        4,
        context=True,
        context_mask=padding_mask(torch.tensor([4, 7]), 7),
        call=lambda m, x, context, context_mask: m(x, context, None, context_mask),
    )
    assert report.healthy and any("mask of the context" in line for line in report.checked)
    mask = padding_mask(torch.tensor([4, 8]), 8)
    assert diagnose(
        Packed(24, 4),
        4,
        context=True,
        mask=mask,
        call=lambda m, x, mask, context: m(x, context, mask),
    ).healthy


class UnscaledByDistance(ByDistance):
    """As T5, and nothing says that it is meant."""

    def factor(self, e):
        return 1.0


def test_t5_is_a_variant_and_who_only_looks_like_it_gets_a_remark() -> None:
    report = diagnose(_t5(24, 4), 4)
    assert report.healthy and not report.remarks
    assert [v.id for v in report.variants] == ["scale-in-weights", "relative-bias"]
    report = diagnose(UnscaledByDistance(24, 4), 4)
    assert report.healthy and [v.id for v in report.variants] == ["relative-bias"]
    assert [remark.ids for remark in report.remarks] == [("scale-missing",)]
    assert "as in T5" in str(report)


def test_a_window_is_causal_only_where_it_is() -> None:
    assert "causal" in str(diagnose(WindowOfThePast(24, 4), 4))
    assert not diagnose(WindowOfThePast(24, 4), 4, causal=False).healthy


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: diagnose(Views(24, 4), 4, context=-1), "context must be a tensor (b, j, width)"),
        (lambda: diagnose(Views(24, 4), 4, context=(1, 2, 3)), "context=True tries one"),
        (lambda: diagnose(Packed(24, 4), 4, context=True, causal=True), "causal must be None"),
        (lambda: diagnose(nn.Linear(24, 24), 4, context=True), "must take a context, got forward"),
        (
            lambda: diagnose(Packed(24, 4), 4, context=True, mask=torch.ones(2, 3, 4, 8).bool()),
            "must run on x of shape",
        ),
        (
            lambda: diagnose(Views(24, 4), 4, mask=causal_mask(5), call=lambda m, x: m(x)),
            "call must take (module, x, mask) where mask is given, got (m, x)",
        ),
        (
            lambda: diagnose_block(
                PreDecoder(24, 4),
                4,
                context=True,
                mask=causal_mask(5),
                call=lambda m, x, c: m(x, c),
            ),
            "call must take (module, x, context, mask, context_mask) where mask is given",
        ),
        (
            lambda: diagnose_block(nn.TransformerEncoderLayer(24, 4), 4, context=True),
            "must take a context",
        ),
        (lambda: diagnose_block(CrossUnnormed(24, 4), 5, context=True), "num_heads must divide"),
        (lambda: diagnose_positions(torch.zeros(3, 4), base=1), "base must be above 1"),
        (lambda: diagnose_positions(nn.Bilinear(2, 3, 4)), "must run on x of shape"),
        (
            lambda: diagnose_loss(F.cross_entropy, 5, padding_id=5),
            "padding_id must be below num_classes",
        ),
    ],
)
def test_bad_input_is_refused(call, words) -> None:
    assert words in error_of(call)


def test_a_context_whose_length_is_said_and_that_must_be_as_long_as_the_tokens() -> None:
    class Square(nn.Module):
        def __init__(self, wrong: bool = False):
            super().__init__()
            self.wrong = wrong
            self.q, self.kv, self.out = nn.Linear(24, 24), nn.Linear(24, 48), nn.Linear(24, 24)

        def forward(self, x, y):
            b, n, _ = x.shape
            k, v = self.kv(y).view(b, n, 4, 12).transpose(1, 2).chunk(2, -1)
            q = self.q(x).view(b, n, 4, 6).transpose(1, 2)
            mixed = (q @ k.mT / 6**0.5).softmax(-1) @ v
            return self.out((mixed if self.wrong else mixed.transpose(1, 2)).reshape(b, n, 24))

    assert diagnose(Square(), 4, context=(8, 24)).healthy
    assert diagnose(Square(True), 4, context=(8, 24)).ids == ("merge-no-transpose",)


class OneForBoth(Apart):
    """Reads one argument twice, and another never, or each in the place of the other."""

    def __init__(self, e: int, h: int, read: tuple[int, int]):
        super().__init__(e, h)
        self.read = read

    def projected(self, query, key, value):
        given = key, value
        return super().projected(query, given[self.read[0]], given[self.read[1]])


@pytest.mark.parametrize("context", [None, True])
@pytest.mark.parametrize(
    ("read", "said"),
    [((0, 0), "value reaches"), ((1, 1), "key reaches"), ((1, 0), "values are made of value")],
)
def test_keys_and_values_get_tokens_of_their_own(read, said: str, context: bool | None) -> None:
    report = diagnose(OneForBoth(24, 4, read), 4, context=context)
    assert not report.healthy
    assert not report.ids
    assert report.failing[0].startswith(said)
    right = diagnose(OneForBoth(24, 4, (0, 1)), 4, context=context)
    assert right.healthy
    assert not any("context" in words for words in right.untried)


class Unfitting(Packed):
    """A second argument whose name says nothing, and that reaches nothing."""

    def forward(self, x, stage):
        return super().forward(x, x)


def test_an_argument_that_got_the_tokens_and_reaches_nothing_is_said() -> None:
    report = diagnose(Unfitting(24, 4), 4)
    assert report.healthy
    assert "the argument stage with anything else than the tokens" in report.untried
