"""`diagnose_block`: residuals, norms and activation of a block; layers of a stack."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, product

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from attention_clinic.catalogue import BUGS, FORMS, STAGES, Form
from attention_clinic.patient import (
    Patient,
    _NoDropout,
    check_positive,
    first_tensor,
    possible_widths,
    same,
    undisturbed,
)
from attention_clinic.report import Explanation, Report, explain
from attention_clinic.search import Frame, Probe, Search, other_scales
from attention_clinic.weights import Reader, Reading, Source, joined_heads, sources_of

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": lambda t: F.gelu(t, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "quick-gelu": lambda t: t * torch.sigmoid(1.702 * t),
    "tanh": torch.tanh,
}
EPS = (1e-5, 1e-6, 1e-12, 1e-8, 1e-3)


# How a half of the block joins the stream: x entered the half, normed is what the norm made of
# it, out is what the part returned, start entered the block.
def keep(x: Tensor, normed: Tensor, out: Tensor, start: Tensor) -> Tensor:
    return x + out


def from_norm(x: Tensor, normed: Tensor, out: Tensor, start: Tensor) -> Tensor:
    return normed + out


def missing(x: Tensor, normed: Tensor, out: Tensor, start: Tensor) -> Tensor:
    return out


def doubled(x: Tensor, normed: Tensor, out: Tensor, start: Tensor) -> Tensor:
    return out + out


def from_input(x: Tensor, normed: Tensor, out: Tensor, start: Tensor) -> Tensor:
    return start + out


# id of the bug, what it adds to the words, attention half, feed-forward half
RESIDUALS = (
    (None, "", keep, keep),
    ("residual-from-norm", "in both halves", from_norm, from_norm),
    ("residual-from-norm", "in the attention half", from_norm, keep),
    ("residual-from-norm", "in the feed-forward half", keep, from_norm),
    ("residual-missing", "around the attention", missing, keep),
    ("residual-missing", "around the feed-forward", keep, missing),
    ("residual-missing", "around both", missing, missing),
    ("residual-missing", "the attention is added to itself", doubled, keep),
    ("residual-missing", "the feed-forward is added to itself", keep, doubled),
    ("residual-from-input", "", keep, from_input),
)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], weight, bias, eps)


def _by_hand(unbiased: bool, outside: bool) -> Callable:
    def norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        variance = x.var(dim=-1, keepdim=True, unbiased=unbiased)
        root = variance.sqrt() + eps if outside else (variance + eps).sqrt()
        return weight * centred / root + bias

    return norm


NORMS = (
    (None, "", layer_norm),
    ("norm-bessel", "n - 1, and eps outside the root", _by_hand(True, True)),
    ("norm-bessel", "n - 1", _by_hand(True, False)),
    ("norm-bessel", "eps outside the root", _by_hand(False, True)),
)


@dataclass(frozen=True)
class _Choice:
    """One way in which a block may be written."""

    reading: int
    forms: tuple[tuple[str, Form], ...]
    first: bool
    norm: int
    eps: float
    swap: bool
    residual: int
    activation: str
    causal: bool


class _Listen(TorchFunctionMode):
    """Write down which activations are called."""

    def __init__(self):
        super().__init__()
        self.heard: set[str] = set()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        name = getattr(func, "__name__", "")
        if name in ("gelu", "relu", "relu_", "silu"):
            tanh = (kwargs or {}).get("approximate") == "tanh"
            self.heard.add("gelu-tanh" if tanh else name.rstrip("_"))
        return func(*args, **(kwargs or {}))


def diagnose_block(
    block: nn.Module,
    num_heads: int,
    *,
    norm_first: bool | None = None,
    activation: str | None = None,
    norm_eps: float | None = None,
    causal: bool | None = None,
    call: Callable | None = None,
    size: tuple[int, int] | None = None,
) -> Report:
    """Compare a Transformer block, or a stack of them, with the course's own and name the mistakes.

    Args:
        block: maps tokens to tokens by attention and feed-forward; or a stack of such blocks.
        num_heads: number of heads, h.
        norm_first: True if it is meant to be pre-norm, False for post-norm, None accepts both.
        activation: what it is meant to be ("gelu", "gelu-tanh", "relu", "silu"); None accepts all.
        norm_eps: the eps that its norms are meant to have; None accepts all.
        causal: as in `diagnose`.
        call: how to call it: call(block, x); None reads the signature of `forward`.
        size: numbers of samples and tokens to try.

    Shape:
        x       (b, n, e)
        result  (b, n, e)

    Returns:
        A `Report`: print it, or ask for `healthy` and `explanations`.

    Raises:
        ValueError: not a module, a number of heads that does not fit, or an exception inside it.
    """
    check_positive("diagnose_block", num_heads=num_heads)
    if activation is not None and activation not in ACTIVATIONS:
        raise ValueError(
            f"diagnose_block: activation must be one of {sorted(ACTIVATIONS)}, "
            f"got activation={activation!r}. Pass None to accept any."
        )
    if not isinstance(block, nn.Module):
        raise ValueError(
            f"diagnose_block: block must be an nn.Module, got {type(block).__name__}. "
            "Build it first and pass the object."
        )
    meant = {"norm_first": norm_first, "activation": activation, "norm_eps": norm_eps}
    with undisturbed():
        patient = Patient("diagnose_block", block, call)
        x = _first_run(patient, num_heads, size)
        layers = _layers(block)
        if layers:
            return _Stack(block, patient, x, layers, num_heads, meant, causal).report()
        return _Block(patient, x, num_heads, meant, causal).report()


def _first_run(patient: Patient, num_heads: int, size: tuple[int, int] | None) -> Tensor:
    """Return tokens of a width that the module takes."""
    named = dict(patient.module.named_parameters())
    b, n = size or (2 if num_heads != 2 else 3, 5 if num_heads != 5 else 7)
    norms = [p.shape[0] for p in named.values() if p.ndim == 1]
    common = sorted(dict.fromkeys(norms), key=lambda width: -norms.count(width))
    widths = list(dict.fromkeys([*common[:2], *possible_widths(patient.module, named)]))
    first: tuple[Exception, tuple] | None = None
    for single in (False, True):
        if single:
            patient.single()
        for width in widths[:6]:
            x = patient.tokens(b, n, width)
            try:
                if patient.run(x).shape == x.shape:
                    return x
            except Exception as error:
                if first is None or width == common[0]:
                    first = first or (error, tuple(x.shape))
    if first is None:
        raise ValueError(
            f"diagnose_block: {patient.name} must map (b, n, e) to (b, n, e), got no width with "
            "which it does. Say how to call it: call=lambda module, x: module(x)[0]."
        )
    raise patient.complain(*first) from first[0]


class _Block:
    """The examination of one block."""

    def __init__(self, patient: Patient, x: Tensor, num_heads: int, meant: dict, causal):
        self.patient, self.x, self.h, self.meant, self.causal = patient, x, num_heads, meant, causal
        self.e = x.shape[-1]
        self.extra: list[str] = []
        self.quiet = False

    def run(self, x: Tensor) -> Tensor:
        if self.quiet:
            with _NoDropout():
                return self.patient.run(x)
        return self.patient.run(x)

    def report(self) -> Report:
        name = self.patient.name
        self.y = self.run(self.x)
        if not self.y.isfinite().any():
            failing = ("the output holds numbers: it has nothing but NaN",)
            return Report(name, False, failing=failing, untried=self.patient.untried(mask=False))
        if not same(self.y, self.run(self.x)):
            self.quiet = True
            self.y = self.run(self.x)
            if not same(self.y, self.run(self.x)):
                failing = ("two calls in eval mode give the same output",)
                return Report(name, False, failing=failing)
            self.extra.append("dropout-eval")
        other = self.patient.tokens(*self.x.shape, seed=7)
        if torch.equal(self.run(other), self.y):
            evidence = "two inputs gave the same output"
            return Report(name, False, (explain([BUGS["ignores-input"]], evidence=evidence),))
        self.other = (other, self.run(other))
        later = self.x.clone()
        later[:, -1] += torch.arange(self.e).to(later)
        change = (self.run(later) - self.y)[:, :-1].abs().max()
        self.hides_future = bool(change <= 1e3 * self.patient.tolerance)
        with _Listen() as listen:
            self.run(self.x)
        self.heard = listen.heard
        read = self.read()
        if read:
            said = (f"no {read} that could be those of a block",)
            return Report(name, False, checked=said)
        found, said = self.search()
        given = {"untried": self.patient.untried(mask=False), "tolerance": self.patient.tolerance}
        if found is None:
            checked = ("residuals, norms, activation and attention, alone and in pairs",)
            return Report(name, False, failing=tuple(self.failing()), checked=checked, **given)
        if () in found:
            return Report(name, True, checked=(said,), **given)
        return Report(name, False, tuple(found.values()), checked=(said,), **given)

    # ------------------------------------------------------------------------- the weights

    def read(self) -> str | None:
        """Find feed-forward, norms and projections; return what is missing."""
        module, e = self.patient.module, self.e
        sources = sources_of(module)
        ups, downs = [], []
        for source in sources:
            for form in source.forms:
                if source.weight.ndim != 2 or form not in ("oi", "io"):
                    continue
                o, i = source.weight.shape if form == "oi" else source.weight.shape[::-1]
                if i == e:
                    ups.append((source, form, o))
                if o == e:
                    downs.append((source, form, i))
        self.feeds = []
        for up, form, m in ups:
            for down, other, inner in downs:
                if up is down or inner != m or form != other:
                    continue
                by_name = _feeds(up) and _feeds(down)
                if m != e or by_name:
                    self.feeds.append((not by_name, up, down, form))
        self.feeds.sort(key=lambda feed: feed[0])
        if not self.feeds:
            return "feed-forward"
        _, up, down, self.feed_form = self.feeds[0]
        self.up, self.down = up, down
        rest = [s for s in sources if s is not up and s is not down]
        self.reader = Reader(joined_heads(rest, self.h), e, self.h, e, e)
        if e % self.h:
            raise ValueError(
                f"diagnose_block: num_heads must divide the width of a token, got "
                f"num_heads={self.h} and embed_dim={e}. "
                f"Pick num_heads from {[h for h in range(1, e + 1) if e % h == 0]}."
            )
        self.readings: list[Reading] = self.reader.readings()
        if not self.readings:
            return "projections"
        self.norms = []
        for part in module.modules():
            own = [p for p in part.parameters(recurse=False) if p.shape == (e,)]
            if len(own) == 2 and not isinstance(part, nn.Linear | nn.MultiheadAttention):
                eps = getattr(part, "eps", getattr(part, "variance_epsilon", None))
                self.norms.append((own[0], own[1], eps))
        return None if len(self.norms) == 2 else "two norms"

    def feed(self, t: Tensor, activation: str) -> Tensor:
        """Run the feed-forward."""
        for number, source in enumerate((self.up, self.down)):
            weight = source.weight.T if self.feed_form == "oi" else source.weight
            t = t @ weight if source.bias is None else t @ weight + source.bias
            t = t if number else ACTIVATIONS[activation](t)
        return t

    def attend(self, t: Tensor, choice: _Choice, cache: dict) -> Tensor:
        """Run the attention of a choice; what all its forms share is made once."""
        key = (choice.reading, choice.first, choice.norm, choice.eps, choice.swap, choice.causal)
        if key not in cache:
            probe = Probe(t, t, causal=choice.causal)
            reading = [self.readings[choice.reading]]
            cache[key] = Search(self.reader, reading, probe, Frame(""), 0.0, looks=None)
        return cache[key].attend(dict(choice.forms))

    def made(self, x: Tensor, choice: _Choice, cache: dict, feeding: bool = True) -> Tensor:
        """Run a whole block as the choice says, keeping in the cache what others share.

        Without `feeding` the feed-forward returns 0.
        """
        norms = self.norms[::-1] if choice.swap else self.norms
        run = NORMS[choice.norm][2]

        def norm(t: Tensor, number: int) -> Tensor:
            weight, bias, _ = norms[number]
            return run(t, weight, bias, choice.eps)

        join1, join2 = RESIDUALS[choice.residual][2:]
        half = replace(choice, activation="", residual=-1)
        key = (half, join1)
        if key not in cache:
            read = norm(x, 0) if choice.first else x
            if half not in cache:
                cache[half] = self.attend(read, choice, cache)
            middle = join1(x, read, cache[half], x)
            cache[key] = middle if choice.first else norm(middle, 0)
        middle = cache[key]
        read = norm(middle, 1) if choice.first else middle
        if feeding:
            feed_key = (key, choice.activation)
            if feed_key not in cache:
                cache[feed_key] = self.feed(read, choice.activation)
            out = cache[feed_key]
        else:
            out = torch.zeros_like(read)
        result = join2(middle, read, out, x)
        return result if choice.first else norm(result, 1)

    def unfed(self) -> Tensor:
        """Run the copy with a feed-forward that returns 0."""
        parts = [self.down.weight] + ([] if self.down.bias is None else [self.down.bias])
        before = [part.clone() for part in parts]
        for part in parts:
            part.zero_()
        try:
            return self.run(self.x)
        finally:
            for part, values in zip(parts, before, strict=True):
                part.copy_(values)

    # -------------------------------------------------------------------------- the search

    def choices(self, total: int) -> Iterator[tuple[tuple[str, ...], str, _Choice]]:
        """Yield ids, detail and choice of everything with so many mistakes."""
        heard = [name for name in ACTIVATIONS if name in self.heard]
        activations = heard or list(ACTIVATIONS)
        written = [eps for _, _, eps in self.norms if isinstance(eps, float)]
        eps_values = list(dict.fromkeys(written)) or list(EPS)
        bases = [self.causal] if self.causal is not None else [self.hides_future]
        for ids, detail, reading, forms in self.attentions(total):
            for causal, first in product(bases, (True, False)):
                for norm, (norm_id, norm_detail, _) in enumerate(NORMS):
                    for residual, (res_id, res_detail, join1, join2) in enumerate(RESIDUALS):
                        if not first and from_norm in (join1, join2):
                            continue  # there the stream is what the norm returned
                        inner = [i for i in (norm_id, res_id) if i]
                        if len(ids) + len(inner) > total:
                            continue
                        swaps = (False,) if ids or inner else (False, True)
                        for activation, eps, swap in product(activations, eps_values, swaps):
                            choice = _Choice(
                                reading, forms, first, norm, eps, swap, residual, activation, causal
                            )
                            all_ids = (*ids, *inner, *self.against(choice))
                            if len(all_ids) == total:
                                parts = (detail, norm_detail, res_detail)
                                yield all_ids, "; ".join(filter(None, parts)), choice

    def attentions(self, total: int) -> Iterator[tuple[tuple[str, ...], str, int, tuple]]:
        """Yield the right attention for the likeliest readings, and each mistake for the first."""
        sound = [number for number, reading in enumerate(self.readings) if not reading.ids]
        for number in sound[: 24 if total == 0 else 2]:
            yield (), "", number, ()
        if not total:
            return
        first: dict[tuple, int] = {}
        for number, reading in enumerate(self.readings):
            first.setdefault(reading.ids, number)
        for ids, number in first.items():
            if 0 < len(ids) <= total:
                yield ids, "", number, ()
        start = first.get((), 0)
        scales = other_scales(
            Search(
                self.reader, [self.readings[start]], Probe(self.x, self.x), Frame(""), 0.0
            ).setting,
            False,
        )
        for stage in STAGES:
            for form in FORMS[stage] + (scales if stage == "scale" else []):
                if form.id is None or form.id == "mask-row-empty":
                    continue
                if form.id == "mask-not-causal" and self.causal is not True:
                    continue
                yield (form.id,), form.detail, start, ((stage, form),)

    def against(self, choice: _Choice) -> list[str]:
        """Return what differs from what was meant."""
        ids = []
        if self.meant["norm_first"] not in (None, choice.first):
            ids.append("norm-order")
        wanted = self.meant["activation"]
        if wanted not in (None, choice.activation):
            gelus = {wanted, choice.activation} == {"gelu", "gelu-tanh"}
            ids.append("gelu-tanh" if gelus else "activation-other")
        if self.meant["norm_eps"] not in (None, choice.eps) and NORMS[choice.norm][0] is None:
            ids.append("norm-eps")
        return ids

    def search(self) -> tuple[dict[tuple[str, ...], Explanation] | None, str]:
        """Return the explanations with the fewest mistakes, and what was compared."""
        caches: tuple[dict, dict] = ({}, {})
        without, unfed = self.unfed(), {}
        for total in range(3):
            found: dict[tuple[str, ...], Explanation] = {}
            said = ""
            for ids, detail, choice in self.choices(total):
                half = replace(choice, activation="")
                if half not in unfed:
                    unfed[half] = self.near(self.made(self.x, choice, caches[0], False), without)
                if not unfed[half]:
                    continue
                made = self.made(self.x, choice, caches[0])
                if not self.near(made, self.y):
                    continue
                if not self.near(self.made(self.other[0], choice, caches[1]), self.other[1]):
                    continue
                difference = _gap(made, self.y)
                order = "pre-norm" if choice.first else "post-norm"
                said = said or (
                    f"residuals; {order}; eps {choice.eps:g}; {choice.activation}; attention with "
                    f"{self.h} head{'s' * (self.h > 1)}{', causal' if choice.causal else ''}"
                )
                every = (*ids, *self.extra)
                bugs = [BUGS[id] for id in every]
                if not every:
                    return {(): None}, said
                how = "reproduces your output exactly"
                if self.quiet:
                    how += " once dropout is off"
                found.setdefault(every, explain(bugs, difference, detail, how))
                if total == 0:
                    break
            if found:
                return found, said
        return None, ""

    def near(self, made: Tensor, y: Tensor) -> bool:
        """Say whether two outputs are the same, NaN included."""
        size = y[y.isfinite()].abs().max().item() if y.isfinite().any() else 0.0
        return _gap(made, y) <= self.patient.tolerance * (1 + size)

    def failing(self) -> Iterator[str]:
        """Yield the properties that do not hold."""
        b, n, _ = self.x.shape
        if not self.y.isfinite().all():
            yield "the output holds numbers: it has some NaN or infinity"
            return
        limit = 1e3 * self.patient.tolerance * (1 + self.y.abs().max().item())
        changed = self.x.clone()
        changed[0] = self.patient.tokens(*self.x.shape[1:], seed=21)
        if b > 1 and (self.run(changed)[1:] - self.y[1:]).abs().max() > limit:
            yield "samples stay apart: changing one changes another"
        order = torch.arange(n).roll(2)
        if self.causal is not True and (
            (self.run(self.x[:, order]) - self.y[:, order]).abs().max() > limit
        ):
            yield "order does not matter: permuted tokens do not give permuted outputs"


def _gap(made: Tensor, y: Tensor) -> float:
    gap = (made - y).abs()
    both = made.isnan() & y.isnan()
    return torch.where(both, 0.0, gap).nan_to_num(nan=torch.inf, posinf=torch.inf).max().item()


def _feeds(source: Source) -> bool:
    """Say whether a name speaks of a feed-forward."""
    name = source.name.lower()
    words = ("mlp", "ff", "feed", "fc1", "fc2", "linear1", "linear2", "pw", "intermediate", "w_1")
    return any(word in name for word in words) or (
        name.endswith("output.dense.weight") and "attention" not in name
    )


# ---------------------------------------------------------------------------------------- stacks


def _big(module: nn.Module) -> bool:
    """Say whether a module could be a block: it has several matrices and a norm."""
    matrices = [p for p in module.parameters() if p.ndim > 1]
    vectors = [p for p in module.parameters() if p.ndim == 1]
    return len(matrices) >= 3 and len(vectors) >= 2


def _layers(module: nn.Module) -> list[nn.Module]:
    """Return the layers of a stack, [] for a single block."""
    for part in module.modules():
        if isinstance(part, nn.ModuleList | nn.Sequential):
            children = list(part)
            if len(children) > 1 and all(
                _big(child)
                and type(child) is type(children[0])
                and not isinstance(child, nn.ModuleList | nn.ModuleDict)  # they cannot be called
                for child in children
            ):
                return children
    direct = [child for child in module.children() if _big(child) and _has_all(child, module)]
    if len(direct) != 1 or isinstance(direct[0], nn.ModuleList | nn.ModuleDict):
        return []
    return direct if _is_block(direct[0]) else []


def _has_all(child: nn.Module, module: nn.Module) -> bool:
    mine = sum(p.ndim > 1 for p in child.parameters())
    return mine == sum(p.ndim > 1 for p in module.parameters())


def _is_block(module: nn.Module) -> bool:
    return len({p.shape for p in module.parameters() if p.ndim > 1}) > 1


class _Stack:
    """The examination of a stack."""

    def __init__(self, original, patient, x, layers, num_heads, meant, causal):
        self.original, self.patient, self.x = original, patient, x
        self.layers, self.h, self.meant, self.causal = layers, num_heads, meant, causal

    def report(self) -> Report:
        name = self.patient.name
        copies = _layers(self.patient.module)
        calls: list[tuple[int, Tensor, Tensor]] = []

        def listen(layer, args, kwargs, result):
            given = next(v for v in (*args, *kwargs.values()) if isinstance(v, Tensor))
            calls.append((id(layer), given.detach().clone(), first_tensor(result).clone()))

        handles = [
            layer.register_forward_hook(listen, with_kwargs=True) for layer in dict.fromkeys(copies)
        ]
        y = self.patient.run(self.x)
        for handle in handles:
            handle.remove()
        ids, failing = [], []
        if len({call[0] for call in calls}) < len(calls) or self.shares():
            ids.append("layers-shared")
        elif self.same_start():
            ids.append("layers-same-init")
        inputs = [call[1] for call in calls]
        chained = all(torch.equal(after[1], before[2]) for before, after in pairwise(calls))
        if not chained:
            if all(torch.equal(given, inputs[0]) for given in inputs):
                ids.append("stack-last-only")
            else:
                failing.append("each layer reads what the one before it returned")
        if calls and not self.ends_with(calls[-1][2], y):
            failing.append("the stack returns what its last layer returned, normalised or not")
        if not calls:
            failing.append("the layers are called")
        patient = Patient("diagnose_block", copies[0])
        if calls:
            patient = Patient("diagnose_block", copies[0], lambda m, x: m(x))
            try:
                patient.run(self.x)
            except Exception:
                patient.call = None
        inner = _Block(patient, self.x.to(patient.dtype), self.h, self.meant, self.causal).report()
        count = f"{len(calls)} calls of {len(dict.fromkeys(map(id, copies)))} layers"
        checked = (count, *inner.checked)
        evidence = "seen in the calls and weights of the layers"
        explanations = [explain([BUGS[id] for id in ids], evidence=evidence)] if ids else []
        if inner.explanations and ids:
            explanations = [
                explain(
                    [BUGS[id] for id in (*ids, *inner.ids)], detail=inner.explanations[0].detail
                )
            ]
        elif inner.explanations:
            explanations = list(inner.explanations)
        healthy = not ids and not failing and inner.healthy
        return Report(
            name, healthy, tuple(explanations), (*failing, *inner.failing), checked,
            self.patient.untried(mask=False), tolerance=inner.tolerance,
        )  # fmt: skip

    def shares(self) -> bool:
        """Say whether two different layers hold the same parameter."""
        distinct = list(dict.fromkeys(self.layers))
        if len(distinct) < len(self.layers):
            return True
        seen: set[int] = set()
        for layer in distinct:
            mine = {id(p) for p in layer.parameters()}
            if mine & seen:
                return True
            seen |= mine
        return False

    def same_start(self) -> bool:
        """Say whether all layers have the same matrices, though they are different layers."""
        first, *others = [[p for p in layer.parameters() if p.ndim > 1] for layer in self.layers]
        return bool(others) and all(
            len(first) == len(other)
            and all(
                a.shape == b.shape and torch.equal(a, b) for a, b in zip(first, other, strict=True)
            )
            for other in others
        )

    def ends_with(self, last: Tensor, y: Tensor) -> bool:
        """Say whether the stack returns its last layer's output, normalised or not."""
        if last.shape != y.shape:
            return True
        with torch.no_grad():
            ends = [last] + [
                norm(last)
                for norm in self.patient.module.modules()
                if isinstance(norm, nn.LayerNorm) and norm.normalized_shape == last.shape[-1:]
            ]
        return any(torch.allclose(end, y, rtol=1e-6, atol=1e-6) for end in ends)
