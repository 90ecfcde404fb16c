"""Records episodes of Gymnasium environments as evidence that anyone can replay and verify."""

from __future__ import annotations

from recorder.wrappers import RecordEpisode

__all__ = ["RecordEpisode"]
