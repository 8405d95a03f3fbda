"""What `diagnose` says: of a match, of what was not tried, of what nothing explains."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor, nn

from attention_clinic.bugs import BUGS, VARIANTS, Built
from attention_clinic.engine.modes import NoDropout
from attention_clinic.engine.patient import same
from attention_clinic.engine.readings import Reader
from attention_clinic.engine.report import (
    WHETHER_SHOWN,
    Explanation,
    Report,
    Variant,
    explain,
    without_numbers,
)
from attention_clinic.engine.unheard import may_hide, reads_training, told
from attention_clinic.examine.adding import leave_windows
from attention_clinic.examine.bare import WithLayers
from attention_clinic.examine.idle_mask import idle_mask
from attention_clinic.examine.leaves import looks_like_a_norm
from attention_clinic.examine.matching import Match
from attention_clinic.examine.properties import failing
from attention_clinic.examine.resting import never_drops
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.thrown import thrown_away
from attention_clinic.examine.unseen_windows import unseen_windows

EVERYTHING = "projections, split, scale, softmax, mixing, joining"
REACHED = "queries, keys and values of each head reach the output"
WITH_ONE_TOKEN = "with one token they do not. Try more: size=(2, 5)"
IN_TRAINING = "what it does in training only: there it gives another output, its dropout aside"
CODES = "the codes of places that it adds inside: diagnose_positions examines a table of them"
BLOCKED = (
    'agree on what True means; here True = blocked, as true_means="block" says, so mask where it '
    "is True."
)
SEES = {
    "window": "every token sees its window, no more",
    "no-self": "every token sees all others, not itself",
}
EVERY_MISTAKE = "every known mistake, alone and in pairs"


def what(subject: Subject, match: Match) -> str:
    """Say what was compared."""
    bare = isinstance(subject.original, WithLayers)
    everything = subject.original.examined if bare else EVERYTHING
    words = [everything, f"{subject.h} head{'s' * (subject.h > 1)} of {subject.e} wide tokens"]
    every = "without a mask" if _may_hide(subject) else "every token sees all tokens"
    if subject.crossed:
        asked = subject.patient.sides.asked if subject.patient.sides and not subject.call else ()
        name = f" ({', '.join(asked)})" if asked else ""
        words.append(f"keys and values of a context{name} {subject.c} wide")
        every = every.replace("all tokens", "all of the context")
    every = "without the mask" if subject.mask is not None else every
    every = every if subject.options.opening is None else subject.options.opening.words
    named = {*match.variants, *subject.bias_names}
    some = next((words for one, words in SEES.items() if one in named), "")
    every = some if every.startswith("every") and some else every
    bias = subject.bias(subject.b, subject.n)
    hides = bias is not None and not bool(bias.isfinite().triu(1).any())
    words.append("causal" if match.causal or hides else every)
    words += [told(subject.patient.flags)] * bool(subject.patient.flags)
    if subject.options.cache is not None:
        words.append("in two calls, with a cache")
    if subject.patient.time_first:
        words.append("tokens first, samples second")
    if subject.patient.factors:
        words.append(f"{', '.join(subject.patient.factors)} as it is")
    if match.shell.name:
        words.append(match.shell.name)
    if not match.reading.ended and not match.reading.ids and subject.h == 1:
        words.append("no output projection, as one head needs none")
    return "; ".join(words)


def untried(subject: Subject, blocks_nothing: bool = False) -> tuple[str, ...]:
    """Say what was not tried."""
    said = list(subject.patient.untried(mask=True, cache="cache=... tries one"))
    if {"dropout-eval", "dropout-unused"} & set(subject.extra):
        said = [words for words in said if not words.startswith("dropout")]
    if vars(subject).get("idle"):  # many were tried, and change nothing
        said = [words for words in said if not words.startswith("a mask (the argument")]
    if subject.options.causal and subject.mask is None and not subject.patient.flags:
        n, open_ = subject.n, "mask=... tries one"
        past = f"mask=torch.ones({n}, {n}).tril().bool() hands a causal one over"
        said = [
            words.replace(open_, past) if words.startswith("a mask (the argument") else words
            for words in said
        ]
    if while_training(subject):
        said.append(IN_TRAINING)
    if vars(subject).get("placed"):
        said.append(CODES)
    if blocks_nothing:
        said.append("a mask that blocks something: the one given leaves everything as it is")
    if subject.options.opening is not None:
        said.append("a mask that blocks something: mask=... tries one")
    if subject.size is None and subject.mask is None and subject.limited:
        said.append("another number of tokens, which it does not take")
    if subject.size is None and subject.mask is None and subject.b == 1:
        said.append("more than one sample, which it does not take")
    said += unseen_windows(subject)
    if subject.square:
        said.append("a context of another length than the tokens, which it does not take")
    return tuple(said)


def _may_hide(subject: Subject) -> bool:
    """Say whether tokens may be hidden in a call that was not made."""
    patient = subject.patient
    return patient.takes_mask or may_hide(patient.module) or while_training(subject)


def while_training(subject: Subject) -> bool:
    """Say whether the module gives something else in training, its dropout aside."""
    patient = subject.patient
    if "training" not in vars(subject):
        vars(subject)["training"] = False
        own = patient.is_module and subject.mode is None and subject.options.cache is None
        if own and reads_training(patient.module):
            x = patient.tokens(subject.b, subject.n, subject.e)
            y, made = subject.open_run(x), []
            patient.module.train()
            try:
                with NoDropout(), suppress(Exception):
                    made = [subject.open_run(x) for _ in range(2)]
            finally:
                patient.module.eval()
            vars(subject)["training"] = bool(made) and same(*made) and not same(made[0], y)
    return vars(subject)["training"]


def unused_in_training(subject: Subject) -> str | None:
    """Say where a dropout is declared that never happens while training, or return None."""
    if not subject.patient.is_module or subject.extra:
        return None
    module = subject.patient.module
    bare = isinstance(module, WithLayers) and isinstance(module.kernel, nn.Module)
    x = subject.patient.tokens(subject.b, subject.n, subject.e)
    holder = module.kernel if bare else module

    def run() -> Tensor:  # with its mask, too: a dropout may wait for one
        y = subject.open_run(x)
        return y if subject.mask is None else torch.stack([y, subject.run(x, subject.mask)])

    declared = never_drops(module, run, holder)
    subject.extra += ["dropout-unused"] * (declared is not None)
    return declared


def norm_thrown_away(subject: Subject) -> str | None:
    """Say which norm is called and its result used by nothing, or return None."""
    if not subject.patient.is_module or subject.mode is not None:
        return None
    module = subject.patient.module
    norms = {path for path, part in module.named_modules() if looks_like_a_norm(path, part)}
    if not norms:
        return None
    x = subject.patient.tokens(subject.b, subject.n, subject.e)
    unused = [path for path in thrown_away(module, lambda: subject.open_run(x)) if path in norms]
    if not unused:
        return None
    subject.extra.append("norm-missing")
    return f"{unused[0]} is called, and nothing uses what it returns"


def explanations_of(
    matches: Iterable[tuple[Reader, Match]], extra: list[str], declared: str | None
) -> list[Explanation]:
    """Return one explanation for each set of ids, the simplest first, none when it is healthy."""
    order = list(BUGS)
    best: dict[tuple[str, ...], Match] = {}
    for _, match in matches:
        ids = tuple(sorted(dict.fromkeys((*match.ids, *extra)), key=order.index))
        if ids not in best or match.reading.rank < best[ids].reading.rank:
            best[ids] = match
    if () in best:
        return []
    likeliest = min(match.reading.rank for match in best.values())
    found = []
    for ids, match in best.items():
        if likeliest == 0 < match.reading.rank:
            continue  # names break ties, where all of them fit
        said = (match.reading.detail, match.path.detail, declared)
        detail = "; ".join(filter(None, said))
        found.append(explain([BUGS[id] for id in ids], match.difference, detail))
    return sorted(found, key=lambda explanation: len(explanation.ids))


def as_meant(subject: Subject, found: Explanation) -> Explanation:
    """Return an explanation whose fix speaks of True as its caller does."""
    if "mask-inverted" not in found.ids or subject.true_means != "block":
        return found
    right, said = BUGS["mask-inverted"].fix, BLOCKED
    fix = found.fix.replace(right, said)
    return replace(found, fix=fix.replace(right[0].upper() + right[1:], said[0].upper() + said[1:]))


def variants_of(matches: Iterable[tuple[Reader, Match]]) -> tuple[Variant, ...]:
    """Return the variants of the plainest match."""
    names = min((match.variants for _, match in matches), key=len)
    return tuple(VARIANTS[name] for name in dict.fromkeys(names))


def remarks_of(
    subject: Subject, matches: Iterable[tuple[Reader, Match]], filled: tuple[Explanation, ...]
) -> tuple[Explanation, ...]:
    """Return what is no mistake here, and one elsewhere."""
    said = {"out-missing", "out-unused"}
    alone = all(not m.reading.ended and not said & set(m.reading.ids) for _, m in matches)
    made = list(without_output(subject)) if alone else []
    made += filled
    if not subject.extra and all(not match.ids for _, match in matches):
        idle = idle_mask(subject)
        words = f"{idle}: right where nothing is ever to be hidden"
        made += [explain([BUGS["mask-dropped"]], detail=words)] * bool(idle)
    return tuple(made)


def without_output(subject: Subject) -> tuple[Explanation, ...]:
    """Return the remark on a module without an output layer, which may stand elsewhere."""
    if subject.options.out_proj is not None or subject.h == 1:
        return ()
    words = (
        "right where that layer stands outside this module (out_proj=False says so), "
        "wrong where there is none (out_proj=True)"
    )
    return (explain([BUGS["out-missing"]], detail=words),)


def built_in(subject: Subject, built: Built) -> Report:
    """Report the layers, or parameters, that forward builds."""
    detail = f"forward builds {' and '.join(dict.fromkeys(built.kinds))}"
    found = explain([BUGS["layers-in-forward"]], detail=detail)
    checked = ("two calls",)
    return Report(subject.patient.name, False, (found,), checked=checked, untried=untried(subject))


def unexplained(
    subject: Subject, random: bool = False, masked: bool = False, stopped: int = 0
) -> Report:
    """Report the properties that fail.

    Args:
        subject: the module.
        random: whether two calls in eval mode differ.
        masked: whether it was explained without its mask.
        stopped: the steps after which the search stopped, 0 when it went to its end.
    """
    leave_windows(subject)
    stopped = stopped or vars(subject).get("cut", 0)  # some readings were left out
    checked = "known mistakes, alone and in pairs" if stopped else EVERY_MISTAKE
    fails = tuple(failing(subject, random))
    if without_numbers(fails):
        checked, stopped = "one call", 0
    checked += " with the mask" if masked else ""
    return Report(
        subject.patient.name,
        False,
        failing=fails,
        checked=(checked,),
        untried=untried(subject),
        stopped=stopped,
    )


def unmasked(subject: Subject, matches: list[tuple[Reader, Match]]) -> Report:
    """Report the mistakes that a module shows without its mask; nothing explains it with that.

    Args:
        subject: the module.
        matches: what explains it without the mask.
    """
    report = unexplained(subject, masked=True)
    found = explanations_of(matches, subject.extra, "what its mask does is not judged")
    if any(id.startswith("mask-") for one in found for id in one.ids):
        return report
    found = [replace(one, evidence=f"{one.evidence}, without the mask") for one in found]
    return replace(report, explanations=tuple(found))


def unseen(subject: Subject, why: str = "") -> Report:
    """Report that what was compared could not have differed: a mistake would not have shown.

    Args:
        subject: the module.
        why: "" for what is mostly so.
    """
    usual = WITH_ONE_TOKEN if subject.n == 1 else "some are zero, or no numbers, in these weights"
    why = why or usual
    return Report(
        subject.patient.name,
        False,
        failing=(f"{REACHED}: {why}",),
        checked=(WHETHER_SHOWN,),
        untried=untried(subject),
    )


def unless_one_token(report: Report, n: int) -> Report:
    """Return a report; one that says that nothing showed where right is all one token can be.

    Args:
        report: of a block.
        n: how many tokens it was called with.
    """
    if n > 1 or not report.healthy:
        return report
    failing, checked = (f"{REACHED}: {WITH_ONE_TOKEN}",), (WHETHER_SHOWN,)
    return Report(report.name, False, failing=failing, checked=checked, untried=report.untried)
