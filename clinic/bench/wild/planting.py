"""Plant mistakes in a stranger's source: one place is written otherwise, as people get it wrong.

Each kind of mistake has the ids that may be said of it. Where a place can be got wrong in several
ways, each is a mistake of its own. Most change nothing, or do not run: `planted.py` looks.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

MERGE = ("merge-no-transpose", "merge-axes", "merge-batch-head")
PATCHES = ("patch-view", "patch-channel-mix")
AXES = (
    *(*MERGE, *PATCHES),
    *("split-no-transpose", "heads-as-tokens", "batch-first", "mix-transposed"),
)
WIDE = ("softmax-query", "softmax-heads", "softmax-batch", "softmax-joint")
HIDES = ("mask-dropped", "mask-not-causal", "context-mask-dropped")
SHARED = ("projection-shared", "value-from-key", "part-shared", "norm-shared", "layers-shared")
IDLE = ("part-unused", "parameter-unused", "out-unused", "projection-unused", "norm-missing")
ROOT = re.compile(r"sqrt|scale|\*\* ?-?0?\.5|d_?k\b|head_dim|dim_head|d_head|temper")
NORM = re.compile(r"norm|(^|_)ln|rms", re.IGNORECASE)
LAYER = re.compile(r"(^|_|[tT]o|[wW])[qkvQKV]+(\d|_|$)|quer|key|val|proj|(^|_)out")
NO_LAYER = re.compile(r"mask|drop|norm|(^|_)ln|rms", re.IGNORECASE)
SIBLINGS = (
    *(("query", "key"), ("value", "key"), ("key", "value"), ("q", "k"), ("v", "k"), ("k", "v")),
    *(("1", "2"), ("2", "1")),
)
BENDS = ("gelu", "relu", "silu", "GELU", "ReLU", "SiLU")


@dataclass(frozen=True)
class Planted:
    """A mistake in a source.

    Args:
        kind: what was got wrong.
        ids: what may be said of it, each or several together.
        line: where, counted from 1.
        before: what stood there.
        after: what stands there now.
        text: the whole source with it.
    """

    kind: str
    ids: tuple[str, ...]
    line: int
    before: str
    after: str
    text: str


Writes = Callable[[ast.AST, Callable[[ast.AST], str]], Iterator[str]]
KINDS: dict[str, tuple[tuple[str, ...], Writes]] = {}


def kind(name: str, *ids: str) -> Callable[[Writes], Writes]:
    """Enter a way to get something wrong.

    Args:
        name: of the mistake.
        ids: what may be said of it.
    """

    def enter(writes: Writes) -> Writes:
        KINDS[name] = (ids, writes)
        return writes

    return enter


def mistakes(text: str, build: str) -> Iterator[Planted]:
    """Yield every mistake that can be planted in the code that makes a module.

    Args:
        text: of the file.
        build: the expression that makes the module: its class, and those of the file that this one
            uses, get the mistakes.
    """
    tree, lines = ast.parse(text), [0]
    for line in text.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    source, seen = text.encode(), set()

    def place(node: ast.AST) -> tuple[int, int]:
        start, end = lines[node.lineno - 1], lines[node.end_lineno - 1]
        return start + node.col_offset, end + node.end_col_offset

    def get(node: ast.AST) -> str:
        first, last = place(node)
        return source[first:last].decode()

    for part in used(tree, build):
        for node in ast.walk(part):
            if not hasattr(node, "col_offset"):
                continue
            for name, (ids, writes) in KINDS.items():
                first, last = place(node)
                for after in writes(node, get):
                    changed = (source[:first] + after.encode() + source[last:]).decode()
                    if changed != text and changed not in seen and _parses(changed):
                        seen.add(changed)
                        yield Planted(name, ids, node.lineno, get(node), after, changed)


def used(tree: ast.Module, build: str) -> list[ast.AST]:
    """Return the classes and functions of a file that an expression uses, and those these use."""
    named = {
        one.name: one
        for node in tree.body
        for one in ([node] if not isinstance(node, ast.If | ast.Try) else node.body)
        if isinstance(one, ast.ClassDef | ast.FunctionDef)
    }
    waiting = [name for name in named if re.search(rf"\b{name}\b", build)]
    found: dict[str, ast.AST] = {}
    while waiting:
        name = waiting.pop(0)
        if name not in found:
            found[name] = named[name]
            inner = (node for node in ast.walk(named[name]) if isinstance(node, ast.Name))
            waiting += [node.id for node in inner if node.id in named]
    return list(found.values())


def _parses(text: str) -> bool:
    try:
        ast.parse(text)
    except SyntaxError:
        return False
    return True


def _called(node: ast.AST) -> str:
    """Return the last name of what is called, "" for another node."""
    if not isinstance(node, ast.Call):
        return ""
    function = node.func
    return getattr(function, "attr", "") or getattr(function, "id", "")


def _own(node: ast.AST) -> str:
    """Return NAME of a call of self.NAME with something, "" for another node."""
    function = getattr(node, "func", None)
    owner = getattr(getattr(function, "value", None), "id", "")
    return function.attr if owner == "self" and node.args else ""


def _swapped(text: str, first: str, second: str) -> str:
    """Return a pattern with two names exchanged."""
    either = rf"(?<!\w)({re.escape(first)}|{re.escape(second)})(?!\w)"
    return re.sub(either, lambda m: second if m[0] == first else first, text)


# ------------------------------------------------------------------------------- axes and heads


@kind("softmax over another axis", *WIDE)
def softmax_axis(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if _called(node).lower() == "softmax":
        for given in [*node.args, *(k.value for k in node.keywords if k.arg == "dim")]:
            if get(given) in ("-1", "2", "3"):
                for axis in ("-2", "1", "0"):
                    yield get(node).removesuffix(")").replace(get(given), axis) + ")"


@kind("transpose left out", *AXES)
def no_transpose(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if _called(node) in ("transpose", "swapaxes", "permute") and hasattr(node.func, "value"):
        yield get(node.func.value)


@kind("view for transpose", *AXES)
def view_for_transpose(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if _called(node) in ("transpose", "permute") and hasattr(node.func, "value"):
        turned = ", ".join(map(get, node.args))
        to = f"t.{_called(node)}({turned}).shape"
        yield f"(lambda t: t.reshape({to}))({get(node.func.value)})"


@kind("other axes", *AXES, "scale-other")
def other_axes(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if _called(node) == "transpose" and hasattr(node.func, "value") and len(node.args) == 2:
        for axes in ("0, 1", "0, 2", "1, 3", "2, 3"):
            yield f"{get(node.func.value)}.transpose({axes})"
    elif _called(node) == "permute" and hasattr(node.func, "value"):
        axes = [get(axis) for axis in node.args]
        for a in range(1, len(axes)):
            turned = [*axes[: a - 1], axes[a], axes[a - 1], *axes[a + 1 :]]
            yield f"{get(node.func.value)}.permute({', '.join(turned)})"


@kind("einsum of other axes", *AXES)
def other_letters(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str) and "->" in node.value:
        *_, out = node.value.partition("->")
        words = out.replace("(", " ").replace(")", " ").split()
        for first, second in pairwise(words):
            if "b" not in (first, second) and re.search(rf"\({first} {second}\)", out):
                continue  # other columns of the same layer: no mistake
            left = node.value.removesuffix(out)
            yield repr(left + _swapped(out, first, second))


@kind("weights transposed", "mix-transposed")
def transposed(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    turned = "{}.transpose(-2, -1)"
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        first, second, made = get(node.left), get(node.right), "{} @ {}"
    elif _called(node) in ("matmul", "bmm") and len(node.args) == 2:
        first, second, made = *map(get, node.args), f"{get(node.func)}({{}}, {{}})"
    else:
        return
    if "ranspose" not in second:
        yield made.format(turned.format(first), second)


@kind("heads of keys in another order", "groups-order")
def tiled(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if (
        _called(node) == "repeat_interleave"
        and getattr(getattr(node.func, "value", None), "id", "torch") != "torch"
    ):
        times = get(node.args[0]) if node.args else "1"
        yield f"{get(node.func.value)}.repeat(1, {times}, 1, 1)"


# ------------------------------------------------------------------------------ scores and masks


@kind("scale left out, twice, or turned over", "scale-missing", "scale-unused", "scale-other")
def scale(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div | ast.Mult):
        left, right = get(node.left), get(node.right)
        if ROOT.search(right):
            sign, other = ("/", "*") if isinstance(node.op, ast.Div) else ("*", "/")
            yield f"({left})"
            yield f"({left} {sign} {right} {sign} {right})"
            yield f"({left} {other} ({right}))"


@kind("scores divided by //", "scale-other")  # 1 // 8 is 0
def floored(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and ROOT.search(get(node)):
        yield f"({get(node.left)} // {get(node.right)})"


@kind("another power of the width", "scale-other", "scale-missing")
def power(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    raised = isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow)
    if raised and get(node.right) in ("0.5", "-0.5", "(-0.5)", ".5", "-.5"):
        yield f"{get(node.left)} ** -({get(node.right)})"
        yield f"{get(node.left)} ** (2 * {get(node.right)})"


@kind("softmax left out", "softmax-missing")
def no_softmax(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if _called(node).lower() == "softmax" and isinstance(node.func, ast.Attribute):
        owner = getattr(node.func.value, "id", "")
        if owner not in ("F", "torch", "self", "nn", "functional"):
            yield get(node.func.value)
        elif node.args and owner != "nn":
            yield get(node.args[0])


@kind("mask turned over", "mask-inverted", *HIDES)
def inverse(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if _called(node) in ("masked_fill", "masked_fill_") and len(node.args) == 2:
        hidden, value = map(get, node.args)
        yield f"{get(node.func)}(({hidden}) == 0, {value})"


@kind("tiny fill", "mask-tiny", "mask-multiply")
def tiny(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if _called(node) in ("masked_fill", "masked_fill_") and len(node.args) == 2:
        yield f"{get(node.func)}({get(node.args[0])}, 1e-9)"


@kind("mask not used", *HIDES, "mask-after-softmax")  # where weights are masked, too
def no_mask(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if _called(node) == "masked_fill" and len(node.args) == 2:
        yield get(node.func.value)
    elif _called(node) and any("mask" in getattr(one, "id", "") for one in node.args):
        given = ["None" if "mask" in getattr(one, "id", "") else get(one) for one in node.args]
        named = [f"{k.arg}={get(k.value)}" for k in node.keywords]
        yield f"{get(node.func)}({', '.join([*given, *named])})"


@kind("diagonal of the mask shifted", "mask-off-by-one")
def diagonal(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if _called(node) in ("tril", "triu"):
        said = [k.value for k in node.keywords if k.arg == "diagonal"]
        for shift in (-1, 1):
            if said:
                yield re.sub(r"diagonal=[^,)]+", f"diagonal={get(said[0])} + {shift}", get(node))
            elif len(node.args) == 1:
                yield f"{get(node.func)}({get(node.args[0])}, diagonal={shift})"


# ------------------------------------------------------------------------------ layers and parts


@kind("layer of another", *SHARED, *IDLE, "residual-from-norm")
def other_layer(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    own = _own(node)
    for first, second in SIBLINGS:
        letter = rf"(?<![a-z]){first}(?![a-z])|(?<=^w){first}$"
        other = re.sub(letter if len(first) == 1 else first, second, own)
        if other != own:
            yield get(node).replace(f"self.{own}", f"self.{other}", 1)


@kind(
    *("part left out", *IDLE, "norm-mixed", "activation-missing", "dropout-unused", "norm-order"),
    "softmax-missing",
)
def left_out(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if _own(node):
        yield get(node.args[0])


@kind("activation left out", "activation-missing")
def straight(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if _called(node) in BENDS and isinstance(node.func, ast.Attribute):
        if node.args:
            yield get(node.args[0])
        elif get(node.func.value) in ("nn", "torch.nn"):
            yield f"{get(node.func.value)}.Identity()"


@kind("what a layer returns is bent", "projection-bent", "out-bent", "activation-last")
def bent(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if LAYER.search(_own(node)) and not NO_LAYER.search(_own(node)):
        yield f"({get(node)}).relu()"


@kind("cut from the graph", "graph-cut")
def detached(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if _own(node) or _called(node) == "softmax":
        yield f"({get(node)}).detach()"


@kind("stream lost", "residual-missing", "norm-mixed", *IDLE)
def lost(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        pair = (node.left, node.right)
        for one, other in (pair, pair[::-1]):
            if isinstance(one, ast.Name) and isinstance(other, ast.Call) and "self." in get(other):
                yield get(other)


@kind("the norm's result added", "residual-from-norm")
def from_norm(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for inner in ast.walk(node.right):
            if NORM.search(_own(inner)) and get(inner.args[0]) == get(node.left):
                yield f"({get(inner)} + {get(node.right)})"


@kind("a great eps", "norm-eps")
def great_eps(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if _called(node) == "LayerNorm" and len(node.args) == 1 and not node.keywords:
        yield f"{get(node.func)}({get(node.args[0])}, 0.1)"


# ------------------------------------------------------------------------------------- positions


@kind(  # or of what fills the masked scores
    "another sign",
    *("rotary-mixed", "rotary-backwards"),
)
def sign(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    minus = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
    if minus and not isinstance(node.operand, ast.Constant):
        yield get(node.operand)


@kind("another base", "sincos-base", "rotary-frequencies", "sincos-exponent")
def base(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if isinstance(node, ast.Constant) and node.value == 10000:
        yield "1000.0"


@kind("sine for cosine", "sincos-cosine", "sincos-exchanged", "rotary-mixed")
def sine(node: ast.AST, get: Callable[[ast.AST], str]) -> Iterator[str]:
    if _called(node) in ("sin", "cos") and isinstance(node.func, ast.Attribute):
        other = {"sin": "cos", "cos": "sin"}[_called(node)]
        yield re.sub(rf"{_called(node)}(\(.*\))$", rf"{other}\1", get(node), flags=re.DOTALL)
