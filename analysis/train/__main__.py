import sys

from analysis.train.cli import main

sys.exit(main())
