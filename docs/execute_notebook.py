"""Execute docs/quickstart.ipynb and keep its outputs: `python docs/execute_notebook.py [--out FILE]`.

Needs the development packages. The comparison's page is kept as a picture, which every viewer of notebooks shows (as it
is where there is no Chromium); in a notebook that runs it is the page itself. Paths of this machine are left out.
"""

import argparse
import base64
import hashlib
import html
import json
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from manyfit.report.images import BROWSERS

NOTEBOOK = Path(__file__).with_name("quickstart.ipynb")
SECONDS = 300
FRAME = re.compile(r'<iframe [^>]*srcdoc="([^"]*)"></iframe>', re.DOTALL)


def fingerprint(notebook: nbformat.NotebookNode) -> str:
    """Of the code that the outputs came from: another one than the code's own says that they are out of date."""
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return hashlib.sha256(json.dumps(code).encode()).hexdigest()


def executed(notebook: nbformat.NotebookNode, outputs: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a fresh kernel; its runs go to `outputs`.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell raised.
    """
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count, cell.metadata = [], None, {}
    where = {"metadata": {"path": str(outputs.parent)}}
    client = NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=where, record_timing=False)
    client.coalesce_streams = True
    client.execute(env={**os.environ, "MANYFIT_OUTPUTS": str(outputs)})
    notebook.metadata["outputs_of"] = fingerprint(notebook)
    return notebook


def portable(notebook: nbformat.NotebookNode, outputs: Path) -> nbformat.NotebookNode:
    """The notebook without paths of this machine and TensorFlow's own log lines, and with pages as pictures."""
    for cell in notebook.cells:
        shown = [output for output in cell.get("outputs", []) if output.get("name") != "stderr"]
        if cell.cell_type == "code":
            cell.outputs = shown
        for output in shown:
            data = output.get("data", {})
            if (found := FRAME.search(data.get("text/html", ""))) and (picture := _picture(html.unescape(found[1]))):
                del data["text/html"]
                data["image/png"] = base64.b64encode(picture).decode("ascii")
    return nbformat.reads(nbformat.writes(notebook).replace(json.dumps(str(outputs))[1:-1], "outputs"), 4)


def _picture(page: str) -> bytes | None:
    path = next((found for name in BROWSERS if (found := shutil.which(name))), None)
    if path is None:
        return None
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 900, "height": 1500})
        tab.set_content(page)
        tab.locator(".chart[data-drawn]").nth(1).wait_for()
        picture = tab.screenshot()
        browser.close()
    return picture


def main() -> int:
    """Execute and write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=NOTEBOOK, metavar="FILE")
    parser.add_argument("--as-it-is", action="store_true", help="keep the outputs as the kernel gave them")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="quickstart-") as folder:
        outputs = Path(folder).resolve() / "outputs"
        notebook = executed(nbformat.read(NOTEBOOK, as_version=4), outputs)
        nbformat.write(notebook if arguments.as_it_is else portable(notebook, outputs), arguments.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
