"""Attentions without layers of their own: queries, keys and values come ready made."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic import diagnose, diagnose_model
from attention_clinic.engine.operands import operands_of, said_forms

CAUSAL = torch.ones(8, 8).tril()


class Kernel(nn.Module):
    """Weighs what it is given; it has no layers."""

    def __init__(self, width: int, over: int = -1):
        super().__init__()
        self.temper, self.over = width**0.5, over

    def forward(self, q, k, v, attn_mask=None):
        scores = q @ k.mT / self.temper
        if attn_mask is not None:
            scores = scores.masked_fill(attn_mask == 0, -1e9)
        weights = scores.softmax(self.over)
        return weights @ v, weights


class Sharp(Kernel):
    """By 8, where nobody says another number: queries and keys may have a length of 1."""

    def __init__(self, scale: float = 8.0):
        super().__init__(1)
        self.scale = scale

    def forward(self, q, k, v, attn_mask=None):
        return super().forward(q * self.scale, k, v, attn_mask)


class ByHead(Kernel):
    """Takes (b, h, n, d) only."""

    def forward(self, q, k, v, attn_mask=None):
        _, _, _, d = q.shape
        return super().forward(q.view(*q.shape[:3], d), k, v, attn_mask)


class Splits(nn.Module):
    """Splits by itself, and has the output layer alone."""

    def __init__(self, width: int, heads: int, scale: float = 1.0):
        super().__init__()
        self.heads, self.factor = heads, scale
        self.fc_out = nn.Linear(width, width)

    def forward(self, queries, keys, values, mask=None):
        b, n, e = queries.shape
        q, k, v = (
            t.view(b, -1, self.heads, e // self.heads).transpose(1, 2)
            for t in (queries, keys, values)
        )
        scores = q @ k.mT / (e // self.heads * self.factor) ** 0.5
        scores = scores if mask is None else scores.masked_fill(mask == 0, -torch.inf)
        return self.fc_out((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, e))


class Learned(nn.Module):
    """Its temperature is a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(4.0))

    def forward(self, q, k, v):
        return (q @ k.transpose(-2, -1) / self.temperature).softmax(-1) @ v


def plain(query, key, value, mask=None, dropout=None):
    scores = torch.matmul(query, key.transpose(-2, -1)) / math.sqrt(query.size(-1))
    if mask is not None:
        scores = scores.masked_fill(mask == 0, -1e9)
    weights = scores.softmax(dim=-1)
    weights = weights if dropout is None else dropout(weights)
    return torch.matmul(weights, value), weights


def heads_late(q, k, v, factor: float = 1.0, over: int = -1):
    """Take heads behind tokens."""
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * factor / q.shape[-1] ** 0.5
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(over), v)


def turned(q, k_t, v):
    return torch.softmax(q @ k_t / q.size(-1) ** 0.5, dim=-1) @ v


def one_text(mask, Q, K, V):
    return torch.softmax(Q @ K.T / Q.shape[1] ** 0.5 + mask, dim=1) @ V


def by_tokens(mask, Q, K, V):
    return torch.softmax(Q @ K.T / Q.shape[0] ** 0.5 + mask, dim=1) @ V


def folded(q, k, v, over: int = 2):
    """Take heads as if they were samples."""
    scores = torch.bmm(q, k.transpose(1, 2)) / q.size(2) ** 0.5
    return torch.bmm(scores.softmax(over), v)


def scaled_outside(q, k, v, scale):
    return (q @ k.mT * scale).softmax(-1) @ v


def layer_given(q, k, v, n_heads, dropout):
    b, n, e = q.shape
    q, k, v = (t.view(b, n, n_heads, -1).transpose(1, 2) for t in (q, k, v))
    weights = dropout((q @ k.mT / (e // n_heads) ** 0.5).softmax(-1))
    return (weights @ v).transpose(1, 2).reshape(b, n, e)


def thrown_away(q, k, v, m):
    scores = torch.bmm(q, k.transpose(1, 2)) / q.shape[-1] ** 0.5
    scores.masked_fill(m, -1e9)
    return scores.softmax(-1) @ v


def thrown_if_given(q, k, v, mask=None):
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if mask is not None:
        scores.masked_fill(mask == 0, -1e9)
    return torch.nn.functional.dropout(scores.softmax(-1), 0.1) @ v


def over_one(q, k, v):
    return torch.softmax(q @ k.mT / q.size(-1) ** 0.5, dim=1) @ v


def unscaled(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def scaled_dot_product(q, k, v):
    return (q @ k.mT).softmax(-1) @ v


def cut_off(q, k, v):
    return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).detach() @ v


def own_weights(x, w_q, w_k, w_v):
    return ((x @ w_q) @ (x @ w_k).mT / w_q.shape[1] ** 0.5).softmax(-1) @ (x @ w_v)


@pytest.mark.parametrize(("make", "heads"), [(Kernel, 1), (Kernel, 4), (ByHead, 4), (ByHead, 1)])
def test_a_kernel_without_weights_gets_layers(make: type, heads: int) -> None:
    report = diagnose(make(8), heads)
    assert report.healthy and report.name == make.__name__, report
    assert report.checked[-1].startswith("handed in: projections")
    assert report.checked[0].startswith("scale, softmax, mixing")
    assert f"{heads} head{'s' * (heads > 1)} of {8 * heads} wide" in report.checked[0]
    assert diagnose(make(8, -2), heads).ids == ("softmax-query",)
    assert diagnose(make(8), heads, context=True).healthy


@pytest.mark.parametrize(
    ("kernel", "lie"),
    [
        (plain, "(b, h, n, d)"),
        (heads_late, "(b, n, h, d)"),
        (turned, "keys turned over"),
        (one_text, "(n, e), one text at a time"),
        (folded, "(b, n, e)"),
        (scaled_outside, "split, scale"),
        (layer_given, "(b, n, e)"),
        (Splits(32, 4), "(b, n, e)"),
        (Learned(), "(b, h, n, d)"),
    ],
)
def test_a_right_one_is_healthy_and_what_was_handed_in_is_said(
    kernel: Callable[..., Tensor], lie: str
) -> None:
    report = diagnose(kernel)
    assert report.healthy and not report.remarks and not report.variants, report
    assert report.checked[-1].startswith("handed in: projections") and lie in report.checked[-1]


def of(kernel: Callable[..., Tensor], *more: float) -> Callable[..., Tensor]:
    """Return a kernel with other numbers, with the signature of three operands."""

    def attention(q, k, v):
        return kernel(q, k, v, *more)

    return attention


@pytest.mark.parametrize(
    ("kernel", "heads", "ids"),
    [
        (of(heads_late, 2.0), 4, ("scale-other",)),
        (of(heads_late, 1.0, 2), 4, ("softmax-query",)),
        (of(folded, 1), 4, ("softmax-query",)),
        (by_tokens, None, ("scale-other",)),
        (thrown_away, 1, ("mask-dropped",)),
        (thrown_if_given, None, ("mask-dropped", "dropout-eval")),
        (over_one, 4, ("softmax-heads",)),
        (scaled_dot_product, None, ("scale-missing",)),
        (cut_off, None, ("graph-cut",)),
        (Splits(32, 4, 2.0), None, ("scale-other",)),
    ],
)
def test_a_wrong_one_is_named(
    kernel: Callable[..., Tensor], heads: int | None, ids: tuple[str, ...]
) -> None:
    assert set(diagnose(kernel, heads).ids) == set(ids)


@pytest.mark.parametrize("fill", [-1e-10, -1e9])
def test_a_mask_is_taken_as_the_kernel_takes_it(fill: float) -> None:
    def attention(q, k, v, masks):
        scores = torch.matmul(q, k.permute(0, 2, 1)) / q.shape[-1] ** 0.5
        return scores.masked_fill(masks.bool(), fill).softmax(-1) @ v

    report = diagnose(attention, 1, mask=CAUSAL == 0, true_means="block")
    assert report.healthy == (fill < -1), report
    assert report.healthy or ("mask-tiny",) in [one.ids for one in report.explanations]
    assert diagnose(Kernel(8), 4, mask=CAUSAL).healthy


def test_a_call_that_hands_tokens_over_is_followed_number_by_number() -> None:
    def in_loops(attention, x):
        return torch.stack([attention(0.0, one, one, one) for one in x])

    def of_heads(attention, x):
        b, n, e = x.shape
        h = x.view(b, n, 4, -1).transpose(1, 2).reshape(b * 4, n, -1)
        return attention(h, h, h).view(b, 4, n, -1).transpose(1, 2).reshape(b, n, e)

    assert diagnose(by_tokens, 1, call=in_loops).ids == ("scale-other",)
    assert diagnose(one_text, 1, call=in_loops).healthy
    assert diagnose(folded, 4, call=of_heads).healthy
    assert diagnose(of(folded, 1), 4, call=of_heads).ids == ("softmax-query",)
    report = diagnose(Kernel(8), 1, call=lambda m, x, mask: m(x, x, x, mask)[0], mask=CAUSAL)
    assert report.healthy and "handed in: projections" in report.checked


def test_where_nobody_knows_how_it_takes_them_one_line_asks() -> None:
    with pytest.raises(ValueError, match=r"call=lambda attention, x: attention\(x, x, x\)"):
        diagnose(over_one)  # right for one text, wrong for several

    def needs_more(q, k, v, radius):
        return v * radius

    with pytest.raises(ValueError, match=r"attention\(x, x, x, radius=\.\.\.\)"):
        diagnose(needs_more)
    with pytest.raises(ValueError, match="a function must come with its weights"):
        diagnose(own_weights)

    def breaks(q, k, v):
        return q @ torch.eye(3) + k + v

    with pytest.raises(ValueError, match=r"q @ torch.eye\(3\)"):
        diagnose(breaks)


def test_scores_that_others_may_have_scaled_are_no_bug_of_a_kernel() -> None:
    report = diagnose(unscaled)
    assert not report.healthy and not report.explanations
    assert "right where queries come so" in report.failing[0]


def test_who_projects_is_no_kernel() -> None:
    class Projects(nn.Module):
        """The names of its layers say nothing."""

        def __init__(self) -> None:
            super().__init__()
            self.a, self.b, self.c, self.d = (nn.Linear(32, 32) for _ in range(4))

        def forward(self, query, key, value):
            parts = self.a(query), self.b(key), self.c(value)
            q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in parts)
            mixed = (q @ k.mT / 8**0.5).softmax(-1) @ v
            return self.d(mixed.transpose(1, 2).flatten(2))

    report = diagnose(Projects(), 4)
    assert report.healthy and "projections" in report.checked[0]


def test_what_the_code_says_of_its_operands() -> None:
    assert operands_of(own_weights) is None and operands_of(lambda q, k: q) is None
    found = operands_of(one_text)
    assert found is not None and found.names == ("Q", "K", "V") and found.masks == ("mask",)
    assert said_forms(heads_late)[0] == "b n h d"
    assert said_forms(ByHead(8))[0] == "4?"
    assert said_forms(folded)[0] == "3?" and said_forms(one_text)[0] == "2?"


def test_a_model_that_is_such_an_attention() -> None:
    assert diagnose_model(Kernel(8)).healthy


def test_what_is_said_wrongly_is_refused_for_a_kernel_too() -> None:
    for options in ({"num_heads": 0}, {"causal": CAUSAL}, {"num_kv_heads": 0}):
        with pytest.raises(ValueError, match="diagnose: "):
            diagnose(plain, **options)
    assert diagnose(plain, 4, context=False).healthy


def test_who_hides_its_layers_in_a_plain_list_is_no_kernel() -> None:
    class Listed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.num_heads = 4
            self.parts = [nn.Linear(64, 64) for _ in range(4)]

        def forward(self, query, key, value):
            a, b, c, d = self.parts
            q, k, v = (
                t.unflatten(-1, (4, -1)).transpose(1, 2) for t in (a(query), b(key), c(value))
            )
            return d(((q @ k.mT / 4.0).softmax(-1) @ v).transpose(1, 2).flatten(2))

    assert diagnose(Listed(), 4).ids == ("param-plain-tensor",)


def test_a_number_of_dropout_that_nothing_uses_is_named() -> None:
    """A kernel keeps what its weights were to be dropped by."""

    class Kept(nn.Module):
        def __init__(self, temperature, attn_dropout=0.1):
            super().__init__()
            self.temperature, self.dropout = temperature, attn_dropout

        def forward(self, q, k, v):
            weights = (q / self.temperature @ k.transpose(2, 3)).softmax(dim=-1)
            return weights @ v, weights

    class Used(Kept):
        def forward(self, q, k, v):
            weights = (q / self.temperature @ k.transpose(2, 3)).softmax(dim=-1)
            return F.dropout(weights, self.dropout, self.training) @ v, weights

    assert diagnose(Kept(4.0)).ids == ("dropout-unused",)
    assert diagnose(Used(4.0)).healthy


class HoldsItsWidth(nn.Module):
    """Its scale is right for heads of the width that it holds, by a name of its own."""

    def __init__(self, num_hidden_k: int) -> None:
        super().__init__()
        self.num_hidden_k = num_hidden_k

    def forward(self, key: Tensor, value: Tensor, query: Tensor) -> Tensor:
        scores = query @ key.mT / self.num_hidden_k**0.5
        return scores.softmax(dim=-1) @ value


def test_the_width_of_a_kernel_is_what_it_holds_or_what_is_given() -> None:
    for width in (8, 64):
        report = diagnose(HoldsItsWidth(width), num_heads=1)
        assert report.healthy and f"1 head of {width} wide tokens" in str(report)
    report = diagnose(HoldsItsWidth(64), num_heads=1, embed_dim=32)
    assert report.ids == ("scale-other",) and "1 head of 32 wide tokens" in str(report)


def test_a_number_that_a_kernel_takes_by_itself_is_a_variant() -> None:
    report = diagnose(Sharp(), 4)
    assert report.healthy and [one.id for one in report.variants] == ["scale-set"]
    assert diagnose(Sharp(4.0), 4).ids == ("scale-other",)  # the root of a width, perhaps
