"""Logits of a converted file against transformers in float32 over the checkpoint: kvart convert --check."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Corrupt, NotFound
from ..evaluate import log_softmax
from .verify import sample_text

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_MAX_TOKENS = 128
# Most mean divergence in nats. Below 8 bits it depends on the model: told, not judged.
_MOST_KL = {"f32": 1e-5, "f16": 1e-3, "bf16": 5e-3, "q8_0": 1e-2}


def check_installed() -> None:
    """NotFound where torch or transformers is missing: told before an hour of work."""
    missing = [name for name in ("torch", "transformers") if importlib.util.find_spec(name) is None]
    if missing:
        raise NotFound(f"--check needs {' and '.join(missing)}, not installed here: pip install torch transformers")


def compare_logits(directory: Path, path: Path, recipe: str, threads: int) -> dict[str, Any]:
    """{"tokens", "max_difference", "kld_mean", "top1", "same_ids"} of the sample text's beginning.

    kvart computes with float activations and a float cache, so that what differs is the conversion. Takes four bytes a
    weight for transformers. Corrupt where the types f32, f16, bf16 or q8_0 diverge more than they can.
    """
    import numpy as np

    from ..model import Model

    model = Model(path, threads=threads, activations="f32")
    text = sample_text()
    ids = model.encode(text)
    theirs, their_ids = _run_transformers(directory, ids[:_MAX_TOKENS], text)
    ours = model.logits(ids[:_MAX_TOKENS], kv="f32")
    log_p, log_q = log_softmax(theirs), log_softmax(ours)
    divergence = np.einsum("ij,ij->i", np.exp(log_p), log_p - log_q)
    found: dict[str, Any] = {
        "tokens": len(ours),
        "max_difference": float(np.abs(ours - theirs).max()),
        "kld_mean": float(np.maximum(divergence, 0.0).mean()),
        "top1": float((ours.argmax(axis=1) == theirs.argmax(axis=1)).mean()),
        "same_ids": None if their_ids is None else their_ids == ids,
    }
    most = _MOST_KL.get(recipe)
    if most is not None and not found["kld_mean"] <= most:
        message = (
            f"the logits diverge from transformers' by {found['kld_mean']:.3g} nats; {recipe} explains at most {most:g}"
        )
        raise Corrupt(message, file=str(directory))
    if found["same_ids"] is False:
        raise Corrupt("the tokenizer gives other ids than transformers' for the sample text", file=str(directory))
    return found


def _run_transformers(directory: Path, ids: list[int], text: str) -> tuple[npt.NDArray[np.float32], list[int] | None]:
    """Logits (n, vocabulary) of ids, and the ids of text; None where transformers loads no tokenizer from there."""
    # By name: kvart is type-checked where they are not installed.
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    logging = importlib.import_module("transformers.utils.logging")

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    # Files of the directory alone: no hub, no code of the checkpoint, no pickles.
    local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=torch.float32, use_safetensors=True, **local
        ).eval()
    except (OSError, ValueError) as error:
        raise Corrupt(f"transformers can't load {directory}: {error}", file=str(directory)) from None
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0].float().numpy()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(directory, **local)
    except (OSError, ValueError):
        return logits, None
    return logits, tokenizer.encode(text, add_special_tokens=False)
