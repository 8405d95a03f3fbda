"""The package itself: one thread for everybody, and an import that costs no more than torch."""

import os
import subprocess
import sys


def says(code: str) -> str:
    """Return what a fresh Python prints that may use two threads."""
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout.strip()


def test_everything_runs_on_one_thread_whatever_was_imported_first():
    count = "print(torch.get_num_threads())"
    assert says(f"import torch; {count}") == "2", "so this test can see a difference"
    assert says(f"import torch, utils.shapes; {count}") == "1"
    assert says(f"from utils import training; import torch; {count}") == "1"
    assert says(f"import utils, torch; torch.set_num_threads(2); {count}") == "2"


def test_importing_utils_loads_torch_and_nothing_else():
    code = "import sys, torch; before = set(sys.modules); import utils; "
    assert says(code + "print(sorted(set(sys.modules) - before))") == "['utils']"
