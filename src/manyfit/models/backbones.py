"""Backbones of keras.applications with a head on top, and where their weights come from."""

import contextlib
import importlib
import io
import re
import socket
import warnings
from collections.abc import Callable
from pathlib import Path

import keras
from keras import layers

from manyfit.config import ApplicationConfig, BackboneConfig, HeadConfig, MobileNetV2Config, nearest
from manyfit.errors import ConfigError, UserError
from manyfit.models import rehearsal as rehearsal_backbone
from manyfit.models.network import Network, class_scores
from manyfit.models.stochastic_depth import with_rate
from manyfit.models.trainable import set_layers

IMAGENET_SIZES = (96, 128, 160, 192, 224)
IMAGENET_ALPHAS = (0.35, 0.5, 0.75, 1.0, 1.3, 1.4)


def build_mobilenet_v2(
    config: MobileNetV2Config, image_shape: tuple[int, int, int], num_classes: int, rehearsal: bool = False
) -> Network:
    """MobileNetV2 with a head; in a rehearsal without ImageNet weights, the rehearsal backbone."""
    alpha, weights, notices = config.alpha, config.weights, []
    if weights == "imagenet":
        size = image_shape[0] if image_shape[0] in IMAGENET_SIZES else 224
        if alpha not in IMAGENET_ALPHAS:
            raise ConfigError(
                f"model.alpha={alpha} has no ImageNet weights.",
                f"Give one of {', '.join(map(str, IMAGENET_ALPHAS))}, or model.weights=none.",
            )
        name = f"mobilenet_v2_weights_tf_dim_ordering_tf_kernels_{float(alpha)}_{size}_no_top.h5"
        if rehearsal and not (keras_models_folder() / name).exists():
            notices.append(
                "ImageNet weights are not here: the rehearsal backbone (MobileNetV2, alpha 0.35, trained on drawings) "
                "takes their place."
            )
            alpha, weights = 0.35, "rehearsal"
    backbone = _create(keras.applications.MobileNetV2, image_shape, weights, alpha=alpha)
    if weights == "rehearsal":
        try:
            rehearsal_backbone.load_rehearsal_weights(backbone)
        except ValueError as error:
            raise UserError(str(error)) from error
    preprocess = keras.applications.mobilenet_v2.preprocess_input
    return _with_head(config, backbone, preprocess, num_classes, weights, tuple(notices))


def build_application(
    config: ApplicationConfig, image_shape: tuple[int, int, int], num_classes: int, rehearsal: bool = False
) -> Network:
    """Any backbone of keras.applications, by name, with that application's own preprocessing."""
    create = getattr(keras.applications, config.name, None)
    if not callable(create):
        names = [name for name in dir(keras.applications) if name[0].isupper()]
        raise ConfigError(f"model.name={config.name} is not in keras.applications.", nearest(config.name, names))
    module = importlib.import_module(f"keras.applications.{create.__module__.rpartition('.')[2]}")
    backbone = with_rate(_create(create, image_shape, config.weights), config.stochastic_depth)
    return _with_head(config, backbone, module.preprocess_input, num_classes, config.weights)


def keras_models_folder() -> Path:
    """The folder in which Keras keeps downloaded weights."""
    from keras import config

    keras_home = getattr(config, "keras_home", None)
    return Path(keras_home() if keras_home else "~/.keras").expanduser() / "models"


def _create(create: Callable, image_shape: tuple[int, int, int], weights: str, **kwargs) -> keras.Model:
    """The backbone with its weights, or a ConfigError that says how to get them."""
    source = None if weights in ("none", "rehearsal") else weights
    if source not in (None, "imagenet"):
        source = str(Path(source).expanduser())
        if not Path(source).is_file():
            raise ConfigError(
                f"model.weights={weights} is not a file.", "Give a path, 'imagenet', or 'none' for random weights."
            )
    timeout = socket.getdefaulttimeout()
    socket.setdefaulttimeout(20)
    try:
        # A download's progress is no line of ours, and here it mostly precedes a failure that is explained.
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            # Keras warns that a size without weights of its own gets those of 224 pixels: intended here.
            warnings.filterwarnings("ignore", message="`input_shape` is undefined or non-square")
            return create(include_top=False, weights=source, input_shape=image_shape, **kwargs)
    except Exception as error:
        if source is None:
            raise ConfigError(
                f"{create.__name__} cannot be built for pictures of {image_shape}: {error}",
                "Give another model.image_size; many backbones need at least 32.",
            ) from error
        raise _explain_weights(create.__name__, weights, error) from error
    finally:
        socket.setdefaulttimeout(timeout)


def _explain_weights(backbone: str, weights: str, error: Exception) -> ConfigError:
    url = re.search(r"https?://\S+?([^/\s:]+\.h5)", str(error))
    if weights == "imagenet" and url:
        return ConfigError(
            f"The ImageNet weights of {backbone} are not in Keras' cache and cannot be downloaded.",
            f"On a machine with a network get {url.group(1)} (Keras downloads it into its cache) and copy it to "
            f"{keras_models_folder()}/, or give model.weights=PATH, or model.weights=none to train from scratch.",
        )
    reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
    return ConfigError(
        f"model.weights={weights} does not fit {backbone}: {reason}",
        "Give weights that were saved from this backbone without its top (and the same model.alpha).",
    )


def _with_head(
    config: BackboneConfig,
    backbone: keras.Model,
    preprocess: Callable,
    num_classes: int,
    weights: str,
    notices: tuple[str, ...] = (),
) -> Network:
    set_layers(backbone, config.trainable)
    pixels = keras.Input(backbone.input_shape[1:], dtype="uint8", name="pixels")
    features = backbone(preprocess(keras.ops.cast(pixels, "float32")))
    features = layers.GlobalAveragePooling2D(name="pool")(features)
    feature_model = keras.Model(pixels, features, name="backbone_features")
    head = build_head(config.head, feature_model.output_shape[-1], num_classes)
    model = keras.Model(pixels, head(features), name=config.name)
    return Network(model, feature_model, head, weights, notices)


def build_head(config: HeadConfig, num_features: int, num_classes: int) -> keras.Model:
    """Features to class scores: dense, dropout, logits."""
    inputs = keras.Input((num_features,), name="features")
    x = layers.Dense(config.units, activation="relu", name="dense")(inputs)
    x = layers.Dropout(config.dropout, name="dropout")(x)
    return keras.Model(inputs, class_scores(num_classes)(x), name="head")
