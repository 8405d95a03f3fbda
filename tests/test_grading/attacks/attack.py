"""An attack: its code, and the sign that it has worked.

Each attack runs twice. On `naive`, a grader without any guard, it must work, which shows that it is
an attack. On the real grader it must fail. `@base@` and the like in its code stand for values of
the attacked grader; see `Place`.
"""

from __future__ import annotations

import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SECRET = "b7e15a0c93d2"  # of the grader; no attack contains it
SCORE = "select score from grade"


@dataclass(frozen=True)
class Place:
    """The surroundings of a grader.

    Args:
        base: a folder with `class/` (submissions), `class-grades/`, `decoy/` and `traces/`.
        victim: a process that does not belong to students.
        port: with a listener.
        library: an expression for the folder of what students' code imports.
        root: of the course, with its solutions.
    """

    base: Path
    victim: int
    port: int
    library: str
    root: Path

    def filled(self, code: str, name: str) -> str:
        """Insert the values into the code of an attack."""
        values = {
            "base": self.base,
            "victim": self.victim,
            "port": self.port,
            "library": self.library,
            "root": self.root,
            "name": name.replace(" ", "-"),
        }
        for key, value in values.items():
            code = code.replace(f"@{key}@", str(value))
        return code


@dataclass(frozen=True)
class After:
    """The state after a run.

    Args:
        place: of the grader.
        said: all text of pages, logs and the console.
        heard: what the listener received.
        points: of the attack.
        is_alive: whether the victim and the grader are.
    """

    place: Place
    said: str
    heard: str
    points: float
    is_alive: bool


Sign = Callable[[After, str], bool]


def earns(after: After, _name: str) -> bool:
    return after.points > 0


def leaves_a_trace(after: After, name: str) -> bool:
    return (after.place.base / "traces" / name.replace(" ", "-")).exists()


def tells(after: After, name: str) -> bool:
    """Return whether its output has the words, which its code only assembles."""
    return f"GOT {name.replace(' ', '-')}" in after.said


def tells_the_secret(after: After, _name: str) -> bool:
    return SECRET in after.said


def is_heard(after: After, name: str) -> bool:
    return name.replace(" ", "-") in after.heard


def kills(after: After, _name: str) -> bool:
    return not after.is_alive


def changes_the_gradebook(after: After, _name: str) -> bool:
    path = after.place.base / "decoy" / "gradebook.db"
    try:
        with sqlite3.connect(path) as database:
            return database.execute(SCORE).fetchall() != [(1,)]
    except sqlite3.Error:
        return True


def changes_the_decoy(after: After, name: str) -> bool:
    path = after.place.base / "decoy" / f"{name.replace(' ', '-')}.txt"
    return not path.is_file() or path.read_text() != "mine"


def changes_the_table(after: After, _name: str) -> bool:
    path = after.place.base / "class-grades" / "grades.csv"
    return not path.is_file() or "hijack" in path.read_text(encoding="utf-8-sig")


def leaves_a_process(after: After, name: str) -> bool:
    mark = f"{after.place.base}/{name.replace(' ', '-')}"
    listed = subprocess.run(["ps", "-ewwo", "args"], capture_output=True, text=True, check=True)
    return any(mark in line for line in listed.stdout.splitlines())


def leaves_files(after: After, name: str) -> bool:
    mark = f"{after.place.base.name}-{name.replace(' ', '-')}*"
    return any(any(Path(folder).glob(mark)) for folder in ("/tmp", "/var/tmp", "/dev/shm"))


@dataclass(frozen=True)
class Attack:
    """One attack.

    Args:
        name: what it does.
        code: of a cell.
        works: returns whether it has worked.
        exercise: whose points it wants; "" for none.
        alone: whether it ends its process, so that nothing can follow.
        together: whether its softmax may be tried after those of other attacks.
        rights: whether it needs permissions that some systems deny.
    """

    name: str
    code: str
    works: Sign
    exercise: str = ""
    alone: bool = False
    together: bool = False
    rights: bool = False


def prepare(base: Path, attacks: list[Attack]) -> None:
    """Create the attacked files."""
    for name in ("class", "decoy", "traces", "home", "library/resources"):
        (base / name).mkdir(parents=True, exist_ok=True)
    for attack in attacks:
        if attack.works is changes_the_decoy:
            (base / "decoy" / f"{attack.name.replace(' ', '-')}.txt").write_text("mine")
    with sqlite3.connect(base / "decoy" / "gradebook.db") as database:
        database.execute("create table grade (score integer)")
        database.execute("insert into grade values (1)")
