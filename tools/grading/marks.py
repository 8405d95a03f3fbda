"""Grades one student after the other with nbgrader's own converters.

The assignments are made once from the masters, into a gradebook (an SQLite file). Every student is
graded in a process of its own with a copy of that gradebook, so that two never wait for each other.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course.cards import STUB, grade_id
from course.notebook import KERNELSPEC, LANGUAGE_INFO, Notebook, source
from course.registry import ROOT, Chapter
from grading.handed_in import Sent, Student
from grading.restore import Task, restore, tasks_of
from grading.running import Limits, Run
from grading.suspicion import suspicions

STUDENT = "student"  # nbgrader knows every student by this name, each in a gradebook of its own
# What a student's code needs of the instructor's environment; the rest may be private.
KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")
TEXT_KEPT = 4000


@dataclass
class Exercise:
    """What one student did in one exercise; plain data that goes through a file.

    Args:
        id, title: of the exercise.
        points, possible: 0 and 0 for an open exercise.
        state: "right", "not right", "not yet", "not checked", "open" or "not handed in".
        reason: one or two sentences.
        cells: what the student wrote: number, kind, source, text and pictures of each cell.
        written: whether anything stands there beside the stub.
    """

    id: str
    title: str
    points: float
    possible: float
    state: str
    reason: str
    cells: list[dict[str, Any]] = field(default_factory=list)
    written: bool = False


@dataclass
class Mark:
    """What one student reached in one chapter.

    Args:
        chapter: two digits.
        file: what was graded, "" if nothing was.
        exercises: in the order of the notebook.
        reason: why it is less than it could be, or what is remarkable; "" if nothing.
        deceit: what gave the notebook 0 points, "" if nothing did.
    """

    chapter: str
    file: str
    exercises: list[Exercise]
    reason: str = ""
    deceit: str = ""

    @property
    def points(self) -> float:
        return 0.0 if self.deceit else sum(e.points for e in self.exercises)

    @property
    def possible(self) -> float:
        return sum(e.possible for e in self.exercises)


@dataclass
class Course:
    """The assignments, ready to be graded.

    Args:
        root: nbgrader's course directory, temporary.
        notebooks: what was handed out, with checks and metadata, by chapter.
        stems: the name of each notebook without ending, by chapter.
        library: a copy of `utils` and its data, from which the solutions cannot be found.
    """

    root: Path
    notebooks: dict[str, Notebook]
    stems: dict[str, str]
    library: Path

    def tasks(self, chapter: str) -> list[Task]:
        return tasks_of(self.notebooks[chapter])


def _converter(kind: type, root: Path, stem: str, log: logging.Logger) -> Any:
    from nbgrader.coursedir import CourseDirectory
    from sqlalchemy import event
    from sqlalchemy.engine import Engine
    from traitlets.config import Config

    # The gradebook is thrown away afterwards: nobody needs to wait for the disk.
    if not event.contains(Engine, "connect", _in_a_hurry):
        event.listen(Engine, "connect", _in_a_hurry)

    config = Config()
    config.CourseDirectory.root = str(root)
    config.CourseDirectory.assignment_id = stem
    config.CourseDirectory.student_id = STUDENT
    config.CourseDirectory.db_url = f"sqlite:///{root / 'gradebook.db'}"
    config.ClearSolutions.code_stub = {"python": STUB}
    return kind(coursedir=CourseDirectory(config=config, log=log), config=config, log=log)


def _in_a_hurry(connection: Any, _record: Any) -> None:
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute("PRAGMA journal_mode = MEMORY")


def prepare(chapters: dict[str, Chapter], root: Path) -> Course:
    """Makes nbgrader's assignments from the masters, and a copy of what students' code imports.

    Args:
        chapters: those to be graded, by number.
        root: a new folder.
    """
    from nbgrader.converters import GenerateAssignment

    library = root / "library"
    for name in ("utils", "checks", "clinic", "resources"):
        shutil.copytree(
            ROOT / name, library / name, ignore=shutil.ignore_patterns("__pycache__", "*.md")
        )
    course = Course(
        root, {}, {n: chapter.exercises.stem for n, chapter in chapters.items()}, library
    )
    log = _log(root / "masters.log")
    for number, chapter in chapters.items():
        name = chapter.exercises
        place = root / "source" / name.stem
        place.mkdir(parents=True)
        shutil.copy(chapter.master, place / name.name)
        _converter(GenerateAssignment, root, name.stem, log).start()
        made = root / "release" / name.stem / name.name
        course.notebooks[number] = json.loads(made.read_text(encoding="utf-8"))
    return course


def _log(path: Path) -> logging.Logger:
    path.parent.mkdir(parents=True, exist_ok=True)
    log = logging.Logger(path.stem, logging.INFO)
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(levelname)-7s %(message)s"))
    log.addHandler(handler)
    return log


def environment(library: Path) -> dict[str, str]:
    """Returns the variables of the environment in which students' code runs."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    return kept | {
        "PYTHONPATH": os.pathsep.join([str(library), str(library / "clinic")]),
        "PYTHONDONTWRITEBYTECODE": "1",
        "NBGRADER_EXECUTION": "autograde",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "USER": "student",
        "TERM": "dumb",
        # Apple's frameworks end a process that forks, unless they are told that this is meant.
        **({"OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"} if sys.platform == "darwin" else {}),
    }


def missing(
    course: Course, chapter: str, reason: str, file: str = "", state: str = "not handed in"
) -> Mark:
    """Returns the mark of a notebook that cannot be graded: 0 for each exercise."""
    exercises = [
        Exercise(t.id, t.title, 0.0, t.points, state if t.check else "open", "")
        for t in course.tasks(chapter)
    ]
    return Mark(chapter, file, exercises, reason)


def mark_student(
    course: Course,
    student: Student,
    chapters: list[str],
    address: str,
    limits: Limits,
    scratch: Path,
    log: Path,
) -> list[Mark]:
    """Grades what one student handed in; whatever goes wrong costs one notebook.

    Args:
        course: the assignments.
        student: what was handed in.
        chapters: those that count, in order.
        address: of the warm process.
        limits: for each notebook.
        scratch: a new folder, short enough for the name of a socket.
        log: the file that says what happened.
    """
    logger = _log(log)
    scratch.mkdir(parents=True)
    shutil.copy(course.root / "gradebook.db", scratch / "gradebook.db")
    marks = []
    for chapter in chapters:
        sent = student.chapters.get(chapter)
        if sent is None:
            marks.append(missing(course, chapter, "not handed in"))
            continue
        logger.info("chapter %s: %s", chapter, sent.label)
        if sent.notebook is None or sent.reason:
            why = "; ".join([sent.reason, *sent.remarks])
            marks.append(missing(course, chapter, why, sent.label, "not checked"))
            continue
        try:
            marks.append(_mark(course, chapter, sent, address, limits, scratch, logger))
        except Exception as error:
            logger.exception("grading failed")
            why = f"grading failed: {type(error).__name__}: {error}. Look at the log"
            marks.append(missing(course, chapter, why[:300], sent.label, "not checked"))
    return marks


def _mark(
    course: Course,
    chapter: str,
    sent: Sent,
    address: str,
    limits: Limits,
    scratch: Path,
    log: logging.Logger,
) -> Mark:
    from nbgrader.api import Gradebook
    from nbgrader.converters import Autograde
    from nbgrader.preprocessors import (
        CheckCellMetadata,
        ClearOutput,
        DeduplicateIds,
        OverwriteCells,
        OverwriteKernelspec,
        SaveAutoGrades,
    )

    stem, exercises = course.stems[chapter], course.notebooks[chapter]
    given = {source(cell).strip() for cell in exercises["cells"] if cell["cell_type"] == "code"}
    seen = suspicions(sent.notebook, given)
    restored = restore(sent.notebook, exercises)
    for remark in [*sent.remarks, *restored.remarks, *map(str, seen)]:
        log.warning("%s", remark)
    graded = {
        **restored.notebook,
        "metadata": {"kernelspec": KERNELSPEC, "language_info": LANGUAGE_INFO},
    }
    place = scratch / "submitted" / STUDENT / stem
    place.mkdir(parents=True)
    (place / f"{stem}.ipynb").write_text(json.dumps(graded), encoding="utf-8")

    folder = scratch / f"n{chapter}"
    folder.mkdir()
    run = Run(address, folder, environment(course.library), limits)
    converter = _converter(Autograde, scratch, stem, log)
    converter.sanitize_preprocessors = [
        ClearOutput,
        DeduplicateIds,
        OverwriteKernelspec,
        OverwriteCells,
        CheckCellMetadata,
    ]
    converter.autograde_preprocessors = [run, SaveAutoGrades, CheckCellMetadata]
    try:
        converter.start()
    finally:
        _tail(folder / "kernel.log", log)
        shutil.rmtree(folder, ignore_errors=True)
    log.info("ran for %.1f s", run.seconds)
    done = json.loads(
        (scratch / "autograded" / STUDENT / stem / f"{stem}.ipynb").read_text("utf-8")
    )
    with Gradebook(f"sqlite:///{scratch / 'gradebook.db'}") as gradebook:
        found = gradebook.find_submission_notebook(stem, stem, STUDENT)
        scores = {grade.cell.name: float(grade.score) for grade in found.grades}

    own = {place: exercise for exercise, places in restored.own.items() for place in places}
    by_check = {task.check: task.id for task in course.tasks(chapter)}
    checks = {n: p for p, c in enumerate(done["cells"]) if (n := grade_id(c)) in by_check}
    own |= {place: by_check[name] for name, place in checks.items()}
    mark = Mark(chapter, sent.label, [])
    said: list[str] = []
    for task in course.tasks(chapter):
        cells = [_shown(done["cells"][p], restored.numbers[p]) for p in restored.own[task.id]]
        sources = [cell["source"].strip() for cell in cells if cell["kind"] == "code"]
        exercise = Exercise(
            task.id,
            task.title,
            scores.get(task.check, 0.0) if task.check else 0.0,
            task.points,
            *_verdict(run, task),
            cells,
            any(text not in task.stubs for text in sources)
            or any(cell["kind"] != "code" for cell in cells),
        )
        troubles = [run.troubles[p] for p in restored.own[task.id] if p in run.troubles]
        if troubles:
            exercise.reason = f"Its cell: {'; '.join(troubles)}. {exercise.reason}".strip()
            said += [f"{task.id}: {trouble}" for trouble in troubles]
        slow = run.troubles.get(checks[task.check]) if task.check in checks else None
        if slow and not run.stopped:
            exercise.reason = f"The check was stopped: {slow}."
            said.append(f"{task.id}: the check was stopped: {slow}")
        if task.check and (replaced := run.verdicts.get(task.check, {}).get("replaced")):
            exercise.state = "not right"
            exercise.reason = f"The check found replaced: {', '.join(replaced[:3])}."
            said.append(f"{task.id}: replaced {', '.join(replaced[:3])}")
        mark.exercises.append(exercise)
    if run.stopped:
        where = own.get(run.stopped_at) if run.stopped_at is not None else None
        at = f"in {where}" if where else "before its end"
        said.append(f"stopped {at}: {run.stopped}")
    deceits = [str(s) for s in seen if s.deceit]
    if deceits:
        mark.deceit = "; ".join(deceits)
        said.insert(0, f"0 points, because {mark.deceit}")
    told = [str(s) for s in seen if not s.deceit]
    said += [*restored.remarks, *sent.remarks, *told]
    mark.reason = "; ".join(dict.fromkeys(said))
    return mark


def _verdict(run: Run, task: Task) -> tuple[str, str]:
    if task.check is None:
        return "open", ""
    found = run.verdicts.get(task.check)
    if found:
        state, reason = str(found["state"]), str(found["reason"])
        if state == "not yet":  # what to do next is for who sits before the notebook
            reason = reason.partition(". ")[0] + "."
        return state, reason
    return "not checked", f"The check was not made: {run.stopped or 'it was stopped'}."


def _shown(cell: dict[str, Any], number: int | None) -> dict[str, Any]:
    """Takes from a cell what a page shows of it."""
    text, pictures = "", []
    for output in cell.get("outputs", []):
        data = output.get("data", {})
        text += "".join(output.get("text", ""))
        if "image/png" in data:
            pictures.append("".join(data["image/png"]).replace("\n", ""))
        else:
            text += "".join(data.get("text/plain", "")) + ("\n" if data else "")
        if output["output_type"] == "error":
            text += f"{output['ename']}: {output['evalue']}\n"
    if len(text) > TEXT_KEPT:
        text = text[:TEXT_KEPT] + "\n... (cut here)"
    return {
        "number": number,
        "kind": cell["cell_type"],
        "source": source(cell),
        "text": text,
        "pictures": pictures,
        "id": grade_id(cell),
    }


def _tail(path: Path, log: logging.Logger) -> None:
    """Puts the end of what a kernel wrote into the log."""
    if path.exists() and (size := path.stat().st_size):
        with path.open("rb") as file:
            file.seek(max(0, size - 2000))
            log.info("the process wrote: %s", file.read().decode("utf-8", "replace"))
