"""Models for the tests: tiny random ones that are made here, and the real one where it counts."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import kvart

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

REAL_MODEL = "qwen2.5-coder-0.5b"


@pytest.fixture(autouse=True)
def _own_kv_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test touches the user's sessions."""
    monkeypatch.setenv("KVART_KV_DIR", str(tmp_path / "kv"))


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """make_tiny(**options of make_tiny_model) → path. Equal options share one file."""
    from make_tiny_model import make_tiny_model

    folder = tmp_path_factory.mktemp("tiny")
    made: dict[str, Path] = {}

    def make(**options: object) -> Path:
        key = repr(sorted(options.items()))
        if key not in made:
            made[key] = make_tiny_model(folder / f"tiny-{len(made)}.gguf", **options)
        return made[key]

    return make


@pytest.fixture(scope="session")
def tiny_path(make_tiny: Callable[..., Path]) -> Path:
    return make_tiny()


@pytest.fixture(scope="session")
def tiny(tiny_path: Path) -> kvart.Model:
    return kvart.Model(tiny_path, threads=2)


@pytest.fixture(scope="session")
def real_model_path() -> Path:
    """The file of the real model, pulled if it is not there. KVART_TEST_NO_MODEL=1 skips what needs it."""
    if os.environ.get("KVART_TEST_NO_MODEL") == "1":
        pytest.skip("KVART_TEST_NO_MODEL=1")
    from kvart.pull import pull

    return pull(REAL_MODEL)


@pytest.fixture(scope="session")
def real_model(real_model_path: Path) -> kvart.Model:
    return kvart.Model(REAL_MODEL)
