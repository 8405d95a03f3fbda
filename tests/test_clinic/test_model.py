"""`diagnose_model`: whole models, of torch, of transformers, of the course, and sick ones."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
import transformers
from patients.attention import ViewsScaledByEmbed
from patients.stacks import StackOfOneMask, StackOfWindows
from patients.unknown import Sines
from patients.windowed_blocks import IMAGE
from torch import Tensor, nn

from attention_clinic import ModelReport, diagnose, diagnose_block, diagnose_model
from helpers import error_of
from utils.decoder import Transformer
from utils.detection import DetectionTransformer
from utils.encoder import Encoder
from utils.language_model import LanguageModel
from utils.modern_decoder import ModernDecoder
from utils.vision_transformer import VisionTransformer

SIZES = {"embed_dim": 24, "num_heads": 4, "mlp_dim": 40}
WORDS = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 32,
}
IMAGES = {
    "hidden_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "image_size": 8,
    "patch_size": 4,
}
SIDES = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "vocab_size": 50,
    "max_position_embeddings": 32,
}
MODERN = {"rotary-halves", "grouped-queries", "rms-norm", "gated"}
T5 = {"d_model": 24, "d_kv": 6, "d_ff": 40, "num_layers": 2, "num_heads": 4, "vocab_size": 50}
GPT2 = {"vocab_size": 50, "n_positions": 32, "n_embd": 24, "n_layer": 3, "n_head": 4}


@pytest.fixture(autouse=True)
def start(one_thread: None) -> None:
    torch.manual_seed(0)


def table(report: ModelReport) -> list[tuple[str, str, str]]:
    """Return the rows as one would read them."""
    return [(row.kind, row.where, row.verdict) for row in report.rows]


# ---------------------------------------------------------------------------- healthy models


@pytest.mark.parametrize(
    ("make", "places"),
    [
        (
            lambda: VisionTransformer(
                image_size=8, patch_size=4, in_channels=1, num_classes=5, num_layers=3, **SIZES
            ),
            {"patches": "embedding", "block": "encoder.layers.0-2"},
        ),
        (
            lambda: LanguageModel(vocab_size=30, num_layers=2, max_length=12, **SIZES),
            {"block": "encoder.layers.0-1"},
        ),
        (
            lambda: ModernDecoder(vocab_size=30, num_layers=2, num_kv_heads=2, **SIZES),
            {"block": "layers.0-1"},
        ),
        (lambda: Encoder(2, **SIZES), {"block": "layers.0-1"}),
    ],
    ids=["VisionTransformer", "LanguageModel", "ModernDecoder", "Encoder"],
)
def test_models_of_the_course(make, places) -> None:
    report = diagnose_model(make())
    assert report, report
    assert {row.kind: row.where for row in report.rows} == places


def test_models_with_two_sides() -> None:
    sides = {"num_encoder_layers": 2, "num_decoder_layers": 2}
    course = Transformer(source_size=20, target_size=30, max_length=12, **sides, **SIZES)
    report = diagnose_model(course)
    assert report, report
    assert [row.kind for row in report.rows] == ["positions"] * 2 + ["block"] * 2
    assert report.rows[-1].verdict == "healthy; causal"
    model = nn.Transformer(24, 4, 2, 2, 40, batch_first=True)
    report = diagnose_model(model)
    assert report, report
    assert [row.where for row in report.rows] == ["encoder.layers.0-1", "decoder.layers.0-1"]
    detection = DetectionTransformer(
        image_size=16, in_channels=1, num_classes=3, num_queries=5, **sides, **SIZES
    )
    report = diagnose_model(detection)
    assert not report.ids, report


@pytest.mark.parametrize(
    ("name", "config", "sizes", "variants"),
    [
        ("BertForMaskedLM", "BertConfig", WORDS, set()),
        ("GPT2LMHeadModel", "GPT2Config", GPT2, set()),
        (
            "LlamaForCausalLM",
            "LlamaConfig",
            WORDS | {"num_key_value_heads": 2, "pad_token_id": 0},
            MODERN,
        ),
        ("ViTForImageClassification", "ViTConfig", IMAGES, set()),
        (
            "T5ForConditionalGeneration",
            "T5Config",
            T5,
            {"scale-in-weights", "relative-bias", "rms-norm"},
        ),
        ("BartForConditionalGeneration", "BartConfig", SIDES, set()),
        ("AlbertModel", "AlbertConfig", WORDS | {"embedding_size": 12}, set()),
    ],
)
def test_models_of_transformers(name: str, config: str, sizes: dict, variants: set[str]) -> None:
    model = getattr(transformers, name)(getattr(transformers, config)(**sizes))
    report = diagnose_model(model)
    assert report, report
    blocks = [row for row in report.rows if row.kind == "block"]
    assert blocks and len(blocks) == len(report.rows) - sum(
        row.kind in ("loss", "patches") for row in report.rows
    )
    assert {v.id for row in blocks for v in row.report.variants} == variants
    if name in ("GPT2LMHeadModel", "LlamaForCausalLM"):
        assert any(row.kind == "loss" for row in report.rows)
        assert all("causal" in row.verdict for row in blocks)
    if name == "BertForMaskedLM":
        assert blocks[0].where == "bert.encoder.layer.0-2"
        assert "causal" not in blocks[0].verdict
    if name == "ViTForImageClassification":
        assert table(report)[0] == ("patches", "vit.embeddings", "healthy")


# timm's names and forms, without timm: packed qkv, layer scale left out, class token in the model


class Attention(nn.Module):
    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.num_heads, self.head_dim = num_heads, dim // num_heads
        self.scale = self.head_dim**-0.5
        self.qkv, self.proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        b, n, c = x.shape
        qkv = self.qkv(x).reshape(b, n, 3, self.num_heads, self.head_dim).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        x = F.scaled_dot_product_attention(q, k, v)
        return self.proj(x.transpose(1, 2).reshape(b, n, c))


class TimmBlock(nn.Module):
    def __init__(self, dim: int, num_heads: int):
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(dim), Attention(dim, num_heads)
        self.norm2 = nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    def __init__(self, patch_size: int, dim: int):
        super().__init__()
        self.proj = nn.Conv2d(3, dim, kernel_size=patch_size, stride=patch_size)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(x).flatten(2).transpose(1, 2)


class TimmViT(nn.Module):
    """As timm writes it."""

    def __init__(self, depth: int = 12, dim: int = 24, num_heads: int = 4):
        super().__init__()
        self.img_size = 16
        self.patch_embed = PatchEmbed(4, dim)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, 17, dim) * 0.02)
        self.blocks = nn.Sequential(*(TimmBlock(dim, num_heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch_embed(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], dim=1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


def test_twelve_layers_alike_are_one_row() -> None:
    report = diagnose_model(TimmViT())
    assert report, report
    assert table(report) == [
        ("patches", "patch_embed", "healthy"),
        ("block", "blocks.0-11", "healthy"),
    ]
    text = str(report)
    assert text.splitlines()[0] == "TimmViT: healthy, 13 parts examined"
    assert "  Checked: blocks: 12 layers, each reads what the one before it returned" in text
    assert "  Not tried: other parts: the model's own parameters, norm, head" in text
    assert max(map(len, text.splitlines())) <= 84


# ------------------------------------------------------------------------------- sick models


def test_a_planted_sick_layer_is_named_with_its_path() -> None:
    model = TimmViT(depth=5)
    model.blocks[3].attn = ViewsScaledByEmbed(24, 4)
    report = diagnose_model(model)
    assert not report and report.ids == ("scale-embed",)
    assert table(report)[1:] == [
        ("block", "blocks.0-2,4", "healthy"),
        ("attention", "blocks.3.attn", "sick: scale-embed"),
        ("rest of block", "blocks.3", "healthy"),
    ]
    text = str(report)
    assert text.splitlines()[0] == "TimmViT: 1 sick of 7 parts examined"
    assert "\nblocks.3.attn\nViewsScaledByEmbed: not equal to the reference" in text
    assert "Fix: divide by head_dim ** 0.5" in text
    assert "<td>blocks.3.attn</td><td>sick: scale-embed</td>" in report._repr_html_()


def test_a_layer_that_differs_by_a_number_only_is_no_other_layer() -> None:
    """Same class, same sizes, same names: only what it gives tells it apart."""
    config = transformers.BertConfig(**WORDS)
    model = transformers.BertModel(config)
    model.encoder.layer[1].attention.self.scaling = 24**-0.5
    report = diagnose_model(model)
    assert ("attention", "encoder.layer.1.attention.self", "sick: scale-embed") in table(report)
    assert ("block", "encoder.layer.0,2", "healthy") in table(report)
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**GPT2))
    model.transformer.h[2].ln_1.forward = lambda x: x
    (sick,) = diagnose_model(model).sick
    assert sick.places == ("transformer.h.2",)


def test_what_no_mistake_explains_is_unexplained_and_has_its_path() -> None:
    model = TimmViT(depth=2)
    model.blocks[1].attn = Sines(24, 4)
    report = diagnose_model(model)
    assert not report and not report.ids
    assert ("attention", "blocks.1.attn", "unexplained") in table(report)
    assert "1 unexplained of" in report.verdict


def test_no_plain_attention_over_thousands_of_tokens_is_put_in_the_place_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.cut, self.block = nn.Conv2d(3, 24, 1), TimmBlock(24, 4)
            self.block.attn = Sines(24, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.block(self.cut(x).flatten(2).mT)

    monkeypatch.setattr("attention_clinic.examine.model.MANY", 30)
    report = diagnose_model(Model(), num_heads=4, inputs=torch.randn(2, 3, 6, 6))
    assert "Not tried: the rest of block, which gets 36 tokens" in str(report)
    report = diagnose_model(Model(), num_heads=4, inputs=torch.randn(2, 3, 5, 5))
    assert "the rest of block" not in str(report) and "rest of block" in str(report)


def test_a_layer_that_hides_its_attention_is_not_passed_over() -> None:
    class Hidden(nn.Module):
        """No softmax, and no name that says what its layers are for."""

        def __init__(self):
            super().__init__()
            self.one, self.two, self.three = (nn.Linear(24, 24) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            return (self.one(x) @ self.two(x).mT).sigmoid() @ self.three(x)

    model = TimmViT(depth=3)
    model.blocks[1].attn = Hidden()
    report = diagnose_model(model)
    assert not report and ("block", "blocks.1", "unexplained") in table(report)
    assert "Fails: an attention was found in it, as in the others of its list" in str(report)


class Places(nn.Module):
    """An attention behind a convolution of each number, as CoaT has it."""

    def __init__(self, inner: nn.Module, places: nn.Module):
        super().__init__()
        self.inner, self.places = inner, places

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + self.places(x.mT).mT)


class Stacked(nn.Module):
    def __init__(self, wrong: str = ""):
        super().__init__()
        self.wrong = wrong
        one = TimmBlock(24, 4)
        self.layers = nn.ModuleList(
            one if wrong == "shared" else TimmBlock(24, 4) for _ in range(3)
        )
        if wrong in ("places", "feed"):
            places = nn.Conv1d(24, 24, 3, padding=1, groups=24)
            for layer in self.layers:
                layer.attn = Places(layer.attn, places) if wrong == "places" else layer.attn
                layer.mlp = one.mlp if wrong == "feed" else layer.mlp
        if wrong == "copies":
            for layer in self.layers:
                layer.load_state_dict(one.state_dict())

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for layer in self.layers:
            y = layer(x if self.wrong == "last" else y)
            if self.wrong == "returned":
                return y
        return y


@pytest.mark.parametrize(
    ("wrong", "id"),
    [
        ("", ""),
        ("shared", "layers-shared"),
        ("feed", "layers-shared"),
        ("copies", "layers-same-init"),
        ("last", "stack-last-only"),
        ("returned", "part-unused"),
    ],
)
def test_the_layers_of_a_stack(wrong: str, id: str) -> None:
    report = diagnose_model(Stacked(wrong))
    assert report.ids == ((id,) if id else ()) and bool(report) is not bool(id)
    if id:
        assert ("stack", "layers", f"sick: {id}") in table(report)


def test_an_attention_that_stands_in_several_lists_is_exchanged_in_all() -> None:
    class Paired(nn.Module):
        def __init__(self):
            super().__init__()
            one = TimmBlock(24, 4)
            self.attentions, self.feeds = (
                nn.ModuleList([one.attn] * 2),
                nn.ModuleList([one.mlp] * 2),
            )
            self.norms1, self.norms2 = (
                nn.ModuleList([one.norm1] * 2),
                nn.ModuleList([one.norm2] * 2),
            )

        def forward(self, x: Tensor) -> Tensor:
            for n in range(2):
                x = x + self.attentions[n](self.norms1[n](x))
                x = x + self.feeds[n](self.norms2[n](x))
            return x

    report = diagnose_model(nn.Sequential(nn.Linear(24, 24), Paired()))
    assert ("rest of block", "1", "sick: layers-shared") in table(report)


def test_a_small_part_may_be_shared_by_all_layers() -> None:
    assert "layers-shared" not in diagnose_model(Stacked("places"), num_heads=4).ids


def test_branches_side_by_side_are_no_stack() -> None:
    class Branches(Stacked):
        def forward(self, x: Tensor) -> Tensor:
            return sum(layer(x) for layer in self.layers)

    report = diagnose_model(Branches())
    assert report and not report.checked


def test_layers_that_never_run_are_named() -> None:
    class First(Stacked):
        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            for _ in self.layers:
                x = self.layers[0](x)
            return x

    class Asked(Stacked):
        def forward(self, x: Tensor, depth: int = 2) -> Tensor:
            for layer in self.layers[:depth]:
                x = layer(x)
            return x

    class Chosen(Stacked):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleDict({"text": self.layers[0], "image": self.layers[1]})

        def forward(self, x: Tensor) -> Tensor:
            return self.layers["text"](x)

    class Early(Stacked):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers:
                x = layer(x)
                if x.abs().amax() > 0:
                    break
            return x

    class Counted(Stacked):
        def forward(self, x: Tensor) -> Tensor:
            for layer in self.layers[: 1 + int(x.mean().abs().item() > 1e9)]:
                x = layer(x)
            return x

    class Forgotten(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Stacked(), Stacked()

        def forward(self, x: Tensor) -> Tensor:
            return self.first(x)

    report = diagnose_model(First())
    assert ("stack", "layers", "sick: layers-shared + part-unused") in table(report)
    assert "layers.1, layers.2 are never called" in str(report)
    assert diagnose_model(Asked()) and diagnose_model(Chosen())
    assert diagnose_model(Early()) and diagnose_model(Counted())
    report = diagnose_model(Forgotten())
    assert ("stack", "second", "sick: part-unused") in table(report)


def test_samples_that_mix() -> None:
    layer = nn.TransformerEncoderLayer(24, 4, 40)  # takes (n, b, e) and gets (b, n, e)
    report = diagnose_model(nn.Sequential(nn.Linear(24, 24), layer), torch.randn(3, 7, 24))
    assert not report and any("samples stay apart" in words for words in report.failing)


class Speaks(nn.Module):
    """A language model with a loss of its own, in the style of nanoGPT."""

    def __init__(self, loss, causal: bool = True):
        super().__init__()
        self.loss = loss
        self.model = LanguageModel(
            vocab_size=30, num_layers=1, max_length=12, causal=causal, **SIZES
        )

    def forward(self, idx: Tensor, targets: Tensor | None = None):
        scores = self.model(idx)
        return scores, None if targets is None else self.loss(scores, targets)


def plain(scores: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


def shifted(scores: Tensor, targets: Tensor) -> Tensor:
    return plain(scores[:, :-1], targets[:, 1:])


def twice(scores: Tensor, targets: Tensor) -> Tensor:
    return plain(scores.softmax(-1), targets)


def test_the_loss_that_a_model_takes_of_its_own_scores() -> None:
    report = diagnose_model(Speaks(plain))
    assert report and report.rows[-1].kind == "loss"
    assert any("next tokens" in words for words in report.rows[-1].report.untried)
    assert diagnose_model(Speaks(shifted))
    sick = diagnose_model(Speaks(twice))
    assert sick.rows[-1].kind == "loss" and sick.ids == diagnose_loss_ids()


def diagnose_loss_ids() -> tuple[str, ...]:
    from attention_clinic import diagnose_loss

    return diagnose_loss(lambda scores, classes: F.cross_entropy(scores.softmax(-1), classes)).ids


def test_who_learns_the_next_token_must_not_see_it() -> None:
    assert diagnose_model(Speaks(shifted, causal=True))
    report = diagnose_model(Speaks(shifted, causal=False))
    assert not report and any("the future is hidden" in words for words in report.failing)
    sees = LanguageModel(vocab_size=30, num_layers=1, max_length=12, causal=False, **SIZES)
    report = diagnose_model(sees, causal=True)
    assert "mask-not-causal" in report.ids


def test_a_table_of_sines() -> None:
    class Tabled(nn.Module):
        def __init__(self, step: float):
            super().__init__()
            place = torch.arange(12)[:, None]
            angle = place * step ** (torch.arange(0, 24, 2) / 24)
            table = torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)
            self.register_buffer("table", table)
            self.block = TimmBlock(24, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.block(x + self.table[: x.shape[1]])

    report = diagnose_model(Tabled(1 / 10_000))
    assert report and table(report)[0] == ("positions", "table", "healthy")
    assert not diagnose_model(Tabled(1 / 10)).rows[0].report.healthy


class Placed(nn.Module):
    """Adds a table to its tokens, whatever the table holds."""

    def __init__(self, held: Tensor):
        super().__init__()
        self.pos_encoding, self.block = held, TimmBlock(24, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x + self.pos_encoding[: x.shape[1]])


def test_a_table_with_the_name_of_places_is_looked_at_whatever_it_holds() -> None:
    angle = torch.arange(12)[:, None] * 10_000 ** -(torch.arange(0, 24, 2) / 24)
    half = torch.zeros(12, 24)
    half[:, ::2] = angle.sin()
    for held in (half, torch.cat([angle.sin(), angle.sin()], dim=1)):
        report = diagnose_model(Placed(held))
        assert table(report)[0] == ("positions", "pos_encoding", "sick: sincos-cosine")
    for held in (torch.zeros(12, 24), torch.rand(12, 24)):
        report = diagnose_model(Placed(held))
        assert report.healthy
        assert "other parts: pos_encoding" in report.untried


# -------------------------------------------------------------------------- how it is called


def test_inputs_of_the_user() -> None:
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.block = TimmBlock(24, 4)

        def forward(self, batch, scale):
            return {"y": self.block(batch["tokens"] * scale)}

    report = diagnose_model(Odd())
    assert report and "did not run on inputs made for it" in " ".join(report.untried)
    given = {"batch": {"tokens": torch.randn(2, 5, 24)}, "scale": 2.0}
    report = diagnose_model(Odd(), given)
    assert report and not any("did not run" in words for words in report.untried)
    assert diagnose_model(Odd(), tuple(given.values()))
    text = error_of(lambda: diagnose_model(Odd(), torch.randn(3)))
    assert text.startswith("diagnose_model: Odd must run on inputs, got TypeError")


def test_images_are_small_where_no_side_is_said() -> None:
    class Pyramid(nn.Module):
        def __init__(self):
            super().__init__()
            self.cut, self.block = nn.Conv2d(3, 24, 8, 8), TimmBlock(24, 4)

        def forward(self, x: Tensor) -> Tensor:
            sides.append(x.shape[-1])
            return self.block(self.cut(x).flatten(2).mT)

    sides: list[int] = []
    assert diagnose_model(Pyramid(), num_heads=4)
    assert max(sides) == 64


class SizedByItsPlaces(nn.Module):
    """Images of 20 x 20: nothing but the number of learned places says so."""

    def __init__(self, tokens: int):
        super().__init__()
        self.cut = nn.Conv2d(3, 24, 5, 5)
        self.classes = nn.Parameter(torch.zeros(1, tokens - 16, 24))
        self.places = nn.Parameter(torch.randn(1, tokens, 24))
        self.block = TimmBlock(24, 4)

    def forward(self, pixels: Tensor) -> Tensor:
        x = self.cut(pixels).flatten(2).mT
        x = torch.cat([self.classes.expand(len(x), -1, -1), x], dim=1)
        return self.block(x + self.places)


@pytest.mark.parametrize("tokens", [17, 18])
def test_images_are_as_large_as_learned_places_say(tokens: int) -> None:
    report = diagnose_model(SizedByItsPlaces(tokens))
    assert report.healthy
    assert ("block", "block", "healthy") in table(report)
    assert not any("did not run" in words for words in report.untried)


def test_what_is_refused() -> None:
    assert "got the class TimmViT" in error_of(lambda: diagnose_model(TimmViT))
    assert "got int" in error_of(lambda: diagnose_model(3))
    assert "num_heads" in error_of(lambda: diagnose_model(TimmViT(2), num_heads=0))
    report = diagnose_model(nn.Linear(3, 3))
    assert not report and "nothing was found" in str(report)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_and_lazy_modules_are_refused_in_words() -> None:
    scripted = torch.jit.script(nn.Linear(24, 24))
    for tool in (diagnose_model, lambda m: diagnose(m, 4), lambda m: diagnose_block(m, 4)):
        assert "as torch.jit made it" in error_of(lambda tool=tool: tool(scripted))

    class Odd(nn.Sequential):
        def forward(self, x, level):
            return super().forward(x[level])

    lazy = Odd(nn.LazyLinear(24), nn.Linear(24, 24))
    assert "0.weight still lazy. Call it once first" in error_of(lambda: diagnose(lazy, 4))


def test_lazy_layers_get_the_sizes_of_a_first_call() -> None:
    class Lazy(nn.Module):
        def __init__(self, wrong: float = 1.0):
            super().__init__()
            self.num_heads, self.wrong = 4, wrong
            self.w_q, self.w_k, self.w_v, self.w_o = (nn.LazyLinear(24) for _ in range(4))

        def forward(self, queries, keys, values, valid_lens=None):
            parts = self.w_q(queries), self.w_k(keys), self.w_v(values)
            q, k, v = (t.unflatten(-1, (4, -1)).transpose(1, 2) for t in parts)
            mixed = (q @ k.mT * self.wrong / 6**0.5).softmax(-1) @ v
            return self.w_o(mixed.transpose(1, 2).flatten(2))

    module = Lazy()
    assert diagnose(module, 4).healthy and diagnose(Lazy(2.0), 4).ids == ("scale-other",)
    assert isinstance(module.w_q.weight, nn.UninitializedParameter)  # it stays as it is


def test_compiled_modules_are_examined_as_they_were_written() -> None:
    sick = torch.compile(ViewsScaledByEmbed(24, 4))
    assert diagnose(sick, 4).ids == ("scale-embed",)
    model = TimmViT(depth=2)
    model.blocks[1].attn = torch.compile(ViewsScaledByEmbed(24, 4))
    report = diagnose_model(torch.compile(model))
    assert report.name == "TimmViT" and report.ids == ("scale-embed",)
    assert any(row.where.startswith("blocks.1.attn") for row in report.sick)
    in_place = TimmBlock(24, 4)
    in_place.compile()
    assert diagnose_block(in_place, 4).healthy


def test_the_model_stays_as_it_was() -> None:
    model = TimmViT(depth=2).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.get_rng_state()
    diagnose_model(model)
    assert model.training and torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())


def test_programs_read_it() -> None:
    model = TimmViT(depth=2)
    model.blocks[0].attn = ViewsScaledByEmbed(24, 4)
    data = diagnose_model(model).data()
    assert data["healthy"] is False and data["name"] == "TimmViT"
    sick = [row for row in data["rows"] if row["kind"] == "sick"]
    assert [(row["where"], row["explanations"][0]["ids"]) for row in sick] == [
        ("blocks.0.attn", ["scale-embed"])
    ]
    assert math.isfinite(len(str(data)))


class Convolved(nn.Module):
    """An attention over 1,600 places, between convolutions."""

    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.head, self.tail = nn.Conv2d(3, 16, 3, padding=1), nn.ConvTranspose2d(16, 3, 1)
        self.mix = OverPlaces(wrong)

    def forward(self, image: Tensor) -> Tensor:
        y = self.head(image)
        return self.tail(y + self.mix(y))


class OverPlaces(nn.Module):
    def __init__(self, wrong: bool) -> None:
        super().__init__()
        self.num_heads, self.wrong = 2, wrong
        self.qkv, self.out = nn.Conv2d(16, 48, 1), nn.Conv2d(16, 16, 1)

    def forward(self, image: Tensor) -> Tensor:
        parts = self.qkv(image).flatten(2).unflatten(1, (3, 2, 8)).mT.unbind(1)
        q, k, v = parts
        scores = q @ k.mT / (1.0 if self.wrong else 8**0.5)
        return self.out((scores.softmax(-1) @ v).mT.reshape_as(image))


@pytest.mark.parametrize("wrong", [False, True])
def test_over_thousands_of_places_an_attention_is_examined_on_few(
    wrong: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    longest = []
    forward = OverPlaces.forward

    def counted(self: OverPlaces, image: Tensor) -> Tensor:
        longest.append(image.shape[2] * image.shape[3])
        return forward(self, image)

    monkeypatch.setattr(OverPlaces, "forward", counted)
    report = diagnose_model(Convolved(wrong), torch.randn(2, 3, 40, 40))
    assert report.ids == (("scale-missing",) if wrong else ())
    assert [row.kind for row in report.rows] == ["attention"]
    assert "the rest of the model, which gets 1600 tokens" in str(report)
    assert sum(longest) < 20 * 1600


@pytest.mark.parametrize("wrong", [False, True])
def test_a_mask_that_a_model_hands_to_windows_must_fit_how_they_are_cut(wrong: bool) -> None:
    report = diagnose_model(
        (StackOfOneMask if wrong else StackOfWindows)(24, 4), torch.randn(*IMAGE, 24)
    )
    assert report.healthy != wrong and not report.ids
    blocks = [row for row in report.rows if "block" in row.kind]
    assert [row.report.healthy for row in blocks] == [not wrong, True]
    assert {v.id for v in blocks[1].report.variants} == {"window", "relative-bias"}
