"""Every operator of collections, and some vertices, keep the eight laws."""

from __future__ import annotations

import pytest

from riverrun.testing import check_operator
from tests.soaking import draws, first_seed
from tests.testing.programs import CASES, Case


@pytest.mark.drawn
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_laws_are_kept(case: Case) -> None:
    checked = check_operator(
        case.program,
        case.inputs,
        oracle=case.oracle,
        rounds=draws(1, soak=4 * case.rounds),
        seed=first_seed(0),
        epochs=4,
        laws=case.laws,
    )
    assert checked.laws == case.laws
