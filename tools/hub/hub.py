"""Prepare or update the server of a class, and run it until Ctrl-C.

It makes one folder: the students' copy of the course with its own Python, a repository of the
notebooks, the accounts of the class list, and the hub's state. Calling it again updates all of it;
students' work and running servers stay as they are. docs/class-server.md explains each step.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from tools.commands import Refusal, parse_arguments
from tools.course.files import write
from tools.course.lab import FIRST
from tools.course.registry import ROOT
from tools.course.student_copy import release_files
from tools.grading.roster import read_roster
from tools.hub import accounts, handout

DEPLOY = ROOT / "deploy" / "jupyterhub"
PROXY = "configurable-http-proxy@5.1.0"  # newer ones need a newer Node.js than Debian 12 has
PROGRAMS = {"git": "git", "node": "nodejs", "npm": "npm"}  # and their packages on Debian
OWN_HUB, HUB = ROOT / "build" / "hub", Path("/srv/attention")  # for oneself, for a class
HOMES, SYSTEM_PYTHON = Path("/home"), Path("/usr/bin/python3")
SYSTEMD = Path("/run/systemd/system")  # exists where systemd runs
WAYS = {
    "systemd": "systemd, each with its own user, {memory} of memory and two cores",
    "local": "local, each with its own user, WITHOUT limits of memory and cores: systemd does not "
    "run here",
    "trial": "trial, all with your rights: log in yourself and give no password away",
}


def way(trial: bool) -> str:
    """Return how students' servers are started on this machine."""
    if trial or os.geteuid() != 0:
        return "trial"
    return "systemd" if SYSTEMD.exists() else "local"


def folder_of(typed: str | None, how: str) -> Path:
    """Return the folder of a hub: HUB as typed, or the default for a way to start servers."""
    return Path(typed or (OWN_HUB if how == "trial" else HUB)).expanduser().resolve()


def reachable(path: Path) -> bool:
    """Return whether other users may enter a folder, as far as it exists."""
    there = [place for place in (path, *path.parents) if place.exists()]
    return all(place.stat().st_mode & 0o001 for place in there)


def python_of(how: str) -> str:
    """Return the Python of the students' environment: this one, or else the system's.

    Raises:
        Refusal: students can run neither.
    """
    own = Path(sys.executable).resolve()
    for python in (own, SYSTEM_PYTHON):
        if how == "trial" or (python.exists() and reachable(python.resolve().parent)):
            return str(python)
    raise Refusal(
        f"Python must be one that every user can run, got {own}. Type: apt install python3-venv",
        status=1,
    )


def check(hub: Path, how: str) -> None:
    """Refuse a machine that lacks a program, and folders that students must or must not enter."""
    if lacking := [name for name in PROGRAMS if not shutil.which(name)]:
        packages = " ".join(PROGRAMS[name] for name in lacking)
        raise Refusal(
            f"the machine must have {', '.join(PROGRAMS)}, got none of {', '.join(lacking)}. "
            f"Type: apt install {packages}",
            status=1,
        )
    if how == "trial":
        return
    # systemd gives each student's server its own /tmp.
    if not reachable(hub) or (how == "systemd" and hub.is_relative_to("/tmp")):
        raise Refusal(
            f"HUB must be a folder that every user can enter, got {hub}. Choose one such as {HUB}.",
        )
    python_of(how)
    if reachable(ROOT):
        raise Refusal(
            f"the folder with the solutions must be closed to other users, got {ROOT}. "
            f"Type: chmod 700 {ROOT}",
            status=1,
        )


def call(*command: str | Path, folder: Path) -> None:
    """Run a program that installs something.

    Raises:
        Refusal: it failed.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if subprocess.call([str(word) for word in command], cwd=folder, env=environment):
        words = " ".join(map(str, command))
        raise Refusal(
            f"the packages must be installed, got an error (above) from {words}. Run it again.",
            status=1,
        )


def install(hub: Path, how: str) -> None:
    """Install the Python of all students and of the hub, and the proxy."""
    course, proxy = hub / "course", hub / "proxy"
    call(python_of(how), "-m", "tools", "install", folder=course)
    python = course / ".venv" / "bin" / "python"
    # Both files at once: a version that the course does not pin is refused, not replaced.
    needed = ("-r", "requirements.txt", "-r", DEPLOY / "requirements.txt")
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    call(python, *pip, *needed, folder=course)
    # Students may not write into it, so their Python could not keep what it compiles.
    call(python, "-m", "compileall", "-q", "utils", "checks", "clinic", folder=course)
    name, _, version = PROXY.partition("@")
    installed = proxy / "node_modules" / name / "package.json"
    if not installed.exists() or json.loads(installed.read_text())["version"] != version:
        proxy.mkdir(exist_ok=True)
        call("npm", "install", "--no-audit", "--no-fund", PROXY, folder=proxy)


def enrol(hub: Path, given: Namespace, how: str) -> None:
    """Make an account for each student of the class list, each approved sign-up and the admin.

    Raises:
        ValueError: the class list is invalid.
    """
    people = read_roster(Path(given.roster)).people if given.roster else []
    homes = hub / "homes" if how == "trial" else HOMES

    def taken(name: str) -> bool:
        return name == given.admin or (how != "trial" and accounts.is_system_user(name))

    known = accounts.read_accounts(hub)
    found = accounts.accounts_of(people, known, taken, homes)
    approved = accounts.signed_up(hub / "state" / "jupyterhub.sqlite")
    for name in sorted(approved.keys() - {a.username for a in found} - {given.admin}):
        if taken(name):
            print(f"no account for the sign-up {name}: the system has a user of this name")
        else:
            found.append(accounts.Account(name, name, "", approved[name], str(homes / name)))
    accounts.write_accounts(hub, found)
    passwords = accounts.read_passwords(hub)
    chosen = approved.keys() - passwords.keys()  # these have a password of their own
    first = {a.username: a.name for a in found if a.username not in chosen}
    accounts.add_passwords(hub, {given.admin: ""} | first)
    places = {given.admin: str(homes / given.admin)} | {a.username: a.home for a in found}
    for username, home in places.items():
        accounts.make_home(username, Path(home), system=how != "trial")
    listed = {person.name for person in people}
    left = [account.username for account in found if account.name not in listed]
    if people and left:
        print(f"not in the class list: {', '.join(left)}. Close an account at /hub/authorize")
    print(f"{len(found)} students, {len(found) - len(known)} of them new: {hub}/passwords.csv")


def settings(given: Namespace, how: str) -> dict[str, str | int | bool]:
    """Return what the hub's configuration reads."""
    names = ("port", "admin", "sign_up", "idle_minutes", "memory")
    return {"way": how, "first": FIRST} | {name: getattr(given, name) for name in names}


def prepare(hub: Path, given: Namespace, how: str) -> None:
    """Bring the folder of a hub up to date."""
    hub.mkdir(parents=True, exist_ok=True)
    (hub / "state").mkdir(mode=0o700, exist_ok=True)
    files = release_files()
    handout.update_folder(files, hub / "course")
    install(hub, how)
    if handout.publish(handout.handed_out(files), hub / "handout.git"):
        print("the notebooks that students get have changed")
    enrol(hub, given, how)
    write(hub / "settings.json", json.dumps(settings(given, how), indent=1).encode())
    write(hub / "gitconfig", f"[safe]\n\tdirectory = {hub / 'handout.git'}\n".encode())
    write(hub / "jupyterhub_config.py", (DEPLOY / "jupyterhub_config.py").read_bytes())


def main(arguments: Sequence[str] = ()) -> int:
    given = parse_arguments("hub", arguments)
    how = way(given.trial)
    hub = folder_of(given.hub, how)
    os.umask(0o022)  # students read the course; what they may not read is closed one by one
    check(hub, how)
    try:
        prepare(hub, given, how)
    except ValueError as error:
        raise Refusal(str(error), status=1) from None
    memory = f"{given.memory / 1e9:g} GB"
    print(f"students' servers: {WAYS[how].format(memory=memory)}")
    if given.no_start:
        return 0
    print(f"open http://127.0.0.1:{given.port} and log in as {given.admin}", flush=True)
    python = str(hub / "course" / ".venv" / "bin" / "python")
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        os.environ.pop(name, None)
    os.chdir(hub / "state")
    os.execv(python, [python, "-m", "jupyterhub", "-f", str(hub / "jupyterhub_config.py")])
