"""One episode's steps turned into rows, the same way when it is recorded and when it is replayed."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np

from recorder.encoding import ArrayStore, encode_value
from recorder.errors import CannotRunError, EncodingError
from recorder.simulator import ShowsRawFrames, spell_ram

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import gymnasium

    from recorder.records import JsonValue, Row
    from recorder.simulator import RamReader

    FrameSink = Callable[[np.ndarray[Any, Any]], None]


class Stepper:
    """Steps an environment and spells everything that came out, at once, before a buffer can be reused.

    Args:
        env: The environment, wrappers included.
        arrays: Takes arrays too big for a line.
        read_ram: Reads the simulator's state, or None.
        is_hashing_rgb: Whether `env.render()` is hashed at every raw frame.
        info_keys: Info keys to keep.
        frame_sink: Also gets each raw frame's picture (height, width, 3, uint8); implies rendering.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        arrays: ArrayStore,
        read_ram: RamReader | None = None,
        is_hashing_rgb: bool = False,
        info_keys: Sequence[str] = (),
        frame_sink: FrameSink | None = None,
    ) -> None:
        """Attach to the environment's raw frames where it publishes them."""
        self._env = env
        self._step = env.step
        self._arrays = arrays
        self._read_ram = read_ram
        self._is_hashing_rgb = is_hashing_rgb
        self._frame_sink = frame_sink
        self._is_rendering = is_hashing_rgb or frame_sink is not None
        self._info_keys = tuple(info_keys)
        self.frames: list[Row] = []
        self.transition: Row = {}
        self._action: JsonValue = None
        self._observation: JsonValue = None
        self._last_ram: bytes | None = None
        self.decisions = 0
        self.raw_frames = 0
        simulator = env.unwrapped
        self._publisher = simulator if isinstance(simulator, ShowsRawFrames) else None

    def reset(self, seed: int, options: dict[str, Any] | None) -> tuple[Any, dict[str, Any], Row]:
        """Reset the environment; return its observation, its info and the reset row."""
        self.decisions = self.raw_frames = 0
        self.frames = []
        observation, info = self._env.reset(seed=seed, options=options)
        self._observation = _spell("reset observation", observation, self._arrays)
        row = {
            "observation": self._observation,
            "info": self._spell_info(info),
            "ram": self._spell_ram(),
            "rgb_sha256": self._take_picture() if self._is_rendering else None,
        }
        if self._publisher is not None:
            self._publisher.set_raw_frame_listener(self._on_raw_frame)
        return observation, info, row

    def step(self, action: Any, prediction: Row | None) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401
        """Take one decision; `transition` and `frames` are its rows until the next one.

        Returns:
            What the environment returned, flags as plain bools.

        Raises:
            EncodingError: The action, observation, reward or a kept info value has no exact spelling.
        """
        # Spelled before the step: the environment may write into the action it is given.
        try:
            spelled_action = self._action = encode_value(action, self._arrays)
        except EncodingError as error:
            raise error.inside("action") from None
        frames: list[Row] = []
        self.frames = frames
        observation, reward, terminated, truncated, info = self._step(action)
        terminated, truncated = bool(terminated), bool(truncated)
        try:
            next_observation = encode_value(observation, self._arrays)
            spelled_reward = encode_value(reward)
        except EncodingError as error:
            raise error.inside("observation or reward") from None
        if self._publisher is None:
            self._append_frame(spelled_reward, terminated, truncated)
        elif not frames:
            message = f"{self._env.unwrapped} published no raw frame during a step"
            raise CannotRunError(message)
        self.transition = {
            "decision": self.decisions,
            "observation": self._observation,
            "prediction": prediction,
            "action": spelled_action,
            "reward": spelled_reward,
            "rewards": [frame["reward"] for frame in frames] if self._publisher else [spelled_reward],
            "raw_frames": len(frames),
            "next_observation": next_observation,
            "ram_sha256": None if self._last_ram is None else hashlib.sha256(self._last_ram).hexdigest(),
            "terminated": terminated,
            "truncated": truncated,
            "info": self._spell_info(info) if self._info_keys else {},
        }
        self._observation = next_observation
        self.decisions += 1
        return observation, reward, terminated, truncated, info

    def detach(self) -> None:
        """Stop listening to the environment's raw frames."""
        if self._publisher is not None:
            self._publisher.set_raw_frame_listener(None)

    def _on_raw_frame(self, reward: float | None, terminated: bool, truncated: bool) -> None:
        self._append_frame(_spell("raw frame reward", reward, None), bool(terminated), bool(truncated))

    def _append_frame(self, reward: JsonValue, terminated: bool, truncated: bool) -> None:
        self.raw_frames += 1
        self.frames.append(
            {
                "decision": self.decisions,
                "raw_frame": self.raw_frames,
                "requested_action": self._action,
                "ram": None if self._read_ram is None else self._spell_ram(),
                "rgb_sha256": self._take_picture() if self._is_rendering else None,
                "reward": reward,
                "terminated": terminated,
                "truncated": truncated,
            }
        )

    def _spell_ram(self) -> str | Row | None:
        if self._read_ram is None:
            return None
        self._last_ram = self._read_ram()
        return spell_ram(self._last_ram)

    def _take_picture(self) -> str | None:
        picture = self._env.render()
        if not isinstance(picture, np.ndarray) or picture.dtype != np.uint8:
            message = f"render() returned {type(picture).__name__}, not a uint8 array: record without RGB (rgb=False)"
            raise CannotRunError(message)
        if self._frame_sink is not None:
            self._frame_sink(picture)
        if not self._is_hashing_rgb:
            return None
        return hashlib.sha256(picture.tobytes()).hexdigest()

    def _spell_info(self, info: dict[str, Any]) -> Row:
        return {key: _spell(f"info[{key!r}]", info[key], self._arrays) for key in self._info_keys if key in info}


def _spell(what: str, value: Any, arrays: ArrayStore | None) -> JsonValue:  # noqa: ANN401
    try:
        return encode_value(value, arrays)
    except EncodingError as error:
        raise error.inside(what) from None
