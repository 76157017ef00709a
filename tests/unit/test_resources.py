"""resources.data_dir: the checkout's root here; the packaged copy is covered by tests/integration/test_wheel.py."""

from __future__ import annotations

from agent_container.resources import data_dir


def test_in_a_checkout_the_data_lies_at_its_root() -> None:
    assert (data_dir() / "pyproject.toml").is_file()
    for name in ("sidecar", "agent_container"):
        assert (data_dir() / name).is_dir()
