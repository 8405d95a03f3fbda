"""Shortcuts that an exercise forbids, and loops: what an answer may call, and how often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal

from checks.engine.answer import Wrong, noticed
from checks.engine.call_tracer import CallTracer, TooLong
from checks.engine.calls import run
from checks.engine.cases import Case
from checks.engine.compare import copied
from checks.engine.message import Message, as_message, message

Inputs = Callable[[Case], tuple[Any, ...]]
Loops = Literal["free", "asked", "forbidden"]
Shortcuts = Mapping[str, Message | str]  # name of the function: what to do instead

SOFTMAX = dict.fromkeys(
    (
        "softmax",
        "log_softmax",
        "softmin",
        "logsumexp",
        "scaled_dot_product_attention",
        "_softmax",
        "_safe_softmax",
        "_log_softmax",
        "_sparse_softmax",
    ),
    "write-softmax-with-exp",
)
ATTENTION = dict.fromkeys(
    (
        "scaled_dot_product_attention",
        "MultiheadAttention.forward",
        "MultiHeadAttention.forward",
        "multi_head_attention_forward",
        "_native_multi_head_attention",
    ),
    "write-attention-steps",
)
EINOPS = dict.fromkeys(
    ("rearrange", "reduce", "repeat", "Rearrange.forward", "Reduce.forward"),
    "write-with-view-and-transpose",
)
PRODUCTS = dict.fromkeys(
    ("einsum", "matmul", "mm", "bmm", "mv", "tensordot", "linear", "addmm", "baddbmm"),
    "write-loops-and-products",
)


def allowed(
    tracer: CallTracer,
    forbidden: Shortcuts,
    answer: Callable | None = None,
    reference: Callable | None = None,
) -> None:
    """Check that an answer called nothing that does the exercise for it.

    Args:
        tracer: what it called.
        forbidden: names of functions that it may not call.
        answer: the student's function.
        reference: the right one, which it may not call either.

    Raises:
        Wrong: it did.
    """
    for name, instead in forbidden.items():
        if tracer.called[name]:
            called = name.partition(".")[0].strip("_")
            noticed(Wrong(message("calls-shortcut", name=called, instead=as_message(instead))))
    code = getattr(reference, "__code__", None)
    wrapped = answer is not reference and getattr(answer, "__code__", None) is code  # by one check
    if code in tracer.ran and not wrapped:
        noticed(Wrong("calls-the-reference"))


def check_loops(answer: Callable, inputs: Inputs, loops: Loops) -> None:
    """Check whether an answer takes more steps for larger inputs.

    Args:
        answer: the student's function.
        inputs: makes the arguments; each letter is 21 or more in the large case.
        loops: whether it must loop, may not, or may.

    Raises:
        Wrong: it loops but may not, or does not but must.
    """
    if loops == "free":
        return
    with CallTracer(deep=False) as tracer:
        run(answer, copied(inputs(Case(0))))
    small = tracer.operations
    with suppress(TooLong), CallTracer(most=small + 1000, deep=False) as tracer:
        run(answer, copied(inputs(Case(0, large=True))))
    found = tracer.operations > small + 10
    if found and loops == "forbidden":
        noticed(Wrong("loops-and-may-not"))
    if not found and loops == "asked":
        noticed(Wrong("loop-is-missing"))
