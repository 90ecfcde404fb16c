"""Push-T with the semantics of `swm/PushT-v1`, the environment that LeWorldModel trains and evaluates on."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium import spaces

from recorder.envs.pusht_picture import draw_pusht
from recorder.envs.pusht_scene import CONTROL_HZ, PHYSICS_STEP_S, PHYSICS_STEPS, WINDOW_PX, PushTScene

if TYPE_CHECKING:
    from collections.abc import Callable

FloatArray: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]

# A displacement of 1.0 is this many pixels.
ACTION_SCALE_PX = 100

# The published variation space, keys sorted as Gymnasium's Dict sorts them: a seed goes down this tree.
VARIATIONS: dict[str, tuple[str, ...]] = {
    "agent": ("angle", "color", "scale", "shape", "start_position", "velocity"),
    "background": ("color",),
    "block": ("angle", "color", "scale", "shape", "start_position"),
    "goal": ("angle", "color", "position", "scale"),
    "rendering": ("render_goal",),
}
SUBSEED_LIMIT = 2**31 - 1
PUSHER_RANGE_PX = (50.0, 450.0)
BLOCK_RANGE_PX = (100.0, 400.0)
ANGLE_RANGE_RAD = (-2 * np.pi, 2 * np.pi)

# The overlay that the published environment draws and never scores.
GOAL_POSE = (256.0, 256.0, np.pi / 4)

# What all raw frames but the last have.
_NO_REWARD, _NO_FLAG = itertools.repeat(None), itertools.repeat(False)

SUCCESS_DISTANCE_PX = 20
SUCCESS_ANGLE_RAD = np.pi / 9


class LewmPushTEnv(gymnasium.Env[FloatArray, np.ndarray[Any, Any]]):
    """Push a T-shaped block to a goal pose with a round pusher.

    ## Description
    A 512 px square, a kinematic pusher under a PD law and a block that slides without inertia. One decision is
    ten physics steps of 0.01 s, which are published as raw frames. Semantics, seed expansion and arithmetic are
    those of stable-worldmodel 0.1.1.

    ## Action Space
    `Box(-1, 1, (2,), float32)`: displacement of the pusher's target from the pusher, in units of 100 px. Not
    clipped. The dtype is part of the arithmetic: a float32 action runs the PD law in float32.

    | index | meaning | unit | min | max |
    | --- | --- | --- | --- | --- |
    | 0 | to the right | 100 px | -1 | 1 |
    | 1 | downwards | 100 px | -1 | 1 |

    ## Observation Space
    `Box((7,), float64)`. States leave these bounds: the pusher passes through walls.

    | index | meaning | unit | min | max |
    | --- | --- | --- | --- | --- |
    | 0, 1 | pusher position | px | 0 | 512 |
    | 2, 3 | block position | px | 0 | 512 |
    | 4 | block angle | rad | 0 | 2 pi |
    | 5, 6 | pusher velocity | px/s | -inf | inf |

    ## Rewards
    Minus the Euclidean norm of goal state minus state, all seven components, through BLAS: its last bit depends
    on the kernel that the machine chooses.

    ## Starting State
    The seed is expanded through the published tree of variations. The scene is posed at the goal, stepped once,
    posed at the start and stepped once, in one space, so a goal pose that overlaps a wall moves the start.

    ## Episode End
    Terminated when pusher and block are within 20 px and the angle within 20 degrees of the goal state (the
    angle test is the published one, which accepts too much where the goal angle is negative). Truncated after
    `max_episode_steps`, which the published class leaves to its caller.

    ## Arguments
    - `max_episode_steps`: 200, or None for no limit.
    - `render_mode`: `rgb_array` or None. The 224 x 224 picture is our drawing, not the published one.

    `reset(options={"state": ..., "goal_state": ...})` sets either: seven components, or five for a pusher at rest.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012 - Gymnasium's
        "render_modes": ["rgb_array"],
        "render_fps": CONTROL_HZ,
    }
    raw_frame_hz = 1 / PHYSICS_STEP_S

    def __init__(self, max_episode_steps: int | None = 200, render_mode: str | None = None) -> None:
        """Declare the spaces; the scene is set up by the first reset."""
        self.max_episode_steps = max_episode_steps
        self.render_mode = render_mode
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)
        low = np.array([0, 0, 0, 0, 0, -np.inf, -np.inf])
        high = np.array([WINDOW_PX, WINDOW_PX, WINDOW_PX, WINDOW_PX, 2 * np.pi, np.inf, np.inf])
        self.observation_space = spaces.Box(low, high, dtype=np.float64)
        self.goal_state: FloatArray = np.zeros(7)
        self.latest_action: tuple[float, float] | None = None
        self._scene = PushTScene()
        self._steps = 0
        self._listener: Callable[[float | None, bool, bool], None] | None = None
        self._is_keeping = False
        self._last_frame: tuple[float, bool, bool] = (0.0, False, False)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[FloatArray, dict[str, Any]]:
        """Draw start and goal from the seed; without one, from the environment's own generator."""
        super().reset(seed=seed)
        stream = int(self.np_random.integers(SUBSEED_LIMIT)) if seed is None else seed
        start, goal = sample_variations(stream)
        asked = options or {}
        start = _full_state(asked.get("state", start))
        self.goal_state = _full_state(asked.get("goal_state", goal))
        self._scene = PushTScene()
        self._scene.pose(self.goal_state)
        self._scene.pose(start)
        self._steps = 0
        self.latest_action = None
        observation = self._scene.state()
        return observation, self._info(observation)

    def step(self, action: np.ndarray[Any, Any]) -> tuple[FloatArray, float, bool, bool, dict[str, Any]]:
        """Take one decision: ten physics steps towards one target."""
        scene, listener = self._scene, self._listener
        offset = np.asarray(action) * ACTION_SCALE_PX
        position = scene.pusher.position
        target = (position.x + offset[0], position.y + offset[1])
        self.latest_action = (float(target[0]), float(target[1]))
        scene.contact_points = 0
        keep = scene.keep_state if self._is_keeping else None
        for frame in range(PHYSICS_STEPS):
            scene.push(target)
            if keep is not None:
                keep()
            if listener is not None and frame < PHYSICS_STEPS - 1:
                listener(None, False, False)
        self._steps += 1
        observation = scene.state()
        reward = np.float64(-np.linalg.norm(self.goal_state - observation))
        terminated = is_success(self.goal_state, observation)
        truncated = self.max_episode_steps is not None and self._steps >= self.max_episode_steps
        self._last_frame = (reward, terminated, truncated)
        if listener is not None:
            listener(*self._last_frame)
        return observation, reward, terminated, truncated, self._info(observation)

    def command(self, target: tuple[float, float] | np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.float32]]:
        """The float32 action that moves the pusher's target to a point, px, clipped to the action space."""
        offset = (np.asarray(target, np.float64) - np.array(self._scene.pusher.position)) / ACTION_SCALE_PX
        clipped: np.ndarray[Any, np.dtype[np.float32]] = np.clip(offset, -1, 1).astype(np.float32)
        return clipped

    def state_bytes(self) -> bytes:
        """Nine float64 each for pusher and block: 144 bytes."""
        return self._scene.state_bytes()

    def set_raw_frame_listener(self, listener: Callable[[float | None, bool, bool], None] | None) -> None:
        """Call the listener after every physics step; the reward comes with the last of a decision."""
        self._listener = listener

    def keep_raw_frames(self, is_keeping: bool) -> None:
        """Keep the state after every physics step until it is taken."""
        self._is_keeping = is_keeping

    def take_raw_frames(self) -> list[tuple[float | None, bool, bool, bytes]]:
        """The raw frames of the last decision; only the last has a reward."""
        *states, last = self._scene.take_states()
        return [*zip(_NO_REWARD, _NO_FLAG, _NO_FLAG, states), (*self._last_frame, last)]  # noqa: B905 - endless

    def render(self) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """The scene as (224, 224, 3) uint8, or None without a render mode."""
        if self.render_mode is None:
            return None
        return draw_pusht(self._scene, goal=self.goal_state)

    def _info(self, state: FloatArray) -> dict[str, Any]:
        block = self._scene.block
        points = self._scene.contact_points
        return {
            "pos_agent": state[:2].copy(),
            "vel_agent": state[5:].copy(),
            "block_pose": np.array([block.position.x, block.position.y, block.angle]),
            "goal_pose": np.array(GOAL_POSE),
            "goal_state": self.goal_state.copy(),
            "n_contacts": math.ceil(points / PHYSICS_STEPS),
            "n_contact_points": points,
            "is_success": is_success(self.goal_state, state),
        }


def sample_variations(seed: int) -> tuple[FloatArray, FloatArray]:
    """Start and goal state of a reset seed, seven components each.

    Gymnasium's `Dict.seed` draws one subseed a child in sorted key order, level by level; each leaf draws its
    first value for the start and its second for the goal.
    """
    leaves: dict[str, np.random.Generator] = {}
    for (group, names), subseed in zip(VARIATIONS.items(), _subseeds(seed, len(VARIATIONS)), strict=True):
        for name, leaf_seed in zip(names, _subseeds(subseed, len(names)), strict=True):
            leaves[f"{group}.{name}"] = np.random.default_rng(leaf_seed)
    return _draw_state(leaves), _draw_state(leaves)


def is_success(goal: FloatArray, state: FloatArray) -> bool:
    """The published test; its angle part wraps only goal angles from 0 to 2 pi rightly."""
    distance = np.linalg.norm(goal[:4] - state[:4])
    angle = np.abs(goal[4] - state[4])
    angle = np.minimum(angle, 2 * np.pi - angle)
    return bool(distance < SUCCESS_DISTANCE_PX and angle < SUCCESS_ANGLE_RAD)


def _full_state(state: Any) -> FloatArray:  # noqa: ANN401 - whatever numpy takes
    """Seven components from five (at rest) or seven.

    Raises:
        ValueError: There are others.
    """
    given = np.array(state, np.float64)
    if given.shape not in {(5,), (7,)}:
        message = f"a state has 7 components, or 5 without the pusher's velocity, not shape {given.shape}"
        raise ValueError(message)
    return np.concatenate([given, np.zeros(7 - given.size)])


def _subseeds(seed: int, count: int) -> list[int]:
    return [int(subseed) for subseed in np.random.default_rng(seed).integers(SUBSEED_LIMIT, size=count)]


def _draw_state(leaves: dict[str, np.random.Generator]) -> FloatArray:
    pusher = leaves["agent.start_position"].uniform(*PUSHER_RANGE_PX, size=2)
    block = leaves["block.start_position"].uniform(*BLOCK_RANGE_PX, size=2)
    angle = leaves["block.angle"].uniform(*ANGLE_RANGE_RAD)
    return np.array([*pusher, *block, angle, 0.0, 0.0], np.float64)
