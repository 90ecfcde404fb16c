"""CartPole in float32, with the arithmetic and the flags of gymnax 1.0."""

from __future__ import annotations

import math
import struct
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from PIL import Image, ImageDraw

Arithmetic = Literal["plain", "fused"]
State = tuple[float, float, float, float]


def _float32(value: float) -> float:
    """The float32 nearest to a float64, as a Python float.

    One addition, subtraction, multiplication or division of two float32 values in float64, rounded once more
    to float32, is exactly the float32 operation, so plain Python floats can carry the whole step.
    """
    return float(_PACK.unpack(_PACK.pack(value))[0])


_PACK = struct.Struct("<f")
_STATE = struct.Struct("<4fi")

# gymnax 1.0.1, CartPole-v1: EnvParams, each rounded to float32 as its traced arguments are.
GRAVITY = _float32(9.8)
MASS_POLE = _float32(0.1)
MASS_TOTAL = _float32(1.1)
LENGTH = 0.5
POLE_MASS_LENGTH = _float32(0.05)
FORCE = 10.0
TAU_S = _float32(0.02)
THETA_LIMIT = _float32(12 * 2 * math.pi / 360)
X_LIMIT = _float32(2.4)
STEP_LIMIT = 500
FOUR_THIRDS = _float32(4.0 / 3.0)
RESET_LIMIT = 0.05

# Low 29 bits of a float64 that lies exactly between two float32 values of the same exponent.
_LOW_BITS = 0x1FFFFFFF
_HALFWAY = 0x10000000

PICTURE_WIDTH_PX, PICTURE_HEIGHT_PX = 600, 400


class CartPoleEnv(gymnasium.Env[np.ndarray[Any, np.dtype[np.float32]], np.int64]):
    """A pole on a cart, in float32 throughout.

    ## Description
    The cart-pole problem of Barto, Sutton and Anderson with the step of gymnax 1.0's `CartPole-v1`: explicit
    Euler with the velocities of before the step, strict thresholds, and a time limit within the environment.

    ## Action Space
    `Discrete(2)`.

    | index | meaning |
    | --- | --- |
    | 0 | push the cart to the left with 10 N |
    | 1 | push the cart to the right with 10 N |

    ## Observation Space
    `Box((4,), float32)`.

    | index | meaning | unit | min | max |
    | --- | --- | --- | --- | --- |
    | 0 | cart position | m | -4.8 | 4.8 |
    | 1 | cart velocity | m/s | -inf | inf |
    | 2 | pole angle | rad | -0.4189 | 0.4189 |
    | 3 | pole angular velocity | rad/s | -inf | inf |

    ## Rewards
    1.0 a step, also for the step that ends the episode; 0.0 when stepping on from a terminated state.

    ## Starting State
    Each component uniform in [-0.05, 0.05), drawn in float64 and rounded to float32.

    ## Episode End
    Terminated when the position leaves [-2.4, 2.4] or the angle leaves [-12 deg, 12 deg], strictly; truncated
    when 500 steps were taken. Both can be true at once.

    ## Arguments
    - `arithmetic="plain"`: one rounding an operation, sine and cosine in float64 rounded to float32. The same
      bits on every machine; equals gymnax without fused multiply-add in 400 of 400 reference cases.
    - `arithmetic="fused"`: with the fused multiply-adds that XLA makes of gymnax's step on a CPU that has
      them, each rounded once; equals gymnax under `jit` in 400 of 400 reference cases.
    - `render_mode`: `rgb_array` or None.

    `reset(options={"state": four numbers, "time": steps taken})` starts from a given state.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 50}  # noqa: RUF012 - Gymnasium's

    def __init__(self, arithmetic: Arithmetic = "plain", render_mode: str | None = None) -> None:
        """Choose the arithmetic; the state comes with the first reset."""
        if arithmetic not in {"plain", "fused"}:
            message = f"arithmetic must be 'plain' or 'fused', not {arithmetic!r}"
            raise ValueError(message)
        self._multiply_add = _plain_multiply_add if arithmetic == "plain" else _fused_multiply_add
        self.render_mode = render_mode
        self.action_space = spaces.Discrete(2)
        high = np.array([2 * X_LIMIT, np.inf, 2 * THETA_LIMIT, np.inf], np.float32)
        self.observation_space = spaces.Box(-high, high, dtype=np.float32)
        self._state: State = (0.0, 0.0, 0.0, 0.0)
        self._time = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray[Any, np.dtype[np.float32]], dict[str, Any]]:
        """Draw a start, or take `options["state"]` and `options["time"]`."""
        super().reset(seed=seed)
        drawn = self.np_random.uniform(-RESET_LIMIT, RESET_LIMIT, size=4)
        asked = options or {}
        x, x_dot, theta, theta_dot = np.asarray(asked.get("state", drawn)).astype(np.float32).tolist()
        self._state = (x, x_dot, theta, theta_dot)
        self._time = int(asked.get("time", 0))
        return self._observation(), {}

    def step(
        self, action: np.int64 | int
    ) -> tuple[np.ndarray[Any, np.dtype[np.float32]], float, bool, bool, dict[str, Any]]:
        """Push for one step of 0.02 s.

        Raises:
            ValueError: The action is neither 0 nor 1.
        """
        if action not in (0, 1):
            message = f"action must be 0 or 1, not {action!r}"
            raise ValueError(message)
        reward = 0.0 if _is_terminal(self._state) else 1.0
        self._state = _advance(self._state, FORCE if action == 1 else -FORCE, self._multiply_add)
        self._time += 1
        return self._observation(), reward, _is_terminal(self._state), self._time >= STEP_LIMIT, {}

    def state_bytes(self) -> bytes:
        """The four float32 of the state and the number of steps taken as int32, little-endian: 20 bytes."""
        return _STATE.pack(*self._state, self._time)

    def render(self) -> np.ndarray[Any, np.dtype[np.uint8]] | None:
        """The scene as (400, 600, 3) uint8, or None without a render mode."""
        return None if self.render_mode is None else _draw(self._state)

    def _observation(self) -> np.ndarray[Any, np.dtype[np.float32]]:
        return np.array(self._state, np.float32)


def _is_terminal(state: State) -> bool:
    return not (-X_LIMIT <= state[0] <= X_LIMIT and -THETA_LIMIT <= state[2] <= THETA_LIMIT)


def _advance(state: State, force: float, multiply_add: Any) -> State:  # noqa: ANN401 - one of the two below
    """One Euler step; every operation rounds to float32, in gymnax's order of operations."""
    x, x_dot, theta, theta_dot = state
    cos, sin = _float32(math.cos(theta)), _float32(math.sin(theta))
    swing = _float32(POLE_MASS_LENGTH * _float32(theta_dot * theta_dot))
    temp = _float32(multiply_add(swing, sin, force) / MASS_TOTAL)
    weight = _float32(_float32(MASS_POLE * _float32(cos * cos)) / MASS_TOTAL)
    fall = multiply_add(GRAVITY, sin, -_float32(cos * temp))
    theta_acc = _float32(fall / _float32(LENGTH * _float32(FOUR_THIRDS - weight)))
    drag = _float32(_float32(_float32(POLE_MASS_LENGTH * theta_acc) * cos) / MASS_TOTAL)
    x_acc = _float32(temp - drag)
    return (
        multiply_add(TAU_S, x_dot, x),
        multiply_add(TAU_S, x_acc, x_dot),
        multiply_add(TAU_S, theta_dot, theta),
        multiply_add(TAU_S, theta_acc, theta_dot),
    )


def _plain_multiply_add(a: float, b: float, c: float) -> float:
    return _float32(_float32(a * b) + c)


def _fused_multiply_add(a: float, b: float, c: float) -> float:
    """`a * b + c` of float32 values with one rounding.

    The product is exact in float64; the sum is rounded to float64 and then to float32, which goes wrong only
    where the float64 lies exactly halfway between two float32 values: there the lost remainder decides.
    """
    product = a * b
    total = product + c
    (bits,) = struct.unpack("<Q", struct.pack("<d", total))
    if bits & _LOW_BITS == _HALFWAY:
        virtual = total - product
        remainder = (product - (total - virtual)) + (c - virtual)
        if remainder:
            total = math.nextafter(total, math.copysign(math.inf, remainder))
    return _float32(total)


def _draw(state: State) -> np.ndarray[Any, np.dtype[np.uint8]]:
    picture = Image.new("RGB", (PICTURE_WIDTH_PX, PICTURE_HEIGHT_PX), "white")
    draw = ImageDraw.Draw(picture)
    scale = PICTURE_WIDTH_PX / (2 * X_LIMIT)
    x = PICTURE_WIDTH_PX / 2 + state[0] * scale
    track = PICTURE_HEIGHT_PX - 100
    draw.line([(0, track), (PICTURE_WIDTH_PX, track)], fill="black", width=1)
    draw.rectangle([x - 25, track - 15, x + 25, track + 15], fill=(40, 40, 40))
    pole = 2 * LENGTH * scale
    tip = (x + pole * math.sin(state[2]), track - pole * math.cos(state[2]))
    draw.line([(x, track), tip], fill=(202, 152, 101), width=10)
    draw.ellipse([x - 5, track - 5, x + 5, track + 5], fill=(129, 132, 203))
    return np.array(picture)
