"""`python -m libra.cli` is `libra`."""

import sys

from libra.cli.main import main

sys.exit(main())
