"""The commands as a person runs them: verdicts, exit codes, and one sentence for every bad call."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import recorder.cli
import replay.cli
from recorder.archive import pack_archive

BIN = Path(sys.executable).parent


def run(command, *arguments, cwd, expected=0, **environment):
    """Run an installed command in a folder and return what it wrote."""
    done = subprocess.run(
        [str(BIN / command), *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == expected, done.stdout + done.stderr
    return done


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run of two episodes and the folder that holds it."""
    folder = tmp_path_factory.mktemp("recorded")
    arguments = ["play", "--env", "CartPole-v1", "--seed", "3", "--decisions", "30", "--out", str(folder / "run")]
    assert recorder.cli.main(arguments) == 0
    return folder


@pytest.fixture
def run_folder(recorded, tmp_path, monkeypatch):
    """A copy of the run, with the current folder beside it."""
    shutil.copytree(recorded / "run", tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "run"


def edit(episode, name, change):
    path = episode / name
    before = path.read_bytes()
    path.write_bytes(change(before))
    assert path.read_bytes() != before


def files_under(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_the_main_job_end_to_end_in_processes_of_their_own(tmp_path):
    said = run("record", "play", "--env", "CartPole-v1", "--decisions", 40, "--out", "run", cwd=tmp_path).stdout
    assert "replay --episode run/episode-0000" in said
    said = run("replay", "--episode", "run/episode-0000", "--video", cwd=tmp_path).stdout
    assert said.startswith("verified: run/episode-0000 (CartPole-v1, seed 0)")
    report = json.loads((tmp_path / "replays/episode-0000/verification.json").read_bytes())
    assert report["verdict"] == "verified"
    assert report["video_frames"] == report["raw_frames"] + 1
    assert (tmp_path / "replays/episode-0000/replay.mp4").stat().st_size > 1000
    frames = (tmp_path / "run/episode-0000/frames.jsonl").read_bytes()
    assert (tmp_path / "replays/episode-0000/frames.jsonl").read_bytes() == frames
    said = run("inspect-step", "--decision", 2, "--image", "strip.png", cwd=tmp_path)
    assert "decision 2 of run/episode-0003" in said.stdout
    assert "newest" in said.stderr
    assert (tmp_path / "strip.png").read_bytes().startswith(b"\x89PNG")


def test_an_edited_reward_is_caught_with_decision_and_both_values(run_folder, capsys):
    episode = run_folder / "episode-0000"

    def raise_reward(data):
        lines = data.split(b"\n")
        lines[7] = lines[7].replace(b'"reward":1.0', b'"reward":1.5')
        return b"\n".join(lines)

    edit(episode, "transitions.jsonl", raise_reward)
    assert replay.cli.replay_main(["--episode", str(episode), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "damaged"
    assert any("transitions.jsonl was changed" in fault for fault in report["faults"])
    (first, *_) = report["first_divergence"]
    assert (first["decision"], first["field"], first["recorded"], first["replayed"]) == (7, "reward", 1.5, 1.0)


def test_results_are_numbered_when_the_default_folder_is_taken(run_folder, tmp_path):
    for _ in range(3):
        assert replay.cli.replay_main(["--episode", str(run_folder / "episode-0000")]) == 0
    assert sorted(path.name for path in (tmp_path / "replays").iterdir()) == [
        "episode-0000",
        "episode-0000-2",
        "episode-0000-3",
    ]


def test_replaying_changes_no_byte_of_the_episode(run_folder):
    episode = run_folder / "episode-0000"
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in episode.iterdir()}
    assert replay.cli.replay_main(["--episode", str(episode), "--video"]) == 0
    assert replay.cli.inspect_main(["--episode", str(episode), "--decision", "0"]) == 0
    assert {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in episode.iterdir()} == before


def test_an_episode_without_summary_verifies_as_a_prefix(run_folder, capsys):
    episode = run_folder / "episode-0000"
    (episode / "summary.json").unlink()
    assert replay.cli.replay_main(["--episode", str(episode)]) == 0
    assert capsys.readouterr().out.startswith("verified prefix")


def test_a_torn_tail_is_named_with_its_offset_and_the_prefix_verifies(run_folder, capsys):
    episode = run_folder / "episode-0000"
    (episode / "summary.json").unlink()
    path = episode / "transitions.jsonl"
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[:5]) + whole[5][:20])
    frames = (episode / "frames.jsonl").read_bytes().splitlines(keepends=True)
    (episode / "frames.jsonl").write_bytes(b"".join(frames[:6]))
    assert replay.cli.replay_main(["--episode", str(episode)]) == 0
    said = capsys.readouterr().out
    offset = sum(map(len, whole[:5]))
    assert f"transitions.jsonl has a torn tail of 20 bytes from byte {offset}" in said
    assert "1 raw frames of decisions 5 to 5" in said
    assert "replayed 5 decisions" in said


def test_other_versions_are_refused_with_the_list_and_the_flag_and_then_named(run_folder, capsys):
    episode = run_folder / "episode-0000"
    manifest = json.loads((episode / "manifest.json").read_bytes())
    here = manifest["fingerprint"]["versions"]["numpy"]
    edit(episode, "manifest.json", lambda data: data.replace(f'"numpy": "{here}"'.encode(), b'"numpy": "1.26.4"'))
    _refresh_digests(episode)
    assert replay.cli.replay_main(["--episode", str(episode)]) == 4
    said = capsys.readouterr()
    assert f"numpy 1.26.4 -> {here}" in said.err
    assert "--allow-other-versions" in said.err
    assert not Path("replays").exists()
    assert replay.cli.replay_main(["--episode", str(episode), "--allow-other-versions"]) == 0
    assert capsys.readouterr().out.startswith("verified under different versions")


def _refresh_digests(episode):
    """Make manifest and summary agree again, as a careful editor would."""
    import hashlib

    from recorder.records import digest_of, encode_document

    manifest = json.loads((episode / "manifest.json").read_bytes())
    manifest["digest"] = digest_of(manifest)
    data = encode_document(manifest)
    (episode / "manifest.json").write_bytes(data)
    summary = json.loads((episode / "summary.json").read_bytes())
    summary["files"]["manifest.json"] = {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)}
    summary["digest"] = digest_of(summary)
    (episode / "summary.json").write_bytes(encode_document(summary))


def break_json(name, text):
    return lambda episode: (episode / name).write_bytes(text)


def newer_format(episode):
    path = episode / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b'"format_version": 1', b'"format_version": 2'))


def unknown_environment(episode):
    path = episode / "manifest.json"
    path.write_bytes(path.read_bytes().replace(b"cartpole:CartPoleEnv", b"cartpole:HoverPoleEnv"))


def hostile_environment(episode):
    path = episode / "manifest.json"
    named = b"gymnasium.envs.classic_control.cartpole:CartPoleEnv"
    path.write_bytes(path.read_bytes().replace(named, b"os:system"))


# What is done to an episode, the exit code, and words of the one sentence.
BAD_EPISODES = {
    "newer format": (newer_format, 4, "install a newer replay-recorder"),
    "unknown environment": (unknown_environment, 4, "--trust gymnasium"),
    "hostile environment": (hostile_environment, 4, "--trust os"),
    "manifest is not JSON": (break_json("manifest.json", b"{"), 3, "not strict JSON"),
    "manifest is not an object": (break_json("manifest.json", b"[]"), 3, "manifest.schema.json"),
    "manifest has a key twice": (break_json("manifest.json", b'{"kind":1,"kind":2}'), 3, "stands twice"),
    "manifest is not UTF-8": (break_json("manifest.json", b'{"a":"\xff"}'), 3, "not strict JSON"),
    "manifest holds NaN": (break_json("manifest.json", b'{"a":NaN}'), 3, "NaN is not JSON"),
    "manifest is deeply nested": (break_json("manifest.json", b"[" * 100_000), 3, "not strict JSON"),
}


@pytest.mark.parametrize("fault", BAD_EPISODES)
def test_a_bad_episode_gets_one_sentence_and_nothing_is_written(run_folder, tmp_path, fault):
    spoil, code, words = BAD_EPISODES[fault]
    episode = run_folder / "episode-0000"
    spoil(episode)
    before = files_under(tmp_path)
    done = run("replay", "--episode", episode, cwd=tmp_path, expected=code)
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert files_under(tmp_path) == before


# A command line, the exit code, and words of the one sentence; RUN and EPISODE stand for real folders.
BAD_CALLS = {
    "missing folder": (["replay", "--episode", "nowhere"], 2, "does not exist"),
    "not an episode": (["replay", "--episode", "."], 2, "is not an episode but holds 2"),
    "a folder without any": (["replay", "--episode", "empty"], 2, "record play"),
    "out exists": (["replay", "--episode", "EPISODE", "--out", "empty"], 2, "exists already"),
    "out within the episode": (["replay", "--episode", "EPISODE", "--out", "EPISODE/x"], 2, "inside the episode"),
    "no such decision": (["inspect-step", "--episode", "EPISODE", "--decision", "999"], 2, "it holds decisions 0 to"),
    "inspect a missing folder": (["inspect-step", "--episode", "nowhere", "--decision", "0"], 2, "does not exist"),
    "image exists": (
        ["inspect-step", "--episode", "EPISODE", "--decision", "0", "--image", "taken.png"],
        2,
        "exists already",
    ),
    "record into an existing folder": (
        ["record", "play", "--env", "CartPole-v1", "--decisions", "5", "--out", "empty"],
        2,
        "exists already",
    ),
    "unknown environment": (
        ["record", "play", "--env", "CartPole-v99", "--decisions", "5", "--out", "new"],
        4,
        "no environment 'CartPole-v99'",
    ),
    "unknown policy": (
        ["record", "play", "--env", "CartPole-v1", "--policy", "clever", "--decisions", "5", "--out", "new"],
        2,
        "module:function",
    ),
    "policy that cannot be imported": (
        ["record", "play", "--env", "CartPole-v1", "--policy", "no_module:f", "--decisions", "5", "--out", "new"],
        2,
        "no_module",
    ),
    "argument that the environment does not take": (
        ["record", "play", "--env", "CartPole-v1", "--env-kwargs", '{"mass":1}', "--decisions", "5", "--out", "new"],
        2,
        "mass",
    ),
    "unknown RAM source": (
        ["record", "play", "--env", "CartPole-v1", "--ram", "magic", "--decisions", "5", "--out", "new"],
        2,
        "numpy:ATTRIBUTE",
    ),
    "RAM attribute that is not there": (
        ["record", "play", "--env", "CartPole-v1", "--ram", "numpy:stat", "--decisions", "5", "--out", "new"],
        2,
        "no attribute stat",
    ),
    "no archive here": (["restore_experiments", "--out", "new"], 2, "--manifest"),
    "no such manifest": (["restore_experiments", "--manifest", "x.manifest.json", "--out", "new"], 2, "does not exist"),
    "restore into an existing folder": (
        ["restore_experiments", "--manifest", "packed.manifest.json", "--out", "empty"],
        2,
        "exists already",
    ),
}


@pytest.mark.parametrize("call", BAD_CALLS)
def test_a_bad_call_gets_one_sentence_the_right_exit_code_and_nothing_is_written(run_folder, tmp_path, call):
    (command, *arguments), code, words = BAD_CALLS[call]
    (tmp_path / "empty").mkdir()
    (tmp_path / "taken.png").write_bytes(b"")
    pack_archive(run_folder, tmp_path / "packed.tar.gz")
    before = files_under(tmp_path)
    arguments = [argument.replace("EPISODE", "run/episode-0000") for argument in arguments]
    done = run(command, *arguments, cwd=tmp_path, expected=code)
    said = [line for line in done.stderr.splitlines() if not line.startswith(("archive:", "episode:"))]
    assert len(said) == 1
    assert words in said[0]
    assert done.stdout == ""
    assert files_under(tmp_path) == before


def test_a_missing_package_names_the_extra(tmp_path):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "Box2D.py").write_text("raise ImportError('not here', name='Box2D')\n", encoding="utf-8")
    done = run(
        "record",
        *("play", "--env", "LunarLander-v3", "--decisions", 5, "--out", "new"),
        cwd=tmp_path,
        expected=4,
        PYTHONPATH=str(tmp_path / "hidden"),
    )
    assert "replay-recorder[box2d]" in done.stderr
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("command", ["record", "replay", "inspect-step", "restore_experiments"])
def test_usage_errors_exit_with_two(command, tmp_path):
    assert run(command, "--no-such-option", cwd=tmp_path, expected=2).stdout == ""
    assert "usage:" in run(command, "--help", cwd=tmp_path).stdout


def test_an_unforeseen_error_does_not_exit_as_diverged(run_folder, monkeypatch, capsys):
    monkeypatch.setattr(replay.cli, "write_report", lambda *_: 1 / 0)
    assert replay.cli.replay_main(["--episode", str(run_folder / "episode-0000")]) == 70
    assert "unforeseen" in capsys.readouterr().err


def test_a_policy_of_ones_own_is_found_in_the_current_folder(tmp_path):
    (tmp_path / "mine.py").write_text("def left(env, seed):\n    return lambda observation: 0\n", encoding="utf-8")
    run(
        "record",
        "play",
        "--env",
        "CartPole-v1",
        "--policy",
        "mine:left",
        "--decisions",
        9,
        "--out",
        "run",
        cwd=tmp_path,
    )
    line = (tmp_path / "run/episode-0000/transitions.jsonl").read_bytes().splitlines()[0]
    assert json.loads(line)["action"] == 0


def test_the_next_episode_gets_a_derived_and_recorded_seed(run_folder):
    manifest = json.loads((run_folder / "episode-0001" / "manifest.json").read_bytes())
    assert manifest["reset"]["seed_origin"] == "derived:3:1"
    assert manifest["limits"]["decisions"] == 30 - _decisions(run_folder / "episode-0000")
    assert replay.cli.replay_main(["--episode", str(run_folder / "episode-0001")]) == 0


def _decisions(episode):
    return len((episode / "transitions.jsonl").read_bytes().splitlines())


def test_episodes_caps_the_number_of_episodes(tmp_path):
    arguments = [
        "play",
        "--env",
        "CartPole-v1",
        "--decisions",
        "500",
        "--episodes",
        "2",
        "--out",
        str(tmp_path / "run"),
    ]
    assert recorder.cli.main(arguments) == 0
    assert len(list((tmp_path / "run").iterdir())) == 2


def test_the_strip_shows_the_frames_of_its_decision(run_folder, tmp_path):
    import imageio.v2 as imageio

    strip = tmp_path / "strip.png"
    episode = run_folder / "episode-0000"
    assert replay.cli.inspect_main(["--episode", str(episode), "--decision", "4", "--image", str(strip)]) == 0
    assert np.asarray(imageio.imread(strip)).shape == (400, 600, 3)


def test_inspect_prints_strict_json(run_folder, capsys):
    assert replay.cli.inspect_main(["--episode", str(run_folder / "episode-0000"), "--decision", "4", "--json"]) == 0
    inspection = json.loads(capsys.readouterr().out)
    assert inspection["transition"]["decision"] == 4
    assert [frame["raw_frame"] for frame in inspection["frames"]] == [5]


def test_print_options_of_numpy_are_no_divergence(tmp_path):
    code = (
        "import numpy as np, recorder.cli, sys; np.set_printoptions(precision=2, threshold=2); "
        "sys.exit(recorder.cli.main(['play', '--env', 'CartPole-v1', '--decisions', '5', '--out', 'run']))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    run("replay", "--episode", "run/episode-0000", cwd=tmp_path)


# What a hurried person does.


def remove_line(number):
    def change(data):
        lines = data.splitlines(keepends=True)
        return b"".join(lines[:number] + lines[number + 1 :])

    return change


def test_inspect_never_shows_another_decision_than_the_one_asked_for(run_folder, capsys):
    episode = run_folder / "episode-0000"
    edit(episode, "transitions.jsonl", remove_line(3))
    assert replay.cli.inspect_main(["--episode", str(episode), "--decision", "5"]) == 3
    said = capsys.readouterr()
    assert "holds decision 6 where decision 5 should be" in said.err
    assert said.out == ""


def test_inspect_shows_an_edited_decision_and_says_that_its_file_was_changed(run_folder, capsys):
    episode = run_folder / "episode-0000"
    edit(episode, "transitions.jsonl", lambda data: data.replace(b'"reward":1.0', b'"reward":9.0', 1))
    edit(episode, "frames.jsonl", remove_line(0))
    assert replay.cli.inspect_main(["--episode", str(episode), "--decision", "0"]) == 3
    said = capsys.readouterr()
    assert "9.0" in said.out
    assert "transitions.jsonl was changed" in said.err
    assert "holds 0 of the decision's 1 raw frames" in said.err


def test_nothing_is_ever_written_into_an_episode(run_folder):
    episode = run_folder / "episode-0000"
    before = files_under(episode)
    assert replay.cli.inspect_main(["--episode", str(episode), "--decision", "0", "--image", f"{episode}/x.png"]) == 2
    assert recorder.cli.main(["play", "--env", "CartPole-v1", "--decisions", "5", "--out", f"{episode}/deep/er"]) == 2
    assert replay.cli.replay_main(["--episode", str(episode), "--out", f"{episode}/x/y"]) == 2
    assert files_under(episode) == before


def test_a_policy_that_raises_gets_one_sentence_and_loses_nothing(tmp_path):
    (tmp_path / "mine.py").write_text(
        "def bad(env, seed):\n    steps = iter(range(5))\n    return lambda o: next(steps) and 0 or 0\n",
        encoding="utf-8",
    )
    arguments = ["play", "--env", "CartPole-v1", "--policy", "mine:bad", "--decisions", 9, "--out", "run"]
    done = run("record", *arguments, cwd=tmp_path, expected=4)
    assert "raised StopIteration" in done.stderr
    assert "mine.py:3" in done.stderr
    assert done.stderr.count("\n") == 1
    assert run("replay", "--episode", "run/episode-0000", cwd=tmp_path).stdout.startswith("verified prefix")


def test_a_seed_beyond_64_bits_is_refused_and_nothing_is_written(tmp_path):
    arguments = ["play", "--env", "CartPole-v1", "--decisions", "5", "--out", str(tmp_path / "run")]
    assert recorder.cli.main([*arguments, "--seed", str(2**64)]) == 2
    assert not (tmp_path / "run").exists()
    assert recorder.cli.main([*arguments, "--seed", str(2**64 - 1)]) == 0
    assert (
        replay.cli.replay_main(["--episode", str(tmp_path / "run/episode-0000"), "--out", str(tmp_path / "out")]) == 0
    )


def test_an_attribute_that_holds_no_numbers_is_no_state(tmp_path, capsys):
    arguments = ["play", "--env", "CartPole-v1", "--ram", "numpy:np_random", "--decisions", "5"]
    assert recorder.cli.main([*arguments, "--out", str(tmp_path / "run")]) == 4
    assert "np_random holds Generator, not numbers" in capsys.readouterr().err


def test_an_info_key_that_the_environment_never_gave_is_named(tmp_path, capsys):
    arguments = ["play", "--env", "CartPole-v1", "--info", "lives", "--decisions", "5", "--out", str(tmp_path / "run")]
    assert recorder.cli.main(arguments) == 0
    replay.cli.replay_main(["--episode", str(tmp_path / "run/episode-0000"), "--out", str(tmp_path / "out")])
    assert "not checked: info 'lives': the environment never gave it" in capsys.readouterr().out


def test_a_reader_who_leaves_early_is_not_told_diverged(run_folder, tmp_path):
    for command in ("replay --episode run/episode-0000", "inspect-step --episode run/episode-0000 --decision 1"):
        code = f"exec {BIN}/{command}"
        process = subprocess.Popen(["sh", "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # noqa: S607 - the system's shell
        process.stdout.close()
        assert process.wait() in {0, 141}
        process.stderr.close()


def test_lines_that_no_interruption_explains_are_damage(run_folder, capsys):
    episode = run_folder / "episode-0000"
    (episode / "summary.json").unlink()
    edit(episode, "frames.jsonl", remove_line(20))
    assert replay.cli.replay_main(["--episode", str(episode)]) in {1, 3}
    edit(episode, "frames.jsonl", lambda data: b"".join(data.splitlines(keepends=True)[:5]))
    assert replay.cli.replay_main(["--episode", str(episode)]) == 3
    assert "which no interruption explains" in capsys.readouterr().out


def test_a_video_that_was_not_drawn_is_not_announced(run_folder, capsys):
    episode = run_folder / "episode-0000"
    edit(episode, "manifest.json", lambda data: data.replace(b'"render_mode": null', b'"render_mode": "human"'))
    assert replay.cli.replay_main(["--episode", str(episode), "--video"]) == 3
    said = capsys.readouterr().out
    assert "video:" not in said or "pictures at" in said


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"durability": "proces"}, "batch, process, power"),
        ({"info_keys": "lives"}, "list of texts"),
        ({"info_keys": [1]}, "list of texts"),
        ({"ram": lambda env: b""}, "ram must be text"),
        ({"factory": lambda: None}, "factory must be text"),
        ({"protocol": {"x": float("nan")}}, "strict JSON"),
        ({"policy": {"name": "a", "x": {1, 2}}}, "strict JSON"),
    ],
)
def test_a_wrong_argument_of_the_wrapper_is_refused_before_anything_is_written(tmp_path, options, words):
    import gymnasium

    from recorder import RecordEpisode
    from recorder.errors import UsageError

    with pytest.raises(UsageError, match=words):
        RecordEpisode(gymnasium.make("CartPole-v1"), tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_a_factory_that_forgets_the_render_mode_is_refused_when_recording_starts(tmp_path):
    from environments import make_frames
    from recorder import RecordEpisode
    from recorder.errors import NotRebuildableError

    with pytest.raises(NotRebuildableError, match="factory_kwargs"):
        RecordEpisode(make_frames(render_mode="rgb_array"), tmp_path / "run", factory="environments:make_frames")


def test_a_full_disk_is_said_with_its_file_and_what_was_kept(tmp_path):
    code = (
        "import resource, signal, sys, recorder.cli; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (30000, 30000)); "
        "sys.exit(recorder.cli.main(['play', '--env', 'Pendulum-v1', '--decisions', '900', '--out', 'run']))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert "jsonl: File too large: free some space" in done.stderr
    assert "kept in run/episode-0000" in done.stderr
    assert run("replay", "--episode", "run/episode-0000", cwd=tmp_path).stdout.startswith("verified prefix")


def test_a_learner_in_the_same_process_is_no_version_of_the_environment(tmp_path):
    (tmp_path / "torch.py").write_text("__version__ = '9'\n", encoding="utf-8")
    code = (
        "import sys; sys.path.insert(0, '.'); import torch; import recorder.cli; "
        "sys.exit(recorder.cli.main(['play', '--env', 'CartPole-v1', '--decisions', '5', '--out', 'run']))"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    manifest = json.loads((tmp_path / "run/episode-0000/manifest.json").read_bytes())
    assert set(manifest["fingerprint"]["versions"]) == {"python", "gymnasium", "numpy", "replay-recorder"}


def test_a_wrapper_that_writes_files_is_refused_at_both_ends(run_folder, tmp_path):
    import gymnasium

    from recorder import RecordEpisode
    from recorder.errors import NotRebuildableError, UntrustedCodeError
    from replay.opening import replay_episode

    class RecordVideo(gymnasium.Wrapper, gymnasium.utils.RecordConstructorArgs):
        """Stands for Gymnasium's, which needs a package of its own."""

        def __init__(self, env):
            gymnasium.utils.RecordConstructorArgs.__init__(self)
            super().__init__(env)

    with pytest.raises(NotRebuildableError, match="wrap the recorder with it"):
        RecordEpisode(RecordVideo(gymnasium.make("CartPole-v1")), tmp_path / "new")
    manifest = json.loads((run_folder / "episode-0000" / "manifest.json").read_bytes())
    wrapper = {"name": "RecordVideo", "entry_point": "gymnasium.wrappers.rendering:RecordVideo"}
    kwargs = {"dict": {"video_folder": str(tmp_path / "stolen")}}
    manifest["environment"]["spec"]["additional_wrappers"] = [{**wrapper, "kwargs": kwargs}]
    (run_folder / "episode-0000" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(UntrustedCodeError, match="writes files"):
        replay_episode(run_folder / "episode-0000", trust=["gymnasium"])
    assert not (tmp_path / "stolen").exists()


def test_a_program_that_never_closes_loses_nothing_and_a_forked_child_writes_nothing(tmp_path):
    code = """
import os, sys, gymnasium
from recorder import RecordEpisode
env = RecordEpisode(gymnasium.make("CartPole-v1"), "run")
env.reset(seed=0)
for _ in range(7):
    env.step(0)
if os.fork() == 0:
    sys.exit()
os.wait()
"""
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    said = run("replay", "--episode", "run/episode-0000", cwd=tmp_path).stdout
    assert said.startswith("verified prefix")
    assert "replayed 7 decisions" in said


@pytest.mark.parametrize("factory", ["recorder.envs:register", "gymnasium.wrappers:TimeLimit", "gymnasium:register"])
def test_a_factory_runs_only_if_it_was_allowed_even_one_of_our_own(run_folder, factory):
    from recorder.errors import UntrustedCodeError
    from replay.opening import replay_episode

    manifest = json.loads((run_folder / "episode-0000" / "manifest.json").read_bytes())
    kwargs = {"dict": {"id": "Nice-v1", "entry_point": "subprocess:Popen"}}
    manifest["environment"] |= {"spec": None, "factory": {"entry_point": factory, "kwargs": kwargs}}
    (run_folder / "episode-0000" / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(UntrustedCodeError, match="--trust"):
        replay_episode(run_folder / "episode-0000")


def test_a_space_that_was_printed_short_before_the_recording_is_no_divergence(tmp_path):
    code = (
        "import numpy as np, gymnasium, sys; from recorder import RecordEpisode; np.set_printoptions(precision=2)\n"
        "env = gymnasium.make('CartPole-v1'); str(env.observation_space)\n"
        "with RecordEpisode(env, 'run') as recorded:\n    recorded.reset(seed=0); recorded.step(0)\n"
    )
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True)
    run("replay", "--episode", "run/episode-0000", cwd=tmp_path)
