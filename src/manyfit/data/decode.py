"""The one decoder: what training reads a picture with, and the verdict whether it can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from manyfit.data import sniff

if TYPE_CHECKING:
    import tensorflow as tf

# A JPEG above this many bytes of pixels is judged by a full decode: the quick one would not meet the decoder's limits.
_LARGEST_QUICK_CHECK = 1 << 28
# Decoding a JPEG at an eighth reads the whole stream and refuses what a full decode refuses, for less arithmetic.
_QUICK_RATIO = 8


def decode_image(contents: tf.Tensor | bytes) -> tf.Tensor:
    """Decode a JPEG, PNG, GIF (its first frame), BMP or WebP by its bytes, whatever the file is called.

    Grey, CMYK, palette, alpha and 16-bit pictures all come out as 8-bit RGB. Usable inside `tf.data`.

    Args:
        contents: The bytes of the file, a scalar string.

    Returns:
        uint8 [height, width, 3].

    Raises:
        tf.errors.InvalidArgumentError: the bytes are no picture, or a damaged one.
    """
    import tensorflow as tf

    image = tf.io.decode_image(contents, channels=3, expand_animations=False)
    image.set_shape([None, None, 3])
    return image


def why_unusable(contents: bytes) -> str | None:
    """Say why `decode_image` cannot read a file, in words; None where it can.

    Starts TensorFlow's devices: logical devices and memory growth must have been set before.
    """
    if not contents:
        return sniff.why_undecodable(contents)
    import tensorflow as tf

    try:
        with tf.device("CPU:0"):
            height, width = _decoded_size(contents)
    except (tf.errors.OpError, ValueError):
        return sniff.why_undecodable(contents)
    if height < 1 or width < 1:
        return "a picture without pixels"
    return sniff.misread(contents)


def _decoded_size(contents: bytes) -> tuple[int, int]:
    import tensorflow as tf

    if sniff.kind_of(contents) == "JPEG":
        quick: Any = tf.io.decode_jpeg(contents, channels=3, ratio=_QUICK_RATIO)
        height, width, channels = quick.shape
        if height * width * channels * _QUICK_RATIO**2 < _LARGEST_QUICK_CHECK:
            return height, width
    image: Any = decode_image(contents)
    return image.shape[0], image.shape[1]
