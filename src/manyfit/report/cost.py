"""What runs cost: from the price of the machine and the seconds they took. No price, no claim."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from manyfit.errors import ConfigError
from manyfit.report.runs import Run
from manyfit.report.system_samples import number
from manyfit.schema.cost import CostConfig

_SIGNS = {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥"}


@dataclass(frozen=True)
class Cost:
    """What one run cost, in `currency`; a part is None where its seconds are not known.

    Args:
        per_hour: Of all that the run used.
        run: From the start of the process to its end, without the probe.
        epoch: Training and validation of an epoch, start-up left out.
        million_images: Training on a million examples at the run's steady speed.
        target: From the start until the target accuracy was reached.
    """

    currency: str
    per_hour: float
    run: float | None
    epoch: float | None
    million_images: float | None
    target: float | None = None


def price_of(run: Run, override: Mapping[str, Any] | None = None) -> CostConfig | None:
    """The price of a run: what its configuration says, and over it what the command line gives; None if none is known.

    Raises:
        ConfigError: a price, unit or currency that is none.
    """
    settings = run.settings or {}
    said = {key: settings.get(f"cost.{key}") for key in ("price_per_hour", "per", "currency")}
    said = {key: value for key, value in said.items() if value is not None}
    said |= {key: value for key, value in (override or {}).items() if value is not None}
    try:
        price = CostConfig(**said)
    except TypeError:
        raise ConfigError(f"The prices of {run.name} cannot be read: {said}.", "Give --price NUMBER.") from None
    return None if number(price.price_per_hour) is None else price


def cost_of(run: Run, price: CostConfig | None, target: float | None = None) -> Cost | None:
    """What a run cost; None without a price, or with a price a device where the devices are not known."""
    if price is None or price.price_per_hour is None:
        return None
    devices = run.num_devices if price.per == "device" else run.num_machines
    if devices is None:
        return None
    per_hour = price.price_per_hour * devices

    def of(seconds: float | None) -> float | None:
        return None if seconds is None else seconds / 3600 * per_hour

    speed = run.images_per_second
    return Cost(
        price.currency,
        per_hour,
        of(run.total_seconds),
        of(run.epoch_seconds),
        of(1e6 / speed if speed else None),
        of(run.seconds_to(target) if target is not None else None),
    )


def money(amount: float | None, currency: str) -> str:
    """An amount for people: cents where there are any, two digits where it is less.

    >>> money(1234.5, "USD"), money(0.1049, "EUR"), money(0.00123, "GBP"), money(3, "CHF"), money(0, "USD")
    ('$1,234.50', '€0.10', '£0.0012', 'CHF 3.00', '$0.00')
    """
    if amount is None:
        return "-"
    sign = _SIGNS.get(currency, f"{currency} ")
    size = abs(amount)
    text = f"{size:,.2f}" if size >= 0.1 or size == 0 else f"{float(f'{size:.2g}'):f}".rstrip("0")
    minus = "-" if amount < 0 else ""
    return f"{minus}{sign}{text}"
