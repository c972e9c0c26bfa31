"""`src/compare.py --wandb` against a loopback W&B: a saved view and a report, or what to do where there is none."""

import importlib.util
import json
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]


def load(name):
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, TESTS / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


@pytest.fixture
def runs(tmp_path):
    """Two finished runs on two GPUs, tracked offline."""
    folders = []
    for name, replicas in (("one", 1), ("two", 2)):
        folder = tmp_path / name
        load("made_runs").make_run(
            folder,
            replicas=replicas,
            speed=1000.0 * replicas,
            tracker={
                "run_id": f"id{name}",
                "path": f"manyfit/id{name}",
                "sync_command": "wandb sync",
                "mode": "offline",
            },
        )
        (folder / "wandb" / f"offline-run-2026-id{name}").mkdir(parents=True)
        folders.append(folder)
    return folders


def panels(spec):
    return {
        panel["config"].get("chartTitle"): panel["config"]
        for section in spec["section"]["panelBankConfig"]["sections"]
        for panel in section["panels"]
    }


@pytest.mark.slow
def test_a_view_and_a_report_are_saved_and_replaced(script, runs, tmp_path):
    arguments = (*runs, "--html", tmp_path / "page.html", "--wandb")
    with load("wandb_views_stub").WandbViewsStub(["idone", "idtwo"]) as server:
        done = script("compare.py", *arguments, cwd=tmp_path, **server.environment)
        assert done.returncode == 0, done.stderr
        assert server.unknown == []
        assert {view["type"] for view in server.views.values()} == {"project-view", "runs"}
        view, report = server.spec("project-view"), server.spec("runs")
        shown = panels(view)
        assert shown["Validation accuracy"]["metrics"] == ["epoch/val_accuracy"]
        assert shown["GPU utilisation"]["metrics"] == ["system/gpu.0.gpu", "system/gpu.1.gpu"]
        assert shown["Images/s of each epoch"]["xAxis"] == "epoch/epoch"
        [chosen] = view["section"]["runSets"][0]["filters"]["filters"]
        assert (chosen["key"]["name"], chosen["value"]) == ("name", ["idone", "idtwo"])
        kinds = [block["type"] for block in report["blocks"]]
        assert "markdown-block" in kinds and kinds.count("panel-grid") == 4
        assert "| two |" in next(block["content"] for block in report["blocks"] if block["type"] == "markdown-block")
        assert f"{server.url}/tester/manyfit" in done.stdout and "W&B report: " in done.stdout
        again = script("compare.py", *arguments, cwd=tmp_path, **server.environment)
        assert again.returncode == 0 and len(server.views) == 2  # replaced, not added
        last = server.spec("project-view")
    written = json.loads((tmp_path / "page.wandb.json").read_text())
    assert written["workspace"] == last and written["saved"]["report_id"] in server.views


@pytest.mark.slow
def test_runs_that_are_not_there_yet_are_named_with_the_line_that_uploads_them(script, runs, tmp_path):
    with load("wandb_views_stub").WandbViewsStub(["idone"]) as server:
        done = script("compare.py", *runs, "--wandb", cwd=tmp_path, **server.environment)
        assert len(server.views) == 2
    assert "1 of 2 runs are not in W&B yet" in done.stdout
    assert f"wandb sync {runs[1] / 'wandb' / 'offline-run-2026-idtwo'}" in done.stdout
    assert f"{runs[0] / 'wandb'}" not in done.stdout
    with load("wandb_views_stub").WandbViewsStub([]) as server:
        done = script("compare.py", *runs, "--wandb", cwd=tmp_path, **server.environment)
        assert server.views == {}
    assert "W&B has none of these runs in tester/manyfit yet" in done.stdout
    assert "compare.py" in done.stdout.splitlines()[-1] and done.returncode == 0


@pytest.mark.parametrize(
    ("environment", "said"),
    [
        ({"WANDB_MODE": "offline"}, "W&B is offline here"),
        ({"WANDB_MODE": ""}, "No W&B key is set"),
    ],
)
def test_without_a_server_the_specification_is_written_and_the_way_on_is_said(
    script, runs, tmp_path, environment, said
):
    done = script("compare.py", *runs, "--wandb", cwd=tmp_path, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert said in done.stdout and "Once online (`wandb login`), run:" in done.stdout
    assert lines[-2].startswith("  wandb sync ") and all(str(run) in lines[-2] for run in runs)
    prefix = "  WANDB_MODE=online python" if "offline" in said else "  python"
    assert lines[-1].startswith(prefix) and lines[-1].endswith(" --wandb")
    written = json.loads((tmp_path / "comparison.wandb.json").read_text())
    assert "GPU memory" in panels(written["workspace"]) and written["report"]["blocks"] and written["saved"] == {}


@pytest.mark.slow
def test_a_server_that_fails_costs_nothing(script, runs, tmp_path):
    server = load("wandb_views_stub").WandbViewsStub(["idone", "idtwo"])
    server.fails = lambda method, what: 400 if what.startswith("upsert") or what.startswith("Upsert") else None
    with server:
        done = script("compare.py", *runs, "--wandb", cwd=tmp_path, **server.environment)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "The W&B view and report could not be saved (" in done.stdout
    assert (tmp_path / "comparison.wandb.json").exists()


def test_runs_without_wandb_have_nothing_to_show_there(script, tmp_path):
    folders = [load("made_runs").make_run(tmp_path / name) or tmp_path / name for name in ("a", "b")]
    done = script("compare.py", *folders, "--wandb", cwd=tmp_path)
    assert done.returncode == 0 and "None of these runs was tracked with W&B" in done.stdout
