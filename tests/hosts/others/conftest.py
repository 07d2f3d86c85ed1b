"""What cannot be installed on this Python is not tested on it."""

import sys

collect_ignore = ["test_gem_import.py"] if sys.version_info >= (3, 12) else []
