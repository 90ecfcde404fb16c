"""recorder/CartPole-v1 against gymnax 1.0.1: flags and rewards exact, observations to the last bit."""

import subprocess
import sys

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from golden_data import float32s, read_cartpole
from recorder.envs.cartpole import CartPoleEnv, _fused_multiply_add, _plain_multiply_add

CASES = read_cartpole("single_steps")["cases"]
ARITHMETICS = ("plain", "fused")


def step_from(env, case):
    env.reset(options={"state": float32s(case["state"]), "time": case["time"]})
    return env.step(case["action"])


@pytest.mark.parametrize("arithmetic", ARITHMETICS)
def test_flags_and_rewards_are_exact_and_observations_within_1e_6_on_all_400_cases(arithmetic):
    env = CartPoleEnv(arithmetic=arithmetic)
    assert len(CASES) == 400
    for case in CASES:
        observation, reward, terminated, truncated, _ = step_from(env, case)
        assert (terminated, truncated) == (case["terminated"], case["truncated"])
        assert reward == float32s([case["reward"]])[0]
        assert np.abs(observation - float32s(case["obs"])).max() <= 1e-6
        assert observation.dtype == np.float32


def test_fused_arithmetic_reaches_all_400_cases_bit_for_bit():
    env = CartPoleEnv(arithmetic="fused")
    assert [case["i"] for case in CASES if step_from(env, case)[0].tobytes() != float32s(case["obs"]).tobytes()] == []


def test_plain_arithmetic_reaches_all_400_cases_of_gymnax_without_jit_bit_for_bit():
    env = CartPoleEnv()
    for case in CASES:
        expected = case.get("obs_other_modes", {}).get("eager_no_jit", case["obs"])
        assert step_from(env, case)[0].tobytes() == float32s(expected).tobytes()


def test_the_two_arithmetics_differ_in_157_cases():
    plain, fused = CartPoleEnv(), CartPoleEnv(arithmetic="fused")
    differing = [case for case in CASES if step_from(plain, case)[0].tobytes() != step_from(fused, case)[0].tobytes()]
    assert len(differing) == 157


def test_the_time_limit_truncates_and_thresholds_are_strict():
    env = CartPoleEnv(arithmetic="fused")
    for case in read_cartpole("truncation")["step_cases"]:
        observation, reward, terminated, truncated, _ = step_from(env, case)
        assert observation.tobytes() == float32s(case["obs"]).tobytes()
        assert (terminated, truncated) == (case["terminated"], case["truncated"])
        assert reward == float32s([case["reward"]])[0]


@pytest.mark.parametrize("start", ["in lockstep", "open loop"])
def test_a_whole_episode_of_500_steps_is_equal_bit_for_bit(start):
    episode = read_cartpole("truncation")["full_episode"]
    env = CartPoleEnv(arithmetic="fused")
    env.reset(options={"state": float32s(episode["start"])})
    for step, action in enumerate(episode["actions"]):
        if start == "in lockstep" and step:
            env.reset(options={"state": float32s(episode["obs"][step - 1]), "time": step})
        observation, _, terminated, truncated, _ = env.step(action)
        assert observation.tobytes() == float32s(episode["obs"][step]).tobytes()
        assert (terminated, truncated) == (episode["terminated"][step], episode["truncated"][step])


@pytest.mark.parametrize("start", ["in lockstep", "open loop"])
def test_a_rollout_of_600_steps_over_30_episodes_is_equal_bit_for_bit(start):
    env = CartPoleEnv(arithmetic="fused")
    steps = 0
    for episode in read_cartpole("rollout_600")["episodes"]:
        before = episode["reset_obs"]
        env.reset(options={"state": float32s(before)})
        for time, action in enumerate(episode["actions"]):
            if start == "in lockstep":
                env.reset(options={"state": float32s(before), "time": time})
            before = episode["obs"][time]
            observation, reward, terminated, truncated, _ = env.step(action)
            assert observation.tobytes() == float32s(before).tobytes()
            assert reward == float32s([episode["reward"][time]])[0]
            assert (terminated, truncated) == (episode["terminated"][time], episode["truncated"][time])
            steps += 1
    assert steps == 600


# Rounded to float64 first, each of these sums lands halfway between two float32 values, where half to even errs.
BELOW_HALFWAY = ((1 + 2**-23) * 2**-12, (1 - 2**-23) * 2**-12, 1 + 2**-23, 1 + 2**-23)
ABOVE_HALFWAY = ((1 + 2**-12) * 2**-12, (1 - 4095 * 2**-24) * 2**-12, 1.0, 1 + 2**-23)


@pytest.mark.parametrize(("a", "b", "c", "expected"), [BELOW_HALFWAY, ABOVE_HALFWAY])
def test_the_fused_multiply_add_rounds_once(a, b, c, expected):
    assert [float(np.float32(value)) for value in (a, b, c, expected)] == [a, b, c, expected]
    assert _fused_multiply_add(a, b, c) == expected
    assert _fused_multiply_add(-a, b, -c) == -expected
    assert np.float32(a * b + c) != expected


def test_the_plain_multiply_add_is_that_of_numpy_float32():
    for a, b, c in np.random.default_rng(0).uniform(-2, 2, (1000, 3)).astype(np.float32):
        assert _plain_multiply_add(float(a), float(b), float(c)) == a * b + c


@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize(("index", "limit"), [(0, np.float32(2.4)), (2, np.float32(12 * 2 * np.pi / 360))])
def test_a_state_is_terminated_one_ulp_beyond_either_threshold_and_not_on_it(index, limit, sign):
    env = CartPoleEnv()
    for value, reward in ((limit, 1.0), (np.nextafter(limit, np.float32(9)), 0.0)):
        state = np.zeros(4, np.float32)
        state[index] = sign * value
        env.reset(options={"state": state})
        assert env.step(0)[1] == reward


def test_two_instances_of_one_seed_go_the_same_way():
    first, second = CartPoleEnv(), CartPoleEnv()
    first.reset(seed=7), second.reset(seed=7)
    for action in (0, 1, 1, 0, 1, 0, 0, 1):
        assert first.step(action)[0].tobytes() == second.step(action)[0].tobytes()
        assert first.state_bytes() == second.state_bytes()


def test_equal_seeds_give_equal_starts_within_the_range():
    first, second = CartPoleEnv(), CartPoleEnv(arithmetic="fused")
    for seed in range(50):
        one, two = first.reset(seed=seed)[0], second.reset(seed=seed)[0]
        assert one.tobytes() == two.tobytes()
        assert np.abs(one).max() <= 0.05


def test_stepping_on_from_a_terminated_state_gives_no_reward():
    env = CartPoleEnv()
    env.reset(options={"state": [2.39, 5.0, 0.0, 0.0]})
    assert [env.step(1)[1:3] for _ in range(2)] == [(1.0, True), (0.0, True)]


def test_state_bytes_are_four_floats_and_the_time():
    env = CartPoleEnv()
    observation, _ = env.reset(seed=1)
    env.step(0)
    observation = env.step(1)[0]
    assert env.state_bytes() == observation.tobytes() + (2).to_bytes(4, "little")


def test_a_bad_action_or_arithmetic_is_refused_in_one_sentence():
    env = CartPoleEnv()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="action must be 0 or 1"):
        env.step(2)
    with pytest.raises(ValueError, match="arithmetic"):
        CartPoleEnv(arithmetic="double")


def test_gymnasium_finds_it_by_its_module_without_an_import():
    code = "import gymnasium; print(gymnasium.make('recorder:recorder/CartPole-v1').spec.id)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "recorder/CartPole-v1"


def test_gymnasium_finds_it_and_its_checker_passes():
    env = gym.make("recorder/CartPole-v1", render_mode="rgb_array")
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (400, 600, 3)
    assert picture.dtype == np.uint8
    assert np.array_equal(picture, env.render())
