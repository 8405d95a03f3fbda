"""Checks of the exercises of chapter 05: masking."""

from __future__ import annotations

import ast
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from checks.engine.answer import Wrong, source, written
from checks.engine.calls import run
from checks.engine.cases import Case
from checks.engine.compare import difference
from checks.engine.functions import Trials, same_function
from checks.engine.guesses import same_shape
from checks.engine.shortcuts import ATTENTION
from checks.engine.verdict import exercise, open_exercise
from utils import attention as finished
from utils import masking


@exercise("05.1", "Which shape?")
def which_shape(padding_shape, causal_too_shape, windows_too_shape) -> str:
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
    return "the code gives all three shapes"


# ------------------------------------------------------------------------------------- the window


def steps_back(n: int) -> Tensor:
    """How far key j lies behind query i, (n, n)."""
    return torch.arange(n)[:, None] - torch.arange(n)


def window(n: int, width: int) -> Tensor:
    back = steps_back(n)
    return (back >= 0) & (back < width)


WINDOW_MISTAKES = {
    "it is one too wide: the token itself is one of the width keys": lambda n, width: window(
        n, width + 1
    ),
    "it is one too narrow": lambda n, width: window(n, width - 1),
    "it looks ahead, not back: rows are queries, columns are keys": lambda n, width: (
        window(n, width).T
    ),
    "it looks ahead as well as back": lambda n, width: steps_back(n).abs() < width,
    "a token does not see itself": lambda n, width: window(n, width) & (steps_back(n) > 0),
    "a token does not see itself, and the window begins one before it": lambda n, width: (
        window(n, width + 1) & (steps_back(n) > 0)
    ),
    "it is the causal mask: far tokens must be blocked": lambda n, width: steps_back(n) >= 0,
    "the future is open: only far tokens of the past are blocked": lambda n, width: (
        steps_back(n) < width
    ),
    "it is upside down, True means may attend": lambda n, width: ~window(n, width),
    "it allows what lies outside of the window in the past": lambda n, width: (
        steps_back(n) >= width
    ),
}


@exercise("05.2", "A window into the past")
def window_into_the_past(window_mask) -> str:
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
            raise Wrong(
                f"right for other sizes, but not window_mask({n}, {width}): with width 1 a token "
                "sees itself, with width n or more all the past"
            )
    loops = (ast.For, ast.While, ast.comprehension)
    if any(isinstance(node, loops) for node in ast.walk(ast.parse(source(window_mask)))):
        raise Wrong("the values are right, but it loops: compare whole tables of positions instead")
    return compared


# ----------------------------------------------------------------------------------- find the bug


def causal_attention(mask_of: Callable[[Tensor, Tensor], Tensor | None]) -> Callable:
    """An attention with the mask that is made of the real keys (b, 1, 1, n) and the past (n, n)."""

    def attend(q: Tensor, k: Tensor, v: Tensor, real: Tensor) -> Tensor:
        past = masking.causal_mask(q.shape[2])
        mask = mask_of(real[:, None, None, :], past)
        if mask is not None and mask.is_floating_point():
            mask = mask.to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)

    return attend


BUG_MISTAKES = {
    "the mask is still upside down: True must mean may attend": lambda real, past: ~real | ~past,
    "the padding is right, the future is still open and the past blocked": lambda real, past: (
        real & ~past
    ),
    "the past is right, but the real keys are blocked and the padding is open": (
        lambda real, past: ~real & past
    ),
    "a key is open if one of the two rules allows it, and both must: & and not |": (
        lambda real, past: real | past
    ),
    "a key is open if it is real or in the future": lambda real, past: real | ~past,
    "a key is open if it is padding or in the past": lambda real, past: ~real | past,
    "only padding in the future is open": lambda real, past: ~real & ~past,
    "a token does not see itself: the diagonal belongs to the past": lambda real, past: (
        real & past.tril(-1)
    ),
    "a token sees the one after it": lambda real, past: real & ~(~past).triu(2),
    "queries in the padding are blocked, and padding blocks keys only, whoever asks": (
        lambda real, past: real.mT & past
    ),
    "the padding is open: the mask is only causal": lambda real, past: past,
    "the future is open: the mask only knows the padding": lambda real, past: real,
    "there is no mask at all": lambda real, past: None,
    "the mask is added as ones and zeros, for only a bool mask blocks": lambda real, past: (
        real & past
    ).float(),
}


def words_and_lengths(case: Case) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sequences with at least one real token in front, and padding behind."""
    q, k, v = (case.randn("b h n d") for _ in range(3))
    lengths = case.integers("b", 1, case["n"])
    return q, k, v, torch.arange(case["n"]) < lengths[:, None]


@exercise("05.3", "Find the bug")
def find_the_bug(healthy) -> str:
    return same_function(
        healthy,
        causal_attention(lambda real, past: real & past),
        words_and_lengths,
        mistakes={words: causal_attention(mask) for words, mask in BUG_MISTAKES.items()},
    )


# ----------------------------------------------------------------------- ones and zeros, empty rows


def from_ones(mask_of: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A decoder's mask, made of the real keys (b, 1, 1, n) and the past (n, n)."""

    def decoder_mask(ones: Tensor) -> Tensor:
        n = ones.shape[1]
        mask = mask_of(ones.bool()[:, None, None, :], masking.causal_mask(n))
        return mask.expand(len(ones), 1, n, n)

    return decoder_mask


ONES_MISTAKES = {
    "the padding is laid over the queries: whole rows are blocked, and real tokens hear from the "
    "padding": lambda real, past: real.mT & past,
    "the rows of the padding are blocked, too: padding blocks keys, whoever asks": (
        lambda real, past: real & real.mT & past
    ),
    "it is upside down: True must mean may attend": lambda real, past: ~(real & past),
    "the real tokens are blocked and the padding is open": lambda real, past: ~real & past,
    "a query sees the tokens after it and not those before it": lambda real, past: real & past.T,
    "a key is open if one of the two rules allows it, and both must: & and not |": (
        lambda real, past: real | past
    ),
    "a token does not see itself": lambda real, past: real & past.tril(-1),
    "a token sees the one after it": lambda real, past: real & ~(~past).triu(2),
    "the padding is open: the mask is only causal": lambda real, past: past,
    "the future is open: the mask only knows the padding": lambda real, past: real,
    "it counts the ones and takes as many tokens from the front, but padding may stand anywhere": (
        lambda real, past: (torch.arange(real.shape[-1]) < real.sum(dim=-1, keepdim=True)) & past
    ),
}

NO_HEADS = {
    "the axis of the heads is missing, and b would be read as heads": lambda ones: (
        ones.bool()[:, None, :] & masking.causal_mask(ones.shape[1])
    ),
}


def any_mask(case: Case) -> tuple[Tensor]:
    """A mask of two, three or four axes in which some rows and some columns are empty."""
    axes = case.random.choice(["b h i j", "b i j", "i j"])
    mask = case.bools(axes, share=0.4)
    mask[..., case.random.randrange(case["i"]), :] = False
    mask[..., case.random.randrange(case["j"])] = False
    return (mask,)


@exercise("05.4", "From the ones and zeros of a tokenizer")
def ones_and_zeros(decoder_mask, empty_rows) -> str:
    written(decoder_mask, empty_rows)
    compared = same_function(
        decoder_mask,
        from_ones(lambda real, past: real & past),
        lambda case: (case.integers("b n", 0, 2),),
        mistakes=NO_HEADS | {words: from_ones(mask) for words, mask in ONES_MISTAKES.items()},
        loops="forbidden",
        trials=Trials(ones=True),
    )
    same_function(
        empty_rows,
        lambda attn_mask: ~attn_mask.any(dim=-1),
        any_mask,
        mistakes={
            "these are the rows that have a key": lambda mask: mask.any(dim=-1),
            "these are the rows in which some key is blocked; empty means that all are": (
                lambda mask: ~mask.all(dim=-1)
            ),
            "these are the rows in which every key is open": lambda mask: mask.all(dim=-1),
            "these are the keys that nobody sees: the keys are the last axis, and rows run along "
            "it": lambda mask: ~mask.any(dim=-2),
            "the last axis must go: keepdim leaves it there": lambda mask: (
                ~mask.any(dim=-1, keepdim=True)
            ),
            "it looks at the first key alone": lambda mask: ~mask[..., 0],
        },
        loops="forbidden",
        trials=Trials(ones=True),
    )
    return compared


# ------------------------------------------------------------------------------------ the weights


def masked(fill: float) -> Callable[[Tensor, Tensor], Tensor]:
    """A softmax over scores whose masked ones are replaced."""
    return lambda scores, mask: scores.masked_fill(~mask, fill).softmax(dim=-1)


def zeroed(weigh: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """The same with all masked weights set to 0 at the end."""
    return lambda scores, mask: weigh(scores, mask).masked_fill(~mask, 0.0)


WEIGHT_MISTAKES = {
    "a masked score becomes 0, and a score of 0 is a score like any other, -inf is none": (
        masked(0.0)
    ),
    "the weights are masked after the softmax, so the rows no longer sum to 1": (
        lambda scores, mask: scores.softmax(dim=-1) * mask
    ),
    "the mask is upside down: it blocks where it is True": lambda scores, mask: scores.masked_fill(
        mask, -torch.inf
    ).softmax(dim=-1),
    "the mask is upside down, it blocks where it is True": lambda scores, mask: (
        scores.masked_fill(mask, -torch.inf).softmax(dim=-1).nan_to_num()
    ),
    "there is no mask": lambda scores, mask: scores.softmax(dim=-1),
    "softmax runs over the queries (columns sum to 1)": lambda scores, mask: scores.masked_fill(
        ~mask, -torch.inf
    ).softmax(dim=-2),
    "the mask is added as ones and zeros, which only favours the allowed keys a little": (
        lambda scores, mask: (scores + mask).softmax(dim=-1)
    ),
    "a masked score becomes plus infinity, and minus infinity is needed": masked(torch.inf),
    "there is no softmax": lambda scores, mask: scores.masked_fill(~mask, 0.0),
    "the scores are masked, the softmax is missing": lambda scores, mask: scores.masked_fill(
        ~mask, -torch.inf
    ),
}


def scores_and_mask(case: Case) -> tuple[Tensor, Tensor]:
    """Scores and a mask without an empty row; the mask has one of the shapes that broadcast."""
    scores = case.randn("b h i j") * 3
    axes = case.random.choice(["b 1 i j", "b 1 1 j", "h i j", "b h i j"])
    mask = case.bools(axes, share=0.6)
    mask[..., case.random.randrange(case["j"])] = True
    return scores, mask


@exercise("05.5", "Weights under a mask")
def weights_under_a_mask(masked_weights) -> str:
    same_function(
        masked_weights,
        masked(-torch.inf),
        scores_and_mask,
        mistakes=WEIGHT_MISTAKES
        | {
            f"{words}; to set the masked weights to 0 afterwards does not mend it": zeroed(mistake)
            for words, mistake in WEIGHT_MISTAKES.items()
        },
        forbidden=ATTENTION,
    )
    names = ["scores", "attn_mask"]
    extreme_scores(masked_weights, names)
    empty_row(masked_weights, names)
    half_precision(masked_weights, names)
    return (
        "values and gradients agree on 4 random sizes, empty rows are 0 with a finite gradient, "
        "scores of 1000 and float16 do no harm"
    )


def extreme_scores(answer: Callable, names: list[str]) -> None:
    """Raise `Wrong` where a huge score that is masked still has a say, or a fill is too small."""
    mask = torch.tensor([[True, True, False]])
    for scores in ([0.0, 1.0, 1000.0], [-2e9, 1.0 - 2e9, 0.0]):
        given = torch.tensor([[[scores]]], dtype=torch.float64)
        got = run(answer, (given, mask), names)
        if not difference(got, masked(-torch.inf)(given, mask)):
            continue
        if scores[2] > 0:
            why = "a masked score of 1000 spoils its row: mask before the softmax, not after it"
        elif isinstance(got, Tensor) and got.flatten()[-1] > 0.5:
            why = (
                "a row whose scores are near -2,000,000,000 goes to a masked key: what replaces a "
                "masked score must be smaller than every score, and only -inf is"
            )
        else:
            why = (
                "a row whose scores are near -2,000,000,000 is spoiled: either a larger number "
                "replaces a masked score (only -inf is smaller than every score), or the exp of "
                "all of them is 0 (softmax subtracts the largest score of a row first)"
            )
        raise Wrong(f"right for ordinary scores, but {why}")


def empty_row(answer: Callable, names: list[str]) -> None:
    """Raise `Wrong` unless empty rows give 0, other rows stay right, and gradients are finite."""
    case = Case(5)
    scores, mask = case.randn("b h i j"), case.bools("b 1 i j", share=0.6)
    mask[..., 0] = True
    mask[0, :, 1] = mask[-1] = False  # one row of the first sequence, all of the last
    empty = ~mask.any(dim=-1, keepdim=True)
    right = masked(-torch.inf)(scores, mask | empty).masked_fill(empty, 0.0)
    scores.requires_grad_()
    weights = run(answer, (scores, mask), names)
    if wrong := difference(weights, right):

        def why() -> str | None:
            if not isinstance(weights, Tensor) or weights.shape != right.shape:
                return None
            rows = weights[empty.expand_as(right[..., :1])[..., 0]]
            if rows.isnan().any():
                return (
                    "the softmax of an empty row divides 0 by 0, which is NaN; set the weights "
                    "of such a row to 0 after the softmax"
                )
            if rows.any():
                return (
                    "an empty row gets weights on masked keys; set the weights of such a row to 0 "
                    "after the softmax"
                )
            return "the empty rows are 0, but other rows changed"

        raise Wrong(f"right as long as every row has a key, but with empty rows: {wrong}", why)
    filled = ~empty.expand_as(weights[..., :1])[..., 0]
    loss = (weights * case.randn("b h i j"))[filled].sum()
    try:
        (gradient,) = torch.autograd.grad(loss, scores)
    except RuntimeError:
        raise Wrong(
            "the weights are right, empty rows included, but with an empty row no gradient "
            "reaches the scores"
        ) from None
    if not gradient.isfinite().all():
        raise Wrong(
            "the weights are right, empty rows included, but their gradient is NaN: a 0 was "
            "put over a NaN, and going back 0 times NaN is NaN again. Replace the masked scores "
            "with masked_fill instead of adding to them, or leave the scores of an empty row as "
            "they are"
        )


def half_precision(answer: Callable, names: list[str]) -> None:
    """Raise `Wrong` unless float16 scores give float16 weights."""
    case = Case(6, torch.float16)
    scores, mask = scores_and_mask(case)
    right = masked(-torch.inf)(scores, mask)
    try:
        wrong = difference(run(answer, (scores, mask), names), right)
    except Wrong as raised:
        wrong = raised.what
    if wrong:
        raise Wrong(
            f"right for float64 and float32, not for float16: {wrong}. The largest float16 is "
            "65504; -inf fits into every dtype"
        )


# ---------------------------------------------------------------------------------- the leak test


class Layer(nn.Module):
    """A layer (n, e) -> (n, e) of which it is known who hears of whom; one output number stays 0.

    Args:
        graph: bool (n, n), True = output i depends on token j.
        strength: how much each token weighs where the graph is True, (n, n).
        e: width of a token.
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


class NormalisedInputs(Layer):
    """It does not see that a token grows by the same number everywhere; it writes one number."""

    def read(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:])

    def write(self, y: Tensor) -> Tensor:
        return F.pad(y[:, :1] * 1000, (0, self.e - 1))


class NormalisedOutputs(Layer):
    """The numbers of each output sum to 0."""

    def write(self, y: Tensor) -> Tensor:
        return super().write(F.layer_norm(y, y.shape[-1:]))


class FaintLeak(Layer):
    """It is causal but for one faint look ahead, and reads half of each token."""

    def read(self, x: Tensor) -> Tensor:
        return x * (torch.arange(self.e) >= self.e // 2)


class TwoWindows(Layer):
    """Two layers with a window, one behind the other; the first number of each output stays 0."""

    def __init__(self, graph: Tensor, strength: Tensor, e: int):
        super().__init__((graph.float() @ graph.float()) > 0, strength, e)
        self.first, self.second = Layer(graph, strength, e), Layer(graph, strength, e)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.second(self.first(x)).roll(1, dims=-1)


class CausalAttention(nn.Module):
    """The attention of chapter 04 with the causal mask."""

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
    """Makes a layer of one kind and a sequence for it."""

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


def by_change(
    change: Callable[[Tensor], Tensor],
    threshold: float = 1e-6,
    moved: Callable[[Tensor], Tensor] = lambda difference: difference.abs().amax(dim=-1),
    restore: bool = True,
) -> Callable[[nn.Module, Tensor], Tensor]:
    """A leak test that changes one token after the other."""

    def influences(layer: nn.Module, x: Tensor) -> Tensor:
        before, table, changed = layer(x), [], x
        for j in range(len(x)):
            changed = (x if restore else changed).clone()
            changed[j] = change(changed[j])
            table.append(moved(layer(changed) - before) > threshold)
        return torch.stack(table, dim=1)

    return influences


def by_sums_of_gradients(layer: nn.Module, x: Tensor) -> Tensor:
    """A leak test that adds up the gradients."""
    return torch.autograd.functional.jacobian(layer, x).sum(dim=(1, 3)).abs() > 1e-8


def by_gradient_of_sums(layer: nn.Module, x: Tensor) -> Tensor:
    """A leak test that adds up the numbers of an output before it asks for gradients."""
    sums = torch.autograd.functional.jacobian(lambda x: layer(x).sum(dim=-1), x)
    return sums.abs().amax(dim=-1) > 1e-9


def known(change: Callable[[Tensor], Tensor]) -> Callable[[nn.Module, Tensor], Tensor]:
    """What the graph of the layer becomes by a mistake."""
    return lambda layer, x: change(layer.graph)


def other(token: Tensor) -> Tensor:
    """Another token."""
    return token.flip(0) * 1.7 + torch.linspace(-1, 1, len(token)).to(token.dtype).square()


LEAK_MISTAKES = {
    "rows and columns are exchanged: row i is the output, column j the token that changes": known(
        lambda graph: graph.T
    ),
    "it is upside down: True where the output depends on the token": known(lambda graph: ~graph),
    "an output that depends on its own token counts, too: the diagonal": known(
        lambda graph: graph & ~torch.eye(len(graph), dtype=torch.bool)
    ),
    "all tokens were changed at once; change token j alone to see who depends on it": known(
        lambda graph: graph.any(dim=-1, keepdim=True).expand_as(graph)
    ),
    "the changes pile up: put token j back before you change the next": by_change(
        other, restore=False
    ),
    "the same number was added to all of the token, and a layer that normalises does not see "
    "that; change it at random": by_change(lambda token: token + 1),
    "the numbers of an output, or their changes, were added up with their signs; where a layer "
    "normalises they always sum to 0": by_gradient_of_sums,
    "the gradients were added up with their signs, and where a layer normalises they sum to 0": (
        by_sums_of_gradients
    ),
    "it looks at the first number of each output alone": by_change(
        other, moved=lambda difference: difference[:, 0].abs()
    ),
    "only the first number of each token was changed, and this layer reads others": by_change(
        lambda token: torch.cat([token[:1] + 1, token[1:]])
    ),
    "an output counts only if all of its numbers moved; one is enough": by_change(
        other, moved=lambda difference: difference.abs().amin(dim=-1)
    ),
    "a faint dependence is missed: what is not exactly 0 counts (allow 1e-6 for rounding)": (
        by_change(other, threshold=1e-2)
    ),
}


# Each kind of layer, and what to think of where no known mistake explains the answer.
STRANGERS = {
    causal_attention_layer: None,
    stranger(NormalisedInputs): None,
    stranger(NormalisedOutputs): "this layer normalises its outputs: the numbers of each sum to 0 "
    "but for rounding, and the gradient of that sum is as useless",
    stranger(TwoWindows): None,
    stranger(FaintLeak): "one output looks ahead, with a weight of 1e-4",
}


def truth(layer: nn.Module, x: Tensor) -> Tensor:
    """Return who hears of whom; raise `Wrong` when the answer did not even run the layer."""
    if not layer.calls:
        raise Wrong("nothing was measured: it never calls the layer")
    return layer.graph


def leak_mistake(influences: Callable) -> str | None:
    """Name the mistake that finds what the answer finds, in layers of all kinds."""

    def gives(mistake: Callable) -> bool:
        for make in STRANGERS:
            for seed in (0, 1):
                layer, x = make(Case(seed))
                try:
                    if difference(influences(layer, x.clone()), mistake(layer, x)):
                        return False
                except (Exception, SystemExit):
                    return False
        return True

    for words, mistake in LEAK_MISTAKES.items():
        if gives(mistake):
            return words
    if sign_matters(influences):
        return "an output that falls counts as well as one that grows: take the absolute value"
    return None


def sign_matters(influences: Callable) -> bool:
    """Say whether the answer finds something else in a layer whose outputs are turned around."""
    layer, x = stranger(NormalisedInputs)(Case(0))
    tables = []
    for sign in (1, -1):
        torch.manual_seed(0)
        try:
            tables.append(influences(lambda x, sign=sign: sign * layer(x), x.clone()))
        except (Exception, SystemExit):
            return False
    shape = (len(x), len(x))
    if any(not isinstance(t, Tensor) or t.shape != shape or t.dtype != torch.bool for t in tables):
        return False
    return not torch.equal(*tables)


@exercise("05.6", "Who hears of whom, measured")
def who_hears_of_whom(influences, tokens_back) -> str:
    written(influences, tokens_back)
    for make, hint in STRANGERS.items():
        try:
            same_function(influences, truth, make, trials=Trials(2))
        except Wrong as wrong:
            if wrong.why:  # the mistake must explain what the answer says of layers of all kinds
                wrong.why = lambda hint=hint: leak_mistake(influences) or hint
            raise
    same_function(
        tokens_back,
        lambda width, num_layers: num_layers * (width - 1),
        lambda case: (case["w"], case["l"]),
        mistakes={
            "a layer with the window width looks width - 1 tokens back, for the token itself is "
            "one of the keys": lambda width, num_layers: width * num_layers,
            "that is one layer alone; the next one gathers from what the first has gathered": (
                lambda width, num_layers: width - 1
            ),
            "this counts the token itself": lambda width, num_layers: num_layers * (width - 1) + 1,
            "steps of several layers add up, they do not multiply": lambda width, num_layers: (
                (width - 1) ** num_layers
            ),
            "steps of several layers add up, they do not multiply, and one layer looks width - 1 "
            "tokens back": lambda width, num_layers: width**num_layers,
            "one layer less was counted than there are": lambda width, num_layers: (
                (num_layers - 1) * (width - 1)
            ),
        },
    )
    return (
        "your test finds every dependence of five kinds of layers, one of 1e-4 included, and "
        "num_layers windows reach as far back as you say"
    )


open_exercise("05.7", "A rule of your own")
