"""Files that are damaged, cut off, swapped, forged or no files at all: a sentence, or right bits.

What an accident does to a file (bits, lengths, names) must be noticed: a run goes on with the right
bits or not at all. What a stranger writes on purpose may say anything, but takes neither the time
nor the memory that it claims, and ends as numbers or as a sentence.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attack import disks
from attack.outcomes import FoundError, limits, require_equal, require_sentence

SECONDS, MEGABYTES = 20.0, 400.0
# Values that a forger puts in the place of another.
ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**400, 1e308, -0.0, 1e-320, "", "x",
    "../../../etc/passwd", "\x00", "\ud800", "nan", [], {}, [[]], {"": {}}, [0] * 1000,
    "float64", "object", "<U1000000000", [10**9, 10**9], [-1], [2**62, 4], "server_00000",
)


def damaged(content: bytes, rng: random.Random) -> bytes:
    """The content after an accident: it differs from what it was."""
    changed = bytearray(content)
    kind = rng.choice(("bit", "bits", "cut", "zeros", "more", "hole", "empty"))
    place = rng.randrange(len(content)) if content else 0
    if kind == "bit" and content:
        changed[place] ^= 1 << rng.randrange(8)
    elif kind == "bits" and content:
        for _ in range(rng.randint(1, 20)):
            changed[rng.randrange(len(content))] = rng.randrange(256)
    elif kind == "cut":
        del changed[place:]
    elif kind == "zeros":
        changed[place : place + 512] = bytes(len(changed[place : place + 512]))
    elif kind == "more":
        changed[place:place] = rng.randbytes(rng.randint(1, 64))
    elif kind == "hole":
        del changed[place : place + rng.randint(1, 64)]
    elif kind == "empty":
        changed.clear()
    return bytes(changed) if bytes(changed) != content else content + b"\x00"


def forged(value: Any, rng: random.Random) -> Any:
    """JSON in which something stands that nobody would write."""
    value = copy.deepcopy(value)
    if rng.random() < 0.02:  # deeper than a parser goes
        return _nested(value, rng.choice((100, 100_000)))
    for _ in range(rng.randint(1, 3)):
        holders = list(_holders(value))
        if not holders:
            return copy.deepcopy(rng.choice(ODD))
        holder, key = rng.choice(holders)
        kind = rng.random()
        if kind < 0.6:
            holder[key] = copy.deepcopy(rng.choice(ODD))
        elif kind < 0.8:
            del holder[key]
        elif isinstance(holder, dict):
            holder[rng.choice(("x", "", "server_00099", "../x", key + "x"))] = holder[key]
        else:
            holder.insert(key, holder[key])
    return value


def _holders(value: Any) -> Any:
    """Every place of a value in another: (container, key or index)."""
    if isinstance(value, dict | list):
        items = list(value.items()) if isinstance(value, dict) else list(enumerate(value))
        for key, inner in items:
            yield value, key
            yield from _holders(inner)


def _nested(value: Any, depth: int) -> str:
    return "[" * depth + json.dumps(value) + "]" * depth


def as_bytes(value: Any) -> bytes:
    """JSON text, also of what is text already."""
    text = value if isinstance(value, str) and value[:1] == "[" else json.dumps(value)
    return text.encode("utf-8", "surrogatepass")


def spoiled(path: Path, folder: Path, rng: random.Random) -> str:
    """Does something to a file of a run folder, and says what; an accident, not on purpose."""
    kind = rng.choice(("damaged",) * 5 + ("gone", "a folder", "a pipe", "a link", "swapped"))
    if kind == "damaged":
        path.write_bytes(damaged(path.read_bytes(), rng))
    elif kind == "swapped":
        other = rng.choice([p for p in folder.rglob("*") if p.is_file() and p != path])
        mine, theirs = path.read_bytes(), other.read_bytes()
        path.write_bytes(theirs)
        other.write_bytes(mine)
    else:
        path.unlink()
        if kind == "a folder":
            path.mkdir()
        elif kind == "a pipe":
            os.mkfifo(path)
        elif kind == "a link":
            path.symlink_to(rng.choice(("/dev/zero", "/dev/random", "/nowhere", path.name)))
    return f"{path.relative_to(folder)} {kind}"


def folder_after_accidents(
    rng: random.Random, unfinished: Path, folder: Path, expected: dict[str, object]
) -> str:
    """One trial: files of an unfinished run are spoiled, and it is resumed.

    Returns:
      What was done, and how it ended.
    """
    shutil.copytree(unfinished, folder)
    whole = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    done = []
    for path in rng.sample(whole, rng.choice((1, 1, 1, 2, 3))):
        with contextlib.suppress(FileNotFoundError):
            done.append(spoiled(path, folder, rng))
    what = f"A run folder with {', '.join(done)}"
    with limits(SECONDS, MEGABYTES, what):
        status, errors = disks.run(disks.resumed(folder))
    require_sentence(status, errors, what)
    if status == 0:
        require_equal(folder, expected, what)
    shutil.rmtree(folder)
    return f"{what}: {errors.strip() or 'goes on'}"


class Reader:
    """Something that reads files, and what it may raise.

    Args:
      name: of the reader.
      read: (path) -> anything.
      raises: errors whose messages are sentences.
      contents: files that it can read.
      forge: (content, rng) -> a content that a stranger wrote on purpose.
    """

    def __init__(
        self, name: str, read: Callable[[Path], Any], raises: tuple[type[Exception], ...],
        contents: list[bytes], forge: Callable[[bytes, random.Random], bytes],
    ) -> None:
        self.name, self.read, self.raises = name, read, raises
        self.contents, self.forge = contents, forge

    def attack(self, rng: random.Random, path: Path) -> bool:
        """One trial; returns whether the content was read.

        Raises:
          FoundError: it ended neither as something read nor as one sentence.
        """
        content = rng.choice(self.contents)
        change = rng.choice((damaged, self.forge))
        path.write_bytes(changed := change(content, rng))
        what = f"{self.name} of {changed[:300]!r}"
        try:
            with limits(SECONDS, MEGABYTES, what):
                self.read(path)
        except self.raises as error:
            message = str(error)
            if not message or "\n" in message.strip() or len(message) > 1000:
                raise FoundError(f"{what}: no sentence: {message[:2000]!r}") from None
            return False
        except FoundError:
            raise
        except Exception as error:
            raise FoundError(f"{what}: {type(error).__name__}: {error}") from error
        return True


def forge_json(content: bytes, rng: random.Random) -> bytes:
    """Of a file of JSON."""
    return as_bytes(forged(json.loads(content), rng))


def forge_lines(content: bytes, rng: random.Random) -> bytes:
    """Of a file with an object a line."""
    lines = content.splitlines()
    place = rng.randrange(len(lines))
    lines[place] = forge_json(lines[place], rng)
    return b"\n".join(lines) + b"\n"


def forge_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Of parameters: the header is forged, and its length fits."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    if rng.random() < 0.5 and "fedax" in header.get("__metadata__", {}):
        ours = json.loads(header["__metadata__"]["fedax"])
        header["__metadata__"]["fedax"] = as_bytes(forged(ours, rng)).decode("utf-8", "replace")
        text = as_bytes(header)
    else:
        text = as_bytes(forged(header, rng))
    return len(text).to_bytes(8, "little") + text + content[8 + length :]


def readers(folder: Path) -> list[Reader]:
    """The readers of what a run writes; the folder holds a run, and is written to."""
    import fedax
    from fedax.experiment.checkpoint import CheckpointError
    from fedax.experiment.config import load_config
    from fedax.experiment.errors import ConfigError
    from fedax.experiment.folder import CONFIG, RunError, read_summary
    from fedax.experiment.metrics import read_history

    ours = (CheckpointError, ConfigError, RunError)
    run = folder / "run"
    newest = max((run / "checkpoints").glob("round-????????"))
    params = folder / "params.safetensors"
    fedax.save_params(fedax.load_run(run).params, params)

    def alone(name: str, read: Callable[[], Any]) -> Callable[[Path], Any]:
        """Reads a file in its place in the run folder, which is mended afterwards."""
        place = run / name

        def read_there(path: Path) -> Any:
            content = place.read_bytes()
            place.write_bytes(path.read_bytes())
            try:
                return read()
            finally:
                place.write_bytes(content)

        return read_there

    manifest = newest / "manifest.json"
    return [
        Reader("Parameters", fedax.load_params, (ValueError, OSError),
               [params.read_bytes(), (newest / "best.safetensors").read_bytes()],
               forge_safetensors),
        Reader("A configuration", alone(CONFIG, lambda: load_config(run / CONFIG)), ours,
               [(run / CONFIG).read_bytes()], forge_json),
        Reader("Metrics", alone("metrics.jsonl", lambda: read_history(run)), ours,
               [(run / "metrics.jsonl").read_bytes()], forge_lines),
        Reader("A summary", alone("summary.json", lambda: read_summary(run)), ours,
               [(run / "summary.json").read_bytes()], forge_json),
        Reader("A manifest", alone(str(manifest.relative_to(run)), lambda: fedax.load_run(run)),
               ours, [manifest.read_bytes()], forge_json),
    ]
