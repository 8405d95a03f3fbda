"""Attacks on the grader: each works on a naive grader, and none on this one.

One run grades all of them in a sandbox, together with honest neighbors that must keep their points.
Without a sandbox no attacks are tried, since those on other processes would work.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from notebook_rules import ROOT

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from attacks.attack import SECRET, After, Attack
from attacks.every import every
from attacks.outside import outside

from tools.grading.made_up_submissions import GRADE, assignment_of, find_cell, inserted, light, raw
from tools.grading.results_folder import read_table
from tools.grading.sandbox import SANDBOXES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="they attack a Linux")

HERE = Path(__file__).resolve().parent
STEM = "03_exercises"
ALL = every()
NAMES = [attack.name for attack in ALL]
# Students without attacks, before and after all others.
NEIGHBORS = ("aa neighbor", "zz neighbor")
HONEST = ("2", "3")  # solved exercises of notebooks whose attacks want no points


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "GRADER_SECRET": SECRET, **more}


@pytest.fixture(scope="module")
def naive(tmp_path_factory) -> dict[str, bool]:
    """Run all attacks on a naive grader."""
    folder = tmp_path_factory.mktemp("n")
    command = [sys.executable, str(HERE / "attacks" / "naive.py"), str(folder), str(ROOT)]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        command, capture_output=True, text=True, env=environment(PYTHONPATH=path), check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("attack", ALL, ids=NAMES)
def test_the_attack_works_without_a_guard(attack, naive):
    if attack.rights and not naive[attack.name]:
        pytest.skip("this system denies the permissions for it")
    assert naive[attack.name]


def packed(attacks: list[Attack]) -> dict[str, list[Attack]]:
    """Combine independent attacks: one for each exercise; one that ends its process is alone."""
    found: dict[str, list[Attack]] = {}
    for attack in attacks:
        if attack.alone:
            found[f"alone {len(found):02}"] = [attack]
        elif attack.together or not attack.exercise:
            found.setdefault("together" if attack.together else "for harm", []).append(attack)
        else:
            names = (f"answers {number:02}" for number in range(99))
            free = (
                n for n in names if all(o.exercise != attack.exercise for o in found.get(n, []))
            )
            found.setdefault(next(free), []).append(attack)
    return found


# Each attack defines a softmax; this one uses the first that changes its input.
ANY = """def softmax(scores):
    for one in every:
        found = one(scores)
        if not torch.equal(found, scores):
            return found
    return scores
"""


def notebook_of(attacks: list[Attack], place: Any) -> bytes:
    """Return a notebook with every attack as an answer, or as a cell before honest answers."""
    wants = any(attack.exercise for attack in attacks)
    notebook = light(assignment_of("03").solved(() if wants else HONEST))
    for attack in reversed(attacks):
        code = place.filled(attack.code, attack.name)
        if attack.together:
            inserted(notebook, f"{code}\nevery = [*globals().get('every', []), softmax]")
            find_cell(notebook, "answer-03-2")["source"] = ANY
        elif attack.exercise and not attack.alone:
            find_cell(notebook, f"answer-03-{attack.exercise}")["source"] = code
        else:
            inserted(notebook, code)
    return raw(notebook)


@pytest.fixture(
    scope="module", params=[one for one in SANDBOXES if one.isolates], ids=lambda one: one.name
)
def graded(request, tmp_path_factory) -> dict[str, Any]:
    """Grade all attacks with one call, and yield the results."""
    if why := request.param.problem():
        pytest.skip(f"no isolation to attack: {why}")
    base = tmp_path_factory.mktemp("a")
    students = packed(ALL)
    library = "__import__('utils').__path__[0] + '/..'"
    with outside(base, ALL, library, ROOT) as (place, ears, victim):
        for name, attacks in students.items():
            path = base / "class" / name / f"{STEM}.ipynb"
            path.parent.mkdir()
            path.write_bytes(notebook_of(attacks, place))
        for name in NEIGHBORS:
            path = base / "class" / name / f"{STEM}.ipynb"
            path.parent.mkdir()
            path.write_bytes(raw(light(assignment_of("03").solved(HONEST))))
        (base / "tmp").mkdir()
        before = tree(base)
        # One attack stops the kernel, until the time of its cell is over.
        options = ["--isolation", request.param.name, "--cell-seconds", "8"]
        command = [*GRADE, str(base / "class"), *options]
        done = subprocess.run(
            command, capture_output=True, text=True, env=environment(TMPDIR=str(base / "tmp"))
        )
        print(done.stdout, done.stderr)
        out = base / "class-grades"
        said = done.stdout + done.stderr
        for path in out.rglob("*"):
            if path.is_file() and path.suffix in (".html", ".csv", ".txt"):
                said += path.read_text(encoding="utf-8-sig", errors="replace")
        rows = {row["student"]: row for row in read_table(out / "grades.csv")}
        is_alive = victim.poll() is None and done.returncode == 0
        after = {}
        for name, attacks in students.items():
            for attack in attacks:
                points = 0.0
                if attack.exercise:
                    listed = rows[name]["exercises"].split("; ")
                    (own,) = [x for x in listed if x.startswith(f"03.{attack.exercise} ")]
                    points = float(own.split()[1].split("/")[0])
                after[attack.name] = After(place, said, ears.heard, points, is_alive)
        listed = subprocess.check_output(["ps", "-ewwo", "pid,args"], text=True)
        yield {
            "after": after,
            "rows": rows,
            "students": students,
            "changed": set(before.items()) ^ set(tree(base).items()),
            "left": [
                line
                for line in listed.splitlines()
                if str(base) in line and line.split()[0] not in (str(os.getpid()), str(victim.pid))
            ],
        }


def tree(base: Path) -> dict[str, bytes]:
    """Return all files except the results."""
    found = (path for path in base.rglob("*") if path.is_file())
    names = ((path.relative_to(base).as_posix(), path) for path in found)
    return {name: path.read_bytes() for name, path in names if not name.startswith("class-grades")}


@pytest.mark.parametrize("attack", ALL, ids=NAMES)
def test_the_attack_fails_here(attack, graded):
    assert not attack.works(graded["after"][attack.name], attack.name)


def test_no_points_change(graded):
    worth = f"{assignment_of('03').worth(HONEST):g}"
    for name, attacks in graded["students"].items():
        row = graded["rows"][name]
        earned = "0" if any(attack.exercise or attack.alone for attack in attacks) else worth
        assert row["points"] == earned, row
    for name in NEIGHBORS:
        assert graded["rows"][name]["points"] == worth, graded["rows"][name]
        assert not graded["rows"][name]["reason"]


def test_no_files_change_and_no_processes_remain(graded):
    assert not graded["changed"]
    assert not graded["left"]


def test_there_are_enough_attacks():
    assert len(ALL) >= 48 and len(set(NAMES)) == len(NAMES)
