"""The report in a real browser: on a phone, on a screen, in the dark, and on paper.

The screenshots and the PDF stay in pytest's temporary folder, which `pytest --basetemp=DIR` names.
"""
from __future__ import annotations

import io
import os
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from PIL import Image

from analysis.report import cli
from conftest import MAKERS, Spec

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER = next((path for path in map(shutil.which, BROWSERS) if path), None)
if BROWSER is None:
    pytest.skip("no browser here: .ci/setup --browser installs chromium", allow_module_level=True)
ADDRESSES, _ = resource.getrlimit(resource.RLIMIT_AS)
if ADDRESSES != resource.RLIM_INFINITY and ADDRESSES < 1 << 37:
    pytest.skip(f"a browser reserves more addresses than `ulimit -v` leaves here, "
                f"{ADDRESSES >> 30} GiB", allow_module_level=True)
sync_api = pytest.importorskip("playwright.sync_api",
                               reason="no playwright: .ci/setup --only-python installs it")

pytestmark = pytest.mark.xdist_group("report_browser")  # one worker makes the report for all
SCREENS = {"phone": {"viewport": {"width": 390, "height": 844}, "is_mobile": True,
                     "has_touch": True, "device_scale_factor": 2},
           "wide": {"viewport": {"width": 1280, "height": 900}}}
PAPER_PX = {"width": 688, "height": 1000}  # A4 less its margins
SMALLEST_PX = {"screen": 14, "print": 10}
LONG = "a-name-without-any-place-to-break-it-" * 8

# Elements that hold text themselves and are shown: [what, font size, colour, background].
TEXTS = """() => {
  const shown = [];
  for (const element of document.querySelectorAll('body *')) {
    const own = [...element.childNodes].some(
      node => node.nodeType === Node.TEXT_NODE && node.textContent.trim());
    if (!own || !element.checkVisibility() || !element.getClientRects().length) continue;
    if (element.closest('thead') && getComputedStyle(element.closest('thead')).clipPath !== 'none')
      continue;
    let behind = element, background = 'rgba(0, 0, 0, 0)';
    while (behind && background === 'rgba(0, 0, 0, 0)') {
      background = getComputedStyle(behind).backgroundColor;
      behind = behind.parentElement;
    }
    if (background === 'rgba(0, 0, 0, 0)') background = 'rgb(255, 255, 255)';
    const style = getComputedStyle(element);
    shown.push([element.tagName + '.' + element.className + ': ' + element.textContent.slice(0, 40),
                parseFloat(style.fontSize), style.color, background]);
  }
  return shown;
}"""
# What reaches beyond the page, outside the boxes that scroll by themselves.
OUTSIDE = """() => [...document.querySelectorAll('body *')].filter(element => {
    const box = element.getBoundingClientRect();
    return box.width && box.right > document.documentElement.clientWidth + 0.5
      && !element.closest('.scroll, pre') && !element.closest('thead');
  }).map(element => element.tagName + '.' + element.className)"""
DECODED = """async () => {
  const images = [...document.images];
  await Promise.all(images.map(image => image.decode()));
  return images.map(image => [image.naturalWidth, image.getBoundingClientRect().height]);
}"""


@pytest.fixture(scope="module")
def report(tmp_path_factory) -> Path:
    """A report of synthetic results, with names that are hard to fit."""
    root = tmp_path_factory.mktemp("report") / "results"
    for spec_id, make in MAKERS.items():
        if spec_id.startswith("dlora/"):
            make(root)
    spec = Spec(root, "dlora/fig14")
    for technique in ("slora", "dlora"):
        spec.add(technique, 0, {"workload.mapping.skewness": 4},
                 {"latency_per_token_mean_s": 1.0, "latency_per_token_p90_s": 2.0})
    spec.write(title=LONG, hardware=LONG, trace=LONG)
    assert cli.main(["--results", str(root)]) == 0
    return root / "report.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[sync_api.Browser]:
    alone = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium's sandbox refuses root
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=BROWSER, args=alone)
        yield started
        started.close()


def opened(browser: sync_api.Browser, report: Path, **settings) -> tuple[sync_api.Page, list[str]]:
    """The report in a page of its own, and what the page requested."""
    page = browser.new_context(**settings).new_page()
    requested: list[str] = []
    page.on("request", lambda request: requested.append(request.url))
    page.goto(report.as_uri())
    return page, requested


def luminance(colour: str) -> float:
    """Relative luminance of 'rgb(r, g, b)', as WCAG 2 has it."""
    parts = [int(part) / 255 for part in colour[colour.index("(") + 1:-1].split(",")[:3]]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
                        for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(a: str, b: str) -> float:
    light, dark = sorted((luminance(a), luminance(b)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def assert_something_is_on(screenshot: bytes) -> None:
    image = Image.open(io.BytesIO(screenshot)).convert("RGB")
    colours = sorted(image.getcolors(image.width * image.height), reverse=True)
    assert len(colours) > 100, "hardly a colour: is the page blank?"
    assert colours[0][0] < 0.95 * image.width * image.height


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("screen", SCREENS)
def test_on_a_screen(browser, report, tmp_path, screen, scheme):
    page, requested = opened(browser, report, color_scheme=scheme, **SCREENS[screen])
    size = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
    assert size[0] <= size[1] == SCREENS[screen]["viewport"]["width"]
    assert page.evaluate(OUTSIDE) == []
    images = page.evaluate(DECODED)
    assert len(images) >= 12 and all(width > 500 for width, _ in images)
    texts = page.evaluate(TEXTS)
    assert len(texts) > 1000
    small = [what for what, size_px, _, _ in texts if size_px < SMALLEST_PX["screen"]]
    faint = {(what, *pair) for what, _, *pair in texts if contrast(*pair) < 4.5}
    assert not small and not faint
    for name, target in (("top", "header"), ("claims", "#claims-dlora"),
                         ("figure", "#figure-dlora-fig10"), ("open", "#claims-muxserve")):
        page.locator(target).evaluate("element => element.scrollIntoView()")
        path = tmp_path / f"{screen}-{scheme}-{name}.png"
        assert_something_is_on(page.screenshot(path=path))
    assert requested == [report.as_uri()]
    page.context.close()


def test_dark_is_dark(browser, report):
    page, _ = opened(browser, report, color_scheme="dark")
    assert luminance(page.evaluate("getComputedStyle(document.body).backgroundColor")) < 0.05
    page.context.close()


def test_a_phone_reads_cards_and_scrolls_figures_in_their_box(browser, report):
    page, _ = opened(browser, report, **SCREENS["phone"])
    card = page.locator("#claim-dlora-fig10-merged-mean")
    boxes = [card.locator(cell).bounding_box()
             for cell in (".verdict", ".claim", ".value >> nth=0")]
    assert boxes[0]["y"] < boxes[1]["y"] < boxes[2]["y"]
    assert boxes[1]["width"] > 340
    figure = page.locator("#figure-dlora-fig10 .scroll")
    wide, box = figure.evaluate("element => [element.scrollWidth, element.clientWidth]")
    assert wide >= 640 > 390 > box, "text in the picture would be too small to read"
    page.context.close()


def test_links_lead_to_claims_and_figures(browser, report):
    page, _ = opened(browser, report, **SCREENS["wide"])
    page.locator("#contents a", has_text="fig12_published").click()
    assert page.evaluate("location.hash") == "#figure-dlora-fig12_published"
    page.locator("#figure-dlora-fig10 .tests a", has_text="fig10-merged-mean").click()
    top = page.locator("#claim-dlora-fig10-merged-mean").bounding_box()["y"]
    assert 0 <= top < 900
    page.context.close()


def test_it_needs_no_script(browser, report):
    shots = []
    for allowed in (True, False):
        page, _ = opened(browser, report, java_script_enabled=allowed, **SCREENS["wide"])
        shots.append(page.screenshot())
        page.context.close()
    assert shots[0] == shots[1]


def test_on_paper(browser, report, tmp_path):
    page, requested = opened(browser, report, viewport=PAPER_PX)
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    pdf = (tmp_path / "report.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and pdf.count(b"/Type /Page\n") > 10
    page.emulate_media(media="print")
    assert page.evaluate(OUTSIDE) == []
    assert page.evaluate("document.documentElement.scrollWidth") <= PAPER_PX["width"]
    heights = [height for _, height in page.evaluate(DECODED)]
    assert heights and max(heights) < PAPER_PX["height"], "a figure would be cut"
    assert page.locator(".scroll").first.evaluate("e => getComputedStyle(e).breakInside") == "avoid"
    assert not page.locator("article details").first.is_visible()
    assert page.locator(".rules dd").first.is_visible()
    texts = page.evaluate(TEXTS)
    assert min(size_px for _, size_px, _, _ in texts) >= SMALLEST_PX["print"]
    assert min(contrast(*pair) for _, _, *pair in texts) >= 4.5
    assert_something_is_on(page.screenshot(path=tmp_path / "paper.png"))
    assert requested == [report.as_uri()]
    page.context.close()
