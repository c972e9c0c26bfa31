"""A saved model: loaded without running any code from its file, and its scores as probabilities."""

from pathlib import Path

import keras
import numpy as np

from manyfit.config import ModelConfig
from manyfit.errors import UserError
from manyfit.models.module import import_factory


def load_network(path: Path, config: ModelConfig, num_classes: int) -> keras.Model:
    """The network in a `.keras` file, uint8 pixels to class scores; call it inside the scope of the strategy.

    Args:
        path: The file.
        config: What the run asked for; a model of the user's own needs the user's module.
        num_classes: Classes that its record names.

    Raises:
        UserError: the file is damaged, holds code, or a model that does not fit the classes.
    """
    if config.builder == "module":
        import_factory(config)
    try:
        network = keras.models.load_model(path, compile=False, safe_mode=True)
    except Exception as error:  # whatever Keras, HDF5 and ZIP raise for bytes that are no model
        reason = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
        raise UserError(f"{path} cannot be loaded: {reason}", "The file may be damaged; train again.") from error
    outputs = network.output_shape[-1]
    if outputs != num_classes and (outputs, num_classes) != (1, 2):
        raise UserError(
            f"{path} gives {outputs} scores a picture, but its record names {num_classes} classes.",
            "Restore the record and the model of one and the same run.",
        )
    return network


def probabilities(scores: np.ndarray) -> np.ndarray:
    """Class scores (logits) as probabilities, float64 [n, classes]; one score tells two classes apart.

    >>> probabilities(np.array([[0.0]])).tolist(), probabilities(np.array([[1.0, 1.0, 1.0, 1.0]])).tolist()
    ([[0.5, 0.5]], [[0.25, 0.25, 0.25, 0.25]])
    """
    scores = np.asarray(scores, np.float64)
    if scores.shape[-1] == 1:
        scores = np.concatenate([np.zeros_like(scores), scores], axis=-1)
    raised = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return raised / raised.sum(axis=-1, keepdims=True)
