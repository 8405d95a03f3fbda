"""Checks of the exercises: what is right, what is wrong and why (notebooks/exercises).

Read the files of engine/ in this order: message (what is said, as data), languages (the sentences,
which are in locale/), conditions (which cases are drawn), answer (what the student wrote), verdict
(what a check says), cases (random inputs), compare (two results), call_tracer (what an answer
calls), calls (where it may raise), patches (wrong versions of a reference), explain (the cause of a
wrong answer), then what checks call: functions, modules, gradients, shortcuts, guesses, measures;
and mistakes (what a check can name). Then chapter_00 and the others: one check for each exercise.
"""

from checks.engine.verdict import CheckFailed, Verdict, check, examine, progress

__all__ = ["CheckFailed", "Verdict", "check", "examine", "progress"]
