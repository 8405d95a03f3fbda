"""What the text of a student's code says to a teacher; it never costs a point."""

from __future__ import annotations

import pytest

from class_of_thirty import code_cell
from grading import suspicion


def looked_at(*texts: str) -> list[tuple[bool, str]]:
    notebook = {"cells": [code_cell(text) for text in texts]}
    found = suspicion.suspicions(notebook, {"import torch\nimport torch.nn.functional as F"})
    return [(s.grave, s.what) for s in found]


@pytest.mark.parametrize(
    "text",
    [
        "F.softmax = my_softmax",
        "import torch as t\nt.nn.Linear.forward = lambda s, x: x",
        "setattr(torch, 'allclose', yes)",
        "import sys\ndel sys.modules['checks']",
        "import sys\nsys.modules.pop('checks')",
        "from inspect import stack",
        "import gc\nprint(gc.get_objects())",
        "import ctypes",
        "import os\nos.environ['NBGRADER_EXECUTION'] = ''",
        "__builtins__.print = 1",
        "import builtins\nbuiltins.all = lambda *a: True",
        "get_ipython().kernel.do_execute = 0",
    ],
)
def test_what_has_hardly_an_honest_use_is_seen(text):
    assert any(grave for grave, _ in looked_at(text)), looked_at(text)


@pytest.mark.parametrize(
    "text",
    [
        "for check in (1, 2): pass",
        "from mine import check",
        "with open('x') as check: pass",
        "def f():\n    global check\n    check = print",
        "(check := print)",
        "check = torch.allclose(torch.ones(2), torch.ones(2))",
        "def check(x):\n    return x",
    ],
)
def test_another_check_is_told_and_no_more(text):
    """The grader never calls the student's."""
    assert (False, "gives check another meaning") in looked_at(text)
    assert not any(grave for grave, _ in looked_at(text))


@pytest.mark.parametrize(
    "text",
    [
        "x = torch.ones(3)\nx.requires_grad = True\nx.grad = None\nx.data = x.data * 2",
        "class A(torch.nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "        self.check = 1\n        self.softmax = torch.softmax",
        "def progress(x):\n    check = x\n    return check",
        "plt.rcParams['figure.figsize'] = 3, 4\ntorch.backends.cudnn.benchmark = False",
        "import sys\nsys.path.append('.')\nsys.setrecursionlimit(5000)",
        "import inspect\ninspect.signature(print)\nimport copy\ncopy.deepcopy([])",
        "layer.weight.data = torch.ones(2)\nmodel.forward = print",
        "[check for check in range(3)]",
        "from checks import check, progress",
        "from checks import check as check",
        "eval('1 + 1')\n!ls\n%%bash",
        "examine = 1\nimport types\ntypes.FunctionType(f.__code__, f.__globals__)",
        "def f():\n    return f.__closure__[0].cell_contents",
        "this is no Python",
        "",
    ],
)
def test_what_is_odd_but_honest_is_not_grave(text):
    assert not any(grave for grave, _ in looked_at(text)), looked_at(text)


GIVEN = """import copy
import torch
from copy import deepcopy
from torch import nn
from checks import check
from utils import attention, encoder
from utils.vision_transformer import load_digits_model"""


@pytest.mark.parametrize(
    "text",
    [
        "copy = deepcopy(layer)\ncopy.out_proj.weight.data = w",
        "def f(layer):\n    copy = copy.deepcopy(layer)\n    copy.out_proj.weight = w",
        "model = load_digits_model()\nattention = model.encoder.layers[1].attn\n"
        "attention.out_proj.weight.data = w",
        "encoder = encoder.Encoder(2, 4, 2, 8)\nencoder.norm = nn.Identity()",
        "for encoder in models:\n    encoder.training = False",
        "def silence(attention, heads):\n    attention.out_proj.bias.data = b",
        "with torch.no_grad() as copy:\n    copy.x = 1",
        "[setattr(copy, 'x', 1) for copy in layers]",
        "utils = {}\nutils['a'] = 1",
        "class A:\n    def __init__(self):\n        self.__dict__['x'] = 1",
    ],
)
def test_a_name_that_the_student_bound_anew_is_the_students(text):
    notebook = {"cells": [code_cell(text)]}
    assert suspicion.suspicions(notebook, {GIVEN}) == []


@pytest.mark.parametrize(
    ("text", "seen"),
    [
        ("attention.MultiHeadAttention = Mine", "utils.attention.MultiHeadAttention"),
        ("t = torch\nn = t.nn\nn.Linear = Mine", "torch.nn.Linear"),
        ("encoder = encoder\nencoder.Encoder = Mine", "utils.encoder.Encoder"),
        ("s = get_ipython()\nk = s.kernel\nk.do_execute = f", "get_ipython().kernel"),
    ],
)
def test_another_name_for_a_library_hides_nothing(text, seen):
    found = suspicion.suspicions({"cells": [code_cell(text)]}, {GIVEN})
    assert any(s.grave and seen in s.what for s in found), found


def test_what_is_grave_is_told_first_and_says_that_it_cost_nothing():
    found = suspicion.suspicions({"cells": [code_cell("eval('1')\ntorch.ones = f")]}, {GIVEN})
    assert list(map(str, found)) == [
        "look at it, it cost nothing: cell 1 replaces torch.ones",
        "cell 1 calls eval",
    ]


def test_what_is_unusual_is_told():
    assert [what for _, what in looked_at("!rm -r .", "eval('1')", "import socket")] == [
        "has the magic '!rm -r .'",
        "calls eval",
        "imports socket",
    ]
