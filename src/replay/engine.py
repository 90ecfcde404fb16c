"""Runs a recorded episode again, without its agent, and compares everything that comes out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np

from recorder.encoding import decode_value, encode_value
from recorder.errors import (
    CannotRunError,
    DamagedError,
    EncodingError,
    RecorderError,
    UsageError,
    VersionError,
)
from recorder.limits import Limits
from recorder.provenance import compare_fingerprint
from recorder.rebuild import build_environment, describe_space, require_same_assets, trust_modules, wrapper_names
from recorder.records import ARRAYS, Row, encode_line, sha256_of_json
from recorder.simulator import describe_clocks, open_ram_source
from recorder.stepping import Stepper
from recorder.wrappers import COMPLETE_ENDS, derive_seed
from replay.actions import ActionReader
from replay.divergence import MISSING, ArraySources, Mismatch, Place, compare_rows
from replay.evidence import Evidence
from replay.fresh_arrays import BEHIND_DECISIONS, FreshArrays
from replay.model_proof import ModelProof, holds_model_policy
from replay.raw_frames import RawFrameComparison
from replay.verdict import Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from recorder.limits import LimitReason
    from recorder.provenance import Difference
    from recorder.stepping import FrameSink

    LineSink = Callable[[bytes], object]

# More digits than a seed of 64 bits has.
SEED_DIGITS = 21

# What ends a recording from outside, so that the replay has no reason to meet it.
_INTERRUPTIONS = ("KeyboardInterrupt", "SystemExit")


class Replay:
    """One replay of one episode: open it, then `run` it once.

    Args:
        folder: The episode.
        trust: Modules whose code the episode may run.
        allow_other_versions: Go on when packages have other versions than at the recording.
        render_mode: Build the environment with this render mode instead of the recorded one.

    Raises:
        UsageError: The folder is not an episode.
        VersionError: Versions differ and were not allowed to.
        CannotRunError: The environment cannot be built here.
        DamagedError: The manifest cannot be read, so that nothing can be run.
    """

    def __init__(
        self,
        folder: Path | str,
        *,
        trust: Collection[str] = (),
        allow_other_versions: bool = False,
        render_mode: str | None = None,
    ) -> None:
        """Read the manifest, check the versions and build the environment; nothing is stepped yet."""
        folder = Path(folder)
        self.verdict = Verdict(folder)
        self._evidence = Evidence(folder, self.verdict)
        self.manifest = self._evidence.manifest
        self._is_trusted = trust_modules(trust)
        self._check_protocol()
        self._check_seed()
        try:
            self.env = build_environment(
                self.manifest["environment"], is_trusted=self._is_trusted, render_mode=render_mode
            )
        except CannotRunError as error:
            raise self.verdict.blame_damage(error) from error
        self._limits = Limits.from_manifest(self.manifest["limits"])
        self.verdict.differences = compare_fingerprint(self.manifest["fingerprint"])
        if self.verdict.is_under_other_versions and not allow_other_versions:
            self.env.close()
            raise self.verdict.blame_damage(VersionError(refuse_versions(self.verdict.differences)))
        try:
            require_same_assets(self.manifest["environment"], self.env)
        except CannotRunError as error:
            self.env.close()
            raise self.verdict.blame_damage(error) from error
        # Texts of other releases may differ, and another render mode is no wish of the episode.
        self._is_environment_comparable = render_mode is None and not self.verdict.is_under_other_versions
        self._fresh_arrays = FreshArrays()
        self._arrays = ArraySources(self._evidence.arrays, self._fresh_arrays)
        self._actions = ActionReader(self._evidence)
        self._seen_info: set[str] = set()
        self._are_arrays_sound = True
        self._ended = (False, False)
        self._stepper: Stepper | None = None
        self._has_program_predictions = False
        self._reached_limit: LimitReason | None = None

    @property
    def environment(self) -> str:
        """What is run, by name."""
        described = self.manifest["environment"]
        return str(described["id"] or described["factory"]["entry_point"])

    @property
    def seed(self) -> int:
        """Of the reset."""
        return int(self.manifest["reset"]["seed"])

    @property
    def rate_hz(self) -> float | None:
        """Raw frames in a second of simulation time, if it is known."""
        rate_hz: float | None = self.manifest["clocks"]["raw_frame_hz"]
        return rate_hz

    @property
    def is_drawing(self) -> bool:
        """Whether the environment draws pictures as it was recorded."""
        return bool(self.manifest["environment"]["render_mode"] == "rgb_array")

    @property
    def facts(self) -> Row:
        """What the report says beside the verdict."""
        return {}

    def run(
        self,
        *,
        frame_sink: FrameSink | None = None,
        line_sink: LineSink | None = None,
        decisions: int | None = None,
        is_asking_policy: bool = False,
    ) -> Verdict:
        """Step through the episode up to its end, its first divergence or a number of decisions.

        Args:
            frame_sink: Gets the picture of the reset and of every raw frame.
            line_sink: Gets every reconstructed line for `frames.jsonl`.
            decisions: Stop after so many, and then leave files and totals unjudged.
            is_asking_policy: Let a recorded model policy decide again, from the recorded exchanges.

        Returns:
            The verdict, also as `self.verdict`.
        """
        frames = RawFrameComparison(
            self._evidence,
            self.verdict,
            self._arrays,
            line_sink=line_sink,
            # Pictures are hashed while later decisions are stepped; but none is shown beyond the first divergence.
            may_be_behind=BEHIND_DECISIONS if frame_sink is None else 0,
        )
        try:
            stepper = self._stepper = self._open_stepper(frame_sink)
            can_step = self._compare_environment() and self._replay_reset(stepper)
            is_through = can_step and self._replay_decisions(stepper, frames, decisions)
            if decisions is None:
                self._evidence.judge_files()
                # Of a replay that stopped early the totals say nothing.
                if is_through or self._evidence.ended_in_reset:
                    self._compare_totals()
                    self._note_surplus_arrays()
                self._note_absent_info()
                self._note_run()
                self._prove_model(is_asking_policy=is_asking_policy)
        except (CannotRunError, UsageError) as error:
            raise self.verdict.blame_damage(error) from error
        finally:
            if self._stepper is not None:
                self._stepper.close()
            self._evidence.close()
            self.env.close()
        return self.verdict

    def _check_protocol(self) -> None:
        protocol, stated = self.manifest["protocol"], self.manifest["protocol_sha256"]
        found = sha256_of_json(protocol) if protocol else None
        if found != stated:
            self.verdict.faults.append(f"protocol_sha256 says {stated}, the protocol has {found}")

    def _check_seed(self) -> None:
        reset, index = self.manifest["reset"], self.manifest.get("episode_index")
        kind, _, origin = reset["seed_origin"].partition(":")
        if kind != "derived":
            return
        run_seed, _, number = origin.partition(":")
        is_named = run_seed.isascii() and run_seed.isdigit() and number == str(index) and len(run_seed) < SEED_DIGITS
        if not is_named or derive_seed(int(run_seed), int(number)) != reset["seed"]:
            self.verdict.faults.append(f"seed {reset['seed']} of episode {index} is not {reset['seed_origin']!r}")

    def _compare_environment(self) -> bool:
        """Compare what was built with what the manifest says was recorded; say whether it is the same."""
        if not self._is_environment_comparable:
            return True
        env, described = self.env, self.manifest["environment"]
        spec = env.unwrapped.spec  # a wrapper's `spec` copies the whole of it
        built = {
            "id": spec.id if spec is not None else None,
            "wrappers": wrapper_names(env),
            "render_mode": env.render_mode,
            "observation_space": describe_space(env.observation_space),
            "action_space": describe_space(env.action_space),
        }
        stated = {field: value for field, value in built.items() if field in described}
        is_same = self.verdict.keep(compare_rows(Place("manifest"), described, stated, self._arrays))
        clocks = describe_clocks(env)
        return (
            self.verdict.keep(compare_rows(Place("manifest"), self.manifest["clocks"], clocks, self._arrays))
            and is_same
        )

    def _open_stepper(self, frame_sink: FrameSink | None) -> Stepper:
        channels = self.manifest["channels"]
        for channel, reason in (("RAM", channels["ram"]["absent"]), ("RGB", channels["rgb"]["absent"])):
            if reason is not None:
                self.verdict.not_checked.append(f"{channel}: {reason}")
        if self.manifest["policy"] is not None and not holds_model_policy(self.manifest):
            self.verdict.not_checked.append("predictions: the policy is not run")
        return Stepper(
            self.env,
            arrays=self._fresh_arrays,
            read_ram=open_ram_source(self.env, channels["ram"]["source"], is_trusted=self._is_trusted),
            ram_source=channels["ram"]["source"],
            is_hashing_rgb=channels["rgb"]["source"] is not None,
            info_keys=self.manifest["info_keys"],
            limits=self._limits,
            frame_sink=None if frame_sink is None else guard_sink(frame_sink),
        )

    def _replay_reset(self, stepper: Stepper) -> bool:
        """Reset and compare; say whether the environment can be stepped and nothing diverged yet."""
        place = Place("reset")
        recorded = self._evidence.read_reset()
        summary = self._evidence.summary
        has_no_reset = recorded is None and self._evidence.ended_in_reset
        raised_then = summary["error_type"] if has_no_reset and summary is not None else None
        asked = self.manifest["reset"]
        try:
            _, _, replayed = stepper.reset(asked["seed"], decode_value(asked["options"]))
        except Exception as error:  # noqa: BLE001 - whatever the environment raises is what the replay gave
            _raise_if_ours(error)
            return self._keep_exception(place, error, raised_then)
        if raised_then is not None and raised_then not in _INTERRUPTIONS:
            return self.verdict.keep([Mismatch(place, "exception", None, raised_then, MISSING)])
        if recorded is None:
            return True
        self.verdict.count_reset(replayed)
        self._seen_info.update(replayed["info"])
        is_same = self.verdict.keep(compare_rows(place, recorded, replayed, self._arrays))
        if recorded == replayed:
            self._check_arrays()
        return is_same

    def _replay_decisions(self, stepper: Stepper, frames: RawFrameComparison, decisions: int | None) -> bool:
        """Step and compare; say whether it went through to the end of the record without a difference."""
        is_through = self._replay_lines(stepper, frames, decisions)
        self._reached_limit = stepper.reached_limit
        # However it ended: what differs in raw frames that wait goes before it.
        is_same = frames.catch_up()
        return is_through and is_same and frames.judge_surplus(stepper, has_ended=any(self._ended))

    def _replay_lines(self, stepper: Stepper, frames: RawFrameComparison, decisions: int | None) -> bool:
        evidence = self._evidence
        for line in evidence.transitions:
            if stepper.decisions == decisions:
                return False
            if not line.endswith(b"\n"):
                evidence.note_torn_tail(evidence.transitions, line)
                break
            try:
                prediction, action = self._actions.read(line)
            except DamagedError as error:
                self.verdict.faults.append(str(error))
                return False
            if any(self._ended) or stepper.reached_limit is not None:
                mismatch = Mismatch(_place_of(stepper), "decision", None, stepper.decisions, MISSING)
                return frames.catch_up() and self.verdict.keep([mismatch])
            if not self._step(stepper, frames, action, prediction):
                evidence.read_row("transition", evidence.transitions, line)  # a fault, if the action is none
                return False
            if not self._compare_decision(stepper, frames, line):
                return False
        return True

    def _step(self, stepper: Stepper, frames: RawFrameComparison, action: Any, prediction: Row | None) -> bool:
        self._fresh_arrays.forget()
        try:
            _, reward, terminated, truncated, _ = stepper.step(action, prediction)
        except Exception as error:  # noqa: BLE001 - whatever the environment raises is what the replay gave
            if not frames.catch_up():
                return False
            _raise_if_ours(error)
            return self._keep_exception(_place_of(stepper), error)
        self.verdict.decisions, self.verdict.raw_frames = stepper.decisions, stepper.raw_frames
        self._ended = (terminated, truncated)
        self.verdict.total_reward += float(reward)
        self.verdict.count_decision(stepper.transition)
        self._seen_info.update(stepper.transition["info"])
        if prediction is not None and "program_sha256" in prediction:
            self._has_program_predictions = True
        return True

    def _compare_decision(self, stepper: Stepper, frames: RawFrameComparison, line: bytes) -> bool:
        if encode_line(stepper.transition) == line:
            if not frames.take(stepper.frames):
                return False
            self._check_arrays()
            return True
        if not frames.catch_up():  # what differs in an earlier decision goes before
            return False
        recorded = self._evidence.read_row("transition", self._evidence.transitions, line)
        place = _place_of(stepper, -1)
        is_same = recorded is not None and self.verdict.keep(
            compare_rows(place, recorded, stepper.transition, self._arrays)
        )
        are_frames_same = frames.take(stepper.frames) and (is_same or frames.catch_up())
        return is_same and are_frames_same

    def _check_arrays(self) -> None:
        """Hold the side file against the arrays of a line that is equal; one fault is enough for a file."""
        if not self._are_arrays_sound:
            return
        try:
            for entry, data in self._fresh_arrays.latest():
                self._evidence.arrays.get(entry, len(data))
        except DamagedError as error:
            self._are_arrays_sound = False
            self.verdict.faults.append(str(error))

    def _note_absent_info(self) -> None:
        absent = [key for key in self.manifest["info_keys"] if key not in self._seen_info]
        self.verdict.not_checked += [f"info {key!r}: the environment never gave it" for key in absent]

    def _note_surplus_arrays(self) -> None:
        path = self._evidence.folder / ARRAYS
        surplus = path.stat().st_size - self._fresh_arrays.length_bytes if path.is_file() else 0
        if surplus > 0:
            self.verdict.not_checked.append(f"{surplus} bytes of {ARRAYS} that no line refers to")

    def _compare_totals(self) -> None:
        summary, verdict = self._evidence.summary, self.verdict
        if summary is None:
            return
        terminated, truncated = self._ended
        replayed = {
            "decisions": verdict.decisions,
            "raw_frames": verdict.raw_frames,
            "return": encode_value(verdict.total_reward),
            "terminated": terminated,
            "truncated": truncated,
            **self._derive_end(summary["end_reason"]),
        }
        verdict.compared["totals"] = len(replayed)
        self.verdict.keep(compare_rows(Place("summary"), summary, replayed, self._arrays))

    def _derive_end(self, reason: str) -> Row:
        """What the flags and the limit say about the end; a reason that they leave open is taken as recorded."""
        terminated, truncated = self._ended
        if terminated or truncated:
            reason = "terminated" if terminated else "truncated"
        elif reason in COMPLETE_ENDS:
            reason = self._reached_limit or "closed"
        return {"end_reason": reason, "status": "complete" if reason in COMPLETE_ENDS else "incomplete"}

    def _note_run(self) -> None:
        index = self.manifest.get("episode_index")
        if self.verdict.mismatches and index:
            self.verdict.notes.append(
                f"this was episode {index} of its run: state that survives a reset would explain it "
                "(record such an environment with rebuild=True, as `record play` does)"
            )

    def _prove_model(self, *, is_asking_policy: bool) -> None:
        """Derive predictions and actions from the exchanges with the model, if nothing differs before."""
        if not holds_model_policy(self.manifest):
            if self._has_program_predictions:
                self.verdict.add_fault("predictions name a question program, which the manifest's policy does not hold")
            if is_asking_policy:
                self.verdict.not_checked.append(
                    "policy: only one that asks a model can be asked again from its exchanges"
                )
            return
        if self.verdict.mismatches:
            self.verdict.not_checked.append("predictions: the replay diverged")
            return
        proof = ModelProof(self._evidence.folder, self.manifest, self.verdict)
        proof.prove(decisions=self.verdict.decisions, env=self.env if is_asking_policy else None)

    def _keep_exception(self, place: Place, error: Exception, raised_then: str | None = None) -> bool:
        """What the environment raises is what the replay gave; it never lets the replay go on."""
        name = type(error).__name__
        if name == raised_then:
            self.verdict.compared["exceptions"] = 1
            self.verdict.notes.append(f"the reset raised {name}, as it did in the recording")
        else:
            self.verdict.keep([Mismatch(place, "exception", None, raised_then, f"{name}: {error}")])
        return False


def guard_sink(sink: FrameSink) -> FrameSink:
    """A sink whose failures are not taken for the environment's."""

    def guarded(picture: np.ndarray[Any, Any]) -> None:
        try:
            sink(picture)
        except RecorderError:
            raise
        except Exception as error:
            message = f"a picture could not be written: {type(error).__name__}: {error}"
            raise CannotRunError(message) from error

    return guarded


def _raise_if_ours(error: Exception) -> None:
    """What this machine lacks is no divergence, and neither is an error of this project."""
    if isinstance(error, RecorderError) and not isinstance(error, EncodingError):
        raise error
    if isinstance(error, ImportError | OSError | MemoryError | gymnasium.error.DependencyNotInstalled):
        message = f"the environment cannot run here: {type(error).__name__}: {error}"
        raise CannotRunError(message) from error


def _place_of(stepper: Stepper, offset: int = 0) -> Place:
    return Place("transition", stepper.decisions + offset)


def refuse_versions(differences: list[Difference]) -> str:
    """Why a replay does not run: the list, and the flag that allows it."""
    listed = ", ".join(str(difference) for difference in differences if difference.kind == "version")
    return (
        f"versions differ from the recording ({listed}): install the recorded ones, "
        "or replay under these with --allow-other-versions"
    )
