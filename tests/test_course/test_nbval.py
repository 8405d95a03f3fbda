"""The comparison of stored notebooks can say no: nbval with what `conftest.py` adds to it."""

from __future__ import annotations

import base64
import copy
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil
import pytest
from jupyter_client.manager import KernelManager
from made_up import code, notebook
from nbval.kernel import CURRENT_ENV_KERNEL_NAME
from PIL import Image, ImageDraw
from test_refresh import run

from checks.engine.verdict import VERDICT_MIME
from how_long import STORED, longest_first
from kernel_fork_server import CAN_FORK, KernelForkServer
from processes import running, wait_until
from tools.course.notebook import Cell, canonical
from tools.course.registry import ROOT

DRAW = """
image = Image.new("RGB", (200, 120), "white")
ImageDraw.Draw(image).line((10, 20, 190, 100), fill="black", width=2)
""".strip()


def line(end: int, size: tuple[int, int] = (200, 120)) -> Image.Image:
    image = Image.new("RGB", size, "white")
    ImageDraw.Draw(image).line((10, 20, 190, end), fill="black", width=2)
    return image


def encoded(image: Image.Image) -> str:
    memory = io.BytesIO()
    image.save(memory, "PNG")
    return base64.b64encode(memory.getvalue()).decode()


def only_picture(cell: Cell) -> dict[str, Any]:
    return next(o for o in cell["outputs"] if "image/png" in o.get("data", {}))["data"]


def another_line(cell: Cell) -> None:
    only_picture(cell)["image/png"] = encoded(line(40))


def one_dot(cell: Cell) -> None:
    image = line(100)
    image.putpixel((100, 10), (0, 0, 0))
    only_picture(cell)["image/png"] = encoded(image)


def another_size(cell: Cell) -> None:
    only_picture(cell)["image/png"] = encoded(line(100, (201, 120)))


def one_level(cell: Cell) -> None:
    image = line(100).point(lambda level: max(level - 1, 0))
    only_picture(cell)["image/png"] = encoded(image)


def drop_picture(cell: Cell) -> None:
    cell["outputs"] = [o for o in cell["outputs"] if "image/png" not in o.get("data", {})]


def drop_only_the_png(cell: Cell) -> None:
    del only_picture(cell)["image/png"]


def extra_picture(cell: Cell) -> None:
    cell["outputs"].append(copy.deepcopy(cell["outputs"][-1]))


def swap(cell: Cell) -> None:
    cell["outputs"].reverse()


def strip(cell: Cell) -> None:
    cell["outputs"], cell["execution_count"] = [], None


def another_text(cell: Cell) -> None:
    cell["outputs"][0]["text"] = ["line from 10 to 191\n"]


def untouched(cell: Cell) -> None:
    pass


def another_state(cell: Cell) -> None:
    cell["outputs"][1]["data"][VERDICT_MIME]["state"] = "right"


VERDICT = f'{{"text/plain": "a verdict", "{VERDICT_MIME}": {{"state": "not right"}}}}'
SHOW = f"""{DRAW}
print("line from 10 to 190")
display({VERDICT}, raw=True)
display(image)"""
DOCTORED: dict[Callable[[Cell], None], bool] = {
    untouched: True,
    one_level: True,
    another_line: False,
    one_dot: False,
    another_size: False,
    drop_picture: False,
    drop_only_the_png: False,
    extra_picture: False,
    swap: False,
    strip: False,
    another_text: False,
    another_state: False,
}


PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
SERVER = "tests/kernel_fork_server.py"


def copy_settings(folder: Path, fork: bool = True) -> None:
    """Put what `make test` reads before it collects into another folder.

    Its kernels are forked from a process that has imported little; without `fork`, they are not
    forked, as on a system that cannot: one kernel starts quicker so.
    """
    for name in ("conftest.py", "pyproject.toml", "tests/how_long.py"):
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    text = (ROOT / SERVER).read_text(encoding="utf-8")
    little, count = re.subn(r"PRELOADED = \([^)]*\)", 'PRELOADED = ("numpy",)', text)
    assert count == 1
    none = "CAN_FORK, KernelForkServer = False, object\n"
    (folder / SERVER).write_text(little if fork else none, encoding="utf-8")


def pytest_says(folder: Path, *words: str) -> str:
    """Run pytest in a folder and return what it says."""
    command = [*PYTEST, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    return done.stdout


def test_nbval_sees_pictures_order_and_cells_never_run(tmp_path: Path) -> None:
    """One notebook, one cell for each way to doctor the stored outputs, one plain nbval run."""
    imports = code("from IPython.display import display\nfrom PIL import Image, ImageDraw")
    path = run(tmp_path, imports, *(code(SHOW) for _ in DOCTORED))
    stored = json.loads(path.read_text())
    for cell, doctor in zip(stored["cells"][1:], DOCTORED, strict=True):
        doctor(cell)
    path.write_text(json.dumps(stored))
    copy_settings(tmp_path, fork=False)
    said = pytest_says(tmp_path, "--nbval", path.name, "-v")
    found = dict(re.findall(r"Cell (\d+) (PASSED|FAILED)", said))
    names = [doctor.__name__ for doctor in DOCTORED]
    passed = {name: found[str(i)] == "PASSED" for i, name in enumerate(names, start=1)}
    assert passed == {d.__name__: ok for d, ok in DOCTORED.items()}, said[-3000:]
    assert found["0"] == "PASSED"


def test_nbval_leaves_exercises_and_what_an_update_put_beside_alone(tmp_path: Path) -> None:
    for name in ("03_a.ipynb", "03_a.new.ipynb", "solutions/03_a.ipynb", "exercises/03_a.ipynb"):
        path = tmp_path / "notebooks" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(canonical(notebook(code("1"))))
    copy_settings(tmp_path)
    said = pytest_says(tmp_path, "--nbval", "notebooks", "--collect-only", "-q")
    found = set(re.findall(r"^(\S+)::", said, re.MULTILINE))
    assert found == {"notebooks/03_a.ipynb", "notebooks/solutions/03_a.ipynb"}, said


class Asked:
    """A kernel as a notebook gets it, asked directly."""

    def __init__(self, conftest: ModuleType, server: KernelForkServer, folder: Path) -> None:
        manager = KernelManager(
            kernel_name=CURRENT_ENV_KERNEL_NAME, kernel_spec_manager=conftest.Kernels(server)
        )
        self.kernel = conftest.PatientKernel(manager, folder, seconds=600)

    def says(self, code: str) -> str:
        """Run code; return what it prints, or the name of its error. "begun" is interrupted."""
        request, said = self.kernel.kc.execute(code), ""
        while True:
            message = self.kernel.kc.get_iopub_msg(timeout=600)
            content = message["content"]
            if message["parent_header"].get("msg_id") != request:
                continue
            if content.get("execution_state") == "idle":
                return said.strip()
            said = content.get("ename", said + content.get("text", ""))
            if said == "begun\n":
                self.kernel.interrupt()


@pytest.mark.skipif(not CAN_FORK, reason="kernels are forked on Linux only")
def test_a_forked_kernel_is_a_kernel_of_its_own(
    tmp_path: Path, conftest: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = KernelForkServer(ROOT)
    monkeypatch.setenv("SET_LATER", "yes")
    (tmp_path / "other").mkdir()
    first, second = (Asked(conftest, server, folder) for folder in (tmp_path, tmp_path / "other"))
    state = (
        "import os; print(os.path.basename(os.getcwd()), os.environ['SET_LATER'], 'x' in vars())"
    )
    assert first.says("import sys; print('torch' in sys.modules)") == "True"
    assert first.says("x = 3") == ""
    assert first.says(state) == f"{tmp_path.name} yes True"
    assert second.says(state) == "other yes False"
    endless = "import time\nprint('begun', flush=True)\ntime.sleep(600)"
    assert first.says(endless) == "KeyboardInterrupt"
    assert first.says("print(x)") == "3", "an interrupted kernel lives on"
    pids = [psutil.Process(int(each.says("print(os.getpid())"))) for each in (first, second)]
    first.kernel.stop()
    assert psutil.wait_procs(pids[:1], timeout=600)[0] and pids[1].is_running()
    # Who was killed with no time to stop its kernels leaves none behind.
    psutil.Process(second.kernel.km.provisioner.process.pid).kill()
    assert psutil.wait_procs(pids[1:], timeout=600)[0]
    assert not second.kernel.is_alive()
    server.close()


@pytest.mark.skipif(not CAN_FORK, reason="kernels are forked on Linux only")
@pytest.mark.parametrize(
    ("sent", "several"),
    [(signal.SIGKILL, []), (signal.SIGTERM, ["-n", "2", "--dist", "loadfile"])],
    ids=["one", "several"],
)
def test_a_killed_run_leaves_no_process(
    tmp_path: Path, sent: signal.Signals, several: list[str]
) -> None:
    copy_settings(tmp_path)
    begun = tmp_path / "begun"
    sleeps = (
        f"import subprocess\nopen({str(begun)!r}, 'w').close()\nsubprocess.run(['sleep', '999'])"
    )
    (tmp_path / "a.ipynb").write_text(canonical(notebook(code(sleeps))))
    (tmp_path / "tests" / "test_b.py").write_text(f"def test_it():\n    {SLEEP}\n")
    line = [*PYTEST, "--nbval", "a.ipynb"]
    mark = {"ATTENTION_RUN": str(tmp_path)}
    if several:
        line += [*several, "tests"]
    process = subprocess.Popen(
        line, cwd=tmp_path, env={**os.environ, **mark}, stdout=subprocess.DEVNULL
    )
    wait_until(lambda: begun.exists() and len(asleep(mark)) == 1 + bool(several))
    process.send_signal(sent)
    assert process.wait(timeout=600) == (-sent if sent == signal.SIGKILL else 128 + sent)
    wait_until(lambda: not running(mark))


SLEEP = "__import__('subprocess').run(['sleep', '999'])"


def asleep(mark: dict[str, str]) -> list[psutil.Process]:
    return [process for process in running(mark) if process.name() == "sleep"]


def test_a_kernel_has_time_to_answer_on_a_busy_machine(conftest: ModuleType) -> None:
    kernel = object.__new__(conftest.PatientKernel)
    answer = {"parent_header": {"msg_id": "m"}, "content": {"status": "ok"}}
    asked: list[float] = []
    kernel.get_message = lambda stream, timeout: asked.append(timeout) or answer
    for seconds in (10, None, 900):
        kernel.await_reply("m", timeout=seconds)
    assert asked == [conftest.OUTPUT_SECONDS, conftest.OUTPUT_SECONDS, 900]


def test_several_processes_begin_with_the_longest_file(tmp_path: Path) -> None:
    names = ["a.py::1", "a.py::2", "new.py::1", "b.ipynb::Cell 0", "b.ipynb::Cell 1", "c.py::1"]
    assert longest_first(names, {"a.py": 2.0, "b.ipynb": 9.0, "c.py": 2.0}) == [2, 3, 4, 0, 1, 5]
    copy_settings(tmp_path)
    many = "import pytest\n@pytest.mark.parametrize('n', range(9))\ndef test_it(n): pass\n"
    (tmp_path / "tests" / "test_one.py").write_text(many)
    (tmp_path / "tests" / "test_two.py").write_text("def test_it(): pass\n")
    (tmp_path / STORED).parent.mkdir()
    times = {"files": {"tests/test_one.py": 1.0, "tests/test_two.py": 60.0}}
    (tmp_path / STORED).write_text(json.dumps(times))
    said = pytest_says(tmp_path, "tests", "-v", "-n", "1", "--dist", "loadfile")
    done = re.findall(r"PASSED tests/(test_\w+)\.py", said)
    assert done == ["test_two", *["test_one"] * 9], said


def test_nobody_writes_the_times_of_a_run_that_failed(tmp_path: Path) -> None:
    copy_settings(tmp_path)
    for name, line in {"one": "pass", "two": "assert False"}.items():
        (tmp_path / "tests" / f"test_{name}.py").write_text(f"def test_it(): {line}\n")
    said = pytest_says(tmp_path, "tests", "-n", "2", "--dist", "loadfile", "--times", "t")
    assert "t stays as it is" in said, said
    assert not (tmp_path / "t").exists(), "a process of several has written its share"
