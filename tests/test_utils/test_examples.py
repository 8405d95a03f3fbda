"""The examples in the docstrings of utils give what they say."""

import doctest
from importlib import import_module
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
FILES = [
    path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
    for folder in ("utils", "utils/data", "utils/hub")
    for path in sorted((ROOT / folder).glob("*.py"))
    if path.stem != "__init__"
]


def given():
    """Names that an example may use as they are: a small model with its input."""
    from utils.modern_decoder import ModernDecoder

    sizes = {"vocab_size": 9, "embed_dim": 8, "mlp_dim": 16, "num_layers": 2}
    model = ModernDecoder(**sizes, num_heads=4, num_kv_heads=2).eval()
    ids = torch.arange(8)[None]
    return {"torch": torch, "model": model, "ids": ids, "x": ids}


@pytest.mark.parametrize("name", FILES)
def test_examples(name):
    module = import_module(name)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, _ = doctest.testmod(module, extraglobs=given(), optionflags=options)
    assert not failed


def test_most_teaching_files_have_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    count = {
        name: sum(bool(t.examples) for t in finder.find(import_module(name))) for name in FILES
    }
    assert sum(count.values()) >= 28, count
