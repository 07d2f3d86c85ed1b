"""Render chat templates of model folders within bounds of time and size: a template is untrusted code.

Jinja's sandbox isolates a template from the system, but does not limit its loops or the size of its text. So the
template is compiled in an environment that transformers made, with checks where work can grow:

* each loop iteration, call, filter, test and operator checks the clock, which counts this thread's processor time;
* each new text and list counts towards a total, and the size of an operator's or a method's result is computed from its
  operands in advance;
* values that are written, compared or joined are counted as often as they are referred to.

Nothing here depends on other threads or processes, and common models' templates cost about as much as without checks.
"""

from __future__ import annotations

import contextvars
import functools
import re
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from jinja2 import nodes
from jinja2.runtime import str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

#: Processor time that one rendering may take, in seconds, and in addition per million characters of input.
SECONDS, SECONDS_PER_MILLION = 2.0, 2.0
#: Processor time that all renderings of one template may take beyond ``SECONDS_EACH`` for each.
SECONDS_SAVED, SECONDS_EACH = 10.0, 0.05
#: Maximum rendered text, in characters, and in addition per character of input.
TEXT, TEXT_PER_CHARACTER = 2**16, 16
#: Maximum total of intermediate values, in characters and items, and in addition per character of input.
MADE, MADE_PER_CHARACTER = 2**25, 256
#: Maximum length of a template, in characters.
SOURCE = 2**19

# The clock is checked once per this many small steps, or items of large ones.
_LOOK, _SMALL = 64, 256
_LARGEST = 10**6  # width, count or index
_BITS = 4096  # of an integer
_LONG_NUMBER = re.compile(r"\d{6}")
# A width that is an argument: in a format of `%`, and of `str.format`.
_STAR_WIDTH, _NESTED_FIELD = re.compile(r"%[-+ #0]*\*"), re.compile(r"\{[^{}]*\{")
# Methods of texts that templates use; others return bytes, or texts of unpredictable length.
_TEXT_METHODS = frozenset(
    {
        *("capitalize", "casefold", "count", "endswith", "find", "format", "format_map", "index", "isalnum"),
        *("isalpha", "isascii", "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle"),
        *("isupper", "join", "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace"),
        *("rfind", "rindex", "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip"),
        *("swapcase", "title", "upper"),
    }
)
# Filters and functions that are slow on short texts, or loop as often as an argument says; no template needs them.
_LEFT_OUT = frozenset({"urlize", "striptags", "xmlattr", "pprint", "lipsum"})
# Filters that read all of their arguments, nested values included.
_DEEP = frozenset({"tojson", "string", "format", "unique", "sort", "dictsort", "groupby", "min", "max", "escape", "e"})
_WIDE = frozenset({"indent", "center", "wordwrap", "batch", "slice"})
# Methods and tests that compare their arguments with the value's content.
_COMPARING_METHODS = frozenset({"index", "count", "changed"})
_COMPARING_TESTS = frozenset(
    {"eq", "equalto", "==", "ne", "!=", "lt", "lessthan", "<", "gt", "greaterthan", ">", "le", "<=", "ge", ">=", "in"}
)
_WIDEST_JSON = 16  # characters of an indent, or of a separator


class LimitError(Exception):
    """A template exceeds a bound; the message says which, ``advice`` what to do."""

    advice = "use a model with another one, or set tokenizer.chat_template"


class UnboundedError(LimitError):
    """Templates cannot be rendered within bounds; the message says why."""

    def __init__(self, why: str, advice: str) -> None:
        super().__init__(f"the chat template cannot be rendered within bounds of time and size: {why}")
        self.advice = advice


class _Budget:
    """Budget of one rendering."""

    def __init__(self, seconds: float, made: int, text: int) -> None:
        self.seconds, self.remaining, self.text = seconds, made, text
        self._end = time.thread_time() + seconds
        self._until_look = _LOOK

    def tick(self, work: int = 1) -> None:
        """Count ``work``, and check the clock when enough has accumulated."""
        self._until_look -= work
        if self._until_look < 0:
            self._until_look = _LOOK
            if time.thread_time() > self._end:
                raise LimitError(f"the chat template takes more than {self.seconds:.3g} s of processor time")

    def make(self, size: int) -> None:
        """Count a value of this size, which was made or will be."""
        self.tick(1 + size // _SMALL)
        self.remaining -= size
        if self.remaining < 0:
            raise LimitError("the chat template makes texts and lists without end")


_budget: contextvars.ContextVar[_Budget] = contextvars.ContextVar("what is left of a rendering")


class BoundedTemplates:
    """Renderer with the chat template of one tokenizer, equivalent to its ``apply_chat_template``.

    A class with its own ``apply_chat_template`` is refused: nothing can interrupt that.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._saved = SECONDS_SAVED

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None,
        *,
        generate: bool,
        kwargs: Mapping[str, Any],
    ) -> str:
        """Return the conversation as text; raise ``LimitError``, or the errors of Jinja and the template."""
        _check_class(type(self._tokenizer))
        characters = _characters((messages, tools, kwargs))
        millions = characters / 1e6
        self._saved = min(SECONDS_SAVED, self._saved + SECONDS_EACH + SECONDS_PER_MILLION * millions)
        budget = _Budget(
            min(SECONDS + SECONDS_PER_MILLION * millions, self._saved),
            MADE + MADE_PER_CHARACTER * characters,
            TEXT + TEXT_PER_CHARACTER * characters,
        )
        started, token = time.thread_time(), _budget.set(budget)
        try:
            # The template may be large, so a long one counts; None stands for a missing key.
            rendered, _ = _render()(
                conversations=[[{k: v for k, v in message.items() if v is not None} for message in messages]],
                tools=tools,
                chat_template=self._tokenizer.get_chat_template(tools=tools),
                add_generation_prompt=generate,
                **{**self._tokenizer.special_tokens_map, **kwargs},
            )
        except (RecursionError, SyntaxError) as error:
            raise LimitError("the chat template is nested too deeply, or calls itself without end") from error
        except (MemoryError, OverflowError) as error:
            raise LimitError("the chat template needs more memory, or larger numbers, than there are") from error
        finally:
            _budget.reset(token)
            self._saved -= time.thread_time() - started
        return str(rendered[0])


def _check_class(owner: type) -> None:
    from transformers import PreTrainedTokenizerBase

    if getattr(owner, "apply_chat_template", None) not in (None, PreTrainedTokenizerBase.apply_chat_template):
        raise UnboundedError(
            f"the tokenizer's class {owner.__module__}.{owner.__qualname__} has an apply_chat_template of its own",
            "use a tokenizer of transformers that renders its chat_template, as AutoTokenizer reads it from a folder "
            "with tokenizer.json and chat_template.jinja",
        )


@functools.cache
def _render() -> Callable[..., tuple[list[str], Any]]:
    """Return transformers' rendering function with the compilation of templates replaced by :func:`_compiled`."""
    import transformers
    from transformers.utils import chat_template_utils as utils

    original = utils.render_jinja_template
    compiling = "_compile_jinja_template"
    if compiling not in original.__code__.co_names or not hasattr(utils, compiling):
        raise UnboundedError(
            f"transformers {transformers.__version__} compiles templates in another place",
            "install a version of transformers that textenvs[train] allows",
        )
    namespace = {**original.__globals__, compiling: _compiled}
    copy = types.FunctionType(
        original.__code__, namespace, original.__name__, original.__defaults__, original.__closure__
    )
    copy.__kwdefaults__ = original.__kwdefaults__
    return copy


@functools.lru_cache(maxsize=64)
def _compiled(source: str) -> Any:
    """Return the template in an environment with bounds; compiling counts as part of the first rendering."""
    if len(source) > SOURCE:
        raise LimitError(f"the chat template has {len(source):,} characters, more than {SOURCE:,}")
    from transformers.utils import chat_template_utils as utils

    original = utils._compile_jinja_template("").environment
    environment = _Bounded(
        trim_blocks=original.trim_blocks,
        lstrip_blocks=original.lstrip_blocks,
        extensions=[type(extension) for extension in original.extensions.values()],
        optimized=False,
        finalize=_written,
    )
    environment.filters = {
        name: _guarded(name, function) for name, function in original.filters.items() if name not in _LEFT_OUT
    } | {_COUNTED: _counted, _WEIGHED: _weighed, _JOINED: _joined_values}
    environment.tests = {
        name: _guarded("unique" if name in _COMPARING_TESTS else "", function)
        for name, function in original.tests.items()
    }
    environment.globals = {name: value for name, value in original.globals.items() if name not in _LEFT_OUT}
    try:
        return environment.from_string(source)
    except ValueError as error:  # an integer with more digits than Python parses
        raise LimitError(f"the chat template cannot be read: {error}") from error


_COUNTED, _WEIGHED, _JOINED = "counted items", "weighed value", "joined values"  # no template can write these names


class _Checks(NodeTransformer):
    """Transformer that adds checks to a template: around values that are looped over, compared and joined."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        self.generic_visit(node)
        node.iter = _through(_COUNTED, node.iter)
        return node

    def visit_List(self, node: Any) -> Any:
        """Count the content of a new value, so that none refers to itself without end."""
        self.generic_visit(node)
        items = (
            node.items
            if not isinstance(node, nodes.Dict)
            else [n for pair in node.items for n in (pair.key, pair.value)]
        )
        plain = getattr(node, "ctx", "load") != "load" or all(isinstance(item, nodes.Const) for item in items)
        return node if plain else _through(_WEIGHED, node)

    visit_Tuple = visit_Dict = visit_List

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        self.generic_visit(node)
        return _through(_JOINED, nodes.List(node.nodes, lineno=node.lineno))

    def visit_Compare(self, node: nodes.Compare) -> nodes.Compare:
        self.generic_visit(node)
        # Comparing with a number or text constant does not read nested values.
        if any(
            isinstance(expression, nodes.Const) for expression in (node.expr, *(operand.expr for operand in node.ops))
        ):
            return node
        node.expr = _through(_WEIGHED, node.expr)
        for operand in node.ops:
            operand.expr = _through(_WEIGHED, operand.expr)
        return node


def _through(name: str, node: Any) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


class _Bounded(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset(("+", "*", "**", "%"))

    @staticmethod
    def concat(parts: Iterable[str]) -> str:
        """Return the text of a template, block or macro, counting its parts as they arrive."""
        budget, texts, size = _budget.get(), [], 0
        for part in parts:
            texts.append(part)
            size += len(part)
            budget.make(len(part))
            if size > budget.text:
                raise LimitError(f"the chat template makes a text of more than {budget.text:,} characters")
        return "".join(texts)

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree: nodes.Template = _Checks().visit(super()._parse(source, name, filename))
        return tree

    def call_binop(self, context: Any, operator: str, first: Any, second: Any) -> Any:
        _check_operands(operator, first, second)
        return _measured(super().call_binop(context, operator, first, second))

    def call(self, context: Any, function: Any, *args: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        _budget.get().tick()
        method = getattr(function, "__wrapped__", function)  # the sandbox wraps str.format
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str) and method.__name__ == "join" and args:
            args = ([*_counted(args[0])], *args[1:])  # a generator is read, and passed on as a list
        if isinstance(owner, str | bytes):
            _check_method(owner, method.__name__, args, kwargs)
        elif isinstance(owner, int | float):
            _check_numbers(args, kwargs)
        elif getattr(method, "__name__", "") in _COMPARING_METHODS:
            _budget.get().make(_weight((owner if _sized(owner) else (), args)))
        if function is context.environment.globals.get("strftime_now"):
            _check_format(str(args[0]) if args else "")
        return _measured(super().call(context, function, *args, **kwargs))


def _check_operands(operator: str, first: Any, second: Any) -> None:
    budget = _budget.get()
    budget.tick()
    if operator == "%" and isinstance(first, str):
        _check_format(first)
        budget.make(first.count("%") * _weight(second))
    elif operator == "+" and _sized(first) and _sized(second):
        budget.make(len(first) + len(second))
    elif operator == "*":
        for value, times in ((first, second), (second, first)):
            if _sized(value) and isinstance(times, int):
                budget.make(len(value) * max(times, 0))
    if isinstance(first, int) and isinstance(second, int) and operator in ("*", "**"):
        bits = first.bit_length() * (abs(second) if operator == "**" else 1) + second.bit_length()
        if bits > _BITS:
            raise LimitError(f"the chat template makes an integer of more than {_BITS} bits")


def _check_method(text: str | bytes, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    if name not in _TEXT_METHODS or isinstance(text, bytes):
        raise LimitError(f"the chat template calls the method {name} of a text, which is not run here")
    if name in ("format", "format_map"):
        _check_format(text)
        if _NESTED_FIELD.search(text):
            _check_numbers(args, kwargs)
        _budget.get().make(text.count("{") * _weight((args, kwargs)))
    elif name == "join" and args:
        _budget.get().make(_join_size(text, args[0]))
    elif name == "replace":
        _check_replaced(text, *args[:2])


def _check_replaced(text: Any, old: Any = "", new: Any = "") -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str):
        _budget.get().make(len(text) + (len(text) // max(len(old), 1) + 1) * len(new))


def _check_json(value: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, **_: Any) -> None:
    wide = len(indent) if isinstance(indent, str) else indent if isinstance(indent, int) else 0
    if max([wide, *map(len, separators or ())]) > _WIDEST_JSON:
        raise LimitError(f"the chat template writes JSON with indents or separators of more than {_WIDEST_JSON}")
    if wide:
        _budget.get().make(wide * _weight(value, by_depth=True))


def _check_format(text: str) -> None:
    if _LONG_NUMBER.search(text) or _STAR_WIDTH.search(text):
        raise LimitError("the chat template formats with a width of more than 5 digits, or one that is an argument")


def _check_numbers(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    for value in (*args, *kwargs.values()):
        if isinstance(value, int | float) and not -_LARGEST <= value <= _LARGEST:
            raise LimitError(f"the chat template calls a function with a number beyond {_LARGEST:,}")


def _guarded(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a filter or test of Jinja's with its checks; Jinja's attributes of the function are kept."""
    passed = hasattr(function, "jinja_pass_arg")  # its first argument is Jinja's own

    @functools.wraps(function)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        arguments = args[1:] if passed else args
        budget = _budget.get()
        budget.tick()
        if name in _WIDE or name in ("round", "truncate"):
            _check_numbers(arguments[1:], kwargs)
        if name in _DEEP:
            budget.make(_weight(arguments))
        if name == "format":
            _check_format(str(arguments[0]))
            budget.make(str(arguments[0]).count("%") * _weight((arguments[1:], kwargs)))
        elif name == "tojson":
            _check_json(*arguments, **kwargs)
        elif name == "replace":
            _check_replaced(*map(str, arguments[:3]), **kwargs)
        elif name == "join":
            # A generator among the arguments is read here, and passed on as a list.
            arguments = ([*_counted(arguments[0])], *arguments[1:])
            separator = arguments[1] if len(arguments) > 1 else kwargs.get("d", "")
            if kwargs.get("attribute") is None and len(arguments) < 3:
                budget.make(_join_size(str(separator), arguments[0]))
            else:
                budget.make((_weight(arguments[0]) + len(arguments[0])) * (1 + len(str(separator))))
            args = (*args[:1], *arguments) if passed else arguments
        elif name in _WIDE:
            widths = [len(value) if isinstance(value, str) else value for value in (*arguments[1:], *kwargs.values())]
            widest = max([1, *(int(width) for width in widths if isinstance(width, int | float))])
            budget.make(widest * (len(arguments[0]) if _sized(arguments[0]) else 1))
        elif name == "sum" and _sized(arguments[2] if len(arguments) > 2 else kwargs.get("start")):
            raise LimitError("the chat template sums up lists, which is not run here")
        return _measured(function(*args, **kwargs))

    return guarded


def _measured(value: Any) -> Any:
    """Count a new value, and return it."""
    budget = _budget.get()
    if _sized(value):
        budget.make(len(value))
    else:
        budget.tick()
    return value


def _counted(items: Any) -> Iterator[Any]:
    """Yield the items of a loop; count each and check the clock."""
    budget = _budget.get()
    for item in items:
        budget.make(1)
        yield item


def _weighed(value: Any) -> Any:
    """Count a value that will be compared, and return it."""
    if not isinstance(value, str | int | float | None):
        _budget.get().make(_weight(value))
    return value


def _written(value: Any) -> Any:
    """Count a value that will be written, and return it."""
    return value if isinstance(value, str | int | float | None) else _weighed(value)


def _joined_values(values: Sequence[Any]) -> str:
    """Join values as ``~`` does."""
    _budget.get().make(_weight(values))
    return str_join(values)


def _join_size(separator: str, items: Any) -> int:
    if not isinstance(items, Sequence) or isinstance(items, str):
        return _weight(items) * (1 + len(separator))
    return _weight(items) + len(items) * len(separator)


def _sized(value: Any) -> bool:
    return isinstance(value, str | bytes | list | tuple | dict | set | frozenset)


def _weight(value: Any, *, by_depth: bool = False) -> int:
    """Return the estimated size of a value when written: repeated references count again, nested values by depth."""
    budget = _budget.get()
    limit, size, rest, depth = budget.remaining, 0, [value], 0
    while rest:
        inner: list[Any] = []  # next level
        for item in rest:
            size += (len(item) if isinstance(item, str | bytes) else 1) + (depth if by_depth else 0)
            if isinstance(item, Mapping):
                inner += [*item.keys(), *item.values()]
            elif isinstance(item, list | tuple | set | frozenset):
                inner += item
            if size + len(inner) > limit:
                raise LimitError("the chat template makes texts and lists without end")
            if not len(inner) % 1024:
                budget.tick()
        rest, depth = inner, depth + 1
    return size


def _characters(value: Any) -> int:
    """Return the number of characters of all texts in nested mappings and sequences."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, Mapping):
        return sum(map(len, map(str, value))) + sum(map(_characters, value.values()))
    return sum(map(_characters, value)) if isinstance(value, Sequence) else 1
