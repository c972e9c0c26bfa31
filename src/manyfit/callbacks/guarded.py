"""A callback that may fail without ending the training."""

from collections.abc import Callable
from typing import Any

import keras

HOOKS = tuple(name for name in dir(keras.callbacks.Callback) if name.startswith("on_"))


class Guarded(keras.callbacks.Callback):
    """Passes everything to another callback until it raises; from then on it is left out.

    Args:
        make: Makes the callback, at the start of the training; may raise as well.
        give_up: Gets the exception, once.
    """

    def __init__(self, make: Callable[[], keras.callbacks.Callback], give_up: Callable[[Exception], Any]):
        super().__init__()
        self._make = make
        self._give_up = give_up
        self._inner: keras.callbacks.Callback | None = None
        self._failed = False

    def set_model(self, model: keras.Model) -> None:
        """Tell which model trains now."""
        super().set_model(model)
        if self._inner is not None:
            self._inner.set_model(model)

    def _forward(self, hook: str, *arguments: Any, **keywords: Any) -> None:
        if self._failed:
            return
        try:
            inner = self._inner
            if inner is None:
                self._inner = inner = self._make()
                inner.set_params(self.params or {})
                inner.set_model(self.model)
            getattr(inner, hook)(*arguments, **keywords)
        except Exception as error:  # whatever a tracker raises, the training is worth more
            self._failed = True
            self._give_up(error)


def _forwarder(hook: str) -> Callable[..., None]:
    def forward(self: Guarded, *arguments: Any, **keywords: Any) -> None:
        self._forward(hook, *arguments, **keywords)

    forward.__name__ = hook
    return forward


for _hook in HOOKS:
    setattr(Guarded, _hook, _forwarder(_hook))
