"""``python -m numpy_minimind COMMAND``."""

import sys

from numpy_minimind.cli import main

if __name__ == "__main__":
    sys.exit(main())
