import sys

from analysis.export.cli import main

sys.exit(main())
