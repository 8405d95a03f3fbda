"""The attentions of a block with their masks: each of them is handed its own, as the block does."""

from __future__ import annotations

import inspect
from dataclasses import replace

from torch import Tensor, nn

from attention_clinic.engine.calls import first_tensor
from attention_clinic.engine.patient import same
from attention_clinic.examine.around import Around, Question, called, open_mask
from attention_clinic.examine.leaves import Unclear
from attention_clinic.examine.part_kinds import Kind
from attention_clinic.examine.unit import Unit

DROPPED = "mask-dropped"


class Masks:
    """The masks of a block that are handed over whenever it runs.

    Args:
        asked: what is asked of it.
    """

    def __init__(self, asked: Question) -> None:
        self.patient, self.around, self.x = asked.patient, asked.around, asked.x
        # as its user wrote it: what it does without a mask is no business of ours
        self.call = None if asked.patient.call is None else inspect.unwrap(asked.patient.call)

    def of(self, unit: Unit) -> Tensor | None:
        """Return the mask that is meant for an attention, or None."""
        return self.around.mask if unit.asked is None else self.around.context_mask

    def run(
        self,
        module: nn.Module,
        x: Tensor,
        context: Tensor | None,
        tried: tuple[Tensor | None, bool] | None = None,
    ) -> object:
        """Call a copy of the block with its masks.

        Args:
            module: the copy.
            x: tokens.
            context: or None.
            tried: another mask, and whether it is that of the context; the other blocks nothing.
        """
        patient, now = self.patient, replace(self.around, context=context)
        if tried is not None or x.shape[:2] != self.x.shape[:2]:
            now = self._open(x, context)
        if tried is not None:
            now = replace(now, **{"context_mask" if tried[1] else "mask": tried[0]})
        if patient.time_first:
            x, context = (t if t is None else t.transpose(0, 1) for t in (x, context))
            now = replace(now, context=context)
        if self.call is None:
            return called(module, x, now, patient.sides, patient.tables, patient.opening)
        if context is None:
            return self.call(module, x, now.mask)
        return self.call(module, x, context, now.mask, now.context_mask)

    def _open(self, x: Tensor, context: Tensor | None) -> Around:
        """Return masks that block nothing where there are masks."""
        own, crossed = self.around.mask, self.around.context_mask
        now = Around(context, None if own is None else open_mask(own, x, x.shape[1]))
        if crossed is None or context is None:
            return now
        return replace(now, context_mask=open_mask(crossed, x, context.shape[1]))

    def named(self, unit: Unit, kind: Kind) -> Kind:
        """Return what an attention is, with the names that the mask of a context has."""
        if DROPPED not in kind.ids:
            return kind
        crossed = unit.asked is not None
        if self._heard(crossed):
            raise Unclear  # it reaches another part
        name = "context-mask-dropped" if crossed else DROPPED
        return replace(kind, ids=tuple(name if id == DROPPED else id for id in kind.ids))

    def _heard(self, crossed: bool) -> bool:
        """Say whether a mask changes anything that the block returns."""
        context = self.around.context
        masks = (around.context_mask if crossed else around.mask
                 for around in (self.around, self._open(self.x, context)))  # fmt: skip
        made = (self.run(self.patient.module, self.x.clone(), context, (mask, crossed))
                for mask in masks)  # fmt: skip
        return not same(*map(first_tensor, made))
