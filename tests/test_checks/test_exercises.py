"""The checks of the exercises: right answers pass; blank, wrong and mutated ones do not."""

from __future__ import annotations

import asyncio
import importlib
import json
import re
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
from exercise_bank import (
    MASTERS,
    STEPS,
    Answer,
    Banks,
    OverBudget,
    Task,
    bank,
    budget,
    code_cells,
    is_told,
    judged,
    run,
    tasks,
)
from made_up import code, notebook
from mutants import outcome
from notebook_rules import Chapter

from checks import Verdict
from checks.engine.calls import Crashed, name_of
from checks.engine.cases import Case
from checks.engine.compare import difference
from checks.engine.explain import result, versions
from checks.engine.languages import language
from checks.engine.mistakes import mistakes
from checks.engine.patches import Patched
from checks.engine.verdict import VERDICT_MIME, exercises
from tools.course.cards import sections
from tools.course.execute import execute, settle_environment
from tools.course.notebook import Cell, canonical, source
from tools.course.registry import course

Found = list[tuple[Task, Answer]]


def answers(kind: str) -> Callable[[Path], Found]:
    def of(path: Path) -> Found:
        entries = bank(path.name[:2])
        return [(t, a) for id, t in tasks(path).items() for a in getattr(entries[id], kind)]

    return of


CONTAINED = """
import functools
_plain_{name} = {name}
@functools.wraps(_plain_{name})
def {name}(*args, **options):
    return (_plain_{name}(*args, **options),)
"""
FALSE_OF_CONTAINERS = ("six-digits-only", "same-for-every-input", "changes-nothing")
WORDS = {4: "four", 5: "five", 6: "six", 7: "seven", 8: "eight"}
CASES = 12  # in which patches are compared
UNNAMED = 0.05  # the share of wrong answers that are told no cause, at most; see Verdict.named


def words(verdict) -> str:
    return f"{verdict.state}: {verdict.reason}"


@pytest.mark.parametrize("path", MASTERS, ids=lambda path: path.stem)
class TestMaster:
    """Each test takes the exercises of one chapter and names those that fail."""

    def test_solution_is_right(self, path: Path) -> None:
        found = {id: task.judge(task.solution) for id, task in tasks(path).items()}
        assert {id: words(v) for id, v in found.items() if v.state != "right"} == {}

    def test_causes_of_wrong_answers_are_listed(self, path: Path) -> None:
        number, missing = path.name[:2], []
        own = set(language("en").sections.get(f"Chapter {number}", ()))
        for check in (check for check in exercises(number) if check.function):
            causes = {answer.cause.split()[0] for answer in bank(number)[check.id].wrong}
            listed = {mistake.cause for mistake in mistakes(check)}
            missing += [f"{check.id} {cause}" for cause in (causes & own) - listed]
        assert missing == []

    def test_stub_is_not_yet(self, path: Path) -> None:
        found = {id: task.judge(task.stub) for id, task in tasks(path).items()}
        assert {id: words(v) for id, v in found.items() if v.state != "not yet"} == {}

    def test_wrong_answers_are_refused_with_the_reason(self, path: Path, record_property) -> None:
        found = answers("wrong")(path)
        failed, unnamed = [], []
        checks = importlib.import_module(f"checks.chapter_{path.name[:2]}")
        inner = {
            name
            for name, value in vars(checks).items()
            if isinstance(value, type) and value.__module__ == checks.__name__
        }
        for task, answer in found:
            assert answer.cause, f"{task.id}: {answer} does not name what the check must give"
            verdict = judged(task, answer)
            if verdict.state != "not right" or not is_told(verdict, answer.cause):
                must = f"must give {answer.cause}, gives {verdict.topic}"
                failed.append(f"{task.id} {answer}\n  {must}: {verdict}")
            if not verdict.named:
                unnamed.append(f"{task.id} {answer}\n  {verdict}")
            said = set(re.findall(r"\w+", " ".join(map(str, verdict.inputs))))
            assert not said & inner, (
                f"{task.id} {answer}\n  names a class that nobody has seen: give it `said`"
            )
        record_property("wrong", [len(found), len(found) - len(failed)])
        record_property("named", [len(found), len(found) - len(unnamed)])
        assert not failed, "\n".join(failed)
        assert len(unnamed) <= len(found) * UNNAMED, "no cause is named:\n" + "\n".join(unnamed)

    def test_right_answers_written_differently_pass(self, path: Path, record_property) -> None:
        found = answers("right")(path)
        verdicts = [(task.id, str(a), judged(task, a)) for task, a in found]
        failed = [f"{id} {text}\n  {v}" for id, text, v in verdicts if v.state != "right"]
        record_property("right", [len(found), len(found) - len(failed)])
        assert not failed, "\n".join(failed)

    def test_no_mutant_is_accepted(self, path: Path, record_property) -> None:
        entries = bank(path.name[:2])
        found = {id: outcome(task, entries[id]) for id, task in tasks(path).items()}
        made = sum(o.made for o in found.values())
        passed = sum(len(o.accepted) for o in found.values())
        same = sum(len(o.equivalent) for o in found.values())
        record_property("mutants", [made - same, made - same - passed])
        record_property("equivalent", [same, same])
        assert {id: o.accepted for id, o in found.items() if o.accepted} == {}
        assert {id: o.idle for id, o in found.items() if o.idle} == {}, "not needed in the bank"

    def test_bank_is_full(self, path: Path, record_property) -> None:
        entries = bank(path.name[:2])
        record_property("exercises", [len(entries), len(entries)])
        assert list(entries) == list(tasks(path)), "the bank holds each checked exercise, in order"
        for id, entry in entries.items():
            assert len({str(a) for a in entry.wrong}) >= 5, f"{id}: five wrong answers at least"
            assert len({str(a) for a in entry.right}) >= 2, f"{id}: two right answers at least"
            assert all(entry.equivalent.values()), f"{id}: an equivalent mutant needs its reason"

    def test_checks_know_the_exercises(self, path: Path) -> None:
        known = exercises(path.name[:2])
        assert len(known) in WORDS, "four to eight exercises a chapter"
        assert [e.id for e in known if e.function] == list(tasks(path))
        assert len([e for e in known if not e.function]) == 1, "one open exercise a chapter"
        text = path.read_text(encoding="utf-8")
        titles = re.findall(r'"## (\d+)\. (.+?)(?:\\n)?"', text)
        assert [(f"{path.name[:2]}.{n}", title) for n, title in titles] == [
            (e.id, e.title) for e in known
        ], "the titles of the cards are the titles that progress() shows"

    def test_a_right_result_in_a_container_is_told_so(self, path: Path) -> None:
        """A trailing comma makes a tuple of a result: the commonest slip."""
        for id, task in tasks(path).items():
            names = [name for name in task.arguments if f"def {name}(" in task.solution]
            wrapped = "\n".join(CONTAINED.format(name=name) for name in names)
            verdict = task.judge(f"{task.solution}\n{wrapped}") if names else None
            assert verdict is None or verdict.state == "not right", f"{id} accepts a container"
            assert verdict is None or verdict.topic not in FALSE_OF_CONTAINERS, f"{id}: {verdict}"

    def test_wrong_kinds_of_answers_are_refused(self, path: Path) -> None:
        """Nonsense of every kind gets a verdict, never a crash and never a pass."""
        for id, task in tasks(path).items():
            for nonsense in ("None", "...", "0", "'text'", "[]", "print", "lambda *_: 0", "object"):
                names = "\n".join(f"{name} = {nonsense}" for name in task.arguments)
                verdict = task.judge(names, explain=False)
                assert verdict.state != "right", f"{id} accepts {nonsense}"


# ------------------------------------------------------------------ the mistakes of the checks


@cache
def compared(path: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return how each exercise of a chapter compares functions: reference, inputs and options."""
    chapter = importlib.import_module(f"checks.chapter_{path.name[:2]}")
    if not hasattr(chapter, "same_function"):
        return []
    found: list[tuple[str, dict[str, Any]]] = []
    seen: list[dict[str, Any]] = []

    def spy(answer: Any, reference: Any, inputs: Any, **options: Any) -> None:
        seen.append({"reference": reference, "inputs": inputs, **options})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chapter, "same_function", spy)
        for id, task in tasks(path).items():
            seen.clear()
            task.judge(task.solution)
            found += [(id, one) for one in seen]
    return found


@pytest.mark.parametrize("path", MASTERS, ids=lambda path: path.stem)
def test_a_card_says_whether_loops_are_allowed(path: Path) -> None:
    cards = {
        f"{path.name[:2]}.{part.number}": "\n".join(map(source, part.cells))
        for part in sections(json.loads(path.read_text(encoding="utf-8")))
    }
    ruled = {id for id, one in compared(path) if one.get("loops", "free") != "free"}
    assert [id for id in sorted(ruled) if not re.search(r"\bloops?\b", cards[id])] == []


def gives(function: Any, args: Callable[[], tuple]) -> Any:
    try:
        return result(function, args())
    except Crashed as crashed:
        return str(crashed.said)


def later(call: Callable, *args: Any) -> Callable[[], Any]:
    """Call a function when its result is first needed: most patches differ in the first case."""
    return cache(partial(call, *args))


def differ(pairs: Iterable[tuple[Callable, Callable]]) -> bool:
    return any(difference(one(), other()) is not None for one, other in pairs)


@pytest.mark.parametrize("path", MASTERS, ids=lambda path: path.stem)
def test_patches_differ_from_the_reference_and_from_each_other(path: Path) -> None:
    found: dict[tuple[str, str, int], list[Any]] = {}  # results by exercise, cause and version
    for exercise, one in compared(path):
        if not one.get("mistakes"):
            continue
        reference, inputs, wrong = one["reference"], one["inputs"], one["mistakes"]
        id = f"{exercise} {name_of(reference)}"
        cases = [later(inputs, Case(seed)) for seed in range(CASES)]
        right = [later(gives, reference, args) for args in cases]
        for number, (cause, version) in enumerate(versions(wrong)):
            if isinstance(version, Patched):
                got = [later(gives, version, args) for args in cases]
                found.setdefault((id, cause.id, number), []).extend(zip(got, right, strict=True))
    got = {key: [pair[0] for pair in pairs] for key, pairs in found.items()}
    same = [
        f"{id} {cause} is right" for (id, cause, n), pairs in found.items() if not differ(pairs)
    ]
    same += [
        f"{one[0]} {one[1]} and {other[1]} are one"
        for one, other in combinations(got, 2)
        if one[0] == other[0]
        and one[1] != other[1]
        and len(got[one]) == len(got[other])
        and not differ(zip(got[one], got[other], strict=True))
    ]
    assert not same, "\n".join(dict.fromkeys(same))


# ------------------------------------------------------------------------------- the exercises


def test_an_exercise_without_answers_is_named() -> None:
    with pytest.raises(ValueError, match=r"answers/chapter_09\.py: .* got none for 09\.2\. Give"):
        Banks()["09.2"]
    with pytest.raises(ValueError, match=r"answers/chapter_98\.py: .* got no such file\. Write it"):
        bank("98")


@pytest.mark.parametrize("path", MASTERS, ids=lambda path: path.stem)
def test_a_chapter_tells_how_many_there_are(path: Path) -> None:
    listed = course()[path.name[:2]]
    count, time = WORDS[len(exercises(listed.number))], listed.exercise_minutes
    chapter = "\n".join(Chapter.read(listed.notebook).markdown)
    link = f"](exercises/{listed.exercises.name})**"
    assert f"{link}: {count} of them, about {time} minutes" in chapter


@pytest.mark.parametrize(
    "endless",
    [
        "while True:\n    pass",
        "for i in itertools.count():\n    pass",
        "sum(1 for _ in itertools.count())",
        "def again():\n    pass\nfor _ in range(10**9): again()",
    ],
)
def test_an_endless_answer_is_stopped_by_its_steps(endless: str) -> None:
    budget.steps = 0
    with pytest.raises(OverBudget):
        run(f"import itertools\n{endless}\n", {})
    assert budget.steps == STEPS + 1


def test_every_chapter_has_a_master() -> None:
    assert [chapter.source_notebook for chapter in course().chapters] == MASTERS


def test_masters_use_only_what_students_have() -> None:
    for path in MASTERS:
        for _, text in code_cells(path):
            assert "exercise_bank" not in text and "tests" not in text, path.name


@pytest.fixture(scope="module")
def untouched(request: pytest.FixtureRequest, tmp_path_factory) -> dict[str, list[Cell]]:
    """Run the exercises of all chapters one after the other in one kernel, emptied in between."""
    # Cells of nbval are items, too, and know no fixtures.
    items = request.session.items
    asked = [item for item in items if "untouched" in getattr(item, "fixturenames", ())]
    numbers = dict.fromkeys(item.callspec.params["path"].name[:2] for item in asked)
    cells: list[Cell] = []
    for number in numbers:
        chapter = json.loads(course()[number].exercises.read_text(encoding="utf-8"))["cells"]
        cells.append({**code("%reset -f"), "id": f"reset-{number}"})
        cells += [{**cell, "id": f"of-{number}-{n}"} for n, cell in enumerate(chapter)]
    path = tmp_path_factory.mktemp("untouched") / "all.ipynb"
    path.write_text(canonical(notebook(*cells)), encoding="utf-8")
    settle_environment()
    ran = json.loads(asyncio.run(execute(path, timeout=600)))["cells"]
    return {n: [c for c in ran if c["id"].startswith(f"of-{n}-")] for n in numbers}


@pytest.mark.parametrize("path", MASTERS, ids=lambda path: path.stem)
def test_run_all_of_an_untouched_notebook_goes_through(
    path: Path, untouched: dict[str, list[Cell]]
) -> None:
    """In a kernel, as a student: classes and functions of a notebook have no file of their own."""
    said = {
        cell["metadata"]["nbgrader"]["grade_id"]: cell["outputs"][0]["data"]
        for cell in untouched[path.name[:2]]
        if cell["metadata"].get("nbgrader", {}).get("grade")
    }
    assert list(said) == [f"check-{id.replace('.', '-')}" for id in tasks(path)]
    for grade_id, data in said.items():
        id, text = grade_id[6:].replace("-", "."), "".join(data["text/plain"])
        assert text.startswith(f"{id}  not yet: "), text
        verdict = Verdict.from_json(data[VERDICT_MIME])
        assert (verdict.exercise, verdict.state, str(verdict)) == (id, "not yet", text)
