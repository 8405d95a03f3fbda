"""Run checks in this process on answers in another one.

The check, its references, its cases and its comparison stay here; only calls of answers run in the
sandbox. The other process reports which functions an answer called. These reports cannot be
trusted, so they become remarks for the instructor and cost no points.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from checks import examine
from checks.engine.conditions import Conditions, under
from checks.engine.message import Message
from tools.grading.grades import NOT_RIGHT, CheckResult
from tools.grading.remote_objects import Interrupted, Peer

MAX_REMARKS = 5  # about one exercise


def judge(
    call: str,
    post: Callable[[dict[str, Any]], None],
    wait: Callable[[], dict[str, Any]],
    salt: str = "",
) -> CheckResult:
    """Run a check, and return its result, whatever the other side does.

    Args:
        call: the check cell of the source notebook, such as check("03.2", softmax).
        post: sends a message to the other side.
        wait: returns the next message of the other side.
        salt: seed for cases that no student has seen; "" for the cases of the notebook.
    """
    remarks: list[Message] = []
    try:
        with under(Conditions(salt, remarks)):
            result = _examined(call, Peer(post, wait, is_open=False))
    except Interrupted:
        result = _failed("check-stopped", "it was stopped while the check ran.")
    except Exception as error:  # of a result that no check foresaw
        result = _failed("check-raised", f"the check raised {type(error).__name__}: {error}"[:300])
    return replace(result, remarks=list(dict.fromkeys(map(str, remarks)))[:MAX_REMARKS])


def _examined(call: str, peer: Peer) -> CheckResult:
    tree = ast.parse(call.strip(), mode="eval").body
    exercise = ast.literal_eval(tree.args[0])
    answers = []
    for argument in tree.args[1:]:
        text = ast.unparse(argument)
        try:
            answers.append(peer.get(text))
        except NameError as error:
            return _failed("no-answer", f"{error}: its cell did not run to its end.")
        except Exception as error:
            return _failed("answer-raises", f"{text} raises {type(error).__name__}.")
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    verdict = examine(exercise, *answers)
    # Without the location and the inputs, the cause is the same for many students.
    words = str((verdict.cause or verdict.message).core)
    return CheckResult(verdict.state, verdict.reason, verdict.topic, words, verdict.named)


def _failed(topic: str, reason: str) -> CheckResult:
    """Return the result of a check that gave no verdict."""
    return CheckResult(NOT_RIGHT, reason, topic, reason.rstrip("."), named=True)
