"""The pictures of `utils.draw`: each is drawn and closed; explorers hold what they were given."""

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from IPython.display import HTML
from torch import Tensor

from utils import draw
from utils.draw import Frame, explorer

pytestmark = pytest.mark.filterwarnings("ignore:FigureCanvasAgg is non-interactive")
PHOTOS = torch.linspace(0, 1, 2 * 3 * 8 * 12).view(2, 3, 8, 12)
DIGITS = torch.linspace(0, 1, 7 * 64).view(7, 1, 8, 8)
MATRIX = torch.linspace(-1, 1, 12).view(3, 4)
MASK = torch.ones(3, 3, dtype=torch.bool).tril()


@pytest.fixture(autouse=True)
def no_figure_is_left() -> Iterator[None]:
    """Fail a test after which a figure is still open."""
    plt.close("all")
    yield
    assert plt.get_fignums() == [], "A figure was left open. End the function with _show()."


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Collect the texts of every figure that is shown."""
    figures: list[list[str]] = []

    def show() -> None:
        for number in plt.get_fignums():
            figure = plt.figure(number)
            figure.canvas.draw()
            figures.append([t.get_text() for t in figure.findobj(matplotlib.text.Text)])

    monkeypatch.setattr(plt, "show", show)
    return figures


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "words"),
    [
        (draw.show_images, (PHOTOS,), {"titles": ["one", "two"], "patch_size": 4}, ["one", "two"]),
        (draw.show_images, (DIGITS,), {"columns": 3, "patch_size": (2, 4)}, []),
        (draw.show_patches, (DIGITS[:6], (2, 3)), {"title": "six"}, ["six", "0", "5"]),
        (draw.show_patches, (PHOTOS, (1, 2)), {"titles": ["left", "right"]}, ["left", "right"]),
        (draw.show_matrices, (MATRIX, "m"), {}, ["m", "query i", "key j", "-1.00", "1.00"]),
        (draw.show_matrices, ([MATRIX, MASK.float()], ["a", "b"]), {"shared_scale": False}, ["a"]),
        (draw.show_matrices, (torch.rand(8, 37, 37), list("abcdefgh")), {}, ["a", "h"]),
        (draw.show_matrices, (MASK, "mask"), {"row_labels": list("xyz")}, ["x", "z", "1", "0"]),
        (draw.show_matrices, (MATRIX.bfloat16().requires_grad_(), "m"), {"symmetric": True}, ["m"]),
        (draw.show_matrices, (torch.full((2, 2), -torch.inf), "m"), {}, ["-inf"]),
        (draw.show_tensor, (torch.arange(24).view(2, 3, 4), "b n e", "t"), {}, ["b = 1", "23"]),
        (draw.show_tensor, (torch.arange(48).view(2, 4, 2, 3), "b n h d"), {}, ["b = 1, n = 3"]),
        (draw.show_tensor, (MASK[0], "n"), {}, ["n"]),
        (draw.show_lines, ([1, 2, 4], {"a": [1, 2, 3], "b": ([1, 1, 1], [0, 0.1, 0])}, "x", "y"),
         {"log_x": True, "log_y": True}, ["a", "b", "x", "y"]),
        (draw.show_bars, (["a", "b"], [99.0, 97.5], "%"),
         {"errors": [0.2, 0], "reference": 98, "reference_label": "goal", "digits": 1,
          "limits": (90, 100)}, ["99.0 ± 0.2", "97.5", "goal", "%"]),
        (draw.show_bars, (["a", "b"], torch.tensor([-1.0, 2.0]), "y"), {}, ["-1.00", "2.00"]),
        (draw.show_attention, (PHOTOS, torch.rand(2, 2, 3), ["p", "q"], 4), {}, ["p", "q"]),
        (draw.show_attention, (DIGITS, torch.rand(7, 4, 4)), {"query": (3, 3)}, []),
    ],
)  # fmt: skip
def test_draws_one_picture_and_closes_it(function, args, kwargs, words, shown, capsys) -> None:
    assert function(*args, **kwargs) is None
    assert len(shown) == 1, f"{function.__name__} showed {len(shown)} pictures"
    assert set(words) <= set(shown[0]), f"missing: {set(words) - set(shown[0])}"
    assert capsys.readouterr() == ("", "")


def test_no_warning_and_no_figure_left_with_infinities(recwarn: pytest.WarningsRecorder) -> None:
    scores = torch.zeros(4, 4).masked_fill(~torch.ones(4, 4, dtype=torch.bool).tril(), -torch.inf)
    draw.show_matrices([scores, scores.softmax(-1)], ["scores", "weights"])
    assert [w for w in recwarn if "non-interactive" not in str(w.message)] == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw.show_images(PHOTOS[0]), "pictures must be (k, c, H, W)"),
        (lambda: draw.show_images(PHOTOS * 255), "Divide bytes by 255"),
        (lambda: draw.show_images(PHOTOS * torch.nan), "from 0 to 1, got nan"),
        (lambda: draw.show_images(PHOTOS, ["one"]), "got 1 texts"),
        (lambda: draw.show_images(PHOTOS, patch_size=5), "got patch_size=(5, 5)"),
        (lambda: draw.show_images(PHOTOS, patch_size=0), "got patch_size=0"),
        (lambda: draw.show_images(PHOTOS, columns=0), "got columns=0"),
        (lambda: draw.show_patches(DIGITS, (2, 3)), "whose product is 7"),
        (lambda: draw.show_matrices(torch.zeros(3), "m"), "2-D tensors"),
        (lambda: draw.show_matrices([], []), "got shapes=[]"),
        (lambda: draw.show_matrices(torch.zeros(1, 1, 2, 2), "m"), "weights[0, 0]"),
        (lambda: draw.show_matrices(MATRIX, ["a", "b"]), "got 2 texts"),
        (lambda: draw.show_matrices(MATRIX, "a", row_labels=["x"]), "row_labels"),
        (lambda: draw.show_tensor(torch.zeros(2, 3), "n"), "names='n'"),
        (lambda: draw.show_tensor(torch.zeros(20, 30), "n e"), "got shape=(20, 30)"),
        (lambda: draw.show_tensor(torch.tensor(1.0), ""), "got shape=()"),
        (lambda: draw.show_lines([1, 2], {}, "x", "y"), "series must not be empty"),
        (lambda: draw.show_lines([1, 2], {"a": [1, 2, 3]}, "x", "y"), "got 'a' of shape (3,)"),
        (lambda: draw.show_lines([1], {str(i): [1] for i in range(7)}, "x", "y"), "at most 6"),
        (lambda: draw.show_bars(["a"], [1, 2], "y"), "got 1 labels"),
        (lambda: draw.show_bars([], [], "y"), "got 0 labels"),
        (lambda: draw.show_bars(["a"], [1], "y", errors=[1, 2]), "errors of shape (2,)"),
        (lambda: draw.show_attention(PHOTOS, torch.rand(2, 6)), "got maps=(2, 6)"),
        (lambda: draw.show_attention(PHOTOS, torch.rand(2, 2, 3), query=6), "query=(2, 0)"),
        (lambda: digit(name="Two words"), "name='Two words'"),
        (lambda: digit(select="column"), "select='column'"),
        (lambda: digit(start=5), "start=(5,)"),
        (lambda: digit(query=5), "got query=5"),
        (lambda: digit(peak=0.1), "peak=0.1"),
        (lambda: digit(buttons=["a", "b"]), "6 queries"),
        (lambda: explorer("x", {1: Frame(heat=MASK)}, {"c": [1, 2]}), "odd ones=['(2,)']"),
        (lambda: explorer("x", {}, {}), "got 0 frames"),
        (lambda: explorer("x", {1: Frame(heat=-MATRIX)}, {"c": [1]}), "got -1 to 1"),
        (lambda: explorer("x", {1: Frame(heat=MATRIX * torch.nan)}, {"c": [1]}), "got nan to nan"),
        (lambda: explorer("x", {1: Frame(image=DIGITS[0])}, {"c": [1]}), "grid=None"),
        (lambda: explorer("x", {1: Frame(grid=(2, 2))}, {"c": [1]}), "image=None"),
        (lambda: explorer("x", {1: Frame(image=DIGITS[0], grid=(3, 3))}, {"c": [1]}), "tile"),
        (lambda: explorer("x", {1: Frame(heat=MASK, caption=["a"])}, {"c": [1]}), "got 1 texts"),
        (lambda: explorer("x", {1: Frame(heat=MASK), 2: Frame(image=DIGITS[0], grid=(2, 2))},
                          {"c": [1, 2]}), "the same things"),
    ],
)  # fmt: skip
def test_bad_input_is_named_in_one_line(call, message) -> None:
    with pytest.raises(ValueError) as error:
        call()
    text = str(error.value)
    assert message in text
    assert "\n" not in text
    assert re.match(r"(show_\w+|explorer.*?): .*, got .*\. .*\.$", text), text


def digit(name: str = "digit", **changes: object) -> HTML:
    """Return an explorer with a digit, a button and one heat for each query."""
    heat = torch.arange(20, dtype=torch.float64).view(5, 2, 2) / 40
    captions = [f"query {i} < </script> & 'é'" for i in range(5)]
    frames = {head: Frame(image=DIGITS[1], heat=heat / head, caption=captions) for head in (1, 2)}
    options: dict = {"buttons": ["class token"], "query": 1, **changes}
    return explorer(name, frames, {"head": [1, 2]}, **options)


def decode(html: str) -> dict:
    """Read an explorer's data back out of its HTML."""
    found = re.search(
        r'start\("(explorer-[a-z0-9-]+)", "\w+", (\{.*\})\);\n\}\)\(\);\n</script>$', html
    )
    assert found, html[-300:]
    return json.loads(found[2])


def test_explorer_holds_the_numbers_it_was_given() -> None:
    data = decode(digit().data)
    assert data["controls"] == [
        {"label": "head", "options": ["1", "2"], "slider": True, "start": 0}
    ]
    assert [frame["grid"] for frame in data["frames"]] == [[2, 2], [2, 2]]
    # whole per cent: 0/40 = 0, 1/40 = 2.5 -> 3 (the half goes up on every platform), 2/40 = 5
    assert data["frames"][0]["heat"][0] == [0, 3, 5, 8]
    assert data["frames"][1]["heat"][4] == [20, 21, 23, 24]
    assert data["frames"][0]["caption"][3] == "query 3 < </script> & 'é'"
    assert data["peak"] is None  # the scale ends at the largest number of the map that is shown
    assert decode(digit(peak=0.5).data)["peak"] == 0.5
    (image,) = data["images"]  # the same picture travels once
    assert [frame["image"] for frame in data["frames"]] == [0, 0]
    pixels = np.frombuffer(base64.b64decode(image["pixels"]), np.uint8)
    pixels = pixels.reshape(image["height"], image["width"], image["channels"])
    assert (pixels[..., 0] == np.round(DIGITS[1, 0].numpy().astype(float) * 255)).all()


def test_explorer_keeps_small_shares_apart() -> None:
    data = decode(explorer("x", {1: Frame(heat=torch.full((6, 6), 1 / 36))}, {"c": [1]}).data)
    assert data["unit"] == 1000
    assert data["frames"][0]["heat"] == [[28] * 36]


def test_explorer_shows_photographs_and_masks() -> None:
    photo = {
        p: Frame(image=PHOTOS[0], grid=(8 // p, 12 // p), caption="{token}") for p in (1, 2, 4)
    }
    data = decode(explorer("photo", photo, {"patch size": [1, 2, 4]}, start=2, query=23).data)
    assert data["controls"][0]["start"] == 1
    pixels = np.frombuffer(base64.b64decode(data["images"][0]["pixels"]), np.uint8).reshape(
        8, 12, 3
    )
    assert (pixels == np.round(PHOTOS[0].permute(1, 2, 0).double().numpy() * 255)).all()

    masks = {("causal", 3): Frame(heat=MASK, caption=list("abc"))}
    data = decode(explorer("m", masks, {"rule": ["causal"], "n": [3]}, select="row", query=2).data)
    assert data["frames"][0]["heat"] == [[1, 0, 0, 1, 1, 0, 1, 1, 1]]
    assert [control["slider"] for control in data["controls"]] == [False, True]


def test_explorer_text_cannot_leave_the_script() -> None:
    html = digit().data
    assert html.count("</script>") == 1
    assert html.endswith("</script>")
    assert "é" not in html  # plain ASCII, whatever the page's encoding
    assert html.isascii()


def test_explorers_of_one_page_have_their_own_names() -> None:
    pages = [digit(name).data for name in ("one", "two")]
    names = [re.findall(r'<\w+ id="([^"]+)"', page) for page in pages]
    assert names == [["explorer-one"], ["explorer-two"]]
    assert "http://" not in pages[0].replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in pages[0]
    assert repr(digit()) == "<IPython.core.display.HTML object>"


def test_explorer_is_the_same_in_another_process() -> None:
    code = "from test_draw import digit; print(digit().data, end='')"
    here = [str(Path(__file__).parent), *sys.path]
    page = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONHASHSEED": "7", "PYTHONPATH": os.pathsep.join(here)},
    ).stdout  # fmt: skip
    assert page == digit().data


def test_course_style_works_without_jupyter(capsys: pytest.CaptureFixture[str]) -> None:
    with matplotlib.rc_context():
        assert draw.use_course_style() is None
        assert plt.rcParams["figure.dpi"] == 90
    assert capsys.readouterr() == ("", "")


def test_colours_only_get_brighter() -> None:
    """Whoever prints in grey must still see which cell is larger."""
    steps = re.search(r"const STEPS = \[([^\]]+)\]", draw_script())
    assert steps
    colors = re.findall(r"[0-9a-f]{6}", steps[1])
    assert colors == [
        matplotlib.colors.to_hex(plt.get_cmap(draw.HEAT)(i / 8))[1:] for i in range(9)
    ]
    rgb = Tensor([[int(c[i : i + 2], 16) for i in (0, 2, 4)] for c in colors])
    assert (rgb @ Tensor([0.299, 0.587, 0.114])).diff().min() > 0


def draw_script() -> str:
    """Return the JavaScript of the explorers."""
    return (Path(draw.__file__).with_name("explorer.js")).read_text(encoding="utf-8")
