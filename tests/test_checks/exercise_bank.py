"""Runs the masters of the exercises in this process, with answers of its own put in their place.

`tests/test_checks/answers/chapter_NN.py` holds the answers: wrong ones with the id that the
check must give, right ones that are written differently, and the mutants that are equal to the
solution.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import importlib.util
import io
import itertools
import json
import linecache
import pickle
import re
import signal
import textwrap
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from checks import Verdict, examine
from checks.engine.message import Message
from tools.course.cards import STUB
from tools.course.registry import course
from tools.course.source_notebooks import BEGIN, END
from utils.training import History, fit_batches
from utils.vision_transformer import VisionTransformer

ROOT = Path(__file__).resolve().parents[2]
MASTERS = course().source_notebooks()
ANSWERS = Path(__file__).parent / "answers"
STEPS = 20_000  # of one answer's own code; the longest solution takes 900
GUARD = 3600  # seconds, far beyond what any machine needs


@dataclass(frozen=True)
class Answer:
    """One answer to an exercise.

    Args:
        text: code that runs after the solution's cells and defines the same names anew; or, with
            `old`, what to write in the solution in place of `old`.
        old: text of the solution that is replaced, wherever it stands.
        cause: the id that the check must give (`Verdict.topic`), and after it values that its
            message must hold, such as "no-gradient scores"; "" for a right answer.
    """

    text: str
    old: str = ""
    cause: str = ""

    def __str__(self) -> str:
        return f"{self.old} -> {self.text}" if self.old else self.text


def is_told(verdict: Verdict, cause: str) -> bool:
    """Return whether a verdict gives a cause of the bank: its id, and its values."""
    id, *values = cause.split()
    return verdict.topic == id and set(values) <= set(held((verdict.cause or verdict.message).core))


def held(part: Any) -> Iterator[str]:
    """Yield the values in a message, the messages inside it included."""
    if isinstance(part, Message):
        yield from held(list(part.params.values()))
    elif isinstance(part, list):
        for value in part:
            yield from held(value)
    else:
        yield str(part)


def swap(old: str, new: str, *, cause: str = "") -> Answer:
    """The solution with one piece of its text replaced."""
    return Answer(new, old, cause)


def code(text: str, *, cause: str = "") -> Answer:
    """Code that defines the asked-for names anew."""
    return Answer(textwrap.dedent(text).strip() + "\n", cause=cause)


@dataclass(frozen=True)
class Bank:
    """The answers to one exercise.

    Args:
        wrong: at least five, each with its `cause`.
        right: at least two, written differently from the solution.
        equivalent: mutants that are as right as the solution, by their name as `make mutants`
            prints it, with the reason.
        kept: parts of the solution in which no mutants are made: each would train a model.
    """

    wrong: list[Answer]
    right: list[Answer]
    equivalent: dict[str, str] = field(default_factory=dict)
    kept: tuple[str, ...] = ()


class Banks(dict[str, Bank]):
    """The answers to the exercises of a chapter, by exercise; an error names a missing one."""

    def __missing__(self, id: str) -> Bank:
        raise ValueError(
            f"tests/test_checks/answers/chapter_{id[:2]}.py: BANK has every checked exercise, got "
            f"none for {id}. Give it five wrong answers, each with the id of its cause, and two "
            "right ones."
        )


def bank(chapter: str) -> Banks:
    """Return the answers to the exercises of a chapter, by exercise."""
    path = ANSWERS / f"chapter_{chapter}.py"
    if not path.is_file():
        raise ValueError(
            f"tests/test_checks/answers/{path.name}: a chapter with a master has its answers "
            "there, got no such file. Write it as the one of another chapter."
        )
    spec = importlib.util.spec_from_file_location(f"answers_{chapter}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return Banks(module.BANK)


# ------------------------------------------------------------------------------------- the master


@dataclass
class Task:
    """One checked exercise of a master.

    Args:
        id: such as "03.2".
        solution: its answer cells, one text.
        arguments: what its check cell hands over, as code.
        points: what it earns.
        names: the names that stand before its first answer cell.
    """

    id: str
    solution: str
    arguments: list[str]
    points: int
    names: dict[str, Any] = field(default_factory=dict)

    @property
    def stub(self) -> str:
        """The answer cells as the student gets them."""
        region = re.compile(rf"^( *){BEGIN}\n.*?^ *{END}", re.DOTALL | re.MULTILINE)
        return region.sub(lambda m: textwrap.indent(STUB, m.group(1)), self.solution)

    def with_(self, answer: Answer) -> str:
        """The answer cells with an answer put in."""
        if not answer.old:
            return f"{self.solution}\n\n{answer.text}"
        assert answer.old in self.solution, f"{self.id}: the solution has no {answer.old!r}"
        return self.solution.replace(answer.old, answer.text)

    def judge(self, text: str, explain: bool = True) -> Verdict:
        """Run answer cells and ask the check. Pictures are not drawn: no check looks at them."""
        postponed: list[str] = []
        verdict = self._judged(text, explain, postponed)
        if postponed and verdict.answer not in postponed:
            verdict = self._judged(text, explain, None)
        return verdict

    def _judged(self, text: str, explain: bool, postponed: list[str] | None) -> Verdict:
        names = {name: _unseen if draws(value) else value for name, value in self.names.items()}
        training.postponed, budget.steps = postponed, 0
        try:
            with guarded(), remembered_answers():
                run(text, names)
                return examine(self.id, *(eval(a, names) for a in self.arguments), explain=explain)
        finally:
            training.postponed = None


def draws(value: Any) -> bool:
    """Say whether something is one of the course's functions that only draw."""
    module = getattr(value, "__module__", None) or ""
    return module.startswith("utils.draw.") and value.__name__.startswith(("show_", "explore"))


def _unseen(*_: Any, **__: Any) -> None:
    """Take the place of what draws."""


class OverBudget(BaseException):
    """An answer took more than STEPS steps; no check may take this for a wrong result."""


class Budget:
    """Counts the steps of the answers' own code: turns of a loop, calls of a function.

    Unlike a clock it says the same on every machine.
    """

    def __init__(self) -> None:
        self.steps = 0

    def step(self) -> None:
        self.steps += 1
        if self.steps > STEPS:
            raise OverBudget(f"more than {STEPS} steps")

    def counted(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.step()
            yield item


budget = Budget()


class Counting(ast.NodeTransformer):
    """Put a step into every loop, comprehension and function."""

    def visit(self, node: ast.AST) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node, ast.For | ast.comprehension):
            call = ast.Call(ast.Name("_counted", ast.Load()), [node.iter], [])
            node.iter = ast.copy_location(call, node.iter)
        elif isinstance(node, ast.While | ast.FunctionDef):
            step = ast.Expr(ast.Call(ast.Name("_step", ast.Load()), [], []))
            first = int(ast.get_docstring(node) is not None) if hasattr(node, "name") else 0
            node.body.insert(first, ast.copy_location(step, node.body[0]))
        return node


@contextmanager
def guarded() -> Iterator[None]:
    """Stop what no step counts, such as one endless call of C. It gives no verdict: it fails."""

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt(f"no end after {GUARD} seconds, and no verdict")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, GUARD)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Training:
    """Trains as `fit_batches` does, and each model once: many answers train the same one again.

    Where `postponed` is a list, it notes the loss of a model that is not known yet, and trains
    nothing: a check refuses a wrong loss before it looks at the model.
    """

    def __init__(self) -> None:
        self.postponed: list[str] | None = None
        self._known: dict[tuple, tuple[dict, History]] = {}

    def __call__(self, model: Any, draw: Callable, loss: Callable, **options: Any) -> History:
        start = {name: value.clone() for name, value in model.state_dict().items()}
        code = loss.__code__
        what = (code.co_code, code.co_consts, code.co_names, repr(model), repr(options), id(draw))
        key = (*what, *(value.numpy().tobytes() for value in start.values()))
        if key not in self._known and self.postponed is not None:
            self.postponed.append(loss.__name__)
            return History()
        if key not in self._known:
            history = fit_batches(model, draw, loss, **options)
            self._known[key] = copy.deepcopy(model.state_dict()), history
        weights, history = self._known[key]
        model.load_state_dict(weights)
        model.eval()
        return history


training = Training()


class Fingerprint(pickle.Pickler):
    """Write anything down as bytes, and of a tensor what it holds: torch does that slowly."""

    @classmethod
    def of(cls, thing: Any) -> bytes:
        memory = io.BytesIO()
        cls(memory).dump(thing)
        return hashlib.sha256(memory.getvalue()).digest()

    def reducer_override(self, thing: Any) -> Any:
        if not isinstance(thing, Tensor):
            return NotImplemented
        held = thing.detach().contiguous().numpy()
        return bytes, (f"{held.dtype} {held.shape}".encode() + held.tobytes(),)


@contextmanager
def remembered_answers() -> Iterator[None]:
    """Let a trained model answer the same images once: most answers ask it the same again.

    What is remembered is bound to the whole model, weights, parts and hooks. A model that cannot
    be pickled, because an answer gave it a part of its own, one whose weights are recorded, and
    one that is to learn, answer anew each time.
    """
    forward = VisionTransformer.forward

    def answer(model: VisionTransformer, images: Tensor) -> Tensor:
        recorded = any(getattr(part, "recorded", None) is not None for part in model.modules())
        if torch.is_grad_enabled() or recorded or model.training:
            return forward(model, images)
        try:
            key = Fingerprint.of((model, images))
        except (pickle.PicklingError, AttributeError, TypeError):
            return forward(model, images)
        if key not in _answers:
            _answers[key] = forward(model, images)
        return _answers[key].clone()

    VisionTransformer.forward = answer
    try:
        yield
    finally:
        VisionTransformer.forward = forward


_answers: dict[bytes, Tensor] = {}
_number = itertools.count()


def run(text: str, names: dict[str, Any]) -> None:
    """Run code as a notebook's cell does: its source can be read back by `inspect`."""
    file = f"<cell {next(_number)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names.update(_step=budget.step, _counted=budget.counted)
    tree = ast.fix_missing_locations(Counting().visit(ast.parse(text)))
    exec(compile(tree, file, "exec"), names)


def code_cells(path: Path) -> Iterator[tuple[str, str]]:
    """Give (grade_id, source) of each code cell; the id is "" for an ordinary cell."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        if cell["cell_type"] == "code":
            meta = cell["metadata"].get("nbgrader", {})
            yield meta.get("grade_id", ""), "".join(cell["source"])


@cache
def tasks(path: Path) -> dict[str, Task]:
    """Run a master and return its checked exercises, with the names that each one meets."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    raw = json.loads(path.read_text(encoding="utf-8"))["cells"]
    points = {
        meta["grade_id"]: meta["points"]
        for cell in raw
        if (meta := cell["metadata"].get("nbgrader", {})).get("grade")
    }
    names: dict[str, Any] = {"__name__": "cell", "display": lambda *_: None}
    result: dict[str, Task] = {}
    before: dict[str, Any] = {}
    open_cells: list[str] = []
    for grade_id, source in code_cells(path):
        if grade_id.startswith("answer"):
            if not open_cells:
                before = dict(names)
            open_cells.append(source)
        if grade_id.startswith("check"):
            call = ast.parse(source).body[0].value
            id, *arguments = call.args
            result[id.value] = Task(
                id.value,
                "\n\n\n".join(open_cells),
                [ast.unparse(argument) for argument in arguments],
                points[grade_id],
                before,
            )
            open_cells = []
            if len(result) == len(points):
                break  # what comes after the last check is open: no check reads it
        elif not source.startswith("progress("):
            budget.steps = 0  # of an answer, not of what the exercise gives
            run(source, names)
            if names.get("fit_batches") is fit_batches:
                names["fit_batches"] = training
            plt.close("all")
    return result


def judged(task: Task, answer: Answer, **options: Any) -> Verdict:
    """Judges an answer of the bank."""
    return task.judge(task.with_(answer), **options)
