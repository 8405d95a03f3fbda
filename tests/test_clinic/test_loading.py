"""`diagnose_loading` beyond the bank: our loaders are healthy, what is said, what is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import transformers
from patients.loading import MyGpt, TheirGpt, gpt, only_halves
from torch import nn

from attention_clinic import diagnose_loading
from helpers import error_of
from utils import pretrained

SIZES = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 40,
    "vocab_size": 50, "bos_token_id": None, "eos_token_id": None, "num_key_value_heads": 2,
}  # fmt: skip
KINDS = {
    "vit": (
        "ViTForImageClassification",
        {**SIZES, "image_size": [12, 8], "patch_size": [4, 2], "num_channels": 2},
    ),
    "bert": ("BertModel", {**SIZES, "max_position_embeddings": 16}),
    "gpt2": ("GPT2LMHeadModel", {"vocab_size": 50, "n_embd": 24, "n_layer": 2, "n_head": 3}),
    "llama": ("LlamaForCausalLM", SIZES),
    "qwen3": ("Qwen3ForCausalLM", {**SIZES, "head_dim": 8, "tie_word_embeddings": True}),
}


def built(kind: str) -> nn.Module:
    """Return a small model of transformers with random weights."""
    name, sizes = KINDS[kind]
    kind_of = getattr(transformers, name)
    return kind_of(kind_of.config_class(**sizes)).eval()


@pytest.mark.parametrize("kind", KINDS)
def test_our_loaders_are_healthy(kind: str, tmp_path: Path) -> None:
    def load(theirs: nn.Module) -> nn.Module:
        theirs.save_pretrained(tmp_path)
        family = "llama" if kind == "qwen3" else kind
        return getattr(pretrained, f"load_{family}")(tmp_path)

    report = diagnose_loading(load, built(kind))
    assert report.healthy, report
    assert any("made random" in line for line in report.checked)


def test_rotary_weights_of_another_convention(tmp_path: Path) -> None:
    """Weights as Meta wrote them, read by a model that turns halves, with groups."""
    theirs = built("llama")

    def load(theirs: nn.Module) -> nn.Module:
        theirs.save_pretrained(tmp_path)
        mine = pretrained.load_llama(tmp_path)
        for layer in mine.layers:
            for name, heads in (("q_proj", 4), ("k_proj", 2)):
                weight = getattr(layer.attn, name).weight
                weight.data = weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)
        return mine

    assert diagnose_loading(load, theirs).ids == ("rotary-convention",)


def test_patches_of_another_order(tmp_path: Path) -> None:
    def load(theirs: nn.Module) -> nn.Module:
        theirs.save_pretrained(tmp_path)
        mine = pretrained.load_vit(tmp_path)
        weight = theirs.vit.embeddings.patch_embeddings.projection.weight  # (e, c, ph, pw)
        ours = [p for p in mine.parameters() if p.shape == (24, weight[0].numel())]
        ours[0].data = weight.permute(0, 2, 3, 1).flatten(1).clone()
        return mine

    assert diagnose_loading(load, built("vit")).ids == ("patch-order",)


def right(e: int = 24, h: int = 4) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    theirs, mine = TheirGpt(e, h), MyGpt(e, h)
    mine.load_state_dict(gpt(dict(theirs.state_dict()), e, h))
    return mine, theirs


def test_what_hides_behind_zeros_and_ones_is_said() -> None:
    mine, theirs = right()
    report = diagnose_loading(mine, theirs)
    assert report.healthy
    assert any("hold one number only" in line for line in report.untried)


def test_a_function_or_a_result_will_do() -> None:
    mine, theirs = right()
    ids = torch.randint(33, (2, 7))
    assert diagnose_loading(mine, lambda x: theirs(x)["logits"], ids).healthy
    wanted = theirs.double()(ids)["logits"]
    assert diagnose_loading(mine, wanted, ids).healthy
    for layer in mine.layers:
        layer.out_proj.weight.data = layer.out_proj.weight.data.T.clone()
    report = diagnose_loading(mine, wanted, ids)
    assert report.ids == ("loading-transposed",)
    assert report.explanations[0].detail == "layers.*.out_proj.weight"
    text = str(report)
    assert "undone, yours gives exactly what theirs gives (largest difference below" in text
    assert max(map(len, text.splitlines())) <= 84
    before = copy.deepcopy(mine.state_dict())
    given = {"call": lambda model, x: model(x)[:, -1]}
    assert diagnose_loading(mine, wanted[:, -1], ids, **given).ids == ("loading-transposed",)
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())


def shuffled(theirs: nn.Module) -> nn.Module:
    """No mistake of the catalogue: rows in an order of their own."""
    mine = MyGpt(24, 4)
    weights = gpt(dict(theirs.state_dict()), 24, 4)
    rows = torch.randperm(24)
    for i in range(3):
        weights[f"layers.{i}.q_proj.weight"] = weights[f"layers.{i}.q_proj.weight"][rows]
    mine.load_state_dict(weights)
    return mine


def rounded(theirs: nn.Module) -> nn.Module:
    """In half precision on the way."""
    mine = MyGpt(24, 4)
    weights = gpt(dict(theirs.state_dict()), 24, 4)
    mine.load_state_dict({name: value.half().float() for name, value in weights.items()})
    return mine


def doubled(theirs: nn.Module) -> nn.Module:
    mine = MyGpt(24, 4)
    weights = gpt(dict(theirs.state_dict()), 24, 4)
    weights["tokens.weight"] = 2 * weights["tokens.weight"]
    mine.load_state_dict(weights)
    return mine


def test_models_of_single_precision() -> None:
    class Theirs(TheirGpt):
        def forward(self, ids):
            assert self.wte.weight.dtype == torch.float32
            return super().forward(ids)

    torch.manual_seed(0)
    theirs, mine = Theirs(24, 4), MyGpt(24, 4)
    mine.load_state_dict(gpt(dict(theirs.state_dict()), 24, 4))
    report = diagnose_loading(mine, theirs)
    assert report.healthy and any("less than 2e-05" in line for line in report.untried)


@pytest.mark.parametrize("make", [shuffled, rounded, doubled])
def test_what_is_not_known_gets_no_name(make) -> None:
    report = diagnose_loading(make, TheirGpt(24, 4))
    assert not report.healthy and not report.explanations, report
    assert "mine gives what theirs gives" in report.failing
    assert any("as they lie: not" in line for line in report.failing)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: diagnose_loading(lambda t: MyGpt(1), TheirGpt(8, 2)), "must be made from theirs"),
        (lambda: diagnose_loading(3, TheirGpt(24, 4)), "mine must be an nn.Module, or a function"),
        (lambda: diagnose_loading(right()[0], {}), "theirs must be a model or its result"),
        (lambda: diagnose_loading(right()[0], torch.zeros(2)), "must come with its inputs"),
        (lambda: diagnose_loading(lambda t: 3, TheirGpt(24, 4)), "must be made as an nn.Module"),
        (lambda: diagnose_loading(lambda t: t, torch.zeros(2), 3), "theirs must be an nn.Module"),
        (lambda: diagnose_loading(*right(), torch.zeros(2, 3, 4)), "mine must run on inputs"),
        (
            lambda: diagnose_loading(right()[0], only_halves(24, 4)),
            "must give results of one shape, got (2, 9, 33) and (2, 9, 29)",
        ),
    ],
)
def test_bad_input_is_refused(call, words) -> None:
    assert words in error_of(call)
