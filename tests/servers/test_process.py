"""`ServerProcess` on a tiny server: it waits, kills, restarts, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from beadline.testing.servers import ServerFailed
from beadline.testing.servers.ports import accepts, free_ports
from beadline.testing.servers.process import ServerProcess, run_to_end

LISTENER = """
import signal, socket, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("hello from the listener", flush=True)
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(600)
"""

OWNER = """
import os, sys
from pathlib import Path
from beadline.testing.servers.process import ServerProcess
server = ServerProcess("orphan", [sys.executable, "-c", "import time; time.sleep(600)"], Path("."))
server.start()
print(server.pid, flush=True)
os.kill(os.getpid(), 9)
"""


def listener(folder: Path, *arguments: str) -> ServerProcess:
    [port] = free_ports(1)
    command = [sys.executable, "-c", LISTENER, str(port), *arguments]
    return ServerProcess("listener", command, folder, ports=[port])


def test_kill_and_restart_on_the_same_port(tmp_path: Path) -> None:
    server = listener(tmp_path)
    server.start()
    server.wait_for_ports(30)
    first = server.pid
    server.kill()
    assert not server.alive
    assert not accepts(server.ports[0])
    server.restart(30)
    assert accepts(server.ports[0])
    assert server.pid != first
    server.stop()
    assert not server.alive
    assert server.log_tail().count("hello") == 2


def test_stop_ends_a_server_that_will_not_listen(tmp_path: Path) -> None:
    server = listener(tmp_path, "deaf")
    server.start()
    server.wait_for_ports(30)
    server.stop(grace_s=0.2)
    assert not server.alive


def test_a_server_that_dies_is_reported_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "raise SystemExit('no licence to serve')"]
    server = ServerProcess("broken", command, tmp_path, ports=free_ports(1))
    server.start()
    with pytest.raises(ServerFailed, match=r"(?s)broken died.*no licence to serve"):
        server.wait_for_ports(30)
    server.stop()


def test_a_server_that_is_late_is_reported_with_its_log(tmp_path: Path) -> None:
    code = "import time; print('thinking', flush=True); time.sleep(600)"
    server = ServerProcess("slow", [sys.executable, "-c", code], tmp_path, ports=free_ports(1))
    server.start()
    try:
        with pytest.raises(ServerFailed, match=r"(?s)not there after 2 s.*thinking"):
            server.wait_for_ports(2)
    finally:
        server.kill()


def test_run_to_end_reports_a_failure(tmp_path: Path) -> None:
    run_to_end("fine", [sys.executable, "-c", ""], tmp_path)
    with pytest.raises(ServerFailed, match=r"(?s)failed with code 3"):
        run_to_end("bad", [sys.executable, "-c", "raise SystemExit(3)"], tmp_path)


def test_a_killed_owner_takes_its_server_along(tmp_path: Path) -> None:
    owner = subprocess.run(
        [sys.executable, "-c", OWNER],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    pid = int(owner.stdout)
    deadline = time.monotonic() + 10
    while _exists(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _exists(pid)


def _exists(pid: int) -> bool:
    """Whether the process runs; one that is dead and not yet reaped by init does not."""
    stat = Path(f"/proc/{pid}/stat")
    if stat.parent.parent.is_dir() and Path("/proc/self/stat").exists():
        try:
            return stat.read_text().rpartition(")")[2].split()[0] != "Z"
        except FileNotFoundError:
            return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
