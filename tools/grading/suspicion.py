"""Looks at the text of a student's code for what is out to deceive the grader.

Nothing is run. Two degrees: a *deceit* gives the notebook 0 points and a *remark* is for the
instructor alone. A deceit is what has no honest use in an exercise: another `check`, another
function inside a library, the frames or the memory of whoever calls. Students write odd but honest
things, so everything else that is unusual is only told.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from course.notebook import Notebook, source
from grading.pristine import COURSE

# Attributes through which code reaches the code that judges it.
INNER = {
    "_getframe",
    "_current_frames",
    "f_back",
    "f_locals",
    "f_globals",
    "f_code",
    "tb_frame",
    "gi_frame",
    "cr_frame",
    "cell_contents",
    "__closure__",
    "_SEEN",
    "ast_transformers",
    "input_transformers_cleanup",
    "input_transformers_post",
}
# The same, but some students look into functions; what they change in the grader's is found later.
TOLD = {"__globals__", "__code__", "__subclasses__"}
INNER_CALLS = {
    "gc.get_objects",
    "gc.get_referrers",
    "gc.get_referents",
    "inspect.stack",
    "inspect.currentframe",
    "inspect.trace",
    "inspect.getouterframes",
    "sys.settrace",
    "sys.setprofile",
    "threading.setprofile",
    "threading.settrace",
    "os.kill",
    "os.killpg",
    "os.getppid",
}
INNER_MODULES = {"ctypes"} | {
    f"checks.engine.{name}"
    for name in (
        "verdict",
        "functions",
        "modules",
        "measures",
        "compare",
        "watch",
        "cases",
        "calls",
    )
}
SHELL = (
    "kernel",
    "events",
    "user_global_ns",
    "display_pub",
    "displayhook",
    "parent",
    "payload_manager",
)
# Libraries in which something was replaced when it is assigned to; settings of theirs are no harm.
JUDGES = ("torch", "einops", "numpy", *COURSE, "builtins", "math", "inspect", "operator", "copy")
JUDGES += ("random", "importlib", "types", "functools", "linecache", "re", "sys", "dataclasses")
SETTINGS = re.compile(r"backends|allow_tf32|rcParams|_dynamo|_inductor|\.stdout$|\.stderr$")
TOLD_CALLS = {"exec", "eval", "compile", "__import__", "globals", "vars"}
TOLD_MODULES = {"gc", "subprocess", "socket", "urllib", "requests", "builtins", "multiprocessing"}
TOLD_MODULES |= {"importlib", "signal", "threading", "shutil"}
MAGIC = re.compile(r"^\s*(%%?\w+|!.*)", re.MULTILINE)
HARMLESS_MAGICS = ("%matplotlib", "%time", "%%time", "%timeit", "%%timeit", "%config", "%precision")


@dataclass(frozen=True)
class Suspicion:
    """Something in the code of a student.

    Args:
        what: what was seen, in words that follow "cell 5: ".
        cell: number of the cell, from 1.
        deceit: whether the notebook gets no points for it.
    """

    what: str
    cell: int
    deceit: bool

    def __str__(self) -> str:
        return f"cell {self.cell} {self.what}"


def suspicions(handed_in: Notebook, given: set[str]) -> list[Suspicion]:
    """Finds what is suspicious in the code of a notebook.

    Args:
        handed_in: as `tidy` gives it.
        given: the sources of cells that were handed out so; they are the course's.
    """
    cells = [(n, c) for n, c in enumerate(handed_in["cells"], 1) if c["cell_type"] == "code"]
    cells = [(n, c) for n, c in cells if source(c).strip() not in given]
    trees = {number: _tree(source(cell)) for number, cell in cells}
    names = dict(_imports([tree for tree in trees.values() if tree]))
    for text in given:
        if tree := _tree(text):
            names = dict(_imports([tree])) | names
    found: list[Suspicion] = []
    for number, cell in cells:
        for magic in MAGIC.finditer(source(cell)):
            word = magic.group(1).strip()
            if not word.startswith(HARMLESS_MAGICS):
                found.append(Suspicion(f"has the magic {word[:40]!r}", number, False))
        if tree := trees[number]:
            # IPython turns a magic into a call of get_ipython(), which was told already.
            found += [
                Suspicion(what, number, deceit)
                for what, deceit in _look(tree, names)
                if deceit or "get_ipython()" not in what or "get_ipython" in source(cell)
            ]
    return list(dict.fromkeys(found))


def _tree(text: str) -> ast.Module | None:
    """Parses a cell as IPython does; None for one that is not Python."""
    from IPython.core.inputtransformer2 import TransformerManager

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(TransformerManager().transform_cell(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imports(trees: list[ast.Module]) -> Iterator[tuple[str, str]]:
    """Gives each name that an import binds, and what it stands for, written out."""
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    bound = alias.asname or alias.name.split(".")[0]
                    yield bound, alias.name if alias.asname else bound
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield alias.asname or alias.name, f"{node.module or ''}.{alias.name}"


def _path(node: ast.AST, names: dict[str, str]) -> str:
    """Writes out a dotted name: F.softmax becomes torch.nn.functional.softmax; "" if it is none."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        return ".".join([names.get(node.id, node.id), *reversed(parts)])
    if isinstance(node, ast.Call) and _path(node.func, names).split(".")[-1] == "get_ipython":
        return ".".join(["get_ipython()", *reversed(parts)])
    return ""


def _look(tree: ast.Module, names: dict[str, str]) -> Iterator[tuple[str, bool]]:
    """Gives what is suspicious, and whether it is a deceit."""
    if "check" in _bound(tree):
        yield "gives check another meaning", True
    for node in ast.walk(tree):
        yield from _assigned(node, names)
        if isinstance(node, ast.Attribute):
            yield from _attribute(node, names)
        elif isinstance(node, ast.Call):
            yield from _call(node, names)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from _imported(node)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if "NBGRADER" in node.value:
                yield "speaks of NBGRADER, by which a grader is known", True
            elif "__globals__" in node.value or "checks." in node.value:
                yield f"names {node.value[:40]!r} in a text", False
            elif "solutions/" in node.value or "/proc/" in node.value:
                yield f"names the file {node.value[:40]!r}", False
        elif isinstance(node, ast.Name) and node.id == "__builtins__":
            yield "uses __builtins__", True


def _bound(tree: ast.Module) -> set[str]:
    """Returns the names that a cell binds outside of functions and classes."""
    found: set[str] = set()

    def visit(node: ast.AST, outside: bool) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            if outside:
                found.add(node.name)
            outside = False
        elif isinstance(
            node, ast.Lambda | ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
        ):
            outside = False
        elif isinstance(node, ast.Global):
            found.update(node.names)
        elif isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load) and outside:
            found.add(node.id)
        elif isinstance(node, ast.ImportFrom) and outside:
            right = (node.module or "") in ("checks", "checks.engine.verdict")
            found.update(
                a.asname or a.name
                for a in node.names
                if not right or a.asname not in (None, a.name)
            )
        elif isinstance(node, ast.Import) and outside:
            found.update(a.asname for a in node.names if a.asname)
        for child in ast.iter_child_nodes(node):
            visit(child, outside)

    visit(tree, True)
    return found


def _targets(node: ast.AST) -> Iterator[tuple[ast.AST, Any]]:
    """Gives every target of an assignment or deletion, with the value where there is one."""
    if isinstance(node, ast.Assign):
        stack = [(target, node.value) for target in node.targets]
    elif isinstance(node, ast.AugAssign | ast.AnnAssign | ast.NamedExpr):
        stack = [(node.target, node.value)]
    elif isinstance(node, ast.Delete):
        stack = [(target, None) for target in node.targets]
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        stack = [(node.target, None)]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        stack = [(node.optional_vars, None)]
    else:
        return
    while stack:
        target, value = stack.pop()
        if isinstance(target, ast.Tuple | ast.List):
            stack += [(part, None) for part in target.elts]
        elif isinstance(target, ast.Starred):
            stack.append((target.value, None))
        else:
            yield target, value


def _assigned(node: ast.AST, names: dict[str, str]) -> Iterator[tuple[str, bool]]:
    for target, value in _targets(node):
        if isinstance(target, ast.Subscript):
            path = _path(target.value, names)
            if path == "sys.modules":
                yield "replaces a module in sys.modules", True
            elif path.split(".")[0] in COURSE or path.endswith("__dict__"):
                yield f"writes into {path}", True
        elif isinstance(target, ast.Attribute):
            path = _path(target, names)
            if not _of_library(path, names) or SETTINGS.search(path):
                continue
            # torch.manual_seed = 0 is a slip of who meant to call it; it is put back.
            yield f"replaces {path}", not isinstance(value, ast.Constant)


def _of_library(path: str, names: dict[str, str]) -> bool:
    root = path.split(".")[0]
    return root in JUDGES and root in {full.split(".")[0] for full in names.values()}


def _attribute(node: ast.Attribute, names: dict[str, str]) -> Iterator[tuple[str, bool]]:
    if node.attr in INNER:
        yield f"uses {node.attr}, through which code reaches its caller", True
    if node.attr in TOLD:
        yield f"uses {node.attr}", False
    path = _path(node, names)
    if path.startswith("get_ipython()."):
        part = path.split(".")[1]
        if part in SHELL:
            yield f"reaches for {path}", True
        elif part in ("system", "getoutput", "run_cell", "ex", "ev", "user_ns", "push"):
            yield f"calls {path}", False
    elif path in INNER_CALLS:
        yield f"uses {path}", True
    elif path.startswith("sys.modules"):
        yield "uses sys.modules", False


def _call(node: ast.Call, names: dict[str, str]) -> Iterator[tuple[str, bool]]:
    path = _path(node.func, names)
    first = _path(node.args[0], names) if node.args else ""
    if path in ("setattr", "delattr", "object.__setattr__", "type.__setattr__") or path.endswith(
        "patch.object"
    ):
        if _of_library(first, names):
            yield f"replaces a part of {first}", True
    elif path in (
        "sys.modules.pop",
        "sys.modules.update",
        "sys.modules.__setitem__",
        "sys.modules.clear",
    ):
        yield "replaces a module in sys.modules", True
    elif path in INNER_CALLS:
        yield f"uses {path}", True
    elif "register_module_" in path or path.endswith("_push_mode"):
        yield f"calls {path}, which acts on the modules of everybody", True
    elif path in TOLD_CALLS:
        yield f"calls {path}", False
    elif path == "getattr" and _of_library(first, names):
        told = isinstance(node.args[1], ast.Constant) if len(node.args) > 1 else False
        if not told:
            yield f"looks up a part of {first} by a name that it computes", False


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, bool]]:
    whole = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    if isinstance(node, ast.ImportFrom):
        whole += [f"{node.module}.{a.name}" for a in node.names]
        for name in whole:
            if name in INNER_CALLS:
                yield f"uses {name}", True
    for name in dict.fromkeys(whole):
        if name in INNER_MODULES or re.fullmatch(r"checks\.chapter_\d\d", name):
            yield f"imports {name}", name == "ctypes"
        elif name.split(".")[0] in TOLD_MODULES:
            yield f"imports {name}", False
