"""Make the website: every chapter as stored, exercises, the clinic's catalogue, indexes.

Open its index.html, or put the folder on any web server. No notebook runs. The pages load nothing
from other servers, so they work without a network, from a USB stick, and in any folder of a web
server. Warnings of Sphinx, broken links and solutions in pages are errors.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.commands import Refusal, parse_arguments
from tools.course.registry import ROOT, Course, course
from tools.course.solution_leaks import leaks, solutions
from tools.web import links, make_live, sources
from tools.web.assets import mathjax

MATHJAX = "tex-svg.js"
# Files of Sphinx that no reader needs: the theme's templates, sources and languages.
NOT_READ = (".buildinfo", "objects.inv", "*.map", "*macros.html", "locales")


def build(here: Course, out: Path, work: Path, builder: str = "html") -> None:
    """Make the pages.

    Args:
        here: the course.
        out: the folder of the pages; old content is replaced if the new pages are correct.
        work: a folder for Sphinx's sources and cache, which makes later runs fast.
        builder: of Sphinx; "singlehtml" makes one page.
    Raises:
        ValueError: a warning, a broken link or a solution.
    """
    source, result = work / "source", work / builder
    live = builder == "html" and make_live.esbuild(here.root) is not None
    made = sources.pages(here, live=live)
    if found := list(leaks(made, solutions(here.root))):
        raise ValueError("pages must hold no solutions, got\n  " + "\n  ".join(found))
    formulas = mathjax()
    for name in (MATHJAX, "../../LICENSE"):
        if (formulas / name).is_file():
            made[f"static/mathjax/{Path(name).name}"] = (formulas / name).read_bytes()
    sources.write(made, source)
    remove_stale(result, made)
    call = [sys.executable, "-m", "sphinx", "-b", builder, "-q", "-W", "--keep-going"]
    call += [
        "-c",
        str(here.root / "website"),
        "-d",
        str(work / "doctrees"),
        str(source),
        str(result),
    ]
    if subprocess.call(call, cwd=here.root):
        raise ValueError("Sphinx reported warnings (above). Fix them and run it again")
    sources.empty(out)
    shutil.copytree(result, out, ignore=shutil.ignore_patterns(*NOT_READ))
    if live:
        (out / make_live.PAGE).write_text(make_live.live_page(here), "utf-8")
    elif builder == "html":
        print(f"The site is made without it: {make_live.MISSING}", flush=True)
    (out / ".nojekyll").touch()  # otherwise GitHub Pages ignores _static
    if builder == "html" and (found := list(links.problems(out))):
        raise ValueError("every link must lead to a page, got\n  " + "\n  ".join(found))


def remove_stale(result: Path, made: sources.Pages) -> None:
    """Remove pages and pictures that only earlier runs made.

    Args:
        result: Sphinx's output.
        made: Sphinx's sources.
    """
    known = {"search.html", *(f"{name.rpartition('.')[0]}.html" for name in made)}
    for path in result.rglob("*.html"):
        if path.relative_to(result).as_posix() not in known:
            path.unlink()
    sources.empty(result / "_static" / "figures")


def main(arguments: Sequence[str] = ()) -> None:
    out = parse_arguments("site", arguments).out.resolve()
    if out.exists() and not (out / "index.html").is_file() and any(out.iterdir()):
        raise Refusal(f"--out must be a new folder or an older site, got {out}. Name another.")
    try:
        build(course(), out, ROOT / "build" / "site-work")
    except ValueError as error:
        raise Refusal(str(error), status=1) from None
    pages = list(out.rglob("*.html"))
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 2**20
    print(f"{out / 'index.html'}: {len(pages)} pages, {size:.0f} MB, no network needed", flush=True)
