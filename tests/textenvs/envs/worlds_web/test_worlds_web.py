"""Worlds as text pages: the same records, ends and rewards as with tools, by links, fields and buttons."""

from __future__ import annotations

import functools
import json
import pickle
import re

import numpy as np
import pytest

import textenvs
from textenvs.audit import Subject
from textenvs.audit.reads import reads
from textenvs.envs.worlds.incidents import Incidents
from textenvs.envs.worlds.tools import FINISH, SIGN_IN
from textenvs.envs.worlds_web.page import Button, Field, Link
from textenvs.messages import text_of
from textenvs.tools.formats import call

NUMBER = re.compile(r"\[(\d+)\]")


def web_env(level="easy", task_index=0, **options):
    env = textenvs.make("textenv/worlds-web", level=level, **options).unwrapped
    env.reset(seed=0, options={"task_index": task_index})
    env.state.incidents = Incidents()
    return env


def use(env, name, **arguments):
    """Play a reply with one call; return its result."""
    conversation = env.step(env.format.write("", [call(name, **arguments)]))[0]
    return next(text_of(message) for message in reversed(conversation) if message["role"] == "tool")


def expert(env):
    """Play the expert to the end; return the return."""
    total = 0.0
    while not env.state.done:
        total += env.step(env.demonstration(np.random.default_rng(0)))[1]
    return total


def people(env):
    return env.state.site.by_entity["personnel.person"]


def a_record(env, place=0):
    return people(env).record(env.story.world.ids("personnel.person")[place])


def action_with_fields(env):
    """Return the label of an action on people that takes values."""
    kind = people(env)
    return next(action.label for action in kind.actions if len(action.tool.parameters["properties"]) > 1)


def button(env, label):
    return env.state.session.page.number(Button, lambda one: one.label == label)


def fields(env, label):
    """Return the numbers of the fields that a button sends: the id, and others."""
    page = env.state.session.page
    return [number for number, _ in page.sent_by(page.element(button(env, label), Button))]


def one_to_mark_away(env):
    """Return the id of a person, and an action that they allow."""
    world, kind = env.story.world, people(env)
    place = world.schema.places[kind.entity.key]["state"]
    numbers = world.ids(kind.entity.key)
    number = next(one for one in numbers if env.state.store.get(kind.entity.key, one)[place] == "active")
    tool = world.skin.tool(kind.entity, kind.entity.verbs["mark_away"])
    return number, next(action for action in kind.actions if action.tool.name == tool)


def with_id(env, label):
    use(env, "fill", field=fields(env, label)[0], value=env.state.session.page.record)


@pytest.mark.parametrize(("level", "episodes"), [("easy", 4), ("medium", 3), ("hard", 1)])
def test_expert_ends_where_the_expert_with_tools_ends(level, episodes):
    pages, tools = (textenvs.make(f"textenv/{name}", level=level).unwrapped for name in ("worlds-web", "worlds"))
    for number in range(episodes):
        for env in (pages, tools):
            env.reset(seed=0, options={"task_index": number})
            assert expert(env) == pytest.approx(1.5)
        assert pages.state.store.changed == tools.state.store.changed
        assert pages.state.final == tools.state.final
        assert pages.state.task == tools.state.task


def test_every_tool_is_on_a_page():
    for number in range(3):
        env = web_env("medium", number)
        site = env.state.site
        assert {*site.tools} - {FINISH, SIGN_IN} == {*site.places}
        addresses = {one.address for _, one in page_at(env, "/").numbered(Link)}
        for action in site.actions.values():
            assert action.address in addresses
            assert {one.tool for _, one in page_at(env, action.address).numbered(Button)} == {action.tool.name}
        for kind in site.kinds.values():
            listed = {one.tool for _, one in page_at(env, kind.address).numbered(Button)}
            addresses = {one.address for _, one in env.state.session.page.numbered(Link)}
            record = kind.record(env.story.world.ids(kind.entity.key)[0])
            on_record = {one.tool for _, one in page_at(env, record).numbered(Button)}
            assert listed == {kind.find.name}
            for action in kind.actions:
                if not action.address:
                    assert action.tool.name in on_record
                    continue
                assert action.address in addresses
                own = page_at(env, action.address).numbered(Button)
                assert {one.tool for _, one in own} == {action.tool.name}


def page_at(env, address):
    use(env, "open", to=address)
    assert env.state.session.page.address == address
    return env.state.session.page


def test_record_page_has_what_the_tool_returns():
    env = web_env("medium")
    for kind in env.state.site.kinds.values():
        number = env.story.world.ids(kind.entity.key)[1]
        fork = env.fork()
        values = kind.get.function(episode_state=fork.state, id=number)
        text = use(env, "open", to=kind.record(number))
        assert env.state.made == fork.state.made
        assert env.state.incidents == fork.state.incidents
        shown = dict(line.split(": ", 1) for line in text.splitlines() if re.match(r"[a-z_ ]+: ", line))
        assert {*shown} == {name.replace("_", " ") for name in values}
        assert all(str(value) in shown[name.replace("_", " ")] for name, value in values.items())
        targets = {one.address.rpartition("/")[2] for _, one in env.state.session.page.numbered(Link)}
        assert {values[name] for name in kind.targets} <= targets


def test_numbers_are_of_one_page_view():
    env = web_env()
    shown = set()
    opening = text_of(env.state.messages[0])
    shown |= {int(number) for number in NUMBER.findall(opening)}
    first = env.state.session.page.first
    for address in ("/", a_record(env), people(env).address, a_record(env)):
        numbers = {int(number) for number in NUMBER.findall(use(env, "open", to=address))}
        assert numbers == {*range(env.state.session.page.first, env.state.session.page.end)}
        assert not numbers & shown
        shown |= numbers
    page = env.state.session.page
    answer = use(env, "open", to=first)
    assert "on a page that you have left" in answer
    assert f"[{page.first}] to [{page.end - 1}]" in answer
    assert "is nowhere" in use(env, "press", button=page.end)
    assert env.state.session.page == page
    assert env.state.tool_errors == 2


def test_number_of_another_kind_is_refused():
    env = web_env()
    use(env, "open", to=people(env).address)
    page = env.state.session.page
    link, field, search = (page.numbered(kind)[0][0] for kind in (Link, Field, Button))
    assert "not a field" in use(env, "fill", field=link, value="x")
    assert "not a button" in use(env, "press", button=field)
    assert "not a link" in use(env, "open", to=search)
    assert "named by its number" in use(env, "press", button="Search")
    assert "at most 4,000 characters" in use(env, "fill", field=field, value="x" * 4001)
    assert use(env, "fill", field=f"[{field}]", value="x").endswith('= "x"')


def test_wrong_entries_are_shown_and_kept():
    env = web_env()
    use(env, "open", to=a_record(env))
    label, calls, page = action_with_fields(env), env.state.incidents.calls, env.state.session.page
    numbers = fields(env, label)
    answer = use(env, "press", button=button(env, label))
    assert answer.count("(error: it must be filled)") == len(numbers)
    assert env.state.incidents.calls == calls  # nothing was called
    for number in numbers:
        use(env, "fill", field=number, value="S0")
    answer = use(env, "press", button=button(env, label))
    assert answer.count('= "S0"') == len(numbers)
    assert env.state.session.page is page
    assert env.state.tool_errors == 2
    assert not env.state.store.changed


def test_refusal_of_an_application_keeps_the_form():
    env = web_env()
    world = env.story.world
    kind, action = next(
        (kind, action)
        for kind in env.state.site.kinds.values()
        for action in kind.actions
        if [part["title"][-2:] for name, part in action.tool.parameters["properties"].items() if name != "id"] == ["id"]
    )
    use(env, "open", to=kind.record(world.ids(kind.entity.key)[0]))
    number, field = fields(env, action.label)
    use(env, "fill", field=number, value=env.state.session.page.record)
    use(env, "fill", field=field, value="X0000")
    answer = use(env, "press", button=button(env, action.label))
    assert answer.startswith("There is no ")
    assert "with id 'X0000'." in answer
    assert not any(tool in answer for tool in env.state.site.tools if "_" in tool)  # no advice about tools
    assert f"[{field}] field" in answer
    assert '= "X0000"' in answer


def test_changed_record_is_shown():
    env = web_env()
    world, kind = env.story.world, people(env)
    number, action = one_to_mark_away(env)
    use(env, "open", to=kind.record(number))
    with_id(env, action.label)
    answer = use(env, "press", button=button(env, action.label))
    assert answer.startswith(f"Done: {action.label}.\nPage {kind.record(number)}\n")
    away = world.skin.written(kind.entity, kind.entity.fields["state"], "away")
    assert f"{world.skin.fields[kind.entity.key, 'state'].replace('_', ' ')}: {away}\n" in answer
    with_id(env, action.label)
    assert use(env, "press", button=button(env, action.label)).startswith("Not done: ")


def test_id_says_what_is_changed_whatever_the_page():
    """Equal replies change the same in all twins, to whatever record a link has led."""
    env = web_env()
    kind = people(env)
    other, action = one_to_mark_away(env)
    ends = []
    for page in (*env.story.world.ids(kind.entity.key)[:2], other):
        fork = env.fork()
        use(fork, "open", to=kind.record(page))
        use(fork, "fill", field=fields(fork, action.label)[0], value=other)
        use(fork, "press", button=button(fork, action.label))
        ends.append(fork.state.store.changed)
    assert ends[0]
    assert ends[0] == ends[1] == ends[2]


@pytest.mark.parametrize("page_size", [1, 5])
def test_pages_of_a_list_have_all_records_once(page_size):
    env = web_env(page_size=page_size, max_assistant_turns=None)
    kind, numbers = people(env), []
    use(env, "open", to=kind.address)
    while True:
        links = env.state.session.page.numbered(Link)
        numbers += [one.address.rpartition("/")[2] for _, one in links if one.address.startswith(f"{kind.address}/")]
        following = [number for number, one in links if one.label == "next page"]
        if not following:
            break
        use(env, "open", to=following[0])
    assert numbers == [*env.story.world.ids(kind.entity.key)]


def test_search_keeps_its_fields_and_clears_them():
    env = web_env()
    kind = people(env)
    name = env.story.world.label(kind.entity.key, env.story.world.ids(kind.entity.key)[3])
    use(env, "open", to=kind.address)
    label = next(number for number, one in env.state.session.page.numbered(Field) if one.hint == "text")
    use(env, "fill", field=label, value=name)
    answer = use(env, "press", button=button(env, "Search"))
    assert f'= "{name}"' in answer
    assert f"{name} ({env.story.world.ids(kind.entity.key)[3]})" in answer
    filtered = env.state.session.page
    assert use(env, "open", to=filtered.address).partition("\n")[0] == answer.partition("\n")[0]
    label = next(number for number, one in env.state.session.page.numbered(Field) if one.hint == "text")
    use(env, "fill", field=label, value="")
    assert f"{len(env.story.world.ids(kind.entity.key))} found" in use(env, "press", button=button(env, "Search"))
    assert env.state.session.page.address == kind.address


def test_back_goes_through_the_pages_before():
    env = web_env()
    assert "no page before" in use(env, "back")
    addresses = ["/", people(env).address, a_record(env), a_record(env, 1)]
    for address in (*addresses[1:], addresses[-1]):  # a page that is loaded again is no other one
        use(env, "open", to=address)
    for address in addresses[-2::-1]:
        assert f"Page {address}\n" in use(env, "back")
    assert "no page before" in use(env, "back")


@pytest.mark.parametrize(
    ("address", "problem"),
    [
        ("/nowhere", "the applications are "),
        ("{application}/nowhere", "has {application}/"),
        ("{kind}/X0000", "with id 'X0000'; {kind} finds records"),
        ("{kind}/X0000/more", "there is no page"),
        ("{kind}?nothing=1", "has no field 'nothing'"),
        ("{kind}?page=x", "it must be an integer"),
    ],
)
def test_address_of_no_page_is_refused(address, problem):
    env = web_env()
    kind = people(env).address
    names = {"kind": kind, "application": f"/{kind.split('/')[1]}"}
    page = env.state.session.page
    assert problem.format(**names) in use(env, "open", to=address.format(**names))
    assert env.state.session.page == page


def test_failing_pages_can_be_overcome():
    env = web_env()
    env.state.incidents = Incidents(((1, "busy"), (2, "expired")))
    address = a_record(env)
    assert "the service is busy" in use(env, "open", to=address)
    page = env.state.session.page
    assert not page.loaded
    assert "has expired" in use(env, "open", to=page.number(Link, lambda one: one.label == "try again"))
    assert env.state.tool_errors == 2
    sign_in = env.state.session.page.number(Button, lambda one: one.tool == SIGN_IN)
    assert "id: " in use(env, "press", button=sign_in)
    assert env.state.session.page.address == address


def test_expired_session_keeps_the_form():
    env = web_env()
    use(env, "open", to=a_record(env))
    label = action_with_fields(env)
    for number in (numbers := fields(env, label)):
        use(env, "fill", field=number, value="7")
    with_id(env, label)
    env.state.incidents = Incidents(((1, "expired"),))
    pressed = button(env, label)
    answer = use(env, "press", button=pressed)
    assert "has expired" in answer
    assert answer.count('= "7"') == len(numbers) - 1
    sign_in = env.state.session.page.number(Button, lambda one: one.tool == SIGN_IN)
    assert use(env, "press", button=sign_in).count('= "7"') == len(numbers) - 1
    assert "has expired" not in use(env, "press", button=pressed)


def test_forks_and_pickles_have_pages_of_their_own():
    env = web_env()
    use(env, "open", to=a_record(env))
    number = env.state.session.page.numbered(Field)[0][0]
    fork = env.fork()
    use(fork, "fill", field=number, value="1")
    moved = pickle.loads(pickle.dumps(fork))
    use(fork, "open", to="/")
    assert env.state.session.filled == {}
    assert moved.state.session.filled == {number: "1"}
    assert fork.state.session.page.address == "/"
    assert use(moved, "fill", field=number, value="2") == use(env, "fill", field=number, value="2")


def test_nothing_is_opened_after_the_end():
    env = web_env()
    calls = [call(FINISH), call("open", to="/")]
    env.step(env.format.write("", calls))
    assert env.state.done
    assert env.state.tool_errors == 1


@pytest.mark.parametrize("call_format", ["native", "qwen3-coder", "llama3", "react"])
def test_expert_plays_in_every_format(call_format):
    env = web_env(call_format=call_format)
    if call_format == "native":
        assert [schema["function"]["name"] for schema in env.tools_not_in_prompt] == [
            "open", "fill", "press", "back", "finish",
        ]  # fmt: skip
    assert expert(env) == pytest.approx(1.5)


def test_expert_plays_one_call_a_reply():
    env = web_env(max_calls_per_turn=1, task_index=6)
    assert expert(env) == pytest.approx(1.5)


def test_short_prompt_has_rules_page_and_names():
    full, short = (text_of(web_env(prompt=prompt).state.messages[0]) for prompt in ("full", "short"))
    assert len(short) < len(full) / 2
    assert "Page /\n[1] link " in short
    assert "fill(field, value)" in short


def test_rows_of_worlds_are_tasks():
    task = textenvs.make("textenv/worlds").unwrapped.tasks[5]
    env = web_env()
    env.reset(seed=0, options={"task": json.loads(json.dumps(task.to_row()))})
    assert expert(env) == pytest.approx(1.5)


@pytest.mark.parametrize("page_size", [0, 101, "many"])
def test_page_size_out_of_range_is_refused(page_size):
    with pytest.raises((ValueError, TypeError), match="page_size"):
        web_env(page_size=page_size)


def test_reads_are_proven():
    verdict = reads(Subject(functools.partial(textenvs.make, "textenv/worlds-web", level="easy"), episodes=3))
    assert verdict.status == "pass", verdict
    assert "0.143" in verdict.cause
