"""What is raised where there is nothing to draw."""


class DrawingError(ValueError):
    """Something cannot be drawn; the message is a sentence."""
