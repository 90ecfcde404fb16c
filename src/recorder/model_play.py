"""`record play` with a model: program, key, budget and log put together, and the ledger at the end."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from recorder.errors import RecorderError, UsageError
from recorder.exchanges import EXCHANGES, LEDGER, Budget, ExchangeLog, sum_ledger
from recorder.model_policy import ModelPolicy, ModelSettings
from recorder.programs import ActionProgram
from recorder.records import Row, encode_document
from recorder.redaction import Redactor
from recorder.storage import write_atomically
from recorder.transport import normalise_base_url

if TYPE_CHECKING:
    import argparse

    import gymnasium


@dataclass
class ModelRun:
    """What a run with a model needs.

    Attributes:
        policy: Decides.
        log: Its exchanges.
        description: The manifest's `policy`.
    """

    policy: ModelPolicy
    log: ExchangeLog
    description: Row

    def close(self) -> Row:
        """Close the log and write the ledger; what it adds up to."""
        self.policy.close()
        self.log.close()
        ledger = describe_ledger(self.log)
        if self.log.path.parent.is_dir():
            write_atomically(self.log.path.with_name(LEDGER), encode_document(ledger))
        totals: Row = ledger["totals"]
        return totals


def open_model_run(parsed: argparse.Namespace, env: gymnasium.Env[Any, Any]) -> ModelRun:
    """Put together what the arguments of `record play` say.

    Raises:
        UsageError: An argument is missing, or a key is not there or too short.
    """
    for name in ("base_url", "program", "max_api_calls"):
        if getattr(parsed, name) is None:
            message = f"--model needs --{name.replace('_', '-')}"
            raise UsageError(message)
    names = [name for name in (parsed.api_key_env, *parsed.secret_env) if name is not None]
    secrets = {name: _read_secret(name) for name in names}
    redactor = Redactor(secrets)
    try:
        # A secret in it is neither sent nor kept.
        program = ActionProgram.from_json(redactor.redact(ActionProgram.read(parsed.program).to_json()))
        settings = ModelSettings(
            parsed.model, normalise_base_url(parsed.base_url), parsed.protocol, parsed.response_model
        )
    except RecorderError as error:
        raise type(error)(redactor.redact_url(str(error))) from None
    log = ExchangeLog(parsed.out / EXCHANGES, Budget(parsed.max_api_calls), redactor)
    policy = ModelPolicy(program, settings, log, env, key=secrets.get(parsed.api_key_env))
    description = {
        "name": f"model:{program.name}",
        "run_seed": parsed.seed,
        **settings.to_json(),
        "max_api_calls": parsed.max_api_calls,
        "program": program.to_json(),
        "program_sha256": program.sha256,
    }
    return ModelRun(policy, log, description)


def describe_ledger(log: ExchangeLog) -> Row:
    """Every attempt and their sum, failures and retries included."""
    totals = {**sum_ledger(log.ledger), "redacted_places": log.redactor.places}
    return {
        "kind": "api-ledger",
        "max_api_calls": log.budget.attempts,
        "attempts": log.ledger,
        "totals": totals,
    }


def _read_secret(name: str) -> str:
    secret = os.environ.get(name)
    if not secret:
        message = f"the environment variable {name} is not set: it should hold a key"
        raise UsageError(message)
    if not secret.isprintable() or secret != secret.strip():
        message = f"the environment variable {name} holds white space at an end or control characters: no key has them"
        raise UsageError(message)
    return secret
