"""Queries, keys and values that come ready made: which argument is which, and how each lies."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from attention_clinic.engine.layouts import needed_names

ROLES = {
    "q": re.compile(r"x?q(_?in|s|_?heads?|_?proj|_?states?)?|quer(y|ies)(_\w+)?|que"),
    "k": re.compile(r"x?k(_?in|s|_?t|_?heads?|_?proj|_?states?)?|keys?(_\w+)?"),
    "v": re.compile(r"x?v(_?in|s|_?heads?|_?proj|_?states?)?|val(ue)?s?(_\w+)?"),
}
TURNED = re.compile(r"k_?t|keys?_?(t|transposed?)", re.IGNORECASE)
NO_OPERAND = re.compile(r"mask|pad|len|cache|bias|pos|weight|norm|rope|size|dim")
MASKS = re.compile(r"(attn_?|attention_?|pad_?)?(m|msk|mask\w*)|\w*mask\w*")
# by name: what else a call may need. d: the width of a head
NUMBERS = {
    "d": re.compile(r"d_?k|dk|d_?v|d|dim|d_?head|dim_?head|head_?(dim|size)|d_?q|hidden(_size)?"),
    "e": re.compile(r"d_?model|embed_?dim|emb_?dim|n_?embd|e"),
    "h": re.compile(r"(n|num)?_?heads?|nhead|h"),
    "b": re.compile(r"b|bs|bsz|batch(_?size)?"),
    "n": re.compile(r"n|t|l|seq(_?len(gth)?)?|length|max_len"),
    "root": re.compile(r"temperature|temp|tau|sqrt_?d(_?k)?"),
    "scale": re.compile(r"(softmax_?)?scale(_?factor)?|scaling|factor"),
    "dropout": re.compile(r"\w*dropout\w*|drop|p_drop"),
    "none": re.compile(r"bias|attn_bias|past\w*|cache|prev|valid_len\w*|delta"),
    "false": re.compile(r"(is_?)?causal|verbose|training|train|return_\w+|need_weights|output_\w+"),
    "cpu": re.compile(r"device"),
}
NUMBERS["d_k"] = re.compile(r"d_?k|d_?head|dim_?head|head_?(dim|size)")
GIVEN = ("scale", "root", "d_k")  # those that may be given where they may be left out
FORMS = {
    "b h n d": lambda t, h: t.unflatten(2, (h, -1)).transpose(1, 2),
    "b n h d": lambda t, h: t.unflatten(2, (h, -1)),
    "b n e": lambda t, h: t,
    "(b h) n d": lambda t, h: t.unflatten(2, (h, -1)).transpose(1, 2).flatten(0, 1),
    "h b n d": lambda t, h: t.unflatten(2, (h, -1)).permute(2, 0, 1, 3),
    "n e": lambda t, h: t,
    "n b e": lambda t, h: t.transpose(0, 1),
}
AXES = {"b h n d": 4, "b n h d": 4, "h b n d": 4, "b n e": 3, "(b h) n d": 3, "n b e": 3, "n e": 2}
HEADS = r"(n_?|num_?)?h(eads?)?|n_?heads?|num_?heads?|heads?_?(num|count)?|nh"
SIZES = re.compile(r"((?:[\w*]+\s*,\s*){1,3}[\w*]+)\s*=\s*(\w+)\.(?:shape\b|size\(\))(?!\[)")
LISTED = re.compile(r"[\[(]([\w\s,*.·x×/]{3,90})[\])]")
EINSUM = re.compile(r"einsum\(\s*[\"']\s*([a-zA-Z]+)\s*,\s*[a-zA-Z]+\s*->")
SPACED = re.compile(r"[\"']\s*((?:\w+ ){2,3}\w+)\s*,")  # einops.einsum
TURNS = re.compile(r"transpose\(\s*(\d)\s*,\s*(\d)\s*\)")


@dataclass(frozen=True)
class Operands:
    """How a kernel takes queries, keys and values.

    Args:
        names: of the three arguments.
        masks: those that take a mask.
        given: what else is needed, each with its kind; see NUMBERS.
        further: the names that may be left out.
        form: how each lies, by the letters b, h, n, d, and e = h * d.
        turned: whether keys have their last two axes exchanged.
        heads: h.
        width: d.
    """

    names: tuple[str, str, str]
    masks: tuple[str, ...] = ()
    given: tuple[tuple[str, str], ...] = ()
    further: tuple[str, ...] = ()
    form: str = "b h n d"
    turned: bool = False
    heads: int = 1
    width: int = 16

    @property
    def axes(self) -> int:
        """How many axes each has."""
        return AXES[self.form]

    def value(self, kind: str, b: int, n: int) -> Any:
        """Return what an argument of a kind gets.

        Args:
            kind: see NUMBERS.
            b: samples of the call.
            n: tokens of the call.
        """
        d, h = self.width, self.heads
        numbers = {
            "d": d,
            "d_k": d,
            "e": h * d,
            "h": h,
            "b": b,
            "n": n,
            "root": d**0.5,
            "scale": d**-0.5,
        }
        fixed = {"none": None, "false": False, "true": True, "cpu": "cpu", "zero": 0.0}
        fixed |= {"dropout": None, "identity": nn.Identity()}
        return {**fixed, **numbers}[kind]

    def calls(self) -> Iterator[list[Operands]]:
        """Yield ways to hand over what else is needed: of each list, the first that runs counts.

        A scale may be left out or given, as the root of d or its inverse.
        """
        optional = [(n, k) for n in self.further for k in GIVEN if NUMBERS[k].fullmatch(n.lower())]
        needed = [kind for _, kind in self.given if kind in GIVEN]
        yield self.dropping()
        for kind in ("scale", "root") if needed or optional else ():
            names = [n for n, k in self.given if k in ("scale", "root")]
            names += [n for n, k in optional if k in ("scale", "root")]
            given = [(n, k) for n, k in self.given if n not in names]
            given += [(n, kind) for n in names] + [(n, k) for n, k in optional if k == "d_k"]
            yield replace(self, given=tuple(given)).dropping()

    def dropping(self) -> list[Operands]:
        """Return the ways to hand over a dropout: nothing, a layer, a share."""
        optional = [n for n in self.further if NUMBERS["dropout"].fullmatch(n.lower())]
        kept = tuple((n, k) for n, k in self.given if k != "dropout")
        drops = [n for n, k in self.given if k == "dropout"]
        ways = [self] if not drops else []
        for kind in ("dropout", "identity", "zero") if drops or optional else ():
            names = drops or optional
            ways.append(replace(self, given=kept + tuple((n, kind) for n in names)))
        return ways

    @property
    def words(self) -> str:
        """What is handed in, for a report."""
        lie = ", ".join(self.form.split())
        inside = "" if self.form in ("b n e", "n e", "n b e") else ", split"
        more = "".join(f", {name}" for name, kind in self.given if kind in GIVEN)
        turned = ", keys turned over" if self.turned else ""
        one = ", one text at a time" if self.form == "n e" else ""
        return (
            f"handed in: projections{inside}{more}; queries, keys, values as ({lie}){turned}{one}"
        )


def role_of(name: str) -> str:
    """Return "q", "k" or "v" for the name of an argument that takes them, "" for another."""
    if NO_OPERAND.search(name.lower()):
        return ""
    return next((r for r, words in ROLES.items() if words.fullmatch(name.lower())), "")


def asks_for_operands(function: nn.Module | Callable[..., Any]) -> bool:
    """Say whether a function needs queries, keys and values, whatever else it needs."""
    try:
        return {"q", "k", "v"} <= {role_of(name) for name in needed_names(function)}
    except (TypeError, ValueError):
        return False


def operands_of(function: nn.Module | Callable[..., Any]) -> Operands | None:
    """Return which arguments take queries, keys and values; None where the names say no such thing.

    Args:
        function: a module, or a function.
    """
    try:
        needed = needed_names(function)
        called = function.forward if isinstance(function, nn.Module) else function
        parameters = inspect.signature(called).parameters
    except (TypeError, ValueError):
        return None
    found = {role_of(name): name for name in reversed(needed) if role_of(name)}
    if sorted(found) != ["k", "q", "v"]:
        return None
    names = found["q"], found["k"], found["v"]
    masks, given = [], []
    for name in needed:
        if name in names:
            continue
        kind = next((k for k, words in NUMBERS.items() if words.fullmatch(name.lower())), None)
        if kind is None and MASKS.fullmatch(name.lower()):
            masks.append(name)
        elif kind is None:
            return None
        else:
            given.append((name, kind))
    kinds = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    further = [n for n, p in parameters.items() if n not in needed and p.kind not in kinds]
    masks += [n for n in further if n not in masks and MASKS.fullmatch(n.lower())]
    turned = bool(TURNED.fullmatch(found["k"]))
    return Operands(names, tuple(masks), tuple(given), tuple(further), turned=turned)


def said_forms(function: nn.Module | Callable[..., Any]) -> list[str]:
    """Return how operands lie as the code itself says: sizes taken apart, axes, remarks beside it.

    A word with "?" says only how many axes there are.

    Args:
        function: a module, or a function.
    """
    code = type(function).forward if isinstance(function, nn.Module) else function
    try:
        source = inspect.getsource(inspect.unwrap(code))
    except (OSError, TypeError):
        return []
    found = [_by_names(names) for names, of in SIZES.findall(source) if role_of(of)]
    found += [_by_letters(list(term)) for term in EINSUM.findall(source)]
    found += [_by_letters(term.split()) for term in SPACED.findall(source) if "einsum" in source]
    for first, second in TURNS.findall(source):
        found.append(
            {("0", "1"): "2?", ("1", "2"): "3?", ("2", "3"): "b h n d"}.get((first, second), "")
        )
    found.append("3?" if "bmm(" in source else "")
    found.append("2?" if re.search(r"\.T\b|\.t\(\)", source) else "")
    listed = [
        _by_names(names) for names in LISTED.findall(source) if "," in names or " x " in names
    ]
    return [*filter(None, found), *[f for f in listed if f and f[1] != "?"][:1]]


def _by_names(said: str) -> str:
    """Return the form that sizes say by their names: "b, h, n, d"."""
    names = [name.strip().lower() for name in re.split(r",| x |×", said)]
    return _by_letters(names)


def _by_letters(names: list[str]) -> str:
    """Return the form that the names of axes say."""
    where = [i for i, name in enumerate(names) if re.fullmatch(HEADS, name.strip())]
    if any(name.isdigit() or not name for name in names) or len(names) not in (2, 3, 4):
        return ""
    if len(names) == 4 and where:
        return ("h b n d", "b h n d", "b n h d", "")[where[0]]
    return f"{len(names)}?"
