"""A fork server for Jupyter's kernels: one process imports what takes long, then forks them.

Importing torch and matplotlib costs two seconds of CPU time, and nbval starts a kernel for each of
the course's notebooks. Where the system can fork as needed (Linux), `KernelForkServer` imports
once; elsewhere a kernel starts as usual. What a notebook imports beyond PRELOADED, it still imports
itself, and `make refresh`, which makes the stored outputs, forks nothing.

    python kernel_fork_server.py serve ADDRESS      the fork server; ends with its parent
    python kernel_fork_server.py ask ADDRESS FILE   what Jupyter takes for the kernel whose
                                                    connection FILE holds: passes interrupts on,
                                                    ends with it
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from pathlib import Path

PRELOADED = (
    "IPython.core.completer",
    "einops",
    "ipykernel.kernelapp",
    "matplotlib.pyplot",
    "numpy",
    "torch",
)
INLINE = "module://matplotlib_inline.backend_inline"  # as in every kernel, but there set too late
CAN_FORK = sys.platform == "linux" and hasattr(os, "pidfd_open")


# ------------------------------------------------------------------------------ inside of pytest


class KernelForkServer:
    """The fork server, as long as it is needed.

    Args:
        folder: where it starts, like the kernels.
    """

    def __init__(self, folder: Path) -> None:
        self._place = tempfile.TemporaryDirectory(prefix="kernels-")
        self.address = os.path.join(self._place.name, "socket")
        self._process = subprocess.Popen(
            [sys.executable, __file__, "serve", self.address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env={**os.environ, "MPLBACKEND": INLINE},
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            raise RuntimeError("the process that forks kernels could not start, see above")

    @property
    def command(self) -> list[str]:
        """What Jupyter starts; it puts the name of a file in place of the last word."""
        quick = [sys.executable, "-I", "-S", __file__]
        return [*quick, "ask", self.address, "{connection_file}"]

    def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()
        self._place.cleanup()


# ---------------------------------------------------------------------- what Jupyter takes for it


def ask(address: str, connection: str) -> int:
    """Fork a kernel and return its exit status, when it has one."""
    parent = os.getppid()
    server = socket.socket(socket.AF_UNIX)
    server.connect(address)
    signal.signal(signal.SIGINT, lambda *_: server.sendall(b"!"))
    socket.send_fds(server, [b"!"], [0, 1, 2])
    order = {"connection": connection, "folder": os.getcwd(), "environment": dict(os.environ)}
    server.sendall(json.dumps(order).encode() + b"\n")
    while not select.select([server], [], [], 1)[0]:
        if os.getppid() != parent:  # no process is left to stop the kernel
            return 1
    return int(server.recv(100) or 1)


# ------------------------------------------------------------------------------- the fork server


def serve(address: str) -> None:
    """Import what takes long, then fork a supervisor for every connection."""
    parent = os.getppid()
    import gc
    import importlib

    sys.path.pop(0)  # of this file
    gc.disable()  # what is imported stays: looking for garbage meanwhile takes a fifth of the time
    for name in PRELOADED:
        importlib.import_module(name)
    if torch := sys.modules.get("torch"):
        # It imports what the first optimizer would, which takes as long as torch itself.
        torch.compiler.reset()
    gc.freeze()
    gc.enable()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    server = socket.socket(socket.AF_UNIX)
    server.bind(address)
    server.listen()
    print("ready", flush=True)
    while os.getppid() == parent:  # its standard input may be open in others that outlive it
        ready = select.select([server, sys.stdin], [], [], 1)[0]
        if sys.stdin in ready:
            break
        if not ready:
            continue
        connection, _ = server.accept()
        if os.fork() == 0:
            server.close()
            with contextlib.suppress(OSError):
                supervise(connection)
            os._exit(0)
        connection.close()
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass


def supervise(connection: socket.socket) -> None:
    """Fork one kernel, interrupt it as often as it is told to, and end with it."""
    _, files, _, _ = socket.recv_fds(connection, 1, 3)
    with connection.makefile() as lines:
        order = json.loads(lines.readline())
    kernel = os.fork()
    if kernel == 0:
        connection.close()
        become_kernel(order, files)
    group(kernel)
    ended = os.pidfd_open(kernel)
    while ended not in select.select([connection, ended], [], [])[0]:
        # Nothing to read means that who asked is gone.
        os.killpg(kernel, signal.SIGINT if connection.recv(1) else signal.SIGKILL)
    _, status = os.waitpid(kernel, 0)
    connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())


def group(process: int) -> None:
    """Put a process into a group of its own; both it and its parent see to that."""
    with contextlib.suppress(OSError):  # the other one was first
        os.setpgid(process, process)


def become_kernel(order: dict, files: list) -> None:
    """Turn this fork into a kernel with the files, the folder and the environment of the caller."""
    code = 1
    try:
        group(os.getpid())
        for number, file in enumerate(files):
            os.dup2(file, number)
        os.chdir(order["folder"])
        os.environ.clear()
        os.environ.update(order["environment"])
        signal.signal(signal.SIGINT, signal.default_int_handler)
        from ipykernel.kernelapp import IPKernelApp

        app = IPKernelApp.instance(parent_handle=os.getppid())
        app.initialize(["-f", order["connection"]])
        app.start()
        code = 0
    except BaseException:  # whatever it is, this fork must not go on as its parent
        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    what, *words = sys.argv[1:]
    sys.exit({"serve": serve, "ask": ask}[what](*words))
