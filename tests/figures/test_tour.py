"""The notebook runs as it stands, from nothing."""

from pathlib import Path

import pytest

import figures

nbclient = pytest.importorskip("nbclient", reason="needs nbclient and ipykernel, of the extra test")
nbformat = pytest.importorskip("nbformat")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    path = Path(figures.__file__).with_name("tour.ipynb")
    book = nbformat.read(path, as_version=4)
    assert not any(cell.get("outputs") for cell in book.cells), "the notebook is kept without outputs"
    root = str(path.parents[1])
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": root}}).execute()
    return book


def outputs(notebook, word):
    """Outputs of the cell that contains the word, by MIME type."""
    cell = next(cell for cell in notebook.cells if cell.cell_type == "code" and word in cell.source)
    found = {}
    for output in cell.outputs:
        assert output.output_type != "error"
        found |= output.get("data", {"text/plain": output.get("text", "")})
    return found


def test_every_cell_runs_without_an_error(notebook):
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert len(code) > 8
    assert not [o for cell in code for o in cell.outputs if o.output_type == "error"]


def test_runs_and_results_show_as_tables(notebook):
    assert "<table" in outputs(notebook, "Runs.open(folder)\nruns")["text/html"]
    assert "<table" in outputs(notebook, "couple(runs")["text/html"]


def test_plots_appear(notebook):
    for word in ("ECE, train", "bins=bins", "subplots=True", "own.metric"):
        assert "image/png" in outputs(notebook, word)


def test_the_figure_has_its_three_files(notebook):
    assert outputs(notebook, 'figures.draw("phase"')["text/plain"].count("phase-train.") == 3
