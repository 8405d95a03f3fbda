"""Checks of the exercises of chapter 18: TODO."""

from __future__ import annotations

from checks.engine.answer import written
from checks.engine.guesses import same_shape
from checks.engine.verdict import exercise, open_exercise


@exercise("18.1", "TODO title 1")
def todo_1(shape) -> str:
    written(shape)
    same_shape(shape, (2, 3, 5, 7), "b h i j")
    return "gives-both-shapes"


@exercise("18.2", "TODO title 2")
def todo_2(shape) -> str:
    written(shape)
    same_shape(shape, (2, 3, 5, 7), "b h i j")
    return "gives-both-shapes"


@exercise("18.3", "TODO title 3")
def todo_3(shape) -> str:
    written(shape)
    same_shape(shape, (2, 3, 5, 7), "b h i j")
    return "gives-both-shapes"


open_exercise("18.4", "TODO open")
