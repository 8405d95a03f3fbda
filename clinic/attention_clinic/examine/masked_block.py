"""A block with a mask that no form explains: by its run, and by what the mask does."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from attention_clinic.engine.report import Report
from attention_clinic.examine.around import Around, Question
from attention_clinic.examine.layer import Layer
from attention_clinic.examine.mask_argument import allowed
from attention_clinic.examine.mask_law import law_of_mask
from attention_clinic.examine.unlearned import and_more
from attention_clinic.examine.wired import Wired


def masked_wired(asked: Question) -> Report | None:
    """Examine a block without its mask by its run, and judge by its effects what the mask does.

    Args:
        asked: what is asked of it, with a mask.
    """
    patient, x, around = asked.patient, asked.x, asked.around
    if around.mask is None or around.context is not None:
        return None
    given, layer = (patient.call, patient.time_first), Layer(asked, patient.call)

    def with_mask(x: Tensor) -> Tensor:
        layer.now = around
        return patient.run(x)

    def without(x: Tensor) -> Tensor:
        layer.now = Around()
        return patient.run(x)

    law = law_of_mask(without, with_mask, x, allowed(around.mask, *x.shape[:2]))
    patient.call, patient.time_first = given
    report = Wired(replace(asked, around=Around())).report() if law else None
    if report is None or not (report.healthy or report.explanations):
        return None
    if law == "right":
        said = "with the mask: a token gets what the tokens that it allows give alone"
        return replace(report, checked=(*report.checked, said))
    if f"mask-{law}" in report.ids:
        return report
    words = {"dropped": "the mask changes nothing", "inverted": "tokens get what it blocks, only"}
    return and_more(report, [(f"mask-{law}", words[law])])
