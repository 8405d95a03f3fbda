"""Loss functions."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import nn

from attention_clinic import (
    Report,
    diagnose_loss,
)
from patients.bank import CASES, Case

# ---------------------------------------------------------------------------------------- losses


def loss(*ids: str, next_token: bool = False) -> Callable:
    """Enter a loss function."""

    def enter(function: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            return diagnose_loss(function, e, next_token=next_token)

        CASES.append(Case(function.__name__, ids, examine, sizes=((7, 1), (10, 1))))
        return function

    return enter


loss()(F.cross_entropy)


@loss()
def by_hand(scores, classes):
    return -(scores.log_softmax(-1).gather(1, classes[:, None])).mean()


@loss()
def log_softmax_twice(scores, classes):
    return F.cross_entropy(scores.log_softmax(dim=-1), classes)  # changes nothing


@loss("double-softmax")
def softmax_first(scores, classes):
    return F.cross_entropy(scores.softmax(dim=1), classes)


@loss("double-softmax")
def softmax_in_the_model(scores, classes):
    probabilities = scores.exp() / scores.exp().sum(-1, keepdim=True)
    return nn.CrossEntropyLoss(reduction="sum")(probabilities, classes)


@loss(next_token=True)
def shifted(scores, tokens):
    return F.cross_entropy(scores[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


@loss("target-not-shifted", next_token=True)
def unshifted(scores, tokens):
    return F.cross_entropy(scores.transpose(1, 2), tokens)


@loss("target-not-shifted", next_token=True)
def both_cut(scores, tokens):
    scores, tokens = scores[:, :-1], tokens[:, :-1]
    return F.nll_loss(scores.log_softmax(-1).reshape(-1, scores.shape[-1]), tokens.reshape(-1))


@loss("target-not-shifted", "double-softmax", next_token=True)
def unshifted_softmax(scores, tokens):
    return F.cross_entropy(scores.softmax(-1).flatten(0, 1), tokens.flatten())
