"""Shared code of the commands: chapters, notebooks and their cells, released files."""
