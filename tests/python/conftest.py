"""Test modules import their neighbours by name."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
collect_ignore = ["device"]  # needs torch and a GPU: scripts/python_device_check.sh
