"""The package itself: one thread for everybody, and imports that cost little more than torch."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FRESH = """
import sys, torch
print(torch.get_num_threads())
before = set(sys.modules)
import utils
print(torch.get_num_threads(), *sorted(set(sys.modules) - before))
torch.set_num_threads(2)
import utils.training
print(torch.get_num_threads())
import utils.data
utils.data.load_shipped("digits")
utils.data.load_digits()
print("sklearn" in sys.modules)
"""


def test_importing_utils_sets_one_thread_and_loads_nothing_but_torch():
    environment = {**os.environ, "OMP_NUM_THREADS": "2"}
    result = subprocess.run(
        [sys.executable, "-c", FRESH], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    before, after, asked, *imported = result.stdout.splitlines() or [result.stderr, "", ""]
    assert before == "2", "so this test can see a difference"
    assert after == "1 utils utils.renamed", (
        "one thread, also where torch was there first; no other import"
    )
    assert asked == "2", "who asks for more threads keeps them"
    assert imported == ["False"], "scikit-learn, as slow as torch, is for chapters 07 and 18 alone"
