"""Run as a program: for each line on its standard input one of what the line names is kept for ever, and a line answers."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any


def main() -> None:
    """Keep, and answer."""
    folder, kept = Path(sys.argv[1]), list[Any]()
    for line in sys.stdin:
        match line.strip():
            case "objects":
                kept.append(bytearray(42_000))
            case "descriptors":
                kept.append(open("/dev/null"))  # noqa: SIM115
            case "threads":
                threading.Thread(target=threading.Event().wait, daemon=True).start()
            case "files":
                (folder / f"left-{len(list(folder.iterdir()))}").touch()
        print("done", flush=True)


if __name__ == "__main__":
    main()
