"""Compares the raw frames of an episode with those of its replay, some decisions behind the transitions."""

from __future__ import annotations

import itertools
from collections import deque
from typing import TYPE_CHECKING

from recorder.records import FRAMES, TRANSITIONS
from recorder.storage import BATCH_DECISIONS
from replay.divergence import MISSING, Mismatch, Place, compare_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from recorder.frames import DecisionFrames
    from recorder.records import Row
    from recorder.stepping import Stepper
    from replay.divergence import ArraySources
    from replay.evidence import Evidence
    from replay.verdict import Verdict

    LineSink = Callable[[bytes], object]


class RawFrameComparison:
    """Takes the raw frames of each decision, and compares them when their pictures are likely to be hashed.

    Args:
        evidence: Holds the recorded lines.
        verdict: Gets what differs and what was compared.
        arrays: Where the arrays of both sides are found.
        line_sink: Gets every reconstructed line.
        may_be_behind: The raw frames of so many decisions may wait.
    """

    def __init__(
        self,
        evidence: Evidence,
        verdict: Verdict,
        arrays: ArraySources,
        *,
        line_sink: LineSink | None,
        may_be_behind: int,
    ) -> None:
        """Nothing is compared yet."""
        self._evidence = evidence
        self._verdict = verdict
        self._arrays = arrays
        self._line_sink = line_sink
        self._may_be_behind = may_be_behind
        self._frame_lines = iter(evidence.frames)
        self._has_frames = True
        self._behind: deque[tuple[DecisionFrames, tuple[int, int, float, tuple[int, ...]]]] = deque()

    def take(self, frames: DecisionFrames) -> bool:
        """Take a decision's raw frames; say whether those that were compared are the same."""
        self._behind.append((frames, self._verdict.reached))
        return self.catch_up(self._may_be_behind)

    def catch_up(self, may_be_behind: int = 0) -> bool:
        """Compare raw frames that were left for later, all but those of so many decisions; say if they are the same.

        Where they are not, the replay ended with their decision.
        """
        while len(self._behind) > may_be_behind:
            frames, reached = self._behind.popleft()
            if not self._replay_frames(frames):
                self._verdict.reached = reached
                self._behind.clear()
                return False
        return True

    def _replay_frames(self, frames: DecisionFrames) -> bool:
        fresh = frames.block()
        if self._line_sink is not None:
            self._line_sink(fresh)
        if not self._has_frames:
            return True
        is_same = self._evidence.frames.skip(fresh, len(frames))
        if not is_same:
            is_same = self._compare_frames(frames, list(itertools.islice(self._frame_lines, len(frames))))
        if self._has_frames:
            self._verdict.count_frames(frames)
        return is_same

    def _compare_frames(self, frames: DecisionFrames, recorded: list[bytes]) -> bool:
        """Find the first raw frame of a decision that differs."""
        for index, fresh in enumerate(frames.lines()):
            line = recorded[index] if index < len(recorded) else None
            if line == fresh:
                continue
            frame = frames.row(index)
            place = Place("frame", frame["decision"], frame["raw_frame"])
            if line is None or not line.endswith(b"\n"):
                return self._judge_missing_frames(place, line)
            if not self._compare_line(place, line, frame, recorded[index + 1 :]):
                return False
        return True

    def _judge_missing_frames(self, place: Place, torn: bytes | None) -> bool:
        """Raw frames are written before their transition, so that none is missing, however a run ended."""
        self._has_frames = False
        if torn is not None:
            self._evidence.note_torn_tail(self._evidence.frames, torn)
        return self._judge_count(Mismatch(place, "raw_frame", None, MISSING, place.raw_frame))

    def judge_surplus(self, stepper: Stepper, *, has_ended: bool) -> bool:
        """Raw frames without their transitions: those of one batch, if a kill came between the two writes."""
        evidence = self._evidence
        surplus: list[int] = []
        for line in evidence.frames:
            if not line.endswith(b"\n"):
                evidence.note_torn_tail(evidence.frames, line)
                break
            row = evidence.read_row("frame", evidence.frames, line)
            if row is None:
                return False
            number = stepper.raw_frames + len(surplus) + 1
            is_of_batch = stepper.decisions <= row["decision"] < stepper.decisions + BATCH_DECISIONS
            if evidence.summary is not None or has_ended or row["raw_frame"] != number or not is_of_batch:
                place = Place("frame", stepper.decisions, number)
                return self._judge_count(Mismatch(place, "raw_frame", None, row["raw_frame"], MISSING))
            surplus.append(row["decision"])
        if surplus:
            self._verdict.notes.append(
                f"{FRAMES} ends with {len(surplus)} raw frames of decisions {surplus[0]} to {surplus[-1]}, "
                "whose transitions the interrupted run did not write"
            )
        return True

    def _judge_count(self, mismatch: Mismatch) -> bool:
        """A raw frame too few or too many: without a summary no simulator did that, lines were removed."""
        if self._evidence.summary is not None:
            return self._verdict.keep([mismatch])
        place = mismatch.place
        which = f"raw frame {place.raw_frame} of decision {place.decision}"
        lost = FRAMES if mismatch.recorded is MISSING else TRANSITIONS
        self._verdict.add_fault(f"{lost} lacks the line for {which}, which no interruption explains")
        return False

    def _compare_line(self, place: Place, line: bytes, replayed: Row, ahead: Sequence[bytes]) -> bool:
        recorded = self._evidence.read_row("frame", self._evidence.frames, line, ahead)
        return recorded is not None and self._verdict.keep(compare_rows(place, recorded, replayed, self._arrays))
