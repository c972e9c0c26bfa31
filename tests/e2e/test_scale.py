"""`src/scale.py` in a process of its own: what it refuses, one small study that is started twice, and its page."""

import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SMALL = (
    *("data=synthetic", "data.num_train=192", "data.num_validation=24", "data.image_size=10", "data.num_classes=3"),
    *("model=small_cnn", "model.filters=2", "model.units=4", "strategy.device=cpu", "batch.global_batch_size=8"),
    *("epochs=2", "steps_per_execution=4"),
)


def test_help_says_what_it_does_without_tensorflow(script):
    done = script("scale.py", "--help")
    assert done.returncode == 0 and "mode=strong|weak|both" in done.stdout and "hydra.run.dir=PATH" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["replicas=[1,2]", "epoch=3"], "Did you mean 'epochs'?"),
        (["replicas=[1,3]", "strategy.device=cpu", "batch.global_batch_size=8"], "batch.global_batch_size=6 or 9."),
        (["replicas=[1,2]", "--repeats", "2"], "--repeats is no flag"),
        (["workers=[1,2]", "replicas=[1,2]"], "counts the replicas of one process"),
    ],
)
def test_what_cannot_be_had_is_refused(script, arguments, said, tmp_path):
    done = script("scale.py", *arguments, f"hydra.run.dir={tmp_path / 'study'}")
    assert done.returncode == 2
    assert said in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "study").exists()


def load(name):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, Path(__file__).resolve().parents[1] / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@dataclass(frozen=True)
class Study:
    """A finished study, tracked by a W&B on loopback."""

    folder: Path
    arguments: tuple
    done: subprocess.CompletedProcess
    server: Any


@pytest.fixture(scope="module")
def study(script, tmp_path_factory):
    folder = tmp_path_factory.mktemp("scale") / "study"
    arguments = ("replicas=[1,2]", *SMALL, "wandb=true", f"hydra.run.dir={folder}")
    with load("wandb_views_stub").WandbViewsStub([]) as server:
        yield Study(folder, arguments, script("scale.py", *arguments, **server.environment), server)


@pytest.mark.slow
def test_a_study_from_nothing_to_its_page_and_going_on_with_it(script, study):
    folder, done = study.folder, study.done
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[-1] == str(folder / "scaling.json")
    assert "measures no GPU" in " ".join(lines)
    written = json.loads((folder / "scaling.json").read_text())
    assert written["measures_gpus"] is False and written["recommendation"]["num_replicas"] is None
    one, two = written["points"]
    assert (one["num_replicas"], two["num_replicas"], two["mode"]) == (1, 2, "strong")
    assert two["speed_up"] == pytest.approx(two["images_per_second"] / one["images_per_second"])
    assert two["efficiency"] == pytest.approx(two["speed_up"] / 2)
    assert sum(two["lost"].values()) == pytest.approx(1 - two["efficiency"])
    [equal] = written["equality"]
    assert equal["verdict"] == "equal" and equal["largest_difference"] < 1e-4
    records = [json.loads(path.read_text()) for path in (folder / "runs").glob("*/run/record.json")]
    assert sorted(record["strategy"]["num_replicas"] for record in records) == [1, 2]
    assert {record["batch"]["global_batch_size"] for record in records} == {8}
    again = script("scale.py", *study.arguments, **study.server.environment)
    assert again.stdout.count("kept from an earlier start") == 2
    assert json.loads((folder / "scaling.json").read_text())["points"] == written["points"]


@pytest.mark.slow
def test_the_runs_are_one_group_in_wandb_and_a_view_and_a_report_show_it(study):
    server = study.server
    assert {run.facts.get("groupName") for run in server.runs.values()} == {"scale-study"} and len(server.runs) == 2
    assert all(run.exit_code == 0 and len(run.values("epoch/val_accuracy")) == 2 for run in server.runs.values())
    [chosen] = server.spec("project-view")["section"]["runSets"][0]["filters"]["filters"]
    assert (chosen["key"]["name"], chosen["value"]) == ("group", "scale-study")
    [text] = [block["content"] for block in server.spec("runs")["blocks"] if block["type"] == "markdown-block"]
    assert "| replicas | batch | images/s | speed-up |" in text and "measures no GPU" in text
    assert f"W&B view: {server.url}/tester/" in study.done.stdout
    assert len(server.views) == 2


@pytest.mark.slow
def test_a_study_over_workers_trains_on_as_many_processes_with_the_same_result(script, tmp_path):
    folder = tmp_path / "study"
    more = ("tracker=none", "probe=false", "gigabits=100", f"hydra.run.dir={folder}")
    done = script("scale.py", "workers=[1,2]", *SMALL, *more)
    assert (done.returncode, done.stderr) == (0, "")
    assert "measure no GPU and no network" in " ".join(done.stdout.split()) and "2 workers" in done.stdout
    written = json.loads((folder / "scaling.json").read_text())
    assert [(one["num_workers"], one["num_replicas"]) for one in written["points"]] == [(1, 1), (2, 2)]
    [equal] = written["equality"]
    assert equal["verdict"] == "equal" and equal["largest_difference"] < 1e-4
    records = [json.loads(path.read_text()) for path in (folder / "runs").glob("*/run/record.json")]
    assert sorted(len(record["strategy"]["workers"]) for record in records) == [1, 2]
    assert {record["strategy"]["name"] for record in records} == {"multi_worker"}  # the same engine at every point
    assert written["outlook"]["PREDICTION"] == "not measured" and len(written["outlook"]["machines"]) == 3


@pytest.mark.browser
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_opens_from_disk_and_draws_its_charts(study, width):
    sync_api = pytest.importorskip("playwright.sync_api")
    chromium = next((path for path in ("/usr/bin/chromium", "/usr/bin/chromium-browser") if os.path.exists(path)), None)
    if chromium is None:
        pytest.skip("no Chromium on this machine")
    assert study.done.returncode == 0, study.done.stderr
    said = []
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": width, "height": 900})
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.goto((study.folder / "report.html").as_uri())
        charts = page.locator(".chart")
        for index in range(charts.count()):
            charts.nth(index).scroll_into_view_if_needed()
        sync_api.expect(page.locator(".chart:not([data-drawn])")).to_have_count(0)
        titles = page.locator("figcaption").all_inner_texts()
        assert {"Speed-up against replicas", "Scaling efficiency", "Validation accuracy"} <= set(titles)
        assert "measures no GPU" in page.locator("#verdict").inner_text()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        browser.close()
    assert said == []
