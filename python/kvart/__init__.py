"""kvart runs Qwen models on small devices.

>>> import kvart
>>> model = kvart.Model("qwen2.5-coder-0.5b")
>>> for piece in model.chat([{"role": "user", "content": "Hi"}]):
...     print(piece, end="", flush=True)
"""

from ._core import GgufFile, ModelInfo, Sampler, StreamDecoder, StreamEncoder, Tokenizer, __version__
from .chat import render_chat_builtin
from .errors import (
    Busy,
    Cancelled,
    ContextFull,
    Corrupt,
    Error,
    Internal,
    InvalidArgument,
    Io,
    NoSpace,
    NotFound,
    OutOfMemory,
    Unsupported,
)
from .generation import Generation
from .model import Model, Resumed, Session

__all__ = [
    "Busy",
    "Cancelled",
    "ContextFull",
    "Corrupt",
    "Error",
    "Generation",
    "GgufFile",
    "Internal",
    "InvalidArgument",
    "Io",
    "Model",
    "ModelInfo",
    "NoSpace",
    "NotFound",
    "OutOfMemory",
    "Resumed",
    "Sampler",
    "Session",
    "StreamDecoder",
    "StreamEncoder",
    "Tokenizer",
    "Unsupported",
    "__version__",
    "render_chat_builtin",
]
