"""Weights that others trained.

`checkpoints` reads their files, `configs` what they say about the model, and `filling` puts tensors
into our classes; `pretrained` and `decoders` hold the loaders.
"""

from utils.hub.checkpoints import open_checkpoint, read_tensors
from utils.hub.decoders import load_decoder
from utils.hub.filling import find_row
from utils.hub.pretrained import (
    BERT,
    GPT2,
    LLAMA,
    VIT,
    load_bert,
    load_gpt2,
    load_llama,
    load_vit,
)

__all__ = [
    "BERT",
    "GPT2",
    "LLAMA",
    "VIT",
    "find_row",
    "load_bert",
    "load_decoder",
    "load_gpt2",
    "load_llama",
    "load_vit",
    "open_checkpoint",
    "read_tensors",
]
