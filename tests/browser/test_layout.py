"""The pages on a phone, a tablet and a desktop: everything fits, no word is broken, nothing overlaps a figure."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page

from continual_petl import Run
from continual_petl.engine.ablation.page import write_ablations
from continual_petl.report.read_facts import read_facts
from continual_petl.report.write import write_comparison, write_report
from tests.browser.chromium import Tab, tab
from tests.browser.conftest import QUICK
from tests.learned import LearnedRuns
from tests.streams_in_code import regression_task, stream, task, task_of_kind
from tests.tiny import WORDS

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

Folder = Callable[..., Path]
WIDTHS = (400, 768, 1280)
LABELS = (
    *("billing_and_invoices", "password-reset", "Rindfleischetikettierungsgesetz", "cancellation of a subscription"),
    *("a/b/c", "DESC", "HUM", "LOC", "NUM", "weather", "other"),
)
ADDRESS = "https://example.org/accounts/reset?token=" + "a1" * 30

TOO_WIDE = """() => [...document.querySelectorAll("body *")].filter((one) => {
  const { right, width } = one.getBoundingClientRect();
  if (width < 2 || right <= innerWidth + 1 || !one.checkVisibility()) return false;
  for (let box = one.parentElement; box; box = box.parentElement) {
    if (getComputedStyle(box).overflowX !== "visible") return false;
  }
  return true;
}).map((one) => one.outerHTML.slice(0, 200))"""
"""Elements that are wider than the viewport, except inside boxes that scroll or clip."""
BROKEN = """() => {
  const pen = document.createElement("canvas").getContext("2d");
  const found = [];
  for (const cell of document.querySelectorAll("th, td, .legend button, dd, dt, h2, h3, figcaption, caption")) {
    if (!cell.checkVisibility()) continue;
    const box = (cell.closest(".wide") ?? cell).clientWidth;
    const walker = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
      const node = walker.currentNode;
      for (const { 0: word, index } of node.data.matchAll(/[\\p{L}\\p{N}]+(?:[.,]\\p{N}+)*/gu)) {
        const range = document.createRange();
        range.setStart(node, index);
        range.setEnd(node, index + word.length);
        const lines = new Set([...range.getClientRects()].map((one) => Math.round(one.top)));
        pen.font = getComputedStyle(node.parentElement).font;
        if (lines.size > 1 && pen.measureText(word).width < box - 80) found.push(`${cell.outerHTML.slice(0, 150)}: ${word}`);
      }
    }
  }
  return found;
}"""
"""Words and numbers that are broken although a line has room for them (beside the name of their column)."""
SCROLLED = """() => [...document.querySelectorAll(".wide")].filter((box) => box.scrollWidth > box.clientWidth + 1)
  .map((box) => box.getAttribute("aria-label"))"""
OVERLAPS = """() => {
  const cross = (one, other) => one.width > 0 && other.width > 0 && one.left < other.right - 1 && other.left < one.right - 1
    && one.top < other.bottom - 1 && other.top < one.bottom - 1;
  const box = (element) => element.getBoundingClientRect();
  const found = [];
  for (const figure of document.querySelectorAll("figure")) {
    const name = figure.querySelector("figcaption").textContent;
    const [legend, plot, words, tools] = [".legend", ".plot", ".words", ".tools"].map((part) => figure.querySelector(part));
    if ([plot, words, tools].some((other) => cross(box(legend), box(other)))) found.push(`${name}: legend`);
    const entries = [...legend.children];
    entries.forEach((one, at) => entries.slice(at + 1).forEach((other) => {
      if (cross(box(one), box(other))) found.push(`${name}: ${one.textContent} and ${other.textContent}`);
    }));
    if (plot.querySelector(".main-svg .legend")) found.push(`${name}: plotly's legend`);
    const cells = [...plot.querySelectorAll(".heatmaplayer image, .scatterlayer .trace, .barlayer .trace")];
    const titles = ".g-xtitle text, .g-ytitle text, .g-y2title text";
    const around = [...plot.querySelectorAll(`.colorbar, ${titles}, .xtick text, .ytick text`)];
    for (const one of cells) for (const other of around) {
      if (cross(box(one), box(other)) && !one.matches(".scatterlayer .trace")) found.push(`${name}: ${other.textContent}`);
    }
    for (const title of plot.querySelectorAll(".g-xtitle text")) for (const label of plot.querySelectorAll(".xtick text")) {
      if (cross(box(title), box(label))) found.push(`${name}: ${title.textContent} and ${label.textContent}`);
    }
  }
  return found;
}"""


def _topics(num_rows: int, seed: int) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    return [
        {"text": f"{' '.join(draw.choices(WORDS[10:40], k=9))} {ADDRESS} {number} {seed}", "label": draw.choice(LABELS)}
        for number in range(num_rows)
    ]


@pytest.fixture(scope="module")
def desk(backbone_folder: Folder, learned_runs: LearnedRuns) -> Path:
    """Return a run with long names, labels and texts, many settings, and tasks of all kinds of figures."""
    data = {"train": _topics(44, 1), "validation": _topics(20, 2), "test": _topics(30, 3)}
    training = {"class_weights": "balanced", "schedule": "constant", "accumulate": 2, "patience": 1, "epochs": 3}
    topics = {"name": "support_topics_of_the_help_desk", "kind": "classification", "data": data, "training": training}
    others = [
        regression_task("similarity_of_two_sentences", num_rows=16),
        *(task_of_kind(kind, num_rows=16) for kind in ("multilabel", "token-classification")),
        *(task(f"pairs-{number}", num_rows=8, pairs=True) for number in range(5)),
    ]
    return learned_runs(stream(backbone_folder(), [topics, *others], training=QUICK))


@pytest.fixture(scope="module")
def pages(desk: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return the report with wrong predictions, the comparison of two runs, and the page of an ablation."""
    folder, run, facts = tmp_path_factory.mktemp("pages"), Run(desk), read_facts(desk)
    wrong = tuple(run.wrong_predictions(name) for name in run.store.tasks)
    write_ablations(folder / "ablation.html", [run.ablate("pairs-1"), run.ablate("multilabel")], desk)
    other = dataclasses.replace(facts, name="lora_rank_8_alpha_16_on_query_and_value")
    return {
        "report": write_report(folder / "report", dataclasses.replace(facts, wrong=wrong)),
        "comparison": write_comparison(folder / "comparison", [facts, other]),
        "ablation": folder / "ablation.html",
    }


@pytest.fixture(params=["report", "comparison", "ablation"])
def name(request: pytest.FixtureRequest) -> str:
    """Return the name of a page."""
    found: str = request.param
    return found


@pytest.fixture
def opened(browser: Browser, pages: dict[str, Path], name: str, width: int) -> Iterator[Tab]:
    """Return the page, completely drawn, at a width; narrow ones are touched, and one width is dark."""
    phone = {"has_touch": True, "is_mobile": True} if width < 500 else {}
    scheme: Any = "dark" if width == 768 else "light"
    with tab(browser, pages[name], viewport={"width": width, "height": 900}, color_scheme=scheme, **phone) as found:
        found.draw()
        yield found


def check(page: Page, width: int) -> None:
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert page.evaluate(TOO_WIDE) == []
    assert page.evaluate(SCROLLED) == []
    assert page.evaluate(BROKEN) == []
    assert page.evaluate(OVERLAPS) == []


@pytest.mark.parametrize("width", WIDTHS)
def test_everything_fits_and_nothing_overlaps(opened: Tab, name: str, width: int) -> None:
    page = opened.page
    check(page, width)
    assert opened.axe() == []
    if name == "report":
        for task_name in ("similarity_of_two_sentences", "multilabel", "token-classification"):
            page.locator("#task").select_option(label=task_name)
            page.wait_for_function(f"() => document.querySelector('#details h3')?.textContent === '{task_name}'")
            opened.draw()
            check(page, width)


@pytest.mark.parametrize("name", ["report"])
@pytest.mark.parametrize("width", [400])
def test_on_a_phone_wide_tables_are_lists_and_numbers_of_a_wide_matrix_are_listed(
    opened: Tab, name: str, width: int
) -> None:
    page = opened.page
    shown = "(all) => all.filter((one) => one.checkVisibility()).map((one) => one.dataset.head + ': ' + one.innerText.trim())"
    first = page.locator("#wrong-predictions table").first
    assert first.get_attribute("class") == "sortable listed"
    heads = first.locator("tbody tr").first.locator("th, td").evaluate_all(shown)
    assert [head.split(": ")[0] for head in heads] == ["row", "text", "correct", "predicted", "probability"]
    first.locator("thead button", has_text="row").click()
    assert page.locator("#details table", has_text="weight in the loss").get_attribute("class") == "sortable listed"
    for figure in ("matrix", "answers"):
        frame = page.locator(
            "figure", has=page.locator(f'[data-figure="{figure}"], [aria-label^="Predictions."]')
        ).first
        if figure == "matrix":
            frame = page.locator("figure", has=page.locator('[data-figure="matrix"]'))
        assert frame.locator(".count").get_attribute("aria-expanded") == "true", "nine columns have no room for numbers"
        assert frame.locator(".numbers table").is_visible()
    page.set_viewport_size({"width": 1280, "height": 900})
    page.wait_for_function("() => !document.querySelector('#wrong-predictions table').classList.contains('listed')")


@pytest.mark.parametrize("name", ["report"])
@pytest.mark.parametrize("width", [1280])
def test_legend_hides_and_shows_a_line(opened: Tab, name: str, width: int) -> None:
    page = opened.page
    frame = page.locator("figure", has=page.locator('[data-figure="scores"]'))
    button = frame.locator(".legend button").first
    lines = frame.locator(".scatterlayer .trace")
    before = lines.count()
    button.click()
    assert (button.get_attribute("aria-pressed"), lines.count()) == ("false", before - 1)
    button.press("Enter")
    assert (button.get_attribute("aria-pressed"), lines.count()) == ("true", before)


@pytest.mark.parametrize("name", ["report"])
@pytest.mark.parametrize("width", [1280])
def test_saved_figure_has_a_legend(opened: Tab, name: str, width: int) -> None:
    frame = opened.page.locator("figure", has=opened.page.locator('[data-figure="scores"]'))
    with opened.page.expect_download() as saved:
        frame.get_by_role("button", name="Save as SVG").click()
    text = Path(saved.value.path()).read_text()
    assert 'class="legend"' in text
    assert "similarity_of_two_sentences" in text
