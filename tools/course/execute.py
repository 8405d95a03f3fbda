"""Run a notebook in a separate kernel, from the first cell to the last."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tools.course.files import name_of
from tools.course.notebook import KERNELSPEC, LANGUAGE_INFO, canonical, cell_metadata, fix_ids
from tools.environment import show_course


class NotebookError(Exception):
    """A notebook that stopped before its end; the text names the cell and the error."""


def settle_environment() -> None:
    """Set the variables that a kernel inherits, independent of the user's own settings."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    show_course()
    os.environ.pop("MPLBACKEND", None)


async def execute(path: Path, timeout: float, first: str = "") -> str:
    """Run one notebook in a separate kernel, in the folder of the notebook.

    Args:
        path: of the notebook.
        timeout: seconds for one cell.
        first: a line of code that the kernel runs before the notebook.
    Returns:
        The canonical text of the notebook with fresh outputs. The file is not changed.
    Raises:
        NotebookError: a cell failed, took too long, or did not raise although its tag says so.
    """
    # Imported here, since only this needs a kernel.
    import nbformat
    from ipykernel.kernelspec import get_kernel_dict
    from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    class ThisPython(KernelSpecManager):
        """Find one kernel: the interpreter that runs this script."""

        def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
            return KernelSpec(resource_dir="", **get_kernel_dict())

    notebook = json.loads(path.read_text(encoding="utf-8"))
    for cell in notebook["cells"]:
        cell["metadata"] = cell_metadata(cell.get("metadata", {}))
        if cell["cell_type"] == "code":
            cell["outputs"], cell["execution_count"] = [], None
    notebook["metadata"] = {"kernelspec": KERNELSPEC, "language_info": LANGUAGE_INFO}
    notebook["nbformat"], notebook["nbformat_minor"] = 4, 5
    fix_ids(notebook["cells"])
    node = nbformat.reads(json.dumps(notebook), as_version=4)
    manager = AsyncKernelManager(kernel_name="python3", kernel_spec_manager=ThisPython())
    client = NotebookClient(
        node,
        km=manager,
        timeout=timeout,
        resources={"metadata": {"path": str(path.parent)}},
        record_timing=False,
        extra_arguments=[
            "--HistoryManager.enabled=False",
            "--IPKernelApp.log_level=40",
            *([f"--IPKernelApp.exec_lines={first}"] if first else []),
        ],
    )
    try:
        with tempfile.TemporaryDirectory(prefix="ipython-") as profile:
            await client.async_execute(env={**os.environ, "IPYTHONDIR": profile})
    except CellExecutionError as error:
        where = next(_failing(node), "?")
        raise NotebookError(f"{name_of(path)}, {where}: {error.ename}: {error.evalue}") from None
    except (CellTimeoutError, DeadKernelError) as error:
        where = next(_running(node), "?")
        reason = str(error).strip().splitlines()[0]
        raise NotebookError(f"{name_of(path)}, {where}: {type(error).__name__}: {reason}") from None
    finally:
        await manager.shutdown_kernel(now=True)
    for number, cell in _code_cells(node):
        tagged = "raises-exception" in cell.metadata.get("tags", [])
        if tagged and not any(output.output_type == "error" for output in cell.outputs):
            where = f"code cell {number}"
            raise NotebookError(
                f"{name_of(path)}, {where}: must raise an exception, as its tag says, got none. "
                "Remove the tag, or fix the cell."
            )
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
