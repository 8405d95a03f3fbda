"""Every sentence that a check says, in English, by the id of its message.

A parameter stands in braces; what follows its colon is a form (below) or Python's own format:
`{shape:shape}` is (2, 3), `{names:and}` joins a list, `{count:axis|axes}` counts. A sentence that
tells a cause ends "the values are not: ...". Sentences end without a full stop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def _and(parts: list[Any]) -> str:
    said = [str(part) for part in parts]
    return " and ".join([", ".join(said[:-1]), said[-1]] if len(said) > 1 else said)


def _an(name: str) -> str:
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


FORMS: dict[str, Callable[[Any], str]] = {
    "shape": lambda sizes: str(tuple(sizes)),
    "shapes": lambda shapes: f"[{', '.join(str(tuple(shape)) for shape in shapes)}]",
    "and": _and,
    "list": lambda parts: ", ".join(map(str, parts)),
    "plus": " + ".join,
    "quoted": lambda parts: ", ".join(map(repr, parts)),
    "repr": repr,
    "an": _an,
}

# --------------------------------------------------------------------------------- the verdict

VERDICT = {
    "state-right": "right",
    "state-not-right": "not right",
    "state-not-yet": "not yet",
    "state-not-run": "not run",
    "state-open": "open",
    "progress": "Chapter {chapter}: {done} of {checked} right",
    "prose": "{text}",
    "in-answer": "{answer}: {what}",
    "because": "{what}: {cause}",
    "tried-with": "Tried with {inputs:and}",
    "see-chapter": "Chapter {chapter}",
    "write-and-run": "Write your code, run its cell, run this cell",
    "still-empty": "the answer is still empty",
    "function-still-empty": "{name} is still empty",
    "stub-left": "put your code in the place of pass in {name}",
    "unforeseen": "the check cannot use this answer: it {what}",
}

# ---------------------------------------------------------------------------- what is compared

RESULTS = {
    "the-result": "the result",
    "part": "part {number} of {of}",
    "of-part": "{name}: {what}",
    "nothing": "None",
    "kind": "{name:an}",
    "input-tensor": "{name} {shape:shape}",
    "input-tensors": "{name} {shapes:shapes}",
    "input-module": "{kind:an} as {name}",
    "input-function": "the function {name}",
    "input-value": "{name}={value}",
    "is-no-tuple": "{name} is {got}, {want} results in a tuple are asked for",
    "has-parts": "{name} has {got:part|parts}, {want} are asked for",
    "is-another-kind": "{name} is {got}, {want} is asked for",
    "is-no-tensor": "{name} is {got}, a tensor of shape {shape:shape} is asked for",
    "is-sparse": "{name} is a nested or sparse tensor, an ordinary one is asked for",
    "result-is": "{name} is {got:.6g}",
    "shape-differs": "{name} has shape {got:shape}, asked for is {want:shape}",
    "dtype-differs": "shape {shape:shape} is right, the dtype is not: {got} instead of {want}",
    "device-differs": "shape {shape:shape} is right, but it lies on another device",
    "holds-nan": "shape {shape:shape} is right, but it holds NaN",
    "values-differ": "shape {shape:shape} is right, the values are not",
}

# ----------------------------------------------------------------------- functions and classes

ANSWERS = {
    "raises": "raises {error}: {words}",
    "raises-only": "raises {error}",
    "raises-in-place": "raises {error}: a tensor was written into after a step that needs its old "
    "numbers for the gradient. Make a new tensor instead",
    "it-raises": "it {what}",
    "returns-none": "{name} returns None: end it with return and the result",
    "function-is-asked": "the answer is {got}, a function is asked for",
    "class-is-asked": "the answer is {got}, a class that extends nn.Module is asked for",
    "list-was-changed": "the values are right, but {name} is shorter or longer afterwards: pop, "
    "append and the like change the list of whoever calls",
    "changed-in-place": "the values are right, but {name} was changed in place: make a new tensor "
    "instead of writing into {name}",
    "not-at-size-one": "it is right, but not where axes have size 1 ({found}): some step drops "
    "such axes, as squeeze does",
    "no-gradient-through-numpy": "the values are right, but no gradient passes through numpy: stay "
    "with torch",
    "gradient-raises": "the values are right, but its gradient {what}",
    "no-gradient": "the values are right, but no gradient reaches {name}: detach, data, item, "
    "torch.tensor, nn.Parameter and no_grad cut the graph",
    "gradient-differs": "the values are right, the gradient of {name} is not",
    "calls-shortcut": "the values are right, but it calls {name}, which does the exercise for you: "
    "{instead}",
    "calls-the-reference": "the values are right, but it calls the function that the check "
    "compares with: write the steps yourself",
    "loops-and-may-not": "the values are right, but it loops: the larger the input, the more steps "
    "it takes. Let one operation do a whole axis",
    "loop-is-missing": "the values are right, but nothing loops: a large input takes no more steps "
    "than a small one. Here the loop is asked for, one piece after the other",
    "write-softmax-with-exp": "write the softmax with exp and sum",
    "write-attention-steps": "write its steps yourself: scores, softmax, mix",
    "write-with-view-and-transpose": "write it with view and transpose",
    "write-loops-and-products": "write the loops and the products yourself",
    "results-agree": "results agree on {trials} random sizes, the input stays as it was",
    "values-agree": "shapes and values agree on {trials} random sizes, the input stays as it was",
    "values-and-gradients-agree": "shapes, values and gradients agree on {trials} random sizes, "
    "the input stays as it was",
    "modules-agree": "parameters, shapes, values and gradients agree for {trials} random sizes",
    "right-but": "the values are right, but {what}",
    "building-raises": "{name}({arguments:list}) {what}",
    "parameter-frozen": "the values are right, but {name} has requires_grad=False: nothing trains "
    "it",
    "parameters-are-one": "{one} and {other} are one and the same: the two share one weight, give "
    "each its own",
    "parameter-missing": "{kind} has no {name}: keep the names that the card gives, and assign each "
    "layer to self; it has {has:list}",
    "part-differs": "{kind} has no {name}: {part} is there, but built otherwise than the card says; "
    "it has {has:list}",
    "parameter-in-list": "{kind} has no {name}: {part} is {got:an} of Python, whose layers the "
    "module does not know; nn.ModuleList holds layers",
    "bias-missing": "{kind} has no {name}: {part} was built without a bias",
    "has-no-parameters": "{kind} has no {name}, and no parameters at all: a layer belongs to the "
    "module when it is assigned to self",
    "parameter-too-many": "{kind} has {name}, which no step of the exercise needs",
    "no-parameter": "{name} is a tensor, but not a parameter, so nothing trains it: nn.Parameter "
    "must stand around all of it, a factor included",
}

# ------------------------------------------------------------------------- causes in any chapter

CAUSES = {
    "returns-argument": "it returns {name} as it came",
    "same-for-every-input": "it gives the same for every input",
    "changes-nothing": "the numbers in {name} change nothing in the result",
    "six-digits-only": "they agree to about six digits only: some step runs in single precision "
    "(torch.float32), or a small number was added somewhere",
    "clinic-found": "it {words} ({ids:plus} in the clinic). {fix}",
}

# ------------------------------------------------------------------ shapes, numbers and choices

GUESSES = {
    "no-shape": "a shape is a tuple of whole numbers such as (2, 3), got {got}",
    "is-the-shape": "{shape:shape} is the shape that the code gives",
    "not-the-shape": "{got:shape} is not the shape",
    "number-of-axes": "it needs {want:axis|axes}, {axes:list}, and not {got}",
    "sizes-in-another-order": "these are the right sizes in another order; the axes are "
    "{axes:list}",
    "laid-out-otherwise": "there are as many numbers, but laid out otherwise; the axes are "
    "{axes:list}",
    "look-at-axes": "look at {wrong:list}; the axes are {axes:list}",
    "number-is-asked": "{name} is a number, got {got}",
    "number-agrees": "{name} is within {margin:g} of {want:g}",
    "number-differs": "{got:.6g} is not {name}",
    "not-a-number": "it is not a number",
    "too-large": "it is too large",
    "too-small": "it is too small",
    "no-choice": "the answer must be one of {choices:quoted}, got {got}",
    "not-this-choice": "{got:repr} is not it",
    "right-choice": "{got:repr}, because {because}",
    "measure-is-no-number": "{call} is {got}, a number is asked for",
    "measure-differs": "{call} is {got:.3g}, {name} is {want:.3g} within {within:.0%}",
    "nothing-measured": "{call} is the right number, but nothing was measured with torch: draw "
    "random numbers (torch.randn) and compute it from them",
    "measures-agree": "{name} is within {within:.0%} of the expected in all {cases} experiments",
}

# ------------------------------------------------------------------------------------ chapter 00

CHAPTER_00: dict[str, str] = {}

# ------------------------------------------------------------------------------------ chapter 01

CHAPTER_01: dict[str, str] = {}

# ------------------------------------------------------------------------------------ chapter 02

CHAPTER_02: dict[str, str] = {}

# ------------------------------------------------------------------------------------ chapter 03

CHAPTER_03: dict[str, str] = {}

# ------------------------------------------------------------------------------------ chapter 04

CHAPTER_04: dict[str, str] = {}

# ------------------------------------------------------------------------------------ chapter 05

CHAPTER_05: dict[str, str] = {}

# ------------------------------------------------------------------------------------ chapter 06

CHAPTER_06: dict[str, str] = {}

# ------------------------------------------------------------------------------------ chapter 07

CHAPTER_07: dict[str, str] = {}

# ------------------------------------------------------------------------------------ chapter 08

CHAPTER_08: dict[str, str] = {}


def _joined(*parts: dict[str, str]) -> dict[str, str]:
    """Join the parts; an id stands in one of them only."""
    sentences: dict[str, str] = {}
    for part in parts:
        if twice := sorted(sentences.keys() & part):
            raise ValueError(f"en: an id has one sentence, got {twice[0]} twice. Rename one.")
        sentences |= part
    return sentences


SENTENCES = _joined(
    VERDICT,
    RESULTS,
    ANSWERS,
    CAUSES,
    GUESSES,
    CHAPTER_00,
    CHAPTER_01,
    CHAPTER_02,
    CHAPTER_03,
    CHAPTER_04,
    CHAPTER_05,
    CHAPTER_06,
    CHAPTER_07,
    CHAPTER_08,
)
