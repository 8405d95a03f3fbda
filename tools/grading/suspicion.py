"""Looks at the text of a student's code for what a teacher may want to look at.

Nothing is run, and nothing here costs a point: a text cannot prove deceit, and honest students
write odd things. What code really replaced in the process that judges it is found by `pristine`.
Two degrees: what is *grave* has hardly an honest use in an exercise, and is told first.
"""

from __future__ import annotations

import ast
import builtins
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
    "_SEEN",
    "ast_transformers",
    "input_transformers_cleanup",
    "input_transformers_post",
}
# The same, but some students look into functions.
TOLD = {"__globals__", "__code__", "__closure__", "cell_contents", "__subclasses__"}
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
SHELL_CALL = "get_ipython()"
HARMLESS_MAGICS = ("%matplotlib", "%time", "%%time", "%timeit", "%%timeit", "%config", "%precision")


BUILTINS = {*vars(builtins), "get_ipython"}


@dataclass(frozen=True)
class Suspicion:
    """Something in the code of a student.

    Args:
        what: what was seen, in words that follow "cell 5: ".
        cell: number of the cell, from 1.
        grave: whether it has hardly an honest use.
    """

    what: str
    cell: int
    grave: bool

    def __str__(self) -> str:
        ask = "look at it, it cost nothing: " if self.grave else ""
        return f"{ask}cell {self.cell} {self.what}"


def suspicions(handed_in: Notebook, given: set[str]) -> list[Suspicion]:
    """Finds what is suspicious in the code of a notebook, what is grave first.

    Args:
        handed_in: as `tidy` gives it.
        given: the sources of cells that were handed out so; they are the course's.
    """
    cells = [(n, c) for n, c in enumerate(handed_in["cells"], 1) if c["cell_type"] == "code"]
    cells = [(n, c) for n, c in cells if source(c).strip() not in given]
    trees = {number: _tree(source(cell)) for number, cell in cells}
    names = Names([tree for text in given if (tree := _tree(text))], list(trees.values()))
    found: list[Suspicion] = []
    for number, cell in cells:
        for magic in MAGIC.finditer(source(cell)):
            word = magic.group(1).strip()
            if not word.startswith(HARMLESS_MAGICS):
                found.append(Suspicion(f"has the magic {word[:40]!r}", number, False))
        if tree := trees[number]:
            # IPython turns a magic into a call of get_ipython(), which was told already.
            found += [
                Suspicion(what, number, grave)
                for what, grave in _look(tree, names)
                if grave or SHELL_CALL not in what or "get_ipython" in source(cell)
            ]
    return sorted(dict.fromkeys(found), key=lambda suspicion: not suspicion.grave)


def _tree(text: str) -> ast.Module | None:
    """Parses a cell as IPython does; None for one that is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                return ast.parse(text)
            except SyntaxError:  # there may be magics in it; to import IPython takes a while
                from IPython.core.inputtransformer2 import TransformerManager

                return ast.parse(TransformerManager().transform_cell(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


class Names:
    """What the names in a notebook stand for.

    A name that a student binds to something of their own, such as `copy = deepcopy(layer)` or an
    argument, is theirs from then on, whatever was imported under it.

    Args:
        given: the course's own cells.
        own: the student's; None for a cell that is not Python.
    """

    def __init__(self, given: list[ast.Module], own: list[ast.Module | None]):
        own = [tree for tree in own if tree]
        self.known = dict(pair for tree in [*given, *own] for pair in _imports(tree))
        self.bound: dict[str, list[ast.AST | None]] = {}
        for tree in own:
            for name, value in _bindings(tree):
                self.bound.setdefault(name, []).append(value)
        for _ in range(3):  # t = torch; n = t.nn; ...
            for name, values in self.bound.items():
                paths = [self.path(value) for value in values]
                if all(paths):
                    self.known[name] = paths[-1]
                else:
                    self.known.pop(name, None)
        self.roots = {full.split(".")[0] for full in self.known.values()}

    def path(self, node: ast.AST | None) -> str:
        """Writes out a dotted name: F.softmax is torch.nn.functional.softmax; "" if unknown."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        root = ""
        if isinstance(node, ast.Name):
            is_builtin = node.id in BUILTINS and node.id not in self.bound
            root = self.known.get(node.id, node.id if is_builtin else "")
        elif isinstance(node, ast.Call) and self.path(node.func).endswith("get_ipython"):
            root = SHELL_CALL
        return ".".join([root, *reversed(parts)]) if root else ""

    def of_library(self, path: str) -> bool:
        root = path.split(".")[0]
        return root in JUDGES and root in self.roots


def _imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Gives each name that an import binds, and what it stands for, written out."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                bound = alias.asname or alias.name.split(".")[0]
                yield bound, alias.name if alias.asname else bound
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module or ''}.{alias.name}"


def _bindings(tree: ast.Module) -> Iterator[tuple[str, ast.AST | None]]:
    """Gives each name that is bound without an import, and its value where one is seen."""
    for node in ast.walk(tree):
        for target, value in _targets(node):
            if isinstance(target, ast.Name) and not isinstance(node, ast.Delete):
                yield target.id, value
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name, None
        elif isinstance(node, ast.arg):
            yield node.arg, None
        elif isinstance(node, ast.ExceptHandler) and node.name:
            yield node.name, None


def _look(tree: ast.Module, names: Names) -> Iterator[tuple[str, bool]]:
    """Gives what is suspicious, and whether it is grave."""
    if "check" in _bound(tree):
        yield "gives check another meaning", False  # the grader never calls it
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


def _assigned(node: ast.AST, names: Names) -> Iterator[tuple[str, bool]]:
    for target, value in _targets(node):
        if isinstance(target, ast.Subscript):
            path = names.path(target.value)
            if path == "sys.modules":
                key = getattr(target.slice, "value", None)
                ours = isinstance(key, str) and key.split(".")[0] in COURSE
                # Whoever takes others out wants to load them anew.
                yield "replaces a module in sys.modules", ours or not isinstance(node, ast.Delete)
            elif path.split(".")[0] in COURSE or path.endswith("__dict__"):
                yield f"writes into {path}", True
        elif isinstance(target, ast.Attribute):
            path = names.path(target)
            if not names.of_library(path) or SETTINGS.search(path):
                continue
            # torch.manual_seed = 0 is a slip of who meant to call it; it is put back.
            yield f"replaces {path}", not isinstance(value, ast.Constant)


def _attribute(node: ast.Attribute, names: Names) -> Iterator[tuple[str, bool]]:
    if node.attr in INNER:
        yield f"uses {node.attr}, through which code reaches its caller", True
    if node.attr in TOLD:
        yield f"uses {node.attr}", False
    path = names.path(node)
    if path.startswith(f"{SHELL_CALL}."):
        part = path.split(".")[1]
        if part in SHELL:
            yield f"reaches for {path}", True
        elif part in ("system", "getoutput", "run_cell", "ex", "ev", "user_ns", "push"):
            yield f"calls {path}", False
    elif path in INNER_CALLS:
        yield f"uses {path}", True
    elif path.startswith("sys.modules"):
        yield "uses sys.modules", False


def _call(node: ast.Call, names: Names) -> Iterator[tuple[str, bool]]:
    path = names.path(node.func)
    first = names.path(node.args[0]) if node.args else ""
    if path in ("setattr", "delattr", "object.__setattr__", "type.__setattr__") or path.endswith(
        "patch.object"
    ):
        if names.of_library(first):
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
    elif path == "getattr" and names.of_library(first):
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
