"""`diagnose_loading`: bugs get their names, correct loaders none, the rest is said or refused."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
import transformers
from patients.loading import CASES, Llama, MyGpt, gpt, loaded, their_gpt
from torch import nn

from attention_clinic import diagnose_loading
from utils import hub


@pytest.mark.parametrize(("e", "h", "given"), [(24, 4, "made"), (16, 2, "as they are")])
@pytest.mark.parametrize("case", CASES, ids=lambda case: "-".join(case[0]) or "healthy")
def test_bugs_get_their_names(case, given: str, e: int, h: int) -> None:
    ids, theirs, mine, convert = case
    torch.manual_seed(0)
    source = theirs(e, h)

    def load(source: nn.Module) -> nn.Module:
        weights = convert(dict(source.state_dict()), e, h)
        return loaded(mine(e, h), weights)

    if given == "as they are":
        for parameter in source.parameters():
            parameter.data.normal_(0.3, 0.4)
    report = diagnose_loading(load if given == "made" else load(source), source)
    assert report.ids == ids and report.healthy == (not ids), report


@pytest.mark.parametrize("kind", ["vit", "gpt2"])
def test_the_loaders_of_the_course_are_healthy(kind: str, tmp_path: Path) -> None:
    images = {"image_size": 12, "patch_size": 4, "num_channels": 3, "hidden_size": 24,
              "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 4}  # fmt: skip
    config = transformers.GPT2Config(vocab_size=50, n_embd=24, n_layer=2, n_head=3)
    theirs = transformers.GPT2LMHeadModel(config)
    if kind == "vit":
        theirs = transformers.ViTForImageClassification(transformers.ViTConfig(**images))

    def load(theirs: nn.Module) -> nn.Module:
        theirs.save_pretrained(tmp_path)
        return getattr(hub, f"load_{kind}")(tmp_path)

    report = diagnose_loading(load, theirs.eval())
    assert report.healthy, report
    assert any("made random" in line for line in report.checked)


def right(theirs: nn.Module) -> nn.Module:
    return loaded(MyGpt(24, 4), gpt(dict(theirs.state_dict())))


def test_a_function_or_a_result_will_do() -> None:
    theirs = their_gpt(24, 4)
    mine, ids = right(theirs), torch.randint(33, (2, 7))
    assert any("hold one number" in line for line in diagnose_loading(mine, theirs).untried)
    assert diagnose_loading(mine, lambda x: theirs(x)["logits"], ids).healthy
    wanted = theirs.double()(ids)["logits"]
    for layer in mine.layers:
        layer.out_proj.weight.data = layer.out_proj.weight.data.T.clone()
    before = copy.deepcopy(mine.state_dict())
    report = diagnose_loading(mine, wanted, ids)
    assert report.ids == ("loading-transposed",)
    assert report.explanations[0].detail == "layers.*.out_proj.weight"
    assert "undone, yours gives exactly what theirs gives (largest difference" in str(report)
    last = diagnose_loading(mine, wanted[:, -1], ids, call=lambda model, x: model(x)[:, -1])
    assert last.ids == ("loading-transposed",)
    assert all(torch.equal(value, before[name]) for name, value in mine.state_dict().items())


@pytest.mark.parametrize(
    "change",
    [
        lambda name, t: t.flip(0) if "q_proj.weight" in name else t,
        lambda name, t: t.half().float(),
        lambda name, t: 2 * t if name == "tokens.weight" else t,
        lambda name, t: torch.randn(t.shape) if name == "head.weight" else t,
    ],
    ids=["shuffled", "rounded", "doubled", "never loaded"],
)
def test_what_is_not_known_gets_no_name(change) -> None:
    def load(theirs: nn.Module) -> nn.Module:
        weights = gpt(dict(theirs.state_dict()))
        return loaded(MyGpt(24, 4), {n: change(n, t) for n, t in weights.items()})

    report = diagnose_loading(load, their_gpt(24, 4))
    assert not report.explanations and report.failing == ("mine gives what theirs gives",), report


MINE, THEIRS = MyGpt(24, 4), their_gpt(24, 4)


@pytest.mark.parametrize(
    ("mine", "theirs", "inputs", "words"),
    [
        (lambda theirs: MyGpt(1), THEIRS, None, "must be made from theirs"),
        (lambda theirs: 3, THEIRS, None, "as an nn.Module, got int"),
        (lambda theirs: theirs, torch.zeros(2), 3, "theirs must be a model, or its result"),
        (3, THEIRS, None, "mine must be an nn.Module, or a function"),
        (MINE, {}, None, "theirs must be a model, or its result"),
        (MINE, torch.zeros(2), None, "or its result with inputs="),
        (MINE, THEIRS, torch.zeros(2, 3, 4), "mine must run on inputs"),
        (MINE, Llama(24, 4), None, "must give results of one shape"),
    ],
)
def test_bad_input_is_refused(mine, theirs, inputs, words: str) -> None:
    with pytest.raises(ValueError) as refused:
        diagnose_loading(mine, theirs, inputs)
    assert words in str(refused.value) and "\n" not in str(refused.value)
