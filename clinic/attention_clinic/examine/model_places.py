"""Whether a model that reads words gives each place of a text a code of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS
from attention_clinic.engine.patient import same
from attention_clinic.engine.recording import Recording
from attention_clinic.engine.report import Report, explain
from attention_clinic.engine.sites import Site
from attention_clinic.examine.entering import Front, front_of
from attention_clinic.examine.learned_places import CHECKED

SEEN = "seen in calls: a text that repeats one word enters the first block alike everywhere"


def places_of(
    model: nn.Module, recording: Recording, sites: Sequence[Site], named: Sequence[str]
) -> Iterator[tuple[str, Report]]:
    """Yield the tables of places that reach the first block and tell no places apart.

    A text that repeats one word enters the first block with its places alone.

    Args:
        model: the copy.
        recording: of its run.
        sites: its attentions.
        named: the tables of the model that are called places.
    """
    whole = recording.calls.get("")
    texts = {} if whole is None else {n: t for n, t in whole.given.items() if _is_text(n, t)}
    found = front_of(model, recording, sites) if texts and named else None
    if found is None:
        return
    front, call = found
    given = call.given | {n: t[:1, :1].expand_as(t) for n, t in texts.items()}
    try:
        yield from _alike(front, given, named)
    except Exception:  # a model may refuse such a text
        return


def _alike(
    front: Front, given: dict[str, Any], named: Sequence[str]
) -> Iterator[tuple[str, Report]]:
    """Yield the tables that change what enters, at all places alike."""
    held = dict(front.model.named_parameters()) | dict(front.model.named_buffers())
    with torch.no_grad():
        before = front(**given)
        b, n, _ = before.shape
        for name in named:
            table = held.get(name)
            if n < 2 or table is None or table.numel() < n * table.shape[-1]:
                continue
            kept = table.detach().clone()
            generator = torch.Generator().manual_seed(51)
            table.data.copy_(torch.randn(table.shape, generator=generator))
            tokens = front(**given)
            table.data.copy_(kept)
            if same(before, tokens) or not same(tokens, tokens[:, :1].expand_as(tokens)):
                continue
            apart = b > 1 and not same(tokens[0], tokens[1])
            bug = BUGS["pos-batch-axis" if apart else "pos-one-row"]
            said = replace(explain([bug]), evidence=SEEN)
            path = name.removesuffix(".weight")
            yield path, Report(path, False, (said,), checked=CHECKED)


def _is_text(name: str, value: Any) -> bool:
    """Say whether an argument holds the words of texts, (b, n)."""
    is_text = isinstance(value, Tensor) and value.ndim == 2 and not value.is_floating_point()
    return is_text and value.dtype != torch.bool and "pos" not in name and "mask" not in name
