"""The tools of the course: one command line, `python3 -m tools`, and what its commands do."""
