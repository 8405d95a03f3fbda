"""Read and write in one student's home, as that student; homes.py runs this program.

    USER GROUP read FOLDER BYTES NAME ...   for each file there: a line of JSON, [name, size, time
                                            in nanoseconds, remark], and its content
    USER GROUP write FOLDER NAME MARK       the page on the standard input becomes FOLDER/NAME

It uses the standard library only. A refusal is a text that the instructor reads.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import sys
import time
from typing import BinaryIO

# Jupyter writes into the notebook itself, so it is cut off while a student saves it.
TRIES, PAUSE = 8, 0.25
CUT = "not a whole notebook, copied as it is"


def become(user: int, group: int) -> None:
    """Give up all rights but those of a user, forever.

    It is done here and not between fork and exec: a process of the student that stopped the child
    there would stop its parent, too. And no other process of the student can look into this one.
    """
    if user != os.geteuid():
        os.setgroups([])
        os.setresgid(group, group, group)
        os.setresuid(user, user, user)


def opened(name: str) -> BinaryIO:
    """Open a file to read it.

    Raises:
        OSError: there is none, or it is a link or anything else.
    """
    try:
        # Without NONBLOCK, a named pipe opens when another process writes into it: never.
        number = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        raise OSError(error.errno, "a link" if os.path.islink(name) else error.strerror) from None
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise OSError("neither a file nor a link")
    return open(number, "rb")


def read_once(name: str, most: int) -> tuple[bytes, int, bool]:
    """Return the content and time of a notebook, and whether it is whole.

    Raises:
        OSError: it must not be copied.
    """
    with opened(name) as file:
        before = os.fstat(file.fileno())
        content = file.read(most + 1) if before.st_size <= most else b""
        after = os.fstat(file.fileno())
    if max(before.st_size, after.st_size, len(content)) > most:
        raise OSError(f"larger than {most // 1_000_000} MB")
    same = (before.st_size, before.st_mtime_ns) == (after.st_size, after.st_mtime_ns)
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        same = False
    return content, after.st_mtime_ns, same


def read(folder: str, most: str, *names: str) -> None:
    """Send the notebooks; try those again that are not whole."""
    try:
        os.chdir(folder)
    except OSError as error:
        send("", b"", 0, f"{folder}: {error.strerror}")
        return
    waiting = list(names)
    for number in range(TRIES):
        is_last = number == TRIES - 1
        waiting = [name for name in waiting if not sent(name, int(most), is_last)]
        if waiting:
            time.sleep(PAUSE)


def sent(name: str, most: int, is_last: bool) -> bool:
    """Send one notebook; return False if it is not whole and may become so."""
    try:
        content, changed, is_whole = read_once(name, most)
    except FileNotFoundError:
        return True
    except OSError as error:
        send(name, b"", 0, error.strerror or str(error))
        return True
    if is_whole or is_last:
        send(name, content, changed, "" if is_whole else CUT)
    return is_whole


def send(name: str, content: bytes, changed: int, remark: str) -> None:
    line = json.dumps([name, len(content), changed, remark])
    sys.stdout.buffer.write(line.encode() + b"\n" + content)


def write(folder: str, name: str, mark: str) -> None:
    """Write a page, unless a file is there that does not contain the mark of such a page."""
    page = sys.stdin.buffer.read()
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder, 0o700)
    try:
        os.chdir(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW))
    except OSError:
        raise OSError(f"{os.path.basename(folder)} is not a folder") from None
    try:
        with opened(name) as file:
            if mark.encode() not in file.read(4096):
                raise OSError(f"{name} is a file of the student")
    except FileNotFoundError:
        pass
    temporary = f".{name}.{os.getpid()}"
    number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(number, "wb") as file:
            file.write(page)
        os.replace(temporary, name)
    except BaseException:
        os.unlink(temporary)
        raise


if __name__ == "__main__":
    user, group, work, *words = sys.argv[1:]
    become(int(user), int(group))
    if work == "read":
        read(*words)
    else:
        try:
            write(*words)
            print("written")
        except OSError as error:
            print(error.strerror or error)
