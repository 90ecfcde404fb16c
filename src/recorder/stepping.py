"""One episode's steps turned into rows, the same way when it is recorded and when it is replayed."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np
import orjson

from recorder.encoding import ArrayStore, encode_value
from recorder.errors import CannotRunError, EncodingError
from recorder.frames import DecisionFrames
from recorder.hashing import open_hasher
from recorder.limits import Limits
from recorder.simulator import (
    ENVIRONMENT,
    find_publisher,
    keeps_raw_frames,
    picture_drawer,
    set_limits,
    spell_ram,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import gymnasium

    from recorder.hashing import PictureHasher, Ticket
    from recorder.limits import LimitReason
    from recorder.records import JsonValue, Row
    from recorder.simulator import KeepsRawFrames, RamReader, RawFrame

    FrameSink = Callable[[np.ndarray[Any, Any]], None]


class Stepper:
    """Steps an environment and spells everything that came out, at once, before a buffer can be reused.

    Args:
        env: The environment, wrappers included.
        arrays: Takes arrays too big for a line.
        read_ram: Reads the simulator's state, or None.
        ram_source: The manifest's spelling of where that state comes from.
        is_hashing_rgb: Whether `env.render()` is hashed at every raw frame.
        info_keys: Info keys to keep.
        limits: Where the caller ends the episode; a hold is cut short there.
        frame_sink: Also gets each raw frame's picture (height, width, 3, uint8); implies rendering.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        arrays: ArrayStore,
        read_ram: RamReader | None = None,
        ram_source: str | None = None,
        is_hashing_rgb: bool = False,
        info_keys: Sequence[str] = (),
        limits: Limits | None = None,
        frame_sink: FrameSink | None = None,
    ) -> None:
        """Attach to the environment's raw frames where it publishes them."""
        self._env = env
        self._step = env.step
        self._arrays = arrays
        self._read_ram = read_ram
        self._has_ram = read_ram is not None
        self._is_hashing_rgb = is_hashing_rgb
        self._frame_sink = frame_sink
        self._is_rendering = is_hashing_rgb or frame_sink is not None
        self._info_keys = tuple(info_keys)
        self.frames = DecisionFrames(0, 1, None, [], [], self._has_ram, [])
        self.transition: Row = {}
        self._observation: JsonValue = None
        self.decisions = 0
        self.raw_frames = 0
        self._points = 0
        self._limits = limits or Limits()
        set_limits(env, self._limits)
        simulator = env.unwrapped
        self._publisher = find_publisher(env)
        self._keeper: KeepsRawFrames | None = None
        # Without pictures nothing has to happen at each raw frame, if the environment keeps their states itself.
        if keeps_raw_frames(simulator) and ram_source == ENVIRONMENT and not self._is_rendering:
            self._keeper = simulator
        self._kept: list[RawFrame] = []
        self._pictures: list[Ticket] = []
        self._hasher: PictureHasher | None = None
        self._draw_into: Callable[[np.ndarray[Any, Any]], object] | None = None

    @property
    def reached_limit(self) -> LimitReason | None:
        """The limit that the episode is at, if any."""
        return self._limits.reached(decisions=self.decisions, raw_frames=self.raw_frames, points=self._points)

    def reset(self, seed: int, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any], Row]:
        """Reset the environment; return its observation, its info and the reset row."""
        self.decisions = self.raw_frames = self._points = 0
        observation, info = self._env.reset(seed=seed, options=options)
        self._observation = _spell("reset observation", observation, self._arrays)
        row = {
            "observation": self._observation,
            "info": self._spell_info(info),
            "ram": None if self._read_ram is None else spell_ram(_require_bytes(self._read_ram())),
            "rgb_sha256": self._take_first_picture() if self._is_rendering else None,
        }
        reset_frames = getattr(self._publisher, "reset_frames", None)
        if reset_frames is not None:
            row["reset_frames"] = reset_frames
        if self._keeper is not None:
            self._keeper.keep_raw_frames(True)
        elif self._publisher is not None:
            self._publisher.set_raw_frame_listener(self._on_raw_frame)
        return observation, info, row

    def step(self, action: Any, prediction: Row | None) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Take one decision; `transition` and `frames` are its rows until the next one.

        Returns:
            What the environment returned, flags as plain bools.

        Raises:
            EncodingError: The action, observation, reward or a kept info value has no exact spelling.
        """
        if prediction is not None:
            prediction = _copy_prediction(prediction)
        # Spelled before the step: the environment may write into the action it is given.
        try:
            spelled_action = encode_value(action, self._arrays, is_sent=True)
        except EncodingError as error:
            raise error.inside("action") from None
        kept: list[RawFrame] = []
        pictures: list[Ticket] = []
        self._kept, self._pictures = kept, pictures
        observation, reward, terminated, truncated, info = self._step(action)
        if terminated.__class__ is not bool or truncated.__class__ is not bool:
            terminated, truncated = bool(terminated), bool(truncated)
        try:
            what = "observation"
            next_observation = encode_value(observation, self._arrays)
            what = "reward"
            spelled_reward = encode_value(reward)
            float(reward)
        except EncodingError as error:
            raise error.inside(what) from None
        except (TypeError, ValueError, OverflowError):
            problem = f"{what} is not a number that a float can hold"
            raise EncodingError(problem, (what,)) from None
        if self._keeper is not None:
            kept = self._keeper.take_raw_frames()
        elif self._publisher is None:
            ram = b"" if self._read_ram is None else self._read_ram()
            if self._is_rendering:
                self._take_picture()
            kept.append((reward, terminated, truncated, ram))
        if not kept:
            message = f"{self._env.unwrapped} published no raw frame during a step"
            raise CannotRunError(message)
        rewards = [spelled_reward] if self._publisher is None else _spell_rewards(kept, reward, spelled_reward)
        decision = self.decisions
        self.frames = DecisionFrames(
            decision, self.raw_frames + 1, spelled_action, kept, rewards, self._has_ram, pictures, self._hasher
        )
        self.transition = {
            "decision": decision,
            "observation": self._observation,
            "prediction": prediction,
            "action": spelled_action,
            "reward": spelled_reward,
            "rewards": rewards,
            "raw_frames": len(kept),
            "next_observation": next_observation,
            "ram_sha256": hashlib.sha256(kept[-1][3]).hexdigest() if self._has_ram else None,
            "terminated": terminated,
            "truncated": truncated,
            "info": self._spell_info(info) if self._info_keys else {},
        }
        # Counted when nothing can fail any more: a decision that is not written must not be in the totals.
        self._observation = next_observation
        self.raw_frames += len(kept)
        self._points += 0 if self._limits.points is None else sum(1 for own, *_ in kept if own)
        self.decisions = decision + 1
        return observation, reward, terminated, truncated, info

    def detach(self) -> None:
        """Stop listening to the environment's raw frames."""
        if self._keeper is not None:
            self._keeper.keep_raw_frames(False)
        if self._publisher is not None:
            self._publisher.set_raw_frame_listener(None)

    def close(self) -> None:
        """Let the hasher of pictures go; what it holds has to have been written."""
        if self._hasher is not None:
            self._hasher.close()
            self._hasher = None

    def _on_raw_frame(self, reward: SupportsFloat | None, terminated: bool, truncated: bool) -> None:
        """Only keep what is there now; it is spelled when the decision is over."""
        ram = b"" if self._read_ram is None else self._read_ram()
        self._kept.append((_keep_reward(reward), terminated, truncated, ram))
        if self._is_rendering:
            self._take_picture()

    def _take_first_picture(self) -> str | None:
        picture = self._draw()
        if not self._is_hashing_rgb:
            return None
        # Pictures of one environment have one size, and the first shows it.
        if self._hasher is None:
            self._hasher = open_hasher(picture)
            self._draw_into = picture_drawer(self._env)
        return hashlib.sha256(picture.tobytes()).hexdigest()

    def _take_picture(self) -> None:
        hasher = self._hasher
        if hasher is None:
            self._draw()
        elif self._draw_into is None:
            self._pictures.append(hasher.submit(self._draw()))
        else:
            picture = hasher.reserve()
            self._draw_into(picture)
            self._pictures.append(hasher.commit())
            if self._frame_sink is not None:
                self._frame_sink(picture)

    def _draw(self) -> np.ndarray[Any, Any]:
        picture = self._env.render()
        if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8:
            message = f"render() returned {type(picture).__name__}, not a uint8 array: record without RGB (rgb=False)"
            raise CannotRunError(message)
        if self._frame_sink is not None:
            self._frame_sink(picture)
        return picture

    def _spell_info(self, info: dict[str, Any]) -> Row:
        return {key: _spell(f"info[{key!r}]", info[key], self._arrays) for key in self._info_keys if key in info}


def _spell_rewards(kept: list[RawFrame], reward: Any, spelled_reward: JsonValue) -> list[JsonValue]:
    """The reward of each raw frame; one that is the decision's own is spelled already."""
    return [spelled_reward if own is reward else None if own is None else encode_value(own) for own, _, _, _ in kept]


def _copy_prediction(prediction: Row) -> Row:
    """The JSON object that will be written, apart from the one that the policy holds on to."""
    try:
        json.dumps(prediction, allow_nan=False)  # orjson would write NaN as null without a word
        copy = orjson.loads(orjson.dumps(prediction))
    except (TypeError, ValueError, RecursionError) as error:
        problem = f"it is not strict JSON ({error})"
        raise EncodingError(problem, ("prediction",)) from None
    if not isinstance(copy, dict):
        problem = f"it is a {type(prediction).__name__}, not a JSON object"
        raise EncodingError(problem, ("prediction",))
    return copy


def _keep_reward(reward: Any) -> Any:
    """A reward that no buffer can change any more."""
    return reward.copy() if reward.__class__ is np.ndarray else reward


def _require_bytes(state: bytes) -> bytes:
    """State of another type may be a buffer that the simulator reuses."""
    if type(state) is not bytes:
        message = f"the RAM source returned {type(state).__name__}, not bytes"
        raise CannotRunError(message)
    return state


def _spell(what: str, value: Any, arrays: ArrayStore | None) -> JsonValue:
    try:
        return encode_value(value, arrays)
    except EncodingError as error:
        raise error.inside(what) from None
