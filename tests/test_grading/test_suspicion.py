"""Remarks about suspicious code; they cost no points."""

from __future__ import annotations

import pytest
from IPython.core import inputtransformer2

from tools.grading import suspicion
from tools.grading.made_up_submissions import code_cell

GIVEN = """import copy
import torch
import torch.nn.functional as F
from copy import deepcopy
from torch import nn
from checks import check
from utils import attention, encoder
from utils.data import load_shipped"""


def looked_at(*texts: str) -> list[str]:
    notebook = {"cells": [code_cell(text) for text in texts]}
    return list(map(str, suspicion.suspicions(notebook, {GIVEN})))


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("F.softmax = my_softmax", "replaces torch.nn.functional.softmax"),
        ("import torch as t\nt.nn.Linear.forward = lambda s, x: x", "replaces torch.nn.Linear"),
        ("attention.MultiHeadAttention = Mine", "replaces utils.attention.MultiHeadAttention"),
        ("setattr(torch, 'allclose', yes)", "replaces a part of torch"),
        ("import sys\ndel sys.modules['checks']", "replaces a module in sys.modules"),
        ("from inspect import stack", "uses inspect.stack"),
        ("import gc\nprint(gc.get_objects())", "uses gc.get_objects"),
        ("import sys\nsys._getframe(1).f_locals", "uses f_locals"),
        ("import ctypes", "imports ctypes"),
        ("from urllib.request import urlopen", "imports urllib"),
        ("import os\nos.environ['NBGRADER_EXECUTION'] = ''", "contains 'NBGRADER' in a string"),
        ("open('notebooks/solutions/x')", "contains 'solutions/' in a string"),
        ("!rm -r .", "has the magic '!rm -r .'"),
    ],
)
def test_suspicious_code_gets_a_remark(text, seen):
    assert any(f"cell 1 {seen}" in line for line in looked_at(text)), looked_at(text)


@pytest.mark.parametrize(
    "text",
    [
        "check = torch.allclose(torch.ones(2), torch.ones(2))\ndef progress(x):\n    return x",
        "x = torch.ones(3)\nx.requires_grad = True\nx.grad = None\nx.data = x.data * 2",
        "class A(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.check = 1\n        self.softmax = torch.softmax",
        "import matplotlib.pyplot as plt\nplt.rcParams['figure.figsize'] = 3, 4\n"
        "torch.backends.cudnn.benchmark = False",
        "import sys\nsys.path.append('.')\nsys.setrecursionlimit(5000)",
        "import inspect\ninspect.signature(print)\nimport copy\ncopy.deepcopy([])",
        "layer.weight.data = torch.ones(2)\nmodel.forward = print",
        "eval('1 + 1')\nprint(f.__closure__, f.__code__)\n%time 1 + 1",
        "copy = deepcopy(layer)\ncopy.out_proj.weight.data = w",
        "model = load_shipped('digits')\nattention = model.encoder.layers[1].attn\n"
        "attention.out_proj.weight.data = w",
        "for encoder in models:\n    encoder.training = False",
        "def silence(attention, heads):\n    attention.out_proj.bias.data = b",
        "this is no Python",
        "",
    ],
)
def test_odd_but_honest_code_gets_no_remark(text):
    assert looked_at(text) == []


def test_a_cell_with_too_many_magics_loses_only_its_remarks(monkeypatch):
    monkeypatch.setattr(inputtransformer2, "TRANSFORM_LOOP_LIMIT", 5)  # of 500
    assert looked_at("!ls\n" * 6) == ["cell 1 has the magic '!ls'"]
