"""Killed and interrupted jobs resume with identical results; several processes; long jobs."""

import contextlib
import csv
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest
from children import SERVER
from commands import done, minhub
from job_runs import count_parts, fail, random_texts, read_csv, start, wait_for, write_csv
from needs import need

from minhub_py import from_pretrained, tokenizer_from_pretrained
from minhub_py.analysis.surprisal import word_logprobs
from minhub_py.cli.main import main
from minhub_py.jobs.chunks import Parts


@pytest.mark.slow
def test_killed_words_job_resumes_with_complete_texts(tmp_path: Path, model: str) -> None:
    """Chunks contain complete texts, also a long one. Workers and a kill do not change the output."""
    draw = random.Random(4)
    lengths = [draw.randrange(1, 9) for _ in range(700)]
    lengths[300] = 2500  # more than two chunks
    by = [number for number, length in enumerate(lengths) for _ in range(length)]
    words = ["".join(draw.choices("abcdefgh", k=draw.randrange(4))) for _ in by]
    file, out, complete = tmp_path / "in.csv", tmp_path / "out.csv", tmp_path / "complete.csv"
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerows([("item", "word", "side"), *zip(by, words, [1] * len(by), strict=True)])
    command = ["words", model, file, "--column", "word", "--by", "item", "--out"]
    done(*command, complete)
    process = start(*command, out, most=3)
    wait_for(process, lambda: count_parts(out) >= 2)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    assert count_parts(out) >= 2
    sizes = {len(Parts(out).read(number)["rows"]) for number in Parts(out).completed()}
    assert all(size >= 1024 for size in sizes)
    assert "--by or --target changed" in fail(*command, out, "--by", "side")
    done(*command, out, "--workers", 2)
    assert out.read_bytes() == complete.read_bytes()
    expected = word_logprobs(
        from_pretrained(model), tokenizer_from_pretrained(model), words, by=by
    )["logprob"]
    logprobs = [float(row["logprob"] or "nan") for row in read_csv(out)]
    assert logprobs == pytest.approx(expected.tolist(), nan_ok=True, abs=0)


# Interrupted jobs


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """An input of six chunks."""
    return write_csv(tmp_path / "large.csv", random_texts(1500))


def interrupt(model: str, file: Path, out: Path, by: int, *options: object, parts: int = 1) -> str:
    """Interrupt a job by a signal after some parts, and return its messages."""
    errors = out.with_name("errors")
    process = start("score", model, file, "--out", out, *options, errors=errors, most=parts + 1)
    wait_for(process, lambda: count_parts(out) >= parts)
    os.kill(process.pid, by)
    process.join()
    assert process.exitcode != 0
    assert count_parts(out) >= parts  # otherwise the job was not interrupted
    assert not out.exists()
    return " ".join(errors.read_text().split())


def test_killed_job_resumes_with_identical_output(tmp_path: Path, model: str, large: Path) -> None:
    complete, out = tmp_path / "complete.parquet", tmp_path / "out.parquet"
    done("score", model, large, "--out", complete)
    for parts in (1, 3):
        interrupt(model, large, out, signal.SIGKILL, parts=parts)
    parts_before = {path.name: path.stat().st_mtime_ns for path in Parts(out).folder.glob("part-*")}
    interrupt(model, large, out, signal.SIGKILL, parts=len(parts_before) + 1)
    assert (
        parts_before.items()
        <= {p.name: p.stat().st_mtime_ns for p in Parts(out).folder.glob("part-*")}.items()
    )
    done("score", model, large, "--out", out)
    assert out.read_bytes() == complete.read_bytes()
    assert not Parts(out).folder.exists()


def test_ctrl_c_prints_how_to_resume(tmp_path: Path, model: str, large: Path) -> None:
    complete, out = tmp_path / "complete.csv", tmp_path / "out.csv"
    message = interrupt(model, large, out, signal.SIGINT)
    assert "of 1,500 rows are complete" in message
    assert f"in {out}.parts. To continue, run the same command again." in message
    assert "Traceback" not in message
    done("score", model, large, "--out", out)
    done("score", model, large, "--out", complete)
    assert out.read_bytes() == complete.read_bytes()


def test_unfinished_job_rejects_other_settings(tmp_path: Path, model: str, large: Path) -> None:
    out = tmp_path / "out.csv"
    interrupt(model, large, out, signal.SIGKILL)
    parts = count_parts(out)
    command = ["score", model, large, "--out", out]
    assert "the model's settings changed" in fail(*command, "--quantize", "int8")
    assert "--prefix changed" in fail(*command, "--prefix", "x")
    assert "the command changed" in fail("generate", *command[1:])
    content = large.read_bytes()
    large.write_bytes(content + b"9999,abc,x\n")
    assert "the input files changed" in fail(*command)
    large.write_bytes(content)
    weights = Path(model) / "model.safetensors"
    before = weights.read_bytes()
    try:
        for position in (len(before) // 2, -1):
            changed = bytearray(before)
            changed[position] ^= 1
            weights.write_bytes(changed)
            assert "the model's files changed" in fail(*command)
    finally:
        weights.write_bytes(before)
    assert count_parts(out) == parts
    with Parts(out).lock():
        assert "another process is writing" in fail(*command)
    done(*command, "--overwrite", "--prefix", "x")
    assert "xnats" in read_csv(out)[0]


def test_resumed_job_keeps_the_drawn_seed(tmp_path: Path, model: str) -> None:
    file, out = (
        write_csv(tmp_path / "in.csv", [text or "a" for text in random_texts(300)]),
        tmp_path / "out.csv",
    )
    process = start("generate", model, file, "--out", out, "-n", 8, most=1)
    wait_for(process, lambda: count_parts(out) >= 1)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    seed = json.loads((Parts(out).folder / "job.json").read_text())["settings"]["seed"]
    done("generate", model, file, "--out", out, "-n", 8)
    done("generate", model, file, "--out", tmp_path / "again.csv", "-n", 8, "--seed", seed)
    assert out.read_bytes() == (tmp_path / "again.csv").read_bytes()


@pytest.mark.parametrize("out", ["out.csv", "folder"])
def test_kill_before_the_final_rename_is_recovered(
    tmp_path: Path, model: str, out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same command moves the complete output to its final name; another one does not change it."""
    file = write_csv(tmp_path / "in.csv", ["abc"])
    command = ["score", model, file, "--out", tmp_path / out]
    with monkeypatch.context() as patch:
        patch.setattr(Parts, "recover", lambda *_: None)
        done(*command)
    target = tmp_path / out / "in.csv" if out == "folder" else tmp_path / out
    assert not target.exists()
    assert "were complete" in minhub(*command).stderr
    assert len(read_csv(target)) == 1
    assert not Parts(tmp_path / out).folder.exists()
    assert "already exists" in fail(*command, status=2)


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("out", ["out.csv", "folder"])
def test_an_output_that_appears_during_a_job_is_kept(
    tmp_path: Path, model: str, out: str, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [
        write_csv(tmp_path / name, ["abc"])
        for name in ("in.csv", "other.csv")[: 1 + (out == "folder")]
    ]
    command = ["score", model, *files, "--out", tmp_path / out]
    target = tmp_path / out / "in.csv" if out == "folder" else tmp_path / out
    write = Parts.write

    def write_also_the_output(parts: Parts, number: int, content: bytes) -> None:
        target.parent.mkdir(exist_ok=True)
        target.write_text("of another program", encoding="utf-8")
        write(parts, number, content)

    def refuse(*_: object) -> None:
        raise OSError("no hard links")

    if not links:
        monkeypatch.setattr("os.link", refuse)
    with monkeypatch.context() as patch:
        patch.setattr(Parts, "write", write_also_the_output)
        assert f"another program has written {target} during the job" in fail(*command)
    for _ in range(2):
        assert target.read_text() == "of another program"
        assert "or add --overwrite. The results are complete" in fail(*command)
    target.rename(tmp_path / "kept")
    done(*command)
    assert len(read_csv(target)) == 1
    assert not Parts(tmp_path / out).folder.exists()
    with monkeypatch.context() as patch:
        patch.setattr(Parts, "write", write_also_the_output)
        done(*command, "--overwrite")
    assert len(read_csv(target)) == 1


def test_full_disk_keeps_completed_parts(tmp_path: Path, model: str, large: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=128k", "tmpfs", disk]
    need("mount")
    subprocess.run(mount, check=True)
    try:
        message = fail("score", model, large, "--out", disk / "out.csv")
        assert (
            "out.csv.parts cannot be written (No space left on device): free disk space" in message
        )
        assert "rows are complete" in message
        assert count_parts(disk / "out.csv") >= 1
        subprocess.run(["mount", "-o", "remount,size=10m", disk], check=True)
        done("score", model, large, "--out", disk / "out.csv")
        done("score", model, large, "--out", tmp_path / "complete.csv")
        assert (disk / "out.csv").read_bytes() == (tmp_path / "complete.csv").read_bytes()
    finally:
        subprocess.run(["umount", disk], check=True)


# Processes


@pytest.mark.slow
def test_workers_match_one_process_and_end_with_their_parent(
    tmp_path: Path, model: str, large: Path
) -> None:
    complete, out, killed = tmp_path / "complete.csv", tmp_path / "out.csv", tmp_path / "killed.csv"
    done("score", model, large, "--out", complete)
    command = ["score", model, large, "--out", out, "--workers", "2"]
    process = start(*command, errors=tmp_path / "errors", most=2)
    wait_for(process, lambda: count_parts(out) >= 1)
    parent = psutil.Process(process.pid)
    workers = [
        process for process in parent.children() if "spawn_main" in " ".join(process.cmdline())
    ]
    assert len(workers) == 2
    workers[0].kill()
    (tmp_path / "go on").touch()
    process.join()
    (tmp_path / "go on").unlink()
    message = " ".join((tmp_path / "errors").read_text().split())
    assert "a worker process was killed (exit code -9)" in message
    assert "run the same command again" in message
    done(*command[:-2])
    assert out.read_bytes() == complete.read_bytes()

    process = start(
        "score", model, large, "--out", killed, "--workers", "2", errors=tmp_path / "errors", most=2
    )
    wait_for(process, lambda: count_parts(killed) >= 1)
    workers = psutil.Process(process.pid).children()
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    _, alive = psutil.wait_procs(workers, timeout=60)
    assert alive == []
    done("score", model, large, "--out", killed)
    assert killed.read_bytes() == complete.read_bytes()


# Soak tests


def measured(arguments: list[object], pipe: Any) -> None:
    main(list(map(str, arguments)), standalone_mode=False)
    status = dict(line.split(":\t") for line in Path("/proc/self/status").read_text().splitlines())
    pipe.send(int(status["VmHWM"].split()[0]) * 1024)


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_memory_is_constant_for_100000_rows(tmp_path: Path, model: str, kind: str) -> None:
    peaks = {}
    for count in (1_000, 100_000):
        file = write_csv(tmp_path / f"{count}.csv", random_texts(count, 16))
        if kind == "parquet":
            done("generate", model, file, "--out", tmp_path / f"{count}.parquet", "-n", 0)
            file = tmp_path / f"{count}.parquet"
        ours, peer = SERVER.Pipe()
        process = SERVER.Process(
            target=measured,
            args=(["score", model, file, "--out", tmp_path / f"{count}-out.{kind}"], peer),
        )
        process.start()
        peaks[count] = ours.recv()
        process.join()
    print({count: f"{peak / 1e6:.0f} MB" for count, peak in peaks.items()})
    assert peaks[100_000] - peaks[1_000] < 200e6


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("workers", [1, 2])
def test_a_job_killed_20_times_has_identical_output(
    tmp_path: Path, model: str, workers: int
) -> None:
    """Includes kills before the first row and at the end."""
    file = write_csv(tmp_path / "in.csv", random_texts(100_000, 16))
    complete, out = tmp_path / "complete.csv", tmp_path / "out.csv"
    done("score", model, file, "--out", complete)
    draw, rows = random.Random(3), []
    command = [
        sys.executable,
        "-m",
        "minhub_py",
        "score",
        model,
        file,
        "--out",
        out,
        "--workers",
        workers,
    ]
    for kill in range(20):
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL)
        there = count_parts(out) + draw.randrange(1, 16)
        while process.poll() is None and count_parts(out) < there:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.002)
        try:
            process.wait(draw.random() / 5)
        except subprocess.TimeoutExpired:
            process.kill()
        process.wait()
        rows.append(count_parts(out))
        assert not out.exists(), f"kill {kill} came too late: {rows}"
    done("score", model, file, "--out", out, "--workers", workers)
    print("parts after each kill:", rows)
    assert out.read_bytes() == complete.read_bytes()


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.filterwarnings("default")
def test_ray_job_completes_after_a_node_failure(tmp_path: Path, model: str) -> None:
    """One of two nodes is killed during the job. The output matches a single process."""
    need("ray")
    from ray.cluster_utils import Cluster

    file = write_csv(tmp_path / "in.csv", random_texts(20_000, 16))
    complete, out = tmp_path / "complete.csv", tmp_path / "out.csv"
    done("score", model, file, "--out", complete)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2})
    try:
        lost_node = cluster.add_node(num_cpus=2)
        process = start(
            "score", model, file, "--out", out, "--ray", cluster.address, errors=tmp_path / "errors"
        )
        wait_for(process, lambda: count_parts(out) >= 5)
        assert process.exitcode is None
        before = count_parts(out)
        cluster.remove_node(lost_node, allow_graceful=False)
        process.join()
        assert process.exitcode == 0, (tmp_path / "errors").read_text()
        print(f"{before} of {-(-20_000 // 256)} parts were there when the node was lost")
        assert out.read_bytes() == complete.read_bytes()
    finally:
        cluster.shutdown()


@pytest.mark.soak
def test_a_missing_ray_cluster_is_reported(tmp_path: Path, model: str) -> None:
    need("ray")
    file, out = write_csv(tmp_path / "in.csv", ["abc"]), tmp_path / "out.csv"
    assert "no Ray cluster at" in fail("score", model, file, "--out", out, "--ray", "auto")
    assert not Parts(out).folder.exists()
