"""Print shapes and check predictions of them (chapter 00)."""

from collections.abc import Sequence
from html import escape
from math import prod
from operator import index
from types import EllipsisType

from torch import Tensor


def describe(tensor: Tensor, axes: str, name: str = "tensor") -> None:
    """Print the size of every axis of `tensor` beside its letter.

    >>> describe(torch.zeros(6, 8, 37, 96), "b h n d", "queries")
    queries (b=6, h=8, n=37, d=96)

    Args:
        tensor: any tensor.
        axes: one letter or word for each axis, separated by spaces.
        name: what the line calls the tensor.

    Raises: ValueError for another number of names than axes, or two sizes of one name.
    """
    letters = axes.split()
    shape = tuple(tensor.shape)
    if len(letters) != len(shape):
        raise ValueError(
            f"describe: axes must name every axis once, got axes={axes!r} for shape {shape}. "
            f"Write {len(shape)} names, not {len(letters)}."
        )
    sizes: dict[str, int] = {}
    for letter, size in zip(letters, shape, strict=True):
        if sizes.setdefault(letter, size) != size:
            raise ValueError(
                f"describe: one name has one size, got {letter}={sizes[letter]} and "
                f"{letter}={size} in axes={axes!r}. Give the second axis a name of its own."
            )
    print(f"{name} ({', '.join(f'{a}={s}' for a, s in zip(letters, shape, strict=True))})")


class Folded:
    """A line with an answer folded under it, which a click opens; as plain text the line alone.

    >>> Folded("no guess yet", "shape (3, 4)")
    no guess yet

    Args:
        line: what is always seen.
        answer: what a click shows; several lines keep their breaks.
    """

    def __init__(self, line: str, answer: str):
        self.line, self.answer = line, answer

    def __repr__(self) -> str:
        return self.line

    def _repr_html_(self) -> str:
        answer = escape(self.answer)
        if "\n" in answer:
            answer = f"<pre>{answer}</pre>"
        summary = f"<summary>{escape(self.line)}, or click for the answer</summary>"
        return f"<details>{summary}{answer}</details>"


def compare_guess(guess: Sequence[int], shape: Sequence[int]) -> str:
    """Return in one word how a guessed shape differs from the true one.

    Args:
        guess: anything; a shape is a tuple of integers.
        shape: the true shape.

    Returns:
        "right", "no shape" (not a tuple of integers), "rank" (another number of axes), "order"
        (the same sizes in a different order), "layout" (as many numbers, arranged differently) or
        "sizes".
    """
    try:
        guessed = tuple(index(size) for size in guess)  # index takes only integers
    except TypeError:
        return "no shape"
    shape = tuple(shape)
    if guessed == shape:
        return "right"
    if len(guessed) != len(shape):
        return "rank"
    if sorted(guessed) == sorted(shape):
        return "order"
    return "layout" if prod(guessed) == prod(shape) else "sizes"


def check_guess(guess: Sequence[int] | EllipsisType, answer: Tensor | Sequence[int]) -> None:
    """Print whether a guessed shape is right and, if not, what is wrong with it.

    Without a guess, the answer stays folded until it is clicked. It never raises, so a missing or
    wrong guess does not stop Run All. Write the guess in the cell that checks it.

    >>> check_guess((4, 3), torch.zeros(3, 4))
    not (4, 3): the shape is (3, 4), the same sizes in a different order

    Args:
        guess: a tuple of integers, or `...` for "no guess yet".
        answer: the tensor whose shape was to be guessed, or the shape itself.
    """
    from IPython.display import display  # here, so that models need no IPython

    shape = tuple(getattr(answer, "shape", answer))
    kind = compare_guess(guess, shape)
    if kind == "no shape":
        line = f"a guess is a tuple of integers such as (2, 3), got {guess!r}"
        if guess is ...:
            line = "no guess yet: write yours in place of ... and run again"
        display(Folded(line, f"shape {shape}"))
        return
    guessed = tuple(index(size) for size in guess)
    if kind == "right":
        print(f"right: {guessed}")
        return
    wrong = [str(axis) for axis, (g, s) in enumerate(zip(guessed, shape, strict=False)) if g != s]
    why = {
        "rank": f"{len(shape)} axes and not {len(guessed)}",
        "order": "the same sizes in a different order",
        "layout": "as many numbers, laid out differently",
        "sizes": f"look at axis {', '.join(wrong)}",
    }
    print(f"not {guessed}: the shape is {shape}, {why[kind]}")


def reveal(answer: object, report: object) -> None:
    """Show a report beside your answer; it stays folded until you write one.

    Args:
        answer: your own words, or `...` for "no answer yet".
        report: what a tool found; anything with a text.

    Source: chapter 05.
    """
    from IPython.display import display  # here, so that models need no IPython

    if answer is ...:
        line = "no answer yet: write yours in place of ... and run again"
        display(Folded(line, str(report)))
    else:
        print("You say:", answer, "", report, sep="\n")
