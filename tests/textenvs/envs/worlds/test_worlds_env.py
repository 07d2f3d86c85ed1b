"""Episodes in generated worlds: what is paid, what is refused, what the user says, what happens meanwhile."""

from __future__ import annotations

import functools
import json
from dataclasses import replace

import numpy as np
import pytest

import textenvs
from textenvs.audit import Subject
from textenvs.audit.reads import reads
from textenvs.envs.worlds.goals import (
    Do,
    End,
    Follow,
    Literal,
    Named,
    Read,
    Tell,
    When,
    evaluate,
    mistaken,
)
from textenvs.envs.worlds.house import rules_in_words
from textenvs.envs.worlds.incidents import Incidents
from textenvs.envs.worlds.patterns import is_drawn, pattern_of
from textenvs.envs.worlds.story import Story, to_json
from textenvs.envs.worlds.tasks import WorldTasks, story_of, story_of_task, task_of, twin_tasks
from textenvs.envs.worlds.user import PATIENCE
from textenvs.envs.worlds.view import View
from textenvs.envs.worlds.wording import _PHRASES, phrases
from textenvs.envs.worlds.world import draw_world
from textenvs.messages import text_of
from textenvs.task import SPLITS, TaskError
from textenvs.tools.formats import Hermes, call

LEVELS = ("easy", "medium", "hard")
WRITE = Hermes().write


def world_env(level="easy", **options):
    return textenvs.make("textenv/worlds", level=level, **options).unwrapped


def expert(env, until=lambda env: False):
    """Play the expert, at most until a condition holds; return the infos of all steps."""
    infos = []
    while not env.state.done and not until(env):
        infos.append(env.step(env.demonstration(np.random.default_rng(0)))[4])
    return infos


def begin(env, key):
    env.reset(seed=0, options={"task": task_of(key)})


@functools.cache
def key_where(level, fits):
    """Return the key of the first training task of a level that fits."""
    keys = (f"{level}/train/0/{number}/0" for number in range(300))
    return next(key for key in keys if fits(story_of(key)))


def one_event(matters):
    """Return what fits stories with one change by others, which matters or does not."""
    return lambda story: len(story.ends) == 2 and (story.ends[0] != story.ends[1]) == matters


def with_one_change(story):
    return len(story.ends[0].changed) == 1 and story.ends[0] == End(story.ends[0].changed)


@pytest.mark.parametrize("level", LEVELS)
def test_expert_solves_and_progress_is_the_share(level):
    env = world_env(level)
    for number in range(4 if level == "hard" else 12):
        begin(env, f"{level}/test/3/{number}/0")
        infos = expert(env)
        assert infos[-1]["stop"] == "solved"
        assert sum(info["terms"]["progress"] for info in infos) == pytest.approx(0.5)
        assert sum(info["terms"]["success"] for info in infos) == 1


def test_anything_else_that_changes_is_counted_against():
    env = world_env()
    begin(env, key_where("easy", with_one_change))
    ready = "finish"
    expert(env, lambda env: ready in str(env.demonstration(np.random.default_rng(0))))
    fork = env.fork()
    assert expert(fork)[-1]["stop"] == "solved"
    story, ((cell, _),) = env.story, env.story.ends[0].changed
    entity = story.world.schema.entities["personnel.person"]
    act = next(verb for verb in entity.verbs.values() if verb.kind == "act")
    state = next(iter(act.needs))
    other = next(
        number
        for number in story.world.ids(entity.key)
        if (number != cell[1])
        and env.state.store.get(entity.key, number)[story.world.schema.places[entity.key][state]] == act.needs[state]
    )
    _, reward, *_, info = env.step(WRITE("", [call(story.world.skin.tool(entity, act), id=other)]))
    assert info["metrics"]["wrong"] == 1
    assert reward == pytest.approx(-0.5)  # one right, one wrong, of one
    assert expert(env)[-1]["stop"] == "unsolved"


def test_undone_change_costs_nothing():
    """The differences count, not the way: whoever takes a change back has not made it."""
    env = world_env()
    begin(env, key_where("easy", with_one_change))
    story = env.story
    entity = story.world.schema.entities["personnel.person"]
    away, back = entity.verbs["mark_away"], entity.verbs["mark_back"]
    place = story.world.schema.places[entity.key]["state"]
    number = next(one for one in story.world.ids(entity.key) if story.store.get(entity.key, one)[place] == "active")
    total = 0.0
    for verb in (away, back):
        total += env.step(WRITE("", [call(story.world.skin.tool(entity, verb), id=number)]))[1]
    assert total == 0
    assert expert(env)[-1]["stop"] == "solved"


def test_nothing_to_do_is_paid_at_end():
    env = world_env()
    task = replace(task_of("easy/train/0/0/0"), ground_truth=to_json((End(),)))
    env.reset(seed=0, options={"task": task})
    assert env.step("Hello.")[1] == 0
    assert env.step(WRITE("", [call("finish")]))[1] == pytest.approx(1.5)
    assert env.state.stop == "solved"


def test_forks_do_not_share_changes():
    env = world_env()
    begin(env, key_where("easy", with_one_change))
    fork = env.fork()
    assert expert(fork)[-1]["stop"] == "solved"
    assert not env.state.store.changed
    assert expert(env)[-1]["stop"] == "solved"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"id": "X"}, "there is no"),
        ({}, "needs id"),
        ({"id": "X", "colour": 1}, "has no argument 'colour'"),
    ],
)
def test_wrong_calls_are_answered_in_words(arguments, problem):
    env = world_env()
    begin(env, "easy/train/0/0/0")
    entity = env.story.world.schema.entities["personnel.person"]
    observation, *_, info = env.step(WRITE("", [call(env.story.world.skin.tool(entity, "get"), **arguments)]))
    assert problem in text_of(observation[-1])
    assert info["metrics"]["tool_errors"] == 1


def test_filter_called_state_is_used():
    """The episode's state is an argument of every tool, and a world may have a field of that name."""
    env, seen = world_env(), 0
    for number in range(20):
        begin(env, f"easy/train/0/{number}/0")
        world = env.story.world
        for entity in world.schema.entities.values():
            for name, one in entity.fields.items():
                if one.kind != "choice" or world.skin.fields[entity.key, name] != "state":
                    continue
                counts = []
                for value in one.values:
                    arguments = {"state": world.skin.written(entity, one, value)}
                    observation, *_ = env.step(WRITE("", [call(world.skin.tool(entity, "find"), **arguments)]))
                    counts.append(json.loads(text_of(observation[-1]))["found"])
                assert sum(counts) == len(world.ids(entity.key))
                seen += 1
    assert seen


def test_details_are_told_when_asked_for():
    env = world_env("medium")
    begin(env, key_where("medium", lambda story: story.details))
    detail = env.story.details[0]
    told = detail.says[-1]
    assert told not in str(env.state.messages)
    observation, *_, info = env.step("Please tell me more.")
    assert told not in str(observation)
    observation, *_ = env.step(f"Which {detail.word} is it?")
    assert told in text_of(observation[-1])
    for _ in range(PATIENCE - 1):
        *_, info = env.step("Anything else?")
    assert info["stop"] == "user_left"


def test_wrong_detail_is_corrected():
    env = world_env("hard")
    begin(env, key_where("hard", lambda story: any(len(detail.says) > 1 for detail in story.details)))
    detail = next(detail for detail in env.story.details if len(detail.says) > 1)
    texts = [text_of(env.step(f"Which {detail.word}?")[0][-1]) for _ in range(3)]
    assert texts[:2] == [*detail.says]
    assert texts[2] != texts[1]
    assert detail.value in texts[2]


def test_event_changes_what_is_right():
    env = world_env("hard")
    key = key_where("hard", one_event(matters=True))
    begin(env, key)
    (event,) = env.story.events
    expert(env, lambda env: env.state.happened)
    assert event.notice in text_of(env.state.messages[-1])
    assert expert(env)[-1]["stop"] == "solved"
    begin(env, key)  # whoever goes by the value of before fails
    blind = env.fork()
    blind.state.story = replace(env.story, events=())
    replies = []
    while not blind.state.done:
        replies.append(blind.demonstration(np.random.default_rng(0)))
        blind.step(replies[-1])
    assert blind.state.stop == "solved"
    for reply in replies:
        if not env.state.done:
            env.step(reply)
    assert env.state.stop != "solved"


def test_change_of_another_record_does_not_matter():
    env = world_env("hard")
    begin(env, key_where("hard", one_event(matters=False)))
    expert(env, lambda env: env.state.happened)
    assert env.state.happened
    assert expert(env)[-1]["stop"] == "solved"


def test_nothing_changes_after_own_changes():
    """A change that was right stays right: it may be a new record, which nothing takes back."""
    env = world_env("hard")
    key = key_where("hard", lambda story: one_event(matters=True)(story) and story.ends[0].changed)
    begin(env, key)
    (event,) = env.story.events
    env.state.story = replace(env.story, events=(replace(event, after=1000),))
    expert(env, lambda env: env.state.store.changed)
    env.state.story = replace(env.story, events=(event,))
    assert expert(env)[-1]["stop"] == "solved"
    assert env.state.happened == 0


def test_other_changes_do_not_keep_events_away():
    env = world_env("hard")
    begin(env, key_where("hard", one_event(matters=True)))
    story = env.story
    concerned = {cell[1] for end in story.ends for cell, _ in end.changed}
    entity = story.world.schema.entities["personnel.person"]
    place = story.world.schema.places[entity.key]["state"]
    number = next(
        one
        for one in story.world.ids(entity.key)
        if one not in concerned and story.store.get(entity.key, one)[place] == "active"
    )
    away, back = (story.world.skin.tool(entity, entity.verbs[name]) for name in ("mark_away", "mark_back"))
    env.state.incidents = Incidents()
    env.step(WRITE("", [call(away, id=number)]))
    assert env.state.store.changed
    expert(env, lambda env: env.state.happened)
    assert env.state.happened
    env.step(WRITE("", [call(back, id=number)]))
    assert expert(env)[-1]["stop"] == "solved"


def test_condition_is_the_last_part_of_a_goal():
    for number in range(6):
        *parts, _ = story_of(f"hard/test/7/{number}/0").goal
        assert not any(isinstance(part, When) for part in parts)


def test_twin_without_question_is_played():
    """Its truth has an answer, which nobody was asked for: no reply is that."""
    env = world_env("easy")
    task = task_of(key_where("easy", lambda story: story.question is None and not story.ends[0].refused))
    env.reset(options={"task": env.twin(task)})
    assert env.step(WRITE("", [call("finish", answer=-1)]))[4]["stop"] == "unsolved"


def test_record_that_was_left_out_may_be_named():
    env = world_env("medium")
    begin(env, key_where("medium", lambda story: story.ends[0].left_out))
    (number, *_) = env.story.ends[0].left_out
    expert(env, lambda env: "finish" in str(env.demonstration(np.random.default_rng(0))))
    for refused, stop in ((number, "solved"), (f"{number}, P0001", "unsolved"), (number.lower(), "solved")):
        fork = env.fork()
        answer = env.story.ends[0].answer
        arguments = {} if answer is None else {"answer": env.story.written(answer)}
        assert fork.step(WRITE("", [call("finish", refused=refused, **arguments)]))[4]["stop"] == stop


def test_report_counts_as_a_whole():
    """A row too many or too few, another value, another person: what was sent is wrong, and is not taken back."""
    env = world_env("medium")
    begin(env, key_where("medium", lambda story: story.forms == ("report",) and not story.events))
    expert(env, lambda env: "send_report" in str(env.demonstration(np.random.default_rng(0))))
    (reply,) = Hermes().parse(env.demonstration(np.random.default_rng(0))).calls
    sent = json.loads(reply["function"]["arguments"])
    rows, others = sent["rows"], env.story.world.ids("personnel.person")
    name = next(name for name in rows[0] if name != "id")
    other = next(one for one in others if one != sent["to"])
    wrong = [
        {"rows": rows[1:]},
        {"rows": [*rows, rows[0]]},
        {"rows": [*rows[1:], rows[1]]},
        {"rows": [{**rows[0], name: "another"}, *rows[1:]]},
        {"rows": [{**rows[0], "everything": "more"}, *rows[1:]]},
        {"rows": [{key: value for key, value in rows[0].items() if key != name}, *rows[1:]]},
        {"to": other},
        {"total": 7},
    ]
    right = [{}, {"rows": rows[::-1]}, {"rows": [dict(reversed(row.items())) for row in rows]}]
    for changes, stop in [*((one, "unsolved") for one in wrong), *((one, "solved") for one in right)]:
        fork = env.fork()
        fork.step(WRITE("", [call("send_report", **{**sent, **changes})]))
        if stop == "unsolved":
            fork.step(WRITE("", [call("send_report", **sent)]))
        assert fork.step(WRITE("", [call("finish")]))[4]["stop"] == stop, changes


@pytest.mark.parametrize("arguments", [{"rows": []}, {"rows": [["P1"]]}, {"rows": [{"id": [1]}]}, {"to": "nobody"}])
def test_broken_reports_are_refused(arguments):
    env = world_env()
    begin(env, "easy/train/0/0/0")
    to = env.story.world.ids("personnel.person")[0]
    reply = WRITE("", [call("send_report", **{"to": to, "rows": [{"id": "P1"}], **arguments})])
    assert env.step(reply)[4]["metrics"]["wrong"] == 0
    assert not env.state.reports


@pytest.mark.parametrize("level", ["easy", "medium"])
def test_what_is_excluded_decides(level):
    """Most requests name something to exclude it, and whoever takes that ends elsewhere."""
    excluding, count = 0, 20
    for number in range(count):
        story = story_of(f"{level}/test/9/{number}/0")
        variants = [] if any(isinstance(step, When) for step in story.goal) else [*mistaken(story.goal)]
        excluding += bool(variants)
        for variant in variants:
            assert (
                evaluate(variant, View(story.world.schema, story.store), story.world.rules, story.user)
                != (story.ends[0])
            )
    assert excluding >= count / 2


@pytest.mark.parametrize(
    ("kind", "right"),
    [
        ("money", ["{}", "{:,}", "{} euros", "€{:,}", "{}.0", "**{}**"]),
        ("day", ["{}", '"{}"', "{}."]),
        ("ref", ["{}", "'{}'", "  {}  "]),
    ],
)
def test_answer_counts_however_it_is_written(kind, right):
    world = draw_world("easy", "answers", ("calendar", "shop"))
    entity, name = next(
        (entity, one.name)
        for entity in world.schema.entities.values()
        for one in entity.fields.values()
        if one.kind == kind
    )
    of = Named(entity.key, world.label(entity.key, world.ids(entity.key)[0]))
    goal = (Tell(Read(of, name)),)
    end = evaluate(goal, View(world.schema, world.store), (), world.ids("personnel.person")[0])
    story, answer = Story(world, ("tell",), goal, "", "", (end,)), end.answer
    for form in right:
        assert story.is_answer(form.format(story.written(answer)), answer), form
    for wrong in ("", "1e999", "nan", True, f"{story.written(answer)} or 7", [story.written(answer)]):
        assert not story.is_answer(wrong, answer), wrong
    if kind == "day":
        assert not story.is_answer(answer, answer)


def test_failing_calls_can_be_overcome():
    incidents = Incidents(((2, "busy"), (3, "expired")))
    incidents, problem = incidents.called("bank")
    assert problem is None
    incidents, problem = incidents.called("bank")
    assert problem == "busy"
    incidents, problem = incidents.called("bank")
    assert problem == "expired"
    assert incidents.called("bank")[1] == "expired"
    assert incidents.called("mail")[1] is None
    assert incidents.signed_in("bank").called("bank")[1] is None


@pytest.mark.parametrize(
    ("level", "episodes"), [("easy", 3), ("medium", 2), pytest.param("hard", 1, marks=pytest.mark.slow)]
)
def test_reads_are_proven(level, episodes):
    verdict = reads(Subject(functools.partial(textenvs.make, "textenv/worlds", level=level), episodes=episodes))
    assert verdict.status == "pass", verdict
    assert "0.143" in verdict.cause


def test_fixed_replies_solve_one_twin():
    """Any fixed replies solve one of the twins of a fact at most, whatever they are: here, those of every twin."""
    env = world_env()
    (_, tasks), *_ = twin_tasks(task_of("easy/train/0/1/0"))
    assert len(tasks) == 7
    scripts = []
    for task in tasks:
        env.reset(seed=0, options={"task": task})
        replies = []
        while not env.state.done:
            replies.append(env.demonstration(np.random.default_rng(0)))
            env.step(replies[-1])
        scripts.append(replies)
    for replies in scripts:
        solved = 0
        for task in tasks:
            env.reset(seed=0, options={"task": task})
            for reply in replies:
                if not env.state.done:
                    env.step(reply)
            solved += env.state.stop == "solved"
        assert solved == 1


def test_splits_share_no_world_and_no_wording():
    for name in _PHRASES:
        train, test = (set(phrases(name, split)) for split in SPLITS)
        assert not train & test
    keys = {split: WorldTasks(split=split)[3].key for split in SPLITS}
    assert story_of(keys["train"]).world.store.tables is not story_of(keys["test"]).world.store.tables


def test_tasks_of_few_worlds_share_them():
    tasks = WorldTasks(worlds=2)
    worlds = [story_of_task(tasks[number]).world.name for number in range(6)]
    assert len({*worlds}) == 2
    assert worlds[0] == worlds[2]
    assert len({tasks[number].key for number in range(6)}) == 6


def test_worlds_are_of_the_applications_that_are_named():
    tasks = WorldTasks("medium", applications=["bank", "shop"])
    assert {*story_of_task(tasks[0]).world.schema.applications} == {"personnel", "bank", "shop"}


@pytest.mark.parametrize("application", ["mail", "files", "bank", "chat"])
def test_single_application_has_labels_left(application):
    """At the largest level one application gets all records; new ones and wrong details need labels that are free."""
    story = story_of_task(WorldTasks("hard", applications=[application])[0])
    for key, entity in story.world.schema.entities.items():
        assert story.world.free_label(entity, np.random.default_rng(0)) not in story.world.labels(key)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"worlds": 0}, "worlds"),
        ({"applications": {"mail": 1}}, "applications"),
        ({"applications": ["nothing"]}, "'nothing' is not one of"),
        ({"applications": ["personnel"]}, "name at least one other"),
        ({"call_format": "native"}, "tools of its own"),
    ],
)
def test_wrong_options_are_refused(options, problem):
    with pytest.raises(ValueError, match=problem):
        world_env(**options)


def test_row_of_another_kind_is_refused():
    env = world_env()
    task = task_of("easy/train/0/0/0")
    for wrong in (
        {"extra": {"story": "easy/train"}},
        {"ground_truth": "7"},
        {"extra": {**task.extra, "given": [["a", "b", "c", 1]]}},
        {"extra": {"story": "easy/train/0/nope/0/0"}},
        {"ground_truth": task.ground_truth.replace('"changed": [', '"changed": [["no.such", "X1", "name", 1], ', 1)},
    ):
        with pytest.raises(TaskError, match="none of generated worlds"):
            env.reset(seed=0, options={"task": replace(task, **wrong)})
    with pytest.raises(TaskError, match="not the one that this version draws"):
        env.reset(seed=0, options={"task": replace(task, prompt=task_of("easy/train/0/1/0").prompt)})


@pytest.mark.parametrize("kinds", [2, 3])
def test_record_kinds_are_few_and_linked(kinds):
    tasks = WorldTasks(record_kinds=kinds)
    for number in range(20):
        schema = story_of(tasks[number].key).world.schema
        assert len(schema.entities) == kinds
        assert {entity.application for entity in schema.entities.values()} == {*schema.applications} > {"personnel"}
        links = {(key, one.to) for key, entity in schema.entities.items() for one in entity.fields.values() if one.to}
        reached = {"personnel.person"}
        for _ in range(kinds):
            reached |= {end for link in links if reached & {*link} for end in link}
        assert reached == {*schema.entities}


def test_goal_patterns_are_apart_in_equal_worlds():
    parts = {goals: WorldTasks(worlds=2, record_kinds=3, goals=goals) for goals in ("train", "test")}
    stories = {goals: [story_of(tasks[number].key) for number in range(12)] for goals, tasks in parts.items()}
    patterns = {goals: {pattern_of(story.goal) for story in part} for goals, part in stories.items()}
    assert not patterns["train"] & patterns["test"]
    names = {goals: {story.world.name for story in part} for goals, part in stories.items()}
    assert names["train"] == names["test"]
    assert len(names["train"]) == 2


def test_pattern_has_no_names_and_values():
    one, other, third = (
        (Do(Follow(Named("calendar.meeting", label), field, "personnel.person"), "move", (("desk", Literal(desk)),)),)
        for label, field, desk in (("a", "host", 1), ("b", "host", 2), ("a", "guest", 1))
    )
    assert pattern_of(one) == pattern_of(other) != pattern_of(third)
    assert is_drawn(one, "train") != is_drawn(one, "test")


def test_short_prompt_has_rules_and_tools_alone():
    openings = {}
    for prompt in ("full", "short"):
        env = world_env(record_kinds=2, prompt=prompt)
        conversation, _ = env.reset(seed=0, options={"task_index": 3})
        openings[prompt] = text_of(conversation[0]), conversation[1:]
        assert expert(env)[-1]["stop"] == "solved"
        world, tools = env.story.world, env.toolbox.tools
    (full, request), (short, same_request) = openings.values()
    assert request == same_request
    assert len(short) < len(full) / 3
    assert all(rule in short for rule in rules_in_words(world, "train"))
    assert all(f"\n{tool.name}({', '.join(tool.parameters['properties'])})" in short for tool in tools)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"record_kinds": 1}, "record_kinds must be None or an integer of at least 2, not 1"),
        ({"tasks": WorldTasks(), "goals": "train"}, "give either tasks, or worlds"),
    ],
)
def test_options_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        world_env(**options)


@pytest.mark.parametrize("key", ["easy/train/0/goals=some/0/0", "easy/train/0/kinds=x/0/0", "easy/train/0/a/b/0/0"])
def test_keys_with_unknown_options_are_refused(key):
    with pytest.raises(TaskError, match="it is none of generated worlds"):
        story_of_task(replace(task_of("easy/train/0/0/0"), extra={"story": key}))


def test_expert_answers_with_an_id_it_read():
    key = key_where("easy", lambda story: story.question is not None and story.question[1].kind == "ref")
    env = world_env()
    begin(env, key)
    expert(env)
    answer = env.story.ends[0].answer
    assert env.state.final == (answer, frozenset())
    assert any(answer in text_of(message) for message in env.state.messages if message["role"] == "tool")
