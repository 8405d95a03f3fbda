"""What is noticed of an attention that is explained: shared weights, plain tensors, idle masks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.modes import Mode
from attention_clinic.engine.patient import same
from attention_clinic.engine.readings import Reader
from attention_clinic.engine.tape import tensors_in
from attention_clinic.examine.idle_mask import idle_mask, is_plain
from attention_clinic.examine.inner_norms import inner_norms
from attention_clinic.examine.matching import Match
from attention_clinic.examine.plain import out_of_reach, plain_tensors
from attention_clinic.examine.subject import Subject
from attention_clinic.examine.verdict import norm_thrown_away, unused_in_training

AT_THE_CAP = 30.0  # times as large tokens: scores grow by the square of it


class Fills(Mode):
    """Hear what masked_fill returns, and whether anything reads it: `unused` is the rest."""

    listens = True

    def __init__(self) -> None:
        super().__init__()
        self.unused: list[Tensor] = []

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        read = {id(t) for t in tensors_in([*args, *kwargs.values()])}
        self.unused = [t for t in self.unused if id(t) not in read]
        result = func(*args, **kwargs)
        if getattr(func, "__name__", "") == "masked_fill":
            self.unused.append(result)
        return result


class Uses(Mode):
    """Hear which weights tokens meet before the softmax, and which meet what the last one mixed.

    Attributes:
        before: the ids of those before the last softmax.
        after: those that are multiplied with what its weights reached, by their ids.
        weighed: whether a softmax was called.
    """

    def __init__(self) -> None:
        super().__init__()
        self.before: set[int] = set()
        self.after: dict[int, nn.Parameter] = {}
        self.weighed = False
        self.mixed: dict[int, Tensor] = {}  # what the last softmax reached

    def called(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = getattr(func, "__name__", "")
        read = list(tensors_in([*args, *kwargs.values()]))
        result = func(*args, **kwargs)
        weighs = name in ("softmax", "scaled_dot_product_attention")
        if weighs:
            self.weighed, self.after, self.mixed = True, {}, {}
        of_mixed = weighs or any(id(t) in self.mixed for t in read)
        if of_mixed:
            written = [args[0]] if name == "__setitem__" else []
            self.mixed |= {id(t): t for t in tensors_in([result, *written])}
        if name in ("linear", "matmul", "__matmul__"):
            held = {id(t): t for t in read if isinstance(t, nn.Parameter) and t.ndim > 1}
            if of_mixed:
                self.after |= held
            else:
                self.before |= set(held)
        return result


def noticed(
    subject: Subject, matches: Sequence[tuple[Reader, Match]], named: Sequence[str] = ()
) -> list[str]:
    """Add the ids of what is noticed to those of a module, and return what is to be said.

    Args:
        subject: the module.
        matches: what explains it, () where it was followed step by step.
        named: what is said of it then.
    """
    said = [unused_in_training(subject), norm_thrown_away(subject), tied(subject, matches)]
    said += ["" if "attention-unused" in named else out_shared(subject), _plain(subject)]
    bias = subject.biases.get((subject.b, subject.n)) if subject.biased else None
    subject.extra += () if bias is None else bias.ids
    said.append(_of_norms(subject, {*named, *(id for _, match in matches for id in match.ids)}))
    said.append(_late_cap(subject, matches))
    idle = thrown_fill(subject)
    idle = idle or (idle_mask(subject) if is_plain(subject, matches) else "")
    subject.extra += ["mask-dropped"] * bool(idle)
    said.append(idle)
    return [words for words in said if words]


def _late_cap(subject: Subject, matches: Sequence[tuple[Reader, Match]]) -> str:
    """Add that scores are bent behind their mask, where only the largest ones show it."""
    bent = any(match.causal and "soft-cap" in match.variants for _, match in matches)
    if not bent or any("cap-after-mask" in match.ids for _, match in matches):
        return ""
    x = AT_THE_CAP * subject.patient.tokens(subject.b, subject.n, subject.e)
    later = x.clone()
    later[:, -1] += torch.arange(subject.e).to(x)
    try:
        first, second = (subject.open_run(t)[:, :-1] for t in (x, later))
    except Exception:  # it takes no such tokens
        return ""
    if same(first, second):
        return ""
    subject.extra.append("cap-after-mask")
    return "where the scores reach the cap, tokens see later ones"


def _of_norms(subject: Subject, named: set[str]) -> str:
    """Add the mistakes of the norms inside a module, and say where they are.

    Args:
        subject: the module.
        named: what is said of it already.
    """
    if not subject.patient.is_module:
        return ""
    x = subject.patient.tokens(subject.b, subject.n, subject.e)
    limit = subject.patient.tolerance
    ids, said = inner_norms(subject.patient.module, lambda: subject.open_run(x), limit)
    new = [id for id in ids if id not in {*subject.extra, *named}]
    subject.extra += new
    return said if new else ""


def tied(subject: Subject, matches: Sequence[tuple[Reader, Match]]) -> str:
    """Say which of queries, keys and values have the same weights, though they have layers each.

    `copy.copy` of a layer gives a second layer with the parameters of the first.
    """
    right = [(reader, match) for reader, match in matches if not match.ids]
    if not right or (subject.crossed and subject.c != subject.e) or subject.made is not None:
        return ""
    reader, match = right[0]
    x = subject.patient.tokens(1, 3, subject.e, seed=7)
    pieces = [
        reader.pieces[number] for number in (match.reading.q, match.reading.k, match.reading.v)
    ]
    q, k, v = (reader.flat(piece, x, {}) for piece in pieces)
    if same(q, k) or same(q, v):
        subject.extra.append("projection-shared")
        alike = "queries, keys and values" if same(k, v) else "queries and values"
        alike = "queries and keys" if not same(q, v) else alike
        return f"the layers of {alike} hold the same parameters"
    if same(k, v):
        subject.extra.append("value-from-key")
        return "the layers of keys and values hold the same parameters"
    return ""


def out_shared(subject: Subject) -> str:
    """Say which layer makes queries, keys or values, and is the output layer, too."""
    if not subject.patient.is_module or subject.mode is not None:
        return ""
    with Uses() as uses:
        subject.open_run(subject.patient.tokens(subject.b, subject.n, subject.e))
    both = [p for number, p in uses.after.items() if number in uses.before]
    if not uses.weighed or not both:
        return ""
    subject.extra.append("part-shared")
    names = [name for name, p in subject.patient.module.named_parameters() if p is both[0]]
    layer = (names or ["one layer"])[0].removesuffix(".weight")
    return f"{layer} projects the tokens, and what the heads mixed, too"


def thrown_fill(subject: Subject) -> str:
    """Say that what masked_fill returns is used nowhere: it was taken for masked_fill_.

    Where it must be causal, what is missing has a name of its own.
    """
    if not subject.patient.is_module or subject.options.causal:
        return ""
    with Fills() as fills:
        subject.open_run(subject.patient.tokens(subject.b, subject.n, subject.e))
    held = {id(v) for part in subject.patient.module.modules() for v in vars(part).values()}
    if not any(id(t) not in held for t in fills.unused):
        return ""
    return "what masked_fill returns is thrown away, and only masked_fill_ changes a tensor itself"


def _plain(subject: Subject) -> str:
    """Add that numbers which learn are no parameters, and what of them drops; say which."""
    x = subject.patient.tokens(subject.b, subject.n, subject.e)
    run = lambda: subject.open_run(x)  # noqa: E731
    said = plain_tensors(subject.patient, run)
    drops = out_of_reach(subject.patient, run)
    subject.extra += ["param-plain-tensor"] * bool(said) + ["dropout-eval"] * bool(drops)
    return "; ".join(filter(None, (said, drops)))


def ignores(subject: Subject, y: Tensor) -> bool:
    """Say whether other tokens give the same output."""
    other = subject.patient.tokens(subject.b, subject.n, subject.e, seed=5)
    try:
        return subject.mask is None and same(y, subject.run(other))
    except Exception:
        return False
