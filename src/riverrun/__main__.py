"""``python -m riverrun``: the command line."""

import sys

from riverrun.cli import main

if __name__ == "__main__":
    sys.exit(main())
