"""Checkpoints in our classes: equal to transformers, every tensor used once, bad files refused."""

import functools
import json
import re
import shutil
from itertools import product
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from helpers import error_of, randomize
from utils.attention import record_attention
from utils.cache import KeyValueCache
from utils.generation import generate
from utils.hub import (
    BERT,
    GPT2,
    LLAMA,
    VIT,
    checkpoints,
    decoders,
    find_row,
    load_bert,
    load_decoder,
    load_gpt2,
    load_llama,
    load_vit,
)
from utils.language_model import LanguageModel, TextEncoder
from utils.modern_decoder import ModernDecoder
from utils.vision_transformer import VisionTransformer

B, N, V = 3, 9, 50
ENCODER = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
}
NO_ENDS = {"bos_token_id": None, "eos_token_id": None}  # so that theirs never stops early
DECODER = {
    **ENCODER,
    **NO_ENDS,
    "vocab_size": V,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
LLAMAS = (load_llama, ModernDecoder, LLAMA, "model.")
EXPERTS = {**DECODER, "num_local_experts": 4, "num_experts_per_tok": 2}
LATENT = {
    "q_lora_rank": 12,
    "kv_lora_rank": 10,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 6,
    "v_head_dim": 5,
}


def layered(name, config):
    """Return the entry of a decoder whose table depends on its configuration."""
    said = getattr(transformers, name).config_class(**config).to_dict()
    with torch.device("meta"):
        _, table = decoders.FAMILIES[said["model_type"]](said)
    return name, config, (load_decoder, ModernDecoder, table, "model.")


# kind -> class of transformers, its configuration, our loader, our class, table and prefix
KINDS = {
    "vit": (
        "ViTForImageClassification",
        {**ENCODER, "image_size": [12, 8], "patch_size": [4, 2], "num_channels": 2},
        (load_vit, VisionTransformer, VIT, "vit."),
    ),
    "bert": (
        "BertForMaskedLM",
        {**ENCODER, "vocab_size": V, "max_position_embeddings": 16, "type_vocab_size": 3},
        (load_bert, TextEncoder, BERT, "bert."),
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        {"vocab_size": V, "n_embd": 24, "n_layer": 2, "n_head": 3, "n_positions": 40, **NO_ENDS},
        (load_gpt2, LanguageModel, GPT2, "transformer."),
    ),
    "llama": ("LlamaForCausalLM", DECODER, LLAMAS),
    "mistral": ("MistralForCausalLM", {**DECODER, "sliding_window": 4}, LLAMAS),
    "qwen2": ("Qwen2ForCausalLM", DECODER, LLAMAS),
    "qwen3": (
        "Qwen3ForCausalLM",
        {**DECODER, "head_dim": 8, "tie_word_embeddings": True},
        LLAMAS,
    ),
    "mixtral": layered("MixtralForCausalLM", EXPERTS),
    "qwen3_moe": layered(
        "Qwen3MoeForCausalLM",
        {**EXPERTS, "moe_intermediate_size": 16, "head_dim": 8, "mlp_only_layers": [0]},
    ),
    "gemma3_text": layered(
        "Gemma3ForCausalLM",
        {
            **DECODER,
            "head_dim": 8,
            "sliding_window": 3,
            "layer_types": ["sliding_attention", "full_attention"],
            "query_pre_attn_scalar": 6,
            "initializer_range": 0.2,
        },
    ),
    "gpt_oss": layered("GptOssForCausalLM", {**EXPERTS, "head_dim": 8, "sliding_window": 3}),
    "deepseek_v3": layered(
        "DeepseekV3ForCausalLM",
        {
            **EXPERTS,
            **LATENT,
            "num_key_value_heads": 4,
            "moe_intermediate_size": 16,
            "num_local_experts": 8,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
        },
    ),
}
every_kind = pytest.mark.parametrize("kind", KINDS)
every_loader = pytest.mark.parametrize("kind", ["vit", "bert", "gpt2", "llama", "mixtral"])
texts = pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "vit"])


@pytest.fixture(scope="module")
def write(tmp_path_factory):
    """Let transformers write a checkpoint with random weights, once for each configuration."""

    @functools.cache
    def write_once(kind, changed=(), model=None, shard=None, dtype=torch.float32):
        name, config, _ = KINDS[kind]
        model = getattr(transformers, model or name)
        theirs = model(model.config_class(**{**config, **dict(changed)}))
        theirs = randomize(theirs, seed=1).to(dtype).eval()
        folder = tmp_path_factory.mktemp(kind)
        theirs.save_pretrained(folder, **({"max_shard_size": shard} if shard else {}))
        return folder, theirs

    return write_once


@pytest.fixture
def copied(write, tmp_path):
    """Give a copy of a checkpoint that a test may spoil: (folder, tensors, save)."""

    def copy(kind, **changed):
        folder = tmp_path / kind
        shutil.copytree(write(kind, **changed)[0], folder)
        tensors = load_file(folder / "model.safetensors")
        return folder, tensors, lambda kept: save_file(kept, folder / "model.safetensors")

    return copy


def loader(kind):
    return KINDS[kind][2][0]


def real_tokens(padding):
    real = torch.arange(N) < torch.tensor([N, 6, 4])[:, None]
    return {"none": torch.ones_like(real), "right": real, "left": real.flip(1)}[padding]


def some_ids(seed=0):
    return torch.randint(V, (B, N), generator=torch.Generator().manual_seed(seed))


def one_of_each_row(kind, tensors):
    """Return the name of one tensor for each row of the kind's table: layers differ by a number."""
    _, _, table, prefix = KINDS[kind][2]
    names = {re.sub(r"\.\d+\.", ".*.", name): name for name in tensors}
    return [name for name in names.values() if find_row(table, name.removeprefix(prefix))]


def set_config(folder, **changed):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changed}))


@torch.no_grad()
def hidden_and_scores(ours, *inputs):
    """Run our model; return what went into its first block and what left each, and its result."""
    layers = ours.layers if isinstance(ours, ModernDecoder) else ours.encoder.layers
    hidden = []
    hooks = [layers[0].register_forward_pre_hook(lambda _, x: hidden.append(x[0]))]
    hooks += [layer.register_forward_hook(lambda _, x, y: hidden.append(y)) for layer in layers]
    result = ours(*inputs)
    for hook in hooks:
        hook.remove()
    return hidden, result


# --- equal to transformers


@torch.no_grad()
def compare(ours, theirs, padding="none", seed=0):
    """Compare hidden states of every layer, and scores, at the real tokens."""
    if isinstance(ours, VisionTransformer):
        (height, width), c = ours.embedding.image_size, ours.embedding.in_channels
        images = torch.randn(B, c, height, width, generator=torch.Generator().manual_seed(seed))
        real = torch.ones(B, ours.embedding.positions.shape[1], dtype=torch.bool)
        hidden, result = hidden_and_scores(ours, images)
        expected = theirs(images, output_hidden_states=True)
        torch.testing.assert_close(result, expected.logits, atol=1e-5, rtol=1e-5)
    else:
        ids, real = some_ids(seed), real_tokens(padding)
        hidden, result = hidden_and_scores(ours, ids, real[:, None, None, :])
        expected = theirs(ids, attention_mask=real.long(), output_hidden_states=True)
        last = expected.hidden_states[-1] if isinstance(ours, TextEncoder) else expected.logits
        torch.testing.assert_close(result[real], last[real], atol=1e-5, rtol=1e-5)
    assert result.std() > 0.1, "so that equal says something"
    if not isinstance(ours, VisionTransformer):  # of the others, the last of theirs is normalized
        norm = ours.norm if isinstance(ours, ModernDecoder) else ours.encoder.norm
        hidden[-1] = norm(hidden[-1])
    assert len(hidden) == len(expected.hidden_states)
    for mine, other in zip(hidden, expected.hidden_states, strict=True):
        torch.testing.assert_close(mine[real], other[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("padding", ["none", "right", "left"])
@texts
def test_equals_transformers_with_padding(write, kind, padding):
    folder, theirs = write(kind)
    compare(loader(kind)(folder), theirs, padding)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 1000.0,
    "factor": 4.0,
    "beta_fast": 32,
    "beta_slow": 1,
    "original_max_position_embeddings": 1024,
}
TWO_BASES = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 30.0},
    "full_attention": {"rope_type": "default", "rope_theta": 700.0},
}
CHANGED = [
    ("vit", {"image_size": 8, "patch_size": 4, "num_channels": 3}),
    ("vit", {"hidden_act": "gelu_new", "layer_norm_eps": 0.1, "num_labels": 7}),
    ("bert", {"hidden_act": "gelu_new", "layer_norm_eps": 0.1}),
    ("bert", {"hidden_act": "relu", "num_hidden_layers": 12, "type_vocab_size": 1}),
    ("gpt2", {"activation_function": "gelu", "layer_norm_epsilon": 0.1, "n_inner": 30}),
    ("gpt2", {"activation_function": "gelu_pytorch_tanh", "n_layer": 11}),
    ("gpt2", {"tie_word_embeddings": False, "reorder_and_upcast_attn": True}),
    ("llama", {"rms_norm_eps": 0.1, "num_key_value_heads": 4, "head_dim": 10}),
    ("llama", {"tie_word_embeddings": True, "num_hidden_layers": 11}),
    ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 30.0}}),
    ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 30.0}, "hidden_size": 40}),
    ("llama", {"rope_parameters": {**LLAMA3, "rope_theta": 500_000.0}}),
    ("mistral", {"sliding_window": None, "head_dim": 8}),
    ("mistral", {"sliding_window": 1}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 3, "max_window_layers": 0}),
    ("qwen3", {"tie_word_embeddings": False, "num_attention_heads": 6, "hidden_size": 30}),
    ("mixtral", {"sliding_window": 3, "tie_word_embeddings": True}),
    ("mixtral", {"rope_parameters": {**LLAMA3, "rope_theta": 30.0}, "num_experts_per_tok": 4}),
    ("qwen3_moe", {"norm_topk_prob": True, "use_sliding_window": True, "sliding_window": 3}),
    ("qwen3_moe", {"mlp_only_layers": [], "decoder_sparse_step": 2, "rms_norm_eps": 0.1}),
    ("gemma3_text", {"layer_types": None, "num_hidden_layers": 7, "query_pre_attn_scalar": 8}),
    ("gemma3_text", {"tie_word_embeddings": False, "rope_parameters": TWO_BASES}),
    ("gpt_oss", {"layer_types": ["full_attention", "full_attention"], "num_experts_per_tok": 1}),
    ("gpt_oss", {"rope_parameters": {**YARN, "truncate": False}, "swiglu_limit": 0.3}),
    ("gpt_oss", {"rope_parameters": {**YARN, "attention_factor": 1.5}}),
    ("deepseek_v3", {"q_lora_rank": None, "rope_interleave": False, "n_shared_experts": 2}),
    ("deepseek_v3", {"rope_parameters": {**YARN, "mscale": 0.5, "mscale_all_dim": 1.0}}),
    ("deepseek_v3", {"rope_parameters": {**YARN, "mscale_all_dim": 0.7}}),
    ("deepseek_v3", {"n_group": 1, "topk_group": 1, "first_k_dense_replace": 0}),
]


@pytest.mark.parametrize("kind, changed", [("vit", {}), *CHANGED], ids=str)
def test_equals_transformers_in_other_forms(write, kind, changed):
    folder, theirs = write.__wrapped__(kind, tuple(changed.items()))
    compare(loader(kind)(folder), theirs, "none" if kind == "vit" else "right")


@every_kind
def test_comes_in_eval_mode_ready_to_train_and_of_its_class(write, kind):
    folder, _ = write(kind)
    state = torch.get_rng_state()
    ours = loader(kind)(folder)
    assert torch.equal(torch.get_rng_state(), state), "loading draws no random numbers"
    assert type(ours) is KINDS[kind][2][1]
    assert not any(module.training for module in ours.modules())
    values = [*ours.parameters(), *ours.buffers()]
    assert all(value.device.type == "cpu" and value.dtype == torch.float32 for value in values)
    assert all(parameter.requires_grad for parameter in ours.parameters())
    assert all(p.is_contiguous() for p in ours.parameters()), "so that they can be saved"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("vit", "bert")])
def test_writes_on_as_transformers_does(write, kind):
    folder, theirs = write(kind)
    ours, ids = loader(kind)(folder), some_ids()[:, :5]
    kept = generate(ours, ids, 8, temperature=0)
    assert torch.equal(kept, generate(ours, ids, 8, temperature=0, cache=False))
    wanted = theirs.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=8, do_sample=False, pad_token_id=0
    )
    assert torch.equal(kept, wanted)


@pytest.mark.parametrize("kind", ["vit", "bert", "gpt2"])
def test_attention_can_be_recorded(write, kind):
    folder, theirs = write(kind)
    theirs.set_attn_implementation("eager")
    ours = loader(kind)(folder)
    inputs = torch.randn(B, 2, 12, 8) if kind == "vit" else some_ids()
    with torch.no_grad(), record_attention(ours) as maps:
        ours(inputs)
        expected = theirs(inputs, output_attentions=True).attentions
    for mine, other in zip(maps, expected, strict=True):
        torch.testing.assert_close(mine, other, atol=1e-5, rtol=1e-5)


def test_bert_tells_types_of_text_apart(write):
    folder, theirs = write("bert")
    ours, ids, types = load_bert(folder), some_ids(), some_ids(3) % 3
    with torch.no_grad():
        expected = theirs.bert(ids, token_type_ids=types).last_hidden_state
        torch.testing.assert_close(ours(ids, types=types), expected, atol=1e-5, rtol=1e-5)
        assert not torch.allclose(ours(ids), expected, atol=0.1)


# --- the tables


@every_kind
def test_every_tensor_is_used_once(write, kind):
    folder, _ = write(kind)
    load, _, table, prefix = KINDS[kind][2]
    ours = load(folder)
    tensors = load_file(folder / "model.safetensors")
    used = [find_row(table, name.removeprefix(prefix)) for name in tensors]
    names = [name for row in used if row is not None for name in row.names]
    wanted = set(ours.state_dict())
    if ours.state_dict().keys() >= {"head.weight"} and "lm_head.weight" not in tensors:
        wanted -= {"head.weight"} if kind != "vit" else set()  # one table serves both ends
    assert sorted(names) == sorted(wanted)
    aside = {name for name, row in zip(tensors, used, strict=True) if row is None}
    assert all(name.startswith("cls.") for name in aside), "the head of BERT, and nothing else"
    # and every number of the file is in the model, as it was or in another order
    for name, row in zip(tensors, used, strict=True):
        if row is not None and not (kind == "gemma3_text" and "norm" in name):  # 1 + weight
            mine = torch.cat([ours.state_dict()[n].flatten() for n in row.names])
            assert torch.equal(mine.sort().values, tensors[name].flatten().sort().values), name


def test_no_row_of_a_table_is_idle(write):
    tables = {id(table): table for _, _, (_, _, table, _) in KINDS.values()}
    seen = {number: set() for number in tables}
    for kind, (_, _, (_, _, table, prefix)) in KINDS.items():
        for name in load_file(write(kind)[0] / "model.safetensors"):
            name = re.sub(r"\.[01]\.", ".*.", name.removeprefix(prefix))
            seen[id(table)] |= {name, name.rpartition(".")[0]}
    for number, table in tables.items():
        idle = {name for name, row in table.items() if row is not None} - seen[number]
        if table not in (VIT, BERT, GPT2, LLAMA):  # theirs go on from Llama's
            idle -= {*LLAMA, "layers.*.self_attn.q_proj.weight"}
            idle = {name for name in idle if "block_sparse_moe" not in name}
        assert idle <= {"lm_head"}, idle


@pytest.mark.parametrize(
    "kind, model",
    [
        ("bert", "BertModel"),
        ("bert", "BertForSequenceClassification"),
        ("bert", "BertForQuestionAnswering"),
        ("bert", "BertForPreTraining"),
        ("gpt2", "GPT2Model"),
    ],
)
def test_with_another_head_or_none(write, kind, model):
    folder, theirs = write(kind, model=model)
    ours = loader(kind)(folder)
    body = getattr(theirs, theirs.base_model_prefix, theirs)
    with torch.no_grad():
        result = ours(some_ids())
        expected = body(some_ids()).last_hidden_state
    if kind == "gpt2":
        expected = expected @ ours.embedding.tokens.weight.T
    torch.testing.assert_close(result, expected, atol=1e-5, rtol=1e-5)


def test_the_spelling_of_old_files(copied):
    """What the hub's own files have: no prefix, masks among the weights, gamma and beta."""
    folder, tensors, save = copied("gpt2")
    expected = load_gpt2(folder)(some_ids())
    old = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    for layer in "01":
        old[f"h.{layer}.attn.bias"] = torch.ones(1, 1, 40, 40).tril().bool()
        old[f"h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    old["lm_head.weight"] = tensors["transformer.wte.weight"].clone()  # stored a second time
    save(old)
    assert torch.equal(load_gpt2(folder)(some_ids()), expected)

    folder, tensors, save = copied("bert")
    expected = load_bert(folder)(some_ids())
    old = {"bert.embeddings.position_ids": torch.arange(16)[None]}
    for name, value in tensors.items():
        name = name.replace("LayerNorm.weight", "LayerNorm.gamma")
        old[name.replace("LayerNorm.bias", "LayerNorm.beta")] = value
    save(old)
    assert torch.equal(load_bert(folder)(some_ids()), expected)

    folder, tensors, save = copied("llama")
    expected = load_llama(folder)(some_ids())
    save({**tensors, "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(3)})
    config = json.loads((folder / "config.json").read_text())
    base = config.pop("rope_parameters")["rope_theta"]
    for key in ("head_dim", "tie_word_embeddings", "attention_bias", "mlp_bias"):
        config.pop(key)
    config |= {"rope_theta": base, "rope_scaling": None}
    (folder / "config.json").write_text(json.dumps(config))
    assert torch.equal(load_llama(folder)(some_ids()), expected)


# --- files


@every_loader
def test_shards_are_the_same_as_one_file(write, kind):
    whole = loader(kind)(write(kind)[0])
    folder, _ = write(kind, shard="10KB")
    assert (
        len(list(folder.glob("*.safetensors"))) > 2 and not (folder / "model.safetensors").exists()
    )
    for mine, other in zip(loader(kind)(folder).parameters(), whole.parameters(), strict=True):
        assert torch.equal(mine, other)


@pytest.mark.parametrize("kind", ["gpt2", "qwen3"])
def test_half_precision(write, kind):
    folder, theirs = write(kind, dtype=torch.bfloat16)
    ours = loader(kind)(folder)
    compare(ours, type(theirs).from_pretrained(folder, dtype=torch.float32).eval())
    half = loader(kind)(folder, dtype=torch.bfloat16)
    assert {value.dtype for value in half.parameters()} == {torch.bfloat16}
    ours.bfloat16()
    for mine, other in zip(half.parameters(), ours.parameters(), strict=True):
        assert torch.equal(mine, other)


def test_a_model_outlives_its_file(copied):
    folder, tensors, save = copied("gpt2")
    ours = load_gpt2(folder)
    before = ours(some_ids())
    save({name: torch.zeros_like(value) for name, value in tensors.items()})
    assert torch.equal(ours(some_ids()), before)
    shutil.rmtree(folder)
    assert torch.equal(ours(some_ids()), before)


@pytest.fixture
def hub(monkeypatch, tmp_path):
    """Make an empty cache of the hub, without a network."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_a_name_on_the_hub_is_looked_up_in_the_cache(write, hub):
    folder, theirs = write("gpt2", shard="10KB")
    home = hub / "models--someone--small-gpt2"
    shutil.copytree(folder, home / "snapshots" / "abc")
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text("abc")
    compare(load_gpt2("someone/small-gpt2"), theirs)
    assert "not-there" in error_of(lambda: load_gpt2("someone/not-there"))
    assert "../gpt2" in error_of(lambda: load_gpt2("../gpt2"))


@every_loader
def test_a_file_that_was_cut_off_is_refused(copied, kind, monkeypatch):
    folder, _, _ = copied(kind)
    path = folder / "model.safetensors"
    whole = path.read_bytes()
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", None)  # it does not come that far
    for length in (0, 4, 8, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert "damaged or cut off" in error_of(lambda: loader(kind)(folder))
    path.write_bytes(whole[:30] + b"\xff" + whole[31:])
    assert "damaged" in error_of(lambda: loader(kind)(folder))
    path.write_bytes(whole + b"more")
    assert "damaged" in error_of(lambda: loader(kind)(folder))


@every_kind
def test_every_missing_tensor_is_named(copied, kind, monkeypatch):
    folder, tensors, save = copied(kind)
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", None)  # nothing is half loaded
    names = one_of_each_row(kind, tensors)
    assert len(names) > 10
    for name in names:
        save({other: value for other, value in tensors.items() if other != name})
        text = error_of(lambda: loader(kind)(folder))
        assert f"got none for {name.removeprefix(KINDS[kind][2][3])}" in text


@every_kind
def test_every_misshapen_tensor_is_named(copied, kind, monkeypatch):
    folder, tensors, save = copied(kind)
    monkeypatch.setattr(torch.nn.Module, "load_state_dict", None)
    for number, name in enumerate(one_of_each_row(kind, tensors)):
        value = tensors[name]
        wrongs = value[:-1], value[None], value.flatten()[:1], torch.zeros(()), value[:0]
        wrong = wrongs[number % 5].clone()
        save({**tensors, name: wrong})
        text = error_of(lambda: loader(kind)(folder))
        assert f"{name} must fit into" in text
        assert f"{name}.shape={tuple(wrong.shape)}" in text


@every_loader
def test_extra_tensors_are_named(copied, kind):
    folder, tensors, save = copied(kind)
    prefix = KINDS[kind][2][3]
    last = re.compile(r"\b(layers?|h)\.1\.")
    deeper = next(last.sub(r"\1.2.", name) for name in tensors if last.search(name))
    for name in (f"{prefix}more.weight", deeper, "lora.weight", "x"):
        save({**tensors, name: torch.ones(2)})
        text = error_of(lambda: loader(kind)(folder))
        assert f"got {name}, for which it has none" in text
    save({**tensors, **{f"x{number}": torch.ones(1) for number in range(7)}})
    assert "got x0, x1, x2 and 4 more" in error_of(lambda: loader(kind)(folder))


def test_a_tensor_that_comes_twice_or_is_no_weight(copied):
    folder, tensors, save = copied("gpt2")
    save({**tensors, "wpe.weight": torch.zeros(40, 24)})
    text = error_of(lambda: load_gpt2(folder))
    assert "every tensor must come once" in text and "embedding.positions" in text
    save({**tensors, "transformer.h.0.mlp.c_fc.weight": torch.ones(24, 96, dtype=torch.int8)})
    text = error_of(lambda: load_gpt2(folder))
    assert "transformer.h.0.mlp.c_fc.weight" in text and "quantized" in text


@pytest.mark.parametrize("kind", ["gpt2", "qwen3"])
def test_two_tables_where_there_should_be_one(copied, kind):
    folder, tensors, save = copied(kind)
    name = next(name for name in tensors if name.endswith(("wte.weight", "embed_tokens.weight")))
    save({**tensors, "lm_head.weight": tensors[name].clone()})
    ours = loader(kind)(folder)
    assert ours.head.weight is ours.embedding.tokens.weight
    save({**tensors, "lm_head.weight": tensors[name] + 1e-3})
    assert "got two different ones" in error_of(lambda: loader(kind)(folder))
    set_config(folder, tie_word_embeddings=False)
    ours = loader(kind)(folder)
    assert ours.head.weight is not ours.embedding.tokens.weight
    save(tensors)
    assert "got none for lm_head.weight" in error_of(lambda: loader(kind)(folder))


def test_pickle_is_never_read(tmp_path, write):
    folder = tmp_path / "old"
    folder.mkdir()
    shutil.copy(write("gpt2")[0] / "config.json", folder)
    (folder / "pytorch_model.bin").write_bytes(
        b"cpathlib\nPath\n(S'" + str(tmp_path / "ran").encode() + b"'\ntR."
    )
    text = error_of(lambda: load_gpt2(folder))
    assert "pytorch_model.bin" in text and "Pickle can run code" in text
    assert not (tmp_path / "ran").exists()
    for path in Path(checkpoints.__file__).parent.glob("*.py"):
        source = path.read_text()
        assert "torch.load" not in source and "import pickle" not in source


def test_bad_folders_and_indexes(tmp_path, write, copied):
    empty = tmp_path / "empty"
    empty.mkdir()
    assert "an empty folder" in error_of(lambda: load_gpt2(empty))
    shutil.copy(write("gpt2")[0] / "config.json", empty)
    text = error_of(lambda: load_gpt2(empty))
    assert "must hold model.safetensors" in text and "Pickle" not in text
    for bad in (b"{", b"\xff\xfe", b"[]"):
        (empty / "config.json").write_bytes(bad)
        assert "config.json must" in error_of(lambda: load_gpt2(empty))

    folder = tmp_path / "sharded"
    shutil.copytree(write("gpt2", shard="10KB")[0], folder)
    index = folder / checkpoints.INDEX
    content = json.loads(index.read_text())
    files = sorted(set(content["weight_map"].values()))
    for bad in ("{", "[]", '{"weight_map": 3}', '{"weight_map": {"a": 1}}'):
        index.write_text(bad)
        assert "damaged" in error_of(lambda: load_gpt2(folder))
    shutil.copy(folder / files[0], tmp_path / "elsewhere.safetensors")  # it is there, and outside
    outside = {**content["weight_map"], "transformer.wte.weight": "../elsewhere.safetensors"}
    index.write_text(json.dumps({"weight_map": outside}))
    assert "must lie beside it" in error_of(lambda: load_gpt2(folder))
    moved = {**content["weight_map"], "transformer.ln_f.bias": files[0]}
    index.write_text(json.dumps({"weight_map": moved}))
    assert "transformer.ln_f.bias" in error_of(lambda: load_gpt2(folder))
    index.write_text(json.dumps(content))
    load_gpt2(folder)
    (folder / files[1]).unlink()
    assert files[1] in error_of(lambda: load_gpt2(folder))


# --- configurations that our classes cannot be


BAD_CONFIGS = [
    ("vit", {"qkv_bias": False}, "qkv_bias=True"),
    ("vit", {"hidden_act": "quick_gelu"}, "hidden_act='quick_gelu'"),
    ("bert", {"is_decoder": True}, "is_decoder=False"),
    ("bert", {"add_cross_attention": True}, "add_cross_attention=False"),
    ("bert", {"position_embedding_type": "relative_key"}, "position_embedding_type='absolute'"),
    ("gpt2", {"scale_attn_weights": False}, "scale_attn_weights=True"),
    ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "inverse_layer_idx=False"),
    ("gpt2", {"add_cross_attention": True}, "add_cross_attention=False"),
    ("gpt2", {"activation_function": "swish"}, "activation_function='swish'"),
    ("gpt2", {"model_type": "gpt_neo"}, "model_type='gpt_neo'"),
    ("gpt2", {"n_head": 5}, "multiple of num_heads"),
    ("gpt2", {"n_layer": "two"}, "n_layer='two'"),
    ("llama", {"hidden_act": "gelu"}, "hidden_act='silu'"),
    ("llama", {"attention_bias": True}, "attention_bias=False"),
    ("llama", {"mlp_bias": True}, "mlp_bias=False"),
    ("llama", {"rope_parameters": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
    ("llama", {"rope_parameters": {**LLAMA3, "low_freq_factor": 4.0}}, "rise from low to high"),
    ("llama", {"rope_parameters": {"rope_type": "yarn", "factor": 8.0}}, "yarn"),
    ("llama", {"rope_parameters": {"a": {"rope_theta": 1.0}, "b": {"rope_theta": 2.0}}}, "'b'"),
    ("llama", {"rope_parameters": None, "rope_scaling": [1]}, "rope_scaling=[1]"),
    ("llama", {"rope_parameters": None, "rope_theta": "x"}, "rope_theta='x'"),
    ("llama", {"rotary_pct": 0.25}, "whole heads"),
    ("gpt2", {"n_embd": None}, "n_embd=None"),
    ("gpt2", {"activation_function": ["gelu"]}, "activation_function=['gelu']"),
    ("gpt2", {"layer_norm_epsilon": "1e-5"}, "layer_norm_epsilon='1e-5'"),
    ("gpt2", {"model_type": "bert"}, "Take load_bert."),
    ("gpt2", {"model_type": ["gpt2"]}, "Take AutoModel of transformers"),
    ("llama", {"rope_parameters": None, "rope_scaling": {"type": "linear"}}, "linear"),
    ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "0.5"),
    ("llama", {"model_type": "gemma"}, "llama or mistral or qwen2 or qwen3"),
    ("llama", {"model_type": "mixtral"}, "Take load_decoder."),
    ("mixtral", {"model_type": "qwen3"}, "Take load_llama."),
    ("mixtral", {"hidden_act": "gelu"}, "hidden_act='silu'"),
    ("mixtral", {"rope_parameters": {**YARN}}, "default or llama3"),
    ("mixtral", {"num_experts_per_tok": 5}, "experts_per_token must be an integer from 1 to 4"),
    ("mixtral", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config={'quant"),
    ("qwen3_moe", {"attention_bias": True}, "attention_bias=False"),
    ("gemma3_text", {"final_logit_softcapping": 30.0}, "final_logit_softcapping=None"),
    ("gemma3_text", {"use_bidirectional_attention": True}, "bidirectional_attention=False"),
    ("gemma3_text", {"layer_types": ["full_attention"]}, "for each of 2 layers"),
    ("gemma3_text", {"layer_types": ["full_attention", "linear_attention"]}, "layer_types"),
    (
        "gemma3_text",
        {"rope_parameters": {"full_attention": {"rope_type": "linear", "factor": 8.0}}},
        "linear",
    ),
    ("gpt_oss", {"attention_bias": False}, "attention_bias=True"),
    ("gpt_oss", {"quantization_config": {"quant_method": "mxfp4"}}, "mxfp4"),
    ("gpt_oss", {"rope_parameters": {**YARN, "beta_slow": 40}}, "rise from low to high"),
    ("gpt_oss", {"rope_parameters": {**YARN, "rope_theta": 1.0}}, "the base of YaRN above 1"),
    ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func='sigmoid'"),
    ("deepseek_v3", {"topk_method": "greedy"}, "topk_method='noaux_tc'"),
    ("deepseek_v3", {"topk_group": 9}, "groups_per_token must be an integer from 1 to 4"),
    (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 4,
            "layer_types": ["full_attention", "sliding_attention"],
        },
        "full_attention or all sliding_attention",
    ),
]


@pytest.mark.parametrize("kind, changed, said", BAD_CONFIGS, ids=str)
def test_what_our_classes_cannot_be_is_refused(copied, kind, changed, said):
    folder, _, _ = copied(kind)
    set_config(folder, **changed)
    assert said in error_of(lambda: loader(kind)(folder))


MISSING = object()
JUNK = [MISSING, None, True, 0, -1, 1.5, float("nan"), "1e-5", "x"]
JUNK += [[], [1], [2, "2"], {}, {"a": 1}]


class Recorded(dict):
    """A config that records which of its entries a loader reads."""

    def __init__(self, config):
        super().__init__(config)
        self.read = set()

    def __getitem__(self, key):
        self.read.add(key)
        return super().__getitem__(key)

    def get(self, key, default=None):
        self.read.add(key)
        return super().get(key, default)

    def __contains__(self, key):
        self.read.add(key)
        return super().__contains__(key)


@torch.no_grad()
@pytest.mark.parametrize("load", [load_vit, load_bert, load_gpt2, load_llama, load_decoder])
def test_no_entry_of_a_config_raises_anything_but_words(copied, load, monkeypatch):
    """A bad entry is refused in words, or what is loaded runs; tried in the first kind with it."""
    tried, refused, named = set(), 0, 0
    for kind in [kind for kind in KINDS if loader(kind) is load]:
        folder, _, _ = copied(kind)
        path = folder / "config.json"
        config = json.loads(path.read_text())
        recorded = Recorded(config)
        with monkeypatch.context() as patch:
            patch.setattr(checkpoints, "_json", lambda *_, recorded=recorded: recorded)
            load(folder)
        assert len(recorded.read) > 10
        keys = {*recorded.read, "rope_scaling", "use_sliding_window"} - tried
        tried |= keys - {"rope_parameters"}  # read in several ways
        for key, junk in product(sorted(keys), JUNK):
            changed = {**config, key: junk}
            if junk is MISSING:
                del changed[key]
            path.write_text(json.dumps(changed))
            try:
                ours = load(folder)
            except ValueError as error:
                where, rest = str(error).split(": ", 1)
                assert where.isidentifier() and "got " in rest, (key, junk, error)
                refused += 1
                named += junk is MISSING and repr(key) in rest
                continue
            inputs = torch.zeros(1, 2, 12, 8) if kind == "vit" else some_ids()
            assert ours(inputs).isfinite().all(), (key, junk)
    assert refused > 50 and named >= 5


@torch.no_grad()
def test_the_spelling_of_old_configs(copied):
    """What the published configs of these families say in other words."""
    folder, _, _ = copied("gemma3_text")
    expected = load_decoder(folder)(some_ids())
    set_config(folder, rope_parameters=None, rope_theta=1_000_000, rope_local_base_freq=10_000)
    assert torch.equal(load_decoder(folder)(some_ids()), expected)
    set_config(folder, layer_types=None, sliding_window_pattern=2)
    assert torch.equal(load_decoder(folder)(some_ids()), expected)
    set_config(folder, rope_local_base_freq=50.0)
    assert not torch.allclose(load_decoder(folder)(some_ids()), expected)

    folder, _, _ = copied("qwen3_moe")
    expected = load_decoder(folder)(some_ids())
    set_config(folder, num_experts=4, num_local_experts=None)
    assert torch.equal(load_decoder(folder)(some_ids()), expected)

    folder, _, _ = copied("deepseek_v3")
    set_config(folder, rope_parameters=YARN)
    expected = load_decoder(folder)(some_ids())
    old = {"type" if key == "rope_type" else key: value for key, value in YARN.items()}
    set_config(folder, rope_parameters=None, rope_theta=old.pop("rope_theta"), rope_scaling=old)
    assert torch.equal(load_decoder(folder)(some_ids()), expected)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["mistral", "mixtral", "gemma3_text", "gpt_oss", "deepseek_v3"])
def test_a_rolling_cache_changes_nothing(write, kind):
    changed = (("sliding_window", 3),) if kind in ("mistral", "mixtral") else ()
    ours, ids = loader(kind)(write(kind, changed)[0]), some_ids()
    kept, everything = KeyValueCache(rolling=True), KeyValueCache()
    for cache in (kept, everything):
        parts = [ours(part, cache=cache) for part in ids.split([5, 1, 1, 2], dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), ours(ids), atol=1e-5, rtol=1e-5)
    assert (kept.nbytes < everything.nbytes) == (kind != "deepseek_v3"), "which has no window"


def test_what_is_no_window_and_no_scaling_for_transformers_is_none_here(copied):
    folder, _, _ = copied("qwen2")
    expected = load_llama(folder)(some_ids())
    set_config(folder, use_sliding_window=True, sliding_window=3, layer_types=None)
    assert torch.equal(load_llama(folder)(some_ids()), expected), "all layers are below 28"
    set_config(folder, max_window_layers=1)
    assert "'full_attention', 'sliding_attention'" in error_of(lambda: load_llama(folder))
    set_config(folder, max_window_layers=0)
    assert not torch.allclose(load_llama(folder)(some_ids()), expected)

    folder, _, _ = copied("llama")
    set_config(folder, rope_parameters={"rope_type": "default", "rope_theta": 30.0})
    expected = load_llama(folder)(some_ids())
    one = {"rope_type": "default", "rope_theta": 30.0}
    set_config(folder, rope_parameters={"full_attention": one, "sliding_attention": one})
    assert torch.equal(load_llama(folder)(some_ids()), expected)

    folder, _, _ = copied("vit")
    set_config(folder, id2label=None, num_labels=2)
    assert load_vit(folder).head.out_features == 2
    set_config(folder, num_labels=3)
    assert "classifier.bias must fit into" in error_of(lambda: load_vit(folder))


@pytest.mark.parametrize("dtype", [torch.int32, "float16", None, torch.float8_e4m3fn])
def test_weights_become_floating_point_numbers(write, dtype):
    folder, _ = write("gpt2")
    assert f"got dtype={dtype!r}" in error_of(lambda: load_gpt2(folder, dtype=dtype))


@pytest.mark.parametrize("name", [None, 3, "", b"gpt2", "a/b/c", "/not/there", Path("/not/there")])
def test_names_that_are_none(name):
    text = error_of(lambda: load_gpt2(name))
    assert "name must be a folder that exists, or a name on the hub" in text
    assert f"such as someone/model, got {name!r}." in text


def test_float8_without_its_scales_is_refused(copied):
    folder, tensors, save = copied("llama")
    name = "model.layers.0.self_attn.q_proj.weight"
    save({**tensors, name: tensors[name].to(torch.float8_e4m3fn)})
    text = error_of(lambda: load_llama(folder))
    assert f"got {name} of torch.float8_e4m3fn" in text and "quantized" in text


# --- what the classes gained for it


def test_text_encoder_refuses_bad_types():
    sizes = {"vocab_size": V, "embed_dim": 24, "num_heads": 3, "mlp_dim": 20, "num_layers": 1}
    model = TextEncoder(**sizes, max_length=N)
    ids = some_ids()
    assert model(ids).shape == (B, N, 24)
    for bad in (torch.full_like(ids, 2), torch.full_like(ids, -1)):
        text = error_of(lambda bad=bad: model(ids, types=bad))
        assert "types must lie between 0 and 1" in text
    text = error_of(lambda: model(ids, types=torch.zeros(B, 1).long()))
    assert f"types must have shape (b={B}, n={N})" in text
    assert "num_types=0" in error_of(lambda: TextEncoder(**sizes, max_length=N, num_types=0))
    real = real_tokens("right")
    changed = ids.where(real, (ids + 1) % V)
    kept = [model(x, real[:, None, None])[real] for x in (ids, changed)]
    torch.testing.assert_close(*kept)  # what stands in the padding does not matter
