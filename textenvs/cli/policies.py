"""Policies named on a command line: for ``textenvs evaluate``, and for programs of your own."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from typing import Any

from ..env import TextEnv
from ..evaluate.baselines import has_script, other_tasks, rehearsed
from ..evaluate.policies import (
    FAMILY_SCRIPT,
    SCRIPTS,
    AttackPolicy,
    FunctionPolicy,
    Policy,
    ScriptedPolicy,
    load_function,
)
from ..text import nearest
from .arguments import COMMANDS, add_arguments
from .common import CommandError, expected_errors, import_from_here, parse_options

# With which of the three ways to name a policy an option goes, and which packages these ways need.
_GOES_WITH = {
    **dict.fromkeys(("base_url", "api_key_env", "chat", "no_request_seed"), ("model",)),
    **dict.fromkeys(("temperature", "max_response_length"), ("model", "local")),
    "chat_template": ("local",),
}
_NEEDS = {"model": ("openai",), "local": ("torch", "transformers")}
_ATTACK = "attack:"


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    add_arguments(parser.add_argument_group("the policy"), COMMANDS["evaluate"]["the policy"])


def check_policy_arguments(arguments: argparse.Namespace) -> None:
    """Raise ``CommandError`` unless they name one policy, and only what goes with it."""
    if arguments.max_tokens is not None:
        raise CommandError("--max-tokens is called --max-response-length", 2)
    kinds = given_policy(arguments)
    if len(kinds) != 1:
        raise CommandError("who plays? Give --model NAME, --local FOLDER or --policy POLICY, one of the three", 2)
    for name, goes_with in _GOES_WITH.items():
        if kinds[0] not in goes_with and getattr(arguments, name) not in (None, False, []):
            flags = " or ".join(f"--{who}" for who in goes_with)
            raise CommandError(f"--{name.replace('_', '-')} goes with {flags}", 2)
    for module in _NEEDS.get(kinds[0], ()):
        if importlib.util.find_spec(module) is None:
            extra = "chat" if module == "openai" else "train"
            raise CommandError(f"--{kinds[0]} needs the package {module}: pip install 'textenvs[{extra}]'")


def given_policy(arguments: argparse.Namespace) -> list[str]:
    """Return the options that name a policy and were given."""
    return [who for who in ("policy", "model", "local") if getattr(arguments, who) is not None]


def policy_of(
    env: TextEnv[Any] | None, env_id: str, arguments: argparse.Namespace, played: Sequence[int] = ()
) -> tuple[Policy, dict[str, Any]]:
    """Return the policy that the arguments name, and its settings that may change results; scripts need ``env``.

    ``arguments.concurrency`` is how many replies may be wanted at a time. ``played`` are the indices of the tasks to
    play, which an attack does not rehearse.
    """
    with expected_errors(ImportError, mistakes=(ValueError,)):
        if arguments.model is not None:
            return _endpoint(arguments)
        if arguments.local is not None:
            return _local(arguments)
        name = arguments.policy
        if name in SCRIPTS:
            if env is None or not has_script(env, name):
                raise CommandError(f"{env_id} has no script {name!r}", 2)
            return ScriptedPolicy(name), {"script": name}
        if name == FAMILY_SCRIPT:
            if env is None or env.own_script is None:
                raise CommandError(f"{env_id} has no script.py (its class's own_script)", 2)
            return AttackPolicy(env.own_script), {"script": name}
        if name.startswith(_ATTACK):
            return _attack(env, env_id, name.removeprefix(_ATTACK), arguments, played)
        if ":" not in name:
            scripts = (*SCRIPTS, FAMILY_SCRIPT)
            choices = f"{', '.join(scripts)}, attack:NAME or module:function"
            hint = nearest(name, scripts, f"the attacks are in `textenvs describe {env_id}`")
            raise CommandError(f"--policy is {choices}, not {name!r}; {hint}", 2)
        import_from_here()
        return FunctionPolicy(load_function(name)), {"function": name}


def _attack(
    env: TextEnv[Any] | None, env_id: str, name: str, arguments: argparse.Namespace, played: Sequence[int]
) -> tuple[Policy, dict[str, Any]]:
    attacks = {} if env is None else {attack.name: attack for attack in env.attacks()}
    if env is None or name not in attacks:
        raise CommandError(f"{env_id} has no attack {name!r}; {nearest(name, attacks, 'see `textenvs describe`')}", 2)
    attack, rehearsals = attacks[name], []
    if attack.rehearse:
        rehearsals = other_tasks(env.tasks, played, attack.rehearse, arguments.seed) if played else []
        if not (rehearsals and has_script(env, "expert")):
            needs = "an expert, and tasks that are not played (a smaller --num-tasks)"
            raise CommandError(f"attack {name!r} sees the expert play other tasks: it needs {needs}", 2)
    return rehearsed(env, attack, rehearsals, arguments.seed), {"attack": name}


def _given(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in names if getattr(arguments, name) is not None}


def _endpoint(arguments: argparse.Namespace) -> tuple[Policy, dict[str, Any]]:
    from ..chat import ChatSpec
    from ..evaluate.policies import EndpointPolicy

    options = _given(arguments, "base_url", "api_key_env", "temperature")
    if arguments.max_response_length is not None:
        options["max_tokens"] = arguments.max_response_length  # as the service's interface has it
    chat_options = parse_options(arguments.chat)
    if twice := [name for name in chat_options if name in options or name == "model"]:
        flag = {"max_tokens": "max_response_length"}.get(twice[0], twice[0]).replace("_", "-")
        raise CommandError(f"--chat {twice[0]}=... has an option of its own: --{flag}", 2)
    spec = ChatSpec.of(arguments.model, **{"concurrency": arguments.concurrency, **options, **chat_options})
    seeded = not arguments.no_request_seed
    described = {name: getattr(spec, name) for name in ("model", "base_url", "temperature", "max_tokens", "extra")}
    return EndpointPolicy(spec, request_seed=seeded), {**described, "request_seed": seeded}


def _local(arguments: argparse.Namespace) -> tuple[Policy, dict[str, Any]]:
    from ..chat.local import local_policy

    options = _given(arguments, "temperature", "max_response_length")
    if arguments.chat_template:
        options["chat_template_kwargs"] = parse_options(arguments.chat_template)
    load = local_policy()
    try:
        policy = load(arguments.local, concurrency=arguments.concurrency, **options)
    except ImportError as error:
        raise CommandError(f"--local needs torch and transformers ({error}): pip install 'textenvs[train]'") from error
    except ValueError as error:
        raise CommandError(f"--local {arguments.local}: {error}", 2) from error
    return policy, {"local": arguments.local, **options}
