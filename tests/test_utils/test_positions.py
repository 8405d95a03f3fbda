"""Codes of positions, and the embedding of ids: loop, PyTorch's look-up, properties, bad input."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from helpers import error_of, randomize
from utils.embedding import TokenEmbedding
from utils.positions import sinusoidal_positions

CLOSE = {"rtol": 1e-5, "atol": 1e-5}
tried = settings(max_examples=40, deadline=None, derandomize=True, database=None)
kinds = pytest.mark.parametrize("positions", ["learned", "sinusoidal", None])


def by_loop(n, e, base=10_000.0):
    """The formula, number by number: the specification."""
    rows = []
    for p in range(n):
        row = []
        for c in range(e):
            angle = p / base ** ((c - c % 2) / e)
            row.append(math.cos(angle) if c % 2 else math.sin(angle))
        rows.append(row)
    return torch.tensor(rows)


@pytest.mark.parametrize("n, e", [(1, 1), (5, 1), (7, 2), (40, 5), (33, 64), (2, 7)])
@pytest.mark.parametrize("base", [10_000.0, 100.0])
def test_positions_equal_the_loop(n, e, base):
    codes = sinusoidal_positions(n, e, base)
    assert codes.shape == (n, e) and codes.dtype == torch.float32
    torch.testing.assert_close(codes, by_loop(n, e, base), rtol=0, atol=1e-6)


def test_far_positions_are_exact():
    torch.testing.assert_close(
        sinusoidal_positions(20_001, 6)[-1], by_loop(20_001, 6)[-1], rtol=0, atol=1e-6
    )


@kinds
@pytest.mark.parametrize("scale, factor", [(True, 6**0.5), (False, 1.0)])
def test_equals_pytorchs_look_up_in_values_and_gradients(positions, scale, factor):
    ours = randomize(TokenEmbedding(11, 6, 8, positions, scale=scale))
    theirs = nn.Embedding(11, 6)
    theirs.load_state_dict(ours.tokens.state_dict())
    ids = torch.tensor([[3, 10, 0, 3], [1, 1, 5, 2]])
    added = 0 if positions is None else ours.positions[:4]
    tokens = ours(ids)
    looked_up = theirs(ids) * factor
    torch.testing.assert_close(tokens, looked_up + added, **CLOSE)
    one_hot = F.one_hot(ids, 11).float() @ ours.tokens.weight * factor
    torch.testing.assert_close(tokens, one_hot + added, **CLOSE)

    weights = torch.randn(tokens.shape, generator=torch.Generator().manual_seed(1))
    (tokens * weights).sum().backward()
    (looked_up * weights).sum().backward()
    torch.testing.assert_close(ours.tokens.weight.grad, theirs.weight.grad, **CLOSE)
    if positions == "learned":
        torch.testing.assert_close(ours.positions.grad[:4], weights.sum(0), **CLOSE)
        assert (ours.positions.grad[4:] == 0).all()


def test_what_is_a_parameter_and_what_is_saved():
    names = {
        kind: [name for name, _ in TokenEmbedding(5, 4, 3, kind).named_parameters()]
        for kind in ("learned", "sinusoidal", None)
    }
    assert names == {
        "learned": ["positions", "tokens.weight"],
        "sinusoidal": ["tokens.weight"],
        None: ["tokens.weight"],
    }
    fixed = TokenEmbedding(5, 4, 3, "sinusoidal")
    assert list(fixed.state_dict()) == ["tokens.weight"], "a formula needs no file"
    torch.testing.assert_close(fixed.positions, sinusoidal_positions(3, 4))
    assert fixed.double().positions.dtype == torch.float64, "it moves with the module"
    assert TokenEmbedding(5, 4, 3, None).positions is None


@kinds
@pytest.mark.parametrize("start", [0, 1, 3])
def test_start_is_the_position_of_the_first_id(positions, start):
    embed = TokenEmbedding(11, 6, 8, positions)
    ids = torch.tensor([[3, 10, 0, 3, 7], [1, 1, 5, 2, 9]])
    whole = embed(ids)
    torch.testing.assert_close(embed(ids[:, start:], start=start), whole[:, start:])


@tried
@given(st.integers(1, 40), st.booleans())
def test_tokens_and_learned_positions_start_as_large_as_each_other(e, scale):
    torch.manual_seed(0)
    embed = TokenEmbedding(2_000, e, 2_000, "learned", scale=scale)
    spread = 1.0 if scale else e**-0.5
    ids = torch.arange(2_000)[None]
    assert abs((embed(ids) - embed.positions).std() / spread - 1) < 0.1
    assert abs(embed.positions.std() / spread - 1) < 0.1
    assert abs(embed.tokens.weight.std() * e**0.5 - 1) < 0.1


def test_padding_starts_at_zero_and_stays_there():
    embed = TokenEmbedding(7, 4, 5, None, padding_id=2)
    ids = torch.tensor([[5, 6, 2, 2]])
    assert (embed(ids)[0, 2:] == 0).all() and (embed(ids)[0, :2] != 0).all()
    embed(ids).sum().backward()
    assert (embed.tokens.weight.grad[2] == 0).all()
    assert (embed.tokens.weight.grad[5:] != 0).all()


@kinds
def test_forward_changes_nothing_in_place(positions):
    embed = TokenEmbedding(7, 4, 5, positions, scale=False)
    before = {name: value.clone() for name, value in embed.state_dict().items()}
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        embed(ids).zero_()
    assert ids.tolist() == [[1, 2, 3]]
    assert all(torch.equal(before[name], value) for name, value in embed.state_dict().items())
    if positions:
        assert embed.positions.abs().sum() > 0


def test_without_positions_nothing_is_limited():
    assert TokenEmbedding(7, 4, 2, None)(torch.ones(1, 9, dtype=torch.long)).shape == (1, 9, 4)
    assert TokenEmbedding(7, 4, 2)(torch.ones(0, 2, dtype=torch.int32)).shape == (0, 2, 4)


@pytest.mark.parametrize("n, e, base", [(0, 4, 1e4), (3, 0, 1e4), (3, 4.0, 1e4), (3, 4, 0)])
def test_codes_that_are_refused(n, e, base):
    assert error_of(lambda: sinusoidal_positions(n, e, base)).startswith("sinusoidal_positions: ")


@pytest.mark.parametrize(
    "arguments, said",
    [
        ((0, 4, 3), "vocab_size must be an integer of at least 1"),
        ((5, 0, 3), "embed_dim must be an integer of at least 1"),
        ((5, 4, 0), "max_length must be an integer of at least 1"),
        ((5, 4, 3, "rotary"), 'positions must be "learned", "sinusoidal" or None'),
        ((5, 4, 3, None, 5), "padding_id must be an integer from 0 to 4"),
        ((5, 4, 3, None, -1), "padding_id must be an integer from 0 to 4"),
    ],
)
def test_sizes_that_are_refused(arguments, said):
    assert said in error_of(lambda: TokenEmbedding(*arguments))


@kinds
def test_ids_outside_the_vocabulary_are_named(positions):
    embed = TokenEmbedding(5, 4, 3, positions)
    text = error_of(lambda: embed(torch.tensor([[1, 7]])))
    assert "ids must lie between 0 and 4, got 7." in text and "vocab_size=8" in text
    assert "got -1." in error_of(lambda: embed(torch.tensor([[1, -1]])))
    TokenEmbedding(8, 4, 3, positions)(torch.tensor([[1, 7]]))


@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
def test_a_sequence_longer_than_the_positions_gets_a_fix_that_works(positions):
    ids = torch.ones(2, 5, dtype=torch.long)
    text = error_of(lambda: TokenEmbedding(5, 4, 4, positions)(ids))
    assert "there are positions for 4 tokens, got 5." in text and "max_length=5" in text
    TokenEmbedding(5, 4, 5, positions)(ids)
    assert "got 6." in error_of(lambda: TokenEmbedding(5, 4, 5, positions)(ids, start=1))


@pytest.mark.parametrize(
    "ids, start, said",
    [
        (torch.tensor([1, 2]), 0, "ids[None]"),
        (torch.tensor([[1.0, 2.0]]), 0, "ids.long()"),
        (torch.tensor([[True]]), 0, "ids.long()"),
        (torch.tensor([[1]]), -1, "start must be an integer of at least 0, got start=-1"),
        (torch.tensor([[1]]), 1.0, "start must be an integer of at least 0, got start=1.0"),
    ],
)
def test_ids_that_are_refused(ids, start, said):
    assert said in error_of(lambda: TokenEmbedding(5, 4, 3)(ids, start))


@kinds
def test_places_say_where_each_token_stands(positions):
    embed = TokenEmbedding(11, 6, 8, positions)
    ids = torch.tensor([[3, 10, 0, 3, 7], [1, 1, 5, 2, 9]])
    torch.testing.assert_close(embed(ids, positions=torch.arange(2, 7)), embed(ids, start=2))
    padded = embed(ids, positions=torch.tensor([[0, 1, 2, 3, 4], [0, 0, 0, 1, 2]]))
    torch.testing.assert_close(padded[0], embed(ids)[0])
    torch.testing.assert_close(padded[1:, 2:], embed(ids[1:, 2:]))


@pytest.mark.parametrize(
    "places, said",
    [
        (torch.arange(3), "of shape (2,) or (1, 2), got positions.shape=(3,)"),
        (torch.ones(2), "got torch.float32"),
        (torch.tensor([0, 3]), "between 0 and 2, got 3. Cut the sequence, or build it with max_le"),
        (torch.tensor([[-1, 0]]), "between 0 and 2, got -1"),
    ],
)
def test_places_that_are_refused(places, said):
    ids = torch.tensor([[1, 2]])
    assert said in error_of(lambda: TokenEmbedding(5, 4, 3)(ids, positions=places))
