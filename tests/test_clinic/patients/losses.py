"""Loss functions."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import nn

from attention_clinic import (
    Report,
    diagnose_loss,
)
from patients.bank import CASES, Entry

# ---------------------------------------------------------------------------------------- losses


def loss(*ids: str, variants: tuple[str, ...] = (), **options) -> Callable:
    """Enter a loss function."""

    def enter(function: Callable) -> Callable:
        def examine(seed: int, e: int, h: int) -> Report:
            report = diagnose_loss(function, e, **options)
            assert tuple(variant.id for variant in report.variants) == variants
            return report

        CASES.append(Entry(function.__name__, ids, examine, sizes=((7, 1), (10, 1))))
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


# ------------------------------------------------------------------ shifted once, or twice


@loss("target-shifted-twice", next_token=True)
def shifted_by_hand_and_again(scores, tokens):
    def causal_loss(scores, labels):
        return F.cross_entropy(scores[..., :-1, :].flatten(0, 1), labels[..., 1:].flatten())

    return causal_loss(scores[:, :-1], tokens[:, 1:])


@loss("target-shifted-twice", next_token=True)
def two_places_on(scores, tokens):
    return -scores.log_softmax(-1)[:, :-2].gather(2, tokens[:, 2:, None]).mean()


@loss("target-shifted-twice", padding_id=0)
def shifts_what_is_shifted(scores, targets):
    return F.cross_entropy(scores[:, :-1].mT, targets[:, 1:], ignore_index=0)


@loss("target-shifted-twice", "double-softmax", next_token=True)
def twice_and_softmax(scores, tokens):
    return F.cross_entropy(scores.softmax(-1)[:, :-2].flatten(0, 1), tokens[:, 2:].flatten())


# ---------------------------------------------------------------------------- padding


@loss(padding_id=0)
def ignores_padding(scores, targets):
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten(), ignore_index=0)


@loss(padding_id=3)
def ignores_padding_by_mask(scores, targets):
    mask = targets != 3
    return (F.cross_entropy(scores.mT, targets, reduction="none") * mask).sum() / mask.sum()


@loss(padding_id=1)
def sums_by_sample(scores, targets):
    return F.cross_entropy(scores.mT, targets, reduction="none", ignore_index=1).sum(dim=1)


@loss(padding_id=-100)
def ignores_by_default(scores, labels):
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), labels.reshape(-1))


@loss(padding_id=0, next_token=True)
def next_without_padding(scores, tokens):
    targets = tokens[:, 1:]
    return F.cross_entropy(scores[:, :-1][targets != 0], targets[targets != 0])


@loss(padding_id=0, smoothing=0.1)
def smoothed(scores, targets):
    return F.cross_entropy(scores.mT, targets, ignore_index=0, label_smoothing=0.1)


@loss(padding_id=0, variants=("mean-by-sample",))
def sentences_alike(scores, targets):
    mask = targets.ne(0)
    losses = F.cross_entropy(scores.mT, targets, reduction="none") * mask
    return (losses.sum(1) / mask.sum(1)).mean()


@loss("padding-counted", padding_id=0)
def counts_padding(scores, targets):
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


@loss("padding-counted", padding_id=2, next_token=True)
def counts_padding_of_the_next(scores, tokens):
    chosen = scores.log_softmax(-1)[:, :-1].gather(2, tokens[:, 1:].unsqueeze(2))
    return -chosen.sum()


@loss("padding-averaged", padding_id=0)
def divides_by_all(scores, targets):
    return F.cross_entropy(scores.mT, targets, reduction="none", ignore_index=0).mean()


@loss("padding-averaged", padding_id=0)
def divides_by_all_of_a_sample(scores, targets):
    losses = F.cross_entropy(scores.mT, targets, reduction="none") * (targets > 0)
    return losses.mean(dim=1)


@loss("padding-not-shifted", padding_id=0, next_token=True)
def mask_of_the_input(scores, tokens):
    mask = (tokens != 0)[:, :-1]
    losses = F.cross_entropy(scores[:, :-1].mT, tokens[:, 1:], reduction="none")
    return (losses * mask).sum() / mask.sum()


@loss("padding-not-shifted", padding_id=4, next_token=True)
def kept_by_the_input(scores, tokens):
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    log_probabilities = scores[:, :-1].log_softmax(-1)[inputs != 4]
    return F.nll_loss(log_probabilities, targets[inputs != 4], reduction="sum")


@loss("target-not-shifted", "padding-counted", padding_id=0, next_token=True)
def neither_shifted_nor_masked(scores, tokens):
    return F.cross_entropy(scores.mT, tokens)
