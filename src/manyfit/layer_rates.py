"""Discriminative learning rates: the deeper a layer lies below the head, the smaller its updates.

Howard and Ruder 2018, "Universal language model fine-tuning" (arXiv:1801.06146), section 3.2, by layers; Bao et al.
2021, "BEiT" (arXiv:2106.08254), by blocks, as here: the rate of a block is `decay` times that of the one above it.
"""

import re
from collections.abc import Sequence

import keras
import tensorflow as tf

from manyfit.fused_updates import FusedStep
from manyfit.models.network import Network
from manyfit.models.trainable import backbone_of

_BLOCK = re.compile(r"(?:.*?stage_?\d+_)?(?:.*?block_?\d+[a-z]?|expanded_conv(?:_\d+)?)(?=_|$)")
_NORMALISATIONS = (keras.layers.BatchNormalization, keras.layers.LayerNormalization, keras.layers.GroupNormalization)


def blocks(layers: Sequence[keras.layers.Layer]) -> list[list[keras.layers.Layer]]:
    """Layers with weights, in their order, as blocks: those whose names begin with the name of one block, such as
    `block_12_expand` and `block_12_project_BN`; a layer outside of blocks is one of its own, with its normalisation.
    """
    found: list[list[keras.layers.Layer]] = []
    open_name = None
    for layer in layers:
        if not layer.weights:
            continue
        match = _BLOCK.match(layer.name)
        name = match[0] if match else None
        joins = (name is not None and name == open_name) or isinstance(layer, _NORMALISATIONS)
        if found and joins:
            found[-1].append(layer)
        else:
            found.append([layer])
            open_name = name
    return found


def factors(network: Network, decay: float) -> dict[str, float]:
    """What the rate of each variable that is not of the head is multiplied by, by the variable's path.

    Where a network has a head, its backbone's last block has `decay`; else its own last block has 1.
    """
    deepest_last = blocks(backbone_of(network).layers)[::-1]
    first = 1 if network.head is not None else 0
    return {
        variable.path: decay ** (first + depth)
        for depth, block in enumerate(deepest_last)
        for layer in block
        for variable in layer.weights
    }


def scale(optimizer: keras.optimizers.Optimizer, by_path: dict[str, float]) -> None:
    """Let `optimizer`, which is built, update each variable with its own share of the learning rate.

    The rate enters every rule as a factor of the update, and of the decoupled weight decay; the gradient, what is
    clipped, and Adam's moments stay what they are. Only the running instance changes.
    """
    own = [by_path.get(variable.path, 1.0) for variable in optimizer._trainable_variables]
    if all(factor == 1.0 for factor in own):
        return
    whole_step, decays = optimizer.update_step, optimizer.weight_decay is not None

    def factor_of(variable) -> float:
        return own[optimizer._get_variable_index(variable)]

    def update_step(gradient, variable, learning_rate) -> None:
        factor = factor_of(variable)
        if factor == 1.0:
            whole_step(gradient, variable, learning_rate)
        elif isinstance(whole_step, FusedStep):
            whole_step(gradient, variable, learning_rate, factor)
        else:
            whole_step(gradient, variable, tf.convert_to_tensor(learning_rate) * factor)

    optimizer.update_step = update_step
    if decays:
        optimizer._apply_weight_decay = lambda variables: _decay(optimizer, variables, factor_of)


def _decay(optimizer, variables, factor_of) -> None:
    """Keras' decoupled weight decay, `w -= w * decay * rate`, with the rate of each variable."""

    def shrink(variable) -> None:
        rate = tf.cast(optimizer.learning_rate, variable.dtype) * factor_of(variable)
        variable.assign_sub(variable * tf.cast(optimizer.weight_decay, variable.dtype) * rate)

    def shrink_all(strategy, wanted) -> None:
        for variable in wanted:
            if optimizer._use_weight_decay(variable):
                value = variable.value if isinstance(variable, keras.Variable) else variable
                strategy.extended.update(value, shrink, group=False)

    tf.__internal__.distribute.interim.maybe_merge_call(shrink_all, optimizer._distribution_strategy, variables)
