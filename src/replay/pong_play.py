"""Runs an episode of the historical layout `pong-play-v1` again and compares every row, total and end."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from recorder.atari import rom_sha256
from recorder.errors import CannotRunError, DamagedError, UsageError, VersionError
from recorder.limits import Limits
from recorder.pong import GAME
from recorder.pong_play import (
    KIND,
    PROTOCOL_VERSIONS,
    RAW_FRAME_HZ,
    PongSettings,
    PongStepper,
    canonical_digest,
    describe_protocol,
    encode_historical_line,
    make_pong,
    split_of,
)
from recorder.pong_policies import RECORDED_NAMES, make_pong_policy
from recorder.provenance import Difference, find_version
from recorder.reading import EpisodeReader, LineStream
from recorder.rebuild import require_same_file
from recorder.records import FRAMES, MANIFEST, SUMMARY, TRANSITIONS, Row, read_strict_json, validate_row
from replay.divergence import ArraySources, Mismatch, Place, compare_rows, compare_values
from replay.engine import guard_sink, refuse_versions
from replay.pong_model import ImpliedPredictions
from replay.verdict import Verdict

if TYPE_CHECKING:
    import numpy as np

    from recorder.pong_objects import ObserveObjects
    from recorder.pong_policies import PongPolicy
    from recorder.stepping import FrameSink
    from replay.engine import LineSink

# How the recorded names of models' policies begin.
_MODELS = ("jev:", "openrouter:")

# What a summary of an interrupted run may count beyond the last whole decision.
_PARTIAL_TOTALS = ("raw_frames", "reward", "points_scored", "points_lost", "truncated")

# A JSON Schema takes 4.0 for an integer; Python indexes with it and counts with it as it pleases.
_WHOLE_NUMBERS = ("seed", "max_decisions", "point_limit")
_WHOLE_SETTINGS = ("hold_frames", "noop_max", "mode", "difficulty", "frameskip")

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
        CannotRunError: It is not the object track of Pong, its policy is unknown, or the emulator or its ROM is
            missing or another.
        DamagedError: The manifest cannot be read, or was edited, so that nothing can be run.
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
        _require_whole_numbers(self.manifest)
        self._check_manifest()
        try:
            self._policy = self._choose_policy()
            self.env = self._make_environment(allow_other_versions=allow_other_versions)
        except (CannotRunError, UsageError) as error:
            raise self.verdict.blame_damage(error) from error
        self.seed: int = self.manifest["seed"]
        self._limits = Limits(decisions=self.manifest["max_decisions"], points=self.manifest.get("point_limit"))
        program = self.manifest.get("question_program")
        self._implied = ImpliedPredictions(self.manifest, None if program is None else canonical_digest(program))
        self._transitions = self._reader.lines(TRANSITIONS)
        self._frames = self._reader.lines(FRAMES)
        self._frame_lines = iter(self._frames)
        self._has_frames = self._reader.has(FRAMES)
        self._stepper: PongStepper | None = None
        self._line_sink: LineSink | None = None
        self._is_showing = True
        self._summary = self._read_summary()
        self._check_promises()

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
        sink = None if frame_sink is None else self._guard_sink(frame_sink)
        stepper = self._stepper = PongStepper(self.env, limits=self._limits, frame_sink=sink)
        self._note_unchecked()
        try:
            stepper.reset(self.seed)
            is_through = self._replay_rows(stepper, decisions)
            if decisions is None and is_through:
                self._compare_totals(stepper)
                self._judge_surplus_frames(stepper)
        except (CannotRunError, UsageError) as error:
            raise self.verdict.blame_damage(error) from error
        finally:
            self._transitions.close()
            self._frames.close()
            self.env.close()
        return self.verdict

    def _guard_sink(self, frame_sink: FrameSink) -> FrameSink:
        guarded = guard_sink(frame_sink)

        def show(picture: np.ndarray[Any, Any]) -> None:
            if self._is_showing:
                guarded(picture)

        return show

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

    def _make_environment(self, *, allow_other_versions: bool) -> ObserveObjects:
        """Pong as the protocol has it, if this is the machine for it."""
        rom_here = rom_sha256("pong")
        protocol = self.manifest["protocol"]
        settings = PongSettings.from_protocol(protocol)
        unknown = sorted(set(protocol) - set(describe_protocol(settings)))
        if unknown:
            message = f"the protocol has the setting {unknown[0]!r}, which is not known here, so it cannot be replayed"
            raise CannotRunError(message)
        self.verdict.differences = [
            Difference("version", name, recorded, find_version(name))
            for name, recorded in protocol["versions"].items()
            if find_version(name) != recorded
        ]
        if self.verdict.is_under_other_versions and not allow_other_versions:
            raise VersionError(refuse_versions(self.verdict.differences))
        require_same_file("the ROM pong.bin", protocol["rom_sha256"], rom_here)
        return make_pong(settings)

    def _choose_policy(self) -> PongPolicy | None:
        """The local policy that decided, which can decide again; None for a model."""
        policy, known = self.manifest["policy"], RECORDED_NAMES.values()
        if policy in known:
            return make_pong_policy(policy, self.manifest["seed"])
        if policy.startswith(_MODELS):
            return None
        message = (
            f"the episode's policy {policy!r} is not known here: "
            f"it is none of {', '.join(known)} and no model's ({', '.join(f'{name}...' for name in _MODELS)})"
        )
        raise CannotRunError(message)

    def _note_unchecked(self) -> None:
        if not self._has_frames:
            self.verdict.not_checked.append(
                f"RAM and RGB: the episode has no {FRAMES}; the raw frames are reconstructed from its actions"
            )
        if self._policy is None:
            self.verdict.not_checked.append(
                "predictions: the model is not asked again and its exchanges are not read; "
                "only what the predictions imply is compared"
            )

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

    @property
    def _is_counting_nothing(self) -> bool:
        """Whether the summary was written before the first decision was, and perhaps before the reset."""
        summary = self._summary or {"status": "running"}
        return summary["status"] == "running" or (not self.verdict.is_complete and summary.get("decisions") == 0)

    def _check_promises(self) -> None:
        """The files that the manifest promises; a process that was killed at once may have made none of them."""
        has_rows = any(
            self._reader.has(name) and (self._folder / name).stat().st_size > 0 for name in (TRANSITIONS, FRAMES)
        )
        is_begun = has_rows or not self._is_counting_nothing
        missing = [name for name in self.manifest.get("record_files", ()) if not self._reader.has(name)]
        for name in missing:
            if is_begun or name not in {TRANSITIONS, FRAMES}:
                self.verdict.faults.append(f"{self._folder / name} is missing, which {MANIFEST} promises")
        if missing and not is_begun:
            self.verdict.notes.append("the run ended before its first decision was written")

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
                return self.verdict.add_fault(
                    f"{self._where(self._transitions)} holds decision {row['decision']} where decision {number} "
                    "should be: a row was removed, doubled or moved"
                )
            if stepper.end_reason is not None:
                over = f"(none: the episode was over after {number} decisions by {stepper.end_reason})"
                return self.verdict.keep([Mismatch(Place("transition", number), "decision", None, number, over)])
            if not self._replay_row(stepper, row, line):
                return False
        return True

    def _replay_row(self, stepper: PongStepper, row: Row, line: bytes) -> bool:
        place = Place("transition", stepper.decisions)
        is_decided = self.verdict.keep(self._compare_decision(place, stepper.observation, row))
        transition, frames = stepper.step(row["action"], row["prediction"])
        verdict = self.verdict
        verdict.decisions, verdict.raw_frames = stepper.decisions, stepper.raw_frames
        verdict.total_reward = float(sum(stepper.points))
        for channel in ("observations", "rewards", "flags"):
            verdict.compared[channel] = verdict.compared.get(channel, 0) + 1
        lines = [encode_historical_line(frame) for frame in frames]
        if self._line_sink is not None:
            self._line_sink(b"".join(lines))
        is_same = encode_historical_line(transition) == line or self.verdict.keep(
            compare_rows(place, row, transition, _NOTHING)
        )
        return self._replay_frames(frames, lines, is_same=is_same) and is_same and is_decided

    def _compare_decision(self, place: Place, observation: Row, row: Row) -> list[Mismatch]:
        """Hold action and prediction against the policy that decided, or against each other."""
        action, prediction = row["action"], row["prediction"]
        compared = self.verdict.compared
        if self._policy is not None:
            action, prediction = self._policy(observation)
            compared["predictions"] = compared.get("predictions", 0) + 1
            return compare_rows(place, row, {"action": action, "prediction": prediction}, _NOTHING)
        mismatches = self._implied.compare(place, action, prediction)
        if self._implied.was_any:
            compared["predictions"] = compared.get("predictions", 0) + 1
        return mismatches

    def _replay_frames(self, frames: list[Row], lines: list[bytes], *, is_same: bool) -> bool:
        """Compare a decision's raw frames; after another transition it is no wonder that they are others or fewer."""
        if not self._has_frames:
            return True
        for frame, fresh in zip(frames, lines, strict=True):
            place = Place("frame", frame["decision"], frame["raw_frame"])
            line = next(self._frame_lines, b"")
            if not line.endswith(b"\n"):
                if not is_same:
                    return False
                if line:
                    self._note_torn_tail(self._frames, line)
                where = f"raw frame {frame['raw_frame']} of decision {frame['decision']}"
                return self.verdict.add_fault(
                    f"{FRAMES} ends before {where}, which {TRANSITIONS} has: rows were removed"
                )
            if line != fresh and not self._compare_frame(place, frame, line, is_same=is_same):
                is_same = False
                break
        verdict = self.verdict
        for channel in ("raw_frames", "ram", "rgb"):
            verdict.compared[channel] = verdict.compared.get(channel, 0) + len(frames)
        return is_same

    def _compare_frame(self, place: Place, frame: Row, line: bytes, *, is_same: bool) -> bool:
        recorded = self._read_row("frame", self._frames, line)
        if recorded is None:
            return False
        if recorded["raw_frame"] != frame["raw_frame"]:
            if not is_same or (self._frames.number == 1 and not self._compare_reset_frames()):
                return False
            return self.verdict.add_fault(
                f"{self._where(self._frames)} holds raw frame {recorded['raw_frame']} where raw frame "
                f"{frame['raw_frame']} should be: a row was removed, doubled or moved"
            )
        return self.verdict.keep(compare_rows(place, recorded, frame, _NOTHING))

    def _compare_reset_frames(self) -> bool:
        """Whether the reset had as many no-ops as the summary says; if not, no raw frame has its number."""
        here = None if self._stepper is None else self._stepper.reset_frames
        stated = here if self._is_counting_nothing else (self._summary or {}).get("reset_frames", here)
        return self.verdict.keep(compare_values(Place("summary"), "reset_frames", stated, here, _NOTHING))

    def _judge_surplus_frames(self, stepper: PongStepper) -> None:
        """Raw frames without their transition: those of one decision, and only of a run that was interrupted."""
        surplus: list[Row] = []
        for line in self._frame_lines:
            if not line.endswith(b"\n"):
                self._note_torn_tail(self._frames, line)
                break
            row = self._read_row("frame", self._frames, line)
            if row is None:
                return
            surplus.append(row)
            number = stepper.reset_frames + stepper.raw_frames + len(surplus)
            is_room = len(surplus) <= self.manifest["protocol"]["hold_frames"]
            is_of_next = row["decision"] == stepper.decisions and row["raw_frame"] == number and is_room
            if self.verdict.is_complete or stepper.end_reason is not None or not is_of_next:
                self.verdict.add_fault(
                    f"{self._where(self._frames)} holds raw frame {row['raw_frame']} of decision {row['decision']}, "
                    f"which no row of {TRANSITIONS} has"
                )
                return
        if surplus:
            self._replay_surplus(stepper, surplus)

    def _replay_surplus(self, stepper: PongStepper, surplus: list[Row]) -> None:
        """Step the decision that was not written, and compare the raw frames of it that were."""
        decision, action = stepper.decisions, surplus[0]["requested_action_id"]
        if self._policy is not None:
            action, _ = self._policy(stepper.observation)
        self._is_showing = False
        _, frames = stepper.step(action, {})
        for recorded, frame in zip(surplus, frames, strict=False):
            place = Place("frame", decision, frame["raw_frame"])
            if not self.verdict.keep(compare_rows(place, recorded, frame, _NOTHING)):
                return
        if len(surplus) > len(frames):
            over = f"{len(frames)} raw frames, after which decision {decision} was over"
            self.verdict.add_fault(
                f"{FRAMES} holds {len(surplus)} raw frames of decision {decision}, the replay gives {over}"
            )
            return
        for channel in ("raw_frames", "ram", "rgb"):
            self.verdict.compared[channel] = self.verdict.compared.get(channel, 0) + len(surplus)
        held = "1 raw frame" if len(surplus) == 1 else f"{len(surplus)} raw frames"
        self.verdict.notes.append(
            f"{FRAMES} ends with {held} of decision {decision}, whose transition the interrupted run did not write"
        )

    def _compare_totals(self, stepper: PongStepper) -> None:
        summary, verdict = self._summary, self.verdict
        if summary is None or summary["status"] == "running":
            return
        if verdict.is_complete and stepper.end_reason is None:
            self.verdict.add_fault(
                f"{TRANSITIONS} ends before decision {stepper.decisions}, though the episode was not over and "
                f"{SUMMARY} says 'complete': rows were removed, or the summary was edited"
            )
            return
        expected = self._expect_totals(stepper, summary)
        silent = sorted(set(expected) - set(summary) - {"error_type", "api_attempts"})
        if silent:
            verdict.not_checked.append(f"{', '.join(silent)}: {SUMMARY} does not state them")
        stated = {field: value for field, value in expected.items() if field in summary}
        verdict.compared["totals"] = len(stated)
        self.verdict.keep(compare_rows(Place("summary"), summary, stated, _NOTHING))

    def _expect_totals(self, stepper: PongStepper, summary: Row) -> Row:
        """What the summary should say, as far as it can be known."""
        expected = stepper.summarize(summary["status"])
        if self._policy is not None:
            expected["api_attempts"] = 0
        elif "backend" in self._implied.model:
            expected["backend"] = self._implied.model["backend"]
        else:
            del expected["backend"]
        if self.verdict.is_complete:
            return {**expected, "error_type": None}
        # An error may come after the last decision too.
        expected["end_reason"] = "error"
        if self._is_counting_nothing:
            del expected["reset_frames"]
        beyond = summary.get("raw_frames", 0) - stepper.raw_frames
        if 0 < beyond <= self.manifest["protocol"]["hold_frames"] and stepper.end_reason is None:
            self.verdict.not_checked.append(
                f"{', '.join(_PARTIAL_TOTALS)} of the summary: it counts {beyond} raw frames of a decision that was "
                "not written"
            )
            expected = {field: value for field, value in expected.items() if field not in _PARTIAL_TOTALS}
            expected["simulated_seconds"] = summary["raw_frames"] / RAW_FRAME_HZ
        return expected

    def _read_row(self, record: str, stream: LineStream, line: bytes) -> Row | None:
        where = self._where(stream)
        try:
            row: Row = read_strict_json(line, where=where)
            validate_row(f"{KIND}.{record}", row, where=where)
            # A JSON Schema takes 2.0 for an integer, the emulator does not.
            action = row["action" if record == "transition" else "requested_action_id"]
            if type(action) is not int:
                message = f"{where} has the action {action}, which should be a whole number"
                raise DamagedError(message)  # noqa: TRY301 - one way for every fault of a row
        except DamagedError as error:
            self.verdict.add_fault(str(error))
            return None
        return row

    def _note_torn_tail(self, stream: LineStream, line: bytes) -> None:
        start = stream.offset - len(line)
        text = f"{stream.path.name} has a torn tail of {len(line)} bytes from byte {start}, left alone"
        (self.verdict.faults if self.verdict.is_complete else self.verdict.notes).append(text)

    def _where(self, stream: LineStream) -> str:
        return f"{stream.path} line {stream.number}"


def _require_whole_numbers(manifest: Row) -> None:
    """Raise where a number that counts is written with a point."""
    settings = manifest["protocol"]
    numbers = {name: manifest.get(name) for name in _WHOLE_NUMBERS} | {name: settings[name] for name in _WHOLE_SETTINGS}
    for name, number in numbers.items():
        if isinstance(number, float):
            message = f"{MANIFEST} states {name} {number}, which should be a whole number"
            raise DamagedError(message)
