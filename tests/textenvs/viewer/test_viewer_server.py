"""`textenvs view --serve`: access control, live runs, and continued episodes."""

import gzip
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from urllib.parse import quote

import numpy as np
import pytest
import synthetic
from fake_service import FakeService

from textenvs import Task, TextEnv, Turn
from textenvs.cli import main
from textenvs.cli.common import open_environment
from textenvs.evaluate.policies import FunctionPolicy
from textenvs.messages import assistant, image_part, text_part, user
from textenvs.records import open_run
from textenvs.viewer import Document
from textenvs.viewer.branches import Branch, BranchError, replies_of
from textenvs.viewer.document import branch_files
from textenvs.viewer.server import ViewServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return synthetic.write_run(tmp_path_factory.mktemp("served") / "run", 1, 2, 3)


@contextmanager
def served(folder, model=None, **options):
    server = ViewServer(Document([folder]), open_environment, model, **options)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def request(server, path, body=None, **headers):
    """Return the status and the value; with the token, unless ``Authorization`` is given."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
    headers = {"Authorization": f"Bearer {server.token}"} | {
        name.replace("_", "-"): text for name, text in headers.items()
    }
    connection.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
    answer = connection.getresponse()
    content = answer.read()
    connection.close()
    if content and answer.headers.get("Content-Encoding") == "gzip":
        content = gzip.decompress(content)
    return answer.status, json.loads(content) if content.startswith(b"{") or content.startswith(
        b"["
    ) else content.decode()


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", {}, 401),
        ("/?token=wrong", {}, 401),
        ("/index", {"Authorization": ""}, 401),
        ("/index", {"Authorization": "Bearer wrong"}, 401),
        ("/index", {"Host": "evil.example"}, 403),
        ("/index", {"Origin": "http://evil.example"}, 403),
        ("/index?token={token}", {"Authorization": ""}, 401),
        ("/chunk/0/train/9/0", {}, 404),
        ("/chunk/..%2F..%2Fetc%2Fpasswd", {}, 404),
    ],
)
def test_others_are_refused(folder, path, headers, status):
    with served(folder) as server:
        own_headers = {name: text.format(token=server.token) for name, text in headers.items()}
        answer_status, answer = request(server, path.format(token=server.token), **own_headers)
        assert (answer_status, set(answer)) == (status, {"error"})
        assert server.token not in json.dumps(answer)
        open_response = request(server, "/open", {}, **own_headers)
        assert open_response[0] >= 400


def test_page_and_its_data(folder):
    with served(folder) as server:
        assert server.server_address[0] == "127.0.0.1"
        status, page = request(server, f"/?token={server.token}", Authorization="")
        assert status == 200
        assert "connect-src 'self'" in page
        status, index = request(server, "/index", Origin=f"http://127.0.0.1:{server.server_port}")
        assert status == 200
        assert request(server, f"/index?have={index['stamp']}") == (204, "")
        rows = index["runs"][0]["iterations"][0]["rows"]
        status, chunk = request(server, "/chunk/" + quote(rows["chunk"][0], safe=""))
        assert (status, len(chunk)) == (200, len(rows["place"]))


def test_new_iteration_appears_while_serving(tmp_path):
    folder = synthetic.write_run(tmp_path / "run", 1, 1, 2)
    with served(folder) as server:
        _, index = request(server, "/index")
        synthetic.add_iteration(folder, 2, 1, 2)
        (folder / "rollouts" / "train" / "000001.parquet").unlink()
        status, later = request(server, f"/index?have={index['stamp']}")
        assert status == 200
        iterations = [(iteration["kind"], iteration["number"]) for iteration in later["runs"][0]["iterations"]]
        assert iterations == [("validation", 1), ("train", 2), ("validation", 2)]


def opened(server, index, row, turn):
    iteration = index["runs"][0]["iterations"][0]
    place = {name: iteration["rows"][name][row] for name in ("chunk", "place")}
    return request(
        server, "/open", {"run": 0, "kind": iteration["kind"], "number": iteration["number"], "turn": turn, **place}
    )


def with_turns(index, count, forked=False):
    rows = index["runs"][0]["iterations"][0]["rows"]
    return next(n for n, turns in enumerate(rows["turns"]) if turns >= count and bool(rows["forked_from"][n]) == forked)


def test_continue_by_hand_and_expert_then_save(tmp_path):
    folder = synthetic.write_run(tmp_path / "run", 1, 3, 4, skill=0.2)
    with served(folder) as server:
        _, index = request(server, "/index")
        row = with_turns(index, 2)
        status, branch = opened(server, index, row, 1)
        assert status == 200
        assert branch["differences"] == []
        assert branch["environment"] == synthetic.ENVIRONMENT
        assert branch["policies"] == ["expert"]
        name = {"branch": branch["branch"]}
        assert request(server, "/save", name) == (409, {"error": "nothing was played yet"})
        _, after = request(server, "/reply", {**name, "content": "<b>#### 77</b>"})
        assert after["messages"][branch["kept"]]["content"] == "<b>#### 77</b>"
        assert (after["by"], after["done"]) == (["hand"], False)
        assert request(server, "/play", {**name, "policy": "model"})[0] == 409
        _, over = request(server, "/play", {**name, "policy": "expert", "turns": 100})
        assert (over["by"], over["done"], over["stop"]) == (["hand", "expert"], True, "solved")
        assert request(server, "/reply", {**name, "content": "more"}) == (409, {"error": "the episode is over"})
        _, saved = request(server, "/save", name)
        _, later = request(server, f"/index?have={index['stamp']}")
    rows = later["runs"][0]["iterations"][0]["rows"]
    new = rows["saved"].index(True)
    assert (rows["forked_from"][new], rows["forked_turn"][new]) == (rows["episode_id"][row], 1)
    assert rows["group_id"][new] == rows["group_id"][row]
    (iteration,) = open_run(saved["saved"]).iterations
    episode = iteration.episode(0)
    assert list(episode.messages) == over["messages"]
    assert episode.turn_rewards.tolist() == over["rewards"]
    assert iteration.info["continued"] == {"turn": 1, "by": ["hand", "expert"]}
    assert [str(path) for path in branch_files(open_run(folder), open_run(folder).iterations[0])] == [saved["saved"]]


def test_continue_with_model_and_its_failure(folder):
    def reply(conversation):
        if len(conversation) > 1:
            raise RuntimeError("no answer from the service")
        return "#### 1000"

    with served(folder, FunctionPolicy(reply)) as server:
        _, index = request(server, "/index")
        _, branch = opened(server, index, 0, 0)
        assert branch["policies"] == ["expert", "model"]
        status, answer = request(server, "/play", {"branch": branch["branch"], "policy": "model", "turns": 5})
        assert status == 409
        assert "the model failed: RuntimeError: no answer from the service" in answer["error"]
        _, after = request(server, "/play", {"branch": branch["branch"], "policy": "expert", "turns": 1})
        assert after["by"] == ["model", "expert"]  # what was played before stays


def test_mistakes_of_the_page_are_named(folder):
    with served(folder) as server:
        _, index = request(server, "/index")
        assert "can be continued at 0 to" in opened(server, index, 0, 9)[1]["error"]
        assert request(server, "/reply", {"branch": "no"}) == (404, {"error": "this branch is closed; open it again"})
        assert request(server, "/shutdown", {}) == (404, {"error": "there is no '/shutdown'"})
        connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30)
        connection.request(
            "POST", "/open", "x", {"Authorization": f"Bearer {server.token}", "Content-Length": str(2**30)}
        )
        assert connection.getresponse().status == 413


def test_the_oldest_branch_makes_room(folder):
    with served(folder) as server:
        _, index = request(server, "/index")
        names = [opened(server, index, 0, 0)[1]["branch"] for _ in range(17)]
        assert request(server, "/play", {"branch": names[0], "policy": "expert"})[0] == 404
        assert request(server, "/play", {"branch": names[1], "policy": "expert"})[0] == 200


def test_replayed_episodes_equal_their_records(folder):
    for episode in open_run(folder).iteration(1).episodes():
        turns = len(replies_of(episode))
        assert turns == len(episode.turn_rewards) + episode.forked_turn
        branch = Branch(
            episode,
            turns,
            open_environment(**{"env_id": synthetic.ENVIRONMENT["id"], "options": synthetic.ENVIRONMENT["options"]}),
        )
        assert branch.differences == []
        assert branch.messages == episode.messages
        assert branch.done


def test_a_changed_environment_is_said(folder):
    episode = open_run(folder).iteration(1).episode(0)
    with pytest.raises(BranchError, match="no seed"):
        Branch(
            type(episode)(**{**vars(episode), "env_seed": None}),
            0,
            open_environment("textenv/gsm8k-interact", {"level": "easy"}),
        )
    branch = Branch(episode, 0, open_environment("textenv/gsm8k-interact", {"level": "hard"}))
    assert branch.differences
    assert branch.differences[0].startswith("message 0 (user), content: recorded ")


class Pictures(TextEnv):
    """Shows another picture after each reply."""

    def respond(self, reply):
        return Turn([user([text_part("And this?"), image_part("data:image/png;base64,AA==")])], reward=1.0)


def test_branch_with_images_saves_texts(folder, tmp_path):
    episode = replace(open_run(folder).iterations[0].episode(0), task_index=0)
    branch = Branch(episode, 0, Pictures([Task("k", "d", (user("What is this?"),), "1")]))
    branch.reply("A cat.")
    saved = open_run(branch.save(tmp_path, "train", 1)).iterations[0].episode(0)
    assert [message["content"] for message in saved.messages] == ["What is this?", "A cat.", "And this?"]


def test_replies_exclude_messages_of_opening(folder):
    episode = open_run(folder).iteration(1).episode(0)
    examples = (user("an example"), assistant("its answer"))
    messages = (*examples, user("now"), assistant("a"), user("b"), assistant("c"))
    changed = type(episode)(**{**vars(episode), "messages": messages, "turn_rewards": np.zeros(2), "forked_turn": 0})
    assert [m["content"] for m in replies_of(changed)] == ["a", "c"]


def test_forked_episode_continues_from_its_opening(folder, tmp_path):
    env = open_environment(synthetic.ENVIRONMENT["id"], synthetic.ENVIRONMENT["options"])
    wrong_first = lambda env, turn: env.demonstration(np.random.default_rng(0)) if turn else "#### 0"  # noqa: E731
    row = synthetic.played(env, 3, 5, wrong_first)
    turns = len(row["turn_rewards"])
    assert turns > 1
    row |= {"episode_id": "e", "group_id": "g", "forked_from": "", "forked_turn": 1}
    row |= {name: row[name][1:] for name in ("turn_rewards", "turn_terms")}
    (row,) = synthetic.learned([row], np.random.default_rng(0))
    row |= {"forked_turn": 0, "metrics": [*row["metrics"], ("start_turn", 1.0)]}
    file = tmp_path / "rollouts" / "train" / "000001.parquet"
    synthetic.write_rows(file, [row], kind="train", iteration=1)
    branch = Branch(episode := open_run(tmp_path).iteration(1).episode(0), turns, env)
    assert branch.messages == episode.messages
    assert branch.done
    with served(tmp_path) as server:
        _, index = request(server, "/index")
        assert index["runs"][0]["iterations"][0]["rows"]["forked_turn"] == [1], "its first turn is the second"


def test_untrusted_file_cannot_choose_code_or_address(tmp_path):
    rows = synthetic.rows_of(1, 1, 2)
    file = tmp_path / "rollouts" / "train" / "000001.parquet"
    for environment in (
        {"id": "os:path", "options": {}},
        {"id": "textenv/gsm8k-interact", "options": {"tasks": "/etc/passwd"}},
        {"id": "textenv/remote", "options": {"url": "http://evil.example"}},
    ):
        synthetic.write_rows(file, rows, kind="train", iteration=1, environment=environment)
        with served(tmp_path) as server:
            status, answer = opened(server, request(server, "/index")[1], 0, 0)
            assert status == 409
            assert "a file may not choose" in answer["error"]
            assert "--trust" in answer["error"]
    synthetic.write_rows(file, rows, kind="train", iteration=1, environment={"id": "toy_envs:Guess", "options": {}})
    with served(tmp_path, trusted=True) as server:
        status, answer = opened(server, request(server, "/index")[1], 0, 0)
        assert (status, bool(answer["differences"])) == (200, True)  # made; it is another environment


def test_evaluation_continues_with_tool_call(tmp_path):
    words = ["textenv/gsm8k-tool", "level=easy", "--policy", "careless", "--num-tasks", "2", "--quiet"]
    assert main(["evaluate", *words, "--out", str(tmp_path / "evaluation")]) == 0
    with served(tmp_path / "evaluation") as server:
        _, index = request(server, "/index")
        _, branch = opened(server, index, 0, 0)
        assert branch["differences"] == []
        tool = branch["tools"][0]
        call = {"name": tool["name"], "arguments": json.dumps(dict.fromkeys(tool["parameters"]["properties"], "7"))}
        status, after = request(server, "/reply", {"branch": branch["branch"], "content": "I ask.", "calls": [call]})
        assert status == 200
        call_message, tool_message = after["messages"][branch["kept"] : branch["kept"] + 2]
        assert call_message["tool_calls"][0]["function"] == call
        assert tool_message["role"] == "tool"
        _, saved = request(server, "/save", {"branch": branch["branch"]})
        assert open_run(saved["saved"]).iterations[0].episode(0).messages[branch["kept"]]["tool_calls"]
        rows = request(server, "/index")[1]["runs"][0]["iterations"][0]["rows"]
        assert rows["saved"] == [False, False, True]


def test_command_serves_and_continues_with_service(tmp_path):
    """Start as a person does, in a new process, with a model behind an OpenAI-compatible service."""
    pytest.importorskip("openai", reason="needs the extra 'chat'")
    folder = synthetic.write_run(tmp_path / "run", 1, 1, 2)
    with FakeService("#### 1") as service:
        words = ["view", str(folder), "--serve", "--no-open", "--model", "fake", "--base-url", service.url]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENAI_API_KEY": "unused"}
        start = (
            "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); import textenvs.cli as c, sys; "
        )
        command = [sys.executable, "-c", f"{start}sys.exit(c.main(sys.argv[1:]))", *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
        try:
            line = process.stdout.readline()
            match = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/\?token=(\S+)\n", line)
            assert match, line + process.stderr.read()
            server = SimpleNamespace(server_port=int(match[1]), token=match[2])
            _, index = request(server, "/index")
            _, branch = opened(server, index, 0, 0)
            assert branch["policies"] == ["expert", "model"]
            status, after = request(server, "/play", {"branch": branch["branch"], "policy": "model"})
            assert (status, after["by"]) == (200, ["model"])
            assert after["messages"][branch["kept"]] == {"role": "assistant", "content": "#### 1"}
        finally:
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=30)
        assert (process.returncode, errors.strip()) == (0, "")
