"""Make nbval see what it is blind to: pictures, the order of outputs, cells that never ran.

nbval compares text and drops the rest, so it passes a notebook whose stored plot shows another
curve. This file adds, for every cell that nbval compares: the kinds of output must be the stored
ones in the stored order, and each picture must be the stored picture, byte for byte or nearly so
in its pixels. `make test` and a plain `pytest --nbval notebooks/01_patch_embedding.ipynb` use it.
"""

from __future__ import annotations

import base64
import gc
import io
import os
import re
import signal
import subprocess
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jupyter_client.kernelspec import KernelSpec
from jupyter_client.manager import KernelManager
from nbformat import NotebookNode
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager, RunningKernel
from nbval.plugin import IPyNbCell, IPyNbFile
from PIL import Image

from kernel_fork_server import CAN_FORK, KernelForkServer

# What took how long, with --times.
pytest_plugins = ["how_long"]

# Exercises are a student's own; what an update put beside a changed file waits for them.
collect_ignore_glob = ["notebooks/exercises/*", "*.new.*"]

PICTURES = ("image/png", "image/jpeg")
# What one machine measured: names, numbers and the margin within which another one must be.
MEASURED = "application/vnd.attention-course.measured+json"
# The same picture as the PNG beside it, with words for readers who cannot see it.
EMBEDDED = re.compile(r"data:image/png;base64,[A-Za-z0-9+/=]+")
# On the scale of 0 to 255. Redrawing moves a level by one here and there (below 0.3); a curve that
# is another curve gives 5 and more, one digit of a small label 30 and more in its own tile.
RMS_WHOLE = 1.0
RMS_TILE = 12.0
TILE = 16
# How long nbval waits for an answer, and for what a cell shows. Only a dead kernel comes this far.
OUTPUT_SECONDS = 600
# One for each process of pytest.
FORK_SERVER = pytest.StashKey[KernelForkServer | None]()


def kinds(outputs: list[dict[str, Any]]) -> list[str]:
    """Name the kind of every output, in order: "stdout", "error", or its MIME types."""
    names = []
    for output in outputs:
        if output["output_type"] == "stream":
            names.append(output["name"])
        elif output["output_type"] == "error":
            names.append("error")
        else:
            names.append(f"{output['output_type']} of {', '.join(sorted(output['data']))}")
    return names


def pictures(outputs: list[dict[str, Any]]) -> Iterator[tuple[str, bytes]]:
    for output in outputs:
        for mime in PICTURES:
            if mime in output.get("data", {}) and MEASURED not in output["data"]:
                yield mime, base64.b64decode("".join(output["data"][mime]))


def picture_difference(stored: bytes, fresh: bytes) -> str | None:
    """Say how two encoded pictures differ; None when a reader would call them the same."""
    if stored == fresh:
        return None
    first, second = (
        np.asarray(Image.open(io.BytesIO(content)).convert("RGBA"), dtype=np.float64)
        for content in (stored, fresh)
    )
    if first.shape != second.shape:
        old, new = (f"{p.shape[1]} x {p.shape[0]}" for p in (first, second))
        return f"another size: stored {old} pixels, drawn {new}"
    square = ((first - second) ** 2).mean(axis=2)
    height, width = square.shape
    square = np.pad(square, ((0, -height % TILE), (0, -width % TILE)))
    tiles = square.reshape(square.shape[0] // TILE, TILE, square.shape[1] // TILE, TILE)
    worst = np.sqrt(tiles.mean(axis=(1, 3)).max())
    whole = np.sqrt(square.sum() / (height * width))
    if whole > RMS_WHOLE or worst > RMS_TILE:
        return (
            f"RMS of the pixels {whole:.2f} (limit {RMS_WHOLE}), "
            f"of the worst {TILE} x {TILE} tile {worst:.1f} (limit {RMS_TILE})"
        )
    return None


def comparable(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the outputs as nbval shall compare them: no pixels, no words about measurements."""
    result = []
    for output in outputs:
        data = output.get("data", {})
        if MEASURED in data:
            output = {**output, "data": {}}
        elif "text/html" in data and PICTURES[0] in data:
            html = EMBEDDED.sub("data:", "".join(data["text/html"]))
            output = {**output, "data": {**data, "text/html": html}}
        result.append(NotebookNode(output))
    return result


def measured_difference(stored: dict[str, Any], fresh: dict[str, Any]) -> str | None:
    """Say how two measurements differ by more than the stored margin."""
    old, new, margin = stored["numbers"], fresh["numbers"], stored["margin"]
    # As a set: a notebook is stored with sorted keys.
    if set(old) != set(new) or margin != fresh["margin"]:
        return f"other measurements: stored {list(old)}, now {list(new)}"
    far = [name for name in old if abs(old[name] - new[name]) > margin]
    if far:
        name = far[0]
        return (
            f"{name!r} is {new[name]:g} and was {old[name]:g}, further apart than {margin:g}. "
            "If that is right, run: make refresh"
        )
    return None


def difference(stored: list[dict[str, Any]], fresh: list[dict[str, Any]]) -> str | None:
    """Say what nbval overlooks between the stored and the fresh outputs of one cell."""
    if kinds(stored) != kinds(fresh):
        return (
            f"other outputs, or another order:\n  stored {kinds(stored)}\n  now    {kinds(fresh)}"
        )
    for old, new in zip(stored, fresh, strict=True):
        if MEASURED in old.get("data", {}):
            reason = measured_difference(old["data"][MEASURED], new["data"][MEASURED])
            if reason:
                return reason
    pairs = zip(pictures(stored), pictures(fresh), strict=True)
    for number, ((mime, old), (_, new)) in enumerate(pairs, start=1):
        reason = picture_difference(old, new)
        if reason:
            return f"picture {number} ({mime}) is not the stored one: {reason}"
    return None


class Cell(IPyNbCell):
    """A cell of a notebook, compared with more care than nbval's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.output_timeout = OUTPUT_SECONDS

    def compare_outputs(
        self, test: list[dict[str, Any]], ref: list[dict[str, Any]], *args: Any
    ) -> bool:
        if not super().compare_outputs(comparable(test), comparable(ref), *args):
            return False
        reason = difference(ref, test)
        if reason:
            self.comparison_traceback.append(reason)
        return reason is None

    def runtest(self) -> None:
        super().runtest()
        # nbval compares nothing in a cell without a count: it passes a notebook without outputs.
        if self.cell.execution_count is None:
            self.raise_cell_error("The stored cell was never run. Run: make refresh")


class PatientKernel(RunningKernel):
    """nbval's kernel, which has as long to answer on a busy machine as a cell has to show.

    nbval gives a new one ten seconds for its first answers, and no option changes that.

    Args:
        manager: of the kernel, which is not started yet.
        folder: in which it runs.
        seconds: that it has to start.
    """

    def __init__(self, manager: KernelManager, folder: Path, seconds: float) -> None:
        self.km = manager
        self.km.start_kernel(cwd=str(folder), stderr=subprocess.DEVNULL)
        self.kc = self.km.client()
        self.kc.start_channels()
        self.kc.wait_for_ready(timeout=seconds)
        self._ensure_iopub_up()

    def await_reply(self, msg_id: str, timeout: float | None = None) -> None:
        super().await_reply(msg_id, timeout=max(timeout or 0, OUTPUT_SECONDS))


class Kernels(NbvalKernelspecManager):
    """The command that starts a kernel of this Python: a quick one, where given.

    Args:
        server: forks kernels; None where the system cannot fork.
    """

    def __init__(self, server: KernelForkServer | None) -> None:
        super().__init__()
        self._server = server

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        spec = super().get_kernel_spec(kernel_name)
        if self._server and kernel_name == CURRENT_ENV_KERNEL_NAME:
            spec.argv = self._server.command
        return spec


class Notebook(IPyNbFile):
    """The cells of a notebook as `Cell`, run in a `PatientKernel`."""

    def setup(self) -> None:
        option = self.config.option
        stash = self.config.stash
        if FORK_SERVER not in stash:
            stash[FORK_SERVER] = KernelForkServer(self.path.parent) if CAN_FORK else None
        manager = KernelManager(
            kernel_name=option.nbval_kernel_name or CURRENT_ENV_KERNEL_NAME,
            kernel_spec_manager=Kernels(stash[FORK_SERVER]),
        )
        self.kernel = PatientKernel(manager, self.path.parent, option.nbval_kernel_startup_timeout)
        self.setup_sanitize_files()

    def collect(self) -> Iterator[Cell]:
        for cell in super().collect():
            yield Cell.from_parent(
                self,
                name=cell.name,
                cell_num=cell.cell_num,
                cell=cell.cell,
                options=cell.options,
            )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without looking for garbage, a quarter of the time: what is imported stays."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(
    file_path: Path, parent: pytest.Collector
) -> Generator[None, list[pytest.Collector], list[pytest.Collector]]:
    """Collect a notebook with the class above where nbval would do it with its own."""
    found = yield
    return [
        Notebook.from_parent(parent, path=file_path) if type(one) is IPyNbFile else one
        for one in found
    ]


def pytest_configure(config: pytest.Config) -> None:
    """End in order on SIGTERM, so that no process it started goes on."""
    own = os.getpid()

    def end(number: int, _frame: object) -> None:
        if os.getpid() == own:
            pytest.exit("SIGTERM", returncode=128 + number)
        signal.signal(number, signal.SIG_DFL)  # a fork of this process ends as every process does
        os.kill(os.getpid(), number)

    if not hasattr(config, "workerinput"):
        signal.signal(signal.SIGTERM, end)


def pytest_unconfigure(config: pytest.Config) -> None:
    if server := config.stash.get(FORK_SERVER, None):
        server.close()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Count cells of notebooks, tests and answers to exercises; name the files that failed."""
    groups = {"cells of notebooks": Counter(), "tests": Counter()}
    failures: Counter[str] = Counter()
    for outcome in ("passed", "failed", "error", "skipped", "xfailed", "xpassed"):
        for report in terminalreporter.stats.get(outcome, []):
            file = report.nodeid.split("::")[0]
            group = "cells of notebooks" if file.endswith(".ipynb") else "tests"
            groups[group][outcome] += 1
            if outcome in ("failed", "error"):
                failures[file] += 1
    terminalreporter.section("what was tried")
    for group, outcomes in groups.items():
        if outcomes:
            counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items())
            terminalreporter.write_line(f"{group}: {counts}")
    for file, count in sorted(failures.items()):
        terminalreporter.write_line(f"  {file}: {count} failed", red=True)
    tried: Counter[str] = Counter()
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            for name, (made, caught) in report.user_properties:
                tried.update({name: made, f"{name} caught": caught})
    if tried["exercises"]:
        terminalreporter.write_line(
            f"checks of {tried['exercises']} exercises: refused {tried['wrong caught']} of "
            f"{tried['wrong']} wrong answers and {tried['mutants caught']} of {tried['mutants']} "
            f"mutants ({tried['equivalent']} more are equivalent), "
            f"named a cause for {tried['named caught']} of {tried['named']} wrong answers, "
            f"passed {tried['right caught']} of {tried['right']} right answers"
        )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # Plain `-n 2` deals out single cells and tears notebooks apart.
    spread = getattr(config.option, "numprocesses", None) or hasattr(config, "workerinput")
    torn = config.getoption("dist", "no") not in ("no", "loadfile", "loadscope")
    if spread and torn and any(isinstance(item, IPyNbCell) for item in items):
        raise pytest.UsageError("notebooks in parallel need --dist loadfile")
