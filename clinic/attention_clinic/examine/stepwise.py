"""Any number of mistakes at once: every step is compared with what the module made on its way.

The scores that the module made say which queries meet which keys, how both are split and turned,
and by what they are multiplied; its weights say what is masked and what the softmax is taken over;
what it mixed says how. A wrong form that gives none of the module's own numbers is not followed, so
that many mistakes take hardly longer than one. What is found must give the output as any match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice, product

import torch
from torch import Tensor

from attention_clinic.bugs import ATTENTION, EARLY, TURN, with_values
from attention_clinic.bugs.projections import SPLIT
from attention_clinic.bugs.scores import SCALE, all_scales, fitted_scale, scales_by_size
from attention_clinic.engine.budget import spend
from attention_clinic.engine.forms import Form, Path, Stage, State, replay, walk
from attention_clinic.engine.pieces import Reading
from attention_clinic.engine.readings import Reader
from attention_clinic.engine.steps import Seen
from attention_clinic.examine.matching import Match, Probe, Search
from attention_clinic.examine.several import Unexplained
from attention_clinic.examine.shells import Shell
from attention_clinic.examine.subject import Subject

FIRST = 2  # mistakes before the scores
WEIGHING = 2  # between the scores and the weights
JOINING = 2  # behind what is mixed
PAIRS = 12  # layers that may make queries and keys, those first that follow the names best
REST = 48  # readings of values and output with each of them
LOOKS = 2  # steps that it takes to look for scores among what the module made
WAYS = 9  # to make the scores that the module made, and each step after them
NUMBER = {stage.name: number for number, stage in enumerate(ATTENTION)}
VALUES = next(form for form in SPLIT.forms if form.detail == "the values alone")
PARTS = (  # up to the scores, the weights, what is mixed, the end
    ATTENTION[: NUMBER["scale"]],
    ATTENTION[NUMBER["scale"] : NUMBER["softmax"] + 1],
    ATTENTION[NUMBER["softmax"] + 1 : NUMBER["mix"] + 1],
    ATTENTION[NUMBER["mix"] + 1 :],
)


@dataclass(frozen=True)
class Begun:
    """A way to make the scores that the module made.

    Args:
        readings: of the weights, with the same queries and keys.
        path: up to the scores.
        scales: what may follow.
    """

    readings: list[Reading]
    path: Path
    scales: list[Form]


def step_by_step(call: Unexplained) -> list[tuple[Reader, Match]]:
    """Return what explains a call with as few mistakes as possible, however many they are."""
    subject, holds, readers, probe, shells = call
    if not subject.patient.is_module or subject.options.cache is not None:
        return []
    seen = Seen(lambda: subject.open_run(probe.x), subject.h, max(1e-8, subject.patient.tolerance))
    subject.known["observed"] = True
    probe = replace(probe, known={**probe.known, "observed": True, "seen": seen})
    found: list[tuple[Reader, Match]] = []
    for shell, base in product(shells, _bases(subject)):
        case = replace(probe, causal=base)
        for reader, readings in readers:
            for match in _ways(subject, reader, readings, case, shell, seen):
                if _sensible(match) and holds(reader, match):
                    found.append((reader, match))
        if found:
            break
    subject.known["observed"] = bool(found)
    least = min((len(match.ids) for _, match in found), default=0)
    return [pair for pair in found if len(pair[1].ids) == least]


def _bases(subject: Subject) -> tuple[bool, ...]:
    """Return whether it may be causal."""
    if subject.crossed:
        return (False,)
    causal = subject.options.causal
    if causal is not None and subject.options.mask is None:
        return (causal,)
    if causal is None and (subject.is_causal or subject.sees_future):
        return (subject.is_causal,)
    return (False, True)


def _ways(
    subject: Subject,
    reader: Reader,
    readings: list[Reading],
    probe: Probe,
    shell: Shell,
    seen: Seen,
) -> Iterator[Match]:
    """Yield what gives the output of one call by steps that the module made."""
    for begun in islice(_begun(reader, readings, probe, shell, seen), WAYS):
        search = Search(reader, begun.readings, probe, shell, subject.patient.tolerance)
        search.must_be_causal = subject.options.causal is True and subject.options.mask is None
        state = replay(PARTS[0], begun.path.forms, {**search.state(), "total": 2})
        ways = [] if state is None else [(begun.path, state)]
        for stages, most, chosen, made in (
            (PARTS[1], WEIGHING, {SCALE.name: begun.scales}, partial(_made, seen, "weights")),
            (PARTS[2], 1, {}, partial(_made, seen, "mixed")),
            (PARTS[3], JOINING, {}, partial(_ends, search)),
        ):
            ways = [
                more
                for path, state in ways
                for more in _least(stages, path, state, most, chosen, made)
            ]
        for path, state in ways:
            gaps = search.difference(state["joined"])
            for number in torch.nonzero(gaps <= search.limit)[:, 0].tolist():
                reading, gap = begun.readings[number], gaps[number].item()
                yield Match(reading, path, shell, probe.causal, gap)


def _ends(search: Search, state: State) -> bool:
    """Say whether this gives the output, for some reading."""
    return bool((search.difference(state["joined"]) <= search.limit).any())


def _least(
    stages: Sequence[Stage],
    path: Path,
    state: State,
    most: int,
    chosen: dict[str, list[Form]],
    seen: Callable[[State], bool],
) -> list[tuple[Path, State]]:
    """Return the ways through some stages that the module went, with as few mistakes as it can be.

    Args:
        stages: that follow.
        path, state: what they begin with.
        most: how many mistakes to try.
        chosen: by the name of a stage, the only forms of it to try.
        seen: says whether the module made this.
    """
    for mistakes in range(most + 1):
        ways = [
            (joined(path, more), after)
            for more, after in walk(stages, state, mistakes, chosen)
            if seen(after)
        ]
        if ways:
            return ways[:WAYS]
    return []


def joined(first: Path, second: Path, other: Form | None = None) -> Path:
    """Return one path, and another behind it.

    Args:
        first, second: the paths.
        other: a mistaken way to split, in the place of the right one.
    """
    forms, ids = (*first.forms, *second.forms), (*first.ids, *second.ids)
    detail = "; ".join(filter(None, (first.detail, second.detail)))
    if other is not None:
        place = NUMBER["split"]
        forms, ids = (*forms[:place], other, *forms[place + 1 :]), (*other.ids, *ids)
        detail = "; ".join(filter(None, (other.detail, detail)))
    return Path(
        forms,
        ids,
        detail,
        (*first.variants, *second.variants),
    )


def _begun(
    reader: Reader, readings: list[Reading], probe: Probe, shell: Shell, seen: Seen
) -> Iterator[Begun]:
    """Yield the ways to make scores that the module made, with as few mistakes as it can be."""
    groups: dict[tuple[int, int], list[Reading]] = {}
    for reading in readings:
        groups.setdefault((reading.q, reading.k), []).append(reading)
    kept = [group[:REST] for group in islice(groups.values(), PAIRS)]
    try:
        search = Search(reader, [group[0] for group in kept], probe, shell, 1e-9)
    except RuntimeError:
        return
    found = False
    for mistakes in range(FIRST + 1):
        begin = {**search.state(), "total": max(mistakes, 1)}
        for path, made in walk(PARTS[0], begin, mistakes):
            spend(LOOKS)
            for number, factors in enumerate(seen.factors(made["raw"])):
                if not factors:
                    continue
                scales = list(_scales(made, made["raw"][number : number + 1], factors, seen))
                if scales:
                    found = True
                    yield Begun(kept[number], path, scales)
                    if not path.forms[NUMBER["split"]].ids:  # no score says how values are split
                        yield Begun(kept[number], joined(path, Path(), VALUES), scales)
                    for turned in _turning_values(path):  # nor how they are turned
                        yield Begun(kept[number], turned, scales)
        if found:
            return


def _turning_values(path: Path) -> Iterator[Path]:
    """Yield a way to make scores with the values turned, too, as queries and keys are."""
    for stage in (EARLY, TURN):
        place = NUMBER[stage.name]
        form = path.forms[place]
        if form.run is not None and "rotary-values" not in form.ids:
            forms = (*path.forms[:place], with_values(stage, form), *path.forms[place + 1 :])
            yield replace(path, forms=forms, ids=(*path.ids, "rotary-values"))


def _scales(state: State, raw: Tensor, factors: list[float], seen: Seen) -> Iterator[Form]:
    """Yield the forms of the scale that give scores which the module made."""
    setting, named, sized = state["scaling"], [], []
    for form in all_scales(state):
        if form.applies(state):
            made = form.run(raw, setting)
            made = made[0] if isinstance(made, tuple) else made
            if seen.has(made[0]):
                named.append(form)
                sized.append(not torch.equal(made, raw))
    yield from named
    if any(sized) or state.get("cosine"):
        return
    others = [factor for factor in factors if abs(factor - 1) > seen.close]
    for form in (*scales_by_size(),) if others else ():
        if seen.has(form.run(raw, setting)[0]):
            yield form
    for factor in others[:2]:
        yield from fitted_scale(factor, setting)


def _made(seen: Seen, name: str, state: State) -> bool:
    """Say whether the module made this step, for some reading."""
    rows = state[name] if name == "mixed" else state[name][:1]
    for t in rows:
        if seen.has(t) or (state["factor"] != 1.0 and seen.has(t / state["factor"])):
            return True
    return False


def _sensible(match: Match) -> bool:
    """Say whether the names of a match fit each other.

    One head as wide as all together is right with its own scale; weights that are made and read
    the other way round are right, with keys that ask.
    """
    ids = match.ids
    if {"softmax-query", "mix-transposed"} <= set(ids):
        return False
    scaled = {"scale-other", "scale-embed", "scale-missing", "scale-unused"} & set(ids)
    return "heads-not-split" not in ids or (not scaled and len(ids) > 1)
