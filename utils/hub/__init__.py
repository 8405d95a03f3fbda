"""Weights that others trained: `checkpoints` reads their files, `pretrained` fills our classes."""

from utils.hub.checkpoints import open_checkpoint, read_tensors
from utils.hub.pretrained import (
    BERT,
    GPT2,
    LLAMA,
    VIT,
    find_row,
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
    "load_gpt2",
    "load_llama",
    "load_vit",
    "open_checkpoint",
    "read_tensors",
]
