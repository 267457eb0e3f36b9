"""`kvart bench`, where its joules come from, --cpus, and the comparison with other engines."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import bench_peers
import kvart
import plot_speed
from kvart.bench import bench
from kvart.bench_plot import check_plot, plot
from kvart.cli import _main
from kvart.energy import EnergyMeter
from kvart.options import cpu_list

Bench = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run_cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str]]:
    """run_cli("bench", …) in this process: exit code and standard output."""

    def call(*args: object) -> tuple[int, str]:
        code = _main([str(arg) for arg in args])
        return code, capfd.readouterr().out

    return call


# --- kvart bench ---


def test_bench_runs_every_combination(run_cli: Callable[..., tuple[int, str]], tiny_path: Path) -> None:
    arguments = ["--prompt", "8,20", "--gen", 4, "--depth", "40,0", "--kv", "f16,int4", "--threads", "1,3", "-r", 2]
    code, out = run_cli("bench", tiny_path, *arguments, "--json")
    assert code == 0
    lines = [json.loads(line) for line in out.splitlines()]
    found = [(line["threads"], line["kv"], line["depth"], line["test"], line["tokens"]) for line in lines]
    tests = [("prefill", 8), ("prefill", 20), ("decode", 4)]
    assert found == [(t, kv, d, *test) for t in (1, 3) for kv in ("f16", "int4") for d in (0, 40) for test in tests]
    cores = len(os.sched_getaffinity(0))
    for line in lines:
        assert line["threads_running"] == min(line["threads"], cores)
        assert line["repetitions"] == 2
        assert line["read_gb_s"] > 0.5
        assert line["load_seconds"] > 0
        assert 0 <= line["warm_up_seconds"] < line["first_request_seconds"]
        assert "peak_bytes" not in line  # of two models at once it would mean nothing
        assert ("roofline" in line) == (line["test"] == "decode")
        if line["test"] == "decode":
            assert line["roofline"] == pytest.approx(line["gb_s"] / line["read_gb_s"])
        assert line["gb_s"] == pytest.approx(line["tok_s"] * line["bytes_per_token"] / 1e9, rel=0.01)


def test_bytes_of_a_token_are_weights_and_cache(tiny: kvart.Model) -> None:
    rows = {
        (row["test"], row["kv"], row["depth"]): row
        for row in bench(tiny, prompt=16, gen=8, depths=[0, 256], kv=["f32", "int4"], repetitions=1)
    }
    info = tiny.info
    values = 2 * info.n_layers * info.n_kv_heads * info.head_dim
    weights = info.weight_bytes_per_token
    for kv in ("f32", "int4"):
        # at depth 0 a page in part: no more than one of halves or floats
        assert weights < rows["decode", kv, 0]["bytes_per_token"] <= weights + values * 4 * 128
    f32, int4 = (rows["decode", kv, 256]["bytes_per_token"] - weights for kv in ("f32", "int4"))
    assert values * 4 * 256 <= f32 <= values * 4 * (256 + 128)
    assert values * 0.5 * 256 < int4 < f32 / 2
    # a chunk reads the weights once for all of its tokens
    assert rows["prefill", "f32", 0]["bytes_per_token"] < (weights + values * 4 * 128) / 16 + 1
    assert rows["decode", "int4", 0]["peak_bytes"] > 10 * 2**20


def test_bench_tells_progress_and_measures_side_by_side(tiny: kvart.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    import kvart.bench as module

    order: list[tuple[str, int, str]] = []
    run = module._run

    def spy(case: Any, meter: Any) -> None:
        order.append((case.kv, case.depth, case.test))
        run(case, meter)

    monkeypatch.setattr(module, "_run", spy)
    told: list[float] = []
    options: dict[str, Any] = {"prompt": 8, "gen": 2, "depths": [0, 200], "kv": ["f16", "int4"], "repetitions": 3}
    list(bench(tiny, **options, progress=told.append))
    one = [(kv, d, test) for d in (0, 200) for test in ("prefill", "decode") for kv in ("f16", "int4")]
    assert order == one * 3
    assert told == sorted(told) and told[0] < 0.7 and told[-1] == 1.0


def test_bench_refuses(run_cli: Callable[..., tuple[int, str]], tiny_path: Path, tmp_path: Path) -> None:
    for arguments, message in [
        (["--threads", "2,x"], "--threads: expected numbers with commas"),
        (["--threads", "300"], "--threads: expected a whole number of 0 to 256, found 300"),
        (["--prompt", "-1"], "--prompt: expected a whole number at least 0, found -1"),
        (["--kv", "int3"], "int3"),
        (["--plot", tmp_path / "a.txt"], "expected a file named"),
        (["--plot", tmp_path / "absent" / "a.png"], "no folder"),
    ]:
        code, out = run_cli("bench", tiny_path, *arguments, "--json")
        assert code == 2 and message in json.loads(out)["error"]["message"]


def test_bench_draws(run_cli: Callable[..., tuple[int, str]], tiny_path: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "depth.png"
    arguments = ["--prompt", 4, "--gen", 2, "--depth", "0,30", "--kv", "f16,int4", "-r", 1, "--plot", file]
    code, out = run_cli("bench", tiny_path, *arguments)
    assert code == 0
    assert file.read_bytes().startswith(b"\x89PNG")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["depth.png"]
    for text in ("decode 2", "prefill 4", "of roofline", "min … max", "memory reads at", "warm-up"):
        assert text in out


def test_a_drawing_that_fails_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figure = pytest.importorskip("matplotlib.figure").Figure

    def fail(self: object, name: str, **_: object) -> None:
        Path(name).write_bytes(b"half")
        raise OSError("no space")

    monkeypatch.setattr(figure, "savefig", fail)
    row = {"kv": "f16", "threads": 1, "tokens": 4, "test": "decode", "depth": 0}
    rates = {"tok_s": 2.0, "tok_s_min": 1.0, "tok_s_max": 3.0}
    with pytest.raises(OSError, match="no space"):
        plot([{**row, **rates}], "title", check_plot(str(tmp_path / "a.png")))
    assert list(tmp_path.iterdir()) == []


# --- --cpus ---


def test_cpu_lists() -> None:
    assert cpu_list(None) == []
    assert cpu_list("0-3,6") == [0, 1, 2, 3, 6]
    assert cpu_list(" 2 , 4 - 5") == [2, 4, 5]
    assert cpu_list([3, 1]) == [3, 1]
    assert cpu_list(range(2)) == [0, 1]
    for wrong in (
        "",
        "x",
        "1,,2",
        "3-1",
        "-1",
        "1-",
        "9000",
        "0-9000",
        "٣",
        "1" * 50,
        [],
        [True],
        [-1],
        ["1"],
        3,
        b"0",
    ):
        with pytest.raises(kvart.InvalidArgument, match="cpus: expected"):
            cpu_list(wrong)  # type: ignore[arg-type]


def test_threads_are_kept_on_the_cpus(tiny_path: Path) -> None:
    mask = os.sched_getaffinity(0)
    last = max(mask)

    def masks() -> dict[int, set[int]]:
        ids = (int(name) for name in os.listdir("/proc/self/task"))
        return {id: os.sched_getaffinity(id) for id in ids}

    before = masks()
    model = kvart.Model(tiny_path, cpus=[last], threads=3)
    assert (model.info.n_threads, model.info.n_running) == (3, 1)
    deadline = time.monotonic() + 10
    while (kept := [m for id, m in masks().items() if id not in before]) != [{last}, {last}]:
        assert time.monotonic() < deadline, f"the workers may run on {kept}"
        time.sleep(0.01)
    # A caller is there while it computes, and free again after.
    seen: list[set[int]] = []
    session = model.session()
    session.append([1, 2, 3], progress=lambda done: seen.append(os.sched_getaffinity(0)))
    assert seen and seen[0] == {last}
    assert os.sched_getaffinity(0) == mask
    assert session.generate(max_tokens=3).read() == kvart.Model(tiny_path).generate([1, 2, 3], max_tokens=3).read()


def test_cpus_that_are_not_there_are_named(run_cli: Callable[..., tuple[int, str]], tiny_path: Path) -> None:
    online = Path("/sys/devices/system/cpu/online").read_text().strip()
    with pytest.raises(kvart.InvalidArgument) as error:
        kvart.Model(tiny_path, cpus="0,8000-8002")
    assert str(error.value) == f"cpus: found 8000-8002; online on this machine are {online}"
    text = tiny_path.parent / "text.txt"
    text.write_text("hello")
    for command in (
        ["run", tiny_path, "x"],
        ["chat", tiny_path],
        ["bench", tiny_path],
        ["eval", "perplexity", tiny_path, "--text", text],
        ["eval", "recall", tiny_path],
    ):
        code, out = run_cli(*command, "--cpus", "8000", "--json")
        assert code == 2, command
        assert "cpus: found 8000" in json.loads(out)["error"]["message"]
        assert json.loads(run_cli(*command, "--cpus", "1-", "--json")[1])["error"]["kind"] == "invalid_argument"


def test_cpus_outside_the_mask_are_named(tiny_path: Path) -> None:
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("one CPU")
    result: list[str] = []

    def load() -> None:  # in a thread of its own: the mask is the thread's
        os.sched_setaffinity(0, {cpus[0]})
        assert kvart.Model(tiny_path).info.n_threads == 1
        with pytest.raises(kvart.InvalidArgument) as error:
            kvart.Model(tiny_path, cpus=[cpus[1]])
        result.append(str(error.value))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert result == [f"cpus: found {cpus[1]}; the affinity mask allows this process {cpus[0]}"]


# --- joules ---


def _put(root: Path, name: str, text: object) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")
    return path


def test_no_counters_no_joules(tmp_path: Path) -> None:
    meter = EnergyMeter(tmp_path)
    with meter.measure() as reading:
        pass
    assert meter.source is None and reading.joules is None


def test_rapl_adds_packages_and_memory(tmp_path: Path) -> None:
    zones = {"intel-rapl:0": "package-0", "intel-rapl:0:0": "core", "intel-rapl:0:1": "dram", "intel-rapl:1": "psys"}
    for zone, name in zones.items():
        _put(tmp_path, f"sys/class/powercap/{zone}/name", name)
        _put(tmp_path, f"sys/class/powercap/{zone}/energy_uj", 9_000_000)
        _put(tmp_path, f"sys/class/powercap/{zone}/max_energy_range_uj", 10_000_000)
    meter = EnergyMeter(tmp_path)
    assert meter.source == "rapl"
    with meter.measure() as reading:
        _put(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", 500_000)  # gone round
        _put(tmp_path, "sys/class/powercap/intel-rapl:0:0/energy_uj", 9_900_000)  # part of the package
        _put(tmp_path, "sys/class/powercap/intel-rapl:0:1/energy_uj", 9_250_000)
    assert reading.joules == pytest.approx(1.75)
    with meter.measure() as reading:
        _put(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", "gone")
    assert reading.joules is None


@pytest.mark.parametrize("labels", [["VDD_IN", "VDD_CPU_GPU_CV", "VDD_SOC"], ["VDD_GPU_SOC", "VIN_SYS_5V0", "NC"]])
def test_ina3221_is_sampled(tmp_path: Path, labels: list[str]) -> None:
    folder = "sys/class/hwmon/hwmon1"
    _put(tmp_path, f"{folder}/name", "ina3221")
    _put(tmp_path, "sys/class/hwmon/hwmon0/name", "thermal")
    for channel, label in enumerate(labels, 1):
        _put(tmp_path, f"{folder}/in{channel}_label", label)
        _put(tmp_path, f"{folder}/in{channel}_input", 5000)
        _put(tmp_path, f"{folder}/curr{channel}_input", 1000)
    meter = EnergyMeter(tmp_path)
    assert meter.source == "ina3221"
    start = time.perf_counter()
    with meter.measure() as reading:
        time.sleep(0.2)
    seconds = time.perf_counter() - start
    watts = 5.0 if "VDD_IN" in labels else 10.0  # the whole board, or its rails
    assert reading.joules is not None
    assert watts * 0.2 <= reading.joules <= watts * seconds


def test_bench_tells_joules(tiny: kvart.Model, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import kvart.bench as module

    counter = _put(tmp_path, "sys/class/powercap/intel-rapl:0/energy_uj", 0)
    _put(tmp_path, "sys/class/powercap/intel-rapl:0/name", "package-0")
    ticks = itertools.count(1)
    decode = module._decode

    def spend(*arguments: Any) -> float:
        counter.write_text(str(8_000_000 * next(ticks)))
        return decode(*arguments)

    monkeypatch.setattr(module, "_decode", spend)
    monkeypatch.setattr(module, "EnergyMeter", lambda: EnergyMeter(tmp_path))
    [row] = bench(tiny, prompt=0, gen=4, repetitions=3)
    assert row["joules_per_token"] == pytest.approx(2.0)


# --- tools/bench_peers.py ---

ROOT = Path(__file__).resolve().parents[2]


def test_peers_tool_times_kvart(tiny_path: Path) -> None:
    command = [sys.executable, str(ROOT / "tools/bench_peers.py"), str(tiny_path), "--only", "kvart", "--first-token"]
    options = ["--prompt", "8", "--gen", "4", "--depth", "0,20", "--kv", "f16,int4", "--rounds", "2", "--threads", "1"]
    done = subprocess.run([*command, *options, "--json"], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(line["test"], line.get("depth")) for line in lines] == [
        *((test, depth) for depth in (0, 20) for test in ("prefill", "decode")),
        ("first_token", None),
        ("memory", 20),
    ]
    for line in lines[:4]:
        for name in ("kvart f16", "kvart int4"):
            assert 0 < line[name]["tok_s_min"] <= line[name]["tok_s"] <= line[name]["tok_s_max"]
            assert ("bytes_per_token" in line[name]) == (line["test"] == "decode")
    assert 0 < lines[4]["kvart int4"]["seconds"] < 60
    assert lines[5]["kvart f16"]["peak_mib"] > 10


def test_peers_tool_takes_the_fastest_setting_and_the_rounds_ratios() -> None:
    settings = bench_peers._parser().parse_args(["m", "--threads", "2"])
    key = ("decode", 64, 8192)

    def runs(tok_s: list[float], peak: float) -> bench_peers.Runs:
        return bench_peers.Runs({key: tok_s}, {key: 400}, [peak] * 3)

    [line, memory] = bench_peers.summarize(
        settings,
        {
            "kvart int4": runs([60, 30, 50], 500),
            "kvart f16": runs([6, 3, 5], 500),
            "peer f16": runs([20, 10, 20], 800),
            "peer f16 no-fa": runs([25, 15, 22], 1000),
        },
    )
    assert line["best_peer"] == "peer f16 no-fa"
    assert line["ratio"] == line["ratios"]["peer f16 no-fa"] == pytest.approx(2.27, abs=0.01)  # of 2.4, 2, 2.27
    assert line["ratios"]["peer f16"] == pytest.approx(3.0)
    assert (memory["best_peer"], memory["ratio"]) == ("peer f16", 0.625)


def test_peers_tool_says_what_is_missing(tiny_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_peers.main([str(tiny_path), "--peers", "mnn", "--kvart-python", sys.executable]) == 1
    assert "mnn" in capsys.readouterr().err
    for arguments in (
        [str(tiny_path) + ".absent"],
        [str(tiny_path), "--peer-kv", "int5"],
        [str(tiny_path), "--depth", "-1"],
    ):
        with pytest.raises(SystemExit):
            bench_peers.main(arguments)


def test_speed_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    common = {"model": "m.gguf", "threads": 2}

    def engines(kvart: float, peer: float, key: str = "tok_s") -> dict[str, Any]:
        ratios = {"ratios": {"peer": kvart / peer}, "best_peer": "peer", "ratio": kvart / peer}
        return {"kvart int4": {key: kvart}, "peer": {key: peer}, **ratios}

    lines: list[dict[str, Any]] = [
        *(
            {**common, "test": "decode", "tokens": 8, "depth": d, **engines(60 - d / 100, 40 - d / 50)}
            for d in (1000, 0)
        ),
        {**common, "test": "first_token", **engines(0.3, 0.6, "seconds")},
    ]
    assert plot_speed.over_depth(lines)["kvart int4, m"] == {0: 60, 1000: 50}
    assert plot_speed.ratios(lines)[-1] == ("m: first token, against peer", 2.0)
    source, out = tmp_path / "speed.jsonl", tmp_path / "speed.png"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert plot_speed.main([str(source), "--out", str(out)]) == 0
    assert out.read_bytes().startswith(b"\x89PNG")
    source.write_text('{"test": "decode"}\n')
    assert plot_speed.main([str(source), "--out", str(tmp_path / "no.png")]) == 2
    assert not (tmp_path / "no.png").exists()
