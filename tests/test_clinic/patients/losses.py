"""Patients of `diagnose_loss`: classifiers, language models, padding."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F

from attention_clinic import Report, diagnose_loss
from patients.bank import CASES, Entry


def loss(*ids: str, name: str = "", **options) -> Callable:
    """Add a loss function to the bank."""

    def enter(function: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            return diagnose_loss(function, e, **options)

        CASES.append(
            Entry(name or function.__name__, ids, examine, ((7, 1), (10, 1)), variants=None)
        )
        return function

    return enter


def each(logits, classes, smoothing=0.0):
    """Return the loss of each target."""
    return F.cross_entropy(logits.mT, classes, reduction="none", label_smoothing=smoothing)


loss()(F.cross_entropy)
loss(next_token=True, name="shifted")(lambda x, tokens: each(x[:, :-1], tokens[:, 1:]).mean())
loss(name="log_softmax_twice")(lambda x, classes: F.cross_entropy(x.log_softmax(-1), classes))
loss(name="by_hand")(lambda x, classes: -x.log_softmax(-1).gather(1, classes[:, None]).mean())
loss("double-softmax")(lambda x, y: F.nll_loss(x.softmax(-1).log_softmax(-1), y, reduction="sum"))
loss(name="single")(lambda x, classes: F.cross_entropy(x.float(), classes, reduction="none"))


@loss("double-softmax")
def softmax_first(logits, classes):
    return F.cross_entropy(logits.softmax(dim=1), classes)


@loss("target-not-shifted", next_token=True)
def unshifted(logits, tokens):
    return F.cross_entropy(logits.transpose(1, 2), tokens)


@loss("target-shifted-twice", next_token=True)
def shifts_by_two(logits, tokens):
    return -logits.log_softmax(-1)[:, :-2].gather(2, tokens[:, 2:, None]).mean()


for _ids, _make in (
    ("target-not-shifted", lambda x, tokens: each(x[:, :-1], tokens[:, :-1]).mean()),
    ("target-not-shifted", lambda x, tokens: each(x[:, 1:], tokens[:, 1:]).sum()),
    ("target-not-shifted double-softmax", lambda x, tokens: each(x.softmax(-1), tokens)),
):
    loss(*_ids.split(), next_token=True)(_make)


@loss("padding-counted", padding_id=0)
def counts_padding(logits, targets):
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def next_without_padding(logits, tokens):
    return F.cross_entropy(logits[:, :-1].mT, tokens[:, 1:], ignore_index=0)


loss(padding_id=0, next_token=True)(next_without_padding)
loss("target-shifted-twice", padding_id=0)(next_without_padding)
loss(padding_id=-100, name="by_default")(lambda x, y: F.cross_entropy(x.mT, y))
loss(padding_id=3, name="by_mask")(lambda x, y: each(x, y)[y != 3].mean())
loss(padding_id=1, name="by_sample")(lambda x, y: (each(x, y) * (y != 1)).sum(dim=1))
loss(padding_id=0, smoothing=0.1)(lambda x, y: each(x, y, 0.1)[y > 0].sum())
loss("padding-counted", padding_id=2, next_token=True)(lambda x, y: each(x[:, :-1], y[:, 1:]).sum())
loss("target-not-shifted", "padding-counted", padding_id=0, next_token=True)(each)
