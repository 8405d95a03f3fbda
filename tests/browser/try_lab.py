"""JupyterLab itself: open the real notebooks, Run All, and touch every explorer."""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from browser.explorers import LONG, ROOT, WITH_EXPLORERS, stored, try_all

# Chapter 07 trains for a minute and more: its explorer is tried as it is stored, without a run.
STORED_ONLY = ("07",)
SETTINGS = {
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
    # All cells are drawn, not only those that are in sight.
    "notebook-extension/tracker": {"windowingMode": "none"},
}
RUN = 600_000  # milliseconds for a whole chapter on a busy machine


@dataclass(frozen=True)
class Lab:
    """A running JupyterLab and the folder that it serves."""

    address: str
    token: str
    folder: Path

    def url(self, notebook: str) -> str:
        return f"{self.address}/lab/tree/notebooks/{notebook}?reset&token={self.token}"


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """Serve a copy of the chapters, with settings, trust and kernels of its own."""
    home = tmp_path_factory.mktemp("lab")
    folder = home / "course"
    for part in ("img", "resources"):
        shutil.copytree(ROOT / part, folder / part)
    (folder / "notebooks").mkdir(parents=True)
    for path in WITH_EXPLORERS:
        shutil.copy(path, folder / "notebooks")
    for name, content in SETTINGS.items():
        place = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(json.dumps(content), encoding="utf-8")
    environment = {
        **os.environ,
        "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
        "IPYTHONDIR": str(home / "ipython"), "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"), "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "clinic")]),
    }  # fmt: skip
    known = [str(folder / "notebooks" / path.name) for path in WITH_EXPLORERS]
    trust = [sys.executable, "-m", "jupyter", "trust", *known]
    subprocess.run(trust, env=environment, check=True, capture_output=True)
    token, port = secrets.token_hex(16), free_port()
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--ip=127.0.0.1",
        f"--port={port}", "--ServerApp.port_retries=0", f"--IdentityProvider.token={token}",
        f"--ServerApp.root_dir={folder}",
    ]  # fmt: skip
    log = home / "log"
    with log.open("wb") as output:
        server = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
    running = Lab(f"http://127.0.0.1:{port}", token, folder)
    try:
        wait_for(running, server, log)
        yield running
    finally:
        server.terminate()
        server.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(lab: Lab, server: subprocess.Popen, log: Path) -> None:
    """Wait until the server answers; its own end is an error, its slowness is none."""
    until = time.monotonic() + 300
    while time.monotonic() < until:
        assert server.poll() is None, log.read_text(encoding="utf-8")
        try:
            urllib.request.urlopen(f"{lab.address}/api?token={lab.token}", timeout=5).close()
            return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(log.read_text(encoding="utf-8"))


def open_notebook(page: Page, lab: Lab, path: Path) -> None:
    page.goto(lab.url(path.name), timeout=LONG)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    count = sum(cell["cell_type"] == "code" for cell in cells)
    expect(page.locator(".jp-CodeCell")).to_have_count(count, timeout=LONG)
    expect(page.locator(".jp-Notebook-ExecutionIndicator")).to_have_attribute(
        "data-status", "idle", timeout=LONG
    )


def run_all(page: Page) -> None:
    """Clear what is stored, run every cell, and wait until each has a number again."""
    page.get_by_role("menuitem", name="Edit", exact=True).click()
    page.get_by_role("menuitem", name="Clear Outputs of All Cells").click()
    prompts = page.locator(".jp-CodeCell .jp-InputPrompt")
    expect(prompts.filter(has_text=re.compile(r"\d"))).to_have_count(0, timeout=LONG)
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    expect(prompts.filter(has_text=re.compile(r"\[\d+\]"))).to_have_count(
        prompts.count(), timeout=RUN
    )


@pytest.mark.parametrize("path", WITH_EXPLORERS, ids=lambda path: path.stem)
def test_explorers_in_jupyterlab(path: Path, lab: Lab, page: Page) -> None:
    open_notebook(page, lab, path)
    if path.name[:2] not in STORED_ONLY:
        run_all(page)
    errors = page.locator('[data-mime-type="application/vnd.jupyter.stderr"]')
    assert errors.all_inner_texts() == []
    try_all(page, stored(path))
    silent = page.locator(".jp-OutputArea-output img:not([alt])")
    expect(silent).to_have_count(0)


def test_an_untrusted_notebook_is_legible(lab: Lab, context: BrowserContext) -> None:
    """Fresh from the net, scripts do not run: tables and words are there all the same."""
    of_each_kind = {stored(path)[0].kind: path for path in WITH_EXPLORERS}
    for path in of_each_kind.values():
        page = context.new_page()
        foreign = lab.folder / "notebooks" / f"foreign_{path.name}"
        text = json.loads(path.read_text(encoding="utf-8"))
        text["cells"][0]["source"] = ["Not signed by anybody here.\n", *text["cells"][0]["source"]]
        foreign.write_text(json.dumps(text), encoding="utf-8")
        page.goto(lab.url(foreign.name), timeout=LONG)
        boxes = page.locator(".sbs-explorer")
        expect(boxes).to_have_count(len(stored(path)), timeout=LONG)
        for explorer, box in zip(stored(path), boxes.all(), strict=True):
            assert box.is_visible()
            assert (" = " if explorer.kind == "product" else "still picture") in box.inner_text()
        page.close()
