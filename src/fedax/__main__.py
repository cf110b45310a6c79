"""`python -m fedax`, for where the script is not on the path."""

from fedax.cli.main import main

main()
