"""`diagnose_cache`: bugs get their names, healthy models none, the rest is said or refused."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from patients.caching import (
    CASES,
    SlidingForgotten,
    Store,
    Words,
    WordsFewer,
    WordsRestarted,
    WordsStore,
    WordsStored,
    by_row,
)
from torch import nn
from transformers import DynamicCache

from attention_clinic import diagnose_cache
from attention_clinic.catalogue.forms import Form, Step
from attention_clinic.catalogue.inference import CACHE
from utils.cache import KeyValueCache
from utils.language_model import LanguageModel
from utils.modern_decoder import ModernDecoder

SIZES = {
    "vocab_size": 40, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OURS = {"vocab_size": 30, "embed_dim": 24, "num_heads": 4, "mlp_dim": 32, "num_layers": 2}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0].__name__)
def test_bugs_get_their_names_and_healthy_models_none(case) -> None:
    """Sizes alternate."""
    make, ids, options = case
    e, h = ((24, 4), (8, 1))[CASES.index(case) % 2]
    torch.manual_seed(e)
    report = diagnose_cache(make(e, h), **options)
    assert report.ids == ids and report.healthy == (not ids), report


WRONG = [(step, form) for step in CACHE for form in step.forms if form.ids]


@pytest.mark.parametrize(("step", "form"), WRONG, ids=[form.ids[0] for _, form in WRONG])
def test_without_its_form_a_patient_has_no_name(
    step: Step, form: Form, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step, "forms", [one for one in step.forms if one is not form])
    torch.manual_seed(8)
    its = [case for case in CASES if {*form.ids} <= {*case[1]}]
    assert len(its) > 1, "a bug has two patients"
    reports = (diagnose_cache(make(8, 1), **options) for make, _, options in its)
    nameless = (report for report in reports if not {*form.ids} <= {*report.ids})
    assert not next(nameless, True), "no patient shows that this form is needed"


def test_models_of_transformers_are_healthy_and_lengths_are_said() -> None:
    config = transformers.MistralConfig(**SIZES, sliding_window=10)
    report = diagnose_cache(transformers.MistralForCausalLM(config))
    assert report.healthy, report
    said = " ".join(report.checked)
    assert "4 tokens and then one at a time" in said and "then 3 at once" in said
    assert "15 tokens, longer than sliding_window=10" in said and "beams that change" in said
    assert any("max_position_embeddings=131072" in line for line in report.untried)


def test_the_model_of_the_course_is_healthy_and_stays_as_it_was() -> None:
    model = LanguageModel(**OURS, max_length=24).train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    report = diagnose_cache(model, cache=KeyValueCache)
    assert report.healthy and "24 tokens, as long as max_length=24 allows" in str(report.checked)
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_sequence_is_longer_than_the_window_of_the_course() -> None:
    """Its table of one row, without positions, is not a maximum."""
    model = ModernDecoder(**OURS, num_kv_heads=2, window=8)
    report = diagnose_cache(model, cache=KeyValueCache)
    assert report.healthy and "13 tokens, longer than window=8" in str(report.checked)


def test_a_maximum_that_is_not_true_is_said() -> None:
    wrong = Words(24, 4)
    wrong.max_len = 90  # its table has 40 rows
    report = diagnose_cache(wrong)
    assert "a sequence as long as max_len=90 allows: the model refuses it" in report.untried


def test_what_is_said_of_a_bug() -> None:
    text = str(diagnose_cache(WordsRestarted(24, 4)))
    assert text.splitlines()[0] == "WordsRestarted: not equal to the reference"
    assert "reproduces your output exactly" in text and "ml-explore/mlx-lm#93" in text
    assert "one key fewer than the window" in str(diagnose_cache(WordsFewer(24, 4)))
    text = str(diagnose_cache(SlidingForgotten(24, 4), cache=DynamicCache))
    assert "although the model has a window" in text and "karpathy/nanochat#452" in text


class Rounded(Words):
    """Keeps keys in half precision: not a bug of the catalogue."""

    def kept(self, k, v):
        return k.half().to(k), v.half().to(v)


class Cut(Words):
    """Keep two keys fewer than the next token may attend to."""

    sliding_window = 9

    def kept(self, k, v):
        return k[:, :, -6:], v[:, :, -6:]


class Future(Words):
    def mask(self, rows, columns):
        return torch.ones(len(rows), len(columns)).bool()


class Open(Words):
    def mask(self, rows, columns):
        new = torch.ones(len(rows), len(columns)).bool()
        return super().mask(rows, columns) if len(rows) == len(columns) else new


@pytest.mark.parametrize(
    ("make", "words", "options"),
    [
        (Rounded, "4 tokens and then one at a time", {}),
        (Cut, "11 tokens and then one at a time", {}),
        (WordsStore, "keep their own past", {"cache": Store, "reorder": lambda m, c, order: None}),
        (Future, "no token depends on later ones, without a cache", {}),
        (Open, "4 tokens and then 3 at once", {}),
        (WordsStored, "4 tokens and then 3 at once", {"cache": lambda model: model.store}),
    ],
)
def test_what_is_not_known_gets_no_name(make: type, words: str, options: dict) -> None:
    report = diagnose_cache(make(24, 4), **options)
    assert not report.healthy and not report.explanations
    assert any(words in line for line in report.failing), report


def test_calls_that_the_user_defines() -> None:
    def words(model, ids, cache, start):
        assert start == (0 if cache is None else cache[1])
        return model(ids, cache)

    def one_at_a_time(model, ids, past):
        assert past is None or ids.shape[1] == 1
        return model(ids, past)

    assert diagnose_cache(Words(24, 4), call=words, reorder=by_row).healthy
    report = diagnose_cache(Words(24, 4), call=one_at_a_time)
    assert report.healthy
    assert any("3 at once in a second sequence, in 7" in line for line in report.untried)


class Breaks(Words):
    def kept(self, k, v):
        return k[:, :, :, :1], v


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: diagnose_cache(Words), "must be an nn.Module, got type"),
        (lambda: diagnose_cache(Words(24, 4), cache={}), "cache must be a function, got {}"),
        (lambda: diagnose_cache(Words(24, 4), vocab_size=0), "vocab_size must be an integer"),
        (lambda: diagnose_cache(nn.Linear(4, 4)), "must take a cache, got forward(input"),
        (lambda: diagnose_cache(Breaks(24, 4)), "must run on 1 token with a cache of 4"),
    ],
)
def test_bad_input_is_refused(call, words: str) -> None:
    with pytest.raises(ValueError) as refused:
        call()
    assert words in str(refused.value) and "\n" not in str(refused.value)
