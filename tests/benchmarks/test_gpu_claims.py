"""The claims about GPUs: what results say of them, and the page that shows it."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from benchmarks.gpu import results
from benchmarks.gpu.claims import CLAIMS, listing, measured, table, whole_names

ROOT = Path(__file__).resolve().parents[2]
AT_MOST = {"claim": "Speed: ms", "part": "decode", "where": {"batch": 1}, "figure": "ms", "at_most": 1.5}
RIGHT = {"claim": "Right", "part": "parity", "where": {"what": "layout"}, "figure": "good"}
H200 = {"device": "NVIDIA H200", "commit": "abc", "source": "1", "time": "2026-11-28T10:00:00Z"}


def line(part="decode", **figures):
    return {"part": part, "batch": 1, **H200, **figures}


@pytest.mark.parametrize(
    ("lines", "value", "verdict"),
    [
        ([], "", "never ran"),
        ([line(ms=1.5)], "1.5", "met"),
        ([line(ms=1.51)], "1.51", "missed"),
        ([line(ms=2.0), line(ms=1.0), line(ms=3.0)], "1", "met"),  # ways to compute: the best
        ([line(ms=1.0), line(ms=3.0, source="2")], "3", "missed"),  # the newest code
        ([line(ms=1.0, device="cpu")], "", "never ran"),
        ([line(ms=1.0, batch=2), line("mfu", ms=1.0), line(ms=None), line(failed="out of memory")], "", "never ran"),
    ],
)
def test_newest_run_on_a_gpu_counts(lines, value, verdict):
    result = measured(AT_MOST, lines)
    assert (result.value, result.verdict) == (value, verdict)
    assert result.where == ("NVIDIA H200, abc, 2026-11-28" if value else "")


def test_all_comparisons_must_be_right():
    lines = [line("parity", what="layout", good=good) for good in (True, True, False)]
    assert measured(RIGHT, lines[:2])[1:3] == ("2 of 2", "met")
    assert measured(RIGHT, lines)[1:3] == ("2 of 3", "missed")


def test_ratio_needs_both_parts_of_one_device():
    claim = {**AT_MOST, "figure": "per_s", "over": "vllm", "at_least": 0.8}
    del claim["at_most"]
    own, other = line(per_s=90.0), line("vllm", per_s=100.0)
    assert measured(claim, [own, other])[1:3] == ("0.9", "met")
    assert measured(claim, [own, {**other, "device": "NVIDIA H100"}]).verdict == "never ran"
    assert "without vllm: 90.0" in measured(claim, [own]).where


def test_device_of_a_claim_is_required():
    claim = {**AT_MOST, "device": "H100"}
    assert measured(claim, [line(ms=1.0)]).verdict == "never ran"
    assert measured(claim, [line(ms=1.0, device="NVIDIA H100 80GB HBM3")]).verdict == "met"


def test_listing_shows_the_unproven_first():
    printed = listing([line(what="decode", shape="0.5b", step_ms=1.2)]).splitlines()
    assert printed[0].startswith("never ran  [engine] Embedded engine: ")
    assert (
        "met        [decode] Decoding, 0.5B, bfloat16: ms of a step at 1 request: at most 1.5; 1.2 (NVIDIA"
        in printed[-2]
    )
    assert printed[-1] == f"{len(CLAIMS)} claims: {len(CLAIMS) - 1} never ran, 0 missed, 1 met"


def test_list_reads_kept_results_and_own(tmp_path, capsys, monkeypatch):
    from benchmarks.gpu.run import main

    monkeypatch.setattr(results, "KEPT", tmp_path)
    (tmp_path / "gpu-x.jsonl").write_text(json.dumps(line(what="decode", shape="0.5b", step_ms=9)) + "\n{cut sho")
    own = tmp_path / "own.jsonl"
    own.write_text(json.dumps(line(what="decode", shape="0.5b", batch=256, of_roofline=0.6)) + "\n")
    assert main(["--list", f"--out={own}"]) == 0
    printed = capsys.readouterr().out
    assert "at most 1.5; 9 (NVIDIA H200" in printed
    assert "at least 0.5; 0.6 (NVIDIA H200" in printed


def test_claims_name_parts_and_have_one_bar():
    from benchmarks.gpu.run import PARTS

    for claim in CLAIMS:
        assert {claim["part"], claim.get("over", claim["part"])} <= set(PARTS)
        assert (claim["figure"] == "good") + ("at_most" in claim) + ("at_least" in claim) == 1
    names = [claim["claim"] for claim in whole_names()]
    assert len(set(names)) == len(names)
    assert not any(name.startswith("...") for name in names)


def test_page_of_gpus_is_current():
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert table(list(results.read(results.files()))) in page, "`make docs-pages` writes it anew"


def test_page_is_written_anew(tmp_path):
    spec = importlib.util.spec_from_file_location("gpu_claims", ROOT / "scripts" / "gpu_claims.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    page = tmp_path / "gpu.md"
    page.write_text("before\n<!-- claims -->\nold\n<!-- end of claims -->\nafter\n", encoding="utf-8")
    script.write(page, [])
    text = page.read_text(encoding="utf-8")
    assert text.startswith("before\n<!-- claims -->\n| claim |")
    assert text.endswith("<!-- end of claims -->\nafter\n")
    assert "old" not in text
