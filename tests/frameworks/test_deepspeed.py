"""DeepSpeed conforms in all of ZeRO's stages, with all settings."""

from __future__ import annotations

from deepspeed.accelerator import get_accelerator

from conformance.suite.items import collect
from conformance.suite.servers import Servers

ADAPTER = "conformance.frameworks.deepspeed"
TARGET = " ".join(f"{ADAPTER}:zero_{stage}" for stage in range(4))
REFUSED = "DeepSpeed refuses fp16 here, because this CPU has no instructions for it (AVX512-FP16)"
CASES = (
    "deepspeed-w2-acc2-fp32-momentum",
    "deepspeed-w2-acc2-bf16-momentum",
    "deepspeed-w2-acc2-fp32-weighted",
    "deepspeed-w3-acc2-fp32-clip-norm",
    "deepspeed-w3-acc2-fp32-adamw",
    "deepspeed-w4-acc2-fp32-short-window",
    "deepspeed-w4-fp32-ranks-start-apart",
    "deepspeed-w2-acc2-fp32-many-shards",
    "deepspeed-w3-acc2-fp32-many-shards-groups",
    "deepspeed-w4-fp32-many-shards-clip-norm",
    "deepspeed-w2-acc2-fp32-many-shards-resumed-at-4",
    "deepspeed-w2-acc2-fp32-many-shards-resumed-at-3-killed",
)


def test_every_case_passes(judged):
    assert [(case.trainer, case.id) for case in judged if not case.verdict.startswith("PASS")] == []
    assert len(judged) == 4 * len(CASES)


def test_the_memory_of_the_optimizers_state(judged):
    """Ten parameters of 18 elements, in fp32: all in stage 0, else half, padded to pairs together or each."""
    traffic = {case.trainer: case.traffic for case in judged if case.id == "deepspeed-w2-acc2-fp32-many-shards"}
    kept = {name: (found.state, {rank.state for rank in found.ranks}) for name, found in traffic.items()}
    assert kept == {"zero_0": (72, {72}), "zero_1": (72, {40}), "zero_2": (72, {40}), "zero_3": (72, {44})}


def test_traffic_is_as_the_formula_says(judged):
    """Also with a short window, or with ranks that start from different weights."""
    off = [
        (case.trainer, case.id, rank.reduced, rank.expected_reduced)
        for case in judged
        for rank in case.traffic.ranks
        if rank.reduced != rank.expected_reduced
    ]
    assert off == []


def test_fp16_is_unavailable_where_deepspeed_refuses_it():
    servers = Servers()
    [item] = collect(servers, [f"{ADAPTER}:zero_1"], [], ["deepspeed-w2-acc2-fp16-momentum"])
    servers.close()
    supported = get_accelerator().is_fp16_supported()
    assert (item.verdict, item.reason) == ((None, "") if supported else ("UNAVAILABLE", REFUSED))
