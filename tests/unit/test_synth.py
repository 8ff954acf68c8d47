"""Synthetic steps: any of them by itself, or from masters that were kept, and each law moves what it says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dcr_mpi.model import TensorSpec
from dcr_mpi.synth import Masters, learning_rate, tensor_words

MATRIX = TensorSpec("layer.q", "bf16", (300, 200))
SINGLE = TensorSpec("layer.router.weight", "f32", (30, 20))
SHARE = 0.03
RATE = {"adam": learning_rate(SHARE, 0), "uniform": SHARE}


@pytest.mark.parametrize("law", ["adam", "uniform"])
@pytest.mark.parametrize("spec", [MATRIX, SINGLE], ids=lambda s: s.dtype)
def test_a_step_from_kept_masters_is_the_step_by_itself(spec: TensorSpec, law: str) -> None:
    kept = Masters()
    for step in (0, 1, 2, 4, 3, 5):  # 3 comes after 4: from the beginning
        alone = tensor_words(spec, step, RATE[law], law, 7, Masters())
        assert np.array_equal(tensor_words(spec, step, RATE[law], law, 7, kept), alone)


@given(st.lists(st.sampled_from(["adam", "uniform"]), min_size=1, max_size=6))
def test_laws_may_follow_one_another_and_each_changes_its_share(laws: list[str]) -> None:
    kept = Masters()
    before = tensor_words(MATRIX, 0, 0.0, "adam", 0, kept)
    for step, law in enumerate(laws, 1):
        after = tensor_words(MATRIX, step, RATE[law], law, 0, kept)
        assert float((after != before).mean()) == pytest.approx(SHARE, rel=0.2)
        if law == "uniform":
            # By one unit in the last place, either way; words are unsigned, and sign comes first.
            assert set(np.unique((after - before).astype(np.int16)).tolist()) <= {-1, 0, 1}
        before = after


def test_a_tie_of_rounding_moves_by_one_unit_too() -> None:
    """A master halfway between two words rounds to the even one; its neighbour would round the other way."""
    kept = Masters()
    spec = TensorSpec("w", "bf16", (4096,))
    ties = (np.arange(4096, dtype=np.uint32) << np.uint32(16) | np.uint32(0x3F808000)).view(np.float32)
    kept._kept["w"] = 0, ties
    before = tensor_words(spec, 0, 0.0, "uniform", 0, kept)
    after = tensor_words(spec, 1, 0.5, "uniform", 0, kept)
    moved = (after - before).astype(np.int16)
    assert set(np.unique(moved).tolist()) == {-1, 0, 1}
    assert 0.4 < float((moved != 0).mean()) < 0.6
