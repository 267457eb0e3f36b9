#!/usr/bin/env bash
# Installs what the tests need and runs them all, or the steps that are named:
#   tools/test.sh [style] [cpp] [asan] [tsan] [python] [fuzz] [aarch64]
# Every step runs even when one before it failed; the exit code is 0 only when all were right.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source tools/setup.sh

readonly ALL=(style cpp asan tsan python fuzz aarch64)
readonly FUZZ_SECONDS=${FUZZ_SECONDS:-60}
jobs=$(nproc)
cmake=cmake
ctest=ctest
export CMAKE_GENERATOR=Ninja CMAKE_BUILD_PARALLEL_LEVEL=$jobs

# --- what steps share -----------------------------------------------------------------------------------------------

need_build_tools() {
  apt_install g++ ca-certificates ninja-build libgtest-dev cmake
  local version
  version=$(cmake --version 2>/dev/null | head -n 1)
  version=${version##* }
  if [[ $(printf '%s\n' 3.25 "${version:-0}" | sort -V | head -n 1) != 3.25 ]]; then
    make_venv
    .venv/bin/python -m pip install --quiet 'cmake>=3.25'
    cmake=$PWD/.venv/bin/cmake
    ctest=$PWD/.venv/bin/ctest
  fi
}

# The package itself and the tools of the dev extra: once for a run.
need_python() {
  apt_install g++ ca-certificates
  make_venv
  [[ $(cat .venv/tested-by 2>/dev/null) == "$$" ]] && return
  .venv/bin/python -m pip install --quiet '.[dev]'
  echo "$$" >.venv/tested-by
}

build() {  # PRESET [cmake option...] [-- target...]
  local log=build/$1.log options=() targets=()
  mkdir -p build
  while (($#)) && [[ $1 != -- ]]; do options+=("$1") && shift; done
  (($#)) && targets=(--target "${@:2}")
  if ! { "$cmake" --preset "${options[@]}" && "$cmake" --build --preset "${options[0]}" "${targets[@]}"; } >"$log" 2>&1; then
    tail -n 100 "$log"
    return 1
  fi
  grep -E "^$PWD/.*warning:" "$log" || true  # not those in the system's headers: GCC 12 has false ones
}

run_ctest() {  # PRESET [ctest option...]
  "$ctest" --preset "$1" --no-tests=error --parallel "$jobs" "${@:2}" </dev/null
}

# --- steps ----------------------------------------------------------------------------------------------------------

step_style() {
  apt_install clang-format
  need_python
  local sources wrong=0
  .venv/bin/ruff check --output-format concise . || wrong=1
  .venv/bin/ruff format --check . || wrong=1
  .venv/bin/mypy || wrong=1
  mapfile -t sources < <(find cpp python/src tests \( -name '*.cc' -o -name '*.h' \) | sort)
  clang-format --dry-run --Werror "${sources[@]}" || wrong=1
  .venv/bin/python tools/check_layers.py || wrong=1
  .venv/bin/python tools/check_kernels.py || wrong=1
  .venv/bin/python tools/check_text.py || wrong=1
  return $wrong
}

step_cpp() {
  need_build_tools
  apt_install binutils libbenchmark-dev
  build release -DKVART_BUILD_BENCHMARKS=ON  # so that they go on to build
  echo "-- the kernels of this machine"
  run_ctest release
  echo "-- KVART_KERNELS=scalar"
  # Scalar is slow: what only repeats a test on more cuts is left to the kernels of this machine, which are bit-equal.
  KVART_KERNELS=scalar GTEST_FILTER='-*AtEveryCut*' run_ctest release
  python3 tools/check_kernels.py --objects build/release
}

step_asan() {
  need_build_tools
  build asan
  run_ctest asan
}

# What shares memory between threads: the pool, the store and its background thread, the journal, models and sessions.
step_tsan() {
  need_build_tools
  local tests=(cpu_test thread_pool_test store_test journal_test engine_test)
  build tsan -- "${tests[@]}"
  run_ctest tsan --tests-regex "$(IFS='|'; echo "^(${tests[*]})$")"
}

step_python() {
  need_python
  # The tests with a real model need its file: 491 MB, fetched once into the user's cache directory.
  .venv/bin/kvart pull qwen2.5-coder-0.5b
  .venv/bin/python -m pytest </dev/null
}

step_fuzz() {
  need_build_tools
  apt_install clang
  local major target
  major=$(clang --version | sed -n 's/.*clang version \([0-9]*\).*/\1/p')
  apt_install "libclang-rt-$major-dev"
  build fuzz
  for target in build/fuzz/tests/fuzz/*_fuzz; do
    local name=${target##*/}
    echo "-- $name, $FUZZ_SECONDS seconds"
    mkdir -p "build/fuzz/found/$name"  # new inputs go to the first folder; the seeds lie in the second
    "$target" -max_total_time="$FUZZ_SECONDS" -rss_limit_mb=2048 -timeout=20 -print_final_stats=1 -verbosity=0 \
      -artifact_prefix=build/fuzz/ "build/fuzz/found/$name" "build/fuzz/tests/fuzz/corpus/$name" </dev/null |& grep -vE '^"|recommended dictionary'
  done
}

step_aarch64() {
  need_build_tools
  apt_install g++-aarch64-linux-gnu qemu-user-static
  local emulator="qemu-aarch64-static;-cpu;CPU;-L;/usr/aarch64-linux-gnu"
  build aarch64
  # Emulation is slow: what only repeats a test on more cuts, kills or bytes is left to the machine itself.
  export GTEST_FILTER='-*AtEveryCut*:*KilledAnywhere*:*AtEveryByte*:*DoNotDependOnChunks*'
  local numerics='matmul|attention|rows|kv_|packed|dispatch|quant|decoder|engine'
  echo "-- a CPU with everything, NEON with i8mm"
  run_ctest aarch64
  echo "-- a CPU with everything, KVART_KERNELS=scalar"
  KVART_KERNELS=scalar run_ctest aarch64 --tests-regex "$numerics"
  # Dot products and half precision, no i8mm: what a Cortex-A78AE has. A wrong instruction is a SIGILL here.
  echo "-- Cortex-A76"
  build aarch64 "-DCMAKE_CROSSCOMPILING_EMULATOR=${emulator/CPU/cortex-a76}"
  run_ctest aarch64 --tests-regex "$numerics"
}

# --- all of it ------------------------------------------------------------------------------------------------------

steps=("$@")
((${#steps[@]})) || steps=("${ALL[@]}")
for step in "${steps[@]}"; do
  if ! declare -F "step_$step" >/dev/null; then
    echo "no step $step; steps are: ${ALL[*]}" >&2
    exit 2
  fi
done

summary=()
failed=()
begin=$SECONDS
for step in "${steps[@]}"; do
  printf '\n==> %s\n' "$step"
  step_begin=$SECONDS
  (set -e; "step_$step")  # not in a condition: that would switch -e off inside
  code=$?
  took=$((SECONDS - step_begin))
  if ((code == 0)); then
    summary+=("$(printf '%-8s ok      %5d s' "$step" "$took")")
  else
    summary+=("$(printf '%-8s FAILED  %5d s' "$step" "$took")")
    failed+=("$step")
  fi
  printf '==> %s\n' "${summary[-1]}"
done

printf '\n==> summary\n'
printf '%s\n' "${summary[@]}" "$(printf '%-8s         %5d s' total $((SECONDS - begin)))"
if ((${#failed[@]})); then
  echo "failed: ${failed[*]}"
  exit 1
fi
