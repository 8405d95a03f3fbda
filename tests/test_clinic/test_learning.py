"""What does not learn is never called healthy; nothing is refused that can be examined."""

from __future__ import annotations

import math

import pytest
import torch
from patients.attention import Loops, Views, ViewsUnscaled
from patients.embedding import CHANNELS, IMAGE, PATCH, ByConvolution
from torch import nn

from attention_clinic import diagnose, diagnose_block, diagnose_embedding
from attention_clinic.examine.learning import Gradients
from helpers import error_of


class SparePart(Views):
    """A layer that only an argument asks for."""

    def __init__(self, asked: bool = True):
        super().__init__(24, 4)
        self.spare_layer = nn.Linear(24, 24)
        if not asked:
            self.forward = self.plain

    def plain(self, x):
        return super().forward(x)

    def forward(self, x, mask=None, more=None):
        x = x if more is None else x + self.spare_layer(more)
        return super().forward(x, mask)


def test_a_part_that_an_argument_asks_for_is_not_tried() -> None:
    report = diagnose(SparePart(), 4)
    assert report.healthy and "what spare_layer is for" in report.untried
    assert not report.remarks


class Early(nn.Module):
    """A stack that is left as soon as a small head is sure; `judges` is what it does with that."""

    def __init__(self, judges: str):
        super().__init__()
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(24, 4, 48, 0.0, batch_first=True) for _ in range(3)
        )
        self.heads, self.judges = nn.ModuleList(nn.Linear(24, 2) for _ in range(3)), judges

    def forward(self, x):
        for layer, head in zip(self.layers, self.heads, strict=True):
            x = layer(x)
            sure = head(x.mean(1)).softmax(-1).amax()
            if self.judges == "ends" and sure > 0.5:
                break
            if self.judges == "throws" and x.isnan().any():
                break
        return x


def test_what_the_data_of_a_run_leave_out_is_not_unused() -> None:
    report = diagnose_block(Early("ends"), 4)
    assert report.healthy and any("what heads is for" in words for words in report.untried)
    assert any("what layers.1 is for" in words for words in report.untried)
    assert diagnose_block(Early("throws"), 4).ids == ("part-unused",)


def test_a_parameter_that_an_option_asks_for_is_a_remark() -> None:
    class Spare(Views):
        def __init__(self):
            super().__init__(24, 4)
            self.shift, self.shifted = nn.Parameter(torch.zeros(24)), False

        def forward(self, x, mask=None):
            return super().forward(x + self.shift if self.shifted else x, mask)

    report = diagnose(Spare(), 4)
    assert report.healthy
    assert [remark.ids for remark in report.remarks] == [("parameter-unused",)]


def test_a_part_that_an_option_asks_for_is_a_remark() -> None:
    report = diagnose(SparePart(asked=False), 4)
    assert report.healthy
    assert [remark.ids for remark in report.remarks] == [("part-unused",)]
    assert "spare_layer is never called here" in report.remarks[0].detail


class Twisted(torch.autograd.Function):
    """Half of the gradient gets lost."""

    @staticmethod
    def forward(ctx, t):
        return t.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad / 2


class OwnBackward(Views):
    def join(self, mixed):
        return Twisted.apply(super().join(mixed))


def test_a_backward_that_is_no_derivative_is_not_healthy_and_no_cut() -> None:
    report = diagnose(OwnBackward(24, 4), 4)
    assert not report.healthy and not report.explanations
    assert any(
        words.startswith("the gradient is the derivative: not of") for words in report.failing
    )


def test_what_is_frozen_is_said() -> None:
    module = Views(24, 4)
    assert not any("frozen" in words for words in diagnose(module, 4).checked)
    module.qkv.requires_grad_(False)
    report = diagnose(module, 4)
    assert report.healthy
    assert any("frozen" in words and "qkv.weight" in words for words in report.checked)


def test_what_is_cut_is_listed() -> None:
    class ValuesCut(Loops):
        def projected(self, x):
            q, k, v = super().projected(x)
            return q, k, v.detach()

    report = diagnose(ValuesCut(24, 4), 4)
    assert report.ids == ("graph-cut",)
    assert "what comes in and tovalues.weight" in report.explanations[0].detail


class Decoder(nn.Module):
    """The attention to a context stands unused, and another runs in its place."""

    def __init__(self):
        super().__init__()
        self.attend, self.attend_context = Loops(16, 4), Loops(16, 4)
        self.mlp = nn.Sequential(nn.Linear(16, 40), nn.ReLU(), nn.Linear(40, 16))
        self.norms = nn.ModuleList(nn.LayerNorm(16) for _ in range(2))

    def forward(self, x):
        y = self.norms[0](x)
        x = y + self.attend(y)
        return x + self.mlp(self.norms[1](x))


def test_an_attention_that_stands_unused_is_named_beside_the_rest() -> None:
    report = diagnose_block(Decoder(), 4)
    assert set(report.ids) == {"residual-from-norm", "part-unused"}
    assert "attend_context is never called" in report.explanations[0].detail


class CutBesideAnother(Decoder):
    """The feed-forward gets a copy that no gradient goes back by, and its end is bent."""

    def __init__(self, cut):
        super().__init__()
        self.cut = cut

    def forward(self, x):
        x = self.norms[0](x + self.attend(x))
        return self.norms[1](x + self.mlp(self.cut(x)).relu())


@pytest.mark.parametrize("cut", [lambda x: x.detach().clone(), lambda x: x.data * 1])
def test_a_cut_that_was_heard_is_named_beside_the_rest(cut) -> None:
    report = diagnose_block(CutBesideAnother(cut), 4)
    assert set(report.ids) == {"activation-last", "graph-cut", "part-unused"}


class KeysOfTheQueries(Views):
    """A list of layers' weights cannot be called: it is never read."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.unheard_keys = nn.ParameterList(torch.zeros(e, e // h) for _ in range(h))


def test_a_list_of_parameters_is_read_not_called() -> None:
    report = diagnose(KeysOfTheQueries(24, 4), 4)
    assert report.ids == ("parameter-unused",)
    assert "unheard_keys is never read" in report.explanations[0].detail


# ------------------------------------------------------------------------ nothing is refused


class OfAGrid(Views):
    def forward(self, x, rows: int, columns: int):
        assert x.shape[1] == rows * columns
        return super().forward(x)


def test_the_sides_of_a_grid_are_read_off_the_call() -> None:
    module = OfAGrid(24, 4)
    assert diagnose(module, 4, call=lambda m, x: m(x, 4, 2)).healthy


class InHalf(Views):
    """Its layers compute in other precisions than its tokens come in."""

    kind = torch.bfloat16

    def heads(self, x):
        return [t.to(self.kind).float() for t in super().heads(x)]

    def forward(self, x):
        return super().forward(x.to(self.kind))


def test_a_module_that_casts_to_half_is_examined_in_double() -> None:
    for kind in (torch.bfloat16, torch.float16):
        for base, ids in ((Views, ()), (ViewsUnscaled, ("scale-missing",))):
            made = type("Made", (InHalf, base), {"kind": kind})(24, 4).to(kind)
            report = diagnose(made, 4)
            assert report.ids == ids and report.healthy is not bool(ids), report


class Constant(Views):
    """A matrix of single precision that is no buffer: torch.bmm takes no two widths."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.turn = torch.eye(e).expand(16, e, e) * 2

    def forward(self, x):
        x = torch.bmm(x.transpose(0, 1), self.turn[: x.shape[1]]).transpose(0, 1)
        return super().forward(x).sigmoid()


def test_a_constant_in_single_precision_ends_in_a_verdict() -> None:
    report = diagnose(Constant(24, 4), 4)
    assert not report.healthy and set(report.ids) <= {"out-bent"}, "it ends with a sigmoid"


class TableInside(Loops):
    """A table that is asked for by places, beside the layers of an attention."""

    def __init__(self, e, h):
        super().__init__(e, h)
        self.toqueries, self.tokeys, self.tovalues = (nn.Linear(e, e) for _ in range(3))
        self.table = nn.Embedding(31, h)

    def normalise(self, all_scores, allow):
        place = torch.arange(all_scores[0].shape[-1])
        added = self.table(place[:, None] - place + 15).unbind(2)
        return [(s + t).softmax(-1) for s, t in zip(all_scores, added, strict=True)]


def test_a_table_that_gets_no_tokens_is_no_stumbling_block() -> None:
    report = diagnose(TableInside(24, 4), 4)
    assert report.healthy and [v.id for v in report.variants] == ["relative-bias"], report


class NormsBuiltAnew(nn.Module):
    """No parameter has one axis: the norms are new in each call."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(16, 16, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(16, 40, bias=False), nn.Linear(40, 16, bias=False)

    def forward(self, x, mask):
        q, k, v = (f(x).unflatten(2, (4, 4)).transpose(1, 2) for f in (self.q, self.k, self.v))
        scores = (q @ k.mT / 2).masked_fill(mask[:, None], -math.inf)
        x = nn.LayerNorm(16)(x + self.o((scores.softmax(-1) @ v).transpose(1, 2).flatten(2)))
        return nn.LayerNorm(16)(x + self.down(self.up(x).relu()))


def test_layers_that_are_built_in_forward_are_named_where_nothing_else_has_one_axis() -> None:
    def call(m, x):
        return m(x, torch.zeros(x.shape[0], x.shape[1], x.shape[1]).bool())

    assert diagnose_block(NormsBuiltAnew(), 4, call=call).ids == ("layers-in-forward",)


class Slices(nn.Module):
    """Each head reads its own slice: no weight is as wide as a token."""

    def __init__(self):
        super().__init__()
        made = [nn.ModuleList(nn.Linear(6, 6) for _ in range(4)) for _ in range(3)]
        self.queries, self.keys, self.values = made

    def forward(self, x):
        made = []
        for head in range(4):
            t = x[:, :, 6 * head : 6 * head + 6]
            q, k, v = self.queries[head](t), self.keys[head](t), self.values[head](t)
            made.append((q @ k.mT / 6**0.5).softmax(-1) @ v)
        return torch.cat(made, dim=2)


def test_heads_that_read_slices_are_called_on_whole_tokens() -> None:
    assert "head-own-slice" in diagnose(Slices(), 4, out_proj=False).ids


def test_whatever_goes_wrong_is_one_line() -> None:
    class Moody(Views):
        calls = 0

        def forward(self, x):
            Moody.calls += 1
            if Moody.calls > 2:
                raise StopIteration
            return super().forward(x)

    class Broken(ByConvolution):
        def forward(self, images):
            raise KeyError("patches")

    for found in (
        error_of(lambda: diagnose(Moody(24, 4), 4)),
        error_of(lambda: diagnose_embedding(Broken(20), IMAGE, PATCH, CHANNELS)),
    ):
        assert found.startswith("diagnose") and "\n" not in found
        assert "StopIteration" in found or "KeyError" in found


class Mixture(nn.Module):
    """The experts that a router prefers, by their shares of each other, or of all."""

    def __init__(self, chosen: int, of_all: bool):
        super().__init__()
        self.router = nn.Linear(24, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(24, 48), nn.GELU(), nn.Linear(48, 24)) for _ in range(4)
        )
        self.chosen, self.of_all = chosen, of_all

    def forward(self, tokens):
        x = tokens.flatten(0, 1)
        shares = self.router(x)
        shares = shares.softmax(-1) if self.of_all else shares
        best, which = shares.topk(self.chosen, dim=-1)
        best = best if self.of_all else best.softmax(-1)
        y = torch.zeros_like(x)
        for k, expert in enumerate(self.experts):
            row, place = torch.where(which == k)
            y[row] += best[row, place, None] * expert(x[row])
        return y.view_as(tokens)


class Routed(nn.Module):
    def __init__(self, chosen: int, of_all: bool):
        super().__init__()
        self.attention = ViewsUnscaled(24, 4)
        self.ln1, self.ln2 = nn.LayerNorm(24), nn.LayerNorm(24)
        self.mixture = Mixture(chosen, of_all)

    def forward(self, x):
        x = x + self.attention(self.ln1(x))
        return x + self.mixture(self.ln2(x))


def test_a_router_that_only_chooses_never_learns() -> None:
    report = diagnose_block(Routed(1, False), 4)
    assert set(report.ids) == {"scale-missing", "parameter-unused"}, report
    assert "mixture.router.weight only chooses" in str(report)
    for block in (Routed(2, False), Routed(1, True)):
        assert "parameter-unused" not in diagnose_block(block, 4).ids


def test_values_may_be_as_wide_as_the_token_in_every_head() -> None:
    class Head(nn.Module):
        def __init__(self):
            super().__init__()
            self.key, self.query = nn.Linear(16, 4, bias=False), nn.Linear(16, 4, bias=False)
            self.value = nn.Linear(16, 16, bias=False)

        def forward(self, x):
            return (self.query(x) @ self.key(x).mT / 2).softmax(-1) @ self.value(x)

    class Wide(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = nn.ModuleList(Head() for _ in range(4))
            self.proj = nn.Linear(64, 16)

        def forward(self, x):
            return self.proj(torch.cat([head(x) for head in self.heads], dim=-1))

    assert diagnose(Wide(), 4).healthy


class LowRank(Views):
    """Two small layers beside the rows of queries, and two beside those of values."""

    factor_of_them = 0.25

    def __init__(self, e, h):
        super().__init__(e, h)
        self.scaling = self.factor_of_them
        for which in "qv":
            self.register_parameter(f"lora_{which}_A", nn.Parameter(torch.randn(2, e)))
            self.register_parameter(f"lora_{which}_B", nn.Parameter(torch.zeros(e, 2)))
        self.qkv.requires_grad_(False)

    def heads(self, x):
        q, k, v = self.qkv(x).chunk(3, dim=2)
        q = q + x @ (self.lora_q_B @ self.lora_q_A).T * self.scaling
        v = v + x @ (self.lora_v_B @ self.lora_v_A).T * self.scaling
        return [t.unflatten(2, (self.h, -1)).transpose(1, 2) for t in (q, k, v)]


def test_low_rank_layers_are_part_of_their_weights() -> None:
    report = diagnose(LowRank(24, 4), 4)
    assert report.healthy, report
    assert any("lora_q_A, lora_v_A" in words for words in report.checked)
    unscaled = type("Unscaled", (LowRank, ViewsUnscaled), {})(24, 4)
    assert diagnose(unscaled, 4).ids == ("scale-missing",)


class Pole(nn.Module):
    """Divides by a mean that is next to nothing, as a norm of a wrong formula may."""

    def __init__(self, gap: float, cut: bool = False):
        super().__init__()
        self.layer, self.gap, self.cut = nn.Linear(6, 6, bias=False), gap, cut

    def forward(self, x):
        y = self.layer(x)
        mean = (y.detach() if self.cut else y).mean(-1, keepdim=True)
        return y / (mean + self.gap)


@pytest.mark.parametrize("gap", [0.0, 1e-5, 3e-5])
def test_next_to_a_pole_no_gradient_is_told_wrongly(gap: float) -> None:
    torch.manual_seed(0)
    x = torch.randn(1, 1, 6, dtype=torch.float64)

    def told(module: Pole) -> tuple[str, ...]:
        module.double().requires_grad_(False)
        module.layer.weight -= module.layer(x).mean() * x[0] / x.square().sum()
        run = Gradients(module, lambda: module(x.clone()), [x], {"layer.weight"}, False)
        return run.found().cut

    assert not told(Pole(gap))
    assert told(Pole(3.0, cut=True)), "far from it, a cut is heard"
