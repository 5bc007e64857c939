"""A report in a real browser: from disk, by mouse, keyboard and screen reader, on a screen, a phone and paper."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page

from continual_petl.report import write
from continual_petl.report.figures.style import tasks_of_a_bar
from continual_petl.report.page.parts import MAX_ROWS
from continual_petl.report.page.sections import TOGETHER
from continual_petl.report.read_facts import read_facts
from continual_petl.report.run_facts import MAX_TASKS
from continual_petl.report.write import write_comparison, write_report
from tests.browser import chromium
from tests.browser.chromium import Tab, tab
from tests.browser.conftest import EVIL
from tests.report.made import many

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]

PHONE = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True, "device_scale_factor": 2}
ROWS = """() => [...document.querySelectorAll("#certificates tbody tr")].filter((row) => row.checkVisibility())
  .map((row) => row.cells[0].textContent)"""
STYLE = "(element, name) => getComputedStyle(element)[name]"


@pytest.fixture(scope="module")
def desk(browser: Browser, report: Path) -> Iterator[Tab]:
    """Return the report of a run, opened from disk in a desktop-sized window; opened only once, as this is slow."""
    with tab(browser, report, permissions=["clipboard-read", "clipboard-write"]) as opened:
        opened.draw()
        yield opened


def column(page: Page, number: int) -> list[str]:
    rows = page.locator("#certificates tbody tr:visible")
    return rows.locator(f":nth-child({number + 1})").all_inner_texts()


def test_report_opens_from_disk_and_draws_every_figure(desk: Tab, report: Path) -> None:
    page = desk.page
    assert page.locator(".plot").count() >= 9
    assert page.title() == "tiny"
    assert page.locator("#details h3").inner_text() == "one"
    for name in ("two", "multilabel"):
        page.get_by_role("button", name="Next task").click()
        page.wait_for_function(f"() => document.querySelector('#details h3')?.textContent === '{name}'")
        desk.draw()
    page.get_by_role("button", name="one", exact=True).first.click()
    page.wait_for_function("() => document.querySelector('#details h3').textContent === 'one'")
    assert page.locator("#task").evaluate("element => element === document.activeElement")
    desk.draw()
    assert page.locator("#details").get_by_text(EVIL).count() >= 1
    assert page.title() == "tiny", "a label that is a script is never executed"
    assert {Path(url.split("?")[0][7:]).parent for url in desk.asked if not url.startswith("data:")} <= {
        report.parent,
        report.parent / "tasks",
    }
    assert all(url.startswith(("file://", "data:")) for url in desk.asked), "nothing is loaded over a network"


def test_tables_sort_by_click_and_keyboard_and_figures_have_numbers(desk: Tab) -> None:
    page = desk.page
    heads = page.locator("#certificates thead th")
    sizes = [heads.all_inner_texts().index(name) for name in ("parameters", "task")]
    head = heads.nth(sizes[0])
    assert head.get_attribute("aria-sort") == "none"
    head.get_by_role("button").click()
    rising = [int(text.replace(",", "")) for text in column(page, sizes[0])]
    assert rising == sorted(rising)
    assert head.get_attribute("aria-sort") == "ascending"
    page.keyboard.press("Enter")
    assert [int(text.replace(",", "")) for text in column(page, sizes[0])] == rising[::-1]
    assert head.get_attribute("aria-sort") == "descending"
    heads.nth(sizes[1]).get_by_role("button").focus()
    page.keyboard.press("Space")
    assert heads.nth(sizes[1]).get_attribute("aria-sort") == "ascending"
    assert head.get_attribute("aria-sort") == "none"
    desk.draw()
    figures = page.locator("figure")
    for number in range(figures.count()):
        figure = figures.nth(number)
        figure.get_by_role("button", name="Numbers").click()
        assert figure.locator("tbody tr").count() >= 1, figure.locator("figcaption").inner_text()
    matrix = page.locator("figure", has=page.locator('[data-figure="matrix"]'))
    assert matrix.locator("tbody tr").nth(0).locator("td").all_inner_texts()[1:] == ["", ""]


def test_command_is_copied_with_and_without_clipboard_api(desk: Tab) -> None:
    page, command = desk.page, desk.page.locator("#verify").inner_text()
    page.get_by_role("button", name="Copy").click()
    page.get_by_role("button", name="Copied").wait_for()
    assert page.evaluate("navigator.clipboard.readText()") == command
    page.evaluate("navigator.clipboard.writeText('another')")
    page.evaluate("Object.defineProperty(navigator, 'clipboard', { value: undefined, configurable: true })")
    page.evaluate("document.getElementById('news').textContent = ''")
    page.locator("[data-copy]").click()
    page.wait_for_function("() => document.getElementById('news').textContent === 'The command was copied.'")
    page.evaluate("delete navigator.clipboard")
    assert page.evaluate("navigator.clipboard.readText()") == command


def test_controls_are_reachable_by_keyboard_with_visible_focus(desk: Tab) -> None:
    page = desk.page
    desk.draw()
    start = "() => { document.body.tabIndex = -1; document.body.focus(); document.body.removeAttribute('tabindex'); }"
    page.evaluate(start)
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to the content"
    assert page.evaluate("document.activeElement.getBoundingClientRect().left") >= 0
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == "content"
    page.evaluate(
        """() => {
          globalThis.left = new Set([...document.querySelectorAll("button, select, summary, a[href], [tabindex='0']")]
            .filter((one) => !one.disabled && one.checkVisibility()));
          document.addEventListener("focusin", ({ target }) => {
            const { outlineStyle, outlineWidth } = getComputedStyle(target);
            if (outlineStyle !== "none" && parseFloat(outlineWidth) >= 2) globalThis.left.delete(target);
          });
        }"""
    )
    page.evaluate(start)
    for _ in range(page.evaluate("globalThis.left.size") + 3):
        page.keyboard.press("Tab")
    assert page.evaluate("[...globalThis.left].map((one) => one.outerHTML)") == []
    levels = [int(tag[1]) for tag in page.evaluate("[...document.querySelectorAll('h1,h2,h3')].map((h) => h.tagName)")]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    for role in ("banner", "navigation", "main", "contentinfo"):
        assert page.get_by_role(role).count() == 1, role
    assert page.locator(".plot:not([role=img]), .plot[aria-label='']").count() == 0
    assert page.locator("table:not(:has(caption)), th:not([scope])").count() == 0


def test_theme_follows_the_system_until_the_button_is_used(browser: Browser, report: Path) -> None:
    with tab(browser, report, color_scheme="dark", reduced_motion="reduce") as opened:
        page = opened.page
        button = page.get_by_role("button", name="Dark page")
        dark = page.locator("body").evaluate(STYLE, "backgroundColor")
        assert button.get_attribute("aria-pressed") == "true"
        opened.draw()
        text = "document.querySelector('.plot .xtick text').style.fill"
        pale = page.evaluate(text)
        assert opened.axe() == []
        page.emulate_media(color_scheme="light")
        light = page.locator("body").evaluate(STYLE, "backgroundColor")
        assert light != dark
        page.wait_for_function(f"() => {text} !== '{pale}'")
        button.click()
        assert page.locator("body").evaluate(STYLE, "backgroundColor") == dark
        page.reload()
        assert page.locator("body").evaluate(STYLE, "backgroundColor") == dark, "the choice is remembered"
        button.click()
        assert page.locator("body").evaluate(STYLE, "backgroundColor") == light
        assert page.locator("html").evaluate(STYLE, "scrollBehavior") == "auto", (
            "nothing is animated if reduced motion is requested"
        )


def test_phone_layout_scrolls_only_vertically(browser: Browser, report: Path) -> None:
    with tab(browser, report, **PHONE) as opened:
        opened.draw()
        assert opened.page.evaluate("document.documentElement.scrollWidth") == 390
        shown = "[...document.querySelectorAll('button, select')].filter((one) => one.checkVisibility())"
        small = f"{shown}.filter((one) => one.getBoundingClientRect().height < 24)"
        assert opened.page.evaluate(f"{small}.map((one) => one.outerHTML)") == []
        assert opened.axe() == []


def test_thousand_tasks_are_paged_and_printed_completely(
    browser: Browser, learned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Only the details of the first task are written, because writing a thousand files takes long.
    monkeypatch.setattr(write, "_begins_with", lambda path, line: path.name != "000000.js")
    file = write_report(tmp_path, many(read_facts(learned), 1000))
    assert file.stat().st_size < 20 * 10**6
    with tab(browser, file, color_scheme="dark") as opened:
        page = opened.page
        pager = page.locator("#certificates .pager")
        assert len(page.evaluate(ROWS)) == 50
        assert pager.locator("span").inner_text() == "rows 1 to 50 of 1000"
        assert pager.get_by_role("button", name="Previous page").is_disabled()
        pager.get_by_role("button", name="Next page").click()
        assert page.evaluate(ROWS)[0] == "t0050"
        pager.get_by_role("button", name="Last page").click()
        assert page.evaluate(ROWS)[-1] == "t0999"
        assert pager.get_by_role("button", name="Next page").is_disabled()
        page.locator("#certificates thead button").first.click()
        page.locator("#certificates thead button").first.click()
        assert page.evaluate(ROWS)[0] == "t0999"
        assert pager.locator("span").inner_text() == "rows 1 to 50 of 1000"
        opened.draw()
        page.emulate_media(media="print")
        page.wait_for_function("() => document.querySelector('.plot .xtick text').style.fill === 'rgb(0, 0, 0)'")
        assert len(page.evaluate(ROWS)) == 1000
        assert page.locator("nav:visible, select:visible, .pager:visible, .tools:visible").count() == 0
        assert page.locator("body").evaluate(STYLE, "backgroundColor") == "rgb(255, 255, 255)"
        widths = page.evaluate(
            "[...document.querySelectorAll('.plot .main-svg')].map((svg) => svg.width.baseVal.value)"
        )
        assert set(widths) == {680}, "the width of A4 between its margins"
        page.emulate_media(media="screen")
        page.wait_for_function("() => document.querySelector('.plot .main-svg').width.baseVal.value > 680")


def test_long_run_builds_rows_and_details_on_demand(browser: Browser, learned: Path, tmp_path: Path) -> None:
    count = MAX_ROWS + 200
    file = write_report(tmp_path, many(read_facts(learned), count))
    with tab(browser, file) as opened:
        page = opened.page
        pager = page.locator("#certificates .pager")
        in_document = "document.querySelectorAll('#certificates tbody tr').length"
        assert pager.locator("span").inner_text() == f"rows 1 to 50 of {count}"
        pager.get_by_role("button", name="Last page").click()
        assert page.evaluate(ROWS)[-1] == f"t{count - 1:04}"
        assert page.evaluate(in_document) == 50
        head = page.locator("#certificates thead th").first
        head.get_by_role("button").click()
        head.get_by_role("button").click()
        assert head.get_attribute("aria-sort") == "descending"
        assert page.evaluate(ROWS) == [f"t{number:04}" for number in range(count - 1, count - 51, -1)]
        row = page.locator("#certificates tbody tr").first
        assert row.locator("td").first.get_attribute("class") == "good"
        assert row.locator("th").get_attribute("scope") == "row"
        row.get_by_role("button").click()
        for name in (f"t{count - 1:04}", f"t{count - 2:04}"):
            page.wait_for_function(f"() => document.querySelector('#details h3')?.textContent === '{name}'")
            assert page.locator("#details").get_by_text(EVIL).count() >= 1
            page.get_by_role("button", name="Previous task").click()
        asked = {url.split("/tasks/")[1].split("?")[0] for url in opened.asked if "/tasks/" in url}
        assert asked == {"000000.js", f"{(count - 1) // TOGETHER * TOGETHER:06}.js"}
        opened.draw()
        bars = page.locator("figure", has=page.locator("[data-figure=each]"))
        assert f"of the {count:,} tasks" in bars.locator(".words").inner_text()
        bars.get_by_role("button", name="Numbers").click()
        assert bars.locator(".numbers tbody tr").count() == -(-count // tasks_of_a_bar(count))
        assert opened.axe() == []
        page.emulate_media(media="print")
        assert len(page.evaluate(ROWS)) == 50
        assert page.locator("#certificates .paper").inner_text() == (
            f"Only the rows shown on the page are printed; the table has {count:,} in all."
        )


def test_browser_without_decompression_shows_a_message(browser: Browser, learned: Path, tmp_path: Path) -> None:
    file = write_report(tmp_path, many(read_facts(learned), MAX_TASKS + 1))
    with tab(browser, file, first="delete globalThis.DecompressionStream;") as opened:
        opened.page.get_by_text("This browser cannot unpack the details").wait_for()


def test_comparison_page_works_like_a_report(browser: Browser, comparison: Path) -> None:
    with tab(browser, comparison) as opened:
        opened.draw()
        assert opened.page.locator(".plot").count() >= 4
        assert opened.axe() == []
        assert opened.page.title().count(" vs. ") == 1


def test_comparison_fits_into_1280_pixels(browser: Browser, learned: Path, tmp_path: Path) -> None:
    facts = read_facts(learned)
    whole = ["houlsby-bottleneck-64", "lora_rank_8_alpha_16_on_query_and_value", "runs/august/prefix-30", "a", "b"]
    runs = [dataclasses.replace(facts, name=name) for name in whole]
    words = "houlsby: bottleneck on attention (64), bottleneck on ffn (64); lora: lowrank on query (8), lowrank on value (8)"
    links = (task.link.model_copy(update={"bank": words}) for task in facts.tasks[:2])
    tasks = tuple(dataclasses.replace(task, link=link) for task, link in zip(facts.tasks, links, strict=False))
    runs.append(dataclasses.replace(facts, name="two tasks alone", tasks=tasks))
    with tab(browser, write_comparison(tmp_path, runs), viewport={"width": 1280, "height": 800}) as opened:
        boxes = opened.page.locator(".wide")
        for number in range(boxes.count()):
            box = boxes.nth(number)
            assert box.evaluate("box => box.scrollWidth - box.clientWidth") == 0, box.get_attribute("aria-label")
            heights = box.evaluate("box => [...box.querySelectorAll('tbody tr')].map((row) => row.clientHeight)")
            assert max(heights) < 100, "no row takes more than four lines"


def test_browser_tests_are_skipped_unless_a_browser_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CHROMIUM", raising=False)
    monkeypatch.delenv(chromium.REQUIRED, raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt-get install chromium"):
        chromium.program()
    monkeypatch.setenv(chromium.REQUIRED, "required")
    with pytest.raises(pytest.fail.Exception, match="forbids skipping"):
        chromium.program()
