"""What to hand over where a module does not run on rows of tokens: a line to paste that works."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from attention_clinic.engine.calls import NOTHING
from attention_clinic.engine.crossing import NO_TOKENS, role, sides_of
from attention_clinic.engine.doors import is_inside
from attention_clinic.engine.layouts import needed_names
from attention_clinic.engine.openings import LIKE_MASKS, SHAPES
from attention_clinic.engine.patient import Patient, possible_widths, same
from attention_clinic.engine.refusal import open_part, refused
from attention_clinic.examine.mask_argument import closed

SIZES = {"b": "len(x)", "i": "x.shape[1]", "j": "x.shape[1]", "1": "1"}
FILLED = ("{}", "x.new_zeros({})", "x.new_ones({})")
BOOLEAN = ("torch.zeros({}, dtype=torch.bool)", "torch.ones({}, dtype=torch.bool)")
VOLUMES = (  # the tokens lie on one axis of three, and channels stand behind or before them
    *((f"x[:, {index}]", ".flatten(1, 3)") for index in (":, None, None", "None, :, None",
                                                          "None, None")),
    *((f"x.mT[:, :, {index}]", ".flatten(2).mT") for index in (":, None, None", "None, :, None",
                                                                "None, None")),
)  # fmt: skip
SIDES = 12  # numbers of a module that may be the sides of its grid
MOST = 800  # calls
B, N = 3, 5
OTHER_RESULT = "Say how to call it: call=lambda module, x: module(x)[0]."
POOLED = (
    "It makes one vector of all tokens: pass the attention that it holds, or the whole model to "
    "diagnose_model(model)."
)


def other_result(name: str, x: Tensor, y: Tensor) -> ValueError:
    """Return the refusal of a module whose result is no row of tokens.

    Args:
        name: of the module.
        x: what it got.
        y: what it returned.
    """
    what = (
        f"diagnose: {name} must return (b, n, e), got x of shape {tuple(x.shape)} and a result of "
        f"shape {tuple(y.shape)}."
    )
    return refused(what, POOLED if y.ndim == 2 else OTHER_RESULT, final=y.ndim == 2)


def asked(error: ValueError, where: str, module: nn.Module | Callable[..., Any]) -> ValueError:
    """Return the refusal of a module with the line that its caller is to paste.

    Args:
        error: the refusal.
        where: the public name that the line is for.
        module: was called with nothing said about it.
    """
    what, said = open_part(error), None
    if what is not None and isinstance(module, nn.Module) and not is_inside():
        with suppress(Exception):  # a module may raise anything: then nothing more is known of it
            said = Asking(where, module, error).line()
    return error if said is None else refused(str(what), said, final=True)


class Asking:
    """Tries to call a copy in other ways.

    Args:
        where: as in `asked`.
        module: as there.
        error: the refusal.
    """

    def __init__(self, where: str, module: nn.Module, error: ValueError) -> None:
        self.where, self.error, self.tried = where, error, 0
        self.patient = Patient("diagnose", module)
        self.patient.time_first = False
        self.module = self.patient.module
        self.widths = possible_widths(self.module, dict(self.module.named_parameters()))[:4]
        names = needed_names(module)
        tokens = {n for i, n in enumerate(names) if i == 0 or role(n) in ("asks", "asked")}
        words = str(error.__cause__ or "")
        if isinstance(error.__cause__, KeyError):  # what forward takes out of **kwargs
            kinds = inspect.signature(module.forward).parameters.values()
            names += [words.strip("'\"")] * any(p.kind == p.VAR_KEYWORD for p in kinds)
        self.width = 0  # with which the last call ran
        self.beside = [n for n in names if n not in tokens]
        self.tokens = [n for n in names if n in tokens]
        self.call = f"module({', '.join('x' for _ in self.tokens) or 'x'}"

    def line(self) -> str | None:
        """Return what to do, None where nothing is known but the line that fails."""
        words = str(self.error.__cause__ or "")
        if any(isinstance(part, nn.Embedding) for part in self.module.modules()):
            names = needed_names(self.module) or list(
                inspect.signature(self.module.forward).parameters
            )
            if re.search(r"indices|scalar types", words) or re.search(r"ids|idx", names[0]):
                return (
                    "It takes ids, as a whole model does: diagnose_model(model), or python -m "
                    "attention_clinic check PLACE, finds every attention in it."
                )
        text = next(filter(None, (way() for way in (self.apart, self.packed))), None)
        if text is None and self.beside:
            text = next(self.filled(), None)
        if text is not None:
            return f"Say how to call it: call=lambda module, x: {text}."
        if self.beside:
            values = ", ".join(f"{name}=..." for name in self.beside)
            return f"Give what else it needs: call=lambda module, x: {self.call}, {values})."
        context = self.context()
        if context is not None:
            return f"Its context has another width: {self.where}(module, context={context})."
        text = next(self.laid(), None)
        if text is not None:
            return f"Say how to call it: call=lambda module, x: {text}."
        if len(self.tokens) == 2 and role(self.tokens[1]) == "asked":
            values = f"{self.tokens[1]}=..."
            return f"Give what else it needs: call=lambda module, x: module(x, {values})."
        size = self.size()
        if size is not None:
            return f"Say how many samples and tokens it takes: size={size}."
        return self.axes(words)

    def runs(
        self, text: str, b: int = B, n: int = N, widths: list[int] | None = None
    ) -> Tensor | None:
        """Return what a call gives on tokens (b, n, e), None where it gives no tokens so many."""
        self.patient.call = eval(f"lambda module, x: {text}", {"torch": torch})
        for width in widths or self.widths:
            self.tried += 1
            if self.tried > MOST:
                return None
            x = self.patient.tokens(b, n, width)
            try:
                y = self.patient.run(x)
            except Exception:
                continue
            if y.ndim == 3 and y.shape[:2] == x.shape[:2] and self.mixes(x, y):
                self.width = width
                return y
        return None

    def mixes(self, x: Tensor, y: Tensor) -> bool:
        """Say whether a token is heard by others, and by no other sample."""
        other = x.clone()
        other[0, 0] += 1
        z = self.patient.run(other)
        return not same(y[0, 1:], z[0, 1:]) and same(y[1:], z[1:])

    def apart(self) -> str | None:
        """Return the call that takes the tokens out of a result of several things."""
        for width in self.widths:
            x = self.patient.tokens(B, N, width)
            try:
                result = self.module(*[x] * max(1, len(self.tokens)))
            except Exception:
                continue
            for text in parts_of(result):
                if self.runs(f"{self.call}){text}", widths=[width]) is not None:
                    return f"{self.call}){text}"
        return None

    def packed(self) -> str | None:
        """Return the call that hands tokens over in a list or a dictionary."""
        if len(self.tokens) > 1:
            return None
        held = [f"[{', '.join('x' * count)}]" for count in (3, 2, 1)]
        function = type(self.module).forward
        try:
            code = inspect.getsource(function)
        except (OSError, TypeError):
            code = ""
        for name in self.tokens:
            found = re.findall(rf"\b{name}(?:\.get\(|\[)\s*['\"](\w+)['\"]", code)
            keys = [key for key in dict.fromkeys(found) if not NO_TOKENS.search(key)]
            for one in (keys, keys[:1]):
                held += [f"{{{', '.join(f'{key!r}: x' for key in one)}}}"] * bool(one)
        tried = (f"module({one})" for one in held)
        return next((text for text in tried if self.runs(text) is not None), None)

    def filled(self) -> Iterator[str]:
        """Yield calls that hand over masks and biases which block nothing."""
        if len(self.beside) > 2 or not all(
            "mask" in n.lower() or LIKE_MASKS.search(n.lower()) or NOTHING.search(n.lower())
            for n in self.beside
        ):
            return
        forms = sorted(SHAPES, key=lambda shape: shape != "i j")
        shapes = [", ".join(SIZES[letter] for letter in shape.split()) for shape in forms]
        biases = all("bias" in name.lower() for name in self.beside)
        ways = FILLED[1:] if biases else (*BOOLEAN, *FILLED[1:])
        unsure: list[str] = []
        for way, given in product(ways, product(shapes, repeat=len(self.beside))):
            made = [way.format(shape) for shape in given]
            text = self.with_masks(made)
            y = self.runs(text)
            if y is None or not bool(y.isfinite().all()) or closed(y):
                continue
            if biases or way not in BOOLEAN or self.opens(made, way is BOOLEAN[0]):
                yield text
            unsure.append(text)
        yield from unsure

    def with_masks(self, made: list[str]) -> str:
        """Return the call with these values for what it needs beside the tokens."""
        values = [f"{name}={one}" for name, one in zip(self.beside, made, strict=True)]
        return f"{self.call}, {', '.join(values)})"

    def opens(self, made: list[str], other: bool) -> bool:
        """Say whether masks block nothing: each blocks the first token where it says otherwise.

        Args:
            made: the masks.
            other: what they do not hold.
        """
        for number in range(len(made)):
            one = [*made]
            one[number] = f"{made[number]}.index_fill(-1, torch.tensor([0]), {other})"
            self.patient.call = eval(f"lambda module, x: {self.with_masks(one)}", {"torch": torch})
            x = self.patient.tokens(B, N, self.width)
            first = x.clone()
            first[:, 0] += 1
            y, z = self.patient.run(x), self.patient.run(first)
            if not same(y[:, 1:], z[:, 1:]):
                return False
        return True

    def context(self) -> int | None:
        """Return the width of a context that is not that of the tokens."""
        if sides_of(self.module) is None:
            return None
        self.patient.call = None
        for width, other in product(self.widths, repeat=2):
            x, beside = self.patient.tokens(B, N, width), self.patient.tokens(B, 6, other, seed=9)
            try:
                y = self.patient.run(x, context=beside)
            except Exception:
                continue
            if width != other and y.ndim == 3 and y.shape[:2] == x.shape[:2]:
                return other
        return None

    def laid(self) -> Iterator[str]:
        """Yield calls that lay tokens out on a fixed grid, or on three axes."""
        for there, back in VOLUMES:
            text = f"module({there}){back}"
            if self.runs(text) is not None:
                yield text
        sides = {s for p in (*self.module.parameters(), *self.module.buffers()) for s in p.shape}
        held = [value for part in self.module.modules() for value in vars(part).values()]
        pairs = [v for v in held if isinstance(v, tuple | list) and len(v) == 2]
        sides |= {v for v in (*held, *(s for pair in pairs for s in pair)) if type(v) is int}
        few = sorted(side for side in sides if 1 < side <= 64)[:SIDES]
        for rows, columns in product(few, repeat=2):
            n = rows * columns
            for text in (
                f"module(x.mT.unflatten(2, ({rows}, {columns}))).flatten(2).mT",
                f"module(x.unflatten(1, ({rows}, {columns}))).flatten(1, 2)",
            ):
                if self.runs(text, 2, n) is not None:
                    yield f"{text}, size=(2, {n})"

    def size(self) -> tuple[int, int] | None:
        """Return the numbers of samples and tokens that a module insists on."""
        for b, n in product((3, 2, 1, 4, 8, 16), (N, 16, 9, 32, 49, 64)):
            if self.runs(f"{self.call})", b, n) is not None:
                return b, n
        return None

    def axes(self, words: str) -> str | None:
        """Return what to do where forward takes another number of axes apart."""
        expected = re.search(r"expected (\d), got (?:3|2)\b|\(expected (\d)\)", words)
        many = next(filter(None, expected.groups()), "") if expected else ""
        if not many or many == "3" or "unpack" not in words:
            return None
        return (
            f"It takes {many} axes: call=lambda module, x: ... lays tokens x (b, n, e) out so "
            "and returns (b, n, e)."
        )


def parts_of(result: Any) -> Iterator[str]:
    """Yield what to write behind a call for each tensor (b, n, e) of its result.

    Args:
        result: of several things.
    """
    if isinstance(result, Tensor):
        return
    if isinstance(result, dict):
        found = {f"[{key!r}]": value for key, value in result.items()}
    elif isinstance(result, tuple | list):
        found = {f"[{number}]": value for number, value in enumerate(result)}
    elif dataclasses.is_dataclass(result):
        names = [one.name for one in dataclasses.fields(result)]
        found = {f".{name}": getattr(result, name) for name in names}
    else:
        found = {f".{name}": value for name, value in getattr(result, "__dict__", {}).items()}
    for text, value in found.items():
        if isinstance(value, Tensor) and value.ndim == 3 and value.shape[:2] == (B, N):
            yield text
