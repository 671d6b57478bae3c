"""Processes of Python that have imported torch and nothing else, for tests that need one of their
own: importing torch takes ten times as long as what most of them do.

A server imports torch once for each worker; :func:`start` has it fork. The process begins as a new
one does: with the environment, arguments, folder and files that are asked for, its code as
``__main__``, and no thread besides. What torch or Python read from the environment as they start
cannot be changed any more; where it differs a process is started in the usual way.
"""

from __future__ import annotations

import atexit
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import ModuleType, TracebackType

# variables that are read at the start, but PYTHONPATH, which the server leaves to its processes
_AT_START = re.compile("(OMP|GOMP|KMP|MKL|LD|MALLOC|LC|TORCH|PYTORCH|CUDA|PYTHON(?!PATH))_?|LANG")


class Process:
    """What :func:`start` gives, in the manner of ``subprocess.Popen`` with text and pipes."""

    def __init__(self, server: socket.socket, request: dict[str, object]) -> None:
        own, other = socket.socketpair()
        output, errors = os.pipe(), os.pipe()
        theirs = [other.fileno(), output[1], errors[1]]
        socket.send_fds(server, [b"x"], theirs)
        for end in (output[1], errors[1]):
            os.close(end)
        other.close()
        self._socket, self._told = own, own.makefile("rw")
        self._told.write(json.dumps(request) + "\n")
        self._told.flush()
        self.pid = int(self._told.readline())
        self.returncode: int | None = None
        self.stdout, self.stderr = (os.fdopen(end[0], errors="replace") for end in (output, errors))

    def communicate(self, timeout: float | None = None) -> tuple[str, str]:
        """Waits for the end; what the process has printed."""
        read = ["", ""]

        def drain(k: int) -> None:
            read[k] = (self.stdout, self.stderr)[k].read()

        threads = [threading.Thread(target=drain, args=(k,), daemon=True) for k in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout)
            if thread.is_alive():
                os.kill(self.pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired("a process", timeout or 0)
        self.stdout.close()
        self.stderr.close()
        self.wait()
        return read[0], read[1]

    def poll(self) -> int | None:
        """How the process has ended, if it has."""
        ended = self.returncode is not None or select.select([self._socket], [], [], 0)[0]
        return self.wait() if ended else None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._socket], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("a process", timeout or 0)
            self.returncode = os.waitstatus_to_exitcode(int(self._told.readline()))
            self._told.close()
            self._socket.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


_servers: list[tuple[socket.socket, subprocess.Popen[bytes]]] = []


def _server() -> socket.socket:
    if not _servers:
        own, other = socket.socketpair()
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
        started = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve()), str(other.fileno())],
            pass_fds=[other.fileno()],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        other.close()
        _servers.append((own, started))
        atexit.register(_end)
    return _servers[0][0]


def _end() -> None:
    for own, started in _servers:
        own.close()
        started.wait()


def start(
    arguments: Sequence[object],
    env: Mapping[str, str] | None = None,
    cwd: object = None,
) -> Process | subprocess.Popen[str]:
    """Python with these arguments: ``-c`` and code, ``-m`` and a module's name, or a script; then
    those of the program."""
    environment = dict(os.environ if env is None else env)
    words = [str(word) for word in arguments]
    names = os.environ.keys() | environment.keys()
    if any(os.environ.get(k) != environment.get(k) for k in names if _AT_START.match(k)):
        return subprocess.Popen(
            [sys.executable, *words],
            env=environment,
            cwd=str(cwd) if cwd else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    request: dict[str, object] = {
        "words": words,
        "env": environment,
        "cwd": str(cwd) if cwd else os.getcwd(),
    }
    return Process(_server(), request)


def run(
    arguments: Sequence[object],
    env: Mapping[str, str] | None = None,
    cwd: object = None,
    check: bool = False,
    timeout: float | None = None,
) -> subprocess.CompletedProcess[str]:
    """As ``subprocess.run`` with ``capture_output`` and ``text``."""
    process = start(arguments, env, cwd)
    output, errors = process.communicate(timeout=timeout)
    assert process.returncode is not None
    done = subprocess.CompletedProcess([*map(str, arguments)], process.returncode, output, errors)
    if check and done.returncode:
        print(errors, file=sys.stderr)
        done.check_returncode()
    return done


# ------------------------------------------------------------------------------------- the server


def _serve(server: socket.socket) -> dict[str, object]:
    """Forks for each request; returns in the processes that are to run, with what was asked for."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        message, given, _, _ = socket.recv_fds(server, 1, 3)
        if not message:
            os._exit(0)
        if os.fork():
            for end in given:
                os.close(end)
            continue
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        server.close()
        told = socket.socket(fileno=given[0])
        file = told.makefile("rw")
        request: dict[str, object] = json.loads(file.readline())
        child = os.fork()
        if not child:
            file.close()
            told.close()
            os.dup2(given[1], 1)
            os.dup2(given[2], 2)
            for end in given[1:]:
                os.close(end)
            return request
        for end in given[1:]:
            os.close(end)
        file.write(f"{child}\n")
        file.flush()
        file.write(f"{os.waitpid(child, 0)[1]}\n")
        try:
            file.flush()
        finally:
            os._exit(0)


def _prepare(request: dict[str, object]) -> list[str]:
    words, env = request["words"], request["env"]
    assert isinstance(words, list)
    assert isinstance(env, dict)
    os.environ.clear()
    os.environ.update(env)
    os.chdir(str(request["cwd"]))
    sys.path[:1] = [path for path in env.get("PYTHONPATH", "").split(os.pathsep) if path]
    return words


def _report(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """As Python does at the end of a program: without the frames of this file and of ``runpy``."""
    while trace and trace.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
        trace = trace.tb_next
    sys.__excepthook__(kind, error.with_traceback(trace), trace)


def _main() -> None:
    import gc
    import runpy

    import torch  # noqa: F401  (what processes have)

    gc.collect()
    gc.freeze()
    words = _prepare(_serve(socket.socket(fileno=int(sys.argv[1]))))
    sys.excepthook = _report
    if words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        code = compile(words[1], "<string>", "exec")
        program = ModuleType("__main__")
        sys.modules["__main__"] = program
        exec(code, program.__dict__)
    elif words[0] == "-m":
        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    _main()
