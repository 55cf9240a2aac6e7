"""A report in a real Chromium: it draws, asks for nothing, answers mouse and keyboard, and fits any screen."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tuner import cli
from tuner.hardware.device import INTERPRETER, Environment

pytestmark = pytest.mark.long
pytest.importorskip("vl_convert", reason="vl-convert is not installed (pip install 'triton-tuner[report]')")
CHARTS = ("overview", "landscape", "race", "ranges", "speed", "coverage", "failures", "clock", "power", "regressions")
POINTS = "#landscape-chart svg g.mark-symbol.role-mark path[aria-roledescription=circle]"


@pytest.fixture(scope="module")
def written(database, interpreted, make_database, tmp_path_factory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    before = make_database(folder / "before.db", slower=0.9)
    older = make_database(folder / "older.db", environment=Environment("3.6.0", "2.11.0", "", "", ""))
    both = folder / "both.db"
    shutil.copy(database, both)
    make_database(both, device=INTERPRETER, environment=Environment("3.6.0", "2.13.0", "cpu", "", "3.11.7"))
    pages = {"gpu": (database, "--against", before), "interpreter": (interpreted,), "both": (both,)}
    pages["older"] = (database, "--against", older)
    for name, (source, *options) in pages.items():
        with pytest.raises(SystemExit) as ended:
            cli.main(["report", "--db", str(source), "--out", str(folder / f"{name}.html"), *map(str, options)])
        assert ended.value.code == 0
    written = {name: folder / f"{name}.html" for name in pages}
    written["thinned"] = folder / "thinned.html"
    whole = written["interpreter"].read_text(encoding="utf-8")
    written["thinned"].write_text(whole.replace('"shown":null', '"shown":[20000,25025,20000]'), encoding="utf-8")
    return written


@pytest.fixture
def visit(browser, written):
    """Open a page, and at the end hold it to: nothing asked for, an empty console, nothing run from data."""
    opened = []

    def visit(name: str = "gpu", *, width: int = 1200, scheme: str = "light"):
        page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page.set_default_timeout(10_000)
        asked, said = [], []
        page.on("request", lambda request: asked.append(request.url))
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto(written[name].as_uri())
        page.wait_for_selector("html[data-ready=yes]")
        opened.append((page, asked, said, written[name].as_uri()))
        return page

    yield visit
    for page, asked, said, address in opened:
        title = page.title()
        page.close()
        assert [url for url in asked if not url.startswith(("data:", "blob:"))] == [address]
        assert said == []
        assert title.endswith("triton-tuner report")


def chosen(page) -> str:
    return page.locator("#landscape h2 .of").inner_text()


def points(page) -> list[str]:
    return page.locator(POINTS).evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")


def test_every_chart_draws_and_text_of_the_database_stays_text(visit):
    page = visit()
    for name in CHARTS:
        drawn = page.locator(f"#{name}-chart svg g.role-mark > *, #{name}-chart canvas")
        assert drawn.count() > 0, name
    hostile = "<!--</script ></script><script>document.title = 'owned'</script>"
    assert hostile in page.locator("#failed").inner_text()
    assert hostile in page.locator("#history-table").inner_text()
    assert hostile in page.locator("#runs").inner_text()
    assert page.locator("img").count() == 0
    assert page.locator("#interpreter").is_hidden()
    assert page.locator("#thinned").is_hidden()


def test_a_click_on_a_row_of_the_overview_chooses_its_problem_everywhere(visit):
    page = visit()
    first, before = chosen(page), points(page)
    assert len(before) == 6  # seven trials of the exhaustive run and the race, of which one failed
    row = page.locator("#overview-chart svg g.role-axis-label text", has_text="1x6144x4096")
    chart, label = page.locator("#overview-chart svg.marks").bounding_box(), row.bounding_box()
    page.mouse.click(chart["x"] + chart["width"] * 0.6, label["y"] + label["height"] / 2)
    page.wait_for_function("document.querySelector('#landscape h2 .of').textContent.includes('1x6144x4096')")
    page.wait_for_function("count => document.querySelectorAll(count[0]).length === count[1]", arg=[POINTS, 3])
    assert chosen(page) != first
    assert set(points(page)).isdisjoint(before)
    assert page.locator("#problems option:checked").inner_text() == chosen(page)


def tab_to(page, words: str) -> None:
    """Press Tab until the element that is named or says that has the focus."""
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate(
            "words => [document.activeElement.id, document.activeElement.textContent].includes(words)", words
        ):
            return
    raise AssertionError(f"Tab does not come to {words}")


def drawn_values(page, chart: str) -> str:
    return page.evaluate("id => document.getElementById(id).querySelector('svg.marks').textContent", f"{chart}-chart")


def wait_until_drawn_anew(page, chart: str, before: str) -> None:
    page.wait_for_function(
        "given => document.getElementById(given[0]).querySelector('svg.marks').textContent !== given[1]",
        arg=[f"{chart}-chart", before],
    )


def test_the_keyboard_alone_chooses_problems_parameters_and_families(visit):
    page = visit()
    tab_to(page, "Skip to the overview")
    tab_to(page, "problems")
    before = chosen(page)
    page.keyboard.press("ArrowDown")
    assert chosen(page) != before
    tab_to(page, "All winners as a table")
    page.keyboard.press("Enter")
    last = page.locator("#winners tbody tr button").last.inner_text()
    tab_to(page, last)
    page.keyboard.press("Enter")
    assert chosen(page) == last
    tab_to(page, "parameters")
    before = drawn_values(page, "landscape")
    page.keyboard.press("ArrowDown")
    wait_until_drawn_anew(page, "landscape", before)
    tab_to(page, "family")
    tab_to(page, "runs")


@pytest.mark.parametrize("width", [390, 800, 1700])
def test_the_page_fits_the_width_of_its_window(visit, width):
    page = visit(width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    for name in CHARTS:
        drawn = page.locator(f"#{name}-chart svg.marks, #{name}-chart canvas.marks").bounding_box()
        place = page.locator(f"#{name}-chart").bounding_box()
        assert drawn["width"] <= place["width"] + 1, name


def test_a_window_that_becomes_narrow_is_drawn_again(visit):
    page = visit(width=1200)
    page.set_viewport_size({"width": 420, "height": 800})
    page.wait_for_function(
        "document.querySelector('#overview-chart svg').clientWidth <= 420"
        " && document.querySelector('#coverage-chart svg').clientWidth <= 420"
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 420


def test_light_and_dark_follow_the_reader_also_while_the_page_is_open(visit):
    page = visit(scheme="dark")
    paper = "getComputedStyle(document.body).backgroundColor"
    label = "document.querySelector('#overview-chart svg g.role-axis-label text').getAttribute('fill')"
    dark = (page.evaluate(paper), page.evaluate(label))
    page.emulate_media(color_scheme="light")
    page.wait_for_function(f"document.documentElement.dataset.ready === 'yes' && {label} !== '{dark[1]}'")
    light = (page.evaluate(paper), page.evaluate(label))
    assert (dark[0], light[0]) == ("rgb(20, 25, 31)", "rgb(255, 255, 255)")
    assert light[1] != dark[1]


def test_what_the_interpreter_measured_is_said_and_what_is_not_there_is_not_drawn(visit):
    page = visit("interpreter")
    assert "These times say nothing about any GPU" in page.locator("#interpreter").inner_text()
    assert page.locator("#card-none").is_visible()
    assert page.locator("#card-some").is_hidden()
    assert page.locator("#regressions").is_hidden()
    assert "relative to torch's own product on the CPU, measured" in page.locator("#overview").inner_text()


def test_the_page_says_what_its_words_mean(visit):
    page = visit()
    page.locator("summary", has_text="What the words mean").click()
    words = page.locator(".words").inner_text()
    for said in ("MxNxK", "nn, nt, tn, tt say how", "default config is what", "protocol is the set of rules"):
        assert said in words
    assert "relative to torch's own library (cuBLAS or hipBLASLt), measured" in page.locator("#overview").inner_text()


def test_a_narrow_page_cuts_no_usual_problem_and_no_title(visit):
    page = visit(width=390)
    for name in ("overview", "regressions"):
        labels = page.locator(f"#{name}-chart svg g.role-axis-label text").all_text_contents()
        assert "256x6144x4096 bfloat16 nt" in labels, name
        title = page.locator(f"#{name}-chart svg g.role-axis-title", has_text="times as fast").bounding_box()
        menu = page.locator(f"#{name}-chart summary").bounding_box()
        assert title["x"] + title["width"] <= menu["x"], name


@pytest.mark.parametrize(("scheme", "ink"), [("light", "#1f2933"), ("dark", "#e4e7eb")])
def test_what_is_as_fast_as_torch_is_outlined_on_the_band_of_its_family(visit, scheme, ink):
    page = visit(scheme=scheme)
    drawn = page.locator("#coverage-chart svg path[aria-roledescription=circle]")
    assert drawn.count() == 5
    assert {drawn.nth(number).get_attribute("stroke") for number in range(5)} == {ink}


def test_devices_and_versions_are_chosen_apart(visit):
    page = visit("both")
    assert page.locator("#places option").all_text_contents() == [
        "NVIDIA H200 · Triton 3.7.1 · torch 2.13.0 · driver 580.1",
        "Triton interpreter · Triton 3.6.0 · torch 2.13.0 · driver none",
    ]
    assert page.locator("#device").inner_text() == "NVIDIA H200"
    assert page.locator("#interpreter").is_hidden()
    page.select_option("#places", "1")
    page.wait_for_function("document.getElementById('device').textContent === 'Triton interpreter'")
    assert page.locator("#interpreter").is_visible()
    assert page.locator("#card-none").is_visible()


def test_a_page_of_which_nothing_can_be_compared_says_why(visit):
    page = visit("older")
    said = page.locator("#regressions-said").inner_text()
    assert "Nothing can be compared: what both hold was measured under other versions" in said
    assert "0 are the same" not in said
    assert page.locator("#regressions-chart").is_hidden()


def test_a_page_that_holds_a_sample_says_so(visit):
    page = visit("thinned")
    assert "Of 25,025 trials this page holds 20,000" in page.locator("#thinned").inner_text()
