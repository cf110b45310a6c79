"""`python -m fedax`, for where the script is not on the path."""

from fedax.cli import main

main()
