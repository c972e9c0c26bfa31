"""docs/quickstart.ipynb: it runs in a fresh kernel, and what is stored is what it gives."""

import html
import importlib.util
import json
import re
import subprocess
import sys

import pytest

import manyfit
from manyfit.command import repository_root

nbformat = pytest.importorskip("nbformat", reason="the development packages are not installed")
pytest.importorskip("ipykernel", reason="the development packages are not installed")

DOCS = repository_root() / "docs"
NOTEBOOK = DOCS / "quickstart.ipynb"
OF_A_MACHINE = re.compile(r"/(home|root|tmp|work|Users|var|private|mnt|opt)/")


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell):
    texts = [output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout"]
    return "".join(texts)


@pytest.fixture(scope="module")
def stored():
    return nbformat.read(NOTEBOOK, as_version=4)


def test_the_stored_outputs_are_of_this_code_and_of_no_machine(stored):
    spec = importlib.util.spec_from_file_location("execute_notebook", DOCS / "execute_notebook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    nbformat.validate(stored)
    assert stored.metadata["outputs_of"] == module.fingerprint(stored), "run docs/execute_notebook.py"
    cells = code_cells(stored)
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    assert not [output for cell in cells for output in cell.outputs if output.output_type == "error"]
    text = json.dumps(
        [
            [{**output, "data": None} if "image/png" in output.get("data", {}) else output for output in cell.outputs]
            for cell in cells
        ]
    )
    assert not OF_A_MACHINE.findall(text)
    assert NOTEBOOK.stat().st_size < 1_000_000


@pytest.mark.slow
def test_the_notebook_runs(stored, tmp_path):
    out = tmp_path / "out.ipynb"
    done = subprocess.run(
        [sys.executable, str(DOCS / "execute_notebook.py"), "--as-it-is", "--out", str(out)],
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr
    now = nbformat.read(out, as_version=4)
    cells = code_cells(now)
    assert [cell.source for cell in cells] == [cell.source for cell in code_cells(stored)]
    for cell, before in zip(cells, code_cells(stored), strict=True):
        kinds = [[o.output_type for o in one.outputs if o.get("name") != "stderr"] for one in (cell, before)]
        assert kinds[0] == kinds[1], cell.source
        assert "error" not in kinds[0]
    # One replica and two give the same losses, in the notebook as it runs and as it is stored.
    for notebook in (now, stored):
        [losses] = [printed(cell) for cell in code_cells(notebook) if 'two.data["epochs"]' in cell.source]
        rows = [line.split() for line in losses.splitlines()]
        assert len(rows) == 3 and all(float(one) == pytest.approx(float(two), abs=2e-4) for _, one, two in rows)
    shown = [
        output.data["text/html"]
        for cell in cells
        for output in cell.outputs
        if "data" in output and "text/html" in output.data
    ]
    table, frame = shown
    assert "val accuracy" in table
    page = html.unescape(re.search(r'srcdoc="([^"]*)"', frame)[1])
    assert page.startswith("<!doctype html>") and "Plotly" in page and "2 replicas" in page
    assert "Did you mean 'optimizer.learning_rate'?" in printed(cells[-1])


@pytest.mark.browser
def test_a_comparison_draws_itself_inside_a_notebook(chromium, made_runs, tmp_path):
    for name, replicas, speed in (("one", 1, 500.0), ("four", 4, 1800.0)):
        made_runs.make_run(tmp_path / name, replicas=replicas, speed=speed)
    shown = manyfit.compare(tmp_path / "one", tmp_path / "four")
    cell = shown._repr_html_()
    assert len(cell) < 3_000_000  # Plotly alone has 5 MB
    (tmp_path / "notebook.html").write_text(f"<!doctype html><style>* {{color: red !important}}</style>{cell}")
    tab = chromium.new_page()
    said, asked = [], []
    tab.on("console", lambda message: said.append(message.text))
    tab.on("pageerror", lambda error: said.append(str(error)))
    tab.on("request", lambda request: asked.append(request.url))
    tab.goto((tmp_path / "notebook.html").as_uri())
    page = tab.frame_locator("iframe")
    page.locator(".chart[data-drawn]").first.wait_for()
    assert page.locator("#verdict").inner_text() == shown.verdict
    assert page.locator("#verdict").evaluate("node => getComputedStyle(node).color") != "rgb(255, 0, 0)"
    assert said == [] and [url for url in asked if url.startswith("http")] == []
    tab.close()
