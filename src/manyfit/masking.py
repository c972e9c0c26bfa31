"""Secrets are masked before anything is written that others may read: log, record, diff, W&B's config.

What is one is told by its name (`api_key=`, `WANDB_API_KEY`), by its place (`https://USER:PASSWORD@host`), by its shape
(the prefixes that services give their tokens) or by being the value of such an environment variable.
"""

import os
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

MASK = "***"
SHORTEST_VALUE = 8
"""Shorter values of variables are words such as `true`; masking them would garble what is no secret."""

_WORDS = (
    r"(?:(?:api|access|secret|private|account|auth|encryption|signing|deploy|client|storage)[_\-]?key(?:[_\-]?id)?"
    r"|token|secret|passw(?:or)?d|passphrase|pwd|credentials?|authorization|netrc)"
)
_SECRET_NAME = re.compile(rf"(?:^|[._\-]){_WORDS}$", re.IGNORECASE)
# Every repetition below is bounded, or eats what it looks at: a long text must not take the square of its length.
_IN_URL = re.compile(r"(?P<scheme>\b[a-z][a-z0-9+.\-]{0,20}://)[^\s/?#'\"<>\\]*@", re.IGNORECASE)
_SHAPES = re.compile(
    r"""
      \b[spr]k[-_](?:[A-Za-z]{1,20}[-_]){0,3}[A-Za-z0-9]{16,}     # OpenAI, Stripe and those that took after them
    | \bgh[opsur]_[A-Za-z0-9]{20,} | \bgithub_pat_\w{20,} | \bglpat-[\w\-]{16,}
    | \bhf_[A-Za-z0-9]{20,} | \bnpm_[A-Za-z0-9]{20,} | \bpypi-[\w\-]{20,} | \bdop_v1_[0-9a-f]{20,}
    | \bwandb_v\d{1,3}_\w{16,} | \blocal-[0-9a-f]{40}\b
    | \bxox[abeoprs]-[A-Za-z0-9\-]{10,} | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b | \bAIza[\w\-]{30,}
    | \beyJ[\w\-]{10,2000}\.[\w\-]{10,2000}\.[\w\-]{10,}        # JSON web tokens
    | -----BEGIN\ [A-Z ]{0,40}PRIVATE\ KEY-----.*?(?:-----END\ [A-Z ]{0,40}PRIVATE\ KEY-----|\Z)
    """,
    re.VERBOSE | re.DOTALL,
)
_BEARER = re.compile(r"(?P<before>\b(?:Bearer|Basic)\s{1,9})(?P<value>[\w.~+/\-]{8,}=*)")
_VALUE = r"""(?P<value>"[^"\n]*"|'[^'\n]*'|[^\s,;&"'(){}\[\]]+)"""
_ASSIGNED = re.compile(
    rf"""(?P<before>(?<![A-Za-z0-9]){_WORDS}["']?[ ]?[=:][ ]?){_VALUE}""",
    re.IGNORECASE,
)
_FLAG = re.compile(rf"(?P<before>--(?:[\w\-]{{0,40}}[\-_])?{_WORDS}\s{{1,9}})(?!-){_VALUE}", re.IGNORECASE)
_NOTHING = ("", "null", "none", "true", "false", "auto", MASK)


def is_secret_name(name: str) -> bool:
    """Whether a key, flag or variable of this name holds a secret.

    >>> [is_secret_name(name) for name in ("WANDB_API_KEY", "db.password", "--hf-token", "monkey", "num_tokens")]
    [True, True, True, False, False]
    """
    return bool(_SECRET_NAME.search(name.strip("-+~")))


def mask_text(text: str, environment: Mapping[str, str] | None = None) -> str:
    """`text` with every secret in it replaced.

    >>> mask_text("git clone https://me:hunter2@host/x.git token=abc123", {})
    'git clone https://***@host/x.git token=***'

    Args:
        environment: Variables whose secret values are looked for; None for this process's own.
    """
    if not text:
        return text
    values = _secret_values(tuple((os.environ if environment is None else environment).items()))
    if values is not None:
        text = values.sub(MASK, text)
    text = _SHAPES.sub(MASK, text)
    text = _IN_URL.sub(lambda found: f"{found['scheme']}{MASK}@", text)
    for pattern in (_BEARER, _FLAG, _ASSIGNED):
        text = pattern.sub(_mask_value, text)
    return text


def mask(value: Any, environment: Mapping[str, str] | None = None) -> Any:
    """A nested value of dicts, lists and text with every secret in it replaced; what holds none is equal.

    >>> mask({"root": "/photos", "api_key": "abc", "urls": ["s3://key:secret@bucket"]}, {})
    {'root': '/photos', 'api_key': '***', 'urls': ['s3://***@bucket']}
    """
    if isinstance(value, str):
        return mask_text(value, environment)
    if isinstance(value, Mapping):
        return {key: MASK if _is_secret(key, inner) else mask(inner, environment) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(mask(inner, environment) for inner in value)
    return value


def _is_secret(key: Any, value: Any) -> bool:
    return isinstance(value, str) and value.lower() not in _NOTHING and is_secret_name(str(key))


def _mask_value(found: re.Match[str]) -> str:
    value = found["value"]
    if value.strip("\"'").lower() in _NOTHING:
        return found[0]
    quote = value[0] if value[0] in "\"'" else ""
    return f"{found['before']}{quote}{MASK}{quote}"


@lru_cache(maxsize=4)
def _secret_values(variables: tuple[tuple[str, str], ...]) -> re.Pattern[str] | None:
    """What finds the values of the variables whose names say that they are secrets; None where there are none."""
    found = {
        value
        for name, value in variables
        if is_secret_name(name) and len(value) >= SHORTEST_VALUE and not os.path.isabs(value)
    }
    longest_first = sorted(found, key=len, reverse=True)
    return re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
