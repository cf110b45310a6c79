"""Where a run's metrics go besides its folder: TensorBoard, MLflow, Weights & Biases, tables.

Each sink writes by its own library, which is an extra. What is measured is decided elsewhere.
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
