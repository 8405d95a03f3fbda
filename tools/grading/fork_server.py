"""Run notebooks behind the wall: imports everything once, and fork a kernel for each notebook.

    python warm.py COURSE SCRATCH        started by sandbox.py; ends when its standard input does

Importing torch takes longer than most notebooks run, so it is done once for each student. What is
asked stands on the standard input, what is answered on the standard output, in messages of
frames.py. For each notebook this process forks a supervisor, which forks the kernel, hands messages on
in both directions, watches the memory, the processes and the files of all that belongs to the
kernel, and says how many seconds it took (see own_time). When the supervisor has ended, whatever was
left behind is killed and the folder is emptied. Behind a wall this process is the first of its own
world: nothing inside can end it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import resource
import secrets
import select
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tools.grading import framing
from tools.grading.cpu_time import LOOK, ChargedTime

MOST_PROCESSES = 60
FILE_BYTES, FOLDER_BYTES = 200_000_000, 500_000_000
MESSAGE_BYTES = 30_000_000  # a longer message of a kernel is refused before it is in memory
CALLS_TOO_MANY = 1000
AT_ONCE = 100  # messages of a kernel that are handed on before anybody looks at it
LOG_KEPT = 2000  # bytes of what a kernel wrote past Jupyter
PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER = 4, 36
IPC_RMID = 0
# What the first gradient, the first picture and the beginning of a kernel would import anew in
# every notebook.
IMPORTED_LATE = (
    "torch.fx.experimental.symbolic_shapes",
    "einops._torch_specific",
    "matplotlib_inline.backend_inline",
    "PIL.JpegPresets",
    "ipykernel.kernelapp",
    "ipykernel.debugger",
    "IPython.core.completerlib",
    "IPython.extensions.storemagic",
    "IPython.terminal.pt_inputhooks",
)


# ----------------------------------------------------------------------------------- the kernel


def answering_kernel() -> type:
    """Make the class of the kernel: Jupyter's own, which also hands out answers to a check."""
    from ipykernel.ipkernel import IPythonKernel

    from tools.grading.answer_server import serve

    class AnsweringKernel(IPythonKernel):
        check: int = -1  # the descriptor over which a check asks

        async def do_execute(
            self,
            code: str,
            silent: bool,
            store_history: bool = True,
            user_expressions: dict[str, str] | None = None,
            allow_stdin: bool = False,
            *,
            cell_meta: dict[str, Any] | None = None,
            cell_id: str | None = None,
        ) -> dict[str, Any]:
            if not (cell_meta or {}).get("answers"):
                with pictures((cell_meta or {}).get("pictures", True)):
                    reply = await super().do_execute(
                        code, silent, store_history, user_expressions, False, cell_id=cell_id
                    )
                forget_frames(getattr(sys, "last_value", None))
                return reply
            self._forward_input(False)
            try:
                post, wait = partial(framing.send, self.check), partial(framing.receive, self.check)
                serve(self.shell.user_ns, post, wait)
            finally:
                self._restore_input()
            return {"status": "ok", "execution_count": self.shell.execution_count, "payload": []}

    return AnsweringKernel


# What takes long of the course's own pictures, and what stands there when nobody looks at them.
DRAWN: dict[tuple[str, str], Callable[..., Any]] = {
    ("utils.draw.style", "_png"): lambda figure: b"",
    ("utils.draw.matrices", "_draw"): lambda *parts: None,
    ("utils.draw.matrices", "text_width"): lambda text, size=11: len(text) / 10,
}


@contextlib.contextmanager
def pictures(wanted: bool) -> Iterator[None]:
    """Save the time in which the course's own pictures are drawn, where nobody looks at them."""
    instead = {} if wanted else DRAWN
    found = {place: sys.modules.get(place[0]) for place in instead}
    kept = {place: getattr(module, place[1]) for place, module in found.items() if module}
    try:
        for module, name in kept:
            setattr(sys.modules[module], name, instead[module, name])
        yield
    finally:
        for (module, name), own in kept.items():
            setattr(sys.modules[module], name, own)


def forget_frames(error: BaseException | None) -> None:
    """Empty the frames of an error, which would keep alive what filled the memory."""
    if error is not None:
        traceback.clear_frames(error.__traceback__)
        for frame, _ in traceback.walk_tb(error.__traceback__):
            _ = frame.f_locals  # Python 3.11 and 3.12 keep a copy until somebody looks again


def become_kernel(order: dict[str, Any], kernel: type, check: int) -> None:
    """Turn this fork into the kernel of one notebook; never returns."""
    kernel.check = check
    os.setsid()
    alone(False)
    nothing, log = os.open(os.devnull, os.O_RDONLY), os.open(order["log"], os.O_WRONLY | os.O_CREAT)
    for number, file in enumerate((nothing, log, log)):
        os.dup2(file, number)
    os.chdir(order["folder"])
    os.environ.clear()
    os.environ.update(order["environment"])
    limit("RLIMIT_CORE", 0)
    limit("RLIMIT_FSIZE", FILE_BYTES)
    limit("RLIMIT_DATA", order["memory"])
    from ipykernel.iostream import OutStream
    from ipykernel.kernelapp import IPKernelApp

    OutStream.write = bounded(OutStream.write, order["output"])
    arguments = ["-f", order["connection"], "--HistoryManager.enabled=False"]
    arguments += ["--IPKernelApp.log_level=50"]
    app = IPKernelApp.instance(kernel_class=kernel)
    app.initialize(arguments)
    app.start()


def bounded(write: Any, most: int) -> Any:
    """Make a method that writes so much in each cell; when more and more comes, it raises once.

    A cell that prints faster than anybody reads would otherwise fill the memory, and could not be
    interrupted before all of it was sent.
    """
    counts: dict[Any, tuple[int, int]] = {}  # of the running cell: characters, and calls too many

    def bounded_write(self: Any, text: str) -> int:
        cell = self.parent_header.get("msg_id")
        if cell not in counts:
            counts.clear()
        written, many = counts.get(cell, (0, 0))
        counts[cell] = written + len(text), many + (written > most)
        if many == CALLS_TOO_MANY:  # once: what Jupyter says about this error must not raise
            raise RuntimeError("this cell prints without end")
        return write(self, text[: max(0, most - written)])

    return bounded_write


def limit(name: str, value: int) -> None:
    """Set a limit that holds for the process and its children, where the system knows it."""
    number = getattr(resource, name, None)
    if number is not None:
        _, most = resource.getrlimit(number)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(number, (value, value))


# ----------------------------------------------------------------------------------- the supervisor


def adopt_orphans() -> None:
    """Make processes that lose their parent ours, where the system can (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def alone(is_alone: bool) -> None:
    """Keep other processes of the same user out of this one's memory and files (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, int(not is_alone), 0, 0, 0)


class Supervisor:
    """Keep one kernel: hands messages on, watches it, and return when it has ended.

    Args:
        order: what is asked: the environment, and limits.
        scratch: the folder in which the code may write.
        kernel: the class of the kernel.
        out: the descriptor to which answers go.
    """

    def __init__(self, order: dict[str, Any], scratch: Path, kernel: type, out: int):
        self.order, self.scratch, self.kernel, self.out = order, scratch, kernel, out
        self.child = 0
        self.numbers: dict[str, int] = {}  # of the messages that were sent, by Jupyter's ids
        self.check, self.kernels_end = socket.socketpair()
        self.asked, self.answered = bytearray(), framing.FrameDecoder(bytearray)
        self.is_checks_turn = False  # the kernel waits for a check, and gets no older by that

    def keep(self) -> None:
        """Fork the kernel and stays until it has ended or is no longer wanted."""
        adopt_orphans()
        for name in ("work", "home", "tmp"):
            (self.scratch / name).mkdir(parents=True)
        connection = self.scratch / "connection.json"
        connection.write_text(json.dumps(self._connection()))
        self.child = os.fork()
        if self.child == 0:
            code = 1
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                os.close(self.out)
                self.check.close()
                end = self.kernels_end.detach()
                become_kernel(self._of_kernel(connection), self.kernel, end)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        alone(True)
        self.kernels_end.close()
        self.check.setblocking(False)
        self._serve(connection)

    def _connection(self) -> dict[str, Any]:
        names = ("shell", "iopub", "stdin", "control", "hb")
        return {
            "transport": "ipc",
            "ip": str(self.scratch / "k"),
            "key": secrets.token_hex(),
            "signature_scheme": "hmac-sha256",
            **{f"{name}_port": number for number, name in enumerate(names, 1)},
        }

    def _of_kernel(self, connection: Path) -> dict[str, Any]:
        home = {"HOME": str(self.scratch / "home"), "TMPDIR": str(self.scratch / "tmp")}
        home["IPYTHONDIR"] = home["JUPYTER_RUNTIME_DIR"] = str(self.scratch / "home" / ".ipython")
        return self.order | {
            "connection": str(connection),
            "folder": str(self.scratch / "work"),
            "log": str(self.scratch / "kernel.log"),
            "environment": {**self.order["environment"], **home},
        }

    def say(self, **message: Any) -> None:
        framing.send(self.out, message)

    def _serve(self, connection: Path) -> None:
        import zmq
        from jupyter_client import BlockingKernelClient

        client = BlockingKernelClient()
        client.load_connection_info(json.loads(connection.read_text()))
        client.start_channels(stdin=False, hb=False, control=False)
        channels = {"shell": client.shell_channel, "iopub": client.iopub_channel}
        poller = zmq.Poller()
        poller.register(0, zmq.POLLIN)
        poller.register(self.check, zmq.POLLIN)
        for channel in channels.values():
            channel.socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES)
            poller.register(channel.socket, zmq.POLLIN)
        own = ChargedTime(time.monotonic())
        watched = 0.0
        hello = Hello(client)
        while True:
            # When the kernel takes less than is asked, ask again soon.
            poller.poll(LOOK * 1000 if hello.is_heard and not self.asked else 20)
            for name, channel in channels.items():
                for _ in range(AT_ONCE):
                    if not channel.msg_ready():
                        break
                    message = channel.get_msg(timeout=0)
                    if not hello.is_heard:
                        if hello.hears(name, message):
                            connection.unlink()  # its key would let code speak for the kernel
                            self.say(began=True)
                    else:
                        self._hand_on(name, message)
            if not hello.is_heard:
                hello.ask()
            done, code = os.waitpid(self.child, os.WNOHANG)
            if done:
                self._drain(channels)
                self.say(own=self._look(own)[0], ended=os.waitstatus_to_exitcode(code))
                return
            self._check_and_answers()
            while select.select([0], [], [], 0)[0]:
                if (frame := framing.read(0)) is None:
                    return
                if framing.is_of_check(frame):
                    self._ask(frame)
                    continue
                if "stop" in (order := framing.parsed(frame)):
                    return
                self._do(client, order)
            if time.monotonic() - watched >= LOOK:
                watched = time.monotonic()
                seconds, processes = self._look(own)
                # After the other limits: who passes one of those is not told of too long a time.
                if why := beyond(processes, self.order | {"folder": str(self.scratch)}):
                    self.say(stopped=why)
                    return
                self.say(own=seconds)

    def _check_and_answers(self) -> None:
        """Pass on what a check asks and what is answered, without waiting for the kernel."""
        with contextlib.suppress(BlockingIOError, OSError):
            while self.asked:
                del self.asked[: self.check.send(self.asked)]
        with contextlib.suppress(BlockingIOError, OSError):
            while piece := self.check.recv(1 << 18):
                for frame in self.answered.add(piece):
                    self.is_checks_turn = True
                    framing.write(self.out, framing.of_kind(frame, framing.OF_CHECK))

    def _look(self, own: ChargedTime) -> tuple[float, list[Any]]:
        processes = family()
        waits_itself = not self.is_checks_turn and all(map(waits, processes))
        return own.look(time.monotonic(), cpu_of(processes), waits_itself), processes

    def _drain(self, channels: dict[str, Any]) -> None:
        """Pass on what an ended kernel said last."""
        for name, channel in channels.items():
            while channel.socket.poll(50):
                self._hand_on(name, channel.get_msg(timeout=0))

    def _ask(self, frame: bytearray) -> None:
        """Pass on what a check says to an answer, unread."""
        self.asked += framing.of_kind(frame, framing.PLAIN)
        self.is_checks_turn = False
        self._check_and_answers()

    def _do(self, client: Any, order: dict[str, Any]) -> None:
        if "interrupt" in order:
            with contextlib.suppress(OSError):
                os.killpg(self.child, signal.SIGINT)
        elif "execute" in order:
            # A check asks when it has the time.
            self.is_checks_turn = bool(order.get("metadata", {}).get("answers"))
            message = client.session.msg("execute_request", order["execute"])
            message["metadata"] = order.get("metadata", {})
            self.numbers[message["header"]["msg_id"]] = order["number"]
            client.shell_channel.send(message)

    def _hand_on(self, channel: str, message: dict[str, Any]) -> None:
        number = self.numbers.get(message["parent_header"].get("msg_id", ""))
        kind, content = message["msg_type"], message["content"]
        self.say(channel=channel, number=number, kind=kind, content=content)


class Hello:
    """Wait until the kernel answers and its outputs arrive: the first ones may be lost."""

    def __init__(self, client: Any):
        self.client, self.asked, self.is_heard = client, time.monotonic(), False
        self._ids = {client.kernel_info()}
        self._channels: set[str] = set()

    def hears(self, channel: str, message: dict[str, Any]) -> bool:
        """Return whether the message is the last that was waited for."""
        if message["parent_header"].get("msg_id") in self._ids:
            self._channels.add(channel)
        self.is_heard = len(self._channels) == 2
        return self.is_heard

    def ask(self) -> None:
        if "shell" in self._channels and time.monotonic() - self.asked > 0.1:
            self.asked = time.monotonic()
            self._ids.add(self.client.kernel_info())


def beyond(processes: list[Any], order: dict[str, Any]) -> str | None:
    """Return which limit the kernel and what it started have passed together, None if none."""
    import psutil

    if len(processes) > MOST_PROCESSES:
        return f"it started more than {MOST_PROCESSES} processes"
    # Forks share most of their memory. To count every page once takes long: only where it matters.
    # One process alone is stopped by its own limit, which costs a cell and not the notebook.
    most = 1.25 * order["memory"]
    exact = "pss" if psutil.LINUX else "uss"
    if memory_of(processes, "rss") > most and memory_of(processes, exact) > most:
        return f"it took more than {order['memory'] / 1e9:.3g} GB of memory"
    if folder_bytes(order["folder"]) > FOLDER_BYTES:
        return f"it wrote more than {FOLDER_BYTES // 1_000_000} MB of files"
    return None


def family() -> list[Any]:
    """Return the kernel and all that it started; orphans are this supervisor's children."""
    import psutil

    try:
        return psutil.Process().children(recursive=True)
    except psutil.Error:
        return []


def cpu_of(processes: list[Any]) -> float:
    """Return the seconds of the processor that processes used, with their ended children."""
    import psutil

    total = 0.0
    for process in processes:
        try:
            total += sum(process.cpu_times()[:4])
        except (psutil.Error, OSError):
            continue  # it ended meanwhile
    return total


def waits(process: Any) -> bool:
    """Return whether a process sleeps of its own will: it is not ready to run."""
    import psutil

    try:
        return process.status() not in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
    except (psutil.Error, OSError):
        return True  # it ended meanwhile


def memory_of(processes: list[Any], kind: str) -> int:
    import psutil

    total = 0
    for process in processes:
        try:
            info = process.memory_info() if kind == "rss" else process.memory_full_info()
            total += getattr(info, kind)
        except (psutil.Error, OSError):
            continue  # it ended meanwhile
    return total


def folder_bytes(folder: str) -> int:
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(place, name)).st_size
            except OSError:
                continue
    return total


def kill_all() -> None:
    """Kill everything that a notebook left behind: all other processes of this world."""
    for _ in range(200):
        if os.getpid() == 1:
            with contextlib.suppress(OSError):
                os.kill(-1, signal.SIGKILL)
        left = family()
        for process in left:
            with contextlib.suppress(OSError):
                os.kill(process.pid, signal.SIGKILL)
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            if not left:
                return
        time.sleep(0.01)


def emptied(*folders: Path) -> None:
    """Take everything out of folders."""
    for folder in folders:
        for path in folder.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()


def remove_numbered() -> None:
    """Remove what a system keeps under a number when nobody uses it any more (Linux)."""
    libc = ctypes.CDLL(None)
    for kind in ("shm", "sem", "msg"):
        with contextlib.suppress(OSError):
            for line in Path("/proc/sysvipc", kind).read_text().splitlines()[1:]:
                number = int(line.split()[1])
                if kind == "sem":
                    libc.semctl(number, 0, IPC_RMID)
                else:
                    getattr(libc, f"{kind}ctl")(number, IPC_RMID, None)


def tail_of(log: Path) -> str:
    """Return the end of what a kernel wrote past Jupyter."""
    try:
        if not log.is_file() or log.is_symlink():
            return ""
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - LOG_KEPT))
            return file.read(LOG_KEPT).decode("utf-8", "replace")
    except OSError:
        return ""


# ---------------------------------------------------------------------------------- the forking


def fonts_at_hand(course: Path, scratch: Path) -> None:
    """Let matplotlib find the list of fonts that it would make anew for some seconds."""
    place = scratch / "fonts"
    place.mkdir()
    for path in course.glob("fonts/*.json"):
        shutil.copy(path, place)
    os.environ["MPLCONFIGDIR"] = str(place)


def load_course(course: Path) -> None:
    """Import what the notebooks import, so that no kernel has to."""
    for name in [*(course / "imports.txt").read_text().split(), *IMPORTED_LATE]:
        with contextlib.suppress(ImportError):  # most names are no modules
            importlib.import_module(name)


def main() -> None:
    course, scratch = map(Path, sys.argv[1:])
    # What is imported may print: nobody takes that for an answer.
    out = os.dup(1)
    os.dup2(2, 1)
    fonts_at_hand(course, scratch)
    gc.disable()  # what is imported stays: to look through it again and again takes a fifth more
    from jupyter_client import BlockingKernelClient  # noqa: F401  # what the supervisor needs, once

    load_course(course)
    kernel = answering_kernel()
    # A student's code need not find these files.
    for name in [name for name in sys.modules if name.split(".")[0] == "tools"]:
        del sys.modules[name]
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [place for place in sys.path if not here.startswith(place or "?")]
    os.environ["PYTHONPATH"] = os.pathsep.join([str(course), str(course / "clinic")])
    del os.environ["MPLCONFIGDIR"]
    shutil.rmtree(scratch / "fonts")
    adopt_orphans()
    alone(True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    gc.enable()
    framing.send(out, {"ready": True})
    while (order := framing.receive(0)) is not None:
        if "begin" not in order:  # meant for a notebook that has ended meanwhile
            continue
        supervisor = os.fork()
        if supervisor == 0:
            code = 1
            try:
                Supervisor(order["begin"], scratch, kernel, out).keep()
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        _, status = os.waitpid(supervisor, 0)
        kill_all()
        log = tail_of(scratch / "kernel.log")
        emptied(scratch)
        if os.getpid() == 1:
            emptied(*filter(Path.is_dir, map(Path, ("/tmp", "/dev/shm", "/dev/mqueue"))))
            remove_numbered()
        if status:
            # It was killed, maybe in the middle of a message: nobody can listen on.
            return
        framing.send(out, {"over": True, "log": log})


if __name__ == "__main__":
    main()
