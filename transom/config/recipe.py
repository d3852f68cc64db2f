"""The recipe: everything a training run depends on, in one TOML file."""

import difflib
import tomllib
import typing
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import tomli_w
from pydantic import BaseModel, Field, ValidationError

from transom.config.brick import Schema
from transom.config.data import Data, Tokenizer
from transom.config.model import Model, Seq2Seq
from transom.config.training import Decoding, Training
from transom.errors import ConfigError


class Recipe(Schema):
    """A task, its data, a tokenizer, a model and how it is trained and decoded."""

    task: Literal["translation"] = Field("translation", description="what the model learns to do")
    data: Data = Field(..., description="the examples")
    tokenizer: Tokenizer = Field(Tokenizer(), description="text to symbols")
    model: Model = Field(Seq2Seq(), description="the network; preset = NAME starts from a published one")
    training: Training = Field(Training(), description="the run")
    decoding: Decoding = Field(Decoding(), description="the search for translations")
