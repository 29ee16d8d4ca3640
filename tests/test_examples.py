"""The examples run, and say that what they found is right."""

from __future__ import annotations

import pytest

from examples import campaigns


@pytest.mark.parametrize("seed", [7, 8])
def test_campaigns_are_credited_as_it_happened(seed, capsys):
    assert campaigns.main(seed), f"seed {seed}"
    assert "different" not in capsys.readouterr().out
