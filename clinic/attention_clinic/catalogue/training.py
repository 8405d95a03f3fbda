"""Training: what keeps a module from learning, and losses of classifiers and language models."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from attention_clinic.catalogue.forms import Form, State, Step, bug

bug("""
dropout-eval, chapter 04
drops weights while evaluating: two calls differ
Fix: pass dropout_p=self.dropout if self.training else 0.0.
Seen: karpathy/nanoGPT#240; huggingface/pytorch-image-models#1978; pytorch/pytorch#124464;
coleygroup/ms-pred#38
Once: dropout is off

dropout-unused, chapter 04
takes a dropout probability that nothing uses: training is as deterministic as evaluation
Fix: apply it to the weights: nn.Dropout(dropout)(weights), or dropout_p of the fused kernel.
Seen: found in a published ViT notebook
Evidence: in train mode, no dropout changes the output

part-unused, chapter 06
builds a part, and no result depends on it
Fix: call each part once, in its place: x = x + attention(norm1(x)), x = x + mlp(norm2(x)).
Seen: rwtarpit/ViT-from-Scratch
Evidence: it gets no gradient, and no output changes with it

parameter-unused, chapter 04
holds a parameter that reaches no result: it gets no gradient and keeps its initial values
Fix: use it in forward where it belongs, or leave it out.
Seen: bradezard131/swin-transformer
Evidence: it gets no gradient, and no output changes with it

param-plain-tensor, chapter 01
keeps numbers that should learn outside nn.Parameter and nn.ModuleList: no optimizer gets them
Fix: write self.x = nn.Parameter(values), and nn.ModuleList(layers) for a list of layers.
Seen: pytorch/examples#1178
Evidence: found among the attributes

layers-in-forward, chapter 04
builds layers with weights in forward: they are random in every call, and no optimizer gets them
Fix: build them in __init__, and call them in forward.
Seen: graykode/nlp-tutorial#29; gupta-abhay/setr-pytorch#4;
leaderj1001/Stand-Alone-Self-Attention#2
Evidence: parameters are registered while forward runs

graph-cut, chapter 04
cuts numbers from the graph of the gradients: what comes before the cut never learns
Fix: remove torch.no_grad() and .detach() from forward; write no_grad around it to evaluate.
Seen: dqj5182/ViT-PyTorch; ioarun/pytorch-transformer
Evidence: the output changes with them, and their gradients do not say so

graph-overwritten, chapter 04
overwrites numbers that gradients need: its output is correct, and backward raises an error
Fix: make a new tensor: x = x + part(x), not x += part(x); torch.exp(x), not x.exp_().
Seen: vyvy3n/cs336-hw1; ivanchukhran/tiny-transformer
Evidence: backward needs numbers that were changed in place
""")


def _shifted(form: Form, state: State) -> State:
    logits, classes = form.run(state["logits"], state["classes"])
    _, keep = form.run(state["logits"], state["keep"])
    return {"logits": logits, "classes": classes, "keep": keep}


def _reduced(form: Form, state: State) -> State:
    logits, classes = state["logits"].movedim(-1, 1), state["classes"].clamp(min=0)
    each = F.cross_entropy(logits, classes, reduction="none", label_smoothing=state["smoothing"])
    return {"made": form.run(each, state["counted"])}


SHIFT = Step("shift", _shifted)
SOFTMAX = Step("softmax", lambda form, state: {"logits": form.run(state["logits"])})
KEEP = Step("keep", lambda form, state: {"counted": form.run(state["keep"])})
REDUCE = Step("reduce", _reduced)
LOSS = (SHIFT, SOFTMAX, KEEP, REDUCE)

bug("""
target-not-shifted, chapter 05
trains position t to predict the token that it is given, not the next one
Fix: compare logits[:, :-1] with tokens[:, 1:].
Seen: IpsumDominum/Pytorch-Simple-Transformer#3

target-shifted-twice, chapter 12
trains position t to predict the token after the next one: the targets are shifted twice
Fix: shift once, either where the targets are made or in the loss.
Seen: huggingface/transformers#47394; huggingface/transformers#46898;
huggingface/transformers#35066
""")
ALL, FRONT, REST, SAME = slice(None), slice(-1), slice(1, None), ("target-not-shifted",)
for _next, _i, _j, _ids in (  # the logits of positions i belong to the tokens of positions j
    (True, FRONT, REST, ()), (True, ALL, ALL, SAME), (True, FRONT, FRONT, SAME),
    (True, REST, REST, SAME), (True, slice(-2), slice(2, None), ("target-shifted-twice",)),
    (False, ALL, ALL, ()), (False, FRONT, REST, ("target-shifted-twice",)),
):  # fmt: skip
    _run = lambda x, y, i=_i, j=_j: (x[..., i, :], y[..., j])  # noqa: E731
    SHIFT.forms.append(Form(_run, _ids, applies=lambda s, this=_next: s["next_token"] == this))

bug("""
double-softmax, chapter 07
applies softmax before a cross-entropy that applies it again
Fix: pass the logits themselves to F.cross_entropy.
Seen: lansinuote/Huggingface_Toturials#6; nishnik/Deep-Semantic-Similarity-Model-PyTorch#2
""")
SOFTMAX.correct(lambda logits: logits)
SOFTMAX.wrong("double-softmax")(lambda logits: logits.softmax(dim=-1))

bug("""
padding-counted, chapter 10
counts padding: the model is trained to predict it
Fix: F.cross_entropy(logits, targets, ignore_index=padding_id).
Seen: lukas-blecher/LaTeX-OCR#305; lucidrains/DALLE-pytorch#57; EleutherAI/gpt-neo#45
""")
KEEP.correct(lambda keep: keep)
KEEP.wrong("padding-counted")(lambda keep: torch.ones_like(keep))

REDUCE.correct(lambda each, kept: each[kept].mean())
REDUCE.correct(lambda each, kept: each[kept].sum())
REDUCE.correct(lambda each, kept: each * kept)
REDUCE.correct(lambda each, kept: each[kept])
REDUCE.correct(lambda each, kept: (each * kept).sum(dim=-1))
