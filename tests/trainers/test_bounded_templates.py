"""Chat templates that loop, or make texts without end, and those in use: the same text as without bounds."""

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

pytest.importorskip("transformers")

from transformers.utils import chat_template_utils

from textenvs.messages import assistant, user
from trainers import bounded_template
from trainers.bounded_template import TEXT, BoundedTemplates, LimitError
from trainers.chat_template import PROBE_TOOLS, RejectedError, RendererError, show_with
from trainers.models import tiny
from trainers.rollout.renderer import Renderer

MESSAGES = [user("How many?"), assistant("<think>\nHm.\n</think>\n\n12."), user("And more?")]

DOUBLE = "{% set ns = namespace(x=START) %}{% for i in range(60) %}{% set ns.x = STEP %}{% endfor %}"


def doubled(start, step, then="{{ ns.x }}"):
    return DOUBLE.replace("START", start).replace("STEP", step) + then


#: Templates that would take hours, or all memory.
ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "silent loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = a + b %}{% endfor %}{% endfor %}",
    "recursive loop": "{% for a in range(99999) recursive %}{{ loop(range(99999)) }}{% endfor %}",
    "long output": "{% for a in range(99999) %}{{ messages[0].content * 100 }}{% endfor %}",
    "short output": "{% for a in range(99999) %}xxxxxxxxxxxx{% endfor %}",
    "product": "{{ 'a' * 10 ** 9 }}",
    "product of a list": "{{ ([1] * 10 ** 9) | length }}",
    "constant": "{{ 'a' * 9999999999 }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "large integers": doubled("10 ** 100", "ns.x * ns.x"),
    "sum of texts": doubled("'ab'", "ns.x + ns.x"),
    "joined texts": doubled("'ab'", "ns.x ~ ns.x"),
    "sum of lists": doubled("[1]", "ns.x + ns.x", "{{ ns.x | length }}"),
    "nested lists": doubled("[1]", "[ns.x, ns.x]"),
    "nested lists as JSON": doubled("[1]", "[ns.x, ns.x]", "{{ ns.x | tojson }}"),
    "nested lists in a text": doubled("[1]", "[ns.x, ns.x]", "{{ 'a' ~ ns.x }}"),
    "nested lists formatted": doubled("[1]", "[ns.x, ns.x]", "{{ '%s' % [ns.x] }}"),
    "nested lists in format": doubled("[1]", "[ns.x, ns.x]", "{{ '{}'.format(ns.x) }}"),
    "nested lists, string": doubled("[1]", "[ns.x, ns.x]", "{{ ns.x | string | length }}"),
    "nested lists compared": doubled("[1]", "[ns.x, ns.x]", "{% set a = ns.x %}")
    + doubled("[1]", "[ns.x, ns.x]", "{{ a == ns.x }}"),
    "replaced": doubled("'ab'", "ns.x.replace('a', ns.x)"),
    "replaced by a filter": doubled("'ab'", "ns.x | replace('a', ns.x)"),
    "join": "{% set x = 'a' * 1000000 %}{{ ([x] * 1000000) | join }}",
    "join by a method": "{% set x = 'a' * 1000000 %}{{ ''.join([x] * 1000000) }}",
    "separator": "{% set x = 'a' * 1000000 %}{{ range(99999) | join(x) }}",
    "JSON": "{% set x = 'a' * 1000000 %}{{ ([x] * 1000000) | tojson }}",
    "JSON with indents": "{{ ([[[[1] * 99999]]]) | tojson(indent=999999) }}",
    "separators of JSON": "{% set x = 'a' * 100000 %}{{ ([1] * 99999) | tojson(separators=(x, x)) }}",
    "format of one value": "{% set x = 'a' * 100000 %}{{ ('{0}' * 99999).format(x) }}",
    "format by a name": "{% set x = 'a' * 100000 %}{{ ('%(a)s' * 99999) % {'a': x} }}",
    "joined generator": "{% set x = 'a' * 100000 %}{{ ''.join(([x] * 99999) | map('string')) }}",
    "nested tuples as a key": doubled("(1,)", "(ns.x, ns.x)", "{{ {}[ns.x] }}"),
    "nested lists, test": doubled("[1]", "dict(a=ns.x, b=ns.x)", "{% set a = ns.x %}")
    + doubled("[1]", "dict(a=ns.x, b=ns.x)", "{{ a is eq(ns.x) }}"),
    "nested lists, index": doubled("[1]", "dict(a=ns.x, b=ns.x)", "{% set a = ns.x %}")
    + doubled("[1]", "dict(a=ns.x, b=ns.x)", "{{ [a].index(ns.x) }}"),
    "center": "{{ 'a' | center(10 ** 8) }}",
    "constant center": "{{ 'a' | center(999999999) }}",
    "just": "{{ 'a'.ljust(10 ** 9) }}",
    "zeros": "{{ 'a'.zfill(10 ** 9) }}",
    "tabs": "{{ '\\t'.expandtabs(10 ** 9) }}",
    "translate": "{{ ('a' * 1000000).translate({97: 'b' * 1000000}) }}",
    "bytes": "{{ ('a' * 1000000).encode() }}",
    "indent": "{{ ('a\\n' * 100000) | indent(100000) }}",
    "width": "{{ '%999999999d' % 1 }}",
    "width in format": "{{ '{:>999999999}'.format(1) }}",
    "width in an argument": "{{ '{:>{}}'.format(1, 999999999) }}",
    "width by a star": "{{ '%*d' % (999999999, 1) }}",
    "bytes of a number": "{{ (1).to_bytes(10 ** 9) }}",
    "width in a filter": "{{ '%999999999d' | format(1) }}",
    "width of a date": "{{ strftime_now('%999999999d') }}",
    "batch": "{{ [1] | batch(10 ** 9, 'x') | list }}",
    "slices": "{{ [1] | slice(10 ** 9) | list }}",
    "lipsum": "{{ lipsum(10 ** 9) }}",
    "sum": "{{ ([range(9999) | list] * 99999) | sum(start=[]) | length }}",
    "filters in filters": "{% for a in range(99999) %}{% set x = range(99999) | map('string') | list %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "blocks": "{% set x = 'ab' %}" + "{% set x %}{{ x }}{{ x }}{% endset %}" * 60 + "{{ x }}",
    "deep expression": "{{ " + "(" * 50_000 + "1" + ")" * 50_000 + " }}",
    "deep list": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "deep blocks": "{% if 1 %}" * 2000 + "{% endif %}" * 2000,
    "deep recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "long number": "{{ " + "9" * 10_000 + " }}",
    "long template": "{# " + "x" * 2**20 + " #}",
}


@pytest.fixture(scope="module")
def tokenizer():
    return tiny.build_tokenizer(["How many? 12 apples."] * 3, 300)


def bounded(tokenizer, source):
    tokenizer.chat_template = source
    return BoundedTemplates(tokenizer)


def hostile():
    """Every endless template, in this process: prints the names of those that were not refused."""
    bounded_template.SECONDS = 0.03
    tokenizer = tiny.build_tokenizer(["How many? 12 apples."] * 3, 300)
    for name, source in ENDLESS.items():
        tokenizer.chat_template = source
        try:
            output = show_with(tokenizer)(MESSAGES, None)
        except RendererError as error:
            output = str(error)
        if not 0 < len(output) < 1000 or not output.startswith(("the chat template", "'lipsum' is undefined")):
            print(name, output[:200], flush=True)


def test_endless_templates_are_refused_within_memory():
    """In a process of its own, whose memory is bounded: what a template must not have is not there to be taken."""

    def limit():
        resource.setrlimit(resource.RLIMIT_DATA, (2 * 2**30, 2 * 2**30))
        resource.setrlimit(resource.RLIMIT_CPU, (240, 240))

    code = "import sys; sys.path.insert(0, sys.argv[1]); import test_bounded_templates as t; t.hostile()"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(Path(__file__).parent)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        preexec_fn=limit,
        timeout=500,
    )
    assert (ran.stdout, ran.returncode) == ("", 0), ran.stderr[-2000:]


@pytest.mark.parametrize("name", ["silent loops", "long output", "blocks"])
def test_renderer_refuses_whole_template_in_words(tokenizer, name, monkeypatch):
    monkeypatch.setattr(bounded_template, "SECONDS", 0.1)
    plain = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    tokenizer.chat_template = plain + "{% if messages | length > 2 %}" + ENDLESS[name] + "{% endif %}"
    with pytest.raises(RendererError, match="the chat template (takes more|makes)"):
        Renderer(tokenizer)


def test_a_rendering_without_bounds_is_refused():
    tokenizer = tiny.build_tokenizer(["How many? 12 apples."] * 3, 300)

    class Own(type(tokenizer)):
        def apply_chat_template(self, conversation, **options):
            return super().apply_chat_template(conversation, **options)

    class Plain(type(tokenizer)):
        pass

    tokenizer.__class__ = Plain
    Renderer(tokenizer)
    tokenizer.__class__ = Own
    with pytest.raises(RendererError, match=r"Own has an apply_chat_template of its own; use a tokenizer") as caught:
        Renderer(tokenizer)
    assert not isinstance(caught.value, RejectedError)


@pytest.mark.parametrize("change", ["not called", "not there"])
def test_unknown_transformers_is_refused_in_words(tokenizer, monkeypatch, change):
    tokenizer.chat_template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    bounded_template._render.cache_clear()
    if change == "not called":
        monkeypatch.setattr(chat_template_utils, "render_jinja_template", lambda **options: ([""], None))
    else:
        monkeypatch.delattr(chat_template_utils, "_compile_jinja_template")
    with pytest.raises(RendererError, match=r"within bounds .*transformers \d.*; install a version") as caught:
        Renderer(tokenizer)
    assert not isinstance(caught.value, RejectedError)


def test_slow_renderings_have_a_bound_together(tokenizer, monkeypatch):
    monkeypatch.setattr(bounded_template, "SECONDS_SAVED", 0.3)
    monkeypatch.setattr(bounded_template, "SECONDS_EACH", 0.0)
    source = "{% for a in range(9999) %}{% for b in range(8) %}{% endfor %}{% endfor %}{{ messages[0].content }}"
    templates = bounded(tokenizer, source)

    def always():
        while True:
            templates.render(MESSAGES, None, generate=True, kwargs={})

    with pytest.raises(LimitError, match="processor time"):
        always()


def test_bounds_hold_in_threads(tokenizer, monkeypatch):
    monkeypatch.setattr(bounded_template, "SECONDS", 0.1)
    templates = bounded(tokenizer, ENDLESS["silent loops"])
    errors = []

    def render():
        try:
            templates.render(MESSAGES, None, generate=True, kwargs={})
        except LimitError as error:
            errors.append(error)

    threads = [threading.Thread(target=render) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 2


def test_long_conversation_is_no_endless_text(tokenizer):
    source = "{% for m in messages %}{{ m.role ~ ': ' + m.content | trim }}\n{% endfor %}"
    messages = [user("x" * 1000), assistant("y " * 1000)] * 500
    text = bounded(tokenizer, source).render(messages, None, generate=True, kwargs={})
    assert len(text) > 10 * TEXT


PIECES = {
    "loop variables": "{% for m in messages %}{{ loop.index }}/{{ loop.length }}{{ loop.last }}{% endfor %}",
    "loop neighbours": "{% for m in messages %}{{ loop.previtem.role }}{{ loop.nextitem.role }}{% endfor %}",
    "filtered loop": "{% for m in messages if m.role == 'user' %}{{ m.content }}{% else %}none{% endfor %}",
    "empty loop": "{% for m in missing %}x{% else %}none{% endfor %}",
    "recursive loop": "{% for m in [[1, [2]], 3] recursive %}{{ loop(m) if m is iterable else m }}{% endfor %}",
    "break": "{% for m in messages %}{% if loop.index == 2 %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "unpacking": "{% for k, v in messages[0].items() %}{{ k }}={{ v }}{% endfor %}",
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "macro": "{% macro f(x, y=2) %}[{{ x }}{{ y }}{{ caller() if caller }}]{% endmacro %}{{ f(1) }}",
    "call": "{% macro f() %}[{{ caller() }}]{% endmacro %}{% call f() %}x{% endcall %}",
    "joined": "{{ messages | map(attribute='role') | join(', ') }}{{ [1, 2] | join('-') }}",
    "selected": "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}",
    "rejected": "{{ (messages | rejectattr('role', 'in', ['user']) | first).content }}",
    "text methods": "{{ messages[1].content.split('</think>')[-1].lstrip('\\n') }}{{ 'a-b'.replace('-', '') }}",
    "formats": "{{ '%s:%d' % ('a', 3) }}{{ '{:>5}|{}'.format('a', none) }}{{ '%s' | format(true) }}",
    "operators": "{{ 3 * 4 + 2 ** 3 % 5 - 7 // 2 }}{{ 'ab' * 2 ~ 3 ~ none ~ true }}{{ [1] + [2] }}",
    "compared": "{{ 1 < 2 <= 2 != 3 }}{{ messages == messages }}{{ 'a' in ['a'] }}{{ 1 not in [2] }}",
    "namespace": "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}",
    "JSON": "{{ tools | tojson(indent=2) }}{{ messages[0] | tojson }}{{ 'é<' | tojson(ensure_ascii=true) }}",
    "numbers": "{{ 3.7 | round | int }}{{ 7 / 2 }}{{ -5 | abs }}{{ '12' | int + 1 }}",
    "large numbers": "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(10 ** 12) }}{{ '{:,}'.format(12345678) }}"
    "{{ {}.get('a', 10 ** 9) }}{{ missing | default(99999999) }}{{ '%d' % 12345678 }}",
    "sums": "{{ [{'n': 1}, {'n': 2}] | sum('n') }}{{ [1, 2] | sum(start=3) }}",
    "literals": "{% for a, (b, c) in [(messages, (1, 2))] %}{{ c }}{% endfor %}{{ {messages[0].role: [1, (2,)]} }}",
    "lists joined": "{{ ', '.join(messages | map(attribute='role')) }}{{ '%(a)s' % {'a': 1} }}",
    "sorted": "{{ {'b': 1, 'a': 2} | dictsort }}{{ [3, 1] | sort }}{{ [1, 1] | unique | list }}",
    "written": "{{ none }}{{ true }}{{ 1.5 }}{{ {'a': [1]} }}{{ missing }}{{ missing | default('x') }}",
    "indented": "{{ 'a\\nb' | indent(2) }}{{ 'abc' | truncate(2) }}{{ ' x ' | trim | upper }}",
    "dictionaries": "{{ dict(a=1).a }}{{ {'a': {'b': 2}}['a'].get('b', 0) }}{{ range(3) | list }}",
    "raised": "{{ raise_exception('Only alternate.') }}",
    "undefined": "{{ missing.more }}",
    "no filter": "{{ 1 | nothing }}",
}


@pytest.mark.parametrize("source", PIECES.values(), ids=PIECES)
def test_bounds_change_no_text(tokenizer, source):
    templates = bounded(tokenizer, source)

    def outcome(render):
        try:
            return render()
        except Exception as error:
            return type(error).__name__, str(error)

    for tools in (None, PROBE_TOOLS):
        plain = outcome(
            lambda tools=tools: tokenizer.apply_chat_template(
                MESSAGES, tools=tools, tokenize=False, add_generation_prompt=True, extra=1
            )
        )
        assert (
            outcome(lambda tools=tools: templates.render(MESSAGES, tools, generate=True, kwargs={"extra": 1})) == plain
        )


def test_templates_in_use_render_same(tokenizer):
    trl = pytest.importorskip("trl")
    sources = sorted((Path(trl.__file__).parent / "chat_templates").glob("*.jinja"))[::3]
    assert len(sources) > 10
    compared = 0
    for path in sources:
        templates = bounded(tokenizer, path.read_text(encoding="utf-8"))
        for tools in (None, PROBE_TOOLS):
            try:
                plain = tokenizer.apply_chat_template(MESSAGES, tools=tools, tokenize=False, add_generation_prompt=True)
            except Exception:
                continue
            assert templates.render(MESSAGES, tools, generate=True, kwargs={}) == plain
            compared += 1
    assert compared > len(sources)
