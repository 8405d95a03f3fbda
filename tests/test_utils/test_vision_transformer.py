"""The whole model: equal to HuggingFace's, and fit to be saved, copied and moved."""

import copy
import io
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from helpers import CLOSE, child_names, error_of, random, randomize
from utils.attention import record_attention
from utils.data import SHIPPED, load_digits, load_shipped, resource
from utils.training import accuracy
from utils.vision_transformer import VisionTransformer

SMALL = {
    "image_size": (8, 12),
    "patch_size": (2, 4),
    "in_channels": 3,
    "num_classes": 5,
    "embed_dim": 16,
    "num_heads": 4,
    "mlp_dim": 24,
    "num_layers": 2,
}  # 4 x 3 patches and the class token: 13 tokens


def small(**changes):
    return randomize(VisionTransformer(**(SMALL | changes))).eval()


def some_images(b=6):
    return random(b, 3, 8, 12, seed=1)


@pytest.mark.parametrize(
    "image_size, patch_size, attention",
    [((8, 12), (2, 4), "sdpa"), ((6, 6), (6, 6), "eager"), ((7, 3), (1, 3), "eager")],
)
def test_equals_huggingface(image_size, patch_size, attention, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # nothing is fetched: the weights are random
    import transformers

    e = SMALL["embed_dim"]
    config = transformers.ViTConfig(
        image_size=image_size,
        patch_size=patch_size,
        num_channels=3,
        hidden_size=e,
        num_attention_heads=SMALL["num_heads"],
        intermediate_size=SMALL["mlp_dim"],
        num_hidden_layers=SMALL["num_layers"],
        attn_implementation=attention,
    )
    theirs = randomize(transformers.ViTModel(config)).eval()
    assert theirs.config._attn_implementation == attention
    sizes = {"image_size": image_size, "patch_size": patch_size, "num_classes": e}
    ours = VisionTransformer(**(SMALL | sizes), norm_eps=config.layer_norm_eps).eval()

    names = {  # ours: theirs; in the order of our state_dict
        "embedding.class_token": "embeddings.cls_token",
        "embedding.positions": "embeddings.position_embeddings",
        "embedding.proj": "embeddings.patch_embeddings.projection",
        **{
            f"encoder.layers.{layer}.{our}": f"layers.{layer}.{their}"
            for layer in range(SMALL["num_layers"])
            for our, their in {
                "norm1": "layernorm_before",
                "attn.q_proj": "attention.q_proj",
                "attn.k_proj": "attention.k_proj",
                "attn.v_proj": "attention.v_proj",
                "attn.out_proj": "attention.o_proj",
                "norm2": "layernorm_after",
                "mlp.fc1": "mlp.fc1",
                "mlp.fc2": "mlp.fc2",
            }.items()
        },
        "encoder.norm": "layernorm",
        "head": "pooler.dense",
    }
    weights = theirs.state_dict()
    mapped = {}
    for key, value in ours.state_dict().items():
        prefix = key if key in names else key.rsplit(".", 1)[0]
        mapped[key] = weights.pop(names[prefix] + key.removeprefix(prefix)).reshape(value.shape)
    assert not weights, "every weight of theirs has its place"
    ours.load_state_dict(mapped)

    images = random(4, 3, *image_size, seed=2)
    with torch.no_grad():
        expected = theirs(images, output_attentions=attention == "eager")
        tokens = ours.encoder(ours.embedding(images))
        with record_attention(ours) as maps:
            pooled = torch.tanh(ours(images))
    torch.testing.assert_close(tokens, expected.last_hidden_state, **CLOSE)
    torch.testing.assert_close(pooled, expected.pooler_output, **CLOSE)
    if attention == "eager":
        torch.testing.assert_close(tuple(maps), expected.attentions, **CLOSE)


def test_the_running_example_is_vit_base():
    with torch.device("meta"):
        model = VisionTransformer(
            image_size=96,
            patch_size=16,
            in_channels=3,
            num_classes=10,
            embed_dim=768,
            num_heads=8,
            mlp_dim=3072,
            num_layers=12,
        )
        assert model(torch.zeros(6, 3, 96, 96)).shape == (6, 10)
        assert model.encoder(model.embedding(torch.zeros(6, 3, 96, 96))).shape == (6, 37, 768)
    count = {
        name: sum(p.numel() for p in part.parameters()) for name, part in model.named_children()
    }
    block = 2_362_368 + 4_722_432 + 2 * 1536
    assert count == {
        "embedding": 590_592 + 768 + 28_416,
        "encoder": 12 * block + 1536,
        "head": 7690,
    }


def test_dropout_and_norm_eps_reach_the_encoder():
    model = small(dropout=0.2, norm_eps=1e-3)
    assert model.encoder.layers[1].attn.dropout == 0.2
    assert model.encoder.norm.eps == model.encoder.layers[0].norm2.eps == 1e-3
    assert not torch.equal(model.train()(some_images()), model(some_images()))
    assert torch.equal(model.eval()(some_images()), model(some_images()))


@pytest.mark.parametrize(
    "changes, shape",
    [
        ({"image_size": 8, "patch_size": 2, "in_channels": 1}, (3, 1, 8, 8)),
        ({}, (1, 3, 8, 12)),
        ({}, (0, 3, 8, 12)),
        ({"patch_size": (8, 12)}, (2, 3, 8, 12)),  # one patch
        ({"image_size": 1, "patch_size": 1, "num_heads": 1}, (2, 3, 1, 1)),
        ({"image_size": (2, 1), "patch_size": 1, "embed_dim": 1, "num_heads": 1}, (2, 3, 2, 1)),
        ({"num_classes": 1, "num_layers": 1, "num_heads": 16}, (2, 3, 8, 12)),
    ],
)
def test_odd_sizes(changes, shape):
    model = small(**changes)
    images = random(*shape)
    scores = model(images)
    scores.sum().backward()
    assert scores.shape == (shape[0], (SMALL | changes)["num_classes"])
    with record_attention(model):
        torch.testing.assert_close(model(images), scores, **CLOSE)


def test_every_parameter_learns():
    model = small()
    model(some_images()).logsumexp(dim=-1).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    silent = [key for key, p in model.named_parameters() if p.grad.abs().max() < 1e-6]
    # a bias of the keys adds the same to all scores of a row: softmax does not see it
    assert silent == [key for key, _ in model.named_parameters() if key.endswith("k_proj.bias")]


# --- saved, copied, moved


def another():
    torch.manual_seed(123)
    return VisionTransformer(**SMALL).eval()


def test_state_dict_round_trip(tmp_path):
    model, images = small(), some_images()
    expected = model(images)
    twin = another()
    assert not torch.allclose(twin(images), expected)
    twin.load_state_dict(model.state_dict())
    assert torch.equal(twin(images), expected)

    save_file(model.state_dict(), tmp_path / "model.safetensors")
    twin = another()
    twin.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.equal(twin(images), expected)

    torch.save(model.state_dict(), tmp_path / "model.pt")
    twin = another()
    twin.load_state_dict(torch.load(tmp_path / "model.pt", weights_only=True))
    assert torch.equal(twin(images), expected)


def test_state_dict_holds_the_parameters_and_nothing_else():
    model = small()
    assert list(model.state_dict()) == [name for name, _ in model.named_parameters()]
    assert child_names(model) == ["embedding", "encoder", "head"]
    with record_attention(model):
        model(some_images())
        assert list(model.state_dict()) == [name for name, _ in model.named_parameters()]


def test_deepcopy_and_pickle():
    model, images = small(), some_images()
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for twin in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(file, weights_only=False),
    ):
        assert torch.equal(twin(images), model(images))
        nn.init.zeros_(twin.head.weight)
        assert not torch.equal(twin(images), model(images)), "nothing is shared"


def test_class_token_and_positions_are_parameters_and_move():
    model = small()
    names = dict(model.named_parameters())
    for name in ("embedding.class_token", "embedding.positions"):
        assert isinstance(names[name], nn.Parameter) and names[name].requires_grad
    assert not list(model.buffers())
    expected = model(some_images())
    model.double()
    assert {p.dtype for p in model.parameters()} == {torch.float64}
    result = model(some_images().double())
    torch.testing.assert_close(result, expected.double(), **CLOSE)
    model.to("meta")
    assert {p.device.type for p in model.parameters()} == {"meta"}
    scores = model(torch.empty(2, 3, 8, 12, dtype=torch.float64, device="meta"))
    assert scores.device.type == "meta" and scores.shape == (2, 5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_half_precision(dtype):
    model, images = small(), some_images()
    expected = model(images)
    model.to(dtype)
    scores = model(images.to(dtype))
    assert scores.dtype == dtype
    torch.testing.assert_close(scores.float(), expected, rtol=0.1, atol=0.1)
    with record_attention(model):
        torch.testing.assert_close(model(images.to(dtype)), scores, rtol=0.1, atol=0.1)


def test_autocast():
    model, images = small(), some_images()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = model(images)
    torch.testing.assert_close(scores.float(), model(images), rtol=0.1, atol=0.1)


def test_functional_gradients():
    model, images = small(), some_images(2)
    parameters = {key: p.detach() for key, p in model.named_parameters()}

    def loss(parameters):
        return torch.func.functional_call(model, parameters, (images,)).square().sum()

    grads = torch.func.grad(loss)(parameters)
    model(images).square().sum().backward()
    for key, p in model.named_parameters():
        torch.testing.assert_close(grads[key], p.grad, rtol=1e-4, atol=1e-4)


# --- errors


@pytest.mark.parametrize(
    "changes, said",
    [
        ({"num_classes": 0}, "VisionTransformer: num_classes must be"),
        ({"patch_size": 5}, "Pick the patch height from [1, 2, 4, 8]"),
        ({"image_size": 0}, "PatchEmbedding: image_size must be"),
        ({"in_channels": 0}, "PatchEmbedding: in_channels must be"),
        ({"embed_dim": -1}, "PatchEmbedding: embed_dim must be"),
        ({"num_heads": 3}, "Pick num_heads from [1, 2, 4, 8, 16]"),
        ({"mlp_dim": 0}, "FeedForward: mlp_dim must be"),
        ({"num_layers": 0}, "Encoder: num_layers must be"),
        ({"dropout": 1.0}, "dropout must be a number in [0, 1)"),
    ],
)
def test_bad_arguments(changes, said):
    assert said in error_of(lambda: VisionTransformer(**(SMALL | changes)))


def test_arguments_are_by_name():
    with pytest.raises(TypeError, match="positional"):
        VisionTransformer(*SMALL.values())


def test_one_image_or_another_size():
    model = small()
    for shape in [(3, 8, 12), (2, 3, 12, 8), (2, 1, 8, 12)]:
        text = error_of(lambda shape=shape: model(torch.zeros(shape)))
        assert f"images must have shape (b, c=3, H=8, W=12), got images.shape={shape}" in text


# --- the model that ships with the course


def test_the_digits_model_reads_digits():
    model = load_shipped("digits")
    assert not model.training
    _, test = load_digits()
    assert accuracy(model, test) >= 0.97
    assert resource("digits_model.safetensors").stat().st_size < 1_000_000
    with record_attention(model) as maps:
        assert model(test[0][:3]).shape == (3, 10)
    assert [m.shape for m in maps] == 2 * [(3, 4, 17, 17)]
    assert SHIPPED["digits"]["patch_size"] == 2
