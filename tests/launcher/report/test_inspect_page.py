"""The page of an inspected job: what it says and draws, and that names of the job are only text in it."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from pydantic import TypeAdapter

from podrun.launcher.report.inspect_page import page_of, page_of_excess
from podrun.runtime.job_report import Excess, Report

from .elements import Elements

GIB = 2**30
MADE: Report = TypeAdapter(Report).validate_python(
    {
        "slice": "v5litepod-16",
        "devices": 16,
        "parallel": "jit",
        "precision": "bfloat16",
        "compiled_for": "TPU v5 lite",
        "compile_seconds": 12.34,
        "computing": 16,
        "models": 1,
        "parameters": [
            {"path": ["w"], "shape": [1000, 1000], "dtype": "float32", "item": 4},
            {"path": ["b"], "shape": [234_567], "dtype": "float32", "item": 4},
        ],
        "state": {
            name: {"arrays": 1, "count": 1, "bytes": size * GIB, "per_device": size * GIB}
            for name, size in (("params", 2), ("opt_state", 3))
        },
        "computed": {"flops": 3e12, "repeated": 1e12, "examples": 64, "device_kind": None, "seconds_at_peak": None},
        "memory": {"arguments": 6 * GIB, "outputs": 5 * GIB, "reused": 5 * GIB, "temporaries": GIB},
        "usable": 16 * GIB,
        "buffers": [{"name": "h_*/attn/<b>exp</b>", "array": "bf16[4]", "bytes": GIB // 8, "count": 4}],
        "roofline": {
            "limits": [
                {"name": "compute", "seconds": 0.04, "assumption": "8 TFLOP of each device"},
                {"name": "HBM", "seconds": 0.01, "assumption": "8 GiB of each device"},
                {"name": "DCN", "seconds": None, "assumption": "the bandwidth is unknown"},
            ],
        },
        "traffic": [
            {
                "kind": "all-reduce",
                "count": 2,
                "bytes": 3 * GIB,
                "axes": "batch",
                "devices": 16,
                "link": "ICI",
                "ends": 16,
            },
            {"kind": "all-reduce", "count": 1, "bytes": GIB, "axes": "", "devices": 2, "link": "DCN", "ends": 2},
        ],
        "attention": {"kernel": "xla", "reason": "though a run takes <cudnn>", "of_run": "cudnn"},
        "unknown_loops": 0,
        "batch": [
            {
                "name": "batch.tokens",
                "array": "int32[64, 257]",
                "where": "split over batch",
                "part": [4, 257],
                "parts": 16,
                "devices": 16,
            }
        ],
        "samples": [],
        "divided": None,
        "divided_by_model": None,
        "outputs": [],
        "pictures": {"params.w": "┌─┐\n└─┘"},
    }
)


def made(**keys: Any) -> str:
    return page_of(replace(MADE, **keys), "gpt<2>.yaml", "14:05:09")


def bars(page: str) -> list[list[tuple[str, float]]]:
    """Return the parts of each bar: the class of the colour, and the share of the width."""
    return [
        [
            (kind, float(width) / 1000)
            for kind, width in re.findall(r'<rect class="(\w+)" x="[\d.]+" y="2" width="([\d.]+)"', svg)
        ]
        for svg in re.findall(r'<svg class="bar".*?</svg>', page)
    ]


def test_the_memory_is_a_bar_against_that_of_a_device() -> None:
    page = made()
    assert "It fits, with 9.0 GiB of 16.0 GiB to spare" in page
    parts = [("fill0", 2), ("fill1", 3), ("fill2", 1), ("fill3", 1), ("spare", 9)]  # no output has memory of its own
    assert bars(page)[0] == [(kind, pytest.approx(size / 16, abs=1e-4)) for kind, size in parts]
    for row in ("parameters</td><td class=number>2.0 GiB", "temporaries</td><td class=number>1.0 GiB"):
        assert row in page
    assert "4 x bf16[4]" in page and "512.0 MiB" in page


def test_the_kernel_of_attention_is_named() -> None:
    """On the page of a job that does not fit as well; a model that has no choice has no such line."""
    for page in (made(), page_of_excess(EXCESS, PROBLEM, "a", "14:05:09")):
        assert "Attention: xla, though a run takes &lt;cudnn&gt;." in page
    for page in (made(attention=None), page_of_excess(replace(EXCESS, attention=None), PROBLEM, "a", "14:05:09")):
        assert "Attention:" not in page


def test_bounds_are_bars_against_the_largest() -> None:
    page = made()
    assert "A step takes at least 40 ms, limited by compute." in page and "Bounds, not promises" in page
    assert bars(page)[1:] == [[("fill1", 1.0)], [("fill0", 0.25)]]
    assert "<td class=number>unknown</td><td>the bandwidth is unknown" in page
    assert "repeated by remat</dt><dd>25%" in page


def test_collectives_and_layout() -> None:
    page = made()
    cells = ["all-reduce", "2", "3.0 GiB", "batch", "16", "ICI"]
    assert re.sub(r"<[^>]*>", "|", page).replace("||", "|").count("|".join(cells)) == 1
    assert "unknown number of iterations" not in page
    assert made(unknown_loops=2).count("2 loops with an unknown number of iterations are counted once.") == 2
    assert "between slices" in page and "split over batch" in page and "┌─┐\n└─┘" in page


def test_compiled_for_cpu_there_is_no_limit() -> None:
    """Nor is there one where the compiler does not say what it needs."""
    page = made(usable=None, roofline=None, traffic=(), buffers=(), compiled_for="cpu")
    assert "A device needs 7.0 GiB, as compiled for CPU" in page and "compiled for CPU in 12.3 s" in page
    assert [kind for kind, _ in bars(page)[0]] == ["fill0", "fill1", "fill2", "fill3"]
    assert "takes at least" not in page and "Communication" not in page
    assert "does not say how much memory" in made(memory=None)


EXCESS = Excess(
    slice=MADE.slice,
    devices=MADE.devices,
    parallel=MADE.parallel,
    precision=MADE.precision,
    compiled_for=MADE.compiled_for,
    compile_seconds=MADE.compile_seconds,
    state=2 * GIB,
    needed=20 * GIB,
    is_least=True,
    usable=16 * GIB,
    buffers=MADE.buffers,
    buffers_batch=64,
    attention=MADE.attention,
)
PROBLEM = "the step does not fit v5litepod-16: ...\nwith batch_size=64 it fits, <b>with</b> 1.0 GiB to spare"


def test_a_job_that_does_not_fit() -> None:
    """The bar goes on beyond the memory of a device; the buffers are those of a batch that could be compiled."""
    page = page_of_excess(EXCESS, PROBLEM, "gpt<2>.yaml", "14:05:09")
    assert "It does not fit: at least 4.0 GiB too much" in page and "verdict failed" in page
    parts = [("fill0", 2), ("fill1", 14), ("beyond", 4)]
    assert bars(page) == [[(kind, pytest.approx(size / 20, abs=1e-4)) for kind, size in parts]]
    assert "everything else</td><td class=number>at least 18.0 GiB" in page
    assert "The largest temporaries with batch_size=64" in page and "4 x bf16[4]" in page
    assert "with batch_size=64 it fits, &lt;b&gt;with" in page and "gpt&lt;2&gt;.yaml on v5litepod-16" in page


def test_a_state_that_alone_does_not_fit() -> None:
    page = page_of_excess(replace(EXCESS, state=18 * GIB, is_least=False, buffers=()), PROBLEM, "a", "14:05:09")
    assert [kind for kind, _ in bars(page)[0]] == ["fill0", "beyond"]
    assert "It does not fit: 4.0 GiB too much" in page and "temporaries" not in page
    assert bars(page_of_excess(replace(EXCESS, needed=None), PROBLEM, "a", "14:05:09")) == []


def test_names_are_only_text() -> None:
    page = made()
    assert "gpt&lt;2&gt;.yaml on v5litepod-16" in page and "&lt;b&gt;exp" in page
    elements = Elements(page)
    assert not {"b", "img", "iframe", "link", "form"} & {*elements.names}
    assert not [
        value for name, value in elements.attributes if name in ("src", "href", "style") or name.startswith("on")
    ]
