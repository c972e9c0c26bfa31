"""The group `augment`: ranges, what counts as active, and the rows that mixing needs."""

import math
from dataclasses import fields

import pytest

from manyfit.errors import ConfigError
from manyfit.schema.augment import AugmentConfig, LightAugmentConfig, StrongAugmentConfig, check_rows

OFF = {f.name: 0.0 for f in fields(LightAugmentConfig) if f.name != "name"}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *[("flip", -0.1), ("flip", 1.1), ("crop", -0.1), ("crop", 1.0), ("rotation", -1.0), ("rotation", 181.0)],
        *[("colour", -0.1), ("colour", 1.1), ("mixup", -1.0), ("mixup", math.inf), ("cutmix", math.nan)],
        *[("randaugment", -1.0), ("randaugment", 10.5), ("crop", math.nan), ("flip", math.nan)],
    ],
)
def test_a_dial_out_of_its_range_is_refused(key, value):
    for choice in (LightAugmentConfig, StrongAugmentConfig):
        with pytest.raises(ConfigError) as caught:
            choice(**{key: value})
        assert f"augment.{key}={value} is out of range." in caught.value.message
        assert caught.value.remedy.startswith("Give a ")


def test_it_is_active_where_any_dial_is_above_zero():
    assert not AugmentConfig().active
    assert not LightAugmentConfig(**OFF).active
    assert LightAugmentConfig().active and StrongAugmentConfig().active
    for key in OFF:
        assert LightAugmentConfig(**{**OFF, key: 0.5}).active


def test_mixing_needs_an_even_number_of_rows():
    for rows in (1, 7):
        for config in (AugmentConfig(), LightAugmentConfig()):
            check_rows(config, rows)
    check_rows(StrongAugmentConfig(), 8)
    with pytest.raises(ConfigError) as caught:
        check_rows(StrongAugmentConfig(), 7)
    assert "augment.mixup and augment.cutmix mix the rows" in caught.value.message
    assert "a replica gets 7 rows" in caught.value.message
    assert "batch.per_replica_batch_size=8" in caught.value.remedy
    assert "augment.mixup=0 augment.cutmix=0" in caught.value.remedy
    with pytest.raises(ConfigError, match=r"augment\.mixup mixes the rows .* gets 1 row at a time"):
        check_rows(LightAugmentConfig(mixup=0.2), 1)
