"""What a module that does not run on rows of tokens is asked for: a line that works as it is."""

from __future__ import annotations

from dataclasses import make_dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attention_clinic import diagnose, diagnose_block, diagnose_model
from attention_clinic.engine.doors import entered
from attention_clinic.examine.asking import Asking
from helpers import error_of

Out = make_dataclass("Out", ["scores", "tokens"])


class Rows(nn.Module):
    """Attention over rows (b, n, e); how they come in and go out is said by who inherits."""

    def __init__(self, e: int = 24, root: float = 1.0) -> None:
        super().__init__()
        self.num_heads, self.root = 4, root
        self.into, self.back = nn.Linear(e, 3 * e), nn.Linear(e, e)

    def weigh(self, x: Tensor, added: Tensor | float = 0.0) -> Tensor:
        q, k, v = self.into(x).unflatten(2, (3, 4, -1)).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / q.shape[-1] ** (0.5 * self.root) + added).softmax(-1)
        return self.back((weights @ v).transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.weigh(x)


class Named(Rows):
    def forward(self, states):
        return {"weights": (states @ states.mT)[:, None],
                "states": self.weigh(states)}  # fmt: skip


class Record(Rows):
    def forward(self, x):
        return Out(None, self.weigh(x))


class Listed(Rows):
    def forward(self, both):
        first, second = both
        return self.weigh(0.5 * (first + second))


class Batch(Rows):
    def forward(self, batch):
        return self.weigh(batch["tokens"])


class TwoSamples(Rows):
    def forward(self, x):
        return self.weigh(x.view(2, -1, x.shape[-1]))


class TwoMasks(Rows):
    def forward(self, x, attn_mask, padding_mask):
        shut = attn_mask | padding_mask[:, None, None, :]
        return self.weigh(x, torch.zeros(shut.shape, dtype=x.dtype).masked_fill(shut, -torch.inf))


class Valid(Rows):
    def forward(self, x, is_valid):
        assert is_valid.dtype == torch.bool and is_valid.ndim == 2
        return self.weigh(x, torch.where(is_valid, 0.0, -1e9)[:, None, None])


class InKeywords(Rows):
    def forward(self, x, **beside):
        return self.weigh(x, torch.where(beside["attn_mask"], 0.0, -1e9)[:, None])


class GivenBias(Rows):
    def forward(self, x, attn_bias):
        return self.weigh(x, 1 * attn_bias)


class FixedPicture(Rows):
    def __init__(self, e: int = 24, root: float = 1.0) -> None:
        super().__init__(e, root)
        self.places = nn.Parameter(torch.zeros(e, 3, 5))

    def forward(self, x):
        _, _, height, width = x.shape
        return self.weigh((x + self.places).flatten(2).mT).mT.unflatten(2, (height, width))


class Clip(Rows):
    def forward(self, x):
        b, _, _, _, c = x.shape
        return self.weigh(x.reshape(b, -1, c)).view(x.shape)


class Volume(Rows):
    def forward(self, x):
        _, _, _, _, _ = x.shape
        return self.weigh(x.flatten(2).mT).mT.reshape(x.shape)


def test_of_a_dictionary_what_is_shaped_as_the_tokens_is_read() -> None:
    torch.manual_seed(0)
    assert diagnose(Named()).healthy


@pytest.mark.parametrize(
    ("kind", "line"),
    [
        (Record, "call=lambda module, x: module(x).tokens"),
        (Listed, "call=lambda module, x: module([x, x])"),
        (Batch, "call=lambda module, x: module({'tokens': x})"),
        (TwoSamples, "size=(2, 5)"),
        (
            TwoMasks,
            "call=lambda module, x: module(x, attn_mask=torch.zeros(x.shape[1], x.shape[1], "
            "dtype=torch.bool), padding_mask=torch.zeros(len(x), x.shape[1], dtype=torch.bool))",
        ),
        (
            Valid,
            "call=lambda module, x: module(x, is_valid=torch.ones(len(x), x.shape[1], "
            "dtype=torch.bool))",
        ),
        (
            InKeywords,
            "call=lambda module, x: module(x, attn_mask=torch.ones(len(x), 1, x.shape[1], "
            "dtype=torch.bool))",
        ),
        (
            GivenBias,
            "call=lambda module, x: module(x, attn_bias=x.new_zeros(x.shape[1], x.shape[1]))",
        ),
        (
            FixedPicture,
            "call=lambda module, x: module(x.mT.unflatten(2, (3, 5))).flatten(2).mT, size=(2, 15)",
        ),
        (Clip, "call=lambda module, x: module(x[:, :, None, None]).flatten(1, 3)"),
        (Volume, "call=lambda module, x: module(x.mT[:, :, :, None, None]).flatten(2).mT"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_line_to_paste_works(kind: type, line: str) -> None:
    torch.manual_seed(0)
    text = error_of(lambda: diagnose(kind()))
    assert text.endswith(f": {line}."), text
    assert "Repair that line" not in text
    given = {"torch": torch, "diagnose": diagnose, "module": kind(), "sick": kind(root=0.0)}
    report = eval(f"diagnose(module, {line})", given)
    assert report.healthy or kind in (FixedPicture,), report
    assert eval(f"diagnose(sick, {line})", given).ids == ("scale-missing",)


def test_the_width_of_a_context_is_found() -> None:
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.heads = 4
            self.ask, self.told = nn.Linear(32, 32), nn.Linear(20, 64)
            self.back = nn.Linear(32, 32)

        def forward(self, x, context):
            q = self.ask(x).unflatten(2, (4, -1)).transpose(1, 2)
            k, v = self.told(context).unflatten(2, (2, 4, -1)).permute(2, 0, 3, 1, 4)
            weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
            return self.back((weights @ v).transpose(1, 2).flatten(2))

    text = error_of(lambda: diagnose(Reader()))
    assert text.endswith("Its context has another width: diagnose(module, context=20).")
    assert diagnose(Reader(), context=20)


def test_what_else_forward_needs_is_shown_in_the_line() -> None:
    class Conditioned(Rows):
        def __init__(self):
            super().__init__()
            self.shift = nn.Linear(24, 24)

        def forward(self, x, cond):
            return self.weigh(x + self.shift(cond)[:, None])

    text = error_of(lambda: diagnose(Conditioned()))
    assert text.endswith("Give what else it needs: call=lambda module, x: module(x, cond=...).")
    assert diagnose(Conditioned(), call=lambda m, x: m(x, cond=x.new_zeros(len(x), 24))) is not None


def test_a_whole_model_is_sent_to_its_tool() -> None:
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.attend = nn.Embedding(30, 24), Rows()

        def forward(self, ids):
            return self.attend(self.embed(ids))

    for tool in (diagnose, diagnose_block):
        text = error_of(lambda tool=tool: tool(Words(), 4))
        assert "It takes ids, as a whole model does: diagnose_model(model)" in text
        assert "Repair that line" not in text
    assert diagnose_model(Words())

    class Broken(Rows):
        def forward(self, x):
            return self.weigh(x) @ torch.ones(3, 5)

    assert "Repair that line" in error_of(lambda: diagnose(Broken()))


def test_what_is_no_module_gets_a_line_too() -> None:
    text = error_of(lambda: diagnose(F.scaled_dot_product_attention))
    line = "diagnose(lambda q, k, v: F.scaled_dot_product_attention(q, k, v))"
    assert text.endswith(f"Say it: {line}.")
    assert eval(line, {"diagnose": diagnose, "F": F})
    text = error_of(lambda: diagnose(None))
    assert text.startswith("diagnose: module must be an nn.Module or a function, got None. Build")
    assert text.endswith("diagnose(Attention(512, 8), num_heads=8).")
    with torch.device("meta"):
        empty = Rows()
    for tool in (diagnose, diagnose_block, diagnose_model):
        text = error_of(lambda tool=tool: tool(empty))
        assert 'on the device meta. Build it where it has some: with torch.device("cpu")' in text


def test_nobody_is_asked_inside_of_a_whole_model(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    line = Asking.line
    monkeypatch.setattr(Asking, "line", lambda self: asked.append(self) or line(self))
    error_of(lambda: diagnose(Clip()))
    assert len(asked) == 1
    with entered():
        error_of(lambda: diagnose(Clip()))
        error_of(lambda: diagnose_block(Clip(), 4))
    assert len(asked) == 1
