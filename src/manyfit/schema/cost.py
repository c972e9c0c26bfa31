"""The section `cost`: what the machine costs, which turns seconds into money."""

from dataclasses import dataclass

from manyfit.errors import ConfigError
from manyfit.schema.checks import at_least, one_of

PER = ("machine", "device")


@dataclass
class CostConfig:
    """The price of the machine, for `src/compare.py` and `src/scale.py`; training does not use it.

    Args:
        price_per_hour: In `currency`; None where it is not known: then nothing is said about cost.
        per: Whether that is the price of the whole `machine` or of each `device` that the run uses.
        currency: Its code, three capital letters (ISO 4217).
    """

    price_per_hour: float | None = None
    per: str = "machine"
    currency: str = "USD"

    def __post_init__(self) -> None:
        at_least("cost.price_per_hour", self.price_per_hour, 0)
        one_of("cost.per", self.per, PER)
        if not (len(self.currency) == 3 and self.currency.isascii() and self.currency.isalpha()):
            raise ConfigError(f"cost.currency={self.currency} is not a currency.", "Give its code: USD, EUR, GBP.")
        if not self.currency.isupper():
            raise ConfigError(f"cost.currency={self.currency} is not a currency.", f"Write {self.currency.upper()}.")
