"""Keys and values that are said to be shared by several heads, and are not."""

from __future__ import annotations

import pytest
import torch
from patients.attention import Views
from patients.blocks import PreNorm
from patients.modern import Llama
from patients.modern_blocks import LlamaBlock, MetaBlock
from patients.turned_late import LATER, CutsGroups, SpreadsOverAllHeads

from attention_clinic import diagnose, diagnose_block

FAILS = "2 are said, 4 were found"


@pytest.mark.parametrize("options", [{}, {"num_kv_heads": 2}, {"causal": True}])
def test_what_is_shared_in_name_only_is_not_healthy(options: dict) -> None:
    torch.manual_seed(0)
    report = diagnose(CutsGroups(64, 4), 4, **options)
    assert not report.healthy and not report.ids
    assert any(FAILS in said for said in report.failing)


@pytest.mark.parametrize("told", [1, 4])
def test_what_is_shared_otherwise_than_is_told_is_not_healthy(told: int) -> None:
    torch.manual_seed(0)
    report = diagnose(Llama(64, 4), 4, num_kv_heads=told)
    assert not report.healthy and not report.ids


def test_a_block_says_it_of_its_attention() -> None:
    torch.manual_seed(0)
    block = PreNorm(64, 4)
    block.attention = CutsGroups(64, 4)
    report = diagnose_block(block, 4)
    assert not report.healthy and not report.ids
    assert any(FAILS in said for said in report.failing)


@pytest.mark.parametrize("said", [4, 8, 3, "two"])
def test_a_number_that_shares_nothing_says_nothing(said: object) -> None:
    torch.manual_seed(0)
    attention = Views(64, 4)
    attention.num_kv_heads = said
    assert diagnose(attention, 4).healthy


def test_shared_keys_are_found_with_any_name_of_their_number() -> None:
    torch.manual_seed(0)
    attention = Llama(64, 4)
    attention.num_key_value_heads = 2
    assert diagnose(attention, 4).healthy


@pytest.mark.parametrize("make", [LlamaBlock, MetaBlock])
@pytest.mark.parametrize(("said", "healthy"), [(2, True), (1, False), (4, False)])
def test_diagnose_block_is_told_how_many_heads_keys_have(
    make: type, said: int, healthy: bool
) -> None:
    torch.manual_seed(0)
    report = diagnose_block(make(24, 4), 4, num_kv_heads=said)
    assert report.healthy is healthy and not report.ids


def test_diagnose_block_hands_it_to_what_it_cuts_out() -> None:
    torch.manual_seed(0)
    report = diagnose_block(SpreadsOverAllHeads(64, 4), 4, num_kv_heads=2, **LATER)
    assert report.ids == ("rotary-frequencies", "mask-added")


@pytest.mark.parametrize("number", [3, 0, 8])
def test_a_block_refuses_a_number_that_does_not_divide(number: int) -> None:
    with pytest.raises(ValueError, match=r"diagnose_block: num_(kv_)?heads must be"):
        diagnose_block(LlamaBlock(24, 4), 4, num_kv_heads=number)
