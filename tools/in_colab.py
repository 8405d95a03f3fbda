"""Make a notebook of Google Colab ready for the course; its first cell runs this file.

    %run attention/tools/in_colab.py

It installs what Colab does not have, leaves what is there as it is (no restart is needed), lets
the notebook find `utils`, `checks` and `attention_clinic`, and goes to the folder of the chapters.
It needs the standard library alone, and may be called again.
"""

import importlib.metadata
import os
import re
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
# What the chapters do not import: Colab has a Jupyter of its own, which must stay as it is.
NOT_FOR_CHAPTERS = {"jupyter", "jupyterlab", "ipython", "jsonschema", "nbclient", "nbformat"}


def is_there(name):
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def missing(text):
    """Returns the packages of a requirements.txt that chapters import and that are not here."""
    names = dict.fromkeys(re.findall(r"(?m)^([\w.-]+)==", text))
    return [name for name in names if name not in NOT_FOR_CHAPTERS and not is_there(name)]


def prepare():
    with open(os.path.join(ROOT, "requirements.txt"), encoding="utf-8") as file:
        names = missing(file.read())
    if names:
        print("installing", ", ".join(names))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", *names]
        if subprocess.call(pip):
            raise SystemExit("in_colab: pip could not install them, see above. Run the cell again")
    sys.path.insert(0, ROOT)
    from tools.environment import show_course

    show_course()
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.chdir(os.path.join(ROOT, "notebooks"))
    print("ready: run the cells below, from the first to the last")


if __name__ == "__main__":
    prepare()
