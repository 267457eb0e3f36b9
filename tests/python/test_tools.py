"""The checks of tools/: they pass on this repository, and each finds what it is there for when it is planted."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CHECKS = ["check_layers", "check_kernels", "check_text"]

# Written in pieces, or check_text would find them here.
HOME = "/ho" + "me/somebody/models"
HOST = "py" + "pi.org"


def run(check: str, root: Path, *arguments: str) -> tuple[int, str]:
    command = [sys.executable, str(ROOT / "tools" / f"{check}.py"), *arguments, *([] if arguments else [str(root)])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    return done.returncode, done.stdout


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A small tree that passes every check."""
    write(tmp_path, "cpp/base/status.h", "#pragma once\n")
    write(tmp_path, "cpp/quant/dtype.h", '#pragma once\n#include "base/status.h"\n')
    write(tmp_path, "cpp/kvcache/pool.h", '#pragma once\n#include "quant/dtype.h"\n')
    write(tmp_path, "cpp/model/decoder.h", '#pragma once\n#include <vector>\n#include "kvcache/pool.h"\n')
    write(tmp_path, "cpp/engine/engine.h", '#pragma once\n#include "model/decoder.h"\n')
    write(tmp_path, "cpp/kernels/kernels.h", '#pragma once\n#include "quant/dtype.h"\n')
    write(tmp_path, "cpp/kernels/scalar/scalar_inl.h", "inline float Sum(float a) { return a; }\n")
    write(
        tmp_path,
        "cpp/kernels/avx2/avx2_inl.h",
        "#include <immintrin.h>\ninline __m256 Zero() { return _mm256_setzero_ps(); }\n",
    )
    write(
        tmp_path,
        "cpp/kernels/avx2/matmul_q5_0_avx2.cc",
        '#include "kernels/avx2/avx2_inl.h"\n#include "kernels/kernels.h"\nnamespace kvart::avx2 {\nnamespace {\n'
        "void Helper(int a) {\n  if (a) {\n  }\n}\n}  // namespace\n"
        "void matmul_q5_0_i8_avx2(const MatmulArgs& a) {\n  Helper(1);\n}\n"
        'const MatmulKernel kMatmul[] = {{"matmul_q5_0_i8_avx2", matmul_q5_0_i8_avx2}};\n}  // namespace kvart::avx2\n',
    )
    write(tmp_path, "cpp/kernels/neon/rows_neon.cc", "#include <arm_neon.h>\nvoid rms_norm_neon(float32x4_t x) {\n}\n")
    write(tmp_path, "docs/notes.md", "Nothing of interest.\n")
    return tmp_path


@pytest.mark.parametrize("check", CHECKS)
def test_the_repository_passes(check: str) -> None:
    code, output = run(check, ROOT)
    assert code == 0, output


@pytest.mark.parametrize("check", CHECKS)
def test_the_small_tree_passes(check: str, tree: Path) -> None:
    code, output = run(check, tree)
    assert (code, output) == (0, f"{check}.py: ok\n")


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        (
            "cpp/base/a.h",
            '\n#include "model/decoder.h"\n',
            'cpp/base/a.h:2: base includes "model/decoder.h"; base may include only base',
        ),
        ("cpp/kernels/a.h", '#include "kvcache/pool.h"\n', "cpp/kernels/a.h:1: kernels includes"),
        ("cpp/kvcache/a.cc", '#  include  "engine/engine.h"\n', "cpp/kvcache/a.cc:1: kvcache includes"),
        ("cpp/model/a.cc", '/* a\n b */\n#include "engine/engine.h"  // why\n', "cpp/model/a.cc:3: model includes"),
        ("cpp/model/a.cc", '#include "decoder.h"\n', "cpp/model/a.cc:1:"),
        ("cpp/model/a.cc", '#include "../base/status.h"\n', "cpp/model/a.cc:1:"),
        ("cpp/model/a.cc", '#include "model/gone.h"\n', "which is not in cpp/"),
        ("cpp/model/a.cc", "#include <base/status.h>\n", 'our own files are included as "base/status.h"'),
        ("cpp/util/a.h", "\n", "cpp/util/a.h:1: 'util' is no layer"),
        ("cpp/sampler/a.cc", '#include "model/decoder.h"\n', "cpp/sampler/a.cc:1: sampler includes"),
    ],
)
def test_layers_finds(tree: Path, name: str, text: str, found: str) -> None:
    write(tree, name, text)
    code, output = run("check_layers", tree)
    assert code == 1
    assert found in output
    assert output.endswith("check_layers.py: 1 problems\n")


def test_layers_passes_over_comments(tree: Path) -> None:
    write(tree, "cpp/base/a.h", '// #include "model/decoder.h"\n/*\n#include "model/decoder.h"\n*/\n')
    assert run("check_layers", tree)[0] == 0


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        (
            "cpp/kernels/avx2/matmul_avx2.cc",
            "\nvoid matmul_q9_0_i8_avx2(int a) {\n}\n",
            "matmul_avx2.cc:2: matmul_q9_0_i8_avx2 is not <op>",
        ),
        ("cpp/kernels/avx2/matmul_avx2.cc", "void matmul_q4_k_avx2(int a) {\n}\n", "matmul_q4_k_avx2 is not <op>"),
        ("cpp/kernels/avx2/matmul_avx2.cc", "void FastMatmul(int a) {\n}\n", "FastMatmul is not <op>"),
        ("cpp/kernels/avx2/matmul_avx2.cc", "void matmul_q4_k_i8_neon(int a) {\n}\n", "its name says neon"),
        ("cpp/kernels/avx2/matmul_avx2.cc", "void quantize_avx2(int a) {\n}\n", "quantize_avx2 belongs into"),
        (
            "cpp/kernels/avx2/matmul_avx2.cc",
            'R kRows[] = {\n{"matmul_q4_k_i8_scalar", f}};\n',
            "matmul_avx2.cc:2: matmul_q4_k_i8_scalar",
        ),
        ("cpp/kernels/avx2/matmul_fast.cc", "\n", "matmul_fast.cc:1: files of kernels/avx2 are named"),
        ("cpp/kernels/sse9/matmul_sse9.cc", "\n", "'sse9' is no instruction set"),
        (
            "cpp/kernels/avx2/matmul_avx2.cc",
            '#include "kernels/scalar/scalar_inl.h"\n',
            "includes a helper of kernels/scalar",
        ),
        (
            "cpp/kernels/neon/matmul_neon.cc",
            '#include "kernels/scalar/scalar_inl.h"\n',
            "includes a helper of kernels/scalar",
        ),
        ("cpp/kernels/dispatch.cc", '#include "kernels/scalar/scalar_inl.h"\n', "which is for its own folder only"),
        ("cpp/backend/cpu/a.cc", "#include <immintrin.h>\n", "cpp/backend/cpu/a.cc:1: <immintrin.h>: x86 code"),
        (
            "cpp/kernels/scalar/rows_scalar.cc",
            "\n\nauto x = _mm_setzero_ps();\n",
            "rows_scalar.cc:3: _mm_setzero_ps: x86 code",
        ),
        ("cpp/quant/a.h", "__m256i x;\n", "cpp/quant/a.h:1: __m256i: x86 code"),
        ("cpp/kernels/neon/rows2_neon.cc", "__m128 x;\n", "x86 code"),
        ("cpp/kernels/avx2/rows_avx2.cc", "float32x4_t x;\n", "NEON code"),
        ("cpp/base/a.cc", "#include <arm_neon.h>\n", "NEON code"),
        ("tests/cpp/base/a_test.cc", "#include <x86intrin.h>\n", "x86 code"),
    ],
)
def test_kernels_finds(tree: Path, name: str, text: str, found: str) -> None:
    write(tree, name, text)
    code, output = run("check_kernels", tree)
    assert code == 1
    assert found in output
    assert output.endswith("check_kernels.py: 1 problems\n")


@pytest.mark.parametrize(
    "text",
    [
        "namespace {\nvoid Helper(int a) {\n}\n}\n",
        "static void Helper(int a) {\n}\n",
        "template <int kN>\nvoid Helper(int a) {\n}\n",
        "// _mm_pause()\nvoid matmul_f16_f32_scalar(const A& a) {\n}\n",
        'R kRows[] = {{"matmul_" #n "_i8_scalar", f}};\n',
        "void matmul_iq4_xs_i8_scalar_wide(const A& a, int* b) {\n}\n",
    ],
)
def test_kernels_lets_pass(tree: Path, text: str) -> None:
    write(tree, "cpp/kernels/scalar/matmul_scalar.cc", text)
    assert run("check_kernels", tree) == (0, "check_kernels.py: ok\n")


@pytest.mark.skipif(shutil.which("g++") is None or shutil.which("nm") is None, reason="needs g++ and nm")
def test_kernels_finds_a_shared_inline_function(tmp_path: Path) -> None:
    source = "namespace kvart { inline int Twice(int a) { return 2 * a; } int (*f)(int) = Twice; }\n"
    write(tmp_path, "kernels/avx2/a.cc", source)
    folder = tmp_path / "kernels/avx2"
    subprocess.run(["g++", "-c", "a.cc", "-o", "a.o"], cwd=folder, check=True)
    code, output = run("check_kernels", tmp_path, "--objects", str(tmp_path))
    assert code == 1
    assert "has a shared copy of kvart::Twice(int)" in output
    write(tmp_path, "kernels/avx2/a.cc", source.replace("namespace kvart", "namespace kvart::avx2"))
    subprocess.run(["g++", "-c", "a.cc", "-o", "a.o"], cwd=folder, check=True)
    assert run("check_kernels", tmp_path, "--objects", str(tmp_path))[0] == 0
    (folder / "a.o").rename(folder / "a_avx2_vnni.o")  # the folder's own files lack these instructions
    code, output = run("check_kernels", tmp_path, "--objects", str(tmp_path))
    assert code == 1
    assert "a_avx2_vnni.o: has a shared copy of kvart::avx2::Twice(int)" in output
    code, output = run("check_kernels", tmp_path, "--objects", str(tmp_path / "elsewhere"))
    assert code == 1
    assert "has no objects of kernels" in output


def test_text_finds_paths_and_hosts(tree: Path) -> None:
    write(tree, "docs/notes.md", f"fine\nsee {HOME}\n")
    code, output = run("check_text", tree)
    assert code == 1
    assert "docs/notes.md:2: " in output
    write(tree, "docs/notes.md", f"from https://{HOST}/simple\n")
    code, output = run("check_text", tree)
    assert code == 1
    assert "docs/notes.md:1: " in output


def test_text_lets_ordinary_paths_pass(tree: Path) -> None:
    write(
        tree, "docs/notes.md", "~/.cache/kvart, /usr/share, $HOME/home/x, network/work/s, /tmp/x, ./root/y, homework/\n"
    )
    assert run("check_text", tree)[0] == 0
