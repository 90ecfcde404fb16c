"""`RecordEpisode`: the wrapper that writes every episode of an environment as evidence."""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import gymnasium
import numpy as np

from recorder.encoding import encode_value
from recorder.errors import UsageError
from recorder.limits import LimitReason, Limits
from recorder.provenance import describe_fingerprint, describe_provenance
from recorder.rebuild import build_environment, defining_modules, describe_environment, require_rebuildable
from recorder.records import FORMAT_VERSION, Row, sha256_of_json
from recorder.simulator import choose_ram_source, describe_clocks, open_ram_source
from recorder.stepping import Stepper
from recorder.storage import Durability, EpisodeWriter, require_new_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

EndReason: TypeAlias = Literal["terminated", "truncated", "abandoned", "closed", "error"] | LimitReason

# A drawn or derived seed lies in the range that every consumer accepts (numpy's legacy seeds, C ints).
SEED_LIMIT = 2**31

# What the manifest holds as a JSON number.
GIVEN_SEED_LIMIT = 2**64

COMPLETE_ENDS = frozenset({"terminated", "truncated", *get_args(LimitReason)})


class RecordEpisode(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Record each episode of an environment into a folder of its own.

    ```python
    with RecordEpisode(gym.make("CartPole-v1"), out="runs/cartpole") as env:
        observation, info = env.reset(seed=0)
        ...
    ```

    Episodes become `out/episode-0000`, `out/episode-0001`, ... Whatever ends the process leaves whole lines, a
    prefix that replays; leaving the `with` block, `close()` or the next `reset` writes the summary of an
    episode that is still open.

    Args:
        env: What `gymnasium.make` returned, wrapped or not.
        out: Folder for the episodes; must not exist.
        factory: `module:function` that builds the environment, for environments without a spec.
        factory_kwargs: Keyword arguments of the factory.
        ram: Where the bytes of simulator state come from: `"auto"` (the environment's own `state_bytes`),
            `"numpy:state"`, `"pymunk:space"`, `"module:function"`, or None.
        rgb: Hash the picture of every raw frame; None means: if the render mode is `rgb_array`.
        info_keys: Info keys to record, where the environment gives them.
        policy: Name of the policy, or a mapping with `name` and whatever describes it.
        protocol: Any JSON mapping that belongs to the evidence; kept with its SHA-256.
        durability: What a kill can lose: `"batch"`, at most the last 31 decisions, those taken within 5 ms of each
            other; `"process"`, nothing; `"power"`, nothing, and a power cut nothing either. See
            `storage.EpisodeWriter`.
        validate: Check every line against its schema before it is written.
        rebuild: Build the environment anew for every episode after the first, for those in which something
            survives a reset: only then can each of their episodes be replayed alone.
        redact: Removes secrets from the manifest and from every prediction before they are written.
        draw_seed: Draws the seed of a first `reset()` without one; operating system entropy by default.

    Attributes:
        episode_folder: Folder of the running or last episode; None before the first.
        summary: How the last episode ended, as its summary says; None before the first end.

    Raises:
        UsageError: `out` exists.
        NotRebuildableError: A replay could not build this environment again.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        out: str | Path,
        *,
        factory: str | None = None,
        factory_kwargs: Mapping[str, Any] | None = None,
        ram: str | None = "auto",
        rgb: bool | None = None,
        info_keys: Sequence[str] = (),
        policy: str | Mapping[str, Any] | None = None,
        protocol: Mapping[str, Any] | None = None,
        durability: Durability = "batch",
        validate: bool = True,
        rebuild: bool = False,
        redact: Callable[[Any], Any] = lambda value: value,
        draw_seed: Callable[[], int] = lambda: secrets.randbelow(SEED_LIMIT),
    ) -> None:
        """Refuse what could not be replayed; write nothing yet."""
        super().__init__(env)
        self.out = Path(out)
        require_new_folder(self.out)
        if durability not in get_args(Durability):
            message = f"durability must be one of {', '.join(get_args(Durability))}, not {durability!r}"
            raise UsageError(message)
        if isinstance(info_keys, str) or not all(isinstance(key, str) for key in info_keys):
            message = f"info_keys is a list of texts, not {info_keys!r}: write ['key', ...]"
            raise UsageError(message)
        is_hashing_rgb = env.render_mode == "rgb_array" if rgb is None else rgb
        if is_hashing_rgb and env.render_mode != "rgb_array":
            message = (
                f"rgb=True needs an environment made with render_mode='rgb_array', this one has {env.render_mode!r}"
            )
            raise UsageError(message)
        described = describe_environment(env, factory, factory_kwargs)
        require_rebuildable(env, described, is_drawing=is_hashing_rgb)
        ram_channel = choose_ram_source(env, ram)
        self._read_ram = open_ram_source(env, ram_channel["source"], is_trusted=lambda _: True)
        self._description = _describe_run(
            env,
            environment=described,
            ram=ram_channel,
            is_hashing_rgb=is_hashing_rgb,
            info_keys=info_keys,
            policy=policy,
            protocol=protocol,
        )
        self._is_hashing_rgb = is_hashing_rgb
        self._info_keys = tuple(info_keys)
        self._durability = durability
        self._is_validating = validate
        self._is_rebuilding = rebuild
        self._redact = redact
        self._draw_seed = draw_seed
        self._run_seed: int | None = None
        self._episode_index = 0
        self._writer: EpisodeWriter | None = None
        self._stepper: Stepper | None = None
        self._prediction: Row | None = None
        self._limits = Limits()
        self.episode_folder: Path | None = None
        self.summary: Row | None = None

    def limit(self, *, decisions: int | None = None, raw_frames: int | None = None, points: int | None = None) -> None:
        """Note in the next manifests where the caller will end the episode; `reached_limit` says when to.

        The last hold is cut short at a limit of raw frames or points where the environment holds actions
        (`HoldAction`); elsewhere an episode ends with the decision that reaches it.

        Raises:
            UsageError: A limit is no whole number from 1.
        """
        limits = Limits(decisions, raw_frames, points)
        limits.to_manifest()
        self._limits = limits

    @property
    def decisions(self) -> int:
        """Decisions of the running episode so far."""
        return 0 if self._stepper is None else self._stepper.decisions

    @property
    def raw_frames(self) -> int:
        """Raw frames of the running episode so far, those of its reset not counted."""
        return 0 if self._stepper is None else self._stepper.raw_frames

    @property
    def reached_limit(self) -> LimitReason | None:
        """The limit that the running episode is at, if any."""
        return None if self._stepper is None else self._stepper.reached_limit

    def predict(self, prediction: Row) -> None:
        """Record with the next decision why the policy chose its action, as a JSON object."""
        self._prediction = self._redact(prediction)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; one that is still running ends as abandoned.

        Without a seed one is derived from the run's first seed, or drawn, and passed on and recorded, so that
        every episode can be replayed alone.
        """
        self._end("abandoned")
        if self._is_rebuilding and self._episode_index:
            self._rebuild()
        seed, origin = self._choose_seed(seed)
        spelled_options = encode_value(options, is_sent=True)
        folder = self.out / f"episode-{self._episode_index:04d}"
        writer = EpisodeWriter(
            folder,
            durability=self._durability,
            is_validating=self._is_validating,
        )
        writer.write_manifest(
            self._redact(
                {
                    "format_version": FORMAT_VERSION,
                    "kind": "episode",
                    "episode_index": self._episode_index,
                    "reset": {"seed": seed, "seed_origin": origin, "options": spelled_options},
                    "limits": self._limits.to_manifest(),
                    **self._description,
                    "provenance": describe_provenance(),
                }
            )
        )
        self._episode_index += 1
        self._writer, self.episode_folder = writer, folder
        self._prediction = None
        self._stepper = Stepper(
            self.env,
            arrays=writer,
            read_ram=self._read_ram,
            ram_source=self._description["channels"]["ram"]["source"],
            is_hashing_rgb=self._is_hashing_rgb,
            info_keys=self._info_keys,
            limits=self._limits,
        )
        try:
            observation, info, row = self._stepper.reset(seed, options)
            writer.write_reset(row)
        except BaseException as error:
            self._end("error", error)
            raise
        return observation, info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401 - any action
        """Take one decision and record it before returning.

        Raises:
            UsageError: There is no running episode.
        """
        stepper, writer = self._stepper, self._writer
        if stepper is None or writer is None:
            if self.episode_folder is None:
                message = "step() before reset(): call reset() to begin an episode"
            else:
                message = f"step() after the end of {self.episode_folder.name}: call reset() to begin the next episode"
            raise UsageError(message)
        try:
            result = stepper.step(action, self._prediction)
            writer.append_decision(stepper.transition, stepper.frames, float(result[1]))
        except BaseException as error:
            self._end("error", error)
            raise
        self._prediction = None
        _, _, terminated, truncated, _ = result
        if terminated or truncated:
            self._end("terminated" if terminated else "truncated")
        return result

    def end_episode(self) -> None:
        """End a running episode from outside: at its stated limit, or closed before it.

        `truncated` stays as the environment gave it.
        """
        self._end(self.reached_limit or "closed")

    def close(self) -> None:
        """End a running episode as closed, and close the environment."""
        try:
            self._end("closed")
        finally:
            super().close()

    def __enter__(self) -> RecordEpisode:
        """The wrapper itself."""
        return self

    def __exit__(self, *exception: Any) -> Literal[False]:  # noqa: ANN401 - Gymnasium's signature
        """End a running episode, as an error if one is passing through, and close."""
        if exception[1] is not None:
            self._end("error", exception[1])
        self.close()
        return False

    def _end(self, reason: EndReason, error: BaseException | None = None) -> None:
        stepper, writer = self._stepper, self._writer
        if stepper is None or writer is None:
            return
        self._stepper = self._writer = None
        stepper.detach()
        try:
            writer.hand_over()
            totals = writer.totals
            if totals.terminated or totals.truncated:  # whatever came afterwards, the episode was over
                reason, error_type = ("terminated" if totals.terminated else "truncated"), None
            else:
                error_type = type(error).__name__ if error is not None else None
            self.summary = {
                "status": "complete" if reason in COMPLETE_ENDS else "incomplete",
                "end_reason": reason,
                "error_type": error_type,
                "decisions": totals.decisions,
                "raw_frames": totals.raw_frames,
                "return": encode_value(totals.total_reward),
                "terminated": totals.terminated,
                "truncated": totals.truncated,
            }
            writer.finish(self.summary)
        except BaseException as failure:
            writer.abandon()
            # A full disk must not hide the error that is already on its way; Ctrl-C is hidden by nothing.
            if error is None or not isinstance(failure, Exception):
                raise
        finally:
            stepper.close()

    def _rebuild(self) -> None:
        self.env.close()
        self.env = build_environment(self._description["environment"], is_trusted=lambda _: True)
        source = self._description["channels"]["ram"]["source"]
        self._read_ram = open_ram_source(self.env, source, is_trusted=lambda _: True)

    def _choose_seed(self, seed: int | None) -> tuple[int, str]:
        if seed is not None:
            is_int = isinstance(seed, int | np.integer) and not isinstance(seed, bool)
            if not is_int or not 0 <= seed < GIVEN_SEED_LIMIT:
                message = f"seed must be an int from 0 to 2^64 - 1, not {seed!r}: nothing was recorded"
                raise UsageError(message)
            self._run_seed = int(seed)
            return int(seed), "given"
        if self._run_seed is not None:
            return derive_seed(self._run_seed, self._episode_index), f"derived:{self._run_seed}:{self._episode_index}"
        self._run_seed = self._draw_seed()
        return self._run_seed, "drawn"


def derive_seed(run_seed: int, episode_index: int) -> int:
    """The seed of a later episode of a run: the same run seed gives the same episodes."""
    state = np.random.SeedSequence([run_seed, episode_index]).generate_state(1)
    return int(state[0]) % SEED_LIMIT


def _describe_run(
    env: gymnasium.Env[Any, Any],
    *,
    environment: Row,
    ram: Row,
    is_hashing_rgb: bool,
    info_keys: Sequence[str],
    policy: str | Mapping[str, Any] | None,
    protocol: Mapping[str, Any] | None,
) -> Row:
    """The part of a manifest that all episodes of a run share."""
    distribution = environment["distribution"]
    protocol = _plain("protocol", protocol)
    is_drawn = env.render_mode == "rgb_array"
    reason = "not asked for" if is_drawn else f"there are no pictures with render mode {env.render_mode!r}"
    absent = None if is_hashing_rgb else reason
    return {
        "environment": environment,
        "policy": _plain("policy", {"name": policy} if isinstance(policy, str) else policy),
        "protocol": protocol or None,
        "protocol_sha256": sha256_of_json(protocol) if protocol else None,
        "clocks": describe_clocks(env),
        "channels": {"ram": ram, "rgb": {"source": "render" if is_hashing_rgb else None, "absent": absent}},
        "info_keys": list(info_keys),
        "fingerprint": describe_fingerprint(
            [distribution["name"]] if distribution else [], defining_modules(env), is_drawing=is_hashing_rgb
        ),
    }


def _plain(name: str, mapping: Mapping[str, Any] | None) -> Row | None:
    """A copy of a mapping that strict JSON can hold."""
    if mapping is None:
        return None
    try:
        plain: Row = json.loads(json.dumps(dict(mapping), allow_nan=False))
        sha256_of_json(plain)  # what has no digest cannot be kept
    except (TypeError, ValueError, RecursionError) as error:
        message = f"{name} is not strict JSON ({error}): keep to text, finite numbers, lists and mappings of them"
        raise UsageError(message) from error
    return plain
