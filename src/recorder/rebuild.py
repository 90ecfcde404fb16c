"""How an environment is described in a manifest and built again from it.

Two ways exist: the environment's `EnvSpec` with its wrappers, as `gymnasium.make` leaves it, or a
`factory="module:function"` with keyword arguments. Whatever could not be built again is refused when
recording starts, by building it.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import sys
import warnings
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, WrapperSpec

from recorder.atari import NAMESPACE, describe_assets, describe_rom_error, quiet_roms, register_atari
from recorder.encoding import decode_value, encode_value
from recorder.errors import (
    CannotRunError,
    DamagedError,
    EncodingError,
    MissingExtraError,
    NotRebuildableError,
    UntrustedCodeError,
    UsageError,
)
from recorder.provenance import find_distribution, find_version
from recorder.simulator import layers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

    from recorder.records import Row

    Environment = gymnasium.Env[Any, Any]

# Wrappers that leave files behind, which neither a replay nor a stranger's episode should do.
WRITING_WRAPPERS = frozenset({"RecordVideo"})

# Wrappers whose output depends on every episode before.
STATISTICS_WRAPPERS = frozenset({"NormalizeObservation", "NormalizeReward"})

# Gymnasium's own wrappers run unasked, but for those that reach for more than the environment.
_UNASKED_WRAPPERS = frozenset(gymnasium.wrappers.__all__) - {*WRITING_WRAPPERS, "HumanRendering", "vector"}

# Which extra brings a module that an environment failed to import.
EXTRA_OF_MODULE = {"Box2D": "box2d", "pygame": "render", "ale_py": "atari"}

# Wrappers of our own that are part of an environment.
_OWN_WRAPPERS = frozenset({("recorder.holding", "HoldAction"), ("recorder.pong_objects", "ObserveObjects")})

_SPEC_FIELDS = (
    "id",
    "reward_threshold",
    "nondeterministic",
    "max_episode_steps",
    "order_enforce",
    "disable_env_checker",
    "vector_entry_point",
)


def make_environment(env_id: str, **kwargs: Any) -> Environment:
    """`gymnasium.make` with errors of this project.

    Raises:
        CannotRunError: No such environment, or it cannot be built.
        MissingExtraError: A package that it needs is not installed.
    """
    if env_id.startswith(NAMESPACE):
        register_atari()
    try:
        with quiet_roms():
            return gymnasium.make(env_id, **kwargs)
    except OSError as error:
        if not env_id.startswith(NAMESPACE):
            raise
        raise CannotRunError(describe_rom_error(env_id, error)) from error
    except gymnasium.error.DependencyNotInstalled as error:
        raise _missing_extra(env_id, error) from error
    except (gymnasium.error.Error, ImportError) as error:
        raise _unknown(env_id, error) from error
    except TypeError as error:
        message = f"{env_id} does not take these arguments ({', '.join(kwargs) or 'none'}): {error}"
        raise UsageError(message) from error


def describe_environment(env: Environment, factory: str | None, factory_kwargs: Mapping[str, Any] | None) -> Row:
    """The manifest's `environment`.

    Args:
        env: The environment as the recorder sees it, wrappers included.
        factory: `module:function` that builds it, or None to use its spec.
        factory_kwargs: Keyword arguments for the factory, kept exactly.

    Raises:
        NotRebuildableError: Neither way can hold it; the message says what to change.
    """
    entry_point: str | None
    if factory is not None:
        if not isinstance(factory, str):
            message = f"factory must be text, 'module:function', not {type(factory).__name__}"
            raise UsageError(message)
        spec, entry_point = None, factory
        described: Row | None = {"entry_point": factory, "kwargs": _spell_kwargs(factory, factory_kwargs or {})}
        _refuse_main(factory)
    else:
        spec, described = _describe_spec(env), None
        entry_point = spec["entry_point"]
    distribution = find_distribution(entry_point.partition(":")[0])
    return {
        "id": env.spec.id if env.spec is not None else None,
        "spec": spec,
        "factory": described,
        "wrappers": wrapper_names(env),
        "distribution": {"name": distribution, "version": find_version(distribution)} if distribution else None,
        "render_mode": env.render_mode,
        "observation_space": describe_space(env.observation_space),
        "action_space": describe_space(env.action_space),
        "assets": describe_assets(env.unwrapped),
    }


def require_same_assets(described: Mapping[str, Any], env: Environment) -> None:
    """Raise if a file that the environment loads, such as a ROM, is not the one of the recording.

    Raises:
        CannotRunError: It is another one, or is not there.
    """
    here = {asset["name"]: asset["sha256"] for asset in describe_assets(env.unwrapped)}
    for asset in described.get("assets", ()):
        require_same_file(asset["name"], asset["sha256"], here.get(asset["name"]))


def require_same_file(name: str, recorded: str, here: str | None) -> None:
    """Raise if a file has another SHA-256 than it had at the recording, or is not there (None).

    Raises:
        CannotRunError: It is so.
    """
    if here != recorded:
        message = (
            f"the episode was recorded with {name} of SHA-256 {recorded}, here it "
            f"{'is missing' if here is None else f'has {here}'}: it can only be replayed with the same file"
        )
        raise CannotRunError(message)


def build_environment(
    described: Mapping[str, Any],
    *,
    is_trusted: Callable[[str], bool],
    render_mode: str | None = None,
) -> Environment:
    """Build the environment that a manifest describes.

    Args:
        described: The manifest's `environment`.
        is_trusted: Says whether code of a module may run; see `trust_modules`.
        render_mode: Build it with this render mode instead of the recorded one.

    Raises:
        UntrustedCodeError: It names code that is neither registered nor trusted.
        MissingExtraError: An optional package is missing.
        CannotRunError: It cannot be built here.
    """
    factory = described["factory"]
    if factory is not None:
        return _build_from_factory(factory, is_trusted=is_trusted, render_mode=render_mode)
    if described["spec"] is None:
        message = "the manifest names neither a spec nor a factory that builds its environment"
        raise DamagedError(message)
    try:
        spec = _read_spec(described["spec"])
    except gymnasium.error.Error as error:
        raise _unknown(described["spec"]["id"], error) from error
    if spec.id.startswith(NAMESPACE):
        register_atari()
    _refuse_untrusted(spec, is_trusted)
    kwargs: dict[str, Any] = {} if render_mode is None else {"render_mode": render_mode}
    try:
        with quiet_roms():
            return gymnasium.make(spec, **kwargs)
    except gymnasium.error.DependencyNotInstalled as error:
        raise _missing_extra(spec.id, error) from error
    except Exception as error:
        missing = _missing_module(error)
        if missing in EXTRA_OF_MODULE:
            raise _missing_extra(spec.id, error) from error
        message = f"{spec.id} cannot be built from the manifest: {type(error).__name__}: {error}"
        raise CannotRunError(message) from error


def require_rebuildable(env: Environment, described: Mapping[str, Any], *, is_drawing: bool = False) -> None:
    """Build the environment a second time and compare, so that a recording is never made in vain.

    Args:
        env: The environment to be recorded.
        described: The manifest's `environment`.
        is_drawing: Draw a first picture too, which imports the renderer and shows whether it works.

    Raises:
        NotRebuildableError: It cannot be built or drawn, or what is built differs in wrappers or spaces.
    """
    counting = STATISTICS_WRAPPERS.intersection(wrapper_names(env))
    if counting:
        message = (
            f"{', '.join(counting)} keeps statistics over episodes, so that no later one could be replayed alone: "
            "wrap the recorder with it instead"
        )
        raise NotRebuildableError(message)
    writing = WRITING_WRAPPERS.intersection(wrapper_names(env))
    if writing:
        message = f"a replay would write files again through {', '.join(writing)}: wrap the recorder with it instead"
        raise NotRebuildableError(message)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            again = build_environment(described, is_trusted=lambda _: True)
    except CannotRunError as error:
        message = f"a replay could not build this environment again: {error}"
        raise NotRebuildableError(message) from error
    try:
        differing = _first_difference(env, again)
        if is_drawing and differing is None:
            again.reset(seed=0)
            again.render()
    except (gymnasium.error.Error, ImportError) as error:
        raise _missing_extra(wrapper_names(env)[-1], error) from error
    finally:
        again.close()
    if differing is not None:
        message = (
            f"a replay would build another environment: {differing}; "
            "pass factory='module:function' that builds exactly this one"
        )
        raise NotRebuildableError(message)


def trust_modules(names: Collection[str]) -> Callable[[str], bool]:
    """A judge of module names: true for the given modules and their parts, and for nothing else."""
    given = [names] if isinstance(names, str) else names
    trusted = [name.partition(":")[0] for name in given]
    return lambda module: any(module == name or module.startswith(f"{name}.") for name in trusted)


def describe_space(space: gymnasium.Space[Any]) -> str:
    """A space as text, the same whatever print options the user has set for numpy."""
    if type(space) is gymnasium.spaces.Box:
        return _describe_box(space.low.tobytes(), space.high.tobytes(), space.shape, space.dtype)
    return _describe(space)


@functools.lru_cache(maxsize=16)
def _describe_box(low: bytes, high: bytes, shape: tuple[int, ...], dtype: Any) -> str:
    """Numpy's spelling of two arrays takes 150 us, and each replayed episode asks."""
    bounds = [np.frombuffer(data, dtype).reshape(shape) for data in (low, high)]
    # Built anew, since a space keeps the text of its first printing.
    return _describe(gymnasium.spaces.Box(bounds[0], bounds[1], shape=shape, dtype=dtype))


def _describe(space: gymnasium.Space[Any]) -> str:
    with np.printoptions(
        precision=8, threshold=1000, edgeitems=3, linewidth=75, suppress=False, nanstr="nan", infstr="inf",
        sign="-", floatmode="maxprec", formatter=None, legacy=False,
    ):  # fmt: skip
        return str(space)


def wrapper_names(env: Environment) -> list[str]:
    """Class names from the outermost wrapper down to the environment itself."""
    return [type(layer).__name__ for layer in layers_of(env)]


def defining_modules(env: Environment) -> list[str]:
    """The modules that define the environment and its wrappers."""
    return sorted({type(layer).__module__ for layer in layers_of(env)})


def _describe_spec(env: Environment) -> Row:
    spec = env.spec
    if spec is None:
        message = (
            f"{wrapper_names(env)[-1]} has no spec: build it with gymnasium.make, "
            "or pass factory='module:function' that builds it"
        )
        raise NotRebuildableError(message)
    entry_point = _importable_name(spec.entry_point, spec.id)
    wrappers = []
    for wrapper in spec.additional_wrappers:
        if wrapper.kwargs is None:
            message = (
                f"wrapper {wrapper.name} does not keep its arguments: derive it from "
                "gymnasium.utils.RecordConstructorArgs, or pass factory='module:function'"
            )
            raise NotRebuildableError(message)
        _refuse_main(wrapper.entry_point)
        spelled = _spell_kwargs(f"wrapper {wrapper.name}", wrapper.kwargs)
        wrappers.append({"name": wrapper.name, "entry_point": wrapper.entry_point, "kwargs": spelled})
    plain = {name: getattr(spec, name) for name in _SPEC_FIELDS}
    if plain["vector_entry_point"] is not None and not isinstance(plain["vector_entry_point"], str):
        plain["vector_entry_point"] = None
    kwargs = _spell_kwargs(spec.id, spec.kwargs)
    return {**plain, "entry_point": entry_point, "kwargs": kwargs, "additional_wrappers": wrappers}


def _read_spec(described: Mapping[str, Any]) -> EnvSpec:
    spec = EnvSpec(
        entry_point=described["entry_point"],
        kwargs=decode_value(described["kwargs"]),
        **{name: described[name] for name in _SPEC_FIELDS if name in described},
    )
    spec.additional_wrappers = tuple(
        WrapperSpec(name=wrapper["name"], entry_point=wrapper["entry_point"], kwargs=decode_value(wrapper["kwargs"]))
        for wrapper in described["additional_wrappers"]
    )
    return spec


def _refuse_untrusted(spec: EnvSpec, is_trusted: Callable[[str], bool]) -> None:
    """Only what this installation registered itself may run unasked: a manifest is a stranger's text."""
    registered = gymnasium.registry.get(spec.id)
    named = [wrapper.entry_point for wrapper in spec.additional_wrappers]
    if registered is None or registered.entry_point != spec.entry_point:
        named.insert(0, str(spec.entry_point))
    for entry_point in named:
        module, _, name = entry_point.partition(":")
        if name in WRITING_WRAPPERS:
            message = (
                f"this episode asks for the wrapper {name}, which writes files where the episode says: it is not run"
            )
            raise UntrustedCodeError(message)
        if not (_is_unasked_wrapper(module, name) or is_trusted(module)):
            message = (
                f"this episode is built by {entry_point}, which is not an environment registered here; "
                f"if you trust that code, allow it with --trust {module.partition('.')[0]}"
            )
            raise UntrustedCodeError(message)


def _is_unasked_wrapper(module: str, name: str) -> bool:
    if (module, name) in _OWN_WRAPPERS:
        return True
    return name in _UNASKED_WRAPPERS and module in {"gymnasium.wrappers", getattr(gymnasium.wrappers, name).__module__}


def _build_from_factory(
    factory: Mapping[str, Any], *, is_trusted: Callable[[str], bool], render_mode: str | None
) -> Environment:
    entry_point = factory["entry_point"]
    module, _, name = entry_point.partition(":")
    if not is_trusted(module):
        message = (
            f"this episode is built by {entry_point}; "
            f"if you trust that code, allow it with --trust {module.partition('.')[0]}"
        )
        raise UntrustedCodeError(message)
    kwargs = decode_value(factory["kwargs"])
    if render_mode is not None:
        kwargs["render_mode"] = render_mode
    try:
        env = getattr(importlib.import_module(module), name)(**kwargs)
    except ModuleNotFoundError as error:
        is_there = error.name is not None and not f"{module}.".startswith(f"{error.name}.")
        advice = "install what it needs" if is_there else "run from the folder that holds it, or set PYTHONPATH"
        message = f"{entry_point} cannot be imported ({error}): {advice}"
        raise CannotRunError(message) from error
    except Exception as error:
        message = f"{entry_point} could not build the environment: {type(error).__name__}: {error}"
        raise CannotRunError(message) from error
    if not isinstance(env, gymnasium.Env):
        message = f"{entry_point} returned {type(env).__name__}, not a gymnasium.Env"
        raise CannotRunError(message)
    return env


def _first_difference(env: Environment, again: Environment) -> str | None:
    if wrapper_names(env) != wrapper_names(again):
        return f"wrappers {' < '.join(wrapper_names(env))} became {' < '.join(wrapper_names(again))}"
    if env.render_mode != again.render_mode:
        return f"render mode {env.render_mode!r} became {again.render_mode!r} (name it in factory_kwargs)"
    if env.observation_space != again.observation_space:
        return f"observation space {env.observation_space} became {again.observation_space}"
    if env.action_space != again.action_space:
        return f"action space {env.action_space} became {again.action_space}"
    return None


def _spell_kwargs(owner: str, kwargs: Mapping[str, Any]) -> Row:
    try:
        spelled: Row = encode_value(dict(kwargs), is_sent=True)
    except EncodingError as error:
        key = error.path[0] if error.path else "?"
        message = (
            f"argument {key!r} of {owner} cannot be kept in a manifest ({error.problem}); "
            "pass factory='module:function' that builds the environment from plain values"
        )
        raise NotRebuildableError(message) from error
    return spelled


def _importable_name(entry_point: object, env_id: str) -> str:
    if callable(entry_point):
        module, name = entry_point.__module__, getattr(entry_point, "__qualname__", "<lambda>")
        entry_point = f"{module}:{name}"
        if "<" in name or "." in name:
            message = f"{env_id} is registered with {entry_point}, which cannot be imported by name"
            raise NotRebuildableError(message)
    _refuse_main(str(entry_point))
    return str(entry_point)


def _refuse_main(entry_point: str) -> None:
    module, _, name = entry_point.partition(":")
    if module in {"", "__main__"} or not name:
        message = (
            f"{entry_point} cannot be imported by a replay: put it into a module of its own "
            "and name it as 'module:function'"
        )
        raise NotRebuildableError(message)
    if module not in sys.modules and importlib.util.find_spec(module.partition(".")[0]) is None:
        message = f"{entry_point} cannot be imported by a replay: there is no module {module}"
        raise NotRebuildableError(message)


def _missing_extra(env_id: str, error: Exception) -> MissingExtraError:
    module = _missing_module(error)
    extra = EXTRA_OF_MODULE.get(module or "")
    if extra is None:
        return MissingExtraError(f"{env_id} needs a package that is not installed: {error}")
    return MissingExtraError(
        f"{env_id} needs {module}, which the extra `{extra}` installs: pip install 'replay-recorder[{extra}]'"
    )


def _missing_module(error: BaseException | None) -> str | None:
    while error is not None:
        if isinstance(error, ImportError) and error.name:
            return error.name.partition(".")[0]
        error = error.__cause__ or error.__context__
    return None


def _unknown(env_id: str, error: Exception) -> CannotRunError:
    return CannotRunError(f"no environment {env_id!r} can be built here: {str(error).strip().rstrip('.')}")
