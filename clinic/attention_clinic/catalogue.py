"""The catalogue: one faithful attention, cut into stages, and beside each stage its known mistakes.

Every stage has one `@right` form. A mistake is one `@wrong` form of a stage, a few lines long; a
second form under the same id is another way to make the same mistake. To add a bug, write its
`Bug` and its form beside the stage that it changes: the search tries it on its own and together
with each mistake of every other stage.

All forms work for a row of readings at once (axis r), because the search does not know which
weight is which: queries are (r, b, n, h * d) before and (r, b, h, n, d) after the split.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from einops import rearrange
from torch import Tensor

from attention_clinic.report import Bug

BUGS: dict[str, Bug] = {}


def _bug(id: str, words: str, fix: str, chapter: str, *threads: str) -> str:
    """Enter a bug in the catalogue and return its id."""
    BUGS[id] = Bug(id, words, fix, chapter, threads)
    return id


@dataclass(frozen=True)
class Setting:
    """What a form may know beside its tensors.

    Args:
        num_heads: h.
        embed_dim: e, the width of a token.
        head_dim: d, the width of one head.
    """

    num_heads: int
    embed_dim: int
    head_dim: int


@dataclass(frozen=True)
class Form:
    """One way to write a stage: the right one has no id.

    Args:
        stage: the stage.
        id: of the bug, None for the right form.
        run: the code.
        detail: what this form says beyond the words of its bug.
    """

    stage: str
    id: str | None
    run: Callable
    detail: str = ""


STAGES = ("tokens", "split", "scores", "scale", "rule", "use", "softmax", "mix", "merge")
FORMS: dict[str, list[Form]] = {stage: [] for stage in STAGES}


def right(stage: str) -> Callable:
    """Enter the right form of a stage."""
    return wrong(stage, None)


def wrong(stage: str, id: str | None, detail: str = "") -> Callable:
    """Enter a form of a stage that belongs to the bug `id`."""

    def enter(run: Callable) -> Callable:
        FORMS[stage].append(Form(stage, id, run, detail))
        return run

    return enter


def reference(stage: str) -> Form:
    """Return the right form of a stage."""
    return FORMS[stage][0]


# ------------------------------------------------- projections: read in weights.py, named here

_bug(
    "value-from-key",
    "projects the values with the key layer",
    "project the values with a layer of their own.",
    "02",
    "yflyzhang/AnnotatedTransformer#1",
)
_bug(
    "head-shared-projection",
    "splits first, then projects all heads with one (head_dim, head_dim) layer",
    "project with a (embed_dim, embed_dim) layer first, then split into heads.",
    "02",
    "aladdinpersson/Machine-Learning-Collection#3",
    "MarcoMeter/episodic-transformer-memory-ppo#22",
)
_bug(
    "out-missing",
    "has no output projection",
    "pass the joined heads through one more nn.Linear(embed_dim, embed_dim).",
    "04",
    "Kyubyong/transformer#17",
    "stevezheng23/sequence_labeling_tf#83",
)

# ------------------------------------------------------------------ tokens: (r, b, n, f), f free


@right("tokens")
def tokens(t: Tensor) -> Tensor:
    return t


_bug(
    "batch-first",
    "reads (b, n, e) as (n, b, e): each token attends to the same place of the other samples",
    "build the attention with batch_first=True, or attend over axis 1.",
    "04",
    "om-ai-lab/OmDet#19",
    "IBM/TabFormer#14",
)


@wrong(
    "tokens",
    "batch-first",
    "if it is meant to take (n, b, e), call it so: "
    "call=lambda m, x: m(x.transpose(0, 1)).transpose(0, 1)",
)
def tokens_batch_first(t: Tensor) -> Tensor:
    return t.transpose(1, 2)


# --------------------------------------------------- split: (r, b, n, h * d) -> (r, b, h, n, d)


@right("split")
def split(t: Tensor, s: Setting) -> Tensor:
    return rearrange(t, "r b n (h d) -> r b h n d", h=s.num_heads)


_bug(
    "split-no-transpose",
    "views (b, n, e) straight as (b, h, n, d), so that a head holds pieces of several tokens",
    'split the last axis first: rearrange(t, "b n (h d) -> b h n d", h=num_heads).',
    "02",
    "reczoo/FuxiCTR#30",
    "hyunwoongko/transformer#15",
    "zhouhaoyi/Informer2020#59",
    "649453932/Chinese-Text-Classification-Pytorch#53",
)


@wrong("split", "split-no-transpose")
def split_no_transpose(t: Tensor, s: Setting) -> Tensor:
    r, b, n, _ = t.shape
    return t.reshape(r, b, s.num_heads, n, s.head_dim)


# ------------------------------------------------- scores: q, k (r, b, h, n, d) -> (r, b, h, i, j)


@right("scores")
def scores(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT


_bug(
    "key-no-transpose",
    "views the keys (b, h, n, d) as (b, h, d, n) instead of transposing them",
    "write k.transpose(-2, -1): a view moves no number.",
    "03",
    "hyunwoongko/transformer, repaired by its commit 391c9cd",
)


@wrong("scores", "key-no-transpose")
def scores_of_viewed_keys(q: Tensor, k: Tensor) -> Tensor:
    r, b, h, n, d = k.shape
    return q @ k.reshape(r, b, h, d, n)


# --------------------------------------------------------------------- scale: scores (r b h i j)


@right("scale")
def scale(scores: Tensor, s: Setting) -> Tensor:
    return scores / s.head_dim**0.5


_bug(
    "scale-embed",
    "divides by sqrt(embed_dim) instead of sqrt(head_dim)",
    "divide by head_dim ** 0.5, the width of one head.",
    "03",
    "FrancescoSaverioZuppichini/ViT#1",
    "karpathy/ng-video-lecture#6",
    "aladdinpersson/Machine-Learning-Collection#65",
    "aladdinpersson/Machine-Learning-Collection#159",
    "Graylab/DL4Proteins-notebooks#12",
    "FareedKhan-dev/train-llm-from-scratch#3",
    "rezazad68/TMUnet#13",
    "omihub777/ViT-CIFAR#12",
)


@wrong("scale", "scale-embed")
def scale_embed(scores: Tensor, s: Setting) -> Tensor:
    return scores / s.embed_dim**0.5


_bug(
    "scale-missing",
    "does not scale the scores",
    "divide the scores by head_dim ** 0.5.",
    "03",
    "PAIR-code/tiny-transformers#71",
)


@wrong("scale", "scale-missing")
def scale_missing(scores: Tensor, s: Setting) -> Tensor:
    return scores


# This mistake moves the factor: a form of the scale may return one for the weights too.
_bug(
    "scale-after-softmax",
    "scales the weights after the softmax, not the scores before it: rows do not sum to 1",
    "divide inside: softmax(scores / head_dim ** 0.5).",
    "03",
    "FrancescoSaverioZuppichini/ViT#2",
    "FrancescoSaverioZuppichini/ViT#5",
    "FrancescoSaverioZuppichini/ViT#6",
)


@wrong("scale", "scale-after-softmax")
def scale_after_softmax(scores: Tensor, s: Setting) -> tuple[Tensor, float]:
    return scores, s.head_dim**-0.5


@wrong("scale", "scale-after-softmax", "by sqrt(embed_dim), which is too much as well")
def scale_after_softmax_embed(scores: Tensor, s: Setting) -> tuple[Tensor, float]:
    return scores, s.embed_dim**-0.5


# Any other factor has no form of its own: the search fits it (see attention.py).
_bug(
    "scale-other",
    "multiplies the scores by another number than 1 / sqrt(head_dim)",
    "compute the factor from the width of one head: head_dim ** -0.5.",
    "03",
    "paul-hyun/transformer-evolution, tutorial/transformer-01.ipynb",
)

# ----------------------------------------- rule: who may attend, (1 or b, 1 or h, i, j) or None
# A rule gets the mask that was given and the causal mask; either may be None.


def both(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    """Join two masks of which either may be missing."""
    if mask is None or causal is None:
        return causal if mask is None else mask
    return mask & causal


@right("rule")
def rule(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    return both(mask, causal)


_bug(
    "mask-dropped",
    "takes a mask and does not use it",
    "pass the mask on to the function that computes the weights.",
    "05",
    "phlippe/uvadlc_notebooks, tutorial 6, get_attention_maps",
)


@wrong("rule", "mask-dropped")
def rule_dropped(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    return causal


_bug(
    "mask-not-causal",
    "lets a token attend to later tokens, though it should be causal",
    "combine the mask with causal_mask(n).",
    "05",
    "huggingface/transformers#48745",
    "alex-matton/causal-transformer-decoder#1",
)


@wrong("rule", "mask-not-causal")
def rule_not_causal(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    return None if causal is None else mask


_bug(
    "mask-inverted",
    "takes the mask upside down: attends exactly where it must not",
    'agree on what True means; here True = may attend (true_means="block" says that it blocks in '
    "your mask), so mask where it is False.",
    "05",
    "lucidrains/x-transformers#160",
    "lucidrains/x-transformers#164",
    "NVIDIA/TransformerEngine#614",
    "InseeFrLab/torchTextClassifiers#92",
    "cnzzx/GeMap#1",
)


@wrong("rule", "mask-inverted")
def rule_inverted(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    return both(~mask, causal) if mask is not None else ~causal if causal is not None else None


_bug(
    "mask-query-axis",
    "lays the mask over the queries instead of the keys",
    "keys are the last axis of the scores: a padding mask (b, n) is mask[:, None, None, :].",
    "05",
    "hyunwoongko/transformer#40",
)


@wrong("rule", "mask-query-axis")
def rule_query_axis(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    return both(mask.mT, causal) if mask is not None else causal.mT if causal is not None else None


_bug(
    "mask-off-by-one",
    "draws the causal mask without, or one past, the diagonal",
    "let token i attend to tokens 0 to i: torch.ones(n, n).tril().",
    "05",
    "RVC-Boss/GPT-SoVITS#965",
    "hkproj/pytorch-transformer#19",
)


def shifted(mask: Tensor | None, causal: Tensor | None, diagonal: int) -> Tensor | None:
    """Move the edge of the causal mask, wherever it came from."""
    given = (
        causal is None
        and mask is not None
        and mask.shape[-1] == mask.shape[-2]
        and torch.equal(mask, torch.ones_like(mask).tril())
    )
    triangle = mask if given else causal
    if triangle is None:
        return both(mask, causal)
    moved = torch.ones_like(triangle).tril(diagonal)
    return moved if given else both(mask, moved)


@wrong("rule", "mask-off-by-one", "a token does not see itself")
def rule_before_the_diagonal(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    return shifted(mask, causal, -1)


@wrong("rule", "mask-off-by-one", "a token sees the one after it")
def rule_past_the_diagonal(mask: Tensor | None, causal: Tensor | None) -> Tensor | None:
    return shifted(mask, causal, 1)


# ----------------------- use: what the rule does to the scores; `softmax` is the stage after it


@right("use")
def use(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    weights = softmax(scores.masked_fill(~allow, -torch.inf))
    return weights.masked_fill(~allow.any(dim=-1, keepdim=True), 0.0)


_bug(
    "mask-multiply",
    "multiplies the scores by the mask: a masked score becomes 0, not -inf, and still gets weight",
    "write scores.masked_fill(~mask, -torch.inf) before the softmax.",
    "05",
    "georg-wolflein/good-features#1",
)


@wrong("use", "mask-multiply")
def use_multiply(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores * allow)


_bug(
    "mask-tiny",
    "fills masked scores with a tiny number such as 1e-9 or -1e-12, where -1e9 was meant",
    "write scores.masked_fill(~mask, -torch.inf) before the softmax.",
    "05",
    "hyunwoongko/transformer#10",
    "awslabs/gluonts#1401",
    "Shujun-He/RibonanzaNet#5",
)


@wrong("use", "mask-tiny")
def use_tiny(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores.masked_fill(~allow, -1e-12))


_bug(
    "mask-added",
    "adds a mask of ones and zeros to the scores, which hardly changes them",
    "turn it into 0 and -inf first, or write scores.masked_fill(~mask, -torch.inf).",
    "05",
    "huggingface/transformers#41443",
    "huggingface/pytorch-image-models#2674",
)


@wrong("use", "mask-added")
def use_added(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores + allow)


_bug(
    "mask-after-softmax",
    "masks the weights after the softmax, so that rows no longer sum to 1",
    "mask the scores with -inf before the softmax.",
    "05",
    "lucidrains/memory-compressed-attention#2",
    "abisee/pointer-generator#88",
)


@wrong("use", "mask-after-softmax")
def use_after_softmax(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores) * allow


# These three are the right code for every row that may attend to something.
_bug(
    "mask-row-empty",
    "a row with nothing to attend to does not give 0",
    "set such rows to 0 after the softmax, as the fused kernel does.",
    "05",
    "pytorch/pytorch#41508",
    "pytorch/pytorch#103749",
    "pytorch/pytorch#131060",
    "tracel-ai/burn#4697",
    "robertknight/rten#1321",
)


@wrong("use", "mask-row-empty", "it gives NaN: softmax over nothing but -inf")
def use_row_nan(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores.masked_fill(~allow, -torch.inf))


@wrong("use", "mask-row-empty", "it attends evenly to all the keys that are masked")
def use_row_even(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    return softmax(scores.masked_fill(~allow, -1e9))


@wrong("use", "mask-row-empty", "it attends to the masked keys as if there were no mask")
def use_row_open(scores: Tensor, allow: Tensor, softmax: Callable) -> Tensor:
    open_rows = allow | ~allow.any(dim=-1, keepdim=True)
    return softmax(scores.masked_fill(~open_rows, -torch.inf))


# Seen by running the module in half precision (see masks.py), not by its values.
_bug(
    "mask-fp16",
    "fills masked scores with a number that does not fit in half precision, such as -1e9",
    "use -torch.inf, or torch.finfo(scores.dtype).min.",
    "05",
    "bentrevett/pytorch-seq2seq#191",
    "NVIDIA/apex#1052",
    "facebookresearch/fairseq#3575",
)

# ---------------------------------------------------------------- softmax: scores (r, b, h, i, j)


@right("softmax")
def softmax(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-1)


_bug(
    "softmax-query",
    "takes the softmax over the queries: columns sum to 1, rows do not",
    "take the softmax over the keys, dim=-1.",
    "03",
    "labmlai/annotated_deep_learning_paper_implementations#146",
    "labmlai/annotated_deep_learning_paper_implementations#282",
    "nerminnuraydogan/vision-transformer#1",
)


@wrong("softmax", "softmax-query")
def softmax_query(scores: Tensor) -> Tensor:
    return scores.softmax(dim=-2)


_bug(
    "softmax-heads",
    "takes the softmax over the heads (dim=1 of (b, h, i, j))",
    "take the softmax over the keys, dim=-1.",
    "03",
    "CAMMA-public/rendezvous-in-time#3",
)


@wrong("softmax", "softmax-heads")
def softmax_heads(scores: Tensor) -> Tensor:
    return scores.softmax(dim=2)


_bug(
    "softmax-batch",
    "takes the softmax over the batch axis: a batch of one gives weights of exactly 1",
    "take the softmax over the keys, dim=-1.",
    "03",
    "PetrochukM/PyTorch-NLP#2",
)


@wrong("softmax", "softmax-batch")
def softmax_batch(scores: Tensor) -> Tensor:
    return scores.softmax(dim=1)


@wrong("softmax", "softmax-batch", "over batch and heads at once, which share axis 0")
def softmax_batch_and_heads(scores: Tensor) -> Tensor:
    return scores.flatten(1, 2).softmax(dim=1).view_as(scores)


_bug(
    "softmax-joint",
    "takes one softmax over the keys of all heads together",
    "take the softmax over the keys of each head by itself, dim=-1 of (b, h, i, j).",
    "03",
    "facebookresearch/detr#247",
)


@wrong("softmax", "softmax-joint")
def softmax_joint(scores: Tensor) -> Tensor:
    h = scores.shape[2]
    joined = rearrange(scores, "r b h i j -> r b i (h j)").softmax(dim=-1)
    return rearrange(joined, "r b i (h j) -> r b h i j", h=h)


# --------------------------------------- mix: weights (r, b, h, i, j) and values (r, b, h, j, d)


@right("mix")
def mix(weights: Tensor, v: Tensor) -> Tensor:
    return weights @ v


_bug(
    "mix-transposed",
    "mixes with the weights transposed: columns of the weights where rows belong",
    "multiply weights (i, j) with values (j, d): weights @ v.",
    "03",
    "heykeetae/Self-Attention-GAN#11",
)


@wrong("mix", "mix-transposed")
def mix_transposed(weights: Tensor, v: Tensor) -> Tensor:
    return weights.mT @ v


# ---------------------------------------------------- merge: (r, b, h, n, d) -> (r, b, n, h * d)


@right("merge")
def merge(mixed: Tensor) -> Tensor:
    return rearrange(mixed, "r b h n d -> r b n (h d)")


_bug(
    "merge-no-transpose",
    "reshapes (b, h, n, d) to (b, n, e) without moving h: tokens are mixed",
    'move the heads beside d first: rearrange(t, "b h n d -> b n (h d)").',
    "04",
    "jsbaan/transformer-from-scratch#6",
    "ajhalthor/Transformer-Neural-Network#4",
    "ajhalthor/Transformer-Neural-Network#8",
)


@wrong("merge", "merge-no-transpose")
def merge_no_transpose(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return mixed.reshape(r, b, n, h * d)


@wrong("merge", "merge-no-transpose", "it reads the axes in the order h, d, n")
def merge_transposed_tail(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return mixed.mT.reshape(r, b, n, h * d)


@wrong("merge", "merge-no-transpose", "it reads the axes in the order d, h, n")
def merge_d_first(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return rearrange(mixed, "r b h n d -> r b d h n").reshape(r, b, n, h * d)


@wrong("merge", "merge-no-transpose", "it reads the axes in the order d, n, h")
def merge_reversed(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return rearrange(mixed, "r b h n d -> r b d n h").reshape(r, b, n, h * d)


_bug(
    "merge-batch-head",
    "swaps heads and batch on the way back: samples get each other's heads",
    "undo the split in the order in which it was done: b before h, then h beside d.",
    "04",
    "gazelle93/Transformer-Various-Positional-Encoding#1",
)


@wrong("merge", "merge-batch-head", "rows of h * b are read as b * h")
def merge_heads_first(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return merge(rearrange(mixed, "r b h n d -> r h b n d").reshape(r, b, h, n, d))


@wrong("merge", "merge-batch-head", "rows of b * h are read as h * b")
def merge_batch_second(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return rearrange(mixed.reshape(r, h, b, n, d), "r h b n d -> r b n (h d)")


@wrong("merge", "merge-batch-head", "the axes h, b, n, d are read as b, n, e")
def merge_heads_then_flat(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return rearrange(mixed, "r b h n d -> r h b n d").reshape(r, b, n, h * d)


@wrong("merge", "merge-batch-head", "the axes n, b, h, d are read as b, n, e")
def merge_tokens_first(mixed: Tensor) -> Tensor:
    r, b, h, n, d = mixed.shape
    return rearrange(mixed, "r b h n d -> r n b h d").reshape(r, b, n, h * d)


# ------------------------------------------------------- found by the way the module behaves

_bug(
    "heads-not-joined",
    "hands (b, h, n, d) or (b, n, h, d) to a layer that expects (b, n, h * d)",
    'join the heads before the output projection: rearrange(t, "b h n d -> b n (h d)").',
    "04",
    "found in a published notes notebook",
)
_bug(
    "ignores-input",
    "does not use its input: another x gives the same output",
    "use the argument of forward, not a variable of the notebook.",
    "04",
    "found in a published ViT notebook",
)
_bug(
    "dropout-eval",
    "drops weights while evaluating: two calls differ",
    "pass dropout_p=self.dropout if self.training else 0.0.",
    "04",
    "karpathy/nanoGPT#240",
    "huggingface/pytorch-image-models#1978",
    "pytorch/pytorch#124464",
    "coleygroup/ms-pred#38",
)
_bug(
    "dropout-unused",
    "takes a dropout that nothing uses: training is as deterministic as evaluation",
    "apply it to the weights: nn.Dropout(dropout)(weights), or dropout_p of the fused kernel.",
    "04",
    "found in a published ViT notebook",
)

# --------------------------------------------------------------- patches, positions (embedding.py)

_bug(
    "patch-view",
    "views the image as (b, n, -1): strips of the image, not patches",
    'cut it: rearrange(x, "b c (gh ph) (gw pw) -> b (gh gw) (c ph pw)", ph=p, pw=p).',
    "01",
    "duoan/TorchCode#21",
)
_bug(
    "patch-channel-mix",
    "flattens an unfolded image without moving the channels: a patch mixes different places",
    "bring the axes into the order b, n, c, ph, pw before you flatten.",
    "01",
    "gupta-abhay/pytorch-vit#7",
)
_bug(
    "patch-order",
    "lays a patch out in another order than (c, ph, pw) of nn.Conv2d: harmless alone, but "
    "pretrained weights do not fit",
    'lay patches out as "b (gh gw) (c ph pw)".',
    "01",
    "lucidrains/vit-pytorch#352",
    "google-research/vision_transformer#93",
)
_bug(
    "unpatch-order",
    "does not undo the cutting: unpatchify(patchify(x)) is not x",
    "write the inverse with the same pattern, its two sides swapped.",
    "01",
    "cloneofsimo/minRF#6",
    "Vchitect/Latte#132",
)
_bug(
    "pos-one-row",
    "adds the same row of the position table to every token",
    "add row t to token t: tokens + positions[:, : tokens.shape[1]].",
    "01",
    "labmlai/annotated_deep_learning_paper_implementations#133",
)
_bug(
    "pos-batch-axis",
    "indexes the position table by sample instead of by token",
    "the table has the shape (1, n, e): its rows run along the tokens, axis 1.",
    "01",
    "cmu-l3/anlp-fall2025-code#1",
    "KasperGroesLudvigsen/influenza_transformer#9",
)
_bug(
    "pos-before-cls",
    "adds the positions before the class token is put in front, so that it gets none",
    "put the class token in front first, then add n + 1 positions.",
    "01",
    "labmlai/annotated_deep_learning_paper_implementations#221",
    "NVIDIA/Megatron-LM#6260",
)
_bug(
    "param-batch-size",
    "holds one class token or position table per sample: another batch size breaks it",
    "create it with (1, 1, e) or (1, n, e) and expand it in forward.",
    "01",
    "pytorch/examples#1178",
    "ahmadchalhoub/research_implementations#2",
)
_bug(
    "param-plain-tensor",
    "keeps a learned tensor that is not a parameter: no optimizer will see it",
    "write self.x = nn.Parameter(values); change values first, never the nn.Parameter.",
    "01",
    "pytorch/examples#1178",
)
_bug(
    "sincos-halves",
    "puts all sines before all cosines, where the paper alternates: harmless until weights are "
    "exchanged",
    "table[:, 0::2] = sin, table[:, 1::2] = cos.",
    "01",
    "tensorflow/text#1122",
    "tatp22/multidim-positional-encoding#20",
)
_bug(
    "sincos-same",
    "gives every place the same code",
    "let the angle grow with the place: place / 10000 ** (2 i / embed_dim).",
    "01",
    "BrianPulfer/PapersReimplementations#9",
)
_bug(
    "sincos-odd",
    "breaks on an odd embed_dim",
    "there is one cosine less than sines: table[:, 1::2] = cos[:, : embed_dim // 2].",
    "01",
    "gc-os-ai/pyaptamer#607",
)

# -------------------------------------------------------------------- blocks and stacks (block.py)

_bug(
    "residual-from-norm",
    "adds what the norm returned, not the stream that entered it",
    "keep the stream: x = x + attention(norm(x)).",
    "06",
    "pytorch/pytorch#61165",
    "Howuhh/faster-trajectory-transformer#3",
    "SHI-Labs/Compact-Transformers#25",
)
_bug(
    "residual-missing",
    "loses the stream: what a part returns stands alone, or is added to itself",
    "keep the stream under a name and add it: x = x + part(norm(x)).",
    "06",
    "kyegomez/BitNet#32",
)
_bug(
    "residual-from-input",
    "adds the input of the block after the feed-forward, not what the first half returned",
    "let the second residual start where the first half ended.",
    "06",
    "strutive07/transformer-tensorflow2.0#14",
)
_bug(
    "norm-order",
    "normalises in the other order than announced (pre-norm against post-norm)",
    "pre-norm is x + part(norm(x)), post-norm is norm(x + part(x)).",
    "06",
    "harvardnlp/annotated-transformer#1",
    "harvardnlp/annotated-transformer#13",
    "harvardnlp/annotated-transformer#92",
    "harvardnlp/annotated-transformer#110",
    "d2l-ai/d2l-en#803",
)
_bug(
    "activation-other",
    "bends with another activation than announced",
    "use the activation that the weights were trained with.",
    "06",
    "PaddlePaddle/PaddleNLP#1048",
    "timeseriesAI/tsai#361",
)
_bug(
    "gelu-tanh",
    "uses the tanh approximation of GELU where the exact one was announced, or the reverse",
    'nn.GELU() is exact, nn.GELU(approximate="tanh") is not.',
    "06",
    "kornia/kornia#2786",
    "keras-team/keras-hub#642",
)
_bug(
    "norm-eps",
    "uses another eps in LayerNorm than announced",
    "pass eps to nn.LayerNorm: 1e-5 is PyTorch's, 1e-6 ViT's, 1e-12 BERT's.",
    "06",
    "lucidrains/x-transformers#37",
    "kornia/kornia#2786",
    "keras-team/keras-hub#642",
)
_bug(
    "norm-bessel",
    "divides by the standard deviation of n - 1 values and adds eps outside the root",
    "use nn.LayerNorm, or x.var(unbiased=False) and (var + eps).sqrt().",
    "06",
    "harvardnlp/annotated-transformer#122",
)
_bug(
    "layers-shared",
    "runs the same layer several times: fewer parameters than layers",
    "build each layer anew: nn.ModuleList(make() for _ in range(num_layers)).",
    "07",
    "habla-liaa/encodecmae#3",
    "espnet/espnet#1278",
)
_bug(
    "layers-same-init",
    "starts all layers from the same random weights, as copies do",
    "build each layer anew instead of copying one, or initialise the copies again.",
    "07",
    "pytorch/pytorch#86274",
    "harvardnlp/annotated-transformer#9",
)
_bug(
    "stack-last-only",
    "feeds every layer the input of the stack: only the last layer counts",
    "feed each layer what the previous one returned: x = layer(x).",
    "07",
    "simon-ging/coot-videotext#5",
)

# ------------------------------------------------------------------------------ training (loss.py)

_bug(
    "double-softmax",
    "applies softmax before a cross-entropy that applies it again",
    "hand the scores themselves to F.cross_entropy.",
    "07",
    "lansinuote/Huggingface_Toturials#6",
    "nishnik/Deep-Semantic-Similarity-Model-PyTorch#2",
)
_bug(
    "target-not-shifted",
    "asks position t for the token that it is given, not for the next one",
    "compare scores[:, :-1] with tokens[:, 1:].",
    "05",
    "IpsumDominum/Pytorch-Simple-Transformer#3",
)
