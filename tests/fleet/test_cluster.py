"""What `tuner run --ray` says of an address, of options and of Ray, before anything is started; what travels."""

from __future__ import annotations

import socket
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tuner import cli, reference
from tuner.errors import SweepError, UsageError
from tuner.fleet import cluster as cluster_module
from tuner.fleet.cluster import Cluster, check_listening, head_of, modules_of


def test_an_address_where_nobody_listens_is_one_line_at_once():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(SweepError, match=rf"nobody listens at {address} \(Connection refused\): type `ray start"):
            check_listening(address)


def test_a_cluster_that_auto_means_and_that_has_ended_is_one_line_at_once(monkeypatch):
    pytest.importorskip("ray", reason="Ray is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{free.getsockname()[1]}")
        with pytest.raises(SweepError, match=r"--ray auto is [\d.:]+ here, by \$RAY_ADDRESS or .*: nobody listens at "):
            head_of("auto")


def test_a_machine_in_no_cluster_is_told_what_to_type(monkeypatch):
    services = pytest.importorskip("ray._private.services", reason="Ray is not installed")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(services, "find_gcs_addresses", set)
    monkeypatch.setattr(services, "find_bootstrap_address", lambda _folder: None)
    with pytest.raises(SweepError, match=r"^this machine is in no Ray cluster: type `ray start --head` on "):
        head_of("auto")
    monkeypatch.setenv("RAY_ADDRESS", "nowhere")
    with pytest.raises(SweepError, match=r"in no Ray cluster \(\$RAY_ADDRESS: .*nowhere"):
        head_of("auto")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_another_program_that_listens_there_is_one_line(monkeypatch, answer):
    monkeypatch.setattr(cluster_module, "_CONNECT_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor() as threads:
        accepted = threads.submit(server.accept)
        threads.submit(lambda: accepted.result()[0].sendall(answer))
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(SweepError, match=rf"what listens at {address} is no Ray cluster's head: type `ray start"):
            check_listening(address)
        accepted.result()[0].close()


@pytest.mark.parametrize(
    "address", ["", "here", "ray://10.0.0.1:10001", "10.0.0.1:ray", "10.0.0.1:99999", "a..b:1", "a:²"]
)
def test_what_is_no_address_is_a_usage_error(address):
    with pytest.raises(UsageError, match=r"expected HOST:PORT of the cluster's head, such as 10.0.0.1:6379, or auto"):
        check_listening(address)


def test_a_machine_without_ray_is_told_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SweepError, match=r"--ray needs Ray .*: pip install 'triton-tuner\[ray\]'"):
        Cluster("auto", interpreted=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--ray", "auto", "--dry-run"], "--dry-run looks at this machine: leave out --ray"),
        (["--ray", "auto", "--device", "cuda:0"], "--device cuda:0 names GPUs of this machine"),
        (["--mixed"], "--mixed is for --ray ADDRESS"),
        (["--ray", ""], "--ray is empty: expected HOST:PORT"),
    ],
)
def test_options_that_do_not_go_together_are_a_usage_error(capsys, tmp_path, options, said):
    with pytest.raises(SystemExit) as exited:
        cli.main(["run", "--shape", "16x16x16", "--db", str(tmp_path / "tuner.db"), *options])
    assert exited.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_that_cannot_be_used_leaves_no_database(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(sys.modules, "ray", None)
    words = ["run", "--shape", "16x16x16", "--ray", "auto", "--device", "interpreter"]
    with pytest.raises(SystemExit) as exited:
        cli.main([*words, "--db", str(tmp_path / "tuner.db")])
    assert exited.value.code == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tuner: --ray needs Ray")
    assert list(tmp_path.iterdir()) == []


def test_a_kernels_module_travels_with_what_it_imports_from_its_folder_and_nothing_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "travels_here.py").write_text("import json, travels_beside, travels_package.part\nkernel = 1\n")
    (tmp_path / "travels_beside.py").write_text("")
    (tmp_path / "stays.py").write_text("")
    (tmp_path / "travels_package").mkdir()
    for name in ("__init__", "part"):
        (tmp_path / "travels_package" / f"{name}.py").write_text("")
    reference.load(f"{tmp_path}/travels_here.py:kernel")
    assert modules_of(["travels_here:kernel"]) == [
        str(tmp_path / name) for name in ("travels_beside.py", "travels_here.py", "travels_package")
    ]
    assert modules_of(["pytest:fixture"]) == []
