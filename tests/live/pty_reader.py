"""A program on a terminal of its own, and a small reading of what it draws: cursor jumps, erasures, text; no colours."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_CSI = re.compile(r"\x1b\[([<=>?]?)([\d;:]*)[ -/]*([@-~])")
_OSC = re.compile(r"\x1b[\]P^_](.*?)(?:\x07|\x1b\\)", re.DOTALL)


class Screen:
    def __init__(self, width: int, height: int) -> None:
        self.cells = [[" "] * width for _ in range(height)]
        self._x = self._y = 0
        self._left = ""
        """The beginning of a sequence whose end has not come."""

    def feed(self, text: str) -> None:
        text, self._left = self._left + text, ""
        at = 0
        while at < len(text):
            if text[at] == "\x1b":
                if match := _CSI.match(text, at):
                    self._control(*match.groups())
                elif not (match := _OSC.match(text, at)):
                    if len(text) - at < 64:
                        self._left = text[at:]
                        return
                    at += 2
                    continue
                at = match.end()
            else:
                self._put(text[at])
                at += 1

    def _put(self, character: str) -> None:
        if character == "\r":
            self._x = 0
        elif character == "\n":
            self._y = min(self._y + 1, len(self.cells) - 1)
        elif character >= " ":
            if self._y < len(self.cells) and self._x < len(self.cells[0]):
                self.cells[self._y][self._x] = character
            self._x += 1

    def _control(self, private: str, parameters: str, final: str) -> None:
        if private or not re.fullmatch(r"[\d;]*", parameters):
            return
        numbers = [int(n) if n else 0 for n in parameters.split(";")]
        match final:
            case "H" | "f":
                self._y, self._x = max(numbers[0], 1) - 1, max([*numbers, 1][1], 1) - 1
            case "A" | "B" | "C" | "D":
                by = max(numbers[0], 1)
                self._y += {"A": -by, "B": by}.get(final, 0)
                self._x += {"D": -by, "C": by}.get(final, 0)
            case "J" if numbers[0] in (2, 3):
                for row in self.cells:
                    row[:] = [" "] * len(row)
            case "K":
                self.cells[self._y][self._x :] = [" "] * (len(self.cells[0]) - self._x)
            case _:
                pass

    def text(self) -> str:
        return "\n".join("".join(row).rstrip() for row in self.cells)


class OnTerminal:
    """A program on a pty. Every wait ends within `deadline_s`, and its failure shows the screen."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        width: int = 80,
        height: int = 24,
        deadline_s: float = 90.0,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.screen = Screen(width, height)
        self.raw = b""
        """The last bytes that it sent."""
        self._deadline_s = deadline_s
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        environ = {**os.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8", "LC_ALL": "C.UTF-8", **(environ or {})}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, cwd=cwd, env=environ, start_new_session=True
        )
        os.close(slave)

    def __enter__(self) -> "OnTerminal":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait(10)
        os.close(self._master)

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def until(self, *words: str, gone: str = "") -> str:
        """Until all these words, and not `gone`, are on the screen."""
        end = time.monotonic() + self._deadline_s
        while True:
            text = self.screen.text()
            if all(word in text for word in words) and not (gone and gone in text):
                return text
            if time.monotonic() > end or not self._read(0.2):
                raise AssertionError(f"expected {words}{f' and no {gone}' if gone else ''} on the screen, got:\n{text}")

    def wait(self) -> int:
        """Its exit code, after everything that it sends was read."""
        end = time.monotonic() + self._deadline_s
        while self.process.poll() is None and time.monotonic() < end:
            self._read(0.1)
        while self._read(0.1, empty=False):
            pass
        return self.process.wait(1)

    def _read(self, wait_s: float, empty: bool = True) -> bool:
        """False at the end; with `empty` false, also where nothing came."""
        if not select.select([self._master], [], [], wait_s)[0]:
            return empty
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:
            return False
        self.raw = (self.raw + data)[-(1 << 16) :]
        self.screen.feed(data.decode(errors="replace"))
        return bool(data)
