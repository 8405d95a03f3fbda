"""Names of version 1.0: each still works, is the new thing, and warns where it is used."""

import inspect
import subprocess
import sys
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
import torch

from utils import renamed
from utils.attention import MultiHeadAttention
from utils.boxes import Found
from utils.cache import KeyValueCache
from utils.modern_decoder import GroupedQueryAttention, ModernDecoder

ROOT = Path(__file__).resolve().parents[2]


def forget(name):
    """Forget a module, so that the next import runs it again."""
    sys.modules.pop(name, None)


@pytest.mark.parametrize("old, new", renamed.MODULES.items())
def test_old_modules(old, new):
    forget(old)
    with pytest.warns(DeprecationWarning, match=f"^{old} is now {new}. Write") as seen:
        module = import_module(old)
    assert len(seen) == 1 and seen[0].filename == __file__
    for name, value in vars(import_module(new)).items():
        if not name.startswith("__"):
            assert getattr(module, name) is value
    with pytest.raises(AttributeError):
        module.never_there  # noqa: B018


@pytest.mark.parametrize("old, new", renamed.NAMES.items())
@pytest.mark.filterwarnings("ignore:utils.\\w+ is now utils")
def test_old_names(old, new):
    path, _, name = old.rpartition(".")
    module = import_module(path)
    with pytest.warns(DeprecationWarning) as seen:
        found = getattr(module, name)
    (warning,) = [one for one in seen if str(one.message).startswith(f"{old} is now {new}.")]
    assert warning.filename == __file__
    wanted = renamed.resolve(new)
    if isinstance(wanted, partial):  # a loader, with the name of the model
        assert (found.func, found.args) == (wanted.func, wanted.args)
    else:
        assert found is wanted
    with pytest.raises(AttributeError, match="never_there"):
        getattr(module, "never_there")  # noqa: B009


@pytest.mark.parametrize("where", renamed.ARGUMENTS)
def test_old_arguments(where):
    *_, kind, name = ("", *where.split(".")[2:])
    module = import_module(".".join(where.split(".")[:2]))
    call = getattr(getattr(module, kind), name) if kind else getattr(module, name)
    seen = {}

    def record(*args, **kwargs):
        seen.update(kwargs)

    names = renamed.ARGUMENTS[where]
    assert set(names.values()) <= set(inspect.signature(call).parameters)
    old = renamed._with_old_arguments(where, record, names)
    with pytest.warns(DeprecationWarning) as warned:
        old(**{name: 1 for name in names}, other=2)
    assert seen == {**{new: 1 for new in names.values()}, "other": 2}
    assert len(warned) == len(names) and warned[0].filename == __file__


@pytest.mark.filterwarnings("error")
def test_new_names_do_not_warn():
    model = ModernDecoder(
        vocab_size=9,
        embed_dim=8,
        num_heads=2,
        num_kv_heads=1,
        mlp_dim=16,
        num_layers=1,
        rope_theta=500.0,
        tie_weights=True,
    )
    model(torch.zeros(1, 4, dtype=torch.int64), cache=KeyValueCache())


@pytest.mark.parametrize("where", renamed.ATTRIBUTES)
def test_old_attributes(where):
    thing = {
        "Found": lambda: Found(torch.tensor([1]), torch.rand(1, 4), torch.tensor([0.5])),
        "KeyValueCache": KeyValueCache,
        "GroupedQueryAttention": lambda: GroupedQueryAttention(8, 2, 1, rope_theta=7.0),
    }[where.split(".")[-1]]()
    for old, new in renamed.ATTRIBUTES[where].items():
        with pytest.warns(DeprecationWarning, match=f"{old} is now .*{new}"):
            found = getattr(thing, old)
        assert found == getattr(thing, new)


def test_an_old_attribute_is_set():
    layer = GroupedQueryAttention(8, 2, 1)
    with pytest.warns(DeprecationWarning, match="base is now") as seen:
        layer.base = 500.0
    assert layer.rope_theta == 500.0 and seen[0].filename == __file__


def test_a_cell_with_old_names_runs_and_is_told():
    """In a notebook the warning is seen, since it comes from the cell itself."""
    cell = (
        "from utils.images import load_photos\n"
        "from utils.vision_transformer import load_digits_model\n"
        "print(tuple(load_photos().shape), load_digits_model().head.out_features)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", cell], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert result.stdout == "(6, 3, 96, 96) 10\n"
    assert "utils.images is now utils.data." in result.stderr
    assert "load_digits_model is now utils.data.load_shipped('digits')." in result.stderr


@pytest.mark.parametrize("positional", [False, True])
def test_a_cache_of_ones_own(positional):
    class Own:
        length = 0

        def extend(self, layer, k, v):
            return k, v

    layer, x, cache = GroupedQueryAttention(8, 2, 1), torch.zeros(1, 3, 8), Own()
    given = (x, None, torch.arange(3), cache)
    with pytest.warns(DeprecationWarning, match="Own.extend is now Own.update") as seen:
        layer(*given) if positional else layer(*given[:3], cache=cache)
        MultiHeadAttention(8, 2)(x, cache=cache)
    assert len(seen) == 1 and seen[0].filename == __file__
