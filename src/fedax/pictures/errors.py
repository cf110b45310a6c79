"""What is raised where there is nothing to draw."""

from fedax.outside.text import Told


class DrawingError(Told, ValueError):
    """Something cannot be drawn; the message says why."""
