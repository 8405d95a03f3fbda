"""The parts of the live page that read text: they equal PyTorch's, and they work in a browser."""

from __future__ import annotations

import base64
import json
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

import pytest
import torch
from playwright.sync_api import Browser, Page, expect
from torch import Tensor, nn

from browser.try_live import FRAMES, needs_node, node
from tools.course.registry import course
from tools.web import assets
from tools.web.make_live import live_page
from utils.attention import record_attention
from utils.data import date_forms, date_vocabularies, load_grammar, load_shipped, resource
from utils.data.dates import date_ids, write_date
from utils.generation import beam_search, generate, next_probabilities
from utils.text import BEGIN, END

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTHS = [1, 4]
CHOICES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.5},
    {"temperature": 2.0, "top_k": 5},
    {"top_p": 0.7},
    {"temperature": 1.5, "top_k": 6, "top_p": 0.9},
    {"temperature": 0},
]
CAMEL = {"temperature": "temperature", "top_k": "topK", "top_p": "topP"}
# what a text in a language means, or the sentence about it
READ = {
    ("2/1/98", "en"): "1998-02-01",
    ("2/1/98", "es"): "1998-01-02",
    ("12/31/49", "en"): "2049-12-31",
    ("1/1/50", "en"): "1950-01-01",
    ("Monday, January 2, 1998", "en"): "1998-01-02 The weekday of this day is Friday.",
    ("January 2, 1850", "en"): "1850-01-02 The model was trained on 1950 to 2049 only.",
    ("February 29, 2000", "en"): "2000-02-29",
    ("February 29, 1900", "en"): "The day must be 1 to 28 in February 1900, got 29.",
    ("31. Februar 1998", "de"): "The day must be 1 to 28 in Februar 1998, got 31.",
    ("13/2/98", "en"): "The month must be 1 to 12, got 13.",
    ("January 0, 1998", "en"): "The day must be 1 to 31",
    ("January 2, 1998", "fr"): "The text must be a date as French writes it",
    ("January 2, 0998", "en"): "The text must be a date as English writes it",
    ("yesterday", "en"): "The text must be a date as English writes it, got “yesterday”.",
    ("02x01y1998", "de"): "The text must be a date as German writes it",  # periods are no wildcards
}


def some_dates() -> list[tuple[date, str, str]]:
    """Return 50 days, each in a language and a form, all 24 ways at least twice."""
    ways = [(language, form) for language, table in date_forms().items() for form in table["forms"]]
    days = torch.randint(36_525, (50,), generator=torch.Generator().manual_seed(0)).tolist()
    first = date(1950, 1, 1)
    return [(first + timedelta(days=n), *ways[at % len(ways)]) for at, n in enumerate(days)]


def some_prompts() -> list[list[int]]:
    """Return 50 prompts, of 1 to 8 ids; the last is of no sentence."""
    sampled = load_grammar().sample(49, torch.Generator().manual_seed(0)).tolist()
    cut = [[id for id in row if id > END] for row in sampled]
    return [[BEGIN, *ids[: at % len(ids)]] for at, ids in enumerate(cut)] + [[BEGIN, 6, 6]]


@pytest.fixture(scope="module")
def traced() -> dict[str, Any]:
    """Return what website/live computes."""
    source, _ = date_vocabularies()
    grammar = load_grammar()
    given = {
        "date": str(resource("date_model.safetensors")),
        "sentence": str(resource("sentence_model.safetensors")),
        "forms": date_forms(),
        "symbols": source.symbols,
        "widths": WIDTHS,
        "dates": [
            {
                "day": [day.year, day.month, day.day],
                "language": language,
                "form": form,
                "target": date_ids(day, language, form)[1][:-1],
            }
            for day, language, form in some_dates()
        ],
        "prompts": some_prompts(),
        "choices": [{CAMEL[key]: value for key, value in one.items()} for one in CHOICES],
        "grammar": {
            "words": grammar.vocabulary.symbols,
            "ids": grammar.ids.tolist(),
            "probabilities": grammar.probabilities.tolist(),
        },
        "texts": [*READ],
    }
    return json.loads(node("text_trace.mjs", given))


def close(mine: list[float] | Tensor, theirs: Tensor) -> None:
    """Check that numbers equal a tensor's to 1e-5."""
    ours = torch.as_tensor(mine, dtype=torch.float64)
    torch.testing.assert_close(ours, theirs.double().flatten(), atol=1e-5, rtol=1e-5)


# steps of a block, and modules of PyTorch that return the same tensor
OF_BLOCK = {
    "norm1": "norm1",
    "attention_output": "attn.out_proj",
    "cross_norm": "norm2",
    "cross_attention_output": "cross_attn.out_proj",
    "hidden": "mlp.fc1",
    "activated": "mlp.act",
    "mlp_output": "mlp.fc2",
    "residual2": "",
} | {
    f"{before}{name}_all": f"{before}attn.{name}_proj"
    for before in ("", "cross_")
    for name in "qkv"
}


def equal_modules(
    mine: dict[str, str], model: nn.Module, ends: dict[str, str], *ids: Tensor
) -> None:
    """Compare the steps of a run with what the modules of PyTorch return.

    Args:
        mine: each step in base64.
        model: in double precision.
        ends: modules of the steps that are in no block.
        ids: what the model gets.
    """
    found: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda *args, name=name: found.update({name: args[2]}))
        for name, module in model.named_modules()
    ]
    with record_attention(model) as maps:
        model(*ids)
    for hook in hooks:
        hook.remove()
    steps = {
        name: torch.frombuffer(bytearray(base64.b64decode(x)), dtype=torch.float32)
        for name, x in mine.items()
    }
    weights = [x for name, x in steps.items() if name.endswith("weights")]
    for ours, theirs in zip(weights, maps, strict=True):
        close(ours, theirs)
    modules = dict(ends)
    for name in steps:  # "norm1" of a block is "0.norm1" or "decoder.0.norm1"
        *block, short = name.split(".")
        last = {"norm2": "norm3" if len(block) == 2 else "norm2"}
        if block and short in OF_BLOCK | last:
            stack = "decoder" if len(block) == 2 else "encoder"
            inside = (OF_BLOCK | last)[short]
            modules[name] = f"{stack}.layers.{block[-1]}.{inside}".rstrip(".")
    assert len(modules) > len(steps) / 2
    for name, module in modules.items():
        close(steps[name], found[module])


@needs_node
@torch.no_grad()
def test_translator_equals_pytorch(traced: dict[str, Any]) -> None:
    model = load_shipped("date").double()
    for (day, language, form), mine in zip(some_dates(), traced["dates"], strict=True):
        ids, target = date_ids(day, language, form)
        assert (mine["text"], mine["ids"]) == (write_date(day, language, form), ids)
        assert mine["read"] == day.isoformat()
        ends = {
            "source_tokens": "source_embedding",
            "target_tokens": "target_embedding",
            "memory": "encoder",
            "norm": "decoder",
            "logits": "head",
        }
        equal_modules(
            mine["tensors"], model, ends, torch.tensor([ids]), torch.tensor([target[:-1]])
        )


@needs_node
@torch.no_grad()
def test_greedy_and_beam_equal_pytorch(traced: dict[str, Any]) -> None:
    model = load_shipped("date").double()
    for (day, language, form), mine in zip(some_dates(), traced["dates"], strict=True):
        memory = model.encode(torch.tensor([date_ids(day, language, form)[0]]))

        def next_scores(ids: Tensor, memory: Tensor = memory) -> Tensor:
            logits = model.decode(ids, memory.expand(len(ids), -1, -1))
            return logits[:, -1].log_softmax(dim=-1)

        for width, ours in zip(WIDTHS, mine["found"], strict=True):
            theirs = beam_search(next_scores, BEGIN, END, width, max_length=20)
            assert [one["ids"] for one in ours] == [ids for ids, _ in theirs]
            close([one["score"] for one in ours], torch.tensor([score for _, score in theirs]))


@needs_node
@torch.no_grad()
def test_language_model_equals_pytorch(traced: dict[str, Any]) -> None:
    model, grammar = load_shipped("sentence").double(), load_grammar()
    for ids, mine in zip(some_prompts(), traced["prompts"], strict=True):
        ends = {"tokens": "embedding", "norm": "encoder", "logits": "head"}
        equal_modules(mine["tensors"], model, ends, torch.tensor([ids]))
        logits = model(torch.tensor([ids]))[0]
        for choice, ours in zip(CHOICES, mine["chosen"], strict=True):
            close(ours, next_probabilities(logits[-1], **choice))
        close(mine["truth"], grammar.after(torch.tensor([ids]))[0, -1])


@needs_node
def test_dates_are_read_or_refused_with_a_sentence(traced: dict[str, Any]) -> None:
    for (text, words), mine in zip(READ.items(), traced["read"], strict=True):
        assert mine.startswith(words), text
        if words[0].isdigit():
            assert mine == words


# ---- the page


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the address of the page; without esbuild the tests are skipped."""
    try:
        page = live_page(course())
    except ValueError as error:
        if "needs esbuild" not in str(error):
            raise
        pytest.skip(str(error))
    file = tmp_path_factory.mktemp("live") / "live.html"
    file.write_text(page, encoding="utf-8")
    return file.as_uri()


@pytest.fixture(params=[("light", 1280), ("dark", 390)], ids=["light", "dark and narrow"])
def live(browser: Browser, address: str, request: pytest.FixtureRequest) -> Iterator[Page]:
    """Open the page; any error of its script fails the test."""
    scheme, width = request.param
    size = {"width": width, "height": 900}
    with browser.new_context(viewport=size, color_scheme=scheme) as context:
        page, errors = context.new_page(), []
        page.on("pageerror", lambda error: errors.append(f"{error.message}\n{error.stack}"))
        page.goto(address)
        page.wait_for_selector("html[data-ready]")
        yield page
        assert not errors, "\n".join(errors)


def said(page: Page, where: str, words: str) -> None:
    """Check that a line of the page comes to hold some words."""
    page.locator(where, has_text=words).wait_for(timeout=10_000)


def map_of(page: Page) -> tuple[list[str], list[list[int]]]:
    """Return the written characters and, for each, its weights in percent."""
    top = page.locator("#date-weights thead th").all_text_contents()[1:]
    cells = page.locator("#date-weights tbody td").all_text_contents()
    return top, [[int(cell or 0) for cell in cells[at :: len(top)]] for at in range(len(top))]


def test_a_date_is_translated_as_it_is_typed(live: Page) -> None:
    said(live, "#date-said", "The answer is 1998-01-02. Correct.")
    live.select_option("#language", "fr")
    said(live, "#date-said", "The answer is 1998-01-02. Correct.")
    live.fill("#date", "  31 décembre 1999")
    said(live, "#date-said", "The answer is 1999-12-31. Correct.")
    live.fill("#date", "31 de\u0301cembre 1999")  # the accent as a character of its own
    said(live, "#date-said", "The answer is 1999-12-31. Correct.")
    rows = live.locator("#date-found tr")
    assert rows.locator("th").all_text_contents() == ["greedy", *(f"beam {n}" for n in range(1, 5))]
    top, columns = map_of(live)
    assert "".join(top) == "1999-12-31end"
    # each cell is rounded, and below half a percent it is empty
    assert all(abs(sum(column) - 100) <= len(column) / 2 for column in columns)
    live.select_option("#part", "2")
    assert map_of(live)[1] != columns
    other = rows.nth(2).locator("button")
    other.focus()
    live.keyboard.press("Enter")
    assert other.get_attribute("aria-pressed") == "true"
    assert "".join(map_of(live)[0]) == f"{other.text_content()}end" != "1999-12-31end"
    live.select_option("#beam-width", "2")
    live.wait_for_function("document.querySelectorAll('#date-found tr').length === 3")
    live.click("#another-day")
    offered = live.locator("#date-examples button")
    offered.filter(has_text=live.input_value("#date")).first.wait_for()
    offered.first.click()
    assert live.input_value("#date") == offered.first.text_content()


def test_a_date_can_mean_two_days(live: Page) -> None:
    live.fill("#date", "2/1/98")
    said(live, "#date-said", "The answer is 1998-02-01. Correct.")
    live.select_option("#language", "es")
    said(live, "#date-said", "The answer is 1998-01-02. Correct.")
    assert live.input_value("#date") == "2/1/98"
    assert "2 de enero de 1998" in live.locator("#date-examples button").all_text_contents()
    live.select_option("#language", "ko")  # it is no Korean date: the day stays
    said(live, "#date-said", "The answer is 1998-01-02. Correct.")
    assert live.input_value("#date") == "1998년 1월 2일"


def test_a_date_that_is_none_gets_a_sentence(live: Page) -> None:
    for text, problem in {
        "": "There must be a date, got an empty field.",
        "Jan\U0001f600 2": "got “\U0001f600”. Remove it.",
        "9" * 40: "at most 39 characters, the number of positions without the language, got 40.",
    }.items():
        live.fill("#date", text)
        said(live, "#date-problem", problem)
        expect(live.locator("#date-result")).to_be_hidden()
    for text, problem in {
        "February 31, 1998": "No answer is correct. The day must be 1 to 28 in February 1998",
        "13/13/98": "No answer is correct. The month must be 1 to 12, got 13.",
        "some day": "No answer is correct. The text must be a date as English writes it",
        "9" * 39: "No answer is correct.",
    }.items():
        live.fill("#date", text)
        said(live, "#date-said", problem)
        assert live.locator("#date-problem").text_content() == ""
        expect(live.locator("#date-result")).to_be_visible()


def test_a_sentence_is_continued(live: Page) -> None:
    def column(at: int) -> list[float]:
        cells = live.locator(f"#next-words td:nth-child({at})").all_text_contents()
        return [0.0 if cell.startswith("<") else float(cell.split()[0]) for cell in cells]

    live.fill("#prompt", "The small")
    said(live, "#words-said", "After “the small”")
    assert all(abs(sum(column(at)) - 100) < 1 for at in (2, 3, 4))
    assert column(2) == column(3) == sorted(column(2)[:-1], reverse=True) + column(2)[-1:]
    live.locator("#top-k").fill("1")
    live.wait_for_function(
        "document.querySelector('#next-words td:nth-child(3)').textContent === '100.0 %'"
    )
    live.locator("#next-words button", has_text="mouse").focus()
    live.keyboard.press("Enter")
    said(live, "#words-said", "After “the small mouse”")
    assert live.locator("#next-words button").first.evaluate("it => it === document.activeElement")
    live.click("#last-word")
    said(live, "#words-said", "After “the small”, ")
    live.fill("#prompt", "cheese cheese")
    said(live, "#words-said", "No sentence of the language begins like this")
    live.click("#no-words")
    said(live, "#words-said", "After “the begin token”")
    live.locator("#temperature").fill("0")
    live.click("#generate")
    greedy = generate(
        load_shipped("sentence"), torch.tensor([[BEGIN]]), 9, temperature=0, end_id=END
    )
    expected = " ".join(load_grammar().vocabulary.decode(greedy[0]))
    newest = live.locator("#generated li").first.text_content() or ""
    assert newest.startswith(f"{expected} · one sentence in ")


# Choose every tensor of a box, and its first and last number: what the arithmetic says of them.
ARITHMETIC = """async (prefix) => {
  const get = (id) => document.getElementById(prefix + id), said = [];
  const drawn = () => new Promise((done) => requestAnimationFrame(done));
  for (const step of get("steps").querySelectorAll(".step")) {
    step.click();
    await drawn();
    for (const last of [false, true]) {
      for (const field of get("axes").querySelectorAll("input")) {
        field.value = last ? field.max : 0;
        field.dispatchEvent(new Event("input"));
      }
      await drawn();
      said.push(["tensor-title", "cell", "arithmetic"].map((id) => get(id).textContent));
    }
  }
  return said;
}"""


@pytest.mark.parametrize("live", [("light", 1280)], indirect=True, ids=["light"])
@pytest.mark.parametrize(("prefix", "steps"), [("translator-", 75), ("gpt-", 42)])
def test_every_tensor_of_a_text_has_its_arithmetic(prefix: str, steps: int, live: Page) -> None:
    live.click(f"#{prefix}box summary")
    found = live.evaluate(ARITHMETIC, prefix)
    assert len(found) == 2 * steps
    for title, cell, words in found:
        number = cell.removeprefix("This number is ").rstrip(".")
        assert words.endswith(f" = {number}"), (title, cell, words)
    masked = [words for title, _, words in found if "after the mask" in title]
    assert any("may attend, not changed" in words for words in masked)


def set_number(page: Page, prefix: str, tensor: str, place: list[int], text: str) -> None:
    """Choose a number in a box that is open, and type another one."""
    page.locator(f"#{prefix}steps .name").get_by_text(tensor, exact=True).last.click()
    page.evaluate(FRAMES)
    for field, index in zip(page.locator(f"#{prefix}axes input").all(), place, strict=True):
        field.fill(str(index))
    page.evaluate(FRAMES)
    page.fill(f"#{prefix}value", text)
    page.press(f"#{prefix}value", "Enter")


def test_numbers_of_a_sentence_change_and_come_back(live: Page) -> None:
    cat = load_grammar().vocabulary.symbols.index("cat")
    live.fill("#prompt", "the small")
    said(live, "#words-said", "After “the small”")
    before = live.locator("#words-said").inner_text()
    live.click("#gpt-box summary")
    set_number(live, "gpt-", "Logits", [2, cat], "50")  # the last position predicts
    said(live, "#words-said", "“cat” with 100.0 %")
    said(live, "#words-said", "You changed numbers of this model.")
    live.locator("#temperature").fill("1")
    live.click("#generate")
    assert (live.locator("#generated li").first.text_content() or "").startswith("the small cat")
    live.fill("#prompt", "the small cat")  # position 2 predicted it, and 3 is not changed
    said(live, "#words-said", "After “the small cat”")
    assert "“cat” with" not in live.locator("#words-said").inner_text()
    live.fill("#prompt", "the")  # no position 2
    live.fill("#prompt", "the small")
    said(live, "#words-said", "“cat” with 100.0 %")
    live.click("#gpt-undo")
    live.wait_for_function(
        "text => document.querySelector('#words-said').textContent === text", arg=before
    )
    live.locator("#gpt-operands .step").nth(1).click()  # a weight
    said(live, "#gpt-tensor-title", "embedding.tokens.weight (27, 48)")
    live.evaluate(FRAMES)
    live.fill("#gpt-value", "1e300")
    live.press("#gpt-value", "Enter")
    said(live, "#gpt-problem", "between -1 million and 1 million, got 1e300")
    live.fill("#gpt-value", "-1000")
    live.press("#gpt-value", "Enter")
    said(live, "#gpt-changes", "1 change typed.")
    live.click("#gpt-reset")
    live.wait_for_function(
        "text => document.querySelector('#words-said').textContent === text", arg=before
    )


def test_numbers_of_a_date_change_every_answer(live: Page) -> None:
    _, target = date_vocabularies()
    live.click("#translator-box summary")
    set_number(live, "translator-", "Logits", [0, target.symbols.index("2")], "99")
    live.wait_for_function("""() => [...document.querySelectorAll('#date-found button')]
      .every((button) => button.textContent.startsWith('2'))""")
    said(live, "#date-said", "Correct is 1998-01-02. You changed numbers of this model.")
    live.fill("#date", "January 2, 1999")
    said(live, "#date-said", "Correct is 1999-01-02. You changed")
    live.click("#translator-undo")
    said(live, "#date-said", "The answer is 1999-01-02. Correct.")
    set_number(live, "translator-", "Memory: last LayerNorm", [0, 0], "1000")
    notes = live.locator("#translator-steps .note")
    notes.filter(has_text="typed").wait_for()
    assert {note for note in notes.all_text_contents() if note} == {"typed", "differs"}
    live.fill("#date", "")
    expect(live.locator("#translator-box")).to_be_hidden()


def test_words_that_the_model_cannot_read_get_a_sentence(live: Page) -> None:
    for text, problem in {
        "the elephant": "Every word must be one of the 23 that the model knows, got “elephant”.",
        "<end>": "got “<end>”",
        "the " * 10: "A prompt must have at most 9 words, got 10. Remove some.",
    }.items():
        live.fill("#prompt", text)
        said(live, "#words-problem", problem)
        assert live.locator("#generate").is_disabled()
    live.fill("#prompt", "the " * 9)  # as many as there are positions
    said(live, "#words-said", "After “the the the")
    live.click("#generate")
    assert live.locator("#generated li").count() == 1


def test_text_is_accessible_and_narrow(live: Page) -> None:
    script = assets.package("axe_playwright_python") / "axe.min.js"
    live.evaluate(script.read_text("utf-8"))
    live.click("#generate")
    live.locator("#generated li").wait_for()
    for box in ("#translator-box", "#gpt-box"):
        live.click(f"{box} summary")
    live.evaluate(FRAMES)
    ids = "() => [...document.querySelectorAll('[id]')].map((node) => node.id).sort()"
    assert (found := live.evaluate(ids)) == sorted(set(found))
    for section in ("#dates", "#words"):
        found = live.evaluate("where => axe.run(where, {resultTypes: ['violations']})", section)
        assert not [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]]
        sizes = live.locator(section).evaluate("one => [one.scrollWidth, one.clientWidth]")
        assert sizes[0] <= sizes[1]
