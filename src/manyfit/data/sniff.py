"""What the bytes of a file say it is, in words a user understands; nothing is decoded here."""

import struct

_MAGIC = (
    (b"\xff\xd8\xff", "JPEG"),
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"BM", "BMP"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"8BPS", "Photoshop"),
    (b"%PDF", "PDF"),
    (b"PK\x03\x04", "ZIP"),
    (b"\x1f\x8b", "gzip"),
    (b"\0\0\x01\0", "ICO"),
    (b"\0\0\0\x0cjP  ", "JPEG 2000"),
    (b"\xd0\xcf\x11\xe0", "Thumbs.db or Office"),
)
_ENDINGS = {"JPEG": ".jpg", "PNG": ".png", "GIF": ".gif", "BMP": ".bmp", "WebP": ".webp"}
DECODABLE = tuple(_ENDINGS)


def kind_of(contents: bytes) -> str:
    """Name the file format that the first bytes show, such as `JPEG`, `HTML` or `` (unknown)."""
    if contents[:4] == b"RIFF" and contents[8:12] == b"WEBP":
        return "WebP"
    if contents[4:8] == b"ftyp":
        return "AVIF" if contents[8:12] in (b"avif", b"avis") else "HEIC or video"
    for magic, kind in _MAGIC:
        if contents.startswith(magic):
            return kind
    head = contents[:512].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "HTML"
    if head.startswith((b"<svg", b"<?xml")):
        return "SVG or XML"
    return ""


def ending_of(contents: bytes) -> str:
    """The file ending of a picture's format, `.jpg` for a JPEG; `` where it is no format that is decoded."""
    return _ENDINGS.get(kind_of(contents), "")


def misread(contents: bytes) -> str | None:
    """Why a picture that decodes without an error would still come out wrong; None where it would not."""
    if kind_of(contents) != "BMP" or len(contents) < 34:
        return None
    header_size, _, _, _, bits, compression = struct.unpack_from("<IiiHHI", contents, 14)
    if header_size >= 40 and compression not in (0, 3):
        return "a compressed BMP, which TensorFlow does not decode; save it as PNG or JPEG"
    if bits < 8 or (bits == 8 and _has_colours(contents, header_size)):
        return "a BMP with a colour palette, which TensorFlow does not decode; save it as PNG or JPEG"
    return None


def why_undecodable(contents: bytes) -> str:
    """Say why a file that the decoder refused cannot be used."""
    if not contents:
        return "empty file"
    kind = kind_of(contents)
    if kind == "HTML":
        return "an HTML page, not a picture"
    if kind in DECODABLE:
        if _is_cut(contents, kind):
            return f"truncated {kind}"
        if kind == "WebP" and contents[12:16] == b"VP8X" and len(contents) > 20 and contents[20] & 2:
            return "an animated WebP, which TensorFlow does not decode"
        return f"damaged {kind}"
    if kind in ("TIFF", "Photoshop", "ICO", "JPEG 2000", "AVIF", "HEIC or video", "SVG or XML"):
        return f"{kind}, which TensorFlow does not decode; save it as PNG or JPEG"
    if not contents.strip(b"\0"):
        return "only zero bytes, not a picture"
    return f"not a picture (a {kind} file)" if kind else "not a picture"


def _has_colours(contents: bytes, header_size: int) -> bool:
    """True unless an 8-bit BMP's palette is the plain ramp of greys, the one that its reader assumes."""
    start = 14 + header_size
    entry = 3 if header_size == 12 else 4
    end = int.from_bytes(contents[10:14], "little")
    palette = contents[start:end]
    entries = [palette[index : index + 3] for index in range(0, len(palette) - 2, entry)]
    return any(colour != bytes([level] * 3) for level, colour in enumerate(entries[:256]))


def _is_cut(contents: bytes, kind: str) -> bool:
    if kind == "JPEG":
        return b"\xff\xd9" not in contents[-64:]
    if kind == "PNG":
        return b"IEND" not in contents[-64:]
    if kind == "GIF":
        return b";" not in contents[-4:]
    offset, extra = (2, 0) if kind == "BMP" else (4, 8)
    return len(contents) < offset + 4 or int.from_bytes(contents[offset : offset + 4], "little") + extra > len(contents)
