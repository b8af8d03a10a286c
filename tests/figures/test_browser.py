"""The report in a real browser, opened from disk: axe-core's rules, the panel, the keyboard, narrow screens, print."""

import shutil
from importlib.resources import files
from typing import Any

import pytest
from playwright.sync_api import Page, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian's package chromium)")

NARROW, WIDE = 375, 1280
"""Widths in CSS pixels, of a telephone and of a laptop."""
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]

BROKEN_RULES = """async tags => {
    const options = { runOnly: { type: "tag", values: tags }, resultTypes: ["violations", "incomplete"] };
    const said = found => found.map(rule => rule.id + ": " + rule.nodes.map(node => node.html.slice(0, 120)).join(" "));
    const found = await axe.run({ exclude: ["svg[role=img] > *"] }, options);
    return [said(found.violations), found.incomplete.map(rule => rule.id), found.passes.length];
}"""

# axe-core leaves the contrast open where a text lies in a drawing or is cut off by a scrolled box, so what is inside of
# drawings is left to this.
FAINT_TEXTS = """() => {
    const parse = colour => colour.match(/[0-9.]+/g).map(Number);
    const luminance = ([r, g, b]) => {
        const [x, y, z] = [r, g, b].map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
        return 0.2126 * x + 0.7152 * y + 0.0722 * z;
    };
    const ground = element => {
        for (; element; element = element.parentElement) {
            const [r, g, b, alpha] = parse(getComputedStyle(element).backgroundColor);
            if (alpha !== 0) return [r, g, b];
        }
        return [255, 255, 255];
    };
    const texts = [...document.querySelectorAll("body *")].filter(element =>
        element.checkVisibility() && !["SCRIPT", "STYLE", "OPTION"].includes(element.tagName) &&
        [...element.childNodes].some(node => node.nodeType === Node.TEXT_NODE && node.data.trim()));
    const faint = texts.filter(element => {
        const style = getComputedStyle(element);
        const ink = parse(element.ownerSVGElement ? style.fill : style.color);
        const [low, high] = [luminance(ink), luminance(ground(element))].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05) < 4.5;
    });
    return [faint.map(element => element.outerHTML.slice(0, 120)), texts.length];
}"""

FOCUSABLE = "a[href], select, input, summary, [tabindex='0']"


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.fixture
def visit(browser, report_page):
    """Opens the report, and notes what the console says and what is asked for."""
    contexts = []

    def open_page(width: int = WIDE, scheme: str = "light", unfold: bool = False) -> Page:
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
        contexts.append(context)
        page = context.new_page()
        page.said = []
        page.asked = []
        page.on("console", lambda message: page.said.append(message.text))
        page.on("pageerror", lambda error: page.said.append(str(error)))
        page.on("request", lambda request: page.asked.append(request.url))
        page.goto(report_page.as_uri())
        if unfold:
            page.evaluate("document.querySelectorAll('details').forEach(part => part.open = true)")
        return page

    yield open_page
    for context in contexts:
        context.close()


def shown(page: Page) -> dict[str, str]:
    parts = {name: page.inner_html(f"#panel-{name}") for name in ("curve", "reliability", "margins")}
    return {"words": page.inner_text("#panel-words"), **parts}


def choose(page: Page, control: str, value: str) -> dict[str, str]:
    page.select_option(f"#panel-{control}", value)
    return shown(page)


def slide(page: Page, step: int) -> dict[str, str]:
    """Moves the slider with the keyboard, from the start."""
    page.focus("#panel-step")
    page.keyboard.press("Home")
    for _ in range(step):
        page.keyboard.press("ArrowRight")
    return shown(page)


def differing(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def test_it_opens_from_disk_and_asks_for_nothing_else(visit, report_page):
    page = visit()
    choose(page, "optimizer", "GD")
    assert page.said == []
    assert page.asked == [report_page.as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [NARROW, WIDE])
def test_axe_finds_nothing(visit, width, scheme):
    page = visit(width, scheme, unfold=True)
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    violations, open_questions, passed = page.evaluate(BROKEN_RULES, RULES)
    assert violations == []
    assert set(open_questions) <= {"color-contrast"}
    assert passed > 20
    faint, texts = page.evaluate(FAINT_TEXTS)
    assert faint == []
    assert texts > 500


def test_each_control_of_the_panel_changes_what_is_shown(visit, runs):
    page = visit()
    start = choose(page, "optimizer", "AdamW")
    assert start["words"].startswith("adamw-lr0.001-s0, step 0, train: ECE")
    stepped = slide(page, 20)
    assert stepped["words"].startswith("adamw-lr0.001-s0, step 32, train: ECE")
    assert differing(start, stepped) == {"words", "curve", "reliability", "margins"}
    other_split = choose(page, "split", "test")
    assert other_split["words"].startswith("adamw-lr0.001-s0, step 32, test: ECE")
    assert differing(stepped, other_split) == {"words", "reliability", "margins"}
    other_optimizer = choose(page, "optimizer", "GD")
    assert other_optimizer["words"].startswith("gd-lr0.1-s0, step 32, test: ECE")
    assert differing(other_split, other_optimizer) == {"words", "curve", "reliability", "margins"}
    other_rate = choose(page, "rate", "0.5")
    error = runs["gd-lr0.5-s0"].metric("ece", split="test").loc[32]
    assert other_rate["words"].startswith("gd-lr0.5-s0, step 32, test: ECE ")
    assert float(other_rate["words"].split("ECE ")[1].split(",")[0]) == pytest.approx(error, abs=1e-3)
    assert differing(other_optimizer, other_rate) == {"words", "curve", "reliability", "margins"}
    other_quantity = choose(page, "quantity", "lambda_max")
    assert differing(other_rate, other_quantity) == {"curve"}
    assert "GN sharpness" in other_quantity["curve"]


def test_the_panel_has_the_colours_of_the_figures(visit):
    from figures.style import colour

    page = visit()
    for name, key in (("GD", "gd"), ("AdamW", "adamw")):
        choose(page, "optimizer", name)
        style = page.evaluate("getComputedStyle(document.getElementById('panel')).getPropertyValue('--colour')")
        assert style == colour(key)


def test_the_keyboard_reaches_every_control_and_shows_where_it_is(visit):
    page = visit(unfold=True)
    wanted = page.evaluate(
        "which => { window.wanted = [...document.querySelectorAll(which)]; return wanted.length; }", FOCUSABLE
    )
    assert wanted > 30
    reached: list[int] = []
    unmarked: list[int] = []
    for _ in range(wanted + 5):
        page.keyboard.press("Tab")
        place, marked = page.evaluate(
            "[wanted.indexOf(document.activeElement), getComputedStyle(document.activeElement).outlineStyle !== 'none']"
        )
        if place >= 0:
            reached.append(place)
            unmarked += [] if marked else [place]
    assert sorted(set(reached)) == list(range(wanted))
    # The order of the page: nothing jumps ahead.
    assert reached[:wanted] == list(range(wanted))
    assert unmarked == []


def test_the_keyboard_works_what_it_reaches(visit):
    page = visit()
    before = shown(page)
    page.focus("#panel-optimizer")
    page.keyboard.press("ArrowDown")
    chosen = shown(page)
    assert differing(before, chosen) == {"words", "curve", "reliability", "margins"}
    page.focus("#panel-step")
    page.keyboard.press("End")
    assert ", step 63, " in shown(page)["words"]
    claim = page.locator("details.claim").first
    assert claim.get_attribute("open") is None
    claim.locator("summary").first.focus()
    page.keyboard.press("Enter")
    assert claim.get_attribute("open") is not None


def test_a_link_to_a_claim_unfolds_it(visit):
    page = visit()
    link = page.locator("section.verdicts table a").nth(1)
    target = page.locator(str(link.get_attribute("href")))
    assert not target.is_visible()
    link.click()
    target.wait_for(state="visible", timeout=5000)


@pytest.mark.parametrize("width", [320, NARROW])
def test_nothing_scrolls_the_page_sideways_on_a_narrow_screen(visit, width):
    page = visit(width, unfold=True)
    assert page.evaluate("innerWidth") == width
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    # Figures keep a size at which they can be read: they scroll inside their box.
    boxes: list[Any] = page.evaluate(
        "[...document.querySelectorAll('figure > .scroll')].map(box => [box.clientWidth, box.scrollWidth])"
    )
    assert len(boxes) >= 3
    assert all(outer < width < 600 < inner for outer, inner in boxes)


def test_print_unfolds_the_claims_and_leaves_out_what_needs_a_screen(visit):
    page = visit()
    table = page.locator("details.claim table").first
    height = "element => element.getBoundingClientRect().height"
    assert not table.is_visible()
    page.emulate_media(media="print")
    assert table.evaluate(height) > 20
    assert table.is_visible()
    assert not page.locator("#panel").is_visible()
    assert not page.locator("nav").is_visible()
