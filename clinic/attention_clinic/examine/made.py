"""Queries, keys and values that are made by more than a linear layer, such as convolutions.

Such a part is called as it is, on the tokens that it gets; what follows it is examined: heads,
scale, softmax, mixing, joining.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from attention_clinic.engine.patient import same
from attention_clinic.engine.weights import Source, role, sources_of
from attention_clinic.examine.shells import Shell

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d)
KINDS = (*CONVOLUTIONS, nn.BatchNorm1d, nn.BatchNorm2d, nn.Linear, nn.Identity, nn.Dropout)
RESHAPES = {"Rearrange", "Flatten", "Unflatten"}
CONVOLVES = re.compile(r"_?(dw|pw|depth_?wise|point_?wise)?_?(conv\d*(_?d|dw)?|dw)$")
CONVOLVED = re.compile(r"(?:(?<=\.)|^)(dw|pw|depth_?wise|point_?wise)?_?conv\d*(_?d)?_?(?=[a-z])")
ROLES = (("q", "kv"), ("q", "k", "v"), ("qkv",))


@dataclass
class Part:
    """A part of a module that makes queries, keys or values of tokens.

    Args:
        path: its name in the module.
        part: the part.
        form: how it takes tokens: "b n e", "b c h w", "b h w c" or "b c n".
        grids: rows and columns of an image, by the number of its tokens.
        behind: the names of the parts that follow it, one after the other, in `part`.
    """

    path: str
    part: nn.Module
    form: str = "b n e"
    grids: dict[int, tuple[int, int]] = field(default_factory=dict)
    behind: tuple[str, ...] = ()

    @property
    def first(self) -> nn.Module:
        """What gets the tokens."""
        return self.part[0] if self.behind else self.part

    @property
    def last(self) -> nn.Module:
        """What makes queries, keys or values."""
        return self.part[-1] if self.behind else self.part

    def followed_by(self, path: str, part: nn.Module) -> Part:
        """Return this part and another that gets what it makes."""
        held = [*self.part] if self.behind else [self.part]
        return Part(self.path, nn.Sequential(*held, part), behind=(*self.behind, path))

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """Return what it makes of tokens (b, n, e), (b, j, o)."""
        if self.form == "b c h w":
            x = x.mT.unflatten(2, self.grids[x.shape[1]])
        elif self.form == "b h w c":
            x = x.unflatten(1, self.grids[x.shape[1]])
        elif self.form == "b c n":
            x = x.mT
        made = x.contiguous()
        for step in self.part if self.behind else (self.part,):
            if isinstance(step, nn.Linear) and made.ndim == 4 and self.form == "b c h w":
                made = made.flatten(2).mT  # what convolutions made is laid out as tokens
            made = step(made)
        if made.ndim == 4:
            return made.flatten(1, 2) if self.form == "b h w c" else made.flatten(2).mT
        return made.mT if self.form == "b c n" else made

    def listen(self, part: nn.Module, given: tuple) -> None:
        """Write down the sizes of the image that it gets."""
        t = given[0] if given and isinstance(given[0], Tensor) else None
        if t is not None and t.ndim == 4:
            size = t.shape[2:] if self.form == "b c h w" else t.shape[1:3]
            self.grids[size[0] * size[1]] = tuple(size)


@dataclass(frozen=True)
class Made:
    """The parts that make queries, keys and values.

    Args:
        parts: one for queries, then one or two for keys and values; or one for all.
        width: of the queries, h * d.
        fewer: whether there are fewer keys than tokens.
    """

    parts: tuple[Part, ...]
    width: int
    fewer: bool

    def queries(self, x: Tensor) -> Tensor:
        """Return the queries, (b, n, h * d)."""
        return self.parts[0](x)[..., : self.width]

    def others(self, x: Tensor) -> Tensor:
        """Return keys and values beside each other, (b, j, 2 * h * d)."""
        if len(self.parts) == 1:
            return self.parts[0](x)[..., self.width :]
        return torch.cat([part(x) for part in self.parts[1:]], dim=-1)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the variants that it is."""
        held = [m for p in self.parts for m in p.part.modules() if isinstance(m, CONVOLUTIONS)]
        wide = [m for m in held if max(m.kernel_size) > 1]
        apart = ("conv-projection",) * any(m.groups > 1 or not self.fewer for m in wide)
        return (*apart, *("spatial-reduction",) * (self.fewer and not apart))

    def shells(self, shells: list[Shell]) -> list[Shell]:
        """Return what may stand around, with these parts inside."""

        def inside(shell: Shell) -> Shell:
            enter, kind = shell.enter, "queries, keys and values of its own parts"
            return replace(
                shell,
                name=f"{shell.name}; {kind}".removeprefix("; "),
                before=lambda x: self.queries(enter(x)),
                context=lambda x: self.others(enter(x)),
                variants=(*shell.variants, *self.names),
            )

        plain = [s for s in shells if s.residual in ("", "x") and s.context is None]
        return [inside(shell) for shell in plain]

    def sources(self, module: nn.Module) -> list[Source]:
        """Return the weights that are left, and what lets the parts pass as they are."""
        inner = tuple(f"{path}." for part in self.parts for path in (part.path, *part.behind))
        kept = [s for s in sources_of(module) if not s.name.startswith(inner)]
        like = next(module.parameters())
        eyes = [("q", self.width), ("kv", 2 * self.width)]
        made = [Source(name, torch.eye(w).to(like), None, ("oi",), name) for name, w in eyes]
        return [*made, *kept]


def made_of(
    module: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor, shells: list[Shell]
) -> Made | None:
    """Return the parts that make queries, keys and values; None where linear layers do.

    Args:
        module: the copy.
        run: calls it.
        x: tokens.
        shells: what may stand around.
    """
    parts = _parts(module, run, x)
    if parts is None:
        return None
    got: dict[str, Tensor] = {}
    gave: dict[str, Tensor] = {}

    def hear(path: str, heard: dict[str, Tensor], first: bool) -> Callable[..., None]:
        def listen(part: nn.Module, given: tuple, made: Tensor) -> None:
            heard.setdefault(path, given[0] if first else made)

        return listen

    handles = [p.first.register_forward_hook(hear(p.path, got, True)) for p in parts]
    handles += [p.last.register_forward_hook(hear(p.path, gave, False)) for p in parts]
    try:
        run(x)
    except Exception:
        return None
    finally:
        for handle in handles:
            handle.remove()
    heard = {path: (t, gave[path]) for path, t in got.items() if path in gave}
    if len(heard) < len(parts) or not all(
        isinstance(t, Tensor) and t.ndim in (3, 4) for pair in heard.values() for t in pair
    ):
        return None
    for part in parts:
        given, _ = heard[part.path]
        size = given.shape
        last = {3: "b n e", 4: "b h w c"}[given.ndim], {3: "b c n", 4: "b c h w"}[given.ndim]
        first = (part.form, *last) if size[-1] == x.shape[-1] else last[::-1]
        part.form = next(f for f in first if (f in last))
        part.listen(part.part, (given,))
        part.first.register_forward_pre_hook(part.listen)  # for good: other calls have other grids
    for shell in shells:
        entered = shell.enter(x)
        try:
            fits = all(same(_laid(p, heard[p.path][1]), p(entered)) for p in parts)
        except Exception:
            continue
        if fits:
            return _measured(parts, entered)
    return None


def _laid(part: Part, made: Tensor) -> Tensor:
    """Return what a part made as tokens (b, j, o)."""
    if made.ndim == 4:
        return made.flatten(1, 2) if part.form == "b h w c" else made.flatten(2).mT
    return made.mT if part.form == "b c n" else made


def _measured(parts: list[Part], x: Tensor) -> Made | None:
    """Return the parts with their sizes, None where heads are not as wide as each other."""
    widths = [part(x).shape[-1] for part in parts]
    counts = [part(x).shape[1] for part in parts]
    width = widths[0] // 3 if len(parts) == 1 else widths[0]
    if sum(widths) != 3 * width or (len(parts) == 3 and widths[1] != width):
        return None
    return Made(tuple(parts), width, counts[-1] < x.shape[1])


def _said(path: str, part: nn.Module) -> str:
    """Return what the name of a part says that it makes, a convolution's without that word."""
    said = role(f"{path}.weight") if path else ""
    if not said and any(isinstance(m, CONVOLUTIONS) for m in part.modules()):
        said = role(f"{CONVOLVED.sub('', path)}.weight")
    if not said and isinstance(part, CONVOLUTIONS):
        said = role(f"{CONVOLVES.sub('', path)}.weight")
    return said


def _given_on(
    module: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor, named: dict[str, Part]
) -> dict[str, str]:
    """Return the convolutions of any name that get what a part made, as it is: path -> its role."""
    convolves = [(p, m) for p, m in module.named_modules() if isinstance(m, CONVOLUTIONS)]
    known = {path for part in named.values() for path in (part.path, *part.behind)}
    further = [path for path, _ in convolves if path not in known]
    if not further:
        return {}
    made: dict[str, Tensor] = {}
    found: dict[str, str] = {}

    def listen(path: str, given: tuple, out: Tensor) -> None:
        for said in made if path in further and path not in found else ():
            if given and given[0] is made[said]:
                found[path], made[said] = said, out
                return
        for said, part in named.items():
            if path == (part.behind or (part.path,))[-1]:
                made[said] = out

    paths = {*further, *((p.behind or (p.path,))[-1] for p in named.values())}
    parts = [(path, module.get_submodule(path)) for path in paths]
    handles = [
        m.register_forward_hook(lambda _, given, out, path=path: listen(path, given, out))
        for path, m in parts
    ]
    try:
        run(x)
    except Exception:
        return {}
    finally:
        for handle in handles:
            handle.remove()
    return found


def _unnamed(module: nn.Module) -> dict[str, Part]:
    """Return a convolution that may make queries, keys and values by its size, {} for none.

    What it makes is three times as wide as what another one reads, the output layer.
    """
    held = [(path, m) for path, m in module.named_modules() if isinstance(m, CONVOLUTIONS)]
    for path, part in held:
        reads = (m.in_channels for _, m in held if m is not part and part.groups == 1)
        if any(part.out_channels == 3 * width for width in reads):
            return {"qkv": Part(path, part)}
    return {}


def _parts(module: nn.Module, run: Callable[[Tensor], Tensor], x: Tensor) -> list[Part] | None:
    """Return the parts that are called after queries, keys and values and convolve."""
    named: dict[str, Part] = {}
    for path, part in module.named_modules():
        said = _said(path, part) if any(True for _ in part.parameters()) else ""
        if said not in ("q", "k", "v", "kv", "qkv") or any(
            path.startswith(f"{name}.") for p in named.values() for name in (p.path, *p.behind)
        ):
            continue
        named[said] = named[said].followed_by(path, part) if said in named else Part(path, part)
    named = named or _unnamed(module)
    if tuple(named) not in ROLES:
        return None
    for path, said in _given_on(module, run, x, named).items():
        named[said] = named[said].followed_by(path, module.get_submodule(path))
    leaves = [
        m for p in named.values() for m in p.part.modules() if not any(True for _ in m.children())
    ]
    if not all(isinstance(m, KINDS) or type(m).__name__ in RESHAPES for m in leaves):
        return None
    wide = any(isinstance(m, CONVOLUTIONS) and max(m.kernel_size) > 1 for m in leaves)
    several = any(not isinstance(p.part, (nn.Linear, *CONVOLUTIONS)) for p in named.values())
    return list(named.values()) if wide or several else None
