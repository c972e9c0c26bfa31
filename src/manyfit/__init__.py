"""The same Keras fit, on one device or many: `run` trains and returns the record, `compare` shows what runs came to.

In Python and in notebooks: `record = manyfit.run(["strategy=mirrored", "data=mnist"])`, `manyfit.compare(run, other)`.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from manyfit.verbs import ConfigError, UserError, compare, run

__all__ = ["ConfigError", "UserError", "compare", "run"]


def __getattr__(name: str) -> Any:
    """The verbs, imported when they are first asked for: every module of the package imports this one."""
    if name not in __all__:
        raise AttributeError(f"module 'manyfit' has no attribute {name!r}")
    from manyfit import verbs

    return getattr(verbs, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
