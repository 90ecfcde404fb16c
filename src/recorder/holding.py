"""`HoldAction`: one decision lasts several raw frames, and each of them is evidence."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs

from recorder.atari import emulator_frames_per_step
from recorder.errors import CannotRunError, UsageError
from recorder.limits import Limits
from recorder.simulator import layers_of

if TYPE_CHECKING:
    from recorder.simulator import RawFrameListener

# The bounds of the published experiments (hold 1 to 16, reset no-ops 0 to 60).
HOLD_LIMIT_FRAMES = 16
NOOP_LIMIT = 60


class HoldAction(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Request one action for several raw frames of the environment, and publish each raw frame.

    The reward of a decision is the sum over its raw frames; the observation is that after the last. A hold ends
    early when the environment ends, when a frame limit is reached, and on the frame that scores the last point of
    a point limit; other points do not end it. With sticky actions the emulator may execute the action of the
    frame before: what is held is a request.

    `info` gains `rewards`, those of the raw frames, and after a reset `reset_frames`.

    Args:
        env: The environment, one raw frame a step.
        hold_frames: Raw frames a decision, from 1 to 16.
        noop_max: A reset is followed by 0 to so many raw frames of `noop_action`, drawn from the reset's seed.
            They belong to the reset: they are neither decisions nor raw frames of the episode.
        noop_action: The action of those.
        raw_frame_hz: Raw frames in a second of simulation time; None takes the environment's `render_fps`.

    Raises:
        UsageError: A number is out of its range, or the environment publishes raw frames itself.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        hold_frames: int = 4,
        *,
        noop_max: int = 0,
        noop_action: int = 0,
        raw_frame_hz: float | None = None,
    ) -> None:
        """Hold nothing yet."""
        RecordConstructorArgs.__init__(
            self,
            hold_frames=hold_frames,
            noop_max=noop_max,
            noop_action=noop_action,
            raw_frame_hz=raw_frame_hz,
        )
        super().__init__(env)
        _require_range("hold_frames", hold_frames, 1, HOLD_LIMIT_FRAMES)
        _require_range("noop_max", noop_max, 0, NOOP_LIMIT)
        if raw_frame_hz is not None and not (isinstance(raw_frame_hz, int | float) and raw_frame_hz > 0):
            message = f"raw_frame_hz must be a number above 0, or None, not {raw_frame_hz!r}"
            raise UsageError(message)
        _require_single_frames(env)
        if noop_max and not env.action_space.contains(noop_action):
            message = f"noop_action {noop_action!r} is not in {env.action_space}"
            raise UsageError(message)
        self.hold_frames = hold_frames
        self.noop_max = noop_max
        self.raw_frame_hz = raw_frame_hz or env.metadata.get("render_fps")
        self.reset_frames = 0
        self._noop_action = noop_action
        self._listener: RawFrameListener | None = None
        self._limits = Limits()
        self._raw_frames = 0
        self._points = 0

    def set_raw_frame_listener(self, listener: RawFrameListener | None) -> None:
        """Call the listener after every raw frame within `step`, or stop calling it."""
        self._listener = listener

    def limit_holds(self, limits: Limits) -> None:
        """Cut the last hold of the next episodes short at these limits; ending them is the caller's."""
        self._limits = limits

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset, and let the no-ops pass.

        Raises:
            CannotRunError: A reward or an end came within them, which no record would hold.
        """
        observation, info = self.env.reset(seed=seed, options=options)
        self._raw_frames = self._points = 0
        self.reset_frames = 0
        if self.noop_max:
            drawn = int(np.random.default_rng(seed).integers(0, self.noop_max + 1))
            for number in range(drawn):
                observation, reward, terminated, truncated, info = self.env.step(self._noop_action)
                if reward or terminated or truncated:
                    message = (
                        f"seed {seed}: a reward or an end came in no-op {number + 1} of {drawn} after the reset, "
                        "before the first decision; take another seed or a smaller noop_max"
                    )
                    raise CannotRunError(message)
            self.reset_frames = drawn
        return observation, {**info, "reset_frames": self.reset_frames}

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:  # noqa: ANN401 - any action
        """Request the action for a whole hold.

        Raises:
            gymnasium.error.InvalidAction: The action is not of the action space; nothing was stepped.
        """
        if isinstance(action, bool | np.bool_) or not self.env.action_space.contains(action):
            message = f"action {action!r} is not in {self.env.action_space}"
            raise gymnasium.error.InvalidAction(message)
        step, listener, limits = self.env.step, self._listener, self._limits
        rewards: list[Any] = []
        total: Any = None
        for _ in range(self.hold_frames):
            observation, reward, terminated, truncated, info = step(action)
            rewards.append(reward)
            total = reward if total is None else total + reward
            self._raw_frames += 1
            if reward:
                self._points += 1
            if listener is not None:
                listener(reward, terminated, truncated)
            if terminated or truncated:
                break
            if self._raw_frames == limits.raw_frames or (reward and self._points == limits.points):
                break
        return observation, total, terminated, truncated, {**info, "rewards": rewards}


def _require_single_frames(env: gymnasium.Env[Any, Any]) -> None:
    """Raise unless a step of the environment is one raw frame."""
    for layer in layers_of(env):
        if hasattr(layer, "set_raw_frame_listener"):
            message = f"{layer} publishes its raw frames itself: leave out HoldAction"
            raise UsageError(message)
    frames = emulator_frames_per_step(env.unwrapped)
    if frames not in {None, 1}:
        message = (
            f"{env.unwrapped} skips frames by itself (frameskip {frames}), so that its raw frames could not be seen: "
            "make it with frameskip=1, and HoldAction holds the action"
        )
        raise UsageError(message)


def _require_range(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not low <= value <= high:
        message = f"{name} must be a whole number from {low} to {high}, not {value!r}"
        raise UsageError(message)
