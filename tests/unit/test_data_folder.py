"""Image folders without a decoder: layouts, splits, counts, and every refusal."""

import json
from pathlib import Path

import pytest

from manyfit.data import folder as folder_module
from manyfit.data import manifest
from manyfit.data.folder import in_validation, load_folder, load_folder_whole
from manyfit.errors import DataError


@pytest.fixture(autouse=True)
def fake_check(monkeypatch):
    """Judge by the first bytes, so that no test here starts TensorFlow."""

    def check(paths, *, cache_dir=None):
        return ["damaged JPEG" if not Path(path).is_file() or Path(path).read_bytes()[:3] == b"bad" else None
                for path in paths]  # fmt: skip

    monkeypatch.setattr(folder_module, "check_files", check)


def fill(folder: Path, count: int, content: bytes = b"good", prefix: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        (folder / f"{prefix}{index}.jpg").write_bytes(content)
    return folder


def load(root, **keywords):
    return load_folder(root, **{"name": "image_folder", "validation_fraction": 0.2, "on_bad_image": "skip", **keywords})


def make_split_folder(root: Path) -> Path:
    for split, count in (("train", 4), ("validation", 2)):
        for name in ("cats", "dogs"):
            fill(root / split / name, count)
    return root


def test_folder_with_splits(tmp_path):
    make_split_folder(tmp_path)
    fill(tmp_path / "test" / "cats", 1)
    fill(tmp_path / "test" / "dogs", 1)
    data = load(tmp_path)
    assert data.class_names == ("cats", "dogs")
    assert data.train.labels.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    assert data.train.labels.dtype == "int32"
    assert (len(data.validation), len(data.test)) == (4, 2)
    assert data.train.paths[0] == str(tmp_path / "train" / "cats" / "0.jpg")
    assert data.notices == () and data.source == "folder" and data.image_shape is None


@pytest.mark.parametrize("name", ["val", "valid"])
def test_other_names_of_validation(tmp_path, name):
    make_split_folder(tmp_path)
    (tmp_path / "validation").rename(tmp_path / name)
    assert len(load(tmp_path).validation) == 4


def test_flat_folder_is_divided_the_same_for_ever(tmp_path):
    fill(tmp_path / "cats", 100)
    fill(tmp_path / "dogs", 100)
    first = load(tmp_path)
    held_out = set(first.validation.paths)
    assert 20 <= len(held_out) <= 60
    assert not held_out & set(first.train.paths)
    assert len(first.train) + len(first.validation) == 200
    fill(tmp_path / "cats", 100, prefix="new")
    second = load(tmp_path)
    assert held_out <= set(second.validation.paths)
    assert set(first.train.paths) <= set(second.train.paths)
    assert "hash of their names" in first.notices[0]


def test_division_does_not_depend_on_where_the_folder_lies(tmp_path):
    for place in ("a", "b/c"):
        fill(tmp_path / place / "cats", 30)
        fill(tmp_path / place / "dogs", 30)
    a, b = load(tmp_path / "a"), load(tmp_path / "b/c")
    assert [Path(path).name for path in a.validation.paths] == [Path(path).name for path in b.validation.paths]
    assert a.fingerprint == b.fingerprint


def test_a_larger_fraction_only_adds():
    names = [f"cats/{index}.jpg" for index in range(2000)]
    small = {name for name in names if in_validation(name, 0.1)}
    large = {name for name in names if in_validation(name, 0.3)}
    assert small < large
    assert abs(len(small) - 200) < 60 and abs(len(large) - 600) < 80


def test_train_without_validation_is_divided(tmp_path):
    fill(tmp_path / "train" / "cats", 50)
    fill(tmp_path / "train" / "dogs", 50)
    data = load(tmp_path)
    assert len(data.train) + len(data.validation) == 100 and len(data.validation) > 0


def test_kept_and_skipped_make_found(tmp_path):
    make_split_folder(tmp_path)
    cats = tmp_path / "train" / "cats"
    (cats / "broken.jpg").write_bytes(b"bad")
    (cats / ".DS_Store").write_bytes(b"x")
    (cats / "Thumbs.db").write_bytes(b"x")
    (cats / "inner").mkdir()
    (cats / "gone.jpg").symlink_to(tmp_path / "nowhere.jpg")
    data = load(tmp_path)
    assert data.found["train"] == {"cats": 9, "dogs": 4}
    assert {Path(item.path).name: item.reason for item in data.skipped} == {
        ".DS_Store": "a hidden file",
        "Thumbs.db": "a file of the operating system, not a picture",
        "broken.jpg": "damaged JPEG",
        "inner": "damaged JPEG",
        "gone.jpg": "damaged JPEG",
    }
    account = json.loads(json.dumps(manifest(data)))
    assert account["splits"]["train"]["cats"] == {"found": 9, "kept": 4, "skipped": 5}
    assert account["splits"]["validation"]["dogs"] == {"found": 2, "kept": 2, "skipped": 0}
    assert len(account["skipped"]) == 5 and account["fingerprint"] == data.fingerprint
    assert "5 of 17 files" in data.notices[0]


def test_flat_counts_follow_the_division(tmp_path):
    fill(tmp_path / "cats", 40)
    fill(tmp_path / "cats", 40, b"bad", prefix="broken")
    fill(tmp_path / "dogs", 40)
    account = manifest(load(tmp_path))
    for split in ("train", "validation"):
        for counts in account["splits"][split].values():
            assert counts["kept"] + counts["skipped"] == counts["found"]
    assert sum(account["splits"][split]["cats"]["found"] for split in ("train", "validation")) == 80


def test_fingerprint_follows_names_sizes_and_labels(tmp_path):
    make_split_folder(tmp_path)
    before = load(tmp_path).fingerprint
    assert load(tmp_path).fingerprint == before and len(before) == 64
    (tmp_path / "train" / "cats" / "broken.jpg").write_bytes(b"bad")
    assert load(tmp_path).fingerprint == before  # what is skipped trains nothing
    (tmp_path / "train" / "cats" / "0.jpg").write_bytes(b"good, longer")
    assert load(tmp_path).fingerprint != before


def test_on_bad_image_error_names_the_files(tmp_path):
    make_split_folder(tmp_path)
    fill(tmp_path / "train" / "dogs", 7, b"bad", prefix="broken")
    with pytest.raises(DataError, match="7 of 19 files cannot be used") as caught:
        load(tmp_path, on_bad_image="error")
    assert "broken0.jpg: damaged JPEG" in str(caught.value) and "and 2 more" in str(caught.value)
    assert "on_bad_image=skip" in caught.value.remedy


def test_on_bad_image_error_overlooks_system_files(tmp_path):
    make_split_folder(tmp_path)
    (tmp_path / "train" / "cats" / ".DS_Store").write_bytes(b"x")
    (tmp_path / "train" / "cats" / "desktop.ini").write_bytes(b"x")
    assert len(load(tmp_path, on_bad_image="error").skipped) == 2


def expect(message: str, remedy: str, root, **keywords):
    with pytest.raises(DataError, match=message) as caught:
        load(root, **keywords)
    assert remedy in caught.value.remedy
    assert caught.value.exit_code == 2


def test_missing_folder(tmp_path):
    expect("does not exist", "ROOT/train/CLASS", tmp_path / "none")


def test_a_file_for_a_folder(tmp_path):
    (tmp_path / "photos.zip").write_bytes(b"PK")
    expect("is a file", "unpack", tmp_path / "photos.zip")


def test_no_class_folder(tmp_path):
    (tmp_path / "cat.0.jpg").write_bytes(b"good")
    (tmp_path / ".git").mkdir()
    expect("no class folder", "ROOT/CLASS", tmp_path)


def test_one_class(tmp_path):
    fill(tmp_path / "cats", 3)
    expect("one class folder only, 'cats'", "ROOT/CLASS", tmp_path)


def test_one_folder_too_high(tmp_path):
    fill(tmp_path / "PetImages" / "Cat", 3)
    fill(tmp_path / "PetImages" / "Dog", 3)
    expect("one class folder only", f"Did you mean {tmp_path / 'PetImages'}?", tmp_path)


def test_empty_class(tmp_path):
    make_split_folder(tmp_path)
    for split in ("train", "validation"):
        (tmp_path / split / "birds").mkdir()
    expect("train/birds is empty", "Put JPEG", tmp_path)


def test_class_without_a_usable_picture(tmp_path):
    make_split_folder(tmp_path)
    fill(tmp_path / "validation" / "dogs", 2, b"bad")
    expect("validation/dogs holds no picture .*2 found; 0.jpg is damaged JPEG", "Put JPEG", tmp_path)


def test_no_usable_picture_at_all(tmp_path):
    fill(tmp_path / "cats", 5, b"bad")
    fill(tmp_path / "dogs", 5, b"bad")
    expect("holds no picture", "Put JPEG", tmp_path)


def test_classes_that_differ(tmp_path):
    make_split_folder(tmp_path)
    fill(tmp_path / "train" / "birds", 2)
    fill(tmp_path / "validation" / "Dogs2", 2)
    expect("only train has birds, only validation has Dogs2", "same class folders", tmp_path)


def test_validation_without_train(tmp_path):
    fill(tmp_path / "validation" / "cats", 2)
    expect("no folder 'train'", "ROOT/train", tmp_path)


def test_two_validation_folders(tmp_path):
    make_split_folder(tmp_path)
    fill(tmp_path / "val" / "cats", 2)
    expect("more than one validation folder: validation, val", "Keep one", tmp_path)


def test_too_few_to_divide(tmp_path):
    fill(tmp_path / "cats", 1)
    fill(tmp_path / "dogs", 1)
    expect("leaves no validation picture", "validation_fraction", tmp_path, validation_fraction=0.001)
    expect("leaves no training picture of cats, dogs", "more pictures", tmp_path, validation_fraction=0.999)


def test_class_that_nothing_validates_is_noticed(tmp_path):
    fill(tmp_path / "cats", 50)
    rare = next(f"{index}.jpg" for index in range(100) if not in_validation(f"dogs/{index}.jpg", 0.2))
    fill(tmp_path / "dogs", 0)
    (tmp_path / "dogs" / rare).write_bytes(b"good")
    assert any("nothing validates" in notice for notice in load(tmp_path).notices)


def test_whole_folder_takes_the_models_labels(tmp_path):
    fill(tmp_path / "dogs", 3)
    (tmp_path / "dogs" / "x.jpg").write_bytes(b"bad")
    split, found, skipped = load_folder_whole(tmp_path, ("birds", "cats", "dogs"), "skip")
    assert split.labels.tolist() == [2, 2, 2]
    assert found == {"test": {"birds": 0, "cats": 0, "dogs": 4}}
    assert [item.class_name for item in skipped] == ["dogs"]


def test_whole_folder_refusals(tmp_path):
    fill(tmp_path / "wolves", 1)
    with pytest.raises(DataError, match="does not know: wolves.*cats, dogs"):
        load_folder_whole(tmp_path, ("cats", "dogs"), "skip")
    with pytest.raises(DataError, match="does not exist"):
        load_folder_whole(tmp_path / "none", ("cats", "dogs"), "skip")
    fill(tmp_path / "bad" / "cats", 1, b"bad")
    with pytest.raises(DataError, match="no picture that can be used"):
        load_folder_whole(tmp_path / "bad", ("cats", "dogs"), "skip")
    with pytest.raises(DataError, match="on_bad_image=error"):
        load_folder_whole(tmp_path / "bad", ("cats", "dogs"), "error")
    make_split_folder(tmp_path / "split")
    with pytest.raises(DataError) as caught:
        load_folder_whole(tmp_path / "split", ("cats", "dogs"), "skip")
    assert "split/validation" in caught.value.remedy
