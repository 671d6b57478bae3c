"""``python -m loma``: the command line, where its script is not on the path."""

from loma.tools.cli import main

main(prog_name="python -m loma")
