"""Secrets are masked by name, place, shape and value; what is none stays as it is."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit.masking import mask, mask_text

KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("train.py api_key=abc epochs=3", "train.py api_key=*** epochs=3"),
        ("tracker.notes='token: abcdef'", "tracker.notes='token: ***'"),
        ('{"password": "x y", "a": 1}', '{"password": "***", "a": 1}'),
        (f"export WANDB_API_KEY={KEY}", "export WANDB_API_KEY=***"),
        ("--hf-token abc --epochs 3", "--hf-token *** --epochs 3"),
        ("git clone https://me:pass@host/a.git", "git clone https://***@host/a.git"),
        ("postgres://u:p@ss@host/db", "postgres://***@host/db"),
        ("s3://AK:SE@b/p?token=xyz&part=1", "s3://***@b/p?token=***&part=1"),
        ("Authorization: Bearer abcdefghij", "Authorization: *** ***"),
        ("sent Bearer abcdefghij", "sent Bearer ***"),
        ("+DB_PASSWORD = 'hunter2'", "+DB_PASSWORD = '***'"),
        ("is ghp_abcdefghijklmnopqrstuvwx there", "is *** there"),
        ("sk-proj-abcdefghijklmnop1234", "***"),
        ("AKIAABCDEFGHIJKLMNOP", "***"),
        ("-----BEGIN RSA PRIVATE KEY-----\nabc\n-----END RSA PRIVATE KEY-----\nrest", "***\nrest"),
    ],
)
def test_a_secret_is_masked(text, masked):
    assert mask_text(text, {}) == masked
    assert mask_text(masked, {}) == masked


@pytest.mark.parametrize(
    "text",
    [
        f"commit {KEY}",
        "num_tokens=512 monkey=banana tokenizer=x keys: 4",
        "token=null secret=",
        "https://host/path?x=1 and a@b.c",
        "epoch/val_accuracy 0.5: best",
        "data.root=/photos/api_keys/1",
    ],
)
def test_what_is_no_secret_stays(text):
    assert mask_text(text, {}) == text


def test_the_values_of_secret_variables_are_found_anywhere():
    environment = {"WANDB_API_KEY": KEY, "MY_TOKEN": "short", "HOME": "/home/user", "TOKEN_FILE": "12345678"}
    assert mask_text(f"a {KEY}b short /home/user 12345678", environment) == "a ***b short /home/user 12345678"


def test_nested_values_are_masked_by_their_names():
    values = {"wandb": {"api_key": "abc", "tags": ("a", "token=b")}, "password": None, "epochs": 3, "secret": 4}
    assert mask(values, {}) == {
        "wandb": {"api_key": "***", "tags": ("a", "token=***")},
        "password": None,
        "epochs": 3,
        "secret": 4,
    }


@given(st.text(alphabet="abk-_.:/=@'\" \ntokenS3s", max_size=200))
def test_masking_again_changes_nothing(text):
    once = mask_text(text, {})
    assert mask_text(once, {}) == once


@pytest.mark.parametrize(
    "part", ["a", "name_x.", "sk-a-", "http://", "--token-", "token=", "-eyJabcdefghij", 'token="']
)
def test_long_texts_take_no_square_of_their_length(part):
    started = time.process_time()
    mask_text(part * (300_000 // len(part)), {})
    assert time.process_time() - started < 5
