"""The accounts of a hub, and work in the homes of students.

Everything in a home is under the student's control: links, pipes, files that grow. So nothing is
read or written there as root. A child process with the rights of the student does it (in_home.py),
and a link leads it only to what the student may read anyway.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import select
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tools.commands import Refusal, as_typed
from tools.grading.collect import visible
from tools.grading.roster import Matching, of_rows
from tools.hub.accounts import ACCOUNTS, Account, read_accounts
from tools.hub.hub import folder_of, way

PROGRAM = Path(__file__).with_name("in_home.py")
SECONDS = 60.0  # for the work in one home
ANSWER = 1000  # bytes of an answer in words


class HomeFailed(Exception):
    """Nothing can be done in a home; the text says why."""


@dataclass(frozen=True)
class Hub:
    """The folder of a hub, made by `make hub`.

    Args:
        folder: its path.
        accounts: of all students.
    """

    folder: Path
    accounts: list[Account]

    @classmethod
    def read(cls, typed: str | None) -> Hub:
        """Read the accounts of a hub.

        Args:
            typed: the folder; None for the default.

        Raises:
            Refusal: it is not the folder of a hub.
        """
        folder = folder_of(typed, way(trial=False))
        try:
            accounts = read_accounts(folder)
        except (OSError, TypeError):
            accounts = []
        if not accounts:
            raise Refusal(
                f"HUB must be the folder of a hub, got {folder} without a readable {ACCOUNTS}. "
                f"Type: {as_typed('hub')}"
            )
        return cls(folder, accounts)

    def matching(self) -> Matching:
        """Return the grader's search for the owner of a name, among the accounts."""
        rows = [
            {"name": a.name, "id": a.id, "email": a.email, "username": a.username}
            for a in self.accounts
        ]
        return Matching(of_rows(rows, ACCOUNTS))

    def run(self, account: Account, *words: str, given: bytes = b"", most: int = ANSWER) -> bytes:
        """Run in_home.py as a student, and return what it answers.

        The student's other processes may stop or kill the child, and change all that it sees. Even
        if they answered in its place, the student would change only the own result. So the answer
        is read like a submission: it has a limit of bytes and of time, and the end of the child
        does not count, because another process may keep the pipe open.

        Args:
            account: of the student.
            words: the arguments of in_home.py.
            given: its standard input.
            most: bytes of the answer.

        Raises:
            HomeFailed: there is no home, or no answer within the limits.
        """
        python = self.folder / "course" / ".venv" / "bin" / "python"
        rights = map(str, self._owner(Path(account.home)))
        program = PROGRAM.read_text(encoding="utf-8")
        with tempfile.TemporaryFile() as file:
            file.write(given)
            file.seek(0)
            try:
                child = subprocess.Popen(
                    [str(python), "-I", "-S", "-c", program, *rights, *words],
                    stdin=file,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    cwd="/",
                    env={},
                    umask=0o077,
                    start_new_session=True,
                )
            except OSError as error:
                raise HomeFailed(f"{python}: {error.strerror}") from None
        assert child.stdout is not None
        try:
            return _read(child.stdout.fileno(), most)
        finally:
            child.kill()
            child.stdout.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(1)

    def _owner(self, home: Path) -> tuple[int, int]:
        """Return the user and group of the owner of a home.

        Raises:
            HomeFailed: the home is missing, or its owner is not a student.
        """
        try:
            owner = home.stat().st_uid
        except OSError as error:
            raise HomeFailed(f"no home {home} ({error.strerror})") from None
        is_trial = home.is_relative_to(self.folder / "homes")  # all accounts are one user
        if (owner == 0 and not is_trial) or os.geteuid() not in (0, owner):
            who = "root" if owner == 0 else "a different user"
            raise HomeFailed(f"{home} must be the student's own, and read by root, got {who}")
        try:
            return owner, pwd.getpwuid(owner).pw_gid
        except KeyError:
            return owner, owner


def _read(pipe: int, most: int) -> bytes:
    """Read an answer to its end.

    Raises:
        HomeFailed: it is too long, or takes too long.
    """
    found, deadline = bytearray(), time.monotonic() + SECONDS
    while len(found) <= most:
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([pipe], [], [], left)[0]:
            raise HomeFailed(f"no answer from the home in {SECONDS:g} s")
        chunk = os.read(pipe, 1 << 20)
        if not chunk:
            return bytes(found)
        found += chunk
    raise HomeFailed("an answer from the home that is too long")


def one_line(text: str) -> str:
    """Return a text from a home as one short line."""
    return visible(text)[:120]
