"""Limits from outside the environment, at which whoever plays an episode ends it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from recorder.errors import UsageError

LimitReason: TypeAlias = Literal["point_limit", "frame_limit", "decision_limit"]

# What every reader of JSON can hold.
MOST = 2**63


@dataclass(frozen=True)
class Limits:
    """How long an episode may last; None is no limit.

    Attributes:
        decisions: Decisions.
        raw_frames: Raw frames, those of the reset not counted.
        points: Raw frames with a reward other than zero.
    """

    decisions: int | None = None
    raw_frames: int | None = None
    points: int | None = None

    @classmethod
    def from_manifest(cls, limits: Mapping[str, Any]) -> Limits:
        """The limits that a manifest states."""
        return cls(limits["decisions"], limits.get("raw_frames"), limits.get("points"))

    def to_manifest(self) -> dict[str, int | None]:
        """As a manifest states them: `decisions` always, the others where there are some.

        Raises:
            UsageError: A limit is no whole number from 1.
        """
        for name, limit in asdict(self).items():
            is_int = isinstance(limit, int) and not isinstance(limit, bool)
            if limit is not None and not (is_int and 1 <= limit < MOST):
                message = f"the limit of {name} must be a whole number from 1 to 2^63 - 1, or None, not {limit!r}"
                raise UsageError(message)
        return {name: limit for name, limit in asdict(self).items() if limit is not None or name == "decisions"}

    def reached(self, *, decisions: int, raw_frames: int, points: int) -> LimitReason | None:
        """Which limit an episode of this length is at, the one that bites within a hold first."""
        if self.points is not None and points >= self.points:
            return "point_limit"
        if self.raw_frames is not None and raw_frames >= self.raw_frames:
            return "frame_limit"
        if self.decisions is not None and decisions >= self.decisions:
            return "decision_limit"
        return None
