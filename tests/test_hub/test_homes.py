"""Collecting from homes and giving back into them, whatever the students do there.

As root, each student is a user of the system, by a number that needs no account. Otherwise all
homes belong to one user, and the tests that need several are skipped.
"""

from __future__ import annotations

import contextlib
import csv
import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from test_gradebook import chapter, entry, graded, week

from tools.commands import Refusal
from tools.grading import collect as submissions
from tools.grading.collect import Student
from tools.grading.gradebook import Entry
from tools.grading.made_up_submissions import assignment_of, raw
from tools.grading.roster import Matching, class_list, read_roster
from tools.hub import collect, give_back, homes, in_home

FIRST_USER = 61_001
NAMES = ("Ada Lovelace", "Bo Øster", "Jo Li", "Jo Li", "Mal/../O'Ry")
HEADS = ("username", "name", "id", "email")
CLASS = [(f"u{n}", name, f"10{n}", f"s{n}@uni.example") for n, name in enumerate(NAMES)]
SOLVED = raw(assignment_of("03").solved(["1"]))
OTHER = raw(assignment_of("04").solved(["1"]))
BLANK = raw(assignment_of("03").blank)
LEAK = SOLVED.replace(b"{", b'{"leak": 1, ', 1)
N03, N04 = "03_exercises.ipynb", "04_exercises.ipynb"
IS_ROOT = os.geteuid() == 0
root = pytest.mark.skipif(not IS_ROOT, reason="only root can be several students")


@cache
def python_of_students() -> str:
    """Return a Python that every user can run; skip the test if there is none."""
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            user = {"user": FIRST_USER} if IS_ROOT else {}
            subprocess.run([python, "-I", "-S", "-c", ""], check=True, **user)
            return python
    pytest.skip("only root can run this Python, and there is no other")


class Class:
    """A hub of five students and the folder of the instructor."""

    def __init__(self, base: Path):
        self.base, self.folder, self.out = base, base / "hub", base / "term"
        python = self.folder / "course" / ".venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.symlink_to(python_of_students())
        place = base / "home" if IS_ROOT else self.folder / "homes"
        self.homes = [place / user for user, *_ in CLASS]
        for home in self.homes:
            (home / collect.EXERCISES).mkdir(parents=True, mode=0o700)
            home.chmod(0o700)
        self.own()
        self.list(CLASS)

    def list(self, students: list[tuple[str, ...]]) -> None:
        with (self.folder / "accounts.csv").open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow([*HEADS, "home"])
            table.writerows([*row, self.homes[n]] for n, row in enumerate(students))

    def own(self) -> None:
        """Make everything in the homes the students' own, but no link's target."""
        for number, home in enumerate(self.homes if IS_ROOT else []):
            for path in (home, *home.rglob("*")):
                os.chown(path, *[FIRST_USER + number] * 2, follow_symlinks=False)

    def exercises(self, number: int) -> Path:
        return self.homes[number] / collect.EXERCISES

    def put(self, number: int, content: bytes = SOLVED, name: str = N03) -> Path:
        path = self.exercises(number) / name
        path.write_bytes(content)
        self.own()
        return path

    def collect(self, *words: str, week: str = "3") -> dict[str, bytes]:
        """Collect, and return the files of the week by their path."""
        call = [*words, "--hub", str(self.folder), "--week", week, "--out", str(self.out)]
        collect.main(call)
        found = sorted((self.out / week).rglob("*.ipynb"))
        return {str(p.relative_to(self.out / week)): p.read_bytes() for p in found}

    def change_program(self, monkeypatch: pytest.MonkeyPatch, old: str, new: str) -> None:
        """Change the program that runs in the homes."""
        text, program = homes.PROGRAM.read_text(), self.base / "program.py"
        assert old in text
        program.write_text(text.replace(old, new, 1))
        monkeypatch.setattr(homes, "PROGRAM", program)

    def give_back(self, *words: str) -> int:
        return give_back.main(["--hub", str(self.folder), "--out", str(self.out), *words])


@pytest.fixture
def hub() -> Iterator[Class]:
    base = Path(tempfile.mkdtemp(prefix="hub-"))
    base.chmod(0o755)
    yield Class(base)
    shutil.rmtree(base)


def line_of(capsys: pytest.CaptureFixture[str], name: str = "Ada Lovelace") -> str:
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith(f"{name}: ")]
    return line.removeprefix(f"{name}: ")


# ------------------------------------------------------------------------------------- collecting


def test_changed_exercises_are_copied_with_their_times(hub: Class, capsys) -> None:
    path = hub.put(0)
    os.utime(path, ns=(0, 1_700_000_000_123_456_789))
    hub.put(0, BLANK.replace(b'"source"', b'"source" '), "00_exercises.ipynb")
    hub.put(0, b"mine", "diary.ipynb")
    future = hub.put(1, OTHER, N04)
    os.utime(future, (4e9, 4e9))
    assert hub.collect() == {f"Ada Lovelace/{N03}": SOLVED, f"Bo Øster/{N04}": OTHER}
    copy = hub.out / "3" / "Ada Lovelace" / N03
    assert copy.stat().st_mtime_ns == 1_700_000_000_123_456_789
    assert (hub.out / "3" / "Bo Øster" / N04).stat().st_mtime <= time.time()
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["Ada Lovelace: 03", "Bo Øster: 04"]
    assert lines[2] == "Jo Li: nothing copied" and lines[-1].startswith("2 notebooks. Type: ")
    assert [stat.S_IMODE(p.stat().st_mode) for p in (hub.out, hub.out / "3")] == [0o700] * 2


def test_only_the_chosen_chapters_are_copied(hub: Class) -> None:
    hub.put(0)
    hub.put(0, OTHER, N04)
    assert list(hub.collect("04")) == [f"Ada Lovelace/{N04}"]
    with pytest.raises(Refusal, match="NB must be numbers of chapters, got 77"):
        hub.collect("77")


@pytest.mark.parametrize("drop", [(), ("id",), ("email",)], ids=["all", "no id", "no address"])
def test_the_grader_finds_the_owner_of_every_folder(hub: Class, drop: tuple[str, ...]) -> None:
    students = [
        tuple("" if head in drop else cell for head, cell in zip(HEADS, row, strict=True))
        for row in CLASS
    ]
    hub.list(students)
    for number in range(len(CLASS)):
        hub.put(number)
    assert len(hub.collect()) == len(CLASS)
    listed = hub.base / "class.csv"
    with listed.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([HEADS[1:], *(row[1:] for row in students)])
    scratch = hub.base / "scratch"
    scratch.mkdir()
    found, others = submissions.collect(hub.out / "3", {"03": "03_exercises"}, scratch)
    people, questions = class_list(found, Matching(read_roster(listed)), times=False)
    assert (others, questions) == ([], [])
    assert [(p.row["name"], p.row["id"], p.row["email"]) for p in people] == [
        row[1:] for row in students
    ]
    assert all(person.chapters for person in people)


@pytest.mark.parametrize(
    "students",
    [
        [(f"u{n}", "...", "", f"{n}") for n in range(4)],
        [("u0", "Ada Lovelace", "", ""), ("u1", "ada-lovelace", "", ""), ("u2", "u1", "", "")],
    ],
    ids=["no words", "equal words"],
)
def test_students_never_share_a_folder(hub: Class, students: list[tuple[str, ...]]) -> None:
    hub.list(students)
    for number in range(len(students)):
        hub.put(number)
    assert len(hub.collect()) == len(students)


def test_a_week_is_replaced_as_a_whole_and_kept(hub: Class) -> None:
    path = hub.put(0)
    hub.put(1)
    first = hub.collect()
    path.unlink()
    hub.put(1, OTHER, N04)
    assert list(hub.collect()) == [f"Bo Øster/{N03}", f"Bo Øster/{N04}"]
    (earlier,) = (hub.out / "earlier").iterdir()
    assert {str(p.relative_to(earlier)) for p in earlier.rglob("*.ipynb")} == set(first)
    assert {p.name for p in hub.out.iterdir()} == {"3", "earlier"}


def test_a_week_stays_if_there_is_nothing_new_or_it_fails(hub: Class, monkeypatch) -> None:
    path = hub.put(0)
    first = hub.collect()
    path.unlink()
    with pytest.raises(Refusal, match="got none"):
        hub.collect()
    hub.put(1)
    rename, count = Path.rename, iter(range(9))

    def failing(self: Path, target: Path) -> Path:
        if next(count) == 1:
            raise OSError("no")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(OSError, match="no"):
        hub.collect()
    found = sorted((hub.out / "3").rglob("*.ipynb"))
    assert [str(p.relative_to(hub.out / "3")) for p in found] == list(first)
    assert not list(hub.out.glob(".unfinished*"))


def test_a_week_is_a_name(hub: Class) -> None:
    hub.put(0)
    for name in ("../3", "a/b", ".hidden", "earlier", "", "a\nb"):
        with pytest.raises(Refusal, match="WEEK must be a name"):
            hub.collect(week=name)


def test_a_folder_in_which_others_write_is_refused(hub: Class) -> None:
    hub.put(0)
    hub.out.mkdir()
    hub.out.chmod(0o777)
    with pytest.raises(Refusal, match="OUT must be a folder in which only you can write"):
        hub.collect()


def test_a_folder_without_accounts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Refusal, match="HUB must be the folder of a hub"):
        homes.Hub.read(str(tmp_path))
    (tmp_path / "accounts.csv").write_text("name\nAda\n")
    with pytest.raises(Refusal, match="HUB must be the folder of a hub"):
        homes.Hub.read(str(tmp_path))


def test_a_notebook_that_is_being_saved_is_copied_whole(hub: Class) -> None:
    """Jupyter empties the file, and writes into it."""
    path = hub.put(0, SOLVED[: len(SOLVED) // 2])
    empty = hub.put(1, b"")

    def save() -> None:
        path.write_bytes(SOLVED)
        empty.write_bytes(SOLVED)

    saving = threading.Timer(0.7, save)
    saving.start()
    found = hub.collect()
    saving.join()
    assert found == {f"Ada Lovelace/{N03}": SOLVED, f"Bo Øster/{N03}": SOLVED}


def test_a_notebook_that_changes_while_it_is_read_is_read_again(hub: Class, monkeypatch) -> None:
    """Both versions are whole, but what was read may be half of each."""
    hub.put(0, OTHER)
    new = hub.put(0, SOLVED, "new.ipynb")
    change = f"after = os.path.exists({new.name!r}) and os.replace({new.name!r}, name)\n        "
    change += "os.utime(file.fileno()) if after is None else None\n        "
    hub.change_program(monkeypatch, "after = os.fstat", change + "after = os.fstat")
    assert hub.collect() == {f"Ada Lovelace/{N03}": SOLVED}


def test_a_notebook_that_stays_cut_off_is_copied_as_it_is(hub: Class, capsys, monkeypatch) -> None:
    hub.change_program(monkeypatch, "PAUSE = 8, 0.25", "PAUSE = 2, 0.01")
    hub.put(0, SOLVED[:500])
    deep = b"[" * 200_000
    hub.put(1, deep)
    assert hub.collect() == {f"Ada Lovelace/{N03}": SOLVED[:500], f"Bo Øster/{N03}": deep}
    assert line_of(capsys) == f"03; 03 {in_home.CUT}"


# --------------------------------------------------------------------------- attacks on collecting


def test_what_is_no_file_of_the_student_is_not_copied(hub: Class, capsys, monkeypatch) -> None:
    hub.put(1, LEAK, N04)
    secret = hub.base / "secret.ipynb"
    secret.write_bytes(LEAK)
    secret.chmod(0o600)
    there = hub.exercises(0)
    names = [f"{number:02}_exercises.ipynb" for number in range(7)]
    link, home, pipe, door, folder, sparse, closed = (there / name for name in names)
    link.symlink_to(secret)
    home.symlink_to(hub.exercises(1) / N04)
    assert link.read_bytes() == home.read_bytes() == LEAK  # naive
    os.mkfifo(pipe)
    monkeypatch.chdir(there)  # the path of a socket must be short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(door.name)
    folder.mkdir()
    with sparse.open("wb") as file:
        file.truncate(10**12)
    closed.write_bytes(SOLVED)
    closed.chmod(0)
    hub.own()
    assert list(hub.collect()) == [f"Bo Øster/{N04}"]
    assert line_of(capsys) == (
        "nothing copied; 00 a link; 01 a link; 02 neither a file nor a link; 03 No such device or "
        "address; 04 neither a file nor a link; 05 larger than 20 MB; 06 Permission denied"
    )


@root
def test_a_linked_folder_leads_only_to_what_the_student_may_read(hub: Class, capsys) -> None:
    """A whole folder may be a link: to another home, and to files of root."""
    hub.put(1, LEAK)
    secrets = hub.base / "secrets"
    secrets.mkdir(mode=0o700)
    (secrets / N03).write_bytes(LEAK)
    for number, target in ((0, hub.exercises(1)), (2, secrets), (3, hub.folder / "missing")):
        hub.exercises(number).rmdir()
        hub.exercises(number).symlink_to(target)
        hub.own()
    assert (hub.exercises(0) / N03).read_bytes() == LEAK  # naive
    assert list(hub.collect()) == [f"Bo Øster/{N03}"]
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Ada Lovelace: nothing copied;") and "Permission" in lines[0]
    assert "Permission denied" in lines[2] and "No such file" in lines[3]


@root
def test_a_device_is_not_read(hub: Class, capsys) -> None:
    hub.put(1)
    os.mknod(hub.exercises(0) / N03, 0o666 | stat.S_IFCHR, os.makedev(1, 5))  # /dev/zero
    assert list(hub.collect()) == [f"Bo Øster/{N03}"]
    assert "neither a file" in line_of(capsys)


def test_a_growing_file_ends_at_the_limit(hub: Class, capsys) -> None:
    path, stop = hub.put(0, b"["), threading.Event()
    hub.put(1)

    def grow() -> None:
        with path.open("ab", buffering=0) as file:
            while not stop.is_set() and file.tell() < 30_000_000:
                file.write(b"1," * 500_000)
                time.sleep(0.02)

    growing = threading.Thread(target=grow)
    growing.start()
    found = hub.collect()
    stop.set()
    growing.join()
    assert list(found) == [f"Bo Øster/{N03}"] and "larger than 20 MB" in line_of(capsys)


def test_other_files_cost_nothing(hub: Class) -> None:
    hub.put(0)
    for number in range(200):
        (hub.exercises(0) / f"{number}_exercises.ipynb").touch()
    (hub.exercises(0) / "03_exercises.ipynb\n../../x").mkdir(parents=True)
    hub.own()
    assert list(hub.collect()) == [f"Ada Lovelace/{N03}"]


OWN = b'["03_exercises.ipynb", 2, 0, ""]\n{}'


@pytest.mark.parametrize(
    "answer",
    [
        b"words",
        b"[]",
        b'{"a": 1}',
        b"7",
        b"\xff",
        b"[" * 900,
        b"[" * 100_000,
        OWN + OWN,
        OWN[:-1],
        OWN.replace(b"03_exer", b"../exer"),
        OWN.replace(b"03_exercises.ipynb", b"/etc/passwd"),
        OWN.replace(b'"03_exercises.ipynb"', b"[]"),
        OWN.replace(b"2", b"-1"),
        OWN.replace(b"2", b"null"),
        OWN.replace(b" 0,", b" NaN,"),
        OWN.replace(b'""', b"{}"),
    ],
    ids=lambda answer: answer.decode(errors="replace")[:30],
)
def test_an_invalid_answer_is_refused(answer: bytes) -> None:
    assert collect.parsed(OWN, [N03]) == [(N03, b"{}", 0, "")]
    with pytest.raises(homes.HomeFailed, match="not valid"):
        collect.parsed(answer, [N03])


SILENT = "no answer from the home in 1.5 s"
ANSWERS = {
    f"print({OWN.decode()!r}); print('more')": "an answer from the home that is not valid",
    "while True: print('x' * 10**6)": "an answer from the home that is too long",
    "time.sleep(60)": SILENT,
    "os.fork() or time.sleep(60)": SILENT,  # the pipe stays open
    "os.kill(os.getpid(), 19)": SILENT,  # stopped
}


@pytest.mark.parametrize(("code", "said"), ANSWERS.items(), ids=ANSWERS)
def test_a_changed_child_costs_only_its_student(hub: Class, code, said, capsys, monkeypatch):
    """The student's processes may answer in place of the child."""
    hub.put(0)
    hub.put(1)
    own = f"    if '/u0/' in sys.argv[4]:\n        {code}\n        sys.exit()\n"
    start = 'if __name__ == "__main__":\n'
    hub.change_program(monkeypatch, start, start + own)
    monkeypatch.setattr(homes, "SECONDS", 1.5)
    assert list(hub.collect("03")) == [f"Bo Øster/{N03}"]
    assert line_of(capsys) == f"nothing copied; {said}"


def test_what_a_home_says_is_one_line_without_control_characters(hub: Class, capsys) -> None:
    answer = json.dumps([N03, 0, 0, "a\x1b[2J\nb" + "x" * 500]).encode() + b"\n"
    ((*_, remark),) = collect.parsed(answer, [N03])
    assert "\n" not in remark and "\x1b" not in remark and len(remark) <= 120


def test_a_time_beyond_all_times_is_cut(hub: Class, monkeypatch) -> None:
    hub.put(0)
    hub.change_program(monkeypatch, "after.st_mtime_ns, same", "10**30, same")
    assert list(hub.collect()) == [f"Ada Lovelace/{N03}"]


@root
def test_nothing_runs_as_root_in_a_home_of_root(hub: Class, capsys) -> None:
    hub.put(0)
    hub.put(1)
    os.chown(hub.homes[0], 0, 0)
    shutil.rmtree(hub.homes[2])
    assert list(hub.collect()) == [f"Bo Øster/{N03}"]
    lines = capsys.readouterr().out.splitlines()
    assert "must be the student's own" in lines[0] and "no home" in lines[2]


@root
def test_the_child_has_the_rights_of_the_student_only(hub: Class, monkeypatch) -> None:
    code = "print(os.getresuid(), os.getresgid(), os.getgroups(), dict(os.environ), os.umask(0), "
    code += "sorted(os.listdir('/proc/self/fd'))[3:], os.stat('/proc/self/environ').st_uid)"
    hub.change_program(monkeypatch, "read(*words)", code)
    found, earlier = homes.Hub.read(str(hub.folder)), os.getgroups()
    os.setgroups([0, 4])
    try:
        said = found.run(found.accounts[1], "read").decode()
    finally:
        os.setgroups(earlier)
    ids = f"({FIRST_USER + 1}, {FIRST_USER + 1}, {FIRST_USER + 1})"
    assert said.startswith(f"{ids} {ids} [] {{")
    assert "PYTHON" not in said and "HOME" not in said
    assert said.endswith(" 63 ['3'] 0\n"), "no more files, and closed to the student's processes"


# ------------------------------------------------------------------------------------ giving back


def page_of(hub: Class, number: int, name: str = "3") -> Path:
    return hub.homes[number] / "feedback" / f"{name}.html"


def grade(hub: Class, name: str = "3") -> None:
    """Write results for all students, with points that identify them."""
    listed = hub.base / "class.csv"
    with listed.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([HEADS[1:], *(row[1:] for row in CLASS)])
    people = read_roster(listed).people
    entries = []
    for number, person in enumerate(people):
        twice = f" ({person.id})" if person.name == "Jo Li" else ""
        student = Student(person.name + twice, person.id, row=person.row)
        entries.append(Entry.of(student, [chapter("03", number / 4)]))
    graded(hub.out, week(name, *entries, kind="own", columns=list(HEADS[1:])))


def test_each_page_goes_to_its_student_only(hub: Class, capsys) -> None:
    grade(hub)
    assert hub.give_back() == 0
    for number, (_, name, *_) in enumerate(CLASS):
        path = page_of(hub, number)
        page = path.read_text(encoding="utf-8")
        assert f"{number / 4:g} of 2" in page and name.split("/")[0] in page
        owner = FIRST_USER + number if IS_ROOT else os.geteuid()
        assert (path.stat().st_uid, stat.S_IMODE(path.stat().st_mode)) == (owner, 0o600)
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert [p.name for p in path.parent.iterdir()] == ["3.html"]
    assert line_of(capsys) == "feedback/3.html"


def test_a_page_of_an_earlier_run_is_replaced_and_other_weeks_stay(hub: Class) -> None:
    grade(hub)
    hub.give_back()
    before = page_of(hub, 0).read_text()
    graded(hub.out, week("4", entry("Ada Lovelace", chapter("04", 2.0), id="100")))
    assert hub.give_back() == 0  # the week added last
    path = page_of(hub, 0)
    assert "04.1" in page_of(hub, 0, "4").read_text() and path.read_text() == before
    path.write_text(path.read_text().replace("0 of 2", "9 of 2"))
    hub.own()
    hub.give_back("--week", "3")
    assert path.read_text() == before
    with pytest.raises(Refusal, match="WEEK must be one of 3, 4, got 5"):
        hub.give_back("--week", "5")


def test_a_page_with_several_possible_owners_goes_to_none(hub: Class, capsys) -> None:
    grades = chapter("03", 2.0)
    graded(hub.out, week("3", entry("Jo Li", grades), entry("Stranger", grades)))
    assert hub.give_back() == 1
    assert capsys.readouterr().out.count("not given back: no account, or several") == 2
    assert not [home for home in hub.homes if (home / "feedback").exists()]


def test_an_address_decides_before_a_number_and_a_number_may_be_short(hub: Class) -> None:
    """Moodle's numbers are new each week: Ada's is Bo's of an earlier one."""
    hub.list([CLASS[0], CLASS[1], ("u2", "Jo Li", "7", ""), ("u3", "Jo Li", "8", "")])
    ada = {"name": "Ada Lovelace", "id": "101", "email": "s0@uni.example"}
    students = [Student("Ada Lovelace", "101", row=ada)]
    students += [Student(f"Jo Li ({n})", n, row={"name": "Jo Li", "id": n}) for n in "78"]
    entries = [Entry.of(student, [chapter("03", 2.0)]) for student in students]
    graded(hub.out, week("3", *entries, kind="own", columns=list(HEADS[1:])))
    assert hub.give_back() == 0
    assert [page_of(hub, number).exists() for number in range(4)] == [True, False, True, True]
    assert "Jo Li (8)" in page_of(hub, 3).read_text()


def test_two_pages_for_one_account_are_given_to_none(hub: Class) -> None:
    grades = chapter("03", 2.0)
    graded(hub.out, week("3", entry("Ada Lovelace", grades), entry("Lovelace Ada (100)", grades)))
    assert hub.give_back() == 1
    assert not page_of(hub, 0).exists()


def is_in_the_way(kind: str, page: Path, target: Path) -> Path:
    """Put something in place of a page, or of its folder; return its path."""
    if kind in ("linked folder", "no folder"):
        page = page.parent
    else:
        page.parent.mkdir()
    match kind:
        case "file":
            page.write_text("my notes")
        case "link":
            page.symlink_to(target)
        case "link to nothing":
            page.symlink_to(target.with_name("new"))
        case "folder":
            page.mkdir()
        case "pipe":
            os.mkfifo(page)
        case "linked folder":
            page.symlink_to(target.parent)
        case "no folder":
            page.touch()
    return page


@pytest.mark.parametrize(
    "kinds",
    [("file", "link", "link to nothing", "folder"), ("pipe", "linked folder", "no folder")],
    ids=lambda kinds: ", ".join(kinds),
)
def test_nothing_of_the_student_is_replaced_or_followed(hub: Class, kinds, capsys) -> None:
    target = hub.base / "open" / "page.html"
    target.parent.mkdir()
    target.write_text("of another")
    for path in (target, target.parent):
        path.chmod(0o777)  # the students can write there
    pages = [page_of(hub, number) for number in range(len(CLASS))]
    left = [is_in_the_way(kind, page, target) for kind, page in zip(kinds, pages, strict=False)]
    hub.own()
    before = [os.lstat(path) for path in left]
    grade(hub)
    assert hub.give_back() == 1
    lines = capsys.readouterr().out.splitlines()
    assert all(": not given back: " in line for line in lines[: len(kinds)])
    assert "file of the student" in lines[0] or "neither a file" in lines[0]
    after = [os.lstat(path) for path in left]
    assert [(s.st_ino, s.st_mtime_ns) for s in after] == [(s.st_ino, s.st_mtime_ns) for s in before]
    assert target.read_text() == "of another" and list(target.parent.iterdir()) == [target]
    assert all(page.exists() for page in pages[len(kinds) :])


@root
def test_a_full_or_closed_home_says_so(hub: Class, capsys) -> None:
    grade(hub)
    hub.homes[0].chmod(0o500)
    assert hub.give_back() == 1
    assert "Permission denied" in line_of(capsys)
