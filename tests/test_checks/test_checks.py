"""The engine of the checks: what it refuses, and which cause it names."""

from __future__ import annotations

import linecache
import random
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from exercise_bank import is_told
from torch import Tensor, nn

from attention_clinic import diagnose
from checks import CheckFailed, Verdict, check, examine, progress
from checks.engine import verdict
from checks.engine.answer import NotYet, Wrong
from checks.engine.call_tracer import Beneath, CallTracer
from checks.engine.calls import DoubleConstants
from checks.engine.cases import Case
from checks.engine.compare import difference, shown
from checks.engine.functions import same_function
from checks.engine.guesses import same_number, same_shape
from checks.engine.languages import language
from checks.engine.measures import same_measure
from checks.engine.message import as_message, message
from checks.engine.modules import same_module
from checks.engine.shortcuts import SOFTMAX
from helpers import error_of
from utils.attention import MultiHeadAttention
from utils.encoder import FeedForward
from utils.masking import causal_mask

# Mistakes that only these tests know.
IDS = ("test-mean-over-tokens", "test-double", "test-no-relu", "test-build-yourself", "test-root")
IDS += ("test-squared-length", "test-square", "test-loss", "test-mean", "test-wrong")


@pytest.fixture(autouse=True)
def _sentences(monkeypatch: pytest.MonkeyPatch) -> None:
    for id in IDS:
        monkeypatch.setitem(language("en").sentences, id, f"the sentence of {id}")


def centred(x: Tensor) -> Tensor:
    return x - x.mean(dim=-1, keepdim=True)


def rows(case: Case) -> tuple[Tensor]:
    return (case.randn("b n e"),)


def refusal(comparison: Callable, *args, **options) -> Verdict:
    """Return what is wrong and why, as `check` would report it."""
    with pytest.raises(Wrong) as caught:
        comparison(*args, **options)
    wrong = caught.value
    why = wrong.why() if wrong.why else None
    return Verdict("00.1", "not right", wrong.what, as_message(why) if why else None)


# -------------------------------------------------------------------------------------- functions


def in_place(x: Tensor) -> Tensor:
    x -= x.mean(dim=-1, keepdim=True)
    return x.clone()


def in_place_without_effect(x: Tensor) -> Tensor:
    result = centred(x)
    x.mul_(1)
    return result


def cut(x: Tensor) -> Tensor:
    return centred(x.detach())


def half_cut(x: Tensor) -> Tensor:
    return x - x.mean(dim=-1, keepdim=True).detach()


def through_items(x: Tensor) -> Tensor:
    return torch.tensor(centred(x).tolist(), dtype=x.dtype)


def in_a_loop(x: Tensor) -> Tensor:
    return torch.stack([row - row.mean(dim=-1, keepdim=True) for row in x.flatten(0, 1)]).view_as(x)


class Silent(Exception):
    def __str__(self) -> str:
        raise ValueError


def silent(x: Tensor) -> Tensor:
    raise Silent


def leaves(x: Tensor) -> Tensor:
    raise SystemExit


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (lambda x: x.mean(dim=-1), "shape-differs"),
        (lambda x: centred(x)[None], "shape-differs 1"),
        (lambda x: torch.zeros(()), "same-for-every-input"),
        (lambda x: x.new_zeros(1, 1, x.shape[-1]), "same-for-every-input"),
        (lambda x: centred(x).half(), "dtype-differs torch.float16 torch.float64"),
        (lambda x: centred(x.half()).to(x.dtype), "values-differ"),
        (lambda x: centred(x).tolist(), "is-no-tensor list"),
        (lambda x: centred(x).numpy(), "is-no-tensor ndarray"),
        (lambda x: centred(x).to_sparse(), "is-sparse"),
        (
            lambda x: torch.nested.nested_tensor(list(centred(x)), layout=torch.jagged),
            "is-no-tensor NestedTensor",
        ),
        (lambda x: centred(x).to("meta"), "device-differs"),
        (lambda x: torch.from_numpy(centred(x).numpy()), "no-gradient-through-numpy"),
        (lambda x: {}[leaves], "raises KeyError"),
        (silent, "raises-only Silent"),
        (lambda x: (centred(x),), "right-in-container tuple"),
        (lambda x: {"out": centred(x)}, "right-in-container dict"),
        (lambda x: (centred(x), x), "is-no-tensor tuple"),
        (lambda x: x, "returns-argument x"),
        (torch.clone, "returns-argument x"),
        (lambda x: torch.ones_like(x), "same-for-every-input"),
        (lambda x: torch.ones_like(x) * (x[0, 0, 0] > 2.2), "values-differ"),  # rarely 1
        (lambda x: centred(x) / 0, "values-differ"),
        (lambda x: centred(x) * float("nan"), "holds-nan"),
        (lambda x: x - x.mean(dim=1, keepdim=True), "test-mean-over-tokens"),
        (lambda x: x - x.mean(dim=0, keepdim=True), "values-differ"),
        (lambda x: x.view(2, -1), "shape-differs 2 180"),
        (lambda x: x.view(-1, 12345), "raises RuntimeError"),
        (lambda x, y: x, "raises TypeError"),
        (lambda x: None, "returns-none"),
        (leaves, "raises-only SystemExit"),
        (in_place, "changed-in-place x"),
        (in_place_without_effect, "changed-in-place x"),
        (cut, "no-gradient x"),
        (through_items, "no-gradient x"),
        (half_cut, "part-of-graph-cut detach"),
        (in_a_loop, "loops-and-may-not"),
        (F.layer_norm, "raises TypeError"),
        (nn.Identity(), "returns-argument input"),
        (3, "function-is-asked int"),
    ],
)
def test_functions_are_refused_with_a_reason(answer: object, cause: str) -> None:
    mistakes = {"test-mean-over-tokens": lambda x: x - x.mean(dim=1, keepdim=True)}
    said = refusal(same_function, answer, centred, rows, mistakes=mistakes, loops="forbidden")
    assert is_told(said, cause), said


def test_a_loop_that_is_asked_for_must_be_there() -> None:
    def one_by_one(x: Tensor) -> Tensor:
        return torch.stack([row - row.mean() for row in x.flatten(0, -2)]).view(x.shape)

    same_function(one_by_one, centred, rows, loops="asked")
    said = refusal(same_function, centred, centred, rows, loops="asked")
    assert is_told(said, "loop-is-missing")


def test_a_long_loop_is_found_soon() -> None:
    calls = []

    def endless(x: Tensor) -> Tensor:
        result = centred(x)
        for _ in range(10**9 if x.numel() > 5000 else 1):
            calls.append(result + 0)
        return result

    said = refusal(same_function, endless, centred, rows, loops="forbidden")
    assert is_told(said, "loops-and-may-not") and len(calls) < 2000


def test_right_functions_pass_however_they_are_written() -> None:
    for answer in (
        lambda x: x - x.mean(-1)[..., None],
        lambda x: x - x.sum(-1, keepdim=True) / x.size(-1),
        lambda y: y - torch.einsum("bne->bn", y).unsqueeze(-1) / y.shape[2],
    ):
        same_function(answer, centred, rows, loops="forbidden")


def unwatched(s: Tensor) -> Tensor:
    with torch._C.DisableTorchFunction():
        return s.softmax(-1)


def through_attention(s: Tensor) -> Tensor:
    one = torch.eye(s.shape[-1], dtype=s.dtype).expand(len(s), -1, -1)
    return F.scaled_dot_product_attention(s * s.shape[-1] ** 0.5, one, one)


@pytest.mark.parametrize(
    "shortcut",
    [
        lambda s: F.softmax(s, -1),
        lambda s: s.softmax(-1),
        lambda s: torch.softmax(s, dim=-1),
        lambda s: torch.special.softmax(s, -1),
        lambda s: nn.Softmax(-1)(s),
        lambda s: s.log_softmax(-1).exp(),
        lambda s: (s - s.logsumexp(-1, keepdim=True)).exp(),
        lambda s: torch.ops.aten.softmax.int(s, -1),
        lambda s: torch.sparse.softmax(s.to_sparse(), 2).to_dense(),
        partial(F.softmax, dim=-1),
        torch.vmap(lambda row: F.softmax(row, -1)),
        unwatched,
        through_attention,
        (lambda hidden: lambda s: hidden(s, -1))(F.softmax),
    ],
)
def test_a_forbidden_call_is_seen_under_every_name(shortcut: Callable) -> None:
    instead = message("write-softmax-with-exp")
    said = refusal(
        same_function, shortcut, lambda s: s.softmax(-1), rows, forbidden=SOFTMAX, loops="forbidden"
    )
    assert is_told(said, "calls-shortcut") and said.message.params["instead"] == instead


def test_the_function_of_the_check_is_no_answer() -> None:
    for answer in (causal_mask, lambda n: causal_mask(n), partial(causal_mask)):
        said = refusal(same_function, answer, causal_mask, lambda case: (case["n"],))
        assert is_told(said, "calls-the-reference")
    same_function(lambda n: torch.ones(n, n).tril().bool(), causal_mask, lambda case: (case["n"],))


def test_a_list_that_was_emptied_is_no_crash() -> None:
    def popped(maps: list[Tensor]) -> Tensor:
        return sum(maps.pop() for _ in range(2))

    def added(maps: list[Tensor]) -> Tensor:
        return sum(maps)

    def two(case: Case) -> tuple[list[Tensor]]:
        return ([case.randn("b n"), case.randn("b n")],)

    assert is_told(refusal(same_function, popped, added, two), "list-was-changed maps")


def test_a_mistake_that_does_not_fail_where_the_answer_fails_is_not_named() -> None:
    def doubled(x: Tensor) -> Tensor:
        return centred(x).double()

    mistakes = {"test-double": lambda x: centred(x.double()).to(x.dtype)}
    said = refusal(same_function, doubled, centred, rows, mistakes=mistakes)
    assert is_told(said, "dtype-differs torch.float64 torch.float32")


def test_an_argument_that_is_not_used_is_named() -> None:
    def two(case: Case) -> tuple[Tensor, Tensor]:
        return case.randn("b n"), case.randn("b n")

    def forgets(x: Tensor, bias: Tensor) -> Tensor:
        return x + torch.ones_like(bias)

    said = refusal(same_function, forgets, lambda x, bias: x + bias, two)
    assert is_told(said, "changes-nothing bias")


class Unreadable(Tensor):
    def numel(self) -> int:
        raise RuntimeError("no")


ENDLESS: list = []
ENDLESS.append(ENDLESS)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([1, "a"], "[1, 'a']"),
        ([torch.zeros(2)], "[tensor([0., 0.])]"),
        ([torch.zeros(61)], message("kind", name="list")),
        ({"a": (torch.zeros(8, 8),)}, message("kind", name="dict")),
        ([torch.zeros(2).as_subclass(Unreadable)], message("kind", name="list")),
        (ENDLESS, message("kind", name="list")),
    ],
    ids=["short", "tensor", "long", "inside", "raises", "endless"],
)
def test_a_value_is_shown_only_where_it_is_short(value: object, said: object) -> None:
    assert shown(value) == said


def test_watch_sees_functions_of_utils_and_leaves_no_trace() -> None:
    attention = MultiHeadAttention(12, 3)
    with CallTracer() as tracer:
        attention(torch.randn(2, 5, 12))
    assert tracer.called["MultiHeadAttention.forward"] == 1
    assert tracer.called["scaled_dot_product_attention"] == 1
    before = dict(tracer.called)
    attention(torch.randn(2, 5, 12))
    assert dict(tracer.called) == before, "nothing is counted outside"


def test_watching_does_not_load_the_compiler_of_torch() -> None:
    """torch would wrap the method and load torch._dynamo at the first check: two seconds."""
    assert not hasattr(Beneath.__torch_dispatch__, "__wrapped__")


def cell(text: str) -> dict:
    """Run code whose source can be read back, as that of a notebook's cell."""
    file = f"<cell of a test {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    names: dict = {"torch": torch, "nn": nn}
    exec(compile(text, file, "exec"), names)
    return names


HEAD = 'def softmax(scores):\n    """Return the weights."""\n'
STUB = "    # your code here\n    pass\n"
RIGHT_LINES = (
    "    powers = (scores - scores.amax(-1, keepdim=True)).exp()\n"
    "    return powers / powers.sum(-1, keepdim=True)\n"
)


@pytest.mark.parametrize(
    ("text", "state", "cause"),
    [
        (HEAD + STUB, "not yet", "function-still-empty softmax"),
        (HEAD + "    pass\n", "not yet", "function-still-empty softmax"),
        (HEAD, "not yet", "function-still-empty softmax"),
        (HEAD + "    ...\n", "not yet", "function-still-empty softmax"),
        (HEAD + RIGHT_LINES, "right", "and-large-rows-survive"),
        (HEAD + STUB + RIGHT_LINES, "right", "and-large-rows-survive"),
        (HEAD + "    # your code here\n" + RIGHT_LINES, "right", "and-large-rows-survive"),
        (HEAD + RIGHT_LINES + STUB, "right", "and-large-rows-survive"),
        (HEAD + "    powers = scores.exp()\n" + STUB, "not yet", "stub-left softmax"),
        (
            HEAD + "    # your code here\n    powers = scores.exp()\n",
            "not right",
            "returns-none softmax",
        ),
        ("softmax = ...", "not yet", "still-empty"),
        ("softmax = None", "not yet", "still-empty"),
    ],
)
def test_a_stub_is_not_yet_and_an_answer_beside_it_counts(
    text: str, state: str, cause: str
) -> None:
    said = examine("03.2", cell(text)["softmax"])
    assert said.state == state and is_told(said, cause), said


def test_a_class_with_an_empty_method_is_not_yet() -> None:
    text = (
        "class Answer(nn.Module):\n    def __init__(self, embed_dim, mlp_dim):\n"
        "        super().__init__()\n        # your code here\n        pass\n\n"
        "    def forward(self, x):\n        return x\n"
    )
    for empty in ("__init__", "forward"):
        with pytest.raises(NotYet) as caught:
            same_module(cell(text)["Answer"], Narrow, widths, rows)
        assert caught.value.what == message("function-still-empty", name=f"Answer.{empty}")
        text = text.replace("        # your code here\n        pass\n", "        self.a = 1\n")
        text = text.replace("        return x\n", "        ...\n")


def test_sizes_differ_and_repeat() -> None:
    for seed in range(50):
        case = Case(seed)
        x = case.randn("b c (gh ph) (gw pw)")
        letters = ["b", "c", "gh", "ph", "gw", "pw"]
        assert len({case[letter] for letter in letters}) == len(letters)
        assert x.shape == (case["b"], case["c"], case["gh"] * case["ph"], case["gw"] * case["pw"])
        again = Case(seed)
        assert torch.equal(again.randn("b c (gh ph) (gw pw)"), x)
        assert Case(seed, values=99).shape("b c") == again.shape("b c")


def test_difference_never_broadcasts() -> None:
    want = torch.ones(3, 4)
    for got in (torch.ones(4), torch.ones(1, 4), torch.ones(3, 1), torch.ones(()), torch.ones(12)):
        assert difference(got, want).id == "shape-differs"
    assert difference(torch.ones(3, 4, dtype=torch.int64), want)
    assert difference((want,), (want, want)) and difference(want, (want,))
    assert difference(True, 1) and difference(1, True) and difference("a", "b")
    assert difference(float("nan"), 1.0) and difference(torch.ones(2), 1.0)
    assert difference(2, 2) is None and difference(2, 2.0) is None
    nan = torch.tensor([1.0, float("nan")])
    assert difference(nan, nan.clone()) is None, "NaN is right where NaN is asked for"


# ---------------------------------------------------------------------------------------- classes


class Narrow(nn.Module):
    def __init__(self, embed_dim: int, mlp_dim: int):
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, mlp_dim)
        self.fc2 = nn.Linear(mlp_dim, embed_dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x).relu())


def widths(case: Case) -> dict[str, int]:
    return {"embed_dim": case["e"], "mlp_dim": case["m"]}


def variant(**changed) -> type[nn.Module]:
    return type("Answer", (Narrow,), changed)


def without(name: str) -> type[nn.Module]:
    class Answer(Narrow):
        def __init__(self, embed_dim: int, mlp_dim: int):
            super().__init__(embed_dim, mlp_dim)
            delattr(self, name)

    return Answer


class Renamed(nn.Module):
    def __init__(self, embed_dim: int, mlp_dim: int):
        super().__init__()
        self.first, self.second = nn.Linear(embed_dim, mlp_dim), nn.Linear(mlp_dim, embed_dim)


class Extra(Narrow):
    def __init__(self, embed_dim: int, mlp_dim: int):
        super().__init__(embed_dim, mlp_dim)
        self.fc3 = nn.Linear(2, 2)


class Fixed(Narrow):
    def __init__(self, embed_dim: int, mlp_dim: int):
        super().__init__(embed_dim, 7)


class Listed(nn.Module):
    def __init__(self, embed_dim: int, mlp_dim: int):
        super().__init__()
        self.fc1 = [nn.Linear(embed_dim, mlp_dim)]


class Local(Narrow):
    def __init__(self, embed_dim: int, mlp_dim: int):
        nn.Module.__init__(self)
        self.fc1 = nn.Linear(embed_dim, mlp_dim)
        fc2 = nn.Linear(mlp_dim, embed_dim)  # noqa: F841


class Biasless(Narrow):
    def __init__(self, embed_dim: int, mlp_dim: int):
        super().__init__(embed_dim, mlp_dim)
        self.fc2 = nn.Linear(mlp_dim, embed_dim, bias=False)


class Bare(nn.Module):
    def __init__(self, embed_dim: int, mlp_dim: int):
        super().__init__()
        self.widths = embed_dim, mlp_dim


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        (Listed, "parameter-in-list fc1 list"),
        (Local, "parameter-without-self fc2"),
        (Biasless, "bias-missing fc2"),
        (Bare, "has-no-parameters"),
        (without("fc2"), "parameter-missing fc2.weight"),
        (Renamed, "parameter-missing fc1.weight second.bias"),
        (Extra, "parameter-too-many fc3.bias"),
        (Fixed, "shape-differs fc1.weight"),
        (type("Answer", (nn.Module,), {}), "raises TypeError"),
        (variant(forward=lambda self, x: self.fc2(self.fc1(x))), "test-no-relu"),
        (variant(forward=lambda self, x: x), "changes-nothing fc1.weight"),
        (variant(forward=lambda self, x: self.fc2(self.fc1(x).relu_()).detach()), "no-gradient x"),
        (variant(forward=lambda self, x: self.fc2(self.fc1(x)).sum()), "shape-differs"),
        (variant(forward=lambda self, x: None), "returns-none Answer.forward"),
        (nn.Linear(2, 2), "class-is-asked Linear"),
        (Case, "class-is-asked type"),
    ],
)
def test_classes_are_refused_with_a_reason(answer: object, cause: str) -> None:
    linear = variant(forward=lambda self, x: self.fc2(self.fc1(x)))
    said = refusal(same_module, answer, Narrow, widths, rows, mistakes={"test-no-relu": linear})
    assert is_told(said, cause), said


class Renewed(Narrow):
    """The same layers under two names each, and a number of its own that is no parameter."""

    def __init__(self, embed_dim: int, mlp_dim: int):
        nn.Module.__init__(self)
        self.layers = nn.Sequential(nn.Linear(embed_dim, mlp_dim), nn.Linear(mlp_dim, embed_dim))
        self.fc1, self.fc2 = self.layers
        self.register_buffer("share", torch.tensor(0.5))


class Frozen(Narrow):
    def __init__(self, embed_dim: int, mlp_dim: int):
        super().__init__(embed_dim, mlp_dim)
        self.fc1.bias.requires_grad_(False)


class Tied(nn.Module):
    def __init__(self, embed_dim: int):
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, embed_dim)
        self.fc2 = self.fc1

    def forward(self, x: Tensor) -> Tensor:
        return self.fc2(self.fc1(x))


class Untied(Tied):
    def __init__(self, embed_dim: int):
        super().__init__(embed_dim)
        self.fc2 = nn.Linear(embed_dim, embed_dim)


class Stack(nn.Module):
    def __init__(self, layers: int):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(2, 2) for _ in range(layers))


def test_a_stack_that_is_too_short_is_told_so() -> None:
    short = type("Answer", (Stack,), {"__init__": lambda self, layers: Stack.__init__(self, 2)})
    said = refusal(same_module, short, Stack, lambda case: {"layers": 3}, rows)
    assert is_told(said, "too-few-layers layers.2.weight 2")


def test_parts_may_have_a_second_name_and_buffers() -> None:
    same_module(Renewed, Narrow, widths, rows)


def test_what_is_wrong_with_a_parameter_is_said() -> None:
    said = refusal(same_module, Frozen, Narrow, widths, rows)
    assert is_told(said, "parameter-frozen fc1.bias")
    forgets = variant(forward=lambda self, x: self.fc2(x @ self.fc1.weight.T))
    said = refusal(same_module, forgets, Narrow, widths, rows)
    assert is_told(said, "changes-nothing fc1.bias")
    said = refusal(same_module, Tied, Untied, lambda case: {"embed_dim": case["e"]}, rows)
    assert is_told(said, "parameters-are-one fc1.weight fc2.weight")


def test_a_class_built_from_a_forbidden_one_is_seen() -> None:
    class Answer(Narrow):
        def __init__(self, embed_dim: int, mlp_dim: int):
            nn.Module.__init__(self)
            finished = FeedForward(embed_dim, mlp_dim)
            self.fc1, self.fc2 = finished.fc1, finished.fc2

    forbidden = {"FeedForward.__init__": "test-build-yourself"}
    said = refusal(same_module, Answer, Narrow, widths, rows, forbidden=forbidden)
    assert is_told(said, "calls-shortcut FeedForward")


def test_the_clinic_names_the_bug_of_a_class() -> None:
    class Answer(MultiHeadAttention):
        def forward(self, x: Tensor) -> Tensor:
            b, n, e = x.shape
            parts = (self.q_proj, self.k_proj, self.v_proj)
            q, k, v = (p(x).view(b, n, self.num_heads, -1).transpose(1, 2) for p in parts)
            weights = (q @ k.mT / e**0.5).softmax(dim=-1)
            return self.out_proj((weights @ v).transpose(1, 2).reshape(b, n, e))

    said = refusal(
        same_module,
        Answer,
        MultiHeadAttention,
        lambda case: {"embed_dim": case["h"] * case["d"], "num_heads": case["h"]},
        lambda case: (case.randn("b n (h d)"),),
        clinic=lambda module, built: diagnose(module, built["num_heads"]),
    )
    assert is_told(said, "clinic-found/scale-embed")


# --------------------------------------------------------------------- shapes, numbers and choices


@pytest.mark.parametrize(
    ("guess", "cause"),
    [
        ((2, 5, 3), "sizes-in-another-order"),
        ((2, 3), "number-of-axes 3 2"),
        ((1, 6, 5), "laid-out-otherwise"),
        ((2, 3, 4), "look-at-axes k"),
        ((2.0, 3, 5), "no-shape"),
        (30, "no-shape 30"),
        ("2 3 5", "no-shape"),
        (torch.zeros(2, 3, 5), "no-shape Tensor"),
        (lambda: (2, 3, 5), "no-shape function"),
    ],
)
def test_guesses_are_refused_without_the_answer(guess: object, cause: str) -> None:
    said = refusal(same_shape, guess, (2, 3, 5), "i j k")
    assert is_told(said, cause) and "(2, 3, 5)" not in said.reason
    assert "right" not in str(said.message)


def test_numbers_and_choices() -> None:
    known = {4.0: "test-square"}
    assert refusal(same_number, 4.01, 2.0, 0.1, "test-root", known).topic == "test-square"
    assert refusal(same_number, 9, 2.0, 0.1, "test-root", known).topic == "too-large"
    near_zero = {0.05: "test-loss"}  # a wide margin must not make every number known
    assert refusal(same_number, 0.051, 2.0, 0.1, "test-root", near_zero).topic == "test-loss"
    assert refusal(same_number, 0.0, 2.0, 0.1, "test-root", near_zero).topic == "too-small"
    for nothing in ("2", True, [2], float("nan")):
        refusal(same_number, nothing, 2.0, 0.1, "test-root")
    for number in (torch.tensor(2.05), np.float32(2.05), np.array(2.05), np.int64(2)):
        same_number(number, 2.0, 0.1, "test-root")
    assert refusal(same_number, 10**400, 2.0, 0.1, "test-root").topic == "too-large"
    for number in (torch.tensor(2), np.int64(2), np.array([2])):
        assert difference(number, 2) is None


def test_an_experiment_must_measure() -> None:
    def measured(d: int) -> float:
        return torch.randn(20_000, d).square().sum(-1).mean().item()

    options = {"what": "test-squared-length", "mistakes": {"test-mean": lambda d: 1.0}}
    cases = [(3,), (40,)]
    same_measure(measured, lambda d: d, cases, **options)
    for answer, cause in (
        (float, "nothing-measured"),
        (lambda d: d + 0 * torch.randn(1).item(), "nothing-measured"),  # it draws for show
        (lambda d: torch.randn(9000, d).square().mean(), "test-mean"),
        (lambda d: 0.1, "same-for-all-sizes"),
    ):
        said = refusal(same_measure, answer, lambda d: d, cases, **options)
        assert said.topic == cause, said
    for nothing in ("3", True, [3.0], torch.ones(2), float("nan")):
        refusal(same_measure, lambda d, x=nothing: x, lambda d: d, cases, **options)


# ------------------------------------------------------------------------------------------ check


def test_check_prints_and_does_not_raise(capsys: pytest.CaptureFixture) -> None:
    for answers, state in (((..., ...), "not yet"), (((1,), (2,)), "not right")):
        assert check("03.1", *answers) is None
        said = capsys.readouterr()
        assert said.out.startswith(f"03.1  {state}: ") and not said.err
        assert max(map(len, said.out.splitlines())) <= verdict.PAGE
    assert check("03.1", (2, 3, 5, 7), (2, 3, 5, 6)) is None
    assert capsys.readouterr().out.startswith("03.1  right: ")


def test_check_raises_for_a_grader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBGRADER_EXECUTION", "autograde")
    check("03.1", (2, 3, 5, 7), (2, 3, 5, 6))
    for answers in ((..., ...), ((1,), (2,))):
        with pytest.raises(CheckFailed, match=r"03\.1  not"):
            check("03.1", *answers)


def test_progress_tells_the_last_verdicts(
    capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verdict, "_SEEN", {})
    check("03.1", (2, 3, 5, 7), (2, 3, 5, 6))
    check("03.2", None)
    check("03.4", print)
    capsys.readouterr()
    progress("03")
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "Chapter 03: 1 of 6 right"
    states = [line.split("  ")[2].strip() for line in lines]
    assert states == ["right", "not yet", "not run", "not right", "not run", "not run", "open"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: examine("03.99", 1), "the exercise must be one of"),
        (lambda: examine("99.1", 1), "got chapter '99', and there is no checks/chapter_99.py"),
        (lambda: examine("03.7"), "the exercise must be one of"),
        (lambda: examine("03.2"), "takes softmax, got 0 answers"),
        (lambda: examine("03.2", 1, 2), "got 2 answers"),
        (lambda: progress("3"), "got chapter '3'"),
    ],
)
def test_a_check_cell_that_was_changed_says_how_to_mend_it(call: Callable, words: str) -> None:
    assert words in error_of(call)


def test_a_check_disturbs_nothing() -> None:
    torch.manual_seed(1)
    want = torch.rand(3)
    torch.manual_seed(1)
    examine("03.2", lambda scores: scores.softmax(-1) * torch.rand(1))
    assert torch.equal(torch.rand(3), want), "the student's random numbers go on as they were"


def test_a_check_says_the_same_whatever_was_before() -> None:
    def chance(scores: Tensor) -> Tensor:
        size = torch.rand(1).item() + np.random.rand() + random.random()
        return scores.new_zeros(int(1e9 * size), 0)

    said = []
    for seed in (1, 2):
        torch.manual_seed(seed), np.random.seed(seed), random.seed(seed)
        said.append(str(examine("03.2", chance)))
    assert said[0] == said[1]
    with torch.no_grad():
        assert examine("03.2", cell(HEAD + RIGHT_LINES)["softmax"]).state == "right"
    warns = HEAD + "    import warnings\n    warnings.warn('from line 4')\n" + RIGHT_LINES
    with warnings.catch_warnings(action="error"):
        assert examine("03.2", cell(warns)["softmax"]).state == "right"


def test_a_check_never_raises_for_a_student(monkeypatch: pytest.MonkeyPatch) -> None:
    def unforeseen(answer) -> str:
        return answer.nothing

    def why() -> str:
        raise RuntimeError

    def unexplained(answer) -> str:
        raise Wrong("test-wrong", why)

    for function, id in ((unforeseen, "unforeseen"), (unexplained, "test-wrong")):
        found = verdict.Check("03.2", "Title", function)
        monkeypatch.setitem(verdict.EXERCISES, "03.2", found)
        said = examine("03.2", Case(0))
        assert said.state == "not right" and said.message.id == id


def test_the_readme_shows_what_a_check_says() -> None:
    def over_the_queries(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(dim=-2)
        return weights @ v, weights

    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert f"```\n{examine('03.4', over_the_queries)}\n```" in readme


def test_a_constant_in_single_precision_is_no_mistake() -> None:
    def inputs(case: Case) -> tuple[torch.Tensor, ...]:
        return (case.randn("n d"),)

    def right(x: torch.Tensor) -> torch.Tensor:
        return x / x.shape[-1] ** 0.5

    with DoubleConstants():
        same_function(lambda x: x / torch.sqrt(torch.tensor(x.shape[-1])), right, inputs)
        same_function(lambda x: (x.float() / x.shape[-1] ** 0.5).to(x), right, inputs)
        for wrong in (lambda x: right(x) + 1e-7, lambda x: right(x.half()).to(x)):
            assert refusal(same_function, wrong, right, inputs).message.id == "values-differ"
    assert torch.get_default_dtype() == torch.float32
