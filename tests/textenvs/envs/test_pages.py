"""The pages about environments and tools: the commands print the conversations of the page."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import textenvs
from textenvs.sandbox import SandboxUnavailable

ROOT = Path(__file__).resolve().parents[3]
EXAMPLE = re.compile(r"```bash\n(python - <<'END'\n.*?)```\s+```text\n(.*?)```", re.DOTALL)
FURTHER_PAGES = ("tools", "lookahead", "vector", "wrappers")
FILES = [
    *sorted((ROOT / "docs" / "environments").glob("*.md")),
    *(ROOT / "docs" / f"{name}.md" for name in FURTHER_PAGES),
]
PAGES = {path.stem: path.read_text(encoding="utf-8") for path in FILES}
EXAMPLES = [(name, *example) for name, page in PAGES.items() for example in EXAMPLE.findall(page)]
RUN = """
import contextlib, io, json, sys, traceback
for script in json.load(sys.stdin):
    said, error = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(script, "page", "exec"), {"__name__": "__main__"})
    except Exception:
        error = traceback.format_exc()
    print(json.dumps([said.getvalue(), error]))
"""


def test_pages_have_conversations():
    assert {name for name, *_ in EXAMPLES} >= set(FURTHER_PAGES)


@pytest.fixture(scope="module")
def printed():
    """Return the output of the commands, each run by itself but in one process, and the errors."""
    scripts = [re.search(r"<<'END'\n(.*)END\n", command, re.DOTALL).group(1) for _, command, _ in EXAMPLES]
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", RUN],
        input=json.dumps(scripts),
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=300,  # where other work takes most of the machine
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.timeout(310)
@pytest.mark.xdist_group("commands of pages")  # the commands run once, not in each worker
@pytest.mark.parametrize("number", range(len(EXAMPLES)), ids=[name for name, *_ in EXAMPLES])
def test_commands_print_the_conversations(number, printed):
    output, error = printed[number]
    if "SandboxUnavailable" in error:  # a machine that cannot run programs says so, with the remedy
        assert "install bubblewrap" in error
        pytest.skip("this machine has no sandbox")
    if "pip install 'textenvs[textworld]'" in error:
        pytest.skip("TextWorld is not installed here")
    assert error == ""
    assert output == EXAMPLES[number][2]


def test_pages_list_every_attack():
    """`python scripts/attack_tables.py` makes the numbers, slowly; this checks that no policy is missing."""
    tables = dict(
        re.findall(r"<!-- attacks (\S+) -->\n(.*?)<!-- end of attacks -->", "".join(PAGES.values()), re.DOTALL)
    )
    assert set(tables) == set(textenvs.list_environments())
    for env_id, table in tables.items():
        try:
            env = textenvs.make(env_id)
        except (SandboxUnavailable, ImportError):
            continue
        header, _, *rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
        assert [column.strip("| ") for column in header[2:]] == list(env.levels or ["solved, mean return"]), env_id
        named = [row[0].strip("| ") for row in rows]
        attacks = [attack.name for attack in env.attacks()]
        assert named[-len(attacks) :] == attacks, (
            f"{env_id}: run `python scripts/attack_tables.py docs/environments/*.md`"
        )
        assert {"expert", "random"} <= set(named)


def test_table_of_attacks_is_written(tmp_path):
    page, mark = tmp_path / "gsm8k.md", "<!-- {}attacks{} -->"
    page.write_text(f"before\n{mark.format('', ' textenv/gsm8k')}\n{mark.format('end of ', '')}\nbehind\n")
    program = ROOT / "scripts" / "attack_tables.py"
    subprocess.run([sys.executable, str(program), str(page), "--episodes", "2"], check=True, cwd=ROOT)
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- attacks textenv/gsm8k -->\n| policy |")
    assert "| expert |  | 100.0%, +1.000 |" in text
    assert text.endswith("<!-- end of attacks -->\nbehind\n")
