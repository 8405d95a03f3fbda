"""Scores and their scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor

from attention_clinic.bugs.bending import nearness
from attention_clinic.bugs.differences import halved
from attention_clinic.bugs.projections import Setting
from attention_clinic.engine.forms import Form, Stage, State, bug, observed, variant

WIDTHS_SEEN = (4, 8, 16, 32, 64, 100, 128, 256, 512, 768, 1024)
ROUNDED = 1e-5  # the relative difference of a factor that single precision makes

# ----------------------------------------- scores: q, k (r, b, h, n, d) -> (r, b, h, i, j)


def _scored(form: Form, state: State) -> State:
    made, s = form.run(state["q"], state["k"]), state["setting"]
    raw, sized = made if isinstance(made, tuple) else (made, False)
    heads = raw.shape[2] / state["q"].shape[2]  # two of half the width for each
    return {"raw": raw, "sized": sized, "scaling": replace(s, head_dim=int(s.head_dim / heads))}


def _found(state: State) -> Iterator[Form]:
    yield from nearness(state)
    yield from halved(state)


SCORES = Stage("scores", _scored, found=_found)


@SCORES.right
def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT


bug(
    "key-no-transpose",
    "views the keys (b, h, n, d) as (b, h, d, n) instead of transposing them",
    "write k.transpose(-2, -1): a view moves no number.",
    "03",
    "hyunwoongko/transformer, repaired by its commit 391c9cd",
)


@SCORES.wrong("key-no-transpose")
def scores_of_viewed_keys(q: Tensor, k: Tensor) -> Tensor:
    r, b, h, n, d = k.shape
    return q @ k.reshape(r, b, h, d, n)


bug(
    "sum-apart",
    "gives an axis two letters in einsum where both factors should share it: each is summed by "
    "itself, and nobody is compared or weighed",
    'use one letter for the axis that is multiplied and summed: "bhqk,bkhd->bqhd".',
    "03",
    "pavanpajjuri/Transformers-from-scratch, my_transformer_code/model.py",
)


@SCORES.wrong("sum-apart", "the numbers of queries and of keys", observed)
def scores_of_sums(q: Tensor, k: Tensor) -> Tensor:
    return q.sum(dim=-1, keepdim=True) @ k.sum(dim=-1, keepdim=True).mT


# ------------------------------------------------------------- scale: scores (r, b, h, i, j)


def _scaled(form: Form, state: State) -> State | None:
    if _sized(state) and form.ids:
        return None
    made = form.run(state["raw"], state.get("scaling", state["setting"]))
    scores, factor = made if isinstance(made, tuple) else (made, 1.0)
    meant = form.ids in ((), ("scale-embed",))  # a root of a width, of one head or of all
    return {"scores": scores, "factor": factor, "scaled": meant}


variant(
    "scale-set",
    "multiplies the scores by the number that its configuration sets for them",
    "Granite, Gemma 2",
    "03",
)
variant(
    "scale-in-weights",
    "does not scale the scores: the weights of its queries start smaller instead",
    "T5, GPT-Neo",
    "03",
)


def _set(state: State) -> Iterator[Form]:
    """Find the factors that the configuration of the module sets."""
    usual = state["setting"].head_dim ** -0.5
    if state.get("unscaled"):
        yield Form(lambda scores, s: scores, variants=("scale-in-weights",))
    for factor in state.get("factors", ()):
        if not math.isclose(factor, usual):
            yield Form(lambda scores, s, by=factor: scores * by, variants=("scale-set",))
    for by in state.get("temperatures", ()):
        yield Form(lambda scores, s, by=by: scores * by, applies=_cosine)


def _cosine(state: State) -> bool:
    """Say whether the scores are cosines: then the factor is a temperature, which is free."""
    return bool(state.get("cosine"))


def _sized(state: State) -> bool:
    """Say whether the scores are as large as they shall be."""
    return bool(state.get("sized"))


SCALE = Stage("scale", _scaled, found=_set)


def scale(scores: Tensor, s: Setting) -> Tensor:
    """Divide by the root of the width of one head."""
    return scores / s.head_dim**0.5


# the cosine of two vectors does not grow with their width: what is divided so is too small
SCALE.forms.append(Form(scale, applies=lambda state: not _cosine(state) and not _sized(state)))
SCALE.forms.append(Form(lambda scores, s: scores, applies=_sized))


bug(
    "scale-embed",
    "divides by sqrt(embed_dim) instead of sqrt(head_dim)",
    "divide by head_dim ** 0.5, the width of one head.",
    "03",
    "FrancescoSaverioZuppichini/ViT#1",
    "karpathy/ng-video-lecture#6",
    "aladdinpersson/Machine-Learning-Collection#65",
    "aladdinpersson/Machine-Learning-Collection#159",
    "Graylab/DL4Proteins-notebooks#12",
    "FareedKhan-dev/train-llm-from-scratch#3",
    "rezazad68/TMUnet#13",
    "omihub777/ViT-CIFAR#12",
)


def _several_heads(state: State) -> bool:
    """Say whether a head is narrower, or wider, than a token: else both widths are one."""
    return state["setting"].embed_dim != state["setting"].head_dim


@SCALE.wrong("scale-embed", applies=_several_heads)
def scale_embed(scores: Tensor, s: Setting) -> Tensor:
    return scores / s.embed_dim**0.5


bug(
    "scale-missing",
    "does not scale the scores",
    "divide the scores by head_dim ** 0.5.",
    "03",
    "PAIR-code/tiny-transformers#71",
    "ethen8181/machine-learning#13",
    "Project-MONAI/GenerativeModels#146",
    "mlc-ai/mlc-llm#3426",
)


def _prepared(state: State) -> list[str]:
    """Return the names of the numbers of the module that are the factor of the scores."""
    d = state["setting"].head_dim
    return [
        name
        for name, value in state.get("prepared", ())
        if any(math.isclose(value, d**power, rel_tol=1e-6) for power in (0.5, -0.5))
    ]


@SCALE.wrong("scale-missing", applies=lambda state: not _prepared(state))
def scale_missing(scores: Tensor, s: Setting) -> Tensor:
    return scores


bug(
    "scale-unused",
    "prepares the factor of the scores and does not use it",
    "multiply the scores by it before the softmax.",
    "03",
    "fla-org/flash-linear-attention#395",
)
SCALE.wrong("scale-unused", applies=lambda state: bool(_prepared(state)))(scale_missing)


# This mistake moves the factor: a form of the scale may return one for the weights too.
bug(
    "scale-after-softmax",
    "scales the weights after the softmax: rows do not sum to 1",
    "scale the scores alone, inside: softmax(scores / head_dim ** 0.5).",
    "03",
    "FrancescoSaverioZuppichini/ViT#2",
    "FrancescoSaverioZuppichini/ViT#5",
    "FrancescoSaverioZuppichini/ViT#6",
)


@SCALE.wrong("scale-after-softmax", "the scores before it are not scaled")
def scale_after_softmax(scores: Tensor, s: Setting) -> tuple[Tensor, float]:
    return scores, s.head_dim**-0.5


@SCALE.wrong("scale-after-softmax", "by sqrt(embed_dim), which is too much as well")
def scale_after_softmax_embed(scores: Tensor, s: Setting) -> tuple[Tensor, float]:
    return scores, s.embed_dim**-0.5


bug(
    "scores-rounded",
    "rounds the scores to whole numbers: // where / belongs",
    "write scores / head_dim ** 0.5: whole numbers have no gradient, and say little.",
    "03",
    "mridul404/Transformers-from-Scratch-in-Pytorch",
)


@SCALE.wrong("scores-rounded", applies=observed)
def scores_rounded(scores: Tensor, s: Setting) -> Tensor:
    return (scores / s.head_dim**0.5).floor()


# Any other factor has no form of its own: `other_scales` guesses it, and the search fits it.
bug(
    "scale-other",
    "multiplies the scores by another number than 1 / sqrt(head_dim)",
    "compute the factor from the width of one head: head_dim ** -0.5.",
    "03",
    "paul-hyun/transformer-evolution, tutorial/transformer-01.ipynb",
)


def all_scales(state: State, many: bool = False) -> list[Form]:
    """Return all forms of the scale, and those of wrong factors; `many` adds fixed widths."""
    return [*SCALE.forms, *_set(state), *other_scales(state["setting"], many)]


def other_scales(s: Setting, many: bool) -> list[Form]:
    """Return forms for the wrong factors that people write; `many` adds fixed widths."""
    d, e, h = s.head_dim, s.embed_dim, s.num_heads
    known = {d**-0.5, e**-0.5, 1.0}
    candidates: dict[float, str] = {
        0.0: "0, which 1 // sqrt(head_dim) is: all tokens weigh alike",
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
        Form(lambda scores, s: scores / scores.shape[-1] ** 0.5, ("scale-other",), by_length)
    )
    return forms


def scaled_by(factor: float | Tensor, words: str = "") -> Form:
    """Return the form that multiplies the scores by a number."""
    detail = f"it multiplies by {words}" if words else ""
    return Form(lambda scores, s: scores * factor, ("scale-other",), detail)


def fitted_scale(factor: float, s: Setting) -> Iterator[Form]:
    """Yield the form of a factor that was solved for; none for the right one, but for rounding."""
    if not math.isclose(factor, s.head_dim**-0.5, rel_tol=ROUNDED):
        yield scaled_by(factor, f"{factor:.4g}")


# what the root of a scale may be taken of: (words, number of a state's scores and setting)
SIZES_MISTAKEN: tuple[tuple[str, Callable[[Tensor, Setting], float]], ...] = (
    ("the number of samples", lambda t, s: t.shape[1]),
    ("the number of keys", lambda t, s: t.shape[-1]),
    ("the number of queries", lambda t, s: t.shape[-2]),
    ("the number of heads", lambda t, s: s.num_heads),
    ("embed_dim", lambda t, s: s.embed_dim),
    ("head_dim", lambda t, s: s.head_dim),
    ("3 embed_dim", lambda t, s: 3 * s.embed_dim),
    ("head_dim * embed_dim", lambda t, s: s.head_dim * s.embed_dim),
    ("head_dim times the number of keys", lambda t, s: s.head_dim * t.shape[-1]),
    ("head_dim / 2", lambda t, s: s.head_dim / 2),
    ("embed_dim / head_dim ** 2", lambda t, s: s.embed_dim / s.head_dim**2),
)
POWERS = (
    (-0.5, "divides by the root of"),
    (-1.0, "divides by"),
    (-0.25, "divides by the fourth root of"),
    (0.5, "multiplies by the root of"),
    (1.0, "multiplies by"),
    (-2.0, "divides by the square of"),
)


def scales_by_size() -> Iterator[Form]:
    """Yield the scales by a power of some size, for a search that looks at the scores alone."""
    for words, size in SIZES_MISTAKEN:
        for power, said in POWERS:

            def run(scores: Tensor, s: Setting, size: Callable = size, power: float = power) -> Any:
                return scores * size(scores, s) ** power

            yield Form(run, ("scale-other",), f"it {said} {words}")
