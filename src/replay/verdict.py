"""What a replay concluded: verdict, what was compared, what was not, faults and the first divergence."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from recorder.errors import (
    CannotRunError,
    DamagedError,
    DivergedError,
    RecorderError,
    UntrustedCodeError,
    UsageError,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from recorder.frames import DecisionFrames
    from recorder.provenance import Difference
    from recorder.records import Row
    from replay.divergence import Mismatch

VerdictName = Literal["verified", "verified prefix", "diverged", "damaged", "unverifiable"]

# What is compared with a decision's transition, and not with its raw frames.
_DECISION_CHANNELS = ("observations", "rewards", "flags", "info")

EXIT_CODES: dict[VerdictName, int] = {
    "verified": 0,
    "verified prefix": 0,
    "diverged": DivergedError.exit_code,
    "damaged": DamagedError.exit_code,
    "unverifiable": CannotRunError.exit_code,
}


@dataclass
class Verdict:
    """The judgement of one episode.

    Attributes:
        episode: Folder of the episode.
        faults: What is wrong with the bytes, every one.
        mismatches: The differing fields of the first divergence, or none.
        compared: Number of compared values by channel.
        not_checked: What was not compared, with the reason.
        notes: What a reader should know and what does no harm, such as a torn tail.
        differences: Versions and machine facts that are not those of the recording.
        is_complete: Whether a summary states a completed episode.
        decisions: Decisions replayed.
        raw_frames: Raw frames replayed.
        total_reward: Sum of the replayed rewards.
    """

    episode: Path
    faults: list[str] = field(default_factory=list)
    mismatches: list[Mismatch] = field(default_factory=list)
    compared: dict[str, int] = field(default_factory=dict)
    not_checked: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    is_complete: bool = False
    decisions: int = 0
    raw_frames: int = 0
    total_reward: float = 0.0

    @property
    def name(self) -> VerdictName:
        """The verdict; damage weighs more than a divergence, and comparing nothing is no success."""
        if self.faults:
            return "damaged"
        if self.mismatches:
            return "diverged"
        # Totals of nothing are no evidence.
        if not sum(values for channel, values in self.compared.items() if channel != "totals"):
            return "unverifiable"
        return "verified" if self.is_complete else "verified prefix"

    @property
    def reached(self) -> tuple[int, int, float, tuple[int, ...]]:
        """How far the replay came: decisions, raw frames, sum of rewards, and what was compared once a decision."""
        compared = self.compared
        counts = tuple([compared.get(channel, 0) for channel in _DECISION_CHANNELS])
        return self.decisions, self.raw_frames, self.total_reward, counts

    @reached.setter
    def reached(self, reached: tuple[int, int, float, tuple[int, ...]]) -> None:
        self.decisions, self.raw_frames, self.total_reward, counts = reached
        for channel, count in zip(_DECISION_CHANNELS, counts, strict=True):
            if count:
                self.compared[channel] = count
            else:
                self.compared.pop(channel, None)

    @property
    def exit_code(self) -> int:
        """The exit code that the command line returns."""
        return EXIT_CODES[self.name]

    @property
    def is_under_other_versions(self) -> bool:
        """Whether packages that reach the bytes have other versions than at the recording."""
        return any(difference.kind == "version" for difference in self.differences)

    def keep(self, mismatches: Sequence[Mismatch]) -> bool:
        """Keep the mismatches of the first decision that has any; say whether there were none."""
        kept = self.mismatches
        if not kept or (mismatches and mismatches[0].place.decision == kept[0].place.decision):
            kept += mismatches
        return not mismatches

    def add_fault(self, fault: str) -> Literal[False]:
        """Note a fault once, however many checks find it; False, for what was not found to be the same."""
        if fault not in self.faults:
            self.faults.append(fault)
        return False

    def blame_damage(self, error: RecorderError) -> RecorderError:
        """What an edited manifest asks for is damage, and nobody's request; untrusted code is refused as such."""
        if self.faults and not isinstance(error, UntrustedCodeError):
            return DamagedError("; ".join([*self.faults, str(error)]))
        return CannotRunError(str(error)) if isinstance(error, UsageError) else error

    def count_reset(self, reset: Row) -> None:
        """Count what a compared reset holds."""
        self._count("resets", 1)
        self._count("ram", int(reset["ram"] is not None))
        self._count("rgb", int(reset["rgb_sha256"] is not None))
        self._count("info", len(reset["info"]))

    def count_decision(self, transition: Row) -> None:
        """Count what a compared decision holds."""
        compared = self.compared
        for channel in ("observations", "rewards", "flags"):
            compared[channel] = compared.get(channel, 0) + 1
        if transition["info"]:
            self._count("info", len(transition["info"]))

    def count_frames(self, frames: DecisionFrames) -> None:
        """Count what the compared raw frames of a decision hold."""
        compared, count = self.compared, len(frames)
        compared["raw_frames"] = compared.get("raw_frames", 0) + count
        if frames.has_ram:
            self._count("ram", count)
        if frames.has_pictures:
            self._count("rgb", count)

    def _count(self, channel: str, values: int) -> None:
        if values:
            self.compared[channel] = self.compared.get(channel, 0) + values

    def raise_unless_verified(self) -> None:
        """Raise the error that fits the verdict, for callers who want an exception.

        Raises:
            DamagedError: The bytes cannot be trusted.
            DivergedError: The replay gave other values.
            CannotRunError: Nothing could be compared.
        """
        if self.name == "damaged":
            raise DamagedError("; ".join(self.faults))
        if self.name == "diverged":
            raise DivergedError("; ".join(map(str, self.mismatches)))
        if self.name == "unverifiable":
            message = f"nothing in {self.episode} could be compared"
            raise CannotRunError(message)

    def to_json(self) -> Row:
        """As `verification.json` and `--json` show it."""
        return {
            "kind": "verification",
            "verdict": self.name,
            "exit_code": self.exit_code,
            "episode": str(self.episode),
            "under_different_versions": self.is_under_other_versions,
            "decisions": self.decisions,
            "raw_frames": self.raw_frames,
            "total_reward": self.total_reward,
            "compared": self.compared,
            "not_checked": self.not_checked,
            "first_divergence": [mismatch.to_json() for mismatch in self.mismatches],
            "faults": self.faults,
            "notes": self.notes,
            "differences": [
                {"kind": d.kind, "name": d.name, "recorded": d.recorded, "here": d.here} for d in self.differences
            ],
        }
