"""Pong's object track as a wrapper: the policy sees boxes, velocities and a short history instead of RAM or pixels."""

from __future__ import annotations

from typing import Any, Literal

import gymnasium
from gymnasium.utils import RecordConstructorArgs

from recorder.atari import emulator_ram, is_emulator
from recorder.errors import UsageError
from recorder.holding import HoldAction
from recorder.pong import GAME, SCHEMA_VERSION, Boxes, Tracker, ram_boxes, vision_boxes


class ObjectSpace(gymnasium.Space[dict[str, Any]]):
    """Observations that are JSON objects of one schema version."""

    def __init__(self) -> None:
        """No shape and no dtype: it is no array."""
        super().__init__()

    @property
    def is_np_flattenable(self) -> bool:
        """It cannot be flattened."""
        return False

    def contains(self, x: Any) -> bool:  # noqa: ANN401 - Gymnasium's signature
        """Whether it is an observation of the schema version."""
        return isinstance(x, dict) and x.get("schema_version") == SCHEMA_VERSION

    def __eq__(self, other: object) -> bool:
        """One such space is as good as another."""
        return isinstance(other, ObjectSpace)

    __hash__ = gymnasium.Space.__hash__

    def __repr__(self) -> str:
        """As a manifest holds it."""
        return f"ObjectSpace({SCHEMA_VERSION})"


class ObserveObjects(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Observe where Pong's objects are: `pong.Tracker` says how.

    Args:
        env: `HoldAction` around `ALE/Pong-v5` with its minimal action set.
        source: Where boxes come from: the RAM or the screen (`vision`), which needs render mode `rgb_array`.
        sticky_probability: What the observation states as the emulator's.

    Raises:
        UsageError: It is another environment, or one that draws no pictures for `vision`.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        source: Literal["ram", "vision"] = "ram",
        *,
        sticky_probability: float = 0.25,
    ) -> None:
        """Refuse what is not Pong."""
        RecordConstructorArgs.__init__(self, source=source, sticky_probability=sticky_probability)
        super().__init__(env)
        is_pong = env.spec is not None and env.spec.id == GAME and is_emulator(env.unwrapped)
        if not isinstance(env, HoldAction) or not is_pong:
            message = f"the object track is made for {GAME} with held actions, not for {env}"
            raise UsageError(message)
        if source not in {"ram", "vision"}:
            message = f"the objects' source is 'ram' or 'vision', not {source!r}"
            raise UsageError(message)
        if source == "vision" and env.render_mode != "rgb_array":
            message = "objects from vision need an environment made with render_mode='rgb_array'"
            raise UsageError(message)
        self.observation_space = ObjectSpace()
        self._source = source
        self._read_ram = emulator_ram(env.unwrapped)
        self._tracker = Tracker(source=source, hold_frames=env.hold_frames, sticky_probability=sticky_probability)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """The observation of the raw frame that the policy first sees."""
        _, info = self.env.reset(seed=seed, options=options)
        return self._tracker.reset(self._boxes()), info

    def step(self, action: Any) -> tuple[dict[str, Any], Any, bool, bool, dict[str, Any]]:  # noqa: ANN401 - as above
        """The observation after the hold."""
        _, reward, terminated, truncated, info = self.env.step(action)
        rewards = info["rewards"]
        observation = self._tracker.observe(
            self._boxes(), rewards=rewards, raw_frames=len(rewards), requested_action=int(action)
        )
        return observation, reward, terminated, truncated, info

    def _boxes(self) -> Boxes:
        return ram_boxes(self._read_ram()) if self._source == "ram" else vision_boxes(self.env.render())  # type: ignore[arg-type] # rgb_array
