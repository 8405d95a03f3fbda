"""What test files share: random weights, weights copied to PyTorch's modules, texts of errors."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from checks.engine.modules import randomize as randomize
from utils.attention import MultiHeadAttention
from utils.decoder import Decoder, DecoderBlock, Transformer
from utils.encoder import Encoder, EncoderBlock

# "the same" in float32: what two orders of summation may differ by
CLOSE = {"rtol": 1e-5, "atol": 1e-5}


def random(*shape: int, seed: int = 0, **options) -> Tensor:
    """Return normally distributed numbers that depend on the seed alone."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return values.to(**options) if options else values


def child_names(module: nn.Module) -> list[str]:
    """Return the names of a module's parts, in the order in which they are registered."""
    return [name for name, _ in module.named_children()]


def same_and_backward(result: Tensor, expected: Tensor, x: Tensor, other: Tensor) -> None:
    """Check two outputs, run both backwards from one random loss, and check the inputs' gradients.

    Args:
        result, expected: ours and the reference's.
        x, other: the inputs that they were computed from.
    """
    assert result.std() > 0.1, "so that equal says something"
    torch.testing.assert_close(result, expected, **CLOSE)
    weights = random(*result.shape, seed=2)
    (result * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(x.grad, other.grad, **CLOSE)


def error_of(call: Callable[[], object]) -> str:
    """Return the text of the `ValueError` that a call raises, after checking its form."""
    with pytest.raises(ValueError) as caught:
        call()
    text = str(caught.value)
    assert caught.type is ValueError
    assert "\n" not in text
    where, rest = text.split(": ", 1)
    assert where.isidentifier(), "it begins with the public name"
    rule, fix = rest.split("got ", 1)
    assert rule.endswith(", ") and ". " in fix and text.endswith("."), "rule, got value. Fix."
    return text


def attention_grads(ours: MultiHeadAttention) -> dict[str, Tensor]:
    """Return our gradients under the names of `nn.MultiheadAttention`."""
    parts = ours.q_proj, ours.k_proj, ours.v_proj
    return {
        "in_proj_weight": torch.cat([part.weight.grad for part in parts]),
        "in_proj_bias": torch.cat([part.bias.grad for part in parts]),
        "out_proj.weight": ours.out_proj.weight.grad,
        "out_proj.bias": ours.out_proj.bias.grad,
    }


def torch_attention(ours: MultiHeadAttention) -> nn.MultiheadAttention:
    """Build PyTorch's attention with our weights."""
    theirs = nn.MultiheadAttention(
        ours.embed_dim, ours.num_heads, dropout=ours.dropout, batch_first=True
    )
    parts = ours.q_proj, ours.k_proj, ours.v_proj
    theirs.load_state_dict(
        {
            "in_proj_weight": torch.cat([part.weight for part in parts]),
            "in_proj_bias": torch.cat([part.bias for part in parts]),
            "out_proj.weight": ours.out_proj.weight,
            "out_proj.bias": ours.out_proj.bias,
        }
    )
    return theirs.train(ours.training)


def torch_block(ours: EncoderBlock) -> nn.TransformerEncoderLayer:
    """Build PyTorch's encoder layer with our weights."""
    return _torch_layer(nn.TransformerEncoderLayer, ours, self_attn=ours.attn)


def torch_decoder_block(ours: DecoderBlock) -> nn.TransformerDecoderLayer:
    """Build PyTorch's decoder layer with our weights."""
    attentions = {"self_attn": ours.attn, "multihead_attn": ours.cross_attn}
    return _torch_layer(nn.TransformerDecoderLayer, ours, **attentions)


def _torch_layer(kind: Callable, ours: nn.Module, **attentions: MultiHeadAttention) -> nn.Module:
    theirs = kind(
        ours.attn.embed_dim,
        ours.attn.num_heads,
        ours.mlp.fc1.out_features,
        dropout=ours.dropout.p,
        activation="gelu" if isinstance(ours.mlp.act, nn.GELU) else "relu",
        layer_norm_eps=ours.norm1.eps,
        batch_first=True,
        norm_first=ours.norm_first,
    )
    for name, attention in attentions.items():
        setattr(theirs, name, torch_attention(attention))
    norms = {name: part for name, part in ours.named_children() if name.startswith("norm")}
    for name, part in {"linear1": ours.mlp.fc1, "linear2": ours.mlp.fc2, **norms}.items():
        getattr(theirs, name).load_state_dict(part.state_dict())
    return theirs.train(ours.training)


def torch_encoder(ours: Encoder) -> nn.TransformerEncoder:
    """Build PyTorch's encoder with our weights."""
    blocks = [torch_block(block) for block in ours.layers]
    return _torch_stack(nn.TransformerEncoder, ours, blocks, enable_nested_tensor=False)


def torch_decoder(ours: Decoder) -> nn.TransformerDecoder:
    """Build PyTorch's decoder with our weights."""
    blocks = [torch_decoder_block(block) for block in ours.layers]
    return _torch_stack(nn.TransformerDecoder, ours, blocks)


def _torch_stack(
    kind: Callable, ours: nn.Module, blocks: list[nn.Module], **options: bool
) -> nn.Module:
    norm = None
    if isinstance(ours.norm, nn.LayerNorm):
        norm = nn.LayerNorm(ours.norm.normalized_shape, eps=ours.norm.eps)
        norm.load_state_dict(ours.norm.state_dict())
    theirs = kind(blocks[0], len(blocks), norm, **options)
    theirs.layers = nn.ModuleList(blocks)
    return theirs.train(ours.training)


def torch_transformer(ours: Transformer) -> nn.Transformer:
    """Build PyTorch's Transformer with our weights; it has no embedding and no head."""
    theirs = nn.Transformer(
        ours.head.in_features,
        ours.num_heads,
        custom_encoder=nn.Identity(),
        custom_decoder=nn.Identity(),
        batch_first=True,
    )
    # Put in afterwards: nn.Transformer draws the weights of what it is given anew.
    theirs.encoder, theirs.decoder = torch_encoder(ours.encoder), torch_decoder(ours.decoder)
    return theirs.train(ours.training)
