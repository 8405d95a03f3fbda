"""What is done to queries, keys and values between their projection and the heads."""

from __future__ import annotations

from collections.abc import Iterator

from attention_clinic.bugs.feeds import ACTIVATIONS
from attention_clinic.engine.forms import Form, Stage, State, bug, variant

# ------------------------- bends: q, k, v (r, b, n, h * d), and the functions that were heard

bug(
    "projection-bent",
    "bends queries, keys and values with an activation function: none of their numbers is negative",
    "project linearly: nn.Linear alone, without nn.ReLU behind it.",
    "02",
    "hanxiao/tf-nlp-blocks#1",
    "Kyubyong/transformer#4",
    "Kyubyong/transformer#49",
    "CyberZHG/keras-multi-head#8",
)
BENT = (
    *(("qkv", "all three"), ("qk", "queries and keys"), ("v", "values"), ("k", "keys")),
    *(("q", "queries"), ("kv", "keys and values")),
)


def _bent(form: Form, state: State) -> State:
    if form.run is None:
        return {}
    name, which = form.run
    return {part: ACTIVATIONS[name](state[part]) for part in which}


def _bends(state: State) -> Iterator[Form]:
    for name in state.get("bent", ()):
        for which, words in BENT:
            yield Form((name, which), ("projection-bent",), f"{words}, with {name}")


BEND = Stage("bend", _bent, _bends, [Form(None)])

# ----------------------------------------- ask: q (r, b, n, h * d) -> (r, b, 1, h * d) or q itself

variant(
    "class-attention",
    "lets one token ask, and returns that token alone: the class token, mostly",
    "CaiT, VOLO, CrossViT",
    "07",
)


def _asked(form: Form, state: State) -> State:
    if form.run is None:
        return {}
    place = form.run % state["q"].shape[2]
    return {"q": state["q"][:, :, place : place + 1]}


def _places(state: State) -> Iterator[Form]:
    for place in state.get("asks", ()):
        yield Form(place, variants=("class-attention",))


ASK = Stage("ask", _asked, _places)
ASK.forms.append(Form(None, applies=lambda state: not state.get("asks")))
