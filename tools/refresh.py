"""Run notebooks from the first cell to the last and store what they show, in one canonical form.

    make refresh            every chapter, and every master in notebooks/solutions/
    make refresh NB=03      those whose name starts with 03 (several: NB="03 04"; a path works too)

The notebooks in notebooks/exercises/ are left alone: they hold a student's work, and `make
exercises` makes them. So is a NAME.new.ipynb that an update put beside a notebook.

Running it twice changes nothing the second time, so `git diff` shows what a change of a chapter
really changed. The canonical form, in short: counts 1 to n, sorted keys, an allow-list of metadata,
widgets numbered in the order in which they appear, pictures without text chunks, no clock anywhere.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import copy
import hashlib
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = ROOT / "notebooks"
EXERCISES = NOTEBOOKS / "exercises"

Notebook = dict[str, Any]

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE_INFO = {
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}
# In the metadata of an exercise notebook: how it was when it was handed out, see shipped.py.
COURSE_KEY = "attention_shape_by_shape"
# In the metadata of a cell: what nbgrader and JupyterLab need to know about exercises.
EXERCISE_KEYS = ("nbgrader", "deletable", "editable")
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_TEXT_CHUNKS = (b"tEXt", b"zTXt", b"iTXt", b"tIME")
# What tqdm writes behind the count: " 60/60 [00:09&lt;00:00,  6.65it/s, loss=0.5]".
TQDM_CLOCK = re.compile(r"\s*\[\d+:\d\d.*\]\s*$", re.DOTALL)


# ---------------------------------------------------------------------------------- canonical form


def canonical(notebook: Notebook) -> str:
    """Returns the text that stands in the file of this notebook once it is refreshed.

    Args:
        notebook: the parsed JSON of a notebook, format 4.5.
    """
    metadata = notebook.get("metadata", {})
    cells = [_cell(cell) for cell in notebook["cells"]]
    _mend_ids(cells)
    for count, cell in enumerate((c for c in cells if c["cell_type"] == "code"), start=1):
        _number(cell, count)
    result: Notebook = {
        "cells": cells,
        "metadata": {"kernelspec": KERNELSPEC, "language_info": LANGUAGE_INFO},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    if COURSE_KEY in metadata:
        result["metadata"][COURSE_KEY] = metadata[COURSE_KEY]
    state = metadata.get("widgets", {}).get(WIDGET_STATE, {}).get("state", {})
    result = _renumber_widgets(result, state)
    return json.dumps(result, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def _lines(text: str | list[str]) -> list[str]:
    return ("".join(text) if isinstance(text, list) else text).splitlines(keepends=True)


def _cell(cell: dict[str, Any]) -> dict[str, Any]:
    source = "".join(cell["source"]).replace("\r\n", "\n").rstrip("\n")
    result = {
        "cell_type": cell["cell_type"],
        "id": cell.get("id", ""),
        "metadata": _cell_metadata(cell.get("metadata", {})),
        "source": _lines(source),
    }
    if "attachments" in cell:
        result["attachments"] = cell["attachments"]
    if cell["cell_type"] == "code":
        result["execution_count"] = cell.get("execution_count")
        result["outputs"] = _outputs(cell.get("outputs", []))
    return result


def _cell_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    kept: dict[str, Any] = {key: metadata[key] for key in EXERCISE_KEYS if key in metadata}
    if metadata.get("tags"):
        kept["tags"] = sorted(set(metadata["tags"]))
    if metadata.get("collapsed"):
        kept["collapsed"] = True
    if metadata.get("jupyter", {}).get("source_hidden"):
        kept["jupyter"] = {"source_hidden": True}
    return kept


def _mend_ids(cells: list[dict[str, Any]]) -> None:
    """Gives an id, made from place and text, to every cell without one or with a taken one."""
    taken: set[str] = set()
    for place, cell in enumerate(cells):
        if not cell["id"] or cell["id"] in taken:
            text = f"{place}:{''.join(cell['source'])}"
            cell["id"] = hashlib.sha256(text.encode()).hexdigest()[:8]
        taken.add(cell["id"])


def _number(cell: dict[str, Any], count: int) -> None:
    # A cell that never ran has no count and gets none: a count would claim that it did.
    if cell["execution_count"] is None:
        return
    cell["execution_count"] = count
    for output in cell["outputs"]:
        if output["output_type"] == "execute_result":
            output["execution_count"] = count


def _outputs(outputs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = []
    for output in outputs:
        kind = output["output_type"]
        if kind == "stream":
            text = "".join(output["text"])
            last = result[-1] if result else {}
            if last.get("output_type") == "stream" and last["name"] == output["name"]:
                last["text"] = _lines("".join(last["text"]) + text)
            else:
                result.append({"name": output["name"], "output_type": kind, "text": _lines(text)})
        elif kind == "error":
            # The frames hold the paths of one machine; what a reader needs is the last line.
            short = f"\x1b[31m{output['ename']}\x1b[39m: {output['evalue']}"
            keep = {key: output[key] for key in ("ename", "evalue", "output_type")}
            result.append({**keep, "traceback": [short]})
        else:
            data = {mime: _payload(mime, value) for mime, value in output["data"].items()}
            kept = {"data": data, "metadata": output.get("metadata", {}), "output_type": kind}
            if kind == "execute_result":
                kept["execution_count"] = output.get("execution_count")
            result.append(kept)
    return result


def _payload(mime: str, value: Any) -> Any:
    if mime == "image/png":
        return strip_png("".join(value))
    if mime.endswith("json") and not isinstance(value, str):
        return value
    return _lines(value)


def strip_png(encoded: str) -> str:
    """Drops the text chunks of a PNG in base64, such as the version of the program that drew it."""
    content = base64.b64decode(encoded)
    if not content.startswith(PNG_SIGNATURE):
        return encoded.strip()
    kept, place = [PNG_SIGNATURE], len(PNG_SIGNATURE)
    while place < len(content):
        end = place + 12 + int.from_bytes(content[place : place + 4], "big")
        if content[place + 4 : place + 8] not in PNG_TEXT_CHUNKS:
            kept.append(content[place:end])
        place = end
    return base64.b64encode(b"".join(kept)).decode()


def _renumber_widgets(notebook: Notebook, state: dict[str, Any]) -> Notebook:
    """Numbers widgets in the order in which they appear, and keeps the state of those only."""
    order: list[str] = []

    def visit(model_id: str) -> None:
        if model_id not in order:
            order.append(model_id)
            text = json.dumps(state.get(model_id, {}), sort_keys=True)
            for found in re.findall(r"IPY_MODEL_(\w+)", text):
                visit(found)

    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            view = output.get("data", {}).get(WIDGET_VIEW)
            if view:
                visit(view["model_id"])
    if not order:
        return notebook
    kept = {model_id: _widget(state[model_id]) for model_id in order if model_id in state}
    if kept:
        widgets = {"state": kept, "version_major": 2, "version_minor": 0}
        notebook["metadata"] = {**notebook["metadata"], "widgets": {WIDGET_STATE: widgets}}
    new = {model_id: f"{number:032x}" for number, model_id in enumerate(order, start=1)}
    pattern = re.compile("|".join(map(re.escape, new)))
    text = json.dumps(notebook, ensure_ascii=False)
    return json.loads(pattern.sub(lambda match: new[match.group()], text))


def _widget(model: dict[str, Any]) -> dict[str, Any]:
    model = copy.deepcopy(model)
    inner = model.get("state", {})
    if isinstance(inner.get("value"), str):
        inner["value"] = TQDM_CLOCK.sub("", inner["value"])
    if isinstance(inner.get("outputs"), list):
        inner["outputs"] = _outputs(inner["outputs"])
    for buffer in model.get("buffers", []):
        buffer["data"] = strip_png(buffer["data"])
    return model


# ----------------------------------------------------------------------------------------- running


class NotebookError(Exception):
    """A notebook that did not run to its end; the text names the cell and the error."""


def _environment() -> None:
    """Settles what a kernel inherits, so that the user's own set-up does not matter."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    # A foreign package named `utils` in site-packages must not win over the course's own.
    paths = [str(ROOT), str(ROOT / "clinic"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    os.environ.pop("MPLBACKEND", None)


async def execute(path: Path, timeout: float) -> str:
    """Runs one notebook in a kernel of its own, in the folder of the notebook.

    Returns:
        The canonical text of the notebook with its fresh outputs. The file is not touched.
    Raises:
        NotebookError: a cell failed, took too long, or did not raise what its tag promises.
    """
    # Imported here, so that canonical() can be used without a kernel at hand.
    import nbformat
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    class ThisPython(KernelSpecManager):
        """Knows one kernel: the interpreter that runs this script."""

        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            return KernelSpec(resource_dir="", **get_kernel_dict())

    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        cell["metadata"] = _cell_metadata(cell.get("metadata", {}))
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    notebook["metadata"] = {"kernelspec": KERNELSPEC, "language_info": LANGUAGE_INFO}
    notebook["nbformat"], notebook["nbformat_minor"] = 4, 5
    _mend_ids(notebook["cells"])
    node = nbformat.reads(json.dumps(notebook), as_version=4)
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=ThisPython())
    client = NotebookClient(
        node,
        km=manager,
        timeout=timeout,
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        extra_arguments=["--HistoryManager.enabled=False", "--IPKernelApp.log_level=40"],
    )
    try:
        with tempfile.TemporaryDirectory(prefix="ipython-") as profile:
            await client.async_execute(env={**os.environ, "IPYTHONDIR": profile})
    except CellExecutionError as error:
        where = next(_failing(node), "?")
        raise NotebookError(f"{_name(path)}, {where}: {error.ename}: {error.evalue}") from None
    except (CellTimeoutError, DeadKernelError) as error:
        where = next(_running(node), "?")
        reason = str(error).strip().splitlines()[0]
        raise NotebookError(f"{_name(path)}, {where}: {type(error).__name__}: {reason}") from None
    finally:
        await manager.shutdown_kernel(now=True)
    for number, cell in _code_cells(node):
        tagged = "raises-exception" in cell.metadata.get("tags", [])
        if tagged and not any(output.output_type == "error" for output in cell.outputs):
            where = f"code cell {number}"
            raise NotebookError(f"{_name(path)}, {where}: tagged raises-exception, raised nothing")
    return canonical(json.loads(nbformat.writes(node)))


def _code_cells(node: Any) -> Iterator[tuple[int, Any]]:
    return enumerate((cell for cell in node.cells if cell.cell_type == "code"), start=1)


def _failing(node: Any) -> Iterator[str]:
    for number, cell in _code_cells(node):
        tagged = "raises-exception" in cell.metadata.get("tags", [])
        if not tagged and any(output.output_type == "error" for output in cell.outputs):
            yield f"code cell {number} (id {cell.id})"


def _running(node: Any) -> Iterator[str]:
    for number, cell in reversed(list(_code_cells(node))):
        if cell.execution_count is not None:
            yield f"in or after code cell {number} (id {cell.id})"


def _umask() -> int:
    mask = os.umask(0)  # the only way to read it is to set it
    os.umask(mask)
    return mask


UMASK = _umask()


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def write(path: Path, content: bytes) -> bool:
    """Writes or replaces the file in one step, if its content changes; says whether it did."""
    there = path.exists()
    if there and path.read_bytes() == content:
        return False
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=".refresh-", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
        if there:
            shutil.copymode(path, temporary)
        else:
            Path(temporary).chmod(0o666 & ~UMASK)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return True


async def refresh(
    paths: list[Path], *, timeout: float = 600, at_once: int = 2, check: bool = False
) -> int:
    """Refreshes the notebooks, a few at once, and reports on each; returns how many failed."""
    _environment()
    gate = asyncio.Semaphore(at_once)

    async def one(path: Path) -> bool:
        async with gate:
            try:
                text = await execute(path, timeout)
            except NotebookError as error:
                print(f"FAILED     {error}", file=sys.stderr, flush=True)
                return False
            if check:
                same = path.read_bytes() == text.encode()
                print(f"{'unchanged' if same else 'DIFFERS  '}  {_name(path)}", flush=True)
                return same
            state = "refreshed" if write(path, text.encode()) else "unchanged"
            print(f"{state}  {_name(path)}", flush=True)
            return True

    return (await asyncio.gather(*map(one, paths))).count(False)


def find(names: list[str]) -> list[Path]:
    """Turns names (paths, folders, or beginnings of file names) into notebooks, in order."""
    known = sorted(
        path
        for path in NOTEBOOKS.rglob("*.ipynb")
        if ".ipynb_checkpoints" not in path.parts and not _is_the_students(path)
    )
    if not names:
        return known
    found: list[Path] = []
    for name in names:
        if Path(name).is_file():
            matches = [Path(name).resolve()]
        elif Path(name).is_dir():
            matches = [path for path in known if path.is_relative_to(Path(name).resolve())]
        else:
            matches = [path for path in known if path.name.startswith(name)]
        if not matches:
            raise SystemExit(f"refresh: no notebook is called {name!r} or starts with it")
        if theirs := [path for path in matches if _is_the_students(path)]:
            raise SystemExit(
                f"refresh: a student's notebook is never run or rewritten, got {_name(theirs[0])}. "
                "Refresh the master in notebooks/solutions, then: make exercises"
            )
        found.extend(matches)
    return list(dict.fromkeys(found))


def _is_the_students(path: Path) -> bool:
    return path.is_relative_to(EXERCISES) or path.name.endswith(".new.ipynb")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="paths or beginnings of names; default: all")
    parser.add_argument("--timeout", type=float, default=600, help="seconds for one cell")
    parser.add_argument("--jobs", type=int, default=2, help="notebooks at once (default 2)")
    parser.add_argument("--check", action="store_true", help="write nothing, only compare")
    options = parser.parse_args()
    paths = find(options.names)
    if not paths:
        raise SystemExit("refresh: no notebooks found below notebooks/")
    failed = asyncio.run(
        refresh(paths, timeout=options.timeout, at_once=options.jobs, check=options.check)
    )
    if failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
