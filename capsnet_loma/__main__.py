"""``python -m capsnet_loma``: the same as the ``capsnet-loma`` command."""

from capsnet_loma.commands.cli import main

if __name__ == "__main__":
    main()
