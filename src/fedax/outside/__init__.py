"""What goes out to people and comes in from them: text on a terminal, and paths."""
