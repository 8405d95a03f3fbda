"""Grades handed-in notebooks; `tools/grade.py` is the command.

Read the files in this order: handed_in (what the students sent), restore (what they changed),
suspicion (what their code looks at), warm and pristine (the process in which it runs), running
(one notebook from its first cell to its last), marks (nbgrader), report (what comes out).
"""
