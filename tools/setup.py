"""Set up the course and start its commands, on Linux, macOS and Windows, with make or without.

    python3 tools/setup.py                  lists the commands
    python3 tools/setup.py lab              what `make lab` does; so for every command
    python3 tools/setup.py install dev      only installs what learning, grading or testing needs
    python3 tools/setup.py here             into the environment of the Python that runs this

Everything goes into .venv, and nothing is registered outside of the folder. An installation that
was interrupted is done again; a .venv that came here with a moved folder is built anew. This file
needs the standard library alone, and an old Python reads it far enough to say that it is too old.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import sysconfig

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
VENV = os.path.join(ROOT, ".venv")
SCRIPTS = "Scripts" if os.name == "nt" else "bin"
PYTHON = os.path.join(VENV, SCRIPTS, "python.exe" if os.name == "nt" else "python")
OLDEST = (3, 11)
NEWER = ("python3.12", "python3.13", "python3.11", "python3.14")
FIRST = "notebooks/00_shapes_and_einops.ipynb"
UV = "uv==0.13.9"  # knows where PyTorch keeps its build for the CPU

# What is installed for learning, grading, testing, slides, pages and testing in a browser; each
# file names the ones that it includes.
LEVELS = {
    "lab": "requirements.txt",
    "grading": "requirements-grading.txt",
    "dev": "requirements-dev.txt",
    "slides": "requirements-slides.txt",
    "site": "requirements-site.txt",
    "browser": "requirements-browser.txt",
}

# name: (level, what is run, what it does). A command whose script is not there is not offered.
COMMANDS = {
    "lab": ("lab", "", "open the course in JupyterLab"),
    "test": ("dev", "", "run every notebook, compare every output, run the tests"),
    "progress": ("lab", "tools/progress.py", "show which exercises are done"),
    "update": ("lab", "tools/update.py", "bring a newer course here, keep what you changed"),
    "refresh": ("lab", "tools/refresh.py", "run notebooks and store what they show"),
    "readme": ("lab", "tools/readme.py", "write the tables of README.md anew"),
    "lint": ("dev", "", "check the style of the code, notebooks too"),
    "bench": ("dev", "tools/bench.py", "compare the speed with PyTorch and HuggingFace"),
    "clinic": (
        "dev",
        "tests/test_clinic/examine_bank.py",
        "try diagnose on all right and broken modules",
    ),
    "wild": ("lab", "clinic/bench/make_wild.py", "try diagnose on strangers' code, fetched now"),
    "browser": ("browser", "tests/browser", "try all that moves in a real browser"),
    "slides": ("slides", "tools/slides.py", "make slides of the chapters, and PDFs of them"),
    "colab": ("lab", "tools/colab.py", "make copies of the notebooks for Google Colab"),
    "weights": ("lab", "resources/make_digits_model.py", "train the models in resources/ anew"),
    "study": ("lab", "resources/make_clinic_study.py", "train every bug of chapter 08 anew"),
    "parts": ("lab", "resources/make_modern_study.py", "train the parts of chapter 13 anew"),
    "photos": ("dev", "resources/make_test_images.py", "make resources/test_images.npy anew"),
    "drawings": ("lab", "img/make_drawings.py", "draw the pictures in img/ anew"),
    "clean": ("", "", "remove .venv and caches; notebooks and data stay"),
}
INSTRUCTORS = {
    "release": ("grading", "tools/release.py", "make the zip to hand out, in build/"),
    "grade": ("grading", "tools/grade.py", "grade handed-in notebooks"),
    "class": ("grading", "tools/class_of_thirty.py", "rehearse it with made-up students"),
    "exercises": ("grading", "tools/exercises.py", "make the exercises from the masters"),
    "site": ("site", "tools/make_site.py", "make the website, in build/site"),
    "book": ("browser", "tools/make_book.py", "make one PDF of the whole course, in build/"),
    "mutants": ("dev", "tests/test_checks/mutants.py", "change solutions: is it seen?"),
    "honest": ("grading", "tests/test_grading/honest_bank.py", "grade all known right answers"),
}

# One thread for each process: with more they get in each other's way and take far longer.
ONE_THREAD = (
    *("test", "refresh", "weights", "study", "parts", "clinic", "wild", "mutants", "browser"),
)
OFFLINE = ("test", "refresh", "bench", "clinic", "browser")

# No question about news, no look for updates: after the installation the course needs no network.
SETTINGS = {
    "@jupyterlab/apputils-extension:notification": {"fetchNews": "false", "checkForUpdates": False}
}


def say(text):
    print(text, flush=True)


def fail(text):
    raise SystemExit("setup: " + text)


def offered(commands):
    """Returns those of the commands whose script this copy of the course has."""
    return {
        name: entry
        for name, entry in commands.items()
        if os.path.exists(os.path.join(ROOT, entry[1]))
        and os.path.exists(os.path.join(ROOT, LEVELS.get(entry[0], "")))
    }


# ----------------------------------------------------------------------------------- installing


def check_version(version=sys.version_info, command="lab"):
    """Ends with a clear message when this Python is too old for the course."""
    if tuple(version[:2]) >= OLDEST:
        return
    wanted, got = (".".join(map(str, v[:2])) for v in (OLDEST, version))
    there = [name for name in NEWER if shutil.which(name)]
    if there:
        how = "This machine has {0}. Type: {0} tools/setup.py {1}".format(there[0], command)
        how += f" (or make {command} PYTHON={there[0]})"
    else:
        how = "Install a newer one (python.org, or your system's packages), then call it again."
    fail(f"the course needs Python {wanted} or newer, got {got}. {how}")


def read(name):
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def included(level):
    """Returns the levels that the requirements of a level bring with them, itself too."""
    found = [level]
    for other, name in LEVELS.items():
        if any(line.split()[:2] == ["-r", name] for line in read(LEVELS[level]).splitlines()):
            found += included(other)
    return sorted(set(found))


def fingerprint(level):
    """Returns what the installation of a level depends on, in one number."""
    names = [LEVELS[one] for one in included(level)] + ["pyproject.toml", "clinic/pyproject.toml"]
    text = "".join(read(name) for name in names)
    return hashlib.sha256(text.encode()).hexdigest()


def _state_file():
    return os.path.join(VENV, "installed.json")


def state():
    """Returns what .venv holds; {} when it is not there, not whole, or was made elsewhere."""
    try:
        with open(_state_file(), encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        # What version 1.0 of the course left when it had installed everything.
        mark = os.path.join(VENV, "made-in")
        found = {"made in": read(mark), "levels": {}} if os.path.exists(mark) else {}
    if found.get("made in") != ROOT or not os.path.exists(PYTHON):
        return {}
    return {} if subprocess.call([PYTHON, "-c", "pass"], stderr=subprocess.DEVNULL) else found


def install(level, command="lab"):
    """Brings .venv to a level, unless it is there already."""
    found = state()
    levels = found.get("levels", {})
    if levels.get(level) == fingerprint(level):
        return
    if not found:
        check_version(command=command)
        _make_venv()
    # What is known goes first: an interrupted installation leaves nothing behind that says it was
    # done, and since pip may have stopped half-way through a package, the next call begins again.
    for path in (_state_file(), os.path.join(VENV, "made-in")):
        if os.path.exists(path):
            os.remove(path)
    say(f"setup: installing {LEVELS[level]} into .venv (minutes the first time)")
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    install_small_torch(PYTHON, environment)
    pip = [PYTHON, "-m", "pip", "install", "--disable-pip-version-check", "-r", LEVELS[level]]
    if subprocess.call(pip, cwd=ROOT, env=environment):
        fail(f"pip could not install {LEVELS[level]}, see above. Call it again")
    settings = os.path.join(VENV, "share", "jupyter", "lab", "settings")
    os.makedirs(settings, exist_ok=True)
    with open(os.path.join(settings, "overrides.json"), "w", encoding="utf-8") as file:
        json.dump(SETTINGS, file)
    where = "import sysconfig; print(sysconfig.get_path('purelib'))"
    write_path(subprocess.check_output([PYTHON, "-c", where]).decode().strip())
    levels.update({one: fingerprint(one) for one in included(level)})
    with open(_state_file(), "w", encoding="utf-8") as file:
        json.dump({"made in": ROOT, "levels": levels}, file, indent=1)


def install_small_torch(python, environment):
    """Installs PyTorch's build for the CPU first, where TORCH=cpu asks for it.

    For Linux, pip brings the build with CUDA, which is ten times as large. Elsewhere the ordinary
    build is the small one.
    """
    wanted = environment.get("TORCH", "")
    if wanted not in ("", "cpu"):
        fail(f"TORCH is cpu or not set, got TORCH={wanted}. Mend it, or leave it out")
    if not wanted or not sys.platform.startswith("linux"):
        return
    pinned = [line.split()[0] for line in read(LEVELS["lab"]).splitlines() if line[:7] == "torch=="]
    pip = [python, "-m", "pip", "install", "--disable-pip-version-check", UV]
    uv = [
        python,
        "-m",
        "uv",
        "pip",
        "install",
        "--python",
        python,
        "--torch-backend",
        "cpu",
        *pinned,
    ]
    for call in (pip, uv):
        if subprocess.call(call, cwd=ROOT, env=environment):
            fail("PyTorch's build for the CPU could not be installed, see above. Call it again")


def _make_venv():
    if os.path.islink(VENV):
        os.unlink(VENV)
    elif os.path.exists(VENV):
        say("setup: .venv is incomplete or was made elsewhere: building it anew")
        shutil.rmtree(VENV)
    if subprocess.call([sys.executable, "-m", "venv", VENV]):
        shutil.rmtree(VENV, ignore_errors=True)
        fail(
            f"{sys.executable} cannot make a virtual environment. On Debian and Ubuntu its part "
            "venv is a package of its own: python3-venv"
        )


def write_path(folder, root=ROOT):
    """Puts `utils` and `checks` on the path of every process that works inside the course.

    A file .pth holds one line that Python runs when it starts. In another folder it does nothing,
    so that a project in the same environment keeps a `utils` of its own.

    Args:
        folder: the site-packages of an environment.
        root: the folder of the course.
    """
    line = (
        "import os, sys; r = {!r}; c = os.path.realpath(os.curdir) if os.path.exists(os.curdir) "
        "else ''; sys.path[:0] = [r] if (c + os.sep).startswith(r + os.sep) else []\n"
    )
    with open(os.path.join(folder, "attention_course.pth"), "w", encoding="utf-8") as file:
        file.write(line.format(os.path.realpath(root)))


def here():
    """Installs what the course needs into the environment of the Python that runs this."""
    check_version(command="here")
    install_small_torch(sys.executable, dict(os.environ))
    names = ["-e", "./clinic", "-e", ".", "torchinfo", "jupyter"]
    if subprocess.call([sys.executable, "-m", "pip", "install", *names], cwd=ROOT):
        fail("pip could not install what the course needs, see above. Call it again")
    write_path(sysconfig.get_path("purelib"))
    say(f"setup: notebooks inside {ROOT} find the course now; restart their kernels")


# ------------------------------------------------------------------------------------- commands


def environment(command):
    """Returns the variables of the environment in which a command runs."""
    found = dict(os.environ)
    for name in ("PYTHONHOME", "MPLBACKEND"):
        found.pop(name, None)
    paths = [ROOT, os.path.join(ROOT, "clinic")]
    if command in ("mutants", "honest"):
        rooms = "tools", "tests/test_course", "tests/test_checks"
        paths += [os.path.join(ROOT, *name.split("/")) for name in rooms]
    # A foreign package named `utils` in site-packages must not win over the course's own.
    found["PYTHONPATH"] = os.pathsep.join(paths)
    if command in ONE_THREAD:
        found["OMP_NUM_THREADS"] = "1"
    if command in OFFLINE:
        found["HF_HUB_OFFLINE"] = "1"
    if command in ("test", "browser"):
        # The user's own start-up files for IPython must not change what a cell shows.
        found["IPYTHONDIR"] = os.path.join(VENV, "ipython")
    return found


def _lab():
    # The root of the server is this folder, so that the notebooks may show ../img/*.svg. Which
    # tabs are open is kept apart from what the user does elsewhere.
    options = {
        "--ServerApp.root_dir": ROOT,
        "--ServerApp.preferred_dir": os.path.join(ROOT, "notebooks"),
        "--LabApp.workspaces_dir": os.path.join(VENV, "workspaces"),
        "--LabApp.default_url": "/lab/tree/" + FIRST,
    }
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [["-m", "jupyterlab", *(name + "=" + value for name, value in options.items()), *root]]


def calls(command):
    """Returns the arguments of Python, one list for each process that the command starts."""
    if command == "lab":
        return _lab()
    if command == "test":
        say("== Notebooks: every cell runs again and every output is compared. Tests: the rest.")
        # Two cores want three processes: some tests wait for what they have started.
        return [["-m", "pytest", "--nbval", "notebooks", "tests", "-n", "3", "--dist", "loadfile"]]
    if command == "lint":
        return [["-m", "ruff", "check", "."], ["-m", "ruff", "format", "--check", "."]]
    if command == "browser":
        return [["-m", "pytest", "tests/browser", "-n", "2", "--dist", "loadfile", "-rs"]]
    if command == "weights":
        models = "digits_model", "drawing_model", "detection_model", "small_models"
        return [[f"resources/make_{name}.py"] for name in models]
    return [[dict(COMMANDS, **INSTRUCTORS)[command][1]]]


def run(command, arguments):
    """Installs what a command needs, runs it, and returns its exit status."""
    if command == "clean":
        clean()
        return 0
    install(dict(COMMANDS, **INSTRUCTORS)[command][0], command)
    status = 0
    for call in calls(command):
        try:
            done = subprocess.call([PYTHON, *call, *arguments], cwd=ROOT, env=environment(command))
        except KeyboardInterrupt:
            return 130
        status = status or done
    return status


def clean():
    """Removes what was installed and cached."""
    for name in (".venv", ".pytest_cache", ".ruff_cache", ".hypothesis", "build"):
        path = os.path.join(ROOT, name)
        os.unlink(path) if os.path.islink(path) else shutil.rmtree(path, ignore_errors=True)
    for folder, names, _ in os.walk(ROOT):
        for name in [n for n in names if n == ".git"]:
            names.remove(name)
        for name in list(names):
            if name in ("__pycache__", ".ipynb_checkpoints") or name.endswith(".egg-info"):
                shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
                names.remove(name)


def show_help(maker):
    """Lists the commands; `maker` is how they are called."""
    for title, commands in (("", COMMANDS), ("For instructors:", INSTRUCTORS)):
        lines = offered(commands)
        if title and lines:
            say("\n" + title)
        for name, entry in lines.items():
            say(f"{maker} {name:10} {entry[2]}")
    say("\nThe first call installs about 1.5 GB into .venv (more with CUDA).")
    say("What a command takes, it says itself: {} update --help".format("python3 tools/setup.py"))


def main(arguments):
    command, rest = (arguments or ["help"])[0], arguments[1:]
    known = dict(offered(COMMANDS), **offered(INSTRUCTORS))
    if command in ("help", "--help", "-h"):
        show_help("make" if "MAKELEVEL" in os.environ else "python3 tools/setup.py")
    elif command == "install" and len(rest) == 1 and rest[0] in LEVELS:
        install(rest[0], "install " + rest[0])
    elif command == "here":
        here()
    elif command in known:
        return run(command, rest)
    else:
        fail("a command is one of {}, got {!r}".format(", ".join(known), " ".join(arguments)))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
