"""Without an installation: the container, Binder and Colab get what the course needs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from notebook_rules import Chapter
from packaging.specifiers import SpecifierSet
from test_project import imports

from tools import in_colab
from tools.command_list import LEVELS
from tools.commands import Refusal
from tools.course import colab
from tools.course.notebook import source
from tools.course.registry import ROOT, course

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")


def supported() -> SpecifierSet:
    found = re.search(r'requires-python = "([^"]+)"', (ROOT / "pyproject.toml").read_text())
    return SpecifierSet(found.group(1))


# ----------------------------------------------------------------------------------- the container


def test_the_container_installs_before_it_copies_the_course() -> None:
    """What decides about packages is there when they are installed: it is not done twice."""
    before, found, after = DOCKERFILE.partition("RUN python -m tools install dev\n")
    assert found and "COPY --chown=reader:reader . ." in after
    copied = " ".join(re.findall(r"COPY --chown=reader:reader (.+)", before)).split()
    assert copied == ["requirements*.txt", "pyproject.toml", "./", "tools/*.py", "tools/"]
    assert all(Path(name).match("requirements*.txt") for name in LEVELS.values())
    assert "TORCH=cpu" in before


def test_what_the_container_copies_first_is_enough_to_install(tmp_path: Path) -> None:
    for name in ("pyproject.toml", *(f"tools/{path.name}" for path in ROOT.glob("tools/*.py"))):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    call = [sys.executable, "-I", "-S", "-c", "import runpy, sys; sys.path.insert(0, '.'); "]
    call[-1] += "sys.argv[1:] = ['install', '--help']; runpy.run_module('tools', None, '__main__')"
    done = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and "install dev" in done.stdout, done.stderr


def test_the_container_has_a_python_of_the_course_and_no_root() -> None:
    assert re.search(r"FROM python:(3\.\d+)-slim", DOCKERFILE).group(1) in supported()
    assert DOCKERFILE.index("\nUSER reader\n") < DOCKERFILE.index("\nRUN python")
    command = json.loads(re.search(r"CMD (\[.*\])", DOCKERFILE).group(1))
    assert command[:4] == ["python", "-m", "tools", "lab"]
    assert "\nSTOPSIGNAL SIGINT\n" in DOCKERFILE, "Python does not hear SIGTERM as process 1"
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert {".venv", "build", "**/__pycache__"} <= set(ignored)


def test_the_dev_container_is_the_container() -> None:
    place = ROOT / ".devcontainer" / "devcontainer.json"
    told = json.loads(place.read_text(encoding="utf-8"))
    assert (place.parent / told["build"]["dockerfile"]).resolve() == ROOT / "Dockerfile"
    home = re.search(r"WORKDIR (\S+)", DOCKERFILE).group(1)
    assert told["workspaceFolder"] == home
    assert f"target={home}," in told["workspaceMount"]
    # the packages of the image, which the folder of the reader would hide
    assert f"target={home}/.venv," in told["mounts"][0]
    assert told["remoteUser"] == re.search(r"USER (\S+)", DOCKERFILE).group(1)
    assert told["postCreateCommand"] in DOCKERFILE


def test_binder_gets_a_python_of_the_course_and_its_packages() -> None:
    told = yaml.safe_load((ROOT / ".binder" / "environment.yml").read_text())
    (python,) = [name for name in told["dependencies"] if name.startswith("python=")]
    assert python.partition("=")[2] in supported()
    assert "TORCH=cpu python -m tools here" in (ROOT / ".binder" / "postBuild").read_text()


# ------------------------------------------------------------------------------------------- Colab


def test_what_colab_lacks_is_named_and_jupyter_is_left_alone() -> None:
    text = (ROOT / "requirements.txt").read_text()
    assert in_colab.missing(text) == []
    assert in_colab.missing("a-package-of-nobody==1.0  # x\njupyterlab==1\n") == [
        "a-package-of-nobody"
    ]
    trees = [tree for path in course().notebooks() for tree in Chapter.read(path).trees]
    imported = {name.partition(".")[0] for tree in trees for name in imports(tree)}
    assert "torch" in imported and not imported & in_colab.NOT_FOR_CHAPTERS


def test_a_session_of_colab_finds_the_course_at_once(tmp_path: Path) -> None:
    """In a process that knows nothing of it, as the first cell does, without a restart."""
    text = (
        f"import runpy; runpy.run_path({str(ROOT / 'tools' / 'in_colab.py')!r}, "
        "run_name='__main__')\n"
        "import attention_clinic, checks, os, subprocess, sys, utils\n"
        "subprocess.run([sys.executable, '-c', 'import checks, utils, attention_clinic'], "
        "check=True, cwd=os.path.expanduser('~'))\n"
        "print(os.getcwd())"
    )
    alone = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, env=alone, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == str(ROOT / "notebooks")


def test_a_copy_for_colab_has_one_cell_more_and_its_pictures_inside() -> None:
    notebook: dict[str, Any] = json.loads(course()["03"].notebook.read_text())
    made = colab.for_colab(notebook, course()["03"].notebook.parent, "https://a.b/c")
    words, first, *rest = made["cells"]
    assert "run this cell first" in "".join(words["source"])
    assert "".join(first["source"]) == colab.first_cell("https://a.b/c")
    assert "git clone --quiet --depth 1 https://a.b/c attention" in "".join(first["source"])
    assert len(rest) == len(notebook["cells"])
    code = [cell for cell in rest if cell["cell_type"] == "code"]
    assert code == [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    text = "\n".join(source(cell) for cell in rest if cell["cell_type"] == "markdown")
    assert "](data:image/svg+xml;base64," in text and "../img" not in text
    assert not re.search(r"\]\((?!https?:|data:)", text)
    by_hand = colab.for_colab(notebook, course()["03"].notebook.parent, None)
    assert "unzip -q attention-shape-by-shape-*.zip" in source(by_hand["cells"][1])


def test_the_page_on_installation_has_the_first_cell_of_colab() -> None:
    text = (ROOT / "docs" / "install.md").read_text(encoding="utf-8")
    assert colab.first_cell("<address of this repository>") in text


def test_an_address_that_is_none_is_refused() -> None:
    with pytest.raises(Refusal, match=r"FROM must begin with https://, got 'attention\.zip'"):
        colab.main(["attention.zip"])
