"""`diagnose_model`: whole models, of torch, of transformers, of the course, and buggy ones."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import Tensor, nn

from attention_clinic import ModelReport, diagnose_model
from helpers import error_of
from utils.decoder import Transformer
from utils.detection import DetectionTransformer
from utils.language_model import LanguageModel
from utils.vision_transformer import VisionTransformer

E, H = 24, 4
SIZES = {"embed_dim": E, "num_heads": H, "mlp_dim": 40}
SIDES = {"num_encoder_layers": 2, "num_decoder_layers": 2}
LAYERS = {"hidden_size": E, "num_hidden_layers": 3, "num_attention_heads": H}
WORDS = {"vocab_size": 50, "intermediate_size": 40, "max_position_embeddings": 32, **LAYERS}
IMAGES = {"intermediate_size": 40, "image_size": 8, "patch_size": 4, **LAYERS}
GPT2 = {"vocab_size": 50, "n_positions": 32, "n_embd": E, "n_layer": 3, "n_head": H}
MODERN = {"rotary-halves", "grouped-queries", "rms-norm", "gated"}


@pytest.fixture(autouse=True)
def start(one_thread: None) -> None:
    torch.manual_seed(0)


def table(report: ModelReport) -> list[tuple[str, str, str]]:
    """Return the rows as a person reads them."""
    return [(row.kind, row.where, row.verdict) for row in report.rows]


def verdicts(report: ModelReport) -> dict[str, str]:
    """Return what was found, by place."""
    return {row.where: row.verdict for row in report.rows}


class Attention(nn.Module):
    """Packed layers, as timm has them.

    Args:
        root: the scores are divided by head_dim to this power.
        weigh: makes weights of scores.
        hides: what a mask holds where it blocks.
    """

    def __init__(self, root: float = 0.5, weigh=torch.softmax, hides: int = 0):
        super().__init__()
        self.num_heads, self.root, self.weigh, self.hides = H, root, weigh, hides
        self.qkv, self.proj = nn.Linear(E, 3 * E), nn.Linear(E, E)

    def forward(self, x: Tensor, mask: Tensor | None = None, **beside: None) -> Tensor:
        q, k, v = self.qkv(x).unflatten(2, (3, H, -1)).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT / q.shape[-1] ** self.root
        if mask is not None:
            scores = scores.masked_fill(mask == self.hides, -1e9)
        return self.proj((self.weigh(scores, -1) @ v).transpose(1, 2).flatten(2))


def feed_forward() -> nn.Module:
    return nn.Sequential(nn.Linear(E, 40), nn.GELU(), nn.Linear(40, E))


class Block(nn.Module):
    def __init__(self, attention: nn.Module | None = None):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(E), attention or Attention()
        self.norm2, self.mlp = nn.LayerNorm(E), feed_forward()

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.attn(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


def vision(depth: int) -> VisionTransformer:
    sizes = {"image_size": 8, "patch_size": 4, "in_channels": 1, "num_classes": 5}
    return VisionTransformer(num_layers=depth, **sizes, **SIZES)


DETECTION = {"image_size": 16, "in_channels": 1, "num_classes": 3, "num_queries": 5, **SIDES}
TRANSLATION = {"source_size": 20, "target_size": 30, "max_length": 12, **SIDES}


def speaks(causal: bool = True) -> LanguageModel:
    return LanguageModel(vocab_size=30, num_layers=2, max_length=12, causal=causal, **SIZES)


DECODER = "decoder.layers.0-1"
LAYERED = {"encoder.layers.0-1": "healthy", DECODER: "healthy"}
TABLES = {f"{name}_embedding.positions": "healthy" for name in ("source", "target")}
HEALTHY = [
    (vision(3), {"embedding": "healthy", "encoder.layers.0-2": "healthy"}),
    (speaks(), {"encoder.layers.0-1": "healthy"}),
    (Transformer(**TRANSLATION, **SIZES), TABLES | {**LAYERED, DECODER: "healthy"}),
    (DetectionTransformer(**DETECTION, **SIZES), {"positions": "variant: sincos-2d", **LAYERED}),
    (nn.Transformer(E, H, 2, 2, 40, batch_first=True), LAYERED),
]


@pytest.mark.parametrize(("model", "found"), HEALTHY)
def test_healthy_models(model: nn.Module, found: dict[str, str]) -> None:
    report = diagnose_model(model)
    assert report and verdicts(report) == found, report


@pytest.mark.parametrize(
    ("name", "config", "sizes", "variants"),
    [
        ("BertForMaskedLM", "BertConfig", WORDS, set()),
        ("GPT2LMHeadModel", "GPT2Config", GPT2, set()),
        ("LlamaForCausalLM", "LlamaConfig", {**WORDS, "num_key_value_heads": 2}, MODERN),
        ("ViTForImageClassification", "ViTConfig", IMAGES, set()),
    ],
)
def test_models_of_transformers(name: str, config: str, sizes: dict, variants: set[str]) -> None:
    more = {"pad_token_id": 0} if "Llama" in name else {}
    model = getattr(transformers, name)(getattr(transformers, config)(**sizes, **more))
    report = diagnose_model(model)
    assert report, report
    (block,) = [row for row in report.rows if row.kind == "block"]
    assert len(block.places) == 3 and {v.id for v in block.report.variants} == variants
    others = {row.kind for row in report.rows} - {"block"}
    assert others == ({"patches"} if "ViT" in name else set())


def test_a_buggy_layer_is_named_with_its_path() -> None:
    model = vision(5)
    model.encoder.layers[3].attn = Attention(root=0.25)
    report = diagnose_model(model)
    assert not report and report.ids == ("scale-other",)
    assert table(report)[1:] == [
        ("block", "encoder.layers.0-2,4", "healthy"),
        ("attention", "encoder.layers.3.attn", "buggy: scale-other"),
        ("rest of block", "encoder.layers.3", "healthy"),
    ]
    text = str(report)
    assert text.splitlines()[0] == "VisionTransformer: 1 buggy of 7 parts examined"
    assert max(map(len, text.splitlines())) <= 84
    assert "\nencoder.layers.3.attn\nAttention: not equal to the reference" in text


def test_a_bug_of_the_block_itself_has_the_path_of_the_block() -> None:
    class Late(Block):
        def forward(self, x: Tensor) -> Tensor:
            x = self.norm1(x)
            x = x + self.attn(x)
            return x + self.mlp(self.norm2(x))

    report = diagnose_model(nn.Sequential(nn.Linear(5, E), Block(), Late()))
    assert verdicts(report) == {"1": "healthy", "2": "buggy: residual-from-norm"}


def test_what_nothing_explains_is_not_healthy_and_has_its_path() -> None:
    """Weights by sines are not seen as such, but the other layers of the list attend."""
    blocks = [Block(), Block(Attention(weigh=lambda s, dim: s.sin())), Block()]
    report = diagnose_model(nn.Sequential(nn.Linear(5, E), *blocks))
    assert not report and not report.ids and "1 unexplained of" in report.verdict
    assert report.unhealthy[0].where in ("2", "2.attn")


class Placed(nn.Module):
    def __init__(self, held: Tensor):
        super().__init__()
        self.block = Block()
        self.register_buffer("held", held)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x + self.held[: x.shape[1]])


def test_tables_of_sines_that_are_added() -> None:
    angle = torch.arange(12)[:, None] * 10_000 ** -(torch.arange(0, E, 2) / E)
    right = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
    assert table(diagnose_model(Placed(right)))[0] == ("positions", "held", "healthy")
    half = right.clone()
    half[:, 1::2] = 0
    assert "sincos-cosine" in diagnose_model(Placed(half)).ids
    for held in (torch.zeros(12, E), torch.rand(12, E)):
        assert [row.kind for row in diagnose_model(Placed(held)).rows] == ["block"]


def test_what_must_be_causal() -> None:
    assert diagnose_model(speaks(causal=False))
    assert "mask-not-causal" in diagnose_model(speaks(causal=False), causal=True).ids


@pytest.mark.parametrize("hides", [0, 1])
def test_masks_that_a_model_needs_block_nothing(hides: int) -> None:
    class Reader(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(40, E)
            self.layers = nn.ModuleList(Block(Attention(hides=hides)) for _ in range(2))

        def forward(self, src: Tensor, src_mask: Tensor) -> Tensor:
            x = self.words(src)
            for layer in self.layers:
                x = layer(x, src_mask)
            return x

    assert verdicts(diagnose_model(Reader())) == {"layers.0-1": "healthy"}


def test_a_model_that_takes_nothing_asks_for_its_inputs() -> None:
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = Block()

        def forward(self, batch, scale):
            return {"y": self.block(batch["tokens"] * scale)}

    message = error_of(lambda: diagnose_model(Odd()))
    assert message.startswith("diagnose_model: Odd must run on its inputs, got ")
    assert message.endswith("diagnose_model(model, inputs=(batch, scale,)).")
    given = {"batch": {"tokens": torch.randn(2, 5, E)}, "scale": 2.0}
    assert diagnose_model(Odd(), given) and diagnose_model(Odd(), tuple(given.values()))


def test_what_is_refused() -> None:
    assert "got the class Block" in error_of(lambda: diagnose_model(Block))
    assert "got int" in error_of(lambda: diagnose_model(3))
    assert "num_heads" in error_of(lambda: diagnose_model(Block(), num_heads=0))
    report = diagnose_model(nn.Linear(3, 3))
    assert not report and "nothing was found" in str(report)


def test_the_model_stays_as_it_was() -> None:
    model = torch.compile(vision(2)).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    assert diagnose_model(model).name == "VisionTransformer"
    assert model.training and torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
