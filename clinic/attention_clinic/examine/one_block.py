"""One block: which examination comes first, and what is said where none explains it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from torch import Tensor

from attention_clinic.bugs.blocks import Meant
from attention_clinic.engine.budget import reserved
from attention_clinic.engine.patient import Patient
from attention_clinic.engine.report import Report
from attention_clinic.examine.around import Around, Question
from attention_clinic.examine.block import Block
from attention_clinic.examine.layer import Layer
from attention_clinic.examine.masked_block import masked_wired
from attention_clinic.examine.wired import Wired


def examined_layer(
    patient: Patient,
    x: Tensor,
    around: Around,
    num_heads: int,
    meant: Meant,
    causal: bool | None,
) -> Report:
    """Examine one block: as a whole, or with all that stands around it part by part."""
    asked = Question(patient, x, around, num_heads, meant, causal)
    odd: list[str] = []  # connections that nobody has named, in words
    partly: list[Report] = []  # mistakes of a block in which a part is not understood

    def wired() -> Report | None:
        if around.mask is not None or around.context_mask is not None:
            return masked_wired(asked)
        one = Wired(asked)
        report = one.report()
        odd.extend(one.odd)
        partly.extend([] if one.partly is None else [one.partly])
        return report

    if around != Around():
        given = patient.call, patient.time_first
        for most in (0, 2):
            patient.call, patient.time_first = given
            layer = Layer(asked, patient.call)
            layer.most = most
            report = layer.report()
            if report.healthy or report.explanations:
                return report
            if most:
                return partly[0] if partly and partly[0].explanations else report
            patient.call, patient.time_first = given
            found = wired()
            if found is not None:
                return found
    whole = Block(patient, x, num_heads, meant, causal)
    only_right = patient.time_first and not patient.was_time_first  # nobody said that it is so

    def by_parts() -> Report | None:
        said = patient.call, patient.time_first
        try:
            layer = Layer(asked, patient.call)
            layer.most = 0 if only_right else layer.most
            report = layer.report()
        except Exception:  # what is needed beside the tokens was found out for the first try only
            return None
        finally:
            patient.call, patient.time_first = said
        return report if report.healthy or report.explanations else None

    reports: list[Report] = []

    def at(least: int, most: int) -> Report | None:
        whole.least, whole.most = least, most
        with reserved(0.5 if least < 3 else 1.0):  # the parts are to be tried, too
            reports.append(whole.report())
        return reports[-1] if reports[-1].healthy or reports[-1].explanations else None

    steps: list[Callable[[], Report | None]] = [lambda: at(1, 2), by_parts, lambda: at(3, 3)]
    found = at(0, 0)
    found = wired() if found is None else found
    if found is None and side_by_side(whole):
        steps = [by_parts, lambda: at(1, 2), lambda: at(3, 3)]
    steps = [by_parts] if only_right else steps
    for step in steps:  # a report is true only when it is healthy
        found = step() if found is None else found
    if found is not None:
        return found
    if partly and (partly[0].explanations or not odd):
        return replace(partly[0], stopped=max(report.stopped for report in reports))
    failing = (*reports[-1].failing, *(f"connected as usual: {said}" for said in odd))
    return replace(reports[-1], failing=failing, stopped=max(report.stopped for report in reports))


def side_by_side(block: Block) -> bool:
    """Say whether what the parts of a block add does not depend on each other."""
    if block.fed is None or not block.y.isfinite().all():
        return False
    return block.near(block.unfed() + block.deaf() - block.x, block.y)
