"""The live page: its models equal PyTorch's, with every bug, and the page works in a browser."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect
from torch import Tensor

from attention_clinic import BUGS
from browser.explorers import LONG
from browser.live_reference import trace
from tools.course.registry import ROOT, course
from tools.web import assets, make_live
from utils.data import load_digits, load_shipped, resource

LIVE = ROOT / "website" / "live"
SCRIPT = (LIVE / "bugs.js").read_text("utf-8")
IDS = re.findall(r'id: "([\w-]+)"', SCRIPT)
PROPERTY = dict(re.findall(r'id: "([\w-]+)",\s+property: "(\w+)"', SCRIPT))
ORDER = re.findall(r'^  \["(\w+)", "', (LIVE / "properties.js").read_text("utf-8"), re.MULTILINE)
LARGEST = 3 * 2**20  # bytes of the page with all weights
FRAMES = "() => new Promise((d) => requestAnimationFrame(() => requestAnimationFrame(d)))"
needs_node = pytest.mark.skipif(not shutil.which("node"), reason="node is not installed")


def node(script: str, given: dict[str, object]) -> bytes:
    """Run a script of website/live and return what it writes."""
    call = ["node", str(LIVE / script)]
    made = subprocess.run(call, input=json.dumps(given).encode(), capture_output=True, check=False)
    assert made.returncode == 0, made.stderr.decode()
    return made.stdout


@pytest.fixture(scope="module")
def digits() -> Tensor:
    """Return 50 test digits (50, 1, 8, 8), five of each."""
    _, (x, y) = load_digits()
    return torch.cat([x[y == digit][:5] for digit in range(10)])


def test_bugs_are_those_of_the_catalogue() -> None:
    assert len(IDS) == len(set(IDS)) >= 12
    assert set(IDS) <= set(BUGS)


@needs_node
@pytest.mark.parametrize("bug", ["", *IDS])
def test_every_tensor_equals_pytorch(bug: str, digits: Tensor) -> None:
    given = {
        "weights": str(resource("digits_model.safetensors")),
        "images": digits.flatten(1).tolist(),
        "bugs": [bug],
    }
    numbers = torch.from_numpy(np.frombuffer(node("trace.mjs", given)).copy())
    mine = numbers.view(len(digits), -1)
    theirs = trace(load_shipped("digits").double(), digits.double(), bug)
    assert mine.shape[1] == sum(tensor[0].numel() for tensor in theirs.values())
    start, correct = 0, trace(load_shipped("digits").double(), digits.double())
    for name, tensor in theirs.items():
        part = mine[:, start : start + tensor[0].numel()]
        start += tensor[0].numel()
        torch.testing.assert_close(part, tensor.flatten(1), atol=1e-5, rtol=1e-5, msg=name)
    differs = (theirs["logits"] - correct["logits"]).abs().max() > 1e-3
    assert differs == bool(bug)  # the bug does something


# ---- the page in a browser


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the page."""
    if make_live.esbuild(ROOT) is None:
        pytest.skip(make_live.MISSING)
    path = tmp_path_factory.mktemp("live") / make_live.PAGE
    path.write_text(make_live.live_page(course()), "utf-8")
    return path


def opened(context: BrowserContext, file: Path) -> Page:
    """Open the page from its file, without a network, and wait until it is ready."""
    context.set_offline(True)
    page = context.new_page()
    page.on("pageerror", lambda error: page.problems.append(f"{error.message}\n{error.stack}"))
    page.on("request", lambda asked: page.problems.extend(_foreign(asked.url)))
    page.problems = []
    page.goto(file.as_uri(), timeout=LONG)
    page.wait_for_selector("html[data-ready]", state="attached", timeout=LONG)
    return page


def _foreign(url: str) -> list[str]:
    return [] if url.startswith(("file:", "data:", "blob:")) else [f"asks a server: {url}"]


@pytest.fixture
def live(context: BrowserContext, file: Path) -> Iterator[Page]:
    """Open the page; an error of a script, or a request that leaves, fails the test."""
    page = opened(context, file)
    yield page
    page.close()
    assert not page.problems, "\n".join(page.problems)


@cache
def reference(bug: str = "") -> tuple[int, int]:
    """Return how many test digits PyTorch predicts correctly, and what it predicts of the first."""
    _, (x, y) = load_digits()
    logits = trace(load_shipped("digits").double(), x.double(), bug)["logits"][:, 0]
    best = logits.argmax(dim=-1)
    return int((best == y).sum()), int(best[0])


def drawn(page: Page) -> Tensor:
    """Return the picture (1, 1, 8, 8) on the paper, as its canvas shows it."""
    page.locator("#clear").focus()  # without the cursor of the keyboard
    page.evaluate(FRAMES)
    shown = page.evaluate("""() => {
      const paper = document.querySelector("#paper"), size = paper.width / 8;
      const read = (at) => paper.getContext("2d")
        .getImageData((at % 8 + 0.5) * size, (Math.floor(at / 8) + 0.5) * size, 1, 1).data[0];
      return Array.from({ length: 64 }, (_, at) => read(at));
    }""")
    return torch.tensor(shown, dtype=torch.float64).view(1, 1, 8, 8) / 255


def check_prediction(page: Page) -> None:
    """Compare the bars with PyTorch's probabilities of the picture on the paper."""
    found = trace(load_shipped("digits").double(), drawn(page))["probabilities"].flatten()
    shown = [int(text.split()[0]) for text in page.locator(".percent").all_text_contents()]
    assert max(abs(one - 100 * float(p)) for one, p in zip(shown, found, strict=True)) < 2
    assert f"{int(found.argmax())}." in page.locator("#predicted").inner_text()


def put_in(page: Page, bug: str) -> None:
    """Put a bug into the model, and wait until the count is there."""
    page.locator(f'#bugs input[value="{bug}"]').check()
    page.evaluate(FRAMES)  # after these, an earlier count is gone
    page.wait_for_function(
        "document.querySelector('#count').textContent.startsWith('Test')", timeout=LONG
    )


def choose(page: Page, name: str, number: int = 0) -> None:
    """Choose a tensor by its name in the list."""
    words = page.locator("#steps .name").get_by_text(name, exact=True)
    words.nth(number).click()


def typed(page: Page, text: str) -> None:
    # what a click chose is drawn in the next frame, and then the field shows its number
    page.evaluate(FRAMES)
    page.locator("#value").fill(text)
    page.locator("#value").press("Enter")


def test_the_page_is_small(file: Path) -> None:
    assert file.stat().st_size < LARGEST


def test_times(context: BrowserContext, file: Path) -> None:
    """Print them and assert nothing: a machine may be busy."""
    began = time.perf_counter()
    page = opened(context, file)
    ready = time.perf_counter() - began
    page.wait_for_function(
        "document.querySelector('#count').textContent.startsWith('Test')", timeout=LONG
    )
    began = time.perf_counter()
    put_in(page, "scale-embed")
    counted = time.perf_counter() - began
    print(f"\nready after {ready:.2f} s, 360 digits counted in {counted:.2f} s")


def test_a_digit_drawn_by_mouse(live: Page) -> None:
    live.locator("#clear").click()
    expect(live.locator("#predicted")).to_contain_text("No ink yet")
    box = live.locator("#paper").bounding_box()
    assert box
    unit = box["width"] / 8
    live.mouse.move(box["x"] + 4 * unit, box["y"] + 0.5 * unit)
    live.mouse.down()
    live.mouse.move(box["x"] + 4 * unit, box["y"] + 7.5 * unit, steps=3)
    live.mouse.up()
    expect(live.locator("#predicted")).to_have_text("The model predicts 1.")
    ink = drawn(live)
    assert ink[0, 0, :, 3:5].min() > 0.5 and ink[0, 0, :, [0, 7]].max() == 0
    check_prediction(live)
    live.keyboard.down("Shift")
    live.mouse.move(box["x"] + 4 * unit, box["y"] + 0.5 * unit)
    live.mouse.down()
    live.mouse.up()
    live.keyboard.up("Shift")
    assert drawn(live)[0, 0, 0, 3:5].max() < 0.5
    check_prediction(live)


def test_a_digit_drawn_by_keyboard(live: Page) -> None:
    live.locator("#clear").click()
    paper = live.locator("#paper")
    for key in ("ArrowUp", "ArrowLeft", "Space", "Space", "ArrowRight", "Space", "Backspace"):
        paper.press(key)
    expect(live.locator("#paper-said")).to_have_text("Row 2, column 3: ink 0 of 16.")
    paper.press("Space")
    ink = drawn(live)[0, 0]
    assert float(ink[2, 2]) == 1 and 0.49 < float(ink[2, 3]) < 0.51 and float(ink.sum()) < 1.51
    check_prediction(live)
    for _ in range(9):
        paper.press("ArrowDown")
    expect(live.locator("#paper-said")).to_contain_text("Row 7, column 3")


def test_a_digit_drawn_by_finger(browser: Browser, file: Path) -> None:
    size = {"width": 390, "height": 844}
    with browser.new_context(viewport=size, has_touch=True, is_mobile=True) as context:
        page = opened(context, file)
        page.locator("#clear").tap()
        page.locator("#paper").tap()
        assert drawn(page).sum() > 1
        check_prediction(page)
        choose(page, "Logits")
        page.locator("#tensor").tap(position={"x": 5, "y": 5})
        expect(page.locator("#arithmetic")).to_contain_text("row 0 times row 0 of the weight")
        assert not page.problems


def test_test_digits(live: Page) -> None:
    _, (_, labels) = load_digits()
    field, said = live.locator("#test-digit"), live.locator("#predicted")
    for at in (7, 359):
        field.fill(str(at))
        expect(said).to_contain_text(f"The label is {labels[at]}.")
        check_prediction(live)
    for wrong in ("360", "-1", "1.5", ""):
        field.fill(wrong)
        expect(live.locator("#paper-said")).to_contain_text("must be a number from 0 to 359, got")
        expect(field).to_have_attribute("aria-invalid", "true")
    live.locator("#next-digit").click()
    expect(said).to_contain_text(f"The label is {labels[1]}.")


def test_every_step_has_its_arithmetic(live: Page) -> None:
    """First and last number of each tensor: the arithmetic gives what the model has."""
    live.locator("#test-digit").fill("5")
    steps, arithmetic = live.locator("#steps .step"), live.locator("#arithmetic")
    assert steps.count() == 5 + 2 * 18 + 4
    for step in steps.all():
        step.click()
        expect(step).to_have_attribute("aria-pressed", "true")
        shape = step.locator(".shape").inner_text()
        expect(live.locator("#tensor-title")).to_contain_text(shape)
        for last in (False, True):
            for field in live.locator("#axes input").all():
                field.fill((field.get_attribute("max") if last else "0") or "")
            live.evaluate(FRAMES)
            said = live.locator("#cell").inner_text()
            number = said.removeprefix("This number is ").rstrip(".")
            words = arithmetic.inner_text()
            is_image = shape.endswith("W=8)")
            assert words.endswith("draw to change it" if is_image else f"= {number}"), words
            expect(arithmetic).not_to_have_class("bad")
            sources = live.locator("#steps .source").count() + live.locator("#operands li").count()
            assert (sources == 0) == is_image


def test_a_number_is_chosen_by_mouse_and_keyboard(live: Page) -> None:
    choose(live, "Scores", 1)
    live.locator("#axes input").nth(0).fill("2")
    live.locator("#tensor").click(position={"x": 1, "y": 1})
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowLeft", "ArrowLeft"):
        live.locator("#tensor").press(key)
    expect(live.locator("#arithmetic")).to_contain_text("head 2: query 2 times key 0")
    live.locator("#axes input").nth(2).fill("99")  # no such key
    expect(live.locator("#axes input").nth(2)).to_have_attribute("aria-invalid", "true")
    expect(live.locator("#arithmetic")).to_contain_text("head 2: query 2 times key 0")
    choose(live, "Feed-forward, inner")
    live.locator("#axes input").nth(1).fill("255")  # beyond the edge of its frame
    live.evaluate(FRAMES)
    inside = """() => {
      const frame = document.querySelector("#frame").getBoundingClientRect();
      const mark = document.querySelector("#mark").getBoundingClientRect();
      return mark.left >= frame.left && mark.right <= frame.right + 1;
    }"""
    assert live.evaluate(inside)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1e300", "between -1 million and 1 million, got 1e300"),
        ("-Infinity", "between -1 million and 1 million, got -Infinity"),
        ("hello", 'a number, got "hello"'),
        ("", "a number, got nothing"),
        ("1,2,3", 'a number, got "1,2,3"'),
    ],
)
def test_a_number_that_is_none_gets_a_sentence(text: str, words: str, live: Page) -> None:
    before = live.locator("#predictions").inner_text()
    for place in ("Scores", "weight"):
        if place == "weight":
            choose(live, "Feed-forward, inner")
            live.locator("#operands .step").nth(1).click()
        else:
            choose(live, place)
        typed(live, text)
        expect(live.locator("#problem")).to_have_text(re.compile(re.escape(words)))
        expect(live.locator("#value")).to_have_attribute("aria-invalid", "true")
    assert live.locator("#predictions").inner_text() == before
    expect(live.locator("#undo")).to_be_disabled()


def test_numbers_change_and_come_back(live: Page) -> None:
    before = live.locator("#predictions").inner_text()
    predicted = live.locator("#predicted")
    choose(live, "Logits")
    live.locator("#axes input").nth(1).fill("3")
    typed(live, "50,5")
    expect(predicted).to_contain_text("predicts 3. The correct model predicts 7.")
    expect(live.locator("#cell")).to_have_text("This number is 50.5.")
    expect(live.locator("#arithmetic")).to_have_text("You typed this number.")
    expect(live.locator("#steps .step", has_text="Logits").locator(".note")).to_have_text("typed")
    choose(live, "Class token", 0)
    choose(live, "Logits")
    live.locator("#operands .step").nth(1).click()  # the weight
    expect(live.locator("#tensor-title")).to_have_text("head.weight (10, 64)")
    typed(live, "-1000000")
    expect(live.locator("#changes")).to_have_text("2 changes typed.")
    live.wait_for_function(
        "document.querySelector('#count').textContent.includes('by this one')", timeout=LONG
    )
    live.locator("#undo").click()
    live.locator("#undo").click()
    expect(live.locator("#undo")).to_be_disabled()
    assert live.locator("#predictions").inner_text() == before
    typed(live, "1")
    live.locator("#reset").click()
    expect(live.locator("#reset")).to_be_disabled()
    assert live.locator("#predictions").inner_text() == before


def test_every_bug_breaks_its_property_and_the_count(live: Page) -> None:
    """Words and marks, not only colours; the counts are PyTorch's."""
    right, _ = reference()
    assert len(PROPERTY) == len(IDS) and set(PROPERTY.values()) == set(ORDER)
    for bug in IDS:
        put_in(live, bug)
        marks = live.locator("#properties td:first-child").all_text_contents()
        broken = [name for name, mark in zip(ORDER, marks, strict=True) if mark == "✗ broken"]
        # dropout sets weights to 0, so they do not sum to 1 any more, either
        also = ["rows"] if bug == "dropout-eval" else []
        assert broken == [*also, PROPERTY[bug]], bug
        assert marks.count("✓ holds") == len(ORDER) - len(broken)
        count, first = reference(bug)
        said = live.locator("#count").inner_text()
        assert re.findall(r"(\d+) of 360", said) == [str(right), str(count)], bug
        assert f"predicts {first}." in live.locator("#predicted").inner_text()
        expect(live.locator("#picture")).to_contain_text("stay the same: 45 of 45")
        expect(live.locator("#fix")).to_contain_text(f"{BUGS[bug].fix} It is in chapter")
        assert "bug" in live.locator("#steps .note").all_text_contents()
    put_in(live, "")
    assert set(live.locator("#properties td:first-child").all_text_contents()) == {"✓ holds"}
    assert set(live.locator("#steps .note").all_text_contents()) == {""}


def test_the_arithmetic_finds_the_bug(live: Page) -> None:
    put_in(live, "scale-embed")
    choose(live, "Scores")
    expect(live.locator("#arithmetic")).to_contain_text("But this model has")
    choose(live, "Attention weights")
    expect(live.locator("#arithmetic")).not_to_contain_text("But this model has")


def test_what_is_broken(context: BrowserContext, file: Path) -> None:
    context.add_init_script("Math.random = () => 0.3")
    hidden = IDS[int(0.3 * len(IDS))]
    page = opened(context, file)
    verdict, say, answer = page.locator("#verdict"), page.locator("#say"), page.locator("#answer")
    expect(say).to_be_disabled()
    page.locator("#quiz").click()
    expect(page.locator("#bugs input").first).to_be_disabled()
    marks = page.locator("#properties td:first-child")
    assert set(marks.all_text_contents()) == {"? hidden"}
    assert set(page.locator("#steps .note").all_text_contents()) == {""}
    expect(page.locator("#bugs input:checked")).to_have_count(0)
    say.click()
    expect(verdict).to_contain_text("must be one of the list, got none")
    other = next(bug for bug in IDS if PROPERTY[bug] != PROPERTY[hidden])
    near = next(bug for bug in IDS if PROPERTY[bug] == PROPERTY[hidden] and bug != hidden)
    for guess, words in ((other, "a different property"), (near, "Close"), (hidden, "Correct")):
        answer.select_option(guess)
        say.click()
        expect(verdict).to_contain_text(words)
    expect(verdict).to_contain_text("The test that finds it: queries, keys and values are three")
    expect(verdict.locator("a")).to_have_text("chapter 02")
    expect(page.locator(f'#bugs input[value="{hidden}"]')).to_be_checked()
    assert marks.all_text_contents().count("✗ broken") == 1
    page.locator("#quiz").click()
    page.locator("#show").click()
    expect(verdict).to_contain_text("The answer: the model")
    assert not page.problems


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280, 1920])
def test_every_window_and_every_reader(
    width: int, scheme: str, browser: Browser, file: Path
) -> None:
    """No sideways scrolling, nothing out of the keyboard's reach, no violation that axe finds."""
    size = {"width": width, "height": 900}
    with browser.new_context(
        viewport=size, color_scheme=scheme, reduced_motion="reduce"
    ) as context:
        page = opened(context, file)
        page.evaluate((assets.package("axe_playwright_python") / "axe.min.js").read_text("utf-8"))
        put_in(page, "scale-embed")
        for name in ("Scores", "Feed-forward, inner", "Image", "Logits"):
            choose(page, name)
            page.evaluate(FRAMES)
            assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        choose(page, "Scores")
        typed(page, "hello")
        result = page.evaluate("() => axe.run({preload: false, resultTypes: ['violations']})")
        found = [
            f"{one['id']}: {node['html'][:160]}: {node['failureSummary']}"
            for one in result["violations"]
            for node in one["nodes"]
        ]
        assert not found, "\n".join(found)
        assert not page.problems


def grey(page: Page, what: Locator) -> Tensor:
    """Return the luminance (height, width), from 0 to 1, of what is shown without colours."""
    page.evaluate(FRAMES)
    shown = np.asarray(Image.open(io.BytesIO(what.screenshot())).convert("RGB"))
    assert np.ptp(shown, axis=2).max() < 8  # the browser took the colours away
    level = torch.from_numpy(shown[..., 0] / 255)
    return torch.where(level <= 0.04045, level / 12.92, ((level + 0.055) / 1.055) ** 2.4)


def stands_out(part: Tensor) -> bool:
    """Return whether the lightest and the darkest pixel have a contrast (WCAG 2) of 3."""
    return bool((part.max() + 0.05) / (part.min() + 0.05) >= 3)


def outlined(picture: Tensor, top: float, left: float, height: float, width: float) -> bool:
    """Return whether the four pixels outside of each side of a rectangle stand out."""
    y, x, top, left = int(top + height / 2), int(left + width / 2), int(top), int(left)
    bottom, right = int(top + height), int(left + width)
    sides = (
        picture[top - 4 : top, x],
        picture[bottom : bottom + 4, x],
        picture[y, left - 4 : left],
        picture[y, right : right + 4],
    )
    return all(stands_out(side) for side in sides)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_read_without_colours(scheme: str, browser: Browser, file: Path) -> None:
    """Words, lightness and outlines say what colours say."""
    size = {"width": 1280, "height": 900}
    with browser.new_context(viewport=size, color_scheme=scheme) as context:
        page = opened(context, file)
        put_in(page, "scale-embed")
        context.new_cdp_session(page).send(
            "Emulation.setEmulatedVisionDeficiency", {"type": "achromatopsia"}
        )
        marks = page.locator("#properties td:first-child").all_text_contents()
        assert set(marks) == {"✓ holds", "✗ broken"}
        _, (images, _) = load_digits()
        found = trace(load_shipped("digits").double(), images[:1].double(), "scale-embed")
        for name, words in (("0.weights", "Attention weights"), ("0.scores", "Scores")):
            choose(page, words)  # one without and one with negative numbers
            values, picture = found[name][0, 0], grey(page, page.locator("#tensor"))
            rows, columns = values.shape
            y = (torch.arange(rows) + 0.15) * picture.shape[0] / rows  # above the numbers
            x = (torch.arange(columns) + 0.5) * picture.shape[1] / columns
            light, values = picture[y.long()][:, x.long()].flatten()[1:], values.flatten()[1:]
            steps = light[values.argsort()].diff()
            assert steps.min() > -0.01 and steps.sum() > 0.3, name  # from low to high, lighter
        page.locator("#axes input").nth(1).fill("3")  # query 3 and key 2
        page.locator("#axes input").nth(2).fill("2")
        assert stands_out(grey(page, page.locator("#mark")))
        for operand, row in ((0, 3), (1, 2)):  # 16 numbers of 14 points, after 4 at the edge
            shown = grey(page, page.locator("#operands canvas").nth(operand))
            assert outlined(shown, 4 + 14 * row, 4, 14, 14 * 16), operand
        for kind in (".source", "[aria-pressed='true']"):
            border = grey(page, page.locator(f"#steps .step{kind}").first)
            assert stands_out(border[border.shape[0] // 2, :5]), kind
