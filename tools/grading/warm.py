"""A process that has everything imported and forks a fresh kernel for each notebook.

    python warm.py SOCKET COURSE      started by tools/grade.py; ends when its standard input does

Importing torch takes longer than most notebooks run, so it is done once. Whoever connects to SOCKET
and sends one line of JSON gets a keeper: a process that forks the kernel, watches the memory, the
processes and the files of all that belongs to it, says in lines of JSON how many seconds it took
(see own_time) and how it ended, and then kills whatever was left behind. When the connection is
closed, the keeper kills everything, so nothing runs on when the command is stopped.
"""

from __future__ import annotations

import ast
import contextlib
import ctypes
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from own_time import LOOK, OwnTime

MOST_PROCESSES = 60
FILE_BYTES, FOLDER_BYTES = 200_000_000, 500_000_000
CALLS_TOO_MANY = 1000
PR_SET_CHILD_SUBREAPER = 36


# ----------------------------------------------------------------------------------- the kernel


def judging_kernel() -> type:
    """Makes the class of the kernel: Jupyter's own, which judges check cells by itself."""
    from ipykernel.ipkernel import IPythonKernel

    judge = Judge()

    class JudgingKernel(IPythonKernel):
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
            call = (cell_meta or {}).get("check")
            if not call:
                reply = await super().do_execute(
                    code, silent, store_history, user_expressions, False, cell_id=cell_id
                )
                forget_frames(getattr(sys, "last_value", None))
                return reply
            self._forward_input(False)
            try:
                said = judge.judge(call, self.shell.user_ns)
            finally:
                self._restore_input()
            count = self.shell.execution_count
            return {"status": "ok", "execution_count": count, "verdict": said, "payload": []}

    return JudgingKernel


class Judge:
    """Makes checks with everything put back to what it was before a student's code began."""

    def __init__(self) -> None:
        from pristine import Pristine

        from checks import examine

        self.pristine, self.examine = Pristine(), examine

    def judge(self, call: str, names: dict[str, Any]) -> dict[str, Any]:
        """Makes a check; whatever happens, the grader gets an answer.

        Args:
            call: the check cell, such as check("03.2", softmax).
            names: those of the student.
        """
        replaced: list[str] = []
        try:
            replaced += self.pristine.put_back()
            said = self.verdict(call, names)
            replaced += self.pristine.put_back()
        except KeyboardInterrupt:
            said = unheard("check-stopped", "it was stopped while the check ran.")
        except BaseException as error:  # whatever it is
            text = f"the check raised {type(error).__name__}: {error}"[:300]
            said = unheard("check-raised", text)
        return said | {"replaced": replaced}

    def verdict(self, call: str, names: dict[str, Any]) -> dict[str, Any]:
        """Judges the answers that a check cell names, and returns the data of the verdict."""
        tree = ast.parse(call, mode="eval").body
        exercise = ast.literal_eval(tree.args[0])
        answers = []
        for argument in tree.args[1:]:
            try:
                answers.append(eval(compile(ast.Expression(argument), "<check>", "eval"), names))
            except NameError as error:
                return unheard("no-answer", f"{error}: its cell did not run to its end.")
            except Exception as error:
                raised = f"{ast.unparse(argument)} raises {type(error).__name__}."
                return unheard("answer-raises", raised)
        found = self.examine(exercise, *answers)
        # What is said of many students alike: the cause, without where and with what it was seen.
        words = str((found.cause or found.message).core)
        return found.to_json() | {"words": words, "named": found.named}


def unheard(id: str, text: str) -> dict[str, Any]:
    """Makes the data of a verdict that no check gave, as `Verdict.to_json` does."""
    message = {"id": id, "params": {}}
    words = {"topic": id, "text": text, "words": text.rstrip("."), "named": True}
    return {"state": "not right", "message": message, "cause": None, **words}


def forget_frames(error: BaseException | None) -> None:
    """Empties the frames of an error, which would keep alive what filled the memory."""
    if error is not None:
        traceback.clear_frames(error.__traceback__)
        for frame, _ in traceback.walk_tb(error.__traceback__):
            _ = frame.f_locals  # Python 3.11 and 3.12 keep a copy until somebody looks again


def become_kernel(order: dict[str, Any], kernel: type) -> None:
    """Turns this fork into the kernel of one notebook; never returns."""
    os.setsid()
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
    """Makes a method that writes so much in each cell; when more and more comes, it raises once.

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
    """Sets a limit that holds for the process and its children, where the system knows it."""
    number = getattr(resource, name, None)
    if number is not None:
        _, most = resource.getrlimit(number)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.setrlimit(number, (value, value))


# ----------------------------------------------------------------------------------- the keeper


def adopt_orphans() -> None:
    """Makes processes that lose their parent ours, where the system can (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def keep(connection: socket.socket, kernel: type) -> None:
    """Forks the kernel that the other side asks for and watches it to its end."""
    file = connection.makefile("rw")
    order = json.loads(file.readline())
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = 1
        try:
            connection.close()
            become_kernel(order, kernel)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def say(**message: Any) -> None:
        with contextlib.suppress(OSError):  # when nobody listens any more
            print(json.dumps(message), file=file, flush=True)

    say(pid=child)
    own = OwnTime(time.monotonic())
    status = None
    while status is None:
        done, code = os.waitpid(child, os.WNOHANG)
        if done:
            status = os.waitstatus_to_exitcode(code)
            break
        if select.select([connection], [], [], LOOK)[0]:
            break  # the other side wants no more, or is gone
        processes = family()
        if why := beyond(processes, order):
            say(stopped=why)
            break
        # After the other limits: whoever passes one of those is not told that it took too long.
        say(own=own.look(time.monotonic(), cpu_of(processes), all(map(waits, processes))))
    kill_all()
    say(ended=status)


def beyond(processes: list[Any], order: dict[str, Any]) -> str | None:
    """Says which limit the kernel and what it started have passed together, None if none."""
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
    """Returns the kernel and all that it started; orphans are this keeper's children."""
    import psutil

    try:
        return psutil.Process().children(recursive=True)
    except psutil.Error:
        return []


def cpu_of(processes: list[Any]) -> float:
    """Returns the seconds of the processor that processes used, with their ended children."""
    import psutil

    total = 0.0
    for process in processes:
        try:
            total += sum(process.cpu_times()[:4])
        except (psutil.Error, OSError):
            continue  # it ended meanwhile
    return total


def waits(process: Any) -> bool:
    """Says whether a process sleeps of its own will: it is not ready to run."""
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
    """Kills the kernel and whatever it started, until nothing is left."""
    for _ in range(200):
        left = family()
        for process in left:
            try:
                os.kill(process.pid, signal.SIGKILL)
            except OSError:
                continue
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            if not left:
                return
        time.sleep(0.01)


# ---------------------------------------------------------------------------------- the forking


def main() -> None:
    path, course = sys.argv[1:]
    sys.path.insert(0, course)
    import psutil
    from pristine import load_course

    load_course()
    kernel = judging_kernel()
    # A student's code need not find these files.
    del sys.modules["pristine"], sys.modules["own_time"]
    here = str(Path(__file__).resolve().parent)
    sys.path[:] = [place for place in sys.path if place != here]
    server = socket.socket(socket.AF_UNIX)
    server.bind(path)
    server.listen(64)
    # Everything is adopted here that a keeper, killed by what it kept, left behind.
    adopt_orphans()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    print("ready", flush=True)
    while True:
        ready, _, _ = select.select([server, sys.stdin], [], [], 1)
        if server in ready:
            connection, _ = server.accept()
            if os.fork() == 0:
                try:
                    server.close()
                    keep(connection, kernel)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(0)
            connection.close()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass
        if sys.stdin in ready and not sys.stdin.readline():
            break

    for process in psutil.Process().children(recursive=True):
        if process.is_running():
            process.kill()


if __name__ == "__main__":
    main()
