"""Train the digits model with each bug of the clinic, and write down what it costs.

Run it with `make study`; it writes `clinic_study.json`. It trains the model of chapter 07 with
patch 4 (five tokens), once right and once with each bug below, from three seeds, with
`utils.training.fit`. One training sees the digits for 30 epochs instead of 60: by then the right
model has learned, and a bug that only slows the learning would still show. It takes about four
minutes on one core.

The bugs and seeds were chosen before the first run, and none was left out afterwards. The file
holds for each bug the accuracies on the 360 test digits, one for each seed, measured on all of
them in one batch. On another processor the last digits of the weights differ, and so do a few of
the answers.

Chapter 08 draws the file, and takes `ATTENTIONS`, `build` and `train` from here.
"""

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn

from tools.course.files import write
from utils.attention import MultiHeadAttention
from utils.data import SHIPPED, load_digits
from utils.embedding import PatchEmbedding
from utils.encoder import Encoder, EncoderBlock
from utils.training import fit
from utils.vision_transformer import VisionTransformer

TARGET = Path(__file__).with_name("clinic_study.json")
MODEL = SHIPPED["digits"] | {"patch_size": 4}
SEEDS = (0, 1, 2)
EPOCHS = 30


class Attention(MultiHeadAttention):
    """Attention in steps, each of which a bug below replaces."""

    def factor(self) -> float:
        return (self.embed_dim // self.num_heads) ** -0.5

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        layers = (self.q_proj, self.k_proj, self.v_proj)
        return tuple(rearrange(p(x), "b n (h d) -> b h n d", h=self.num_heads) for p in layers)

    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-1)

    def join(self, mixed: Tensor) -> Tensor:
        return rearrange(mixed, "b h n d -> b n (h d)")

    def forward(
        self, x: Tensor, context: Tensor | None = None, attn_mask: Tensor | None = None
    ) -> Tensor:
        q, k, v = self.project(x)
        scores = einsum(q, k, "b h i d, b h j d -> b h i j") * self.factor()
        if attn_mask is not None:
            scores = scores.masked_fill(~attn_mask, -torch.inf)
        mixed = einsum(self.weigh(scores), v, "b h i j, b h j d -> b h i d")
        return self.out_proj(self.join(mixed))


class ScaledByEmbedDim(Attention):
    def factor(self) -> float:
        return self.embed_dim**-0.5


class NotScaled(Attention):
    def factor(self) -> float:
        return 1.0


class SoftmaxOverQueries(Attention):
    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=-2)


class SoftmaxOverBatch(Attention):
    def weigh(self, scores: Tensor) -> Tensor:
        return scores.softmax(dim=0)


class JoinedWithoutTranspose(Attention):
    def join(self, mixed: Tensor) -> Tensor:
        b, h, n, d = mixed.shape
        return mixed.reshape(b, n, h * d)


class ValuesFromKeys(Attention):
    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        q, k, _ = super().project(x)
        return q, k, k


class OneProjectionForAllHeads(Attention):
    def __init__(self, embed_dim: int, num_heads: int):
        super().__init__(embed_dim, num_heads)
        d = embed_dim // num_heads
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(d, d) for _ in range(3))

    def project(self, x: Tensor) -> tuple[Tensor, ...]:
        heads = rearrange(x, "b n (h d) -> b h n d", h=self.num_heads)
        return self.q_proj(heads), self.k_proj(heads), self.v_proj(heads)


class DropoutInEval(Attention):
    def weigh(self, scores: Tensor) -> Tensor:
        return F.dropout(scores.softmax(dim=-1), 0.1)


class StripsForPatches(PatchEmbedding):
    def forward(self, images: Tensor) -> Tensor:
        patches = self.proj(images.reshape(len(images), -1, self.proj.in_features))
        class_token = self.class_token.expand(len(images), -1, -1)
        return torch.cat([class_token, patches], dim=1) + self.positions


class OnePositionForAll(PatchEmbedding):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images) - self.positions + self.positions[:, :1]


class ResidualFromNorm(EncoderBlock):
    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        x = self.norm1(x)
        x = x + self.attn(x, attn_mask=attn_mask)
        x = self.norm2(x)
        return x + self.mlp(x)


class LastLayerOnly(Encoder):
    def forward(self, x: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        for layer in self.layers:
            result = layer(x, attn_mask)
        return self.norm(result)


class SoftmaxAtTheEnd(VisionTransformer):
    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images).softmax(dim=-1)


ATTENTIONS = {
    "scale-embed": ScaledByEmbedDim,
    "scale-missing": NotScaled,
    "softmax-query": SoftmaxOverQueries,
    "softmax-batch": SoftmaxOverBatch,
    "merge-no-transpose": JoinedWithoutTranspose,
    "value-from-key": ValuesFromKeys,
    "head-shared-projection": OneProjectionForAllHeads,
    "dropout-eval": DropoutInEval,
}
EMBEDDINGS = {"patch-view": StripsForPatches, "pos-one-row": OnePositionForAll}
BUGS = (
    *ATTENTIONS, *EMBEDDINGS, "residual-from-norm", "layers-shared", "stack-last-only",
    "double-softmax",
)  # fmt: skip


def build(bug: str, seed: int) -> VisionTransformer:
    """Return a new digits model with one bug, or the right one for `bug="right"`.

    Args:
        bug: "right", or an id of `BUGS`.
        seed: of the weights.

    Raises:
        ValueError: a bug that is not in this study.
    """
    if bug not in ("right", *BUGS):
        raise ValueError(f"build: bug must be 'right' or one of {BUGS}, got bug={bug!r}.")
    torch.manual_seed(seed)
    model = (SoftmaxAtTheEnd if bug == "double-softmax" else VisionTransformer)(**MODEL)
    width, heads, inner = MODEL["embed_dim"], MODEL["num_heads"], MODEL["mlp_dim"]
    if bug in EMBEDDINGS:
        model.embedding = EMBEDDINGS[bug](8, MODEL["patch_size"], 1, width)
    if bug == "stack-last-only":
        model.encoder = LastLayerOnly(MODEL["num_layers"], width, heads, inner)
    if bug == "layers-shared":
        model.encoder.layers[1] = model.encoder.layers[0]
    for number, layer in enumerate(model.encoder.layers):
        if bug == "residual-from-norm":
            model.encoder.layers[number] = ResidualFromNorm(width, heads, inner)
        if bug in ATTENTIONS:
            layer.attn = ATTENTIONS[bug](width, heads)
    return model


def train(bug: str, seed: int, epochs: int = EPOCHS) -> tuple[VisionTransformer, float]:
    """Train a model with one bug; return it and its accuracy on the test digits, all at once.

    Args:
        bug: "right", or an id of `BUGS`.
        seed: of the weights and of the order of the digits.
        epochs: how often each digit is seen.
    """
    learn, test = load_digits()
    model = build(bug, seed)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # so small a model only loses time with more
    try:
        history = fit(model, learn, test, epochs=epochs, seed=seed, progress=False)
    finally:
        torch.set_num_threads(threads)
    return model, history.accuracy[-1]


def save(measured: dict[str, list[float]], target: Path) -> None:
    """Write the accuracies to `target`."""
    lines = [
        f'    "{bug}": {json.dumps([round(a, 4) for a in row])}' for bug, row in measured.items()
    ]
    text = (
        f'{{\n  "epochs": {EPOCHS},\n  "seeds": {json.dumps(SEEDS)},\n  "accuracy": {{\n'
        + ",\n".join(lines)
        + "\n  }\n}\n"
    )
    write(target, text.encode())


if __name__ == "__main__":
    measured = {bug: [train(bug, seed)[1] for seed in SEEDS] for bug in ("right", *BUGS)}
    save(measured, TARGET)
