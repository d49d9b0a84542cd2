"""`python -m kaminari` is the `kaminari` command."""

import sys

from kaminari.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
