"""Runs one notebook in a process of its own, with limits, and collects what it shows.

nbgrader's own `Execute` waits for ever where a student's code makes it wait. `Run` takes its place
among nbgrader's preprocessors. A cell that takes too long or prints too much is interrupted, and
the next cell follows; a cell that cannot be interrupted ends the notebook, and what was right
before stays right. Check cells are not run as code: the kernel judges the answers itself (see
warm.py). All seconds here are own seconds of the code (see own_time.py): a busy machine costs
nobody a point.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import queue
import secrets
import select
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from course.cards import grade_id
from course.notebook import source

PATIENCE = 5.0  # own seconds that an interrupted cell has to end
INTERRUPTS = 4  # within these seconds
GRACE = 0.5  # own seconds in which a cell that prints too much is stopped from inside, see warm.py
SETTLING = 2.0  # own seconds after its answer in which the last outputs of a cell arrive
START = 60.0  # own seconds that a kernel has to begin
SILENCE = 300.0  # seconds of the clock after which a watcher that says nothing counts as gone
KEPT = 20_000  # characters of text kept for a cell
KEPT_PICTURES = 600_000  # characters of pictures kept for a cell
MESSAGE_BYTES = 30_000_000  # a longer message is refused before it is in memory


@dataclass(frozen=True)
class Limits:
    """What a notebook may take.

    Args:
        cell: own seconds of one cell.
        notebook: own seconds of all its cells together.
        memory: bytes of all its processes together.
        output: bytes that one cell may show.
    """

    cell: float = 30.0
    notebook: float = 180.0
    memory: int = 3_000_000_000
    output: int = 5_000_000


class Ended(Exception):
    """The kernel is no more; the text says why, in words that follow "stopped: "."""


class Keeper:
    """The connection to the process that watches a kernel; see warm.py."""

    def __init__(self, address: str, order: dict[str, Any]):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(address)
        self.socket.sendall(json.dumps(order).encode() + b"\n")
        self.pid: int | None = None
        self.own = 0.0  # seconds of the kernel and what it started, since it began
        self.stopped: str | None = None
        self.ended = False
        self._rest = b""
        self._heard = time.monotonic()

    def look(self, wait: float = 0.0) -> None:
        """Takes in what the keeper said."""
        while not self.ended and select.select([self.socket], [], [], wait)[0]:
            wait = 0.0
            try:
                got = self.socket.recv(65536)
            except OSError:
                got = b""
            if not got:
                self._gone("its watcher was killed")
                return
            self._heard = time.monotonic()
            *lines, self._rest = (self._rest + got).split(b"\n")
            for line in lines:
                self._take(json.loads(line))
        if not self.ended and time.monotonic() - self._heard > SILENCE:
            self._gone("its watcher is silent")

    def _take(self, said: dict[str, Any]) -> None:
        self.pid = said.get("pid", self.pid)
        self.own = said.get("own", self.own)
        self.stopped = said.get("stopped", self.stopped)
        if "ended" in said:
            self.ended = True
            self.stopped = self.stopped or _words(said["ended"])

    def _gone(self, why: str) -> None:
        self.ended = True
        self.stopped = self.stopped or why
        if self.pid:
            self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)

    def interrupt(self) -> None:
        self._signal(signal.SIGINT)

    def close(self) -> None:
        """Has everything killed that belongs to the kernel, and waits until it is."""
        with contextlib.suppress(OSError):
            self.socket.sendall(b"stop\n")
        while not self.ended:
            self.look(0.1)
        self.socket.close()


class Action(enum.Enum):
    """What is to be done about a cell."""

    WAIT = enum.auto()
    INTERRUPT = enum.auto()
    LEAVE = enum.auto()  # it has answered, and nothing more is to come
    GIVE_UP = enum.auto()  # it cannot be interrupted: its kernel is to be ended


class Supervision:
    """Decides about one cell from its own seconds and from what it showed.

    A cell runs, it may be interrupted, and in the end it answers or is given up.

    Args:
        limits: of the notebook.
        began: own seconds of the kernel when the cell began.
        left: own seconds that the notebook has left.
    """

    def __init__(self, limits: Limits, began: float, left: float):
        self.limits, self.began, self.left = limits, began, left
        self.trouble: str | None = None  # why it was interrupted
        self._flooded: float | None = None  # since when it has shown too much
        self._interrupted: float | None = None
        self._interrupts = 0
        self._answered: float | None = None

    @property
    def has_answered(self) -> bool:
        return self._answered is not None

    @property
    def is_interrupted(self) -> bool:
        return self._interrupted is not None

    def answered(self, own: float) -> None:
        """Notes that the kernel is done with the cell; its last outputs may be on their way."""
        if self._answered is None:
            self._answered = own

    def decide(self, own: float, shown: int) -> Action:
        """Says what to do now.

        Args:
            own: own seconds of the kernel.
            shown: bytes that the cell has shown.
        """
        if self._answered is not None:
            return Action.LEAVE if own - self._answered > SETTLING else Action.WAIT
        if self._interrupted is None:
            self.trouble = self._too_long(own) or self._too_much(own, shown)
            if self.trouble is None:
                return Action.WAIT
            self._interrupted = own
        waited = own - self._interrupted
        if waited >= PATIENCE:
            self.trouble += " and did not let itself be interrupted"
            return Action.GIVE_UP
        if waited >= self._interrupts * PATIENCE / INTERRUPTS:
            self._interrupts += 1
            return Action.INTERRUPT
        return Action.WAIT

    def _too_long(self, own: float) -> str | None:
        took = own - self.began
        if took > self.limits.cell:
            return f"it took longer than {self.limits.cell:g} s"
        if took > self.left:
            return f"the notebook took longer than {self.limits.notebook:g} s"
        return None

    def _too_much(self, own: float, shown: int) -> str | None:
        if shown < self.limits.output:
            return None
        if self._flooded is None:
            self._flooded = own
        return printed_too_much(self.limits) if own - self._flooded > GRACE else None


def printed_too_much(limits: Limits) -> str:
    return f"it printed more than {limits.output / 1e6:g} MB"


def _words(status: int | None) -> str:
    if status is None:
        return "it was stopped"
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        return f"its process died ({name})"
    return f"its process ended by itself (exit code {status})"


@dataclass
class Run:
    """A preprocessor of nbgrader that runs the cells; it keeps what each check found.

    Args:
        address: of the warm process.
        folder: a new folder, in which the code runs; whoever made it removes it.
        environment: of the code.
        limits: what it may take.
    """

    address: str
    folder: Path
    environment: dict[str, str]
    limits: Limits
    verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)  # by grade_id
    troubles: dict[int, str] = field(default_factory=dict)  # by place of the cell
    stopped: str | None = None  # why the notebook did not run to its end
    stopped_at: int | None = None
    seconds: float = 0.0  # own seconds of all cells together

    def __call__(self, nb: Any, resources: Any) -> tuple[Any, Any]:
        """Runs a notebook; nbgrader calls this."""
        try:
            self._run(nb)
        except Ended as end:
            self.stopped = str(end)
        for cell in nb.cells:
            name = grade_id(cell)
            if cell.cell_type == "code" and name.startswith("check-"):
                cell.outputs = self._said(name)
        return nb, resources

    def _said(self, name: str) -> list[Any]:
        """Returns the output of a check cell: what the check found, as an error if not right.

        nbgrader gives points to a cell without error; so a check that was never made is one.
        """
        from nbformat.v4 import new_output

        found = self.verdicts.get(name)
        if found and found["state"] == "right" and not found["replaced"]:
            return [new_output("stream", name="stdout", text=f"right: {found['text']}\n")]
        text = f"{found['state']}: {found['text']}" if found else "the check was not made"
        return [new_output("error", ename="CheckFailed", evalue=text, traceback=[text])]

    def _run(self, nb: Any) -> None:
        from jupyter_client import BlockingKernelClient

        inside = self.folder / "inside"
        for name in ("work", "home", "tmp"):
            (inside / name).mkdir(parents=True)
        home = {"HOME": str(inside / "home"), "TMPDIR": str(inside / "tmp")}
        home["IPYTHONDIR"] = home["JUPYTER_RUNTIME_DIR"] = str(inside / "home" / ".ipython")
        connection = {
            "transport": "ipc",
            "ip": str(self.folder / "k"),
            "key": secrets.token_hex(),
            "signature_scheme": "hmac-sha256",
            **{
                f"{name}_port": n
                for n, name in enumerate(["shell", "iopub", "stdin", "control", "hb"], 1)
            },
        }
        file = self.folder / "connection.json"
        file.write_text(json.dumps(connection))
        order = {
            "connection": str(file),
            "folder": str(inside / "work"),
            "log": str(self.folder / "kernel.log"),
            "environment": {**self.environment, **home},
            "memory": self.limits.memory,
            "output": self.limits.output,
        }
        keeper = Keeper(self.address, order)
        client = BlockingKernelClient()
        try:
            client.load_connection_info(connection)
            client.start_channels(stdin=False, hb=False, control=False)
            import zmq

            client.iopub_channel.socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES)
            client.shell_channel.socket.setsockopt(zmq.MAXMSGSIZE, MESSAGE_BYTES)
            self._begin(client, keeper)
            file.unlink()  # its key would let the code speak in the kernel's name
            for place, cell in enumerate(nb.cells):
                if cell.cell_type == "code":
                    self.stopped_at = place
                    cell.outputs = []
                    self._cell(client, keeper, cell, place)
            self.stopped_at = None
        finally:
            client.stop_channels()
            keeper.close()

    def _begin(self, client: Any, keeper: Keeper) -> None:
        """Waits until the kernel answers and its outputs arrive."""
        request = client.kernel_info()
        while not self._reply(client, request):
            self._still_there(keeper, 0.02)
        # Outputs may be lost before the subscription works: ask until the answer is heard.
        while True:
            request = client.kernel_info()
            until = time.monotonic() + 0.1
            while time.monotonic() < until:
                message = _get(client.iopub_channel, 0.05)
                if message and message["parent_header"].get("msg_id") == request:
                    return
            self._still_there(keeper)

    @staticmethod
    def _still_there(keeper: Keeper, wait: float = 0.0) -> None:
        keeper.look(wait)
        if keeper.ended or keeper.own > START:
            raise Ended(keeper.stopped or "its kernel did not start")

    def _reply(self, client: Any, request: str, wait: float = 0.0) -> dict[str, Any] | None:
        while message := _get(client.shell_channel, wait):
            if message["parent_header"].get("msg_id") == request:
                return message
        return None

    def _cell(self, client: Any, keeper: Keeper, cell: Any, place: int) -> None:
        """Runs a cell, or has a check made; returns when it is over, or raises `Ended`."""
        if self.seconds >= self.limits.notebook:
            raise Ended(f"it ran longer than {self.limits.notebook:g} s")
        name = grade_id(cell)
        request = self._send(client, cell, is_check=name.startswith("check-"))
        shown = Shown(cell)
        watch = Supervision(self.limits, keeper.own, self.limits.notebook - self.seconds)
        is_idle = False
        try:
            while not (watch.has_answered and is_idle):
                # Of the answer and the state "idle" the one may come long after the other.
                if reply := self._reply(client, request, wait=0.05 if is_idle else 0.0):
                    watch.answered(keeper.own)
                    self._keep_verdict(name, reply)
                output = _get(client.iopub_channel, 0.0 if is_idle else 0.05)
                if output and output["parent_header"].get("msg_id") != request:
                    shown.bytes += _size(output)  # printed by a thread of an earlier cell
                elif output and output["msg_type"] == "status":
                    is_idle = output["content"]["execution_state"] == "idle"
                elif output and not watch.is_interrupted:
                    shown.add(output)
                keeper.look()
                if keeper.ended and not output:
                    self.troubles[place] = f"stopped: {keeper.stopped}"
                    raise Ended(keeper.stopped)
                action = watch.decide(keeper.own, shown.bytes)
                if action is Action.INTERRUPT:
                    keeper.interrupt()
                elif action is Action.LEAVE:
                    break  # the state "idle" follows at once, except where a flood drowned it
                elif action is Action.GIVE_UP:
                    raise Ended(watch.trouble)
        finally:
            self.seconds += keeper.own - watch.began
            if watch.trouble:
                self.troubles.setdefault(place, watch.trouble)
        if shown.bytes >= self.limits.output:
            self.troubles.setdefault(place, printed_too_much(self.limits))

    def _send(self, client: Any, cell: Any, *, is_check: bool) -> str:
        """Sends a cell to the kernel and returns the number of the message."""
        content = {
            "code": "" if is_check else source(cell),
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        message = client.session.msg("execute_request", content)
        if is_check:
            message["metadata"] = {"check": source(cell)}
        client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def _keep_verdict(self, name: str, reply: dict[str, Any]) -> None:
        found = reply["content"].get("verdict")
        if name.startswith("check-") and isinstance(found, dict):
            self.verdicts[name] = found


class Shown:
    """Collects the outputs of a cell, of which a page needs only the beginning."""

    def __init__(self, cell: Any):
        self.cell = cell
        self.bytes = self.text = self.pictures = 0

    def add(self, message: dict[str, Any]) -> None:
        from nbformat.v4 import new_output, output_from_msg

        self.bytes += _size(message)
        kind, content = message["msg_type"], message["content"]
        if kind == "stream":
            text = content["text"][: KEPT - self.text]
            self.text += len(text)
            outputs = self.cell.outputs
            if outputs and outputs[-1].get("name") == content["name"]:
                outputs[-1].text += text
            elif text:
                outputs.append(new_output("stream", name=content["name"], text=text))
        elif kind in ("display_data", "execute_result"):
            data = {}
            for mime, limit in (("text/plain", KEPT - self.text), ("image/png", KEPT_PICTURES)):
                value = content["data"].get(mime)
                if isinstance(value, str) and mime == "text/plain":
                    data[mime] = value[:limit]
                    self.text += len(data[mime])
                elif isinstance(value, str) and self.pictures + len(value) <= limit:
                    data[mime] = value
                    self.pictures += len(value)
            # A result that looks like a number would be points to nbgrader; a picture is not.
            self.cell.outputs.append(new_output("display_data", data=data))
        elif kind == "error":
            output = output_from_msg(message)
            output.evalue = output.evalue[:2000]
            output.traceback = [line[:2000] for line in output.traceback[-20:]]
            self.cell.outputs.append(output)


def _size(message: dict[str, Any]) -> int:
    content = message["content"]
    if "text" in content:
        return len(content["text"])
    if isinstance(content.get("data"), dict):
        return sum(
            len(value) if isinstance(value, str) else 1000 for value in content["data"].values()
        )
    return 100


def _get(channel: Any, timeout: float) -> dict[str, Any] | None:
    try:
        return channel.get_msg(timeout=timeout)
    except queue.Empty:
        return None
