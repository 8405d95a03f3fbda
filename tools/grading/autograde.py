"""Grade the submissions of one student, notebook by notebook.

The rules are nbgrader's: its preprocessors make the assignments (tools/course/make_exercises.py),
and `determine_grade` gives the points of a cell that has run. Its `Autograde` is not used: it needs
a database, overwrite_cells.py restores the checks, and both took as long as the students' code.
"""

from __future__ import annotations

import errno
import logging
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tools.course.cards import grade_id
from tools.course.notebook import Notebook, source
from tools.grading.assignments import Assignments
from tools.grading.collect import Student, Submission
from tools.grading.grades import (
    NOT_CHECKED,
    NOT_RIGHT,
    NOT_SUBMITTED,
    NOT_YET,
    OPEN,
    ChapterGrade,
    CheckResult,
    ExerciseGrade,
)
from tools.grading.overwrite_cells import (
    OriginalExercise,
    OverwrittenNotebook,
    overwrite_cells,
)
from tools.grading.run_notebook import Limits, Run
from tools.grading.sandbox_process import SandboxProcess
from tools.grading.suspicion import suspicions

TEXT_KEPT = 4000  # characters of output that a page shows of a cell
DISK_NEEDED = 20_000_000  # free bytes, below which no failure is the student's


@dataclass(frozen=True)
class Autograder:
    """Grade students, one after the other.

    Args:
        assignments: the released notebooks.
        chapters: the chapters to grade, in order.
        limits: of each notebook.
        salt: seed for cases that no student has seen.
    """

    assignments: Assignments
    chapters: list[str]
    limits: Limits
    salt: str = ""

    def grade(
        self, student: Student, sandbox: SandboxProcess, scratch: Path, log: Path
    ) -> list[ChapterGrade]:
        """Grade all chapters of a student; a failure costs one notebook.

        Args:
            student: the submissions.
            sandbox: where the notebooks run.
            scratch: a folder on the disk that may be full when something fails.
            log: a file for what happens.

        Raises:
            OSError: the disk is full.
        """
        logger = _log_to(log)
        return [
            self._chapter(student, chapter, sandbox, scratch, logger) for chapter in self.chapters
        ]

    def failed(self, student: Student, reason: str) -> list[ChapterGrade]:
        """Return the grades of a student whose grading failed as a whole."""
        return [
            self._zero(chapter, reason, submission.label, NOT_CHECKED)
            if (submission := student.chapters.get(chapter))
            else self._not_submitted(student, chapter)
            for chapter in self.chapters
        ]

    def _chapter(
        self,
        student: Student,
        chapter: str,
        sandbox: SandboxProcess,
        scratch: Path,
        log: logging.Logger,
    ) -> ChapterGrade:
        submission = student.chapters.get(chapter)
        if submission is None:
            return self._not_submitted(student, chapter)
        log.info("chapter %s: %s", chapter, submission.label)
        if submission.notebook is None or submission.reason:
            reason = "; ".join([submission.reason, *submission.remarks])
            return self._zero(chapter, reason, submission.label, NOT_CHECKED)
        try:
            return self._run(chapter, submission, Run(sandbox, self.limits, self.salt), log)
        except Exception as error:
            log.exception("grading failed")
            if shutil.disk_usage(scratch).free < DISK_NEEDED:
                raise OSError(errno.ENOSPC, "the disk is full") from None
            reason = f"grading failed: {type(error).__name__}: {error}. See the log"
            return self._zero(chapter, reason[:300], submission.label, NOT_CHECKED)

    def _not_submitted(self, student: Student, chapter: str) -> ChapterGrade:
        return self._zero(chapter, "; ".join([NOT_SUBMITTED, *student.ignored_for(chapter)]))

    def _zero(
        self, chapter: str, reason: str, file: str = "", state: str = NOT_SUBMITTED
    ) -> ChapterGrade:
        """Return 0 points for each exercise of a chapter."""
        zeros = [
            ExerciseGrade(o.id, o.title, 0.0, o.points, CheckResult(state if o.check else OPEN))
            for o in self.assignments.originals(chapter)
        ]
        return ChapterGrade(chapter, file, zeros, reason)

    def _run(
        self, chapter: str, submission: Submission, run: Run, log: logging.Logger
    ) -> ChapterGrade:
        released = self.assignments.notebooks[chapter]
        given = {source(cell).strip() for cell in released["cells"] if cell["cell_type"] == "code"}
        suspicious = [str(suspicion) for suspicion in suspicions(submission.notebook, given)]
        overwritten = overwrite_cells(submission.notebook, released)
        own = (index for indices in overwritten.own.values() for index in indices)
        run.own = {*overwritten.outside, *own}
        for remark in [*submission.remarks, *overwritten.remarks, *suspicious]:
            log.warning("%s", remark)
        cells, points = _autograde(overwritten.notebook, run)
        if run.log:
            log.info("the kernel wrote: %s", run.log)
        log.info("ran for %.1f charged seconds", run.seconds)
        notebook = RunNotebook(cells, points, run, overwritten)
        originals = self.assignments.originals(chapter)
        findings = [notebook.finding(original) for original in originals]
        reasons = [line for finding in findings for line in finding.reasons]
        reasons += [*notebook.stop(originals), *overwritten.remarks, *submission.remarks]
        remarks = [line for finding in findings for line in finding.remarks]
        return ChapterGrade(
            chapter,
            submission.label,
            [finding.grade for finding in findings],
            reason="; ".join(dict.fromkeys(reasons)),
            remarks="; ".join([*remarks, *suspicious]),
            outside=[notebook.shown(index) for index in overwritten.outside],
        )


def _log_to(path: Path) -> logging.Logger:
    """Return a logger that writes to a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    log = logging.Logger(path.stem, logging.INFO)
    handler = logging.FileHandler(path, encoding="utf-8", errors="backslashreplace")
    handler.setFormatter(logging.Formatter("%(levelname)-7s %(message)s"))
    log.addHandler(handler)
    return log


def _autograde(notebook: Notebook, run: Run) -> tuple[list[dict[str, Any]], dict[str, float]]:
    """Run a notebook; return its cells, and the points of each check by nbgrader's rule."""
    from nbformat import from_dict
    from nbgrader.utils import determine_grade, is_grade

    nb = from_dict(notebook)
    run(nb)
    points = {grade_id(cell): determine_grade(cell)[0] for cell in nb.cells if is_grade(cell)}
    return nb.cells, {name: float(number or 0) for name, number in points.items()}


@dataclass
class Finding:
    """The grade of one exercise with lines for the table.

    Args:
        grade: of the exercise.
        reasons: for lost points, apart from the verdict of the check.
        remarks: for the instructor; they cost no points.
    """

    grade: ExerciseGrade
    reasons: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


@dataclass
class RunNotebook:
    """A notebook after its run.

    Args:
        cells: with their outputs.
        points: by grade_id of the check.
        run: results and troubles.
        overwritten: the role of each cell.
    """

    cells: list[dict[str, Any]]
    points: dict[str, float]
    run: Run
    overwritten: OverwrittenNotebook

    def finding(self, original: OriginalExercise) -> Finding:
        """Return the grade of an exercise."""
        indices = self.overwritten.own[original.id]
        cells = [self.shown(index) for index in indices]
        written = any(
            c["kind"] != "code" or c["source"].strip() not in original.stubs for c in cells
        )
        troubles = [self.run.troubles[index] for index in indices if index in self.run.troubles]
        result, slow = self._result(original.check), self._slow_check(original.check)
        if troubles:
            reason = f"Its cell: {'; '.join(troubles)}. {result.reason}".strip()
            result = replace(result, reason=reason)
        if slow:
            result = replace(result, reason=f"The check was stopped: {slow}.")
            troubles.append(f"the check was stopped: {slow}")
        points = self.points.get(original.check, 0.0) if original.check else 0.0
        return Finding(
            ExerciseGrade(
                original.id, original.title, points, original.points, result, cells, written
            ),
            [f"{original.id}: {trouble}" for trouble in troubles],
            [f"{original.id}, it cost nothing: {remark}" for remark in result.remarks],
        )

    def _result(self, check: str | None) -> CheckResult:
        """Return what a check reports, as far as a page shows it."""
        if check is None:
            return CheckResult(OPEN)
        result = self.run.results.get(check)
        if result is None:
            why = self.run.stopped or "it was stopped"
            return CheckResult(NOT_CHECKED, f"The check did not run: {why}.")
        if result.state == NOT_RIGHT:
            return result
        # The advice of "not yet" is for a student at the notebook.
        reason = f"{result.words}." if result.state == NOT_YET else result.reason
        return CheckResult(result.state, reason, remarks=result.remarks)

    def _slow_check(self, check: str | None) -> str | None:
        """Return why a check was interrupted; None if it was not."""
        index = next((p for p, cell in enumerate(self.cells) if grade_id(cell) == check), None)
        return None if self.run.stopped or not check else self.run.troubles.get(index)

    def stop(self, originals: list[OriginalExercise]) -> Iterator[str]:
        """Yield where the notebook was stopped, if it was."""
        if not self.run.stopped:
            return
        index = self.run.stopped_at
        by_check = {original.check: original.id for original in originals}
        where = next((e for e, indices in self.overwritten.own.items() if index in indices), None)
        if where is None and index is not None:
            where = by_check.get(grade_id(self.cells[index]))
        yield f"stopped {f'in {where}' if where else 'before its end'}: {self.run.stopped}"

    def shown(self, index: int) -> dict[str, Any]:
        """Return what a page shows of a cell."""
        cell, text, pictures = self.cells[index], "", []
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
            "number": self.overwritten.numbers[index],
            "kind": cell["cell_type"],
            "source": source(cell),
            "text": text,
            "pictures": pictures,
            "id": grade_id(cell),
        }
