"""`python -m tests.bench.gpu`: see `machine`."""

import sys

from tests.bench.gpu.machine import main

if __name__ == "__main__":
    sys.exit(main())
