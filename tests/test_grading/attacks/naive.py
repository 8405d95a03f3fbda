"""A naive grader without any guard, which shows that an attack works.

    python naive.py FOLDER ROOT          runs all attacks, prints their success as JSON

A student's cells and the checks run in one process, which reports its own points. Printed text is
trusted, results are pickles, and nothing is cleaned up.
"""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from attacks.attack import After, Attack, Place
from attacks.every import every
from attacks.outside import outside

PATIENCE = 20  # seconds; no attack works by taking longer
TOLERANCE = 1e-5
PRINTED = re.compile(r"^03\.\d  right|verdict\+json \{.*'state': 'right'", re.MULTILINE)
CALLS = {
    "1": "check('03.1', scores_shape, output_shape)",
    "2": "check('03.2', softmax)",
    "3": "check('03.3', scores_loop, scores)",
    "4": "check('03.4', attention)",
    "5": "check('03.5', healthy)",
    "6": "check('03.6', measure, divisor)",
}


def near(got: Any, want: Any) -> bool:
    return got.shape == want.shape and torch.allclose(got, want, atol=TOLERANCE)


def check(exercise: str, *answers: Any) -> None:
    """Assert what a teacher would assert in a cell of the notebook."""
    if exercise == "03.1":
        assert answers[0] == (2, 3, 5, 7) and answers[1] == (2, 3, 5, 6)
    elif exercise == "03.2":
        reference = lambda scores: scores.softmax(-1)  # noqa: E731
        x = torch.randn(3, 4)
        want = reference(x)
        assert near(answers[0](x), want)
    elif exercise == "03.3":
        q, k = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 7, 4)
        want = q @ k.mT / 2
        assert near(answers[1](q, k), want) and near(answers[0](q[0, 0], k[0, 0]), want[0, 0])
    elif exercise in ("03.4", "03.5"):
        q, k, v = torch.randn(2, 5, 4), torch.randn(2, 7, 4), torch.randn(2, 7, 6)
        want = F.scaled_dot_product_attention(q, k, v)
        assert near(answers[0](q, k, v)[0], want)
    elif exercise == "03.6":
        assert abs(answers[0](16, 1.0, 1.0) - 16) < 1.6 and abs(answers[1](16, 1.0, 1.0) - 4) < 0.1


class Kernel:
    """Run the check cells, as a kernel does."""

    def __init__(self, names: dict[str, Any]):
        self.names = names

    def do_execute(self, code: str) -> dict[str, Any]:
        state = "right"
        try:
            exec(code, self.names)
        except Exception:
            state = "not right"
        return {"verdict": {"state": state}}


def student(attack: Attack, place: Place) -> None:
    """Run cells and checks, and write the points."""
    work = place.base / "work"
    os.chdir(work)
    said = os.open(place.base / "said.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(said, 1)
    os.dup2(said, 2)
    sys.stdout = os.fdopen(1, "w", buffering=1)
    names: dict[str, Any] = {"torch": torch, "check": check, "os": os}
    kernel = Kernel(names)
    names["get_ipython"] = lambda: type("Shell", (), {"kernel": kernel})
    points, shown = 0, None
    try:
        exec(place.filled(attack.code, attack.name), names)
    except Exception:
        traceback.print_exc()
    if attack.exercise:
        points = 2  # taken away where the check fails
        try:
            reply = kernel.do_execute(CALLS[attack.exercise])
            points *= reply["verdict"]["state"] == "right"
        except BaseException as error:
            print(type(error))
    if "shown" in names:
        shown = names["softmax"](torch.ones(2, 2))
    with (place.base / "result").open("wb") as file:
        pickle.dump({"points": points, "shown": shown}, file, protocol=4)


def grader(attack: Attack, place: Place) -> None:
    """Start the student's process, trust it, and write the table."""
    (place.base / "work").mkdir()
    table = place.base / "class-grades"
    table.mkdir()
    own = open(place.base / "decoy" / "gradebook.db", "rb")  # noqa: SIM115
    child = os.fork()
    if child == 0:
        import atexit

        atexit._clear()
        student(attack, place)
        atexit._run_exitfuncs()
        os._exit(0)
    signal.alarm(PATIENCE)
    os.waitpid(child, 0)
    (place.base / "work" / "log.txt").write_text("what the grader notes")
    points = 0
    result = place.base / "result"
    if result.is_file():
        with result.open("rb") as file:
            points = pickle.load(file)["points"]
    printed = (place.base / "said.txt").read_text(errors="replace")
    if PRINTED.search(printed):
        points = max(points, 2)
    (table / "grades.csv").write_text(f"student,points\nattacker,{points}\n")
    if "class-grades" in attack.code:
        time.sleep(0.5)  # the grader goes on with the next student
    own.close()


def tried(attack: Attack, base: Path, root: Path) -> bool:
    """Return whether an attack works on this grader."""
    library = repr(str(base / "library"))
    with outside(base, [attack], library, root) as (place, ears, victim):
        (base / "class" / "other").mkdir()
        (base / "class" / "other" / "03.ipynb").write_text("{}")
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            grader(attack, place)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        end = time.monotonic() + PATIENCE
        while True:  # what goes on in processes that stay may take its time
            is_alive = victim.poll() is None and status == 0
            said = (base / "said.txt").read_text(errors="replace")
            table = base / "class-grades" / "grades.csv"
            match = re.search(r"attacker,(\d+)", table.read_text()) if table.is_file() else None
            points = float(match[1]) if match else 0.0
            after = After(place, said, ears.heard, points, is_alive)
            if attack.works(after, attack.name):
                return True
            if time.monotonic() > end:
                return False
            time.sleep(0.05)


def main(folder: Path, root: Path, report: Callable[[str], None] = print) -> None:
    torch.set_num_threads(1)
    found = {}
    for number, attack in enumerate(every()):
        found[attack.name] = tried(attack, folder / str(number), root)
    report(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
