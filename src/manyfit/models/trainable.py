"""Which layers train: those of a backbone by `none`, `all`, the last ones or their names, and its batch norm."""

import fnmatch
from collections.abc import Sequence
from typing import Any

import keras

from manyfit.coupled_layers import hold_statistics, let_go
from manyfit.errors import ConfigError
from manyfit.models.network import Network
from manyfit.replicated import ReplicatedModel
from manyfit.schema.checks import last_layers, nearest


def of_network(network: Network, trainable: Any, *, batch_norm: str, key: str) -> None:
    """Let the layers of a network train, and its batch norm learn statistics or keep those that it has.

    The head of a network that has one always trains, whatever is asked of its backbone.

    Args:
        trainable: As `set_layers`; None leaves it as it is.
        batch_norm: `inference`, `train`, or `auto`: `inference` for a backbone that came with weights.
        key: What the user asked it by.

    Raises:
        ConfigError: no such layers, or nothing would train.
    """
    part = backbone_of(network)
    if trainable is not None:
        if trainable == "none" and network.head is None:
            raise ConfigError(
                f"{key}=none, but the model has no head apart from a backbone: nothing would train.", _GIVE
            )
        set_layers(part, trainable, key)
    has_backbone = network.backbone is not None
    keeps = batch_norm == "inference" or (batch_norm == "auto" and has_backbone and network.weights != "none")
    for layer in part._flatten_layers():
        if isinstance(layer, keras.layers.BatchNormalization):
            hold_statistics(layer) if keeps and layer.trainable else let_go(layer)


_GIVE = "Give 'all', last:N, or patterns of layer names."


def backbone_of(network: Network) -> keras.Model:
    """The layers of which some may be frozen: the backbone without what prepares its pictures, else the whole model."""
    if network.backbone is None:
        return network.model.network if isinstance(network.model, ReplicatedModel) else network.model
    inner = [layer for layer in network.backbone.layers if isinstance(layer, keras.Model)]
    return inner[0] if inner else network.backbone


def set_layers(backbone: keras.Model, trainable: Any, key: str = "model.trainable") -> None:
    """Let some layers of `backbone` train and freeze the others.

    Args:
        trainable: `none`, `all`, `last:N` or N for its last N layers, or patterns of layer names (`*`, `?`, `[56]`),
            one or a list.
        key: What the user asked it by.

    Raises:
        ConfigError: more layers than there are, or a name that none has.
    """
    backbone.trainable = trainable != "none"
    if trainable in ("none", "all"):
        for layer in backbone.layers:  # Keras passes on what changes alone
            layer.trainable = trainable == "all"
        return
    count = last_layers(trainable)
    if count is not None:
        if count > len(backbone.layers):
            raise ConfigError(
                f"{key}={trainable} is more than the {len(backbone.layers)} layers of the backbone.",
                "Give fewer layers, or 'all'.",
            )
        chosen = backbone.layers[-count:]
    else:
        chosen = _named(backbone.layers, [trainable] if isinstance(trainable, str) else trainable, key)
    for layer in backbone.layers:
        layer.trainable = layer in chosen
    if not backbone.trainable_variables:
        raise ConfigError(f"{key}={trainable}: none of these layers has weights that can train.", _GIVE)


def _named(layers: Sequence[keras.layers.Layer], patterns: Sequence[str], key: str) -> list[keras.layers.Layer]:
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(layer.name, pattern) for layer in layers):
            names = [layer.name for layer in layers]
            shown = nearest(pattern, names).partition("Choices:")[0]
            raise ConfigError(
                f"{key}: no layer of the backbone has a name like {pattern}.",
                f"{shown}It has {', '.join([*names[:3], '...', *names[-6:]] if len(names) > 12 else names)}.",
            )
    return [layer for layer in layers if any(fnmatch.fnmatchcase(layer.name, pattern) for pattern in patterns)]


def counts(network: Network) -> dict[str, int]:
    """How much of a network trains now: `num_trainable_parameters` and `num_trainable_layers`, those with weights."""
    model = network.model
    layers = [layer for layer in model._flatten_layers(include_self=False) if not isinstance(layer, keras.Model)]
    return {
        "num_trainable_parameters": sum(int(keras.ops.size(variable)) for variable in model.trainable_variables),
        "num_trainable_layers": sum(bool(layer.trainable_variables) for layer in layers),
    }
