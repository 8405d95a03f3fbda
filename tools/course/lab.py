"""Open the course in JupyterLab.

The root of the server is the folder of the course, so that notebooks may show its drawings. Which
tabs are open is remembered in .venv, apart from what you do elsewhere.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from tools.commands import parse_arguments
from tools.environment import ROOT, VENV, start

FIRST = "notebooks/00_shapes_and_einops.ipynb"


def main(arguments: Sequence[str] = ()) -> int:
    options = {
        "--ServerApp.root_dir": ROOT,
        "--ServerApp.preferred_dir": os.path.join(ROOT, "notebooks"),
        "--LabApp.workspaces_dir": os.path.join(VENV, "workspaces"),
        "--LabApp.default_url": f"/lab/tree/{FIRST}",
    }
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    given = [f"{name}={value}" for name, value in options.items()]
    os.chdir(ROOT)
    others = parse_arguments("lab", arguments).others
    return start(sys.executable, ["-m", "jupyterlab", *given, *root, *others])
