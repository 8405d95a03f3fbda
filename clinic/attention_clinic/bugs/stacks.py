"""Stacks of layers: found by the calls of the layers and by their weights."""

from __future__ import annotations

from attention_clinic.engine.forms import bug

SEEN = "seen in the calls and weights of the layers"

bug(
    "layers-shared",
    "runs the same layer several times: fewer parameters than layers",
    "build each layer anew: nn.ModuleList(make() for _ in range(num_layers)).",
    "07",
    "habla-liaa/encodecmae#3",
    "espnet/espnet#1278",
    seen=SEEN,
)
bug(
    "layers-same-init",
    "starts all layers from the same random weights, as copies do",
    "build each layer anew instead of copying one, or initialise the copies again.",
    "07",
    "pytorch/pytorch#86274",
    "harvardnlp/annotated-transformer#9",
    seen=SEEN,
)
bug(
    "stack-last-only",
    "feeds every layer the input of the stack: only the last layer counts",
    "feed each layer what the previous one returned: x = layer(x).",
    "07",
    "simon-ging/coot-videotext#5",
    seen=SEEN,
)

STACK = ("layers-shared", "layers-same-init", "stack-last-only")
