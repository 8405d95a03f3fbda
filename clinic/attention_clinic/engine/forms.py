"""The one search: a part is a row of stages, a stage a row of forms, right ones and wrong ones.

A part of a Transformer (attention, block, patches, positions, loss) is cut into stages. Each stage
knows how a form of it is applied to what the stages before have made. A form is the code of one
way to write the stage; a wrong one names its bug, and says itself where it applies and where it
counts as a mistake. `walk` goes through all combinations with a given number of mistakes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from attention_clinic.engine.budget import spend_on
from attention_clinic.engine.report import Bug, Variant

State = dict[str, Any]
BUGS: dict[str, Bug] = {}
VARIANTS: dict[str, Variant] = {}


def bug(
    id: str, words: str, fix: str, chapter: str, *threads: str, seen: str = "", once: str = ""
) -> str:
    """Enter a bug and return its id.

    Args:
        id, words, fix, chapter, threads, seen, once: as in `Bug`.

    Raises:
        ValueError: an id that is taken.
    """
    if id in BUGS:
        raise ValueError(f"bug: an id must be new, got id={id!r} a second time. Pick another.")
    BUGS[id] = Bug(id, words, fix, chapter, threads, seen, once)
    return id


def variant(id: str, words: str, models: str, chapter: str) -> str:
    """Enter a legitimate variant and return its id.

    Args:
        id, words, models, chapter: as in `Variant`.

    Raises:
        ValueError: an id that is taken.
    """
    if id in VARIANTS:
        raise ValueError(f"variant: an id must be new, got id={id!r} a second time. Pick another.")
    VARIANTS[id] = Variant(id, words, models, chapter)
    return id


def always(state: State) -> bool:
    """Apply, or count, whatever was made before."""
    return True


def observed(state: State) -> bool:
    """Apply where the steps of a module are looked at one by one: see examine/stepwise.py."""
    return bool(state.get("observed"))


@dataclass(frozen=True)
class Form:
    """One way to write a stage.

    Args:
        run: the code; what it takes is for the stage to say.
        ids: the bugs that it makes, () for a right form.
        detail: what it says beyond the words of its bugs.
        applies: says whether it can be tried on what was made before.
        counts: says whether it is a mistake there; where it is none, it is one more right form.
        variants: what a right form is called, () for the plain one.
    """

    run: Any
    ids: tuple[str, ...] = ()
    detail: str = ""
    applies: Callable[[State], bool] = always
    counts: Callable[[State], bool] = always
    variants: tuple[str, ...] = ()

    def mistakes(self, state: State) -> tuple[str, ...]:
        """Return the ids that count after what was made before."""
        return self.ids if self.ids and self.counts(state) else ()


def nothing(state: State) -> Iterable[Form]:
    """Find no forms in the module."""
    return ()


@dataclass(eq=False)
class Stage:
    """One step of a part.

    Args:
        name: of the step.
        apply: runs a form on the state and returns what it adds, None when it changes nothing.
        found: finds more forms in the module under examination.
        forms: those of the catalogue, the right one first.
    """

    name: str
    apply: Callable[[Form, State], State | None]
    found: Callable[[State], Iterable[Form]] = nothing
    forms: list[Form] = field(default_factory=list)

    def right(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Enter a right form."""
        self.forms.append(Form(run))
        return run

    def variant(
        self, id: str, applies: Callable[[State], bool] = always
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Enter a right form that has a name of its own, under a variant that is known."""
        if id not in VARIANTS:
            raise ValueError(f"variant: id must be a variant's, got id={id!r}. Enter it first.")

        def enter(run: Callable[..., Any]) -> Callable[..., Any]:
            self.forms.append(Form(run, applies=applies, variants=(id,)))
            return run

        return enter

    def wrong(
        self,
        id: str,
        detail: str = "",
        applies: Callable[[State], bool] = always,
        counts: Callable[[State], bool] = always,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Enter a wrong form under a bug that is known."""
        if id not in BUGS:
            raise ValueError(f"wrong: id must be that of a bug, got id={id!r}. Enter it first.")

        def enter(run: Callable[..., Any]) -> Callable[..., Any]:
            self.forms.append(Form(run, (id,), detail, applies, counts))
            return run

        return enter

    @property
    def reference(self) -> Form:
        """The right form."""
        return self.forms[0]


@dataclass(frozen=True)
class Path:
    """One form for each stage.

    Args:
        forms: in the order of the stages.
        ids: the mistakes among them.
        detail: what the mistaken forms say beyond the words of their bugs.
        variants: the names of the right forms that have one.
    """

    forms: tuple[Form, ...] = ()
    ids: tuple[str, ...] = ()
    detail: str = ""
    variants: tuple[str, ...] = ()

    def then(self, form: Form, ids: tuple[str, ...]) -> Path:
        """Return the path with one more form."""
        said = form.detail if form.ids else ""
        detail = "; ".join(filter(None, (self.detail, said)))
        named = () if ids else form.variants
        return Path((*self.forms, form), (*self.ids, *ids), detail, (*self.variants, *named))


def walk(
    stages: Sequence[Stage],
    state: State,
    mistakes: int,
    chosen: Mapping[str, Sequence[Form]] | None = None,
    may_be: Mapping[str, Callable[[State], bool]] | None = None,
) -> Iterator[tuple[Path, State]]:
    """Yield every way through the stages with exactly so many mistakes, and what it makes.

    What several ways begin with is made once.

    Args:
        stages: of the part.
        state: what they begin with.
        mistakes: how many, in all.
        chosen: by the name of a stage, the only forms of it to try.
        may_be: by the name of a stage, says whether to follow what was made up to it.
    """
    yield from _step(stages, 0, state, mistakes, chosen or {}, Path(), may_be or {})


def _step(
    stages: Sequence[Stage],
    number: int,
    state: State,
    left: int,
    chosen: Mapping[str, Sequence[Form]],
    path: Path,
    may_be: Mapping[str, Callable[[State], bool]],
) -> Iterator[tuple[Path, State]]:
    if number == len(stages):
        if left == 0:
            yield path, state
        return
    stage = stages[number]
    forms, follow = chosen.get(stage.name), may_be.get(stage.name)
    found = stage.found({**state, "left": left}) if forms is None else ()
    for form in (*stage.forms, *found) if forms is None else forms:
        if not form.applies(state):
            continue
        ids = form.mistakes(state)
        if len(ids) > left:
            continue
        made = stage.apply(form, state)
        spend_on((made or {}).values())
        if made is not None:
            after = {**state, **made}
            if follow is None or follow(after):
                more = path.then(form, ids)
                yield from _step(stages, number + 1, after, left - len(ids), chosen, more, may_be)


def replay(stages: Sequence[Stage], forms: Sequence[Form], state: State) -> State | None:
    """Run one form of each stage; return what they make, None when one does not apply.

    Args:
        stages: of the part.
        forms: one for each.
        state: what they begin with.
    """
    for stage, form in zip(stages, forms, strict=True):
        made = stage.apply(form, state) if form.applies(state) else None
        spend_on((made or {}).values())
        if made is None:
            return None
        state = {**state, **made}
    return state


@dataclass(frozen=True)
class Found:
    """What a search found.

    Args:
        path: the forms.
        state: what they made.
        difference: the largest difference from the module's output.
    """

    path: Path
    state: State
    difference: float


def simplest(
    stages: Sequence[Stage],
    state: State,
    difference: Callable[[State], float | None],
    most: int = 2,
    least: int = 0,
) -> dict[tuple[str, ...], Found]:
    """Return the ways with the fewest mistakes that give the output, by their ids.

    Args:
        stages: of the part.
        state: what they begin with.
        difference: how far what was made is from the output, None when it is not the same.
        most: how many mistakes to try.
        least: how many to begin with.
    """
    found: dict[tuple[str, ...], Found] = {}
    for total in range(least, most + 1):
        for path, made in walk(stages, {**state, "total": total}, total):
            if path.ids in found:
                continue
            gap = difference({**made, "forms": path.forms})
            if gap is not None:
                found[path.ids] = Found(path, made, gap)
                if not path.ids:
                    return found
        if found:
            break
    return found
