"""Examine one case in a process of its own, with a limit of time and without a network."""

from __future__ import annotations

import ctypes
import importlib
import json
import math
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from wild.cases import Case

try:
    import resource
except ImportError:  # Windows: there the clock alone limits
    resource = None  # type: ignore[assignment]

CLINIC = "wild.clinic:examine"
NEW_USER_AND_NETWORK = 0x10000000 | 0x40000000  # CLONE_NEWUSER | CLONE_NEWNET of Linux
WORDS = 4000  # of a message, at most
PATIENCE = 20  # seconds of waiting for one of processor time


@dataclass(frozen=True)
class Verdict:
    """What a tool says of one case.

    Args:
        state: answered; refused, when the tool asks for more; late, when the time was over;
            broken, when the module could not be built, which is not the tool's fault.
        healthy: whether the module is called right.
        ids: the sets of bugs that explain it, simplest first; () when there is none.
        variants: what it is said to do in another way on purpose.
        remarks: bugs that it is said to have only if something holds that the module does not show.
        helped: whether the arguments `help` were needed.
        seconds: of processor time.
        words: the report, or the reason.
    """

    state: str
    healthy: bool = False
    ids: tuple[tuple[str, ...], ...] = ()
    variants: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()
    helped: bool = False
    seconds: float = field(default=0.0, compare=False)
    words: str = field(default="", compare=False)


def examined(case: Case, root: Path, seconds: float = 120.0, tool: str = CLINIC) -> Verdict:
    """Return the verdict on a case.

    Args:
        case: what to examine.
        root: the folder that holds its repository.
        seconds: of processor time that it may take, so that a busy machine changes no verdict.
        tool: module:function that examines, as `wild.clinic:examine` does.
    """
    quick = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if quick else "spawn")
    if quick:
        context.set_forkserver_preload(["attention_clinic"])  # once, not for every case
    ours, theirs = context.Pipe(duplex=False)
    given = (case, str(root), tool, seconds, theirs)
    process = context.Process(target=_child, args=given, daemon=True)
    process.start()
    theirs.close()
    late = Verdict("late", words=f"no answer in {seconds:g} seconds")
    try:
        if not ours.poll(PATIENCE * seconds):
            return late
        said = json.loads(ours.recv_bytes())
    except (EOFError, OSError, ValueError):
        process.join(5)
        if resource and process.exitcode in (-signal.SIGXCPU, -signal.SIGKILL):
            return late
        return Verdict("broken", words=f"the process ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()
        ours.close()
    said["ids"] = tuple(tuple(one) for one in said.get("ids", ()))
    for name in ("variants", "remarks"):
        said[name] = tuple(said.get(name, ()))
    return Verdict(**said)


def _child(case: Case, root: str, tool: str, seconds: float, answer: Connection) -> None:
    """Load, build, examine, and send the verdict as JSON: nothing that the code could pickle."""
    _alone()
    if resource:
        used = math.ceil(time.process_time() + seconds)
        resource.setrlimit(resource.RLIMIT_CPU, (used, used + 5))
    silent = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silent, 1)
    os.dup2(silent, 2)
    os.chdir(root)
    answer.send_bytes(json.dumps(_tried(case, Path(root), _tool(tool))).encode())
    answer.close()
    os._exit(0)


def _alone() -> None:
    """Keep the names of the environment and the network from the strangers' code, where we can."""
    kept = ("PATH", "LANG", "OMP_NUM_THREADS", "SYSTEMROOT", "TEMP", "TMP", "TMPDIR")
    for name in set(os.environ) - set(kept):
        del os.environ[name]
    os.environ["HF_HUB_OFFLINE"] = "1"
    if sys.platform == "linux":
        ctypes.CDLL(None).unshare(NEW_USER_AND_NETWORK)  # a system may refuse: then it stays


def _tool(name: str) -> Callable[..., dict[str, Any]]:
    """Return the function that examines."""
    place, _, function = name.partition(":")
    return getattr(importlib.import_module(place), function)


def _tried(case: Case, root: Path, tool: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Return the fields of the verdict."""
    from wild.loading import load

    try:
        space, missing = load(root, case.file)
        exec(case.setup, space)
        module = eval(case.build, space)
        asked, more = (eval(f"dict({text})", space) for text in (case.asked, case.help))
    except (Exception, SystemExit) as error:
        words = "; ".join([f"{type(error).__name__}: {error}", *locals().get("missing", [])])
        return {"state": "broken", "words": words[:WORDS]}
    start, helped = time.process_time(), False
    while True:
        try:
            said = tool(module, case.tool, {**asked, **(more if helped else {})})
            state = "answered"
        except ValueError as error:
            said, state = {"words": str(error)}, "refused"
        except Exception as error:
            said, state = {"words": f"{type(error).__name__}: {error}"}, "refused"
        if state == "answered" or helped or not more:
            break
        helped = True
    said["words"] = said.get("words", "")[:WORDS]
    return {"state": state, "helped": helped, "seconds": time.process_time() - start, **said}
