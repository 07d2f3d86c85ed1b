"""Who replies, from the words of a command line: for ``textenvs evaluate``, and for programs of your own."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
from typing import Any

from ..env import TextEnv
from ..evaluate.baselines import has_script
from ..evaluate.policies import SCRIPTS, FunctionPolicy, Policy, ScriptedPolicy, load_function
from .common import CommandError, import_from_here, parse_options

# Options of a service whose flags have the name that lengths have everywhere here.
_FLAGS = {"max_tokens": "max_response_length"}


def add_policy_arguments(parser: argparse.ArgumentParser) -> None:
    who = parser.add_argument_group("the policy")
    who.add_argument("--policy", metavar="POLICY", help=f"{', '.join(SCRIPTS)}, or module:function of yours")
    who.add_argument("--model", metavar="NAME", help="a model behind an OpenAI-compatible service")
    who.add_argument("--local", metavar="FOLDER", help="a model computed here: a folder that transformers loads")
    who.add_argument("--base-url", metavar="URL", help="the service, as http://localhost:8000/v1 (default: OpenAI's)")
    who.add_argument("--api-key-env", metavar="NAME", help="the environment variable with its key")
    who.add_argument("--temperature", type=float, metavar="T", help="default: the service's; 1 for --local")
    who.add_argument("--max-response-length", type=int, metavar="N", help="tokens a reply has at most (default 1024)")
    who.add_argument("--max-tokens", help=argparse.SUPPRESS)  # its former name
    who.add_argument(
        "--chat",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="another option of textenvs.chat.ChatSpec, for example timeout_s=300 or extra='{\"top_p\":0.9}'",
    )
    who.add_argument(
        "--chat-template",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="with --local: a variable for the model's chat template, for example enable_thinking=false",
    )
    who.add_argument("--no-request-seed", action="store_true", help="send no seed, for services that refuse one")


def check_policy_arguments(arguments: argparse.Namespace) -> None:
    """Raise ``CommandError`` unless they name one policy, and only what goes with it."""
    if arguments.max_tokens is not None:
        raise CommandError("--max-tokens is called --max-response-length", 2)
    if sum(who is not None for who in (arguments.policy, arguments.model, arguments.local)) != 1:
        raise CommandError("who plays? Give --model NAME, --local FOLDER or --policy POLICY, one of the three", 2)
    for name in ("base_url", "api_key_env", "chat", "no_request_seed"):
        if arguments.model is None and getattr(arguments, name) not in (None, False, []):
            raise CommandError(f"--{name.replace('_', '-')} goes with --model", 2)
    if arguments.local is None and arguments.chat_template:
        raise CommandError("--chat-template goes with --local; services take extra, see --chat", 2)
    if arguments.model is not None and importlib.util.find_spec("openai") is None:
        raise CommandError("--model asks a service through the openai package: pip install 'textenvs[chat]'")
    for module in ("torch", "transformers"):
        if arguments.local is not None and importlib.util.find_spec(module) is None:
            raise CommandError(f"--local computes a model here, which needs {module}: pip install 'textenvs[train]'")
    for name in ("temperature", "max_response_length"):
        if arguments.policy is not None and getattr(arguments, name) is not None:
            raise CommandError(f"--{name.replace('_', '-')} goes with --model or --local", 2)


def policy_of(env: TextEnv[Any], env_id: str, arguments: argparse.Namespace) -> tuple[Policy, dict[str, Any]]:
    """The policy that the arguments name, and what of it may change a result.

    ``arguments.concurrency`` is how many replies may be wanted at a time.
    """
    if arguments.model is not None:
        return _endpoint(arguments)
    if arguments.local is not None:
        return _local(arguments)
    name = arguments.policy
    if name in SCRIPTS:
        if not has_script(env, name):
            raise CommandError(f"{env_id} has no script {name!r}", 2)
        return ScriptedPolicy(name), {"script": name}
    import_from_here()
    try:
        function = load_function(name)
    except ValueError as error:
        raise CommandError(str(error), 2) from error
    return FunctionPolicy(function), {"function": name}


def _endpoint(arguments: argparse.Namespace) -> tuple[Policy, dict[str, Any]]:
    try:
        from ..chat import ChatSpec
        from ..evaluate.endpoint import EndpointPolicy

        given = {name: getattr(arguments, name) for name in ("base_url", "api_key_env", "temperature")}
        given["max_tokens"] = arguments.max_response_length  # as the service's interface has it
        options = {name: value for name, value in given.items() if value is not None}
        more = parse_options(arguments.chat)
        if twice := [name for name in more if name in options or name == "model"]:
            flag = _FLAGS.get(twice[0], twice[0]).replace("_", "-")
            raise CommandError(f"--chat {twice[0]}=... has an option of its own: --{flag}", 2)
        spec = ChatSpec.of(arguments.model, **{"concurrency": arguments.concurrency, **options, **more})
        seeded = not arguments.no_request_seed
        policy = EndpointPolicy(spec, request_seed=seeded)
    except ImportError as error:
        raise CommandError(str(error)) from error
    except ValueError as error:
        raise CommandError(str(error), 2) from error
    described = {name: getattr(spec, name) for name in ("model", "base_url", "temperature", "max_tokens", "extra")}
    return policy, {**described, "request_seed": seeded}


def _local(arguments: argparse.Namespace) -> tuple[Policy, dict[str, Any]]:
    # By its entry point: what computes models is no part of this package.
    found = [point for point in importlib.metadata.entry_points(group="textenvs.policies") if point.name == "local"]
    if not found:
        raise CommandError("nothing installed here computes models; reinstall textenvs to have its entry points")
    given = {name: getattr(arguments, name) for name in ("temperature", "max_response_length")}
    options = {name: value for name, value in given.items() if value is not None}
    if arguments.chat_template:
        options["chat_template_kwargs"] = parse_options(arguments.chat_template)
    try:
        make = found[0].load()
        policy = make(arguments.local, concurrency=arguments.concurrency, **options)
    except ImportError as error:
        raise CommandError(f"--local needs torch and transformers ({error}): pip install 'textenvs[train]'") from error
    except ValueError as error:
        raise CommandError(f"--local {arguments.local}: {error}", 2) from error
    return policy, {"local": arguments.local, **options}
