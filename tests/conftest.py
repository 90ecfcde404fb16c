"""Makes the helper modules of this folder importable, here and in processes that tests start."""

import os
import sys
from pathlib import Path

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [HERE, os.environ.get("PYTHONPATH")]))
os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
