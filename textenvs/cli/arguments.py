"""The arguments of the commands, as ``commands.yaml`` declares them, and how mistakes in them are answered."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from ..text import load_yaml, nearest

COMMANDS: Mapping[str, Mapping[str, Any]] = load_yaml(__package__, "commands.yaml")
_TEXTS = ("help", "usage", "description", "epilog")
_KINDS: Mapping[str, type[int] | type[float]] = {"int": int, "float": float}
_BOUNDS: Mapping[str, float] = {"least": -math.inf, "most": math.inf, "above": -math.inf}


def add_command(commands: Any, name: str) -> None:
    declared = COMMANDS[name]
    command = commands.add_parser(
        name,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **{text: declared[text] for text in _TEXTS if text in declared},
    )
    add_arguments(command, declared["arguments"])
    for title, group in declared.items():
        if isinstance(group, Mapping) and title != "arguments":
            add_arguments(command.add_argument_group(title), group)
    command.add_argument("--traceback", action="store_true", help="show where an error comes from")
    command.set_defaults(parser=command, takes_options=declared.get("takes_options", "id" in declared["arguments"]))


def add_arguments(parser: Any, declared: Mapping[str, Mapping[str, Any]]) -> None:
    for flags, keywords in declared.items():
        settings = {name: value for name, value in keywords.items() if name not in ("kind", "unit", *_BOUNDS)}
        settings.setdefault("help", argparse.SUPPRESS)
        if "kind" in keywords:
            bounds = [keywords.get(name, default) for name, default in _BOUNDS.items()]
            settings["type"] = _number(_KINDS[keywords["kind"]], keywords.get("unit"), *bounds)
        parser.add_argument(*flags.split(), **settings)


def _number(
    kind: type[int] | type[float], unit: int | None, least: float, most: float, above: float
) -> Callable[[str], float]:
    def number(text: str) -> float:
        value = kind(text)
        for holds, bound in (
            (value >= least, f"at least {least}"),
            (value <= most, f"at most {most}"),
            (above < value < math.inf, f"above {above}"),
        ):
            if not holds:
                raise argparse.ArgumentTypeError(f"must be {bound}, not {text}")
        return value if unit is None else math.ceil(value * unit)

    number.__name__ = kind.__name__  # for argparse's own error about what is no number
    return number


class Parser(argparse.ArgumentParser):
    """Names the nearest choice where argparse only lists all of them."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}\nTry: {self.prog} --help\n")

    def _print_message(self, message: str, file: Any = None) -> None:
        print(message, end="", file=file)  # argparse's own hides that the reader has left

    def _check_value(self, action: argparse.Action, value: object) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            hint = nearest(str(value), choices, f"choose from {', '.join(choices)}")
            raise argparse.ArgumentError(action, f"there is no {value!r}; {hint}")

    def parse(self, arguments: Sequence[str] | None) -> argparse.Namespace:
        """Parse a command line; ``options`` are the ``key=value`` for the environment, anywhere on it."""
        parsed, rest = self.parse_known_args(arguments)
        command: Parser = parsed.parser
        for word in rest:
            if word.startswith("-"):
                option_names = [name for action in command._actions for name in action.option_strings]
                command.error(f"there is no option {word}; {nearest(word.split('=')[0], option_names, 'see --help')}")
            if not parsed.takes_options or "=" not in word:
                command.error(f"what is {word!r} for?" + (" Options are key=value." if parsed.takes_options else ""))
        parsed.options = rest
        return parsed
