import sys

from analysis.summary.cli import main

sys.exit(main())
