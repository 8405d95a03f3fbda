"""Prepare a notebook in Google Colab for the course; its first cell runs this file.

    %run attention/tools/in_colab.py

It installs missing packages, changes none that Colab has (so no restart is needed), lets the
notebook find `utils`, `checks` and `attention_clinic`, and changes to the folder of the chapters.
It needs only the standard library, and can run again.
"""

import importlib.metadata
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# Not imported by chapters: Colab's own Jupyter must not change.
NOT_FOR_CHAPTERS = {"jupyter", "jupyterlab", "ipython", "jsonschema", "nbclient", "nbformat"}


def is_there(name):
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def missing(text):
    """Return the packages of a requirements.txt that chapters import and that are missing."""
    names = dict.fromkeys(re.findall(r"(?m)^([\w.-]+)==", text))
    return [name for name in names if name not in NOT_FOR_CHAPTERS and not is_there(name)]


def prepare():
    with open(os.path.join(ROOT, "requirements.txt"), encoding="utf-8") as file:
        names = missing(file.read())
    if names:
        print("installing", ", ".join(names))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", *names]
        if subprocess.call(pip):
            raise SystemExit(
                "in_colab: pip must install them, got an error (above). Run the cell again"
            )
    sys.path.insert(0, ROOT)
    from tools.environment import show_course

    show_course()
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.chdir(os.path.join(ROOT, "notebooks"))
    print("ready: run the cells below, from the first to the last")


if __name__ == "__main__":
    prepare()
