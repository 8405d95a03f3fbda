"""The live page: its models equal PyTorch's, with every bug, and the page works in a browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess

import numpy as np
import pytest
import torch
from torch import Tensor

from attention_clinic import BUGS
from browser.live_reference import trace
from tools.course.registry import ROOT
from utils.data import load_digits, load_shipped, resource

LIVE = ROOT / "website" / "live"
IDS = re.findall(r'id: "([\w-]+)"', (LIVE / "bugs.js").read_text("utf-8"))
needs_node = pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")


def node(script: str, given: dict[str, object]) -> bytes:
    """Run a script of website/live and return what it writes."""
    call = ["node", str(LIVE / script)]
    made = subprocess.run(call, input=json.dumps(given).encode(), capture_output=True, check=False)
    assert made.returncode == 0, made.stderr.decode()
    return made.stdout


@pytest.fixture(scope="module")
def digits() -> Tensor:
    """Return 50 test digits (50, 1, 8, 8), five of each."""
    _, (x, y) = load_digits()
    return torch.cat([x[y == digit][:5] for digit in range(10)])


def test_bugs_are_those_of_the_catalogue() -> None:
    assert len(IDS) == len(set(IDS)) >= 12
    assert set(IDS) <= set(BUGS)


@needs_node
@pytest.mark.parametrize("bug", ["", *IDS])
def test_every_tensor_equals_pytorch(bug: str, digits: Tensor) -> None:
    given = {
        "weights": str(resource("digits_model.safetensors")),
        "images": digits.flatten(1).tolist(),
        "bugs": [bug],
    }
    numbers = torch.from_numpy(np.frombuffer(node("trace.mjs", given)).copy())
    mine = numbers.view(len(digits), -1)
    theirs = trace(load_shipped("digits").double(), digits.double(), bug)
    assert mine.shape[1] == sum(tensor[0].numel() for tensor in theirs.values())
    start, correct = 0, trace(load_shipped("digits").double(), digits.double())
    for name, tensor in theirs.items():
        part = mine[:, start : start + tensor[0].numel()]
        start += tensor[0].numel()
        torch.testing.assert_close(part, tensor.flatten(1), atol=1e-5, rtol=1e-5, msg=name)
    differs = (theirs["logits"] - correct["logits"]).abs().max() > 1e-3
    assert differs == bool(bug)  # the bug does something
