"""Compare time and memory of the course's models with PyTorch's and HuggingFace's.

All models of a row have the same sizes and the same weights, which is checked first. They run in
turn, so a slow moment of the machine affects all of them; a ratio is the median over the rounds of
(ours / theirs), so below 1 ours is faster or smaller. No file is written.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    ViTConfig,
    ViTForImageClassification,
    ViTModel,
)
from transformers.utils.logging import disable_progress_bar

from tools.commands import parse_arguments
from utils.attention import MultiHeadAttention, record_attention
from utils.generation import generate
from utils.hub import load_gpt2, load_llama, load_vit
from utils.vision_transformer import VisionTransformer

SIZES = {
    "digits": {
        "image_size": 8, "patch_size": 4, "in_channels": 1, "num_classes": 10,
        "embed_dim": 64, "num_heads": 4, "mlp_dim": 256, "num_layers": 2,
    },
    "ViT-B/16": {
        "image_size": 224, "patch_size": 16, "in_channels": 3, "num_classes": 1000,
        "embed_dim": 768, "num_heads": 12, "mlp_dim": 3072, "num_layers": 12,
    },
}  # fmt: skip
BATCH = {"digits": 64, "ViT-B/16": 2}
ROUNDS = {"digits": 300, "ViT-B/16": 9}
TOKENS = (512, 1024, 2048, 4096)
# for generation: sizes of a small GPT-2 and a small Llama, prompt length and new tokens
WRITERS = {"vocab_size": 1000, "layers": 4, "heads": 8, "kv_heads": 2, "width": 256}
PROMPT, STEPS = 32, 64
BATCH_SIZES = (1, 16)

# our names of the weights -> theirs, replaced in this order
TORCH_NAMES = {
    "embedding.": "",
    ".attn.": ".self_attn.",
    "mlp.fc1": "linear1",
    "mlp.fc2": "linear2",
}
HUGGINGFACE_NAMES = {
    "head.": "head!",  # out of the way of the prefix below
    "embedding.class_token": "embeddings.cls_token",
    "embedding.positions": "embeddings.position_embeddings",
    "embedding.proj": "embeddings.patch_embeddings.projection",
    "encoder.layers": "layers",
    "encoder.norm": "layernorm",
    ".attn.out_proj": ".attention.o_proj",
    ".attn.": ".attention.",
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
}


def renamed(ours: VisionTransformer, names: dict[str, str], conv: nn.Conv2d) -> dict[str, Tensor]:
    """Return the weights of `ours` under the names of another library, for its convolution."""
    state = {}
    for name, value in ours.state_dict().items():
        for mine, theirs in names.items():
            name = name.replace(mine, theirs)
        state[name] = value
    weight = next(name for name in state if name.endswith(("proj.weight", "projection.weight")))
    state[weight] = state[weight].view_as(conv.weight)
    return state


class TorchModel(nn.Module):
    """The same model around `nn.TransformerEncoder`, its patches from a strided convolution."""

    def __init__(self, ours: VisionTransformer, sizes: dict[str, int]):
        super().__init__()
        e, patch = sizes["embed_dim"], sizes["patch_size"]
        self.proj = nn.Conv2d(sizes["in_channels"], e, patch, patch)
        self.class_token = nn.Parameter(torch.empty_like(ours.embedding.class_token))
        self.positions = nn.Parameter(torch.empty_like(ours.embedding.positions))
        layer = nn.TransformerEncoderLayer(
            e, sizes["num_heads"], sizes["mlp_dim"], 0.0, "gelu", batch_first=True, norm_first=True
        )
        # nested tensors are only for padding, and do not work with norm_first
        self.encoder = nn.TransformerEncoder(
            layer, sizes["num_layers"], nn.LayerNorm(e), enable_nested_tensor=False
        )
        self.head = nn.Linear(e, sizes["num_classes"])
        state = renamed(ours, TORCH_NAMES, self.proj)
        for i in range(sizes["num_layers"]):
            for kind in ("weight", "bias"):
                start = f"encoder.layers.{i}.self_attn"
                parts = [state.pop(f"{start}.{letter}_proj.{kind}") for letter in "qkv"]
                state[f"{start}.in_proj_{kind}"] = torch.cat(parts)
        self.load_state_dict(state)

    def forward(self, images: Tensor) -> Tensor:
        patches = self.proj(images).flatten(2).transpose(1, 2)
        class_token = self.class_token.expand(len(images), -1, -1)
        tokens = torch.cat([class_token, patches], dim=1) + self.positions
        return self.head(self.encoder(tokens)[:, 0])


class HuggingFaceModel(nn.Module):
    """The same model as HuggingFace's `ViTModel` with a head."""

    def __init__(self, ours: VisionTransformer, sizes: dict[str, int]):
        super().__init__()
        config = ViTConfig(
            hidden_size=sizes["embed_dim"],
            num_hidden_layers=sizes["num_layers"],
            num_attention_heads=sizes["num_heads"],
            intermediate_size=sizes["mlp_dim"],
            hidden_act="gelu",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            layer_norm_eps=1e-5,
            image_size=sizes["image_size"],
            patch_size=sizes["patch_size"],
            num_channels=sizes["in_channels"],
            attn_implementation="sdpa",
        )
        self.vit = ViTModel(config, add_pooling_layer=False)
        self.head = nn.Linear(sizes["embed_dim"], sizes["num_classes"])
        conv = self.vit.embeddings.patch_embeddings.projection
        state = renamed(ours, HUGGINGFACE_NAMES, conv)
        for kind in ("weight", "bias"):
            self.head.get_parameter(kind).data.copy_(state.pop(f"head!{kind}"))
        self.vit.load_state_dict(state)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.vit(images).last_hidden_state[:, 0])


def training_step(model: nn.Module, images: Tensor, labels: Tensor) -> Callable[[], None]:
    """Return a function that makes one step of AdamW."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-6)
    model.train()

    def step() -> None:
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()

    return step


def inference(model: nn.Module, images: Tensor, _labels: Tensor) -> Callable[[], None]:
    """Return a function that runs the model once in eval mode."""
    model.eval()

    def step() -> None:
        with torch.inference_mode():
            model(images)

    return step


def times(steps: dict[str, Callable[[], None]], rounds: int) -> dict[str, list[float]]:
    """Run the steps in turn, in another order each round, and return seconds for each."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    names = list(steps)
    for step in steps.values():
        step()
        step()
    for _ in range(rounds):
        names = names[1:] + names[:1]
        for name in names:
            start = time.perf_counter()
            steps[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


@contextmanager
def quiet() -> Iterator[None]:
    """Send what the profiler's C++ code writes to stderr nowhere."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def peak_bytes(step: Callable[[], None]) -> int:
    """Return how many bytes more than before are held at once while the step runs."""
    step()
    with quiet(), profile(activities=[ProfilerActivity.CPU], profile_memory=True) as result:
        step()
    held, peak = 0, 0
    for event in sorted(result.profiler.kineto_results.events(), key=lambda e: e.start_ns()):
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def compare(name: str, threads: int, rounds: int) -> None:
    """Print the two rows, training and inference, of one size and number of threads."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    sizes = SIZES[name]
    generator = torch.Generator().manual_seed(0)
    side = sizes["image_size"]
    images = torch.rand(BATCH[name], sizes["in_channels"], side, side, generator=generator)
    labels = torch.arange(BATCH[name]) % sizes["num_classes"]
    ours = VisionTransformer(**sizes)
    models = {
        "ours": ours,
        "torch": TorchModel(ours, sizes),
        "HuggingFace": HuggingFaceModel(ours, sizes),
    }
    with torch.no_grad():
        for model in models.values():
            torch.testing.assert_close(model(images), ours(images), atol=1e-4, rtol=1e-4)
    for kind, make in {"training": training_step, "inference": inference}.items():
        steps = {who: make(model, images, labels) for who, model in models.items()}
        seconds = times(steps, rounds)
        memory = {who: peak_bytes(step) for who, step in steps.items()}
        ratios = [
            statistics.median(a / b for a, b in zip(seconds["ours"], seconds[other], strict=True))
            for other in ("torch", "HuggingFace")
        ]
        print(
            f"{name:9} {threads:7}   {kind:9} {statistics.median(seconds['ours']) * 1e3:8.1f} ms"
            f" {ratios[0]:10.2f} {ratios[1]:14.2f}"
            f" {memory['ours'] / 2**20:11.1f} MiB"
            f" {memory['ours'] / memory['torch']:8.2f}"
            f" {memory['ours'] / memory['HuggingFace']:14.2f}",
            flush=True,
        )


def attention_memory() -> None:
    """Print the peak memory of one attention layer, fused and naive, for growing sequences."""
    print("\nattention alone, width 64, 4 heads: memory per token, in KiB")
    print("tokens    fused kernel        naive (record_attention)")
    layer = MultiHeadAttention(64, 4).eval()
    for n in TOKENS:
        x = torch.rand(1, n, 64)

        def fused(x: Tensor = x) -> None:
            with torch.inference_mode():
                layer(x)

        def naive(x: Tensor = x) -> None:
            with torch.inference_mode(), record_attention(layer):
                layer(x)

        per_token = [peak_bytes(step) / n / 1024 for step in (fused, naive)]
        print(f"{n:6} {per_token[0]:15.1f} {per_token[1]:31.1f}", flush=True)


def writers() -> Iterator[tuple[str, nn.Module, PreTrainedModel]]:
    """Yield a family's name, our model, and HuggingFace's with the same weights."""
    v, n, h, g, e = WRITERS.values()
    none = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
    gpt2 = GPT2Config(
        vocab_size=v, n_positions=PROMPT + STEPS, n_embd=e, n_layer=n, n_head=h, **none
    )
    llama = LlamaConfig(
        vocab_size=v, hidden_size=e, intermediate_size=3 * e, num_hidden_layers=n,
        num_attention_heads=h, num_key_value_heads=g, **none,
    )  # fmt: skip
    torch.manual_seed(0)
    for family, theirs, load in (
        ("GPT-2", GPT2LMHeadModel(gpt2), load_gpt2),
        ("Llama", LlamaForCausalLM(llama), load_llama),
    ):
        with tempfile.TemporaryDirectory() as folder:
            theirs.save_pretrained(folder)
            yield family, load(folder), theirs.eval()


def generation(rounds: int) -> None:
    """Print generated tokens per second, with and without a cache, and HuggingFace's."""
    print("\ngenerating 64 tokens after 32, greedily, 1 thread: tokens per second")
    print("model       batch size    no cache       cache    HuggingFace    time ours / theirs")
    torch.set_num_threads(1)
    disable_progress_bar()
    results: dict[object, Tensor] = {}
    for family, ours, theirs in writers():
        for b in BATCH_SIZES:
            generator = torch.Generator().manual_seed(0)
            ids = torch.randint(WRITERS["vocab_size"], (b, PROMPT), generator=generator)
            results.clear()

            def write(cache: bool, ids: Tensor = ids, ours: nn.Module = ours) -> None:
                results[cache] = generate(ours, ids, STEPS, temperature=0, cache=cache)

            def theirs_writes(ids: Tensor = ids, theirs: PreTrainedModel = theirs) -> None:
                results["theirs"] = theirs.generate(
                    ids, attention_mask=torch.ones_like(ids), max_new_tokens=STEPS, do_sample=False
                )

            steps = {
                "no cache": lambda: write(cache=False),
                "cache": lambda: write(cache=True),
                "HuggingFace": theirs_writes,
            }
            seconds = times(steps, rounds)
            same = all(torch.equal(text, results[True]) for text in results.values())
            assert same, f"{family}: the three generated different tokens"
            speed = [b * STEPS / statistics.median(seconds[name]) for name in steps]
            pairs = zip(seconds["cache"], seconds["HuggingFace"], strict=True)
            ratio = statistics.median(a / c for a, c in pairs)
            print(
                f"{family:6} {b:15} {speed[0]:11,.0f} {speed[1]:11,.0f} {speed[2]:14,.0f}"
                f" {ratio:21.2f}",
                flush=True,
            )


def loaded(load: Callable[[str], nn.Module], folder: str, inputs: Tensor) -> Callable[[], None]:
    """Return a function that loads a model and runs it once."""

    def step() -> None:
        with torch.inference_mode():
            load(folder)(inputs)

    return step


def loading(rounds: int) -> None:
    """Print the time from a file of weights to a first result, ours and HuggingFace's."""
    torch.set_num_threads(1)
    disable_progress_bar()
    print("\nloading: from safetensors on disk to the first result")
    print("checkpoint        numbers     ours    ours / HuggingFace")
    pixels = torch.rand(1, 3, 224, 224, generator=torch.Generator().manual_seed(0))
    ids = torch.arange(64)[None]
    kinds: list[tuple[str, PreTrainedModel, Callable[[str], nn.Module], Tensor]] = [
        ("ViT-B/16", ViTForImageClassification(ViTConfig()), load_vit, pixels),
        ("GPT-2", GPT2LMHeadModel(GPT2Config()), load_gpt2, ids),
    ]
    for name, model, load, inputs in kinds:
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            theirs = type(model)
            with torch.no_grad():
                ours, wanted = load(folder)(inputs), theirs.from_pretrained(folder)(inputs).logits
                torch.testing.assert_close(ours, wanted, atol=1e-4, rtol=1e-4)
            seconds = times(
                {
                    "ours": loaded(load, folder, inputs),
                    "HuggingFace": loaded(theirs.from_pretrained, folder, inputs),
                },
                rounds,
            )
        ratio = statistics.median(
            a / b for a, b in zip(seconds["ours"], seconds["HuggingFace"], strict=True)
        )
        print(
            f"{name:9} {model.num_parameters():15,} {statistics.median(seconds['ours']):7.2f} s"
            f" {ratio:21.2f}",
            flush=True,
        )


def models(sizes: Iterable[str], rounds: int | None) -> None:
    """Print training and inference of the Vision Transformers, on one thread and on two."""
    print(
        "                                            time ours / theirs      peak memory"
        "       memory ours / theirs"
    )
    print(
        "size      threads   step           ours      torch    HuggingFace        ours"
        "       torch    HuggingFace"
    )
    for name in sizes:
        for threads in (1, 2):
            compare(name, threads, rounds or ROUNDS[name])


def main(arguments: Sequence[str] = ()) -> None:
    """Print the tables."""
    chosen = parse_arguments("bench", arguments)
    tables: dict[str, Callable[[], None]] = {
        "models": lambda: models(chosen.size or SIZES, chosen.rounds),
        "memory": attention_memory,
        "generation": lambda: generation(chosen.rounds or 3),
        "loading": lambda: loading(chosen.rounds or 9),
    }
    for name in chosen.table or tables:
        tables[name]()
