"""The accounts of a class: a user name and a first password for each student of the class list.

An account stays with its student from one class list to the next. It is never removed here: a home
holds a student's work.
"""

from __future__ import annotations

import csv
import io
import os
import pwd
import secrets
import sqlite3
import subprocess
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

from tools.course.files import write
from tools.grading.roster import Person, parts, words

ACCOUNTS, PASSWORDS = "accounts.csv", "passwords.csv"
LONGEST = 20  # characters of a user name: the path of a kernel's socket in the home has a limit
READABLE = "abcdefghjkmnpqrstuvwxyz23456789"  # without signs that look alike
PASSWORD = 12  # characters


@dataclass(frozen=True)
class Account:
    """One student's account.

    Args:
        username: of the system and of the hub.
        name, id, email: as the class list has them; "" if it has none.
        home: the folder.
    """

    username: str
    name: str
    id: str
    email: str
    home: str


def read_accounts(hub: Path) -> list[Account]:
    """Return the accounts in the folder of a hub; none before its first start."""
    return [Account(**row) for row in _rows(hub / ACCOUNTS)]


def read_passwords(hub: Path) -> dict[str, str]:
    """Return the first passwords by user name."""
    return {row["username"]: row["password"] for row in _rows(hub / PASSWORDS)}


def _rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _write(path: Path, columns: Iterable[str], rows: Iterable[Iterable[str]]) -> None:
    """Write a table that only its owner can read."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([columns, *rows])
    earlier = os.umask(0o077)
    try:
        write(path, text.getvalue().encode())
    finally:
        os.umask(earlier)


def write_accounts(hub: Path, accounts: list[Account]) -> None:
    columns = [field.name for field in fields(Account)]
    _write(hub / ACCOUNTS, columns, map(astuple, accounts))


def add_passwords(hub: Path, people: dict[str, str]) -> None:
    """Make a first password for each user who has none.

    Args:
        hub: the folder of the hub.
        people: names by user name.
    """
    rows = []
    known = read_passwords(hub)
    for username, name in people.items():
        made = "".join(secrets.choice(READABLE) for _ in range(PASSWORD))
        rows.append((username, name, known.get(username, made)))
    _write(hub / PASSWORDS, ("username", "name", "password"), rows)


# ------------------------------------------------------------------------------ from the class list


def accounts_of(
    people: list[Person], known: list[Account], taken: Callable[[str], bool], homes: Path
) -> list[Account]:
    """Return the known accounts, brought up to date, followed by those of new students.

    Args:
        people: the class list.
        known: the accounts so far.
        taken: whether a user name has a different owner.
        homes: the folder of new homes.
    """
    found = list(known)
    free = dict.fromkeys(range(len(known)))
    for person in people:
        email = min((text for text in person.ids if "@" in text), default="")
        own = next((i for i in free if _is_of(known[i], person, email)), None)
        if own is not None:
            del free[own]
            found[own] = replace(known[own], name=person.name, id=person.id, email=email)
            continue
        username = _free_name(person, email, _or_one_of(found, taken))
        found.append(Account(username, person.name, person.id, email, str(homes / username)))
    return found


def _or_one_of(accounts: list[Account], taken: Callable[[str], bool]) -> Callable[[str], bool]:
    names = {account.username for account in accounts}
    return lambda name: name in names or taken(name)


def _is_of(account: Account, person: Person, email: str) -> bool:
    """Return whether an account is a person's.

    The address decides, then the name. A number only tells people with one name apart, since a
    worksheet of Moodle has new numbers each week.
    """
    if account.email and email:
        return account.email == email
    same_id = not (account.id and person.id) or account.id == person.id
    return words(account.name) == words(person.name) and same_id


def _free_name(person: Person, email: str, taken: Callable[[str], bool]) -> str:
    """Return a user name: of the name, or else of the address or number, with 2, 3... if taken."""
    texts = (person.name, email.partition("@")[0], person.id)
    name = next(filter(None, map(_plain, texts)), "student")
    name = name if name[0].isalpha() else f"s{name}"
    number, made = 1, name[:LONGEST].strip("-")
    while taken(made):
        number += 1
        end = f"-{number}"
        made = name[: LONGEST - len(end)].strip("-") + end
    return made


def _plain(text: str) -> str:
    """Return a text in small letters without accents, digits and hyphens; "" if none is left."""
    kept = ("".join(c for c in part if c.isascii()) for part in parts(text))
    return "-".join(filter(None, kept))


def signed_up(database: Path) -> dict[str, str]:
    """Return the addresses of all users that the hub knows and the admin approved, by user name."""
    if not database.exists():
        return {}
    query = "SELECT username, coalesce(email, '') FROM users_info WHERE is_authorized ORDER BY id"
    with closing(sqlite3.connect(f"{database.as_uri()}?mode=ro", uri=True)) as connection:
        return dict(connection.execute(query))


# --------------------------------------------------------------------------------------- the system


def is_system_user(username: str) -> bool:
    try:
        pwd.getpwnam(username)
    except KeyError:
        return False
    return True


def make_home(username: str, home: Path, *, system: bool) -> None:
    """Make a home that only its owner can open, and its system user, unless they exist.

    Args:
        username: of the owner.
        home: the folder.
        system: whether the owner is a user of the system, not just of the hub.
    """
    if not system:
        home.mkdir(parents=True, exist_ok=True)
    elif not is_system_user(username):
        options = ["--create-home", "--home-dir", str(home), "--shell", "/bin/bash", "--user-group"]
        subprocess.run(["useradd", *options, username], check=True)
    home.chmod(0o700)
