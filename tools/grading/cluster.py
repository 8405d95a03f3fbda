"""Grade many students on the machines of a Dask cluster, each in the sandbox of its own machine.

A worker gets one student at a time, and only if it has the same course, the same packages and the
sandbox of the run. Its results are plain data (worker.py); checkpoints, tables and pages are
written here, as without a cluster. A student whose worker ends or fails goes to another one.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import time
import warnings
from collections import Counter
from concurrent.futures import CancelledError
from dataclasses import dataclass
from uuid import uuid4

from distributed import Client, Future, wait

from tools.commands import Refusal
from tools.grading import worker
from tools.grading.autograde import Autograder
from tools.grading.grades import ChapterGrade
from tools.grading.pool import Graders, Job
from tools.grading.resume import Checkpoint
from tools.grading.sandbox import SANDBOXES, Sandbox

ANSWER = 60.0  # seconds for an answer of the scheduler, or of a worker about what it has
PATIENCE = 60.0  # seconds without any fit worker, after which a run ends
MOMENT = 0.5  # seconds between looks at the workers
TRIES = 3  # for a student whose worker ended or failed
SILENT = "it did not answer"
FAILURES = 2  # of a worker, one after the other: then it gets no more students


@dataclass
class Worker:
    """One worker of the cluster.

    Args:
        address: of the worker.
        question: what its machine has; None when it has answered.
        asked: when the question was asked, in seconds of the clock.
        course: the answer, see `worker.same_everywhere`.
        problems: why sandboxes do not work there, "" for those that do.
        lacks: why it gets no students, "" if it gets some.
        failures: one after the other.
    """

    address: str
    question: Future | None
    asked: float
    course: dict[str, str]
    problems: dict[str, str]
    lacks: str = ""
    failures: int = 0


class Workers:
    """The workers of a cluster, and which of them may grade.

    Args:
        address: of the scheduler.
        chapters: the chapters to grade.

    Raises:
        Refusal: the scheduler does not answer.
    """

    def __init__(self, address: str, chapters: list[str]):
        self.address, self.chapters = address, chapters
        self.known: dict[str, Worker] = {}
        self.sandboxes: list[str] = []  # a worker needs one of them
        self.course = worker.same_everywhere(chapters)
        self._fit = time.monotonic()  # when a worker was fit, or could be
        _be_quiet()
        self.client = _connect(address)

    def choose(self, wanted: str) -> Sandbox:
        """Return the sandbox of the run: the one that works for most workers.

        Args:
            wanted: the name of a sandbox; "" for any that isolates.

        Raises:
            Refusal: no worker can grade.
        """
        end = time.monotonic() + ANSWER
        while not self.known or any(one.question for one in self.known.values()):
            self.look()
            if time.monotonic() > end:
                break
            time.sleep(MOMENT / 5)
        works = Counter(
            name
            for one in self.known.values()
            for name, problem in one.problems.items()
            if not problem and not one.lacks
        )
        named = [one for one in SANDBOXES if one.name == wanted or (one.isolates and not wanted)]
        chosen = max(named, key=lambda one: works[one.name])
        self.sandboxes = [one.name for one in ([chosen] if works[chosen.name] else named)]
        for one in self.known.values():
            self._judge(one)
        if not any(self._is_fit(one) for one in self.known.values()):
            raise self._none_fit()
        return chosen

    def look(self) -> None:
        """Find new workers, ask what they have, and forget those that have ended.

        Raises:
            Refusal: the scheduler does not answer, or no worker was fit for a while.
        """
        try:
            if self.client.status != "running":
                raise OSError(self.client.status)
            identity = self.client.scheduler.identity
            found = self.client.sync(identity, n_workers=-1, callback_timeout=ANSWER)["workers"]
        except (OSError, RuntimeError, CancelledError):
            raise Refusal(
                f"SCHEDULER must answer during the whole run, got no answer from {self.address}",
                status=1,
            ) from None
        for address in self.known.keys() - found:
            del self.known[address]
        for address in found.keys() - self.known:
            question = self.submit(address, worker.describe, self.chapters)
            self.known[address] = Worker(address, question, time.monotonic(), {}, {})
        for one in self.known.values():
            self._hear(one)
        now = time.monotonic()
        if any(
            self._is_fit(w) or (w.question and now < w.asked + ANSWER) for w in self.known.values()
        ):
            self._fit = now
        elif now > self._fit + PATIENCE:
            raise self._none_fit()

    def submit(self, address: str, function: object, *arguments: object) -> Future:
        """Have one worker call a function."""
        options = {"workers": [address], "allow_other_workers": False, "pure": False}
        return self.client.submit(function, *arguments, **options)

    def free(self, busy: set[str]) -> list[Worker]:
        """Return the workers that may grade a student now."""
        return [w for a, w in self.known.items() if a not in busy and self._is_fit(w)]

    def refuse(self, one: Worker, why: str) -> None:
        """Give a worker no more students."""
        one.lacks = why
        print(f"worker {one.address} gets no students: {why}", flush=True)

    def note(self, one: Worker, failure: str) -> None:
        """Note whether a worker failed with a student; refuse it if that happens again and again.

        Args:
            one: the worker.
            failure: what went wrong, "" if nothing.
        """
        one.failures = one.failures + 1 if failure else 0
        if one.failures == FAILURES or failure == SILENT:
            self.refuse(one, failure)

    def _hear(self, one: Worker) -> None:
        """Take in what a worker says about its machine."""
        if one.question is None or one.question.status == "pending":
            return
        question, one.question = one.question, None
        try:
            one.course, one.problems = question.result(timeout=ANSWER)
        except Exception as error:  # anything that another course raises
            self.refuse(one, f"it cannot say what it has ({type(error).__name__}: {error})")
            return
        here, there = self.course, one.course
        wrong = [name for name in here if here[name] != there.get(name)]
        if wrong:
            reasons = (f"{n} must be {here[n]}, got {there.get(n, 'none')}" for n in wrong)
            self.refuse(one, "; ".join(reasons))
        elif self.sandboxes:
            self._judge(one)

    def _judge(self, one: Worker) -> None:
        """Refuse a worker without the sandbox of the run."""
        problems = [one.problems.get(name) for name in self.sandboxes]
        if not one.lacks and all(problems):
            self.refuse(one, "; ".join(problems))

    def _is_fit(self, one: Worker) -> bool:
        return one.question is None and not one.lacks

    def _none_fit(self) -> Refusal:
        lacks = [f"{w.address}: {w.lacks or 'no answer yet'}" for w in self.known.values()]
        return Refusal(
            "SCHEDULER must have a worker with this course and a sandbox, got "
            f"{'; '.join(lacks) or 'no worker'}. Start one: dask worker {self.address}",
            status=1,
        )


class Cluster(Graders):
    """Grade students on the workers of a cluster.

    Args:
        grader: knows chapters, limits and salt.
        checkpoint: keeps the grades of finished students.
        sandbox: isolates the student's code.
        workers: of the cluster.
    """

    def __init__(
        self, grader: Autograder, checkpoint: Checkpoint, sandbox: Sandbox, workers: Workers
    ):
        super().__init__(grader, checkpoint)
        self.workers = workers
        variables = {name: os.environ[name] for name in worker.SPOKEN if name in os.environ}
        self._order = worker.Order(
            uuid4().hex,
            grader.chapters,
            grader.limits,
            grader.salt,
            sandbox.name,
            variables,
        )
        self._futures: dict[str, Future] = {}  # by address, as self.running

    def step(self, waiting: list[Job]) -> list[Job]:
        try:
            self.workers.look()
        except Refusal as refusal:
            done = f"{len(self.grades)} of {self._count} students are done"
            text = f"{refusal}. {done}. To continue, run it again, with or without SCHEDULER"
            raise Refusal(text, refusal.status) from None
        for one in self.workers.free(set(self.running)):
            if waiting:
                self._start(waiting.pop(0), one)
        if not self._futures:
            time.sleep(MOMENT)
        # Cancelled futures are those of a lost scheduler: the next look refuses it.
        with contextlib.suppress(TimeoutError, CancelledError):
            wait(list(self._futures.values()), MOMENT, "FIRST_COMPLETED")
        return [*waiting, *self._finish()]

    def stop(self) -> None:
        """End the processes of this run on all workers."""
        client = self.workers.client
        with contextlib.suppress(OSError, RuntimeError, CancelledError):
            client.cancel(list(self._futures.values()))
            known, timeout = self.workers.known, {"callback_timeout": ANSWER / 6}
            places = [a for a, one in known.items() if one.course == self.workers.course]
            client.run(worker.end, self._order.run, workers=places, on_error="ignore", **timeout)
            client.close(timeout=ANSWER / 6)

    def _start(self, job: Job, one: Worker) -> None:
        job.tries += 1
        job.deadline = time.monotonic() + 3 * self.seconds  # the worker's own try comes first
        order, student = self._order, job.student
        self._futures[one.address] = self.workers.submit(
            one.address, worker.grade, order, student, job.page
        )
        self.running[one.address] = job

    def _finish(self) -> list[Job]:
        """Take in the grades that have arrived; return the jobs to try again."""
        again = []
        for address, job in list(self.running.items()):
            one, future = self.workers.known.get(address), self._futures[address]
            if one and future.status == "pending" and time.monotonic() < job.deadline:
                continue
            del self.running[address], self._futures[address]
            failure = self._take_in(job, future) if one else "it ended"
            future.cancel()
            if failure:
                again += self._failed(job, address, failure)
            if one:
                self.workers.note(one, failure)
        return again

    def _take_in(self, job: Job, future: Future) -> str:
        """Take in the grades of a student; return what went wrong, "" if nothing."""
        try:
            graded = future.result(timeout=0 if future.status == "pending" else ANSWER)
        except TimeoutError:
            return SILENT
        except Exception as error:  # anything that the worker raised
            return f"{error}" or type(error).__name__
        job.log.write_bytes(graded.log)
        grades = [ChapterGrade.from_plain(grade) for grade in graded.grades]
        if graded.is_final:
            self.checkpoint.write(job.path, grades)
        self.keep(job, grades)
        return ""

    def _failed(self, job: Job, address: str, failure: str) -> list[Job]:
        """Return a student whose worker failed, to try again; or give the student up."""
        print(f"worker {address} failed with {job.student.name}: {failure}", flush=True)
        if job.tries < TRIES:
            return [job]
        reason = f"grading failed on {TRIES} workers: {failure}. Grade again"
        self.keep(job, self.grader.failed(job.student, reason))
        return []


def _connect(address: str) -> Client:
    """Connect to the scheduler at an address.

    Raises:
        Refusal: it does not answer.
    """
    try:
        return Client(address, timeout=ANSWER / 6)
    except (OSError, RuntimeError, TypeError, ValueError) as error:
        problem = type(error).__name__
    gc.collect()  # end its loop now: collected while another client starts, it waits for itself
    raise Refusal(
        f"SCHEDULER must be the address of a Dask scheduler, got {address}, which does not "
        f"answer ({problem}). Type on that machine: dask scheduler"
    )


def _be_quiet() -> None:
    """Keep Dask's own messages out of the command's: what matters becomes a line or a refusal."""
    for name in ("distributed", "distributed.client", "tornado", "asyncio"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    warnings.filterwarnings("ignore", "Sending large graph", UserWarning)
