"""Checks of the exercises: what is right, what is wrong, and why (notebooks/exercises).

Read the files in this order: answer (what the student wrote), verdict (what a check says), cases
(random inputs), watch (what an answer calls), compare (two results), judge (functions, classes,
shapes, numbers), then chapter_00 and the others: one check for each exercise.
"""

from checks.engine.verdict import CheckFailed, Verdict, check, examine, progress

__all__ = ["CheckFailed", "Verdict", "check", "examine", "progress"]
