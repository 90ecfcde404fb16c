"""The one-way road of the code: errors at the bottom, command lines at the top, recorder below replay."""

import ast
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"

# Each module may import the ones above it in this list, and no other of ours.
LADDER = (
    "recorder.errors",
    "recorder.limits",
    "recorder.records",
    "recorder.encoding",
    "recorder.pong",
    "recorder.pong_policies",
    "recorder.provenance",
    "recorder.pymunk_state",
    "recorder.atari",
    "recorder.hash_worker",
    "recorder.hashing",
    "recorder.simulator",
    "recorder.holding",
    "recorder.frames",
    "recorder.storage",
    "recorder.reading",
    "recorder.redaction",
    "recorder.exchanges",
    "recorder.transport",
    "recorder.programs",
    "recorder.model_policy",
    "recorder.model_play",
    "recorder.rebuild",
    "recorder.stepping",
    "recorder.wrappers",
    "recorder",
    "recorder.policies",
    "recorder.games",
    "recorder.pong_objects",
    "recorder.pong_play",
    "recorder.archive",
    "recorder.command",
    "recorder.game_check",
    "recorder.playing",
    "recorder.cli",
    "replay",
    "replay.divergence",
    "replay.transport",
    "replay.verdict",
    "replay.evidence",
    "replay.actions",
    "replay.fresh_arrays",
    "replay.raw_frames",
    "replay.model_proof",
    "replay.engine",
    "replay.pong_model",
    "replay.pong_play",
    "replay.opening",
    "replay.origin",
    "replay.video",
    "replay.inspection",
    "replay.report",
    "replay.cli",
    "studies",
)
# Environments stand beside the ladder: Gymnasium imports them, and they import only each other and the bytes of
# pymunk's state. The package registers them.
ENVIRONMENTS = "recorder.envs"
ENVIRONMENTS_MAY_IMPORT = ("recorder.envs", "recorder.pymunk_state")

OWNERS = {
    "datetime": {"recorder.provenance"},
    "platform": {"recorder.provenance"},
    "subprocess": {"recorder.provenance", "recorder.hashing", "recorder.game_check"},
    "socket": set(),
    "pymunk": {"recorder.pymunk_state", "recorder.envs.pusht_scene"},
    "ale_py": {"recorder.atari"},
    "httpx": {"recorder.transport", "replay.transport"},
    "imageio": {"replay.video"},
    "imageio_ffmpeg": {"replay.video"},
}
HIDDEN_IMPORTS = {
    ("recorder.simulator", "recorder.pymunk_state"),
    ("recorder.playing", "recorder.model_play"),
    ("replay.model_proof", "recorder.model_policy"),
    ("replay.model_proof", "recorder.transport"),
    ("replay.model_proof", "replay.transport"),
}


def modules():
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), ast.parse(path.read_text(encoding="utf-8"))


def imported(node):
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return []


def imports(tree):
    return [name for node in ast.walk(tree) for name in imported(node)]


def is_ours(name):
    return name.partition(".")[0] in {"recorder", "replay", "studies"}


def test_every_module_stands_on_the_ladder():
    names = {name for name, _ in modules() if not name.startswith(ENVIRONMENTS)}
    assert names == set(LADDER)


def test_no_module_imports_upwards():
    upwards = []
    for name, tree in modules():
        below = LADDER[: LADDER.index(name)] if name in LADDER else ()
        for target in filter(is_ours, imports(tree)):
            is_environments_own = name.startswith(ENVIRONMENTS) and target.startswith(ENVIRONMENTS_MAY_IMPORT)
            is_registration = (name, target) == ("recorder", ENVIRONMENTS)
            if target not in below and not is_environments_own and not is_registration:
                upwards.append((name, target))
    assert upwards == []


def test_imports_within_functions_are_the_known_ones():
    hidden = set()
    for name, tree in modules():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                hidden |= {
                    (name, target) for node in ast.walk(function) for target in imported(node) if is_ours(target)
                }
    assert hidden == HIDDEN_IMPORTS


def test_each_outside_world_has_one_owner():
    strangers = [
        (name, target)
        for name, tree in modules()
        for target in imports(tree)
        if name not in OWNERS.get(target.partition(".")[0], {name})
    ]
    assert strangers == []
