"""Records episodes of Gymnasium environments as evidence that anyone can replay and verify."""

from __future__ import annotations

from recorder.envs import register_environments
from recorder.wrappers import RecordEpisode

__all__ = ["RecordEpisode"]

# Gymnasium dropped its plugin entry point with 1.0: importing a package is how its environments get known.
register_environments()
