"""``python -m fdbqueue``: the command line without the entry point."""

from fdbqueue.cli import main

if __name__ == "__main__":
    main()
