"""Grades what one student handed in, notebook by notebook.

What nbgrader says of the masters (`GenerateAssignment`) and of a cell that has run (its points)
counts. Its own `Autograde` is not called: what it puts back restore.py has put back, its database
would be thrown away, and both together took as long as the students' code. Every student is graded
in a process of its own.
"""

from __future__ import annotations

import ast
import compileall
import errno
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from py_compile import PycInvalidationMode
from typing import Any

from course.cards import STUB, grade_id
from course.handing_out import exercises
from course.notebook import Notebook, source
from course.registry import ROOT, Chapter
from grading.handed_in import Sent, Student
from grading.restore import Original, Restored, originals_of, restore
from grading.running import Limits, Run
from grading.sandbox import Sandbox
from grading.suspicion import suspicions

# What a student's code needs of the instructor's environment; the rest may be private.
KEPT_VARIABLES = ("LANG", "LC_ALL", "LC_CTYPE", "TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")
KEPT_VARIABLES += ("COURSE_LANGUAGE",)
# The programs that run behind the wall.
INSIDE = ("__init__.py", "warm.py", "frames.py", "own_time.py", "values.py", "far.py")
INSIDE += ("answering.py",)
OF_DIGITS = ("sklearn.datasets", "sklearn.model_selection")  # load_digits() imports them, slowly
TEXT_KEPT = 4000
ROOM_NEEDED = 20_000_000  # bytes of the disk, without which no failure is a student's


@dataclass
class ExerciseMark:
    """What one student did in one exercise; plain data that goes through a file.

    Args:
        id, title: of the exercise.
        points, possible: 0 and 0 for an open exercise.
        state: "right", "not right", "not yet", "not checked", "open" or "not handed in".
        reason: one or two sentences.
        topic: an id, the same for all students of whom the same is said; "" where nothing is wrong.
        words: the topic as a sentence, without what differs from student to student.
        named: whether the words name a mistake, not only that something is wrong.
        cells: what the student wrote: number, kind, source, text and pictures of each cell.
        written: whether anything stands there beside the stub.
        by_hand: whether the instructor gave the points, or read the answer; see by_hand.py.
        comment: of the instructor, for the student.
        note: for the instructor: the answer has changed since it was read.
    """

    id: str
    title: str
    points: float
    possible: float
    state: str
    reason: str = ""
    topic: str = ""
    words: str = ""
    named: bool = False
    cells: list[dict[str, Any]] = field(default_factory=list)
    written: bool = False
    by_hand: bool = False
    comment: str = ""
    note: str = ""


@dataclass
class Mark:
    """What one student reached in one chapter; plain data that goes through a file.

    Args:
        chapter: two digits.
        file: what was graded, "" if nothing was.
        exercises: in the order of the notebook.
        reason: why it is less than it could be, or what was put right; "" if nothing.
        remarks: for the instructor alone; they cost nothing.
        outside: cells that the student wrote outside of the exercises, as `ExerciseMark.cells`.
        days_late: begun days after the date, 0 in time or without a date.
        minus: points that lateness took.
    """

    chapter: str
    file: str
    exercises: list[ExerciseMark]
    reason: str = ""
    remarks: str = ""
    outside: list[dict[str, Any]] = field(default_factory=list)
    days_late: int = 0
    minus: float = 0.0

    @property
    def earned(self) -> float:
        return sum(exercise.points for exercise in self.exercises)

    @property
    def points(self) -> float:
        return self.earned - self.minus

    @property
    def possible(self) -> float:
        return sum(exercise.possible for exercise in self.exercises)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> Mark:
        """Makes a mark of what `dataclasses.asdict` made of it."""
        return cls(**{**plain, "exercises": [ExerciseMark(**e) for e in plain["exercises"]]})


@dataclass
class Assignments:
    """What was handed out, ready to be graded.

    Args:
        root: nbgrader's course directory, temporary.
        notebooks: what was handed out, with checks and metadata, by chapter.
        stems: the name of each notebook without ending, by chapter.
        library: a copy of `utils` and its data, from which the solutions cannot be found.
        grader: a copy of the programs that run behind the wall.
    """

    root: Path
    notebooks: dict[str, Notebook]
    stems: dict[str, str]
    library: Path
    grader: Path

    def originals(self, chapter: str) -> list[Original]:
        return originals_of(self.notebooks[chapter])


def prepare(chapters: dict[str, Chapter], root: Path) -> Assignments:
    """Makes nbgrader's assignments from the masters, and a copy of what students' code imports.

    Args:
        chapters: those to be graded, by number.
        root: a new folder.
    """
    library = root / "library"
    for name in ("utils", "checks", "clinic", "resources"):
        shutil.copytree(
            ROOT / name, library / name, ignore=shutil.ignore_patterns("__pycache__", "*.md")
        )
    # Of the checks only what watches calls: no reference, no case, no mistake.
    for path in (library / "checks").glob("chapter_*.py"):
        path.unlink()
    shutil.copy(Path(__file__).with_name("no_checks.py"), library / "checks" / "__init__.py")
    _copy_fonts(library / "fonts")
    inside = root / "grader" / "grading"
    inside.mkdir(parents=True)
    for name in INSIDE:
        shutil.copy(Path(__file__).with_name(name), inside)
    stems = {number: chapter.exercises.stem for number, chapter in chapters.items()}
    made = Assignments(root, {}, stems, library, root / "grader")
    for number, chapter in chapters.items():
        _generate(chapter, root)
        made.notebooks[number] = exercises(chapter)
    names = sorted({name for notebook in made.notebooks.values() for name in imported(notebook)})
    late = OF_DIGITS if "utils.data.load_digits" in names else ()
    (library / "imports.txt").write_text("\n".join([*names, *late]))
    # Behind the wall nothing can be written: without this every world compiles all of it again.
    mode = PycInvalidationMode.UNCHECKED_HASH
    for folder in (library, root / "grader"):
        compileall.compile_dir(folder, quiet=2, stripdir=root, invalidation_mode=mode)
    return made


def _generate(chapter: Chapter, root: Path) -> None:
    """Has nbgrader make an assignment of a master, which fails where the master breaks a rule."""
    from nbgrader.converters import GenerateAssignment
    from nbgrader.coursedir import CourseDirectory
    from traitlets.config import Config

    stem, log = chapter.exercises.stem, _log(root / "masters.log")
    place = root / "source" / stem
    place.mkdir(parents=True)
    shutil.copy(chapter.master, place / chapter.exercises.name)
    config = Config()
    config.CourseDirectory.root = str(root)
    config.CourseDirectory.assignment_id = stem
    config.ClearSolutions.code_stub = {"python": STUB}
    config.GenerateAssignment.no_database = True
    folder = CourseDirectory(config=config, log=log)
    converter = GenerateAssignment(coursedir=folder, config=config, log=log)
    kinds = converter.preprocessors
    converter.preprocessors = [kind for kind in kinds if kind.__name__ != "SaveCells"]
    converter.start()


def imported(notebook: Notebook) -> Iterator[str]:
    """Gives what the cells of a notebook import: modules, and names that may be modules."""
    texts = (source(cell) for cell in notebook["cells"] if cell["cell_type"] == "code")
    plain = (re.sub(r"(?m)^[%!].*", "", text) for text in texts)
    for node in (node for text in plain for node in ast.walk(ast.parse(text))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _copy_fonts(folder: Path) -> None:
    """Copies matplotlib's list of fonts, which takes seconds to make."""
    import matplotlib.font_manager  # makes the list, if there is none

    folder.mkdir()
    for path in Path(matplotlib.get_cachedir()).glob("fontlist-*.json"):
        shutil.copy(path, folder)


def _log(path: Path) -> logging.Logger:
    path.parent.mkdir(parents=True, exist_ok=True)
    log = logging.Logger(path.stem, logging.INFO)
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(levelname)-7s %(message)s"))
    log.addHandler(handler)
    return log


def environment() -> dict[str, str]:
    """Returns the variables of the environment in which students' code runs."""
    kept = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    programs = [str(Path(sys.executable).parent), "/usr/local/bin", "/usr/bin", "/bin"]
    return kept | {
        "PATH": os.pathsep.join(programs),
        "PYTHONDONTWRITEBYTECODE": "1",
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
    assignments: Assignments,
    chapter: str,
    reason: str,
    file: str = "",
    state: str = "not handed in",
) -> Mark:
    """Returns the mark of a notebook that cannot be graded: 0 for each exercise."""
    zeros = [
        ExerciseMark(o.id, o.title, 0.0, o.points, state if o.check else "open")
        for o in assignments.originals(chapter)
    ]
    return Mark(chapter, file, zeros, reason)


def not_handed_in(assignments: Assignments, chapter: str, student: Student) -> Mark:
    """Returns the mark of who handed in no notebook of a chapter, with what came in its place."""
    why = "; ".join(["not handed in", *student.left_alone(chapter)])
    return missing(assignments, chapter, why)


def mark_student(
    assignments: Assignments,
    student: Student,
    chapters: list[str],
    sandbox: Sandbox,
    limits: Limits,
    salt: str,
    scratch: Path,
    log: Path,
) -> list[Mark]:
    """Grades what one student handed in; whatever goes wrong costs one notebook.

    Args:
        assignments: what was handed out.
        student: what was handed in.
        chapters: those that count, in order.
        sandbox: the world behind the wall in which the notebooks run.
        limits: for each notebook.
        salt: makes cases that nobody has seen.
        scratch: a folder on the disk whose room is looked at when something fails.
        log: the file that says what happened.
    """
    logger = _log(log)
    marks = []
    for chapter in chapters:
        sent = student.chapters.get(chapter)
        if sent is None:
            marks.append(not_handed_in(assignments, chapter, student))
            continue
        logger.info("chapter %s: %s", chapter, sent.label)
        if sent.notebook is None or sent.reason:
            why = "; ".join([sent.reason, *sent.remarks])
            marks.append(missing(assignments, chapter, why, sent.label, "not checked"))
            continue
        try:
            marks.append(_mark(assignments, chapter, sent, Run(sandbox, limits, salt), logger))
        except Exception as error:
            logger.exception("grading failed")
            if shutil.disk_usage(scratch).free < ROOM_NEEDED:
                raise OSError(errno.ENOSPC, "the disk is full") from None
            why = f"grading failed: {type(error).__name__}: {error}. Look at the log"
            marks.append(missing(assignments, chapter, why[:300], sent.label, "not checked"))
    return marks


def _mark(
    assignments: Assignments,
    chapter: str,
    sent: Sent,
    run: Run,
    log: logging.Logger,
) -> Mark:
    blank = assignments.notebooks[chapter]
    given = {source(cell).strip() for cell in blank["cells"] if cell["cell_type"] == "code"}
    seen = [str(suspicion) for suspicion in suspicions(sent.notebook, given)]
    restored = restore(sent.notebook, blank)
    run.own = {*restored.outside, *(place for own in restored.own.values() for place in own)}
    for remark in [*sent.remarks, *restored.remarks, *seen]:
        log.warning("%s", remark)
    cells, scores = _autograde(restored.notebook, run)
    if run.log:
        log.info("the process wrote: %s", run.log)
    log.info("ran for %.1f own seconds", run.seconds)
    graded = Graded(cells, scores, run, restored)
    findings = [graded.finding(original) for original in assignments.originals(chapter)]
    said = [line for finding in findings for line in finding.said]
    said += graded.stop(assignments.originals(chapter))
    said += [*restored.remarks, *sent.remarks]
    heard = [line for finding in findings for line in finding.heard]
    return Mark(
        chapter,
        sent.label,
        [finding.mark for finding in findings],
        reason="; ".join(dict.fromkeys(said)),
        remarks="; ".join([*heard, *seen]),
        outside=[graded.shown(place) for place in restored.outside],
    )


def _autograde(notebook: Notebook, run: Run) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Runs a notebook; returns its cells, and the points of each check by nbgrader's rule."""
    from nbformat import from_dict
    from nbgrader.utils import determine_grade, is_grade

    nb = from_dict(notebook)
    run(nb)
    scores = {grade_id(cell): determine_grade(cell)[0] for cell in nb.cells if is_grade(cell)}
    return nb.cells, {name: float(score or 0) for name, score in scores.items()}


@dataclass
class Finding:
    """What was found in one exercise.

    Args:
        mark: what the student gets.
        said: lines for the table: what cost points beside the verdict of the check.
        heard: lines for the table: what was seen of how the answer works; it cost nothing.
    """

    mark: ExerciseMark
    said: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)

    def say(self, what: str) -> None:
        self.said.append(f"{self.mark.id}: {what}")


@dataclass
class Graded:
    """A notebook after its run.

    Args:
        cells: with their outputs.
        scores: points by grade_id of the check.
        run: what happened.
        restored: which cell is what.
    """

    cells: list[dict[str, Any]]
    scores: dict[str, float]
    run: Run
    restored: Restored

    def finding(self, original: Original) -> Finding:
        """Puts together what was found in an exercise."""
        places = self.restored.own[original.id]
        cells = [self.shown(place) for place in places]
        mark = ExerciseMark(
            original.id,
            original.title,
            points=self.scores.get(original.check, 0.0) if original.check else 0.0,
            possible=original.points,
            state="open",
            cells=cells,
            written=any(
                c["kind"] != "code" or c["source"].strip() not in original.stubs for c in cells
            ),
        )
        finding = Finding(mark)
        if original.check:
            self._verdict(mark, self.run.verdicts.get(original.check))
        troubles = [self.run.troubles[place] for place in places if place in self.run.troubles]
        if troubles:
            mark.reason = f"Its cell: {'; '.join(troubles)}. {mark.reason}".strip()
        for trouble in troubles:
            finding.say(trouble)
        if original.check:
            self._of_check(finding, original.check)
        return finding

    def _verdict(self, mark: ExerciseMark, found: dict[str, Any] | None) -> None:
        """Writes what the check found into the mark."""
        if not found:
            mark.state = "not checked"
            mark.reason = f"The check was not made: {self.run.stopped or 'it was stopped'}."
            return
        mark.state, mark.reason = str(found["state"]), str(found["text"])
        if mark.state == "not right":
            mark.topic, mark.words = str(found["topic"]), str(found["words"])
            mark.named = bool(found["named"])
        elif mark.state == "not yet":  # what to do next is for who sits before the notebook
            mark.reason = f"{found['words']}."

    def _of_check(self, finding: Finding, check: str) -> None:
        """Adds what happened while the check ran, and what it noticed."""
        mark = finding.mark
        place = next((p for p, cell in enumerate(self.cells) if grade_id(cell) == check), None)
        slow = self.run.troubles.get(place)
        if slow and not self.run.stopped:
            mark.reason = f"The check was stopped: {slow}."
            finding.say(f"the check was stopped: {slow}")
        for heard in self.run.verdicts.get(check, {}).get("heard", []):
            finding.heard.append(f"{mark.id}, it cost nothing: {heard}")

    def stop(self, originals: list[Original]) -> Iterator[str]:
        """Says where the notebook was stopped, if it was."""
        if not self.run.stopped:
            return
        place = self.run.stopped_at
        by_check = {original.check: original.id for original in originals}
        where = next((e for e, places in self.restored.own.items() if place in places), None)
        if where is None and place is not None:
            where = by_check.get(grade_id(self.cells[place]))
        yield f"stopped {f'in {where}' if where else 'before its end'}: {self.run.stopped}"

    def shown(self, place: int) -> dict[str, Any]:
        """Takes from a cell what a page shows of it."""
        return _shown(self.cells[place], self.restored.numbers[place])


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
