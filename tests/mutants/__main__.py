"""Make every mistake of the catalogue in a copy of the tree, and see which tests notice.

    python -m tests.mutants [words]      only mutants whose file or reason holds one of the words

The last line is one JSON object: how many there were, were caught, timed out, and were missed. A
mutant whose tests do not end in time is no pass, and no assertion that saw it either: it is counted
apart. One that cannot be made any more counts as missed, so that the list stays alive.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from tests.mutants import ROOT, Mutant, catalogue

COPIED = ("src", "tests", "docs", "examples", "pyproject.toml", "constraints.txt")
AT_ONCE = 2
TIMEOUT_S = 300
PASSED, FAILED = 0, 1  # pytest's exit codes; any other says that nothing was proven
TOO_LONG = -1000  # none of pytest's, and no signal's
CAUGHT, TIMED_OUT, MISSED = "caught", "timed_out", "MISSED"


def judged(ended: int, said: str = "") -> tuple[str, str]:
    """Return what became of a mutant, and why it was not caught, by how its tests ended."""
    if ended == FAILED:
        return CAUGHT, ""
    if ended == TOO_LONG:
        return TIMED_OUT, f"its tests had not ended after {TIMEOUT_S} s"
    if ended == PASSED:
        return MISSED, "the tests pass"
    return MISSED, f"pytest ended with {ended}:\n{said[-2000:]}"


def counted(found: Sequence[str]) -> dict[str, int]:
    """Return the last line: how many of these became what."""
    names = {"caught": CAUGHT, "timed_out": TIMED_OUT, "missed": MISSED}
    return {"mutants": len(found)} | {name: found.count(what) for name, what in names.items()}


def exit_code(counts: Mapping[str, int]) -> int:
    """Return 0 if an assertion has seen every mutant."""
    return 0 if counts["caught"] == counts["mutants"] else 1


class Tree:
    """A copy of the tree, of which one mutant at a time has its own."""

    def __init__(self, folder: Path) -> None:
        """Copy what the tests need."""
        self.folder = folder
        for name in COPIED:
            source, copy = ROOT / name, folder / name
            if source.is_dir():
                shutil.copytree(source, copy)  # with what is compiled, which saves half the time
            else:
                shutil.copy2(source, copy)

    def test(self, tests: Sequence[str]) -> tuple[int, str]:
        """Run tests on the copy; return pytest's exit code and what it said."""
        environment = {
            **os.environ,
            "PYTHONPATH": f"{self.folder / 'src'}{os.pathsep}{self.folder}",
            # What is compiled is known by time and size: nothing of a mutant may be kept.
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-o", "addopts="]
        command += ["-p", "no:cacheprovider", "-p", "no:hypothesispytest"]
        command += [f"tests/{test}" for test in tests]
        with tempfile.TemporaryFile("w+") as said:  # a pipe might be held by a grandchild
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdout=said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                ended = process.wait(TIMEOUT_S)
            except subprocess.TimeoutExpired:
                ended = TOO_LONG
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            said.seek(0)
            return ended, said.read()

    def try_out(self, mutant: Mutant) -> tuple[str, str]:
        """Return what became of a mutant, and why it was not caught."""
        path = self.folder / mutant.path
        code, before = path.read_text("utf-8"), path.stat()
        try:
            path.write_text(mutant.made_in(code), "utf-8")
            ended, said = self.test(mutant.tests)
        except LookupError as error:
            return MISSED, str(error)
        finally:
            path.write_text(code, "utf-8")
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        return judged(ended, said)


def sound(tree: Tree, mutants: Sequence[Mutant]) -> bool:
    """Whether the tests pass where there is no mistake, on the copy and not on the tree itself."""
    check = "import beadline; print(beadline.__file__)"
    place = subprocess.run(
        [sys.executable, "-c", check],
        cwd=tree.folder,
        env={**os.environ, "PYTHONPATH": str(tree.folder / "src")},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert place.startswith(str(tree.folder)), f"the copy is not what is tested, but {place}"
    ended, said = tree.test(sorted({test for mutant in mutants for test in mutant.tests}))
    if ended != PASSED:
        print(f"without any mistake the tests do not pass:\n{said[-4000:]}")
    return ended == PASSED


def main(words: Sequence[str]) -> int:
    """Try every mutant that was asked for, two at a time."""
    mutants = [m for m in catalogue() if not words or any(w in m.path + m.why for w in words)]
    began_s = time.monotonic()
    found: list[str] = []
    with tempfile.TemporaryDirectory(prefix="beadline-mutants-") as folder:
        trees: SimpleQueue[Tree] = SimpleQueue()
        for number in range(AT_ONCE):
            trees.put(Tree(Path(folder) / str(number)))

        def one(mutant: Mutant) -> None:
            tree = trees.get()
            try:
                what, why = tree.try_out(mutant)
            finally:
                trees.put(tree)
            found.append(what)
            print(f"{what}  {mutant.file}: {mutant.why}", flush=True)
            if why:
                print(f"        {why}\n        {mutant.old!r} → {mutant.new!r}", flush=True)

        with ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
            unspoilt = pool.submit(sound, Tree(Path(folder) / "unspoilt"), mutants)
            list(pool.map(one, mutants))
        clean = unspoilt.result()
    counts = counted(found if clean else [MISSED] * len(mutants))
    print(f"{time.monotonic() - began_s:.0f} s")
    print(json.dumps(counts))
    return exit_code(counts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
