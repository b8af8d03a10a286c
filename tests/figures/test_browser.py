"""The report in a real browser, opened from disk."""

import re
import shutil
import subprocess

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian's package chromium)")

PROBE = """
<script>
const words = () => document.getElementById("panel-words").textContent;
const change = (name, value) => {
  const control = document.getElementById("panel-" + name);
  control.value = value;
  control.dispatchEvent(new Event("input"));
  const drawn = name => document.getElementById("panel-" + name).innerHTML;
  return [words(), drawn("curve"), drawn("margins")];
};
const seen = {
  start: change("optimizer", "AdamW"),
  step: change("step", 20),
  split: change("split", "test"),
  optimizer: change("optimizer", "GD"),
  rate: change("rate", "0.5"),
  quantity: change("quantity", "lambda_max"),
};
const report = {
  seen,
  overflow: document.documentElement.scrollWidth - window.innerWidth,
  requests: performance.getEntriesByType("resource").map(entry => entry.name),
  unlabelled: [...document.querySelectorAll("select, input")].filter(control => !control.labels.length).length,
  reachable: [...document.querySelectorAll("a, select, input, summary, .scroll")].filter(e => e.tabIndex < 0).length,
};
const result = document.createElement("pre");
result.id = "probe";
result.textContent = JSON.stringify(report);
document.body.append(result);
</script>
"""


def browse(path, profile, width=1200):
    """The document after its scripts ran, and what the console said."""
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={profile}",
        f"--window-size={width},900",
        "--dump-dom",
        path.as_uri(),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


@pytest.fixture(scope="module")
def page(report_page, tmp_path_factory):
    """The report, with a script at its end that works the controls and writes down what it sees."""
    path = tmp_path_factory.mktemp("browser") / "report.html"
    text = report_page.read_text(encoding="utf-8")
    path.write_text(text.replace("</body>", PROBE + "</body>"), encoding="utf-8")
    return path


def probe(document):
    import html
    import json

    return json.loads(html.unescape(re.search(r'<pre id="probe">(.*?)</pre>', document, re.DOTALL).group(1)))


def test_the_page_opens_from_disk_and_its_controls_change_what_is_shown(page, runs, tmp_path):
    document, console = browse(page, tmp_path)
    assert console == []
    report = probe(document)
    assert report["requests"] == []
    assert report["unlabelled"] == 0
    assert report["reachable"] == 0
    words = {name: seen[0] for name, seen in report["seen"].items()}
    assert words["start"].startswith("adamw-lr0.001-s0, step 0, train: ECE")
    assert words["step"].startswith("adamw-lr0.001-s0, step 32, train: ECE")
    assert words["split"].startswith("adamw-lr0.001-s0, step 32, test: ECE")
    assert words["optimizer"].startswith("gd-lr0.1-s0, step 32, test: ECE")
    ece = runs["gd-lr0.5-s0"].metric("ece", split="test").loc[32]
    assert words["rate"].startswith(f"gd-lr0.5-s0, step 32, test: ECE {ece:.2g}"[:-1])
    assert report["seen"]["quantity"][1] != report["seen"]["rate"][1]
    assert report["seen"]["split"][2] != report["seen"]["step"][2]


def test_nothing_overflows_a_narrow_screen(page, tmp_path):
    document, _ = browse(page, tmp_path, width=500)
    assert probe(document)["overflow"] <= 0
