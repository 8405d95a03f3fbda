"""Grade submissions; `grade.py` is the command.

Read the files in this order: collect and notebook_file (submissions), overwrite_cells (checks and
metadata), suspicion (remarks), sandbox, sandbox_process and fork_server (isolation), run_notebook
(one notebook), judge, remote_objects, remote_modes and serialization (a check in this process on
answers in the sandbox), grades, assignments and autograde (one student), pool (many students),
cluster and worker (on many machines), grade_class (the class), gradebook (the term), publish and
the reports that it writes.
"""
