"""Honest students with odd code keep every point.

They rebind names of the course and of libraries, write unusual Python, and change the state of
libraries. None of this is cheating, and none of it gets a remark.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass, field

import pytest

pytest.importorskip("nbgrader", reason="grading has requirements of its own")

from tools.grading.made_up_submissions import GRADE, assignment_of, find_cell, inserted, light, raw
from tools.grading.results_folder import read_table

SOFTMAX = """def softmax(scores):
    s = scores - scores.amax(-1, keepdim=True)
    return s.exp() / s.exp().sum(-1, keepdim=True)
"""
REORDER = """def reorder(layer, order):
    copy = deepcopy(layer)
    moved = torch.arange(layer.embed_dim).view(layer.num_heads, -1)[order].flatten()
    for part in (copy.q_proj, copy.k_proj, copy.v_proj):
        part.weight.data = part.weight.data[moved]
        part.bias.data = part.bias.data[moved]
    copy.out_proj.weight.data = copy.out_proj.weight.data[:, moved]
    return copy
"""
DIVISOR = """def divisor(layer):
    layer = copy.deepcopy(layer).double().eval()
    width = layer.q_proj.in_features
    head_dim = width // layer.num_heads
    for part in (layer.q_proj, layer.k_proj, layer.v_proj, layer.out_proj):
        part.weight.data = torch.eye(width, dtype=torch.float64)
        part.bias.data = torch.zeros(width, dtype=torch.float64)
    layer.q_proj.weight.data = torch.zeros(width, width, dtype=torch.float64)
    layer.q_proj.bias.data = torch.ones(width, dtype=torch.float64)
    tokens = torch.zeros(1, 2, width, dtype=torch.float64)
    tokens[0, 0] = 1 / head_dim
    return 1 / (layer(tokens)[0, 0, 0] * head_dim).logit().item()
"""


@dataclass(frozen=True)
class Honest:
    """One notebook with several oddities, none of which may cost points.

    Args:
        first: cells before all others, by their oddity.
        answers: source of answer cells, by number.
        solved: the exercises with their solutions.
        chapter: two digits.
    """

    first: dict[str, str] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    solved: tuple[str, ...] = ("1",)
    chapter: str = "03"


HONEST: dict[str, Honest] = {
    "binds names of the course and of libraries to something else": Honest(
        {
            "check is a test": "check = torch.allclose(torch.ones(2), torch.ones(2))\nprint(check)",
            "check is a helper": "def check(x):\n    print(x.shape)\n    return x\n"
            "check(torch.ones(2))",
            "check is a loop": "for check in range(3):\n    progress = check\nwith_check = check",
            "many names": "copy = [1]\nencoder = torch.nn.Linear(2, 3)\n"
            "encoder.bias.data = torch.ones(3)\nattention = torch.nn.Identity()\n"
            "attention.extra = copy\nmath = re = sys = 'names'\nnumpy = torch.ones(3)\n"
            "numpy.requires_grad = True\nutils = {}\nutils['x'] = 1\nchecks = {'a': 1}\n"
            "checks['b'] = 2\nexamine = verdict = EXERCISES = None",
            "a model called torch_": "torch_ = torch.nn.Linear(2, 2)\n"
            "torch_.weight.data = torch.eye(2)\ntorch_.forward = lambda x: x",
        },
        {"2": "softmax = lambda s: (e := (s - s.amax(-1, True)).exp()) / e.sum(-1, True)"},
    ),
    "writes Python that few write": Honest(
        {
            "star imports": "from math import *\nfrom torch import *\nfrom torch.nn import *\n"
            "from einops import *",
            "patches a class of their own": "class Mine(torch.nn.Module):\n    pass\n"
            "Mine.forward = lambda self, x: x + 1\nMine.__repr__ = lambda self: 'mine'\n"
            "setattr(Mine, 'softmax', torch.softmax)\nmine = Mine()\nmine.forward = torch.sum\n"
            "print(mine, mine(torch.ones(2)))",
            "eval and globals": "exec('x = 1')\nprint(eval('x + 1'))\n"
            "globals()['y'] = vars().get('x')\nimport builtins\n"
            "print(len(dir(builtins)), __import__('math').pi)",
            "reads sources": "import inspect, gc, sys\n"
            "print(len(inspect.getsource(torch.nn.Linear)))\ngc.collect()\n"
            "sys.setrecursionlimit(4000)\nsys.path.append('.')\nprint(len(sys.modules))",
            "tries and excepts": "try:\n    1 / 0\nexcept ZeroDivisionError as copy:\n"
            "    print(copy)\nassert torch.ones(2).sum() == 2\nmatch 3:\n    case check:\n"
            "        pass",
        },
        {
            "2": "def make(power):\n    def softmax(scores):\n"
            "        s = (scores - scores.amax(-1, keepdim=True)).exp() ** power\n"
            "        return s / s.sum(-1, keepdim=True)\n    return softmax\n"
            "softmax = make(1)\nprint(softmax.__closure__, softmax.__code__.co_varnames)",
        },
    ),
    "leaves libraries in other states": Honest(
        {
            "seeds": "import random\nimport numpy as np\nrandom.seed(0)\nnp.random.seed(0)\n"
            "torch.manual_seed(0)\ntorch.use_deterministic_algorithms(True)\n"
            "torch.manual_seed = 0",
            "another backend of pyplot": "import matplotlib\nimport matplotlib.pyplot as plt\n"
            "matplotlib.use('Agg')\nplt.rcParams['figure.dpi'] = 50\nplt.style.use('ggplot')\n"
            "plt.plot([1, 2])\nplt.close('all')",
            "another dtype and back": "torch.set_default_dtype(torch.float64)\n"
            "print(torch.ones(1).dtype)\ntorch.set_default_dtype(torch.float32)",
            "a default device": "torch.set_default_device('cpu')\n"
            "with torch.device('cpu'), torch.inference_mode():\n    torch.ones(2)\n"
            "torch.set_num_threads(1)\ntorch.backends.cudnn.benchmark = False",
            "no warnings": "import warnings\nwarnings.filterwarnings('ignore')\n"
            "warnings.simplefilter('ignore')\nwarnings.showwarning = lambda *a, **k: None\n"
            "warnings.warn('x')",
            "other printing": "import numpy as np\n"
            "torch.set_printoptions(precision=2, sci_mode=False)\n"
            "np.set_printoptions(precision=2)\n%precision 3\n"
            "%config InlineBackend.figure_format = 'png'",
            "reloads": "%load_ext autoreload\n%autoreload 2\nimport importlib, sys\n"
            "import utils.shapes, utils.encoder\nimportlib.reload(utils.shapes)\n"
            "importlib.reload(utils.encoder)\nfor name in list(sys.modules):\n"
            "    if name.startswith('utils.draw'):\n        del sys.modules[name]",
        },
        {"2": f"check('03.2', lambda scores: scores)\nprogress('03')\n{SOFTMAX}"},
    ),
    "leaves them so for good": Honest(
        {
            "another dtype": "torch.set_default_dtype(torch.float64)",
            "no gradients": "torch.set_grad_enabled(False)\ntorch.no_grad().__enter__()",
        },
        {
            "2": "def softmax(scores):\n"
            "    return (e := (scores - scores.amax(-1, True)).exp()) / e.sum(-1, True)\n"
            "if (draft := softmax(torch.ones(2))) is not None:\n    del draft"
        },
    ),
    "does what a kernel of one's own is good for": Honest(
        {
            "threads and files": "from concurrent.futures import ThreadPoolExecutor\n"
            "import os, time\nwith ThreadPoolExecutor(2) as pool:\n"
            "    print(list(pool.map(lambda x: x + 1, [1, 2])))\n"
            "os.makedirs('mine', exist_ok=True)\ntorch.save(torch.ones(2), 'mine/x.pt')\n"
            "print(torch.load('mine/x.pt'), open('mine/x.txt', 'w').write('x'))\n"
            "time.sleep(0.01)",
            "hooks and profilers": "layer = torch.nn.Linear(2, 2)\n"
            "hook = layer.register_forward_hook(lambda *a: None)\nlayer(torch.ones(2))\n"
            "hook.remove()\nwith torch.profiler.profile() as seen:\n    layer(torch.ones(2))\n"
            "torch.fx.symbolic_trace(layer)\n"
            "torch.compile(layer, backend='eager')(torch.ones(2))",
            "shell and magics": "!echo hello\n%timeit -n 1 -r 1 1 + 1\nfiles = !ls\n%who\n"
            "?torch.ones",
        },
        {
            "2": "import functools\ncalls = 0\ndef counted(function):\n"
            "    @functools.wraps(function)\n    def inner(*args):\n        global calls\n"
            "        calls += 1\n        return function(*args)\n    return inner\n"
            f"@counted\n{SOFTMAX}",
            "7": "a = torch.rand(3, 4).softmax(-1)\ncheck = a.sum(-1)\ncheck",
        },
    ),
    "calls the copy of a layer copy, and a layer attention": Honest(
        answers={
            "5": REORDER,
            "7": "model = load_shipped('digits')\nattention = model.encoder.layers[1].attn\n"
            "attention.out_proj.weight.data = torch.zeros_like(attention.out_proj.weight)\n"
            "attention.extra = 1",
        },
        chapter="04",
    ),
    "calls an encoder encoder": Honest(
        answers={
            "7": "encoder = nn.ModuleList([encoder.FeedForward(4, 8)])\n"
            "encoder.training = False\nencoder[0].fc1.weight.data = torch.zeros(8, 4)"
        },
        chapter="06",
    ),
    "calls the copy of a layer layer": Honest(answers={"5": DIVISOR}, chapter="08"),
}


@pytest.fixture(scope="module")
def rows(tmp_path_factory) -> dict[str, dict[str, str]]:
    """Grade all notebooks with one call, and return the row of each."""
    base = tmp_path_factory.mktemp("honest")
    # One student has all notebooks of other chapters: a sandbox takes long to start.
    students = {n: n if one.chapter == "03" else "others" for n, one in HONEST.items()}
    for name, honest in HONEST.items():
        chapter = assignment_of(honest.chapter)
        notebook = light(chapter.solved(honest.solved))
        for code in reversed(honest.first.values()):
            inserted(notebook, code)
        for number, code in honest.answers.items():
            find_cell(notebook, f"answer-{chapter.number}-{number}")["source"] = code
        path = base / "class" / students[name] / f"{chapter.stem}.ipynb"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(raw(notebook))
    command = [*GRADE, str(base / "class")]
    subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    table = read_table(base / "class-grades" / "grades.csv")
    found = {(row["student"], row["chapter"]): row for row in table}
    return {name: found[students[name], honest.chapter] for name, honest in HONEST.items()}


@pytest.mark.parametrize("name", HONEST)
def test_honest_students_keep_every_point(name, rows):
    honest, chapter = HONEST[name], assignment_of(HONEST[name].chapter)
    checked = {*honest.solved, *(number for number in honest.answers if number in chapter.points)}
    assert float(rows[name]["points"]) == chapter.worth(checked), rows[name]
