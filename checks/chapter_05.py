"""Checks of the exercises of chapter 05: masking."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from checks.engine import explain
from checks.engine.answer import Wrong, functions_of, noticed, source, written
from checks.engine.calls import run
from checks.engine.cases import Case
from checks.engine.compare import difference
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_shape
from checks.engine.message import Message, message
from checks.engine.patches import patches
from checks.engine.shortcuts import ATTENTION, SOFTMAX
from checks.engine.verdict import exercise, open_exercise
from utils import attention as finished
from utils import masking


@exercise("05.1", "Which shape?")
def which_shape(padding_shape, causal_too_shape, windows_too_shape) -> Message:
    written(padding_shape, causal_too_shape, windows_too_shape)
    padding = masking.padding_mask(torch.tensor([5, 3, 2]), 5)
    causal_too = padding & masking.causal_mask(5)
    windows_too = causal_too & torch.ones(4, 5, 5, dtype=torch.bool)
    for guess, mask in (
        (padding_shape, padding),
        (causal_too_shape, causal_too),
        (windows_too_shape, windows_too),
    ):
        same_shape(guess, mask.shape, "b h i j")
    return message("gives-all-three-shapes")


def window(n: int, width: int) -> Tensor:
    back = torch.arange(n)[:, None] - torch.arange(n)
    return (back >= 0) & (back < width)


BACK = "(back >= 0) & (back < width)"
WINDOW_MISTAKES = patches(
    window,
    {
        "window-too-wide": ("< width", "<= width"),
        "window-too-narrow": ("< width", "< width - 1"),
        "window-looks-ahead": (BACK, f"({BACK}).T"),
        "window-both-ways": (BACK, "back.abs() < width"),
        "window-without-itself": (">= 0", "> 0"),
        "window-begins-one-before": (">= 0", "> 0", "< width", "<= width"),
        "window-is-causal": (BACK, "back >= 0"),
        "window-future-open": (BACK, "back < width"),
        "past-and-so-many-ahead": (BACK, "back > -width"),
        "everything-open": (BACK, "back < n"),
        "window-upside-down": (BACK, f"~({BACK})"),
        "outside-of-window": (BACK, "back >= width"),
        **{message("window-always-so-wide", width=k): ("< width", f"< {k}") for k in range(1, 8)},
    },
)


@exercise("05.2", "A window into the past")
def window_into_the_past(window_mask) -> Message:
    compared = same_function(
        window_mask,
        window,
        lambda case: (case["n"] + case["w"], case["w"]),
        mistakes=WINDOW_MISTAKES,
        loops="forbidden",
    )
    for n, width in ((1, 1), (5, 1), (5, 5), (4, 7)):
        got = run(window_mask, (n, width), ["n", "width"])
        if not (isinstance(got, Tensor) and torch.equal(got, window(n, width))):
            raise Wrong(message("window-at-the-edge", n=n, width=width))
    loops = (ast.For, ast.While, ast.comprehension)
    text = "\n".join(map(source, functions_of(window_mask)))
    if any(isinstance(node, loops) for node in ast.walk(ast.parse(text))):
        noticed(Wrong("loops-over-positions"))
    return compared


def causal_attention(q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
    keys, past = real[:, None, None, :], masking.causal_mask(q.shape[2])
    mask = keys & past
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


MASK = "keys & past"
# Of the real keys (b, 1, 1, n) and the past (n, n).
MASK_MISTAKES = {
    "or-instead-of-and": (MASK, "keys | past"),
    "sees-itself-and-later": (MASK, "keys & past.mT"),
    "token-without-itself": (MASK, "keys & past.tril(-1)"),
    "sees-one-ahead": (MASK, "keys & ~(~past).triu(2)"),
    "only-causal": (MASK, "past"),
    "only-padding": (MASK, "keys"),
}
BUG_MISTAKES = patches(
    causal_attention,
    {
        "mask-still-upside-down": (MASK, "~keys | ~past"),
        "only-padding-mended": (MASK, "keys & ~past"),
        "only-past-mended": (MASK, "~keys & past"),
        "real-or-future": (MASK, "keys | ~past"),
        "padding-or-past": (MASK, "~keys | past"),
        "padding-in-the-future": (MASK, "~keys & ~past"),
        "padded-queries-blocked": (MASK, "keys.mT & past"),
        **MASK_MISTAKES,
        "mask-not-used": ("=mask", "=None"),
        "mask-as-ones-and-zeros": ("=mask", "=mask.to(q.dtype)"),
        "scores-not-divided": ("=mask", "=mask, scale=1"),
        "padded-values-zero": (MASK, "past", "k, v,", "k, v * keys.mT,"),
    },
)


def words_and_lengths(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sequences with at least one real token, then padding."""
    q, k, v = (case.randn("b h n d") for _ in range(3))
    lengths = case.integers("b", 1, case["n"])
    return q, k, v, torch.arange(case["n"]) < lengths[:, None]


@exercise("05.3", "Find the bug")
def find_the_bug(healthy) -> Message:
    compared = same_function(healthy, causal_attention, words_and_lengths, mistakes=BUG_MISTAKES)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            run(healthy, words_and_lengths(Case(0)))
    except Wrong:
        raise Wrong("not-on-every-backend") from None
    return compared


def masked_decoder(ones: Tensor) -> Tensor:
    keys, past = ones.bool()[:, None, None, :], masking.causal_mask(ones.shape[1])
    mask = keys & past
    return mask.expand(len(ones), 1, *past.shape)


COUNTED = "(torch.arange(len(past)) < keys.sum(dim=-1, keepdim=True)) & past"
ONES_MISTAKES = patches(
    masked_decoder,
    {
        "axis-of-heads-missing": ("None, None", "None", ".expand(len(ones), 1, *past.shape)", ""),
        "padding-over-queries": (MASK, "keys.mT & past"),
        "padded-rows-blocked-too": (MASK, "keys & keys.mT & past"),
        "mask-upside-down": (MASK, "~(keys & past)"),
        "real-blocked-padding-open": (MASK, "~keys & past"),
        **MASK_MISTAKES,
        "ones-are-counted": (MASK, COUNTED),
    },
)
EMPTY_MISTAKES = {
    "rows-with-a-key": lambda mask: mask.any(dim=-1),
    "rows-with-a-blocked-key": lambda mask: ~mask.all(dim=-1),
    "rows-all-open": lambda mask: mask.all(dim=-1),
    "rows-with-one-key": lambda mask: mask.sum(dim=-1) == 1,
    "keys-nobody-sees": lambda mask: ~mask.any(dim=-2),
    "keepdim-left-an-axis": lambda mask: ~mask.any(dim=-1, keepdim=True),
    "first-key-alone": lambda mask: ~mask[..., 0],
    "last-key-alone": lambda mask: ~mask[..., -1],
    "one-answer-for-all": lambda mask: ~mask.any(),
    "mask-turned-round": lambda mask: ~mask,
}


def any_mask(case: Case) -> tuple[Tensor]:
    """A mask of two, three or four axes; some rows and some columns are all False."""
    axes = case.random.choice(["b h i j", "b i j", "i j"])
    mask = case.bools(axes, share=0.4)
    mask[..., case.random.randrange(case["i"]), :] = False
    mask[..., case.random.randrange(case["j"])] = False
    return (mask,)


@exercise("05.4", "From the ones and zeros of a tokenizer")
def ones_and_zeros(decoder_mask, empty_rows) -> Message:
    written(decoder_mask, empty_rows)
    compared = same_function(
        decoder_mask,
        masked_decoder,
        lambda case: (case.integers("b n", 0, 2),),
        mistakes=ONES_MISTAKES,
        loops="forbidden",
        trials=Trials(ones=True),
    )
    same_function(
        empty_rows,
        lambda attn_mask: ~attn_mask.any(dim=-1),
        any_mask,
        mistakes=EMPTY_MISTAKES,
        loops="forbidden",
        trials=Trials(ones=True),
    )
    return compared


Weighing = Callable[[Tensor, Tensor], Tensor]


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    low = scores.masked_fill(~mask, -torch.inf)
    largest = low.amax(dim=-1, keepdim=True)
    powers = (low - largest).exp()
    total = powers.sum(dim=-1, keepdim=True)
    return powers / total


def zeroed(weigh: Weighing) -> Weighing:
    """The same with all masked weights set to 0 at the end: a fully masked row gets 0."""
    return lambda scores, mask: weigh(scores, mask).masked_fill(~mask, 0.0)


weighed = zeroed(masked_softmax)
HIDE, SHARES = ".masked_fill(~mask, -torch.inf)", "powers / total"
POWERS = "powers = (low - largest).exp()"
WEIGHT_MISTAKES = patches(
    masked_softmax,
    {
        "masked-score-is-zero": ("-torch.inf", "0.0"),
        "masked-after-softmax": (HIDE, "", SHARES, "powers / total * mask"),
        "weights-upside-down": ("~mask", "mask"),
        "weights-upside-down-no-nan": ("~mask", "mask", SHARES, "(powers / total).nan_to_num()"),
        "weights-without-mask": (HIDE, ""),
        "softmax-over-queries": ("=-1", "=-2"),
        "sum-over-queries": ("sum(dim=-1", "sum(dim=-2"),
        "sum-over-everything": ("sum(dim=-1, keepdim=True)", "sum()"),
        "scores-plus-ones": (HIDE, " + mask"),
        "masked-score-is-infinite": ("-torch.inf", "torch.inf"),
        "weights-not-divided": (SHARES, "powers"),
        "powers-alone": (SHARES, "scores.exp() * mask"),
        "no-exp": ("-torch.inf", "0.0", POWERS, "powers = low"),
        "no-exp-and-no-sum": ("-torch.inf", "0.0", SHARES, "low"),
        "scores-only-masked": (SHARES, "low"),
        "powers-of-two": (POWERS, "powers = torch.exp2(low)"),
        "weights-sum-to-nothing": (SHARES, "low.log_softmax(dim=-1)"),
    },
)


def scores_and_mask(case: Case) -> tuple[Tensor, Tensor]:
    """Scores and a mask with a key in every row, in one of the shapes that broadcast."""
    scores = case.randn("b h i j") * 3
    axes = case.random.choice(["b 1 i j", "b 1 1 j", "h i j", "b h i j"])
    mask = case.bools(axes, share=0.6)
    mask[..., case.random.randrange(case["j"])] = True
    return scores, mask


@exercise("05.5", "Weights under a mask")
def weights_under_a_mask(masked_weights) -> Message:
    same_function(
        masked_weights,
        masked_softmax,
        scores_and_mask,
        mistakes=WEIGHT_MISTAKES
        | {
            message("and-masked-again", what=message(cause)): zeroed(mistake)
            for cause, (mistake,) in WEIGHT_MISTAKES.items()
        },
        forbidden=SOFTMAX | ATTENTION,
    )
    for seen in (extreme_scores, empty_row, finite_gradient, half_precision):
        seen(masked_weights, ["scores", "attn_mask"])
    return message("weights-hold-all-four")


EXTREMES = ((0.0, 1.0, 1000.0), (1000.0, 1001.0, 0.0), (-4000.0, 0.0, -100.0), (-1e5, 1 - 1e5, 0.0))
# What is wrong with powers that are right for ordinary scores.
EXTREME_MISTAKES = {
    "nothing-is-subtracted": (" - largest", ""),
    "powers-times-mask": (POWERS, "powers = scores.exp() * mask"),
    "largest-of-all-keys": ("low.amax", "scores.amax"),
    "largest-of-masked-as-zero": ("low.amax", "(scores * mask).amax"),
    "largest-of-all-rows": ("amax(dim=-1, keepdim=True)", "amax()"),
    "mean-is-subtracted": ("low.amax", "scores.mean"),
    "mean-of-allowed-is-subtracted": ("low.amax", "scores.masked_fill(~mask, torch.nan).nanmean"),
    "fill-too-small": ("-torch.inf", "-1e4"),
}
UNLESS_EMPTY = ("/ total", "/ total.masked_fill(total == 0, 1.0)")


def extreme_scores(answer: Callable, names: list[str]) -> None:
    """Raise `Wrong` where a huge or tiny score, masked or not, spoils its row."""
    mask = torch.tensor([[True, True, False]])
    rows = [torch.tensor([[[row]]], dtype=torch.float64) for row in EXTREMES]
    rows.append(torch.cat([rows[1], -rows[1]], dim=2))  # each is right alone
    results = [run(answer, (row.clone(), mask), names) for row in rows]

    def gives(wrong: Weighing, mend: Callable) -> bool:
        made = (mend(wrong(row, mask)) for row in rows)
        return all(difference(got, one) is None for got, one in zip(results, made, strict=True))

    def why() -> str | None:
        mends = (lambda t: t, lambda t: t.masked_fill(~mask, 0.0), torch.nan_to_num)
        wrong = {cause: [p, (*p, *UNLESS_EMPTY)] for cause, p in EXTREME_MISTAKES.items()}
        for cause, ways in patches(masked_softmax, wrong).items():
            if any(gives(*way) for way in product(ways, mends)):
                return cause
        return None

    for got, row in zip(results, rows, strict=True):
        if difference(got, weighed(row, mask)):
            if row.shape[2] > 1:
                raise Wrong("wrong-beside-larger-scores", why)
            *allowed, hidden = row.flatten().tolist()
            raise Wrong(message("wrong-for-this-row", row=allowed, masked=hidden), why)


def rows_with_none(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, a mask with fully masked rows (one of the first sequence, all of the last), which."""
    scores, mask = case.randn("b h i j"), case.bools("b 1 i j", share=0.6)
    mask[..., 0] = True
    mask[0, :, 1] = mask[-1] = False
    return scores, mask, ~mask.any(dim=-1, keepdim=True)


def empty_row(answer: Callable, names: list[str]) -> None:
    """Raise `Wrong` unless fully masked rows give 0 and the other rows stay right."""
    scores, mask, empty = rows_with_none(Case(5))
    weights = run(answer, (scores, mask), names)
    if wrong := difference(weights, weighed(scores, mask)):

        def why() -> str | None:
            if not isinstance(weights, Tensor) or weights.shape != scores.shape:
                return None
            rows = weights[empty.expand_as(scores[..., :1])[..., 0]]
            if rows.isnan().any():
                return "empty-row-is-nan"
            return "empty-row-has-weights" if rows.any() else "other-rows-changed"

        raise Wrong(message("wrong-with-empty-rows", what=wrong), why)


def finite_gradient(answer: Callable, names: list[str]) -> None:
    """Raise `Wrong` unless the gradient of all other rows is finite when some are fully masked."""
    case = Case(5)
    scores, mask, empty = rows_with_none(case)
    weights = run(answer, (scores.requires_grad_(), mask), names)
    filled = ~empty.expand_as(weights[..., :1])[..., 0]
    loss = (weights * case.randn("b h i j"))[filled].sum()
    try:
        (gradient,) = torch.autograd.grad(loss, scores)
    except RuntimeError:
        raise Wrong("no-gradient-with-empty-rows") from None
    if not gradient.isfinite().all():
        raise Wrong("gradient-nan-with-empty-rows")


def half_precision(answer: Callable, names: list[str]) -> None:
    """Raise `Wrong` unless float16 scores give float16 weights, 0 in fully masked rows too."""
    scores, mask, _ = rows_with_none(Case(6, torch.float16))
    try:
        wrong = difference(run(answer, (scores, mask), names), weighed(scores, mask))
    except Wrong as raised:
        wrong = raised.what
    if wrong:
        raise Wrong(message("wrong-for-half-precision", what=wrong))


class Layer(nn.Module):
    """A layer (n, e) -> (n, e) with a known dependence graph; one output number stays 0.

    Args:
        graph: bool (n, n), True = output i depends on token j.
        strength: the weight of each token where the graph is True, (n, n).
        e: embedding dimension.
    """

    def __init__(self, graph: Tensor, strength: Tensor, e: int):
        super().__init__()
        self.graph, self.strength, self.e, self.calls = graph, strength, e, 0
        generator = torch.Generator().manual_seed(e)
        self.mixer = torch.randn(e, e - 1, generator=generator, dtype=torch.float64) / e**0.5

    def read(self, x: Tensor) -> Tensor:
        """What the layer takes from its tokens."""
        return x

    def write(self, y: Tensor) -> Tensor:
        """The outputs, from what was gathered."""
        return F.pad(y, (0, 1))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        features = torch.tanh(self.read(x) @ self.mixer.to(x.dtype))
        return self.write((self.graph * self.strength).to(x.dtype) @ features)


class NormalizedInputs(Layer):
    """It does not change when a number is added to a whole token or multiplies it.

    It writes one number.
    """

    said = "layer-with-normalized-inputs"

    def read(self, x: Tensor) -> Tensor:
        centred = x - x.mean(dim=-1, keepdim=True)
        return centred / centred.norm(dim=-1, keepdim=True).clamp_min(1e-12)

    def write(self, y: Tensor) -> Tensor:
        return F.pad(y[:, :1] * 1000, (0, self.e - 1))


class UnitInputs(NormalizedInputs):
    """It changes when a number is added to a whole token, but not when one multiplies it.

    It reads all numbers of a token but the last.
    """

    said = "layer-with-unit-inputs"

    def read(self, x: Tensor) -> Tensor:
        x = x * (torch.arange(self.e) < self.e - 1)
        return x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)


class NormalizedOutputs(Layer):
    """The numbers of each output sum to 0."""

    said = "layer-with-normalized-outputs"

    def write(self, y: Tensor) -> Tensor:
        return super().write(F.layer_norm(y, y.shape[-1:]))


class FaintLeak(Layer):
    """It is causal except for one faint leak, reads half a token, and writes one length."""

    said = "layer-with-a-faint-leak"

    def read(self, x: Tensor) -> Tensor:
        return x * (torch.arange(self.e) >= self.e // 2)

    def write(self, y: Tensor) -> Tensor:
        return super().write(F.normalize(y, dim=-1) * self.e)


class TwoWindows(Layer):
    """Two successive layers with a window; the first number of each output stays 0."""

    said = "layers-with-windows"

    def __init__(self, graph: Tensor, strength: Tensor, e: int):
        super().__init__((graph.float() @ graph.float()) > 0, strength, e)
        self.first, self.second = Layer(graph, strength, e), Layer(graph, strength, e)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.second(self.first(x)).roll(1, dims=-1)


class CausalAttention(nn.Module):
    """The attention of chapter 04 with the causal mask."""

    said = "layer-of-causal-attention"

    def __init__(self, graph: Tensor, heads: int, e: int):
        super().__init__()
        self.graph, self.calls = graph, 0
        generator = torch.Generator().manual_seed(e)
        self.attend = finished.MultiHeadAttention(e, heads)
        for parameter in self.attend.parameters():
            parameter.data = torch.randn(parameter.shape, generator=generator) * e**-0.5

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        weights = {name: p.to(x.dtype) for name, p in self.attend.named_parameters()}
        return functional_call(self.attend, weights, (x[None],), {"attn_mask": self.graph})[0]


def causal_attention_layer(case: Case) -> tuple[nn.Module, Tensor]:
    """The attention of chapter 04 and a sequence for it."""
    x = case.randn("n (h d)")
    return CausalAttention(masking.causal_mask(len(x)), case["h"], x.shape[1]), x


def stranger(build: type[Layer]) -> Callable[[Case], tuple[nn.Module, Tensor]]:
    """Make a layer of one kind and a sequence for it."""

    def make(case: Case) -> tuple[nn.Module, Tensor]:
        x = case.randn("n (2 e)")
        n, e = x.shape
        strength = torch.ones(n, n)
        graph = torch.rand(n, n, generator=case.generator) < 0.5
        if build is TwoWindows:
            graph = window(n, 2)
        if build is FaintLeak:
            graph, i = masking.causal_mask(n), case.random.randrange(n - 1)
            graph[i, i + 1], strength[i, i + 1] = True, 1e-4
        return build(graph, strength, e), x

    return make


def other(token: Tensor) -> Tensor:
    """A different token."""
    return token.flip(0) * 1.7 + torch.linspace(-1, 1, len(token)).to(token.dtype).square()


def by_change(layer: nn.Module, x: Tensor) -> Tensor:
    """The leak test that changes one token after the other."""
    before, table = layer(x), []
    for j in range(len(x)):
        changed = x.clone()
        changed[j] = other(x[j])
        moved = (layer(changed) - before).abs().amax(dim=-1)
        table.append(moved > 1e-6)
    return torch.stack(table, dim=1)


def by_gradient(layer: nn.Module, x: Tensor) -> Tensor:
    """The leak test that computes the gradient of each number of the outputs."""
    gradient = torch.autograd.functional.jacobian(lambda x: layer(x), x)
    return gradient.abs().amax(dim=(1, 3)) > 1e-9


CHANGE, SIZE = "changed[j] = other(x[j])", ".abs().amax(dim=-1)"
SUMMED = (".abs().amax(dim=(1, 3))", ".sum(dim=(1, 3)).abs()")
LEAK_MISTAKES = {
    "table-transposed": lambda layer, x: layer.graph.T,
    "table-upside-down": lambda layer, x: ~layer.graph,
    "diagonal-missing": lambda layer, x: layer.graph & ~torch.eye(len(x), dtype=torch.bool),
    "all-tokens-changed": lambda layer, x: layer.graph.any(-1, keepdim=True).expand(-1, len(x)),
    **patches(
        by_change,
        {
            "changed-from-here-on": (
                CHANGE,
                "changed[j:] = other(x[j:].flatten()).view_as(x[j:])",
            ),
            "changes-pile-up": ("x.clone()", "changed if j else x.clone()"),
            "same-number-added": (CHANGE, "changed[j] += 1"),
            "token-only-scaled": (CHANGE, "changed[j] *= 2"),
            "first-number-of-output": (SIZE, "[:, 0].abs()"),
            "last-number-of-output": (SIZE, "[:, -1].abs()"),
            "first-number-of-token": (CHANGE, "changed[j, 0] += 1"),
            "last-number-of-token": (CHANGE, "changed[j, -1] += 1"),
            "all-numbers-must-move": ("amax", "amin"),
            "faint-is-missed": ("1e-6", "1e-2"),
        },
    ),
    **patches(
        by_gradient,
        {
            "outputs-summed": ("layer(x)", "layer(x).sum(dim=-1, keepdim=True)"),
            "gradients-summed": SUMMED,
            "squares-and-gradients-summed": (
                *SUMMED,
                "layer(x)",
                "layer(x).square().sum(dim=-1, keepdim=True)",
            ),
        },
    ),
}


# Each kind of layer, and a hint for answers that no known mistake explains.
STRANGERS = {
    causal_attention_layer: None,
    stranger(NormalizedInputs): "layer-normalizes-inputs",
    stranger(UnitInputs): "layer-normalizes-inputs",
    stranger(NormalizedOutputs): "layer-normalizes-outputs",
    stranger(TwoWindows): None,
    stranger(FaintLeak): "layer-leaks-faintly",
}


def truth(layer: nn.Module, x: Tensor) -> Tensor:
    """Return the dependence graph; raise `Wrong` when the answer did not even run the layer."""
    if not layer.calls:
        raise Wrong("layer-never-called")
    return layer.graph


def strangers() -> Iterator[tuple[nn.Module, Tensor]]:
    """Layers of all kinds, two of each, with a sequence."""
    for make in STRANGERS:
        for seed in (0, 1):
            yield make(Case(seed))


def leak_mistake(influences: Callable) -> Message | str | None:
    """Name the mistake that finds what the answer finds, in layers of all kinds."""
    found = [explain.result(influences, given) for given in strangers()]
    for cause, mistake in explain.versions(LEAK_MISTAKES):
        pairs = zip(found, strangers(), strict=True)
        if all(difference(table, mistake(layer, x)) is None for table, (layer, x) in pairs):
            return cause
    return "sign-matters" if sign_matters(influences) else None


def sign_matters(influences: Callable) -> bool:
    """Say whether the answer gives a different graph for a layer with negated outputs."""
    layer, x = stranger(NormalizedInputs)(Case(0))
    tables = []
    for sign in (1, -1):
        torch.manual_seed(0)
        tables.append(explain.result(influences, (lambda x, sign=sign: sign * layer(x), x)))
    shape = (len(x), len(x))
    if any(not isinstance(t, Tensor) or t.shape != shape or t.dtype != torch.bool for t in tables):
        return False
    return not torch.equal(*tables)


BACK_MISTAKES = {
    "width-counts-itself": lambda width, num_layers: width * num_layers,
    "width-counts-itself-in-each-layer": lambda width, num_layers: width * num_layers - 1,
    "one-layer-alone": lambda width, num_layers: width - 1,
    "two-layers-alone": lambda width, num_layers: 2 * (width - 1),
    "counts-the-token-itself": lambda width, num_layers: num_layers * (width - 1) + 1,
    "steps-multiplied": lambda width, num_layers: (width - 1) ** num_layers,
    "widths-multiplied": lambda width, num_layers: width**num_layers,
    "one-layer-less": lambda width, num_layers: (num_layers - 1) * (width - 1),
    "one-step-a-layer": lambda width, num_layers: width + num_layers - 1,
    "one-step-a-layer-more": lambda width, num_layers: width - 1 + num_layers - 1,
}


@exercise("05.6", "Who depends on whom, measured")
def who_hears_of_whom(influences, tokens_back) -> Message:
    written(influences, tokens_back)
    for make, hint in STRANGERS.items():
        try:
            same_function(influences, truth, make, trials=Trials(2))
        except Wrong as wrong:
            if wrong.why:  # the mistake must explain the answer for layers of all kinds
                wrong.why = lambda hint=hint: leak_mistake(influences) or hint
            raise
    same_function(
        tokens_back,
        lambda width, num_layers: num_layers * (width - 1),
        lambda case: (case["w"], case["l"]),
        mistakes=BACK_MISTAKES,
    )
    return message("finds-every-dependence")


open_exercise("05.7", "A rule of your own")
