"""The eight small trained models that ship with the course (chapters 03 to 18)."""

from typing import Any

from safetensors.torch import load_file
from torch import nn

from utils.data.files import resource

# What each model is built with, here and by resources/make_*.py; with the same sizes and without
# the weights it is the untrained control.
SHIPPED: dict[str, dict[str, Any]] = {
    "digits": {
        "image_size": 8,
        "patch_size": 2,
        "in_channels": 1,
        "num_classes": 10,
        "embed_dim": 64,
        "num_heads": 4,
        "mlp_dim": 256,
        "num_layers": 2,
    },
    "drawing": {
        "vocab_size": 28,
        "embed_dim": 64,
        "num_heads": 4,
        "mlp_dim": 256,
        "num_layers": 4,
        "max_length": 64,
    },
    "caption": {
        "vocab_size": 34,
        "embed_dim": 64,
        "num_heads": 4,
        "mlp_dim": 256,
        "num_layers": 4,
        "max_length": 66,
    },
    "canvas": {
        "image_size": 24,
        "patch_size": 4,
        "in_channels": 1,
        "num_classes": 10,
        "embed_dim": 64,
        "num_heads": 4,
        "mlp_dim": 256,
        "num_layers": 3,
    },
    "sentence": {
        "vocab_size": 27,
        "embed_dim": 48,
        "num_heads": 4,
        "mlp_dim": 192,
        "num_layers": 2,
        "max_length": 10,
    },
    "rules": {
        "vocab_size": 12,
        "embed_dim": 32,
        "num_heads": 2,
        "mlp_dim": 128,
        "num_layers": 2,
        "max_length": 20,
    },
    "date": {
        "source_size": 80,
        "target_size": 15,
        "embed_dim": 64,
        "num_heads": 4,
        "mlp_dim": 128,
        "num_encoder_layers": 2,
        "num_decoder_layers": 1,
        "max_length": 40,
        "positions": "learned",
        "scale": True,
    },
    "detection": {
        "image_size": 32,
        "in_channels": 1,
        "num_classes": 10,
        "num_queries": 6,
        "embed_dim": 64,
        "num_heads": 4,
        "mlp_dim": 128,
        "num_encoder_layers": 2,
        "num_decoder_layers": 2,
    },
}


def load_shipped(name: str) -> nn.Module:
    """Load a trained model that ships with the course, in eval mode.

    >>> load_shipped("digits")(torch.zeros(1, 1, 8, 8)).shape
    torch.Size([1, 10])

    Args:
        name: one of `SHIPPED`:
            "digits", a `VisionTransformer` of handwritten digits, 17 tokens of 2 x 2 pixels;
            "canvas", one that finds a digit on 24 x 24 pixels, 37 tokens of 4 x 4 pixels;
            "drawing", a `LanguageModel` that writes digits as `drawing_ids`;
            "caption", one that writes pictures after their captions, as `captioned_ids`;
            "sentence", a `LanguageModel` of the sentences of `load_grammar`;
            "rules", one of `rule_sequences`, which finds the rule in its prompt;
            "date", a `Transformer` that reads `date_ids`;
            "detection", a `DetectionTransformer` of `draw_scenes`.

    Shape:
        digits     images (b, 1, 8, 8) -> logits (b, 10)
        canvas     images (b, 1, 24, 24) -> logits (b, 10)
        drawing    ids (b, n), n up to 64 -> logits (b, n, 28)
        caption    ids (b, n), n up to 66 -> logits (b, n, 34)
        sentence   ids (b, n), n up to 10 -> logits (b, n, 27)
        rules      ids (b, n), n up to 20 -> logits (b, n, 12)
        date       source (b, j), target (b, i) -> logits (b, i, 15)
        detection  images (b, 1, 32, 32) -> logits (2, b, 6, 11) and boxes (2, b, 6, 4)

    Raises: ValueError for another name, or a missing file of weights.
    Source: resources/make_*.py; chapters 04, 07, 11, 14, 17 and 18.
    """
    if name not in SHIPPED:
        raise ValueError(
            f"load_shipped: name must be one of {[*SHIPPED]}, got name={name!r}. "
            'Write for example load_shipped("digits").'
        )
    # Here, so that who only wants data does not wait for the models.
    from utils.decoder import Transformer
    from utils.detection import DetectionTransformer
    from utils.language_model import LanguageModel
    from utils.vision_transformer import VisionTransformer

    kinds = {
        "digits": VisionTransformer,
        "canvas": VisionTransformer,
        "date": Transformer,
        "detection": DetectionTransformer,
    }
    model = kinds.get(name, LanguageModel)(**SHIPPED[name])
    weights = load_file(resource(f"{name}_model.safetensors"))
    if isinstance(model, LanguageModel):  # its file holds the tied weights once
        weights["head.weight"] = weights["embedding.tokens.weight"]
    model.load_state_dict(weights)
    return model.eval()
