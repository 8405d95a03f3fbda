"""Torch modes of the checks, entered again where an answer runs in the other process.

A check traces or changes an answer with modes of checks/engine. Each call of `remote_objects.Peer`
sends those that are active; the other process enters the same ones and reports what they saw.
"""

from __future__ import annotations

from math import inf
from typing import Any

from torch import Tensor
from torch.overrides import _get_current_function_mode_stack as function_modes
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack as dispatch_modes

from checks.engine.call_tracer import CallTracer
from checks.engine.calls import DoubleConstants
from checks.engine.measures import Drawing
from checks.engine.results import Results, Tables

MAX_RESULTS = 10_000  # reported to the other process


class RemoteMode:
    """A mode in this process, as the other process needs it.

    Args:
        mode: of the kind that a subclass handles.
    """

    kind: type = DoubleConstants
    parameters: tuple[str, ...] = ()  # of `kind`, and its attributes

    def __init__(self, mode: Any):
        self.mode = mode

    @classmethod
    def again(cls, settings: dict[str, Any], _tensors: list[Tensor]) -> RemoteMode:
        """Return a new mode with the settings of the other process.

        Args:
            settings: as `settings` wrote them.
            _tensors: the arguments of the call.
        """
        return cls(cls.kind(**settings))

    def settings(self) -> dict[str, Any]:
        """Return the parameters as JSON values; infinity, a default, is none."""
        values = {name: getattr(self.mode, name) for name in self.parameters}
        return {name: value for name, value in values.items() if value != inf}

    def report(self) -> dict[str, Any]:
        """Return what the mode saw as JSON values."""
        return {}

    def add(self, report: dict[str, Any]) -> None:
        """Add a report of the other process, which may be forged."""

    def saved(self) -> Any:
        """Return what the mode saw so far."""

    def restore(self, saved: Any) -> None:
        """Forget what the mode saw since: the steps of sending are not the answer's."""


class RemoteTracer(RemoteMode):
    kind, parameters = CallTracer, ("most", "deep")

    def report(self) -> dict[str, Any]:
        return {"called": dict(self.mode.called), "operations": self.mode.operations}

    def add(self, report: dict[str, Any]) -> None:
        self.mode.called.update({str(name): int(n) for name, n in report["called"].items()})
        self.mode.operations += int(report["operations"])

    def saved(self) -> Any:
        return dict(self.mode.called), self.mode.operations, set(self.mode.ran)

    def restore(self, saved: Any) -> None:
        called, self.mode.operations, self.mode.ran = saved
        self.mode.called.clear()
        self.mode.called.update(called)


class RemoteResults(RemoteMode):
    kind = Results

    @classmethod
    def again(cls, _settings: dict[str, Any], tensors: list[Tensor]) -> RemoteMode:
        return cls(Results(tensors))

    def report(self) -> dict[str, Any]:
        return {"made": self.mode.made[-MAX_RESULTS:]}

    def add(self, report: dict[str, Any]) -> None:
        self.mode.made += [(str(name), tuple(map(int, shape))) for name, shape in report["made"]]

    def saved(self) -> Any:
        return len(self.mode.made)

    def restore(self, saved: Any) -> None:
        del self.mode.made[saved:]


class RemoteTables(RemoteMode):
    kind, parameters = Tables, ("size", "narrow")

    def report(self) -> dict[str, Any]:
        return {"found": self.mode.found}

    def add(self, report: dict[str, Any]) -> None:
        if report["found"]:
            rows, columns = map(int, report["found"])
            self.mode.found = rows, columns

    def saved(self) -> Any:
        return self.mode.found

    def restore(self, saved: Any) -> None:
        self.mode.found = saved


class RemoteDrawing(RemoteMode):
    kind, parameters = Drawing, ("normal",)


REMOTE = (RemoteMode, RemoteTracer, RemoteResults, RemoteTables, RemoteDrawing)
OF_KIND = {remote.kind: remote for remote in REMOTE}
KINDS = {kind.__name__: remote for kind, remote in OF_KIND.items()}


def active() -> list[RemoteMode]:
    """Return the modes of the checks that are active now, the outermost first."""
    modes = [*function_modes(), *dispatch_modes()]
    return [OF_KIND[type(mode)](mode) for mode in modes if type(mode) in OF_KIND]
