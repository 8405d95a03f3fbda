"""Cross-attention: who asks, and who is asked."""

from __future__ import annotations

from attention_clinic.engine.forms import Form, Stage, State, bug

# ------- sides: queries of the tokens; keys and values of the context, where there is one.
# A form is the parts that it takes from the other side: `elsewhere` holds these, if there is one.


def _taken(form: Form, state: State) -> State | None:
    if not form.run:
        return {}
    elsewhere = state.get("elsewhere")
    if not elsewhere:
        return None
    taken = {part: elsewhere[part] for part in form.run}
    both = {**state, **taken}
    return taken if both["k"].shape[2] == both["v"].shape[2] else None


SIDES = Stage("sides", _taken)
SIDES.right("")

FIX = "q = q_proj(x), k = k_proj(context), v = v_proj(context)."

bug(
    "cross-ignored",
    "takes keys and values from its own tokens: the context is never heard",
    FIX,
    "10",
    "keitakurita/Practical_NLP_in_PyTorch#1",
    "bentrevett/pytorch-seq2seq#143",
)
SIDES.wrong("cross-ignored")("kv")

bug(
    "cross-keys",
    "takes the keys from its own tokens, the values from the context",
    FIX,
    "10",
    "apple/ml-cvnets#81",
    "apple/ml-cvnets#109",
)
SIDES.wrong("cross-keys")("k")

bug(
    "cross-values",
    "takes the values from its own tokens: it mixes what it has, not what it was shown",
    FIX,
    "10",
    "fengjiang5/Knowledge-Distillation-from-Cylinder3D-to-PolarNet#3",
    "yanghongji2007/cross_view_localization_L2LTR#1",
)
SIDES.wrong("cross-values")("v")

bug(
    "cross-queries",
    "takes the queries from the context: the context attends to itself, the tokens ask nothing",
    FIX,
    "10",
    "lucidrains/block-recurrent-transformer-pytorch#2",
)
SIDES.wrong("cross-queries")("q")

bug(
    "cross-swapped",
    "exchanges the sides: the context asks, and the tokens are asked",
    FIX,
    "10",
    "rexrex9/nlp_torchtext#2",
    "humza909/LLM_Survey#2",
    "datawhalechina/happy-llm#5",
)
SIDES.wrong("cross-swapped")("qkv")

SIDES.forms.append(Form("qk", ("cross-queries", "cross-keys")))
SIDES.forms.append(Form("qv", ("cross-queries", "cross-values")))
