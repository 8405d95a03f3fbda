"""`diagnose_cache` beyond the bank: whose models are healthy, what is said, what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from patients.caching import Halves, Store, Turned, Words, WordsAnew, WordsOpen, by_row
from torch import nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from attention_clinic import diagnose_cache
from helpers import error_of
from utils.generation import KeyValueCache
from utils.language_model import LanguageModel
from utils.modern_decoder import ModernDecoder

SIZES = {
    "vocab_size": 40, "hidden_size": 24, "intermediate_size": 40, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
OURS = {"vocab_size": 30, "embed_dim": 24, "num_heads": 4, "mlp_dim": 32, "num_layers": 2}
MODELS = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(vocab_size=40, n_embd=24, n_layer=2, n_head=4, bos_token_id=1, eos_token_id=2)
    ),
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SIZES)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=8)),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SIZES, sliding_window=3)),
}


@pytest.mark.parametrize("name", MODELS)
def test_models_of_transformers_are_healthy(name: str) -> None:
    report = diagnose_cache(MODELS[name]())
    assert report.healthy, report
    said = " ".join(report.checked)
    assert "4 tokens and then one at a time" in said and "then 3 at once" in said
    assert "a second text" in said and "beams that change" in said


@pytest.mark.parametrize(
    "model",
    [
        LanguageModel(**OURS, max_length=24),
        ModernDecoder(**OURS, num_kv_heads=2),
        ModernDecoder(**OURS, num_kv_heads=1, head_dim=8, qk_norm=True, tied=True),
    ],
    ids=["gpt", "modern", "qwen"],
)
def test_the_courses_models_are_healthy(model: nn.Module) -> None:
    report = diagnose_cache(model, cache=KeyValueCache)
    assert report.healthy, report
    assert "beams that change their places" in " ".join(report.untried)


def test_the_courses_models_are_sick_when_places_begin_anew() -> None:
    report = diagnose_cache(
        ModernDecoder(**OURS, num_kv_heads=2), call=_one_by_one, cache=KeyValueCache
    )
    assert report.ids == ("cache-position",)


def _one_by_one(model, ids, cache):
    """Write with a cache whose layers get places from 0: no length, so one token at a time."""
    if cache is None:
        return model(ids)
    x = model.embedding(ids)
    places = torch.arange(ids.shape[1])
    before = cache.length
    mask = torch.ones(ids.shape[1], before + ids.shape[1]).bool().tril(before)
    for layer in model.layers:
        x = layer(x, mask, places, cache)
    return model.head(model.norm(x))


def test_what_is_printed() -> None:
    text = str(diagnose_cache(WordsAnew(24, 4)))
    assert text.splitlines()[0] == "WordsAnew: not equal to the reference"
    assert "cache-position   counts the places of new tokens from 0 again" in text
    assert "reproduces your output exactly" in text and "ml-explore/mlx-lm#93" in text
    assert max(map(len, text.splitlines())) <= 84
    torch.manual_seed(5)
    assert str(diagnose_cache(WordsAnew(24, 4))) == text


def test_where_it_shows_is_said() -> None:
    (found,) = diagnose_cache(WordsOpen(24, 4)).explanations
    assert found.ids == ("cache-mask-open",) and found.difference < 1e-9


class Rounded(Words):
    """Keeps keys in half precision: no mistake of the catalogue."""

    def kept(self, held, k, v):
        return tuple(t.half().to(t) for t in super().kept(held, k, v))


class Mixes(Words):
    """A causal mean over the tokens beside the attention, which no cache keeps."""

    def forward(self, ids, past=None):
        scores, past = super().forward(ids, past)
        steps = torch.arange(1, ids.shape[1] + 1)[:, None]
        return scores + scores.cumsum(1) / steps, past


class Sees(Words):
    def seen(self, n, j):
        return torch.ones(n, j).bool()


class Alone(Words):
    def seen(self, n, j):
        return torch.eye(n).bool() if n == j else torch.eye(j).bool()[-n:]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (Rounded, "4 tokens and then one at a time"),
        (Mixes, "4 tokens and then one at a time"),
        (Sees, "the past does not see the future"),
        (Alone, "depends on those before it"),
    ],
)
def test_what_is_not_known_gets_no_name(make: type, words: str) -> None:
    report = diagnose_cache(make(24, 4))
    assert not report.healthy and not report.explanations
    assert any(words in line for line in report.failing), report


def test_what_is_not_tried_is_said() -> None:
    class OneAtATime(Halves):
        def forward(self, ids, *, kv_cache=None):
            if kv_cache and ids.shape[1] > 1:
                raise NotImplementedError
            return super().forward(ids, kv_cache=kv_cache)

    report = diagnose_cache(OneAtATime(24, 4), cache=Store)
    assert report.healthy
    assert "several new tokens in one call: it refuses them" in report.untried
    assert any("padding" in line for line in report.untried)


def test_calls_of_every_kind() -> None:
    def words(model, ids, cache, start):
        assert start == (0 if cache is None else cache[0][0].shape[2])
        return model(ids, cache)

    assert diagnose_cache(Words(24, 4), call=words, reorder=by_row).healthy
    tokens = diagnose_cache(MODELS["llama"]().model)
    assert tokens.healthy
    turned = Turned(24, 4)
    before = copy.deepcopy(turned.slots_k)
    assert diagnose_cache(turned, vocab_size=19).healthy
    assert all(torch.equal(*pair) for pair in zip(turned.slots_k, before, strict=True))


def test_the_model_stays_as_it_was() -> None:
    model = LanguageModel(**OURS, max_length=24).train()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    assert diagnose_cache(model, cache=KeyValueCache)
    assert torch.equal(torch.get_rng_state(), state) and model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


class Breaks(Words):
    def kept(self, held, k, v):
        return k[:, :, :, :1], v

    def joined(self, held, new, name):
        return torch.cat([held, new], dim=2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: diagnose_cache(Words), "must be an nn.Module, got type"),
        (lambda: diagnose_cache(Words(24, 4), cache={}), "cache must be a function, got dict"),
        (lambda: diagnose_cache(Words(24, 4), vocab_size=0), "vocab_size must be an integer"),
        (lambda: diagnose_cache(nn.Linear(4, 4)), "must take a cache, got forward(input"),
        (lambda: diagnose_cache(Breaks(24, 4)), "must run on 1 tokens with a cache of 4"),
    ],
)
def test_bad_input_is_refused(call, words) -> None:
    assert words in error_of(call)
