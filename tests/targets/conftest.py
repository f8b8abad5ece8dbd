"""Configs of transformers' own types, shallow, so that many can be built in little time."""

from collections.abc import Callable
from typing import Any

import pytest
import transformers


@pytest.fixture(scope="session")
def config_of() -> Callable[..., Any]:
    def make(kind: str, **settings: Any) -> Any:
        return transformers.CONFIG_MAPPING[kind](**settings)

    return make
