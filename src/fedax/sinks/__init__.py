"""Exports a run's metrics to TensorBoard, MLflow, Weights & Biases or a table.

Each sink needs its own library, an optional extra.
"""

from fedax.sinks.names import SINKS, SinkError, require_libraries, sink_names
from fedax.sinks.runs import log_record
from fedax.sinks.sink import Sink, Sinks, open_sink

__all__ = [
    "SINKS",
    "Sink",
    "SinkError",
    "Sinks",
    "log_record",
    "open_sink",
    "require_libraries",
    "sink_names",
]
