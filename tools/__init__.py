"""The tools of the course: the command line, `python3 -m tools`, and its commands."""
