"""`scripts/test --clients`: sets up the environments of real clients and tests them against one server.

The environments lie under `.clients/` and in `node_modules`, and are made anew when their pins change. This
program itself needs only the standard library.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
ENVIRONMENTS = ROOT / ".clients"
NODE_VERSION = 20
PYTHON_TESTS = {
    "python": ("test_langchain.py", "test_litellm.py", "test_llm.py", "test_examples.py"),
    "instructor": ("test_instructor.py",),
}


class Skipped(Exception):
    """A client cannot be tested on this machine; the message says why."""


def main(argv: Sequence[str]) -> int:
    """Test the named clients, or all; return 0 where all that could be tested passed."""
    clients: dict[str, Callable[[str], None]] = {
        name: lambda url, name=name: test_python(name, url) for name in PYTHON_TESTS
    }
    clients["javascript"] = test_javascript
    by_default = list(clients)
    clients["open-webui"] = test_open_webui
    parser = argparse.ArgumentParser(prog="scripts/test --clients", description=__doc__)
    parser.add_argument(
        "clients", nargs="*", metavar="CLIENT", help=f"some of {', '.join(clients)}; else all but open-webui"
    )
    wanted = parser.parse_args(argv).clients or by_default
    if unknown := set(wanted) - set(clients):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(clients)}")

    outcomes: list[str] = []
    failed = False
    with serving() as url:
        for name in wanted:
            began = time.monotonic()
            try:
                clients[name](url)
                outcome = "passed"
            except Skipped as reason:
                outcome = f"SKIPPED: {reason}"
            except subprocess.CalledProcessError as error:
                outcome, failed = f"FAILED: {Path(error.cmd[0]).name} ended with {error.returncode}", True
            outcomes.append(f"  {name:<11} {time.monotonic() - began:4.0f} s   {outcome}")
    print("\nReal clients, set-up included:", *outcomes, sep="\n", flush=True)
    return 1 if failed else 0


@contextmanager
def serving() -> Iterator[str]:
    """Run `kaminari serve` on the demo model; yield its base URL. Raises `RuntimeError` if it ends badly."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("KAMINARI_")}
    command = [sys.executable, "-m", "kaminari", "serve", "--port", "0", "--slots", "4"]
    command += ["--dtype", "float32", "--threads", "1", "--log-level", "warning"]
    with subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            ready = re.search(r"ready at (\S+):", server.stdout.readline())
            if ready is None:
                raise RuntimeError("kaminari serve did not start")
            yield ready[1]
        finally:
            server.send_signal(signal.SIGTERM)
            code = server.wait(timeout=60)
    if code != 0:
        raise RuntimeError(f"kaminari serve ended with {code}")


def test_python(name: str, url: str) -> None:
    python = python_environment(name, HERE / f"requirements-{name}.txt")
    tests = [str(HERE / test) for test in PYTHON_TESTS[name]]
    run([python, "-m", "pytest", "-c", str(HERE / "pytest.ini"), *tests], OPENAI_BASE_URL=url)


def test_open_webui(url: str) -> None:
    """Only where it is asked for: its environment is large. It needs Python 3.11 or 3.12."""
    if sys.version_info >= (3, 13):
        raise Skipped(f"Open WebUI needs Python 3.11 or 3.12; this is {sys.version.split()[0]}")
    python = python_environment("open-webui", HERE / "requirements-open-webui.txt")
    run([python, str(HERE / "open_webui.py")], OPENAI_BASE_URL=url)


def test_javascript(url: str) -> None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise Skipped(f"the JavaScript clients need Node.js {NODE_VERSION} or newer, and there is none")
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if int(version.lstrip("v").partition(".")[0]) < NODE_VERSION:
        raise Skipped(f"the JavaScript clients need Node.js {NODE_VERSION} or newer; this is {version}")
    folder = HERE / "javascript"
    lock = (folder / "package-lock.json").read_text()
    with made_once(folder / "node_modules", lock + version) as missing:
        if missing:
            run([npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"], folder)
    tests = [str(test) for test in sorted(folder.glob("*.test.mjs"))]
    run([node, "--test", "--test-concurrency=1", *tests], folder, OPENAI_BASE_URL=url)


def python_environment(name: str, requirements: Path) -> str:
    """Make the virtual environment of a client unless it is there; return its interpreter."""
    folder = ENVIRONMENTS / name
    python = folder / "bin" / "python"
    with made_once(folder, requirements.read_text() + sys.version) as missing:
        if missing:
            run([sys.executable, "-m", "venv", "--clear", str(folder)])
            quiet = ["--quiet", "--disable-pip-version-check"]
            run([str(python), "-m", "pip", "install", *quiet, "--requirement", str(requirements)])
    return str(python)


@contextmanager
def made_once(folder: Path, pins: str) -> Iterator[bool]:
    """Yield whether `folder` has yet to be made for these pins; remember them when the block succeeds."""
    stamp = folder / "kaminari-pins"
    missing = not stamp.exists() or stamp.read_text() != pins
    if missing:
        print(f"Setting up {folder.relative_to(ROOT)} ...", file=sys.stderr, flush=True)
    yield missing
    folder.mkdir(parents=True, exist_ok=True)
    stamp.write_text(pins)


def run(command: Sequence[str], folder: Path = ROOT, **environment: str) -> None:
    """Run a command in a folder. Raises `CalledProcessError` where it fails."""
    subprocess.run(command, cwd=folder, env={**os.environ, **environment}, check=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
