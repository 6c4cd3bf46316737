"""Let ``python -m tvmfuse`` be the command."""

import sys

from tvmfuse.cli import main

sys.exit(main())
