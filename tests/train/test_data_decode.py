"""Odd pictures through the real decoder: what is kept decodes in `tf.data`, what is refused has a reason in words."""

import io
import random
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from manyfit.data.decode import decode_image, why_unusable
from manyfit.data.file_check import check_files
from manyfit.data.folder import load_folder

ODD_IMAGES = Path(__file__).parents[3] / "shared" / "data" / "odd_images"
HTML = b"<!DOCTYPE html><html><body>404</body></html>"


def make_picture(size=(64, 48)) -> Image.Image:
    x, y = np.meshgrid(np.linspace(0, 255, size[0]), np.linspace(0, 255, size[1]))
    return Image.fromarray(np.stack([x, y, 255 - x], axis=-1).astype(np.uint8))


def encode(kind: str, mode: str = "RGB", size=(64, 48), **keywords) -> bytes:
    buffer = io.BytesIO()
    make_picture(size).convert(mode).save(buffer, kind, **keywords)
    return buffer.getvalue()


def encode_16_bit() -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.linspace(0, 65535, 64 * 48).reshape(48, 64).astype(np.uint16)).save(buffer, "PNG")
    return buffer.getvalue()


GOOD = {
    "plain.jpg": encode("JPEG"),
    "UPPER.JPG": encode("JPEG"),
    "progressive.jpeg": encode("JPEG", progressive=True),
    "cmyk.jpg": encode("JPEG", "CMYK"),
    "grey.jpg": encode("JPEG", "L"),
    "exif.jpg": encode("JPEG", exif=b"Exif\0\0MM\0*\0\0\0\x08\0\0"),
    "tiny.jpg": encode("JPEG", size=(1, 1)),
    "thin.jpg": encode("JPEG", size=(300, 1)),
    "junk_after.jpg": encode("JPEG") + b"junk",
    "palette.png": encode("PNG", "P"),
    "alpha.png": encode("PNG", "RGBA"),
    "grey_alpha.png": encode("PNG", "LA"),
    "black_white.png": encode("PNG", "1"),
    "16_bit.png": encode_16_bit(),
    "png_inside.jpg": encode("PNG"),
    "bmp_inside.jpg": encode("BMP"),
    "bmp_grey.bmp": encode("BMP", "L"),
    "bmp_alpha.bmp": encode("BMP", "RGBA"),
    "webp_inside.jpg": encode("WEBP"),
    "webp_alpha.png": encode("WEBP", "RGBA", lossless=True),
    "gif_inside.jpg": encode("GIF"),
    "moving.gif": encode("GIF", save_all=True, append_images=[make_picture().rotate(90)]),
    "jpeg_inside.gif": encode("JPEG", "L"),
    "no_ending": encode("JPEG"),
}
BAD = {
    "empty.jpg": (b"", "empty file"),
    "page.jpg": (HTML, "an HTML page, not a picture"),
    "text.jpg": (b"not a picture", "not a picture"),
    "cut.jpg": (encode("JPEG")[:400], "truncated JPEG"),
    "cut_at_header.jpg": (encode("JPEG")[:20], "truncated JPEG"),
    "cut_by_two.jpg": (encode("JPEG")[:-2], "truncated JPEG"),
    "cut.png": (encode("PNG")[:-30], "truncated PNG"),
    "cut.webp": (encode("WEBP")[:-30], "truncated WebP"),
    "cut.bmp": (encode("BMP")[:300], "truncated BMP"),
    "cut.gif": (encode("GIF")[:-30], "truncated GIF"),
    "moving.webp": (
        encode("WEBP", save_all=True, append_images=[make_picture().rotate(90)]),
        "an animated WebP, which TensorFlow does not decode",
    ),
    "palette.bmp": (
        encode("BMP", "P"),
        "a BMP with a colour palette, which TensorFlow does not decode; save it as PNG or JPEG",
    ),
    "scan.tif.jpg": (encode("TIFF"), "TIFF, which TensorFlow does not decode; save it as PNG or JPEG"),
}


def test_good_pictures_decode_and_bad_ones_have_reasons(tmp_path):
    contents = {**GOOD, **{name: content for name, (content, _) in BAD.items()}}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    reasons = dict(zip(contents, check_files([str(tmp_path / name) for name in contents]), strict=True))
    assert reasons == {**dict.fromkeys(GOOD), **{name: reason for name, (_, reason) in BAD.items()}}


def test_decoding_inside_tf_data_is_always_rgb():
    dataset = tf.data.Dataset.from_tensor_slices(list(GOOD.values())).map(decode_image)
    assert dataset.element_spec.shape.as_list() == [None, None, 3]
    for name, image in zip(GOOD, dataset, strict=True):
        assert image.dtype == tf.uint8 and image.shape[2] == 3, name
        pixels = image.numpy().astype(int)
        if name in ("plain.jpg", "cmyk.jpg", "bmp_alpha.bmp", "webp_inside.jpg", "gif_inside.jpg", "alpha.png"):
            assert np.abs(pixels - np.asarray(make_picture()).astype(int)).mean() < 12, name
        if "grey" in name or "16_bit" in name:
            assert (pixels[..., 0] == pixels[..., 1]).all() and pixels.max() > 100, name


def test_verdict_agrees_with_the_decoder_on_damaged_streams(capfd):
    rng = random.Random(0)
    pictures = [encode("JPEG", size=(200, 150)), encode("JPEG", size=(200, 150), progressive=True), encode("PNG")]
    pictures += [encode("JPEG", "CMYK"), encode("WEBP"), encode("GIF"), encode("BMP")]
    refused = 0
    for _ in range(400):
        content = bytearray(rng.choice(pictures))
        if rng.random() < 0.3:
            del content[rng.randrange(len(content)) :]
        for _ in range(rng.choice((1, 3, 20)) if content else 0):
            content[rng.randrange(min(len(content), rng.choice((30, 700, 10**6))))] = rng.randrange(256)
        try:
            decoded = decode_image(bytes(content)).shape
        except tf.errors.InvalidArgumentError:
            decoded = None
        verdict = why_unusable(bytes(content))
        assert verdict is None or decoded is None or "BMP" in verdict, verdict
        assert verdict is not None or decoded is not None
        refused += verdict is not None
    capfd.readouterr()  # libjpeg's own words on damaged streams
    assert 50 < refused < 390


def test_huge_jpeg_is_judged_by_the_full_decoder(monkeypatch):
    from manyfit.data import decode

    calls = []
    monkeypatch.setattr(decode, "decode_image", lambda contents: calls.append(1) or decode_full(contents))
    decode_full = decode_image
    assert why_unusable(GOOD["plain.jpg"]) is None and not calls
    monkeypatch.setattr(decode, "_LARGEST_QUICK_CHECK", 1000)
    assert why_unusable(GOOD["plain.jpg"]) is None and calls


def test_load_folder_of_odd_files(tmp_path):
    for split in ("train", "validation"):
        for name in ("cats", "dogs"):
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "a.jpg").write_bytes(GOOD["plain.jpg"])
    for name, content in GOOD.items():
        (tmp_path / "train" / "cats" / name).write_bytes(content)
    for name, (content, _) in BAD.items():
        (tmp_path / "train" / "cats" / name).write_bytes(content)
    for name in (".hidden.jpg", "Thumbs.db", ".DS_Store"):
        (tmp_path / "train" / "cats" / name).write_bytes(b"\xd0\xcf\x11\xe0")
    root, cache = tmp_path, tmp_path / "cache_elsewhere"
    keywords = {"name": "image_folder", "validation_fraction": 0.2, "on_bad_image": "skip", "cache_dir": cache}
    first, second = load_folder(root, **keywords), load_folder(root, **keywords)
    assert first.found["train"]["cats"] == len(GOOD) + len(BAD) + 4
    assert len(first.skipped) == len(BAD) + 3
    assert int((first.train.labels == 0).sum()) == len(GOOD) + 1
    assert second.skipped == first.skipped and second.fingerprint == first.fingerprint


@pytest.mark.skipif(not ODD_IMAGES.is_dir(), reason="the shared odd images are not here")
def test_real_odd_images(capfd):
    paths = sorted(path for path in ODD_IMAGES.glob("*/*") if path.is_file())
    reasons = dict(zip((path.name for path in paths), check_files([str(path) for path in paths]), strict=True))
    capfd.readouterr()
    refused = {name: reason for name, reason in reasons.items() if reason is not None}
    assert refused == {"tf_corrupt.jpg": "damaged JPEG", "tf_corrupt34_2.jpg": "truncated JPEG"}
    for path in paths:
        if reasons[path.name] is None:
            assert decode_image(path.read_bytes()).shape[2] == 3
