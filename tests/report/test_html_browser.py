"""Pages in a real browser: Chromium without a window draws, sorts, filters and changes the theme."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.html_pages import HOSTILE, INSTANCE, mixed_plan, searched
from helpers.pace import with_slow
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement
from zoo import NETS

import poet
from poet.problem.solution import SolveOptions
from poet.report.diff import diff_page, diff_plans
from poet.report.html.plan_page import plan_page
from poet.report.html.what_if_page import what_if_page
from poet.whatif.run import what_if

CHROMIUM, DRIVER = shutil.which("chromium"), shutil.which("chromedriver")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        CHROMIUM is None or DRIVER is None, reason="no browser here: apt-get install chromium chromium-driver"
    ),
]
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--hide-scrollbars",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage",
)  # fmt: skip
WAIT_SECONDS = 60.0
PHONE, DESKTOP, PICTURE = (375, 812), (1280, 900), (1100, 1500)


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[webdriver.Chrome]:
    options = webdriver.ChromeOptions()
    options.binary_location = str(CHROMIUM)
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('browser')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(DRIVER)))
    driver.set_page_load_timeout(WAIT_SECONDS)
    yield driver
    driver.quit()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of each kind, as files; the plan is of a model with a hostile name."""
    folder = tmp_path_factory.mktemp("pages")
    plan = searched(mixed_plan(HOSTILE), by=HOSTILE)
    sweep = what_if(
        INSTANCE,
        ram="1KiB,min..keep:3",
        deadline="1.05x,none",
        options=SolveOptions(time_limit_seconds=2.0),
        jobs=1,
        cache=None,
    )
    texts = {
        "plan": plan_page(plan, command=HOSTILE),
        "diff": diff_page(diff_plans(mixed_plan(), plan, names=("a.poet", HOSTILE))),
        "sweep": what_if_page(sweep),
    }
    for name, text in texts.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: folder / f"{name}.html" for name in texts}


def _until(holds: Callable[[], Any], what: str) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < end, f"waited in vain: {what}"
        time.sleep(0.05)


def _open(
    browser: webdriver.Chrome, page: Path, *, size: tuple[int, int] = DESKTOP, scheme: str = "light"
) -> None:
    """Show a page and wait until it is drawn."""
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    preferred = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", preferred)
    _console(browser)
    browser.get(page.as_uri())
    _until(lambda: _js(browser, "document.documentElement.dataset.ready === 'yes'"), "the page is drawn")


def _console(browser: webdriver.Chrome) -> list[dict[str, Any]]:
    """What was written to it since it was asked last."""
    entries: list[dict[str, Any]] = browser.get_log("browser")  # type: ignore[no-untyped-call]
    return entries


def _js(browser: webdriver.Chrome, expression: str) -> Any:
    return browser.execute_script(f"return {expression}")


def _quiet(browser: webdriver.Chrome) -> None:
    """The console holds nothing, and no name from a model has run."""
    assert _console(browser) == []
    assert _js(browser, "window.owned === undefined && document.images.length === 0")


def _table(browser: webdriver.Chrome, name: str) -> WebElement:
    return browser.find_element(By.CSS_SELECTOR, f'[data-table="{name}"]')


def _cells(table: WebElement, column: int) -> list[str]:
    return [cell.text for cell in table.find_elements(By.CSS_SELECTOR, f"tbody td:nth-child({column})")]


def _names(table: WebElement) -> list[str]:
    return [item.text for item in table.find_elements(By.CSS_SELECTOR, "tbody code")]


@pytest.mark.parametrize("scheme", with_slow(["light", "dark"], {"dark"}))
@pytest.mark.parametrize(
    "size", [PHONE, pytest.param(DESKTOP, marks=pytest.mark.slow)], ids=["phone", "desktop"]
)
@pytest.mark.parametrize("name", ["plan", "diff", "sweep"])
def test_pages_are_drawn_and_fit(
    browser: webdriver.Chrome, pages: dict[str, Path], name: str, size: tuple[int, int], scheme: str
) -> None:
    _open(browser, pages[name], size=size, scheme=scheme)
    undrawn = (
        "Array.from(document.querySelectorAll('[data-chart]')).filter(e => !e.querySelector('svg')).length"
    )
    assert _js(browser, undrawn) == 0
    assert _js(browser, "document.querySelectorAll('[data-chart]').length") >= 3
    assert _js(browser, "document.documentElement.scrollWidth") <= size[0], "the page scrolls sideways"
    _js(browser, "document.querySelectorAll('details').forEach((item) => { item.open = true; })")
    hidden = "Array.from(document.querySelectorAll('.scroll')).filter(e => e.scrollWidth > e.clientWidth + 1)"
    assert _js(browser, f"{hidden}.map(e => e.innerText.slice(0, 80))") == [], "columns are out of sight"
    cut = "Array.from(document.querySelectorAll('.plot text')).filter(e => e.getBoundingClientRect().right"
    assert _js(browser, f"{cut} > innerWidth).map(e => e.textContent)") == [], "a chart's text is cut off"
    paper = _js(browser, "getComputedStyle(document.body).backgroundColor")
    assert (paper == "rgb(255, 255, 255)") == (scheme == "light")
    _quiet(browser)


def test_the_theme_changes(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    _open(browser, pages["plan"])
    paper = "getComputedStyle(document.body).backgroundColor"
    bar = "getComputedStyle(document.querySelector('#chart-parts .mark-rect path')).fill"
    before = (_js(browser, paper), _js(browser, bar))
    button = browser.find_element(By.ID, "theme")
    button.click()
    after = (_js(browser, paper), _js(browser, bar))
    assert all(old != new for old, new in zip(before, after, strict=True)), "the charts change as well"
    button.click()
    assert (_js(browser, paper), _js(browser, bar)) == before
    _quiet(browser)


def test_tables_filter(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    _open(browser, pages["plan"])
    table = _table(browser, "tensors")
    every = _cells(table, 3)
    assert "kept" in every
    decision = table.find_element(By.CSS_SELECTOR, 'select[aria-label="decision"]')
    decision.find_element(By.XPATH, "option[.='paged']").click()
    paged = _cells(table, 3)
    assert 0 < len(paged) < len(every)
    assert all("paged" in words for words in paged)
    assert "filtered from" in table.find_element(By.CLASS_NAME, "tally").text
    decision.find_element(By.XPATH, "option[1]").click()
    search = table.find_element(By.CSS_SELECTOR, 'input[type="search"]')
    search.send_keys("no tensor has this name")
    assert _cells(table, 3) == []
    _quiet(browser)


def test_tables_sort(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    _open(browser, pages["plan"])
    table = _table(browser, "tensors")
    heading = next(
        item for item in table.find_elements(By.CSS_SELECTOR, "th button") if item.text == "tensor"
    )
    heading.click()
    ascending = _names(table)
    heading.click()
    assert _names(table) != ascending
    assert sorted(_names(table)) == sorted(ascending)
    assert table.find_element(By.CSS_SELECTOR, "th[aria-sort]").get_attribute("aria-sort") == "descending"
    _quiet(browser)


def test_a_phone_tells_what_each_figure_is(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    """Where a row stands as a block, its cells bear their columns' names, and it can still be sorted."""
    _open(browser, pages["plan"], size=PHONE)
    table = _table(browser, "tensors")
    cell = table.find_element(By.CSS_SELECTOR, 'tbody td[data-label="size"]')
    shown = "getComputedStyle(arguments[0], '::before').content"
    assert browser.execute_script(f"return {shown}", cell) == '"size"'
    before = _names(table)
    table.find_element(By.XPATH, ".//th/button[.='tensor']").click()
    assert sorted(_names(table)) == sorted(before)
    assert _names(table) != before
    figures = browser.find_elements(By.CSS_SELECTOR, "#comparison td[data-label='energy']")
    assert figures
    _quiet(browser)


def test_the_timeline_tells_each_moment(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    _open(browser, pages["plan"])
    now = browser.find_element(By.CSS_SELECTOR, "[data-now]")
    at_peak = now.text
    trace = mixed_plan().trace
    assert f"of {trace.peak_ram_bytes / 1024:.4g} KiB" in at_peak
    scrub = "document.querySelector('[data-scrub]')"
    _js(browser, f"({scrub}.value = 0, {scrub}.dispatchEvent(new Event('input')))")
    assert "step 1 of" in now.text
    buffers = browser.find_elements(By.CSS_SELECTOR, "[data-buffers] li .name")
    assert "b_x" in [item.text for item in buffers]
    browser.find_element(By.CSS_SELECTOR, '[data-axis="step"]').click()
    assert "steps" in browser.find_element(By.CSS_SELECTOR, "[data-axis-name]").text
    browser.find_element(By.CSS_SELECTOR, "[data-peak]").click()
    assert now.text == at_peak
    _quiet(browser)


def test_points_show_their_values(browser: webdriver.Chrome, pages: dict[str, Path]) -> None:
    _open(browser, pages["sweep"])
    point = browser.find_element(
        By.CSS_SELECTOR, "#chart-answer-0 .mark-symbol path[aria-roledescription='point']"
    )
    webdriver.ActionChains(browser).move_to_element(point).perform()
    tip = browser.find_element(By.ID, "vg-tooltip-element")
    _until(lambda: "RAM budget" in tip.text and "gap" in tip.text, "the values of a point")
    status = _table(browser, "points").find_element(By.CSS_SELECTOR, 'select[aria-label="status"]')
    status.find_element(By.XPATH, "option[.='infeasible']").click()
    assert set(_cells(_table(browser, "points"), 4)) == {"infeasible"}
    _quiet(browser)


@pytest.mark.slow
def test_pictures_of_the_pages_for_the_docs(browser: webdriver.Chrome, tmp_path: Path) -> None:
    """`make pictures` keeps them in docs/images; they are of a plan and a sweep as people make them."""
    folder = Path(os.environ.get("POET_PICTURES", str(tmp_path)))
    folder.mkdir(parents=True, exist_ok=True)
    options = SolveOptions(time_limit_seconds=5.0)
    torch.manual_seed(0)
    net = NETS["resnet18"].small
    planned = poet.plan(
        net.build(),
        net.inputs(8),
        device="rpi4b",
        limits=poet.Limits(ram_budget_bytes=600 << 10),
        options=options,
    )
    plan = tmp_path / "resnet18.poet"
    planned.save(plan)
    sweep = what_if(
        plan, device="rpi4b,rpi-zero-2w,pixel", ram="400KiB..keep:6", options=options, jobs=1, cache=None
    )
    command = "poet explain resnet18.poet --html plan.html"
    for name, text in (("plan", plan_page(planned.plan, command=command)), ("what-if", what_if_page(sweep))):
        page = tmp_path / f"{name}.html"
        page.write_text(text, encoding="utf-8")
        _open(browser, page, size=PICTURE)
        assert browser.get_screenshot_as_file(str(folder / f"{name}-page.png"))
        assert (folder / f"{name}-page.png").stat().st_size > 20_000
