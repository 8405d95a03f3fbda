"""The pictures of `utils.draw`: each is drawn and closed; explorers hold what they were given."""

import base64
import html
import io
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from IPython.display import HTML
from matplotlib.colors import Normalize
from matplotlib.textpath import TextPath
from PIL import Image
from torch import Tensor

from tools.course import outputs
from utils import draw
from utils.draw import Click, Frame, explorer
from utils.draw.style import MEASURED, heat_colors, ink_on, render_with, text_width, to_png

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
        (draw.show_matrices, (torch.rand(5, 37, 37), list("abcde")), {}, ["a", "e"]),
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
        (draw.show_boxes, (DIGITS[:2], [torch.rand(3, 4), torch.rand(0, 4)]),
         {"words": [["7", "1 ?", ""], []], "truth": [torch.rand(1, 4)] * 2, "titles": ["p", "q"]},
         ["7", "1 ?", "p", "q"]),
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
        (lambda: draw.show_boxes(DIGITS[:2], [torch.rand(3, 4)]), "boxes must hold one (t, 4)"),
        (lambda: draw.show_boxes(DIGITS[:1], [torch.rand(4)]), "got shapes [(4,)]"),
        (lambda: draw.show_boxes(DIGITS[:1], [torch.rand(1, 4)], truth=[]), "truth must hold one"),
        (lambda: draw.show_boxes(DIGITS[:1], [torch.rand(2, 4)], [["7"]]), "got [1] for [2] boxes"),
        (lambda: draw.show_boxes(DIGITS[:1], [torch.rand(1, 4)], columns=0), "got columns=0"),
        (lambda: digit(name="Two words"), "name='Two words'"),
        (lambda: digit(chooses="column"), "chooses='column'"),
        (lambda: digit(start=5), "start=(5,)"),
        (lambda: digit(first=5), "got first=5"),
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
    options = {"buttons": ["class token"], "first": 1, **changes}
    rest = {option: options.pop(option) for option in ("start", "peak") if option in options}
    return explorer(name, frames, {"head": [1, 2]}, click=Click(**options), **rest)


def decode(page: str) -> dict:
    """Read an explorer's data back out of its HTML."""
    (one,) = outputs.explorers(page)
    return one.data


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
    click = Click(first=23)
    data = decode(explorer("photo", photo, {"patch size": [1, 2, 4]}, start=2, click=click).data)
    assert data["controls"][0]["start"] == 1
    pixels = np.frombuffer(base64.b64decode(data["images"][0]["pixels"]), np.uint8).reshape(
        8, 12, 3
    )
    assert (pixels == np.round(PHOTOS[0].permute(1, 2, 0).double().numpy() * 255)).all()

    masks = {("causal", 3): Frame(heat=MASK, caption=list("abc"))}
    click = Click(chooses="row", first=2)
    data = decode(explorer("m", masks, {"rule": ["causal"], "n": [3]}, click=click).data)
    assert data["frames"][0]["heat"] == [[1, 0, 0, 1, 1, 0, 1, 1, 1]]
    assert [control["slider"] for control in data["controls"]] == [False, True]


def test_explorer_text_cannot_leave_the_script() -> None:
    page = digit().data
    assert page.count("</script>") == 2
    assert page.endswith("</script>")
    assert "é" not in page  # plain ASCII, whatever the page's encoding
    assert page.isascii()


def test_explorers_of_one_page_have_their_own_names() -> None:
    pages = [digit(name).data for name in ("one", "two")]
    names = [re.findall(r'<\w+ id="([^"]+)"', page) for page in pages]
    assert names == [["explorer-one"], ["explorer-two"]]
    assert "http://" not in pages[0].replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in pages[0]


def test_explorer_has_words_where_html_is_not_shown() -> None:
    made = explorer("mask", {1: Frame(heat=MASK)}, {"c": [1]})
    assert repr(made).startswith("An explorer to click, called mask.")


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


def test_signed_colours_keep_their_sign_in_grey() -> None:
    colors = heat_colors(np.linspace(-2, 2, 257), Normalize(-2, 2))
    assert np.diff(colors @ [0.299, 0.587, 0.114]).min() > -0.005  # rounded to 8 bits
    negative, zero, positive = colors[[0, 128, 256]]
    assert zero.max() - zero.min() < 0.05  # grey
    assert negative[2] > negative[0] + 0.2  # blue
    assert positive[0] > positive[2] + 0.2  # yellow


def draw_script() -> str:
    """Return the JavaScript of the explorers."""
    return (Path(draw.__file__).with_name("explorer.js")).read_text(encoding="utf-8")


# ------------------------------------------------------------------------ words, cells, colours


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list[dict]:
    """Collect what would be stored in a notebook: the data of every output."""
    import IPython.display

    outputs: list[dict] = []
    monkeypatch.setattr(plt, "get_backend", lambda: "inline")
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: outputs.append(data))
    return outputs


WORDS = [
    (lambda: draw.show_images(PHOTOS, ["one", "two"], 4),
     "2 pictures: one, two (8 x 12 pixels, cut into 2 rows and 3 columns of patches)."),
    (lambda: draw.show_patches(DIGITS[:6], (2, 3), title="six"),
     "six: 6 patches (8 x 8 pixels) in 2 rows and 3 columns."),
    (lambda: draw.show_matrices(torch.tensor([[1, 2], [3, 4]]), "m", "i", "j"),
     "Heat map. m, 2 rows (i) and 2 columns (j): 1 2; 3 4."),
    (lambda: draw.show_matrices(MASK, "mask"),
     "Mask. mask, 3 rows (query i) and 3 columns (key j): 1 0 0; 1 1 0; 1 1 1."),
    (lambda: draw.show_matrices(torch.eye(9), "big", "i", "j"),
     "Heat map. big, 9 rows (i) and 9 columns (j): from 0 to 1, the largest in row 0, column 0."),
    (lambda: draw.show_matrices(torch.full((9, 9), -torch.inf), "none", "i", "j"),
     "Heat map. none, 9 rows (i) and 9 columns (j): no finite number."),
    (lambda: draw.show_tensor(torch.arange(4).view(2, 2), "n e"),
     "Tensor. the numbers, 2 rows (n) and 2 columns (e): 0 1; 2 3."),
    (lambda: draw.show_lines([0, 1, 2], {"a": [0, 2, 1]}, "x", "y"),
     "Curves of y over x from 0 to 2. a: 0 to 1 (highest 2)."),
    (lambda: draw.show_lines([0, 1, 2], {"dies out": [0.75, 1e-7, 2e-7], "rounded": [1, 1.0001, 1]},
                             "x", "y"),
     "Curves of y over x from 0 to 2. dies out: 0.75 to 0; rounded: 1 to 1."),
    (lambda: draw.show_lines([0, 1, 2], {"dies out": [0.75, 1e-7, 2e-7]}, "x", "y", log_y=True),
     "Curves of y over x from 0 to 2. dies out: 0.75 to 2e-07 (lowest 1e-07)."),
    (lambda: draw.show_bars(["a"], [2.0], "errors", digits=0), "Bars of errors: a 2."),
    (lambda: draw.show_attention(PHOTOS[:1], torch.eye(2)[None], ["cat"]),
     "Pictures, and below each a heat map of where the class token looks. "
     "cat: most, 100%, at row 0, column 0."),
    (lambda: draw.show_boxes(DIGITS[:1], [torch.tensor([[0.5, 0.25, 0.25, 0.5]])], [["7"]]),
     "Pictures with boxes, by column and row of their middles. picture 0: 7 at (4, 2)."),
    (lambda: draw.show_images(PHOTOS, alt='A "cat" & a cup.'), 'A "cat" & a cup.'),
]  # fmt: skip


@pytest.fixture
def undrawn() -> Iterator[None]:
    """Draw nothing: words do not depend on pixels."""
    render_with(None)
    yield
    assert render_with(to_png) is None


@pytest.mark.parametrize(("call", "words"), WORDS)
def test_every_picture_has_words(call, words, displayed, undrawn) -> None:
    call()
    (data,) = displayed
    assert data["text/plain"] == words
    (alt,) = re.fullmatch(
        r'<img alt="([^"]+)" src="data:image/png;base64,">', data["text/html"]
    ).groups()
    assert html.unescape(alt) == words


def test_a_picture_without_words_is_refused() -> None:
    plt.figure()
    with pytest.raises(ValueError, match=r"show_figure: alt must hold words, got alt=' '"):
        draw.show_figure(" ")
    plt.close()


def test_words_stay_where_nothing_is_drawn(displayed) -> None:
    assert render_with(None) is to_png
    try:
        draw.show_matrices(MATRIX, "m", "i", "j")
    finally:
        assert render_with(to_png) is None
    draw.show_matrices(MATRIX, "m", "i", "j")
    undrawn, drawn = displayed
    assert undrawn["text/plain"] == drawn["text/plain"]
    assert undrawn["image/png"] == ""
    assert f'src="data:image/png;base64,{drawn["image/png"]}"' in drawn["text/html"]
    assert base64.b64decode(drawn["image/png"]).startswith(b"\x89PNG")


def test_a_measured_picture_says_so(displayed) -> None:
    with draw.measured_here():
        draw.show_images(PHOTOS)
    draw.show_images(PHOTOS)
    assert [MEASURED in data for data in displayed] == [True, False]


@pytest.fixture
def cells(monkeypatch: pytest.MonkeyPatch) -> list[tuple[float, float]]:
    """Collect width and height, in pixels, of the cells of every heat map that is shown."""
    sizes: list[tuple[float, float]] = []

    def show() -> None:
        for ax in plt.gcf().axes:
            for image in ax.get_images():
                rows, columns = image.get_array().shape
                box = ax.get_window_extent()
                sizes.append((box.width / columns, box.height / rows))

    monkeypatch.setattr(plt, "show", show)
    return sizes


@pytest.mark.parametrize(
    "call",
    [
        lambda: draw.show_matrices([torch.rand(3, 4), torch.rand(3, 8), torch.rand(5, 2)]),
        lambda: draw.show_matrices([torch.rand(2, 4), torch.rand(9, 4)], shared_scale=False),
        lambda: draw.show_matrices(torch.rand(5, 37, 37)),
        lambda: draw.show_matrices([torch.rand(4, 6), torch.rand(9, 2)], values=False),
        lambda: draw.show_tensor(torch.rand(2, 4, 2, 3), "b n h d"),
        lambda: draw.show_matrices(MATRIX, "a title far wider than the matrix below it"),
    ],
)
def test_cells_are_squares_of_one_size(call, cells) -> None:
    """In a course about shapes, a (3, 8) is twice as wide as a (3, 4)."""
    call()
    widths, heights = zip(*cells, strict=True)
    assert max(*widths, *heights) - min(*widths, *heights) < 0.01


@pytest.mark.parametrize(
    ("table", "ends"),
    [(torch.tensor([[0.0, 0.37]]), ("0.00", "0.37")), (torch.tensor([[0, 46]]), ("0", "46"))],
)
def test_a_colour_bar_says_both_ends(table, ends, shown) -> None:
    draw.show_matrices(table, values=False)
    assert set(ends) <= set(shown[0])


def test_numbers_stand_out_on_every_colour() -> None:
    """WCAG 2 asks for a contrast of 4.5; mid-green was the worst with white (2.9)."""
    for color in heat_colors(np.linspace(0, 1, 256), Normalize(0, 1)):
        ink = {"#000": 0.0, "#fff": 1.0}[ink_on(color)]
        low, high = sorted([ink, luminance(color)])
        assert (high + 0.05) / (low + 0.05) >= 4.5


def luminance(color: np.ndarray) -> float:
    parts = np.where(color <= 0.04045, color / 12.92, ((color + 0.055) / 1.055) ** 2.4)
    return float(parts @ [0.2126, 0.7152, 0.0722])


def test_a_curve_under_another_is_drawn_broad(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[list[float]] = []
    monkeypatch.setattr(
        plt, "show", lambda: drawn.append([line.get_linewidth() for line in plt.gca().lines])
    )
    curves = {"lowest": [0, 1, 2, 3, 4], "on it": [0, 1, 2, 3, 9], "on both": [0, 1, 2, 5, 5]}
    draw.show_lines(range(5), {**curves, "meets them": [0, 9, 8, 7, 6]}, "x", "y")
    lowest, on_it, on_both, meets = drawn[0]
    assert lowest > on_it + 2 > on_both + 4
    assert on_both == meets


def test_a_map_of_attention_stands_beside_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    """A map over the ink brightens its cells: the map is alone and hides nothing."""
    images: list[list] = []
    monkeypatch.setattr(
        plt, "show", lambda: images.append([ax.get_images() for ax in plt.gcf().axes[:-1]])
    )
    draw.show_attention(PHOTOS[:1], torch.full((1, 2, 3), 0.2))
    above, below = images[0]
    assert [len(above), len(below)] == [1, 1]
    assert below[0].get_alpha() is None
    assert below[0].norm.vmax == pytest.approx(0.2)


# ------------------------------------------------------------------------------------- product


def taken_apart(**changes: object) -> str:
    left, right = torch.tensor([[1, -2], [3, 4]]), torch.tensor([[5, 6], [7, 8], [9, 0]])
    options = {"left": left, "right": right, "axes": "i d, j d -> i j", **changes}
    return draw.explore_product("made", **options).data


def test_a_product_is_legible_without_a_script() -> None:
    page = taken_apart(titles=("queries", "keys", "<scores>"), chosen=(0, 1))
    body = page.split("<script")[0]
    said = re.search(r'<p class="sbs-said">(.*?)</p>', body)[1]
    assert html.unescape(said) == "<scores> at i = 0, j = 1, the sum over d: 1 × 7 + (-2) × 8 = -9."
    lit = re.findall(r'<td data-at="([^"]+)" data-lit', body)
    assert lit == ["i=0 d=0", "i=0 d=1", "j=1 d=0", "j=1 d=1", "i=0 j=1"]
    assert re.findall(r'<td [^>]*title="i = 1, j = 0: 39"', body)
    assert page.isascii()


def test_a_product_chooses_among_heads() -> None:
    left, right = torch.rand(2, 3, 4), torch.rand(2, 4, 5)
    page = taken_apart(left=left, right=right, axes="h i j, h j d -> h i d")
    assert page.count('<div class="sbs-part">') == 2
    mixed = torch.einsum("hij,hjd->hid", left.double(), right.double())
    cells = re.findall(r'data-said="[^"]+" title="([^"]+)"', page)
    assert cells == [
        f"i = {i}, d = {d}: {mixed[h, i, d]:.2f}"
        for h in range(2) for i in range(3) for d in range(5)
    ]  # fmt: skip
    assert "computed before rounding to two digits" in page


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"axes": "i d, j d"}, "got axes='i d, j d'"),
        ({"axes": "i d, j e -> i j"}, "one axis summed over"),
        ({"axes": "i d, d j, j k -> i k"}, "two factors"),
        ({"axes": "h i d, j d -> i j"}, "two factors"),
        ({"axes": "i i, j i -> i j"}, "two factors"),
        ({"left": torch.rand(2, 3)}, "got left=(2, 3) and right=(3, 2)"),
        ({"left": torch.rand(2)}, "got left=(2,)"),
        ({"left": torch.rand(50, 3), "right": torch.rand(9, 3)}, "1 to 120 numbers"),
        ({"chosen": (2, 0)}, "got chosen=(2, 0)"),
        ({"titles": ("a", "b")}, "got 2 texts"),
    ],
)
def test_a_product_that_does_not_fit_is_named(changes, message) -> None:
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        taken_apart(**changes)
    assert "\n" not in str(error.value)


def test_explorers_use_class_names_of_their_own() -> None:
    """The styles of a page, such as nbgrader's `row`, must not move them."""
    for page in (taken_apart(), digit().data):
        names = re.findall(r'class[:=] ?"([^"$]+)"', page)
        assert names
        assert all(name.startswith("sbs-") for text in names for name in text.split())


# ------------------------------------------------------------------------------------ measured


def test_measured_numbers_are_shown_and_kept(displayed) -> None:
    draw.show_measured({"a & b": 0.5, "c": 0.251}, "share", margin=0.05, full=1.0)
    (data,) = displayed
    assert data[MEASURED] == {
        "version": 1, "margin": 0.05, "numbers": {"a & b": 0.5, "c": 0.251},
    }  # fmt: skip
    assert data["text/plain"].splitlines() == [
        "share", "a & b  50.0%  " + "█" * 15, "c      25.1%  " + "█" * 8,
        "Measured where this cell last ran; elsewhere about 5 percentage points more or less.",
    ]  # fmt: skip
    assert '<th scope="row" style="text-align: left">a &amp; b</th>' in data["text/html"]


@pytest.mark.parametrize(
    ("numbers", "margin", "message"),
    [
        ({}, 0.1, "got numbers={}"),
        ({"a": float("nan")}, 0.1, "got numbers={'a': nan}"),
        ({"a": 1.0}, -1, "got margin=-1"),
    ],
)
def test_measured_numbers_that_are_none_are_refused(numbers, margin, message) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        draw.show_measured(numbers, "share", margin=margin)


def test_texts_of_a_model_are_shown_and_only_counted(displayed, conftest: ModuleType) -> None:
    draw.show_texts(["a < b", "c"], "GPT writes")
    draw.show_texts(["d", "e"], "GPT writes")
    first, other = ([{"output_type": "display_data", "data": data}] for data in displayed)
    assert displayed[0]["text/plain"].splitlines()[:3] == ["GPT writes", "  a < b", "  c"]
    assert "<li>a &lt; b</li>" in displayed[0]["text/html"]
    assert conftest.difference(first, other) is None, "another machine writes other texts"
    draw.show_texts(["d"], "GPT writes")
    fewer = [{"output_type": "display_data", "data": displayed[2]}]
    assert "'texts' is 1 and was 2" in conftest.difference(first, fewer)
    for bad in ([], "one text"):
        with pytest.raises(ValueError, match="list of at least one text"):
            draw.show_texts(bad, "GPT writes")


def test_measured_numbers_are_compared_by_their_margin(conftest: ModuleType) -> None:
    def output(numbers: dict, margin: float = 0.05, text: str = "") -> list[dict]:
        data = {"text/html": text, MEASURED: {"numbers": numbers, "margin": margin}}
        return [{"output_type": "display_data", "data": data}]

    stored = output({"a": 0.5, "b": 0.9}, text="a 50 %")
    assert conftest.difference(stored, output({"a": 0.54, "b": 0.9}, text="a 54 %")) is None
    assert "'a' is 0.56 and was 0.5" in conftest.difference(stored, output({"a": 0.56, "b": 0.9}))
    assert conftest.difference(stored, output({"b": 0.9, "a": 0.5})) is None, "stored sorted"
    assert "other measurements" in conftest.difference(stored, output({"b": 0.9, "c": 0.5}))
    assert "other measurements" in conftest.difference(stored, output({"a": 0.5}))
    assert "other measurements" in conftest.difference(stored, output({"a": 0.5, "b": 0.9}, 9))
    assert conftest.comparable(stored) == [{"output_type": "display_data", "data": {}}]


def test_words_are_compared_and_pixels_only_once(conftest: ModuleType) -> None:
    def output(words: str, png: str) -> list[dict]:
        data = {
            "image/png": png,
            "text/html": f'<img alt="{words}" src="data:image/png;base64,{png}">',
        }
        return [{"output_type": "display_data", "data": data}]

    assert (
        conftest.comparable(output("a", "AAAA"))[0]["data"]["text/html"]
        == conftest.comparable(output("a", "BBBB"))[0]["data"]["text/html"]
        != conftest.comparable(output("b", "AAAA"))[0]["data"]["text/html"]
    )


def test_pieces_are_boxes_of_text(displayed) -> None:
    draw.show_pieces({"one": ["▁c", "old"], "a <b>": ["<0xEB>", "추워요"]})
    (data,) = displayed
    assert data["text/plain"] == "one    ▁c|old  (2)\na <b>  <0xEB>|추워요  (2)"
    page = data["text/html"]
    assert page.count("<span") == 4 and "&lt;0xEB&gt;" in page and "a &lt;b&gt;" in page
    assert ">추워요</span>" in page


@pytest.mark.parametrize("lines", [{}, {"a": "cold"}, {"a": [1, 2]}])
def test_what_is_not_cut_is_refused(lines) -> None:
    with pytest.raises(ValueError, match="show_pieces: lines must be lists of texts"):
        draw.show_pieces(lines)


@pytest.mark.parametrize("text", ["layer 0, head 1", "query i", "Sgo@8&", "0.25", "-1.5", "≤ π"])
def test_the_width_of_a_text_is_that_of_its_outline(text: str) -> None:
    for size in (8.5, 11):
        exact = TextPath((0, 0), text, size=size).get_extents().width / 72
        assert text_width(text, size) == pytest.approx(exact, rel=1e-12)
    assert text_width(" ") == 0


@pytest.mark.parametrize(
    ("pixels", "mode"),
    [
        (np.linspace(0, 1, 400).reshape(20, 20), "P"),
        (np.random.default_rng(0).random((90, 90, 3)), "RGB"),
    ],
)
def test_a_drawing_takes_one_byte_for_a_pixel_and_a_photograph_three(pixels, mode) -> None:
    figure = plt.figure(figsize=(2, 2), dpi=100)
    figure.figimage(pixels, resize=True)
    assert Image.open(io.BytesIO(to_png(figure))).mode == mode
    plt.close(figure)
