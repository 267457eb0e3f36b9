"""Writes tests/golden/quant.bin: what the `gguf` package makes of random blocks and rows, for quant_golden_test.cc.

Run: python tools/make_quant_golden.py [output]. Needs numpy and gguf. Seeds are fixed: the same bytes every time.

Layout, little-endian: magic "KVQG", u32 version 1, u32 number of records, then per record
  u32 kind (0: decode blocks to floats, 1: encode floats to blocks), u32 ggml type id, u32 n values, u32 n bytes,
  the bytes of the blocks, the n floats.
"""

import pathlib
import struct
import sys

import numpy as np
from gguf.constants import GGML_QUANT_SIZES
from gguf.constants import GGMLQuantizationType as T
from gguf.quants import dequantize, quantize

DECODED = [
    T.F32,
    T.F16,
    T.BF16,
    T.Q4_0,
    T.Q4_1,
    T.Q5_0,
    T.Q5_1,
    T.Q8_0,
    T.Q2_K,
    T.Q3_K,
    T.Q4_K,
    T.Q5_K,
    T.Q6_K,
    T.IQ4_NL,
    T.IQ4_XS,
]
ENCODED = [T.F32, T.F16, T.BF16, T.Q4_0, T.Q4_1, T.Q5_0, T.Q5_1, T.Q8_0]
# Where the halves (scales and mins) stand in a block.
HALVES = {
    T.Q4_0: [0],
    T.Q4_1: [0, 2],
    T.Q5_0: [0],
    T.Q5_1: [0, 2],
    T.Q8_0: [0],
    T.Q2_K: [80, 82],
    T.Q3_K: [108],
    T.Q4_K: [0, 2],
    T.Q5_K: [0, 2],
    T.Q6_K: [208],
    T.IQ4_NL: [0],
    T.IQ4_XS: [0],
}
# Zeros, smallest and largest subnormal, smallest normal, one, largest, and negative ones: every one finite.
EXTREME = np.array([0x0000, 0x8000, 0x0001, 0x03FF, 0x8001, 0x0400, 0x3C00, 0x7BFF, 0xFBFF, 0x83FF], np.uint16)
VALUES = 2304


def random_blocks(qtype: T, rng: np.random.Generator) -> np.ndarray:
    """Random bytes of VALUES values with finite scales, the first blocks' scales extreme."""
    block_values, block_bytes = GGML_QUANT_SIZES[qtype]
    n_blocks = VALUES // block_values
    if qtype == T.F32:
        return rng.standard_normal(VALUES).astype(np.float32).view(np.uint8)
    if qtype in (T.F16, T.BF16):
        bits = rng.integers(0, 1 << 16, VALUES).astype(np.uint16)
        exponent = 0x7C00 if qtype == T.F16 else 0x7F80
        bits[(bits & exponent) == exponent] = 0x3C00
        bits[: len(EXTREME)] = EXTREME
        return bits.view(np.uint8)
    blocks = rng.integers(0, 256, (n_blocks, block_bytes)).astype(np.uint8)
    for at in HALVES[qtype]:
        halves = (rng.standard_normal(n_blocks) * 0.05).astype(np.float16).view(np.uint16)
        n_extreme = min(len(EXTREME), n_blocks)
        halves[:n_extreme] = rng.permutation(EXTREME)[:n_extreme]
        blocks[:, at : at + 2] = halves.astype("<u2").view(np.uint8).reshape(n_blocks, 2)
    return blocks.reshape(-1)


def float_rows(rng: np.random.Generator) -> np.ndarray:
    """VALUES floats in groups of 32 that differ in size, with ties, constants, zeros and one-sided groups."""
    rows = rng.standard_normal((VALUES // 32, 32)) * 10.0 ** rng.uniform(-6, 3, (VALUES // 32, 1))
    rows[0] = 0.0
    rows[1] = -0.0
    rows[2] = 3.25
    rows[3] = -3.25
    rows[4] = np.arange(32) - 16.0  # halves between codes
    rows[5] = (np.arange(32) - 15.5) * 0.5
    rows[6] = np.abs(rows[6])
    rows[7] = -np.abs(rows[7])
    rows[8, 1:] = 0.0
    rows[9] = np.tile([1.0, -1.0], 16)  # equal magnitudes: the first one decides
    rows[10] = np.tile([-1.0, 1.0], 16)
    rows[11] = rng.standard_normal(32) * 1e-8  # scales that are subnormal halves or zero
    rows[12] = rng.standard_normal(32) * 6e4
    rows[13] = (np.arange(32) - 16) * 127 / 16 + 0.5
    rows[14] = np.linspace(-1.0, 1.0, 32) * 127.0
    return rows.astype(np.float32).reshape(-1)


def main() -> None:
    default = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "quant.bin"
    output = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else default
    records = []
    for qtype in DECODED:
        blocks = random_blocks(qtype, np.random.default_rng(1000 + int(qtype)))
        floats = dequantize(blocks, qtype).astype(np.float32).reshape(-1)
        assert floats.size == VALUES and not np.isnan(floats).any(), qtype
        records.append((0, int(qtype), blocks.tobytes(), floats))
    for qtype in ENCODED:
        floats = float_rows(np.random.default_rng(2000 + int(qtype)))
        with np.errstate(over="ignore"):
            blocks = quantize(floats, qtype)
        records.append((1, int(qtype), blocks.tobytes(), floats))
    with output.open("wb") as file:
        file.write(b"KVQG" + struct.pack("<II", 1, len(records)))
        for kind, qtype, blocks, floats in records:
            file.write(struct.pack("<IIII", kind, qtype, floats.size, len(blocks)))
            file.write(blocks)
            file.write(floats.astype("<f4").tobytes())
    print(f"{output}: {len(records)} records, {output.stat().st_size} bytes")


if __name__ == "__main__":
    main()
