"""`src/evaluate.py` in a process of its own: the same numbers on any number of replicas, and readable refusals."""

import json
import shutil

import pytest


def test_a_folder_without_a_run_is_refused_at_once(script, tmp_path):
    done = script("evaluate.py", tmp_path, TF_CPP_MIN_LOG_LEVEL="0")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{tmp_path} holds no run" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_any_number_of_replicas_gives_the_records_numbers(trained, start_script, finish_script):
    counts = (1, 2, 4)
    processes = [
        start_script("evaluate.py", trained.folder, "--device", "cpu", "--replicas", count, "--json")
        for count in counts
    ]
    done = [finish_script(process) for process in processes]
    assert [(one.returncode, one.stderr) for one in done] == [(0, "")] * 3
    found = [json.loads(one.stdout) for one in done]
    best = trained.record["best"]
    for evaluation in found:
        assert evaluation["loss"] == pytest.approx(best["val_loss"], rel=1e-6)
        assert evaluation["accuracy"] == pytest.approx(best["val_accuracy"], abs=1e-6)
        assert evaluation["confusion_matrix"] == found[0]["confusion_matrix"]
        assert evaluation["num_examples"] == sum(map(sum, evaluation["confusion_matrix"])) == 23
        assert set(evaluation["per_class"]) == {"class_0", "class_1", "class_2"}


@pytest.mark.slow
def test_the_tables_and_the_page(trained, script, tmp_path):
    done = script("evaluate.py", trained.folder, "--html", tmp_path / "page.html")
    assert (done.returncode, done.stderr) == (0, "")
    words = ("23 examples of synthetic", "loss ", "accuracy", "AUC", "calibration error", "precision", "confusion")
    for text in (*words, "class_2", "95 % interval", "On average the model is"):
        assert text in done.stdout
    page = (tmp_path / "page.html").read_text()
    assert f"Evaluation of {trained.folder.name}" in page and "Reliability diagram" in page


@pytest.mark.parametrize("arguments", [("--html", "no/such/page.html"), ("--html", ".")])
def test_a_page_that_cannot_be_written_is_told_at_once(made_runs, script, tmp_path, arguments):
    done = script("evaluate.py", made_runs.make_run(tmp_path / "run"), *arguments, TF_CPP_MIN_LOG_LEVEL="0")
    assert (done.returncode, done.stdout) == (2, "") and "--html" in done.stderr


@pytest.mark.slow
def test_a_truncated_model_is_one_message(trained, script, tmp_path):
    copy = shutil.copytree(trained.folder, tmp_path / "copy")
    content = (copy / "model.keras").read_bytes()
    (copy / "model.keras").write_bytes(content[: len(content) // 2])
    done = script("evaluate.py", copy, "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert "model.keras cannot be loaded" in done.stderr and "train again" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_classes_that_the_model_does_not_know_are_code_2(trained, script, photos):
    done = script("evaluate.py", trained.folder, "--data", "image_folder", "--data-root", photos / "validation")
    assert (done.returncode, done.stdout) == (2, "")
    assert "cats" in done.stderr and "class_0" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_model_of_real_photos_agrees_on_other_photos(script, shared_data, tmp_path):
    """Trained on 2 replicas, then a flat folder evaluated whole on 1: what the record says of the same photos."""
    weights = shared_data / "weights" / "mobilenet_v2_weights_tf_dim_ordering_tf_kernels_0.35_224_no_top.h5"
    root = tmp_path / "few"
    for split, num_files in (("train", 60), ("validation", 20)):
        for name in ("cats", "dogs"):
            folder = root / split / name
            folder.mkdir(parents=True)
            for path in sorted((shared_data / "cats_dogs" / split / name).iterdir())[:num_files]:
                (folder / path.name).symlink_to(path)
    done = script(
        "train.py",
        *("data=cats_dogs", f"data.root={root}", f"model.weights={weights}", "model.alpha=0.35", "tracker=none"),
        *("strategy=mirrored", "strategy.device=cpu", "strategy.replicas=2", "batch.per_replica_batch_size=6"),
        *("model.image_size=128", "epochs=2", f"hydra.run.dir={tmp_path / 'run'}"),
    )
    assert done.returncode == 0, done.stderr
    record = json.loads((tmp_path / "run" / "record.json").read_text())
    assert record["best"]["val_accuracy"] > 0.8
    done = script("evaluate.py", tmp_path / "run", "--data-root", root / "validation", "--json")
    assert done.returncode == 0, done.stderr
    evaluation = json.loads(done.stdout)
    assert evaluation["num_examples"] == 40
    assert evaluation["loss"] == pytest.approx(record["best"]["val_loss"], rel=1e-4)
    assert evaluation["accuracy"] == pytest.approx(record["best"]["val_accuracy"], abs=1e-6)
