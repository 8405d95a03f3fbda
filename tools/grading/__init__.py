"""Grade handed-in notebooks; `tools/grade.py` is the command.

Read the files in this order: handed_in and reading (what the students sent), restore (what they
changed),
suspicion (what their code looks at), wall and sandbox (the world in which it runs), warm (what runs
there), running (one notebook from its first cell to its last), judge and far (a check here that
asks answers there), values (how results are written), marks (points), progress (what is done),
report (what comes out).
"""
