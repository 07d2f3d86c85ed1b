"""Private reasoning: leading blocks of every family are hidden, and nothing else is."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import textenvs
from textenvs.messages import assistant, tool, user, visible_text
from textenvs.reasoning import REASONING_MARKS, Marks, split_reasoning

every_family = pytest.mark.parametrize("marks", REASONING_MARKS, ids=[marks.begin for marks in REASONING_MARKS])
plain = st.text(st.characters(exclude_characters="<>[]|◁▷/", exclude_categories=["Cs"]), max_size=12)
spaces = st.sampled_from(["", " ", "\n", "\n\n"])


def seen(content):
    return visible_text(assistant(content))


@every_family
@settings(max_examples=10)
@given(reasoning=plain, before=spaces, after=spaces, words=plain)
def test_leading_reasoning_of_every_family_is_hidden(marks, reasoning, before, after, words):
    text = f"{before}{marks.begin}{reasoning}{marks.end}{after}{words}"
    assert split_reasoning(text) == (reasoning.strip(), words.strip())
    assert seen(text) == seen(text.upper().replace(words.upper(), words)) == words.strip()


@every_family
def test_reasoning_cut_off_says_nothing(marks):
    assert seen(f"{marks.begin} 3 + 4 = 7 #### 7") == ""
    assert seen(f"\n{marks.begin.upper()}") == ""


@every_family
def test_an_end_that_a_template_opened(marks):
    text = f"3 + 4 = 7 #### 7{marks.end}I do not know."
    assert seen(text) == ("I do not know." if marks.in_prompt else text)


@every_family
@settings(max_examples=10)
@given(words=plain.filter(str.strip), reasoning=plain, rest=plain)
def test_a_block_further_down_is_text(marks, words, reasoning, rest):
    text = f"{words}{marks.begin}{reasoning}{marks.end}{rest}"
    assert seen(text) == text.strip()


def test_several_leading_blocks_are_hidden():
    pairs = [marks for marks in REASONING_MARKS if marks.end != "<|end|>"]
    for one, two in itertools.product(pairs, pairs):
        assert seen(f"{one.begin}a{one.end}\n{two.begin}b{two.end}c") == "c"
        assert seen(f"{one.begin}a{one.end}c{two.begin}b{two.end}") == f"c{two.begin}b{two.end}"


@pytest.mark.parametrize(
    ("content", "visible"),
    [
        ("  plain ", "plain"),
        ("<think></think>", ""),
        ("<think>a<think>b</think>c</think>seen", "seen"),
        ("<think>the tag <think> opens it</think>seen", "seen"),
        ("hm <think>b</think> c</think>seen", "seen"),
        ("hm</think><think>more</think>seen", "seen"),
        ("hm</think>\nthe tag </think> ends it", "the tag </think> ends it"),
        ("the tag <think> opens it", "the tag <think> opens it"),
        ("<think>a</think>b <think>c", "b <think>c"),
        ("<think>a[/THINK]b</think>c", "c"),
        ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>final<|message|>b<|return|>", "b"),
        ("<|channel|>final<|message|>b", "b"),
        ("<|START_THINKING|>a<|END_THINKING|><|START_RESPONSE|>b<|END_RESPONSE|>", "b"),
        ("<|begin_of_thought|>a<|end_of_thought|>\n\n<|begin_of_solution|>b<|end_of_solution|>", "b"),
        ("<|channel>thought\na<channel|>b", "b"),
        ("<unused94>thought\na<unused95>b", "b"),
        ("<|im_start|>think\na\n<|im_start|>answer\nb", "b"),
        ("\ufeff<think>a</think>b", "b"),
        ("\u200b<think>a</think>b", "b"),
    ],
)
def test_what_is_visible(content, visible):
    assert seen(content) == visible


HARMONY, GRANITE = ("analysis", "assistantfinal"), ("Here is my thought process:", "Here is my response:")


@pytest.mark.parametrize(
    ("content", "reasoning", "visible"),
    [
        ("analysisWe add.assistantfinalIt is 4.", "We add.", "It is 4."),
        ("\nanalysis\n\nWe add.\n\nassistantfinal\n\nIt is 4.", "We add.", "It is 4."),
        ("assistantanalysisWe add.assistantfinalIt is 4.", "We add.", "It is 4."),
        ("analysisThe analysis says 4.assistantfinal4 assistantfinal", "The analysis says 4.", "4 assistantfinal"),
        ("analysisHm.assistantanalysisWe add.assistantfinal4", "Hm.assistantanalysisWe add.", "4"),
        ("analysisCall it.assistantcommentary to=functions.f json{}", "Call it.", "to=functions.f json{}"),
        ("analysisHm.assistantfinal", "Hm.", ""),
        ("Here is my thought process: we add.\n\nHere is my response: 4", "we add.", "4"),
        ("Here's my thought process:\nwe add.\nHere's my response:\n4", "we add.", "4"),
        ("<think>a</think>analysisb assistantfinal4", "a\n\nb", "4"),
    ],
)
def test_reasoning_between_plain_words_is_hidden(content, reasoning, visible):
    assert split_reasoning(content) == (reasoning, visible)
    assert seen(content) == visible


@pytest.mark.parametrize(
    "content",
    [
        "analysis of the text: 4",
        "analysis",
        "analysisResult = 4",
        "Analysis of a class AssistantFinal, or assistantfinal: 4",
        "The analysis. assistantfinal 4",
        "assistantfinal 4",
        "Here is my thought process: we add, so it is 4.",
        "Here is my response: 4",
        "Well. Here is my thought process: we add. Here is my response: 4",
        "Here is my response: 4. Here is my thought process: we add.",
    ],
)
def test_plain_words_without_a_pair_stay_visible(content):
    assert seen(content) == content


@pytest.mark.parametrize(("begin", "end"), [HARMONY, GRANITE])
def test_own_marks_replace_plain_words_too(begin, end):
    text = f"{begin} a {end} b"
    assert split_reasoning(text, ()) == split_reasoning(text, [Marks("(plan)", "(/plan)")]) == ("", text)


@pytest.mark.parametrize(("begin", "end"), [HARMONY, GRANITE])
def test_plain_end_within_a_call_ends_nothing(begin, end):
    call = f'<tool_call>\n{{"name": "calc_gsm8k_reward", "arguments": {{"answer": "4 {end}"}}}}\n</tool_call>'
    env = textenvs.make("textenv/gsm8k-tool")
    for text in (f"{begin} b {end} {call}", f"{begin} b {call}"):
        env.reset(seed=0)
        assert env.step(text)[-1]["metrics"]["tool_calls"] == 1


pieces = st.sampled_from(["a", " ", "\n", "b"])
begins = st.sampled_from([marks.begin for marks in REASONING_MARKS])
ends = st.sampled_from([marks.end for marks in REASONING_MARKS])


@given(st.lists(pieces | begins | ends | st.sampled_from([*HARMONY, *GRANITE]), max_size=12).map("".join))
def test_visible_text_is_the_end_of_reply(text):
    assert text.strip().endswith(seen(text))


@given(st.lists(pieces | begins, max_size=12).map("".join))
def test_words_first_and_no_end_is_all_visible(text):
    assert seen(f"word {text}") == f"word {text}".strip()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    "piece",
    [
        *("<think>", "</think>", "<think></think>", "<think><think></think>", " ", "<|end|>"),
        *("analysis", "assistantfinal", "analysis assistantfinal"),
    ],
)
def test_floods_of_marks_take_linear_time(piece):
    """Quadratic time would take minutes and block all other episodes."""
    flood = piece * 20_000
    for text in (flood, f"<think>{flood}</think>x", f"{flood}<think>", f"analysis{flood}assistantfinalx"):
        split_reasoning(text)


def test_users_and_tools_have_no_private_reasoning():
    for text in ("<think>a</think>b", "a</think>b", "<think>"):
        assert visible_text(user(text)) == visible_text(tool(text, "0")) == text


# ------------------------------------------------------------------ in an environment


GOLD_HIDDEN = [
    *(f"{marks.begin}maybe #### 4{marks.end}I do not know." for marks in REASONING_MARKS),
    *(f"{marks.begin}maybe #### 4" for marks in REASONING_MARKS),
    *(f"maybe #### 4{marks.end}I do not know." for marks in REASONING_MARKS if marks.in_prompt),
    *(f"{begin}maybe #### 4{end}I do not know." for begin, end in (HARMONY, GRANITE)),
]


def gsm8k(name, **options):
    answer = {"question": "2 + 2?", "answer": "It is 4.\n#### 4"}
    env = textenvs.make(f"textenv/{name}", **options)
    env.reset(options={"task": textenvs.Task("0", "sums", (textenvs.user("2 + 2?"),), ground_truth="4", extra=answer)})
    return env


@pytest.mark.parametrize("name", ["gsm8k", "gsm8k-interact"])
def test_an_answer_in_reasoning_earns_nothing(name):
    for reply in GOLD_HIDDEN:
        assert gsm8k(name).step(reply)[1] <= 0, reply
    for marks in REASONING_MARKS:
        assert gsm8k(name).step(f"{marks.begin}hm #### 5{marks.end}\nIt is 4.\n#### 4")[1] == 1.0


@pytest.mark.parametrize("reasoning", ["hm", "", None])
def test_reasoning_apart_and_within_the_content_is_hidden(reasoning):
    """Some services give it twice, or give an empty one."""
    reply = {**assistant("<think>#### 4</think>I do not know."), "reasoning_content": reasoning}
    assert gsm8k("gsm8k").step(reply)[1] <= 0


def test_marks_of_ones_own_replace_the_table():
    reply = "(plan)maybe #### 5(/plan)#### 4"
    env = gsm8k("gsm8k", reasoning_marks=[["(plan)", "(/plan)"]])
    conversation, reward, *_ = env.step(reply)
    assert reward == 1.0
    assert conversation[1] == {**assistant("#### 4"), "reasoning_content": "maybe #### 5"}
    assert gsm8k("gsm8k", reasoning_marks=[]).step("<think>#### 4</think>")[1] == 1.0, "nothing is private"
    env = gsm8k("gsm8k", reasoning_marks=[["(plan)", "(/plan)"]])
    assert env.step({**assistant("(plan)no(/plan)#### 4"), "reasoning_content": "of the service"})[1] == 1.0
    with pytest.raises(ValueError, match="reasoning_marks is a list of pairs"):
        gsm8k("gsm8k", reasoning_marks=["<think>", "</think>"])


def test_marks_of_ones_own_leave_calls_alone():
    env = textenvs.make("textenv/gsm8k-tool", reasoning_marks=[Marks("(", ")")])
    env.reset(seed=0)
    call = env.format.write("", [textenvs.call("calc_gsm8k_reward", answer="4) b")])
    for reasoning in ("", "(hm)", "hm)"):
        env.reset(seed=0)
        assert env.step(reasoning + call)[-1]["metrics"]["tool_calls"] == 1
