"""Looks at a file that has just been written: opened anew, rows compared with the checkpoint's, then run."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _core
from ..errors import Corrupt, Error, Internal

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from .tokenizer import Vocabulary
    from .writer import Planned

SAMPLE = Path(__file__).with_name("sample.txt")
_ROWS_COMPARED = 4  # of every tensor
_CTX = 256
_NEW_TOKENS = 16
_PROMPT = "The harbour wakes before the town does. At five the first boats"

# The most that the root mean square of an error may be, relative to that of the rows: somewhat more than the worst
# block can lose, one outlier among values of half a step. A wrong row, order or scale makes about 1 or more.
_MOST_ERROR = {"f32": 1e-6, "f16": 0.001, "bf16": 0.005, "q8_0": 0.03, "q6_k": 0.1, "q5_k": 0.25, "q5_1": 0.25}
_MOST_ERROR |= {"q5_0": 0.25, "q4_k": 0.45, "q4_1": 0.45, "q4_0": 0.45, "q3_k": 0.6, "q2_k": 0.8}
_TINY = 1e-3  # smaller rows count as so large: those of tokens never trained are near 0, where FP16 has few digits


def check_structure(path: Path, directory: Path, tensors: list[Planned], vocabulary: Vocabulary) -> None:
    """kvart's own reader takes the file: the list of tensors, the sizes, the tokenizer. Corrupt where it does not."""
    file = _core.GgufFile(str(path))
    found = [(tensor.name, tensor.type, tuple(reversed(tensor.dims))) for tensor in file.tensors]
    wanted = [(tensor.name, tensor.type, tensor.shape) for tensor in tensors]
    if found != wanted:
        raise Internal(f"the tensors of {path} are not those that were written")
    file.config()
    try:
        tokenizer = _core.Tokenizer(str(path))
    except Error as error:
        raise Corrupt(f"the tokenizer of {directory}: {error.message}", file=str(directory)) from None
    if tokenizer.n_vocab != len(vocabulary.tokens):
        raise Internal(f"{path} has {tokenizer.n_vocab} tokens; {len(vocabulary.tokens)} were written")


def compare_tensors(path: Path, tensors: list[Planned], progress: Callable[[float], object]) -> dict[str, Any]:
    """Some rows of every tensor against the checkpoint: {"tensors", "rows", "worst": {"tensor", "type", "error"}}.

    error: root mean square of the difference over that of the rows. Corrupt where it is more than the type explains.
    """
    import numpy as np

    file = _core.GgufFile(str(path))
    rng = np.random.default_rng(0)
    worst: dict[str, Any] = {"tensor": None, "type": None, "error": -1.0}
    n_rows = 0
    for number, tensor in enumerate(tensors, 1):
        picked = rng.choice(tensor.n_rows, min(_ROWS_COMPARED, tensor.n_rows), replace=False)
        wanted = np.concatenate([tensor.rows(row, row + 1) for row in map(int, picked)])
        found = np.concatenate([file.rows(tensor.name, row, row + 1) for row in map(int, picked)])
        error = _relative_error(wanted, found)
        if not error <= _MOST_ERROR[tensor.type]:
            message = f"{tensor.name} as {tensor.type} is off by {error:.3g} of its size; {_MOST_ERROR[tensor.type]} is"
            raise Corrupt(f"{message} the most: the file does not hold the checkpoint's weights", file=str(path))
        if error > worst["error"]:
            worst = {"tensor": tensor.name, "type": tensor.type, "error": error}
        n_rows += len(picked)
        progress(number / len(tensors))
    return {"tensors": len(tensors), "rows": n_rows, "worst": worst}


def _relative_error(wanted: npt.NDArray[np.float32], found: npt.NDArray[np.float32]) -> float:
    import numpy as np

    size = float(np.sqrt(np.mean(np.square(wanted, dtype=np.float64))))
    difference = float(np.sqrt(np.mean(np.square(wanted.astype(np.float64) - found))))
    return difference / max(size, _TINY)


def compare_tokenizers(path: Path, tokenizer_json: Path) -> dict[str, Any] | None:
    """The ids of the sample text, kvart's against the tokenizers package's; None where that or its file is missing."""
    try:
        import tokenizers
    except ImportError:
        return None
    if not tokenizer_json.exists():
        return None
    text = sample_text()
    try:
        wanted = tokenizers.Tokenizer.from_file(str(tokenizer_json)).encode(text, add_special_tokens=False).ids
    except Exception as error:  # what it raises has no class of its own
        raise Corrupt(f"{tokenizer_json} can't be loaded: {error}", file=str(tokenizer_json)) from None
    found = _core.Tokenizer(str(path)).encode(text)
    if found != wanted:
        at = next(
            (i for i, (a, b) in enumerate(zip(found, wanted, strict=False)) if a != b), min(len(found), len(wanted))
        )
        message = f"the tokenizer of {path.name} cuts text differently than {tokenizer_json} from token {at} on"
        raise Corrupt(message, file=str(tokenizer_json))
    return {"tokens": len(wanted)}


def sample_text() -> str:
    """A short text that the package ships: English, figures, code, Chinese."""
    return SAMPLE.read_text("utf-8")


def run(path: Path, threads: int, progress: Callable[[float], object]) -> dict[str, Any]:
    """A prompt, continued greedily, and the perplexity of the sample text: {"prompt", "text", "ppl", "positions"}.

    {"skipped": why} where the memory does not hold the model. Corrupt where the logits are not finite.
    """
    from ..evaluate import perplexity
    from ..model import Model

    need, free = path.stat().st_size, available_bytes()
    if free is not None and free < need:
        return {"skipped": f"the model has {need / 1e9:.1f} GB, {free / 1e9:.1f} GB of memory are free"}
    model = Model(path, threads=threads, progress=lambda done: progress(0.5 * done))
    ids = model.encode(sample_text())
    ctx = min(_CTX, len(ids), model.info.n_ctx_train)
    [row] = perplexity(model, ids[:ctx], ctx=ctx, kv="f16", progress=lambda done: progress(0.5 + 0.5 * done))
    if not math.isfinite(row["ppl"]):
        raise Corrupt(f"the model's perplexity is {row['ppl']}: its weights make no finite logits", file=str(path))
    prompt = model.tokenizer.decode(model.encode(_PROMPT)[: max(1, model.info.n_ctx_train - _NEW_TOKENS)])
    with model.session(kv="f16") as session:
        text = session.generate(prompt, max_tokens=_NEW_TOKENS).read()
    return {"prompt": prompt, "text": text, "ppl": row["ppl"], "positions": row["positions"]}


def available_bytes() -> int | None:
    """Memory that can be had without swapping; None where the system does not say."""
    try:
        with open("/proc/meminfo", "rb") as info:
            for line in info:
                if line.startswith(b"MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None
