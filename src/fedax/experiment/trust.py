"""Whether a configuration that names code was written by this user's own fedax.

A run folder from a stranger may name any file or module, and reading it must run none. So fedax
signs what it writes with a key that only this user has, and code that a configuration names without
that signature is run only if the user says so.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import platformdirs

from fedax.experiment.errors import ConfigError

LENGTH = 32
_TRUSTED = "If you trust that code"
# What decides which code is run, and what it is called with.
SIGNED = (
    "task", "task_source", "task_options", "algorithm", "algorithm_source", "algorithm_options",
)
# Of a run that Python made, what made it; of a search, where its study is.
SIGNED_IF_THERE = ("python", "storage")


def signature(config: Mapping[str, Any]) -> str | None:
    """The signature of what a configuration has run; None if no key can be kept."""
    key = _key()
    if key is None:
        return None
    signed = {name: config.get(name) for name in SIGNED}
    signed |= {name: config[name] for name in SIGNED_IF_THERE if name in config}
    text = json.dumps(signed, sort_keys=True)
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def is_own(config: Mapping[str, Any]) -> bool:
    """Whether this user's fedax wrote the configuration: what config.json holds, `made_by` too."""
    made_by = config.get("made_by")
    found = made_by.get("signature") if isinstance(made_by, Mapping) else None
    expected = signature(config)
    return isinstance(found, str) and expected is not None and hmac.compare_digest(
        found.encode("utf-8", "replace"), expected.encode()
    )


def require_own(values: Mapping[str, Any], keys: list[str], cure: str, path: Path) -> None:
    """Raises an error if a file that this user's fedax has not written would have code run.

    Args:
      values: what the file holds.
      keys: of task and algorithm, those that are taken from the file.
      cure: what to do if the code is trusted.
      path: the file.
    """
    code = [
        f"{record.get('path')}:{record.get('name')}" if isinstance(record, Mapping) else name
        for key in keys
        for name, record in [(values.get(key), values.get(f"{key}_source"))]
        if record is not None or ":" in str(name)
    ]
    if code and not is_own(values):
        raise ConfigError(
            f"{path} refers to the code {' and '.join(map(str, code))}, but was not written by "
            f"your fedax on this machine, or was changed since. "
            f"{' '.join([*notes(), _TRUSTED])}: {cure}"
        )


def notes() -> list[str]:
    """What a user should know if fedax cannot know its own run folders again; nothing if it can."""
    if _key() is not None:
        return []
    cure = "" if os.name == "nt" else ", or set XDG_DATA_HOME to a folder in which you can write"
    return [
        f"fedax cannot save its key in {_folder()}, so resuming a run of your own code will need "
        f"--force. Make that folder writable{cure}."
    ]


def _folder() -> Path:
    return Path(platformdirs.user_data_path("fedax", appauthor=False))


def _write_key(path: Path) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
        file.write(secrets.token_bytes(LENGTH))


def _key() -> bytes | None:
    """This user's key, made where there is none; None if it can be neither read nor written."""
    path = _folder() / "key"
    with contextlib.suppress(OSError):
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            # Whole or not there, and never over that of a process that was faster.
            partial = path.with_name(f"key-{os.getpid()}-{secrets.token_hex(4)}")
            try:
                _write_key(partial)
                os.link(partial, path)
            except FileExistsError:
                pass
            except OSError:  # a disk without links; a full one has only a part
                if partial.stat().st_size == LENGTH:
                    partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)
        key = path.read_bytes()
        return key if len(key) == LENGTH else None
    return None
