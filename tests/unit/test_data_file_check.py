"""Verdicts on files are remembered by path, size and time; and what the bytes say, in words."""

import io
import os
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from PIL import Image

from manyfit.data import file_check, sniff
from manyfit.data.file_check import check_files


@pytest.fixture
def judged(monkeypatch):
    """The paths that were really judged, by a judge that needs no TensorFlow."""
    seen = []

    def judge(paths):
        seen.extend(paths)
        return ["damaged JPEG" if b"bad" in Path(path).read_bytes() else None for path in paths]

    monkeypatch.setattr(file_check, "_judge", judge)
    return seen


@pytest.fixture
def paths(tmp_path):
    folder = tmp_path / "pictures"
    folder.mkdir()
    for index in range(4):
        (folder / f"{index}.jpg").write_bytes(b"bad" if index == 2 else b"good")
    return [str(folder / f"{index}.jpg") for index in range(4)]


EXPECTED = [None, None, "damaged JPEG", None]


def test_second_check_judges_nothing(tmp_path, paths, judged):
    assert check_files(paths, cache_dir=tmp_path / "cache") == EXPECTED
    assert judged == paths
    assert check_files(paths[::-1], cache_dir=tmp_path / "cache") == EXPECTED[::-1]
    assert judged == paths


def test_changed_and_new_files_are_judged_again(tmp_path, paths, judged):
    check_files(paths[:3], cache_dir=tmp_path / "cache")
    judged.clear()
    with open(paths[0], "wb") as file:
        file.write(b"bad")
    os.utime(paths[1], ns=(1, 1))
    assert check_files(paths, cache_dir=tmp_path / "cache") == ["damaged JPEG", None, "damaged JPEG", None]
    assert judged == [paths[0], paths[1], paths[3]]


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"version": 1}', b'{"files": {"0.jpg": 3}}', b"\xff\xfe"])
def test_damaged_memory_is_made_again(tmp_path, paths, judged, content):
    check_files(paths, cache_dir=tmp_path / "cache")
    (memory,) = (tmp_path / "cache" / "checked").iterdir()
    good = memory.read_bytes()
    memory.write_bytes(content)
    assert check_files(paths, cache_dir=tmp_path / "cache") == EXPECTED
    assert memory.read_bytes() == good


def test_another_tensorflow_judges_again(tmp_path, paths, judged, monkeypatch):
    check_files(paths, cache_dir=tmp_path / "cache")
    judged.clear()
    monkeypatch.setattr(file_check, "_FORMAT", 99)
    check_files(paths, cache_dir=tmp_path / "cache")
    assert judged == paths


def test_memory_that_cannot_be_written_is_done_without(tmp_path, paths, judged):
    (tmp_path / "cache").write_text("a file where the folder should be")
    assert check_files(paths, cache_dir=tmp_path / "cache") == EXPECTED
    assert check_files(paths) == EXPECTED


def test_checks_at_the_same_time(tmp_path, paths, judged):
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda _: check_files(paths, cache_dir=tmp_path / "cache"), range(16)))
    assert results == [EXPECTED] * 16
    assert not list((tmp_path / "cache" / "checked").glob("*.new"))


def test_what_is_no_file(tmp_path, judged):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link.jpg").symlink_to(tmp_path / "none")
    os.mkfifo(tmp_path / "fifo")
    names = ["folder", "link.jpg", "fifo", "gone.jpg", os.fsdecode(b"\xff.jpg")]
    assert check_files([str(tmp_path / name) for name in names]) == [
        "a folder, not a picture",
        "a link to a file that does not exist",
        "not a regular file",
        "cannot be read: No such file or directory",
        "a file name that is not valid UTF-8",
    ]
    assert not judged


def encode(kind: str, mode: str = "RGB", **keywords) -> bytes:
    buffer = io.BytesIO()
    image = Image.merge("RGB", (Image.linear_gradient("L"), Image.radial_gradient("L"), Image.linear_gradient("L")))
    image.resize((40, 30)).convert(mode).save(buffer, kind, **keywords)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "contents, reason",
    [
        (b"", "empty file"),
        (b"\n <!DOCTYPE HTML><html>", "an HTML page, not a picture"),
        (b"hello", "not a picture"),
        (b"\0" * 40, "only zero bytes, not a picture"),
        (b"PK\x03\x04rest", "not a picture (a ZIP file)"),
        (b"\xd0\xcf\x11\xe0rest", "not a picture (a Thumbs.db or Office file)"),
        (encode("JPEG")[:-20], "truncated JPEG"),
        (encode("PNG")[:-20], "truncated PNG"),
        (encode("GIF")[:-20], "truncated GIF"),
        (encode("BMP")[:-20], "truncated BMP"),
        (encode("WEBP")[:-20], "truncated WebP"),
        (encode("JPEG")[:3], "truncated JPEG"),
        (b"BM", "truncated BMP"),
        (encode("JPEG"), "damaged JPEG"),
        (encode("PNG"), "damaged PNG"),
        (encode("TIFF"), "TIFF, which TensorFlow does not decode; save it as PNG or JPEG"),
        (b"\0\0\0\x1cftypavif", "AVIF, which TensorFlow does not decode; save it as PNG or JPEG"),
        (b"\0\0\0\x1cftypheic", "HEIC or video, which TensorFlow does not decode; save it as PNG or JPEG"),
    ],
)
def test_reasons(contents, reason):
    assert sniff.why_undecodable(contents) == reason


def test_bitmaps_that_would_come_out_wrong():
    assert sniff.misread(encode("BMP")) is None
    assert sniff.misread(encode("BMP", "L")) is None
    assert "palette" in sniff.misread(encode("BMP", "P"))
    assert "palette" in sniff.misread(encode("BMP", "1"))
    compressed = bytearray(encode("BMP", "L"))
    compressed[30:34] = struct.pack("<I", 1)
    assert "compressed" in sniff.misread(bytes(compressed))
    assert sniff.misread(b"BM") is None and sniff.misread(encode("PNG", "P")) is None


def test_endings():
    assert [sniff.ending_of(encode(kind)) for kind in ("JPEG", "PNG", "GIF", "BMP", "WEBP", "TIFF")] == [
        *(".jpg", ".png", ".gif", ".bmp", ".webp"),
        "",
    ]
