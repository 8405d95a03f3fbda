"""The private names of torch that checks and grading use: a new torch may lack one.

`tests/test_course/test_private_names.py` checks that no other file uses more of them.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

# The name here, and where torch has it.
NAMES = {
    # sees every operation that runs: counts loops, finds forbidden calls
    "TorchDispatchMode": "torch.utils._python_dispatch.TorchDispatchMode",
    # what torch.set_default_device leaves
    "DeviceContext": "torch.utils._device.DeviceContext",
    # functions of torch that were intercepted and not given back
    "function_modes": "torch.overrides._get_current_function_mode_stack",
    "pop_torch_function_stack": "torch._C._pop_torch_function_stack",
    # loaded by torch itself when it is first needed; then it wraps torch.manual_seed
    "dynamo": "torch._dynamo",
}


def find(name: str) -> Any:
    """Return what has this name in torch.

    Args:
        name: one of `NAMES`.
    Raises:
        ImportError: this version of torch lacks it.
    """
    path = NAMES[name]
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError:
        module, _, inner = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), inner)
    except (ModuleNotFoundError, AttributeError):
        raise ImportError(f"torch {torch.__version__} has no {path}, which checks need") from None


TorchDispatchMode = find("TorchDispatchMode")
