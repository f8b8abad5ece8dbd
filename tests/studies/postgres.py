"""A real PostgreSQL server in a temporary folder, which is gone when the tests are, however they
end.
"""

import os
import pwd
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

PASSWORD = "s3cr3t"
_SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "full_page_writes": "off",
    "shared_buffers": "16MB",
    "max_connections": "20",
}
# The server ends with whoever holds the other end of the pipe, a killed test run included.
_UNTIL_THE_PIPE_CLOSES = '"$@" & server=$!; read _; kill -QUIT $server; wait $server'


class Server:
    """`start` and `stop` it as often as needed; what it holds stays."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mupscale-postgres-"))
        self._user = _unprivileged()
        if self._user:
            shutil.chown(self.folder, self._user)
        self.port = _free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._run(
            "initdb",
            "-D",
            self.folder / "data",
            "-U",
            "mupscale",
            "-A",
            "trust",
            "--no-sync",
            "--no-locale",
        )

    @property
    def url(self) -> str:
        return f"postgresql://mupscale:{PASSWORD}@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        settings = _SETTINGS | {"unix_socket_directories": str(self.folder), "port": str(self.port)}
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [
            "sh",
            "-c",
            _UNTIL_THE_PIPE_CLOSES,
            "sh",
            _program("postgres"),
            "-D",
            self.folder / "data",
            *options,
        ]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                user=self._user,
            )
        deadline = time.monotonic() + 60
        while not self._answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                pytest.fail(f"PostgreSQL did not start:\n{(self.folder / 'log').read_text()}")
            time.sleep(0.05)

    def stop(self) -> None:
        """At once, as if it had crashed."""
        if self._process is not None:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(timeout=30)
            self._process = None

    def remove(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        command = [
            _program("pg_isready"),
            "-q",
            "-h",
            "127.0.0.1",
            "-p",
            str(self.port),
            "-U",
            "mupscale",
        ]
        return subprocess.run(command, check=False).returncode == 0

    def _run(self, program: str, *arguments: str | Path) -> None:
        command = [_program(program), *arguments]
        done = subprocess.run(
            command, capture_output=True, cwd=self.folder, user=self._user, check=False
        )
        if done.returncode:
            pytest.fail(f"{program} failed:\n{done.stderr.decode()}")


def _program(name: str) -> str:
    """On the path, or where Debian keeps servers; without one, the tests fail rather than say
    nothing.
    """
    versions = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda folder: float(folder.parent.name)
    )
    found = shutil.which(
        name, path=os.pathsep.join([os.environ.get("PATH", ""), *map(str, reversed(versions))])
    )
    if found is None:
        pytest.fail(
            f"{name} is not installed, and the storage is tested against a real server: apt "
            "install postgresql"
        )
    return found


def _unprivileged() -> str | None:
    """The server refuses to run as root."""
    if os.geteuid() != 0:
        return None
    known = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in known else "nobody"


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]
