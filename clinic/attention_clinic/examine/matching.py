"""Compare calls of a module with the forms of attention, for many readings at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import torch
from torch import Tensor

from attention_clinic.bugs import ATTENTION, Setting
from attention_clinic.bugs.biases import BIAS
from attention_clinic.bugs.masks import RULE, has_empty
from attention_clinic.bugs.scores import fitted_scale, scaled_by
from attention_clinic.engine.budget import CHOICE, spend
from attention_clinic.engine.forms import Form, Path, Stage, State, replay, walk
from attention_clinic.engine.grouped import GroupedReader
from attention_clinic.engine.pieces import Reading
from attention_clinic.engine.readings import Reader
from attention_clinic.engine.weighing import Weighed
from attention_clinic.examine.shells import Shell

# what a stage may know: how the module turns, its norms of queries and keys, what it should be,
# the factors and caps that it sets, the numbers that may be a temperature, layers that mix heads
UNKNOWN: State = {
    **{"turning": None, "query_norms": None, "model": None, "total": 0},
    **{"factors": (), "caps": None, "temperatures": (), "cosine": False},
    **{"unscaled": False, "prepared": (), "mixers": (), "sinks": (), "is_linear": ()},
    **{"openers": (), "distances": ()},
}
ENDS = 1.0  # steps that it takes to compare what was made with the output
UNSURE = ("late", "linear", "bias")  # a bias is known but for a number for each row
SCORED = BIAS.name  # the last stage before scores are masked and weighed
FITTED = 3  # right attentions, such as turned ones, that an arbitrary scale is fitted to
LOOKS = 6  # numbers looked at of each output token, each a random mix of all; survivors are checked


@dataclass(frozen=True)
class Probe:
    """One call of the module: what went in and what came out.

    Args:
        x: tokens.
        y: the module's output.
        mask: (1 or b, 1 or h, i, j), True = may attend, or None.
        causal: whether token i should see only tokens 0 to i.
        context: the tokens that are asked, None when they are those that ask.
        bias: what the module adds to the scores by itself, (h, n, n), or None.
        known: what the stages may know of the module beside: see `UNKNOWN`.
        kept: (b, n), the tokens whose result counts, None for all.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    causal: bool = False
    context: Tensor | None = None
    bias: Tensor | None = None
    known: State = field(default_factory=lambda: dict(UNKNOWN))
    kept: Tensor | None = None

    def causal_rule(self) -> Tensor | None:
        """The causal mask, (1, 1, n, n), None when there is none."""
        n = self.x.shape[1]
        return torch.ones(1, 1, n, n, dtype=torch.bool).tril() if self.causal else None


@dataclass(frozen=True)
class Match:
    """Forms and a reading that give the output.

    Args:
        reading: of the weights.
        path: one form for each stage.
        shell: what stands around.
        causal: whether the reference is causal.
        difference: largest difference from the output.
    """

    reading: Reading
    path: Path
    shell: Shell
    causal: bool
    difference: float

    @property
    def ids(self) -> tuple[str, ...]:
        """The mistakes of the reading, of what stands around, and of the stages."""
        return (*self.reading.ids, *self.shell.ids, *self.path.ids)

    @property
    def variants(self) -> tuple[str, ...]:
        """The names of what is another thing on purpose."""
        return (*self.path.variants, *self.shell.variants)

    def forms(self, *free: Stage) -> dict[str, list[Form]]:
        """Return the forms of the match alone; stages in `free` keep all of theirs."""
        pairs = zip(ATTENTION, self.path.forms, strict=True)
        return {s.name: [form] for s, form in pairs if s not in free}


class Search:
    """Compare one probe with the forms of the catalogue, for many readings at once.

    Args:
        reader: of the weights.
        readings: the readings to try.
        probe: one call of the module.
        shell: what stands around the attention.
        tolerance: the largest difference that counts as equal.
        looks: None compares every number of the output, otherwise so many random mixes.
        forms: by stage, the only ones to choose from; None tries all.
        must_be_causal: whether not to be causal is a mistake.
        weighed: the scores that the module weighs, None where nobody listened.
    """

    def __init__(
        self,
        reader: Reader,
        readings: list[Reading],
        probe: Probe,
        shell: Shell,
        tolerance: float,
        looks: int | None = LOOKS,
        forms: Mapping[str, Sequence[Form]] | None = None,
        must_be_causal: bool = False,
        weighed: Weighed | None = None,
    ) -> None:
        self.reader, self.readings, self.probe, self.shell = reader, readings, probe, shell
        shared = reader.g if isinstance(reader, GroupedReader) else None
        self.setting = Setting(reader.h, reader.e, reader.d, shared)
        self.forms = forms
        self.must_be_causal, self.weighed = must_be_causal, weighed
        dtype = probe.x.dtype
        mix = None
        target = probe.y
        if shell.after is not None:
            looks = None
        else:
            target = target - shell.kept(probe.x)
        if looks is not None and reader.out_dim > looks:
            generator = torch.Generator().manual_seed(11)
            mix = torch.randn(reader.out_dim, looks, generator=generator, dtype=torch.float64)
            mix = (mix / reader.out_dim**0.5).to(dtype)
            target = target @ mix
        self.mix = mix
        self.target = target[None]
        finite = self.target[torch.isfinite(self.target)]
        self.limit = tolerance * (1 + (finite.abs().max().item() if len(finite) else 0.0))
        inside = shell.enter(probe.x)
        asked = shell.asked(inside if probe.context is None else probe.context)
        own: dict = {}
        other = own if asked is inside else {}
        self.inside = inside
        self.q = self.projected("q", inside, own)
        self.k, self.v = (self.projected(part, asked, other) for part in "kv")
        self.elsewhere: dict[str, Tensor] | None = None
        if probe.context is not None:
            same = reader.c == reader.e  # a layer for the one width takes no tokens of the other
            sides = {"q": (asked, other), "k": (inside, own), "v": (inside, own)}
            self.elsewhere = {p: self.projected(p, *side) for p, side in sides.items() if same}
        if shell.factor is not None:
            wide = shell.factor.expand(reader.out_dim)
            mix = wide.diag() if mix is None else wide[:, None] * mix
        outs = {option: reader.out(option, mix) for option in {r.out for r in readings}}
        self.out = torch.stack([outs[r.out][0] for r in readings])[:, None]  # (r, 1, h * d, looks)
        self.bias = torch.stack([outs[r.out][1] for r in readings])[:, None, None]
        self.causal = probe.causal_rule()
        self.right = RULE.reference.run(probe.mask, self.causal)

    def projected(self, part: str, tokens: Tensor, cache: dict) -> Tensor:
        """Return the queries, keys or values of every reading, (r, b, n, h * d)."""
        numbers = [getattr(reading, part) for reading in self.readings]
        flats = {n: self.reader.flat(self.reader.pieces[n], tokens, cache) for n in set(numbers)}
        return torch.stack([flats[number] for number in numbers])

    def state(self) -> State:
        """Return what the stages begin with."""
        return {
            **self.probe.known,
            **{"q": self.q, "k": self.k, "v": self.v, "setting": self.setting},
            "inside": self.inside,
            "elsewhere": self.elsewhere or None,
            **{"mask": self.probe.mask, "bias": self.probe.bias},
            "causal": self.causal,
            "right": self.right,
            "right_has_empty": has_empty(self.right),
            "must_be_causal": self.must_be_causal,
        }

    def matches(self, mistakes: int) -> Iterator[Match]:
        """Yield what matches with exactly so many mistakes beside those of the reading."""
        begin = {**self.state(), "total": mistakes}
        may_be = {} if self.weighed is None else {SCORED: self.may_be}
        for path, state in walk(ATTENTION, begin, mistakes, self.forms, may_be):
            spend(ENDS)
            differences = self.difference(state["joined"])
            for number in torch.nonzero(differences <= self.limit)[:, 0].tolist():
                yield Match(
                    self.readings[number],
                    path,
                    self.shell,
                    self.probe.causal,
                    differences[number].item(),
                )

    def may_be(self, state: State) -> bool:
        """Say whether the module may weigh these scores: what it was heard to weigh is known."""
        if any(state.get(name) is not None for name in UNSURE):
            return True
        assert self.weighed is not None, "else nobody asks"
        spend(CHOICE)
        return self.weighed.may_be(state["scores"])

    def could_differ(self) -> list[bool]:
        """Say for each reading whether queries, keys and values of each head reach the output.

        With a projection of zeros, every mistake gives the output of the reference.
        """
        state, rows = self.state(), len(self.readings)
        right = self.attend(self.chosen(), state)
        can = torch.ones(rows, dtype=torch.bool)
        for part in "qkv":
            heads = self.setting.of(part).num_heads
            every = {name: state[name].repeat(heads, 1, 1, 1) for name in "qkv"}
            width = every[part].shape[-1] // heads
            for head in range(heads):  # another sign in one head: not what zeros do
                columns = slice(head * width, (head + 1) * width)
                every[part][head * rows : (head + 1) * rows, ..., columns].neg_()
            gap = self.attend(self.chosen(), {**state, **every}).unflatten(0, (heads, rows)) - right
            gap = gap.abs().nan_to_num(nan=0.0).flatten(2).amax(dim=2)
            can &= (gap > 100 * self.limit).all(dim=0)
        return can.tolist()

    def chosen(self) -> dict[str, Form]:
        """Return the forms of the stages that have only one to choose from."""
        return {name: forms[0] for name, forms in (self.forms or {}).items() if len(forms) == 1}

    def difference(self, joined: Tensor) -> Tensor:
        """Project and return the largest difference from the module, for each reading."""
        made = joined @ self.out + self.bias
        if made.shape[2] != self.target.shape[2]:  # as many tokens as the other side has
            return torch.full((len(made),), torch.inf)
        if self.shell.residual == "query":
            if self.q.shape[-1] != self.reader.out_dim:
                return torch.full((len(made),), torch.inf)
            made = made + (self.q if self.mix is None else self.q @ self.mix)
        if self.shell.after is not None:
            made = self.shell.after(made + self.shell.kept(self.probe.x))
        gap = (made - self.target).abs()
        if self.probe.kept is not None:
            gap = gap.masked_fill(~self.probe.kept[None, ..., None], 0.0)
        most = gap.flatten(1).amax(dim=1)
        if most.isfinite().all():
            return most
        both_nan = made.isnan() & self.target.isnan()
        gap = torch.where(both_nan, 0.0, gap).nan_to_num(nan=torch.inf, posinf=torch.inf)
        return gap.flatten(1).amax(dim=1)

    # a factor that no list holds -------------------------------------------------------------

    def fitted(self) -> Iterator[dict[str, list[Form]]]:
        """Yield the forms of right attentions with a scale each that could give the output."""
        for path, made in islice(walk(ATTENTION, {**self.state(), "total": 0}, 0), FITTED):
            if made["cosine"]:  # a temperature, which is the module's own
                continue
            right = dict(zip((stage.name for stage in ATTENTION), path.forms, strict=True))
            scales = list(self.fitted_scales(right))
            if scales:
                only = {name: [form] for name, form in right.items()}
                yield {**only, "scale": scales}

    def fitted_scales(self, right: dict[str, Form]) -> Iterator[Form]:
        """Yield a scale for each reading with which its output could be the module's.

        Gauss-Newton on the logarithm of the factor, from several starts.

        Args:
            right: the forms of all other stages.
        """
        if self.target.shape[2] != self.q.shape[2]:  # a context of another length was to ask
            return
        for start in (1.0, 0.1, 10.0):
            log = torch.full((len(self.readings), 1, 1, 1, 1), math.log(start)).to(self.q)
            log = log - math.log(self.setting.head_dim) / 2
            for _ in range(12):
                made = self._made(log, right)
                slope = (self._made(log + 1e-5, right) - made) / 1e-5
                gap = (self.target - made).flatten(1)
                slope = slope.flatten(1)
                step = (gap * slope).sum(1) / (slope**2).sum(1).clamp(min=1e-30)
                log = log + step.clamp(-1, 1).view_as(log)
            gap = (self._made(log, right) - self.target).abs().flatten(1).amax(dim=1)
            for number in torch.nonzero(gap <= self.limit)[:, 0].tolist():
                yield from fitted_scale(log[number].exp().item(), self.setting)

    def _made(self, log: Tensor, right: dict[str, Form]) -> Tensor:
        return self.attend({**right, "scale": scaled_by(log.exp())}, self.state())

    def attend(self, forms: Mapping[str, Form], state: State) -> Tensor:
        """Run the reference with some stages replaced, for every reading."""
        made = replay(ATTENTION, [forms.get(s.name, s.reference) for s in ATTENTION], state)
        if made is None:  # a variant, which the plain form of a stage does not fit
            path, made = next(walk(ATTENTION, state, 0), (None, None))
            if path is None:  # no right form fits this reading of the weights
                rows = len(state["q"])
                return torch.full_like(self.target, torch.nan).expand(rows, -1, -1, -1)
            chosen = [forms.get(s.name, f) for s, f in zip(ATTENTION, path.forms, strict=True)]
            made = replay(ATTENTION, chosen, state)
            assert made is not None, "what applied once applies again"
        times = len(made["joined"]) // len(self.readings)
        return made["joined"] @ self.out.repeat(times, 1, 1, 1) + self.bias.repeat(times, 1, 1, 1)
