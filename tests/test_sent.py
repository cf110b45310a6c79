"""What `fedax list algorithms` says that methods send is kept in a file, and is what they send."""

import jax
import pytest

import build_sent
from fedax.algorithms.registry import ALGORITHMS, WRAPPERS
from fedax.cli import catalogue


@pytest.mark.slow
def test_the_file_is_what_methods_send():
    """If this fails, run python scripts/build_sent.py."""
    with (
        jax.enable_x64(False), jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        assert catalogue.SENT.read_text("utf-8") == build_sent.text()


@pytest.mark.quick
def test_methods_of_fedax_are_listed_without_being_traced(monkeypatch):
    monkeypatch.setattr(catalogue, "communication", pytest.fail)
    rows = {row["name"].rstrip("+"): row for row in catalogue.rows("algorithms")}
    assert list(rows) == [*ALGORITHMS, *WRAPPERS]
    assert rows["scaffold"]["copies"] == 4
