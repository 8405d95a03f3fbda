"""Judge the answers of a student who is somewhere else.

The check runs here, with its references, its cases and its comparison; only the calls of the
answers are made behind the wall. What an answer is said to have called there is hearsay: it is
told to the instructor and costs nothing.
"""

from __future__ import annotations

import ast
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from checks import examine
from checks.engine import answer, cases
from tools.grading.remote_objects import Interrupted, Peer

MOST_HEARD = 5  # remarks about one exercise


def judge(
    call: str,
    post: Callable[[dict[str, Any]], None],
    wait: Callable[[], dict[str, Any]],
    salt: str = "",
) -> dict[str, Any]:
    """Make a check, and return the data of its verdict, whatever the other side does.

    Args:
        call: the check cell of the master, such as check("03.2", softmax).
        post: sends a message to the other side.
        wait: returns the next message of the other side.
        salt: makes cases that nobody has seen; "" for those of the notebook.
    """
    answer.HEARD = heard = []
    cases.SALT = salt
    try:
        said = _verdict(call, Peer(post, wait, is_open=False))
    except Interrupted:
        said = unheard("check-stopped", "it was stopped while the check ran.")
    except Exception as error:  # of a result that no check foresaw
        text = f"the check raised {type(error).__name__}: {error}"[:300]
        said = unheard("check-raised", text)
    finally:
        answer.HEARD, cases.SALT = None, ""
    return said | {"heard": list(dict.fromkeys(map(str, heard)))[:MOST_HEARD]}


def _verdict(call: str, peer: Peer) -> dict[str, Any]:
    tree = ast.parse(call.strip(), mode="eval").body
    exercise = ast.literal_eval(tree.args[0])
    answers = []
    for argument in tree.args[1:]:
        text = ast.unparse(argument)
        try:
            answers.append(peer.get(text))
        except NameError as error:
            return unheard("no-answer", f"{error}: its cell did not run to its end.")
        except Exception as error:
            return unheard("answer-raises", f"{text} raises {type(error).__name__}.")
    for seed in (torch.manual_seed, random.seed, np.random.seed):
        seed(0)
    found = examine(exercise, *answers)
    # What is said of many students alike: the cause, without where and with what it was seen.
    words = str((found.cause or found.message).core)
    return found.to_json() | {"words": words, "named": found.named}


def unheard(id: str, text: str) -> dict[str, Any]:
    """Make the data of a verdict that no check gave, as `Verdict.to_json` does."""
    message = {"id": id, "params": {}}
    words = {"topic": id, "text": text, "words": text.rstrip("."), "named": True}
    return {"state": "not right", "message": message, "cause": None, **words}
