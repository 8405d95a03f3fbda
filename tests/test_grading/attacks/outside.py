"""Attacked resources outside of a student's process: a process, sockets, shared memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from attacks.attack import SECRET, Attack, Place, prepare

CREATE, REMOVE = 0o1600, 0  # IPC_CREAT with rw for the owner; IPC_RMID


class Listener:
    """Listen at a port, at a socket in the file system and at an abstract one."""

    def __init__(self, folder: Path):
        self.heard = ""
        self._wanted = selectors.DefaultSelector()
        self.port = 0
        kinds = [(socket.AF_INET, socket.SOCK_STREAM), (socket.AF_INET, socket.SOCK_DGRAM)]
        for family, kind in [*kinds, *[(socket.AF_UNIX, socket.SOCK_STREAM)] * 2]:
            ear = socket.socket(family, kind)
            if family == socket.AF_INET:
                ear.bind(("127.0.0.1", self.port))
                self.port = ear.getsockname()[1]
            else:
                names = [str(folder / "s"), f"\0attack-{self.port}"]
                ear.bind(names[len(self._wanted.get_map()) - 2])
            if kind == socket.SOCK_STREAM:
                ear.listen(64)
            self._wanted.register(ear, selectors.EVENT_READ)
        self._wake, told = socket.socketpair()
        self._wanted.register(told, selectors.EVENT_READ, "end")
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        while True:
            for key, _ in self._wanted.select():
                if key.data == "end":
                    return
                ear = key.fileobj
                if ear.type == socket.SOCK_DGRAM:
                    self.heard += ear.recv(4096).decode(errors="replace")
                    continue
                line, _ = ear.accept()
                line.settimeout(5)
                with line, contextlib.suppress(OSError):
                    self.heard += line.recv(4096).decode(errors="replace")

    def close(self) -> None:
        self._wake.close()
        self._thread.join()
        for key in list(self._wanted.get_map().values()):
            key.fileobj.close()


@contextlib.contextmanager
def outside(
    base: Path, attacks: list[Attack], library: str, root: Path
) -> Iterator[tuple[Place, Listener, subprocess.Popen]]:
    """Create what is attacked, and remove it afterwards.

    Args:
        base: a new folder, its name short enough for the path of a socket.
        attacks: that will run.
        library: see `Place`.
        root: of the course.
    """
    prepare(base, attacks)
    (base / "decoy" / "secret.txt").write_text(SECRET)
    libc, ears = ctypes.CDLL(None), Listener(base)
    memory = libc.shmget(ears.port, 4096, CREATE)
    with (base / "decoy" / "secret.txt").open() as opened:
        command = ["tail", "-F", str(base / "n")]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        victim = subprocess.Popen(command, cwd=base / "decoy", stdin=opened, **quiet)
    try:
        yield Place(base, victim.pid, ears.port, library, root), ears, victim
    finally:
        victim.kill()
        victim.wait()
        ears.close()
        libc.shmctl(memory, REMOVE, None)
        listed = subprocess.run(["ps", "-ewwo", "pid,args"], capture_output=True, text=True)
        for line in listed.stdout.splitlines():
            pid, _, said = line.strip().partition(" ")
            if f"{base}/" in said and pid != str(os.getpid()) and said.startswith("tail"):
                with contextlib.suppress(OSError):
                    os.kill(int(pid), 9)
        for folder in ("/tmp", "/var/tmp", "/dev/shm"):
            for path in Path(folder).glob(f"{base.name}-*"):
                path.unlink()
