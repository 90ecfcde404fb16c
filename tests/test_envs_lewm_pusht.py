"""recorder/LewmPushT-v1 against swm/PushT-v1, bit for bit."""

import gymnasium as gym
import numpy as np
import pymunk
import pytest
from gymnasium.utils.env_checker import check_env

from golden_data import read_lines
from recorder.envs.lewm_pusht import LewmPushTEnv, sample_variations
from recorder.envs.pusht_scene import BAR, STEM, PushTScene

ROLLOUTS = ("swm_weak30", "swm_weak100", "swm_float64", "swm_outrange", "swm_options")


def action_of(row):
    digits = row["action_le"]
    return np.frombuffer(bytes.fromhex(digits), "<f4" if len(digits) == 16 else "<f8")


def options_of(row):
    named = {"state": row.get("option_state"), "goal_state": row.get("option_goal_state")}
    return {name: np.array(value) for name, value in named.items() if value is not None} or None


def assert_same(row, observation, info):
    assert observation.tobytes().hex() == row["state_le"]
    assert (info["n_contacts"], info["n_contact_points"]) == (row["n_contacts"], row["n_contact_points"])
    assert np.float64(info["block_pose"][2]).tobytes().hex() == row["block_angle_raw_le"]


@pytest.mark.parametrize("name", ROLLOUTS)
def test_every_step_of_every_golden_rollout_is_equal_bit_for_bit(name):
    env = LewmPushTEnv(max_episode_steps=None)
    steps = 0
    for row in read_lines(name):
        if row["kind"] == "reset":
            observation, info = env.reset(seed=row["seed"], options=options_of(row))
            assert_same(row, observation, info)
            assert info["goal_state"].tobytes().hex() == row["goal_state_le"]
        elif row["kind"] == "step":
            observation, reward, terminated, truncated, info = env.step(action_of(row))
            assert_same(row, observation, info)
            # The norm goes through BLAS: either of the two measured kernels.
            kernels = {row["reward_le"], row.get("reward_haswell_le", row["reward_le"])}
            assert np.float64(reward).tobytes().hex() in kernels
            assert (terminated, truncated) == (row["terminated"], row["truncated"])
            assert info["is_success"] == row["terminated"]
            steps += 1
    assert steps > 200


def test_starts_and_goals_of_seeds_0_to_69_are_equal_bit_for_bit():
    rows = read_lines("swm_resets")
    assert len(rows) == 70
    for row in rows:
        start, goal = sample_variations(row["seed"])
        assert start.tobytes().hex() == row["start_sampled_le"]
        assert goal.tobytes().hex() == row["goal_state_le"]
        observation, info = LewmPushTEnv().reset(seed=row["seed"])
        assert_same(row, observation, info)
        without_goal = PushTScene()
        without_goal.pose(start)
        assert without_goal.state().tobytes().hex() == row["state_without_goal_settle_le"]


@pytest.mark.parametrize(("seed", "moved_px"), [(8, 0.00869), (17, 0.7094), (23, 0.2761), (32, 0.6115)])
def test_the_goal_pose_leaves_a_bias_that_moves_the_block_before_the_first_action(seed, moved_px):
    start, _ = sample_variations(seed)
    observation, _ = LewmPushTEnv().reset(seed=seed)
    assert np.hypot(*(observation[2:4] - start[2:4])) == pytest.approx(moved_px, abs=1e-4)


def test_the_moment_of_the_block_is_twice_the_bars():
    assert PushTScene().block.moment == 3000.0
    assert pymunk.moment_for_poly(1, BAR) + pymunk.moment_for_poly(1, STEM) == 7875.0


def test_the_dtype_of_the_action_is_part_of_the_arithmetic():
    env = LewmPushTEnv()
    speeds = {}
    for dtype in (np.float32, np.float64):
        env.reset(seed=0)
        speeds[dtype] = env.step(np.array([0.5, -0.5], dtype))[0][5:]
    assert np.array_equal(speeds[np.float32], speeds[np.float32].astype(np.float32))
    assert 0 < np.abs(speeds[np.float32] - speeds[np.float64]).max() < 1e-3


def test_ten_raw_frames_are_published_and_only_the_last_has_a_reward():
    env = LewmPushTEnv()
    env.reset(seed=3)
    heard = []
    env.set_raw_frame_listener(lambda *frame: heard.append((*frame, env.state_bytes())))
    observation, reward, terminated, truncated, _ = env.step(np.array([0.3, 0.1], np.float32))
    assert [frame[:3] for frame in heard[:9]] == [(None, False, False)] * 9
    assert heard[9][:3] == (reward, terminated, truncated)
    assert len({frame[3] for frame in heard}) == 10
    last = np.frombuffer(heard[9][3]).reshape(2, 9)
    assert np.array_equal(last[0, :2], observation[:2])
    assert np.array_equal(last[1, :2], observation[2:4])
    assert np.array_equal(last[0, 3:5], observation[5:])
    env.set_raw_frame_listener(None)
    env.step(np.array([0.3, 0.1], np.float32))
    assert len(heard) == 10


def test_kept_raw_frames_are_those_that_a_listener_hears_also_when_both_are_asked_for():
    env = LewmPushTEnv()
    env.reset(seed=3)
    heard = []
    env.set_raw_frame_listener(lambda *frame: heard.append((*frame, env.state_bytes())))
    env.keep_raw_frames(True)
    for _ in range(3):
        heard.clear()
        env.step(np.array([0.3, 0.1], np.float32))
        assert len(heard) == 10
        assert env.take_raw_frames() == heard


def test_state_bytes_are_nine_float64_each_of_pusher_and_block():
    env = LewmPushTEnv()
    observation, info = env.reset(seed=17)
    assert len(env.state_bytes()) == 144
    pusher, block = np.frombuffer(env.state_bytes(), "<f8").reshape(2, 9)
    assert np.array_equal(pusher[:5], [*observation[:2], 0.0, *observation[5:]])
    assert np.array_equal(block[:3], info["block_pose"])
    assert LewmPushTEnv.raw_frame_hz == 100.0


def test_two_instances_of_one_seed_go_the_same_way_and_a_used_one_is_as_good_as_new():
    fresh, used = LewmPushTEnv(), LewmPushTEnv()
    used.reset(seed=4)
    used.step(np.ones(2, np.float32))
    fresh.reset(seed=17), used.reset(seed=17)
    for action in np.random.default_rng(17).uniform(-1, 1, (50, 2)).astype(np.float32):
        assert fresh.step(action)[0].tobytes() == used.step(action)[0].tobytes()
        assert fresh.state_bytes() == used.state_bytes()


def test_listening_does_not_change_a_bit():
    quiet, heard = LewmPushTEnv(), LewmPushTEnv(render_mode="rgb_array")
    heard.set_raw_frame_listener(lambda *_: heard.render())
    quiet.reset(seed=5), heard.reset(seed=5)
    for action in np.random.default_rng(5).uniform(-1, 1, (50, 2)).astype(np.float32):
        assert quiet.step(action)[0].tobytes() == heard.step(action)[0].tobytes()


def test_truncation_comes_after_max_episode_steps():
    env = LewmPushTEnv(max_episode_steps=3)
    env.reset(seed=0)
    assert [env.step(np.zeros(2, np.float32))[3] for _ in range(3)] == [False, False, True]


def test_command_reaches_for_a_point_in_float32():
    env = LewmPushTEnv()
    observation, _ = env.reset(seed=0)
    action = env.command(observation[:2] + [30.0, -500.0])
    assert action.dtype == np.float32
    assert action.tolist() == [np.float32(0.3), -1.0]


def test_nothing_returned_is_a_buffer_of_the_environment():
    env = LewmPushTEnv()
    observation, info = env.reset(seed=0)
    kept = observation.copy(), info["goal_state"].copy()
    info["goal_state"][:] = 0
    env.step(np.ones(2, np.float32))
    assert np.array_equal(observation, kept[0])
    assert np.array_equal(env.goal_state, kept[1])


def test_a_state_of_another_length_is_refused_in_one_sentence():
    with pytest.raises(ValueError, match="7 components"):
        LewmPushTEnv().reset(seed=0, options={"state": np.zeros(3)})


def test_gymnasium_finds_it_and_its_checker_passes():
    env = gym.make("recorder/LewmPushT-v1", render_mode="rgb_array")
    check_env(env.unwrapped, skip_render_check=True)
    env.reset(seed=0)
    picture = env.render()
    assert picture.shape == (224, 224, 3)
    assert np.array_equal(picture, env.render())
