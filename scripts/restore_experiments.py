"""Restore an archive from a checkout: the same as the command `restore_experiments`."""

from __future__ import annotations

import sys

from recorder.cli import restore_main

if __name__ == "__main__":
    sys.exit(restore_main())
