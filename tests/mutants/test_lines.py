"""The first card of a mutant names the line that its patch changes, also where no event has it."""

from __future__ import annotations

import ast
from difflib import SequenceMatcher
from types import SimpleNamespace

import pytest

from conformance.oracle.faults import KNOWN
from conformance.report.card import cards
from conformance.suite.servers import Servers
from fixtures.kill import judged
from fixtures.specimens import named
from fixtures.written import source

#: Each with another kind of line.
NAMED = (
    *("adam_for_adamw", "bf16_branch_nominal_length", "buffers_of_the_start", "centralised_gradients"),
    *("clips_own_gradients_between_backwards", "decay_per_micro_batch", "declares_drop_and_leaves_gradients"),
    *("doubled_after_clipping", "ema_factors_swapped", "evaluation_leaves_gradients", "fsdp2_clips_shards"),
    *("never_predicted_targets_counted", "own_order_not_sharded", "rate_halved_by_hand_too"),
)


def changed(mutant):
    """The numbers of the lines that its patch adds or replaces, below the docstring."""
    text = source(mutant)
    end, base = ast.parse(text).body[0].end_lineno, mutant.base.read_text().splitlines()
    blocks = SequenceMatcher(None, base, text.splitlines(), autojunk=False).get_opcodes()
    return {line for kind, *_, first, last in blocks if kind != "equal" for line in range(first + 1, last + 1)} - {
        *range(end + 1)
    }


@pytest.fixture
def servers():
    servers = Servers()
    yield servers
    servers.close()


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.in_turn] * bool(number % 3)) for number, name in enumerate(NAMED)]
)
def test_line(name, servers):
    mutant = named("mutants")[name]
    header = SimpleNamespace(bugs={fault.name: fault.text for fault in KNOWN})
    first, *_ = cards(SimpleNamespace(cases=tuple(judged(mutant, servers)), header=header))
    assert int(first.where.rpartition(":")[2]) in changed(mutant), (first.where, first.edit)
