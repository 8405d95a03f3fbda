"""What is added to the scores, whatever the tokens are: biases by distance, and windows."""

from __future__ import annotations

from attention_clinic.engine.forms import Form, Stage, State, bug, variant

# ------------------------------ bias: scores (r, b, h, i, j) and a bias (h, i, j) of the module's
# own, which is found by its behaviour; where there is none, nothing is added.


def _biased(form: Form, state: State) -> State | None:
    bias = state.get("bias")
    if bias is None:
        return {}
    fits = state["scores"].shape[-2:] == bias.shape[-2:]
    return {"scores": form.run(state["scores"], bias)} if fits else None


BIAS = Stage("bias", _biased)
BIAS.right(lambda scores, bias: scores + bias)

variant(
    "relative-bias",
    "adds a learned number to each score: one for every distance, or offset, and head",
    "T5, Swin",
    "05",
)
variant(
    "position-bias",
    "adds a learned number to each score: one for every pair of places",
    "LeViT, AFT",
    "05",
)
variant(
    "alibi",
    "takes from each score its distance times a slope, which is another one in every head",
    "ALiBi, BLOOM, MPT",
    "05",
)
variant(
    "window",
    "lets a token see those of its window only: its neighbours, or a part of the image",
    "Longformer, Mistral, Swin",
    "05",
)
variant(
    "no-self",
    "hides every token from itself: it sees the others only",
    "LSA of ViT for small data sets, Reformer",
    "05",
)

bug(
    "alibi-inverted",
    "adds to each score its distance times a slope, where ALiBi takes that away: the further a "
    "token, the more weight it gets",
    "write scores - slope * (i - j).abs(), with slopes above 0.",
    "05",
    "michaelb48/NLP-Attention-is-all-you-need",
    seen="what is added to the scores grows with the distance",
)
bug(
    "relative-index",
    "looks its relative bias up by another number than the offset of two places: pairs that lie "
    "alike get different numbers, or different offsets share one",
    "take the difference of the places, row by row and column by column: (y * (2 * w - 1) + x), "
    "both counted from 0.",
    "05",
    "282857341/nnFormer#46",
    "282857341/nnFormer#88",
    seen="what is added to the scores depends on the sum of two places, or mixes their offsets",
)
