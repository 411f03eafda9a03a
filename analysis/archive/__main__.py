import sys

from analysis.archive.cli import main

sys.exit(main())
