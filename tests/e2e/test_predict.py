"""`src/predict.py` in a process of its own: any number of pictures on any number of replicas, and a page to look at."""

import csv
import json
import re
import shutil

import pytest


def read(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("RUN", "nowhere.jpg"), 2, "nowhere.jpg does not exist"),
        (("RUN", "*.jpg", "--csv", "no/such/out.csv"), 2, "in a folder that does not exist"),
        (("RUN", ".", "--explain"), 2, "Give --html FILE as well"),
        (("elsewhere", "."), 1, "holds no run"),
    ],
)
def test_a_mistake_is_told_at_once(made_runs, script, tmp_path, arguments, code, said):
    run = made_runs.make_run(tmp_path / "run")
    (run / "model.keras").write_bytes(b"")
    given = [run if word == "RUN" else word for word in arguments]
    done = script("predict.py", *given, TF_CPP_MIN_LOG_LEVEL="0")
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr and "Traceback" not in done.stderr


@pytest.mark.slow
def test_two_pictures_on_four_replicas_are_those_of_one(trained, photos, start_script, finish_script, tmp_path):
    pictures = sorted((photos / "validation" / "cats").iterdir())[:2]
    processes = {
        count: start_script(
            "predict.py",
            trained.folder,
            *pictures,
            "--csv",
            tmp_path / f"{count}.csv",
            *("--html", tmp_path / f"{count}.html", "--explain"),
            *("--replicas", count, "--device", "cpu"),
        )
        for count in (1, 4)
    }
    for process in processes.values():
        done = finish_script(process)
        assert (done.returncode, done.stderr) == (0, "")
        assert "2 pictures: " in done.stdout
    one, four = (read(tmp_path / f"{count}.csv") for count in (1, 4))
    assert one[0] == ["path", "label", "probability", "class_0", "class_1", "class_2"]
    assert [row[:2] for row in one] == [row[:2] for row in four] and len(one) == 3
    for first, second, picture in zip(one[1:], four[1:], pictures, strict=True):
        assert first[0] == str(picture)
        numbers = [float(number) for number in first[2:]]
        assert numbers == pytest.approx([float(number) for number in second[2:]], abs=2e-6)
        assert sum(numbers[1:]) == pytest.approx(1, abs=1e-5) and numbers[0] == max(numbers[1:])
        assert first[1] == f"class_{numbers[1:].index(numbers[0])}"
    overlays = [(tmp_path / f"{count}.html").read_text().count("data:image/png;base64,") for count in (1, 4)]
    assert overlays == [2, 2]


@pytest.mark.slow
def test_odd_files_are_reported_and_the_rest_is_labelled(trained, photos, script, tmp_path):
    folder = shutil.copytree(photos / "validation", tmp_path / "mixed")
    (folder / "cats" / "page.jpg").write_text("<!doctype html>")
    (folder / "dogs" / "half.jpg").write_bytes((folder / "dogs" / "0.jpg").read_bytes()[:90])
    done = script("predict.py", trained.folder, folder, "--csv", tmp_path / "a.csv", "--html", tmp_path / "a.html")
    assert (done.returncode, done.stderr) == (0, "")
    assert "11 pictures: " in done.stdout and "2 files could not be read" in done.stdout
    assert len(read(tmp_path / "a.csv")) == 12
    reasons = {path.rpartition("/")[2]: reason for path, reason in read(tmp_path / "a.unreadable.csv")[1:]}
    assert reasons == {"page.jpg": "an HTML page, not a picture", "half.jpg": "truncated JPEG"}
    page = (tmp_path / "a.html").read_text()
    assert page.count("data:image/jpeg;base64,") == 11 and "truncated JPEG" in page
    shown = [float(number) for number in re.findall(r"<b>class_\d ([\d.]+)</b>", page)]
    assert len(shown) == 11 and shown == sorted(shown, reverse=True)


@pytest.mark.browser
@pytest.mark.slow
def test_the_page_of_real_odd_pictures(trained, script, shared_data, chromium, tmp_path):
    done = script(
        "predict.py", trained.folder, shared_data / "odd_images", "--html", tmp_path / "odd.html", "--explain"
    )
    assert done.returncode == 0, done.stderr
    for width in (1280, 390):
        page = chromium.new_page(viewport={"width": width, "height": 900})
        problems = []
        page.on("console", lambda message, problems=problems: problems.append(message.text))
        page.on("pageerror", lambda error, problems=problems: problems.append(str(error)))
        page.goto((tmp_path / "odd.html").as_uri())
        images = page.evaluate("[...document.images].map(image => image.naturalWidth)")
        assert len(images) == 2 * 17 and min(images) > 0
        placed = "[...document.querySelectorAll('.layered')].map(one => [...one.querySelectorAll('img')].map("
        placed += "image => { const box = image.getBoundingClientRect(); return [box.x, box.y, box.width]; }))"
        assert all(below == above for below, above in page.evaluate(placed))
        opacity = "getComputedStyle(document.querySelector('.overlay')).opacity"
        assert page.evaluate(opacity) == "1"
        page.uncheck("#overlays")
        page.wait_for_timeout(400)  # it fades; the page's policy lets no script wait for that
        assert page.evaluate(opacity) == "0"
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert problems == []
        page.close()


@pytest.mark.slow
def test_exported_evaluated_and_shown(trained, script, start_script, finish_script, tmp_path):
    """What a user does with a run, one script after the other: they name each other's commands."""
    exporting = start_script("export.py", trained.folder, "--format", "tflite", "--out", tmp_path / "model")
    copy = shutil.copytree(trained.folder, tmp_path / "copy")
    evaluating = start_script("evaluate.py", trained.folder, copy, "--json", "--device", "cpu", "--replicas", 2)
    done = finish_script(exporting)
    assert (done.returncode, done.stderr) == (0, "")
    assert "agrees on 23 pictures (synthetic" in done.stdout
    assert "class_2" in (tmp_path / "model" / "README.md").read_text()
    again = script("export.py", trained.folder, "--format", "tflite", "--out", tmp_path / "model")
    assert again.returncode == 2 and "already there" in again.stderr
    done = finish_script(evaluating)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    accuracy = pytest.approx(trained.record["best"]["val_accuracy"], abs=1e-6)
    assert [run["accuracy"] for run in told["runs"]] == [accuracy] * 2
    (pair,) = told["pairs"]
    assert (pair["p_value"], pair["verdict"], pair["loss"]["value"]) == (1.0, "no difference shown", 0.0)
    shown = script("show.py", trained.folder)
    assert shown.returncode == 0 and f"src/export.py {trained.folder} --format" in shown.stdout


def test_a_rehearsal_is_not_exported_by_mistake(made_runs, script, tmp_path):
    run = made_runs.make_run(tmp_path / "run", rehearsal=True)
    (run / "model.keras").write_bytes(b"")
    done = script("export.py", run, "--format", "onnx", TF_CPP_MIN_LOG_LEVEL="0")
    assert done.returncode == 2 and "--rehearsal-ok" in done.stderr and "Traceback" not in done.stderr
    done = script("export.py", run, "--format", "keras", "--quantize", "--rehearsal-ok")
    assert done.returncode == 2 and "--quantize goes with --format tflite" in done.stderr
