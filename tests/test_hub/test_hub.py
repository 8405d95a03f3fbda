"""The server of a class: accounts, what is handed out, refusals, and the hub's settings."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import stat
import subprocess
import uuid
from argparse import Namespace
from pathlib import Path

import pytest

from tools.command_list import COMMANDS
from tools.commands import Refusal, parse_arguments
from tools.course.notebook import source
from tools.course.registry import ROOT
from tools.course.student_copy import release_files
from tools.grading.roster import Person, of_rows
from tools.hub import accounts, handout, hub

HOMES = Path("/homes")
CONFIG = hub.DEPLOY / "jupyterhub_config.py"


def people(*rows: str) -> list[Person]:
    """Return a class list of rows "name,id,email"."""
    columns = ("name", "id", "email")
    return of_rows([dict(zip(columns, row.split(","), strict=True)) for row in rows], "x").people


def made(rows: list[Person], known: list[accounts.Account] = (), taken: tuple[str, ...] = ()):
    return accounts.accounts_of(rows, list(known), lambda name: name in taken, HOMES)


# ----------------------------------------------------------------------------------------- accounts

NAMES = [
    ("Ada Lovelace,1,", "ada-lovelace"),
    ("Jürgen Weiß-Łukasz,2,", "jurgen-weiss-lukasz"),
    ("Kim Minji,3,", "kim-minji"),
    ("Kim Minji,4,", "kim-minji-2"),
    ("김민지,5,minji.kim@uni.example", "minji-kim"),
    ("이름,6,", "s6"),
    ("Root,7,", "root-2"),
    ("Instructor,8,", "instructor-2"),
    ("Wolfeschlegelsteinhausen Bergerdorff,9,", "wolfeschlegelsteinha"),
    ("Wolfeschlegelsteinhausen Bergerdorff,10,", "wolfeschlegelstein-2"),
    ("O'Neil; rm -rf /,11,", "oneil-rm-rf"),
    ("??,+-,", "student"),
]


def test_names_become_user_names_that_a_system_takes() -> None:
    found = made(people(*(row for row, _ in NAMES)), taken=("root", "instructor"))
    assert [account.username for account in found] == [name for _, name in NAMES]
    pattern = re.search(r'username_pattern = r"(.+)"', CONFIG.read_text()).group(1)
    assert all(re.fullmatch(pattern, account.username) for account in found)
    assert found[1].name == "Jürgen Weiß-Łukasz" and found[1].home == "/homes/jurgen-weiss-lukasz"


def test_the_path_of_a_kernels_socket_fits() -> None:
    name = f"kernel-{uuid.uuid4()}-ipc-5"
    path = hub.HOMES / ("x" * accounts.LONGEST) / ".local/share/jupyter/runtime" / name
    assert len(str(path)) <= 107, "the longest path of a socket on Linux"


def test_an_account_stays_with_its_student() -> None:
    first = made(people("Ada Lovelace,1,ada@x.org", "Kim Minji,3,", "Kim Minji,4,", "Old One,9,"))
    # the next worksheet of Moodle: new numbers, another order; the address names the student
    again = people("Kim Minji,4,", "Ada King,77,ada@x.org", "Kim Minji,3,", "Kim Minji,5,")
    found = made(again, first)
    by_id = {account.id: account.username for account in found}
    assert by_id == {
        "77": "ada-lovelace",
        "3": "kim-minji",
        "4": "kim-minji-2",
        "5": "kim-minji-3",
        "9": "old-one",
    }
    assert made(again, found) == found
    # a new student of the same name does not get the home of the one who left
    (new,) = (a for a in made(people("Old One,10,"), first) if a.id == "10")
    assert new.username == "old-one-2"


def test_tables_are_for_their_owner_and_passwords_stay(tmp_path: Path) -> None:
    found = made(people("Ada Lovelace,1,", "Jürgen Müller,2,"))
    accounts.write_accounts(tmp_path, found)
    assert accounts.read_accounts(tmp_path) == found
    accounts.add_passwords(tmp_path, {"ada-lovelace": "Ada Lovelace"})
    before = accounts.read_passwords(tmp_path)
    accounts.add_passwords(tmp_path, {a.username: a.name for a in found})
    after = accounts.read_passwords(tmp_path)
    assert before.items() <= after.items() and after.keys() == {"ada-lovelace", "jurgen-muller"}
    assert len(set(after.values())) == 2 and min(map(len, after.values())) >= 12
    for name in (accounts.ACCOUNTS, accounts.PASSWORDS):
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600


def test_only_approved_sign_ups_are_read(tmp_path: Path) -> None:
    database = tmp_path / "hub.sqlite"
    assert accounts.signed_up(database) == {}
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE users_info (id, username, email, is_authorized)")
        rows = [(1, "zoe", "z@x.org", 1), (2, "eve", "e@x.org", 0), (3, "max", None, 1)]
        connection.executemany("INSERT INTO users_info VALUES (?, ?, ?, ?)", rows)
    connection.close()
    assert accounts.signed_up(database) == {"zoe": "z@x.org", "max": ""}


# --------------------------------------------------------------------------------------- handed out


def test_what_is_handed_out_is_released_and_has_no_broken_paths() -> None:
    released = release_files()  # without solutions, see test_release.py
    files = handout.handed_out(released)
    assert files.items() <= (released | handout.ATTRIBUTES).items()
    assert {name.partition("/")[0] for name in files} >= {"notebooks", "img"}
    assert not any(name.startswith(("notebooks/solutions", "tests", "checks")) for name in files)
    for name, content in files.items():
        if not name.endswith(".ipynb"):
            continue
        text = "\n".join(source(cell) for cell in json.loads(content)["cells"])
        for target in re.findall(r"(?:\]\(|[\"'])((?:\.\./|exercises/)[\w./-]+)", text):
            path = os.path.normpath(Path(name).parent / target)
            there = path in files or any(other.startswith(f"{path}/") for other in files)
            assert there, f"{name} names {target}"


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=x", "-c", "user.email=x@x")
    subprocess.run(["git", *identity, *words], cwd=folder, check=True, capture_output=True)


def cells(*texts: str) -> bytes:
    return json.dumps({"cells": [{"source": text} for text in texts]}, indent=1).encode()


def test_a_students_exercises_stay_and_chapters_are_merged(tmp_path: Path) -> None:
    repository, home = tmp_path / "handout.git", tmp_path / "home"
    names = ("notebooks/exercises/03.ipynb", "notebooks/03.ipynb", "notebooks/04.ipynb")
    week1 = {name: cells("a", "b", "c", "d") for name in names} | handout.ATTRIBUTES
    assert handout.publish(week1, repository)
    assert not handout.publish(week1, repository), "the same files make no commit"
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), str(home))
    for name in names[:2]:
        (home / name).write_bytes(cells("student", "b", "c", "d"))
    week2 = week1 | {name: cells("a", "b", "c", "teacher") for name in names[:2]}
    del week2[names[2]]
    assert handout.publish(week2 | {"notebooks/05.ipynb": cells("new")}, repository)
    git(home, "fetch", "-q")
    git(home, "commit", "-qam", "as nbgitpuller does")
    git(home, "merge", "-q", "-Xours", "origin/main")
    assert (home / names[0]).read_bytes() == cells("student", "b", "c", "d")
    assert (home / names[1]).read_bytes() == cells("student", "b", "c", "teacher")
    assert (home / "notebooks/05.ipynb").exists() and not (home / names[2]).exists()


def test_a_folder_holds_what_is_released_and_its_environment(tmp_path: Path) -> None:
    for name in (".venv/bin/python", "utils/old.py", "utils/__pycache__/new.pyc"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    handout.update_folder({"utils/new.py": b"1"}, tmp_path)
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()}
    assert left == {".venv/bin/python", "utils/new.py", "utils/__pycache__/new.pyc"}


# -------------------------------------------------------------------------------------- the command


def given(*words: str) -> Namespace:
    return parse_arguments("hub", words)


def test_a_trial_makes_the_whole_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    called: list[list[str]] = []
    monkeypatch.setattr(hub.subprocess, "call", lambda call, **_: called.append(call))
    monkeypatch.setattr(hub, "release_files", lambda: {"notebooks/03.ipynb": b"{}"})
    monkeypatch.setattr(hub.shutil, "which", lambda name: name)
    roster = tmp_path / "class.csv"
    roster.write_text("name,id\nAda Lovelace,1\nKim Minji,3\n", encoding="utf-8")
    folder = tmp_path / "hub"
    words = ["--trial", "--no-start", "--hub", str(folder), "--roster", str(roster)]
    hub.main(words)
    (folder / "homes" / "kim-minji" / "work").touch()
    roster.write_text("name,id\nAda Lovelace,1\n", encoding="utf-8")
    hub.main(words)
    said = capsys.readouterr().out
    assert "2 students, 2 of them new" in said and "2 students, 0 of them new" in said
    assert "not in the class list: kim-minji." in said
    assert "trial, all with your rights" in said
    assert (folder / "homes" / "kim-minji" / "work").exists()
    for name, mode in {"state": 0o700, "homes/ada-lovelace": 0o700, "passwords.csv": 0o600}.items():
        assert stat.S_IMODE((folder / name).stat().st_mode) == mode, name
    assert json.loads((folder / "settings.json").read_text())["way"] == "trial"
    assert [" ".join(map(str, call[1:4])) for call in called[:4]] == [
        "-m tools install",
        "-m pip install",
        "-m compileall -q",
        "install --no-audit --no-fund",
    ]


def test_a_failed_installation_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub.subprocess, "call", lambda *_, **__: 1)
    with pytest.raises(Refusal, match=r"must be installed, got an error .* from npm install x"):
        hub.call("npm", "install", "x", folder=tmp_path)


@pytest.fixture
def as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """Root's machine on which everything is as it should be."""
    closed = (ROOT,)
    monkeypatch.setattr(hub.os, "geteuid", lambda: 0)
    monkeypatch.setattr(hub.shutil, "which", lambda name: name)
    monkeypatch.setattr(hub, "reachable", lambda path: path not in closed)


def test_a_machine_that_cannot_is_refused(as_root: None, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.check(Path("/srv/attention"), "local")
    with monkeypatch.context() as patch:
        patch.setattr(hub.shutil, "which", lambda name: None if name == "node" else name)
        with pytest.raises(Refusal, match=r"Type: apt install nodejs$"):
            hub.check(Path("/srv/attention"), "trial")
    hub.check(Path("/tmp/hub"), "local")
    with pytest.raises(Refusal, match="HUB must be a folder"):
        hub.check(Path("/tmp/hub"), "systemd")
    for open_to_all, text in (
        (
            lambda path: path != Path("/srv/attention"),
            "HUB must be a folder",
        ),
        (lambda path: True, "solutions must be closed to other users.*chmod 700"),
        (lambda path: path == Path("/srv/attention"), "Python must be one that every user can run"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(hub, "reachable", open_to_all)
            with pytest.raises(Refusal, match=text):
                hub.check(Path("/srv/attention"), "systemd")
            hub.check(Path("/srv/attention"), "trial")


def test_a_closed_folder_closes_all_that_is_in_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    inside = tmp_path / "a" / "b"
    reachable = hub.reachable(tmp_path)
    assert hub.reachable(inside) == reachable
    tmp_path.chmod(0o750)
    assert not hub.reachable(inside)


def test_the_way_is_chosen_by_the_machine(as_root: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "SYSTEMD", ROOT)
    assert hub.way(trial=False) == "systemd" and hub.way(trial=True) == "trial"
    monkeypatch.setattr(hub, "SYSTEMD", ROOT / "missing")
    assert hub.way(trial=False) == "local"
    monkeypatch.setattr(hub.os, "geteuid", lambda: 1000)
    assert hub.way(trial=False) == "trial"


# ------------------------------------------------------------------------------- the hub's settings


def test_the_service_starts_what_the_command_makes() -> None:
    unit = (hub.DEPLOY / "attention-hub.service").read_text()
    assert f"ExecStart={hub.HUB}/course/.venv/bin/python" in unit
    assert f"-f {hub.HUB}/{CONFIG.name}\n" in unit


@pytest.mark.parametrize("way", hub.WAYS)
def test_every_setting_is_one_that_the_hub_knows(way: str, tmp_path: Path) -> None:
    pytest.importorskip("jupyterhub", reason="the packages of deploy/jupyterhub are not installed")
    from traitlets import HasTraits
    from traitlets.config import PyFileConfigLoader
    from traitlets.utils.importstring import import_item

    (tmp_path / CONFIG.name).write_bytes(CONFIG.read_bytes())
    (tmp_path / "own_config.py").write_text("c.JupyterHub.port = 1\n")
    defaults = hub.settings(given(), way)
    (tmp_path / "settings.json").write_text(json.dumps(defaults | {"sign_up": True}))
    for table in ("accounts", "passwords"):
        (tmp_path / f"{table}.csv").write_text("username,home,password\nada,/ada,x\n")
    earlier = os.umask(0o022)
    try:
        config = PyFileConfigLoader(str(tmp_path / CONFIG.name)).load_config()
    finally:
        os.umask(earlier)
    places = {
        "JupyterHub": "jupyterhub.app.JupyterHub",
        "Authenticator": "jupyterhub.auth.Authenticator",
        "NativeAuthenticator": "nativeauthenticator.NativeAuthenticator",
        "ConfigurableHTTPProxy": "jupyterhub.proxy.ConfigurableHTTPProxy",
        "Spawner": "jupyterhub.spawner.Spawner",
        "SimpleLocalProcessSpawner": "jupyterhub.spawner.SimpleLocalProcessSpawner",
        "SystemdSpawner": "systemdspawner.SystemdSpawner",
    }
    for section, values in config.items():
        known = import_item(places[section]).class_traits(config=True)
        for name, value in values.items():
            assert name in known, f"{section}.{name}"
            known[name]._validate(HasTraits(), value)
    spawner = import_item(config.JupyterHub.spawner_class)
    assert spawner.__name__.lower().startswith({"trial": "simple"}.get(way, way))
    assert config.JupyterHub.port == 1, "own settings come last"


def test_the_command_is_for_instructors() -> None:
    (command,) = (command for command in COMMANDS if command.name == "hub")
    assert command.instructors and command.level == "dev"
