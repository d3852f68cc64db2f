"""``python -m transom`` and the ``transom`` command."""

import sys

from transom.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
