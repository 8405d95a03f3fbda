"""What is noticed of a block that is explained: idle masks and dropouts, plain tensors."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS
from attention_clinic.engine.modes import NoDropout
from attention_clinic.engine.patient import Patient, same
from attention_clinic.engine.report import Report, explain
from attention_clinic.engine.weights import sources_of
from attention_clinic.examine.around import CROSS, Around
from attention_clinic.examine.dropped_stream import dropped_stream
from attention_clinic.examine.held import feed_of
from attention_clinic.examine.idle_mask import idle, masks
from attention_clinic.examine.inner_norms import inner_norms
from attention_clinic.examine.plain import out_of_reach, plain_tensors
from attention_clinic.examine.resting import never_drops
from attention_clinic.examine.unlearned import and_more

PLAIN = "param-plain-tensor"
STANDIN = "attention_clinic.examine.standin"
# where nothing is weighed, or where a window hides tokens, a mask that changes nothing says little
SAYS_LITTLE = {
    *("attention-unused", "cross-ignored", "part-unused", "ignores-input", "value-only"),
    "sum-apart",
}
LOST = {"residual-missing", "residual-from-context", "ignores-input"}  # nothing goes around a part
HIDES = {"window", "spatial-reduction", "linear-attention", "class-attention", "linformer"}


def noticed_of_block(report: Report, patient: Patient, x: Tensor, around: Around) -> Report:
    """Return a report that says which masks and dropouts of a block reach nothing.

    Args:
        report: on the block.
        patient: its copy.
        x: tokens that it takes.
        around: what stands around them.
    """
    module = patient.module
    explained = report.healthy or report.explanations
    if not explained or type(module).__module__.startswith("torch."):
        return report
    report = _other_gate(report, module, x.shape[2])
    said = list(_idle(report, patient, x, around))
    run = lambda: patient.run(x, context=around.context)  # noqa: E731
    dropout = None if "dropout-eval" in report.ids else never_drops(module, run)
    if not dropout and "dropout-eval" not in report.ids:
        said += [("dropout-eval", "two calls differ")] * _still_drops(patient, x, around)
    said += [] if dropout is None else [("dropout-unused", dropout)]
    ids, words = inner_norms(module, run, patient.tolerance)
    said += [(id, words) for id in ids if id not in report.ids]
    if PLAIN not in report.ids:
        plain = plain_tensors(patient, run)
        drops = out_of_reach(patient, run)
        said += [(PLAIN, plain)] * bool(plain)
        said += [("dropout-eval", drops)] * bool(drops)
    return and_more(_with_dropped_stream(report, patient, x, around), said)


def _with_dropped_stream(report: Report, patient: Patient, x: Tensor, around: Around) -> Report:
    """Remark that a block whose residuals are right drops numbers of its stream in training."""
    if LOST & set(report.ids):
        return report
    run = lambda x, context: patient.run(x, context=context)  # noqa: E731
    count = dropped_stream(patient.module, run, x, around.context)
    if not count:
        return report
    words = "one dropout stands" if count == 1 else f"{count} dropouts stand"
    words += " behind the sum of the stream and of what a part returned: right where it is meant"
    remark = explain([BUGS["dropout-stream"]], detail=words)
    return replace(report, remarks=(*report.remarks, remark))


def _other_gate(report: Report, module: nn.Module, width: int) -> Report:
    """Remark that the gate of a right block is not the layer that its name says."""
    if not report.healthy or all(variant.id != "gate-second" for variant in report.variants):
        return report
    fed = feed_of(sources_of(module), width)
    if fed is None or fed.gate is None or not fed.gate.sure:
        return report
    words = "its layer named gate is not the one that is bent: right where it was trained so"
    remark = explain([BUGS["gate-swapped"]], detail=words)
    return replace(report, remarks=(*report.remarks, remark))


def still_dropping(report: Report, patient: Patient, x: Tensor, around: Around) -> Report:
    """Return a report on an unexplained block that says that it drops in eval mode.

    That is shown by its calls alone, whatever else it does; layers in a plain list show themselves.

    Args:
        report: on the block.
        patient: its copy.
        x: tokens that it takes.
        around: what stands around them.
    """
    if report.healthy or report.explanations:
        return report
    other = patient.anew()
    run = lambda: other.run(x, context=around.context)  # noqa: E731
    words = "two calls differ" if _still_drops(other, x, around) else out_of_reach(other, run)
    evidence = "seen in its calls, which do not differ without dropout"
    ids = ["dropout-eval"] * bool(words)
    if other.listed:
        words, ids = "; ".join(filter(None, (plain_tensors(other, run), words))), [*ids, PLAIN]
        evidence = evidence if len(ids) > 1 else "seen in what it holds"
    if not ids:
        return report
    found = explain([BUGS[id] for id in ids], detail=words)
    return replace(report, explanations=(replace(found, evidence=evidence),))


def _idle(report: Report, patient: Patient, x: Tensor, around: Around) -> Iterator[tuple[str, str]]:
    """Yield the masks that change nothing, whatever they are filled with."""
    ids = {*report.ids, *(variant.id for variant in report.variants)}
    free = around.mask is None and around.context_mask is None
    if not free or ids & (SAYS_LITTLE | HIDES) or any("mask" in id for id in ids):
        return
    if any(type(part).__module__ == STANDIN for part in patient.module.modules()):
        return  # a plain attention stands in the place of its own, and takes no mask
    names = [n for n in inspect.signature(patient.module.forward).parameters if "mask" in n.lower()]
    if not names or x.shape[1] < 2:
        return
    given = set(patient.given)
    crossed = [name for name in names if CROSS.search(name.lower())]
    if around.context is None:  # what masks a context that nobody handed over says nothing
        names = [name for name in names if name not in crossed] or names
        crossed = []
    else:
        crossed = crossed or names[1:]
    causal = says_causal(report) or _hides_future(patient, x, around)
    for name in names:
        if causal and name not in crossed:
            continue
        words = _tried(patient, x, around, name)
        if words and not _waits(patient, x, around, name, [n for n in names if n != name]):
            yield ("context-mask-dropped" if name in crossed else "mask-dropped"), words
    patient.given = given  # what these calls tried is no examination of a mask


def says_causal(report: Report) -> bool:
    """Say whether an attention of a block hides later tokens, whatever is mixed behind it."""
    return any(", causal" in said for said in report.checked)


def _hides_future(patient: Patient, x: Tensor, around: Around) -> bool:
    """Say whether a block hides later tokens without any mask of others."""
    later = x.clone()
    later[:, -1] += torch.arange(x.shape[2]).to(x)
    change = [patient.run(t, context=around.context)[:, :-1] for t in (x, later)]
    return same(*change)


def _tried(patient: Patient, x: Tensor, around: Around, name: str) -> str:
    """Call a block with masks of every shape and kind in one argument, "" where one counts."""

    def run(mask: Tensor | None) -> Tensor:
        with _handed(patient.module, name, mask):
            return patient.run(x, context=around.context)

    lengths = dict.fromkeys(t.shape[1] for t in (x, around.context) if t is not None)
    candidates = (one for keys in lengths for one in masks(*x.shape[:2], keys, x.dtype))
    return idle(patient.module, name, run, candidates)


def _waits(patient: Patient, x: Tensor, around: Around, name: str, others: list[str]) -> bool:
    """Say whether a mask that changes nothing alone counts beside another one, which is open."""
    plain = patient.run(x, context=around.context)
    lengths = dict.fromkeys(t.shape[1] for t in (x, around.context) if t is not None)
    sizes = [(len(x), keys) for keys in lengths] + [(x.shape[1], keys) for keys in lengths]
    for other, size, value in product(others, sizes, (True, False)):
        with _handed(patient.module, other, torch.full(size, value)):
            try:
                taken = same(plain, patient.run(x, context=around.context))
            except Exception:
                continue
            if taken and not _tried(patient, x, around, name):
                return True
    return False


@contextmanager
def _handed(module: nn.Module, name: str, mask: Tensor | None) -> Iterator[None]:
    """Let a module get a mask in one argument, however it is called; None leaves what it gets."""
    signature = inspect.signature(module.forward)

    def exchange(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.arguments[name] = mask
        return bound.args, bound.kwargs

    if mask is None:
        yield
        return
    handle = module.register_forward_pre_hook(exchange, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


def _still_drops(patient: Patient, x: Tensor, around: Around) -> bool:
    """Say whether two calls differ in eval mode, and do not without dropout."""
    first, second = (patient.run(x, context=around.context) for _ in range(2))
    if same(first, second):
        return False
    with NoDropout():
        first, second = (patient.run(x, context=around.context) for _ in range(2))
    return same(first, second)
