"""Run one notebook in a process of its own, with limits, and collect what it shows.

nbgrader's own `Execute` waits for ever where a student's code makes it wait. `Run` takes its place.
A cell that takes too long or prints too much is interrupted, and
the next cell follows; a cell that cannot be interrupted ends the notebook, and what was right
before stays right. Check cells are not run as code: the check is made here, and only the calls of
the answers are made there (see judge.py). All seconds here are own seconds of the code (see
own_time.py): a busy machine costs nobody a point.
"""

from __future__ import annotations

import enum
import signal
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from tools.course.cards import grade_id
from tools.course.notebook import source
from tools.grading.sandbox_process import Gone, SandboxProcess

PATIENCE = 5.0  # own seconds that an interrupted cell has to end
INTERRUPTS = 4  # within these seconds
GRACE = 0.5  # own seconds in which a cell that prints too much is stopped from inside, see warm.py
SETTLING = 2.0  # own seconds after its answer in which the last outputs of a cell arrive
START = 60.0  # own seconds that a kernel has to begin
AT_ONCE = 200  # messages that are taken in before anybody decides something
KEPT = 20_000  # characters of text kept for a cell
KEPT_PICTURES = 600_000  # characters of pictures kept for a cell


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


class Kernel:
    """A kernel behind the wall; see warm.py.

    Args:
        sandbox: its world.
        order: limits, and the environment of the code.
    """

    def __init__(self, sandbox: SandboxProcess, order: dict[str, Any]):
        self.sandbox = sandbox
        self.own = 0.0  # seconds of the kernel and what it started, since it began
        self.began = self.ended = False
        self.stopped: str | None = None
        self.log = ""
        self.messages: dict[str, deque] = {"shell": deque(), "iopub": deque(), "check": deque()}
        self._over, self._count = False, 0
        try:
            sandbox.begin()
            sandbox.send({"begin": order})
        except Gone as gone:
            raise Ended(str(gone)) from None

    def look(self, wait: float = 0.0) -> None:
        """Take in what came from inside.

        Args:
            wait: seconds for the first message.
        """
        try:
            for _ in range(AT_ONCE):
                if self._over or (said := self.sandbox.receive(wait)) is None:
                    break
                wait = 0.0
                self._take(said)
        except Gone as gone:
            self._over = self.ended = True
            self.stopped = self.stopped or str(gone)

    def _take(self, said: dict[str, Any]) -> None:
        if said.get("channel") in self.messages and isinstance(said.get("content"), dict):
            self.messages[said["channel"]].append(said)
        if isinstance(said.get("check"), dict):
            self.messages["check"].append(said["check"])
        self.began = self.began or "began" in said
        if isinstance(own := said.get("own"), int | float):
            self.own = max(self.own, own)
        if "stopped" in said:
            self.stopped = self.stopped or str(said["stopped"])[:200]
        if "ended" in said:
            self.ended = True
            self.stopped = self.stopped or _words(said["ended"])
        if "over" in said:
            self._over = self.ended = True
            self.stopped = self.stopped or "it was stopped"
            self.log = str(said.get("log", ""))

    def execute(self, content: dict[str, Any], metadata: dict[str, Any]) -> int:
        """Have a cell run, and return the number that its messages have."""
        self._count += 1
        order = {"execute": content, "metadata": metadata, "number": self._count}
        self._say(order)
        return self._count

    def ask(self, message: dict[str, Any]) -> None:
        """Return something to the answers that a check is about."""
        self._say({"check": message})

    def interrupt(self) -> None:
        self._say({"interrupt": True})

    def _say(self, order: dict[str, Any]) -> None:
        try:
            if not self._over:
                self.sandbox.send(order)
        except Gone as gone:
            self._over = self.ended = True
            self.stopped = self.stopped or str(gone)

    def next(self, channel: str, wait: float = 0.0) -> dict[str, Any] | None:
        """Return the next message of a channel, None when there is none in time.

        Args:
            channel: "shell" or "iopub".
            wait: seconds.
        """
        if not self.messages[channel]:
            self.look(wait)
        return self.messages[channel].popleft() if self.messages[channel] else None

    def close(self) -> None:
        """Have everything killed that belongs to the kernel, and wait until it is."""
        self._say({"stop": True})
        while not self._over:
            self.look(0.1)


class GivenUp(BaseException):
    """A check that can go on no longer; no `except Exception` of a check may stop it."""


class Action(enum.Enum):
    """What is to be done about a cell."""

    WAIT = enum.auto()
    INTERRUPT = enum.auto()
    LEAVE = enum.auto()  # it has answered, and nothing more is to come
    GIVE_UP = enum.auto()  # it cannot be interrupted: its kernel is to be ended


class CellMonitor:
    """Decide about one cell from its own seconds and from what it showed.

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
        """Note that the kernel is done with the cell; its last outputs may be on their way."""
        if self._answered is None:
            self._answered = own

    def decide(self, own: float, shown: int) -> Action:
        """Return what to do now.

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


def _words(status: Any) -> str:
    if not isinstance(status, int):
        return "it was stopped"
    if status < 0:
        name = signal.Signals(-status).name if -status in set(signal.Signals) else str(-status)
        return f"its process died ({name})"
    return f"its process ended by itself (exit code {status})"


@dataclass
class Run:
    """Run the cells of a notebook, and keep what each check found.

    Args:
        sandbox: the world in which it runs.
        limits: what it may take.
        salt: makes cases that nobody has seen.
        own: places of the student's own cells, whose pictures are looked at; None for all.
    """

    sandbox: SandboxProcess
    limits: Limits
    salt: str = ""
    own: set[int] | None = None
    verdicts: dict[str, dict[str, Any]] = field(default_factory=dict)  # by grade_id
    troubles: dict[int, str] = field(default_factory=dict)  # by place of the cell
    stopped: str | None = None  # why the notebook did not run to its end
    stopped_at: int | None = None
    seconds: float = 0.0  # own seconds of all cells together
    log: str = ""  # the end of what the kernel wrote past Jupyter

    def __call__(self, nb: Any) -> None:
        """Run a notebook, and write into it what it shows."""
        try:
            self._run(nb)
        except Ended as end:
            self.stopped = str(end)
        for cell in nb.cells:
            name = grade_id(cell)
            if cell.cell_type == "code" and name.startswith("check-"):
                cell.outputs = self._said(name)

    def _said(self, name: str) -> list[Any]:
        """Return the output of a check cell: what the check found, as an error if not right.

        nbgrader gives points to a cell without error; so a check that was never made is one.
        """
        from nbformat.v4 import new_output

        found = self.verdicts.get(name)
        if found and found["state"] == "right":
            return [new_output("stream", name="stdout", text=f"right: {found['text']}\n")]
        text = f"{found['state']}: {found['text']}" if found else "the check was not made"
        return [new_output("error", ename="CheckFailed", evalue=text, traceback=[text])]

    def _run(self, nb: Any) -> None:
        order = {
            "environment": self.sandbox.environment,
            "memory": self.limits.memory,
            "output": self.limits.output,
        }
        kernel = Kernel(self.sandbox, order)
        try:
            while not kernel.began:
                kernel.look(0.1)
                if kernel.ended or kernel.own > START:
                    raise Ended(kernel.stopped or "its kernel did not start")
            for place, cell in enumerate(nb.cells):
                if cell.cell_type == "code":
                    self.stopped_at = place
                    cell.outputs = []
                    self._cell(kernel, cell, place)
            self.stopped_at = None
        finally:
            kernel.close()
            self.log = kernel.log

    def _cell(self, kernel: Kernel, cell: Any, place: int) -> None:
        """Run a cell, or has a check made; return when it is over, or raises `Ended`."""
        if self.seconds >= self.limits.notebook:
            raise Ended(f"it ran longer than {self.limits.notebook:g} s")
        name = grade_id(cell)
        is_check = name.startswith("check-")
        shown = Shown(cell)
        watch = CellMonitor(self.limits, kernel.own, self.limits.notebook - self.seconds)
        is_idle = False
        try:
            number = self._send(kernel, cell, place, is_check=is_check)
            if is_check:
                self.verdicts[name] = self._judge(kernel, source(cell), watch, shown)
            while not (watch.has_answered and is_idle):
                # Of the answer and the state "idle" the one may come long after the other.
                while reply := kernel.next("shell", 0.05 if is_idle else 0.0):
                    if reply.get("number") == number:
                        watch.answered(kernel.own)
                        break
                output = kernel.next("iopub", 0.0 if is_idle else 0.05)
                if output and output.get("number") != number:
                    shown.bytes += _size(output)  # printed by a thread of an earlier cell
                elif output and output.get("kind") == "status":
                    is_idle = output["content"].get("execution_state") == "idle"
                elif output and not watch.is_interrupted:
                    shown.add(output)
                kernel.look()
                if kernel.ended and not output:
                    self.troubles[place] = f"stopped: {kernel.stopped}"
                    raise Ended(kernel.stopped)
                action = watch.decide(kernel.own, shown.bytes)
                if action is Action.INTERRUPT:
                    kernel.interrupt()
                elif action is Action.LEAVE:
                    break  # the state "idle" follows at once, except where a flood drowned it
                elif action is Action.GIVE_UP:
                    raise Ended(watch.trouble)
        finally:
            self.seconds += kernel.own - watch.began
            if watch.trouble:
                self.troubles.setdefault(place, watch.trouble)
        if shown.bytes >= self.limits.output:
            self.troubles.setdefault(place, printed_too_much(self.limits))

    def _send(self, kernel: Kernel, cell: Any, place: int, *, is_check: bool) -> int:
        """Send a cell to the kernel and return the number of the message."""
        content = {
            "code": "" if is_check else source(cell),
            "silent": False,
            "store_history": True,
            "user_expressions": {},
            "allow_stdin": False,
            "stop_on_error": False,
        }
        is_looked_at = self.own is None or place in self.own
        return kernel.execute(
            content, {"answers": True} if is_check else {"pictures": is_looked_at}
        )

    def _judge(self, kernel: Kernel, call: str, watch: CellMonitor, shown: Shown) -> dict[str, Any]:
        """Make a check here, with answers that run there; they have the time of a cell."""
        from tools.grading.judge import judge

        def wait() -> dict[str, Any]:
            while (said := kernel.next("check", 0.05)) is None:
                while output := kernel.next("iopub"):
                    shown.bytes += _size(output)
                if kernel.ended:
                    raise GivenUp(kernel.stopped)
                action = watch.decide(kernel.own, shown.bytes)
                if action is Action.INTERRUPT:
                    kernel.interrupt()
                elif action is Action.GIVE_UP:
                    raise GivenUp(watch.trouble)
            return said

        try:
            found = judge(call, kernel.ask, wait, self.salt)
        except GivenUp as given_up:
            raise Ended(str(given_up)) from None
        kernel.ask({"end": True})
        return found


class Shown:
    """Collect the outputs of a cell, of which a page needs only the beginning."""

    def __init__(self, cell: Any):
        self.cell = cell
        self.bytes = self.text = self.pictures = 0

    def add(self, message: dict[str, Any]) -> None:
        from nbformat.v4 import new_output

        self.bytes += _size(message)
        kind, content = message.get("kind"), message["content"]
        if kind == "stream":
            text = str(content.get("text"))[: KEPT - self.text]
            self.text += len(text)
            name = "stderr" if content.get("name") == "stderr" else "stdout"
            outputs = self.cell.outputs
            if outputs and outputs[-1].get("name") == name:
                outputs[-1].text += text
            elif text:
                outputs.append(new_output("stream", name=name, text=text))
        elif kind in ("display_data", "execute_result"):
            data, given = {}, content.get("data")
            for mime, limit in (("text/plain", KEPT - self.text), ("image/png", KEPT_PICTURES)):
                value = given.get(mime) if isinstance(given, dict) else None
                if isinstance(value, str) and mime == "text/plain":
                    data[mime] = value[:limit]
                    self.text += len(data[mime])
                elif isinstance(value, str) and self.pictures + len(value) <= limit:
                    data[mime] = value
                    self.pictures += len(value)
            # A result that looks like a number would be points to nbgrader; a picture is not.
            self.cell.outputs.append(new_output("display_data", data=data))
        elif kind == "error":
            lines = content.get("traceback")
            lines = lines[-20:] if isinstance(lines, list) else []
            output = new_output(
                "error",
                ename=str(content.get("ename"))[:200],
                evalue=str(content.get("evalue"))[:2000],
                traceback=[str(line)[:2000] for line in lines],
            )
            self.cell.outputs.append(output)


def _size(message: dict[str, Any]) -> int:
    content = message["content"]
    if isinstance(content.get("text"), str):
        return len(content["text"])
    if isinstance(content.get("data"), dict):
        return sum(
            len(value) if isinstance(value, str) else 1000 for value in content["data"].values()
        )
    return 100
