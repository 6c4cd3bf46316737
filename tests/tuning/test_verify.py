"""A record of another TVM is replayed before it is used."""

from __future__ import annotations

import json

from tests.store.kernels import scale_shift, scheduled
from tests.tuning.kernels import product
from tvmfuse import targets
from tvmfuse.kernels import traces
from tvmfuse.plan import Tuned
from tvmfuse.tuning.verify import Verifier


def test_a_record_is_right_where_it_computes_the_same() -> None:
    right = traces.to_json(scheduled(scale_shift(), 4).trace)
    names, decisions = json.loads(json.dumps(right).replace('"C"', '"no such block"'))
    with Verifier(targets.resolve("cpu")) as verify:
        assert verify(product(), Tuned({"unroll": 2}))
        assert verify(scale_shift(), Tuned(trace=right))
        assert not verify(scale_shift(), Tuned(trace=[names, decisions]))


def test_on_another_machine_nothing_can_be_verified() -> None:
    with Verifier(targets.resolve("cpu:neoverse-n1")) as verify:
        assert not verify(product(), Tuned({"unroll": 2}))
