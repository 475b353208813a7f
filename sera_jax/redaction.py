"""Settings and metrics as JSON, without the secrets among them."""

import dataclasses
import math
import pathlib
import re
from collections.abc import Mapping
from typing import Any

# Names whose value is a secret. "api_key_env" names a variable and "max_new_tokens" counts: kept.
_SECRET_NAME = re.compile(
    r"(^|_)(key|secret|password|passwd|credentials?|authorization|bearer)$"
    r"|apikey$|^token$|(access|api|auth|bearer|hf|hub|refresh|wandb)_token$",
    re.IGNORECASE,
)
# Values that are one whatever their name: well-known prefixes, and passwords inside a URL.
_SECRET_VALUE = re.compile(r"\b(sk-|hf_|gh[pousr]_|xox[abp]-)[A-Za-z0-9_-]{12,}")
_URL_PASSWORD = re.compile(r"(?<=://)[^/\s:@]+:[^/\s@]+(?=@)")
_SECRET_FLAG = re.compile(r"^--?(?:[\w-]+\.)*([\w-]+)(=.*)?$", re.DOTALL)
HIDDEN = "[hidden]"


def redacted(value: Any) -> Any:
    """`value` as JSON data, entries with a secret's name dropped, secrets inside text hidden."""
    value = plain(value)
    if isinstance(value, dict):
        return {k: redacted(v) for k, v in value.items() if not _is_secret_name(k)}
    if isinstance(value, list):
        return _redacted_list(value)
    if isinstance(value, str):
        return _SECRET_VALUE.sub(HIDDEN, _URL_PASSWORD.sub(HIDDEN, value))
    return value


def plain(value: Any) -> Any:
    """`value` as what `json` can write: arrays as lists, NaN and infinities as text.

    JSON has no word for them, and null would hide that a loss went astray.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Mapping) or hasattr(value, "to_dict"):
        items = value if isinstance(value, Mapping) else value.to_dict()
        return {str(k): plain(v) for k, v in items.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(v) for v in value]
    if hasattr(value, "tolist"):  # NumPy and JAX
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, pathlib.PurePath):
        return str(value)
    if callable(value):
        return f"{getattr(value, '__module__', '?')}.{getattr(value, '__qualname__', repr(value))}"
    if hasattr(value, "__dict__"):  # SimpleNamespace and the like
        return plain(vars(value))
    return str(value)


def _redacted_list(values: list[Any]) -> list[Any]:
    """Also hides what follows a secret's flag: --api-key=VALUE and --api-key VALUE."""
    kept, hide_next = [], False
    for value in values:
        flag = _SECRET_FLAG.match(value) if isinstance(value, str) else None
        secret = bool(flag) and _is_secret_name(flag[1].replace("-", "_"))
        if hide_next and not flag:
            kept.append(HIDDEN)
        elif secret and flag[2]:
            kept.append(f"{value.split('=')[0]}={HIDDEN}")
        else:
            kept.append(redacted(value))
        hide_next = secret and not flag[2]
    return kept


def _is_secret_name(name: str) -> bool:
    return bool(_SECRET_NAME.search(name.replace("-", "_")))
