"""A Dask cluster writes the tables of one machine, whatever happens to its workers."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

pytest.importorskip("nbgrader", reason="grading has requirements of its own")
pytest.importorskip("distributed", reason="grading has requirements of its own")
pytest.importorskip("fcntl", reason="nothing is graded on Windows")

import dask
from distributed import LocalCluster

from processes import running, wait_until
from tools.commands import Refusal
from tools.course.registry import ROOT
from tools.grading import cluster as on_cluster
from tools.grading.autograde import Autograder
from tools.grading.cluster import Cluster, Worker, Workers
from tools.grading.collect import Student
from tools.grading.grades import NOT_CHECKED, ChapterGrade, CheckResult, ExerciseGrade
from tools.grading.made_up_submissions import GRADE, assignment_of, inserted, light, raw
from tools.grading.pool import Job
from tools.grading.resume import FOLDER, SALT, Checkpoint
from tools.grading.run_notebook import Limits
from tools.grading.sandbox import PLAIN, choose

CHAPTER = "03"
MARK = {"MARK_OF_TEST_CLUSTER": str(os.getpid())}  # of this test's workers and graders
# Dask measures its own processes, also while they wait.
QUIET = {
    "DASK_DISTRIBUTED__ADMIN__TICK__INTERVAL": "1s",
    "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False",
}
LINKED = ("clinic", "resources", "utils", "notebooks")


@pytest.fixture(scope="module")
def students(tmp_path_factory) -> Path:
    """Two slow students; the notebook of the second one kills itself at the end."""
    folder, chapter = tmp_path_factory.mktemp("submitted") / "week1", assignment_of(CHAPTER)
    for name, last in (("Ada", "print(1)"), ("Bo", "import os\nos.kill(os.getpid(), 9)")):
        notebook = inserted(light(chapter.solved()), "import time\ntime.sleep(3)")
        (folder / name).mkdir(parents=True)
        (folder / name / f"{chapter.stem}.ipynb").write_bytes(raw(inserted(notebook, last, 99)))
    return folder


class Command:
    """A run of the command.

    Args:
        students: the submissions.
        out: the folder of results.
        options: further ones.
    """

    def __init__(self, students: Path, out: Path, *options: str):
        self.out, self.log = out, out.with_suffix(".txt")
        (out / FOLDER).mkdir(parents=True, exist_ok=True)  # as of an earlier run, with this salt
        (out / SALT).write_text("the same cases in all runs of this test")
        with self.log.open("wb") as file:
            self.process = subprocess.Popen(
                [*GRADE, str(students), "--out", str(out), *options],
                stdout=file,
                stderr=file,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                # tests in the background ignore Ctrl-C, and so would their children
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    @property
    def said(self) -> str:
        return self.log.read_text()

    def wait_until(self, condition: Callable[[], bool]) -> None:
        """Wait as `wait_until` does; fail at once if the run ends before that."""

        def look() -> bool:
            ended = self.process.poll() is not None  # asked first: its last words count
            met = condition()
            assert met or not ended, self.said
            return met

        wait_until(look)

    def wait_for(self, text: str) -> None:
        self.wait_until(lambda: text in self.said)

    def end(self, status: int = 0) -> str:
        """Wait for the end of the run; return what it said."""
        assert self.process.wait(timeout=600) == status, self.said
        return self.said


@pytest.fixture(scope="module")
def course(tmp_path_factory) -> Path:
    """Another course: one comment in its checks is different."""
    folder = tmp_path_factory.mktemp("course")
    for name in ("checks", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*map(ROOT.joinpath, LINKED), *ROOT.glob("*.toml"), *ROOT.glob("*.txt")]:
        (folder / path.name).symlink_to(path)
    with (folder / "checks" / f"chapter_{CHAPTER}.py").open("a") as file:
        file.write("# changed\n")
    return folder


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    """A cluster on this machine, at first without workers."""
    # A worker that is silent for longer hangs.
    with dask.config.set({"distributed.scheduler.worker-ttl": "10s"}):
        made = LocalCluster(n_workers=0, host="127.0.0.1", dashboard_address="127.0.0.1:0")
        yield made
        made.close()


@pytest.fixture(scope="module")
def start_worker(cluster, tmp_path_factory) -> Iterator[Callable[..., None]]:
    """Start workers of the cluster: each is one process, in the course of a folder."""
    started, temporary = [], str(tmp_path_factory.mktemp("d"))
    options = ["--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--no-dashboard"]
    options += ["--local-directory", temporary]
    command = [sys.executable, "-m", "distributed.cli.dask_worker", cluster.scheduler_address]

    def start(root: Path = ROOT, **environment: str) -> None:
        paths = [str(root), str(root / "clinic"), os.environ.get("PYTHONPATH", "")]
        settings = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment}
        settings |= QUIET | MARK
        started.append(
            subprocess.Popen(
                [*command, *options], cwd=root, env=settings, stderr=subprocess.DEVNULL
            )
        )

    yield start
    for process in started:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def unfit_workers(start_worker, course) -> None:
    """Start two workers that may not grade: with another course, and without a sandbox."""
    start_worker(course)
    start_worker(PATH="/nowhere")


@pytest.fixture(scope="module")
def one_machine(students, tmp_path_factory) -> Iterator[Callable[[], dict[str, bytes]]]:
    """Start the grading on this machine; return what waits for its results."""
    command = Command(students, tmp_path_factory.mktemp("pool") / "out", "--jobs", "2")

    def results() -> dict[str, bytes]:
        command.end()
        return files(command.out)

    yield results
    command.process.terminate()
    command.process.wait()


def files(out: Path) -> dict[str, bytes]:
    """Return all files of results, the logs without measured seconds."""
    found = {str(p.relative_to(out)): p.read_bytes() for p in out.rglob("*") if p.is_file()}
    logs = {name: text for name, text in found.items() if name.startswith("logs")}
    return found | {name: re.sub(rb"\d+\.\d+", b"", text) for name, text in logs.items()}


def ours(word: str) -> list[psutil.Process]:
    """Return the processes that workers have started, with a word in their command."""
    found = []
    for process in running(MARK):
        with contextlib.suppress(psutil.Error):
            if word in " ".join(process.cmdline()):
                found.append(process)
    return found


def graders() -> list[psutil.Process]:
    """Return the processes in which workers grade, and those that they fork for a student."""
    return ours("from tools.grading.worker")


def sandboxes() -> list[psutil.Process]:
    return ours("fork_server.py")


def busy_worker(run: Command) -> psutil.Process:
    """Wait until a worker of a run grades a student, and return it."""
    found: list[psutil.Process] = []

    def look() -> bool:
        with contextlib.suppress(psutil.Error):
            every = graders()
            busy = [p.parent().ppid() for p in every if p.parent() in every]
            found.extend(p for p in psutil.Process().children() if p.pid in busy)
        return bool(found)

    run.wait_until(look)
    return found[0]


def test_unfit_workers_are_refused(cluster, unfit_workers, one_machine):
    """Nothing is graded with another course, nor outside of a sandbox unless that is wanted."""
    kind = choose()[0]
    wait_until(lambda: len(cluster.scheduler.workers) == 2)
    workers = Workers(cluster.scheduler_address, [CHAPTER])
    with pytest.raises(Refusal, match="SCHEDULER must have a worker with this course") as refusal:
        workers.choose("")
    assert f"{kind.tool} is not installed" in str(refusal.value)
    assert "the folder checks must be" in str(refusal.value)
    workers = Workers(cluster.scheduler_address, [CHAPTER])
    assert workers.choose("plain").name == "plain"
    assert [bool(one.lacks) for one in workers.known.values()].count(False) == 1
    workers.client.close()


def test_whatever_ends_loses_nothing(
    cluster, unfit_workers, start_worker, students, one_machine, tmp_path
):
    """A killed worker and Ctrl-C: the tables are the same."""
    if not choose()[0].isolates:
        pytest.skip("no sandbox works on this machine")
    start_worker()
    start_worker()
    run = Command(students, tmp_path / "out", "--scheduler", cluster.scheduler_address)
    busy_worker(run).kill()
    run.wait_for(": it ended\n")
    assert "the folder checks must be" in run.said and "is not installed" in run.said
    run.wait_for("1/2")
    run.wait_until(lambda: bool(sandboxes()))
    run.process.send_signal(signal.SIGINT)
    assert "grade: stopped; nothing was written; 1 of 2 students are" in run.end(130)
    assert not graders()
    assert not (run.out / "grades.csv").exists()
    wait_until(lambda: not sandboxes())

    said = Command(students, run.out).end()
    assert said.count("(done before)") == 1
    assert files(run.out) == one_machine()


def test_a_hanging_worker_and_a_lost_scheduler_lose_nothing(
    cluster, start_worker, monkeypatch, tmp_path, capsys
):
    """The student of the worker goes to another one; the run ends and can be continued."""
    monkeypatch.setattr(on_cluster.worker, "grade", lambda *_: time.sleep(600))
    start_worker()
    start_worker()
    wait_until(lambda: len(cluster.scheduler.workers) >= 2)
    workers, checkpoint = Workers(cluster.scheduler_address, [CHAPTER]), Checkpoint(tmp_path, "")
    grader = Autograder(None, [CHAPTER], Limits(), "salt")
    run = Cluster(grader, checkpoint, workers.choose("plain"), workers)
    run._count = 1
    assert not run.step([Job(1, Student("Ada"), "Ada", tmp_path / "ada.json")])
    (hanging,) = run.running
    pid = workers.client.run(os.getpid, workers=[hanging])[hanging]
    psutil.Process(pid).suspend()
    waiting: list[Job] = []

    def is_handed_back() -> bool:
        assert hanging in run.running
        waiting.extend(run.step([]))
        return bool(waiting)

    wait_until(is_handed_back)
    assert f"worker {hanging} failed with Ada: it ended\n" in capsys.readouterr().out
    assert not run.step(waiting)
    assert run.running and hanging not in run.running
    cluster.close()
    with pytest.raises(Refusal, match="SCHEDULER must answer during the whole run") as refusal:
        wait_until(lambda: bool(run.step([])))
    assert "0 of 1 students are done. To continue, run it again" in str(refusal.value)
    run.stop()
    checkpoint.end(whole=False)


def test_no_scheduler_is_refused(monkeypatch):
    monkeypatch.setattr(on_cluster, "ANSWER", 3.0)
    for address in ("tcp://127.0.0.1:1", "host", "x://y:1"):
        with pytest.raises(Refusal, match=f"SCHEDULER must be the address .* got {address}"):
            Workers(address, [CHAPTER])


class MadeUpFuture:
    """The future of a worker that does what a test wants.

    Args:
        failure: what it raises; "" while it is pending.
    """

    def __init__(self, failure: str):
        self.failure, self.status = failure, "error" if failure else "pending"

    def result(self, timeout: float) -> None:
        raise RuntimeError(self.failure) if self.failure else TimeoutError

    def cancel(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("failure", ["its process ended (code -9)", ""])
def test_a_student_whose_workers_fail_is_given_up(monkeypatch, tmp_path, capsys, failure):
    """The reason in the table names the workers, and the next run tries the student again."""
    workers = Workers.__new__(Workers)
    workers.known = {name: Worker(name, None, 0.0, {}, {}) for name in ("one", "two", "three")}
    workers.look, workers.course = lambda: None, {}
    workers.submit = lambda *_: MadeUpFuture(failure)
    nothing = SimpleNamespace(cancel=print, run=lambda *_, **__: 0, close=lambda **_: 0)
    workers.client = nothing
    monkeypatch.setattr(on_cluster, "wait", lambda *_: time.sleep(0.01))
    grader = Autograder(None, [CHAPTER], Limits(), "salt")
    zero = ExerciseGrade("03.1", "", 0.0, 1.0, CheckResult(NOT_CHECKED))
    monkeypatch.setattr(
        Autograder, "failed", lambda _, __, reason: [ChapterGrade("03", "a", [zero], reason)]
    )
    checkpoint = Checkpoint(tmp_path / "out", "")
    run = Cluster(grader, checkpoint, PLAIN, workers)
    run.seconds = 1000.0 if failure else 0.01
    run.run([Student("Ada")], ["Ada"], tmp_path)
    why = failure or "it did not answer"
    assert run.grades["Ada"][0].reason == f"grading failed on 3 workers: {why}. Grade again"
    assert checkpoint.count() == 0
    said = capsys.readouterr().out
    assert said.count(f"failed with Ada: {why}") == 3
    # One worker fails twice; those that do not answer get no second student.
    assert said.count("gets no students") == (1 if failure else 3)
    checkpoint.end(whole=True)
