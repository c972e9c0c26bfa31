"""Several fits as one training: what the callbacks of a run with phases see."""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from manyfit.callbacks.guarded import HOOKS


class Spanning(keras.callbacks.Callback):
    """Passes everything on, but the beginning of the training only once and its end only from the last fit.

    Args:
        callbacks: Whom it passes everything on to, in this order.
        epochs: Of the whole training.

    Attributes:
        is_last: Whether the fit that runs, or comes next, is the last one.
    """

    def __init__(self, callbacks: Sequence[keras.callbacks.Callback], epochs: int):
        super().__init__()
        self.is_last = True
        self._callbacks = list(callbacks)
        self._epochs = epochs
        self._has_begun = False

    def set_params(self, params: dict[str, Any]) -> None:
        """Tell how long the whole training is."""
        super().set_params(params)
        for callback in self._callbacks:
            callback.set_params({**params, "epochs": self._epochs})

    def set_model(self, model: keras.Model) -> None:
        """Tell which model trains now."""
        super().set_model(model)
        for callback in self._callbacks:
            callback.set_model(model)

    def _pass_on(self, hook: str, *arguments: Any, **keywords: Any) -> None:
        if hook == "on_train_begin":
            if self._has_begun:
                return
            self._has_begun = True
        if hook == "on_train_end" and not self.is_last:
            return
        for callback in self._callbacks:
            getattr(callback, hook)(*arguments, **keywords)


def _passing(hook: str) -> Callable[..., None]:
    def pass_on(self: Spanning, *arguments: Any, **keywords: Any) -> None:
        self._pass_on(hook, *arguments, **keywords)

    pass_on.__name__ = hook
    return pass_on


for _hook in HOOKS:
    setattr(Spanning, _hook, _passing(_hook))
