"""The schema of train.yaml: one validated, frozen object that says everything about a training job.

Nothing here imports JAX: the launcher validates a job where JAX is not installed. Sections that have a `name` are seams:
a built-in choice has its own keys, and `package.module:attribute` names the user's own code, which gets `options`.
"""

from .base import PLUGIN_PATTERN, Plugin, Section
from .checks import check_slice
from .data import (
    ArrayRecordData,
    BPETokenizer,
    ByteTokenizer,
    CharTokenizer,
    DigitsData,
    IdxData,
    MakeClassificationData,
    NpzData,
    ParquetData,
    PythonSourceData,
    SineData,
    TextData,
    TokensData,
)
from .files import check_files, text_files
from .job import Config, saved_config, train_schema
from .model import CNN, GPT2_PRESETS, MLP, GPT2Model, Linear
from .optimizer import LBFGS, SGD, Adafactor, Adam, AdamW, Lion, Muon, Schedule
from .parallel import Ensemble, Explicit, Jit, Mesh, Pmap, ShardMap, Single
from .sections import Checkpoint, Launch, Variable

__all__ = [
    "CNN",
    "GPT2_PRESETS",
    "LBFGS",
    "MLP",
    "PLUGIN_PATTERN",
    "SGD",
    "Adafactor",
    "Adam",
    "AdamW",
    "ArrayRecordData",
    "BPETokenizer",
    "ByteTokenizer",
    "CharTokenizer",
    "Checkpoint",
    "Config",
    "DigitsData",
    "Ensemble",
    "Explicit",
    "GPT2Model",
    "IdxData",
    "Jit",
    "Launch",
    "Linear",
    "Lion",
    "MakeClassificationData",
    "Mesh",
    "Muon",
    "NpzData",
    "ParquetData",
    "Plugin",
    "Pmap",
    "PythonSourceData",
    "Schedule",
    "Section",
    "ShardMap",
    "SineData",
    "Single",
    "TextData",
    "TokensData",
    "Variable",
    "check_files",
    "check_slice",
    "saved_config",
    "text_files",
    "train_schema",
]
