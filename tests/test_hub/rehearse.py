"""Try the server of a class as a whole, on this machine alone: load and attacks.

A made-up class gets accounts and a hub. All students log in at once, start their servers, run
chapter 00 and an exercise over the real protocols, type answers and save; one of them attacks. Then
the work is collected, graded and given back, and the idle servers must end. It prints tables, and
ends with status 1 after any failure. As root it makes system users, and removes them again.
"""

from __future__ import annotations

import contextlib
import csv
import os
import pwd
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from exercise_bank import bank
from honest_bank import answered
from hub_attacks import ATTACKS, LINKS, tools, tried

from tools.commands import parse_arguments
from tools.course.cards import grade_id
from tools.course.notebook import Notebook
from tools.course.registry import ROOT
from tools.grading.made_up_submissions import Assignment, assignment_of
from tools.grading.results_folder import read_table
from tools.hub.accounts import Account, read_accounts, read_passwords
from tools.hub.hub import PROGRAMS

RUN = [sys.executable, "-m", "tools.run"]
ADMIN = "hub-test-admin"
CHAPTER, TYPED = "03", ("1", "2", "3")
WRONG = "2"  # every other student types a wrong answer to this one
EXERCISES = f"attention/notebooks/exercises/{CHAPTER}_exercises.ipynb"
LINKED = ("04", "05", "06", "07")  # by the attacker
FIRST = "attention/notebooks/00_shapes_and_einops.ipynb"
# Seconds for the installation, for a start, and until idle servers have ended.
INSTALL, START, IDLE = 1200.0, 180.0, 300.0
PRINT = "import time\nwhile True:\n    print(1, flush=True)\n    time.sleep(0.2)"
# The processes of a hub, by words in their command lines.
KINDS = {
    "hub": "-m jupyterhub -f",
    "proxy": "configurable-http-proxy",
    "culler": "jupyterhub_idle_culler",
    "server": "jupyterhub-singleuser",
    "kernel": "ipykernel_launcher",
}


class Report:
    """What was measured, and what failed."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, ...]] = []
        self.failures: list[str] = []
        self._began = time.monotonic()

    def add(self, *cells: str) -> None:
        self.rows.append(cells)
        print(f"{time.monotonic() - self._began:4.0f} s", *cells, sep="  ", flush=True)

    def numbers(self, what: str, values: list[float], unit: str) -> None:
        """Add a row: minimum, median and maximum."""
        if values:
            low, high = min(values), max(values)
            cells = (f"{value:.3g} {unit}" for value in (low, statistics.median(values), high))
            self.add(what, str(len(values)), *cells)

    def check(self, holds: bool, what: str) -> None:
        if not holds:
            self.failures.append(what)

    def show(self) -> None:
        for row in [("", "number", "minimum", "median", "maximum"), *self.rows]:
            print("| " + " | ".join(row) + " |")
        print(f"failures: {len(self.failures)}", *self.failures, sep="\n- ")


def memory_of(hub: Path) -> dict[str, list[float]]:
    """Return the memory (PSS, in MB) of each process of a hub, by its kind.

    PSS counts a page that several processes share once among all of them.
    """
    found: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it may have ended
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            kind = next((kind for kind, words in KINDS.items() if words in line), None)
            if kind and str(hub) in line and not line.startswith("/bin/sh"):
                rollup = (path / "smaps_rollup").read_text().split()
                found[kind].append(int(rollup[rollup.index("Pss:") + 1]) / 1000)
    return found


def class_list(count: int, path: Path) -> None:
    """Write the list of a made-up class; two of its students have the same name."""
    names = ["Test Zoë Øster", "Test Zoë Øster", *(f"Test Number{n}" for n in range(count - 2))]
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = ((name, 9000 + n, f"t{n}@uni.example") for n, name in enumerate(names))
        csv.writer(file).writerows([("name", "id", "email"), *rows])


@contextlib.contextmanager
def users_removed(hub: Path) -> Iterator[None]:
    """Remove the system users that a hub makes in it, with their processes and homes."""
    before = {user.pw_name for user in pwd.getpwall()}
    try:
        yield
    finally:
        made = {ADMIN, *(account.username for account in read_accounts(hub))} - before
        for user in [user for user in pwd.getpwall() if user.pw_name in made]:
            for path in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    if path.stat().st_uid == user.pw_uid:
                        os.kill(int(path.name), signal.SIGKILL)
            subprocess.run(["userdel", "--remove", user.pw_name], capture_output=True, check=False)


@contextlib.contextmanager
def running(command: list[str], log: Path, address: str) -> Iterator[None]:
    """Run a hub until the end.

    Raises:
        RuntimeError: it does not start.
    """
    import requests

    with log.open("wb") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
    began = time.monotonic()
    try:
        while True:
            with contextlib.suppress(requests.ConnectionError):
                if requests.get(f"{address}/hub/health", timeout=5).status_code == 200:
                    break
            if process.poll() is not None or time.monotonic() > began + INSTALL:
                raise RuntimeError(f"the hub does not start: {log.read_text()[-3000:]}")
            time.sleep(0.5)
        yield
    finally:
        process.terminate()
        process.wait(60)


class Rehearsal:
    """One class on one hub.

    Args:
        folder: for the hub, the grades and the logs.
        port: of the hub.
        report: takes what is measured.
    """

    def __init__(self, folder: Path, port: int, report: Report) -> None:
        self.folder, self.hub, self.port, self.report = folder, folder / "hub", port, report
        self.address = f"http://127.0.0.1:{port}"
        self.assignment: Assignment = assignment_of(CHAPTER)
        self.accounts: list[Account] = []
        self.students: list[Any] = []
        self.attacked = os.geteuid() == 0

    def make(self, *words: str, status: int = 0) -> None:
        """Run a command of the course, show what it prints, and report a wrong exit status."""
        done = subprocess.run([*RUN, *words], cwd=ROOT, capture_output=True, text=True, check=False)
        print(done.stdout, flush=True)
        wrong = f"{words[0]}: status {done.returncode}: {done.stderr.strip()[-500:]}"
        self.report.check(done.returncode == status, wrong)

    def meet(self) -> None:
        """Take the accounts that the hub has made."""
        from student import Student

        self.accounts, passwords = read_accounts(self.hub), read_passwords(self.hub)
        self.students = [
            Student(self.address, one.username, passwords[one.username], one.name)
            for one in self.accounts
        ]

    def together(self, what: str, work: Callable[[Any], Any]) -> dict[Any, tuple[Any, float]]:
        """Let all students do something at once; return results and seconds, and report errors."""

        def timed(student: Any) -> tuple[Any, float]:
            began = time.monotonic()
            return work(student), time.monotonic() - began

        found = {}
        with ThreadPoolExecutor(len(self.students)) as pool:
            for student, future in [(s, pool.submit(timed, s)) for s in self.students]:
                try:
                    found[student] = future.result()
                except Exception as error:
                    self.report.failures.append(f"{what}, {student.username}: {error!r}"[:500])
        if not found:
            raise RuntimeError(f"no student could do it: {what}")
        self.report.numbers(what, [seconds for _, seconds in found.values()], "s")
        return found

    def remember_memory(self, when: str) -> None:
        for kind, values in memory_of(self.hub).items():
            self.report.numbers(f"memory, {when}: {kind}", values, "MB")

    def learn(self) -> None:
        """Log in, start the servers, and work."""
        self.remember_memory("no servers")
        self.together("log in", lambda student: student.log_in())
        self.together("start of a server", lambda student: student.start(START))
        waited = sum(student.waited for student in self.students)
        self.report.add("asked to try again, too many starts at once", str(waited))
        repository = (self.hub / "handout.git").as_uri()
        link = urlencode({"repo": repository, "branch": "main", "targetpath": "attention"})
        for phase, _ in self.together("clone", lambda student: student.pull(link)).values():
            self.report.check(phase == "finished", f"nbgitpuller: {phase}")
        self.remember_memory("servers without a notebook")
        self.together("run chapter 00", lambda student: student.run_all(FIRST))
        self.remember_memory("after chapter 00")
        self.together("answer and run an exercise", self.solve)

    def solve(self, student: Any) -> None:
        """Type answers into the exercises, run them, and save."""
        notebook = student.read(EXERCISES)
        self.type(notebook, self.students.index(student))
        student.save(EXERCISES, notebook)
        student.run_all(EXERCISES)

    def type(self, notebook: Notebook, number: int) -> None:
        """Write the answers of a student, by number, into an exercise notebook."""
        for exercise in TYPED:
            of_bank = bank(CHAPTER)[f"{CHAPTER}.{exercise}"]
            is_wrong = number % 2 and exercise == WRONG
            kinds = of_bank.wrong[:1] if is_wrong else of_bank.right
            prefix = f"answer-{CHAPTER}-{exercise}"
            cells = [cell for cell in notebook["cells"] if grade_id(cell).startswith(prefix)]
            for cell in cells:
                cell["source"] = self.assignment.solutions[grade_id(cell)]
            answered(cells, kinds[number % len(kinds)])

    def attack(self) -> None:
        """Let the first student attack the second, and print each result."""
        if not self.attacked:
            print("attacks: skipped, only root can make several users")
            return
        attacker, victim = self.students[:2]
        attacker.open(EXERCISES)
        home = self.accounts[1].home
        code = tools(str(self.hub), victim.username, home, self.port, str(ROOT))
        attacker.run(code)
        print(f"ports of the other: {attacker.run('print(ports())').strip()}")
        with ThreadPoolExecutor(1) as pool:
            printing = pool.submit(victim.run, PRINT)
            for name, attack in ATTACKS.items():
                said = attacker.run(tried(attack)).strip()
                print(f"  {name}: {said}", flush=True)
                is_held = said.startswith("held: ") and "BROKEN" not in said
                self.report.check(is_held, f"attack: {name}: {said}")
            victim.ask("POST", f"api/kernels/{victim.kernel}/interrupt")
            ended = str(printing.exception())
            self.report.check("KeyboardInterrupt" in ended, f"the other's kernel: {ended}")
        for path in ("api/contents", "api/kernels", "lab", "files/passwords"):
            url = f"{self.address}{victim.base}{path}"
            answer = attacker.browser.get(url, timeout=60)
            said = f"{answer.status_code} {answer.url.removeprefix(self.address)[:60]}"
            print(f"  the own cookie at another's {path}: {said}")
            self.report.check(answer.status_code == 403, f"attack: cookie at {path}: {said}")
        self.secrets(attacker)
        attacker.run(LINKS)

    def secrets(self, attacker: Any) -> None:
        """Search all that the attacker can read of other processes for the tokens of all."""
        code = "print(b''.join(pathlib.Path(p).read_bytes() for p in glob.glob('/proc/*/cmdline')))"
        seen, tokens = attacker.run(code), set()
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                for word in path.read_bytes().split(b"\0"):
                    name, _, value = word.decode(errors="replace").partition("=")
                    if "TOKEN" in name and len(value) > 16:
                        tokens.add(value)
        found = [token for token in tokens if token in seen]
        print(f"  tokens in command lines: {len(found)} of {len(tokens)}")
        self.report.check(len(tokens) > len(self.students) and not found, "tokens in command lines")

    def grade(self) -> None:
        """Collect, grade and give back, and compare points and pages."""
        term, results = self.folder / "term", self.folder / "results"
        names, where = [CHAPTER, *LINKED], ["--hub", str(self.hub)]
        self.make("collect", *names, *where, "--week", "3", "--out", str(term))
        roster = str(self.folder / "class.csv")
        self.make("grade", str(term / "3"), "--out", str(results), "--roster", roster)
        # The attacker's folder of feedback is a link.
        self.make("give-back", *where, "--out", str(results), status=int(self.attacked))
        rows = {row["id"]: row for row in read_table(results / "grades.csv")}
        for number, account in enumerate(self.accounts):
            right = [e for e in TYPED if not (number % 2 and e == WRONG)]
            want, row = self.assignment.worth(right), rows[account.id]
            about = f"{account.name} ({account.id}): {row['points']} of {want}: {row['reason']}"
            self.report.check(float(row["points"]) == want, about)
            self.check_page(account, number)
        leaked = [path.name for path in term.rglob("*.ipynb") if path.name[:2] != CHAPTER]
        self.report.check(not leaked, f"collect followed a link: {leaked}")

    def check_page(self, account: Account, number: int) -> None:
        """Check that a page of feedback is in the right home, for its owner alone."""
        page = Path(account.home) / "feedback" / "3.html"
        if number == 0 and self.attacked:
            self.report.check(page.parent.is_symlink(), "give-back replaced a link")
            return
        mode, owner = page.stat().st_mode & 0o777, page.stat().st_uid
        about = f"feedback of {account.username}: {mode:o}, owner {owner}"
        self.report.check((mode, owner) == (0o600, Path(account.home).stat().st_uid), about)
        whose = f"{account.name} ({account.id})" if number < 2 else account.name
        self.report.check(f"{whose}: feedback" in page.read_text(), f"{about}, not about {whose}")

    def cull(self) -> None:
        """Wait until the idle servers have ended."""
        began = time.monotonic()
        while memory_of(self.hub)["server"] and time.monotonic() < began + IDLE:
            time.sleep(2)
        left = len(memory_of(self.hub)["server"])
        self.report.check(left == 0, f"{left} idle servers have not ended")
        self.remember_memory("at the end")


def main() -> None:
    given = parse_arguments("hub-test", sys.argv[1:])
    missing = [name for name in PROGRAMS if not shutil.which(name)]
    missing += [name for name in ("requests", "websocket") if find_spec(name) is None]
    if missing:
        print(f"skipped: this machine lacks {', '.join(missing)}")
        return
    folder = given.keep or Path(tempfile.mkdtemp(prefix="hub-test-"))
    folder.mkdir(exist_ok=True)
    folder.chmod(0o755)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # users are removed then, too
    report = Report()
    class_list(given.students, folder / "class.csv")
    try:
        with users_removed(folder / "hub"):
            rehearse(Rehearsal(folder, given.port, report))
    finally:
        if not given.keep:
            shutil.rmtree(folder)
    report.show()
    raise SystemExit(bool(report.failures))


def rehearse(class_: Rehearsal) -> None:
    """Prepare a hub and run everything on it."""
    where = ["--hub", str(class_.hub), "--port", str(class_.port), "--admin", ADMIN]
    for name in ("hub/accounts.csv", "hub/passwords.csv"):  # of users that were removed
        (class_.folder / name).unlink(missing_ok=True)
    for name in ("hub/state", "term", "results"):
        shutil.rmtree(class_.folder / name, ignore_errors=True)
    roster = str(class_.folder / "class.csv")
    command = [*RUN, "hub", *where, "--roster", roster, "--idle-minutes", "2"]
    with running(command, class_.folder / "hub.log", class_.address):
        class_.meet()
        try:
            class_.learn()
            class_.attack()
            for student in class_.students:
                student.close()
            class_.grade()
            class_.cull()
        except Exception:
            class_.report.failures.append(traceback.format_exc())


if __name__ == "__main__":
    main()
