"""Linear attention and the gated delta rule: recurrence, matrix and transformers agree."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers.models.qwen3_next.modeling_qwen3_next import (
    torch_chunk_gated_delta_rule,
    torch_recurrent_gated_delta_rule,
)

from helpers import CLOSE, error_of, random
from utils.linear_attention import gated_delta_rule, linear_attention

tried = settings(max_examples=30, deadline=None, derandomize=True, database=None)
B, H, N, D, DV = 2, 3, 9, 4, 5


def parts(n=N, seed=0, b=B, h=H, d=D, dv=DV):
    """Return q, k of length 1, v, decay and beta."""
    q, k = (F.normalize(random(b, h, n, d, seed=seed + i), dim=-1) for i in (0, 1))
    decay, beta = (random(b, h, n, seed=seed + i).sigmoid() for i in (3, 4))
    return q, k, random(b, h, n, dv, seed=seed + 2), decay, beta


@pytest.mark.parametrize("recurrent", [False, True], ids=["matrix", "recurrent"])
@pytest.mark.parametrize("theirs", [torch_recurrent_gated_delta_rule, torch_chunk_gated_delta_rule])
def test_equals_transformers_in_values_and_gradients(theirs, recurrent):
    q, k, v, decay, beta = (part.requires_grad_() for part in parts(n=70))  # more than their chunk
    result = gated_delta_rule(q / D**0.5, k, v, decay, beta, recurrent=recurrent)
    turned = [part.transpose(1, 2) for part in (q, k, v, decay.log(), beta)]
    expected = theirs(*turned)[0].transpose(1, 2)
    assert result.std() > 0.1
    torch.testing.assert_close(result, expected, **CLOSE)
    weights = random(*result.shape, seed=9)
    found = torch.autograd.grad((result * weights).sum(), (q, k, v, decay, beta))
    wanted = torch.autograd.grad((expected * weights).sum(), (q, k, v, decay, beta))
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


@tried
@given(st.integers(0, 12), st.integers(1, 4), st.integers(1, 4), st.integers(0, 1000))
def test_both_forms_agree(n, d, dv, seed):
    q, k, v, decay, beta = parts(n, seed, d=d, dv=dv)
    for function, given_too in ((linear_attention, ()), (gated_delta_rule, (decay, beta))):
        matrix = function(q, k, v, *given_too)
        assert matrix.shape == (B, H, n, dv)
        torch.testing.assert_close(
            matrix, function(q, k, v, *given_too, recurrent=True), rtol=1e-4, atol=1e-4
        )


def test_linear_attention_by_hand():
    q, k, v, _, _ = parts()
    result = linear_attention(q, k, v)
    for t in range(N):
        expected = sum((q[0, 1, t] @ k[0, 1, s]) * v[0, 1, s] for s in range(t + 1))
        torch.testing.assert_close(result[0, 1, t], expected, **CLOSE)


def test_with_the_features_of_katharopoulos_it_is_a_weighted_mean():
    q, k, v, _, _ = parts()
    q, k = F.elu(q) + 1, F.elu(k) + 1
    weights = (q @ k.transpose(-1, -2)).tril()
    expected = (weights / weights.sum(dim=-1, keepdim=True)) @ v
    found = linear_attention(q, k, v) / linear_attention(q, k, torch.ones_like(v[..., :1]))
    torch.testing.assert_close(found, expected, **CLOSE)


def test_special_cases_of_the_delta_rule():
    q, _, v, _, _ = parts(n=4)
    ones, zeros = torch.ones(B, H, 4), torch.zeros(B, H, 4)
    k = torch.eye(4).expand(B, H, 4, 4)  # keys that have nothing in common
    torch.testing.assert_close(
        gated_delta_rule(q, k, v, ones, ones), linear_attention(q, k, v), **CLOSE
    )
    assert (gated_delta_rule(q, k, v, ones, zeros) == 0).all(), "nothing is written"
    # what was written two tokens ago is worth the two decays since
    decay = torch.full((B, H, 4), 0.5)
    late = gated_delta_rule(k[:, :, :1].expand(-1, -1, 4, -1), k, v, decay, ones)
    torch.testing.assert_close(late[:, :, 2], v[:, :, 0] * 0.25, **CLOSE)


def test_the_future_does_not_leak():
    q, k, v, decay, beta = parts()
    for recurrent in (False, True):
        before = gated_delta_rule(q, k, v, decay, beta, recurrent=recurrent)
        changed = [torch.cat([part[:, :, :5], part[:, :, 5:] / 2], dim=2) for part in parts()]
        after = gated_delta_rule(*changed, recurrent=recurrent)
        torch.testing.assert_close(after[:, :, :5], before[:, :, :5], **CLOSE)
        assert not torch.allclose(after[:, :, 5:], before[:, :, 5:], atol=1e-2)


def test_strong_decay_over_many_tokens_stays_finite():
    q, k, v, decay, beta = parts(n=300)
    result = gated_delta_rule(q, k, v, decay / 1e6, beta)
    torch.testing.assert_close(
        result, gated_delta_rule(q, k, v, decay / 1e6, beta, recurrent=True), **CLOSE
    )


def test_bad_calls():
    q, k, v, decay, beta = parts()
    assert "k must have shape" in error_of(lambda: linear_attention(q, k[..., :2], v))
    assert "v must have shape" in error_of(lambda: linear_attention(q, k, v[:, :, :2]))
    assert "q must have shape" in error_of(lambda: linear_attention(q[0], k, v))
    assert "floating point" in error_of(lambda: linear_attention(q.long(), k, v))
    assert "beta must have shape" in error_of(lambda: gated_delta_rule(q, k, v, decay, beta[0]))
    for bad in (0.0, 1.5, -0.1, float("nan")):
        text = error_of(lambda bad=bad: gated_delta_rule(q, k, v, decay * 0 + bad, beta))
        assert "decay must lie above 0" in text
