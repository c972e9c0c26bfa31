"""Which points a scaling study trains, in what order, what it refuses, keeps and writes."""

import json
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit import scaling_plan
from manyfit.command import repository_root
from manyfit.config import (
    AutoBatchConfig,
    BatchConfig,
    CostConfig,
    RunConfig,
    StrategyConfig,
    TrackerConfig,
    WandbConfig,
)
from manyfit.errors import ConfigError, UserError
from manyfit.scaling import run_scaling, take_words
from manyfit.scaling_plan import make_plan
from manyfit.scaling_report import write_report
from manyfit.schema.augment import StrongAugmentConfig

TRAIN = f"""
import sys
sys.path.insert(0, {str(repository_root() / "src")!r})
from pathlib import Path
from manyfit.record import RunRecord
folder = Path(sys.argv[1])
asked = dict(text.split("=", 1) for text in sys.argv[2:])
count = int(asked["strategy.replicas"])
size = int(asked["batch.global_batch_size"])
if count == int(asked.get("broken", 0)):
    sys.exit("Error: the device is gone.")
if count > int(asked.get("gpus", 99)):
    print("Error: strategy.replicas asks for too many GPUs.\\nGive fewer.", file=sys.stderr)
    sys.exit(2)
folder.mkdir()
(folder / "config.yaml").write_text("precision: {{name: float32}}\\nepochs: 1\\n")
record = RunRecord.create(
    folder,
    batch={{"global_batch_size": size, "per_replica_batch_size": size // count, "gradient_accumulation": 1,
           "steps_per_epoch": 4, "padding_rows": 0}},
    strategy={{"num_replicas": count, "devices": [f"GPU:{{index}}" for index in range(count)]}},
    data={{"num_train": 4 * size, "fingerprint": "f"}},
    best={{"val_accuracy": 0.9}},
    timing={{"total_seconds": 36.0 / count, "startup_seconds": 1.0}},
    throughput={{"images_per_second": 90.0 * count if count > 1 else 100.0}},
)
record.add_epoch({{"epoch": 1, "loss": 1.0, "val_loss": 1.0, "val_accuracy": 0.9, "train_seconds": 1.0}})
record.set_status("finished", exit_code=0)
"""


def command(point, folder):
    return [sys.executable, "-c", TRAIN, str(folder), *point.overrides]


@pytest.fixture(autouse=True)
def _no_gpu(monkeypatch):
    monkeypatch.setattr(scaling_plan, "num_gpus", lambda: None)


def plan(words, overrides=(), **config):
    return make_plan({"replicas": "[1,2,4]", **words}, RunConfig(**config), list(overrides))


def refused(words, overrides=(), **config):
    with pytest.raises(ConfigError) as found:
        plan(words, overrides, **config)
    return str(found.value)


# --- the points -------------------------------------------------------------------------------------------------------


def test_own_words_are_taken_out_of_the_command_line():
    words, rest = take_words(["data=mnist", "replicas=[1,2]", "mode=weak", "repeats=3", "wandb=true", "--help"])
    assert words == {"replicas": "[1,2]", "mode": "weak", "repeats": "3", "wandb": "true"}
    assert rest == ["data=mnist", "--help"]


@pytest.mark.parametrize("text", ["[4,1,2]", "1,2,4", "[1, 2, 4, 4]"])
def test_counts_are_sorted_and_each_is_there_once(text):
    assert plan({"replicas": text}).counts == (1, 2, 4)


@pytest.mark.parametrize(
    ("words", "batch", "sizes"),
    [
        ({}, {}, {("strong", 1): 128, ("strong", 2): 128, ("strong", 4): 128}),
        ({}, {"global_batch_size": 64}, {("strong", 1): 64, ("strong", 2): 64, ("strong", 4): 64}),
        ({"mode": "weak"}, {}, {("weak", 1): 32, ("weak", 2): 64, ("weak", 4): 128}),
        ({"mode": "weak"}, {"per_replica_batch_size": 8}, {("weak", 1): 8, ("weak", 2): 16, ("weak", 4): 32}),
        (
            {"mode": "both"},
            {"global_batch_size": 64},
            {
                **{("strong", 1): 64, ("strong", 2): 64, ("strong", 4): 64},
                **{("weak", 1): 16, ("weak", 2): 32, ("weak", 4): 64},
            },
        ),
    ],
)
def test_strong_keeps_the_batch_of_a_step_and_weak_that_of_a_replica(words, batch, sizes):
    assert plan(words, batch=BatchConfig(**batch)).sizes == sizes


def test_the_largest_count_runs_first_and_every_other_round_backwards():
    found = plan({"repeats": "2"}, ["data=mnist", "seed=5", "cost.price_per_hour=3", "strategy.devices=null"], seed=5)
    points = found.points()
    assert [(count, point.repeat) for count, _, point in points] == [(4, 1), (2, 1), (1, 1), (1, 2), (2, 2), (4, 2)]
    batch = ("batch.per_replica_batch_size=null", "batch.global_batch_size=128")
    assert points[0][2].overrides == ("data=mnist", "probe=true", "strategy.replicas=4", *batch, "seed=5")
    assert points[-1][2].overrides[-1] == "seed=6"


def test_modes_share_the_training_that_both_have():
    found = plan({"mode": "both"}, batch=BatchConfig(global_batch_size=128))
    assert len(found.sizes) == 6
    assert Counter(count for count, _, _ in found.points()) == {1: 2, 2: 2, 4: 1}


def test_what_the_user_said_is_kept():
    found = plan({}, ["probe=false", "tracker.group=mine"], tracker=WandbConfig(group="mine"))
    assert found.of_folder(Path("/x")).group == "mine"
    assert [
        text for _, _, point in found.points() for text in point.overrides if "group" in text or "probe" in text
    ] == [*("probe=false", "tracker.group=mine") * 3]
    named = plan({}).of_folder(Path("/x/my study"))
    assert named.group == "scale-my-study" and named.overrides[-1] == "tracker.group=scale-my-study"
    assert plan({}, tracker=TrackerConfig()).of_folder(Path("/x")).group is None


def test_a_list_of_gpus_gives_each_point_the_first_ones():
    found = plan({"replicas": "[1,2]"}, strategy=StrategyConfig(devices=[3, 1]))
    assert [point.overrides[1] for _, _, point in found.points()] == ["strategy.devices=[3,1]", "strategy.devices=[3]"]
    assert "2 GPUs, but replicas asks for 4" in refused({}, strategy=StrategyConfig(devices=[3, 1]))


def test_counts_follow_from_the_gpus_where_they_are_not_given(monkeypatch):
    monkeypatch.setattr(scaling_plan, "num_gpus", lambda: 6)
    assert make_plan({}, RunConfig(), []).counts == (1, 2, 4, 6)


@given(st.text("0123456789[],. -x", max_size=12) | st.lists(st.integers(-1, 2000), max_size=4).map(str))
def test_whatever_is_written_as_counts_is_read_or_refused(text):
    try:
        counts = plan({"replicas": text}, strategy=StrategyConfig(device="cpu"), batch=BatchConfig()).counts
    except ConfigError as error:
        assert "replicas" in str(error)
    else:
        assert len(counts) > 1 and list(counts) == sorted(set(counts)) and counts[0] >= 1


# --- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "overrides", "said"),
    [
        (
            {"replicas": "[1,x]"},
            [],
            "replicas=[1,x] is no list of replica counts.\nGive for example 'replicas=[1,2,4]'.",
        ),
        ({"replicas": "[0,2]"}, [], "is no list of replica counts"),
        ({"replicas": "[2]"}, [], "is one count: a study compares several.\nGive 'replicas=[1,2]'."),
        ({"replicas": "[]"}, [], "is no list of replica counts"),
        ({"mode": "stong"}, [], "Did you mean 'strong'?"),
        ({"repeats": "0"}, [], "repeats=0 is not a count"),
        ({"wandb": "maybe"}, [], "Choices: true, false."),
        ({}, ["strategy.replicas=2"], "a study sets the replica count itself.\nGive 'replicas=[1,2]'."),
        ({}, ["resume=outputs/a"], "Give the study's folder again as hydra.run.dir=PATH"),
        ({}, ["batch.per_replica_batch_size=16"], "Give batch.global_batch_size=64, or mode=weak."),
        ({"mode": "weak"}, ["batch.global_batch_size=64"], "Give batch.per_replica_batch_size=16, or mode=strong."),
    ],
)
def test_mistakes_are_refused_before_anything_runs(words, overrides, said):
    assert said in refused(words, overrides)


def test_points_that_cannot_train_are_refused_before_the_first_one_does():
    assert "Give batch.global_batch_size=99 or 102." in refused(
        {"replicas": "[1,3]"}, batch=BatchConfig(global_batch_size=100)
    )
    assert "batch=auto finds another size" in refused({}, batch=AutoBatchConfig())
    assert "strategy=one_device has one replica" in refused({}, strategy=StrategyConfig(name="one_device"))
    assert "jit_compile=true does not work" in refused({}, jit_compile=True)
    odd = refused({}, augment=StrongAugmentConfig(), batch=BatchConfig(global_batch_size=4))
    assert "a replica gets 1 row at a time" in odd
    assert "wandb=true shows the runs in W&B, but tracker=none" in refused({"wandb": "true"}, tracker=TrackerConfig())


def test_more_gpus_than_there_are_are_refused_at_once(monkeypatch):
    monkeypatch.setattr(scaling_plan, "num_gpus", lambda: 2)
    said = refused({})
    assert "replicas=[1, 2, 4] asks for 4 GPUs; found 2." in said and "'replicas=[1,2]'" in said
    assert "strategy.device=cpu" in said
    assert plan({}, strategy=StrategyConfig(device="cpu")).counts == (1, 2, 4)
    with pytest.raises(ConfigError, match="replicas is not given"):
        make_plan({}, RunConfig(strategy=StrategyConfig(device="cpu")), [])


# --- the study --------------------------------------------------------------------------------------------------------


def study(folder, words=None, overrides=(), config=None):
    config = config or RunConfig(cost=CostConfig(price_per_hour=10.0))
    asked = make_plan({"replicas": "[1,2,4]", **(words or {})}, config, list(overrides)).of_folder(folder)
    shown = []
    results = run_scaling(asked, folder, command=command, show=shown.append)
    return write_report(folder, asked, results, config), shown, results


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("study")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scaling_plan, "num_gpus", lambda: None)
        return folder, *study(folder)


def test_a_study_writes_its_page_its_tables_and_its_numbers(finished):
    folder, done, shown, _ = finished
    assert [path.name for path in done.files] == ["report.html", "report.md", "scaling.json"]
    written = json.loads((folder / "scaling.json").read_text())
    points = written["points"]
    assert [(one["num_replicas"], one["mode"], one["repeats"]) for one in points] == [
        *((1, "strong", 1), (2, "strong", 1), (4, "strong", 1))
    ]
    assert [one["speed_up"] for one in points] == pytest.approx([1.0, 1.8, 3.6])
    assert [one["efficiency"] for one in points] == pytest.approx([1.0, 0.9, 0.9])
    assert [one["seconds"] for one in points] == pytest.approx([36.0, 18.0, 9.0])
    assert [one["cost"] for one in points] == pytest.approx([0.1, 0.05, 0.025])
    assert points[0]["best_val_accuracy"] == 0.9
    assert Path(points[0]["run"]) == folder / "runs" / "replicas-1_batch-128" / "run"
    assert (Path(points[0]["run"]) / "record.json").exists() and points[0]["runs"] == [points[0]["run"]]
    assert written["recommendation"]["num_replicas"] == 4 and written["group"] == f"scale-{folder.name}"
    assert "a run costs 75% less" in written["recommendation"]["sentence"]
    markdown = (folder / "report.md").read_text()
    assert "| 4 | 128 | 360 | 3.60 | 90% | 0.9000 |" in markdown and "- commit: " in markdown
    assert "More replicas pay" in (folder / "report.html").read_text()
    assert shown[0] == "[1/3] 4 replicas, global batch 128 ..."


def test_another_training_in_the_same_folder_is_refused(finished):
    with pytest.raises(ConfigError, match="belongs to another study"):
        study(finished[0], overrides=["epochs=3"])


def test_a_second_start_keeps_what_is_done_and_adds_what_is_new(finished):
    config = RunConfig(cost=CostConfig(price_per_hour=1.0))  # another price is no other training
    _, shown, results = study(finished[0], {"repeats": "2"}, config=config)
    assert Counter(result.status for result in results) == {"kept": 3, "finished": 3}
    assert shown[0] == "[1/6] 4 replicas, global batch 128, time 1 of 2: kept from an earlier start"
    points = json.loads((finished[0] / "scaling.json").read_text())["points"]
    assert [one["repeats"] for one in points] == [2, 2, 2]
    assert [one["cost"] for one in points] == pytest.approx([0.01, 0.005, 0.0025])
    assert points[2]["intervals"]["speed_up"] == pytest.approx([3.6, 3.6])


def test_a_point_that_fails_is_named_and_the_rest_is_reported(tmp_path):
    done, shown, results = study(tmp_path, overrides=["broken=2"])
    assert [point.num_replicas for point in done.found.points] == [1, 4]
    assert done.found.failures == {"replicas-2_batch-128": "the device is gone."}
    assert "  failed: the device is gone." in shown
    assert "the device is gone." in (tmp_path / "report.html").read_text()
    assert not all(result.succeeded for result in results)


def test_a_configuration_that_the_training_refuses_ends_the_study_at_its_first_point(tmp_path):
    with pytest.raises(ConfigError, match="too many GPUs") as found:
        study(tmp_path, overrides=["gpus=2"])
    assert "What is finished is kept" in str(found.value)
    assert [path.name for path in (tmp_path / "runs").glob("*/run.txt")] == ["run.txt"]  # nothing else was started


def test_a_folder_that_holds_something_else_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ConfigError, match="is not empty: it holds thesis.tex"):
        study(tmp_path)


def test_nothing_that_finished_is_an_error(tmp_path):
    asked = replace(plan({"replicas": "[1,2]"}, ["broken=2"]), counts=(2,), sizes={("strong", 2): 64})
    with pytest.raises(UserError, match="No point finished: the device is gone"):
        run_scaling(asked, tmp_path, command=command)
