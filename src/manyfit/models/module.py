"""A model of the user's own, from a factory function."""

import importlib
import inspect
import sys
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from manyfit.config import ModuleConfig
from manyfit.errors import ConfigError
from manyfit.models.network import Network


def build_module(
    config: ModuleConfig, image_shape: tuple[int, int, int], num_classes: int, rehearsal: bool = False
) -> Network:
    """What `factory(input_shape=..., num_classes=...)` returns: a built keras.Model from pixels to class scores.

    It may also return a `ReplicatedModel` of its own, whose `example_losses` is the user's training step.

    Raises:
        ConfigError: no such function, or what it returns is not a model built inside the strategy's scope.
    """
    factory = import_factory(config)
    model: Any = factory(input_shape=image_shape, num_classes=num_classes)
    if not isinstance(model, keras.Model):
        raise ConfigError(
            f"model.factory={config.factory} returned {type(model).__name__}, expected a keras.Model.",
            "Return the model that the function builds.",
        )
    if not model.built:
        raise ConfigError(
            f"model.factory={config.factory} returned a model that is not built.",
            "Use the functional API with keras.Input(input_shape, dtype='uint8'), or call model.build(...) first.",
        )
    strategy = tf.distribute.get_strategy()
    if any(not strategy.extended.variable_created_in_scope(variable.value) for variable in model.variables):
        raise ConfigError(
            f"model.factory={config.factory} returned a model that was built outside the strategy's scope, "
            "so that its variables exist on one device only.",
            "Build the model inside the function, at each call, not at import.",
        )
    return Network(model, loss=model.loss if model.compiled else None)


def import_factory(config: ModuleConfig):
    """The factory function of `config`; importing it also registers the user's own Keras classes.

    Raises:
        ConfigError: there is no such module or function.
    """
    name = config.factory
    module_name, _, function_name = name.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"model.factory={name}: there is no module {error.name}.",
            "Give a module that can be imported from the launch directory, or set PYTHONPATH.",
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise ConfigError(
            f"model.factory={name}: {module_name} has no function {function_name}.", "Give module:function."
        )
    try:
        inspect.signature(function).bind(input_shape=(8, 8, 1), num_classes=2)
    except TypeError as error:
        raise ConfigError(
            f"model.factory={name} cannot be called with input_shape and num_classes: {error}.",
            f"Define it as: def {function_name}(input_shape, num_classes).",
        ) from error
    except ValueError:
        pass  # a callable without a signature: the call will tell
    return function
