"""Blocks and stacks: residuals, where norms are, the order of the parts, the feed-forward.

The correct and the wrong ways to connect the parts of a block stand next to each other as code. The
connections of a module are read off its run, number by number, and compared with these.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from attention_clinic.catalogue.forms import Step, bug, variant

Part = Callable[[Tensor], Tensor]
Pair = tuple[Part, Part]

bug("""
residual-from-norm, chapter 06
adds what the norm returned, not the stream that entered it
Fix: keep the stream: x = x + attention(norm(x)).
Seen: pytorch/pytorch#61165; Howuhh/faster-trajectory-transformer#3;
SHI-Labs/Compact-Transformers#25

residual-missing, chapter 06
loses the stream: what a part returns is used alone
Fix: keep the stream under a name and add it: x = x + part(norm(x)).
Seen: kyegomez/BitNet#32

residual-from-input, chapter 06
adds the input of the block after the feed-forward, not what the first half returned
Fix: let the second residual start where the first half ended.
Seen: strutive07/transformer-tensorflow2.0#14

residual-again, chapter 06
adds the stream twice: the part adds it, and the code around the part adds it again
Fix: one residual for each part: in the part, or around it.
Seen: Mayukhdeb/tiny-transformer
""")

RESIDUAL = Step("residual")
RESIDUAL.correct(lambda x, norm, part: x + part(norm(x)))
RESIDUAL.wrong("residual-from-norm")(lambda x, norm, part: norm(x) + part(norm(x)))
RESIDUAL.wrong("residual-missing")(lambda x, norm, part: part(norm(x)))
RESIDUAL.wrong("residual-from-input")(lambda x, norm, part, start: start + part(norm(x)))
RESIDUAL.wrong("residual-again")(lambda x, norm, part: x + (x + part(norm(x))))

NORMS = Step("norms")


@NORMS.correct
def pre_norm(x: Tensor, norms: Pair, parts: Pair) -> Tensor:
    x = x + parts[0](norms[0](x))
    return x + parts[1](norms[1](x))


variant("""
norm-of-part, chapter 06
normalizes what a part returned before it is added: x + norm(part(x))
In: Swin V2, OLMo 2

sandwich-norm, chapter 13
normalizes what a part reads and what it returns: x + norm(part(norm(x)))
In: Gemma 2 and 3, CogView

parallel, chapter 13
runs attention and feed-forward in parallel: both read the stream that enters the block
In: GPT-J, GPT-NeoX, Falcon, Phi, PaLM, ViT-22B
""")


bug("""
norm-order, chapter 06
normalizes in the other order than announced (pre-norm against post-norm)
Fix: pre-norm is x + part(norm(x)), post-norm is norm(x + part(x)).
Seen: harvardnlp/annotated-transformer#1; harvardnlp/annotated-transformer#13;
harvardnlp/annotated-transformer#92; harvardnlp/annotated-transformer#110; d2l-ai/d2l-en#803

norm-missing, chapter 06
has one norm too few: a part reads the stream without one, or returns to it without one
Fix: each part has its own norm: x + part(norm(x)), or norm(x + part(x)).
Seen: OpenNMT/OpenNMT-py#1689; agentdr1/LA_MIL#3

norm-shared, chapter 06
uses one norm in two places, where each place needs its own weights
Fix: build one norm for each part.
Seen: bentrevett/pytorch-seq2seq#100; allenai/OLMo#222; ml-explore/mlx#1636

norm-doubled, chapter 06
normalizes twice in a row: what a norm returned goes through another one
Fix: one norm for each part is enough, in the block or in the code around the part.
Seen: rwtarpit/ViT-from-Scratch

norm-mixed, chapter 06
normalizes before one part and after another
Fix: decide for one order: x + part(norm(x)) for all parts, or norm(x + part(x)) for all.
Seen: found in a published copy of a ViT block
""")


@NORMS.wrong("norm-missing")
def one_norm(x: Tensor, norms: Pair, parts: Pair) -> Tensor:
    x = x + parts[0](norms[0](x))
    return x + parts[1](x)


@NORMS.wrong("norm-shared")
def shared_norm(x: Tensor, norms: Pair, parts: Pair) -> Tensor:
    x = x + parts[0](norms[0](x))
    return x + parts[1](norms[0](x))


@NORMS.wrong("norm-doubled")
def twice(x: Tensor, norms: Pair, parts: Pair) -> Tensor:
    x = x + parts[0](norms[1](norms[0](x)))
    return x + parts[1](norms[1](x))


@NORMS.wrong("norm-mixed")
def mixed(x: Tensor, norms: Pair, parts: Pair) -> Tensor:
    x = x + parts[0](norms[0](x))
    return norms[1](x + parts[1](x))


bug("""
part-shared, chapter 10
runs one part in two places, where each place needs its own weights
Fix: build one attention for the tokens themselves, and another for the context.
Seen: snsd0805/Simple-Transformer-Translator

context-mask-dropped, chapter 10
lets the cross-attention attend to the whole context: its mask is not used
Fix: pass the context's mask to the cross-attention, and the causal one to the self-attention.
Seen: huggingface/transformers#47946; speechbrain/speechbrain#1107; keras-team/keras-io#1046
""")

variant("""
gated, chapter 13
multiplies one projection by the activation of another
In: SwiGLU of Llama, GEGLU of T5 v1.1

gate-second, chapter 13
activates the second of the two projections, not the first
In: GLU of PyTorch, GEGLU of diffusers

quick-gelu, chapter 06
uses the activation x * sigmoid(1.702 x), which is nearly GELU
In: CLIP
""")
bug("""
activation-missing, chapter 06
has no activation in the feed-forward: two linear layers in a row are one
Fix: put the activation between the layers: down(activation(up(x))).
Seen: found in a published copy of a ViT block

activation-last, chapter 06
applies an activation to the result of the feed-forward, too: little or nothing below zero joins
the stream
Fix: let the feed-forward end with its second linear layer.
Seen: vjhawar12/Vision-Transformer-Implementation

activation-other, chapter 06
uses a different activation than announced
Fix: use the activation that the weights were trained with.
Seen: PaddlePaddle/PaddleNLP#1048; timeseriesAI/tsai#361
""")

FEED = Step("feed-forward")
FEED.correct(lambda x, up, down, activation: down(activation(up(x))))
FEED.wrong("activation-missing")(lambda x, up, down, activation: down(up(x)))
FEED.wrong("activation-last")(lambda x, up, down, activation: activation(down(activation(up(x)))))

ACTIVATIONS: dict[str, Part] = {
    "gelu": F.gelu,
    "gelu-tanh": lambda t: F.gelu(t, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "quick-gelu": lambda t: t * torch.sigmoid(1.702 * t),
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "relu-squared": lambda t: F.relu(t).square(),
}

bug("""
layers-shared, chapter 07
runs the same layer several times: fewer parameters than layers
Fix: build each layer separately: nn.ModuleList(make() for _ in range(num_layers)).
Seen: habla-liaa/encodecmae#3; espnet/espnet#1278
Evidence: seen in the calls and weights of the layers

layers-same-init, chapter 07
starts all layers from the same random weights, as copies do
Fix: build each layer separately instead of copying one, or initialize the copies again.
Seen: pytorch/pytorch#86274; harvardnlp/annotated-transformer#9
Evidence: seen in the calls and weights of the layers

stack-last-only, chapter 07
feeds every layer the input of the stack: only the last layer counts
Fix: feed each layer what the previous one returned: x = layer(x).
Seen: simon-ging/coot-videotext#5
Evidence: seen in the calls and weights of the layers
""")
