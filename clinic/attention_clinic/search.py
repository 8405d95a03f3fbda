"""The search: which forms of the stages, with which reading of the weights, give the output."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attention_clinic.catalogue import FORMS, STAGES, Form, Setting, reference, use_row_open
from attention_clinic.weights import Reader, Reading

LOOKS = 6  # numbers looked at of each output token, each a random mix of all; survivors are checked
LIKELY = 6  # readings that follow the names best
SINGLES_TRIED = 144  # readings that are tried with one mistake
PAIRS_TRIED = 24  # readings that are tried with two mistakes
WIDTHS_SEEN = (4, 8, 16, 32, 64, 100, 128, 256, 512, 768, 1024)


@dataclass(frozen=True)
class Probe:
    """One call of the module: what went in and what came out.

    Args:
        x: tokens.
        y: the module's output.
        mask: (1 or b, 1 or h, i, j), True = may attend, or None.
        causal: whether token i should see only tokens 0 to i.
    """

    x: Tensor
    y: Tensor
    mask: Tensor | None = None
    causal: bool = False

    def causal_rule(self) -> Tensor | None:
        """The causal mask, (1, 1, n, n), None when there is none."""
        n = self.x.shape[1]
        return torch.ones(1, 1, n, n, dtype=torch.bool).tril() if self.causal else None


@dataclass(frozen=True)
class Frame:
    """What stands around the attention in the same module.

    Args:
        name: in words.
        before: a norm of the input, or None.
        residual: True when the input is added.
        after: a norm of the result, or None.
    """

    name: str
    before: nn.Module | None = None
    residual: bool = False
    after: nn.Module | None = None

    def enter(self, x: Tensor) -> Tensor:
        """What the attention reads."""
        return x if self.before is None else self.before(x)


@dataclass(frozen=True)
class Match:
    """Forms and a reading that give the output.

    Args:
        reading: of the weights.
        forms: one for each stage.
        free: True where a form does not count as a bug here.
        frame: what stands around.
        causal: whether the reference is causal.
        difference: largest difference from the output.
    """

    reading: Reading
    forms: dict[str, Form]
    ids: tuple[str, ...]
    frame: Frame
    causal: bool
    difference: float

    @property
    def detail(self) -> str:
        """What the forms say beyond the words of their bugs."""
        return "; ".join(form.detail for form in self.forms.values() if form.id and form.detail)


def other_scales(s: Setting, many: bool) -> list[Form]:
    """Return forms for the wrong factors that people write; `many` adds fixed widths."""
    d, e, h = s.head_dim, s.embed_dim, s.num_heads
    known = {d**-0.5, e**-0.5, 1.0}
    candidates: dict[float, str] = {
        1 / d: "1 / head_dim",
        d**0.5: "sqrt(head_dim)",
        d**-0.25: "head_dim ** -0.25",
        1 / e: "1 / embed_dim",
        e**0.5: "sqrt(embed_dim)",
        h**-0.5: "1 / sqrt(num_heads)",
    }
    for width in (*WIDTHS_SEEN, 3 * e) if many else ():
        candidates.setdefault(width**-0.5, f"1 / sqrt({width})")
    forms = []
    for factor, words in candidates.items():
        if all(not math.isclose(factor, other) for other in known):
            known.add(factor)
            forms.append(scaled_by(factor, words))
    by_length = "it divides by sqrt(n), the number of tokens"
    forms.append(
        Form("scale", "scale-other", lambda scores, s: scores / scores.shape[-1] ** 0.5, by_length)
    )
    return forms


def scaled_by(factor: float | Tensor, words: str = "") -> Form:
    """Return the form that multiplies the scores by a number."""
    detail = f"it multiplies by {words}" if words else ""
    return Form("scale", "scale-other", lambda scores, s: scores * factor, detail)


class Search:
    """Compare one probe with the forms of the catalogue, for many readings at once.

    Args:
        reader: of the weights.
        readings: the readings to try.
        probe: one call of the module.
        frame: what stands around the attention.
        tolerance: the largest difference that counts as equal.
        looks: None compares every number of the output, otherwise so many random mixes.
        forms: the forms to choose from, by stage.
    """

    def __init__(
        self,
        reader: Reader,
        readings: list[Reading],
        probe: Probe,
        frame: Frame,
        tolerance: float,
        looks: int | None = LOOKS,
        forms: dict[str, list[Form]] | None = None,
    ):
        self.reader, self.readings, self.probe, self.frame = reader, readings, probe, frame
        self.setting = Setting(reader.h, reader.e, reader.d)
        self.forms = forms or FORMS
        dtype = probe.x.dtype
        mix = None
        target = probe.y
        if frame.after is not None:
            looks = None
        elif frame.residual:
            target = target - probe.x
        if looks is not None and reader.out_dim > looks:
            generator = torch.Generator().manual_seed(11)
            mix = torch.randn(reader.out_dim, looks, generator=generator, dtype=torch.float64)
            mix = (mix / reader.out_dim**0.5).to(dtype)
            target = target @ mix
        self.target = target[None]
        finite = self.target[torch.isfinite(self.target)]
        self.limit = tolerance * (1 + (finite.abs().max().item() if len(finite) else 0.0))
        cache: dict = {}
        inside = frame.enter(probe.x)
        flats = {
            number: reader.flat(reader.pieces[number], inside, cache)
            for number in {n for r in readings for n in (r.q, r.k, r.v)}
        }
        self.q, self.k, self.v = (
            torch.stack([flats[getattr(r, part)] for r in readings]) for part in "qkv"
        )
        outs = {option: reader.out(option, mix) for option in {r.out for r in readings}}
        self.out = torch.stack([outs[r.out][0] for r in readings])[:, None]  # (r, 1, h * d, looks)
        self.bias = torch.stack([outs[r.out][1] for r in readings])[:, None, None]
        self.causal = probe.causal_rule()
        self.right = reference("rule").run(probe.mask, self.causal)
        self.right_has_empty = self.right is not None and _has_empty(self.right)

    def matches(self, mistakes: int) -> Iterator[Match]:
        """Yield what matches with exactly so many mistakes beside those of the reading."""
        for forms, ids, differences in self.walk(mistakes):
            for number in torch.nonzero(differences <= self.limit)[:, 0].tolist():
                reading = self.readings[number]
                yield Match(
                    reading,
                    forms,
                    (*reading.ids, *ids),
                    self.frame,
                    self.probe.causal,
                    differences[number].item(),
                )

    def walk(self, mistakes: int) -> Iterator[tuple[dict[str, Form], tuple[str, ...], Tensor]]:
        """Go through the stages and yield the forms chosen, their ids and the differences."""
        yield from self._step(0, mistakes, {}, (), {"q": self.q, "k": self.k, "v": self.v})

    def _step(self, number: int, left: int, chosen: dict, ids: tuple, state: dict) -> Iterator:
        if number == len(STAGES):
            if left == 0:
                yield chosen, ids, self.difference(state["joined"])
            return
        stage = STAGES[number]
        for form, id in self._choices(stage, state):
            if (id is not None) > left:
                continue
            after = getattr(self, f"_{stage}")(form, state)
            if after is not None:
                yield from self._step(
                    number + 1,
                    left - (id is not None),
                    {**chosen, stage: form},
                    ids if id is None else (*ids, id),
                    {**state, **after},
                )

    def _choices(self, stage: str, state: dict) -> Iterator[tuple[Form, str | None]]:
        """Yield the forms of a stage with the id that each counts as here."""
        forms = self.forms[stage]
        if stage in ("rule", "use") and self.right is None:
            forms = forms[:1]
        if stage != "use":
            yield from ((form, form.id) for form in forms)
            return
        allow = state["allow"]
        for form in forms:
            counts = self.right_has_empty and allow is not None and _has_empty(allow)
            if form.id != "mask-row-empty" or counts:
                yield form, form.id
            elif allow is not None and _has_empty(allow):
                # where only the mistaken mask leaves rows empty, no treatment of them is a bug;
                # but to open them all is to have no mask
                whole = bool((allow | ~allow.any(dim=-1, keepdim=True)).all())
                if not (form.run is use_row_open and whole):
                    yield form, None

    # what each stage makes of the state ------------------------------------------------------

    def _tokens(self, form: Form, state: dict) -> dict:
        return {name: form.run(state[name]) for name in "qkv"} | {"back": form.run}

    def _split(self, form: Form, state: dict) -> dict:
        q, k, v = (form.run(state[name], self.setting) for name in "qkv")
        return {"q": q, "k": k, "v": v}

    def _scores(self, form: Form, state: dict) -> dict:
        return {"raw": form.run(state["q"], state["k"])}

    def _scale(self, form: Form, state: dict) -> dict:
        made = form.run(state["raw"], self.setting)
        scores, factor = made if isinstance(made, tuple) else (made, 1.0)
        return {"scores": scores, "factor": factor}

    def _rule(self, form: Form, state: dict) -> dict | None:
        allow = form.run(self.probe.mask, self.causal)
        if form.id is not None and _same(allow, self.right):
            return None
        if allow is not None and not _fits(allow, state["scores"]):
            return None
        return {"allow": allow}

    def _use(self, form: Form, state: dict) -> dict | None:
        return None if state["allow"] is None and form.id is not None else {"use": form.run}

    def _softmax(self, form: Form, state: dict) -> dict:
        if state["allow"] is None:
            weights = form.run(state["scores"])
        else:
            weights = state["use"](state["scores"], state["allow"][None], form.run)
        return {"weights": weights * state["factor"]}

    def _mix(self, form: Form, state: dict) -> dict:
        return {"mixed": form.run(state["weights"], state["v"])}

    def _merge(self, form: Form, state: dict) -> dict:
        return {"joined": state["back"](form.run(state["mixed"]))}

    def could_differ(self) -> list[bool]:
        """Say for each reading whether scores and values reach the output of the reference.

        With a projection of zeros, every mistake gives the output of the reference.
        """
        state = {"q": self.q, "k": self.k, "v": self.v}
        right = self.attend({}, state, every=True)
        can = torch.ones(len(self.readings), dtype=torch.bool)
        for part in "qv":
            blind = {**state, part: torch.zeros_like(state[part])}
            gap = (self.attend({}, blind, every=True) - right).abs().nan_to_num(nan=0.0)
            can &= gap.flatten(1).amax(dim=1) > 100 * self.limit
        return can.tolist()

    def difference(self, joined: Tensor) -> Tensor:
        """Project and return the largest difference from the module, for each reading."""
        made = joined @ self.out + self.bias
        if self.frame.after is not None:
            if self.frame.residual:
                made = made + self.probe.x
            made = self.frame.after(made)
        gap = (made - self.target).abs()
        both_nan = made.isnan() & self.target.isnan()
        gap = torch.where(both_nan, 0.0, gap).nan_to_num(nan=torch.inf, posinf=torch.inf)
        return gap.flatten(1).amax(dim=1)

    # a factor that no list holds -------------------------------------------------------------

    def fitted_scales(self) -> Iterator[Form]:
        """Yield a scale for each reading with which its output could be the module's.

        Gauss-Newton on the logarithm of the factor, from several starts.
        """
        for start in (1.0, 0.1, 10.0):
            log = torch.full((len(self.readings), 1, 1, 1, 1), math.log(start)).to(self.q)
            log = log - math.log(self.setting.head_dim) / 2
            for _ in range(12):
                made = self._made(log)
                slope = (self._made(log + 1e-5) - made) / 1e-5
                gap = (self.target - made).flatten(1)
                slope = slope.flatten(1)
                step = (gap * slope).sum(1) / (slope**2).sum(1).clamp(min=1e-30)
                log = log + step.clamp(-1, 1).view_as(log)
            gap = (self._made(log) - self.target).abs().flatten(1).amax(dim=1)
            for number in torch.nonzero(gap <= self.limit)[:, 0].tolist():
                factor = log[number].exp().item()
                yield scaled_by(factor, f"{factor:.4g}")

    def _made(self, log: Tensor) -> Tensor:
        return self.attend({"scale": scaled_by(log.exp())}, every=True)

    def attend(
        self, forms: dict[str, Form], state: dict | None = None, every: bool = False
    ) -> Tensor:
        """Run the reference with some stages replaced, for the first reading or for every one."""
        state = dict(state or {"q": self.q, "k": self.k, "v": self.v})
        for stage in STAGES:
            made = getattr(self, f"_{stage}")(forms.get(stage, reference(stage)), state)
            if made is None:  # the form changes nothing here
                return torch.full_like(self.target if every else self.target[0], torch.nan)
            state |= made
        made = state["joined"] @ self.out + self.bias
        return made if every else made[0]


def only(match: Match, free: tuple[str, ...] = ()) -> dict[str, list[Form]]:
    """Return the forms of a match alone, but all forms of the stages in `free`."""
    return {stage: FORMS[stage] if stage in free else [match.forms[stage]] for stage in STAGES}


def frames_of(module: nn.Module | Callable, embed_dim: int) -> list[Frame]:
    """Return what may stand around the attention: norms of its own, a residual."""
    frames = [Frame("")]
    if not isinstance(module, nn.Module):
        return frames
    norms = [
        part
        for part in module.modules()
        if isinstance(part, nn.LayerNorm) and part.normalized_shape == (embed_dim,)
    ]
    for norm in norms[:2]:
        frames.append(Frame("after a LayerNorm of its own", before=norm))
        frames.append(Frame("a residual and a LayerNorm around", before=norm, residual=True))
        frames.append(Frame("a residual and a LayerNorm around", after=norm, residual=True))
        frames.append(Frame("a LayerNorm of its own after it", after=norm))
    frames.append(Frame("a residual around", residual=True))
    return frames


def _has_empty(allow: Tensor) -> bool:
    return not bool(allow.any(dim=-1).all())


def _same(first: Tensor | None, second: Tensor | None) -> bool:
    if first is None or second is None:
        return first is second
    wide = torch.broadcast_shapes(first.shape, second.shape)
    return torch.equal(first.expand(wide), second.expand(wide))


def _fits(allow: Tensor, scores: Tensor) -> bool:
    return all(
        a in (1, s) for a, s in zip(reversed(allow.shape), reversed(scores.shape), strict=False)
    )
