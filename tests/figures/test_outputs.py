"""What figures.draw and figures.report leave on disk."""

import json
import re
import xml.etree.ElementTree
from html.parser import HTMLParser

import matplotlib as mpl
import numpy as np
import pytest

import figures
from analysis.plugins import SettingError
from analysis.summary import audit_errors, run_table
from figures.style import OPTIMIZER_COLOURS
from tests.figures.study import AUDIT, LABEL, STEPS, logits, sharpness


@pytest.fixture(scope="module")
def page(report_page):
    return report_page.read_text(encoding="utf-8")


def test_draw_writes_pdf_png_and_json(runs, tmp_path):
    path = figures.draw("dynamics", runs.select(optimizer="gd"), tmp_path)
    assert path == tmp_path / "dynamics-gd.pdf"
    assert path.read_bytes().startswith(b"%PDF")
    assert path.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    facts = json.loads(path.with_suffix(".json").read_text())
    assert facts["runs"] == [run.id for run in runs.select(optimizer="gd")]
    assert facts["commits"] == [{"id": "0123abc", "dirty": False}]
    assert facts["versions"] == [{"numpy": np.__version__}]
    assert facts["figure"] == {"name": "dynamics", "points": 2000}
    assert facts["scale"] == f"{LABEL}, 40 training samples, MLP 8 tanh"
    assert facts["data"][0]["n_train"] == 40


def test_draw_of_several_answers_with_the_folder(runs, tmp_path):
    assert figures.draw("dynamics", runs, tmp_path) == tmp_path
    assert len(list(tmp_path.glob("*.pdf"))) == 3


def test_fonts_in_the_pdf_are_truetype(runs, tmp_path):
    text = figures.draw("dynamics", runs.select(optimizer="bulk_sgd"), tmp_path).read_bytes()
    assert b"/CIDFontType2" in text
    assert b"/Type3" not in text


def test_drawing_leaves_the_callers_matplotlib_alone(runs, tmp_path):
    before, backend = dict(mpl.rcParams), mpl.get_backend()
    figures.draw("dynamics", runs.select(optimizer="bulk_sgd"), tmp_path)
    assert dict(mpl.rcParams) == before
    assert mpl.get_backend() == backend


def test_unknown_kinds_and_empty_runs_are_clear_errors(runs, tmp_path):
    with pytest.raises(SettingError, match=r"'dynamix'.*accepted: .*dynamics"):
        figures.draw("dynamix", runs, tmp_path)
    with pytest.raises(SettingError, match="none to draw"):
        figures.draw("dynamics", [], tmp_path)
    with pytest.raises(SettingError, match="none to report"):
        figures.report([], tmp_path)


def test_each_optimizer_has_a_colour_of_its_own():
    assert len(set(OPTIMIZER_COLOURS.values())) == len(OPTIMIZER_COLOURS) == 6


class Page(HTMLParser):
    """Collects tags, identifiers, references and the cells of the tables."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids, self.references, self.cells = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        table = dict(attrs)
        self.tags.append((tag, table))
        self.ids += [table["id"]] if "id" in table else []
        self.references += [table[k] for k in ("href", "xlink:href", "src", "aria-labelledby") if k in table]
        if tag == "td":
            self.cells.append("")

    def handle_data(self, data):
        if self.cells and self.lasttag == "td":
            self.cells[-1] += data


def test_the_page_needs_no_network(page):
    for reference in Page(page).references:
        assert reference.startswith(("#", "data:")) or not re.match(r"(https?:)?//", reference)
    assert "@import" not in page
    assert not re.search(r"url\((?!#)", page)


def test_the_page_says_how_far_the_tracked_sharpness_was_from_a_search_anew(page, runs):
    for run in runs:
        errors = audit_errors(run)
        # At step 11 nothing was tracked.
        assert list(errors.index) == [10]
        assert errors.iloc[0] == pytest.approx(1 / AUDIT - 1)
    assert f"searched anew at {len(runs)} random steps, where the recorded value was off by 5.0e-04 at most" in page


def test_the_page_has_landmarks_and_unique_identifiers_and_its_links_lead_somewhere(page):
    parsed = Page(page)
    tags = [tag for tag, _ in parsed.tags]
    assert tags.count("main") == tags.count("header") == tags.count("nav") == tags.count("h1") == 1
    assert ("html", {"lang": "en"}) in parsed.tags
    assert len(parsed.ids) == len(set(parsed.ids))
    ids = set(parsed.ids)
    assert all(r.removeprefix("#") in ids for r in parsed.references if r != "data:,")


def test_figures_in_the_page_have_text_alternatives_and_are_well_formed(page):
    found = re.findall(r"<svg.*?</svg>", page, flags=re.DOTALL)
    assert len(found) >= 3
    for text in found:
        root = xml.etree.ElementTree.fromstring(text)
        assert root.get("role") == "img"
        assert len(root.get("aria-label")) > (10 if root.get("id", "").startswith("panel-") else 60)


def test_the_page_escapes_what_records_say(page):
    assert LABEL not in page
    assert "digits &lt;small&gt; &amp; noisy" in page


def test_the_page_shows_the_table_of_runs(page, runs):
    cells = [cell.strip() for cell in Page(page).cells]
    for row in run_table(runs).to_dict("records"):
        at = cells.index(row["run"])
        assert cells[at + 1] == f"{row['peak_ece']:.3g}"
        assert cells[at + 3] == f"{row['peak_sharpness']:.3g}"
    assert "descriptive" in page


def test_the_page_names_versions_commit_and_runs(page, runs):
    assert f"numpy {np.__version__}" in page
    assert "0123abc" in page
    assert all(run.id in page for run in runs)


def slow_ece(probabilities, labels, bins=15):
    total = 0.0
    for b in range(bins):
        members = [
            (p.max(), p.argmax() == y)
            for p, y in zip(probabilities, labels, strict=True)
            if b / bins < p.max() <= (b + 1) / bins
        ]
        if members:
            total += abs(sum(c for c, _ in members) - sum(hit for _, hit in members)) / len(labels)
    return total


def test_the_summary_equals_numbers_counted_by_hand(runs):
    table = run_table(runs).set_index("run")
    row = table.loc["gd-lr0.5-s1"]
    z, y = logits(0.5, 1, "train")
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    errors = np.array([slow_ece(one, y) for one in p])
    assert row["peak_ece"] == pytest.approx(errors.max(), rel=1e-5)
    assert row["peak_ece_step"] == errors.argmax()
    steps = np.arange(0, STEPS, 2)
    peaks = np.array([sharpness(0.5, 1, step) for step in steps])
    assert row["peak_sharpness"] == pytest.approx(peaks.max())
    assert row["peak_sharpness_step"] == steps[-1]
    assert row["pearson_r"] == pytest.approx(np.corrcoef(errors[steps], peaks)[0, 1], rel=1e-5)
    assert row["edge"] == 4
    assert np.isnan(table.loc["adamw-lr0.001-s0", "edge"])
    assert row["accuracy_train"] == np.mean(z[-1].argmax(-1) == y)


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_text_has_the_contrast_that_wcag_asks_for_in_both_themes(page):
    blocks = re.findall(r":root \{(.*?)\}", page, flags=re.DOTALL)
    assert len(blocks) == 2
    for block in blocks:
        colours = dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", block))
        for ink in ("ink", "faint", "link", "good", "bad", "open"):
            for ground in ("paper", "panel"):
                low, high = sorted(luminance(colours[name]) for name in (ink, ground))
                assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, ground)


def test_the_page_shows_every_verdict_with_its_reason(page, runs):
    from html import escape

    from analysis.verdicts import verify

    rows = re.findall(r'<tr class="(\w+)"><td class="words">(.*?)</td>', page)
    verdicts = verify(runs)
    assert len(rows) == len(verdicts) > 5
    for (outcome, words), verdict in zip(rows, verdicts, strict=True):
        assert outcome == verdict.verdict.lower()
        assert escape(verdict.statement) in words
        assert escape(verdict.reason) in words


def test_the_page_lays_ours_beside_the_papers_table(page):
    assert "ours and the paper" in page
    assert "0.83 ± 0.08" in page
