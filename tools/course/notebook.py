"""The canonical form of a notebook, as `make refresh` stores it and tests expect it.

Counts 1 to n, sorted keys, an allow-list of metadata, widgets numbered in order of appearance,
pictures without text chunks, no times.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import re
from typing import Any

Cell = dict[str, Any]
Notebook = dict[str, Any]

KERNELSPEC = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}
LANGUAGE_INFO = {
    "file_extension": ".py",
    "mimetype": "text/x-python",
    "name": "python",
    "nbconvert_exporter": "python",
    "pygments_lexer": "ipython3",
}
# Key in the metadata of an exercise notebook: its released version, see local_changes.py.
COURSE_KEY = "attention_shape_by_shape"
# Keys in the metadata of a cell: for nbgrader and JupyterLab.
EXERCISE_KEYS = ("nbgrader", "deletable", "editable")
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
PNG_TEXT_CHUNKS = (b"tEXt", b"zTXt", b"iTXt", b"tIME")
# The text of tqdm after the count: " 60/60 [00:09&lt;00:00,  6.65it/s, loss=0.5]".
TQDM_CLOCK = re.compile(r"\s*\[\d+:\d\d.*\]\s*$", re.DOTALL)


def parse(content: bytes) -> Notebook | None:
    """Read a notebook; return None if it is not one."""
    try:
        notebook = json.loads(content.decode("utf-8-sig"))
        cells = notebook["cells"]
        all("".join(cell["source"]) + cell["cell_type"] for cell in cells)
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return notebook


def source(cell: Cell) -> str:
    """Return the text of a cell; a file may store it as lines."""
    return "".join(cell["source"])


def code_cell(text: str, *tags: str, **metadata: Any) -> Cell:
    """Make a cell of code that was not run."""
    metadata |= {"tags": list(tags)} if tags else {}
    cell = {"cell_type": "code", "metadata": metadata, "source": text, "outputs": []}
    return {**cell, "execution_count": None}


def text_cell(text: str) -> Cell:
    return {"cell_type": "markdown", "metadata": {}, "source": text}


def notebook_of(*cells: Cell) -> Notebook:
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def canonical(notebook: Notebook) -> str:
    """Return the canonical text of a notebook.

    Args:
        notebook: the parsed JSON of a notebook, format 4.5.
    """
    metadata = notebook.get("metadata", {})
    cells = [_cell(cell) for cell in notebook["cells"]]
    fix_ids(cells)
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
    text = source(cell).replace("\r\n", "\n").rstrip("\n")
    result = {
        "cell_type": cell["cell_type"],
        "id": cell.get("id", ""),
        "metadata": cell_metadata(cell.get("metadata", {})),
        "source": _lines(text),
    }
    if "attachments" in cell:
        result["attachments"] = cell["attachments"]
    if cell["cell_type"] == "code":
        result["execution_count"] = cell.get("execution_count")
        result["outputs"] = _outputs(cell.get("outputs", []))
    return result


def cell_metadata(metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the stored part of a cell's metadata."""
    kept: dict[str, Any] = {key: metadata[key] for key in EXERCISE_KEYS if key in metadata}
    if metadata.get("tags"):
        kept["tags"] = sorted(set(metadata["tags"]))
    if metadata.get("collapsed"):
        kept["collapsed"] = True
    if metadata.get("jupyter", {}).get("source_hidden"):
        kept["jupyter"] = {"source_hidden": True}
    return kept


def fix_ids(cells: list[dict[str, Any]]) -> None:
    """Give cells without an id, or with a duplicate one, an id from their position and text."""
    taken: set[str] = set()
    for index, cell in enumerate(cells):
        if not cell["id"] or cell["id"] in taken:
            text = f"{index}:{source(cell)}"
            cell["id"] = hashlib.sha256(text.encode()).hexdigest()[:8]
        taken.add(cell["id"])


def _number(cell: dict[str, Any], count: int) -> None:
    # A cell without a count never ran, and gets none.
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
            # Tracebacks hold local paths; a reader needs only the last line.
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
    """Remove the text chunks of a PNG in base64, such as the version of the program."""
    content = base64.b64decode(encoded)
    if not content.startswith(PNG_SIGNATURE):
        return encoded.strip()
    kept, start = [PNG_SIGNATURE], len(PNG_SIGNATURE)
    while start < len(content):
        end = start + 12 + int.from_bytes(content[start : start + 4], "big")
        if content[start + 4 : start + 8] not in PNG_TEXT_CHUNKS:
            kept.append(content[start:end])
        start = end
    return base64.b64encode(b"".join(kept)).decode()


def _renumber_widgets(notebook: Notebook, state: dict[str, Any]) -> Notebook:
    """Number widgets in order of appearance, and keep only their states."""
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
