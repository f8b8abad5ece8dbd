"""Hugging Face models on the meta device: shapes and code, no memory, nothing downloaded."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import transformers
from torch import nn
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

Build = Callable[..., nn.Module]


@pytest.fixture(scope="session")
def build() -> Build:
    def make(kind: str, **settings: Any) -> nn.Module:
        config = transformers.CONFIG_MAPPING[kind](**settings)
        with torch.device("meta"):
            return getattr(transformers, MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind])(config)

    return make
