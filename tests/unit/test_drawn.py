"""The drawn sample: the same bytes from the same seed, balanced, valid, whole or absent, told apart by shape only."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from manyfit.data import drawn


def read_tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn") / "sample"
    drawn.draw_sample(folder, seed=3, num_train=40, num_validation=12)
    return folder


def test_counts_are_balanced_over_the_classes(sample: Path) -> None:
    counts = {
        f"{split}/{kind}": len(list((sample / split / kind).glob("*.jpg")))
        for split in ("train", "validation")
        for kind in ("cats", "dogs")
    }
    assert counts == {"train/cats": 20, "train/dogs": 20, "validation/cats": 6, "validation/dogs": 6}
    assert len(read_tree(sample)) == 52


def test_pictures_are_jpegs_of_native_sizes(sample: Path) -> None:
    sizes = set()
    for path in sample.rglob("*.jpg"):
        with Image.open(path) as image:
            image.load()
            assert (image.format, image.mode) == ("JPEG", "RGB")
            assert all(200 <= side <= 500 for side in image.size)
            sizes.add(image.size)
    assert len(sizes) > 40


def test_same_seed_same_bytes_and_other_seed_other_bytes(sample: Path, tmp_path: Path) -> None:
    drawn.draw_sample(tmp_path / "again", seed=3, num_train=40, num_validation=12)
    assert read_tree(tmp_path / "again") == read_tree(sample)
    drawn.draw_sample(tmp_path / "other", seed=4, num_train=2, num_validation=2)
    assert read_tree(tmp_path / "other")["train/cats/0000.jpg"] != read_tree(sample)["train/cats/0000.jpg"]


def test_a_picture_does_not_depend_on_how_many_are_drawn(sample: Path, tmp_path: Path) -> None:
    drawn.draw_sample(tmp_path / "small", seed=3, num_train=4, num_validation=2)
    small, large = read_tree(tmp_path / "small"), read_tree(sample)
    assert all(large[name] == content for name, content in small.items())


def test_no_picture_occurs_twice(sample: Path) -> None:
    assert len(set(read_tree(sample).values())) == 52


def test_an_existing_sample_is_left_alone(sample: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in sample.rglob("*")}
    drawn.draw_sample(sample, seed=3, num_train=40, num_validation=12)
    assert {path: path.stat().st_mtime_ns for path in sample.rglob("*")} == before


@pytest.mark.parametrize(
    "request_", [dict(seed=4, num_train=40, num_validation=12), dict(seed=3, num_train=42, num_validation=12)]
)
def test_another_sample_in_the_folder_is_refused_and_kept(sample: Path, request_: dict[str, int]) -> None:
    before = read_tree(sample)
    with pytest.raises(FileExistsError, match=r"Name another folder"):
        drawn.draw_sample(sample, **request_)
    assert read_tree(sample) == before


def test_an_interrupted_drawing_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(seed: int, split: str, kind: str, index: int) -> bytes:
        if index == 3:
            raise KeyboardInterrupt
        return b"jpeg"

    monkeypatch.setattr(drawn, "_jpeg", fail)
    with pytest.raises(KeyboardInterrupt):
        drawn.draw_sample(tmp_path / "sample", num_train=12, num_validation=4)
    assert list(tmp_path.iterdir()) == []


def test_the_second_of_two_processes_takes_the_first_ones_sample(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "sample"
    write = drawn._write_pictures

    def lose_the_race(root: Path, seed: int, counts: tuple[int, int]) -> None:
        monkeypatch.setattr(drawn, "_write_pictures", write)
        drawn.draw_sample(target, num_train=4, num_validation=2)
        write(root, seed, counts)

    monkeypatch.setattr(drawn, "_write_pictures", lose_the_race)
    drawn.draw_sample(target, num_train=4, num_validation=2)
    assert [path.name for path in tmp_path.iterdir()] == ["sample"]
    assert len(read_tree(target)) == 6


@pytest.mark.parametrize("counts", [dict(num_train=3), dict(num_train=0), dict(num_validation=-2)])
def test_counts_that_cannot_be_balanced_are_refused(tmp_path: Path, counts: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=r"must be an even number of at least 2"):
        drawn.draw_sample(tmp_path / "sample", **counts)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("kind", [*drawn.CLASSES, *drawn.OTHER_KINDS])
def test_every_kind_is_drawn(kind: str) -> None:
    first, second = (drawn.draw(kind, np.random.default_rng(seed)) for seed in (1, 2))
    assert first.mode == second.mode == "RGB"
    assert first.tobytes() != second.tobytes()


def test_an_unknown_kind_is_refused() -> None:
    assert len(drawn.OTHER_KINDS) >= 10
    with pytest.raises(ValueError, match=r"kind='unicorn' can't be drawn. Expected one of cats, dogs"):
        drawn.draw("unicorn", np.random.default_rng(0))


def test_colours_do_not_tell_cats_from_dogs() -> None:
    def histogram(kind: str, index: int) -> np.ndarray:
        image = drawn.draw(kind, np.random.default_rng([9, kind == "cats", index])).resize((48, 48))
        bins = np.asarray(image).reshape(-1, 3) // 64 @ (1, 4, 16)
        return np.sqrt(np.bincount(bins, minlength=64) / bins.size)

    features = np.array([histogram(kind, index) for index in range(120) for kind in ("cats", "dogs")])
    labels = np.tile([1.0, -1.0], 120)
    mean = features[:160].mean(axis=0)
    train, test = features[:160] - mean, features[160:] - mean
    weights = np.linalg.solve(train.T @ train + 0.3 * np.eye(64), train.T @ labels[:160])
    accuracy = np.mean(np.sign(test @ weights) == labels[160:])
    assert accuracy < 0.7  # 80 pictures: chance is .5 with a standard error of .06


def test_the_module_does_not_import_tensorflow() -> None:
    source = Path(drawn.__file__).parent
    assert all("tensorflow" not in path.read_text().replace("TensorFlow", "") for path in source.glob("drawn*.py"))
    assert "manyfit.data.drawn" in sys.modules
