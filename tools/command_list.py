"""All commands: what each does and takes. `tools.commands` reads what is typed."""

from __future__ import annotations

import os
from pathlib import Path

from tools.arguments import Command, arg, integer, memory, number, one_of
from tools.environment import ROOT

# Requirements for learning, and for everything else; the second includes the first.
LEVELS = {"course": "requirements.txt", "dev": "requirements-dev.txt"}
BUILD = Path(ROOT, "build")

# With more threads, processes compete for the cores and take far longer.
ONE_THREAD = {"OMP_NUM_THREADS": "1"}
OFFLINE = {"HF_HUB_OFFLINE": "1"}
# torch.compile would first compile its headers, which pays from the second function on.
ONE_COMPILED = {"TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0"}
BY_FILE = ("--dist", "loadfile")

NAMES = "prefixes of file names (default: all)"
CHAPTERS = arg("names", NAMES, "NB", nargs="*")
CHECK = arg("--check", "write nothing, only compare", action="store_true")
HUB = arg(
    "--hub",
    "folder of the server (default: /srv/attention for root, build/hub otherwise)",
    "HUB",
)
SECONDS = number(0.01, 86_400, "30")
PORT = integer(1024)

COMMANDS = (
    Command(
        "lab",
        "open the course in JupyterLab",
        target="tools.course.lab",
        passes_on="jupyter lab",
        examples=("lab", "lab --no-browser --port 8899"),
    ),
    Command(
        "test",
        "run every notebook, compare every output, run the tests",
        level="dev",
        # Three processes for two cores: some tests wait for processes that they start.
        calls=(("-m", "pytest", "--nbval", "notebooks", "tests", "-n", "3", *BY_FILE),),
        passes_on="pytest",
        settings=ONE_THREAD | OFFLINE | ONE_COMPILED,
        examples=("test", "test --times resources/times.json"),
    ),
    Command(
        "progress",
        "show which exercises are done",
        target="tools.course.progress",
        examples=("progress",),
    ),
    Command(
        "update",
        "install a newer version of the course, keep your changes",
        target="tools.course.update",
        arguments=(arg("source", "a released zip, or its unpacked folder", "FROM", nargs="?"),),
        examples=("update", "update attention-shape-by-shape-1.1.0.zip"),
    ),
    Command(
        "refresh",
        "run notebooks and store their outputs",
        target="tools.course.refresh",
        settings=ONE_THREAD | OFFLINE,
        arguments=(
            arg("names", "paths, or " + NAMES, "NB", nargs="*"),
            arg("--timeout", "seconds for one cell (600)", type=SECONDS, default=600.0),
            arg("--jobs", "notebooks at once (2)", type=integer(1), default=2),
            CHECK,
        ),
        examples=("refresh", "refresh 03", "refresh 03 04 --check"),
    ),
    Command(
        "readme",
        "update the tables of README.md and docs/",
        target="tools.course.tables",
        arguments=(CHECK,),
        examples=("readme", "readme --check"),
    ),
    Command(
        "lint",
        "check the style of the code, notebooks too",
        level="dev",
        calls=(("-m", "ruff", "check", "."), ("-m", "ruff", "format", "--check", ".")),
        examples=("lint",),
    ),
    Command(
        "bench",
        "compare the speed with PyTorch and HuggingFace",
        level="dev",
        target="tools.course.bench",
        settings=OFFLINE,
        arguments=(
            arg(
                "--table",
                "models, memory, generation or loading; repeatable (default: all)",
                type=one_of("models", "memory", "generation", "loading"),
                action="append",
            ),
            arg(
                "--size",
                "digits or ViT-B/16, of the models; repeatable (default: both)",
                type=one_of("digits", "ViT-B/16"),
                action="append",
            ),
            arg("--rounds", "rounds of each row", type=integer(1)),
        ),
        examples=("bench", "bench --table models --size digits"),
    ),
    Command(
        "clinic",
        "try diagnose on all correct and buggy modules",
        level="dev",
        calls=(("tests/test_clinic/examine_bank.py",),),
        passes_on="tests/test_clinic/examine_bank.py",
        settings=ONE_THREAD | OFFLINE,
        examples=("clinic", "clinic --seeds 3"),
    ),
    Command(
        "wild",
        "try diagnose on public code, downloaded for each run",
        calls=(("clinic/bench/make_wild.py",),),
        passes_on="clinic/bench/make_wild.py",
        settings=ONE_THREAD,
        examples=("wild", "wild --share last"),
    ),
    Command(
        "browser",
        "test everything interactive in a real browser",
        level="dev",
        calls=(("-m", "pytest", "tests/browser", "-n", "2", *BY_FILE, "-rs"),),
        passes_on="pytest",
        settings=ONE_THREAD | OFFLINE,
        examples=("browser", "browser -k lab"),
    ),
    Command(
        "slides",
        "make slides of the chapters, as pages and PDFs",
        level="dev",
        target="tools.lecture.make_slides",
        arguments=(
            CHAPTERS,
            arg("--no-pdf", "only the pages", action="store_true"),
            arg("--out", "folder (build/slides)", type=Path, default=BUILD / "slides"),
        ),
        examples=("slides", "slides 03 04", "slides 03 --no-pdf"),
    ),
    Command(
        "colab",
        "make copies of the notebooks for Google Colab",
        target="tools.course.colab",
        arguments=(
            arg("address", "of a public git repository with the course", "FROM", nargs="?"),
        ),
        examples=("colab https://github.com/you/attention", "colab"),
    ),
    Command(
        "weights",
        "train the models in resources/ again",
        calls=tuple(
            (f"resources/make_{name}.py",)
            for name in (
                "digits_model",
                "drawing_model",
                "caption_model",
                "detection_model",
                "small_models",
            )
        ),
        settings=ONE_THREAD,
        examples=("weights",),
    ),
    Command(
        "study",
        "train every bug of chapter 08 again",
        calls=(("resources/make_clinic_study.py",),),
        settings=ONE_THREAD,
        examples=("study",),
    ),
    Command(
        "parts",
        "train the parts of chapter 13 again",
        calls=(("resources/make_modern_study.py",),),
        arguments=(
            arg(
                "names",
                "grammar, pixels or longer (default: all)",
                nargs="*",
                type=one_of("grammar", "pixels", "longer"),
            ),
        ),
        settings=ONE_THREAD,
        examples=("parts", "parts longer"),
    ),
    Command(
        "photos",
        "make the photographs and the digits in resources/ again",
        level="dev",
        calls=(("resources/make_test_images.py",),),
        examples=("photos",),
    ),
    Command(
        "drawings",
        "draw the pictures in img/ again",
        calls=(("img/make_drawings.py",),),
        examples=("drawings",),
    ),
    Command(
        "install",
        "install the packages for learning, or all packages",
        level="",
        target="tools.install:main",
        arguments=(
            arg(
                "level",
                "course: for learning; dev: everything (default: course)",
                nargs="?",
                type=one_of(*LEVELS),
                default="course",
            ),
        ),
        examples=("install", "install dev"),
    ),
    Command(
        "here",
        "install into the current Python's environment",
        level="",
        target="tools.install:here",
        examples=("here",),
    ),
    Command(
        "clean",
        "remove .venv and caches; notebooks and data stay",
        level="",
        target="tools.install:clean",
        examples=("clean",),
    ),
    Command(
        "release",
        "make the zip for students, in build/",
        level="dev",
        target="tools.course.release",
        arguments=(arg("--with-site", "include the website", action="store_true"),),
        examples=("release", "release --with-site"),
        instructors=True,
    ),
    Command(
        "grade",
        "grade submitted notebooks",
        level="dev",
        target="tools.grading.grade",
        settings=ONE_THREAD,
        arguments=(
            arg(
                "submissions",
                "folder of submitted notebooks (default: none, write only tables and pages)",
                "SUBMISSIONS",
                nargs="?",
                default="",
            ),
            arg("--out", "folder for the grades (default: SUBMISSIONS-grades)", "OUT"),
            arg("--chapter", "grade this one (repeatable)", action="append", default=[]),
            arg("--roster", "csv file with a line for each student", "ROSTER"),
            arg("--due", "2026-11-20, with an optional hour", "DUE"),
            arg("--week", "name of the week (default: that of the folder)", "WEEK"),
            arg(
                "--late-percent",
                "of the points for each late day (0)",
                "LATE",
                type=number(0, 100, "10"),
                default=0.0,
            ),
            # Judge and sandbox of a student wait for each other about a quarter of the time.
            arg(
                "--jobs",
                "students at once on this machine (number of cores + 1)",
                type=integer(1),
                default=(os.cpu_count() or 1) + 1,
            ),
            arg("--cell-seconds", "limit of a cell (30)", type=SECONDS, default=30.0),
            arg("--notebook-seconds", "limit of a notebook (180)", type=SECONDS, default=180.0),
            arg("--memory", "limit of a notebook (3GB)", type=memory, default="3GB"),
            arg(
                "--isolation",
                "podman, bubblewrap or plain (default: the first that works here)",
                type=one_of("podman", "bubblewrap", "plain"),
            ),
            arg("--scheduler", "of a Dask cluster that grades: tcp://host:8786", "SCHEDULER"),
        ),
        examples=(
            "grade week1",
            "grade week1 --out results",
            "grade week2 --out term --roster class.csv --due '2026-11-20 18:00' --late-percent 10",
            "grade --out term",
            "grade week1 --chapter 03 --jobs 4",
            "grade week1 --scheduler tcp://host:8786",
        ),
        instructors=True,
    ),
    Command(
        "hub",
        "run a server for a class: JupyterHub",
        level="dev",
        target="tools.hub.hub",
        arguments=(
            HUB,
            arg("--roster", "csv file with a line for each student", "ROSTER"),
            arg("--port", "on 127.0.0.1, with the next two (8000)", type=PORT, default=8000),
            arg("--admin", "user name of the instructor (instructor)", default="instructor"),
            arg("--memory", "limit of a student's server (2GB)", type=memory, default="2GB"),
            arg(
                "--idle-minutes",
                "after which kernels and servers end (60)",
                type=integer(1),
                default=60,
            ),
            arg("--sign-up", "students may ask for an account", action="store_true"),
            arg("--trial", "for your own eyes: without system users", action="store_true"),
            arg("--no-start", "only prepare or update", action="store_true"),
        ),
        examples=(
            "hub --roster class.csv",
            "hub --hub folder --roster class.csv --no-start",
            "hub --trial --port 9000",
        ),
        instructors=True,
    ),
    Command(
        "collect",
        "collect the exercises of all students of a hub",
        level="dev",
        target="tools.hub.collect",
        arguments=(
            CHAPTERS,
            HUB,
            arg("--week", "name of the week, and of its folder in OUT", "WEEK", required=True),
            arg("--out", "folder for all weeks", "OUT", required=True),
        ),
        examples=("collect --week 3 --out work", "collect 03 04 --week 3 --out work"),
        instructors=True,
    ),
    Command(
        "give-back",
        "copy pages of feedback into the homes on a hub",
        level="dev",
        target="tools.hub.give_back",
        arguments=(
            HUB,
            arg("--out", "folder of the grades", "OUT", required=True),
            arg("--week", "its name (default: the week added last)", "WEEK"),
        ),
        examples=("give-back --out term", "give-back --out term --week 3"),
        instructors=True,
    ),
    Command(
        "hub-test",
        "try a hub with a made-up class: load and attacks",
        level="dev",
        calls=(("tests/test_hub/rehearse.py",),),
        arguments=(
            arg("--students", "their number (12)", type=integer(3), default=12),
            arg("--port", "on 127.0.0.1, with the next two (8400)", type=PORT, default=8400),
            arg("--keep", "a folder for the hub and all results", type=Path),
        ),
        settings=ONE_THREAD | OFFLINE,
        paths=("tests/test_checks", "tests/test_grading"),
        examples=("hub-test", "hub-test --students 30 --keep folder"),
        instructors=True,
    ),
    Command(
        "class",
        "rehearse grading with made-up students",
        level="dev",
        target="tools.grading.made_up_class",
        arguments=(
            arg("--chapter", "only this one (repeatable)", action="append", default=[]),
            arg("--keep", "a folder for the results", type=Path),
        ),
        passes_on="grade",
        settings=ONE_THREAD,
        examples=("class", "class --chapter 03", "class --keep folder"),
        instructors=True,
    ),
    Command(
        "exercises",
        "make the exercises from the source notebooks",
        level="dev",
        target="tools.course.exercises",
        arguments=(
            CHAPTERS,
            arg("--check", "write nothing, only list differences", action="store_true"),
        ),
        examples=("exercises", "exercises 03", "exercises --check"),
        instructors=True,
    ),
    Command(
        "new-chapter",
        "make the files of a new chapter, with TODO for missing parts",
        level="dev",
        target="tools.course.new_chapter",
        arguments=(
            arg("name", "of the files, in lower case with _", "NAME"),
            arg("--title", "of the chapter (default: made from the name)"),
        ),
        examples=("new-chapter state_space_models",),
        instructors=True,
    ),
    Command(
        "new-exercise",
        "add an exercise to a chapter, with TODO for missing parts",
        level="dev",
        target="tools.course.new_chapter:new_exercise",
        arguments=(arg("chapter", "two digits", "NB"),),
        examples=("new-exercise 03",),
        instructors=True,
    ),
    Command(
        "site",
        "make the website, in build/site",
        level="dev",
        target="tools.web.make_site",
        arguments=(arg("--out", "folder (build/site)", type=Path, default=BUILD / "site"),),
        examples=("site", "site --out folder"),
        instructors=True,
    ),
    Command(
        "book",
        "make one PDF of the whole course, in build/",
        level="dev",
        target="tools.web.make_book",
        arguments=(
            arg(
                "--out",
                "file (build/attention-shape-by-shape.pdf)",
                type=Path,
                default=BUILD / "attention-shape-by-shape.pdf",
            ),
            arg("--as-stored", "use stored figures, run nothing", action="store_true"),
        ),
        examples=("book", "book --as-stored"),
        instructors=True,
    ),
    Command(
        "mutants",
        "break each solution in one place; its check must fail",
        level="dev",
        calls=(("tests/test_checks/mutants.py",),),
        arguments=(arg("chapters", "two digits each (default: all)", "NB", nargs="*"),),
        settings=ONE_THREAD,
        examples=("mutants 03",),
        instructors=True,
    ),
    Command(
        "honest",
        "grade all correct answers of the tests",
        level="dev",
        calls=(("tests/test_grading/honest_bank.py",),),
        arguments=(arg("chapters", "two digits each (default: all)", "NB", nargs="*"),),
        passes_on="grade",
        settings=ONE_THREAD,
        paths=("tests/test_checks",),
        examples=("honest", "honest 03 04"),
        instructors=True,
    ),
)
