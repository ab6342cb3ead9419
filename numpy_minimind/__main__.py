"""``python -m numpy_minimind COMMAND``."""

import sys

if __name__ == "__main__":
    try:
        from numpy_minimind.cli import main  # takes a moment, in which Ctrl-C should not print a traceback

        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
