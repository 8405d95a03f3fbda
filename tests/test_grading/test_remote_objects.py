"""A check on answers in another process gives the same verdict and cannot be deceived."""

from __future__ import annotations

import contextlib
import json
import linecache
import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from notebook_rules import ROOT
from torch import Tensor, nn

pytest.importorskip("fcntl", reason="nothing is graded on Windows")

from checks.engine.call_tracer import CallTracer
from checks.engine.calls import DoubleConstants
from checks.engine.measures import Drawing
from checks.engine.results import Results, Tables
from tools.grading import answer_server, framing, remote_objects, serialization
from tools.grading.grades import CheckResult
from tools.grading.judge import judge
from tools.grading.made_up_submissions import assignment_of
from utils.attention import MultiHeadAttention

IMPORTS = """import copy
import math
import torch
import torch.nn.functional as F
from copy import deepcopy
from einops import einsum, rearrange
from torch import Tensor, nn
from utils import encoder
from utils.attention import MultiHeadAttention, record_attention, scaled_dot_product_attention
from utils.masking import causal_mask, padding_mask
"""


@contextlib.contextmanager
def student(code: str) -> Iterator[tuple[Any, Any]]:
    """Run code in another process, which then serves its answers to a check."""
    here, there = socket.socketpair()
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            here.close()
            text, names = IMPORTS + code, {"CHANNEL": there.fileno()}
            linecache.cache["<cell>"] = (len(text), None, text.splitlines(keepends=True), "<cell>")
            exec(compile(text, "<cell>", "exec"), names)
            file = there.fileno()
            answer_server.serve(
                names, lambda said: framing.send(file, said), lambda: framing.receive(file)
            )
        os._exit(0)
    there.close()

    def wait() -> dict[str, Any]:
        said = framing.receive(here.fileno())
        if said is None:
            raise remote_objects.Interrupted
        return said

    try:
        yield lambda said: framing.send(here.fileno(), said), wait
    finally:
        with contextlib.suppress(OSError):
            framing.send(here.fileno(), {"end": True})
        here.close()
        os.waitpid(child, 0)


def verdict(exercise: str, code: str, *names: str, salt: str = "") -> CheckResult:
    with student(code) as channel:
        return judge(f'check("{exercise}", {", ".join(names)})', *channel, salt)


def solution(exercise: str) -> str:
    chapter, number = exercise.split(".")
    found = assignment_of(chapter).solutions
    return "\n\n".join(
        text for name, text in found.items() if name.startswith(f"answer-{chapter}-{number}")
    )


# Each kind of answer: functions with gradients, classes, given layers, returned layers, layers of
# the check, a test of layers, an object that changes from call to call.
KINDS = {
    "03.2": ("softmax",),
    "04.3": ("MultiHeadAttention",),
    "04.5": ("reorder",),
    "05.6": ("influences", "tokens_back"),
    "08.5": ("divisor",),
    "10.3": ("healthy",),
    "12.5": ("step",),
}


def names_of(exercise: str) -> tuple[str, ...]:
    """Return the arguments of the check cell."""
    for cell in assignment_of(exercise[:2]).blank["cells"]:
        text = "".join(cell["source"])
        if text.startswith(f'check("{exercise}"'):
            return tuple(part.strip() for part in text[:-1].split(",")[1:])
    raise AssertionError(exercise)


@pytest.mark.parametrize("exercise", KINDS)
def test_every_kind_of_answer_is_right_for_unseen_cases(exercise):
    found = verdict(exercise, solution(exercise), *names_of(exercise), salt="another")
    assert found.state == "right" and not found.remarks, found


def test_a_given_layer_may_be_transformed():
    """torch.func forbids to set requires_grad of any tensor inside of a transform."""
    code = """
def influences(layer, x):
    return torch.func.jacrev(layer)(x).ne(0).any(dim=-1).any(dim=1)


def tokens_back(width, num_layers):
    return num_layers * (width - 1)
"""
    found = verdict("05.6", code, "influences", "tokens_back")
    assert found.state == "right", found


RIGHT = """
def softmax(scores):
    powers = (scores - scores.amax(-1, keepdim=True)).exp()
    return powers / powers.sum(-1, keepdim=True)
"""


def test_a_gradient_needs_no_sympy():
    """Importing it would take a third of a second of every student's sandbox."""
    code = "import sys\nsys.modules['torch.fx.experimental.symbolic_shapes'] = None\n" + RIGHT
    assert verdict("03.2", code, "softmax").state == "right"


def gradient_of(result: Tensor, leaf: Tensor, gradient: Tensor) -> Tensor:
    """Let a process continue the other one's backward pass through a result of its own."""
    sender, peer = (remote_objects.Peer(None, None, is_open=open_) for open_ in (True, False))
    peer.graphs[1] = [result], [leaf]
    written = framing.encode({"grads": [serialization.Writer(sender._lend).write(gradient)]})
    reply = framing.encode(peer._backward({"graph": 1, **framing.decode(written)}))
    return serialization.Reader(sender._borrow).read(framing.decode(reply)["grads"][0])


@pytest.mark.parametrize("dtype", [torch.float64, torch.complex64])
def test_a_gradient_is_the_one_of_torch(dtype):
    leaf, gradient = torch.randn(2, 3, 4, dtype=dtype).unbind()
    result = (leaf.requires_grad_() * leaf).exp()
    (right,) = torch.autograd.grad(result, leaf, gradient, retain_graph=True)
    assert torch.allclose(gradient_of(result, leaf, gradient), right)


@pytest.mark.parametrize("wrong", [torch.ones(2, 3), torch.ones(1), torch.ones(3).cfloat()])
def test_a_gradient_that_does_not_fit_is_refused(wrong):
    """Broadcasting would accept the first two."""
    leaf = torch.ones(3, requires_grad=True)
    with pytest.raises(serialization.ProtocolError, match="a gradient with a wrong shape"):
        gradient_of(2 * leaf, leaf, wrong)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("softmax = lambda s: s.exp() / s.exp().sum(-2, keepdim=True)", "runs over the queries"),
        (RIGHT.replace("return", "return 0 *"), "same result for every input"),
        (RIGHT.replace("return powers", "return powers.detach()"), "gradient"),
        ("def softmax(scores):\n    raise ValueError('no idea')", "raises ValueError: no idea"),
        ("def softmax(scores):\n    return None", "returns None"),
        ("softmax = ...", "empty"),
        ("def softmax(scores):\n    # your code here\n    pass", "empty"),
        ("x = 1", "not defined"),
    ],
)
def test_reasons_are_the_same_as_in_the_notebook(code, said):
    found = verdict("03.2", code, "softmax")
    assert found.state != "right" and said in found.reason, found


@pytest.mark.parametrize(
    ("code", "heard"),
    [
        ("softmax = lambda scores: scores.softmax(-1)", "calls softmax"),
        (
            "def softmax(scores):\n    if not scores.requires_grad:\n        scores += 0\n"
            + RIGHT.split(":\n", 1)[1],
            "in place",
        ),
    ],
)
def test_reports_about_an_answers_calls_cost_no_points(code, heard):
    found = verdict("03.2", code, "softmax")
    assert found.state == "right", found
    assert any(heard in line for line in found.remarks), found


FORGED = {
    "a verdict": '{"state": "right", "text": "all of it"}',
    "an answer that nobody asked for": '{"n": 999, "result": 1}',
    "a result without a question": '{"n": 1, "result": {"k": "tensor"}}',
    "a class of Python": '{"n": 1, "result": {"k": "object", "v": 5, "class": "os:system", '
    '"holds": {}}}',
    "a class of the checks": '{"n": 1, "result": {"k": "object", "v": 5, '
    '"class": "checks.engine.verdict:Verdict", "holds": {}}}',
    "what was never lent": '{"n": 7, "ask": {"op": "call", "on": {"v": 1}, "args": [], '
    '"kwargs": {}, "modes": [], "grad": false, "seed": 1}}',
    "to be evaluated": '{"n": 7, "ask": {"op": "get", "expression": "1"}}',
}


@pytest.mark.parametrize("what", FORGED)
def test_forged_messages_earn_no_points(what):
    frame = framing.encode(json.loads(FORGED[what]))
    code = f"import os\nos.write(CHANNEL, {frame!r})\nsoftmax = print\n"
    assert verdict("03.2", code, "softmax").state != "right"


@pytest.mark.parametrize(
    "text",
    [
        '{"k": "tensor", "v": "AAAA", "grad": true, "parameter": false}',
        '{"k": "bytes", "v": 1000000000000}',
        '{"k": "bytes", "v": "text"}',
        '{"k": "again", "v": 3}',
        '{"k": "shared", "v": "os:system"}',
        '{"k": "shared", "v": "utils.attention:torch"}',
        '{"k": "shared", "v": "utils.attention:MultiHeadAttention.forward"}',
        '{"k": "known", "v": "torch.load"}',
        '{"k": "dtype", "v": "object"}',
        '{"k": "list", "v": 3}',
        '{"k": "array", "v": "", "shape": [1], "one": true}',
        '{"k": "yours", "v": 3}',
        '{"k": "module", "v": 1, "class": {"k": "shared", "v": "utils.shapes:describe"}}',
        '{"k": "nothing"}',
        "[1]",
    ],
)
def test_invalid_values_are_refused(text):
    peer = remote_objects.Peer(None, None, is_open=False)
    with pytest.raises(serialization.ProtocolError):
        serialization.Reader(peer._borrow).read(json.loads(text))


def there_and_back(value: Any) -> Any:
    sender, taker = (remote_objects.Peer(None, None, is_open=open_) for open_ in (True, False))
    frame = framing.encode({"value": serialization.Writer(sender._lend).write(value)})
    return serialization.Reader(taker._borrow).read(framing.decode(frame)["value"])


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, 10**40, 0.1 + 0.2, float("inf"), "é\n", b"\0", b"", 2j, ..., range(1, 9, 2),
        [1, (2.5, "x"), {"a": [None]}], {1, 2}, torch.Size([2, 3]), torch.float16,
    ],
)  # fmt: skip
def test_values_survive_the_round_trip(value):
    back = there_and_back(value)
    assert back == value and type(back) is type(value)


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.bool]
)
def test_tensors_survive_the_round_trip(dtype):
    tensor = (torch.randn(3, 4, 5) * 3).to(dtype).transpose(0, 2)
    back = there_and_back((tensor, tensor))
    assert back[0] is back[1] and back[0].dtype == dtype and torch.equal(back[0], tensor)
    assert there_and_back(torch.tensor(float("nan"))).isnan()


def test_false_types_become_unserializable():
    class Liar(Tensor):
        pass

    class Number(float):
        def __eq__(self, other: object) -> bool:
            return True

    for odd in (torch.ones(2).as_subclass(Liar), Number(2), torch.eye(2).to_sparse(), object()):
        back = there_and_back(odd)
        assert (
            isinstance(back, serialization.Unserializable)
            and type(back).__name__ == type(odd).__name__
        )


def test_a_layer_of_a_shared_class_is_rebuilt():
    layer = MultiHeadAttention(12, 3).double()
    layer.q_proj = layer.k_proj
    back = there_and_back(layer)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    assert type(back) is MultiHeadAttention and back.q_proj is back.k_proj
    assert torch.equal(back(x), layer(x)) and isinstance(back.out_proj.weight, nn.Parameter)


def test_the_side_of_the_check_reveals_nothing():
    class Secret(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.truth, self.e, self.part = torch.eye(3), 4, nn.Linear(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            return x

    def truth(x: Tensor) -> Tensor:
        return x

    peer = remote_objects.Peer(None, None, is_open=False)
    written = [serialization.Writer(peer._lend).write(thing) for thing in (Secret(), truth)]
    text = framing.encode({"check": {"all": written}}).decode("latin-1")
    assert "Secret" not in text and "truth" not in text and "def " not in text
    assert '"part"' in text and '"e": 4' in text


def test_modes_see_of_a_remote_answer_what_they_see_of_a_local_one():
    code = """
def step(x):
    return (x @ x.mT).softmax(dim=-1) + torch.rand(40, len(x), 1)
"""

    def seen(step):
        x = torch.ones(5, 3, dtype=torch.float64)
        torch.manual_seed(0)
        with CallTracer() as tracer, Results([x]) as results, Tables(4, 2) as tables:
            step(x)
        with CallTracer(deep=False) as shallow:
            step(x)
        with Drawing(normal=True):
            negative = bool((step(x) < 0).any())  # never with torch.rand
        with DoubleConstants():
            kind = step(x.float()).dtype
        called = (*(t.called[name] for t in (tracer, shallow) for name in ("softmax", "_softmax")),)
        called += (tracer.operations, shallow.operations)
        return called, results.made, tables.found, negative, kind

    names = {}
    exec(IMPORTS + code, names)
    with student(code) as channel:
        remote = seen(remote_objects.Peer(*channel, is_open=False).get("step"))
    assert remote == seen(names["step"])
    (*called, _, _), _, *others = remote
    assert called == [1, 1, 1, 0] and others == [(5, 5), True, torch.float64]


def test_every_mode_of_the_checks_exists_in_the_sandbox():
    """In the sandbox no chapter imports them."""
    text = "from tools.grading import remote_modes; print(*sorted(remote_modes.KINDS))"
    paths = map(str, (ROOT, ROOT / "clinic"))
    known = subprocess.run(
        [sys.executable, "-c", text],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    modes = re.compile(r"^class (\w+)\((?:TorchFunction|Dispatch)Mode\)", re.MULTILINE)
    files = (ROOT / "checks").rglob("*.py")
    found = {n for f in files for n in modes.findall(f.read_text(encoding="utf-8"))}
    assert known == sorted(found - {"Beneath"}), "Beneath is a part of CallTracer"


def test_the_sandbox_holds_no_checks():
    from tools.grading.assignments import INSIDE

    inside = ROOT / "tools" / "grading"
    assert {"answer_server.py", "remote_objects.py", "serialization.py", "fork_server.py"} <= set(
        INSIDE
    )
    assert not {"judge.py", "autograde.py", "overwrite_cells.py"} & set(INSIDE)
    for name in INSIDE:
        assert "pickle" not in (inside / name).read_text(encoding="utf-8").replace("unpickled", "")
