"""Runs an episode of the historical layout `pong-play-v1` again and compares every row, total and end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from recorder.atari import rom_sha256
from recorder.errors import CannotRunError, DamagedError, VersionError
from recorder.limits import Limits
from recorder.pong import GAME
from recorder.pong_play import (
    KIND,
    PROTOCOL_VERSIONS,
    RAW_FRAME_HZ,
    PongSettings,
    PongStepper,
    canonical_digest,
    encode_historical_line,
    make_pong,
    split_of,
)
from recorder.pong_policies import RECORDED_NAMES, make_pong_policy
from recorder.provenance import Difference, find_version
from recorder.reading import EpisodeReader, LineStream
from recorder.records import FRAMES, MANIFEST, SUMMARY, TRANSITIONS, Row, read_strict_json, validate_row
from replay.divergence import MISSING, ArraySources, Mismatch, Place, compare_rows
from replay.engine import guard_sink, refuse_versions
from replay.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Sequence

    from recorder.pong_policies import PongPolicy
    from recorder.stepping import FrameSink
    from replay.engine import LineSink

# What a summary of an interrupted run may count beyond the last whole decision.
_PARTIAL_TOTALS = frozenset({"raw_frames", "reward", "points_scored", "points_lost", "simulated_seconds", "truncated"})

_NOTHING = ArraySources()


class PongReplay:
    """One replay of one historical episode: open it, then `run` it once.

    Nothing in this layout states digests of its files, so whatever was edited shows as a divergence; rows that are
    missing, doubled or broken are damage.

    Args:
        folder: The episode.
        allow_other_versions: Go on when ale-py, gymnasium or numpy have other versions than at the recording.

    Attributes:
        manifest: The episode's.
        verdict: The verdict, whole after `run`.

    Raises:
        UsageError: The folder is not an episode.
        VersionError: Versions differ and were not allowed to.
        CannotRunError: It is not the object track of Pong, or the emulator or its ROM is missing or another.
        DamagedError: The manifest cannot be read, so that nothing can be run.
    """

    environment = GAME
    rate_hz = float(RAW_FRAME_HZ)
    is_drawing = True

    def __init__(self, folder: Path | str, *, allow_other_versions: bool = False) -> None:
        """Read the manifest, check versions and ROM and start the emulator; nothing is stepped yet."""
        folder = Path(folder)
        self.verdict = Verdict(folder)
        self._folder = folder
        self._reader = EpisodeReader(folder)
        self.manifest = self._reader.read_document(MANIFEST, schema=f"{KIND}.manifest")
        self._check_manifest()
        protocol = self.manifest["protocol"]
        settings = PongSettings.from_protocol(protocol)
        self.verdict.differences = [
            Difference("version", name, recorded, find_version(name))
            for name, recorded in protocol["versions"].items()
            if find_version(name) != recorded
        ]
        if self.verdict.is_under_other_versions and not allow_other_versions:
            raise VersionError(refuse_versions(self.verdict.differences))
        _require_rom(protocol["rom_sha256"])
        self.env = make_pong(settings)
        self.seed: int = self.manifest["seed"]
        self._limits = Limits(decisions=self.manifest["max_decisions"], points=self.manifest.get("point_limit"))
        self._policy = self._choose_policy()
        self._transitions = self._reader.lines(TRANSITIONS)
        self._frames = self._reader.lines(FRAMES)
        self._frame_lines = iter(self._frames)
        self._has_frames = self._reader.has(FRAMES)
        self._stepper: PongStepper | None = None
        self._line_sink: LineSink | None = None
        self._summary = self._read_summary()

    def run(
        self, *, frame_sink: FrameSink | None = None, line_sink: LineSink | None = None, decisions: int | None = None
    ) -> Verdict:
        """Step through the episode up to its end, its first divergence or a number of decisions.

        Args:
            frame_sink: Gets the picture after the reset and of every raw frame.
            line_sink: Gets every reconstructed line for `frames.jsonl`.
            decisions: Stop after so many, and then leave totals unjudged.
        """
        self._line_sink = line_sink
        sink = None if frame_sink is None else guard_sink(frame_sink)
        stepper = self._stepper = PongStepper(self.env, limits=self._limits, frame_sink=sink)
        self._note_unchecked()
        try:
            stepper.reset(self.seed)
            is_through = self._replay_rows(stepper, decisions)
            if decisions is None and is_through:
                self._judge_surplus_frames(stepper)
                self._compare_totals(stepper)
        finally:
            self._transitions.close()
            self._frames.close()
            self.env.close()
        return self.verdict

    @property
    def facts(self) -> Row:
        """What the report says beside the verdict."""
        evidence = "verified-against-original" if self._has_frames else "reconstructed-from-recorded-actions"
        return {
            "layout": KIND,
            "generation": self._generation(),
            "raw_frame_evidence": evidence,
            "protocol_hash": self.manifest["protocol"]["protocol_hash"],
            "reset_frames": None if self._stepper is None else self._stepper.reset_frames,
            "api_attempts": 0,
        }

    def _generation(self) -> str:
        """Which of the three generations of records this is."""
        if self._has_frames:
            return "with raw frames"
        return "without raw frames" if "point_limit" in self.manifest else "without raw frames and point limit"

    def _check_manifest(self) -> None:
        """What a manifest says twice has to agree."""
        manifest, faults = self.manifest, self.verdict.faults
        protocol = dict(manifest["protocol"])
        stated, found = protocol.pop("protocol_hash"), canonical_digest(protocol)
        if stated != found:
            faults.append(f"{MANIFEST} states protocol_hash {stated}, its protocol has {found}: it was edited")
        if manifest["split"] != split_of(manifest["seed"]):
            faults.append(
                f"{MANIFEST} says that seed {manifest['seed']} is of the split {manifest['split']!r}, "
                f"it is of {split_of(manifest['seed'])!r}"
            )
        unknown = sorted(set(protocol["versions"]).symmetric_difference(PROTOCOL_VERSIONS))
        if unknown:
            faults.append(f"{MANIFEST} should state the versions of {', '.join(PROTOCOL_VERSIONS)}; see {unknown}")
        for name in manifest.get("record_files", ()):
            if not self._reader.has(name):
                faults.append(f"{self._folder / name} is missing, which {MANIFEST} promises")
        program = manifest.get("question_program")
        if program is not None and not isinstance(program, dict):
            faults.append(f"{MANIFEST} holds a question_program that is no object")

    def _choose_policy(self) -> PongPolicy | None:
        """The local policy that decided, which can decide again; None for a model."""
        policy = self.manifest["policy"]
        return make_pong_policy(policy, self.seed) if policy in RECORDED_NAMES.values() else None

    def _note_unchecked(self) -> None:
        if not self._has_frames:
            self.verdict.not_checked.append(
                f"RAM and RGB: the episode has no {FRAMES}; the raw frames are reconstructed from its actions"
            )
        if self._policy is None:
            self.verdict.not_checked.append("predictions: the model is not asked again; what they imply is compared")

    def _read_summary(self) -> Row | None:
        verdict = self.verdict
        if not self._reader.has(SUMMARY):
            verdict.notes.append(f"there is no {SUMMARY}: the run was interrupted; what is there is a prefix")
            return None
        try:
            summary = self._reader.read_document(SUMMARY, schema=f"{KIND}.summary")
        except DamagedError as error:
            verdict.faults.append(str(error))
            return None
        verdict.is_complete = summary["status"] == "complete"
        if not verdict.is_complete:
            verdict.notes.append(f"the summary says {summary['status']!r}: what the episode holds is a prefix")
        return summary

    def _replay_rows(self, stepper: PongStepper, decisions: int | None) -> bool:
        """Step and compare; say whether it went through to the end of the record without a difference."""
        for line in self._transitions:
            number = stepper.decisions
            if number == decisions:
                return False
            if not line.endswith(b"\n"):
                self._note_torn_tail(self._transitions, line)
                break
            row = self._read_row("transition", self._transitions, line)
            if row is None:
                return False
            if row["decision"] != number:
                return self._fault(
                    f"{self._where(self._transitions)} holds decision {row['decision']} where decision {number} "
                    "should be: a row was removed, doubled or moved"
                )
            if stepper.end_reason is not None:
                self._keep([Mismatch(Place("transition", number), "decision", None, number, MISSING)])
                return False
            if not self._replay_row(stepper, row, line):
                return False
        return True

    def _replay_row(self, stepper: PongStepper, row: Row, line: bytes) -> bool:
        place = Place("transition", stepper.decisions)
        is_decided = self._keep(self._compare_decision(place, stepper.observation, row))
        transition, frames = stepper.step(row["action"], row["prediction"])
        verdict = self.verdict
        verdict.reached = stepper.decisions, stepper.raw_frames, float(sum(stepper.points))
        for channel in ("observations", "rewards", "flags"):
            verdict.compared[channel] = verdict.compared.get(channel, 0) + 1
        lines = [encode_historical_line(frame) for frame in frames]
        if self._line_sink is not None:
            self._line_sink(b"".join(lines))
        is_same = encode_historical_line(transition) == line or self._keep(
            compare_rows(place, row, transition, _NOTHING)
        )
        return self._replay_frames(frames, lines) and is_same and is_decided

    def _compare_decision(self, place: Place, observation: Row, row: Row) -> list[Mismatch]:
        """Hold action and prediction against the policy that decided, or against each other."""
        prediction = row["prediction"]
        if self._policy is not None:
            action, prediction = self._policy(observation)
            self.verdict.compared["predictions"] = self.verdict.compared.get("predictions", 0) + 1
            return compare_rows(place, row, {"action": action, "prediction": prediction}, _NOTHING)
        implied = {}
        if "chosen_action" in prediction:
            implied["chosen_action"] = row["action"]
        program = self.manifest.get("question_program")
        if isinstance(program, dict) and "program_hash" in prediction:
            implied["program_hash"] = canonical_digest(program)
        return [
            Mismatch(place, f"prediction[{key!r}]", None, prediction[key], value)
            for key, value in implied.items()
            if prediction[key] != value
        ]

    def _replay_frames(self, frames: list[Row], lines: list[bytes]) -> bool:
        if not self._has_frames:
            return True
        is_same = True
        for frame, fresh in zip(frames, lines, strict=True):
            place = Place("frame", frame["decision"], frame["raw_frame"])
            line = next(self._frame_lines, b"")
            if not line.endswith(b"\n"):
                if line:
                    self._note_torn_tail(self._frames, line)
                where = f"raw frame {frame['raw_frame']} of decision {frame['decision']}"
                return self._fault(f"{FRAMES} ends before {where}, which {TRANSITIONS} has: rows were removed")
            if line != fresh and not self._compare_frame(place, frame, line):
                is_same = False
                break
        verdict = self.verdict
        for channel in ("raw_frames", "ram", "rgb"):
            verdict.compared[channel] = verdict.compared.get(channel, 0) + len(frames)
        return is_same

    def _compare_frame(self, place: Place, frame: Row, line: bytes) -> bool:
        recorded = self._read_row("frame", self._frames, line)
        if recorded is None:
            return False
        if recorded["raw_frame"] != frame["raw_frame"]:
            return self._fault(
                f"{self._where(self._frames)} holds raw frame {recorded['raw_frame']} where raw frame "
                f"{frame['raw_frame']} should be: a row was removed, doubled or moved"
            )
        return self._keep(compare_rows(place, recorded, frame, _NOTHING))

    def _judge_surplus_frames(self, stepper: PongStepper) -> None:
        """Raw frames without their transition: those of one decision, and only of a run that was interrupted."""
        surplus = 0
        for line in self._frame_lines:
            if not line.endswith(b"\n"):
                self._note_torn_tail(self._frames, line)
                break
            row = self._read_row("frame", self._frames, line)
            if row is None:
                return
            surplus += 1
            number = stepper.reset_frames + stepper.raw_frames + surplus
            is_of_next = row["decision"] == stepper.decisions and surplus <= self.manifest["protocol"]["hold_frames"]
            is_open = not self.verdict.is_complete and stepper.end_reason is None
            if not (is_of_next and is_open and row["raw_frame"] == number):
                self._fault(
                    f"{self._where(self._frames)} holds raw frame {row['raw_frame']} of decision {row['decision']}, "
                    f"which no row of {TRANSITIONS} has"
                )
                return
        if surplus:
            self.verdict.notes.append(
                f"{FRAMES} ends with {surplus} raw frames of decision {stepper.decisions}, "
                "whose transition the interrupted run did not write"
            )

    def _compare_totals(self, stepper: PongStepper) -> None:
        summary, verdict = self._summary, self.verdict
        if summary is None or summary["status"] == "running":
            return
        replayed = stepper.summarize(summary["status"])
        replayed["status"] = "complete" if stepper.end_reason is not None else "incomplete"
        if self._policy is None:
            del replayed["backend"]
        if stepper.end_reason is None:
            replayed["end_reason"] = "error"
        stated = {field: value for field, value in replayed.items() if field in summary}
        if not verdict.is_complete:
            beyond = sorted(field for field in _PARTIAL_TOTALS & set(stated) if summary[field] != stated[field])
            verdict.not_checked += [
                f"{field} of the summary ({summary[field]}): an interrupted run may count a decision it did not write"
                for field in beyond
            ]
            stated = {field: value for field, value in stated.items() if field not in beyond}
        verdict.compared["totals"] = len(stated)
        self._keep(compare_rows(Place("summary"), summary, stated, _NOTHING))

    def _read_row(self, record: str, stream: LineStream, line: bytes) -> Row | None:
        where = self._where(stream)
        try:
            row: Row = read_strict_json(line, where=where)
            validate_row(f"{KIND}.{record}", row, where=where)
        except DamagedError as error:
            self._fault(str(error))
            return None
        return row

    def _note_torn_tail(self, stream: LineStream, line: bytes) -> None:
        start = stream.offset - len(line)
        text = f"{stream.path.name} has a torn tail of {len(line)} bytes from byte {start}, left alone"
        (self.verdict.faults if self.verdict.is_complete else self.verdict.notes).append(text)

    def _where(self, stream: LineStream) -> str:
        return f"{stream.path} line {stream.number}"

    def _fault(self, text: str) -> bool:
        self.verdict.add_fault(text)
        return False

    def _keep(self, mismatches: Sequence[Mismatch]) -> bool:
        """Keep the mismatches of the first decision that has any; say whether there were none."""
        kept = self.verdict.mismatches
        if not kept or (mismatches and mismatches[0].place.decision == kept[0].place.decision):
            known = {(mismatch.place, mismatch.field) for mismatch in kept}
            kept += [mismatch for mismatch in mismatches if (mismatch.place, mismatch.field) not in known]
        return not mismatches


def _require_rom(recorded: str) -> None:
    here = rom_sha256("pong")
    if here != recorded:
        message = (
            f"the episode was recorded with the ROM pong.bin of SHA-256 {recorded}, here it has {here}: "
            "it can only be replayed with the same file"
        )
        raise CannotRunError(message)
