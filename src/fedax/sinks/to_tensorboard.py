"""TensorBoard: event files, by tensorboardX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import (
    Event,  # pyright: ignore[reportAttributeAccessIssue] - made when it is imported
    SessionLog,  # pyright: ignore[reportAttributeAccessIssue]
)
from tensorboardX.proto.summary_pb2 import (
    Summary,  # pyright: ignore[reportAttributeAccessIssue]
)
from tensorboardX.summary import hparams

from fedax.sinks.rows import Place, Plain, Row

# How the names of event files end that are fedax's.
SUFFIX = ".fedax"


class _Events:
    """An event file, which takes the place of those of earlier sittings.

    It begins with the mark of a new session at round 0, so that a TensorBoard that has read an
    earlier file forgets it. tensorboardX's own thread is not used: a full disk would go unnoticed.
    """

    def __init__(self, place: Place, params: Mapping[str, Plain]) -> None:
        folder = place.logs / "tensorboard"
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(f"events.out.tfevents.*{SUFFIX}"):
            old.unlink()
        _, begun, self._ended = hparams(dict(params), {})
        self._file = EventsWriter(str(folder / "events"), SUFFIX)
        self._file.write_event(Event(session_log=SessionLog(status=SessionLog.START)))
        self._file.write_event(Event(summary=begun))
        self._file.flush()

    def write(self, rows: Sequence[Row]) -> None:
        for row in rows:
            values = [
                Summary.Value(tag=name, simple_value=value)
                for name, value in row.metrics.items() if name != "round"
            ]
            self._file.write_event(
                Event(wall_time=row.time, step=row.round, summary=Summary(value=values))
            )
        self._file.flush()

    def close(self, summary: Mapping[str, Any] | None) -> None:
        if summary is not None:
            self._file.write_event(Event(summary=self._ended))
        self._file.close()


open_writer = _Events
