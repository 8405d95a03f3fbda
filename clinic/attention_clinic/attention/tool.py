"""`diagnose`: examine an attention, or a function of ready queries, keys and values (a kernel)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import torch
from einops import rearrange
from torch import Tensor, nn

from attention_clinic.attention.examine import examined
from attention_clinic.attention.operands import layer_names, read_operand
from attention_clinic.attention.positions import starts_at_zero
from attention_clinic.attention.program import Lost
from attention_clinic.capture.calling import (
    BLANKS,
    first_tensor,
    is_mask,
    is_needed,
    parameters_of,
    sides_of,
)
from attention_clinic.capture.module import CallFailed, Patient, same, undisturbed, unwrapped
from attention_clinic.capture.run import capture
from attention_clinic.capture.trial import HEAD_NAMES, Context, Options, Trial, heads_of, working
from attention_clinic.catalogue import BUGS
from attention_clinic.report import Report, explain, fewest_mistakes

NAMES = (
    {"q", "query", "queries", "qs"},
    {"k", "key", "keys", "ks"},
    {"v", "value", "values", "vs", "val"},
)
FORMS = {
    "b h n d": "b n (h d) -> b h n d",
    "b n h d": "b n (h d) -> b n h d",
    "b n e": "b n (h d) -> b n (h d)",
}
HEADS, WIDTH = 4, 6  # where nothing states them
MATRICES = 2  # a kernel has at most so many: an output layer, a table


def diagnose(
    module: nn.Module | Callable[..., Any],
    num_heads: int | None = None,
    *,
    mask: Tensor | None = None,
    causal: bool | None = None,
    call: Callable[..., Any] | None = None,
    weights: dict[str, Tensor] | None = None,
    embed_dim: int | None = None,
    size: tuple[int, int] | None = None,
    out_proj: bool | None = None,
    true_means: Literal["attend", "block"] | None = None,
    context: Tensor | tuple[int, int] | int | bool | None = None,
    num_kv_heads: int | None = None,
    cache: Callable[[], Any] | None = None,
) -> Report:
    """Examine an attention: report the known mistakes that give exactly its output.

    A copy gets random weights and runs on random tokens; the module stays as it is.

    >>> print(diagnose(my_attention, num_heads=8))
    >>> assert_healthy(my_attention, num_heads=8)  # in your tests

    Args:
        module: maps tokens to tokens by attention, or takes queries, keys and values. A function
            of tokens needs `weights`.
        num_heads: number of heads, h; None reads it off the module.
        mask: a mask to call the module with, in the shape that it takes. Bool: True = may
            attend; integers, and floats that are all 0 or 1: 1 = may attend; other floats are
            added to the scores: 0 = may attend.
        causal: True when token i must attend only to tokens 0 to i, False when it must attend to
            all; None accepts both.
        call: how to call the module: call(module, x), or call(module, x, mask), with a context
            call(module, x, context) or call(module, x, context, mask); None follows the signature
            of forward. Its result is a tensor, or begins with one.
        weights: the weights of a function, by name: {"q": ..., "k": ..., "v": ..., "out": ...}.
        embed_dim: embedding dimension, e; None finds it.
        size: numbers of samples and tokens, for modules that take no others.
        out_proj: True when it must have its own output layer, False when that layer is
            outside; None accepts both and makes a remark.
        true_means: what True, or 1, means in the mask, "attend" or "block"; None is "attend",
            unless the argument is named after what it blocks, such as key_padding_mask.
        context: for a cross-attention, whose keys and values come from other tokens: a tensor
            (b, j, c), (length j, dimension c), a dimension c, or True for the dimension of x. Only
            its sizes matter. None examines a self-attention.
        num_kv_heads: number of heads of keys and values, g; None finds it.
        cache: makes an empty cache of keys and values. The module is then called twice, on the
            first tokens and on the others, with one cache; `call` gets it instead of a mask.

    Shape:
        x        (b, n, e)
        context  (b, j, c)
        mask     (n, n), (b, n), (b, 1, 1, n), (b, 1, n, n) or broadcastable to (b, h, n, n);
                 with a context (b, j), (b, 1, 1, j), (b, 1, n, j) or broadcastable to (b, h, n, j)
        result   (b, n, e)

    Returns:
        A `Report`: print it, or read `healthy`, `ids` and `explanations`.

    Raises:
        ValueError: not a module or function, a number of heads that does not fit, or an error
            inside the module.
    """
    module = unwrapped("diagnose", module)
    more = {"out_proj": out_proj, "num_kv_heads": num_kv_heads, "weights": weights, "cache": cache}
    options = Options(
        "diagnose",
        num_heads or 1,
        mask=mask,
        causal=causal,
        call=call,
        size=size,
        true_means=true_means,
        context=Context.of("diagnose", context),
        own_weights=weights is not None,
        more=more,
    )
    if num_heads is not None:
        options = replace(options, num_heads=num_heads).checked()
    with undisturbed():
        free = weights is None and cache is None and call is None
        wrapped = kernels(module, num_heads, options, embed_dim) if free else []
        if wrapped:
            found = [
                best(one, replace(options, num_heads=one.num_heads), embed_dim) for one in wrapped
            ]
            return fewest_mistakes(found)
        if num_heads is None:
            options = replace(options, num_heads=heads_of("diagnose", module)).checked()
        if not isinstance(module, nn.Module) and weights is None:
            raise ValueError(
                "diagnose: a function must come with its weights, or take q, k and v, got none. "
                'Pass weights={"q": wq, "k": wk, "v": wv, "out": wo}.'
            )
        return best(module, options, embed_dim)


def assert_healthy(
    module: nn.Module | Callable[..., Any], num_heads: int | None = None, **options: Any
) -> None:
    """Raise an `AssertionError` with the report unless `diagnose` finds a module healthy."""
    __tracebackhide__ = True  # pytest then shows the line of the test, not this one
    report = diagnose(module, num_heads, **options)
    if not report.healthy:
        raise AssertionError(str(report))


def best(
    module: nn.Module | Callable[..., Any], options: Options, embed_dim: int | None = None
) -> Report:
    """Return the report of the way to call the module with which it has the fewest mistakes."""
    reports: list[Report] = []
    try:
        for trial in working(module, options, embed_dim):
            try:
                report = examined(trial)
            except CallFailed as failed:
                shape = (trial.b, trial.n, trial.e)
                raise trial.patient.refusal(failed.error, shape) from failed.error
            if report.healthy:
                cached = options.more.get("cache") is not None
                return with_cache(trial, report) if cached else report
            reports.append(report)
    except ValueError:
        if reports:
            return fewest_mistakes(reports)
        sides = None if options.context or options.call else sides_of(module)
        if sides is None:
            raise
        return best(module, replace(options, context=Context()), embed_dim)
    return fewest_mistakes(reports)


def with_cache(trial: Trial, report: Report) -> Report:
    """Return a report on a module, after two calls with a cache and one call without."""
    x, cut = trial.tokens(), (trial.n + 1) // 2

    def both(x: Tensor) -> Tensor:
        cache = trial.options.more["cache"]()
        first = trial.patient.run(x[:, :cut], cache=(cache, 0))
        return torch.cat([first, trial.patient.run(x[:, cut:], cache=(cache, cut))], dim=1)

    made = both(x)
    checked = (*report.checked, "in two calls, with a cache")
    if same(made, torch.cat([trial.run(x[:, :cut]), trial.run(x)[:, cut:]], dim=1)):
        return replace(report, checked=checked)
    report = replace(report, healthy=False, checked=checked, variants=())
    named = list(trial.patient.module.named_parameters()) if trial.patient.is_module else []
    run = capture(both, [x], [x.flip(0) + 1], named)
    for _, queries, _ in [] if run is None else run.products():
        try:
            side = read_operand(run, queries)
            late = side.rotation is not None and int(run.token[side.ids].min()) == cut
            again = late and starts_at_zero(run, side)
        except Lost:
            continue
        if again:
            return replace(report, explanations=(explain([BUGS["cache-position"]]),))
    return replace(report, failing=("two calls with a cache give what one call gives",))


class WithLayers(nn.Module):
    """Layers around a kernel that takes arguments of these names in this form, from FORMS.

    `width` is d of one head; `ends` says whether the kernel has an output layer.
    """

    def __init__(
        self, kernel: Any, names: tuple[str, ...], form: str, num_heads: int, width: int, ends: bool
    ) -> None:
        super().__init__()
        self.kernel, self.names, self.form, self.num_heads = kernel, names, form, num_heads
        inner = num_heads * width
        self.queries, self.keys, self.values = (nn.Linear(inner, inner) for _ in range(3))
        self.out = nn.Identity() if ends else nn.Linear(inner, inner)

    @property
    def examined(self) -> str:
        """The steps of the kernel, for a report."""
        split = "split, " if self.form == "b n e" and self.num_heads > 1 else ""
        output = "" if isinstance(self.out, nn.Linear) else ", output layer"
        return f"{split}scale, softmax, weighted sum{output}"

    def forward(
        self, x: Tensor, context: Tensor | None = None, mask: Tensor | None = None
    ) -> Tensor:
        """Project tokens, run the kernel, and project its result."""
        source = x if context is None else context
        made = (self.queries(x), self.keys(source), self.values(source))
        arranged = [rearrange(t, FORMS[self.form], h=self.num_heads) for t in made]
        given: dict[str, Any] = dict(zip(self.names, arranged, strict=True))
        parameters = parameters_of(self.kernel)
        where = next((name for name in parameters if is_mask(name)), None)
        if where is not None and (mask is not None or is_needed(parameters[where])):
            given[where] = mask
        return self.out(self._joined(first_tensor(self.kernel(**given)), x))

    def _joined(self, t: Tensor, x: Tensor) -> Tensor:
        """Return a result of the kernel as (b, n, h * d)."""
        b, n, _ = x.shape
        if t.shape[:2] == (b, n):
            return t.flatten(2)
        return rearrange(t, "b h n d -> b n (h d)", h=self.num_heads)


def kernels(
    module: nn.Module | Callable[..., Any],
    num_heads: int | None,
    options: Options,
    embed_dim: int | None,
) -> list[WithLayers]:
    """Return the ways in which a module runs on ready queries, keys and values; [] for none."""
    lower = {name.lower(): name for name in parameters_of(module)}
    names = tuple(next((lower[n] for n in lower if n in kind), "") for kind in NAMES)
    held = module.parameters() if isinstance(module, nn.Module) else ()
    matrices = [p for p in held if p.ndim > 1]
    if not all(names) or len(matrices) > MATRICES:
        return []
    stated = [getattr(module, name, None) for name in HEAD_NAMES]
    known = next((h for h in stated if type(h) is int), None)
    h = num_heads or known or HEADS
    widths = [embed_dim // h] if embed_dim else [p.shape[-1] // h for p in matrices] or [WIDTH]
    forms = sorted(FORMS, key=lambda form: (form != "b n e") == bool(known or h == 1))
    name = getattr(module, "__name__", type(module).__name__)
    found = []
    for form in forms:
        for width in dict.fromkeys(w for w in widths if w > 0):
            made = WithLayers(module, names, form, h, width, bool(matrices))
            made.__class__ = type(name.strip("<>"), (WithLayers,), {})
            if _runs(made, h * width, options):
                found.append(made)
        if found and form != "b n e":
            break
    return found


def _runs(module: WithLayers, e: int, options: Options) -> bool:
    """Return whether a kernel runs, perhaps with a mask that blocks nothing."""
    patient = Patient("diagnose", module)
    b, n = next((b, n) for b, n in ((2, 5), (3, 7)) if module.num_heads not in (b, n))
    x = patient.tokens(b, n, e)
    context = patient.tokens(b, n + 1, e) if options.context is not None else None
    j = n if context is None else n + 1
    for mask in (None, *(blank.made(x, j) for blank in BLANKS)):
        try:
            y = patient.run(x, mask, context)
        except CallFailed:
            continue
        return y.shape == (b, n, e) and bool(y.isfinite().all()) and not _projects(patient, x, mask)
    return False


def _projects(patient: Patient, x: Tensor, mask: Tensor | None) -> bool:
    """Return whether a kernel has layers for its queries, so that it is a whole attention."""
    named = list(patient.module.named_parameters())
    if not any(name.startswith("kernel.") and p.ndim > 1 for name, p in named):
        return False
    run = capture(lambda x: patient.run(x, mask), [x], [x.flip(0) + 1], named)
    if run is None or not run.products():
        return True
    try:
        queries = read_operand(run, run.products()[0][1]).ids
    except Lost:
        return False
    return any("kernel." in name for name in layer_names(run, queries))
