"""The explorer of attention: what it hands to the page, and what it refuses."""

import pytest
import torch

from helpers import error_of, random, randomize
from tools.course import outputs
from utils.attention import record_attention
from utils.draw import Look, explore_attention
from utils.encoder import Encoder
from utils.language_model import LanguageModel

WORDS = ["a", "<b>", "</script>"]


@pytest.fixture(scope="module")
def maps():
    model = LanguageModel(
        vocab_size=9, embed_dim=12, num_heads=3, mlp_dim=8, num_layers=2, max_length=5
    )
    with torch.no_grad(), record_attention(randomize(model).double()) as maps:
        model(torch.tensor([[1, 2, 3], [4, 5, 6]]))
    return maps


def data_of(html):
    (one,) = outputs.explorers(html)
    assert one.kind == "attention"
    return one.data


def test_numbers_travel_in_thousandths_and_hidden_places_are_said(maps):
    html = explore_attention("one", {"text": Look(maps=maps, words=WORDS, index=1)}).data
    data = data_of(html)
    assert html.count("<script") == html.count("</script>") == 2 and "UNSEEN" not in html
    assert data["start"] == {"look": 0, "layer": 0, "head": 0, "row": 0, "column": 0}
    (look,) = data["looks"]
    assert (look["grid"], look["image"], look["front"]) == (None, None, 0)
    for place, layer in enumerate(look["layers"]):
        assert layer["name"] == f"layer {place}" and layer["width"] == 4
        assert layer["rows"] == layer["columns"] == WORDS
        heat = torch.tensor(layer["heat"]).reshape(3, 3, 3)
        assert (heat == -1).sum() == 9, "the future of 3 tokens, in 3 heads"
        shares = maps[place][1] * 1000
        assert (heat.clamp(min=0) - shares).abs().max() <= 0.5
        for name, side in (("q", maps.queries), ("k", maps.keys)):
            sent = torch.tensor(layer[name]).reshape(3, 3, 4)
            assert (sent - side[place][1] * 1000).abs().max() <= 0.5


def test_the_other_explorers_carry_nothing_of_it(maps):
    from utils.draw import explore_product

    product = explore_product("two", torch.ones(2, 2), torch.ones(2, 2)).data
    assert "KINDS.attention" not in product and "sbs-tokens" not in product


def test_layers_with_tokens_of_their_own_and_maps_without_queries():
    across = random(1, 2, 2, 3).softmax(dim=-1)
    own = random(1, 4, 3, 3).softmax(dim=-1)
    look = Look(maps=[own, across], words=[(WORDS, WORDS), ("xy", WORDS)], layers=["own", "across"])
    layers = data_of(explore_attention("both", {"t": look}, start=(1, 1, 1, 2)).data)["looks"][0]
    first, second = layers["layers"]
    assert (first["name"], len(first["heat"])) == ("own", 4)
    assert (second["rows"], len(second["heat"][0])) == (["x", "y"], 6)
    assert second["q"] is None


def test_a_picture_names_its_patches():
    model = randomize(Encoder(1, 12, 3, 8)).double()
    with torch.no_grad(), record_attention(model) as maps:
        model(random(1, 7, 12).double())
    look = Look(maps=maps, words=["class token"], image=torch.rand(1, 4, 6), grid=(2, 3))
    data = data_of(explore_attention("picture", {"p": look}).data)
    assert data["looks"][0]["front"] == 1 and data["images"][0]["width"] == 6
    rows = data["looks"][0]["layers"][0]["rows"]
    assert rows[:2] == ["class token", "row 0, column 0"] and rows[-1] == "row 1, column 2"


def test_bad_input(maps):
    good = Look(maps=maps, words=WORDS)
    for call, said in [
        (lambda: explore_attention("Bad name", {"t": good}), "name must be lower-case"),
        (lambda: explore_attention("a", {}), "at least one"),
        (lambda: explore_attention("a", {"t": Look(maps=[], words=WORDS)}), "at least one layer"),
        (lambda: explore_attention("a", {"t": Look(maps=maps, words="ab")}), "2 words for maps"),
        (
            lambda: explore_attention("a", {"t": Look(maps=maps, words=[(WORDS, WORDS)])}),
            "got 1 pairs",
        ),
        (
            lambda: explore_attention("a", {"t": Look(maps=maps, words=WORDS, grid=(1, 3))}),
            "needs image and grid",
        ),
        (
            lambda: explore_attention("a", {"t": Look(maps=maps, words=WORDS, index=2)}),
            "number 2",
        ),
        (
            lambda: explore_attention("a", {"t": Look(maps=[-maps[0]], words=WORDS)}),
            "weights, not scores",
        ),
        (
            lambda: explore_attention("a", {"t": Look(maps=[maps[0] * torch.nan], words=WORDS)}),
            "from 0 to 1",
        ),
        (
            lambda: explore_attention("a", {"t": Look(maps=maps, words=WORDS, layers=["x"])}),
            "one text for each of 2 layers",
        ),
        (lambda: explore_attention("a", {"t": good}, start=(2, 0, 0, 0)), "got start=(2, 0, 0, 0)"),
        (lambda: explore_attention("a", {"t": good}, start=(0, 3, 0, 0)), "Count from 0"),
        (lambda: explore_attention("a", {"t": good}, start=(0, 0, 0)), "Count from 0"),
    ]:
        assert said in error_of(call)
