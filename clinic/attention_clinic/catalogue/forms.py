"""Steps and their forms: the correct code of a step next to every known wrong form of it.

A part of a Transformer (attention, block, embedding, loss, ...) is a sequence of steps. The first
form of a step is the correct one; a wrong form names its bug. A tool proposes forms, from a rule
over what it read or by trying each one, and proves them: the whole sequence with these forms must
give the module's own numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from attention_clinic.report import Bug, Explanation, Report, Variant, explain

State = dict[str, Any]
Enter = Callable[[Callable[..., Any]], Callable[..., Any]]  # a decorator that keeps its function
BUGS: dict[str, Bug] = {}
VARIANTS: dict[str, Variant] = {}


def bug(text: str) -> str:
    """Add bugs to the catalogue and return the id of the last one.

    Args:
        text: "id, chapter 03", then the words, then paragraphs that begin with "Fix:", "Seen:"
            (threads, separated by semicolons), "Evidence:" and "Once:"; see `Bug`. A blank line
            separates two bugs.

    Raises:
        ValueError: an id that is taken, or a text without its parts.
    """
    for id, chapter, words, parts in _entries(text, BUGS, "Fix", "Seen", "Evidence", "Once"):
        threads = tuple(parts.get("Seen", "").split("; "))
        shown = (parts.get("Evidence", ""), parts.get("Once", ""))
        BUGS[id] = Bug(id, words, parts["Fix"], chapter, threads, *shown)
    return id


def variant(text: str) -> str:
    """Add correct variants to the catalogue and return the id of the last one.

    Args:
        text: "id, chapter 13", then the words, then "In:" and the models; see `Variant`. A blank
            line separates two variants.

    Raises:
        ValueError: an id that is taken, or a text without its parts.
    """
    for id, chapter, words, parts in _entries(text, VARIANTS, "In"):
        VARIANTS[id] = Variant(id, words, parts["In"], chapter)
    return id


def _entries(
    text: str, known: dict[str, Any], *names: str
) -> Iterator[tuple[str, str, str, dict[str, str]]]:
    """Yield id, chapter, words and named paragraphs of each entry; the first name is needed."""
    for entry in text.strip().split("\n\n"):
        head, *lines = entry.strip().splitlines() or [""]
        id, _, chapter = head.partition(", chapter ")
        parts, name = {"": ""}, ""
        for line in lines:
            start, colon, rest = line.partition(": ")
            if colon and start in names:
                name, line = start, rest
            parts[name] = f"{parts.get(name, '')} {line}".strip()
        problem = ""
        if not chapter or names[0] not in parts:
            problem = f"an entry must have a chapter and {names[0]}:, got {head!r}. Add them."
        elif id in known:
            problem = f"id must be new, got id={id!r} a second time. Pick another."
        if problem:
            raise ValueError(f"catalogue: {problem}")
        yield id, chapter, parts[""], parts


def with_more(report: Report, more: Sequence[tuple[str, str]]) -> Report:
    """Return a report with further bugs: ids, with a detail each ("" for none)."""
    if not more:
        return report
    ids = [id for id, _ in more]
    detail = "; ".join(dict.fromkeys(words for _, words in more if words))

    def joined(one: Explanation | None) -> Explanation:
        bugs = [BUGS[id] for id in dict.fromkeys((*(one.ids if one else ()), *ids))]
        words = "; ".join(filter(None, (one.detail if one else "", detail)))
        made = explain(bugs, one.difference if one else 0.0, words)
        return replace(made, evidence=one.evidence) if one else made

    explanations = tuple(map(joined, report.explanations or (None,)))
    return replace(report, healthy=False, explanations=explanations)


def always(state: Any) -> bool:
    """Return True: a form that applies in every state."""
    return True


@dataclass(frozen=True)
class Form:
    """One way to write a step.

    For attention, `applies` is the rule that proposes the form: a condition on fields of the
    program.
    """

    run: Callable[..., Any]  # the code; its arguments are those of the step
    ids: tuple[str, ...] = ()  # the bugs that it makes, () for a correct form
    detail: str = ""  # a fact beyond the words of its bugs
    applies: Callable[[Any], bool] = always  # whether it is possible, given what was read or made
    variants: tuple[str, ...] = ()  # names of a correct form, () for the plain one


def nothing(state: State) -> Iterable[Form]:
    """Return no further forms."""
    return ()


@dataclass(eq=False)
class Step:
    """One step of a part; `apply` runs a form and returns new entries of the state.

    It returns None if the form has no effect. `found` returns further forms, read off the module.
    """

    name: str
    apply: Callable[[Form, State], State | None] = lambda form, state: {}
    found: Callable[[State], Iterable[Form]] = nothing
    forms: list[Form] = field(default_factory=list)  # of the catalogue, the correct one first

    def correct(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Add a correct form."""
        self.forms.append(Form(run))
        return run

    def variant(self, id: str, applies: Callable[[Any], bool] = always) -> Enter:
        """Add a correct form that is a variant of the catalogue."""
        if id not in VARIANTS:
            raise ValueError(f"variant: id must be in VARIANTS, got id={id!r}. Add it first.")
        return self._enter(applies=applies, variants=(id,))

    def wrong(
        self,
        id: str,
        applies: Callable[[Any], bool] = always,
        detail: str = "",
    ) -> Enter:
        """Add a wrong form of a bug of the catalogue."""
        if id not in BUGS:
            raise ValueError(f"wrong: id must be in BUGS, got id={id!r}. Add it first.")
        return self._enter(ids=(id,), detail=detail, applies=applies)

    def _enter(self, **about: Any) -> Enter:
        def enter(run: Callable[..., Any]) -> Callable[..., Any]:
            self.forms.append(Form(run, **about))
            return run

        return enter

    @property
    def reference(self) -> Form:
        """The correct form."""
        return self.forms[0]


@dataclass(frozen=True)
class Path:
    """One form of each step in order, their mistakes, details and names of variants."""

    forms: tuple[Form, ...] = ()
    ids: tuple[str, ...] = ()
    detail: str = ""
    variants: tuple[str, ...] = ()

    def then(self, form: Form) -> Path:
        """Return the path with one more form."""
        detail = "; ".join(filter(None, (self.detail, form.detail)))
        variants = (*self.variants, *form.variants)
        return Path((*self.forms, form), (*self.ids, *form.ids), detail, variants)


def paths(
    steps: Sequence[Step], state: State, mistakes: int, path: Path | None = None
) -> Iterator[tuple[Path, State]]:
    """Yield every path with exactly this number of mistakes, and the state that it makes."""
    path = path or Path()
    if not steps:
        if mistakes == 0:
            yield path, state
        return
    for form in (*steps[0].forms, *steps[0].found(state)):
        left = mistakes - len(form.ids)
        if left < 0 or (left and len(steps) == 1) or not form.applies(state):
            continue
        made = steps[0].apply(form, state)
        if made is not None:
            yield from paths(steps[1:], {**state, **made}, left, path.then(form))


def replay(steps: Sequence[Step], forms: Sequence[Form], state: State) -> State | None:
    """Run one form of each step; return the last state, None if one does not apply."""
    for step, form in zip(steps, forms, strict=True):
        made = step.apply(form, state) if form.applies(state) else None
        if made is None:
            return None
        state = {**state, **made}
    return state


@dataclass(frozen=True)
class Found:
    """A path that gives the module's output, what it made, and the largest difference."""

    path: Path
    state: State
    difference: float


def simplest(
    steps: Sequence[Step],
    state: State,
    difference: Callable[[State], float | None],
    most: int = 2,
) -> dict[tuple[str, ...], Found]:
    """Return the paths with the fewest mistakes that give the output, by their ids.

    Args:
        steps: of the part.
        state: before the first step.
        difference: the distance of a state from the output, None if it is not the same.
        most: the largest number of mistakes to try.
    """
    found: dict[tuple[str, ...], Found] = {}
    for total in range(most + 1):
        for path, made in paths(steps, state, total):
            if path.ids in found:
                continue
            gap = difference(made)
            if gap is not None:
                found[path.ids] = Found(path, made, gap)
                if not path.ids:
                    return found
        if found:
            break
    return found
