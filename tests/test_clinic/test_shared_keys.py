"""Keys and values that are said to be shared by several heads, and are not."""

from __future__ import annotations

import pytest
import torch
from patients.blocks import PreNorm
from patients.modern import Llama
from patients.turned_late import CutsGroups

from attention_clinic import diagnose, diagnose_block

FAILS = "2 heads of keys and values are said, and each of 4 heads has its own"


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"causal": True}])
def test_what_is_shared_in_name_only_is_not_healthy(options: dict) -> None:
    torch.manual_seed(0)
    report = diagnose(CutsGroups(64, 4), 4, **options)
    assert not report.healthy and not report.ids
    assert any(FAILS in said for said in report.failing)


def test_a_block_says_it_of_its_attention() -> None:
    torch.manual_seed(0)
    block = PreNorm(64, 4)
    block.attention = CutsGroups(64, 4)
    report = diagnose_block(block, 4)
    assert not report.healthy and not report.ids
    assert any(FAILS in said for said in report.failing)


@pytest.mark.parametrize("said", [4, 8, "two"])
def test_a_number_that_shares_nothing_says_nothing(said: object) -> None:
    torch.manual_seed(0)
    attention = CutsGroups(64, 4)
    forward = attention.forward
    attention.forward = lambda x: forward(x)
    attention.kv_heads, attention.num_kv_heads = said, 4
    assert diagnose(attention, 4).healthy


def test_shared_keys_are_found_with_any_name_of_their_number() -> None:
    torch.manual_seed(0)
    attention = Llama(64, 4)
    attention.num_key_value_heads = 2
    assert diagnose(attention, 4).healthy
