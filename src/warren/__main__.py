"""`python -m warren` is the command line."""

import sys

from warren.transport.cli import main

if __name__ == "__main__":
    sys.exit(main())
