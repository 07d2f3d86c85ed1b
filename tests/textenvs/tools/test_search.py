"""Search: the formula, ties, snippets, and corpora of every kind."""

import copy
import json
import math
import pickle
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from textenvs.task import TaskError
from textenvs.tools import ToolError
from textenvs.tools.search import Corpus, Document, query_terms, read_documents, result_page, snippet

pytest.importorskip("bm25s", reason="needs the extra 'search'")

TOWNS = (
    Document("a", "Alda", "Alda is a town in the north. Its mayor is Ove Lind."),
    Document("b", "Brim", "Brim is a town by the sea. The harbour of Brim is old."),
    Document("c", "Corle", "Corle is a village. Its mayor is Mia Torv."),
)


def page(documents, query, top_k=3, snippet_chars=500):
    return result_page(Corpus(documents), query, top_k, snippet_chars)


# ------------------------------------------------------------------ ranking

vocabulary = st.sampled_from(["ada", "bix", "cor", "dun", "elm"])
texts = st.lists(vocabulary, min_size=1, max_size=8).map(" ".join)


@given(
    documents=st.lists(texts, min_size=1, max_size=8), query=st.lists(vocabulary, min_size=1, max_size=3).map(" ".join)
)
def test_scores_match_formula_with_stable_ties(documents, query):
    corpus = Corpus([{"text": text} for text in documents])
    counts = [Counter(text.split()) for text in documents]
    average = sum(map(Counter.total, counts)) / len(counts)
    expected = []
    for number, count in enumerate(counts):
        score = 0.0
        for word in query.split():
            having = sum(word in other for other in counts)
            inverse = math.log(1 + (len(counts) - having + 0.5) / (having + 0.5))
            length = 1 - 0.75 + 0.75 * count.total() / average
            score += inverse * count[word] / (count[word] + 1.5 * length)
        if score:
            expected.append((number, score))
    results = corpus.search(query, top_k=len(documents))
    assert {int(document.id) - 1: pytest.approx(score, rel=1e-4) for document, score in results} == dict(expected)
    order = [(-score, int(document.id)) for document, score in results]
    assert order == sorted(order)
    for k in range(1, len(documents) + 1):
        assert corpus.search(query, top_k=k) == results[:k]


def test_results_share_a_word_with_query():
    corpus = Corpus(TOWNS)
    assert [document.id for document, _ in corpus.search("the mayor of Corle")] == ["c", "a"]
    assert corpus.search("zeppelin") == []
    assert corpus.search("the of is") == corpus.search("") == corpus.search("?!") == []


@pytest.mark.parametrize("documents", [[{"text": "the of"}], [{"text": "..."}, {"text": "the"}]])
def test_a_corpus_without_words_finds_nothing(documents):
    assert Corpus(documents).search("anything") == []


# ------------------------------------------------------------------ the tool


def test_the_model_reads_titles_and_texts():
    assert page(TOWNS, "mayor Corle", top_k=2) == (
        "[1] Corle\nCorle is a village. Its mayor is Mia Torv.\n\n"
        "[2] Alda\nAlda is a town in the north. Its mayor is Ove Lind."
    )
    assert page(TOWNS, "zeppelin") == "Nothing was found. Try other words."
    with pytest.raises(ToolError, match="no word to search for"):
        page(TOWNS, " ?! ")


@given(text=st.text(), query=st.text(max_size=20), most=st.integers(40, 200))
def test_snippet_is_bounded_part_of_text(text, query, most):
    part = snippet(text, frozenset(query_terms(query)), most)
    assert len(part) <= max(most, len(text) if len(text) <= most else 0)
    assert part.removeprefix("...").removesuffix("...").strip(".") in text


def test_snippet_shows_query_words():
    text = "filler words here. " * 50 + "The mayor of Corle is Mia Torv. " + "more of the filler. " * 50
    part = snippet(text, frozenset(query_terms("mayor Corle")), 100)
    assert "The mayor of Corle is Mia Torv" in part
    assert part.startswith("...")
    assert part.endswith("...")
    assert len(part) <= 100
    assert snippet(text, frozenset({"absent"}), 100).startswith("filler words")


def test_long_documents_are_cut_linearly():
    text = "corle " * 50_000
    assert len(page([{"text": text}], "corle", snippet_chars=200)) < 300


# ------------------------------------------------------------------ corpora


def write(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows), encoding="utf-8")
    return path


def test_a_corpus_from_json_lines(tmp_path):
    rows = [
        {"id": "x", "title": "A title", "text": "one", "more": 1},
        {"contents": '"Quoted"\nbelow it'},
        {"id": 7, "contents": "one line"},
    ]
    path = write(tmp_path / "c.jsonl", rows)
    documents = (Document("x", "A title", "one"), Document("2", "Quoted", "below it"), Document("7", "", "one line"))
    assert read_documents(path) == documents
    assert Corpus.load(path).search("below")[0][0].title == "Quoted"


def test_a_corpus_from_parquet(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [{"id": "a", "title": "T", "text": "one"}, {"id": "b", "title": None, "text": "two"}]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "c.parquet")
    assert read_documents(tmp_path / "c.parquet") == (Document("a", "T", "one"), Document("b", "", "two"))
    (tmp_path / "bad.parquet").write_bytes(b"no")
    with pytest.raises(TaskError, match="not a readable Parquet file"):
        read_documents(tmp_path / "bad.parquet")


def test_invalid_rows_are_listed(tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text(
        '{"id": "a", "text": "x"}\n[1]\n{"id": "b"}\n{"text": 5}\nno\n{"id": "a", "text": "y"}\n{"text": " "}'
    )
    with pytest.raises(TaskError) as caught:
        read_documents(path)
    for words_of_it in (
        "row 2: a list",
        "row 3: column 'text' is missing",
        "row 4: column 'text' must be text",
        "row 5",
    ):
        assert words_of_it in str(caught.value)
    assert "id 'a' is that of row 1" in str(caught.value)
    assert "and 1 more" in str(caught.value)


@pytest.mark.parametrize(("name", "text"), [("c.jsonl", ""), ("none.jsonl", None), ("c.jsonl", "\n\n")])
def test_files_without_documents_are_refused(tmp_path, name, text):
    if text is not None:
        (tmp_path / name).write_text(text)
    with pytest.raises(TaskError):
        Corpus.load(tmp_path / name)
    with pytest.raises(TaskError):
        Corpus([])


def test_other_kinds_of_files_are_refused(tmp_path):
    (tmp_path / "c.txt").write_text("x")
    with pytest.raises(ValueError, match=r"\.jsonl or \.parquet"):
        Corpus.load(tmp_path / "c.txt")
    (tmp_path / "c.jsonl").write_bytes(b'{"text": "\xff"}')
    with pytest.raises(TaskError, match="UTF-8"):
        Corpus.load(tmp_path / "c.jsonl")


def test_changed_file_is_read_again(tmp_path):
    path = write(tmp_path / "c.jsonl", [{"text": "one"}])
    first = Corpus.load(path)
    assert Corpus.load(path) is first
    write(path, [{"text": "one"}, {"text": "two and more"}])
    assert len(Corpus.load(path)) == 2


def test_index_is_built_once_and_shared(tmp_path, monkeypatch):
    corpus = Corpus.load(write(tmp_path / "c.jsonl", [{"text": "one"}]))
    corpus.search("one")
    import bm25s

    monkeypatch.setattr(bm25s, "BM25", None)
    for same in (corpus, copy.deepcopy(corpus), Corpus.load(tmp_path / "c.jsonl")):
        assert same.search("one")[0][0].text == "one"


def test_corpus_can_be_pickled(tmp_path):
    path = write(tmp_path / "c.jsonl", [{"text": "word"} for _ in range(2000)])
    by_path = pickle.dumps(Corpus.load(path))
    assert len(by_path) < 2000  # the file travels by its name
    assert pickle.loads(by_path).search("word")
    assert Corpus(TOWNS).search("mayor") == pickle.loads(pickle.dumps(Corpus(TOWNS))).search("mayor")


SENTENCES = {
    "zh": ("北京是中华人民共和国的首都。", ("首都", "北京", "中华人民共和国", "京"), ("上海", "都首")),
    "ja": ("東京タワーは高さ333メートルの塔です。", ("タワー", "東京", "333メートル", "塔"), ("大阪",)),
    "th": ("กรุงเทพมหานครเป็นเมืองหลวงของประเทศไทย", ("เมืองหลวง", "ประเทศไทย"), ("เชียงใหม่",)),
    "ko": ("서울은 대한민국의 수도이다.", ("서울", "수도", "대한민국"), ("부산",)),
    "km": ("ភ្នំពេញជារដ្ឋធានីនៃប្រទេសកម្ពុជា", ("រដ្ឋធានី",), ()),
    "hi": ("नई दिल्ली भारत की राजधानी है", ("राजधानी", "दिल्ली"), ("मुंबई", "र")),
    "ru": ("Москва — столица России", ("СТОЛИЦА", "москва"), ("стол",)),
    "vi": (
        "Ha\u0300 No\u0323\u0302i la\u0300 thu\u0309 \u0111o\u0302",
        ("H\u00e0 N\u1ed9i", "th\u1ee7 \u0111\u00f4"),
        (),
    ),
    "wide": ("ＡＢＣ株式会社の売上", ("abc", "売上", "ABC株式会社"), ()),
}


@pytest.mark.parametrize("language", SENTENCES)
def test_parts_of_a_sentence_are_found(language):
    sentence, queries, absent = SENTENCES[language]
    other_texts = [text for name, (text, *_) in SENTENCES.items() if name != language]
    corpus = Corpus([{"text": text} for text in [*other_texts, sentence]])
    for query in queries:
        assert corpus.search(query, 1)[0][0].text == sentence, query
    for query in absent:
        assert sentence not in [document.text for document, _ in corpus.search(query, 9)], query


def test_snippet_in_other_scripts():
    text = "这里没有什么。" * 40 + "首都是北京。" + "这里没有什么。" * 40
    assert "首都是北京" in snippet(text, frozenset(query_terms("首都")), 60)
